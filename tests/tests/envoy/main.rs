//! Real Envoy, the real module, real endpoints.

mod admission;
mod body;
mod check;
mod config;
mod explain;
mod fields;
mod grpc;
mod hostile;
mod identity;
mod language;
mod observing;
mod passages;
mod replay;
mod reply;
mod routes;

use tollgate_tests::{Endpoint, Envoy, EnvoyBuilder, Reply, Upstream};

/// How many of these were admitted; all others must be 429.
fn admitted(replies: &[Reply]) -> usize {
    let statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
    statuses.iter().filter(|status| **status == 200).count()
}

/// An Envoy with an endpoint in memory and an upstream.
async fn stack(policy: serde_json::Value) -> (Envoy, Endpoint, Upstream) {
    let upstream = Upstream::start().await;
    let endpoint = Endpoint::start("memory").await;
    let envoy = EnvoyBuilder::new(policy, upstream.address).endpoint(endpoint.address).start().await;
    (envoy, endpoint, upstream)
}
