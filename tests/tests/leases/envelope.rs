use std::fmt::{self, Display, Formatter};
use std::time::Instant;

/// A machine may hold a request up between the moment when it is admitted and the one when the upstream sees it, so that
/// those before and after it come closer together: by so many seconds of refill.
const HELD_UP: f64 = 0.03;

/// How arrivals lie to a token bucket's envelope.
pub struct Envelope {
    refill: f64,
    /// By how much the worst window is above `capacity + refill · length`.
    excess: f64,
    arrivals: usize,
    /// What could have been admitted in all that time.
    most: f64,
}

impl Envelope {
    pub fn of(arrivals: &[Instant], capacity: u64, refill: u64) -> Self {
        let (capacity, refill) = (capacity as f64, refill as f64);
        let since = |arrival: &Instant| arrival.duration_since(arrivals[0]).as_secs_f64();
        let (mut low, mut excess) = (f64::INFINITY, f64::NEG_INFINITY);
        for (before, arrival) in arrivals.iter().enumerate() {
            let level = before as f64 - refill * since(arrival);
            low = low.min(level);
            excess = excess.max(level + 1.0 - low - capacity);
        }
        let most = capacity + refill * arrivals.last().map_or(0.0, since);
        Self { refill, excess, arrivals: arrivals.len(), most }
    }

    /// What part of the budget was used.
    pub fn used(&self) -> f64 {
        self.arrivals as f64 / self.most
    }

    pub fn assert_kept(&self) {
        assert!(self.excess <= HELD_UP * self.refill, "above the envelope: {self}");
    }
}

impl Display for Envelope {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { excess, arrivals, most, .. } = self;
        write!(f, "{arrivals} of {most:.0} admitted ({:.1} %), the worst window {excess:+.1}", 100.0 * self.used())
    }
}

#[test]
fn a_window_with_too_many_arrivals_is_seen() {
    use std::time::Duration;
    let start = Instant::now();
    let even = |count: u64, every_ms: u64| (0..count).map(move |index| start + Duration::from_millis(index * every_ms));
    let kept = Envelope::of(&even(100, 100).collect::<Vec<_>>(), 5, 10);
    assert!(kept.excess < 0.0 && (kept.used() - 0.96).abs() < 0.01, "{kept}");
    let mut arrivals: Vec<Instant> = even(100, 100).collect();
    arrivals.extend((0..8).map(|_| start + Duration::from_millis(5050)));
    arrivals.sort_unstable();
    let broken = Envelope::of(&arrivals, 5, 10);
    assert!(broken.excess > 2.0, "{broken}");
}
