//! A set of local buckets, or of leases, in the proxy's shared data, which other modules can write to: the time, and the bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::lease::LeaseSet;
use tollgate_core::slots::SlotSet;
use tollgate_core::units::Micros;
use tollgate_fuzz::{PLAIN, POLICY, decide};

fuzz_target!(|input: &[u8]| {
    let Some((now, stored)) = input.split_first_chunk() else { return };
    let now = Micros::new(u64::from_le_bytes(*now));
    if let Ok(set) = SlotSet::decode(stored, now) {
        assert_eq!(SlotSet::decode(&set.encode(), now), Ok(set));
    }
    if let Ok(set) = LeaseSet::decode(stored) {
        assert_eq!(LeaseSet::decode(&set.encode()), Ok(set));
    }
    decide(&POLICY, &PLAIN, now, Some(stored), None);
});
