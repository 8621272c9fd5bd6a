//! One request's decision, as a state machine that does no I/O.
//!
//! ```text
//! step(now) ─► Read(set)   then stored(bytes, version)     local buckets, by compare-and-set
//!           ─► Write{..}   then written(true or false)
//!           ─► Ask         then answered(..) or failed(..)  the endpoint, for global policies
//!           ─► Done(outcome)
//! ```
//! Local buckets come first, since a rejection there needs no call. While the endpoint is asked, what they gave is
//! held. If it denies, or a policy fails closed, they get it back (except where a policy charges always), so a request
//! that any policy denies spends nothing from the others.
//!
//! A leased policy takes its part among the local buckets, as far as its lease has the units; else the endpoint is asked
//! for it, and for a lease as well.

mod local;
#[cfg(test)]
mod tests;

pub use local::{Contention, LeaseUse, SetId, Table};

use crate::key::Digest;
use crate::lease::{LeaseCall, LeaseNews};
use crate::limit::{Limit, Verdict};
use crate::policy::{Charge, FailMode, Mode, OnMissing, Plan, Policy, PolicySet, RefusalReason, Scope};
use crate::units::Micros;
use crate::wire::{Admitted, ChargeRequest, Cost, DecisionAnswer, DecisionRequest, Denial, Denied, LeaseAnswer};
use local::{LocalCharge, LocalRound, Task};

/// What the host is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read a set of local buckets; then call [`Decision::stored`].
    Read(SetId),
    /// Write a set if it is still at `version` (`None`: if it is still absent); then call [`Decision::written`].
    Write {
        /// Which set.
        set: SetId,
        /// What to store.
        bytes: Vec<u8>,
        /// What [`Decision::stored`] was told.
        version: Option<u32>,
    },
    /// Ask the endpoint for [`Decision::request`]; then call [`Decision::answered`] or [`Decision::failed`].
    Ask,
    /// The decision is made.
    Done(Outcome),
}

/// How a request was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It goes on.
    Admit(Admission),
    /// It is answered here.
    Reject(Rejection),
}

/// Why a request was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Every policy that applies had the units.
    Allowed,
    /// The endpoint could not say, and every policy it was asked for fails open.
    FailedOpen,
    /// The endpoint could not say, and the emergency budgets had the units.
    FailedLocal,
}

/// What a decision was for one policy that applied to the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It had the units, and the request was charged.
    Allowed,
    /// It had not, or its limit is `deny`.
    Denied,
    /// The cost is above its capacity.
    OverCapacity,
    /// It wants an identity that the request lacks.
    Unidentified,
    /// Another policy rejected the request, so it was not charged here.
    NotCharged,
    /// The endpoint could not say, and it is open.
    FailedOpen,
    /// The endpoint could not say, or the bucket could not be charged, and it is closed.
    FailedClosed,
    /// The endpoint could not say, and its emergency budget had the units.
    FailedLocal,
    /// The endpoint could not say, and its emergency budget had not.
    FailedLocalDenied,
}

impl Part {
    /// Every part, in a fixed order.
    pub const ALL: [Self; 9] = [
        Self::Allowed,
        Self::Denied,
        Self::OverCapacity,
        Self::Unidentified,
        Self::NotCharged,
        Self::FailedOpen,
        Self::FailedClosed,
        Self::FailedLocal,
        Self::FailedLocalDenied,
    ];

    /// As it is called in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::OverCapacity => "over_capacity",
            Self::Unidentified => "unidentified",
            Self::NotCharged => "not_charged",
            Self::FailedOpen => "failed_open",
            Self::FailedClosed => "failed_closed",
            Self::FailedLocal => "failed_local",
            Self::FailedLocalDenied => "failed_local_denied",
        }
    }

    /// Whether a decision can ever be this for such a policy.
    #[must_use]
    pub fn can_be_of(self, policy: &Policy) -> bool {
        let mode = match policy.scope {
            Scope::Local { .. } => None,
            Scope::Global { on_failure, .. } => Some(on_failure),
        };
        match self {
            Self::Allowed | Self::Denied | Self::OverCapacity | Self::NotCharged => true,
            Self::Unidentified => policy.on_missing == OnMissing::Reject,
            Self::FailedOpen => mode == Some(FailMode::Open),
            // A lease can be out of reach beside a local bucket that could not be charged.
            Self::FailedClosed => {
                policy.is_leased() || matches!(mode, None | Some(FailMode::Closed | FailMode::Local(_)))
            }
            Self::FailedLocal | Self::FailedLocalDenied => matches!(mode, Some(FailMode::Local(_))),
        }
    }
}

