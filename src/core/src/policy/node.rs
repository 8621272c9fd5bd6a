//! Reading a [`Tree`] with its path at hand, so that every error says where, and all are shown at once.

use super::bounds::MAX_NAME;
use crate::tree::Tree;
use crate::units::{DURATION_UNITS, Micros};
use core::cell::RefCell;
use core::fmt;

/// One thing that is wrong in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Where, such as `policies[1].limit.token_bucket.capacity`; empty for the whole.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.path, self.message) }
    }
}

/// All that is wrong in a configuration; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyErrors(Vec<Issue>);

impl PolicyErrors {
    pub(super) const fn new(issues: Vec<Issue>) -> Self {
        Self(issues)
    }

    pub(super) fn whole(message: String) -> Self {
        Self(vec![Issue { path: String::new(), message }])
    }

    /// One by one, in the order they were found.
    #[must_use]
    pub fn issues(&self) -> &[Issue] {
        &self.0
    }
}

impl fmt::Display for PolicyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, issue) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            fmt::Display::fmt(issue, f)?;
        }
        Ok(())
    }
}

impl core::error::Error for PolicyErrors {}

/// What is found while a configuration is read.
#[derive(Default)]
pub(super) struct Issues {
    pub(super) errors: RefCell<Vec<Issue>>,
    pub(super) warnings: RefCell<Vec<Issue>>,
}

/// A value with the path that leads to it.
#[derive(Clone)]
pub(super) struct Node<'a> {
    tree: &'a Tree,
    path: String,
    issues: &'a Issues,
}

/// A map whose names have been checked.
pub(super) struct Fields<'a> {
    node: Node<'a>,
    /// What some names that are not known were meant to be: that has been told.
    meant: Vec<String>,
}

impl<'a> Node<'a> {
    pub(super) const fn root(tree: &'a Tree, issues: &'a Issues) -> Self {
        Self { tree, path: String::new(), issues }
    }

    /// Notes that this value is wrong. Gives nothing, so that a reader can end with it.
    pub(super) fn refuse<T>(&self, message: impl Into<String>) -> Option<T> {
        self.note(&self.issues.errors, message.into());
        None
    }

    /// Notes that this value is right and yet hardly meant.
    pub(super) fn warn(&self, message: impl Into<String>) {
        self.note(&self.issues.warnings, message.into());
    }

    #[cold]
    #[inline(never)]
    fn note(&self, issues: &RefCell<Vec<Issue>>, message: String) {
        issues.borrow_mut().push(Issue { path: self.path.clone(), message });
    }

    fn refuse_kind<T>(&self, wanted: &str) -> Option<T> {
        self.refuse(format!("must be {wanted}, not {}", self.tree.kind()))
    }

    #[inline(never)]
    fn child(&self, name: &str, tree: &'a Tree) -> Self {
        let path = if self.path.is_empty() { name.into() } else { format!("{}.{name}", self.path) };
        Self { tree, path, issues: self.issues }
    }

