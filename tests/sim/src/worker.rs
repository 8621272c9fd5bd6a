//! One worker thread of a proxy: what `src/filter/src/worker.rs` does, over tables in memory.
//!
//! It does one thing at a time, and between a read of shared data and the write that follows other workers may come.
//! So its turns are short: each reads or writes once, or takes up one thing that has come.

mod site;

use crate::endpoint::CallId;
use crate::facts::Facts;
use crate::sabotage::Sabotage;
use crate::scenario::Request;
use crate::tables::Tables;
use crate::taken::{Change, Taken, taken};
pub use site::{FIRST_LEASE, FIRST_SHADOW, Site};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use tollgate_core::decision::{Decision, FailCause, LeaseUse, Outcome, Rejection, SetId, Step, Table};
use tollgate_core::key::Digest;
use tollgate_core::lease::FORMAT as LEASE_FORMAT;
use tollgate_core::policy::{Charge, Plan, PolicySet};
use tollgate_core::units::Micros;
use tollgate_core::wire::DecisionAnswer;

/// Where a stored lease has its units: after two digests ...
const UNITS: Range<usize> = field(0);

/// ... its end ...
const DEAD_AT: Range<usize> = field(4);

/// ... and until when a denial is kept.
const DENIED_UNTIL: Range<usize> = field(19);

/// A number of a stored lease.
const fn field(place: usize) -> Range<usize> {
    let from = 2 * Digest::LEN + 8 * place;
    from..from + 8
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// Something that has come to a worker.
pub enum Input {
    /// A request, by its number.
    Request(usize, Request),
    /// The client of a request left.
    Left(usize),
    /// A call has ended.
    Ended(CallId, Result<Vec<u8>, FailCause>),
    /// Requests have joined at a site.
    Woken(usize),
    /// Time has passed.
    Tick,
    /// It is time to look at leases.
    Look,
    /// A configuration, by its number.
    Configure(usize, Rc<PolicySet>),
}

/// Something that a worker does, which others see.
pub enum Effect {
    Call {
        site: usize,
        token: u32,
        requests: Vec<u64>,
        body: Vec<u8>,
        timeout: Micros,
    },
    /// Units of a local bucket were taken, or given back.
    Took {
        id: u64,
        config: usize,
        charge: Charge,
        units: i128,
    },
    Decided(Box<Decided>),
}

/// A request's end.
pub struct Decided {
    pub id: u64,
    pub outcome: Outcome,
    pub plan: Plan,
    pub config: usize,
    /// Why the endpoint gave no verdict.
    pub cause: Option<FailCause>,
    /// Its client left while it waited.
    pub left: bool,
    pub taken: Taken,
    /// The charges that leases had the units for, by their policies.
    pub lent: Vec<usize>,
    /// How leases have served it.
    pub uses: Vec<LeaseUse>,
    /// Units of leases that died before they were used.
    pub expired: u64,
}

/// What a worker reaches in its proxy.
pub struct Host<'a> {
    /// By the proxy's clock.
    pub now: Micros,
    pub worker: usize,
    pub tables: &'a mut Tables,
    pub effects: &'a mut Vec<Effect>,
}

/// A decision that the worker is at.
struct Job {
    site: usize,
    pending: Pending,
    /// The endpoint has been asked, or is not to be.
    settling: bool,
}

/// A decision, and what is known of it beside.
pub struct Pending {
    id: u64,
    decision: Decision,
    cause: Option<FailCause>,
    left: bool,
    /// Its outcome is nobody's.
    is_mute: bool,
    taken: Taken,
    /// When each set was last read for it.
    read_at: BTreeMap<SetId, Micros>,
}

impl Pending {
    fn new(id: u64, decision: Decision) -> Self {
        let is_mute = id >= FIRST_LEASE;
        Self { id, decision, cause: None, left: false, is_mute, taken: Taken::default(), read_at: BTreeMap::new() }
    }
}

pub struct Worker {
    inbox: VecDeque<Input>,
    jobs: VecDeque<Job>,
    /// Configurations at work: the last takes requests, those before it finish theirs.
    sites: Vec<Site>,
    /// Which virtual machine this is, of all that the proxies have had.
    pub life: u64,
    /// A turn of it is due.
    pub is_awake: bool,
    pub is_ticking: bool,
    /// A look at leases is due.
    pub is_looking: bool,
    next_lease: u64,
    /// Whom leases are lent to.
    lessee: Digest,
    ids: Option<String>,
    sabotage: Option<Sabotage>,
}

