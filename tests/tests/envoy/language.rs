//! What a policy can say beyond a limit for each caller.

use crate::{admitted, stack};
use reqwest::{Body, Method, RequestBuilder};
use serde_json::{Value, json};
use tollgate_tests::{Client, EnvoyBuilder, NEVER, Upstream, bucket, burst, config, eventually, global, local, send};

async fn statuses(requests: impl IntoIterator<Item = RequestBuilder>) -> Vec<u16> {
    let mut statuses = Vec::new();
    for request in requests {
        statuses.push(send(request).await.status);
    }
    statuses
}

fn get(client: &Client, header: &str, value: &str) -> RequestBuilder {
    client.request(Method::GET, "/").header(header, value)
}

fn named(mut policy: Value, field: &str, value: Value) -> Value {
    policy[field] = value;
    policy
}

#[tokio::test]
async fn a_policy_in_shadow_changes_no_outcome() {
    // F74: in both orders; local, global, and one of each.
    let shadow = |policy| named(policy, "enforce", json!("shadow"));
    let of = |name: &str, capacity: u64, is_global: bool| {
        if is_global { global(name, capacity, NEVER, json!("closed")) } else { local(name, capacity, NEVER) }
    };
    for (shadow_is_global, enforced_is_global) in [(false, false), (true, true), (true, false), (false, true)] {
        for reverse in [false, true] {
            let mut policies = [shadow(of("s", 1, shadow_is_global)), of("e", 2, enforced_is_global)];
            if reverse {
                policies.reverse();
            }
            let (mut envoy, _endpoint, upstream) = stack(config(&policies)).await;
            let client = envoy.client();
            let replies = burst(4, 1, |_| client.get_as("k")).await;
            let found: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
            assert_eq!(found, [200, 200, 429, 429]);
            assert_eq!(upstream.requests(), 2);
            assert!(!replies[3].body.contains("\"s\""), "{}", replies[3].body);
            eventually("the shadow's denials are counted", async || {
                let counted =
                    (envoy.count("policy.s.shadow_allowed").await, envoy.count("policy.s.shadow_denied").await);
                if counted == (1, 3) { Ok(()) } else { Err(format!("{counted:?}")) }
            })
            .await;
            envoy.assert_sound();
        }
    }
}

