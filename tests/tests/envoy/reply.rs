//! What a rejected caller sees.

use crate::stack;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tollgate_tests::{Client, EnvoyBuilder, NEVER, Upstream, config, global, local, send};

#[tokio::test]
async fn a_denial_is_a_429_problem_that_no_cache_may_keep() {
    // F63
    let (mut envoy, _endpoint, _upstream) = stack(config(&[global("per-key", 1, "1/10s", json!("closed"))])).await;
    let client = envoy.client();
    client.get_as("k").await;
    let reply = client.get_as("k").await;
    assert_eq!(reply.status, 429);
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    assert_eq!(reply.header("x-envoy-ratelimited"), Some("true"));
    assert_eq!(reply.header("retry-after"), Some("10"));
    let body: Value = serde_json::from_str(&reply.body).expect("JSON");
    assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(body["status"], 429);
    assert_eq!(body["violated-policies"], json!(["per-key"]));
    assert_eq!(body["policy-version"], "test");
    envoy.assert_sound();
}

#[tokio::test]
async fn the_wait_is_the_longest_of_those_that_denied() {
    // F37
    let (mut envoy, _endpoint, _upstream) = stack(config(&[
        global("short", 1, "1/5s", json!("closed")),
        global("long", 1, "1/60s", json!("closed")),
        global("wide", 100, NEVER, json!("closed")),
        local("guard", 100, NEVER),
    ]))
    .await;
    let client = envoy.client();
    assert_eq!(client.get_as("k").await.status, 200);
    let reply = client.get_as("k").await;
    assert_eq!(reply.header("retry-after"), Some("60"));
    assert!(reply.body.contains(r#"["short","long"]"#), "{}", reply.body);
    envoy.assert_sound();
}

#[tokio::test]
async fn the_endpoint_says_when_a_cost_can_never_be_paid() {
    let endpoint = tollgate_tests::Endpoint::start("memory").await;
    // A policy with a capacity below a cost is refused, so ask the endpoint itself.
    let client = Client::new(endpoint.address);
    let charge = json!({"policy": "p", "key": "0".repeat(32), "group": "0".repeat(32), "cost": 6,
                        "token_bucket": {"capacity": 5, "refill": 1, "per_us": 1_000_000}});
    let body = json!({"decisions": [{"charges": [charge]}]}).to_string();
    let reply = send(client.request(Method::POST, "/v1/admit").body(body)).await;
    assert_eq!(reply.body, r#"{"decisions":[{"denied":[{"remaining":5,"denied":"over_capacity"}]}]}"#);
}

#[tokio::test]
async fn a_head_request_gets_the_headers_and_no_body() {
    // F64
    let upstream = Upstream::start().await;
    let mut envoy = EnvoyBuilder::new(config(&[local("guard", 1, NEVER)]), upstream.address).start().await;
    let client = envoy.client();
    assert_eq!(client.get("/").await.status, 200);
    for _ in 0..3 {
        let reply = send(client.request(Method::HEAD, "/")).await;
        assert_eq!((reply.status, reply.body.as_str()), (429, ""));
        assert!(reply.header("retry-after").is_some());
        assert_eq!(client.get("/").await.status, 429, "the connection still works");
    }
    envoy.assert_sound();
}

#[tokio::test]
async fn a_grpc_caller_gets_resource_exhausted_and_a_plain_one_429() {
    // F66
    let (mut envoy, _endpoint, _upstream) =
        stack(config(&[local("guard", 3, NEVER), global("per-key", 1, NEVER, json!("closed"))])).await;
    let client = Client::http2(envoy.address);
    let grpc = || {
        let request = client.request(Method::POST, "/pkg.Service/Method").header("x-api-key", "k");
        send(request.header(CONTENT_TYPE, "application/grpc").header("te", "trailers"))
    };
    assert_eq!(client.get_as("k").await.status, 200);
    // Denied by the endpoint, then, when the key no longer matters, in the proxy.
    client.get_as("a").await;
    for reply in [grpc().await, {
        client.get_as("b").await;
        grpc().await
    }] {
        assert_eq!(reply.status, 200, "gRPC has its status in grpc-status");
        assert_eq!(reply.header("grpc-status"), Some("8"));
        assert!(reply.header("retry-after").is_some());
        assert!(reply.header("grpc-message").is_some_and(|text| text.contains("no capacity left")));
    }
    assert_eq!(client.get_as("k").await.status, 429);
    envoy.assert_sound();
}

#[tokio::test]
async fn a_policy_that_fails_closed_says_503_and_unavailable() {
    let upstream = Upstream::start().await;
    let policy = config(&[global("per-key", 5, NEVER, json!("closed"))]);
    // No cluster of that name: nothing can be asked.
    let mut envoy = EnvoyBuilder::new(policy, upstream.address).start().await;
    let reply = envoy.client().get_as("k").await;
    assert_eq!(reply.status, 503);
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    assert_eq!(reply.header("retry-after"), Some("1"));
    assert_eq!(reply.header("x-envoy-ratelimited"), None);
    assert!(reply.body.contains("#temporary-reduced-capacity"));
    let client = Client::http2(envoy.address);
    let request = client.request(Method::POST, "/pkg.Service/Method").header(CONTENT_TYPE, "application/grpc");
    assert_eq!(send(request).await.header("grpc-status"), Some("14"));
    assert_eq!(upstream.requests(), 0);
    assert_eq!(envoy.count("failure.no_host").await, 2);
    let warning =
        "no verdict from the cluster tollgate for 1 requests, so fail modes decide; no_host: the cluster is unknown";
    let warnings = envoy.process.log().matches(warning).count();
    assert!((1..=2).contains(&warnings), "one for each worker at most, not one for each request: {warnings}");
    envoy.assert_sound();
}
