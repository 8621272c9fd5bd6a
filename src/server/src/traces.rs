//! Spans of requests for decisions, for an OpenTelemetry collector: OTLP over HTTP, where a collector is named.
//!
//! A span says how long the stages of a request took and what became of its decisions: numbers and kinds, and nothing
//! that a caller sent. A request never waits for a span. What cannot be sent soon is dropped and counted: at most
//! [`QUEUE`] and [`BATCH`] spans are kept, and the program ends [`FLUSH`] later at the most.

mod sending;

use self::sending::Sending;
use crate::metrics::{OUTCOMES, SpanCounts, outcome};
use crate::settings::CollectorUrl;
use axum::http::{HeaderMap, StatusCode};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use serde_json::Value;
use std::time::{Duration, SystemTime};
use tollgate_core::wire::{ADMIT_PATH, AdmitAnswer, DecisionAnswer};

/// How many spans wait to be sent; one has some hundred bytes.
const QUEUE: usize = 2048;

/// How many are sent at once.
const BATCH: usize = 512;

/// How long the first span of a batch waits for others.
const GATHER: Duration = Duration::from_secs(1);

/// How long a batch may take to send.
const SEND_TIME: Duration = Duration::from_secs(2);

/// How long what is still there may take when the program ends.
const FLUSH: Duration = Duration::from_secs(1);

/// Makes spans, and has them sent.
pub struct Traces {
    tracer: SdkTracer,
    sending: Sending,
    // The tracer works as long as this is there.
    _provider: SdkTracerProvider,
}

impl Traces {
    /// A share of the requests that come without a parent gets a span. Those with one get a span where it says so.
    ///
    /// # Errors
    /// Where a variable of OpenTelemetry's own says something that the exporter cannot do.
    pub fn start(collector: &CollectorUrl, share: f64, counts: SpanCounts) -> Result<Self, String> {
        let resource = sending::resource();
        let (sending, queue) = Sending::start(collector, &resource, counts)?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(share))))
            .with_span_processor(queue)
            .build();
        Ok(Self { tracer: provider.tracer("tollgate"), sending, _provider: provider })
    }

    /// The span of a request that arrives now, where it gets one.
    pub fn begin(&self, head: &HeaderMap) -> Option<RequestSpan> {
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &Parent(head));
        let now = SystemTime::now();
        let builder = SpanBuilder::from_name("POST /v1/admit").with_kind(SpanKind::Server);
        let builder = builder
            .with_start_time(now)
            .with_attributes([KeyValue::new("http.request.method", "POST"), KeyValue::new("http.route", ADMIT_PATH)]);
        let span = self.tracer.build_with_context(builder, &parent);
        let context = span.is_recording().then(|| parent.with_span(span))?;
        Some(RequestSpan { tracer: self.tracer.clone(), context, since: now })
    }

    /// Sends what is still there, if that does not take long.
    pub async fn end(&self) {
        self.sending.end().await;
    }
}

/// One request's span. It ends with this, also where the client left before.
pub struct RequestSpan {
    tracer: SdkTracer,
    context: Context,
    /// The end of the last stage.
    since: SystemTime,
}

impl RequestSpan {
    /// A stage ends now that began at the end of the last.
    pub fn passed(&mut self, stage: &'static str) {
        let builder = SpanBuilder::from_name(stage).with_start_time(self.since);
        self.since = SystemTime::now();
        self.tracer.build_with_context(builder, &self.context).end_with_timestamp(self.since);
    }

    /// What became of the decisions: how many of each outcome, and why the first that failed did.
    pub fn answered(&self, answer: &AdmitAnswer) {
        let span = self.context.span();
        let mut counts = [0_i64; OUTCOMES.len()];
        for decision in &answer.decisions {
            counts[outcome(decision)] += 1;
        }
        for (outcome, count) in OUTCOMES.into_iter().zip(counts) {
            span.set_attribute(KeyValue::new(format!("tollgate.decisions.{outcome}"), count));
        }
        let failure = answer.decisions.iter().find_map(|decision| match decision {
            DecisionAnswer::Failed(failure) => serde_json::to_value(failure).ok(),
            _ => None,
        });
        if let Some(Value::String(kind)) = failure {
            span.set_attribute(KeyValue::new("tollgate.failure", kind));
        }
    }

    /// The answer goes out now.
    pub fn replied(self, status: StatusCode) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        if status.is_server_error() {
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

/// `traceparent` and no more (W3C Trace Context): `tracestate` is text of others, which would be sent on with the span.
struct Parent<'a>(&'a HeaderMap);

impl Extractor for Parent<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        if name == "traceparent" { self.0.get(name)?.to_str().ok() } else { None }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}
