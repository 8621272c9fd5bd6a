//! What a policy set makes of a request, for people and for programs. No value of the request is in it.

use super::request::{Name, Request, SOME_CLIENT};
use crate::check::Held;
use crate::check::meaning;
use serde::Serialize;
use std::fmt;
use tollgate_core::facts::{Attribute, Facts, Found, Header, MetadataOf, Source, Value};
use tollgate_core::policy::{
    Charge, CostRule, Enforcement, Identity, IdentityResult, KeyPart, Measure, Plan, PlanBy, Policy, PolicySet,
    Refusal, RefusalReason, Route, Scope,
};

/// All that there is to say of one request and one policy set.
#[derive(Serialize)]
pub struct Explanation {
    place: String,
    line: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// Several where servers may read the path in several ways.
    routes: Vec<String>,
    exempt: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<Cost>,
    identities: Vec<IdentityLine>,
    policies: Vec<PolicyLine>,
    outcome: String,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Cost {
    units: u64,
    why: String,
}

#[derive(Serialize)]
struct IdentityLine {
    name: String,
    /// As it is called in metrics.
    result: &'static str,
    /// In their order, up to the one that counts.
    sources: Vec<SourceLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
}

#[derive(Serialize)]
struct SourceLine {
    source: String,
    found: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
    /// What more is to be said.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

#[derive(Serialize)]
struct PolicyLine {
    name: String,
    effect: Effect,
    why: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
    buckets: Vec<Bucket>,
}

/// What a policy does with the request.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Effect {
    /// It asks a bucket, and rejects if that has too little.
    Charged,
    /// It asks a bucket, and counts what it would reject.
    Shadow,
    /// It rejects, whatever is in any bucket.
    Rejects,
    /// It would reject so, and only counts it.
    ShadowRejects,
    /// It would ask a bucket, but another policy rejects the request without that.
    NotAsked,
    /// It is for a share of keys, and which ones is not known here.
    Depends,
    /// It does not limit this request.
    None,
}

#[derive(Serialize)]
struct Bucket {
    digest: String,
    /// The hash key before this one gives another bucket, which is charged too.
    previous: bool,
    /// The route class whose bucket it is, where the request belongs to several that have one each.
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<String>,
    cost: u64,
    /// The key in Redis, of a bucket that the endpoint keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    redis: Option<String>,
}

impl Explanation {
    pub fn new(held: &Held, request: &Request) -> Self {
        let set = &held.set;
        let plan = set.plan(request);
        let view = View { held, set, request, plan: &plan, routes: set.route_classes(request) };
        let policies: Vec<PolicyLine> =
            set.policies().iter().enumerate().map(|(index, policy)| view.policy(index, policy)).collect();
        let dearest = plan.charges.iter().chain(&plan.shadows).max_by_key(|charge| charge.cost);
        let cost = dearest.map(|charge| view.cost(charge));
        Self {
            place: held.place.clone(),
            line: held.line,
            version: set.version.clone(),
            routes: view.routes.iter().map(|route| set.route_name(*route).into()).collect(),
            exempt: plan.exempt,
            cost,
            identities: plan.identities.iter().filter_map(|(index, result)| view.identity(*index, *result)).collect(),
            outcome: outcome(&plan, &policies),
            policies,
            notes: view.notes(),
        }
    }
}

struct View<'a> {
    held: &'a Held,
    set: &'a PolicySet,
    request: &'a Request,
    plan: &'a Plan,
    /// The strictest first, which is the plan's own.
    routes: Vec<Route>,
}

