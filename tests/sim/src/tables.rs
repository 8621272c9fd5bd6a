//! A proxy's shared data, as the filter uses it: local buckets and breakers, by compare-and-set.

use crate::sabotage::Sabotage;
use std::collections::BTreeMap;
use tollgate_core::breaker::BreakerState;
use tollgate_core::decision::{SetId, Table};
use tollgate_core::key::Digest;
use tollgate_core::lease::LeaseSet;
use tollgate_core::limit::TokenBucket;
use tollgate_core::policy::Sharing;
use tollgate_core::slots::{FORMAT, SETS, SlotSet, WAYS};
use tollgate_core::units::Micros;

/// The most bytes of a set: the buckets of single keys, and as many overflow buckets as two configurations can have.
pub const MAX_SET: usize = (WAYS + 128) * FORMAT;

/// Which table's which set: those of a worker have its number.
type Place = (Table, Option<usize>, u32);

/// A value and its version.
type Stored = (Vec<u8>, u32);

#[derive(Default)]
pub struct Tables {
    sets: BTreeMap<Place, Stored>,
    /// That of calls with requests, and that of the others.
    breakers: [Option<Stored>; 2],
    /// The most bytes that a set has ever had.
    pub largest: usize,
    sabotage: Option<Sabotage>,
}

impl Tables {
    pub fn new(sabotage: Option<Sabotage>) -> Self {
        Self { sabotage, ..Self::default() }
    }

    pub fn read(&self, worker: usize, set: SetId) -> Option<Stored> {
        self.sets.get(&place(worker, set)).cloned()
    }

    /// Writes a set if it is still at `version`.
    pub fn write(&mut self, worker: usize, set: SetId, bytes: &[u8], version: Option<u32>) -> bool {
        let place = place(worker, set);
        let there = self.sets.get(&place).map(|(_, version)| *version);
        if there != version {
            return false;
        }
        let next = there.unwrap_or(0) + 1;
        if self.sabotage == Some(Sabotage::LostLocalWrite) && next.is_multiple_of(7) {
            return true;
        }
        self.largest = self.largest.max(bytes.len());
        self.sets.insert(place, (bytes.to_vec(), next));
        true
    }

    /// A worker has died, and with it what was its own.
    pub fn forget(&mut self, worker: usize) {
        self.sets.retain(|(table, whose, _), _| *table == Table::Buckets || *whose != Some(worker));
    }

    pub fn breaker(&self, behind: bool) -> (BreakerState, Option<u32>) {
        match &self.breakers[usize::from(behind)] {
            Some((bytes, version)) => (BreakerState::decode(bytes), Some(*version)),
            None => (BreakerState::default(), None),
        }
    }

    pub fn write_breaker(&mut self, behind: bool, state: &BreakerState, version: Option<u32>) -> bool {
        let place = &mut self.breakers[usize::from(behind)];
        let there = place.as_ref().map(|(_, version)| *version);
        if there != version {
            return false;
        }
        *place = Some((state.encode(), there.unwrap_or(0) + 1));
        true
    }

    /// Whether a lease of this key is held, or asked for, by a worker or by all together.
    pub fn is_lent(&self, worker: Option<usize>, key: Digest, limit: &TokenBucket, now: Micros) -> bool {
        let set = self.sets.get(&(Table::Leases, worker, key.share(SETS)));
        set.and_then(|(bytes, _)| LeaseSet::decode(bytes).ok()).is_some_and(|set| set.is_lent(key, limit, now))
    }

    /// How many bytes of local buckets are still of use.
    pub fn kept(&self, now: Micros) -> usize {
        let buckets = self.sets.iter().filter(|((table, ..), _)| *table == Table::Buckets);
        let sets = buckets.filter_map(|(_, (bytes, _))| SlotSet::decode(bytes, now).ok());
        sets.map(|set| set.encode().len()).sum()
    }
}

fn place(worker: usize, set: SetId) -> Place {
    let worker = match set.sharing {
        Sharing::Proxy => None,
        Sharing::Worker => Some(worker),
    };
    (set.table, worker, set.index)
}
