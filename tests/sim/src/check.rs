//! What must hold at every step, told by what the parts are seen to do.
//!
//! The checks know the true time and every message. They are written apart from the core: where they count what a
//! bucket may have, they count for themselves.

mod leases;
mod lending;
mod liveness;
mod local;
mod reference;
mod requests;
mod shared;
#[cfg(test)]
mod tests;

pub use lending::Loss;
pub use local::Owner;

use crate::scenario::Scenario;
use crate::store::{Name, Record, Store};
use crate::worker::Decided;
use leases::Leases;
use liveness::{Liveness, Seat};
use local::Local;
use requests::Requests;
use shared::Shared;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::rc::Rc;
use tollgate_core::decision::Outcome;
use tollgate_core::limit::TokenBucket;
use tollgate_core::policy::{Charge, PolicySet};
use tollgate_core::units::Micros;

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invariant {
    /// In every window of length d at most C + r·d units of a shared budget are spent, over all proxies. Time is the
    /// true time as the store's clock measures it: with its drift, and with its steps forward (which can bring at most
    /// a capacity each). What a failover loses may be spent again, and a flush fills every bucket, once each. When a
    /// limit changes, what has come back since the last charge comes at the rate of the next one, and a bucket that was
    /// full by one limit is full by the other.
    ///
    /// Of a leased budget every unit counts when it is charged, be it at the store or from a lease. While several limits of
    /// it are in use, and until their leases are dead, the largest of them counts. What the store has forgotten of what it
    /// has lent may be spent once more, until those leases are dead: when it fails over, when its clock is set forward, and
    /// when it loses a bucket that does not learn. One that learns gives nothing more than before.
    Envelope,
    /// The same for each local and each emergency bucket of a proxy, by that proxy's clock, from its start: of what
    /// is not given back, at the time when it was taken. For as long as a request may wait after a change of a limit, the
    /// larger of the two counts; and of plans the largest, since newcomers to a full set share a bucket whatever theirs.
    LocalEnvelope,
    /// A shared bucket has what was not spent from it, no more and no less; a leased one has room for what it has lent.
    Balance,
    /// A decision spends all its charges or none, and a request that is denied has spent nothing, here or there.
    AllOrNothing,
    /// A denied request is told exactly when it would be admitted if nobody else came.
    Wait,
    /// A unit of a lease is spent before the lender stops to count it: no later than a lease's life after it has last
    /// heard of that lease.
    Lease,
    /// Nobody goes on without having been charged, but where a fail mode says so.
    Charged,
    /// A decision with an id is made once.
    Once,
    /// Fail modes decide only when something failed, and as the policies say.
    FailMode,
    /// Every request of a worker that lives is decided, once, within its timeout and a tick.
    Waiter,
    /// What is kept has bounds, and is forgotten when it is idle.
    Bounded,
    /// A budget that is there is used. One that nobody has used for as long as it takes to fill admits a request.
    ///
    /// Of a leased budget more is told, of times in which nothing goes wrong and has not for two lives of a lease: so long
    /// is felt what a fault has done to leases.
    ///
    /// - Nobody is denied for long what nobody spends. Imagine a bucket of half the capacity and half the refill, from which
    ///   is spent what is in fact admitted, and which was empty when the calm began. (Up to half of the capacity may be lent
    ///   to others, and of what refills a part is not earned while it is lent, or dies with a lease that was used too
    ///   little.) Once it has been full for a second, which is more than a denial is kept, no request is denied that it
    ///   would admit.
    /// - A lease that nobody uses is given back, well before it would have died.
    /// - A bucket that nobody has touched has refilled, but for the two generations for which it counts what it has lent.
    Liveness,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: Invariant,
    pub at: Micros,
    pub what: String,
}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} us: {}", self.invariant, self.at.count(), self.what)
    }
}

pub struct Checks {
    shared: Shared,
    leases: Leases,
    liveness: Liveness,
    local: Local,
    requests: Requests,
    /// The first that was found.
    pub found: Option<Violation>,
}

/// What a check gives: the promise that is broken, and how.
type Found = Result<(), (Invariant, String)>;

impl Checks {
    pub fn new(scenario: &Scenario, sets: &[Rc<PolicySet>]) -> Self {
        Self {
            shared: Shared::new(sets, scenario.proxies),
            leases: Leases::default(),
            liveness: Liveness::new(scenario),
            local: Local::new(sets),
            requests: Requests::new(scenario.ids, scenario.is_calm()),
            found: None,
        }
    }

    /// Notes the first violation.
    pub fn note(&mut self, found: Found, at: Micros) {
        if let (Err((invariant, what)), None) = (found, &self.found) {
            self.found = Some(Violation { invariant, at, what });
        }
    }