impl View<'_> {
    fn cost(&self, charge: &Charge) -> Cost {
        let why = match self.plan.route {
            _ if self.routes.len() > 1 => "the most that a route class of the request's asks for".into(),
            Route::Other => "no route class says otherwise".into(),
            Route::Listed(_) if self.plan.cost_made_up => {
                "the request has no number that could be used, so it is the route class's own".into()
            }
            Route::Listed(index) => match self.set.routes().get(index).map(|class| &class.cost) {
                Some(rule @ CostRule::Measured { .. }) => meaning::cost(rule),
                _ => "as the route class says".into(),
            },
        };
        Cost { units: charge.cost.count(), why }
    }

    fn identity(&self, index: usize, result: IdentityResult) -> Option<IdentityLine> {
        let identity = self.set.identities().get(index)?;
        let (_, value) = identity.find(self.request);
        let mut sources = Vec::new();
        for source in &identity.sources {
            let (line, ends) = self.source(identity, source);
            sources.push(line);
            if ends {
                break;
            }
        }
        let digest = value.and_then(|value| self.set.identity_digest(index, Some(&value)));
        Some(IdentityLine {
            name: identity.name.clone(),
            result: result.name(),
            sources,
            digest: digest.filter(|_| self.held.unset_hash_key.is_none()).map(|digest| digest.to_string()),
        })
    }

    /// What one source says, and whether those behind it are not asked.
    fn source(&self, identity: &Identity, source: &Source) -> (SourceLine, bool) {
        let name = meaning::source(source);
        let line = |found, kind, bytes, hint| SourceLine { source: name.clone(), found, kind, bytes, hint };
        match source.find(self.request) {
            Found::Absent => {
                let hint = match source {
                    Source::Attribute(attribute) => Some(Name::of(attribute).option()),
                    _ => None,
                };
                (line("absent", None, None, hint), false)
            }
            Found::Invalid => (line("invalid", None, None, None), false),
            Found::Ambiguous => (line("several values", None, None, None), true),
            Found::Short(value) => {
                let hint = "X-Forwarded-For is too short, so it is the address that Envoy trusts";
                (line("value", Some(kind(&value)), Some(value.bytes().len()), Some(hint.into())), true)
            }
            Found::Value(value) => {
                let (kind, bytes) = (Some(kind(&value)), Some(value.bytes().len()));
                let is_address = matches!(value, Value::Address(_));
                let matches = identity.pattern.as_ref().is_none_or(|pattern| pattern.matches(value.bytes()));
                if is_address || matches {
                    (line("value", kind, bytes, None), true)
                } else {
                    (line("invalid", kind, bytes, Some("it is not of the identity's pattern".into())), false)
                }
            }
        }
    }

    fn policy(&self, index: usize, policy: &Policy) -> PolicyLine {
        let charges: Vec<&Charge> =
            self.plan.charges.iter().chain(&self.plan.shadows).filter(|charge| charge.policy == index).collect();
        let (effect, why) = self.effect(index, policy);
        let plan = self.caller_plan(index, policy);
        let limit = charges.first().map(|charge| meaning::amount(&charge.limit));
        let buckets = match &self.held.unset_hash_key {
            None if effect == Effect::NotAsked => Vec::new(),
            None => charges.iter().enumerate().map(|(place, charge)| self.bucket(policy, charge, place)).collect(),
            Some(_) => Vec::new(),
        };
        PolicyLine { name: policy.name.clone(), effect, why, limit, plan, buckets }
    }

    fn is_unsure(&self, policy: &Policy) -> bool {
        self.held.unset_hash_key.is_some()
            && matches!(policy.enforce, Enforcement::Percent(percent) if (1..100).contains(&percent))
    }

    /// Of a request that is rejected as it stands only what is charged always is charged.
    fn is_not_asked(&self, policy: &Policy) -> bool {
        let rejects = |refusal: &Refusal| {
            refusal.enforced && self.set.policy(refusal.policy).is_some_and(|policy| !self.is_unsure(policy))
        };
        !matches!(policy.scope, Scope::Local { charge_always: true, .. }) && self.plan.refusals.iter().any(rejects)
    }

    fn effect(&self, index: usize, policy: &Policy) -> (Effect, String) {
        let plan = self.plan;
        let is_unsure = self.is_unsure(policy);
        let is = |effect| if is_unsure { Effect::Depends } else { effect };
        let share = match policy.enforce {
            Enforcement::On => "",
            Enforcement::Shadow => "; in shadow, so that is only counted",
            Enforcement::Percent(_) if is_unsure => "; for a share of keys, and which ones only the hash key tells",
            Enforcement::Percent(_) => "; enforced for a share of keys",
        };
        let (effect, why) = if plan.exempt {
            (Effect::None, "the route class is exempt".into())
        } else if plan.skipped.contains(&index) {
            (Effect::None, format!("the request has no {}, and on_missing is skip", self.missing(policy)))
        } else if let Some(refusal) = plan.refusals.iter().find(|refusal| refusal.policy == index) {
            let why = match refusal.reason {
                RefusalReason::IdentityMissing => {
                    format!("rejects with 403: the request has no {}{share}", self.missing(policy))
                }
                RefusalReason::Denies => format!("rejects with 429: the limit is deny{share}"),
            };
            (is(if refusal.enforced { Effect::Rejects } else { Effect::ShadowRejects }), why)
        } else if plan.charges.iter().any(|charge| charge.policy == index) && self.is_not_asked(policy) {
            (
                Effect::NotAsked,
                format!("would apply {}, and is not asked: another rejects the request", self.whose(policy)),
            )
        } else if plan.charges.iter().any(|charge| charge.policy == index) {
            (is(Effect::Charged), format!("applies {}{share}", self.whose(policy)))
        } else if plan.shadows.iter().any(|charge| charge.policy == index) {
            let others = match policy.enforce {
                Enforcement::Percent(_) if !is_unsure => "; enforced for other keys, and only counted for this one",
                _ => share,
            };
            (is(Effect::Shadow), format!("applies {}{others}", self.whose(policy)))
        } else if self.applying(policy).is_empty() {
            let names = policy.routes.iter().flatten().map(|route| self.set.route_name(*route));
            (Effect::None, format!("is for the route classes {} alone", names.collect::<Vec<&str>>().join(", ")))
        } else {
            (Effect::None, "is unlimited for this caller".into())
        };
        if self.plan.unknown_plans.contains(&index) {
            return (
                effect,
                format!("{why}; the request names a plan that is not known, so the limit is that without"),
            );
        }
        (effect, why)
    }

    /// The request's route classes that a policy is for.
    fn applying(&self, policy: &Policy) -> Vec<Route> {
        let is_for = |route: &&Route| policy.routes.as_ref().is_none_or(|routes| routes.contains(*route));
        self.routes.iter().filter(is_for).copied().collect()
    }

    /// The bucket of the policy's charge at this place: for each class that has one, that of the hash key, then that of
    /// the one before.
    fn bucket(&self, policy: &Policy, charge: &Charge, place: usize) -> Bucket {
        let keys = if self.set.has_previous_hash_key() { 2 } else { 1 };
        let applying = self.applying(policy);
        let route = applying.get(place / keys).filter(|_| applying.len() > 1 && policy.key.contains(&KeyPart::Route));
        let redis = matches!(policy.scope, Scope::Global { .. })
            .then(|| format!("tollgate:{{{}}}:{}:{}", charge.group, policy.name, charge.key));
        Bucket {
            digest: charge.key.to_string(),
            previous: place % keys == 1,
            route: route.map(|route| self.set.route_name(*route).into()),
            cost: charge.cost.count(),
            redis,
        }
    }

    /// The identities of a policy's key that the request lacks.
    fn missing(&self, policy: &Policy) -> String {
        self.lacking(policy).join(" and no ")
    }

    fn lacking(&self, policy: &Policy) -> Vec<&str> {
        let lacks = |part: &KeyPart| match part {
            KeyPart::Identity(index) => {
                let identity = self.set.identities().get(*index)?;
                identity.find(self.request).1.is_none().then_some(identity.name.as_str())
            }
            KeyPart::Route => None,
        };
        policy.key.iter().filter_map(lacks).collect()
    }

    /// `to this tenant and route class`
    fn whose(&self, policy: &Policy) -> String {
        let lacking = self.lacking(policy);
        let part = |part: &KeyPart| match part {
            KeyPart::Identity(index) => {
                let name = self.set.identities().get(*index).map_or("", |identity| identity.name.as_str());
                if lacking.contains(&name) { format!("all who have no {name}") } else { format!("this {name}") }
            }
            KeyPart::Route => {
                let names: Vec<&str> = self.applying(policy).iter().map(|route| self.set.route_name(*route)).collect();
                format!("the route class {}", names.join(" and "))
            }
        };
        let parts: Vec<String> = policy.key.iter().map(part).collect();
        if parts.is_empty() { "to all requests together".into() } else { format!("to {}", parts.join(", ")) }
    }

    /// The plan that the request has, where the policy knows it: its name is the policy's own then.
    fn caller_plan(&self, index: usize, policy: &Policy) -> Option<String> {
        let plans = policy.plans.as_ref()?;
        if self.plan.unknown_plans.contains(&index) {
            return None;
        }
        let value = match &plans.by {
            PlanBy::Identity(identity) => self.set.identities().get(*identity)?.find(self.request).1?,
            PlanBy::Source(source) => match source.find(self.request) {
                Found::Value(value) => value,
                _ => return None,
            },
        };
        let known = plans.allowances.iter().find(|(name, _)| name.as_bytes() == value.bytes());
        known.map(|(name, _)| name.clone())
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(name) = &self.held.unset_hash_key {
            notes.push(format!("{name} is not set here: set it to the proxies' own to see digests"));
        }
        let looked_for = |is: fn(&Source) -> bool| {
            let identities = self.plan.identities.iter().filter_map(|(index, _)| self.set.identities().get(*index));
            identities.flat_map(|identity| &identity.sources).any(is)
        };
        let is_short = self.plan.identities.iter().any(|(_, result)| *result == IdentityResult::XffShort);
        let is_envoys = |source: &Source| matches!(source, Source::ClientAddress { trusted_hops: 0, .. });
        if self.request.client.is_none() && (is_short || looked_for(is_envoys)) {
            notes.push(format!("without --client the client's address is taken to be {SOME_CLIENT}"));
        }
        if looked_for(|source| matches!(source, Source::ClientAddress { trusted_hops: 1.., .. })) {
            notes.push(
                "x-forwarded-for is taken as the filter sees it: with use_remote_address Envoy has added to it the \
                 address of whoever connects"
                    .into(),
            );
        }
        let measures_body = |route: &Route| match route {
            Route::Listed(index) => {
                let cost = self.set.routes().get(*index).map(|class| &class.cost);
                matches!(cost, Some(CostRule::Measured { from: Measure::ContentLength, .. }))
            }
            Route::Other => false,
        };
        if self.routes.iter().any(measures_body) && self.request.content_length() == Header::Absent {
            notes.push("the length of the body is not known here: give it with -H 'content-length: …'".into());
        }
        for given in self.request.given.iter().filter(|given| !given.is_asked_for()) {
            notes.push(format!("nothing asks for what {} gives", given.from));
        }
        notes
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Text(_) => "text",
        Value::Address(bytes) if bytes.len() == 4 => "IPv4 address",
        Value::Address(_) => "IPv6 address or prefix",
        Value::Attribute(Attribute::Metadata { of: MetadataOf::Request, .. }, _) => "metadata",
        Value::Attribute(..) => "fact of Envoy's",
        Value::Literal(_) => "literal",
    }
}

