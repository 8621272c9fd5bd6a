//! What Tollgate decides, and nothing else: limits, policy and decision, without I/O, clock or host.
//!
//! Time is a value passed in, stored state is bytes passed in, and what is to be done comes out. The filter, the
//! server and the tests drive the same code.

pub mod admit;
pub mod breaker;
pub mod decision;
pub mod facts;
pub mod fields;
pub mod gather;
pub mod json;
pub mod key;
pub mod lease;
pub mod limit;
pub mod pairs;
pub mod path;
pub mod pattern;
pub mod policy;
pub mod reply;
pub mod slots;
mod tree;
pub mod units;
pub mod wire;
