//! What operators see: metrics with labels, lines about rejections, notes for access logs.

use crate::stack;
use serde_json::{Value, json};
use tollgate_tests::{Endpoint, EnvoyBuilder, NEVER, Upstream, burst, config, eventually, global, local};

/// A policy set in which everything can happen.
fn policy() -> Value {
    let mut shadow = local("tried-out", 1, NEVER);
    shadow["enforce"] = json!("shadow");
    let mut policy = config(&[local("guard", 100, NEVER), global("per-key", 3, NEVER, json!("closed")), shadow]);
    policy["routes"] =
        json!([{"name": "health", "path": "/healthz", "exempt": true}, {"name": "reports", "path": "/reports/{id}"}]);
    policy
}

#[tokio::test]
async fn a_line_in_the_log_says_what_was_rejected_and_for_whom_without_saying_who() {
    // F08
    let (mut envoy, _endpoint, _upstream) = stack(policy()).await;
    let client = envoy.client();
    let replies = burst(50, 1, |_| client.get_as("a-secret-key")).await;
    assert_eq!(replies.iter().filter(|reply| reply.status == 429).count(), 47);
    let lines = |log: String| -> Vec<Value> {
        let found = log.lines().filter_map(|line| line.find(r#"{"event":"rejected""#).map(|at| line[at..].to_owned()));
        found.map(|line| serde_json::from_str(&line).expect("JSON")).collect()
    };
    // One a second for each of the two workers, at the most.
    let shown = lines(envoy.process.log());
    assert!((1..=8).contains(&shown.len()), "{shown:?}");
    let line = &shown[0];
    assert_eq!(line["outcome"], "denied");
    assert_eq!(line["policies"], json!(["per-key"]));
    assert_eq!((&line["policy_version"], &line["route"]), (&json!("test"), &json!("other")));
    assert!(line["wait_ms"].as_u64().is_some_and(|wait| wait > 0));
    let key = line["key"].as_str().expect("a key");
    assert!(key.len() == 32 && key.bytes().all(|b| b.is_ascii_hexdigit()));
    assert!(!envoy.process.log().contains("a-secret-key"));

    let mut quiet = policy();
    quiet["logs"] = json!({"rejections": "0%"});
    quiet["version"] = json!("quiet");
    envoy.push(quiet).await;
    eventually("the new policy is in force", async || {
        client.get_as("a-secret-key").await;
        if envoy.count("version.quiet").await > 0 { Ok(()) } else { Err("not yet") }
    })
    .await;
    let before = lines(envoy.process.log()).len();
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    burst(20, 1, |_| client.get_as("a-secret-key")).await;
    assert_eq!(lines(envoy.process.log()).len(), before);
    envoy.assert_sound();
}

#[tokio::test]
async fn an_access_log_tells_the_decision_and_what_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("access.log");
    let upstream = Upstream::start().await;
    let endpoint = Endpoint::start("memory").await;
    let log = json!([{"name": "file", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
        "path": file,
        "log_format": {"text_format_source": {"inline_string":
            "%RESPONSE_CODE% %RESPONSE_CODE_DETAILS% %FILTER_STATE(wasm.tollgate:PLAIN)%\n"}},
    }}]);
    let builder = EnvoyBuilder::new(policy(), upstream.address).endpoint(endpoint.address);
    let mut envoy = builder.manager(json!({"access_log": log})).start().await;
    let client = envoy.client();
    for _ in 0..4 {
        client.get_as("k").await;
    }
    client.get("/healthz").await;
    let expected = [
        "200 via_upstream allowed guard=99 per-key=2",
        "200 via_upstream allowed guard=98 per-key=1",
        "200 via_upstream allowed guard=97 per-key=0",
        "429 tollgate_denied denied guard=97 per-key=0",
        "200 via_upstream -",
    ];
    drop(client);
    eventually("the log is written", async || {
        let log = std::fs::read_to_string(&file).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        if lines == expected { Ok(()) } else { Err(log.clone()) }
    })
    .await;
    envoy.assert_sound();
}

