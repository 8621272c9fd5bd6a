//! Histories that no run would make, and what is said of them.

use super::*;
use crate::store::{Charged, Made};
use crate::taken::Taken;
use tollgate_core::decision::{Admission, FailCause, Rejection};
use tollgate_core::key::{Digest, HashKey};
use tollgate_core::limit::outstanding::Lent;
use tollgate_core::limit::{Balance, Limit, State, TokenBucket};
use tollgate_core::policy::Plan;
use tollgate_core::units::{RefillRate, Tokens};

/// Two buckets of 10 units, refilled at 1/s, that are asked together.
struct History {
    checks: Checks,
    set: Rc<PolicySet>,
    now: Micros,
}

const NOW: Micros = Micros::from_secs(1_000);

fn limit() -> TokenBucket {
    let refill = RefillRate::new(1, Micros::from_secs(1)).unwrap();
    TokenBucket { capacity: Tokens::new(10).unwrap(), refill, keep: Micros::ZERO }
}

fn key(number: u8) -> Digest {
    let hash_key = HashKey::new(b"test");
    let mut digest = hash_key.digest("key");
    digest.part(&[number]);
    digest.finish()
}

fn holds(tokens: u64, at: Micros) -> Option<State> {
    Some(State::TokenBucket(Balance { tokens, fraction: 0, period: 1_000_000, at, lent: Lent::default() }))
}

impl History {
    fn new() -> Self {
        let config = r#"{"endpoint": {"cluster": "c"}, "policies": [
            {"name": "one", "scope": "global", "limit": {"token_bucket": {"capacity": 10, "refill": "1/s"}},
             "on_failure": "open"}]}"#;
        let set = Rc::new(PolicySet::read(config.as_bytes(), &|_| None).unwrap());
        // One in which calls can come to nothing.
        let any = (1..).map(crate::generate::scenario).find(|scenario| !scenario.is_calm()).unwrap();
        let scenario = Scenario { ids: true, ..any };
        Self { checks: Checks::new(&scenario, &[Rc::clone(&set)]), set, now: NOW }
    }

    /// The store decides for `cost` of both buckets; `left` is what each has before and after.
    fn store(&mut self, request: u64, made: Made, cost: u64, left: [(Option<u64>, Option<u64>); 2]) {
        let charged = |number: usize| {
            let state = |tokens: Option<u64>| tokens.and_then(|tokens| holds(tokens, self.now));
            let (before, after) = left[number];
            Charged {
                name: Name::of("policy", key(number as u8), key(number as u8)),
                limit: Limit::TokenBucket(limit()),
                cost,
                before: state(before),
                after: state(after),
                denied: None,
                lent: None,
            }
        };
        let charges = vec![charged(0), charged(1)];
        let record = Record { made, at: self.now, reading: self.now, gained: self.now, whole_since: None, charges };
        self.checks.stored(request, (0, 0), &record, self.now);
    }

    fn lose(&mut self, loss: Loss) {
        let store = Store::new(crate::clock::Clock::new(Micros::ZERO, Micros::ZERO, 0), None);
        self.checks.lost(loss, &BTreeMap::new(), &store, self.now);
    }

    fn admit(&mut self, request: u64, cost: u64, before: Option<u64>) {
        let left = before.unwrap_or(10) - cost;
        self.store(request, Made::Admitted, cost, [(before, Some(left)); 2]);
    }

    /// The one policy's request ends.
    fn end(&mut self, id: u64, outcome: Outcome, cause: Option<FailCause>) {
        let plan: Plan = self.set.plan(&crate::facts::Facts::of(&crate::generate::scenario(1).requests[0]));
        let decided = Decided {
            id,
            outcome,
            plan,
            config: 0,
            cause,
            left: false,
            taken: Taken::default(),
            lent: Vec::new(),
            uses: Vec::new(),
            expired: 0,
        };
        let owner = Owner { proxy: 0, life: 0, worker: 0, now: self.now };
        self.checks.decided(&decided, &owner, &self.set, Some(Micros::ZERO), self.now);
    }

    fn found(self) -> Option<Invariant> {
        self.checks.found.map(|found| found.invariant)
    }
}

#[test]
fn what_is_right_is_not_found() {
    let mut history = History::new();
    history.admit(1, 10, None);
    history.now = NOW.plus(Micros::from_secs(3));
    history.admit(2, 3, Some(3));
    assert_eq!(history.found(), None);
}

#[test]
fn units_above_the_envelope_are_found() {
    let mut history = History::new();
    history.admit(1, 10, None);
    // One microsecond early; the store says that the units were there.
    history.now = Micros::new(NOW.count() + 2_999_999);
    history.admit(2, 3, Some(3));
    assert_eq!(history.found(), Some(Invariant::Envelope));
}

#[test]
fn a_second_charge_that_is_not_spent_is_found() {
    let mut history = History::new();
    history.store(1, Made::Admitted, 4, [(None, Some(6)), (None, Some(10))]);
    assert_eq!(history.found(), Some(Invariant::Balance));
}

