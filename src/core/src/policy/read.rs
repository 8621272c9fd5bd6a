//! From a [`Tree`] to a [`PolicySet`]: every field, its bounds, and what fits together.

use super::node::{Fields, Issues, NAME_RULE, Node, PolicyErrors, is_name, unknown};
use super::{
    AuthToken, Endpoint, FailMode, Identity, KeyPart, MAX_TIMEOUT, OnMissing, Policy, PolicySet, Route, RouteClass,
    Scope, Sharing,
};
use crate::facts::Source;
use crate::key::HashKey;
use crate::limit::{
    CalendarUnit, CalendarWindow, FixedWindow, Gcra, Limit, MAX_LOG, SlidingLog, SlidingWindow, TokenBucket, Window,
    ZoneName,
};
use crate::path::Template;
use crate::tree::Tree;
use crate::units::{MAX_PERIOD, MAX_TOKENS, Micros, RefillRate, Tokens};

/// Bounds on the size of a configuration, so that no request's work grows without one.
const MAX_IDENTITIES: usize = 32;
const MAX_SOURCES: usize = 16;
const MAX_ROUTES: usize = 1024;
const MAX_POLICIES: usize = 64;

/// Fewer bytes than this can be guessed.
const MIN_SECRET: usize = 16;

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(super) fn policy_set(bytes: &[u8], env: Env<'_>) -> Result<PolicySet, PolicyErrors> {
    let tree = Tree::read(bytes).map_err(PolicyErrors::whole)?;
    let issues = Issues::default();
    let set = Node::root(&tree, &issues)
        .fields(&["version", "hash_key", "endpoint", "identities", "routes", "policies"])
        .and_then(|fields| read_set(&fields, env));
    let issues = issues.into_inner();
    match set {
        Some(set) if issues.is_empty() => Ok(set),
        _ if issues.is_empty() => Err(PolicyErrors::whole("the configuration cannot be used".into())),
        _ => Err(PolicyErrors::new(issues)),
    }
}

/// Reads all parts, even when one is wrong, so that all errors are found.
fn read_set(fields: &Fields<'_>, env: Env<'_>) -> Option<PolicySet> {
    let version = fields.get("version").and_then(|node| node.text()).map(String::from);
    let secret = fields.get("hash_key").map(|node| hash_key(&node, env));
    let endpoint = fields.get("endpoint").map(|node| endpoint(&node, env));
    let identities = fields.get("identities").map_or_else(Vec::new, |node| identities(&node));
    let routes = fields.get("routes").map_or_else(Vec::new, |node| routes(&node));
    let hash_key = match &secret {
        Some(secret) => secret.clone(),
        None if identities.is_empty() => Some(HashKey::new(b"")),
        None => fields.refuse(
            "lacks `hash_key`: identities leave the proxy only as keyed hashes; \
             write {env: TOLLGATE_HASH_KEY}, with the same secret for every proxy",
        ),
    };
    let policies = fields.required("policies", "a list of budgets").map_or_else(Vec::new, |node| {
        let names = Names { identities: &identities, routes: &routes };
        policies(&node, &names, hash_key.as_ref().unwrap_or(&HashKey::new(b"")))
    });
    if endpoint.is_none() && policies.iter().any(|policy| matches!(policy.scope, Scope::Global { .. })) {
        fields.refuse::<()>("lacks `endpoint`: a policy of scope global needs {cluster: …}, an Envoy cluster");
    }
    Some(PolicySet { version, endpoint: endpoint.flatten(), hash_key: hash_key?, identities, routes, policies })
}

fn hash_key(node: &Node<'_>, env: Env<'_>) -> Option<HashKey> {
    secret(node, env).map(|(secret, _)| HashKey::new(secret.as_bytes()))
}

