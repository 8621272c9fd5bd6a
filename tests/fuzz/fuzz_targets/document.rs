//! A file that `tollgate check` is given.
#![no_main]

use annotate_snippets::Renderer;
use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::check::{Source, check};
use tollgate_fuzz::environment;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = str::from_utf8(bytes) else { return };
    // The name says how values without quotes are read.
    for name in ["file.yaml", "file"] {
        let report = check(&Source { name: name.into(), text: text.into() }, &environment);
        assert!(!report.findings.is_empty() || !report.policies.is_empty(), "something is said");
        for finding in &report.findings {
            assert!(report.shown.get(finding.span.clone()).is_some(), "{} is in the file", finding.message);
        }
        report.text(&Renderer::plain());
        report.json();
    }
});
