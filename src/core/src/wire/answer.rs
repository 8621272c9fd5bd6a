//! Reading an answer: from a tree, since the filter has that for its configuration already and has no room for a second
//! reader.

use super::{AdmitAnswer, Admitted, DecisionAnswer, Denial, Denied, Failure, LeaseAnswer};
use crate::tree::Tree;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

impl<'de> Deserialize<'de> for AdmitAnswer {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        read(&Tree::deserialize(value)?).ok_or_else(|| D::Error::custom("is not an answer to POST /v1/admit"))
    }
}

fn read(tree: &Tree) -> Option<AdmitAnswer> {
    let decisions = list(Fields::of(tree)?.one("decisions")??)?.iter().map(decision).collect::<Option<_>>()?;
    Some(AdmitAnswer { decisions })
}

fn decision(tree: &Tree) -> Option<DecisionAnswer> {
    let fields = Fields::of(tree)?;
    match (fields.one("admitted")?, fields.one("denied")?, fields.one("failed")?) {
        (Some(charges), None, None) => {
            list(charges)?.iter().map(admitted).collect::<Option<_>>().map(DecisionAnswer::Admitted)
        }
        (None, Some(charges), None) => {
            list(charges)?.iter().map(denied).collect::<Option<_>>().map(DecisionAnswer::Denied)
        }
        (None, None, Some(Tree::Text(reason))) => Some(DecisionAnswer::Failed(Failure::named(reason))),
        _ => None,
    }
}

fn admitted(tree: &Tree) -> Option<Admitted> {
    let fields = Fields::of(tree)?;
    Some(Admitted { remaining: whole(fields.one("remaining")??)?, lease: lease(&fields)? })
}

fn denied(tree: &Tree) -> Option<Denied> {
    let fields = Fields::of(tree)?;
    let denied = match fields.one("denied")? {
        None => None,
        Some(Tree::Text(word)) if word == "over_capacity" => Some(Denial::OverCapacity),
        Some(denial) => Some(Denial::WaitUs(whole(Fields::of(denial)?.one("wait_us")??)?)),
    };
    Some(Denied { remaining: whole(fields.one("remaining")??)?, denied, lease: lease(&fields)? })
}

/// `Some(None)` where none is said.
fn lease(fields: &Fields<'_>) -> Option<Option<LeaseAnswer>> {
    let Some(lease) = fields.one("lease")? else { return Some(None) };
    let fields = Fields::of(lease)?;
    let number = |name| fields.one(name)?.map_or(Some(0), whole);
    let (seq, units) = (whole(fields.one("seq")??)?, whole(fields.one("units")??)?);
    Some(Some(LeaseAnswer { seq, units, room: number("room")?, rate: number("rate")? }))
}

fn list(tree: &Tree) -> Option<&[Tree]> {
    if let Tree::List(list) = tree { Some(list) } else { None }
}

fn whole(tree: &Tree) -> Option<u64> {
    if let Tree::Whole(number) = tree { Some(*number) } else { None }
}

/// The fields of one object; those that are not known are ignored.
struct Fields<'a>(&'a [(String, Tree)]);

impl<'a> Fields<'a> {
    fn of(tree: &'a Tree) -> Option<Self> {
        if let Tree::Map(map) = tree { Some(Self(map)) } else { None }
    }

    /// `Some(None)` where there is none of this name, `None` where there are several.
    fn one(&self, name: &str) -> Option<Option<&'a Tree>> {
        let mut found = self.0.iter().filter(|(field, _)| field == name).map(|(_, value)| value);
        let first = found.next();
        found.next().is_none().then_some(first)
    }
}
