//! The rules that all limits share, and what is particular to each.
#![allow(clippy::arithmetic_side_effects)]
use super::*;
use crate::units::RefillRate;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const SECOND: u64 = 1_000_000;

fn units(count: u64) -> Tokens {
    Tokens::new(count).unwrap()
}

/// Every algorithm with a capacity of `capacity` in about ten seconds.
fn all(capacity: u64) -> [Limit; 5] {
    let (tokens, window) = (units(capacity), Micros::from_secs(10));
    let rate = RefillRate::new(capacity, window).unwrap();
    [
        Limit::TokenBucket(TokenBucket { capacity: tokens, refill: rate, keep: Micros::ZERO }),
        Limit::Gcra(Gcra { burst: tokens, rate }),
        Limit::FixedWindow(FixedWindow { capacity: tokens, window: Window::Span(window) }),
        Limit::SlidingWindow(SlidingWindow { capacity: tokens, window }),
        Limit::SlidingLog(SlidingLog { capacity: tokens, window }),
    ]
}

/// One key of one limit, driven by hand.
#[derive(Clone)]
struct Key {
    limit: Limit,
    stored: Option<State>,
}

impl Key {
    fn new(limit: Limit) -> Self {
        Self { limit, stored: None }
    }

    fn request(&mut self, cost: u64, now: u64) -> Verdict {
        let (cost, now) = (units(cost), Micros::new(now));
        let mut state = self.limit.advance(self.stored.as_ref(), now).unwrap();
        let verdict = self.limit.check(&state, cost, now);
        if verdict == Verdict::Admit {
            self.limit.spend(&mut state, cost, now);
            self.stored = Some(state);
        } else if self.stored.as_ref().is_some_and(|stored| Limit::mended(stored, &state)) {
            self.stored = Some(state);
        }
        verdict
    }

    fn admits(&mut self, now: u64) -> bool {
        self.request(1, now) == Verdict::Admit
    }

    fn remaining(&self, now: u64) -> u64 {
        let now = Micros::new(now);
        self.limit.remaining(&self.limit.advance(self.stored.as_ref(), now).unwrap(), now)
    }
}

/// A time at the start of a window.
const START: u64 = 1_000_000 * SECOND;

#[test]
fn a_new_key_has_its_whole_capacity_and_no_more() {
    for limit in all(20) {
        let mut key = Key::new(limit);
        assert_eq!(key.remaining(START), 20, "{limit:?}");
        assert_eq!((0..25).filter(|_| key.admits(START)).count(), 20, "{limit:?}");
        assert_eq!(key.remaining(START), 0, "{limit:?}");
    }
}

#[test]
fn a_cost_counts_as_so_many_requests_and_one_above_the_capacity_never_fits() {
    for limit in all(10) {
        let mut key = Key::new(limit);
        assert_eq!(key.request(11, START), Verdict::Never, "{limit:?}");
        assert_eq!(key.request(8, START), Verdict::Admit, "{limit:?}");
        assert!(matches!(key.request(3, START), Verdict::Wait(_)), "{limit:?}");
        assert_eq!(key.request(2, START), Verdict::Admit, "a denied request spends nothing: {limit:?}");
    }
}

#[test]
fn a_clock_that_steps_back_mints_nothing() {
    for limit in all(5) {
        let mut key = Key::new(limit);
        assert!((0..5).all(|_| key.admits(START)), "{limit:?}");
        for back in [1, 11, 60] {
            assert!(!key.admits(START - back * SECOND), "{back} s back: {limit:?}");
        }
        assert!(!key.admits(START), "{limit:?}");
    }
}

#[test]
fn a_clock_fault_locks_nobody_out_for_longer_than_the_limit_itself() {
    for limit in all(5) {
        let mut key = Key::new(limit);
        assert_eq!(key.request(5, 5 * START), Verdict::Admit);
        let Verdict::Wait(wait) = key.request(1, START) else { panic!("spent is spent: {limit:?}") };
        assert!(wait <= Micros::from_secs(20), "{wait}: {limit:?}");
        assert!(key.admits(START + wait.count()), "{limit:?}");
    }
}

#[test]
fn what_is_idle_long_enough_is_as_if_it_had_never_been() {
    for limit in all(7) {
        let mut key = Key::new(limit);
        assert_eq!(key.request(7, START + 3), Verdict::Admit);
        let full = limit.full_at(key.stored.as_ref().unwrap(), Micros::new(START + 3)).count();
        assert_eq!(key.remaining(full), 7, "{limit:?}");
        assert!(full <= START + 3 + 20 * SECOND, "{limit:?}");
        assert_eq!(key.remaining(Micros::MAX.count()), 7, "{limit:?}");
    }
}

