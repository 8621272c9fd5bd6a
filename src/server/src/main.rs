//! `tollgate`: the token endpoint.

mod admit;
mod serve;
mod store;
mod throttle;

use clap::{Parser, Subcommand};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;
use store::StoreUrl;
use tollgate_core::units::{DURATION_UNITS, Micros};
use tracing_subscriber::EnvFilter;

/// Distributed rate limits for Envoy.
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the token endpoint, which keeps the budgets that all proxies share.
    Serve(ServeArgs),
}

#[derive(clap::Args)]
struct ServeArgs {
    /// Where to listen, as address:port. Port 0 takes a free one and prints it.
    #[arg(long, env = "TOLLGATE_LISTEN", default_value = "127.0.0.1:10002")]
    listen: SocketAddr,
    /// Where the budgets are kept: `memory` (this process alone; lost when it ends) or redis://[user:password@]host[:port][/db].
    #[arg(long, env = "TOLLGATE_STORE", default_value = "memory", hide_env_values = true)]
    store: StoreUrl,
    /// How long the store may take for one request before the answer is "failed". Keep it below the filter's timeout.
    #[arg(long, env = "TOLLGATE_STORE_TIMEOUT", default_value = "20ms", value_parser = duration)]
    store_timeout: Duration,
    /// How many budgets the memory store keeps at once; beyond that, new ones fail until old ones are full again.
    #[arg(long, env = "TOLLGATE_MEMORY_KEYS", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    memory_keys: u64,
    /// Listen on an address that other machines reach, although callers are not authenticated.
    #[arg(long, env = "TOLLGATE_ALLOW_REMOTE")]
    allow_remote: bool,
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

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("TOLLGATE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    let Command::Serve(args) = Cli::parse().command;
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &ServeArgs) -> Result<(), String> {
    if !args.listen.ip().is_loopback() && !args.allow_remote {
        return Err(format!(
            "{} can be reached from other machines, and callers are not authenticated: listen on 127.0.0.1, \
             or say --allow-remote where the network keeps strangers out",
            args.listen
        ));
    }
    let runtime = tokio::runtime::Runtime::new().map_err(|error| format!("the runtime does not start: {error}"))?;
    let keys = usize::try_from(args.memory_keys).unwrap_or(usize::MAX);
    runtime.block_on(async {
        let store = args.store.open(args.store_timeout, keys)?;
        serve::serve(args.listen, store).await
    })
}
