//! `tollgate check`: whether the policies in a file are right, and what they mean.

mod deployment;
mod find;
pub mod meaning;
pub mod report;
#[cfg(test)]
pub mod tests;

use self::deployment::Variables;
use self::find::{Document, Finder, Found, LOOKED_FOR};
use self::report::{FileReport, Finding, PolicyReport, Severity};
use crate::calendar;
use crate::document::{self, Dialect, Node};
use crate::terminal;
use annotate_snippets::Renderer;
use clap::ValueEnum;
use std::cell::RefCell;
use std::io::{IsTerminal, Read};
use std::ops::Range;
use std::process::ExitCode;
use tollgate_core::limit::{FixedWindow, Limit, Window};
use tollgate_core::policy::PolicySet;

const HELP: &str = "\
A file is a policy itself, or something that holds policies:
  an Envoy bootstrap, or its listeners as xDS resources (YAML or JSON)
  an Istio WasmPlugin, TrafficExtension or EnvoyFilter
  an Envoy Gateway EnvoyExtensionPolicy
  a Kubernetes List or ConfigMap of these, and several of them in one file with `---` between

The policies are read as the filter reads them, with the traps of YAML as they are there (Envoy takes `no` for false and
010 for 8). Environment variables that are not set here are taken to be right.

Examples:
  # Before a commit: what is wrong, with its line; and what the policy means, if nothing is
  tollgate check envoy.yaml

  # In a pipeline: warnings fail it too
  tollgate check --deny-warnings deploy/envoy.yaml deploy/wasmplugin.yaml
  helm template . | tollgate check --format json -

Exit status: 0 all is right, 1 something is wrong, 2 a file cannot be read.";

/// As it is written.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct CheckArgs {
    /// What to check; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// How to say it: text for people, or one JSON document.
    #[arg(long, default_value = "text")]
    format: Format,
    /// Let warnings be wrong too.
    #[arg(long)]
    deny_warnings: bool,
}

/// How a command says what it has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A file's name and what is in it.
pub struct Source {
    pub name: String,
    pub text: String,
}

/// No configuration is longer; a device has no end.
const MAX_SOURCE: u64 = 64 << 20;

impl Source {
    /// Reads a file, or standard input for `-`.
    pub fn read(name: &str) -> Result<Self, String> {
        let mut bytes = Vec::new();
        let read = match name {
            "-" => std::io::stdin().lock().take(MAX_SOURCE + 1).read_to_end(&mut bytes),
            _ => std::fs::File::open(name).and_then(|file| file.take(MAX_SOURCE + 1).read_to_end(&mut bytes)),
        };
        let read = read.map_err(|error| format!("{name}: cannot be read: {error}"))?;
        if read as u64 > MAX_SOURCE {
            return Err(format!("{name}: cannot be read: it has more than {} MiB", MAX_SOURCE >> 20));
        }
        let text = String::from_utf8(bytes).map_err(|_| format!("{name}: cannot be read: it is not UTF-8 text"))?;
        Ok(Self { name: if name == "-" { "standard input".into() } else { name.into() }, text })
    }

    /// JSON in a file that is not named as YAML; numbers have more forms there.
    fn dialect(&self) -> Dialect {
        let is_yaml = self.name.ends_with(".yaml") || self.name.ends_with(".yml");
        if !is_yaml && document::check_json(&self.text).is_ok() { Dialect::Json } else { Dialect::Envoy }
    }
}

/// Runs the command.
pub fn run(args: &CheckArgs) -> ExitCode {
    let env = |name: &str| std::env::var(name).ok();
    let mut reports = Vec::new();
    let mut unreadable = false;
    for name in &args.files {
        match Source::read(name) {
            Ok(source) => reports.push(check(&source, &env)),
            Err(error) => {
                unreadable = true;
                terminal::warn(format_args!("error: {error}\n"));
            }
        }
    }
    let [errors, warnings] = [Severity::Error, Severity::Warning]
        .map(|severity| reports.iter().map(|report| report.count(severity)).sum::<usize>());
    match args.format {
        Format::Json => {
            let files: Vec<serde_json::Value> = reports.iter().map(FileReport::json).collect();
            let all = serde_json::json!({"files": files, "errors": errors, "warnings": warnings});
            terminal::say(format_args!("{all:#}\n"));
        }
        Format::Text => {
            let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            let renderer = if colours { Renderer::styled() } else { Renderer::plain() };
            reports.iter().for_each(|report| terminal::say(report.text(&renderer)));
            if errors + warnings > 0 {
                let (error, warning) = (count(errors, "error"), count(warnings, "warning"));
                terminal::say(format_args!("{errors} {error}, {warnings} {warning}\n"));
            }
        }
    }
    if unreadable {
        ExitCode::from(2)
    } else if errors > 0 || (args.deny_warnings && warnings > 0) {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    }
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { what.into() } else { format!("{what}s") }
}

