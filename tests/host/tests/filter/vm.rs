//! One virtual machine: a thread of its own, since the SDK and the filter keep what is theirs for each thread, and the
//! host calls that it makes.
//!
//! Only one thread of a run is ever at work. A callback may be interrupted at its calls on shared data, where other
//! workers would run meanwhile: the thread then waits until the driver lets it go on.

use crate::endpoint::{Endpoint, Weather};
use crate::world::{BAD_ARGUMENT, EMPTY, Headers, OK, Vm, World};
use std::cell::Cell;
use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock};
use std::thread::JoinHandle;

/// What the host calls in the plugin.
#[derive(Clone, Copy, Debug)]
pub enum Callback {
    Create { root: u32 },
    VmStart,
    Configure { size: usize },
    RequestHeaders { count: usize, ends: bool },
    RequestBody { size: usize, ends: bool },
    ResponseHeaders { count: usize },
    CallResponse { token: u32, headers: usize, size: usize },
    QueueReady { queue: u32 },
    Tick,
    Done,
    Log,
    Delete,
}

/// How far a callback is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// It is over, and gave this.
    Returned(u32),
    /// It waits in the middle.
    Interrupted,
}

pub struct Machine {
    to: Option<Sender<Option<(u32, Callback)>>>,
    from: Receiver<Answered>,
    thread: Option<JoinHandle<()>>,
}

struct Here {
    world: Arc<Mutex<World>>,
    vm: usize,
    seed: u64,
    /// To and from the driver.
    line: Option<Mutex<Line>>,
}

struct Line {
    to: Sender<Answered>,
    from: Receiver<Option<(u32, Callback)>>,
}

impl Here {
    fn hear(&self) -> Option<Option<(u32, Callback)>> {
        self.line.as_ref()?.lock().ok()?.from.recv().ok()
    }

    fn say(&self, answered: Answered) {
        if let Some(Ok(line)) = self.line.as_ref().map(Mutex::lock) {
            // Nobody hears a VM that has died meanwhile.
            let _ = line.to.send(answered);
        }
    }
}

thread_local! {
    /// Has nothing to drop, so it is there to the thread's very end.
    static HERE: Cell<Option<&'static Here>> = const { Cell::new(None) };
}

/// Where a thread is once its VM is dead. What its statics call as they are dropped, no plugin does: a VM's memory goes
/// without a word.
static NOWHERE: OnceLock<Here> = OnceLock::new();

impl Machine {
    pub fn start(world: &Arc<Mutex<World>>, vm: usize, seed: u64) -> Self {
        load();
        let (to, from_driver) = channel();
        let (to_driver, from) = channel();
        let line = Some(Mutex::new(Line { to: to_driver, from: from_driver }));
        let here = Here { world: Arc::clone(world), vm, seed, line };
        let thread = std::thread::spawn(move || work(here));
        Self { to: Some(to), from, thread: Some(thread) }
    }

    /// Runs a callback of a context, to its end or to an interruption.
    pub fn run(&self, context: u32, callback: Callback) -> Answered {
        self.send(Some((context, callback)))
    }

    /// Lets an interrupted callback go on.
    pub fn go_on(&self) -> Answered {
        self.send(None)
    }

    fn send(&self, what: Option<(u32, Callback)>) -> Answered {
        let to = self.to.as_ref().expect("a VM that runs");
        to.send(what).expect("a VM's thread");
        self.from.recv().expect("a VM's answer")
    }
}

impl Drop for Machine {
    /// Nothing is told to the plugin: so a VM dies.
    fn drop(&mut self) {
        self.to = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Once for the process: the SDK's own panic hook would log through the host.
fn load() {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        let usual = std::panic::take_hook();
        tollgate_filter_native::_initialize();
        std::panic::set_hook(Box::new(move |info| {
            // A panic in a callback ends the process, and with it what the test harness has kept of the output.
            if let Some(Here { seed, .. }) = HERE.get() {
                let _ = writeln!(std::io::stderr(), "the filter panics with TOLLGATE_SEED={seed}: {info}");
            }
            usual(info);
        }));
    });
}

