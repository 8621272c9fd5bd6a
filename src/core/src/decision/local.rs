//! Several local buckets, charged all or none, over compare-and-set.
//!
//! The round holds a goal (charge all, or only those that charge always) and what has been charged so far, and works
//! off the difference, one set at a time. A lost race re-reads that set and checks again. So a denial that is found
//! late, here or at the endpoint, needs no code of its own: the goal changes, and the same work gives back.

use super::Rejection;
use crate::key::Digest;
use crate::policy::{Charge, Policy, Sharing};
use crate::slots::{SETS, Seat, SlotSet};
use crate::token_bucket::{TokenBucket, Verdict};
use crate::units::{Micros, Tokens};

/// How often one round may lose a race before it gives up. Each loss means that another request was decided.
const MAX_LOST_RACES: u32 = 64;

/// Names a set of the slot table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetId {
    /// Whose table.
    pub sharing: Sharing,
    /// Which set of it, below [`SETS`].
    pub index: u32,
}

/// Something that kept a local bucket from being charged as it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contention {
    /// Too many lost races.
    Exhausted,
    /// The stored bytes are not ours.
    Malformed,
    /// A newcomer was decided by its policy's overflow bucket.
    Overflow,
}

/// One policy's charge on a local bucket.
#[derive(Debug)]
pub(super) struct LocalCharge {
    policy: usize,
    key: Digest,
    overflow: Digest,
    cost: Tokens,
    limit: TokenBucket,
    set: SetId,
    /// Charged even when another policy denies.
    always: bool,
    verdict: Verdict,
    /// Where it was charged, while it is.
    spent: Option<Seat>,
}

impl LocalCharge {
    pub(super) fn new(charge: &Charge, policy: &Policy, limit: TokenBucket, sharing: Sharing, always: bool) -> Self {
        Self {
            policy: charge.policy,
            key: charge.key,
            overflow: policy.overflow(),
            cost: charge.cost,
            limit,
            set: SetId { sharing, index: charge.key.share(SETS) },
            always,
            verdict: Verdict::Admit,
            spent: None,
        }
    }

    /// The emergency bucket of a global policy: one for the whole proxy, kept over flaps of the endpoint.
    pub(super) fn emergency(charge: &Charge, policy: &Policy, limit: TokenBucket) -> Self {
        Self::new(charge, policy, limit, Sharing::Proxy, false)
    }
}

#[derive(Debug)]
pub(super) struct LocalRound {
    charges: Vec<LocalCharge>,
    /// Every set of the charges, once, with what was last read of it.
    sets: Vec<(SetId, Option<Loaded>)>,
    /// Whether all charges were checked before any was made.
    checked: bool,
    denied: bool,
    /// Could not be decided: no charge can be relied on.
    broken: bool,
    lost_races: u32,
    writing: Option<Writing>,
    contention: Vec<Contention>,
}

#[derive(Debug)]
struct Loaded {
    set: SlotSet,
    version: Option<u32>,
}

/// A write whose result is not known yet, and what it will have done.
#[derive(Debug)]
struct Writing {
    set: SetId,
    bytes: Vec<u8>,
    version: Option<u32>,
    /// The new `spent` of each charge it touches.
    spent: Vec<(usize, Option<Seat>)>,
}

pub(super) enum Task {
    Read(SetId),
    Write { set: SetId, bytes: Vec<u8>, version: Option<u32> },
    Settled,
}

impl LocalRound {
    pub(super) fn new(charges: Vec<LocalCharge>) -> Self {
        let mut sets: Vec<(SetId, Option<Loaded>)> = Vec::new();
        for charge in &charges {
            if sets.iter().all(|(set, _)| *set != charge.set) {
                sets.push((charge.set, None));
            }
        }
        Self {
            charges,
            sets,
            checked: false,
            denied: false,
            broken: false,
            lost_races: 0,
            writing: None,
            contention: Vec::new(),
        }
    }

    /// From now on only charges that are made always stay.
    pub(super) const fn deny(&mut self) {
        self.denied = true;
    }

    pub(super) fn take_contention(&mut self) -> Vec<Contention> {
        core::mem::take(&mut self.contention)
    }

    /// Why the request cannot go on, once the round has settled.
    pub(super) fn rejection(&self, emergency: bool) -> Option<Rejection> {
        if self.broken {
            return Some(Rejection::Unavailable {
                policies: self.charges.iter().map(|charge| charge.policy).collect(),
            });
        }
        Rejection::denied(self.charges.iter().map(|charge| (charge.policy, charge.verdict)), emergency)
    }

