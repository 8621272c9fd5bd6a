//! Policies by chance, and requests for them.

use crate::endpoint::MARK;
use crate::random::Random;
use crate::world::Headers;
use serde_json::{Value, json};
use tollgate_core::facts::{Facts, Header};
use tollgate_core::policy::PolicySet;

/// What one policy set is made of; the endpoint's settings may change with each configuration.
#[derive(Clone)]
pub struct Policies {
    pub list: Vec<Value>,
    /// Buckets do not refill within a run, so that what is left can be counted.
    pub frozen: bool,
    /// The hash key is being changed, so each policy is charged under two.
    pub changes_key: bool,
}

impl Policies {
    pub fn random(chance: &mut Random) -> Self {
        if chance.once_in(5) {
            return Self::holding(chance);
        }
        let frozen = chance.once_in(2);
        let count = chance.between(1, 4);
        let mut list: Vec<Value> = (0..count).map(|index| policy(chance, &format!("p{index}"), frozen, None)).collect();
        if list.iter().any(|policy| policy["scope"] == "global") && !chance.once_in(4) {
            let mark = json!({"name": MARK, "scope": "global", "key": ["request"],
                "limit": {"token_bucket": {"capacity": 1000, "refill": "1000/s"}}, "on_failure": fail_mode(chance, frozen)});
            list.insert(chance.index(list.len() + 1), mark);
        }
        Self { list, frozen, changes_key: chance.once_in(6) }
    }

    /// Units that are held while the endpoint is asked often come back, and others pass meanwhile.
    fn holding(chance: &mut Random) -> Self {
        let refill = chance.pick(&["100/s", "1000/s"]);
        let list = vec![
            json!({"name": "all", "scope": "local", "key": [],
                "limit": {"token_bucket": {"capacity": chance.between(4, 9), "refill": refill}}}),
            json!({"name": "few", "scope": "global", "key": [], "match": {"routes": ["export"]},
                "limit": {"token_bucket": {"capacity": 4, "refill": "1/30d"}}, "on_failure": "closed"}),
        ];
        Self { list, frozen: false, changes_key: false }
    }

    /// The same without leases: what these have left depends on when they are renewed.
    pub fn exact(&self) -> Self {
        let mut exact = self.clone();
        for policy in &mut exact.list {
            if policy["scope"] == "global" {
                policy["mode"] = json!("exact");
                policy.as_object_mut().map(|fields| fields.remove("sharing"));
            }
        }
        exact
    }

    /// The same with some more, which are in shadow.
    pub fn with_shadows(&self, chance: &mut Random) -> Self {
        let mut more = self.clone();
        for index in 0..chance.between(1, 10) {
            let shadow = policy(chance, &format!("shadow{index}"), self.frozen, Some("shadow"));
            more.list.insert(chance.index(more.list.len() + 1), shadow);
        }
        more
    }

    /// A configuration with these policies.
    pub fn text(&self, endpoint: &Value, version: usize) -> String {
        let mut text = json!({
            "version": format!("v{version}"),
            "hash_key": {"value": "secret-hash-key-of-the-tests"},
            "identities": {
                "tenant": {"sources": [{"header": "x-tenant"}], "pattern": "[a-z0-9-]{1,40}"},
                "request": {"sources": [{"header": "x-request-id"}]},
            },
            "routes": [
                {"name": "health", "path": "/healthz", "exempt": true},
                {"name": "export", "path": "/export/**", "cost": 3},
                {"name": "rows", "path": "/rows", "cost": {"from": {"header": "x-rows"}, "max": 4}},
            ],
            "policies": self.list,
        });
        if self.changes_key {
            text["hash_key"]["previous"] = json!({"value": "secret-hash-key-of-yesterday"});
        }
        // What callers are told changes nothing else.
        text["responses"] = match version % 4 {
            0 => json!({}),
            1 => json!({"ratelimit_headers": "none", "legacy_headers": "seconds", "headers_on": "rejections"}),
            2 => json!({"upstream_headers": "replace", "retry_after_jitter": "50%", "cors_origins": ["*"]}),
            _ => {
                json!({"legacy_headers": "epoch", "grpc_status": "unavailable", "cors_origins": ["https://a.example"]})
            }
        };
        if self.list.iter().any(|policy| policy["scope"] == "global") {
            text["endpoint"] = endpoint.clone();
        }
        text.to_string()
    }
}

/// The endpoint's settings.
pub fn endpoint(chance: &mut Random) -> Value {
    let millis = chance.pick(&[1, 2, 10, 50, 50, 50, 200]);
    let mut endpoint = json!({
        "cluster": "tollgate",
        "timeout": format!("{millis}ms"),
        "auth_token": {"value": "secret-token-of-the-tests"},
        "max_in_flight": chance.pick(&[1, 3, 100, 256, 256]),
    });
    match chance.below(4) {
        0 => endpoint["breaker"] = json!("none"),
        1 => {}
        _ => {
            let failures = chance.between(1, 4);
            endpoint["breaker"] = json!({"failures": failures, "within": "1s", "open_for": "100ms"});
        }
    }
    endpoint
}