#[test]
fn another_algorithms_state_is_none() {
    for limit in all(5) {
        for other in all(5) {
            let state = other.advance(None, Micros::new(START)).unwrap();
            let advanced = limit.advance(Some(&state), Micros::new(START));
            assert_eq!(advanced.is_some(), limit.algorithm() == other.algorithm());
        }
    }
}

#[test]
fn a_lowered_capacity_applies_at_once() {
    for (before, after) in all(6).into_iter().zip(all(2)) {
        let mut key = Key::new(before);
        assert!(key.admits(START));
        key.limit = after;
        let more = (0..5).filter(|_| key.admits(START)).count();
        assert!((1..=2).contains(&more), "{more}: {after:?}");
    }
}

#[test]
fn a_fixed_window_starts_anew_at_its_boundary() {
    let mut key = Key::new(all(3)[2]);
    let end = START + 10 * SECOND;
    assert!((0..3).all(|_| key.admits(end - 1)));
    assert_eq!(key.request(1, end - 1), Verdict::Wait(Micros::new(1)));
    assert_eq!((0..5).filter(|_| key.admits(end)).count(), 3, "twice the capacity across a boundary");
}

#[test]
fn a_window_of_another_length_keeps_what_was_spent_while_it_lasts() {
    let hour = Micros::from_secs(3600);
    for limit in [
        Limit::FixedWindow(FixedWindow { capacity: units(3), window: Window::Span(hour) }),
        Limit::SlidingWindow(SlidingWindow { capacity: units(3), window: hour }),
    ] {
        let mut key = Key::new(if limit.algorithm() == "fixed_window" { all(3)[2] } else { all(3)[3] });
        assert!((0..3).all(|_| key.admits(START)));
        key.limit = limit;
        assert!(!key.admits(START + 5 * SECOND), "{limit:?}");
    }
}

/// So many units in each calendar window, of which those around `clock` are known; `boundaries` has all there are.
fn calendar(capacity: u64, boundaries: &[u64], clock: u64) -> Limit {
    let here = boundaries.iter().rposition(|start| *start <= clock).unwrap();
    let known = [here - 1, here, here + 1, here + 2].map(|index| Micros::new(boundaries[index]));
    let window = CalendarWindow::new(CalendarUnit::Day, ZoneName::default());
    let window = Window::Calendar(CalendarWindow { known: Boundaries::new(known).unwrap(), ..window });
    Limit::FixedWindow(FixedWindow { capacity: units(capacity), window })
}

/// The starts of days of 24, 23, 24, 25 and 24 hours.
fn days() -> [u64; 6] {
    [0, 24, 47, 71, 96, 120].map(|hours| START + hours * 3600 * SECOND)
}

#[test]
fn a_calendar_window_lasts_until_its_boundary_however_long_it_is() {
    let days = days();
    for day in [1, 2, 3] {
        let mut key = Key::new(calendar(3, &days, days[day]));
        assert!((0..3).all(|_| key.admits(days[day])));
        let length = days[day + 1] - days[day];
        assert_eq!(key.request(1, days[day]), Verdict::Wait(Micros::new(length)));
        assert_eq!(key.request(1, days[day + 1] - 1), Verdict::Wait(Micros::new(1)));
        assert_eq!(key.limit.full_at(key.stored.as_ref().unwrap(), Micros::ZERO).count(), days[day + 1]);
        assert!(key.admits(days[day + 1]));
    }
}

#[test]
fn a_calendar_window_that_nobody_has_looked_up_admits_nothing() {
    let days = days();
    let mut key = Key::new(calendar(3, &days, days[2]));
    assert!(key.admits(days[2]));
    for clock in [0, days[1] - 1, days[4], Micros::MAX.count()] {
        for stored in [None, key.stored.as_ref()] {
            assert_eq!(key.limit.advance(stored, Micros::new(clock)), None, "{clock}");
        }
    }
    let window = Window::Calendar(CalendarWindow::new(CalendarUnit::Day, ZoneName::default()));
    let unknown = FixedWindow { capacity: units(3), window };
    assert_eq!(Limit::FixedWindow(unknown).advance(None, Micros::new(START)), None);
    let count = unknown.advance(None, Micros::new(START));
    assert!(matches!(unknown.check(&count, units(1), Micros::new(START)), Verdict::Wait(_)), "by itself it denies");
}

/// Fixed windows of several kinds, for which `now` is in the middle of one.
fn windows_of_every_kind(now: u64) -> [Limit; 4] {
    let days = days();
    let elsewhere = days.map(|start| start + 5 * 3600 * SECOND);
    let hours = [0, 1, 2, 3].map(|hour| days[2] + hour * 3600 * SECOND);
    let span = FixedWindow { capacity: units(3), window: Window::Span(Micros::from_secs(600)) };
    [calendar(3, &days, now), calendar(3, &elsewhere, now), calendar(3, &hours, now), Limit::FixedWindow(span)]
}

