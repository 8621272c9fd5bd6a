//! What people write by mistake elsewhere: told, and never taken for no limit.

use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const CAPACITY: &str = "policies[0].limit.token_bucket.capacity: ";

fn of(capacity: &str) -> String {
    format!(
        r#"{{"policies": [{{"name": "p", "scope": "local",
             "limit": {{"token_bucket": {{"capacity": {capacity}, "refill": "1/s"}}}}}}]}}"#
    )
}

#[test]
fn a_capacity_is_a_whole_number_that_is_at_least_one() {
    // F31
    for odd in ["0", "-1", "1.5", "null", "\"10\"", "\"\"", "true", "[10]", "{}", "-0.0", "1e12", "1e300", "\".nan\""] {
        let found = errors(&of(odd));
        assert!(found.starts_with(CAPACITY) && found.lines().count() == 1, "{odd}: {found}");
    }
    for odd in ["NaN", "Infinity", "0x10", "010", "+10", "10_000", ""] {
        assert!(errors(&of(odd)).starts_with("not valid JSON"), "{odd}");
    }
    let lacking = of("10").replacen("\"capacity\": 10, ", "", 1);
    assert_eq!(errors(&lacking), "policies[0].limit.token_bucket: lacks `capacity`: the most units at once");
    for whole in ["1000", "1e3", "1000.0"] {
        assert_eq!(limit(&read(&of(whole)), 0).capacity().count(), 1000, "{whole}");
    }
}

