//! The limits: five algorithms behind one trait.
//!
//! Each is a pure step on integers: bring what was stored up to now, check a cost against it, spend it. The Redis
//! script computes the same numbers. All share the rules of the clock: a step back mints nothing and never moves a
//! stored time back; a stored time over [`MAX_SKEW`] ahead is a clock fault and is moved to now, with what was spent
//! still spent; a wait ends exactly when the request would be admitted if nobody else came.

mod calendar;
mod gcra;
pub mod outstanding;
mod sliding_log;
#[cfg(test)]
mod tests;
mod token_bucket;
mod window;

pub use calendar::{Boundaries, CalendarUnit, CalendarWindow, ZoneName};
pub use gcra::{Gcra, Schedule};
pub use sliding_log::{Entry, MAX_LOG, SlidingLog};
pub use token_bucket::{Balance, TokenBucket};
pub use window::{Count, Counts, FixedWindow, SlidingWindow, Window};

use crate::units::{Micros, Tokens};

/// How far a stored time may lie ahead of now before it is taken for a clock fault: 60 s.
pub const MAX_SKEW: Micros = Micros::from_secs(60);

/// What one limit says to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The units are there.
    Admit,
    /// They are not, but will be after this wait if nobody else takes them.
    Wait(Micros),
    /// The cost is above the capacity: waiting cannot help.
    Never,
}

impl Verdict {
    /// Of two verdicts on one request, the one that holds for both.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::Wait(one), Self::Wait(two)) => Self::Wait(one.max(two)),
            (Self::Wait(wait), Self::Admit) | (Self::Admit, Self::Wait(wait)) => Self::Wait(wait),
            (Self::Admit, Self::Admit) => Self::Admit,
        }
    }
}

/// One algorithm. What is stored of it may be gone: absence means that nothing was spent.
pub trait Algorithm {
    /// What is stored for each key.
    type State: Clone;

    /// The most that can be spent at once.
    fn capacity(&self) -> Tokens;

    /// Whether the limit says anything about `now`. Only calendar windows are known no further than they were looked up.
    fn covers(&self, _now: Micros) -> bool {
        true
    }

    /// What was stored, as it is at `now`, which the limit covers.
    fn advance(&self, stored: Option<&Self::State>, now: Micros) -> Self::State;

    /// Whether `cost`, which is not above the capacity, can be spent at `now`; else how long until it can.
    fn wait(&self, state: &Self::State, cost: Tokens, now: Micros) -> Option<Micros>;

    /// Spends what [`wait`](Self::wait) found to be there.
    fn spend(&self, state: &mut Self::State, cost: Tokens, now: Micros);

    /// Whole units left.
    fn remaining(&self, state: &Self::State, now: Micros) -> u64;

    /// When an untouched state will be as if nothing had been spent: after that it needs not be kept.
    fn full_at(&self, state: &Self::State, now: Micros) -> Micros;

    /// Whether a denial must be stored too, because advancing has mended what was stored and would not do the same
    /// later: it moved a time that was ahead, cut what a lower capacity has no room for, or brought what was spent into
    /// other windows.
    fn mended(stored: &Self::State, advanced: &Self::State) -> bool;

    /// Whether `cost` can be spent from an advanced state. Changes nothing.
    fn check(&self, state: &Self::State, cost: Tokens, now: Micros) -> Verdict {
        if cost > self.capacity() {
            return Verdict::Never;
        }
        self.wait(state, cost, now).map_or(Verdict::Admit, Verdict::Wait)
    }
}

macro_rules! limits {
    ($($(#[$doc:meta])* $kind:ident($limit:ty, $state:ty)),* $(,)?) => {
        /// A limit: an algorithm with its numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Limit { $($(#[$doc])* $kind($limit),)* }

        /// What is stored for one key, of one algorithm.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum State { $($(#[$doc])* $kind($state),)* }

        impl Limit {
            /// [`Algorithm::advance`]; `None` when what is stored is another algorithm's, or the limit does not
            /// [cover](Algorithm::covers) `now`.
            #[must_use]
            pub fn advance(&self, stored: Option<&State>, now: Micros) -> Option<State> {
                match (self, stored) {
                    $(
                        (Self::$kind(limit), None) if limit.covers(now) => {
                            Some(State::$kind(limit.advance(None, now)))
                        }
                        (Self::$kind(limit), Some(State::$kind(stored))) if limit.covers(now) => {
                            Some(State::$kind(limit.advance(Some(stored), now)))
                        }
                    )*
                    _ => None,
                }
            }

            /// [`Algorithm::check`].
            #[must_use]
            pub fn check(&self, state: &State, cost: Tokens, now: Micros) -> Verdict {
                match (self, state) {
                    $((Self::$kind(limit), State::$kind(state)) => limit.check(state, cost, now),)*
                    _ => Verdict::Never,
                }
            }

            /// [`Algorithm::spend`].
            pub fn spend(&self, state: &mut State, cost: Tokens, now: Micros) {
                match (self, state) {
                    $((Self::$kind(limit), State::$kind(state)) => limit.spend(state, cost, now),)*
                    _ => {}
                }
            }

            /// [`Algorithm::remaining`].
            #[must_use]
            pub fn remaining(&self, state: &State, now: Micros) -> u64 {
                match (self, state) {
                    $((Self::$kind(limit), State::$kind(state)) => limit.remaining(state, now),)*
                    _ => 0,
                }
            }

            /// [`Algorithm::full_at`].
            #[must_use]
            pub fn full_at(&self, state: &State, now: Micros) -> Micros {
                match (self, state) {
                    $((Self::$kind(limit), State::$kind(state)) => limit.full_at(state, now),)*
                    _ => Micros::MAX,
                }
            }

            /// [`Algorithm::mended`].
            #[must_use]
            pub fn mended(stored: &State, advanced: &State) -> bool {
                match (stored, advanced) {
                    $((State::$kind(stored), State::$kind(advanced)) => <$limit>::mended(stored, advanced),)*
                    _ => false,
                }
            }

            /// [`Algorithm::capacity`].
            #[must_use]
            pub fn capacity(&self) -> Tokens {
                match self { $(Self::$kind(limit) => limit.capacity(),)* }
            }
        }
    };
}

limits! {
    /// A balance that refills.
    TokenBucket(TokenBucket, Balance),
    /// A schedule of theoretical arrival times.
    Gcra(Gcra, Schedule),
    /// A count that starts anew with each window.
    FixedWindow(FixedWindow, Count),
    /// The counts of this window and the one before, weighted.
    SlidingWindow(SlidingWindow, Counts),
    /// Every request of the last window, up to [`MAX_LOG`].
    SlidingLog(SlidingLog, Vec<Entry>),
}

impl Limit {
    /// The algorithm's name, as in a policy.
    #[must_use]
    pub const fn algorithm(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) => "token_bucket",
            Self::Gcra(_) => "gcra",
            Self::FixedWindow(_) => "fixed_window",
            Self::SlidingWindow(_) => "sliding_window",
            Self::SlidingLog(_) => "sliding_log",
        }
    }

    /// Whether it is of the one algorithm that proxies decide by themselves, too: of it they have buckets and leases.
    #[must_use]
    pub const fn is_token_bucket(&self) -> bool {
        matches!(self, Self::TokenBucket(_))
    }
}
