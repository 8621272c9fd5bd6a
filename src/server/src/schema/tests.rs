//! The schemas are held to core's reader: at every place of policies that have one of everything, the reader is asked what
//! it takes, and says it in its errors.

use super::*;
use crate::check::tests::{blocks, files, kinds, read_file, repository};
use crate::document::{self, Dialect};
use jsonschema::Validator;
use std::collections::BTreeSet;
use std::sync::LazyLock;
use tollgate_core::policy::{Issue, PolicySet};

const KINDS: [(Kind, &str); 4] = [
    (Kind::Policy, "policy"),
    (Kind::Envoy, "envoy"),
    (Kind::WasmPlugin, "wasmplugin"),
    (Kind::EnvoyExtensionPolicy, "envoyextensionpolicy"),
];

static VALIDATORS: LazyLock<Vec<(Kind, Validator)>> = LazyLock::new(|| {
    let validator = |kind| jsonschema::validator_for(&of(kind)).expect("a schema");
    KINDS.iter().map(|(kind, _)| (*kind, validator(*kind))).collect()
});

fn validator(kind: Kind) -> &'static Validator {
    &VALIDATORS.iter().find(|(known, _)| *known == kind).expect("a validator").1
}

/// Whether a schema takes a JSON text.
pub fn is_valid(kind: Kind, json: &str) -> bool {
    validator(kind).is_valid(&serde_json::from_str(json).expect("JSON"))
}

/// What is wrong with a value, for people who mend the schema.
fn complaint(kind: Kind, value: &Value) -> String {
    let errors = validator(kind).iter_errors(value);
    errors.map(|error| format!("{}: {error}", error.instance_path())).collect::<Vec<_>>().join("\n")
}

/// Every variable is set, each to something else.
fn environment(name: &str) -> Option<String> {
    Some(format!("{name}-0123456789abcdef"))
}

fn read(policy: &Value) -> Result<PolicySet, Vec<Issue>> {
    PolicySet::read(policy.to_string().as_bytes(), &environment).map_err(|errors| errors.issues().to_vec())
}

#[test]
fn the_committed_schemas_are_what_is_printed() {
    for (kind, name) in KINDS {
        let path = format!("envoy/schema/{name}.json");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(repository().join(&path), text(kind)).expect("written");
        }
        assert!(
            read_file(&path) == text(kind),
            "{path} is another: UPDATE_DOCS=1 cargo test -p tollgate writes it anew"
        );
    }
}

/// As Envoy and Kubernetes read a text, and as editors do (YAML 1.2).
fn readings(yaml: &str, dialect: Dialect) -> [Value; 2] {
    let node = &document::parse(yaml).unwrap_or_else(|error| panic!("{}", error.message)).documents[0];
    let as_json = serde_json::from_str(&node.to_json(dialect)).expect("JSON");
    [as_json, serde_saphyr::from_str(yaml).expect("YAML")]
}

fn assert_takes(kind: Kind, what: &str, values: &[Value]) {
    for value in values {
        assert!(validator(kind).is_valid(value), "{what}: {}", complaint(kind, value));
    }
}

#[test]
fn every_example_is_valid() {
    let mut found = Vec::new();
    files(&repository().join("envoy"), &mut found);
    let mut examples = 0;
    for path in found.iter().filter(|path| path.extension().is_some_and(|extension| extension == "yaml")) {
        let text = std::fs::read_to_string(path).expect("text");
        let kind = match &text {
            text if !text.contains("policies") => continue,
            text if text.contains("kind: WasmPlugin") || text.contains("kind: TrafficExtension") => Kind::WasmPlugin,
            text if text.contains("kind: EnvoyExtensionPolicy") => Kind::EnvoyExtensionPolicy,
            _ => Kind::Envoy,
        };
        for document in text.split("\n---\n").filter(|document| document.contains("policies:")) {
            examples += 1;
            assert_takes(kind, &path.display().to_string(), &readings(document, Dialect::Envoy));
        }
    }
    for path in ["README.md", "docs/mistakes.md"] {
        let text = read_file(path);
        for block in blocks(&text, "yaml").into_iter().filter(|block| block.contains("policies:")) {
            examples += 1;
            assert_takes(Kind::Policy, path, &readings(block, Dialect::Envoy));
        }
    }
    assert!(examples > 2, "{examples}");
    samples().iter().for_each(|sample| assert_takes(Kind::Policy, "a sample", std::slice::from_ref(sample)));
}

