//! What callers are told of their budgets.

use crate::stack;
use reqwest::Method;
use serde_json::json;
use sfv::{BareItem, ListEntry, Parser};
use tollgate_tests::{Endpoint, EnvoyBuilder, NEVER, Reply, Upstream, config, eventually, global, local, send};

/// A list of strings with whole numbers for parameters, by the standard's own reader.
fn parsed(reply: &Reply, name: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let Some(value) = reply.header(name) else { return Vec::new() };
    let list = Parser::new(value).parse::<sfv::List>().unwrap_or_else(|error| panic!("{name}: {value}: {error}"));
    let items = list.into_iter().map(|entry| {
        let ListEntry::Item(item) = entry else { panic!("{value}") };
        let BareItem::String(policy) = item.bare_item else { panic!("{value}") };
        let number = |value: &BareItem| value.as_integer().map(i64::from).expect("a whole number");
        let params = item.params.iter().map(|(key, value)| (key.to_string(), number(value)));
        (policy.as_str().to_owned(), params.collect())
    });
    items.collect()
}

fn left(reply: &Reply, policy: &str) -> Option<i64> {
    let (_, params) = parsed(reply, "ratelimit").into_iter().find(|(name, _)| name == policy)?;
    params.iter().find(|(key, _)| key == "r").map(|(_, left)| *left)
}

#[tokio::test]
async fn every_response_says_what_is_left_after_it() {
    // F61
    let mut shadow = local("unseen", 1, NEVER);
    shadow["enforce"] = json!("shadow");
    let policies = [global("small", 3, NEVER, json!("closed")), local("large", 100, "10/s"), shadow];
    let (mut envoy, _endpoint, _upstream) = stack(config(&policies)).await;
    let client = envoy.client();
    for remaining in [2, 1, 0] {
        let reply = client.get_as("k").await;
        assert_eq!(reply.status, 200);
        assert_eq!(left(&reply, "small"), Some(remaining));
        assert!(left(&reply, "large").is_some_and(|left| (97..=100).contains(&left)));
        let quotas = parsed(&reply, "ratelimit-policy");
        let small = ("small".to_owned(), vec![("q".to_owned(), 3), ("w".to_owned(), 3 * 30 * 86_400)]);
        let large = ("large".to_owned(), vec![("q".to_owned(), 100), ("w".to_owned(), 10)]);
        assert_eq!(quotas, [small, large]);
    }
    for _ in 0..2 {
        let reply = client.get_as("k").await;
        assert_eq!(reply.status, 429);
        let wait: i64 = reply.header("retry-after").and_then(|wait| wait.parse().ok()).expect("a wait");
        assert_eq!(parsed(&reply, "ratelimit"), [("small".into(), vec![("r".into(), 0), ("t".into(), wait)])]);
        assert_eq!(parsed(&reply, "ratelimit-policy").len(), 2);
    }
    envoy.assert_sound();
}

#[tokio::test]
async fn a_budget_of_which_nothing_is_known_is_not_told() {
    let policies = [local("guard", 5, NEVER), global("lost", 5, NEVER, json!("open"))];
    let upstream = Upstream::start().await;
    let mut envoy = EnvoyBuilder::new(config(&policies), upstream.address).start().await;
    let reply = envoy.client().get_as("k").await;
    assert_eq!((reply.status, left(&reply, "guard"), left(&reply, "lost")), (200, Some(4), None));
    envoy.push(config(&[global("lost", 5, NEVER, json!("closed"))])).await;
    let reply = envoy.client().get_as("k").await;
    assert_eq!((reply.status, reply.header("ratelimit")), (503, None));
    envoy.assert_sound();
}

