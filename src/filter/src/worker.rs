//! One configuration at work on one worker thread: what its root context and its streams share.

use crate::host::{Buffer, Map};
use crate::identity::Request;
use crate::metrics::{Metrics, Shadow};
use crate::{host, tables};
use core::cell::{Cell, RefCell};
use core::fmt::Write;
use core::time::Duration;
use proxy_wasm::hostcalls;
use proxy_wasm::types::LogLevel;
use std::collections::BTreeMap;
use std::rc::Rc;
use tollgate_core::breaker::{Breaker, BreakerState, Gate};
use tollgate_core::decision::{Decision, FailCause, Outcome, Rejection, Standing, Step};
use tollgate_core::fields::{self, Header};
use tollgate_core::gather::Gather;
use tollgate_core::json::Object;
use tollgate_core::key::Digest;
use tollgate_core::policy::{Charge, Endpoint, LegacyReset, PolicySet, Responses, Scope, Sharing};
use tollgate_core::reply::{Caller, Reply};
use tollgate_core::units::Micros;
use tollgate_core::wire::{ADMIT_PATH, AdmitAnswer, AdmitRequest, DecisionAnswer, MAX_BODY};

/// How often deadlines are looked at while requests wait. A part of the 20 ms that a fail mode may come late.
const WATCH: Duration = Duration::from_millis(5);

/// The least time between two warnings that the endpoint gave no verdict.
const WARN_EVERY: Micros = Micros::from_secs(10);

/// The least time between two lines about rejections.
const LOG_EVERY: Micros = Micros::from_secs(1);

/// How often a failure is tried to be noted while other workers note theirs.
const MAX_LOST_RACES: usize = 8;

/// How far a request's decision is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Not looked at yet.
    New,
    /// Paused until the endpoint has answered.
    Waiting,
    /// It goes on.
    Admitted,
    /// It was answered here.
    Rejected,
}

/// What a stream and its decision share.
pub(crate) struct Ticket {
    pub(crate) progress: Cell<Progress>,
    /// What the response is to carry.
    fields: RefCell<Vec<Header>>,
}

/// A decision that waits for the endpoint.
struct Pending {
    decision: Decision,
    whose: Whose,
}

/// On whose behalf the endpoint is asked.
enum Whose {
    /// A request's, which is paused.
    Stream(Rc<Ticket>),
    /// That of a policy in shadow, for which nobody waits.
    Shadow(usize),
    /// Nobody's: it is about a lease alone.
    Lease,
}

/// The first id of a decision that no request waits for.
const FIRST_BEHIND: u64 = 1 << 32;

/// How often leases are looked at that nobody may use any more.
const LEASE_LOOK: Micros = Micros::from_millis(250);

/// So many of them each time, the next ones the next time.
const MAX_LOOKED_AT: usize = 1024;

/// Of so many keys a worker remembers that they may have a lease: all are looked at before a lease that is idle ends.
const MAX_LEASES: usize = 2 * MAX_LOOKED_AT;

pub(crate) struct Worker {
    root: u32,
    set: PolicySet,
    metrics: Metrics,
    endpoint: Option<Endpoint>,
    /// The root's own queue: a byte in it wakes the root on this worker.
    queue: u32,
    woken: Cell<bool>,
    /// The tick that is set now, zero for none.
    tick: Cell<Duration>,
    idle_tick: Duration,
    /// No call is made before, so far as this worker knows.
    open_until: Cell<Micros>,
    /// Calls have failed since one was answered, so far as this worker knows.
    is_failing: Cell<bool>,
    /// The same of calls that no request is in.
    is_failing_behind: Cell<bool>,
    warnings: Sometimes,
    rejections: Sometimes,
    /// In hundredths of a line, what the rejections since the last one that was picked amount to.
    share: Cell<u32>,
    // Host calls that run other callbacks are made with neither of these borrowed.
    gather: RefCell<Gather>,
    /// By the stream's id, and for what no request waits for by an id above those.
    pending: RefCell<BTreeMap<u64, Pending>>,
    next_behind: Cell<u64>,
    /// What leases were asked for, in the order of their keys.
    leases: RefCell<Vec<Charge>>,
    /// How many of them were looked at, and when the next are.
    looked_at: Cell<usize>,
    look_at: Cell<Micros>,
    lessee: Digest,
}

