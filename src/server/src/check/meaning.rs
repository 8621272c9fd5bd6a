//! What a policy means, in plain words.

use crate::check::report::Meaning;
use tollgate_core::breaker::Breaker;
use tollgate_core::facts::{Attribute, MetadataOf, PeerName, Source};
use tollgate_core::limit::{CalendarUnit, FixedWindow, Limit, Window};
use tollgate_core::policy::{
    Allowance, CostRule, Enforcement, FailMode, FieldsVersion, Identity, KeyPart, Measure, OnMissing, PlanBy, Plans,
    Policy, PolicySet, Responses, RouteClass, Scope, Sharing,
};
use tollgate_core::units::{Micros, RefillRate};

/// All policies of a set, in its order.
pub fn of_set(set: &PolicySet) -> Vec<Meaning> {
    set.policies().iter().map(|policy| of_policy(set, policy)).collect()
}

/// The route classes that are exempt or cost something else than 1.
pub fn of_routes(set: &PolicySet) -> Vec<String> {
    let special =
        |class: &&RouteClass| class.exempt || !matches!(class.cost, CostRule::Fixed(cost) if cost.count() == 1);
    set.routes().iter().filter(special).map(of_route).collect()
}

/// What is not as usual with the breaker, the log, and what callers are told.
pub fn of_the_rest(set: &PolicySet) -> Vec<String> {
    let mut lines = Vec::new();
    let breaker = set.endpoint.as_ref().map(|endpoint| endpoint.breaker);
    match breaker.filter(|breaker| *breaker != Some(Breaker::default())) {
        Some(Some(Breaker { failures, within, open_for })) => lines.push(format!(
            "after {failures} failed calls within {within} the endpoint is not asked for {open_for}, in each Envoy"
        )),
        Some(None) => lines.push("the endpoint is asked however often calls to it fail".into()),
        None => {}
    }
    let usual = Responses::default();
    let told = &set.responses;
    let fields = match (told.ratelimit, told.legacy) {
        (Some(FieldsVersion::Draft11), None) => None,
        (Some(FieldsVersion::Draft11), Some(_)) => Some("in RateLimit and X-RateLimit headers"),
        (None, Some(_)) => Some("in X-RateLimit headers"),
        (None, None) => Some("in no header but Retry-After"),
    };
    let whom = (!told.on_admitted).then_some("only when they are rejected");
    if fields.is_some() || whom.is_some() {
        let how: Vec<&str> = fields.into_iter().chain(whom).collect();
        lines.push(format!("callers are told what is left {}", how.join(", ")));
    }
    if told.replace_upstream != usual.replace_upstream {
        lines.push("such headers of the upstream stay".into());
    }
    if told.retry_after_jitter > 0 {
        lines.push(format!("Retry-After is up to {} % longer than the wait", told.retry_after_jitter));
    }
    if told.grpc_status != usual.grpc_status {
        lines.push("gRPC callers get UNAVAILABLE".into());
    }
    if told.exempt_preflight != usual.exempt_preflight {
        lines.push("CORS preflights are limited as other requests are".into());
    }
    if !told.cors_origins.is_empty() {
        lines.push(format!("pages of {} may read a rejection", told.cors_origins.join(", ")));
    }
    match set.logged_rejections {
        100 => {}
        0 => lines.push("no rejection is logged".into()),
        share => lines.push(format!("{share} % of the rejections are logged, at most one a second and worker")),
    }
    lines
}

fn of_route(class: &RouteClass) -> String {
    let name = &class.name;
    if class.exempt {
        return format!("{name}: exempt from every policy");
    }
    format!("{name}: a request costs {}", cost(&class.cost))
}

/// `1 to 50, 1 for each 1000 of header x-rows; …`
pub fn cost(rule: &CostRule) -> String {
    match rule {
        CostRule::Fixed(cost) => cost.count().to_string(),
        CostRule::Measured { from, per, min, max, default } => format!(
            "{} to {}, 1 for each {per} of {}; {} where there is no number",
            min.count(),
            max.count(),
            measure(from),
            default.count()
        ),
    }
}

fn measure(from: &Measure) -> String {
    match from {
        Measure::Header(name) => format!("header {name}"),
        Measure::Attribute(known) => attribute(known),
        Measure::ContentLength => "the body's bytes".into(),
    }
}

fn of_policy(set: &PolicySet, policy: &Policy) -> Meaning {
    let whose_in_full = whose(set, policy, with_sources);
    let mut means = match &policy.limit {
        Allowance::Limit(limit) => format!("{}, {whose_in_full}, {}", amount(limit), place(&policy.scope)),
        word => format!("{}, {whose_in_full}", allowance(word)),
    };
    if let Some(routes) = &policy.routes {
        let names: Vec<&str> = routes.iter().map(|route| set.route_name(*route)).collect();
        let classes = if names.len() == 1 { "class" } else { "classes" };
        means += &format!(", on the route {classes} {}", names.join(", "));
    }
    let whose = whose(set, policy, |identity| identity.name.clone());
    let otherwise = otherwise(set, policy, &whose);
    Meaning { policy: policy.name.clone(), means, otherwise, worst_case: worst(policy, &whose) }
}

