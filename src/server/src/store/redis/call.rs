//! One call of the script: what goes in, and what its reply means.

use super::Part;
use crate::store::fault::{Fault, FaultKind};
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::key::{Digest, HashKey};
use tollgate_core::limit::{FixedWindow, Limit, Window};
use tollgate_core::units::{Micros, RefillRate, Tokens};
use tollgate_core::wire::{Admitted, ChargeRequest, DecisionAnswer, DecisionRequest, Denial, Denied};

const SCRIPT: &str = include_str!("../limits.lua");

/// Its hash, by which the server keeps it.
static HASH: LazyLock<String> = LazyLock::new(|| redis::Script::new(SCRIPT).get_hash().to_owned());

/// Charges that share a slot, or any where there are no slots.
pub struct Call<'a> {
    pub mode: Mode,
    pub charges: Vec<&'a ChargeRequest>,
    /// Where it is remembered that they were made.
    pub remember: Option<Remember>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Take,
    Check,
    Back,
}

/// A decision's id, and the group whose slot its charges are in.
#[derive(Clone, Copy)]
pub struct Remember {
    pub id: Digest,
    pub group: Digest,
}

impl<'a> Call<'a> {
    /// The charges of one slot.
    pub fn of_part(mode: Mode, part: &Part, decision: &'a DecisionRequest, id: Option<Digest>) -> Self {
        let charges: Vec<_> = part.charges.iter().filter_map(|index| decision.charges.get(*index)).collect();
        let remember = id.zip(charges.first()).map(|(id, charge)| Remember { id, group: charge.group });
        Self { mode, charges, remember }
    }

    /// By the script's hash, or with the script itself for a server that does not know it.
    pub fn command(&self, with_script: bool) -> Cmd {
        let mut command = redis::cmd(if with_script { "EVAL" } else { "EVALSHA" });
        command.arg(if with_script { SCRIPT } else { &HASH });
        command.arg(self.charges.len() + usize::from(self.remember.is_some()));
        for charge in &self.charges {
            command.arg(format!("tollgate:{{{}}}:{}:{}", charge.group, charge.policy, charge.key));
        }
        if let Some(Remember { id, group }) = self.remember {
            command.arg(format!("tollgate-id:{{{group}}}:{id}"));
        }
        command.arg(match self.mode {
            Mode::Take => "take",
            Mode::Check => "check",
            Mode::Back => "back",
        });
        for charge in &self.charges {
            let (algorithm, numbers) = arguments(&charge.limit);
            command.arg(algorithm).arg(&numbers).arg(charge.cost.map_or(0, |cost| cost.0.count()));
        }
        command
    }

    /// What each limit says. Anything that is not a whole reply is a fault, never an admission.
    pub fn read(&self, reply: &[i64]) -> Result<Vec<Denied>, Fault> {
        let (charges, rest) = reply.as_chunks::<3>();
        if charges.len() != self.charges.len() || !rest.is_empty() {
            return Err(Fault::new(FaultKind::BadReply, "a reply of another length"));
        }
        let read: Option<_> = charges.iter().map(|charge| read_charge(*charge)).collect();
        read.ok_or_else(|| Fault::new(FaultKind::BadReply, "a reply with numbers out of bounds"))
    }
}

/// A limit as the script takes it: its algorithm's letter and three numbers, or four boundaries in place of the second.
fn arguments(limit: &Limit) -> (&'static str, [String; 3]) {
    let numbers = |numbers: [u64; 3]| numbers.map(|number| number.to_string());
    let rate = |capacity: Tokens, rate: RefillRate| numbers([capacity.count(), rate.tokens(), rate.period()]);
    let window = |capacity: Tokens, window: Micros| numbers([capacity.count(), window.count(), 0]);
    match limit {
        Limit::TokenBucket(limit) => {
            let [capacity, units, period] = rate(limit.capacity, limit.refill);
            let keep = limit.keep.count();
            ("b", [capacity, units, if keep == 0 { period } else { format!("{period}:{keep}") }])
        }
        Limit::Gcra(limit) => ("g", rate(limit.burst, limit.rate)),
        Limit::FixedWindow(FixedWindow { capacity, window: Window::Span(span) }) => ("f", window(*capacity, *span)),
        Limit::FixedWindow(FixedWindow { capacity, window: Window::Calendar(window) }) => {
            let boundaries = window.known.all().map(|boundary| boundary.count().to_string()).join(":");
            ("c", [capacity.count().to_string(), boundaries, "0".into()])
        }
        Limit::SlidingWindow(limit) => ("s", window(limit.capacity, limit.window)),
        Limit::SlidingLog(limit) => ("l", window(limit.capacity, limit.window)),
    }
}

fn read_charge([verdict, remaining, wait]: [i64; 3]) -> Option<Denied> {
    let denied = match verdict {
        0 => None,
        1 => Some(Denial::WaitUs(wait.try_into().ok()?)),
        2 => Some(Denial::OverCapacity),
        _ => return None,
    };
    Some(Denied { remaining: remaining.try_into().ok()?, denied, lease: None })
}

/// What the limits say together.
pub fn answer(charges: Vec<Denied>) -> DecisionAnswer {
    if is_admitted(&charges) {
        let admitted = |charge: &Denied| Admitted { remaining: charge.remaining, lease: charge.lease };
        DecisionAnswer::Admitted(charges.iter().map(admitted).collect())
    } else {
        DecisionAnswer::Denied(charges)
    }
}

pub fn is_admitted(charges: &[Denied]) -> bool {
    charges.iter().all(|charge| charge.denied.is_none())
}

pub fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Ids for decisions that have none and need one.
pub struct Ids {
    key: HashKey,
    next: AtomicU64,
}

impl Ids {
    /// Of this process alone.
    pub fn new() -> Result<Self, String> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| format!("no random numbers to be had: {error}"))?;
        Ok(Self { key: HashKey::new(&secret), next: AtomicU64::new(0) })
    }

    pub fn next(&self) -> Digest {
        let mut digest = self.key.digest("decision");
        digest.part(&self.next.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        digest.finish()
    }
}
