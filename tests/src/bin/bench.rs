//! `make bench`: what the filter costs, side by side in one run on one machine.
//!
//! One Envoy worker that answers by itself, or is in front of another Envoy that does, and a client that keeps its
//! connections busy. Each row is measured for a few seconds after a warm-up; the ratio is to the same Envoy without the
//! filter.

use serde_json::{Value, json};
use std::time::Duration;
use tollgate_tests::load::{Requests, busy};
use tollgate_tests::{Endpoint, EnvoyBuilder, Redis, config, global, local, tool};

const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(4);
const PLENTY: u64 = 999_999_999_999;
const CALLERS: usize = 64;

/// The module that this row has in the place of ours.
const NOTHING: &str = "a filter that does nothing";

/// And this one has a build of ours without group commit.
const EACH: &str = "the same, a call for each";

/// The upstream's body.
const EXPECTED: &str = "benchmarked";

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (memory, redis) = (Endpoint::start("memory").await, Redis::start().await);
    let on_redis = Endpoint::start(&redis.url()).await;
    let exempt = {
        let mut policy = config(&[local("local", PLENTY, "1/s")]);
        policy["routes"] = json!([{"name": "all", "path": "/**", "exempt": true}]);
        policy
    };
    let keyed = |mut policy: Value| {
        policy["key"] = json!(["credential"]);
        policy
    };
    let one_local = keyed(local("local", PLENTY, "1/s"));
    let mut shadows = vec![one_local.clone()];
    shadows.extend((0..10).map(|number| {
        let mut shadow = keyed(local(&format!("shadow-{number}"), PLENTY, "1/s"));
        shadow["enforce"] = json!("shadow");
        shadow
    }));
    let (local, shadows) = (config(&[one_local]), config(&shadows));
    let mut silent = local.clone();
    silent["responses"] = json!({"ratelimit_headers": "none"});
    let exact = config(&[global("exact", PLENTY, "1/s", json!("closed"))]);
    let mut leased = exact.clone();
    leased["policies"][0]["mode"] = json!("leased");
    let rows = [
        ("no filter", None, memory.address),
        (NOTHING, Some(local.clone()), memory.address),
        ("filter, exempt route", Some(exempt), memory.address),
        ("one local policy", Some(local), memory.address),
        ("the same, no fields", Some(silent), memory.address),
        ("the same, ten in shadow", Some(shadows), memory.address),
        ("one leased policy, memory", Some(leased), memory.address),
        ("one exact policy, memory", Some(exact.clone()), memory.address),
        (EACH, Some(exact.clone()), memory.address),
        ("one exact policy, Redis", Some(exact), on_redis.address),
    ];
    let requests: Requests = (0..CALLERS)
        .map(|number| format!("GET / HTTP/1.1\r\nhost: bench\r\nx-api-key: caller-{number}\r\n\r\n").into_bytes())
        .collect();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    println!("The ratios are to no filter, and to a filter that does nothing. Words name the rows to measure.");
    println!("The processor time is Envoy's, for each request.");
    println!(
        "{:26} {:>11} {:>9} {:>9} {:>9} {:>6} {:>6} {:>7}",
        "", "connections", "req/s", "p50 µs", "p99 µs", "", "", "CPU µs"
    );
    // Another Envoy, whose answers are its own.
    let upstream = EnvoyBuilder::benchmark(None).workers(1).start().await;
    for (is_proxied, connections) in [false, true].into_iter().flat_map(|it| [1, 16, 64].map(|count| (it, count))) {
        let (mut base, mut nothing) = (None, f64::INFINITY);
        println!("{}", if is_proxied { "in front of an upstream" } else { "answered by Envoy itself" });
        for (name, policy, endpoint) in rows.iter().filter(|(name, ..)| is_wanted(name)) {
            let mut envoy = EnvoyBuilder::benchmark(policy.clone()).endpoint(*endpoint).workers(1);
            if is_proxied {
                envoy = envoy.to(upstream.address);
            }
            if *name == NOTHING {
                envoy = envoy.module(tool("NOTHING_WASM"));
            } else if *name == EACH {
                envoy = envoy.module(tool("EACH_WASM"));
            }
            let envoy = envoy.start().await;
            busy(envoy.address, connections, WARM_UP, &requests, EXPECTED).await;
            let used = envoy.process.cpu_time();
            let answers = busy(envoy.address, connections, MEASURED, &requests, EXPECTED).await;
            let used = envoy.process.cpu_time().saturating_sub(used).as_secs_f64() * 1e6 / answers.count() as f64;
            let rate = answers.rate();
            let base = *base.get_or_insert(rate);
            if *name == NOTHING {
                nothing = rate;
            }
            let [p50, p99] = [50.0, 99.0].map(|percent| answers.percentile(percent).as_micros());
            let (ratio, of_nothing) = (rate / base, rate / nothing);
            println!(
                "{name:26} {connections:>11} {rate:>9.0} {p50:>9} {p99:>9} {ratio:>6.2} {of_nothing:>6.2} {used:>7.1}"
            );
        }
    }
}
