//! Budgets in this process's memory.
//!
//! Buckets are spread over shards, each behind its own lock. A decision takes the locks of its charges in order, so
//! that several charges are made all or none. A bucket that is full again is forgotten, since absence means full.

use super::remembered_as;
use crate::calendar;
use std::collections::HashMap;
use std::mem::take;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tollgate_core::key::Digest;
use tollgate_core::limit::{Limit, State, Verdict};
use tollgate_core::units::Micros;
use tollgate_core::wire::{
    Admitted, ChargeRequest, DecisionAnswer, DecisionRequest, Denial, Denied, Failure, REMEMBERED,
};

const SHARDS: u32 = 64;

/// How often one shard is searched for buckets that are full again; all of them are, in [`SHARDS`] times that.
const SWEEP_EVERY: Duration = Duration::from_millis(250);

/// A shard at its bound is searched at once, but not more often than this.
const SWEEP_AT_MOST: Micros = Micros::from_millis(100);

pub struct MemoryStore {
    started: Instant,
    /// The time since 1970 when it was started.
    began: Duration,
    shards: Vec<Mutex<Shard>>,
    keys_per_shard: usize,
    /// What was admitted under an id, by the id's share.
    remembered: Vec<Mutex<Remembered>>,
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
    buckets: HashMap<Key, Bucket>,
    swept: Option<Micros>,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    policy: String,
    key: Digest,
    group: Digest,
}

struct Bucket {
    state: State,
    full_at: Micros,
}