#[test]
fn a_policy_is_looked_at_in_every_kind_of_file() {
    let mut known = 0;
    for (name, text) in kinds() {
        let kind = match name {
            "a policy" | "a policy in JSON" => Kind::Policy,
            // JSON in a text is text; a patch is not an Envoy configuration.
            "JSON text, for one route" | "EnvoyFilter" | "ConfigMap" => continue,
            "WasmPlugin" | "TrafficExtension" | "List" => Kind::WasmPlugin,
            "EnvoyExtensionPolicy" => Kind::EnvoyExtensionPolicy,
            _ => Kind::Envoy,
        };
        known += 1;
        let [right, _] = readings(&text, Dialect::Envoy);
        assert_takes(kind, name, std::slice::from_ref(&right));
        for (from, to) in [("100", "0"), ("scope", "scop"), ("client_address", "clientaddress")] {
            let [wrong, _] = readings(&text.replace(from, to), Dialect::Envoy);
            assert!(!validator(kind).is_valid(&wrong), "{name} with {to} is taken");
        }
        // Another plugin's configuration is not looked at.
        let other = text.replace("policies", "things").replace("tollgate", "other");
        let [other, _] = readings(&other, Dialect::Envoy);
        assert_eq!(validator(kind).is_valid(&other), kind != Kind::Policy, "{name}");
    }
    assert!(known >= 7, "{known}");
}

/// Two policies that are right, with one of everything between them.
fn samples() -> [Value; 2] {
    let everything = serde_json::from_str(&read_file("tests/fuzz/corpus/policy/everything.json")).expect("JSON");
    let rest = json!({
        "hash_key": {"value": "one-secret-of-enough-bytes", "previous": {"value": "another-secret-of-enough-bytes"}},
        "endpoint": {"cluster": "tollgate", "auth_token": {"env": "TOKEN"}, "breaker": "none"},
        "identities": {"who": {"sources": [{"peer": "subject"}, {"client_address": {"trusted_hops": 0}}]}},
        "routes": [
            {"name": "odd", "envoy_route": "odd", "exempt": false},
            {"name": "rows", "path": "/rows", "cost": {"from": {"header": "x-rows"}, "max": 5}},
        ],
        "policies": [
            {"name": "none", "scope": "local", "sharing": "proxy", "charge": "admitted", "key": [], "limit": "deny"},
            {
                "name": "some", "scope": "global", "key": ["who"], "on_missing": "anonymous", "enforce": true,
                "limit": {"fixed_window": {"capacity": 5, "window": "day", "time_zone": "UTC"}},
                "plans": {"by": "who", "more": {"fixed_window": {"capacity": 6, "window": "day"}}},
                "on_failure": "open",
            },
            {
                "name": "lent", "scope": "global", "mode": "leased", "lost_state": "learn", "sharing": "proxy",
                "limit": {"token_bucket": {"capacity": 5, "refill": "1/s"}}, "on_failure": "open",
            },
        ],
    });
    [everything, rest]
}

/// A place in a policy, with what the schema says of it.
struct Place<'a> {
    pointer: String,
    schemas: Vec<&'a Value>,
}

/// A schema and its alternatives.
fn alternatives(schema: &Value) -> Vec<&Value> {
    let more = schema["anyOf"].as_array().into_iter().flatten().flat_map(alternatives);
    std::iter::once(schema).chain(more).collect()
}

impl<'a> Place<'a> {
    fn child(&self, name: &str, schemas: impl Iterator<Item = &'a Value>) -> Self {
        Place { pointer: format!("{}/{name}", self.pointer), schemas: schemas.flat_map(alternatives).collect() }
    }

