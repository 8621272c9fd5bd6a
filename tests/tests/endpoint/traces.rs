use crate::{Scratch, ask, decision};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use reqwest::Method;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tollgate_tests::{Client, Endpoint, Redis, burst, eventually, send};

const TOKEN: &str = "a-token-nobody-sees";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-00";

/// An OpenTelemetry collector that keeps what it is sent.
struct Collector {
    address: SocketAddr,
    posts: Arc<Mutex<Vec<Bytes>>>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let posts = Arc::<Mutex<Vec<Bytes>>>::default();
        let take = async |State(posts): State<Arc<Mutex<Vec<Bytes>>>>, body: Bytes| {
            posts.lock().expect("a lock").push(body);
        };
        let app = Router::new().route("/v1/traces", post(take)).with_state(Arc::clone(&posts));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, posts }
    }

    fn posts(&self) -> Vec<ExportTraceServiceRequest> {
        let posts = self.posts.lock().expect("a lock");
        posts.iter().map(|body| ExportTraceServiceRequest::decode(body.clone()).expect("OTLP")).collect()
    }

    /// All spans, once there are so many.
    async fn spans(&self, count: usize) -> Vec<Span> {
        eventually("the spans arrive", async || {
            let scopes = self.posts().into_iter().flat_map(|post| post.resource_spans).flat_map(|of| of.scope_spans);
            let spans: Vec<Span> = scopes.flat_map(|scope| scope.spans).collect();
            if spans.len() >= count { Ok(spans) } else { Err(spans.len()) }
        })
        .await
    }
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

fn value(attributes: &[KeyValue], name: &str) -> String {
    let value = attributes.iter().find(|attribute| attribute.key == name).and_then(|found| found.value.clone());
    match value.and_then(|value| value.value) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => panic!("{name}: {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_request_is_a_span_with_its_stages_and_what_became_of_it_and_no_secret() {
    let collector = Collector::start().await;
    let tokens = Scratch::file(TOKEN);
    let args = ["--otlp-endpoint", &url(collector.address), "--auth-token-file", tokens.path()];
    let mut endpoint = Endpoint::start_with(&args).await;
    let request = ask(endpoint.address).bearer_auth(TOKEN).header("traceparent", PARENT);
    let request = request.header("tracestate", "vendor=of-somebody-else").header("x-api-key", "alice");
    assert_eq!(send(request).await.status, 200);
    // It sends what it has before it ends.
    endpoint.process.signal(libc::SIGTERM);
    let spans = collector.spans(4).await;

    let [span] = &spans.iter().filter(|span| span.name == "POST /v1/admit").collect::<Vec<_>>()[..] else {
        panic!("one span: {spans:?}");
    };
    assert_eq!(PARENT, format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.parent_span_id)));
    for (name, expected) in [
        ("http.request.method", "POST"),
        ("http.route", "/v1/admit"),
        ("http.response.status_code", "200"),
        ("tollgate.decisions.admitted", "1"),
        ("tollgate.decisions.denied", "0"),
        ("tollgate.decisions.over_capacity", "0"),
        ("tollgate.decisions.failed", "0"),
    ] {
        assert_eq!(value(&span.attributes, name), expected, "{name}");
    }
    let mut at = span.start_time_unix_nano;
    for stage in ["read", "parse", "store"] {
        let stage = spans.iter().find(|span| span.name == stage).unwrap_or_else(|| panic!("no {stage}: {spans:?}"));
        assert_eq!((&stage.trace_id, &stage.parent_span_id), (&span.trace_id, &span.span_id));
        assert!(stage.start_time_unix_nano == at && stage.end_time_unix_nano >= at, "{stage:?}");
        at = stage.end_time_unix_nano;
    }
    assert!(at <= span.end_time_unix_nano);

    let posts = collector.posts();
    let resource = posts[0].resource_spans[0].resource.as_ref().expect("a resource");
    assert_eq!(value(&resource.attributes, "service.name"), "tollgate");
    let all = format!("{posts:?}");
    let bytes: Vec<u8> = collector.posts.lock().expect("a lock").concat();
    for secret in [TOKEN, &format!("{:032x}", 1), "alice", "of-somebody-else"] {
        let raw = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!all.contains(secret) && !raw, "{secret}: {all}");
    }
    eventually("it ends", async || if endpoint.process.is_running() { Err("it runs") } else { Ok(()) }).await;
}

