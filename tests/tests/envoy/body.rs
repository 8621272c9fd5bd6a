//! A body reaches the upstream after the verdict, or never.

use futures_util::stream;
use reqwest::{Body, Method};
use serde_json::json;
use std::time::Duration;
use tollgate_tests::{Client, Endpoint, Envoy, EnvoyBuilder, Link, NEVER, Upstream, burst, config, global, send};

const SIZE: usize = 160 * 1024;

/// An endpoint whose answer takes 150 ms, and a budget for each key.
async fn slow_verdict(capacity: u64, stop_iteration: bool) -> (Envoy, Endpoint, Link, Upstream) {
    let upstream = Upstream::start().await;
    let endpoint = Endpoint::start("memory").await;
    let link = Link::to(endpoint.address, Duration::from_millis(150)).await;
    let policy = config(&[global("per-key", capacity, NEVER, json!("closed"))]);
    let mut builder = EnvoyBuilder::new(policy, upstream.address).endpoint(link.address);
    if stop_iteration {
        builder = builder.stop_iteration();
    }
    (builder.start().await, endpoint, link, upstream)
}

fn chunked() -> Body {
    let chunks = (0..SIZE / 1024).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 1024]));
    Body::wrap_stream(stream::iter(chunks))
}

#[tokio::test]
async fn a_rejected_body_never_reaches_the_upstream() {
    // F56
    for stop_iteration in [false, true] {
        let (mut envoy, _endpoint, link, upstream) = slow_verdict(1, stop_iteration).await;
        let (http1, http2) = (envoy.client(), Client::http2(envoy.address));
        link.set_delay(Duration::ZERO);
        assert_eq!(http1.get_as("k").await.status, 200);
        link.set_delay(Duration::from_millis(100));
        let replies = burst(60, 6, |index| {
            let client = if index % 2 == 0 { &http1 } else { &http2 };
            let body = if index % 3 == 0 { chunked() } else { Body::from(vec![b'x'; SIZE]) };
            client.post_as("k", body)
        })
        .await;
        assert!(replies.iter().all(|reply| reply.status == 429), "{replies:?}");
        assert_eq!((upstream.requests(), upstream.bytes()), (1, 0), "stop_iteration: {stop_iteration}");
        envoy.assert_sound();
    }
}

#[tokio::test]
async fn an_admitted_body_waits_for_the_verdict_and_arrives_whole() {
    for stop_iteration in [false, true] {
        let (mut envoy, _endpoint, _link, upstream) = slow_verdict(100, stop_iteration).await;
        for client in [envoy.client(), Client::http2(envoy.address)] {
            for body in [Body::from(vec![b'x'; SIZE]), chunked()] {
                let before = (upstream.requests(), upstream.bytes());
                let request = client.request(Method::POST, "/").header("x-api-key", "k").body(body);
                let reply = tokio::spawn(send(request));
                tokio::time::sleep(Duration::from_millis(75)).await;
                assert_eq!((upstream.requests(), upstream.bytes()), before, "before the verdict");
                let reply = reply.await.expect("a reply");
                assert_eq!((reply.status, reply.body), (200, format!("read {SIZE} bytes\n")));
            }
        }
        envoy.assert_sound();
    }
}
