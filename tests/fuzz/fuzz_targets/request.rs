//! The body of `POST /v1/admit`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::wire::{MAX_CHARGES, MAX_DECISIONS};
use tollgate_fuzz::admit::parse;

fuzz_target!(|body: &[u8]| {
    match parse(body) {
        Ok(request) => {
            assert!((1..=MAX_DECISIONS).contains(&request.decisions.len()));
            assert!(request.decisions.iter().all(|one| (1..=MAX_CHARGES).contains(&one.charges.len())));
            let again = serde_json::to_vec(&request).expect("what was read can be written");
            assert_eq!(parse(&again), Ok(request));
        }
        Err(error) => assert!(!error.is_empty()),
    }
});
