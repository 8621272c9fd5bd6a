//! How much is admitted.

use crate::{admitted, stack};
use jiff::Timestamp;
use jiff::tz::TimeZoneDatabase;
use reqwest::Method;
use serde_json::json;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;
use tollgate_tests::{
    Client, Endpoint, EnvoyBuilder, NEVER, Process, Redis, Upstream, burst, config, eventually, global, local,
};

#[tokio::test]
async fn one_caller_gets_exactly_the_budget_and_another_is_untouched() {
    let (mut envoy, _endpoint, upstream) = stack(config(&[global("per-key", 12, NEVER, json!("closed"))])).await;
    let client = envoy.client();
    let replies = burst(20, 4, |_| client.get_as("alice")).await;
    assert_eq!(admitted(&replies), 12);
    for reply in replies.iter().filter(|reply| reply.status == 429) {
        assert!(reply.header("retry-after").is_some_and(|wait| wait.parse::<u64>().is_ok_and(|wait| wait > 0)));
    }
    assert_eq!(client.get_as("bob").await.status, 200);
    assert_eq!(upstream.requests(), 13);
    assert_eq!(envoy.outcome("allowed").await, 13);
    assert_eq!(envoy.outcome("denied").await, 8);
    envoy.assert_sound();
}

#[tokio::test]
async fn the_endpoint_is_reached_by_http2_through_a_cluster_named_as_istio_does() {
    let (upstream, endpoint) = (Upstream::start().await, Endpoint::start("memory").await);
    let name = "outbound|10002||tollgate.limits.svc.cluster.local";
    let mut policy = config(&[global("per-key", 3, NEVER, json!("closed"))]);
    policy["endpoint"]["cluster"] = json!(name);
    let builder = EnvoyBuilder::new(policy, upstream.address).endpoint(endpoint.address).http2_cluster(name);
    let mut envoy = builder.start().await;
    let client = envoy.client();
    assert_eq!(admitted(&burst(8, 2, |_| client.get_as("k")).await), 3);
    envoy.assert_sound();
}

#[tokio::test]
async fn an_endpoint_that_wants_a_token_gets_it_from_the_filter_and_from_nobody_else() {
    const TOKEN: &str = "a-token-of-the-tests";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tokens");
    std::fs::write(&file, TOKEN).expect("a file");
    let upstream = Upstream::start().await;
    let endpoint = Endpoint::start_with(&["--auth-token-file", file.to_str().expect("text")]).await;
    for (token, expected) in [(TOKEN, 3), ("another-token-of-the-tests", 0)] {
        let mut policy = config(&[global("per-key", 3, NEVER, json!("closed"))]);
        policy["endpoint"]["auth_token"] = json!({"value": token});
        let mut envoy = EnvoyBuilder::new(policy, upstream.address).endpoint(endpoint.address).start().await;
        let client = envoy.client();
        let replies = burst(5, 1, |_| client.get_as(token)).await;
        assert_eq!(replies.iter().filter(|reply| reply.status == 200).count(), expected);
        assert_eq!(envoy.count("failure.status").await, if expected == 0 { 5 } else { 0 });
        assert!(!envoy.process.log().contains(token) && !endpoint.process.log().contains(token));
        envoy.assert_sound();
    }
}

#[tokio::test]
async fn a_route_class_that_costs_five_spends_five() {
    let mut policy = config(&[global("per-key", 12, NEVER, json!("closed"))]);
    policy["routes"] = json!([
        {"name": "health", "path": "/healthz", "exempt": true},
        {"name": "reports", "methods": ["GET"], "path": "/v1/reports/{id}", "cost": 5},
    ]);
    let (mut envoy, _endpoint, _upstream) = stack(policy).await;
    let client = envoy.client();
    let get = |path: &'static str| client.get(path);
    assert_eq!(get("/v1/reports/1").await.status, 200);
    assert_eq!(get("/v1/reports/2").await.status, 200);
    assert_eq!(get("/v1/reports/3").await.status, 429, "2 are left");
    // However the path is spelled.
    for path in ["//v1/reports/3", "/v1/./reports/%33", "/v1/reports/3/?x=1", "/V1/../v1/reports/3"] {
        assert_eq!(get(path).await.status, 429, "{path}");
    }
    assert_eq!([get("/a").await.status, get("/b").await.status, get("/c").await.status], [200, 200, 429]);
    assert_eq!(admitted(&burst(50, 4, |_| client.get("/healthz")).await), 50);
    assert_eq!(client.get("/healthz/../a").await.status, 429);
    assert_eq!(envoy.outcome("exempt").await, 50);
    envoy.assert_sound();
}