    pub(super) fn next(&mut self, now: Micros) -> Task {
        if let Some(Writing { set, bytes, version, .. }) = &self.writing {
            return Task::Write { set: *set, bytes: bytes.clone(), version: *version };
        }
        if !self.checked {
            if let Some((id, _)) = self.sets.iter().find(|(_, loaded)| loaded.is_none()) {
                return Task::Read(*id);
            }
            self.check_all(now);
        }
        while let Some(id) = self.unsettled() {
            let Some(loaded) = self.sets.iter().find(|(set, _)| *set == id).and_then(|(_, loaded)| loaded.as_ref())
            else {
                return Task::Read(id);
            };
            let (set, version) = (loaded.set.clone(), loaded.version);
            if let Some(writing) = self.change(id, set, version, now) {
                let task = Task::Write { set: id, bytes: writing.bytes.clone(), version: writing.version };
                self.writing = Some(writing);
                return task;
            }
        }
        Task::Settled
    }

    pub(super) fn stored(&mut self, value: Option<(&[u8], u32)>, now: Micros) {
        let Task::Read(id) = self.next(now) else { return };
        let loaded = match value {
            None => Loaded { set: SlotSet::default(), version: None },
            Some((bytes, version)) => match SlotSet::decode(bytes, now) {
                Ok(set) => Loaded { set, version: Some(version) },
                Err(_) => return self.give_up(Contention::Malformed),
            },
        };
        if let Some((_, place)) = self.sets.iter_mut().find(|(set, _)| *set == id) {
            *place = Some(loaded);
        }
    }

    pub(super) fn written(&mut self, done: bool) {
        let Some(writing) = self.writing.take() else { return };
        // Either way what was read is out of date.
        if let Some((_, place)) = self.sets.iter_mut().find(|(set, _)| *set == writing.set) {
            *place = None;
        }
        if done {
            for (index, spent) in writing.spent {
                if spent.as_ref().is_some_and(Seat::is_overflow) {
                    self.contention.push(Contention::Overflow);
                }
                if let Some(charge) = self.charges.get_mut(index) {
                    charge.spent = spent;
                }
            }
            return;
        }
        self.lost_races = self.lost_races.saturating_add(1);
        if self.lost_races > MAX_LOST_RACES {
            self.give_up(Contention::Exhausted);
        }
    }

    /// Decides nothing further. What was charged and cannot be given back stays spent: the safe side.
    fn give_up(&mut self, why: Contention) {
        self.contention.push(why);
        self.broken = true;
        self.checked = true;
        for charge in &mut self.charges {
            charge.spent = None;
        }
    }

    /// Checks every charge against what was read, before anything is spent.
    fn check_all(&mut self, now: Micros) {
        self.checked = true;
        for charge in &mut self.charges {
            if let Some((_, Some(loaded))) = self.sets.iter().find(|(set, _)| *set == charge.set) {
                let seat = loaded.set.seat(charge.key, charge.overflow, &charge.limit, now);
                charge.verdict = charge.limit.check(&seat.balance, charge.cost, now);
            }
        }
        self.denied |= self.charges.iter().any(|charge| charge.verdict != Verdict::Admit);
    }

    fn wanted(&self, charge: &LocalCharge) -> bool {
        charge.verdict == Verdict::Admit && (charge.always || !self.denied)
    }

    /// A set in which something is still to be charged or given back.
    fn unsettled(&self) -> Option<SetId> {
        if self.broken {
            return None;
        }
        self.charges.iter().find(|charge| self.wanted(charge) != charge.spent.is_some()).map(|charge| charge.set)
    }

    /// The write that settles one set; `None` when nothing is left to write there.
    fn change(&mut self, id: SetId, mut set: SlotSet, version: Option<u32>, now: Micros) -> Option<Writing> {
        let mut spent = Vec::new();
        for index in 0..self.charges.len() {
            let Some(charge) = self.charges.get(index).filter(|charge| charge.set == id) else { continue };
            match (&charge.spent, self.wanted(charge)) {
                (None, true) => {
                    let seat = set.seat(charge.key, charge.overflow, &charge.limit, now);
                    let verdict = charge.limit.check(&seat.balance, charge.cost, now);
                    if verdict == Verdict::Admit {
                        set.spend(seat.clone(), charge.cost, &charge.limit, now);
                        spent.push((index, Some(seat)));
                        continue;
                    }
                    // Somebody else took the units since they were checked: start over with the new goal.
                    if let Some(charge) = self.charges.get_mut(index) {
                        charge.verdict = verdict;
                    }
                    self.denied = true;
                    return None;
                }
                (Some(seat), false) => {
                    set.give_back(seat, charge.cost, &charge.limit, now);
                    spent.push((index, None));
                }
                _ => {}
            }
        }
        (!spent.is_empty()).then(|| Writing { set: id, bytes: set.encode(), version, spent })
    }
}
