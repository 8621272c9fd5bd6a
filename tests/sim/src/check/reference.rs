//! A token bucket, written again and only for checking: the envelope, one charge after the other.
//!
//! That in every window of length d at most C + r·d units are spent is the same as that a bucket of capacity C, full at
//! first and refilled at r, has the units whenever some are spent. (If it lacks them, look at the window that begins
//! when it was last full.) So a window need not be searched for.

use std::cmp::Ordering;
use tollgate_core::limit::{MAX_SKEW, TokenBucket};
use tollgate_core::units::Micros;

#[derive(Clone, Debug)]
pub struct Reference {
    limit: TokenBucket,
    /// Units times the period of the refill.
    parts: u128,
    at: Micros,
    /// When it was last looked at, by a clock that may have stepped back since.
    touched: Micros,
    /// The last that was told, where another counts beside it ...
    last: TokenBucket,
    /// ... which is this, until then.
    former: Option<(TokenBucket, Micros)>,
}

impl Reference {
    pub fn full(limit: TokenBucket, at: Micros) -> Self {
        Self { limit, parts: whole(limit.capacity.count(), &limit), at, touched: at, last: limit, former: None }
    }

    /// Brings it up to a time. Like every bucket it gains nothing from a clock that steps back, and begins anew from
    /// there when the step was over [`MAX_SKEW`].
    pub fn advance(&mut self, now: Micros) {
        self.touched = now;
        if self.at > now {
            if self.at.since(now) > MAX_SKEW {
                self.at = now;
            }
            return;
        }
        self.parts += u128::from(now.since(self.at).count()) * u128::from(self.limit.rate().tokens());
        self.parts = self.parts.min(whole(self.limit.capacity.count(), &self.limit));
        self.at = now;
    }

    /// Another limit applies from now on. What is there stays, cut to the new capacity. What has come back since the
    /// last charge comes at the new rate, as it does in a bucket, which learns of its limit only when it is charged.
    pub fn limit(&mut self, limit: TokenBucket) {
        if limit != self.limit {
            let (old, new) = (u128::from(self.limit.rate().period()), u128::from(limit.rate().period()));
            self.parts = (self.parts * new).div_ceil(old).min(whole(limit.capacity.count(), &limit));
            self.limit = limit;
        }
    }

    /// Another limit applies from now on, and beside it the one before until `until`, whichever is larger.
    pub fn limit_beside(&mut self, limit: TokenBucket, now: Micros, until: Micros) {
        if self.former.is_some_and(|(_, until)| until <= now) {
            self.former = None;
        }
        if limit != self.last {
            let former = self.former.map_or(self.last, |(former, _)| larger(&former, &self.last));
            self.former = Some((former, until));
            self.last = limit;
        }
        let both = self.former.map_or(limit, |(former, _)| larger(&former, &limit));
        self.limit(both);
    }

    /// Whether it is full, and has been kept for as long as its limit says: then it may be forgotten.
    pub fn is_over_at(&self, now: Micros) -> bool {
        let mut then = self.clone();
        then.advance(now);
        let is_full = then.parts >= whole(self.limit.capacity.count(), &self.limit);
        is_full && now >= self.touched.plus(self.limit.keep)
    }

    /// Spends; gives how many units were missing, rounded up.
    pub fn spend(&mut self, units: u64) -> Result<(), u64> {
        let parts = whole(units, &self.limit);
        match self.parts.checked_sub(parts) {
            Some(left) => {
                self.parts = left;
                Ok(())
            }
            None => Err(u64::try_from((parts - self.parts).div_ceil(self.limit.rate().period().into())).unwrap_or(0)),
        }
    }

    /// At least so much is there, as far as there is room, the fraction over the refill's period.
    pub fn fill_to(&mut self, units: u64, fraction: u64) {
        let most = whole(self.limit.capacity.count(), &self.limit);
        self.parts = self.parts.max(whole(units, &self.limit) + u128::from(fraction)).min(most);
    }

    /// What it has as well if somebody has looked at it by each of these limits, before it ended or when one who knew it
    /// still waited, or by some of them: another key of its set may have.
    pub fn looked_at(
        &self,
        ended: &[(TokenBucket, Micros)],
        waits: Micros,
        limit: TokenBucket,
        now: Micros,
    ) -> Vec<Self> {
        let look = |way: &Self, limit: TokenBucket, at: Micros| {
            if way.limit != limit && way.is_over_at(at) {
                return Self::full(limit, at);
            }
            let mut way = way.clone();
            way.limit(limit);
            way.advance(at);
            way
        };
        let mut ways = vec![self.clone()];
        for (limit, at) in ended {
            let looked: Vec<Self> = ways.iter().map(|way| look(way, *limit, now.min(at.plus(waits)))).collect();
            ways.extend(looked);
        }
        ways.iter().skip(1).map(|way| look(way, limit, now)).collect()
    }

