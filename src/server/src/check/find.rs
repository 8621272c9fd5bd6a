//! Where the policies are in a file, and what the file says around them.

use crate::check::report::Finding;
use crate::document::{Dialect, Documents, Node, Value, parse_within};
use std::borrow::Cow;
use std::ops::Range;
use tollgate_core::policy::nearest;

/// What was looked for, for those whose file has none of it.
pub const LOOKED_FOR: &str = "looked for a policy itself (a map with `policies`), for Envoy http_filters of type \
     envoy.filters.http.wasm whose name or root_id is tollgate or whose configuration has `policies`, for an Istio \
     WasmPlugin, TrafficExtension or EnvoyFilter, and for an Envoy Gateway EnvoyExtensionPolicy";

/// The fields of a policy by which it is known.
const FIELDS: &[&str] = &["policies", "identities", "routes", "hash_key", "endpoint"];

const NOT_A_STRUCT: &str = "a policy in plain YAML goes under `value`, beside `\"@type\": \
     type.googleapis.com/google.protobuf.Struct`; a StringValue takes it as JSON text";

const WASM: &str = "envoy.extensions.filters.http.wasm.v3.Wasm";

/// A policy in a file.
pub struct Found<'a> {
    /// Where, in words, such as `WasmPlugin tollgate`.
    pub place: String,
    pub policy: Cow<'a, Node>,
    pub dialect: Dialect,
    pub host: Host<'a>,
}

/// What is around a policy.
pub enum Host<'a> {
    /// Nothing: the file is the policy.
    None,
    Envoy {
        /// The plugin's configuration: `name`, `vm_config`, `configuration`, …
        plugin: &'a Node,
        /// The connection manager whose filter it is.
        manager: Option<&'a Node>,
        /// All of the file, or of the patch.
        root: &'a Node,
    },
    /// A `WasmPlugin`'s `spec`, or a `TrafficExtension`'s `spec.wasm`.
    Istio(&'a Node),
    /// One of `spec.wasm` of an `EnvoyExtensionPolicy`.
    EnvoyGateway(&'a Node),
}

/// A document with the way in which it is read.
pub struct Document {
    pub node: Node,
    pub dialect: Dialect,
}

/// Opens Kubernetes lists, and the texts of `ConfigMap`s; settles how each document is read.
pub fn open(source: &str, documents: Documents, dialect: Dialect) -> (Vec<Document>, Vec<Finding>) {
    let mut findings: Vec<Finding> = documents.repeated.iter().map(Finding::repeated).collect();
    let mut opened = Vec::new();
    for mut node in documents.documents {
        let Some(kind) = kind(&node).map(String::from) else {
            opened.push(Document { node, dialect });
            continue;
        };
        let dialect = if dialect == Dialect::Json { Dialect::Json } else { Dialect::Kubernetes };
        node.merge();
        if kind.ends_with("List") {
            let items = node.field("items").map(|items| items.items().to_vec()).unwrap_or_default();
            let items = Documents { documents: items, repeated: Vec::new() };
            opened.extend(open(source, items, dialect).0);
        } else if kind == "ConfigMap" {
            let data = node.field("data").map(Node::entries).unwrap_or_default();
            for text in data.iter().map(|entry| &entry.node) {
                let inner = text.text().map(|inner| parse_within(source, &text.span, inner, Dialect::Envoy));
                // What is not YAML is not Envoy's configuration either.
                let Some(Ok(inner)) = inner else { continue };
                if inner.documents.iter().any(|node| !node.entries().is_empty()) {
                    let (nodes, repeated) = open(source, inner, Dialect::Envoy);
                    opened.extend(nodes);
                    findings.extend(repeated);
                }
            }
        } else {
            opened.push(Document { node, dialect });
        }
    }
    (opened, findings)
}

/// The kind of a Kubernetes object.
fn kind(node: &Node) -> Option<&str> {
    node.field("api_version")?;
    node.field("kind")?.text()
}

/// Collects what is found in the documents of one file.
pub struct Finder<'a> {
    source: &'a str,
    pub found: Vec<Found<'a>>,
    pub findings: Vec<Finding>,
}

impl<'a> Finder<'a> {
    pub fn new(source: &'a str) -> Self {
        Self { source, found: Vec::new(), findings: Vec::new() }
    }

    pub fn look(&mut self, document: &'a Document) {
        let (node, dialect) = (&document.node, document.dialect);
        match kind(node) {
            Some(kind) => self.object(kind, node, dialect),
            None if is_policy(node) => self.add("policy".into(), Cow::Borrowed(node), dialect, Host::None),
            None => self.walk(node, dialect, None, node, &mut Vec::new()),
        }
    }

    fn object(&mut self, kind: &str, node: &'a Node, dialect: Dialect) {
        let name = node.at(&["metadata", "name"]).and_then(Node::text).unwrap_or("without a name");
        let place = format!("{kind} {name}");
        let Some(spec) = node.field("spec") else { return };
        match kind {
            "WasmPlugin" => self.istio(place, spec, dialect),
            "TrafficExtension" => {
                if let Some(wasm) = spec.field("wasm") {
                    self.istio(place, wasm, dialect);
                }
            }
            "EnvoyFilter" => {
                for patch in spec.field("config_patches").map(Node::items).unwrap_or_default() {
                    if let Some(value) = patch.at(&["patch", "value"]) {
                        self.walk(value, dialect, None, value, &mut vec![place.clone()]);
                    }
                }
            }
            "EnvoyExtensionPolicy" => {
                for wasm in spec.field("wasm").map(Node::items).unwrap_or_default() {
                    let names = ["name", "root_id"].map(|name| wasm.field(name));
                    self.plugin(place.clone(), &names, wasm.field("config"), wasm, dialect, Host::EnvoyGateway(wasm));
                }
            }
            _ => {}
        }
    }

