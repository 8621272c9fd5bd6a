//! Local buckets in a space that can never shrink.
//!
//! A proxy's shared data cannot be freed, so buckets live in a fixed table: [`SETS`] sets, each one shared-data value
//! that is read and written as a whole by compare-and-set. A set has room for [`WAYS`] buckets. A bucket that would be
//! full is dropped, since absence means full; nothing else ever is. When all ways are taken, newcomers share one
//! overflow bucket of their policy in that set, so that nothing is admitted untracked. A newcomer that later finds a
//! free way starts from what the overflow bucket has left, so moving never mints units.

use crate::key::Digest;
use crate::limit::outstanding::{Lent, Outstanding, forgotten_at, generation};
use crate::limit::{Algorithm, Balance, TokenBucket};
use crate::units::{Micros, Tokens};

/// Sets in a table.
pub const SETS: u32 = 8192;

/// Buckets of single keys in a set.
pub const WAYS: usize = 4;

/// All buckets in a set: beside the ways one overflow bucket for each policy, of one configuration and of those it
/// replaced a moment ago.
const MAX_ENTRIES: usize = 128;

/// How long a hold counts at least; twice that at most. Longer than any decision takes, so a hold that is older than
/// this was forgotten: its units are taken for spent, and the bucket may fill up again.
pub const HOLD_LIFE: Micros = Micros::from_secs(16);

/// One set, as read at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotSet {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    key: Digest,
    overflow: bool,
    balance: Balance,
    held: Outstanding,
    full_at: Micros,
}

/// A bucket as found in a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    key: Digest,
    overflow: bool,
    held: Outstanding,
    /// What it holds now.
    pub balance: Balance,
}

/// A hold on a bucket, to be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    key: Digest,
    overflow: bool,
    generation: u64,
}

impl Seat {
    /// Whether this is the bucket that newcomers of one policy share.
    #[must_use]
    pub const fn is_overflow(&self) -> bool {
        self.overflow
    }
}

/// The stored bytes are not a set: something else writes to the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the stored bytes are not a set of buckets")
    }
}

impl core::error::Error for Malformed {}

/// One entry: key, overflow flag, seven little-endian numbers.
const ENTRY_LEN: usize = Digest::LEN + 1 + 7 * 8;

/// Names the format of the stored bytes: another one has entries of another size.
pub const FORMAT: usize = ENTRY_LEN;

