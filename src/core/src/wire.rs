//! What the filter and the token endpoint say to each other: `POST /v1/admit`.
//!
//! A request is a batch of decisions. Each decision is all-or-nothing by itself; the answer has one result for each,
//! in the same order. Unknown fields are ignored on both sides, so that either can be upgraded first.

mod answer;
mod body;

use crate::key::Digest;
use crate::lease::{LeaseCall, LeaseRecord};
use crate::limit::{
    CalendarUnit, CalendarWindow, FixedWindow, Gcra, Limit, MAX_LOG, SlidingLog, SlidingWindow, TokenBucket, Window,
    ZoneName,
};
use crate::units::{MAX_PERIOD, MAX_TOKENS, Micros, RefillRate, Tokens};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt::{self, Formatter};

/// Where decisions are asked for.
pub const ADMIT_PATH: &str = "/v1/admit";

/// The most decisions in one request.
pub const MAX_DECISIONS: usize = 128;

/// The most charges in one decision: a configuration has no more policies.
pub const MAX_CHARGES: usize = 64;

/// The most characters in a decision's id.
pub const MAX_ID: usize = 64;

/// How long a decision's id is remembered, at least.
pub const REMEMBERED: Micros = Micros::from_secs(10);

/// The most bytes in a request or an answer, checked before either is read.
pub const MAX_BODY: usize = 2 * 1024 * 1024;

/// A batch of decisions to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct AdmitRequest {
    /// 1 to [`MAX_DECISIONS`] of them.
    pub decisions: Vec<DecisionRequest>,
}

/// Charges of which all are made or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct DecisionRequest {
    /// Names this decision, so that sending it again is harmless: for [`REMEMBERED`] after it was admitted, the same
    /// charges with the same id are admitted again without being made again. Without an id, each sending is a decision.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub id: Option<DecisionId>,
    /// 1 to [`MAX_CHARGES`] of them.
    pub charges: Vec<ChargeRequest>,
}

/// One bucket, its limit, and what to take from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawCharge", into = "RawCharge")]
pub struct ChargeRequest {
    /// The policy's name: 1 to 64 letters, digits, `_`, `-` or `.`.
    pub policy: String,
    /// Names the bucket: 32 hexadecimal digits.
    pub key: Digest,
    /// Names what the bucket is stored together with: 32 hexadecimal digits.
    pub group: Digest,
    /// Units to take: 1 to 999 999 999 999. `None`, which only a charge with a lease may have: none, it is about the
    /// lease alone.
    pub cost: Option<Cost>,
    /// The limit, in a field that is named after its algorithm.
    pub limit: Limit,
    /// A report about a lease of this bucket, and a wish for more; token buckets alone have leases.
    pub lease: Option<LeaseCall>,
    /// Whether a bucket that the store has lost begins empty, and not full.
    pub learn: bool,
}

/// A charge as it is written: exactly one of the limits.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Self")]
struct RawCharge {
    policy: String,
    key: Digest,
    group: Digest,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    cost: Option<Cost>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    lease: Option<RawLeaseCall>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    lost_state: Option<LostState>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    token_bucket: Option<BucketSpec>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    gcra: Option<GcraSpec>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    fixed_window: Option<FixedSpec>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    sliding_window: Option<WindowSpec>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    sliding_log: Option<WindowSpec>,
}

/// A lease call as it is written.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(remote = "Self")]
struct RawLeaseCall {
    lessee: Digest,
    seq: Whole,
    #[serde(default)]
    acked: Whole,
    #[serde(default)]
    kept: Whole,
    #[serde(default)]
    returned: Whole,
    #[serde(default)]
    wanted: Whole,
    #[serde(default)]
    demand: Whole,
}

/// What becomes of a bucket that the store has lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LostState {
    /// It begins empty.
    Learn,
    /// It is full, as every bucket that nothing is stored of.
    Full,
}

/// A decision's id: 1 to [`MAX_ID`] visible ASCII characters, chosen by who asks, different for different decisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DecisionId(String);

impl DecisionId {
    /// As it was sent.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl TryFrom<String> for DecisionId {
    type Error = String;

    fn try_from(id: String) -> Result<Self, String> {
        if (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(id))
        } else {
            Err(format!("must be 1 to {MAX_ID} visible ASCII characters"))
        }
    }
}

impl From<DecisionId> for String {
    fn from(id: DecisionId) -> Self {
        id.0
    }
}

/// A cost on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Whole", into = "u64")]
pub struct Cost(pub Tokens);

