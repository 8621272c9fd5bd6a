#![allow(clippy::arithmetic_side_effects)]
use super::super::Verdict;
use super::*;
use crate::units::{MAX_PERIOD, MAX_TOKENS};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const SECOND: u64 = 1_000_000;

fn limit(capacity: u64, tokens: u64, period: Micros) -> TokenBucket {
    TokenBucket {
        capacity: Tokens::new(capacity).unwrap(),
        refill: RefillRate::new(tokens, period).unwrap(),
        keep: Micros::ZERO,
    }
}

/// One bucket driven by hand: what a store does, without the store.
struct Bucket {
    limit: TokenBucket,
    stored: Option<Balance>,
}

impl Bucket {
    fn new(limit: TokenBucket) -> Self {
        Self { limit, stored: None }
    }

    fn request(&mut self, cost: u64, now: u64) -> Verdict {
        let (cost, now) = (Tokens::new(cost).unwrap(), Micros::new(now));
        let mut balance = self.limit.advance(self.stored.as_ref(), now);
        let verdict = self.limit.check(&balance, cost, now);
        if verdict == Verdict::Admit {
            self.limit.spend(&mut balance, cost, now);
        }
        self.stored = Some(balance);
        verdict
    }

    fn admits(&mut self, now: u64) -> bool {
        self.request(1, now) == Verdict::Admit
    }

    fn tokens(&self) -> u64 {
        self.stored.unwrap().tokens
    }
}

#[test]
fn a_new_bucket_is_full_and_no_fuller() {
    let mut bucket = Bucket::new(limit(20, 5, Micros::from_secs(1)));
    assert_eq!((0..25).filter(|_| bucket.admits(7)).count(), 20);
}

#[test]
fn an_empty_bucket_of_twenty_at_five_a_second_is_full_after_four_seconds() {
    let mut bucket = Bucket::new(limit(20, 5, Micros::from_secs(1)));
    assert_eq!(bucket.request(20, 0), Verdict::Admit);
    assert_eq!(bucket.request(20, 0), Verdict::Wait(Micros::from_secs(4)));
    assert_eq!(bucket.request(20, 4 * SECOND - 1), Verdict::Wait(Micros::new(1)));
    assert_eq!(bucket.request(20, 4 * SECOND), Verdict::Admit);
}

#[test]
fn polling_neither_starves_nor_feeds_a_bucket() {
    // F29: 1 per 10 s polled each second and each 100 ms; 1 per 3 s polled each second.
    for (period, poll, expected) in [(10, SECOND, 4), (10, SECOND / 10, 4), (3, SECOND, 11)] {
        let mut bucket = Bucket::new(limit(1, 1, Micros::from_secs(period)));
        let times = (0..=30 * SECOND).step_by(usize::try_from(poll).unwrap());
        let admitted: Vec<u64> = times.filter(|t| bucket.admits(*t)).collect();
        assert_eq!(admitted.len(), expected, "1 per {period} s, polled every {poll} µs: {admitted:?}");
        assert!(admitted.iter().all(|t| t % (period * SECOND) == 0), "{admitted:?}");
    }
}

#[test]
fn a_clock_that_steps_back_mints_nothing() {
    // F26 (a)
    let mut bucket = Bucket::new(limit(5, 1, Micros::from_secs(1)));
    let at = |s: u64| s * SECOND;
    assert!((0..3).all(|_| bucket.admits(at(1000))));
    assert!(bucket.admits(at(989)));
    assert_eq!(bucket.stored.unwrap().at, Micros::from_secs(1000), "the stored time never moves back");
    assert!(bucket.admits(at(1000)));
    assert_eq!(bucket.request(1, at(1000)), Verdict::Wait(Micros::from_secs(1)));
    assert!(bucket.admits(at(1001)));
}

#[test]
fn a_wait_told_before_the_stored_time_counts_from_that_time() {
    let mut bucket = Bucket::new(limit(1, 1, Micros::from_secs(1)));
    assert!(bucket.admits(10 * SECOND));
    assert_eq!(bucket.request(1, 8 * SECOND), Verdict::Wait(Micros::from_secs(3)));
    assert!(!bucket.admits(11 * SECOND - 1));
    assert!(bucket.admits(11 * SECOND));
}

#[test]
fn a_clock_fault_locks_nobody_out() {
    // F26 (b)
    let mut bucket = Bucket::new(limit(5, 1, Micros::from_secs(1)));
    assert_eq!(bucket.request(5, 5000 * SECOND), Verdict::Admit);
    assert_eq!(bucket.request(1, 1000 * SECOND), Verdict::Wait(Micros::from_secs(1)));
    assert!(bucket.admits(1001 * SECOND));
}

