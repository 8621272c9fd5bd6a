//! Policies: their fields, and whether they fit the identities and the route classes.

use super::all;
use super::identity::source;
use super::limit::{EXAMPLE, allowance, token_bucket_limit};
use crate::key::HashKey;
use crate::limit::{Gcra, Limit, TokenBucket};
use crate::policy::bounds::{MAX_PLANS, MAX_POLICIES, MAX_ROUTES};
use crate::policy::budget::overflow;
use crate::policy::node::{Fields, Node, unknown};
use crate::policy::{
    Allowance, Enforcement, FailMode, Identity, KeyPart, Mode, OnMissing, PlanBy, Plans, Policy, Route, RouteClass,
    Scope, Sharing,
};
use crate::units::Tokens;

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

/// The policies that are right, and whether any, right or not, is of scope global.
pub(super) fn policies(node: &Node<'_>, names: &Names<'_>, hash_key: &HashKey) -> (Vec<Policy>, bool) {
    let list = node.filled_list(MAX_POLICIES).unwrap_or_default();
    let mut taken: Vec<&str> = Vec::new();
    let policies = list.iter().filter_map(|node| policy(node, &mut taken, names, hash_key)).collect();
    let is_global = |node: &Node<'_>| node.peek("scope").is_some_and(|scope| scope.as_word() == Some("global"));
    (policies, list.iter().any(is_global))
}

const POLICY_FIELDS: &[&str] = &[
    "name",
    "scope",
    "mode",
    "lost_state",
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

fn policy<'a>(node: &Node<'a>, taken: &mut Vec<&'a str>, names: &Names<'_>, hash_key: &HashKey) -> Option<Policy> {
    let fields = node.fields(POLICY_FIELDS)?;
    let name = fields.required("name", "what the budget is called").and_then(|node| {
        let name = node.name()?;
        if taken.contains(&name) {
            return node.refuse(format!("the name {name:?} is taken by an earlier policy"));
        }
        taken.push(name);
        Some(name)
    });
    let routes = fields.optional("match", |node| match_routes(node, names));
    let key = match fields.get("key") {
        None => Some(Vec::new()),
        Some(node) => node.list().and_then(|list| all(&list, |node| key_part(node, names))),
    };
    let place = place(&fields);
    let limit_node = fields.required("limit", &format!("such as {EXAMPLE}"));
    // Which limits there can be depends on the place.
    let is_local = place == Some(Place::Local);
    let limit = limit_node.and_then(|node| allowance(&node, is_local));
    let plans = fields.optional("plans", |node| plans(node, names, limit, is_local));
    let scope = scope(&fields, place, limits(limit.as_ref(), plans.as_ref()).all(|limit| limit.is_token_bucket()));
    let on_missing = on_missing(&fields, key.as_deref());
    let enforce = fields.get("enforce").map_or(Some(Enforcement::On), |node| enforcement(&node));
    let parts = Parts { name, routes: routes.as_ref(), limit, plans: plans.as_ref(), scope: scope.as_ref() };
    check(&fields, names, &parts);
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
    Some(policy)
}

/// Those parts of a policy that are right by themselves.
struct Parts<'a> {
    name: Option<&'a str>,
    routes: Option<&'a Option<Vec<Route>>>,
    limit: Option<Allowance>,
    plans: Option<&'a Option<Plans>>,
    scope: Option<&'a Scope>,
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
        (_, Some(_)) => node.percentage().map(Enforcement::Percent),
        _ => node.refuse(format!("{FORM}; {}", unknown("value", text, &["on", "shadow"]))),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Local,
    Global,
}

impl Place {
    const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Global => "global",
        }
    }
}

fn place(fields: &Fields<'_>) -> Option<Place> {
    fields
        .required("scope", "local (in this proxy) or global (over all proxies)")?
        .word(&[("local", Place::Local), ("global", Place::Global)])
}

