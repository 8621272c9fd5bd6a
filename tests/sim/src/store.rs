//! The shared store, as one process with a clock of its own: buckets, the ids of what was admitted, and what it loses.

use crate::clock::Clock;
use crate::sabotage::Sabotage;
use std::collections::{BTreeMap, VecDeque};
use tollgate_core::admit::{self, Decided, Stored};
use tollgate_core::key::Digest;
use tollgate_core::lease::{LEASE_LIFE, LeaseRecord, Settled};
use tollgate_core::limit::outstanding::{self, generation};
use tollgate_core::limit::{Balance, Limit, State, TokenBucket};
use tollgate_core::units::Micros;
use tollgate_core::wire::{Admitted, ChargeRequest, DecisionAnswer, DecisionRequest, Denial, Failure, REMEMBERED};

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
    pub fn of(policy: &str, key: Digest, group: Digest) -> Self {
        Self { policy: policy.into(), key, group }
    }
}

#[derive(Clone, Debug)]
struct Bucket {
    state: State,
    full_at: Micros,
}

/// What is kept of a lessee, until when by the store's clock, and since when by the true one.
struct Lent {
    record: LeaseRecord,
    until: Micros,
    at: Micros,
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
    /// Since when it has lost nothing, as far as it knows.
    pub whole_since: Option<Micros>,
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
    /// None of a charge that is about a lease alone.
    pub cost: u64,
    pub before: Option<State>,
    pub after: Option<State>,
    /// What it said when it denied.
    pub denied: Option<Denial>,
    /// What it has lent to the lessee whose lease it has heard of.
    pub lent: Option<LeaseRecord>,
}

