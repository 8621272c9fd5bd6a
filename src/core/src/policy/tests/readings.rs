//! Requests that can be read in several ways, and identities that are there and cannot be used.

use super::*;
use crate::wire::MAX_CHARGES;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const ROUTES: &str = r#"
    {"name": "static", "path": "/static/**", "exempt": true},
    {"name": "login", "path": "/login", "cost": 2},
    {"name": "rows", "path": "/rows/**", "cost": {"from": {"header": "x-rows"}, "max": 9, "default": 1}},
    {"name": "docs", "path": "/docs/**", "exempt": true}"#;

/// `/login` for some servers, and under `/rows` for others.
const BOTH: &str = "/rows/..;/login";

/// Local policies over [`ROUTES`], each with these further fields.
fn set_of(policies: &[&str]) -> PolicySet {
    let policies: Vec<String> = (0..)
        .zip(policies)
        .map(|(number, fields)| {
            format!(
                r#"{{"name": "p{number}", "scope": "local",
                     "limit": {{"token_bucket": {{"capacity": 10, "refill": "1/s"}}}}, {fields}}}"#
            )
        })
        .collect();
    read(&format!(
        r#"{{"hash_key": {{"value": "{SECRET}"}}, "identities": {{{}}}, "routes": [{ROUTES}], "policies": [{}]}}"#,
        who(r#"{"header": "x"}"#),
        policies.join(",")
    ))
}

/// Which policies are charged how much.
fn charged(set: &PolicySet, request: &Request) -> Vec<(usize, u64)> {
    set.plan(request).charges.iter().map(|charge| (charge.policy, charge.cost.count())).collect()
}

#[test]
fn the_policies_of_every_class_apply() {
    let set = set_of(&[
        r#""match": {"routes": ["login"]}"#,
        r#""match": {"routes": ["rows"]}"#,
        r#""match": {"routes": ["other"]}"#,
    ]);
    assert_eq!(charged(&set, &Request::get("/login")), [(0, 2)]);
    assert_eq!(charged(&set, &Request::get("/rows/1")), [(1, 1)]);
    assert_eq!(charged(&set, &Request::get(BOTH)), [(0, 2), (1, 1)], "each by the cost of its class");
    assert_eq!(charged(&set, &Request::get("/static/..;/login")), [(0, 2)]);
    let plan = set.plan(&Request::get(BOTH));
    assert_eq!(set.route_name(plan.route), "rows", "the one that can cost most, where one name is told");
}

#[test]
fn a_policy_of_several_classes_charges_what_the_dearest_costs() {
    let set = set_of(&[r#""key": []"#]);
    for (rows, cost) in [("0", 2), ("1", 2), ("7", 7), ("99", 9)] {
        assert_eq!(charged(&set, &Request::get(BOTH).with("x-rows", rows)), [(0, cost)], "{rows} rows");
    }
    assert_eq!(charged(&set, &Request::get("/login").with("x-rows", "7")), [(0, 2)]);
}

#[test]
fn no_spelling_has_the_bucket_of_another_class_instead() {
    let set = set_of(&[r#""key": ["who", "route"]"#]);
    let keys = |path: &str| -> Vec<(Digest, u64)> {
        let plan = set.plan(&Request::get(path).with("x", "acme").with("x-rows", "5"));
        plan.charges.iter().map(|charge| (charge.key, charge.cost.count())).collect()
    };
    assert_eq!(keys(BOTH), [keys("/rows/1"), keys("/login")].concat());
}

#[test]
fn a_request_of_many_classes_asks_for_no_more_than_the_endpoint_takes() {
    for (count, charges) in [(2, 4), (32, 64), (40, 64), (64, 64)] {
        let set = set_of(&vec![r#""key": ["who", "route"]"#; count]);
        let plan = set.plan(&Request::get(BOTH));
        assert_eq!(plan.charges.len(), charges);
        assert!(plan.charges.len() <= MAX_CHARGES);
        let policies: std::collections::BTreeSet<usize> = plan.charges.iter().map(|charge| charge.policy).collect();
        assert_eq!(policies.len(), count, "every policy is charged");
    }
}

#[test]
fn what_is_exempt_by_every_reading_is_exempt() {
    let set = set_of(&[r#""key": []"#]);
    for (path, exempt) in [
        ("/static/..;/docs/x", true),
        ("/docs/..;/static", true),
        ("/docs/..;/login", false),
        // Under /rows for who merges slashes and takes `..;` for a name, and under /static for all others.
        ("/static/x//../../rows/..;/../static", false),
    ] {
        assert_eq!(set.plan(&Request::get(path)).exempt, exempt, "{path}");
    }
}

#[test]
fn a_class_by_a_header_is_that_of_its_value_without_the_whitespace_around_it() {
    let set = read(&format!(
        r#"{{"hash_key": {{"value": "{SECRET}"}}, "identities": {{{}}},
            "routes": [{{"name": "dear", "headers": [{{"name": "x-plan", "exact": "dear"}}]}}],
            "policies": [{{"name": "p", "scope": "local", "key": [],
                           "limit": {{"token_bucket": {{"capacity": 9, "refill": "1/s"}}}}}}]}}"#,
        who(r#"{"header": "x"}"#)
    ));
    for value in ["dear", " dear", "dear\t"] {
        let request = Request::get("/").with("x-plan", value);
        assert_eq!(set.route_name(set.plan(&request).route), "dear", "{value:?}");
        assert_eq!(set.route_classes(&request), [set.plan(&request).route], "{value:?}");
    }
}

#[test]
fn to_send_an_identity_that_cannot_be_used_is_no_way_to_be_skipped() {
    let set = read(&small(
        r#""who": {"sources": [{"header": "x-api-key"}], "pattern": "[a-z]+"}, "org": {"sources": [{"header": "x-org"}]}"#,
        "",
        r#", "key": ["who", "org"], "on_missing": "skip""#,
    ));
    let skipped = |request: &Request| {
        let plan = set.plan(request);
        assert_eq!(plan.skipped.len() + plan.charges.len(), 1);
        !plan.skipped.is_empty()
    };
    let get = || Request::get("/");
    assert!(skipped(&get()) && skipped(&get().with("x-api-key", "")) && skipped(&get().with("x-api-key", "acme")));
    assert!(skipped(&get().with("x-org", "o")));
    for (name, sent) in [("x-api-key", ["a", "b"]), ("x-org", ["o", "o"])] {
        assert!(!skipped(&get().with(name, sent[0]).with(name, sent[1])), "{name} twice");
    }
    assert!(!skipped(&get().with("x-api-key", "ACME")), "of another form");
    assert!(!skipped(&get().with("x-api-key", "ACME").with("x-org", "o")));
    // They share one bucket.
    let key = |request: &Request| set.plan(request).charges[0].key;
    assert_eq!(key(&get().with("x-api-key", "ACME")), key(&get().with("x-api-key", "a").with("x-api-key", "b")));
}