impl Outcome {
    /// What it is for the request as a whole: that of the policies which decided it.
    #[must_use]
    pub const fn part(&self) -> Part {
        match self {
            Self::Admit(Admission::Allowed) => Part::Allowed,
            Self::Admit(Admission::FailedOpen) => Part::FailedOpen,
            Self::Admit(Admission::FailedLocal) => Part::FailedLocal,
            Self::Reject(Rejection::Denied { emergency: true, .. }) => Part::FailedLocalDenied,
            Self::Reject(Rejection::Denied { wait: None, .. }) => Part::OverCapacity,
            Self::Reject(Rejection::Denied { .. } | Rejection::Barred { .. }) => Part::Denied,
            Self::Reject(Rejection::Unidentified { .. }) => Part::Unidentified,
            Self::Reject(Rejection::Unavailable { .. }) => Part::FailedClosed,
        }
    }
}

/// Where one policy's budget stands, after a decision in which it had a say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The policy's place in the list.
    pub policy: usize,
    /// The limit, for this caller.
    pub limit: Limit,
    /// Whole units left.
    pub left: u64,
    /// What it said.
    pub verdict: Verdict,
}

/// Why a request was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// Policies denied it: 429.
    Denied {
        /// Those that denied, as places in the policy list, in its order. Never empty.
        policies: Vec<usize>,
        /// The longest wait of those that denied; `None` when waiting cannot help.
        wait: Option<Micros>,
        /// An emergency budget denied, because the endpoint could not say.
        emergency: bool,
    },
    /// Policies admit nothing: 429, and waiting does not help.
    Barred {
        /// The policies whose limit is `deny`.
        policies: Vec<usize>,
    },
    /// The request lacks an identity that policies want: 403.
    Unidentified {
        /// The policies that want it.
        policies: Vec<usize>,
    },
    /// The limiter could not decide, and a policy is closed: 503.
    Unavailable {
        /// The policies that failed closed.
        policies: Vec<usize>,
    },
}

/// Why the endpoint gave no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FailCause {
    /// No answer in time.
    Timeout,
    /// The connection was refused, was not made in time, or broke.
    Refused,
    /// The cluster is unknown, has no healthy host, or is at its own bound.
    NoHost,
    /// The endpoint answered with a status other than 200.
    Status,
    /// The answer is not one.
    BadAnswer,
    /// The endpoint's store could not say.
    Store,
    /// Calls have failed in a row, so none is made for a while.
    BreakerOpen,
    /// Too many requests of this worker wait already.
    TooManyInFlight,
}

impl FailCause {
    /// Every cause, in a fixed order.
    pub const ALL: [Self; 8] = [
        Self::Timeout,
        Self::Refused,
        Self::NoHost,
        Self::Status,
        Self::BadAnswer,
        Self::Store,
        Self::BreakerOpen,
        Self::TooManyInFlight,
    ];

    /// What an operator should look at.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Timeout => "no answer in time",
            Self::Refused => "the connection was refused, was not made in time, or broke",
            Self::NoHost => "the cluster is unknown, has no healthy host, or is at its own bound",
            Self::Status => {
                "an answer with another status than 200: is the endpoint overloaded, the token right, the cluster?"
            }
            Self::BadAnswer => "an answer that is none: is this the token endpoint?",
            Self::Store => "the endpoint's store could not say",
            Self::BreakerOpen => "calls have failed in a row, so none is made for a while",
            Self::TooManyInFlight => "more requests wait than endpoint.max_in_flight",
        }
    }

    /// As it is called in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Refused => "refused",
            Self::NoHost => "no_host",
            Self::Status => "status",
            Self::BadAnswer => "bad_answer",
            Self::Store => "store",
            Self::BreakerOpen => "breaker_open",
            Self::TooManyInFlight => "too_many_in_flight",
        }
    }
}

