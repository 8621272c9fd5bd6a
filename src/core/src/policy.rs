//! The policy: what a configuration means once it has been read and found right.

mod node;
mod read;
#[cfg(test)]
pub(crate) mod tests;

pub use node::{Issue, PolicyErrors, is_name, nearest};

use crate::facts::{Facts, Found, Source, Value};
use crate::key::{Digest, HashKey};
use crate::limit::{Limit, TokenBucket};
use crate::path::{NormalPath, Template};
use crate::units::{Micros, Tokens};

/// The longest that a request may wait for the endpoint.
pub const MAX_TIMEOUT: Micros = Micros::from_secs(10);

// What a waiting request holds of local buckets must not be forgotten before it is decided.
const _: () = assert!(MAX_TIMEOUT.count() < crate::slots::HOLD_LIFE.count());

/// A whole configuration: identities, route classes, and the policies over them.
#[derive(Debug)]
pub struct PolicySet {
    /// The operator's name for this configuration, shown in logs and problem bodies.
    pub version: Option<String>,
    /// Where global budgets are kept; there whenever a policy is global.
    pub endpoint: Option<Endpoint>,
    hash_key: HashKey,
    identities: Vec<Identity>,
    routes: Vec<RouteClass>,
    policies: Vec<Policy>,
}

/// How the token endpoint is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The name of an Envoy cluster.
    pub cluster: String,
    /// How long a request waits for its verdict before the fail mode applies: 1 ms to 10 s.
    pub timeout: Micros,
    /// What the endpoint knows its callers by.
    pub auth_token: Option<AuthToken>,
    /// How many requests of one worker may wait at once; beyond it the fail mode applies at once.
    pub max_in_flight: u32,
}

/// A bearer token, never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthToken(String);

impl AuthToken {
    /// The value of the `authorization` header.
    #[must_use]
    pub fn header(&self) -> &str {
        &self.0
    }
}

impl core::fmt::Debug for AuthToken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("AuthToken(…)")
    }
}

#[derive(Debug)]
struct Identity {
    name: String,
    sources: Vec<Source>,
}

#[derive(Debug)]
struct RouteClass {
    name: String,
    methods: Option<Vec<String>>,
    template: Template,
    exempt: bool,
    cost: Tokens,
}

/// A named budget.
#[derive(Debug)]
pub struct Policy {
    /// Unique in its set; shown to callers, used in metrics and Redis keys.
    pub name: String,
    /// Where it is enforced, and how much.
    pub scope: Scope,
    key: Vec<KeyPart>,
    on_missing: OnMissing,
    /// Route classes it is for; `None` is every one.
    routes: Option<Vec<Route>>,
    overflow: Digest,
}

/// Where a policy is enforced, with what belongs to that place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In this proxy alone.
    Local {
        /// How much. A proxy keeps token buckets.
        limit: TokenBucket,
        /// Which requests share one bucket.
        sharing: Sharing,
        /// Whether a request that another policy rejects is charged here all the same.
        charge_always: bool,
    },
    /// Over all proxies, by the token endpoint.
    Global {
        /// How much.
        limit: Limit,
        /// What happens when the endpoint cannot say.
        on_failure: FailMode,
    },
}

impl Scope {
    /// How much.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        match self {
            Self::Local { limit, .. } => Limit::TokenBucket(*limit),
            Self::Global { limit, .. } => *limit,
        }
    }
}

/// Which requests share a local bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharing {
    /// All of this proxy: the number in the policy is what the proxy allows.
    Proxy,
    /// Those of one worker thread: N workers allow N times the number, without contention.
    Worker,
}

/// What a policy does when its budget cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailMode {
    /// Admit.
    Open,
    /// Reject with 503.
    Closed,
    /// Decide by an emergency bucket in this proxy.
    Local(TokenBucket),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyPart {
    Identity(usize),
    Route,
}

/// What a policy does with a request that lacks one of its identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnMissing {
    /// One bucket for all of them.
    Anonymous,
    /// Not limited by this policy.
    Skip,
}

/// A request's route class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The one at this place in the list.
    Listed(usize),
    /// None of them.
    Other,
}

/// What one request is charged, before anything has been asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its route class.
    pub route: Route,
    /// The route class is exempt: no policy applies.
    pub exempt: bool,
    /// One for each policy that applies, in the order of the list.
    pub charges: Vec<Charge>,
    /// Policies that a missing identity skipped.
    pub skipped: Vec<usize>,
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
}

impl PolicySet {
    /// Reads a configuration: JSON text, or the bytes of a protobuf `Struct`.
    ///
    /// `env` looks up the environment variables that the configuration names.
    ///
    /// # Errors
    /// All that is wrong with it, each with its path, the reason and what would be right.
    pub fn read(bytes: &[u8], env: &dyn Fn(&str) -> Option<String>) -> Result<Self, PolicyErrors> {
        read::policy_set(bytes, env)
    }

    /// The policies, in the order of the list.
    #[must_use]
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// The policy at a place that a [`Charge`] of this set names.
    #[must_use]
    pub fn policy(&self, index: usize) -> Option<&Policy> {
        self.policies.get(index)
    }

