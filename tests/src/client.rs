use crate::load::key;
use futures_util::stream::{self, StreamExt};
use reqwest::header::HeaderMap;
use reqwest::{Body, Method, RequestBuilder};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tollgate_core::wire::{ADMIT_PATH, MAX_DECISIONS};

/// Sends requests to one proxy.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
}

/// What came back, and how long it took.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
    pub took: Duration,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Self::build(address, false)
    }

    /// HTTP/2 without TLS.
    pub fn http2(address: SocketAddr) -> Self {
        Self::build(address, true)
    }

    fn build(address: SocketAddr, http2: bool) -> Self {
        let mut builder = reqwest::Client::builder().timeout(Duration::from_secs(20)).no_proxy();
        if http2 {
            builder = builder.http2_prior_knowledge();
        }
        Self { http: builder.build().expect("a client"), base: format!("http://{address}") }
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base))
    }

    pub async fn get(&self, path: &str) -> Reply {
        send(self.request(Method::GET, path)).await
    }

    /// GET / as one caller.
    pub async fn get_as(&self, key: &str) -> Reply {
        send(self.request(Method::GET, "/").header("x-api-key", key)).await
    }

    pub async fn post_as(&self, key: &str, body: impl Into<Body>) -> Reply {
        send(self.request(Method::POST, "/").header("x-api-key", key).body(body)).await
    }
}

/// Sends one request and reads the whole reply. A request that gets none is a test that fails.
pub async fn send(request: RequestBuilder) -> Reply {
    let start = Instant::now();
    let response = request.send().await.unwrap_or_else(|error| panic!("no reply: {error:?}"));
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = response.text().await.unwrap_or_else(|error| panic!("a reply that ends early: {error:?}"));
    Reply { status, headers, body, took: start.elapsed() }
}

impl Reply {
    /// The header's only value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?;
        assert!(values.next().is_none(), "{name} is there twice");
        Some(value.to_str().expect("text"))
    }
}

/// `count` requests, `at_once` at a time.
pub async fn burst<F: Future<Output = Reply>>(
    count: usize,
    at_once: usize,
    request: impl Fn(usize) -> F,
) -> Vec<Reply> {
    stream::iter(0..count).map(request).buffer_unordered(at_once).collect().await
}

/// Spends one unit from so many buckets of one limit, each with a key of its own.
pub async fn spend_from(address: SocketAddr, buckets: usize, limit: &Value) {
    let client = Client::new(address);
    let decision = |number| {
        let mut charge = json!({"policy": "per-key", "key": key(number), "group": "f".repeat(32), "cost": 1});
        charge.as_object_mut().expect("a map").extend(limit.as_object().expect("a limit").clone());
        json!({"charges": [charge]})
    };
    let batch = |number: usize| {
        let keys = number * MAX_DECISIONS..buckets.min((number + 1) * MAX_DECISIONS);
        let body = json!({"decisions": keys.map(decision).collect::<Vec<_>>()}).to_string();
        send(client.request(Method::POST, ADMIT_PATH).body(body))
    };
    for reply in burst(buckets.div_ceil(MAX_DECISIONS), 4, batch).await {
        assert!(reply.status == 200 && !reply.body.contains("failed"), "{}", reply.body);
    }
}
