//! Where local buckets and the breaker are kept: the host's shared data, under a fixed number of names.
//!
//! The format of what is stored is part of every name, so that no version of the filter reads another's bytes.
//!
//! Leases of a worker are in its VM's own memory: they cost no host call, and what is lost with the VM is only what it had
//! not spent.
//!
//! Per proxy there is one table. Per worker each VM claims a number and uses that number's table. A VM that follows one
//! that ended takes over a number once its claim is dead; before that (after a trap, or with a new module) it starts
//! with a table of its own, full.

use crate::host;
use core::cell::{Cell, RefCell};
use tollgate_core::breaker::BreakerState;
use tollgate_core::decision::{SetId, Table};
use tollgate_core::key::Digest;
use tollgate_core::lease;
use tollgate_core::policy::Sharing;
use tollgate_core::slots::{FORMAT, SETS};
use tollgate_core::units::Micros;

/// As a version: write only if nothing is there. Envoy ignores a version where the name is new, and this one is never
/// that of a value.
const ABSENT: u32 = u32::MAX;

/// A claim that was not renewed for so long is dead.
const CLAIM_LIFE: Micros = Micros::from_secs(60);

/// How often a claim is renewed while it is used.
pub(crate) const CLAIM_RENEWAL: Micros = Micros::from_secs(10);

/// More VMs than an Envoy has workers.
const MAX_WORKERS: u32 = 1024;

thread_local! {
    /// This VM's claim. It is the VM's and not a configuration's, so that buckets outlive a change of the policy.
    static CLAIM: Cell<Option<Claim>> = const { Cell::new(None) };

    /// This VM's leases, as they are stored, by the set.
    static LEASES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };

    /// Whom leases are lent to.
    static LESSEE: Cell<Option<Digest>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Claim {
    number: u32,
    nonce: u64,
    renewed: Micros,
}

/// Reads a set: its bytes and their version.
pub(crate) fn read(set: SetId, now: Micros) -> Option<(Vec<u8>, u32)> {
    match (set.table, set.sharing) {
        (Table::Leases, Sharing::Worker) => {
            LEASES.try_with(|leases| leases.borrow().get(place(set)).map(|bytes| (bytes.clone(), 0))).ok().flatten()
        }
        _ => host::shared_data(&name(set, now)),
    }
}

/// Writes a set if it is still at `version`.
pub(crate) fn write(set: SetId, bytes: Vec<u8>, version: Option<u32>, now: Micros) -> bool {
    match (set.table, set.sharing) {
        (Table::Leases, Sharing::Worker) => {
            let write = |leases: &RefCell<Vec<Vec<u8>>>| {
                let mut leases = leases.borrow_mut();
                if leases.is_empty() {
                    leases.resize(place(SetId { index: SETS, ..set }), Vec::new());
                }
                if let Some(place) = leases.get_mut(place(set)) {
                    *place = bytes;
                }
            };
            LEASES.try_with(write).is_ok()
        }
        _ => write_name(&name(set, now), &bytes, version),
    }
}

fn place(set: SetId) -> usize {
    usize::try_from(set.index).unwrap_or(usize::MAX)
}

/// Whom leases are lent to: this VM, and no other before or after it.
pub(crate) fn lessee() -> Option<Digest> {
    LESSEE.with(|lessee| {
        if lessee.get().is_none() {
            let (high, low) = host::random().zip(host::random())?;
            let (high, low) = (u128::from(high) << 64, u128::from(low));
            lessee.set(Some(Digest::from_bytes((high | low).to_le_bytes())));
        }
        lessee.get()
    })
}

/// A breaker, and its version.
pub(crate) fn breaker(name: &str) -> (BreakerState, Option<u32>) {
    match host::shared_data(name) {
        Some((bytes, version)) => (BreakerState::decode(&bytes), Some(version)),
        None => (BreakerState::default(), None),
    }
}

/// Writes a breaker if it is still at `version`.
pub(crate) fn write_breaker(name: &str, state: &BreakerState, version: Option<u32>) -> bool {
    write_name(name, &state.encode(), version)
}

/// Where the breaker before a cluster is kept. Calls that no request is in have one of their own (`behind`): else they
/// would open that of requests, or be the one that tries in the place of one.
pub(crate) fn breaker_name(cluster: &str, behind: bool) -> String {
    let which = if behind { "breaker_behind" } else { "breaker" };
    format!("tollgate.{which}.{cluster}")
}

fn write_name(name: &str, bytes: &[u8], version: Option<u32>) -> bool {
    host::set_shared_data(name, bytes, version.unwrap_or(ABSENT))
}

fn name(set: SetId, now: Micros) -> String {
    match set.sharing {
        _ if set.table == Table::Leases => format!("tollgate.{}.leases.{}", lease::FORMAT, set.index),
        Sharing::Proxy => format!("tollgate.{FORMAT}.proxy.{}", set.index),
        // Without a number the VM shares the proxy's table: less than it might have, never more.
        Sharing::Worker => match worker_number(now) {
            Some(number) => format!("tollgate.{FORMAT}.worker.{number}.{}", set.index),
            None => format!("tollgate.{FORMAT}.proxy.{}", set.index),
        },
    }
}

/// This VM's number, claimed at first use and kept alive.
pub(crate) fn worker_number(now: Micros) -> Option<u32> {
    let held = CLAIM.get();
    if let Some(claim) = held.filter(|claim| now.since(claim.renewed) < CLAIM_RENEWAL) {
        return Some(claim.number);
    }
    let nonce = match held {
        Some(claim) => claim.nonce,
        None => host::random()?,
    };
    // Its own number first: it is renewed unless another VM has taken it for dead.
    let first = held.map(|claim| claim.number);
    let number = first.into_iter().chain(0..MAX_WORKERS).find(|number| claim(*number, nonce, now))?;
    CLAIM.set(Some(Claim { number, nonce, renewed: now }));
    Some(number)
}

/// Takes a number that is new, this VM's own, or dead.
fn claim(number: u32, nonce: u64, now: Micros) -> bool {
    let name = format!("tollgate.{FORMAT}.claim.{number}");
    let value = [nonce.to_le_bytes(), now.count().to_le_bytes()].concat();
    let stored = host::shared_data(&name);
    let free = stored.as_ref().is_none_or(|(bytes, _)| {
        let (numbers, _) = bytes.as_chunks::<8>();
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let (owner, renewed) = (numbers.next(), numbers.next().map(Micros::new));
        owner == Some(nonce) || renewed.is_none_or(|renewed| now.since(renewed) >= CLAIM_LIFE)
    });
    free && write_name(&name, &value, stored.map(|(_, version)| version))
}

/// Keeps this VM's number, if it has one, from being taken for dead.
pub(crate) fn renew(now: Micros) {
    if CLAIM.get().is_some() {
        worker_number(now);
    }
}
