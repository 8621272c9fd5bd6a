//! A part's own clock: it drifts, and the store's may be set.

use tollgate_core::units::Micros;

/// Reads differently from the true time, which only the simulator knows.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The true time since when it has run undisturbed ...
    since: Micros,
    /// ... and what it showed then.
    reading: Micros,
    /// How far it had gone forward until then, over all steps.
    gained: Micros,
    /// Microseconds that it gains in a second.
    ppm: i32,
}

impl Clock {
    pub const fn new(since: Micros, reading: Micros, ppm: i32) -> Self {
        Self { since, reading, gained: Micros::ZERO, ppm }
    }

    /// What it shows.
    pub fn at(&self, now: Micros) -> Micros {
        self.reading.plus(self.run(now))
    }

    /// How far it has gone forward since the start, every step forward included. This is the time for which buckets may
    /// have refilled by it: a step back takes nothing away.
    pub fn gained(&self, now: Micros) -> Micros {
        self.gained.plus(self.run(now))
    }

    /// It is set, and perhaps another one from now on, which drifts differently.
    pub fn step(&mut self, now: Micros, by: i64, ppm: i32) {
        let (reading, gained) = (self.at(now), self.gained(now));
        let span = Micros::new(by.unsigned_abs());
        *self = if by >= 0 {
            Self { since: now, reading: reading.plus(span), gained: gained.plus(span), ppm }
        } else {
            let back = Micros::new(reading.count().saturating_sub(span.count()));
            Self { since: now, reading: back, gained, ppm }
        };
    }

    pub const fn ppm(&self) -> i32 {
        self.ppm
    }

    /// The true time that passes while it counts `span`, at the most.
    pub fn wait(&self, span: Micros) -> Micros {
        let micros = i128::from(span.count()) * 1_000_000 / i128::from(1_000_000 + self.ppm) + 1;
        Micros::new(u64::try_from(micros).unwrap_or(0))
    }

    fn run(&self, now: Micros) -> Micros {
        let span = i128::from(now.since(self.since).count());
        let micros = span + span * i128::from(self.ppm) / 1_000_000;
        Micros::new(u64::try_from(micros).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_back_takes_nothing_away_from_what_was_gained() {
        let mut clock = Clock::new(Micros::ZERO, Micros::from_secs(1000), 100);
        assert_eq!(clock.at(Micros::from_secs(10)), Micros::new(1_010_001_000));
        clock.step(Micros::from_secs(10), -5_000_000, 0);
        assert_eq!(clock.at(Micros::from_secs(11)), Micros::new(1_006_001_000));
        assert_eq!(clock.gained(Micros::from_secs(11)), Micros::new(11_001_000));
        clock.step(Micros::from_secs(11), 2_000_000, 0);
        assert_eq!(clock.gained(Micros::from_secs(11)), Micros::new(13_001_000));
    }
}