fn outcome(plan: &Plan, policies: &[PolicyLine]) -> String {
    let those = |effect: Effect| {
        let names: Vec<&str> =
            policies.iter().filter(|line| line.effect == effect).map(|line| line.name.as_str()).collect();
        names.join(", ")
    };
    let refused = |reason: RefusalReason| {
        let of_reason = |refusal: &&Refusal| refusal.reason == reason && refusal.enforced;
        let names: Vec<&str> = plan
            .refusals
            .iter()
            .filter(of_reason)
            .filter_map(|refusal| policies.get(refusal.policy))
            .filter(|line| line.effect == Effect::Rejects)
            .map(|line| line.name.as_str())
            .collect();
        names.join(", ")
    };
    if plan.exempt {
        return "admitted: the route class is exempt".into();
    }
    for (reason, status) in [(RefusalReason::IdentityMissing, 403), (RefusalReason::Denies, 429)] {
        let names = refused(reason);
        if !names.is_empty() {
            return format!("rejected with {status} by {names}");
        }
    }
    let (charged, unsure) = (those(Effect::Charged), those(Effect::Depends));
    let but = if unsure.is_empty() { String::new() } else { format!("; and if {unsure} agrees, where it is enforced") };
    if charged.is_empty() {
        return format!("admitted{but}");
    }
    format!("admitted if there is enough left in {charged}{but}; else rejected with 429")
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let readings = if self.routes.len() > 1 { " (it can be read in several ways)" } else { "" };
        let exempt = if self.exempt { ", exempt" } else { "" };
        writeln!(f, "  route class: {}{exempt}{readings}", self.routes.join(" and "))?;
        if let Some(cost) = &self.cost {
            writeln!(f, "  cost: {} ({})", cost.units, cost.why)?;
        }
        for identity in &self.identities {
            writeln!(f, "  identity {}: {}", identity.name, identity.result)?;
            for source in &identity.sources {
                writeln!(f, "    {source}")?;
            }
            if let Some(digest) = &identity.digest {
                writeln!(f, "    digest {digest}")?;
            }
        }
        for policy in &self.policies {
            writeln!(f, "  policy {}: {}", policy.name, policy.why)?;
            if let Some(limit) = &policy.limit {
                let plan = policy.plan.as_ref().map_or_else(String::new, |plan| format!("plan {plan}: "));
                writeln!(f, "    {plan}{limit}")?;
            }
            for bucket in &policy.buckets {
                let which = if bucket.previous { "bucket by the previous hash key" } else { "bucket" };
                let of_route = bucket.route.as_ref();
                let of_route = of_route
                    .map_or_else(String::new, |route| format!(" of route class {route}, cost {},", bucket.cost));
                let redis = bucket.redis.as_ref().map_or_else(String::new, |key| format!(", in Redis {key}"));
                writeln!(f, "    {which}{of_route} {}{redis}", bucket.digest)?;
            }
        }
        writeln!(f, "  outcome: {}", self.outcome)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "  note: {note}"))
    }
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.source, self.found)?;
        if let (Some(kind), Some(bytes)) = (self.kind, self.bytes) {
            write!(f, ", {kind} of {bytes} {}", if bytes == 1 { "byte" } else { "bytes" })?;
        }
        match &self.hint {
            Some(hint) if self.found == "absent" => write!(f, " ({hint} would give it)"),
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}
