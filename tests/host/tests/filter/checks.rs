//! What must hold once a run is over.

use crate::run::{Request, Run, State};
use crate::world::Verdict;
use std::collections::{BTreeMap, BTreeSet};
use tollgate_core::key::Digest;
use tollgate_core::limit::{Limit, TokenBucket};
use tollgate_core::policy::{Charge, Enforcement, FailMode, Mode, Policy, Scope, Sharing};
use tollgate_core::slots::{FORMAT, SETS, SlotSet};
use tollgate_core::units::Micros;

pub fn all(run: &Run) {
    each_request_has_one_verdict(run);
    requests_are_counted_once(run);
    shadows_are_counted_once(run);
    verdicts_are_the_endpoints(run);
    nothing_is_allowed_uncharged(run);
    envelopes_hold(run);
    what_is_left_adds_up(run);
    no_hold_is_forgotten(run);
    nobody_is_watched_in_vain(run);
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

/// `tollgate.requests.<route>.<outcome>` and `tollgate.client_left` together are the requests, each outcome as often as
/// the access log has it.
fn requests_are_counted_once(run: &Run) {
    let lost = run.requests.iter().filter(|request| request.state == State::Lost).count() as i64;
    let mut logged: BTreeMap<String, i64> = BTreeMap::new();
    for request in run.requests.iter().filter(|request| request.state != State::Lost) {
        let outcome = match request.state {
            State::Left => "client_left",
            _ if request.plan.exempt => "exempt",
            _ => request.outcome(),
        };
        *logged.entry(outcome.into()).or_default() += 1;
    }
    let mut counted: BTreeMap<String, i64> = BTreeMap::new();
    for (name, value) in &run.world().counters {
        let outcome = name.strip_prefix("tollgate.requests.").and_then(|rest| rest.split('.').next_back());
        let outcome = outcome.or_else(|| (name == "tollgate.client_left").then_some("client_left"));
        if let Some(outcome) = outcome.filter(|_| *value > 0) {
            *counted.entry(outcome.into()).or_default() += value;
        }
    }
    // One that was lost with its worker may have been counted just before.
    let more = |name: &String| counted.get(name).unwrap_or(&0) - logged.get(name).unwrap_or(&0);
    let all: BTreeSet<&String> = counted.keys().chain(logged.keys()).collect();
    let (least, sum) =
        all.iter().map(|name| more(name)).fold((0, 0), |(least, sum), more| (more.min(least), sum + more));
    if least < 0 || sum > lost {
        run.fail(&format!("counted are {counted:?}, in the access log are {logged:?}, and {lost} were lost"));
    }
}

/// A policy in shadow counts each request that it is for.
fn shadows_are_counted_once(run: &Run) {
    for (index, policy) in run.set.policies().iter().enumerate() {
        let concerns = |request: &&Request| {
            request.plan.shadows.iter().any(|charge| charge.policy == index)
                || request.plan.refusals.iter().any(|refusal| refusal.policy == index && !refusal.enforced)
        };
        let expected = run.requests.iter().filter(concerns).count() as i64;
        let world = run.world();
        let count = |what| world.counters.get(&format!("tollgate.policy.{}.{what}", policy.name)).copied().unwrap_or(0);
        let counted = count("shadow_allowed") + count("shadow_denied") + count("shadow_failed");
        drop(world);
        if counted > expected || (counted < expected && !run.uncounted) {
            run.fail(&format!("{} in shadow was for {expected} requests and has counted {counted}", policy.name));
        }
    }
}

/// Nobody is allowed by an answer that was for somebody else, nor by none; and who waited for an answer gets it.
fn verdicts_are_the_endpoints(run: &Run) {
    for (number, request) in run.requests.iter().enumerate() {
        let Some(mark) = request.mark(&run.set) else { continue };
        let told = run.told.get(&mark);
        if request.outcome() == "allowed" && told != Some(&true) {
            run.fail(&format!("request {number} is allowed, and the endpoint has said {told:?}"));
        }
    }
    for (number, admitted) in &run.heard {
        let request = &run.requests[*number];
        let fits = match request.outcome() {
            "allowed" => *admitted,
            "denied" | "over_capacity" => !*admitted,
            _ => request.state == State::Lost,
        };
        if !fits {
            run.fail(&format!("request {number} is {}, and the endpoint has said {admitted}", request.outcome()));
        }
    }
}

/// What is allowed by a global policy, of whatever algorithm, the endpoint has charged.
fn nothing_is_allowed_uncharged(run: &Run) {
    let mut allowed: BTreeMap<(String, Digest), u64> = BTreeMap::new();
    for request in run.requests.iter().filter(|request| request.outcome() == "allowed") {
        for charge in &request.plan.charges {
            let policy = policy(run, charge);
            if matches!(policy.scope, Scope::Global { .. }) {
                *allowed.entry((policy.name.clone(), charge.key)).or_default() += charge.cost.count();
            }
        }
    }
    for (bucket, units) in allowed {
        let charged = run.world().endpoint.charged.get(&bucket).copied().unwrap_or(0);
        if units > charged {
            run.fail(&format!("{} has allowed {units}, and the endpoint has charged {charged}", bucket.0));
        }
    }
}

/// A bucket: its policy, its key, and whose it is.
type Bucket = (usize, Digest, Option<usize>);

/// What was spent in a bucket, as spans of time in which it was, with the units.
#[derive(Default)]
struct Spent {
    capacity: u64,
    refill: u64,
    period: u64,
    spans: Vec<(u64, u64, u64)>,
}

impl Spent {
    fn add(&mut self, limit: &TokenBucket, span: (u64, u64), cost: u64) {
        self.capacity = limit.capacity.count();
        (self.refill, self.period) = (limit.refill.tokens(), limit.refill.period());
        self.spans.push((span.0, span.1, cost));
    }

    /// The first window in which more was spent than C + r·d.
    fn excess(&mut self) -> Option<String> {
        self.spans.sort_unstable();
        for (index, (from, ..)) in self.spans.iter().enumerate() {
            let mut within: Vec<(u64, u64)> = self.spans[index..].iter().map(|(_, to, cost)| (*to, *cost)).collect();
            within.sort_unstable();
            let mut sum = 0;
            for (to, cost) in within {
                sum += cost;
                let refilled = u128::from(self.refill) * u128::from(to - from) / u128::from(self.period);
                if u128::from(sum) > u128::from(self.capacity) + refilled {
                    return Some(format!(
                        "{sum} from {from} to {to}, capacity {} and refill {refilled}",
                        self.capacity
                    ));
                }
            }
        }
        None
    }
}

/// In no window is more admitted than C + r·d. Where it is not known when in a span a unit was spent, only windows
/// around all of it count.
fn envelopes_hold(run: &Run) {
    let mut buckets: BTreeMap<(Bucket, bool), Spent> = BTreeMap::new();
    for request in run.requests.iter().filter(|request| request.goes_on()) {
        let decided = request.verdict.as_ref().map_or(0, |(_, at)| *at);
        for charge in &request.plan.charges {
            let policy = policy(run, charge);
            let cost = charge.cost.count();
            match (&policy.scope, &charge.limit, request.outcome()) {
                (Scope::Local { sharing, .. }, Limit::TokenBucket(limit), _) => {
                    let whose = (*sharing == Sharing::Worker).then_some(request.vm);
                    let spent = buckets.entry(((charge.policy, charge.key, whose), false)).or_default();
                    spent.add(limit, (request.started, request.looked_at), cost);
                }
                (Scope::Global { .. }, Limit::TokenBucket(limit), "allowed") => {
                    let spent = buckets.entry(((charge.policy, charge.key, None), false)).or_default();
                    spent.add(limit, (request.started, decided), cost);
                }
                // With a lease it may have been the other policies that the endpoint did not answer for.
                (Scope::Global { mode: Mode::Leased(_), .. }, _, "failed_local") => {}
                (Scope::Global { on_failure: FailMode::Local(limit), .. }, _, "failed_local") => {
                    let spent = buckets.entry(((charge.policy, charge.key, None), true)).or_default();
                    spent.add(limit, (request.started, decided), cost);
                }
                _ => {}
            }
        }
    }
    for ((bucket, emergency), mut spent) in buckets {
        if let Some(excess) = spent.excess() {
            let name = &run.set.policies()[bucket.0].name;
            run.fail(&format!("{name} (emergency: {emergency}) has admitted {excess}"));
        }
    }
}

fn policy<'a>(run: &'a Run, charge: &Charge) -> &'a Policy {
    run.set.policy(charge.policy).expect("a policy of the set")
}

