//! What a client sends: method, path, address and headers, one a line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::{NOW, POLICY, Request, decide};

fuzz_target!(|lines: &[u8]| {
    let lines: Vec<&[u8]> = lines.split(|byte| *byte == b'\n').collect();
    let line = |index: usize| lines.get(index).copied().unwrap_or_default();
    let (method, path, address) = (line(0), line(1), line(2));
    let request = Request { method, path, address, headers: lines.get(3..).unwrap_or_default() };
    decide(&POLICY, &request, NOW, None, None);
});
