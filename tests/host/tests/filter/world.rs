//! What one proxy process has, and the rules by which it lets plugins have it: those of Envoy 1.40.
//!
//! Nothing here panics: host calls come through frames that must not unwind. What a plugin must not do is written down,
//! and the run fails when the callback is over.

use crate::endpoint::Endpoint;
use crate::random::Random;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use tollgate_core::key::Digest;
use tollgate_core::lease;
use tollgate_core::slots::{FORMAT, SETS};

pub const OK: u32 = 0;
pub const NOT_FOUND: u32 = 1;
pub const BAD_ARGUMENT: u32 = 2;
pub const EMPTY: u32 = 7;
pub const CAS_MISMATCH: u32 = 8;
pub const INTERNAL_FAILURE: u32 = 10;

/// In everything that must not leave the request or the configuration.
pub const SECRET: &str = "secret";

/// More calls than this one root never has out, four for requests and four for policies in shadow; older ones may be
/// lost.
const MAX_CALLS: usize = 8;

pub type Headers = Vec<(String, Vec<u8>)>;

pub struct World {
    /// Chance of the host: what a call meets, when a callback is interrupted.
    pub chance: Random,
    /// What plugins get as random numbers.
    pub entropy: Random,
    /// The monotonic clock, in microseconds.
    pub now: u64,
    /// The wall clock, which may step.
    pub wall: u64,
    pub shared: HashMap<String, (Vec<u8>, u32)>,
    last_cas: u32,
    pub queues: Vec<Queue>,
    pub vms: Vec<Vm>,
    pub counters: BTreeMap<String, i64>,
    pub endpoint: Endpoint,
    /// One interruption in so many shared data calls; 0 for none.
    pub interrupts: u64,
    pub broken_rules: Vec<String>,
    pub logs: Vec<String>,
    /// What happened, to be shown when a run fails.
    pub history: Vec<String>,
}

pub struct Queue {
    name: String,
    pub vm: usize,
    pub root: u32,
    pub items: VecDeque<Vec<u8>>,
    /// The root is to be told.
    pub told: bool,
}

#[derive(Default)]
pub struct Vm {
    pub roots: BTreeMap<u32, Root>,
    pub streams: BTreeMap<u32, Stream>,
    /// The context whose callback runs, and the one that it acts for.
    current: u32,
    effective: u32,
    pub configuring: Option<Vec<u8>>,
    /// The answer that the callback is about.
    pub answer: Option<Answer>,
    pub calls: Vec<Call>,
    next_token: u32,
    /// What Envoy does when the callback is over.
    pub after: VecDeque<After>,
    metrics: Vec<String>,
    pub is_dead: bool,
}

#[derive(Default)]
pub struct Root {
    pub period: u64,
    pub next_tick: Option<u64>,
    /// No new streams.
    pub drains: bool,
    defined: BTreeSet<String>,
    pub refused: bool,
}

/// A request, and what became of it.
pub struct Stream {
    pub root: u32,
    /// Which request of the run.
    pub number: usize,
    pub headers: Headers,
    pub response: Option<Headers>,
    /// Whether request headers can be read: from their callback until the request goes on.
    pub readable: bool,
    pub paused: bool,
    /// Envoy has answered it itself, while it was paused.
    pub overtaken: bool,
    pub verdict: Option<Verdict>,
    pub verdict_at: u64,
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    GoesOn,
    Replied(u32),
}

#[derive(Clone)]
pub struct Answer {
    pub headers: Option<Headers>,
    pub body: Vec<u8>,
    /// As told; more than is there for one that is too large to make.
    pub size: usize,
}

pub struct Call {
    pub token: u32,
    /// Whom the answer is for.
    pub owner: u32,
    pub sent: u64,
    /// When it ends; `None` for never.
    pub due: Option<u64>,
    pub answer: Answer,
    /// The requests in it that the endpoint has admitted, by the digests of their marks.
    pub verdicts: Vec<(Digest, bool)>,
}

#[derive(Clone, Debug)]
pub enum After {
    /// A local reply runs the response callbacks.
    Reply { stream: u32, headers: Headers },
}

impl World {
    pub fn new(seed: u64, endpoint: Endpoint) -> Self {
        let mut chance = Random::new(seed ^ 0x7711);
        Self {
            entropy: Random::new(chance.next()),
            now: chance.between(1_000_000, 1 << 40),
            wall: 1_790_000_000_000_000,
            chance,
            shared: HashMap::new(),
            last_cas: 0,
            queues: Vec::new(),
            vms: Vec::new(),
            counters: BTreeMap::new(),
            endpoint,
            interrupts: 0,
            broken_rules: Vec::new(),
            logs: Vec::new(),
            history: Vec::new(),
        }
    }

