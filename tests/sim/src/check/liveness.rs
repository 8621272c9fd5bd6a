//! A budget that is there is used: where nothing goes wrong, what is lent comes back, and nobody is denied for long what
//! nobody spends.

use super::leases::{Holder, holder};
use super::{Found, Invariant, Owner};
use crate::scenario::{Fault, Scenario};
use crate::store::{Charged, Made, Name, Record};
use crate::worker::Decided;
use std::collections::BTreeMap;
use tollgate_core::decision::{Outcome, Rejection};
use tollgate_core::key::Digest;
use tollgate_core::lease::LEASE_LIFE;
use tollgate_core::limit::{Limit, State, TokenBucket};
use tollgate_core::policy::{Mode, Policy, PolicySet, Scope};
use tollgate_core::units::Micros;

/// When all that was lent before a moment is forgotten, whoever has it. So long is everything that a fault does to leases
/// felt, too.
const FORGOTTEN: Micros = Micros::new(2 * LEASE_LIFE.count());

/// For how long somebody may be denied what is there: a denial is kept for up to 0.65 s, and units are on their way.
const STILL_DENIED: Micros = Micros::from_secs(1);

/// One part of so many of the capacity and of the refill is used in any case. What is lent to those who do not use it, and
/// what is not earned while it is lent, is less than the rest.
const PART: u64 = 2;

/// When a lease that nobody uses has come back: it is idle after 0.5 s, is looked at each 0.25 s, may have to wait for a
/// call that is out and 0.25 s after one that brought nothing, and then takes a call itself.
const GIVEN_BACK: Micros = Micros::from_millis(1_300);

/// Which table of leases: a proxy's, or that of one of its workers. And the key.
pub type Seat = (Holder, Digest);

pub struct Liveness {
    /// When something goes wrong, and until when that is felt.
    troubles: Vec<(Micros, Micros)>,
    yardsticks: BTreeMap<Name, Yardstick>,
    /// When something of a bucket was last spent, lent, or given back.
    touched: BTreeMap<Name, Micros>,
    /// When a holder last had a request for a bucket that is lent, and by which limit.
    used: BTreeMap<Seat, (Micros, TokenBucket)>,
}

/// A bucket of one [`PART`] of a budget's capacity and refill that was empty when the calm began.
#[derive(Clone, Copy)]
struct Yardstick {
    limit: TokenBucket,
    since: Micros,
    /// When it is full if nothing more is spent.
    full_at: Micros,
}

impl Liveness {
    pub fn new(scenario: &Scenario) -> Self {
        let start = crate::run::START;
        let (mut troubles, mut set_back) = (Vec::new(), Micros::ZERO);
        for (at, fault) in &scenario.faults {
            if let Fault::ClockStep { by } | Fault::Failover { step: by, .. } = fault {
                // Nothing refills until the clock has made up for it.
                set_back = set_back.plus(Micros::new(by.min(&0).unsigned_abs()));
            }
            let from = start.plus(*at);
            troubles.push((from, from.plus(fault.lasts()).plus(set_back).plus(FORGOTTEN)));
        }
        let (mut given, mut differ_since) = (vec![0; scenario.proxies], None);
        for (at, fault) in &scenario.faults {
            let Fault::Configure { proxy, config } = *fault else { continue };
            given[proxy] = config;
            if given.iter().any(|other| *other != given[0]) {
                differ_since.get_or_insert(start.plus(*at));
            } else if let Some(since) = differ_since.take() {
                troubles.push((since, start.plus(*at).plus(FORGOTTEN)));
            }
        }
        troubles.extend(differ_since.map(|since| (since, Micros::MAX)));
        if !scenario.is_quick() {
            troubles.push((start, start.plus(scenario.healed).plus(FORGOTTEN)));
        }
        let (yardsticks, touched, used) = Default::default();
        Self { troubles, yardsticks, touched, used }
    }

    /// The store has made a decision.
    pub fn stored(&mut self, record: &Record) -> Found {
        if matches!(record.made, Made::Again | Made::Failed) {
            return Ok(());
        }
        for charged in &record.charges {
            self.is_refilled(charged, record)?;
            if record.made == Made::Admitted {
                self.spent(&charged.name, charged.cost, record.at);
            }
            if charged.after != charged.before {
                self.touched.insert(charged.name.clone(), record.at);
            }
        }
        Ok(())
    }

    /// Units go to a request.
    pub fn spent(&mut self, name: &Name, units: u64, at: Micros) {
        self.touched.insert(name.clone(), at);
        if let Some(yardstick) = self.yardsticks.get_mut(name) {
            yardstick.spend(units, at);
        }
    }

