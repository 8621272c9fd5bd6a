//! The shared budgets: the envelope in true time, and what the store has kept of each bucket.

use super::lending::Lending;
use super::reference::Reference;
use super::{Found, Invariant};
use crate::store::{Charged, Made, Name, Record};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use tollgate_core::limit::{Limit, State, TokenBucket};
use tollgate_core::policy::{Charge, PolicySet};
use tollgate_core::units::Micros;
use tollgate_core::wire::Denial;

pub struct Shared {
    /// The policies that are leased.
    leased: BTreeSet<String>,
    /// Those, and the ones that learn.
    pub lending: Lending,
    /// By the time that the store's clock has gone forward.
    envelopes: BTreeMap<Name, Reference>,
    /// What the store should have, by what its clock shows; none for a bucket that it has forgotten.
    ledger: BTreeMap<Name, Reference>,
    /// The last writes, for a failover to undo.
    writes: VecDeque<Write>,
}

/// What there was before a write.
struct Write {
    /// The true time.
    at: Micros,
    name: Name,
    envelope: Option<Reference>,
    ledger: Option<Reference>,
}

/// More than are made within the longest time that a failover loses.
const MAX_WRITES: usize = 16_384;

impl Shared {
    pub fn new(sets: &[Rc<PolicySet>], proxies: usize) -> Self {
        let policies = sets.iter().flat_map(|set| set.policies());
        let leased = policies.filter(|policy| policy.is_leased()).map(|policy| policy.name.clone()).collect();
        let (envelopes, ledger, writes) = Default::default();
        Self { leased, lending: Lending::new(sets, proxies), envelopes, ledger, writes }
    }

    /// A lease has paid for a request.
    pub fn spent_lease(&mut self, policy: &str, charge: &Charge, gained: Micros, at: Micros) -> Found {
        self.lending.spend(&Name::of(policy, charge.key, charge.group), charge.cost.count(), gained, at)
    }

    pub fn stored(&mut self, record: &Record) -> Found {
        if matches!(record.made, Made::Again | Made::Failed) {
            return Ok(());
        }
        for charged in &record.charges {
            let Limit::TokenBucket(limit) = charged.limit else { continue };
            if self.lending.has(&charged.name.policy) {
                self.lending.stored(charged, record)?;
                // What was lost begins empty, beside what may be lent.
                if !self.leased.contains(&charged.name.policy) && !self.lending.has_lost() {
                    self.keep(charged, &limit, record, None)?;
                }
                continue;
            }
            let before = self.envelopes.get(&charged.name).cloned();
            if record.made == Made::Admitted {
                self.spend(&charged.name, &limit, charged.cost, record.gained)?;
            }
            self.keep(charged, &limit, record, before)?;
        }
        Ok(())
    }

    /// Units go to a request: the envelope must have them.
    fn spend(&mut self, name: &Name, limit: &TokenBucket, units: u64, gained: Micros) -> Found {
        let envelope = self.envelopes.entry(name.clone()).or_insert_with(|| Reference::full(*limit, gained));
        if *limit != envelope.bucket() && envelope.is_over_at(gained) {
            // The store may have forgotten it meanwhile, and absence means full.
            *envelope = Reference::full(*limit, gained);
        }
        envelope.limit(*limit);
        envelope.advance(gained);
        envelope.spend(units).map_err(|missing| {
            let (capacity, policy) = (limit.capacity.count(), &name.policy);
            (Invariant::Envelope, format!("{missing} units above {capacity} + r·d from {policy} {}", name.key))
        })
    }

