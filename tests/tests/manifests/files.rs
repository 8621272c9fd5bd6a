//! The files of `envoy/`, and what is to be otherwise in them to run here.

use serde_json::Value;
use std::path::{Path, PathBuf};

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

pub fn path(name: &str) -> PathBuf {
    repository().join("envoy").join(name)
}

pub fn text(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("envoy/{name}: {error}"))
}

/// One YAML document.
pub fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

/// Every document of a file.
pub fn documents(name: &str) -> Vec<Value> {
    let text = text(name);
    let documents = text.split("\n---\n").map(yaml).filter(|document| !document.is_null());
    documents.collect()
}

/// Puts `to` wherever a text holds `from`, or a number is `from`. That it is nowhere is a test that fails: so nothing
/// here can be about an older file.
pub fn replace(document: &mut Value, from: impl Into<Value>, to: impl Into<Value>) {
    let (from, to) = (from.into(), to.into());
    assert!(replaced(document, &from, &to), "{from} is nowhere in the file");
}

fn replaced(value: &mut Value, from: &Value, to: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter_mut().fold(false, |found, item| replaced(item, from, to) | found),
        Value::Object(fields) => fields.values_mut().fold(false, |found, field| replaced(field, from, to) | found),
        Value::String(text) => match (from.as_str(), to.as_str()) {
            (Some(from), Some(to)) if text.contains(from) => {
                *text = text.replace(from, to);
                true
            }
            _ => false,
        },
        Value::Number(_) if value == from => {
            *value = to.clone();
            true
        }
        _ => false,
    }
}