#[tokio::test]
async fn a_day_of_the_local_calendar_ends_when_retry_after_says() {
    let zone = TimeZoneDatabase::bundled().get("Pacific/Kiritimati").expect("a time zone");
    let policy = |zone: &str| {
        let mut policy = global("per-day", 3, NEVER, json!("closed"));
        policy["limit"] = json!({"fixed_window": {"capacity": 3, "window": "day", "time_zone": zone}});
        config(&[policy])
    };
    let (mut envoy, endpoint, upstream) = stack(policy("Pacific/Kiritimati")).await;
    let client = envoy.client();
    assert_eq!(admitted(&burst(5, 1, |_| client.get_as("alice")).await), 3);
    let reply = client.get_as("alice").await;
    let wait: i64 = reply.header("retry-after").and_then(|wait| wait.parse().ok()).expect("a wait");
    let ends = zone.to_datetime(Timestamp::now() + Duration::from_secs(wait.unsigned_abs()));
    assert!(ends.hour() == 0 && ends.minute() == 0, "{ends} is not midnight");
    envoy.assert_sound();

    // Only the endpoint knows which zones there are.
    let builder = EnvoyBuilder::new(policy("Pacific/Kiritimat"), upstream.address).endpoint(endpoint.address);
    let mut envoy = builder.start().await;
    assert_eq!(envoy.client().get_as("alice").await.status, 503);
    assert_eq!(envoy.count("failure.store").await, 1);
    envoy.assert_sound();
}

#[tokio::test]
async fn two_envoys_on_redis_admit_exactly_the_budget_together() {
    let (redis, upstream) = (Redis::start().await, Upstream::start().await);
    let endpoint = Endpoint::start(&redis.url()).await;
    let policy = config(&[global("per-key", 100, NEVER, json!("closed"))]);
    let builder = EnvoyBuilder::new(policy, upstream.address).endpoint(endpoint.address);
    let (mut one, mut two) = (builder.clone().start().await, builder.start().await);
    let clients = [one.client(), two.client()];
    for run in 0..10 {
        let key = format!("run {run}");
        let replies = burst(300, 16, |index| clients[index % 2].get_as(&key)).await;
        assert_eq!(admitted(&replies), 100, "run {run}");
    }
    assert!(one.outcome("allowed").await > 0 && two.outcome("allowed").await > 0, "both took part");
    assert_eq!(redis.keys().await.len(), 10, "both derive the same key for one caller");
    one.assert_sound();
    two.assert_sound();
}

#[tokio::test]
async fn a_local_policy_allows_its_number_in_the_whole_proxy() {
    let upstream = Upstream::start().await;
    let mut guard = local("guard", 50, NEVER);
    guard["key"] = json!(["credential"]);
    let mut envoy = EnvoyBuilder::new(config(&[guard]), upstream.address).workers(16).start().await;
    // F78
    for run in 0..20 {
        // Every connection may end on another worker, and all of them race for a bucket that is new.
        let clients: Vec<Client> = (0..64).map(|_| envoy.client()).collect();
        let key = format!("run {run}");
        assert_eq!(admitted(&burst(200, 64, |index| clients[index % 64].get_as(&key)).await), 50, "run {run}");
    }
    assert_eq!(envoy.count("local.cas_exhausted").await, 0);
    envoy.assert_sound();
}

#[tokio::test]
async fn a_policy_per_worker_allows_its_number_in_each() {
    let upstream = Upstream::start().await;
    let mut guard = local("guard", 5, NEVER);
    guard["sharing"] = json!("worker");
    let mut envoy = EnvoyBuilder::new(config(&[guard]), upstream.address).workers(2).start().await;
    let clients: Vec<Client> = (0..32).map(|_| envoy.client()).collect();
    let count = admitted(&burst(320, 32, |index| clients[index % 32].get("/")).await);
    assert_eq!(count, 10, "with this many connections both workers have some");
    // A new configuration keeps what each worker has.
    let mut guard = local("guard", 6, NEVER);
    guard["sharing"] = json!("worker");
    assert!(envoy.push(config(&[guard])).await);
    let clients: Vec<Client> = (0..32).map(|_| envoy.client()).collect();
    assert_eq!(admitted(&burst(64, 16, |index| clients[index % 32].get("/")).await), 0);
    envoy.assert_sound();
}

