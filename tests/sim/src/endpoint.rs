//! A token endpoint. It keeps nothing but the calls that it has not answered yet.

use crate::sabotage::Sabotage;
use std::collections::BTreeMap;
use tollgate_core::units::Micros;
use tollgate_core::wire::{AdmitAnswer, AdmitRequest, Admitted, DecisionAnswer, DecisionRequest, Failure};

/// Names a call of a worker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId {
    pub proxy: usize,
    /// Which virtual machine of that worker.
    pub life: u64,
    pub worker: usize,
    /// Which configuration at work on the worker.
    pub site: usize,
    pub token: u32,
}

/// A call on its way. Who is in it travels beside the body: only the checks read that.
#[derive(Clone)]
pub struct Call {
    pub id: CallId,
    pub body: Vec<u8>,
    pub requests: Vec<u64>,
}

/// One decision on its way to the store.
#[derive(Clone)]
pub struct Question {
    pub endpoint: usize,
    pub life: u64,
    pub from: CallId,
    /// Which call of the endpoint, and which decision in it.
    pub call: u64,
    pub place: usize,
    pub decision: DecisionRequest,
    pub request: u64,
}

pub struct Endpoint {
    pub is_up: bool,
    /// Which process this is.
    pub life: u64,
    calls: BTreeMap<u64, Open>,
    next: u64,
    sabotage: Option<Sabotage>,
}

struct Open {
    from: CallId,
    answers: Vec<Option<DecisionAnswer>>,
    charges: Vec<usize>,
}

impl Endpoint {
    pub const fn new(sabotage: Option<Sabotage>) -> Self {
        Self { is_up: true, life: 0, calls: BTreeMap::new(), next: 0, sabotage }
    }

    /// What to ask the store for a call, and the call's number.
    pub fn called(&mut self, endpoint: usize, call: &Call) -> (u64, Vec<Question>) {
        let number = self.next;
        self.next += 1;
        let asked: AdmitRequest = serde_json::from_slice(&call.body).expect("a worker sends what can be read");
        assert_eq!(asked.decisions.len(), call.requests.len());
        let open = Open {
            from: call.id,
            answers: vec![None; asked.decisions.len()],
            charges: asked.decisions.iter().map(|decision| decision.charges.len()).collect(),
        };
        self.calls.insert(number, open);
        let questions = asked.decisions.into_iter().zip(&call.requests).enumerate();
        let questions = questions.map(|(place, (decision, request))| Question {
            endpoint,
            life: self.life,
            from: call.id,
            call: number,
            place,
            decision,
            request: *request,
        });
        let mut questions: Vec<Question> = questions.collect();
        if self.sabotage == Some(Sabotage::Renumbered) {
            let again: Vec<Question> =
                questions.iter().filter(|question| renumber(&mut (*question).clone())).cloned().collect();
            questions.extend(again.into_iter().map(|mut question| {
                renumber(&mut question);
                question
            }));
        }
        (number, questions)
    }

    /// The store's answer to one decision. Gives the answer to a call that is complete.
    pub fn told(&mut self, call: u64, place: usize, answer: DecisionAnswer) -> Option<(CallId, Vec<u8>)> {
        let open = self.calls.get_mut(&call)?;
        open.answers.get_mut(place)?.get_or_insert(answer);
        open.answers.iter().all(Option::is_some).then(|| self.answer(call)).flatten()
    }

    /// The store's time for a call is up.
    pub fn expired(&mut self, call: u64) -> Option<(CallId, Vec<u8>)> {
        self.calls.contains_key(&call).then(|| self.answer(call)).flatten()
    }

    fn answer(&mut self, call: u64) -> Option<(CallId, Vec<u8>)> {
        let open = self.calls.remove(&call)?;
        let silence = |charges: usize| match self.sabotage {
            Some(Sabotage::SilenceAdmits) => {
                DecisionAnswer::Admitted(vec![Admitted { remaining: 1, lease: None }; charges])
            }
            _ => DecisionAnswer::Failed(Failure::StoreTimeout),
        };
        let answers = open.answers.into_iter().zip(open.charges);
        let mut decisions: Vec<_> =
            answers.map(|(answer, charges)| answer.unwrap_or_else(|| silence(charges))).collect();
        if self.sabotage == Some(Sabotage::SwappedAnswers) {
            decisions.reverse();
        }
        let body = serde_json::to_vec(&AdmitAnswer { decisions }).expect("answers can be written");
        Some((open.from, body))
    }

    /// It dies, and all that it has is gone. Gives who waited.
    pub fn die(&mut self) -> Vec<CallId> {
        self.is_up = false;
        self.life += 1;
        std::mem::take(&mut self.calls).into_values().map(|open| open.from).collect()
    }

    /// How many calls are open.
    pub fn len(&self) -> usize {
        self.calls.len()
    }
}

/// Gives a report a new number; says whether there was one. What it is charged is not charged again.
fn renumber(question: &mut Question) -> bool {
    question.request = crate::worker::FIRST_LEASE;
    question.place = usize::MAX;
    question.decision.id = None;
    question.decision.charges.retain(|charge| charge.lease.is_some());
    for charge in &mut question.decision.charges {
        charge.cost = None;
        charge.lease.iter_mut().for_each(|call| call.seq += 1);
    }
    !question.decision.charges.is_empty()
}

/// How long an endpoint waits for the store, unless it is told otherwise.
pub const USUAL_DEADLINE: Micros = Micros::from_millis(20);
