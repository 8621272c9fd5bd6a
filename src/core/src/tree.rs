//! A configuration as it was written, before it means anything.
//!
//! Two forms arrive: JSON text (Istio, Envoy Gateway, a `StringValue`) and the protobuf bytes of a
//! `google.protobuf.Struct` (raw Envoy, where the policy is plain YAML). Both become one [`Tree`], which keeps
//! duplicate names, so that the reader can refuse them instead of silently taking one.

use core::fmt;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Deeper nesting than any policy has.
const MAX_DEPTH: usize = 32;

/// One value, with everything below it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tree {
    Null,
    Bool(bool),
    /// A count: 0 or more, without a fraction.
    Whole(u64),
    /// Any other number: negative, with a fraction, or too large to be exact. None of them is ever meant.
    Other,
    Text(String),
    List(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

impl Tree {
    /// Reads either form. The error says what is wrong with the text as a whole.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Err("the configuration is empty".into());
        }
        // A Struct starts with the tag of its first field, which is also JSON's white space. It cannot be valid JSON:
        // each entry holds the byte 0x12, a raw control character that JSON has no place for.
        if let Some(tree) = protobuf::read_struct(bytes) {
            return Ok(tree);
        }
        serde_json::from_slice(bytes).map_err(|error| format!("not valid JSON: {error}"))
    }

    /// What a person would call it.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing (null)",
            Self::Bool(_) => "true or false",
            Self::Whole(_) | Self::Other => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }

    fn number(value: f64) -> Self {
        // 2^53: up to here a double holds every whole number.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if value.fract() == 0.0 && (0.0..=EXACT).contains(&value) {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            Self::Whole(value as u64)
        } else {
            Self::Other
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Whole(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(u64::try_from(value).map_or(Tree::Other, Tree::Whole))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = access.next_element()? {
            list.push(value);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = access.next_entry()? {
            map.push(entry);
        }
        Ok(Tree::Map(map))
    }
}

/// The few message types behind `google.protobuf.Struct` (protobuf's struct.proto and encoding guide).
mod protobuf {
    use super::{MAX_DEPTH, Tree};

    const VARINT: u64 = 0;
    const FIXED64: u64 = 1;
    const BYTES: u64 = 2;

    /// `None` when the bytes are not, to the last one, a `Struct`.
    pub(super) fn read_struct(bytes: &[u8]) -> Option<Tree> {
        structure(&mut Input(bytes), 0)
    }

    /// What has not been read yet.
    struct Input<'a>(&'a [u8]);

    impl<'a> Input<'a> {
        fn take(&mut self, count: usize) -> Option<&'a [u8]> {
            let (taken, rest) = self.0.split_at_checked(count)?;
            self.0 = rest;
            Some(taken)
        }

        fn varint(&mut self) -> Option<u64> {
            let mut value = 0u64;
            for shift in (0..64).step_by(7) {
                let byte = u64::from(*self.take(1)?.first()?);
                value |= (byte & 0x7f).checked_shl(shift)?;
                if byte < 0x80 {
                    return Some(value);
                }
            }
            None
        }

        /// The next field: its number and its wire type.
        fn tag(&mut self) -> Option<(u64, u64)> {
            let tag = self.varint()?;
            Some((tag >> 3, tag & 7))
        }

        fn message(&mut self) -> Option<Self> {
            let length = usize::try_from(self.varint()?).ok()?;
            self.take(length).map(Self)
        }

        fn text(&mut self) -> Option<String> {
            core::str::from_utf8(self.message()?.0).ok().map(String::from)
        }

        const fn is_empty(&self) -> bool {
            self.0.is_empty()
        }
    }

    fn structure(input: &mut Input<'_>, depth: usize) -> Option<Tree> {
        let mut map = Vec::new();
        while !input.is_empty() {
            if input.tag()? != (1, BYTES) {
                return None;
            }
            map.push(entry(&mut input.message()?, depth)?);
        }
        Some(Tree::Map(map))
    }

    fn entry(input: &mut Input<'_>, depth: usize) -> Option<(String, Tree)> {
        let (mut key, mut value) = (None, None);
        while !input.is_empty() {
            match input.tag()? {
                (1, BYTES) => key = Some(input.text()?),
                (2, BYTES) => value = Some(self::value(&mut input.message()?, depth.saturating_add(1))?),
                _ => return None,
            }
        }
        Some((key.unwrap_or_default(), value?))
    }

    fn value(input: &mut Input<'_>, depth: usize) -> Option<Tree> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut value = Tree::Null;
        while !input.is_empty() {
            value = match input.tag()? {
                (1, VARINT) => input.varint().map(|_| Tree::Null)?,
                (2, FIXED64) => Tree::number(f64::from_le_bytes(input.take(8)?.try_into().ok()?)),
                (3, BYTES) => Tree::Text(input.text()?),
                (4, VARINT) => Tree::Bool(input.varint()? != 0),
                (5, BYTES) => structure(&mut input.message()?, depth)?,
                (6, BYTES) => list(&mut input.message()?, depth)?,
                _ => return None,
            };
        }
        Some(value)
    }

    fn list(input: &mut Input<'_>, depth: usize) -> Option<Tree> {
        let mut list = Vec::new();
        while !input.is_empty() {
            if input.tag()? != (1, BYTES) {
                return None;
            }
            list.push(value(&mut input.message()?, depth.saturating_add(1))?);
        }
        Some(Tree::List(list))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation)]
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn bytes(field: u8, content: &[u8]) -> Vec<u8> {
        let (mut message, mut length) = (vec![field << 3 | 2], content.len());
        while length >= 0x80 {
            message.push(length as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        [&message, content].concat()
    }

    fn entry(key: &str, value: &[u8]) -> Vec<u8> {
        bytes(1, &[bytes(1, key.as_bytes()), bytes(2, value)].concat())
    }

    #[test]
    fn a_struct_and_its_json_are_one_tree() {
        let number = |value: f64| [&[2 << 3 | 1][..], &value.to_le_bytes()].concat();
        let list = bytes(6, &[bytes(1, &number(1.0)), bytes(1, &[4 << 3, 1])].concat());
        let inner = bytes(5, &entry("n", &[1 << 3, 0]));
        let all =
            [entry("a", &bytes(3, b"x")), entry("b", &number(20.0)), entry("c", &list), entry("d", &inner)].concat();
        let json = br#" {"a":"x","b":20,"c":[1,true],"d":{"n":null}}"#;
        assert_eq!(Tree::read(&all), Tree::read(json));
        assert!(matches!(Tree::read(json), Ok(Tree::Map(_))));
    }

    #[test]
    fn json_that_starts_like_a_struct_is_json() {
        // The second byte reads as a length: pad the text to just that length.
        let text = format!("\n{{\n\"a\": 1{}}}", " ".repeat(123));
        assert_eq!(Tree::read(text.as_bytes()), Ok(Tree::Map(vec![("a".into(), Tree::Whole(1))])));
    }

    #[test]
    fn numbers_without_a_fraction_are_counts_however_written() {
        assert_eq!(Tree::read(b"[1, 1.0, 1e3, -1, 0.5, 18446744073709551615]").unwrap(), {
            use Tree::{List, Other, Whole};
            List(vec![Whole(1), Whole(1), Whole(1000), Other, Other, Whole(u64::MAX)])
        });
    }

    #[test]
    fn duplicate_names_are_kept_for_the_reader_to_refuse() {
        let Ok(Tree::Map(map)) = Tree::read(br#"{"a":1,"a":2}"#) else { panic!("a map") };
        assert_eq!(map.len(), 2);
    }

    #[test]
    fn cut_or_deep_input_is_an_error_and_never_a_trap() {
        let whole = entry("a", &bytes(5, &entry("b", &bytes(3, b"text"))));
        for end in 1..whole.len() {
            assert!(Tree::read(&whole[..end]).is_err(), "cut at {end}");
        }
        for text in ["", " \n", "{", "[[", "nul", "\u{feff}{}"] {
            assert!(Tree::read(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(Tree::read("[".repeat(100_000).as_bytes()).is_err());
        let deep = |levels: usize| {
            let mut value = bytes(3, b"x");
            for _ in 0..levels {
                value = bytes(6, &bytes(1, &value));
            }
            Tree::read(&entry("a", &value))
        };
        assert!(deep(25).is_ok());
        assert!(deep(50).is_err());
        assert!(deep(10_000).is_err());
    }
}