#[tokio::test]
async fn a_parent_decides_for_its_requests_and_the_share_for_all_others() {
    let collector = Collector::start().await;
    let start = async |share: &'static str| {
        Endpoint::start_with(&["--otlp-endpoint", &url(collector.address), "--otlp-sample", share]).await
    };
    let (all, none) = (start("1").await, start("0").await);
    for request in [ask(all.address).header("traceparent", UNSAMPLED), ask(none.address)] {
        assert_eq!(send(request).await.status, 200);
    }
    for request in [ask(all.address), ask(none.address).header("traceparent", PARENT)] {
        assert_eq!(send(request).await.status, 200);
    }
    let spans = collector.spans(8).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(collector.spans(8).await.len(), 8, "{spans:?}");
    assert!(spans.iter().all(|span| hex(&span.trace_id) != UNSAMPLED[3..35]), "{spans:?}");
}

#[tokio::test]
async fn a_request_that_is_refused_or_fails_says_so() {
    let collector = Collector::start().await;
    let redis = Redis::start().await;
    let args = ["--otlp-endpoint", &url(collector.address), "--otlp-sample", "1", "--store", &redis.url()];
    let endpoint = Endpoint::start_with(&args).await;
    assert_eq!(send(ask(endpoint.address).body("{")).await.status, 400);
    redis.process.freeze();
    assert!(send(ask(endpoint.address)).await.body.contains("store_timeout"));
    redis.process.thaw();
    let spans = collector.spans(2 + 3 + 1).await;
    let mut seen = spans.iter().filter(|span| span.name == "POST /v1/admit").map(|span| {
        let status = value(&span.attributes, "http.response.status_code");
        if status == "200" { value(&span.attributes, "tollgate.failure") } else { status }
    });
    assert!(seen.any(|what| what == "400") && seen.any(|what| what == "store_timeout"), "{spans:?}");
}

/// In MiB.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

#[tokio::test]
async fn a_collector_that_hangs_or_is_gone_costs_neither_time_nor_memory() {
    // It takes connections, and never answers.
    let hanging = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    for collector in [hanging.local_addr().expect("an address"), gone] {
        let mut endpoint = Endpoint::start_with(&["--otlp-endpoint", &url(collector), "--otlp-sample", "1"]).await;
        let client = Client::new(endpoint.address);
        let requests = async |count| {
            burst(count, 8, |_| send(client.request(Method::POST, "/v1/admit").body(decision().to_string()))).await
        };
        requests(500).await;
        let before = memory(endpoint.process.pid());
        // Ten times what the queue holds.
        let mut took: Vec<Duration> = requests(5000).await.iter().map(|reply| reply.took).collect();
        took.sort();
        assert!(took[took.len() * 99 / 100] < Duration::from_millis(100), "{:?}", took.last());
        let grown = memory(endpoint.process.pid()).saturating_sub(before);
        assert!(grown < 16, "{grown} MiB more");
        eventually("what cannot be sent is counted", async || {
            let page = client.get("/metrics").await.body;
            let line = page.lines().find_map(|line| line.strip_prefix("tollgate_spans_total{outcome=\"dropped\"} "));
            let dropped: u64 = line.expect("a series").parse().expect("a number");
            if dropped > 15_000 { Ok(()) } else { Err(dropped) }
        })
        .await;
        let told = "spans could not be sent to the collector";
        eventually("the log says it", async || {
            let log = endpoint.process.log();
            if log.contains(told) { Ok(()) } else { Err(log) }
        })
        .await;
        let start = Instant::now();
        endpoint.process.signal(libc::SIGTERM);
        eventually("it ends", async || if endpoint.process.is_running() { Err("it runs") } else { Ok(()) }).await;
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }
}
