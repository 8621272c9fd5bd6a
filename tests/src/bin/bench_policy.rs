//! `make bench-policy`: what it takes to find out of one request who it is from, its route class, its cost, and the keys
//! of its buckets, by a policy of ten route classes and five policies. Natively, with a host that has the facts at hand.
//!
//! With a number as its argument it does so that often and is silent, for who counts instructions.

use std::hint::black_box;
use std::time::Instant;
use tollgate_core::facts::{Attribute, Facts, Header};
use tollgate_core::policy::PolicySet;

const POLICY: &str = r#"{
  "hash_key": {"value": "a secret for benchmarks alone"},
  "endpoint": {"cluster": "tollgate"},
  "identities": {
    "tenant": {"sources": [{"metadata": {"filter": "envoy.filters.http.jwt_authn", "path": ["payload", "tenant"]}},
                           {"header": "x-tenant-id"}], "pattern": "[A-Za-z0-9_-]{1,64}"},
    "credential": {"sources": [{"header": "authorization", "scheme": "Bearer"}, {"header": "x-api-key"}]},
    "client": {"sources": [{"client_address": {"ipv6_prefix": 64}}]}
  },
  "routes": [
    {"name": "health", "path": "/healthz", "exempt": true},
    {"name": "login", "methods": ["POST"], "path": "/login"},
    {"name": "users", "methods": ["GET"], "path": "/v1/users/{id}"},
    {"name": "orders", "methods": ["GET"], "path": "/v1/users/{id}/orders"},
    {"name": "order", "methods": ["GET"], "path": "/v1/users/{id}/orders/{order}"},
    {"name": "export", "path": "/v1/export/**", "cost": {"from": {"header": "x-rows"}, "per": 1000, "max": 50}},
    {"name": "search", "methods": ["GET"], "path": "/v1/search", "cost": 5},
    {"name": "admin", "host": "admin.example.com", "path": "/v1/**"},
    {"name": "files", "path": "/files/*/**"},
    {"name": "reports", "methods": ["GET"], "path": "/v1/tenants/{tenant}/reports",
     "cost": {"from": {"header": "x-rows"}, "per": 1000, "max": 50}}
  ],
  "policies": [
    {"name": "guard", "scope": "local", "key": ["client"], "limit": {"token_bucket": {"capacity": 200, "refill": "50/s"}}},
    {"name": "per-tenant", "scope": "global", "key": ["tenant"], "on_failure": "open",
     "limit": {"token_bucket": {"capacity": 1000, "refill": "100/s"}}},
    {"name": "per-credential", "scope": "global", "key": ["tenant", "credential"], "on_failure": "open",
     "limit": {"token_bucket": {"capacity": 100, "refill": "10/s"}}},
    {"name": "per-route", "scope": "global", "key": ["tenant", "route"], "on_failure": "open",
     "limit": {"gcra": {"burst": 100, "rate": "10/s"}}},
    {"name": "daily", "scope": "global", "key": ["tenant"], "on_failure": "open",
     "limit": {"fixed_window": {"capacity": 100000, "window": "day"}}}
  ]
}"#;

/// A request for the last route class, with everything that is asked for.
struct Request;

impl Facts for Request {
    fn method(&self) -> Vec<u8> {
        b"GET".into()
    }

    fn path(&self) -> Vec<u8> {
        b"/v1/tenants/acme-corp/reports?from=2026-01-01&to=2026-12-01".into()
    }

    fn host(&self) -> Vec<u8> {
        b"api.example.com".into()
    }

    fn header(&self, name: &str) -> Header {
        match name {
            "authorization" => Header::One(b"Bearer 0123456789abcdef0123456789abcdef".into()),
            "x-rows" => Header::One(b"4711".into()),
            _ => Header::Absent,
        }
    }

    fn client_address(&self) -> Vec<u8> {
        b"203.0.113.9:51234".into()
    }

    fn attribute(&self, attribute: &Attribute) -> Option<Vec<u8>> {
        matches!(attribute, Attribute::Metadata { .. }).then(|| b"acme-corp".into())
    }
}

fn plans(set: &PolicySet, count: u64) {
    for _ in 0..count {
        let plan = black_box(set.plan(black_box(&Request)));
        assert_eq!(plan.charges.len(), 5);
    }
}

fn main() {
    let set = PolicySet::read(POLICY.as_bytes(), &|_| None).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(set.route_name(set.plan(&Request).route), "reports");
    if let Some(count) = std::env::args().nth(1) {
        return plans(&set, count.parse().expect("a whole number"));
    }
    const ROUND: u64 = 10_000;
    plans(&set, ROUND);
    let mut rounds: Vec<u128> = (0..50)
        .map(|_| {
            let start = Instant::now();
            plans(&set, ROUND);
            start.elapsed().as_nanos() / u128::from(ROUND)
        })
        .collect();
    rounds.sort_unstable();
    println!("identity, route, cost and keys: {} ns a request at best, {} ns in the middle", rounds[0], rounds[25]);
}