impl Ticket {
    pub(crate) const fn new() -> Self {
        Self { progress: Cell::new(Progress::New), fields: RefCell::new(Vec::new()) }
    }
}

impl Worker {
    /// `None` when the host lacks what the filter needs, which is logged.
    pub(crate) fn new(root: u32, set: PolicySet) -> Option<Self> {
        // Unique among all VMs: who registers a name last gets its notifications.
        let Some((high, low)) = host::random().zip(host::random()) else {
            host::log(LogLevel::Error, "the host gives no random numbers: allow random_get to the plugin");
            return None;
        };
        let Some(queue) = host::register_queue(&format!("tollgate.{high:016x}{low:016x}")) else {
            host::log(LogLevel::Error, "the host gives no queue: allow proxy_register_shared_queue to the plugin");
            return None;
        };
        let lessee = tables::lessee()?;
        let endpoint = set.endpoint.clone();
        let gather = endpoint.as_ref().map_or_else(
            || Gather::new(Micros::ZERO, 0),
            |endpoint| Gather::new(endpoint.timeout, endpoint.max_in_flight),
        );
        let per_worker = |scope: &Scope| matches!(scope, Scope::Local { sharing: Sharing::Worker, .. });
        let idle_tick = if set.policies().iter().any(|policy| per_worker(&policy.scope)) {
            Duration::from_micros(tables::CLAIM_RENEWAL.count())
        } else {
            Duration::ZERO
        };
        let metrics = Metrics::new(&set);
        // By the configuration before there may have been another breaker, or one.
        let breaker = endpoint.as_ref().filter(|endpoint| endpoint.breaker.is_some());
        metrics.breaker_is(
            breaker
                .is_some_and(|endpoint| tables::breaker(&tables::breaker_name(&endpoint.cluster, false)).0.is_open()),
        );
        Some(Self {
            root,
            metrics,
            endpoint,
            queue,
            woken: Cell::new(false),
            tick: Cell::new(Duration::ZERO),
            idle_tick,
            open_until: Cell::new(Micros::ZERO),
            is_failing: Cell::new(false),
            is_failing_behind: Cell::new(false),
            warnings: Sometimes::new(WARN_EVERY),
            rejections: Sometimes::new(LOG_EVERY),
            share: Cell::new(0),
            gather: RefCell::new(gather),
            pending: RefCell::default(),
            next_behind: Cell::new(FIRST_BEHIND),
            leases: RefCell::default(),
            looked_at: Cell::new(0),
            look_at: Cell::new(Micros::ZERO),
            lessee,
            set,
        })
    }

    /// Decides the request of the effective context, in its headers phase.
    pub(crate) fn decide(&self, stream: u32, ends: bool, ticket: &Rc<Ticket>) {
        let plan = self.set.plan(&Request::new(ends));
        self.metrics.plan(&plan);
        if plan.exempt {
            ticket.progress.set(Progress::Admitted);
            return;
        }
        let now = host::now();
        for charge in &plan.shadows {
            self.shadow(stream, charge.policy, Decision::shadow(&plan, charge, &self.set, self.lessee), now);
        }
        let mut decision = Decision::new(plan, &self.set, self.lessee);
        let advanced = self.advance(&mut decision, now);
        if self.renew(&mut decision, now) {
            self.wake(stream, now);
        }
        let outcome = match advanced {
            Some(outcome) => outcome,
            None if self.open_until.get() > now => self.give_up(&mut decision, FailCause::BreakerOpen),
            None if self.gather.borrow_mut().join(stream.into(), now).is_ok() => {
                ticket.progress.set(Progress::Waiting);
                let pending = Pending { decision, whose: Whose::Stream(Rc::clone(ticket)) };
                self.pending.borrow_mut().insert(stream.into(), pending);
                self.wake(stream, now);
                return;
            }
            None => self.give_up(&mut decision, FailCause::TooManyInFlight),
        };
        if let Some(reply) = self.decided(ticket, &mut decision, &outcome) {
            host::reply(&reply);
        }
    }

