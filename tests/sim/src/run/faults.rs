//! What goes wrong, and how it is mended.

use super::{Event, Run};
use crate::check::Loss;
use crate::scenario::Fault;
use crate::worker::Input;
use std::rc::Rc;
use tollgate_core::decision::FailCause;
use tollgate_core::units::Micros;

/// Something that starts again.
#[derive(Clone, Copy)]
pub enum Restart {
    Proxy { proxy: usize, life: u64 },
    Endpoint { endpoint: usize, life: u64 },
    Store,
}

impl Run<'_> {
    pub(super) fn fault(&mut self, number: usize) {
        let (_, fault) = self.scenario.faults[number];
        self.trace.note(self.now, || format!("fault: {fault}"));
        let until = self.now.plus(fault.lasts());
        match fault {
            Fault::ProxyRestarts { proxy, .. } => {
                let life = self.proxies[proxy].life;
                self.kill(proxy);
                self.queue.push(until, Event::Restart(Restart::Proxy { proxy, life }));
            }
            Fault::WorkerRestarts { proxy, worker } => self.replace(proxy, worker),
            Fault::EndpointRestarts { endpoint, .. } => {
                for call in self.endpoints[endpoint].die() {
                    self.end(endpoint, call, Err(FailCause::Refused));
                }
                let life = self.endpoints[endpoint].life;
                self.queue.push(until, Event::Restart(Restart::Endpoint { endpoint, life }));
            }
            Fault::StoreRestarts { keeps, .. } => {
                self.store.is_up = false;
                if !keeps {
                    self.flush();
                }
                self.queue.push(until, Event::Restart(Restart::Store));
            }
            Fault::Flush => self.flush(),
            Fault::Failover { lag, step, ppm } => {
                let since = Micros::new(self.now.count().saturating_sub(lag.count()));
                let lent = self.store.lent(self.now);
                self.store.lose_since(since);
                self.store.clock.step(self.now, step, ppm);
                self.checks.lost(Loss::Since(since), &lent, &self.store, self.now);
            }
            Fault::ClockStep { by } => {
                let (ppm, lent) = (self.store.clock.ppm(), self.store.lent(self.now));
                self.store.clock.step(self.now, by, ppm);
                self.checks.lost(Loss::Step(by), &lent, &self.store, self.now);
            }
            Fault::Partition { one, other, .. } => self.network.cut(one, other, until),
            Fault::Storm { link, .. } => self.network.storm(link, until),
            Fault::Configure { proxy, config } => self.configure(proxy, config),
        }
    }

    fn flush(&mut self) {
        let lent = self.store.lent(self.now);
        self.store.flush();
        self.checks.lost(Loss::Everything, &lent, &self.store, self.now);
    }

    pub(super) fn configure(&mut self, number: usize, config: usize) {
        let proxy = &mut self.proxies[number];
        let before = std::mem::replace(&mut proxy.config, config);
        self.checks.configured(number, [before, config], proxy.clock.at(self.now), self.now);
        for worker in 0..proxy.workers.len() {
            let set = Rc::clone(&self.sets[config]);
            self.proxies[number].workers[worker].push(Input::Configure(config, set));
            self.wake(number, worker);
        }
    }

    /// What starts again unless it has died once more meanwhile.
    pub(super) fn restart(&mut self, what: Restart) {
        match what {
            Restart::Proxy { proxy, life } if self.proxies[proxy].life == life && !self.proxies[proxy].is_up => {
                self.trace.note(self.now, || format!("proxy {proxy} is back"));
                let ppm = self.scenario.proxy_ppm[proxy];
                self.proxies[proxy] = self.proxy(ppm, life + 1, self.proxies[proxy].config);
            }
            Restart::Endpoint { endpoint, life } if self.endpoints[endpoint].life == life => {
                self.trace.note(self.now, || format!("endpoint {endpoint} is back"));
                self.endpoints[endpoint].is_up = true;
            }
            Restart::Store => {
                self.trace.note(self.now, || "the store is back".into());
                self.store.is_up = true;
            }
            Restart::Proxy { .. } | Restart::Endpoint { .. } => {}
        }
    }

    /// All faults are over, and the network loses nothing any more.
    pub(super) fn heal(&mut self) {
        self.trace.note(self.now, || "all faults are over".into());
        self.network.heal();
        for proxy in 0..self.proxies.len() {
            let life = self.proxies[proxy].life;
            self.restart(Restart::Proxy { proxy, life });
        }
        for endpoint in &mut self.endpoints {
            endpoint.is_up = true;
        }
        self.store.is_up = true;
        // Buckets that learn are empty from when somebody first sees that the store has lost them: here, now.
        self.store.lost_since(self.now);
    }
}
