//! One run of a scenario: everything that happens, one event after the other, on one virtual clock.

mod faults;
mod messages;
mod proxies;
mod queue;

use crate::check::{Checks, Invariant, Violation};
use crate::clock::Clock;
use crate::endpoint::{Call, CallId, Endpoint, Question};
use crate::network::Network;
use crate::sabotage::Sabotage;
use crate::scenario::Scenario;
use crate::store::Store;
use crate::tables::Tables;
use crate::trace::Trace;
use crate::worker::Worker;
use proxies::Proxy;
use queue::Queue;
use std::cell::Cell;
use std::rc::Rc;
use tollgate_core::decision::{Admission, FailCause, Outcome, Rejection};
use tollgate_core::limit::Limit;
use tollgate_core::policy::{Allowance, FailMode, PolicySet, Scope};
use tollgate_core::units::Micros;
use tollgate_core::wire::DecisionAnswer;

/// How often a worker looks at deadlines while requests wait, as in the filter.
pub const TICK: Micros = Micros::from_millis(5);

/// How often a worker looks at leases, as in the filter.
const LOOK: Micros = Micros::from_millis(250);

/// How long a worker may take for what has come before a tick.
const WORK: Micros = Micros::from_millis(20);

/// How often the store looks for what it can forget.
const SWEEP: Micros = Micros::from_millis(200);

/// How much later than the worst that faults can do to it a budget must be there.
const MARGIN: Micros = Micros::from_secs(65);

/// The true time at which a run begins. No clock begins at zero.
pub(crate) const START: Micros = Micros::from_secs(1_000);

/// Something that happens.
enum Event {
    Request(usize),
    Leave(usize),
    /// A request's time is up.
    Due(usize),
    Fault(usize),
    Restart(faults::Restart),
    /// A worker does one thing.
    Turn {
        proxy: usize,
        life: u64,
        worker: usize,
    },
    Tick {
        proxy: usize,
        life: u64,
        worker: usize,
    },
    Look {
        proxy: usize,
        life: u64,
        worker: usize,
    },
    /// A call reaches an endpoint.
    Called(usize, Box<Call>),
    /// A decision reaches the store.
    Asked(Box<Question>),
    /// The store's answer to one decision reaches the endpoint.
    Told {
        endpoint: usize,
        life: u64,
        call: u64,
        place: usize,
        answer: Box<DecisionAnswer>,
    },
    /// An endpoint waits no longer for the store.
    Silent {
        endpoint: usize,
        life: u64,
        call: u64,
    },
    /// A call ends at the proxy.
    Ended(CallId, Result<Vec<u8>, FailCause>),
    Sweep,
    Heal,
    Finish,
}

/// How a run went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub violation: Option<Violation>,
    pub events: u64,
    /// Virtual time.
    pub span: Micros,
    pub admitted: u64,
    pub denied: u64,
    /// Decided by a fail mode.
    pub failed: u64,
    /// When endpoints were called.
    pub calls: Vec<Micros>,
    /// How each request ended, in the order of the ends.
    pub ends: Vec<End>,
    /// How leases have served requests.
    pub lease_hits: u64,
    pub lease_misses: u64,
    pub lease_denials: u64,
    /// Units of leases that died before they were used.
    pub lease_expired: u64,
    pub trace: Vec<String>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub request: usize,
    pub is_admitted: bool,
    pub waited: Micros,
}

pub struct Run<'a> {
    scenario: &'a Scenario,
    sets: Vec<Rc<PolicySet>>,
    sabotage: Option<Sabotage>,
    now: Micros,
    queue: Queue<Event>,
    network: Network,
    proxies: Vec<Proxy>,
    endpoints: Vec<Endpoint>,
    store: Store,
    checks: Checks,
    trace: Trace,
    report: Report,
    /// How many workers there were.
    lessees: Cell<u128>,
}

