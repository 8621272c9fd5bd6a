//! JSON Schemas (draft 7, which editors know) of a policy and of the files that hold one.
//!
//! What a policy is, core's reader says; its bounds are taken from there. The rest is written down here, and the tests hold
//! it to the reader: they ask it at every place of a policy which fields, words and numbers it takes. A schema cannot say
//! all that the reader knows (a name that is nowhere defined, a cost above a capacity), and refuses nothing but odd
//! spellings of what the reader takes.

mod files;
#[cfg(test)]
mod reference;
#[cfg(test)]
pub mod tests;

use crate::terminal;
use clap::ValueEnum;
use serde_json::{Value, json};
use std::process::ExitCode;
use tollgate_core::limit::{CalendarUnit, MAX_LOG};
use tollgate_core::pattern::MAX_TEXT;
use tollgate_core::policy::MAX_TIMEOUT;
use tollgate_core::policy::bounds::{
    MAX_BREAKER_TIME, MAX_FAILURES, MAX_HEADER_NAME, MAX_HEADERS, MAX_IDENTITIES, MAX_IN_FLIGHT, MAX_METHODS, MAX_NAME,
    MAX_ORIGINS, MAX_PATH, MAX_PLANS, MAX_POLICIES, MAX_ROUTES, MAX_SOURCES, MAX_TRUSTED_HOPS, MIN_SECRET, MIN_SPAN,
};
use tollgate_core::units::{MAX_PERIOD, MAX_TOKENS, MAX_TOKENS_PER_MICRO, Micros};

const HELP: &str = "\
An editor with the schema shows fields, bounds and mistakes while one writes. For YAML (yaml-language-server), as a
comment in the file:
  # yaml-language-server: $schema=schema/envoy.json

Examples:
  tollgate schema envoy > schema/envoy.json
  tollgate schema policy > schema/policy.json

`tollgate check` knows more than a schema can say.";

/// As it is written.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct SchemaArgs {
    /// The file that it is for.
    #[arg(default_value = "policy", value_name = "KIND")]
    kind: Kind,
}

/// What a schema is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A policy by itself.
    Policy,
    /// An Envoy bootstrap, or its listeners as xDS resources.
    Envoy,
    /// Istio's WasmPlugin and TrafficExtension.
    #[value(name = "wasmplugin")]
    WasmPlugin,
    /// Envoy Gateway's EnvoyExtensionPolicy.
    #[value(name = "envoyextensionpolicy")]
    EnvoyExtensionPolicy,
}

/// Runs the command.
pub fn run(args: &SchemaArgs) -> ExitCode {
    terminal::say(text(args.kind));
    ExitCode::SUCCESS
}

/// A schema as its file holds it.
pub fn text(kind: Kind) -> String {
    format!("{:#}\n", of(kind))
}

/// The schema of a kind of file.
pub fn of(kind: Kind) -> Value {
    let mut schema = match kind {
        Kind::Policy => with(policy_set(), json!({"title": "A Tollgate policy"})),
        Kind::Envoy => files::envoy(policy_set()),
        Kind::WasmPlugin => files::wasm_plugin(policy_set()),
        Kind::EnvoyExtensionPolicy => files::envoy_extension_policy(policy_set()),
    };
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema
}