#[test]
fn another_unit_or_zone_is_no_second_budget_and_its_wait_is_true() {
    let now = days()[2] + 5400 * SECOND;
    for before in windows_of_every_kind(now) {
        for after in windows_of_every_kind(now) {
            let mut key = Key::new(before);
            assert!((0..3).all(|_| key.admits(now)));
            key.limit = after;
            let Verdict::Wait(wait) = key.request(1, now) else { panic!("{before:?} then {after:?}") };
            let end = now + wait.count();
            assert_eq!(key.clone().limit.full_at(key.stored.as_ref().unwrap(), Micros::ZERO).count(), end);
            assert!(!key.admits(end - 1) && key.admits(end), "{before:?} then {after:?}");
        }
    }
}

#[test]
fn while_proxies_disagree_on_the_windows_they_still_share_one_budget() {
    let now = days()[2] + 5400 * SECOND;
    for one in windows_of_every_kind(now) {
        for other in windows_of_every_kind(now) {
            let mut key = Key::new(one);
            let admitted = (0..20).filter(|step| {
                key.limit = if step % 2 == 0 { one } else { other };
                key.admits(now + step * SECOND)
            });
            assert_eq!(admitted.count(), 3, "{one:?} and {other:?}");
        }
    }
}

#[test]
fn the_wait_after_a_change_of_a_sliding_windows_length_is_true() {
    let hour = Micros::from_secs(3600);
    let mut key = Key::new(Limit::SlidingWindow(SlidingWindow { capacity: units(3), window: hour }));
    assert!((0..3).all(|_| key.admits(START)));
    key.limit = all(3)[3];
    let Verdict::Wait(wait) = key.request(1, START + 5 * SECOND) else { panic!("spent is spent") };
    let end = START + 5 * SECOND + wait.count();
    assert!(!key.admits(end - 1) && key.admits(end));
}

#[test]
fn a_sliding_window_weighs_the_one_before() {
    let mut key = Key::new(all(100)[3]);
    assert_eq!(key.request(100, START + 9 * SECOND), Verdict::Admit);
    // Half a window on, half of the hundred still counts.
    let half = START + 15 * SECOND;
    assert_eq!(key.remaining(half), 50);
    assert_eq!(key.remaining(half - 1), 49, "rounded to the caller's disadvantage");
    assert_eq!(key.request(50, half), Verdict::Admit);
    assert_eq!(key.request(10, half), Verdict::Wait(Micros::from_secs(1)));
    // 51 more do not fit in this window: half of it must have left the next.
    assert_eq!(key.request(51, half), Verdict::Wait(Micros::new(5 * SECOND + SECOND / 5)));
}

