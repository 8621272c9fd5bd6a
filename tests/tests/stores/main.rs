//! One suite over every store, and the script against the core's own arithmetic.

mod arithmetic;
mod at_set_times;
mod giving_back;
mod lease_arithmetic;
mod leases;

use jiff::tz::TimeZoneDatabase;
use jiff::{Timestamp, ToSpan};
use leases::{
    a_denial_spends_nothing_and_lends_all_the_same, a_lease_is_a_part_of_what_is_left_and_comes_back,
    a_rate_is_a_share_of_the_refill, a_report_counts_once,
};
use serde_json::{Value, json};
use std::time::Duration;
use tollgate_core::units::Micros;
use tollgate_core::wire::{AdmitAnswer, DecisionAnswer, Denial};
use tollgate_tests::{Client, Endpoint, Redis, RedisCluster, Sentinels, burst, eventually, send};

/// An endpoint over one kind of store.
struct Store {
    client: Client,
    _endpoint: Endpoint,
    /// The servers that it is kept in, which end with the test.
    servers: Servers,
}

enum Servers {
    None,
    One(Redis),
    Sentinels { _all: Box<Sentinels> },
    Cluster { _all: RedisCluster },
}

impl Store {
    async fn over(url: &str, servers: Servers) -> Self {
        let endpoint = Endpoint::start_with(&["--store", url, "--store-timeout", "5s"]).await;
        eventually("the store answers", async || {
            let reply = Client::new(endpoint.address).get("/readyz").await;
            if reply.status == 200 { Ok(()) } else { Err(reply.body) }
        })
        .await;
        Self { client: Client::new(endpoint.address), _endpoint: endpoint, servers }
    }

    async fn memory() -> Self {
        Self::over("memory", Servers::None).await
    }

    async fn redis() -> Self {
        let redis = Redis::start().await;
        Self::over(&redis.url(), Servers::One(redis)).await
    }

    async fn sentinel() -> Self {
        let sentinels = Sentinels::start().await;
        Self::over(&sentinels.url(), Servers::Sentinels { _all: Box::new(sentinels) }).await
    }

    async fn cluster() -> Self {
        let cluster = RedisCluster::start().await;
        Self::over(&cluster.url(), Servers::Cluster { _all: cluster }).await
    }

    /// Its server, with nothing in it any more, and another endpoint that starts at the same time.
    async fn restarted(mut self) -> (Self, Self) {
        let Servers::One(redis) = &mut self.servers else { panic!("not over one server") };
        redis.restart().await;
        let other = Self::over(&redis.url(), Servers::None).await;
        (self, other)
    }

    /// The one server.
    fn server(&self) -> &Redis {
        match &self.servers {
            Servers::One(redis) => redis,
            _ => panic!("not over one server"),
        }
    }

    async fn ask(&self, decisions: &[Value]) -> Vec<DecisionAnswer> {
        let body = json!({"decisions": decisions}).to_string();
        let reply = send(self.client.request(reqwest::Method::POST, "/v1/admit").body(body)).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        serde_json::from_str::<AdmitAnswer>(&reply.body).expect("an answer").decisions
    }

    async fn one(&self, charges: &[Value]) -> DecisionAnswer {
        self.ask(&[json!({"charges": charges})]).await.pop().expect("one answer")
    }
}

/// A charge on a bucket that refills so much each second.
fn charge(name: u64, cost: u64, capacity: u64, refill: u64) -> Value {
    let per_us = if refill == 0 { 30 * 24 * 3600 * 1_000_000_u64 } else { 1_000_000 };
    json!({"policy": "p", "key": format!("{name:032x}"), "group": format!("{name:032x}"), "cost": cost,
           "token_bucket": {"capacity": capacity, "refill": refill.max(1), "per_us": per_us}})
}

fn is_admitted(answer: &DecisionAnswer) -> bool {
    matches!(answer, DecisionAnswer::Admitted(_))
}

fn wait(answer: &DecisionAnswer) -> Micros {
    match answer {
        DecisionAnswer::Denied(charges) => match charges[0].denied {
            Some(Denial::WaitUs(wait)) => Micros::new(wait),
            other => panic!("no wait: {other:?}"),
        },
        other => panic!("not denied: {other:?}"),
    }
}

