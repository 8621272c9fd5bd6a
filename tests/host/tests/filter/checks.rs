//! What must hold once a run is over.

use crate::run::{Run, State};
use crate::world::Verdict;

pub fn all(run: &Run) {
    each_request_has_one_verdict(run);
}

fn each_request_has_one_verdict(run: &Run) {
    for (number, request) in run.requests.iter().enumerate() {
        let fits = match (request.state, &request.verdict) {
            (State::Decided, Some((Verdict::GoesOn, _))) => {
                matches!(request.outcome(), "allowed" | "failed_open" | "failed_local")
                    || (request.plan.exempt && request.outcome().is_empty())
            }
            (State::Decided, Some((Verdict::Replied(status), _))) => match request.outcome() {
                "denied" | "over_capacity" | "failed_local_denied" => matches!(status, 429 | 200),
                "unidentified" => matches!(status, 403 | 200),
                "failed_closed" => matches!(status, 503 | 200),
                _ => false,
            },
            (State::Left | State::Lost, None) => true,
            _ => false,
        };
        if !fits {
            run.fail(&format!(
                "request {number} is {:?} with {:?} and {:?}",
                request.state, request.verdict, request.note
            ));
        }
    }
}
