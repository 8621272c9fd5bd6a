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

mod local;
#[cfg(test)]
mod tests;

pub use local::{Contention, SetId};

use crate::limit::{Limit, Verdict};
use crate::policy::{Charge, FailMode, OnMissing, Plan, Policy, PolicySet, RefusalReason, Scope};
use crate::units::Micros;
use crate::wire::{ChargeRequest, Cost, DecisionAnswer, DecisionRequest, Denial};
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
            Scope::Global { on_failure } => Some(on_failure),
        };
        match self {
            Self::Allowed | Self::Denied | Self::OverCapacity | Self::NotCharged => true,
            Self::Unidentified => policy.on_missing == OnMissing::Reject,
            Self::FailedOpen => mode == Some(FailMode::Open),
            Self::FailedClosed => matches!(mode, None | Some(FailMode::Closed | FailMode::Local(_))),
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
    /// What the endpoint has said of each charge that it was asked for: whole units left, and its verdict.
    told: Vec<(u64, Verdict)>,
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
    /// [`shadow`](Self::shadow).
    #[must_use]
    pub fn new(plan: Plan, set: &PolicySet) -> Self {
        let refusal = Rejection::refused(&plan);
        let charges = plan.charges.iter().filter_map(|charge| {
            let policy = set.policy(charge.policy)?;
            let Scope::Local { sharing, charge_always } = policy.scope else { return None };
            let Limit::TokenBucket(limit) = charge.limit else { return None };
            // Of a request that is rejected as it stands only what is charged always is charged.
            (charge_always || refusal.is_none())
                .then(|| LocalCharge::new(charge, policy, limit, sharing, charge_always))
        });
        let charges = charges.collect();
        let is_global = |charge: &Charge| {
            set.policy(charge.policy).is_some_and(|policy| matches!(policy.scope, Scope::Global { .. }))
        };
        let asks = refusal.is_none() && plan.charges.iter().any(is_global);
        let local = LocalRound::new(charges, asks);
        let mut decision = Self { local, emergency: None, told: Vec::new(), state: State::Local, plan };
        if let Some(rejection) = refusal {
            decision.reject(rejection);
        }
        decision
    }

    /// Starts the decision of one charge in shadow. It has a bucket of its own and an outcome that nobody is told but
    /// the metrics; when the endpoint cannot say there is none, so its [`failed`](Self::failed) is not for use.
    #[must_use]
    pub fn shadow(plan: &Plan, charge: &Charge, set: &PolicySet) -> Self {
        Self::new(Plan::alone(charge.clone(), plan.route), set)
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

    /// What [`Step::Ask`] asks for: the charges of all global policies that apply.
    #[must_use]
    pub fn request(&self, set: &PolicySet) -> DecisionRequest {
        let charges = self.global(set).map(|(charge, policy, _)| ChargeRequest {
            policy: policy.name.clone(),
            key: charge.key,
            group: charge.group,
            cost: Some(Cost(charge.cost)),
            limit: charge.limit,
            lease: None,
            learn: false,
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
        let asked: Vec<usize> = self.global(set).map(|(charge, ..)| charge.policy).collect();
        let cause = match answer {
            DecisionAnswer::Admitted(charges) if charges.len() == asked.len() => {
                self.told = charges.iter().map(|charge| (charge.remaining, Verdict::Admit)).collect();
                self.admit(Admission::Allowed);
                return None;
            }
            DecisionAnswer::Denied(charges) if charges.len() == asked.len() => {
                let told: Vec<(u64, Verdict)> = charges
                    .iter()
                    .map(|charge| match charge.denied {
                        None => (charge.remaining, Verdict::Admit),
                        Some(Denial::WaitUs(wait)) => (charge.remaining, Verdict::Wait(Micros::new(wait))),
                        Some(Denial::OverCapacity) => (charge.remaining, Verdict::Never),
                    })
                    .collect();
                let denials = asked.iter().zip(&told).map(|(policy, (_, verdict))| (*policy, *verdict));
                if let Some(rejection) = Rejection::denied(denials, false) {
                    self.told = told;
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

    /// Answers [`Step::Ask`] when there is no answer: the fail modes decide. Closed beats local beats open.
    pub fn failed(&mut self, set: &PolicySet) {
        if !matches!(self.state, State::Asking) {
            return;
        }
        let closed: Vec<usize> =
            self.global(set).filter(|(.., mode)| *mode == FailMode::Closed).map(|(charge, ..)| charge.policy).collect();
        if !closed.is_empty() {
            self.reject(Rejection::Unavailable { policies: closed });
            return;
        }
        let emergency: Vec<LocalCharge> = self
            .global(set)
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
        let mut told = self.told.iter();
        let mut standings: Vec<Standing> = Vec::new();
        for charge in &self.plan.charges {
            let found = match set.policy(charge.policy).map(|policy| &policy.scope) {
                Some(Scope::Local { .. }) => local.next_if(|(policy, ..)| *policy == charge.policy),
                Some(Scope::Global { .. }) => told.next().map(|(left, verdict)| (charge.policy, *left, *verdict)),
                None => None,
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
                (_, Scope::Global { on_failure: FailMode::Local(_) }) => Part::FailedLocal,
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
        } else if self.global(set).next().is_some() {
            self.state = State::Asking;
        } else {
            self.admit(Admission::Allowed);
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

    fn global<'a>(&'a self, set: &'a PolicySet) -> impl Iterator<Item = (&'a Charge, &'a Policy, FailMode)> {
        self.plan.charges.iter().filter_map(|charge| {
            let policy = set.policy(charge.policy)?;
            match policy.scope {
                Scope::Global { on_failure } => Some((charge, policy, on_failure)),
                Scope::Local { .. } => None,
            }
        })
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