fn policy_set() -> Value {
    let fields = json!({
        "version": {"type": "string", "description": "Your name for this policy, shown in logs and in the body of rejections"},
        "hash_key": hash_key(),
        "namespace": name("Separates all budgets from those of other namespaces with the same hash key, such as staging"),
        "endpoint": endpoint(),
        "identities": {
            "description": "Who a request is from: names for the keys of policies",
            "type": "object",
            "propertyNames": with(name(""), json!({"not": {"const": "route"}})),
            "additionalProperties": identity(),
            "maxProperties": MAX_IDENTITIES,
        },
        "routes": {
            "description": "Route classes, of which the first that matches counts. Requests that match none are `other`",
            "type": "array",
            "items": route(),
            "maxItems": MAX_ROUTES,
        },
        "policies": list("Budgets: all that match apply", policy(), MAX_POLICIES),
        "responses": responses(),
        "logs": object(
            "What is logged",
            json!({
                "rejections": or(percentage("Of so many in a hundred rejections there is a line in Envoy's log, though of no \
                                            more than one each second and worker"), "100%"),
            }),
        ),
    });
    let rules = json!([
        {
            "if": {"properties": {"identities": {"minProperties": 1}}, "required": ["identities"]},
            "then": {"required": ["hash_key"]},
        },
        {
            "if": {
                "properties": {"policies": {"contains": {"properties": {"scope": {"const": "global"}}, "required": ["scope"]}}},
                "required": ["policies"],
            },
            "then": {"required": ["endpoint"]},
        },
    ]);
    with(object("Who may do how much", fields), json!({"required": ["policies"], "allOf": rules}))
}

fn hash_key() -> Value {
    let previous = secret(
        "The hash key before this one, while it is changed: both count, and there are half as many policies",
        hash_key_text(),
        None,
    );
    secret(
        "The secret that identities are hashed with before they leave the request, the same for every proxy. Needed with \
         identities; another key is another set of budgets",
        hash_key_text(),
        Some(previous),
    )
}

fn hash_key_text() -> Value {
    json!({"type": "string", "minLength": MIN_SECRET, "description": format!("The secret itself: at least {MIN_SECRET} bytes")})
}

/// `{env: …}` or `{value: …}`
fn secret(description: &str, value: Value, previous: Option<Value>) -> Value {
    let env = json!({
        "type": "string",
        "description": "The environment variable that holds it, one that Envoy passes on: host_env_keys, vmConfig.env or hostKeys",
    });
    let mut fields = json!({"env": env, "value": value});
    if let Some(previous) = previous {
        fields["previous"] = previous;
    }
    with(object(description, fields), json!({"oneOf": [{"required": ["env"]}, {"required": ["value"]}]}))
}

fn endpoint() -> Value {
    let token = json!({
        "type": "string",
        "pattern": format!("^[A-Za-z0-9._~+/=-]{{{MIN_SECRET},}}$"),
        "description": format!("The token itself: at least {MIN_SECRET} letters, digits or -._~+/="),
    });
    let breaker = json!({
        "failures": or(whole("After so many calls in a row that failed", 1, MAX_FAILURES), 5),
        "within": or(time("The time within which they failed", MAX_BREAKER_TIME), "10s"),
        "open_for": or(time("How long no call is made; then one is tried", MAX_BREAKER_TIME), "2s"),
    });
    let fields = json!({
        "cluster": filled("The Envoy cluster of the token endpoint"),
        "timeout": or(time("How long a request waits for its verdict; then the fail mode applies", MAX_TIMEOUT), "50ms"),
        "auth_token": secret("The bearer token that the endpoint knows its callers by", token, None),
        "max_in_flight": or(whole("How many requests of one worker may wait; beyond it the fail mode applies at once", 1, MAX_IN_FLIGHT), 256),
        "breaker": {
            "description": "When no calls are made for a while, in each proxy, and the fail mode applies at once. none: never",
            "anyOf": [{"const": "none"}, object("", breaker)],
        },
    });
    with(
        object("The token endpoint, which keeps global budgets. Needed with a policy of scope global", fields),
        json!({"required": ["cluster"]}),
    )
}

fn identity() -> Value {
    let fields = json!({
        "sources": unique(list("Where it comes from: the first that has a valid value", source("One source, such as {header: x-api-key}: one of these fields, or header and scheme"), MAX_SOURCES)),
        "pattern": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_TEXT,
            "description": "A small regular expression that the whole value must match; another value is none",
        },
    });
    with(object("An identity", fields), json!({"required": ["sources"]}))
}