/// The decision of one request.
#[derive(Debug)]
pub struct Decision {
    plan: Plan,
    /// The local policies' buckets.
    local: LocalRound,
    /// The emergency buckets, once the endpoint could not say.
    emergency: Option<LocalRound>,
    /// The charges that the endpoint is asked for, by their places in the plan.
    asked: Vec<usize>,
    /// What it has said of each: whole units left, and its verdict.
    told: Vec<(u64, Verdict)>,
    /// It is about leases alone: no request is charged.
    is_renewal: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Charging local buckets.
    Local,
    /// Waiting for the endpoint.
    Asking,
    /// Charging emergency buckets.
    Emergency,
    /// Decided; the local buckets may still have to be given back.
    Settling(Outcome),
}

impl Decision {
    /// Starts the decision that a plan of this set asks for. What the plan has in shadow takes no part: see
    /// [`shadow`](Self::shadow). `lessee` is whom leases are lent to: different for every worker of every proxy, and after
    /// each of its restarts.
    #[must_use]
    pub fn new(plan: Plan, set: &PolicySet, lessee: Digest) -> Self {
        let refusal = Rejection::refused(&plan);
        let charges = plan.charges.iter().filter_map(|charge| {
            let policy = set.policy(charge.policy)?;
            let Limit::TokenBucket(limit) = charge.limit else { return None };
            match policy.scope {
                // Of a request that is rejected as it stands only what is charged always is charged.
                Scope::Local { sharing, charge_always } if charge_always || refusal.is_none() => {
                    Some(LocalCharge::new(charge, policy, limit, sharing, charge_always))
                }
                Scope::Global { mode: Mode::Leased(sharing), .. } if refusal.is_none() => {
                    let waits = set.endpoint.as_ref().map_or(Micros::ZERO, |endpoint| endpoint.timeout);
                    Some(LocalCharge::lease(charge, policy, limit, sharing, lessee, waits))
                }
                _ => None,
            }
        });
        let charges = charges.collect();
        let asks = refusal.is_none() && plan.charges.iter().any(|charge| is_exact(charge, set));
        let mut decision = Self::over(LocalRound::new(charges, asks), plan);
        if let Some(rejection) = refusal {
            decision.reject(rejection);
        }
        decision
    }

    /// Starts the decision of one charge in shadow. It has a bucket of its own and an outcome that nobody is told but
    /// the metrics; when the endpoint cannot say there is none, so its [`failed`](Self::failed) is not for use.
    #[must_use]
    pub fn shadow(plan: &Plan, charge: &Charge, set: &PolicySet, lessee: Digest) -> Self {
        Self::new(Plan::alone(charge.clone(), plan.route), set, lessee)
    }

    fn over(local: LocalRound, plan: Plan) -> Self {
        let (asked, told) = (Vec::new(), Vec::new());
        Self { plan, local, emergency: None, asked, told, is_renewal: false, state: State::Local }
    }

    /// The calls that are to renew leases in the background, each once. They are decisions without a request: their
    /// outcome is nobody's, and when the endpoint cannot say they are to be told so by [`failed`](Self::failed).
    pub fn take_renewals(&mut self, set: &PolicySet) -> Vec<Self> {
        let renewals = self.local.take_renewals().into_iter();
        let of = |(policy, key, call)| {
            let charge = self.plan.charges.iter().find(|charge| charge.policy == policy && charge.key == key)?;
            let local = LocalRound::waiting(lease_of(charge, set)?.renewal(call));
            let renewal = Self::over(local, Plan::alone(charge.clone(), self.plan.route));
            Some(Self { asked: vec![0], is_renewal: true, state: State::Asking, ..renewal })
        };
        renewals.filter_map(of).collect()
    }

