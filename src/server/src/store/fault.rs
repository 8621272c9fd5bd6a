//! Why a store could not decide, by kind: as it is counted, and as it is told to who asked.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use redis::{ErrorKind, RedisError, ServerErrorKind};
use std::sync::Arc;
use std::{fmt, io};
use tollgate_core::wire::Failure;

/// A call that gave no answer.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: FaultKind,
    /// For a log: what the server or the library says. No key, no password.
    pub detail: String,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal => $failure:ident,)*) => {
        /// Why a store could not decide.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FaultKind { $($(#[$doc])* $kind,)* }

        impl FaultKind {
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// As it is counted.
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// As it is told to who asked.
            pub fn failure(self) -> Failure {
                match self { $(Self::$kind => Failure::$failure,)* }
            }
        }
    };
}

kinds! {
    /// No answer before the deadline.
    Timeout = "timeout" => StoreTimeout,
    /// Not connected, refused, or dropped.
    Unreachable = "unreachable" => StoreUnavailable,
    /// The breaker is open: not asked.
    BreakerOpen = "breaker_open" => StoreUnavailable,
    /// A wrong password or user, or none.
    Login = "login" => StoreError,
    /// The user may not do it.
    Permission = "permission" => StoreError,
    /// The TLS handshake failed.
    Tls = "tls" => StoreUnavailable,
    /// The server is still reading its data.
    Loading = "loading" => StoreUnavailable,
    /// The server is a replica.
    ReadOnly = "read_only" => StoreUnavailable,
    /// The server is a replica that has lost its master.
    MasterDown = "master_down" => StoreUnavailable,
    /// The cluster, or this part of it, has no master.
    ClusterDown = "cluster_down" => StoreUnavailable,
    /// The key is on its way to another node, and was not found there in time.
    Moving = "moving" => StoreUnavailable,
    /// The server has no memory left and may not evict (which is how it should be).
    OutOfMemory = "out_of_memory" => StoreError,
    /// The server takes no writes: it cannot save its data, or has fewer replicas than it should.
    NotWritable = "not_writable" => StoreError,
    /// The server is running a script that does not end.
    Busy = "busy" => StoreError,
    /// What is stored under the key is no state of this limit.
    Malformed = "malformed_state" => StoreError,
    /// The server's clock is in none of the calendar windows around this one's.
    ClockApart = "clock_apart" => StoreError,
    /// Something that is no reply of the script.
    BadReply = "bad_reply" => StoreError,
    /// The memory store keeps as many keys as it may.
    Full = "full" => StoreFull,
    /// A calendar window's time zone is none that is known here.
    UnknownTimeZone = "unknown_time_zone" => UnknownTimeZone,
    /// Another error.
    Other = "other" => StoreError,
}

impl FaultKind {
    /// The connection is of no more use: the next one may lead to a server that can decide.
    pub fn wants_another_server(self) -> bool {
        use FaultKind::{ClusterDown, Loading, Login, MasterDown, ReadOnly, Tls, Unreachable};
        matches!(self, Unreachable | Login | Tls | Loading | ReadOnly | MasterDown | ClusterDown)
    }

    /// Nobody answered.
    pub fn is_silence(self) -> bool {
        matches!(self, Self::Timeout | Self::Unreachable | Self::BreakerOpen)
    }
}

/// How many decisions each kind has cost.
#[derive(Clone)]
pub struct Faults(Family<[(&'static str, &'static str); 1], Counter>);

impl Faults {
    /// With a series for each kind from the start.
    pub fn new() -> Self {
        let counts = Family::default();
        FaultKind::ALL.iter().for_each(|kind| drop(counts.get_or_create(&[("kind", kind.name())])));
        Self(counts)
    }

    pub fn count(&self, kind: FaultKind, decisions: u64) {
        self.0.get_or_create(&[("kind", kind.name())]).inc_by(decisions);
    }

    /// For a registry: it shows what is counted here.
    pub fn series(&self) -> Family<[(&'static str, &'static str); 1], Counter> {
        self.0.clone()
    }
}

impl Fault {
    pub fn new(kind: FaultKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl From<RedisError> for Fault {
    fn from(error: RedisError) -> Self {
        Self { kind: kind(&error), detail: error.to_string() }
    }
}

fn kind(error: &RedisError) -> FaultKind {
    if let ErrorKind::Server(server) = error.kind() {
        return match server {
            ServerErrorKind::BusyLoading => FaultKind::Loading,
            ServerErrorKind::ReadOnly => FaultKind::ReadOnly,
            ServerErrorKind::MasterDown => FaultKind::MasterDown,
            ServerErrorKind::ClusterDown => FaultKind::ClusterDown,
            ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::TryAgain => FaultKind::Moving,
            ServerErrorKind::NoPerm => FaultKind::Permission,
            _ => other(error),
        };
    }
    match error.code() {
        Some("OOM") => return FaultKind::OutOfMemory,
        Some("MISCONF" | "NOREPLICAS") => return FaultKind::NotWritable,
        Some("BUSY") => return FaultKind::Busy,
        Some("WRONGTYPE" | "TOLLGATE") => return FaultKind::Malformed,
        Some("TOLLGATE_CLOCK") => return FaultKind::ClockApart,
        Some("NOAUTH" | "WRONGPASS") => return FaultKind::Login,
        _ => {}
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => FaultKind::Login,
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => FaultKind::BadReply,
        ErrorKind::MasterNameNotFoundBySentinel | ErrorKind::ClusterConnectionNotFound => FaultKind::Unreachable,
        _ if error.is_timeout() => FaultKind::Timeout,
        // rustls reports what is wrong with a handshake as invalid data.
        _ if is_invalid_data(error) => FaultKind::Tls,
        ErrorKind::Io => FaultKind::Unreachable,
        _ if error.is_connection_dropped() => FaultKind::Unreachable,
        _ => FaultKind::Other,
    }
}

/// An error with the code ERR.
fn other(error: &RedisError) -> FaultKind {
    // A command inside the script, or a key that it names.
    let is_permission = error.detail().is_some_and(|detail| detail.contains("user executing the script"));
    if is_permission { FaultKind::Permission } else { FaultKind::Other }
}

fn is_invalid_data(error: &RedisError) -> bool {
    // The library keeps its cause in an `Arc`.
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    let cause = source.and_then(|source: &Arc<dyn std::error::Error + Send + Sync>| source.downcast_ref());
    cause.is_some_and(|io: &io::Error| io.kind() == io::ErrorKind::InvalidData)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_script_refuses_is_of_a_kind() {
        for (code, expected) in [("TOLLGATE", FaultKind::Malformed), ("TOLLGATE_CLOCK", FaultKind::ClockApart)] {
            let error = redis::make_extension_error(code.into(), Some("why".into()));
            assert_eq!(Fault::from(error).kind, expected);
        }
    }
}
