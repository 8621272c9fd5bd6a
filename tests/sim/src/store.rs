//! The shared store, as one process with a clock of its own: buckets, the ids of what was admitted, and what it loses.

use crate::clock::Clock;
use crate::sabotage::Sabotage;
use std::collections::{BTreeMap, VecDeque};
use tollgate_core::key::Digest;
use tollgate_core::limit::{Limit, State, Verdict};
use tollgate_core::units::{Micros, Tokens};
use tollgate_core::wire::{
    Admitted, ChargeRequest, DecisionAnswer, DecisionRequest, Denial, Denied, Failure, REMEMBERED,
};

/// For how long writes are kept that a failover may lose.
const REPLICATION: Micros = Micros::from_secs(10);

/// Names a bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub policy: String,
    pub key: Digest,
    group: Digest,
}

impl Name {
    #[cfg(test)]
    pub fn of(policy: &str, key: Digest) -> Self {
        Self { policy: policy.into(), key, group: key }
    }
}

#[derive(Clone, Debug)]
struct Bucket {
    state: State,
    full_at: Micros,
}

/// What was admitted under an id: when by the true time, what was asked, and what was left.
type Remembered = (Micros, DecisionRequest, Vec<Admitted>);

/// What one decision did, for those who check it.
pub struct Record {
    pub made: Made,
    /// The true time.
    pub at: Micros,
    pub reading: Micros,
    pub gained: Micros,
    pub charges: Vec<Charged>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    Admitted,
    Denied,
    /// It was admitted before, under the same id.
    Again,
    Failed,
}

pub struct Charged {
    pub name: Name,
    pub limit: Limit,
    pub cost: Tokens,
    pub before: Option<State>,
    pub after: Option<State>,
    /// What it said when it denied.
    pub denied: Option<Denial>,
}

pub struct Store {
    pub clock: Clock,
    pub is_up: bool,
    buckets: BTreeMap<Name, Bucket>,
    /// In two generations.
    ids: [BTreeMap<String, Remembered>; 2],
    ids_since: Micros,
    /// What was there before each of the last writes, with its true time.
    writes: VecDeque<(Micros, Name, Option<Bucket>)>,
    sabotage: Option<Sabotage>,
}

impl Store {
    pub const fn new(clock: Clock, sabotage: Option<Sabotage>) -> Self {
        Self {
            clock,
            is_up: true,
            buckets: BTreeMap::new(),
            ids: [BTreeMap::new(), BTreeMap::new()],
            ids_since: Micros::ZERO,
            writes: VecDeque::new(),
            sabotage,
        }
    }

    /// Makes a decision, all or nothing. `now` is the true time, which only its clock and the checks may know.
    pub fn decide(&mut self, request: &DecisionRequest, now: Micros) -> (DecisionAnswer, Record) {
        let reading = self.clock.at(now);
        self.turn(reading);
        let id = request.id.clone().map(String::from);
        let known = id.as_ref().and_then(|id| self.ids.iter().find_map(|ids| ids.get(id)));
        if let Some((_, asked, left)) = known
            && asked.charges == request.charges
            && self.sabotage != Some(Sabotage::ForgottenIds)
        {
            let answer = DecisionAnswer::Admitted(left.clone());
            return (answer, self.record(Made::Again, &request.charges, &[], &[], now));
        }
        let before: Vec<Option<State>> = request.charges.iter().map(|charge| self.state(&name(charge))).collect();
        let answer = self.charge(&request.charges, reading, now);
        let made = match &answer {
            DecisionAnswer::Admitted(left) => {
                if let Some(id) = id {
                    self.ids[0].insert(id, (now, request.clone(), left.clone()));
                }
                Made::Admitted
            }
            DecisionAnswer::Denied(_) => Made::Denied,
            DecisionAnswer::Failed(_) => Made::Failed,
        };
        let denied: Vec<Option<Denial>> = match &answer {
            DecisionAnswer::Denied(denied) => denied.iter().map(|one| one.denied).collect(),
            DecisionAnswer::Admitted(_) | DecisionAnswer::Failed(_) => Vec::new(),
        };
        (answer, self.record(made, &request.charges, &before, &denied, now))
    }

