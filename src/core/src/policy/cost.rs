//! What a request costs: a number, or what it says about itself within bounds.

use crate::facts::{Attribute, Facts, Header};
use crate::units::{MAX_TOKENS, Tokens};
use core::num::NonZeroU64;

/// How the cost of a route class's requests is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostRule {
    /// The same for each.
    Fixed(Tokens),
    /// What the request says, divided by `per`, rounded up, and within bounds.
    Measured {
        /// Where the number comes from.
        from: Measure,
        /// How much of it one unit stands for.
        per: NonZeroU64,
        /// The least cost.
        min: Tokens,
        /// The greatest cost.
        max: Tokens,
        /// The cost where there is no number, between both.
        default: Tokens,
    },
}

/// Where a number comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Measure {
    /// A request header, by its lower-case name.
    Header(String),
    /// What the host or an earlier filter has found out.
    Attribute(Attribute),
    /// The bytes of the body, as the request announces them.
    ContentLength,
}

impl CostRule {
    /// The greatest cost of a request.
    #[must_use]
    pub const fn most(&self) -> Tokens {
        match self {
            Self::Fixed(cost) => *cost,
            Self::Measured { max, .. } => *max,
        }
    }

    /// The cost of a request, and whether it had to be made up since the request has no usable number.
    pub(super) fn of(&self, facts: &dyn Facts) -> (Tokens, bool) {
        match self {
            Self::Fixed(cost) => (*cost, false),
            Self::Measured { from, per, min, max, default } => match from.read(facts) {
                Some(number) => {
                    let units = number.div_ceil(per.get()).max(min.count()).min(max.count());
                    // Whoever claims more than can be counted pays the most, and is counted like one who claims nonsense.
                    (Tokens::new(units).unwrap_or(*max), number > MAX_TOKENS)
                }
                None => (*default, true),
            },
        }
    }
}

impl Measure {
    /// `None` for what is no whole number that is 0 or more.
    fn read(&self, facts: &dyn Facts) -> Option<u64> {
        match self {
            Self::Header(name) => one(facts.header(name)),
            Self::ContentLength => one(facts.content_length()),
            Self::Attribute(attribute) => {
                let value = facts.attribute(attribute)?;
                digits(&value).or_else(|| double(&value))
            }
        }
    }
}

fn one(header: Header) -> Option<u64> {
    match header {
        Header::One(value) => digits(&value),
        Header::Absent | Header::Several => None,
    }
}

/// A number in decimal digits; one that is too large for any use is the largest.
fn digits(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(core::str::from_utf8(text).ok()?.parse().unwrap_or(u64::MAX))
}

/// A number as metadata has it. No eight digits are one: as a double they are next to 0, and no whole number.
fn double(bytes: &[u8]) -> Option<u64> {
    let number = f64::from_le_bytes(bytes.try_into().ok()?);
    if number.fract() != 0.0 || number.is_sign_negative() {
        return None;
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Some(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::{Request, metadata};
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn measured(from: Measure) -> CostRule {
        let [min, max, default] = [2, 50, 7].map(|count| Tokens::new(count).unwrap());
        CostRule::Measured { from, per: NonZeroU64::new(1000).unwrap(), min, max, default }
    }

    #[test]
    fn a_number_is_charged_by_its_thousands_rounded_up_and_within_bounds() {
        let rule = measured(Measure::Header("x-rows".into()));
        for (rows, cost) in
            [("0", 2), ("1", 2), ("2000", 2), ("2001", 3), (" 49999 ", 50), ("50001", 50), ("007000", 7)]
        {
            let (found, made_up) = rule.of(&Request::get("/").with("x-rows", rows));
            assert_eq!((found.count(), made_up), (cost, false), "{rows:?}");
        }
    }

    #[test]
    fn what_is_no_number_is_the_default_and_a_number_beyond_all_bounds_the_most() {
        // F33
        let rule = measured(Measure::Header("x-rows".into()));
        for odd in ["", "-100", "+5", "abc", "1.5", "1e3", "0x10", "1 2", "NaN", "٣"] {
            let (found, made_up) = rule.of(&Request::get("/").with("x-rows", odd));
            assert_eq!((found.count(), made_up), (7, true), "{odd:?}");
        }
        for huge in ["1000000000000", "99999999999999999999999999"] {
            let (found, made_up) = rule.of(&Request::get("/").with("x-rows", huge));
            assert_eq!((found.count(), made_up), (50, true), "{huge:?}");
        }
        assert_eq!(rule.of(&Request::get("/")).0.count(), 7);
        assert_eq!(rule.of(&Request::get("/").with("x-rows", "1").with("x-rows", "9000")).0.count(), 7);
    }

    #[test]
    fn metadata_has_numbers_and_text() {
        let rows = metadata("f", &["rows"]);
        let rule = measured(Measure::Attribute(rows.clone()));
        let of = |value: &[u8]| {
            let (cost, made_up) = rule.of(&Request::get("/").with_attribute(&rows, value));
            (cost.count(), made_up)
        };
        assert_eq!(of(b"9000"), (9, false));
        assert_eq!(of(b"00009000"), (9, false), "eight digits are text");
        assert_eq!(of(&9000_f64.to_le_bytes()), (9, false));
        assert_eq!(of(&1e300_f64.to_le_bytes()), (50, true));
        for odd in [-1.0, -0.0, 0.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(of(&odd.to_le_bytes()), (7, true), "{odd}");
        }
        assert_eq!(of(b"a number"), (50, true), "eight letters are taken for a double, and for the most");
        assert_eq!(of(b"no number"), (7, true));
    }

    #[test]
    fn a_body_is_charged_by_its_announced_length() {
        let rule = measured(Measure::ContentLength);
        assert_eq!(rule.of(&Request::get("/").with("content-length", "10001")).0.count(), 11);
        assert_eq!(rule.of(&Request::get("/")), (Tokens::new(7).unwrap(), true));
    }

    #[cfg(not(target_arch = "wasm32"))]
    mod properties {
        use super::*;
        use proptest::prelude::*;

        proptest! {
            #[test]
            fn whatever_is_sent_the_cost_is_within_its_bounds(value in prop::collection::vec(any::<u8>(), 0..30)) {
                let rows = metadata("f", &["rows"]);
                let request = Request::get("/").with("x-rows", &value).with_attribute(&rows, &value);
                for from in [Measure::Header("x-rows".into()), Measure::Attribute(rows)] {
                    let cost = measured(from).of(&request).0.count();
                    prop_assert!((2..=50).contains(&cost));
                }
            }
        }
    }
}
