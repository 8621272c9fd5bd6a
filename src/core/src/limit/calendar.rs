//! Windows of a local calendar: a unit, the time zone whose clock it is read from, and where the windows begin.
//!
//! The core has no data on time zones: it would not fit into the filter. Whoever decides looks the boundaries up
//! and hands them over; the limit and the Redis script only find the window that their own clock is in.

use crate::units::Micros;
use core::fmt;
use serde::{Deserialize, Serialize};

/// What a calendar window is as long as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CalendarUnit {
    /// A minute of the local clock.
    Minute,
    /// An hour of the local clock.
    Hour,
    /// A local day: 24 hours, and another length where the clock is changed.
    Day,
    /// A local month: 28 to 31 days.
    Month,
}

impl CalendarUnit {
    /// Each with the word for it, in a policy and on the wire.
    pub const WORDS: [(&str, Self); 4] =
        [("minute", Self::Minute), ("hour", Self::Hour), ("day", Self::Day), ("month", Self::Month)];

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        }
    }
}

/// What is formed like the name of a time zone: 1 to 40 letters, digits, `_`, `-`, `+` or `/`, and a letter first.
///
/// Whether there is such a zone only the endpoint can tell. The longest of the IANA database has 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ZoneName {
    /// The name, and zeros behind it.
    bytes: [u8; Self::MAX],
    len: usize,
}

impl ZoneName {
    const MAX: usize = 40;

    /// `None` when the text is not formed like one.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"_-+/".contains(&byte);
        if !text.starts_with(|first: char| first.is_ascii_alphabetic()) || !text.bytes().all(legal) {
            return None;
        }
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self { bytes, len: text.len() })
    }

    /// The name as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.bytes.get(..self.len).and_then(|name| core::str::from_utf8(name).ok()).unwrap_or_default()
    }

    /// What is wrong with a text that is none.
    #[must_use]
    pub fn refusal(text: &str) -> String {
        format!("{text:?} is not the name of a time zone: write one of the IANA database, such as Europe/Berlin or UTC")
    }
}

impl Default for ZoneName {
    fn default() -> Self {
        let mut bytes = [0; Self::MAX];
        for (to, from) in bytes.iter_mut().zip(b"UTC") {
            *to = *from;
        }
        Self { bytes, len: 3 }
    }
}

impl TryFrom<String> for ZoneName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::new(&text).ok_or_else(|| Self::refusal(&text))
    }
}

impl From<ZoneName> for String {
    fn from(name: ZoneName) -> Self {
        name.as_str().into()
    }
}

impl fmt::Debug for ZoneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The windows of a calendar unit in a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarWindow {
    /// How long they are.
    pub unit: CalendarUnit,
    /// Whose clock they are read from.
    pub zone: ZoneName,
    /// Those that are known to whoever decides: none in a policy and on the wire.
    pub known: Boundaries,
}

impl CalendarWindow {
    /// Those of which no boundary is known yet.
    #[must_use]
    pub fn new(unit: CalendarUnit, zone: ZoneName) -> Self {
        Self { unit, zone, known: Boundaries::default() }
    }
}

/// Where three windows in a row begin, and where the last of them ends.
///
/// They are those around one clock: the window before, the one it is in, and the next. Another clock that is less than
/// a window off is in one of them too. The default has no window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boundaries([Micros; 4]);

impl Boundaries {
    /// `None` unless each boundary is at or after the one before. A window between two that are equal has no moment.
    #[must_use]
    pub fn new(boundaries: [Micros; 4]) -> Option<Self> {
        boundaries.is_sorted().then_some(Self(boundaries))
    }

    /// All four, the earliest first.
    #[must_use]
    pub const fn all(&self) -> [Micros; 4] {
        self.0
    }

    /// Where the window of `now` begins, and its length. `None` when `now` is in none of the three.
    #[must_use]
    pub fn window(&self, now: Micros) -> Option<(Micros, Micros)> {
        let start = self.0.iter().rev().find(|start| **start <= now)?;
        let end = self.0.iter().find(|end| **end > now)?;
        Some((*start, end.since(*start)))
    }

    /// Whether `now` is in the one in the middle: they need not be looked up anew.
    #[must_use]
    pub fn are_around(&self, now: Micros) -> bool {
        let [_, start, end, _] = self.0;
        (start..end).contains(&now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_name_is_kept_as_it_is_written() {
        for name in ["UTC", "Europe/Berlin", "Etc/GMT+12", "America/Argentina/ComodRivadavia", &"z".repeat(40)] {
            assert_eq!(ZoneName::new(name).unwrap().as_str(), name);
        }
        assert_eq!(ZoneName::default(), ZoneName::new("UTC").unwrap());
        for text in ["", "+02:00", "Europe Berlin", "Europe/Zürich", "../etc/passwd", "/UTC", "1", &"z".repeat(41)] {
            assert_eq!(ZoneName::new(text), None, "{text}");
        }
    }

    #[test]
    fn a_clock_is_in_one_of_three_windows_or_in_none() {
        let known = Boundaries::new([10, 20, 50, 60].map(Micros::new)).unwrap();
        let window = |now| known.window(Micros::new(now)).map(|(start, length)| (start.count(), length.count()));
        assert_eq!([9, 60, 1000].map(window), [None; 3]);
        assert_eq!([10, 19].map(window), [Some((10, 10)); 2]);
        assert_eq!([20, 49].map(window), [Some((20, 30)); 2]);
        assert_eq!([50, 59].map(window), [Some((50, 10)); 2]);
        assert_eq!([19, 20, 49, 50].map(|now| known.are_around(Micros::new(now))), [false, true, true, false]);
    }

    #[test]
    fn boundaries_are_in_order_and_there_may_be_no_window_at_all() {
        assert_eq!(Boundaries::new([10, 20, 19, 60].map(Micros::new)), None);
        for none in [Boundaries::default(), Boundaries::new([Micros::new(7); 4]).unwrap()] {
            for now in [0, 6, 7, 8, Micros::MAX.count()] {
                assert_eq!(none.window(Micros::new(now)), None);
            }
        }
    }
}
