//! What a store decides: charges on stored state, all or none. The Redis script does the same.

use crate::lease::{LeaseRecord, Settled};
use crate::limit::{Limit, State, Verdict};
use crate::units::Micros;
use crate::wire::{Admitted, ChargeRequest, DecisionAnswer, Denial, Denied};

/// What a store has of one charge's bucket.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    /// The bucket's state; `None` when nothing was spent, or when it was lost.
    pub state: Option<State>,
    /// What it keeps of the lessee that asks.
    pub record: Option<LeaseRecord>,
}

/// A decision, and what is to be kept of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// What to answer.
    pub answer: DecisionAnswer,
    /// For each charge what to store.
    pub kept: Vec<Kept>,
}

/// What to store of one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The bucket's new state, and when it will be full: after that it needs not be kept. `None` to leave it as it is.
    pub state: Option<(State, Micros)>,
    /// What to keep of the lessee, for two [lives of a lease](crate::lease::LEASE_LIFE).
    pub record: Option<LeaseRecord>,
    /// What became of its report, for who counts.
    pub settled: Option<Settled>,
    /// Whether anything of it was lent when the cost was checked.
    pub is_lent: bool,
}

/// One charge, looked at.
struct Step<'a> {
    charge: &'a ChargeRequest,
    state: State,
    verdict: Verdict,
    settled: Option<Settled>,
    is_lent: bool,
    is_to_be_stored: bool,
}

/// One decision. `lost_since` is since when the store has lost state, if it ever has: buckets that learn and of which
/// nothing is stored had lent all that they can have then.
///
/// `None` when what is stored is another algorithm's, or the time is in none of a limit's windows.
#[must_use]
pub fn decide(
    charges: &[ChargeRequest],
    stored: &[Stored],
    lost_since: Option<Micros>,
    now: Micros,
) -> Option<Decided> {
    let mut steps = Vec::with_capacity(charges.len());
    for (charge, stored) in charges.iter().zip(stored) {
        steps.push(Step::new(charge, stored, lost_since, now)?);
    }
    let is_admitted = steps.iter().all(|step| step.verdict == Verdict::Admit);
    let (mut admitted, mut denied, mut kept) = (Vec::new(), Vec::new(), Vec::with_capacity(steps.len()));
    for mut step in steps {
        if let Some(cost) = step.charge.cost.filter(|_| is_admitted) {
            step.charge.limit.spend(&mut step.state, cost.0, now);
            step.is_to_be_stored = true;
        }
        let record = step.grant();
        let (remaining, lease) = (step.charge.limit.remaining(&step.state, now), record.map(Into::into));
        if is_admitted {
            admitted.push(Admitted { remaining, lease });
        } else {
            denied.push(Denied { remaining, denied: denial(step.verdict), lease });
        }
        let full_at = step.charge.limit.full_at(&step.state, now);
        let Step { state, settled, is_lent, is_to_be_stored, .. } = step;
        kept.push(Kept { state: is_to_be_stored.then_some((state, full_at)), record, settled, is_lent });
    }
    let answer = if is_admitted { DecisionAnswer::Admitted(admitted) } else { DecisionAnswer::Denied(denied) };
    Some(Decided { answer, kept })
}

impl<'a> Step<'a> {
    fn new(charge: &'a ChargeRequest, stored: &Stored, lost_since: Option<Micros>, now: Micros) -> Option<Self> {
        let lost = match (&charge.limit, lost_since) {
            (Limit::TokenBucket(limit), Some(since)) if charge.learn => Some(State::TokenBucket(limit.lost(since))),
            _ => None,
        };
        let stored_state = stored.state.as_ref();
        let mut state = charge.limit.advance(stored_state.or(lost.as_ref()), now)?;
        let mended = stored_state.or(lost.as_ref()).is_some_and(|stored| Limit::mended(stored, &state));
        let settled = match (&charge.limit, &mut state, &charge.lease) {
            (Limit::TokenBucket(limit), State::TokenBucket(balance), Some(call)) => {
                Some(limit.settle(balance, stored.record, call))
            }
            _ => None,
        };
        let verdict = charge.cost.map_or(Verdict::Admit, |cost| charge.limit.check(&state, cost.0, now));
        let is_lent = matches!(&state, State::TokenBucket(balance) if balance.lent.is_any());
        let is_to_be_stored = mended || matches!(settled, Some(Settled::New { .. }));
        Some(Self { charge, state, verdict, settled, is_lent, is_to_be_stored })
    }

    /// Lends, whether or not the request is admitted: that spends nothing.
    fn grant(&mut self) -> Option<LeaseRecord> {
        match (&self.charge.limit, &mut self.state, self.settled, &self.charge.lease) {
            (Limit::TokenBucket(limit), State::TokenBucket(balance), Some(settled), Some(call)) => {
                limit.grant(balance, settled, call)
            }
            _ => None,
        }
    }
}

const fn denial(verdict: Verdict) -> Option<Denial> {
    match verdict {
        Verdict::Admit => None,
        Verdict::Wait(wait) => Some(Denial::WaitUs(wait.count())),
        Verdict::Never => Some(Denial::OverCapacity),
    }
}
