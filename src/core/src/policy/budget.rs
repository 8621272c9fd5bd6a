//! One policy: a named budget.

use super::route::Route;
use crate::facts::Source;
use crate::key::{Digest, HashKey};
use crate::limit::{Limit, TokenBucket};
use crate::units::Tokens;

/// A named budget.
#[derive(Debug)]
pub struct Policy {
    /// Unique in its set; shown to callers, used in metrics and Redis keys.
    pub name: String,
    /// Where it is enforced.
    pub scope: Scope,
    /// How much, for whoever has no plan of its own.
    pub limit: Allowance,
    /// How much for whom instead.
    pub plans: Option<Plans>,
    /// Requests that agree in all of these share a bucket.
    pub key: Vec<KeyPart>,
    /// What happens to a request that lacks an identity of the key.
    pub on_missing: OnMissing,
    /// How far its denials count.
    pub enforce: Enforcement,
    /// Route classes it is for; `None` is every one.
    pub routes: Option<Vec<Route>>,
    pub(super) overflow: Digest,
}

/// Where a policy is enforced, with what belongs to that place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In this proxy alone, which keeps token buckets.
    Local {
        /// Which requests share one bucket.
        sharing: Sharing,
        /// Whether a request that another policy rejects is charged here all the same.
        charge_always: bool,
    },
    /// Over all proxies, by the token endpoint.
    Global {
        /// Who decides.
        mode: Mode,
        /// Whether buckets that the store has lost begin empty, and not full.
        learn: bool,
        /// What happens when the endpoint cannot say.
        on_failure: FailMode,
    },
}

/// Who decides about a budget that all proxies share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The endpoint, each time.
    Exact,
    /// The proxy, as far as it has a lease; these requests share one.
    Leased(Sharing),
}

/// How much a policy admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// Nothing.
    Deny,
    /// Everything, uncounted.
    Unlimited,
    /// What the limit admits.
    Limit(Limit),
}

impl Allowance {
    /// The limit, where there is one.
    #[must_use]
    pub const fn limit(&self) -> Option<Limit> {
        match self {
            Self::Limit(limit) => Some(*limit),
            Self::Deny | Self::Unlimited => None,
        }
    }
}

/// Allowances by what a caller's plan is called.
///
/// All limits of a policy, with and without a plan, are of one algorithm and share their buckets. So a change of plan is
/// like a change of the limit: what is left stays, cut to a lower capacity, and no plan is a second budget. Windows are
/// the same under every plan, and a token bucket is kept as long as the slowest plan takes to fill it.
#[derive(Debug)]
pub struct Plans {
    /// What names the plan.
    pub by: PlanBy,
    /// The plans that are known.
    pub allowances: Vec<(String, Allowance)>,
}

/// What names a caller's plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanBy {
    /// An identity, by its place in the set.
    Identity(usize),
    /// A source of its own.
    Source(Source),
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

/// What tells buckets of one policy apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// An identity, by its place in the set.
    Identity(usize),
    /// The route class.
    Route,
}

/// What a policy does with a request that lacks one of its identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMissing {
    /// One bucket for all of them.
    Anonymous,
    /// Not limited by this policy. One that sends an identity which cannot be used shares the bucket all the same.
    Skip,
    /// Rejected with 403.
    Reject,
}

/// How far a policy's denials count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// All of them.
    On,
    /// None: they are only counted.
    Shadow,
    /// Those for so many in a hundred keys, the same ones at any time and in every proxy; with a greater share they and
    /// more.
    Percent(u8),
}

impl Enforcement {
    /// Whether denials for this key count.
    #[must_use]
    pub fn applies_to(self, key: &Digest) -> bool {
        match self {
            Self::On => true,
            Self::Shadow => false,
            Self::Percent(percent) => key.share(100) < u32::from(percent),
        }
    }
}

/// Names the overflow buckets of the policy of this name, and its group where it has no identity.
pub(super) fn overflow(hash_key: &HashKey, name: &str) -> Digest {
    let mut digester = hash_key.digest("overflow");
    digester.part(name.as_bytes());
    digester.finish()
}

impl Policy {
    /// Names the overflow buckets of this policy, and its group where it has no identity.
    #[must_use]
    pub const fn overflow(&self) -> Digest {
        self.overflow
    }

    /// Whether proxies decide by leases of it, as far as they have any.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        let is_limit = |allowance: &Allowance| allowance.limit().is_some();
        matches!(self.scope, Scope::Global { mode: Mode::Leased(_), .. }) && self.allowances().any(is_limit)
    }

    /// Everything that it admits, with and without a plan.
    pub fn allowances(&self) -> impl Iterator<Item = &Allowance> {
        let plans = self.plans.iter().flat_map(|plans| plans.allowances.iter().map(|(_, allowance)| allowance));
        core::iter::once(&self.limit).chain(plans)
    }

    /// The least that can ever be spent at once, over all its limits and its emergency budget.
    #[must_use]
    pub fn least_capacity(&self) -> Option<Tokens> {
        let emergency = match &self.scope {
            Scope::Global { on_failure: FailMode::Local(limit), .. } => Some(limit.capacity),
            _ => None,
        };
        self.allowances().filter_map(Allowance::limit).map(|limit| limit.capacity()).chain(emergency).min()
    }
}