    fn field(&self, name: &str) -> Self {
        let of = |schema: &&'a Value| {
            let schema: &'a Value = schema;
            schema["properties"].get(name).or_else(|| schema.get("additionalProperties").filter(|it| it.is_object()))
        };
        self.child(name, self.schemas.iter().filter_map(of))
    }

    fn item(&self, index: usize) -> Self {
        self.child(&index.to_string(), self.schemas.iter().filter_map(|schema| schema.get("items")))
    }

    /// The path in the reader's words.
    fn path(&self) -> String {
        self.pointer.split('/').skip(1).fold(String::new(), |path, step| match step.parse::<usize>() {
            Ok(index) => format!("{path}[{index}]"),
            Err(_) if path.is_empty() => step.into(),
            Err(_) => format!("{path}.{step}"),
        })
    }

    fn is_open(&self) -> bool {
        self.schemas.iter().any(|schema| schema["additionalProperties"].is_object())
    }

    fn fields(&self) -> Vec<(&'a String, &'a Value)> {
        self.schemas.iter().filter_map(|schema| schema["properties"].as_object()).flatten().collect()
    }

    fn words(&self) -> Vec<&'a str> {
        let of = |schema: &&'a Value| {
            let schema: &'a Value = schema;
            schema["enum"].as_array().into_iter().flatten().chain(schema.get("const")).filter_map(Value::as_str)
        };
        self.schemas.iter().flat_map(of).collect()
    }

    fn bound(&self, name: &str) -> Option<u64> {
        self.schemas.iter().find_map(|schema| schema[name].as_u64())
    }

    /// The policy with something else here.
    fn with(&self, policy: &Value, value: Value) -> Value {
        let mut policy = policy.clone();
        *policy.pointer_mut(&self.pointer).expect("a place") = value;
        policy
    }

    fn map<'v>(&self, policy: &'v mut Value) -> &'v mut serde_json::Map<String, Value> {
        policy.pointer_mut(&self.pointer).and_then(Value::as_object_mut).expect("a map")
    }
}

/// Every place of a policy.
fn places<'a>(place: Place<'a>, value: &Value, found: &mut Vec<Place<'a>>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| places(place.field(name), value, found)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(index, value)| places(place.item(index), value, found));
        }
        _ => {}
    }
    found.push(place);
}

/// What is done at every place of every sample.
fn everywhere(mut look: impl FnMut(&Value, &Place<'_>, &Value)) {
    let schema = of(Kind::Policy);
    for sample in samples() {
        read(&sample).unwrap_or_else(|issues| panic!("{issues:#?}"));
        let mut found = Vec::new();
        places(Place { pointer: String::new(), schemas: alternatives(&schema) }, &sample, &mut found);
        for place in found {
            let value = sample.pointer(&place.pointer).expect("a value");
            assert!(!place.schemas.is_empty(), "the schema does not know {}", place.path());
            look(&sample, &place, value);
        }
    }
}

/// What the reader says of a place.
fn said(policy: &Value, path: &str) -> Vec<String> {
    let issues = read(policy).err().unwrap_or_default();
    issues.into_iter().filter(|issue| issue.path == path).map(|issue| issue.message).collect()
}

/// The names that follow a word in what the reader says.
fn listed<'a>(messages: &'a [String], word: &str) -> Option<Vec<&'a str>> {
    let names = messages.iter().find_map(|message| message.split_once(word))?.1;
    let names = names.split(", such as ").next()?.split(", or a map").next()?.split(';').next()?;
    Some(names.split(", ").collect())
}

const UNKNOWN: &str = "zzzzzz";

#[test]
fn the_reader_and_the_schema_know_the_same_fields() {
    let mut met = BTreeSet::new();
    everywhere(|sample, place, value| {
        let Some(map) = value.as_object() else { return };
        let fields = place.fields();
        let here = fields.iter().filter(|(name, _)| map.contains_key(*name));
        met.extend(here.map(|(name, schema)| ((*name).clone(), schema["description"].to_string())));
        if place.is_open() {
            return;
        }
        let mut wrong = sample.clone();
        place.map(&mut wrong).insert(UNKNOWN.into(), Value::Null);
        let path = place.path();
        assert!(!validator(Kind::Policy).is_valid(&wrong), "{path} takes any field");
        let deeper = if path.is_empty() { UNKNOWN.into() } else { format!("{path}.{UNKNOWN}") };
        let messages = [said(&wrong, &deeper), said(&wrong, &path)].concat();
        let names = listed(&messages, ": known are ").or_else(|| listed(&messages, "must have exactly one of "));
        for name in names.unwrap_or_else(|| panic!("{path}: {messages:?}")) {
            // The reader knows the algorithms there, and then refuses all but this one.
            let is_elsewhere = path.ends_with("on_failure.local") && name != "token_bucket";
            let is_known = fields.iter().any(|(known, _)| *known == name);
            assert!(is_known || is_elsewhere, "the schema does not know {path}.{name}");
        }
    });
    // What the reader takes in the samples, it knows.
    let mut all = Vec::new();
    let schema = of(Kind::Policy);
    every_field(&schema, &mut all);
    let all: BTreeSet<(String, String)> =
        all.iter().map(|(name, schema)| ((*name).clone(), schema["description"].to_string())).collect();
    let missed: Vec<_> = all.difference(&met).collect();
    assert!(missed.is_empty(), "no sample has {missed:#?}");
}