    pub fn broken(&mut self, rule: impl Into<String>) {
        self.broken_rules.push(rule.into());
    }

    pub fn tell(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        self.history.push(format!("{now} {}", what()));
    }

    /// A callback of a context begins.
    pub fn enter(&mut self, vm: usize, context: u32) {
        self.vms[vm].current = context;
        self.vms[vm].effective = context;
    }

    fn effective_stream(&mut self, vm: usize, what: &str) -> Option<&mut Stream> {
        let effective = self.vms[vm].effective;
        if !self.vms[vm].streams.contains_key(&effective) {
            self.broken(format!("{what} for context {effective}, which is no stream"));
        }
        self.vms[vm].streams.get_mut(&effective)
    }

    fn keeps_secrets(&mut self, place: &str, bytes: &[u8]) {
        if bytes.windows(SECRET.len()).any(|window| window.eq_ignore_ascii_case(SECRET.as_bytes())) {
            self.broken(format!("{place} shows a secret: {}", String::from_utf8_lossy(bytes)));
        }
    }

    // Host calls.

    pub fn log(&mut self, level: u32, message: String) {
        self.keeps_secrets("the log", message.as_bytes());
        if level >= 5 {
            self.broken(format!("the log is critical: {message}"));
        }
        self.logs.push(message);
    }

    pub fn set_effective(&mut self, vm: usize, context: u32) -> u32 {
        let vm = &mut self.vms[vm];
        if vm.roots.contains_key(&context) || vm.streams.contains_key(&context) {
            vm.effective = context;
            return OK;
        }
        BAD_ARGUMENT
    }

    pub fn buffer(&self, vm: usize, kind: u32) -> Result<Vec<u8>, u32> {
        let vm = &self.vms[vm];
        match kind {
            4 => vm.answer.as_ref().map(|answer| answer.body.clone()).ok_or(BAD_ARGUMENT),
            7 => vm.configuring.clone().ok_or(BAD_ARGUMENT),
            _ => Err(BAD_ARGUMENT),
        }
    }

    /// As the host hands a whole map over.
    pub fn pairs(&self, vm: usize, map: u32) -> Result<Vec<u8>, u32> {
        let headers = self.headers(vm, map)?;
        let number = |number: usize| (number as u32).to_le_bytes();
        let mut bytes = number(headers.len()).to_vec();
        bytes.extend(headers.iter().flat_map(|(name, value)| [number(name.len()), number(value.len())]).flatten());
        for part in headers.iter().flat_map(|(name, value)| [name.as_bytes(), value]) {
            bytes.extend(part);
            bytes.push(0);
        }
        Ok(bytes)
    }

    fn headers(&self, vm: usize, map: u32) -> Result<&Headers, u32> {
        let vm = &self.vms[vm];
        let stream = vm.streams.get(&vm.effective);
        let headers = match map {
            0 => stream.filter(|stream| stream.readable).map(|stream| &stream.headers),
            2 => stream.and_then(|stream| stream.response.as_ref()),
            6 => vm.answer.as_ref().and_then(|answer| answer.headers.as_ref()),
            _ => None,
        };
        headers.ok_or(BAD_ARGUMENT)
    }

    pub fn replace_header(&mut self, vm: usize, map: u32, name: &str, value: Vec<u8>) -> u32 {
        self.keeps_secrets("a response header", &value);
        let vm = &mut self.vms[vm];
        let Some(headers) = vm.streams.get_mut(&vm.effective).and_then(|stream| stream.response.as_mut()) else {
            self.broken(format!("header {name} set in the wrong phase"));
            return BAD_ARGUMENT;
        };
        if map != 2 {
            self.broken(format!("header {name} set in map {map}"));
            return BAD_ARGUMENT;
        }
        headers.retain(|(known, _)| known != name);
        headers.push((name.into(), value));
        OK
    }

    pub fn property(&self, vm: usize, path: &str) -> Result<Vec<u8>, u32> {
        let vm = &self.vms[vm];
        vm.streams.get(&vm.effective).ok_or(NOT_FOUND)?;
        match path.split('\0').collect::<Vec<_>>()[..] {
            ["source", "address"] => Ok(b"192.0.2.7:5000".to_vec()),
            _ => Err(NOT_FOUND),
        }
    }