/// A whole number, which JSON may also write as `5.0` or `5e0`: a value is an integer by what it is, not by how it is
/// written (JSON Schema Core 2020-12, section 4.2.3; RFC 8259, section 6).
#[derive(Clone, Copy, Default, Serialize)]
struct Whole(u64);

/// The numbers of a token bucket: `{"capacity":20,"refill":5,"per_us":1000000}`.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "RawBucket", into = "RawBucket")]
struct BucketSpec(TokenBucket);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Self")]
struct RawBucket {
    capacity: Whole,
    refill: Whole,
    per_us: Whole,
    /// How long it is remembered at least.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    keep_us: Option<Whole>,
}

/// The numbers of a GCRA, as those of a token bucket.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "RawGcra", into = "RawGcra")]
struct GcraSpec(Gcra);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Self")]
struct RawGcra {
    capacity: Whole,
    refill: Whole,
    per_us: Whole,
}

/// A fixed window: `{"capacity":100,"window_us":60000000}`, or
/// `{"capacity":100,"calendar":"day","time_zone":"Europe/Berlin"}`.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "RawWindow", into = "RawWindow")]
struct FixedSpec(FixedWindow);

/// The numbers of another window: `{"capacity":100,"window_us":60000000}`.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "RawWindow", into = "RawWindow")]
struct WindowSpec {
    capacity: Tokens,
    window: Micros,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Self")]
struct RawWindow {
    capacity: Whole,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    window_us: Option<Whole>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    calendar: Option<CalendarUnit>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    time_zone: Option<ZoneName>,
}

/// One result for each decision, in the order they were asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdmitAnswer {
    /// As many as there were decisions.
    pub decisions: Vec<DecisionAnswer>,
}

/// What became of one decision: an object with exactly one of the fields `admitted`, `denied` and `failed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionAnswer {
    /// All charges were made.
    Admitted(Vec<Admitted>),
    /// None was.
    Denied(Vec<Denied>),
    /// The store could not say; nothing is known to have been charged.
    Failed(Failure),
}

/// What a bucket has left after a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Admitted {
    /// Whole units.
    pub remaining: u64,
    /// What is lent to whoever asked with a lease call; left out where that came too late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseAnswer>,
}

/// What one bucket says to a request that was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Denied {
    /// Whole units.
    pub remaining: u64,
    /// Why this bucket denied; left out when it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied: Option<Denial>,
    /// What is lent to whoever asked with a lease call; left out where that came too late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseAnswer>,
}

/// What is lent to whoever asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LeaseAnswer {
    /// The number of the call that is answered.
    pub seq: u64,
    /// Units that the lessee has now: those that it keeps, and new ones.
    pub units: u64,
    /// How many units more it may earn until it has spent some.
    #[serde(skip_serializing_if = "is_zero")]
    pub room: u64,
    /// How many it earns in each period of the refill rate, in place of the bucket.
    #[serde(skip_serializing_if = "is_zero")]
    pub rate: u64,
}

const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Why one bucket denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Denial {
    /// The units will be there after so many microseconds, if nobody else takes them.
    WaitUs(u64),
    /// The cost is above the capacity: never.
    OverCapacity,
}

/// Why the store could not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Failure {
    /// The store did not answer in time.
    StoreTimeout,
    /// The store could not be reached.
    StoreUnavailable,
    /// The store answered with an error, or with something that is no answer.
    StoreError,
    /// The store is at its bound of keys.
    StoreFull,
    /// A calendar window's time zone is none that the endpoint knows.
    UnknownTimeZone,
    /// A reason that this version does not know.
    Unknown,
}

impl Failure {
    /// The reason that is called so.
    fn named(name: &str) -> Self {
        match name {
            "store_timeout" => Self::StoreTimeout,
            "store_unavailable" => Self::StoreUnavailable,
            "store_error" => Self::StoreError,
            "store_full" => Self::StoreFull,
            "unknown_time_zone" => Self::UnknownTimeZone,
            _ => Self::Unknown,
        }
    }
}

/// A field that may be left out, and is not `null` when it is there.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(value: D) -> Result<Option<T>, D::Error> {
    T::deserialize(value).map(Some)
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(number: D) -> Result<Self, D::Error> {
        number.deserialize_u64(WholeVisitor)
    }
}

struct WholeVisitor;

