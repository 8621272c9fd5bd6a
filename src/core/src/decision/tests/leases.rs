//! Decisions by leases: one proxy, and an endpoint that does what stores do.

use super::*;
use crate::admit::{self, Stored};
use crate::lease::{LEASE_USE, LeaseRecord};
use crate::limit::{Algorithm, State};
use crate::wire::AdmitRequest;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// A store, and the proxy's tables.
#[derive(Default)]
struct World {
    data: SharedData,
    states: BTreeMap<Digest, State>,
    records: BTreeMap<(Digest, Digest), LeaseRecord>,
    /// What was asked, in order.
    asked: Vec<DecisionRequest>,
    renewals: Vec<Decision>,
    now: Micros,
}

impl World {
    fn new() -> Self {
        Self { now: NOW, ..Self::default() }
    }

    fn answer(&mut self, request: &DecisionRequest) -> DecisionAnswer {
        let stored = request.charges.iter().map(|charge| Stored {
            state: self.states.get(&charge.key).cloned(),
            record: charge.lease.and_then(|call| self.records.get(&(charge.key, call.lessee)).copied()),
        });
        let stored: Vec<Stored> = stored.collect();
        let decided = admit::decide(&request.charges, &stored, None, self.now).unwrap();
        for (charge, kept) in request.charges.iter().zip(decided.kept) {
            if let Some((state, _)) = kept.state {
                self.states.insert(charge.key, state);
            }
            if let Some((call, record)) = charge.lease.zip(kept.record) {
                self.records.insert((charge.key, call.lessee), record);
            }
        }
        decided.answer
    }

    /// Runs a decision to its end; the endpoint answers.
    fn finish(&mut self, decision: &mut Decision, set: &PolicySet) -> Step {
        let step = self.data.run(decision, set, self.now);
        self.renewals.extend(decision.take_renewals(set));
        if step != Step::Ask {
            return step;
        }
        let request = decision.request(set);
        let answer = self.answer(&request);
        self.asked.push(request);
        assert_eq!(decision.answered(&answer, set), None);
        self.data.run(decision, set, self.now)
    }

    fn ask(&mut self, user: &str, set: &PolicySet) -> Step {
        self.finish(&mut Decision::new(set.plan(&get(user)), set, LESSEE), set)
    }

    /// The background has its turn.
    fn renew(&mut self, set: &PolicySet) {
        for mut renewal in core::mem::take(&mut self.renewals) {
            self.finish(&mut renewal, set);
        }
    }

    fn pass(&mut self, millis: u64) {
        self.now = self.now.plus(Micros::from_millis(millis));
    }

    /// What the store has of the first policy's bucket.
    fn left(&self, user: &str, set: &PolicySet) -> u64 {
        let plan = set.plan(&get(user));
        let Limit::TokenBucket(limit) = plan.charges[0].limit else { panic!("a token bucket") };
        match self.states.get(&plan.charges[0].key) {
            Some(State::TokenBucket(balance)) => limit.advance(Some(balance), self.now).tokens,
            _ => limit.capacity.count(),
        }
    }

    /// Until a lease is there.
    fn warm(&mut self, user: &str, set: &PolicySet) {
        for _ in 0..2 {
            assert!(admitted(&self.ask(user, set)));
        }
        assert!(self.asked.last().unwrap().charges[0].lease.is_some_and(|call| call.wanted > 0));
        self.asked.clear();
    }
}

fn leased(name: &str, capacity: u64, refill: &str, rest: &str) -> String {
    format!(
        r#"{{"name":"{name}","scope":"global","mode":"leased","key":["user"],"on_failure":"closed",
            "limit":{{"token_bucket":{{"capacity":{capacity},"refill":"{refill}"}}}}{rest}}}"#
    )
}

#[test]
fn a_key_that_is_used_is_decided_here_almost_always() {
    let set = set(&[leased("p", 10_000, "10000/s", "")]);
    let mut world = World::new();
    for _ in 0..4000 {
        assert!(admitted(&world.ask("a", &set)));
        world.renew(&set);
        world.pass(1);
    }
    assert!(world.asked.len() <= 20, "{} calls", world.asked.len());
    // The first request alone says nothing of how many will come.
    assert_eq!(world.asked[0].charges[0].lease.map(|call| call.wanted), None);
}

