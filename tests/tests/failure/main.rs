//! The endpoint is slow, wrong or gone: each policy does what its fail mode says, in time, and all recovers.
//!
//! These tests measure time, so they run one after another.

mod breaker;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, MutexGuard};
use tollgate_tests::{
    Client, Endpoint, Envoy, EnvoyBuilder, FakeEndpoint, Lateness, NEVER, Redis, Reply, Upstream, bucket, burst,
    config, eventually, global,
};

static ALONE: Mutex<()> = Mutex::const_new(());

async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}

type Answer = Box<dyn Fn() -> Response + Send + Sync>;

const TIMEOUT: Duration = Duration::from_millis(50);

/// What a fail mode may come late by.
const LATE: Duration = Duration::from_millis(20);

const ROUNDS: usize = 3;

/// Routes /open, /closed, /local (an emergency budget of 3) and /all, which all three policies apply to.
fn fail_modes() -> Value {
    let policy = |name: &str, on_failure: Value| {
        let mut policy = global(name, 100_000, NEVER, on_failure);
        policy["match"] = json!({"routes": [name, "all"]});
        policy
    };
    let mut config = config(&[
        policy("open", json!("open")),
        policy("closed", json!("closed")),
        policy("local", json!({"local": bucket(3, NEVER)})),
    ]);
    config["endpoint"]["timeout"] = json!("50ms");
    config["routes"] =
        json!(["open", "closed", "local", "all"].map(|name| json!({"name": name, "path": format!("/{name}")})));
    config
}

async fn statuses(envoy: &Envoy, path: &str, count: usize) -> Vec<u16> {
    let client = envoy.client();
    burst(count, 1, |_| client.get(path)).await.iter().map(|reply| reply.status).collect()
}

/// How late replies came, and what the machine itself was late by.
struct Timing {
    p50: Duration,
    p99: Duration,
    worst: Duration,
    machine: Duration,
}

impl Timing {
    fn of(took: impl Iterator<Item = Duration>, machine: Lateness) -> Self {
        let machine = machine.worst();
        let mut took: Vec<Duration> = took.collect();
        took.sort();
        Self { p50: took[took.len() / 2], p99: took[took.len() * 99 / 100 - 1], worst: took[took.len() - 1], machine }
    }

    /// Almost all came in time, but for what the machine is late by.
    fn is_in_time(&self) -> bool {
        self.p99 <= TIMEOUT + LATE + self.machine
    }

    fn assert_none_was_forgotten(&self, what: &str) {
        println!("{what}: {self}");
        assert!(self.worst <= TIMEOUT + Duration::from_millis(500), "{what}: {self}");
    }

    fn assert_in_time(&self, what: &str) {
        self.assert_none_was_forgotten(what);
        assert!(self.is_in_time(), "{what}: {self}");
    }
}

impl std::fmt::Display for Timing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { p50, p99, worst, machine } = self;
        write!(f, "p50 {p50:?}, p99 {p99:?}, worst {worst:?}; threads that only sleep: {machine:?} late")
    }
}