#[tokio::test]
async fn a_request_that_the_endpoint_denies_spends_nothing_locally_except_from_a_guard() {
    let mut guard = local("guard", 20, NEVER);
    guard["charge"] = json!("always");
    let mut per_key = global("per-key", 2, NEVER, json!("closed"));
    per_key["match"] = json!({"routes": ["narrow"]});
    let mut policy = config(&[guard, local("fair", 6, NEVER), per_key]);
    policy["routes"] = json!([{"name": "narrow", "path": "/narrow"}]);
    let (mut envoy, _endpoint, _upstream) = stack(policy).await;
    let client = envoy.client();
    let violated = |reply: tollgate_tests::Reply| reply.body.split("violated-policies").nth(1).map(String::from);
    assert_eq!(admitted(&burst(10, 1, |_| client.get("/narrow")).await), 2);
    assert_eq!(admitted(&burst(6, 1, |_| client.get("/")).await), 4, "2 of 6 were spent, not 10");
    // 10 + 6 requests have charged the guard.
    let replies = burst(5, 1, |_| client.get("/")).await;
    assert!(violated(replies[3].clone()).is_some_and(|names| names.contains(r#"["fair"]"#)));
    assert!(violated(replies[4].clone()).is_some_and(|names| names.contains(r#"["guard","fair"]"#)));
    envoy.assert_sound();
}

#[tokio::test]
async fn a_path_that_no_policy_matches_goes_through() {
    let mut policy = config(&[global("only-a", 1, NEVER, json!("closed"))]);
    policy["routes"] = json!([{"name": "a", "path": "/a"}]);
    policy["policies"][0]["match"] = json!({"routes": ["a"]});
    let (mut envoy, _endpoint, _upstream) = stack(policy).await;
    let client = envoy.client();
    assert_eq!(admitted(&burst(9, 3, |_| client.get("/b")).await), 9);
    assert_eq!(admitted(&burst(9, 3, |_| client.get("/a")).await), 1);
    envoy.assert_sound();
}

/// The addresses of the shipped demo, replaced by free ones.
fn demo(ports: [u16; 4]) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut text = std::fs::read_to_string(format!("{root}/envoy/demo.yaml")).expect("the demo");
    for (from, to) in [10_000, 10_001, 10_002, 9901].iter().zip(ports) {
        let (from, to) = (format!("port_value: {from}}}"), format!("port_value: {to}}}"));
        assert!(text.contains(&from), "{from}");
        text = text.replace(&from, &to);
    }
    let module = std::env::var("TOLLGATE_WASM").expect("set by make test");
    assert!(text.contains("build/tollgate_filter.wasm"));
    text.replace("build/tollgate_filter.wasm", &module)
}

#[tokio::test]
async fn the_shipped_demo_does_what_it_says() {
    let endpoint = Endpoint::start("memory").await;
    let free: Vec<u16> = (0..3)
        .map(|_| TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()))
        .map(|address| address.expect("a port").port())
        .collect();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("demo.yaml");
    std::fs::write(&file, demo([free[0], free[1], endpoint.address.port(), free[2]])).expect("a file");
    let mut command = Command::new(std::env::var("ENVOY_BIN").expect("set by make test"));
    command.arg("-c").arg(&file).args(["--concurrency", "2", "--disable-hot-restart", "-l", "warning"]);
    command.env("TOLLGATE_HASH_KEY", "demo demo demo demo");
    let _envoy = Process::start(&mut command, &folder.path().join("envoy.log"));
    let proxy = Client::new(format!("127.0.0.1:{}", free[0]).parse().expect("an address"));
    eventually("the demo answers", async || {
        let health = proxy.request(Method::GET, "/healthz").send().await;
        health.and_then(reqwest::Response::error_for_status).map(|_| ())
    })
    .await;
    assert_eq!(admitted(&burst(12, 1, |_| proxy.get_as("alice")).await), 10);
    let report = || tollgate_tests::send(proxy.request(Method::GET, "/v1/reports/1").header("x-api-key", "bob"));
    assert_eq!([report().await.status, report().await.status, report().await.status], [200, 200, 429]);
    assert_eq!(proxy.get_as("carol").await.body, "hello from the upstream\n");
    let flood = burst(200, 8, |_| proxy.get("/")).await;
    assert!(flood.iter().any(|reply| reply.body.contains("guard")), "the guard ends a flood");
}