#[test]
fn a_key_that_is_seldom_used_costs_no_more_calls_than_requests() {
    let set = set(&[leased("p", 10_000, "10000/s", "")]);
    for millis in [300, 700, 1_900, 2_100] {
        let mut world = World::new();
        for _ in 0..50 {
            assert!(admitted(&world.ask("a", &set)));
            world.renew(&set);
            world.pass(millis);
            let charge = set.plan(&get("a")).charges[0].clone();
            world.finish(&mut Decision::give_back(&charge, &set).unwrap(), &set);
        }
        assert!(world.asked.len() <= 51, "{} calls, one request in {millis} ms", world.asked.len());
    }
}

#[test]
fn no_more_is_admitted_than_the_budget_and_all_of_it_is() {
    let set = set(&[leased("p", 1000, "1/30d", "")]);
    let mut world = World::new();
    let mut count = 0;
    for _ in 0..3000 {
        count += usize::from(admitted(&world.ask("a", &set)));
        world.renew(&set);
        world.pass(1);
    }
    assert_eq!(count, 1000);
    assert!(world.asked.len() < 250, "{} calls", world.asked.len());
    let other = world.asked.len();
    assert!(admitted(&world.ask("b", &set)));
    assert_eq!(world.asked.len(), other + 1, "another key has its own budget");
}

#[test]
fn a_denial_is_kept_for_a_while_and_says_how_long_to_wait() {
    let set = set(&[leased("p", 4, "1/10s", "")]);
    let mut world = World::new();
    assert_eq!((0..4).filter(|_| admitted(&world.ask("a", &set))).count(), 4);
    assert_eq!(denied_by(&world.ask("a", &set)), [0]);
    let calls = world.asked.len();
    world.pass(100);
    let Step::Done(Outcome::Reject(Rejection::Denied { wait, .. })) = world.ask("a", &set) else { panic!("denied") };
    assert_eq!(wait, Some(Micros::from_millis(9_900)));
    assert_eq!(world.asked.len(), calls, "no call");
    let mut denied_with = |millis: u64, count: usize| {
        world.pass(millis);
        assert_eq!(denied_by(&world.ask("a", &set)), [0]);
        assert_eq!(world.asked.len(), calls + count, "{millis} ms later");
    };
    denied_with(149, 0);
    denied_with(1, 1);
    // Who comes again and again is held off for a second.
    denied_with(999, 1);
    denied_with(1, 2);
    denied_with(1_999, 3);
    denied_with(999, 3);
    // Then the next denial is one alone.
    denied_with(1_001, 4);
    denied_with(249, 4);
    denied_with(1, 5);
}

#[test]
fn a_key_that_all_want_too_much_of_is_paced_here_without_a_call_for_each_request() {
    let set = set(&[leased("p", 200, "100/s", "")]);
    let mut world = World::new();
    let mut count = 0;
    // Twenty times what there is, for ten seconds.
    let mut calls = 0;
    for milli in 0..10_000 {
        if milli == 4_000 {
            (count, calls) = (0, world.asked.len());
        }
        count += (0..2).filter(|_| admitted(&world.ask("a", &set))).count();
        world.renew(&set);
        world.pass(1);
    }
    assert!((582..=660).contains(&count), "{count} of 600 in six seconds");
    assert!(world.asked.len() - calls <= 8, "{} calls in six seconds", world.asked.len() - calls);
}

