//! From a request's facts to what is to be asked of which buckets.

use super::budget::{Allowance, KeyPart, OnMissing, PlanBy, Plans, Policy, overflow};
use super::route::{Reading, Route, RouteClass, Subject};
use super::{IdentityResult, PolicySet};
use crate::facts::{Facts, Found, Header, Once, Value};
use crate::key::{Digest, HashKey};
use crate::limit::Limit;
use crate::units::Tokens;
use crate::wire::MAX_CHARGES;
use core::cell::OnceCell;

/// What one request is charged, before anything has been asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its route class.
    pub route: Route,
    /// The route class is exempt: no policy applies.
    pub exempt: bool,
    /// What it is charged, all or nothing: for each policy that applies one, in the order of the list; and while a hash
    /// key is changed another under the key before.
    pub charges: Vec<Charge>,
    /// The same for policies that are not enforced here, each to be decided by itself.
    pub shadows: Vec<Charge>,
    /// Policies that reject it, or would, whatever is in their buckets.
    pub refusals: Vec<Refusal>,
    /// Policies that a missing identity skipped.
    pub skipped: Vec<usize>,
    /// Every identity that was looked for, by its place in the set, and what became of it.
    pub identities: Vec<(usize, IdentityResult)>,
    /// Policies to which the request named a plan that they do not know.
    pub unknown_plans: Vec<usize>,
    /// What the request says of its cost could not be used.
    pub cost_made_up: bool,
}

/// One policy's part in a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The policy's place in the list.
    pub policy: usize,
    /// Names the bucket.
    pub key: Digest,
    /// Names the group of buckets that are kept together: that of the key's first identity.
    pub group: Digest,
    /// What the request costs.
    pub cost: Tokens,
    /// The limit of the bucket, for this caller.
    pub limit: Limit,
}

/// A policy that rejects without asking a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The policy's place in the list.
    pub policy: usize,
    /// Why.
    pub reason: RefusalReason,
    /// Whether it is enforced for this caller.
    pub enforced: bool,
}

/// Why a policy rejects without asking a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// It wants an identity that the request lacks.
    IdentityMissing,
    /// Its limit is `deny`.
    Denies,
}

impl Plan {
    /// A plan that asks for one charge alone, as a policy in shadow is decided.
    #[must_use]
    pub fn alone(charge: Charge, route: Route) -> Self {
        Self { charges: vec![charge], ..Self::empty(route) }
    }

    const fn empty(route: Route) -> Self {
        Self {
            route,
            exempt: false,
            charges: Vec::new(),
            shadows: Vec::new(),
            refusals: Vec::new(),
            skipped: Vec::new(),
            identities: Vec::new(),
            unknown_plans: Vec::new(),
            cost_made_up: false,
        }
    }
}

pub(super) fn plan(set: &PolicySet, facts: &dyn Facts) -> Plan {
    let facts = Once::new(facts);
    if set.responses.exempt_preflight && is_preflight(&facts) {
        return Plan { exempt: true, ..Plan::empty(Route::Other) };
    }
    let classes = classify(set, &facts);
    let mut plan = Plan {
        exempt: classes.iter().all(Classified::is_exempt),
        ..Plan::empty(classes.first().map_or(Route::Other, |class| class.route))
    };
    if plan.exempt {
        return plan;
    }
    let caller = Caller::new(set, &facts);
    // A request that reads several ways has so many charges more at the most: the endpoint takes no more than that.
    let mut room = MAX_CHARGES.saturating_sub(set.policies.len().saturating_mul(set.hash_keys.len()));
    for (index, policy) in set.policies.iter().enumerate() {
        let mut applying = classes.iter().filter(|class| policy.applies_to(class.route));
        let Some(first) = applying.next() else { continue };
        let mut hash_keys = set.hash_keys.iter().enumerate();
        let Some(hash_key) = hash_keys.next() else { continue };
        let refused = |reason| {
            let enforced = policy.enforce.applies_to(&caller.keys(policy, first.route, hash_key).0);
            Refusal { policy: index, reason, enforced }
        };
        match policy.on_missing {
            OnMissing::Reject if caller.lacks(policy) => {
                plan.refusals.push(refused(RefusalReason::IdentityMissing));
                continue;
            }
            // Who sends an identity twice, or one of another form, has sent one: to skip that would leave it unlimited,
            // while the server behind may well take it.
            OnMissing::Skip if caller.lacks(policy) && !caller.has_sent_what_cannot_be_used(policy) => {
                plan.skipped.push(index);
                continue;
            }
            OnMissing::Anonymous | OnMissing::Skip | OnMissing::Reject => {}
        }
        let (allowance, known) = caller.allowance(policy);
        if !known {
            plan.unknown_plans.push(index);
        }
        let limit = match allowance {
            Allowance::Limit(limit) => limit,
            Allowance::Unlimited => continue,
            Allowance::Deny => {
                plan.refusals.push(refused(RefusalReason::Denies));
                continue;
            }
        };
        let charge = |class: &Classified<'_>, cost, hash_key| {
            let (key, group) = caller.keys(policy, class.route, hash_key);
            Charge { policy: index, key, group, cost, limit }
        };
        // Each class has a bucket, or all share one, which is charged what the dearest of them costs.
        let by_route = policy.key.contains(&KeyPart::Route);
        let cost = applying
            .clone()
            .filter(|_| !by_route)
            .map(|class| class.cost(&facts))
            .fold(first.cost(&facts), Tokens::max);
        let one = charge(first, cost, hash_key);
        if !policy.enforce.applies_to(&one.key) {
            plan.shadows.push(one);
            continue;
        }
        plan.charges.push(one);
        plan.charges.extend(hash_keys.map(|hash_key| charge(first, cost, hash_key)));
        for class in applying.filter(|_| by_route) {
            let Some(left) = room.checked_sub(set.hash_keys.len()) else { break };
            room = left;
            let hash_keys = set.hash_keys.iter().enumerate();
            plan.charges.extend(hash_keys.map(|hash_key| charge(class, class.cost(&facts), hash_key)));
        }
    }
    plan.cost_made_up = classes.iter().any(Classified::has_made_up_cost);
    plan.identities = caller.results();
    plan
}

