//! The script in Redis and the core lend, settle and learn the same, to the last unit and microsecond, whatever is lost,
//! sent again or late; and over the script, no window admits more than it should.

use crate::arithmetic::{Random, script};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Script, Value};
use std::collections::BTreeMap;
use tollgate_core::admit::{Decided, Kept, Stored, decide};
use tollgate_core::key::Digest;
use tollgate_core::lease::{LEASE_USE, LeaseCall, LeaseRecord, Settled};
use tollgate_core::limit::outstanding::Lent;
use tollgate_core::limit::{Balance, Limit, State, TokenBucket};
use tollgate_core::units::{Micros, RefillRate, Tokens};
use tollgate_core::wire::{ChargeRequest, Cost, DecisionAnswer, Denial, LeaseAnswer};
use tollgate_tests::Redis;

const NOW: u64 = 1_796_000_000_000_000;

/// The script, by its hash, so that calls can be sent together.
struct Shipped {
    hash: String,
    connection: MultiplexedConnection,
    _redis: Redis,
}

impl Shipped {
    async fn start() -> Self {
        Self::start_with(&script()).await
    }

    async fn start_with(script: &Script) -> Self {
        let redis = Redis::start().await;
        let mut connection = redis.connect().await;
        let hash = script.prepare_invoke().load_async(&mut connection).await.expect("a script");
        Self { hash, connection, _redis: redis }
    }

    async fn run(&mut self, pipeline: &Pipeline) -> Vec<Value> {
        pipeline.query_async(&mut self.connection).await.expect("replies")
    }
}

/// One decision at one time: what the script is sent, and what should come of it.
struct Step {
    keys: Vec<String>,
    arguments: Vec<String>,
    reply: Vec<i64>,
    /// What is stored then, by key: the text, and for how many milliseconds at the most.
    stored: Vec<(String, Option<(String, u64)>)>,
    what: String,
}

/// A lessee that loses what it asks and what it is told.
#[derive(Clone, Default)]
struct Lessee {
    seq: u64,
    acked: u64,
    units: u64,
    sent: Vec<LeaseCall>,
}

/// A bucket as the core keeps it.
struct Bucket {
    name: String,
    limit: Limit,
    letter: char,
    numbers: [String; 3],
    state: Option<State>,
    records: BTreeMap<u8, LeaseRecord>,
    lessees: [Lessee; 3],
    /// Text and milliseconds by key.
    stored: BTreeMap<String, (String, u64)>,
}

fn digest(number: u8) -> Digest {
    Digest::from_bytes([number; 16])
}

/// Of the size that people choose, in half of the cases: there leases are more than rounding.
fn token_bucket(random: &mut Random) -> (Limit, [String; 3]) {
    if random.next().is_multiple_of(2) {
        return random.limit('b');
    }
    let capacity = 1 + random.next() % 300;
    let rate = RefillRate::new(1 + random.next() % 200, Micros::from_secs(1 + random.next() % 2)).expect("a rate");
    let limit = TokenBucket { capacity: Tokens::new(capacity).expect("some"), refill: rate, keep: Micros::ZERO };
    let numbers = [capacity, limit.rate().tokens(), limit.rate().period()].map(|number| number.to_string());
    (Limit::TokenBucket(limit), numbers)
}

impl Bucket {
    fn new(name: String, letter: char, random: &mut Random) -> Self {
        let (limit, numbers) = if letter == 'b' { token_bucket(random) } else { random.limit(letter) };
        let seq = if random.next().is_multiple_of(4) { random.upto((1 << 53) - 1000) } else { 0 };
        let lessees = [(); 3].map(|()| Lessee { seq, ..Lessee::default() });
        Self { name, limit, letter, numbers, state: None, records: BTreeMap::new(), lessees, stored: BTreeMap::new() }
    }

