//! The answer to a rejected request (RFC 6585 §4, RFC 9457, RFC 9110 §10.2.3).

mod grpc;

use crate::decision::{Rejection, Standing};
use crate::fields::{self, Header};
use crate::json::Object;
use crate::policy::PolicySet;
use crate::units::Micros;
use grpc::Protocol;

/// What a caller is told to wait when the limiter could not decide.
const UNAVAILABLE_WAIT: Micros = Micros::from_secs(1);

/// A whole reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status; 200 for gRPC callers, who have theirs in a header.
    pub status: u32,
    /// Names in lower case.
    pub headers: Vec<Header>,
    /// `application/problem+json`; empty for gRPC callers.
    pub body: String,
    /// For access logs: `%RESPONSE_CODE_DETAILS%`.
    pub details: &'static str,
}

/// What a reply depends on, beside the decision.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// `content-type` of the request, as sent.
    pub content_type: Vec<u8>,
    /// `origin` of the request, as sent; empty where there is none.
    pub origin: Vec<u8>,
    /// Anything, where a wait is to be lengthened by chance.
    pub random: u32,
    /// Seconds since 1970, where the reply names a time.
    pub clock: u64,
}

/// What is told of one rejection, however the caller speaks.
struct Message {
    kind: &'static str,
    title: &'static str,
    status: u32,
    grpc_status: i32,
    detail: String,
    reason: Option<&'static str>,
    /// The policies to name.
    named: bool,
    wait: Option<Micros>,
    details: &'static str,
}

impl Reply {
    /// The reply to a rejection of a decision. It holds nothing that the client sent, but for an origin that the policy
    /// lists.
    #[must_use]
    pub fn new(rejection: &Rejection, standings: &[Standing], set: &PolicySet, caller: &Caller) -> Self {
        let names: Vec<&str> = rejection
            .policies()
            .iter()
            .filter_map(|index| set.policy(*index))
            .map(|policy| policy.name.as_str())
            .collect();
        let message = Message::of(rejection, &names, set.responses.grpc_status);
        let wait = message.wait.map(|wait| lengthened(wait, set.responses.retry_after_jitter, caller.random));
        let mut headers: Vec<Header> = vec![("cache-control", "no-store".into())];
        headers.extend(wait.map(|wait| ("retry-after", wait.as_secs_ceil().max(1).to_string())));
        if message.status == 429 {
            headers.push(("x-envoy-ratelimited", "true".into()));
        }
        if let Rejection::Denied { policies, emergency: false, .. } = rejection {
            headers.extend(fields::of_denied(standings, policies, set, || caller.clock));
        }
        cors(&mut headers, set, &caller.origin);
        let details = message.details;
        match Protocol::of(&caller.content_type) {
            Protocol::Http => {
                headers.push(("content-type", "application/problem+json".into()));
                let body = message.problem(&names, set.version.as_deref());
                Self { status: message.status, headers, body, details }
            }
            Protocol::Grpc(content_type) => {
                headers.push(("content-type", content_type.into()));
                let Message { grpc_status, detail, .. } = message;
                // A negative time is a call not to try again.
                let pushback = wait.map_or_else(|| "-1".into(), |wait| wait.as_millis_ceil().to_string());
                headers.push(("grpc-status", grpc_status.to_string()));
                headers.push(("grpc-retry-pushback-ms", pushback));
                headers.extend(wait.map(|wait| ("grpc-status-details-bin", grpc::details(grpc_status, &detail, wait))));
                // No policy's name has a character that is to be encoded here.
                headers.push(("grpc-message", detail));
                Self { status: 200, headers, body: String::new(), details }
            }
        }
    }
}