/// A question of a browser's, whether a page may send a request (the Fetch standard, "CORS-preflight fetch").
fn is_preflight(facts: &dyn Facts) -> bool {
    facts.method() == b"OPTIONS"
        && facts.header("origin") != Header::Absent
        && facts.header("access-control-request-method") != Header::Absent
}

pub(super) fn route_classes(set: &PolicySet, facts: &dyn Facts) -> Vec<Route> {
    classify(set, &Once::new(facts)).iter().map(|class| class.route).collect()
}

/// A route class that a request belongs to; [`Route::Other`] says nothing more.
struct Classified<'a> {
    route: Route,
    class: Option<&'a RouteClass>,
    /// What it costs, and whether that had to be made up, once a policy has asked.
    cost: OnceCell<(Tokens, bool)>,
}

impl Classified<'_> {
    fn is_exempt(&self) -> bool {
        self.class.is_some_and(|class| class.exempt)
    }

    fn cost(&self, facts: &dyn Facts) -> Tokens {
        self.cost.get_or_init(|| self.class.map_or((Tokens::ONE, false), |class| class.cost.of(facts))).0
    }

    fn has_made_up_cost(&self) -> bool {
        self.cost.get().is_some_and(|(_, made_up)| *made_up)
    }
}

/// The first class in the list that the request belongs to; never none. A request that can be read in several ways (see
/// [`Reading`]) belongs to one by each of them, the strictest first: the one that can cost most, then that of the plain
/// reading. It is not known how it will be read behind the proxy, so the policies of all of them apply; what is exempt
/// by one reading is exempt only if it is by all.
fn classify<'a>(set: &'a PolicySet, facts: &dyn Facts) -> Vec<Classified<'a>> {
    let request = Subject::new(facts);
    let class_of = |reading: Reading| {
        let found = set.routes.iter().enumerate().find(|(_, class)| class.matches(&request, reading));
        let (route, class) = found.map_or((Route::Other, None), |(index, class)| (Route::Listed(index), Some(class)));
        Classified { route, class, cost: OnceCell::new() }
    };
    let mut classes: Vec<Classified<'_>> = vec![class_of(Reading::PLAIN)];
    for reading in Reading::all().skip(1).filter(|reading| request.can_be_read(*reading)) {
        let class = class_of(reading);
        if classes.iter().all(|known| known.route != class.route) {
            classes.push(class);
        }
    }
    if classes.len() > 1 {
        if !classes.iter().all(Classified::is_exempt) {
            classes.retain(|class| !class.is_exempt());
        }
        // There are few, and a sort of the library is 3 KB.
        let most = |class: &Classified<'_>| class.class.map_or(Tokens::ONE, |class| class.cost.most());
        let mut sorted: Vec<Classified<'_>> = Vec::with_capacity(classes.len());
        for class in classes {
            let place = sorted.partition_point(|known| most(known) >= most(&class));
            sorted.insert(place, class);
        }
        return sorted;
    }
    classes
}

/// Who a request is from: each identity is looked for once, when the first policy needs it.
struct Caller<'a> {
    set: &'a PolicySet,
    facts: &'a dyn Facts,
    found: Vec<OnceCell<(IdentityResult, Option<Value>)>>,
    /// The digests of all identities under the first hash key, then under the one before it.
    digests: Vec<OnceCell<Digest>>,
}

impl<'a> Caller<'a> {
    fn new(set: &'a PolicySet, facts: &'a dyn Facts) -> Self {
        let digests = set.identities.len().saturating_mul(set.hash_keys.len());
        Self {
            set,
            facts,
            found: set.identities.iter().map(|_| OnceCell::new()).collect(),
            digests: (0..digests).map(|_| OnceCell::new()).collect(),
        }
    }