impl Visitor<'_> for WholeVisitor {
    type Value = Whole;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Whole, E> {
        Ok(Whole(number))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Whole, E> {
        Err(E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Whole, E> {
        /// Up to here a binary64 has every whole number, so that none stands for its neighbour. All bounds are below.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if number.fract() == 0.0 && (0.0..=EXACT).contains(&number) {
            Ok(Whole(number as u64))
        } else {
            Err(E::invalid_value(Unexpected::Float(number), &self))
        }
    }
}

impl TryFrom<Whole> for Cost {
    type Error = String;

    fn try_from(count: Whole) -> Result<Self, String> {
        tokens(count).map(Self)
    }
}

impl From<Cost> for u64 {
    fn from(cost: Cost) -> Self {
        cost.0.count()
    }
}

fn rate(capacity: Whole, refill: Whole, per_us: Whole) -> Result<(Tokens, RefillRate), String> {
    let capacity = tokens(capacity).map_err(|error| format!("capacity {error}"))?;
    let refill = RefillRate::new(refill.0, Micros::new(per_us.0)).map_err(|error| format!("refill: {error}"))?;
    Ok((capacity, refill))
}

impl TryFrom<RawBucket> for BucketSpec {
    type Error = String;

    fn try_from(raw: RawBucket) -> Result<Self, String> {
        let (capacity, refill) = rate(raw.capacity, raw.refill, raw.per_us)?;
        let keep = match raw.keep_us {
            None => Micros::ZERO,
            Some(Whole(keep)) if (1..=Micros::MAX.count()).contains(&keep) => Micros::new(keep),
            Some(Whole(keep)) => {
                return Err(format!("keep_us must be between 1 and {}, is {keep}", Micros::MAX.count()));
            }
        };
        Ok(Self(TokenBucket { capacity, refill, keep }))
    }
}

impl From<BucketSpec> for RawBucket {
    fn from(spec: BucketSpec) -> Self {
        let TokenBucket { capacity, refill, keep } = spec.0;
        Self {
            capacity: Whole(capacity.count()),
            refill: Whole(refill.tokens()),
            per_us: Whole(refill.period()),
            keep_us: (keep > Micros::ZERO).then_some(Whole(keep.count())),
        }
    }
}

impl TryFrom<RawGcra> for GcraSpec {
    type Error = String;

    fn try_from(raw: RawGcra) -> Result<Self, String> {
        rate(raw.capacity, raw.refill, raw.per_us).map(|(burst, rate)| Self(Gcra { burst, rate }))
    }
}

impl From<GcraSpec> for RawGcra {
    fn from(spec: GcraSpec) -> Self {
        let Gcra { burst, rate } = spec.0;
        Self { capacity: Whole(burst.count()), refill: Whole(rate.tokens()), per_us: Whole(rate.period()) }
    }
}

impl TryFrom<RawWindow> for FixedSpec {
    type Error = String;

    fn try_from(raw: RawWindow) -> Result<Self, String> {
        let capacity = raw.capacity()?;
        let window = match (raw.window_us, raw.calendar) {
            (Some(span), None) if raw.time_zone.is_none() => Window::Span(span_of(span)?),
            (None, Some(unit)) => Window::Calendar(CalendarWindow::new(unit, raw.time_zone.unwrap_or_default())),
            (Some(_), None) => {
                return Err("time_zone is for calendar windows: window_us is the same span in every zone".into());
            }
            _ => return Err("must have exactly one of the fields window_us and calendar".into()),
        };
        Ok(Self(FixedWindow { capacity, window }))
    }
}

impl From<FixedSpec> for RawWindow {
    fn from(spec: FixedSpec) -> Self {
        let raw = Self { capacity: Whole(spec.0.capacity.count()), window_us: None, calendar: None, time_zone: None };
        match spec.0.window {
            Window::Span(span) => Self { window_us: Some(Whole(span.count())), ..raw },
            Window::Calendar(CalendarWindow { unit, zone, .. }) => {
                Self { calendar: Some(unit), time_zone: Some(zone), ..raw }
            }
        }
    }
}

impl TryFrom<RawWindow> for WindowSpec {
    type Error = String;

    fn try_from(raw: RawWindow) -> Result<Self, String> {
        let capacity = raw.capacity()?;
        if raw.calendar.is_some() || raw.time_zone.is_some() {
            return Err("only fixed_window has calendar windows: write window_us".into());
        }
        Ok(Self { capacity, window: span_of(raw.window_us.ok_or("missing field `window_us`")?)? })
    }
}

impl From<WindowSpec> for RawWindow {
    fn from(spec: WindowSpec) -> Self {
        let window_us = Some(Whole(spec.window.count()));
        Self { capacity: Whole(spec.capacity.count()), window_us, calendar: None, time_zone: None }
    }
}

impl RawWindow {
    fn capacity(&self) -> Result<Tokens, String> {
        tokens(self.capacity).map_err(|error| format!("capacity {error}"))
    }
}

fn span_of(Whole(window_us): Whole) -> Result<Micros, String> {
    if (1..=MAX_PERIOD).contains(&window_us) {
        return Ok(Micros::new(window_us));
    }
    Err(format!("window_us must be between 1 and {MAX_PERIOD}, is {window_us}"))
}

impl TryFrom<RawLeaseCall> for LeaseCall {
    type Error = String;

    fn try_from(raw: RawLeaseCall) -> Result<Self, String> {
        let RawLeaseCall { lessee, seq, acked, kept, returned, wanted, demand } = raw;
        let units = |name, Whole(count): Whole| {
            let error = || format!("lease.{name} must be between 0 and {MAX_TOKENS}, is {count}");
            Some(count).filter(|count| *count <= MAX_TOKENS).ok_or_else(error)
        };
        // Up to 2^53, as far as every reader of JSON is exact.
        if !(1..=Micros::MAX.count()).contains(&seq.0) {
            return Err(format!("lease.seq must be between 1 and {}, is {}", Micros::MAX.count(), seq.0));
        }
        Ok(Self {
            lessee,
            seq: seq.0,
            // It can have heard of no later one.
            acked: acked.0.min(seq.0.saturating_sub(1)),
            kept: units("kept", kept)?,
            returned: units("returned", returned)?,
            wanted: units("wanted", wanted)?,
            demand: units("demand", demand)?,
        })
    }
}

impl From<LeaseCall> for RawLeaseCall {
    fn from(call: LeaseCall) -> Self {
        let LeaseCall { lessee, seq, acked, kept, returned, wanted, demand } = call;
        let [seq, acked, kept, returned, wanted, demand] = [seq, acked, kept, returned, wanted, demand].map(Whole);
        Self { lessee, seq, acked, kept, returned, wanted, demand }
    }
}

impl From<LeaseRecord> for LeaseAnswer {
    fn from(record: LeaseRecord) -> Self {
        Self { seq: record.seq, units: record.units(), room: record.room, rate: record.rate }
    }
}

impl TryFrom<RawCharge> for ChargeRequest {
    type Error = String;

    fn try_from(raw: RawCharge) -> Result<Self, String> {
        let RawCharge { token_bucket, gcra, fixed_window, sliding_window, sliding_log, .. } = raw;
        let limit = match (token_bucket, gcra, fixed_window, sliding_window, sliding_log) {
            (Some(spec), None, None, None, None) => Limit::TokenBucket(spec.0),
            (None, Some(spec), None, None, None) => Limit::Gcra(spec.0),
            (None, None, Some(spec), None, None) => Limit::FixedWindow(spec.0),
            (None, None, None, Some(WindowSpec { capacity, window }), None) => {
                Limit::SlidingWindow(SlidingWindow { capacity, window })
            }
            (None, None, None, None, Some(WindowSpec { capacity, window })) => {
                if capacity.count() > MAX_LOG {
                    return Err(format!(
                        "sliding_log: capacity must be between 1 and {MAX_LOG}, is {}",
                        capacity.count()
                    ));
                }
                Limit::SlidingLog(SlidingLog { capacity, window })
            }
            _ => {
                return Err("a charge must have exactly one of the limits token_bucket, gcra, fixed_window, \
                            sliding_window and sliding_log"
                    .into());
            }
        };
        let lease = raw.lease.map(LeaseCall::try_from).transpose()?;
        if lease.is_some() && !limit.is_token_bucket() {
            return Err("lease: only a token_bucket has leases".into());
        }
        if raw.cost.is_none() && lease.is_none() {
            return Err("missing field `cost`: only a charge with a `lease` may have none".into());
        }
        let learn = raw.lost_state == Some(LostState::Learn);
        Ok(Self { policy: raw.policy, key: raw.key, group: raw.group, cost: raw.cost, limit, lease, learn })
    }
}

impl From<ChargeRequest> for RawCharge {
    fn from(charge: ChargeRequest) -> Self {
        let ChargeRequest { policy, key, group, cost, limit, lease, learn } = charge;
        let mut raw = Self {
            policy,
            key,
            group,
            cost,
            lease: lease.map(RawLeaseCall::from),
            lost_state: learn.then_some(LostState::Learn),
            token_bucket: None,
            gcra: None,
            fixed_window: None,
            sliding_window: None,
            sliding_log: None,
        };
        match limit {
            Limit::TokenBucket(limit) => raw.token_bucket = Some(BucketSpec(limit)),
            Limit::Gcra(limit) => raw.gcra = Some(GcraSpec(limit)),
            Limit::FixedWindow(limit) => raw.fixed_window = Some(FixedSpec(limit)),
            Limit::SlidingWindow(SlidingWindow { capacity, window }) => {
                raw.sliding_window = Some(WindowSpec { capacity, window });
            }
            Limit::SlidingLog(SlidingLog { capacity, window }) => {
                raw.sliding_log = Some(WindowSpec { capacity, window });
            }
        }
        raw
    }
}

/// What is written as an object is read from an object alone. A derived reader also takes an array of the fields'
/// values: a second form, which nobody described and every later field would change. What is expected is said for
/// errors.
macro_rules! read_from_objects {
    ($($name:ident: $expected:literal,)*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
                struct Object;

                impl<'de> Visitor<'de> for Object {
                    type Value = $name;

                    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<$name, A::Error> {
                        $name::deserialize(MapAccessDeserializer::new(map))
                    }
                }

                value.deserialize_map(Object)
            }
        }
    )*};
}

