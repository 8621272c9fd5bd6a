//! Patterns: what an identity's value has to look like.
//!
//! A small part of regular expressions, matched against the whole value, byte by byte, in time linear in its length
//! whatever the pattern: all the places where a match could be are followed at once, and a pattern has a bounded number
//! of them.

use core::fmt;

/// The most places of a pattern: `[a-z]{1,64}` has 64 of them, twice.
const MAX_PLACES: usize = 1024;

/// The most characters of a pattern.
pub const MAX_TEXT: usize = 512;

/// The most groups within each other.
const MAX_DEPTH: usize = 16;

/// A value of more bytes matches no pattern.
pub const MAX_VALUE: usize = 4096;

/// A pattern that is anchored at both ends.
#[derive(Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    places: Vec<Place>,
    start: usize,
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

/// One step of a match.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// One byte out of a set, then on.
    Byte(Bytes, usize),
    /// On at both.
    Split(usize, usize),
    /// The end of the pattern.
    End,
}

/// A set of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bytes([u64; 4]);

impl Bytes {
    const ALL: Self = Self([u64::MAX; 4]);

    fn add(&mut self, first: u8, last: u8) {
        for byte in first..=last {
            if let Some(word) = self.0.get_mut(usize::from(byte >> 6)) {
                *word |= 1 << (byte & 63);
            }
        }
    }

    fn with(ranges: &[(u8, u8)]) -> Self {
        let mut bytes = Self::default();
        for (first, last) in ranges {
            bytes.add(*first, *last);
        }
        bytes
    }

    fn merge(&mut self, other: Self) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }

    fn others(self) -> Self {
        Self(self.0.map(|word| !word))
    }

    fn has(&self, byte: u8) -> bool {
        self.0.get(usize::from(byte >> 6)).is_some_and(|word| word >> (byte & 63) & 1 == 1)
    }
}

impl Pattern {
    /// # Errors
    /// Says what is wrong, where, and what is meant perhaps.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_TEXT {
            return Err(format!("a pattern has 1 to {MAX_TEXT} characters"));
        }
        if !text.is_ascii() {
            return Err("a pattern is for bytes and is written in ASCII".into());
        }
        let mut parser = Parser { text: text.as_bytes(), at: 0, depth: 0 };
        let node = parser.alternatives()?;
        if parser.peek().is_some() {
            return Err(parser.wrong("this ) closes no group"));
        }
        let mut program = Program { places: vec![Place::End], steps: 0 };
        let start = program.compile(&node, END).ok_or_else(|| {
            format!("the pattern is too large: its repetitions come to more than {MAX_PLACES} places")
        })?;
        Ok(Self { text: text.into(), places: program.places, start })
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the whole value is of this form.
    #[must_use]
    pub fn matches(&self, value: &[u8]) -> bool {
        if value.len() > MAX_VALUE {
            return false;
        }
        let mut now = Front::new(self.places.len());
        let mut next = Front::new(self.places.len());
        now.enter(self.start, &self.places);
        for byte in value {
            for index in &now.places {
                if let Some(Place::Byte(bytes, on)) = self.places.get(*index)
                    && bytes.has(*byte)
                {
                    next.enter(*on, &self.places);
                }
            }
            if next.places.is_empty() {
                return false;
            }
            core::mem::swap(&mut now, &mut next);
            next.clear();
        }
        now.seen.get(END) == Some(&true)
    }
}

/// The places where a match is at one time.
struct Front {
    places: Vec<usize>,
    seen: Vec<bool>,
    pending: Vec<usize>,
}

impl Front {
    fn new(count: usize) -> Self {
        Self { places: Vec::new(), seen: vec![false; count], pending: Vec::new() }
    }

    fn clear(&mut self) {
        for index in self.places.drain(..) {
            if let Some(seen) = self.seen.get_mut(index) {
                *seen = false;
            }
        }
    }

    /// Adds a place and all that it leads to without a byte, each once.
    fn enter(&mut self, place: usize, places: &[Place]) {
        self.pending.push(place);
        while let Some(index) = self.pending.pop() {
            match self.seen.get_mut(index) {
                Some(seen) if !*seen => *seen = true,
                _ => continue,
            }
            self.places.push(index);
            if let Some(Place::Split(one, other)) = places.get(index) {
                self.pending.extend([*other, *one]);
            }
        }
    }
}

/// A pattern as it is built up.
enum Node {
    Byte(Bytes),
    All(Vec<Node>),
    Any(Vec<Node>),
    Repeat { node: Box<Node>, least: usize, most: Option<usize> },
}

/// Where a match has come to its end.
const END: usize = 0;

struct Program {
    places: Vec<Place>,
    /// What has been done, also for nodes that need no place.
    steps: usize,
}