/// Where buckets do not refill, what was admitted is what is gone: a request that anybody denied has spent nothing.
fn what_is_left_adds_up(run: &Run) {
    if !run.policies.frozen {
        return;
    }
    // Least and most that can have been spent.
    let mut buckets: BTreeMap<(usize, Digest), (TokenBucket, u64, u64)> = BTreeMap::new();
    let mut unknown: BTreeSet<(usize, Digest)> = BTreeSet::new();
    for request in &run.requests {
        for charge in &request.plan.charges {
            let cost = charge.cost.count();
            let bucket = (charge.policy, charge.key);
            let stays = request.goes_on() || request.state == State::Left;
            let (limit, least, most) = match (&policy(run, charge).scope, &charge.limit) {
                (Scope::Local { sharing: Sharing::Proxy, charge_always }, Limit::TokenBucket(limit)) => {
                    let least = if stays { cost } else { 0 };
                    (*limit, least, if *charge_always { cost } else { least })
                }
                (Scope::Global { mode: Mode::Exact, on_failure: FailMode::Local(limit), .. }, _) => {
                    let spent = if request.outcome() == "failed_local" { cost } else { 0 };
                    (*limit, spent, spent)
                }
                _ => continue,
            };
            if request.state == State::Lost {
                unknown.insert(bucket);
            }
            let known = buckets.entry(bucket).or_insert((limit, 0, 0));
            (known.1, known.2) = (known.1 + least, known.2 + most);
        }
    }
    for ((index, key), (limit, least, most)) in buckets {
        // Requests that were being decided when their worker died.
        if unknown.contains(&(index, key)) || shares_its_bucket(run, index, key) {
            continue;
        }
        let left = left(run, index, key, &limit, run.now());
        let spent = limit.capacity.count() - left;
        if spent < least || spent > most {
            let name = &run.set.policies()[index].name;
            run.fail(&format!(
                "{name} has spent {spent} of {}, and between {least} and {most} were admitted",
                limit.capacity.count()
            ));
        }
    }
}