/// Without a place, what belongs to either is read: it can be wrong as well. Token buckets are leased where nothing else
/// is said.
fn scope(fields: &Fields<'_>, place: Option<Place>, are_token_buckets: bool) -> Option<Scope> {
    let of = |owner: Place, name: &str| {
        let node = fields.get(name)?;
        if place.is_some_and(|place| place != owner) {
            return node.refuse(format!("is for policies of scope {}", owner.name()));
        }
        Some(node)
    };
    let sharing =
        fields.get("sharing").map(|node| node.word(&[("proxy", Sharing::Proxy), ("worker", Sharing::Worker)]));
    let charge_always =
        of(Place::Local, "charge").map_or(Some(false), |node| node.word(&[("admitted", false), ("always", true)]));
    let leases = of(Place::Global, "mode")
        .map_or(Some(are_token_buckets), |node| node.word(&[("exact", false), ("leased", true)]));
    let learn = of(Place::Global, "lost_state").map(|node| node.word(&[("learn", true), ("full", false)]));
    if let (Some(node), Some(Place::Global), Some(false)) = (fields.get("sharing"), place, leases) {
        node.refuse::<()>("is for policies of scope local, and for those of mode leased");
    }
    let on_failure = of(Place::Global, "on_failure").map(|node| fail_mode(&node));
    match place? {
        Place::Local => {
            Some(Scope::Local { sharing: sharing.unwrap_or(Some(Sharing::Proxy))?, charge_always: charge_always? })
        }
        Place::Global => match on_failure {
            Some(on_failure) => {
                let sharing = sharing.unwrap_or(Some(Sharing::Worker))?;
                let leases = leases?;
                let mode = if leases { Mode::Leased(sharing) } else { Mode::Exact };
                Some(Scope::Global { mode, learn: learn.unwrap_or(Some(leases))?, on_failure: on_failure? })
            }
            None => {
                let purpose = "what happens when the endpoint cannot say: open (admit), closed (503), or {local: \
                               {token_bucket: …}} (an emergency budget in each proxy)";
                fields.required("on_failure", purpose).and(None)
            }
        },
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
    let (by, plans): (Vec<_>, Vec<_>) = node.entries()?.into_iter().partition(|(name, _)| *name == "by");
    let by = match by.first() {
        Some((_, node)) => plan_by(node, names),
        None => node.refuse("lacks `by`: what names the plan, an identity or a source such as {header: x-plan}"),
    };
    if plans.is_empty() {
        node.refuse::<()>("lacks plans: each is a name and a limit, such as gold: {token_bucket: …}");
    }
    if plans.len() > MAX_PLANS {
        node.refuse::<()>(format!("must have at most {MAX_PLANS} plans, has {}", plans.len()));
    }
    let mut first = limit.and_then(|limit| limit.limit());
    let mut allowances: Vec<(String, Allowance)> = Vec::new();
    for (name, node) in plans {
        let Some(one) = allowance(&node, is_local) else { continue };
        if let Some(its) = one.limit()
            && let Some(reason) = cannot_share(first.get_or_insert(its), &its)
        {
            node.refuse::<()>(reason);
        }
        allowances.push((name.into(), one));
    }
    Some(Plans { by: by?, allowances })
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
                format!(
                    "the gcras of one policy take equally long to earn their bursts (burst / rate), or {MORE}; \
                     token_buckets need not"
                )
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
    all(&list, |node| match_route(node, names))
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

/// All limits that a policy has, as far as they are right.
fn limits<'a>(limit: Option<&'a Allowance>, plans: Option<&'a Option<Plans>>) -> impl Iterator<Item = Limit> + 'a {
    let plans = plans.into_iter().flatten().flat_map(|plans| plans.allowances.iter().map(|(_, limit)| limit));
    limit.into_iter().chain(plans).filter_map(Allowance::limit)
}

/// What does not fit together in a policy, as far as its fields are right.
fn check(fields: &Fields<'_>, names: &Names<'_>, parts: &Parts<'_>) {
    let name = parts.name.unwrap_or("?");
    if let (Some(node), Some(Allowance::Unlimited), Some(None)) = (fields.get("limit"), parts.limit, parts.plans) {
        node.warn(format!("the policy {name:?} limits nothing, and has no plans that would"));
    }
    if let Some(limit) = limits(parts.limit.as_ref(), parts.plans).find(|limit| !limit.is_token_bucket()) {
        let algorithm = limit.algorithm();
        if let (Some(node), Some(Scope::Global { mode: Mode::Leased(_), .. })) = (fields.get("mode"), parts.scope) {
            node.refuse::<()>(format!("leased is for token_buckets, and the limit is a {algorithm}: write exact"));
        }
        if let Some(node) = fields.get("lost_state") {
            node.refuse::<()>(format!("is for token_buckets, and the limit is a {algorithm}"));
        }
    }
    let Some(routes) = parts.routes else { return };
    let applies = |route: &Route| routes.as_ref().is_none_or(|routes| routes.contains(route));
    let limited: Vec<Route> = names.limited().filter(applies).collect();
    match (limited.is_empty(), fields.get("match")) {
        (true, Some(node)) => {
            node.refuse::<()>(format!(
                "no request is limited by the policy {name:?}: what it is for goes to route classes that are earlier in \
                 the list"
            ));
        }
        (true, None) => fields.warn(format!("every request is exempt, so the policy {name:?} limits none")),
        (false, _) => {}
    }
    if let (Some(node), Some(Allowance::Limit(limit))) = (fields.get("limit"), parts.limit) {
        check_costs(&node, limit.capacity(), &limited, names);
    }
    if let (Some(node), Some(Some(plans))) = (fields.get("plans"), parts.plans) {
        for (name, allowance) in &plans.allowances {
            if let (Some(node), Some(limit)) = (node.peek(name), allowance.limit()) {
                check_costs(&node, limit.capacity(), &limited, names);
            }
        }
    }
    if let (Some(node), Some(Scope::Global { on_failure: FailMode::Local(emergency), .. })) =
        (fields.get("on_failure"), parts.scope)
    {
        check_costs(&node, emergency.capacity, &limited, names);
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
        for (index, Identity { name, .. }) in names.identities.iter().enumerate() {
            let in_key = |policy: &Policy| policy.key.contains(&KeyPart::Identity(index));
            let names_plan =
                |policy: &Policy| policy.plans.as_ref().is_some_and(|plans| plans.by == PlanBy::Identity(index));
            if let Some(child) = node.peek(name)
                && !policies.iter().any(|policy| in_key(policy) || names_plan(policy))
            {
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