    /// The store has made a decision, for a worker of a proxy.
    pub fn stored(&mut self, request: u64, worker: (usize, usize), record: &Record, at: Micros) {
        self.leases.stored(worker, record);
        let found = self.liveness.stored(record);
        self.note(found, at);
        let found = self.shared.stored(record).and_then(|()| self.requests.stored(request, record));
        self.note(found, at);
    }

    /// The store has forgotten buckets.
    pub fn swept(&mut self, names: &[Name], reading: Micros, gained: Micros, at: Micros) {
        self.shared.lending.swept(names, gained, at);
        let found = self.shared.swept(names, reading);
        self.note(found, at);
    }

    /// The store has lost state, or its clock was set, so that it may forget early. `lent` is what it counted as lent before.
    pub fn lost(&mut self, loss: Loss, lent: &BTreeMap<Name, u64>, store: &Store, at: Micros) {
        self.shared.lending.lost(loss, lent, store, at);
        match loss {
            Loss::Everything => self.shared.lost(None),
            Loss::Since(since) => self.shared.lost(Some(since)),
            Loss::Step(_) => {}
        }
        self.requests.unsettled();
    }

    /// A request has come to a worker that lives.
    pub fn came(&mut self, request: u64) {
        self.requests.came(request);
    }

    /// A worker has died, perhaps with its proxy: those who were there are owed no answer.
    pub fn died(&mut self, request: u64) {
        if self.requests.died(request) {
            self.local.died(request);
        }
    }

    /// A request's time is up.
    pub fn is_due(&mut self, request: u64, at: Micros) {
        let found = self.requests.is_due(request);
        self.note(found, at);
    }

    /// Units of a local bucket were taken, or given back.
    pub fn took(&mut self, request: u64, charge: &Charge, units: i128, owner: &Owner, set: &PolicySet) {
        self.local.took(request, charge, units, owner, set);
    }

    /// A request, or a decision in shadow, was decided. `whole_since` is since when the store has lost nothing.
    pub fn decided(
        &mut self,
        decided: &Decided,
        owner: &Owner,
        set: &PolicySet,
        whole_since: Option<Micros>,
        at: Micros,
    ) {
        let found = self.liveness.decided(decided, owner, set, whole_since, at);
        self.note(found, at);
        let found = self.requests.decided(decided, set).and_then(|()| self.local.decided(decided, owner, set));
        self.note(found, at);
    }

    /// Leases have paid for a request, or for a decision in shadow.
    pub fn spent_leases(&mut self, decided: &Decided, owner: &Owner, set: &PolicySet, gained: Micros, at: Micros) {
        if !matches!(decided.outcome, Outcome::Admit(_)) {
            return;
        }
        for charge in decided.plan.charges.iter().filter(|charge| decided.lent.contains(&charge.policy)) {
            let Some(policy) = set.policy(charge.policy) else { continue };
            let found = self.leases.spent(policy, charge, owner, at);
            let found = found.and_then(|()| self.shared.spent_lease(&policy.name, charge, gained, at));
            self.liveness.spent(&Name::of(&policy.name, charge.key, charge.group), charge.cost.count(), at);
            self.note(found, at);
        }
    }

    /// The leases that must have been given back.
    pub fn idle_leases(&self, at: Micros) -> Vec<(Seat, TokenBucket)> {
        self.liveness.idle(at).map(|(seat, limit)| (*seat, *limit)).collect()
    }

    /// Whether a lease has come back that nobody has used for a while.
    pub fn given_back(&mut self, seat: &Seat, is_held: bool, at: Micros) {
        if is_held {
            let ((proxy, worker), key) = seat;
            let whose = worker.map_or(format!("proxy {proxy}"), |worker| format!("proxy {proxy}.{worker}"));
            self.note(Err((Invariant::Liveness, format!("{whose} keeps a lease of {key} that nobody uses"))), at);
        }
        self.liveness.is_back(seat);
    }

    /// How a request ended.
    pub fn outcome(&self, request: u64) -> Option<&Outcome> {
        self.requests.outcome(request)
    }

    /// A proxy has got another configuration than the one before; `now` is by its clock.
    pub fn configured(&mut self, proxy: usize, [before, config]: [usize; 2], now: Micros, at: Micros) {
        self.shared.lending.configured(proxy, config, at);
        self.local.configured(proxy, before, now);
    }

    pub fn bounded(&mut self, what: &str, size: usize, most: usize, at: Micros) {
        if size > most {
            self.note(Err((Invariant::Bounded, format!("{what}: {size}, and {most} at the most"))), at);
        }
    }
}
