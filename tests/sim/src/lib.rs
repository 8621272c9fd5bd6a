//! The core on a virtual network and a virtual clock.
//!
//! Proxies with workers, endpoints and a store run the same code that decides in Envoy and in the server, while messages
//! are late, lost, doubled and overtaken, parts die, clocks are set, and policies change. What happens is chosen by a
//! seed and by nothing else, so a seed that breaks a promise does so again, and is made smaller until a person can read
//! it. The promises are [`check::Invariant`].

pub mod check;
pub mod clock;
mod endpoint;
mod facts;
pub mod generate;
pub mod network;
pub mod random;
pub mod run;
pub mod sabotage;
pub mod scenario;
pub mod shrink;
mod store;
mod tables;
mod taken;
mod trace;
mod worker;
