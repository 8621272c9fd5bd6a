//! The Kubernetes objects, the chart's too, against the published models of their kinds: a field that a kind does not
//! have, a wrong type or a wrong word is an error of TypeScript's.

use crate::chart;
use crate::files::{documents, path, replace, text, yaml};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use tollgate_tests::{HASH_KEY, skip, tool};

const MANIFESTS: [&str; 9] = [
    "istio/wasmplugin.yaml",
    "istio/trafficextension.yaml",
    "istio/envoyfilter.yaml",
    "istio/endpoint.yaml",
    "istio/endpoint-outside.yaml",
    "gateway/envoyextensionpolicy.yaml",
    "gateway/envoyproxy.yaml",
    "gateway/envoypatchpolicy.yaml",
    "gateway/clienttrafficpolicy.yaml",
];

/// What else is in `envoy/`, and looked at by the other tests of this suite and by tests of `tollgate schema`;
/// `docker/` by tests/docker too.
const OTHERS: [&str; 9] = [
    "demo.yaml",
    "envoy.yaml",
    "endpoint.yaml",
    "docker/",
    "grafana/tollgate.json",
    "prometheus/alerts.yaml",
    "prometheus/alerts_test.yaml",
    "schema/",
    "helm/tollgate/",
];

#[test]
fn every_file_is_looked_at() {
    let mut unknown = Vec::new();
    let mut folders = vec![path("")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let file = entry.expect("an entry").path();
            if file.is_dir() {
                folders.push(file);
                continue;
            }
            let name = file.strip_prefix(path("")).expect("below envoy/").to_str().expect("text");
            let is_known = |known: &&str| name == *known || (known.ends_with('/') && name.starts_with(known));
            if !MANIFESTS.iter().chain(&OTHERS).any(is_known) {
                unknown.push(name.to_owned());
            }
        }
    }
    assert_eq!(unknown, Vec::<String>::new());
}