/// What stands for the value of a variable that is not set here: a secret, and a token too.
const PLACEHOLDER: &str = "not-set-here-taken-to-be-right";

/// A configuration that is right, with where it stands.
pub struct Held {
    pub place: String,
    pub line: usize,
    pub set: PolicySet,
    /// Variables that are not set here.
    pub unset: Vec<String>,
    /// The one of them that a hash key is in: the digests here are not those of the proxies.
    pub unset_hash_key: Option<String>,
}

/// Checks one file.
pub fn check(source: &Source, env: &dyn Fn(&str) -> Option<String>) -> FileReport {
    let (report, held) = examine(source, env);
    let policies = held.iter().map(|held| PolicyReport {
        place: held.place.clone(),
        line: held.line,
        version: held.set.version.clone(),
        policies: meaning::of_set(&held.set),
        routes: meaning::of_routes(&held.set),
        notes: meaning::of_the_rest(&held.set).into_iter().chain(held.unset.iter().map(unset)).collect(),
    });
    FileReport { policies: policies.collect(), ..report }
}

fn unset(name: &String) -> String {
    format!("{name} is not set here, and taken to be right")
}

/// What is wrong in a file, and the configurations in it that are right.
pub fn examine(source: &Source, env: &dyn Fn(&str) -> Option<String>) -> (FileReport, Vec<Held>) {
    let (documents, mut findings) = match read(source) {
        Ok(read) => read,
        Err(finding) => (Vec::new(), vec![finding]),
    };
    let readable = findings.is_empty() || !documents.is_empty();
    let mut finder = Finder::new(&source.text);
    documents.iter().for_each(|document| finder.look(document));
    if readable && finder.found.is_empty() && finder.findings.is_empty() {
        findings.push(Finding::error(&(0..0), format!("no policy of Tollgate's is in this file: {LOOKED_FOR}")));
    }
    findings.append(&mut finder.findings);
    let mut right = Vec::new();
    for found in &finder.found {
        let (held, mut wrong) = read_policy(source, found, env);
        wrong.extend(deployment::check(found, held.as_ref().map(|held| &held.set)));
        if wrong.iter().all(|finding| finding.severity == Severity::Warning) {
            right.extend(held);
        }
        findings.append(&mut wrong);
    }
    findings.iter_mut().for_each(|finding| finding.span = whole_characters(&source.text, &finding.span));
    findings.sort_by_key(|finding| finding.span.start);
    let secrets =
        documents.iter().map(|document| &document.node).chain(finder.found.iter().map(|found| &*found.policy));
    let shown = without_secrets(&source.text, secrets);
    (FileReport { file: source.name.clone(), shown, findings, policies: Vec::new() }, right)
}

/// All documents of a file, each with the way in which it is read.
fn read(source: &Source) -> Result<(Vec<Document>, Vec<Finding>), Finding> {
    let dialect = source.dialect();
    let documents = document::parse(&source.text)
        .map_err(|error| Finding::error(&error.span, format!("this is neither YAML nor JSON: {}", error.message)))?;
    Ok(find::open(&source.text, documents, dialect))
}