/// A secret from the environment or as it stands, and where it stands.
fn secret<'a>(node: &Node<'a>, env: Env<'_>) -> Option<(String, Node<'a>)> {
    let (kind, value) = node.choice(&["env", "value"], "{env: TOLLGATE_HASH_KEY}")?;
    let text = value.text()?;
    let secret = if kind == "env" {
        match env(text) {
            Some(secret) => secret,
            None => {
                return value.refuse(format!(
                    "the environment variable {text} is not set; Envoy passes on only those listed in \
                     vm_config.environment_variables.host_env_keys"
                ));
            }
        }
    } else {
        text.into()
    };
    if secret.len() < MIN_SECRET {
        return value.refuse(format!("the secret must have at least {MIN_SECRET} bytes, has {}", secret.len()));
    }
    Some((secret, value))
}

fn endpoint(node: &Node<'_>, env: Env<'_>) -> Option<Endpoint> {
    let fields = node.fields(&["cluster", "timeout", "auth_token", "max_in_flight"])?;
    let cluster = fields.required("cluster", "the name of an Envoy cluster").and_then(|node| {
        let name = node.text()?;
        if name.is_empty() { node.refuse("must not be empty") } else { Some(String::from(name)) }
    });
    // Envoy takes a timeout under 1 ms for none at all.
    let timeout = fields
        .get("timeout")
        .map_or(Some(Micros::from_millis(50)), |node| node.duration(Micros::from_millis(1), MAX_TIMEOUT));
    let max_in_flight = fields.get("max_in_flight").map_or(Some(256), |node| node.whole(1, 65_536));
    let auth_token = match fields.get("auth_token") {
        None => Some(None),
        Some(node) => auth_token(&node, env).map(Some),
    };
    Some(Endpoint {
        cluster: cluster?,
        timeout: timeout?,
        auth_token: auth_token?,
        max_in_flight: u32::try_from(max_in_flight?).ok()?,
    })
}

/// A bearer token, as a header can carry it (RFC 6750 §2.1).
fn auth_token(node: &Node<'_>, env: Env<'_>) -> Option<AuthToken> {
    let (secret, value) = secret(node, env)?;
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b);
    if !secret.bytes().all(legal) {
        return value.refuse("a bearer token has letters, digits and -._~+/= alone");
    }
    Some(AuthToken(format!("Bearer {secret}")))
}

fn identities(node: &Node<'_>) -> Vec<Identity> {
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
    let sources = node
        .fields(&["sources"])
        .and_then(|fields| fields.required("sources", "a list such as [{header: x-api-key}]"))
        .and_then(|node| node.filled_list(MAX_SOURCES))
        .unwrap_or_default();
    Some(Identity { name: name.into(), sources: without_repeats(&sources, source) })
}

fn source(node: &Node<'_>) -> Option<Source> {
    let (kind, value) = node.choice(&["header", "client_address"], "{header: x-api-key} or {client_address: {}}")?;
    if kind == "header" {
        let name = value.text()?;
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if name.is_empty() || name.len() > 256 || !name.bytes().all(token) {
            return value.refuse(format!("{name:?} is not a header name"));
        }
        return Some(Source::Header(name.to_ascii_lowercase()));
    }
    let fields = value.fields(&["ipv6_prefix"])?;
    let ipv6_prefix = fields.get("ipv6_prefix").map_or(Some(64), |node| node.whole(1, 128))?;
    Some(Source::ClientAddress { ipv6_prefix: u8::try_from(ipv6_prefix).ok()? })
}

fn routes(node: &Node<'_>) -> Vec<RouteClass> {
    let mut classes: Vec<RouteClass> = Vec::new();
    for node in node.list().unwrap_or_default() {
        if classes.len() == MAX_ROUTES {
            node.refuse::<()>(format!("there can be at most {MAX_ROUTES} route classes"));
            break;
        }
        if let Some(class) = route(&node, &classes) {
            if let Some(first) = classes.iter().find(|first| first.takes_all_of(&class)) {
                let (name, first) = (&class.name, &first.name);
                node.refuse::<()>(format!(
                    "no request reaches the route class {name:?}: {first:?} before it takes all that it matches"
                ));
            }
            classes.push(class);
        }
    }
    classes
}

