//! Files that hold a policy. Of what is around it only that is said which matters to the policy, and plugins that are not
//! Tollgate's are let be: it is known as `tollgate check` knows it.

use serde_json::{Value, json};

const IS_TOLLGATE: &str = "tollgate";

/// An Envoy configuration, with the filter at any depth.
pub fn envoy(policy: Value) -> Value {
    let plugin = json!({
        "properties": {
            "failure_policy": {
                "description": "FAIL_RELOAD: should the filter ever trap, it is loaded again. By the default every request \
                                then fails, and with FAIL_OPEN every request passes unlimited",
            },
            "configuration": {
                "description": "The policy: as plain YAML in a google.protobuf.Struct, or as JSON text in a StringValue",
                "properties": {"@type": {"type": "string", "pattern": "google\\.protobuf\\.(Struct|StringValue)$"}},
                "required": ["@type", "value"],
                "if": {"properties": {"@type": {"pattern": "google\\.protobuf\\.Struct$"}}},
                "then": {"properties": {"value": {"$ref": "#/definitions/policy"}}},
                "else": {"properties": {"value": {"type": "string", "contentMediaType": "application/json"}}},
            },
        },
        "required": ["configuration"],
    });
    let holds_policy = json!({
        "properties": {"configuration": {"properties": {"value": has("policies")}, "required": ["value"]}},
        "required": ["configuration"],
    });
    let is_ours = json!({"anyOf": [named("name"), named("root_id"), holds_policy]});
    let node = json!({
        "if": {
            "type": "object",
            "properties": {
                "@type": {"type": "string", "pattern": "envoy\\.extensions\\.filters\\.http\\.wasm\\.v3\\.Wasm$"},
                "config": is_ours,
            },
            "required": ["@type", "config"],
        },
        "then": {"properties": {"config": plugin}},
        "else": {
            "items": {"$ref": "#/definitions/node"},
            "additionalProperties": {"$ref": "#/definitions/node"},
        },
    });
    json!({
        "title": "An Envoy configuration with Tollgate",
        "type": "object",
        "allOf": [{"$ref": "#/definitions/node"}],
        "definitions": {"policy": policy, "node": node},
    })
}

/// Istio's two kinds.
pub fn wasm_plugin(policy: Value) -> Value {
    let plugin = json!({
        "if": {"anyOf": [named("pluginName"), named("url"), config("pluginConfig", has("policies"))]},
        "then": {
            "properties": {
                "pluginConfig": {"$ref": "#/definitions/policy"},
                "phase": {"description": "AUTHZ: behind authentication, whose findings identities are best taken from"},
                "failStrategy": {
                    "description": "FAIL_RELOAD: should the filter ever trap, it is loaded again. By the default every \
                                    request then fails, and with FAIL_OPEN every request passes unlimited",
                },
                "vmConfig": {"description": "env: the variables that the policy names, with valueFrom: HOST"},
            },
            "required": ["pluginConfig"],
        },
    });
    let kinds = [("WasmPlugin", plugin.clone()), ("TrafficExtension", json!({"properties": {"wasm": plugin}}))];
    objects("An Istio WasmPlugin or TrafficExtension with Tollgate", policy, &kinds)
}

/// Envoy Gateway's kind.
pub fn envoy_extension_policy(policy: Value) -> Value {
    let plugin = json!({
        "if": {"anyOf": [named("name"), named("rootID"), config("config", has("policies"))]},
        "then": {
            "properties": {
                "config": {"$ref": "#/definitions/policy"},
                "env": {"description": "hostKeys: the variables that the policy names"},
            },
            "required": ["config"],
        },
    });
    let spec = json!({"properties": {"wasm": {"items": plugin}}});
    objects("An Envoy Gateway EnvoyExtensionPolicy with Tollgate", policy, &[("EnvoyExtensionPolicy", spec)])
}

/// Kubernetes objects, of which these kinds have such a `spec`; others are let be.
fn objects(title: &str, policy: Value, kinds: &[(&str, Value)]) -> Value {
    let is = |kind: &str| json!({"properties": {"kind": {"const": kind}}, "required": ["kind"]});
    let mut rules: Vec<Value> =
        kinds.iter().map(|(kind, spec)| json!({"if": is(kind), "then": {"properties": {"spec": spec}}})).collect();
    let items = json!({"properties": {"items": {"items": {"$ref": "#/definitions/object"}}}});
    rules.push(json!({"if": is("List"), "then": items}));
    json!({
        "title": title,
        "type": "object",
        "allOf": [{"$ref": "#/definitions/object"}],
        "definitions": {"policy": policy, "object": {"allOf": rules}},
    })
}

/// A map with this field.
fn has(field: &str) -> Value {
    json!({"type": "object", "required": [field]})
}

/// A map that has such a value in a field.
fn config(field: &str, value: Value) -> Value {
    json!({"properties": {field: value}, "required": [field]})
}

/// A map whose field names Tollgate.
fn named(field: &str) -> Value {
    config(field, json!({"type": "string", "pattern": IS_TOLLGATE}))
}
