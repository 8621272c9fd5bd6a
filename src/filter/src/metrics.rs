//! Metrics: a fixed set, defined once for each configuration. Envoy shows them as `wasmcustom.tollgate.…`; the names are
//! made for its tag extraction, which takes labels from between the dots.

use crate::host::{self, Kind};
use core::cell::{Cell, RefCell};
use tollgate_core::decision::{Contention, Decision, FailCause, LeaseUse, Outcome, Part, Standing};
use tollgate_core::policy::{Enforcement, IdentityResult, OnMissing, Plan, Policy, PolicySet, Route};
use tollgate_core::units::Micros;

pub(crate) struct Metrics {
    /// For each route class, by its place, and last for those of none.
    requests: Vec<Requests>,
    failures: Vec<(FailCause, Metric)>,
    exhausted: Metric,
    malformed: Metric,
    overflow: Metric,
    lease_expired: Metric,
    client_left: Metric,
    cost_made_up: Metric,
    call: Metric,
    breaker_open: Metric,
    breaker_opened: Metric,
    /// On how many workers a configuration of this version decides: a later one may have the same, and is there before
    /// this one goes.
    version: Metric,
    in_force: Cell<bool>,
    /// For each identity, by its place.
    identities: Vec<[(IdentityResult, Metric); IdentityResult::ALL.len()]>,
    /// For each policy, by its place.
    policies: Vec<PolicyMetrics>,
}

/// What becomes of the requests of one route class.
struct Requests {
    exempt: Metric,
    parts: Vec<(Part, Metric)>,
}

/// What one policy counts. What can never happen to it has no counter.
struct PolicyMetrics {
    parts: Vec<(Part, Metric)>,
    skipped: Metric,
    plan_unknown: Metric,
    shadow_allowed: Metric,
    shadow_denied: Metric,
    shadow_failed: Metric,
    lease_hit: Metric,
    lease_miss: Metric,
    lease_denied: Metric,
    lease_calls: Metric,
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
        let routes = set.routes().iter().map(|class| class.name.as_str()).chain(["other"]);
        let version = set.version.as_deref().map_or(Metric(None), |version| {
            let legal = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' };
            let version: String = version.chars().take(64).map(legal).collect();
            Metric::new(Kind::Gauge, &format!("version.{version}"))
        });
        Self {
            requests: routes.map(|name| Requests::new(name, set)).collect(),
            failures: FailCause::ALL.map(|cause| (cause, counter(&format!("failure.{}", cause.name())))).into(),
            exhausted: counter("local.cas_exhausted"),
            malformed: counter("local.malformed"),
            overflow: counter("local.overflow"),
            lease_expired: counter("lease_expired_units"),
            client_left: counter("client_left"),
            cost_made_up: counter("cost.made_up"),
            call: Metric::new(Kind::Histogram, "call_us"),
            breaker_open: Metric::new(Kind::Gauge, "breaker.is_open"),
            breaker_opened: counter("breaker.opened"),
            version,
            in_force: Cell::new(false),
            identities: set.identities().iter().map(|identity| identity_counters(&identity.name)).collect(),
            policies: set.policies().iter().map(PolicyMetrics::new).collect(),
        }
    }

    /// What was found out about a request before any bucket was asked.
    pub(crate) fn plan(&self, plan: &Plan) {
        // Not when it is defined: a configuration that Envoy then refuses has been read too.
        if !self.in_force.replace(true) {
            self.version.add(1);
        }
        for (index, result) in &plan.identities {
            let counters = self.identities.get(*index).into_iter().flatten();
            counters.filter(|(known, _)| known == result).for_each(|(_, counter)| counter.increment());
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
        if plan.exempt
            && let Some(requests) = self.of_route(plan.route)
        {
            requests.exempt.increment();
        }
    }

    /// What became of a request, as a whole and for each policy.
    pub(crate) fn decided(&self, decision: &Decision, outcome: &Outcome, standings: &[Standing], set: &PolicySet) {
        if let Some(requests) = self.of_route(decision.plan().route) {
            increment(&requests.parts, outcome.part());
        }
        for (index, part) in decision.parts(outcome, standings, set) {
            if let Some(policy) = self.policies.get(index) {
                increment(&policy.parts, part);
            }
        }
    }

    pub(crate) fn shadow(&self, policy: usize, shadow: Shadow) {
        self.of(policy, |policy| match shadow {
            Shadow::Allowed => &policy.shadow_allowed,
            Shadow::Denied => &policy.shadow_denied,
            Shadow::Failed => &policy.shadow_failed,
        });
    }

    /// How leases have served a request, or a policy in shadow.
    pub(crate) fn leases(&self, decision: &mut Decision) {
        for (index, how) in decision.lease_uses() {
            self.of(index, |policy| match how {
                LeaseUse::Hit => &policy.lease_hit,
                LeaseUse::Miss => &policy.lease_miss,
                LeaseUse::Denied => &policy.lease_denied,
            });
        }
        let expired = decision.take_expired();
        if expired > 0 {
            self.lease_expired.add(i64::try_from(expired).unwrap_or(i64::MAX));
        }
    }

    /// A call about a lease of this policy.
    pub(crate) fn lease_call(&self, policy: usize) {
        self.of(policy, |policy| &policy.lease_calls);
    }

    pub(crate) fn client_left(&self) {
        self.client_left.increment();
    }

    /// One request that the endpoint gave no verdict for.
    pub(crate) fn failure(&self, cause: FailCause) {
        increment(&self.failures, cause);
    }

    /// A call to the endpoint has ended.
    pub(crate) fn call(&self, took: Micros) {
        self.call.set(took.count());
    }

    pub(crate) fn breaker(&self, is_open: bool) {
        self.breaker_is(is_open);
        if is_open {
            self.breaker_opened.increment();
        }
    }

    pub(crate) fn breaker_is(&self, open: bool) {
        self.breaker_open.set(open.into());
    }

    pub(crate) fn contention(&self, contention: Contention) {
        match contention {
            Contention::Exhausted => self.exhausted.increment(),
            Contention::Malformed => self.malformed.increment(),
            Contention::Overflow => self.overflow.increment(),
            _ => {}
        }
    }

    fn of(&self, policy: usize, counter: impl Fn(&PolicyMetrics) -> &Metric) {
        if let Some(policy) = self.policies.get(policy) {
            counter(policy).increment();
        }
    }

    fn of_route(&self, route: Route) -> Option<&Requests> {
        match route {
            Route::Listed(index) => self.requests.get(index),
            Route::Other => self.requests.last(),
        }
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        if self.in_force.get() {
            self.version.add(-1);
        }
    }
}