fn route(node: &Node<'_>, earlier: &[RouteClass]) -> Option<RouteClass> {
    let fields = node.fields(&["name", "methods", "path", "exempt", "cost"])?;
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
    let methods = match fields.get("methods") {
        None => Some(None),
        Some(node) => node.filled_list(32).map(|list| Some(without_repeats(&list, method))),
    };
    let template = fields
        .required("path", "a template such as \"/v1/reports/{id}\"")
        .and_then(|node| Template::new(node.text()?).or_else(|error| node.refuse(error).ok_or(())).ok());
    let exempt = fields.get("exempt").map_or(Some(false), |node| node.boolean());
    let cost = fields.get("cost").map_or(Some(Tokens::ONE), |node| tokens(&node));
    if let (Some(true), Some(node)) = (exempt, fields.get("cost")) {
        node.refuse::<()>("an exempt route class costs nothing: leave one of the two out");
    }
    // As with identities: a class that is otherwise wrong keeps its name for those who refer to it.
    Some(RouteClass {
        name: name?.into(),
        methods: methods.unwrap_or_default(),
        template: template.unwrap_or_default(),
        exempt: exempt.unwrap_or_default(),
        cost: cost.unwrap_or(Tokens::ONE),
    })
}

/// What each item reads as. One that is there already is refused.
fn without_repeats<T: PartialEq>(list: &[Node<'_>], read: impl Fn(&Node<'_>) -> Option<T>) -> Vec<T> {
    let mut known = Vec::new();
    for node in list {
        let Some(item) = read(node) else { continue };
        if known.contains(&item) {
            node.refuse::<()>("is in the list already");
        }
        known.push(item);
    }
    known
}

fn method(node: &Node<'_>) -> Option<String> {
    let text = node.text()?;
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_uppercase() || b == b'-') {
        return node.refuse(format!("{text:?} is not a method: methods are written in capitals, such as GET"));
    }
    Some(text.into())
}

/// What the policies may refer to.
struct Names<'a> {
    identities: &'a [Identity],
    routes: &'a [RouteClass],
}

fn policies(node: &Node<'_>, names: &Names<'_>, hash_key: &HashKey) -> Vec<Policy> {
    let mut policies: Vec<Policy> = Vec::new();
    for node in node.filled_list(MAX_POLICIES).unwrap_or_default() {
        if let Some(policy) = policy(&node, &policies, names, hash_key) {
            policies.push(policy);
        }
    }
    policies
}

const POLICY_FIELDS: &[&str] =
    &["name", "scope", "mode", "sharing", "match", "key", "limit", "charge", "on_missing", "on_failure"];

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
    let limit_node = fields.required("limit", "such as {token_bucket: {capacity: 20, refill: 5/s}}");
    let scope = scope(&fields, limit_node.as_ref());
    let has_identity = |key: &Vec<KeyPart>| key.iter().any(|part| *part != KeyPart::Route);
    if let (Some(node), Some(false)) = (fields.get("on_missing"), key.as_ref().map(has_identity)) {
        node.refuse::<()>("is for policies with an identity in their key");
    }
    let on_missing = fields.get("on_missing").map_or(Some(OnMissing::Anonymous), |node| {
        node.word(&[("anonymous", OnMissing::Anonymous), ("skip", OnMissing::Skip)])
    });
    if let (Some(routes), Some(node), Some(scope)) = (&routes, &limit_node, &scope) {
        check_costs(node, scope.limit().capacity(), routes.as_deref(), names);
        if let Scope::Global { on_failure: FailMode::Local(emergency), .. } = scope
            && let Some(node) = fields.get("on_failure")
        {
            check_costs(&node, emergency.capacity, routes.as_deref(), names);
        }
    }
    let mut overflow = hash_key.digest("overflow");
    overflow.part(name?.as_bytes());
    Some(Policy {
        name: name?.into(),
        scope: scope?,
        key: key?,
        on_missing: on_missing?,
        routes: routes?,
        overflow: overflow.finish(),
    })
}

#[derive(Clone, Copy)]
enum Place {
    Local,
    Global,
}

