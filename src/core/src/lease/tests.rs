#![allow(clippy::arithmetic_side_effects)]
use super::*;
use crate::admit::{Kept, Stored, decide};
use crate::limit::{Limit, State};
use crate::units::{RefillRate, Tokens};
use crate::wire::{ChargeRequest, Cost, DecisionAnswer, Denial, LeaseAnswer};
use std::collections::BTreeMap;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn limit(capacity: u64, per_second: u64) -> TokenBucket {
    TokenBucket {
        capacity: Tokens::new(capacity).unwrap(),
        refill: RefillRate::new(per_second, Micros::from_secs(1)).unwrap(),
        keep: Micros::ZERO,
    }
}

/// One bucket, as a store has it.
struct Lender {
    limit: TokenBucket,
    state: Option<State>,
    records: BTreeMap<Digest, LeaseRecord>,
}

fn lessee(number: u8) -> Digest {
    Digest::from_bytes([number; 16])
}

impl Lender {
    fn new(limit: TokenBucket) -> Self {
        Self { limit, state: None, records: BTreeMap::new() }
    }

    fn ask(
        &mut self,
        cost: u64,
        lease: Option<LeaseCall>,
        now: Micros,
    ) -> (bool, u64, Option<u64>, Option<LeaseAnswer>) {
        let charge = ChargeRequest {
            policy: "p".into(),
            key: lessee(0),
            group: lessee(0),
            cost: Tokens::new(cost).map(Cost),
            limit: Limit::TokenBucket(self.limit),
            lease,
            learn: false,
        };
        let record = lease.and_then(|call| self.records.get(&call.lessee).copied());
        let stored = Stored { state: self.state.clone(), record };
        let decided = decide(&[charge], &[stored], None, now).unwrap();
        let [Kept { state, record, .. }] = <[Kept; 1]>::try_from(decided.kept).unwrap();
        if let Some((state, _)) = state {
            self.state = Some(state);
        }
        if let Some((call, record)) = lease.zip(record) {
            self.records.insert(call.lessee, record);
        }
        match decided.answer {
            DecisionAnswer::Admitted(admitted) => (true, admitted[0].remaining, None, admitted[0].lease),
            DecisionAnswer::Denied(denied) => {
                let wait = if let Some(Denial::WaitUs(wait)) = denied[0].denied { Some(wait) } else { None };
                (false, denied[0].remaining, wait, denied[0].lease)
            }
            DecisionAnswer::Failed(failure) => panic!("{failure:?}"),
        }
    }

    /// A call about a lease alone; what the lessee has then.
    fn lend(&mut self, call: LeaseCall, now: Micros) -> Option<u64> {
        self.ask(0, Some(call), now).3.map(|lease| lease.units)
    }

    fn left(&mut self, now: Micros) -> u64 {
        self.ask(0, None, now).1
    }
}

fn call(number: u8, seq: u64, kept: u64, returned: u64, wanted: u64) -> LeaseCall {
    LeaseCall { lessee: lessee(number), seq, acked: seq - 1, kept, returned, wanted, demand: 0 }
}

const NOW: Micros = Micros::from_secs(100);

#[test]
fn a_lease_is_a_part_of_what_is_left() {
    let mut lender = Lender::new(limit(100, 1));
    assert_eq!(lender.lend(call(1, 1, 0, 0, 10), NOW), Some(10));
    assert_eq!(lender.left(NOW), 90);
    // A quarter of what is left at the most, and half of the capacity to all.
    assert_eq!(lender.lend(call(2, 1, 0, 0, 1000), NOW), Some(22));
    assert_eq!(lender.lend(call(3, 1, 0, 0, 1000), NOW), Some(17));
    assert_eq!(lender.lend(call(4, 1, 0, 0, 1000), NOW), Some(0), "one is not worth the call");
    assert_eq!(lender.left(NOW), 51);
}

