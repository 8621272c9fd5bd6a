//! The breaker before the token endpoint: when calls fail in a row, none are made for a while.
//!
//! All workers of a proxy share one, as bytes in a place that is read and written by compare-and-set. It is looked at
//! before each call and told how the call ended. A write that loses a race is left: the winner saw the same endpoint.

use crate::units::Micros;

/// When it opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// So many calls must have failed, with no other between them ...
    pub failures: u32,
    /// ... since the first of them, in this time.
    pub within: Micros,
    /// How long no calls are made then. After that one at a time tries.
    pub open_for: Micros,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { failures: 5, within: Micros::from_secs(10), open_for: Micros::from_secs(2) }
    }
}

/// What is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BreakerState {
    /// Calls that have failed in a row.
    failures: u64,
    /// When the first of them did.
    since: Micros,
    /// No call is made before; zero while it is closed.
    open_until: Micros,
    /// A call that tries is out until then at most.
    trying_until: Micros,
}

/// Whether a call may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It may.
    Closed,
    /// Not before this time.
    Open(Micros),
    /// It may, if this state can be stored: then it is the one that tries.
    Trying(BreakerState),
    /// Another call tries.
    Tried,
}

impl Breaker {
    /// Whether a call may be made that is given up after `timeout`.
    #[must_use]
    pub fn gate(&self, state: &BreakerState, now: Micros, timeout: Micros) -> Gate {
        if state.open_until == Micros::ZERO {
            Gate::Closed
        } else if is_ahead(state.open_until, now, self.open_for) {
            Gate::Open(state.open_until)
        } else if is_ahead(state.trying_until, now, timeout) {
            Gate::Tried
        } else {
            Gate::Trying(BreakerState { trying_until: now.plus(timeout), ..*state })
        }
    }

    /// The state once a call has failed; `None` where it stays as it is.
    #[must_use]
    pub fn failed(&self, state: &BreakerState, now: Micros) -> Option<BreakerState> {
        let opened = BreakerState { open_until: now.plus(self.open_for), ..BreakerState::default() };
        if is_ahead(state.open_until, now, self.open_for) {
            // A call from before it opened.
            return None;
        }
        if state.open_until > Micros::ZERO {
            return Some(opened);
        }
        let again = state.failures > 0 && state.since <= now && now.since(state.since) <= self.within;
        let (failures, since) = if again { (state.failures.saturating_add(1), state.since) } else { (1, now) };
        if failures >= u64::from(self.failures) {
            return Some(opened);
        }
        Some(BreakerState { failures, since, ..BreakerState::default() })
    }

    /// The state once a call has been answered; `None` where it stays as it is.
    #[must_use]
    pub fn answered(state: &BreakerState) -> Option<BreakerState> {
        (*state != BreakerState::default()).then(BreakerState::default)
    }
}

/// A time further ahead than any that is ever set is not one of this proxy's clock, which does not step.
fn is_ahead(at: Micros, now: Micros, most: Micros) -> bool {
    at > now && at.since(now) <= most
}

impl BreakerState {
    /// Whether no call is made, or only one that tries.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open_until > Micros::ZERO
    }

    /// Reads what [`encode`](Self::encode) wrote; anything else is a closed breaker.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let ([failures, since, open_until, trying_until], []) = bytes.as_chunks::<8>() else {
            return Self::default();
        };
        let time = |number: &[u8; 8]| Micros::new(u64::from_le_bytes(*number));
        Self {
            failures: u64::from_le_bytes(*failures),
            since: time(since),
            open_until: time(open_until),
            trying_until: time(trying_until),
        }
    }

    /// The bytes to store.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { failures, since, open_until, trying_until } = self;
        [*failures, since.count(), open_until.count(), trying_until.count()]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::arithmetic_side_effects)]
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const BREAKER: Breaker = Breaker { failures: 3, within: Micros::from_secs(10), open_for: Micros::from_secs(2) };
    const TIMEOUT: Micros = Micros::from_millis(50);

    const fn ms(millis: u64) -> Micros {
        Micros::from_millis(millis)
    }

    /// One that has failed at these times.
    fn after(times: &[u64]) -> BreakerState {
        times.iter().fold(BreakerState::default(), |state, at| BREAKER.failed(&state, ms(*at)).unwrap_or(state))
    }

    #[test]
    fn it_opens_after_so_many_failures_in_a_row_and_in_time() {
        assert_eq!(BREAKER.gate(&after(&[1000, 2000]), ms(2000), TIMEOUT), Gate::Closed);
        assert_eq!(BREAKER.gate(&after(&[1000, 2000, 3000]), ms(3000), TIMEOUT), Gate::Open(ms(5000)));
        let spread = after(&[1000, 2000, 11_001]);
        assert_eq!(BREAKER.gate(&spread, ms(11_001), TIMEOUT), Gate::Closed, "the first is too long ago");
        let between = Breaker::answered(&after(&[1000, 2000])).unwrap();
        assert_eq!(BREAKER.gate(&BREAKER.failed(&between, ms(2001)).unwrap(), ms(2001), TIMEOUT), Gate::Closed);
        assert_eq!(Breaker::answered(&BreakerState::default()), None, "nothing to store");
    }

    #[test]
    fn one_call_at_a_time_tries_once_the_time_is_over() {
        let open = after(&[1000, 1000, 1000]);
        assert_eq!(BREAKER.gate(&open, ms(2999), TIMEOUT), Gate::Open(ms(3000)));
        let Gate::Trying(trying) = BREAKER.gate(&open, ms(3000), TIMEOUT) else { panic!("nobody tries") };
        assert_eq!(BREAKER.gate(&trying, ms(3001), TIMEOUT), Gate::Tried);
        // The one that tries may never end: its worker is gone.
        assert!(matches!(BREAKER.gate(&trying, ms(3050), TIMEOUT), Gate::Trying(_)));
        let failed = BREAKER.failed(&trying, ms(3040)).unwrap();
        assert_eq!(BREAKER.gate(&failed, ms(3041), TIMEOUT), Gate::Open(ms(5040)));
        let answered = Breaker::answered(&trying).unwrap();
        assert_eq!(BREAKER.gate(&answered, ms(3041), TIMEOUT), Gate::Closed);
    }

    #[test]
    fn calls_that_were_out_when_it_opened_do_not_lengthen_it() {
        let open = after(&[1000, 1000, 1000]);
        assert_eq!(BREAKER.failed(&open, ms(1500)), None);
        assert!(open.is_open() && !after(&[1000]).is_open());
    }

    #[test]
    fn what_is_stored_is_read_again_and_anything_else_is_closed() {
        let Gate::Trying(state) = BREAKER.gate(&after(&[1000, 1000, 1000]), ms(4000), TIMEOUT) else { panic!() };
        assert_eq!(BreakerState::decode(&state.encode()), state);
        for bytes in [&b""[..], b"garbage", &[0xff; 33], &[0; 24]] {
            assert!(matches!(BREAKER.gate(&BreakerState::decode(bytes), ms(1), TIMEOUT), Gate::Closed));
        }
        // Times that no proxy ever set: they lock nobody out.
        let ahead = BreakerState::decode(&[0xff; 32]);
        assert!(matches!(BREAKER.gate(&ahead, ms(1), TIMEOUT), Gate::Trying(_)));
        assert!(BREAKER.failed(&ahead, ms(1)).is_none_or(|state| state.open_until <= ms(2001)));
    }
}
