//! Counters: a fixed set, defined once for each configuration. Envoy shows them as `wasmcustom.tollgate.…`.

use crate::host;
use tollgate_core::decision::{Admission, Contention, FailCause, Outcome, Rejection};
use tollgate_core::policy::{Enforcement, IdentityResult, OnMissing, Plan, Policy, PolicySet};

pub(crate) struct Metrics {
    allowed: Counter,
    denied: Counter,
    unidentified: Counter,
    exempt: Counter,
    failed_open: Counter,
    failed_local: Counter,
    failed_local_denied: Counter,
    failed_closed: Counter,
    failures: Vec<(FailCause, Counter)>,
    exhausted: Counter,
    malformed: Counter,
    overflow: Counter,
    client_left: Counter,
    cost_made_up: Counter,
    /// For each identity, by its place.
    identities: Vec<[(IdentityResult, Counter); IdentityResult::ALL.len()]>,
    /// For each policy, by its place.
    policies: Vec<PolicyCounters>,
}

/// What one policy counts. What can never happen to it has no counter.
struct PolicyCounters {
    matched: Counter,
    skipped: Counter,
    plan_unknown: Counter,
    shadow_allowed: Counter,
    shadow_denied: Counter,
    shadow_failed: Counter,
}

/// What became of a policy in shadow.
#[derive(Clone, Copy)]
pub(crate) enum Shadow {
    Allowed,
    Denied,
    /// The endpoint, or the bucket, could not say.
    Failed,
}

impl Metrics {
    pub(crate) fn new(set: &PolicySet) -> Self {
        let outcome = |name: &str| Counter::new(&format!("outcome.{name}"));
        Self {
            allowed: outcome("allowed"),
            denied: outcome("denied"),
            unidentified: outcome("unidentified"),
            exempt: outcome("exempt"),
            failed_open: outcome("failed_open"),
            failed_local: outcome("failed_local"),
            failed_local_denied: outcome("failed_local_denied"),
            failed_closed: outcome("failed_closed"),
            failures: FailCause::ALL.map(|cause| (cause, Counter::new(&format!("failure.{}", cause.name())))).into(),
            exhausted: Counter::new("local.cas_exhausted"),
            malformed: Counter::new("local.malformed"),
            overflow: Counter::new("local.overflow"),
            client_left: Counter::new("client_left"),
            cost_made_up: Counter::new("cost.made_up"),
            identities: set.identities().iter().map(|identity| identity_counters(&identity.name)).collect(),
            policies: set.policies().iter().map(PolicyCounters::new).collect(),
        }
    }

    /// What was found out about a request before any bucket was asked.
    pub(crate) fn plan(&self, plan: &Plan) {
        for (index, result) in &plan.identities {
            let counters = self.identities.get(*index).into_iter().flatten();
            counters.filter(|(known, _)| known == result).for_each(|(_, counter)| counter.increment());
        }
        let charged = plan.charges.iter().chain(&plan.shadows).map(|charge| charge.policy);
        let refused = plan.refusals.iter().map(|refusal| refusal.policy);
        let mut last = None;
        for index in charged.chain(refused).chain(plan.skipped.iter().copied()) {
            // While the hash key is changed a policy has two charges, one behind the other.
            if last.replace(index) != Some(index) {
                self.of(index, |policy| &policy.matched);
            }
        }
        for index in &plan.skipped {
            self.of(*index, |policy| &policy.skipped);
        }
        for index in &plan.unknown_plans {
            self.of(*index, |policy| &policy.plan_unknown);
        }
        for refusal in plan.refusals.iter().filter(|refusal| !refusal.enforced) {
            self.of(refusal.policy, |policy| &policy.shadow_denied);
        }
        if plan.cost_made_up {
            self.cost_made_up.increment();
        }
    }

    pub(crate) fn shadow(&self, policy: usize, shadow: Shadow) {
        self.of(policy, |policy| match shadow {
            Shadow::Allowed => &policy.shadow_allowed,
            Shadow::Denied => &policy.shadow_denied,
            Shadow::Failed => &policy.shadow_failed,
        });
    }

    fn of(&self, policy: usize, counter: impl Fn(&PolicyCounters) -> &Counter) {
        if let Some(policy) = self.policies.get(policy) {
            counter(policy).increment();
        }
    }

    pub(crate) fn exempt(&self) {
        self.exempt.increment();
    }

    pub(crate) fn client_left(&self) {
        self.client_left.increment();
    }

    pub(crate) fn outcome(&self, outcome: &Outcome) {
        let counter = match outcome {
            Outcome::Admit(Admission::Allowed) => &self.allowed,
            Outcome::Admit(Admission::FailedOpen) => &self.failed_open,
            Outcome::Admit(Admission::FailedLocal) => &self.failed_local,
            Outcome::Reject(Rejection::Denied { emergency: false, .. } | Rejection::Barred { .. }) => &self.denied,
            Outcome::Reject(Rejection::Unidentified { .. }) => &self.unidentified,
            Outcome::Reject(Rejection::Denied { emergency: true, .. }) => &self.failed_local_denied,
            Outcome::Reject(Rejection::Unavailable { .. }) => &self.failed_closed,
        };
        counter.increment();
    }

    /// One request that the endpoint gave no verdict for.
    pub(crate) fn failure(&self, cause: FailCause) {
        if let Some((_, counter)) = self.failures.iter().find(|(known, _)| *known == cause) {
            counter.increment();
        }
    }

    pub(crate) fn contention(&self, contention: Contention) {
        match contention {
            Contention::Exhausted => self.exhausted.increment(),
            Contention::Malformed => self.malformed.increment(),
            Contention::Overflow => self.overflow.increment(),
            _ => {}
        }
    }
}

fn identity_counters(name: &str) -> [(IdentityResult, Counter); IdentityResult::ALL.len()] {
    IdentityResult::ALL.map(|result| (result, Counter::new(&format!("identity.{name}.{}", result.name()))))
}

impl PolicyCounters {
    fn new(policy: &Policy) -> Self {
        let counter = |name: &str| Counter::new(&format!("policy.{}.{name}", policy.name));
        let when = |can: bool, name: &str| if can { counter(name) } else { Counter(None) };
        let can_be_shadow = policy.enforce != Enforcement::On;
        Self {
            matched: counter("matched"),
            skipped: when(policy.on_missing == OnMissing::Skip, "skipped"),
            plan_unknown: when(policy.plans.is_some(), "plan_unknown"),
            shadow_allowed: when(can_be_shadow, "shadow_allowed"),
            shadow_denied: when(can_be_shadow, "shadow_denied"),
            shadow_failed: when(can_be_shadow, "shadow_failed"),
        }
    }
}

/// `None` when the host would not define it: then nothing is counted, and nothing else is harmed.
struct Counter(Option<u32>);

impl Counter {
    fn new(name: &str) -> Self {
        Self(host::define_counter(&format!("tollgate.{name}")))
    }

    fn increment(&self) {
        if let Some(id) = self.0 {
            host::increment(id);
        }
    }
}