    /// The map's fields; `known` are all that may be there.
    pub(super) fn fields(&self, known: &[&str]) -> Option<Fields<'a>> {
        self.fields_but(known, &[])
    }

    /// The same; each of `others` is known to belong elsewhere, and comes with what to say to whoever writes it here.
    pub(super) fn fields_but(&self, known: &[&str], others: &[(&str, &str)]) -> Option<Fields<'a>> {
        let Tree::Map(map) = self.tree else { return self.refuse_kind("a map") };
        let mut meant = Vec::new();
        for (index, (name, value)) in map.iter().enumerate() {
            let child = self.child(name, value);
            if !known.contains(&name.as_str()) {
                let other = others.iter().find(|(other, _)| other == name);
                child.refuse::<()>(other.map_or_else(|| unknown("field", name, known), |(_, why)| String::from(*why)));
                meant.extend(nearest(name, known).map(String::from));
            } else if map.iter().take(index).any(|(earlier, _)| earlier == name) {
                child.refuse::<()>("is there twice");
            }
        }
        Some(Fields { node: self.clone(), meant })
    }

    /// A map with exactly one of the `known` fields, which says what kind of thing this is.
    pub(super) fn choice(&self, known: &[&str], example: &str) -> Option<(&'a str, Node<'a>)> {
        self.choice_beside(known, &[], example)
    }

    /// The same, where fields of these other names may stand beside it.
    pub(super) fn choice_beside(&self, known: &[&str], beside: &[&str], example: &str) -> Option<(&'a str, Node<'a>)> {
        let Tree::Map(map) = self.tree else {
            return self.refuse(format!("must be a map such as {example}, not {}", self.tree.kind()));
        };
        let is_known = |name: &String| known.contains(&name.as_str());
        let chosen: Vec<&(String, Tree)> = map.iter().filter(|(name, _)| !beside.contains(&name.as_str())).collect();
        match chosen.as_slice() {
            [(name, value)] if is_known(name) => Some((name, self.child(name, value))),
            [(name, value)] if nearest(name, known).is_some() => {
                self.child(name, value).refuse(unknown("field", name, known))
            }
            // What belongs inside was written here, perhaps.
            _ => self.refuse(format!("must have exactly one of {}, such as {example}", known.join(", "))),
        }
    }

    pub(super) fn list(&self) -> Option<Vec<Self>> {
        let list = match self.tree {
            Tree::List(list) => list,
            Tree::Text(text) => return self.refuse(format!("must be a list: [{text}]")),
            _ => return self.refuse_kind("a list"),
        };
        let item = |(index, tree)| Self { tree, path: format!("{}[{index}]", self.path), issues: self.issues };
        Some(list.iter().enumerate().map(item).collect())
    }

    /// A list of at least one and at most `most` items.
    pub(super) fn filled_list(&self, most: usize) -> Option<Vec<Self>> {
        let list = self.list()?;
        if list.is_empty() {
            return self.refuse("must not be empty");
        }
        if list.len() > most {
            return self.refuse(format!("must have at most {most} items, has {}", list.len()));
        }
        Some(list)
    }

    pub(super) fn entries(&self) -> Option<Vec<(&'a str, Self)>> {
        let Tree::Map(map) = self.tree else { return self.refuse_kind("a map") };
        for (index, (name, value)) in map.iter().enumerate() {
            if map.iter().take(index).any(|(earlier, _)| earlier == name) {
                self.child(name, value).refuse::<()>("is there twice");
            }
        }
        Some(map.iter().map(|(name, value)| (name.as_str(), self.child(name, value))).collect())
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        match self.tree {
            Tree::Text(text) => Some(text),
            Tree::Whole(_) | Tree::Other | Tree::Bool(_) => self.refuse("must be text: put it in quotes"),
            _ => self.refuse_kind("text"),
        }
    }

    /// Text that is not empty.
    pub(super) fn filled_text(&self) -> Option<&'a str> {
        let text = self.text()?;
        if text.is_empty() { self.refuse("must not be empty") } else { Some(text) }
    }

    pub(super) const fn is_map(&self) -> bool {
        matches!(self.tree, Tree::Map(_))
    }

    /// A field, if this is a map that has it; nothing is checked.
    pub(super) fn peek(&self, name: &str) -> Option<Self> {
        let Tree::Map(map) = self.tree else { return None };
        let (_, tree) = map.iter().find(|(known, _)| known == name)?;
        Some(self.child(name, tree))
    }

    /// Whether this is `true` or `false`, for a word that YAML takes for one of them.
    pub(super) const fn as_boolean(&self) -> Option<bool> {
        if let Tree::Bool(value) = self.tree { Some(*value) } else { None }
    }

    /// The word, when this is text: for values that are a word or a map.
    pub(super) const fn as_word(&self) -> Option<&'a str> {
        if let Tree::Text(text) = self.tree { Some(text.as_str()) } else { None }
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let text = self.text()?;
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).or_else(|| {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.refuse(unknown("value", text, &known))
        })
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        match self.tree {
            Tree::Bool(value) => Some(*value),
            Tree::Text(text) if text == "true" || text == "false" => {
                self.refuse(format!("must be {text} without quotes"))
            }
            _ => self.refuse_kind("true or false"),
        }
    }

    /// A count within bounds.
    pub(super) fn whole(&self, least: u64, most: u64) -> Option<u64> {
        match self.tree {
            Tree::Whole(value) if (least..=most).contains(value) => Some(*value),
            Tree::Whole(value) => self.refuse(format!("must be between {least} and {most}, is {value}")),
            Tree::Other => self.refuse(format!("must be a whole number between {least} and {most}")),
            // Envoy hands on a whole number of YAML that 32 bits do not hold as text: there is no other way to write it.
            Tree::Text(text) if text.parse::<u64>().is_ok_and(|value| value > i32::MAX as u64) => {
                let value = text.parse().unwrap_or(u64::MAX);
                if (least..=most).contains(&value) {
                    return Some(value);
                }
                self.refuse(format!("must be between {least} and {most}, is {value}"))
            }
            Tree::Text(text) if text.parse::<u64>().is_ok() => {
                self.refuse(format!("must be a number without quotes: {text}"))
            }
            // Envoy hands on a YAML number with a fraction as text.
            Tree::Text(text) if text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b)) => {
                self.refuse(format!("must be a whole number between {least} and {most}, is {text}"))
            }
            _ => self.refuse_kind(&format!("a whole number between {least} and {most}")),
        }
    }

    /// A whole percentage, such as `10%`.
    pub(super) fn percentage(&self) -> Option<u8> {
        let text = match self.tree {
            Tree::Text(text) => text.as_str(),
            Tree::Whole(value) => return self.refuse(format!("needs a percent sign: \"{value}%\"")),
            _ => return self.refuse_kind("a percentage, such as \"10%\""),
        };
        let digits = text.strip_suffix('%').filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
        let percent = digits.and_then(|digits| digits.parse::<u8>().ok()).filter(|percent| *percent <= 100);
        percent.or_else(|| self.refuse(format!("{text:?}: a percentage is a whole number from 0% to 100%")))
    }

    /// A span of time with its unit, such as `50ms`, within bounds.
    pub(super) fn duration(&self, least: Micros, most: Micros) -> Option<Micros> {
        let text = match self.tree {
            Tree::Text(text) => text,
            Tree::Whole(value) => {
                return self.refuse(format!("needs a unit: \"{value}ms\" or \"{value}s\""));
            }
            _ => return self.refuse_kind("a time with a unit, such as \"50ms\""),
        };
        match Micros::parse(text) {
            Some(span) if span >= least && span <= most => Some(span),
            Some(_) => self.refuse(format!("must be between {least} and {most}, is {text}")),
            None => self
                .refuse(format!("{text:?} is not a time: write a whole number and {DURATION_UNITS}, such as \"50ms\"")),
        }
    }

    /// A name for people and metrics.
    pub(super) fn name(&self) -> Option<&'a str> {
        let text = self.text()?;
        if is_name(text) { Some(text) } else { self.refuse(NAME_RULE) }
    }
}

