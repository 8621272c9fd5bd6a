//! What clients send who mean harm.

use crate::{admitted, stack};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use tollgate_tests::{Endpoint, EnvoyBuilder, Link, NEVER, Redis, Upstream, burst, config, global};

/// Sends bytes as they are, and gives the status of the reply.
fn raw(address: SocketAddr, path: &[u8], headers: &[&[u8]]) -> u16 {
    let mut request = [b"GET ", path, b" HTTP/1.1\r\nhost: test\r\nconnection: close\r\n"].concat();
    for header in headers {
        request.extend_from_slice(header);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    stream.write_all(&request).expect("a request");
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).expect("a reply");
    let status = reply.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3)).expect("a status");
    String::from_utf8_lossy(status).parse().expect("a status")
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
