//! How `tollgate serve` is told what to do: by flags, by variables, by a file, in that order; else there is a default.

mod access;
mod file;
mod values;

use self::access::AccessArgs;
use self::file::File;
pub use self::values::CollectorUrl;
use self::values::{Bounded, LogFilter, LogFormat, Share, Wait};
use crate::auth::BearerTokens;
use crate::store::{Access, StoreUrl};
use clap::ArgMatches;
use clap::parser::ValueSource;
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The variable with the tokens themselves.
const AUTH_TOKENS: &str = "TOLLGATE_AUTH_TOKENS";

const HELP: &str = "\
Each setting is taken from its flag, else from its variable, else from the file, else from its default.

Examples:
  # For one machine, without Redis; callers on this machine alone
  tollgate serve

  # For many proxies, over one Redis; its password is not seen among the arguments
  export TOLLGATE_STORE=redis://user:password@redis:6379/0
  tollgate serve --listen 0.0.0.0:10002 --auth-token-file /run/secrets/tollgate

  # Over a Redis Cluster, with TLS and an ACL user
  tollgate serve --store rediss+cluster://redis-0,redis-1,redis-2 --redis-ca-file ca.pem \\
    --redis-user tollgate --redis-password-file /run/secrets/redis

  # From a file, with one setting changed
  tollgate serve --config tollgate.yaml --log debug

The file is YAML, with the names of the flags:
  listen: 0.0.0.0:10002
  store: redis://redis:6379/0
  store_timeout: 20ms
  auth_token_file: /run/secrets/tollgate
  log_format: json

Stores:
  memory                                  this process alone; lost when it ends
  redis://host[:port][/db]                one server
  redis+sentinel://host[:port],…/service  the master that the sentinels know
  redis+cluster://host[:port],…           a cluster, from any of its nodes
Each with rediss in place of redis for TLS, and with user:password@ before the hosts (%-encoded), or with
--redis-user and a password from a file or TOLLGATE_REDIS_PASSWORD.

Tokens: one or two, of 16 bytes or more, as from `openssl rand -hex 32`. To change one without a gap, write the new one
below the old one and restart, give it to the callers, remove the old one and restart.";

/// As it is written, by flags and variables.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct ServeArgs {
    /// A YAML file with settings; what flags and variables say goes before what it says.
    #[arg(long, env = "TOLLGATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to listen, as address:port. Port 0 takes a free one and prints it.
    #[arg(long, env = "TOLLGATE_LISTEN", default_value = "127.0.0.1:10002")]
    listen: SocketAddr,
    /// Where the budgets are kept: `memory`, or a redis URL; the forms are below.
    // Not parsed by clap, which would show a wrong value, and with it a password.
    #[arg(long, env = "TOLLGATE_STORE", default_value = "memory", hide_env_values = true)]
    store: String,
    #[command(flatten)]
    access: AccessArgs,
    /// How long the store may take for one request before the answer is "failed". Keep it below the filter's timeout.
    #[arg(long, env = "TOLLGATE_STORE_TIMEOUT", default_value = "20ms")]
    store_timeout: Wait,
    /// How many budgets the memory store keeps at once; beyond that, new ones fail until old ones are full again.
    #[arg(long, env = "TOLLGATE_MEMORY_KEYS", default_value = "1000000")]
    memory_keys: Bounded<1000, { u32::MAX }>,
    /// A file with 1 or 2 bearer tokens, one a line: who asks for decisions or metrics must send one of them. Or put
    /// them into TOLLGATE_AUTH_TOKENS, with a comma between them.
    #[arg(long, env = "TOLLGATE_AUTH_TOKEN_FILE", value_name = "FILE")]
    auth_token_file: Option<PathBuf>,
    /// Listen on an address that other machines reach without asking callers for a token: where the network keeps
    /// strangers out, or Envoy does by mutual TLS.
    #[arg(long, env = "TOLLGATE_ALLOW_REMOTE", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = clap::builder::BoolishValueParser::new(), action = clap::ArgAction::Set)]
    allow_remote: bool,
    /// How many requests are read and decided at once, each of 2 MiB at the most; beyond that they get 503 at once.
    #[arg(long, env = "TOLLGATE_MAX_IN_FLIGHT", default_value = "1024")]
    max_in_flight: Bounded<1, 65_536>,
    /// How many connections there may be; beyond that new ones are closed at once. Each needs a file descriptor.
    #[arg(long, env = "TOLLGATE_MAX_CONNECTIONS", default_value = "4096")]
    max_connections: Bounded<1, 1_000_000>,
    /// What to log: off, error, warn, info, debug or trace, or a list such as `warn,tollgate=debug`. No level shows
    /// tokens, passwords or keys.
    #[arg(long, env = "TOLLGATE_LOG", value_name = "LEVEL", default_value = "info")]
    log: LogFilter,
    /// How to log, to standard error: lines for people, or one JSON object a line.
    #[arg(long, env = "TOLLGATE_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
    /// An OpenTelemetry collector, as http://host:port: spans of requests for decisions go there (OTLP over HTTP). They
    /// hold times, counts and kinds, and nothing that a caller sent. No request waits for them.
    // Not parsed by clap, as the store.
    #[arg(long, env = "TOLLGATE_OTLP_ENDPOINT", value_name = "URL", hide_env_values = true)]
    otlp_endpoint: Option<String>,
    /// Which share of the requests without a traceparent gets a span, 0 to 1. One with a traceparent does as that says.
    #[arg(long, env = "TOLLGATE_OTLP_SAMPLE", value_name = "SHARE", default_value = "0.01")]
    otlp_sample: Share,
}