#[test]
fn what_is_missing_here_is_asked_for_together_with_what_is_exact() {
    let exact = policy("q", "global", 3, r#","key":["user"],"on_failure":"closed""#);
    let set = set(&[leased("p", 1000, "1/30d", ""), exact]);
    let mut world = World::new();
    assert!(admitted(&world.ask("a", &set)) && admitted(&world.ask("a", &set)));
    let first = &world.asked[0].charges;
    assert_eq!((first.len(), first[0].cost.is_some()), (2, true));
    // Now the lease has units, and the exact policy alone is asked: one more, and then it denies.
    let before = world.left("a", &set);
    assert!(admitted(&world.ask("a", &set)));
    assert_eq!(denied_by(&world.ask("a", &set)), [1]);
    let last = world.asked.last().unwrap();
    assert_eq!((last.charges.len(), &*last.charges[0].policy), (1, "q"));
    assert_eq!(world.left("a", &set), before);
    // The denied request has spent nothing: in the end all units are there but three.
    world.pass(600);
    let plan = set.plan(&get("a"));
    let mut back = Decision::give_back(&plan.charges[0], &set).unwrap();
    world.finish(&mut back, &set);
    assert_eq!(world.left("a", &set), 997);
}

#[test]
fn a_local_policy_that_denies_costs_no_lease() {
    let set = set(&[leased("p", 1000, "1/30d", ""), policy("here", "local", 5, r#","key":["user"]"#)]);
    let mut world = World::new();
    assert_eq!((0..9).filter(|_| admitted(&world.ask("a", &set))).count(), 5);
    world.renew(&set);
    world.pass(600);
    let plan = set.plan(&get("a"));
    world.finish(&mut Decision::give_back(&plan.charges[0], &set).unwrap(), &set);
    assert_eq!(world.left("a", &set), 995);
}

#[test]
fn a_lease_is_used_while_the_endpoint_is_away() {
    let set = set(&[leased("p", 1000, "1/30d", "")]);
    let mut world = World::new();
    world.warm("a", &set);
    let mut served = 0;
    loop {
        let mut decision = Decision::new(set.plan(&get("a")), &set, LESSEE);
        let step = world.data.run(&mut decision, &set, world.now);
        for mut renewal in decision.take_renewals(&set) {
            assert_eq!(world.data.run(&mut renewal, &set, world.now), Step::Ask);
            renewal.failed(&set);
            assert!(admitted(&world.data.run(&mut renewal, &set, world.now)));
        }
        if step == Step::Ask {
            decision.failed(&set);
            let step = world.data.run(&mut decision, &set, world.now);
            assert_eq!(step, Step::Done(Outcome::Reject(Rejection::Unavailable { policies: vec![0] })));
            break;
        }
        assert!(admitted(&step));
        served += 1;
    }
    assert!((2..20).contains(&served), "{served}");
}

#[test]
fn a_dead_lease_is_not_used() {
    let set = set(&[leased("p", 1000, "1/30d", "")]);
    let mut world = World::new();
    world.warm("a", &set);
    world.now = world.now.plus(LEASE_USE);
    assert!(admitted(&world.ask("a", &set)));
    assert_eq!(world.asked.len(), 1, "the endpoint was asked");
    assert!(world.asked[0].charges[0].lease.is_none_or(|call| call.kept + call.returned == 0));
}

#[test]
fn who_waits_for_what_another_is_being_lent_looks_again() {
    let set = set(&[leased("p", 1000, "1000/s", "")]);
    let mut world = World::new();
    assert!(admitted(&world.ask("a", &set)));
    let mut decisions: Vec<Decision> = (0..5).map(|_| Decision::new(set.plan(&get("a")), &set, LESSEE)).collect();
    for decision in &mut decisions {
        assert_eq!(world.data.run(decision, &set, NOW), Step::Ask);
    }
    // One call about the lease at a time.
    let calls = decisions.iter().filter(|decision| decision.request(&set).charges[0].lease.is_some()).count();
    assert_eq!(calls, 1);
    let mut first = decisions.remove(0);
    let answer = world.answer(&first.request(&set));
    first.answered(&answer, &set);
    assert!(admitted(&world.data.run(&mut first, &set, NOW)));
    for decision in &mut decisions {
        assert!(decision.retry());
        assert!(admitted(&world.data.run(decision, &set, NOW)), "by the lease that is there now");
    }
    assert!(!Decision::new(set.plan(&get("a")), &set, LESSEE).retry(), "it has not asked");
}

#[test]
fn an_unused_lease_is_given_back_and_then_there_is_nothing_to_look_after() {
    let set = set(&[leased("p", 1000, "1/30d", "")]);
    let mut world = World::new();
    world.warm("a", &set);
    let charge = set.plan(&get("a")).charges[0].clone();
    let mut early = Decision::give_back(&charge, &set).unwrap();
    assert!(admitted(&world.finish(&mut early, &set)) && early.is_lent(world.now));
    assert!(world.asked.is_empty() && world.left("a", &set) < 998);
    world.pass(500);
    world.finish(&mut Decision::give_back(&charge, &set).unwrap(), &set);
    assert_eq!(world.left("a", &set), 998);
    let mut late = Decision::give_back(&charge, &set).unwrap();
    assert!(admitted(&world.finish(&mut late, &set)) && !late.is_lent(world.now));
    assert_eq!(world.asked.len(), 1);
}

#[test]
fn of_two_that_would_give_back_a_lease_one_does() {
    let set = set(&[leased("p", 1000, "1/30d", r#","sharing":"proxy""#)]);
    let mut world = World::new();
    world.warm("a", &set);
    world.pass(500);
    let charge = set.plan(&get("a")).charges[0].clone();
    let mut two: Vec<Decision> = (0..2).map(|_| Decision::give_back(&charge, &set).unwrap()).collect();
    // Both have read the lease before either writes.
    let now = world.now;
    let mut writes: Vec<Step> = Vec::new();
    for decision in &mut two {
        assert_eq!(world.data.advance(decision, &set, now), None);
        writes.push(decision.step(&set, now));
    }
    assert!(writes.iter().all(|step| matches!(step, Step::Write { .. })));
    let steps: Vec<Step> = two.iter_mut().map(|decision| world.data.run(decision, &set, now)).collect();
    assert_eq!(steps[0], Step::Ask);
    assert!(admitted(&steps[1]), "{:?}", steps[1]);
    assert!(two[0].request(&set).charges[0].lease.is_some_and(|call| call.returned > 0));
}

#[test]
fn an_answer_that_is_lost_costs_nothing_for_long() {
    let set = set(&[leased("p", 1000, "1/30d", "")]);
    let mut world = World::new();
    assert!(admitted(&world.ask("a", &set)));
    let mut unlucky = Decision::new(set.plan(&get("a")), &set, LESSEE);
    assert_eq!(world.data.run(&mut unlucky, &set, NOW), Step::Ask);
    world.answer(&unlucky.request(&set));
    unlucky.failed(&set);
    world.data.run(&mut unlucky, &set, NOW);
    let lost = world.left("a", &set);
    assert!(lost < 997, "a lease was granted: {lost}");
    world.pass(300);
    assert!(admitted(&world.ask("a", &set)));
    let charge = set.plan(&get("a")).charges[0].clone();
    world.pass(500);
    world.finish(&mut Decision::give_back(&charge, &set).unwrap(), &set);
    // One was charged for the request whose answer was lost.
    assert_eq!(world.left("a", &set), 997);
}

#[test]
fn bytes_that_are_no_leases_are_leases_that_were_lost() {
    let set = set(&[leased("p", 1000, "1/30d", r#","sharing":"proxy""#)]);
    let mut world = World::new();
    world.warm("a", &set);
    for (bytes, _) in world.data.values.values_mut() {
        *bytes = b"nonsense".to_vec();
    }
    let mut decision = Decision::new(set.plan(&get("a")), &set, LESSEE);
    assert!(admitted(&world.finish(&mut decision, &set)));
    assert_eq!(decision.take_contention(), [Contention::Malformed]);
    assert_eq!(world.asked.len(), 1);
}

#[test]
fn a_key_without_room_in_the_table_is_decided_exactly() {
    let set = set(&[leased("p", 1000, "1000/s", "")]);
    let mut world = World::new();
    let mut without = 0;
    for user in 0..40_000 {
        let user = user.to_string();
        world.asked.clear();
        for _ in 0..2 {
            assert!(admitted(&world.ask(&user, &set)));
        }
        without += usize::from(world.asked.iter().all(|request| request.charges[0].lease.is_none()));
    }
    assert!(without > 0 && without < 20_000, "{without}");
}

#[test]
fn who_may_wait_for_longer_than_a_lease_is_counted_takes_nothing_of_it() {
    let exact = r#"{"name":"all","scope":"global","mode":"exact","key":[],"on_failure":"open",
        "limit":{"token_bucket":{"capacity":1000000,"refill":"1/s"}}}"#;
    for (timeout, is_asked) in
        [("50ms", [false, false, true]), ("1s", [false, true, false]), ("5s", [true, true, true])]
    {
        let set = read(&format!(
            r#"{{"hash_key":{{"env":"TOLLGATE_HASH_KEY"}},"endpoint":{{"cluster":"tollgate","timeout":"{timeout}"}},
                "identities":{{"user":{{"sources":[{{"header":"x-user"}}]}}}},"policies":[{},{exact}]}}"#,
            leased("p", 10_000, "1/s", "")
        ));
        let mut world = World::new();
        world.warm("a", &set);
        for (millis, is_asked) in [100, 900, 790].into_iter().zip(is_asked) {
            world.pass(millis);
            // Nothing is heard of renewals.
            assert!(admitted(&world.ask("a", &set)));
            let charges = &world.asked.last().unwrap().charges;
            assert_eq!(charges.iter().any(|charge| charge.policy == "p"), is_asked, "{timeout} after {millis} ms more");
        }
    }
    // Another lease can turn out to be used up, so whoever takes from this one may come to wait.
    for (timeout, asked) in [("50ms", vec![]), ("5s", vec!["p", "q"])] {
        let set = read(&format!(
            r#"{{"hash_key":{{"env":"TOLLGATE_HASH_KEY"}},"endpoint":{{"cluster":"tollgate","timeout":"{timeout}"}},
                "identities":{{"user":{{"sources":[{{"header":"x-user"}}]}}}},"policies":[{},{}]}}"#,
            leased("p", 10_000, "1/s", ""),
            leased("q", 10_000, "1/s", "")
        ));
        let mut world = World::new();
        world.warm("a", &set);
        assert!(admitted(&world.ask("a", &set)));
        let charges = world.asked.iter().flat_map(|request| &request.charges);
        assert_eq!(charges.map(|charge| charge.policy.as_str()).collect::<Vec<_>>(), asked, "{timeout}");
    }
    // With nothing else to ask for it does not wait.
    let set = set(&[leased("p", 10_000, "1/s", "")]);
    let mut world = World::new();
    world.warm("a", &set);
    world.pass(1_790);
    assert!(admitted(&world.ask("a", &set)) && world.asked.is_empty());
}

#[test]
fn a_denial_that_is_kept_says_for_how_long() {
    let set = set(&[leased("p", 20, "10/s", "")]);
    let mut world = World::new();
    for _ in 0..60 {
        let before = world.asked.len();
        if let Step::Done(Outcome::Reject(Rejection::Denied { wait, .. })) = world.ask("a", &set) {
            let is_kept = world.asked.len() == before;
            assert!(!is_kept || wait.is_some_and(|wait| wait > Micros::ZERO), "{wait:?}");
        }
        world.pass(10);
    }
}

#[test]
fn a_lease_that_is_asked_for_can_be_asked_for() {
    const MOST: u64 = crate::units::MAX_TOKENS;
    let set = read(&format!(
        r#"{{"hash_key":{{"env":"TOLLGATE_HASH_KEY"}},"endpoint":{{"cluster":"tollgate"}},
            "identities":{{"user":{{"sources":[{{"header":"x-user"}}]}}}},
            "routes":[{{"name":"rows","path":"/**","cost":{{"from":{{"header":"x-rows"}},"max":{MOST}}}}}],"policies":[{}]}}"#,
        leased("p", MOST, "1000000/s", "")
    ));
    let mut world = World::new();
    for _ in 0..20 {
        let plan = set.plan(&get("a").with("x-rows", "999999999999"));
        world.finish(&mut Decision::new(plan, &set, LESSEE), &set);
        world.renew(&set);
        world.pass(1);
    }
    assert!(world.asked.iter().flat_map(|request| &request.charges).any(|charge| charge.lease.is_some()));
    for request in world.asked {
        let batch = AdmitRequest { decisions: vec![request] };
        assert_eq!(
            serde_json::from_slice::<AdmitRequest>(&batch.to_body()).map_err(|error| error.to_string()),
            Ok(batch)
        );
    }
}