impl Message {
    fn of(rejection: &Rejection, names: &[&str], grpc_status: i32) -> Self {
        const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
        const REDUCED: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
        let denied = Self {
            kind: QUOTA_EXCEEDED,
            title: "Quota exceeded",
            status: 429,
            grpc_status,
            detail: String::new(),
            reason: None,
            named: true,
            wait: None,
            details: "tollgate_denied",
        };
        match rejection {
            Rejection::Denied { wait: Some(wait), .. } => Self {
                detail: format!("{} no capacity left.", subject(names, "has", "have")),
                wait: Some(*wait),
                ..denied
            },
            Rejection::Denied { wait: None, .. } => Self {
                detail: format!("The request costs more than {} ever hold.", subject(names, "can", "can")),
                reason: Some("cost_exceeds_capacity"),
                ..denied
            },
            Rejection::Barred { .. } => Self {
                detail: format!("{} nothing.", subject(names, "admits", "admit")),
                reason: Some("limit_is_deny"),
                ..denied
            },
            // Not 401, which has to come with a challenge (RFC 9110 §15.5.2) that only who authenticates can make.
            Rejection::Unidentified { .. } => Self {
                kind: "about:blank",
                title: "Forbidden",
                status: 403,
                grpc_status: 7,
                detail: format!("{} an identity that the request lacks.", subject(names, "wants", "want")),
                reason: Some("identity_missing"),
                named: false,
                details: "tollgate_identity_missing",
                ..denied
            },
            Rejection::Unavailable { .. } => Self {
                kind: REDUCED,
                title: "Temporary reduced capacity",
                status: 503,
                grpc_status: 14,
                detail: "The limits of this request cannot be checked at the moment.".into(),
                named: false,
                wait: Some(UNAVAILABLE_WAIT),
                details: "tollgate_unavailable",
                ..denied
            },
        }
    }

    fn problem(&self, names: &[&str], version: Option<&str>) -> String {
        let problem = Object::default()
            .text("type", self.kind)
            .text("title", self.title)
            .number("status", self.status.into())
            .text("detail", &self.detail)
            .text_if("reason", self.reason);
        let problem = if self.named { problem.texts("violated-policies", names) } else { problem };
        problem.text_if("policy-version", version).finish()
    }
}

/// A wait, lengthened by chance by up to so many hundredths of it.
fn lengthened(wait: Micros, percent: u8, random: u32) -> Micros {
    let most = u128::from(wait.count()).saturating_mul(u128::from(percent));
    let more = most.saturating_mul(u128::from(random)).checked_div(100 << 32).unwrap_or(0);
    wait.plus(Micros::new(u64::try_from(more).unwrap_or(u64::MAX)))
}

/// Lets a page read the rejection (the Fetch standard, "HTTP extensions"), if it comes from an origin of the list.
fn cors(headers: &mut Vec<Header>, set: &PolicySet, origin: &[u8]) {
    if origin.is_empty() {
        return;
    }
    let mut exposed = String::from("retry-after");
    for name in fields::names(&set.responses) {
        exposed.push_str(", ");
        exposed.push_str(name);
    }
    headers.push(("access-control-expose-headers", exposed));
    let listed = |wanted: &[u8]| set.responses.cors_origins.iter().find(|known| known.as_bytes() == wanted);
    if let Some(origin) = listed(origin) {
        headers.push(("access-control-allow-origin", origin.clone()));
        headers.push(("access-control-allow-credentials", "true".into()));
        headers.push(("vary", "origin".into()));
    } else if listed(b"*").is_some() {
        headers.push(("access-control-allow-origin", "*".into()));
    }
}

