//! `tollgate replay`: what policies would have made of the requests in access logs.

mod engine;
mod line;
mod lines;
mod page;
mod report;
mod tally;
#[cfg(test)]
mod tests;

use self::engine::Engine;
use self::line::Fields;
use self::lines::Lines;
use self::report::Report;
use self::tally::Tally;
use crate::check::{self, Format, Held, Source};
use crate::terminal;
use annotate_snippets::Renderer;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
Every line is one request, of any of these forms:
  JSON    one object a line, as Envoy's json_format, Istio and most others write
  text    Envoy's default format, Istio's, or the common and combined formats of nginx and Apache

A JSON line has the request's start, method and path under one of their usual names (start_time, timestamp, time, ts;
method, request_method; x-envoy-original-path, path, uri, url), and if it can the host (authority, host), the client's
address (downstream_remote_address, client_ip, remote_addr) and bytes_received. Every other field, and every field of an
object `headers`, stands for the header of its name, with - for _. What has another name there is told by options.

The requests run through the filter's engine and an endpoint with an empty store, by the times in the log: as one proxy, with
an endpoint that is always there and takes no time. Access logs are written when requests end: their order is mended within
the last 65,536 lines. No value of a request is in the report. Keys are shown as digests, those of logs and stores if the
proxies' hash key is in the environment, with the line of the first request that each would have had rejected.

Examples:
  tollgate replay policy.yaml access.log --html report.html
  zcat access.log.*.gz | tollgate replay policy.yaml -
  tollgate replay envoy.yaml access.json --header x-api-key=api_key_id \\
      --metadata envoy.filters.http.jwt_authn:payload.tenant=jwt.tenant

Exit status: 0 replayed, 1 the policy is wrong, 2 a file or an option cannot be read, or no line is a request.";

/// As it is written.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct ReplayArgs {
    /// The policy, or what holds it.
    #[arg(value_name = "FILE")]
    file: String,
    /// Access logs, in the order of their times; `-` is standard input.
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<String>,
    #[command(flatten)]
    fields: FieldArgs,
    /// How to say it: text for people, or one JSON document.
    #[arg(long, default_value = "text")]
    format: Format,
    /// Also write a page with plots, which needs no other file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Where a JSON line has what it does not call by its usual name. A field within an object is written with a dot.
#[derive(clap::Args, Default)]
struct FieldArgs {
    /// Where a header's value is, as NAME=FIELD.
    #[arg(long, value_name = "NAME=FIELD")]
    header: Vec<String>,
    /// Where something is that an earlier filter has found out, as FILTER:NAME.NAME=FIELD.
    #[arg(long, value_name = "NAME=FIELD")]
    metadata: Vec<String>,
    /// The same of the metadata of Envoy's route.
    #[arg(long, value_name = "NAME=FIELD")]
    route_metadata: Vec<String>,
    /// The same of the metadata of Envoy's virtual host.
    #[arg(long, value_name = "NAME=FIELD")]
    virtual_host_metadata: Vec<String>,
    /// Where an object of the filter state is, as NAME=FIELD.
    #[arg(long, value_name = "NAME=FIELD")]
    filter_state: Vec<String>,
    /// Where a name in the client's certificate is: uri_san=FIELD, dns_san=FIELD or subject=FIELD.
    #[arg(long, value_name = "NAME=FIELD")]
    peer: Vec<String>,
    /// Where the name of Envoy's route is.
    #[arg(long, value_name = "FIELD")]
    envoy_route: Option<String>,
}

/// Runs the command.
pub fn run(args: &ReplayArgs) -> ExitCode {
    let env = |name: &str| std::env::var(name).ok();
    let read = args.may_write().and_then(|()| Ok((Fields::new(&args.fields)?, Source::read(&args.file)?)));
    let (fields, source) = match read {
        Ok(read) => read,
        Err(error) => return unreadable(&error),
    };
    let (report, held) = check::examine(&source, &env);
    let report = report.without_warnings();
    terminal::warn(report.text(&Renderer::plain()));
    if !report.findings.is_empty() {
        return ExitCode::from(1);
    }
    let reports = match replay(&held, &args.logs, &fields) {
        Ok(reports) => reports,
        Err(error) => return unreadable(&error),
    };
    match args.format {
        Format::Json => {
            let all = serde_json::json!({"file": source.name, "replays": reports});
            terminal::say(format_args!("{all:#}\n"));
        }
        Format::Text => reports.iter().for_each(terminal::say),
    }
    if let Some(file) = &args.html
        && let Err(error) = std::fs::write(file, page::page(&source.name, &reports))
    {
        return unreadable(&format!("{}: cannot be written: {error}", file.display()));
    }
    ExitCode::SUCCESS
}

impl ReplayArgs {
    /// Whether the page can be written, as far as that is known before hours have been spent; and over none of what is read.
    fn may_write(&self) -> Result<(), String> {
        let Some(page) = &self.html else { return Ok(()) };
        let refused = |why: &str| Err(format!("--html {}: {why}", page.display()));
        if page.is_dir() {
            return refused("it is a directory");
        }
        if page.parent().is_some_and(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
            return refused("there is no such directory");
        }
        let is_page = |name: &String| {
            page.canonicalize().is_ok_and(|page| Path::new(name).canonicalize().is_ok_and(|name| name == page))
        };
        if std::iter::once(&self.file).chain(&self.logs).any(is_page) {
            return refused("it would be written over what is read");
        }
        Ok(())
    }
}

fn unreadable(error: &str) -> ExitCode {
    terminal::warn(format_args!("error: {error}\n"));
    ExitCode::from(2)
}

/// Runs all requests through each of the policies. The error says which log cannot be read, or that no request is in them.
fn replay(held: &[Held], logs: &[String], fields: &Fields) -> Result<Vec<Report>, String> {
    let mut runs: Vec<(Engine<'_>, Tally)> =
        held.iter().map(|held| (Engine::new(&held.set), Tally::new(&held.set))).collect();
    let mut lines = Lines::open(logs, fields)?;
    while let Some(entry) = lines.next()? {
        for (engine, tally) in &mut runs {
            let decided = engine.decide(&entry.request, entry.at);
            tally.count(&decided, entry.place);
        }
    }
    let read = lines.end();
    if read.requests == 0 {
        let why = read.unreadable.first.as_ref().map_or_else(|| "they are empty".into(), ToString::to_string);
        return Err(format!("no line of {} is a request: {why}", logs.join(", ")));
    }
    Ok(held.iter().zip(runs).map(|(held, (_, tally))| Report::new(held, &tally, &read, logs)).collect())
}
