//! One run: a proxy with its workers, requests, calls and the time, in an order that chance gives.

use crate::endpoint::{Endpoint, MARK, Weather};
use crate::policies::{self, Policies, Sent};
use crate::random::Random;
use crate::vm::{Answered, Callback, Machine, lock};
use crate::world::{After, Headers, Root, Stream, Verdict, Vm, World};
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use tollgate_core::key::Digest;
use tollgate_core::policy::{Plan, PolicySet};

/// How often waiting requests are looked at, and what the driver's own small steps of time add.
const TICK: u64 = 5_000;
const SLACK: u64 = 2_000;

/// More than any configuration lets anybody wait.
const LONGEST_WAIT: u64 = 300_000;

const PAUSE: u32 = 1;

pub struct Run {
    pub seed: u64,
    pub policies: Policies,
    pub set: PolicySet,
    chance: Random,
    pub world: Arc<Mutex<World>>,
    workers: Vec<Worker>,
    /// The workers that take requests; others died, or are the main thread's.
    serving: Vec<usize>,
    next_context: u32,
    configurations: usize,
    pub requests: Vec<Request>,
    /// What the endpoint has said of marked requests, once the filter knows.
    pub told: HashMap<Digest, bool>,
    /// Requests that waited when the endpoint's answer came, and what it said.
    pub heard: Vec<(usize, bool)>,
    /// A root was deleted, or a VM died, with what it had to count.
    pub uncounted: bool,
}

struct Worker {
    machine: Option<Machine>,
    /// The callback that is interrupted.
    busy: Option<(u32, Callback)>,
    todo: VecDeque<(u32, Callback)>,
    root: u32,
    /// How long requests wait, by root.
    timeouts: HashMap<u32, u64>,
}

/// One request and what became of it.
pub struct Request {
    pub vm: usize,
    pub plan: Plan,
    pub started: u64,
    /// When its headers callback was over.
    pub looked_at: u64,
    timeout: u64,
    pub state: State,
    pub verdict: Option<(Verdict, u64)>,
    /// What the access log has.
    pub note: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// In its headers callback.
    New,
    Waiting,
    Decided,
    /// Its client left while it waited, or Envoy answered it.
    Left,
    /// Its worker died before it was decided.
    Lost,
}

impl Request {
    /// `allowed`, `denied` and so on; nothing for one that no policy concerns.
    pub fn outcome(&self) -> &str {
        self.note.as_deref().and_then(|note| note.split(' ').next()).unwrap_or_default()
    }

    pub fn goes_on(&self) -> bool {
        matches!(self.verdict, Some((Verdict::GoesOn, _)))
    }

    pub fn mark(&self, set: &PolicySet) -> Option<Digest> {
        let named = |index| set.policy(index).is_some_and(|policy| policy.name == MARK);
        self.plan.charges.iter().find(|charge| named(charge.policy)).map(|charge| charge.key)
    }
}