#[test]
fn refill_leaves_room_for_what_is_lent_until_it_is_forgotten() {
    let mut lender = Lender::new(limit(100, 1000));
    assert_eq!(lender.lend(call(1, 1, 0, 0, 20), NOW), Some(20));
    let kept = NOW.plus(Micros::from_millis(3999));
    assert_eq!(lender.left(kept), 80);
    assert_eq!(lender.left(NOW.plus(Micros::from_secs(4))), 80, "it begins to refill then");
    assert_eq!(lender.left(NOW.plus(Micros::from_millis(4010))), 90);
    assert_eq!(lender.left(NOW.plus(Micros::from_millis(4020))), 100);
}

#[test]
fn what_is_given_back_is_there_again_and_what_was_spent_is_not() {
    let mut lender = Lender::new(limit(100, 1));
    assert_eq!(lender.lend(call(1, 1, 0, 0, 20), NOW), Some(20));
    assert_eq!(lender.lend(call(1, 2, 5, 8, 0), NOW), Some(5), "seven were spent");
    assert_eq!(lender.left(NOW), 88);
    assert_eq!(lender.lend(call(1, 3, 0, 5, 0), NOW), Some(0));
    assert_eq!(lender.left(NOW), 93);
}

#[test]
fn a_rate_that_was_lent_by_another_refill_is_released_as_it_was_counted() {
    for (before, after) in [(40, 80), (40, 13), (7, 1000), (1000, 7)] {
        let mut lender = Lender::new(limit(200, before));
        assert!(lender.ask(200, None, NOW).0);
        let ask = |number, seq| LeaseCall { demand: 3 * before.max(after), ..call(number, seq, 0, 0, 10) };
        for (number, seq) in [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (3, 2), (4, 2)] {
            lender.lend(ask(number, seq), NOW);
        }
        assert!(lender.records.values().filter(|record| record.rate > 0).count() > 1, "{before}: {:?}", lender.records);
        lender.limit = limit(200, after);
        for number in [1, 3] {
            lender.lend(ask(number, 3), NOW.plus(Micros::from_millis(1)));
            let Some(State::TokenBucket(balance)) = &lender.state else { panic!("{:?}", lender.state) };
            // By the lender's period, as nobody who has a part of it may be forgotten, and no part of nobody's is kept.
            let counted = balance.lent.rate.total();
            let out = |record: &LeaseRecord| over_period(record.rate, record.period, balance.period);
            let out: u64 = lender.records.values().map(out).sum();
            assert!((out..=out + 8).contains(&counted), "{before} to {after}: {out} are out, {counted} are counted");
        }
    }
}

#[test]
fn a_report_counts_once_in_whatever_order_calls_arrive() {
    let mut lender = Lender::new(limit(100, 1));
    assert_eq!(lender.lend(call(1, 1, 0, 0, 20), NOW), Some(20));
    assert_eq!(lender.lend(call(1, 1, 0, 0, 20), NOW), Some(20), "the same again");
    assert_eq!(lender.left(NOW), 80);
    assert_eq!(lender.lend(call(1, 2, 0, 10, 0), NOW), Some(0));
    assert_eq!(lender.lend(call(1, 2, 0, 10, 0), NOW), Some(0));
    assert_eq!(lender.lend(call(1, 1, 0, 0, 20), NOW), None, "nobody waits for it any more");
    assert_eq!(lender.left(NOW), 90);
}

#[test]
fn nobody_gives_back_more_than_was_lent() {
    let mut lender = Lender::new(limit(100, 1));
    assert_eq!(lender.lend(call(1, 1, 0, 50, 20), NOW), Some(20));
    assert_eq!(lender.lend(call(1, 2, 50, 50, 0), NOW), Some(20));
    assert_eq!(lender.lend(call(1, 3, 0, 50, 0), NOW), Some(0));
    assert_eq!(lender.left(NOW), 100);
    assert_eq!(lender.lend(call(1, 4, 0, 50, 0), NOW), Some(0));
    assert_eq!(lender.lend(call(2, 9, 7, 7, 0), NOW), Some(0), "it has nothing");
    assert_eq!(lender.left(NOW), 100);
}

