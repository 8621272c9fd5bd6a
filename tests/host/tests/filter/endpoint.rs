//! The token endpoint behind the calls, and what can happen to a call on its way.

use crate::random::Random;
use crate::world::{Answer, Headers};
use std::collections::HashMap;
use tollgate_core::admit::{self, Stored};
use tollgate_core::key::Digest;
use tollgate_core::lease::{LEASE_LIFE, LeaseRecord};
use tollgate_core::limit::{Limit, State};
use tollgate_core::units::Micros;
use tollgate_core::wire::{AdmitAnswer, AdmitRequest, Admitted, DecisionAnswer, DecisionRequest, Failure, MAX_BODY};

/// The policy that each request of a marked run is charged by alone, so that its decisions can be told apart.
pub const MARK: &str = "mark";

/// How the way to the endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Every call is answered, at once.
    Still,
    /// Every call is answered, shortly before its end.
    Slow,
    /// Every call is answered in time.
    Good,
    /// Anything can happen to a call.
    Foul,
    /// No call can be sent.
    Down,
    /// Every call breaks, at once.
    Broken,
    /// No call ever ends.
    Silent,
}

/// A model of the endpoint: it decides by core's limits, all or nothing, one decision after the other.
pub struct Endpoint {
    pub weather: Weather,
    buckets: HashMap<(String, Digest), State>,
    /// What lessees have, by the bucket.
    records: HashMap<(String, Digest, Digest), LeaseRecord>,
    /// Units charged and lent, by policy and key.
    pub charged: HashMap<(String, Digest), u64>,
}

/// None of the fates by chance.
const SLOW: u64 = 100;
const BROKEN: u64 = 101;

type Fate = (Option<u64>, Answer, Vec<(Digest, bool)>);

impl Endpoint {
    pub fn new(weather: Weather) -> Self {
        Self { weather, buckets: HashMap::new(), records: HashMap::new(), charged: HashMap::new() }
    }

    /// What a call that is sent now will meet; `None` when it cannot be sent.
    pub fn fate(&mut self, chance: &mut Random, now: u64, timeout: u64, body: &[u8]) -> Option<Fate> {
        let request: AdmitRequest = match serde_json::from_slice(body) {
            Ok(request) => request,
            Err(error) => return Some((Some(now), plain("400", error.to_string().into_bytes()), Vec::new())),
        };
        let fate = match self.weather {
            Weather::Still => 0,
            Weather::Slow => SLOW,
            Weather::Good => 1,
            Weather::Foul => chance.below(20),
            Weather::Silent => 10,
            Weather::Broken => BROKEN,
            Weather::Down => return None,
        };
        let soon = now + chance.below(timeout);
        Some(match fate {
            0 => self.answered(&request, now, now),
            BROKEN => (Some(now), Answer { headers: None, body: Vec::new(), size: 0 }, Vec::new()),
            SLOW => self.answered(&request, now, now + timeout * 9 / 10),
            1..5 => self.answered(&request, now, soon),
            // Just before its end, when some have given up.
            5..7 => self.answered(&request, now, now + timeout - chance.below(timeout.min(6_000))),
            // A host whose timers are late.
            7 => self.answered(&request, now, now + timeout + chance.below(40_000)),
            8 => (Some(now + timeout), plain("504", b"upstream request timeout".to_vec()), Vec::new()),
            9 => {
                // The endpoint has decided, and nobody is told.
                self.decide(&request, now);
                (Some(now + timeout), plain("504", b"upstream request timeout".to_vec()), Vec::new())
            }
            10 => {
                self.decide(&request, now);
                (None, plain("200", Vec::new()), Vec::new())
            }
            11 => (Some(soon), plain("503", b"upstream connect error".to_vec()), Vec::new()),
            12 => (Some(soon), Answer { headers: None, body: Vec::new(), size: 0 }, Vec::new()),
            13 => {
                let status = chance.pick(&["500", "401", "413", "404", "302", "", "2000"]);
                (Some(soon), plain(status, b"{\"decisions\":[]}".to_vec()), Vec::new())
            }
            14 => {
                let headers = vec![header(":status", "503"), header("content-type", "application/problem+json")];
                (Some(soon), Answer { headers: Some(headers), size: 2, body: b"{}".to_vec() }, Vec::new())
            }
            15 => {
                let text: Vec<u8> = (0..chance.below(200)).map(|_| chance.next() as u8).collect();
                (Some(soon), plain("200", text), Vec::new())
            }
            16 => {
                let (due, answer, _) = self.answered(&request, now, soon);
                let end = chance.index(answer.body.len());
                (due, plain("200", answer.body[..end].to_vec()), Vec::new())
            }
            17 => {
                let (due, answer, _) = self.answered(&request, now, soon);
                (due, Answer { size: MAX_BODY + 1, ..answer }, Vec::new())
            }
            18 => {
                // Too many decisions, or too few.
                let mut answers: Vec<DecisionAnswer> = self.decide(&request, now).0;
                if chance.once_in(2) {
                    answers.push(DecisionAnswer::Admitted(Vec::new()));
                } else {
                    answers.pop();
                }
                (Some(soon), answer(answers), Vec::new())
            }
            _ => {
                // Each decision by itself is none.
                let failed = |_: &DecisionRequest| match chance.below(5) {
                    0 => DecisionAnswer::Failed(Failure::StoreTimeout),
                    1 => DecisionAnswer::Failed(Failure::UnknownTimeZone),
                    2 => DecisionAnswer::Admitted(Vec::new()),
                    3 => DecisionAnswer::Denied(Vec::new()),
                    _ => DecisionAnswer::Admitted(vec![Admitted { remaining: 1, lease: None }; 70]),
                };
                (Some(soon), answer(request.decisions.iter().map(failed).collect()), Vec::new())
            }
        })
    }

