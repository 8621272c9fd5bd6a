//! What one request has taken from local buckets, seen from outside: by what each of its writes has changed.

use std::collections::BTreeMap;
use tollgate_core::decision::{SetId, Table};
use tollgate_core::key::Digest;
use tollgate_core::limit::{Limit, TokenBucket};
use tollgate_core::policy::{Charge, FailMode, Plan, Policy, PolicySet, Scope, Sharing};
use tollgate_core::slots::{FORMAT, SETS, SlotSet};
use tollgate_core::units::Micros;

/// Units by the place of the policy; given back, they are taken off again.
pub type Taken = BTreeMap<usize, i128>;

/// The bucket in this proxy that a charge may be made on, and whose table it is in: a local policy's, or the emergency
/// bucket of a global one.
pub fn bucket(charge: &Charge, policy: &Policy) -> Option<(TokenBucket, Sharing)> {
    match (policy.scope.clone(), charge.limit) {
        (Scope::Local { sharing, .. }, Limit::TokenBucket(limit)) => Some((limit, sharing)),
        (Scope::Global { on_failure: FailMode::Local(limit), .. }, _) => Some((limit, Sharing::Proxy)),
        _ => None,
    }
}

/// A set before and after a write, as bytes, and when it was read and written.
pub struct Change<'a> {
    pub set: SetId,
    pub from: &'a [u8],
    pub read_at: Micros,
    pub to: &'a [u8],
    pub now: Micros,
}

/// What a write takes from the buckets of a plan, or gives back to them.
pub fn taken(plan: &Plan, set: &PolicySet, change: &Change<'_>) -> Vec<(Charge, i128)> {
    let Change { set: id, now, .. } = *change;
    // The decision saw what was not full yet when it read.
    let from = SlotSet::decode(change.from, change.read_at);
    let Some((from, to)) = from.ok().zip(SlotSet::decode(change.to, now).ok()) else { return Vec::new() };
    let changes = plan.charges.iter().filter_map(|charge| {
        let policy = set.policy(charge.policy)?;
        let (limit, sharing) = bucket(charge, policy)?;
        let is_here = id == SetId { table: Table::Buckets, sharing, index: charge.key.share(SETS) };
        if !is_here {
            return None;
        }
        let left = |set: &SlotSet, key| i128::from(set.seat(key, policy.overflow(), &limit, now).balance.tokens);
        // A key of its own that is not there is full; to ask for its seat would show the overflow bucket's debt.
        let own = match (has(&from, charge.key), has(&to, charge.key)) {
            (false, false) => 0,
            (_, true) => left(&from, charge.key) - left(&to, charge.key),
            (true, false) => left(&from, charge.key) - i128::from(limit.capacity.count()),
        };
        let shared = left(&from, NOBODY) - left(&to, NOBODY);
        let units = own + shared;
        (units != 0).then(|| (charge.clone(), units))
    });
    changes.collect()
}

/// A key that no request has: its seat shows the overflow bucket.
const NOBODY: Digest = Digest::from_bytes([0xff; Digest::LEN]);

/// Whether a key has a bucket of its own. An entry begins with its key, and a flag for overflow buckets.
fn has(set: &SlotSet, key: Digest) -> bool {
    set.encode().chunks(FORMAT).any(|entry| entry.starts_with(key.as_bytes()) && entry[Digest::LEN] == 0)
}