#[test]
fn a_clock_a_minute_behind_is_believed_and_one_further_behind_is_not() {
    let limit = limit(5, 1, Micros::from_secs(1));
    let stored =
        Balance { tokens: 0, fraction: 0, period: 1_000_000, at: Micros::from_secs(100), lent: Lent::default() };
    let within = limit.advance(Some(&stored), Micros::from_secs(40));
    assert_eq!(within.at, stored.at);
    assert!(!TokenBucket::mended(&stored, &within));
    let beyond = limit.advance(Some(&stored), Micros::new(40 * SECOND - 1));
    assert_eq!(beyond.at, Micros::new(40 * SECOND - 1));
    assert!(TokenBucket::mended(&stored, &beyond), "a denial stores the new anchor too");
}

#[test]
fn a_bucket_fills_in_the_time_that_all_its_units_take() {
    for (capacity, tokens, period, expected) in [
        (20, 5, Micros::from_secs(1), 4 * SECOND),
        (1, 3, Micros::from_secs(1), 333_334),
        (MAX_TOKENS, 1, Micros::new(MAX_PERIOD), Micros::MAX.count()),
    ] {
        let limit = limit(capacity, tokens, period);
        assert_eq!(limit.time_to_fill(), Micros::new(expected));
        let mut bucket = Bucket::new(limit);
        assert_eq!(bucket.request(capacity, 0), Verdict::Admit);
        assert_eq!(limit.full_at(&bucket.stored.unwrap(), Micros::ZERO), Micros::new(expected));
    }
}

#[test]
fn a_full_bucket_says_nothing_anymore_but_where_its_limit_changes() {
    let limit = limit(20, 5, Micros::from_secs(1));
    let now = Micros::from_secs(100);
    let after = |keep: u64, tokens: u64| {
        let limit = TokenBucket { keep: Micros::from_secs(keep), ..limit };
        let balance = Balance { tokens, fraction: 0, period: limit.refill.period(), at: now, lent: Lent::default() };
        limit.full_at(&balance, now).since(now)
    };
    assert_eq!([after(0, 20), after(0, 10)], [Micros::ZERO, Micros::from_secs(2)]);
    assert_eq!([after(60, 20), after(60, 10), after(1, 10)], [60, 60, 2].map(Micros::from_secs));
}

#[test]
fn a_denial_stores_only_what_was_mended() {
    let stored =
        Balance { tokens: 4, fraction: 0, period: 1_000_000, at: Micros::from_secs(100), lent: Lent::default() };
    let same = limit(5, 1, Micros::from_secs(1));
    assert!(!TokenBucket::mended(&stored, &same.advance(Some(&stored), Micros::from_secs(200))));
    let lower = limit(3, 1, Micros::from_secs(1));
    assert!(TokenBucket::mended(&stored, &lower.advance(Some(&stored), Micros::from_secs(200))));
}

#[test]
fn a_jump_forward_fills_the_bucket_and_no_more() {
    // F28
    let mut bucket = Bucket::new(limit(1_000_000, 1_000_000, Micros::from_secs(1)));
    assert_eq!(bucket.request(1_000_000, 0), Verdict::Admit);
    assert!(bucket.admits(400 * 24 * 3600 * SECOND));
    assert_eq!(bucket.tokens(), 999_999);
    let far = Micros::MAX.count();
    assert!(bucket.admits(far));
    assert_eq!(bucket.tokens(), 999_999);
}

#[test]
fn a_cost_above_the_capacity_is_never_admitted_and_spends_nothing() {
    // F32
    let mut bucket = Bucket::new(limit(5, 1, Micros::from_secs(1)));
    assert_eq!(bucket.request(6, 0), Verdict::Never);
    assert_eq!(bucket.request(5, 0), Verdict::Admit);
    assert_eq!(bucket.tokens(), 0);
}

#[test]
fn a_denied_request_spends_nothing() {
    // F33
    let mut bucket = Bucket::new(limit(10, 1, Micros::new(MAX_PERIOD)));
    assert_eq!(bucket.request(8, 0), Verdict::Admit);
    assert!(matches!(bucket.request(5, 0), Verdict::Wait(_)));
    assert_eq!(bucket.request(2, 0), Verdict::Admit);
}

#[test]
fn a_lowered_capacity_cuts_the_balance_and_a_raised_one_adds_nothing() {
    // F72 (c), (d)
    let mut bucket = Bucket::new(limit(5, 1, Micros::new(MAX_PERIOD)));
    assert!(bucket.admits(0));
    bucket.limit = limit(2, 1, Micros::new(MAX_PERIOD));
    assert!(bucket.admits(0));
    assert_eq!(bucket.tokens(), 1);
    bucket.limit = limit(10, 1, Micros::new(MAX_PERIOD));
    assert!(bucket.admits(0));
    assert!(!bucket.admits(0));
}

#[test]
fn a_fraction_of_another_rate_is_dropped() {
    let mut bucket = Bucket::new(limit(1, 1, Micros::from_secs(10)));
    assert!(bucket.admits(0));
    assert!(!bucket.admits(9 * SECOND));
    bucket.limit = limit(1, 1, Micros::from_secs(3));
    assert_eq!(bucket.request(1, 9 * SECOND), Verdict::Wait(Micros::from_secs(3)));
}

