//! Twice what the endpoint can carry, over a real Redis.

use crate::speed::decisions;
use std::time::Duration;
use tollgate_tests::{Endpoint, Overload, Redis};

const PLACES: usize = 32;
const TIME: Duration = Duration::from_secs(30);

pub async fn measure() {
    let redis = Redis::start().await;
    let places = PLACES.to_string();
    let limits = ["--store", &redis.url(), "--store-timeout", "1s", "--max-in-flight", &places];
    let endpoint = Endpoint::start_with(&limits).await;
    let overload = Overload::put(&endpoint, PLACES, TIME, &decisions(1)).await;
    let (decided, refused) = (overload.answers.with(200), overload.answers.with(503));
    println!(
        "overload, {TIME:?} over Redis with --max-in-flight {PLACES}: carries {:.0}/s, was sent {:.0}/s",
        overload.carried,
        overload.answers.rate()
    );
    for (what, answers) in [("decided", &decided), ("refused with 503", &refused)] {
        let [p50, p99, most] = [50.0, 99.0, 100.0].map(|percent| answers.percentile(percent));
        println!("  {what}: {:.0}/s, p50 {p50:.1?}, p99 {p99:.1?}, at most {most:.1?}", answers.rate());
    }
    println!("  memory grew by {} KiB; in the second after it, {:.0}/s", overload.grown / 1024, overload.carries_again);
}
