//! How much of each thing a policy can hold, for those who read policies and those who describe them.

use crate::units::Micros;

/// The most policies.
pub const MAX_POLICIES: usize = 64;
/// The most plans of a policy.
pub const MAX_PLANS: usize = 64;
/// The most identities.
pub const MAX_IDENTITIES: usize = 32;
/// The most sources of an identity.
pub const MAX_SOURCES: usize = 16;
/// The most names that lead to a value in metadata.
pub const MAX_PATH: usize = 16;
/// The most entries of X-Forwarded-For that can be trusted.
pub const MAX_TRUSTED_HOPS: u64 = 16;
/// The most route classes.
pub const MAX_ROUTES: usize = 1024;
/// The most methods of a route class.
pub const MAX_METHODS: usize = 32;
/// The most headers that a route class can match.
pub const MAX_HEADERS: usize = 16;
/// The longest name of a header.
pub const MAX_HEADER_NAME: usize = 256;
/// The longest name of a policy, a route class or an identity.
pub const MAX_NAME: usize = 64;
/// The most origins whose pages may read a rejection: more than any site has.
pub const MAX_ORIGINS: usize = 64;
/// The fewest bytes of a secret: fewer can be guessed.
pub const MIN_SECRET: usize = 16;
/// The shortest time that a policy can name for anything but a rate. Envoy takes a timeout under 1 ms for none at all.
pub const MIN_SPAN: Micros = Micros::from_millis(1);
/// The most requests of one worker that can wait for the endpoint.
pub const MAX_IN_FLIGHT: u64 = 65_536;
/// The most failures that a breaker can count.
pub const MAX_FAILURES: u64 = 1_000_000;
/// The longest times of a breaker.
pub const MAX_BREAKER_TIME: Micros = Micros::from_secs(3_600);