#[test]
fn what_an_answer_brought_that_never_arrived_comes_back_with_the_next_call() {
    let mut lender = Lender::new(limit(100, 1));
    assert_eq!(lender.lend(call(1, 1, 0, 0, 20), NOW), Some(20));
    assert_eq!(lender.lend(call(1, 2, 15, 0, 10), NOW), Some(25));
    // The answer was lost, and five of the first were spent since.
    let unheard = LeaseCall { acked: 1, ..call(1, 3, 10, 0, 0) };
    assert_eq!(lender.lend(unheard, NOW), Some(10));
    assert_eq!(lender.left(NOW), 80);
}

#[test]
fn a_lease_that_is_never_reported_is_taken_for_spent() {
    let mut lender = Lender::new(limit(100, 1));
    assert_eq!(lender.lend(call(1, 1, 0, 0, 20), NOW), Some(20));
    let dead = NOW.plus(LEASE_LIFE).plus(LEASE_LIFE);
    assert_eq!(lender.lend(call(1, 2, 20, 0, 0), dead), Some(0));
    assert_eq!(lender.left(dead), 80);
}

#[test]
fn a_wait_ends_when_the_units_are_there_beside_what_is_lent() {
    let mut lender = Lender::new(limit(100, 1000));
    assert_eq!(lender.lend(call(1, 1, 0, 0, 20), NOW), Some(20));
    assert!(lender.ask(80, None, NOW).0);
    assert_eq!(lender.ask(80, None, NOW).2, Some(80_000));
    assert!(lender.ask(80, None, NOW.plus(Micros::from_millis(80))).0);
    // More than there is room for beside the lease has to wait until that is forgotten.
    let late = NOW.plus(Micros::from_millis(500));
    assert_eq!(lender.ask(90, None, late).2, Some(3_510_000));
    assert!(!lender.ask(90, None, late.plus(Micros::new(3_509_999))).0);
    assert!(lender.ask(90, None, late.plus(Micros::new(3_510_000))).0);
}

#[test]
fn a_lower_capacity_is_lent_no_further() {
    let mut lender = Lender::new(limit(100, 1));
    assert_eq!(lender.lend(call(1, 1, 0, 0, 20), NOW), Some(20));
    lender.limit = limit(10, 1);
    assert_eq!(lender.left(NOW), 0, "there is no room beside what is lent");
    assert_eq!(lender.lend(call(1, 2, 0, 20, 5), NOW), Some(2));
    assert_eq!(lender.left(NOW), 8);
}

#[test]
fn a_clock_that_is_set_back_forgets_no_lease() {
    let mut lender = Lender::new(limit(100, 1000));
    assert_eq!(lender.lend(call(1, 1, 0, 0, 20), NOW), Some(20));
    let before = Micros::from_secs(99);
    assert_eq!(lender.left(before), 80);
    assert_eq!(lender.lend(call(1, 2, 20, 0, 0), before), Some(20), "not far: by the time that is stored");
    // So far is a fault, and the stored time is moved.
    let early = Micros::from_secs(1);
    assert!(lender.ask(10, None, early).0);
    assert_eq!(lender.left(early.plus(Micros::from_secs(1))), 80, "refilled");
    // Which generation its lease is counted in cannot be told any more: it stays counted until all of it is forgotten.
    assert_eq!(lender.lend(call(1, 3, 20, 0, 0), early.plus(Micros::from_secs(1))), Some(0));
    assert_eq!(lender.left(early.plus(Micros::from_secs(2))), 80);
    assert_eq!(lender.left(early.plus(Micros::from_secs(5))), 100);
}

