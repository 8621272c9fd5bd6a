//! The script in Redis and the core compute the same numbers, to the last microsecond and unit.
//!
//! The script is run as shipped but for its clock, which the test sets.

use jiff::civil::{Date, date};
use jiff::tz::TimeZoneDatabase;
use jiff::{Span, ToSpan};
use redis::{RedisResult, Script, aio::MultiplexedConnection};
use tollgate_core::limit::{
    Boundaries, CalendarUnit, CalendarWindow, FixedWindow, Gcra, Limit, MAX_LOG, MAX_SKEW, SlidingLog, SlidingWindow,
    State, TokenBucket, Verdict, Window, ZoneName,
};
use tollgate_core::units::{MAX_PERIOD, MAX_TOKENS, Micros, RefillRate, Tokens};
use tollgate_tests::Redis;

const SHIPPED: &str = include_str!("../../../src/server/src/store/limits.lua");
const CLOCK: &str = "local clock = redis.call('TIME')\nlocal now = clock[1] * 1000000 + clock[2]\n";

/// Small, repeatable, and good enough to choose test cases.
pub struct Random(u64);

impl Random {
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(0x2026_1202 + seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Between 1 and `most`: small as often as large, and often at a bound.
    pub fn upto(&mut self, most: u64) -> u64 {
        match self.next() % 8 {
            0 => 1,
            1 => most,
            2 => most - self.next() % most.min(3),
            3 | 4 => 1 + self.next() % most.min(100),
            _ => 1 + (self.next() >> (self.next() % 60)) % most,
        }
    }

    /// Where a clock stands that was at `now`: on by little or much, still there, or set back.
    pub fn clock(&mut self, now: u64) -> u64 {
        match self.next() % 8 {
            0 => now - self.upto(200_000_000).min(now),
            1 => (now + self.upto(1 << 40)).min(Micros::MAX.count()),
            2 | 3 => now,
            _ => (now + self.upto(5_000_000)).min(Micros::MAX.count()),
        }
    }

    /// What a request costs: above the capacity too.
    pub fn cost(&mut self, limit: &Limit) -> Tokens {
        let most = if self.next().is_multiple_of(4) { MAX_TOKENS } else { limit.capacity().count() };
        Tokens::new(self.upto(most)).expect("within bounds")
    }

    /// A limit of the algorithm with this letter, and its numbers as the script takes them.
    pub fn limit(&mut self, letter: char) -> (Limit, [String; 3]) {
        let capacity = self.upto(if letter == 'l' { MAX_LOG } else { MAX_TOKENS });
        let tokens = Tokens::new(capacity).expect("within bounds");
        if matches!(letter, 'b' | 'g') {
            loop {
                let (units, period) = (self.upto(MAX_TOKENS), Micros::new(self.upto(MAX_PERIOD)));
                let Ok(rate) = RefillRate::new(units, period) else { continue };
                let keep = if self.next().is_multiple_of(2) { self.upto(Micros::MAX.count()) } else { 0 };
                if letter == 'g' {
                    let numbers = [capacity, rate.tokens(), rate.period()].map(|number| number.to_string());
                    return (Limit::Gcra(Gcra { burst: tokens, rate }), numbers);
                }
                let limit = TokenBucket { capacity: tokens, refill: rate, keep: Micros::new(keep) };
                let (units, period) = (limit.rate().tokens(), limit.rate().period());
                let period = if keep > 0 { format!("{period}:{keep}") } else { period.to_string() };
                return (Limit::TokenBucket(limit), [capacity.to_string(), units.to_string(), period]);
            }
        }
        let most = if self.next().is_multiple_of(2) { 5_000_000 } else { MAX_PERIOD };
        let window = Micros::new(self.upto(most));
        let limit = match letter {
            'f' => Limit::FixedWindow(FixedWindow { capacity: tokens, window: Window::Span(window) }),
            's' => Limit::SlidingWindow(SlidingWindow { capacity: tokens, window }),
            _ => Limit::SlidingLog(SlidingLog { capacity: tokens, window }),
        };
        (limit, [capacity, window.count(), 0].map(|number| number.to_string()))
    }
}

/// What the core says, as the script does: verdict, units left, wait; and until when what it has stored says something,
/// if it has. `None` where the limit does not cover that time.
fn step(limit: &Limit, stored: &mut Option<State>, cost: Tokens, now: Micros) -> Option<([i64; 3], Option<Micros>)> {
    let mut state = limit.advance(stored.as_ref(), now)?;
    let verdict = limit.check(&state, cost, now);
    let mended = stored.as_ref().is_some_and(|stored| Limit::mended(stored, &state));
    if verdict == Verdict::Admit {
        limit.spend(&mut state, cost, now);
    }
    let number = |n: u64| i64::try_from(n).expect("below 2^53");
    let left = number(limit.remaining(&state, now));
    let kept = (verdict == Verdict::Admit || mended).then(|| limit.full_at(&state, now));
    if kept.is_some() {
        *stored = Some(state);
    }
    let answer = match verdict {
        Verdict::Admit => [0, left, 0],
        Verdict::Wait(wait) => [1, left, number(wait.count())],
        Verdict::Never => [2, left, 0],
    };
    Some((answer, kept))
}

/// The script as shipped, but for its clock, which is its last argument.
pub fn script() -> Script {
    assert_eq!(SHIPPED.matches(CLOCK).count(), 1, "the script's clock");
    Script::new(&SHIPPED.replace(CLOCK, "local now = tonumber(table.remove(ARGV))\n"))
}

struct Shipped {
    script: Script,
    connection: MultiplexedConnection,
    _redis: Redis,
}

impl Shipped {
    async fn start() -> Self {
        let redis = Redis::start().await;
        Self { script: script(), connection: redis.connect().await, _redis: redis }
    }

