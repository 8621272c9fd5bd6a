//! How `tollgate serve` is told what to do, and whether that is sound.

use crate::auth::BearerTokens;
use crate::store::StoreUrl;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tollgate_core::units::{DURATION_UNITS, Micros};

/// The variable with the tokens themselves. There is no such flag: others see a program's arguments.
pub const AUTH_TOKENS: &str = "TOLLGATE_AUTH_TOKENS";

/// As it is written, by flags and variables.
#[derive(clap::Args)]
pub struct ServeArgs {
    /// Where to listen, as address:port. Port 0 takes a free one and prints it.
    #[arg(long, env = "TOLLGATE_LISTEN", default_value = "127.0.0.1:10002")]
    listen: SocketAddr,
    /// Where the budgets are kept: `memory` (this process alone; lost when it ends) or redis://[user:password@]host[:port][/db].
    // Not parsed by clap, which would show a wrong value, and with it a password.
    #[arg(long, env = "TOLLGATE_STORE", default_value = "memory", hide_env_values = true)]
    store: String,
    /// How long the store may take for one request before the answer is "failed". Keep it below the filter's timeout.
    #[arg(long, env = "TOLLGATE_STORE_TIMEOUT", default_value = "20ms", value_parser = duration)]
    store_timeout: Duration,
    /// How many budgets the memory store keeps at once; beyond that, new ones fail until old ones are full again.
    #[arg(long, env = "TOLLGATE_MEMORY_KEYS", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    memory_keys: u64,
    /// A file with 1 or 2 bearer tokens, one a line, of at least 16 bytes each: who asks for decisions or metrics must
    /// send one of them. Or put them into TOLLGATE_AUTH_TOKENS, with a comma between them.
    #[arg(long, env = "TOLLGATE_AUTH_TOKEN_FILE")]
    auth_token_file: Option<PathBuf>,
    /// Listen on an address that other machines reach without asking callers for a token: where the network keeps
    /// strangers out, or Envoy does by mutual TLS.
    #[arg(long, env = "TOLLGATE_ALLOW_REMOTE")]
    allow_remote: bool,
    /// How many requests are read and decided at once, each of 2 MiB at the most; beyond that they get 503 at once.
    #[arg(long, env = "TOLLGATE_MAX_IN_FLIGHT", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65536))]
    max_in_flight: u32,
    /// How many connections there may be; beyond that new ones are closed at once. Each needs a file descriptor.
    #[arg(long, env = "TOLLGATE_MAX_CONNECTIONS", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: u32,
}

/// As the program uses it.
pub struct Settings {
    pub listen: SocketAddr,
    pub store: StoreUrl,
    pub store_timeout: Duration,
    pub memory_keys: usize,
    /// `None`: callers are not asked for a token.
    pub tokens: Option<BearerTokens>,
    pub max_in_flight: usize,
    pub max_connections: usize,
}

impl Settings {
    /// `auth_tokens` is the value of [`AUTH_TOKENS`].
    pub fn resolve(args: ServeArgs, auth_tokens: Option<OsString>) -> Result<Self, String> {
        let tokens = match (&args.auth_token_file, &auth_tokens) {
            (Some(file), None) => {
                Some(BearerTokens::read(file).map_err(|error| format!("--auth-token-file: {error}"))?)
            }
            (None, Some(list)) => Some(token_list(list)?),
            (Some(_), Some(_)) => {
                return Err(format!("both --auth-token-file and {AUTH_TOKENS} are set: leave one of them out"));
            }
            (None, None) => None,
        };
        if !args.listen.ip().is_loopback() && tokens.is_none() && !args.allow_remote {
            return Err(format!(
                "{} can be reached from other machines, and callers are not authenticated: listen on 127.0.0.1, \
                 give --auth-token-file, or say --allow-remote where the network or Envoy keeps strangers out",
                args.listen
            ));
        }
        Ok(Self {
            listen: args.listen,
            store: args.store.parse().map_err(|error| format!("--store: {error}"))?,
            store_timeout: args.store_timeout,
            memory_keys: usize::try_from(args.memory_keys).unwrap_or(usize::MAX),
            tokens,
            max_in_flight: args.max_in_flight as usize,
            max_connections: args.max_connections as usize,
        })
    }
}

fn token_list(list: &OsStr) -> Result<BearerTokens, String> {
    let list = list.to_str().ok_or_else(|| format!("{AUTH_TOKENS}: is not text"))?;
    BearerTokens::parse_list(list).map_err(|error| format!("{AUTH_TOKENS}: {error}"))
}

fn duration(text: &str) -> Result<Duration, String> {
    match Micros::parse(text) {
        Some(span) if span >= Micros::from_millis(1) && span <= Micros::from_secs(10) => {
            Ok(Duration::from_micros(span.count()))
        }
        Some(_) => Err("must be between 1ms and 10s".into()),
        None => Err(format!("write a whole number and {DURATION_UNITS}, such as 20ms")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServeArgs,
    }

    fn resolve(args: &[&str], auth_tokens: Option<&str>) -> Result<Settings, String> {
        let args = Cli::try_parse_from(["serve"].iter().chain(args)).map_err(|error| error.to_string())?.args;
        Settings::resolve(args, auth_tokens.map(Into::into))
    }

    #[test]
    fn other_machines_are_listened_to_only_with_tokens_or_when_told() {
        const EVERYWHERE: [&str; 2] = ["--listen", "0.0.0.0:0"];
        let error = resolve(&EVERYWHERE, None).err().unwrap();
        assert!(error.contains("0.0.0.0:0 can be reached from other machines"), "{error}");
        assert!(resolve(&EVERYWHERE, Some("a-token-of-16-bytes")).is_ok());
        assert!(resolve(&["--listen", "0.0.0.0:0", "--allow-remote"], None).is_ok());
        for local in ["127.0.0.1:0", "127.8.8.8:0", "[::1]:0"] {
            assert!(resolve(&["--listen", local], None).is_ok(), "{local}");
        }
    }

    #[test]
    fn tokens_that_are_set_but_empty_are_an_error_and_not_an_open_door() {
        assert_eq!(resolve(&[], Some("")).err().unwrap(), "TOLLGATE_AUTH_TOKENS: there is no token: write 1 or 2");
        let error = resolve(&["--auth-token-file", "/dev/null"], None).err().unwrap();
        assert_eq!(error, "--auth-token-file: /dev/null: there is no token: write 1 or 2");
    }

    #[test]
    fn a_wrong_store_is_refused_without_showing_its_password() {
        for store in ["rediss//:secret-password@host", "redis://user:secret-password@host:port"] {
            let error = resolve(&["--store", store], None).err().unwrap();
            assert!(error.starts_with("--store: ") && !error.contains("secret-password"), "{error}");
        }
    }
}