    /// Counts the outcome of the effective context's request, and notes it; gives the reply where there is one.
    fn decided(&self, ticket: &Ticket, decision: &mut Decision, outcome: &Outcome) -> Option<Reply> {
        self.metrics.leases(decision);
        let standings = decision.standings(&self.set);
        self.metrics.decided(decision, outcome, &standings, &self.set);
        host::note("tollgate", &summary(outcome, &standings, &self.set));
        match outcome {
            Outcome::Admit(_) => {
                ticket.progress.set(Progress::Admitted);
                if self.set.responses.marks_admitted() {
                    *ticket.fields.borrow_mut() = fields::of_admitted(&standings, &self.set, host::unix_seconds);
                }
                None
            }
            Outcome::Reject(rejection) => {
                ticket.progress.set(Progress::Rejected);
                self.log_rejection(decision, outcome, rejection);
                let reply = Reply::new(rejection, &standings, &self.set, &self.caller());
                if reply.body.is_empty() {
                    // From a local reply without a body Envoy takes the content type away again.
                    let kind = reply.headers.iter().filter(|(name, _)| *name == "content-type");
                    *ticket.fields.borrow_mut() = kind.cloned().collect();
                }
                Some(reply)
            }
        }
    }

    /// Says in the log what was rejected and why: a share of it, and not too often.
    fn log_rejection(&self, decision: &Decision, outcome: &Outcome, rejection: &Rejection) {
        let share = self.share.get().saturating_add(self.set.logged_rejections.into());
        self.share.set(share.checked_rem(100).unwrap_or(0));
        if share < 100 {
            return;
        }
        let Some(held_back) = self.rejections.pass(host::now()) else { return };
        let policies = rejection.policies();
        let plan = decision.plan();
        let charge = plan.charges.iter().find(|charge| policies.contains(&charge.policy));
        let wait = if let Rejection::Denied { wait, .. } = rejection { *wait } else { None };
        let names: Vec<&str> =
            policies.iter().filter_map(|index| Some(self.set.policy(*index)?.name.as_str())).collect();
        // It has nothing that the client sent.
        let mut line = Object::default()
            .text("event", "rejected")
            .text("outcome", outcome.part().name())
            .texts("policies", &names)
            .text_if("policy_version", self.set.version.as_deref())
            .text("route", self.set.route_name(plan.route))
            .text_if("key", charge.map(|charge| charge.key.to_string()).as_deref());
        if let Some(wait) = wait {
            line = line.number("wait_ms", wait.as_millis_ceil());
        }
        host::log(LogLevel::Info, &line.number("held_back", held_back).finish());
    }

    /// Who gets the reply that the effective context's request is to have.
    fn caller(&self) -> Caller {
        let headers = host::headers(Map::Request);
        let header = |name| headers.first(name).unwrap_or_default().to_vec();
        let Responses { retry_after_jitter, legacy, .. } = &self.set.responses;
        let random = if *retry_after_jitter > 0 { host::random().unwrap_or(0) } else { 0 };
        Caller {
            content_type: header("content-type"),
            origin: header("origin"),
            random: u32::try_from(random >> 32).unwrap_or(0),
            clock: if *legacy == Some(LegacyReset::Epoch) { host::unix_seconds() } else { 0 },
        }
    }

    /// A response is to go out, in its headers phase: it is given what was kept for it.
    pub(crate) fn respond(&self, ticket: &Ticket) {
        let headers = ticket.fields.take();
        if headers.is_empty() || (ticket.progress.get() == Progress::Admitted && !self.may_tell(&headers)) {
            return;
        }
        for (name, value) in headers {
            host::replace_header(Map::Response, name, &value);
        }
    }

    /// Whether the upstream's response may carry these fields of ours.
    fn may_tell(&self, headers: &[Header]) -> bool {
        let sent = host::headers(Map::Response);
        // An upstream that limits by itself knows what it says. What a shared cache keeps would be told to others
        // (RFC 9111 §3.5).
        let is_left_alone = sent.first(":status") == Some(b"429")
            || fields::may_be_shared(&sent.lines("cache-control"), sent.first("expires").is_some())
            || (!self.set.responses.replace_upstream && headers.iter().any(|(name, _)| sent.first(name).is_some()));
        !is_left_alone
    }

    /// Decides one policy in shadow: its outcome is counted, and the request does not wait for it.
    fn shadow(&self, stream: u32, policy: usize, mut decision: Decision, now: Micros) {
        let advanced = self.advance(&mut decision, now);
        let renews = self.renew(&mut decision, now);
        if let Some(outcome) = advanced {
            self.metrics.leases(&mut decision);
            self.count_shadow(policy, &outcome);
        } else if self.join_behind(Pending { decision, whose: Whose::Shadow(policy) }, now) {
            self.wake(stream, now);
            return;
        }
        if renews {
            self.wake(stream, now);
        }
    }