    /// What one of its lessees says next, or says again.
    fn call(&mut self, random: &mut Random) -> Option<(u8, LeaseCall)> {
        if self.letter != 'b' || random.next().is_multiple_of(3) {
            return None;
        }
        let number = u8::try_from(random.next() % 3).expect("a number");
        let capacity = self.limit.capacity().count();
        let lessee = &mut self.lessees[usize::from(number)];
        if random.next().is_multiple_of(4) && !lessee.sent.is_empty() {
            let which = usize::try_from(random.next()).expect("64 bits") % lessee.sent.len();
            return Some((number, lessee.sent[which]));
        }
        lessee.seq += 1;
        let any = |random: &mut Random| if random.next().is_multiple_of(8) { random.upto(capacity) } else { 0 };
        let kept = (random.next() % (lessee.units + 1)).max(any(random));
        let returned = (random.next() % (lessee.units.saturating_sub(kept) + 1)).max(any(random));
        let wanted = if random.next().is_multiple_of(4) { 0 } else { random.upto(capacity) };
        // Of what is wanted in all there is often not enough.
        let demand = random.upto(3 * capacity);
        let (seq, acked) = (lessee.seq, lessee.acked);
        let call = LeaseCall { lessee: digest(number), seq, acked, kept, returned, wanted, demand };
        lessee.sent.push(call);
        Some((number, call))
    }

    fn key(&self) -> String {
        format!("{{{}}}", self.name)
    }

    fn record_key(&self, number: u8) -> String {
        format!("{{{}}}:{number}", self.name)
    }
}

/// What is stored of a token bucket.
fn text(state: &State) -> Option<String> {
    let State::TokenBucket(Balance { tokens, fraction, period, at, lent }) = state else { return None };
    let whole = format!("b:{tokens}:{fraction}:{period}:{}", at.count());
    let Lent { units, rate, demand } = lent;
    let parts = [units, rate, demand].map(|part| format!(":{}:{}", part.current, part.previous)).concat();
    Some(if lent.is_any() { whole + &parts } else { whole })
}

/// A decision about some of the buckets, by the core, and what the script should make of it.
fn step(buckets: &mut [Bucket], lost: &mut Option<u64>, case: u64, random: &mut Random, now: u64) -> Step {
    let mut chosen: Vec<usize> = (0..buckets.len()).filter(|_| !random.next().is_multiple_of(3)).collect();
    if chosen.is_empty() {
        chosen.push(0);
    }
    let mut charges = Vec::new();
    let mut calls = Vec::new();
    for index in &chosen {
        let bucket = &mut buckets[*index];
        if random.next().is_multiple_of(24) {
            (bucket.limit, bucket.numbers) =
                if bucket.letter == 'b' { token_bucket(random) } else { random.limit(bucket.letter) };
        }
        let call = bucket.call(random);
        let cost = (call.is_none() || !random.next().is_multiple_of(3)).then(|| Cost(random.cost(&bucket.limit)));
        let learn = bucket.letter == 'b' && random.next().is_multiple_of(2);
        let lease = call.map(|(_, call)| call);
        let (key, group) = (digest(0), digest(0));
        charges.push(ChargeRequest { policy: "p".into(), key, group, cost, limit: bucket.limit, lease, learn });
        calls.push(call);
    }
    let learns = charges.iter().any(|charge| charge.learn);
    let is_lost = |(charge, index): (&ChargeRequest, &usize)| charge.learn && buckets[*index].state.is_none();
    if lost.is_none() && charges.iter().zip(&chosen).any(is_lost) {
        *lost = Some(now);
    }
    let stored: Vec<Stored> = (chosen.iter().zip(&calls))
        .map(|(index, call)| Stored {
            state: buckets[*index].state.clone(),
            record: call.and_then(|(number, _)| buckets[*index].records.get(&number).copied()),
        })
        .collect();
    let since = lost.filter(|since| *since > 0).map(Micros::new);
    let decided = decide(&charges, &stored, since, Micros::new(now)).expect("one algorithm for each bucket");
    let what = format!("case {case} at {now}, lost {lost:?}: {charges:#?} on {stored:#?} gives {decided:#?}");
    let reply = reply(&decided, &calls);

    let marker = format!("marker {case}");
    let mut keys: Vec<String> = chosen.iter().map(|index| buckets[*index].key()).collect();
    for (index, call) in chosen.iter().zip(&calls) {
        keys.extend(call.map(|(number, _)| buckets[*index].record_key(number)));
    }
    if learns {
        keys.push(marker.clone());
    }
    let mut arguments = vec!["take".to_owned()];
    for ((index, charge), call) in chosen.iter().zip(&charges).zip(&calls) {
        let bucket = &buckets[*index];
        arguments.push(if charge.learn { "e".to_owned() } else { bucket.letter.to_string() });
        arguments.extend(bucket.numbers.clone());
        let cost = charge.cost.map_or(0, |cost| cost.0.count());
        arguments.push(match call {
            None => cost.to_string(),
            Some((_, LeaseCall { seq, acked, kept, returned, wanted, demand, .. })) => {
                format!("{cost}:{seq}:{acked}:{kept}:{returned}:{wanted}:{demand}")
            }
        });
    }
    arguments.push(now.to_string());

    let answers = leases(&decided.answer);
    let mut stored = Vec::new();
    for (((index, call), kept), answer) in chosen.iter().zip(&calls).zip(decided.kept).zip(answers) {
        let bucket = &mut buckets[*index];
        if let Some((state, full_at)) = kept.state {
            if let Some(text) = text(&state) {
                let lives = full_at.since(Micros::new(now)).count().div_ceil(1000) + 1000;
                bucket.stored.insert(bucket.key(), (text, lives));
            }
            bucket.state = Some(state);
        }
        if bucket.letter == 'b' {
            stored.push((bucket.key(), bucket.stored.get(&bucket.key()).cloned()));
        }
        let Some((number, call)) = *call else { continue };
        if let Some(record) = kept.record {
            bucket.records.insert(number, record);
            let LeaseRecord { seq, kept, granted, room, rate, period, demand, generation } = record;
            let text = format!("r:{seq}:{kept}:{granted}:{room}:{rate}:{period}:{demand}:{generation}");
            bucket.stored.insert(bucket.record_key(number), (text, 4000));
        }
        let key = bucket.record_key(number);
        stored.push((key.clone(), bucket.stored.get(&key).cloned()));
        let lessee = &mut bucket.lessees[usize::from(number)];
        // Some answers never arrive.
        if let Some(LeaseAnswer { seq, units, room, .. }) =
            answer.filter(|_| call.seq == lessee.seq && !random.next().is_multiple_of(4))
        {
            // What it has earned by its rate is there as well.
            (lessee.acked, lessee.units) = (seq, units + room);
        }
    }
    if learns {
        stored.push((marker, lost.map(|since| (format!("m:{since}"), u64::MAX))));
    }
    Step { keys, arguments, reply, stored, what }
}

