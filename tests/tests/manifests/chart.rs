//! The Helm chart, rendered by Helm's own engine.

use crate::files::{path, text, yaml};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use tollgate_tests::{Process, eventually, skip, tool};

const CHART: &str = "helm/tollgate";

/// The values files in `ci/`, each of which is a chart that installs.
pub const VALUES: [&str; 3] = ["memory", "redis", "mesh"];

/// What Helm says of the chart with these values.
struct Rendered(Value);

impl Rendered {
    fn error(&self) -> &str {
        self.0["error"].as_str().expect("an error")
    }

    /// The objects; none, where it is refused.
    fn objects(&self) -> Vec<Value> {
        let templates = self.0["templates"].as_object().unwrap_or_else(|| panic!("refused: {}", self.error()));
        let yamls = templates.iter().filter(|(name, _)| name.ends_with(".yaml"));
        yamls.map(|(_, text)| text.as_str().expect("text")).filter(|text| !text.trim().is_empty()).map(yaml).collect()
    }
}

/// `None`: there is no Helm here, and the test has said so.
fn render(test: &str, values: &Value) -> Option<Rendered> {
    let python = std::env::var_os("HELM_PYTHON").unwrap_or_default();
    if !Path::new(&python).exists() {
        skip(test, "there is no Helm: tools/setup helm says why");
        return None;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("values.json");
    std::fs::write(&file, values.to_string()).expect("a file");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests/render.py");
    let output = Command::new(&python).arg(script).arg(path(CHART)).arg(&file).output().expect("Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(Rendered(serde_json::from_slice(&output.stdout).expect("JSON")))
}

fn values(name: &str) -> Value {
    yaml(&text(&format!("{CHART}/ci/{name}-values.yaml")))
}

/// What the chart makes of each of its values files.
pub fn objects(test: &str) -> Option<Vec<Value>> {
    let mut all = Vec::new();
    for name in VALUES {
        all.extend(render(test, &values(name))?.objects());
    }
    Some(all)
}

fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

fn args(objects: &[Value]) -> Vec<String> {
    let container = &find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    let args = container["args"].as_array().expect("arguments");
    args.iter().map(|arg| arg.as_str().expect("text").to_owned()).collect()
}

#[test]
fn every_values_file_is_rendered() {
    let folder = path(CHART).join("ci");
    let names = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().expect("text")).collect();
    names.retain(|name| !VALUES.iter().any(|known| *name == format!("{known}-values.yaml")));
    assert_eq!(names, Vec::<String>::new());
}

#[test]
fn helm_finds_nothing_wrong() {
    for name in VALUES {
        let Some(rendered) = render("helm_finds_nothing_wrong", &values(name)) else { return };
        let lint = &rendered.0["lint"];
        // Severity 1 is a recommendation, such as an icon.
        let messages = lint["messages"].as_array().expect("messages");
        assert!(messages.iter().all(|message| message["severity"] == 1), "{lint}");
        assert_eq!(lint["errors"], json!([]), "{lint}");
    }
}

#[test]
fn what_would_not_work_is_refused_with_what_to_do() {
    let test = "what_would_not_work_is_refused_with_what_to_do";
    let mistakes = [
        (json!({}), "callers are not authenticated"),
        (json!({"existingSecret": "a", "replicaCount": 2}), "store.url is memory"),
        (json!({"allowRemote": true, "autoscaling": {"enabled": true}}), "store.url is memory"),
        (json!({"existingSecret": "a", "store": {"url": "redis://u:p@redis"}}), "a user or a password"),
        (json!({"allowRemote": true, "secretKeys": {"redisPassword": "p"}}), "existingSecret no Secret"),
        (json!({"existingSecret": "a", "replicas": 2}), "additional properties 'replicas' not allowed"),
        (json!({"existingSecret": "a", "store": {"timeout": "20"}}), "/store/timeout"),
        (json!({"existingSecret": "a", "image": {"digest": "0123"}}), "/image/digest"),
    ];
    for (values, message) in mistakes {
        let Some(rendered) = render(test, &values) else { return };
        assert!(rendered.error().contains(message), "{values}: {}", rendered.error());
    }
}

#[test]
fn every_flag_is_one_of_tollgate_serve() {
    let help = Command::new(tool("TOLLGATE_BIN")).args(["serve", "--help"]).output().expect("tollgate runs");
    let help = String::from_utf8(help.stdout).expect("text");
    let known = |flag: &str| help.split([' ', '[', '\n', '=']).any(|word| word == flag);
    assert!(known("--listen") && !known("--listens"));
    let Some(objects) = objects("every_flag_is_one_of_tollgate_serve") else { return };
    let mut seen = 0;
    for object in objects.iter().filter(|object| object["kind"] == "Deployment") {
        let args = args(std::slice::from_ref(object));
        assert_eq!(args[0], "serve");
        for arg in &args[1..] {
            let flag = arg.split('=').next().expect("a flag");
            assert!(known(flag), "{flag} is no flag of tollgate serve");
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen}");
}

#[tokio::test]
async fn the_endpoint_starts_with_the_arguments_and_answers_the_probes() {
    let Some(rendered) = render("the_endpoint_starts_with_the_arguments_and_answers_the_probes", &values("memory"))
    else {
        return;
    };
    let objects = rendered.objects();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let secrets = folder.path().join("auth-tokens");
    std::fs::write(&secrets, "a-token-for-the-manifests").expect("a file");
    let secrets = secrets.display().to_string();
    let args = args(&objects)
        .into_iter()
        .map(|arg| arg.replace("0.0.0.0:10002", "127.0.0.1:0").replace("/etc/tollgate/secrets/auth-tokens", &secrets));
    let mut command = Command::new(tool("TOLLGATE_BIN"));
    command.args(args);
    let process = Process::start(&mut command, &folder.path().join("log"));
    let address = eventually("the endpoint listens", async || {
        let log = process.log();
        let line = log.lines().find_map(|line| line.strip_prefix("listening on http://"));
        line.ok_or(log.clone()).map(|address| address.parse().expect("an address"))
    })
    .await;
    let client = tollgate_tests::Client::new(address);
    let container = &find(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    for probe in ["livenessProbe", "readinessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().expect("a path");
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
}

#[test]
fn pods_may_do_nothing_that_the_endpoint_does_not_need() {
    let Some(objects) = objects("pods_may_do_nothing_that_the_endpoint_does_not_need") else { return };
    let deployments: Vec<&Value> = objects.iter().filter(|object| object["kind"] == "Deployment").collect();
    assert_eq!(deployments.len(), VALUES.len());
    for deployment in deployments {
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"], json!({"type": "RuntimeDefault"}));
        let container = &pod["containers"][0]["securityContext"];
        let wanted = json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                            "capabilities": {"drop": ["ALL"]}});
        assert_eq!(container, &wanted);
        let (selector, labels) =
            (&deployment["spec"]["selector"]["matchLabels"], &deployment["spec"]["template"]["metadata"]["labels"]);
        for (name, value) in selector.as_object().expect("labels") {
            assert_eq!(&labels[name], value, "the pods are the Deployment's");
        }
    }
}

#[test]
fn everything_that_can_be_switched_on_is_there_and_the_files_are_the_shipped_ones() {
    let test = "everything_that_can_be_switched_on_is_there_and_the_files_are_the_shipped_ones";
    let Some(rendered) = render(test, &values("redis")) else { return };
    let objects = rendered.objects();
    for kind in [
        "Service",
        "ServiceAccount",
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
        "NetworkPolicy",
        "ServiceMonitor",
    ] {
        find(&objects, kind);
    }
    assert_eq!(find(&objects, "PrometheusRule")["spec"], yaml(&text("prometheus/alerts.yaml")));
    assert_eq!(find(&objects, "ConfigMap")["data"]["tollgate.json"], text("grafana/tollgate.json"));
    let deployment = find(&objects, "Deployment");
    assert!(deployment["spec"].get("replicas").is_none(), "the autoscaler's number is not undone");
    let image = deployment["spec"]["template"]["spec"]["containers"][0]["image"].as_str().expect("an image");
    assert!(image.starts_with("registry.example.com/tollgate@sha256:"), "{image}");
}

#[test]
fn every_value_is_described_and_bounded() {
    let schema: Value = serde_json::from_str(&text("helm/tollgate/values.schema.json")).expect("JSON");
    let source = text("helm/tollgate/values.yaml");
    same_fields("", &yaml(&source), &schema);
    // For helm-docs: a comment with -- before each value that is no map of values.
    let mut described = false;
    for line in source.lines() {
        let trimmed = line.trim_start();
        let is_value =
            trimmed.split_once(": ").is_some_and(|(_, value)| !value.is_empty()) && !trimmed.starts_with('#');
        if is_value {
            let of_a_map = line.starts_with("  requests:") || line.starts_with("  limits: {");
            assert!(described || of_a_map, "no `# --` before {line}");
        }
        described = trimmed.starts_with("# --") || (described && trimmed.starts_with('#'));
    }
}

/// The schema has every value, and no other one.
fn same_fields(place: &str, values: &Value, schema: &Value) {
    let (Some(values), Some(properties)) = (values.as_object(), schema["properties"].as_object()) else { return };
    for (name, value) in values {
        let below = properties.get(name).unwrap_or_else(|| panic!("{place}{name} is not in the schema"));
        same_fields(&format!("{place}{name}."), value, below);
    }
    for name in properties.keys().filter(|name| *name != "global") {
        assert!(values.contains_key(name), "{place}{name} is not in values.yaml");
    }
}