    /// Has the endpoint asked for what no request waits for; `false` when too much of that waits already.
    fn join_behind(&self, pending: Pending, now: Micros) -> bool {
        let id = self.next_behind.replace(self.next_behind.get().checked_add(1).unwrap_or(FIRST_BEHIND));
        let joined = self.gather.borrow_mut().join_behind(id, now).is_ok();
        if joined {
            self.pending.borrow_mut().insert(id, pending);
        } else {
            self.unanswered(id, pending, FailCause::TooManyInFlight);
        }
        joined
    }

    /// Has the leases renewed for which it is time, in the background; gives whether there are any.
    fn renew(&self, decision: &mut Decision, now: Micros) -> bool {
        let renewals = decision.take_renewals(&self.set);
        let any = !renewals.is_empty();
        for decision in renewals {
            self.join_behind(Pending { decision, whose: Whose::Lease }, now);
        }
        any
    }

    /// Gives back leases that nobody uses any more.
    fn give_back(&self, now: Micros) {
        if now < self.look_at.get() {
            return;
        }
        self.look_at.set(now.plus(LEASE_LOOK));
        let first = self.looked_at.get();
        let due: Vec<Charge> = self.leases.borrow().iter().skip(first).take(MAX_LOOKED_AT).cloned().collect();
        let mut gone: Vec<Digest> = Vec::new();
        for charge in &due {
            let Some(mut decision) = Decision::give_back(charge, &self.set) else { continue };
            if self.advance(&mut decision, now).is_none() {
                self.join_behind(Pending { decision, whose: Whose::Lease }, now);
            } else if !decision.is_lent(now) {
                gone.push(charge.key);
            }
        }
        // They are in order, as the list is.
        self.leases.borrow_mut().retain(|known| gone.binary_search(&known.key).is_err());
        let next = first.saturating_add(due.len()).saturating_sub(gone.len());
        self.looked_at.set(if due.is_empty() { 0 } else { next });
    }

    fn count_shadow(&self, policy: usize, outcome: &Outcome) {
        let shadow = match outcome {
            Outcome::Admit(_) => Shadow::Allowed,
            Outcome::Reject(Rejection::Unavailable { .. }) => Shadow::Failed,
            Outcome::Reject(_) => Shadow::Denied,
        };
        self.metrics.shadow(policy, shadow);
    }

    /// A stream ended while it waited.
    pub(crate) fn left(&self, stream: u32) {
        let Some(mut pending) = self.pending.borrow_mut().remove(&stream.into()) else { return };
        self.gather.borrow_mut().leave(stream.into());
        self.metrics.client_left();
        pending.decision.abandon();
        self.advance(&mut pending.decision, host::now());
    }

    /// The root's turn: requests have joined.
    pub(crate) fn woken(&self) {
        self.woken.set(false);
        while host::dequeue(self.queue).is_some() {}
        self.send_due();
    }

    /// The root's turn: time has passed.
    pub(crate) fn tick(&self) {
        let now = host::now();
        let expired = self.gather.borrow_mut().expired(now);
        for id in expired {
            self.fail(id, FailCause::Timeout);
        }
        self.give_back(now);
        self.send_due();
        if !self.idle_tick.is_zero() {
            // Only a VM that has a number keeps one: the main thread's VM ticks too, and serves nothing.
            tables::renew(now);
        }
    }

    /// The root's turn: a call has ended, with an answer or without.
    pub(crate) fn call_ended(&self, token: u32, body_size: usize) {
        let sent = self.gather.borrow().sent_at(token);
        let waiters = self.gather.borrow_mut().answered(token);
        let answer = read_answer(body_size, waiters.len());
        if let Some((sent, behind)) = sent {
            let now = host::now();
            self.metrics.call(now.since(sent));
            self.note_end(answer.is_ok(), behind, now);
        }
        match answer {
            Ok(answer) => {
                for (id, answer) in waiters.into_iter().zip(&answer.decisions) {
                    if let Some(id) = id {
                        self.answer(id, answer);
                    }
                }
            }
            Err(cause) => {
                for id in waiters.into_iter().flatten() {
                    self.fail(id, cause);
                }
            }
        }
        self.retry();
        self.send_due();
    }

