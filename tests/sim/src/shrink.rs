//! Makes a scenario smaller as long as it breaks the same promise.

use crate::check::Invariant;
use crate::run::run;
use crate::sabotage::Sabotage;
use crate::scenario::{Fault, Scenario};
use tollgate_core::units::Micros;

/// How many runs are tried at the most.
const MOST_RUNS: u32 = 2_000;

struct Shrinking {
    best: Scenario,
    invariant: Invariant,
    sabotage: Option<Sabotage>,
    runs: u32,
}

/// The smallest scenario found that breaks `invariant` as this one does.
pub fn shrink(scenario: &Scenario, invariant: Invariant, sabotage: Option<Sabotage>) -> Scenario {
    let mut shrinking = Shrinking { best: scenario.clone(), invariant, sabotage, runs: 0 };
    loop {
        let before = shrinking.best.clone();
        shrinking.leave_out();
        shrinking.simplify();
        if shrinking.best == before || shrinking.runs >= MOST_RUNS {
            return shrinking.best;
        }
    }
}

impl Shrinking {
    /// Takes a smaller scenario if it breaks the same promise.
    fn try_this(&mut self, smaller: Scenario) -> bool {
        if smaller == self.best || self.runs >= MOST_RUNS {
            return false;
        }
        self.runs += 1;
        let found = run(&smaller, self.sabotage, false).violation;
        let is_same = found.is_some_and(|found| found.invariant == self.invariant);
        if is_same {
            self.best = smaller;
        }
        is_same
    }

    /// Leaves out probes, faults and requests: first many at once, then one after the other.
    fn leave_out(&mut self) {
        self.leave_out_of(|scenario| &mut scenario.probes);
        self.leave_out_of(|scenario| &mut scenario.faults);
        self.leave_out_of(|scenario| &mut scenario.requests);
    }

    fn leave_out_of<T>(&mut self, list: fn(&mut Scenario) -> &mut Vec<T>) {
        let mut size = list(&mut self.best).len();
        while size > 0 {
            let mut from = 0;
            while from < list(&mut self.best).len() {
                let mut smaller = self.best.clone();
                let all = list(&mut smaller);
                all.drain(from..(from + size).min(all.len()));
                if !self.try_this(smaller) {
                    from += size;
                }
            }
            size /= 2;
        }
    }

    /// Fewer parts, better links, better clocks.
    fn simplify(&mut self) {
        let changes: [fn(&mut Scenario); 12] = [
            |scenario| one_proxy(scenario, scenario.proxies - 1),
            |scenario| one_proxy(scenario, 1),
            one_worker,
            |scenario| scenario.endpoints = 1,
            |scenario| scenario.link.loss = 0,
            |scenario| scenario.link.twice = 0,
            |scenario| scenario.link.garbled = 0,
            |scenario| scenario.link.spikes = 0,
            |scenario| scenario.link.delay = (scenario.link.delay.0, scenario.link.delay.0),
            |scenario| {
                scenario.store_ppm = 0;
                scenario.proxy_ppm.iter_mut().for_each(|ppm| *ppm = 0);
            },
            |scenario| scenario.requests.iter_mut().for_each(|request| request.leaves = None),
            one_config,
        ];
        for change in changes {
            let mut smaller = self.best.clone();
            change(&mut smaller);
            if is_whole(&smaller) {
                self.try_this(smaller);
            }
        }
        self.heal_early();
    }

    /// What comes after the last request and the last fault is not waited for.
    fn heal_early(&mut self) {
        let faults = self.best.faults.iter().map(|(at, fault)| at.plus(fault.lasts()));
        let requests = self.best.requests.iter().map(|request| request.at);
        let last = faults.chain(requests).max().unwrap_or_default();
        let healed = last.plus(Micros::from_secs(1));
        self.try_this(Scenario { healed, ..self.best.clone() });
    }
}

/// So many proxies, with the requests of all.
fn one_proxy(scenario: &mut Scenario, proxies: usize) {
    let proxies = proxies.max(1);
    scenario.proxies = proxies;
    scenario.proxy_ppm.truncate(proxies);
    for request in scenario.requests.iter_mut().chain(&mut scenario.probes) {
        request.proxy = request.proxy.min(proxies - 1);
    }
}

fn one_worker(scenario: &mut Scenario) {
    scenario.workers = 1;
    for request in scenario.requests.iter_mut().chain(&mut scenario.probes) {
        request.worker = 0;
    }
}

/// Without those configurations at the end that nobody is given.
fn one_config(scenario: &mut Scenario) {
    let given = scenario.faults.iter().filter_map(|(_, fault)| match fault {
        Fault::Configure { config, .. } => Some(*config),
        _ => None,
    });
    let last = given.max().unwrap_or(0);
    scenario.configs.truncate(last + 1);
}

/// Whether all that is spoken of is there.
fn is_whole(scenario: &Scenario) -> bool {
    use crate::network::Part;
    let is_there = |part: &Part| match part {
        Part::Proxy(proxy) => *proxy < scenario.proxies,
        Part::Endpoint(endpoint) => *endpoint < scenario.endpoints,
        Part::Store => true,
    };
    scenario.faults.iter().all(|(_, fault)| match fault {
        Fault::ProxyRestarts { proxy, .. } | Fault::Configure { proxy, .. } => *proxy < scenario.proxies,
        Fault::WorkerRestarts { proxy, worker } => *proxy < scenario.proxies && *worker < scenario.workers,
        Fault::EndpointRestarts { endpoint, .. } => *endpoint < scenario.endpoints,
        Fault::Partition { one, other, .. } => is_there(one) && is_there(other),
        _ => true,
    })
}
