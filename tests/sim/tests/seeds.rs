//! Every promise holds, whatever goes wrong.

use tollgate_sim::generate::scenario;
use tollgate_sim::run::run;

/// About a minute of one core. More of them: `make simulate`.
const SEEDS: u64 = 9_000;

#[test]
fn every_promise_holds_for_every_seed() {
    let (mut events, mut admitted, mut denied, mut failed) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let report = run(&scenario(seed), None, false);
        if let Some(violation) = report.violation {
            panic!("seed {seed}: {violation}; see it with: make simulate SEED={seed}");
        }
        events += report.events;
        admitted += report.admitted;
        denied += report.denied;
        failed += report.failed;
    }
    println!("{SEEDS} seeds, {events} events");
    // They are about something.
    assert!(admitted.min(denied).min(failed) > 20 * SEEDS, "{admitted} admitted, {denied} denied, {failed} failed");
}

#[test]
fn a_seed_always_does_the_same() {
    for seed in 0..20 {
        assert_eq!(run(&scenario(seed), None, true), run(&scenario(seed), None, true));
    }
}
