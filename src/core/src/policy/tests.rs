#![allow(clippy::arithmetic_side_effects)]

#[cfg(not(target_arch = "wasm32"))]
mod generate;
mod mistakes;
mod plans;
#[cfg(not(target_arch = "wasm32"))]
mod print;
#[cfg(not(target_arch = "wasm32"))]
mod properties;
mod readings;
mod rounds;

use super::*;
use crate::facts::tests::{Request, metadata};
use crate::facts::{Attribute, PeerName};
use crate::key::Digest;
use crate::limit::{CalendarUnit, CalendarWindow, Limit, Window, ZoneName};
use crate::units::Tokens;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const SECRET: &str = "0123456789abcdef";

fn env(name: &str) -> Option<String> {
    (name == "TOLLGATE_HASH_KEY").then(|| SECRET.into())
}

pub(crate) fn read(text: &str) -> PolicySet {
    PolicySet::read(text.as_bytes(), &env).unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(text: &str) -> String {
    PolicySet::read(text.as_bytes(), &env).map(|_| ()).expect_err("an error").to_string()
}

/// A configuration with one thing in it replaced.
fn with(from: &str, to: &str) -> String {
    let text = FULL.replacen(from, to, 1);
    assert_ne!(text, FULL, "{from} is not there to be replaced");
    text
}

const FULL: &str = r#"{
  "version": "v1",
  "hash_key": {"env": "TOLLGATE_HASH_KEY"},
  "endpoint": {"cluster": "tollgate", "timeout": "50ms", "max_in_flight": 256},
  "identities": {
    "credential": {"sources": [{"header": "X-Api-Key"}]},
    "client": {"sources": [{"client_address": {"ipv6_prefix": 64}}]}
  },
  "routes": [
    {"name": "health", "path": "/healthz", "exempt": true},
    {"name": "reports", "methods": ["GET"], "path": "/v1/reports/{id}", "cost": 5},
    {"name": "export", "path": "/v1/export/**"}
  ],
  "policies": [
    {"name": "guard", "scope": "local", "sharing": "worker", "charge": "always", "key": ["client"],
     "limit": {"token_bucket": {"capacity": 200, "refill": "50/s"}}},
    {"name": "per-key", "scope": "global", "mode": "exact", "key": ["credential"], "on_missing": "anonymous",
     "limit": {"token_bucket": {"capacity": 20, "refill": "5/s"}},
     "on_failure": {"local": {"token_bucket": {"capacity": 10, "refill": "1/s"}}}},
    {"name": "exports", "scope": "global", "match": {"routes": ["export"]}, "key": ["credential", "route"],
     "on_missing": "skip", "limit": {"token_bucket": {"capacity": 2, "refill": "1/30d"}}, "on_failure": "closed"}
  ]
}"#;

fn limit(set: &PolicySet, policy: usize) -> Limit {
    set.policies()[policy].limit.limit().expect("a limit")
}

fn names(set: &PolicySet, plan: &Plan) -> Vec<String> {
    plan.charges.iter().map(|charge| set.policies()[charge.policy].name.clone()).collect()
}

fn key(set: &PolicySet, request: &Request, policy: &str) -> Digest {
    let plan = set.plan(request);
    let found = plan.charges.iter().find(|charge| set.policies()[charge.policy].name == policy);
    found.expect("the policy applies").key
}

#[test]
fn a_whole_configuration_is_read() {
    let set = read(FULL);
    assert_eq!(set.version.as_deref(), Some("v1"));
    let endpoint = set.endpoint.as_ref().unwrap();
    assert_eq!((endpoint.timeout, endpoint.max_in_flight), (Micros::from_millis(50), 256));
    assert_eq!(set.policies().len(), 3);
    let Scope::Local { sharing, charge_always } = set.policies()[0].scope else { panic!("local") };
    assert_eq!((limit(&set, 0).capacity().count(), sharing, charge_always), (200, Sharing::Worker, true));
    assert!(matches!(set.policies()[2].scope, Scope::Global { on_failure: FailMode::Closed, .. }));
}

#[test]
fn a_policy_needs_no_more_than_it_uses() {
    let set = read(
        r#"{"policies":[{"name":"all","scope":"local","limit":{"token_bucket":{"capacity":5,"refill":"100/min"}}}]}"#,
    );
    let Scope::Local { sharing, charge_always } = set.policies()[0].scope else { panic!("local") };
    let Limit::TokenBucket(bucket) = limit(&set, 0) else { panic!("a token bucket") };
    assert_eq!((bucket.refill.period(), sharing, charge_always), (600_000, Sharing::Proxy, false));
    assert_eq!(names(&set, &set.plan(&Request::get("/anything"))), ["all"]);
}

