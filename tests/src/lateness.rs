use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// How late this machine lets a thread be that only sleeps, watched for as long as something else is measured. Where
/// processors are shared with others, even an idle machine does so by 10 or 20 ms now and then, and a request waits for
/// several threads: what is measured can be no better than that.
pub struct Lateness {
    over: Arc<AtomicBool>,
    sleepers: Vec<JoinHandle<Duration>>,
}

impl Lateness {
    pub fn watch() -> Self {
        let over = Arc::<AtomicBool>::default();
        let sleeper = |_| {
            let over = Arc::clone(&over);
            spawn(move || worst(&over))
        };
        Self { sleepers: (0..2).map(sleeper).collect(), over }
    }

    /// The latest by which a thread came since.
    pub fn worst(self) -> Duration {
        self.over.store(true, Ordering::Relaxed);
        self.sleepers.into_iter().map(|sleeper| sleeper.join().expect("it only sleeps")).max().unwrap_or_default()
    }
}

fn worst(over: &AtomicBool) -> Duration {
    const NAP: Duration = Duration::from_millis(5);
    let mut worst = Duration::ZERO;
    while !over.load(Ordering::Relaxed) {
        let start = Instant::now();
        sleep(NAP);
        worst = worst.max(start.elapsed().saturating_sub(NAP));
    }
    worst
}
