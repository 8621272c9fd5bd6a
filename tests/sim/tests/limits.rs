//! What chance makes too seldom: a limit that nobody has any more refills no bucket.

use serde_json::json;
use tollgate_core::units::Micros;
use tollgate_sim::generate::scenario;
use tollgate_sim::network::Link;
use tollgate_sim::run::run;
use tollgate_sim::scenario::{Fault, Request, Scenario};

fn config(refill: &str) -> String {
    json!({
        "hash_key": {"value": "of every simulated proxy"},
        "endpoint": {"cluster": "c", "timeout": "100ms"},
        "identities": {"tenant": {"sources": [{"header": "x-tenant"}]}},
        "policies": [{
            "name": "tenant", "scope": "global", "mode": "leased", "key": ["tenant"], "on_failure": "closed",
            "limit": {"token_bucket": {"capacity": 400, "refill": refill}},
        }],
    })
    .to_string()
}

/// A key that is busy while its refill is cut from 1000/s to 20/s, has spent everything later, rests so that its lease is
/// given back, and comes again. Both configurations of the worker know of that lease.
#[test]
fn a_lease_that_outlives_a_change_of_its_limit_is_not_given_back_by_the_old_one() {
    let request = |at| Request {
        at: Micros::new(at),
        proxy: 0,
        worker: 0,
        tenant: 0,
        client: 0,
        route: 0,
        gold: false,
        leaves: None,
    };
    let burst = |at: u64| (0..800).map(move |number| at + 100 * number);
    let steady = (0..80).map(|number| 100_000 * number);
    let mut requests: Vec<Request> = steady.chain(burst(3_500_000)).chain(burst(9_000_000)).map(request).collect();
    requests.sort_by_key(|request| request.at);
    let delay = Micros::new(200);
    let changed = Scenario {
        proxies: 1,
        workers: 1,
        endpoints: 1,
        link: Link { delay: (delay, delay), spikes: 0, spike: delay, loss: 0, twice: 0, garbled: 0 },
        proxy_ppm: vec![0],
        store_ppm: 0,
        timeout: Micros::from_millis(100),
        configs: vec![config("1000/s"), config("20/s")],
        requests,
        faults: vec![(Micros::from_secs(1), Fault::Configure { proxy: 0, config: 1 })],
        healed: Micros::from_secs(11),
        probes: Vec::new(),
        ..scenario(0)
    };
    let report = run(&changed, None, false);
    assert_eq!(report.violation, None);
    assert!(report.lease_hits > 200, "{}", report.lease_hits);
}