fn policy(chance: &mut Random, name: &str, frozen: bool, enforce: Option<&str>) -> Value {
    let key = chance.pick(&[json!([]), json!(["tenant"]), json!(["tenant"]), json!(["tenant", "route"])]);
    let mut policy = json!({"name": name, "key": key});
    if chance.once_in(2) {
        policy["scope"] = json!("local");
        policy["limit"] = bucket(chance, frozen);
        policy["sharing"] = chance.pick(&[json!("proxy"), json!("proxy"), json!("worker")]);
        policy["charge"] = chance.pick(&[json!("admitted"), json!("admitted"), json!("always")]);
    } else {
        policy["scope"] = json!("global");
        policy["limit"] = match chance.below(8) {
            0 => json!({"sliding_log": {"capacity": chance.between(4, 20), "window": "10s"}}),
            1 => json!({"fixed_window": {"capacity": chance.between(4, 20), "window": "1s"}}),
            2 => json!({"gcra": {"burst": chance.between(4, 20), "rate": "5/s"}}),
            _ => bucket(chance, frozen),
        };
        policy["on_failure"] = fail_mode(chance, frozen);
        if policy["limit"]["token_bucket"].is_object() && chance.once_in(2) {
            policy["mode"] = json!("leased");
            policy["sharing"] = chance.pick(&[json!("proxy"), json!("worker")]);
            policy["limit"]["token_bucket"]["capacity"] = json!(chance.pick(&[4, 20, 100, 400]));
        }
    }
    if chance.once_in(12) && policy["mode"] != "leased" {
        policy["limit"] = json!(chance.pick(&["unlimited", "deny"]));
    }
    if key != json!([]) {
        policy["on_missing"] = chance.pick(&[json!("anonymous"), json!("anonymous"), json!("skip"), json!("reject")]);
    }
    if chance.once_in(4) {
        policy["match"] =
            json!({"routes": chance.pick(&[json!(["other"]), json!(["export", "other"]), json!(["rows"])])});
    }
    let mode = enforce.map_or_else(|| chance.pick(&["on", "on", "on", "on", "shadow", "50%"]), Into::into);
    policy["enforce"] = json!(mode);
    policy
}

fn bucket(chance: &mut Random, frozen: bool) -> Value {
    let refill = if frozen { "1/30d".into() } else { format!("{}/s", chance.pick(&[2, 5, 100, 5000])) };
    json!({"token_bucket": {"capacity": chance.between(4, 20), "refill": refill}})
}

fn fail_mode(chance: &mut Random, frozen: bool) -> Value {
    match chance.below(4) {
        0 => json!("open"),
        1 => json!("closed"),
        _ => json!({"local": bucket(chance, frozen)}),
    }
}

/// One request's headers. Each has its own id; what names its caller is secret.
pub fn request(chance: &mut Random, number: usize) -> Headers {
    let path = chance.pick(&["/", "/", "/things?a=b", "/export/7", "/rows", "/healthz"]);
    let mut headers: Headers = vec![
        (":method".into(), chance.pick(&["GET", "POST", "HEAD"]).into()),
        (":path".into(), path.into()),
        (":authority".into(), b"api.example".to_vec()),
        ("x-request-id".into(), format!("secret-request-{number}").into()),
    ];
    let tenant = |chance: &mut Random| format!("secret-tenant-{}", chance.below(3)).into_bytes();
    match chance.below(12) {
        0 => {}
        1 => headers.extend([("x-tenant".into(), tenant(chance)), ("x-tenant".into(), tenant(chance))]),
        2 => headers.push(("x-tenant".into(), b"\xff\xfesecret\0".to_vec())),
        _ => headers.push(("x-tenant".into(), tenant(chance))),
    }
    if path == "/rows" {
        headers.push(("x-rows".into(), chance.pick(&["1", "2", "99999999999999999999", "secret", "\u{0}"]).into()));
    }
    if chance.once_in(8) {
        headers.push(("origin".into(), b"https://a.example".to_vec()));
    }
    if chance.once_in(8) {
        headers.push(("content-type".into(), b"application/grpc".to_vec()));
    }
    headers
}

/// A request as the core asks for it.
pub struct Sent<'a>(pub &'a Headers);

impl Sent<'_> {
    fn first(&self, name: &str) -> Vec<u8> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()).unwrap_or_default()
    }
}

impl Facts for Sent<'_> {
    fn method(&self) -> Vec<u8> {
        self.first(":method")
    }

    fn path(&self) -> Vec<u8> {
        self.first(":path")
    }

    fn header(&self, name: &str) -> Header {
        let mut lines = self.0.iter().filter(|(known, _)| known == name);
        match (lines.next(), lines.next()) {
            (None, _) => Header::Absent,
            (Some((_, value)), None) => Header::One(value.clone()),
            _ => Header::Several,
        }
    }

    fn client_address(&self) -> Vec<u8> {
        b"192.0.2.7:5000".to_vec()
    }

    fn host(&self) -> Vec<u8> {
        self.first(":authority")
    }
}

pub fn read(text: &str) -> PolicySet {
    PolicySet::read(text.as_bytes(), &|_| None).unwrap_or_else(|errors| panic!("{text}\n{:?}", errors.issues()))
}
