//! Which budget a request is for, however its path is spelled.

use crate::{admitted, stack};
use reqwest::Method;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use tollgate_tests::{Envoy, EnvoyBuilder, NEVER, Upstream, burst, config, local, send};

/// The status of a request whose method and path are sent as they are.
fn raw(address: SocketAddr, method: &str, path: &str) -> u16 {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").expect("a request");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a reply");
    reply.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
}

/// A narrow budget for one route class, and a wide one for all others.
fn narrow(class: Value, capacity: u64) -> Value {
    let mut narrow = local("narrow", capacity, NEVER);
    narrow["match"] = json!({"routes": [class["name"]]});
    let mut wide = local("wide", 1000, NEVER);
    wide["match"] = json!({"routes": ["other"]});
    let mut policy = config(&[narrow, wide]);
    policy["routes"] = json!([class]);
    policy
}

async fn start(policy: Value) -> (Envoy, Upstream) {
    let upstream = Upstream::start().await;
    (EnvoyBuilder::new(policy, upstream.address).start().await, upstream)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_respelled_path_is_no_other_path() {
    // F16, F18
    let (mut envoy, _upstream) = start(narrow(json!({"name": "login", "path": "/api/login"}), 2)).await;
    let get = |path: &str| raw(envoy.address, "GET", path);
    assert_eq!(["/api/login", "/api/login"].map(get), [200, 200]);
    for path in [
        "//api/login",
        "/api//login",
        "/./api/login",
        "/x/../api/login",
        "/api/%6cogin",
        "/api/login/",
        "/api/login?x=1",
        "/api/login/?x=2",
        "/api/login?",
        "/api/login;v=1",
        "/api/login#top",
    ] {
        // A server may refuse a fragment as well.
        assert!(matches!(get(path), 429 | 400), "{path}");
    }
    for path in ["/API/login", "/api/login%20", "/api/login%3Fx=1", "/api%2Flogin", "/api/logins"] {
        assert_eq!(get(path), 200, "{path} is another path");
    }
    assert_eq!(envoy.count("policy.wide.allowed").await, 5, "and each of those is counted all the same");
    envoy.assert_sound();
}

#[tokio::test]
async fn ten_thousand_paths_of_one_template_are_one_budget_and_no_series() {
    // F19
    let mut policy = config(&[local("narrow", 10, NEVER), local("wide", 1000, NEVER)]);
    policy["routes"] = json!([{"name": "user", "path": "/users/{id}"}]);
    policy["policies"][0]["key"] = json!(["route"]);
    policy["policies"][1]["key"] = json!(["route"]);
    let (mut envoy, _upstream) = start(policy).await;
    let client = envoy.client();
    assert_eq!(client.get("/users/0").await.status, 200);
    let series = async || envoy.admin("/stats?filter=wasmcustom").await.lines().count();
    let before = series().await;
    let replies = burst(10_000, 32, |id| {
        let client = client.clone();
        async move { client.get(&format!("/users/{id}")).await }
    })
    .await;
    assert_eq!(admitted(&replies), 9);
    assert_eq!(series().await, before);
    let last = client.get("/x").await;
    let left = last.header("ratelimit").expect("what is left").to_owned();
    assert!(left.contains(r#""narrow";r=9"#) && left.contains(r#""wide";r=999"#), "two budgets with one key: {left}");
    envoy.assert_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn head_is_get_and_no_header_changes_the_method() {
    // F21
    let (mut envoy, _upstream) = start(narrow(json!({"name": "n", "methods": ["GET"], "path": "/**"}), 3)).await;
    let methods = ["GET", "HEAD", "GET", "HEAD"].map(|method| raw(envoy.address, method, "/"));
    assert_eq!(methods, [200, 200, 200, 429]);
    assert_eq!(raw(envoy.address, "PROPFIND", "/"), 200, "the wide budget's");
    // What is no method Envoy may refuse by itself.
    assert!(["get", "FOO"].into_iter().all(|method| matches!(raw(envoy.address, method, "/"), 200 | 400)));
    assert!(envoy.count("policy.wide.allowed").await >= 1);
    envoy.assert_sound();

    let (mut envoy, _upstream) = start(narrow(json!({"name": "n", "methods": ["POST"], "path": "/**"}), 1)).await;
    let client = envoy.client();
    let post = || send(client.request(Method::POST, "/").header("x-http-method-override", "GET"));
    assert_eq!([post().await.status, post().await.status], [200, 429]);
    envoy.assert_sound();
}

#[tokio::test]
async fn no_header_of_a_clients_chooses_the_route_class_or_the_cost() {
    // F23
    let (mut envoy, _upstream) = start(narrow(json!({"name": "paid", "path": "/paid"}), 5)).await;
    let client = envoy.client();
    let names = [
        "x-original-uri",
        "x-original-url",
        "x-rewrite-url",
        "x-envoy-original-path",
        "x-forwarded-uri",
        "x-request-cost",
        "ratelimit",
        "x-tollgate-shadow",
    ];
    let mut found = Vec::new();
    for name in names {
        found.push(send(client.request(Method::GET, "/paid").header(name, "/free")).await.status);
    }
    assert_eq!(found, [200, 200, 200, 200, 200, 429, 429, 429]);
    envoy.assert_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_is_never_limited_and_is_no_way_around_the_limits() {
    // F24
    let mut policy = config(&[local("all", 1, NEVER)]);
    policy["routes"] = json!([{"name": "health", "path": "/healthz", "exempt": true}]);
    let (mut envoy, _upstream) = start(policy).await;
    assert_eq!(raw(envoy.address, "GET", "/paid"), 200);
    let client = envoy.client();
    assert_eq!(admitted(&burst(100, 8, |_| client.get("/healthz")).await), 100);
    assert_eq!(envoy.outcome("exempt").await, 100);
    assert_eq!(raw(envoy.address, "GET", "//healthz"), 200, "spelled otherwise");
    for path in ["/healthz/../paid", "/healthz/x", "/x/healthz", "/healthz%2f..%2fpaid", "/healthz/..;/paid"] {
        assert_eq!(raw(envoy.address, "GET", path), 429, "{path}");
    }
    envoy.assert_sound();
}

#[tokio::test]
async fn all_policies_that_match_apply_and_one_that_never_does_is_seen() {
    // F25
    let mut first = local("first", 4, NEVER);
    first["match"] = json!({"routes": ["all", "a"]});
    let mut second = local("second", 2, NEVER);
    second["match"] = json!({"routes": ["a"]});
    let mut idle = local("idle", 1, NEVER);
    idle["match"] = json!({"routes": ["unused"]});
    let mut policy = config(&[first, second, idle]);
    policy["routes"] = json!([
        {"name": "unused", "path": "/never-asked-for"},
        {"name": "a", "path": "/a"},
        {"name": "all", "path": "/**"},
    ]);
    let (mut envoy, _endpoint, _upstream) = stack(policy).await;
    let client = envoy.client();
    assert_eq!(admitted(&burst(3, 1, |_| client.get("/a")).await), 2, "both apply");
    assert_eq!(admitted(&burst(3, 1, |_| client.get("/b")).await), 2, "what the second denied was not charged here");
    let page = envoy.admin("/stats?filter=wasmcustom.tollgate.policy.idle").await;
    assert!(page.contains("wasmcustom.tollgate.policy.idle.allowed: 0"), "{page}");
    envoy.assert_sound();
}
