//! The proxy-wasm host calls that the filter makes.
//!
//! The SDK's own wrappers panic on every status they do not expect, and some are quite normal: the headers of a call
//! that ended without any are a "bad argument". Here a call that does not succeed gives `None` or `false`. Only calls
//! to the endpoint go through the SDK, which has to know their tokens.

use core::ptr::null_mut;
use proxy_wasm::types::LogLevel;
use tollgate_core::pairs::Pairs;
use tollgate_core::reply::Reply;
use tollgate_core::units::Micros;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_log(level: u32, message: *const u8, size: usize) -> u32;
    fn proxy_get_buffer_bytes(kind: u32, start: usize, most: usize, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_replace_header_map_value(
        map: u32,
        name: *const u8,
        name_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    fn proxy_get_property(path: *const u8, path_size: usize, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_get_shared_data(
        name: *const u8,
        name_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
        version: *mut u32,
    ) -> u32;
    fn proxy_set_shared_data(
        name: *const u8,
        name_size: usize,
        value: *const u8,
        value_size: usize,
        version: u32,
    ) -> u32;
    fn proxy_register_shared_queue(name: *const u8, size: usize, queue: *mut u32) -> u32;
    fn proxy_enqueue_shared_queue(queue: u32, value: *const u8, size: usize) -> u32;
    fn proxy_dequeue_shared_queue(queue: u32, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
    fn proxy_define_metric(kind: u32, name: *const u8, size: usize, metric: *mut u32) -> u32;
    fn proxy_increment_metric(metric: u32, by: i64) -> u32;
    fn proxy_record_metric(metric: u32, value: u64) -> u32;
    fn proxy_set_property(path: *const u8, path_size: usize, value: *const u8, value_size: usize) -> u32;
    fn proxy_continue_stream(kind: u32) -> u32;
    fn proxy_set_effective_context(context: u32) -> u32;
    fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_size: usize,
        body: *const u8,
        body_size: usize,
        headers: *const u8,
        headers_size: usize,
        grpc_status: i32,
    ) -> u32;
}

#[link(wasm_import_module = "wasi_snapshot_preview1")]
unsafe extern "C" {
    fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u32;
    fn random_get(buffer: *mut u8, size: usize) -> u32;
    fn environ_sizes_get(count: *mut usize, size: *mut usize) -> u32;
    fn environ_get(pointers: *mut *mut u8, buffer: *mut u8) -> u32;
}

const OK: u32 = 0;
const HTTP_REQUEST: u32 = 0;
const REALTIME: u32 = 0;
const MONOTONIC: u32 = 1;
/// No gRPC status but the one that the headers have.
const NO_GRPC_STATUS: i32 = -1;

/// The header maps that the filter uses.
#[derive(Clone, Copy)]
pub(crate) enum Map {
    Request = 0,
    Response = 2,
    CallResponse = 6,
}

/// What a metric is.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Counter = 0,
    Gauge = 1,
    Histogram = 2,
}

/// The buffers that the filter reads.
#[derive(Clone, Copy)]
pub(crate) enum Buffer {
    CallResponse = 4,
    Configuration = 7,
}

// In all of the following: every pointer is to a local or to a slice that lives through the call, with its true size,
// and the host keeps none of them.

pub(crate) fn log(level: LogLevel, message: &str) {
    // SAFETY: see above.
    unsafe { proxy_log(level as u32, message.as_ptr(), message.len()) };
}

/// All lines of a header map; none where the host has none, as for a call that ended without headers.
///
/// One call costs less than one for each header, and tells apart two lines and one that holds a comma.
pub(crate) fn headers(map: Map) -> Pairs {
    // SAFETY: see above.
    Pairs::new(given(|data, size| unsafe { proxy_get_header_map_pairs(map as u32, data, size) }).unwrap_or_default())
}

/// Makes a header have one line, with this value.
pub(crate) fn replace_header(map: Map, name: &str, value: &str) {
    // SAFETY: see above.
    unsafe { proxy_replace_header_map_value(map as u32, name.as_ptr(), name.len(), value.as_ptr(), value.len()) };
}

/// A property, by the parts of its path with a NUL between.
pub(crate) fn property(path: &str) -> Option<Vec<u8>> {
    // SAFETY: see above.
    given(|data, size| unsafe { proxy_get_property(path.as_ptr(), path.len(), data, size) })
}

/// Notes something of the effective context's request, for access logs: `%FILTER_STATE(wasm.<name>:PLAIN)%`.
pub(crate) fn note(name: &str, value: &str) {
    // SAFETY: see above.
    unsafe { proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len()) };
}

/// At most the first `most` bytes of a buffer.
pub(crate) fn buffer(kind: Buffer, most: usize) -> Option<Vec<u8>> {
    // SAFETY: see above.
    given(|data, size| unsafe { proxy_get_buffer_bytes(kind as u32, 0, most, data, size) })
}

/// A shared value and its version.
pub(crate) fn shared_data(name: &str) -> Option<(Vec<u8>, u32)> {
    let mut version = 0;
    // SAFETY: see above.
    let value =
        given(|data, size| unsafe { proxy_get_shared_data(name.as_ptr(), name.len(), data, size, &raw mut version) })?;
    Some((value, version))
}

/// Writes a shared value if it is still at `version`; `false` when it is not.
pub(crate) fn set_shared_data(name: &str, value: &[u8], version: u32) -> bool {
    // SAFETY: see above.
    unsafe { proxy_set_shared_data(name.as_ptr(), name.len(), value.as_ptr(), value.len(), version) == OK }
}

