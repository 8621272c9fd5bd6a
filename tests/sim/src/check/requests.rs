//! Each request's fate: decided once and in time, charged when it goes on, and not charged when it is denied.

use super::{Found, Invariant};
use crate::store::{Made, Record};
use crate::worker::{Decided, FIRST_LEASE, FIRST_SHADOW};
use std::collections::{BTreeMap, BTreeSet};
use tollgate_core::decision::{Admission, FailCause, LeaseUse, Outcome, Rejection};
use tollgate_core::key::Digest;
use tollgate_core::policy::{FailMode, Policy, PolicySet, Scope};

pub struct Requests {
    ids: bool,
    calm: bool,
    /// Those that wait.
    waiting: BTreeSet<u64>,
    decided: BTreeMap<u64, Outcome>,
    /// What the store has done for each.
    asked: BTreeMap<u64, Asked>,
    /// Changes when the store may have forgotten what it has done.
    epoch: u64,
}

#[derive(Default)]
struct Asked {
    admitted: u32,
    denied: u32,
    /// When it was admitted last.
    epoch: Option<u64>,
    /// The buckets that were asked, and for how much.
    charges: Vec<(Digest, u64)>,
}

impl Requests {
    pub fn new(ids: bool, calm: bool) -> Self {
        let (waiting, decided, asked) = Default::default();
        Self { ids, calm, waiting, decided, asked, epoch: 0 }
    }

    pub fn unsettled(&mut self) {
        self.epoch += 1;
    }

    pub fn came(&mut self, request: u64) {
        self.waiting.insert(request);
    }

    /// Gives whether it waited.
    pub fn died(&mut self, request: u64) -> bool {
        self.waiting.remove(&request)
    }

    pub fn is_due(&self, request: u64) -> Found {
        if self.waiting.contains(&request) {
            return Err((Invariant::Waiter, format!("request {request} still waits, although its time is up")));
        }
        Ok(())
    }

    pub fn outcome(&self, request: u64) -> Option<&Outcome> {
        self.decided.get(&request)
    }

    pub fn stored(&mut self, request: u64, record: &Record) -> Found {
        if request >= FIRST_LEASE {
            return Ok(());
        }
        let asked = self.asked.entry(request).or_default();
        asked.charges = record.charges.iter().map(|charged| (charged.name.key, charged.cost)).collect();
        match record.made {
            Made::Denied => asked.denied += 1,
            Made::Again | Made::Failed => {}
            Made::Admitted => {
                if self.ids && asked.epoch == Some(self.epoch) {
                    return Err((Invariant::Once, format!("request {request} was charged twice under one id")));
                }
                asked.admitted += 1;
                asked.epoch = Some(self.epoch);
            }
        }
        Ok(())
    }

    pub fn decided(&mut self, decided: &Decided, set: &PolicySet) -> Found {
        let id = decided.id;
        if id < FIRST_SHADOW {
            if !self.waiting.remove(&id) {
                return Err((Invariant::Waiter, format!("request {id} was decided, although it did not wait")));
            }
            self.decided.insert(id, decided.outcome.clone());
        }
        self.is_charged(decided, set)?;
        self.may_fail(decided, set)
    }

    /// What the store did is what the request was told.
    fn is_charged(&self, decided: &Decided, set: &PolicySet) -> Found {
        let nothing = Asked::default();
        let asked = self.asked.get(&decided.id).unwrap_or(&nothing);
        let id = decided.id;
        let scopes = decided.plan.charges.iter().filter_map(|charge| Some((charge, set.policy(charge.policy)?)));
        let global: Vec<(Digest, u64)> = scopes
            .filter(|(charge, policy)| {
                matches!(policy.scope, Scope::Global { .. }) && !decided.lent.contains(&charge.policy)
            })
            .map(|(charge, _)| (charge.key, charge.cost.count()))
            .collect();
        match &decided.outcome {
            Outcome::Admit(Admission::Allowed)
                if !global.is_empty() && !decided.left && (asked.admitted == 0 || asked.charges != global) =>
            {
                return Err((Invariant::Charged, format!("request {id} was admitted and not charged")));
            }
            Outcome::Reject(Rejection::Denied { policies, emergency: false, .. }) => {
                let is_global = |policy: &usize| {
                    set.policy(*policy).is_some_and(|policy| matches!(policy.scope, Scope::Global { .. }))
                };
                let was_told = asked.denied > 0 || decided.uses.contains(&LeaseUse::Denied);
                if policies.iter().any(is_global) && !was_told {
                    return Err((Invariant::AllOrNothing, format!("request {id} was denied, and the store never did")));
                }
                if !policies.iter().any(is_global) && asked.admitted + asked.denied > 0 {
                    let what = format!("request {id} was denied in the proxy, and the store was asked all the same");
                    return Err((Invariant::AllOrNothing, what));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Closed beats local beats open, and none of them decides while nothing has failed.
    fn may_fail(&self, decided: &Decided, set: &PolicySet) -> Found {
        let modes: Vec<FailMode> = decided
            .plan
            .charges
            .iter()
            .filter(|charge| !decided.lent.contains(&charge.policy))
            .filter_map(|charge| match set.policy(charge.policy)?.scope {
                Scope::Global { on_failure, .. } => Some(on_failure),
                Scope::Local { .. } => None,
            })
            .collect();
        let is_leased =
            decided.plan.charges.iter().filter_map(|charge| set.policy(charge.policy)).any(Policy::is_leased);
        let is_closed = modes.contains(&FailMode::Closed);
        let is_local = modes.iter().any(|mode| matches!(mode, FailMode::Local(_)));
        let (fits, fails) = match &decided.outcome {
            Outcome::Admit(Admission::FailedOpen) => (!is_closed && !is_local, true),
            Outcome::Admit(Admission::FailedLocal) => (!is_closed && is_local, true),
            // What leases had paid is given back by now, so it is not known of which policies the endpoint was asked.
            Outcome::Reject(Rejection::Denied { emergency: true, .. }) => ((!is_closed || is_leased) && is_local, true),
            Outcome::Reject(Rejection::Unavailable { .. }) => (is_closed, true),
            _ => (true, false),
        };
        let (id, cause) = (decided.id, decided.cause);
        let is_calm = self.calm && cause != Some(FailCause::TooManyInFlight);
        if !fits || fails != cause.is_some() || (fails && is_calm) {
            let what = format!("request {id} ended {:?}, because of {cause:?}", decided.outcome);
            return Err((Invariant::FailMode, what));
        }
        Ok(())
    }
}