fn scope(fields: &Fields<'_>, limit_node: Option<&Node<'_>>) -> Option<Scope> {
    let place = fields
        .required("scope", "local (in this proxy) or global (over all proxies)")?
        .word(&[("local", Place::Local), ("global", Place::Global)])?;
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
            let limit = limit_node.and_then(|node| token_bucket_limit(node, "a policy of scope local"));
            Some(Scope::Local { limit: limit?, sharing: sharing?, charge_always: charge_always? })
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
            let limit = limit_node.and_then(limit);
            Some(Scope::Global { limit: limit?, on_failure: on_failure? })
        }
    }
}

fn fail_mode(node: &Node<'_>) -> Option<FailMode> {
    if node.as_word().is_some() {
        return match node.as_word() {
            Some("open") => Some(FailMode::Open),
            Some("closed") => Some(FailMode::Closed),
            Some("local") => {
                node.refuse("local needs its budget: {local: {token_bucket: {capacity: 20, refill: 5/s}}}")
            }
            Some(other) => node.refuse(unknown("fail mode", other, &["open", "closed", "local"])),
            None => None,
        };
    }
    let (_, value) = node.choice(&["local"], "{local: {token_bucket: {capacity: 20, refill: 5/s}}}")?;
    token_bucket_limit(&value, "an emergency budget").map(FailMode::Local)
}

/// A limit that a proxy keeps by itself.
fn token_bucket_limit(node: &Node<'_>, whose: &str) -> Option<TokenBucket> {
    match limit(node)? {
        Limit::TokenBucket(limit) => Some(limit),
        other => node.refuse(format!("{whose} has a token_bucket; a {} is kept by the endpoint", other.algorithm())),
    }
}

fn limit(node: &Node<'_>) -> Option<Limit> {
    const ALGORITHMS: &[&str] = &["token_bucket", "gcra", "fixed_window", "sliding_window", "sliding_log"];
    let (algorithm, value) = node.choice(ALGORITHMS, "{token_bucket: {capacity: 20, refill: 5/s}}")?;
    match algorithm {
        "token_bucket" => {
            let fields = value.fields_but(&["capacity", "refill"], CALENDAR_FIELDS)?;
            let (capacity, refill) = (capacity(&fields, MAX_TOKENS), rate(&fields, "refill"));
            Some(Limit::TokenBucket(TokenBucket { capacity: capacity?, refill: refill? }))
        }
        "gcra" => {
            let fields = value.fields_but(&["burst", "rate"], CALENDAR_FIELDS)?;
            let burst = fields.required("burst", "the most units at once").and_then(|node| tokens(&node));
            let rate = rate(&fields, "rate");
            Some(Limit::Gcra(Gcra { burst: burst?, rate: rate? }))
        }
        "fixed_window" => {
            let fields = value.fields(&["capacity", "window", "time_zone"])?;
            let (capacity, window) = (capacity(&fields, MAX_TOKENS), fixed_window(&fields));
            Some(Limit::FixedWindow(FixedWindow { capacity: capacity?, window: window? }))
        }
        _ => {
            let fields = value.fields_but(&["capacity", "window"], CALENDAR_FIELDS)?;
            let most = if algorithm == "sliding_log" { MAX_LOG } else { MAX_TOKENS };
            let capacity = capacity(&fields, most);
            let window = fields.required("window", "how long a window is, such as 1m").and_then(|node| {
                match calendar_unit(&node) {
                    Some(_) => node.refuse(format!("{CALENDAR_ONLY}: write a span such as 1h")),
                    None => span(&node),
                }
            });
            let (capacity, window) = (capacity?, window?);
            Some(if algorithm == "sliding_window" {
                Limit::SlidingWindow(SlidingWindow { capacity, window })
            } else {
                Limit::SlidingLog(SlidingLog { capacity, window })
            })
        }
    }
}

const CALENDAR_ONLY: &str = "only fixed_window has calendar windows";

/// What somebody writes who wants a calendar window of an algorithm that has none.
const CALENDAR_FIELDS: &[(&str, &str)] = &[("window", CALENDAR_ONLY), ("time_zone", CALENDAR_ONLY)];

