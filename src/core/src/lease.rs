//! Leases: parts of a shared bucket, lent to one lessee for a short time.
//!
//! A bucket of capacity C holds `b` units and has lent out L, which it counts in two generations (see
//! [`Outstanding`](crate::limit::outstanding::Outstanding)). Lending moves units from `b` to L, and refill stops at
//! C − L, so `b + L ≤ C` always: however late lent units are spent, no window admits more than C + r·d. A lease lives
//! no longer than one generation *from when its lessee asked for it*, by the lessee's own clock, so it is dead before its
//! generation is forgotten; no clocks are compared.
//!
//! Where callers want more than there is, tokens alone would be lent one by one. So a lease may also have a *rate*: a part
//! of the refill, which its lessee earns in the bucket's place, up to room that counts in L like units. The bucket's own
//! refill is then less by that much, so what is earned everywhere together is never more than r. A lessee earns nothing
//! while a call of its own is out, since it does not know from when on the lender counts the new rate; when the answer has
//! come it earns the smaller of both rates for that time.
//!
//! A lessee has at most one lease of a bucket, and every call about it has a number, one more than the last. The lender
//! keeps a [`LeaseRecord`] of the last that it heard, so each report counts once, however often and in whatever order
//! calls arrive. Where the record is lost, reports count for nothing: what was lent is then taken for spent.

mod holder;

pub use holder::{FORMAT, Found, LeaseHold, LeaseNews, LeaseSet};

use crate::key::Digest;
use crate::limit::outstanding::{generation, over_period};
use crate::limit::{Balance, TokenBucket};
use crate::units::{Micros, divide_product};

/// The length of a lender's generations: 2 s.
pub const LEASE_LIFE: Micros = Micros::from_secs(2);

/// How long a lessee may use a lease, from when it asked. The tenth that is left is for clocks that run at different
/// speeds.
pub const LEASE_USE: Micros = Micros::from_millis(1800);

/// A lease of fewer units is not worth its call.
const LEAST: u64 = 2;

/// One part of so many of the refill rate is not lent: who has no lease yet finds something.
const RESERVE: u64 = 32;

/// No rate is lent while the bucket itself has one part of so many of its capacity, and of what it refills in a second.
const PLENTY: u64 = 8;

/// The most that is made of what all want, so that shares of it are exact in doubles as well: 2^42.
const MAX_DEMAND: u64 = 1 << 42;

/// The time for which lessees tell what they would use.
pub(crate) const AHEAD: Micros = Micros::from_secs(1);

/// What a lessee reports and asks for, beside what one of its requests is to be charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseCall {
    /// Who: different for every worker of every proxy, and after each of its restarts.
    pub lessee: Digest,
    /// One more than in its last call about this bucket.
    pub seq: u64,
    /// The last of its calls whose answer it has used. It will use no other answer than to this call.
    pub acked: u64,
    /// Units of its lease that it has not spent, and keeps.
    pub kept: u64,
    /// Units of its lease that it has not spent, and gives back.
    pub returned: u64,
    /// How many more it wants: so much is lent at the most, and where it is none nothing is.
    pub wanted: u64,
    /// How many units it would use in a second, if it had them.
    pub demand: u64,
}

/// What a lender keeps of a lessee until the lease would be dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The number of the last call.
    pub seq: u64,
    /// What the lessee kept then, of what it was lent before.
    pub kept: u64,
    /// What it was lent then.
    pub granted: u64,
    /// How many units more it may earn until it has spent some.
    pub room: u64,
    /// How many it earns in each `period`, which is the refill rate's as it was then.
    pub rate: u64,
    /// In microseconds.
    pub period: u64,
    /// How many units a second it would use.
    pub demand: u64,
    /// The generation in which these are counted.
    pub generation: u64,
}

impl LeaseRecord {
    /// What it had after the call.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.kept.saturating_add(self.granted)
    }

    /// What it can have at most, which is what is counted.
    #[must_use]
    pub const fn most(&self) -> u64 {
        self.units().saturating_add(self.room)
    }
}

/// A call whose report has been taken in, and whose lease has not been granted yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is new.
    New {
        /// What the lessee keeps, of what it was lent before.
        kept: u64,
        /// What came back to the bucket.
        returned: u64,
    },
    /// It came before: there is nothing to do but to say the same again.
    Again(LeaseRecord),
    /// A later one came before it: nobody waits for its answer.
    Late,
}