/// Makes the root context the one that is told of this queue.
pub(crate) fn register_queue(name: &str) -> Option<u32> {
    let mut queue = 0;
    // SAFETY: see above.
    (unsafe { proxy_register_shared_queue(name.as_ptr(), name.len(), &raw mut queue) } == OK).then_some(queue)
}

pub(crate) fn enqueue(queue: u32, value: &[u8]) -> bool {
    // SAFETY: see above.
    unsafe { proxy_enqueue_shared_queue(queue, value.as_ptr(), value.len()) == OK }
}

pub(crate) fn dequeue(queue: u32) -> Option<Vec<u8>> {
    // SAFETY: see above.
    given(|data, size| unsafe { proxy_dequeue_shared_queue(queue, data, size) })
}

/// How often the root is called, in milliseconds; 0 for never.
pub(crate) fn set_tick_period(millis: u32) {
    // SAFETY: no memory is passed.
    unsafe { proxy_set_tick_period_milliseconds(millis) };
}

pub(crate) fn define_metric(kind: Kind, name: &str) -> Option<u32> {
    let mut metric = 0;
    // SAFETY: see above.
    (unsafe { proxy_define_metric(kind as u32, name.as_ptr(), name.len(), &raw mut metric) } == OK).then_some(metric)
}

pub(crate) fn increment(metric: u32, by: i64) {
    // SAFETY: no memory is passed.
    unsafe { proxy_increment_metric(metric, by) };
}

/// Sets a gauge, or adds a value to a histogram.
pub(crate) fn record(metric: u32, value: u64) {
    // SAFETY: no memory is passed.
    unsafe { proxy_record_metric(metric, value) };
}

/// The host's monotonic clock, the same for every worker of the process.
pub(crate) fn now() -> Micros {
    clock(MONOTONIC)
}

/// Whole seconds since 1970, for what is told to callers; nothing is decided by it.
pub(crate) fn unix_seconds() -> u64 {
    clock(REALTIME).count().checked_div(1_000_000).unwrap_or(0)
}

fn clock(which: u32) -> Micros {
    let mut nanos = 0;
    // SAFETY: see above.
    unsafe { clock_time_get(which, 1_000, &raw mut nanos) };
    Micros::new(nanos.checked_div(1_000).unwrap_or(0))
}

/// A random number, or `None` when the host gives none.
pub(crate) fn random() -> Option<u64> {
    let mut bytes = [0; 8];
    // SAFETY: see above.
    let status = unsafe { random_get(bytes.as_mut_ptr(), bytes.len()) };
    (status == OK).then(|| u64::from_le_bytes(bytes))
}

/// An environment variable that the host passes on.
pub(crate) fn environment(name: &str) -> Option<String> {
    let (mut count, mut size) = (0, 0);
    // SAFETY: see above.
    if unsafe { environ_sizes_get(&raw mut count, &raw mut size) } != OK {
        return None;
    }
    let mut pointers: Vec<*mut u8> = vec![null_mut(); count];
    let mut bytes: Vec<u8> = vec![0; size];
    // SAFETY: the host writes `count` pointers and `size` bytes, as it has just told, and both have room for them.
    if unsafe { environ_get(pointers.as_mut_ptr(), bytes.as_mut_ptr()) } != OK {
        return None;
    }
    let entries = bytes.split(|byte| *byte == 0).filter_map(|entry| core::str::from_utf8(entry).ok());
    entries.filter_map(|entry| entry.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value.into())
}

/// Makes a context the one that the next host calls are for. `false` when it is gone.
pub(crate) fn act_for(context: u32) -> bool {
    // SAFETY: no memory is passed.
    unsafe { proxy_set_effective_context(context) == OK }
}

/// Lets the request of the effective context go on.
pub(crate) fn resume_request() {
    // SAFETY: no memory is passed.
    unsafe { proxy_continue_stream(HTTP_REQUEST) };
}

/// Answers the request of the effective context.
pub(crate) fn reply(reply: &Reply) {
    let headers = serialize(&reply.headers);
    // SAFETY: see above.
    unsafe {
        proxy_send_local_response(
            reply.status,
            reply.details.as_ptr(),
            reply.details.len(),
            reply.body.as_ptr(),
            reply.body.len(),
            headers.as_ptr(),
            headers.len(),
            NO_GRPC_STATUS,
        );
    }
}

/// Answers a stream that came without a policy, which a host that has refused the configuration does not send.
pub(crate) fn refuse_without_policy() {
    reply(&Reply {
        status: 503,
        headers: vec![("cache-control", "no-store".into())],
        body: String::new(),
        details: "tollgate_without_policy",
    });
}

/// What a call gives in memory that the host has asked this module for; empty where it gives a null pointer.
fn given(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Option<Vec<u8>> {
    let (mut data, mut size) = (null_mut(), 0);
    if call(&raw mut data, &raw mut size) != OK {
        return None;
    }
    if data.is_null() {
        return Some(Vec::new());
    }
    // SAFETY: the SDK's allocator made it as a boxed slice of `size` bytes, which the host has filled and given away.
    Some(unsafe { Vec::from_raw_parts(data, size, size) })
}

/// The ABI's form of a header map: how many, the sizes of each name and value, then each with a NUL behind it.
fn serialize(map: &[(&str, String)]) -> Vec<u8> {
    let size = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(0).to_le_bytes();
    let mut bytes = Vec::new();
    bytes.extend(u32::try_from(map.len()).unwrap_or(0).to_le_bytes());
    for (name, value) in map {
        bytes.extend(size(name.as_bytes()));
        bytes.extend(size(value.as_bytes()));
    }
    for part in map.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]) {
        bytes.extend(part);
        bytes.push(0);
    }
    bytes
}
