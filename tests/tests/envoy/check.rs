//! `tollgate check` says what Envoy and the filter say.

use crate::admitted;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tollgate_tests::{EnvoyBuilder, HASH_KEY, NEVER, Upstream, burst, config, local, tool};

/// The demo with these lines at the end of its routes and of its policies.
fn demo_with(routes: &str, policies: &str) -> String {
    let demo = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy/demo.yaml")).expect("text");
    let module = tool("TOLLGATE_WASM");
    let demo = demo.replace("build/tollgate_filter.wasm", &module.display().to_string());
    let indented = |lines: &str, by: usize| lines.lines().map(|line| format!("{:by$}{line}\n", "")).collect::<String>();
    let (before, after) = demo.split_once("                            policies:\n").expect("policies");
    let (policies_before, rest) =
        after.split_once("                  - name: envoy.filters.http.router").expect("a router");
    format!(
        "{before}{}                            policies:\n{policies_before}{}                  - name: \
         envoy.filters.http.router{rest}",
        indented(routes, 30),
        indented(policies, 30)
    )
}

fn run(command: &mut Command) -> Output {
    command.env("TOLLGATE_HASH_KEY", HASH_KEY).output().expect("it runs")
}

/// Envoy's exit status and log, and what `check` found.
fn both(text: &str) -> (bool, String, Value) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("envoy.yaml");
    std::fs::write(&path, text).expect("written");
    let envoy = run(Command::new(tool("ENVOY_BIN")).args(["--mode", "validate", "-l", "error", "-c"]).arg(&path));
    let check =
        run(Command::new(tool("TOLLGATE_BIN")).args(["check", "--deny-warnings", "--format", "json"]).arg(&path));
    let found: Value = serde_json::from_slice(&check.stdout).expect("JSON");
    assert_eq!(check.status.success(), found["errors"] == 0 && found["warnings"] == 0);
    (envoy.status.success(), String::from_utf8_lossy(&envoy.stderr).into_owned(), found["files"][0]["findings"].clone())
}

/// Values without quotes are where YAML misleads: 010 is 8, `no` is false, 1.5 is text.
const SCALARS: [&str; 32] = [
    "100",
    "+100",
    "0144",
    "0x64",
    "2147483647",
    "2147483648",
    "999999999999",
    "1000000000000",
    "-5",
    "08",
    "0o10",
    "0b11",
    "1_000",
    "1.5",
    "1.",
    "1e3",
    ".inf",
    "~",
    "null",
    "nULL",
    "yes",
    "No",
    "oN",
    "y",
    "OFF",
    "true",
    "tRUE",
    "\"100\"",
    "!!int \"100\"",
    "! 100",
    "!!str 100",
    "a",
];

#[test]
fn values_mean_the_same_to_check_and_to_envoy() {
    let (mut routes, mut policies) = (String::new(), String::new());
    for (index, scalar) in SCALARS.iter().enumerate() {
        routes +=
            &format!("- {{name: r{index}, path: /{index}, exempt: {scalar}}}\n- {{name: {scalar}, path: /n{index}}}\n");
        let limit = format!("limit: {{token_bucket: {{capacity: {scalar}, refill: 1/s}}}}");
        policies += &format!("- {{name: p{index}, scope: local, match: {{routes: [other]}}, {limit}}}\n");
    }
    let (accepted, log, findings) = both(&demo_with(&routes, &policies));
    let findings = findings.as_array().expect("a list");
    assert!(!accepted);
    assert!(log.contains(&format!("the policy is refused, {} to mend", findings.len())), "{findings:#?}\n{log}");
    for finding in findings {
        let line =
            format!("{}: {}", finding["path"].as_str().expect("a path"), finding["message"].as_str().expect("text"));
        assert!(log.contains(&line), "Envoy does not say {line:?}:\n{log}");
    }
}

#[test]
fn what_envoy_takes_is_right() {
    let routes =
        "- {name: a, path: /a, exempt: yes}\n- {name: 1.5, path: /b, cost: 0x5}\n- {name: nULL, path: /c, cost: 03}\n";
    let policies = "- {name: large, scope: local, limit: {token_bucket: {capacity: 5000000000, refill: 1/s}}}\n";
    let (accepted, log, findings) = both(&demo_with(routes, policies));
    assert!(accepted, "{log}");
    assert_eq!(findings, json!([]));
}

