//! Local buckets in a space that can never shrink.
//!
//! A proxy's shared data cannot be freed, so buckets live in a fixed table: [`SETS`] sets, each one shared-data value
//! that is read and written as a whole by compare-and-set. A set has room for [`WAYS`] buckets. A bucket that would be
//! full is dropped, since absence means full; nothing else ever is. When all ways are taken, newcomers share one
//! overflow bucket of their policy in that set, so that nothing is admitted untracked. A newcomer that later finds a
//! free way starts from what the overflow bucket has left, so moving never mints units.

use crate::key::Digest;
use crate::token_bucket::{Balance, TokenBucket};
use crate::units::{Micros, Tokens};

/// Sets in a table.
pub const SETS: u32 = 8192;

/// Buckets of single keys in a set.
pub const WAYS: usize = 4;

/// Overflow buckets in a set: one for each policy, of one configuration and of those it replaced a moment ago.
const MAX_OVERFLOWS: usize = 128;

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
    full_at: Micros,
}

/// A bucket as found in a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    key: Digest,
    overflow: bool,
    /// What it holds now.
    pub balance: Balance,
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

/// One entry: key, overflow flag, five little-endian numbers.
const ENTRY_LEN: usize = Digest::LEN + 1 + 5 * 8;

impl SlotSet {
    /// Reads a set and drops the buckets that are full by `now`.
    ///
    /// # Errors
    /// When the bytes are not a set that [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8], now: Micros) -> Result<Self, Malformed> {
        let (entries, rest) = bytes.as_chunks::<ENTRY_LEN>();
        if !rest.is_empty() || entries.len() > MAX_OVERFLOWS.saturating_add(WAYS) {
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
            return Seat { key, overflow: false, balance: limit.refill(Some(own.balance), now) };
        }
        let shared = self.find(overflow, true).map(|entry| entry.balance);
        let balance = limit.refill(shared, now);
        let taken = self.entries.iter().filter(|entry| !entry.overflow).count();
        if taken < WAYS {
            Seat { key, overflow: false, balance }
        } else {
            Seat { key: overflow, overflow: true, balance }
        }
    }

    /// Takes `cost` from a seat of this set.
    pub fn spend(&mut self, mut seat: Seat, cost: Tokens, limit: &TokenBucket, now: Micros) {
        seat.balance.spend(cost);
        self.put(seat, limit, now);
    }

    /// Gives `cost` back to the bucket that `seat` was. A bucket that is gone was full, and stays so.
    pub fn give_back(&mut self, seat: &Seat, cost: Tokens, limit: &TokenBucket, now: Micros) {
        let Some(entry) = self.find(seat.key, seat.overflow) else { return };
        let mut balance = limit.refill(Some(entry.balance), now);
        balance.give_back(cost, limit);
        self.put(Seat { balance, ..*seat }, limit, now);
    }

    fn put(&mut self, seat: Seat, limit: &TokenBucket, now: Micros) {
        let full_at = limit.full_at(&seat.balance, now);
        self.entries.retain(|entry| entry.key != seat.key || entry.overflow != seat.overflow);
        if full_at > now {
            self.entries.push(Entry { key: seat.key, overflow: seat.overflow, balance: seat.balance, full_at });
        }
    }

    fn find(&self, key: Digest, overflow: bool) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key && entry.overflow == overflow)
    }
}

impl Entry {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.key.as_bytes());
        bytes.push(u8::from(self.overflow));
        let Balance { tokens, fraction, period, at } = self.balance;
        for number in [tokens, fraction, period, at.count(), self.full_at.count()] {
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
            balance: Balance { tokens: next()?, fraction: next()?, period: next()?, at: Micros::new(next()?) },
            full_at: Micros::new(next()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::HashKey;
    use crate::token_bucket::Verdict;
    use crate::units::RefillRate;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn limit(capacity: u64) -> TokenBucket {
        TokenBucket {
            capacity: Tokens::new(capacity).unwrap(),
            refill: RefillRate::new(1, Micros::from_secs(1)).unwrap(),
        }
    }

    fn key(number: u32) -> Digest {
        let mut digester = HashKey::new(b"test").digest("key");
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
    fn what_is_given_back_goes_to_the_bucket_it_came_from() {
        let limit = limit(3);
        let mut set = SlotSet::default();
        let seat = set.seat(key(1), overflow(), &limit, NOW);
        set.spend(seat.clone(), Tokens::new(3).unwrap(), &limit, NOW);
        set.give_back(&seat, Tokens::new(2).unwrap(), &limit, NOW);
        assert_eq!(set.seat(key(1), overflow(), &limit, NOW).balance.tokens, 2);
        set.give_back(&seat, Tokens::new(3).unwrap(), &limit, NOW);
        assert_eq!(set, SlotSet::default(), "full: absent again");
        set.give_back(&seat, Tokens::ONE, &limit, NOW);
        assert_eq!(set, SlotSet::default(), "a bucket that is gone was full");
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