#[test]
fn token_buckets_are_leased_where_nothing_else_is_said() {
    let scope = |fields: &str, limit: &str| {
        let policy = format!(r#"{{"name":"p","scope":"global",{fields}"limit":{limit},"on_failure":"open"}}"#);
        read(&format!(r#"{{"endpoint":{{"cluster":"c"}},"policies":[{policy}]}}"#)).policies()[0].scope.clone()
    };
    let (bucket, window) =
        (r#"{"token_bucket":{"capacity":9,"refill":"1/s"}}"#, r#"{"fixed_window":{"capacity":9,"window":"day"}}"#);
    let global = |mode, learn| Scope::Global { mode, learn, on_failure: FailMode::Open };
    assert_eq!(scope("", bucket), global(Mode::Leased(Sharing::Worker), true));
    assert_eq!(scope(r#""sharing":"proxy","#, bucket), global(Mode::Leased(Sharing::Proxy), true));
    assert_eq!(scope(r#""lost_state":"full","#, bucket), global(Mode::Leased(Sharing::Worker), false));
    assert_eq!(scope(r#""mode":"exact","#, bucket), global(Mode::Exact, false));
    assert_eq!(scope("", window), global(Mode::Exact, false));
}

#[test]
fn a_global_policy_has_any_of_five_limits_and_a_local_one_a_token_bucket() {
    let bucket = r#"{"token_bucket": {"capacity": 20, "refill": "5/s"}}"#;
    for limit in [
        r#"{"gcra": {"burst": 20, "rate": "5/s"}}"#,
        r#"{"fixed_window": {"capacity": 100, "window": "1m"}}"#,
        r#"{"fixed_window": {"capacity": 100, "window": "day", "time_zone": "Europe/Berlin"}}"#,
        r#"{"sliding_window": {"capacity": 100, "window": "1m"}}"#,
        r#"{"sliding_log": {"capacity": 100, "window": "1m"}}"#,
    ] {
        let set = read(&with(bucket, limit));
        assert!(limit.contains(self::limit(&set, 1).algorithm()));
        let request = Request::get("/a").with("x-api-key", "k");
        assert_ne!(key(&set, &request, "per-key"), key(&read(FULL), &request, "per-key"), "another budget");
        let found = errors(&with(r#"{"token_bucket": {"capacity": 200, "refill": "50/s"}}"#, limit));
        assert!(found.starts_with("policies[0].limit: a policy of scope local has a token_bucket"), "{found}");
    }
    for (limit, expected) in [
        (r#"{"gcra": {"burst": 20}}"#, "policies[1].limit.gcra: lacks `rate`"),
        (r#"{"fixed_window": {"capacity": 100}}"#, "policies[1].limit.fixed_window: lacks `window`"),
        (r#"{"fixed_window": {"capacity": 100, "window": "31d"}}"#, "must be between 1ms and 30d, is 31d"),
        (r#"{"sliding_log": {"capacity": 1001, "window": "1m"}}"#, "must be between 1 and 1000, is 1001"),
        (r#"{"fixed_windw": {}}"#, "did you mean \"fixed_window\"?"),
    ] {
        let found = errors(&with(bucket, limit));
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn a_fixed_window_is_a_span_or_a_unit_of_the_calendar_in_a_time_zone() {
    let bucket = r#"{"token_bucket": {"capacity": 20, "refill": "5/s"}}"#;
    for (word, zone, unit) in [
        ("minute", None, CalendarUnit::Minute),
        ("hour", Some("Asia/Kathmandu"), CalendarUnit::Hour),
        ("day", Some("Europe/Berlin"), CalendarUnit::Day),
        ("month", Some("Etc/GMT+12"), CalendarUnit::Month),
    ] {
        let field = zone.map(|zone| format!(r#", "time_zone": "{zone}""#)).unwrap_or_default();
        let set = read(&with(bucket, &format!(r#"{{"fixed_window": {{"capacity": 9, "window": "{word}"{field}}}}}"#)));
        let Limit::FixedWindow(limit) = self::limit(&set, 1) else { panic!("a fixed window") };
        let zone = ZoneName::new(zone.unwrap_or("UTC")).unwrap();
        assert_eq!(limit.window, Window::Calendar(CalendarWindow::new(unit, zone)));
    }
    let limit = "policies[1].limit.";
    for (text, expected) in [
        (
            r#"{"fixed_window": {"capacity": "9", "window": "day", "time_zone": "Europe Berlin"}}"#,
            format!(
                "{limit}fixed_window.capacity: must be a number without quotes: 9\n{limit}fixed_window.time_zone: \
                 \"Europe Berlin\" is not the name of a time zone: write one of the IANA database, such as \
                 Europe/Berlin or UTC"
            ),
        ),
        (
            r#"{"fixed_window": {"capacity": 9, "window": "dya", "time_zone": 1}}"#,
            format!(
                "{limit}fixed_window.time_zone: must be text: put it in quotes\n{limit}fixed_window.window: unknown \
                 window \"dya\": did you mean \"day\"?"
            ),
        ),
        (
            r#"{"fixed_window": {"capacity": 9, "window": "week"}}"#,
            format!(
                "{limit}fixed_window.window: unknown window \"week\": known are minute, hour, day, month, spans such as 1h"
            ),
        ),
        (
            r#"{"fixed_window": {"capacity": 9, "window": "1day"}}"#,
            format!(
                "{limit}fixed_window.window: \"1day\" is not a time: write a whole number and us, ms, s, m, h or d, \
                 such as \"50ms\""
            ),
        ),
        (
            r#"{"fixed_window": {"capacity": 9, "window": "31d", "time_zone": "UTC"}}"#,
            format!(
                "{limit}fixed_window.time_zone: is for the windows minute, hour, day and month: a span begins at \
                 multiples of its length since 1970, the same in every zone\n{limit}fixed_window.window: must be \
                 between 1ms and 30d, is 31d"
            ),
        ),
        (
            r#"{"sliding_log": {"capacity": 9, "window": "day", "time_zone": "UTC"}}"#,
            format!(
                "{limit}sliding_log.time_zone: only fixed_window has calendar windows\n{limit}sliding_log.window: \
                 only fixed_window has calendar windows: write a span such as 1h"
            ),
        ),
        (
            r#"{"token_bucket": {"capacity": 9, "refill": "9/day", "window": "day"}}"#,
            format!(
                "{limit}token_bucket.window: only fixed_window has calendar windows\n{limit}token_bucket.refill: \
                 \"9/day\" is not a rate: write units per time, such as 5/s, 100/min or 1/30d; only fixed_window has \
                 calendar windows"
            ),
        ),
        (
            r#"{"gcra": {"burst": 9, "rate": "9/month", "time_zone": "UTC"}}"#,
            format!(
                "{limit}gcra.time_zone: only fixed_window has calendar windows\n{limit}gcra.rate: \"9/month\" is not \
                 a rate: write units per time, such as 5/s, 100/min or 1/30d; only fixed_window has calendar windows"
            ),
        ),
    ] {
        assert_eq!(errors(&with(bucket, text)), expected);
    }
}

#[test]
fn a_request_is_charged_by_the_first_route_class_that_matches() {
    // F19, F21, F24
    let set = read(FULL);
    let plan = |request: &Request| {
        let plan = set.plan(request);
        (set.route_name(plan.route).to_string(), names(&set, &plan), plan.charges.first().map(|c| c.cost.count()))
    };
    let both = || vec!["guard".to_string(), "per-key".to_string()];
    assert_eq!(plan(&Request::get("/healthz")), ("health".into(), vec![], None));
    assert_eq!(plan(&Request::get("/v1/reports/7")), ("reports".into(), both(), Some(5)));
    assert_eq!(plan(&Request::get("//v1/./reports/%37?x")), ("reports".into(), both(), Some(5)));
    assert_eq!(plan(&Request { method: "HEAD", ..Request::get("/v1/reports/7") }), ("reports".into(), both(), Some(5)));
    for method in ["POST", "get", "FOO", ""] {
        assert_eq!(plan(&Request { method, ..Request::get("/v1/reports/7") }), ("other".into(), both(), Some(1)));
    }
    assert_eq!(plan(&Request::get("/healthz/x")).0, "other");
    let export = Request::get("/v1/export/a/b").with("x-api-key", "k");
    assert_eq!(plan(&export).1, ["guard", "per-key", "exports"]);
}

#[test]
fn a_path_that_can_be_read_in_two_ways_is_never_exempt_for_one_of_them() {
    // F24
    let text = with(r#""path": "/healthz""#, r#""path": "/static/**""#);
    let set = read(&text);
    let class = |path: &str| {
        let plan = set.plan(&Request::get(path));
        (set.route_name(plan.route).to_string(), plan.exempt)
    };
    assert_eq!(class("/static/a"), ("health".into(), true));
    assert_eq!(class("/static/../v1/reports/7"), ("reports".into(), false));
    for path in ["/static//../v1/reports/7", "/static/..;/v1/reports/7", "/v1/reports//../static/7"] {
        assert!(!class(path).1, "{path}");
    }
    assert_eq!(class("/static//../v1/reports/7").0, "reports");
    assert_eq!(class("/v1/reports/7/..;/../static/x"), ("other".into(), false));
}

#[test]
fn an_address_in_a_header_is_not_that_address() {
    let text = with(
        r#"{"client_address": {"ipv6_prefix": 64}}"#,
        r#"{"header": "x-tenant"}, {"header": "x-org"}, {"client_address": {}}"#,
    );
    let set = read(&text);
    let get = || Request::get("/a").with_client("65.66.67.68:9");
    assert_ne!(key(&set, &get(), "guard"), key(&set, &get().with("x-tenant", "ABCD"), "guard"));
    assert_eq!(key(&set, &get().with("x-org", "o"), "guard"), key(&set, &get().with("x-tenant", "o"), "guard"));
}

#[test]
fn an_ambiguous_header_is_not_made_up_for_by_another_source() {
    let text = with(r#"{"header": "X-Api-Key"}"#, r#"{"header": "x-auth-sub"}, {"header": "x-api-key"}"#);
    let set = read(&text);
    let get = || Request::get("/a").with("x-api-key", "rotating");
    let key_of = |request: &Request| key(&set, request, "per-key");
    let anonymous = key_of(&Request::get("/a"));
    assert_ne!(key_of(&get()), anonymous);
    assert_eq!(key_of(&get().with("x-auth-sub", "u1").with("x-auth-sub", "u2")), anonymous);
    assert_eq!(key_of(&get().with("x-auth-sub", "u1")), key_of(&Request::get("/a").with("x-auth-sub", "u1")));
}

#[test]
fn a_policy_that_skips_requests_without_identity_says_so() {
    // F04
    let set = read(FULL);
    let plan = set.plan(&Request::get("/v1/export"));
    assert_eq!(names(&set, &plan), ["guard", "per-key"]);
    assert_eq!(plan.skipped, [2]);
}

#[test]
fn a_key_depends_on_the_identity_alone_and_not_on_what_else_is_sent() {
    let set = read(FULL);
    let alice = Request::get("/a").with("x-api-key", "alice");
    let key_of = |request: &Request| key(&set, request, "per-key");
    assert_eq!(key_of(&alice), key_of(&Request::get("/b").with("x-api-key", "alice").with("x-other", "1")));
    assert_eq!(key_of(&alice), key_of(&alice.clone().with_client("192.0.2.1:5")));
    assert_ne!(key_of(&alice), key_of(&Request::get("/a").with("x-api-key", "bob")));
    assert_ne!(key_of(&alice), key(&set, &alice, "guard"));
    // F01: missing, empty and ambiguous all go to the one anonymous bucket, in either order.
    let anonymous = key_of(&Request::get("/a"));
    assert_eq!(key_of(&Request::get("/a").with("x-api-key", "")), anonymous);
    for (one, two) in [("rot-1", "good"), ("good", "rot-2")] {
        assert_eq!(key_of(&Request::get("/a").with("x-api-key", one).with("x-api-key", two)), anonymous);
    }
    // F06, F07: bytes are bytes, and all of them count.
    let long = |last: &str| Request::get("/a").with("x-api-key", "x".repeat(50_000) + last);
    assert_ne!(key_of(&long("1")), key_of(&long("2")));
    let raw = |bytes: &[u8]| Request::get("/a").with("x-api-key", bytes);
    assert_ne!(key_of(&raw(&[0xff, 0xfe])), key_of(&raw(&[0xff, 0xfd])));
}

#[test]
fn the_route_class_is_in_the_key_where_the_policy_says_so() {
    let text = with(r#""key": ["credential", "route"]"#, r#""key": ["route"]"#)
        .replacen(r#"{"routes": ["export"]}"#, r#"{"routes": ["export", "other"]}"#, 1)
        .replacen(r#""on_missing": "skip", "#, "", 1);
    let set = read(&text);
    assert_ne!(key(&set, &Request::get("/v1/export"), "exports"), key(&set, &Request::get("/x"), "exports"));
    assert_eq!(
        key(&set, &Request::get("/v1/export/a"), "exports"),
        key(&set, &Request::get("/v1/export/b"), "exports")
    );
}

#[test]
fn buckets_of_one_first_identity_are_of_one_group() {
    let set = read(FULL);
    let plan = set.plan(&Request::get("/v1/export").with("x-api-key", "k"));
    assert_eq!(plan.charges[1].group, plan.charges[2].group);
    assert_ne!(plan.charges[0].group, plan.charges[1].group);
}

#[test]
fn all_errors_are_told_at_once() {
    let text = FULL
        .replacen("\"version\": \"v1\"", "\"version\": 1", 1)
        .replacen("\"capacity\": 200", "\"capacity\": \"200\"", 1)
        .replacen("\"50ms\"", "50", 1)
        .replacen("[\"client\"]", "[\"cleint\"]", 1);
    assert_eq!(
        errors(&text),
        "version: must be text: put it in quotes\n\
         endpoint.timeout: needs a unit: \"50ms\" or \"50s\"\n\
         policies[0].key[0]: unknown identity \"cleint\": did you mean \"client\"?\n\
         policies[0].limit.token_bucket.capacity: must be a number without quotes: 200"
    );
}

#[test]
fn every_mistake_has_its_path_and_what_would_be_right() {
    for (from, to, expected) in [
        ("\"policies\"", "\"polices\"", "polices: unknown field \"polices\": did you mean \"policies\"?"),
        ("\"refill\": \"5/s\"", "\"refil\": \"5/s\"", "did you mean \"refill\"?"),
        ("\"closed\"", "\"clsoed\"", "policies[2].on_failure: unknown fail mode \"clsoed\": did you mean \"closed\"?"),
        ("\"closed\"", "\"local\"", "policies[2].on_failure: local needs its budget"),
        (
            ", \"on_failure\": \"closed\"",
            "",
            "policies[2]: lacks `on_failure`: what happens when the endpoint cannot say",
        ),
        ("\"50/s\"", "\"50\"", "policies[0].limit.token_bucket.refill: \"50\" is not a rate: write units per time"),
        ("\"50/s\"", "50", "policies[0].limit.token_bucket.refill: must be text: write units per time"),
        ("\"50/s\"", "\"0/s\"", "0/s: the number of units must be at least 1"),
        ("\"50/s\"", "\"-5/s\"", "is not a rate"),
        ("\"50/s\"", "\"1/31d\"", "the period must be between 1 microsecond and 30 days"),
        ("\"50/s\"", "\"1/month\"", "is not a rate"),
        ("\"50/s\"", "\"10000001/s\"", "at most 10000000 units a second"),
        ("\"50/s\"", "\"99999999999999999999/s\"", "at most 999999999999"),
        ("\"capacity\": 200", "\"capacity\": 0", "capacity: must be between 1 and 999999999999, is 0"),
        ("\"capacity\": 200", "\"capacity\": -1", "capacity: must be a whole number between 1 and 999999999999"),
        ("\"capacity\": 200", "\"capacity\": 1.5", "must be a whole number"),
        ("\"capacity\": 200", "\"capacity\": null", "not nothing (null)"),
        ("\"capacity\": 200", "\"capacity\": true", "not true or false"),
        ("\"capacity\": 200,", "", "token_bucket: lacks `capacity`"),
        ("\"capacity\": 200", "\"capacity\": 200, \"capacity\": 300", "capacity: is there twice"),
        (
            "\"capacity\": 10,",
            "\"capacity\": 4,",
            "policies[1].on_failure: the capacity 4 is below the cost 5 of the route class \"reports\"",
        ),
        ("\"cost\": 5", "\"cost\": 21", "policies[1].limit: the capacity 20 is below the cost 21"),
        ("\"cost\": 5", "\"cost\": 0", "routes[1].cost: must be between 1"),
        ("\"50ms\"", "\"0s\"", "endpoint.timeout: must be between 1ms and 10s, is 0s"),
        ("\"50ms\"", "\"500us\"", "must be between 1ms and 10s"),
        ("\"50ms\"", "\"4294967297ms\"", "must be between 1ms and 10s"),
        ("\"50ms\"", "\"fast\"", "\"fast\" is not a time"),
        ("\"cluster\": \"tollgate\", ", "", "endpoint: lacks `cluster`"),
        (
            "\"scope\": \"local\"",
            "\"scope\": \"globl\"",
            "policies[0].scope: unknown value \"globl\": did you mean \"global\"?",
        ),
        ("\"sharing\": \"worker\"", "\"mode\": \"exact\"", "policies[0].mode: is for policies of scope global"),
        (
            "\"sharing\": \"worker\"",
            "\"lost_state\": \"learn\"",
            "policies[0].lost_state: is for policies of scope global",
        ),
        (
            "\"mode\": \"exact\"",
            "\"mode\": \"lease\"",
            "policies[1].mode: unknown value \"lease\": did you mean \"leased\"?",
        ),
        (
            "\"mode\": \"exact\"",
            "\"mode\": \"exact\", \"sharing\": \"worker\"",
            "policies[1].sharing: is for policies of scope local, and for those of mode leased",
        ),
        (
            "[\"export\"]",
            "[\"exprt\"]",
            "policies[2].match.routes[0]: unknown route class \"exprt\": did you mean \"export\"?",
        ),
        ("[\"export\"]", "[\"health\"]", "the route class \"health\" is exempt"),
        ("[\"export\"]", "[]", "policies[2].match.routes: must not be empty"),
        ("\"name\": \"exports\"", "\"name\": \"guard\"", "policies[2].name: the name \"guard\" is taken"),
        ("\"name\": \"exports\"", "\"name\": \"a b\"", "policies[2].name: must be 1 to 64 letters"),
        ("\"name\": \"export\"", "\"name\": \"other\"", "routes[2].name: `other` is the class"),
        ("\"/v1/export/**\"", "\"v1/export\"", "routes[2].path: a path template starts with '/'"),
        ("[\"GET\"]", "[\"get\"]", "routes[1].methods[0]: \"get\" is not a method"),
        ("\"exempt\": true", "\"exempt\": true, \"cost\": 5", "routes[0].cost: an exempt route class costs nothing"),
        ("[\"credential\", \"route\"]", "[\"route\", \"route\"]", "policies[2].key[1]: is in the list already"),
        ("\"cluster\": \"tollgate\"", "\"cluster\": \"\"", "endpoint.cluster: must not be empty"),
        ("\"client\": {\"sources\"", "\"credential\": {\"sources\"", "identities.credential: is there twice"),
        (
            "\"timeout\": \"50ms\"",
            "\"auth_token\": {\"value\": \"short\"}",
            "endpoint.auth_token.value: the secret must have at least 16 bytes",
        ),
        (
            "\"timeout\": \"50ms\"",
            "\"auth_token\": {\"value\": \"a token with spaces\"}",
            "endpoint.auth_token.value: a bearer token has letters",
        ),
        (
            "\"timeout\": \"50ms\"",
            "\"auth_token\": {\"env\": \"UNSET\"}",
            "endpoint.auth_token.env: the environment variable UNSET is not set",
        ),
        (
            "{\"header\": \"X-Api-Key\"}",
            "{\"header\": \"X-Api-Key\"}, {\"header\": \"x-api-key\"}",
            "identities.credential.sources[1]: is in the list already",
        ),
        ("[\"GET\"]", "[\"GET\", \"GET\"]", "routes[1].methods[1]: is in the list already"),
        ("[\"export\"]", "[\"export\", \"export\"]", "policies[2].match.routes[1]: is in the list already"),
        (
            "\"/healthz\"",
            "\"/v1/**\"",
            "routes[1]: no request reaches the route class \"reports\": \"health\" before it takes all",
        ),
        ("\"/v1/export/**\"", "\"/healthz/\"", "routes[2]: no request reaches the route class \"export\""),
        (
            "\"key\": [\"client\"]",
            "\"on_missing\": \"skip\"",
            "policies[0].on_missing: is for policies with an identity in their key",
        ),
        ("[\"GET\"]", "\"GET\"", "routes[1].methods: must be a list: [GET]"),
        (
            "\"cost\": 5",
            "\"cost\": \"1.5\"",
            "routes[1].cost: must be a whole number between 1 and 999999999999, is 1.5",
        ),
        ("\"policies\"", "\"policy\"", "did you mean \"policies\"?"),
        (
            "{\"token_bucket\": {\"capacity\": 200, \"refill\": \"50/s\"}}",
            "{\"capacity\": 200, \"refill\": \"50/s\"}",
            "policies[0].limit: must have exactly one of token_bucket, gcra, fixed_window, sliding_window, sliding_log, such as {token_bucket: {capacity: 20, refill: 5/s}}",
        ),
        (
            "{\"env\": \"TOLLGATE_HASH_KEY\"}",
            "\"TOLLGATE_HASH_KEY\"",
            "hash_key: must be a map such as {env: TOLLGATE_HASH_KEY}, not text",
        ),
        (
            "\"/v1/export/**\"",
            "\"^/v1/export/.*$\"",
            "routes[2].path: is matched as it stands and not as a regular expression",
        ),
        ("\"exempt\": true", "\"exempt\": \"true\"", "routes[0].exempt: must be true without quotes"),
        (
            "\"X-Api-Key\"",
            "\"x api key\"",
            "identities.credential.sources[0].header: \"x api key\" is not a header name",
        ),
        ("{\"header\": \"X-Api-Key\"}", "{\"heder\": \"x\"}", "did you mean \"header\"?"),
        ("{\"ipv6_prefix\": 64}", "{\"ipv6_prefix\": 129}", "must be between 1 and 128, is 129"),
        (
            "\"client\": {\"sources\"",
            "\"route\": {\"sources\"",
            "identities.route: `route` in a key means the route class",
        ),
        (
            "{\"env\": \"TOLLGATE_HASH_KEY\"}",
            "{\"env\": \"UNSET\"}",
            "hash_key.env: the environment variable UNSET is not set",
        ),
        (
            "{\"env\": \"TOLLGATE_HASH_KEY\"}",
            "{\"value\": \"short\"}",
            "hash_key.value: the secret must have at least 16 bytes, has 5",
        ),
        ("\"hash_key\": {\"env\": \"TOLLGATE_HASH_KEY\"},", "", "lacks `hash_key`"),
        (
            "\"endpoint\": {\"cluster\": \"tollgate\", \"timeout\": \"50ms\", \"max_in_flight\": 256},",
            "",
            "lacks `endpoint`",
        ),
    ] {
        let found = errors(&with(from, to));
        assert!(found.contains(expected), "{from} -> {to}\n  expected {expected}\n  found    {found}");
        // One mistake is one error, but where two things are wrong because of it.
        let two = [
            "\"cost\": 21",
            "\"name\": \"other\"",
            "[\"route\", \"route\"]",
            "\"credential\": {\"sources\"",
            "\"route\": {\"sources\"",
            "\"/v1/**\"",
        ];
        assert_eq!(found.lines().count(), 1 + usize::from(two.contains(&to)), "{from} -> {to}\n{found}");
    }
}

#[test]
fn a_number_that_envoy_can_only_hand_on_as_text_is_a_number() {
    let capacity = |text: &str| with("\"capacity\": 200", &format!("\"capacity\": {text}"));
    for (text, count) in [("\"2147483648\"", 2_147_483_648), ("\"999999999999\"", 999_999_999_999)] {
        assert_eq!(read(&capacity(text)).policies()[0].limit.limit().expect("a limit").capacity().count(), count);
    }
    let at = "policies[0].limit.token_bucket.capacity: must be";
    for (text, rest) in [
        ("\"2147483647\"", "a number without quotes: 2147483647"),
        ("\"1000000000000\"", "between 1 and 999999999999, is 1000000000000"),
        ("\"99999999999999999999\"", "a whole number between 1 and 999999999999, is 99999999999999999999"),
    ] {
        assert_eq!(errors(&capacity(text)), format!("{at} {rest}"));
    }
}

#[test]
fn the_size_of_a_configuration_is_bounded() {
    let policy = |n: usize| {
        format!(r#"{{"name":"p{n}","scope":"local","limit":{{"token_bucket":{{"capacity":5,"refill":"1/s"}}}}}}"#)
    };
    let many = |count: usize, one: &dyn Fn(usize) -> String| (0..count).map(one).collect::<Vec<_>>().join(",");
    let policies = |count: usize| format!(r#"{{"policies":[{}]}}"#, many(count, &policy));
    assert_eq!(read(&policies(64)).policies().len(), 64);
    assert_eq!(errors(&policies(65)), "policies: must have at most 64 items, has 65");
    let route = |n: usize| format!(r#"{{"name":"r{n}","path":"/{n}"}}"#);
    let routes = |count: usize| format!(r#"{{"routes":[{}],"policies":[{}]}}"#, many(count, &route), policy(0));
    read(&routes(1024));
    assert_eq!(errors(&routes(1025)), "routes[1024]: there can be at most 1024 route classes");
    let identity = |n: usize| format!(r#""i{n}":{{"sources":[{{"header":"x"}}]}}"#);
    let identities = |count: usize| {
        let (identities, policy) = (many(count, &identity), policy(0));
        format!(r#"{{"hash_key":{{"value":"{SECRET}"}},"identities":{{{identities}}},"policies":[{policy}]}}"#)
    };
    read(&identities(32));
    assert_eq!(errors(&identities(33)), "identities: must have at most 32 identities, has 33");
}

#[test]
fn two_policies_and_two_identities_never_share_a_bucket() {
    let set = |identity: &str| {
        let policy = |name: &str| {
            format!(
                r#"{{"name":"{name}","scope":"local","key":["{identity}"],"limit":{{"token_bucket":{{"capacity":5,"refill":"1/s"}}}}}}"#
            )
        };
        read(&format!(
            r#"{{"hash_key":{{"value":"{SECRET}"}},"identities":{{"a":{{"sources":[{{"header":"x"}}]}},"b":{{"sources":[{{"header":"x"}}]}}}},
                "policies":[{},{}]}}"#,
            policy("p"),
            policy("q")
        ))
    };
    let (a, b) = (set("a"), set("b"));
    let request = Request::get("/").with("x", "1");
    assert_ne!(key(&a, &request, "p"), key(&a, &request, "q"));
    assert_ne!(key(&a, &request, "p"), key(&b, &request, "p"));
    assert_ne!(a.policies()[0].overflow(), a.policies()[1].overflow());
}

#[test]
fn one_mistake_is_one_error() {
    for (from, to) in [
        ("{\"header\": \"X-Api-Key\"}", "{\"heder\": \"x\"}"),
        ("\"/v1/export/**\"", "\"v1/export\""),
        ("{\"env\": \"TOLLGATE_HASH_KEY\"}", "{\"env\": \"UNSET\"}"),
        ("\"cost\": 5", "\"cost\": \"5\""),
        ("\"50ms\"", "50"),
    ] {
        assert_eq!(errors(&with(from, to)).lines().count(), 1, "{}", errors(&with(from, to)));
    }
}

#[test]
fn nothing_at_all_is_no_configuration() {
    for text in
        ["", "  ", "{", "[]", "null", "{}", r#"{"policies":[]}"#, r#"{"policies":{}}"#, "policies:\n\t- x", "\"x\""]
    {
        assert!(PolicySet::read(text.as_bytes(), &env).is_err(), "{text:?}");
    }
    assert_eq!(errors("{}"), "lacks `policies`: a list of budgets");
    assert_eq!(errors(r#"{"policies":[]}"#), "policies: must not be empty");
}

#[test]
fn no_secret_is_shown() {
    let text = with("{\"env\": \"TOLLGATE_HASH_KEY\"}", "{\"value\": \"0123456789abcdef-secret\"}");
    let text = text.replacen("\"timeout\"", "\"auth_token\": {\"value\": \"token-secret-token\"}, \"timeout\"", 1);
    let set = read(&text);
    let token = set.endpoint.as_ref().and_then(|endpoint| endpoint.auth_token.as_ref());
    assert_eq!(token.map(AuthToken::header), Some("Bearer token-secret-token"));
    let shown = format!("{set:?}");
    assert!(!shown.contains("secret"), "{shown}");
}

/// A small configuration: the identities, the routes and one local policy's further fields, as JSON.
fn small(identities: &str, routes: &str, fields: &str) -> String {
    let bucket = r#""limit": {"token_bucket": {"capacity": 100, "refill": "1/30d"}}"#;
    let limit = if fields.contains("\"limit\"") { String::new() } else { format!(", {bucket}") };
    let key = if fields.contains("\"key\"") { "" } else { r#", "key": ["who"]"# };
    format!(
        r#"{{"hash_key": {{"value": "{SECRET}"}}, "identities": {{{identities}}}, "routes": [{routes}],
            "policies": [{{"name": "p", "scope": "local"{key}{limit}{fields}}}]}}"#
    )
}

fn who(sources: &str) -> String {
    format!(r#""who": {{"sources": [{sources}]}}"#)
}

fn warnings(set: &PolicySet) -> Vec<String> {
    set.warnings().iter().map(ToString::to_string).collect()
}

/// What became of the identity `who`.
fn result(set: &PolicySet, request: &Request) -> IdentityResult {
    set.plan(request).identities[0].1
}

#[test]
fn the_first_source_that_is_there_and_valid_counts() {
    // F02
    let identity = r#""who": {"sources": [
        {"metadata": {"filter": "jwt", "path": ["payload", "tenant"]}}, {"header": "x-auth-sub"},
        {"header": "authorization", "scheme": "Bearer"}, {"cookie": "sid"}, {"query": "key"}, {"filter_state": "f"},
        {"peer": "uri_san"}, {"route_metadata": {"filter": "r", "path": ["a"]}},
        {"virtual_host_metadata": {"filter": "v", "path": ["a"]}}, {"literal": "nobody"}], "pattern": "[a-z]{1,9}"}"#;
    let set = read(&small(identity, "", ""));
    let tenant = metadata("jwt", &["payload", "tenant"]);
    let key_of = |request: &Request| key(&set, request, "p");
    let get = || Request::get("/?key=query").with("cookie", "sid=cookie");
    let verified = key_of(&get().with_attribute(&tenant, "acme"));
    for rotating in ["a", "b", "acme"] {
        assert_eq!(key_of(&get().with_attribute(&tenant, "acme").with("x-auth-sub", rotating)), verified);
        assert_ne!(
            key_of(&get().with("x-auth-sub", rotating)),
            verified,
            "nobody can write the name that was verified"
        );
    }
    let keys = [
        verified,
        key_of(&get().with("x-auth-sub", "sub").with("authorization", "Bearer token")),
        key_of(&get().with("authorization", "bearer token")),
        key_of(&get().with("authorization", "Basic token")),
        key_of(&Request::get("/?key=query")),
        key_of(&Request::get("/").with_attribute(&Attribute::FilterState("f".into()), "state")),
        key_of(&Request::get("/").with_attribute(&Attribute::Peer(PeerName::UriSan), "spiffe")),
        key_of(&Request::get("/")),
    ];
    let different: std::collections::BTreeSet<_> = keys.iter().collect();
    assert_eq!(different.len(), keys.len());
    // What is there and is not of the form is passed over, and does not take a bucket of its own.
    assert_eq!(key_of(&get().with("x-auth-sub", "ROTATING")), key_of(&get()));
    assert_eq!(set.identities()[0].sources.len(), 10);
}

#[test]
fn what_became_of_an_identity_is_told() {
    let set =
        read(&small(r#""who": {"sources": [{"header": "x-tenant"}, {"cookie": "t"}], "pattern": "[a-z]+"}"#, "", ""));
    let get = || Request::get("/");
    assert_eq!(result(&set, &get().with("x-tenant", "acme")), IdentityResult::Ok);
    assert_eq!(result(&set, &get()), IdentityResult::Missing);
    assert_eq!(result(&set, &get().with("x-tenant", "ACME")), IdentityResult::Invalid);
    assert_eq!(result(&set, &get().with("x-tenant", "ACME").with("cookie", "t=acme")), IdentityResult::Ok);
    assert_eq!(result(&set, &get().with("x-tenant", "a").with("x-tenant", "b")), IdentityResult::Ambiguous);
    let hops = read(&small(&who(r#"{"client_address": {"trusted_hops": 2}}"#), "", ""));
    assert_eq!(result(&hops, &get().with("x-forwarded-for", "1.1.1.1, 2.2.2.2")), IdentityResult::Ok);
    assert_eq!(result(&hops, &get().with("x-forwarded-for", "1.1.1.1")), IdentityResult::XffShort);
    assert_eq!(result(&hops, &get().with("x-forwarded-for", "me, 2.2.2.2")), IdentityResult::Invalid);
}

#[test]
fn an_identity_that_no_applying_policy_needs_is_not_looked_for() {
    let text =
        small(&who(r#"{"header": "x-tenant"}"#), r#"{"name": "a", "path": "/a"}"#, r#", "match": {"routes": ["a"]}"#);
    let set = read(&text);
    assert_eq!(set.plan(&Request::get("/a")).identities.len(), 1);
    assert_eq!(set.plan(&Request::get("/b")).identities, []);
}

#[test]
fn a_request_without_identity_is_pooled_skipped_or_rejected_as_the_policy_says() {
    // F04
    let plan = |choice: &str| {
        let set = read(&small(&who(r#"{"header": "x-api-key"}"#), "", &format!(r#", "on_missing": "{choice}""#)));
        set.plan(&Request::get("/"))
    };
    assert_eq!(plan("anonymous").charges.len(), 1);
    assert_eq!((plan("skip").charges.len(), plan("skip").skipped), (0, vec![0]));
    let refusal = Refusal { policy: 0, reason: RefusalReason::IdentityMissing, enforced: true };
    assert_eq!((plan("reject").charges.len(), plan("reject").refusals), (0, vec![refusal]));
}

#[test]
fn a_route_class_is_chosen_by_host_headers_and_envoys_route_too() {
    let routes = r#"
        {"name": "admin", "host": "*.admin.example.com", "path": "/**"},
        {"name": "grpc", "headers": [{"name": "Content-Type", "prefix": "application/grpc"}]},
        {"name": "batch", "headers": [{"name": "x-mode", "exact": "batch"}, {"name": "x-id", "present": true}], "cost": 9},
        {"name": "quiet", "headers": [{"name": "user-agent", "present": false}]},
        {"name": "named", "envoy_route": "reports"}"#;
    let set = read(&small(&who(r#"{"header": "x"}"#), routes, ""));
    let class = |request: &Request| set.route_name(set.plan(request).route).to_string();
    let get = || Request::get("/a").with("user-agent", "curl");
    let host = |host: &'static str| class(&Request { host, ..get() });
    assert_eq!(host("eu.ADMIN.example.com:8443"), "admin");
    assert_eq!(host("admin.example.com"), "other");
    assert_eq!(class(&get().with("content-type", "application/grpc+proto")), "grpc");
    assert_eq!(class(&get().with("x-mode", "batch").with("x-id", "1")), "batch");
    assert_eq!(class(&get().with("x-mode", "batch")), "other");
    assert_eq!(class(&Request::get("/a")), "quiet");
    assert_eq!(class(&get().with_attribute(&Attribute::RouteName, "reports")), "named");
    // Sent twice, a header leads to the class that costs more: neither order is a way round it.
    for (one, two) in [("batch", "light"), ("light", "batch"), ("light", "light")] {
        assert_eq!(class(&get().with("x-mode", one).with("x-mode", two).with("x-id", "1")), "batch");
    }
}

#[test]
fn a_header_that_was_sent_twice_exempts_nobody() {
    let routes =
        r#"{"name": "probe", "path": "/**", "headers": [{"name": "x-probe", "exact": "s3cret"}], "exempt": true}"#;
    let set = read(&small(&who(r#"{"header": "x"}"#), routes, ""));
    let get = || Request::get("/a").with("x-probe", "s3cret");
    assert!(set.plan(&get()).exempt);
    assert!(!set.plan(&get().with("x-probe", "s3cret")).exempt);
}

#[test]
fn a_cost_is_read_from_the_request_within_its_bounds() {
    let routes = r#"
        {"name": "rows", "path": "/rows", "cost": {"from": {"header": "X-Rows"}, "per": 10, "min": 2, "max": 50, "default": 4}},
        {"name": "put", "path": "/put", "cost": {"from": "content_length", "per": 1000, "max": 60}},
        {"name": "meta", "path": "/meta", "cost": {"from": {"metadata": {"filter": "f", "path": ["n"]}}, "max": 70}}"#;
    let set = read(&small(&who(r#"{"header": "x"}"#), routes, ""));
    let cost = |request: &Request| {
        let plan = set.plan(request);
        (plan.charges[0].cost.count(), plan.cost_made_up)
    };
    let rows = |value: &str| cost(&Request::get("/rows").with("x-rows", value));
    assert_eq!([rows("5"), rows("55"), rows("5000")], [(2, false), (6, false), (50, false)]);
    assert_eq!([rows("-100"), cost(&Request::get("/rows"))], [(4, true), (4, true)]);
    assert_eq!(cost(&Request::get("/put")), (60, true), "what is not said is taken for the most");
    assert_eq!(cost(&Request::get("/put").with("content-length", "0")), (1, false));
    assert_eq!(cost(&Request::get("/meta").with_attribute(&metadata("f", &["n"]), 7_f64.to_le_bytes())), (7, false));
    assert_eq!(cost(&Request::get("/else")), (1, false));
}

const PLANS: &str = r#", "plans": {"by": {"metadata": {"filter": "jwt", "path": ["plan"]}},
    "gold": {"token_bucket": {"capacity": 1000, "refill": "10/s"}}, "free": "deny", "staff": "unlimited"}"#;

#[test]
fn a_plan_chooses_the_limit_and_never_the_bucket() {
    let set = read(&small(&who(r#"{"header": "x"}"#), "", PLANS));
    let by = metadata("jwt", &["plan"]);
    let plan = |name: &str| set.plan(&Request::get("/").with("x", "acme").with_attribute(&by, name));
    let capacity = |plan: &Plan| plan.charges[0].limit.capacity().count();
    let (gold, none) = (plan("gold"), set.plan(&Request::get("/").with("x", "acme")));
    assert_eq!((capacity(&gold), capacity(&none)), (1000, 100));
    assert_eq!(gold.charges[0].key, none.charges[0].key);
    assert!(none.unknown_plans.is_empty());
    for unknown in ["platinum", "Gold", "gold ", "by"] {
        assert_eq!((capacity(&plan(unknown)), plan(unknown).unknown_plans), (100, vec![0]), "{unknown}");
    }
    let free = Refusal { policy: 0, reason: RefusalReason::Denies, enforced: true };
    assert_eq!((plan("free").charges.len(), plan("free").refusals), (0, vec![free]));
    assert_eq!((plan("staff").charges.len(), plan("staff").refusals.len()), (0, 0));
    let by_identity = r#", "key": [], "plans": {"by": "who", "gold": "deny"}"#;
    let set = read(&small(&who(r#"{"header": "x"}"#), "", by_identity));
    assert_eq!(set.plan(&Request::get("/").with("x", "gold")).refusals.len(), 1);
    assert_eq!(set.plan(&Request::get("/").with("x", "gold").with("x", "a")).unknown_plans, [0]);
}

#[test]
fn a_percentage_enforces_on_a_stable_share_of_keys() {
    let share = |enforce: &str| {
        let set = read(&small(&who(r#"{"header": "x"}"#), "", &format!(r#", "enforce": {enforce}"#)));
        let plans = (0..1000).map(|n| set.plan(&Request::get("/").with("x", n.to_string())));
        plans.map(|plan| !plan.charges.is_empty()).collect::<Vec<_>>()
    };
    let count = |enforce: &str| share(enforce).iter().filter(|enforced| **enforced).count();
    assert_eq!([count("\"on\""), count("true"), count("\"100%\"")], [1000; 3]);
    assert_eq!([count("\"shadow\""), count("\"0%\"")], [0; 2]);
    assert!((50..150).contains(&count("\"10%\"")), "{}", count("\"10%\""));
    assert_eq!(share("\"10%\""), share("\"10%\""));
    let (few, more) = (share("\"10%\""), share("\"40%\""));
    assert!(few.iter().zip(&more).all(|(few, more)| !few || *more), "who is limited at 10% is at 40%");
}

#[test]
fn a_policy_in_shadow_is_planned_apart() {
    let set = read(&small(&who(r#"{"header": "x"}"#), "", r#", "enforce": "shadow", "on_missing": "reject""#));
    let plan = set.plan(&Request::get("/").with("x", "acme"));
    assert_eq!((plan.charges.len(), plan.shadows.len()), (0, 1));
    assert!(!set.plan(&Request::get("/")).refusals[0].enforced);
}

#[test]
fn a_namespace_separates_every_key() {
    let text = small(&who(r#"{"header": "x"}"#), "", "");
    let within = |name: &str| read(&text.replacen('{', &format!(r#"{{"namespace": "{name}", "#), 1));
    let charge = |set: &PolicySet| set.plan(&Request::get("/").with("x", "acme")).charges[0].clone();
    let (none, one, two) = (charge(&read(&text)), charge(&within("one")), charge(&within("two")));
    assert!(none.key != one.key && one.key != two.key && none.group != one.group && one.group != two.group);
    assert_ne!(within("one").policies()[0].overflow(), within("two").policies()[0].overflow());
    assert_eq!(charge(&within("one")), one);
}

#[test]
fn while_the_hash_key_is_changed_both_buckets_are_charged() {
    const NEW: &str = "another secret of enough bytes";
    let text = small(&who(r#"{"header": "x"}"#), "", "");
    let old = format!(r#"{{"value": "{SECRET}"}}"#);
    let charges = |secret: &str| {
        let set = read(&text.replacen(&old, secret, 1));
        let plans = ["acme", ""].map(|who| set.plan(&Request::get("/").with("x", who)).charges);
        plans.concat()
    };
    let (before, after) = (charges(&old), charges(&format!(r#"{{"value": "{NEW}"}}"#)));
    let both = charges(&format!(r#"{{"value": "{NEW}", "previous": {old}}}"#));
    assert_eq!(both, [&after[0], &before[0], &after[1], &before[1]].map(Clone::clone));
    let errors = |secret: &str| errors(&text.replacen(&old, secret, 1));
    assert!(errors(&format!(r#"{{"value": "{SECRET}", "previous": {old}}}"#)).contains("is the same secret"));
    assert!(
        errors(r#"{"env": "TOLLGATE_HASH_KEY", "previous": {"env": "UNSET"}}"#).starts_with("hash_key.previous.env: ")
    );
    assert!(errors(r#"{"previous": {"env": "X"}}"#).contains("must have exactly one of env, value"));
}

#[test]
fn what_is_hardly_meant_is_a_warning() {
    assert_eq!(warnings(&read(FULL)), [] as [&str; 0]);
    let who_by_header = who(r#"{"header": "x"}"#);
    for (text, expected) in [
        (small(&who(r#"{"header": "Authorization"}"#), "", ""), "identities.who.sources[0].header: without a scheme"),
        (small(&who(r#"{"header": "x-forwarded-for"}"#), "", ""), "identities.who.sources[0].header: clients write"),
        (small(&who_by_header, "", r#", "key": []"#), "identities.who: no policy uses the identity \"who\""),
        (
            small(
                &who_by_header,
                r#"{"name": "a", "path": "/a"}, {"name": "b", "path": "/b"}"#,
                r#", "match": {"routes": ["a"]}"#,
            ),
            "routes[1]: no policy is for the route class \"b\"",
        ),
        (
            small(
                &who_by_header,
                r#"{"name": "a", "headers": [{"name": "x-a", "present": true}], "exempt": true}"#,
                "",
            ),
            "routes[0]: whoever sends these headers is exempt",
        ),
        (
            small(&who_by_header, r#"{"name": "all", "path": "/**", "exempt": true}"#, ""),
            "policies[0]: every request is exempt, so the policy \"p\" limits none",
        ),
        (
            small(&who_by_header, "", r#", "plans": {"by": {"header": "x-plan"}, "gold": "unlimited"}"#),
            "policies[0].plans.by: a client chooses its plan",
        ),
        (small(&who_by_header, "", r#", "limit": "unlimited""#), "policies[0].limit: the policy \"p\" limits nothing"),
        (with("\"50ms\"", "\"2s\""), "endpoint.timeout: a request waits up to 2s"),
        (
            small(&who_by_header, "", "").replacen('{', r#"{"endpoint": {"cluster": "c"}, "#, 1),
            "endpoint: no policy is of scope global",
        ),
    ] {
        let found = warnings(&read(&text));
        assert!(found.len() == 1 && found[0].starts_with(expected), "expected {expected}\nfound {found:?}");
    }
}

#[test]
fn what_contradicts_itself_is_an_error() {
    let who_by_header = who(r#"{"header": "x"}"#);
    let cost = |cost: &str| small(&who_by_header, &format!(r#"{{"name": "a", "path": "/a", "cost": {cost}}}"#), "");
    let source = |source: &str| small(&who(source), "", "");
    let route = |fields: &str| small(&who_by_header, &format!(r#"{{"name": "a", {fields}}}"#), "");
    let policy = |fields: &str| small(&who_by_header, "", fields);
    for (text, expected) in [
        (source(r#"{"header": "x", "scheme": ""}"#), "sources[0].scheme: must not be empty"),
        (source(r#"{"cookie": "sid", "scheme": "Bearer"}"#), "sources[0].scheme: is for a header"),
        (source(r#"{"cookie": "a=b"}"#), "sources[0].cookie: \"a=b\" is not the name of a cookie"),
        (source(r#"{"header": "x", "cookie": "y"}"#), "sources[0]: must have exactly one of header, cookie"),
        (source(r#"{"coookie": "y"}"#), "did you mean \"cookie\"?"),
        (source(r#"{"metadata": {"filter": "f", "path": []}}"#), "sources[0].metadata.path: must not be empty"),
        (source(r#"{"metadata": {"filter": "f", "path": "a.b"}}"#), "sources[0].metadata.path: must be a list: [a.b]"),
        (source(r#"{"metadata": {"path": ["a"]}}"#), "sources[0].metadata: lacks `filter`"),
        (source(r#"{"peer": "san"}"#), "sources[0].peer: unknown value \"san\""),
        (source(r#"{"client_address": {"trusted_hops": 17}}"#), "must be between 0 and 16, is 17"),
        (source(r#"{"client_address": {"trusted_hop": 1}}"#), "did you mean \"trusted_hops\"?"),
        (source(r#"{"literal": "a"}, {"header": "x"}"#), "sources[0]: a literal is always there, so it comes last"),
        (
            small(r#""who": {"sources": [{"literal": "A"}], "pattern": "[a-z]"}"#, "", ""),
            "sources[0]: the text \"A\" is not of the identity's own pattern",
        ),
        (
            small(r#""who": {"sources": [{"client_address": {}}], "pattern": "[a-z]"}"#, "", ""),
            "identities.who.pattern: is for text",
        ),
        (
            small(r#""who": {"sources": [{"header": "x"}], "pattern": "^[a-z]$"}"#, "", ""),
            "identities.who.pattern: at character 1: a pattern is for the whole value",
        ),
        (route(r#""exempt": false"#), "routes[0]: lacks what it matches, such as `path`"),
        (route(r#""host": "example.com:80""#), "routes[0].host: \"example.com:80\": the port takes no part"),
        (route(r#""headers": [{"exact": "a"}]"#), "routes[0].headers[0]: lacks `name`"),
        (
            route(r#""headers": [{"name": "a"}]"#),
            "routes[0].headers[0]: must have exactly one of present, exact, prefix",
        ),
        (route(r#""headers": [{"name": "a", "prefix": ""}]"#), "routes[0].headers[0].prefix: must not be empty"),
        (
            small(&who_by_header, r#"{"name": "a", "path": "/**"}"#, r#", "match": {"routes": ["other"]}"#),
            "policies[0].match: no request is limited by the policy \"p\"",
        ),
        (
            small(
                &who_by_header,
                r#"{"name": "a", "host": "*.b.c", "path": "/x/**"}, {"name": "b", "host": "a.b.c", "path": "/x/y"}"#,
                "",
            ),
            "routes[1]: no request reaches the route class \"b\"",
        ),
        (cost(r#"{"max": 5}"#), "routes[0].cost: lacks `from`"),
        (cost(r#"{"from": "content_length"}"#), "routes[0].cost: lacks `max`"),
        (cost(r#"{"from": "content_lenght", "max": 5}"#), "did you mean \"content_length\"?"),
        (cost(r#"{"from": {"header": "x"}, "min": 6, "max": 5}"#), "routes[0].cost.min: is above the `max` of 5"),
        (cost(r#"{"from": {"header": "x"}, "max": 5, "default": 6}"#), "routes[0].cost.default: must be between"),
        (cost(r#"{"from": {"header": "x"}, "max": 5, "per": 0}"#), "routes[0].cost.per: must be between 1"),
        (cost(r#"{"from": {"header": "x"}, "max": 101}"#), "policies[0].limit: the capacity 100 is below the cost 101"),
        (policy(r#", "limit": "denny""#), "policies[0].limit: unknown limit \"denny\": did you mean \"deny\"?"),
        (
            policy(r#", "enforce": "shadwo""#),
            "policies[0].enforce: must be on, shadow, or a percentage of keys such as 10%; unknown value \"shadwo\": did you \
             mean \"shadow\"?",
        ),
        (policy(r#", "enforce": false"#), "policies[0].enforce: must be on, shadow, or a percentage"),
        (policy(r#", "enforce": 10"#), "policies[0].enforce: must be on, shadow, or a percentage"),
        (policy(r#", "enforce": "101%""#), "policies[0].enforce: \"101%\": a percentage is a whole number"),
        (policy(r#", "enforce": "+1%""#), "policies[0].enforce: \"+1%\": a percentage is a whole number"),
        (policy(r#", "plans": {"gold": "deny"}"#), "policies[0].plans: lacks `by`"),
        (policy(r#", "plans": {"by": "who"}"#), "policies[0].plans: lacks plans"),
        (policy(r#", "plans": {"by": "whoo", "a": "deny"}"#), "policies[0].plans.by: unknown identity \"whoo\""),
        (
            policy(r#", "plans": {"by": "who", "a": {"gcra": {"burst": 5, "rate": "1/s"}}}"#),
            "policies[0].plans.a: a policy of scope local has a token_bucket",
        ),
        (
            with(
                r#""on_failure": "closed""#,
                r#""on_failure": "closed", "plans": {"by": "credential", "a": {"gcra": {"burst": 5, "rate": "1/s"}}}"#,
            ),
            "policies[2].plans.a: the limits of one policy are of one algorithm, here token_bucket",
        ),
        (
            small(
                &who_by_header,
                r#"{"name": "a", "path": "/a", "cost": 6}"#,
                r#", "plans": {"by": "who", "gold": {"token_bucket": {"capacity": 5, "refill": "1/s"}}}"#,
            ),
            "the capacity 5 is below the cost 6",
        ),
        (small(&who_by_header, "", "").replacen('{', r#"{"namespace": "a b", "#, 1), "namespace: must be 1 to 64"),
    ] {
        let found = errors(&text);
        assert!(found.contains(expected), "expected {expected}\nfound {found}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
}