/// A span, or a word for a unit of the calendar in some time zone.
fn fixed_window(fields: &Fields<'_>) -> Option<Window> {
    let zone = match fields.get("time_zone") {
        None => Some(ZoneName::default()),
        Some(node) => node.text().and_then(|text| ZoneName::new(text).or_else(|| node.refuse(ZoneName::refusal(text)))),
    };
    let node = fields.required("window", "a span such as 1m, or one of the words minute, hour, day and month")?;
    if let Some(unit) = calendar_unit(&node) {
        return Some(Window::Calendar(CalendarWindow::new(unit, zone?)));
    }
    // Not a span either, if it does not begin like one.
    if let Some(text) = node.as_word().filter(|text| !text.starts_with(|first: char| first.is_ascii_digit())) {
        let [minute, hour, day, month] = CalendarUnit::WORDS.map(|(word, _)| word);
        return node.refuse(unknown("window", text, &[minute, hour, day, month, "spans such as 1h"]));
    }
    if let Some(node) = fields.get("time_zone") {
        node.refuse::<()>(
            "is for the windows minute, hour, day and month: a span begins at multiples of its length since 1970, \
             the same in every zone",
        );
    }
    span(&node).map(Window::Span)
}

fn calendar_unit(node: &Node<'_>) -> Option<CalendarUnit> {
    let text = node.as_word()?;
    CalendarUnit::WORDS.iter().find(|(word, _)| *word == text).map(|(_, unit)| *unit)
}

fn span(node: &Node<'_>) -> Option<Micros> {
    node.duration(Micros::from_millis(1), Micros::new(MAX_PERIOD))
}

fn capacity(fields: &Fields<'_>, most: u64) -> Option<Tokens> {
    fields.required("capacity", "the most units at once").and_then(|node| node.whole(1, most)).and_then(Tokens::new)
}

fn rate(fields: &Fields<'_>, name: &str) -> Option<RefillRate> {
    fields.required(name, "how fast units come back, such as 5/s").and_then(|node| refill(&node))
}

fn tokens(node: &Node<'_>) -> Option<Tokens> {
    node.whole(1, MAX_TOKENS).and_then(Tokens::new)
}

/// `count/period`, where a period is a unit or a number with a unit: `5/s`, `1/30d`, `100/10s`.
fn refill(node: &Node<'_>) -> Option<RefillRate> {
    const FORM: &str = "write units per time, such as 5/s, 100/min or 1/30d";
    let text = match node.as_word() {
        Some(text) => text,
        None => return node.refuse(format!("must be text: {FORM}")),
    };
    let Some((count, period)) = text.split_once('/') else {
        return node.refuse(format!("{text:?} is not a rate: {FORM}"));
    };
    if CalendarUnit::WORDS.iter().any(|(word, _)| *word == period) {
        return node.refuse(format!("{text:?} is not a rate: {FORM}; {CALENDAR_ONLY}"));
    }
    let period = Micros::parse_unit(period).or_else(|| Micros::parse(period));
    let digits = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
    match (digits.then(|| count.parse::<u64>().unwrap_or(u64::MAX)), period) {
        (Some(count), Some(period)) => {
            RefillRate::new(count, period).map_or_else(|error| node.refuse(format!("{text}: {error}")), Some)
        }
        _ => node.refuse(format!("{text:?} is not a rate: {FORM}")),
    }
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
    names.identities.iter().position(|identity| identity.name == text).map(KeyPart::Identity).or_else(|| {
        let mut known: Vec<&str> = names.identities.iter().map(|identity| identity.name.as_str()).collect();
        known.push("route");
        node.refuse(unknown("identity", text, &known))
    })
}

/// A route class that costs more than the capacity could never be admitted.
fn check_costs(node: &Node<'_>, capacity: Tokens, routes: Option<&[Route]>, names: &Names<'_>) {
    for (index, class) in names.routes.iter().enumerate() {
        let applies = !class.exempt && routes.is_none_or(|routes| routes.contains(&Route::Listed(index)));
        if applies && class.cost > capacity {
            node.refuse::<()>(format!(
                "the capacity {} is below the cost {} of the route class {:?}, which could never be admitted",
                capacity.count(),
                class.cost.count(),
                class.name
            ));
        }
    }
}