fn source(description: &str) -> Value {
    let client_address = json!({
        "trusted_hops": or(whole(
            "0: the address that Envoy trusts. N: the Nth entry of X-Forwarded-For from the right",
            0,
            MAX_TRUSTED_HOPS,
        ), 0),
        "ipv6_prefix": or(whole("IPv6 addresses count by so many bits", 1, 128), 64),
    });
    let fields = json!({
        "header": header_name("A request header. A client can send any: have an earlier filter verify or overwrite it"),
        "scheme": {
            "type": "string",
            "pattern": "^[A-Za-z0-9._-]+$",
            "description": "For a header such as authorization: what follows this scheme, such as Bearer. Another scheme is absent",
        },
        "cookie": {"type": "string", "pattern": "^[!#-+./0-9:<>-~-]+$", "description": "A cookie"},
        "query": filled("A parameter of the query, decoded"),
        "metadata": metadata("Dynamic metadata of an earlier filter, such as jwt_authn"),
        "filter_state": filled("An object in the filter state"),
        "peer": {
            "enum": ["uri_san", "dns_san", "subject"],
            "description": "The first such name in the client's certificate; only as good as Envoy's validation_context",
        },
        "client_address": object("The client's address", client_address),
        "route_metadata": metadata("What Envoy's configuration says of the route"),
        "virtual_host_metadata": metadata("What Envoy's configuration says of the virtual host"),
        "literal": filled("Always this text; comes last"),
    });
    let rules = json!({
        "if": {"required": ["scheme"]},
        "then": {"required": ["header"], "maxProperties": 2},
        "else": {"minProperties": 1, "maxProperties": 1},
    });
    with(object(description, fields), rules)
}

fn metadata(description: &str) -> Value {
    let fields = json!({
        "filter": filled("Whose metadata, such as envoy.filters.http.jwt_authn"),
        "path": list("The names that lead to the value, such as [payload, tenant]", filled("A name"), MAX_PATH),
    });
    with(object(description, fields), json!({"required": ["filter", "path"]}))
}

fn route() -> Value {
    let header = json!({
        "name": header_name("Which header"),
        "present": {"type": "boolean", "description": "Whether it is there"},
        "exact": {"type": "string", "description": "All of its value"},
        "prefix": filled("What its value begins with"),
    });
    let header = with(
        object("The name, and one of present, exact and prefix", header),
        json!({"required": ["name"], "minProperties": 2, "maxProperties": 2}),
    );
    let method = json!({"type": "string", "pattern": "^[A-Z-]+$"});
    let fields = json!({
        "name": with(name("The route class, in keys and messages"), json!({"not": {"const": "other"}})),
        "methods": unique(list("Methods in capitals; GET includes HEAD", method, MAX_METHODS)),
        "host": {
            "type": "string",
            "pattern": "^(\\*\\.)?[A-Za-z0-9._:\\[\\]-]+$",
            "description": "api.example.com, or *.example.com for all names below it; without port",
        },
        "path": {
            "type": "string",
            "pattern": "^/",
            "description": "A template: literal segments, {name} or * for one, ** at the end for the rest",
        },
        "headers": unique(list("Headers, all of which match", header, MAX_HEADERS)),
        "envoy_route": filled("The name of Envoy's route"),
        "exempt": or(json!({"type": "boolean", "description": "No policy applies"}), false),
        "cost": cost(),
    });
    let matched = ["methods", "host", "path", "headers", "envoy_route"].map(|field| json!({"required": [field]}));
    let exempt = json!({"properties": {"exempt": {"const": true}}, "required": ["exempt", "cost"]});
    with(object("A route class", fields), json!({"required": ["name"], "anyOf": matched, "not": exempt}))
}

fn cost() -> Value {
    let from = json!({
        "header": header_name("A request header"),
        "metadata": metadata("Dynamic metadata of an earlier filter"),
    });
    let measured = json!({
        "from": {
            "description": "Where the number is",
            "anyOf": [{"const": "content_length"}, one_of("", from)],
        },
        "per": or(tokens("The number is divided by this, and rounded up"), 1),
        "min": or(tokens("The least that a request costs"), 1),
        "max": tokens("The most that a request can cost"),
        "default": tokens("What a request without a whole number there costs; without this, max"),
    });
    let measured = with(object("", measured), json!({"required": ["from", "max"]}));
    let cost = json!({
        "description": "Units that a request spends in every policy that applies: a number, or where to find one",
        "anyOf": [tokens(""), measured],
    });
    or(cost, 1)
}

