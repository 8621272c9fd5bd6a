//! Local and emergency budgets: the envelope of each by its proxy's clock, and that a rejected request has spent nothing.

use super::reference::{Reference, larger};
use super::{Found, Invariant};
use crate::taken::bucket;
use crate::worker::{Decided, FIRST_SHADOW};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use tollgate_core::decision::{Admission, Outcome};
use tollgate_core::key::Digest;
use tollgate_core::limit::{Limit, TokenBucket};
use tollgate_core::policy::{Allowance, Charge, FailMode, Policy, PolicySet, Scope, Sharing};
use tollgate_core::units::Micros;

/// Where a request was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub proxy: usize,
    /// Which process of that proxy.
    pub life: u64,
    pub worker: usize,
    /// By the proxy's clock.
    pub now: Micros,
}

/// A bucket: whose, of which worker where each has its own, and which.
type Place = (usize, u64, Option<usize>, Digest);

/// Units that one request has taken.
struct Take {
    request: u64,
    at: Micros,
    limit: TokenBucket,
    units: u64,
    /// Whether they are spent, once that is known.
    is_spent: Option<bool>,
}

/// What may change a bucket.
enum Event {
    Taken(Take),
    /// A configuration has ended by which it had this limit.
    Ended(TokenBucket, Micros),
}

#[derive(Default)]
struct Bucket {
    policy: String,
    /// In their order, from the first that is not decided.
    events: VecDeque<Event>,
    /// Limits that it has had since the last take, and until when.
    between: Vec<(TokenBucket, Micros)>,
    /// As it is after those before: while it counts the larger of two limits, and by the last limit alone.
    references: Option<(Reference, Reference)>,
    /// As it would be by the limit before, and until when that may still be used: who has it settles by it, and a bucket
    /// that is full by one limit is dropped, and so full by the other.
    before: Option<(Reference, Micros)>,
}

pub struct Local {
    sets: Vec<Rc<PolicySet>>,
    buckets: BTreeMap<Place, Bucket>,
    /// Proxies whose limits have changed: what is given back there may have no room.
    changed: BTreeSet<usize>,
    /// How long a request that knows an old limit may still wait.
    longest: Micros,
}

impl Local {
    pub fn new(sets: &[Rc<PolicySet>]) -> Self {
        let timeouts = sets.iter().filter_map(|set| set.endpoint.as_ref()).map(|endpoint| endpoint.timeout);
        let longest = timeouts.max().unwrap_or_default().plus(Micros::from_millis(100));
        Self { sets: sets.to_vec(), buckets: BTreeMap::new(), changed: BTreeSet::new(), longest }
    }

    /// A proxy has got another configuration than this one, by its clock now.
    pub fn configured(&mut self, proxy: usize, before: usize, now: Micros) {
        self.changed.insert(proxy);
        for (_, bucket) in self.buckets.iter_mut().filter(|((of, ..), _)| *of == proxy) {
            let policies = self.sets[before].policies();
            let limit = policies.iter().find(|policy| policy.name == bucket.policy).and_then(most);
            bucket.events.extend(limit.map(|limit| Event::Ended(limit, now)));
        }
    }

    pub fn decided(&mut self, decided: &Decided, owner: &Owner, set: &PolicySet) -> Found {
        let is_shadow = decided.id >= FIRST_SHADOW;
        for charge in &decided.plan.charges {
            let Some(policy) = set.policy(charge.policy) else { continue };
            if bucket(charge, policy).is_none() {
                continue;
            }
            let taken = decided.taken.get(&charge.policy).copied().unwrap_or(0);
            let cost = i128::from(charge.cost.count());
            let is_spent = match (&decided.outcome, &policy.scope) {
                (Outcome::Admit(_), Scope::Local { .. }) => true,
                // Where a lease has paid, nothing has failed.
                (Outcome::Admit(admission), _) => {
                    *admission == Admission::FailedLocal && !is_shadow && !decided.lent.contains(&charge.policy)
                }
                // A guard charges what others reject, if it has the units itself.
                (Outcome::Reject(_), Scope::Local { charge_always: true, .. }) => taken != 0,
                (Outcome::Reject(_), _) => false,
            };
            let right = if is_spent { cost } else { 0 };
            let is_cut = !is_spent
                && (0..=cost).contains(&taken)
                && (self.changed.contains(&owner.proxy) || policy.plans.is_some());
            if taken != right && !is_cut {
                let what = format!(
                    "a request of {cost} took {taken} of {} in the proxy and should have taken {right}, as it ended {:?}",
                    policy.name, decided.outcome
                );
                return Err((Invariant::AllOrNothing, what));
            }
            self.settle(charge, policy, decided.id, is_spent, owner)?;
        }
        Ok(())
    }