fn leases(answer: &DecisionAnswer) -> Vec<Option<LeaseAnswer>> {
    match answer {
        DecisionAnswer::Admitted(charges) => charges.iter().map(|charge| charge.lease).collect(),
        DecisionAnswer::Denied(charges) => charges.iter().map(|charge| charge.lease).collect(),
        DecisionAnswer::Failed(failure) => panic!("{failure:?}"),
    }
}

/// What the core decides, as the script says it.
fn reply(decided: &Decided, calls: &[Option<(u8, LeaseCall)>]) -> Vec<i64> {
    let number = |n: u64| i64::try_from(n).expect("below 2^53");
    let said: Vec<(u64, Option<Denial>)> = match &decided.answer {
        DecisionAnswer::Admitted(charges) => charges.iter().map(|charge| (charge.remaining, None)).collect(),
        DecisionAnswer::Denied(charges) => charges.iter().map(|charge| (charge.remaining, charge.denied)).collect(),
        DecisionAnswer::Failed(failure) => panic!("{failure:?}"),
    };
    let mut reply = Vec::new();
    for (((left, denied), kept), call) in said.into_iter().zip(&decided.kept).zip(calls) {
        let Kept { record, settled, is_lent, .. } = kept;
        reply.extend(match denied {
            None => [0, number(left), 0],
            Some(Denial::WaitUs(wait)) => [if *is_lent { 3 } else { 1 }, number(left), number(wait)],
            Some(Denial::OverCapacity) => [2, number(left), 0],
        });
        if call.is_some() {
            reply.extend(match settled.expect("a token bucket") {
                Settled::New { returned, .. } => {
                    let record = record.expect("it was granted");
                    [
                        0,
                        number(record.units()),
                        number(record.granted),
                        number(returned),
                        number(record.room),
                        number(record.rate),
                    ]
                }
                Settled::Again(record) => [1, number(record.units()), 0, 0, number(record.room), number(record.rate)],
                Settled::Late => [2, 0, 0, 0, 0, 0],
            });
        }
    }
    reply
}

/// What has been seen, so that nothing is left untried.
#[derive(Debug, Default)]
struct Seen {
    granted: u64,
    returned: u64,
    again: u64,
    late: u64,
    admitted: u64,
    denied_beside: u64,
    learned: u64,
    rated: u64,
}