impl SlotSet {
    /// Reads a set and drops the buckets that are full by `now`.
    ///
    /// # Errors
    /// When the bytes are not a set that [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8], now: Micros) -> Result<Self, Malformed> {
        let (entries, rest) = bytes.as_chunks::<ENTRY_LEN>();
        if !rest.is_empty() || entries.len() > MAX_ENTRIES.saturating_add(WAYS) {
            return Err(Malformed);
        }
        let mut set = Self { entries: entries.iter().map(Entry::decode).collect::<Option<_>>().ok_or(Malformed)? };
        set.entries.retain(|entry| entry.full_at > now);
        Ok(set)
    }

    /// The bytes to store.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.entries.len().saturating_mul(ENTRY_LEN));
        for entry in &self.entries {
            entry.encode(&mut bytes);
        }
        bytes
    }

    /// The bucket that serves `key`: its own, a free way, or the overflow bucket of its policy.
    #[must_use]
    pub fn seat(&self, key: Digest, overflow: Digest, limit: &TokenBucket, now: Micros) -> Seat {
        if let Some(own) = self.find(key, false) {
            return own.seat(limit, now);
        }
        let taken = self.entries.iter().filter(|entry| !entry.overflow).count();
        let free = taken < WAYS;
        let (key, is_overflow) = if free { (key, false) } else { (overflow, true) };
        match self.find(overflow, true) {
            // It brings its debt along, but not what others may still give back to the shared bucket.
            Some(shared) if free => {
                Seat { key, overflow: false, held: Outstanding::default(), ..shared.seat(limit, now) }
            }
            Some(shared) => shared.seat(limit, now),
            // No room for one more: nothing is there.
            None if is_overflow && self.entries.len() >= MAX_ENTRIES => {
                Seat { key, overflow: true, held: Outstanding::default(), balance: limit.empty(now) }
            }
            None => {
                Seat { key, overflow: is_overflow, held: Outstanding::default(), balance: limit.advance(None, now) }
            }
        }
    }

    /// Takes `cost` from a seat of this set, for good.
    pub fn spend(&mut self, mut seat: Seat, cost: Tokens, limit: &TokenBucket, now: Micros) {
        limit.spend(&mut seat.balance, cost, now);
        self.put(seat, limit, now);
    }

    /// Takes `cost` from a seat of this set, to be settled by [`confirm`](Self::confirm) or
    /// [`give_back`](Self::give_back).
    #[must_use]
    pub fn hold(&mut self, mut seat: Seat, cost: Tokens, limit: &TokenBucket, now: Micros) -> Hold {
        let hold = Hold { key: seat.key, overflow: seat.overflow, generation: generation(now, HOLD_LIFE) };
        limit.spend(&mut seat.balance, cost, now);
        seat.held.take(cost.count());
        self.put(seat, limit, now);
        hold
    }

    /// What was held is spent.
    pub fn confirm(&mut self, hold: Hold, cost: Tokens, limit: &TokenBucket, now: Micros) {
        self.settle(hold, cost, limit, now, false);
    }

    /// What was held comes back. A hold that was forgotten brings nothing.
    pub fn give_back(&mut self, hold: Hold, cost: Tokens, limit: &TokenBucket, now: Micros) {
        self.settle(hold, cost, limit, now, true);
    }

    fn settle(&mut self, hold: Hold, cost: Tokens, limit: &TokenBucket, now: Micros, back: bool) {
        let Some(entry) = self.find(hold.key, hold.overflow) else { return };
        let mut seat = entry.seat(limit, now);
        let released = seat.held.release(hold.generation, cost.count(), generation(now, HOLD_LIFE));
        if back {
            seat.balance.tokens = seat.balance.tokens.saturating_add(released);
        }
        // Cuts what a lower capacity has no room for.
        seat.balance = limit.refill_beside(Some(seat.balance), now, seat.held.total());
        self.put(seat, limit, now);
    }

    fn put(&mut self, seat: Seat, limit: &TokenBucket, now: Micros) {
        let mut full_at = limit.full_at(&seat.balance, now);
        if seat.held.total() > 0 {
            full_at = full_at.plus(forgotten_at(now, HOLD_LIFE).since(now));
        }
        self.entries.retain(|entry| entry.key != seat.key || entry.overflow != seat.overflow);
        if full_at > now {
            let Seat { key, overflow, held, balance } = seat;
            self.entries.push(Entry { key, overflow, balance, held, full_at });
        }
    }

    fn find(&self, key: Digest, overflow: bool) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key && entry.overflow == overflow)
    }
}