impl TokenBucket {
    /// Takes in a lessee's report. The balance is [advanced](crate::limit::Algorithm::advance).
    pub fn settle(&self, balance: &mut Balance, record: Option<LeaseRecord>, call: &LeaseCall) -> Settled {
        let Some(record) = record else { return Settled::New { kept: 0, returned: 0 } };
        if record.seq >= call.seq {
            return if record.seq == call.seq { Settled::Again(record) } else { Settled::Late };
        }
        let now = generation(balance.at, LEASE_LIFE);
        let rate = over_period(record.rate, record.period, self.rate().period());
        balance.lent.rate.release(record.generation, rate, now);
        balance.lent.demand.release(record.generation, record.demand, now);
        let counted = balance.lent.units.release(record.generation, record.most(), now);
        // An answer that never arrived: what it granted has not been spent, and will not be.
        let is_heard = call.acked >= record.seq;
        let unheard = if is_heard { 0 } else { record.granted.min(counted) };
        let there = if is_heard { counted } else { counted.min(record.kept) };
        // Of what a larger capacity has lent, only as much as there is room for now is lent further.
        let kept = call.kept.min(there).min(self.room(balance));
        let returned = call.returned.min(there.saturating_sub(kept)).saturating_add(unheard);
        balance.lent.units.take(kept);
        balance.tokens = balance.tokens.saturating_add(returned).min(self.room(balance));
        Settled::New { kept, returned }
    }

    /// Grants what can be lent now; `None` for a call that came late. What is granted is never more than a quarter of
    /// what is left, and what is lent to all, but for room, never more than half of the capacity.
    pub fn grant(&self, balance: &mut Balance, settled: Settled, call: &LeaseCall) -> Option<LeaseRecord> {
        let kept = match settled {
            Settled::New { kept, .. } => kept,
            Settled::Again(record) => return Some(record),
            Settled::Late => return None,
        };
        let most = self.half().saturating_sub(balance.lent.units.total());
        let part = balance.tokens.checked_div(4).unwrap_or(0);
        let granted = Some(call.wanted.min(most).min(part)).filter(|granted| *granted >= LEAST).unwrap_or(0);
        balance.tokens = balance.tokens.saturating_sub(granted);
        balance.lent.units.take(granted);
        balance.lent.demand.take(call.demand);
        let record = LeaseRecord { seq: call.seq, kept, granted, demand: call.demand, ..LeaseRecord::default() };
        let (rate, room) = if call.wanted > 0 { self.grant_rate(balance, &record) } else { None }.unwrap_or((0, 0));
        balance.lent.units.take(room);
        balance.lent.rate.take(rate);
        let period = self.rate().period();
        Some(LeaseRecord { room, rate, period, generation: generation(balance.at, LEASE_LIFE), ..record })
    }

    /// How much of the refill rate a lessee gets, and how much room: where all together want more than there is, its share
    /// by its demand. `None` where that is not worth it.
    fn grant_rate(&self, balance: &Balance, lease: &LeaseRecord) -> Option<(u64, u64)> {
        let (units, period) = (self.rate().tokens(), self.rate().period());
        let per_second = |rate| divide_product(rate, AHEAD.count(), period).0;
        let all = balance.lent.demand.total().min(MAX_DEMAND);
        let above = all.saturating_sub(per_second(units));
        let plenty = self.capacity.count().max(per_second(units)).div_ceil(PLENTY).max(LEAST);
        if balance.tokens >= plenty {
            // Who lives on a rate asks for no more until its lease ends: it would deny what is there.
            return None;
        }
        let share = |of: u64| divide_product(lease.demand.min(all), of, all).0;
        let lendable = units.saturating_sub(units.checked_div(RESERVE)?);
        let rate = share(lendable).min(lendable.saturating_sub(balance.lent.rate.total()));
        let earned = per_second(rate);
        // Room for what it earns in half a second, by its share of the half that is lent at the most.
        let most = share(self.half()).min(earned.checked_div(2)?.saturating_add(1)).max(LEAST);
        let free = self.room(balance).saturating_sub(balance.tokens);
        let room = most.saturating_sub(lease.units()).min(free);
        // The less all want above what there is, the more of it goes unused where shares are small: what is wanted by
        // chance at one lessee has been earned by another.
        let least = |times: u64| {
            per_second(units).saturating_mul(times).checked_div(above).map_or(u64::MAX, |least| least.max(1))
        };
        let is_worth_it = earned >= least(4) && lease.units().saturating_add(room) >= least(2).max(LEAST);
        is_worth_it.then_some((rate, room))
    }

    fn half(&self) -> u64 {
        self.capacity.count().checked_div(2).unwrap_or(0)
    }

    /// What can be there beside what is lent.
    const fn room(&self, balance: &Balance) -> u64 {
        self.capacity.count().saturating_sub(balance.lent.units.total())
    }
}

#[cfg(test)]
mod tests;