    pub fn set_property(&mut self, vm: usize, name: &str, value: Vec<u8>) -> u32 {
        if self.vms[vm].is_dead {
            return OK;
        }
        self.keeps_secrets("the access log", &value);
        let text = String::from_utf8_lossy(&value).into_owned();
        let effective = self.vms[vm].effective;
        match self.vms[vm].streams.get_mut(&effective) {
            Some(stream) if name == "tollgate" => {
                if stream.note.replace(text).is_some() {
                    self.broken("a request is decided twice");
                }
                OK
            }
            Some(_) => NOT_FOUND,
            // A stream that is gone while its answer arrives; the root has no filter state that is seen anywhere.
            None => OK,
        }
    }

    pub fn shared_data(&self, name: &str) -> Result<(Vec<u8>, u32), u32> {
        self.shared.get(name).cloned().ok_or(NOT_FOUND)
    }

    pub fn set_shared_data(&mut self, vm: usize, name: &str, value: Vec<u8>, cas: u32) -> u32 {
        if self.vms[vm].is_dead {
            return INTERNAL_FAILURE;
        }
        if self.vms[vm].configuring.is_some() {
            self.broken(format!("{name} written while a configuration is read"));
        }
        if cas == 0 {
            self.broken(format!("{name} written blindly"));
        }
        if !is_known_name(name) {
            self.broken(format!("{name} is none of the fixed names of shared data"));
        }
        if self.shared.get(name).is_some_and(|(_, version)| cas != 0 && cas != *version) {
            return CAS_MISMATCH;
        }
        self.last_cas += 1;
        self.shared.insert(name.into(), (value, self.last_cas));
        OK
    }

    pub fn register_queue(&mut self, vm: usize, name: &str) -> u32 {
        let root = self.vms[vm].effective;
        if let Some(index) = self.queues.iter().position(|queue| queue.name == name) {
            self.broken(format!("queue {name} is another VM's too"));
            (self.queues[index].vm, self.queues[index].root) = (vm, root);
            return index as u32 + 1;
        }
        self.queues.push(Queue { name: name.into(), vm, root, items: VecDeque::new(), told: false });
        self.queues.len() as u32
    }

    pub fn enqueue(&mut self, queue: u32, value: Vec<u8>) -> u32 {
        let Some(queue) = self.queues.get_mut(queue as usize - 1) else { return NOT_FOUND };
        queue.items.push_back(value);
        queue.told = true;
        if queue.items.len() > 1 || queue.items[0].len() > 1 {
            self.broken("more than one byte is in a queue");
        }
        OK
    }

    pub fn dequeue(&mut self, queue: u32) -> Result<Vec<u8>, u32> {
        self.queues.get_mut(queue as usize - 1).ok_or(NOT_FOUND)?.items.pop_front().ok_or(EMPTY)
    }

    pub fn set_tick(&mut self, vm: usize, millis: u32) -> u32 {
        let (now, effective) = (self.now, self.vms[vm].effective);
        if self.vms[vm].is_dead {
            return OK;
        }
        let Some(root) = self.vms[vm].roots.get_mut(&effective) else {
            self.broken("a tick set for a stream, which would be ticked itself");
            return OK;
        };
        root.period = u64::from(millis) * 1_000;
        root.next_tick = (millis > 0).then(|| now + root.period);
        OK
    }

    pub fn define_metric(&mut self, vm: usize, name: &str) -> u32 {
        if self.vms[vm].configuring.is_none() {
            self.broken(format!("metric {name} defined after the configuration"));
        }
        let effective = self.vms[vm].effective;
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !name.bytes().all(legal) {
            self.broken(format!("metric {name} is no name"));
        }
        let first = self.vms[vm].roots.get_mut(&effective).is_some_and(|root| root.defined.insert(name.into()));
        if !first {
            self.broken(format!("metric {name} defined twice, or for no root"));
        }
        self.vms[vm].metrics.push(name.into());
        self.vms[vm].metrics.len() as u32
    }

    /// Adds to a counter, or sets a gauge.
    pub fn change_metric(&mut self, vm: usize, metric: u32, change: impl FnOnce(i64) -> i64) -> u32 {
        if self.vms[vm].is_dead {
            return OK;
        }
        let Some(name) = self.vms[vm].metrics.get(metric as usize - 1).cloned() else {
            self.broken(format!("metric {metric} was never defined"));
            return BAD_ARGUMENT;
        };
        let value = self.counters.entry(name).or_default();
        *value = change(*value);
        OK
    }