/// A lender, and a holder that has borrowed from it for this key.
fn lender_and_holder(limit: TokenBucket, key: Digest) -> (Lender, LeaseSet) {
    let (mut lender, mut set) = (Lender::new(limit), LeaseSet::default());
    for time in 0..2 {
        let now = NOW.plus(Micros::new(time));
        let call = set.miss(key, 1, false, lessee(1), now);
        let answer = call.and_then(|call| lender.ask(0, Some(call), now).3);
        let call = call.map(|call| (call, answer));
        set.told(key, &LeaseNews { call, ..LeaseNews::default() }, &limit, now);
    }
    assert!(set.is_lent(key, &limit, NOW));
    (lender, set)
}

#[test]
fn units_that_a_request_holds_are_lent_and_go_back_when_it_is_denied() {
    let key = lessee(0);
    let (mut lender, mut set) = lender_and_holder(limit(100, 1), key);
    let lent = 100 - lender.left(NOW);
    let (hold, renewal) = set.take(key, lent, true, NOW);
    let failed = LeaseNews { call: renewal.map(|call| (call, None)), ..LeaseNews::default() };
    set.told(key, &failed, &lender.limit, NOW);
    let later = NOW.plus(Micros::from_secs(1));
    // Whoever looks now and finds that nothing is lent would not look again.
    assert_eq!((set.give_back(key, &lender.limit, later), set.is_lent(key, &lender.limit, later)), (None, true));
    set.settle(key, hold.unwrap(), lent, true, later);
    assert_eq!(set.give_back(key, &lender.limit, later).map(|call| call.returned), Some(lent));
}