impl Entry {
    /// The bucket as it is now: refilled beside what is held, generation by generation.
    fn seat(&self, limit: &TokenBucket, now: Micros) -> Seat {
        let (balance, held) = limit.refill_beside_all(self.balance, self.held, HOLD_LIFE, now);
        Seat { key: self.key, overflow: self.overflow, held, balance }
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.key.as_bytes());
        bytes.push(u8::from(self.overflow));
        let Balance { tokens, fraction, period, at, .. } = self.balance;
        let Outstanding { current, previous } = self.held;
        for number in [tokens, fraction, period, at.count(), current, previous, self.full_at.count()] {
            bytes.extend(number.to_le_bytes());
        }
    }

    fn decode(bytes: &[u8; ENTRY_LEN]) -> Option<Self> {
        let (key, rest) = bytes.split_first_chunk::<{ Digest::LEN }>()?;
        let (flag, rest) = rest.split_first()?;
        let (numbers, _) = rest.as_chunks::<8>();
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let mut next = || numbers.next();
        Some(Self {
            key: Digest::from_bytes(*key),
            overflow: match flag {
                0 => false,
                1 => true,
                _ => return None,
            },
            balance: Balance {
                tokens: next()?,
                fraction: next()?,
                period: next()?,
                at: Micros::new(next()?),
                lent: Lent::default(),
            },
            held: Outstanding { current: next()?, previous: next()? },
            full_at: Micros::new(next()?),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::arithmetic_side_effects)]
    use super::*;
    use crate::key::HashKey;
    use crate::limit::Verdict;
    use crate::units::RefillRate;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn limit(capacity: u64) -> TokenBucket {
        TokenBucket {
            capacity: Tokens::new(capacity).unwrap(),
            refill: RefillRate::new(1, Micros::from_secs(1)).unwrap(),
            keep: Micros::ZERO,
        }
    }

    fn key(number: u32) -> Digest {
        let hash_key = HashKey::new(b"test");
        let mut digester = hash_key.digest("key");
        digester.part(&number.to_le_bytes());
        digester.finish()
    }

    fn overflow() -> Digest {
        HashKey::new(b"test").digest("overflow").finish()
    }

    /// One request for one unit; every step goes through the stored bytes.
    fn request(bytes: &mut Vec<u8>, number: u32, capacity: u64, now: Micros) -> bool {
        let limit = limit(capacity);
        let mut set = SlotSet::decode(bytes, now).unwrap();
        let seat = set.seat(key(number), overflow(), &limit, now);
        if limit.check(&seat.balance, Tokens::ONE, now) != Verdict::Admit {
            return false;
        }
        set.spend(seat, Tokens::ONE, &limit, now);
        *bytes = set.encode();
        true
    }

    const NOW: Micros = Micros::from_secs(100);

    #[test]
    fn each_key_has_its_own_bucket_while_there_is_room() {
        let mut bytes = Vec::new();
        for number in 0..4 {
            assert_eq!((0..5).filter(|_| request(&mut bytes, number, 3, NOW)).count(), 3);
        }
    }

    #[test]
    fn newcomers_to_a_full_set_share_one_bucket_and_evict_nobody() {
        // F77
        let mut bytes = Vec::new();
        for number in 0..4 {
            while request(&mut bytes, number, 3, NOW) {}
        }
        let admitted = (4..10_000).filter(|number| request(&mut bytes, *number, 3, NOW)).count();
        assert_eq!(admitted, 3, "all newcomers together");
        assert!((0..4).all(|number| !request(&mut bytes, number, 3, NOW)), "nobody got a fresh bucket");
        assert!(bytes.len() <= 5 * ENTRY_LEN);
    }

    #[test]
    fn a_newcomer_that_gets_a_way_brings_its_debt_along() {
        let mut bytes = Vec::new();
        assert!(request(&mut bytes, 0, 1, NOW), "full again after one second");
        for number in 1..4 {
            while request(&mut bytes, number, 9, NOW) {}
        }
        while request(&mut bytes, 9, 9, NOW) {}
        let later = NOW.plus(Micros::from_secs(1));
        assert!(request(&mut bytes, 9, 9, later), "one unit has come back");
        assert!(!request(&mut bytes, 9, 9, later), "and only one, although key 0 has left its way");
    }

    #[test]
    fn a_bucket_that_is_full_again_takes_no_room() {
        let mut bytes = Vec::new();
        for number in 0..4 {
            assert!(request(&mut bytes, number, 2, NOW));
        }
        let later = NOW.plus(Micros::from_secs(1));
        assert_eq!(SlotSet::decode(&bytes, later), Ok(SlotSet::default()));
        assert_ne!(SlotSet::decode(&bytes, Micros::new(later.count() - 1)), Ok(SlotSet::default()));
    }

    #[test]
    fn a_full_bucket_that_is_to_be_kept_stays() {
        let kept = TokenBucket { keep: Micros::from_secs(60), ..limit(2) };
        let mut set = SlotSet::default();
        set.spend(set.seat(key(1), overflow(), &kept, NOW), Tokens::ONE, &kept, NOW);
        let full = NOW.plus(Micros::from_secs(59));
        assert_eq!(left(&stored(&set, full), &kept, full), 2);
        // One who has had a capacity of 2 does not find 9 because of it.
        assert_eq!(left(&stored(&set, NOW), &limit(9), NOW), 1);
        assert_eq!(stored(&set, NOW.plus(Micros::from_secs(60))), SlotSet::default());
    }

    /// A set through the bytes it is stored as.
    fn stored(set: &SlotSet, now: Micros) -> SlotSet {
        SlotSet::decode(&set.encode(), now).unwrap()
    }

    fn left(set: &SlotSet, limit: &TokenBucket, now: Micros) -> u64 {
        set.seat(key(1), overflow(), limit, now).balance.tokens
    }

    fn units(count: u64) -> Tokens {
        Tokens::new(count).unwrap()
    }

    #[test]
    fn what_is_given_back_is_there_again_and_what_is_confirmed_is_not() {
        let limit = limit(3);
        let mut set = SlotSet::default();
        let first = set.hold(set.seat(key(1), overflow(), &limit, NOW), units(2), &limit, NOW);
        let second = set.hold(set.seat(key(1), overflow(), &limit, NOW), units(1), &limit, NOW);
        assert_eq!(left(&set, &limit, NOW), 0);
        set.give_back(first, units(2), &limit, NOW);
        assert_eq!(left(&set, &limit, NOW), 2);
        set.confirm(second, units(1), &limit, NOW);
        assert_eq!(left(&set, &limit, NOW), 2);
        set.give_back(second, units(1), &limit, NOW);
        assert_eq!(left(&set, &limit, NOW), 2, "a hold is settled once");
    }

    #[test]
    fn what_is_given_back_is_not_minted_anew() {
        // Taken from a full bucket, given back when the bucket would have filled up again without it.
        let limit = limit(5);
        let mut set = SlotSet::default();
        let hold = set.hold(set.seat(key(1), overflow(), &limit, NOW), units(5), &limit, NOW);
        let later = NOW.plus(Micros::from_secs(5));
        assert_eq!(left(&stored(&set, later), &limit, later), 0, "no room beside what is held");
        set.give_back(hold, units(5), &limit, later);
        assert_eq!(left(&set, &limit, later), 5);
    }

    #[test]
    fn a_hold_is_given_back_in_the_generation_after_too() {
        let limit = TokenBucket { refill: RefillRate::new(1, Micros::from_secs(3600)).unwrap(), ..limit(5) };
        let before = Micros::new(HOLD_LIFE.count() * 7 - 1);
        let mut set = SlotSet::default();
        let hold = set.hold(set.seat(key(1), overflow(), &limit, before), units(5), &limit, before);
        let after = before.plus(Micros::from_secs(2));
        let mut set = stored(&set, after);
        set.give_back(hold, units(5), &limit, after);
        assert_eq!(left(&set, &limit, after), 5);
    }

    #[test]
    fn a_set_never_holds_more_than_it_can_be_read_with() {
        let limit = limit(100);
        let mut bytes = Vec::new();
        // Many policies, each with a newcomer to a set that is full.
        for policy in 0..500 {
            let mut set = SlotSet::decode(&bytes, NOW).unwrap();
            let hash_key = HashKey::new(b"test");
            let mut digester = hash_key.digest("overflow");
            digester.part(&u32::to_le_bytes(policy));
            let seat = set.seat(key(policy), digester.finish(), &limit, NOW);
            if limit.check(&seat.balance, Tokens::ONE, NOW) == Verdict::Admit {
                set.spend(seat, Tokens::ONE, &limit, NOW);
            } else {
                assert!(policy > 100);
            }
            bytes = set.encode();
        }
        assert!(SlotSet::decode(&bytes, NOW).is_ok());
    }

    #[test]
    fn a_hold_that_nobody_settles_is_forgotten_and_its_units_are_spent() {
        let limit = limit(5);
        let mut set = SlotSet::default();
        let hold = set.hold(set.seat(key(1), overflow(), &limit, NOW), units(5), &limit, NOW);
        let kept = NOW.plus(HOLD_LIFE);
        assert_eq!(left(&stored(&set, kept), &limit, kept), 0);
        let forgotten = NOW.plus(HOLD_LIFE).plus(HOLD_LIFE);
        let mut set = stored(&set, forgotten);
        let before = left(&set, &limit, forgotten);
        assert_eq!(before, 4);
        set.give_back(hold, units(5), &limit, forgotten);
        assert_eq!(left(&set, &limit, forgotten), before, "too late");
        let full = forgotten.plus(Micros::from_secs(5)).plus(HOLD_LIFE);
        assert_eq!(left(&stored(&set, full), &limit, full), 5);
        assert_eq!(stored(&set, full), SlotSet::default());
    }

    #[cfg(not(target_arch = "wasm32"))]
    mod properties {
        use super::*;
        use proptest::prelude::*;

        proptest! {
            #![proptest_config(ProptestConfig::with_cases(10_000))]

            /// The envelope with holds, counted when they are confirmed: in every window at most C + r·d.
            #[test]
            fn no_window_admits_more_whatever_is_held_and_given_back(
                capacity in 1u64..12,
                steps in prop::collection::vec((0u8..4, 1u64..4, 0u64..3_000_000), 1..80),
            ) {
                let limit = limit(capacity);
                let (mut bytes, mut now) = (Vec::new(), NOW);
                let (mut holds, mut admitted) = (Vec::new(), Vec::new());
                for (action, cost, gap) in steps {
                    now = now.plus(Micros::new(gap));
                    let mut set = SlotSet::decode(&bytes, now).unwrap();
                    let seat = set.seat(key(1), overflow(), &limit, now);
                    let there = limit.check(&seat.balance, units(cost), now) == Verdict::Admit;
                    match action {
                        0 if there => {
                            set.spend(seat, units(cost), &limit, now);
                            admitted.push((now.count(), cost));
                        }
                        1 if there => holds.push((set.hold(seat, units(cost), &limit, now), cost, now)),
                        // Decisions end within the life of a hold; older ones belong to a worker that died.
                        2 | 3 => if let Some((hold, cost, since)) = holds.pop() {
                            if action == 2 {
                                set.give_back(hold, units(cost), &limit, now);
                            } else if now.since(since) < HOLD_LIFE {
                                set.confirm(hold, units(cost), &limit, now);
                                admitted.push((now.count(), cost));
                            }
                        },
                        _ => {}
                    }
                    bytes = set.encode();
                }
                for (from, (start, _)) in admitted.iter().enumerate() {
                    let mut sum = 0;
                    for (end, cost) in &admitted[from..] {
                        sum += cost * 1_000_000;
                        prop_assert!(sum <= capacity * 1_000_000 + (end - start), "{:?}", admitted);
                    }
                }
            }
        }
    }

    #[test]
    fn foreign_bytes_are_refused() {
        let mut bytes = Vec::new();
        assert!(request(&mut bytes, 1, 3, NOW));
        assert_eq!(SlotSet::decode(&bytes[1..], NOW), Err(Malformed));
        let mut flag = bytes.clone();
        flag[Digest::LEN] = 7;
        assert_eq!(SlotSet::decode(&flag, NOW), Err(Malformed));
        assert_eq!(SlotSet::decode(&bytes.repeat(1000), NOW), Err(Malformed));
        assert_eq!(SlotSet::decode(b"", NOW), Ok(SlotSet::default()));
    }
}
