//! One configuration at work on a worker: who waits, the calls that are out, and the breaker.

use super::{Effect, Host, Pending};
use crate::sabotage::Sabotage;
use std::collections::BTreeMap;
use std::rc::Rc;
use tollgate_core::breaker::{Breaker, BreakerState, Gate};
use tollgate_core::decision::FailCause;
use tollgate_core::gather::{Gather, TooManyInFlight};
use tollgate_core::policy::{Charge, Endpoint, PolicySet};
use tollgate_core::units::Micros;
use tollgate_core::wire::{AdmitAnswer, AdmitRequest, DecisionId};

/// The first id of a decision in shadow.
pub const FIRST_SHADOW: u64 = 1 << 32;

/// The first id of a decision that is about a lease alone.
pub const FIRST_LEASE: u64 = 1 << 48;

pub struct Site {
    pub config: usize,
    pub set: Rc<PolicySet>,
    pub gather: Gather,
    pub pending: BTreeMap<u64, Pending>,
    /// What leases were asked for.
    pub leases: Vec<Charge>,
    /// No call is made before, so far as this worker knows.
    pub open_until: Micros,
    /// The site's turn to send is due.
    pub woken: bool,
    /// Calls have failed since one was answered: those with requests, and the others.
    is_failing: [bool; 2],
    next_token: u32,
    ids: Option<String>,
    sabotage: Option<Sabotage>,
}

impl Site {
    pub fn new(config: usize, set: Rc<PolicySet>, ids: Option<String>, sabotage: Option<Sabotage>) -> Self {
        let gather = set.endpoint.as_ref().map_or_else(
            || Gather::new(Micros::ZERO, 0),
            |endpoint| Gather::new(endpoint.timeout, endpoint.max_in_flight),
        );
        Self {
            config,
            set,
            gather,
            pending: BTreeMap::new(),
            leases: Vec::new(),
            open_until: Micros::ZERO,
            woken: false,
            is_failing: [false; 2],
            next_token: 0,
            ids,
            sabotage,
        }
    }

    pub fn is_waiting(&self) -> bool {
        !self.gather.is_empty()
    }

    pub fn max_in_flight(&self) -> usize {
        self.set.endpoint.as_ref().map_or(0, |endpoint| endpoint.max_in_flight as usize)
    }

    pub fn join(&mut self, id: u64, behind: bool, now: Micros) -> Result<(), TooManyInFlight> {
        if self.sabotage == Some(Sabotage::EndlessQueue) {
            let _ = self.gather.join(id, now).or_else(|_| self.gather.join_behind(id, now));
            return Ok(());
        }
        if behind { self.gather.join_behind(id, now) } else { self.gather.join(id, now) }
    }

    /// Sends every batch that is due. Gives those that could not be sent.
    pub fn send_due(&mut self, site: usize, host: &mut Host<'_>) -> Vec<(u64, FailCause)> {
        let mut unsent = Vec::new();
        loop {
            let due = self.gather.due(host.now);
            if due.is_empty() {
                return unsent;
            }
            let behind = due.iter().all(|id| *id >= FIRST_SHADOW);
            if !self.may_call(behind, host) {
                self.gather.unsent(due.len());
                unsent.extend(due.into_iter().map(|id| (id, FailCause::BreakerOpen)));
                continue;
            }
            let token = self.next_token;
            self.next_token += 1;
            self.gather.sent(due.len(), token, host.now);
            let timeout = self.set.endpoint.as_ref().map_or(Micros::ZERO, |endpoint| endpoint.timeout);
            self.note_leases(&due);
            let body = self.body(&due);
            host.effects.push(Effect::Call { site, token, requests: due, body, timeout });
        }
    }

    fn note_leases(&mut self, ids: &[u64]) {
        let borrowed = ids.iter().flat_map(|id| self.pending[id].decision.borrows());
        for charge in borrowed.cloned().collect::<Vec<_>>() {
            match self.leases.iter_mut().find(|known| known.key == charge.key) {
                // Perhaps under another plan, by whose limit it is given back.
                Some(known) => *known = charge,
                None => self.leases.push(charge),
            }
        }
    }

    fn body(&self, ids: &[u64]) -> Vec<u8> {
        let decisions = ids.iter().map(|id| {
            let mut decision = self.pending[id].decision.request(&self.set);
            // What is about a lease alone has a number of its own.
            let named = *id < FIRST_LEASE;
            decision.id =
                self.ids.as_ref().filter(|_| named).and_then(|name| DecisionId::try_from(format!("{name}.{id}")).ok());
            decision
        });
        serde_json::to_vec(&AdmitRequest { decisions: decisions.collect() }).expect("a batch can be written")
    }

    /// A call has ended. Gives who was in it, and its answer.
    pub fn ended(
        &mut self,
        token: u32,
        body: Result<Vec<u8>, FailCause>,
        host: &mut Host<'_>,
    ) -> (Vec<Option<u64>>, Result<AdmitAnswer, FailCause>) {
        let sent = self.gather.sent_at(token);
        let waiters = self.gather.answered(token);
        let answer = body.and_then(|body| {
            let answer: AdmitAnswer = serde_json::from_slice(&body).map_err(|_| FailCause::BadAnswer)?;
            if answer.decisions.len() == waiters.len() { Ok(answer) } else { Err(FailCause::BadAnswer) }
        });
        if let Some((_, behind)) = sent {
            self.note_end(answer.is_ok(), behind, host);
        }
        (waiters, answer)
    }

    /// Whether the breaker lets a call pass; `behind` when no request is in it.
    fn may_call(&mut self, behind: bool, host: &mut Host<'_>) -> bool {
        let Some((endpoint, breaker)) = self.breaker() else { return true };
        let timeout = endpoint.timeout;
        let (state, version) = host.tables.breaker(behind);
        self.is_failing[usize::from(behind)] = state != BreakerState::default();
        match breaker.gate(&state, host.now, timeout) {
            Gate::Closed => true,
            Gate::Open(until) => {
                if !behind {
                    self.open_until = until;
                }
                false
            }
            Gate::Tried => false,
            Gate::Trying(state) => host.tables.write_breaker(behind, &state, version),
        }
    }

    /// Tells the breaker how a call ended.
    fn note_end(&mut self, answered: bool, behind: bool, host: &mut Host<'_>) {
        let Some((_, breaker)) = self.breaker() else { return };
        let is_failing = &mut self.is_failing[usize::from(behind)];
        if answered && !std::mem::replace(is_failing, false) {
            return;
        }
        let (state, version) = host.tables.breaker(behind);
        let answered = answered && (self.sabotage != Some(Sabotage::StuckBreaker) || !state.is_open());
        let new = if answered { Breaker::answered(&state) } else { breaker.failed(&state, host.now) };
        if let Some(new) = new {
            host.tables.write_breaker(behind, &new, version);
            *is_failing = !answered;
        }
    }

    fn breaker(&self) -> Option<(&Endpoint, Breaker)> {
        let endpoint = self.set.endpoint.as_ref()?;
        Some((endpoint, endpoint.breaker?))
    }
}
