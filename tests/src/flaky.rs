use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A way to an endpoint on which one of so many calls is lost: by turns before it is there and on its way back. Whoever
/// made it gets no answer.
pub struct FlakyLink {
    pub address: SocketAddr,
    way: Arc<Way>,
}

struct Way {
    to: SocketAddr,
    client: reqwest::Client,
    one_of: u64,
    calls: AtomicU64,
    lost: AtomicU64,
}

impl FlakyLink {
    pub async fn to(to: SocketAddr, one_of: u64) -> Self {
        let way = Way { to, client: reqwest::Client::new(), one_of, calls: AtomicU64::new(0), lost: AtomicU64::new(0) };
        let way = Arc::new(way);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let app = Router::new().fallback(pass).with_state(Arc::clone(&way));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, way }
    }

    /// How many calls were lost.
    pub fn lost(&self) -> u64 {
        self.way.lost.load(Ordering::SeqCst)
    }
}

async fn pass(State(way): State<Arc<Way>>, request: axum::http::Request<axum::body::Body>) -> Response {
    let number = way.calls.fetch_add(1, Ordering::SeqCst);
    let (is_lost, before) = (number % way.one_of == 0, number / way.one_of % 2 == 0);
    if is_lost {
        way.lost.fetch_add(1, Ordering::SeqCst);
        if before {
            std::future::pending::<()>().await;
        }
    }
    let url = format!("http://{}{}", way.to, request.uri().path());
    let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap_or_default();
    let reply = way.client.post(url).header(header::CONTENT_TYPE, "application/json").body(body).send().await;
    let (status, headers, body) = match reply {
        Ok(reply) => (reply.status(), reply.headers().clone(), reply.bytes().await.unwrap_or_default()),
        Err(_) => (axum::http::StatusCode::BAD_GATEWAY, HeaderMap::new(), Bytes::new()),
    };
    if is_lost {
        std::future::pending::<()>().await;
    }
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    if let Some(kind) = headers.get(header::CONTENT_TYPE) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    response
}
