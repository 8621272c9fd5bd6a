//! A cluster: nodes that die, slots that move, budgets in several slots.

use super::*;
use tollgate_tests::{RedisCluster, burst};

/// A budget whose slot is at this master at first.
fn at(master: usize) -> u64 {
    // As CLUSTER KEYSLOT has it: 3 slots of neighbouring names lie anywhere.
    (1..).find(|name| RedisCluster::master_of(slot(*name)) == master).expect("a name")
}

fn slot(name: u64) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(format!("{name:032x}").as_bytes()) % 16_384
}

#[tokio::test]
async fn when_a_node_dies_the_others_go_on_and_its_replica_takes_over() {
    let mut cluster = RedisCluster::start_with(true).await;
    let spender = Spender::over(&cluster.url(), &[]).await;
    let (gone, there) = (at(1), at(2));
    assert_eq!(spender.recovers(gone).await, 99);
    assert_eq!(spender.recovers(there).await, 99);
    cluster.masters[1].is_copied().await;
    cluster.masters[1].process.kill();
    spender.fails_by(gone, "unreachable").await;
    assert_eq!(spender.recovers(gone).await, 98);
    // While the cluster found a new master it may have stopped as a whole; the other node's budget is as it was.
    assert_eq!(spender.recovers(there).await, 98);
}

#[tokio::test]
async fn a_cluster_that_has_lost_a_master_for_good_admits_nothing_until_it_is_back() {
    // F40
    let mut cluster = RedisCluster::start().await;
    let spender = Spender::over(&cluster.url(), &[]).await;
    let (gone, there) = (at(0), at(2));
    assert_eq!(spender.recovers(gone).await, 99);
    assert_eq!(spender.recovers(there).await, 99);
    cluster.masters[0].process.kill();
    spender.fails_by(gone, "unreachable").await;
    // With a part missing the whole cluster stops, as Redis has it unless it is told otherwise.
    eventually("the cluster is down", async || {
        spender.spend(there).await;
        if spender.faults("cluster_down").await > 0 { Ok(()) } else { Err(spender.metrics().await) }
    })
    .await;
    spender.fails_by(there, "cluster_down").await;
    cluster.masters[0].restart().await;
    spender.recovers(there).await;
    assert_eq!(spender.recovers(gone).await, 99, "it came back without its data");
}

#[tokio::test]
async fn a_node_that_freezes_holds_up_nobody_else() {
    let cluster = RedisCluster::start().await;
    let spender = Spender::over(&cluster.url(), &[]).await;
    let (frozen, there) = (at(0), at(2));
    assert_eq!(spender.recovers(frozen).await, 99);
    assert_eq!(spender.recovers(there).await, 99);
    cluster.masters[0].process.freeze();
    spender.fails_by(frozen, "timeout").await;
    assert_eq!(spender.spend(there).await, Some(98));
    // In one request: one answer and one failure, each for itself.
    let body = json!({"decisions": [{"charges": [charge(frozen)]}, {"charges": [charge(there)]}]}).to_string();
    let reply = send(spender.client.request(Method::POST, "/v1/admit").body(body)).await;
    let answers = serde_json::from_str::<AdmitAnswer>(&reply.body).expect("an answer").decisions;
    assert!(matches!(&answers[..], [DecisionAnswer::Failed(_), DecisionAnswer::Admitted(_)]), "{answers:?}");
    spender.fails_by(frozen, "breaker_open").await;
    cluster.masters[0].process.thaw();
    assert!(spender.recovers(frozen).await >= 80);
}

