//! One server: restarts, a replica by mistake, loading, out of memory, busy, slow.

use super::*;
use futures_util::future::join_all;
use tollgate_tests::{Link, Redis};

#[tokio::test]
async fn a_restart_with_its_data_goes_on_where_it_was() {
    let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let spender = Spender::over(&redis.url(), &[]).await;
    for left in (90..100).rev() {
        assert_eq!(spender.spend(1).await, Some(left));
    }
    redis.process.kill();
    spender.fails_by(1, "unreachable").await;
    redis.restart().await;
    // What was asked of it as it went away may have been charged, and never more than that.
    assert_eq!(spender.recovers(1).await, 89);
}

#[tokio::test]
async fn a_restart_without_data_is_a_full_bucket_and_nothing_worse() {
    let mut redis = Redis::start().await;
    let spender = Spender::over(&redis.url(), &[]).await;
    assert_eq!(spender.spend(1).await, Some(99));
    assert_eq!(spender.spend(1).await, Some(98));
    redis.process.kill();
    spender.fails_by(1, "unreachable").await;
    redis.restart().await;
    assert_eq!(spender.recovers(1).await, 99);
    assert_eq!(spender.spend(1).await, Some(98));
}

#[tokio::test]
async fn a_quick_restart_is_seen_before_anybody_asks() {
    let mut redis = Redis::start().await;
    let spender = Spender::over(&redis.url(), &[]).await;
    spender.recovers(1).await;
    redis.restart().await;
    // The connection says when it ends, so that no request has to find out.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(spender.spend(1).await, Some(99));
}

