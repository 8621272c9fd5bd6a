//! What happens in one run, as plain data: the parts, the policies, the requests and the faults.
//!
//! A run takes nothing else in, so a scenario that breaks an invariant can be made smaller by leaving things out.

use crate::network::{Link, Part};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use tollgate_core::units::Micros;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    pub seed: u64,
    pub proxies: usize,
    /// In each proxy.
    pub workers: usize,
    pub endpoints: usize,
    pub link: Link,
    /// How each proxy's clock drifts, in microseconds a second.
    pub proxy_ppm: Vec<i32>,
    pub store_ppm: i32,
    /// How long a request waits for the endpoint.
    pub timeout: Micros,
    /// How long an endpoint waits for the store.
    pub store_deadline: Micros,
    /// Whether decisions carry ids, so that one that arrives twice is made once.
    pub ids: bool,
    /// Configurations, as JSON. All proxies start with the first.
    pub configs: Vec<String>,
    /// In the order of their times.
    pub requests: Vec<Request>,
    /// In the order of their times.
    pub faults: Vec<(Micros, Fault)>,
    /// When all faults are over. What comes after is calm.
    pub healed: Micros,
    /// Who comes, one at a time, when everything has been idle for so long that all budgets are full.
    pub probes: Vec<Request>,
}

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub at: Micros,
    pub proxy: usize,
    pub worker: usize,
    pub tenant: u64,
    pub client: u64,
    pub route: usize,
    /// It is under the plan `gold`, where there is one.
    pub gold: bool,
    /// When its client leaves, if it still waits then.
    pub leaves: Option<Micros>,
}

/// Something that goes wrong, or changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The proxy dies with all that it holds, and another starts in its place.
    ProxyRestarts { proxy: usize, down: Micros },
    /// A worker's virtual machine dies and another starts at once. What the proxy shares stays.
    WorkerRestarts { proxy: usize, worker: usize },
    /// An endpoint dies with the calls that it has, and starts again.
    EndpointRestarts { endpoint: usize, down: Micros },
    /// The store is away. Without `keeps` it comes back empty.
    StoreRestarts { down: Micros, keeps: bool },
    /// The store forgets everything.
    Flush,
    /// A replica takes over that lacks the last writes and has another clock.
    Failover { lag: Micros, step: i64, ppm: i32 },
    /// The store's clock is set.
    ClockStep { by: i64 },
    /// Two parts cannot reach each other.
    Partition { one: Part, other: Part, lasts: Micros },
    /// The network is worse everywhere.
    Storm { link: Link, lasts: Micros },
    /// A proxy is given a configuration.
    Configure { proxy: usize, config: usize },
}

impl Fault {
    /// How long after its beginning it is over.
    pub const fn lasts(&self) -> Micros {
        match self {
            Self::ProxyRestarts { down, .. }
            | Self::EndpointRestarts { down, .. }
            | Self::StoreRestarts { down, .. } => *down,
            Self::Partition { lasts, .. } | Self::Storm { lasts, .. } => *lasts,
            Self::WorkerRestarts { .. }
            | Self::Flush
            | Self::Failover { .. }
            | Self::ClockStep { .. }
            | Self::Configure { .. } => Micros::ZERO,
        }
    }
}

/// How many microseconds a worker has to do with one request at the most.
const BUSY_FOR: u64 = 50;

impl Scenario {
    /// Whether nothing can keep a request from its verdict.
    pub fn is_calm(&self) -> bool {
        self.is_quick() && self.faults.iter().all(|(_, fault)| matches!(fault, Fault::Configure { .. }))
    }

    /// Whether no call meets its timeout because of the network alone, or of all that a worker has to do.
    pub fn is_quick(&self) -> bool {
        let Link { delay: (_, most), spikes, loss, garbled, .. } = self.link;
        let is_quick = most.count() <= self.timeout.min(self.store_deadline).count() / 16;
        let is_idle = self.crowd() as u64 * BUSY_FOR <= self.timeout.count() / 4;
        is_quick && is_idle && spikes == 0 && loss == 0 && garbled == 0
    }

    /// The most requests that one worker gets within a timeout.
    fn crowd(&self) -> usize {
        let mut arrivals = BTreeMap::<(usize, usize), Vec<Micros>>::new();
        for request in self.requests.iter().chain(&self.probes) {
            arrivals.entry((request.proxy, request.worker)).or_default().push(request.at);
        }
        let most = |times: &mut Vec<Micros>| {
            times.sort_unstable();
            let until = |from: Micros| times.partition_point(|at| *at <= from.plus(self.timeout));
            times.iter().enumerate().map(|(place, from)| until(*from) - place).max()
        };
        arrivals.values_mut().filter_map(most).max().unwrap_or(0)
    }

    /// How far the store's clock is set back in all.
    pub fn set_back(&self) -> Micros {
        let steps = self.faults.iter().filter_map(|(_, fault)| match fault {
            Fault::ClockStep { by } | Fault::Failover { step: by, .. } => Some(by.min(&0).unsigned_abs()),
            _ => None,
        });
        Micros::new(steps.sum())
    }

    /// A request of the run, or a probe, by its number.
    pub fn request(&self, number: usize) -> &Request {
        let probes = number.checked_sub(self.requests.len());
        probes.map_or_else(|| &self.requests[number], |probe| &self.probes[probe])
    }

    /// How much there is of it, for those who make it smaller.
    pub const fn size(&self) -> usize {
        self.requests.len() + self.faults.len() + self.probes.len()
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProxyRestarts { proxy, down } => write!(f, "proxy {proxy} dies, and is back in {down}"),
            Self::WorkerRestarts { proxy, worker } => write!(f, "worker {proxy}.{worker} dies, and another starts"),
            Self::EndpointRestarts { endpoint, down } => write!(f, "endpoint {endpoint} dies, and is back in {down}"),
            Self::StoreRestarts { down, keeps: true } => write!(f, "the store is away for {down}"),
            Self::StoreRestarts { down, keeps: false } => write!(f, "the store dies, and is back empty in {down}"),
            Self::Flush => f.write_str("the store is flushed"),
            Self::Failover { lag, step, ppm } => {
                write!(f, "a replica takes over: the last {lag} are lost, its clock is {step} us off, {ppm} ppm")
            }
            Self::ClockStep { by } => write!(f, "the store's clock is set by {by} us"),
            Self::Partition { one, other, lasts } => write!(f, "no way between {one} and {other} for {lasts}"),
            Self::Storm { link, lasts } => write!(f, "the network is bad for {lasts}: {link}"),
            Self::Configure { proxy, config } => write!(f, "proxy {proxy} gets configuration {config}"),
        }
    }
}

/// In so many lines that a person can read what is in it.
impl Display for Scenario {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} proxies of {} workers, {} endpoints, {}; clocks: proxies {:?} ppm, store {} ppm; ids: {}",
            self.proxies, self.workers, self.endpoints, self.link, self.proxy_ppm, self.store_ppm, self.ids
        )?;
        for (number, config) in self.configs.iter().enumerate() {
            writeln!(f, "configuration {number}: {config}")?;
        }
        write!(f, "{} requests, {} probes, {} faults", self.requests.len(), self.probes.len(), self.faults.len())
    }
}
