//! Plans: several limits that spend from one bucket, and never more than the most generous of them.

use super::*;
use crate::limit::{State, TokenBucket, Verdict};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// A global policy with a limit, and with plans for who sends `x-plan`.
fn planned(limit: &str, plans: &[&str]) -> String {
    let plans: Vec<String> = (0..).zip(plans).map(|(number, plan)| format!(r#", "{number}": {plan}"#)).collect();
    format!(
        r#"{{"hash_key": {{"value": "{SECRET}"}}, "endpoint": {{"cluster": "c"}}, "policies": [{{"name": "p",
             "scope": "global", "limit": {limit}, "on_failure": {{"local": {{"token_bucket": {{"capacity": 7, "refill": "1/s"}}}}}},
             "plans": {{"by": {{"header": "x-plan"}}{}}}}}]}}"#,
        plans.concat()
    )
}

fn bucket(capacity: u64, refill: &str) -> String {
    format!(r#"{{"token_bucket": {{"capacity": {capacity}, "refill": "{refill}"}}}}"#)
}

/// The limit of a caller with that plan, as it is asked for.
fn limit_of(set: &PolicySet, plan: &str) -> Limit {
    set.plan(&Request::get("/").with("x-plan", plan)).charges[0].limit
}

#[test]
fn every_bucket_of_a_policy_is_kept_as_long_as_the_slowest_takes_to_fill() {
    let set = read(&planned(&bucket(10, "1/s"), &[&bucket(1000, "10/s"), &bucket(5, "1000/s"), "\"unlimited\""]));
    for plan in ["", "0", "1", "nobody knows it"] {
        let Limit::TokenBucket(TokenBucket { keep, .. }) = limit_of(&set, plan) else { panic!("a token bucket") };
        assert_eq!(keep, Micros::from_secs(100), "{plan:?}");
    }
    let Scope::Global { on_failure: FailMode::Local(emergency), .. } = &set.policies()[0].scope else {
        panic!("global")
    };
    assert_eq!(emergency.keep, Micros::ZERO, "it has one limit");
    let Limit::TokenBucket(alone) = limit(&read(FULL), 0) else { panic!("a token bucket") };
    assert_eq!(alone.keep, Micros::ZERO);
}

#[test]
fn limits_that_cannot_share_a_bucket_are_no_plans_of_one_policy() {
    let gcra = |burst: u64, rate: &str| format!(r#"{{"gcra": {{"burst": {burst}, "rate": "{rate}"}}}}"#);
    let window = |kind: &str, capacity: u64, window: &str| {
        format!(r#"{{"{kind}": {{"capacity": {capacity}, "window": "{window}"}}}}"#)
    };
    let month = r#"{"fixed_window": {"capacity": 9, "window": "month", "time_zone": "Europe/Berlin"}}"#.to_string();
    let utc = month.replace("Europe/Berlin", "UTC");
    let equally = "the gcras of one policy take equally long to earn their bursts";
    let one_window = "the limits of one policy have one window, and differ in the capacity alone";
    let one_algorithm = "the limits of one policy are of one algorithm";
    for (limit, plan, reason) in [
        (bucket(10, "1/s"), bucket(1000, "1/30d"), None),
        (gcra(10, "1/s"), gcra(1000, "100/s"), None),
        (gcra(10, "1/s"), gcra(1000, "99/s"), Some(equally)),
        (gcra(999_999_999_999, "1/30d"), gcra(999_999_999_998, "1/30d"), Some(equally)),
        (window("fixed_window", 5, "1m"), window("fixed_window", 50, "60s"), None),
        (window("fixed_window", 5, "1m"), window("fixed_window", 5, "1h"), Some(one_window)),
        (window("sliding_window", 5, "1m"), window("sliding_window", 50, "1m"), None),
        (window("sliding_window", 5, "1m"), window("sliding_window", 5, "61s"), Some(one_window)),
        (window("sliding_log", 5, "1m"), window("sliding_log", 50, "1m"), None),
        (window("sliding_log", 5, "1m"), window("sliding_log", 5, "1h"), Some(one_window)),
        (month.clone(), month.replace('9', "99"), None),
        (month.clone(), utc, Some(one_window)),
        (month, window("fixed_window", 5, "30d"), Some(one_window)),
        (gcra(10, "1/s"), bucket(10, "1/s"), Some(one_algorithm)),
        ("\"deny\"".into(), bucket(10, "1/s"), None),
    ] {
        let text = planned(&limit, &[&plan, "\"unlimited\""]);
        match reason {
            None => drop(read(&text)),
            Some(reason) => {
                let found = errors(&text);
                assert!(found.starts_with("policies[0].plans.0: ") && found.contains(reason), "{found}");
            }
        }
    }
    // Of plans only, the first that has a limit is what the others are held against.
    let found = errors(&planned("\"deny\"", &["\"unlimited\"", &gcra(10, "1/s"), &gcra(10, "2/s")]));
    assert!(found.starts_with("policies[0].plans.2: the gcras"), "{found}");
}

#[test]
fn there_can_be_64_plans() {
    let plan = bucket(10, "1/s");
    let plans = |count: usize| planned(&plan, &vec![plan.as_str(); count]);
    read(&plans(64));
    assert_eq!(errors(&plans(65)), "policies[0].plans: must have at most 64 plans, has 65");
}

/// What a store does for one key, whose limit is another with every request: what says nothing anymore is forgotten.
#[derive(Default)]
struct Stored(Option<(State, Micros)>);

impl Stored {
    fn admits(&mut self, limit: &Limit, cost: Tokens, now: Micros) -> bool {
        let stored = self.0.take().filter(|(_, full_at)| *full_at > now).map(|(state, _)| state);
        let mut state = limit.advance(stored.as_ref(), now).expect("a state of this algorithm");
        let admits = limit.check(&state, cost, now) == Verdict::Admit;
        if admits {
            limit.spend(&mut state, cost, now);
        }
        let full_at = limit.full_at(&state, now);
        self.0 = Some((state, full_at));
        admits
    }
}

#[test]
fn one_request_under_a_plan_that_fills_at_once_does_not_fill_another() {
    let set = read(&planned(&bucket(1000, "1/30d"), &[&bucket(1, "1000/s")]));
    let (slow, fast) = (limit_of(&set, ""), limit_of(&set, "0"));
    let units = |count| Tokens::new(count).unwrap();
    let (mut stored, mut now) = (Stored::default(), Micros::from_secs(1_000_000));
    assert!(stored.admits(&slow, units(1000), now));
    for _ in 0..10 {
        now = now.plus(Micros::from_secs(1));
        assert!(stored.admits(&fast, Tokens::ONE, now), "the fast plan is what it says");
        now = now.plus(Micros::from_secs(1));
        assert!(!stored.admits(&slow, units(2), now), "and brings no more than it holds");
    }
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000;

    /// What is admitted of requests that each have a plan, a cost, and a time since the one before: when, and the cost.
    fn admitted(set: &PolicySet, requests: Vec<(usize, u64, u64)>) -> Vec<(u64, u64)> {
        let (mut stored, mut now, mut admitted) = (Stored::default(), 1_000_000 * SECOND, Vec::new());
        for (plan, cost, gap) in requests {
            now += gap;
            let limit = limit_of(set, &plan.wrapping_sub(1).to_string());
            if stored.admits(&limit, Tokens::new(cost).unwrap(), Micros::new(now)) {
                admitted.push((now, cost));
            }
        }
        admitted
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// In every window at most C + r·d, with the capacity and the refill of the most generous plan, however the
        /// plan is changed. (With GCRA all of them take one time to earn their burst.)
        #[test]
        fn no_change_of_plan_admits_more_than_the_most_generous_plan(
            gcra in any::<bool>(),
            numbers in prop::collection::vec((1u64..40, 1u64..30), 2..5),
            steps in prop::collection::vec((0usize..4, 1u64..40, 0u64..8 * SECOND), 1..60),
        ) {
            let limit = |(capacity, refill): &(u64, u64)| match gcra {
                true => format!(r#"{{"gcra": {{"burst": {capacity}, "rate": "{capacity}/5s"}}}}"#),
                false => bucket(*capacity, &format!("{refill}/10s")),
            };
            let limits: Vec<String> = numbers.iter().map(limit).collect();
            let plans: Vec<&str> = limits.iter().map(String::as_str).collect();
            let set = read(&planned(plans[0], &plans[1..]));
            let most = numbers.iter().map(|(capacity, _)| *capacity).max().unwrap();
            // Of ten seconds.
            let refill = if gcra { 2 * most } else { numbers.iter().map(|(_, refill)| *refill).max().unwrap() };
            let admitted = admitted(&set, steps);
            for (index, (start, _)) in admitted.iter().enumerate() {
                let mut sum = 0;
                for (at, cost) in &admitted[index..] {
                    sum += cost;
                    prop_assert!(sum * 10 * SECOND <= most * 10 * SECOND + refill * (at - start), "{:?}", admitted);
                }
            }
        }

        /// No window has more than the greatest capacity, however the plan is changed.
        #[test]
        fn no_change_of_plan_brings_a_window_more_than_the_greatest_capacity(
            log in any::<bool>(),
            capacities in prop::collection::vec(1u64..40, 2..5),
            steps in prop::collection::vec((0usize..4, 1u64..40, 0u64..8 * SECOND), 1..60),
        ) {
            let kind = if log { "sliding_log" } else { "fixed_window" };
            let limit = |capacity: &u64| format!(r#"{{"{kind}": {{"capacity": {capacity}, "window": "10s"}}}}"#);
            let limits: Vec<String> = capacities.iter().map(limit).collect();
            let plans: Vec<&str> = limits.iter().map(String::as_str).collect();
            let set = read(&planned(plans[0], &plans[1..]));
            let most = *capacities.iter().max().unwrap();
            let admitted = admitted(&set, steps);
            for (start, _) in &admitted {
                let start = if log { *start } else { start - start % (10 * SECOND) };
                let within = admitted.iter().filter(|(at, _)| (start..start + 10 * SECOND).contains(at));
                prop_assert!(within.map(|(_, cost)| cost).sum::<u64>() <= most, "{:?}", admitted);
            }
        }
    }
}
