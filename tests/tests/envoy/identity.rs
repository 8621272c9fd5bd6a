//! Who a request is from, by what real Envoy hands the filter.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use std::process::Command;
use tollgate_tests::{Authority, Client, Envoy, EnvoyBuilder, NEVER, Upstream, config, local, send};

/// A local policy of capacity 2 for each caller, by these sources.
fn by(sources: Value) -> Value {
    let mut policy = local("per-caller", 2, NEVER);
    policy["key"] = json!(["caller"]);
    let mut policy = config(&[policy]);
    policy["identities"] = json!({"caller": {"sources": sources}});
    policy
}

async fn start(policy: Value, adapt: impl FnOnce(EnvoyBuilder) -> EnvoyBuilder) -> (Envoy, Upstream) {
    let upstream = Upstream::start().await;
    let envoy = adapt(EnvoyBuilder::new(policy, upstream.address)).start().await;
    (envoy, upstream)
}

fn get(client: &Client, headers: &[(&str, &str)]) -> RequestBuilder {
    headers.iter().fold(client.request(Method::GET, "/"), |request, (name, value)| request.header(*name, *value))
}

/// The statuses of one request after another.
async fn statuses(requests: impl IntoIterator<Item = RequestBuilder>) -> Vec<u16> {
    let mut statuses = Vec::new();
    for request in requests {
        statuses.push(send(request).await.status);
    }
    statuses
}

async fn three(client: &Client, headers: &[(&str, &str)]) -> Vec<u16> {
    statuses((0..3).map(|_| get(client, headers))).await
}

const ONE_CALLER: [u16; 3] = [200, 200, 429];

/// Copies headers into dynamic metadata, as an authenticating filter would write it: `x-tenant`, and `x-rows` as a
/// number.
fn metadata_from_headers(builder: EnvoyBuilder) -> EnvoyBuilder {
    let rule = |header: &str, key: &str, kind: &str| {
        json!({"header": header, "remove": true,
            "on_header_present": {"metadata_namespace": "verified", "key": key, "type": kind}})
    };
    builder.filter_before(
        "envoy.filters.http.header_to_metadata",
        json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
            "request_rules": [rule("x-tenant", "tenant", "STRING"), rule("x-number", "number", "NUMBER")],
        }),
    )
}

#[tokio::test]
async fn what_an_earlier_filter_verified_comes_before_what_the_client_says() {
    // F02
    let tenant = json!({"metadata": {"filter": "verified", "path": ["tenant"]}});
    let (mut envoy, _upstream) = start(by(json!([tenant, {"header": "x-api-key"}])), metadata_from_headers).await;
    let client = envoy.client();
    let mut requests = Vec::new();
    for n in 0..5 {
        requests.push(get(&client, &[("x-tenant", "u1"), ("x-api-key", &format!("r{n}"))]));
    }
    assert_eq!(statuses(requests).await, [200, 200, 429, 429, 429]);
    assert_eq!(three(&client, &[("x-tenant", "u2")]).await, ONE_CALLER);
    assert_eq!(three(&client, &[("x-api-key", "u1")]).await, ONE_CALLER, "the header is not the verified u1");
    assert_eq!(envoy.count("identity.caller.ok").await, 11);
    assert_eq!(three(&client, &[]).await, ONE_CALLER);
    assert_eq!(envoy.count("identity.caller.missing").await, 3);
    let parts = ["allowed", "denied"].map(|part| format!("policy.per-caller.{part}"));
    assert_eq!((envoy.count(&parts[0]).await, envoy.count(&parts[1]).await), (8, 6));
    envoy.assert_sound();
}

#[tokio::test]
async fn metadata_within_metadata_is_found_as_jwt_authn_writes_it() {
    let tenant = json!({"metadata": {"filter": "envoy.filters.http.jwt_authn", "path": ["payload", "tenant"]}});
    for (value, sent) in [("acme", true), ("", false)] {
        let (mut envoy, _upstream) = start(by(json!([tenant, {"header": "x-api-key"}])), |builder| {
            builder.filter_before(
                "envoy.filters.http.set_metadata",
                json!({
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
                    "metadata": [{"metadata_namespace": "envoy.filters.http.jwt_authn",
                        "value": {"payload": {"tenant": value, "sub": "s"}}}],
                }),
            )
        })
        .await;
        let client = envoy.client();
        assert_eq!(three(&client, &[("x-api-key", "a")]).await, ONE_CALLER);
        let other = if sent { [429; 3] } else { ONE_CALLER };
        assert_eq!(three(&client, &[("x-api-key", "b")]).await, other, "{value:?}");
        envoy.assert_sound();
    }
}

