//! What one request has taken from local buckets, seen from outside: by what each of its writes has changed.

use std::collections::BTreeMap;
use tollgate_core::decision::SetId;
use tollgate_core::limit::{Limit, TokenBucket};
use tollgate_core::policy::{Charge, FailMode, Plan, Policy, PolicySet, Scope, Sharing};
use tollgate_core::slots::{SETS, SlotSet};
use tollgate_core::units::Micros;

/// Units by the place of the policy; given back, they are taken off again.
pub type Taken = BTreeMap<usize, i128>;

/// The bucket in this proxy that a charge may be made on, and whose table it is in: a local policy's, or the emergency
/// bucket of a global one.
pub fn bucket(charge: &Charge, policy: &Policy) -> Option<(TokenBucket, Sharing)> {
    match (policy.scope.clone(), charge.limit) {
        (Scope::Local { sharing, .. }, Limit::TokenBucket(limit)) => Some((limit, sharing)),
        (Scope::Global { on_failure: FailMode::Local(limit) }, _) => Some((limit, Sharing::Proxy)),
        _ => None,
    }
}

/// What a write of a set, from one value to another, takes from the buckets of a plan, or gives back to them.
pub fn taken(plan: &Plan, set: &PolicySet, id: SetId, (from, to): (&[u8], &[u8]), now: Micros) -> Vec<(Charge, i128)> {
    let Some((from, to)) = SlotSet::decode(from, now).ok().zip(SlotSet::decode(to, now).ok()) else {
        return Vec::new();
    };
    let changes = plan.charges.iter().filter_map(|charge| {
        let policy = set.policy(charge.policy)?;
        let (limit, sharing) = bucket(charge, policy)?;
        let is_here = id == SetId { sharing, index: charge.key.share(SETS) };
        let left = |set: &SlotSet| i128::from(set.seat(charge.key, policy.overflow(), &limit, now).balance.tokens);
        let units = if is_here { left(&from) - left(&to) } else { 0 };
        (units != 0).then(|| (charge.clone(), units))
    });
    changes.collect()
}