macro_rules! suite {
    ($($test:ident),* $(,)?) => {
        mod memory { $(#[tokio::test] async fn $test() { super::$test(super::Store::memory().await).await; })* }
        mod redis_server { $(#[tokio::test] async fn $test() { super::$test(super::Store::redis().await).await; })* }
        mod redis_sentinel { $(#[tokio::test] async fn $test() { super::$test(super::Store::sentinel().await).await; })* }
        mod redis_cluster { $(#[tokio::test] async fn $test() { super::$test(super::Store::cluster().await).await; })* }
    };
}

suite!(
    a_denial_spends_nothing_and_lends_all_the_same,
    a_rate_is_a_share_of_the_refill,
    a_lease_is_a_part_of_what_is_left_and_comes_back,
    a_new_bucket_is_full,
    a_report_counts_once,
    a_weighted_request_spends_its_cost,
    a_cost_above_the_capacity_is_refused_for_good,
    a_cost_that_is_none_is_refused_and_spends_nothing,
    a_denied_decision_spends_nothing,
    the_decisions_of_a_batch_are_independent,
    an_empty_bucket_admits_exactly_when_it_says,
    a_bucket_refills_by_fractions,
    concurrent_decisions_spend_no_unit_twice,
    a_lower_capacity_applies_at_once,
    a_change_of_limit_brings_nothing_back_to_a_bucket_that_is_kept,
    policies_groups_and_keys_are_apart,
    the_largest_numbers_are_exact,
    every_limit_admits_its_capacity_and_says_when_to_come_back,
    limits_of_any_mix_are_charged_all_or_none,
    a_calendar_window_ends_where_the_local_calendar_says,
    another_calendar_window_is_no_second_budget,
    what_another_algorithm_has_stored_is_a_failure_and_no_pass,
    a_decision_that_is_sent_again_is_not_made_again,
);

/// A charge on a limit of each algorithm, `capacity` units in an hour.
fn of_each_algorithm(name: u64, cost: u64, capacity: u64) -> Vec<Value> {
    let rate = json!({"capacity": capacity, "refill": capacity, "per_us": 3_600_000_000_u64});
    let window = json!({"capacity": capacity, "window_us": 3_600_000_000_u64});
    let limits = [
        ("token_bucket", &rate),
        ("gcra", &rate),
        ("fixed_window", &window),
        ("sliding_window", &window),
        ("sliding_log", &window),
    ];
    let charge = |(number, (algorithm, limit)): (u64, (&str, &Value))| {
        let mut charge = charge(100 * name + number, cost, 1, 0);
        charge.as_object_mut().expect("a map").remove("token_bucket");
        charge[algorithm] = limit.clone();
        charge
    };
    (0..).zip(limits).map(charge).collect()
}

async fn every_limit_admits_its_capacity_and_says_when_to_come_back(store: Store) {
    for charge in of_each_algorithm(1, 2, 20) {
        let answers = store.ask(&vec![json!({"charges": [charge]}); 12]).await;
        let (admitted, denied): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| is_admitted(answer));
        let mut remaining: Vec<u64> = admitted
            .into_iter()
            .filter_map(|answer| match answer {
                DecisionAnswer::Admitted(charges) => Some(charges[0].remaining),
                _ => None,
            })
            .collect();
        remaining.sort_unstable();
        assert_eq!(remaining, (0..10).map(|left| 2 * left).collect::<Vec<u64>>(), "{charge}");
        assert_eq!(denied.len(), 2);
        let wait = wait(denied[0]);
        assert!(wait > Micros::ZERO && wait <= Micros::from_secs(7200), "{wait}: {charge}");
    }
}

/// A charge on a window of the calendar.
fn calendar_charge(name: u64, cost: u64, unit: &str, zone: &str) -> Value {
    let mut charge = charge(name, cost, 1, 0);
    charge.as_object_mut().expect("a map").remove("token_bucket");
    charge["fixed_window"] = json!({"capacity": 10, "calendar": unit, "time_zone": zone});
    charge
}

/// When the day or the month ends that it is now in a time zone.
fn end_of(unit: &str, zone: &str) -> Timestamp {
    let zone = TimeZoneDatabase::bundled().get(zone).expect("a time zone");
    let today = zone.to_datetime(Timestamp::now()).date();
    let next = if unit == "day" { today.tomorrow() } else { today.first_of_month().checked_add(1.month()) };
    zone.to_timestamp(next.expect("a date").at(0, 0, 0, 0)).expect("a time")
}

async fn a_calendar_window_ends_where_the_local_calendar_says(store: Store) {
    let zones = ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Kiritimati", "Etc/GMT+12", "Asia/Kathmandu"];
    let mut name = 1;
    for (zone, unit) in zones.iter().flat_map(|zone| [(*zone, "day"), (*zone, "month")]) {
        // Once more, where midnight comes in between.
        loop {
            let (before, end) = (Timestamp::now(), end_of(unit, zone));
            let admitted = is_admitted(&store.one(&[calendar_charge(name, 10, unit, zone)]).await);
            let denied = store.one(&[calendar_charge(name, 1, unit, zone)]).await;
            name += 1;
            if end_of(unit, zone) != end {
                continue;
            }
            assert!(admitted, "{unit} in {zone}");
            let told = before + Duration::from_micros(wait(&denied).count());
            let late = end.duration_until(told).abs();
            assert!(late < jiff::SignedDuration::from_secs(5), "{unit} in {zone}: {told} and not {end}");
            break;
        }
    }
}

async fn another_calendar_window_is_no_second_budget(store: Store) {
    for (name, (unit, zone)) in [("day", "Pacific/Kiritimati"), ("month", "UTC"), ("day", "UTC")].iter().enumerate() {
        let name = 100 + u64::try_from(name).expect("a small number");
        assert!(is_admitted(&store.one(&[calendar_charge(name, 6, "month", "Europe/Berlin")]).await));
        assert!(!is_admitted(&store.one(&[calendar_charge(name, 5, unit, zone)]).await), "{unit} in {zone}");
        assert!(is_admitted(&store.one(&[calendar_charge(name, 4, unit, zone)]).await), "{unit} in {zone}");
        assert!(!is_admitted(&store.one(&[calendar_charge(name, 1, "month", "Europe/Berlin")]).await));
    }
}

async fn limits_of_any_mix_are_charged_all_or_none(store: Store) {
    let all = |cost| of_each_algorithm(1, cost, 10);
    assert!(is_admitted(&store.one(&all(4)).await));
    for denying in 0..5 {
        // One of them has less left than the others.
        let mut charges = all(2);
        charges[denying]["cost"] = json!(7);
        let DecisionAnswer::Denied(denied) = store.one(&charges).await else { panic!("denied") };
        let denials: Vec<bool> = denied.iter().map(|charge| charge.denied.is_some()).collect();
        assert_eq!(denials, (0..5).map(|number| number == denying).collect::<Vec<bool>>());
    }
    assert!(is_admitted(&store.one(&all(6)).await), "nothing was spent");
}

async fn what_another_algorithm_has_stored_is_a_failure_and_no_pass(store: Store) {
    for charge in of_each_algorithm(1, 1, 10) {
        assert!(is_admitted(&store.one(&[charge]).await));
    }
    for stored in 0..5 {
        for asked in (0..5).filter(|asked| *asked != stored) {
            let mut charge = of_each_algorithm(1, 1, 10).swap_remove(asked);
            for name in ["key", "group"] {
                charge[name] = json!(format!("{:032x}", 100 + stored));
            }
            let answer = store.one(&[charge]).await;
            assert!(matches!(answer, DecisionAnswer::Failed(_)), "{asked} on {stored}: {answer:?}");
        }
    }
}

async fn a_decision_that_is_sent_again_is_not_made_again(store: Store) {
    // Charges with one group and with several, which a cluster keeps in different places.
    let mut together = of_each_algorithm(1, 2, 10);
    together.iter_mut().for_each(|charge| charge["group"] = json!("a".repeat(32)));
    for charges in [together, of_each_algorithm(2, 2, 10)] {
        let decision = |id: &str| json!({"id": id, "charges": charges});
        for _ in 0..3 {
            assert!(is_admitted(&store.ask(&[decision("first")]).await[0]));
        }
        // Also twice in one request, and at the same time.
        let body = json!({"decisions": [decision("second"), decision("second")]}).to_string();
        let post = |_| send(store.client.request(reqwest::Method::POST, "/v1/admit").body(body.clone()));
        let replies = burst(10, 10, post).await;
        assert!(replies.iter().all(|reply| !reply.body.contains("denied")), "{replies:?}");
        // Two of 2 are spent, so that 6 are left in each.
        let DecisionAnswer::Admitted(left) = &store.ask(&[decision("third")]).await[0] else { panic!("admitted") };
        assert_eq!(left.iter().map(|charge| charge.remaining).collect::<Vec<_>>(), [4; 5]);
        // The same id with other charges is another decision, and one that was denied is decided anew.
        let mut more = decision("first");
        more["charges"][0]["cost"] = json!(5);
        assert!(!is_admitted(&store.ask(&[more.clone()]).await[0]));
        more["charges"][0]["cost"] = json!(4);
        assert!(is_admitted(&store.ask(&[more]).await[0]));
    }
}

async fn a_new_bucket_is_full(store: Store) {
    let answers = store.ask(&vec![json!({"charges": [charge(1, 1, 20, 0)]}); 25]).await;
    // In any order: in a cluster, the first calls of a batch may have to bring the script.
    let mut remaining: Vec<u64> = answers
        .iter()
        .filter_map(|answer| match answer {
            DecisionAnswer::Admitted(charges) => Some(charges[0].remaining),
            _ => None,
        })
        .collect();
    remaining.sort_unstable();
    assert_eq!(remaining, (0..20).collect::<Vec<u64>>());
    assert_eq!(answers.iter().filter(|answer| matches!(answer, DecisionAnswer::Denied(_))).count(), 5);
}

async fn a_weighted_request_spends_its_cost(store: Store) {
    for (cost, admitted) in [(4, true), (7, false), (5, true), (2, false), (1, true), (1, false)] {
        assert_eq!(is_admitted(&store.one(&[charge(1, cost, 10, 0)]).await), admitted, "{cost}");
    }
}

async fn a_cost_above_the_capacity_is_refused_for_good(store: Store) {
    let DecisionAnswer::Denied(denied) = store.one(&[charge(1, 6, 5, 1)]).await else { panic!("denied") };
    assert_eq!((denied[0].denied, denied[0].remaining), (Some(Denial::OverCapacity), 5));
    assert!(is_admitted(&store.one(&[charge(1, 5, 5, 1)]).await), "and spends nothing");
}

async fn a_cost_that_is_none_is_refused_and_spends_nothing(store: Store) {
    // F33
    for wrong in ["-5", "0", "1.5", "\"3\"", "1000000000000", "99999999999999999999", "1e300", "null", "true", "[1]"] {
        let body = json!({"decisions": [{"charges": [charge(1, 7777, 10, 0)]}]}).to_string().replace("7777", wrong);
        let reply = send(store.client.request(reqwest::Method::POST, "/v1/admit").body(body)).await;
        assert_eq!(reply.status, 400, "{wrong}: {}", reply.body);
        assert!(reply.body.contains("decisions[0].charges[0].cost"), "{wrong}: {}", reply.body);
    }
    let mut without = charge(1, 1, 10, 0);
    without.as_object_mut().expect("a map").remove("cost");
    let body = json!({"decisions": [{"charges": [without]}]}).to_string();
    let reply = send(store.client.request(reqwest::Method::POST, "/v1/admit").body(body)).await;
    assert!(reply.status == 400 && reply.body.contains("cost"), "{}", reply.body);
    assert!(is_admitted(&store.one(&[charge(1, 10, 10, 0)]).await), "all of it is still there");
}

async fn a_denied_decision_spends_nothing(store: Store) {
    // F46, in both orders
    let (user, org) = (|cost| charge(1, cost, 3, 0), |cost| charge(2, cost, 10, 0));
    for _ in 0..3 {
        assert!(is_admitted(&store.one(&[user(1), org(1)]).await));
    }
    for _ in 0..5 {
        let DecisionAnswer::Denied(denied) = store.one(&[org(1), user(1)]).await else { panic!("denied") };
        assert_eq!((denied[0].remaining, denied[0].denied), (7, None));
        assert!(denied[1].denied.is_some());
        assert!(!is_admitted(&store.one(&[user(1), org(1)]).await));
    }
    assert!(is_admitted(&store.one(&[org(7)]).await));
    assert!(!is_admitted(&store.one(&[org(1)]).await));
}

async fn the_decisions_of_a_batch_are_independent(store: Store) {
    let decision = |charges: &[Value]| json!({"charges": charges});
    let answers = store
        .ask(&[
            decision(&[charge(1, 1, 1, 0)]),
            decision(&[charge(1, 1, 1, 0), charge(2, 1, 1, 0)]),
            decision(&[charge(2, 1, 1, 0)]),
            decision(&[charge(3, 2, 1, 0)]),
            decision(&[charge(4, 1, 1, 0)]),
        ])
        .await;
    assert_eq!(answers.iter().map(is_admitted).collect::<Vec<_>>(), [true, false, true, false, true]);
}

async fn an_empty_bucket_admits_exactly_when_it_says(store: Store) {
    assert!(is_admitted(&store.one(&[charge(1, 4, 4, 2)]).await));
    let first = wait(&store.one(&[charge(1, 1, 4, 2)]).await);
    assert!(first > Micros::from_millis(300) && first <= Micros::from_millis(500), "{first}");
    tokio::time::sleep(Duration::from_micros(first.count())).await;
    assert!(is_admitted(&store.one(&[charge(1, 1, 4, 2)]).await));
    assert!(!is_admitted(&store.one(&[charge(1, 1, 4, 2)]).await));
}

async fn a_bucket_refills_by_fractions(store: Store) {
    assert!(is_admitted(&store.one(&[charge(1, 1, 1, 4)]).await));
    let mut last = Micros::MAX;
    for _ in 0..5 {
        // Polling brings the time nearer and never puts it off.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = wait(&store.one(&[charge(1, 1, 1, 4)]).await);
        assert!(now < last, "{now} after {last}");
        last = now;
    }
}

async fn concurrent_decisions_spend_no_unit_twice(store: Store) {
    // F45
    for run in 0..20 {
        let body =
            json!({"decisions": [{"charges": [charge(run, 1, 30, 0), charge(1000 + run, 2, 100, 0)]}]}).to_string();
        let replies =
            burst(60, 60, |_| send(store.client.request(reqwest::Method::POST, "/v1/admit").body(body.clone()))).await;
        assert_eq!(replies.iter().filter(|reply| reply.body.contains("admitted")).count(), 30, "run {run}");
    }
}

/// Two limits of one bucket, as a caller's plans have them: ten units that come back in a month each, and one that comes
/// back at once.
fn slow_and_fast(cost: u64, keep_us: u64) -> [Value; 2] {
    [charge(1, cost, 10, 0), charge(1, 1, 1, 1_000_000)].map(|mut charge| {
        charge["token_bucket"]["keep_us"] = json!(keep_us);
        charge
    })
}

async fn a_change_of_limit_brings_nothing_back_to_a_bucket_that_is_kept(store: Store) {
    let [slow, fast] = slow_and_fast(10, 300 * 24 * 3_600_000_000);
    assert!(is_admitted(&store.one(&[slow]).await));
    assert!(is_admitted(&store.one(std::slice::from_ref(&fast)).await));
    // The bucket of the fast limit is full again now, and Redis keeps a bucket for a second more at the most.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let [slow, _] = slow_and_fast(2, 300 * 24 * 3_600_000_000);
    let DecisionAnswer::Denied(denied) = store.one(&[slow]).await else { panic!("denied") };
    assert_eq!(denied[0].remaining, 0);
    assert!(is_admitted(&store.one(&[fast]).await), "which is not what the fast limit says");
}

async fn a_lower_capacity_applies_at_once(store: Store) {
    assert!(is_admitted(&store.one(&[charge(1, 1, 5, 0)]).await));
    assert!(is_admitted(&store.one(&[charge(1, 1, 2, 0)]).await));
    assert!(is_admitted(&store.one(&[charge(1, 1, 10, 0)]).await), "1 of the 2 is left");
    assert!(!is_admitted(&store.one(&[charge(1, 1, 10, 0)]).await));
}

async fn policies_groups_and_keys_are_apart(store: Store) {
    let mut all = vec![charge(1, 1, 1, 0), charge(2, 1, 1, 0)];
    for (field, value) in [("policy", json!("q")), ("group", json!("f".repeat(32)))] {
        let mut other = charge(1, 1, 1, 0);
        other[field] = value;
        all.push(other);
    }
    for charge in &all {
        assert!(is_admitted(&store.one(std::slice::from_ref(charge)).await), "{charge}");
    }
    for charge in &all {
        assert!(!is_admitted(&store.one(std::slice::from_ref(charge)).await), "{charge}");
    }
}

async fn the_largest_numbers_are_exact(store: Store) {
    const MOST: u64 = 999_999_999_999;
    assert!(is_admitted(&store.one(&[charge(1, MOST - 1, MOST, 0)]).await));
    assert!(is_admitted(&store.one(&[charge(1, 1, MOST, 0)]).await));
    assert!(!is_admitted(&store.one(&[charge(1, 1, MOST, 0)]).await));
    assert_eq!(wait(&store.one(&[charge(1, MOST, MOST, 0)]).await), Micros::MAX, "longer than any wait");
}

#[tokio::test]
async fn every_key_in_redis_expires_when_its_bucket_would_be_full() {
    // F44
    let store = Store::redis().await;
    let redis = store.server();
    for name in 0..50 {
        store.one(&[charge(name, 1 + name % 10, 10, 2)]).await;
        store.one(&[charge(name, 5, 10, 2)]).await;
    }
    let mut connection = redis.connect().await;
    let keys = redis.keys().await;
    assert_eq!(keys.len(), 50);
    for key in keys {
        let left: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut connection).await.expect("a time to live");
        assert!((0..=6000).contains(&left), "{key} lives for {left} ms, and is full within 5 s");
    }
    // A bucket of one, at a thousand a second: full after 1 ms, gone after the margin.
    store.one(&[charge(99, 1, 1, 1000)]).await;
    let key = format!("tollgate:{{{:032x}}}:p:{:032x}", 99, 99);
    let left: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut connection).await.expect("a time to live");
    assert!((500..=1001).contains(&left), "{left}");
}

#[tokio::test]
async fn a_bucket_in_redis_is_kept_as_long_as_it_is_to_be_kept_and_no_longer() {
    let store = Store::redis().await;
    let mut connection = store.server().connect().await;
    let key = format!("tollgate:{{{:032x}}}:p:{:032x}", 1, 1);
    for charge in slow_and_fast(1, 7_000_000_000) {
        assert!(is_admitted(&store.one(std::slice::from_ref(&charge)).await));
        let left: u64 = redis::cmd("PTTL").arg(&key).query_async(&mut connection).await.expect("a time to live");
        // The slow limit is full when its unit is back, in a month.
        let most = if charge["token_bucket"]["capacity"] == 1 { 7_001_000 } else { 30 * 24 * 3_600_000 + 1000 };
        assert!((most - 10_000..=most).contains(&left), "{left} ms: {charge}");
    }
}

#[tokio::test]
async fn every_kind_of_key_in_redis_expires() {
    let store = Store::redis().await;
    let redis = store.server();
    for charge in of_each_algorithm(1, 3, 10) {
        assert!(is_admitted(&store.one(&[charge]).await));
    }
    let mut connection = redis.connect().await;
    let keys = redis.keys().await;
    assert_eq!(keys.len(), 5);
    for key in keys {
        let left: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut connection).await.expect("a time to live");
        assert!((1..=7_201_000).contains(&left), "{key} lives for {left} ms");
    }
}

#[tokio::test]
async fn a_calendar_window_in_redis_expires_at_its_boundary() {
    let store = Store::redis().await;
    let mut connection = store.server().connect().await;
    for (name, (unit, zone)) in [("day", "Europe/Berlin"), ("month", "Pacific/Kiritimati")].iter().enumerate() {
        assert!(is_admitted(&store.one(&[calendar_charge(name as u64, 1, unit, zone)]).await));
        let key = format!("tollgate:{{{name:032x}}}:p:{name:032x}");
        let at: i64 = redis::cmd("PEXPIRETIME").arg(&key).query_async(&mut connection).await.expect("a time");
        let margin = at - end_of(unit, zone).as_millisecond();
        assert!((0..=2000).contains(&margin), "{unit} in {zone}: {margin} ms after its end");
    }
}

#[tokio::test]
async fn a_key_without_a_time_to_live_gets_one() {
    let store = Store::redis().await;
    let redis = store.server();
    let key = format!("tollgate:{{{:032x}}}:p:{:032x}", 1, 1);
    let mut connection = redis.connect().await;
    redis::cmd("SET").arg(&key).arg("b:0:0:1000000:1000000").query_async::<()>(&mut connection).await.expect("a write");
    assert!(is_admitted(&store.one(&[charge(1, 1, 10, 1)]).await));
    let left: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut connection).await.expect("a time to live");
    assert!(left > 0, "{left}");
}