#[test]
fn a_sliding_log_is_exact_in_every_window() {
    let mut key = Key::new(all(3)[4]);
    assert!(key.admits(START) && key.admits(START + 4 * SECOND) && key.admits(START + 9 * SECOND));
    assert_eq!(key.request(1, START + 9 * SECOND), Verdict::Wait(Micros::from_secs(1)));
    assert_eq!(key.request(2, START + 9 * SECOND), Verdict::Wait(Micros::from_secs(5)));
    assert!(!key.admits(START + 10 * SECOND - 1));
    assert!(key.admits(START + 10 * SECOND));
    let Some(State::SlidingLog(log)) = &key.stored else { panic!("a log") };
    assert_eq!(log.len(), 3, "what has left the window is dropped");
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use super::*;
    use crate::units::{MAX_PERIOD, MAX_TOKENS};
    use proptest::prelude::*;

    pub(super) fn any_limit() -> impl Strategy<Value = Limit> {
        let capacity = prop_oneof![1u64..=30, 1u64..=MAX_TOKENS];
        let window = prop_oneof![1u64..=5_000_000, 1u64..=MAX_PERIOD];
        (capacity, 1u64..=MAX_TOKENS, window, 0usize..5).prop_filter_map(
            "within bounds",
            |(capacity, tokens, window, kind)| {
                let rate = RefillRate::new(1 + tokens % (10 * window).min(MAX_TOKENS), Micros::new(window)).ok()?;
                let (capacity, window) = (units(capacity), Micros::new(window));
                Some(match kind {
                    0 => Limit::TokenBucket(TokenBucket { capacity, refill: rate, keep: Micros::ZERO }),
                    1 => Limit::Gcra(Gcra { burst: capacity, rate }),
                    2 => Limit::FixedWindow(FixedWindow { capacity, window: Window::Span(window) }),
                    3 => Limit::SlidingWindow(SlidingWindow { capacity, window }),
                    _ => Limit::SlidingLog(SlidingLog { capacity: units(1 + capacity.count() % MAX_LOG), window }),
                })
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Exactly when it says, for every limit and whatever was spent before.
        #[test]
        fn a_request_is_admitted_exactly_when_its_wait_is_over(
            limit in any_limit(),
            before in prop::collection::vec((1u64..=MAX_TOKENS, 0u64..3_000_000), 0..12),
            cost in 1u64..=MAX_TOKENS,
        ) {
            let capacity = limit.capacity().count();
            let mut key = Key::new(limit);
            let mut now = START;
            for (cost, gap) in before {
                now += gap;
                key.request(cost % capacity + 1, now);
            }
            let cost = cost % capacity + 1;
            let mut again = key.clone();
            if let Verdict::Wait(wait) = key.request(cost, now) {
                prop_assert!(wait > Micros::ZERO);
                let end = now + wait.count();
                if end < Micros::MAX.count() {
                    prop_assert_eq!(again.clone().request(cost, end), Verdict::Admit, "at the end of {}", wait);
                    prop_assert_ne!(again.request(cost, end - 1), Verdict::Admit, "before the end of {}", wait);
                }
            }
        }

        /// GCRA and the token bucket of the same numbers are the same limit.
        #[test]
        fn gcra_admits_what_the_token_bucket_admits(
            limit in any_limit(),
            steps in prop::collection::vec((1u64..=40, 0u64..3_000_000), 1..40),
        ) {
            let (capacity, refill) = match limit {
                Limit::TokenBucket(limit) => (limit.capacity, limit.refill),
                Limit::Gcra(limit) => (limit.burst, limit.rate),
                _ => return Ok(()),
            };
            let mut bucket = Key::new(Limit::TokenBucket(TokenBucket { capacity, refill, keep: Micros::ZERO }));
            let mut gcra = Key::new(Limit::Gcra(Gcra { burst: capacity, rate: refill }));
            let mut now = START;
            for (cost, gap) in steps {
                now += gap;
                prop_assert_eq!(bucket.request(cost, now), gcra.request(cost, now), "{} at {}", cost, now);
                prop_assert_eq!(bucket.remaining(now), gcra.remaining(now));
            }
        }

        /// The sliding log never admits more than its capacity in any window of its length.
        #[test]
        fn no_window_of_a_sliding_log_has_more_than_its_capacity(
            capacity in 1u64..20,
            steps in prop::collection::vec((1u64..=5, 0u64..4_000_000), 1..60),
        ) {
            let mut key = Key::new(all(capacity)[4]);
            let (mut now, mut admitted) = (START, Vec::new());
            for (cost, gap) in steps {
                now += gap;
                if key.request(cost, now) == Verdict::Admit {
                    admitted.push((now, cost));
                }
            }
            for (start, _) in &admitted {
                let sum: u64 = admitted.iter().filter(|(at, _)| (*start..start + 10 * SECOND).contains(at)).map(|(_, c)| c).sum();
                prop_assert!(sum <= capacity);
            }
        }

        /// No calendar window admits more than its capacity, whatever its length and that of its neighbours, and however
        /// the clock jumps forward or steps back within the skew: then it is the later window that is charged.
        #[test]
        fn no_calendar_window_admits_more_than_its_capacity(
            capacity in 1u64..20,
            lengths in prop::collection::vec(1u64..100_000_000, 60),
            steps in prop::collection::vec((1u64..=8, 0u64..40_000_000, 0u64..2 * SECOND, any::<bool>()), 1..80),
        ) {
            let first = START - 3 * SECOND - lengths[0] - lengths[1];
            let sum = |end: &mut u64, length: &u64| { *end += length; Some(*end) };
            let boundaries: Vec<u64> = lengths.iter().scan(first, sum).collect();
            let window = |now| boundaries.iter().rposition(|start| *start <= now).unwrap();
            let (mut latest, mut charged, mut admitted) = (START, 0, vec![0; boundaries.len()]);
            let mut key = Key::new(all(capacity)[2]);
            for (cost, gap, back, steps_back) in steps {
                let now = if steps_back { latest - back } else { latest + gap };
                latest = latest.max(now);
                if window(latest) + 2 >= boundaries.len() {
                    break;
                }
                key.limit = calendar(capacity, &boundaries, now);
                if key.request(cost, now) == Verdict::Admit {
                    charged = charged.max(window(now));
                    admitted[charged] += cost;
                }
            }
            prop_assert!(admitted.iter().all(|sum| *sum <= capacity), "{:?}", admitted);
        }

        /// However the clock jumps: what is left stays within the capacity, and nothing overflows.
        #[test]
        fn no_clock_takes_a_limit_out_of_its_bounds(
            limit in any_limit(),
            steps in prop::collection::vec((1u64..=60, 0u64..=Micros::MAX.count()), 1..30),
        ) {
            let mut key = Key::new(limit);
            for (cost, now) in steps {
                key.request(cost, now);
                prop_assert!(key.remaining(now) <= limit.capacity().count());
            }
        }
    }
}
