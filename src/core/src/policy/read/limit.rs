//! Limits: five algorithms, and two words.

use crate::limit::{
    CalendarUnit, CalendarWindow, FixedWindow, Gcra, Limit, MAX_LOG, SlidingLog, SlidingWindow, TokenBucket, Window,
    ZoneName,
};
use crate::policy::Allowance;
use crate::policy::bounds::MIN_SPAN;
use crate::policy::node::{Fields, Node, unknown};
use crate::units::{MAX_PERIOD, MAX_TOKENS, Micros, RefillRate, Tokens};

pub(super) const EXAMPLE: &str = "{token_bucket: {capacity: 20, refill: 5/s}}";

/// A limit, or one of the words for all and nothing. A limit that a proxy keeps by itself is a token bucket.
pub(super) fn allowance(node: &Node<'_>, is_local: bool) -> Option<Allowance> {
    match node.as_word() {
        Some("deny") => Some(Allowance::Deny),
        Some("unlimited") => Some(Allowance::Unlimited),
        Some(other) => {
            node.refuse(format!("{}, or a map such as {EXAMPLE}", unknown("limit", other, &["deny", "unlimited"])))
        }
        None if is_local => {
            token_bucket_limit(node, "a policy of scope local").map(|limit| Allowance::Limit(Limit::TokenBucket(limit)))
        }
        None => limit(node).map(Allowance::Limit),
    }
}

/// A limit that a proxy keeps by itself.
pub(super) fn token_bucket_limit(node: &Node<'_>, whose: &str) -> Option<TokenBucket> {
    match limit(node)? {
        Limit::TokenBucket(limit) => Some(limit),
        other => node.refuse(format!("{whose} has a token_bucket; a {} is kept by the endpoint", other.algorithm())),
    }
}

fn limit(node: &Node<'_>) -> Option<Limit> {
    const ALGORITHMS: &[&str] = &["token_bucket", "gcra", "fixed_window", "sliding_window", "sliding_log"];
    let (algorithm, value) = node.choice(ALGORITHMS, EXAMPLE)?;
    match algorithm {
        "token_bucket" => {
            let fields = value.fields_but(&["capacity", "refill"], CALENDAR_FIELDS)?;
            let (capacity, refill) = (capacity(&fields, MAX_TOKENS), rate(&fields, "refill"));
            Some(Limit::TokenBucket(TokenBucket { capacity: capacity?, refill: refill?, keep: Micros::ZERO }))
        }
        "gcra" => {
            let fields = value.fields_but(&["burst", "rate"], CALENDAR_FIELDS)?;
            let burst = fields.required("burst", "the most units at once").and_then(|node| tokens(&node));
            let rate = rate(&fields, "rate");
            Some(Limit::Gcra(Gcra { burst: burst?, rate: rate? }))
        }
        "fixed_window" => {
            let fields = value.fields(&["capacity", "window", "time_zone"])?;
            let (capacity, window) = (capacity(&fields, MAX_TOKENS), fixed_window(&fields));
            Some(Limit::FixedWindow(FixedWindow { capacity: capacity?, window: window? }))
        }
        _ => {
            let fields = value.fields_but(&["capacity", "window"], CALENDAR_FIELDS)?;
            let most = if algorithm == "sliding_log" { MAX_LOG } else { MAX_TOKENS };
            let capacity = capacity(&fields, most);
            let window = fields.required("window", "how long a window is, such as 1m").and_then(|node| {
                match calendar_unit(&node) {
                    Some(_) => node.refuse(format!("{CALENDAR_ONLY}: write a span such as 1h")),
                    None => span(&node),
                }
            });
            let (capacity, window) = (capacity?, window?);
            Some(if algorithm == "sliding_window" {
                Limit::SlidingWindow(SlidingWindow { capacity, window })
            } else {
                Limit::SlidingLog(SlidingLog { capacity, window })
            })
        }
    }
}

const CALENDAR_ONLY: &str = "only fixed_window has calendar windows";

/// What somebody writes who wants a calendar window of an algorithm that has none.
const CALENDAR_FIELDS: &[(&str, &str)] = &[("window", CALENDAR_ONLY), ("time_zone", CALENDAR_ONLY)];

/// A span, or a word for a unit of the calendar in some time zone.
fn fixed_window(fields: &Fields<'_>) -> Option<Window> {
    let zone = match fields.get("time_zone") {
        None => Some(ZoneName::default()),
        Some(node) => node.text().and_then(|text| ZoneName::new(text).or_else(|| node.refuse(ZoneName::refusal(text)))),
    };
    let node = fields.required("window", "a span such as 1m, or one of the words minute, hour, day and month")?;
    if let Some(unit) = calendar_unit(&node) {
        return Some(Window::Calendar(CalendarWindow::new(unit, zone?)));
    }
    // Not a span either, if it does not begin like one.
    if let Some(text) = node.as_word().filter(|text| !text.starts_with(|first: char| first.is_ascii_digit())) {
        let [minute, hour, day, month] = CalendarUnit::WORDS.map(|(word, _)| word);
        return node.refuse(unknown("window", text, &[minute, hour, day, month, "spans such as 1h"]));
    }
    if let Some(node) = fields.get("time_zone") {
        node.refuse::<()>(
            "is for the windows minute, hour, day and month: a span begins at multiples of its length since 1970, \
             the same in every zone",
        );
    }
    span(&node).map(Window::Span)
}

fn calendar_unit(node: &Node<'_>) -> Option<CalendarUnit> {
    let text = node.as_word()?;
    CalendarUnit::WORDS.iter().find(|(word, _)| *word == text).map(|(_, unit)| *unit)
}

fn span(node: &Node<'_>) -> Option<Micros> {
    node.duration(MIN_SPAN, Micros::new(MAX_PERIOD))
}

fn capacity(fields: &Fields<'_>, most: u64) -> Option<Tokens> {
    fields.required("capacity", "the most units at once").and_then(|node| node.whole(1, most)).and_then(Tokens::new)
}

fn rate(fields: &Fields<'_>, name: &str) -> Option<RefillRate> {
    fields.required(name, "how fast units come back, such as 5/s").and_then(|node| refill(&node))
}

pub(super) fn tokens(node: &Node<'_>) -> Option<Tokens> {
    node.whole(1, MAX_TOKENS).and_then(Tokens::new)
}

/// `count/period`, where a period is a unit or a number with a unit: `5/s`, `1/30d`, `100/10s`.
fn refill(node: &Node<'_>) -> Option<RefillRate> {
    const FORM: &str = "write units per time, such as 5/s, 100/min or 1/30d";
    let text = match node.as_word() {
        Some(text) => text,
        None => return node.refuse(format!("must be text: {FORM}")),
    };
    let Some((count, period)) = text.split_once('/') else {
        return node.refuse(format!("{text:?} is not a rate: {FORM}"));
    };
    if CalendarUnit::WORDS.iter().any(|(word, _)| *word == period) {
        return node.refuse(format!("{text:?} is not a rate: {FORM}; {CALENDAR_ONLY}"));
    }
    let period = Micros::parse_unit(period).or_else(|| Micros::parse(period));
    let digits = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
    match (digits.then(|| count.parse::<u64>().unwrap_or(u64::MAX)), period) {
        (Some(count), Some(period)) => {
            RefillRate::new(count, period).map_or_else(|error| node.refuse(format!("{text}: {error}")), Some)
        }
        _ => node.refuse(format!("{text:?} is not a rate: {FORM}")),
    }
}
