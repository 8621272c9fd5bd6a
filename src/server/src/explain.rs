//! `tollgate explain`: what the policies in a file make of one request, and why.

mod curl;
mod explanation;
mod request;
mod shell;
#[cfg(test)]
mod tests;

use self::explanation::Explanation;
pub use self::request::{Body, Given, Name, Request, is_token};
use crate::check::{self, Format, Held, Source};
use crate::terminal;
use annotate_snippets::Renderer;
use std::process::ExitCode;
use tollgate_core::facts::{Attribute, MetadataOf};

const HELP: &str = "\
Files are those that `tollgate check` takes. What is told of the caller is where it was found, of which kind it is and how
long; never what it is. With the proxies' hash key in the environment the digests are those of their keys, in logs and in
the store.

Examples:
  tollgate explain envoy.yaml -X GET --path /v1/reports/7 -H 'x-api-key: …' --client 203.0.113.9
  tollgate explain policy.yaml --path /v1/export \\
      --metadata 'envoy.filters.http.jwt_authn:payload.tenant=acme'

  # From a line that a browser or a colleague has copied
  tollgate explain policy.yaml --curl \"curl -X POST https://api.example.com/v1/orders -H 'authorization: Bearer …'\"

Exit status: 0 explained, 1 a policy is wrong, 2 the file or the request cannot be read.";

/// As it is written.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct ExplainArgs {
    /// The policy, or what holds it; `-` is standard input.
    #[arg(value_name = "FILE")]
    file: String,
    /// The request as a curl command line.
    #[arg(long, value_name = "LINE", conflicts_with_all = ["method", "path", "host", "headers"])]
    curl: Option<String>,
    /// The method.
    #[arg(short = 'X', long, default_value = "GET")]
    method: String,
    /// The path with its query, as it is sent.
    #[arg(long, required_unless_present = "curl", allow_hyphen_values = true)]
    path: Option<String>,
    /// The host that is asked for.
    #[arg(long, default_value = "")]
    host: String,
    /// A header, as 'name: value'. As often as there are lines of it.
    #[arg(short = 'H', long = "header", value_name = "LINE", allow_hyphen_values = true)]
    headers: Vec<String>,
    /// The client's address, as Envoy trusts it.
    #[arg(long, value_name = "ADDRESS")]
    client: Option<String>,
    /// What an earlier filter has found out, as FILTER:NAME.NAME=TEXT, or with := as a number.
    #[arg(long, value_name = "VALUE")]
    metadata: Vec<String>,
    /// Metadata of Envoy's route, written like --metadata.
    #[arg(long, value_name = "VALUE")]
    route_metadata: Vec<String>,
    /// Metadata of Envoy's virtual host, written like --metadata.
    #[arg(long, value_name = "VALUE")]
    virtual_host_metadata: Vec<String>,
    /// An object of the filter state, as NAME=TEXT.
    #[arg(long, value_name = "VALUE")]
    filter_state: Vec<String>,
    /// A name in the client's certificate: uri_san=…, dns_san=… or subject=…
    #[arg(long, value_name = "VALUE")]
    peer: Vec<String>,
    /// The name of Envoy's route.
    #[arg(long, value_name = "NAME")]
    envoy_route: Option<String>,
    /// How to say it: text for people, or one JSON document.
    #[arg(long, default_value = "text")]
    format: Format,
}