impl Run {
    pub fn new(seed: u64, policies: Policies, endpoint: &Value, workers: usize, weather: Weather) -> Self {
        let world = Arc::new(Mutex::new(World::new(seed, Endpoint::new(weather))));
        let set = policies::read(&policies.text(endpoint, 0));
        let mut run = Self {
            seed,
            policies,
            set,
            chance: Random::new(seed ^ 0x1234),
            world,
            workers: Vec::new(),
            serving: Vec::new(),
            next_context: 1,
            configurations: 0,
            requests: Vec::new(),
            told: HashMap::new(),
            heard: Vec::new(),
            uncounted: false,
        };
        // The main thread's VM has the configuration too, ticks, and serves nothing.
        run.start_vm(endpoint);
        for _ in 0..workers {
            let vm = run.start_vm(endpoint);
            run.serving.push(vm);
        }
        run
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    pub fn now(&self) -> u64 {
        self.world().now
    }

    // What can happen.

    fn start_vm(&mut self, endpoint: &Value) -> usize {
        let vm = self.workers.len();
        self.world().vms.push(Vm::default());
        let machine = Machine::start(&self.world, vm, self.seed);
        let (busy, todo) = (None, VecDeque::new());
        self.workers.push(Worker { machine: Some(machine), busy, todo, root: 0, timeouts: HashMap::new() });
        self.configure(vm, endpoint);
        vm
    }

    /// A configuration reaches a VM: a new root, and the one before drains.
    pub fn configure(&mut self, vm: usize, endpoint: &Value) {
        let text = self.policies.text(endpoint, self.configurations);
        self.configurations += 1;
        let root = self.context();
        {
            let mut world = self.world();
            world.tell(|| format!("configuration for root {root} of VM {vm}: {text}"));
            for old in world.vms[vm].roots.values_mut() {
                old.drains = true;
            }
            world.vms[vm].roots.insert(root, Root::default());
        }
        let timeout = endpoint["timeout"].as_str().and_then(|text| text.strip_suffix("ms")?.parse().ok());
        self.workers[vm].timeouts.insert(root, timeout.unwrap_or(50) * 1_000);
        self.workers[vm].root = root;
        self.call(vm, root, Callback::Create { root: 0 });
        self.call(vm, root, Callback::VmStart);
        self.world().vms[vm].configuring = Some(text.clone().into_bytes());
        self.call(vm, root, Callback::Configure { size: text.len() });
        assert!(!self.world().vms[vm].roots[&root].refused, "{text}");
    }

    /// A configuration is tried out before any worker gets it; here it is refused.
    fn refuse(&mut self) {
        let vm = self.workers.len();
        let root = self.context();
        {
            let mut world = self.world();
            world.vms.push(Vm::default());
            world.vms[vm].roots.insert(root, Root::default());
        }
        let machine = Machine::start(&self.world, vm, self.seed);
        let (busy, todo) = (None, VecDeque::new());
        self.workers.push(Worker { machine: Some(machine), busy, todo, root, timeouts: HashMap::new() });
        self.call(vm, root, Callback::Create { root: 0 });
        self.call(vm, root, Callback::VmStart);
        let texts = ["{}", "secret", "", "{\"policies\":[{\"name\":\"secret\"}]}", "\u{0}\u{1}", "[[[[[["];
        let text = self.chance.pick(&texts).to_owned();
        self.world().vms[vm].configuring = Some(text.clone().into_bytes());
        // Its names may be shown to who wrote them.
        let logged = self.world().broken_rules.len();
        self.call_unchecked(vm, root, Callback::Configure { size: text.len() });
        self.world().broken_rules.truncate(logged);
        assert!(self.world().vms[vm].roots[&root].refused, "{text}");
        self.bury(vm);
    }

    const fn context(&mut self) -> u32 {
        self.next_context += 1;
        self.next_context - 1
    }

    pub fn request(&mut self, vm: usize, headers: Headers) {
        let (stream, number, root) = (self.context(), self.requests.len(), self.workers[vm].root);
        let plan = self.set.plan(&Sent(&headers));
        let timeout = self.workers[vm].timeouts[&root];
        let started = self.now();
        self.requests.push(Request {
            vm,
            plan,
            started,
            looked_at: u64::MAX,
            timeout,
            state: State::New,
            verdict: None,
            note: None,
        });
        let count = headers.len();
        {
            let mut world = self.world();
            world.tell(|| {
                let lines = headers.iter().map(|(name, value)| format!("{name}={}", value.escape_ascii()));
                format!("request {number}, stream {stream} of VM {vm}: {}", lines.collect::<Vec<_>>().join(" "))
            });
            world.vms[vm].streams.insert(
                stream,
                Stream {
                    root,
                    number,
                    headers,
                    response: None,
                    readable: true,
                    paused: false,
                    overtaken: false,
                    verdict: None,
                    verdict_at: 0,
                    note: None,
                },
            );
        }
        let ends = self.chance.once_in(2);
        self.queue(vm, stream, Callback::Create { root });
        self.queue(vm, stream, Callback::RequestHeaders { count, ends });
        self.pump(vm);
    }

    /// A stream ends, in whatever state it is.
    fn end(&mut self, vm: usize, stream: u32) {
        let number = self.world().vms[vm].streams[&stream].number;
        if self.requests[number].state == State::Waiting {
            self.requests[number].state = State::Left;
            self.world().tell(|| format!("request {number}: its client leaves"));
        }
        // Should no log be wanted, the deletion is the only sign.
        if !self.chance.once_in(8) {
            self.queue(vm, stream, Callback::Log);
        }
        self.queue(vm, stream, Callback::Done);
        self.queue(vm, stream, Callback::Delete);
        self.pump(vm);
    }

    /// Envoy answers a request that waits, for a timeout of its own say. It may take a while until the stream ends.
    fn overtake(&mut self, vm: usize, stream: u32) {
        let headers = vec![(":status".into(), b"408".to_vec())];
        let mut world = self.world();
        let there = world.vms[vm].streams.get_mut(&stream).expect("a stream");
        (there.response, there.overtaken) = (Some(headers), true);
        let number = there.number;
        world.tell(|| format!("request {number}: Envoy answers it"));
        drop(world);
        self.requests[number].state = State::Left;
        self.call(vm, stream, Callback::ResponseHeaders { count: 1 });
    }

    fn respond(&mut self, vm: usize, stream: u32) {
        let status = self.chance.pick(&["200", "404", "429", "503"]);
        let headers = vec![(":status".into(), status.into()), ("ratelimit".into(), b"\"theirs\"".to_vec())];
        self.world().vms[vm].streams.get_mut(&stream).expect("a stream").response = Some(headers);
        self.queue(vm, stream, Callback::ResponseHeaders { count: 2 });
        self.end(vm, stream);
    }

    fn kill(&mut self, vm: usize) {
        self.world().tell(|| format!("VM {vm} dies"));
        self.serving.retain(|serving| *serving != vm);
        self.uncounted = true;
        self.bury(vm);
        for request in self.requests.iter_mut().filter(|request| request.vm == vm) {
            if matches!(request.state, State::New | State::Waiting) {
                request.state = if request.verdict.is_some() { State::Decided } else { State::Lost };
            }
        }
    }

    fn bury(&mut self, vm: usize) {
        self.world().vms[vm].is_dead = true;
        let streams: Vec<u32> = self.world().vms[vm].streams.keys().copied().collect();
        for stream in streams {
            self.collect(vm, stream);
        }
        self.workers[vm].machine = None;
        self.workers[vm].busy = None;
        self.workers[vm].todo.clear();
        let mut world = self.world();
        let vm_state = &mut world.vms[vm];
        (vm_state.roots, vm_state.streams) = Default::default();
        vm_state.calls.clear();
        vm_state.after.clear();
        for queue in world.queues.iter_mut().filter(|queue| queue.vm == vm) {
            queue.told = false;
        }
    }

    // Callbacks.

    fn queue(&mut self, vm: usize, context: u32, callback: Callback) {
        self.workers[vm].todo.push_back((context, callback));
    }

    fn call(&mut self, vm: usize, context: u32, callback: Callback) {
        self.queue(vm, context, callback);
        self.pump(vm);
    }

    fn is_idle(&self, vm: usize) -> bool {
        let worker = &self.workers[vm];
        worker.machine.is_some() && worker.busy.is_none() && worker.todo.is_empty()
    }

    /// Runs what is to run on a VM, until that is interrupted.
    fn pump(&mut self, vm: usize) {
        while self.workers[vm].busy.is_none()
            && let Some((context, callback)) = self.workers[vm].todo.pop_front()
        {
            let answered = self.machine(vm).run(context, callback);
            self.proceed(vm, context, callback, answered);
        }
        self.check_rules();
    }

    fn call_unchecked(&mut self, vm: usize, context: u32, callback: Callback) {
        let answered = self.machine(vm).run(context, callback);
        self.proceed(vm, context, callback, answered);
    }

    fn machine(&self, vm: usize) -> &Machine {
        self.workers[vm].machine.as_ref().expect("a VM that runs")
    }

    fn go_on(&mut self, vm: usize) {
        if let Some((context, callback)) = self.workers[vm].busy.take() {
            let answered = self.machine(vm).go_on();
            self.proceed(vm, context, callback, answered);
        }
        self.pump(vm);
    }

    fn proceed(&mut self, vm: usize, context: u32, callback: Callback, answered: Answered) {
        match answered {
            Answered::Interrupted => self.workers[vm].busy = Some((context, callback)),
            Answered::Returned(value) => self.returned(vm, context, callback, value),
        }
    }

    fn returned(&mut self, vm: usize, context: u32, callback: Callback, value: u32) {
        let mut world = lock(&self.world);
        let now = world.now;
        match callback {
            Callback::Configure { .. } => {
                world.vms[vm].configuring = None;
                if value == 0
                    && let Some(root) = world.vms[vm].roots.get_mut(&context)
                {
                    root.refused = true;
                }
            }
            Callback::RequestHeaders { .. } => {
                let Some(stream) = world.vms[vm].streams.get_mut(&context) else { return };
                let request = &mut self.requests[stream.number];
                request.looked_at = now;
                request.state = State::Decided;
                match (&stream.verdict, value == PAUSE) {
                    (None, true) => {
                        stream.paused = true;
                        request.state = State::Waiting;
                    }
                    (None, false) => {
                        stream.verdict = Some(Verdict::GoesOn);
                        stream.verdict_at = now;
                        stream.readable = false;
                    }
                    (Some(_), true) => {}
                    (Some(verdict), false) => {
                        let rule = format!("request {} goes on after {verdict:?}", stream.number);
                        world.broken(rule);
                    }
                }
            }
            Callback::RequestBody { .. } => {
                let Some(stream) = world.vms[vm].streams.get(&context) else { return };
                let goes_on = stream.verdict == Some(Verdict::GoesOn);
                if goes_on == (value == PAUSE) {
                    let rule = format!("a body with action {value} of a request with {:?}", stream.verdict);
                    world.broken(rule);
                }
            }
            Callback::ResponseHeaders { .. } => {
                if value == PAUSE {
                    world.broken("a response is held up");
                }
                if let Some(stream) = world.vms[vm].streams.get_mut(&context) {
                    stream.response = None;
                }
            }
            Callback::CallResponse { .. } => world.vms[vm].answer = None,
            Callback::Tick => {
                if let Some(root) = world.vms[vm].roots.get_mut(&context) {
                    root.next_tick = (root.period > 0).then(|| now + root.period);
                }
            }
            Callback::Delete => {
                drop(world);
                self.collect(vm, context);
                world = lock(&self.world);
                world.vms[vm].streams.remove(&context);
                world.vms[vm].roots.remove(&context);
                world.vms[vm].calls.retain(|call| call.owner != context);
            }
            _ => {}
        }
        while let Some(After::Reply { stream, headers }) = world.vms[vm].after.pop_front() {
            if let Some(there) = world.vms[vm].streams.get_mut(&stream) {
                let count = headers.len();
                there.response = Some(headers);
                self.workers[vm].todo.push_front((stream, Callback::ResponseHeaders { count }));
            }
        }
        drop(world);
        self.note_verdicts(vm);
    }

    /// Brings what is known of streams to their requests.
    fn note_verdicts(&mut self, vm: usize) {
        let world = lock(&self.world);
        for stream in world.vms[vm].streams.values().filter(|stream| stream.verdict.is_some()) {
            let request = &mut self.requests[stream.number];
            if request.state == State::Waiting {
                request.state = State::Decided;
            }
        }
    }

    fn collect(&mut self, vm: usize, stream: u32) {
        let world = lock(&self.world);
        let Some(stream) = world.vms[vm].streams.get(&stream) else { return };
        let request = &mut self.requests[stream.number];
        request.verdict = stream.verdict.clone().map(|verdict| (verdict, stream.verdict_at));
        request.note.clone_from(&stream.note);
    }

    // Time, and what it brings.

    /// What the host is to do now: ticks, ends of calls, full queues.
    fn due(&self) -> Vec<Due> {
        let world = self.world();
        let mut due = Vec::new();
        for (vm, state) in world.vms.iter().enumerate().filter(|(vm, _)| self.is_idle(*vm)) {
            let ticks = state.roots.iter().filter(|(_, root)| root.next_tick.is_some_and(|at| at <= world.now));
            due.extend(ticks.map(|(root, _)| Due::Tick(vm, *root)));
            let calls = state.calls.iter().filter(|call| call.due.is_some_and(|at| at <= world.now));
            due.extend(calls.map(|call| Due::Call(vm, call.token)));
        }
        let queues = world.queues.iter().enumerate().filter(|(_, queue)| queue.told && self.is_idle(queue.vm));
        due.extend(queues.map(|(index, queue)| Due::Queue(queue.vm, queue.root, index)));
        due
    }

    fn serve(&mut self, due: &Due) {
        match *due {
            Due::Tick(vm, root) => {
                if let Some(root) = self.world().vms[vm].roots.get_mut(&root) {
                    root.next_tick = None;
                }
                self.call(vm, root, Callback::Tick);
            }
            Due::Queue(vm, root, index) => {
                self.world().queues[index].told = false;
                if self.world().vms[vm].roots.contains_key(&root) {
                    self.call(vm, root, Callback::QueueReady { queue: index as u32 + 1 });
                }
            }
            Due::Call(vm, token) => {
                let mut world = self.world();
                let calls = &mut world.vms[vm].calls;
                let Some(at) = calls.iter().position(|call| call.token == token) else { return };
                let call = calls.swap_remove(at);
                world.tell(|| format!("call {token} of VM {vm} ends"));
                let (headers, size) = (call.answer.headers.as_ref().map_or(0, Vec::len), call.answer.size);
                world.vms[vm].answer = Some(call.answer);
                drop(world);
                for (mark, admitted) in &call.verdicts {
                    let waits =
                        |request: &Request| request.state == State::Waiting && request.mark(&self.set) == Some(*mark);
                    self.heard.extend(self.requests.iter().position(waits).map(|number| (number, *admitted)));
                }
                self.call(vm, call.owner, Callback::CallResponse { token, headers, size });
                self.tell(vm, &call.verdicts);
            }
        }
    }

    /// A call has brought verdicts: whoever waited for one has it.
    fn tell(&mut self, vm: usize, verdicts: &[(Digest, bool)]) {
        for (mark, admitted) in verdicts {
            if self.told.insert(*mark, *admitted).is_some() {
                self.fail("a request was decided twice by the endpoint");
            }
            let asked = self.requests.iter().position(|request| request.mark(&self.set) == Some(*mark));
            let Some(number) = asked else { continue };
            if self.requests[number].state == State::Waiting && self.is_idle(vm) {
                self.fail(&format!("request {number} still waits, and the endpoint has said {admitted}"));
            }
        }
    }

    /// Time passes, up to what is due next.
    pub fn pass(&mut self, most: u64) {
        let is_busy = self.workers.iter().any(|worker| worker.machine.is_some() && worker.busy.is_some());
        let mut world = self.world();
        let roots = world.vms.iter().flat_map(|vm| vm.roots.values().filter_map(|root| root.next_tick));
        let calls = world.vms.iter().flat_map(|vm| vm.calls.iter().filter_map(|call| call.due));
        let next = roots.chain(calls).min().unwrap_or(u64::MAX).max(world.now);
        let most = if is_busy { most.min(20) } else { most };
        let to = (world.now + most).min(next);
        world.wall += to - world.now;
        world.now = to;
        drop(world);
        for (number, request) in self.requests.iter().enumerate() {
            let latest = request.started + request.timeout + TICK + SLACK;
            if request.state == State::Waiting && to > latest {
                self.fail(&format!("request {number} has waited for {} us", to - request.started));
            }
        }
    }

    /// Time passes, and all that falls due is served in time.
    pub fn pass_until(&mut self, until: u64) {
        self.settle();
        while self.now() < until {
            self.pass(until - self.now());
            self.settle();
        }
    }

    /// Serves all that is due.
    pub fn settle(&mut self) {
        loop {
            for vm in 0..self.workers.len() {
                while self.workers[vm].machine.is_some() && self.workers[vm].busy.is_some() {
                    self.go_on(vm);
                }
            }
            let due = self.due();
            if due.is_empty() {
                return;
            }
            let which = self.chance.index(due.len());
            self.serve(&due[which]);
        }
    }

    // By chance.

    pub fn step(&mut self) {
        let vm = self.serving[self.chance.index(self.serving.len())];
        match self.chance.weighted(&[30, 30, 20, 20, 6, 6, 10, 1, 1, 1, 2, 1, 1]) {
            0 if self.is_idle(vm) => {
                let headers = policies::request(&mut self.chance, self.requests.len());
                self.request(vm, headers);
            }
            1 => {
                let due = self.due();
                if !due.is_empty() {
                    let which = self.chance.index(due.len());
                    self.serve(&due[which]);
                }
            }
            2 => {
                let busy = |vm: &usize| self.workers[*vm].machine.is_some() && self.workers[*vm].busy.is_some();
                let busy: Vec<usize> = (0..self.workers.len()).filter(busy).collect();
                if !busy.is_empty() {
                    let vm = self.chance.pick(&busy);
                    self.go_on(vm);
                }
            }
            3 if self.due().is_empty() => {
                let most = self.chance.pick(&[10, 300, 1_000, 5_000, 20_000, 60_000, 60_000_000]);
                let most = self.chance.between(1, most);
                self.pass(most);
            }
            4 => {
                let stream = self.some_stream(vm, |stream| stream.verdict.is_none() && stream.paused);
                if let Some(stream) = stream {
                    self.end(vm, stream);
                }
            }
            5 => {
                let stream = self.some_stream(vm, |stream| stream.paused || stream.verdict.is_some());
                if let Some(stream) = stream {
                    let (size, ends) = (self.chance.index(5000), self.chance.once_in(3));
                    self.call(vm, stream, Callback::RequestBody { size, ends });
                }
            }
            6 => {
                if let Some(stream) = self.some_stream(vm, |stream| stream.verdict == Some(Verdict::GoesOn)) {
                    self.respond(vm, stream);
                } else if let Some(stream) = self.some_stream(vm, |stream| stream.verdict.is_some()) {
                    self.end(vm, stream);
                }
            }
            7 if self.is_idle(vm) => {
                let endpoint = policies::endpoint(&mut self.chance);
                self.configure(vm, &endpoint);
            }
            8 if self.chance.once_in(6) => {
                self.kill(vm);
                let endpoint = policies::endpoint(&mut self.chance);
                let vm = self.start_vm(&endpoint);
                self.serving.push(vm);
            }
            9 => {
                let weather =
                    self.chance.pick(&[Weather::Good, Weather::Foul, Weather::Foul, Weather::Down, Weather::Silent]);
                self.world().endpoint.weather = weather;
            }
            10 => {
                // The wall clock is set.
                let wall = self.chance.between(1, 1 << 51);
                self.world().wall = wall;
                self.drain();
            }
            11 if self.chance.once_in(8) => self.refuse(),
            12 => {
                let waits = |stream: &Stream| stream.paused && stream.verdict.is_none() && !stream.overtaken;
                if let Some(stream) = self.some_stream(vm, waits) {
                    self.overtake(vm, stream);
                }
            }
            _ => {}
        }
    }

    /// A root that drains and has no streams is done, and some time later deleted.
    fn drain(&mut self) {
        for vm in self.serving.clone() {
            if !self.is_idle(vm) {
                continue;
            }
            let world = self.world();
            let state = &world.vms[vm];
            let in_use = |root: &u32| state.streams.values().any(|stream| stream.root == *root);
            let done = state.roots.iter().filter(|(_, root)| root.drains).map(|(root, _)| *root);
            let done: Vec<u32> = done.filter(|root| !in_use(root)).collect();
            drop(world);
            for root in done {
                if self.chance.once_in(2) {
                    self.uncounted = true;
                    self.queue(vm, root, Callback::Done);
                    self.queue(vm, root, Callback::Delete);
                }
            }
            self.pump(vm);
        }
    }

    fn some_stream(&mut self, vm: usize, which: impl Fn(&Stream) -> bool) -> Option<u32> {
        if !self.is_idle(vm) {
            return None;
        }
        let world = lock(&self.world);
        let streams = world.vms[vm].streams.iter().filter(|(_, stream)| which(stream));
        let streams: Vec<u32> = streams.map(|(id, _)| *id).collect();
        if streams.is_empty() { None } else { Some(self.chance.pick(&streams)) }
    }

    /// Nothing new: what waits is decided, and every stream ends.
    pub fn finish(&mut self) {
        {
            let mut world = self.world();
            world.interrupts = 0;
            world.endpoint.weather = Weather::Good;
        }
        // Those of policies in shadow wait too, and nobody sees it: their time is up as well.
        let end = self.now() + LONGEST_WAIT;
        loop {
            self.settle();
            let world = self.world();
            let is_out = world.vms.iter().any(|vm| vm.calls.iter().any(|call| call.due.is_some()));
            drop(world);
            let waits = self.requests.iter().any(|request| request.state == State::Waiting);
            if !is_out && !waits && self.now() >= end {
                break;
            }
            self.pass(10_000);
        }
        for vm in 0..self.workers.len() {
            let streams: Vec<u32> = self.world().vms[vm].streams.keys().copied().collect();
            for stream in streams {
                self.end(vm, stream);
            }
        }
        self.settle();
    }

    // What must hold.

    fn check_rules(&self) {
        let broken = self.world().broken_rules.join("; ");
        if !broken.is_empty() {
            self.fail(&broken);
        }
    }

    /// Ends the run with all that is known of it.
    pub fn fail(&self, why: &str) -> ! {
        let world = self.world();
        let from = world.history.len().saturating_sub(60);
        let text = world.history[from..].join("\n");
        let policies = serde_json::to_string(&self.policies.list).unwrap_or_default();
        drop(world);
        panic!("TOLLGATE_SEED={}: {why}\npolicies: {policies}\n{text}", self.seed);
    }
}

enum Due {
    Tick(usize, u32),
    Queue(usize, u32, usize),
    Call(usize, u32),
}
