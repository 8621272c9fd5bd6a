//! Identities: facts about the caller, from the first source that has one.

use crate::facts::{Facts, Found, Source, Value};
use crate::pattern::Pattern;

/// A named fact about the caller.
#[derive(Debug)]
pub struct Identity {
    /// Unique in its set; used in keys and metrics.
    pub name: String,
    /// Where it comes from; the first that has a valid value counts.
    pub sources: Vec<Source>,
    /// What a value has to look like; one that does not is as good as absent. Addresses are not held against it.
    pub pattern: Option<Pattern>,
}

/// What became of one identity of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityResult {
    /// A source has given it.
    Ok,
    /// No source has anything.
    Missing,
    /// A source has several values. Counts as missing.
    Ambiguous,
    /// What the sources have cannot be used. Counts as missing.
    Invalid,
    /// X-Forwarded-For has fewer entries than proxies are trusted: the host's own address counts.
    XffShort,
}

impl IdentityResult {
    /// Every result, in a fixed order.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Missing, Self::Ambiguous, Self::Invalid, Self::XffShort];

    /// As it is called in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::Ambiguous => "ambiguous",
            Self::Invalid => "invalid",
            Self::XffShort => "xff_short",
        }
    }
}

impl Identity {
    /// The identity of one request, and how it was come by. There is a value with [`IdentityResult::Ok`] and
    /// [`IdentityResult::XffShort`] alone.
    #[must_use]
    pub fn find(&self, facts: &dyn Facts) -> (IdentityResult, Option<Value>) {
        let mut result = IdentityResult::Missing;
        for source in &self.sources {
            match source.find(facts) {
                Found::Absent => {}
                Found::Invalid => result = IdentityResult::Invalid,
                Found::Ambiguous => return (IdentityResult::Ambiguous, None),
                Found::Value(value) if self.accepts(&value) => return (IdentityResult::Ok, Some(value)),
                Found::Value(_) => result = IdentityResult::Invalid,
                Found::Short(value) => return (IdentityResult::XffShort, Some(value)),
            }
        }
        (result, None)
    }

    fn accepts(&self, value: &Value) -> bool {
        matches!(value, Value::Address(_)) || self.pattern.as_ref().is_none_or(|pattern| pattern.matches(value.bytes()))
    }
}