fn work(here: Here) {
    // SAFETY: it lives until the end of this function, which leaves no reference behind.
    HERE.set(Some(unsafe { &*core::ptr::from_ref(&here) }));
    tollgate_filter_native::_initialize();
    while let Some(message) = here.hear() {
        let Some((context, callback)) = message else { continue };
        with(|world, vm| world.enter(vm, context));
        here.say(Answered::Returned(dispatch(context, callback)));
    }
    HERE.set(Some(NOWHERE.get_or_init(|| {
        let mut world = World::new(0, Endpoint::new(Weather::Down));
        world.vms.push(Vm::default());
        world.vms[0].is_dead = true;
        Here { world: Arc::new(Mutex::new(world)), vm: 0, seed: 0, line: None }
    })));
}

fn dispatch(context: u32, callback: Callback) -> u32 {
    // SAFETY: the plugin's exports, with the types that the SDK gives them.
    unsafe {
        match callback {
            Callback::Create { root } => proxy_on_context_create(context, root),
            Callback::VmStart => return proxy_on_vm_start(context, 0).into(),
            Callback::Configure { size } => return proxy_on_configure(context, size).into(),
            Callback::RequestHeaders { count, ends } => return proxy_on_request_headers(context, count, ends),
            Callback::RequestBody { size, ends } => return proxy_on_request_body(context, size, ends),
            Callback::ResponseHeaders { count } => return proxy_on_response_headers(context, count, false),
            Callback::CallResponse { token, headers, size } => {
                proxy_on_http_call_response(context, token, headers, size, 0);
            }
            Callback::QueueReady { queue } => proxy_on_queue_ready(context, queue),
            Callback::Tick => proxy_on_tick(context),
            Callback::Done => return proxy_on_done(context).into(),
            Callback::Log => proxy_on_log(context),
            Callback::Delete => proxy_on_delete(context),
        }
    }
    0
}

unsafe extern "C" {
    fn proxy_on_memory_allocate(size: usize) -> *mut u8;
    fn proxy_on_context_create(context: u32, root: u32);
    fn proxy_on_vm_start(context: u32, size: usize) -> bool;
    fn proxy_on_configure(context: u32, size: usize) -> bool;
    fn proxy_on_request_headers(context: u32, count: usize, ends: bool) -> u32;
    fn proxy_on_request_body(context: u32, size: usize, ends: bool) -> u32;
    fn proxy_on_response_headers(context: u32, count: usize, ends: bool) -> u32;
    fn proxy_on_http_call_response(context: u32, token: u32, headers: usize, size: usize, trailers: usize);
    fn proxy_on_queue_ready(context: u32, queue: u32);
    fn proxy_on_tick(context: u32);
    fn proxy_on_done(context: u32) -> bool;
    fn proxy_on_log(context: u32);
    fn proxy_on_delete(context: u32);
}

fn with<T>(call: impl FnOnce(&mut World, usize) -> T) -> T {
    let here = HERE.get().expect("a VM's thread");
    call(&mut lock(&here.world), here.vm)
}

pub fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A place where other workers may run before this one goes on.
fn interruption() {
    let due = with(|world, _| {
        world.interrupts > 0 && {
            let n = world.interrupts;
            world.chance.once_in(n)
        }
    });
    if due && let Some(here) = HERE.get() {
        here.say(Answered::Interrupted);
        here.hear();
    }
}

// The host calls. What is passed is what the ABI says: pointers to as many bytes as the size behind them says, and to
// places for what is given back.

unsafe fn bytes<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if data.is_null() || size == 0 {
        return &[];
    }
    // SAFETY: see above.
    unsafe { core::slice::from_raw_parts(data, size) }
}

unsafe fn text(data: *const u8, size: usize) -> String {
    // SAFETY: see above.
    String::from_utf8_lossy(unsafe { bytes(data, size) }).into_owned()
}