#[tokio::test]
async fn the_capabilities_that_check_asks_for_are_enough() {
    let text = demo_with("", "").replacen(
        "vm_config:",
        "capability_restriction_config: {allowed_capabilities: {proxy_log: {}}}\n                        vm_config:",
        1,
    );
    let (.., findings) = both(&text);
    let message = findings[0]["message"].as_str().expect("a message");
    let mut names: Vec<&str> = message.rsplit_once(": add ").expect("names").1.split(", ").collect();
    names.push("proxy_log");
    let upstream = Upstream::start().await;
    let policies = config(&[local("guard", 3, NEVER), tollgate_tests::global("per-key", 2, NEVER, json!("closed"))]);
    let endpoint = tollgate_tests::Endpoint::start("memory").await;
    let builder = EnvoyBuilder::new(policies, upstream.address).endpoint(endpoint.address);
    let mut envoy = builder.capabilities(&names).start().await;
    let client = envoy.client();
    let replies = burst(5, 1, |_| client.get_as("k")).await;
    assert_eq!(admitted(&replies), 2);
    assert!(replies.iter().all(|reply| reply.header("ratelimit").is_some()), "callers are told");
    assert_eq!((envoy.outcome("denied").await, envoy.count("version.test").await > 0), (3, true));
    envoy.assert_sound();
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// The demo with another policy.
fn demo_holding(policy: &str) -> String {
    let demo = demo_with("", "");
    let (before, rest) = demo.split_once("                          value:\n").expect("a policy");
    let (_, after) = rest.split_once("                  - name: envoy.filters.http.router").expect("a router");
    let policy: String = policy.lines().map(|line| format!("{:28}{line}\n", "")).collect();
    format!(
        "{before}                          value:\n{policy}                  - name: envoy.filters.http.router{after}"
    )
}

#[test]
fn every_example_passes_check_and_is_accepted_by_envoy() {
    let mut found = Vec::new();
    files(&repository().join("envoy"), &mut found);
    let (mut checked, mut accepted_files) = (0, 0);
    for path in found.iter().filter(|path| path.extension().is_some_and(|extension| extension == "yaml")) {
        let text = std::fs::read_to_string(path).expect("text");
        if !text.contains("policies:") {
            continue;
        }
        let check = run(Command::new(tool("TOLLGATE_BIN")).args(["check", "--deny-warnings"]).arg(path));
        assert!(check.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&check.stdout));
        checked += 1;
        // Those that want files of a deployment are tried with such, in `manifests`.
        if text.contains("build/tollgate_filter.wasm") {
            let module = tool("TOLLGATE_WASM");
            let (accepted, log, _) = both(&text.replace("build/tollgate_filter.wasm", &module.display().to_string()));
            assert!(accepted, "{}: {log}", path.display());
            accepted_files += 1;
        }
    }
    assert!(checked > 0 && accepted_files > 0);
}

#[test]
fn every_policy_in_the_documentation_passes_check_and_is_accepted_by_envoy() {
    let mut found = vec![repository().join("README.md")];
    files(&repository().join("docs"), &mut found);
    let mut policies =
        vec![std::fs::read_to_string(repository().join("tests/fuzz/corpus/policy/everything.json")).expect("text")];
    for path in found.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = std::fs::read_to_string(path).expect("text");
        let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        policies.extend(blocks.filter(|block| block.contains("policies:")).map(String::from));
    }
    assert!(policies.len() > 2, "{}", policies.len());
    for (index, policy) in policies.iter().enumerate() {
        let (accepted, log, findings) = both(&demo_holding(policy));
        assert!(accepted, "{policy}\n{log}");
        // The one with everything also has what is hardly meant.
        let is_error = |finding: &Value| finding["severity"] == "error";
        let is_right =
            findings.as_array().is_some_and(|all| all.is_empty() || (index == 0 && !all.iter().any(is_error)));
        assert!(is_right, "{policy}\n{findings:#}");
    }
}

#[test]
fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is_one() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy/demo.yaml").display().to_string();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("access.log");
    std::fs::write(&log, r#"{"time": 1, "method": "GET", "path": "/"}"#).expect("written");
    let log = log.display().to_string();
    let commands: [&[&str]; 4] =
        [&["schema", "policy"], &["check", &demo], &["explain", &demo, "--path", "/"], &["replay", &demo, &log]];
    for words in commands {
        let command = || {
            let mut command = Command::new(tool("TOLLGATE_BIN"));
            command.args(words);
            command
        };
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let gone = run(command().stdout(writer));
        assert!(gone.status.success() && gone.stderr.is_empty(), "{words:?}: {gone:?}");
        let full = run(command().stdout(std::fs::File::create("/dev/full").expect("it is there")));
        let told = String::from_utf8_lossy(&full.stderr);
        assert_eq!(full.status.code(), Some(2), "{words:?}: {told}");
        assert!(told.contains("standard output cannot be written: No space left"), "{told}");
    }
}
