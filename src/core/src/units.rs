//! Numbers with a unit. Each can only be built within its bounds, so that no arithmetic on them overflows.

use core::fmt;

/// The largest capacity and the largest cost: 999 999 999 999 units.
pub const MAX_TOKENS: u64 = 999_999_999_999;

/// The longest period a refill may be spread over: 30 days, in microseconds.
pub const MAX_PERIOD: u64 = 30 * 24 * 3600 * 1_000_000;

/// The fastest refill: 10 000 000 units a second, that is 10 a microsecond.
pub const MAX_TOKENS_PER_MICRO: u64 = 10;

/// The units that a span of time can be written in.
pub const DURATION_UNITS: &str = "us, ms, s, m, h or d";

/// A count of units between 1 and [`MAX_TOKENS`]: a capacity or a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tokens(u64);

impl Tokens {
    /// One unit, the cost of a request that nothing else is said about.
    pub const ONE: Self = Self(1);

    /// `None` when `count` is 0 or above [`MAX_TOKENS`].
    #[must_use]
    pub const fn new(count: u64) -> Option<Self> {
        if count == 0 || count > MAX_TOKENS { None } else { Some(Self(count)) }
    }

    /// The plain count.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.0
    }
}

/// A time or a span in whole microseconds, on whichever clock the caller decides by.
///
/// Bounded by 2^53 − 1 (285 years), which a Redis script can hold exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(u64);

impl Micros {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The largest value: 2^53 − 1 µs.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// A larger number becomes [`Micros::MAX`].
    #[must_use]
    pub const fn new(micros: u64) -> Self {
        if micros > Self::MAX.0 { Self::MAX } else { Self(micros) }
    }

    /// A larger number becomes [`Micros::MAX`].
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self::new(millis.saturating_mul(1_000))
    }

    /// A larger number becomes [`Micros::MAX`].
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self::new(secs.saturating_mul(1_000_000))
    }

    /// Reads a whole number and a unit ([`DURATION_UNITS`]), such as `50ms`; `min` is another word for `m`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at_checked(digits)?;
        let micros = number.parse::<u64>().ok()?.checked_mul(Self::parse_unit(unit)?.0)?;
        (micros <= Self::MAX.0).then_some(Self(micros))
    }

    /// Reads a unit alone: one of it.
    #[must_use]
    pub fn parse_unit(unit: &str) -> Option<Self> {
        Some(Self(match unit {
            "us" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "m" | "min" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            _ => return None,
        }))
    }

    /// The plain count of microseconds.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.0
    }

    /// Whole milliseconds, rounded up.
    #[must_use]
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Whole seconds, rounded up.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// The sum, at most [`Micros::MAX`].
    #[must_use]
    pub const fn plus(self, span: Self) -> Self {
        Self::new(self.0.saturating_add(span.0))
    }

    /// How long after `earlier` this is; zero when it is not after.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

/// In the largest unit that leaves no rest: `10s`, `1500ms`.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for unit in ["d", "h", "s", "ms"] {
            let micros = Self::parse_unit(unit).map_or(1, Self::count);
            if let (Some(count @ 1..), Some(0)) = (self.0.checked_div(micros), self.0.checked_rem(micros)) {
                return write!(f, "{count}{unit}");
            }
        }
        write!(f, "{}us", self.0)
    }
}

/// The parts of a [fine](RefillRate::fine) rate, at least. Its period is at most as many seconds, so within the 30 days
/// that every period is.
const FINE: u64 = 1 << 20;

/// How fast a bucket refills: so many units in so many microseconds, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefillRate {
    tokens: u64,
    period: u64,
}

/// Why a refill rate cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RateError {
    /// No units: a limit that never refills is written as a word, not as a rate of 0.
    Zero,
    /// More units than a capacity can hold.
    TooMany,
    /// The period is 0 or over 30 days.
    Period,
    /// Over 10 000 000 units a second.
    TooFast,
}

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zero => "the number of units must be at least 1",
            Self::TooMany => "the number of units must be at most 999999999999",
            Self::Period => "the period must be between 1 microsecond and 30 days",
            Self::TooFast => "the rate must be at most 10000000 units a second",
        })
    }
}

impl core::error::Error for RateError {}

impl RefillRate {
    /// `tokens` units in every `period`.
    ///
    /// # Errors
    /// Bounds: 1 to 999 999 999 999 units, a period of 1 µs to 30 days, at most 10 units a microsecond.
    pub fn new(tokens: u64, period: Micros) -> Result<Self, RateError> {
        let period = period.count();
        if tokens == 0 {
            return Err(RateError::Zero);
        }
        if tokens > MAX_TOKENS {
            return Err(RateError::TooMany);
        }
        if period == 0 || period > MAX_PERIOD {
            return Err(RateError::Period);
        }
        if tokens > period.saturating_mul(MAX_TOKENS_PER_MICRO) {
            return Err(RateError::TooFast);
        }
        let divisor = greatest_common_divisor(tokens, period);
        Ok(Self {
            tokens: tokens.checked_div(divisor).unwrap_or(tokens),
            period: period.checked_div(divisor).unwrap_or(period),
        })
    }

