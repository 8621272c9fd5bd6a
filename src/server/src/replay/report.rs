//! What a replay has shown, for people and for programs. No value of a request is in it.

use super::lines::{Place, ReadSoFar};
use super::tally::{OfPolicy, Tally};
use crate::check::{Held, meaning};
use jiff::Timestamp;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use tollgate_core::decision::{FailCause, Part};
use tollgate_core::facts::Source;
use tollgate_core::policy::{Enforcement, Identity, IdentityResult};
use tollgate_core::units::Micros;

/// So many keys are named of each policy.
const NAMED: usize = 10;

#[derive(Serialize)]
pub struct Report {
    pub place: String,
    pub line: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    pub logs: Vec<String>,
    pub requests: u64,
    pub first: String,
    pub last: String,
    pub admitted: u64,
    pub rejected: u64,
    pub exempt: u64,
    /// By what they are called in metrics; those that were exempt are none.
    pub outcomes: BTreeMap<&'static str, u64>,
    pub identities: Vec<IdentityLine>,
    pub policies: Vec<PolicyLine>,
    pub timeline: Bins,
    /// What is to be known before these numbers are believed.
    pub notes: Vec<String>,
}

#[derive(Serialize)]
pub struct IdentityLine {
    pub name: String,
    /// By what they are called in metrics.
    pub results: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
pub struct PolicyLine {
    pub name: String,
    /// `on`, `shadow` or a percentage.
    pub enforce: String,
    /// In words.
    pub meaning: String,
    /// Requests that it was for.
    pub requests: u64,
    /// Of those, what it rejected.
    pub rejected: u64,
    /// And what it would have rejected where it is in shadow.
    pub shadow_denied: u64,
    /// By what they are called in metrics.
    pub outcomes: BTreeMap<&'static str, u64>,
    pub keys: usize,
    pub keys_rejected: usize,
    /// The first ten, by how many of their requests were rejected or would have been.
    pub most_rejected: Vec<KeyLine>,
}

#[derive(Serialize)]
pub struct KeyLine {
    pub key: String,
    pub requests: u64,
    pub rejected: u64,
    pub first_rejected: String,
    /// `file:line` of that request.
    pub place: String,
}

/// Over time, in bins of so many seconds.
#[derive(Serialize)]
pub struct Bins {
    pub seconds: f64,
    /// When the first begins, in seconds since 1970.
    pub start: f64,
    pub requests: Vec<u64>,
    pub rejected: Vec<u64>,
    /// By policy; where it is in shadow, what it would have rejected.
    pub by_policy: BTreeMap<String, Vec<u64>>,
}

impl Report {
    pub fn new(held: &Held, tally: &Tally, read: &ReadSoFar, logs: &[String]) -> Self {
        let (first, last) = tally.span.unwrap_or_default();
        let parts = || Part::ALL.iter().zip(tally.outcomes.0);
        let is_admitted = |part: &Part| matches!(part, Part::Allowed | Part::FailedOpen | Part::FailedLocal);
        let admitted: u64 = parts().filter(|(part, _)| is_admitted(part)).map(|(_, count)| count).sum();
        let of_policy = |(index, of): (usize, &OfPolicy)| PolicyLine::new(held, index, of, logs);
        Self {
            place: held.place.clone(),
            line: held.line,
            version: held.set.version.clone(),
            logs: logs.to_vec(),
            requests: tally.requests,
            first: time(first),
            last: time(last),
            admitted: admitted + tally.exempt,
            rejected: tally.outcomes.total() - admitted,
            exempt: tally.exempt,
            outcomes: named(parts().map(|(part, count)| (part.name(), count))),
            identities: held.set.identities().iter().zip(&tally.identities).map(IdentityLine::new).collect(),
            policies: tally.policies.iter().enumerate().map(of_policy).collect(),
            timeline: Bins::new(held, tally),
            notes: notes(held, tally, read),
        }
    }
}

/// Those that were not zero.
fn named<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> BTreeMap<&'a str, u64> {
    counts.filter(|(_, count)| *count > 0).collect()
}