    /// A request has taken units, or given them back.
    pub fn took(&mut self, request: u64, charge: &Charge, units: i128, owner: &Owner, set: &PolicySet) {
        let Some(policy) = set.policy(charge.policy) else { return };
        let Some((limit, sharing)) = bucket(charge, policy) else { return };
        let limit = most(policy).map_or(limit, |most| larger(&limit, &most));
        let bucket = self.buckets.entry(place(charge, sharing, owner)).or_default();
        bucket.policy.clone_from(&policy.name);
        match u64::try_from(units) {
            Ok(units) => {
                let take = Take { request, at: owner.now, limit, units, is_spent: None };
                bucket.events.push_back(Event::Taken(take));
            }
            Err(_) => {
                let open = |take: &&mut Take| take.request == request && take.is_spent.is_none();
                if let Some(take) = bucket.takes().find(open) {
                    take.is_spent = Some(false);
                }
            }
        }
    }

    /// A request will never be decided. What it has taken stays taken, which is the safe side.
    pub fn died(&mut self, request: u64) {
        let takes = self.buckets.values_mut().flat_map(Bucket::takes);
        for take in takes.filter(|take| take.request == request) {
            take.is_spent.get_or_insert(false);
        }
    }

    /// A request is decided. Every take before which none is undecided can be checked.
    fn settle(&mut self, charge: &Charge, policy: &Policy, request: u64, is_spent: bool, owner: &Owner) -> Found {
        let Some((_, sharing)) = bucket(charge, policy) else { return Ok(()) };
        let bucket = self.buckets.entry(place(charge, sharing, owner)).or_default();
        for take in bucket.takes().filter(|take| take.request == request) {
            take.is_spent.get_or_insert(is_spent);
        }
        let Bucket { events, between, references, before, .. } = bucket;
        loop {
            let (at, limit, units, is_spent) = match events.front() {
                Some(Event::Taken(Take { at, limit, units, is_spent: Some(is_spent), .. })) => {
                    (*at, *limit, *units, *is_spent)
                }
                Some(Event::Ended(limit, at)) => {
                    between.push((*limit, *at));
                    events.pop_front();
                    continue;
                }
                Some(Event::Taken(_)) | None => return Ok(()),
            };
            events.pop_front();
            // What was given back was there for its limit's rate all the same.
            let units = if is_spent { units } else { 0 };
            let full = Reference::full(limit, at);
            let (reference, last) = references.get_or_insert_with(|| (full.clone(), full.clone()));
            reference.limit_beside(limit, at, at.plus(self.longest));
            reference.advance(at);
            for way in last.looked_at(&std::mem::take(between), self.longest, limit, at) {
                reference.raise_to(&way);
                last.raise_to(&way);
            }
            if last.bucket() != limit && last.is_over_at(at) {
                // It was dropped meanwhile, and absence means full.
                reference.fill_to(limit.capacity.count(), 0);
                *last = full;
            } else if last.bucket() != limit {
                *before = Some((last.clone(), at.plus(self.longest)));
            }
            if let Some((old, until)) = before {
                old.advance(at);
                if old.is_over_at(at) {
                    reference.fill_to(limit.capacity.count(), 0);
                    last.fill_to(limit.capacity.count(), 0);
                }
                old.drain(units);
                if *until <= at {
                    *before = None;
                }
            }
            last.limit(limit);
            last.advance(at);
            last.drain(units);
            reference.spend(units).map_err(|missing| {
                let what =
                    format!("{missing} units above the limit from {} in the proxy at {}", policy.name, at.count());
                (Invariant::LocalEnvelope, what)
            })?;
        }
    }
}

impl Bucket {
    fn takes(&mut self) -> impl Iterator<Item = &mut Take> {
        self.events.iter_mut().filter_map(|event| if let Event::Taken(take) = event { Some(take) } else { None })
    }
}

/// The largest limit of a policy's buckets in a proxy: newcomers to a full set share a bucket, whatever their plans.
fn most(policy: &Policy) -> Option<TokenBucket> {
    match policy.scope {
        Scope::Local { .. } => {
            let limits = policy.allowances().filter_map(Allowance::limit).filter_map(|limit| match limit {
                Limit::TokenBucket(limit) => Some(limit),
                _ => None,
            });
            limits.reduce(|most, limit| larger(&most, &limit))
        }
        Scope::Global { on_failure: FailMode::Local(limit), .. } => Some(limit),
        Scope::Global { .. } => None,
    }
}

fn place(charge: &Charge, sharing: Sharing, owner: &Owner) -> Place {
    let worker = (sharing == Sharing::Worker).then_some(owner.worker);
    (owner.proxy, owner.life, worker, charge.key)
}
