//! Leases at their holders: what is spent of them, and for how long.

use super::lending::STILL_SPENT;
use super::{Found, Invariant, Owner};
use crate::store::{Name, Record};
use std::collections::BTreeMap;
use tollgate_core::policy::{Charge, Mode, Policy, Scope, Sharing};
use tollgate_core::units::Micros;

/// Who holds leases: a proxy, or one worker of it.
pub type Holder = (usize, Option<usize>);

#[derive(Default)]
pub struct Leases {
    /// When the lender last heard of a lease of each bucket from each holder, by the true time.
    heard: BTreeMap<(Name, Holder), Micros>,
}

impl Leases {
    /// The store has made a decision for a worker of a proxy.
    pub fn stored(&mut self, (proxy, worker): (usize, usize), record: &Record) {
        for charged in record.charges.iter().filter(|charged| charged.lent.is_some()) {
            for holder in [(proxy, None), (proxy, Some(worker))] {
                self.heard.insert((charged.name.clone(), holder), record.at);
            }
        }
    }

    /// A lease has paid for a request.
    pub fn spent(&self, policy: &Policy, charge: &Charge, owner: &Owner, at: Micros) -> Found {
        let name = Name::of(&policy.name, charge.key, charge.group);
        let heard = self.heard.get(&(name, holder(policy, owner)));
        if heard.is_some_and(|heard| at.since(*heard) <= STILL_SPENT) {
            return Ok(());
        }
        let Owner { proxy, worker, .. } = owner;
        let when = heard.map_or("never".into(), |heard| format!("{} ago", at.since(*heard)));
        let what = format!("{proxy}.{worker} has spent a lease of {} that the lender has heard of {when}", policy.name);
        Err((Invariant::Lease, what))
    }
}

pub fn holder(policy: &Policy, owner: &Owner) -> Holder {
    let is_workers = matches!(policy.scope, Scope::Global { mode: Mode::Leased(Sharing::Worker), .. });
    (owner.proxy, is_workers.then_some(owner.worker))
}
