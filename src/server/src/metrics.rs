//! What `GET /metrics` tells, in the OpenMetrics text format. All series are here from the start and no request adds
//! one, so that a rate is right from the first event, and no caller decides how many there are.

use crate::refusal::Reason;
use crate::store::{Faults, LeaseCounts};
use axum::http::StatusCode;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use std::time::Instant;
use tollgate_core::wire::{AdmitAnswer, DecisionAnswer, Denial};

/// For Prometheus, which asks for the version of the format by this.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// In seconds: fine where a decision is fast, with the default deadlines (20 ms for the store, 50 ms for the filter)
/// among them.
const BUCKETS: [f64; 15] =
    [0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// The statuses that the endpoint answers with.
pub const STATUSES: [u16; 9] = [200, 400, 401, 404, 405, 408, 413, 500, 503];

/// What may become of a decision.
pub const OUTCOMES: [&str; 4] = ["admitted", "denied", "over_capacity", "failed"];

type Label<V> = [(&'static str, V); 1];

/// The series.
pub struct Metrics {
    registry: Registry,
    /// As [`OUTCOMES`].
    decisions: [Counter; OUTCOMES.len()],
    requests: Family<Label<u16>, Counter>,
    /// The one of `requests` that hardly anything else is counted in.
    ok: Counter,
    refused: Family<Label<&'static str>, Counter>,
    parse: Histogram,
    store: Histogram,
    total: Histogram,
    in_flight: Gauge,
    connections: Gauge,
    open_breakers: Gauge,
    spans: SpanCounts,
}

/// What became of the spans of requests.
#[derive(Clone, Debug, Default)]
pub struct SpanCounts {
    pub sent: Counter,
    pub dropped: Counter,
}

/// A part of a request's way.
#[derive(Clone, Copy)]
pub enum Stage {
    /// Reading what the body says.
    Parse,
    /// The store's decisions.
    Store,
    /// From the head to the answer: the body's arrival, and the stages above.
    Total,
}

impl Metrics {
    /// `faults` and `leases` are counted by the store.
    pub fn new(faults: &Faults, leases: &LeaseCounts) -> Self {
        let mut registry = Registry::with_prefix("tollgate");
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "What runs", Info::new(version));

        let decisions = Family::<Label<&'static str>, Counter>::default();
        registry.register("decisions", "Decisions that were asked for, by what became of them", decisions.clone());
        let decisions = OUTCOMES.map(|outcome| decisions.get_or_create_owned(&[("outcome", outcome)]));

        let requests = Family::<Label<u16>, Counter>::default();
        registry.register("requests", "HTTP requests that were answered, by status", requests.clone());
        STATUSES.iter().for_each(|status| drop(requests.get_or_create(&[("code", *status)])));
        let ok = requests.get_or_create_owned(&[("code", StatusCode::OK.as_u16())]);

        registry.register("store_errors", "Decisions that the store could not make, by kind", faults.series());

        let leases = leases.series.clone();
        registry.register("lease_calls", "Calls about a lease, by what became of them", leases.calls);
        registry.register("lease_units", "Units that were lent, and that came back unspent", leases.units);
        let help = "Charges that were denied for a time while units of their bucket were lent";
        registry.register("denied_beside_leases", help, leases.denied);

        let refused = Family::<Label<&'static str>, Counter>::default();
        registry.register("refused", "Requests and connections that were not taken, by reason", refused.clone());
        Reason::ALL.iter().for_each(|reason| drop(refused.get_or_create(&[("reason", reason.name())])));

        let stages = Family::<Label<&'static str>, Histogram, fn() -> Histogram>::new_with_constructor(|| {
            Histogram::new(BUCKETS)
        });
        let help = "How long requests for decisions took, by stage";
        registry.register_with_unit("stage_duration", help, Unit::Seconds, stages.clone());
        let [parse, store, total] =
            ["parse", "store", "total"].map(|stage| stages.get_or_create_owned(&[("stage", stage)]));

        let (in_flight, connections, open_breakers) = (Gauge::default(), Gauge::default(), Gauge::default());
        registry.register("in_flight", "Requests that are being read or decided", in_flight.clone());
        registry.register("connections", "Connections that are open", connections.clone());
        let help = "Breakers on the store that are open: of one, or in a cluster of one for each group of slots";
        registry.register("store_open_breakers", help, open_breakers.clone());

        let spans = Family::<Label<&'static str>, Counter>::default();
        registry.register("spans", "Spans of requests, by whether the collector has taken them", spans.clone());
        let [sent, dropped] = ["sent", "dropped"].map(|outcome| spans.get_or_create_owned(&[("outcome", outcome)]));
        let spans = SpanCounts { sent, dropped };
        Self {
            registry,
            decisions,
            requests,
            ok,
            refused,
            parse,
            store,
            total,
            in_flight,
            connections,
            open_breakers,
            spans,
        }
    }

    /// Counts what became of each decision.
    pub fn answered(&self, answer: &AdmitAnswer) {
        let mut counts = [0; OUTCOMES.len()];
        for decision in &answer.decisions {
            counts[outcome(decision)] += 1;
        }
        for (counter, count) in self.decisions.iter().zip(counts).filter(|(_, count)| *count > 0) {
            counter.inc_by(count);
        }
    }

    /// Counts an HTTP answer.
    pub fn replied(&self, status: StatusCode) {
        match status {
            StatusCode::OK => self.ok.inc(),
            other => self.requests.get_or_create(&[("code", other.as_u16())]).inc(),
        };
    }

    /// Counts a request or a connection that was not taken.
    pub fn refused(&self, reason: Reason) {
        self.refused.get_or_create(&[("reason", reason.name())]).inc();
    }

    /// Measures a stage that began then and ends now, which it gives: the next stage begins.
    pub fn took(&self, stage: Stage, since: Instant) -> Instant {
        let histogram = match stage {
            Stage::Parse => &self.parse,
            Stage::Store => &self.store,
            Stage::Total => &self.total,
        };
        let now = Instant::now();
        histogram.observe(now.duration_since(since).as_secs_f64());
        now
    }

    /// Counted where they are sent.
    pub fn spans(&self) -> SpanCounts {
        self.spans.clone()
    }

    pub fn connections(&self, count: usize) {
        self.connections.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// The page, as of now.
    pub fn page(&self, in_flight: usize, open_breakers: usize) -> Result<String, std::fmt::Error> {
        self.in_flight.set(i64::try_from(in_flight).unwrap_or(i64::MAX));
        self.open_breakers.set(i64::try_from(open_breakers).unwrap_or(i64::MAX));
        let mut page = String::new();
        encode(&mut page, &self.registry)?;
        Ok(page)
    }
}

/// Which of [`OUTCOMES`].
pub fn outcome(decision: &DecisionAnswer) -> usize {
    match decision {
        DecisionAnswer::Admitted(_) => 0,
        DecisionAnswer::Denied(charges) => {
            let never = charges.iter().any(|charge| charge.denied == Some(Denial::OverCapacity));
            if never { 2 } else { 1 }
        }
        DecisionAnswer::Failed(_) => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::FaultKind;
    use tollgate_core::wire::{Admitted, Denied, Failure};

    fn denied(denials: &[Option<Denial>]) -> DecisionAnswer {
        DecisionAnswer::Denied(
            denials.iter().map(|denied| Denied { remaining: 0, denied: *denied, lease: None }).collect(),
        )
    }

    #[test]
    fn each_decision_is_counted_by_what_became_of_it() {
        let faults = Faults::new();
        let metrics = Metrics::new(&faults, &LeaseCounts::new());
        faults.count(FaultKind::Timeout, 2);
        metrics.answered(&AdmitAnswer {
            decisions: vec![
                DecisionAnswer::Admitted(vec![Admitted { remaining: 1, lease: None }]),
                DecisionAnswer::Admitted(vec![Admitted { remaining: 1, lease: None }]),
                denied(&[None, Some(Denial::WaitUs(1))]),
                denied(&[Some(Denial::WaitUs(1)), Some(Denial::OverCapacity)]),
                DecisionAnswer::Failed(Failure::StoreTimeout),
            ],
        });
        let page = metrics.page(3, 1).unwrap();
        for line in [
            "tollgate_decisions_total{outcome=\"admitted\"} 2",
            "tollgate_decisions_total{outcome=\"denied\"} 1",
            "tollgate_decisions_total{outcome=\"over_capacity\"} 1",
            "tollgate_decisions_total{outcome=\"failed\"} 1",
            "tollgate_store_errors_total{kind=\"timeout\"} 2",
            "tollgate_store_errors_total{kind=\"full\"} 0",
            "tollgate_store_open_breakers 1",
            "tollgate_in_flight 3",
            concat!("tollgate_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        ] {
            assert!(page.lines().any(|there| there == line), "{line}\n{page}");
        }
    }

    #[test]
    fn no_event_adds_a_series() {
        let faults = Faults::new();
        let metrics = Metrics::new(&faults, &LeaseCounts::new());
        let series = |metrics: &Metrics| metrics.page(0, 0).unwrap().lines().count();
        let before = series(&metrics);
        metrics.answered(&AdmitAnswer { decisions: vec![DecisionAnswer::Failed(Failure::StoreTimeout)] });
        FaultKind::ALL.iter().for_each(|kind| faults.count(*kind, 1));
        Reason::ALL.into_iter().for_each(|reason| metrics.refused(reason));
        STATUSES.into_iter().for_each(|status| metrics.replied(StatusCode::from_u16(status).unwrap()));
        [Stage::Parse, Stage::Store, Stage::Total].into_iter().for_each(|stage| {
            metrics.took(stage, Instant::now());
        });
        assert_eq!(series(&metrics), before);
    }
}
