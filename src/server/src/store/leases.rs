//! What the store's leases are counted by.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// What may become of a lease call: the lessee has new units, has what it kept, or has none; or the call came before, or
/// a later one did.
pub const CALLS: [&str; 5] = ["granted", "kept", "none", "again", "late"];

type Series = Family<[(&'static str, &'static str); 1], Counter>;

/// Lease calls, and units that were lent and came back.
#[derive(Clone)]
pub struct LeaseCounts {
    pub series: LeaseSeries,
    /// As [`CALLS`].
    calls: [Counter; CALLS.len()],
    granted: Counter,
    returned: Counter,
}

/// For a registry.
#[derive(Clone, Default)]
pub struct LeaseSeries {
    pub calls: Series,
    pub units: Series,
    /// Charges that were denied for a time while units of their bucket were lent.
    pub denied: Counter,
}

/// What became of a lease call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    New { units: u64, granted: u64, returned: u64 },
    Again,
    Late,
}

impl LeaseCounts {
    /// With all series from the start.
    pub fn new() -> Self {
        let series = LeaseSeries::default();
        let calls = CALLS.map(|outcome| series.calls.get_or_create_owned(&[("outcome", outcome)]));
        let [granted, returned] =
            ["granted", "returned"].map(|way| series.units.get_or_create_owned(&[("direction", way)]));
        Self { series, calls, granted, returned }
    }

    pub fn called(&self, outcome: Outcome) {
        let number = match outcome {
            Outcome::New { granted: 1.., .. } => 0,
            Outcome::New { units: 1.., .. } => 1,
            Outcome::New { .. } => 2,
            Outcome::Again => 3,
            Outcome::Late => 4,
        };
        self.calls[number].inc();
        if let Outcome::New { granted, returned, .. } = outcome {
            self.granted.inc_by(granted);
            self.returned.inc_by(returned);
        }
    }

    /// A charge was denied for a time while units of its bucket were lent.
    pub fn denied(&self) {
        self.series.denied.inc();
    }
}