impl Program {
    /// Gives the place where a match of the node begins that goes on at `next`; `None` when there would be too many.
    fn compile(&mut self, node: &Node, next: usize) -> Option<usize> {
        self.steps = self.steps.saturating_add(1);
        if self.steps > MAX_PLACES.saturating_mul(16) {
            return None;
        }
        match node {
            Node::Byte(bytes) => self.push(Place::Byte(*bytes, next)),
            Node::All(nodes) => nodes.iter().rev().try_fold(next, |next, node| self.compile(node, next)),
            Node::Any(nodes) => {
                let (last, others) = nodes.split_last()?;
                let last = self.compile(last, next)?;
                others.iter().rev().try_fold(last, |rest, node| {
                    let one = self.compile(node, next)?;
                    self.push(Place::Split(one, rest))
                })
            }
            Node::Repeat { node, least, most } => {
                let mut entry = next;
                match most {
                    None => {
                        entry = self.push(Place::Split(next, next))?;
                        let body = self.compile(node, entry)?;
                        *self.places.get_mut(entry)? = Place::Split(body, next);
                    }
                    Some(most) => {
                        for _ in *least..*most {
                            let body = self.compile(node, entry)?;
                            entry = self.push(Place::Split(body, next))?;
                        }
                    }
                }
                for _ in 0..*least {
                    entry = self.compile(node, entry)?;
                }
                Some(entry)
            }
        }
    }