#[tokio::test]
async fn the_fields_of_an_upstream_give_way_or_stay_and_are_never_there_twice() {
    // F60
    let upstream = Upstream::start().await;
    let policy = |responses| {
        let mut policy = config(&[local("ours", 1000, NEVER)]);
        policy["responses"] = responses;
        policy
    };
    let mut envoy = EnvoyBuilder::new(policy(json!({})), upstream.address).start().await;
    let client = envoy.client();
    let theirs = async |status: &str, more: &[(&str, &str)]| {
        let mut request = client.request(Method::GET, "/").header("x-answer-status", status);
        for (name, value) in [
            ("x-answer-ratelimit", r#""theirs";r=7;t=7"#),
            ("x-answer-ratelimit-policy", r#""theirs";q=9;w=9"#),
            ("x-answer-retry-after", "77"),
            ("x-answer-x-ratelimit-limit", "9"),
        ] {
            request = request.header(name, value);
        }
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        send(request).await
    };
    let names = |reply: &Reply| parsed(reply, "ratelimit").into_iter().map(|(name, _)| name).collect::<Vec<_>>();

    let reply = theirs("200", &[]).await;
    assert_eq!(names(&reply), ["ours"]);
    assert_eq!(parsed(&reply, "ratelimit-policy")[0].0, "ours");
    assert_eq!(reply.header("x-ratelimit-limit"), Some("9"), "what is not ours");
    let reply = theirs("429", &[]).await;
    assert_eq!((names(&reply), reply.header("retry-after")), (vec!["theirs".to_owned()], Some("77")));
    assert_eq!(names(&theirs("503", &[]).await), ["ours"]);
    for shared in ["public, max-age=300", "max-age=1, S-MaxAge=5"] {
        assert_eq!(names(&theirs("200", &[("x-answer-cache-control", shared)]).await), ["theirs"], "{shared}");
    }
    assert_eq!(names(&theirs("200", &[("x-answer-cache-control", "private, max-age=9")]).await), ["ours"]);
    let two = [("x-answer-cache-control", "max-age=300"), ("x-answer-cache-control", "public")];
    assert_eq!(names(&theirs("200", &two).await), ["theirs"], "in two lines");

    envoy.push(policy(json!({"upstream_headers": "keep"}))).await;
    eventually("the new policy is in force", async || match names(&theirs("200", &[]).await).as_slice() {
        [name] if name == "theirs" => Ok(()),
        names => Err(format!("{names:?}")),
    })
    .await;
    assert_eq!(names(&client.get("/").await), ["ours"], "an upstream that says nothing");

    envoy.push(policy(json!({"ratelimit_headers": "none", "legacy_headers": "seconds"}))).await;
    eventually("the new policy is in force", async || {
        let reply = client.get("/").await;
        let older = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"].map(|name| reply.header(name));
        if names(&reply).is_empty() && older.iter().all(Option::is_some) { Ok(()) } else { Err(format!("{older:?}")) }
    })
    .await;
    assert!(theirs("200", &[]).await.header("x-ratelimit-limit").is_some_and(|limit| limit.starts_with("1000, ")));
    assert_eq!(names(&theirs("200", &[]).await), ["theirs"], "fields that are switched off are left alone");
    envoy.assert_sound();
}

#[tokio::test]
async fn a_preflight_is_free_and_a_page_can_read_its_rejection() {
    let mut policy = config(&[global("per-key", 1, NEVER, json!("closed"))]);
    policy["responses"] = json!({"cors_origins": ["https://app.example"]});
    let (mut envoy, _endpoint, upstream) = stack(policy.clone()).await;
    let client = envoy.client();
    let ask = |method: Method, origin: &'static str| client.request(method, "/").header("origin", origin);
    let preflight = || send(ask(Method::OPTIONS, "https://app.example").header("access-control-request-method", "GET"));
    for _ in 0..5 {
        assert_eq!(preflight().await.status, 200);
    }
    assert_eq!(envoy.outcome("exempt").await, 5);
    // Half of one is none.
    assert_eq!(send(ask(Method::OPTIONS, "https://app.example")).await.status, 200);
    for (origin, allowed) in [("https://app.example", Some("https://app.example")), ("https://evil.example", None)] {
        let reply = send(ask(Method::GET, origin)).await;
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (429, allowed));
        let exposed = reply.header("access-control-expose-headers").expect("exposed headers");
        assert!(["retry-after", "ratelimit", "ratelimit-policy"].iter().all(|name| exposed.contains(name)));
    }
    assert_eq!(upstream.requests(), 6);
    policy["responses"] = json!({"preflight": "limited"});
    envoy.push(policy).await;
    eventually("the new policy is in force", async || match preflight().await.status {
        429 => Ok(()),
        status => Err(status),
    })
    .await;
    envoy.assert_sound();
}

#[tokio::test]
async fn grpc_callers_get_a_status_in_whatever_form_they_speak() {
    // F66
    let upstream = Upstream::start().await;
    let endpoint = Endpoint::start("memory").await;
    let mut policy = config(&[local("guard", 1, NEVER), global("per-key", 1, NEVER, json!("closed"))]);
    policy["responses"] = json!({"retry_after_jitter": "10%"});
    let builder = EnvoyBuilder::new(policy, upstream.address).endpoint(endpoint.address);
    let mut envoy = builder.start().await;
    let clients = [envoy.client(), tollgate_tests::Client::http2(envoy.address)];
    assert_eq!(clients[0].get_as("k").await.status, 200);
    for client in &clients {
        for (content_type, answer) in [
            ("application/grpc", "application/grpc"),
            ("application/grpc+proto", "application/grpc+proto"),
            ("Application/GRPC", "application/grpc"),
            ("application/grpc-web+proto", "application/grpc-web+proto"),
            ("application/grpc-web-text", "application/grpc-web-text"),
        ] {
            let request = client.request(Method::POST, "/pkg.Service/Method").header("content-type", content_type);
            let reply = send(request.header("te", "trailers").body("\0\0\0\0\0")).await;
            assert_eq!((reply.status, reply.body.as_str()), (200, ""), "{content_type}");
            assert_eq!(reply.header("grpc-status"), Some("8"), "{content_type}");
            assert_eq!(reply.header("grpc-message"), Some("The guard policy has no capacity left."));
            assert_eq!(reply.header("content-type"), Some(answer), "{content_type}");
            let pushback: u64 = reply.header("grpc-retry-pushback-ms").and_then(|ms| ms.parse().ok()).expect("a time");
            assert!(pushback > 20 * 86_400 * 1_000);
            assert!(reply.header("grpc-status-details-bin").is_some() && reply.header("retry-after").is_some());
        }
        let json = client.request(Method::POST, "/pkg.Service/Method").header("content-type", "application/json");
        assert_eq!(send(json).await.status, 429);
    }
    assert_eq!(upstream.requests(), 1);
    envoy.assert_sound();
}