    fn charge(&mut self, charges: &[ChargeRequest], reading: Micros, now: Micros) -> DecisionAnswer {
        let mut steps: Vec<(&ChargeRequest, State, Verdict, bool)> = Vec::new();
        for charge in charges {
            let mut stored = self.state(&name(charge));
            if let (Some(Sabotage::DoubleRefill), Some(State::TokenBucket(balance))) = (self.sabotage, &mut stored) {
                balance.at = Micros::new(balance.at.count().saturating_sub(reading.since(balance.at).count()));
            }
            let Some(state) = charge.limit.advance(stored.as_ref(), reading) else {
                return DecisionAnswer::Failed(Failure::StoreError);
            };
            let mended = stored.is_some_and(|stored| Limit::mended(&stored, &state));
            let verdict = charge.limit.check(&state, charge.cost.0, reading);
            steps.push((charge, state, verdict, mended));
        }
        if steps.iter().any(|(_, _, verdict, _)| *verdict != Verdict::Admit) {
            let spends = self.sabotage == Some(Sabotage::ChargedDenial);
            let early = u64::from(self.sabotage == Some(Sabotage::EarlyWait));
            let denied = steps.into_iter().map(|(charge, mut state, verdict, mended)| {
                let remaining = charge.limit.remaining(&state, reading);
                let spends = spends && verdict == Verdict::Admit;
                if spends {
                    charge.limit.spend(&mut state, charge.cost.0, reading);
                }
                if mended || spends {
                    self.put(charge, state, reading, now);
                }
                let denied = match verdict {
                    Verdict::Admit => None,
                    Verdict::Wait(wait) => Some(Denial::WaitUs(wait.count() - early)),
                    Verdict::Never => Some(Denial::OverCapacity),
                };
                Denied { remaining, denied }
            });
            return DecisionAnswer::Denied(denied.collect());
        }
        let admitted = steps.into_iter().enumerate().map(|(number, (charge, mut state, ..))| {
            if number == 0 || self.sabotage != Some(Sabotage::ForgottenSecondCharge) {
                charge.limit.spend(&mut state, charge.cost.0, reading);
            }
            let remaining = charge.limit.remaining(&state, reading);
            self.put(charge, state, reading, now);
            Admitted { remaining }
        });
        DecisionAnswer::Admitted(admitted.collect())
    }

    /// Forgets buckets that are full. Gives their names, and what its clock shows.
    pub fn sweep(&mut self, now: Micros) -> (Vec<Name>, Micros) {
        let reading = self.clock.at(now);
        self.turn(reading);
        let early = if self.sabotage == Some(Sabotage::EarlySweep) { Micros::from_millis(50) } else { Micros::ZERO };
        let is_full = |bucket: &Bucket| bucket.full_at <= reading.plus(early);
        let full: Vec<Name> =
            self.buckets.iter().filter(|(_, bucket)| is_full(bucket)).map(|(name, _)| name.clone()).collect();
        self.buckets.retain(|_, bucket| !is_full(bucket));
        self.writes.retain(|(at, ..)| now.since(*at) < REPLICATION);
        (full, reading)
    }

    /// Everything is gone.
    pub fn flush(&mut self) {
        self.buckets.clear();
        self.ids = Default::default();
        self.writes.clear();
    }

    /// What was written since then is undone.
    pub fn lose_since(&mut self, since: Micros) {
        while self.writes.back().is_some_and(|(at, ..)| *at >= since) {
            let Some((_, name, before)) = self.writes.pop_back() else { break };
            match before {
                Some(bucket) => self.buckets.insert(name, bucket),
                None => self.buckets.remove(&name),
            };
        }
        self.ids.iter_mut().for_each(|ids| ids.retain(|_, (at, ..)| *at < since));
    }

    /// How many buckets and ids are kept.
    pub fn len(&self) -> usize {
        self.buckets.len() + self.ids.iter().map(BTreeMap::len).sum::<usize>()
    }

    fn state(&self, name: &Name) -> Option<State> {
        self.buckets.get(name).map(|bucket| bucket.state.clone())
    }

    fn put(&mut self, charge: &ChargeRequest, state: State, reading: Micros, now: Micros) {
        let (name, full_at) = (name(charge), charge.limit.full_at(&state, reading));
        let before = self.buckets.insert(name.clone(), Bucket { state, full_at });
        self.writes.push_back((now, name, before));
    }

    /// Ids are remembered for one generation at least, and two at the most.
    fn turn(&mut self, reading: Micros) {
        // After a step back they are remembered for longer.
        self.ids_since = self.ids_since.min(reading);
        let age = reading.since(self.ids_since);
        if age >= REMEMBERED {
            let current = std::mem::take(&mut self.ids[0]);
            self.ids[1] = if age < REMEMBERED.plus(REMEMBERED) { current } else { BTreeMap::new() };
            self.ids_since = reading;
        }
    }

    fn record(
        &self,
        made: Made,
        charges: &[ChargeRequest],
        before: &[Option<State>],
        denied: &[Option<Denial>],
        now: Micros,
    ) -> Record {
        let charges = charges.iter().enumerate().map(|(place, charge)| {
            let name = name(charge);
            let after = self.state(&name);
            let before = before.get(place).cloned().unwrap_or_else(|| after.clone());
            let denied = denied.get(place).copied().flatten();
            Charged { name, limit: charge.limit, cost: charge.cost.0, before, after, denied }
        });
        let charges = charges.collect();
        Record { made, at: now, reading: self.clock.at(now), gained: self.clock.gained(now), charges }
    }
}

fn name(charge: &ChargeRequest) -> Name {
    Name { policy: charge.policy.clone(), key: charge.key, group: charge.group }
}
