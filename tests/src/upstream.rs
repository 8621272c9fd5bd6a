use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::StreamExt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What stands behind the proxies: counts what reaches it, as it arrives. It answers as the request asks for:
/// `x-answer-status: 429` for another status than 200, and `x-answer-<name>: <value>` for a header.
pub struct Upstream {
    pub address: SocketAddr,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    bytes: AtomicU64,
    /// When each request has arrived, where that is kept.
    arrivals: Option<Mutex<Vec<Instant>>>,
}

impl Upstream {
    pub async fn start() -> Self {
        Self::with(Counts::default()).await
    }

    /// One that keeps when each request has arrived.
    pub async fn recording() -> Self {
        Self::with(Counts { arrivals: Some(Mutex::default()), ..Counts::default() }).await
    }

    async fn with(counts: Counts) -> Self {
        let counts = Arc::new(counts);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let app = Router::new().fallback(answer).with_state(Arc::clone(&counts));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, counts }
    }

    /// Requests whose headers have arrived.
    pub fn requests(&self) -> u64 {
        self.counts.requests.load(Ordering::SeqCst)
    }

    /// When each request has arrived, in order.
    pub fn arrivals(&self) -> Vec<Instant> {
        let mut arrivals =
            self.counts.arrivals.as_ref().expect("a recording upstream").lock().expect("no panic").clone();
        arrivals.sort_unstable();
        arrivals
    }

    /// Bytes of bodies that have arrived.
    pub fn bytes(&self) -> u64 {
        self.counts.bytes.load(Ordering::SeqCst)
    }
}

async fn answer(State(counts): State<Arc<Counts>>, asked: HeaderMap, body: Body) -> Response {
    counts.requests.fetch_add(1, Ordering::SeqCst);
    if let Some(arrivals) = &counts.arrivals {
        arrivals.lock().expect("no panic").push(Instant::now());
    }
    let mut chunks = body.into_data_stream();
    let mut read = 0;
    while let Some(Ok(chunk)) = chunks.next().await {
        counts.bytes.fetch_add(chunk.len() as u64, Ordering::SeqCst);
        read += chunk.len();
    }
    let mut response = Response::builder();
    for (name, value) in &asked {
        match name.as_str().strip_prefix("x-answer-") {
            Some("status") => response = response.status(value.as_bytes()),
            Some(name) => response = response.header(name, value),
            None => {}
        }
    }
    response.body(format!("read {read} bytes\n").into()).expect("a response")
}