impl Worker {
    /// With `ids`, decisions are named by it and their request, and so made once however often they arrive.
    pub fn new(
        life: u64,
        lessee: Digest,
        config: usize,
        set: Rc<PolicySet>,
        ids: Option<String>,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let sites = vec![Site::new(config, set, ids.clone(), sabotage)];
        let (inbox, jobs) = Default::default();
        let next_lease = FIRST_LEASE;
        let (is_awake, is_ticking, is_looking) = Default::default();
        Self { inbox, jobs, sites, ids, life, is_awake, is_ticking, is_looking, next_lease, lessee, sabotage }
    }

    pub fn push(&mut self, input: Input) {
        self.inbox.push_back(input);
    }

    /// Whether it has something to do.
    pub fn is_busy(&self) -> bool {
        !self.jobs.is_empty() || !self.inbox.is_empty()
    }

    /// Whether anybody waits for the endpoint, so that the clock is to be watched.
    pub fn is_waiting(&self) -> bool {
        self.sites.iter().any(Site::is_waiting)
    }

    /// Whether leases are to be looked at.
    pub fn has_leases(&self) -> bool {
        self.sites.iter().any(|site| !site.leases.is_empty())
    }

    /// Whether a call has not ended yet.
    pub fn is_out(&self, call: CallId) -> bool {
        let ended = |input: &Input| matches!(input, Input::Ended(ended, _) if *ended == call);
        self.sites.get(call.site).is_some_and(|site| site.gather.sent_at(call.token).is_some())
            && !self.inbox.iter().any(ended)
    }

    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// One thing.
    pub fn turn(&mut self, host: &mut Host<'_>) {
        if let Some(job) = self.jobs.pop_front() {
            self.advance(job, host);
            return;
        }
        match self.inbox.pop_front() {
            Some(Input::Request(number, request)) => self.decide(number, request),
            Some(Input::Left(number)) => self.leave(number as u64),
            Some(Input::Ended(call, body)) => self.ended(call, body, host),
            Some(Input::Woken(site)) => {
                self.sites[site].woken = false;
                self.send_due(site, host);
            }
            Some(Input::Tick) => {
                for site in 0..self.sites.len() {
                    let expired = self.sites[site].gather.expired(host.now);
                    for id in expired {
                        if self.sabotage == Some(Sabotage::DroppedWaiter) && id % 8 == 0 {
                            self.sites[site].pending.remove(&id);
                            continue;
                        }
                        self.fail(site, id, FailCause::Timeout);
                    }
                    self.send_due(site, host);
                }
            }
            Some(Input::Look) => self.look(),
            Some(Input::Configure(config, set)) => {
                self.sites.push(Site::new(config, set, self.ids.clone(), self.sabotage));
            }
            None => {}
        }
    }

    fn decide(&mut self, number: usize, request: Request) {
        let site = self.sites.len() - 1;
        let set = Rc::clone(&self.sites[site].set);
        let plan = set.plan(&Facts::of(&request));
        let lessee = self.lessee;
        for charge in &plan.shadows {
            let id = FIRST_SHADOW + number as u64 * 64 + charge.policy as u64;
            let pending = Pending::new(id, Decision::shadow(&plan, charge, &set, lessee));
            self.jobs.push_back(Job { site, pending, settling: false });
        }
        let pending = Pending::new(number as u64, Decision::new(plan, &set, lessee));
        self.jobs.push_back(Job { site, pending, settling: false });
    }

    fn ended(&mut self, call: CallId, body: Result<Vec<u8>, FailCause>, host: &mut Host<'_>) {
        let (waiters, answer) = self.sites[call.site].ended(call.token, body, host);
        let decisions = answer.as_ref().map_or(&[][..], |answer| answer.decisions.as_slice());
        for (place, id) in waiters.into_iter().enumerate() {
            let Some(id) = id else { continue };
            match (decisions.get(place), &answer) {
                (Some(answer), _) => self.answer(call.site, id, answer),
                (None, Err(cause)) => self.fail(call.site, id, *cause),
                (None, Ok(_)) => {}
            }
        }
        self.retry(call.site, host);
        self.send_due(call.site, host);
    }

    fn answer(&mut self, site: usize, id: u64, answer: &DecisionAnswer) {
        let Some(mut pending) = self.sites[site].pending.remove(&id) else { return };
        let set = Rc::clone(&self.sites[site].set);
        match pending.decision.answered(answer, &set) {
            Some(cause) => self.unanswered(site, pending, cause, false),
            None => self.jobs.push_back(Job { site, pending, settling: true }),
        }
    }

    fn fail(&mut self, site: usize, id: u64, cause: FailCause) {
        if let Some(pending) = self.sites[site].pending.remove(&id) {
            self.unanswered(site, pending, cause, true);
        }
    }

