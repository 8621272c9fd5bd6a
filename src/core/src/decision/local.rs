//! Several local buckets, charged all or none, over compare-and-set.
//!
//! The round has a goal and knows how far each charge is, and works off the difference, one set at a time. A lost race
//! re-reads that set and checks again. So a denial that is found late, here or at the endpoint, needs no code of its
//! own: the goal changes, and the same work gives back.
//!
//! What may still have to be given back is held, not spent (see [`crate::slots`]): a bucket must not fill up beside
//! units that can come back to it.

use super::Rejection;
use crate::key::Digest;
use crate::limit::{Algorithm, TokenBucket, Verdict};
use crate::policy::{Charge, Policy, Sharing};
use crate::slots::{Hold, SETS, SlotSet};
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
    /// Whole units that were left when it was last looked at.
    left: u64,
    state: State,
}

/// How far a charge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing was taken, or it was given back.
    Free,
    /// Taken, until the decision is made.
    Held(Hold),
    /// Taken for good.
    Spent,
}

/// What the round works towards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// All charges taken, so that they can be given back.
    Reserve,
    /// All charges spent.
    Charge,
    /// All given back, but for those that are made always.
    Release,
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
            left: 0,
            state: State::Free,
        }
    }

    /// The emergency bucket of a global policy: for each key one for the whole proxy, kept over flaps of the endpoint.
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
    goal: Goal,
    /// Something outside this round decides after it: what is taken stays held until then.
    tentative: bool,
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
    /// How far each charge that it touches will be.
    states: Vec<(usize, State)>,
    /// Whether it takes from an overflow bucket.
    overflow: bool,
}

pub(super) enum Task {
    Read(SetId),
    Write { set: SetId, bytes: Vec<u8>, version: Option<u32> },
    Settled,
}

impl LocalRound {
    /// `tentative`: whether [`confirm`](Self::confirm) or [`deny`](Self::deny) will follow once it has settled.
    pub(super) fn new(charges: Vec<LocalCharge>, tentative: bool) -> Self {
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
            goal: Goal::Reserve,
            tentative,
            broken: false,
            lost_races: 0,
            writing: None,
            contention: Vec::new(),
        }
    }

    /// The request goes on: what is held is spent.
    pub(super) const fn confirm(&mut self) {
        self.goal = Goal::Charge;
    }

    /// The request is rejected: only charges that are made always stay.
    pub(super) const fn deny(&mut self) {
        self.goal = Goal::Release;
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

    /// Whether a policy's charge was made for good.
    pub(super) fn is_spent(&self, policy: usize) -> bool {
        self.charges.iter().any(|charge| charge.policy == policy && charge.state == State::Spent)
    }

    /// Of each charge its policy, the whole units left, and what it said; of none when it could not be decided.
    pub(super) fn standings(&self) -> impl Iterator<Item = (usize, u64, Verdict)> {
        let known = self.charges.iter().filter(|_| self.checked && !self.broken);
        known.map(|charge| (charge.policy, charge.left, charge.verdict))
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
        loop {
            let Some(id) = self.unsettled() else {
                if self.goal == Goal::Reserve && !self.tentative {
                    self.goal = Goal::Charge;
                    continue;
                }
                return Task::Settled;
            };
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
            if writing.overflow {
                self.contention.push(Contention::Overflow);
            }
            for (index, state) in writing.states {
                if let Some(charge) = self.charges.get_mut(index) {
                    if state == State::Free {
                        charge.left = charge.left.saturating_add(charge.cost.count());
                    }
                    charge.state = state;
                }
            }
            return;
        }
        self.lost_races = self.lost_races.saturating_add(1);
        if self.lost_races > MAX_LOST_RACES {
            self.give_up(Contention::Exhausted);
        }
    }

    /// Decides nothing further. What was taken and cannot be given back stays spent: the safe side.
    fn give_up(&mut self, why: Contention) {
        self.contention.push(why);
        self.broken = true;
        self.checked = true;
    }

    /// Checks every charge against what was read, before anything is spent.
    fn check_all(&mut self, now: Micros) {
        self.checked = true;
        for charge in &mut self.charges {
            if let Some((_, Some(loaded))) = self.sets.iter().find(|(set, _)| *set == charge.set) {
                let seat = loaded.set.seat(charge.key, charge.overflow, &charge.limit, now);
                charge.verdict = charge.limit.check(&seat.balance, charge.cost, now);
                charge.left = seat.balance.tokens;
                if seat.is_overflow() && charge.verdict != Verdict::Admit {
                    self.contention.push(Contention::Overflow);
                }
            }
        }
        if self.charges.iter().any(|charge| charge.verdict != Verdict::Admit) {
            self.deny();
        }
    }

    /// Whether a charge is as the goal has it.
    fn is_settled(&self, charge: &LocalCharge) -> bool {
        match (self.goal, charge.state) {
            (Goal::Reserve, state) => state != State::Free,
            (Goal::Charge, state) => state == State::Spent || charge.verdict != Verdict::Admit,
            (Goal::Release, State::Held(_)) => false,
            (Goal::Release, state) => state == State::Spent || !charge.always || charge.verdict != Verdict::Admit,
        }
    }

    /// A set in which something is still to be done.
    fn unsettled(&self) -> Option<SetId> {
        if self.broken {
            return None;
        }
        self.charges.iter().find(|charge| !self.is_settled(charge)).map(|charge| charge.set)
    }

    /// The write that settles one set; `None` when a charge there is denied after all, which changes the goal.
    fn change(&mut self, id: SetId, mut set: SlotSet, version: Option<u32>, now: Micros) -> Option<Writing> {
        // The last set of a round that nothing follows needs no hold: with it the decision is made.
        let last = !self.tentative && self.charges.iter().all(|charge| charge.set == id || self.is_settled(charge));
        let (mut states, mut overflow) = (Vec::new(), false);
        for index in 0..self.charges.len() {
            let Some(charge) = self.charges.get(index).filter(|charge| charge.set == id && !self.is_settled(charge))
            else {
                continue;
            };
            let (cost, limit, always) = (charge.cost, charge.limit, charge.always);
            let state = match charge.state {
                State::Held(hold) if self.goal == Goal::Release => {
                    set.give_back(hold, cost, &limit, now);
                    // A charge that is made always is never held.
                    State::Free
                }
                State::Held(hold) => {
                    set.confirm(hold, cost, &limit, now);
                    State::Spent
                }
                State::Free | State::Spent => {
                    let seat = set.seat(charge.key, charge.overflow, &limit, now);
                    let verdict = limit.check(&seat.balance, cost, now);
                    // It is as good as done: should the write fail, it is looked at again.
                    let spent = if verdict == Verdict::Admit { cost.count() } else { 0 };
                    if let Some(charge) = self.charges.get_mut(index) {
                        charge.left = seat.balance.tokens.saturating_sub(spent);
                        charge.verdict = verdict;
                    }
                    if verdict != Verdict::Admit {
                        // Somebody else took the units since they were checked: start over with the new goal.
                        self.deny();
                        return None;
                    }
                    overflow |= seat.is_overflow();
                    if always || last {
                        set.spend(seat, cost, &limit, now);
                        State::Spent
                    } else {
                        State::Held(set.hold(seat, cost, &limit, now))
                    }
                }
            };
            states.push((index, state));
        }
        Some(Writing { set: id, bytes: set.encode(), version, states, overflow })
    }
}
