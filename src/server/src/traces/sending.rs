//! From the end of a span to the collector: a queue with a bound, and one task that sends what is in it.

use super::{BATCH, FLUSH, GATHER, QUEUE, SEND_TIME};
use crate::metrics::SpanCounts;
use crate::settings::CollectorUrl;
use crate::throttle::Throttle;
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter as _, SpanProcessor};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::warn;

/// Who sends, and `OTEL_RESOURCE_ATTRIBUTES`.
pub fn resource() -> Resource {
    Resource::builder_empty()
        .with_detector(Box::new(EnvResourceDetector::new()))
        .with_service_name("tollgate")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build()
}

/// The way in: where spans go when they end.
#[derive(Debug)]
pub struct Queue {
    spans: mpsc::Sender<SpanData>,
    counts: SpanCounts,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.counts.dropped.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The task.
pub struct Sending(Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>);

impl Sending {
    pub fn start(collector: &CollectorUrl, resource: &Resource, counts: SpanCounts) -> Result<(Self, Queue), String> {
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(collector.traces())
            .with_timeout(SEND_TIME)
            .with_retry_policy(RetryPolicy::disabled())
            .build()
            .map_err(|error| format!("spans cannot be sent: {error}"))?;
        exporter.set_resource(resource);
        let (spans, queue) = mpsc::channel(QUEUE);
        let (end, ending) = oneshot::channel();
        let task = tokio::spawn(send(queue, exporter, counts.clone(), ending));
        Ok((Self(Mutex::new(Some((end, task)))), Queue { spans, counts }))
    }

    pub async fn end(&self) {
        let task = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((end, mut task)) = task else { return };
        let _ = end.send(());
        if timeout(FLUSH, &mut task).await.is_err() {
            task.abort();
            warn!("ended with spans that the collector has not taken within {FLUSH:?}");
        }
    }
}

/// Until it is told to end, and then until all that is there has been sent.
async fn send(
    mut queue: mpsc::Receiver<SpanData>,
    exporter: SpanExporter,
    counts: SpanCounts,
    mut ending: oneshot::Receiver<()>,
) {
    let failures = Throttle::default();
    while let Some(batch) = next(&mut queue, &mut ending).await {
        let count = batch.len() as u64;
        let error = match timeout(SEND_TIME, exporter.export(batch)).await {
            Ok(Ok(())) => {
                counts.sent.inc_by(count);
                continue;
            }
            // A collector's answer may be long.
            Ok(Err(error)) => error.to_string().chars().take(200).collect(),
            Err(_) => format!("no answer within {SEND_TIME:?}"),
        };
        counts.dropped.inc_by(count);
        if let Some(held_back) = failures.pass() {
            warn!(error, spans = count, held_back, "spans could not be sent to the collector, and were dropped");
        }
    }
}

/// Some spans, together; `None` when there will be no more.
async fn next(queue: &mut mpsc::Receiver<SpanData>, ending: &mut oneshot::Receiver<()>) -> Option<Vec<SpanData>> {
    let mut batch = Vec::new();
    let mut last = Instant::now();
    while batch.len() < BATCH {
        let (waiting, room) = (batch.is_empty(), BATCH - batch.len());
        tokio::select! {
            count = queue.recv_many(&mut batch, room) => match count {
                0 => break,
                _ if waiting => last = Instant::now() + GATHER,
                _ => {}
            },
            () = sleep_until(last), if !waiting => break,
            _ = &mut *ending, if !queue.is_closed() => queue.close(),
        }
    }
    (!batch.is_empty()).then_some(batch)
}