    /// Gives back a lease that nobody uses any more; [asks](Step::Ask) only when there is one. `None` for a charge that has
    /// no lease.
    #[must_use]
    pub fn give_back(charge: &Charge, set: &PolicySet) -> Option<Self> {
        let local = LocalRound::new(vec![lease_of(charge, set)?.returning()], true);
        let plan = Plan::alone(charge.clone(), crate::policy::Route::Other);
        Some(Self { is_renewal: true, ..Self::over(local, plan) })
    }

    /// Whether any of its leases may have something yet, as far as was seen.
    #[must_use]
    pub fn is_lent(&self, now: Micros) -> bool {
        self.local.is_lent(now)
    }

    /// The charges for which it asks for leases, too.
    pub fn borrows(&self) -> impl Iterator<Item = &Charge> {
        let calls: Vec<(usize, Digest)> =
            self.local.asked().filter(|(.., call)| call.is_some()).map(|(policy, key, _)| (policy, key)).collect();
        self.plan.charges.iter().filter(move |charge| calls.contains(&(charge.policy, charge.key)))
    }

    /// Takes how many units of leases were found to have died before they were spent.
    pub const fn take_expired(&mut self) -> u64 {
        self.local.take_expired()
    }

    /// How leases have served it, by policy.
    pub fn lease_uses(&self) -> impl Iterator<Item = (usize, LeaseUse)> {
        self.local.lease_uses()
    }

    /// While it [asks](Step::Ask) and has not been sent: whether it asks only for what others are being lent now. If so
    /// it looks again, and its [steps](Self::step) go on.
    pub fn retry(&mut self) -> bool {
        let waits = matches!(self.state, State::Asking)
            && !self.is_renewal
            && self.local.asked().count() == self.asked.len()
            && self.local.asked().all(|(.., call)| call.is_none());
        if waits {
            self.local.retry();
            self.asked.clear();
            self.state = State::Local;
        }
        waits
    }

    /// The plan that is being decided.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the host is to do now. Asking twice without an answer gives the same step twice.
    pub fn step(&mut self, set: &PolicySet, now: Micros) -> Step {
        loop {
            match &self.state {
                State::Local => match self.local.next(now) {
                    Task::Read(id) => return Step::Read(id),
                    Task::Write { set, bytes, version } => return Step::Write { set, bytes, version },
                    Task::Settled => self.after_local(set),
                },
                State::Asking => return Step::Ask,
                State::Emergency => {
                    let task = self.emergency.as_mut().map_or(Task::Settled, |round| round.next(now));
                    match task {
                        Task::Read(id) => return Step::Read(id),
                        Task::Write { set, bytes, version } => return Step::Write { set, bytes, version },
                        Task::Settled => self.after_emergency(),
                    }
                }
                State::Settling(outcome) => match self.local.next(now) {
                    Task::Read(id) => return Step::Read(id),
                    Task::Write { set, bytes, version } => return Step::Write { set, bytes, version },
                    Task::Settled => return Step::Done(outcome.clone()),
                },
            }
        }
    }

    /// Answers [`Step::Read`]: the stored bytes and their version, or `None` when there are none.
    pub fn stored(&mut self, value: Option<(&[u8], u32)>, now: Micros) {
        self.round().stored(value, now);
    }

    /// Answers [`Step::Write`]: whether the set was still at its version.
    pub fn written(&mut self, done: bool) {
        self.round().written(done);
    }

    /// What [`Step::Ask`] asks for: the charges of all global policies that apply, but for those that leases had the
    /// units for.
    #[must_use]
    pub fn request(&self, set: &PolicySet) -> DecisionRequest {
        let calls: Vec<(usize, Digest, Option<LeaseCall>)> = self.local.asked().collect();
        let charges = self.asked(set).map(|(charge, policy, _)| {
            let is_its = |(policy, key, _): &&(usize, Digest, _)| (*policy, *key) == (charge.policy, charge.key);
            ChargeRequest {
                policy: policy.name.clone(),
                key: charge.key,
                group: charge.group,
                cost: (!self.is_renewal).then_some(Cost(charge.cost)),
                limit: charge.limit,
                lease: calls.iter().find(is_its).and_then(|(.., call)| *call),
                learn: matches!(policy.scope, Scope::Global { learn: true, .. }),
            }
        });
        DecisionRequest { id: None, charges: charges.collect() }
    }