#[tokio::test]
async fn ten_policies_in_shadow_change_no_status_and_no_header() {
    let enforced = || vec![local("e", 4, NEVER), global("g", 6, NEVER, json!("closed"))];
    let mut with = enforced();
    for number in 0..10 {
        let name = format!("s{number}");
        let policy = match number % 3 {
            0 => local(&name, 1 + number, NEVER),
            1 => global(&name, 1 + number, NEVER, json!("closed")),
            _ => named(local(&name, 1, NEVER), "charge", json!("always")),
        };
        with.insert(number as usize % 3, named(policy, "enforce", json!("shadow")));
    }
    let mut seen = Vec::new();
    for policies in [enforced(), with] {
        let (mut envoy, _endpoint, _upstream) = stack(config(&policies)).await;
        let client = envoy.client();
        let mut replies = Vec::new();
        for number in 0..10 {
            let mut reply = client.get_as(&format!("caller {}", number % 2)).await;
            reply.headers.remove("date");
            reply.headers.remove("x-envoy-upstream-service-time");
            replies.push((reply.status, reply.headers, reply.body));
        }
        seen.push(replies);
        envoy.assert_sound();
    }
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn a_policy_in_shadow_neither_blocks_nor_delays_when_the_endpoint_is_away() {
    // F74
    let upstream = Upstream::start().await;
    let shadow = named(global("s", 1, NEVER, json!("closed")), "enforce", json!("shadow"));
    let mut envoy = EnvoyBuilder::new(config(&[shadow, local("e", 2, NEVER)]), upstream.address).start().await;
    let client = envoy.client();
    let replies = burst(4, 1, |_| client.get_as("k")).await;
    assert_eq!(admitted(&replies), 2);
    assert_eq!(envoy.count("policy.s.shadow_failed").await, 4);
    assert_eq!(envoy.outcome("failed_closed").await, 0);
    envoy.assert_sound();
}

#[tokio::test]
async fn a_percentage_of_callers_is_limited_and_always_the_same() {
    let policy = named(global("p", 1, NEVER, json!("closed")), "enforce", json!("30%"));
    let (mut envoy, _endpoint, _upstream) = stack(config(&[policy])).await;
    let client = envoy.client();
    let limited = async || {
        let mut limited = Vec::new();
        for caller in 0..60 {
            let key = caller.to_string();
            let replies = [client.get_as(&key).await, client.get_as(&key).await];
            if admitted(&replies) < 2 {
                limited.push(caller);
            }
        }
        limited
    };
    let first = limited().await;
    assert!((6..=32).contains(&first.len()), "{first:?}");
    assert_eq!(limited().await, first);
    eventually("the others are counted", async || {
        let denied = envoy.count("policy.p.shadow_denied").await;
        let expected = 3 * (60 - first.len() as u64);
        if denied == expected { Ok(()) } else { Err(format!("{denied} of {expected}")) }
    })
    .await;
    envoy.assert_sound();
}

#[tokio::test]
async fn a_plan_is_another_limit_over_the_same_bucket() {
    let plans = json!({"by": {"header": "x-plan"}, "gold": bucket(5, NEVER), "free": "deny", "staff": "unlimited"});
    for policy in [global("p", 2, NEVER, json!("closed")), named(local("p", 2, NEVER), "key", json!(["credential"]))] {
        let (mut envoy, _endpoint, _upstream) = stack(config(&[named(policy, "plans", plans.clone())])).await;
        let client = envoy.client();
        let on = |plan: &str, count: usize| {
            let request = |_| get(&client, "x-plan", plan).header("x-api-key", "k");
            statuses((0..count).map(request).collect::<Vec<_>>())
        };
        assert_eq!(on("gold", 4).await, [200; 4]);
        assert_eq!(on("unheard-of", 2).await, [200, 429], "what is left, and no fresh bucket");
        assert_eq!(on("gold", 1).await, [429]);
        assert_eq!(envoy.count("policy.p.plan_unknown").await, 2);
        assert_eq!(on("staff", 9).await, [200; 9]);
        let free = send(get(&client, "x-plan", "free").header("x-api-key", "new")).await;
        assert_eq!((free.status, free.header("retry-after")), (429, None));
        assert!(free.body.contains("limit_is_deny"));
        envoy.assert_sound();
    }
}

#[tokio::test]
async fn a_cost_comes_from_a_header_or_the_length_of_the_body() {
    // F33
    let mut policy = config(&[named(local("p", 100, NEVER), "key", json!(["credential"]))]);
    policy["routes"] = json!([
        {"name": "rows", "path": "/rows", "cost": {"from": {"header": "x-rows"}, "per": 10, "max": 50, "default": 20}},
        {"name": "upload", "methods": ["POST"], "path": "/upload", "cost": {"from": "content_length", "per": 1000, "max": 60}},
        {"name": "page", "path": "/upload", "cost": {"from": "content_length", "per": 1000, "max": 60}},
    ]);
    let (mut envoy, _endpoint, _upstream) = stack(policy).await;
    let client = envoy.client();
    // How many units a request has cost is what is missing of the hundred.
    let cost_of = async |key: &str, request: RequestBuilder| {
        let key = key.to_owned();
        assert_eq!(send(request.header("x-api-key", &key)).await.status, 200, "{key}");
        100 - admitted(&burst(100, 4, |_| client.get_as(&key)).await)
    };
    let rows = |value: &str| client.request(Method::GET, "/rows").header("x-rows", value);
    for (value, cost) in
        [("95", 10), ("0", 1), ("9999999", 50), ("-100", 20), ("abc", 20), ("99999999999999999999", 50)]
    {
        assert_eq!(cost_of(&format!("rows {value}"), rows(value)).await, cost, "{value}");
    }
    let twice = rows("1").header("x-rows", "500");
    assert_eq!(cost_of("rows twice", twice).await, 20);
    assert_eq!(cost_of("no rows", client.request(Method::GET, "/rows")).await, 20);
    assert_eq!(envoy.count("cost.made_up").await, 5);
    let upload = |body: Body| client.request(Method::POST, "/upload").body(body);
    assert_eq!(cost_of("length", upload(Body::from(vec![b'x'; 4_001]))).await, 5);
    let chunks = futures_util::stream::iter([Ok::<_, std::io::Error>(vec![b'x'; 10])]);
    assert_eq!(
        cost_of("chunked", upload(Body::wrap_stream(chunks))).await,
        60,
        "a length that is not told is the most"
    );
    assert_eq!(cost_of("no body", client.request(Method::GET, "/upload")).await, 1);
    assert_eq!(envoy.count("cost.made_up").await, 6);
    envoy.assert_sound();
}

#[tokio::test]
async fn hosts_and_headers_make_route_classes() {
    let mut policy = config(&[named(local("p", 10, NEVER), "key", json!(["route"]))]);
    policy["routes"] = json!([
        {"name": "admin", "host": "*.admin.example.com", "cost": 10},
        {"name": "batch", "headers": [{"name": "x-mode", "exact": "batch"}], "cost": 5},
    ]);
    let (mut envoy, _endpoint, _upstream) = stack(policy).await;
    let client = envoy.client();
    let host = |host: &str| get(&client, "host", host);
    assert_eq!(statuses([host("a.admin.example.com"), host("B.ADMIN.example.com:81")]).await, [200, 429]);
    let mode = |mode: &str| get(&client, "x-mode", mode);
    let twice = || mode("light").header("x-mode", "batch");
    assert_eq!(statuses([mode("batch"), twice(), twice()]).await, [200, 200, 429], "sent twice it is the costly one");
    assert_eq!(statuses([mode("light"), host("admin.example.com")]).await, [200, 200]);
    envoy.assert_sound();
}

#[tokio::test]
async fn a_changed_hash_key_is_no_second_budget() {
    let with_key = |hash_key: Value| named(config(&[global("p", 5, NEVER, json!("closed"))]), "hash_key", hash_key);
    let (old, new) = (json!({"value": "the old secret text"}), "the new secret text");
    let (mut envoy, _endpoint, _upstream) = stack(with_key(old.clone())).await;
    let count = async |client: Client, times: usize| admitted(&burst(times, 1, |_| client.get_as("k")).await);
    assert_eq!(count(envoy.client(), 3).await, 3);
    assert!(envoy.push(with_key(json!({"value": new, "previous": old}))).await);
    let replies = burst(4, 1, |_| async { envoy.client().get_as("k").await }).await;
    assert_eq!(admitted(&replies), 2);
    assert_eq!(replies[3].body.matches("violated-policies\":[\"p\"]").count(), 1, "named once: {}", replies[3].body);
    envoy.assert_sound();
}

#[tokio::test]
async fn what_is_hardly_meant_is_said_in_the_log() {
    let mut policy = config(&[local("guard", 5, NEVER)]);
    policy["identities"]["credential"] = json!({"sources": [{"header": "authorization"}]});
    let (mut envoy, _endpoint, _upstream) = stack(policy).await;
    let log = envoy.process.log();
    for line in [
        "is this meant? identities.credential.sources[0].header: without a scheme the whole line counts",
        "is this meant? identities.client: no policy uses the identity \"client\"",
        "is this meant? endpoint: no policy is of scope global",
    ] {
        assert!(log.contains(line), "{line}\n{log}");
    }
    envoy.assert_sound();
}
