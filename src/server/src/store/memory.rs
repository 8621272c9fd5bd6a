//! Budgets in this process's memory.
//!
//! Buckets are spread over shards, each behind its own lock. A decision takes the locks of its charges in order, so
//! that several charges are made all or none. A bucket that is full again is forgotten, since absence means full.

use super::leases::{LeaseCounts, Outcome};
use super::remembered_as;
use crate::calendar;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::mem::take;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tollgate_core::admit::{self, Decided, Kept, Stored};
use tollgate_core::key::Digest;
use tollgate_core::lease::{LEASE_LIFE, LeaseRecord, Settled};
use tollgate_core::limit::State;
use tollgate_core::units::Micros;
use tollgate_core::wire::{Admitted, ChargeRequest, DecisionAnswer, DecisionRequest, Denial, Failure, REMEMBERED};

/// A table has a power of two of places, and moves when it is seven eighths full: with so many shards, the default
/// bound of a million buckets fills each shard's 16,384 places to three quarters.
const SHARDS: usize = 80;

/// How often one shard is searched for buckets that are full again; all of them are, in [`SHARDS`] times that.
const SWEEP_EVERY: Duration = Duration::from_millis(200);

/// A shard at its bound is searched at once, but not more often than this.
const SWEEP_AT_MOST: Micros = Micros::from_millis(100);

pub struct MemoryStore {
    started: Instant,
    /// The time since 1970 when it was started.
    began: Duration,
    names: RandomState,
    shards: Vec<Mutex<Shard>>,
    keys_per_shard: usize,
    /// What was admitted under an id, by the id's share.
    remembered: Vec<Mutex<Remembered>>,
    leases: LeaseCounts,
}

/// The decisions that were admitted lately, in two generations: each is as long as a decision is remembered at least.
#[derive(Default)]
struct Remembered {
    since: Micros,
    current: HashMap<Digest, Vec<Admitted>>,
    previous: HashMap<Digest, Vec<Admitted>>,
}

#[derive(Default)]
struct Shard {
    buckets: HashTable<Bucket>,
    /// What the lessees of its buckets have, and until when that is kept.
    leases: HashMap<(Name, Digest), (LeaseRecord, Micros)>,
    swept: Option<Micros>,
}

/// 112 bytes.
struct Bucket {
    name: Name,
    state: State,
    full_at: Micros,
}

/// A bucket's policy, key and group as 128 bits of a keyed hash, which is a third of their size. The key of the hash
/// is this process's secret, so no caller can choose what two buckets share; by chance, two in a million buckets share
/// it once in 10^26 times.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Name {
    shard: u64,
    place: u64,
}

impl MemoryStore {
    /// `keys` bounds how many buckets are kept; a new one beyond that fails.
    pub fn new(keys: usize, leases: LeaseCounts) -> Self {
        Self {
            started: Instant::now(),
            began: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
            names: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            keys_per_shard: keys.div_ceil(SHARDS),
            remembered: (0..SHARDS).map(|_| Mutex::default()).collect(),
            leases,
        }
    }

    /// The time since 1970, which windows are aligned to, by the process's monotonic clock: it never steps back.
    fn now(&self) -> Micros {
        micros(self.began).plus(micros(self.started.elapsed()))
    }

    pub fn admit(&self, decisions: &mut [DecisionRequest]) -> Vec<DecisionAnswer> {
        self.admit_at(decisions, self.now())
    }

    /// The same at a time that is passed in.
    pub fn admit_at(&self, decisions: &mut [DecisionRequest], now: Micros) -> Vec<DecisionAnswer> {
        calendar::resolve(decisions, now);
        let answer = |decision: &DecisionRequest| match remembered_as(decision) {
            None => self.decide(&decision.charges, now),
            Some(id) => self.decide_once(id, &decision.charges, now),
        };
        decisions.iter().map(answer).collect()
    }

    /// One decision that may have been made already. Its id stays locked meanwhile, so that of two at once only one is
    /// made.
    fn decide_once(&self, id: Digest, charges: &[ChargeRequest], now: Micros) -> DecisionAnswer {
        let mut remembered = lock(&self.remembered[id.share(SHARDS as u32) as usize]);
        remembered.turn(now);
        if let Some(charges) = remembered.current.get(&id).or_else(|| remembered.previous.get(&id)) {
            return DecisionAnswer::Admitted(charges.clone());
        }
        if remembered.current.len() >= self.keys_per_shard {
            return DecisionAnswer::Failed(Failure::StoreFull);
        }
        let answer = self.decide(charges, now);
        if let DecisionAnswer::Admitted(charges) = &answer {
            remembered.current.insert(id, charges.clone());
        }
        answer
    }

