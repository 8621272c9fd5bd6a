//! What clients send who mean harm.

use crate::{admitted, stack};
use axum::body::Body;
use axum::response::Response;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use proptest::{collection, prop_oneof};
use reqwest::Method;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tollgate_tests::{
    Client, Endpoint, EnvoyBuilder, FakeEndpoint, Link, NEVER, Redis, Upstream, burst, config, global, send,
};

/// Sends bytes as they are, and gives the status of the reply.
fn raw(address: SocketAddr, path: &[u8], headers: &[&[u8]]) -> u16 {
    let mut request = [b"GET ", path, b" HTTP/1.1\r\nhost: test\r\nconnection: close\r\n"].concat();
    for header in headers {
        request.extend_from_slice(header);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    let reply = exchange(address, &request);
    let status = reply.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3)).expect("a status");
    String::from_utf8_lossy(status).parse().expect("a status")
}

/// All that comes back until the connection ends.
fn exchange(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    stream.write_all(request).expect("a request");
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).expect("a reply");
    reply
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_not_text_harm_nobody() {
    // F06
    let (mut envoy, _endpoint, _upstream) = stack(config(&[global("per-key", 2, NEVER, json!("closed"))])).await;
    let address = envoy.address;
    let send =
        move |key: &'static [u8]| raw(address, b"/", &[&[b"x-api-key: ", key].concat(), b"x-junk: \xc0\xa7\xa1\xb1"]);
    let three = |key: &'static [u8]| [send(key), send(key), send(key)];
    assert_eq!(three(b"k1"), [200, 200, 429]);
    assert_eq!(three(b"\xff\xfe"), [200, 200, 429], "each byte value has its own bucket");
    assert_eq!(three(b"\xff\xfd"), [200, 200, 429]);
    assert_eq!(three(b"\x80"), [200, 200, 429]);
    for path in [&b"/\x80\xff"[..], b"/%", b"/%zz", b"/..%2f..%5c", b"/;;;", b"/a?%00"] {
        let status = raw(address, path, &[b"x-api-key: paths"]);
        assert!(matches!(status, 200 | 400 | 404 | 429), "{status}");
    }
    assert_eq!(three(b"k2"), [200, 200, 429], "the limiter still decides");
    envoy.assert_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn whitespace_around_a_header_makes_no_second_caller_and_no_other_class() {
    // HTTP/1.1 takes it off; over HTTP/2 Envoy hands it on, and the upstream takes it off.
    let mut policy = config(&[global("per-key", 9, NEVER, json!("closed"))]);
    policy["routes"] = json!([{"name": "dear", "headers": [{"name": "x-plan", "exact": "dear"}], "cost": 3}]);
    let (mut envoy, _endpoint, upstream) = stack(policy).await;
    let client = Client::http2(envoy.address);
    let spellings = ["alice", "alice ", " alice", "\talice\t", "  alice   "];
    let mut statuses = Vec::new();
    for key in spellings {
        let request =
            client.request(Method::GET, "/").header("x-api-key", key).header("x-plan", key.replace("alice", "dear"));
        statuses.push(send(request).await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(upstream.requests(), 3);
    envoy.assert_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_kilobytes_of_headers_change_nothing() {
    // F07
    let redis = Redis::start().await;
    let (upstream, endpoint) = (Upstream::start().await, Endpoint::start(&redis.url()).await);
    let policy = config(&[global("per-key", 2, NEVER, json!("closed"))]);
    let mut envoy = EnvoyBuilder::new(policy, upstream.address).endpoint(endpoint.address).start().await;
    let address = envoy.address;
    let key = |last: &str| [b"x-api-key: ".to_vec(), vec![b'x'; 50_000], last.into()].concat();
    for last in ["1", "2"] {
        let statuses: Vec<u16> = (0..4).map(|_| raw(address, b"/", &[&key(last)])).collect();
        assert_eq!(statuses, [200, 200, 429, 429], "values that differ in their last byte alone");
    }
    let lines: Vec<Vec<u8>> = (0..90).map(|n| [format!("x-{n}: ").into_bytes(), vec![b'y'; 1100]].concat()).collect();
    let mut lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
    lines.push(b"x-api-key: small");
    assert_eq!([raw(address, b"/", &lines), raw(address, b"/", &lines), raw(address, b"/", &lines)], [200, 200, 429]);
    let keys = redis.keys().await;
    assert!(keys.iter().all(|key| key.len() == keys[0].len()), "keys of one size whatever was sent: {keys:?}");
    envoy.assert_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_that_is_sent_twice_is_nobodys() {
    // F01: in both orders, and `good` keeps its own budget.
    let (mut envoy, _endpoint, _upstream) = stack(config(&[global("per-key", 2, NEVER, json!("closed"))])).await;
    let address = envoy.address;
    let mut statuses = Vec::new();
    for n in 0..6 {
        let rotating = format!("x-api-key: rot-{n}");
        let mut lines: [&[u8]; 2] = [rotating.as_bytes(), b"x-api-key: good"];
        if n % 2 == 1 {
            lines.reverse();
        }
        statuses.push(raw(address, b"/", &lines));
    }
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429]);
    assert_eq!(raw(address, b"/", &[]), 429, "the same bucket as without an identity");
    let good = || raw(address, b"/", &[b"x-api-key: good"]);
    assert_eq!([good(), good(), good()], [200, 200, 429]);
    assert_eq!(raw(address, b"/", &[b"x-api-key: rot-1, good"]), 200, "a comma is part of one value");
    envoy.assert_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authorization_that_is_sent_twice_is_nobodys_although_envoy_joins_it() {
    let mut policy = config(&[global("per-key", 2, NEVER, json!("closed"))]);
    policy["identities"]["credential"] = json!({"sources": [{"header": "authorization"}]});
    let (mut envoy, _endpoint, _upstream) = stack(policy).await;
    let address = envoy.address;
    let mut statuses = Vec::new();
    for n in 0..6 {
        let rotating = format!("authorization: rot{n}");
        statuses.push(raw(address, b"/", &[b"authorization: Bearer good", rotating.as_bytes()]));
    }
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429]);
    let good = || raw(address, b"/", &[b"authorization: Bearer good"]);
    assert_eq!([good(), good(), good()], [200, 200, 429]);
    envoy.assert_sound();
}

#[tokio::test]
async fn no_credential_leaves_the_request() {
    // F08
    const SECRET: &str = "SECRET-9f2c7e";
    let redis = Redis::start().await;
    let (upstream, endpoint) = (Upstream::start().await, Endpoint::start(&redis.url()).await);
    let policy = config(&[global("per-key", 1, NEVER, json!("closed"))]);
    let mut envoy = EnvoyBuilder::new(policy, upstream.address).endpoint(endpoint.address).start().await;
    let client = envoy.client();
    let denied = burst(4, 1, |_| client.get_as(SECRET)).await.pop().expect("a reply");
    assert_eq!(denied.status, 429);
    let keys = redis.keys().await.join("\n");
    assert!(keys.starts_with("tollgate:{"), "{keys}");
    for (place, text) in [
        ("the reply", format!("{denied:?}")),
        ("Redis", keys),
        ("Envoy's log", envoy.process.log()),
        ("the endpoint's log", endpoint.process.log()),
    ] {
        for form in [SECRET, "U0VDUkVULTlmMmM3ZQ", "5345435245542d396632633765"] {
            assert!(!text.contains(form), "{place} shows the credential: {text}");
        }
    }
    envoy.assert_sound();
}

#[tokio::test]
async fn clients_that_leave_while_they_wait_take_nobody_with_them() {
    // F54
    let upstream = Upstream::start().await;
    let endpoint = Endpoint::start("memory").await;
    let link = Link::to(endpoint.address, Duration::from_millis(30)).await;
    let policy = config(&[global("per-key", 1_000_000, NEVER, json!("closed"))]);
    let mut envoy = EnvoyBuilder::new(policy, upstream.address).endpoint(link.address).start().await;
    let client = envoy.client();
    let replies = burst(600, 32, |index| {
        let (client, address) = (client.clone(), envoy.address);
        async move {
            if index % 2 == 0 {
                // Leaves before the endpoint has answered.
                let mut stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
                let request = b"GET / HTTP/1.1\r\nhost: test\r\nx-api-key: k\r\n\r\n";
                tokio::io::AsyncWriteExt::write_all(&mut stream, request).await.expect("a request");
                tokio::time::sleep(Duration::from_millis(index as u64 % 25)).await;
            }
            client.get_as("k").await
        }
    })
    .await;
    assert_eq!(admitted(&replies), 600);
    assert!(envoy.count("client_left").await > 100, "they left while they waited");
    assert_eq!(envoy.stat("http.proxy.downstream_rq_active").await, 0, "nothing hangs");
    envoy.assert_sound();
}

/// One of what a strategy gives, the same ones in every run.
fn one<T: std::fmt::Debug>(strategy: &impl Strategy<Value = T>, runner: &mut TestRunner) -> T {
    strategy.new_tree(runner).expect("a value").current()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_headers_and_no_answers_whatever_they_are_harm_the_next_request() {
    const HONEST: &str = r#"{"decisions":[{"admitted":[{"remaining":1}]}]}"#;
    let answer = Arc::new(Mutex::new((200, HONEST.as_bytes().to_vec())));
    let given = Arc::clone(&answer);
    let fake = FakeEndpoint::start(move || {
        let (status, body) = given.lock().expect("no panic").clone();
        async move { Response::builder().status(status).body(Body::from(body)).expect("a response") }
    })
    .await;
    let upstream = Upstream::start().await;
    let mut policy = config(&[global("per-key", 9, NEVER, json!("closed"))]);
    policy["endpoint"]["breaker"] = json!("none");
    policy["endpoint"]["timeout"] = json!("100ms");
    policy["identities"]["credential"]["sources"] = json!([
        {"header": "authorization", "scheme": "Bearer"}, {"header": "x-api-key"}, {"cookie": "sid"}, {"query": "key"},
        {"client_address": {"trusted_hops": 2}},
    ]);
    policy["routes"] = json!([
        {"name": "a", "path": "/a/{x}/**", "headers": [{"name": "x-mode", "prefix": "b"}]},
        {"name": "rows", "host": "*.example.com", "cost": {"from": {"header": "x-rows"}, "per": 10, "max": 9}},
    ]);
    policy["responses"] = json!({"legacy_headers": "epoch", "cors_origins": ["*"], "retry_after_jitter": "10%"});
    // Envoy closes at once, and not a second later.
    let builder = EnvoyBuilder::new(policy, upstream.address).manager(json!({"delayed_close_timeout": "0s"}));
    let mut envoy = builder.endpoint(fake.address).start().await;

    let names = [
        "authorization",
        "x-api-key",
        "cookie",
        "x-forwarded-for",
        "x-mode",
        "x-rows",
        "content-type",
        "origin",
        "te",
        "access-control-request-method",
        "accept",
        "cache-control",
        "x-answer-cache-control",
        "x-answer-ratelimit",
    ];
    let bytes = |range| collection::vec(prop_oneof![4 => 0x20_u8..0x7f, 1 => 0x80_u8..=0xff], range);
    let values = prop_oneof![
        bytes(0..40),
        Just(b"Bearer a,b".to_vec()),
        Just(b"application/grpc".to_vec()),
        Just(b"sid=\"a\"; sid=%00; =;;".to_vec()),
        Just(b"::ffff:1.2.3.4, [fe80::1%eth0]:99, 999.1.1.1".to_vec()),
        Just(b"18446744073709551616".to_vec()),
    ];
    // Seldom what Envoy refuses by itself.
    let paths = prop_oneof![8 => "[a-z0-9/%.;?=&]{0,30}".prop_map(String::into_bytes), 1 => bytes(0..30)];
    let headers = collection::vec((select(names.to_vec()), values), 0..8);
    let requests = (select(vec!["GET", "HEAD", "POST", "OPTIONS"]), paths, headers);
    let statuses = select(vec![200_u16, 200, 200, 200, 200, 200, 302, 404, 429, 500, 503, 504]);
    let bodies = prop_oneof![
        1 => bytes(0..60),
        2 => Just(HONEST.as_bytes().to_vec()),
        1 => (0..HONEST.len()).prop_map(|end| HONEST.as_bytes()[..end].to_vec()),
        1 => (0..HONEST.len(), any::<u8>()).prop_map(|(at, byte)| {
            let mut text = HONEST.as_bytes().to_vec();
            text[at] = byte;
            text
        }),
    ];
    let mut runner = TestRunner::deterministic();
    let client = envoy.client();
    for round in 0..1000 {
        let (method, path, headers) = one(&requests, &mut runner);
        *answer.lock().expect("no panic") = (one(&statuses, &mut runner), one(&bodies, &mut runner));
        let path: Vec<u8> = path.into_iter().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let mut request = [method.as_bytes(), b" /", &path, b" HTTP/1.1\r\nhost: a.example.com\r\n"].concat();
        for (name, value) in &headers {
            request.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        request.extend(b"connection: close\r\n\r\n");
        let reply = exchange(envoy.address, &request);
        let status = reply.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or_default();
        let shown = || format!("round {round}: {}", String::from_utf8_lossy(&request));
        let known = [&b"200"[..], b"400", b"404", b"429", b"503"];
        assert!(known.contains(&status), "{}\n{}", shown(), String::from_utf8_lossy(&reply));
        if round % 50 == 0 {
            *answer.lock().expect("no panic") = (200, HONEST.as_bytes().to_vec());
            assert_eq!(client.get_as("honest").await.status, 200, "after {}", shown());
        }
    }
    let seen = (envoy.outcome("allowed").await, envoy.count("failure.bad_answer").await);
    assert!(seen.0 > 100 && seen.1 > 100, "admitted, and failed by the answer: {seen:?}");
    assert_eq!(envoy.stat("http.proxy.downstream_rq_active").await, 0, "nothing hangs");
    envoy.assert_sound();
}
