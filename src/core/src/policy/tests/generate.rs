//! Policies to hold properties against.

use serde_json::{Map, Value, json};

/// Decides what a generated thing is; where it says nothing more, the first of everything.
pub(super) struct Choices<'a>(std::slice::Iter<'a, u8>);

impl<'a> Choices<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes.iter())
    }

    pub(super) fn number(&mut self) -> usize {
        self.0.next().copied().unwrap_or_default().into()
    }

    pub(super) fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.number() % of.len()].clone()
    }

    fn often(&mut self) -> bool {
        !self.number().is_multiple_of(3)
    }

    /// Some of them, in their order; perhaps none.
    fn some<T: Clone>(&mut self, of: &[T]) -> Vec<T> {
        of.iter().filter(|_| self.often()).cloned().collect()
    }

    fn maybe(&mut self, map: &mut Value, name: &str, value: impl FnOnce(&mut Self) -> Value) {
        if self.often() {
            map[name] = value(self);
        }
    }
}

const NAMES: [&str; 3] = ["tenant", "client.address", "key-2"];
const HEADERS: [&str; 3] = ["x-a", "x-b", "authorization"];

/// A configuration that is right.
pub(super) fn configuration(choices: &mut Choices<'_>) -> Value {
    let identities: Map<String, Value> =
        NAMES[..1 + choices.number() % 3].iter().map(|name| ((*name).into(), identity(choices))).collect();
    let names: Vec<&str> = NAMES[..identities.len()].to_vec();
    let paths = ["/a", "/b/{id}", "/c/**", "/d/*/x", "/e%3Af"];
    let routes: Vec<Value> =
        choices.some(&paths).iter().enumerate().map(|(number, path)| route(number, path, choices)).collect();
    let mut limited = vec!["other"];
    limited.extend(routes.iter().filter(|one| one["exempt"] != true).map(|one| one["name"].as_str().unwrap()));
    let count = 1 + choices.number() % 4;
    let policies: Vec<Value> = (0..count).map(|number| policy(number, &names, &limited, choices)).collect();
    let mut all = json!({
        "hash_key": {"env": "TOLLGATE_HASH_KEY"}, "identities": identities, "routes": routes, "policies": policies,
        "endpoint": {"cluster": choices.one(&["c", "outbound|80||x"])},
    });
    let endpoint = &mut all["endpoint"];
    choices.maybe(endpoint, "timeout", |choices| choices.one(&["1ms", "50ms", "10s"]).into());
    choices.maybe(endpoint, "max_in_flight", |choices| choices.one(&[1, 256, 65_536]).into());
    choices.maybe(endpoint, "auth_token", |_| json!({"value": "0123456789abcdef"}));
    choices.maybe(endpoint, "breaker", |choices| {
        choices.one(&[json!("none"), json!({"failures": 1, "within": "1ms", "open_for": "1h"}), json!({})])
    });
    choices.maybe(&mut all, "version", |_| "v \"1\"".into());
    choices.maybe(&mut all, "responses", |choices| {
        let mut responses = json!({"cors_origins": ["*", "https://a.example:8443"]});
        choices.maybe(&mut responses, "ratelimit_headers", |choices| choices.one(&["none", "draft-11"]).into());
        choices.maybe(&mut responses, "legacy_headers", |choices| choices.one(&["none", "seconds", "epoch"]).into());
        choices.maybe(&mut responses, "retry_after_jitter", |choices| choices.one(&["0%", "100%"]).into());
        responses
    });
    choices.maybe(&mut all, "logs", |choices| json!({"rejections": choices.one(&["0%", "7%"])}));
    all
}

fn source(choices: &mut Choices<'_>) -> Value {
    let metadata = json!({"filter": "f.g", "path": ["a", "b c"]});
    let (number, header, peer) =
        (choices.number(), choices.one(&HEADERS), choices.one(&["uri_san", "dns_san", "subject"]));
    choices.one(&[
        json!({"header": header}),
        json!({"header": header, "scheme": "Bearer"}),
        json!({"cookie": "sid"}),
        json!({"query": "k&=y"}),
        json!({"metadata": metadata}),
        json!({"route_metadata": metadata}),
        json!({"virtual_host_metadata": metadata}),
        json!({"filter_state": "wasm.x"}),
        json!({"peer": peer}),
        json!({"client_address": {"trusted_hops": number % 17, "ipv6_prefix": 1 + number % 128}}),
    ])
}

fn identity(choices: &mut Choices<'_>) -> Value {
    let mut sources: Vec<Value> = Vec::new();
    for _ in 0..=choices.number() % 3 {
        let one = source(choices);
        if !sources.contains(&one) {
            sources.push(one);
        }
    }
    let is_text = sources.iter().any(|source| source.get("client_address").is_none());
    let mut identity = json!({});
    if is_text && choices.often() {
        identity["pattern"] = choices.one(&["[a-z]+", "\\w{1,9}(\\.x)*|[^/\\]]", "a?(b|c){2}"]).into();
    } else if choices.often() {
        sources.push(json!({"literal": "nobody"}));
    }
    identity["sources"] = sources.into();
    identity
}