fn increment<T: PartialEq>(counters: &[(T, Metric)], which: T) {
    if let Some((_, counter)) = counters.iter().find(|(known, _)| *known == which) {
        counter.increment();
    }
}

fn identity_counters(name: &str) -> [(IdentityResult, Metric); IdentityResult::ALL.len()] {
    IdentityResult::ALL.map(|result| (result, counter(&format!("identity.{name}.{}", result.name()))))
}

impl Requests {
    fn new(route: &str, set: &PolicySet) -> Self {
        let possible = |part: &Part| set.policies().iter().any(|policy| part.can_be_of(policy));
        // What one policy does not charge another has rejected.
        let parts = Part::ALL.into_iter().filter(|part| *part != Part::NotCharged && possible(part));
        Self {
            exempt: counter(&format!("requests.{route}.exempt")),
            parts: parts.map(|part| (part, counter(&format!("requests.{route}.{}", part.name())))).collect(),
        }
    }
}

impl PolicyMetrics {
    fn new(policy: &Policy) -> Self {
        let counter = |name: &str| counter(&format!("policy.{}.{name}", policy.name));
        let when = |can: bool, name: &str| if can { counter(name) } else { Metric(None) };
        let lease = |result: &str| {
            if policy.is_leased() { self::counter(&format!("lease.{}.{result}", policy.name)) } else { Metric(None) }
        };
        let can_be_shadow = policy.enforce != Enforcement::On;
        let parts =
            Part::ALL.into_iter().filter(|part| policy.enforce != Enforcement::Shadow && part.can_be_of(policy));
        Self {
            parts: parts.map(|part| (part, counter(part.name()))).collect(),
            skipped: when(policy.on_missing == OnMissing::Skip, "skipped"),
            plan_unknown: when(policy.plans.is_some(), "plan_unknown"),
            shadow_allowed: when(can_be_shadow, "shadow_allowed"),
            shadow_denied: when(can_be_shadow, "shadow_denied"),
            shadow_failed: when(can_be_shadow, "shadow_failed"),
            lease_hit: lease("hit"),
            lease_miss: lease("miss"),
            lease_denied: lease("denied"),
            lease_calls: lease("call"),
        }
    }
}

fn counter(name: &str) -> Metric {
    Metric::new(Kind::Counter, name)
}

/// `None` when the host would not define it: then nothing is counted, and nothing else is harmed.
struct Metric(Option<u32>);

thread_local! {
    /// What this VM has defined, in the order of the names. The host keeps every definition for as long as the VM lives, and would make
    /// another one for each configuration.
    static DEFINED: RefCell<Vec<(String, u32)>> = const { RefCell::new(Vec::new()) };
}

impl Metric {
    fn new(kind: Kind, name: &str) -> Self {
        Self(DEFINED.with_borrow_mut(|defined| {
            let place = match defined.binary_search_by(|(known, _)| known.as_str().cmp(name)) {
                Ok(place) => return defined.get(place).map(|(_, id)| *id),
                Err(place) => place,
            };
            let id = host::define_metric(kind, &format!("tollgate.{name}"))?;
            defined.insert(place, (name.into(), id));
            Some(id)
        }))
    }

    fn increment(&self) {
        self.add(1);
    }

    /// A gauge may go down.
    fn add(&self, by: i64) {
        if let Some(id) = self.0 {
            host::increment(id, by);
        }
    }

    /// A gauge's value, or one more value of a histogram.
    fn set(&self, value: u64) {
        if let Some(id) = self.0 {
            host::record(id, value);
        }
    }
}
