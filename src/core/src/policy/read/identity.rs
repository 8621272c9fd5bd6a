//! Identities and their sources.

use super::{header_name, without_repeats};
use crate::facts::{Attribute, MetadataOf, PeerName, Source};
use crate::pattern::Pattern;
use crate::policy::Identity;
use crate::policy::bounds::{MAX_IDENTITIES, MAX_PATH, MAX_SOURCES, MAX_TRUSTED_HOPS};
use crate::policy::node::{NAME_RULE, Node, is_name};

pub(super) fn identities(node: &Node<'_>) -> Vec<Identity> {
    let entries = node.entries().unwrap_or_default();
    if entries.len() > MAX_IDENTITIES {
        node.refuse::<()>(format!("must have at most {MAX_IDENTITIES} identities, has {}", entries.len()));
    }
    entries.iter().filter_map(|(name, node)| identity(name, node)).collect()
}

fn identity(name: &str, node: &Node<'_>) -> Option<Identity> {
    if !is_name(name) {
        return node.refuse(format!("an identity's name {NAME_RULE}"));
    }
    if name == "route" {
        return node.refuse("`route` in a key means the route class: give the identity another name");
    }
    // One with wrong sources is kept: the set is refused, but the policies that name it are not wrong for that.
    let fields = node.fields(&["sources", "pattern"]);
    let list = fields
        .as_ref()
        .and_then(|fields| fields.required("sources", "a list such as [{header: x-api-key}]"))
        .and_then(|node| node.filled_list(MAX_SOURCES))
        .unwrap_or_default();
    let sources = without_repeats(&list, source);
    let pattern_node = fields.as_ref().and_then(|fields| fields.get("pattern"));
    let pattern = pattern_node.as_ref().and_then(|node| {
        let pattern = Pattern::new(node.text()?);
        pattern.map_or_else(|error| node.refuse(error), Some)
    });
    let identity = Identity { name: name.into(), sources, pattern };
    if list.len() == identity.sources.len() {
        check(&identity, &list, pattern_node.as_ref());
    }
    Some(identity)
}

/// What does not fit together, when every source by itself is right.
fn check(identity: &Identity, list: &[Node<'_>], pattern_node: Option<&Node<'_>>) {
    let is_address = |source: &Source| matches!(source, Source::ClientAddress { .. });
    if let Some(node) = pattern_node
        && identity.sources.iter().all(is_address)
    {
        node.refuse::<()>("is for text: a client's address is checked as it is");
    }
    for (index, (source, node)) in identity.sources.iter().zip(list).enumerate() {
        if let (Source::Literal(text), Some(pattern)) = (source, &identity.pattern)
            && !pattern.matches(text.as_bytes())
        {
            node.refuse::<()>(format!("the text {text:?} is not of the identity's own pattern"));
        }
        if matches!(source, Source::Literal(_)) && index.saturating_add(1) < list.len() {
            node.refuse::<()>("a literal is always there, so it comes last: no source behind it is asked");
        }
    }
}

const SOURCES: &[&str] = &[
    "header",
    "cookie",
    "query",
    "metadata",
    "filter_state",
    "peer",
    "client_address",
    "route_metadata",
    "virtual_host_metadata",
    "literal",
];

pub(super) fn source(node: &Node<'_>) -> Option<Source> {
    let (kind, value) = node.choice_beside(SOURCES, &["scheme"], "{header: x-api-key} or {client_address: {}}")?;
    if kind == "header" {
        return header(node, &value);
    }
    if let Some(scheme) = node.fields(&[kind, "scheme"])?.get("scheme") {
        return scheme.refuse("is for a header, as in {header: authorization, scheme: Bearer}");
    }
    match kind {
        "cookie" => {
            let name = value.filled_text()?;
            if name.bytes().any(|byte| !byte.is_ascii_graphic() || b"=;,\"".contains(&byte)) {
                return value.refuse(format!("{name:?} is not the name of a cookie"));
            }
            Some(Source::Cookie(name.into()))
        }
        "query" => value.filled_text().map(|name| Source::Query(name.into())),
        "filter_state" => value.filled_text().map(|name| Source::Attribute(Attribute::FilterState(name.into()))),
        "peer" => {
            let words = [("uri_san", PeerName::UriSan), ("dns_san", PeerName::DnsSan), ("subject", PeerName::Subject)];
            value.word(&words).map(|name| Source::Attribute(Attribute::Peer(name)))
        }
        "client_address" => client_address(&value),
        "metadata" => metadata(&value, MetadataOf::Request).map(Source::Attribute),
        "route_metadata" => metadata(&value, MetadataOf::Route).map(Source::Attribute),
        "virtual_host_metadata" => metadata(&value, MetadataOf::VirtualHost).map(Source::Attribute),
        _ => value.filled_text().map(|text| Source::Literal(text.into())),
    }
}

fn header(node: &Node<'_>, value: &Node<'_>) -> Option<Source> {
    let name = header_name(value)?;
    let scheme = node.fields(&["header", "scheme"])?.get("scheme");
    if let Some(node) = scheme {
        let scheme = node.filled_text()?;
        // RFC 9110 §11.1: a scheme is a token.
        if !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
            return node.refuse(format!("{scheme:?} is not a scheme, such as Bearer"));
        }
        return Some(Source::Scheme { header: name, scheme: scheme.into() });
    }
    match name.as_str() {
        "authorization" | "proxy-authorization" => {
            value.warn(
                "without a scheme the whole line counts, so `Bearer x` and `bearer x` are two callers: write \
                 {header: authorization, scheme: Bearer}",
            );
        }
        "x-forwarded-for" | "x-real-ip" | "forwarded" | "true-client-ip" => {
            value.warn("clients write what they like into this header: write {client_address: {trusted_hops: 1}}");
        }
        _ => {}
    }
    Some(Source::Header(name))
}

fn client_address(node: &Node<'_>) -> Option<Source> {
    let fields = node.fields(&["trusted_hops", "ipv6_prefix"])?;
    let trusted_hops = fields.get("trusted_hops").map_or(Some(0), |node| node.whole(0, MAX_TRUSTED_HOPS));
    let ipv6_prefix = fields.get("ipv6_prefix").map_or(Some(64), |node| node.whole(1, 128));
    Some(Source::ClientAddress {
        trusted_hops: u8::try_from(trusted_hops?).ok()?,
        ipv6_prefix: u8::try_from(ipv6_prefix?).ok()?,
    })
}

/// `{filter: envoy.filters.http.jwt_authn, path: [payload, tenant]}`
pub(super) fn metadata(node: &Node<'_>, of: MetadataOf) -> Option<Attribute> {
    let fields = node.fields(&["filter", "path"])?;
    let filter = fields
        .required("filter", "whose metadata, such as envoy.filters.http.jwt_authn")
        .and_then(|node| node.filled_text());
    let path = fields.required("path", "a list of the names that lead to the value, such as [payload, tenant]");
    let path = path.and_then(|node| node.filled_list(MAX_PATH)).map(|list| {
        let names = list.iter().filter_map(Node::filled_text);
        names.map(String::from).collect()
    });
    Some(Attribute::Metadata { of, filter: filter?.into(), path: path? })
}
