//! Log lines with a bound: a store that fails would otherwise write one for every request.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Lets one line pass in so much time.
const EVERY: Duration = Duration::from_secs(1);

/// For one kind of line.
#[derive(Default)]
pub struct Throttle(Mutex<State>);

#[derive(Default)]
struct State {
    passed: Option<Instant>,
    held_back: u64,
}

impl Throttle {
    /// Whether to write the line now: `Some` with how many were held back since the last.
    pub fn pass(&self) -> Option<u64> {
        self.pass_at(Instant::now())
    }

    fn pass_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if state.passed.is_some_and(|passed| now.duration_since(passed) < EVERY) {
            state.held_back += 1;
            return None;
        }
        state.passed = Some(now);
        Some(std::mem::take(&mut state.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_a_second_says_how_many_there_were() {
        let (throttle, start) = (Throttle::default(), Instant::now());
        let passed: Vec<Option<u64>> =
            [0, 1, 500, 999, 1000, 1001].map(|ms| throttle.pass_at(start + Duration::from_millis(ms))).into();
        assert_eq!(passed, [Some(0), None, None, None, Some(3), None]);
    }
}
