//! The policy: what a configuration means once it has been read and found right.

pub mod bounds;
mod budget;
mod cost;
mod identity;
mod node;
mod plan;
mod read;
mod responses;
mod route;
#[cfg(test)]
pub(crate) mod tests;

pub use budget::{Allowance, Enforcement, FailMode, KeyPart, Mode, OnMissing, PlanBy, Plans, Policy, Scope, Sharing};
pub use cost::{CostRule, Measure};
pub use identity::{Identity, IdentityResult};
pub use node::{Issue, PolicyErrors, is_name, nearest};
pub use plan::{Charge, Plan, Refusal, RefusalReason};
pub use responses::{FieldsVersion, LegacyReset, Responses};
pub use route::{HeaderMatch, HostPattern, Route, RouteClass, ValueMatch};

use crate::breaker::Breaker;
use crate::facts::{Facts, Value};
use crate::key::{Digest, HashKey};
use crate::units::Micros;

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
    /// What callers are told.
    pub responses: Responses,
    /// Of so many in a hundred rejections there is a line in the log, though of no more than one each second and worker.
    pub logged_rejections: u8,
    /// The key that buckets are named with, and the one before it, while both count.
    hash_keys: Vec<HashKey>,
    identities: Vec<Identity>,
    routes: Vec<RouteClass>,
    policies: Vec<Policy>,
    warnings: Vec<Issue>,
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
    /// When no calls are made for a while; `None` for never.
    pub breaker: Option<Breaker>,
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

    /// What is not wrong and yet is hardly meant, each with its path.
    #[must_use]
    pub fn warnings(&self) -> &[Issue] {
        &self.warnings
    }

    /// The identities, in the order in which they were written.
    #[must_use]
    pub fn identities(&self) -> &[Identity] {
        &self.identities
    }

    /// The route classes, of which the first that matches counts.
    #[must_use]
    pub fn routes(&self) -> &[RouteClass] {
        &self.routes
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

    /// Names what an identity is, by its place in the set: `None` is for all who have none. It is the
    /// [group](Charge::group) of policies whose key begins with this identity.
    #[must_use]
    pub fn identity_digest(&self, identity: usize, value: Option<&Value>) -> Option<Digest> {
        Some(plan::identity_digest(self, identity, value, self.hash_keys.first()?))
    }

    /// Every route class that a request belongs to, the strictest first: several where servers may read its path in
    /// several ways. Never none.
    #[must_use]
    pub fn route_classes(&self, facts: &impl Facts) -> Vec<Route> {
        plan::route_classes(self, facts)
    }

    /// Whether the hash key has one before it: then each charge of a plan is followed by that of the other key.
    #[must_use]
    pub const fn has_previous_hash_key(&self) -> bool {
        self.hash_keys.len() > 1
    }

    /// What a request is to be charged: its route class, its cost, and the buckets of the policies that apply.
    #[must_use]
    pub fn plan(&self, facts: &impl Facts) -> Plan {
        plan::plan(self, facts)
    }
}