fn time(at: Micros) -> String {
    let at = i64::try_from(at.count()).ok().and_then(|at| Timestamp::from_microsecond(at).ok());
    at.map_or_else(String::new, |at| at.to_string())
}

impl IdentityLine {
    fn new<const N: usize>((identity, counts): (&Identity, &super::tally::Counts<N>)) -> Self {
        let results = IdentityResult::ALL.iter().map(|result| result.name()).zip(counts.0);
        Self { name: identity.name.clone(), results: named(results) }
    }
}

impl PolicyLine {
    fn new(held: &Held, index: usize, of: &OfPolicy, logs: &[String]) -> Self {
        let policy = &held.set.policies()[index];
        let parts = Part::ALL.iter().map(|part| part.name()).zip(of.parts.0);
        let shadow = [
            ("shadow_allowed", of.shadow_allowed),
            ("shadow_denied", of.shadow_denied),
            ("skipped", of.skipped),
            ("plan_unknown", of.unknown_plans),
        ];
        let rejects =
            |part: &Part| !matches!(part, Part::Allowed | Part::NotCharged | Part::FailedOpen | Part::FailedLocal);
        let place = |place: Place| format!("{}:{}", logs.get(place.log).map_or("", String::as_str), place.line);
        let keys = of.most_rejected(NAMED).into_iter().filter_map(|(key, of)| {
            let (at, first) = of.first_rejected?;
            Some(KeyLine {
                key: key.to_string(),
                requests: of.requests,
                rejected: of.rejected,
                first_rejected: time(at),
                place: place(first),
            })
        });
        Self {
            name: policy.name.clone(),
            enforce: match policy.enforce {
                Enforcement::On => "on".into(),
                Enforcement::Shadow => "shadow".into(),
                Enforcement::Percent(share) => format!("{share}%"),
            },
            meaning: meaning::of_set(&held.set).swap_remove(index).means,
            requests: of.parts.total() + of.shadow_allowed + of.shadow_denied,
            rejected: Part::ALL.iter().zip(of.parts.0).filter(|(part, _)| rejects(part)).map(|(_, count)| count).sum(),
            shadow_denied: of.shadow_denied,
            outcomes: named(parts.chain(shadow)),
            keys: of.keys.len(),
            keys_rejected: of.rejected_keys().count(),
            most_rejected: keys.collect(),
        }
    }
}

impl Bins {
    fn new(held: &Held, tally: &Tally) -> Self {
        let timeline = &tally.timeline;
        let seconds = |time: Micros| time.count() as f64 / 1e6;
        let of = |index: usize| timeline.bins.iter().map(|bin| bin.by_policy[index]).collect();
        Self {
            seconds: seconds(timeline.width),
            start: seconds(timeline.start),
            requests: timeline.bins.iter().map(|bin| bin.requests).collect(),
            rejected: timeline.bins.iter().map(|bin| bin.rejected).collect(),
            by_policy: held
                .set
                .policies()
                .iter()
                .enumerate()
                .map(|(index, one)| (one.name.clone(), of(index)))
                .collect(),
        }
    }
}

fn notes(held: &Held, tally: &Tally, read: &ReadSoFar) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(first) = &read.unreadable.first {
        let count = read.unreadable.count;
        notes.push(format!("{count} lines are no requests, and were left out; the first is {first}"));
    }
    if read.late > 0 {
        notes.push(format!(
            "{} requests are too far out of order, and were taken for later ones: are the logs given in the order of their \
             times?",
            read.late
        ));
    }
    for (identity, counts) in held.set.identities().iter().zip(&tally.identities) {
        // A log seldom holds a credential; without it every request would be one caller's.
        let missing = counts.0[IdentityResult::ALL.iter().position(|one| *one == IdentityResult::Missing).unwrap_or(0)];
        if missing > 0 && missing == counts.total() {
            notes.push(format!("no request has a {}: {}", identity.name, wanted(identity)));
        }
    }
    let unknown: Vec<String> = FailCause::ALL
        .iter()
        .zip(tally.failures.0)
        .filter(|(_, count)| *count > 0)
        .map(|(cause, count)| format!("{count} for {}", cause.meaning()))
        .collect();
    if !unknown.is_empty() {
        notes.push(format!("fail modes have decided requests, {}", unknown.join(", ")));
    }
    let beyond: u64 = tally.policies.iter().map(|policy| policy.beyond).sum();
    if beyond > 0 {
        notes.push(format!("there are more keys than are told apart here: {beyond} requests are in no key's count"));
    }
    if let Some(name) = &held.unset_hash_key {
        notes.push(format!(
            "{name} is not set here: digests are not those of the proxies, and a share of keys is not the same share"
        ));
    }
    notes
}

