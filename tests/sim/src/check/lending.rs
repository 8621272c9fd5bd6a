//! Shared budgets that are lent, or that begin empty where the store has lost them.
//!
//! Units of a lease are spent where the store does not see it, so the envelope is all that can be told exactly; of the
//! store's own state only that it has room for what it has lent. Where part of the store's count of what is lent is lost,
//! the envelope is wider by what leases may still spend, for as long as they may.

use super::reference::{Reference, larger};
use super::{Found, Invariant};
use crate::store::{Charged, Made, Name, Record, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tollgate_core::lease::LEASE_LIFE;
use tollgate_core::limit::{Limit, State, TokenBucket};
use tollgate_core::policy::{Allowance, PolicySet, Scope};
use tollgate_core::units::{Micros, Tokens};

/// How long units may be spent of a lease that was asked for before a moment, by any clock: a lease's use, and then as
/// long as it takes to end it. Who may wait for longer takes nothing of it.
pub const STILL_SPENT: Micros = LEASE_LIFE;

/// How long a limit may be used after the last proxy has got another: those who wait end, and its leases with them.
const STILL_USED: Micros = Micros::new(LEASE_LIFE.count() + 200_000);

/// What became of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It has nothing any more.
    Everything,
    /// It is as it was then, by the true time.
    Since(Micros),
    /// It has everything, but its clock was set by so much.
    Step(i64),
}

pub struct Lending {
    /// The limits by their configurations, a plan's too, of the policies that lend or learn in any.
    limits: BTreeMap<String, Vec<Vec<TokenBucket>>>,
    /// The policies that learn in all configurations.
    learning: BTreeSet<String>,
    /// Until when each proxy uses which configurations.
    uses: Vec<BTreeMap<usize, Micros>>,
    envelopes: BTreeMap<Name, Envelope>,
    /// Buckets that the store has.
    kept: BTreeSet<Name>,
    /// When everything was lost last.
    flushed_at: Option<Micros>,
}

/// What may be spent of one budget, by the time that the store's clock has gone forward.
struct Envelope {
    reference: Reference,
    limit: TokenBucket,
    /// When the bucket was written last: what comes back since then comes at the rate of whoever charges next.
    written: Micros,
    /// By which limit, where that is known: when it is full by that, the store forgets it.
    written_by: Option<TokenBucket>,
    /// So many units more there may be ...
    extra: u64,
    /// ... until then, by the true time.
    until: Micros,
}

impl Lending {
    pub fn new(sets: &[Rc<PolicySet>], proxies: usize) -> Self {
        let limits_of = |set: &PolicySet| {
            set.policies()
                .iter()
                .filter_map(|policy| {
                    let limits = policy.allowances().filter_map(Allowance::limit);
                    let buckets: Vec<TokenBucket> = limits
                        .filter_map(|limit| match limit {
                            Limit::TokenBucket(limit) => Some(limit),
                            _ => None,
                        })
                        .collect();
                    let learns = matches!(policy.scope, Scope::Global { learn: true, .. });
                    (!buckets.is_empty()).then(|| (policy.name.clone(), buckets, learns, policy.is_leased()))
                })
                .collect::<Vec<_>>()
        };
        let all: Vec<_> = sets.iter().map(|set| limits_of(set)).collect();
        let mut limits: BTreeMap<String, Vec<Vec<TokenBucket>>> = BTreeMap::new();
        for (name, ..) in all.iter().flatten().filter(|(.., learns, is_leased)| *learns || *is_leased) {
            let its = all.iter().flatten().filter(|(other, ..)| other == name).map(|(_, buckets, ..)| buckets.clone());
            limits.insert(name.clone(), its.collect());
        }
        let learns = |name: &&String| all.iter().flatten().all(|(other, _, learns, _)| other != *name || *learns);
        let learning = limits.keys().filter(learns).cloned().collect();
        let uses = vec![BTreeMap::from([(0, Micros::MAX)]); proxies];
        Self { limits, learning, uses, envelopes: BTreeMap::new(), kept: BTreeSet::new(), flushed_at: None }
    }

