use super::*;
use crate::schema::{self, Kind};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

/// No variable is set.
fn nothing(_: &str) -> Option<String> {
    None
}

fn report(name: &str, text: &str) -> FileReport {
    check(&Source { name: name.into(), text: text.into() }, &nothing)
}

/// All that is said of a text, as it is said to a person.
fn said(name: &str, text: &str) -> String {
    report(name, text).text(&Renderer::plain())
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

pub fn read_file(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The fenced blocks of a language in a Markdown text.
pub fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    text.split(fence.as_str()).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// Every file below a folder.
pub fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

#[test]
fn every_example_is_right() {
    let mut found = Vec::new();
    files(&repository().join("envoy"), &mut found);
    let mut checked = 0;
    for path in found {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(&path).expect("text");
        // Examples without a policy are there too: dashboards, charts, schemas.
        let holds_policy = text.contains("policies") && (name.ends_with(".yaml") || name.ends_with(".yml"));
        if holds_policy {
            checked += 1;
            let report = report(&name, &text);
            assert!(report.findings.is_empty(), "{}", report.text(&Renderer::plain()));
        }
    }
    assert!(checked > 0);
}

#[test]
fn every_policy_in_the_documentation_is_right() {
    let mut found = vec![repository().join("README.md")];
    files(&repository().join("docs"), &mut found);
    let mut checked = 0;
    for path in found.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = std::fs::read_to_string(path).expect("text");
        for block in blocks(&text, "yaml").into_iter().filter(|block| block.contains("policies:")) {
            checked += 1;
            let report = report(&path.display().to_string(), block);
            assert!(report.findings.is_empty(), "{}", report.text(&Renderer::plain()));
        }
    }
    assert!(checked > 1);
}

#[test]
fn the_demo_in_words() {
    insta::assert_snapshot!(said("envoy/demo.yaml", &read_file("envoy/demo.yaml")));
}

const ALL_LIMITS: &str = "\
hash_key: {env: TOLLGATE_HASH_KEY}
endpoint: {cluster: tollgate, auth_token: {env: TOLLGATE_TOKEN}}
identities:
  tenant: {sources: [{header: x-tenant-id}, {header: x-api-key}]}
  client: {sources: [{client_address: {ipv6_prefix: 128}}]}
routes:
  - {name: export, path: \"/v1/export/**\", cost: 2}
policies:
  - {name: bucket, scope: local, sharing: worker, limit: {token_bucket: {capacity: 5, refill: 1/30d}}}
  - {name: gcra, scope: global, key: [tenant, client], limit: {gcra: {burst: 20, rate: 90/h}}, on_failure: open}
  - {name: span, scope: global, key: [tenant, route], on_missing: skip, match: {routes: [export, other]},
     limit: {fixed_window: {capacity: 5000000000, window: 1h}}, on_failure: closed}
  - {name: month, scope: global, key: [tenant], limit: {fixed_window: {capacity: 1000, window: month}}, on_failure: open}
  - {name: sliding, scope: global, key: [tenant], limit: {sliding_window: {capacity: 100, window: 1m}}, on_failure: open}
  - {name: log, scope: global, key: [tenant], match: {routes: [export]},
     limit: {sliding_log: {capacity: 100, window: 90s}}, on_failure: {local: {token_bucket: {capacity: 5, refill: 7/3s}}}}
";

#[test]
fn every_limit_in_words() {
    insta::assert_snapshot!(said("policy.yaml", ALL_LIMITS));
}

#[test]
fn what_callers_are_told_in_words() {
    insta::assert_snapshot!(said(
        "policy.yaml",
        "endpoint: {cluster: tollgate, breaker: {failures: 3, open_for: 500ms}}\n\
         policies: [{name: all, scope: global, limit: deny, on_failure: closed}]\n\
         responses: {legacy_headers: epoch, headers_on: rejections, upstream_headers: keep, retry_after_jitter: 10%, \
         grpc_status: unavailable, preflight: limited, cors_origins: [\"https://app.example\", \"*\"]}\n\
         logs: {rejections: 10%}\n"
    ));
}

#[test]
fn mistakes_are_shown_where_they_are() {
    let text = "\
version: 010
hash_key: {value: short-secret}
endpoint: {cluster: tollgate, timeout: 50}
identities:
  credential: {sources: [{heder: x-api-key}]}
  a.b: {sources: [{header: \"x y\"}]}
routes:
  - {name: reports, path: \"/v1/{id}\", exempt: \"true\"}
polices: []
policies:
  - name: guard
    scope: local
    key: [credentail]
    limit: {token_bucket: {capacity: \"200\", refill: 50}}
    limit: {token_bucket: {capacity: \"300\", refill: 50}}
  - name: daily
    scope: global
    limit:
      fixed_window:
        capacity: 100
        window: dya
";
    insta::assert_snapshot!(said("policy.yaml", text));
}

#[test]
fn mistakes_in_json_within_yaml_are_shown_where_they_are() {
    let text = "\
name: tollgate
typed_config:
  \"@type\": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
  config:
    name: tollgate
    failure_policy: FAIL_OPEN
    configuration:
      \"@type\": type.googleapis.com/google.protobuf.StringValue
      value: |
        {\"policies\": [
          {\"name\": \"guard\", \"scope\": \"local\", \"scope\": \"local\",
           \"limit\": {\"token_bucket\": {\"capacity\": 1e3, \"refil\": \"5/s\"}}}]}
";
    insta::assert_snapshot!(said("filter.yaml", text));
    let text = text.replace("{\"policies\"", "{policies");
    insta::assert_snapshot!(said("filter.yaml", &text));
}

/// The demo with something in it replaced.
pub fn demo_with(changes: &[(&str, &str)]) -> String {
    let mut text = read_file("envoy/demo.yaml");
    for (from, to) in changes {
        assert!(text.contains(from), "{from} is not in the demo");
        text = text.replacen(from, to, 1);
    }
    text
}

#[test]
fn what_the_file_around_a_policy_gets_wrong_is_told() {
    let text = demo_with(&[
        ("failure_policy: FAIL_RELOAD", "failure_policy: FAIL_OPEN"),
        ("host_env_keys: [TOLLGATE_HASH_KEY]", "host_env_keys: [HASH_KEY]"),
        ("cluster: tollgate, timeout: 50ms", "cluster: tollgte, timeout: 2s"),
        ("route: {cluster: upstream}", "route: {cluster: upstream, timeout: 1.5s}"),
        ("merge_slashes: true", "merge_slashes: false"),
        (
            "vm_config:",
            "capability_restriction_config: {allowed_capabilities: {proxy_log: {}}}\n                        vm_config:",
        ),
    ]);
    insta::assert_snapshot!(said("envoy.yaml", &text));
}

#[test]
fn envoy_takes_an_empty_list_of_capabilities_for_all() {
    let text = demo_with(&[(
        "vm_config:",
        "capability_restriction_config: {allowed_capabilities: {}}\n                        vm_config:",
    )]);
    assert!(report("envoy.yaml", &text).findings.is_empty());
}

#[test]
fn capabilities_are_looked_at_where_envoy_has_them_now() {
    let text = demo_with(&[(
        "vm_id: tollgate",
        "vm_id: tollgate\n                          capability_restriction_config: {allowed_capabilities: {proxy_log: {}}}",
    )]);
    assert_eq!(report("envoy.yaml", &text).count(Severity::Error), 1);
}

#[test]
fn a_cluster_that_a_control_plane_may_bring_is_not_missed() {
    let changes = [("cluster: tollgate,", "cluster: elsewhere,")];
    let text = demo_with(&changes);
    assert_eq!(report("envoy.yaml", &text).count(Severity::Warning), 1);
    let text = format!("{text}\ndynamic_resources: {{cds_config: {{path_config_source: {{path: cds.yaml}}}}}}\n");
    assert!(report("envoy.yaml", &text).findings.is_empty());
}

const POLICY: &str = "{hash_key: {env: KEY}, identities: {client: {sources: [{client_address: {}}]}}, policies: [{name: guard, \
                      scope: local, key: [client], limit: {token_bucket: {capacity: 100, refill: 50/s}}}]}";

/// Files of every kind around one policy, with and without what the filter needs from them.
pub fn kinds() -> Vec<(&'static str, String)> {
    let json = only_json(POLICY);
    let wasm = "\"@type\": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
    let plugin = |configuration: &str| {
        format!(
            "{{name: tollgate, failure_policy: FAIL_RELOAD, vm_config: {{environment_variables: {{host_env_keys: [KEY]}}}}, \
             configuration: {configuration}}}"
        )
    };
    let structure = plugin(&format!("{{\"@type\": type.googleapis.com/google.protobuf.Struct, value: {POLICY}}}"));
    let string = plugin(&format!("{{\"@type\": type.googleapis.com/google.protobuf.StringValue, value: '{json}'}}"));
    let paths = "normalize_path: true, merge_slashes: true";
    let listener = format!(
        "{{\"@type\": type.googleapis.com/envoy.config.listener.v3.Listener, name: in, filter_chains: [{{filters: [{{name: hcm, \
         typed_config: {{{paths}, http_filters: [{{name: limits, typed_config: {{{wasm}, config: {structure}}}}}]}}}}]}}]}}"
    );
    let per_route = format!("{{routes: [{{typed_per_filter_config: {{limits: {{{wasm}, config: {string}}}}}}}]}}");
    let patch = format!(
        "{{name: limits, typed_config: {{\"@type\": type.googleapis.com/udpa.type.v1.TypedStruct, type_url: \
         type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, value: {{config: {structure}}}}}}}"
    );
    let env = "vmConfig: {env: [{name: KEY, valueFrom: HOST}]}, failStrategy: FAIL_RELOAD";
    let istio = "apiVersion: extensions.istio.io/v1alpha1\nmetadata: {name: limits}";
    let wasm_plugin = format!("kind: WasmPlugin\n{istio}\nspec: {{pluginConfig: {POLICY}, {env}}}\n");
    let gateway = format!(
        "apiVersion: gateway.envoyproxy.io/v1alpha1\nkind: EnvoyExtensionPolicy\nmetadata: {{name: limits}}\n\
         spec: {{wasm: [{{name: other, config: {{a: 1}}}}, {{config: {POLICY}, env: {{hostKeys: [KEY]}}}}]}}\n"
    );
    vec![
        ("a policy", format!("{POLICY}\n")),
        ("a policy in JSON", json),
        ("a bootstrap", format!("static_resources: {{listeners: [{listener}]}}\n")),
        ("listeners as resources", format!("resources: [{listener}]\n")),
        ("JSON text, for one route", format!("{per_route}\n")),
        (
            "EnvoyFilter",
            format!("kind: EnvoyFilter\n{istio}\nspec: {{configPatches: [{{patch: {{value: {patch}}}}}]}}\n"),
        ),
        (
            "TrafficExtension",
            format!("kind: TrafficExtension\n{istio}\nspec: {{wasm: {{pluginConfig: {POLICY}, {env}}}}}\n"),
        ),
        ("List", format!("apiVersion: v1\nkind: List\nitems:\n- {}\n", wasm_plugin.trim_end().replace('\n', "\n  "))),
        ("WasmPlugin", wasm_plugin),
        ("EnvoyExtensionPolicy", gateway),
        (
            "ConfigMap",
            format!("apiVersion: v1\nkind: ConfigMap\ndata:\n  envoy.yaml: |\n    resources: [{listener}]\n  x: y\n"),
        ),
    ]
}

fn only_json(yaml: &str) -> String {
    document::parse(yaml).unwrap_or_else(|error| panic!("{}", error.message)).documents[0].to_json(Dialect::Envoy)
}

#[test]
fn a_policy_is_found_in_every_kind_of_file() {
    for (kind, text) in kinds() {
        let right = report("file", &text);
        assert_eq!((right.findings.len(), right.policies.len()), (0, 1), "{kind}: {}", right.text(&Renderer::plain()));
        let wrong = report("file", &text.replace("100", "0"));
        assert_eq!((wrong.findings.len(), wrong.policies.len()), (1, 0), "{kind}: {}", wrong.text(&Renderer::plain()));
        let finding = &wrong.findings[0];
        assert_eq!(finding.path, "policies[0].limit.token_bucket.capacity", "{kind}");
        assert_eq!(&wrong.shown[finding.span.clone()], "0", "{kind}: where it stands");
        if kind.starts_with("a policy") {
            continue;
        }
        let hidden = report("file", &text.replace("[KEY]", "[]").replace("name: KEY", "name: OTHER"));
        assert_eq!(hidden.findings.len(), 1, "{kind}: {}", hidden.text(&Renderer::plain()));
        assert!(hidden.findings[0].message.starts_with("the filter cannot see the variable KEY"), "{kind}");
    }
    let all: Vec<String> =
        kinds().into_iter().filter(|(kind, _)| *kind != "a policy in JSON").map(|(_, text)| text).collect();
    assert_eq!(report("all.yaml", &all.join("---\n")).policies.len(), all.len(), "several documents in one file");
}

#[test]
fn a_file_without_a_policy_is_wrong_and_is_told_what_was_looked_for() {
    for text in [
        "",
        "a: 1\n",
        "kind: Service\napiVersion: v1\nspec: {}\n",
        "static_resources: {clusters: []}\n",
        // Another plugin.
        "\"@type\": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm\nconfig: {name: other, configuration: \
         {value: '{}'}}\n",
    ] {
        let said = said("file.yaml", text);
        assert!(said.contains("no policy of Tollgate's is in this file: looked for"), "{text}: {said}");
    }
    let said =
        said("file.yaml", "spec: {pluginName: tollgate}\nkind: WasmPlugin\napiVersion: v1\nmetadata: {name: a}\n");
    assert!(said.contains("WasmPlugin a is Tollgate's, and has no policy"), "{said}");
}

#[test]
fn no_secret_is_shown() {
    let secret = "s3cr3t-0123456789";
    let policy = POLICY.replace("{env: KEY}", &format!("{{value: {secret}, x: 1}}"));
    for (_, text) in kinds() {
        let text =
            text.replace(POLICY, &policy).replace(r#"{"env":"KEY"}"#, &format!(r#"{{"value":"{secret}","x":1}}"#));
        let report = report("file", &text);
        assert!(!report.findings.is_empty());
        assert!(!report.text(&Renderer::plain()).contains("s3cr3t"), "{}", report.text(&Renderer::plain()));
        assert!(!report.json().to_string().contains("s3cr3t"));
    }
}

#[test]
fn a_variable_that_is_set_is_held_to_its_rules() {
    let source = Source { name: "policy.yaml".into(), text: POLICY.into() };
    let short = |_: &str| Some("short".to_owned());
    let report = check(&source, &short);
    assert!(report.findings[0].message.starts_with("the secret must have at least 16 bytes"));
    assert!(check(&source, &nothing).findings.is_empty());
}

#[test]
fn programs_get_the_same_as_people() {
    let json = report("policy.yaml", &format!("{POLICY}\n---\npolicies: []\n")).json();
    insta::assert_snapshot!(format!("{json:#}"));
}

/// `docs/mistakes.md`: in its first block a policy that is right; in its tables what is written in place of what, the
/// message, and whether the JSON Schema refuses it too. With `UPDATE_DOCS=1` the messages are written anew.
#[test]
fn the_table_of_mistakes_is_what_is_said() {
    let path = "docs/mistakes.md";
    let text = read_file(path);
    let policy = *blocks(&text, "yaml").first().expect("a policy");
    let demo = read_file("envoy/demo.yaml");
    let code = |cell: &str| cell.trim().trim_matches('`').trim().replace("⏎", "\n").replace("\\|", "|");
    let (mut rows, mut is_around) = (0, false);
    let updated: Vec<String> = text
        .lines()
        .map(|line| {
            is_around |= line == "## Around it";
            let cells: Vec<&str> = line.split(" | ").collect();
            let [from, to, ..] = cells.as_slice() else { return line.into() };
            if !line.starts_with("| `") {
                return line.into();
            }
            rows += 1;
            let (from_code, to_code) = (code(from.trim_start_matches("| ")), code(to));
            let base = if is_around { demo.as_str() } else { policy };
            assert!(base.contains(&from_code), "{from_code:?} is not there to be replaced");
            let wrong = base.replacen(&from_code, &to_code, 1);
            let report = report("file.yaml", &wrong);
            assert!(!report.findings.is_empty(), "{to_code:?} is no mistake");
            let message = |finding: &Finding| match finding.path.as_str() {
                "" => finding.message.clone(),
                path => format!("{path}: {}", finding.message),
            };
            let messages: Vec<String> = report.findings.iter().map(message).collect();
            let kind = if is_around { Kind::Envoy } else { Kind::Policy };
            let editor = if schema::tests::is_valid(kind, &only_json(&wrong)) { "" } else { "yes" };
            format!("{from} | {to} | {} | {editor} |", messages.join("<br>").replace('|', "\\|"))
        })
        .collect();
    let updated = updated.join("\n") + "\n";
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(repository().join(path), &updated).expect("written");
    }
    assert_eq!(updated, text, "UPDATE_DOCS=1 writes what is said now");
    assert!(rows >= 20, "{rows}");
}

#[test]
fn a_mistake_within_a_character_is_shown_at_its_beginning() {
    let text = "\"@type\": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm\n\
                config: {name: tollgate, configuration: {value: '{\"policies\" ä'}}\n";
    let said = said("envoy.yaml", text);
    assert!(said.contains("not valid JSON: expected `:`") && said.contains("envoy.yaml:2:62"), "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever becomes of a file, it is told something about it, and every place is in it.
    #[test]
    fn no_file_is_too_odd(
        which in 0_usize..12,
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..6, "[ -~\n\tä:{}\\[\\]\"'|&*#-]{0,4}"), 1..5),
    ) {
        let mut text = match kinds().get(which) {
            Some((_, text)) => text.clone(),
            None => read_file("envoy/demo.yaml"),
        };
        for (at, length, new) in cuts {
            let mut start = at.index(text.len() + 1);
            while !text.is_char_boundary(start) {
                start -= 1;
            }
            let mut end = (start + length).min(text.len());
            while !text.is_char_boundary(end) {
                end += 1;
            }
            text.replace_range(start..end, &new);
        }
        let report = report("file", &text);
        prop_assert!(!report.findings.is_empty() || !report.policies.is_empty());
        prop_assert!(report.findings.iter().all(|finding| text.get(finding.span.clone()).is_some()));
        report.text(&Renderer::plain());
        report.json();
    }
}

#[test]
fn the_capabilities_are_all_that_the_filter_uses() {
    let host = read_file("src/filter/src/host.rs");
    let callbacks = read_file("src/filter/src/lib.rs");
    let function =
        |line: &str| line.trim().strip_prefix("fn ").and_then(|rest| Some(rest.split_once('(')?.0.to_owned()));
    // What it imports by itself; the SDK imports the call to the endpoint.
    let imports = host.lines().take_while(|line| !line.starts_with("const OK")).filter_map(function);
    let called = callbacks.lines().filter_map(function).filter(|name| name.starts_with("on_"));
    let exports = called.filter(|name| name != "on_http_call_response").map(|name| name.replacen("on_http_", "on_", 1));
    let used: Vec<String> = imports.chain(exports.map(|name| format!("proxy_{name}"))).collect();
    assert!(used.len() > 25, "{used:?}");
    let missing: Vec<&String> = used.iter().filter(|name| !deployment::CALLS.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_file_without_an_end_is_refused() {
    let error = Source::read("/dev/zero").err().expect("it is refused");
    assert_eq!(error, "/dev/zero: cannot be read: it has more than 64 MiB");
}
