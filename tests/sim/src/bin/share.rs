//! What leases cost and how much of a budget they use, on a virtual network without faults: see `docs/measurements.md`.
//!
//! ```text
//! share [LOAD...]   one hot key, for budgets of several sizes, that so many times their refill is asked of
//! share --wide      ten thousand keys of which some are hot, and a thousand proxies
//! ```

use serde_json::json;
use std::process::ExitCode;
use tollgate_core::units::Micros;
use tollgate_sim::network::Link;
use tollgate_sim::random::Random;
use tollgate_sim::run::{Report, run};
use tollgate_sim::scenario::{Request, Scenario};

/// Workers of each proxy.
const WORKERS: usize = 2;

/// What is measured begins after so long.
const SETTLED: Micros = Micros::from_secs(4);

/// How long it is measured.
const MEASURED: Micros = Micros::from_secs(12);

#[derive(Clone, Copy)]
struct Case {
    capacity: u64,
    per_second: u64,
    /// What is offered of every key together, in parts of the refill.
    load: f64,
    proxies: usize,
    keys: Keys,
    /// Half of the proxies have so many times the requests of the others.
    skew: f64,
}

#[derive(Clone, Copy)]
enum Keys {
    One,
    /// The n-th of so many has one part in n of the first one's requests.
    Zipf(usize),
}

struct Measured {
    /// Admitted, of what one bucket would have admitted that sees every request at once.
    used: f64,
    /// Rejected, of what was offered, beyond what that bucket would have.
    falsely_rejected: f64,
    calls_per_second_and_proxy: f64,
    calls_per_request: f64,
    /// Microseconds; of all requests, and the worst of a hundred.
    waited: f64,
    waited_99: u64,
    /// Admitted of the proxy that has least for its demand, in parts of what it would have by its demand.
    worst_share: f64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => hot(&LOADS),
        ["--wide"] => wide(),
        ref loads => {
            let Ok(loads) = loads.iter().map(|load| load.parse()).collect::<Result<Vec<f64>, _>>() else {
                eprintln!("share [LOAD...] | --wide");
                return ExitCode::from(2);
            };
            hot(&loads);
        }
    }
    ExitCode::SUCCESS
}

const HEAD: &str = "| capacity | refill/s | load | proxies | used | falsely rejected | calls/s and proxy | calls/request | \
                    waited, mean | p99 | least share |\n|---|---|---|---|---|---|---|---|---|---|---|";

/// In parts of the refill.
const LOADS: [f64; 5] = [0.5, 0.9, 1.2, 3.0, 20.0];

fn hot(loads: &[f64]) {
    println!("{HEAD}");
    for (capacity, per_second) in [(2000, 1000), (1000, 1000), (200, 1000), (100, 50), (20, 5)] {
        for &load in loads {
            for proxies in [1, 4, 16] {
                row(&Case { capacity, per_second, load, proxies, keys: Keys::One, skew: 1.0 });
            }
        }
    }
    println!("\nHalf of the proxies with five times the requests of the others:\n\n{HEAD}");
    for &load in loads {
        row(&Case { capacity: 1000, per_second: 1000, load, proxies: 4, keys: Keys::One, skew: 5.0 });
    }
}

fn wide() {
    println!("{HEAD}");
    row(&Case { capacity: 100, per_second: 50, load: 60.0, proxies: 8, keys: Keys::Zipf(10_000), skew: 1.0 });
    for load in [2.0, 10.0] {
        row(&Case { capacity: 5000, per_second: 5000, load, proxies: 1000, keys: Keys::One, skew: 1.0 });
    }
}

fn row(case: &Case) {
    let scenario = scenario(case);
    let report = run(&scenario, None, false);
    if let Some(violation) = &report.violation {
        panic!("{violation}");
    }
    let measured = measure(case, &scenario, &report);
    println!(
        "| {} | {} | {} | {} | {:.3} | {:.3} | {:.2} | {:.4} | {:.0} µs | {} µs | {:.2} |",
        case.capacity,
        case.per_second,
        case.load,
        case.proxies,
        measured.used,
        measured.falsely_rejected,
        measured.calls_per_second_and_proxy,
        measured.calls_per_request,
        measured.waited,
        measured.waited_99,
        measured.worst_share,
    );
}