const fn place(scope: &Scope) -> &'static str {
    match scope {
        Scope::Local { sharing: Sharing::Proxy, .. } => "in each Envoy",
        Scope::Local { sharing: Sharing::Worker, .. } => "in each worker thread of each Envoy",
        Scope::Global { .. } => "over all Envoys together",
    }
}

/// `for each client`
fn whose(set: &PolicySet, policy: &Policy, call: fn(&Identity) -> String) -> String {
    let part = |part: &KeyPart| match part {
        KeyPart::Identity(index) => set.identities().get(*index).map(call),
        KeyPart::Route => Some("route class".into()),
    };
    let parts: Vec<String> = policy.key.iter().filter_map(part).collect();
    if parts.is_empty() { "for all requests together".into() } else { format!("for each {}", parts.join(" and ")) }
}

/// `client (the client's address)`: the sources of an identity in their order.
fn with_sources(identity: &Identity) -> String {
    let sources: Vec<String> = identity.sources.iter().map(source).collect();
    format!("{} ({})", identity.name, sources.join(", else "))
}

/// One source of an identity, in words.
pub fn source(source: &Source) -> String {
    match source {
        Source::Header(name) => format!("header {name}"),
        Source::Scheme { header, scheme } => format!("{scheme} in header {header}"),
        Source::Cookie(name) => format!("cookie {name}"),
        Source::Query(name) => format!("query parameter {name}"),
        Source::Attribute(known) => attribute(known),
        Source::ClientAddress { trusted_hops, ipv6_prefix } => {
            let mut words = match trusted_hops {
                0 => String::from("the client's address"),
                hops => format!("entry {hops} of x-forwarded-for from the right"),
            };
            if *ipv6_prefix < 128 {
                words += &format!(", IPv6 by /{ipv6_prefix}");
            }
            words
        }
        Source::Literal(text) => format!("the text {text:?}"),
    }
}

fn attribute(attribute: &Attribute) -> String {
    match attribute {
        Attribute::Metadata { of, filter, path } => {
            let of = match of {
                MetadataOf::Request => "metadata",
                MetadataOf::Route => "route metadata",
                MetadataOf::VirtualHost => "virtual host metadata",
            };
            format!("{of} {filter} {}", path.join("."))
        }
        Attribute::FilterState(name) => format!("filter state {name}"),
        Attribute::Peer(PeerName::UriSan) => "the certificate's URI".into(),
        Attribute::Peer(PeerName::DnsSan) => "the certificate's DNS name".into(),
        Attribute::Peer(PeerName::Subject) => "the certificate's subject".into(),
        Attribute::RouteName => "Envoy's route".into(),
    }
}

/// `up to 200 at once, then 50 a second`
pub fn amount(limit: &Limit) -> String {
    let capacity = limit.capacity().count();
    match limit {
        Limit::TokenBucket(bucket) => format!("up to {capacity} at once, then {}", rate(bucket.refill)),
        Limit::Gcra(gcra) => format!("up to {capacity} at once, then {}", rate(gcra.rate)),
        Limit::FixedWindow(FixedWindow { window: Window::Span(span), .. }) => {
            format!("up to {capacity} in each window of {span}")
        }
        Limit::FixedWindow(FixedWindow { window: Window::Calendar(window), .. }) => {
            let word = CalendarUnit::WORDS.iter().find(|(_, unit)| *unit == window.unit).map_or("", |(word, _)| word);
            format!("up to {capacity} in each {word} of {}", window.zone.as_str())
        }
        Limit::SlidingWindow(limit) => format!("about {capacity} in any {}", limit.window),
        Limit::SlidingLog(limit) => format!("up to {capacity} in any {}", limit.window),
    }
}

fn allowance(allowance: &Allowance) -> String {
    match allowance {
        Allowance::Deny => "every request is rejected".into(),
        Allowance::Unlimited => "no limit".into(),
        Allowance::Limit(limit) => amount(limit),
    }
}

const UNITS: [(&str, u64); 4] =
    [("second", 1_000_000), ("minute", 60_000_000), ("hour", 3_600_000_000), ("day", 86_400_000_000)];

/// The shortest unit in which a rate is a whole number, with that number.
fn whole_unit(rate: RefillRate) -> Option<(u64, &'static str)> {
    UNITS.iter().find_map(|(name, micros)| {
        let product = u128::from(rate.tokens()) * u128::from(*micros);
        let count = product / u128::from(rate.period());
        (product % u128::from(rate.period()) == 0).then(|| (u64::try_from(count).unwrap_or(u64::MAX), *name))
    })
}

/// `50 a second`
fn rate(rate: RefillRate) -> String {
    match whole_unit(rate) {
        Some((count, "hour")) => format!("{count} an hour"),
        Some((count, unit)) => format!("{count} a {unit}"),
        None => format!("{} every {}", rate.tokens(), Micros::new(rate.period())),
    }
}

