//! Leases in real processes: several Envoys, one budget.
//!
//! What reaches the upstream is measured there, request by request. `TOLLGATE_LEASE_SECONDS=30` measures for longer.

mod envelope;

use envelope::Envelope;
use futures_util::future::join_all;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tollgate_tests::load::{Requests, paced};
use tollgate_tests::{
    Endpoint, Envoy, EnvoyBuilder, FlakyLink, NEVER, Redis, Upstream, burst, config, eventually, global,
};

/// They measure rates, so they run one after another.
static ALONE: Mutex<()> = Mutex::const_new(());

const CAPACITY: u64 = 500;
const REFILL: u64 = 500;
const OFFERED: f64 = 800.0;

fn leased(capacity: u64, refill: &str) -> Value {
    let mut policy = global("shared", capacity, refill, json!("closed"));
    policy["mode"] = json!("leased");
    policy["lost_state"] = json!("full");
    let mut config = config(&[policy]);
    config["endpoint"]["timeout"] = json!("100ms");
    config
}

fn one_caller() -> Requests {
    Arc::new([b"GET / HTTP/1.1\r\nhost: load\r\nx-api-key: one\r\n\r\n".to_vec()])
}

async fn envoys(policy: &Value, upstream: SocketAddr, endpoints: &[SocketAddr]) -> Vec<Envoy> {
    let start = |endpoint: &SocketAddr| EnvoyBuilder::new(policy.clone(), upstream).endpoint(*endpoint).start();
    join_all(endpoints.iter().map(start)).await
}