    /// What waits to be sent, and asks only for what others were just lent, is decided again.
    fn retry(&self) {
        let waiting = self.gather.borrow().waiting();
        for id in waiting {
            let Some(mut pending) = self.take_retried(id) else { continue };
            let now = host::now();
            let advanced = self.advance(&mut pending.decision, now);
            self.renew(&mut pending.decision, now);
            match advanced {
                None => drop(self.pending.borrow_mut().insert(id, pending)),
                Some(outcome) => {
                    self.gather.borrow_mut().leave(id);
                    self.finish(id, pending, outcome);
                }
            }
        }
    }

    fn take_retried(&self, id: u64) -> Option<Pending> {
        let mut pending = self.pending.borrow_mut();
        pending.get_mut(&id)?.decision.retry().then(|| pending.remove(&id)).flatten()
    }

    /// Has the host call the root in this turn of the event loop, if there is something to send: else what waits goes when
    /// a call is answered. Should the host fail to, the tick sends it.
    fn wake(&self, stream: u32, now: Micros) {
        // Queues are unbounded: one byte for all that join in one turn.
        if !self.woken.get() && self.gather.borrow().is_due(now) {
            self.woken.set(host::enqueue(self.queue, &[1]));
        }
        if self.tick.get() != self.due_tick() {
            // The tick is the root's; a stream that set one would be ticked itself.
            host::act_for(self.root);
            self.watch();
            host::act_for(stream);
        }
    }

    /// Sends every batch that is due, and watches the clock while anybody waits.
    fn send_due(&self) {
        // What follows is the root's: the answers must come to it and not to a stream.
        host::act_for(self.root);
        loop {
            let now = host::now();
            let due = self.gather.borrow().due(now);
            if due.is_empty() {
                break;
            }
            let behind = due.iter().all(|id| *id >= FIRST_BEHIND);
            let called = if self.may_call(behind, now) { self.call(&due) } else { Err(FailCause::BreakerOpen) };
            match called {
                Ok(token) => self.gather.borrow_mut().sent(due.len(), token, now),
                Err(cause) => {
                    self.gather.borrow_mut().unsent(due.len());
                    for id in due {
                        self.fail(id, cause);
                    }
                    host::act_for(self.root);
                }
            }
        }
        self.watch();
    }

    /// Whether the breaker lets a call pass; `behind` when no request is in it.
    fn may_call(&self, behind: bool, now: Micros) -> bool {
        let Some((endpoint, breaker)) = self.breaker() else { return true };
        let name = tables::breaker_name(&endpoint.cluster, behind);
        let (state, version) = tables::breaker(&name);
        self.is_failing(behind).set(state != BreakerState::default());
        if !behind {
            // A host may take this configuration up again after another one.
            self.metrics.breaker_is(state.is_open());
        }
        match breaker.gate(&state, now, endpoint.timeout) {
            Gate::Closed => true,
            Gate::Open(until) => {
                if !behind {
                    self.open_until.set(until);
                }
                false
            }
            Gate::Tried => false,
            Gate::Trying(state) => tables::write_breaker(&name, &state, version),
        }
    }

    /// Tells the breaker how a call ended.
    fn note_end(&self, answered: bool, behind: bool, now: Micros) {
        let Some((endpoint, breaker)) = self.breaker() else { return };
        let is_failing = self.is_failing(behind);
        if answered && !is_failing.replace(false) {
            return;
        }
        let name = tables::breaker_name(&endpoint.cluster, behind);
        for _ in 0..MAX_LOST_RACES {
            let (state, version) = tables::breaker(&name);
            let new = if answered { Breaker::answered(&state) } else { breaker.failed(&state, now) };
            let Some(new) = new else { break };
            if tables::write_breaker(&name, &new, version) {
                is_failing.set(!answered);
                if !behind && new.is_open() != state.is_open() {
                    self.metrics.breaker(new.is_open());
                }
                break;
            }
        }
    }

    const fn is_failing(&self, behind: bool) -> &Cell<bool> {
        if behind { &self.is_failing_behind } else { &self.is_failing }
    }

    fn breaker(&self) -> Option<(&Endpoint, Breaker)> {
        let endpoint = self.endpoint.as_ref()?;
        Some((endpoint, endpoint.breaker?))
    }