    /// Answers [`Step::Ask`]. An answer that does not fit the question is a failure.
    ///
    /// Gives the cause when the answer is a failure, so that it can be counted.
    pub fn answered(&mut self, answer: &DecisionAnswer, set: &PolicySet) -> Option<FailCause> {
        if !matches!(self.state, State::Asking) {
            return None;
        }
        let cause = match answer {
            DecisionAnswer::Admitted(charges) if charges.len() == self.asked.len() => {
                self.hear(charges.iter().map(|Admitted { remaining, lease }| (*remaining, Verdict::Admit, *lease)));
                self.admit(Admission::Allowed);
                return None;
            }
            DecisionAnswer::Denied(charges) if charges.len() == self.asked.len() => {
                let verdict = |denied: Option<Denial>| match denied {
                    None => Verdict::Admit,
                    Some(Denial::WaitUs(wait)) => Verdict::Wait(Micros::new(wait)),
                    Some(Denial::OverCapacity) => Verdict::Never,
                };
                let said = |charge: &Denied| (charge.remaining, verdict(charge.denied), charge.lease);
                let policies = self.asked.iter().filter_map(|index| Some(self.plan.charges.get(*index)?.policy));
                let denials = policies.zip(charges.iter().map(|charge| verdict(charge.denied)));
                if let Some(rejection) = Rejection::denied(denials, false) {
                    self.hear(charges.iter().map(said));
                    self.reject(rejection);
                    return None;
                }
                FailCause::BadAnswer
            }
            DecisionAnswer::Failed(_) => FailCause::Store,
            DecisionAnswer::Admitted(_) | DecisionAnswer::Denied(_) => FailCause::BadAnswer,
        };
        self.failed(set);
        Some(cause)
    }

    /// What the endpoint has said of each charge that it was asked for.
    fn hear(&mut self, said: impl Iterator<Item = (u64, Verdict, Option<LeaseAnswer>)>) {
        let calls: Vec<(usize, Digest, Option<LeaseCall>)> = self.local.asked().collect();
        for (index, (left, verdict, lease)) in self.asked.iter().zip(said) {
            self.told.push((left, verdict));
            let Some(charge) = self.plan.charges.get(*index) else { continue };
            let is_its = |(policy, key, _): &&(usize, Digest, _)| (*policy, *key) == (charge.policy, charge.key);
            let Some((.., call)) = calls.iter().find(is_its) else { continue };
            let denied = if let Verdict::Wait(wait) = verdict { Some((charge.cost.count(), wait)) } else { None };
            let news = LeaseNews { left: Some(left), denied, call: call.map(|call| (call, lease)) };
            self.local.tell(charge.policy, charge.key, news);
        }
    }

    /// Answers [`Step::Ask`] when there is no answer: the fail modes decide. Closed beats local beats open.
    pub fn failed(&mut self, set: &PolicySet) {
        if !matches!(self.state, State::Asking) {
            return;
        }
        if self.is_renewal {
            self.admit(Admission::Allowed);
            return;
        }
        let closed: Vec<usize> =
            self.asked(set).filter(|(.., mode)| *mode == FailMode::Closed).map(|(charge, ..)| charge.policy).collect();
        if !closed.is_empty() {
            self.reject(Rejection::Unavailable { policies: closed });
            return;
        }
        let emergency: Vec<LocalCharge> = self
            .asked(set)
            .filter_map(|(charge, policy, mode)| match mode {
                FailMode::Local(limit) => Some(LocalCharge::emergency(charge, policy, limit)),
                FailMode::Open | FailMode::Closed => None,
            })
            .collect();
        if emergency.is_empty() {
            self.admit(Admission::FailedOpen);
        } else {
            self.emergency = Some(LocalRound::new(emergency, false));
            self.state = State::Emergency;
        }
    }

    /// The request is gone before the endpoint has answered. What it was charged stays spent; run the decision to its
    /// end to settle it.
    pub fn abandon(&mut self) {
        if matches!(self.state, State::Asking) {
            self.admit(Admission::Allowed);
        }
    }