/// "The a policy has", "The a and b policies have".
fn subject(names: &[&str], one: &str, several: &str) -> String {
    match names {
        [name] => format!("The {name} policy {one}"),
        [first @ .., last] => format!("The {} and {last} policies {several}", first.join(", ")),
        [] => format!("A policy {one}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn set() -> PolicySet {
        let text = br#"{"version":"v1","policies":[
            {"name":"tenant","scope":"local","limit":{"token_bucket":{"capacity":5,"refill":"1/s"}}},
            {"name":"credential","scope":"local","limit":{"token_bucket":{"capacity":5,"refill":"1/s"}}}]}"#;
        PolicySet::read(text, &|_| None).unwrap()
    }

    fn reply(rejection: &Rejection) -> Reply {
        Reply::new(rejection, &[], &set(), &Caller::default())
    }

    fn denial(policies: Vec<usize>, wait: Option<u64>) -> Rejection {
        Rejection::Denied { policies, wait: wait.map(Micros::new), emergency: false }
    }

    fn denied(policies: Vec<usize>, wait: Option<u64>) -> Reply {
        reply(&denial(policies, wait))
    }

    fn grpc(rejection: &Rejection, set: &PolicySet) -> Reply {
        Reply::new(rejection, &[], set, &Caller { content_type: b"application/grpc+proto".into(), ..Caller::default() })
    }

    fn with_responses(responses: &str) -> PolicySet {
        let policy = r#"{"name":"tenant","scope":"local","limit":{"token_bucket":{"capacity":5,"refill":"1/s"}}}"#;
        let text = format!(r#"{{"responses":{responses},"policies":[{policy}]}}"#);
        PolicySet::read(text.as_bytes(), &|_| None).unwrap()
    }

    fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
        reply.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn a_denial_is_a_429_that_names_the_policy_and_the_wait() {
        let reply = denied(vec![1], Some(1_000_001));
        assert_eq!(reply.status, 429);
        assert_eq!(header(&reply, "retry-after"), Some("2"));
        assert_eq!(header(&reply, "content-type"), Some("application/problem+json"));
        assert_eq!(header(&reply, "cache-control"), Some("no-store"));
        assert_eq!(header(&reply, "x-envoy-ratelimited"), Some("true"));
        assert_eq!(
            reply.body,
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,"detail":"The credential policy has no capacity left.","violated-policies":["credential"],"policy-version":"v1"}"#
        );
    }

    #[test]
    fn a_short_wait_is_a_whole_second() {
        assert_eq!(header(&denied(vec![0], Some(0)), "retry-after"), Some("1"));
        assert_eq!(header(&denied(vec![0], Some(1)), "retry-after"), Some("1"));
        assert_eq!(header(&denied(vec![0], Some(1_000_000)), "retry-after"), Some("1"));
    }

    #[test]
    fn several_policies_are_named_together() {
        assert!(denied(vec![0, 1], Some(1)).body.contains("The tenant and credential policies have no capacity left."));
    }

    #[test]
    fn where_waiting_cannot_help_no_wait_is_told() {
        let reply = denied(vec![0], None);
        assert_eq!(header(&reply, "retry-after"), None);
        assert!(reply.body.contains(r#""reason":"cost_exceeds_capacity""#));
    }

    #[test]
    fn a_limiter_that_cannot_decide_says_503_and_blames_nobody() {
        let reply = reply(&Rejection::Unavailable { policies: vec![0] });
        assert_eq!(reply.status, 503);
        assert_eq!(header(&reply, "retry-after"), Some("1"));
        assert_eq!(header(&reply, "x-envoy-ratelimited"), None);
        assert!(!reply.body.contains("tenant"));
    }

    #[test]
    fn a_policy_that_admits_nothing_says_so_without_a_wait() {
        let reply = reply(&Rejection::Barred { policies: vec![0] });
        assert_eq!((reply.status, header(&reply, "retry-after")), (429, None));
        assert!(reply.body.contains("The tenant policy admits nothing.") && reply.body.contains("limit_is_deny"));
    }

    #[test]
    fn a_request_without_the_identity_that_is_wanted_is_a_403() {
        let reply = reply(&Rejection::Unidentified { policies: vec![0, 1] });
        assert_eq!((reply.status, header(&reply, "retry-after")), (403, None));
        assert_eq!(header(&reply, "cache-control"), Some("no-store"));
        assert!(reply.body.contains("The tenant and credential policies want an identity that the request lacks."));
        assert_eq!(header(&reply, "x-envoy-ratelimited"), None);
    }

    #[test]
    fn a_grpc_caller_gets_its_status_in_headers_and_no_body() {
        let reply = grpc(&denial(vec![0], Some(1_500_000)), &set());
        assert_eq!((reply.status, reply.body.as_str()), (200, ""));
        assert_eq!(header(&reply, "content-type"), Some("application/grpc+proto"));
        assert_eq!(header(&reply, "grpc-status"), Some("8"));
        assert_eq!(header(&reply, "grpc-message"), Some("The tenant policy has no capacity left."));
        assert_eq!(header(&reply, "grpc-retry-pushback-ms"), Some("1500"));
        assert_eq!(header(&reply, "retry-after"), Some("2"));
        assert!(header(&reply, "grpc-status-details-bin").is_some());
        let reply = grpc(&denial(vec![0], None), &set());
        assert_eq!(header(&reply, "grpc-retry-pushback-ms"), Some("-1"), "waiting cannot help");
        assert_eq!(header(&reply, "grpc-status-details-bin"), None);
        let status =
            |rejection: &Rejection, set: &PolicySet| header(&grpc(rejection, set), "grpc-status").map(String::from);
        assert_eq!(status(&Rejection::Unavailable { policies: vec![0] }, &set()).as_deref(), Some("14"));
        assert_eq!(status(&Rejection::Unidentified { policies: vec![0] }, &set()).as_deref(), Some("7"));
        let unavailable = with_responses(r#"{"grpc_status":"unavailable"}"#);
        assert_eq!(status(&denial(vec![0], Some(1)), &unavailable).as_deref(), Some("14"));
    }

    #[test]
    fn a_page_may_read_a_rejection_where_its_origin_is_listed() {
        let set = with_responses(r#"{"cors_origins":["https://app.example"],"legacy_headers":"seconds"}"#);
        let from = |origin: &str, set: &PolicySet| {
            let caller = Caller { origin: origin.into(), ..Caller::default() };
            Reply::new(&denial(vec![0], Some(1)), &[], set, &caller)
        };
        let reply = from("https://app.example", &set);
        assert_eq!(header(&reply, "access-control-allow-origin"), Some("https://app.example"));
        assert_eq!(header(&reply, "access-control-allow-credentials"), Some("true"));
        assert_eq!(header(&reply, "vary"), Some("origin"));
        assert_eq!(
            header(&reply, "access-control-expose-headers"),
            Some(
                "retry-after, ratelimit-policy, ratelimit, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset"
            )
        );
        for other in ["https://app.example.evil", "https://APP.example", "null", "*"] {
            assert_eq!(header(&from(other, &set), "access-control-allow-origin"), None, "{other}");
        }
        assert!(denied(vec![0], Some(1)).headers.iter().all(|(name, _)| !name.starts_with("access-control")));
        let any = with_responses(r#"{"cors_origins":["*"]}"#);
        let reply = from("https://x.example", &any);
        assert_eq!(header(&reply, "access-control-allow-origin"), Some("*"));
        assert_eq!(header(&reply, "access-control-allow-credentials"), None, "which browsers refuse beside *");
    }

    #[test]
    fn jitter_only_lengthens_and_within_its_share() {
        // F38
        let set = with_responses(r#"{"retry_after_jitter":"50%"}"#);
        let wait = |random| {
            let caller = Caller { random, ..Caller::default() };
            let reply = Reply::new(&denial(vec![0], Some(10_000_000)), &[], &set, &caller);
            header(&reply, "retry-after").and_then(|wait| wait.parse::<u64>().ok())
        };
        assert_eq!([wait(0), wait(1 << 31), wait(u32::MAX)], [Some(10), Some(13), Some(15)]);
        assert_eq!(lengthened(Micros::MAX, 100, u32::MAX), Micros::MAX);
        assert_eq!(lengthened(Micros::new(7), 0, u32::MAX), Micros::new(7));
    }
}