    /// There is no verdict: the fail modes decide, but for a policy in shadow, which then has no outcome.
    fn unanswered(&mut self, site: usize, mut pending: Pending, cause: FailCause, silent: bool) {
        if pending.id >= FIRST_LEASE {
            pending.decision.failed(&self.sites[site].set);
            self.jobs.push_back(Job { site, pending, settling: true });
            return;
        }
        if pending.id >= FIRST_SHADOW {
            // Its own outcome is nobody's, but its leases are to know.
            pending.decision.abandon();
            pending.is_mute = true;
            self.jobs.push_back(Job { site, pending, settling: true });
            return;
        }
        if silent {
            pending.decision.failed(&self.sites[site].set);
        }
        pending.cause = Some(cause);
        self.jobs.push_back(Job { site, pending, settling: true });
    }

    fn send_due(&mut self, site: usize, host: &mut Host<'_>) {
        for (id, cause) in self.sites[site].send_due(site, host) {
            self.fail(site, id, cause);
        }
    }

    /// The endpoint is to be asked: the request joins those that wait.
    fn ask(&mut self, job: Job, now: Micros) {
        let Job { site, pending, .. } = job;
        let (id, behind) = (pending.id, pending.id >= FIRST_SHADOW);
        let here = &mut self.sites[site];
        let joined = if here.open_until > now && !behind {
            Err(FailCause::BreakerOpen)
        } else {
            here.join(id, behind, now).map_err(|_| FailCause::TooManyInFlight)
        };
        if let Err(cause) = joined {
            return self.unanswered(site, pending, cause, true);
        }
        here.pending.insert(id, pending);
        if !std::mem::replace(&mut here.woken, true) {
            self.inbox.push_front(Input::Woken(site));
        }
    }

    fn done(&mut self, job: Job, outcome: Outcome, host: &mut Host<'_>) {
        let Pending { id, mut decision, cause, left, is_mute, taken, .. } = job.pending;
        if is_mute {
            if !decision.is_lent(host.now) {
                let keys: Vec<Digest> = decision.plan().charges.iter().map(|charge| charge.key).collect();
                self.sites[job.site].leases.retain(|charge| !keys.contains(&charge.key));
            }
            return;
        }
        let served: Vec<(usize, LeaseUse)> = decision.lease_uses().collect();
        let lent = served.iter().filter(|(_, how)| *how == LeaseUse::Hit).map(|(policy, _)| *policy).collect();
        let (uses, expired) = (served.into_iter().map(|(_, how)| how).collect(), decision.take_expired());
        let (plan, config) = (decision.plan().clone(), self.sites[job.site].config);
        let decided = Decided { id, outcome, plan, config, cause, left, taken, lent, uses, expired };
        host.effects.push(Effect::Decided(Box::new(decided)));
    }

    fn leave(&mut self, id: u64) {
        for site in 0..self.sites.len() {
            let Some(mut pending) = self.sites[site].pending.remove(&id) else { continue };
            self.sites[site].gather.leave(id);
            pending.left = true;
            pending.decision.abandon();
            self.jobs.push_back(Job { site, pending, settling: true });
        }
    }

    /// What waits to be sent, and asks only for what others were just lent, is decided again.
    fn retry(&mut self, site: usize, host: &mut Host<'_>) {
        for id in self.sites[site].gather.waiting() {
            let here = &mut self.sites[site];
            if !here.pending.get_mut(&id).is_some_and(|pending| pending.decision.retry()) {
                continue;
            }
            if let Some(pending) = here.pending.remove(&id) {
                self.again(Job { site, pending, settling: false }, host);
            }
        }
    }

    /// In one turn, as the filter does it.
    fn again(&mut self, mut job: Job, host: &mut Host<'_>) {
        let (site, id) = (job.site, job.pending.id);
        let set = Rc::clone(&self.sites[site].set);
        loop {
            match job.pending.decision.step(&set, host.now) {
                Step::Ask => {
                    self.renew(&mut job);
                    self.sites[site].pending.insert(id, job.pending);
                    return;
                }
                Step::Done(outcome) => {
                    self.renew(&mut job);
                    self.sites[site].gather.leave(id);
                    return self.done(job, outcome, host);
                }
                step => self.touch(&mut job, &set, step, host),
            }
        }
    }

    /// Has leases renewed in the background.
    fn renew(&mut self, job: &mut Job) {
        let set = Rc::clone(&self.sites[job.site].set);
        for decision in job.pending.decision.take_renewals(&set) {
            self.start(job.site, decision);
        }
    }