#[tokio::test]
async fn scripts_that_are_flushed_cost_no_decision() {
    // F39
    let redis = Redis::start().await;
    let spender = Spender::over(&redis.url(), &[]).await;
    for left in (50..100).rev() {
        redis.run::<()>("SCRIPT FLUSH").await;
        assert_eq!(spender.spend(1).await, Some(left));
    }
    // Again and again while many ask.
    let flushes = async {
        for _ in 0..100 {
            redis.run::<()>("SCRIPT FLUSH").await;
        }
    };
    let (left, ()) = tokio::join!(join_all((0..40).map(|_| spender.spend(1))), flushes);
    let mut left: Vec<u64> = left.into_iter().map(|left| left.expect("a decision")).collect();
    left.sort_unstable();
    assert_eq!(left, (10..50).collect::<Vec<u64>>());
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_is_left() {
    let (redis, other) = (Redis::start().await, Redis::start().await);
    let spender = Spender::over(&redis.url(), &[]).await;
    assert_eq!(spender.spend(1).await, Some(99));
    redis.run::<()>(&format!("REPLICAOF 127.0.0.1 {}", other.address.port())).await;
    spender.fails_by(1, "read_only").await;
    redis.run::<()>("REPLICAOF NO ONE").await;
    assert!(spender.recovers(1).await >= 98, "it may have taken over the other's data, which is none");
}

#[tokio::test]
async fn a_server_that_is_loading_is_waited_for() {
    // F42
    // Some four seconds of loading, a millisecond for each key, after each of which it answers who asks.
    let slow =
        ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no"];
    let mut redis = Redis::start_with(&slow).await;
    let fill = "for key = 1, 4000 do redis.call('SET', key, string.rep('x', 1024)) end";
    redis::cmd("EVAL").arg(fill).arg(0).query_async::<()>(&mut redis.connect().await).await.expect("keys");
    let spender = Spender::over(&redis.url(), &[]).await;
    assert_eq!(spender.spend(1).await, Some(99));
    redis.run::<()>("SAVE").await;
    redis.process.kill();
    let restart = redis.restart();
    let spend = spender.fails_by(1, "loading");
    tokio::join!(restart, spend);
    assert_eq!(spender.recovers(1).await, 98);
}

#[tokio::test]
async fn a_server_without_memory_denies_nothing_and_admits_nothing() {
    // F42
    let redis = Redis::start().await;
    let spender = Spender::over(&redis.url(), &[]).await;
    assert_eq!(spender.spend(1).await, Some(99));
    let three = [charge(1), charge(2), charge(3)];
    assert!(matches!(spender.ask(&three).await, DecisionAnswer::Admitted(_)));
    let dump = async || {
        let keys = redis.keys().await;
        redis::cmd("MGET").arg(&keys).query_async::<Vec<String>>(&mut redis.connect().await).await.expect("values")
    };
    let before = dump().await;
    redis.run::<()>("CONFIG SET maxmemory 100kb").await;
    spender.fails_by(1, "out_of_memory").await;
    spender.fails_by(4, "out_of_memory").await;
    assert!(matches!(spender.ask(&three).await, DecisionAnswer::Failed(_)));
    assert_eq!(dump().await, before, "not one of them is written");
    redis.run::<()>("CONFIG SET maxmemory 0").await;
    assert_eq!(spender.recovers(1).await, 97);
}

#[tokio::test]
async fn a_server_that_takes_no_writes_for_want_of_replicas_is_waited_for() {
    // F42
    let redis = Redis::start().await;
    let spender = Spender::over(&redis.url(), &[]).await;
    assert_eq!(spender.spend(1).await, Some(99));
    redis.run::<()>("CONFIG SET min-replicas-to-write 1").await;
    spender.fails_by(1, "not_writable").await;
    redis.run::<()>("CONFIG SET min-replicas-to-write 0").await;
    assert_eq!(spender.recovers(1).await, 98);
}

#[tokio::test]
async fn a_server_that_is_busy_with_a_script_is_a_failure_until_it_is_free() {
    // F42
    let redis = Redis::start_with(&["--busy-reply-threshold", "50"]).await;
    let spender = Spender::over(&redis.url(), &[]).await;
    assert_eq!(spender.spend(1).await, Some(99));
    let mut connection = redis.connect().await;
    let script = tokio::spawn(async move {
        redis::cmd("EVAL").arg("while true do end").arg(0).query_async::<()>(&mut connection).await
    });
    spender.fails_by(1, "busy").await;
    redis.run::<()>("SCRIPT KILL").await;
    assert!(script.await.expect("an end").is_err());
    // What was sent before it was busy has waited there, and was charged.
    assert!(spender.recovers(1).await >= 90);
}

#[tokio::test]
async fn a_server_that_is_slow_is_not_waited_for_and_the_breaker_opens() {
    let redis = Redis::start().await;
    let link = Link::to(redis.address, Duration::ZERO).await;
    let spender = Spender::over(&format!("redis://{}", link.address), &[]).await;
    assert_eq!(spender.spend(1).await, Some(99));
    link.set_delay(Duration::from_secs(2));
    spender.fails_by(1, "timeout").await;
    spender.fails_by(1, "breaker_open").await;
    assert!(spender.metrics().await.contains("tollgate_store_open_breakers 1"));
    link.set_delay(Duration::ZERO);
    // What is late is charged, and nobody was admitted by it.
    assert!(spender.recovers(1).await >= 80);
    assert!(!spender.metrics().await.contains("tollgate_store_open_breakers"));
}

#[tokio::test]
async fn state_that_is_not_ours_is_never_a_full_bucket() {
    let redis = Redis::start().await;
    let spender = Spender::over(&redis.url(), &[]).await;
    assert_eq!(spender.spend(1).await, Some(99));
    let key = redis.keys().await.remove(0);
    for (number, write) in (1..).zip([
        format!("SET {key} rubbish"),
        format!("SET {key} b:5:0:1"),
        format!("SET {key} b:-5:0:1:1"),
        format!("SET {key} b:5:0:1:1:1"),
        format!("SET {key} g:5:0:1"),
        format!("LPUSH {key} rubbish"),
        format!("HSET {key} tokens 5"),
        format!("SADD {key} 5"),
    ]) {
        redis.run::<()>(&format!("DEL {key}")).await;
        redis.run::<()>(&write).await;
        assert_eq!(spender.spend(1).await, None, "{write}");
        assert_eq!(spender.faults("malformed_state").await, number, "{write}");
    }
    redis.run::<()>(&format!("DEL {key}")).await;
    assert_eq!(spender.spend(1).await, Some(99));
}
