//! One call of the script: what goes in, and what its reply means.

use super::Part;
use crate::store::fault::{Fault, FaultKind};
use crate::store::leases::{LeaseCounts, Outcome};
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::key::{Digest, HashKey};
use tollgate_core::lease::LeaseCall;
use tollgate_core::limit::{FixedWindow, Limit, Window};
use tollgate_core::units::{Micros, RefillRate, Tokens};
use tollgate_core::wire::{Admitted, ChargeRequest, DecisionAnswer, DecisionRequest, Denial, Denied, LeaseAnswer};

const SCRIPT: &str = include_str!("../limits.lua");

/// Its hash, by which the server keeps it.
static HASH: LazyLock<String> = LazyLock::new(|| redis::Script::new(SCRIPT).get_hash().to_owned());

/// Charges that share a slot, or any where there are no slots.
pub struct Call<'a> {
    pub mode: Mode,
    pub charges: Vec<&'a ChargeRequest>,
    /// Where it is remembered that they were made.
    pub remember: Option<Remember>,
    /// Whether the server has the [`MARKER`], for charges that learn. Of a cluster's slots, one has it.
    pub learns: bool,
}

/// The key that says since when the server may have lost state.
pub const MARKER: &str = "tollgate-marker";

/// What it says where nothing was ever lost.
pub const NEVER_LOST: &str = "m:0";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Take,
    Check,
    /// Takes what was checked: its leases are settled already.
    Reserve,
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
        Self { mode, charges, remember, learns: false }
    }

    /// By the script's hash, or with the script itself for a server that does not know it.
    pub fn command(&self, with_script: bool) -> Cmd {
        let mut command = redis::cmd(if with_script { "EVAL" } else { "EVALSHA" });
        command.arg(if with_script { SCRIPT } else { &HASH });
        let learns = self.charges.iter().any(|charge| self.learns(charge));
        let leases = self.charges.iter().filter(|charge| self.lease(charge).is_some()).count();
        command.arg(self.charges.len() + leases + usize::from(self.remember.is_some()) + usize::from(learns));
        for charge in &self.charges {
            command.arg(format!("tollgate:{{{}}}:{}:{}", charge.group, charge.policy, charge.key));
        }
        for charge in &self.charges {
            if let Some(LeaseCall { lessee, .. }) = self.lease(charge) {
                command.arg(format!("tollgate-lease:{{{}}}:{}:{}:{lessee}", charge.group, charge.policy, charge.key));
            }
        }
        if let Some(Remember { id, group }) = self.remember {
            command.arg(format!("tollgate-id:{{{group}}}:{id}"));
        }
        if learns {
            command.arg(MARKER);
        }
        command.arg(match self.mode {
            Mode::Take | Mode::Reserve => "take",
            Mode::Check => "check",
            Mode::Back => "back",
        });
        for charge in &self.charges {
            let (algorithm, numbers) = arguments(&charge.limit);
            command.arg(if self.learns(charge) { "e" } else { algorithm }).arg(&numbers);
            let cost = charge.cost.map_or(0, |cost| cost.0.count());
            match self.lease(charge) {
                None => command.arg(cost),
                Some(LeaseCall { seq, acked, kept, returned, wanted, demand, .. }) => {
                    command.arg(format!("{cost}:{seq}:{acked}:{kept}:{returned}:{wanted}:{demand}"))
                }
            };
        }
        command
    }

    /// The lease call that goes with a charge.
    fn lease(&self, charge: &'a ChargeRequest) -> Option<&'a LeaseCall> {
        charge.lease.as_ref().filter(|_| matches!(self.mode, Mode::Take | Mode::Check))
    }

    fn learns(&self, charge: &ChargeRequest) -> bool {
        self.learns && charge.learn && charge.limit.is_token_bucket()
    }

    /// What each limit says. Anything that is not a whole reply is a fault, never an admission. Counts what the leases
    /// came to.
    pub fn read(&self, mut reply: &[i64], leases: &LeaseCounts) -> Result<Vec<Denied>, Fault> {
        let short = || Fault::new(FaultKind::BadReply, "a reply of another length");
        let wrong = || Fault::new(FaultKind::BadReply, "a reply with numbers out of bounds");
        let mut said = Vec::with_capacity(self.charges.len());
        for charge in &self.charges {
            let (numbers, rest) = reply.split_first_chunk().ok_or_else(short)?;
            reply = rest;
            let (mut denied, is_lent) = read_charge(*numbers).ok_or_else(wrong)?;
            let mut came = None;
            if let Some(call) = self.lease(charge) {
                let (numbers, rest) = reply.split_first_chunk().ok_or_else(short)?;
                reply = rest;
                let (lease, outcome) = read_lease(call.seq, *numbers).ok_or_else(wrong)?;
                denied.lease = lease;
                came = Some(outcome);
            }
            said.push((denied, is_lent, came));
        }
        if !reply.is_empty() {
            return Err(short());
        }
        for (_, is_lent, outcome) in &said {
            outcome.iter().for_each(|outcome| leases.called(*outcome));
            if *is_lent {
                leases.denied();
            }
        }
        Ok(said.into_iter().map(|(denied, ..)| denied).collect())
    }
}

/// A limit as the script takes it: its algorithm's letter and three numbers, or four boundaries in place of the second.
fn arguments(limit: &Limit) -> (&'static str, [String; 3]) {
    let numbers = |numbers: [u64; 3]| numbers.map(|number| number.to_string());
    let rate = |capacity: Tokens, rate: RefillRate| numbers([capacity.count(), rate.tokens(), rate.period()]);
    let window = |capacity: Tokens, window: Micros| numbers([capacity.count(), window.count(), 0]);
    match limit {
        Limit::TokenBucket(limit) => {
            let [capacity, units, period] = rate(limit.capacity, limit.rate());
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

/// What a limit says, and whether it denies for a time while it has lent units.
fn read_charge([verdict, remaining, wait]: [i64; 3]) -> Option<(Denied, bool)> {
    let denied = match verdict {
        0 => None,
        1 | 3 => Some(Denial::WaitUs(wait.try_into().ok()?)),
        2 => Some(Denial::OverCapacity),
        _ => return None,
    };
    Some((Denied { remaining: remaining.try_into().ok()?, denied, lease: None }, verdict == 3))
}

/// What the script says of the lease call with this number: what is lent, if it did not come too late, and what became
/// of it.
fn read_lease(seq: u64, numbers: [i64; 6]) -> Option<(Option<LeaseAnswer>, Outcome)> {
    let [settled, units, granted, returned, room, rate] = numbers.map(u64::try_from);
    let (units, granted, returned) = (units.ok()?, granted.ok()?, returned.ok()?);
    let lease = LeaseAnswer { seq, units, room: room.ok()?, rate: rate.ok()? };
    match settled.ok()? {
        0 => Some((Some(lease), Outcome::New { units, granted, returned })),
        1 => Some((Some(lease), Outcome::Again)),
        2 => Some((None, Outcome::Late)),
        _ => None,
    }
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