    pub fn resume(&mut self, vm: usize) -> u32 {
        let now = self.now;
        if self.vms[vm].is_dead {
            return OK;
        }
        let Some(stream) = self.effective_stream(vm, "a request goes on") else { return BAD_ARGUMENT };
        let was_paused = stream.paused && stream.verdict.is_none() && !stream.overtaken;
        let number = stream.number;
        stream.paused = false;
        stream.readable = false;
        stream.verdict_at = now;
        let before = stream.verdict.replace(Verdict::GoesOn);
        if !was_paused {
            self.broken(format!("request {number} goes on, although it does not wait: {before:?}"));
        }
        self.tell(|| format!("request {number} goes on"));
        OK
    }

    pub fn reply(&mut self, vm: usize, status: u32, headers: Headers, body: Vec<u8>) -> u32 {
        self.keeps_secrets("a reply", &body);
        for (_, value) in &headers {
            self.keeps_secrets("a reply's header", value);
        }
        let (now, effective) = (self.now, self.vms[vm].effective);
        if self.vms[vm].is_dead {
            return OK;
        }
        let Some(stream) = self.effective_stream(vm, "a reply") else { return BAD_ARGUMENT };
        let (number, overtaken) = (stream.number, stream.overtaken);
        stream.verdict_at = now;
        let before = stream.verdict.replace(Verdict::Replied(status));
        if overtaken {
            self.broken(format!("request {number} gets a reply with {status}, although Envoy has answered it"));
        }
        if let Some(before) = before {
            self.broken(format!("request {number} gets a reply with {status}, although it had {before:?}"));
        }
        self.tell(|| format!("request {number} gets {status}"));
        self.vms[vm].after.push_back(After::Reply { stream: effective, headers });
        OK
    }

    pub fn call(&mut self, vm: usize, cluster: &str, headers: &Headers, body: &[u8], timeout: u32) -> Result<u32, u32> {
        let owner = self.vms[vm].effective;
        if self.vms[vm].is_dead {
            return Err(INTERNAL_FAILURE);
        }
        if !self.vms[vm].roots.contains_key(&owner) {
            self.broken("a call sent by a stream, whose answer is lost with it");
        }
        if timeout < 1 {
            self.broken("a call without a timeout");
        }
        if ![":method", ":path", ":authority"].iter().all(|wanted| headers.iter().any(|(name, _)| name == wanted)) {
            self.broken("a call without what calls need");
        }
        self.keeps_secrets("a call's body", body);
        let (now, timeout) = (self.now, u64::from(timeout) * 1_000);
        // Older ones may be lost; the filter forgets them after that time.
        let forgotten = timeout * 2 + 1_000_000;
        let calls = self.vms[vm].calls.iter().filter(|call| call.owner == owner && now < call.sent + forgotten);
        if calls.count() >= MAX_CALLS {
            self.broken("too many calls are out");
        }
        if cluster != "tollgate" {
            return Err(BAD_ARGUMENT);
        }
        let (due, answer, verdicts) =
            self.endpoint.fate(&mut self.chance, now, timeout, body).ok_or(INTERNAL_FAILURE)?;
        let vm = &mut self.vms[vm];
        vm.next_token += 1;
        let token = vm.next_token;
        let size = answer.size;
        let status = answer.headers.as_ref().and_then(|headers| headers.first()).map(|(_, value)| value.clone());
        vm.calls.push(Call { token, owner, sent: now, due, answer, verdicts });
        self.tell(|| {
            let status = status.map_or("nothing".into(), |status| String::from_utf8_lossy(&status).into_owned());
            format!("call {token} of root {owner} will have {status}, {size} bytes, at {due:?}")
        });
        Ok(token)
    }
}

/// The names under which the filter may keep something: their number has a bound.
fn is_known_name(name: &str) -> bool {
    let number = |text: &str, end: u32| text.parse::<u32>().is_ok_and(|number| number < end);
    let format = FORMAT.to_string();
    match name.split('.').collect::<Vec<_>>()[..] {
        ["tollgate", "breaker" | "breaker_behind", "tollgate"] => true,
        ["tollgate", known, "proxy", set] => known == format && number(set, SETS),
        ["tollgate", known, "leases", set] => known == lease::FORMAT.to_string() && number(set, SETS),
        ["tollgate", known, "worker", worker, set] => known == format && number(worker, 1024) && number(set, SETS),
        ["tollgate", known, "claim", worker] => known == format && number(worker, 1024),
        _ => false,
    }
}