fn policy() -> Value {
    let unique_names = |description| json!({"description": description, "type": "array", "items": {"type": "string"}, "uniqueItems": true});
    let routes = with(
        unique_names("The route classes that it is for, `other` among them"),
        json!({"minItems": 1, "maxItems": MAX_ROUTES}),
    );
    let fields = json!({
        "name": name("The budget's name. Another name is another budget"),
        "scope": {"enum": ["local", "global"], "description": "local: in each Envoy. global: over all Envoys, by the endpoint"},
        "mode": words(
            "For scope global. leased: Envoys borrow parts of a token_bucket for two seconds at the most and decide by those, \
             never more together than the limit allows. exact: the endpoint decides each request. Without this, leased where \
             every limit is a token_bucket, and else exact",
            &["exact", "leased"],
        ),
        "lost_state": words(
            "For scope global and a token_bucket, when the store has lost it. learn: it begins empty, and refills two to four seconds later. full: it is full. Without \
             this, learn for mode leased, and else full",
            &["learn", "full"],
        ),
        "sharing": words(
            "For scope local. proxy (without this): one bucket for all worker threads. worker: one for each, so N workers allow \
             N times the number. For mode leased: who shares a lease, each worker without this; the limit is the same",
            &["proxy", "worker"],
        ),
        "match": with(object("What it is for; all requests without this", json!({"routes": routes})), json!({"required": ["routes"]})),
        "key": or(unique_names(
            "Identities, and `route` for the route class: requests that agree in all of them share a bucket",
        ), json!([])),
        "limit": allowance(),
        "plans": plans(),
        "charge": or(words(
            "For scope local. admitted: only what all policies admit. always: also what another policy rejects, for a guard \
             against floods",
            &["admitted", "always"],
        ), "admitted"),
        "on_missing": or(words(
            "A request that lacks an identity of the key: anonymous (one bucket for all of those), skip (this policy does not \
             limit it) or reject (403)",
            &["anonymous", "skip", "reject"],
        ), "anonymous"),
        "on_failure": {
            "description": "For scope global, and needed there: what happens when the endpoint cannot say. open: admit. closed: 503. {local: {token_bucket: \
                            …}}: an emergency bucket in each proxy",
            "anyOf": [
                {"enum": ["open", "closed"]},
                one_of("", json!({"local": one_of("A limit in each proxy", json!({"token_bucket": token_bucket()}))})),
            ],
        },
        "enforce": or(json!({
            "description": "on: it limits. shadow: its denials are only counted. 10%: it limits a tenth of the keys, always the same",
            "anyOf": [{"enum": ["on", "shadow", true]}, percentage("")],
        }), "on"),
    });
    let in_proxy = json!({
        "description": "A limit such as {token_bucket: {capacity: 20, refill: 5/s}}, or deny (429 without a wait) or unlimited",
        "anyOf": [{"type": "string"}, {"required": ["token_bucket"]}]});
    let rules = json!({
        "if": {"properties": {"scope": {"const": "local"}}, "required": ["scope"]},
        "then": {"properties": {
            "mode": false,
            "lost_state": false,
            "on_failure": false,
            "limit": in_proxy,
            "plans": {"properties": {"by": true}, "additionalProperties": in_proxy},
        }},
        "else": {
            "properties": {"charge": false},
            "required": ["on_failure"],
            "if": {"properties": {"mode": {"const": "exact"}}, "required": ["mode"]},
            "then": {"properties": {"sharing": false}},
            "allOf": [{
                "if": {"anyOf": [
                    {"properties": {"mode": {"const": "leased"}}, "required": ["mode"]},
                    {"required": ["sharing"]},
                    {"required": ["lost_state"]},
                ]},
                "then": {"properties": {"limit": in_proxy, "plans": {"properties": {"by": true}, "additionalProperties": in_proxy}}},
            }],
        },
    });
    let required = json!({"required": ["name", "scope", "limit"], "dependencies": {"on_missing": ["key"]}});
    with(with(object("A budget", fields), required), rules)
}

