//! The token bucket: a capacity, a refill rate, and one step that refills and then decides.
//!
//! All arithmetic is on integers. A balance is whole units plus a fraction, the numerator over the refill rate's
//! period, so no refill is ever rounded: polling a bucket does not starve it, and a caller is admitted exactly when
//! the wait it was given has passed, not one microsecond before. The Redis script computes the same numbers.

use super::outstanding::{Lent, Outstanding, forgotten_at, generation, start_of};
use super::{Algorithm, MAX_SKEW};
use crate::lease::LEASE_LIFE;
use crate::units::{Micros, RefillRate, Tokens};

/// A limit: at most `capacity` units at once, refilled at `refill`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// The most units there can be.
    pub capacity: Tokens,
    /// How fast they come back.
    pub refill: RefillRate,
    /// How long the bucket is remembered at least after it was written, even when it is full: where a caller's plan
    /// changes the limit, as long as the slowest of them takes to fill. Else one request under a plan that fills at once
    /// would have it forgotten, and made it full under another. Zero for a bucket that has one limit.
    pub keep: Micros,
}

/// One bucket's state. Absence of a state means a full bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Whole units left.
    pub tokens: u64,
    /// Numerator over `period`: the part of the next unit that has come already.
    pub fraction: u64,
    /// The denominator of `fraction`: the period of the limit's [rate](TokenBucket::rate) when this was written.
    pub period: u64,
    /// When this balance was true.
    pub at: Micros,
    /// What is lent, in generations of [`LEASE_LIFE`].
    pub lent: Lent,
}

impl TokenBucket {
    /// The balance at `now`, given what was stored.
    ///
    /// A clock that stepped back adds nothing and leaves the stored time as it is; a stored time over [`MAX_SKEW`]
    /// ahead is a clock fault and is moved to `now`, also without a refill. A balance above the capacity (the limit
    /// was lowered) is cut to it, and a fraction of another period (the rate was changed) is dropped: never more than
    /// was there.
    ///
    /// `held` units are out and may come back: the bucket refills to the capacity less those, so that what is there and
    /// what is out are never more than the capacity together. What is lent of the rate is earned elsewhere.
    #[must_use]
    pub fn refill_beside(&self, stored: Option<Balance>, now: Micros, held: u64) -> Balance {
        let (capacity, period) = (self.capacity.count().saturating_sub(held), self.rate().period());
        let Some(stored) = stored else {
            return Balance { tokens: capacity, fraction: 0, period, at: now, lent: Lent::default() };
        };
        let mut balance = Balance { period, ..stored };
        if stored.period != period {
            balance.lent = stored.lent.over_period(stored.period, period);
        }
        if stored.period != period || stored.fraction >= period {
            balance.fraction = 0;
        }
        if stored.at > now {
            if stored.at.since(now) > MAX_SKEW {
                balance.at = now;
            }
        } else {
            // At most 2^53 µs × 10^12 units: far below u128's bound.
            let elapsed = u128::from(now.since(stored.at).count());
            let gained = elapsed
                .saturating_mul(u128::from(self.own_rate(&balance)))
                .saturating_add(u128::from(balance.fraction));
            let whole = gained.checked_div(u128::from(period)).unwrap_or(0);
            let rest = gained.checked_rem(u128::from(period)).unwrap_or(0);
            let tokens = u128::from(stored.tokens).saturating_add(whole);
            balance.tokens = u64::try_from(tokens).unwrap_or(capacity);
            balance.fraction = u64::try_from(rest).unwrap_or(0);
            balance.at = now;
        }
        if balance.tokens >= capacity {
            balance.tokens = capacity;
            balance.fraction = 0;
        }
        balance
    }

    /// [`refill_beside`](Self::refill_beside) what is out, generation by generation. Gives what is still out too.
    #[must_use]
    pub fn refill_beside_all(
        &self,
        stored: Balance,
        out: Outstanding,
        life: Micros,
        now: Micros,
    ) -> (Balance, Outstanding) {
        let (mut balance, mut out) = (stored, out);
        let (mut turned, current) = (generation(stored.at, life), generation(now, life));
        while out.total() > 0 && turned < current {
            turned = turned.saturating_add(1);
            balance = self.refill_beside(Some(balance), start_of(turned, life), out.total());
            out = out.turned();
        }
        balance = self.refill_beside(Some(balance), now, out.total());
        if balance.at < stored.at {
            // The stored time was a clock fault.
            out = out.renewed();
        }
        (balance, out)
    }

    /// The refill rate in parts that can be lent: what balances are told by.
    #[must_use]
    pub fn rate(&self) -> RefillRate {
        self.refill.fine()
    }

    /// What the bucket itself earns in each of its rate's periods.
    fn own_rate(&self, balance: &Balance) -> u64 {
        self.rate().tokens().saturating_sub(balance.lent.rate.total())
    }