/// Gives bytes in the plugin's memory; nothing at all may be a null pointer.
unsafe fn give(result: Result<Vec<u8>, u32>, data: *mut *mut u8, size: *mut usize) -> u32 {
    match result {
        Ok(value) if value.is_empty() => OK,
        Ok(value) => {
            // SAFETY: see above; the plugin's allocator gives as many bytes as it is asked for.
            unsafe {
                let place = proxy_on_memory_allocate(value.len());
                core::ptr::copy_nonoverlapping(value.as_ptr(), place, value.len());
                *data = place;
                *size = value.len();
            }
            OK
        }
        Err(status) => status,
    }
}

fn headers(map: &[u8]) -> Headers {
    let number = |at: usize| {
        let bytes = map.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes) as usize
    };
    let count = number(0);
    let mut at = 4 + count * 8;
    let mut part = |size: usize| {
        let bytes = map.get(at..at + size).unwrap_or_default().to_vec();
        at += size + 1;
        bytes
    };
    (0..count)
        .map(|index| {
            let name = String::from_utf8_lossy(&part(number(4 + index * 8))).into_owned();
            (name, part(number(8 + index * 8)))
        })
        .collect()
}

// SAFETY, for all of these: see above. No other code of this program has these names.

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_log(level: u32, message: *const u8, size: usize) -> u32 {
    let message = unsafe { text(message, size) };
    with(|world, _| world.log(level, message));
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_get_buffer_bytes(
    kind: u32,
    start: usize,
    most: usize,
    data: *mut *mut u8,
    size: *mut usize,
) -> u32 {
    let result = with(|world, vm| world.buffer(vm, kind));
    let part = result.map(|value| value.into_iter().skip(start).take(most).collect());
    unsafe { give(part, data, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32 {
    unsafe { give(with(|world, vm| world.pairs(vm, map)), data, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_replace_header_map_value(
    map: u32,
    name: *const u8,
    name_size: usize,
    value: *const u8,
    value_size: usize,
) -> u32 {
    let (name, value) = unsafe { (text(name, name_size), bytes(value, value_size).to_vec()) };
    with(|world, vm| world.replace_header(vm, map, &name, value))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_get_property(
    path: *const u8,
    path_size: usize,
    data: *mut *mut u8,
    size: *mut usize,
) -> u32 {
    let path = unsafe { text(path, path_size) };
    unsafe { give(with(|world, vm| world.property(vm, &path)), data, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_set_property(path: *const u8, path_size: usize, value: *const u8, size: usize) -> u32 {
    let (path, value) = unsafe { (text(path, path_size), bytes(value, size).to_vec()) };
    with(|world, vm| world.set_property(vm, &path, value))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_get_shared_data(
    name: *const u8,
    name_size: usize,
    data: *mut *mut u8,
    size: *mut usize,
    version: *mut u32,
) -> u32 {
    interruption();
    let name = unsafe { text(name, name_size) };
    let result = with(|world, _| world.shared_data(&name)).map(|(value, cas)| {
        unsafe { *version = cas };
        value
    });
    unsafe { give(result, data, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_set_shared_data(
    name: *const u8,
    name_size: usize,
    value: *const u8,
    size: usize,
    version: u32,
) -> u32 {
    interruption();
    let (name, value) = unsafe { (text(name, name_size), bytes(value, size).to_vec()) };
    with(|world, vm| world.set_shared_data(vm, &name, value, version))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_register_shared_queue(name: *const u8, size: usize, queue: *mut u32) -> u32 {
    let name = unsafe { text(name, size) };
    unsafe { *queue = with(|world, vm| world.register_queue(vm, &name)) };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_enqueue_shared_queue(queue: u32, value: *const u8, size: usize) -> u32 {
    let value = unsafe { bytes(value, size).to_vec() };
    with(|world, _| world.enqueue(queue, value))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_dequeue_shared_queue(queue: u32, data: *mut *mut u8, size: *mut usize) -> u32 {
    let result = with(|world, _| world.dequeue(queue));
    debug_assert_ne!(result, Err(OK));
    debug_assert!(matches!(result, Ok(_) | Err(EMPTY | 1)));
    unsafe { give(result, data, size) }
}

#[unsafe(no_mangle)]
extern "C" fn proxy_set_tick_period_milliseconds(period: u32) -> u32 {
    with(|world, vm| world.set_tick(vm, period))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_define_metric(kind: u32, name: *const u8, size: usize, metric: *mut u32) -> u32 {
    if kind > 2 {
        return BAD_ARGUMENT;
    }
    let name = unsafe { text(name, size) };
    unsafe { *metric = with(|world, vm| world.define_metric(vm, &name)) };
    OK
}

#[unsafe(no_mangle)]
extern "C" fn proxy_increment_metric(metric: u32, by: i64) -> u32 {
    with(|world, vm| world.change_metric(vm, metric, |value| value + by))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_record_metric(metric: u32, value: u64) -> u32 {
    with(|world, vm| world.change_metric(vm, metric, |_| value as i64))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_continue_stream(kind: u32) -> u32 {
    with(|world, vm| if kind == 0 { world.resume(vm) } else { BAD_ARGUMENT })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_set_effective_context(context: u32) -> u32 {
    with(|world, vm| world.set_effective(vm, context))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_send_local_response(
    status: u32,
    _details: *const u8,
    _details_size: usize,
    body: *const u8,
    body_size: usize,
    map: *const u8,
    map_size: usize,
    _grpc_status: i32,
) -> u32 {
    let (body, map) = unsafe { (bytes(body, body_size).to_vec(), headers(bytes(map, map_size))) };
    with(|world, vm| world.reply(vm, status, map, body))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn proxy_http_call(
    cluster: *const u8,
    cluster_size: usize,
    map: *const u8,
    map_size: usize,
    body: *const u8,
    body_size: usize,
    _trailers: *const u8,
    _trailers_size: usize,
    timeout: u32,
    token: *mut u32,
) -> u32 {
    let (cluster, map, body) =
        unsafe { (text(cluster, cluster_size), headers(bytes(map, map_size)), bytes(body, body_size)) };
    match with(|world, vm| world.call(vm, &cluster, &map, body, timeout)) {
        Ok(number) => {
            unsafe { *token = number };
            OK
        }
        Err(status) => status,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_time_get(clock: u32, _precision: u64, time: *mut u64) -> u32 {
    let micros = with(|world, _| if clock == 1 { world.now } else { world.wall });
    unsafe { *time = micros * 1_000 };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn random_get(buffer: *mut u8, size: usize) -> u32 {
    for at in 0..size {
        unsafe { *buffer.add(at) = with(|world, _| world.entropy.next() as u8) };
    }
    OK
}

/// No variables.
#[unsafe(no_mangle)]
unsafe extern "C" fn environ_sizes_get(count: *mut usize, size: *mut usize) -> u32 {
    unsafe { (*count, *size) = (0, 0) };
    OK
}

#[unsafe(no_mangle)]
extern "C" fn environ_get(_pointers: *mut *mut u8, _buffer: *mut u8) -> u32 {
    OK
}

/// What the SDK imports and the filter has no use for.
macro_rules! never {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> u32 {
            with(|world, _| world.broken(concat!(stringify!($name), " is not for the filter")));
            BAD_ARGUMENT
        }
    )* };
}

never! {
    proxy_get_log_level proxy_get_current_time_nanoseconds proxy_set_buffer_bytes proxy_get_header_map_value
    proxy_set_header_map_pairs proxy_remove_header_map_value proxy_add_header_map_value proxy_resolve_shared_queue
    proxy_close_stream proxy_grpc_call proxy_grpc_stream proxy_grpc_send proxy_grpc_cancel proxy_grpc_close
    proxy_get_status proxy_call_foreign_function proxy_done proxy_get_metric
}
