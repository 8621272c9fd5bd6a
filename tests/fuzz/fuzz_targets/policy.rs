//! The filter's configuration: JSON text, or the bytes of a protobuf `Struct`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::policy::PolicySet;
use tollgate_fuzz::{NOW, PLAIN, decide, environment};

fuzz_target!(|text: &[u8]| {
    match PolicySet::read(text, &environment) {
        Ok(set) => decide(&set, &PLAIN, NOW, None, None),
        Err(errors) => assert!(errors.issues().iter().all(|issue| !issue.to_string().is_empty())),
    }
});