    /// The same rate in a million parts or more, so that it can be shared out, unless it is less than a unit a second:
    /// of so little nobody is lent a part.
    #[must_use]
    pub fn fine(self) -> Self {
        if self.period > self.tokens.saturating_mul(1_000_000) {
            return self;
        }
        let times = FINE.div_ceil(self.tokens.max(1));
        Self { tokens: self.tokens.saturating_mul(times), period: self.period.saturating_mul(times) }
    }

    /// The whole units that it brings in some time.
    #[must_use]
    pub fn gains_in(self, time: Micros) -> u64 {
        divide_product(self.tokens, time.count(), self.period).0
    }

    /// Units in a [`period`](Self::period), in lowest terms.
    #[must_use]
    pub const fn tokens(self) -> u64 {
        self.tokens
    }

    /// Microseconds in which [`tokens`](Self::tokens) units come, in lowest terms.
    #[must_use]
    pub const fn period(self) -> u64 {
        self.period
    }
}

/// `a × b ÷ c` with its rest, for numbers within their bounds (`c` is never 0); larger quotients saturate.
pub(crate) fn divide_product(a: u64, b: u64, c: u64) -> (u64, u64) {
    let product = u128::from(a).saturating_mul(u128::from(b));
    let quotient = product.checked_div(u128::from(c)).unwrap_or(u128::MAX);
    let rest = product.checked_rem(u128::from(c)).unwrap_or(0);
    (u64::try_from(quotient).unwrap_or(u64::MAX), u64::try_from(rest).unwrap_or(0))
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_count_of_units_is_between_one_and_the_bound() {
        assert_eq!(Tokens::new(0), None);
        assert_eq!(Tokens::new(1).map(Tokens::count), Some(1));
        assert_eq!(Tokens::new(MAX_TOKENS).map(Tokens::count), Some(MAX_TOKENS));
        assert_eq!(Tokens::new(MAX_TOKENS + 1), None);
    }

    #[test]
    fn a_rate_is_kept_in_lowest_terms() {
        let rate = RefillRate::new(100, Micros::from_secs(1)).unwrap();
        assert_eq!((rate.tokens(), rate.period()), (1, 10_000));
        let odd = RefillRate::new(7, Micros::new(MAX_PERIOD)).unwrap();
        assert_eq!((odd.tokens(), odd.period()), (7, MAX_PERIOD));
    }

    #[test]
    fn a_rate_outside_its_bounds_cannot_be_built() {
        assert_eq!(RefillRate::new(0, Micros::from_secs(1)), Err(RateError::Zero));
        assert_eq!(RefillRate::new(MAX_TOKENS + 1, Micros::new(MAX_PERIOD)), Err(RateError::TooMany));
        assert_eq!(RefillRate::new(1, Micros::ZERO), Err(RateError::Period));
        assert_eq!(RefillRate::new(1, Micros::new(MAX_PERIOD + 1)), Err(RateError::Period));
        assert!(RefillRate::new(1, Micros::new(MAX_PERIOD)).is_ok());
        assert!(RefillRate::new(10_000_000, Micros::from_secs(1)).is_ok());
        assert_eq!(RefillRate::new(10_000_001, Micros::from_secs(1)), Err(RateError::TooFast));
    }

    #[test]
    fn a_span_is_read_as_it_is_written() {
        for (text, micros) in
            [("7us", 7), ("50ms", 50_000), ("2s", 2_000_000), ("1m", 60_000_000), ("1min", 60_000_000), ("0s", 0)]
        {
            assert_eq!(Micros::parse(text), Some(Micros::new(micros)), "{text}");
        }
        for text in ["", "5", "ms", "-5ms", "1.5s", "5 ms", "5weeks", "99999999999999999999s", "300000000d", "200000d"]
        {
            assert_eq!(Micros::parse(text), None, "{text}");
        }
        let shown = [0, 7, 1_500_000, 10_000_000, 7_200_000_000].map(|micros| Micros::new(micros).to_string());
        assert_eq!(shown, ["0us", "7us", "1500ms", "10s", "2h"]);
    }

    #[test]
    fn times_saturate_instead_of_wrapping() {
        assert_eq!(Micros::new(u64::MAX), Micros::MAX);
        assert_eq!(Micros::MAX.plus(Micros::new(1)), Micros::MAX);
        assert_eq!(Micros::new(3).since(Micros::new(5)), Micros::ZERO);
        assert_eq!(Micros::new(1_000_001).as_secs_ceil(), 2);
        assert_eq!(Micros::new(1_001).as_millis_ceil(), 2);
    }
}
