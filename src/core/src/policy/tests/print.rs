//! A policy written down again, as whoever reads it would write it.

use super::*;
use crate::breaker::Breaker;
use crate::facts::{MetadataOf, Source};
use crate::limit::{FixedWindow, Gcra, SlidingLog, SlidingWindow, TokenBucket};
use crate::units::RefillRate;
use serde_json::{Map, Value, json};

/// Everything that a set says but its hash key, which it does not give away.
pub(super) fn print(set: &PolicySet) -> Value {
    let named = |entries: Vec<(&String, Value)>| -> Value {
        entries.into_iter().map(|(name, value)| (name.clone(), value)).collect::<Map<_, _>>().into()
    };
    let mut printed = json!({
        "hash_key": {"env": "TOLLGATE_HASH_KEY"},
        "identities": named(set.identities().iter().map(|one| (&one.name, identity(one))).collect()),
        "routes": set.routes().iter().map(route).collect::<Vec<_>>(),
        "policies": set.policies().iter().map(|policy| self::policy(set, policy)).collect::<Vec<_>>(),
        "responses": responses(&set.responses),
        "logs": {"rejections": format!("{}%", set.logged_rejections)},
    });
    if let Some(version) = &set.version {
        printed["version"] = version.as_str().into();
    }
    if let Some(endpoint) = &set.endpoint {
        printed["endpoint"] = self::endpoint(endpoint);
    }
    printed
}

fn endpoint(endpoint: &Endpoint) -> Value {
    let mut printed = json!({
        "cluster": endpoint.cluster,
        "timeout": endpoint.timeout.to_string(),
        "max_in_flight": endpoint.max_in_flight,
        "breaker": match endpoint.breaker {
            None => json!("none"),
            Some(Breaker { failures, within, open_for }) => {
                json!({"failures": failures, "within": within.to_string(), "open_for": open_for.to_string()})
            }
        },
    });
    if let Some(token) = &endpoint.auth_token {
        printed["auth_token"] = json!({"value": token.header().strip_prefix("Bearer ").expect("a bearer token")});
    }
    printed
}

fn identity(identity: &Identity) -> Value {
    let mut printed = json!({"sources": identity.sources.iter().map(source).collect::<Vec<_>>()});
    if let Some(pattern) = &identity.pattern {
        printed["pattern"] = pattern.as_str().into();
    }
    printed
}

fn source(source: &Source) -> Value {
    match source {
        Source::Header(name) => json!({"header": name}),
        Source::Scheme { header, scheme } => json!({"header": header, "scheme": scheme}),
        Source::Cookie(name) => json!({"cookie": name}),
        Source::Query(name) => json!({"query": name}),
        Source::Attribute(attribute) => self::attribute(attribute),
        Source::ClientAddress { trusted_hops, ipv6_prefix } => {
            json!({"client_address": {"trusted_hops": trusted_hops, "ipv6_prefix": ipv6_prefix}})
        }
        Source::Literal(text) => json!({"literal": text}),
    }
}

fn attribute(attribute: &Attribute) -> Value {
    match attribute {
        Attribute::Metadata { of, filter, path } => {
            let name = match of {
                MetadataOf::Request => "metadata",
                MetadataOf::Route => "route_metadata",
                MetadataOf::VirtualHost => "virtual_host_metadata",
            };
            json!({name: {"filter": filter, "path": path}})
        }
        Attribute::FilterState(name) => json!({"filter_state": name}),
        Attribute::Peer(PeerName::UriSan) => json!({"peer": "uri_san"}),
        Attribute::Peer(PeerName::DnsSan) => json!({"peer": "dns_san"}),
        Attribute::Peer(PeerName::Subject) => json!({"peer": "subject"}),
        Attribute::RouteName => panic!("no source of an identity"),
    }
}

fn route(class: &RouteClass) -> Value {
    let headers = class.headers.iter().map(|HeaderMatch { name, value }| match value {
        ValueMatch::Present(present) => json!({"name": name, "present": present}),
        ValueMatch::Exact(text) => json!({"name": name, "exact": text}),
        ValueMatch::Prefix(text) => json!({"name": name, "prefix": text}),
    });
    let mut printed = json!({"name": class.name, "exempt": class.exempt});
    let fields = [
        ("methods", class.methods.as_ref().map(|methods| json!(methods))),
        ("host", class.host.as_ref().map(|host| host.as_str().into())),
        ("path", class.path.as_ref().map(|path| path.as_str().into())),
        ("headers", (!class.headers.is_empty()).then(|| headers.collect())),
        ("envoy_route", class.envoy_route.as_deref().map(Value::from)),
        ("cost", (!class.exempt).then(|| cost(&class.cost))),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            printed[name] = value;
        }
    }
    printed
}

fn cost(cost: &CostRule) -> Value {
    match cost {
        CostRule::Fixed(cost) => cost.count().into(),
        CostRule::Measured { from, per, min, max, default } => json!({
            "from": match from {
                Measure::Header(name) => json!({"header": name}),
                Measure::Attribute(attribute) => self::attribute(attribute),
                Measure::ContentLength => json!("content_length"),
            },
            "per": per, "min": min.count(), "max": max.count(), "default": default.count(),
        }),
    }
}