fn scenario(case: &Case) -> Scenario {
    let mut random = Random::new(7);
    let refill = format!("{}/s", case.per_second);
    let config = json!({
        "hash_key": {"value": "of every simulated proxy"},
        "endpoint": {"cluster": "c", "timeout": "100ms"},
        "identities": {"tenant": {"sources": [{"header": "x-tenant"}]}},
        "policies": [{
            "name": "tenant", "scope": "global", "key": ["tenant"], "on_failure": "closed",
            "limit": {"token_bucket": {"capacity": case.capacity, "refill": refill}},
        }],
    });
    let end = SETTLED.plus(MEASURED);
    let gap = 1e6 / (case.per_second as f64 * case.load);
    let weights: Vec<f64> = match case.keys {
        Keys::One => vec![1.0],
        Keys::Zipf(count) => (1..=count).map(|place| 1.0 / place as f64).collect(),
    };
    let keys: Vec<f64> = sums(&weights);
    let proxies =
        sums(&(0..case.proxies).map(|proxy| if proxy % 2 == 0 { case.skew } else { 1.0 }).collect::<Vec<_>>());
    let (mut requests, mut at) = (Vec::new(), 0.0);
    loop {
        at -= gap * (1.0 - unit(&mut random)).ln();
        if at >= end.count() as f64 {
            break;
        }
        requests.push(Request {
            at: Micros::new(at as u64),
            proxy: pick(&proxies, &mut random),
            worker: random.index(WORKERS),
            tenant: pick(&keys, &mut random) as u64,
            client: 0,
            route: 0,
            gold: false,
            leaves: None,
        });
    }
    let (least, most) = (Micros::new(100), Micros::new(400));
    Scenario {
        seed: 7,
        proxies: case.proxies,
        workers: WORKERS,
        endpoints: 2,
        link: Link { delay: (least, most), spikes: 0, spike: most, loss: 0, twice: 0, garbled: 0 },
        proxy_ppm: vec![0; case.proxies],
        store_ppm: 0,
        timeout: Micros::from_millis(100),
        store_deadline: Micros::from_millis(50),
        ids: false,
        configs: vec![config.to_string()],
        requests,
        faults: Vec::new(),
        healed: end,
        probes: Vec::new(),
    }
}

fn measure(case: &Case, scenario: &Scenario, report: &Report) -> Measured {
    let is_measured = |number: &usize| scenario.requests[*number].at >= SETTLED;
    // One bucket for each key that sees every request.
    let (mut buckets, mut ideal) = (std::collections::HashMap::new(), 0_u64);
    for (number, request) in scenario.requests.iter().enumerate() {
        let (units, at) = buckets.entry(request.tenant).or_insert((case.capacity as f64, 0.0));
        let now = request.at.count() as f64 / 1e6;
        *units = (*units + (now - *at) * case.per_second as f64).min(case.capacity as f64);
        *at = now;
        if *units >= 1.0 {
            *units -= 1.0;
            ideal += u64::from(is_measured(&number));
        }
    }
    let (mut offered, mut admitted) = (vec![0_u64; case.proxies], vec![0_u64; case.proxies]);
    let mut waits = Vec::new();
    for end in report.ends.iter().filter(|end| is_measured(&end.request)) {
        let proxy = scenario.requests[end.request].proxy;
        offered[proxy] += 1;
        admitted[proxy] += u64::from(end.is_admitted);
        waits.push(end.waited.count());
    }
    waits.sort_unstable();
    let (all, there) = (offered.iter().sum::<u64>() as f64, admitted.iter().sum::<u64>() as f64);
    let shares = offered.iter().zip(&admitted).filter(|(offered, _)| **offered > 0);
    let shares = shares.map(|(offered, admitted)| (*admitted as f64 / there) / (*offered as f64 / all));
    let seconds = MEASURED.count() as f64 / 1e6;
    let end = SETTLED.plus(MEASURED);
    let calls = report.calls.iter().filter(|at| (SETTLED..end).contains(at)).count() as f64;
    Measured {
        used: there / ideal as f64,
        falsely_rejected: (ideal as f64 - there).max(0.0) / all,
        calls_per_second_and_proxy: calls / seconds / case.proxies as f64,
        calls_per_request: calls / all,
        waited: waits.iter().sum::<u64>() as f64 / all,
        waited_99: waits[waits.len() * 99 / 100],
        worst_share: shares.fold(f64::INFINITY, f64::min),
    }
}

/// Sums of what comes before and with each, in parts of the whole.
fn sums(weights: &[f64]) -> Vec<f64> {
    let whole: f64 = weights.iter().sum();
    weights
        .iter()
        .scan(0.0, |sum, weight| {
            *sum += weight / whole;
            Some(*sum)
        })
        .collect()
}

fn pick(sums: &[f64], random: &mut Random) -> usize {
    let point = unit(random);
    sums.partition_point(|sum| *sum < point).min(sums.len() - 1)
}

/// Of the numbers from 0 to 1.
fn unit(random: &mut Random) -> f64 {
    random.below(1 << 40) as f64 / (1_u64 << 40) as f64
}