async fn agree(first: u64, cases: u64) {
    const STEPS: u64 = 12;
    let mut shipped = Shipped::start().await;
    let mut random = Random::new(first);
    let mut seen = Seen::default();
    for case in first..first + cases {
        let mut buckets = vec![
            Bucket::new(format!("{case} a"), 'b', &mut random),
            Bucket::new(format!("{case} b"), 'b', &mut random),
            Bucket::new(format!("{case} c"), if case % 2 == 0 { 's' } else { 'g' }, &mut random),
        ];
        let end = Micros::MAX.count() - (1 << 41);
        let mut now = if case % 10 == 0 { end } else { NOW + random.next() % 4_000_000 };
        let mut lost = match random.next() % 3 {
            0 => None,
            1 => Some(0),
            _ => Some(now - random.upto(20_000_000)),
        };
        let mut pipeline = Pipeline::new();
        pipeline.ignore_errors();
        if let Some(since) = lost {
            pipeline.cmd("SET").arg(format!("marker {case}")).arg(format!("m:{since}")).ignore();
        }
        let mut steps = Vec::new();
        for _ in 0..STEPS {
            now = random.clock(now).min(end + (1 << 40));
            let step = step(&mut buckets, &mut lost, case, &mut random, now);
            pipeline.cmd("EVALSHA").arg(&shipped.hash).arg(step.keys.len()).arg(&step.keys).arg(&step.arguments);
            for (key, _) in &step.stored {
                pipeline.cmd("GET").arg(key).cmd("PTTL").arg(key);
            }
            steps.push(step);
        }
        let mut replies = shipped.run(&pipeline).await.into_iter();
        for Step { reply, stored, what, .. } in steps {
            let found = replies.next().expect("a reply");
            let found: Vec<i64> =
                redis::from_redis_value(found.clone()).unwrap_or_else(|_| panic!("{found:?}: {what}"));
            assert_eq!(found, reply, "{what}");
            for (key, expected) in stored {
                let mut next = || replies.next().expect("a reply");
                let text: Option<String> = redis::from_redis_value(next()).expect("a text");
                let lives: i64 = redis::from_redis_value(next()).expect("a time to live");
                assert_eq!(text, expected.as_ref().map(|(text, _)| text.clone()), "{key}: {what}");
                let Some((_, most)) = expected else { continue };
                let lives = u64::try_from(lives).unwrap_or(u64::MAX);
                // As in the other comparison: a clock that was set back, or the end of time, makes it longer.
                let too_long = lives > most.saturating_add(61_000) && most < 1 << 40;
                assert!(lives.saturating_add(60_000) >= most && !too_long, "{lives} of {most} ms, {key}: {what}");
                assert!(!key.contains("}:") || (3000..=4000).contains(&lives), "{lives} ms, {key}: {what}");
            }
            seen.count(&reply, &what);
        }
    }
    println!("{seen:?}");
    let Seen { granted, returned, again, late, admitted, denied_beside, learned, rated } = seen;
    let least = [granted, returned, again, late, admitted, denied_beside, learned, rated].into_iter().min();
    assert!(least > Some(cases / 20), "everything was tried");
}

impl Seen {
    /// The reply's numbers by what they are is known where it was made: here they are counted roughly.
    fn count(&mut self, reply: &[i64], what: &str) {
        self.admitted += u64::from(what.contains("answer: Admitted"));
        self.denied_beside += u64::from(reply.contains(&3) && what.contains("WaitUs"));
        self.again += u64::from(what.contains("Again("));
        self.late += u64::from(what.contains("Late,"));
        self.granted += u64::from(what.contains("granted: ") && !what.contains("granted: 0,"));
        self.returned +=
            u64::from(what.contains("returned: ") && reply.last_chunk::<3>().is_some_and(|last| last[0] > 0));
        self.rated += u64::from(what.contains("rate: ") && reply.last() > Some(&0));
        self.learned += u64::from(what.contains("learn: true") && what.contains("state: None"));
    }
}

#[tokio::test]
async fn the_script_and_the_core_lend_the_same() {
    agree(0, 5_000).await;
}

#[tokio::test]
async fn the_script_and_the_core_lend_the_same_in_other_cases() {
    agree(1_000_000, 5_000).await;
}

/// One bucket in Redis, and those who lease from it.
struct Lender {
    shipped: Shipped,
    name: u64,
    numbers: [u64; 3],
}

