//! Policies that are pushed all the time, while requests run and the endpoint comes and goes.

use crate::{alone, setting};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tollgate_tests::{Client, Endpoint, EnvoyBuilder, NEVER, Upstream, config, global, local};

/// Policies that change with each push: their limits, their routes, and whether there is one in shadow.
fn policy(number: usize) -> Value {
    let mut shadow = local("tried-out", 10, "1/s");
    shadow["enforce"] = json!("shadow");
    let limit = 1_000_000 + number as u64;
    let mut policies = vec![
        local("guard", limit, "100000/s"),
        global("open", limit, "100000/s", json!("open")),
        global("closed", limit, "100000/s", json!("closed")),
        global("spent", 5, NEVER, json!("closed")),
    ];
    policies[1]["match"] = json!({"routes": ["open"]});
    policies[2]["match"] = json!({"routes": ["closed"]});
    policies[3]["match"] = json!({"routes": ["spent"]});
    if number.is_multiple_of(2) {
        policies.push(shadow);
    }
    let mut config = config(&policies);
    config["version"] = json!(format!("soak-{}", number % 2));
    config["endpoint"]["timeout"] = json!("50ms");
    config["routes"] = json!(["open", "closed", "spent"].map(|name| json!({"name": name, "path": format!("/{name}")})));
    config
}

/// How often each path was answered with each status.
type Counts = Arc<Mutex<BTreeMap<(&'static str, u16), u64>>>;

fn load(client: &Client, counts: &Counts) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for path in ["/open", "/closed", "/spent", "/open", "/closed", "/spent"] {
        let (client, counts) = (client.clone(), Arc::clone(counts));
        tasks.spawn(async move {
            loop {
                let status = client.get(path).await.status;
                *counts.lock().expect("no panic").entry((path, status)).or_default() += 1;
                tokio::time::sleep(Duration::from_millis(4)).await;
            }
        });
    }
    tasks
}

/// In KiB.
fn resident(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// By how much the second value grows for each of the first.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let (above, below) = points.iter().fold((0.0, 0.0), |(above, below), point| {
        (above + (point.0 - x) * (point.1 - y), below + (point.0 - x) * (point.0 - x))
    });
    above / below
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_traffic_and_faults_leave_no_trace() {
    // F72
    let _alone = alone().await;
    let seconds: u64 = setting("SOAK_SECONDS", 20);
    let every = Duration::from_secs_f64((seconds as f64 / 10.0).min(5.0));
    let (upstream, mut endpoint) = (Upstream::start().await, Endpoint::start("memory").await);
    let builder = EnvoyBuilder::new(policy(0), upstream.address).endpoint(endpoint.address);
    let mut envoy = builder.start().await;
    let counts = Counts::default();
    let tasks = load(&envoy.client(), &counts);
    let (start, mut sizes, mut pushed) = (Instant::now(), Vec::new(), 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        pushed += 1;
        match pushed % 4 {
            1 => endpoint.process.freeze(),
            2 => endpoint.process.thaw(),
            // Its memory is gone with it, and so is what was spent.
            3 if pushed % 8 == 3 => endpoint.restart().await,
            _ => {}
        }
        tokio::time::sleep(every).await;
        assert!(envoy.push(policy(pushed)).await, "the policy is taken");
        sizes.push((start.elapsed().as_secs_f64() / 60.0, resident(envoy.process.pid())));
    }
    endpoint.process.thaw();
    tokio::time::sleep(Duration::from_secs(3)).await;
    drop(tasks);
    let counts = counts.lock().expect("no panic").clone();
    let restarts = (pushed + 5) / 8 + 1;
    println!("{pushed} pushes in {seconds} s: {counts:?}");
    let of = |path: &'static str, status| counts.get(&(path, status)).copied().unwrap_or(0);
    assert!(counts.keys().all(|(_, status)| matches!(status, 200 | 429 | 503)), "{counts:?}");
    assert_eq!((of("/open", 429), of("/open", 503)), (0, 0), "an open policy admits whatever happens");
    assert!(of("/closed", 429) == 0 && of("/closed", 503) > 0 && of("/closed", 200) > of("/closed", 503) / 4);
    assert!(of("/spent", 200) <= 5 * restarts as u64, "no push brings a budget back: {counts:?}");
    assert!(of("/spent", 429) > 0);
    assert_eq!(envoy.stat("listener_manager.lds.update_rejected").await, 0);
    assert_eq!(envoy.stat("http.proxy.downstream_rq_active").await, 0, "nothing hangs");
    let half = &sizes[sizes.len() / 2..];
    let trend = slope(half);
    println!(
        "Envoy's memory: {:.0} KiB, then {:.0} KiB; in the second half {trend:.0} KiB a minute",
        sizes[0].1,
        sizes[sizes.len() - 1].1
    );
    // In a short run the first pushes still fill what later ones use again.
    if seconds >= 300 {
        assert!(trend < 1024.0, "{trend} KiB a minute");
    }
    envoy.assert_sound();
}