    /// A bucket that has nothing at `at`.
    #[must_use]
    pub fn empty(&self, at: Micros) -> Balance {
        let lent = Lent::default();
        Balance { tokens: 0, fraction: 0, period: self.rate().period(), at, lent }
    }

    /// A bucket whose state was lost at `at`, and whose leases live on: all that it can have lent counts as lent.
    #[must_use]
    pub fn lost(&self, at: Micros) -> Balance {
        let mut balance = self.empty(at);
        balance.lent.units.take(self.capacity.count());
        balance.lent.rate.take(self.rate().tokens());
        balance
    }

    /// How long an empty bucket takes to fill, rounded up.
    #[must_use]
    pub fn time_to_fill(&self) -> Micros {
        self.time_to_gain(self.capacity.count(), &self.empty(Micros::ZERO), Micros::ZERO)
    }

    /// How long from `now` until `missing` more units are there, rounded up to the microsecond.
    fn time_to_gain(&self, missing: u64, balance: &Balance, now: Micros) -> Micros {
        let needed = u128::from(missing)
            .saturating_mul(u128::from(self.rate().period()))
            .saturating_sub(u128::from(balance.fraction));
        let rate = u128::from(self.own_rate(balance));
        let whole = needed.checked_div(rate).unwrap_or(u128::MAX);
        let part = u128::from(needed.checked_rem(rate).unwrap_or(0) > 0);
        let wait = Micros::new(u64::try_from(whole.saturating_add(part)).unwrap_or(u64::MAX));
        // A stored time that is ahead of now starts to refill only when now has reached it.
        wait.plus(balance.at.since(now))
    }
}

impl Algorithm for TokenBucket {
    type State = Balance;

    fn capacity(&self) -> Tokens {
        self.capacity
    }

    fn advance(&self, stored: Option<&Balance>, now: Micros) -> Balance {
        let Some(stored) = stored else { return self.refill_beside(None, now, 0) };
        let (mut balance, current) = (*stored, generation(now, LEASE_LIFE));
        let mut turned = generation(stored.at, LEASE_LIFE);
        while balance.lent.is_any() && turned < current {
            turned = turned.saturating_add(1);
            balance = self.refill_beside(Some(balance), start_of(turned, LEASE_LIFE), balance.lent.units.total());
            balance.lent = balance.lent.turned();
        }
        balance = self.refill_beside(Some(balance), now, balance.lent.units.total());
        if balance.at < stored.at {
            // The stored time was a clock fault.
            balance.lent = balance.lent.renewed();
        }
        balance
    }

    fn wait(&self, balance: &Balance, cost: Tokens, now: Micros) -> Option<Micros> {
        let cost = cost.count();
        if cost <= balance.tokens {
            return None;
        }
        // What is lent leaves room for so much only; nobody but whoever has it knows whether it comes back earlier than
        // it is forgotten.
        let (mut balance, mut at) = (*balance, now);
        while balance.lent.is_any() {
            let there = at.plus(self.time_to_gain(cost.saturating_sub(balance.tokens), &balance, at));
            let turned = generation(balance.at.max(at), LEASE_LIFE).saturating_add(1);
            let end = start_of(turned, LEASE_LIFE);
            if cost <= self.capacity.count().saturating_sub(balance.lent.units.total()) && there <= end {
                return Some(there.since(now));
            }
            balance = self.refill_beside(Some(balance), end, balance.lent.units.total());
            balance.lent = balance.lent.turned();
            at = end;
            if cost <= balance.tokens {
                return Some(at.since(now));
            }
        }
        let gained = self.time_to_gain(cost.saturating_sub(balance.tokens), &balance, at);
        Some(at.since(now).plus(gained))
    }

    fn spend(&self, balance: &mut Balance, cost: Tokens, _now: Micros) {
        balance.tokens = balance.tokens.saturating_sub(cost.count());
    }

    fn remaining(&self, balance: &Balance, _now: Micros) -> u64 {
        balance.tokens
    }

    fn full_at(&self, balance: &Balance, now: Micros) -> Micros {
        let missing = self.capacity.count().saturating_sub(balance.tokens);
        let alone = Balance { lent: Lent::default(), ..*balance };
        let mut full_at = if missing == 0 { now } else { now.plus(self.time_to_gain(missing, &alone, now)) };
        if balance.lent.is_any() {
            // By its whole rate, once all that is lent is forgotten.
            full_at = full_at.plus(forgotten_at(balance.at.max(now), LEASE_LIFE).since(now));
        }
        full_at.max(now.plus(self.keep))
    }

    fn mended(stored: &Balance, advanced: &Balance) -> bool {
        advanced.at < stored.at || advanced.tokens < stored.tokens
    }
}

#[cfg(test)]
mod tests;
