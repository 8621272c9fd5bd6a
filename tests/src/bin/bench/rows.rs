//! What is measured beside each other.

use serde_json::{Value, json};
use tollgate_tests::{Endpoint, EnvoyBuilder, Redis, config, global, local, tool};

/// A budget that is never used up. Envoy's own has 32 bits.
const PLENTY: u64 = 4_000_000_000;

/// Callers, each with a budget of its own where a row has one for each.
pub const CALLERS: usize = 64;

/// The row that ratios are told to: what a filter costs that is there and does nothing.
pub const NOTHING: &str = "a filter that does nothing";

/// One way of limiting, or of not limiting.
pub struct Row {
    pub name: &'static str,
    pub envoy: EnvoyBuilder,
}

/// What rows ask, alive as long as this is.
pub struct Endpoints {
    memory: Endpoint,
    on_redis: Endpoint,
    _redis: Redis,
}

impl Endpoints {
    pub async fn start() -> Self {
        let redis = Redis::start().await;
        Self { memory: Endpoint::start("memory").await, on_redis: Endpoint::start(&redis.url()).await, _redis: redis }
    }
}

/// All rows, the one to which the others are compared first.
pub fn rows(endpoints: &Endpoints) -> Vec<Row> {
    let one_local = keyed(local("local", PLENTY, "1/s"));
    let shadows = (0..10).map(|number| {
        let mut shadow = keyed(local(&format!("shadow-{number}"), PLENTY, "1/s"));
        shadow["enforce"] = json!("shadow");
        shadow
    });
    let with_shadows = config(&[one_local.clone()].into_iter().chain(shadows).collect::<Vec<Value>>());
    let local = config(&[one_local]);
    let with = |mut policy: Value, field: &str, value: Value| {
        policy[field] = value;
        policy
    };
    let exempt = with(local.clone(), "routes", json!([{"name": "all", "path": "/**", "exempt": true}]));
    let silent = with(local.clone(), "responses", json!({"ratelimit_headers": "none"}));
    let exact = config(&[global("exact", PLENTY, "1/s", json!("closed"))]);
    let mut leased = exact.clone();
    leased["policies"][0]["mode"] = json!("leased");

    let ours = |policy: &Value| EnvoyBuilder::benchmark(Some(policy.clone()));
    let asks = |policy: &Value| ours(policy).endpoint(endpoints.memory.address);
    [
        ("no filter", EnvoyBuilder::benchmark(None)),
        (NOTHING, ours(&local).module(tool("NOTHING_WASM"))),
        ("Envoy's local rate limit", native(false)),
        ("the same, for each caller", native(true)),
        ("an exempt route", ours(&exempt)),
        ("one local policy", ours(&local)),
        ("the same, no fields", ours(&silent)),
        ("the same, ten in shadow", ours(&with_shadows)),
        ("one leased policy", asks(&leased)),
        ("one exact policy, memory", asks(&exact)),
        ("the same, a call for each", asks(&exact).module(tool("EACH_WASM"))),
        ("one exact policy, Redis", ours(&exact).endpoint(endpoints.on_redis.address)),
    ]
    .into_iter()
    .map(|(name, envoy)| Row { name, envoy })
    .collect()
}

fn keyed(mut policy: Value) -> Value {
    policy["key"] = json!(["credential"]);
    policy
}

/// Envoy's own filter: one bucket for all, or one for each value of the callers' header.
fn native(for_each: bool) -> EnvoyBuilder {
    let bucket = json!({"max_tokens": PLENTY, "tokens_per_fill": 1, "fill_interval": "1s"});
    let on = json!({"default_value": {"numerator": 100, "denominator": "HUNDRED"}});
    let mut filter = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
        "stat_prefix": "native",
        "token_bucket": bucket,
        "filter_enabled": on,
        "filter_enforced": on,
    });
    if for_each {
        filter["max_dynamic_descriptors"] = json!(2 * CALLERS);
        filter["descriptors"] = json!([{"entries": [{"key": "caller"}], "token_bucket": bucket}]);
        filter["rate_limits"] = json!([{"actions": [
            {"request_headers": {"header_name": "x-api-key", "descriptor_key": "caller"}}]}]);
    }
    EnvoyBuilder::benchmark(None).filter_before("envoy.filters.http.local_ratelimit", filter)
}
