use crate::{Scratch, ask};
use reqwest::Method;
use std::net::SocketAddr;
use std::time::Duration;
use tollgate_tests::{Client, Endpoint, Redis, eventually, send};

const TOKEN: &str = "a-token-nobody-sees";

async fn page(address: SocketAddr) -> String {
    let reply = send(Client::new(address).request(Method::GET, "/metrics").bearer_auth(TOKEN)).await;
    assert_eq!(reply.status, 200);
    reply.body
}

fn value(page: &str, series: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{page}")).parse().expect("a number")
}

#[tokio::test]
async fn metrics_show_what_happened_and_no_secret() {
    let redis = Redis::start().await;
    let tokens = Scratch::file(TOKEN);
    let args = ["--store", &redis.url(), "--store-timeout", "2s", "--max-in-flight", "1"];
    let endpoint = Endpoint::start_with(&[&args[..], &["--auth-token-file", tokens.path()]].concat()).await;
    let address = endpoint.address;
    let before = page(address).await;
    assert_eq!(value(&before, "tollgate_store_errors_total{kind=\"timeout\"}"), 0.0, "from the start");

    let ask = || ask(address).bearer_auth(TOKEN);
    assert_eq!(send(ask()).await.status, 200);
    assert_eq!(send(ask().bearer_auth("more than one token")).await.status, 401);
    assert_eq!(send(ask().body("{")).await.status, 400);
    redis.process.freeze();
    let held = tokio::spawn(send(ask()));
    eventually("a request is in flight", async || match value(&page(address).await, "tollgate_in_flight") {
        1.0 => Ok(()),
        other => Err(other),
    })
    .await;
    assert_eq!(send(ask()).await.status, 503);
    assert!(held.await.expect("a reply").body.contains("store_timeout"));
    redis.process.thaw();

    let page = page(address).await;
    for (series, expected) in [
        ("tollgate_decisions_total{outcome=\"admitted\"}", 1.0),
        ("tollgate_decisions_total{outcome=\"failed\"}", 1.0),
        ("tollgate_store_errors_total{kind=\"timeout\"}", 1.0),
        ("tollgate_refused_total{reason=\"unauthorized\"}", 1.0),
        ("tollgate_refused_total{reason=\"bad_request\"}", 1.0),
        ("tollgate_refused_total{reason=\"overload\"}", 1.0),
        ("tollgate_requests_total{code=\"503\"}", 1.0),
        ("tollgate_stage_duration_seconds_count{stage=\"store\"}", 2.0),
        ("tollgate_in_flight", 0.0),
    ] {
        assert_eq!(value(&page, series), expected, "{series}");
    }
    assert!(value(&page, "tollgate_stage_duration_seconds_sum{stage=\"store\"}") >= 2.0);
    assert!(value(&page, "tollgate_connections") >= 1.0);
    assert!(page.ends_with("# EOF\n"));
    let log = endpoint.process.log();
    for secret in [TOKEN, "more than one token", &format!("{:032x}", 1)] {
        assert!(!page.contains(secret) && !log.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn callers_cannot_make_series() {
    let tokens = Scratch::file(TOKEN);
    let endpoint = Endpoint::start_with(&["--auth-token-file", tokens.path()]).await;
    let client = Client::new(endpoint.address);
    let before = page(endpoint.address).await.lines().count();
    for index in 0..50 {
        let method = Method::from_bytes(format!("METHOD{index}").as_bytes()).expect("a method");
        send(client.request(method, &format!("/path{index}"))).await;
        send(client.request(Method::GET, "/v1/admit").header("x-api-key", index)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(page(endpoint.address).await.lines().count(), before);
}