#[test]
fn the_bounds_hold_without_overflow() {
    let slow = limit(MAX_TOKENS, 1, Micros::new(MAX_PERIOD));
    let mut bucket = Bucket::new(slow);
    assert_eq!(bucket.request(MAX_TOKENS, 0), Verdict::Admit);
    assert_eq!(bucket.request(MAX_TOKENS, 1), Verdict::Wait(Micros::MAX));
    let odd = limit(MAX_TOKENS, MAX_TOKENS, Micros::new(MAX_PERIOD - 1));
    let mut bucket = Bucket::new(odd);
    assert_eq!(bucket.request(MAX_TOKENS, 0), Verdict::Admit);
    assert_eq!(bucket.request(MAX_TOKENS, 0), Verdict::Wait(Micros::new(MAX_PERIOD - 1)));
    assert_eq!(bucket.request(MAX_TOKENS, MAX_PERIOD - 1), Verdict::Admit);
}

#[test]
fn what_is_there_and_what_is_out_are_never_more_than_the_capacity() {
    let limit = limit(5, 100, Micros::from_secs(1));
    let mut balance = limit.advance(None, Micros::ZERO);
    limit.spend(&mut balance, Tokens::new(3).unwrap(), Micros::ZERO);
    assert_eq!(limit.refill_beside(Some(balance), Micros::from_secs(9), 3).tokens, 2);
    assert_eq!(limit.refill_beside(Some(balance), Micros::from_secs(9), 0).tokens, 5);
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use super::*;
    use proptest::prelude::*;

    fn any_limit() -> impl Strategy<Value = TokenBucket> {
        let rate = (1u64..=MAX_TOKENS, 1u64..=MAX_PERIOD)
            .prop_filter_map("a rate within bounds", |(tokens, period)| {
                RefillRate::new(tokens, Micros::new(period)).ok()
            });
        let small = (1u64..=50, 1u64..=20_000_000).prop_filter_map("a rate within bounds", |(tokens, period)| {
            RefillRate::new(tokens, Micros::new(period)).ok()
        });
        let capacity = prop_oneof![1u64..=50, 1u64..=MAX_TOKENS];
        (capacity, prop_oneof![rate, small]).prop_map(|(capacity, refill)| TokenBucket {
            capacity: Tokens::new(capacity).unwrap(),
            refill,
            keep: Micros::ZERO,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Exactly when it says: at the end of the wait it is admitted, one microsecond before it is not.
        #[test]
        fn a_request_is_admitted_exactly_when_its_wait_is_over(
            limit in any_limit(), first in 1u64..=MAX_TOKENS, second in 1u64..=MAX_TOKENS, gap in 0u64..=100_000_000,
        ) {
            let capacity = limit.capacity.count();
            let (first, second) = (first % capacity + 1, second % capacity + 1);
            let mut bucket = Bucket::new(limit);
            prop_assert_eq!(bucket.request(first, SECOND), Verdict::Admit);
            if let Verdict::Wait(wait) = bucket.request(second, SECOND + gap) {
                let end = SECOND + gap + wait.count();
                if end < Micros::MAX.count() {
                    prop_assert_eq!(bucket.request(second, end - 1), Verdict::Wait(Micros::new(1)));
                    prop_assert_eq!(bucket.request(second, end), Verdict::Admit);
                }
            }
        }

        /// The envelope: at most C + r·d in every window, whatever the clock does (d is time as it really passed).
        #[test]
        fn no_window_admits_more_than_capacity_plus_refill(
            limit in any_limit(),
            steps in prop::collection::vec((1u64..=60, 0u64..=3_000_000), 1..60),
        ) {
            let mut bucket = Bucket::new(limit);
            let mut now = 0;
            let mut admitted: Vec<(u64, u64)> = Vec::new();
            for (cost, gap) in steps {
                now += gap;
                if bucket.request(cost, now) == Verdict::Admit {
                    admitted.push((now, cost));
                }
            }
            let (n, p) = (u128::from(limit.refill.tokens()), u128::from(limit.refill.period()));
            for (from, (start, _)) in admitted.iter().enumerate() {
                let mut sum = 0u128;
                for (end, cost) in &admitted[from..] {
                    sum += u128::from(*cost);
                    let allowed = u128::from(limit.capacity.count()) * p + n * u128::from(end - start);
                    prop_assert!(sum * p <= allowed, "{} units in {} µs", sum, end - start);
                }
            }
        }

        /// However the clock jumps, a balance stays between nothing and the capacity, and no wait is negative.
        #[test]
        fn no_clock_takes_a_balance_out_of_its_bounds(
            limit in any_limit(),
            steps in prop::collection::vec((1u64..=60, 0u64..=Micros::MAX.count()), 1..40),
        ) {
            let mut bucket = Bucket::new(limit);
            for (cost, now) in steps {
                let before = bucket.stored;
                let verdict = bucket.request(cost, now);
                prop_assert!(bucket.tokens() <= limit.capacity.count());
                if let Some(before) = before.filter(|before| before.at > Micros::new(now) && verdict != Verdict::Admit) {
                    prop_assert_eq!(bucket.tokens(), before.tokens, "a step back minted");
                }
            }
        }
    }
}
