//! Route classes: what they match, and what they cost.

use super::identity::metadata;
use super::limit::tokens;
use super::{all, header_name};
use crate::facts::MetadataOf;
use crate::path::Template;
use crate::policy::bounds::{MAX_HEADERS, MAX_METHODS, MAX_ROUTES};
use crate::policy::node::Node;
use crate::policy::{CostRule, HeaderMatch, HostPattern, Measure, RouteClass, ValueMatch};
use crate::units::{MAX_TOKENS, Tokens};
use core::num::NonZeroU64;

const FIELDS: &[&str] = &["name", "methods", "host", "path", "headers", "envoy_route", "exempt", "cost"];

pub(super) fn routes(node: &Node<'_>) -> Vec<RouteClass> {
    let mut classes: Vec<RouteClass> = Vec::new();
    for node in node.list().unwrap_or_default() {
        if classes.len() == MAX_ROUTES {
            node.refuse::<()>(format!("there can be at most {MAX_ROUTES} route classes"));
            break;
        }
        if let Some((class, is_sound)) = route(&node, &classes) {
            let first = classes.iter().find(|first| is_sound && first.takes_all_of(&class));
            if let Some(RouteClass { name: first, .. }) = first {
                let name = &class.name;
                node.refuse::<()>(format!(
                    "no request reaches the route class {name:?}: {first:?} before it takes all that it matches"
                ));
            }
            classes.push(class);
        }
    }
    classes
}

/// A class, and whether what it matches is right. As with identities, one that is wrong keeps its name for those who
/// refer to it: then it takes no request, so that it does not seem to take those of others.
fn route(node: &Node<'_>, earlier: &[RouteClass]) -> Option<(RouteClass, bool)> {
    let fields = node.fields(FIELDS)?;
    let name = fields.required("name", "what the route class is called in keys and metrics").and_then(|node| {
        let name = node.name()?;
        if name == "other" {
            return node.refuse("`other` is the class of all that no route matches");
        }
        if earlier.iter().any(|class| class.name == name) {
            return node.refuse(format!("the name {name:?} is taken by an earlier route class"));
        }
        Some(name)
    });
    let methods = fields.optional("methods", |node| all(&node.filled_list(MAX_METHODS)?, method));
    let host = fields.optional("host", |node| parsed(node, HostPattern::new));
    let path = fields.optional("path", |node| parsed(node, Template::new));
    let headers = fields.optional("headers", |node| all(&node.filled_list(MAX_HEADERS)?, header));
    let envoy_route = fields.optional("envoy_route", |node| node.filled_text().map(String::from));
    let exempt = fields.get("exempt").and_then(|node| node.boolean());
    let cost = fields.get("cost").and_then(|node| cost(&node));
    if let (Some(true), Some(node)) = (exempt, fields.get("cost")) {
        node.refuse::<()>("an exempt route class costs nothing: leave one of the two out");
    }
    let mut class = RouteClass {
        name: name?.into(),
        methods: None,
        host: None,
        path: None,
        headers: Vec::new(),
        envoy_route: None,
        exempt: exempt.unwrap_or_default(),
        cost: cost.unwrap_or(CostRule::Fixed(Tokens::ONE)),
    };
    let (Some(methods), Some(host), Some(path), Some(headers), Some(envoy_route)) =
        (methods, host, path, headers, envoy_route)
    else {
        return Some((RouteClass { methods: Some(Vec::new()), ..class }, false));
    };
    if methods.is_none() && host.is_none() && path.is_none() && headers.is_none() && envoy_route.is_none() {
        fields.refuse::<()>("lacks what it matches, such as `path`: a template such as \"/v1/reports/{id}\"");
        return Some((RouteClass { methods: Some(Vec::new()), ..class }, false));
    }
    class = RouteClass { methods, host, path, headers: headers.unwrap_or_default(), envoy_route, ..class };
    if class.exempt && class.can_be_claimed() {
        fields.warn(
            "whoever sends these headers is exempt: name a path or an envoy_route too, or have Envoy remove them",
        );
    }
    Some((class, true))
}

fn parsed<T>(node: &Node<'_>, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
    parse(node.text()?).map_or_else(|error| node.refuse(error), Some)
}

fn method(node: &Node<'_>) -> Option<String> {
    let text = node.text()?;
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_uppercase() || b == b'-') {
        return node.refuse(format!("{text:?} is not a method: methods are written in capitals, such as GET"));
    }
    Some(text.into())
}

fn header(node: &Node<'_>) -> Option<HeaderMatch> {
    const KINDS: &[&str] = &["present", "exact", "prefix"];
    let (kind, value) = node.choice_beside(KINDS, &["name"], "{name: x-tier, exact: batch}")?;
    let name = node.fields(&["name", kind])?.required("name", "which header").and_then(|node| header_name(&node));
    let value = match kind {
        "present" => value.boolean().map(ValueMatch::Present),
        "exact" => value.text().map(|text| ValueMatch::Exact(text.into())),
        _ => value.filled_text().map(|text| ValueMatch::Prefix(text.into())),
    };
    Some(HeaderMatch { name: name?, value: value? })
}

/// A number of units, or where to find one.
fn cost(node: &Node<'_>) -> Option<CostRule> {
    if !node.is_map() {
        return tokens(node).map(CostRule::Fixed);
    }
    let fields = node.fields(&["from", "per", "min", "max", "default"])?;
    let from =
        fields.required("from", "{header: x-rows}, {metadata: …} or content_length").and_then(|node| measure(&node));
    let per = fields.get("per").map_or(Some(1), |node| node.whole(1, MAX_TOKENS)).and_then(NonZeroU64::new);
    let min_node = fields.get("min");
    let min = min_node.as_ref().map_or(Some(Tokens::ONE), tokens);
    let max = fields.required("max", "the most that one request can cost").and_then(|node| tokens(&node));
    let default_node = fields.get("default");
    // What cannot be known is taken for the most, or else leaving it out would be the cheapest.
    let default = default_node.as_ref().map_or(max, tokens);
    let (min, max, default) = (min?, max?, default?);
    if min > max {
        return min_node?.refuse(format!("is above the `max` of {}", max.count()));
    }
    if !(min..=max).contains(&default) {
        return default_node?.refuse(format!("must be between `min` and `max`: {} to {}", min.count(), max.count()));
    }
    Some(CostRule::Measured { from: from?, per: per?, min, max, default })
}

fn measure(node: &Node<'_>) -> Option<Measure> {
    if node.as_word().is_some() {
        return node.word(&[("content_length", ())]).map(|()| Measure::ContentLength);
    }
    let (kind, value) = node.choice(&["header", "metadata"], "{header: x-rows}, or content_length")?;
    if kind == "header" {
        return header_name(&value).map(Measure::Header);
    }
    metadata(&value, MetadataOf::Request).map(Measure::Attribute)
}
