//! Decisions a second and how long they take, beside two things that do less: an HTTP route that decides nothing, and
//! the same script called without HTTP.
//!
//! All rows of one number of connections take short turns, many times, so that what else the machine does meets each of
//! them; a ratio is of turns that were taken soon after each other. Shown is the median of the turns.

use crate::EMPTY_ROUTE;
use axum::Router;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use axum::serve::ListenerExt;
use serde_json::json;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;
use tokio::net::TcpListener;
use tollgate_core::wire::ADMIT_PATH;
use tollgate_tests::load::{Requests, busy, key, posts};
use tollgate_tests::{Endpoint, Process, Redis, eventually};

const CONNECTIONS: [usize; 3] = [1, 16, 64];
const TURNS: usize = 12;
const TURN: Duration = Duration::from_millis(250);
const WARM_UP: Duration = Duration::from_millis(50);

/// Callers: each policy has a bucket for each.
const KEYS: usize = 10_000;

/// Requests for one decision each, by that many policies at once, none of which ever denies.
pub fn decisions(policies: usize) -> Requests {
    posts(ADMIT_PATH, (0..KEYS).map(|caller| decision(policies, caller)))
}

fn decision(policies: usize, caller: usize) -> String {
    let charge = |number| {
        json!({"policy": format!("policy-{number}"), "key": key(caller), "group": "f".repeat(32),
               "cost": 1, "token_bucket": {"capacity": 1_000_000_000, "refill": 1, "per_us": 1_000_000}})
    };
    json!({"decisions": [{"charges": (0..policies).map(charge).collect::<Vec<_>>()}]}).to_string()
}

