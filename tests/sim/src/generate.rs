//! From a seed to a scenario.

mod policies;

use crate::endpoint::USUAL_DEADLINE;
use crate::network::{Link, Part};
use crate::random::Random;
use crate::scenario::{Fault, Request, Scenario};
use tollgate_core::units::Micros;

/// The most that a clock drifts, in microseconds a second: twice what quartz does.
const DRIFT: u64 = 200;

/// One in so many scenarios has no fault: then nothing may fail.
const CALM: u64 = 4;

/// One in so many of the others has a proxy that reaches no endpoint for longer than its leases live, while the same
/// tenant is busy at others.
const CUT_OFF: u64 = 4;

/// Within how many microseconds all proxies get a configuration.
const TOGETHER: u64 = 300_000;

/// How long a busy tenant rests.
const REST: Micros = Micros::from_millis(1_200);

/// Clients whose buckets of the policy `guard` all belong in one set of the slot table, and are more than it has room
/// for.
const CROWD: [u64; 8] = [394, 477, 2_124, 3_568, 3_936, 19_164, 22_190, 30_623];

/// Every seed gives another scenario, and always the same one.
pub fn scenario(seed: u64) -> Scenario {
    let random = &mut Random::of(seed, &[0]);
    let calm = random.once_in(CALM);
    let (proxies, workers) = (random.between(1, 4) as usize, random.between(1, 3) as usize);
    let endpoints = random.between(1, 3) as usize;
    // Where nothing goes wrong there must be time to see that nothing does.
    let spans = if calm { [300, 3_000, 10_000, 40_000, 40_000] } else { [300, 1_000, 3_000, 10_000, 40_000] };
    let span = Micros::from_millis(random.pick(&spans));
    // Some wait for nearly as long as a lease is used.
    let timeout = Micros::from_millis(if random.once_in(8) { 1_500 } else { random.pick(&[5, 20, 50, 100]) });
    let configs = policies::configs(timeout, random);
    let link = if calm || random.once_in(3) { calm_link(timeout, random) } else { link(random) };
    let mut faults = if calm { Vec::new() } else { faults(span, (proxies, workers, endpoints), random) };
    let is_cut_off = !calm && proxies > 1 && span >= Micros::from_secs(3) && random.once_in(CUT_OFF);
    if is_cut_off {
        faults.extend(cut_off(span, proxies, endpoints, random));
    }
    for config in 1..configs.len() {
        // Each proxy gets it some time, or all at about the same.
        let at = moment(span, random);
        let is_together = random.once_in(2);
        for proxy in 0..proxies {
            let soon = at.plus(Micros::new(random.below(TOGETHER)));
            let at = if is_together { soon } else { moment(span, random) };
            faults.push((at, Fault::Configure { proxy, config }));
        }
    }
    faults.sort_by_key(|(at, _)| *at);
    let over = faults.iter().map(|(at, fault)| at.plus(fault.lasts())).max();
    let (requests, probes) = traffic(span, proxies, workers, is_cut_off, random);
    Scenario {
        seed,
        proxies,
        workers,
        endpoints,
        link,
        proxy_ppm: (0..proxies).map(|_| drift(random)).collect(),
        store_ppm: drift(random),
        timeout,
        store_deadline: USUAL_DEADLINE,
        ids: random.once_in(2),
        configs,
        requests,
        faults,
        healed: over.unwrap_or_default().max(span).plus(Micros::from_secs(1)),
        probes,
    }
}

fn drift(random: &mut Random) -> i32 {
    random.below(2 * DRIFT + 1) as i32 - DRIFT as i32
}

fn moment(span: Micros, random: &mut Random) -> Micros {
    Micros::new(random.below(span.count()))
}

/// So quick that no timeout is met.
fn calm_link(timeout: Micros, random: &mut Random) -> Link {
    let most = random.between(20, timeout.count().min(USUAL_DEADLINE.count()) / 16);
    let delay = (Micros::new(random.between(10, most)), Micros::new(most));
    Link { delay, spikes: 0, spike: Micros::ZERO, loss: 0, twice: 0, garbled: 0 }
}

fn link(random: &mut Random) -> Link {
    let most = random.pick(&[100, 500, 2_000, 10_000]);
    Link {
        delay: (Micros::new(random.between(20, most)), Micros::new(most)),
        spikes: random.pick(&[0, 0, 10, 100]),
        spike: Micros::from_millis(random.pick(&[10, 50, 300])),
        loss: random.pick(&[0, 0, 5, 50, 200]),
        twice: random.pick(&[0, 0, 20, 200]),
        garbled: random.pick(&[0, 0, 0, 50]),
    }
}

fn faults(span: Micros, parts: (usize, usize, usize), random: &mut Random) -> Vec<(Micros, Fault)> {
    let count = random.below(8);
    (0..count).map(|_| (moment(span, random), fault(span, parts, random))).collect()
}

/// One proxy has no way to any endpoint.
fn cut_off(span: Micros, proxies: usize, endpoints: usize, random: &mut Random) -> Vec<(Micros, Fault)> {
    let (proxy, at) = (random.index(proxies), moment(span, random));
    let lasts = Micros::from_millis(random.between(2_000, 5_000));
    let cut = |endpoint| Fault::Partition { one: Part::Proxy(proxy), other: Part::Endpoint(endpoint), lasts };
    (0..endpoints).map(|endpoint| (at, cut(endpoint))).collect()
}