    /// Where every budget stands that had a say, in the order of the policies. Those that nothing is known of are left
    /// out: emergency budgets stand in for them.
    #[must_use]
    pub fn standings(&self, set: &PolicySet) -> Vec<Standing> {
        let mut local = self.local.standings().peekable();
        let mut told = self.asked.iter().zip(&self.told).peekable();
        let mut standings: Vec<Standing> = Vec::new();
        for (index, charge) in self.plan.charges.iter().enumerate() {
            let found = match told.next_if(|(asked, _)| **asked == index) {
                Some((_, (left, verdict))) => Some((charge.policy, *left, *verdict)),
                None if self.asked.contains(&index) || set.policy(charge.policy).is_none() => None,
                None => local.next_if(|(policy, ..)| *policy == charge.policy),
            };
            let Some((policy, left, verdict)) = found else { continue };
            match standings.last_mut().filter(|last| last.policy == policy) {
                // While the hash key is changed a policy has two buckets, and the one with less decides.
                Some(last) => {
                    last.left = last.left.min(left);
                    last.verdict = last.verdict.stricter(verdict);
                }
                None => standings.push(Standing { policy, limit: charge.limit, left, verdict }),
            }
        }
        standings
    }

    /// What an outcome of this decision was for each policy that applied, once each; with its
    /// [`standings`](Self::standings).
    #[must_use]
    pub fn parts(&self, outcome: &Outcome, standings: &[Standing], set: &PolicySet) -> Vec<(usize, Part)> {
        let never = |policy| standings.iter().any(|one| one.policy == policy && one.verdict == Verdict::Never);
        let charged = self.plan.charges.iter().map(|charge| charge.policy);
        let refused = self.plan.refusals.iter().filter(|refusal| refusal.enforced).map(|refusal| refusal.policy);
        let mut parts: Vec<(usize, Part)> = Vec::new();
        for index in charged.chain(refused) {
            // While the hash key is changed a policy has two charges, one behind the other.
            let Some(policy) = set.policy(index).filter(|_| parts.last().is_none_or(|(last, _)| *last != index)) else {
                continue;
            };
            let is_always = matches!(policy.scope, Scope::Local { charge_always: true, .. });
            let part = match (outcome, &policy.scope) {
                (Outcome::Reject(rejection), _) if rejection.policies().contains(&index) => match outcome.part() {
                    Part::Denied | Part::OverCapacity if never(index) => Part::OverCapacity,
                    Part::OverCapacity => Part::Denied,
                    part => part,
                },
                (Outcome::Reject(_), _) if is_always && self.local.is_spent(index) => Part::Allowed,
                (Outcome::Reject(_), _) => Part::NotCharged,
                (Outcome::Admit(Admission::Allowed), _) | (_, Scope::Local { .. }) => Part::Allowed,
                _ if !self.asks_for(index) => Part::Allowed,
                (_, Scope::Global { on_failure: FailMode::Local(_), .. }) => Part::FailedLocal,
                (_, Scope::Global { .. }) => Part::FailedOpen,
            };
            parts.push((index, part));
        }
        parts
    }

    /// Takes what went wrong with local buckets since the last call, to be counted.
    pub fn take_contention(&mut self) -> Vec<Contention> {
        let mut all = self.local.take_contention();
        if let Some(round) = &mut self.emergency {
            all.extend(round.take_contention());
        }
        all
    }

    fn round(&mut self) -> &mut LocalRound {
        match (&self.state, &mut self.emergency) {
            (State::Emergency, Some(round)) => round,
            _ => &mut self.local,
        }
    }

    fn after_local(&mut self, set: &PolicySet) {
        if let Some(rejection) = self.local.rejection(false) {
            self.reject(rejection);
            return;
        }
        let missing: Vec<(usize, Digest)> = self.local.asked().map(|(policy, key, _)| (policy, key)).collect();
        let is_asked = |charge: &Charge| is_exact(charge, set) || missing.contains(&(charge.policy, charge.key));
        let charges = self.plan.charges.iter().enumerate();
        self.asked = charges.filter(|(_, charge)| is_asked(charge)).map(|(index, _)| index).collect();
        if self.asked.is_empty() {
            self.admit(Admission::Allowed);
        } else {
            self.state = State::Asking;
        }
    }

