//! A circuit breaker: a store that does not answer is not asked by every request.
//!
//! After so many failures in a row within a time it opens, and calls fail at once. When it has been open for a while one
//! call is let through; its result closes the breaker or opens it again.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Failures in a row that open it, if they come within [`WITHIN`].
const FAILURES: u32 = 5;
const WITHIN: Duration = Duration::from_secs(10);

/// How long it stays open before one call is let through.
const OPEN_FOR: Duration = Duration::from_secs(1);

/// How long that call may take before another is let through: longer than any store timeout.
const PROBE_FOR: Duration = Duration::from_secs(11);

#[derive(Default)]
pub struct Breaker(Mutex<State>);

#[derive(Clone, Copy)]
enum State {
    Closed {
        failures: u32,
        first: Option<Instant>,
    },
    /// Calls fail at once until then; the first after it is a probe.
    Open {
        until: Instant,
    },
}

impl Default for State {
    fn default() -> Self {
        Self::Closed { failures: 0, first: None }
    }
}

impl Breaker {
    /// A call that may be made now; `None` when none may.
    pub fn enter(&self) -> Option<Call<'_>> {
        self.lets_through(Instant::now()).map(|kind| Call(Some(self), kind))
    }

    /// Whether calls fail at once, but for a probe.
    pub fn is_open(&self) -> bool {
        matches!(*self.lock(), State::Open { .. })
    }

    fn lets_through(&self, now: Instant) -> Option<Kind> {
        let mut state = self.lock();
        match *state {
            State::Closed { .. } => Some(Kind::Usual),
            State::Open { until } if now < until => None,
            State::Open { .. } => {
                // The others wait for it.
                *state = State::Open { until: now + PROBE_FOR };
                Some(Kind::Probe)
            }
        }
    }

    /// A call has ended. Gives whether that opened or closed the breaker.
    fn ended(&self, kind: Kind, answered: bool, now: Instant) -> Option<Change> {
        let mut state = self.lock();
        match (*state, answered) {
            (State::Closed { .. }, true) => {
                *state = State::default();
                None
            }
            (State::Open { .. }, true) => {
                *state = State::default();
                Some(Change::Closed)
            }
            (State::Closed { failures, first }, false) => {
                let first = first.filter(|first| now.duration_since(*first) < WITHIN);
                let failures = if first.is_some() { failures + 1 } else { 1 };
                if failures >= FAILURES {
                    *state = State::Open { until: now + OPEN_FOR };
                    return Some(Change::Opened);
                }
                *state = State::Closed { failures, first: Some(first.unwrap_or(now)) };
                None
            }
            (State::Open { .. }, false) => {
                // One that was let through before it opened says nothing new.
                if kind == Kind::Probe {
                    *state = State::Open { until: now + OPEN_FOR };
                }
                None
            }
        }
    }

    /// A call's caller has gone before its end. That says nothing of the store, but a probe must not be waited for.
    fn abandoned(&self, kind: Kind, now: Instant) {
        let mut state = self.lock();
        if let (State::Open { .. }, Kind::Probe) = (*state, kind) {
            *state = State::Open { until: now };
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that the breaker has let through.
pub struct Call<'a>(Option<&'a Breaker>, Kind);

/// As what a call was let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Usual,
    /// The one while it is open.
    Probe,
}

impl Call<'_> {
    /// It has ended, with an answer or without.
    pub fn ended(mut self, answered: bool) -> Option<Change> {
        self.0.take().and_then(|breaker| breaker.ended(self.1, answered, Instant::now()))
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(breaker) = self.0 {
            breaker.abandoned(self.1, Instant::now());
        }
    }
}

/// What a call's end has done to the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Opened,
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Calls that fail, one each 10 ms from `start`; gives how many were let through.
    fn fail(breaker: &Breaker, count: u32, start: Instant) -> u32 {
        (0..count)
            .filter(|number| {
                let now = start + ms(10) * *number;
                let through = breaker.lets_through(now);
                if let Some(kind) = through {
                    breaker.ended(kind, false, now);
                }
                through.is_some()
            })
            .map(|_| 1)
            .sum()
    }

    #[test]
    fn failures_in_a_row_open_it_and_then_calls_fail_at_once() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        assert_eq!(fail(&breaker, 50, start), FAILURES);
        assert_eq!(breaker.lets_through(start + ms(900)), None);
    }

    #[test]
    fn one_answer_in_between_starts_the_count_anew_and_so_does_time() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        fail(&breaker, FAILURES - 1, start);
        assert_eq!(breaker.ended(Kind::Usual, true, start + ms(50)), None);
        assert_eq!(fail(&breaker, FAILURES - 1, start + ms(60)), FAILURES - 1);
        assert_eq!(fail(&breaker, FAILURES - 1, start + ms(60) + WITHIN), FAILURES - 1);
        assert_eq!(breaker.lets_through(start + ms(200) + WITHIN), Some(Kind::Usual));
    }

    #[test]
    fn one_probe_at_a_time_closes_it_or_opens_it_again() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        fail(&breaker, FAILURES, start);
        let probe = start + ms(1050);
        assert_eq!(breaker.lets_through(probe), Some(Kind::Probe));
        assert!((0..10).all(|n| breaker.lets_through(probe + ms(n)).is_none()), "the others wait for the probe");
        assert_eq!(breaker.ended(Kind::Probe, false, probe + ms(20)), None);
        assert_eq!(breaker.lets_through(probe + ms(900)), None);
        assert_eq!(breaker.lets_through(probe + ms(1030)), Some(Kind::Probe));
        assert_eq!(breaker.ended(Kind::Probe, true, probe + ms(1040)), Some(Change::Closed));
        assert!((0..10).all(|n| breaker.lets_through(probe + ms(1050 + n)).is_some()));
    }

    #[test]
    fn a_probe_whose_caller_goes_makes_room_for_another() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        fail(&breaker, FAILURES, start);
        assert_eq!(breaker.lets_through(start + ms(1050)), Some(Kind::Probe));
        breaker.abandoned(Kind::Probe, start + ms(1060));
        assert_eq!(breaker.lets_through(start + ms(1060)), Some(Kind::Probe));
    }

    #[test]
    fn calls_from_before_it_opened_make_no_room_for_a_second_probe() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        fail(&breaker, FAILURES, start);
        assert_eq!(breaker.lets_through(start + ms(1050)), Some(Kind::Probe));
        breaker.abandoned(Kind::Usual, start + ms(1060));
        assert_eq!(breaker.ended(Kind::Usual, false, start + ms(1070)), None);
        assert_eq!(breaker.lets_through(start + ms(3_000)), None, "the probe is out");
    }

    #[test]
    fn a_call_that_is_refused_changes_nothing() {
        let breaker = Breaker::default();
        for _ in 0..FAILURES {
            let call = breaker.enter().expect("closed");
            call.ended(false);
        }
        assert!((0..10).all(|_| breaker.enter().is_none()));
    }

    #[test]
    fn a_probe_that_never_ends_is_not_waited_for_for_ever() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        fail(&breaker, FAILURES, start);
        assert_eq!(breaker.lets_through(start + ms(1050)), Some(Kind::Probe));
        assert_eq!(breaker.lets_through(start + ms(11_000)), None);
        assert_eq!(breaker.lets_through(start + ms(1050) + PROBE_FOR), Some(Kind::Probe));
    }
}
