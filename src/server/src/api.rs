//! The HTTP interface: which routes there are, who may use them, and what they answer.

use crate::admit;
use crate::auth::BearerTokens;
use crate::problem::problem;
use crate::store::Store;
use crate::throttle::Throttle;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::sync::Arc;
use tollgate_core::wire::{ADMIT_PATH, MAX_BODY};
use tracing::warn;

/// What all requests share.
pub struct Endpoint {
    store: Store,
    /// `None`: every caller may ask.
    tokens: Option<BearerTokens>,
    strangers: Throttle,
}

impl Endpoint {
    pub fn new(store: Store, tokens: Option<BearerTokens>) -> Self {
        Self { store, tokens, strangers: Throttle::default() }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }
}

pub fn router(endpoint: Arc<Endpoint>) -> Router {
    // Whoever probes for health has no token, and learns nothing but that.
    let open = Router::new().route("/healthz", get(|| async { "ok\n" })).route("/readyz", get(ready));
    let closed = Router::new()
        .route(ADMIT_PATH, post(admit_batch))
        .route_layer(from_fn_with_state(Arc::clone(&endpoint), authenticate))
        .layer(DefaultBodyLimit::max(MAX_BODY));
    open.merge(closed).with_state(endpoint)
}

async fn authenticate(State(endpoint): State<Arc<Endpoint>>, request: Request, next: Next) -> Response {
    match &endpoint.tokens {
        Some(tokens) if !tokens.admit(request.headers()) => endpoint.unauthorized(),
        _ => next.run(request).await,
    }
}

async fn admit_batch(State(endpoint): State<Arc<Endpoint>>, body: Bytes) -> Response {
    let request = match admit::parse(&body) {
        Ok(request) => request,
        Err(detail) => return problem(StatusCode::BAD_REQUEST, &detail),
    };
    let answer = endpoint.store.admit(request).await;
    match serde_json::to_vec(&answer) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn ready(State(endpoint): State<Arc<Endpoint>>) -> Response {
    match endpoint.store.ready().await {
        Ok(()) => "ok\n".into_response(),
        Err(reason) => problem(StatusCode::SERVICE_UNAVAILABLE, &format!("the store does not answer: {reason}")),
    }
}

impl Endpoint {
    fn unauthorized(&self) -> Response {
        if let Some(held_back) = self.strangers.pass() {
            warn!(held_back, "a caller without a valid token was refused");
        }
        let detail = "this endpoint answers callers that hold a valid token: send \"Authorization: Bearer TOKEN\"";
        let mut response = problem(StatusCode::UNAUTHORIZED, detail);
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        response
    }
}

#[cfg(test)]
mod tests;