impl Lender {
    /// Whether it was admitted, and what the lessee has then.
    async fn ask(&mut self, cost: u64, call: Option<(u8, LeaseCall)>, now: u64) -> (bool, Option<u64>) {
        let bucket = format!("bucket {}", self.name);
        let mut pipeline = Pipeline::new();
        let command = pipeline.cmd("EVALSHA").arg(&self.shipped.hash).arg(1 + usize::from(call.is_some())).arg(&bucket);
        if let Some((number, _)) = call {
            command.arg(format!("{bucket}:{number}"));
        }
        command.arg("take").arg("b").arg(&self.numbers);
        match call {
            None => command.arg(cost),
            Some((_, LeaseCall { seq, acked, kept, returned, wanted, demand, .. })) => {
                command.arg(format!("{cost}:{seq}:{acked}:{kept}:{returned}:{wanted}:{demand}"))
            }
        };
        command.arg(now);
        let reply: Vec<i64> =
            redis::from_redis_value(self.shipped.run(&pipeline).await.remove(0)).expect("numbers of a reply");
        let units = (reply.len() == 9 && reply[3] < 2).then(|| u64::try_from(reply[4]).expect("units"));
        (reply[0] == 0, units)
    }
}

/// As in the core, with lessees that believe what they are told, and messages that are lost, late or sent again.
#[tokio::test]
async fn no_window_spends_more_whatever_is_lent_lost_and_sent_again() {
    const RUNS: u64 = 150;
    let mut random = Random::new(7);
    let mut lender = Lender { shipped: Shipped::start().await, name: 0, numbers: [1, 1, 1] };
    let (mut lent, mut spent_in_all) = (0, 0);
    for run in 0..RUNS {
        let (capacity, per_second) = (1 + random.next() % 60, 1 + random.next() % 40);
        let rate = RefillRate::new(per_second, Micros::from_secs(1)).expect("a rate");
        let rate = rate.fine();
        (lender.name, lender.numbers) = (run, [capacity, rate.tokens(), rate.period()]);
        let mut lessees = vec![(Lessee::default(), 0_u64); 3];
        let (mut now, mut spent) = (NOW, Vec::new());
        for _ in 0..100 {
            now += if random.next().is_multiple_of(2) { random.next() % 1000 } else { random.next() % 3_000_000 };
            let (action, amount) = (random.next() % 8, random.next() % 40);
            let number = u8::try_from(random.next() % 3).expect("a number");
            let (me, dead_at) = &mut lessees[usize::from(number)];
            if *dead_at <= now {
                me.units = 0;
            }
            match action {
                0 | 1 => {
                    let units = amount.min(me.units);
                    me.units -= units;
                    lent += units;
                    spent.push((now, units));
                }
                2 if amount > 0 => {
                    if lender.ask(amount, None, now).await.0 {
                        spent.push((now, amount));
                    }
                }
                3..=5 => {
                    me.seq += 1;
                    let returned = if amount % 3 == 0 { amount.min(me.units) } else { 0 };
                    me.units -= returned;
                    let (seq, acked, kept) = (me.seq, me.acked, me.units);
                    let call =
                        LeaseCall { lessee: digest(number), seq, acked, kept, returned, wanted: amount, demand: 0 };
                    me.sent.push(call);
                    let answer = if action == 4 { None } else { lender.ask(0, Some((number, call)), now).await.1 };
                    if let Some(units) = answer.filter(|_| action == 3) {
                        me.acked = seq;
                        me.units = (me.units + units).saturating_sub(kept);
                        *dead_at = now + LEASE_USE.count();
                    }
                }
                6 if !me.sent.is_empty() => {
                    let call = me.sent[usize::try_from(amount).expect("small") % me.sent.len()];
                    lender.ask(0, Some((number, call)), now).await;
                }
                _ => {
                    let (seq, sent) = (me.seq + 1, std::mem::take(&mut me.sent));
                    *me = Lessee { seq, acked: me.seq, sent, units: 0 };
                }
            }
        }
        let alive = lessees.iter().filter(|(_, dead_at)| *dead_at > now).map(|(lessee, _)| lessee.units).sum();
        spent.push((now, alive));
        while lender.ask(1, None, now).await.0 {
            spent.push((now, 1));
        }
        for (from, (start, _)) in spent.iter().enumerate() {
            let mut sum = 0;
            for (end, cost) in &spent[from..] {
                sum += cost * 1_000_000;
                assert!(sum <= capacity * 1_000_000 + per_second * (end - start), "run {run}: {spent:?}");
            }
        }
        spent_in_all += spent.iter().map(|(_, cost)| cost).sum::<u64>();
    }
    println!("{spent_in_all} were spent, {lent} of them from leases");
    assert!(lent > 1000 && spent_in_all > 10_000);
}
