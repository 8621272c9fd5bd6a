//! What callers are told.

use super::without_repeats;
use crate::policy::bounds::MAX_ORIGINS;
use crate::policy::node::Node;
use crate::policy::responses::{FieldsVersion, LegacyReset, Responses};

pub(super) fn responses(node: &Node<'_>) -> Option<Responses> {
    let fields = node.fields(&[
        "ratelimit_headers",
        "legacy_headers",
        "headers_on",
        "upstream_headers",
        "retry_after_jitter",
        "grpc_status",
        "preflight",
        "cors_origins",
    ])?;
    let usual = Responses::default();
    let ratelimit = fields
        .get("ratelimit_headers")
        .map_or(Some(usual.ratelimit), |node| node.word(&[("draft-11", Some(FieldsVersion::Draft11)), ("none", None)]));
    let legacy = fields.get("legacy_headers").map_or(Some(usual.legacy), |node| {
        node.word(&[("none", None), ("seconds", Some(LegacyReset::Seconds)), ("epoch", Some(LegacyReset::Epoch))])
    });
    let on_admitted = fields
        .get("headers_on")
        .map_or(Some(usual.on_admitted), |node| node.word(&[("all", true), ("rejections", false)]));
    let replace_upstream = fields
        .get("upstream_headers")
        .map_or(Some(usual.replace_upstream), |node| node.word(&[("replace", true), ("keep", false)]));
    let retry_after_jitter =
        fields.get("retry_after_jitter").map_or(Some(usual.retry_after_jitter), |node| node.percentage());
    let grpc_status = fields
        .get("grpc_status")
        .map_or(Some(usual.grpc_status), |node| node.word(&[("resource_exhausted", 8), ("unavailable", 14)]));
    let exempt_preflight = fields
        .get("preflight")
        .map_or(Some(usual.exempt_preflight), |node| node.word(&[("exempt", true), ("limited", false)]));
    let cors_origins = fields
        .get("cors_origins")
        .map_or(Some(Vec::new()), |node| node.filled_list(MAX_ORIGINS).map(|list| without_repeats(&list, origin)));
    Some(Responses {
        ratelimit: ratelimit?,
        legacy: legacy?,
        on_admitted: on_admitted?,
        replace_upstream: replace_upstream?,
        retry_after_jitter: retry_after_jitter?,
        grpc_status: grpc_status?,
        exempt_preflight: exempt_preflight?,
        cors_origins: cors_origins?,
    })
}

/// `*`, or an origin as browsers send it (RFC 6454 §6.2): a scheme, a host in lower case, perhaps a port, and no path.
fn origin(node: &Node<'_>) -> Option<String> {
    let text = node.text()?;
    let legal = |host: &str| {
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._:[]".contains(&b))
    };
    let parts = text.split_once(':').and_then(|(scheme, rest)| Some((scheme, rest.strip_prefix("//")?)));
    let is_origin = parts.is_some_and(|(scheme, host)| {
        scheme.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.".contains(&b)) && legal(host)
    });
    if text == "*" || is_origin {
        Some(text.into())
    } else {
        node.refuse("must be * or an origin as browsers send it, such as https://app.example, without a path")
    }
}