    fn push(&mut self, place: Place) -> Option<usize> {
        let index = self.places.len();
        // Each place of a repetition comes with a split.
        (index <= MAX_PLACES.saturating_mul(2)).then(|| self.places.push(place))?;
        Some(index)
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at = self.at.saturating_add(1);
        Some(byte)
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.at = self.at.saturating_add(1);
        }
        found
    }

    fn wrong(&self, what: &str) -> String {
        format!("at character {}: {what}", self.at.saturating_add(1).min(self.text.len()))
    }

    fn alternatives(&mut self) -> Result<Node, String> {
        let mut nodes = vec![self.sequence()?];
        while self.eat(b'|') {
            nodes.push(self.sequence()?);
        }
        Ok(Node::Any(nodes))
    }

    fn sequence(&mut self) -> Result<Node, String> {
        let mut nodes = Vec::new();
        while !matches!(self.peek(), None | Some(b'|' | b')')) {
            let node = self.one()?;
            nodes.push(self.repeated(node)?);
        }
        Ok(Node::All(nodes))
    }

    fn one(&mut self) -> Result<Node, String> {
        let here = self.wrong("");
        Ok(match self.next() {
            Some(b'(') => self.group()?,
            Some(b'[') => Node::Byte(self.class()?),
            Some(b'.') => Node::Byte(Bytes::ALL),
            Some(b'\\') => Node::Byte(self.escape()?),
            Some(b'^' | b'$') => {
                return Err(format!(
                    "{here}a pattern is for the whole value, so ^ and $ are left out (or written \\^, \\$)"
                ));
            }
            Some(b'*' | b'+' | b'?' | b'{') => return Err(format!("{here}there is nothing to repeat")),
            Some(byte) => Node::Byte(Bytes::with(&[(byte, byte)])),
            None => Node::All(Vec::new()),
        })
    }

    fn group(&mut self) -> Result<Node, String> {
        self.depth = self.depth.saturating_add(1);
        if self.depth > MAX_DEPTH {
            return Err(self.wrong("groups are nested too deeply"));
        }
        if self.eat(b'?') && !self.eat(b':') {
            return Err(self.wrong("of what begins with (? only (?: is known"));
        }
        let node = self.alternatives()?;
        if !self.eat(b')') {
            return Err(self.wrong("a group lacks its )"));
        }
        self.depth = self.depth.saturating_sub(1);
        Ok(node)
    }

    /// `+`, `*`, `?`, `{m}`, `{m,}` or `{m,n}` behind a node; one at most.
    fn repeated(&mut self, node: Node) -> Result<Node, String> {
        let (least, most) = match self.peek() {
            Some(b'*') => (0, None),
            Some(b'+') => (1, None),
            Some(b'?') => (0, Some(1)),
            Some(b'{') => {
                self.next();
                let least = self.count()?;
                let most = match self.eat(b',') {
                    false => Some(least),
                    true if self.peek() == Some(b'}') => None,
                    true => Some(self.count()?),
                };
                if self.peek() != Some(b'}') || most.is_some_and(|most| most < least) {
                    return Err(self.wrong("repetitions are written {3}, {3,} or {3,5}"));
                }
                (least, most)
            }
            _ => return Ok(node),
        };
        self.next();
        if matches!(self.peek(), Some(b'*' | b'+' | b'?' | b'{')) {
            return Err(self.wrong("a repetition of a repetition needs a group"));
        }
        Ok(Node::Repeat { node: Box::new(node), least, most })
    }

    fn count(&mut self) -> Result<usize, String> {
        let mut count = None::<usize>;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            self.next();
            let digit = usize::from(digit.wrapping_sub(b'0'));
            count = Some(count.unwrap_or(0).saturating_mul(10).saturating_add(digit));
        }
        match count {
            Some(count) if count <= MAX_PLACES => Ok(count),
            Some(_) => Err(self.wrong("so many repetitions are too many")),
            None => Err(self.wrong("repetitions are written {3}, {3,} or {3,5}; a brace itself is \\{")),
        }
    }

    /// What follows `[`.
    fn class(&mut self) -> Result<Bytes, String> {
        let without = self.eat(b'^');
        let mut bytes = Bytes::default();
        let mut first = true;
        loop {
            let byte = match self.next() {
                None => return Err(self.wrong("a class lacks its ]")),
                Some(b']') if !first => break,
                Some(b'[') => {
                    return Err(self.wrong("a [ within a class is written \\[; names such as [:alpha:] are not known"));
                }
                Some(b'\\') => {
                    let escaped = self.escape()?;
                    bytes.merge(escaped);
                    first = false;
                    continue;
                }
                Some(byte) => byte,
            };
            first = false;
            let is_range =
                self.peek() == Some(b'-') && !matches!(self.text.get(self.at.saturating_add(1)), None | Some(b']'));
            let last = if is_range {
                self.next();
                match self.next() {
                    Some(last) if last >= byte && !matches!(last, b'\\' | b'[') => last,
                    _ => {
                        return Err(
                            self.wrong("a range within a class is written a-z, and ends no earlier than it begins")
                        );
                    }
                }
            } else {
                byte
            };
            bytes.add(byte, last);
        }
        Ok(if without { bytes.others() } else { bytes })
    }

    /// What follows `\`: a known class, or a character that means something elsewhere.
    fn escape(&mut self) -> Result<Bytes, String> {
        const DIGITS: (u8, u8) = (b'0', b'9');
        let here = self.wrong("");
        Ok(match self.next() {
            Some(b'd') => Bytes::with(&[DIGITS]),
            Some(b'w') => Bytes::with(&[DIGITS, (b'a', b'z'), (b'A', b'Z'), (b'_', b'_')]),
            Some(byte) if byte.is_ascii_punctuation() => Bytes::with(&[(byte, byte)]),
            _ => {
                return Err(format!(
                    "{here}of letters only \\d (digits) and \\w (letters, digits and _) are known behind a \\"
                ));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::arithmetic_side_effects)]
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn pattern(text: &str) -> Pattern {
        Pattern::new(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_pattern_is_for_the_whole_value() {
        for (text, yes, no) in [
            ("[A-Za-z0-9_-]{1,64}", vec!["a", "Acme_7-x"], vec!["", "a b", "a\n", " a", "a.b"]),
            ("tenant-\\d+", vec!["tenant-1", "tenant-123"], vec!["tenant-", "tenant-1x", "xtenant-1"]),
            ("a|bc|", vec!["a", "bc", ""], vec!["ab", "abc", "b"]),
            ("(ab|c)*d?", vec!["", "d", "ababcd", "cc"], vec!["a", "dd", "abdc"]),
            ("(?:x{2}){2,}", vec!["xxxx", "xxxxxx"], vec!["xx", "xxxxx"]),
            ("x{2,3}", vec!["xx", "xxx"], vec!["x", "xxxx"]),
            ("x{0}y", vec!["y"], vec!["xy"]),
            ("[^/]+", vec!["a b", "ü"], vec!["", "a/b"]),
            ("[]a-]+", vec!["]a-"], vec!["b"]),
            ("[\\]\\\\\\w.]+", vec!["]\\a_9."], vec!["-"]),
            (".{3}", vec!["abc", "\u{20ac}"], vec!["ab"]),
            ("\\.\\{\\*", vec![".{*"], vec!["a{*"]),
            ("(a*)*b", vec!["b", "aab"], vec!["a"]),
            ("()", vec![""], vec!["a"]),
        ] {
            for value in yes {
                assert!(pattern(text).matches(value.as_bytes()), "{text} {value:?}");
            }
            for value in no {
                assert!(!pattern(text).matches(value.as_bytes()), "{text} {value:?}");
            }
        }
        assert!(pattern("\\w{1,64}").matches(&[b'a'; 64]));
        assert!(!pattern("\\w{1,64}").matches(&[b'a'; 65]));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, reason) in [
            ("", "1 to 512 characters"),
            ("é", "ASCII"),
            ("^a$", "at character 1: a pattern is for the whole value"),
            ("a$", "at character 2: a pattern is for the whole value"),
            ("*a", "at character 1: there is nothing to repeat"),
            ("a**", "at character 3: a repetition of a repetition"),
            ("(a", "a group lacks its )"),
            ("a)", "at character 2: this ) closes no group"),
            ("[a", "a class lacks its ]"),
            ("[z-a]", "ends no earlier than it begins"),
            ("[[:alpha:]]", "names such as [:alpha:] are not known"),
            ("a{2,1}", "repetitions are written"),
            ("a{,2}", "repetitions are written"),
            ("a{2", "repetitions are written"),
            ("{tenant}", "nothing to repeat"),
            ("\\s", "only \\d (digits) and \\w"),
            ("(?i)a", "only (?: is known"),
            ("a{9999}", "too many"),
            ("((a{100}){100}){100}", "too large"),
            ("((((){999}){999}){999}){999}", "too large"),
            (&"(".repeat(20), "nested too deeply"),
        ] {
            let error = Pattern::new(text).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_hostile_value_takes_no_longer_than_its_length() {
        // What makes matchers that go back take exponential time.
        let value = [b'a'; MAX_VALUE];
        for text in ["(a*)*b", "(a|a)*b", "(a|aa)+b", "(.*.*.*)*b", "(a?){100}a{100}b"] {
            assert!(!pattern(text).matches(&value), "{text}");
        }
        assert!(pattern("a*").matches(&value));
        assert!(!pattern("a*").matches(&[b'a'; MAX_VALUE + 1]), "longer than any identity");
    }

    #[cfg(not(target_arch = "wasm32"))]
    mod properties {
        use super::*;
        use proptest::prelude::*;

        /// The definition, tried in all ways.
        fn ends(node: &Node, value: &[u8]) -> Vec<usize> {
            match node {
                Node::Byte(bytes) => value.first().filter(|byte| bytes.has(**byte)).map(|_| 1).into_iter().collect(),
                Node::All(nodes) => nodes.iter().fold(vec![0], |starts, node| {
                    let all = starts
                        .iter()
                        .flat_map(|start| ends(node, &value[*start..]).into_iter().map(move |end| start + end));
                    let mut all: Vec<usize> = all.collect();
                    all.sort_unstable();
                    all.dedup();
                    all
                }),
                Node::Any(nodes) => nodes.iter().flat_map(|node| ends(node, value)).collect(),
                Node::Repeat { node, least, most } => {
                    let (mut all, mut now) = (Vec::new(), vec![0]);
                    for times in 0..=most.unwrap_or(least + value.len() + 1) {
                        if times >= *least {
                            all.extend(&now);
                        }
                        let mut next: Vec<usize> = now
                            .iter()
                            .flat_map(|start| ends(node, &value[*start..]).into_iter().map(move |end| start + end))
                            .collect();
                        next.sort_unstable();
                        next.dedup();
                        now = next;
                    }
                    all
                }
            }
        }

        fn texts() -> impl Strategy<Value = String> {
            let leaf = prop::sample::select(vec!["a", "b", "[ab]", "[^a]", ".", ""]).prop_map(String::from);
            leaf.prop_recursive(4, 16, 3, |inner| {
                prop_oneof![
                    (inner.clone(), inner.clone()).prop_map(|(one, two)| format!("{one}{two}")),
                    (inner.clone(), inner.clone()).prop_map(|(one, two)| format!("({one}|{two})")),
                    (inner, prop::sample::select(vec!["*", "+", "?", "{2}", "{1,3}", "{2,}"]))
                        .prop_map(|(one, times)| format!("({one}){times}")),
                ]
            })
        }

        proptest! {
            #![proptest_config(ProptestConfig::with_cases(5_000))]

            #[test]
            fn a_match_is_what_the_definition_says(text in texts(), value in "[abc]{0,8}") {
                prop_assume!(!text.is_empty());
                let node = Parser { text: text.as_bytes(), at: 0, depth: 0 }.alternatives().expect("a pattern");
                let expected = ends(&node, value.as_bytes()).contains(&value.len());
                prop_assert_eq!(pattern(&text).matches(value.as_bytes()), expected);
            }

            #[test]
            fn any_text_is_a_pattern_or_an_error(text in "[ab\\[\\](){}|*+?^$.,0-9\\\\-]{0,40}", value in "[ab]{0,20}") {
                if let Ok(pattern) = Pattern::new(&text) {
                    let _ = pattern.matches(value.as_bytes());
                }
            }
        }
    }
}
