//! `tollgate`: the token endpoint, and what there is to know of a policy before it is rolled out.

mod admit;
mod api;
mod auth;
mod calendar;
mod check;
mod connection;
mod document;
mod explain;
mod metrics;
mod openapi;
mod readiness;
mod refusal;
mod replay;
mod schema;
mod serve;
mod settings;
mod store;
mod terminal;
mod throttle;
mod traces;

use api::Endpoint;
use check::CheckArgs;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use explain::ExplainArgs;
use replay::ReplayArgs;
use schema::SchemaArgs;
use settings::{Secrets, ServeArgs, Settings};
use std::process::ExitCode;
use traces::Traces;

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
    Serve(Box<ServeArgs>),
    /// Say whether policies, and the files that hold them, are right, and what they mean.
    Check(CheckArgs),
    /// Say what a policy makes of one request, and why.
    Explain(Box<ExplainArgs>),
    /// Say what policies would have made of the requests in access logs.
    Replay(Box<ReplayArgs>),
    /// Print a JSON Schema, for editors: of a policy, or of a file that holds one.
    Schema(SchemaArgs),
}

fn main() -> ExitCode {
    let matches = match Cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() && explain::may_hold_secrets(std::env::args_os()) => {
            let why = explain::refuse(&error);
            terminal::warn(format_args!("error: {why}\n\nFor more information, try 'tollgate explain --help'.\n"));
            return ExitCode::from(2);
        }
        Err(error) => error.exit(),
    };
    match Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command {
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Serve(args) => {
            let matches = matches.subcommand().map_or(&matches, |(_, matches)| matches);
            match Settings::resolve(*args, matches, Secrets::from_env()) {
                Ok(settings) => run(settings),
                Err(error) => {
                    terminal::warn(format_args!("error: {error}\n"));
                    ExitCode::FAILURE
                }
            }
        }
    }
}

fn run(settings: Settings) -> ExitCode {
    settings.log.start();
    match serve(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(settings: Settings) -> Result<(), String> {
    // The one that TLS uses, whatever else is linked in.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new().map_err(|error| format!("the runtime does not start: {error}"))?;
    let ended = runtime.block_on(async {
        let store = settings.store.open(&settings.access, settings.store_timeout, settings.memory_keys)?;
        let endpoint = Endpoint::new(store, settings.tokens, settings.max_in_flight);
        let start = |collector| Traces::start(collector, settings.otlp_sample, endpoint.metrics().spans());
        let traces = settings.otlp_endpoint.as_ref().map(start).transpose()?;
        serve::serve(settings.listen, endpoint.with_traces(traces), settings.max_connections).await
    });
    // Without waiting for a name server that does not answer.
    runtime.shutdown_background();
    ended
}