    /// What became of the identities that were looked for.
    fn results(&self) -> Vec<(usize, IdentityResult)> {
        let known = self.found.iter().enumerate().filter_map(|(index, found)| Some((index, found.get()?)));
        known.map(|(index, (result, _))| (index, *result)).collect()
    }

    fn identity(&self, index: usize) -> Option<&(IdentityResult, Option<Value>)> {
        let identity = self.set.identities.get(index)?;
        Some(self.found.get(index)?.get_or_init(|| identity.find(self.facts)))
    }

    fn value(&self, index: usize) -> Option<&Value> {
        self.identity(index)?.1.as_ref()
    }

    /// What became of the identities of a policy's key.
    fn key_results(&self, policy: &Policy) -> impl Iterator<Item = IdentityResult> {
        policy.key.iter().filter_map(|part| match part {
            KeyPart::Identity(index) => self.identity(*index).map(|(result, _)| *result),
            KeyPart::Route => None,
        })
    }

    /// Whether an identity of the policy's key has no value.
    fn lacks(&self, policy: &Policy) -> bool {
        self.key_results(policy).any(|result| !matches!(result, IdentityResult::Ok | IdentityResult::XffShort))
    }

    /// Whether one of those is there all the same, several times or in another form.
    fn has_sent_what_cannot_be_used(&self, policy: &Policy) -> bool {
        self.key_results(policy).any(|result| matches!(result, IdentityResult::Ambiguous | IdentityResult::Invalid))
    }

    /// What a policy allows this caller, and whether it knows the plan that the caller has, if any.
    fn allowance(&self, policy: &Policy) -> (Allowance, bool) {
        let Some(plans) = &policy.plans else { return (policy.limit, true) };
        match self.named(plans) {
            Ok(None) => (policy.limit, true),
            Ok(Some(name)) => {
                let found = plans.allowances.iter().find(|(known, _)| known.as_bytes() == name);
                found.map_or((policy.limit, false), |(_, allowance)| (*allowance, true))
            }
            Err(()) => (policy.limit, false),
        }
    }

    /// The name of the caller's plan; an error when there are several, or one that cannot be used.
    fn named(&self, plans: &Plans) -> Result<Option<Vec<u8>>, ()> {
        match &plans.by {
            PlanBy::Identity(index) => match self.identity(*index) {
                Some((_, Some(value))) => Ok(Some(value.bytes().to_vec())),
                Some((IdentityResult::Missing, None)) | None => Ok(None),
                Some(_) => Err(()),
            },
            PlanBy::Source(source) => match source.find(self.facts) {
                Found::Value(value) => Ok(Some(value.bytes().to_vec())),
                Found::Absent => Ok(None),
                Found::Ambiguous | Found::Invalid | Found::Short(_) => Err(()),
            },
        }
    }

    /// The digest of an identity under one of the hash keys.
    fn digest(&self, index: usize, which: usize, hash_key: &HashKey) -> Digest {
        let digest = || identity_digest(self.set, index, self.value(index), hash_key);
        let place = which.saturating_mul(self.set.identities.len()).saturating_add(index);
        self.digests.get(place).map_or_else(digest, |known| *known.get_or_init(digest))
    }

    /// The digests of a policy's bucket and of its group, under one of the hash keys.
    fn keys(&self, policy: &Policy, route: Route, (which, hash_key): (usize, &HashKey)) -> (Digest, Digest) {
        let mut key = hash_key.digest("key");
        key.part(policy.name.as_bytes());
        // What one algorithm has stored means nothing to another; the plan is left out, so that none is a second budget.
        key.part(policy.algorithm().as_bytes());
        let mut group = None;
        for part in &policy.key {
            match part {
                KeyPart::Route => key.part(self.set.route_name(route).as_bytes()),
                KeyPart::Identity(index) => {
                    let one = self.digest(*index, which, hash_key);
                    key.part(one.as_bytes());
                    group.get_or_insert(one);
                }
            }
        }
        (key.finish(), group.unwrap_or_else(|| overflow(hash_key, &policy.name)))
    }
}

/// Names what an identity is, or that there is none.
pub(super) fn identity_digest(set: &PolicySet, index: usize, value: Option<&Value>, hash_key: &HashKey) -> Digest {
    let name = set.identities.get(index).map_or("", |identity| identity.name.as_str());
    let mut digester = hash_key.digest("identity");
    digester.part(name.as_bytes());
    match value {
        Some(value) => value.digest(&mut digester),
        None => digester.absent(),
    }
    digester.finish()
}

impl Policy {
    fn applies_to(&self, route: Route) -> bool {
        self.routes.as_ref().is_none_or(|routes| routes.contains(&route))
    }

    /// The algorithm that all its limits are of.
    fn algorithm(&self) -> &'static str {
        self.allowances().find_map(Allowance::limit).map_or("", |limit| limit.algorithm())
    }
}
