#![allow(clippy::arithmetic_side_effects)]
mod leases;

use super::*;
use crate::facts::tests::Request;
use crate::policy::Sharing;
use crate::policy::tests::read;
use crate::wire::{Admitted, Denied, Failure};
use std::collections::BTreeMap;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// Shared data as a proxy keeps it: a value and a version that grows with every write.
#[derive(Default)]
struct SharedData {
    values: BTreeMap<SetId, (Vec<u8>, u32)>,
    versions: u32,
    writes: usize,
}

impl SharedData {
    fn write(&mut self, set: SetId, bytes: Vec<u8>, version: Option<u32>) -> bool {
        if self.values.get(&set).map(|(_, version)| *version) != version {
            return false;
        }
        self.versions += 1;
        self.writes += 1;
        self.values.insert(set, (bytes, self.versions));
        true
    }

    /// One step of one decision; gives what the host cannot do by itself.
    fn advance(&mut self, decision: &mut Decision, set: &PolicySet, now: Micros) -> Option<Step> {
        match decision.step(set, now) {
            Step::Read(id) => {
                let value = self.values.get(&id).cloned();
                decision.stored(value.as_ref().map(|(bytes, version)| (bytes.as_slice(), *version)), now);
                None
            }
            Step::Write { set, bytes, version } => {
                decision.written(self.write(set, bytes, version));
                None
            }
            step => Some(step),
        }
    }

    fn run(&mut self, decision: &mut Decision, set: &PolicySet, now: Micros) -> Step {
        for _ in 0..1000 {
            if let Some(step) = self.advance(decision, set, now) {
                return step;
            }
        }
        panic!("a decision that never ends");
    }

    fn decide(&mut self, request: &Request, set: &PolicySet, now: Micros) -> Step {
        self.run(&mut Decision::new(set.plan(request), set, LESSEE), set, now)
    }
}

const NOW: Micros = Micros::from_secs(1000);

const LESSEE: Digest = Digest::from_bytes([7; 16]);

/// One of scope global is decided exactly.
fn policy(name: &str, scope: &str, capacity: u64, rest: &str) -> String {
    let mode = if scope == "global" { r#","mode":"exact""# } else { "" };
    format!(
        r#"{{"name":"{name}","scope":"{scope}"{mode},"limit":{{"token_bucket":{{"capacity":{capacity},"refill":"1/30d"}}}}{rest}}}"#
    )
}

fn set(policies: &[String]) -> PolicySet {
    read(&format!(
        r#"{{"hash_key":{{"env":"TOLLGATE_HASH_KEY"}},"endpoint":{{"cluster":"tollgate"}},
            "identities":{{"user":{{"sources":[{{"header":"x-user"}}]}}}},"policies":[{}]}}"#,
        policies.join(",")
    ))
}

fn get(user: &str) -> Request {
    Request::get("/").with("x-user", user)
}

fn admitted(step: &Step) -> bool {
    matches!(step, Step::Done(Outcome::Admit(_)))
}

fn denied_by(step: &Step) -> Vec<usize> {
    match step {
        Step::Done(Outcome::Reject(Rejection::Denied { policies, .. })) => policies.clone(),
        other => panic!("not denied: {other:?}"),
    }
}