impl MemoryStore {
    /// `keys` bounds how many buckets are kept; a new one beyond that fails.
    pub fn new(keys: usize) -> Self {
        Self {
            started: Instant::now(),
            began: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            keys_per_shard: keys.div_ceil(SHARDS as usize),
            remembered: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// The time since 1970, which windows are aligned to, by the process's monotonic clock: it never steps back.
    fn now(&self) -> Micros {
        micros(self.began).plus(micros(self.started.elapsed()))
    }

    pub fn admit(&self, mut decisions: Vec<DecisionRequest>) -> Vec<DecisionAnswer> {
        let now = self.now();
        calendar::resolve(&mut decisions, now);
        let answer = |decision: DecisionRequest| match remembered_as(&decision) {
            None => self.decide(decision.charges, now),
            Some(id) => self.decide_once(id, decision.charges, now),
        };
        decisions.into_iter().map(answer).collect()
    }

    /// One decision that may have been made already. Its id stays locked meanwhile, so that of two at once only one is
    /// made.
    fn decide_once(&self, id: Digest, charges: Vec<ChargeRequest>, now: Micros) -> DecisionAnswer {
        let mut remembered = lock(&self.remembered[id.share(SHARDS) as usize]);
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
    fn decide(&self, charges: Vec<ChargeRequest>, now: Micros) -> DecisionAnswer {
        let mut shards = self.lock(&charges);
        let mut refilled = Vec::with_capacity(charges.len());
        for charge in charges {
            let (cost, limit) = (charge.cost.0, charge.limit);
            let shard = charge.key.share(SHARDS);
            let key = Key { policy: charge.policy, key: charge.key, group: charge.group };
            let stored = shards.get(shard).and_then(|shard| shard.buckets.get(&key)).map(|bucket| &bucket.state);
            // The key of one algorithm's budget was used with another: what is stored says nothing about it. Or nobody
            // knows which calendar window this is.
            let Some(state) = limit.advance(stored, now) else {
                return DecisionAnswer::Failed(Failure::StoreError);
            };
            let verdict = limit.check(&state, cost, now);
            let mended = stored.is_some_and(|stored| Limit::mended(stored, &state));
            refilled.push((shard, key, limit, cost, state, verdict, mended));
        }
        let admitted = refilled.iter().all(|(.., verdict, _)| *verdict == Verdict::Admit);
        if admitted {
            let mut new = HashMap::<u32, usize>::new();
            for (shard, key, ..) in &refilled {
                let is_new = shards.get(*shard).is_some_and(|shard| !shard.buckets.contains_key(key));
                *new.entry(*shard).or_default() += usize::from(is_new);
            }
            if new.iter().any(|(index, new)| *new > 0 && !shards.make_room(*index, *new, self.keys_per_shard, now)) {
                return DecisionAnswer::Failed(Failure::StoreFull);
            }
        }
        let mut spent = Vec::new();
        let mut denied = Vec::new();
        for (shard, key, limit, cost, mut state, verdict, mended) in refilled {
            if admitted {
                limit.spend(&mut state, cost, now);
                spent.push(Admitted { remaining: limit.remaining(&state, now) });
            } else {
                let denial = match verdict {
                    Verdict::Admit => None,
                    Verdict::Wait(wait) => Some(Denial::WaitUs(wait.count())),
                    Verdict::Never => Some(Denial::OverCapacity),
                };
                denied.push(Denied { remaining: limit.remaining(&state, now), denied: denial });
            }
            if let Some(shard) = shards.get_mut(shard).filter(|_| admitted || mended) {
                let full_at = limit.full_at(&state, now);
                shard.buckets.insert(key, Bucket { state, full_at });
            }
        }
        if admitted { DecisionAnswer::Admitted(spent) } else { DecisionAnswer::Denied(denied) }
    }

    /// Locks every shard of these charges, always in the same order, so that no two decisions wait for each other.
    fn lock(&self, charges: &[ChargeRequest]) -> Locked<'_> {
        let mut indices: Vec<u32> = charges.iter().map(|charge| charge.key.share(SHARDS)).collect();
        indices.sort_unstable();
        indices.dedup();
        Locked(indices.into_iter().map(|index| (index, lock(&self.shards[index as usize]))).collect())
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

impl Shard {
    fn sweep(&mut self, now: Micros) {
        self.buckets.retain(|_, bucket| bucket.full_at > now);
        if self.buckets.capacity() > 4 * self.buckets.len() + 1024 {
            self.buckets.shrink_to(2 * self.buckets.len());
        }
        self.swept = Some(now);
    }
}

struct Locked<'a>(Vec<(u32, MutexGuard<'a, Shard>)>);

impl Locked<'_> {
    fn get(&self, index: u32) -> Option<&Shard> {
        self.0.iter().find(|(known, _)| *known == index).map(|(_, shard)| &**shard)
    }

    fn get_mut(&mut self, index: u32) -> Option<&mut Shard> {
        self.0.iter_mut().find(|(known, _)| *known == index).map(|(_, shard)| &mut **shard)
    }

    /// Whether `new` more buckets fit, after a search for full ones if need be.
    fn make_room(&mut self, index: u32, new: usize, most: usize, now: Micros) -> bool {
        let Some(shard) = self.get_mut(index) else { return false };
        let full = |shard: &Shard| shard.buckets.len() + new > most;
        if full(shard) && shard.swept.is_none_or(|swept| now.since(swept) >= SWEEP_AT_MOST) {
            shard.sweep(now);
        }
        !full(shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::key::HashKey;
    use tollgate_core::limit::TokenBucket;
    use tollgate_core::units::{RefillRate, Tokens};
    use tollgate_core::wire::Cost;

    fn charge(name: u64, cost: u64, capacity: u64) -> ChargeRequest {
        let mut digest = HashKey::new(b"test").digest("key");
        digest.part(&name.to_le_bytes());
        let key = digest.finish();
        let limit = TokenBucket {
            capacity: Tokens::new(capacity).unwrap(),
            refill: RefillRate::new(1, Micros::from_secs(1)).unwrap(),
        };
        ChargeRequest {
            policy: "p".into(),
            key,
            group: key,
            cost: Cost(Tokens::new(cost).unwrap()),
            limit: Limit::TokenBucket(limit),
        }
    }

    fn len(store: &MemoryStore) -> usize {
        store.shards.iter().map(|shard| lock(shard).buckets.len()).sum()
    }

    const NOW: Micros = Micros::from_secs(5);

    #[test]
    fn all_charges_are_made_or_none() {
        let store = MemoryStore::new(1000);
        let both = || vec![charge(1, 1, 10), charge(2, 1, 2)];
        assert!(matches!(store.decide(both(), NOW), DecisionAnswer::Admitted(_)));
        assert!(matches!(store.decide(both(), NOW), DecisionAnswer::Admitted(_)));
        for _ in 0..3 {
            let DecisionAnswer::Denied(denied) = store.decide(both(), NOW) else { panic!("denied") };
            assert_eq!(denied[0], Denied { remaining: 8, denied: None });
            assert_eq!(denied[1], Denied { remaining: 0, denied: Some(Denial::WaitUs(1_000_000)) });
        }
    }

    #[test]
    fn a_decision_that_is_sent_again_is_not_made_again() {
        let store = MemoryStore::new(1000);
        let id = |name: &str| DecisionRequest {
            id: Some(name.to_owned().try_into().unwrap()),
            charges: vec![charge(1, 4, 10), charge(2, 4, 10)],
        };
        let decide =
            |request: DecisionRequest, now| store.decide_once(remembered_as(&request).unwrap(), request.charges, now);
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
        let store = MemoryStore::new(1000);
        for (name, cost) in [(1, 1), (2, 5)] {
            store.decide(vec![charge(name, cost, 10)], NOW);
        }
        let later = NOW.plus(Micros::from_secs(1));
        store.shards.iter().for_each(|shard| lock(shard).sweep(later));
        assert_eq!(len(&store), 1);
        let DecisionAnswer::Admitted(left) = store.decide(vec![charge(2, 1, 10)], later) else { panic!("admitted") };
        assert_eq!(left[0].remaining, 5);
    }

    #[test]
    fn a_denial_keeps_nothing() {
        let store = MemoryStore::new(1000);
        for name in 0..500 {
            assert!(matches!(store.decide(vec![charge(name, 11, 10)], NOW), DecisionAnswer::Denied(_)));
        }
        assert_eq!(len(&store), 0);
    }

    #[test]
    fn a_store_at_its_bound_fails_newcomers_and_keeps_the_others() {
        let store = MemoryStore::new(1000);
        let answers: Vec<DecisionAnswer> = (0..5000).map(|name| store.decide(vec![charge(name, 5, 10)], NOW)).collect();
        assert!(len(&store) <= 1024);
        let failed = answers.iter().filter(|answer| **answer == DecisionAnswer::Failed(Failure::StoreFull)).count();
        assert_eq!(failed + len(&store), 5000);
        let (name, _) = answers.iter().enumerate().find(|(_, a)| matches!(a, DecisionAnswer::Admitted(_))).unwrap();
        let again = store.decide(vec![charge(name as u64, 6, 10)], NOW);
        assert!(matches!(again, DecisionAnswer::Denied(_)), "its bucket is still there");
        let later = NOW.plus(Micros::from_secs(6));
        assert!(matches!(store.decide(vec![charge(9999, 5, 10)], later), DecisionAnswer::Admitted(_)), "room again");
    }
}
