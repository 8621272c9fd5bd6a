//! The script in Redis at times that the test sets: clocks that step, idle years, fractions of units, and costs that no
//! bucket can bear. The core has the same tests of its own arithmetic.

use crate::arithmetic::script;
use redis::Script;
use redis::aio::MultiplexedConnection;
use tollgate_core::units::{MAX_PERIOD, MAX_TOKENS};
use tollgate_tests::Redis;

const SECOND: u64 = 1_000_000;
const DAY: u64 = 24 * 3600 * SECOND;

/// What it says: 0, units left; or 1 (later) and 2 (never), units left, and how long to wait.
const fn admitted(left: i64) -> [i64; 3] {
    [0, left, 0]
}

const fn wait(left: i64, micros: i64) -> [i64; 3] {
    [1, left, micros]
}

const fn never(left: i64) -> [i64; 3] {
    [2, left, 0]
}

/// One token bucket.
struct Bucket {
    script: Script,
    connection: MultiplexedConnection,
    /// Capacity, units, and the period in which those come back, in lowest terms.
    numbers: [u64; 3],
    _redis: Redis,
}

impl Bucket {
    async fn new(capacity: u64, units: u64, period: u64) -> Self {
        let redis = Redis::start().await;
        let connection = redis.connect().await;
        Self { script: script(), connection, numbers: [capacity, units, period], _redis: redis }
    }

    async fn ask(&mut self, cost: u64, now: u64) -> [i64; 3] {
        let mut call = self.script.key("key");
        call.arg("take").arg("b").arg(&self.numbers).arg(cost).arg(now);
        let reply: Vec<i64> = call.invoke_async(&mut self.connection).await.expect("a reply");
        reply.try_into().expect("three numbers")
    }

    async fn admits(&mut self, now: u64) -> bool {
        self.ask(1, now).await[0] == 0
    }

    async fn command<T: redis::FromRedisValue>(&mut self, command: &str, arguments: &[&str]) -> T {
        redis::cmd(command).arg(arguments).query_async(&mut self.connection).await.expect("a reply")
    }
}

#[tokio::test]
async fn a_clock_that_steps_back_mints_nothing() {
    // F26 (a)
    let mut bucket = Bucket::new(5, 1, SECOND).await;
    let at = |seconds: u64| seconds * SECOND;
    for left in [4, 3, 2] {
        assert_eq!(bucket.ask(1, at(1000)).await, admitted(left));
    }
    assert_eq!(bucket.ask(1, at(989)).await, admitted(1));
    assert_eq!(bucket.ask(1, at(1000)).await, admitted(0));
    assert_eq!(bucket.ask(1, at(1000)).await, wait(0, 1_000_000));
    assert_eq!(bucket.ask(1, at(1001)).await, admitted(0));
}

#[tokio::test]
async fn a_clock_fault_locks_nobody_out() {
    // F26 (b)
    let mut bucket = Bucket::new(5, 1, SECOND).await;
    assert_eq!(bucket.ask(5, 5000 * SECOND).await, admitted(0));
    assert_eq!(bucket.ask(1, 1000 * SECOND).await, wait(0, 1_000_000));
    assert_eq!(bucket.ask(1, 1001 * SECOND).await, admitted(0));
}

#[tokio::test]
async fn idle_years_and_large_rates_overflow_nothing() {
    // F28
    let mut bucket = Bucket::new(1_000_000, 1, 1).await;
    let start = 1_796_000_000 * SECOND;
    assert_eq!(bucket.ask(1_000_000, start).await, admitted(0));
    assert_eq!(bucket.ask(1, start + 400 * DAY).await, admitted(999_999));
    // Nothing was ever refilled, and it is the year 2100.
    let () = bucket.command("SET", &["key", "b:0:0:1:0"]).await;
    assert_eq!(bucket.ask(1, 4_102_444_800 * SECOND).await, admitted(999_999));
    // The largest numbers, at the end of time.
    bucket.numbers = [MAX_TOKENS, 10, 1];
    let () = bucket.command("SET", &["key", "b:0:0:1:0"]).await;
    assert_eq!(bucket.ask(MAX_TOKENS, (1 << 53) - 1).await, admitted(0));
}

#[tokio::test]
async fn polling_neither_starves_nor_feeds_a_bucket() {
    // F29
    let start = 1_796_000_000 * SECOND;
    for (period, poll, expected) in [(10, SECOND, 4), (10, SECOND / 10, 4), (3, SECOND, 11)] {
        let mut bucket = Bucket::new(1, 1, period * SECOND).await;
        let mut admitted = Vec::new();
        for at in (0..=30 * SECOND).step_by(usize::try_from(poll).expect("a step")) {
            if bucket.admits(start + at).await {
                admitted.push(at);
            }
        }
        assert_eq!(admitted.len(), expected, "1 per {period} s, polled every {poll} µs: {admitted:?}");
        assert!(admitted.iter().all(|at| at % (period * SECOND) == 0), "{admitted:?}");
    }
}

#[tokio::test]
async fn a_cost_above_the_capacity_is_never_admitted_and_spends_nothing() {
    // F32
    let mut bucket = Bucket::new(5, 1, SECOND).await;
    assert_eq!(bucket.ask(6, SECOND).await, never(5));
    assert_eq!(bucket.ask(5, SECOND).await, admitted(0));
}

#[tokio::test]
async fn a_denied_request_spends_nothing_and_pins_nobody() {
    // F33
    let mut bucket = Bucket::new(10, 1, MAX_PERIOD).await;
    let now = 1_796_000_000 * SECOND;
    assert_eq!(bucket.ask(8, now).await, admitted(2));
    let before: i64 = bucket.command("PTTL", &["key"]).await;
    for cost in [3, 5, 10, 11, MAX_TOKENS] {
        let [verdict, left, _] = bucket.ask(cost, now).await;
        assert_eq!((verdict > 0, left), (true, 2), "{cost}");
    }
    let after: i64 = bucket.command("PTTL", &["key"]).await;
    assert!(after <= before, "{after} ms after {before} ms");
    assert_eq!(bucket.ask(2, now).await, admitted(0));
    let empty: i64 = bucket.command("PTTL", &["key"]).await;
    assert!(empty <= 10 * i64::try_from(MAX_PERIOD / 1000).expect("a number") + 1000, "{empty} ms: until it is full");
}