#[test]
fn a_lease_goes_back_by_the_limit_that_it_was_lent_by_and_by_no_other() {
    let key = lessee(0);
    let (mut lender, mut set) = lender_and_holder(limit(100, 1), key);
    let later = NOW.plus(Micros::from_secs(1));
    // A worker may have had a configuration before, which knows of the lease as well.
    for before in [limit(100, 1000), limit(400, 1)] {
        assert_eq!((set.give_back(key, &before, later), set.is_lent(key, &before, later)), (None, false));
    }
    assert!(set.is_lent(key, &lender.limit, later));
    let returned = set.give_back(key, &lender.limit, later).map(|call| call.returned);
    assert_eq!(returned, Some(100 - lender.left(NOW)));
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use super::*;
    use crate::limit::Algorithm;
    use proptest::prelude::*;

    /// A lessee that may lose what it asks and what it is told.
    #[derive(Clone, Default)]
    struct Lessee {
        seq: u64,
        acked: u64,
        /// In parts of a unit, as many as the rate's period has microseconds; what it earns of those in a microsecond, until it
        /// has so many units.
        parts: u64,
        rate: u64,
        most: u64,
        earned_at: Micros,
        dead_at: Micros,
        /// Every call it has made.
        sent: Vec<(LeaseCall, Micros)>,
    }

    impl Lessee {
        fn earn(&mut self, period: u64, now: Micros) {
            let gained = self.rate * now.min(self.dead_at).since(self.earned_at).count();
            self.parts = (self.parts + gained).min((self.most * period).max(self.parts));
            self.earned_at = now;
            if self.dead_at <= now {
                (self.parts, self.rate) = (0, 0);
            }
        }

        fn units(&self, period: u64) -> u64 {
            self.parts / period
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// The envelope, in every window, and `b + L ≤ C` at all times.
        #[test]
        fn no_window_spends_more_whatever_is_lent_lost_and_sent_again(
            capacity in 1u64..60,
            per_second in 1u64..40,
            steps in prop::collection::vec((0u8..8, 0u8..3, 0u64..40, prop_oneof![0u64..1000, 0u64..3_000_000]), 1..120),
        ) {
            let limit = limit(capacity, per_second);
            let period = limit.rate().period();
            let mut lender = Lender::new(limit);
            let mut lessees = vec![Lessee::default(); 3];
            let (mut now, mut spent) = (NOW, Vec::new());
            for (action, number, amount, gap) in steps {
                now = now.plus(Micros::new(gap));
                let me = &mut lessees[usize::from(number)];
                me.earn(period, now);
                match action {
                    0 | 1 => {
                        let units = amount.min(me.units(period));
                        me.parts -= units * period;
                        spent.push((now.count(), units));
                    }
                    2 if amount > 0 => if lender.ask(amount, None, now).0 {
                        spent.push((now.count(), amount));
                    },
                    3..=5 => {
                        me.seq += 1;
                        let returned = if amount % 3 == 0 { amount.min(me.units(period)) } else { 0 };
                        me.parts -= returned * period;
                        // Whether the call is heard decides by which rate the lender counts.
                        me.rate = 0;
                        let call = LeaseCall {
                            lessee: lessee(number), seq: me.seq, acked: me.acked, kept: me.units(period), returned, wanted: amount, demand: 3 * amount,
                        };
                        me.sent.push((call, now));
                        // 4: the call is lost, or arrives later. 5: the answer is lost.
                        let answer = if action == 4 { None } else { lender.ask(amount, Some(call), now).3 };
                        if action == 3 {
                            let told = answer.unwrap();
                            me.acked = told.seq;
                            me.parts = (me.parts + told.units * period).saturating_sub(call.kept * period);
                            (me.rate, me.most) = (told.rate, told.units + told.room);
                            me.dead_at = now.plus(LEASE_USE);
                        }
                    }
                    // An old call arrives, for the first time or again.
                    6 if !me.sent.is_empty() => {
                        let (call, _) = me.sent[usize::try_from(amount).unwrap() % me.sent.len()];
                        lender.lend(call, now);
                    }
                    _ => *me = Lessee { seq: me.seq + 1, acked: me.seq, sent: take(&mut me.sent), ..Lessee::default() },
                }
                if let Some(State::TokenBucket(balance)) = &lender.state {
                    let balance = limit.advance(Some(balance), now);
                    prop_assert!(balance.lent.rate.total() <= limit.rate().tokens());
                    prop_assert!(balance.tokens + balance.lent.units.total() <= capacity);
                }
            }
            // What is there at the end is spent at once, which shows what should not be.
            let alive = lessees.iter_mut().map(|lessee| {
                lessee.earn(period, now);
                lessee.units(period)
            }).sum();
            spent.push((now.count(), alive));
            while lender.ask(1, None, now).0 {
                spent.push((now.count(), 1));
            }
            for (from, (start, _)) in spent.iter().enumerate() {
                let mut sum = 0;
                for (end, cost) in &spent[from..] {
                    sum += cost * 1_000_000;
                    prop_assert!(sum <= capacity * 1_000_000 + per_second * (end - start), "{spent:?}");
                }
            }
        }
    }

    use std::mem::take;

    proptest! {
        /// Shared data may hold anything that looks like leases.
        #[test]
        fn no_numbers_in_a_set_of_leases_harm(
            numbers in prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), 0u64..100, any::<u64>()], 29 * 4),
            now in prop_oneof![0u64..100, any::<u64>()],
            cost in prop_oneof![1u64..10, any::<u64>()],
            number in prop_oneof![0u64..10, any::<u64>()],
            hold in any::<bool>(),
        ) {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            let now = Micros::new(now);
            let mut set = LeaseSet::decode(&bytes).unwrap();
            prop_assert_eq!(LeaseSet::decode(&set.encode()).unwrap().encode(), set.encode());
            let key = Digest::from_bytes(bytes[..16].try_into().unwrap());
            for _ in 0..3 {
                let (held, call) = match set.find(key, cost, now) {
                    Found::There { .. } => set.take(key, cost, hold, now),
                    _ => (None, set.miss(key, cost, false, key, now)),
                };
                if let Some(held) = held {
                    set.settle(key, held, cost, true, now);
                }
                let answer = call.map(|call| LeaseAnswer { seq: call.seq, units: cost, room: number, rate: number });
                let call = call.map(|call| (call, answer));
                set.told(key, &LeaseNews { left: Some(cost), denied: Some((cost, now)), call }, &limit(number.clamp(1, 100), 7), now);
                set.deny(key, cost, now);
                set.give_back(key, &limit(number.clamp(1, 100), 7), now);
                let _ = set.is_lent(key, &limit(number.clamp(1, 100), 7), now);
                set.take_expired();
            }
        }
    }
}

