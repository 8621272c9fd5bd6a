//! What `check` has found, for people and for programs.

use crate::document::Repeated;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use serde::Serialize;
use std::fmt::Write;
use std::ops::Range;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The policy does not do what is written, or nothing at all.
    Error,
    /// It does, and may still not be what is wanted.
    Warning,
}

/// Something that is wrong, or may be.
#[derive(Clone, Debug)]
pub struct Finding {
    pub severity: Severity,
    pub span: Range<usize>,
    /// Where in the policy, as the filter says it; empty for the whole, and for what is not in a policy.
    pub path: String,
    pub message: String,
}

impl Finding {
    pub fn error(span: &Range<usize>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, span: span.clone(), path: String::new(), message: message.into() }
    }

    pub fn warning(span: &Range<usize>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(span, message) }
    }

    pub fn repeated(repeated: &Repeated) -> Self {
        let message =
            format!("{:?} is there twice: only the last would count, and nothing would say so", repeated.name);
        Self::error(&repeated.span, message)
    }
}

/// One file, with what was found in it.
pub struct FileReport {
    pub file: String,
    /// Without what is secret, byte for byte as long as the file.
    pub shown: String,
    pub findings: Vec<Finding>,
    pub policies: Vec<PolicyReport>,
}

/// One configuration that is right.
#[derive(Serialize)]
pub struct PolicyReport {
    pub place: String,
    pub line: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    pub policies: Vec<Meaning>,
    pub routes: Vec<String>,
    pub notes: Vec<String>,
}

/// What one policy means, in words.
#[derive(Serialize)]
pub struct Meaning {
    pub policy: String,
    pub means: String,
    pub otherwise: Vec<String>,
    pub worst_case: String,
}

impl FileReport {
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// What is wrong, alone.
    pub fn without_warnings(mut self) -> Self {
        self.findings.retain(|finding| finding.severity == Severity::Error);
        self
    }

    /// For people: errors as compilers show them, then what is right in words.
    pub fn text(&self, renderer: &Renderer) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let level = match finding.severity {
                Severity::Error => Level::ERROR,
                Severity::Warning => Level::WARNING,
            };
            let title = match finding.path.as_str() {
                "" => finding.message.clone(),
                path => format!("{path}: {}", finding.message),
            };
            let snippet = Snippet::source(self.shown.as_str())
                .path(&self.file)
                .annotation(AnnotationKind::Primary.span(self.first_line(&finding.span)));
            let group = level.primary_title(title).element(snippet);
            let _ = writeln!(text, "{}\n", renderer.render(&[group]));
        }
        for set in &self.policies {
            let version = set.version.as_ref().map_or_else(String::new, |version| format!(", version {version}"));
            let _ = writeln!(text, "{}:{}: {}{version}: right", self.file, set.line, set.place);
            for meaning in &set.policies {
                let _ = writeln!(text, "  {}: {}", meaning.policy, meaning.means);
                for line in &meaning.otherwise {
                    let _ = writeln!(text, "    {line}");
                }
                let _ = writeln!(text, "    worst case: {}", meaning.worst_case);
            }
            for route in &set.routes {
                let _ = writeln!(text, "  route class {route}");
            }
            for note in &set.notes {
                let _ = writeln!(text, "  note: {note}");
            }
        }
        text
    }

    /// For programs.
    pub fn json(&self) -> serde_json::Value {
        let findings: Vec<serde_json::Value> = self.findings.iter().map(|finding| self.finding(finding)).collect();
        serde_json::json!({"file": self.file, "findings": findings, "policies": self.policies})
    }

    fn finding(&self, finding: &Finding) -> serde_json::Value {
        let (line, column) = place(&self.shown, finding.span.start);
        serde_json::json!({
            "severity": finding.severity,
            "line": line,
            "column": column,
            "path": finding.path,
            "message": finding.message,
        })
    }

    /// What a snippet points at: no more than the line on which it begins.
    fn first_line(&self, span: &Range<usize>) -> Range<usize> {
        let start = span.start.min(self.shown.len());
        let written = self.shown.get(start..span.end.min(self.shown.len())).unwrap_or_default();
        let line = written.split('\n').next().unwrap_or_default().trim_end();
        start..start + line.len()
    }
}

/// The line and the column of a byte, both from 1.
pub fn place(source: &str, at: usize) -> (usize, usize) {
    let before = source.get(..at).unwrap_or(source);
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
