//! The HTTP interface: which routes there are, who may use them, and what they answer.

use crate::admit;
use crate::auth::BearerTokens;
use crate::readiness::Readiness;
use crate::refusal::{Refusal, problem};
use crate::store::Store;
use crate::throttle::Throttle;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tollgate_core::wire::{ADMIT_PATH, MAX_BODY};
use tracing::warn;

/// How long a body may take to arrive. A proxy sends it with its head; whoever trickles holds a place.
const BODY_TIME: Duration = Duration::from_secs(5);

/// What all requests share.
pub struct Endpoint {
    store: Store,
    /// `None`: every caller may ask.
    tokens: Option<BearerTokens>,
    /// One for each request that may be read and decided at once.
    places: Semaphore,
    readiness: Readiness,
    strangers: Throttle,
    turned_away: Throttle,
}

impl Endpoint {
    pub fn new(store: Store, tokens: Option<BearerTokens>, max_in_flight: usize) -> Self {
        Self {
            store,
            tokens,
            places: Semaphore::new(max_in_flight),
            readiness: Readiness::default(),
            strangers: Throttle::default(),
            turned_away: Throttle::default(),
        }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }
}

pub fn router(endpoint: Arc<Endpoint>) -> Router {
    // Whoever probes for health has no token, and learns nothing but that.
    let open = Router::new().route("/healthz", get(|| async { "ok\n" })).route("/readyz", get(ready));
    let closed = Router::new()
        .route(ADMIT_PATH, post(admit))
        .route_layer(from_fn_with_state(Arc::clone(&endpoint), authenticate));
    open.merge(closed)
        .fallback(|| async { problem(StatusCode::NOT_FOUND, &format!("decisions are asked for at {ADMIT_PATH}")) })
        .method_not_allowed_fallback(|| async {
            problem(StatusCode::METHOD_NOT_ALLOWED, &format!("{ADMIT_PATH} takes POST, all other paths GET"))
        })
        .with_state(endpoint)
}

async fn authenticate(State(endpoint): State<Arc<Endpoint>>, request: Request, next: Next) -> Response {
    match &endpoint.tokens {
        Some(tokens) if !tokens.admit(request.headers()) => endpoint.refuse(Refusal::Unauthorized),
        _ => next.run(request).await,
    }
}

async fn admit(State(endpoint): State<Arc<Endpoint>>, request: Request) -> Response {
    endpoint.admit(request.into_body()).await.unwrap_or_else(|refusal| endpoint.refuse(refusal))
}

impl Endpoint {
    async fn admit(&self, body: Body) -> Result<Response, Refusal> {
        // Before the body is read: what waits here would be decided when nobody waits for the answer any more.
        let _place = self.places.try_acquire().map_err(|_| Refusal::Overload)?;
        let body = read(body).await?;
        let request = admit::parse(&body).map_err(Refusal::BadRequest)?;
        let answer = self.store.admit(request).await;
        Ok(match serde_json::to_vec(&answer) {
            Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        })
    }

    fn refuse(&self, refusal: Refusal) -> Response {
        match refusal {
            Refusal::Unauthorized => {
                if let Some(held_back) = self.strangers.pass() {
                    warn!(held_back, "a caller without a valid token was refused");
                }
            }
            Refusal::Overload => {
                if let Some(held_back) = self.turned_away.pass() {
                    warn!(held_back, "a request was refused: as many are being decided as may be (--max-in-flight)");
                }
            }
            Refusal::BadRequest(_) | Refusal::TooLarge | Refusal::Timeout(_) => {}
        }
        refusal.into_response()
    }
}

async fn read(body: Body) -> Result<Bytes, Refusal> {
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(Refusal::TooLarge);
    }
    match timeout(BODY_TIME, Limited::new(body, MAX_BODY).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Refusal::TooLarge),
        Ok(Err(error)) => Err(Refusal::BadRequest(format!("the body cannot be read: {error}"))),
        Err(_) => Err(Refusal::Timeout(BODY_TIME)),
    }
}

async fn ready(State(endpoint): State<Arc<Endpoint>>) -> Response {
    match endpoint.readiness.of(&endpoint.store).await {
        Ok(()) => "ok\n".into_response(),
        Err(reason) => problem(StatusCode::SERVICE_UNAVAILABLE, &format!("the store does not answer: {reason}")),
    }
}

#[cfg(test)]
mod tests;
