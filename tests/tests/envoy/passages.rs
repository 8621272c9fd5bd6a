//! How often a request counts that passes more than once, or becomes something else.

use crate::{admitted, stack};
use futures_util::{SinkExt, StreamExt};
use reqwest::Method;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message;
use tollgate_tests::{EnvoyBuilder, NEVER, Upstream, burst, config, global, local, send};

#[tokio::test]
async fn a_request_that_envoy_sends_again_is_charged_once() {
    // F68 (a)
    let upstream = Upstream::start().await;
    let policy = config(&[local("guard", 3, NEVER)]);
    let retries = json!({"retry_on": "5xx", "num_retries": 2});
    let route = json!({"match": {"prefix": "/"}, "route": {"cluster": "upstream", "retry_policy": retries}});
    let builder = EnvoyBuilder::new(policy, upstream.address).virtual_host(json!({"routes": [route]}));
    let mut envoy = builder.start().await;
    let client = envoy.client();
    let failing = || send(client.request(Method::GET, "/").header("x-answer-status", "500"));
    for _ in 0..3 {
        assert_eq!(failing().await.status, 500);
    }
    assert_eq!(upstream.requests(), 9);
    assert_eq!(failing().await.status, 429);
    envoy.assert_sound();
}

#[tokio::test]
async fn an_internal_redirect_is_a_request_of_its_own() {
    // F68 (b)
    let upstream = Upstream::start().await;
    let mut second = local("second", 100, NEVER);
    second["match"] = json!({"routes": ["b"]});
    let mut policy = config(&[local("both", 100, NEVER), second]);
    policy["routes"] = json!([{"name": "b", "path": "/b"}]);
    let redirect = json!({"match": {"prefix": "/"}, "route": {"cluster": "upstream",
        "internal_redirect_policy": {"redirect_response_codes": [302]}}});
    let routes = json!([{"match": {"path": "/b"}, "direct_response": {"status": 200}}, redirect]);
    let builder = EnvoyBuilder::new(policy, upstream.address).virtual_host(json!({"routes": routes}));
    let mut envoy = builder.start().await;
    let client = envoy.client();
    let location = format!("http://{}/b", envoy.address);
    let moved =
        client.request(Method::GET, "/a").header("x-answer-status", "302").header("x-answer-location", location);
    assert_eq!(send(moved).await.status, 200);
    assert_eq!(envoy.count("policy.both.allowed").await, 2);
    assert_eq!(envoy.count("policy.second.allowed").await, 1);
    assert_eq!(envoy.outcome("allowed").await, 2);
    envoy.assert_sound();
}

#[tokio::test]
async fn an_outer_proxy_does_not_try_a_rejection_again() {
    // F68 (c)
    let upstream = Upstream::start().await;
    let policy = config(&[local("guard", 1, NEVER)]);
    let mut inner = EnvoyBuilder::new(policy, upstream.address).start().await;
    let retries = json!({"retry_on": "5xx,retriable-4xx,retriable-status-codes", "retriable_status_codes": [429],
        "num_retries": 3, "rate_limited_retry_back_off": {"reset_headers": [{"name": "retry-after", "format": "SECONDS"}]}});
    let route = json!({"match": {"prefix": "/"}, "route": {"cluster": "upstream", "retry_policy": retries}});
    let outer = EnvoyBuilder::benchmark(None).to(inner.address).virtual_host(json!({"routes": [route]})).start().await;
    let client = outer.client();
    assert_eq!(client.get("/").await.status, 200);
    assert_eq!(client.get("/").await.status, 429);
    assert_eq!(inner.outcome("denied").await, 1, "x-envoy-ratelimited keeps Envoy from trying again");
    inner.assert_sound();
}

#[tokio::test]
async fn a_websocket_costs_its_handshake_and_its_messages_are_free() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut socket = tokio_tungstenite::accept_async(stream).await.expect("a handshake");
                while let Some(Ok(message)) = socket.next().await {
                    if message.is_text() && socket.send(message).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    let (_envoy, endpoint, _upstream) = stack(config(&[local("guard", 1, NEVER)])).await;
    let policy = config(&[global("per-key", 2, NEVER, json!("closed"))]);
    let upgrades = json!({"upgrade_configs": [{"upgrade_type": "websocket"}]});
    let builder = EnvoyBuilder::new(policy, address).endpoint(endpoint.address).manager(upgrades);
    let mut envoy = builder.start().await;
    let url = format!("ws://{}/", envoy.address);
    for _ in 0..2 {
        let (mut socket, response) = tokio_tungstenite::connect_async(&url).await.expect("a socket");
        assert!(response.headers().contains_key("ratelimit"));
        for number in 0..50 {
            let text = format!("message {number}");
            socket.send(Message::text(text.clone())).await.expect("sent");
            let echo = socket.next().await.expect("an answer").expect("a message");
            assert_eq!(echo.into_text().expect("text").as_str(), text);
        }
    }
    let refused = tokio_tungstenite::connect_async(&url).await.expect_err("the budget is spent");
    assert!(
        matches!(&refused, tokio_tungstenite::tungstenite::Error::Http(response) if response.status() == 429),
        "{refused}"
    );
    assert_eq!(envoy.outcome("allowed").await, 2);
    envoy.assert_sound();
}

#[tokio::test]
async fn two_filters_with_one_policy_share_its_budget() {
    // F68 (d): each passage is charged, from the same buckets.
    let upstream = Upstream::start().await;
    let policy = config(&[local("guard", 6, NEVER)]);
    let mut envoy = EnvoyBuilder::new(policy, upstream.address).twice().start().await;
    let client = envoy.client();
    assert_eq!(admitted(&burst(5, 1, |_| client.get("/")).await), 3);
    envoy.assert_sound();
}