    fn due_tick(&self) -> Duration {
        match (self.gather.borrow().is_empty(), self.leases.borrow().is_empty()) {
            (false, _) => WATCH,
            (true, false) => Duration::from_micros(LEASE_LOOK.count()),
            (true, true) => self.idle_tick,
        }
    }

    /// Ticks often while anybody waits, and otherwise only where a claim is to be kept alive.
    pub(crate) fn watch(&self) {
        let tick = self.due_tick();
        if self.tick.replace(tick) != tick {
            host::set_tick_period(u32::try_from(tick.as_millis()).unwrap_or(u32::MAX));
        }
    }

    /// Asks the endpoint for these decisions.
    fn call(&self, ids: &[u64]) -> Result<u32, FailCause> {
        let Some(endpoint) = &self.endpoint else { return Err(FailCause::NoHost) };
        let request = {
            let pending = self.pending.borrow();
            let asked: Vec<&Decision> = ids.iter().filter_map(|id| Some(&pending.get(id)?.decision)).collect();
            for charge in asked.iter().flat_map(|decision| decision.borrows()) {
                self.metrics.lease_call(charge.policy);
                let mut leases = self.leases.borrow_mut();
                match leases.binary_search_by_key(&charge.key, |known| known.key) {
                    // Perhaps under another plan, by whose limit it is given back.
                    Ok(place) => leases.get_mut(place).into_iter().for_each(|known| known.clone_from(charge)),
                    Err(place) if leases.len() < MAX_LEASES => leases.insert(place, charge.clone()),
                    // It goes back with the next call about it, or ends.
                    Err(_) => {}
                }
            }
            AdmitRequest { decisions: asked.iter().map(|decision| decision.request(&self.set)).collect() }
        };
        let body = request.to_body();
        let mut headers = vec![
            (":method", "POST"),
            (":path", ADMIT_PATH),
            // Not the cluster's name: Istio's have characters that no authority may have.
            (":authority", "tollgate"),
            ("content-type", "application/json"),
        ];
        headers.extend(endpoint.auth_token.as_ref().map(|token| ("authorization", token.header())));
        let timeout = Duration::from_micros(endpoint.timeout.count());
        // Envoy refuses at once when the cluster is unknown, has no healthy host, or is at its own bound.
        hostcalls::dispatch_http_call(&endpoint.cluster, headers, Some(&body), vec![], timeout)
            .map_err(|_| FailCause::NoHost)
    }

    fn answer(&self, id: u64, answer: &DecisionAnswer) {
        let Some(mut pending) = self.pending.borrow_mut().remove(&id) else { return };
        match pending.decision.answered(answer, &self.set) {
            Some(cause) => self.unanswered(id, pending, cause),
            None => {
                let outcome = self.settle(&mut pending.decision);
                self.finish(id, pending, outcome);
            }
        }
    }

    fn fail(&self, id: u64, cause: FailCause) {
        let Some(pending) = self.pending.borrow_mut().remove(&id) else { return };
        self.unanswered(id, pending, cause);
    }

    /// There is no verdict: the fail modes decide, but for a policy in shadow, which then has no outcome.
    fn unanswered(&self, id: u64, mut pending: Pending, cause: FailCause) {
        match pending.whose {
            Whose::Shadow(policy) => {
                // Its own outcome is nobody's, but its leases are to know.
                pending.decision.abandon();
                self.settle(&mut pending.decision);
                self.metrics.shadow(policy, Shadow::Failed);
            }
            Whose::Lease => {
                pending.decision.failed(&self.set);
                self.settle(&mut pending.decision);
            }
            Whose::Stream(_) => {
                let outcome = self.give_up(&mut pending.decision, cause);
                self.finish(id, pending, outcome);
            }
        }
    }

    /// Ends a wait. A request goes on or is answered, by the root for its stream.
    fn finish(&self, id: u64, mut pending: Pending, outcome: Outcome) {
        let ticket = match &pending.whose {
            Whose::Lease => return,
            Whose::Shadow(policy) => {
                self.metrics.leases(&mut pending.decision);
                return self.count_shadow(*policy, &outcome);
            }
            Whose::Stream(ticket) => ticket,
        };
        let is_there = u32::try_from(id).is_ok_and(host::act_for);
        let reply = self.decided(ticket, &mut pending.decision, &outcome);
        if is_there {
            match reply {
                Some(reply) => host::reply(&reply),
                None => host::resume_request(),
            }
        }
    }