    fn start(&mut self, site: usize, decision: Decision) {
        let pending = Pending::new(self.next_lease, decision);
        self.next_lease += 1;
        self.jobs.push_back(Job { site, pending, settling: false });
    }

    /// Leases that nobody uses any more are given back.
    fn look(&mut self) {
        if self.sabotage == Some(Sabotage::NeverGivenBack) {
            return;
        }
        for site in 0..self.sites.len() {
            let set = Rc::clone(&self.sites[site].set);
            let leases = self.sites[site].leases.clone();
            for decision in leases.iter().filter_map(|charge| Decision::give_back(charge, &set)) {
                self.start(site, decision);
            }
        }
    }

    /// Reads or writes once, or goes on with what that has led to.
    fn advance(&mut self, mut job: Job, host: &mut Host<'_>) {
        let set = Rc::clone(&self.sites[job.site].set);
        match job.pending.decision.step(&set, host.now) {
            Step::Ask if job.settling => {
                let nobody = Outcome::Reject(Rejection::Unavailable { policies: Vec::new() });
                return self.done(job, nobody, host);
            }
            Step::Ask => {
                self.renew(&mut job);
                return self.ask(job, host.now);
            }
            Step::Done(outcome) => {
                self.renew(&mut job);
                return self.done(job, outcome, host);
            }
            step => self.touch(&mut job, &set, step, host),
        }
        self.jobs.push_front(job);
    }

    /// What is wrong on purpose with a set of leases, by its bytes.
    fn spoil(&self, settling: bool, id: u64, mut bytes: Vec<u8>, before: &[u8]) -> Vec<u8> {
        if self.sabotage == Some(Sabotage::KeptGiveBack) && id >= FIRST_LEASE && !settling {
            for entry in bytes.chunks_mut(LEASE_FORMAT) {
                let mut old = before.chunks(LEASE_FORMAT);
                if let Some(old) = old.find(|old| old[..Digest::LEN] == entry[..Digest::LEN]) {
                    entry[UNITS].copy_from_slice(&old[UNITS]);
                }
            }
        }
        let (time, later) = match self.sabotage {
            Some(Sabotage::UsedAfterEnd) => (DEAD_AT, Micros::from_secs(10)),
            Some(Sabotage::LongDenial) => (DENIED_UNTIL, Micros::from_secs(30)),
            _ => return bytes,
        };
        for entry in bytes.chunks_mut(LEASE_FORMAT) {
            let mut old = before.chunks(LEASE_FORMAT).filter(|old| old[..Digest::LEN] == entry[..Digest::LEN]);
            let at = number(&entry[time.clone()]);
            if at > 0 && old.all(|old| number(&old[time.clone()]) != at) {
                entry[time.clone()].copy_from_slice(&(at + later.count()).to_le_bytes());
            }
        }
        bytes
    }

    /// Reads or writes a set.
    fn touch(&mut self, job: &mut Job, set: &PolicySet, step: Step, host: &mut Host<'_>) {
        let pending = &mut job.pending;
        match step {
            Step::Read(id) => {
                let stored = host.tables.read(host.worker, id);
                pending.read_at.insert(id, host.now);
                pending.decision.stored(stored.as_ref().map(|(bytes, version)| (bytes.as_slice(), *version)), host.now);
            }
            Step::Write { set: id, bytes, version } => {
                let skips = self.sabotage == Some(Sabotage::KeptHold)
                    && job.settling
                    && !pending.taken.is_empty()
                    && host.now.count().is_multiple_of(2);
                let before = host.tables.read(host.worker, id).map(|(bytes, _)| bytes).unwrap_or_default();
                let bytes = if id.table == Table::Leases {
                    self.spoil(job.settling, pending.id, bytes, &before)
                } else {
                    bytes
                };
                let done = skips || host.tables.write(host.worker, id, &bytes, version);
                if done && id.table == Table::Buckets {
                    let after = host.tables.read(host.worker, id).map(|(bytes, _)| bytes).unwrap_or_default();
                    let read_at = pending.read_at.get(&id).copied().unwrap_or(host.now);
                    let change = Change { set: id, from: &before, read_at, to: &after, now: host.now };
                    for (charge, units) in taken(pending.decision.plan(), set, &change) {
                        *pending.taken.entry(charge.policy).or_default() += units;
                        let config = self.sites[job.site].config;
                        host.effects.push(Effect::Took { id: pending.id, config, charge, units });
                    }
                }
                pending.decision.written(done);
            }
            Step::Ask | Step::Done(_) => {}
        }
    }
}