fn plans() -> Value {
    json!({
        "description": "Other limits by the caller's plan: each is a name and a limit, of the algorithm of `limit`",
        "type": "object",
        "properties": {"by": {
            "description": "What names the plan: an identity, or a source. Take it from metadata: clients choose what they send",
            "anyOf": [{"type": "string"}, source("")],
        }},
        "required": ["by"],
        "additionalProperties": allowance(),
        "minProperties": 2,
        "maxProperties": MAX_PLANS + 1,
    })
}

/// A limit, or a word for all and nothing.
fn allowance() -> Value {
    let windows = CalendarUnit::WORDS.map(|(word, _)| word);
    let span = time("How long a window is", Micros::new(MAX_PERIOD));
    let window = json!({
        "description": format!(
            "A unit of the local calendar, or a span such as 1h, at multiples of its length since 1970: {}",
            bounds(Micros::new(MAX_PERIOD))
        ),
        "anyOf": [{"enum": windows}, {"type": "string", "pattern": TIME}],
    });
    let zone = json!({
        "type": "string",
        "pattern": "^[A-Za-z][A-Za-z0-9_+/-]{0,39}$",
        "description": "For calendar windows: a name of the IANA database, such as Europe/Berlin",
    });
    let zone = or(zone, "UTC");
    let gcra = json!({
        "burst": tokens("The most units at once"),
        "rate": rate("How fast units come back, such as 5/s, 100/min or 1/30d"),
    });
    let capacity = || tokens("The most units in a window");
    let logged = whole("The most units in a window", 1, MAX_LOG);
    let fixed = json!({"capacity": capacity(), "window": window, "time_zone": zone});
    let is_calendar = json!({"properties": {"window": {"enum": windows}}});
    let fixed = required("So many units in each window", fixed, &["capacity", "window"]);
    let algorithms = json!({
        "token_bucket": token_bucket(),
        "gcra": required("The same as a token bucket; keeps one time in place of a balance", gcra, &["burst", "rate"]),
        "fixed_window": with(fixed, json!({"dependencies": {"time_zone": is_calendar}})),
        "sliding_window": required(
            "So many units in a moving window, estimated from two counts",
            json!({"capacity": capacity(), "window": span}),
            &["capacity", "window"],
        ),
        "sliding_log": required(
            "So many units in every window, exactly; keeps each request",
            json!({"capacity": logged, "window": span}),
            &["capacity", "window"],
        ),
    });
    json!({
        "description": "A limit such as {token_bucket: {capacity: 20, refill: 5/s}}, or deny (429 without a wait) or unlimited. \
                        A local policy has a token_bucket",
        "anyOf": [{"enum": ["deny", "unlimited"]}, one_of("", algorithms)],
    })
}

fn token_bucket() -> Value {
    let fields = json!({
        "capacity": tokens("The most units at once"),
        "refill": rate("How fast units come back, such as 5/s, 100/min or 1/30d"),
    });
    required("So many units at once, and what comes back over time", fields, &["capacity", "refill"])
}

fn responses() -> Value {
    let origin = json!({"type": "string", "pattern": "^(\\*|[a-z0-9+.-]*://[a-z0-9._:\\[\\]-]+)$"});
    let fields = json!({
        "ratelimit_headers": or(words("RateLimit-Policy and RateLimit, as this draft has them", &["draft-11", "none"]), "draft-11"),
        "legacy_headers": or(words(
            "X-RateLimit-Limit, -Remaining and -Reset, where Reset is seconds from now, or the time itself (epoch)",
            &["none", "seconds", "epoch"],
        ), "none"),
        "headers_on": or(words("Which responses carry RateLimit and X-RateLimit fields", &["all", "rejections"]), "all"),
        "upstream_headers": or(words("What becomes of such fields from the upstream", &["replace", "keep"]), "replace"),
        "retry_after_jitter": or(percentage("By how much at most a Retry-After is lengthened, at random"), "0%"),
        "grpc_status": or(words("The status of a rejection for gRPC callers", &["resource_exhausted", "unavailable"]), "resource_exhausted"),
        "preflight": or(words("What becomes of CORS preflights", &["exempt", "limited"]), "exempt"),
        "cors_origins": unique(list(
            "Origins whose pages may read a rejection, such as https://app.example; * for any",
            origin,
            MAX_ORIGINS,
        )),
    });
    object("What callers are told", fields)
}

