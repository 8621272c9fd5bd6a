//! Configurations: a few policies, and how they change.

use crate::random::Random;
use serde_json::{Value, json};
use tollgate_core::units::Micros;

/// What a dear request costs.
const DEAR: u64 = 3;

/// One configuration, or several that differ in their numbers.
pub fn configs(timeout: Micros, random: &mut Random) -> Vec<String> {
    let count = if random.once_in(3) { random.between(2, 3) } else { 1 };
    let breaker = random.pick(&[None, Some((1, 10, 100)), Some((3, 1_000, 2_000))]);
    let in_flight = random.pick(&[2, 16, 256]);
    let mut policies = policies(random);
    let mut configs = Vec::new();
    for version in 0..count {
        if version > 0 {
            policies.iter_mut().for_each(|policy| change(policy, random));
        }
        configs.push(config(version, timeout, breaker, in_flight, &policies).to_string());
    }
    configs
}

fn config(
    version: u64,
    timeout: Micros,
    breaker: Option<(u64, u64, u64)>,
    in_flight: u64,
    policies: &[Value],
) -> Value {
    let is_global = policies.iter().any(|policy| policy["scope"] == "global");
    let used = |name: &str| {
        policies.iter().any(|policy| policy["key"].as_array().is_some_and(|key| key.contains(&json!(name))))
    };
    let mut all = json!({
        "version": format!("{version}"),
        "hash_key": {"value": "of every simulated proxy"},
        "identities": {},
        "routes": [{"name": "dear", "path": "/dear", "cost": DEAR}, {"name": "health", "path": "/health", "exempt": true}],
        "policies": policies,
    });
    if used("tenant") {
        all["identities"]["tenant"] = json!({"sources": [{"header": "x-tenant"}]});
    }
    if used("client") {
        all["identities"]["client"] = json!({"sources": [{"client_address": {}}]});
    }
    if is_global {
        all["endpoint"] = json!({"cluster": "tollgate", "timeout": timeout.to_string(), "max_in_flight": in_flight});
        all["endpoint"]["breaker"] = breaker.map_or(json!("none"), |(failures, within, open_for)| {
            json!({"failures": failures, "within": format!("{within}ms"), "open_for": format!("{open_for}ms")})
        });
    }
    all
}

/// With the one policy `guard`.
#[cfg(test)]
pub fn config_of_guard() -> tollgate_core::policy::PolicySet {
    let limit = limit(&mut Random::new(0));
    let guard = json!({"name": "guard", "scope": "local", "key": ["client"], "limit": limit});
    let config = config(0, Micros::from_secs(1), None, 1, &[guard]).to_string();
    tollgate_core::policy::PolicySet::read(config.as_bytes(), &|_| None).expect("it is right")
}

fn policies(random: &mut Random) -> Vec<Value> {
    let mut all = Vec::new();
    if random.once_in(2) {
        let (sharing, charge) = (random.pick(&["proxy", "worker"]), random.pick(&["admitted", "always"]));
        let mut guard = json!({
            "name": "guard", "scope": "local", "key": ["client"], "sharing": sharing, "charge": charge,
            "limit": limit(random),
        });
        if random.once_in(4) {
            guard["plans"] = json!({"by": {"header": "x-plan"}, "gold": limit(random)});
        }
        all.push(guard);
    }
    if random.once_in(4) {
        all.push(json!({"name": "whole-proxy", "scope": "local", "limit": limit(random)}));
    }
    let count = random.between(u64::from(all.is_empty()), 3) as usize;
    for (name, key) in [("tenant", json!(["tenant"])), ("everybody", json!([])), ("route", json!(["tenant", "route"]))]
        .into_iter()
        .take(count)
    {
        let mut policy = json!({
            "name": name, "scope": "global", "mode": "exact", "key": key, "limit": limit(random),
        });
        policy["on_failure"] = match random.below(3) {
            0 => json!("open"),
            1 => json!("closed"),
            _ => json!({"local": limit(random)}),
        };
        if random.once_in(2) {
            lease(&mut policy, random);
            if random.once_in(4) {
                policy["plans"] = json!({"by": {"header": "x-plan"}, "gold": lent_limit(random)});
            }
        } else if random.once_in(3) {
            policy["lost_state"] = "learn".into();
        } else if random.once_in(4) {
            policy["plans"] = json!({"by": {"header": "x-plan"}, "gold": limit(random)});
        }
        if random.once_in(6) {
            policy["enforce"] = random.pick(&["shadow", "50%"]).into();
        }
        all.push(policy);
    }
    all
}

const LENT_CAPACITIES: [u64; 4] = [5, 20, 100, 400];

const LENT_REFILLS: [&str; 5] = ["1/s", "20/s", "200/s", "1000/s", "7/10s"];

/// Some are large enough for leases, and some stay exact by themselves.
fn lease(policy: &mut Value, random: &mut Random) {
    policy["limit"] = lent_limit(random);
    policy["mode"] = "leased".into();
    policy["sharing"] = random.pick(&["proxy", "worker"]).into();
    policy["lost_state"] = random.pick(&["learn", "full"]).into();
}

fn lent_limit(random: &mut Random) -> Value {
    let capacity = random.pick(&LENT_CAPACITIES);
    let refill = random.pick(&LENT_REFILLS);
    json!({"token_bucket": {"capacity": capacity, "refill": refill}})
}

fn limit(random: &mut Random) -> Value {
    let most = random.pick(&[4, 10, 40]);
    let capacity = random.between(DEAR, most);
    let per = random.pick(&["s", "100ms", "10s", "7ms"]);
    json!({"token_bucket": {"capacity": capacity, "refill": format!("{}/{per}", random.between(1, 20))}})
}

/// Another limit, here and there.
fn change(policy: &mut Value, random: &mut Random) {
    let is_lent = policy["mode"] == "leased";
    if is_lent && random.once_in(2) {
        policy["limit"]["token_bucket"]["capacity"] = random.pick(&LENT_CAPACITIES).into();
    }
    if is_lent && random.once_in(2) {
        policy["limit"]["token_bucket"]["refill"] = random.pick(&LENT_REFILLS).into();
    } else if !is_lent && random.once_in(2) {
        policy["limit"] = limit(random);
    }
    if is_lent && random.once_in(3) {
        policy["mode"] = "exact".into();
        policy.as_object_mut().map(|policy| policy.remove("sharing"));
    } else if !is_lent && policy["scope"] == "global" && policy["plans"].is_null() && random.once_in(6) {
        policy["mode"] = "leased".into();
        if policy["lost_state"].is_null() {
            policy["lost_state"] = "full".into();
        }
    }
    if policy["on_failure"].is_object() && random.once_in(2) {
        policy["on_failure"]["local"] = limit(random);
    }
    if policy["plans"].is_object() && random.once_in(2) {
        policy["plans"]["gold"] = if is_lent { lent_limit(random) } else { limit(random) };
    }
}
