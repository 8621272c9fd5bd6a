//! The one proxy and the one endpoint of a replay, with the log's own time.

use crate::store::{LeaseCounts, MemoryStore};
use std::collections::BTreeMap;
use tollgate_core::decision::{Decision, FailCause, Outcome, Part, SetId, Step};
use tollgate_core::facts::Facts;
use tollgate_core::key::Digest;
use tollgate_core::policy::{Charge, Plan, PolicySet};
use tollgate_core::units::Micros;

/// The most budgets that are remembered at once, of those that are not full.
const KEYS: usize = 4_000_000;

pub struct Engine<'a> {
    set: &'a PolicySet,
    /// The proxy's shared data.
    tables: BTreeMap<SetId, Vec<u8>>,
    store: MemoryStore,
    now: Micros,
}

/// What became of one request.
pub struct Decided {
    /// When; never before the one before.
    pub at: Micros,
    pub plan: Plan,
    /// `None` where no policy applies, since the route class is exempt.
    pub outcome: Option<Outcome>,
    /// What that is for each policy that is enforced, once each.
    pub parts: Vec<(usize, Part)>,
    /// The policies in shadow, and whether each would have admitted it.
    pub shadows: Vec<(usize, bool)>,
    /// Why the endpoint could not say, so that a fail mode decided.
    pub failure: Option<FailCause>,
}

impl<'a> Engine<'a> {
    pub fn new(set: &'a PolicySet) -> Self {
        let store = MemoryStore::new(KEYS, LeaseCounts::new());
        Self { set, tables: BTreeMap::new(), store, now: Micros::ZERO }
    }

    pub fn decide(&mut self, request: &impl Facts, at: Micros) -> Decided {
        self.now = self.now.max(at);
        let plan = self.set.plan(request);
        let mut decided = Decided {
            at: self.now,
            outcome: None,
            parts: Vec::new(),
            shadows: Vec::new(),
            failure: None,
            plan: plan.clone(),
        };
        if plan.exempt {
            return decided;
        }
        let refusals = plan.refusals.iter().filter(|refusal| !refusal.enforced);
        decided.shadows.extend(refusals.map(|refusal| (refusal.policy, false)));
        for charge in &plan.shadows {
            let (outcome, failure) = self.run(&mut Decision::shadow(&plan, charge, self.set, Digest::default()));
            // As in the filter, it has no outcome then.
            if failure.is_none() {
                note(&mut decided.shadows, charge, matches!(outcome, Outcome::Admit(_)));
            }
        }
        let mut decision = Decision::new(plan, self.set, Digest::default());
        let (outcome, failure) = self.run(&mut decision);
        decided.parts = decision.parts(&outcome, &decision.standings(self.set), self.set);
        decided.failure = failure;
        decided.outcome = Some(outcome);
        decided
    }

    /// To its end, with what it has renewed in the background.
    fn run(&mut self, decision: &mut Decision) -> (Outcome, Option<FailCause>) {
        let mut failure = None;
        loop {
            match decision.step(self.set, self.now) {
                Step::Read(set) => decision.stored(self.tables.get(&set).map(|bytes| (bytes.as_slice(), 0)), self.now),
                Step::Write { set, bytes, .. } => {
                    self.tables.insert(set, bytes);
                    decision.written(true);
                }
                Step::Ask => {
                    let answers = self.store.admit_at(&mut [decision.request(self.set)], self.now);
                    failure = answers.first().and_then(|answer| decision.answered(answer, self.set)).or(failure);
                }
                Step::Done(outcome) => {
                    for mut renewal in decision.take_renewals(self.set) {
                        self.run(&mut renewal);
                    }
                    return (outcome, failure);
                }
            }
        }
    }
}

/// While the hash key is changed a policy has two charges: both have to admit.
fn note(shadows: &mut Vec<(usize, bool)>, charge: &Charge, admits: bool) {
    match shadows.last_mut().filter(|(policy, _)| *policy == charge.policy) {
        Some((_, all)) => *all &= admits,
        None => shadows.push((charge.policy, admits)),
    }
}
