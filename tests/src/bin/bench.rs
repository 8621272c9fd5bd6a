//! `make bench`: what the filter costs, side by side in one run on one machine.
//!
//! One Envoy worker, an upstream that is Envoy itself, and a client that keeps its connections busy. Each column is
//! measured for a few seconds after a warm-up; the ratio is to the same Envoy without the filter.

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_tests::{Endpoint, EnvoyBuilder, Redis, config, global, local};

const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(4);
const PLENTY: u64 = 999_999_999_999;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (memory, redis) = (Endpoint::start("memory").await, Redis::start().await);
    let on_redis = Endpoint::start(&redis.url()).await;
    let exempt = {
        let mut policy = config(&[local("local", PLENTY, "1/s")]);
        policy["routes"] = json!([{"name": "all", "path": "/**", "exempt": true}]);
        policy
    };
    let keyed = |mut policy: Value| {
        policy["key"] = json!(["credential"]);
        policy
    };
    let local = config(&[keyed(local("local", PLENTY, "1/s"))]);
    let exact = config(&[global("exact", PLENTY, "1/s", json!("closed"))]);
    let rows = [
        ("no filter", None, memory.address),
        ("filter, exempt route", Some(exempt), memory.address),
        ("one local policy", Some(local), memory.address),
        ("one exact policy, memory", Some(exact.clone()), memory.address),
        ("one exact policy, Redis", Some(exact), on_redis.address),
    ];
    println!("{:26} {:>11} {:>9} {:>9} {:>9} {:>6}", "", "connections", "req/s", "p50 µs", "p99 µs", "ratio");
    for connections in [1, 16, 64] {
        let mut base = None;
        for (name, policy, endpoint) in &rows {
            let envoy = EnvoyBuilder::benchmark(policy.clone()).endpoint(*endpoint).workers(1).start().await;
            load(envoy.address, connections, WARM_UP).await;
            let mut took = load(envoy.address, connections, MEASURED).await;
            took.sort_unstable();
            let rate = took.len() as f64 / MEASURED.as_secs_f64();
            let base = *base.get_or_insert(rate);
            let at = |part: usize| took[(took.len() * part / 100).min(took.len() - 1)].as_micros();
            println!("{name:26} {connections:>11} {rate:>9.0} {:>9} {:>9} {:>6.2}", at(50), at(99), rate / base);
        }
    }
}

/// Keeps so many connections busy for a time; gives how long each request took.
async fn load(address: SocketAddr, connections: usize, time: Duration) -> Vec<Duration> {
    let end = Instant::now() + time;
    let clients: Vec<_> = (0..connections).map(|number| tokio::spawn(client(address, number, end))).collect();
    let mut all = Vec::new();
    for client in clients {
        all.extend(client.await.expect("a client that does not panic"));
    }
    all
}

async fn client(address: SocketAddr, number: usize, end: Instant) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.set_nodelay(true).expect("no delay");
    let request = format!("GET / HTTP/1.1\r\nhost: bench\r\nx-api-key: caller-{number}\r\n\r\n");
    let mut buffer = vec![0; 16 * 1024];
    let mut took = Vec::new();
    while Instant::now() < end {
        let start = Instant::now();
        stream.write_all(request.as_bytes()).await.expect("a request");
        let mut read = 0;
        // The reply's body is the word that ends it.
        while !buffer[..read].ends_with(b"benchmarked") {
            let count = stream.read(&mut buffer[read..]).await.expect("a reply");
            assert!(count > 0, "the connection ended: {}", String::from_utf8_lossy(&buffer[..read]));
            read += count;
        }
        assert!(buffer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&buffer[..read]));
        took.push(start.elapsed());
    }
    took
}
