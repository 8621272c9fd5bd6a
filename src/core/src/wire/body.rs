//! Writing a request: what is written is what the [derived writer](serde::Serialize) writes, which the filter has no room
//! for.

use super::{AdmitRequest, ChargeRequest, DecisionRequest};
use crate::json::Object;
use crate::limit::{FixedWindow, Limit, Window};

impl AdmitRequest {
    /// The body of the request.
    #[must_use]
    pub fn to_body(&self) -> Vec<u8> {
        Object::default().objects("decisions", &self.decisions, decision).finish().into_bytes()
    }
}

fn decision(object: Object, decision: &DecisionRequest) -> Object {
    let id = decision.id.as_ref().map(|id| id.0.as_str());
    object.text_if("id", id).objects("charges", &decision.charges, charge)
}

fn charge(object: Object, charge: &ChargeRequest) -> Object {
    let mut object = object.text("policy", &charge.policy).digest("key", charge.key).digest("group", charge.group);
    if let Some(cost) = charge.cost {
        object = object.number("cost", cost.0.count());
    }
    if let Some(call) = &charge.lease {
        object = object.object("lease", |lease| {
            lease
                .digest("lessee", call.lessee)
                .number("seq", call.seq)
                .number("acked", call.acked)
                .number("kept", call.kept)
                .number("returned", call.returned)
                .number("wanted", call.wanted)
                .number("demand", call.demand)
        });
    }
    let learn = charge.learn.then_some("learn");
    object.text_if("lost_state", learn).object(charge.limit.algorithm(), |object| limit(object, &charge.limit))
}

fn limit(object: Object, limit: &Limit) -> Object {
    let object = object.number("capacity", limit.capacity().count());
    let rate = |object: Object, refill, per_us| object.number("refill", refill).number("per_us", per_us);
    match limit {
        Limit::TokenBucket(limit) => {
            let object = rate(object, limit.refill.tokens(), limit.refill.period());
            if limit.keep.count() > 0 { object.number("keep_us", limit.keep.count()) } else { object }
        }
        Limit::Gcra(limit) => rate(object, limit.rate.tokens(), limit.rate.period()),
        Limit::FixedWindow(FixedWindow { window: Window::Calendar(window), .. }) => {
            object.text("calendar", window.unit.word()).text("time_zone", window.zone.as_str())
        }
        Limit::FixedWindow(FixedWindow { window: Window::Span(span), .. }) => object.number("window_us", span.count()),
        Limit::SlidingWindow(limit) => object.number("window_us", limit.window.count()),
        Limit::SlidingLog(limit) => object.number("window_us", limit.window.count()),
    }
}
