//! Leases over every store, through the endpoint.

use super::{Servers, Store, charge, is_admitted};
use serde_json::{Value, json};
use std::time::Duration;
use tollgate_core::wire::{DecisionAnswer, LeaseAnswer};
use tollgate_tests::Redis;

/// What one charge says: whole units left, and the lease.
fn said(answer: &DecisionAnswer) -> Vec<(u64, Option<LeaseAnswer>)> {
    match answer {
        DecisionAnswer::Admitted(charges) => charges.iter().map(|charge| (charge.remaining, charge.lease)).collect(),
        DecisionAnswer::Denied(charges) => charges.iter().map(|charge| (charge.remaining, charge.lease)).collect(),
        DecisionAnswer::Failed(failure) => panic!("{failure:?}"),
    }
}

/// A charge with what a lessee says; without a cost where that is 0.
fn with_lease(name: u64, cost: u64, capacity: u64, lease: Value) -> Value {
    let mut charge = charge(name, cost.max(1), capacity, 0);
    if cost == 0 {
        charge.as_object_mut().expect("a map").remove("cost");
    }
    charge["lease"] = lease;
    charge
}

fn call(lessee: u64, seq: u64, kept: u64, returned: u64, wanted: u64) -> Value {
    json!({"lessee": format!("{lessee:032x}"), "seq": seq, "acked": seq - 1, "kept": kept, "returned": returned,
           "wanted": wanted})
}

const fn lease(seq: u64, units: u64) -> Option<LeaseAnswer> {
    Some(LeaseAnswer { seq, units, room: 0, rate: 0 })
}

async fn ask(store: &Store, charge: Value) -> (u64, Option<LeaseAnswer>) {
    said(&store.one(&[charge]).await)[0]
}

pub async fn a_lease_is_a_part_of_what_is_left_and_comes_back(store: Store) {
    assert_eq!(ask(&store, with_lease(1, 4, 100, call(1, 1, 0, 0, 10))).await, (86, lease(1, 10)));
    assert_eq!(ask(&store, with_lease(1, 0, 100, call(2, 1, 0, 0, 1000))).await, (65, lease(1, 21)));
    // Seven of ten are unspent: two are kept, five come back.
    assert_eq!(ask(&store, with_lease(1, 0, 100, call(1, 2, 2, 5, 0))).await, (70, lease(2, 2)));
    assert_eq!(ask(&store, charge(1, 1, 100, 0)).await, (69, None));
    // What is lent can be spent by nobody else.
    assert!(!is_admitted(&store.one(&[charge(1, 70, 100, 0)]).await));
    assert!(is_admitted(&store.one(&[charge(1, 69, 100, 0)]).await));
}

pub async fn a_report_counts_once(store: Store) {
    assert_eq!(ask(&store, with_lease(2, 0, 100, call(1, 1, 0, 0, 20))).await, (80, lease(1, 20)));
    assert_eq!(ask(&store, with_lease(2, 0, 100, call(1, 1, 0, 0, 20))).await, (80, lease(1, 20)));
    assert_eq!(ask(&store, with_lease(2, 0, 100, call(1, 2, 0, 20, 0))).await, (100, lease(2, 0)));
    assert_eq!(ask(&store, with_lease(2, 0, 100, call(1, 2, 0, 20, 0))).await, (100, lease(2, 0)));
    assert_eq!(ask(&store, with_lease(2, 0, 100, call(1, 1, 0, 0, 20))).await, (100, None));
    assert_eq!(ask(&store, with_lease(2, 0, 100, call(9, 5, 50, 50, 0))).await, (100, lease(5, 0)));
}

pub async fn a_denial_spends_nothing_and_lends_all_the_same(store: Store) {
    let two = [with_lease(3, 1, 100, call(1, 1, 0, 0, 10)), charge(4, 5, 4, 0)];
    let answer = store.one(&two).await;
    assert!(!is_admitted(&answer));
    assert_eq!(said(&answer), [(90, lease(1, 10)), (4, None)]);
    let two = [with_lease(3, 1, 100, call(1, 2, 10, 0, 0)), with_lease(4, 4, 40, call(1, 1, 0, 0, 8))];
    let answer = store.one(&two).await;
    assert!(is_admitted(&answer));
    assert_eq!(said(&answer)[0], (89, lease(2, 10)));
}

/// Where all want more than there is, each gets a share of the refill by its demand, and earns it without a call.
pub async fn a_rate_is_a_share_of_the_refill(store: Store) {
    let wants = |lessee: u64, seq: u64, demand: u64| {
        let mut charge = charge(5, 1, 100, 100);
        charge.as_object_mut().expect("a map").remove("cost");
        charge["lease"] = call(lessee, seq, 0, 0, demand);
        charge["lease"]["demand"] = json!(demand);
        charge
    };
    assert!(is_admitted(&store.one(&[charge(5, 100, 100, 100)]).await));
    let lease = |(_, lease): (u64, Option<LeaseAnswer>)| lease.expect("a lease");
    assert_eq!(lease(ask(&store, wants(1, 1, 90)).await).rate, 0, "there is enough");
    let other = lease(ask(&store, wants(2, 1, 300)).await);
    let one = lease(ask(&store, wants(1, 2, 90)).await);
    assert!((30..=45).contains(&other.room) && (5..=15).contains(&one.room), "{other:?}, {one:?}");
    let parts = other.rate as f64 / one.rate as f64;
    // By their demands 3.3; a part stays for newcomers.
    assert!((3.2..4.0).contains(&parts), "{parts}: {other:?}, {one:?}");
    assert!(!is_admitted(&store.one(&[charge(5, 60, 100, 100)]).await), "nor is there more by waiting a little");
}

/// Nor does an endpoint that has just started take what was lost for new, while one is there that knows better.
#[tokio::test]
async fn a_bucket_that_was_lost_begins_empty_for_newcomers_too() {
    let mut learns = charge(1, 1, 100, 20);
    learns["lost_state"] = json!("learn");
    let (store, other) = Store::redis().await.restarted().await;
    let marker: String = store.server().run("GET tollgate-marker").await;
    assert_ne!(marker, "m:0");
    assert!(!is_admitted(&other.one(&[learns]).await), "{marker}");
}

/// A server that nobody knows is a new one.
#[tokio::test]
async fn a_new_server_has_lost_nothing() {
    let redis = Redis::start().await;
    redis.flush().await;
    let store = Store::over(&redis.url(), Servers::None).await;
    assert_eq!(redis.run::<String>("GET tollgate-marker").await, "m:0");
    let mut learns = charge(1, 1, 100, 20);
    learns["lost_state"] = json!("learn");
    assert!(is_admitted(&store.one(&[learns]).await));
}

/// A flush is no gift: what learns begins empty, and refills.
#[tokio::test]
async fn a_bucket_that_redis_has_lost_begins_empty_where_it_learns() {
    let store = Store::redis().await;
    let learns = |name: u64| {
        let mut charge = charge(name, 1, 100, 20);
        charge["lost_state"] = json!("learn");
        charge
    };
    assert!(is_admitted(&store.one(&[learns(1)]).await), "a new store has lost nothing");
    store.server().flush().await;
    assert!(!is_admitted(&store.one(&[learns(1)]).await));
    assert!(!is_admitted(&store.one(&[learns(2)]).await), "nor is any other full");
    assert!(is_admitted(&store.one(&[charge(3, 1, 100, 20)]).await), "but for those that do not learn");
    // All leases that there may have been are dead after two of their lives.
    tokio::time::sleep(Duration::from_millis(4_200)).await;
    assert!(is_admitted(&store.one(&[learns(1)]).await), "it has refilled since");
}