read_from_objects! {
    AdmitRequest: "a map with the field `decisions`",
    DecisionRequest: "a map with the field `charges`",
    RawCharge: "a map with the fields `policy`, `key`, `group`, `cost` and a limit",
    RawLeaseCall: "a map with the fields `lessee` and `seq`",
    RawBucket: "a map with the fields `capacity`, `refill` and `per_us`",
    RawGcra: "a map with the fields `capacity`, `refill` and `per_us`",
    RawWindow: "a map with the fields `capacity`, and `window_us` or `calendar`",
}

/// `remote`, by which the readers above reach the derived ones, is for both directions.
macro_rules! write_as_derived {
    ($($name:ident)*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, to)
            }
        }
    )*};
}

write_as_derived! { AdmitRequest DecisionRequest RawCharge RawLeaseCall RawBucket RawGcra RawWindow }

fn tokens(Whole(count): Whole) -> Result<Tokens, String> {
    Tokens::new(count).ok_or_else(|| format!("must be between 1 and {MAX_TOKENS}, is {count}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const CHARGE: &str = r#"{"policy":"p","key":"00000000000000000000000000000001",
        "group":"00000000000000000000000000000002","cost":5,"token_bucket":{"capacity":20,"refill":5,"per_us":1000000}}"#;

    #[test]
    fn a_request_goes_there_and_back() {
        let text = format!(r#"{{"decisions":[{{"charges":[{CHARGE}],"later":1}}],"more":{{}}}}"#);
        let request: AdmitRequest = serde_json::from_str(&text).unwrap();
        let again: AdmitRequest = serde_json::from_slice(&serde_json::to_vec(&request).unwrap()).unwrap();
        assert_eq!(request, again);
        let Limit::TokenBucket(limit) = request.decisions[0].charges[0].limit else { panic!("a token bucket") };
        assert_eq!(limit.refill.period(), 200_000);
    }

    /// What the filter writes is what the derived writer does.
    fn written(charge: &ChargeRequest) {
        let decision = |id: Option<&str>| DecisionRequest {
            id: id.map(|id| DecisionId::try_from(id.to_owned()).unwrap()),
            charges: vec![charge.clone(), charge.clone()],
        };
        let request = AdmitRequest { decisions: vec![decision(None), decision(Some("a\"b\\c/~"))] };
        assert_eq!(String::from_utf8(request.to_body()).unwrap(), serde_json::to_string(&request).unwrap());
    }

    #[test]
    fn a_charge_may_have_a_lease_and_then_no_cost() {
        let lease = r#""lease":{"lessee":"00000000000000000000000000000009","seq":3,"acked":2,"kept":1,"returned":0,"wanted":7,"demand":8}"#;
        let with = |lease: &str| serde_json::from_str::<ChargeRequest>(&CHARGE.replace("\"cost\":5", lease));
        let charge = with(lease).unwrap();
        let call = LeaseCall {
            lessee: charge.lease.unwrap().lessee,
            seq: 3,
            acked: 2,
            kept: 1,
            returned: 0,
            wanted: 7,
            demand: 8,
        };
        assert_eq!((charge.cost, charge.lease), (None, Some(call)));
        assert!(serde_json::to_string(&charge).unwrap().contains(lease));
        written(&charge);
        written(&ChargeRequest { learn: true, ..with(&format!("\"cost\":5,{lease}")).unwrap() });
        let short = with(r#""lease":{"lessee":"00000000000000000000000000000009","seq":3}"#).unwrap().lease.unwrap();
        assert_eq!((short.acked, short.kept, short.returned, short.wanted, short.demand), (0, 0, 0, 0, 0));
        for (wrong, expected) in [
            (lease.replace("\"seq\":3", "\"seq\":0"), "lease.seq must be between 1 and 9007199254740991, is 0"),
            (lease.replace("\"kept\":1", "\"kept\":1000000000000"), "lease.kept must be between 0 and 999999999999"),
            (lease.replace("\"kept\":1", "\"kept\":-1"), "expected a whole number"),
            (lease.replace("\"seq\":3,", ""), "missing field `seq`"),
            ("\"lost_state\":\"learn\"".into(), "missing field `cost`: only a charge with a `lease` may have none"),
            ("\"lost_state\":\"empty\"".into(), "expected `learn` or `full`"),
        ] {
            let error = with(&wrong).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let bucket = r#""token_bucket":{"capacity":20,"refill":5,"per_us":1000000}"#;
        let window = CHARGE.replace(bucket, r#""sliding_window":{"capacity":9,"window_us":9}"#);
        let error =
            serde_json::from_str::<ChargeRequest>(&window.replace("\"cost\":5", lease)).unwrap_err().to_string();
        assert!(error.contains("only a token_bucket has leases"), "{error}");
    }

    #[test]
    fn a_decision_may_have_an_id() {
        let decision = |id: &str| serde_json::from_str::<DecisionRequest>(&format!(r#"{{{id}"charges":[{CHARGE}]}}"#));
        let known = decision(r#""id":"7f/3","#).unwrap();
        assert_eq!(known.id.as_ref().unwrap().as_bytes(), b"7f/3");
        assert!(serde_json::to_string(&known).unwrap().starts_with(r#"{"id":"7f/3","charges""#));
        assert!(serde_json::to_string(&decision("").unwrap()).unwrap().starts_with(r#"{"charges""#));
        for wrong in ["\"\"", "\"a b\"", "\"é\"", "7", "[]"] {
            assert!(decision(&format!("\"id\":{wrong},")).is_err(), "{wrong}");
        }
        assert!(decision(&format!("\"id\":\"{}\",", "x".repeat(64))).is_ok());
        assert!(decision(&format!("\"id\":\"{}\",", "x".repeat(65))).is_err());
    }

    #[test]
    fn every_limit_goes_there_and_back_and_a_charge_has_one() {
        let bucket = r#""token_bucket":{"capacity":20,"refill":5,"per_us":1000000}"#;
        for limit in [
            r#""token_bucket":{"capacity":20,"refill":1,"per_us":200000,"keep_us":9007199254740991}"#,
            r#""gcra":{"capacity":20,"refill":1,"per_us":200000}"#,
            r#""fixed_window":{"capacity":100,"window_us":60000000}"#,
            r#""fixed_window":{"capacity":100,"calendar":"day","time_zone":"Europe/Berlin"}"#,
            r#""sliding_window":{"capacity":100,"window_us":60000000}"#,
            r#""sliding_log":{"capacity":1000,"window_us":60000000}"#,
        ] {
            let charge: ChargeRequest = serde_json::from_str(&CHARGE.replace(bucket, limit)).unwrap();
            assert!(serde_json::to_string(&charge).unwrap().ends_with(&format!("{limit}}}")), "{limit}");
            written(&charge);
            let other = if limit.contains("gcra") { bucket } else { r#""gcra":{"capacity":2,"refill":1,"per_us":1}"# };
            let both = CHARGE.replace(bucket, &format!("{other},{limit}"));
            assert!(serde_json::from_str::<ChargeRequest>(&both).unwrap_err().to_string().contains("exactly one"));
        }
        for wrong in [
            r#""sliding_log":{"capacity":1001,"window_us":60000000}"#,
            r#""fixed_window":{"capacity":100,"window_us":0}"#,
            r#""fixed_window":{"capacity":0,"window_us":60000000}"#,
            r#""fixed_window":{"capacity":1,"window_us":2592000000001}"#,
            r#""token_bucket":{"capacity":20,"refill":1,"per_us":200000,"keep_us":0}"#,
            r#""token_bucket":{"capacity":20,"refill":1,"per_us":200000,"keep_us":9007199254740992}"#,
            r#""token_bucket":{"capacity":20,"refill":1,"per_us":200000,"keep_us":null}"#,
            r#""leaky":{}"#,
        ] {
            assert!(serde_json::from_str::<ChargeRequest>(&CHARGE.replace(bucket, wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_fixed_window_is_a_span_or_a_calendar_unit_in_a_time_zone() {
        let bucket = r#""token_bucket":{"capacity":20,"refill":5,"per_us":1000000}"#;
        let read = |limit: &str| serde_json::from_str::<ChargeRequest>(&CHARGE.replace(bucket, limit));
        let charge = read(r#""fixed_window":{"capacity":7,"calendar":"month"}"#).unwrap();
        assert!(serde_json::to_string(&charge).unwrap().contains(r#""calendar":"month","time_zone":"UTC""#));
        for (limit, expected) in [
            (r#""fixed_window":{"capacity":7}"#, "exactly one of the fields window_us and calendar"),
            (r#""fixed_window":{"capacity":7,"window_us":1,"calendar":"day"}"#, "exactly one of the fields"),
            (r#""fixed_window":{"capacity":7,"window_us":1,"time_zone":"UTC"}"#, "time_zone is for calendar windows"),
            (r#""fixed_window":{"capacity":7,"calendar":"week"}"#, "expected one of `minute`, `hour`, `day`, `month`"),
            (
                r#""fixed_window":{"capacity":7,"calendar":"day","time_zone":"+02:00"}"#,
                "\"+02:00\" is not the name of a time zone: write one of the IANA database, such as Europe/Berlin",
            ),
            (r#""sliding_window":{"capacity":7,"calendar":"day"}"#, "only fixed_window has calendar windows"),
            (r#""sliding_log":{"capacity":7,"window_us":1,"time_zone":"UTC"}"#, "only fixed_window has calendar"),
            (r#""sliding_log":{"capacity":7}"#, "missing field `window_us`"),
        ] {
            let found = read(limit).unwrap_err().to_string();
            assert!(found.contains(expected), "{limit}: {found}");
        }
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_fraction_or_an_exponent() {
        for cost in ["5.0", "5e0", "0.5e1", "50E-1"] {
            let charge: ChargeRequest = serde_json::from_str(&CHARGE.replace(":5,", &format!(":{cost},"))).unwrap();
            assert_eq!((charge.cost.unwrap().0.count(), charge.limit.capacity().count()), (5, 20), "{cost}");
        }
    }

    #[test]
    fn values_without_their_names_are_no_request() {
        let whole = format!(r#"{{"decisions":[{{"charges":[{CHARGE}]}}]}}"#);
        assert!(serde_json::from_str::<AdmitRequest>(&whole).is_ok());
        let digest = "0".repeat(32);
        let bucket = r#"{"capacity":20,"refill":5,"per_us":1000000}"#;
        for (from, to) in [
            (&*whole, format!("[[{{\"charges\":[{CHARGE}]}}]]")),
            (&whole, format!("{{\"decisions\":[[[{CHARGE}]]]}}")),
            (CHARGE, format!(r#"["p","{digest}","{digest}",5,{bucket}]"#)),
            (bucket, "[20,5,1000000]".into()),
        ] {
            let text = whole.replace(from, &to);
            assert_ne!(text, whole);
            let error = serde_json::from_str::<AdmitRequest>(&text).unwrap_err().to_string();
            assert!(error.starts_with("invalid type: sequence, expected a map with the field"), "{text}: {error}");
        }
    }

    #[test]
    fn a_limit_that_is_null_is_not_left_out() {
        let text = CHARGE.replace("\"cost\":5,", "\"cost\":5,\"gcra\":null,");
        let error = serde_json::from_str::<ChargeRequest>(&text).unwrap_err().to_string();
        assert!(error.starts_with("invalid type: null, expected a map with the fields `capacity`"), "{error}");
    }

    #[test]
    fn numbers_outside_their_bounds_are_refused_with_the_bound() {
        // F33
        for (from, to) in [
            ("\"cost\":5", "\"cost\":0"),
            ("\"cost\":5", "\"cost\":-5"),
            ("\"cost\":5", "\"cost\":1.5"),
            ("\"cost\":5", "\"cost\":\"3\""),
            ("\"cost\":5", "\"cost\":99999999999999999999"),
            ("\"cost\":5", "\"cost\":1000000000000"),
            ("\"cost\":5", "\"cost\":-0.0"),
            ("\"cost\":5", "\"cost\":1e300"),
            ("\"cost\":5", "\"cost\":9007199254740993.0"),
            ("\"cost\":5,", ""),
            ("\"capacity\":20", "\"capacity\":0"),
            ("\"refill\":5", "\"refill\":0"),
            ("\"per_us\":1000000", "\"per_us\":0"),
            ("\"refill\":5", "\"refill\":99999999"),
            ("00000000000000000000000000000001", "x"),
        ] {
            let text = CHARGE.replace(from, to);
            assert_ne!(text, CHARGE);
            assert!(serde_json::from_str::<ChargeRequest>(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_answer_that_is_not_one_is_never_read_as_one() {
        // F52
        for text in [
            r#"{"decisions":[{"admitted":"yes"}]}"#,
            r#"{"decisions":[{"admitted":[{"remaining":-1}]}]}"#,
            r#"{"decisions":[{"admitted":[{"remaining":1}],"denied":[]}]}"#,
            r#"{}"#,
            r#"{"decisions":[{}]}"#,
            r#"{"decisions":[],"decisions":[]}"#,
            r#"{"decisions":[{"admitted":[{"remaining":NaN}]}]}"#,
            "",
            r#"{"decisions":[{"admitted":[{"remaining":1}]}]"#,
            "<html>",
            r#"{"decisions":[true]}"#,
            r#"[[]]"#,
            r#"{"decisions":[[[{"remaining":1}],null,null]]}"#,
            r#"{"decisions":[{"admitted":[[1]]}]}"#,
            r#"{"decisions":[{"denied":[[1,null]]}]}"#,
            r#"{"decisions":[{"denied":[{"remaining":1,"denied":null}]}]}"#,
            r#"{"decisions":[{"denied":[{"remaining":1,"denied":"x"}]}]}"#,
            r#"{"decisions":[{"denied":[{"remaining":1,"denied":{}}]}]}"#,
            r#"{"decisions":[{"failed":null}]}"#,
            r#"{"decisions":[{"admitted":[{"remaining":1,"lease":{"seq":1}}]}]}"#,
            r#"{"decisions":[{"admitted":[{"remaining":1,"lease":[1,2]}]}]}"#,
            r#"{"decisions":[{"admitted":[{"remaining":1,"remaining":2}]}]}"#,
        ] {
            assert!(serde_json::from_str::<AdmitAnswer>(text).is_err(), "{text}");
        }
        let deep = format!(r#"{{"x":{}}}"#, "[".repeat(5000));
        assert!(serde_json::from_str::<AdmitAnswer>(&deep).is_err());
    }

    #[test]
    fn what_a_newer_endpoint_adds_is_ignored() {
        let text = r#"{"decisions":[{"admitted":[{"remaining":1,"new":{}}],"x":1},{"failed":"brand_new"}],"more":[1]}"#;
        let answer: AdmitAnswer = serde_json::from_str(text).unwrap();
        assert_eq!(answer.decisions[0], DecisionAnswer::Admitted(vec![Admitted { remaining: 1, lease: None }]));
        assert_eq!(answer.decisions[1], DecisionAnswer::Failed(Failure::Unknown));
    }

    #[test]
    fn an_answer_is_short() {
        let answer = AdmitAnswer {
            decisions: vec![
                DecisionAnswer::Admitted(vec![Admitted {
                    remaining: 3,
                    lease: Some(LeaseAnswer { seq: 9, units: 8, room: 7, rate: 6 }),
                }]),
                DecisionAnswer::Denied(vec![
                    Denied { remaining: 0, denied: Some(Denial::WaitUs(7)), lease: None },
                    Denied { remaining: 4, denied: None, lease: None },
                    Denied { remaining: 1, denied: Some(Denial::OverCapacity), lease: None },
                ]),
                DecisionAnswer::Failed(Failure::StoreTimeout),
            ],
        };
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(
            text,
            r#"{"decisions":[{"admitted":[{"remaining":3,"lease":{"seq":9,"units":8,"room":7,"rate":6}}]},{"denied":[{"remaining":0,"denied":{"wait_us":7}},{"remaining":4},{"remaining":1,"denied":"over_capacity"}]},{"failed":"store_timeout"}]}"#
        );
        assert_eq!(serde_json::from_str::<AdmitAnswer>(&text).unwrap(), answer);
        use Failure::{StoreError, StoreFull, StoreTimeout, StoreUnavailable, Unknown, UnknownTimeZone};
        for failure in [StoreTimeout, StoreUnavailable, StoreError, StoreFull, UnknownTimeZone, Unknown] {
            assert_eq!(Failure::named(serde_json::to_value(failure).unwrap().as_str().unwrap()), failure);
        }
    }
}
