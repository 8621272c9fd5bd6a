//! Runs scenarios until there are enough, or until one breaks a promise.
//!
//! ```text
//! simulate [--seeds N] [--from S]     so many seeds, from one on (1000, 0)
//! simulate --seconds T [--from S]     as many as there is time for
//! simulate --seed X                   one, and everything that happens in it
//! ```

use std::process::ExitCode;
use std::time::{Duration, Instant};
use tollgate_sim::generate::scenario;
use tollgate_sim::run::{Report, run};
use tollgate_sim::scenario::Scenario;
use tollgate_sim::shrink::shrink;

struct Wanted {
    from: u64,
    seeds: u64,
    seconds: Option<u64>,
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let wanted = match wanted(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(mistake) => {
            eprintln!("{mistake}\nsimulate [--seeds N | --seconds T] [--from S] | --seed X");
            return ExitCode::from(2);
        }
    };
    match wanted.seed {
        Some(seed) => one(seed),
        None => many(&wanted),
    }
}

fn wanted(mut arguments: impl Iterator<Item = String>) -> Result<Wanted, String> {
    let mut wanted = Wanted { from: 0, seeds: 1_000, seconds: None, seed: None };
    while let Some(name) = arguments.next() {
        let number = arguments.next().and_then(|value| value.parse::<u64>().ok());
        let number = number.ok_or_else(|| format!("{name} needs a whole number"))?;
        match name.as_str() {
            "--from" => wanted.from = number,
            "--seeds" => wanted.seeds = number,
            "--seconds" => wanted.seconds = Some(number),
            "--seed" => wanted.seed = Some(number),
            _ => return Err(format!("there is no {name}")),
        }
    }
    Ok(wanted)
}

/// One seed, with all that happens.
fn one(seed: u64) -> ExitCode {
    let scenario = scenario(seed);
    println!("seed {seed}: {scenario}");
    let report = run(&scenario, None, true);
    report.trace.iter().for_each(|line| println!("{line}"));
    match &report.violation {
        Some(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
        None => {
            println!("every promise holds");
            ExitCode::SUCCESS
        }
    }
}

fn many(wanted: &Wanted) -> ExitCode {
    let began = Instant::now();
    let is_enough = |seeds: u64| match wanted.seconds {
        Some(seconds) => began.elapsed() >= Duration::from_secs(seconds),
        None => seeds >= wanted.seeds,
    };
    let (mut sum, mut seeds, mut seconds) = (Report::default(), 0, 0);
    while !is_enough(seeds) {
        let seed = wanted.from + seeds;
        let scenario = scenario(seed);
        let report = run(&scenario, None, false);
        if report.violation.is_some() {
            explain(&scenario, &report);
            return ExitCode::FAILURE;
        }
        seeds += 1;
        seconds += report.span.count() / 1_000_000;
        sum.events += report.events;
        sum.admitted += report.admitted;
        sum.denied += report.denied;
        sum.failed += report.failed;
        sum.lease_hits += report.lease_hits;
        sum.lease_misses += report.lease_misses;
        sum.lease_denials += report.lease_denials;
        sum.lease_expired += report.lease_expired;
    }
    let elapsed = began.elapsed().as_secs_f64().max(0.001);
    println!(
        "{seeds} seeds from {}: {} events in {seconds} simulated seconds; {} requests admitted, {} denied, {} decided \
         by fail modes; leases: {} hits, {} misses, {} denials kept, {} units expired; {:.0} events/s, {:.0} seeds/s; every promise holds",
        wanted.from,
        sum.events,
        sum.admitted,
        sum.denied,
        sum.failed,
        sum.lease_hits,
        sum.lease_misses,
        sum.lease_denials,
        sum.lease_expired,
        sum.events as f64 / elapsed,
        seeds as f64 / elapsed,
    );
    ExitCode::SUCCESS
}

/// Says what was broken, and how little it takes.
fn explain(scenario: &Scenario, report: &Report) {
    let Some(violation) = &report.violation else { return };
    println!("seed {}: {violation}", scenario.seed);
    let smaller = shrink(scenario, violation.invariant, None);
    println!("{} of {} things are enough:\n{smaller}", smaller.size(), scenario.size());
    let report = run(&smaller, None, true);
    report.trace.iter().for_each(|line| println!("{line}"));
    if let Some(violation) = &report.violation {
        println!("{violation}");
    }
    println!("again: make simulate SEED={}", scenario.seed);
}