    /// One decision at a time that is passed in.
    fn decide(&self, charges: &[ChargeRequest], now: Micros) -> DecisionAnswer {
        let names: Vec<Name> = charges.iter().map(|charge| self.name(charge)).collect();
        let mut shards = self.lock(&names);
        let stored: Vec<Stored> =
            charges.iter().zip(&names).map(|(charge, name)| shards.of(*name).stored(*name, charge)).collect();
        // The key of one algorithm's budget was used with another: what is stored says nothing about it. Or nobody knows
        // which calendar window this is.
        let Some(decided) = admit::decide(charges, &stored, None, now) else {
            return DecisionAnswer::Failed(Failure::StoreError);
        };
        if !shards.make_room(&names, &stored, &decided.kept, self.keys_per_shard, now) {
            return DecisionAnswer::Failed(Failure::StoreFull);
        }
        self.count(&decided);
        for ((charge, name), kept) in charges.iter().zip(names).zip(decided.kept) {
            let shard = shards.of(name);
            if let Some((state, full_at)) = kept.state {
                shard.put(Bucket { name, state, full_at });
            }
            if let Some((call, record)) = charge.lease.zip(kept.record) {
                shard.leases.insert((name, call.lessee), (record, now.plus(LEASE_LIFE).plus(LEASE_LIFE)));
            }
        }
        decided.answer
    }

    fn count(&self, decided: &Decided) {
        for kept in &decided.kept {
            let outcome = match kept.settled {
                None => continue,
                Some(Settled::New { returned, .. }) => {
                    let (units, granted) = kept.record.map_or((0, 0), |record| (record.units(), record.granted));
                    Outcome::New { units, granted, returned }
                }
                Some(Settled::Again(_)) => Outcome::Again,
                Some(Settled::Late) => Outcome::Late,
            };
            self.leases.called(outcome);
        }
        if let DecisionAnswer::Denied(charges) = &decided.answer {
            for (charge, kept) in charges.iter().zip(&decided.kept) {
                if kept.is_lent && matches!(charge.denied, Some(Denial::WaitUs(_))) {
                    self.leases.denied();
                }
            }
        }
    }

    fn name(&self, charge: &ChargeRequest) -> Name {
        let half = |number: u8| self.names.hash_one((number, &charge.policy, charge.key, charge.group));
        Name { shard: half(0), place: half(1) }
    }

    /// Locks every shard of these buckets, always in the same order, so that no two decisions wait for each other.
    fn lock(&self, names: &[Name]) -> Locked<'_> {
        let mut indices: Vec<usize> = names.iter().map(|name| name.shard()).collect();
        indices.sort_unstable();
        indices.dedup();
        Locked(indices.into_iter().map(|index| (index, lock(&self.shards[index]))).collect())
    }

    /// Forgets full buckets, one shard after the other, for ever.
    pub async fn keep_small(&self) {
        let mut every = tokio::time::interval(SWEEP_EVERY);
        for shard in self.shards.iter().cycle() {
            every.tick().await;
            lock(shard).sweep(self.now());
            self.remembered.iter().for_each(|remembered| lock(remembered).turn(self.now()));
        }
    }
}

fn micros(span: Duration) -> Micros {
    Micros::new(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
}

/// A panic in another thread has not left anything half written: each is changed by single inserts.
fn lock<T>(shard: &Mutex<T>) -> MutexGuard<'_, T> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Remembered {
    /// Begins a new generation when the current one is old enough.
    fn turn(&mut self, now: Micros) {
        let age = now.since(self.since);
        if age >= REMEMBERED {
            self.previous = if age < REMEMBERED.plus(REMEMBERED) { take(&mut self.current) } else { HashMap::new() };
            self.current = HashMap::new();
            self.since = now;
        }
    }
}

impl Name {
    /// Which of [`SHARDS`].
    fn shard(self) -> usize {
        (self.shard % SHARDS as u64) as usize
    }
}

impl Shard {
    fn stored(&self, name: Name, charge: &ChargeRequest) -> Stored {
        let bucket = self.buckets.find(name.place, |bucket| bucket.name == name);
        let record = charge.lease.and_then(|call| self.leases.get(&(name, call.lessee)));
        Stored { state: bucket.map(|bucket| bucket.state.clone()), record: record.map(|(record, _)| *record) }
    }

    fn put(&mut self, bucket: Bucket) {
        let name = bucket.name;
        match self.buckets.entry(name.place, |bucket| bucket.name == name, |bucket| bucket.name.place) {
            Entry::Occupied(mut there) => *there.get_mut() = bucket,
            Entry::Vacant(place) => drop(place.insert(bucket)),
        }
    }