impl<'a> Fields<'a> {
    pub(super) fn get(&self, name: &str) -> Option<Node<'a>> {
        self.node.peek(name)
    }

    /// The field, or an error that says what it is for.
    pub(super) fn required(&self, name: &str, purpose: &str) -> Option<Node<'a>> {
        let is_misspelled = || self.meant.iter().any(|meant| meant == name);
        self.get(name)
            .or_else(|| if is_misspelled() { None } else { self.node.refuse(format!("lacks `{name}`: {purpose}")) })
    }

    /// What the field reads as, if it is there; `None` when it is there and wrong.
    pub(super) fn optional<T>(&self, name: &str, read: impl FnOnce(&Node<'a>) -> Option<T>) -> Option<Option<T>> {
        self.get(name).map_or(Some(None), |node| read(&node).map(Some))
    }

    /// Notes that this map as a whole is right and yet hardly meant.
    pub(super) fn warn(&self, message: impl Into<String>) {
        self.node.warn(message);
    }

    /// Notes that this map as a whole is wrong.
    pub(super) fn refuse<T>(&self, message: impl Into<String>) -> Option<T> {
        self.node.refuse(message)
    }
}

pub(super) const NAME_RULE: &str = "must be 1 to 64 letters, digits, '_', '-' or '.'";

/// Whether a text can name a policy or a route class: 1 to 64 letters, digits, `_`, `-` or `.`.
#[must_use]
pub fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
}

/// Says that a name is not known, and which was probably meant.
pub(super) fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(word) => format!("unknown {what} {name:?}: did you mean {word:?}?"),
        None if known.is_empty() => format!("unknown {what} {name:?}"),
        None => format!("unknown {what} {name:?}: known are {}", known.join(", ")),
    }
}

/// The word that was probably meant, if one is near.
#[must_use]
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = known.iter().filter_map(|word| {
        let distance = strsim::osa_distance(name, word);
        let longest = name.chars().count().max(word.chars().count());
        (distance.saturating_mul(5) <= longest.saturating_mul(2)).then_some((distance, *word))
    });
    near.min().map(|(_, word)| word)
}