#[test]
fn the_objects_are_of_their_kinds() {
    let test = "the_objects_are_of_their_kinds";
    let models = PathBuf::from(std::env::var_os("MODELS_DIR").unwrap_or_default());
    if !models.join("node_modules/typescript").exists() {
        return skip(test, "there are no models: tools/setup models says why");
    }
    let mut objects: Vec<Value> = MANIFESTS.iter().flat_map(|name| documents(name)).collect();
    assert!(objects.len() >= 14, "{}", objects.len());
    if let Some(rendered) = chart::objects(test) {
        objects.extend(rendered);
    }
    let mut source = String::new();
    for (number, object) in objects.iter().enumerate() {
        let (kind, module) = model(object);
        let mut broken = object.clone();
        let part = if broken.get("spec").is_some() { &mut broken["spec"] } else { &mut broken };
        part["nonsense"] = json!(1);
        // A field too many must be seen: @ts-expect-error is itself an error where there is none.
        source += &format!(
            "import type {{ I{kind} as T{number} }} from {module:?};\nexport const right{number}: T{number} = {object};\n\
             // @ts-expect-error\nexport const wrong{number}: T{number} = {broken};\n"
        );
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::os::unix::fs::symlink(models.join("node_modules"), folder.path().join("node_modules")).expect("a link");
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests/unpublished.d.ts");
    std::fs::copy(own, folder.path().join("unpublished.d.ts")).expect("a copy");
    std::fs::write(folder.path().join("objects.ts"), source).expect("a file");
    std::fs::write(folder.path().join("package.json"), "{\"type\":\"module\"}").expect("a file");
    let output = Command::new(tool("NODE_BIN"))
        .arg(models.join("node_modules/typescript/bin/tsc"))
        .args([
            "--noEmit",
            "--strict",
            "--skipLibCheck",
            "--module",
            "nodenext",
            "--target",
            "es2022",
            "--pretty",
            "false",
        ])
        .arg("objects.ts")
        .current_dir(folder.path())
        .output()
        .expect("node runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", said.chars().take(3000).collect::<String>());
}

/// The name of an object's kind, and where its model is.
fn model(object: &Value) -> (&str, String) {
    let (version, kind) = (object["apiVersion"].as_str().expect("a version"), object["kind"].as_str().expect("a kind"));
    let group = version.split('/').next().expect("a group");
    let module = if kind == "TrafficExtension" || group == "gateway.envoyproxy.io" {
        "./unpublished.js".to_owned()
    } else if group.ends_with(".istio.io") {
        format!("@kubernetes-models/istio/{version}/{kind}")
    } else if group == "monitoring.coreos.com" {
        format!("@kubernetes-models/prometheus-operator/{version}/{kind}")
    } else {
        format!("kubernetes-models/{version}/{kind}")
    };
    (kind, module)
}

#[test]
fn check_has_nothing_to_say_of_the_policies() {
    for name in ["istio/wasmplugin.yaml", "istio/trafficextension.yaml", "gateway/envoyextensionpolicy.yaml"] {
        let mut command = Command::new(tool("TOLLGATE_BIN"));
        let output = command.args(["check", "--deny-warnings"]).arg(path(name)).output().expect("tollgate runs");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn the_two_ways_of_istio_say_the_same() {
    let plugin = &documents("istio/wasmplugin.yaml")[0]["spec"];
    let extension = &documents("istio/trafficextension.yaml")[0]["spec"];
    for field in ["selector", "phase", "match"] {
        assert_eq!(plugin[field], extension[field], "{field}");
    }
    for field in ["url", "pluginName", "failStrategy", "vmConfig", "pluginConfig", "imagePullPolicy"] {
        assert!(!plugin[field].is_null());
        assert_eq!(plugin[field], extension["wasm"][field], "{field}");
    }
}

/// What is patched into Envoys is taken by Envoy, together with what else is there; and the labels are the same
/// everywhere.
#[test]
fn envoy_takes_what_is_patched_into_it() {
    let tags = yaml(&text("envoy.yaml"))["stats_config"]["stats_tags"].clone();
    assert_eq!(yaml(&text("demo.yaml"))["stats_config"]["stats_tags"], tags);

    let filter = &documents("istio/envoyfilter.yaml")[0];
    let patches = filter["spec"]["configPatches"].as_array().expect("patches");
    assert_eq!(patches[0]["patch"]["value"], json!({"stats_config": {"stats_tags": tags}}));
    let mut bootstrap = yaml(&text("demo.yaml"));
    replace(&mut bootstrap, "build/tollgate_filter.wasm", tool("TOLLGATE_WASM").display().to_string());
    merge(
        &mut bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0],
        &patches[1]["patch"]["value"],
    );
    takes(&bootstrap);

    let proxy = &documents("gateway/envoyproxy.yaml")[0];
    let value = yaml(proxy["spec"]["bootstrap"]["value"].as_str().expect("text"));
    assert_eq!(value["stats_config"]["stats_tags"], tags);
    takes(&value);

    let patch = &documents("gateway/envoypatchpolicy.yaml")[0]["spec"]["jsonPatches"][0];
    let cluster = &patch["operation"]["value"];
    assert_eq!(cluster, &value["static_resources"]["clusters"][0], "the two ways lead to one cluster");
    assert_eq!((&patch["name"], &cluster["name"]), (&json!("tollgate"), &json!("tollgate")));

    let mut broken = value.clone();
    broken["static_resources"]["clusters"][0]["connect_timeouts"] = json!("1s");
    assert!(!validates(&broken).0, "Envoy refuses what it does not know");
}

fn takes(bootstrap: &Value) {
    let (taken, log) = validates(bootstrap);
    assert!(taken, "{log}");
}

fn validates(bootstrap: &Value) -> (bool, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("envoy.json");
    std::fs::write(&config, bootstrap.to_string()).expect("a file");
    let mut command = Command::new(tool("ENVOY_BIN"));
    command.args(["--mode", "validate", "-l", "warning", "-c"]).arg(&config).env("TOLLGATE_HASH_KEY", HASH_KEY);
    let output = command.output().expect("Envoy runs");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// As protobuf merges messages.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(from)) => into.extend(from.iter().cloned()),
        (into, from) => *into = from.clone(),
    }
}
