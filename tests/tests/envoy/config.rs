//! What Envoy makes of a policy that is right, and of one that is wrong.

use crate::{admitted, stack};
use serde_json::json;
use tollgate_tests::{EnvoyBuilder, NEVER, Upstream, burst, config, global, local};

#[tokio::test]
async fn envoy_does_not_start_with_a_wrong_policy_and_the_log_says_why() {
    // F69, F71
    let upstream = Upstream::start().await;
    let mut policy = config(&[local("guard", 5, NEVER), local("guard", 5, "5")]);
    policy["polices"] = json!([]);
    for as_struct in [false, true] {
        let mut builder = EnvoyBuilder::new(policy.clone(), upstream.address);
        if as_struct {
            builder = builder.as_struct();
        }
        let envoy = builder.start_refusing().await;
        for line in [
            "polices: unknown field \"polices\": did you mean \"policies\"?",
            "policies[1].name: the name \"guard\" is taken by an earlier policy",
            "policies[1].limit.token_bucket.refill: \"5\" is not a rate: write units per time",
        ] {
            assert!(envoy.contains(line), "{line:?} is not in the log:\n{envoy}");
        }
    }
}

#[tokio::test]
async fn a_policy_is_the_same_as_json_and_as_a_struct() {
    let upstream = Upstream::start().await;
    let policy = config(&[local("guard", 3, NEVER)]);
    let builder = EnvoyBuilder::new(policy, upstream.address);
    for builder in [builder.clone(), builder.as_struct()] {
        let mut envoy = builder.start().await;
        let client = envoy.client();
        assert_eq!(admitted(&burst(6, 2, |_| client.get("/")).await), 3);
        envoy.assert_sound();
    }
}

#[tokio::test]
async fn a_wrong_policy_that_is_pushed_is_refused_and_the_old_one_stays() {
    // F71
    let (mut envoy, _endpoint, _upstream) =
        stack(config(&[local("guard", 5, NEVER), global("per-key", 3, NEVER, json!("closed"))])).await;
    assert_eq!(envoy.client().get_as("k").await.status, 200);
    assert!(!envoy.push(config(&[local("guard", 0, NEVER)])).await);
    assert!(
        envoy
            .process
            .log()
            .contains("policies[0].limit.token_bucket.capacity: must be between 1 and 999999999999, is 0")
    );
    let client = envoy.client();
    assert_eq!(admitted(&burst(5, 1, |_| client.get_as("k")).await), 2, "as before");
    envoy.assert_sound();
}

#[tokio::test]
async fn a_new_policy_applies_at_once_and_keeps_the_balances() {
    // F72
    let set = |guard: u64, per_key: u64| {
        config(&[local("guard", guard, NEVER), global("per-key", per_key, NEVER, json!("closed"))])
    };
    let (mut envoy, _endpoint, _upstream) = stack(set(5, 100)).await;
    let count = async |envoy: &tollgate_tests::Envoy| {
        let client = envoy.client();
        admitted(&burst(8, 1, |_| client.get_as("k")).await)
    };
    assert_eq!(count(&envoy).await, 5);
    assert!(envoy.push(set(9, 100)).await);
    assert_eq!(count(&envoy).await, 0, "a raised capacity adds nothing");
    assert!(envoy.push(set(9, 200)).await);
    assert_eq!(count(&envoy).await, 0, "nor does a change elsewhere");
    let renamed = config(&[local("other", 7, NEVER), global("per-key", 100, NEVER, json!("closed"))]);
    assert!(envoy.push(renamed).await);
    assert_eq!(count(&envoy).await, 7, "another name is another budget");
    envoy.assert_sound();
}

#[tokio::test]
async fn requests_in_flight_while_the_policy_changes_are_all_answered() {
    let (mut envoy, _endpoint, _upstream) =
        stack(config(&[global("per-key", 1_000_000, NEVER, json!("closed"))])).await;
    let client = envoy.client();
    let load = tokio::spawn(async move { burst(4000, 16, |_| client.get_as("k")).await });
    let mut pushes = 0;
    while !load.is_finished() && pushes < 10 {
        pushes += 1;
        assert!(envoy.push(config(&[global("per-key", 1_000_000 + pushes, NEVER, json!("closed"))])).await);
    }
    assert_eq!(admitted(&load.await.expect("all replies")), 4000);
    assert!(pushes > 1);
    envoy.assert_sound();
}
