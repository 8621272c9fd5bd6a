//! Counters: a fixed set, defined once for each configuration. Envoy shows them as `wasmcustom.tollgate.…`.

use crate::host;
use tollgate_core::decision::{Admission, Contention, FailCause, Outcome, Rejection};

pub(crate) struct Metrics {
    allowed: Counter,
    denied: Counter,
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
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let outcome = |name: &str| Counter::new(&format!("outcome.{name}"));
        Self {
            allowed: outcome("allowed"),
            denied: outcome("denied"),
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
            Outcome::Reject(Rejection::Denied { emergency: false, .. }) => &self.denied,
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