fn fault(span: Micros, (proxies, workers, endpoints): (usize, usize, usize), random: &mut Random) -> Fault {
    let lasts = Micros::from_millis(random.pick(&[1, 20, 200, 2_000, 10_000])).min(span);
    let (proxy, endpoint) = (random.index(proxies), random.index(endpoints));
    match random.below(10) {
        0 => Fault::ProxyRestarts { proxy, down: lasts },
        1 => Fault::EndpointRestarts { endpoint, down: lasts },
        2 => Fault::StoreRestarts { down: lasts, keeps: random.once_in(2) },
        3 => Fault::Flush,
        4 => {
            let lag = Micros::from_millis(random.pick(&[1, 100, 2_000]));
            Fault::Failover { lag, step: step(random) / 10, ppm: drift(random) }
        }
        5 | 6 => Fault::ClockStep { by: step(random) },
        7 => {
            let (one, other) = if random.once_in(2) {
                (Part::Proxy(proxy), Part::Endpoint(endpoint))
            } else {
                (Part::Endpoint(endpoint), Part::Store)
            };
            Fault::Partition { one, other, lasts }
        }
        8 => Fault::WorkerRestarts { proxy, worker: random.index(workers) },
        _ => Fault::Storm { link: Link { loss: random.pick(&[0, 300, 900]), ..link(random) }, lasts },
    }
}

/// In microseconds, either way; some are over the minute that is taken for a fault.
fn step(random: &mut Random) -> i64 {
    let most = random.pick(&[1_000, 100_000, 3_000_000, 50_000_000, 200_000_000]);
    let by = random.between(1, most) as i64;
    if random.once_in(2) { by } else { -by }
}

/// Requests in bursts and between them, of a few tenants and clients; and of each of those one later.
fn traffic(
    span: Micros,
    proxies: usize,
    workers: usize,
    is_busy: bool,
    random: &mut Random,
) -> (Vec<Request>, Vec<Request>) {
    // One in so many scenarios has one busy tenant with fewer pauses, so that leases are at work when something happens.
    let is_steady = is_busy || random.once_in(3);
    let tenants = if is_steady { 1 } else { random.between(1, 4) };
    let clients: Vec<u64> = if random.once_in(4) { CROWD.to_vec() } else { (0..random.between(1, 6)).collect() };
    let count: u64 = if is_steady { 1_200 } else { random.pick(&[40, 150, 400, 1_200]) };
    // As many at once as a worker can take up in time.
    let burst = 15_000 * count.div_ceil(400);
    // A busy tenant may rest now and then, for so long that leases are given back, and come again in a burst.
    let wave = random.pick(&[None, Some(2_500_000), Some(6_000_000)]).filter(|_| is_steady);
    let bursts: Vec<Micros> = (0..random.between(1, 6)).map(|_| moment(span, random)).collect();
    let gold = random.pick(&[0, 300]);
    let leavers = random.pick(&[0, 0, 30]);
    let request = |at, random: &mut Random| Request {
        at,
        proxy: random.index(proxies),
        worker: random.index(workers),
        tenant: random.below(tenants),
        client: random.pick(&clients),
        route: usize::from(random.once_in(5)),
        gold: random.per_mille(gold),
        leaves: random.per_mille(leavers).then(|| Micros::new(random.between(1, 20_000))),
    };
    let mut requests: Vec<Request> = (0..count)
        .map(|_| {
            let in_burst = Micros::new(random.below(burst));
            let at =
                if is_steady || random.once_in(3) { moment(span, random) } else { random.pick(&bursts).plus(in_burst) };
            let end_of_rest = wave.and_then(|wave| {
                let end = Micros::new((at.count() / wave + 1) * wave);
                (end.since(at) < REST).then_some(end)
            });
            request(end_of_rest.map_or(at, |end| end.plus(in_burst)), random)
        })
        .collect();
    requests.sort_by_key(|request| request.at);
    let probes = (0..6).map(|_| Request { leaves: None, ..request(Micros::ZERO, random) }).collect();
    (requests, probes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use std::collections::BTreeMap;
    use tollgate_core::policy::PolicySet;
    use tollgate_core::slots::SETS;

    fn set_of(config: &PolicySet, client: u64) -> u32 {
        let request = Request { client, ..scenario(0).requests[0] };
        config.plan(&Facts::of(&request)).charges[0].key.share(SETS)
    }

    #[test]
    fn the_crowd_is_one() {
        let config = policies::config_of_guard();
        let first = set_of(&config, CROWD[0]);
        assert!(
            CROWD.iter().all(|client| set_of(&config, *client) == first),
            "the keys have changed: write {:?}",
            (0..60_000)
                .fold(BTreeMap::<u32, Vec<u64>>::new(), |mut sets, client| {
                    sets.entry(set_of(&config, client)).or_default().push(client);
                    sets
                })
                .into_values()
                .max_by_key(Vec::len)
        );
    }
}
