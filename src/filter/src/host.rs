//! Host calls that the SDK has not, or that it answers with a panic.

use proxy_wasm::hostcalls;
use proxy_wasm::types::LogLevel;
use tollgate_core::reply::Reply;
use tollgate_core::units::Micros;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_continue_stream(stream_type: u32) -> u32;
    fn proxy_set_effective_context(context_id: u32) -> u32;
    fn proxy_send_local_response(
        status: u32,
        details_data: *const u8,
        details_size: usize,
        body_data: *const u8,
        body_size: usize,
        headers_data: *const u8,
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
const MONOTONIC: u32 = 1;

/// The host's monotonic clock, the same for every worker of the process.
pub(crate) fn now() -> Micros {
    let mut nanos = 0;
    // SAFETY: the host writes one u64 to the pointer, which is valid for the call.
    if unsafe { clock_time_get(MONOTONIC, 1_000, &raw mut nanos) } == OK {
        Micros::new(nanos.checked_div(1_000).unwrap_or(0))
    } else {
        Micros::ZERO
    }
}

/// A random number, or `None` when the host gives none.
pub(crate) fn random() -> Option<u64> {
    let mut bytes = [0; 8];
    // SAFETY: the host writes `size` bytes to the buffer, which has them.
    let status = unsafe { random_get(bytes.as_mut_ptr(), bytes.len()) };
    (status == OK).then(|| u64::from_le_bytes(bytes))
}

/// An environment variable that the host passes on.
pub(crate) fn environment(name: &str) -> Option<String> {
    let (mut count, mut size) = (0, 0);
    // SAFETY: the host writes one number to each pointer.
    if unsafe { environ_sizes_get(&raw mut count, &raw mut size) } != OK {
        return None;
    }
    let mut pointers: Vec<*mut u8> = vec![core::ptr::null_mut(); count];
    let mut buffer: Vec<u8> = vec![0; size];
    // SAFETY: the host writes `count` pointers and `size` bytes, as it has just told, and both have room for them.
    if unsafe { environ_get(pointers.as_mut_ptr(), buffer.as_mut_ptr()) } != OK {
        return None;
    }
    let entries = buffer.split(|byte| *byte == 0).filter_map(|entry| core::str::from_utf8(entry).ok());
    entries.filter_map(|entry| entry.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value.into())
}

pub(crate) fn log(level: LogLevel, message: &str) {
    let _ = hostcalls::log(level, &format!("tollgate: {message}"));
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

/// Answers the request of the effective context: HTTP clients by `status`, gRPC clients by `grpc_status`.
pub(crate) fn reply(reply: &Reply) {
    let headers = serialize(&reply.headers);
    // SAFETY: every pointer is to a live slice of the size that goes with it; the host copies them.
    unsafe {
        proxy_send_local_response(
            reply.status,
            reply.details.as_ptr(),
            reply.details.len(),
            reply.body.as_ptr(),
            reply.body.len(),
            headers.as_ptr(),
            headers.len(),
            reply.grpc_status,
        );
    }
}

/// Answers a stream that came without a policy, which a host that has refused the configuration does not send.
pub(crate) fn refuse_without_policy() {
    reply(&Reply {
        status: 503,
        grpc_status: 14,
        headers: vec![("cache-control", "no-store".into())],
        body: String::new(),
        details: "tollgate_without_policy",
    });
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
