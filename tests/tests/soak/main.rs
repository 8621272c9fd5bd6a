//! What shows only after a while: memory that grows, budgets that come back, errors that nobody can explain.
//!
//! `make test` runs it for a short while, `make soak` for as long as it takes to be sure.

mod identities;
mod pushes;

use std::str::FromStr;
use tokio::sync::{Mutex, MutexGuard};
use tollgate_tests::Envoy;

static ALONE: Mutex<()> = Mutex::const_new(());

/// These tests measure memory and keep the machine busy, so they run one after another.
async fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().await
}

/// A number from the environment, which `make soak` sets.
fn setting<T: FromStr>(name: &str, usual: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a whole number, is {text:?}")),
        Err(_) => usual,
    }
}

/// What Envoy has allocated, in KiB.
async fn allocated(envoy: &Envoy) -> i64 {
    let page = envoy.admin("/memory").await;
    let memory: serde_json::Value = serde_json::from_str(&page).expect("JSON");
    let bytes: i64 = memory["allocated"].as_str().and_then(|bytes| bytes.parse().ok()).expect("a number");
    bytes / 1024
}
