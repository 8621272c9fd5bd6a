//! `tollgate`: the token endpoint.

mod admit;
mod api;
mod auth;
mod connection;
mod metrics;
mod readiness;
mod refusal;
mod serve;
mod settings;
mod store;
mod throttle;

use api::Endpoint;
use clap::{Parser, Subcommand};
use settings::{AUTH_TOKENS, ServeArgs, Settings};
use std::io::IsTerminal;
use std::process::ExitCode;
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

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("TOLLGATE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    let Command::Serve(args) = Cli::parse().command;
    match Settings::resolve(args, std::env::var_os(AUTH_TOKENS)).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: Settings) -> Result<(), String> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| format!("the runtime does not start: {error}"))?;
    runtime.block_on(async {
        let store = settings.store.open(settings.store_timeout, settings.memory_keys)?;
        let endpoint = Endpoint::new(store, settings.tokens, settings.max_in_flight);
        serve::serve(settings.listen, endpoint, settings.max_connections).await
    })
}