/// What is secret comes by variables: others see a program's arguments.
#[derive(Default)]
pub struct Secrets {
    auth_tokens: Option<OsString>,
    redis_password: Option<OsString>,
    sentinel_password: Option<OsString>,
}

impl Secrets {
    /// From this process's environment.
    pub fn from_env() -> Self {
        let of = std::env::var_os;
        Self {
            auth_tokens: of(AUTH_TOKENS),
            redis_password: of(access::REDIS_PASSWORD),
            sentinel_password: of(access::SENTINEL_PASSWORD),
        }
    }
}

/// As the program uses it.
pub struct Settings {
    pub listen: SocketAddr,
    pub store: StoreUrl,
    pub access: Access,
    pub store_timeout: Duration,
    pub memory_keys: usize,
    /// `None`: callers are not asked for a token.
    pub tokens: Option<BearerTokens>,
    pub max_in_flight: usize,
    pub max_connections: usize,
    pub log: Log,
    /// `None`: no spans.
    pub otlp_endpoint: Option<CollectorUrl>,
    /// 0 to 1.
    pub otlp_sample: f64,
}

/// What is logged, and how.
pub struct Log {
    filter: LogFilter,
    format: LogFormat,
}

impl Settings {
    /// `matches` is where `args` come from.
    pub fn resolve(mut args: ServeArgs, matches: &ArgMatches, secrets: Secrets) -> Result<Self, String> {
        let mut tokens = tokens(&args, matches.value_source("auth_token_file"), secrets.auth_tokens.as_deref())?;
        let mut file = args.config.as_deref().map(File::read).transpose()?.unwrap_or_default();
        if let (None, Some(path)) = (&tokens, &file.auth_token_file) {
            tokens = Some(BearerTokens::read(path).map_err(|error| format!("auth_token_file: {error}"))?);
        }
        let store = match file.store.take() {
            Some(url) if is_unset(matches, "store") => url,
            _ => args.store.parse().map_err(|error| format!("--store (or TOLLGATE_STORE): {error}"))?,
        };
        let otlp_endpoint = match &args.otlp_endpoint {
            Some(url) => {
                Some(url.parse().map_err(|error| format!("--otlp-endpoint (or TOLLGATE_OTLP_ENDPOINT): {error}"))?)
            }
            None => file.otlp_endpoint.take(),
        };
        let passwords = [secrets.redis_password, secrets.sentinel_password];
        args.fill(matches, &mut file);
        let access = args.access.resolve(matches, &mut file, passwords)?;
        if !args.listen.ip().is_loopback() && tokens.is_none() && !args.allow_remote {
            return Err(format!(
                "{} can be reached from other machines, and callers are not authenticated: listen on 127.0.0.1, \
                 give --auth-token-file, or say --allow-remote where the network or Envoy keeps strangers out",
                args.listen
            ));
        }
        Ok(Self {
            listen: args.listen,
            store,
            access,
            store_timeout: args.store_timeout.0,
            memory_keys: args.memory_keys.get(),
            tokens,
            max_in_flight: args.max_in_flight.get(),
            max_connections: args.max_connections.get(),
            log: Log { filter: args.log, format: args.log_format },
            otlp_endpoint,
            otlp_sample: args.otlp_sample.0,
        })
    }
}

impl ServeArgs {
    /// Takes from the file what neither a flag nor a variable says.
    fn fill(&mut self, matches: &ArgMatches, file: &mut File) {
        macro_rules! fill {
            ($($field:ident),* $(,)?) => {
                $(if let Some(value) = file.$field.take()
                    && is_unset(matches, stringify!($field))
                {
                    self.$field = value;
                })*
            };
        }
        fill!(
            listen,
            store_timeout,
            memory_keys,
            allow_remote,
            max_in_flight,
            max_connections,
            log,
            log_format,
            otlp_sample
        );
    }
}

/// Neither a flag nor a variable says it.
fn is_unset(matches: &ArgMatches, field: &str) -> bool {
    matches!(matches.value_source(field), None | Some(ValueSource::DefaultValue))
}

/// The tokens that a flag or a variable gives.
fn tokens(args: &ServeArgs, source: Option<ValueSource>, list: Option<&OsStr>) -> Result<Option<BearerTokens>, String> {
    match (&args.auth_token_file, list) {
        (Some(_), Some(_)) if source == Some(ValueSource::EnvVariable) => {
            Err(format!("both TOLLGATE_AUTH_TOKEN_FILE and {AUTH_TOKENS} are set: leave one of them out"))
        }
        (Some(file), _) => BearerTokens::read(file).map(Some).map_err(|error| format!("--auth-token-file: {error}")),
        (None, Some(list)) => {
            let list = list.to_str().ok_or_else(|| format!("{AUTH_TOKENS}: is not text"))?;
            BearerTokens::parse_list(list).map(Some).map_err(|error| format!("{AUTH_TOKENS}: {error}"))
        }
        (None, None) => Ok(None),
    }
}

impl Log {
    /// From here on, lines go to standard error.
    pub fn start(&self) {
        let builder = tracing_subscriber::fmt().with_env_filter(self.filter.clone().0).with_writer(std::io::stderr);
        match self.format {
            LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
            LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
        }
    }
}

#[cfg(test)]
mod tests;