/// Reads a policy as the filter does, then looks at what only the endpoint knows.
fn read_policy(
    source: &Source,
    found: &Found<'_>,
    env: &dyn Fn(&str) -> Option<String>,
) -> (Option<Held>, Vec<Finding>) {
    let unset = RefCell::new(Vec::new());
    let with_placeholders = |name: &str| {
        env(name).or_else(|| {
            unset.borrow_mut().push(name.to_owned());
            // Another one for each: a hash key is not the one before it.
            Some(format!("{PLACEHOLDER}-{}", name.replace(|c: char| !c.is_ascii_alphanumeric(), "-")))
        })
    };
    let json = found.policy.to_json(found.dialect);
    let set = match PolicySet::read(json.as_bytes(), &with_placeholders) {
        Ok(set) => set,
        Err(errors) => {
            let issues = errors.issues().iter();
            return (None, issues.map(|issue| placed(&found.policy, &issue.path, issue.message.clone())).collect());
        }
    };
    let mut findings = time_zones(&set, &found.policy);
    findings.extend(set.warnings().iter().map(|issue| Finding {
        severity: Severity::Warning,
        ..placed(&found.policy, &issue.path, issue.message.clone())
    }));
    let unset = unset.into_inner();
    let of_hash_key = found.policy.entry("hash_key").map(|entry| Variables::of(&entry.node).0).unwrap_or_default();
    let unset_hash_key = of_hash_key.iter().find(|(_, name)| unset.iter().any(|unset| unset == name));
    let held = Held {
        place: found.place.clone(),
        line: report::place(&source.text, found.policy.span.start).0,
        unset_hash_key: unset_hash_key.map(|(_, name)| String::from(*name)),
        unset,
        set,
    };
    (Some(held), findings)
}

/// Time zones are the endpoint's: the filter does not know them.
fn time_zones(set: &PolicySet, policy: &Node) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, one) in set.policies().iter().enumerate() {
        let plans = one.plans.iter().flat_map(|plans| &plans.allowances);
        let plans = plans.map(|(name, allowance)| (format!("plans.{name}"), allowance));
        for (place, allowance) in std::iter::once((String::from("limit"), &one.limit)).chain(plans) {
            if let Some(Limit::FixedWindow(FixedWindow { window: Window::Calendar(window), .. })) = allowance.limit()
                && let Err(message) = calendar::check(&window.zone)
            {
                let path = format!("policies[{index}].{place}.fixed_window.time_zone");
                findings.push(placed(policy, &path, message));
            }
        }
    }
    findings
}

/// An error with the place of its path.
fn placed(policy: &Node, path: &str, message: String) -> Finding {
    let (node, entry) = policy.find(path);
    let is_about_name =
        ["unknown field", "is there twice", "is for policies"].iter().any(|start| message.starts_with(start));
    let span = match entry {
        Some(entry) if is_about_name || node.text().is_none() => &entry.name_span,
        _ => &node.span,
    };
    Finding { path: path.into(), ..Finding::error(span, message) }
}

/// A span that begins and ends between characters: readers of JSON count in bytes.
fn whole_characters(text: &str, span: &Range<usize>) -> Range<usize> {
    let floor = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let start = floor(span.start);
    start..floor(span.end).max(start)
}

/// The text of a file with `*` in place of each byte of what is secret.
fn without_secrets<'a>(text: &str, nodes: impl Iterator<Item = &'a Node>) -> String {
    let mut spans = Vec::new();
    nodes.for_each(|node| secrets(node, false, &mut spans));
    let mut bytes = text.as_bytes().to_vec();
    for span in spans {
        // Bytes of one character are taken all or none.
        if text.get(span.clone()).is_some() {
            bytes[span].iter_mut().filter(|byte| !byte.is_ascii_whitespace()).for_each(|byte| *byte = b'*');
        }
    }
    String::from_utf8(bytes).unwrap_or_default()
}

/// Values of secrets in a policy (`{value: …}` of `hash_key` and `auth_token`), and of variables that are given to a
/// plugin.
fn secrets(node: &Node, within: bool, spans: &mut Vec<Range<usize>>) {
    for item in node.items() {
        secrets(item, within, spans);
    }
    for entry in node.entries() {
        let holds =
            within || ["hash_key", "auth_token", "key_values", "keyValues", "env"].contains(&entry.name.as_str());
        if holds && entry.node.text().is_some() && !["env", "name", "valueFrom"].contains(&entry.name.as_str()) {
            spans.push(entry.node.span.clone());
        }
        secrets(&entry.node, holds, spans);
    }
}