/// A policy that is enforced in part keeps the buckets of those in shadow in the same table.
fn shares_its_bucket(run: &Run, index: usize, key: Digest) -> bool {
    match run.set.policies()[index].enforce {
        Enforcement::On => false,
        Enforcement::Shadow => true,
        enforce @ Enforcement::Percent(_) => !enforce.applies_to(&key),
    }
}

/// After the time that a bucket takes to fill it is full: nothing is held any more.
fn no_hold_is_forgotten(run: &Run) {
    if run.policies.frozen || run.uncounted {
        return;
    }
    let now = run.now();
    for request in &run.requests {
        for charge in &request.plan.charges {
            let (Scope::Local { sharing: Sharing::Proxy, .. }, Limit::TokenBucket(limit)) =
                (&policy(run, charge).scope, &charge.limit)
            else {
                continue;
            };
            let full = now + limit.time_to_fill().count();
            // Without what drops buckets that are thought to be full.
            let left = left(run, charge.policy, charge.key, limit, full);
            if left < limit.capacity.count() {
                let name = &run.set.policies()[charge.policy].name;
                run.fail(&format!("{name} is left with {left} of {} for good", limit.capacity.count()));
            }
        }
    }
}

/// Where nobody waits, a root is not called every few milliseconds.
fn nobody_is_watched_in_vain(run: &Run) {
    let world = run.world();
    let ticking = world.vms.iter().flat_map(|vm| &vm.roots).find(|(_, root)| (1..250_000).contains(&root.period));
    let ticking = ticking.map(|(id, root)| format!("root {id} ticks every {} us for nobody", root.period));
    drop(world);
    if let Some(ticking) = ticking {
        run.fail(&ticking);
    }
}

/// What a bucket of the proxy has at a time.
fn left(run: &Run, policy: usize, key: Digest, limit: &TokenBucket, at: u64) -> u64 {
    let world = run.world();
    let Some((bytes, _)) = world.shared.get(&format!("tollgate.{FORMAT}.proxy.{}", key.share(SETS))) else {
        return limit.capacity.count();
    };
    let at = Micros::new(at);
    // The set as it was last written, so that no bucket is dropped before it is looked at.
    let set = SlotSet::decode(bytes, Micros::ZERO).expect("a set of buckets");
    set.seat(key, run.set.policies()[policy].overflow(), limit, at).balance.tokens
}