    fn after_emergency(&mut self) {
        match self.emergency.as_ref().and_then(|round| round.rejection(true)) {
            Some(rejection) => self.reject(rejection),
            None => self.admit(Admission::FailedLocal),
        }
    }

    fn admit(&mut self, admission: Admission) {
        self.local.confirm();
        self.state = State::Settling(Outcome::Admit(admission));
    }

    fn reject(&mut self, rejection: Rejection) {
        self.local.deny();
        self.state = State::Settling(Outcome::Reject(rejection));
    }

    /// What the endpoint is asked for.
    fn asked<'a>(&'a self, set: &'a PolicySet) -> impl Iterator<Item = (&'a Charge, &'a Policy, FailMode)> {
        self.asked.iter().filter_map(|index| {
            let charge = self.plan.charges.get(*index)?;
            let policy = set.policy(charge.policy)?;
            match policy.scope {
                Scope::Global { on_failure, .. } => Some((charge, policy, on_failure)),
                Scope::Local { .. } => None,
            }
        })
    }

    fn asks_for(&self, policy: usize) -> bool {
        self.asked.iter().any(|index| self.plan.charges.get(*index).is_some_and(|charge| charge.policy == policy))
    }
}

/// Whether the endpoint is asked for this charge each time.
fn is_exact(charge: &Charge, set: &PolicySet) -> bool {
    let is_token_bucket = charge.limit.is_token_bucket();
    set.policy(charge.policy).is_some_and(|policy| match policy.scope {
        Scope::Global { mode: Mode::Leased(_), .. } => !is_token_bucket,
        Scope::Global { mode: Mode::Exact, .. } => true,
        Scope::Local { .. } => false,
    })
}

/// The lease of a charge, where there is one already.
fn lease_of(charge: &Charge, set: &PolicySet) -> Option<LocalCharge> {
    let policy = set.policy(charge.policy)?;
    match (policy.scope.clone(), charge.limit) {
        (Scope::Global { mode: Mode::Leased(sharing), .. }, Limit::TokenBucket(limit)) => {
            Some(LocalCharge::lease(charge, policy, limit, sharing, Digest::default(), Micros::ZERO))
        }
        _ => None,
    }
}

impl Rejection {
    /// The policies that rejected, as places in the policy list.
    #[must_use]
    pub fn policies(&self) -> &[usize] {
        match self {
            Self::Denied { policies, .. }
            | Self::Barred { policies }
            | Self::Unidentified { policies }
            | Self::Unavailable { policies } => policies,
        }
    }

    /// What a plan rejects as it stands. A lacking identity comes first: the caller can do something about that.
    fn refused(plan: &Plan) -> Option<Self> {
        let because = |reason: RefusalReason| -> Option<Vec<usize>> {
            let refusals = plan.refusals.iter().filter(|refusal| refusal.enforced && refusal.reason == reason);
            let policies: Vec<usize> = refusals.map(|refusal| refusal.policy).collect();
            (!policies.is_empty()).then_some(policies)
        };
        let unidentified = because(RefusalReason::IdentityMissing).map(|policies| Self::Unidentified { policies });
        unidentified.or_else(|| because(RefusalReason::Denies).map(|policies| Self::Barred { policies }))
    }

    /// `None` when nobody denied.
    fn denied(denials: impl Iterator<Item = (usize, Verdict)>, emergency: bool) -> Option<Self> {
        let (mut policies, mut wait) = (Vec::new(), Some(Micros::ZERO));
        for (policy, verdict) in denials {
            match verdict {
                Verdict::Admit => continue,
                Verdict::Wait(one) => wait = wait.map(|longest| longest.max(one)),
                Verdict::Never => wait = None,
            }
            // While the hash key is changed a policy has two buckets.
            if policies.last() != Some(&policy) {
                policies.push(policy);
            }
        }
        (!policies.is_empty()).then_some(Self::Denied { policies, wait, emergency })
    }
}
