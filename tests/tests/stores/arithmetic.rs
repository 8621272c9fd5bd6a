//! The script in Redis and the core compute the same numbers, to the last microsecond and unit.
//!
//! The script is run as shipped but for its clock, which the test sets.

use redis::Script;
use tollgate_core::token_bucket::{Balance, TokenBucket, Verdict};
use tollgate_core::units::{MAX_PERIOD, MAX_TOKENS, Micros, RefillRate, Tokens};
use tollgate_tests::Redis;

const SHIPPED: &str = include_str!("../../../src/server/src/store/token_bucket.lua");
const CLOCK: &str = "local clock = redis.call('TIME')\nlocal now = clock[1] * 1000000 + clock[2]\n";

/// Small, repeatable, and good enough to choose test cases.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Between 1 and `most`: small as often as large, and often at a bound.
    fn upto(&mut self, most: u64) -> u64 {
        match self.next() % 8 {
            0 => 1,
            1 => most,
            2 => most - self.next() % most.min(3),
            3 | 4 => 1 + self.next() % most.min(100),
            _ => 1 + (self.next() >> (self.next() % 60)) % most,
        }
    }

    fn limit(&mut self) -> TokenBucket {
        let capacity = Tokens::new(self.upto(MAX_TOKENS)).expect("within bounds");
        loop {
            let (tokens, period) = (self.upto(MAX_TOKENS), Micros::new(self.upto(MAX_PERIOD)));
            if let Ok(refill) = RefillRate::new(tokens, period) {
                return TokenBucket { capacity, refill };
            }
        }
    }
}

/// What the core says, as the script does: verdict, units left, wait.
fn step(limit: &TokenBucket, stored: &mut Option<Balance>, cost: Tokens, now: Micros) -> [i64; 3] {
    let mut balance = limit.refill(*stored, now);
    let verdict = limit.check(&balance, cost, now);
    let mended = stored.is_some_and(|stored| TokenBucket::mended(&stored, &balance));
    if verdict == Verdict::Admit {
        balance.spend(cost);
    }
    if verdict == Verdict::Admit || mended {
        *stored = Some(balance);
    }
    let number = |n: u64| i64::try_from(n).expect("below 2^53");
    match verdict {
        Verdict::Admit => [0, number(balance.tokens), 0],
        Verdict::Wait(wait) => [1, number(balance.tokens), number(wait.count())],
        Verdict::Never => [2, number(balance.tokens), 0],
    }
}

#[tokio::test]
async fn the_script_and_the_core_agree_step_by_step() {
    const BUCKETS: u64 = 2_000;
    const STEPS: u64 = 12;
    assert_eq!(SHIPPED.matches(CLOCK).count(), 1, "the script's clock");
    let script = Script::new(&SHIPPED.replace(CLOCK, "local now = tonumber(ARGV[#ARGV])\n"));
    let redis = Redis::start().await;
    let mut connection = redis.connect().await;
    let mut random = Random(0x2026_1202);
    let mut verdicts = [0; 3];
    for bucket in 0..BUCKETS {
        let mut limit = random.limit();
        let mut stored = None;
        // Microseconds since 1970, in 2026 or at the far end of what a double holds.
        let mut now = if bucket % 10 == 0 { Micros::MAX.count() - (1 << 40) } else { 1_796_000_000_000_000 };
        for at in 0..STEPS {
            match random.next() % 8 {
                0 => now -= random.upto(200_000_000).min(now),
                1 => now = (now + random.upto(1 << 40)).min(Micros::MAX.count()),
                2 | 3 => {}
                _ => now = (now + random.upto(5_000_000)).min(Micros::MAX.count()),
            }
            if random.next().is_multiple_of(16) {
                limit = random.limit();
            }
            let cost = if random.next().is_multiple_of(4) {
                random.upto(MAX_TOKENS)
            } else {
                random.upto(limit.capacity.count())
            };
            let cost = Tokens::new(cost).expect("within bounds");
            let expected = step(&limit, &mut stored, cost, Micros::new(now));
            let found: Vec<i64> = script
                .key(format!("bucket {bucket}"))
                .arg(limit.capacity.count())
                .arg(limit.refill.tokens())
                .arg(limit.refill.period())
                .arg(cost.count())
                .arg(now)
                .invoke_async(&mut connection)
                .await
                .expect("a reply");
            assert_eq!(found, expected, "bucket {bucket}, step {at}: {limit:?} {cost:?} at {now}, before {stored:?}");
            verdicts[usize::try_from(expected[0]).expect("a verdict")] += 1;
        }
    }
    println!("admitted, denied, never: {verdicts:?}");
    assert!(verdicts.iter().all(|count| *count > 1000), "every verdict was tried: {verdicts:?}");
}
