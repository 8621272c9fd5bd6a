//! `docs/policy-reference.md`: every field of a policy, as the schema has it.

use super::*;
use crate::check::tests::{read_file, repository};
use std::collections::HashMap;
use std::fmt::Write;

const PATH: &str = "docs/policy-reference.md";

/// In the order in which a policy is written.
const SECTIONS: [&str; 7] = ["hash_key", "endpoint", "identities", "routes", "policies", "responses", "logs"];

const INTRODUCTION: &str = "\
# The fields of a policy

Made from the JSON Schema (`tollgate schema`) by `UPDATE_DOCS=1 cargo test -p tollgate`: change it there. What the fields
are for and how they go together is in [policy.md](policy.md). Fields that are not here are errors.

`[]` stands for each entry of a list, a name in capitals for one of your own. A *count* is a whole number without quotes, a
*time* a whole number with a unit (`us`, `ms`, `s`, `m`, `h` or `d`), a *rate* units in a time (`5/s`, `100/min`, `1/30d`), a
*percentage* a whole number from `0%` to `100%`. A form is a regular expression for the whole text.
";

#[test]
fn the_reference_has_every_field_as_the_schema_has_it() {
    let page = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(repository().join(PATH), &page).expect("written");
    }
    assert!(read_file(PATH) == page, "{PATH} is another: UPDATE_DOCS=1 cargo test -p tollgate writes it anew");
}

fn page() -> String {
    let schema = policy_set();
    let mut page = Page { text: INTRODUCTION.into(), seen: HashMap::new() };
    page.section("At the top");
    for (name, field) in fields(&schema) {
        page.row(name, field, is_required(&schema, name));
        assert!(SECTIONS.contains(&name.as_str()) || kind(field) == "text", "{name} has no section");
    }
    for name in SECTIONS {
        page.section(&format!("`{name}`"));
        page.below(name, &schema["properties"][name]);
    }
    page.text
}

struct Page {
    text: String,
    /// Where fields have been told already.
    seen: HashMap<String, String>,
}

impl Page {
    fn section(&mut self, title: &str) {
        writeln!(self.text, "\n## {title}\n\n| field | type | bounds | default | what it is |\n|---|---|---|---|---|")
            .expect("text");
    }

    /// A row for each field below this one, and below those.
    fn below(&mut self, path: &str, schema: &Value) {
        for schema in alternatives(schema) {
            if let Some(item) = schema.get("items").filter(|item| item["type"] == "object") {
                let path = format!("{path}[]");
                self.row(&path, item, false);
                if self.elsewhere(item).is_none() {
                    self.below(&path, item);
                }
            }
            let fields = fields(schema).map(|(name, field)| (name.as_str(), field));
            let named = schema.get("additionalProperties").filter(|it| it.is_object()).map(|field| ("NAME", field));
            if let Some(properties) = schema.get("properties") {
                self.seen.insert(properties.to_string(), path.into());
            }
            for (name, field) in fields.chain(named) {
                let path = format!("{path}.{name}");
                self.row(&path, field, is_required(schema, name));
                if self.elsewhere(field).is_none() {
                    self.below(&path, field);
                }
            }
        }
    }

    fn row(&mut self, path: &str, schema: &Value, is_required: bool) {
        let mut kind = kind(schema);
        if let Some(place) = self.elsewhere(schema) {
            write!(kind, " as in `{place}`").expect("text");
        }
        let (description, span) = description(schema);
        assert!(!description.is_empty(), "{path} has no description");
        let mut bounds: Vec<String> = is_required.then(|| "required".into()).into_iter().collect();
        bounds.extend(span.map(Into::into));
        alternatives(schema).iter().for_each(|schema| bounds.extend(bounds_of(schema)));
        let default = schema.get("default").map(|default| code(&plain(default))).unwrap_or_default();
        let cells = [format!("`{path}`"), kind, bounds.join("; "), default, description.into()];
        writeln!(self.text, "| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | ")).expect("text");
    }

    /// Where the fields of this have been told.
    fn elsewhere(&self, schema: &Value) -> Option<&String> {
        alternatives(schema).iter().find_map(|schema| self.seen.get(&schema.get("properties")?.to_string()))
    }
}

