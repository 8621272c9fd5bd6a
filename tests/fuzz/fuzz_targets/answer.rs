//! What something that may not be a token endpoint answers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::wire::AdmitAnswer;
use tollgate_fuzz::{NOW, PLAIN, POLICY, decide};

fuzz_target!(|body: &[u8]| {
    let Ok(answer) = serde_json::from_slice::<AdmitAnswer>(body) else { return };
    for decision in &answer.decisions {
        decide(&POLICY, &PLAIN, NOW, None, Some(decision));
    }
});