#[test]
fn a_refill_is_never_nothing_and_no_word_is_nothing_by_accident() {
    // F31: no limit and no pass are words, and no numbers.
    let text = |refill: &str| format!("\"{refill}\"");
    let refills = ["0/s", "-1/s", "0.5/s", "1/0s", "1/-1s", "/s", "1/", "", "inf/s", "nan/s", "1e3/s"].map(text);
    for refill in refills.into_iter().chain(["0", "5", "null", "true", "{}"].map(String::from)) {
        let found = errors(&of("10").replacen("\"1/s\"", &refill, 1));
        assert!(found.starts_with("policies[0].limit.token_bucket.refill: "), "{refill}: {found}");
    }
    for word in ["none", "off", "0", "infinite", "null", ""] {
        let text =
            of("10").replacen(r#"{"token_bucket": {"capacity": 10, "refill": "1/s"}}"#, &format!("\"{word}\""), 1);
        assert!(errors(&text).starts_with("policies[0].limit: unknown limit"), "{word}");
    }
}

/// A number that JSON has none of reaches a policy as Envoy hands YAML on.
#[test]
fn no_number_of_a_struct_is_taken_for_another() {
    // F31
    let name = |name: &str| [&[1 << 3 | 2, u8::try_from(name.len()).unwrap()], name.as_bytes()].concat();
    let field = |field: u8, content: &[u8]| [&[field << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat();
    let entry = |key: &str, value: &[u8]| field(1, &[name(key), field(2, value)].concat());
    let text = |text: &str| field(3, text.as_bytes());
    let map = |entries: &[Vec<u8>]| field(5, &entries.concat());
    let with_capacity = |number: f64| {
        let capacity = [&[2 << 3 | 1][..], &number.to_le_bytes()].concat();
        let limit = map(&[entry("capacity", &capacity), entry("refill", &text("1/s"))]);
        let policy = map(&[
            entry("name", &text("p")),
            entry("scope", &text("local")),
            entry("limit", &map(&[entry("token_bucket", &limit)])),
        ]);
        PolicySet::read(&entry("policies", &field(6, &field(1, &policy))), &env)
    };
    assert_eq!(limit(&with_capacity(10.0).unwrap(), 0).capacity().count(), 10);
    for odd in [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, -10.0, 0.1, 1e12, 1e19, 1e300, 5e-324]
    {
        let found = with_capacity(odd).map(|_| ()).expect_err("an error").to_string();
        assert!(found.starts_with(CAPACITY), "{odd}: {found}");
    }
}

#[test]
fn what_is_misspelled_is_told_with_the_nearest_name_and_nothing_is_half_loaded() {
    // F69
    for (from, to, expected) in [
        ("\"policies\"", "\"polices\"", "polices: unknown field \"polices\": did you mean \"policies\"?"),
        ("\"refill\": \"5/s\"", "\"refil\": \"5/s\"", "refil: unknown field \"refil\": did you mean \"refill\"?"),
        (
            "\"on_failure\": \"closed\"",
            "\"on_failure\": \"opne\"",
            "unknown fail mode \"opne\": did you mean \"open\"?",
        ),
        ("\"on_failure\": \"closed\"", "\"fail_mode\": \"open\"", "policies[2].fail_mode: unknown field \"fail_mode\""),
        ("\"mode\": \"exact\"", "\"Shadow\": true", "policies[1].Shadow: unknown field \"Shadow\""),
        ("\"scope\"", "\"Scope\"", "policies[0].Scope: unknown field \"Scope\": did you mean \"scope\"?"),
        ("\"key\": [\"credential\"]", "\"key\": [\"x-api-key\"]", "policies[1].key[0]: unknown identity \"x-api-key\""),
        ("\"name\": \"exports\"", "\"name\": \"guard\"", "the name \"guard\" is taken"),
        ("\"charge\": \"always\"", "\"key\": []", "policies[0].key: is there twice"),
        (
            "{\"header\": \"X-Api-Key\"}",
            "{\"header\": \"X-Api-Key\"}, {\"header\": \"x-api-key\"}",
            "identities.credential.sources[1]: is in the list already",
        ),
        (
            "\"limit\": {\"token_bucket\": {\"capacity\": 2,",
            "\"limit\": {\"token_bucket\": {\"capacity\": -2,",
            "policies[2].",
        ),
    ] {
        let found = errors(&with(from, to));
        assert!(found.contains(expected), "{from} -> {to}\n  expected {expected}\n  found    {found}");
    }
    for nothing in ["", "\n", "{}", "policies:\n\t- {name: a}", r#"{"policies": []}"#, r#"{"policies": null}"#, "null"]
    {
        assert!(PolicySet::read(nothing.as_bytes(), &env).is_err(), "{nothing:?}");
    }
}

#[test]
fn a_month_and_a_day_are_no_spans_of_a_rate() {
    // F35
    for (refill, expected) in [
        (
            "1000/month",
            "\"1000/month\" is not a rate: write units per time, such as 5/s, 100/min or 1/30d; only fixed_window",
        ),
        ("24/day", "\"24/day\" is not a rate"),
        ("1/year", "\"1/year\" is not a rate"),
        ("1000/31d", "the period must be between 1 microsecond and 30 days"),
    ] {
        let found = errors(&of("10").replacen("1/s", refill, 1));
        assert!(found.contains(expected), "{refill}: {found}");
    }
    let Limit::TokenBucket(bucket) = limit(&read(&of("10").replacen("1/s", "1000/30d", 1)), 0) else {
        panic!("a bucket")
    };
    assert_eq!(bucket.refill.period() / bucket.refill.tokens(), 30 * 86_400_000_000 / 1000);
}

#[test]
fn what_can_never_be_admitted_or_never_be_reached_is_an_error() {
    // F25, F32
    for (from, to, expected) in [
        ("\"cost\": 5", "\"cost\": 21", "policies[1].limit: the capacity 20 is below the cost 21 of the route class"),
        ("\"/healthz\"", "\"/**\"", "routes[1]: no request reaches the route class \"reports\": \"health\" before it"),
        ("\"/v1/export/**\"", "\"/healthz/\"", "routes[2]: no request reaches the route class \"export\""),
        ("[\"export\"]", "[\"health\"]", "policies[2].match.routes[0]: the route class \"health\" is exempt"),
    ] {
        let found = errors(&with(from, to));
        assert!(found.contains(expected), "{from} -> {to}\n  expected {expected}\n  found    {found}");
    }
}
