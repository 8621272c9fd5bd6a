use crate::{ask, decision, in_flight};
use reqwest::Method;
use serde_json::json;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_tests::load::posts;
use tollgate_tests::{Client, Endpoint, Link, Overload, Redis, burst, eventually, send, spend_from};

/// What a processor that is shared with other tests may add to "at once".
const AT_ONCE: Duration = Duration::from_millis(200);

#[tokio::test]
async fn what_is_too_much_is_refused_at_once_and_never_queued() {
    let redis = Redis::start().await;
    let limits = ["--store-timeout", "5s", "--max-in-flight", "4"];
    let endpoint = Endpoint::start_with(&[&["--store", &redis.url()], &limits[..]].concat()).await;
    let address = endpoint.address;
    assert_eq!(send(ask(address)).await.status, 200);

    redis.process.freeze();
    let held: Vec<_> = (0..4).map(|_| tokio::spawn(send(ask(address)))).collect();
    in_flight(address, "4").await;
    for reply in burst(100, 20, |_| send(ask(address))).await {
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
        assert_eq!(reply.header("content-type"), Some("application/problem+json"));
        assert!(reply.took < AT_ONCE, "{:?}", reply.took);
    }
    assert_eq!(Client::new(address).get("/healthz").await.status, 200);

    redis.process.thaw();
    for held in held {
        let reply = held.await.expect("a reply");
        assert!(reply.status == 200 && reply.body.contains("admitted"), "{}", reply.body);
    }
    assert_eq!(send(ask(address)).await.status, 200, "and all is as before");
}

async fn connect(address: SocketAddr, sent: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(sent.as_bytes()).await.expect("a write");
    stream
}

/// All that comes until the endpoint closes, and when that is.
async fn rest(mut stream: TcpStream) -> (String, Duration) {
    let start = Instant::now();
    let mut text = String::new();
    let closed = tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut text)).await;
    let _ = closed.unwrap_or_else(|_| panic!("the endpoint waits for ever, having said {text:?}"));
    (text, start.elapsed())
}

#[tokio::test]
async fn a_slow_client_is_cut_off() {
    let endpoint = Endpoint::start("memory").await;
    let head = "POST /v1/admit HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n";
    let (nothing, half_a_head, no_body) = tokio::join!(
        async { rest(connect(endpoint.address, "").await).await },
        async { rest(connect(endpoint.address, head).await).await },
        async { rest(connect(endpoint.address, &format!("{head}\r\n{{")).await).await },
    );
    for (what, (text, after)) in [("nothing", &nothing), ("half a head", &half_a_head), ("no body", &no_body)] {
        assert!((4..8).contains(&after.as_secs()), "{what}: {after:?} {text}");
    }
    assert!(no_body.0.starts_with("HTTP/1.1 408 Request Timeout"), "{}", no_body.0);
}

#[tokio::test]
async fn a_connection_too_many_is_closed_at_once_and_its_place_comes_back() {
    let endpoint = Endpoint::start_with(&["--max-connections", "2"]).await;
    let held = [connect(endpoint.address, "").await, connect(endpoint.address, "").await];
    let (text, after) = rest(TcpStream::connect(endpoint.address).await.expect("a connection")).await;
    assert!(text.is_empty() && after < AT_ONCE, "{after:?} {text}");
    drop(held);
    eventually("there is room again", async || ask(endpoint.address).send().await).await;
}

#[tokio::test]
async fn a_signal_to_end_lets_a_running_request_end_and_takes_no_more() {
    // A terminal that is closed sends the last one.
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        ends_in_order(signal).await;
    }
}

async fn ends_in_order(signal: i32) {
    let redis = Redis::start().await;
    let mut endpoint = Endpoint::start_with(&["--store", &redis.url(), "--store-timeout", "5s"]).await;
    let (address, idle) = (endpoint.address, TcpStream::connect(endpoint.address).await.expect("a connection"));
    assert_eq!(send(ask(address)).await.status, 200);
    redis.process.freeze();
    let running = tokio::spawn(send(ask(address)));
    in_flight(address, "1").await;
    endpoint.process.signal(signal);
    eventually("nobody listens", async || match TcpStream::connect(address).await {
        Ok(_) => Err("somebody does"),
        Err(_) => Ok(()),
    })
    .await;
    assert!(endpoint.process.is_running());
    redis.process.thaw();
    let reply = running.await.expect("a reply");
    assert!(reply.status == 200 && reply.body.contains("admitted"), "{}", reply.body);
    eventually("it ends", async || if endpoint.process.is_running() { Err("it runs") } else { Ok(()) }).await;
    assert!(!endpoint.process.log().contains("ended with requests still open"), "{}", endpoint.process.log());
    drop(idle);
}

#[tokio::test]
async fn both_versions_of_http_are_spoken() {
    let endpoint = Endpoint::start("memory").await;
    for client in [Client::new(endpoint.address), Client::http2(endpoint.address)] {
        let replies =
            burst(300, 300, |_| send(client.request(Method::POST, "/v1/admit").body(decision().to_string()))).await;
        assert!(replies.iter().all(|reply| reply.status == 200));
    }
}

/// `make bench-endpoint` does the same for 30 s, over a Redis that answers at once.
#[tokio::test(flavor = "multi_thread")]
async fn at_twice_what_it_carries_it_answers_in_time_and_does_not_grow() {
    const PLACES: usize = 64;
    let redis = Redis::start().await;
    // A store that takes its time bounds what is carried, and not the processor that other tests share.
    let link = Link::to(redis.address, Duration::from_millis(20)).await;
    let (store, places) = (format!("redis://{}", link.address), PLACES.to_string());
    let limits = ["--store", &store, "--store-timeout", "5s", "--max-in-flight", &places];
    let endpoint = Endpoint::start_with(&limits).await;

    let mut decision = decision();
    decision["decisions"][0]["charges"][0]["token_bucket"]["capacity"] = json!(999_999_999_999_u64);
    let requests = posts("/v1/admit", [decision.to_string()].into_iter());
    let overload = Overload::put(&endpoint, PLACES, Duration::from_secs(6), &requests).await;
    let (decided, refused) = (overload.answers.with(200), overload.answers.with(503));
    assert_eq!(decided.count() + refused.count(), overload.answers.count());
    assert!(overload.answers.rate() > 1.5 * overload.carried, "{} sent", overload.answers.rate());
    assert!(decided.rate() > 0.5 * overload.carried, "{} decided", decided.rate());
    assert!(refused.percentile(99.0) < AT_ONCE, "{:?}", refused.percentile(99.0));
    assert!(overload.grown < 4 << 20, "{} bytes", overload.grown);
    assert!(overload.carries_again > 0.7 * overload.carried, "{} again", overload.carries_again);
}

#[tokio::test]
async fn budgets_that_are_idle_are_forgotten_and_their_memory_is_given_back() {
    const KEYS: usize = 200_000;
    let endpoint = Endpoint::start("memory").await;
    let rate = json!({"capacity": 1, "refill": 1, "per_us": 5_000_000});
    let empty = endpoint.process.resident();
    spend_from(endpoint.address, KEYS, &json!({"token_bucket": rate})).await;
    let full = endpoint.process.resident();
    assert!(full > empty + 64 * KEYS as u64, "from {empty} to {full} bytes");

    // They are full after 5 s, and each part of the store is searched once in 16.
    let start = Instant::now();
    let given_back = || endpoint.process.resident() < empty + (full - empty) / 2;
    while !given_back() {
        assert!(start.elapsed() < Duration::from_secs(40), "{empty}, {full}, {} bytes", endpoint.process.resident());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