#[test]
fn where_all_want_more_than_there_is_each_gets_a_share_of_the_refill_by_its_demand() {
    let mut lender = Lender::new(limit(100, 100));
    assert!(lender.ask(100, None, NOW).0);
    let ask = |lender: &mut Lender, number, seq, demand| {
        let call = LeaseCall { demand, ..call(number, seq, 0, 0, demand) };
        lender.ask(0, Some(call), NOW).3.expect("an answer")
    };
    let whole = lender.limit.rate().tokens();
    let one = ask(&mut lender, 1, 1, 90);
    assert_eq!((one.units, one.rate, one.room), (0, 0, 0), "there is enough for 90 a second");
    // Room is for half a second, and within the share of the half that is lent.
    let other = ask(&mut lender, 2, 1, 300);
    let lendable = whole - whole / 32;
    assert_eq!((other.units, other.rate, other.room), (0, lendable * 300 / 390, 38), "a part stays for newcomers");
    // Whoever asks last has no less for that.
    let one = ask(&mut lender, 1, 2, 90);
    assert_eq!((one.units, one.rate, one.room), (0, lendable * 90 / 390, 11));
    // Nothing comes back to the bucket but that part, until the rates are forgotten.
    assert_eq!(lender.left(NOW.plus(Micros::from_secs(1))), 3);
    assert_eq!(lender.left(NOW.plus(Micros::from_secs(4))), 12);
    assert_eq!(lender.left(NOW.plus(Micros::from_millis(4_500))), 62);
}

#[test]
fn a_burst_is_admitted_up_to_what_is_left() {
    for (capacity, per_second, lessees) in
        [(1000, 100, 1), (1000, 100, 3), (2000, 1000, 4), (100, 50, 2), (200, 1000, 1)]
    {
        let mut lender = Lender::new(limit(capacity, per_second));
        let bucket = lender.limit;
        let mut sets = vec![LeaseSet::default(); lessees];
        let (key, mut spent) = (lessee(0), 0);
        // One request in each microsecond, so that nothing is refilled meanwhile; every answer comes at once.
        for time in 0..2 * capacity {
            let (now, index) = (NOW.plus(Micros::new(time)), usize::try_from(time).unwrap() % lessees);
            let set = &mut sets[index];
            let me = lessee(u8::try_from(index).unwrap() + 1);
            let (cost, call) = match set.find(key, 1, now) {
                Found::There { .. } => {
                    spent += 1;
                    (0, set.take(key, 1, false, now).1)
                }
                Found::Missing => (1, set.miss(key, 1, false, me, now)),
                Found::Denied { .. } => continue,
            };
            if cost > 0 || call.is_some() {
                let (admitted, left, wait, answer) = lender.ask(cost, call, now);
                spent += if admitted { cost } else { 0 };
                let denied = wait.map(|wait| (1, Micros::new(wait)));
                let news = LeaseNews { left: Some(left), denied, call: call.map(|call| (call, answer)) };
                set.told(key, &news, &bucket, now);
            }
        }
        // All but what the lessees that have denied leave in the bucket for newcomers.
        let plenty = capacity.max(per_second).div_ceil(8);
        assert!(spent + plenty >= capacity, "{capacity} {per_second} {lessees}: {spent}");
    }
}
