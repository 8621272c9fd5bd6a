//! The sliding log: every request of the last window, so that the count in every window is exact.
//!
//! It keeps one entry for each admitted request, which is why its capacity is bounded by [`MAX_LOG`].

use super::{Algorithm, MAX_SKEW};
use crate::units::{Micros, Tokens};

/// The largest capacity of a sliding log, and so the most entries that one key has.
pub const MAX_LOG: u64 = 1000;

/// A limit: at most `capacity` units in every window of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    /// The most units in a window, at most [`MAX_LOG`].
    pub capacity: Tokens,
    /// The window's length, at least 1 µs.
    pub window: Micros,
}

/// One admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it was admitted.
    pub at: Micros,
    /// What it cost.
    pub cost: u64,
}

fn spent(log: &[Entry]) -> u64 {
    log.iter().fold(0, |sum, entry| sum.saturating_add(entry.cost))
}

impl Algorithm for SlidingLog {
    type State = Vec<Entry>;

    fn capacity(&self) -> Tokens {
        self.capacity
    }

    fn advance(&self, stored: Option<&Vec<Entry>>, now: Micros) -> Vec<Entry> {
        let live = |entry: &&Entry| entry.at.plus(self.window) > now;
        let log: Vec<Entry> = stored.into_iter().flatten().filter(live).copied().collect();
        match log.last() {
            Some(last) if last.at.since(now) > MAX_SKEW => vec![Entry { at: now, cost: spent(&log) }],
            _ => log,
        }
    }

    fn wait(&self, log: &Vec<Entry>, cost: Tokens, now: Micros) -> Option<Micros> {
        let most = self.capacity.count().saturating_sub(cost.count());
        let mut left = spent(log);
        let mut leaves = None;
        for entry in log {
            if left <= most {
                break;
            }
            left = left.saturating_sub(entry.cost);
            leaves = Some(entry.at.plus(self.window).since(now));
        }
        leaves
    }

    fn spend(&self, log: &mut Vec<Entry>, cost: Tokens, now: Micros) {
        let at = log.last().map_or(now, |last| last.at.max(now));
        log.push(Entry { at, cost: cost.count() });
    }

    fn remaining(&self, log: &Vec<Entry>, _now: Micros) -> u64 {
        self.capacity.count().saturating_sub(spent(log))
    }

    fn full_at(&self, log: &Vec<Entry>, now: Micros) -> Micros {
        log.last().map_or(now, |last| last.at.plus(self.window))
    }

    fn mended(stored: &Vec<Entry>, advanced: &Vec<Entry>) -> bool {
        let last = |log: &Vec<Entry>| log.last().map(|entry| entry.at);
        last(advanced).is_some() && last(advanced) < last(stored)
    }
}
