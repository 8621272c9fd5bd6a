//! `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-11), and the `X-RateLimit-…` fields that
//! came before them.
//!
//! Both are lists of strings with parameters (RFC 9651 §3.1). A policy's name needs no escapes in them: see
//! [`is_name`](crate::policy::is_name).

use crate::decision::Standing;
use crate::limit::{CalendarUnit, FixedWindow, Gcra, Limit, SlidingLog, SlidingWindow, TokenBucket, Verdict, Window};
use crate::policy::{FieldsVersion, LegacyReset, PolicySet, Responses};
use crate::units::{Micros, RefillRate, Tokens};
use core::fmt::Write;

/// A header: its name in lower case, and its value.
pub type Header = (&'static str, String);

/// The largest integer that a structured field holds.
const MAX_INTEGER: u128 = 999_999_999_999_999;

/// What the fields say of one budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quota {
    /// Units in a window, and its seconds where they are always the same.
    units: u64,
    window: Option<u64>,
}

/// Whether a shared cache may keep a response and give it to others, by the lines of its `cache-control` and whether it has
/// `expires` (RFC 9111 §3, §3.5). Who asked is not looked at: an API's key is no `authorization` to a cache.
#[must_use]
pub fn may_be_shared(cache_control: &[&[u8]], expires: bool) -> bool {
    let lines = cache_control.join(&b',').to_ascii_lowercase();
    let directives = || lines.split(|byte| *byte == b',').map(|directive| directive.trim_ascii());
    if directives().any(|directive| matches!(directive, b"private" | b"no-store" | b"no-cache")) {
        return false;
    }
    let is_fresh = |directive: &[u8]| {
        let age = directive.strip_prefix(b"max-age=");
        matches!(directive, b"public" | b"must-revalidate")
            || directive.starts_with(b"s-maxage=")
            || age.is_some_and(|age| age != b"0")
    };
    directives().any(is_fresh) || (expires && !directives().any(|directive| directive.starts_with(b"max-age=")))
}

/// The fields of a response to an admitted request. `clock` gives the seconds since 1970.
#[must_use]
pub fn of_admitted(standings: &[Standing], set: &PolicySet, clock: impl FnOnce() -> u64) -> Vec<Header> {
    if set.responses.on_admitted { fields(standings, standings, set, clock) } else { Vec::new() }
}

/// The fields of a response to a denied request: all policies that were asked, and where those stand that denied.
#[must_use]
pub fn of_denied(
    standings: &[Standing],
    denied: &[usize],
    set: &PolicySet,
    clock: impl FnOnce() -> u64,
) -> Vec<Header> {
    let denied: Vec<Standing> =
        standings.iter().filter(|standing| denied.contains(&standing.policy)).copied().collect();
    fields(standings, &denied, set, clock)
}

fn fields(all: &[Standing], shown: &[Standing], set: &PolicySet, clock: impl FnOnce() -> u64) -> Vec<Header> {
    let Responses { ratelimit, legacy, .. } = &set.responses;
    let mut headers = Vec::new();
    if shown.is_empty() {
        return headers;
    }
    let name = |standing: &Standing| set.policy(standing.policy).map_or("", |policy| policy.name.as_str());
    if let Some(FieldsVersion::Draft11) = ratelimit {
        let (mut policies, mut limits) = (String::new(), String::new());
        for standing in all {
            let Quota { units, window } = Quota::of(&standing.limit);
            item(&mut policies, name(standing), 'q', units, 'w', window);
        }
        for standing in shown {
            let (left, seconds) = standing.left_and_seconds();
            item(&mut limits, name(standing), 'r', left, 't', seconds);
        }
        headers.push(("ratelimit-policy", policies));
        headers.push(("ratelimit", limits));
    }
    // The older fields have room for one policy: the one that stops the caller first.
    let tightest = shown.iter().min_by_key(|standing| {
        let (left, seconds) = standing.left_and_seconds();
        (left, core::cmp::Reverse(seconds))
    });
    if let (Some(legacy), Some(standing)) = (legacy, tightest) {
        let quota = Quota::of(&standing.limit);
        let (left, seconds) = standing.left_and_seconds();
        // When a month of the calendar ends is the endpoint's to say, which it does with a denial.
        let seconds = seconds.or(quota.window);
        let mut limit = quota.units.to_string();
        let reset = match legacy {
            LegacyReset::Seconds => {
                for standing in all {
                    let Quota { units, window } = Quota::of(&standing.limit);
                    let _ = write!(limit, ", {units}");
                    if let Some(window) = window {
                        let _ = write!(limit, ";w={window}");
                    }
                    let _ = write!(limit, ";name=\"{}\"", name(standing));
                }
                seconds
            }
            LegacyReset::Epoch => seconds.map(|seconds| clock().saturating_add(seconds)),
        };
        headers.push(("x-ratelimit-limit", limit));
        headers.push(("x-ratelimit-remaining", left.to_string()));
        headers.extend(reset.map(|reset| ("x-ratelimit-reset", reset.to_string())));
    }
    headers
}

