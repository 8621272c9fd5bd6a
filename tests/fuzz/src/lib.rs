//! One decision from its facts to the reply, as the filter runs it, for targets that reach only a part of it.

// The server is a program and no library, and to instrument all that it is made of would take minutes: what reads
// requests is taken out of it.
#[path = "../../../src/server/src/admit.rs"]
#[rustfmt::skip]
pub mod admit;

// And what reads files: `tollgate check`, with all that it needs.
#[path = "../../../src/server/src"]
#[rustfmt::skip]
mod server {
    pub mod calendar;
    pub mod check;
    pub mod document;
    pub mod terminal;
}
pub use server::{calendar, check, document, terminal};

use std::sync::LazyLock;
use tollgate_core::decision::{Decision, Outcome, Part, Step};
use tollgate_core::facts::{Attribute, Facts, Header};
use tollgate_core::fields;
use tollgate_core::key::Digest;
use tollgate_core::policy::PolicySet;
use tollgate_core::reply::{Caller, Reply};
use tollgate_core::units::Micros;
use tollgate_core::wire::{AdmitRequest, DecisionAnswer};

/// Some time in 2026.
pub const NOW: Micros = Micros::from_secs(1_790_000_000);

/// A policy with one of everything.
pub static POLICY: LazyLock<PolicySet> = LazyLock::new(|| {
    PolicySet::read(include_bytes!("../corpus/policy/everything.json"), &environment).expect("a policy that is right")
});

/// Every variable is set.
pub fn environment(_: &str) -> Option<String> {
    Some("0123456789abcdef".into())
}

/// What a client sent.
pub struct Request<'a> {
    pub method: &'a [u8],
    pub path: &'a [u8],
    pub address: &'a [u8],
    /// The values of every header that is asked for.
    pub headers: &'a [&'a [u8]],
}

/// A request that every policy of [`POLICY`] applies to.
pub const PLAIN: Request<'_> =
    Request { method: b"GET", path: b"/v1/reports/1", address: b"192.0.2.1:1234", headers: &[b"alice"] };

impl Facts for Request<'_> {
    fn method(&self) -> Vec<u8> {
        self.method.into()
    }

    fn path(&self) -> Vec<u8> {
        self.path.into()
    }

    fn header(&self, _: &str) -> Header {
        match self.headers {
            [] => Header::Absent,
            [value] => Header::One(value.to_vec()),
            _ => Header::Several,
        }
    }

    fn client_address(&self) -> Vec<u8> {
        self.address.into()
    }

    fn host(&self) -> Vec<u8> {
        self.headers.first().copied().unwrap_or_default().into()
    }

    fn list(&self, _: &str) -> Vec<u8> {
        self.headers.join(&b',')
    }

    fn attribute(&self, _: &Attribute) -> Option<Vec<u8>> {
        self.headers.get(1).map(|value| value.to_vec())
    }
}

/// Whom leases are lent to.
const LESSEE: Digest = Digest::from_bytes([7; 16]);

/// Decides, where every bucket set that is read holds `stored`, and the endpoint gives `answer` or none.
///
/// # Panics
/// When the decision does not end, or asks the endpoint what that does not take.
pub fn decide(
    set: &PolicySet,
    facts: &impl Facts,
    now: Micros,
    stored: Option<&[u8]>,
    answer: Option<&DecisionAnswer>,
) {
    let plan = set.plan(facts);
    for charge in &plan.shadows {
        run(Decision::shadow(&plan, charge, set, LESSEE), set, now, stored, answer);
    }
    let caller = Caller {
        content_type: value_of(facts.header("content-type")),
        origin: value_of(facts.header("origin")),
        random: u32::MAX,
        clock: u64::MAX,
    };
    let (decision, outcome) = run(Decision::new(plan, set, LESSEE), set, now, stored, answer);
    let standings = decision.standings(set);
    let parts = decision.parts(&outcome, &standings, set);
    let fields = match &outcome {
        Outcome::Admit(_) => fields::of_admitted(&standings, set, || caller.clock),
        Outcome::Reject(rejection) => {
            let reply = Reply::new(rejection, &standings, set, &caller);
            if !reply.body.is_empty() {
                serde_json::from_str::<serde_json::Value>(&reply.body).expect("a problem document");
            }
            reply.headers
        }
    };
    let legal = |value: &str| value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    assert!(fields.iter().all(|(_, value)| legal(value)), "{fields:?}");
    let possible = |(index, part): &(usize, Part)| set.policy(*index).is_some_and(|policy| part.can_be_of(policy));
    assert!(parts.iter().all(possible), "{parts:?}");
}

fn value_of(header: Header) -> Vec<u8> {
    if let Header::One(value) = header { value } else { Vec::new() }
}

fn run(
    mut decision: Decision,
    set: &PolicySet,
    now: Micros,
    stored: Option<&[u8]>,
    answer: Option<&DecisionAnswer>,
) -> (Decision, Outcome) {
    for _ in 0..10_000 {
        match decision.step(set, now) {
            Step::Read(_) => decision.stored(stored.map(|bytes| (bytes, 1)), now),
            Step::Write { .. } => decision.written(true),
            Step::Ask => {
                let request = AdmitRequest { decisions: vec![decision.request(set)] };
                let body = serde_json::to_vec(&request).expect("a request can be written");
                assert_eq!(admit::parse(&body).as_ref(), Ok(&request), "the endpoint takes it");
                match answer {
                    Some(answer) => drop(decision.answered(answer, set)),
                    None => decision.failed(set),
                }
            }
            Step::Done(outcome) => return (decision, outcome),
        }
    }
    panic!("the decision does not end");
}
