//! The script in Redis and the core compute the same numbers, to the last microsecond and unit.
//!
//! The script is run as shipped but for its clock, which the test sets.

use redis::Script;
use tollgate_core::limit::{FixedWindow, Gcra, Limit, MAX_LOG, SlidingLog, SlidingWindow, State, TokenBucket, Verdict};
use tollgate_core::units::{MAX_PERIOD, MAX_TOKENS, Micros, RefillRate, Tokens};
use tollgate_tests::Redis;

const SHIPPED: &str = include_str!("../../../src/server/src/store/limits.lua");
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

    /// A limit of the algorithm with this letter, and its numbers as the script takes them.
    fn limit(&mut self, letter: char) -> (Limit, [u64; 3]) {
        let capacity = self.upto(if letter == 'l' { MAX_LOG } else { MAX_TOKENS });
        let tokens = Tokens::new(capacity).expect("within bounds");
        if matches!(letter, 'b' | 'g') {
            loop {
                let (units, period) = (self.upto(MAX_TOKENS), Micros::new(self.upto(MAX_PERIOD)));
                let Ok(rate) = RefillRate::new(units, period) else { continue };
                let limit = match letter {
                    'b' => Limit::TokenBucket(TokenBucket { capacity: tokens, refill: rate }),
                    _ => Limit::Gcra(Gcra { burst: tokens, rate }),
                };
                return (limit, [capacity, rate.tokens(), rate.period()]);
            }
        }
        let most = if self.next().is_multiple_of(2) { 5_000_000 } else { MAX_PERIOD };
        let window = Micros::new(self.upto(most));
        let limit = match letter {
            'f' => Limit::FixedWindow(FixedWindow { capacity: tokens, window }),
            's' => Limit::SlidingWindow(SlidingWindow { capacity: tokens, window }),
            _ => Limit::SlidingLog(SlidingLog { capacity: tokens, window }),
        };
        (limit, [capacity, window.count(), 0])
    }
}

/// What the core says, as the script does: verdict, units left, wait.
fn step(limit: &Limit, stored: &mut Option<State>, cost: Tokens, now: Micros) -> [i64; 3] {
    let mut state = limit.advance(stored.as_ref(), now).expect("one algorithm");
    let verdict = limit.check(&state, cost, now);
    let mended = stored.as_ref().is_some_and(|stored| Limit::mended(stored, &state));
    if verdict == Verdict::Admit {
        limit.spend(&mut state, cost, now);
    }
    let number = |n: u64| i64::try_from(n).expect("below 2^53");
    let left = number(limit.remaining(&state, now));
    if verdict == Verdict::Admit || mended {
        *stored = Some(state);
    }
    match verdict {
        Verdict::Admit => [0, left, 0],
        Verdict::Wait(wait) => [1, left, number(wait.count())],
        Verdict::Never => [2, left, 0],
    }
}

async fn agree(letter: char) {
    const KEYS: u64 = 1_500;
    const STEPS: u64 = 12;
    assert_eq!(SHIPPED.matches(CLOCK).count(), 1, "the script's clock");
    let script = Script::new(&SHIPPED.replace(CLOCK, "local now = tonumber(table.remove(ARGV))\n"));
    let redis = Redis::start().await;
    let mut connection = redis.connect().await;
    let mut random = Random(0x2026_1202 + u64::from(u32::from(letter)));
    let mut verdicts = [0; 3];
    for key in 0..KEYS {
        let (mut limit, mut numbers) = random.limit(letter);
        let mut stored = None;
        // Microseconds since 1970, in 2026 or at the far end of what a double holds (in 2255), where a window still ends.
        let end = Micros::MAX.count() - if matches!(letter, 'b' | 'g') { 0 } else { 2 * MAX_PERIOD };
        let mut now = if key % 10 == 0 { end - (1 << 40) } else { 1_796_000_000_000_000 };
        for at in 0..STEPS {
            match random.next() % 8 {
                0 => now -= random.upto(200_000_000).min(now),
                1 => now = (now + random.upto(1 << 40)).min(Micros::MAX.count()),
                2 | 3 => {}
                _ => now = (now + random.upto(5_000_000)).min(Micros::MAX.count()),
            }
            if random.next().is_multiple_of(16) {
                (limit, numbers) = random.limit(letter);
            }
            let most = if random.next().is_multiple_of(4) { MAX_TOKENS } else { limit.capacity().count() };
            let cost = Tokens::new(random.upto(most)).expect("within bounds");
            let before = stored.clone();
            let expected = step(&limit, &mut stored, cost, Micros::new(now));
            let found: Vec<i64> = script
                .key(format!("key {key}"))
                .arg("take")
                .arg(letter.to_string())
                .arg(&numbers)
                .arg(cost.count())
                .arg(now)
                .invoke_async(&mut connection)
                .await
                .expect("a reply");
            assert_eq!(found, expected, "key {key}, step {at}: {limit:?} {cost:?} at {now}, before {before:?}");
            verdicts[usize::try_from(expected[0]).expect("a verdict")] += 1;
        }
    }
    println!("{letter}: admitted, denied, never: {verdicts:?}");
    assert!(verdicts.iter().all(|count| *count > 1000), "every verdict was tried: {verdicts:?}");
}

#[tokio::test]
async fn the_script_and_the_core_agree_on_token_buckets() {
    agree('b').await;
}

#[tokio::test]
async fn the_script_and_the_core_agree_on_gcra() {
    agree('g').await;
}

#[tokio::test]
async fn the_script_and_the_core_agree_on_fixed_windows() {
    agree('f').await;
}

#[tokio::test]
async fn the_script_and_the_core_agree_on_sliding_windows() {
    agree('s').await;
}

#[tokio::test]
async fn the_script_and_the_core_agree_on_sliding_logs() {
    agree('l').await;
}