#[tokio::test]
async fn a_number_in_metadata_is_an_identity_too() {
    let number = json!({"metadata": {"filter": "verified", "path": ["number"]}});
    let (mut envoy, _upstream) = start(by(json!([number])), metadata_from_headers).await;
    let client = envoy.client();
    assert_eq!(three(&client, &[("x-number", "41")]).await, ONE_CALLER);
    assert_eq!(three(&client, &[("x-number", "42")]).await, ONE_CALLER);
    assert_eq!(three(&client, &[("x-number", "42.0")]).await, [429; 3]);
    envoy.assert_sound();
}

#[tokio::test]
async fn filter_state_route_and_virtual_host_metadata_are_read() {
    let state = |builder: EnvoyBuilder| {
        builder
            .filter_before(
                "envoy.filters.http.set_filter_state",
                json!({
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config",
                    "on_request_headers": [{"object_key": "tenant", "factory_key": "envoy.string", "skip_if_empty": true,
                        "format_string": {"text_format_source": {"inline_string": "%REQ(x-state)%"}, "omit_empty_values": true}}],
                }),
            )
            .virtual_host(json!({
                "metadata": {"filter_metadata": {"team": {"name": "hosts"}}},
                "routes": [
                    {"match": {"prefix": "/a"}, "route": {"cluster": "upstream"}, "name": "route-a",
                        "metadata": {"filter_metadata": {"team": {"name": "a"}}}},
                    {"match": {"prefix": "/b"}, "route": {"cluster": "upstream"}, "name": "route-b",
                        "metadata": {"filter_metadata": {"team": {"name": "b"}}}},
                    {"match": {"prefix": "/"}, "route": {"cluster": "upstream"}},
                ],
            }))
    };
    let team = json!({"filter": "team", "path": ["name"]});
    let sources =
        json!([{"filter_state": "tenant"}, {"route_metadata": team}, {"virtual_host_metadata": team}, {"header": "x"}]);
    let mut policy = by(sources);
    policy["routes"] = json!([{"name": "twice", "envoy_route": "route-b", "cost": 2}]);
    let (mut envoy, _upstream) = start(policy, state).await;
    let client = envoy.client();
    let path = |path: &'static str| client.request(Method::GET, path);
    let state = |value: &'static str| path("/a").header("x-state", value);
    assert_eq!(statuses([state("s"), state("s"), state("s"), state("t")]).await, [200, 200, 429, 200]);
    assert_eq!(statuses([path("/a"), path("/a/x"), path("/a")]).await, ONE_CALLER, "the route's");
    assert_eq!(statuses([path("/b"), path("/b")]).await, [200, 429], "another route's, which costs 2");
    assert_eq!(statuses([path("/c"), path("/d"), path("/c").header("x", "y")]).await, ONE_CALLER, "the virtual host's");
    envoy.assert_sound();
}

