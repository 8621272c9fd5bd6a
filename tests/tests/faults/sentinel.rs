//! A master, its replica and the sentinels that watch them.

use super::*;
use tollgate_tests::Sentinels;

#[tokio::test]
async fn when_the_master_dies_the_replica_goes_on_with_what_it_has() {
    let mut all = Sentinels::start().await;
    let spender = Spender::over(&all.url(), &[]).await;
    for left in (90..100).rev() {
        assert_eq!(spender.recovers(1).await, left);
    }
    all.master.is_copied().await;
    // One sentinel that does not answer holds nobody up.
    all.freeze_one();
    all.master.process.kill();
    assert_eq!(spender.spend(1).await, None);
    assert_eq!(spender.recovers(1).await, 89);
    let role: redis::Value = all.replica.run("ROLE").await;
    assert!(format!("{role:?}").contains("master"), "{role:?}");
}

#[tokio::test]
async fn a_master_that_freezes_is_left_for_the_new_one() {
    let all = Sentinels::start().await;
    let spender = Spender::over(&all.url(), &[]).await;
    assert_eq!(spender.recovers(1).await, 99);
    all.master.is_copied().await;
    all.master.process.freeze();
    spender.fails_by(1, "timeout").await;
    assert_eq!(spender.recovers(1).await, 98);
}

#[tokio::test]
async fn a_planned_failover_is_followed() {
    let all = Sentinels::start().await;
    let spender = Spender::over(&all.url(), &[]).await;
    assert_eq!(spender.recovers(1).await, 99);
    all.master.is_copied().await;
    all.failover().await;
    eventually("the old master is a replica", async || {
        // It drops its connections when it becomes one.
        let info = all.master.try_run::<String>("INFO replication").await.map_err(|error| error.to_string())?;
        if info.contains("role:slave") { Ok(()) } else { Err(info) }
    })
    .await;
    assert!(spender.recovers(1).await <= 98);
    assert_eq!(all.replica.keys().await.len(), 1);
}
