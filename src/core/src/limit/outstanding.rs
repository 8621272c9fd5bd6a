//! Units that are out of a bucket and may come back to it.

use crate::units::{Micros, divide_product};

/// Units that are out and may come back: held for a request that is not decided yet, or lent to a proxy.
///
/// While they are out the bucket refills to its capacity less those. Otherwise they could be spent together with a
/// bucket that has filled up without them. They are counted in two generations, each as long as they live at the most,
/// so that what never comes back (whoever has it died) is forgotten after one to two of them: it is taken for spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// Taken in the generation of the balance's time.
    pub current: u64,
    /// Taken in the one before.
    pub previous: u64,
}

impl Outstanding {
    /// All of it.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.current.saturating_add(self.previous)
    }

    /// One generation later.
    #[must_use]
    pub const fn turned(self) -> Self {
        Self { current: 0, previous: self.current }
    }

    /// As if all of it had been taken just now: for a clock that tells no longer when it was.
    #[must_use]
    pub const fn renewed(self) -> Self {
        Self { current: self.total(), previous: 0 }
    }

    /// More of it.
    pub const fn take(&mut self, units: u64) {
        self.current = self.current.saturating_add(units);
    }

    /// Takes out what was taken in `generation`, while it is `now`; gives how much of that was still counted. Of a
    /// generation that is yet to come there is none: the clock was set back, and where it is counted is not known.
    pub fn release(&mut self, generation: u64, units: u64, now: u64) -> u64 {
        let place = match now.checked_sub(generation) {
            Some(0) => &mut self.current,
            Some(1) => &mut self.previous,
            _ => return 0,
        };
        let released = units.min(*place);
        *place = place.saturating_sub(released);
        released
    }
}

/// What a bucket has lent, each part of it in generations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// Units, and room for units that lessees earn by themselves.
    pub units: Outstanding,
    /// Of the refill rate so many units for each of its periods, which lessees earn in the bucket's place.
    pub rate: Outstanding,
    /// How many units a second its lessees have said that they would use.
    pub demand: Outstanding,
}

impl Lent {
    /// Whether there is anything of it.
    #[must_use]
    pub const fn is_any(&self) -> bool {
        self.units.total() > 0 || self.rate.total() > 0 || self.demand.total() > 0
    }

    /// One generation later.
    #[must_use]
    pub const fn turned(self) -> Self {
        Self { units: self.units.turned(), rate: self.rate.turned(), demand: self.demand.turned() }
    }

    /// As if all of it had been lent just now.
    #[must_use]
    pub const fn renewed(self) -> Self {
        Self { units: self.units.renewed(), rate: self.rate.renewed(), demand: self.demand.renewed() }
    }

    /// A rate that was told by a refill rate's period of `from`, by one of `to`: never less of it.
    #[must_use]
    pub fn over_period(self, from: u64, to: u64) -> Self {
        let over = |units: u64| {
            let product = u128::from(units).saturating_mul(u128::from(to));
            u64::try_from(product.div_ceil(u128::from(from.max(1)))).unwrap_or(u64::MAX)
        };
        let Outstanding { current, previous } = self.rate;
        Self { rate: Outstanding { current: over(current), previous: over(previous) }, ..self }
    }
}

/// What one lessee has of a rate that was told by a period of `from`, by one of `to`: never more of it.
#[must_use]
pub(crate) fn over_period(rate: u64, from: u64, to: u64) -> u64 {
    if from == to { rate } else { divide_product(rate, to, from.max(1)).0 }
}

/// Which generation a time is in, of those that are `life` long.
#[must_use]
pub fn generation(at: Micros, life: Micros) -> u64 {
    at.count().checked_div(life.count()).unwrap_or(0)
}

/// When a generation begins.
#[must_use]
pub const fn start_of(generation: u64, life: Micros) -> Micros {
    Micros::new(life.count().saturating_mul(generation))
}

/// When nothing that is taken at `at` is counted any more.
#[must_use]
pub fn forgotten_at(at: Micros, life: Micros) -> Micros {
    start_of(generation(at, life).saturating_add(2), life)
}