fn otherwise(set: &PolicySet, policy: &Policy, whose: &str) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(plans) = &policy.plans {
        let by = plan_by(set, plans);
        lines.extend(plans.allowances.iter().map(|(name, plan)| format!("plan {name} ({by}): {}", allowance(plan))));
    }
    let identity = |part: &KeyPart| match part {
        KeyPart::Identity(index) => set.identities().get(*index).map(|identity| identity.name.as_str()),
        KeyPart::Route => None,
    };
    let identities: Vec<&str> = policy.key.iter().filter_map(identity).collect();
    if !identities.is_empty() {
        let without = identities.join(" or ");
        lines.push(match policy.on_missing {
            OnMissing::Anonymous => format!("all requests without {without} share one such budget"),
            OnMissing::Skip => format!("a request without {without} is not limited by this; one with several, or one of another form, shares one such budget"),
            OnMissing::Reject => format!("a request without {without} is rejected with 403"),
        });
    }
    match &policy.scope {
        Scope::Local { charge_always: true, .. } => {
            lines.push("what another policy rejects is charged here too".into());
        }
        Scope::Local { .. } => {}
        Scope::Global { on_failure, .. } => {
            if policy.is_leased() {
                lines.push("each Envoy borrows a part of it for two seconds at the most, and decides by that as long as it lasts".into());
            }
            lines.push(match on_failure {
                FailMode::Open => "when the endpoint cannot be asked: every request is admitted".into(),
                FailMode::Closed => "when the endpoint cannot be asked: every request is rejected with 503".into(),
                FailMode::Local(bucket) => {
                    let amount = amount(&Limit::TokenBucket(*bucket));
                    format!("when the endpoint cannot be asked: {amount}, {whose}, in each Envoy")
                }
            });
        }
    }
    match policy.enforce {
        Enforcement::On => {}
        Enforcement::Shadow => lines.push("in shadow: what it would reject is counted, and admitted".into()),
        Enforcement::Percent(percent) => {
            lines.push(format!("enforced for {percent} % of its keys; for the others only counted"));
        }
    }
    lines
}

fn plan_by(set: &PolicySet, plans: &Plans) -> String {
    match &plans.by {
        PlanBy::Identity(index) => set.identities().get(*index).map_or_else(String::new, |by| by.name.clone()),
        PlanBy::Source(by) => source(by),
    }
}

/// The most that is admitted, with the plan that allows most of it said apart.
fn worst(policy: &Policy, whose: &str) -> String {
    let Allowance::Limit(limit) = &policy.limit else { return allowance(&policy.limit) };
    let mut worst = format!("{}, {whose}", most(limit));
    worst += match &policy.scope {
        Scope::Local { sharing: Sharing::Proxy, .. } => "; N Envoys admit N times that",
        Scope::Local { sharing: Sharing::Worker, .. } => "; N Envoys of M worker threads admit N·M times that",
        Scope::Global { on_failure: FailMode::Open, .. } => "; no limit while the endpoint cannot be asked",
        Scope::Global { on_failure: FailMode::Closed, .. } => "; nothing while the endpoint cannot be asked",
        Scope::Global { on_failure: FailMode::Local(_), .. } => {
            "; while the endpoint cannot be asked, each Envoy admits what is said above for then"
        }
    };
    for (name, plan) in policy.plans.iter().flat_map(|plans| &plans.allowances) {
        worst += &match plan {
            Allowance::Limit(limit) => format!("; with plan {name} {}", most(limit)),
            Allowance::Unlimited => format!("; with plan {name} no limit"),
            Allowance::Deny => String::new(),
        };
    }
    match policy.enforce {
        Enforcement::On => worst,
        Enforcement::Shadow => "no limit, in shadow".into(),
        Enforcement::Percent(percent) => format!("no limit for {} % of the keys; else {worst}", 100 - percent.min(100)),
    }
}

fn most(limit: &Limit) -> String {
    let capacity = limit.capacity().count();
    match limit {
        Limit::TokenBucket(bucket) => burst(capacity, bucket.refill),
        Limit::Gcra(gcra) => burst(capacity, gcra.rate),
        Limit::FixedWindow(_) => format!("{} in a short time, across the end of a window", capacity * 2),
        Limit::SlidingWindow(limit) => {
            format!("almost {} in {}, if all of a window comes at its end", capacity * 2, limit.window)
        }
        Limit::SlidingLog(limit) => format!("{capacity} in any {}", limit.window),
    }
}

/// The capacity and what comes back within a time that people think in.
fn burst(capacity: u64, rate: RefillRate) -> String {
    match whole_unit(rate) {
        Some((count, "second")) => {
            format!("{} in any second, {} in any minute", capacity + count, capacity + count.saturating_mul(60))
        }
        Some((count, unit)) => format!("{} in any {unit}", capacity + count),
        None => format!("{} in any {}", capacity + rate.tokens(), Micros::new(rate.period())),
    }
}
