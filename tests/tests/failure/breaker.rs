//! The breaker before the endpoint: who asks while calls fail, and what that costs the others.

use crate::{Timing, alone, fail_modes, statuses};
use axum::response::IntoResponse;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tollgate_tests::{Client, Endpoint, EnvoyBuilder, FakeEndpoint, Lateness, Upstream, burst, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_opens_lets_one_try_at_a_time_and_closes() {
    let _alone = alone().await;
    let upstream = Upstream::start().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let mut policy = fail_modes();
    policy["endpoint"]["breaker"] = json!({"failures": 3, "within": "10s", "open_for": "1s"});
    let counted = Arc::clone(&calls);
    let garbage = FakeEndpoint::start(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        async { "garbage".into_response() }
    })
    .await;
    let mut envoy = EnvoyBuilder::new(policy, upstream.address).endpoint(garbage.address).start().await;
    assert_eq!(statuses(&envoy, "/closed", 40).await, [503; 40]);
    assert_eq!(calls.load(Ordering::SeqCst), 3, "three failures, whichever worker saw them, and then no call");
    assert_eq!((envoy.count("failure.bad_answer").await, envoy.count("failure.breaker_open").await), (3, 37));
    assert_eq!((envoy.count("breaker.is_open").await, envoy.count("breaker.opened").await), (1, 1));
    assert_eq!(statuses(&envoy, "/open", 1).await, [200], "each policy's own fail mode");

    tokio::time::sleep(Duration::from_millis(1100)).await;
    let client = envoy.client();
    let replies = burst(60, 20, |_| client.get("/closed")).await;
    assert!(replies.iter().all(|reply| reply.status == 503));
    assert_eq!(calls.load(Ordering::SeqCst), 4, "one of them tried for all");

    let address = garbage.address;
    drop(garbage);
    let _endpoint = eventually("the port is free", async || {
        std::net::TcpListener::bind(address).map(drop)?;
        Ok::<_, std::io::Error>(Endpoint::start_at(address).await)
    })
    .await;
    eventually("requests are decided again", async || match client.get("/closed").await.status {
        200 => Ok(()),
        status => Err(status),
    })
    .await;
    eventually("all of them are", async || {
        let statuses = statuses(&envoy, "/closed", 10).await;
        if statuses == [200; 10] { Ok(()) } else { Err(format!("{statuses:?}")) }
    })
    .await;
    assert_eq!(envoy.count("breaker.is_open").await, 0);
    envoy.assert_sound();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_gauge_is_of_the_configuration_that_is_in_force() {
    let _alone = alone().await;
    let upstream = Upstream::start().await;
    let garbage = FakeEndpoint::start(|| async { "garbage".into_response() }).await;
    let mut policy = fail_modes();
    policy["endpoint"]["breaker"] = json!({"failures": 3, "within": "10s", "open_for": "60s"});
    let mut envoy = EnvoyBuilder::new(policy.clone(), upstream.address).endpoint(garbage.address).start().await;
    assert_eq!(envoy.count("breaker.is_open").await, 0);
    assert_eq!(statuses(&envoy, "/closed", 10).await, [503; 10]);
    assert_eq!(envoy.count("breaker.is_open").await, 1);
    for (breaker, is_open) in [(json!("none"), 0), (policy["endpoint"]["breaker"].clone(), 1)] {
        policy["endpoint"]["breaker"] = breaker;
        assert!(envoy.push(policy.clone()).await);
        eventually("the gauge follows", async || {
            assert_eq!(statuses(&envoy, "/closed", 1).await, [503]);
            let found = envoy.count("breaker.is_open").await;
            if found == is_open { Ok(()) } else { Err(found) }
        })
        .await;
    }
    envoy.assert_sound();
}

/// What one request saw: when it was sent, its status, and how long it took.
type Seen = (Duration, u16, Duration);

/// So many requests a second on so many connections, until it is dropped.
fn load(client: &Client, seen: &Arc<Mutex<Vec<Seen>>>, start: Instant) -> tokio::task::JoinSet<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (client, seen) = (client.clone(), Arc::clone(seen));
        tasks.spawn(async move {
            loop {
                let sent = start.elapsed();
                let reply = client.get("/closed").await;
                seen.lock().expect("no panic").push((sent, reply.status, reply.took));
                tokio::time::sleep(Duration::from_millis(15)).await;
            }
        });
    }
    tasks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeline_of_an_endpoint_that_hangs_dies_talks_nonsense_and_flaps() {
    // F48
    let _alone = alone().await;
    let upstream = Upstream::start().await;
    let mut endpoint = Endpoint::start("memory").await;
    let address = endpoint.address;
    let mut envoy = EnvoyBuilder::new(fail_modes(), upstream.address).endpoint(address).start().await;
    assert_eq!(statuses(&envoy, "/closed", 5).await, [200; 5]);
    let machine = Lateness::watch();
    let (start, seen) = (Instant::now(), Arc::<Mutex<Vec<Seen>>>::default());
    let tasks = load(&envoy.client(), &seen, start);
    let wait = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    let mut phases = Vec::new();
    let mut phase = |name: &'static str| phases.push((start.elapsed(), name));

    phase("well");
    wait(2).await;
    phase("hangs");
    endpoint.process.freeze();
    wait(4).await;
    phase("well");
    endpoint.process.thaw();
    wait(4).await;
    phase("dead");
    endpoint.process.kill();
    wait(3).await;
    phase("garbage");
    let garbage = FakeEndpoint::start_at(address, || async { "<html>".into_response() }).await;
    wait(3).await;
    drop(garbage);
    phase("flaps");
    for _ in 0..4 {
        endpoint.restart().await;
        tokio::time::sleep(Duration::from_millis(700)).await;
        endpoint.process.kill();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    phase("well");
    endpoint.restart().await;
    wait(5).await;
    drop(tasks);

    let seen = seen.lock().expect("no panic").clone();
    println!("second  endpoint   200   503  other   p50 ms   p99 ms   worst ms");
    for second in 0..=start.elapsed().as_secs() {
        let these: Vec<&Seen> = seen.iter().filter(|(sent, ..)| sent.as_secs() == second).collect();
        let name = phases.iter().rev().find(|(at, _)| at.as_secs() <= second).map_or("", |(_, name)| name);
        let count = |status: fn(u16) -> bool| these.iter().filter(|(_, got, _)| status(*got)).count();
        let mut took: Vec<f64> = these.iter().map(|(.., took)| took.as_secs_f64() * 1000.0).collect();
        took.sort_by(f64::total_cmp);
        let part = |percent: usize| took.get(took.len() * percent / 100).or(took.last()).copied().unwrap_or(0.0);
        println!(
            "{second:6}  {name:8} {:5} {:5} {:6} {:8.1} {:8.1} {:10.1}",
            count(|status| status == 200),
            count(|status| status == 503),
            count(|status| !matches!(status, 200 | 503)),
            part(50),
            part(99),
            part(100),
        );
    }
    assert!(seen.iter().all(|(_, status, _)| matches!(status, 200 | 503)));
    Timing::of(seen.iter().map(|(.., took)| *took), machine).assert_in_time("all");
    // Once the breaker has opened, hardly anybody waits for the endpoint that hangs.
    let hanging: Vec<&Seen> = seen.iter().filter(|(sent, ..)| (3..6).contains(&sent.as_secs())).collect();
    let at_once = hanging.iter().filter(|(.., took)| *took < Duration::from_millis(20)).count();
    assert!(at_once * 20 >= hanging.len() * 19, "{at_once} of {}", hanging.len());
    let last = start.elapsed().as_secs();
    let end = seen.iter().filter(|(sent, ..)| sent.as_secs() + 2 >= last);
    assert!(end.clone().count() > 0 && end.clone().all(|(_, status, _)| *status == 200), "well again at the end");
    assert!(envoy.count("breaker.opened").await >= 3 && envoy.count("failure.breaker_open").await > 100);
    assert_eq!(envoy.count("breaker.is_open").await, 0);
    envoy.assert_sound();
}
