//! What goes wrong with Redis, with real servers: never an admission by accident, never a wait beyond the deadline,
//! decisions again without a restart of the endpoint, and each fault counted by its kind.

mod access;
mod cluster;
mod replies;
mod sentinel;
mod server;

use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;
use tollgate_core::wire::{AdmitAnswer, DecisionAnswer};
use tollgate_tests::{Client, Endpoint, eventually, send};

/// The store's deadline in these tests.
const DEADLINE: Duration = Duration::from_millis(100);

/// What a shared machine may add to it.
const GRACE: Duration = Duration::from_millis(400);

/// An endpoint, and the budgets that are spent over it.
struct Spender {
    endpoint: Endpoint,
    client: Client,
}

impl Spender {
    /// Over a store, with more flags. Does not wait for the store.
    async fn over(store: &str, flags: &[&str]) -> Self {
        let args = ["--store", store, "--store-timeout", "100ms"];
        let endpoint = Endpoint::start_with(&[&args[..], flags].concat()).await;
        let client = Client::new(endpoint.address);
        Self { endpoint, client }
    }

    /// One decision, which never takes longer than it may.
    async fn ask(&self, charges: &[Value]) -> DecisionAnswer {
        let body = json!({"decisions": [{"charges": charges}]}).to_string();
        let reply = send(self.client.request(Method::POST, "/v1/admit").body(body)).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert!(reply.took < DEADLINE + GRACE, "{:?}: {}", reply.took, reply.body);
        serde_json::from_str::<AdmitAnswer>(&reply.body).expect("an answer").decisions.remove(0)
    }

    /// Takes one unit from this budget of 100 that do not come back; gives what is left.
    async fn spend(&self, name: u64) -> Option<u64> {
        match self.ask(&[charge(name)]).await {
            DecisionAnswer::Admitted(left) => Some(left[0].remaining),
            DecisionAnswer::Failed(_) => None,
            DecisionAnswer::Denied(denied) => panic!("denied: {denied:?}"),
        }
    }

    /// Spends until it is decided.
    async fn recovers(&self, name: u64) -> u64 {
        eventually("decisions again", async || self.spend(name).await.ok_or_else(|| self.endpoint.process.log())).await
    }

    /// Spends, in vain, until that kind of fault has been counted.
    async fn fails_by(&self, name: u64, kind: &str) {
        let before = self.faults(kind).await;
        eventually(kind, async || {
            let spent = self.spend(name).await;
            assert_eq!(spent, None, "{kind}: no decision while it lasts\n{}", self.metrics().await);
            if self.faults(kind).await > before { Ok(()) } else { Err(self.metrics().await) }
        })
        .await;
    }

    /// What the store counts, but for zeros.
    async fn metrics(&self) -> String {
        let page = self.client.get("/metrics").await.body;
        page.lines()
            .filter(|line| line.starts_with("tollgate_store") && !line.ends_with(" 0"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// How many decisions this kind of fault has cost so far.
    async fn faults(&self, kind: &str) -> u64 {
        let page = self.metrics().await;
        let series = format!("tollgate_store_errors_total{{kind=\"{kind}\"}} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&series));
        value.map_or(0, |value| value.parse().expect("a number"))
    }
}

/// One unit of a budget of 100 that do not come back within a test.
fn charge(name: u64) -> Value {
    json!({"policy": "p", "key": format!("{name:032x}"), "group": format!("{name:032x}"), "cost": 1,
           "token_bucket": {"capacity": 100, "refill": 1, "per_us": 2_592_000_000_000_u64}})
}