/// A schema, or what it may be instead.
fn alternatives(schema: &Value) -> Vec<&Value> {
    match schema["anyOf"].as_array() {
        Some(schemas) if schema.get("type").is_none() => schemas.iter().flat_map(alternatives).collect(),
        _ => vec![schema],
    }
}

fn fields(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

fn is_required(schema: &Value, name: &str) -> bool {
    schema["required"].as_array().is_some_and(|names| names.contains(&name.into()))
}

fn kind(schema: &Value) -> String {
    let one = |schema: &Value| match (schema["type"].as_str(), schema["pattern"].as_str()) {
        (_, Some(TIME)) => "time".into(),
        (_, Some(RATE)) => "rate".into(),
        (_, Some(PERCENTAGE)) => "percentage".into(),
        (Some("string"), _) => "text".into(),
        (Some("integer"), _) => "count".into(),
        (Some("boolean"), _) => "`true`, `false`".into(),
        (Some("array"), _) => format!("list: {}", kind(&schema["items"])),
        (Some("object"), _) => "map".into(),
        _ => words(schema),
    };
    let kinds: Vec<String> = alternatives(schema).into_iter().map(one).collect();
    kinds.join(", ")
}

fn words(schema: &Value) -> String {
    let words = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
    // `on` is `true` to some readers: that is no other word.
    words.filter_map(Value::as_str).map(code).collect::<Vec<_>>().join(", ")
}

/// The description without its default, and without the bounds that end it where it is of a time or a rate.
fn description(schema: &Value) -> (&str, Option<&str>) {
    let text = schema["description"].as_str().unwrap_or_default();
    let text = text.rsplit_once(" (default: ").map_or(text, |(text, _)| text);
    let is_span = |schema: &&Value| [TIME, RATE].iter().any(|pattern| schema["pattern"] == *pattern);
    match text.rsplit_once(": ") {
        Some((text, bounds)) if alternatives(schema).iter().any(is_span) => (text, Some(bounds)),
        _ => (text, None),
    }
}

fn bounds_of(schema: &Value) -> Vec<String> {
    let number = |name: &str| schema[name].as_u64();
    let mut bounds = Vec::new();
    if let (Some(least), Some(most)) = (number("minimum"), number("maximum")) {
        bounds.push(format!("{least} to {most}"));
    }
    match (number("minLength"), number("maxLength")) {
        (Some(least), Some(most)) => bounds.push(format!("{least} to {most} bytes")),
        (Some(1), None) => bounds.push("not empty".into()),
        (Some(least), None) => bounds.push(format!("at least {least} bytes")),
        _ => {}
    }
    match (number("minItems"), number("maxItems")) {
        (Some(least), Some(most)) => bounds.push(format!("{least} to {most} entries")),
        (None, Some(most)) => bounds.push(format!("at most {most} entries")),
        _ => {}
    }
    match (number("minProperties"), number("maxProperties")) {
        (Some(least), Some(most)) if least == most => bounds.push(format!("{least} of its fields")),
        (Some(least), Some(most)) => bounds.push(format!("{least} to {most} entries")),
        (None, Some(most)) => bounds.push(format!("at most {most} entries")),
        _ => {}
    }
    let texts = [schema, &schema["items"], &schema["propertyNames"]];
    for pattern in texts.iter().filter_map(|schema| schema["pattern"].as_str()) {
        match pattern.strip_prefix('^').map(|form| (form, form.strip_suffix('$'))) {
            _ if [TIME, RATE, PERCENTAGE].contains(&pattern) => {}
            Some((_, Some(form))) => bounds.push(format!("of the form {}", code(form))),
            Some((start, None)) => bounds.push(format!("begins with {}", code(start))),
            None => panic!("{pattern} is for a part of the text"),
        }
    }
    // What needs a field of several, where the fields are known.
    if schema["type"] == "object" {
        for (keyword, word) in [("oneOf", "one of"), ("anyOf", "at least one of")] {
            let names = schema[keyword].as_array().into_iter().flatten().filter_map(|it| it["required"][0].as_str());
            let names: Vec<String> = names.map(code).collect();
            bounds.extend((!names.is_empty()).then(|| format!("{word} {}", names.join(", "))));
        }
    }
    bounds
}

fn code(text: &str) -> String {
    if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") }
}

/// As it is written in YAML.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), Into::into)
}