    /// A route class's name.
    #[must_use]
    pub fn route_name(&self, route: Route) -> &str {
        match route {
            Route::Listed(index) => self.routes.get(index).map_or("other", |class| class.name.as_str()),
            Route::Other => "other",
        }
    }

    /// What a request is to be charged: its route class, its cost, and the buckets of the policies that apply.
    #[must_use]
    pub fn plan(&self, facts: &impl Facts) -> Plan {
        let (route, class) = self.classify(facts);
        let mut plan =
            Plan { route, exempt: class.is_some_and(|class| class.exempt), charges: Vec::new(), skipped: Vec::new() };
        if plan.exempt {
            return plan;
        }
        let cost = class.map_or(Tokens::ONE, |class| class.cost);
        let values: Vec<Option<Value>> = self.identities.iter().map(|identity| identity.value(facts)).collect();
        for (index, policy) in self.policies.iter().enumerate() {
            if !policy.applies_to(route) {
                continue;
            }
            if policy.on_missing == OnMissing::Skip && policy.lacks_identity(&values) {
                plan.skipped.push(index);
                continue;
            }
            let (key, group) = self.keys(policy, &values, route);
            plan.charges.push(Charge { policy: index, key, group, cost });
        }
        plan
    }

    /// The first class in the list that the request belongs to. A path that servers read in two ways belongs to the
    /// stricter of two classes: one that is not exempt, and costs more.
    fn classify(&self, facts: &impl Facts) -> (Route, Option<&RouteClass>) {
        if self.routes.is_empty() {
            return (Route::Other, None);
        }
        let (method, readings) = (facts.method(), NormalPath::readings(&facts.path()));
        let class_of = |path: &NormalPath| {
            let found = self.routes.iter().enumerate().find(|(_, class)| class.matches(&method, path));
            found.map_or((Route::Other, None), |(index, class)| (Route::Listed(index), Some(class)))
        };
        let strictness =
            |class: Option<&RouteClass>| class.map_or((true, Tokens::ONE), |class| (!class.exempt, class.cost));
        let (first, second) = (class_of(&readings.0), readings.1.as_ref().map(class_of));
        match second {
            Some(second) if strictness(second.1) > strictness(first.1) => second,
            _ => first,
        }
    }

    fn keys(&self, policy: &Policy, values: &[Option<Value>], route: Route) -> (Digest, Digest) {
        let mut key = self.hash_key.digest("key");
        key.part(policy.name.as_bytes());
        // What one algorithm has stored means nothing to another.
        key.part(policy.scope.limit().algorithm().as_bytes());
        let mut group = None;
        for part in &policy.key {
            match part {
                KeyPart::Route => key.part(self.route_name(route).as_bytes()),
                KeyPart::Identity(index) => {
                    let name = self.identities.get(*index).map_or("", |identity| identity.name.as_str());
                    let value = values.get(*index).and_then(Option::as_ref);
                    let mut one = self.hash_key.digest("identity");
                    one.part(name.as_bytes());
                    match value {
                        Some(value) => {
                            let (kind, bytes) = value.parts();
                            one.part(&[kind]);
                            one.part(bytes);
                        }
                        None => one.absent(),
                    }
                    let one = one.finish();
                    key.part(one.as_bytes());
                    group.get_or_insert(one);
                }
            }
        }
        let key = key.finish();
        (key, group.unwrap_or(policy.overflow))
    }
}

impl Identity {
    /// What the first source says that says anything. `None` when that is ambiguous, or when none does.
    fn value(&self, facts: &impl Facts) -> Option<Value> {
        match self.sources.iter().map(|source| source.find(facts)).find(|found| *found != Found::Absent)? {
            Found::Value(value) => Some(value),
            Found::Absent | Found::Ambiguous => None,
        }
    }
}

impl RouteClass {
    /// Whether every request of the other class is of this one.
    fn takes_all_of(&self, other: &Self) -> bool {
        let methods = match (&self.methods, &other.methods) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(its)) => its.iter().all(|method| own.contains(method)),
        };
        methods && self.template.covers(&other.template)
    }

    fn matches(&self, method: &[u8], path: &NormalPath) -> bool {
        // HEAD is answered like GET (RFC 9110 §9.3.2), so it is limited like GET.
        let is = |listed: &String| listed.as_bytes() == method || (listed == "GET" && method == b"HEAD");
        self.methods.as_ref().is_none_or(|methods| methods.iter().any(is)) && self.template.matches(path)
    }
}

impl Policy {
    /// Names the overflow buckets of this policy, and its group where it has no identity.
    #[must_use]
    pub const fn overflow(&self) -> Digest {
        self.overflow
    }

    fn applies_to(&self, route: Route) -> bool {
        self.routes.as_ref().is_none_or(|routes| routes.contains(&route))
    }

    fn lacks_identity(&self, values: &[Option<Value>]) -> bool {
        self.key.iter().any(|part| match part {
            KeyPart::Identity(index) => values.get(*index).is_none_or(Option::is_none),
            KeyPart::Route => false,
        })
    }
}