    fn istio(&mut self, place: String, spec: &'a Node, dialect: Dialect) {
        let names = ["plugin_name", "url"].map(|name| spec.field(name));
        self.plugin(place, &names, spec.field("plugin_config"), spec, dialect, Host::Istio(spec));
    }

    /// A plugin whose configuration stands there as a map.
    fn plugin(
        &mut self,
        place: String,
        names: &[Option<&Node>],
        config: Option<&'a Node>,
        whole: &'a Node,
        dialect: Dialect,
        host: Host<'a>,
    ) {
        let is_named = names.iter().flatten().any(|name| is_tollgate(name));
        match config {
            Some(config) if is_named || is_policy(config) => self.add(place, Cow::Borrowed(config), dialect, host),
            None if is_named => self.without_policy(&place, whole),
            _ => {}
        }
    }

    /// Looks for Wasm filters at any depth of an Envoy configuration. `names` are those on the way.
    fn walk(
        &mut self,
        node: &'a Node,
        dialect: Dialect,
        manager: Option<&'a Node>,
        root: &'a Node,
        names: &mut Vec<String>,
    ) {
        let manager = if node.field("http_filters").is_some() { Some(node) } else { manager };
        if is_wasm(node)
            && let Some(plugin) = node.field("config").or_else(|| node.at(&["value", "config"]))
        {
            self.filter(plugin, dialect, manager, root, names);
            return;
        }
        let name = node.field("name").and_then(Node::text).map(String::from);
        let is_named = name.is_some();
        names.extend(name);
        match &node.value {
            Value::Scalar(_) => {}
            Value::List(list) => list.iter().for_each(|item| self.walk(item, dialect, manager, root, names)),
            Value::Map(map) => map.iter().for_each(|entry| self.walk(&entry.node, dialect, manager, root, names)),
        }
        if is_named {
            names.pop();
        }
    }

    fn filter(
        &mut self,
        plugin: &'a Node,
        dialect: Dialect,
        manager: Option<&'a Node>,
        root: &'a Node,
        names: &[String],
    ) {
        let is_named = ["name", "root_id"].iter().filter_map(|name| plugin.field(name)).any(is_tollgate);
        let place = names.join(" / ");
        let host = || Host::Envoy { plugin, manager, root };
        let Some(configuration) = plugin.field("configuration") else {
            if is_named {
                self.without_policy(&place, plugin);
            }
            return;
        };
        let value = configuration.field("value").unwrap_or(configuration);
        let kind = configuration.entry("@type").and_then(|entry| entry.node.text()).unwrap_or_default();
        let Some(text) = value.text().filter(|_| !value.is_null(dialect)) else {
            if is_named || is_policy(value) {
                if !kind.ends_with("google.protobuf.Struct") {
                    let span = configuration.entry("@type").map_or(&configuration.span, |entry| &entry.node.span);
                    self.findings.push(Finding::error(span, NOT_A_STRUCT));
                }
                self.add(place, Cow::Borrowed(value), dialect, host());
            }
            return;
        };
        match parse_within(self.source, &value.span, text, Dialect::Json).map(single) {
            Ok((Some(policy), repeated)) if is_named || is_policy(&policy) => {
                self.findings.extend(repeated);
                self.add(place, Cow::Owned(policy), Dialect::Json, host());
            }
            Err(error) if is_named => self.findings.push(Finding::error(
                &error.span,
                format!(
                    "{}; a StringValue takes the policy as JSON text, a google.protobuf.Struct as plain YAML",
                    error.message
                ),
            )),
            _ => {}
        }
    }

    fn without_policy(&mut self, place: &str, at: &Node) {
        self.findings.push(Finding::error(&at.span, format!("{place} is Tollgate's, and has no policy")));
    }

    fn add(&mut self, place: String, policy: Cow<'a, Node>, dialect: Dialect, host: Host<'a>) {
        self.found.push(Found { place, policy, dialect, host });
    }
}

fn single(documents: Documents) -> (Option<Node>, Vec<Finding>) {
    let repeated = documents.repeated.iter().map(Finding::repeated).collect();
    (documents.documents.into_iter().next(), repeated)
}

/// A map with `policies`, or with a name near it, or with two other fields of a policy.
fn is_policy(node: &Node) -> bool {
    let known = node.entries().iter().filter(|entry| FIELDS.contains(&entry.name.as_str())).count();
    known > 1 || node.entries().iter().any(|entry| nearest(&entry.name, FIELDS) == Some("policies"))
}

fn is_tollgate(name: &Node) -> bool {
    name.text().is_some_and(|name| name.contains("tollgate"))
}

fn is_wasm(node: &Node) -> bool {
    let names_it = |name: &str| {
        let text = node.entries().iter().find(|entry| entry.name == name).and_then(|entry| entry.node.text());
        text.is_some_and(|text| text.ends_with(WASM))
    };
    names_it("@type") || names_it("type_url") || names_it("typeUrl")
}

/// The span of a node, or of its field where that is there.
pub fn span_of(node: &Node, field: &str) -> Range<usize> {
    node.field(field).map_or_else(|| node.span.clone(), |field| field.span.clone())
}