#[tokio::test]
async fn credentials_are_read_out_of_authorization_cookies_and_the_query() {
    let sources = json!([{"header": "authorization", "scheme": "Bearer"}, {"cookie": "sid"}, {"query": "api_key"}]);
    let (mut envoy, _upstream) = start(by(sources), |builder| builder).await;
    for (version, client) in [(1, envoy.client()), (2, Client::http2(envoy.address))] {
        let [bearer, lower] = ["Bearer", "bearer"].map(|scheme| format!("{scheme} token{version}"));
        let authorization = |value: &str| get(&client, &[("authorization", value)]);
        let requests = [authorization(&bearer), authorization(&lower), authorization(&bearer)];
        assert_eq!(statuses(requests).await, ONE_CALLER, "the scheme's case mints nothing");
        let cookie = format!("theme=dark; sid=s{version}");
        assert_eq!(three(&client, &[("cookie", &cookie), ("authorization", "Basic x")]).await, ONE_CALLER);
        if version == 2 {
            // Which may send each cookie on a line of its own; in HTTP/1 that is ambiguous.
            assert_eq!(three(&client, &[("cookie", "theme=dark"), ("cookie", &cookie[12..])]).await, [429; 3]);
        }
        let query = |spelling: &str| client.request(Method::GET, &format!("/?a=b&api_key={spelling}{version}"));
        assert_eq!(statuses([query("key%2D"), query("%6bey-"), query("key-")]).await, ONE_CALLER);
    }
    let before = envoy.count("identity.caller.ambiguous").await;
    let client = envoy.client();
    let twice = client.request(Method::GET, "/?api_key=a&api_key=b");
    assert_eq!(statuses([twice]).await, [200]);
    assert_eq!(
        three(&client, &[("cookie", "sid=a; sid=b")]).await,
        [200, 429, 429],
        "with the parameter that was there twice"
    );
    assert_eq!(envoy.count("identity.caller.ambiguous").await, before + 4);
    envoy.assert_sound();
}

#[tokio::test]
async fn no_invented_x_forwarded_for_makes_another_caller() {
    // F10
    let hops = |trusted: u8| by(json!([{"client_address": {"trusted_hops": trusted}}]));
    // This Envoy is the edge: it appends the peer's address itself, and takes that for the client's.
    for trusted in [0, 1] {
        let (mut envoy, _upstream) = start(hops(trusted), |builder| builder).await;
        let client = envoy.client();
        let invented =
            ["6.6.6.6", "7.7.7.7, 8.8.8.8", "127.0.0.1"].map(|list| get(&client, &[("x-forwarded-for", list)]));
        assert_eq!(statuses(invented).await, ONE_CALLER, "trusted_hops: {trusted}");
        assert_eq!(envoy.count("identity.caller.ok").await, 3);
        envoy.assert_sound();
    }
}

#[tokio::test]
async fn behind_trusted_proxies_the_entry_that_they_appended_counts() {
    // F12: Envoy appends nothing, as behind a proxy that it is told to trust.
    let policy = by(json!([{"client_address": {"trusted_hops": 2}}]));
    let (mut envoy, _upstream) =
        start(policy, |builder| builder.manager(json!({"use_remote_address": false, "skip_xff_append": true}))).await;
    let client = envoy.client();
    let from = |list: &str| get(&client, &[("x-forwarded-for", list)]);
    let requests = [
        from("6.6.6.6, 203.0.113.128, 203.0.113.10"),
        from("7.7.7.7,203.0.113.128:4711, 203.0.113.99"),
        get(&client, &[("x-forwarded-for", "::ffff:203.0.113.128"), ("x-forwarded-for", "203.0.113.10")]),
        from("203.0.113.128, 203.0.113.129, 203.0.113.10"),
    ];
    assert_eq!(statuses(requests).await, [200, 200, 429, 200]);
    assert_eq!(statuses([from("203.0.113.10"), get(&client, &[])]).await, [200, 200], "the peer's own");
    assert_eq!(envoy.count("identity.caller.xff_short").await, 2);
    assert_eq!(statuses([from("who, 203.0.113.10")]).await, [200]);
    assert_eq!(envoy.count("identity.caller.invalid").await, 1);
    envoy.assert_sound();
}

