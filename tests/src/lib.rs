//! The harness: real Envoys, real endpoints, real Redis servers, each for one test, on free ports and in a temporary
//! folder, and gone when the test ends, however it ends.

mod authority;
mod client;
mod endpoint;
mod envoy;
mod flaky;
mod lateness;
mod link;
pub mod load;
mod machine;
mod overload;
mod process;
mod redis;
mod upstream;

pub use authority::Authority;
pub use client::{Client, Reply, burst, send, spend_from};
pub use endpoint::{Endpoint, FakeEndpoint};
pub use envoy::{Envoy, EnvoyBuilder};
pub use flaky::FlakyLink;
pub use lateness::Lateness;
pub use link::Link;
pub use machine::machine;
pub use overload::Overload;
pub use process::Process;
pub use redis::{Redis, RedisCluster, Sentinels};
pub use upstream::Upstream;

use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// What the proxies of the tests derive keys with.
pub const HASH_KEY: &str = "a secret for tests alone";

/// A refill too slow to matter in a test.
pub const NEVER: &str = "1/30d";

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// A path from the environment that `make test` sets.
pub fn tool(variable: &str) -> PathBuf {
    match std::env::var_os(variable) {
        Some(path) => path.into(),
        None => panic!("{variable} is not set: run `make test`, which builds and finds what the tests need"),
    }
}

/// Says that a test cannot run here, so that `make test` counts it as skipped. Not by `eprintln!`, which the test harness
/// hides.
pub fn skip(test: &str, reason: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {test}: {reason}").expect("standard error");
}

/// Tries until it works, for at most ten seconds.
pub async fn eventually<T, E: std::fmt::Display>(what: &str, mut attempt: impl AsyncFnMut() -> Result<T, E>) -> T {
    let mut last = None;
    for _ in 0..500 {
        match attempt().await {
            Ok(value) => return value,
            Err(error) => last = Some(error.to_string()),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what}: {}", last.unwrap_or_default());
}

/// `{"token_bucket": …}`
pub fn bucket(capacity: u64, refill: &str) -> Value {
    json!({"token_bucket": {"capacity": capacity, "refill": refill}})
}

/// A local policy without a key.
pub fn local(name: &str, capacity: u64, refill: &str) -> Value {
    json!({"name": name, "scope": "local", "limit": bucket(capacity, refill)})
}

/// A global policy for each `x-api-key`.
pub fn global(name: &str, capacity: u64, refill: &str, on_failure: Value) -> Value {
    json!({"name": name, "scope": "global", "mode": "exact", "key": ["credential"], "limit": bucket(capacity, refill),
           "on_failure": on_failure})
}

/// A configuration over these policies, with the identities `credential` and `client`.
pub fn config(policies: &[Value]) -> Value {
    json!({
        "version": "test",
        "hash_key": {"env": "TOLLGATE_HASH_KEY"},
        "endpoint": {"cluster": "tollgate", "timeout": "1s"},
        "identities": {
            "credential": {"sources": [{"header": "x-api-key"}]},
            "client": {"sources": [{"client_address": {}}]},
        },
        "policies": policies,
    })
}