/// The names of all fields that [`of_admitted`] and [`of_denied`] may give.
pub fn names(responses: &Responses) -> impl Iterator<Item = &'static str> {
    let draft = ["ratelimit-policy", "ratelimit"].into_iter().filter(|_| responses.ratelimit.is_some());
    let legacy = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    draft.chain(legacy.into_iter().filter(|_| responses.legacy.is_some()))
}

/// One more item of a list: `"name";q=20;w=4`.
fn item(list: &mut String, name: &str, first: char, number: u64, second: char, seconds: Option<u64>) {
    let comma = if list.is_empty() { "" } else { ", " };
    let _ = write!(list, "{comma}\"{name}\";{first}={number}");
    if let Some(seconds) = seconds {
        let _ = write!(list, ";{second}={seconds}");
    }
}

impl Standing {
    /// Whole units left, and in how many seconds there are (more of) them, where that is known.
    ///
    /// Of an admitted caller the time in which what is left would come anew; of one that is denied, the wait.
    fn left_and_seconds(&self) -> (u64, Option<u64>) {
        let seconds = match self.limit {
            Limit::TokenBucket(TokenBucket { refill: rate, .. }) | Limit::Gcra(Gcra { rate, .. }) => {
                Some(seconds_to_refill(self.left, rate))
            }
            // When a window ends its keeper knows, and that is the endpoint.
            Limit::FixedWindow(_) | Limit::SlidingWindow(_) | Limit::SlidingLog(_) => None,
        };
        match self.verdict {
            Verdict::Wait(wait) => (0, Some(wait.as_secs_ceil().max(1))),
            Verdict::Admit | Verdict::Never => (self.left.min(MAX_INTEGER as u64), seconds),
        }
    }
}

impl Quota {
    fn of(limit: &Limit) -> Self {
        match limit {
            Limit::TokenBucket(TokenBucket { capacity, refill: rate, .. })
            | Limit::Gcra(Gcra { burst: capacity, rate }) => Self::in_time(*capacity, *rate),
            Limit::FixedWindow(FixedWindow { capacity, window: Window::Span(window) })
            | Limit::SlidingWindow(SlidingWindow { capacity, window })
            | Limit::SlidingLog(SlidingLog { capacity, window }) => Self::in_window(*capacity, *window),
            Limit::FixedWindow(FixedWindow { capacity, window: Window::Calendar(window) }) => {
                let seconds = match window.unit {
                    CalendarUnit::Minute => Some(60),
                    CalendarUnit::Hour => Some(3_600),
                    CalendarUnit::Day => Some(86_400),
                    CalendarUnit::Month => None,
                };
                Self { units: capacity.count(), window: seconds }
            }
        }
    }

    /// A capacity, and the time in which it comes; or where that is under a second, what comes in one.
    fn in_time(capacity: Tokens, rate: RefillRate) -> Self {
        let micros = u128::from(capacity.count()).saturating_mul(u128::from(rate.period()));
        let second = u128::from(rate.tokens()).saturating_mul(MICROS);
        if micros >= second {
            return Self { units: capacity.count(), window: Some(whole(micros.div_ceil(second.max(1)))) };
        }
        let each_second = second.checked_div(u128::from(rate.period())).unwrap_or(0);
        Self { units: whole(each_second).max(1), window: Some(1) }
    }

