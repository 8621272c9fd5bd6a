//! Everything that is wrong is told in one round: nobody mends one thing to be told the next.

use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[track_caller]
fn told(text: &str, expected: &[&str]) {
    let found = errors(text);
    assert_eq!(found.lines().count(), expected.len(), "{found}");
    for expected in expected {
        assert!(found.contains(expected), "expected {expected}\nfound {found}");
    }
}

#[test]
fn what_belongs_to_either_scope_is_read_while_the_scope_is_wrong() {
    let bad_scope = |fields: &str| small(&who(r#"{"header": "x"}"#), "", fields).replacen("\"local\"", "\"globl\"", 1);
    let scope = "policies[0].scope: unknown value \"globl\": did you mean \"global\"?";
    told(&bad_scope(""), &[scope]);
    told(&bad_scope(r#", "on_failure": "clsoed""#), &[scope, "on_failure: unknown fail mode \"clsoed\""]);
    told(&bad_scope(r#", "on_failure": "open""#), &[scope]);
    told(
        &bad_scope(r#", "mode": "exakt", "sharing": "wrker""#),
        &[scope, "policies[0].mode: ", "policies[0].sharing: "],
    );
    let none =
        small(&who(r#"{"header": "x"}"#), "", r#", "charge": "allways""#).replacen("\"scope\": \"local\",", "", 1);
    told(&none, &["policies[0]: lacks `scope`", "policies[0].charge: unknown value \"allways\""]);
}

#[test]
fn a_global_policy_with_a_mistake_wants_an_endpoint_all_the_same() {
    let text = with("\"cluster\": \"tollgate\", ", "").replacen("\"endpoint\"", "\"endpoints\"", 1);
    told(&text, &["endpoints: unknown field \"endpoints\": did you mean \"endpoint\"?"]);
    let text = with("\"capacity\": 20,", "\"capacity\": \"20\",")
        .replacen(r#""endpoint": {"cluster": "tollgate", "timeout": "50ms", "max_in_flight": 256},"#, "", 1)
        .replacen("\"closed\"", "\"clsoed\"", 1);
    told(
        &text,
        &[
            "policies[1].limit.token_bucket.capacity: must be a number",
            "policies[2].on_failure: ",
            "lacks `endpoint`: a policy of scope global needs {cluster: …}",
        ],
    );
}

#[test]
fn a_name_is_taken_by_a_policy_that_is_wrong() {
    let text = with("\"capacity\": 200", "\"capacity\": 0").replacen("\"exports\"", "\"guard\"", 1);
    told(&text, &["policies[0].limit.token_bucket.capacity: ", "policies[2].name: the name \"guard\" is taken"]);
}

#[test]
fn costs_are_held_against_a_capacity_whatever_else_is_wrong() {
    let text = with("\"cost\": 5", "\"cost\": 300").replacen("\"key\": [\"client\"]", "\"key\": [\"cleint\"]", 1);
    told(
        &text,
        &[
            "policies[0].key[0]: unknown identity \"cleint\"",
            "policies[0].limit: the capacity 200 is below the cost 300",
            "policies[1].limit: the capacity 20 is below",
            "policies[1].on_failure: the capacity 10 is below",
        ],
    );
    let text = small(
        &who(r#"{"header": "x"}"#),
        r#"{"name": "a", "path": "/a", "cost": 6}"#,
        r#", "plans": {"by": "who", "gold": {"token_bucket": {"capacity": 5, "refill": "1/s"}}}, "enforce": "no""#,
    );
    told(&text, &["policies[0].enforce: ", "policies[0].plans.gold: the capacity 5 is below the cost 6"]);
}

#[test]
fn a_route_class_that_is_wrong_takes_nothing_from_those_behind_it() {
    for wrong in [
        r#""path": "v1""#,
        r#""host": "example.com:80""#,
        r#""methods": ["get"]"#,
        r#""headers": [{"name": "a"}]"#,
        r#""envoy_route": """#,
        r#""exempt": false"#,
    ] {
        let routes = format!(r#"{{"name": "a", {wrong}}}, {{"name": "b", "path": "/b"}}"#);
        told(&small(&who(r#"{"header": "x"}"#), &routes, r#", "match": {"routes": ["b", "other"]}"#), &["routes[0]"]);
        let routes = format!(r#"{{"name": "b", "path": "/b/**"}}, {{"name": "a", {wrong}}}"#);
        told(&small(&who(r#"{"header": "x"}"#), &routes, r#", "match": {"routes": ["a"]}"#), &["routes[1]"]);
    }
}

#[test]
fn both_hash_keys_are_looked_for() {
    let text = with(r#"{"env": "TOLLGATE_HASH_KEY"}"#, r#"{"env": "UNSET", "previous": {"value": "short"}}"#);
    told(
        &text,
        &["hash_key.env: the environment variable UNSET is not set", "hash_key.previous.value: the secret must"],
    );
}

#[test]
fn a_list_with_a_mistake_is_not_taken_for_a_shorter_one() {
    let text = with("[\"credential\"], \"on_missing\": \"anonymous\"", "[\"credentail\"], \"on_missing\": \"reject\"");
    told(&text, &["policies[1].key[0]: unknown identity \"credentail\""]);
    told(&with("[\"export\"]", "[\"exprt\"]"), &["policies[2].match.routes[0]: unknown route class \"exprt\""]);
}

#[test]
fn plans_that_lack_everything_are_told_everything() {
    let text = small(&who(r#"{"header": "x"}"#), "", r#", "plans": {}"#);
    told(&text, &["policies[0].plans: lacks `by`", "policies[0].plans: lacks plans"]);
}
