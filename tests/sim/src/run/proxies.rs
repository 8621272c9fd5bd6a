//! What happens in the proxies: requests come, workers take their turns, and what they do is seen and checked.

use super::{Event, LOOK, Run, START, TICK, WORK};
use crate::check::Owner;
use crate::clock::Clock;
use crate::endpoint::{Call, CallId};
use crate::network::Part;
use crate::random::Random;
use crate::tables::Tables;
use crate::worker::{Decided, Effect, FIRST_SHADOW, Host, Input, Worker};
use std::rc::Rc;
use tollgate_core::decision::{FailCause, LeaseUse};
use tollgate_core::key::Digest;
use tollgate_core::units::Micros;

pub struct Proxy {
    pub is_up: bool,
    /// Which process this is.
    pub life: u64,
    pub clock: Clock,
    pub config: usize,
    pub tables: Tables,
    pub workers: Vec<Worker>,
}

impl Run<'_> {
    /// A proxy that has just started.
    pub(super) fn proxy(&self, ppm: i32, life: u64, config: usize) -> Proxy {
        // A monotonic clock begins anywhere.
        let reading =
            Micros::from_secs(Random::of(self.scenario.seed, &[7, life, ppm.unsigned_abs().into()]).below(1000));
        let workers =
            (0..self.scenario.workers).map(|worker| self.worker(life << 16 | worker as u64, config)).collect();
        Proxy::new(Clock::new(self.now, reading, ppm), life, config, workers, self.sabotage)
    }

    fn worker(&self, life: u64, config: usize) -> Worker {
        let ids = self.scenario.ids.then(|| self.scenario.seed.to_string());
        // Each that starts is another one.
        self.lessees.set(self.lessees.get() + 1);
        let lessee = Digest::from_bytes(self.lessees.get().to_le_bytes());
        Worker::new(life, lessee, config, Rc::clone(&self.sets[config]), ids, self.sabotage)
    }

    /// A worker dies alone, with what waits there.
    pub(super) fn replace(&mut self, number: usize, worker: usize) {
        let proxy = &self.proxies[number];
        if proxy.is_up {
            let life = proxy.workers[worker].life + (1 << 8);
            self.proxies[number].workers[worker] = self.worker(life, proxy.config);
            self.proxies[number].tables.forget(worker);
            self.forget(number, Some(worker));
        }
    }

    /// Nobody at a worker, or in a whole proxy, is owed an answer any more.
    fn forget(&mut self, proxy: usize, worker: Option<usize>) {
        for number in 0..self.scenario.requests.len() + self.scenario.probes.len() {
            let request = self.scenario.request(number);
            if request.proxy == proxy && worker.is_none_or(|worker| request.worker == worker) {
                self.checks.died(number as u64);
            }
        }
    }

    pub(super) fn come(&mut self, number: usize) {
        let request = *self.scenario.request(number);
        let proxy = &mut self.proxies[request.proxy];
        if !proxy.is_up {
            return;
        }
        let (tenant, client, route) = (request.tenant, request.client, crate::facts::PATHS[request.route]);
        self.trace.note(self.now, || {
            let (proxy, worker) = (request.proxy, request.worker);
            format!("proxy {proxy}.{worker}: request {number} of tenant {tenant}, client {client} for {route}")
        });
        self.checks.came(number as u64);
        let timeouts = self.sets.iter().filter_map(|set| set.endpoint.as_ref()).map(|endpoint| endpoint.timeout);
        let most = timeouts.max().unwrap_or_default().plus(TICK);
        let due = self.now.plus(proxy.clock.wait(most)).plus(WORK);
        proxy.workers[request.worker].push(Input::Request(number, request));
        self.queue.push(due, Event::Due(number));
        if let Some(leaves) = request.leaves {
            self.queue.push(self.now.plus(leaves), Event::Leave(number));
        }
        self.wake(request.proxy, request.worker);
    }

    pub(super) fn leave(&mut self, number: usize) {
        let request = *self.scenario.request(number);
        self.proxies[request.proxy].workers[request.worker].push(Input::Left(number));
        self.wake(request.proxy, request.worker);
    }

    pub(super) fn is_due(&mut self, number: usize) {
        self.checks.is_due(number as u64, self.now);
    }

    /// A worker that has something to do gets a turn soon.
    pub(super) fn wake(&mut self, proxy: usize, worker: usize) {
        let there = &mut self.proxies[proxy];
        if there.is_up
            && there.workers[worker].is_busy()
            && !std::mem::replace(&mut there.workers[worker].is_awake, true)
        {
            let names = [1, self.now.count(), proxy as u64, worker as u64];
            let soon = Micros::new(Random::of(self.scenario.seed, &names).between(1, 9));
            self.queue.push(self.now.plus(soon), Event::Turn { proxy, life: there.workers[worker].life, worker });
        }
    }

    pub(super) fn turn(&mut self, number: usize, life: u64, worker: usize) {
        let proxy = &mut self.proxies[number];
        if proxy.workers[worker].life != life || !proxy.is_up {
            return;
        }
        let (mut effects, now) = (Vec::new(), proxy.clock.at(self.now));
        let at_work = &mut proxy.workers[worker];
        at_work.is_awake = false;
        at_work.turn(&mut Host { now, worker, tables: &mut proxy.tables, effects: &mut effects });
        if at_work.is_waiting() && !std::mem::replace(&mut at_work.is_ticking, true) {
            let next = self.now.plus(proxy.clock.wait(TICK));
            self.queue.push(next, Event::Tick { proxy: number, life, worker });
        }
        if at_work.has_leases() && !std::mem::replace(&mut at_work.is_looking, true) {
            let next = self.now.plus(proxy.clock.wait(LOOK));
            self.queue.push(next, Event::Look { proxy: number, life, worker });
        }
        let owner = Owner { proxy: number, life: proxy.life, worker, now };
        for effect in effects {
            match effect {
                Effect::Call { site, token, requests, body, timeout } => {
                    let id = CallId { proxy: number, life, worker, site, token };
                    self.report.calls.push(self.now.since(START));
                    self.call(Call { id, body, requests }, timeout);
                }
                Effect::Took { id, config, charge, units } => {
                    let set = Rc::clone(&self.sets[config]);
                    self.checks.took(id, &charge, units, &owner, &set);
                }
                Effect::Decided(decided) => self.decided(&decided, &owner),
            }
        }
        self.is_bounded(number, worker);
        self.wake(number, worker);
    }

    pub(super) fn tick(&mut self, number: usize, life: u64, worker: usize) {
        let proxy = &mut self.proxies[number];
        if proxy.workers[worker].life != life || !proxy.is_up {
            return;
        }
        let at_work = &mut proxy.workers[worker];
        at_work.is_ticking = at_work.is_waiting();
        if at_work.is_ticking {
            at_work.push(Input::Tick);
            let next = self.now.plus(proxy.clock.wait(TICK));
            self.queue.push(next, Event::Tick { proxy: number, life, worker });
        }
        self.wake(number, worker);
    }

    pub(super) fn look(&mut self, number: usize, life: u64, worker: usize) {
        let proxy = &mut self.proxies[number];
        if proxy.workers[worker].life != life || !proxy.is_up {
            return;
        }
        proxy.workers[worker].is_looking = false;
        proxy.workers[worker].push(Input::Look);
        self.wake(number, worker);
    }

    fn decided(&mut self, decided: &Decided, owner: &Owner) {
        let set = Rc::clone(&self.sets[decided.config]);
        self.trace.note(self.now, || {
            let Decided { id, outcome, cause, .. } = decided;
            let (what, number) = if *id < FIRST_SHADOW { ("request", *id) } else { ("shadow", *id - FIRST_SHADOW) };
            let why = cause.map_or(String::new(), |cause| format!(", because of {}", cause.name()));
            let paid = decided.plan.charges.iter().filter(|charge| decided.lent.contains(&charge.policy));
            let paid = paid.fold(String::new(), |text, charge| format!("{text}, lent {:.4}", charge.key.to_string()));
            format!("proxy {}.{}: {what} {number} ended {outcome:?}{why}{paid}", owner.proxy, owner.worker)
        });
        self.checks.decided(decided, owner, &set, self.store.whole_since(), self.now);
        self.checks.spent_leases(decided, owner, &set, self.store.clock.gained(self.now), self.now);
        for how in &decided.uses {
            *match how {
                LeaseUse::Hit => &mut self.report.lease_hits,
                LeaseUse::Miss => &mut self.report.lease_misses,
                LeaseUse::Denied => &mut self.report.lease_denials,
            } += 1;
        }
        self.report.lease_expired += decided.expired;
        if decided.id < FIRST_SHADOW {
            self.count(decided.id, &decided.outcome);
        }
    }

    /// What a worker keeps has bounds.
    fn is_bounded(&mut self, number: usize, worker: usize) {
        let proxy = &self.proxies[number];
        for site in proxy.workers[worker].sites() {
            // As many wait behind as before.
            let most = 2 * site.max_in_flight();
            self.checks.bounded("requests that wait", site.gather.len(), most, self.now);
            self.checks.bounded("decisions that wait", site.pending.len(), most, self.now);
        }
        self.checks.bounded("bytes of a set", proxy.tables.largest, crate::tables::MAX_SET, self.now);
    }

    /// A worker calls an endpoint, each in turn.
    fn call(&mut self, call: Call, timeout: Micros) {
        let id = call.id;
        let proxy = &mut self.proxies[id.proxy];
        let names = [2, id.proxy as u64, id.life, id.worker as u64, call.requests[0]];
        let endpoint = Random::of(self.scenario.seed, &names).index(self.endpoints.len());
        let end = self.now.plus(proxy.clock.wait(timeout));
        self.trace.note(self.now, || {
            let CallId { proxy, worker, token, .. } = id;
            let leases = crate::trace::leases(&call.body);
            format!(
                "proxy {proxy}.{worker}: call {token} to endpoint {endpoint} for requests {:?}{leases}",
                call.requests
            )
        });
        // The host ends every call, whatever becomes of it.
        self.queue.push(end, Event::Ended(id, Err(FailCause::Timeout)));
        for delay in self.network.delays(Part::Proxy(id.proxy), Part::Endpoint(endpoint), &names, self.now) {
            self.queue.push(self.now.plus(delay), Event::Called(endpoint, Box::new(call.clone())));
        }
    }

    /// A call has ended for the host; what comes of it later is dropped.
    pub(super) fn ended(&mut self, call: CallId, body: Result<Vec<u8>, FailCause>) {
        let proxy = &mut self.proxies[call.proxy];
        if proxy.workers[call.worker].life != call.life || !proxy.is_up {
            return;
        }
        if !proxy.workers[call.worker].is_out(call) {
            return;
        }
        self.trace.note(self.now, || {
            let CallId { proxy, worker, token, .. } = call;
            let how = match &body {
                Ok(body) => String::from_utf8_lossy(body).into_owned(),
                Err(cause) => cause.name().to_owned(),
            };
            format!("proxy {proxy}.{worker}: call {token} ended: {how}")
        });
        proxy.workers[call.worker].push(Input::Ended(call, body));
        self.wake(call.proxy, call.worker);
    }

    /// A proxy dies with everything in it.
    pub(super) fn kill(&mut self, number: usize) {
        let proxy = &mut self.proxies[number];
        proxy.is_up = false;
        self.forget(number, None);
    }
}