    fn sweep(&mut self, now: Micros) {
        self.buckets.retain(|bucket| bucket.full_at > now);
        self.leases.retain(|_, (_, until)| *until > now);
        if self.buckets.capacity() > 4 * self.buckets.len() + 64 {
            self.buckets.shrink_to(2 * self.buckets.len(), |bucket| bucket.name.place);
        }
        self.swept = Some(now);
    }

    /// Whether `new` more buckets fit, after a search for full ones if need be.
    fn make_room(&mut self, new: usize, most: usize, now: Micros) -> bool {
        let full = |shard: &Self| shard.buckets.len() + shard.leases.len() + new > most;
        if full(self) && self.swept.is_none_or(|swept| now.since(swept) >= SWEEP_AT_MOST) {
            self.sweep(now);
        }
        !full(self)
    }
}

/// The shards of one decision, with their indices.
struct Locked<'a>(Vec<(usize, MutexGuard<'a, Shard>)>);

impl Locked<'_> {
    /// The shard of a bucket that was locked for.
    fn of(&mut self, name: Name) -> &mut Shard {
        let place = self.0.iter().position(|(index, _)| *index == name.shard()).expect("the shard is locked");
        &mut self.0[place].1
    }

    fn make_room(&mut self, names: &[Name], stored: &[Stored], kept: &[Kept], most: usize, now: Micros) -> bool {
        let new: Vec<usize> = names
            .iter()
            .zip(stored.iter().zip(kept))
            .filter(|(_, (stored, kept))| {
                (stored.state.is_none() && kept.state.is_some()) || (stored.record.is_none() && kept.record.is_some())
            })
            .map(|(name, _)| name.shard())
            .collect();
        self.0.iter_mut().all(|(index, shard)| {
            let new = new.iter().filter(|shard| *shard == index).count();
            new == 0 || shard.make_room(new, most, now)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::key::HashKey;
    use tollgate_core::limit::{Limit, TokenBucket};
    use tollgate_core::units::{RefillRate, Tokens};
    use tollgate_core::wire::{Cost, Denied};

    fn charge(name: u64, cost: u64, capacity: u64) -> ChargeRequest {
        let hash_key = HashKey::new(b"test");
        let mut digest = hash_key.digest("key");
        digest.part(&name.to_le_bytes());
        let key = digest.finish();
        let limit = TokenBucket {
            capacity: Tokens::new(capacity).unwrap(),
            refill: RefillRate::new(1, Micros::from_secs(1)).unwrap(),
            keep: Micros::ZERO,
        };
        ChargeRequest {
            policy: "p".into(),
            key,
            group: key,
            cost: Some(Cost(Tokens::new(cost).unwrap())),
            limit: Limit::TokenBucket(limit),
            lease: None,
            learn: false,
        }
    }

    fn len(store: &MemoryStore) -> usize {
        store.shards.iter().map(|shard| lock(shard).buckets.len()).sum()
    }

    const NOW: Micros = Micros::from_secs(5);

    #[test]
    fn all_charges_are_made_or_none() {
        let store = MemoryStore::new(1000, LeaseCounts::new());
        let both = [charge(1, 1, 10), charge(2, 1, 2)];
        assert!(matches!(store.decide(&both, NOW), DecisionAnswer::Admitted(_)));
        assert!(matches!(store.decide(&both, NOW), DecisionAnswer::Admitted(_)));
        for _ in 0..3 {
            let DecisionAnswer::Denied(denied) = store.decide(&both, NOW) else { panic!("denied") };
            assert_eq!(denied[0], Denied { remaining: 8, denied: None, lease: None });
            assert_eq!(denied[1], Denied { remaining: 0, denied: Some(Denial::WaitUs(1_000_000)), lease: None });
        }
    }

    #[test]
    fn a_decision_that_is_sent_again_is_not_made_again() {
        let store = MemoryStore::new(1000, LeaseCounts::new());
        let id = |name: &str| DecisionRequest {
            id: Some(name.to_owned().try_into().unwrap()),
            charges: vec![charge(1, 4, 10), charge(2, 4, 10)],
        };
        let decide =
            |request: DecisionRequest, now| store.decide_once(remembered_as(&request).unwrap(), &request.charges, now);
        let first = decide(id("a"), NOW);
        for later in [0, 1, 9_999] {
            assert_eq!(decide(id("a"), NOW.plus(Micros::from_millis(later))), first);
        }
        // Another id, or the same id with other charges, is another decision.
        assert!(matches!(decide(id("b"), NOW), DecisionAnswer::Admitted(_)));
        let other = DecisionRequest { charges: vec![charge(1, 3, 10)], ..id("a") };
        for _ in 0..2 {
            let DecisionAnswer::Denied(denied) = decide(other.clone(), NOW) else { panic!("denied") };
            assert_eq!(denied[0].remaining, 2);
        }
        let later = NOW.plus(REMEMBERED).plus(REMEMBERED);
        let DecisionAnswer::Admitted(left) = decide(id("a"), later) else { panic!("admitted anew") };
        assert_eq!(left[0].remaining, 6);
        let ids = |store: &MemoryStore| -> usize {
            store.remembered.iter().map(lock).map(|ids| ids.current.len() + ids.previous.len()).sum()
        };
        assert!(ids(&store) >= 1);
        store.remembered.iter().for_each(|ids| lock(ids).turn(later.plus(REMEMBERED).plus(REMEMBERED)));
        assert_eq!(ids(&store), 0);
    }

    #[test]
    fn a_full_bucket_is_forgotten_and_no_other() {
        let store = MemoryStore::new(1000, LeaseCounts::new());
        for (name, cost) in [(1, 1), (2, 5)] {
            store.decide(&[charge(name, cost, 10)], NOW);
        }
        let later = NOW.plus(Micros::from_secs(1));
        store.shards.iter().for_each(|shard| lock(shard).sweep(later));
        assert_eq!(len(&store), 1);
        let DecisionAnswer::Admitted(left) = store.decide(&[charge(2, 1, 10)], later) else { panic!("admitted") };
        assert_eq!(left[0].remaining, 5);
    }

    #[test]
    fn a_full_bucket_is_kept_as_long_as_its_limit_says() {
        let later = NOW.plus(Micros::from_secs(60));
        for keep in [59, 61] {
            let store = MemoryStore::new(1000, LeaseCounts::new());
            let mut charge = charge(1, 1, 10);
            let Limit::TokenBucket(limit) = &mut charge.limit else { panic!("a token bucket") };
            limit.keep = Micros::from_secs(keep);
            store.decide(&[charge], NOW);
            store.shards.iter().for_each(|shard| lock(shard).sweep(later));
            assert_eq!(len(&store), usize::from(keep > 60));
        }
    }

    #[test]
    fn what_is_forgotten_gives_its_memory_back() {
        let store = MemoryStore::new(100_000, LeaseCounts::new());
        let bytes = || store.shards.iter().map(|shard| lock(shard).buckets.allocation_size()).sum::<usize>();
        let empty = bytes();
        for name in 0..50_000 {
            store.decide(&[charge(name, 1, 10)], NOW);
        }
        let full = bytes();
        assert!((50_000 * 65..50_000 * 220).contains(&(full - empty)), "{full} bytes");
        store.shards.iter().for_each(|shard| lock(shard).sweep(NOW));
        assert_eq!(bytes(), full, "nothing is full yet");
        let later = NOW.plus(Micros::from_secs(1));
        store.shards.iter().for_each(|shard| lock(shard).sweep(later));
        assert_eq!((len(&store), bytes()), (0, empty));
    }

    #[test]
    fn a_bucket_has_112_bytes() {
        assert_eq!(size_of::<Bucket>(), 112);
    }

    #[test]
    fn a_denial_keeps_nothing() {
        let store = MemoryStore::new(1000, LeaseCounts::new());
        for name in 0..500 {
            assert!(matches!(store.decide(&[charge(name, 11, 10)], NOW), DecisionAnswer::Denied(_)));
        }
        assert_eq!(len(&store), 0);
    }

    #[test]
    fn a_store_at_its_bound_fails_newcomers_and_keeps_the_others() {
        let store = MemoryStore::new(1000, LeaseCounts::new());
        let answers: Vec<DecisionAnswer> = (0..5000).map(|name| store.decide(&[charge(name, 5, 10)], NOW)).collect();
        assert!(len(&store) <= 1040, "{}", len(&store));
        let failed = answers.iter().filter(|answer| **answer == DecisionAnswer::Failed(Failure::StoreFull)).count();
        assert_eq!(failed + len(&store), 5000);
        let (name, _) = answers.iter().enumerate().find(|(_, a)| matches!(a, DecisionAnswer::Admitted(_))).unwrap();
        let again = store.decide(&[charge(name as u64, 6, 10)], NOW);
        assert!(matches!(again, DecisionAnswer::Denied(_)), "its bucket is still there");
        let later = NOW.plus(Micros::from_secs(6));
        assert!(matches!(store.decide(&[charge(9999, 5, 10)], later), DecisionAnswer::Admitted(_)), "room again");
    }
}
