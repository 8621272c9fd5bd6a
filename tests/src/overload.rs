//! Twice what an endpoint can carry, for a while.

use crate::load::{Answers, Requests, busy, paced};
use crate::{Endpoint, Process};
use std::time::Duration;

/// Connections for each place: enough that those that wait for a decision leave others to send with.
const CONNECTIONS: usize = 4;

const BESIDE: Duration = Duration::from_secs(1);

/// What it did.
pub struct Overload {
    /// Decisions a second that it carried before, with a request in each of its places.
    pub carried: f64,
    /// Every answer to twice that.
    pub answers: Answers,
    /// How many bytes its memory has grown by, from one second into it to its end.
    pub grown: i64,
    /// Decisions a second in the second after it, as before.
    pub carries_again: f64,
}

impl Overload {
    /// Puts it on an endpoint that decides `places` requests at once.
    pub async fn put(endpoint: &Endpoint, places: usize, time: Duration, requests: &Requests) -> Self {
        let resident = |process: &Process| i64::try_from(process.resident()).expect("not so much");
        let carries = async || busy(endpoint.address, places, BESIDE, requests, "\"admitted\"").await.rate();
        let twice = async |carried: f64, time| {
            paced(endpoint.address, CONNECTIONS * places, 2.0 * carried, time, requests).await
        };
        let carried = carries().await;
        twice(carried, BESIDE).await;
        let before = resident(&endpoint.process);
        let answers = twice(carried, time).await;
        let grown = resident(&endpoint.process) - before;
        Self { carried, answers, grown, carries_again: carries().await }
    }
}