/// How long to measure.
fn span() -> Duration {
    let seconds = std::env::var("TOLLGATE_LEASE_SECONDS").ok().map(|text| text.parse().expect("whole seconds"));
    Duration::from_secs(seconds.unwrap_or(10))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_envoys_use_a_shared_budget_to_the_full_and_never_more() {
    // F81
    let _alone = ALONE.lock().await;
    let (redis, upstream) = (Redis::start().await, Upstream::recording().await);
    let endpoint = Endpoint::start(&redis.url()).await;
    let policy = leased(CAPACITY, &format!("{REFILL}/s"));
    let mut envoys = envoys(&policy, upstream.address, &[endpoint.address; 4]).await;
    let requests = one_caller();
    join_all(envoys.iter().map(|envoy| paced(envoy.address, 16, OFFERED / 4.0, span(), &requests))).await;
    let envelope = Envelope::of(&upstream.arrivals(), CAPACITY, REFILL);
    println!("four Envoys: {envelope}");
    envelope.assert_kept();
    assert!(envelope.used() >= 0.97, "{envelope}");
    envoys.iter_mut().for_each(Envoy::assert_sound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_budget_holds_while_an_envoy_is_killed_an_endpoint_restarts_and_calls_are_lost() {
    // F81
    let _alone = ALONE.lock().await;
    let (redis, upstream) = (Redis::start().await, Upstream::recording().await);
    let (one, mut other) = (Endpoint::start(&redis.url()).await, Endpoint::start(&redis.url()).await);
    let links = [FlakyLink::to(one.address, 20).await, FlakyLink::to(other.address, 20).await];
    let policy = leased(CAPACITY, &format!("{REFILL}/s"));
    let [first, second] = [links[0].address, links[1].address];
    let mut envoys = envoys(&policy, upstream.address, &[first, second, first, second]).await;
    let requests = one_caller();
    let load = |envoy: &Envoy, time| {
        let (address, requests) = (envoy.address, Arc::clone(&requests));
        tokio::spawn(async move { paced(address, 16, OFFERED / 4.0, time, &requests).await.count() })
    };
    let third = span() / 3;
    let mut doomed = envoys.remove(0);
    let killed = load(&doomed, third + Duration::from_secs(1));
    let others: Vec<_> = envoys.iter().map(|envoy| load(envoy, span())).collect();
    tokio::time::sleep(third).await;
    doomed.process.kill();
    assert!(killed.await.is_err(), "its clients lose their connections");
    tokio::time::sleep(third).await;
    other.restart().await;
    for load in others {
        load.await.expect("every request has a reply");
    }
    let lost: u64 = links.iter().map(FlakyLink::lost).sum();
    let envelope = Envelope::of(&upstream.arrivals(), CAPACITY, REFILL);
    println!("one killed, an endpoint restarted, {lost} calls lost: {envelope}");
    assert!(lost > 0);
    envelope.assert_kept();
    envoys.iter_mut().for_each(Envoy::assert_sound);
}

/// At twenty times the limit a proxy calls a few times a second, whatever is offered.
async fn a_storm(capacity: u64, refill: u64, least: f64) {
    const PROXIES: usize = 2;
    let _alone = ALONE.lock().await;
    let (redis, upstream) = (Redis::start().await, Upstream::recording().await);
    let endpoint = Endpoint::start(&redis.url()).await;
    let policy = leased(capacity, &format!("{refill}/s"));
    let mut envoys = envoys(&policy, upstream.address, &[endpoint.address; PROXIES]).await;
    let requests = one_caller();
    let offered = 20.0 * refill as f64 / PROXIES as f64;
    let storm = async |time| {
        join_all(envoys.iter().map(|envoy| paced(envoy.address, 16, offered, time, &requests))).await;
    };
    // Until all have found their shares.
    storm(Duration::from_secs(4)).await;
    let (calls, arrived) = (redis.commands("evalsha").await, upstream.arrivals().len());
    storm(span()).await;
    let calls = (redis.commands("evalsha").await - calls) as f64 / PROXIES as f64 / span().as_secs_f64();
    let envelope = Envelope::of(&upstream.arrivals(), capacity, refill);
    let used = (upstream.arrivals().len() - arrived) as f64 / (refill as f64 * span().as_secs_f64());
    println!(
        "20 times {refill}/s with capacity {capacity}: {calls:.1} calls a second and proxy, {used:.3} used; {envelope}"
    );
    envelope.assert_kept();
    assert!(used >= least, "{used} used");
    assert!(calls <= 3.0, "{calls} calls a second and proxy");
    envoys.iter_mut().for_each(Envoy::assert_sound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_twenty_times_the_limit_a_proxy_calls_a_few_times_a_second() {
    // F82
    a_storm(200, 200, 0.97).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_twenty_times_a_limit_with_a_small_capacity_too() {
    // F82
    a_storm(40, 200, 0.9).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_far_below_its_limit_costs_hardly_any_calls() {
    let _alone = ALONE.lock().await;
    let (redis, upstream) = (Redis::start().await, Upstream::start().await);
    let endpoint = Endpoint::start(&redis.url()).await;
    let policy = leased(20_000, "10000/s");
    let mut envoys = envoys(&policy, upstream.address, &[endpoint.address]).await;
    let requests = one_caller();
    let answers = paced(envoys[0].address, 16, 1000.0, span(), &requests).await;
    let admitted = answers.with(200).count();
    assert_eq!(admitted, answers.count(), "all of them");
    let before = redis.commands("evalsha").await;
    println!("{admitted} admitted for {before} calls of the script: {:.4} each", before as f64 / admitted as f64);
    assert!(before > 0 && before as f64 <= 0.02 * admitted as f64, "{before} calls for {admitted} requests");
    envoys.iter_mut().for_each(Envoy::assert_sound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_envoy_borrowed_and_does_not_use_another_gets() {
    let _alone = ALONE.lock().await;
    let (endpoint, upstream) = (Endpoint::start("memory").await, Upstream::start().await);
    let policy = leased(400, NEVER);
    let mut envoys = envoys(&policy, upstream.address, &[endpoint.address; 2]).await;
    let client = envoys[0].client();
    let there = burst(20, 1, |_| client.get_as("one")).await;
    assert!(there.iter().all(|reply| reply.status == 200));
    // All of the budget is used in the end, and no more.
    let client = envoys[1].client();
    eventually("the rest of the budget", async || {
        burst(50, 4, |_| client.get_as("one")).await;
        match upstream.requests() {
            400 => Ok(()),
            count => Err(format!("{count} admitted")),
        }
    })
    .await;
    let refused = burst(20, 4, |_| client.get_as("one")).await;
    assert!(refused.iter().all(|reply| reply.status == 429 && reply.header("retry-after").is_some()));
    envoys.iter_mut().for_each(Envoy::assert_sound);
}
