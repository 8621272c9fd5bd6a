//! What happens between the proxies and the store.

use super::{Event, Run};
use crate::endpoint::{Call, CallId, Question};
use crate::network::Part;
use tollgate_core::decision::FailCause;
use tollgate_core::wire::DecisionAnswer;

impl Run<'_> {
    pub(super) fn called(&mut self, endpoint: usize, call: &Call) {
        if !self.endpoints[endpoint].is_up {
            self.end(endpoint, call.id, Err(FailCause::Refused));
            return;
        }
        let (number, questions) = self.endpoints[endpoint].called(endpoint, call);
        let life = self.endpoints[endpoint].life;
        for question in questions {
            let names = [3, endpoint as u64, life, number, question.request];
            for delay in self.network.delays(Part::Endpoint(endpoint), Part::Store, &names, self.now) {
                self.queue.push(self.now.plus(delay), Event::Asked(Box::new(question.clone())));
            }
        }
        let until = self.now.plus(self.scenario.store_deadline);
        self.queue.push(until, Event::Silent { endpoint, life, call: number });
    }

    pub(super) fn asked(&mut self, question: &Question) {
        if !self.store.is_up {
            return;
        }
        let Question { endpoint, life, from, call, place, request, .. } = *question;
        let (answer, record) = self.store.decide(&question.decision, self.now);
        self.trace.note(self.now, || {
            let charges = record
                .charges
                .iter()
                .map(|charged| format!("{} {}:{:.4}", charged.cost, charged.name.policy, charged.name.key.to_string()));
            let charges: Vec<String> = charges.collect();
            let reading = record.reading.count();
            format!("store at {reading}: request {request} for {}: {:?}, {answer:?}", charges.join(", "), record.made)
        });
        self.checks.stored(request, (from.proxy, from.worker), &record, self.now);
        let names = [4, endpoint as u64, life, call, request, self.now.count()];
        for delay in self.network.delays(Part::Store, Part::Endpoint(endpoint), &names, self.now) {
            let answer = Box::new(answer.clone());
            self.queue.push(self.now.plus(delay), Event::Told { endpoint, life, call, place, answer });
        }
    }

    pub(super) fn told(&mut self, endpoint: usize, life: u64, call: u64, place: usize, answer: DecisionAnswer) {
        let there = &mut self.endpoints[endpoint];
        if there.is_up && there.life == life {
            let answer = there.told(call, place, answer);
            self.answer(endpoint, answer);
        }
    }

    pub(super) fn silent(&mut self, endpoint: usize, life: u64, call: u64) {
        let there = &mut self.endpoints[endpoint];
        if there.is_up && there.life == life {
            let answer = there.expired(call);
            self.answer(endpoint, answer);
        }
    }

    fn answer(&mut self, endpoint: usize, answer: Option<(CallId, Vec<u8>)>) {
        if let Some((call, body)) = answer {
            self.end(endpoint, call, Ok(body));
        }
    }

    /// An endpoint ends a call, or what is left of the connection does.
    pub(super) fn end(&mut self, endpoint: usize, call: CallId, body: Result<Vec<u8>, FailCause>) {
        let CallId { proxy, life, worker, site, token } = call;
        let names = [5, proxy as u64, life, worker as u64, site as u64, token.into(), self.now.count()];
        let body = match body {
            // Half an answer, as from something that is not the endpoint.
            Ok(body) if self.network.is_garbled(&names) => Ok(body[..body.len() / 2].to_vec()),
            body => body,
        };
        for delay in self.network.delays(Part::Endpoint(endpoint), Part::Proxy(proxy), &names, self.now) {
            self.queue.push(self.now.plus(delay), Event::Ended(call, body.clone()));
        }
    }
}