fn policy(set: &PolicySet, policy: &Policy) -> Value {
    let route = |route: &Route| set.route_name(*route);
    let identity = |index: &usize| set.identities()[*index].name.as_str();
    let key = policy.key.iter().map(|part| match part {
        KeyPart::Identity(index) => identity(index),
        KeyPart::Route => "route",
    });
    let mut printed = json!({
        "name": policy.name,
        "key": key.collect::<Vec<_>>(),
        "limit": allowance(&policy.limit),
        "enforce": match policy.enforce {
            Enforcement::On => "on".to_string(),
            Enforcement::Shadow => "shadow".to_string(),
            Enforcement::Percent(percent) => format!("{percent}%"),
        },
    });
    if let Some(routes) = &policy.routes {
        printed["match"] = json!({"routes": routes.iter().map(route).collect::<Vec<_>>()});
    }
    if policy.key.iter().any(|part| *part != KeyPart::Route) {
        printed["on_missing"] = json!(match policy.on_missing {
            OnMissing::Anonymous => "anonymous",
            OnMissing::Skip => "skip",
            OnMissing::Reject => "reject",
        });
    }
    if let Some(plans) = &policy.plans {
        let mut entries = Map::new();
        let by = match &plans.by {
            PlanBy::Identity(index) => identity(index).into(),
            PlanBy::Source(source) => self::source(source),
        };
        entries.insert("by".into(), by);
        entries.extend(plans.allowances.iter().map(|(name, one)| (name.clone(), allowance(one))));
        printed["plans"] = entries.into();
    }
    match policy.scope {
        Scope::Local { sharing, charge_always } => {
            printed["scope"] = "local".into();
            printed["sharing"] = if sharing == Sharing::Proxy { "proxy" } else { "worker" }.into();
            printed["charge"] = if charge_always { "always" } else { "admitted" }.into();
        }
        Scope::Global { mode, learn, on_failure } => {
            printed["scope"] = "global".into();
            if let Mode::Leased(sharing) = mode {
                printed["mode"] = "leased".into();
                printed["sharing"] = if sharing == Sharing::Proxy { "proxy" } else { "worker" }.into();
            } else {
                printed["mode"] = "exact".into();
            }
            if learn || mode != Mode::Exact {
                printed["lost_state"] = if learn { "learn" } else { "full" }.into();
            }
            printed["on_failure"] = match on_failure {
                FailMode::Open => json!("open"),
                FailMode::Closed => json!("closed"),
                FailMode::Local(bucket) => json!({"local": limit(&Limit::TokenBucket(bucket))}),
            };
        }
    }
    printed
}

fn allowance(allowance: &Allowance) -> Value {
    match allowance {
        Allowance::Deny => "deny".into(),
        Allowance::Unlimited => "unlimited".into(),
        Allowance::Limit(limit) => self::limit(limit),
    }
}

fn limit(limit: &Limit) -> Value {
    let rate = |rate: RefillRate| format!("{}/{}", rate.tokens(), Micros::new(rate.period()));
    let window = |name: &str, capacity: Tokens, window: Micros| json!({name: {"capacity": capacity.count(), "window": window.to_string()}});
    match limit {
        Limit::TokenBucket(TokenBucket { capacity, refill, keep: _ }) => {
            json!({"token_bucket": {"capacity": capacity.count(), "refill": rate(*refill)}})
        }
        Limit::Gcra(Gcra { burst, rate: one }) => json!({"gcra": {"burst": burst.count(), "rate": rate(*one)}}),
        Limit::FixedWindow(FixedWindow { capacity, window: Window::Span(span) }) => {
            window("fixed_window", *capacity, *span)
        }
        Limit::FixedWindow(FixedWindow { capacity, window: Window::Calendar(window) }) => {
            let word = CalendarUnit::WORDS.iter().find(|(_, unit)| *unit == window.unit).expect("a word").0;
            json!({"fixed_window": {"capacity": capacity.count(), "window": word, "time_zone": window.zone.as_str()}})
        }
        Limit::SlidingWindow(SlidingWindow { capacity, window: span }) => window("sliding_window", *capacity, *span),
        Limit::SlidingLog(SlidingLog { capacity, window: span }) => window("sliding_log", *capacity, *span),
    }
}

fn responses(responses: &Responses) -> Value {
    let mut printed = json!({
        "ratelimit_headers": if responses.ratelimit.is_some() { "draft-11" } else { "none" },
        "legacy_headers": match responses.legacy {
            None => "none",
            Some(LegacyReset::Seconds) => "seconds",
            Some(LegacyReset::Epoch) => "epoch",
        },
        "headers_on": if responses.on_admitted { "all" } else { "rejections" },
        "upstream_headers": if responses.replace_upstream { "replace" } else { "keep" },
        "retry_after_jitter": format!("{}%", responses.retry_after_jitter),
        "grpc_status": if responses.grpc_status == 14 { "unavailable" } else { "resource_exhausted" },
        "preflight": if responses.exempt_preflight { "exempt" } else { "limited" },
    });
    if !responses.cors_origins.is_empty() {
        printed["cors_origins"] = json!(responses.cors_origins);
    }
    printed
}