fn route(number: usize, path: &str, choices: &mut Choices<'_>) -> Value {
    let mut route = json!({"name": format!("r{number}"), "path": path});
    choices.maybe(&mut route, "methods", |choices| choices.one(&[json!(["GET"]), json!(["POST", "M-SEARCH"])]));
    choices.maybe(&mut route, "host", |choices| choices.one(&["*.example.com", "API.example.com", "[::1]"]).into());
    choices.maybe(&mut route, "headers", |choices| {
        let kinds = [json!({"present": false}), json!({"exact": ""}), json!({"prefix": "a"})];
        let mut header = choices.one(&kinds);
        header["name"] = choices.one(&HEADERS).into();
        json!([header])
    });
    choices.maybe(&mut route, "envoy_route", |_| "route 1".into());
    if choices.number().is_multiple_of(4) {
        route["exempt"] = true.into();
    } else {
        choices.maybe(&mut route, "cost", |choices| {
            let metadata = json!({"metadata": {"filter": "f", "path": ["n"]}});
            let from = choices.one(&[json!("content_length"), json!({"header": "x-rows"}), metadata]);
            choices.one(&[
                json!(7),
                json!({"from": from, "max": 9}),
                json!({"from": from, "per": 1000, "min": 2, "max": 9, "default": 3}),
            ])
        });
    }
    route
}

fn limit(choices: &mut Choices<'_>, kind: usize) -> Value {
    let capacity = choices.one(&[9_u64, 1000, 999_999_999_999]);
    match kind {
        // All take the same time to earn their burst, so that each can be another's plan.
        1 => json!({"gcra": {"burst": capacity, "rate": format!("{capacity}/30d")}}),
        2 => json!({"fixed_window": {"capacity": capacity, "window": "1h"}}),
        3 => json!({"fixed_window": {"capacity": capacity, "window": "month", "time_zone": "Europe/Berlin"}}),
        4 => json!({"sliding_window": {"capacity": capacity, "window": "1500ms"}}),
        5 => json!({"sliding_log": {"capacity": capacity.min(1000), "window": "7001us"}}),
        _ => {
            let refill = choices.one(&["5/s", "1/30d", "7/90min", "10/1us", "999999999999/2d"]);
            json!({"token_bucket": {"capacity": capacity, "refill": refill}})
        }
    }
}

fn policy(number: usize, identities: &[&str], routes: &[&str], choices: &mut Choices<'_>) -> Value {
    let mut key = choices.some(identities);
    let has_identity = !key.is_empty();
    if choices.often() {
        key.push("route");
    }
    let is_local = choices.often();
    let kind = if is_local { 0 } else { choices.number() % 6 };
    let mut policy = json!({"name": format!("p{number}"), "key": key, "limit": limit(choices, kind)});
    if has_identity {
        choices.maybe(&mut policy, "on_missing", |choices| choices.one(&["anonymous", "skip", "reject"]).into());
    }
    choices.maybe(&mut policy, "enforce", |choices| {
        choices.one(&[json!("on"), json!(true), json!("shadow"), json!("0%"), json!("7%")])
    });
    choices.maybe(&mut policy, "match", |choices| json!({"routes": [choices.one(routes)]}));
    choices.maybe(&mut policy, "plans", |choices| {
        let by = choices.one(&[json!(identities[0]), json!({"header": "x-plan"})]);
        json!({"by": by, "gold": limit(choices, kind), "a b": "deny", "c": choices.one(&["unlimited", "deny"])})
    });
    if is_local {
        policy["scope"] = "local".into();
        choices.maybe(&mut policy, "sharing", |choices| choices.one(&["proxy", "worker"]).into());
        choices.maybe(&mut policy, "charge", |choices| choices.one(&["admitted", "always"]).into());
    } else {
        policy["scope"] = "global".into();
        choices.maybe(&mut policy, "mode", |choices| {
            choices.one(if kind == 0 { &["exact", "leased"] } else { &["exact"] }).into()
        });
        if kind == 0 {
            choices.maybe(&mut policy, "lost_state", |choices| choices.one(&["learn", "full"]).into());
        }
        if kind == 0 && policy["mode"] != "exact" {
            choices.maybe(&mut policy, "sharing", |choices| choices.one(&["proxy", "worker"]).into());
        }
        policy["on_failure"] = choices.one(&[
            json!("open"),
            json!("closed"),
            json!({"local": {"token_bucket": {"capacity": 9, "refill": "1/s"}}}),
        ]);
    }
    policy
}
