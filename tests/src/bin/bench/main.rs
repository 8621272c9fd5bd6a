//! `make bench`: what the filter costs, beside Envoy without it and beside Envoy's own, in one run on one machine.
//!
//! One Envoy for each row, all of them started before any is measured; it answers by itself, or is in front of another
//! that does. A client keeps its connections busy, or sends at a rate that all rows can carry: each row for a second and a
//! half, in three rounds over all rows, of which the one in the middle counts: by requests a second, or by p99 where the
//! rate is given. So what disturbs the machine for a while disturbs all rows alike.

mod plot;
mod rows;

use rows::{CALLERS, Endpoints, NOTHING, Row, rows};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tollgate_tests::load::{Answers, Requests, busy, paced};
use tollgate_tests::{Envoy, EnvoyBuilder, machine, tool};

/// Before each round: leases that nobody uses were given back meanwhile.
const WARM_UP: Duration = Duration::from_millis(300);
const MEASURED: Duration = Duration::from_millis(1500);
const ROUNDS: usize = 3;

/// The upstream's body.
const EXPECTED: &str = "benchmarked";

/// In which all rows are measured.
struct Case {
    is_proxied: bool,
    workers: u32,
    connections: usize,
    /// Requests a second; without, each connection sends its next request when it has its answer.
    rate: Option<u32>,
}

const CASES: [Case; 9] = [
    Case { is_proxied: false, workers: 1, connections: 1, rate: None },
    Case { is_proxied: false, workers: 1, connections: 16, rate: None },
    Case { is_proxied: false, workers: 1, connections: 64, rate: None },
    Case { is_proxied: false, workers: 2, connections: 64, rate: None },
    Case { is_proxied: true, workers: 1, connections: 1, rate: None },
    Case { is_proxied: true, workers: 1, connections: 16, rate: None },
    Case { is_proxied: true, workers: 1, connections: 64, rate: None },
    Case { is_proxied: false, workers: 1, connections: 16, rate: Some(4000) },
    Case { is_proxied: true, workers: 1, connections: 16, rate: Some(4000) },
];

/// What a row has shown in a case.
struct Measured {
    name: &'static str,
    /// Requests a second.
    rate: f64,
    p50: Duration,
    p99: Duration,
    /// Envoy's processor time for each request, in microseconds.
    used: f64,
    /// Envoy's memory after it, in MiB.
    resident: f64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |row: &Row| words.is_empty() || words.iter().any(|word| row.name.contains(word.as_str()));
    let machine = machine();
    println!("{machine}");
    println!("Words name the rows to measure. The ratios are to no filter, and to a filter that does nothing.");
    println!("The processor time is Envoy's for each request, the memory Envoy's after the measurement.");
    let endpoints = Endpoints::start().await;
    let rows: Vec<Row> = rows(&endpoints).into_iter().filter(is_wanted).collect();
    // Another Envoy, whose answers are its own.
    let upstream = EnvoyBuilder::benchmark(None).workers(1).start().await;
    let mut cases = Vec::new();
    for case in CASES {
        println!("\n{}", case.title());
        println!(
            "{:27} {:>8} {:>8} {:>8} {:>6} {:>6} {:>7} {:>5}",
            "", "req/s", "p50 µs", "p99 µs", "", "", "CPU µs", "MiB"
        );
        let measured = measure(&case, &rows, &upstream).await;
        let rate_of = |name| measured.iter().find(|row| row.name == name).map_or(f64::NAN, |row| row.rate);
        let (none, nothing) = (rate_of("no filter"), rate_of(NOTHING));
        let mut lines = Vec::new();
        for row in &measured {
            let [p50, p99] = [row.p50, row.p99].map(|time| time.as_micros());
            let Measured { name, rate, used, resident, .. } = row;
            let (of_none, of_nothing) = (rate / none, rate / nothing);
            println!(
                "{name:27} {rate:>8.0} {p50:>8} {p99:>8} {of_none:>6.2} {of_nothing:>6.2} {used:>7.1} {resident:>5.0}"
            );
            lines.push(json!({
                "name": name, "requests_per_second": rate.round(), "of_no_filter": hundredths(of_none),
                "of_a_filter_that_does_nothing": hundredths(of_nothing), "p50_us": p50, "p99_us": p99,
                "cpu_us_per_request": (used * 10.0).round() / 10.0, "resident_mib": resident.round(),
            }));
        }
        cases.push(json!({
            "in_front_of_an_upstream": case.is_proxied, "workers": case.workers, "connections": case.connections,
            "sent_per_second": case.rate, "rows": lines,
        }));
    }
    let folder = tool("BENCH_DIR");
    write(&folder.join("bench.json"), &format!("{:#}\n", json!({"machine": machine, "cases": cases})));
    write(&folder.join("bench.svg"), &plot::bars(&cases));
}

impl Case {
    fn title(&self) -> String {
        let Self { is_proxied, workers, connections, rate } = self;
        let how = if *is_proxied { "in front of an upstream" } else { "answered by Envoy itself" };
        let rate = rate.map_or("as fast as it goes".into(), |rate| format!("{rate} requests/s"));
        format!("{how}; workers: {workers}, connections: {connections}, {rate}")
    }

    async fn load(&self, envoy: &Envoy, time: Duration, requests: &Requests) -> Answers {
        match self.rate {
            None => busy(envoy.address, self.connections, time, requests, EXPECTED).await,
            Some(rate) => {
                let answers = paced(envoy.address, self.connections, rate.into(), time, requests).await;
                assert_eq!(answers.with(200).count(), answers.count(), "all are admitted");
                answers
            }
        }
    }
}

async fn measure(case: &Case, rows: &[Row], upstream: &Envoy) -> Vec<Measured> {
    let requests: Requests = (0..CALLERS)
        .map(|number| format!("GET / HTTP/1.1\r\nhost: bench\r\nx-api-key: caller-{number}\r\n\r\n").into_bytes())
        .collect();
    let mut envoys = Vec::new();
    for row in rows {
        let envoy = row.envoy.clone().workers(case.workers);
        let envoy = if case.is_proxied { envoy.to(upstream.address) } else { envoy };
        let envoy = envoy.start().await;
        envoys.push((row.name, envoy, Vec::new()));
    }
    for _ in 0..ROUNDS {
        for (name, envoy, rounds) in &mut envoys {
            case.load(envoy, WARM_UP, &requests).await;
            let before = envoy.process.cpu_time();
            let answers = case.load(envoy, MEASURED, &requests).await;
            let used = envoy.process.cpu_time().saturating_sub(before).as_secs_f64();
            let [p50, p99] = [50.0, 99.0].map(|percent| answers.percentile(percent));
            let resident = envoy.process.resident() as f64 / f64::from(1 << 20);
            let used = used * 1e6 / answers.count() as f64;
            rounds.push(Measured { name, rate: answers.rate(), p50, p99, used, resident });
        }
    }
    let middle = |mut rounds: Vec<Measured>| {
        match case.rate {
            None => rounds.sort_by(|one, other| one.rate.total_cmp(&other.rate)),
            Some(_) => rounds.sort_by_key(|round| round.p99),
        }
        rounds.swap_remove(ROUNDS / 2)
    };
    envoys.into_iter().map(|(_, _, rounds)| middle(rounds)).collect()
}

fn hundredths(ratio: f64) -> Value {
    json!((ratio * 100.0).round() / 100.0)
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    println!("wrote {}", path.display());
}
