//! `tollgate replay` says of Envoy's access log what Envoy did.

use serde_json::{Value, json};
use std::process::Command;
use tollgate_tests::{
    Endpoint, EnvoyBuilder, HASH_KEY, NEVER, Upstream, config, eventually, global, local, send, tool,
};

/// The requests that Envoy logs.
const REQUESTS: usize = 90;

#[tokio::test]
async fn a_replay_of_the_access_log_decides_as_envoy_did() {
    let mut shadow = local("tried-out", 20, NEVER);
    shadow["enforce"] = json!("shadow");
    let mut share = global("half", 4, NEVER, json!("closed"));
    share["enforce"] = json!("50%");
    let mut leased = global("leased", 15, NEVER, json!("closed"));
    leased["mode"] = json!("leased");
    let policies = [local("guard", 60, NEVER), global("per-key", 12, NEVER, json!("closed")), leased, share, shadow];
    let mut policy = config(&policies);
    policy["routes"] = json!([
        {"name": "health", "path": "/healthz", "exempt": true},
        {"name": "reports", "path": "/reports/{id}", "cost": 3},
    ]);
    let folder = tempfile::tempdir().expect("a folder");
    let [file, json_log, text_log] = ["policy.json", "access.json", "access.log"].map(|name| folder.path().join(name));
    std::fs::write(&file, policy.to_string()).expect("written");
    let kind = "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog";
    let logs = json!({"access_log": [
        {"name": "json", "typed_config": {"@type": kind, "path": json_log, "log_format": {"json_format": {
            "start_time": "%START_TIME%",
            "method": "%REQ(:METHOD)%",
            "path": "%REQ(:PATH)%",
            "authority": "%REQ(:AUTHORITY)%",
            "downstream_remote_address": "%DOWNSTREAM_REMOTE_ADDRESS%",
            "bytes_received": "%BYTES_RECEIVED%",
            "x_api_key": "%REQ(X-API-KEY)%",
            "response_code": "%RESPONSE_CODE%",
        }}}},
        // In Envoy's own format.
        {"name": "text", "typed_config": {"@type": kind, "path": text_log}},
    ]});
    let (upstream, endpoint) = (Upstream::start().await, Endpoint::start("memory").await);
    // In one worker, so that leases are one lessee's, as in a replay.
    let builder = EnvoyBuilder::new(policy, upstream.address).endpoint(endpoint.address).workers(1);
    let mut envoy = builder.manager(logs).start().await;
    let client = envoy.client();
    let mut statuses = Vec::new();
    for number in 0..REQUESTS {
        let path = ["/", "/a?q=1", "/reports/7", "/healthz", "/reports//7"][number % 5];
        let request = client.request(reqwest::Method::GET, path);
        // Some have no key.
        let key = ["a", "b", "c", "a"].get(number * 7 / 3 % 5);
        statuses
            .push(send(key.into_iter().fold(request, |request, key| request.header("x-api-key", *key))).await.status);
    }
    drop(client);
    let written = async |file: &std::path::Path| {
        eventually("the log is written", async || {
            let log = std::fs::read_to_string(file).unwrap_or_default();
            if log.lines().count() == REQUESTS { Ok(log) } else { Err(log) }
        })
        .await
    };
    let log = written(&json_log).await;
    written(&text_log).await;

    let replay = |log: &std::path::Path| -> Value {
        let mut command = Command::new(tool("TOLLGATE_BIN"));
        command.env("TOLLGATE_HASH_KEY", HASH_KEY).args(["replay", "--format", "json"]).arg(&file).arg(log);
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        let replayed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        replayed["replays"][0].clone()
    };
    let replayed = replay(&json_log);
    let rejected = statuses.iter().filter(|status| **status == 429).count();
    assert!(rejected > 10 && statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
    assert_eq!(replayed["rejected"], rejected, "{replayed:#}");
    assert_eq!(replayed["notes"], json!([]));
    let policies = replayed["policies"].as_array().expect("policies");
    assert_eq!(policies.len(), 5);
    for policy in policies {
        let name = policy["name"].as_str().expect("a name");
        for outcome in ["allowed", "denied", "not_charged", "over_capacity", "shadow_allowed", "shadow_denied"] {
            let count = policy["outcomes"][outcome].as_u64().unwrap_or(0);
            // Decisions in shadow may end after the answer.
            eventually("Envoy has counted as many", async || {
                let counted = envoy.count(&format!("policy.{name}.{outcome}")).await;
                if counted == count { Ok(()) } else { Err(format!("{name} {outcome}: {counted}, replayed {count}")) }
            })
            .await;
        }
        // Where the first of a key is said to be rejected, Envoy has rejected.
        for key in policy["most_rejected"].as_array().expect("keys").iter().filter(|_| policy["enforce"] == "on") {
            let place = key["place"].as_str().and_then(|place| place.rsplit(':').next()).expect("a place");
            let line = log.lines().nth(place.parse::<usize>().expect("a line") - 1).expect("that line");
            let line: Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(line["response_code"], 429, "{name} {line}");
        }
    }
    // The text has no keys, and every request.
    let text = replay(&text_log);
    assert_eq!(text["requests"], REQUESTS);
    assert_eq!(text["exempt"], replayed["exempt"]);
    assert!(text["notes"][0].as_str().is_some_and(|note| note.starts_with("no request has a credential")), "{text:#}");
    envoy.assert_sound();
}