#[test]
fn a_local_policy_admits_its_capacity_for_each_key() {
    let set = set(&[policy("p", "local", 3, r#","key":["user"]"#)]);
    let mut data = SharedData::default();
    assert_eq!((0..5).filter(|_| admitted(&data.decide(&get("a"), &set, NOW))).count(), 3);
    assert_eq!((0..5).filter(|_| admitted(&data.decide(&get("b"), &set, NOW))).count(), 3);
}

#[test]
fn a_bucket_is_shared_as_the_policy_says_and_an_emergency_bucket_by_the_whole_proxy() {
    let reads = |set: &PolicySet, fails: bool| {
        let mut decision = Decision::new(set.plan(&get("a")), set, LESSEE);
        if fails {
            assert_eq!(decision.step(set, NOW), Step::Ask);
            decision.failed(set);
        }
        match decision.step(set, NOW) {
            Step::Read(id) => id.sharing,
            step => panic!("{step:?}"),
        }
    };
    assert_eq!(reads(&set(&[policy("p", "local", 3, "")]), false), Sharing::Proxy);
    assert_eq!(reads(&set(&[policy("p", "local", 3, r#","sharing":"worker""#)]), false), Sharing::Worker);
    assert_eq!(reads(&set(&[global("g", EMERGENCY)]), true), Sharing::Proxy);
}

#[test]
fn a_newcomer_to_a_full_set_is_counted() {
    let set = set(&[policy("p", "local", 3, r#","key":["user"]"#)]);
    let mut data = SharedData::default();
    let mut overflows = 0;
    // Many users: some set gets more than its four.
    for user in 0..20_000 {
        let mut decision = Decision::new(set.plan(&get(&user.to_string())), &set, LESSEE);
        data.run(&mut decision, &set, NOW);
        overflows += decision.take_contention().iter().filter(|one| **one == Contention::Overflow).count();
    }
    assert!(overflows > 0 && overflows < 5_000, "{overflows}");
}

#[test]
fn a_denied_request_spends_nothing_from_the_other_policies() {
    // F46, in both orders
    for reverse in [false, true] {
        let mut policies = vec![policy("user", "local", 3, r#","key":["user"]"#), policy("org", "local", 10, "")];
        if reverse {
            policies.reverse();
        }
        let set = set(&policies);
        let mut data = SharedData::default();
        let mut admitted_of =
            |user: &str, n: usize| (0..n).filter(|_| admitted(&data.decide(&get(user), &set, NOW))).count();
        assert_eq!(
            [admitted_of("u1", 8), admitted_of("u2", 3), admitted_of("u3", 3), admitted_of("u4", 2)],
            [3, 3, 3, 1]
        );
        assert_eq!(denied_by(&data.decide(&get("u4"), &set, NOW)), [usize::from(!reverse)]);
    }
}

#[test]
fn a_local_denial_writes_nothing() {
    let set = set(&[policy("user", "local", 1, r#","key":["user"]"#), policy("org", "local", 10, "")]);
    let mut data = SharedData::default();
    assert!(admitted(&data.decide(&get("a"), &set, NOW)));
    let writes = data.writes;
    assert!((0..100).all(|_| !admitted(&data.decide(&get("a"), &set, NOW))));
    assert_eq!(data.writes, writes);
}

#[test]
fn a_guard_is_charged_for_what_others_reject() {
    let set =
        set(&[policy("guard", "local", 5, r#","charge":"always""#), policy("user", "local", 2, r#","key":["user"]"#)]);
    let mut data = SharedData::default();
    let policies: Vec<Vec<usize>> = (0..7)
        .map(|_| match data.decide(&get("a"), &set, NOW) {
            step if admitted(&step) => vec![],
            step => denied_by(&step),
        })
        .collect();
    assert_eq!(policies, [vec![], vec![], vec![1], vec![1], vec![1], vec![0, 1], vec![0, 1]]);
}

#[test]
fn a_lost_race_is_run_again() {
    let set = set(&[policy("p", "local", 3, "")]);
    let mut data = SharedData::default();
    let mut outcomes = Vec::new();
    // Five requests that all read before any of them writes.
    let mut decisions: Vec<Decision> = (0..5).map(|_| Decision::new(set.plan(&get("a")), &set, LESSEE)).collect();
    while !decisions.is_empty() {
        decisions.retain_mut(|decision| match data.advance(decision, &set, NOW) {
            Some(step) => {
                outcomes.push(admitted(&step));
                false
            }
            None => true,
        });
    }
    assert_eq!(outcomes.iter().filter(|admitted| **admitted).count(), 3);
}

#[test]
fn races_that_are_always_lost_end_in_a_counted_503() {
    let set = set(&[policy("p", "local", 3, "")]);
    let mut decision = Decision::new(set.plan(&get("a")), &set, LESSEE);
    for _ in 0..1000 {
        match decision.step(&set, NOW) {
            Step::Read(_) => decision.stored(None, NOW),
            Step::Write { .. } => decision.written(false),
            Step::Done(outcome) => {
                assert_eq!(outcome, Outcome::Reject(Rejection::Unavailable { policies: vec![0] }));
                assert_eq!(decision.take_contention(), [Contention::Exhausted]);
                return;
            }
            Step::Ask => panic!("nothing to ask"),
        }
    }
    panic!("never ended");
}

#[test]
fn races_for_a_lease_that_are_always_lost_end_at_the_endpoint() {
    let leased = r#"{"name":"p","scope":"global","mode":"leased","key":["user"],"on_failure":"open",
        "limit":{"token_bucket":{"capacity":1000,"refill":"1/s"}}}"#;
    let set = set(&[leased.into(), policy("q", "local", 3, "")]);
    let (mut all, mut answered) = (SharedData::default(), 0);
    for lost in 0..4 {
        let mut decision = Decision::new(set.plan(&get("a")), &set, LESSEE);
        let (mut reads, mut is_done) = (0, false);
        while !is_done {
            reads += 1;
            assert!(reads < 1000, "never ended");
            match decision.step(&set, NOW) {
                Step::Read(id) => {
                    let value = all.values.get(&id).cloned();
                    decision.stored(value.as_ref().map(|(bytes, version)| (bytes.as_slice(), *version)), NOW);
                }
                Step::Write { set: id, bytes, version } => {
                    let is_lost = id.table == Table::Leases && lost > 0;
                    decision.written(!is_lost && all.write(id, bytes, version));
                }
                Step::Ask => {
                    let lease = decision.request(&set).charges[0].lease;
                    assert!(lost == 0 || lease.is_none(), "what is not noted is not asked for");
                    answered += 1;
                    let admitted = Admitted { remaining: 900, lease: None };
                    assert_eq!(decision.answered(&DecisionAnswer::Admitted(vec![admitted]), &set), None);
                }
                Step::Done(outcome) => {
                    let is_admitted = outcome == Outcome::Admit(Admission::Allowed);
                    let is_denied =
                        matches!(&outcome, Outcome::Reject(Rejection::Denied { policies, .. }) if *policies == [1]);
                    assert!(if lost < 3 { is_admitted } else { is_denied }, "{outcome:?}");
                    is_done = true;
                }
            }
        }
        assert_eq!(decision.take_contention(), []);
    }
    assert_eq!(answered, 3);
}

#[test]
fn bytes_of_somebody_else_are_not_taken_for_a_full_bucket() {
    let set = set(&[policy("p", "local", 3, "")]);
    let mut decision = Decision::new(set.plan(&get("a")), &set, LESSEE);
    assert!(matches!(decision.step(&set, NOW), Step::Read(_)));
    decision.stored(Some((b"foreign", 7)), NOW);
    assert!(matches!(decision.step(&set, NOW), Step::Done(Outcome::Reject(Rejection::Unavailable { .. }))));
    assert_eq!(decision.take_contention(), [Contention::Malformed]);
}

fn ask(data: &mut SharedData, set: &PolicySet) -> Decision {
    let mut decision = Decision::new(set.plan(&get("a")), set, LESSEE);
    assert_eq!(data.run(&mut decision, set, NOW), Step::Ask);
    decision
}

fn global(name: &str, on_failure: &str) -> String {
    policy(name, "global", 5, &format!(r#","key":["user"],"on_failure":{on_failure}"#))
}

#[test]
fn the_endpoint_is_asked_for_all_global_policies_at_once() {
    let set = set(&[policy("guard", "local", 9, ""), global("g1", "\"open\""), global("g2", "\"closed\"")]);
    let mut data = SharedData::default();
    let mut decision = ask(&mut data, &set);
    let request = decision.request(&set);
    assert_eq!(request.charges.iter().map(|charge| charge.policy.as_str()).collect::<Vec<_>>(), ["g1", "g2"]);
    assert_eq!(
        decision.answered(&DecisionAnswer::Admitted(vec![Admitted { remaining: 1, lease: None }; 2]), &set),
        None
    );
    assert_eq!(data.run(&mut decision, &set, NOW), Step::Done(Outcome::Admit(Admission::Allowed)));
}

#[test]
fn what_the_endpoint_denies_is_given_back_locally() {
    let set = set(&[policy("local", "local", 1, ""), global("g1", "\"open\""), global("g2", "\"open\"")]);
    let mut data = SharedData::default();
    for _ in 0..3 {
        let mut decision = ask(&mut data, &set);
        let wait = |us| Denied { remaining: 0, denied: Some(Denial::WaitUs(us)), lease: None };
        assert_eq!(decision.answered(&DecisionAnswer::Denied(vec![wait(5), wait(9)]), &set), None);
        let rejection = Rejection::Denied { policies: vec![1, 2], wait: Some(Micros::new(9)), emergency: false };
        assert_eq!(data.run(&mut decision, &set, NOW), Step::Done(Outcome::Reject(rejection)));
    }
}

#[test]
fn what_comes_back_late_is_not_spent_on_top_of_the_refill() {
    // Five requests hold all of a fast local bucket while they ask; it would be full again when they are rejected.
    let set = read(
        r#"{"endpoint":{"cluster":"c"},"routes":[{"name":"asks","path":"/asks"}],"policies":[
            {"name":"local","scope":"local","limit":{"token_bucket":{"capacity":5,"refill":"100/s"}}},
            {"name":"g","scope":"global","mode":"exact","on_failure":"closed","match":{"routes":["asks"]},
             "limit":{"token_bucket":{"capacity":5,"refill":"1/s"}}}]}"#,
    );
    let mut data = SharedData::default();
    let mut asking: Vec<Decision> =
        (0..5).map(|_| Decision::new(set.plan(&Request::get("/asks")), &set, LESSEE)).collect();
    assert!(asking.iter_mut().all(|decision| data.run(decision, &set, NOW) == Step::Ask));
    let later = NOW.plus(Micros::from_millis(50));
    let burst =
        |data: &mut SharedData| (0..20).filter(|_| admitted(&data.decide(&Request::get("/"), &set, later))).count();
    let before = burst(&mut data);
    for mut decision in asking {
        decision.failed(&set);
        data.run(&mut decision, &set, later);
    }
    assert_eq!((before, burst(&mut data)), (0, 5));
}

#[test]
fn a_request_that_goes_while_it_waits_leaves_no_hold_behind() {
    let fast = policy("local", "local", 3, "").replace("1/30d", "1/s");
    let set = set(&[fast, global("g", "\"closed\"")]);
    let mut data = SharedData::default();
    let left = |data: &mut SharedData, now: Micros| {
        let asks = |data: &mut SharedData| {
            let mut decision = Decision::new(set.plan(&get("a")), &set, LESSEE);
            let asks = data.run(&mut decision, &set, now) == Step::Ask;
            decision.abandon();
            data.run(&mut decision, &set, now);
            asks
        };
        (0..9).filter(|_| asks(data)).count()
    };
    assert_eq!(left(&mut data, NOW), 3, "each that goes has spent its unit");
    // Full again as soon as the refill has it: a hold would keep it below that for 16 s.
    assert_eq!(left(&mut data, NOW.plus(Micros::from_secs(3))), 3);
}

#[test]
fn an_impossible_cost_outweighs_every_wait() {
    let set = set(&[global("g1", "\"open\""), global("g2", "\"open\"")]);
    let mut decision = ask(&mut SharedData::default(), &set);
    let charges = [Denial::OverCapacity, Denial::WaitUs(9)].map(|denial| Denied {
        remaining: 0,
        denied: Some(denial),
        lease: None,
    });
    decision.answered(&DecisionAnswer::Denied(charges.to_vec()), &set);
    let rejection = Rejection::Denied { policies: vec![0, 1], wait: None, emergency: false };
    assert_eq!(decision.step(&set, NOW), Step::Done(Outcome::Reject(rejection)));
}

const EMERGENCY: &str = r#"{"local":{"token_bucket":{"capacity":2,"refill":"1/30d"}}}"#;

#[test]
fn closed_beats_local_beats_open() {
    // F50
    let open = || global("open", "\"open\"");
    let closed = || global("closed", "\"closed\"");
    let local = || global("local", EMERGENCY);
    let run = |policies: &[String]| -> Vec<Step> {
        let set = set(policies);
        let mut data = SharedData::default();
        (0..3)
            .map(|_| {
                let mut decision = ask(&mut data, &set);
                decision.failed(&set);
                data.run(&mut decision, &set, NOW)
            })
            .collect()
    };
    let admit = |admission| Step::Done(Outcome::Admit(admission));
    assert_eq!(run(&[open()]), vec![admit(Admission::FailedOpen); 3]);
    let unavailable = |policies| Step::Done(Outcome::Reject(Rejection::Unavailable { policies }));
    assert_eq!(run(&[open(), closed(), local()]), vec![unavailable(vec![1]); 3]);
    let emergency = run(&[open(), local()]);
    assert_eq!(emergency[..2], vec![admit(Admission::FailedLocal); 2]);
    assert_eq!(denied_by(&emergency[2]), [1]);
    assert!(matches!(emergency[2], Step::Done(Outcome::Reject(Rejection::Denied { emergency: true, .. }))));
}

#[test]
fn what_fails_closed_gives_back_and_what_fails_open_does_not() {
    for (mode, admitted_in_all) in [("\"closed\"", 0), ("\"open\"", 3), (EMERGENCY, 2)] {
        let set = set(&[policy("local", "local", 3, ""), global("g", mode)]);
        let mut data = SharedData::default();
        let mut failed_admits = 0;
        for _ in 0..5 {
            let mut decision = Decision::new(set.plan(&get("a")), &set, LESSEE);
            if data.run(&mut decision, &set, NOW) == Step::Ask {
                decision.failed(&set);
                failed_admits += usize::from(admitted(&data.run(&mut decision, &set, NOW)));
            }
        }
        assert_eq!(failed_admits, admitted_in_all, "{mode}");
        let mut left = 0;
        while data.run(&mut Decision::new(set.plan(&get("a")), &set, LESSEE), &set, NOW) == Step::Ask {
            left += 1;
        }
        assert_eq!(left, 3 - admitted_in_all, "{mode}");
    }
}

#[test]
fn an_answer_that_does_not_fit_the_question_is_a_failure() {
    let set = set(&[global("g", "\"closed\"")]);
    for (answer, cause) in [
        (DecisionAnswer::Admitted(vec![]), FailCause::BadAnswer),
        (DecisionAnswer::Admitted(vec![Admitted { remaining: 1, lease: None }; 2]), FailCause::BadAnswer),
        (DecisionAnswer::Denied(vec![]), FailCause::BadAnswer),
        (DecisionAnswer::Denied(vec![Denied { remaining: 0, denied: None, lease: None }]), FailCause::BadAnswer),
        (DecisionAnswer::Failed(Failure::StoreTimeout), FailCause::Store),
    ] {
        let mut decision = ask(&mut SharedData::default(), &set);
        assert_eq!(decision.answered(&answer, &set), Some(cause));
        assert!(matches!(decision.step(&set, NOW), Step::Done(Outcome::Reject(Rejection::Unavailable { .. }))));
    }
}

#[test]
fn a_second_answer_changes_nothing() {
    let set = set(&[global("g", "\"open\"")]);
    let mut decision = ask(&mut SharedData::default(), &set);
    decision.answered(
        &DecisionAnswer::Denied(vec![Denied { remaining: 0, denied: Some(Denial::WaitUs(5)), lease: None }]),
        &set,
    );
    let first = decision.step(&set, NOW);
    decision.answered(&DecisionAnswer::Admitted(vec![Admitted { remaining: 1, lease: None }]), &set);
    decision.failed(&set);
    assert_eq!(decision.step(&set, NOW), first);
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Whatever the interleaving of the workers' steps: a policy never admits more than its capacity, and when
        /// all is done each bucket lacks exactly what was admitted.
        #[test]
        fn no_interleaving_admits_too_much_or_loses_a_unit(
            capacities in (1u64..6, 1u64..6),
            turns in prop::collection::vec(0usize..6, 0..120),
            denies in prop::collection::vec(any::<bool>(), 6),
        ) {
            let set = set(&[
                policy("a", "local", capacities.0, ""),
                policy("b", "local", capacities.1, r#","key":["user"]"#),
                global("g", "\"open\""),
            ]);
            let mut data = SharedData::default();
            let mut running: Vec<Option<Decision>> =
                (0..6).map(|_| Some(Decision::new(set.plan(&get("a")), &set, LESSEE))).collect();
            let mut count = 0;
            let rest = (0..6).flat_map(|worker| std::iter::repeat_n(worker, 200));
            for worker in turns.into_iter().chain(rest) {
                let Some(decision) = &mut running[worker] else { continue };
                match data.advance(decision, &set, NOW) {
                    None => {}
                    Some(Step::Ask) => {
                        let denied = denies[worker].then_some(Denial::WaitUs(1));
                        let answer = match denied {
                            Some(_) => DecisionAnswer::Denied(vec![Denied { remaining: 0, denied, lease: None }]),
                            None => DecisionAnswer::Admitted(vec![Admitted { remaining: 0, lease: None }]),
                        };
                        decision.answered(&answer, &set);
                    }
                    Some(step) => {
                        count += u64::from(admitted(&step));
                        running[worker] = None;
                    }
                }
            }
            prop_assert!(running.iter().all(Option::is_none), "all ended");
            prop_assert!(count <= capacities.0.min(capacities.1));
            let left = (0..10).filter(|_| {
                let mut decision = Decision::new(set.plan(&get("a")), &set, LESSEE);
                let step = data.run(&mut decision, &set, NOW);
                step == Step::Ask
            }).count() as u64;
            prop_assert_eq!(left, capacities.0.min(capacities.1) - count);
        }
    }
}

/// Decides a request and, each by itself, what the plan has in shadow; the endpoint admits what it is asked.
fn decide_all(data: &mut SharedData, request: &Request, set: &PolicySet) -> (bool, Vec<bool>) {
    let plan = set.plan(request);
    let shadows: Vec<Decision> =
        plan.shadows.iter().map(|charge| Decision::shadow(&plan, charge, set, LESSEE)).collect();
    let mut finish = |mut decision: Decision| {
        let mut step = data.run(&mut decision, set, NOW);
        if step == Step::Ask {
            let count = decision.request(set).charges.len();
            let admitted = (0..count).map(|_| Admitted { remaining: 1, lease: None }).collect();
            assert_eq!(decision.answered(&DecisionAnswer::Admitted(admitted), set), None);
            step = data.run(&mut decision, set, NOW);
        }
        admitted(&step)
    };
    (finish(Decision::new(plan, set, LESSEE)), shadows.into_iter().map(finish).collect())
}

#[test]
fn a_policy_in_shadow_changes_nothing_for_the_others() {
    // F74, in both orders
    for reverse in [false, true] {
        let mut policies =
            vec![policy("s", "local", 1, r#","enforce":"shadow","charge":"always""#), policy("e", "local", 2, "")];
        if reverse {
            policies.reverse();
        }
        let set = set(&policies);
        let mut data = SharedData::default();
        let decided: Vec<(bool, Vec<bool>)> = (0..4).map(|_| decide_all(&mut data, &get("a"), &set)).collect();
        let outcomes: Vec<bool> = decided.iter().map(|(outcome, _)| *outcome).collect();
        assert_eq!(outcomes, [true, true, false, false]);
        assert_eq!(decided.iter().filter(|(_, shadows)| shadows == &[false]).count(), 3, "denied in shadow");
    }
}

#[test]
fn a_global_policy_in_shadow_is_a_decision_of_its_own() {
    let shadow = policy("s", "global", 1, r#","on_failure":"closed","enforce":"shadow""#);
    let set = set(&[shadow, policy("g", "global", 1, r#","on_failure":"closed""#)]);
    let plan = set.plan(&get("a"));
    let mut alone = Decision::shadow(&plan, &plan.shadows[0], &set, LESSEE);
    let mut decision = Decision::new(plan, &set, LESSEE);
    assert_eq!((decision.step(&set, NOW), alone.step(&set, NOW)), (Step::Ask, Step::Ask));
    let names = |decision: &Decision| -> Vec<String> {
        decision.request(&set).charges.iter().map(|charge| charge.policy.clone()).collect()
    };
    assert_eq!((names(&decision), names(&alone)), (vec!["g".to_string()], vec!["s".to_string()]));
}

#[test]
fn what_a_policy_denies_as_it_stands_asks_nobody_and_is_charged_to_guards_alone() {
    let set = set(&[
        policy("guard", "local", 2, r#","charge":"always""#),
        policy("fair", "local", 2, ""),
        policy("g", "global", 1, r#","on_failure":"open""#),
        policy("who", "local", 9, r#","key":["user"],"on_missing":"reject""#),
        r#"{"name":"closed","scope":"local","limit":"deny"}"#.into(),
    ]);
    let mut data = SharedData::default();
    let reject = |step: Step| match step {
        Step::Done(Outcome::Reject(rejection)) => rejection,
        step => panic!("{step:?}"),
    };
    let unidentified = reject(data.decide(&Request::get("/"), &set, NOW));
    assert_eq!(unidentified, Rejection::Unidentified { policies: vec![3] });
    assert_eq!(data.writes, 1, "the guard's alone");
    assert_eq!(reject(data.decide(&get("a"), &set, NOW)), Rejection::Barred { policies: vec![4] });
    assert_eq!(data.writes, 2);
}

#[test]
fn a_change_of_plan_mints_nothing() {
    let plans = r#","key":["user"],"plans":{"by":{"header":"x-plan"},"gold":{"token_bucket":{"capacity":10,"refill":"1/30d"}}}"#;
    let set = set(&[policy("p", "local", 4, plans)]);
    let mut data = SharedData::default();
    let mut count = |plan: &str, times: usize| {
        (0..times).filter(|_| admitted(&data.decide(&get("a").with("x-plan", plan), &set, NOW))).count()
    };
    assert_eq!(count("gold", 3), 3);
    assert_eq!(count("none", 9), 4, "what is left is cut to the lower capacity");
    assert_eq!(count("gold", 9), 0, "and a higher one adds nothing");
    assert_eq!(count("none", 9), 0);
}

#[test]
fn a_change_of_the_hash_key_mints_nothing() {
    let set = |hash_key: &str| {
        read(&format!(
            r#"{{"hash_key":{hash_key},"identities":{{"user":{{"sources":[{{"header":"x-user"}}]}}}},"policies":[{}]}}"#,
            policy("p", "local", 5, r#","key":["user"]"#)
        ))
    };
    let (old, new) = (r#"{"value":"the old secret text"}"#, r#"{"value":"the new secret text"}"#);
    let both = set(r#"{"value":"the new secret text","previous":{"value":"the old secret text"}}"#);
    let mut data = SharedData::default();
    let mut count =
        |set: &PolicySet, times: usize| (0..times).filter(|_| admitted(&data.decide(&get("a"), set, NOW))).count();
    assert_eq!(count(&set(old), 2), 2);
    // Proxies that have the change and proxies that do not.
    assert_eq!([count(&both, 1), count(&set(old), 1), count(&both, 9), count(&set(old), 9)], [1, 1, 1, 0]);
    // What the old bucket had spent before is not known under the new key: that is what `previous` is kept for.
    assert_eq!(count(&both, 9), 0);
    assert_eq!(count(&set(new), 9), 3);
}