    async fn ask(
        &mut self,
        key: u64,
        letter: char,
        numbers: &[String; 3],
        cost: Tokens,
        now: u64,
    ) -> RedisResult<Vec<i64>> {
        let mut call = self.script.key(format!("key {key}"));
        call.arg("take").arg(letter.to_string()).arg(numbers).arg(cost.count()).arg(now);
        call.invoke_async(&mut self.connection).await
    }

    /// How long Redis keeps what is stored from now on, in milliseconds.
    async fn lives(&mut self, key: u64) -> u64 {
        let left: i64 = redis::cmd("PTTL")
            .arg(format!("key {key}"))
            .query_async(&mut self.connection)
            .await
            .expect("a time to live");
        u64::try_from(left).expect("a key that expires")
    }
}

async fn agree(letter: char) {
    const KEYS: u64 = 1_500;
    const STEPS: u64 = 12;
    let mut shipped = Shipped::start().await;
    let mut random = Random::new(u64::from(u32::from(letter)));
    let mut verdicts = [0; 3];
    for key in 0..KEYS {
        let (mut limit, mut numbers) = random.limit(letter);
        let mut stored = None;
        // Microseconds since 1970, in 2026 or at the far end of what a double holds (in 2255), where a window still ends.
        let end = Micros::MAX.count() - if matches!(letter, 'b' | 'g') { 0 } else { 2 * MAX_PERIOD };
        let mut now = if key % 10 == 0 { end - (1 << 40) } else { 1_796_000_000_000_000 };
        for at in 0..STEPS {
            now = random.clock(now);
            if random.next().is_multiple_of(16) {
                (limit, numbers) = random.limit(letter);
            }
            let cost = random.cost(&limit);
            let before = stored.clone();
            let (expected, kept) = step(&limit, &mut stored, cost, Micros::new(now)).expect("one algorithm");
            let found = shipped.ask(key, letter, &numbers, cost, now).await.expect("a reply");
            let what = format!("key {key}, step {at}: {limit:?} {cost:?} at {now}, before {before:?}");
            assert_eq!(found, expected, "{what}");
            if let Some(until) = kept {
                // The script adds a second to be safe, and the test is not at once either. Where a clock was set back, or
                // time ends for the core, the script keeps it longer.
                let most = until.since(Micros::new(now)).count().div_ceil(1000) + 1000;
                let lives = shipped.lives(key).await;
                let too_long = until.count() < end && lives > most + MAX_SKEW.count() / 1000;
                assert!(lives >= most.saturating_sub(60_000) && !too_long, "{lives} of {most} ms: {what}");
            }
            verdicts[usize::try_from(expected[0]).expect("a verdict")] += 1;
        }
    }
    println!("{letter}: admitted, denied, never: {verdicts:?}");
    assert!(verdicts.iter().all(|count| *count > 1000), "every verdict was tried: {verdicts:?}");
}

/// Where so many windows in a row begin: one each `unit` from `first`, by the clock of a time zone.
fn boundaries(zone: &str, first: Date, unit: Span, count: i64) -> Vec<u64> {
    let zone = TimeZoneDatabase::bundled().get(zone).expect("a time zone");
    let begins = |number| {
        let date = first.checked_add(unit * number).expect("a date");
        let at = zone.to_timestamp(date.at(0, 0, 0, 0)).expect("a time");
        u64::try_from(at.as_microsecond()).expect("after 1970")
    };
    let mut all: Vec<u64> = (0..count).map(begins).collect();
    all.dedup();
    all
}

/// Days and months of zones on both ends of the world, with changes of the clock; and the hours of some days.
fn calendars() -> Vec<Vec<u64>> {
    let hour = 3_600_000_000_u64;
    let mut all = vec![
        boundaries("Europe/Berlin", date(2026, 3, 1), 1.day(), 400),
        boundaries("Europe/Berlin", date(2026, 10, 1), 1.day(), 400),
        boundaries("Australia/Lord_Howe", date(2026, 3, 20), 1.day(), 400),
        boundaries("America/Santiago", date(2026, 8, 20), 1.day(), 400),
        // A day is left out.
        boundaries("Pacific/Apia", date(2011, 12, 20), 1.day(), 400),
        boundaries("Pacific/Kiritimati", date(2027, 1, 1), 1.month(), 40),
        boundaries("Etc/GMT+12", date(2027, 12, 1), 1.month(), 40),
        boundaries("Europe/Berlin", date(2027, 12, 1), 1.month(), 40),
    ];
    all.push((0..2000).map(|number| all[0][20] + number * hour).collect());
    all.push((0..2000).map(|number| all[2][10] + number * hour / 60).collect());
    all
}

/// A limit to those around `clock`, and its numbers as the script takes them.
fn calendar_limit(capacity: u64, boundaries: &[u64], clock: u64) -> (Limit, [String; 3]) {
    let here = boundaries.partition_point(|start| *start <= clock).clamp(2, boundaries.len() - 2);
    let known = [here - 2, here - 1, here, here + 1].map(|index| boundaries[index]);
    let window = CalendarWindow {
        known: Boundaries::new(known.map(Micros::new)).expect("in order"),
        ..CalendarWindow::new(CalendarUnit::Day, ZoneName::default())
    };
    let capacity = Tokens::new(capacity).expect("within bounds");
    let limit = Limit::FixedWindow(FixedWindow { capacity, window: Window::Calendar(window) });
    (limit, [capacity.count().to_string(), known.map(|at| at.to_string()).join(":"), "0".into()])
}

#[tokio::test]
async fn the_script_and_the_core_agree_on_calendar_windows() {
    const KEYS: u64 = 1_500;
    const STEPS: u64 = 16;
    let mut shipped = Shipped::start().await;
    let mut random = Random::new(0);
    let calendars = calendars();
    let (mut verdicts, mut outside, mut changes) = ([0; 3], 0, 0);
    for key in 0..KEYS {
        let choose = |random: &mut Random| &calendars[usize::try_from(random.next() % 10).expect("an index")];
        let mut calendar = choose(&mut random);
        let mut capacity = random.upto(MAX_TOKENS);
        let mut stored = None;
        let mut now = calendar[3 + usize::try_from(random.next() % 30).expect("an index")];
        for at in 0..STEPS {
            now = random.clock(now);
            if random.next().is_multiple_of(4) {
                // To a boundary, or just before it.
                let next = calendar.partition_point(|start| *start <= now).min(calendar.len() - 1);
                now = calendar[next] - random.next() % 2;
            }
            if random.next().is_multiple_of(8) {
                (calendar, capacity) = (choose(&mut random), random.upto(MAX_TOKENS));
                changes += 1;
            }
            // The endpoint's clock is another, and sometimes quite another.
            let clock = match random.next() % 8 {
                0 => now + random.upto(200_000_000),
                1 => now - random.upto(200_000_000),
                2 => now - random.upto(1 << 43),
                _ => now,
            };
            let (letter, (limit, numbers)) = match random.next() % 16 {
                0 => ('f', random.limit('f')),
                _ => ('c', calendar_limit(capacity, calendar, clock)),
            };
            let cost = random.cost(&limit);
            let before = stored.clone();
            let expected = step(&limit, &mut stored, cost, Micros::new(now));
            let what = format!("key {key}, step {at}: {limit:?} {cost:?} at {now}, before {before:?}");
            match (shipped.ask(key, letter, &numbers, cost, now).await, expected) {
                (Ok(found), Some((expected, _))) => {
                    assert_eq!(found, expected, "{what}");
                    verdicts[usize::try_from(expected[0]).expect("a verdict")] += 1;
                }
                (Err(error), None) => {
                    assert_eq!(error.code(), Some("TOLLGATE_CLOCK"), "{what}: {error}");
                    outside += 1;
                }
                (found, expected) => panic!("{what}: {found:?} and not {expected:?}"),
            }
        }
    }
    println!("c: admitted, denied, never: {verdicts:?}, outside: {outside}, other windows: {changes}");
    assert!(verdicts.iter().all(|count| *count > 1000) && outside > 1000 && changes > 1000, "everything was tried");
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