/// Reads a body and answers as shortly as the endpoint does; the rest of this program's life.
pub async fn empty_route() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("listening on http://{}", listener.local_addr().expect("an address"));
    let listener = listener.tap_io(|stream| stream.set_nodelay(true).expect("no delay"));
    let answer = |_: Bytes| async { ([(CONTENT_TYPE, "application/json")], r#"{"decisions":[{"admitted":[]}]}"#) };
    axum::serve(listener, Router::new().route(ADMIT_PATH, post(answer))).await.expect("connections");
}

/// What is measured, and what it is a part of.
struct Row {
    name: &'static str,
    what: What,
    policies: usize,
    of: &'static str,
}

#[derive(Clone, Copy)]
enum What {
    EmptyRoute,
    Memory,
    Script,
    Redis,
}

const ROWS: [Row; 7] = [
    Row { name: "empty route", what: What::EmptyRoute, policies: 1, of: "" },
    Row { name: "memory", what: What::Memory, policies: 1, of: "empty route" },
    Row { name: "memory, 3 policies", what: What::Memory, policies: 3, of: "memory" },
    Row { name: "redis-benchmark", what: What::Script, policies: 1, of: "" },
    Row { name: "Redis", what: What::Redis, policies: 1, of: "redis-benchmark" },
    Row { name: "redis-benchmark, 3 policies", what: What::Script, policies: 3, of: "redis-benchmark" },
    Row { name: "Redis, 3 policies", what: What::Redis, policies: 3, of: "Redis" },
];

/// One turn of one row.
#[derive(Clone, Copy)]
struct Turn {
    rate: f64,
    p50: f64,
    p99: f64,
    decisions: f64,
    /// Processor time of the process that is asked, in µs.
    cpu: f64,
}

pub async fn measure() {
    let bench = Bench::start().await;
    println!(
        "{:28} {:>11} {:>11} {:>8} {:>8} {:>8} {:>6}",
        "one decision a request", "connections", "decisions/s", "p50 µs", "p99 µs", "CPU µs", "ratio"
    );
    for connections in CONNECTIONS {
        let mut turns: [Vec<Turn>; ROWS.len()] = Default::default();
        for _ in 0..TURNS {
            for (row, turns) in ROWS.iter().zip(&mut turns) {
                turns.push(bench.turn(row, connections, turns.last()).await);
            }
        }
        for (row, own) in ROWS.iter().zip(&turns) {
            let over = |part: fn(&Turn) -> f64| median(own.iter().map(part));
            let sum = |part: fn(&Turn) -> f64| own.iter().map(part).sum::<f64>();
            let base = ROWS.iter().position(|base| base.name == row.of).map(|index| &turns[index]);
            let ratio = base.map_or(String::new(), |base| {
                let ratio = median(own.iter().zip(base).map(|(own, base)| own.rate / base.rate));
                format!("{ratio:6.2} of {}", row.of)
            });
            println!(
                "{:28} {connections:>11} {:>11.0} {:>8.0} {:>8.0} {:>8.1} {ratio}",
                row.name,
                over(|turn| turn.rate),
                over(|turn| turn.p50),
                over(|turn| turn.p99),
                sum(|turn| turn.cpu) / sum(|turn| turn.decisions),
            );
        }
    }
}

/// Everything that is measured, running.
struct Bench {
    empty: (Process, SocketAddr),
    memory: Endpoint,
    on_redis: Endpoint,
    redis: Redis,
    requests: [Requests; 2],
    scripts: [Vec<String>; 2],
    _folder: tempfile::TempDir,
}

impl Bench {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let process = Process::start(command.arg(EMPTY_ROUTE), &folder.path().join("empty.log"));
        let address = eventually("the empty route listens", async || {
            let log = process.log();
            log.trim().strip_prefix("listening on http://").unwrap_or_default().parse::<SocketAddr>()
        })
        .await;
        let redis = Redis::start().await;
        let on_redis = Endpoint::start_with(&["--store", &redis.url(), "--store-timeout", "1s"]).await;
        let scripts = [script_call(&redis, &on_redis, 1).await, script_call(&redis, &on_redis, 3).await];
        Self {
            empty: (process, address),
            memory: Endpoint::start("memory").await,
            on_redis,
            redis,
            requests: [decisions(1), decisions(3)],
            scripts,
            _folder: folder,
        }
    }

    async fn turn(&self, row: &Row, connections: usize, last: Option<&Turn>) -> Turn {
        let (process, address) = match row.what {
            What::EmptyRoute => (&self.empty.0, self.empty.1),
            What::Memory => (&self.memory.process, self.memory.address),
            What::Redis => (&self.on_redis.process, self.on_redis.address),
            What::Script => return self.benchmark(&self.scripts[usize::from(row.policies > 1)], connections, last),
        };
        let requests = &self.requests[usize::from(row.policies > 1)];
        busy(address, connections, WARM_UP, requests, "admitted").await;
        let before = process.cpu_time();
        let answers = busy(address, connections, TURN, requests, "admitted").await;
        Turn {
            rate: answers.rate(),
            p50: micros(answers.percentile(50.0)),
            p99: micros(answers.percentile(99.0)),
            decisions: answers.count() as f64,
            cpu: micros(process.cpu_time() - before),
        }
    }

    /// The script by `redis-benchmark`, which counts calls and not time: as many as it made in the last turn's time.
    fn benchmark(&self, call: &[String], connections: usize, last: Option<&Turn>) -> Turn {
        let calls = last.map_or(2000.0, |turn| (turn.rate * TURN.as_secs_f64()).round());
        let before = self.redis.process.cpu_time();
        let output = Command::new(std::env::var_os("REDIS_BENCHMARK_BIN").expect("REDIS_BENCHMARK_BIN"))
            .args(["-h", "127.0.0.1", "-p", &self.redis.address.port().to_string()])
            .args(["-c", &connections.to_string(), "-n", &calls.to_string()])
            .args(["-r", &KEYS.to_string(), "--csv"])
            .args(call)
            .output()
            .expect("redis-benchmark");
        let text = String::from_utf8_lossy(&output.stdout);
        // "test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms",…
        let line = text.lines().last().unwrap_or_default();
        let numbers: Vec<f64> = line.rsplit("\",\"").filter_map(|n| n.trim_matches('"').parse().ok()).collect();
        let [_most, p99, _p95, p50, _least, _average, rate, ..] = numbers[..] else {
            panic!("redis-benchmark: {text}")
        };
        let cpu = micros(self.redis.process.cpu_time() - before);
        Turn { rate, p50: 1000.0 * p50, p99: 1000.0 * p99, decisions: calls, cpu }
    }
}

/// What the endpoint sends to Redis for one decision, with a random caller in each key.
async fn script_call(redis: &Redis, endpoint: &Endpoint, policies: usize) -> Vec<String> {
    let sent = redis.sent_by(async {
        let body = decision(policies, 0);
        busy(endpoint.address, 1, Duration::from_millis(50), &posts(ADMIT_PATH, [body].into_iter()), "admitted").await;
    });
    let call = sent.await.into_iter().find(|call| call[0] == "EVALSHA").expect("a call of the script");
    let zeros = "0".repeat(32);
    call.iter().map(|part| part.replace(&zeros, &format!("{}__rand_int__", &zeros[12..]))).collect()
}

fn micros(span: Duration) -> f64 {
    1e6 * span.as_secs_f64()
}

pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