pub struct Store {
    pub clock: Clock,
    pub is_up: bool,
    buckets: BTreeMap<Name, Bucket>,
    /// What lessees have.
    records: BTreeMap<(Name, Digest), Lent>,
    /// In two generations.
    ids: [BTreeMap<String, Remembered>; 2],
    ids_since: Micros,
    /// Since when state may be lost, by its own clock: zero for never. And the true time when that was written. None when
    /// it is lost itself.
    marker: Option<(Micros, Micros)>,
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
            records: BTreeMap::new(),
            ids: [BTreeMap::new(), BTreeMap::new()],
            ids_since: Micros::ZERO,
            marker: Some((Micros::ZERO, Micros::ZERO)),
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
        let mut stored: Vec<Stored> = charges.iter().map(|charge| self.stored(charge)).collect();
        if self.sabotage == Some(Sabotage::DoubleRefill) {
            for balance in stored.iter_mut().filter_map(|stored| balance(stored.state.as_mut())) {
                balance.at = Micros::new(balance.at.count().saturating_sub(reading.since(balance.at).count()));
            }
        }
        if self.sabotage == Some(Sabotage::NoRefillBesideLeases) {
            let balances = stored.iter_mut().filter_map(|stored| balance(stored.state.as_mut()));
            for balance in balances.filter(|balance| balance.lent.is_any()) {
                let turn = outstanding::start_of(generation(balance.at, LEASE_LIFE) + 1, LEASE_LIFE);
                balance.at = balance.at.max(reading.min(Micros::new(turn.count() - 1)));
            }
        }
        // As the script does: the marker is looked at only where a bucket that learns is not there.
        let lacks = charges.iter().zip(&stored).any(|(charge, stored)| charge.learn && stored.state.is_none());
        let lost_since = lacks.then(|| self.lost_since(now)).flatten();
        let Some(mut decided) = admit::decide(charges, &stored, lost_since, reading) else {
            return DecisionAnswer::Failed(Failure::StoreError);
        };
        self.spoil(charges, &stored, &mut decided, reading);
        for (charge, kept) in charges.iter().zip(decided.kept) {
            if let Some((state, full_at)) = kept.state {
                self.put(charge, state, full_at, now);
            }
            if let Some((call, record)) = charge.lease.zip(kept.record) {
                let until = reading.plus(LEASE_LIFE).plus(LEASE_LIFE);
                self.records.insert((name(charge), call.lessee), Lent { record, until, at: now });
            }
        }
        decided.answer
    }

    /// Since when a bucket is empty of which nothing is stored, if ever. Where the marker is gone, so is the rest.
    pub fn lost_since(&mut self, now: Micros) -> Option<Micros> {
        let reading = self.clock.at(now);
        let (since, _) = *self.marker.get_or_insert((reading, now));
        (since > Micros::ZERO && self.sabotage != Some(Sabotage::NothingLearnt)).then_some(since)
    }

    /// Since when, by the true time, it has lost nothing, as far as it knows: buckets that learn were empty then.
    pub fn whole_since(&self) -> Option<Micros> {
        self.marker.map(|(_, at)| at)
    }

    /// What is wrong on purpose.
    fn spoil(&self, charges: &[ChargeRequest], stored: &[Stored], decided: &mut Decided, reading: Micros) {
        match (self.sabotage, &mut decided.answer) {
            (Some(Sabotage::ForgottenSecondCharge), DecisionAnswer::Admitted(_)) => {
                decided.kept.iter_mut().skip(1).for_each(|kept| kept.state = None);
            }
            (Some(Sabotage::ChargedDenial), DecisionAnswer::Denied(denied)) => {
                for (place, charge) in charges.iter().enumerate().filter(|(place, _)| denied[*place].denied.is_none()) {
                    let state = charge.limit.advance(stored[place].state.as_ref(), reading);
                    let (Some(mut state), Some(cost)) = (state, charge.cost) else { continue };
                    charge.limit.spend(&mut state, cost.0, reading);
                    let full_at = charge.limit.full_at(&state, reading);
                    decided.kept[place].state = Some((state, full_at));
                }
            }
            (Some(Sabotage::EarlyWait), DecisionAnswer::Denied(denied)) => {
                for denial in denied.iter_mut().filter_map(|denied| denied.denied.as_mut()) {
                    if let Denial::WaitUs(wait) = denial {
                        *wait -= 1;
                    }
                }
            }
            (Some(Sabotage::NoLedger), _) => {
                for (state, _) in decided.kept.iter_mut().filter_map(|kept| kept.state.as_mut()) {
                    balance(Some(state)).into_iter().for_each(|balance| balance.lent = outstanding::Lent::default());
                }
            }
            (Some(Sabotage::NeverForgotten), _) => {
                for ((charge, stored), kept) in charges.iter().zip(stored).zip(&mut decided.kept) {
                    let (Some((state, full_at)), Limit::TokenBucket(limit)) = (kept.state.as_mut(), charge.limit)
                    else {
                        continue;
                    };
                    let (before, after) = (balance(stored.state.clone().as_mut()).copied(), balance(Some(state)));
                    if let (Some(before), Some(after)) = (before, after) {
                        let turned = generation(after.at, LEASE_LIFE) - generation(before.at, LEASE_LIFE);
                        let lent = before.lent.units;
                        after.lent.units.current += [0, lent.previous, lent.total()][turned.min(2) as usize];
                        let room = limit.capacity.count().saturating_sub(after.lent.units.total());
                        after.tokens = after.tokens.min(room);
                        if after.lent.units.total() > 0 {
                            *full_at = full_at.plus(Micros::from_secs(3_600));
                        }
                    }
                }
            }
            (Some(Sabotage::ReportsCountTwice), _) => {
                for (stored, kept) in stored.iter().zip(&mut decided.kept) {
                    let Some((record, Settled::New { returned, .. })) = stored.record.zip(kept.settled) else {
                        continue;
                    };
                    if let Some(balance) = balance(kept.state.as_mut().map(|(state, _)| state)) {
                        balance.lent.units.current = balance.lent.units.current.saturating_sub(record.units());
                        balance.tokens += returned;
                    }
                }
            }
            _ => {}
        }
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
        self.records.retain(|_, lent| lent.until > reading);
        self.writes.retain(|(at, ..)| now.since(*at) < REPLICATION);
        (full, reading)
    }

    /// Everything is gone.
    pub fn flush(&mut self) {
        self.buckets.clear();
        self.records.clear();
        self.ids = Default::default();
        self.marker = None;
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
        self.records.retain(|_, lent| lent.at < since);
        self.marker = self.marker.filter(|(_, at)| *at < since);
        self.ids.iter_mut().for_each(|ids| ids.retain(|_, (at, ..)| *at < since));
    }

    /// What may be spent of what it counts as lent, of the buckets that it has: the units, and what is earned by rates.
    pub fn lent(&self, now: Micros) -> BTreeMap<Name, u64> {
        let reading = self.clock.at(now);
        let of = |bucket: &Bucket| {
            let State::TokenBucket(Balance { at, lent, period, .. }) = bucket.state else { return 0 };
            let turns = generation(reading, LEASE_LIFE).saturating_sub(generation(at, LEASE_LIFE));
            let lent = (0..turns.min(2)).fold(lent, |lent, _| lent.turned());
            lent.units.total() + (lent.rate.total() * LEASE_LIFE.count()).div_ceil(period)
        };
        self.buckets.iter().map(|(name, bucket)| (name.clone(), of(bucket))).collect()
    }

    /// A bucket of this limit as it is now.
    pub fn standing(&self, name: &Name, limit: &TokenBucket, learns: bool, now: Micros) -> Option<Balance> {
        let reading = self.clock.at(now);
        let since = self.marker.map_or(reading, |(since, _)| since);
        let lost = (learns && since > Micros::ZERO).then(|| State::TokenBucket(limit.lost(since)));
        let state = Limit::TokenBucket(*limit).advance(self.state(name).or(lost).as_ref(), reading);
        if let Some(State::TokenBucket(there)) = state { Some(there) } else { None }
    }

    pub fn has(&self, name: &Name) -> bool {
        self.buckets.contains_key(name)
    }

    /// How many buckets, lessees and ids are kept.
    pub fn len(&self) -> usize {
        self.buckets.len() + self.records.len() + self.ids.iter().map(BTreeMap::len).sum::<usize>()
    }

    fn state(&self, name: &Name) -> Option<State> {
        self.buckets.get(name).map(|bucket| bucket.state.clone())
    }

    fn stored(&self, charge: &ChargeRequest) -> Stored {
        let name = name(charge);
        let record = charge.lease.and_then(|call| self.records.get(&(name.clone(), call.lessee)));
        Stored { state: self.state(&name), record: record.map(|lent| lent.record) }
    }

    fn put(&mut self, charge: &ChargeRequest, state: State, full_at: Micros, now: Micros) {
        let name = name(charge);
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
            let lent = charge.lease.and_then(|call| self.records.get(&(name.clone(), call.lessee)));
            let lent = lent.filter(|lent| lent.at == now).map(|lent| lent.record);
            Charged {
                name,
                limit: charge.limit,
                cost: charge.cost.map_or(0, |cost| cost.0.count()),
                before,
                after,
                denied,
                lent,
            }
        });
        let charges = charges.collect();
        let (reading, gained, whole_since) = (self.clock.at(now), self.clock.gained(now), self.whole_since());
        Record { made, at: now, reading, gained, whole_since, charges }
    }
}

fn balance(state: Option<&mut State>) -> Option<&mut Balance> {
    if let Some(State::TokenBucket(balance)) = state { Some(balance) } else { None }
}

fn name(charge: &ChargeRequest) -> Name {
    Name { policy: charge.policy.clone(), key: charge.key, group: charge.group }
}