#[tokio::test]
async fn every_request_is_counted_once_by_route_class_and_once_by_policy() {
    let (mut envoy, _endpoint, _upstream) = stack(policy()).await;
    let client = envoy.client();
    burst(5, 1, |_| client.get_as("k")).await;
    burst(4, 1, |_| client.get("/reports/7")).await;
    burst(6, 1, |_| client.get("/healthz")).await;
    let seen = [
        ("requests.other.allowed", 3),
        ("requests.other.denied", 2),
        ("requests.reports.allowed", 3),
        ("requests.reports.denied", 1),
        ("requests.health.exempt", 6),
        ("policy.guard.allowed", 6),
        ("policy.guard.not_charged", 3),
        ("policy.guard.denied", 0),
        ("policy.per-key.allowed", 6),
        ("policy.per-key.denied", 3),
        ("policy.per-key.failed_closed", 0),
        ("policy.tried-out.shadow_allowed", 1),
        ("policy.tried-out.shadow_denied", 8),
        ("identity.credential.ok", 5),
        ("identity.credential.missing", 4),
        ("version.test", 1),
    ];
    for (name, count) in seen {
        assert_eq!(envoy.count(name).await, count, "{name}");
    }
    envoy.assert_sound();
}

#[tokio::test]
async fn the_shipped_bootstrap_gives_the_metrics_labels() {
    let demo = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../envoy/demo.yaml")).expect("the demo");
    let demo: Value = serde_saphyr::from_str(&demo).expect("YAML");
    let fields = json!({"stats_config": demo["stats_config"]});
    let upstream = Upstream::start().await;
    // Names may have dots, and be those of outcomes.
    let mut lent = global("lent.hit", 9, NEVER, json!("open"));
    lent["mode"] = json!("leased");
    let mut policy = config(&[local("a.b", 2, NEVER), global("denied", 9, NEVER, json!("open")), lent]);
    policy["routes"] = json!([{"name": "v1.allowed", "path": "/x"}]);
    let mut envoy = EnvoyBuilder::new(policy, upstream.address).bootstrap_fields(fields).start().await;
    let client = envoy.client();
    burst(3, 1, |_| client.get_as("k")).await;
    client.get("/x").await;
    let page = envoy.admin("/stats/prometheus?usedonly").await;
    for line in [
        r#"tollgate_requests{outcome="failed_open",route="other"} 2"#,
        r#"tollgate_requests{outcome="denied",route="other"} 1"#,
        r#"tollgate_requests{outcome="denied",route="v1.allowed"} 1"#,
        r#"tollgate_policy{outcome="allowed",policy="a.b"} 2"#,
        r#"tollgate_policy{outcome="denied",policy="a.b"} 2"#,
        r#"tollgate_policy{outcome="failed_open",policy="denied"} 2"#,
        r#"tollgate_policy{outcome="not_charged",policy="denied"} 2"#,
        r#"tollgate_identity{identity="credential",result="ok"} 3"#,
        r#"tollgate_identity{identity="credential",result="missing"} 1"#,
        r#"tollgate_failure{cause="no_host"} 2"#,
        r#"tollgate_version{version="test"} 1"#,
        r#"tollgate_lease{policy="lent.hit",result="miss"} 2"#,
    ] {
        // The labels come in no fixed order.
        let (series, count) = line.rsplit_once(' ').expect("a count");
        let has = |of: &str| {
            of.rsplit_once(' ').is_some_and(|(its, number)| {
                number == count && series.split(['{', '}', ',']).all(|part| its.contains(part))
            })
        };
        assert!(page.lines().any(has), "{line} is not in\n{page}");
    }
    envoy.assert_sound();
}

#[tokio::test]
async fn the_version_that_decides_is_told_also_after_a_push_that_leaves_it() {
    let upstream = Upstream::start().await;
    let policy = |capacity, version| {
        let mut policy = config(&[local("guard", capacity, NEVER)]);
        policy["version"] = json!(version);
        policy
    };
    // What an old listener still has open is given up at once, and its policy with it.
    let builder = EnvoyBuilder::new(policy(9, "a"), upstream.address).workers(1).drain_seconds(1);
    let mut envoy = builder.start().await;
    for (capacity, version, expected) in [(9, "a", (1, 0)), (8, "a", (1, 0)), (8, "b", (0, 1))] {
        envoy.push(policy(capacity, version)).await;
        eventually("the version is told", async || {
            envoy.client().get("/").await;
            let found = (envoy.count("version.a").await, envoy.count("version.b").await);
            if found == expected { Ok(()) } else { Err(format!("{found:?}, not {expected:?}")) }
        })
        .await;
        // And still is once the one before is gone.
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        assert_eq!((envoy.count("version.a").await, envoy.count("version.b").await), expected);
    }
    envoy.assert_sound();
}
