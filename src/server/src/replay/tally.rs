//! What is counted of a replay. Its size is bounded, however long the logs are.

use super::engine::Decided;
use super::lines::Place;
use std::collections::HashMap;
use tollgate_core::decision::{FailCause, Outcome, Part};
use tollgate_core::key::Digest;
use tollgate_core::policy::{IdentityResult, PolicySet};
use tollgate_core::units::Micros;

/// So many keys of a policy are told apart.
const MAX_KEYS: usize = 1_000_000;

/// A timeline has so many bins at the most, and half as many at least when it is longer than that many seconds.
const MAX_BINS: usize = 240;

pub struct Tally {
    pub requests: u64,
    pub exempt: u64,
    /// What became of requests, but for those that are exempt.
    pub outcomes: Counts<{ Part::ALL.len() }>,
    pub failures: Counts<{ FailCause::ALL.len() }>,
    /// By identity.
    pub identities: Vec<Counts<{ IdentityResult::ALL.len() }>>,
    pub policies: Vec<OfPolicy>,
    /// When the first request began, and the last.
    pub span: Option<(Micros, Micros)>,
    pub timeline: Timeline,
}

/// How often each of so many things was.
#[derive(Clone)]
pub struct Counts<const N: usize>(pub [u64; N]);

#[derive(Default)]
pub struct OfPolicy {
    /// Where it was enforced.
    pub parts: Counts<{ Part::ALL.len() }>,
    pub shadow_allowed: u64,
    pub shadow_denied: u64,
    pub skipped: u64,
    pub unknown_plans: u64,
    pub keys: HashMap<Digest, OfKey>,
    /// Requests of keys beyond those that are told apart.
    pub beyond: u64,
}

#[derive(Clone, Copy, Default)]
pub struct OfKey {
    pub requests: u64,
    pub rejected: u64,
    pub first_rejected: Option<(Micros, Place)>,
}

/// Counts over time, in bins that grow with it: requests, those that were rejected, and what each policy rejected or would
/// have.
pub struct Timeline {
    pub start: Micros,
    pub width: Micros,
    pub bins: Vec<Bin>,
    policies: usize,
}

#[derive(Clone)]
pub struct Bin {
    pub requests: u64,
    pub rejected: u64,
    pub by_policy: Vec<u64>,
}

impl<const N: usize> Default for Counts<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> Counts<N> {
    fn add<T: PartialEq>(&mut self, all: &[T; N], one: &T) {
        if let Some(place) = all.iter().position(|known| known == one) {
            self.0[place] += 1;
        }
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Tally {
    pub fn new(set: &PolicySet) -> Self {
        let policies = set.policies().len();
        Self {
            requests: 0,
            exempt: 0,
            outcomes: Counts::default(),
            failures: Counts::default(),
            identities: vec![Counts::default(); set.identities().len()],
            policies: std::iter::repeat_with(OfPolicy::default).take(policies).collect(),
            span: None,
            timeline: Timeline { start: Micros::ZERO, width: Micros::from_secs(1), bins: Vec::new(), policies },
        }
    }

    pub fn count(&mut self, decided: &Decided, place: Place) {
        self.requests += 1;
        self.span = Some((self.span.map_or(decided.at, |(first, _)| first), decided.at));
        let plan = &decided.plan;
        for (identity, result) in &plan.identities {
            self.identities[*identity].add(&IdentityResult::ALL, result);
        }
        plan.skipped.iter().for_each(|policy| self.policies[*policy].skipped += 1);
        plan.unknown_plans.iter().for_each(|policy| self.policies[*policy].unknown_plans += 1);
        match &decided.outcome {
            None => self.exempt += 1,
            Some(outcome) => self.outcomes.add(&Part::ALL, &outcome.part()),
        }
        if let Some(cause) = &decided.failure {
            self.failures.add(&FailCause::ALL, cause);
        }
        let rejecting = match &decided.outcome {
            Some(Outcome::Reject(rejection)) => rejection.policies(),
            Some(Outcome::Admit(_)) | None => &[],
        };
        let would_reject = decided.shadows.iter().filter(|(_, admits)| !admits).map(|(policy, _)| *policy);
        let rejects: Vec<usize> = rejecting.iter().copied().chain(would_reject).collect();
        for (policy, part) in &decided.parts {
            self.policies[*policy].parts.add(&Part::ALL, part);
        }
        for (policy, admits) in &decided.shadows {
            let of = &mut self.policies[*policy];
            *(if *admits { &mut of.shadow_allowed } else { &mut of.shadow_denied }) += 1;
        }
        let mut last = None;
        for charge in plan.charges.iter().chain(&plan.shadows) {
            // While the hash key is changed a policy has another charge, under the key before.
            if last.replace(charge.policy) != Some(charge.policy) {
                let rejected = rejects.contains(&charge.policy).then_some((decided.at, place));
                self.policies[charge.policy].count(charge.key, rejected);
            }
        }
        self.timeline.count(decided.at, !rejecting.is_empty(), &rejects);
    }
}

impl OfPolicy {
    fn count(&mut self, key: Digest, rejected: Option<(Micros, Place)>) {
        if self.keys.len() >= MAX_KEYS && !self.keys.contains_key(&key) {
            self.beyond += 1;
            return;
        }
        let of = self.keys.entry(key).or_default();
        of.requests += 1;
        of.rejected += u64::from(rejected.is_some());
        of.first_rejected = of.first_rejected.or(rejected);
    }

    /// The keys that had the most rejected, at most so many.
    pub fn most_rejected(&self, count: usize) -> Vec<(Digest, OfKey)> {
        let mut keys: Vec<(Digest, OfKey)> = self.rejected_keys().map(|(key, of)| (*key, *of)).collect();
        keys.sort_unstable_by_key(|(key, of)| (std::cmp::Reverse(of.rejected), key.to_string()));
        keys.truncate(count);
        keys
    }

    pub fn rejected_keys(&self) -> impl Iterator<Item = (&Digest, &OfKey)> {
        self.keys.iter().filter(|(_, of)| of.rejected > 0)
    }
}

impl Timeline {
    fn count(&mut self, at: Micros, is_rejected: bool, rejects: &[usize]) {
        if self.bins.is_empty() {
            // From a whole second on.
            let second = Micros::from_secs(1).count();
            self.start = Micros::new(at.count() / second * second);
        }
        let mut place = self.place(at);
        while place >= MAX_BINS {
            let pairs = self.bins.chunks(2).map(|pair| pair.iter().skip(1).fold(pair[0].clone(), Bin::with));
            self.bins = pairs.collect();
            self.width = Micros::new(self.width.count() * 2);
            place = self.place(at);
        }
        let empty = Bin { requests: 0, rejected: 0, by_policy: vec![0; self.policies] };
        self.bins.resize(self.bins.len().max(place + 1), empty);
        let bin = &mut self.bins[place];
        bin.requests += 1;
        bin.rejected += u64::from(is_rejected);
        rejects.iter().for_each(|policy| bin.by_policy[*policy] += 1);
    }

    fn place(&self, at: Micros) -> usize {
        (at.since(self.start).count() / self.width.count()) as usize
    }
}

impl Bin {
    fn with(mut self, other: &Self) -> Self {
        self.requests += other.requests;
        self.rejected += other.rejected;
        self.by_policy.iter_mut().zip(&other.by_policy).for_each(|(one, other)| *one += other);
        self
    }
}