fn every_field<'a>(schema: &'a Value, found: &mut Vec<(&'a String, &'a Value)>) {
    for schema in alternatives(schema) {
        let deeper = ["items", "additionalProperties"].iter().filter_map(|name| schema.get(name));
        deeper.for_each(|schema| every_field(schema, found));
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            found.push((name, schema));
            every_field(schema, found);
        }
    }
}

#[test]
fn the_reader_and_the_schema_know_the_same_words() {
    let mut compared = 0;
    everywhere(|sample, place, value| {
        let (words, path) = (place.words(), place.path());
        for word in &words {
            let messages = said(&place.with(sample, json!(word)), &path);
            let unknown = messages.iter().find(|message| message.contains("unknown") || message.contains("must be"));
            assert!(unknown.is_none(), "{path}: {unknown:?}");
            compared += 1;
        }
        if !value.is_string() {
            return;
        }
        let wrong = place.with(sample, json!(UNKNOWN));
        assert!(words.is_empty() || !validator(Kind::Policy).is_valid(&wrong), "{path} takes any word");
        let messages = said(&wrong, &path);
        for word in listed(&messages, ": known are ").unwrap_or_default() {
            // What is no word by itself: `{local: …}`, and spans.
            if word != "local" && !word.contains(' ') {
                // What else does not fit to it then is said elsewhere.
                let other = place.with(sample, json!(word));
                let mut errors = validator(Kind::Policy).iter_errors(&other);
                let error = errors.find(|error| error.instance_path().as_str() == place.pointer);
                assert!(error.is_none(), "{path}: {word}: {error:?}");
            }
        }
    });
    assert!(compared > 50, "{compared}");
}

#[test]
fn the_reader_and_the_schema_have_the_same_bounds() {
    let mut compared = 0;
    everywhere(|sample, place, value| {
        let path = place.path();
        let refused = |wrong: Value, why: &str| {
            assert!(!validator(Kind::Policy).is_valid(&wrong), "{path}: the schema takes what is not {why}");
            let messages = said(&wrong, &path);
            assert!(messages.iter().any(|message| message.contains(why)), "{path}: not {why:?}: {messages:?}");
        };
        match value {
            Value::Number(_) => {
                let (least, most) =
                    (place.bound("minimum").expect("a bound"), place.bound("maximum").expect("a bound"));
                let bounds = format!("between {least} and {most}");
                refused(place.with(sample, json!(most + 1)), &bounds);
                refused(place.with(sample, json!(least as i64 - 1)), &bounds);
                compared += 1;
            }
            Value::Array(list) => {
                let is_refused = |wrong: &Value| !said(wrong, &path).is_empty();
                let empty = place.with(sample, json!([]));
                let is_filled = place.bound("minItems") == Some(1);
                assert_eq!(is_refused(&empty), is_filled, "{path}: {:?}", said(&empty, &path));
                // Of route classes those count that have another name.
                if let Some(most) = place.bound("maxItems").filter(|_| path != "routes") {
                    let most = usize::try_from(most).expect("a bound");
                    let many: Vec<Value> = list.iter().cycle().take(most + 1).cloned().collect();
                    refused(place.with(sample, json!(many)), &format!("at most {most} items"));
                }
                compared += 1;
            }
            Value::Object(_) if place.bound("maxProperties").is_some_and(|most| most > 16) => {
                let most = place.bound("maxProperties").expect("a bound");
                let mut wrong = sample.clone();
                let map = place.map(&mut wrong);
                let one = map.iter().find(|(name, _)| *name != "by").expect("an entry").1.clone();
                let more = map.len()..=usize::try_from(most).expect("a bound");
                more.for_each(|index| drop(map.insert(format!("{UNKNOWN}{index}"), one.clone())));
                let named = usize::from(map.contains_key("by"));
                refused(wrong, &format!("at most {}", usize::try_from(most).expect("a bound") - named));
                compared += 1;
            }
            // A time; of a rate both numbers have bounds of their own.
            Value::String(_) => {
                let long = place.with(sample, json!("99999d"));
                let messages = said(&long, &path);
                let bounds = messages.iter().find_map(|message| message.strip_prefix("must be between "));
                if let Some(bounds) = bounds {
                    let bounds = bounds.split(", is").next().expect("bounds").replace(" and ", " to ");
                    let says =
                        |schema: &&Value| schema["description"].as_str().is_some_and(|text| text.contains(&bounds));
                    assert!(place.schemas.iter().any(says), "{path}: no description has {bounds}");
                    compared += 1;
                }
            }
            _ => {}
        }
    });
    assert!(compared > 50, "{compared}");
}