#[tokio::test]
async fn a_slot_that_moves_costs_no_decision() {
    let cluster = RedisCluster::start().await;
    let spender = Spender::over(&cluster.url(), &[]).await;
    let name = at(0);
    let (slot, from, to) = (slot(name), &cluster.masters[0], &cluster.masters[2]);
    let other = slot_mate(name);
    assert_eq!(spender.recovers(name).await, 99);
    let ids: Vec<String> = vec![from.run("CLUSTER MYID").await, to.run("CLUSTER MYID").await];
    to.run::<()>(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0])).await;
    from.run::<()>(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1])).await;
    // A key that is still there, and one that is new and so belongs to the other side: ASK.
    assert_eq!(spender.spend(name).await, Some(98));
    assert_eq!(spender.ask(std::slice::from_ref(&other)).await, admitted(99));
    assert_eq!(spender.ask(std::slice::from_ref(&other)).await, admitted(98));
    // Both at once are on neither side.
    let both = spender.ask(&[charge(name), other.clone()]).await;
    assert!(matches!(both, DecisionAnswer::Failed(_)), "{both:?}");
    assert_eq!(spender.faults("moving").await, 1);
    // The key moves, and then the slot: MOVED.
    let key = from.keys().await.remove(0);
    from.run::<()>(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", to.address.port())).await;
    assert_eq!(spender.spend(name).await, Some(97));
    for node in cluster.nodes() {
        node.run::<()>(&format!("CLUSTER SETSLOT {slot} NODE {}", ids[1])).await;
    }
    assert_eq!(spender.spend(name).await, Some(96));
    assert_eq!(spender.ask(&[charge(name), other]).await, DecisionAnswer::Admitted(vec![left(95), left(97)]));
    for kind in ["unreachable", "timeout", "other"] {
        assert_eq!(spender.faults(kind).await, 0, "{kind}");
    }
}

/// Another budget in the same slot.
fn slot_mate(name: u64) -> Value {
    let mut other = charge(name);
    other["policy"] = json!("q");
    other
}

fn left(remaining: u64) -> tollgate_core::wire::Admitted {
    tollgate_core::wire::Admitted { remaining, lease: None }
}

fn admitted(remaining: u64) -> DecisionAnswer {
    DecisionAnswer::Admitted(vec![left(remaining)])
}

#[tokio::test]
async fn scripts_that_are_flushed_on_every_node_cost_no_decision() {
    let cluster = RedisCluster::start().await;
    let spender = Spender::over(&cluster.url(), &[]).await;
    spender.recovers(1).await;
    for _ in 0..20 {
        for node in cluster.nodes() {
            node.run::<()>("SCRIPT FLUSH").await;
        }
        let charges = [charge(at(0)), charge(at(1)), charge(at(2))];
        assert!(matches!(spender.ask(&charges).await, DecisionAnswer::Admitted(_)));
    }
}

#[tokio::test]
async fn budgets_in_several_slots_are_spent_together_or_not_at_all() {
    // F40, F46
    let cluster = RedisCluster::start().await;
    let spender = Spender::over(&cluster.url(), &[]).await;
    let (wide, narrow, last) = (at(0), at(1), at(2));
    spender.recovers(last).await;
    let small = |name| {
        let mut charge = charge(name);
        charge["token_bucket"]["capacity"] = json!(40);
        charge
    };
    // Many at once on the last units of the narrow one: exactly those are admitted.
    let body = json!({"decisions": [{"charges": [charge(wide), small(narrow)]}]}).to_string();
    let replies = burst(200, 32, |_| send(spender.client.request(Method::POST, "/v1/admit").body(body.clone()))).await;
    let admitted = replies.iter().filter(|reply| reply.body.contains("admitted")).count();
    let failed: Vec<&str> =
        replies.iter().map(|reply| reply.body.as_str()).filter(|body| body.contains("failed")).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(admitted, 40);
    // Of those that lost the race, what was reserved goes back.
    eventually("what was reserved is back", async || match spender.ask(&[charge(wide), small(narrow)]).await {
        DecisionAnswer::Denied(denied) if denied[0].remaining == 60 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    // Without a race a denied request spends nothing.
    for _ in 0..20 {
        let denied = spender.ask(&[charge(wide), small(narrow), charge(last)]).await;
        let DecisionAnswer::Denied(denied) = denied else { panic!("{denied:?}") };
        assert_eq!(denied.iter().map(|charge| charge.denied.is_some()).collect::<Vec<_>>(), [false, true, false]);
    }
    assert_eq!(spender.spend(wide).await, Some(59));
}

#[tokio::test]
async fn budgets_in_several_slots_are_never_overspent_when_a_node_fails_in_between() {
    let cluster = RedisCluster::start().await;
    let spender = Spender::over(&cluster.url(), &[]).await;
    let (here, there) = (at(0), at(2));
    spender.recovers(here).await;
    spender.recovers(there).await;
    cluster.masters[2].process.freeze();
    for _ in 0..10 {
        assert!(matches!(spender.ask(&[charge(here), charge(there)]).await, DecisionAnswer::Failed(_)));
    }
    cluster.masters[2].process.thaw();
    spender.recovers(there).await;
    assert_eq!(spender.spend(here).await, Some(98), "it was asked, and not charged");
}