    /// A request, or a decision in shadow, has ended. `whole_since` is since when the store has lost nothing.
    pub fn decided(
        &mut self,
        decided: &Decided,
        owner: &Owner,
        set: &PolicySet,
        whole_since: Option<Micros>,
        at: Micros,
    ) -> Found {
        for charge in &decided.plan.charges {
            let Some((policy, limit)) = set.policy(charge.policy).and_then(|policy| Some((policy, lent(policy)?)))
            else {
                continue;
            };
            self.used.insert((holder(policy, owner), charge.key), (at, limit));
            let name = Name::of(&policy.name, charge.key, charge.group);
            let calm = self.calm_since(at).zip(whole_since).map(|(calm, whole)| calm.max(whole.plus(FORGOTTEN)));
            let Some(since) = calm.filter(|since| *since <= at) else {
                self.yardsticks.remove(&name);
                continue;
            };
            let there = self.yardsticks.get(&name).filter(|there| (there.limit, there.since) == (limit, since));
            let touched = self.touched.get(&name).copied().unwrap_or_default();
            let there = there.copied().unwrap_or_else(|| Yardstick::new(limit, since, touched));
            self.yardsticks.insert(name.clone(), there);
            let is_denied = match &decided.outcome {
                Outcome::Reject(Rejection::Denied { policies, emergency: false, .. }) => {
                    policies.contains(&charge.policy)
                }
                _ => false,
            };
            let denied_for = at.since(there.full_at);
            if is_denied && denied_for > STILL_DENIED && PART * charge.cost.count() <= limit.capacity.count() {
                let (policy, capacity) = (&policy.name, limit.capacity.count());
                let what = format!(
                    "request {} was denied by {policy}, of which {} of {capacity} units and more have been there for {denied_for}",
                    decided.id,
                    capacity / PART,
                );
                return Err((Invariant::Liveness, what));
            }
        }
        Ok(())
    }

    /// The leases that must have been given back: nobody has used them for so long.
    pub fn idle(&self, at: Micros) -> impl Iterator<Item = (&Seat, &TokenBucket)> {
        let calm = self.calm_since(at);
        let is_idle = move |used: Micros| calm.is_some_and(|calm| at.since(used.max(calm)) > GIVEN_BACK);
        let idle = self.used.iter().filter(move |(_, (used, _))| is_idle(*used));
        idle.map(|(seat, (_, limit))| (seat, limit))
    }

    /// Until somebody uses it again there is nothing to look at.
    pub fn is_back(&mut self, seat: &Seat) {
        self.used.remove(seat);
    }

    /// Since when nothing has gone wrong; none while something does, or is felt.
    fn calm_since(&self, at: Micros) -> Option<Micros> {
        if self.troubles.iter().any(|(from, until)| (*from..=*until).contains(&at)) {
            return None;
        }
        let over = self.troubles.iter().map(|(_, until)| *until).filter(|until| *until < at);
        Some(over.max().unwrap_or(crate::run::START))
    }

    /// Whether a bucket that nobody has touched has refilled: all that it had lent is forgotten after two generations.
    fn is_refilled(&self, charged: &Charged, record: &Record) -> Found {
        let (Limit::TokenBucket(limit), Some(touched)) = (charged.limit, self.touched.get(&charged.name)) else {
            return Ok(());
        };
        let Some((calm, whole)) = self.calm_since(record.at).zip(record.whole_since) else { return Ok(()) };
        let quiet = record.at.since((*touched).max(calm).max(whole)).since(FORGOTTEN);
        // The store's clock may be slower.
        let counted = Micros::new(quiet.count() - quiet.count() / 1_000);
        let should = limit.refill.gains_in(counted).min(limit.capacity.count());
        let state = charged.limit.advance(charged.after.as_ref(), record.reading);
        let Some(State::TokenBucket(left)) = state else { return Ok(()) };
        let spent = if record.made == Made::Admitted { charged.cost } else { 0 };
        let there = left.tokens + spent + charged.lent.map_or(0, |lent| lent.granted);
        if there < should {
            let policy = &charged.name.policy;
            let what = format!("{policy} had {there} units and should have had {should}, untouched since {touched}");
            return Err((Invariant::Liveness, what));
        }
        Ok(())
    }
}

impl Yardstick {
    fn new(limit: TokenBucket, since: Micros, touched: Micros) -> Self {
        Self { limit, since, full_at: since.max(touched).plus(time(limit.capacity.count(), &limit)) }
    }

    /// What it does not have is not owed.
    fn spend(&mut self, units: u64, at: Micros) {
        let most = at.plus(time(self.limit.capacity.count(), &self.limit));
        self.full_at = self.full_at.max(at).plus(time(PART * units, &self.limit)).min(most);
    }
}

/// How long a budget takes to refill so many units, rounded up.
fn time(units: u64, limit: &TokenBucket) -> Micros {
    let micros = u128::from(units) * u128::from(limit.refill.period()) / u128::from(limit.refill.tokens());
    Micros::new(u64::try_from(micros + 1).unwrap_or(u64::MAX))
}

/// The limit of a policy that is leased, where it has one alone.
fn lent(policy: &Policy) -> Option<TokenBucket> {
    match (&policy.scope, policy.limit.limit()) {
        (Scope::Global { mode: Mode::Leased(_), .. }, Some(Limit::TokenBucket(limit))) if policy.plans.is_none() => {
            Some(limit)
        }
        _ => None,
    }
}