    pub fn has(&self, policy: &str) -> bool {
        self.limits.contains_key(policy)
    }

    /// Whether the store has ever lost everything.
    pub const fn has_lost(&self) -> bool {
        self.flushed_at.is_some()
    }

    /// A proxy has got another configuration.
    pub fn configured(&mut self, proxy: usize, config: usize, at: Micros) {
        let uses = &mut self.uses[proxy];
        uses.values_mut().for_each(|until| *until = (*until).min(at.plus(STILL_USED)));
        uses.insert(config, Micros::MAX);
    }

    /// A decision of the store about one bucket.
    pub fn stored(&mut self, charged: &Charged, record: &Record) -> Found {
        let (name, at, gained) = (&charged.name, record.at, record.gained);
        if record.made == Made::Admitted {
            self.spend(name, charged.cost, gained, at)?;
        }
        let Some(State::TokenBucket(there)) = &charged.after else { return Ok(()) };
        self.kept.insert(name.clone());
        if charged.after != charged.before {
            let used = self.limits_at(&name.policy, at).unwrap_or_default();
            let envelope = self.envelope(name, gained, at);
            envelope.written = gained;
            // A limit that nobody has any more makes no bucket full.
            if let Limit::TokenBucket(limit) = charged.limit
                && used.contains(&limit)
            {
                envelope.written_by = Some(limit);
            }
        }
        let (tokens, lent, capacity) = (there.tokens, there.lent.units.total(), charged.limit.capacity().count());
        // What was lent of a larger bucket may be more than there is room for now: then there is nothing beside it.
        if charged.after != charged.before && tokens > capacity.saturating_sub(lent) {
            let what = format!("{} has {tokens} units, has lent {lent}, and has room for {capacity}", name.policy);
            return Err((Invariant::Balance, what));
        }
        Ok(())
    }

    /// Units go to a request: the envelope must have them.
    pub fn spend(&mut self, name: &Name, units: u64, gained: Micros, at: Micros) -> Found {
        let envelope = self.envelope(name, gained, at);
        let (capacity, extra) = (envelope.limit.capacity.count(), envelope.extra);
        envelope.reference.spend(units).map_err(|missing| {
            let (policy, key) = (&name.policy, name.key);
            let beside = if extra > 0 { format!(" and {extra} lent before a loss") } else { String::new() };
            (Invariant::Envelope, format!("{missing} units above {capacity} + r·d{beside} from {policy} {key}"))
        })
    }

    /// The store has forgotten buckets that were full.
    pub fn swept(&mut self, names: &[Name], gained: Micros, at: Micros) {
        for name in names {
            if !self.has(&name.policy) {
                continue;
            }
            self.kept.remove(name);
            let is_one = self.limits_at(&name.policy, at).is_some_and(|limits| limits.len() == 1);
            let envelope = self.envelope(name, gained, at);
            // A bucket that is full by one limit is forgotten, and so full by the others.
            if !is_one || envelope.written_by != Some(envelope.limit) {
                envelope.fill();
            }
        }
        let all: Vec<Name> = self.envelopes.keys().cloned().collect();
        for name in all {
            self.envelope(&name, gained, at);
        }
    }