#[test]
fn a_default_is_what_is_left_out() {
    let mut compared = BTreeSet::new();
    everywhere(|sample, place, value| {
        let Some(map) = value.as_object() else { return };
        for (name, schema) in place.fields() {
            let Some(default) = schema.get("default") else { continue };
            let [mut with, mut without] = [sample.clone(), sample.clone()];
            place.map(&mut with).insert(name.clone(), default.clone());
            place.map(&mut without).remove(name);
            if let (Ok(with), Ok(without)) = (read(&with), read(&without)) {
                let key = map.get("name").map(Value::to_string).unwrap_or_default();
                assert_eq!(format!("{with:?}"), format!("{without:?}"), "{}.{name} of {key}", place.path());
                compared.insert(schema["description"].to_string());
            }
        }
    });
    let mut all = Vec::new();
    let schema = of(Kind::Policy);
    every_field(&schema, &mut all);
    let missed: Vec<_> = all
        .iter()
        .filter(|(_, schema)| schema.get("default").is_some() && !compared.contains(&schema["description"].to_string()))
        .collect();
    assert!(missed.is_empty(), "not compared: {missed:#?}");
}

/// Values of every kind, for every place.
fn others() -> Vec<Value> {
    let words =
        ["", "x", "1s", "07ms", "1min", "5/s", "1/30d", "010/010h", "10%", "007%", "none", "x y", "/x", "*", "GET"];
    let texts = words.iter().map(|word| json!(word));
    let more = [
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(7.0),
        json!(-1),
        json!(1.5),
        json!([]),
        json!(["x"]),
        json!(["route"]),
        json!({}),
        json!({"x": 1}),
        json!({"header": "x"}),
        json!({"env": "X"}),
        json!({"literal": "x"}),
        json!({"client_address": {}}),
        json!({"sources": [{"header": "x"}]}),
        json!({"token_bucket": {"capacity": 9, "refill": "1/s"}}),
        json!({"cluster": "x"}),
        json!({"routes": ["other"]}),
        json!({"filter": "x", "path": ["x"]}),
        json!({"from": "content_length", "max": 1}),
    ];
    texts.chain(more).collect()
}

/// How the reader begins what a schema can say as well.
const STRUCTURAL: [&str; 7] = [
    "unknown field",
    "must be a map",
    "must be a list",
    "must be text",
    "must be true or false",
    "must have exactly one of",
    "lacks `",
];

#[test]
fn the_schema_refuses_what_is_structurally_wrong_and_nothing_that_is_right() {
    let (mut right, mut wrong) = (0, 0);
    let mut compare = |policy: &Value, what: &dyn Fn() -> String| {
        let is_valid = validator(Kind::Policy).is_valid(policy);
        match read(policy) {
            Ok(_) => {
                right += 1;
                assert!(is_valid, "the reader takes {}: {}", what(), complaint(Kind::Policy, policy));
            }
            Err(issues) => {
                let structural =
                    issues.iter().find(|issue| STRUCTURAL.iter().any(|start| issue.message.starts_with(start)));
                if let Some(issue) = structural {
                    wrong += 1;
                    assert!(!is_valid, "the schema takes {}: {issue}", what());
                }
            }
        }
    };
    everywhere(|sample, place, value| {
        for other in others() {
            compare(&place.with(sample, other.clone()), &|| format!("{other} at {}", place.path()));
        }
        for name in value.as_object().into_iter().flatten().map(|(name, _)| name) {
            let mut without = sample.clone();
            place.map(&mut without).remove(name);
            compare(&without, &|| format!("{} without {name}", place.path()));
        }
    });
    assert!(right > 200 && wrong > 2000, "{right} right, {wrong} wrong");
}
