//! The checks have teeth: what is wrong on purpose is found, soon, and as what it is.

use tollgate_sim::check::Invariant;
use tollgate_sim::generate::scenario;
use tollgate_sim::run::run;
use tollgate_sim::sabotage::Sabotage;
use tollgate_sim::shrink::shrink;

/// Within so many seeds.
const SEEDS: u64 = 100;

/// The breaker matters where calls fail and everything then comes back, which chance does not often make.
/// The same is so of what is lent: it must be there, and the bucket full beside it, when many come at once. And whoever is
/// denied for too long must come again in a long calm, after few others.
const RARE_SEEDS: u64 = 600;

/// What may be said of it: which check comes first depends on the scenario.
fn broken_by(sabotage: Sabotage) -> &'static [Invariant] {
    match sabotage {
        Sabotage::ForgottenSecondCharge | Sabotage::ChargedDenial | Sabotage::EarlySweep | Sabotage::DoubleRefill => {
            &[Invariant::Balance, Invariant::Envelope, Invariant::Wait]
        }
        Sabotage::ForgottenIds => &[Invariant::Once],
        // Where the answers do not even fit, they are failures.
        Sabotage::SwappedAnswers => {
            &[Invariant::Charged, Invariant::AllOrNothing, Invariant::FailMode, Invariant::Liveness]
        }
        Sabotage::EarlyWait => &[Invariant::Wait],
        Sabotage::SilenceAdmits => &[Invariant::Charged],
        Sabotage::DroppedWaiter => &[Invariant::Waiter],
        Sabotage::KeptHold => &[Invariant::AllOrNothing, Invariant::Liveness],
        Sabotage::LostLocalWrite => &[Invariant::AllOrNothing, Invariant::LocalEnvelope],
        Sabotage::StuckBreaker => &[Invariant::Liveness],
        // Counted twice, a report brings back what it has brought back, or makes room for what is lent.
        Sabotage::NoLedger | Sabotage::ReportsCountTwice => &[Invariant::Envelope, Invariant::Balance],
        // What is kept is given back again and again, without an end.
        Sabotage::KeptGiveBack => &[Invariant::Envelope, Invariant::Bounded, Invariant::Liveness],
        Sabotage::Renumbered => &[Invariant::Envelope, Invariant::Balance],
        Sabotage::UsedAfterEnd => &[Invariant::Lease, Invariant::Envelope],
        Sabotage::NeverGivenBack | Sabotage::NeverForgotten | Sabotage::NoRefillBesideLeases | Sabotage::LongDenial => {
            &[Invariant::Liveness]
        }
        Sabotage::NothingLearnt => &[Invariant::Envelope],
        Sabotage::EndlessQueue => &[Invariant::Bounded, Invariant::Waiter],
    }
}

#[test]
fn whatever_is_wrong_on_purpose_is_found() {
    for sabotage in Sabotage::ALL {
        let seeds = match sabotage {
            Sabotage::StuckBreaker | Sabotage::NoRefillBesideLeases | Sabotage::LongDenial => RARE_SEEDS,
            _ => SEEDS,
        };
        let found = (0..seeds).find_map(|seed| Some((seed, run(&scenario(seed), Some(sabotage), false).violation?)));
        let (seed, violation) = found.unwrap_or_else(|| panic!("{sabotage:?} was not found in {seeds} seeds"));
        println!("{sabotage:?}: seed {seed}, {violation}");
        assert!(broken_by(sabotage).contains(&violation.invariant), "{sabotage:?}: seed {seed}: {violation}");
    }
}

#[test]
fn what_is_found_is_made_small() {
    for sabotage in [Sabotage::ForgottenSecondCharge, Sabotage::SwappedAnswers, Sabotage::DroppedWaiter] {
        let found = (0..SEEDS).find_map(|seed| Some((seed, run(&scenario(seed), Some(sabotage), false).violation?)));
        let (seed, violation) = found.expect("it is found");
        let smaller = shrink(&scenario(seed), violation.invariant, Some(sabotage));
        let again = run(&smaller, Some(sabotage), true);
        assert_eq!(again.violation.map(|again| again.invariant), Some(violation.invariant), "{sabotage:?}");
        assert!(smaller.size() <= 20, "{sabotage:?}: {}", smaller.size());
        assert!(!again.trace.is_empty());
    }
}