    fn in_window(capacity: Tokens, window: Micros) -> Self {
        match RefillRate::new(capacity.count(), window) {
            Ok(rate) => Self::in_time(capacity, rate),
            // More than ten units a microsecond.
            Err(_) => Self { units: capacity.count(), window: Some(window.as_secs_ceil().max(1)) },
        }
    }
}

const MICROS: u128 = 1_000_000;

/// The whole seconds, at least one, in which so many units come.
fn seconds_to_refill(units: u64, rate: RefillRate) -> u64 {
    let micros = u128::from(units).saturating_mul(u128::from(rate.period()));
    whole(micros.div_ceil(u128::from(rate.tokens()).saturating_mul(MICROS).max(1))).max(1)
}

fn whole(number: u128) -> u64 {
    u64::try_from(number.min(MAX_INTEGER)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::arithmetic_side_effects)]
    use super::*;
    use crate::limit::{CalendarUnit, CalendarWindow, ZoneName};
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn set(responses: &str) -> PolicySet {
        let policies = r#"[
            {"name":"tenant","scope":"local","limit":{"token_bucket":{"capacity":1000,"refill":"1000/60s"}}},
            {"name":"credential","scope":"local","limit":{"token_bucket":{"capacity":20,"refill":"5/s"}}}]"#;
        let text = format!(r#"{{"responses":{responses},"policies":{policies}}}"#);
        PolicySet::read(text.as_bytes(), &|_| None).unwrap()
    }

    fn standing(set: &PolicySet, policy: usize, left: u64, verdict: Verdict) -> Standing {
        let limit = set.policies()[policy].limit.limit().unwrap();
        Standing { policy, limit, left, verdict }
    }

    fn shown(headers: &[Header]) -> Vec<String> {
        headers.iter().map(|(name, value)| format!("{name}: {value}")).collect()
    }

    #[test]
    fn an_admitted_request_is_told_what_is_left_of_every_budget() {
        let set = set("{}");
        let standings = [standing(&set, 0, 640, Verdict::Admit), standing(&set, 1, 12, Verdict::Admit)];
        assert_eq!(
            shown(&of_admitted(&standings, &set, || 0)),
            [
                r#"ratelimit-policy: "tenant";q=1000;w=60, "credential";q=20;w=4"#,
                r#"ratelimit: "tenant";r=640;t=39, "credential";r=12;t=3"#,
            ]
        );
        assert_eq!(of_admitted(&[], &set, || 0), []);
    }

    #[test]
    fn a_denied_request_is_told_of_the_policies_that_denied() {
        let set = set("{}");
        let wait = Verdict::Wait(Micros::new(1_000_001));
        let standings = [standing(&set, 0, 640, Verdict::Admit), standing(&set, 1, 3, wait)];
        assert_eq!(
            shown(&of_denied(&standings, &[1], &set, || 0)),
            [r#"ratelimit-policy: "tenant";q=1000;w=60, "credential";q=20;w=4"#, r#"ratelimit: "credential";r=0;t=2"#,]
        );
        // A cost above the capacity: what is left is left, and waiting does not help.
        let standings = [standing(&set, 1, 20, Verdict::Never)];
        assert_eq!(shown(&of_denied(&standings, &[1], &set, || 0))[1], r#"ratelimit: "credential";r=20;t=4"#);
        assert_eq!(of_denied(&standings, &[0], &set, || 0), [], "a policy of which nothing is known");
    }

    #[test]
    fn the_fields_are_left_out_where_the_policy_says_so() {
        let none = set(r#"{"ratelimit_headers":"none"}"#);
        let rejections = set(r#"{"headers_on":"rejections"}"#);
        let standings = [standing(&none, 0, 0, Verdict::Wait(Micros::new(1)))];
        assert_eq!(of_denied(&standings, &[0], &none, || 0), []);
        assert_eq!(of_denied(&standings, &[0], &rejections, || 0).len(), 2);
        assert_eq!(of_admitted(&[standing(&none, 0, 5, Verdict::Admit)], &rejections, || 0), []);
    }

    #[test]
    fn the_older_fields_speak_of_the_policy_that_stops_the_caller_first() {
        let seconds = set(r#"{"ratelimit_headers":"none","legacy_headers":"seconds"}"#);
        let epoch = set(r#"{"ratelimit_headers":"none","legacy_headers":"epoch"}"#);
        let standings = [standing(&seconds, 0, 640, Verdict::Admit), standing(&seconds, 1, 12, Verdict::Admit)];
        assert_eq!(
            shown(&of_admitted(&standings, &seconds, || 0)),
            [
                r#"x-ratelimit-limit: 20, 1000;w=60;name="tenant", 20;w=4;name="credential""#,
                "x-ratelimit-remaining: 12",
                "x-ratelimit-reset: 3",
            ]
        );
        assert_eq!(
            shown(&of_admitted(&standings, &epoch, || 1_700_000_000)),
            ["x-ratelimit-limit: 20", "x-ratelimit-remaining: 12", "x-ratelimit-reset: 1700000003"]
        );
    }

    #[test]
    fn a_month_of_the_calendar_has_no_length_and_what_is_left_no_more_digits_than_a_field_can_have() {
        let month = Limit::FixedWindow(FixedWindow {
            capacity: Tokens::new(9).unwrap(),
            window: Window::Calendar(CalendarWindow::new(CalendarUnit::Month, ZoneName::default())),
        });
        let set = set(r#"{"legacy_headers":"seconds"}"#);
        let standing = Standing { policy: 0, limit: month, left: u64::MAX, verdict: Verdict::Admit };
        assert_eq!(
            shown(&of_admitted(&[standing], &set, || 0)),
            [
                r#"ratelimit-policy: "tenant";q=9"#,
                r#"ratelimit: "tenant";r=999999999999999"#,
                r#"x-ratelimit-limit: 9, 9;name="tenant""#,
                "x-ratelimit-remaining: 999999999999999",
            ]
        );
    }

    #[test]
    fn what_a_shared_cache_may_keep_is_known() {
        for shared in [
            "public",
            "Public, max-age=0",
            "max-age=60",
            "s-maxage=1",
            "MAX-AGE=1, must-revalidate",
            "a, max-age=9",
            r#"private="x-a", max-age=9"#,
        ] {
            assert!(may_be_shared(&[shared.as_bytes()], false), "{shared}");
        }
        for own in
            ["", "private", "private, max-age=60", "no-store", "no-cache", "max-age=0", "no-transform", "publicity"]
        {
            assert!(!may_be_shared(&[own.as_bytes()], false), "{own}");
        }
        assert!(may_be_shared(&[b"max-age=9", b"public"], false));
        assert!(may_be_shared(&[], true) && may_be_shared(&[b"no-transform"], true));
        assert!(
            !may_be_shared(&[], false) && !may_be_shared(&[b"max-age=0"], true) && !may_be_shared(&[b"private"], true)
        );
    }

    #[test]
    fn a_quota_is_told_in_whole_seconds() {
        let bucket = |capacity, tokens, period| {
            let rate = RefillRate::new(tokens, period).unwrap();
            let quota = Quota::of(&Limit::Gcra(Gcra { burst: Tokens::new(capacity).unwrap(), rate }));
            (quota.units, quota.window)
        };
        let second = Micros::from_secs(1);
        assert_eq!(bucket(20, 5, second), (20, Some(4)));
        assert_eq!(bucket(21, 5, second), (21, Some(5)));
        assert_eq!(bucket(5, 5, second), (5, Some(1)));
        // It fills in less than a second: what comes in one.
        assert_eq!(bucket(5, 50, second), (50, Some(1)));
        assert_eq!(bucket(1, 3, Micros::from_secs(2)), (1, Some(1)));
        let most = RefillRate::new(1, Micros::from_secs(30 * 86_400)).unwrap();
        assert_eq!(bucket(999_999_999_999, most.tokens(), Micros::new(most.period())).1, Some(MAX_INTEGER as u64));
        let window = |capacity, micros| {
            let window = Window::Span(Micros::new(micros));
            Quota::of(&Limit::FixedWindow(FixedWindow { capacity: Tokens::new(capacity).unwrap(), window }))
        };
        assert_eq!(window(100, 60_000_000), Quota { units: 100, window: Some(60) });
        assert_eq!(window(100, 500_000), Quota { units: 200, window: Some(1) });
        assert_eq!(window(100, 1_500_000), Quota { units: 100, window: Some(2) });
        assert_eq!(window(1_000, 1), Quota { units: 1_000, window: Some(1) });
    }
}