// What values look like.

fn name(description: &str) -> Value {
    described(description, json!({"type": "string", "pattern": format!("^[A-Za-z0-9_.-]{{1,{MAX_NAME}}}$")}))
}

fn header_name(description: &str) -> Value {
    let pattern = format!("^[A-Za-z0-9!#$%&'*+.^_`|~-]{{1,{MAX_HEADER_NAME}}}$");
    described(description, json!({"type": "string", "pattern": pattern}))
}

fn filled(description: &str) -> Value {
    described(description, json!({"type": "string", "minLength": 1}))
}

fn words(description: &str, words: &[&str]) -> Value {
    described(description, json!({"enum": words}))
}

fn whole(description: &str, least: u64, most: u64) -> Value {
    described(description, json!({"type": "integer", "minimum": least, "maximum": most}))
}

fn tokens(description: &str) -> Value {
    whole(description, 1, MAX_TOKENS)
}

/// A span of at least [`MIN_SPAN`]: the pattern says no more than that it is not 0.
fn time(description: &str, most: Micros) -> Value {
    let description = format!("{description}: {}", bounds(most));
    described(&description, json!({"type": "string", "pattern": TIME}))
}

const TIME: &str = "^0*[1-9][0-9]*(us|ms|s|m|min|h|d)$";

fn bounds(most: Micros) -> String {
    format!("{MIN_SPAN} to {most}")
}

fn rate(description: &str) -> Value {
    let (slowest, fastest) = (Micros::new(MAX_PERIOD), MAX_TOKENS_PER_MICRO * 1_000_000);
    let description = format!("{description}: 1/{slowest} to {fastest}/s");
    described(&description, json!({"type": "string", "pattern": RATE}))
}

const RATE: &str = "^0*[1-9][0-9]*/(0*[1-9][0-9]*)?(us|ms|s|m|min|h|d)$";

fn percentage(description: &str) -> Value {
    described(description, json!({"type": "string", "pattern": PERCENTAGE}))
}

const PERCENTAGE: &str = "^0*(100|[0-9]{1,2})%$";

// How values are put together.

fn described(description: &str, schema: Value) -> Value {
    if description.is_empty() { schema } else { with(schema, json!({"description": description})) }
}

/// A map of these fields and no others.
fn object(description: &str, fields: Value) -> Value {
    described(description, json!({"type": "object", "properties": fields, "additionalProperties": false}))
}

fn required(description: &str, fields: Value, required: &[&str]) -> Value {
    with(object(description, fields), json!({"required": required}))
}

/// A map with exactly one of these fields.
fn one_of(description: &str, fields: Value) -> Value {
    with(object(description, fields), json!({"minProperties": 1, "maxProperties": 1}))
}

fn list(description: &str, item: Value, most: usize) -> Value {
    described(description, json!({"type": "array", "items": item, "minItems": 1, "maxItems": most}))
}

fn unique(list: Value) -> Value {
    with(list, json!({"uniqueItems": true}))
}

/// What a field that is left out is taken for.
fn or(schema: Value, default: impl Into<Value>) -> Value {
    let default = default.into();
    // Editors use the keyword, and show the description.
    let shown = default.as_str().map_or_else(|| default.to_string(), String::from);
    let description = format!("{} (default: {shown})", schema["description"].as_str().unwrap_or_default());
    with(schema, json!({"description": description, "default": default}))
}

fn with(mut schema: Value, more: Value) -> Value {
    if let (Value::Object(schema), Value::Object(more)) = (&mut schema, more) {
        schema.extend(more);
    }
    schema
}