    /// Whether the bucket is as it should be after a decision.
    fn keep(&mut self, charged: &Charged, limit: &TokenBucket, record: &Record, envelope: Option<Reference>) -> Found {
        let Record { reading, made, .. } = *record;
        let name = &charged.name;
        let old = self.ledger.remove(name);
        let mut ledger = match &old {
            None => Reference::full(*limit, reading),
            Some(ledger) if charged.before.is_some() => ledger.clone(),
            Some(_) => return Err((Invariant::Balance, format!("the store has lost {} {}", name.policy, name.key))),
        };
        let changed = ledger.bucket() != *limit;
        ledger.limit(*limit);
        ledger.advance(reading);
        let spent = if made == Made::Admitted { charged.cost } else { 0 };
        ledger.drain(spent);
        let should = ledger.units();
        let Some(State::TokenBucket(there)) = charged.limit.advance(charged.after.as_ref(), reading) else {
            return Ok(());
        };
        // A fraction of a unit is dropped when the rate changes.
        if there.tokens > should || there.tokens + u64::from(changed) < should {
            let verb = if made == Made::Admitted { "admitted" } else { "denied" };
            let cost = charged.cost;
            let what = format!(
                "{} {} has {} units and should have {should}, after a request of {cost} was {verb}",
                name.policy, name.key, there.tokens,
            );
            return Err((Invariant::Balance, what));
        }
        if changed {
            ledger.hold(there.tokens, there.fraction);
        }
        if made == Made::Denied {
            is_true(charged, &ledger, reading)?;
        }
        // A denial leaves the bucket as it was, unless that had to be mended.
        let is_written = charged.after != charged.before || made == Made::Admitted;
        if is_written {
            self.writes.push_back(Write { at: record.at, name: name.clone(), envelope, ledger: old.clone() });
        }
        if let Some(ledger) = if is_written { Some(ledger) } else { old } {
            self.ledger.insert(name.clone(), ledger);
        }
        Ok(())
    }

    pub fn swept(&mut self, names: &[Name], reading: Micros) -> Found {
        for name in names {
            let Some(ledger) = self.ledger.remove(name) else { continue };
            if !ledger.is_over_at(reading) {
                let what = format!("the store has forgotten {} {} before it was full", name.policy, name.key);
                return Err((Invariant::Balance, what));
            }
            // While two limits are in use, a bucket that is full by one is forgotten, and so full by the other too.
            if self.envelopes.get(name).is_some_and(|envelope| envelope.bucket() != ledger.bucket()) {
                self.envelopes.remove(name);
            }
        }
        while self.writes.len() > MAX_WRITES {
            self.writes.pop_front();
        }
        Ok(())
    }

    /// What was written since then is undone; with `None` everything is as at first, and that is one capacity for
    /// each bucket.
    pub fn lost(&mut self, since: Option<Micros>) {
        let Some(since) = since else {
            self.envelopes.clear();
            self.ledger.clear();
            self.writes.clear();
            return;
        };
        while self.writes.back().is_some_and(|write| write.at >= since) {
            let Some(Write { name, envelope, ledger, .. }) = self.writes.pop_back() else { break };
            put_back(&mut self.envelopes, &name, envelope);
            put_back(&mut self.ledger, &name, ledger);
        }
    }
}

/// Whether what a bucket says of a denied request is so: that it has the units, or when it will have them if nobody
/// else comes, and not a microsecond before.
fn is_true(charged: &Charged, ledger: &Reference, reading: Micros) -> Found {
    let cost = charged.cost;
    let has_at = |at: Micros| {
        let mut then = ledger.clone();
        then.advance(at);
        then.units() >= cost
    };
    let is_so = match charged.denied {
        None => ledger.units() >= cost,
        Some(Denial::OverCapacity) => cost > charged.limit.capacity().count(),
        Some(Denial::WaitUs(wait)) => {
            let then = reading.plus(Micros::new(wait));
            has_at(then) && !has_at(Micros::new(then.count() - 1)) && wait > 0
        }
    };
    if is_so {
        return Ok(());
    }
    let (units, denied) = (ledger.units(), charged.denied);
    let what = format!("{} with {units} units says {denied:?} to a request of {cost}", charged.name.policy);
    Err((Invariant::Wait, what))
}

fn put_back(all: &mut BTreeMap<Name, Reference>, name: &Name, before: Option<Reference>) {
    match before {
        Some(before) => all.insert(name.clone(), before),
        None => all.remove(name),
    };
}
