//! The HTTP side: routes, bounds, errors, and an orderly end.

use crate::admit;
use crate::store::Store;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tollgate_core::wire::{ADMIT_PATH, MAX_BODY};
use tracing::{info, warn};

/// How long requests that are being answered may take once the program is told to end.
const DRAIN: Duration = Duration::from_secs(10);

/// Serves until SIGTERM or SIGINT, then answers what has arrived and ends.
pub async fn serve(listen: SocketAddr, store: Store) -> Result<(), String> {
    let listener = TcpListener::bind(listen).await.map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    let address = listener.local_addr().map_err(|error| format!("no local address: {error}"))?;
    let store = Arc::new(store);
    let sweeper = Arc::clone(&store);
    tokio::spawn(async move { sweeper.keep_small().await });
    let app = router(Arc::clone(&store));

    // Tests and scripts read this line to learn the port.
    println!("listening on http://{address}");
    info!(%address, store = %store.describe(), "listening");

    let (ending, ended) = tokio::sync::oneshot::channel();
    let server = axum::serve(listener, app).with_graceful_shutdown(async move {
        shutdown().await;
        info!("draining");
        let _ = ending.send(());
    });
    tokio::select! {
        result = server.into_future() => result.map_err(|error| format!("the server failed: {error}")),
        () = async { if ended.await.is_ok() { tokio::time::sleep(DRAIN).await } else { std::future::pending().await } } => {
            warn!("ended with requests still open after {DRAIN:?}");
            Ok(())
        }
    }
}

async fn shutdown() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        warn!("signals cannot be watched: the program ends without draining");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

fn router(store: Arc<Store>) -> Router {
    Router::new()
        .route(ADMIT_PATH, post(admit_batch))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(store)
}

async fn admit_batch(State(store): State<Arc<Store>>, body: Bytes) -> Response {
    let request = match admit::parse(&body) {
        Ok(request) => request,
        Err(detail) => return problem(StatusCode::BAD_REQUEST, &detail),
    };
    let answer = store.admit(request).await;
    match serde_json::to_vec(&answer) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn ready(State(store): State<Arc<Store>>) -> Response {
    match store.ready().await {
        Ok(()) => "ok\n".into_response(),
        Err(reason) => problem(StatusCode::SERVICE_UNAVAILABLE, &format!("the store does not answer: {reason}")),
    }
}

/// RFC 9457.
fn problem(status: StatusCode, detail: &str) -> Response {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = serde_json::json!({"title": title, "status": status.as_u16(), "detail": detail});
    (status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreUrl;
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt;

    async fn post(body: impl Into<Body>) -> (StatusCode, String) {
        let store = StoreUrl::Memory.open(Duration::from_millis(20), 1000).unwrap();
        let request = Request::post(ADMIT_PATH).body(body.into()).unwrap();
        let response = router(Arc::new(store)).oneshot(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), MAX_BODY).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    const REQUEST: &str = r#"{"decisions":[{"charges":[{"policy":"p","key":"00000000000000000000000000000001",
        "group":"00000000000000000000000000000002","cost":5,"token_bucket":{"capacity":20,"refill":5,"per_us":1000000}}]}]}"#;

    #[tokio::test]
    async fn a_decision_is_answered() {
        assert_eq!(post(REQUEST).await, (StatusCode::OK, r#"{"decisions":[{"admitted":[{"remaining":15}]}]}"#.into()));
    }

    #[tokio::test]
    async fn bad_input_is_a_400_that_names_the_field() {
        for (from, to, expected) in [
            ("\"cost\":5", "\"cost\":-5", "decisions[0].charges[0].cost: invalid value: integer `-5`"),
            ("\"cost\":5", "\"cost\":0", "decisions[0].charges[0].cost: must be between 1 and 999999999999, is 0"),
            (
                "\"capacity\":20",
                "\"capacity\":\"20\"",
                "decisions[0].charges[0].token_bucket.capacity: invalid type: string",
            ),
            (
                "\"refill\":5",
                "\"refill\":0",
                "decisions[0].charges[0].token_bucket: refill: the number of units must be at least 1",
            ),
            (
                "00000000000000000000000000000001",
                "xyz",
                "decisions[0].charges[0].key: must be 32 lower-case hexadecimal digits",
            ),
            ("\"p\"", "\"a:b\"", "decisions[0].charges[0].policy: must be 1 to 64 letters"),
            ("[{\"policy\"", "[], \"x\": [{\"policy\"", "decisions[0].charges: must have 1 to 64 items, has 0"),
            ("{\"decisions\"", "{\"decisons\"", "missing field `decisions`"),
        ] {
            let body = REQUEST.replacen(from, to, 1);
            assert_ne!(body, REQUEST);
            let (status, text) = post(body).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{from} -> {to}");
            let problem: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert!(problem["detail"].as_str().unwrap().contains(expected), "{from} -> {to}: {text}");
        }
    }

    #[tokio::test]
    async fn one_bucket_twice_in_a_decision_is_refused() {
        let charge = &REQUEST[REQUEST.find("{\"policy\"").unwrap()..REQUEST.len() - 4];
        let (status, text) = post(REQUEST.replacen(charge, &format!("{charge},{charge}"), 1)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{text}");
        assert!(text.contains("decisions[0].charges[1]: the same bucket as charges[0]"), "{text}");
    }

    #[tokio::test]
    async fn what_is_too_large_is_refused() {
        assert_eq!(post(" ".repeat(MAX_BODY + 1)).await.0, StatusCode::PAYLOAD_TOO_LARGE);
        let decision = &REQUEST[REQUEST.find("{\"charges\"").unwrap()..REQUEST.len() - 2];
        let many = format!("{{\"decisions\":[{}]}}", vec![decision; 129].join(","));
        let (status, text) = post(many).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(text.contains("decisions: must have 1 to 128 items, has 129"), "{text}");
        assert_eq!(post("[".repeat(100_000)).await.0, StatusCode::BAD_REQUEST);
    }
}