    /// The endpoint cannot say: the fail modes decide.
    fn give_up(&self, decision: &mut Decision, cause: FailCause) -> Outcome {
        self.metrics.failure(cause);
        self.warn_of(cause);
        decision.failed(&self.set);
        self.settle(decision)
    }

    /// Says in the log that fail modes decide, now and then: a wrong cluster must not go unnoticed.
    fn warn_of(&self, cause: FailCause) {
        let Some(held_back) = self.warnings.pass(host::now()) else { return };
        let count = held_back.saturating_add(1);
        let cluster = self.endpoint.as_ref().map_or("", |endpoint| endpoint.cluster.as_str());
        let (name, meaning) = (cause.name(), cause.meaning());
        host::log(
            LogLevel::Warn,
            &format!(
                "no verdict from the cluster {cluster} for {count} requests, so fail modes decide; {name}: {meaning}"
            ),
        );
    }

    /// The outcome of a decision that has nothing more to ask. Should it ask all the same, nothing is admitted.
    fn settle(&self, decision: &mut Decision) -> Outcome {
        self.advance(decision, host::now()).unwrap_or(Outcome::Reject(Rejection::Unavailable { policies: Vec::new() }))
    }

    /// Runs a decision as far as it goes without the endpoint: to its outcome, or to `None` when it asks.
    fn advance(&self, decision: &mut Decision, now: Micros) -> Option<Outcome> {
        loop {
            match decision.step(&self.set, now) {
                Step::Read(set) => {
                    let stored = tables::read(set, now);
                    decision.stored(stored.as_ref().map(|(bytes, version)| (bytes.as_slice(), *version)), now);
                }
                Step::Write { set, bytes, version } => decision.written(tables::write(set, bytes, version, now)),
                Step::Ask => return None,
                Step::Done(outcome) => {
                    for contention in decision.take_contention() {
                        self.metrics.contention(contention);
                    }
                    return Some(outcome);
                }
            }
        }
    }
}

/// Lets something pass now and then, and counts what it holds back.
struct Sometimes {
    every: Micros,
    last: Cell<Option<Micros>>,
    held_back: Cell<u64>,
}

impl Sometimes {
    const fn new(every: Micros) -> Self {
        Self { every, last: Cell::new(None), held_back: Cell::new(0) }
    }

    /// How many were held back since the last that passed; `None` when this one is held back too.
    fn pass(&self, now: Micros) -> Option<u64> {
        if self.last.get().is_some_and(|last| now.since(last) < self.every) {
            self.held_back.set(self.held_back.get().saturating_add(1));
            return None;
        }
        self.last.set(Some(now));
        Some(self.held_back.replace(0))
    }
}

/// For access logs: the outcome, and what is left of each budget. `denied per-key=0`
fn summary(outcome: &Outcome, standings: &[Standing], set: &PolicySet) -> String {
    let mut text = String::from(outcome.part().name());
    for standing in standings {
        if let Some(policy) = set.policy(standing.policy) {
            let _ = write!(text, " {}={}", policy.name, standing.left);
        }
    }
    text
}

/// Reads the ended call's answer, which must have one result for each of the `asked` decisions.
fn read_answer(body_size: usize, asked: usize) -> Result<AdmitAnswer, FailCause> {
    let headers = host::headers(Map::CallResponse);
    match headers.first(":status") {
        Some(b"200") => {}
        // The endpoint itself, which has more to do than it can, explains itself; Envoy's own replies are plain text.
        Some(b"503") if headers.first("content-type").is_some_and(is_problem) => return Err(FailCause::Status),
        // Envoy's own replies for a call that timed out, and for one that found nobody or broke. A call that broke or
        // timed out after its headers had come has none here.
        Some(b"504") => return Err(FailCause::Timeout),
        Some(b"503") | None => return Err(FailCause::Refused),
        Some(_) => return Err(FailCause::Status),
    }
    if body_size > MAX_BODY {
        return Err(FailCause::BadAnswer);
    }
    let body = host::buffer(Buffer::CallResponse, body_size).unwrap_or_default();
    let answer: AdmitAnswer = serde_json::from_slice(&body).map_err(|_| FailCause::BadAnswer)?;
    if answer.decisions.len() == asked { Ok(answer) } else { Err(FailCause::BadAnswer) }
}

fn is_problem(kind: &[u8]) -> bool {
    kind.starts_with(b"application/problem+json")
}
