//! Policies: their fields, and whether they fit the identities and the route classes.

use super::identity::source;
use super::limit::{EXAMPLE, allowance, token_bucket_limit};
use super::route::MAX_ROUTES;
use super::without_repeats;
use crate::key::HashKey;
use crate::limit::{Gcra, Limit, TokenBucket};
use crate::policy::budget::overflow;
use crate::policy::node::{Fields, Node, unknown};
use crate::policy::{
    Allowance, Enforcement, FailMode, Identity, KeyPart, OnMissing, PlanBy, Plans, Policy, Route, RouteClass, Scope,
    Sharing,
};
use crate::units::Tokens;

pub(super) const MAX_POLICIES: usize = 64;
const MAX_PLANS: usize = 64;

/// What the policies may refer to.
pub(super) struct Names<'a> {
    pub(super) identities: &'a [Identity],
    pub(super) routes: &'a [RouteClass],
}

impl Names<'_> {
    fn identity(&self, name: &str) -> Option<usize> {
        self.identities.iter().position(|identity| identity.name == name)
    }

    fn identity_names(&self) -> Vec<&str> {
        self.identities.iter().map(|identity| identity.name.as_str()).collect()
    }

    /// The classes that requests can be of and that are not exempt.
    fn limited(&self) -> impl Iterator<Item = Route> {
        let listed = self.routes.iter().enumerate().filter(|(_, class)| !class.exempt);
        let other = self.routes.iter().all(|class| !class.takes_all()).then_some(Route::Other);
        listed.map(|(index, _)| Route::Listed(index)).chain(other)
    }
}

pub(super) fn policies(node: &Node<'_>, names: &Names<'_>, hash_key: &HashKey) -> Vec<Policy> {
    let mut policies: Vec<Policy> = Vec::new();
    for node in node.filled_list(MAX_POLICIES).unwrap_or_default() {
        if let Some(policy) = policy(&node, &policies, names, hash_key) {
            policies.push(policy);
        }
    }
    policies
}

const POLICY_FIELDS: &[&str] = &[
    "name",
    "scope",
    "mode",
    "sharing",
    "match",
    "key",
    "limit",
    "plans",
    "charge",
    "on_missing",
    "on_failure",
    "enforce",
];

fn policy(node: &Node<'_>, earlier: &[Policy], names: &Names<'_>, hash_key: &HashKey) -> Option<Policy> {
    let fields = node.fields(POLICY_FIELDS)?;
    let name = fields.required("name", "what the budget is called").and_then(|node| {
        let name = node.name()?;
        if earlier.iter().any(|policy| policy.name == name) {
            return node.refuse(format!("the name {name:?} is taken by an earlier policy"));
        }
        Some(name)
    });
    let routes = match fields.get("match") {
        None => Some(None),
        Some(node) => match_routes(&node, names).map(Some),
    };
    let key = match fields.get("key") {
        None => Some(Vec::new()),
        Some(node) => node.list().map(|list| without_repeats(&list, |node| key_part(node, names))),
    };
    let place = place(&fields);
    let scope = place.and_then(|place| scope(&fields, place));
    let limit_node = fields.required("limit", &format!("such as {EXAMPLE}"));
    // Which limits there can be depends on the place.
    let is_local = place == Some(Place::Local);
    let limit = limit_node.and_then(|node| allowance(&node, is_local));
    let plans = match fields.get("plans") {
        Some(node) => plans(&node, names, limit, is_local).map(Some),
        None => Some(None),
    };
    let on_missing = on_missing(&fields, key.as_deref());
    let enforce = fields.get("enforce").map_or(Some(Enforcement::On), |node| enforcement(&node));
    let mut policy = Policy {
        name: name?.into(),
        scope: scope?,
        limit: limit?,
        plans: plans?,
        key: key?,
        on_missing: on_missing?,
        enforce: enforce?,
        routes: routes?,
        overflow: overflow(hash_key, name?),
    };
    keep_for_the_slowest(&mut policy);
    check(&policy, &fields, names);
    Some(policy)
}