    /// The store has lost state, or its clock was set. `lent` is what it counted as lent before; `store` is as it is now.
    ///
    /// - A clock that is set forward ends generations early, so leases that are alive are not counted any more. All that are
    ///   alive were counted until then: so much more can be spent, and only until they are dead.
    /// - One that is set back ends them late, which is the safe side.
    /// - After a failover the store has what it had then, while leases live on that it has lent since.
    /// - With nothing left, buckets that do not learn are full, beside all leases. Those that learn are empty, and leave room
    ///   for all that can be lent: nothing more can be spent than before.
    pub fn lost(&mut self, loss: Loss, lent: &BTreeMap<Name, u64>, store: &Store, at: Micros) {
        let gained = store.clock.gained(at);
        let all: BTreeSet<Name> = self.envelopes.keys().chain(lent.keys()).cloned().collect();
        for name in all {
            if !self.has(&name.policy) {
                continue;
            }
            let learns = self.learning.contains(&name.policy);
            let is_learning = learns && self.flushed_at.is_some_and(|flushed| at.since(flushed) < STILL_SPENT);
            let is_one = self.limits_at(&name.policy, at).is_some_and(|limits| limits.len() == 1);
            let was_lent = lent.get(&name).copied().unwrap_or(0);
            let envelope = self.envelope(&name, gained, at);
            let half = envelope.limit.capacity.count() / 2;
            let alive = if is_learning { was_lent.max(half) } else { was_lent };
            match loss {
                Loss::Step(by) if by <= 0 => {}
                Loss::Step(_) => envelope.widen(alive, at),
                Loss::Everything if learns && is_one => {}
                Loss::Everything => {
                    if !learns {
                        envelope.fill();
                    }
                    envelope.widen(alive, at);
                }
                Loss::Since(_) => {
                    if let Some(there) = store.standing(&name, &envelope.limit, learns, at) {
                        envelope.reference.fill_to(there.tokens + there.lent.units.total(), there.fraction);
                    }
                    (envelope.written, envelope.written_by) = (Micros::ZERO, None);
                    envelope.widen(alive, at);
                }
            }
        }
        self.kept.retain(|name| store.has(name));
        if loss == Loss::Everything {
            self.flushed_at = Some(at);
        }
    }

    /// The different limits of a policy that may be in use.
    fn limits_at(&self, policy: &str, at: Micros) -> Option<Vec<TokenBucket>> {
        let limits = self.limits.get(policy)?;
        let configs = self.uses.iter().flatten().filter(|(_, until)| **until > at).map(|(config, _)| *config);
        let mut used: Vec<TokenBucket> = Vec::new();
        for limit in configs.filter_map(|config| limits.get(config)).flatten() {
            if !used.contains(limit) {
                used.push(*limit);
            }
        }
        Some(used)
    }

    /// A budget's envelope, as it is now. While several limits are in use the largest counts.
    fn envelope(&mut self, name: &Name, gained: Micros, at: Micros) -> &mut Envelope {
        let limits = self.limits_at(&name.policy, at).unwrap_or_default();
        let limit = limits.into_iter().reduce(|one, other| larger(&one, &other)).expect("a limit is in use");
        let is_kept = self.kept.contains(name);
        let envelope = self.envelopes.entry(name.clone()).or_insert_with(|| Envelope {
            reference: Reference::full(limit, gained),
            limit,
            written: gained,
            written_by: Some(limit),
            extra: 0,
            until: Micros::ZERO,
        });
        envelope.advance(limit, is_kept, gained, at);
        envelope
    }
}

impl Envelope {
    fn advance(&mut self, limit: TokenBucket, is_kept: bool, gained: Micros, at: Micros) {
        if limit != self.limit {
            // What has come back since the bucket was written comes at the rate of whoever charges next, so a faster one
            // counts from then on, and a slower one from now.
            let both = larger(&self.limit, &limit);
            let is_larger = both != self.limit;
            self.limit = both;
            self.bound();
            if is_larger && is_kept {
                self.reference.set_back(self.written);
            }
            self.reference.advance(gained);
            if is_larger && !is_kept {
                // The store has forgotten it, and absence means full.
                self.fill();
            }
            self.limit = limit;
        }
        self.reference.advance(gained);
        if self.until <= at {
            self.extra = 0;
        }
        self.bound();
    }

    /// So many units can be spent beside it until leases are dead.
    fn widen(&mut self, units: u64, at: Micros) {
        if units > 0 {
            let there = self.reference.units();
            self.extra += units;
            self.until = at.plus(STILL_SPENT);
            self.bound();
            self.reference.fill_to(there + units + 1, 0);
        }
    }

    fn fill(&mut self) {
        self.reference.fill_to(self.limit.capacity.count(), 0);
    }

    fn bound(&mut self) {
        let capacity = Tokens::new(self.limit.capacity.count() + self.extra).unwrap_or(self.limit.capacity);
        self.reference.limit(TokenBucket { capacity, ..self.limit });
    }
}
