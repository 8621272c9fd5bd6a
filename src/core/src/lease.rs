//! Leases: parts of a shared bucket, lent to one lessee for a short time.
//!
//! A bucket of capacity C holds `b` units and has lent out L, which it counts in two generations (see
//! [`Outstanding`](crate::limit::outstanding::Outstanding)). Lending moves units from `b` to L, and refill stops at
//! C − L, so `b + L ≤ C` always: however late lent units are spent, no window admits more than C + r·d. A lease lives
//! no longer than one generation *from when its lessee asked for it*, by the lessee's own clock, so it is dead before its
//! generation is forgotten; no clocks are compared.
//!
//! A lessee has at most one lease of a bucket, and every call about it has a number, one more than the last. The lender
//! keeps a [`LeaseRecord`] of the last that it heard, so each report counts once, however often and in whatever order
//! calls arrive. Where the record is lost, reports count for nothing: what was lent is then taken for spent.

mod holder;

pub use holder::{FORMAT, Found, LeaseHold, LeaseNews, LeaseSet};

use crate::key::Digest;
use crate::limit::outstanding::generation;
use crate::limit::{Balance, TokenBucket};
use crate::units::Micros;

/// The length of a lender's generations: 2 s.
pub const LEASE_LIFE: Micros = Micros::from_secs(2);

/// How long a lessee may use a lease, from when it asked. The tenth that is left is for clocks that run at different
/// speeds.
pub const LEASE_USE: Micros = Micros::from_millis(1800);

/// A lease of fewer units is not worth its call.
const LEAST: u64 = 2;

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
    /// How many more it wants.
    pub wanted: u64,
}

/// What a lender keeps of a lessee until the lease would be dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The number of the last call.
    pub seq: u64,
    /// What the lessee had after it: kept, and new.
    pub units: u64,
    /// What was new of it.
    pub granted: u64,
    /// The generation in which these are counted.
    pub generation: u64,
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
        let counted = balance.lent.release(record.generation, record.units, now);
        // An answer that never arrived: what it granted has not been spent, and will not be.
        let unheard = if call.acked < record.seq { record.granted.min(counted) } else { 0 };
        let heard = counted.saturating_sub(unheard);
        let kept = call.kept.min(heard);
        let returned = call.returned.min(heard.saturating_sub(kept)).saturating_add(unheard);
        balance.lent.take(kept);
        balance.tokens = balance.tokens.saturating_add(returned).min(self.room(balance));
        Settled::New { kept, returned }
    }

    /// Grants what can be lent now; `None` for a call that came late. What is granted is never more than a quarter of
    /// what is left, and what is lent to all never more than half of the capacity.
    pub fn grant(&self, balance: &mut Balance, settled: Settled, call: &LeaseCall) -> Option<LeaseRecord> {
        let kept = match settled {
            Settled::New { kept, .. } => kept,
            Settled::Again(record) => return Some(record),
            Settled::Late => return None,
        };
        let half = self.capacity.count().checked_div(2).unwrap_or(0);
        let most = half.saturating_sub(balance.lent.total());
        let part = balance.tokens.checked_div(4).unwrap_or(0);
        let granted = Some(call.wanted.min(most).min(part)).filter(|granted| *granted >= LEAST).unwrap_or(0);
        balance.tokens = balance.tokens.saturating_sub(granted);
        balance.lent.take(granted);
        let units = kept.saturating_add(granted);
        Some(LeaseRecord { seq: call.seq, units, granted, generation: generation(balance.at, LEASE_LIFE) })
    }

    /// What can be there beside what is lent.
    const fn room(&self, balance: &Balance) -> u64 {
        self.capacity.count().saturating_sub(balance.lent.total())
    }
}

#[cfg(test)]
mod tests;
