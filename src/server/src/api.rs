//! The HTTP interface: which routes there are, who may use them, and what they answer.

use crate::admit;
use crate::auth::BearerTokens;
use crate::metrics::{self, Metrics, Stage};
use crate::openapi::Document;
use crate::readiness::Readiness;
use crate::refusal::{Full, Refusal, problem};
use crate::store::Store;
use crate::throttle::Throttle;
use crate::traces::{RequestSpan, Traces};
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tollgate_core::wire::{ADMIT_PATH, MAX_BODY};
use tower::util::MapResponse;
use tracing::warn;

/// How long a body may take to arrive. A proxy sends it with its head; whoever trickles holds a place.
const BODY_TIME: Duration = Duration::from_secs(5);

/// A body up to this size may be read by whoever has a place. Envoy's are below it, up to some 250 charges.
const SMALL: u64 = 64 * 1024;

/// What the larger ones may have together: all places with bodies of the largest size would be gigabytes.
const LARGE_BODIES: usize = 64 * 1024 * 1024;

/// What all requests share.
pub struct Endpoint {
    store: Store,
    /// `None`: every caller may ask.
    tokens: Option<BearerTokens>,
    max_in_flight: usize,
    /// One for each request that may be read and decided at once.
    places: Semaphore,
    /// One for each byte of larger bodies.
    large_bodies: Semaphore,
    metrics: Metrics,
    readiness: Readiness,
    /// `None`: no collector is named.
    traces: Option<Traces>,
    strangers: Throttle,
    turned_away: Throttle,
}

impl Endpoint {
    pub fn new(store: Store, tokens: Option<BearerTokens>, max_in_flight: usize) -> Self {
        let metrics = Metrics::new(store.faults(), store.leases());
        Self {
            store,
            tokens,
            max_in_flight,
            places: Semaphore::new(max_in_flight),
            large_bodies: Semaphore::new(LARGE_BODIES),
            metrics,
            readiness: Readiness::default(),
            traces: None,
            strangers: Throttle::default(),
            turned_away: Throttle::default(),
        }
    }

    pub fn with_traces(self, traces: Option<Traces>) -> Self {
        Self { traces, ..self }
    }

    pub fn traces(&self) -> Option<&Traces> {
        self.traces.as_ref()
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}

/// Answers any request. Counting is around the router and not a layer in it, which would be boxed for each request.
pub fn service(endpoint: Arc<Endpoint>) -> MapResponse<Router, impl FnOnce(Response) -> Response + Clone> {
    MapResponse::new(router(Arc::clone(&endpoint)), move |response: Response| {
        endpoint.metrics.replied(response.status());
        response
    })
}

fn router(endpoint: Arc<Endpoint>) -> Router {
    let document = Document::new(endpoint.tokens.is_some());
    // Whoever probes for health has no token, and learns nothing but that; the description is public.
    let open = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/openapi.json", get(async || document.answer()));
    let closed = Router::new().route(ADMIT_PATH, post(admit)).route("/metrics", get(metrics_page));
    open.merge(closed)
        .fallback(|| async {
            problem(
                StatusCode::NOT_FOUND,
                &format!("decisions are asked for at {ADMIT_PATH}; /openapi.json describes it"),
            )
        })
        .method_not_allowed_fallback(|| async {
            problem(StatusCode::METHOD_NOT_ALLOWED, &format!("{ADMIT_PATH} takes POST, all other paths GET"))
        })
        .with_state(endpoint)
}

/// A caller that may ask.
struct Caller;

impl FromRequestParts<Arc<Endpoint>> for Caller {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, endpoint: &Arc<Endpoint>) -> Result<Self, Response> {
        match &endpoint.tokens {
            Some(tokens) if !tokens.admit(&parts.headers) => Err(endpoint.refuse(Refusal::Unauthorized)),
            _ => Ok(Self),
        }
    }
}

async fn admit(_: Caller, State(endpoint): State<Arc<Endpoint>>, request: Request) -> Response {
    let mut span = endpoint.traces.as_ref().and_then(|traces| traces.begin(request.headers()));
    let answer = endpoint.admit(request.into_body(), &mut span).await;
    let response = answer.unwrap_or_else(|refusal| endpoint.refuse(refusal));
    if let Some(span) = span {
        span.replied(response.status());
    }
    response
}

impl Endpoint {
    async fn admit(&self, body: Body, span: &mut Option<RequestSpan>) -> Result<Response, Refusal> {
        // Before the body is read: what waits here would be decided when nobody waits for the answer any more.
        let _place = self.places.try_acquire().map_err(|_| Refusal::Overload(Full::Requests))?;
        let _room = self.room(&body)?;
        let start = Instant::now();
        let body = read(body).await?;
        let arrived = Instant::now();
        passed(span, "read");
        let request = admit::parse(&body).map_err(Refusal::BadRequest)?;
        let parsed = self.metrics.took(Stage::Parse, arrived);
        passed(span, "parse");
        let answer = self.store.admit(request).await;
        self.metrics.took(Stage::Store, parsed);
        self.metrics.answered(&answer);
        if let Some(span) = span {
            span.passed("store");
            span.answered(&answer);
        }
        let response = match serde_json::to_vec(&answer) {
            Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        };
        self.metrics.took(Stage::Total, start);
        Ok(response)
    }

    /// For a body that is not small. One that does not say how long it is may become as long as any.
    fn room(&self, body: &Body) -> Result<Option<SemaphorePermit<'_>>, Refusal> {
        let (size, most) = (body.size_hint(), MAX_BODY as u64);
        if size.lower() > most {
            return Err(Refusal::TooLarge);
        }
        match size.upper().unwrap_or(most).min(most) {
            ..=SMALL => Ok(None),
            large => self
                .large_bodies
                .try_acquire_many(u32::try_from(large).unwrap_or(u32::MAX))
                .map(Some)
                .map_err(|_| Refusal::Overload(Full::Bodies)),
        }
    }

    fn refuse(&self, refusal: Refusal) -> Response {
        self.metrics.refused(refusal.reason());
        match refusal {
            Refusal::Unauthorized => {
                if let Some(held_back) = self.strangers.pass() {
                    warn!(held_back, "a caller without a valid token was refused");
                }
            }
            Refusal::Overload(full) => {
                if let Some(held_back) = self.turned_away.pass() {
                    warn!(held_back, "a request was refused: {full}");
                }
            }
            Refusal::BadRequest(_) | Refusal::TooLarge | Refusal::Timeout(_) => {}
        }
        refusal.into_response()
    }
}

fn passed(span: &mut Option<RequestSpan>, stage: &'static str) {
    if let Some(span) = span {
        span.passed(stage);
    }
}

async fn metrics_page(_: Caller, State(endpoint): State<Arc<Endpoint>>) -> Response {
    let in_flight = endpoint.max_in_flight.saturating_sub(endpoint.places.available_permits());
    match endpoint.metrics.page(in_flight, endpoint.store.open_breakers()) {
        Ok(page) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response(),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn read(body: Body) -> Result<Bytes, Refusal> {
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
pub mod tests;