/// 300 requests, all with this status and almost all in time.
///
/// Of a few hundred, one stall of a busy machine is more than a hundredth, and threads that only sleep need not see it.
/// It hits one round; a filter that is late is late in each.
async fn assert_all_in_time(client: &Client, path: &str, connections: usize, status: u16) -> Vec<Reply> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let machine = Lateness::watch();
        let replies = burst(300, connections, |_| client.get(path)).await;
        assert!(replies.iter().all(|reply| reply.status == status), "{path}");
        let timing = Timing::of(replies.iter().map(|reply| reply.took), machine);
        timing.assert_none_was_forgotten(path);
        if timing.is_in_time() {
            return replies;
        }
        rounds.push(timing.to_string());
    }
    panic!("{path} is late in every round: {rounds:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_is_killed_and_comes_back() {
    let _alone = alone().await;
    let upstream = Upstream::start().await;
    let mut endpoint = Endpoint::start("memory").await;
    let mut envoy = EnvoyBuilder::new(fail_modes(), upstream.address).endpoint(endpoint.address).start().await;
    for path in ["/open", "/closed", "/local", "/all"] {
        assert_eq!(statuses(&envoy, path, 5).await, [200; 5], "{path}");
    }

    // Killed while requests run.
    let client = envoy.client();
    let machine = Lateness::watch();
    let load = tokio::spawn(async move {
        let start = Instant::now();
        let replies = burst(6000, 8, |_| async {
            tokio::time::sleep(Duration::from_millis(3)).await;
            client.get("/closed").await
        })
        .await;
        (replies, start.elapsed())
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    endpoint.process.kill();
    assert_eq!(statuses(&envoy, "/open", 5).await, [200; 5]);
    assert_eq!(statuses(&envoy, "/closed", 5).await, [503; 5]);
    assert_eq!(statuses(&envoy, "/local", 5).await, [200, 200, 200, 429, 429]);
    assert_eq!(statuses(&envoy, "/all", 5).await, [503; 5], "closed beats local beats open");
    endpoint.restart().await;
    eventually("requests are decided again", async || {
        let status = envoy.client().get("/closed").await.status;
        if status == 200 { Ok(()) } else { Err(status) }
    })
    .await;
    assert_eq!(statuses(&envoy, "/local", 5).await, [200; 5], "the real budget again");
    let (replies, took) = load.await.expect("every request has a reply");
    let refused = replies.iter().filter(|reply| reply.status == 503).count();
    assert!(replies.iter().all(|reply| matches!(reply.status, 200 | 503)));
    assert!(refused > 0 && refused < replies.len(), "{refused} of {} were 503", replies.len());
    println!("killed and restarted: {refused} of {} were 503 in {took:?}", replies.len());
    Timing::of(replies.iter().map(|reply| reply.took), machine).assert_in_time("killed and restarted");
    assert!(envoy.count("failure.refused").await > 0);
    assert_eq!(envoy.stat("http.proxy.downstream_rq_active").await, 0, "nothing hangs");
    envoy.assert_sound();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_takes_requests_and_never_answers() {
    let _alone = alone().await;
    let upstream = Upstream::start().await;
    let endpoint = Endpoint::start("memory").await;
    let mut policy = fail_modes();
    policy["endpoint"]["breaker"] = json!("none");
    let mut envoy = EnvoyBuilder::new(policy, upstream.address).endpoint(endpoint.address).start().await;
    let client = envoy.client();
    assert_eq!(statuses(&envoy, "/closed", 5).await, [200; 5]);
    endpoint.process.freeze();
    for (path, status) in [("/open", 200), ("/closed", 503), ("/all", 503)] {
        let replies = assert_all_in_time(&client, path, 16, status).await;
        assert!(replies.iter().all(|reply| reply.took >= Duration::from_millis(1)), "{path}: asked first");
    }
    assert_eq!(statuses(&envoy, "/local", 5).await, [200, 200, 200, 429, 429]);
    endpoint.process.thaw();
    eventually("requests are decided again", async || {
        let status = client.get("/closed").await.status;
        if status == 200 { Ok(()) } else { Err(status) }
    })
    .await;
    let causes = [envoy.count("failure.timeout").await, envoy.count("failure.refused").await];
    println!("timeout, refused: {causes:?}");
    // Each call that times out takes its connection with it; once the frozen process's backlog is full, connecting
    // takes too long as well.
    assert!(causes[0] >= 100 && causes[0] + causes[1] >= 900, "{causes:?}");
    assert_eq!(envoy.stat("http.proxy.downstream_rq_active").await, 0, "nothing hangs");
    envoy.assert_sound();
}

#[tokio::test]
async fn only_so_many_wait_at_once() {
    let _alone = alone().await;
    let upstream = Upstream::start().await;
    let endpoint = Endpoint::start("memory").await;
    let mut policy = fail_modes();
    policy["endpoint"] = json!({"cluster": "tollgate", "timeout": "1s", "max_in_flight": 4});
    let mut envoy = EnvoyBuilder::new(policy, upstream.address).endpoint(endpoint.address).workers(1).start().await;
    let client = envoy.client();
    assert_eq!(statuses(&envoy, "/closed", 5).await, [200; 5]);
    endpoint.process.freeze();
    let replies = burst(20, 20, |_| client.get("/closed")).await;
    let at_once = replies.iter().filter(|reply| reply.took < Duration::from_millis(500)).count();
    assert!(replies.iter().all(|reply| reply.status == 503));
    assert_eq!(at_once, 16, "four wait, for the others the fail mode applies at once");
    assert_eq!(envoy.count("failure.too_many_in_flight").await, 16);
    endpoint.process.thaw();
    envoy.assert_sound();
}

#[tokio::test]
async fn answers_that_are_none() {
    // F52
    let _alone = alone().await;
    let upstream = Upstream::start().await;
    let json = |body: &str| ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response();
    let answers: Vec<(&str, Answer)> = vec![
        ("bad_answer", Box::new(|| "<html>hello</html>".into_response())),
        ("bad_answer", Box::new(|| "".into_response())),
        ("bad_answer", Box::new(move || json("{}"))),
        ("bad_answer", Box::new(move || json(r#"{"decisions":[{"admitted":[{"remaining":1}]}"#))),
        ("bad_answer", Box::new(move || json(r#"{"decisions":[{"admitted":"yes"}]}"#))),
        ("bad_answer", Box::new(move || json(r#"{"decisions":[{"admitted":[{"remaining":-1}]}]}"#))),
        ("bad_answer", Box::new(move || json(r#"{"decisions":[{"admitted":[]}]}"#))),
        ("bad_answer", Box::new(move || json(r#"{"decisions":[{"denied":[{"remaining":1}]}]}"#))),
        ("bad_answer", Box::new(move || json(r#"{"decisions":[]}"#))),
        (
            "bad_answer",
            Box::new(move || json(r#"{"decisions":[{"admitted":[{"remaining":1}]},{"admitted":[{"remaining":1}]}]}"#)),
        ),
        ("bad_answer", Box::new(move || json(r#"{"decisions":[{"admitted":[{"remaining":1,"remaining":2}]}]}"#))),
        ("bad_answer", Box::new(move || json(&"[".repeat(5000)))),
        ("bad_answer", Box::new(move || json(&format!(r#"{{"decisions":[],"pad":"{}"}}"#, "x".repeat(10_000_000))))),
        ("bad_answer", Box::new(|| b"\xff\xfe\x00".to_vec().into_response())),
        (
            "bad_answer",
            Box::new(|| {
                (StatusCode::OK, [(header::CONTENT_ENCODING, "gzip")], b"\x1f\x8b\x08".to_vec()).into_response()
            }),
        ),
        ("status", Box::new(|| StatusCode::NO_CONTENT.into_response())),
        ("status", Box::new(|| (StatusCode::FOUND, [(header::LOCATION, "/")]).into_response())),
        ("status", Box::new(|| StatusCode::NOT_FOUND.into_response())),
        ("status", Box::new(|| StatusCode::TOO_MANY_REQUESTS.into_response())),
        ("status", Box::new(|| StatusCode::INTERNAL_SERVER_ERROR.into_response())),
        ("store", Box::new(move || json(r#"{"decisions":[{"failed":"store_timeout"}]}"#))),
        ("ok", Box::new(move || json(r#"{"decisions":[{"admitted":[{"remaining":1,"new":{}}],"x":1}],"more":[1]}"#))),
    ];
    let answers = std::sync::Arc::new(answers);
    let current = std::sync::Arc::new(AtomicUsize::new(0));
    let fake = {
        let (answers, current) = (answers.clone(), current.clone());
        FakeEndpoint::start(move || {
            let response = answers[current.load(Ordering::SeqCst)].1();
            async move { response }
        })
        .await
    };
    let mut policy = fail_modes();
    policy["endpoint"]["timeout"] = json!("2s");
    policy["endpoint"]["breaker"] = json!("none");
    let mut envoy = EnvoyBuilder::new(policy, upstream.address).endpoint(fake.address).start().await;
    for (index, (cause, _)) in answers.iter().enumerate() {
        current.store(index, Ordering::SeqCst);
        let before = envoy.count(&format!("failure.{cause}")).await;
        let expected = if *cause == "ok" { 200 } else { 503 };
        assert_eq!(statuses(&envoy, "/closed", 2).await, [expected; 2], "answer {index}");
        if *cause == "ok" {
            continue;
        }
        assert_eq!(envoy.count(&format!("failure.{cause}")).await, before + 2, "answer {index} counts as {cause}");
        assert_eq!(statuses(&envoy, "/open", 1).await, [200], "answer {index}");
    }
    envoy.assert_sound();
}

#[tokio::test]
async fn an_answer_whose_body_never_ends() {
    // F49
    let _alone = alone().await;
    let upstream = Upstream::start().await;
    let fake = FakeEndpoint::start(|| async {
        Response::new(axum::body::Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>()))
    })
    .await;
    let mut envoy = EnvoyBuilder::new(fail_modes(), upstream.address).endpoint(fake.address).start().await;
    let client = envoy.client();
    assert_all_in_time(&client, "/closed", 8, 503).await;
    envoy.assert_sound();
}

#[tokio::test]
async fn a_store_that_dies_and_comes_back_empty_or_forgets_its_scripts() {
    let _alone = alone().await;
    let (redis, upstream) = (Redis::start().await, Upstream::start().await);
    let endpoint = Endpoint::start(&redis.url()).await;
    let mut envoy = EnvoyBuilder::new(fail_modes(), upstream.address).endpoint(endpoint.address).start().await;
    assert_eq!(statuses(&envoy, "/closed", 3).await, [200; 3]);

    // F39: no request notices.
    let mut connection = redis.connect().await;
    for _ in 0..50 {
        redis::cmd("SCRIPT").arg("FLUSH").query_async::<()>(&mut connection).await.expect("a flush");
        assert_eq!(statuses(&envoy, "/closed", 1).await, [200]);
    }
    assert_eq!(envoy.count("failure.store").await, 0);

    redis.process.freeze();
    assert_eq!(statuses(&envoy, "/closed", 3).await, [503; 3]);
    assert_eq!(statuses(&envoy, "/open", 3).await, [200; 3]);
    redis.process.thaw();
    eventually("requests are decided again", async || {
        let status = envoy.client().get("/closed").await.status;
        if status == 200 { Ok(()) } else { Err(status) }
    })
    .await;

    // State that is not ours is a failure, never a full bucket.
    for key in redis.keys().await {
        redis::cmd("SET").arg(&key).arg("rubbish").query_async::<()>(&mut connection).await.expect("a write");
    }
    assert_eq!(statuses(&envoy, "/closed", 2).await, [503; 2]);
    for key in redis.keys().await {
        redis::cmd("DEL").arg(&key).query_async::<()>(&mut connection).await.expect("a write");
        redis::cmd("LPUSH").arg(&key).arg("rubbish").query_async::<()>(&mut connection).await.expect("a write");
    }
    assert_eq!(statuses(&envoy, "/closed", 2).await, [503; 2]);
    redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await.expect("a flush");
    assert_eq!(statuses(&envoy, "/closed", 2).await, [200; 2]);
    envoy.assert_sound();
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_not_asked_by_every_request() {
    let _alone = alone().await;
    let (mut redis, upstream) = (Redis::start().await, Upstream::start().await);
    let endpoint = Endpoint::start(&redis.url()).await;
    let mut envoy = EnvoyBuilder::new(fail_modes(), upstream.address).endpoint(endpoint.address).start().await;
    let client = envoy.client();
    assert_eq!(statuses(&envoy, "/closed", 3).await, [200; 3]);

    redis.process.freeze();
    let replies = burst(60, 1, |_| client.get("/closed")).await;
    assert!(replies.iter().all(|reply| reply.status == 503));
    // The store's own timeout is 20 ms: who comes before that has not waited for it.
    let at_once = replies.iter().filter(|reply| reply.took < Duration::from_millis(18)).count();
    let took: Vec<u128> = replies.iter().map(|reply| reply.took.as_micros()).collect();
    assert!(at_once >= 40, "{at_once} of 60 were answered at once: {took:?}");
    assert!(endpoint.process.log().contains("the store does not answer: calls fail at once"));
    redis.process.thaw();
    eventually("requests are decided again", async || {
        let status = client.get("/closed").await.status;
        if status == 200 { Ok(()) } else { Err(status) }
    })
    .await;
    assert!(endpoint.process.log().contains("the store answers again"));

    redis.process.kill();
    let replies = burst(60, 1, |_| client.get("/closed")).await;
    assert!(replies.iter().all(|reply| reply.status == 503));
    let at_once = replies.iter().filter(|reply| reply.took < Duration::from_millis(18)).count();
    let took: Vec<u128> = replies.iter().map(|reply| reply.took.as_micros()).collect();
    assert!(at_once >= 40, "{at_once} of 60 were answered at once: {took:?}");
    eventually("the log says why", async || {
        let log = endpoint.process.log();
        if log.contains("Connection refused") { Ok(()) } else { Err("not yet") }
    })
    .await;
    envoy.assert_sound();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emergency_budget_is_one_for_the_proxy_and_is_kept_while_the_endpoint_flaps() {
    // F51
    let _alone = alone().await;
    let upstream = Upstream::start().await;
    let redis = Redis::start().await;
    let mut endpoint = Endpoint::start(&redis.url()).await;
    let mut policy = config(&[global("per-key", 20, NEVER, json!({"local": bucket(5, NEVER)}))]);
    policy["endpoint"]["timeout"] = json!("50ms");
    policy["endpoint"]["breaker"] = json!({"open_for": "100ms"});
    let mut envoy = EnvoyBuilder::new(policy, upstream.address).endpoint(endpoint.address).workers(4).start().await;
    // Each on a connection of its own, so that all workers have some.
    let clients: Vec<_> = (0..16).map(|_| envoy.client()).collect();
    let mut admitted = 0;
    for _ in 0..4 {
        for up in [true, false] {
            if up {
                endpoint.restart().await;
            } else {
                endpoint.process.kill();
            }
            let replies = burst(48, 4, |index| {
                let client = &clients[index % clients.len()];
                async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    client.get_as("k").await
                }
            })
            .await;
            assert!(replies.iter().all(|reply| matches!(reply.status, 200 | 429)));
            admitted += replies.iter().filter(|reply| reply.status == 200).count();
        }
    }
    assert_eq!(admitted, 20 + 5, "the budget and the emergency budget, once each");
    assert_eq!(envoy.outcome("failed_local").await, 5);
    envoy.assert_sound();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_comes_too_late_costs_its_units_once() {
    // F58: the filter asks once for each request, so a call that fails is never made again.
    let _alone = alone().await;
    let upstream = Upstream::start().await;
    let endpoint = Endpoint::start("memory").await;
    let link = tollgate_tests::Link::to(endpoint.address, Duration::ZERO).await;
    let mut policy = config(&[global("per-key", 20, NEVER, json!("open"))]);
    policy["endpoint"]["timeout"] = json!("50ms");
    let mut envoy = EnvoyBuilder::new(policy, upstream.address).endpoint(link.address).workers(1).start().await;
    let client = envoy.client();
    assert_eq!(client.get_as("k").await.status, 200);
    link.set_delay(Duration::from_millis(80));
    for _ in 0..4 {
        assert_eq!(client.get_as("k").await.status, 200, "open");
    }
    assert_eq!(envoy.outcome("failed_open").await, 4);
    tokio::time::sleep(Duration::from_millis(300)).await;
    link.set_delay(Duration::ZERO);
    let reply = eventually("the endpoint is asked again", async || {
        let reply = client.get_as("k").await;
        if reply.header("ratelimit").is_some() { Ok(reply) } else { Err("not yet") }
    })
    .await;
    let left =
        reply.header("ratelimit").and_then(|field| field.split("r=").nth(1)?.split(';').next()?.parse::<u64>().ok());
    let decided = envoy.outcome("allowed").await;
    let late = 20 - decided - left.expect("what is left");
    assert!(late <= 4, "{late} units for four late answers");
    envoy.assert_sound();
}