/// How a log can tell an identity.
fn wanted(identity: &Identity) -> String {
    let option = |source: &Source| match source {
        Source::Header(name) | Source::Scheme { header: name, .. } => Some(format!("--header {name}=FIELD")),
        Source::Cookie(_) => Some("--header cookie=FIELD".into()),
        Source::Attribute(attribute) => {
            Some(crate::explain::Name::of(attribute).option().replace("=…", "=FIELD").replace(" …", " FIELD"))
        }
        Source::Query(_) | Source::ClientAddress { .. } | Source::Literal(_) => None,
    };
    let options: Vec<String> = identity.sources.iter().filter_map(option).collect();
    if options.is_empty() {
        "the log does not have it".into()
    } else {
        format!("if the log has it, say where by {}", options.join(" or "))
    }
}

/// `1.5 %`
pub fn share(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 };
    if part > 0 && share < 0.1 { "<0.1 %".into() } else { format!("{share:.1} %") }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version.as_ref().map_or_else(String::new, |version| format!(", version {version}"));
        writeln!(f, "{}{version}: {} requests of {}", self.place, self.requests, self.logs.join(", "))?;
        writeln!(f, "  from {} to {}", self.first, self.last)?;
        let exempt = if self.exempt > 0 { format!(", {} of them exempt", self.exempt) } else { String::new() };
        writeln!(f, "  admitted {} ({}){exempt}", self.admitted, share(self.admitted, self.requests))?;
        writeln!(f, "  rejected {} ({})\n", self.rejected, share(self.rejected, self.requests))?;
        let mut rows = vec![
            ["policy", "enforce", "requests", "rejected", "in shadow", "keys", "of them rejected"].map(String::from),
        ];
        rows.extend(self.policies.iter().map(|policy| {
            let [rejected, shadow] = [policy.rejected, policy.shadow_denied]
                .map(|count| format!("{count} ({})", share(count, policy.requests)));
            [
                policy.name.clone(),
                policy.enforce.clone(),
                policy.requests.to_string(),
                rejected,
                shadow,
                policy.keys.to_string(),
                policy.keys_rejected.to_string(),
            ]
        }));
        table(f, &rows, 2..7)?;
        let mut rows = vec![["policy", "key", "requests", "rejected", "first rejected", "at"].map(String::from)];
        for policy in &self.policies {
            rows.extend(policy.most_rejected.iter().map(|key| {
                let [requests, rejected] = [key.requests, key.rejected].map(|count| count.to_string());
                [
                    policy.name.clone(),
                    key.key.clone(),
                    requests,
                    rejected,
                    key.first_rejected.clone(),
                    key.place.clone(),
                ]
            }));
        }
        if rows.len() > 1 {
            writeln!(f)?;
            table(f, &rows, 2..4)?;
        }
        if !self.notes.is_empty() {
            writeln!(f)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  note: {note}"))
    }
}

/// Columns, of which some are of numbers.
fn table<const N: usize>(f: &mut fmt::Formatter<'_>, rows: &[[String; N]], numbers: Range<usize>) -> fmt::Result {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if numbers.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        writeln!(f, "  {}", cells.collect::<Vec<String>>().join("  ").trim_end())?;
    }
    Ok(())
}