    fn answered(&mut self, request: &AdmitRequest, now: u64, due: u64) -> Fate {
        let (answers, verdicts) = self.decide(request, now);
        (Some(due), answer(answers), verdicts)
    }

    /// Decides, and says of each decision that has a mark what it was.
    fn decide(&mut self, request: &AdmitRequest, now: u64) -> (Vec<DecisionAnswer>, Vec<(Digest, bool)>) {
        let mut verdicts = Vec::new();
        let answers = request.decisions.iter().map(|decision| {
            let answer = self.decide_one(decision, now);
            let mark = decision.charges.iter().find(|charge| charge.policy == MARK);
            verdicts.extend(mark.map(|mark| (mark.key, matches!(answer, DecisionAnswer::Admitted(_)))));
            answer
        });
        (answers.collect(), verdicts)
    }

    fn decide_one(&mut self, decision: &DecisionRequest, now: u64) -> DecisionAnswer {
        let name = |policy: &str, key| (policy.to_owned(), key);
        let stored = decision.charges.iter().map(|charge| Stored {
            state: self.buckets.get(&name(&charge.policy, charge.key)).cloned(),
            record: charge
                .lease
                .and_then(|call| self.records.get(&(charge.policy.clone(), charge.key, call.lessee)).copied()),
        });
        let stored: Vec<Stored> = stored.collect();
        let Some(decided) = admit::decide(&decision.charges, &stored, None, Micros::new(now)) else {
            return DecisionAnswer::Failed(Failure::StoreError);
        };
        let is_admitted = matches!(decided.answer, DecisionAnswer::Admitted(_));
        for (charge, kept) in decision.charges.iter().zip(decided.kept) {
            let bucket = name(&charge.policy, charge.key);
            let charged = self.charged.entry(bucket.clone()).or_default();
            *charged += charge.cost.filter(|_| is_admitted).map_or(0, |cost| cost.0.count());
            if let Some((state, _)) = kept.state {
                self.buckets.insert(bucket, state);
            }
            if let Some((call, record)) = charge.lease.zip(kept.record) {
                let before = self.records.insert((charge.policy.clone(), charge.key, call.lessee), record);
                if before != Some(record) {
                    // What it may earn by its rate is charged with it.
                    let earned = match charge.limit {
                        Limit::TokenBucket(limit) => record.rate * LEASE_LIFE.count() / limit.rate().period() + 1,
                        _ => 0,
                    };
                    *charged += record.granted + record.room + earned;
                }
            }
        }
        decided.answer
    }
}

fn header(name: &str, value: &str) -> (String, Vec<u8>) {
    (name.into(), value.into())
}

fn plain(status: &str, body: Vec<u8>) -> Answer {
    let headers: Headers = vec![header(":status", status), header("content-type", "text/plain")];
    Answer { headers: Some(headers), size: body.len(), body }
}

fn answer(decisions: Vec<DecisionAnswer>) -> Answer {
    plain("200", serde_json::to_vec(&AdmitAnswer { decisions }).unwrap_or_default())
}