    /// It has no less than another one, as far as there is room.
    pub fn raise_to(&mut self, other: &Self) {
        let (mine, its) = (u128::from(self.limit.rate().period()), u128::from(other.limit.rate().period()));
        self.parts =
            self.parts.max((other.parts * mine).div_ceil(its)).min(whole(self.limit.capacity.count(), &self.limit));
    }

    /// What comes back comes since then, where that is earlier.
    pub fn set_back(&mut self, since: Micros) {
        self.at = self.at.min(since);
    }

    /// Spends as far as there is something.
    pub fn drain(&mut self, units: u64) {
        self.parts = self.parts.saturating_sub(whole(units, &self.limit));
    }

    /// It has exactly this much, the fraction over the refill's period.
    pub fn hold(&mut self, units: u64, fraction: u64) {
        self.parts = whole(units, &self.limit) + u128::from(fraction);
    }

    /// Whole units that are there.
    pub fn units(&self) -> u64 {
        u64::try_from(self.parts / u128::from(self.limit.rate().period())).unwrap_or(u64::MAX)
    }

    pub const fn bucket(&self) -> TokenBucket {
        self.limit
    }
}

fn whole(units: u64, limit: &TokenBucket) -> u128 {
    u128::from(units) * u128::from(limit.rate().period())
}

/// Of two limits the higher capacity and the faster refill.
pub fn larger(one: &TokenBucket, other: &TokenBucket) -> TokenBucket {
    let refill = if is_faster(other, one) { other.refill } else { one.refill };
    TokenBucket { capacity: one.capacity.max(other.capacity), refill, keep: one.keep }
}

fn is_faster(one: &TokenBucket, other: &TokenBucket) -> bool {
    let product = |a: &TokenBucket, b: &TokenBucket| u128::from(a.rate().tokens()) * u128::from(b.rate().period());
    product(one, other).cmp(&product(other, one)) == Ordering::Greater
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use tollgate_core::units::{RefillRate, Tokens};

    fn bucket(capacity: u64, tokens: u64, per: u64) -> TokenBucket {
        let refill = RefillRate::new(tokens, Micros::new(per)).unwrap();
        TokenBucket { capacity: Tokens::new(capacity).unwrap(), refill, keep: Micros::ZERO }
    }

    /// The promise as it is written: no window has more than C + r·d.
    fn every_window_holds(limit: &TokenBucket, spent: &[(Micros, u64)]) -> bool {
        (0..spent.len()).all(|from| {
            (from..spent.len()).all(|to| {
                let units: u64 = spent[from..=to].iter().map(|(_, units)| units).sum();
                let span = u128::from(spent[to].0.since(spent[from].0).count());
                whole(units, limit) <= whole(limit.capacity.count(), limit) + span * u128::from(limit.rate().tokens())
            })
        })
    }

    #[test]
    fn it_finds_what_a_search_of_all_windows_finds() {
        let mut found = [0; 2];
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let limit = bucket(random.between(1, 9), random.between(1, 7), random.between(1, 40));
            let (mut now, mut spent, mut reference) = (Micros::new(5), Vec::new(), None);
            for _ in 0..12 {
                now = now.plus(Micros::new(random.below(12)));
                let units = random.between(1, 3);
                spent.push((now, units));
                let reference = reference.get_or_insert_with(|| Reference::full(limit, now));
                reference.advance(now);
                let holds = reference.spend(units).is_ok();
                assert_eq!(holds, every_window_holds(&limit, &spent), "seed {seed}: {limit:?} {spent:?}");
                found[usize::from(holds)] += 1;
                if !holds {
                    break;
                }
            }
        }
        assert!(found.iter().all(|count| *count > 1000), "{found:?}");
    }

    #[test]
    fn a_clock_that_steps_back_mints_nothing() {
        let mut reference = Reference::full(bucket(10, 1, 1_000_000), Micros::from_secs(1000));
        reference.spend(10).unwrap();
        for at in [970, 1000, 900, 870] {
            reference.advance(Micros::from_secs(at));
            assert_eq!(reference.units(), 0, "at {at}");
        }
        reference.advance(Micros::from_secs(903));
        assert_eq!(reference.units(), 3, "it began anew at 900");
    }

    #[test]
    fn of_two_limits_the_larger_counts_while_both_do() {
        let (small, large) = (bucket(2, 1, 1_000_000), bucket(10, 1, 2_000_000));
        let (start, until) = (Micros::from_secs(1), Micros::from_secs(2));
        let mut reference = Reference::full(large, start);
        reference.limit_beside(small, start, until);
        assert_eq!((reference.units(), reference.bucket().refill), (10, small.refill));
        reference.limit_beside(small, Micros::new(until.count() - 1), until);
        assert_eq!(reference.units(), 10);
        reference.limit_beside(small, until, until);
        assert_eq!((reference.units(), reference.bucket()), (2, small));
    }
}
