//! The filter's own code in a host with real state, through interleavings that chance makes.
//!
//! Every run is named by its seed; a failure says which. `TOLLGATE_SEED=7 cargo test -p tollgate-host-tests` repeats
//! one. `TOLLGATE_RUNS=100000` makes more of them.

mod checks;
mod endpoint;
mod policies;
mod random;
mod run;
mod vm;
mod world;

use crate::endpoint::Weather;
use crate::policies::Policies;
use crate::random::Random;
use crate::run::Run;

/// Seeds to run: those of this test, or the one that is asked for.
fn seeds(part: u64, usual: u64) -> impl Iterator<Item = u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} must be a whole number, is {text:?}")))
    };
    let (first, count) = match number("TOLLGATE_SEED") {
        Some(seed) => (seed, 1),
        None => (part << 32, number("TOLLGATE_RUNS").unwrap_or(usual)),
    };
    first..first + count
}

fn interleave(seed: u64) {
    let mut chance = Random::new(seed);
    let policies = Policies::random(&mut chance);
    let endpoint = policies::endpoint(&mut chance);
    let workers = chance.between(1, 3) as usize;
    let weather = chance.pick(&[Weather::Still, Weather::Good, Weather::Good, Weather::Foul, Weather::Foul]);
    let mut run = Run::new(seed, policies, &endpoint, workers, weather);
    run.world().interrupts = if workers > 1 { chance.pick(&[0, 3, 10]) } else { 0 };
    for _ in 0..chance.between(50, 500) {
        run.step();
    }
    run.finish();
    checks::all(&run);
}

// In two halves, for two cores.

#[test]
fn every_interleaving_keeps_what_is_promised() {
    seeds(0, 800).for_each(interleave);
}

#[test]
fn every_other_interleaving_too() {
    seeds(1, 800).for_each(interleave);
}

/// One worker and an endpoint that is there or not; the same requests at the same times.
fn statuses(seed: u64, policies: Policies, shadow: bool) -> Vec<String> {
    let mut chance = Random::new(seed ^ 0x5aad);
    let mut endpoint = policies::endpoint(&mut chance);
    endpoint["max_in_flight"] = 256.into();
    let mut run = Run::new(seed, policies, &endpoint, 1, Weather::Still);
    for number in 0..chance.between(20, 120) as usize {
        // A request that waits behind another's call is sent at a tick, and those of policies in shadow may tick at other
        // times. That is no difference where answers come in time; where they hardly do, requests come one by one.
        let (a_while, alone) = (chance.between(1, 300_000), chance.between(1, 15_000));
        let is_slow = run.world().endpoint.weather == Weather::Slow;
        let waits = run.requests.iter().any(|request| request.state == run::State::Waiting);
        match (is_slow, chance.once_in(3)) {
            (true, rarely) if waits || rarely => run.pass_until(run.now() + 1_000_000),
            (true, _) => run.pass_until(run.now() + alone),
            (false, true) => run.pass_until(run.now() + a_while),
            (false, false) => {}
        }
        if chance.once_in(20) {
            run.pass_until(run.now() + 1_000_000);
            run.world().endpoint.weather =
                chance.pick(&[Weather::Still, Weather::Down, Weather::Broken, Weather::Slow, Weather::Slow]);
        }
        run.request(1, policies::request(&mut chance, number));
        // Several in one turn, or one by one.
        if chance.once_in(2) || run.world().endpoint.weather == Weather::Slow {
            run.settle();
        }
    }
    // Before chance has a say again.
    let until = run.now() + 1_000_000;
    run.pass_until(until);
    run.finish();
    checks::all(&run);
    let known = |request: &run::Request| {
        format!("{:?} {:?}", request.verdict.as_ref().map(|(verdict, _)| verdict), request.note)
    };
    let all: Vec<String> = run.requests.iter().map(known).collect();
    assert!(shadow || !run.world().counters.keys().any(|name| name.contains("policy.shadow")));
    all
}

fn shadow(seed: u64) {
    let mut chance = Random::new(seed);
    let policies = Policies::random(&mut chance);
    let policies = policies.exact();
    let with = policies.with_shadows(&mut chance);
    let (without, with) = (statuses(seed, policies, false), statuses(seed, with, true));
    for (number, (without, with)) in without.iter().zip(&with).enumerate() {
        assert_eq!(without, with, "TOLLGATE_SEED={seed}: request {number} without and with policies in shadow");
    }
}

#[test]
fn policies_in_shadow_change_no_answer() {
    seeds(2, 300).for_each(shadow);
}
