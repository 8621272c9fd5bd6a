//! A client that makes up identities, one for each request.

use crate::{allocated, alone, setting};
use serde_json::json;
use tollgate_core::slots::{SETS, WAYS};
use tollgate_tests::{Envoy, EnvoyBuilder, NEVER, bucket, burst, config, load, local};

const CAPACITY: u64 = 5;

/// A bound for the table, in KiB: every set full, with the bucket that its newcomers share, and what the host needs to
/// keep a value under a name.
const TABLE: i64 = (SETS as i64) * ((WAYS as i64 + 1) * 80 + 400) / 1024;

async fn series(envoy: &Envoy) -> usize {
    envoy.admin("/stats/prometheus").await.lines().filter(|line| line.contains("tollgate")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_identities_take_a_table_and_mint_nothing() {
    // F76, F77
    let _alone = alone().await;
    let count: usize = setting("SOAK_IDENTITIES", 1_000_000);
    let mut per_key = local("per-key", CAPACITY, NEVER);
    per_key["key"] = json!(["credential"]);
    per_key["limit"] = bucket(CAPACITY, NEVER);
    let policy = config(&[local("guard", 1_000_000_000, "1000000/s"), per_key]);
    let mut envoy = EnvoyBuilder::benchmark(Some(policy)).start().await;
    let client = envoy.client();
    let victim = burst(CAPACITY as usize + 1, 1, |_| client.get_as("victim")).await;
    assert_eq!(victim.iter().filter(|reply| reply.status == 200).count(), CAPACITY as usize);

    // Connections and buffers are there before anything is measured.
    load::identities(envoy.address, 16, 0..1_000).await;
    let (series_before, before) = (series(&envoy).await, allocated(&envoy).await);
    let first = load::identities(envoy.address, 16, 1_000..count / 2).await;
    let half = allocated(&envoy).await;
    let second = load::identities(envoy.address, 16, count / 2..count).await;
    let after = allocated(&envoy).await;
    let admitted = |statuses: &[u16]| statuses.iter().filter(|status| **status == 200).count();
    println!(
        "{count} identities: {} + {} admitted; allocated {before} KiB, {half} KiB half way, {after} KiB after; the \
         table is {TABLE} KiB at the most; {} decided by overflow buckets",
        admitted(&first),
        admitted(&second),
        envoy.count("local.overflow").await,
    );
    assert!(first.iter().chain(&second).all(|status| matches!(status, 200 | 429)), "all are decided");
    let most = SETS as usize * (WAYS + CAPACITY as usize);
    assert!(admitted(&first) + admitted(&second) <= most, "no more than what the table's buckets hold: {most}");
    assert!(after - before <= TABLE, "{} KiB more", after - before);
    assert!(after - half <= TABLE / 4, "{} KiB more in the second half", after - half);
    assert_eq!(client.get_as("victim").await.status, 429, "what was spent stays spent");
    assert!(envoy.count("local.overflow").await > 0);
    assert_eq!(series(&envoy).await, series_before, "no series more than before");
    envoy.assert_sound();
}