/// Runs the command.
pub fn run(args: &ExplainArgs) -> ExitCode {
    let env = |name: &str| std::env::var(name).ok();
    let read = args.request().and_then(|request| Ok((request, Source::read(&args.file)?)));
    let (request, source) = match read {
        Ok(read) => read,
        Err(error) => {
            terminal::warn(format_args!("error: {error}\n"));
            return ExitCode::from(2);
        }
    };
    let (report, held) = check::examine(&source, &env);
    let explanations: Vec<Explanation> = held.iter().map(|held| Explanation::new(held, &request)).collect();
    // What is hardly meant is for `check` to say.
    let report = report.without_warnings();
    match args.format {
        Format::Json => {
            let findings = &report.json()["findings"];
            let all = serde_json::json!({"file": source.name, "findings": findings, "explanations": explanations});
            terminal::say(format_args!("{all:#}\n"));
        }
        Format::Text => {
            terminal::say(text(&source.name, &held, &explanations));
            terminal::warn(report.text(&Renderer::plain()));
        }
    }
    if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Whether a word of a command line that cannot be read may be a secret: then what is wrong with it is said without it.
pub fn may_hold_secrets(mut words: impl Iterator<Item = std::ffi::OsString>) -> bool {
    words.nth(1).is_some_and(|word| word == "explain")
}

/// Says what is wrong with the command line, and no word of it but the names of options.
pub fn refuse(error: &clap::Error) -> String {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        Some(ContextValue::Strings(texts)) => texts.first().map_or("", String::as_str),
        _ => "",
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let meant = match context(ContextKind::SuggestedArg) {
                "" => String::from("are the values in quotes?"),
                option => format!("did you mean {option}?"),
            };
            format!("there is a word too many, or an option that there is not: {meant}")
        }
        // There is no value, or one of few words.
        ErrorKind::InvalidValue => match error.get(ContextKind::ValidValue) {
            Some(ContextValue::Strings(words)) if !words.is_empty() => {
                format!("{} is one of {}", context(ContextKind::InvalidArg), words.join(", "))
            }
            _ => format!("{} lacks its value", context(ContextKind::InvalidArg)),
        },
        ErrorKind::MissingRequiredArgument => match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::Strings(names)) => {
                let or_line =
                    if names.iter().any(|name| name.starts_with("--path")) { ", or --curl <LINE>" } else { "" };
                format!("there is no {}{or_line}", names.join(" and no "))
            }
            _ => "something is missing".into(),
        },
        ErrorKind::ArgumentConflict => {
            let (one, other) = (context(ContextKind::InvalidArg), context(ContextKind::PriorArg));
            if one == other { format!("{one} is there twice") } else { format!("{one} and {other} exclude each other") }
        }
        _ => "the command line cannot be read".into(),
    }
}

fn text(file: &str, held: &[Held], explanations: &[Explanation]) -> String {
    let one = |(held, explanation): (&Held, &Explanation)| {
        let version = held.set.version.as_ref().map_or_else(String::new, |version| format!(", version {version}"));
        format!("{file}:{}: {}{version}\n{explanation}", held.line, held.place)
    };
    held.iter().zip(explanations).map(one).collect()
}

impl ExplainArgs {
    fn request(&self) -> Result<Request, String> {
        let mut request = match &self.curl {
            Some(line) => curl::request(line).map_err(|error| format!("--curl: {error}"))?,
            None => self.written()?,
        };
        request.client.clone_from(&self.client);
        let mut give = |option: &'static str, texts: &[String], read: &dyn Fn(&str) -> Result<Given, String>| {
            for (index, text) in texts.iter().enumerate() {
                let which = if texts.len() == 1 { "" } else { &format!(", number {}", index + 1) };
                let mut given = read(text).map_err(|error| format!("{option}{which}: {error}"))?;
                given.from = format!("{option}{which}");
                request.given.push(given);
            }
            Ok::<(), String>(())
        };
        give("--metadata", &self.metadata, &|text| Given::metadata(MetadataOf::Request, text))?;
        give("--route-metadata", &self.route_metadata, &|text| Given::metadata(MetadataOf::Route, text))?;
        let of_host = |text: &str| Given::metadata(MetadataOf::VirtualHost, text);
        give("--virtual-host-metadata", &self.virtual_host_metadata, &of_host)?;
        give("--filter-state", &self.filter_state, &Given::filter_state)?;
        give("--peer", &self.peer, &Given::peer)?;
        let route = |name: &str| Ok(Given::new(Name::Other(Attribute::RouteName), name));
        give("--envoy-route", self.envoy_route.as_slice(), &route)?;
        Ok(request)
    }

    fn written(&self) -> Result<Request, String> {
        let path = self.path.clone().unwrap_or_default();
        if !path.starts_with('/') && path != "*" {
            return Err("--path: a path begins with /; for a whole URL there is --curl".into());
        }
        let mut request = Request { method: self.method.clone(), host: self.host.clone(), path, ..Request::default() };
        for line in &self.headers {
            request.add_header(line).map_err(|error| format!("-H: {error}"))?;
        }
        Ok(request)
    }
}
