//! The generic cell rate algorithm: one theoretical arrival time in place of a balance.
//!
//! It admits what a token bucket of the same numbers admits and keeps less state: the time at which everything that
//! was spent will have been earned again. Nothing is delayed: a request is admitted or rejected.

use super::{Algorithm, MAX_SKEW};
use crate::units::{Micros, RefillRate, Tokens, divide_product};

/// A limit: at most `burst` units at once, earned at `rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra {
    /// The most units at once.
    pub burst: Tokens,
    /// How fast they are earned.
    pub rate: RefillRate,
}

/// When everything that was spent will have been earned: `at` and a part of the next microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Whole microseconds.
    pub at: Micros,
    /// Numerator over `over`.
    pub fraction: u64,
    /// The denominator of `fraction`: the rate's units when this was written.
    pub over: u64,
}

impl Gcra {
    /// How long it takes to earn so many units: whole microseconds, and the rest over the rate's units.
    fn time_of(&self, units: u64) -> (u64, u64) {
        divide_product(units, self.rate.period(), self.rate.tokens())
    }

    /// How far the schedule lies ahead: whole microseconds and the fraction.
    fn ahead(schedule: &Schedule, now: Micros) -> (u64, u64) {
        (schedule.at.since(now).count(), schedule.fraction)
    }
}

impl Algorithm for Gcra {
    type State = Schedule;

    fn capacity(&self) -> Tokens {
        self.burst
    }

    fn advance(&self, stored: Option<&Schedule>, now: Micros) -> Schedule {
        let over = self.rate.tokens();
        let idle = Schedule { at: now, fraction: 0, over };
        let Some(stored) = stored else { return idle };
        let mut schedule = Schedule { over, ..*stored };
        if stored.over != over || stored.fraction >= over {
            // Another rate: never earlier than it was.
            schedule.at = stored.at.plus(Micros::new(u64::from(stored.fraction > 0)));
            schedule.fraction = 0;
        }
        if schedule.at < now {
            return idle;
        }
        // Further ahead than the whole burst: the clock has stepped back, or the burst was lowered.
        let (most, part) = self.time_of(self.burst.count());
        if Self::ahead(&schedule, now) > (most.saturating_add(MAX_SKEW.count()), part) {
            return Schedule { at: now.plus(Micros::new(most)), fraction: part, over };
        }
        schedule
    }

    fn wait(&self, schedule: &Schedule, cost: Tokens, now: Micros) -> Option<Micros> {
        let (most, part) = self.time_of(self.burst.count().saturating_sub(cost.count()));
        let (ahead, fraction) = Self::ahead(schedule, now);
        ((ahead, fraction) > (most, part))
            .then(|| Micros::new(ahead.saturating_sub(most).saturating_add(u64::from(fraction > part))))
    }

    fn spend(&self, schedule: &mut Schedule, cost: Tokens, _now: Micros) {
        let (whole, part) = self.time_of(cost.count());
        let fraction = schedule.fraction.saturating_add(part);
        let carry = u64::from(fraction >= schedule.over);
        schedule.fraction = fraction.saturating_sub(carry.saturating_mul(schedule.over));
        schedule.at = schedule.at.plus(Micros::new(whole)).plus(Micros::new(carry));
    }

    fn remaining(&self, schedule: &Schedule, now: Micros) -> u64 {
        let (ahead, fraction) = Self::ahead(schedule, now);
        let (spent, rest) = divide_product(ahead, self.rate.tokens(), self.rate.period());
        let (more, rest) = divide_product(rest.saturating_add(fraction), 1, self.rate.period());
        let part = u64::from(rest > 0);
        self.burst.count().saturating_sub(spent.saturating_add(more).saturating_add(part))
    }

    fn full_at(&self, schedule: &Schedule, _now: Micros) -> Micros {
        schedule.at.plus(Micros::new(u64::from(schedule.fraction > 0)))
    }

    fn mended(stored: &Schedule, advanced: &Schedule) -> bool {
        advanced.at < stored.at
    }
}