/// Runs a scenario to its end, or to the first violation.
pub fn run(scenario: &Scenario, sabotage: Option<Sabotage>, traced: bool) -> Report {
    let sets = scenario.configs.iter().map(|config| Rc::new(read(config))).collect();
    Run::new(scenario, sets, sabotage, Trace::new(traced)).finish()
}

fn read(config: &str) -> PolicySet {
    match PolicySet::read(config.as_bytes(), &|_| None) {
        Ok(set) => set,
        Err(errors) => panic!("a configuration that was made up is wrong: {errors}: {config}"),
    }
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, sets: Vec<Rc<PolicySet>>, sabotage: Option<Sabotage>, trace: Trace) -> Self {
        let store_clock = Clock::new(START, Micros::from_secs(1_700_000_000), scenario.store_ppm);
        let mut run = Self {
            sabotage,
            now: START,
            queue: Queue::default(),
            network: Network::new(scenario.seed, scenario.link),
            proxies: Vec::new(),
            endpoints: (0..scenario.endpoints).map(|_| Endpoint::new(sabotage)).collect(),
            store: Store::new(store_clock, sabotage),
            checks: Checks::new(scenario, &sets),
            trace,
            report: Report::default(),
            lessees: Cell::new(0),
            scenario,
            sets,
        };
        run.proxies = scenario.proxy_ppm.iter().map(|ppm| run.proxy(*ppm, 0, 0)).collect();
        run.plan();
        run
    }

    /// Puts everything in the queue that comes from outside.
    fn plan(&mut self) {
        for (number, request) in self.scenario.requests.iter().enumerate() {
            self.queue.push(START.plus(request.at), Event::Request(number));
        }
        for (number, (at, _)) in self.scenario.faults.iter().enumerate() {
            self.queue.push(START.plus(*at), Event::Fault(number));
        }
        let healed = START.plus(self.scenario.healed);
        self.queue.push(healed, Event::Heal);
        let fill = self.longest_fill();
        // What the store's clock was set back it has to make up for, before a bucket that was left at once refills.
        let mut at = healed.plus(MARGIN).plus(fill).plus(self.scenario.set_back());
        for number in 0..self.scenario.probes.len() {
            self.queue.push(at, Event::Request(self.scenario.requests.len() + number));
            at = at.plus(fill).plus(Micros::from_secs(1));
        }
        self.queue.push(at.plus(MARGIN).plus(fill), Event::Finish);
        self.queue.push(START, Event::Sweep);
    }

    /// How long it takes until every budget is full, whatever was done to it.
    fn longest_fill(&self) -> Micros {
        let policies = self.sets.iter().flat_map(|set| set.policies());
        let fills = policies.flat_map(|policy| {
            let emergency = match policy.scope {
                Scope::Global { on_failure: FailMode::Local(limit), .. } => Some(limit),
                _ => None,
            };
            let limits = policy.allowances().filter_map(Allowance::limit).filter_map(|limit| match limit {
                Limit::TokenBucket(limit) => Some(limit),
                _ => None,
            });
            limits.chain(emergency).map(|limit| limit.time_to_fill()).collect::<Vec<_>>()
        });
        // A clock that is slow takes longer.
        let fill = fills.max().unwrap_or_default();
        fill.plus(Micros::new(fill.count() / 1_000 + 1))
    }

    fn finish(mut self) -> Report {
        while let Some((at, event)) = self.queue.pop() {
            self.now = at;
            self.report.events += 1;
            if matches!(event, Event::Finish) {
                self.is_idle();
                break;
            }
            self.happen(event);
            if self.checks.found.is_some() {
                break;
            }
        }
        self.report.span = self.now.since(START);
        self.report.violation = self.checks.found;
        self.report.trace = self.trace.into_lines();
        self.report
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Request(number) => self.come(number),
            Event::Leave(number) => self.leave(number),
            Event::Due(number) => self.is_due(number),
            Event::Fault(number) => self.fault(number),
            Event::Restart(what) => self.restart(what),
            Event::Turn { proxy, life, worker } => self.turn(proxy, life, worker),
            Event::Tick { proxy, life, worker } => self.tick(proxy, life, worker),
            Event::Look { proxy, life, worker } => self.look(proxy, life, worker),
            Event::Called(endpoint, call) => self.called(endpoint, &call),
            Event::Asked(question) => self.asked(&question),
            Event::Told { endpoint, life, call, place, answer } => self.told(endpoint, life, call, place, *answer),
            Event::Silent { endpoint, life, call } => self.silent(endpoint, life, call),
            Event::Ended(call, body) => self.ended(call, body),
            Event::Sweep => self.sweep(),
            Event::Heal => self.heal(),
            Event::Finish => {}
        }
    }

    fn sweep(&mut self) {
        let (names, reading) = self.store.sweep(self.now);
        let gained = self.store.clock.gained(self.now);
        self.checks.swept(&names, reading, gained, self.now);
        for (((proxy, worker), key), limit) in self.checks.idle_leases(self.now) {
            let there = &self.proxies[proxy];
            if there.workers.iter().any(|worker| worker.is_busy() || worker.is_waiting()) {
                // Somebody may be about to use it.
                continue;
            }
            let is_held = there.tables.is_lent(worker, key, &limit, there.clock.at(self.now));
            self.checks.given_back(&((proxy, worker), key), is_held, self.now);
        }
        // When everything is over there is little to forget.
        let calm = self.now > START.plus(self.scenario.healed).plus(SWEEP);
        self.queue.push(self.now.plus(if calm { Micros::from_secs(10) } else { SWEEP }), Event::Sweep);
    }

    fn count(&mut self, request: u64, outcome: &Outcome) {
        let request = request as usize;
        let waited = self.now.since(START.plus(self.scenario.request(request).at));
        let is_admitted = matches!(outcome, Outcome::Admit(_));
        self.report.ends.push(End { request, is_admitted, waited });
        let place = match outcome {
            Outcome::Admit(Admission::Allowed) => &mut self.report.admitted,
            Outcome::Reject(Rejection::Denied { emergency: false, .. }) => &mut self.report.denied,
            Outcome::Admit(_) | Outcome::Reject(_) => &mut self.report.failed,
        };
        *place += 1;
    }

    /// The last probes were answered, and nothing has come since for so long that everything is full: nothing is kept.
    fn is_idle(&mut self) {
        let (names, reading) = self.store.sweep(self.now);
        let gained = self.store.clock.gained(self.now);
        self.checks.swept(&names, reading, gained, self.now);
        let at = self.now;
        self.checks.bounded("buckets and ids in an idle store", self.store.len(), 0, at);
        for endpoint in &self.endpoints {
            self.checks.bounded("calls of an idle endpoint", endpoint.len(), 0, at);
        }
        for proxy in &self.proxies {
            let now = proxy.clock.at(at);
            self.checks.bounded("local buckets of an idle proxy", proxy.tables.kept(now), 0, at);
            let waiting = proxy.workers.iter().flat_map(Worker::sites).map(|site| site.gather.len()).sum();
            self.checks.bounded("requests that wait in an idle proxy", waiting, 0, at);
        }
        for number in 0..self.scenario.probes.len() {
            let id = (self.scenario.requests.len() + number) as u64;
            let outcome = self.checks.outcome(id);
            if outcome != Some(&Outcome::Admit(Admission::Allowed)) {
                let what = format!("request {id} came when every budget was full, and ended {outcome:?}");
                self.checks.note(Err((Invariant::Liveness, what)), at);
            }
        }
    }
}

impl Proxy {
    fn new(clock: Clock, life: u64, config: usize, workers: Vec<Worker>, sabotage: Option<Sabotage>) -> Self {
        Self { is_up: true, life, clock, config, tables: Tables::new(sabotage), workers }
    }
}
