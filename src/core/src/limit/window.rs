//! Windows: a count that starts anew with each, and two counts weighted into a moving one.
//!
//! Windows are aligned to multiples of their length since the clock's zero, or to a calendar, so that everyone agrees
//! on them.

use super::{Algorithm, CalendarWindow, MAX_SKEW};
use crate::units::{Micros, Tokens, divide_product};

/// A limit: at most `capacity` units in each window.
///
/// Exact for each window, and no more: twice the capacity can be spent in a short time across a boundary.
///
/// When its windows are changed, what was spent in one that is not over counts in the new one of that time. So no
/// change is a second budget, and none mints for as long as some proxies still ask with the windows of before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    /// The most units in a window.
    pub capacity: Tokens,
    /// Where its windows are.
    pub window: Window,
}

/// Where the windows of a [`FixedWindow`] begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// At multiples of this span, at least 1 µs.
    Span(Micros),
    /// With the units of a local calendar.
    Calendar(CalendarWindow),
}

impl Window {
    /// The start and the length of the window that `now` is in, where that is known.
    fn of(&self, now: Micros) -> Option<(Micros, Micros)> {
        match self {
            Self::Span(span) => Some((aligned(now, *span), *span)),
            Self::Calendar(calendar) => calendar.known.window(now),
        }
    }
}

/// What was spent in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// When the window began.
    pub start: Micros,
    /// Units spent in it.
    pub spent: u64,
    /// Its length when this was written.
    pub window: Micros,
}

/// A limit: at most `capacity` units in a window that moves, estimated from two counts.
///
/// The estimate is what was spent in this window, plus what was spent in the one before times the part of it that the
/// moving window still covers, rounded up. It is right where spending was even; where all of it came at the end of the
/// window before, almost twice the capacity can be spent within one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// The most units in the moving window.
    pub capacity: Tokens,
    /// The window's length, at least 1 µs.
    pub window: Micros,
}

/// What was spent in this window and in the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// When this window began.
    pub start: Micros,
    /// Units spent in it.
    pub current: u64,
    /// Units spent in the one before.
    pub previous: u64,
    /// The length of both when this was written.
    pub window: Micros,
}

/// The start of the window that `now` is in.
fn aligned(now: Micros, window: Micros) -> Micros {
    now.since(Micros::new(now.count().checked_rem(window.count()).unwrap_or(0)))
}

/// Where a stored window lies, seen from now.
enum Lies {
    /// In the future, by no more than clocks may differ: it stays as it is.
    Ahead,
    /// In the future by a clock fault: its counts belong to the window of now.
    Fault,
    /// So many of its lengths ago: 0 is the window of now.
    Back(u64),
}

fn lies(start: Micros, window: Micros, now: Micros) -> Lies {
    if start <= now {
        return Lies::Back(now.since(start).count().checked_div(window.count()).unwrap_or(u64::MAX));
    }
    if start.since(now) > MAX_SKEW { Lies::Fault } else { Lies::Ahead }
}

impl Algorithm for FixedWindow {
    type State = Count;

    fn capacity(&self) -> Tokens {
        self.capacity
    }

    fn covers(&self, now: Micros) -> bool {
        self.window.of(now).is_some()
    }

    fn advance(&self, stored: Option<&Count>, now: Micros) -> Count {
        // Outside all windows that are known, nothing is left.
        let Some((start, window)) = self.window.of(now) else {
            return Count { start: now, spent: u64::MAX, window: Micros::ZERO };
        };
        let new = Count { start, spent: 0, window };
        let Some(stored) = stored else { return new };
        match lies(stored.start, stored.window, now) {
            Lies::Ahead => *stored,
            Lies::Fault | Lies::Back(0) => Count { spent: stored.spent, ..new },
            Lies::Back(_) => new,
        }
    }

    fn wait(&self, count: &Count, cost: Tokens, now: Micros) -> Option<Micros> {
        let fits = count.spent.saturating_add(cost.count()) <= self.capacity.count();
        (!fits).then(|| count.start.plus(count.window).since(now))
    }

    fn spend(&self, count: &mut Count, cost: Tokens, _now: Micros) {
        count.spent = count.spent.saturating_add(cost.count());
    }

    fn remaining(&self, count: &Count, _now: Micros) -> u64 {
        self.capacity.count().saturating_sub(count.spent)
    }

    fn full_at(&self, count: &Count, _now: Micros) -> Micros {
        count.start.plus(count.window)
    }

    fn mended(stored: &Count, advanced: &Count) -> bool {
        // In other windows than those in which it was spent, it must end when the caller is told that it does.
        advanced.spent > 0 && (advanced.start, advanced.window) != (stored.start, stored.window)
    }
}

impl SlidingWindow {
    /// How much of the window before is still covered: its length less the time since this window began.
    fn covered(&self, counts: &Counts, now: Micros) -> u64 {
        counts.window.count().saturating_sub(now.since(counts.start).count())
    }

    fn estimate(&self, counts: &Counts, now: Micros) -> u64 {
        let (whole, rest) = divide_product(self.covered(counts, now), counts.previous, counts.window.count());
        counts.current.saturating_add(whole).saturating_add(u64::from(rest > 0))
    }

    /// The most of a window that may still be covered so that no more than `room` of its `count` is.
    fn cover_for(counts: &Counts, room: u64, count: u64) -> u64 {
        divide_product(room, counts.window.count(), count).0
    }
}

impl Algorithm for SlidingWindow {
    type State = Counts;

    fn capacity(&self) -> Tokens {
        self.capacity
    }

    fn advance(&self, stored: Option<&Counts>, now: Micros) -> Counts {
        let new = Counts { start: aligned(now, self.window), current: 0, previous: 0, window: self.window };
        let Some(stored) = stored else { return new };
        match lies(stored.start, stored.window, now) {
            Lies::Ahead => *stored,
            Lies::Fault | Lies::Back(0) => Counts { current: stored.current, previous: stored.previous, ..new },
            Lies::Back(1) => Counts { previous: stored.current, ..new },
            Lies::Back(_) => new,
        }
    }

    fn wait(&self, counts: &Counts, cost: Tokens, now: Micros) -> Option<Micros> {
        let most = self.capacity.count().saturating_sub(cost.count());
        if self.estimate(counts, now) <= most {
            return None;
        }
        let (window, covered) = (counts.window.count(), self.covered(counts, now));
        let wait = match most.checked_sub(counts.current) {
            // Enough of the window before will have left this one's cover.
            Some(room) => covered.saturating_sub(Self::cover_for(counts, room, counts.previous)),
            // Not in this window: in the next, when enough of this one has left.
            None => covered.saturating_add(window.saturating_sub(Self::cover_for(counts, most, counts.current))),
        };
        Some(Micros::new(wait).plus(counts.start.since(now)))
    }

    fn spend(&self, counts: &mut Counts, cost: Tokens, _now: Micros) {
        counts.current = counts.current.saturating_add(cost.count());
    }

    fn remaining(&self, counts: &Counts, now: Micros) -> u64 {
        self.capacity.count().saturating_sub(self.estimate(counts, now))
    }

    fn full_at(&self, counts: &Counts, now: Micros) -> Micros {
        let windows = if counts.current > 0 { 2 } else { u64::from(counts.previous > 0) };
        let end = counts.start.plus(Micros::new(counts.window.count().saturating_mul(windows)));
        if windows == 0 { now } else { end }
    }

    fn mended(stored: &Counts, advanced: &Counts) -> bool {
        advanced.start < stored.start || advanced.window != stored.window
    }
}
