//! The answer to a rejected request (RFC 6585 §4, RFC 9457, RFC 9110 §10.2.3).

use crate::decision::Rejection;
use crate::policy::PolicySet;
use serde::Serialize;

/// What a caller gets when the limiter could not decide: try again in a second.
const UNAVAILABLE_RETRY_SECS: u64 = 1;

/// A whole reply; gRPC clients get `grpc_status` instead of `status`, by the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u32,
    /// gRPC status (gRFC A6): 8 RESOURCE_EXHAUSTED, 14 UNAVAILABLE, or 7 PERMISSION_DENIED.
    pub grpc_status: i32,
    /// Names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// `application/problem+json`.
    pub body: String,
    /// For access logs: `%RESPONSE_CODE_DETAILS%`.
    pub details: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Problem<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u32,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    violated_policies: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_version: Option<&'a str>,
}

impl Reply {
    /// The reply to a rejection by a policy set. It holds nothing that the client sent.
    #[must_use]
    pub fn new(rejection: &Rejection, set: &PolicySet) -> Self {
        let names = |policies: &[usize]| -> Vec<String> {
            policies.iter().filter_map(|index| set.policy(*index)).map(|policy| policy.name.clone()).collect()
        };
        let version = set.version.as_deref();
        match rejection {
            Rejection::Denied { policies, wait, .. } => {
                let names = names(policies);
                let (detail, reason) = match wait {
                    Some(_) => (format!("{} no capacity left.", subject(&names, "has", "have")), None),
                    None => (
                        format!("The request costs more than {} ever hold.", subject(&names, "can", "can")),
                        Some("cost_exceeds_capacity"),
                    ),
                };
                let retry_after = wait.map(|wait| wait.as_secs_ceil().max(1));
                let problem = Problem {
                    r#type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
                    title: "Quota exceeded",
                    status: 429,
                    detail,
                    reason,
                    violated_policies: Some(names.iter().map(String::as_str).collect()),
                    policy_version: version,
                };
                let mut reply = Self::problem(&problem, 8, retry_after, "tollgate_denied");
                reply.headers.push(("x-envoy-ratelimited", "true".into()));
                reply
            }
            Rejection::Barred { policies } => {
                let names = names(policies);
                let problem = Problem {
                    r#type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
                    title: "Quota exceeded",
                    status: 429,
                    detail: format!("{} nothing.", subject(&names, "admits", "admit")),
                    reason: Some("limit_is_deny"),
                    violated_policies: Some(names.iter().map(String::as_str).collect()),
                    policy_version: version,
                };
                let mut reply = Self::problem(&problem, 8, None, "tollgate_denied");
                reply.headers.push(("x-envoy-ratelimited", "true".into()));
                reply
            }
            // Not 401, which has to come with a challenge (RFC 9110 §15.5.2) that only who authenticates can make.
            Rejection::Unidentified { policies } => {
                let names = names(policies);
                let problem = Problem {
                    r#type: "about:blank",
                    title: "Forbidden",
                    status: 403,
                    detail: format!("{} an identity that the request lacks.", subject(&names, "wants", "want")),
                    reason: Some("identity_missing"),
                    violated_policies: None,
                    policy_version: version,
                };
                Self::problem(&problem, 7, None, "tollgate_identity_missing")
            }
            Rejection::Unavailable { .. } => {
                let problem = Problem {
                    r#type: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                    title: "Temporary reduced capacity",
                    status: 503,
                    detail: "The limits of this request cannot be checked at the moment.".into(),
                    reason: None,
                    violated_policies: None,
                    policy_version: version,
                };
                Self::problem(&problem, 14, Some(UNAVAILABLE_RETRY_SECS), "tollgate_unavailable")
            }
        }
    }

    fn problem(problem: &Problem<'_>, grpc_status: i32, retry_after: Option<u64>, details: &'static str) -> Self {
        let mut headers =
            vec![("content-type", "application/problem+json".into()), ("cache-control", String::from("no-store"))];
        headers.extend(retry_after.map(|secs| ("retry-after", secs.to_string())));
        let body = serde_json::to_string(problem).unwrap_or_default();
        Self { status: problem.status, grpc_status, headers, body, details }
    }
}

/// "The a policy has", "The a and b policies have".
fn subject(names: &[String], one: &str, several: &str) -> String {
    match names {
        [name] => format!("The {name} policy {one}"),
        [first @ .., last] => format!("The {} and {last} policies {several}", first.join(", ")),
        [] => format!("A policy {one}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Micros;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn set() -> PolicySet {
        let text = br#"{"version":"v1","policies":[
            {"name":"tenant","scope":"local","limit":{"token_bucket":{"capacity":5,"refill":"1/s"}}},
            {"name":"credential","scope":"local","limit":{"token_bucket":{"capacity":5,"refill":"1/s"}}}]}"#;
        PolicySet::read(text, &|_| None).unwrap()
    }

    fn denied(policies: Vec<usize>, wait: Option<u64>) -> Reply {
        Reply::new(&Rejection::Denied { policies, wait: wait.map(Micros::new), emergency: false }, &set())
    }

    fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
        reply.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn a_denial_is_a_429_that_names_the_policy_and_the_wait() {
        let reply = denied(vec![1], Some(1_000_001));
        assert_eq!((reply.status, reply.grpc_status), (429, 8));
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
        let reply = Reply::new(&Rejection::Unavailable { policies: vec![0] }, &set());
        assert_eq!((reply.status, reply.grpc_status), (503, 14));
        assert_eq!(header(&reply, "retry-after"), Some("1"));
        assert_eq!(header(&reply, "x-envoy-ratelimited"), None);
        assert!(!reply.body.contains("tenant"));
    }

    #[test]
    fn a_policy_that_admits_nothing_says_so_without_a_wait() {
        let reply = Reply::new(&Rejection::Barred { policies: vec![0] }, &set());
        assert_eq!((reply.status, reply.grpc_status, header(&reply, "retry-after")), (429, 8, None));
        assert!(reply.body.contains("The tenant policy admits nothing.") && reply.body.contains("limit_is_deny"));
    }

    #[test]
    fn a_request_without_the_identity_that_is_wanted_is_a_403() {
        let reply = Reply::new(&Rejection::Unidentified { policies: vec![0, 1] }, &set());
        assert_eq!((reply.status, reply.grpc_status, header(&reply, "retry-after")), (403, 7, None));
        assert_eq!(header(&reply, "cache-control"), Some("no-store"));
        assert!(reply.body.contains("The tenant and credential policies want an identity that the request lacks."));
        assert_eq!(header(&reply, "x-envoy-ratelimited"), None);
    }
}
