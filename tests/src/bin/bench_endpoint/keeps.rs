//! What an idle key costs: in the memory store, until it is forgotten, and in Redis.

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tollgate_tests::{Endpoint, Redis, spend_from};

const IN_MEMORY: usize = 1_000_000;
const IN_REDIS: usize = 100_000;

/// When an untouched bucket is full again: longer than it takes to fill the store.
const FULL_AFTER: Duration = Duration::from_secs(10);

/// After that, how long the store may take to come to each of its parts.
const SEARCHED: Duration = Duration::from_secs(18);

pub async fn measure() {
    tokio::join!(memory(), redis());
}

async fn memory() {
    let endpoint = Endpoint::start_with(&["--memory-keys", &(2 * IN_MEMORY).to_string()]).await;
    let mebibytes = || endpoint.process.resident() as f64 / f64::from(1 << 20);
    let empty = mebibytes();
    let rate =
        json!({"capacity": 1, "refill": 1, "per_us": u64::try_from(FULL_AFTER.as_micros()).expect("not so long")});
    spend_from(endpoint.address, IN_MEMORY, &json!({"token_bucket": rate})).await;
    let start = Instant::now();
    let full = mebibytes();
    tokio::time::sleep_until((start + FULL_AFTER + SEARCHED).into()).await;
    let forgotten = mebibytes();
    println!(
        "memory store: {empty:.0} MiB when started, {full:.0} MiB with {IN_MEMORY} idle keys ({:.0} bytes each), \
         {forgotten:.0} MiB when they are forgotten",
        (full - empty) * f64::from(1 << 20) / IN_MEMORY as f64
    );
}

async fn redis() {
    let redis = Redis::start().await;
    let endpoint = Endpoint::start_with(&["--store", &redis.url(), "--store-timeout", "5s"]).await;
    for (name, limit) in limits() {
        let before = redis.used_memory().await;
        spend_from(endpoint.address, IN_REDIS, &limit).await;
        let used = redis.used_memory().await - before;
        println!("Redis: {:4.0} bytes a key of {name}", used as f64 / IN_REDIS as f64);
        redis.flush().await;
    }
}

/// One limit of each algorithm; a key of it lasts for an hour.
fn limits() -> [(&'static str, Value); 5] {
    let rate = json!({"capacity": 1000, "refill": 1, "per_us": 3_600_000_000_u64});
    let window = json!({"capacity": 1000, "window_us": 3_600_000_000_u64});
    [
        ("token_bucket", json!({"token_bucket": rate})),
        ("gcra", json!({"gcra": rate})),
        ("fixed_window", json!({"fixed_window": window})),
        ("sliding_window", json!({"sliding_window": window})),
        ("sliding_log with one entry", json!({"sliding_log": window})),
    ]
}