#[tokio::test]
async fn ipv6_callers_are_grouped_and_embedded_ipv4_is_not() {
    // F14
    let policy = by(json!([{"client_address": {"trusted_hops": 1}}]));
    let (mut envoy, _upstream) =
        start(policy, |builder| builder.manager(json!({"use_remote_address": false, "skip_xff_append": true}))).await;
    let client = envoy.client();
    let from = |list: &str| get(&client, &[("x-forwarded-for", list)]);
    let group = (1..=4).map(|n| from(&format!("2001:db8:1:2::{n}")));
    assert_eq!(statuses(group).await, [200, 200, 429, 429]);
    let others = ["2001:db8:1:3::1", "::ffff:1.2.3.4", "::ffff:5.6.7.8", "64:ff9b::808:808", "64:ff9b::909:909"];
    assert_eq!(statuses(others.map(from)).await, [200; 5]);
    envoy.assert_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificates_names_are_identities() {
    let authority = Authority::new();
    let (certificate, key) = authority.issue("envoy", &["127.0.0.1"]);
    for (source, same, other) in [
        ("uri_san", ["spiffe://cluster/a", "a.example.com"], ["spiffe://cluster/b", "a.example.com"]),
        ("dns_san", ["spiffe://cluster/a", "a.example.com"], ["spiffe://cluster/a", "b.example.com"]),
        ("subject", ["spiffe://cluster/a", "a.example.com"], ["spiffe://cluster/a", "a.example.com"]),
    ] {
        let upstream = Upstream::start().await;
        let builder = EnvoyBuilder::new(by(json!([{"peer": source}])), upstream.address);
        let mut envoy = builder.mutual_tls(&certificate, &key, &authority.ca()).start().await;
        let call = |name: &str, subjects: &[&str]| -> u16 {
            let (certificate, key) = authority.issue(name, subjects);
            let mut curl = Command::new("curl");
            curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", &authority.ca()]);
            curl.args(["--cert", &certificate, "--key", &key, &format!("https://{}/", envoy.address)]);
            String::from_utf8_lossy(&curl.output().expect("curl").stdout).parse().expect("a status")
        };
        let name = |n: u8| if source == "subject" { "client" } else { ["one", "two", "three"][usize::from(n)] };
        assert_eq!([call(name(0), &same), call(name(1), &same), call(name(2), &same)], ONE_CALLER, "{source}");
        assert_eq!(call("another", &other), 200, "{source}");
        assert_eq!(envoy.count("identity.caller.ok").await, 4, "{source}");
        envoy.assert_sound();
    }
}

#[tokio::test]
async fn a_value_of_another_form_is_none_and_is_counted() {
    let mut policy = by(json!([{"header": "x-tenant"}]));
    policy["identities"]["caller"]["pattern"] = json!("[a-z0-9-]{1,16}");
    let (mut envoy, _upstream) = start(policy, |builder| builder).await;
    let client = envoy.client();
    assert_eq!(three(&client, &[("x-tenant", "acme-1")]).await, ONE_CALLER);
    let rotating =
        ["ACME", "a b", "way-too-long-for-a-tenant", "", "acme;1"].map(|value| get(&client, &[("x-tenant", value)]));
    assert_eq!(statuses(rotating).await, [200, 200, 429, 429, 429], "one bucket for all of them");
    assert_eq!(envoy.count("identity.caller.invalid").await, 4);
    assert_eq!(envoy.count("identity.caller.missing").await, 1);
    envoy.assert_sound();
}

#[tokio::test]
async fn a_lacking_identity_is_pooled_skipped_or_rejected_and_counted() {
    // F04
    for (choice, expected) in [("anonymous", [200, 200, 429, 429]), ("skip", [200; 4]), ("reject", [403; 4])] {
        let mut policy = by(json!([{"header": "x-api-key"}]));
        policy["policies"][0]["on_missing"] = json!(choice);
        let (mut envoy, upstream) = start(policy, |builder| builder).await;
        let client = envoy.client();
        assert_eq!(statuses((0..4).map(|_| get(&client, &[]))).await, expected, "{choice}");
        assert_eq!(envoy.count("identity.caller.missing").await, 4);
        assert_eq!(upstream.requests(), expected.iter().filter(|status| **status == 200).count() as u64);
        assert_eq!(envoy.count("policy.per-caller.skipped").await, if choice == "skip" { 4 } else { 0 });
        if choice == "reject" {
            assert_eq!(envoy.outcome("unidentified").await, 4);
            let reply = send(get(&client, &[])).await;
            assert!(reply.body.contains("identity_missing") && reply.header("retry-after").is_none());
            let grpc = send(get(&client, &[("content-type", "application/grpc")])).await;
            assert_eq!((grpc.status, grpc.header("grpc-status")), (200, Some("7")));
        }
        envoy.assert_sound();
    }
}