fn on_missing(fields: &Fields<'_>, key: Option<&[KeyPart]>) -> Option<OnMissing> {
    let Some(node) = fields.get("on_missing") else { return Some(OnMissing::Anonymous) };
    if key.is_some_and(|key| key.iter().all(|part| *part == KeyPart::Route)) {
        node.refuse::<()>("is for policies with an identity in their key");
    }
    node.word(&[("anonymous", OnMissing::Anonymous), ("skip", OnMissing::Skip), ("reject", OnMissing::Reject)])
}

/// `on`, `shadow`, or a percentage. Envoy's reader of YAML hands `on` over as `true`.
fn enforcement(node: &Node<'_>) -> Option<Enforcement> {
    const FORM: &str = "must be on, shadow, or a percentage of keys such as 10%";
    let text = match (node.as_word(), node.as_boolean()) {
        (Some(text), _) => text,
        (None, Some(true)) => return Some(Enforcement::On),
        (None, Some(false)) => return node.refuse(format!("{FORM}; to count denials alone, write shadow")),
        (None, None) => return node.refuse(FORM),
    };
    match (text, text.strip_suffix('%')) {
        ("on", _) => Some(Enforcement::On),
        ("shadow", _) => Some(Enforcement::Shadow),
        (_, Some(number)) => {
            let is_number = number.bytes().all(|b| b.is_ascii_digit());
            let percent = number.parse::<u64>().ok().filter(|percent| is_number && *percent <= 100);
            match percent.and_then(|percent| u8::try_from(percent).ok()) {
                Some(percent) => Some(Enforcement::Percent(percent)),
                None => node.refuse(format!("{text:?}: a percentage is a whole number from 0% to 100%")),
            }
        }
        _ => node.refuse(format!("{}; {FORM}", unknown("value", text, &["on", "shadow"]))),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Local,
    Global,
}

fn place(fields: &Fields<'_>) -> Option<Place> {
    fields
        .required("scope", "local (in this proxy) or global (over all proxies)")?
        .word(&[("local", Place::Local), ("global", Place::Global)])
}

fn scope(fields: &Fields<'_>, place: Place) -> Option<Scope> {
    let belongs = |name: &str, place: &str| {
        if let Some(node) = fields.get(name) {
            node.refuse::<()>(format!("is for policies of scope {place}"));
        }
    };
    match place {
        Place::Local => {
            belongs("mode", "global");
            belongs("on_failure", "global");
            let sharing = fields.get("sharing").map_or(Some(Sharing::Proxy), |node| {
                node.word(&[("proxy", Sharing::Proxy), ("worker", Sharing::Worker)])
            });
            let charge_always =
                fields.get("charge").map_or(Some(false), |node| node.word(&[("admitted", false), ("always", true)]));
            Some(Scope::Local { sharing: sharing?, charge_always: charge_always? })
        }
        Place::Global => {
            belongs("sharing", "local");
            belongs("charge", "local");
            if let Some(node) = fields.get("mode") {
                node.word(&[("exact", ())]);
            }
            let purpose = "what happens when the endpoint cannot say: open (admit), closed (503), \
                           or {local: {token_bucket: …}} (an emergency budget in each proxy)";
            let on_failure = fields.required("on_failure", purpose).and_then(|node| fail_mode(&node));
            Some(Scope::Global { on_failure: on_failure? })
        }
    }
}

fn fail_mode(node: &Node<'_>) -> Option<FailMode> {
    match node.as_word() {
        Some("open") => return Some(FailMode::Open),
        Some("closed") => return Some(FailMode::Closed),
        Some("local") => return node.refuse(format!("local needs its budget: {{local: {EXAMPLE}}}")),
        Some(other) => return node.refuse(unknown("fail mode", other, &["open", "closed", "local"])),
        None => {}
    }
    let (_, value) = node.choice(&["local"], &format!("{{local: {EXAMPLE}}}"))?;
    token_bucket_limit(&value, "an emergency budget").map(FailMode::Local)
}

/// `{by: …, gold: {…}}`
fn plans(node: &Node<'_>, names: &Names<'_>, limit: Option<Allowance>, is_local: bool) -> Option<Plans> {
    let entries = node.entries()?;
    if entries.len() > MAX_PLANS {
        return node.refuse(format!("must have at most {MAX_PLANS} plans, has {}", entries.len()));
    }
    let mut by = None;
    let mut allowances: Vec<(String, Allowance)> = Vec::new();
    let mut first = limit.and_then(|limit| limit.limit());
    for (name, node) in entries {
        if name == "by" {
            by = Some(plan_by(&node, names));
            continue;
        }
        let Some(one) = allowance(&node, is_local) else { continue };
        if let Some(its) = one.limit()
            && let Some(reason) = cannot_share(first.get_or_insert(its), &its)
        {
            node.refuse::<()>(reason);
        }
        allowances.push((name.into(), one));
    }
    if by.is_none() {
        return node.refuse("lacks `by`: what names the plan, an identity or a source such as {header: x-plan}");
    }
    if allowances.is_empty() {
        return node.refuse("lacks plans: each is a name and a limit, such as gold: {token_bucket: …}");
    }
    Some(Plans { by: by.flatten()?, allowances })
}

/// Why one bucket cannot serve both limits: what is spent under one would not be spent under the other, so that whoever
/// changes the plan back and forth has more than either.
fn cannot_share(first: &Limit, other: &Limit) -> Option<String> {
    const MORE: &str = "a change of plan would bring back what was spent";
    let window = "the limits of one policy have one window, and differ in the capacity alone";
    match (first, other) {
        (Limit::TokenBucket(_), Limit::TokenBucket(_)) => None,
        (Limit::Gcra(first), Limit::Gcra(other)) => {
            let time = |limit: &Gcra, other: &Gcra| {
                // Each is below 2^42, so the product of three is below u128's bound.
                let units = u128::from(limit.burst.count()).saturating_mul(u128::from(other.rate.tokens()));
                units.saturating_mul(u128::from(limit.rate.period()))
            };
            (time(first, other) != time(other, first)).then(|| {
                format!("every gcra of one policy takes as long to earn its burst, or {MORE}; or write token_buckets")
            })
        }
        (Limit::FixedWindow(first), Limit::FixedWindow(other)) => {
            (first.window != other.window).then(|| format!("{window}, or {MORE}"))
        }
        (Limit::SlidingWindow(first), Limit::SlidingWindow(other)) => {
            (first.window != other.window).then(|| format!("{window}, or {MORE}"))
        }
        (Limit::SlidingLog(first), Limit::SlidingLog(other)) => {
            (first.window != other.window).then(|| format!("{window}, or {MORE}"))
        }
        _ => Some(format!(
            "the limits of one policy are of one algorithm, here {}: another one would be a second budget for whoever \
             changes the plan",
            first.algorithm()
        )),
    }
}

/// Has every limit's bucket kept as long as the slowest takes to fill: see [`TokenBucket::keep`].
fn keep_for_the_slowest(policy: &mut Policy) {
    let Some(plans) = &mut policy.plans else { return };
    let mut buckets: Vec<&mut TokenBucket> = core::iter::once(&mut policy.limit)
        .chain(plans.allowances.iter_mut().map(|(_, allowance)| allowance))
        .filter_map(|allowance| match allowance {
            Allowance::Limit(Limit::TokenBucket(bucket)) => Some(bucket),
            _ => None,
        })
        .collect();
    let slowest = buckets.iter().map(|bucket| bucket.time_to_fill()).max().unwrap_or_default();
    buckets.iter_mut().for_each(|bucket| bucket.keep = slowest);
}

fn plan_by(node: &Node<'_>, names: &Names<'_>) -> Option<PlanBy> {
    let (by, sources) = match node.as_word() {
        Some(name) => {
            let Some(index) = names.identity(name) else {
                return node.refuse(unknown("identity", name, &names.identity_names()));
            };
            (PlanBy::Identity(index), names.identities.get(index)?.sources.as_slice().to_vec())
        }
        None => {
            let source = source(node)?;
            (PlanBy::Source(source.clone()), vec![source])
        }
    };
    if sources.iter().any(|source| source.is_sent_by_client()) {
        node.warn(
            "a client chooses its plan by what it sends here, unless an earlier filter overwrites it: better take the \
             plan from metadata",
        );
    }
    Some(by)
}

fn match_routes(node: &Node<'_>, names: &Names<'_>) -> Option<Vec<Route>> {
    let list = node.fields(&["routes"])?.required("routes", "a list of route classes")?.filled_list(MAX_ROUTES)?;
    Some(without_repeats(&list, |node| match_route(node, names)))
}

fn match_route(node: &Node<'_>, names: &Names<'_>) -> Option<Route> {
    let text = node.text()?;
    if text == "other" {
        return Some(Route::Other);
    }
    match names.routes.iter().position(|class| class.name == text) {
        Some(index) if names.routes.get(index).is_some_and(|class| class.exempt) => {
            node.refuse(format!("the route class {text:?} is exempt: no policy applies to it"))
        }
        Some(index) => Some(Route::Listed(index)),
        None => {
            let mut known: Vec<&str> = names.routes.iter().map(|class| class.name.as_str()).collect();
            known.push("other");
            node.refuse(unknown("route class", text, &known))
        }
    }
}

fn key_part(node: &Node<'_>, names: &Names<'_>) -> Option<KeyPart> {
    let text = node.text()?;
    if text == "route" {
        return Some(KeyPart::Route);
    }
    names.identity(text).map(KeyPart::Identity).or_else(|| {
        let mut known = names.identity_names();
        known.push("route");
        node.refuse(unknown("identity", text, &known))
    })
}

/// What does not fit together in a policy that is right in each of its fields.
fn check(policy: &Policy, fields: &Fields<'_>, names: &Names<'_>) {
    let applies = |route: &Route| policy.routes.as_ref().is_none_or(|routes| routes.contains(route));
    let routes: Vec<Route> = names.limited().filter(applies).collect();
    let name = &policy.name;
    match (routes.is_empty(), fields.get("match")) {
        (true, Some(node)) => {
            node.refuse::<()>(format!(
                "no request is limited by the policy {name:?}: what it is for goes to route classes that are earlier in \
                 the list"
            ));
        }
        (true, None) => fields.warn(format!("every request is exempt, so the policy {name:?} limits none")),
        (false, _) => {}
    }
    if let Some(node) = fields.get("limit") {
        let limits = core::iter::once(&policy.limit)
            .chain(policy.plans.iter().flat_map(|plans| plans.allowances.iter().map(|(_, allowance)| allowance)));
        for limit in limits.filter_map(Allowance::limit) {
            check_costs(&node, limit.capacity(), &routes, names);
        }
        if policy.plans.is_none() && policy.limit == Allowance::Unlimited {
            node.warn(format!("the policy {name:?} limits nothing, and has no plans that would"));
        }
    }
    if let Scope::Global { on_failure: FailMode::Local(emergency) } = &policy.scope
        && let Some(node) = fields.get("on_failure")
    {
        check_costs(&node, emergency.capacity, &routes, names);
    }
}

/// A route class that costs more than the capacity could never be admitted.
fn check_costs(node: &Node<'_>, capacity: Tokens, routes: &[Route], names: &Names<'_>) {
    for (index, class) in names.routes.iter().enumerate() {
        if routes.contains(&Route::Listed(index)) && class.cost.most() > capacity {
            node.refuse::<()>(format!(
                "the capacity {} is below the cost {} of the route class {:?}, which could never be admitted",
                capacity.count(),
                class.cost.most().count(),
                class.name
            ));
        }
    }
}

/// What no policy or plan refers to, and what no policy limits.
pub(super) fn warn_of_idle(fields: &Fields<'_>, policies: &[Policy], names: &Names<'_>) {
    if let Some(node) = fields.get("identities") {
        for ((name, child), index) in node.entries().unwrap_or_default().iter().zip(0..) {
            let in_key = |policy: &Policy| policy.key.contains(&KeyPart::Identity(index));
            let names_plan =
                |policy: &Policy| policy.plans.as_ref().is_some_and(|plans| plans.by == PlanBy::Identity(index));
            if !policies.iter().any(|policy| in_key(policy) || names_plan(policy)) {
                child.warn(format!("no policy uses the identity {name:?}"));
            }
        }
    }
    if let Some(node) = fields.get("routes") {
        for (index, (class, child)) in names.routes.iter().zip(node.list().unwrap_or_default()).enumerate() {
            let applies =
                |policy: &Policy| policy.routes.as_ref().is_none_or(|routes| routes.contains(&Route::Listed(index)));
            if !class.exempt && !policies.iter().any(applies) {
                let name = &class.name;
                child.warn(format!("no policy is for the route class {name:?}, so its requests are not limited"));
            }
        }
    }
}