#[test]
fn a_denial_that_spends_is_found() {
    let mut history = History::new();
    history.admit(1, 4, None);
    history.store(2, Made::Denied, 4, [(Some(6), Some(6)), (Some(6), Some(2))]);
    assert_eq!(history.found(), Some(Invariant::Balance));
}

#[test]
fn a_bucket_that_is_lost_is_found_unless_the_store_has_lost_its_writes() {
    for is_known in [false, true] {
        let mut history = History::new();
        history.admit(1, 10, None);
        if is_known {
            history.lose(Loss::Everything);
        }
        history.admit(2, 10, None);
        assert_eq!(history.found().is_none(), is_known);
    }
}

#[test]
fn what_a_failover_loses_can_be_spent_once_more_and_no_more_than_that() {
    let mut history = History::new();
    history.admit(1, 4, None);
    history.now = NOW.plus(Micros::new(1));
    history.admit(2, 6, Some(6));
    history.lose(Loss::Since(history.now));
    history.admit(3, 6, Some(6));
    assert_eq!(history.checks.found, None);
    history.admit(4, 1, Some(1));
    assert_eq!(history.found(), Some(Invariant::Envelope));
}

#[test]
fn a_decision_that_is_made_twice_under_one_id_is_found() {
    for is_lost in [false, true] {
        let mut history = History::new();
        history.admit(1, 1, None);
        if is_lost {
            history.lose(Loss::Everything);
        }
        history.admit(1, 1, if is_lost { None } else { Some(9) });
        assert_eq!(history.found(), (!is_lost).then_some(Invariant::Once));
    }
}

#[test]
fn a_request_that_waits_too_long_or_ends_twice_is_found() {
    let mut history = History::new();
    history.checks.came(7);
    history.checks.is_due(7, NOW);
    assert_eq!(history.found(), Some(Invariant::Waiter));

    let mut history = History::new();
    history.checks.came(7);
    let open = || Outcome::Admit(Admission::FailedOpen);
    history.end(7, open(), Some(FailCause::Timeout));
    history.checks.is_due(7, NOW);
    assert_eq!(history.checks.found, None);
    history.end(7, open(), Some(FailCause::Timeout));
    assert_eq!(history.found(), Some(Invariant::Waiter));
}

#[test]
fn an_end_that_does_not_fit_what_has_happened_is_found() {
    let denied = Rejection::Denied { policies: vec![0], wait: None, emergency: false };
    let ends = [
        (Outcome::Admit(Admission::Allowed), None, Invariant::Charged),
        (Outcome::Reject(denied), None, Invariant::AllOrNothing),
        (Outcome::Admit(Admission::FailedOpen), None, Invariant::FailMode),
        (Outcome::Reject(Rejection::Unavailable { policies: vec![0] }), Some(FailCause::Timeout), Invariant::FailMode),
    ];
    for (outcome, cause, invariant) in ends {
        let mut history = History::new();
        history.checks.came(7);
        history.end(7, outcome, cause);
        assert_eq!(history.found(), Some(invariant));
    }
}

#[test]
fn what_a_limit_that_was_in_force_meanwhile_may_have_refilled_is_no_violation() {
    let set = |capacity: u64, refill: &str| {
        let limit = format!(r#"{{"token_bucket": {{"capacity": {capacity}, "refill": "{refill}"}}}}"#);
        let config = format!(r#"{{"policies": [{{"name": "guard", "scope": "local", "limit": {limit}}}]}}"#);
        Rc::new(PolicySet::read(config.as_bytes(), &|_| None).unwrap())
    };
    for (between, units, holds) in [("4/ms", 10, true), ("4/ms", 11, false), ("1/s", 1, false)] {
        let sets = [set(3, "1/s"), set(29, between), set(10, "1/s")];
        let mut local = local::Local::new(&sets);
        let take = |local: &mut local::Local, config: usize, id: u64, units: u64, now: Micros| {
            let set = &sets[config];
            let mut plan = set.plan(&crate::facts::Facts::of(&crate::generate::scenario(1).requests[0]));
            plan.charges[0].cost = Tokens::new(units).unwrap();
            let owner = Owner { proxy: 0, life: 0, worker: 0, now };
            local.took(id, &plan.charges[0], i128::from(units), &owner, set);
            let decided = Decided {
                id,
                outcome: Outcome::Admit(Admission::Allowed),
                plan,
                config,
                cause: None,
                left: false,
                taken: Taken::from([(0, i128::from(units))]),
                lent: Vec::new(),
                uses: Vec::new(),
                expired: 0,
            };
            local.decided(&decided, &owner, set)
        };
        take(&mut local, 0, 1, 3, NOW).expect("they are there");
        local.configured(0, 0, NOW.plus(Micros::from_millis(100)));
        // Nobody asks for this key, but another one of its set may have.
        local.configured(0, 1, NOW.plus(Micros::from_millis(113)));
        let found = take(&mut local, 2, 2, units, NOW.plus(Micros::from_millis(114)));
        assert_eq!(found.is_ok(), holds, "{between} {units}: {found:?}");
    }
}
