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
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
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

#[test]
fn every_interleaving_keeps_what_is_promised() {
    seeds(0, 1500).for_each(interleave);
}
