//! The token endpoint against its own /openapi.json: Schemathesis makes requests that the document allows and requests
//! that it forbids, and holds every answer against it.
//!
//! The requests are the same each time, so that a change is not blamed for what chance found. `make fuzz` sets
//! TOLLGATE_FUZZ_SECONDS: other requests, for so long.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;
use tollgate_tests::{Endpoint, skip};

const TOKEN: &str = "a-token-for-the-schema";
const AUTH_TOKEN_FILE: &str = "--auth-token-file";

#[tokio::test]
async fn the_endpoint_answers_as_its_description_says() {
    let endpoint = Endpoint::start("memory").await;
    conform("the_endpoint_answers_as_its_description_says", &endpoint, 50, &[]).await;
}

#[tokio::test]
async fn it_does_so_where_callers_need_a_token_and_takes_none_without() {
    let tokens = Tokens::new();
    let endpoint = Endpoint::start_with(&[AUTH_TOKEN_FILE, &tokens.path()]).await;
    let header = format!("Authorization: Bearer {TOKEN}");
    let name = "it_does_so_where_callers_need_a_token_and_takes_none_without";
    conform(name, &endpoint, 50, &["--header", &header]).await;
}

#[tokio::test]
async fn it_does_so_for_callers_that_have_no_token() {
    let tokens = Tokens::new();
    let endpoint = Endpoint::start_with(&[AUTH_TOKEN_FILE, &tokens.path()]).await;
    conform("it_does_so_for_callers_that_have_no_token", &endpoint, 20, &[]).await;
}

/// A file with [`TOKEN`].
struct Tokens(TempDir);

impl Tokens {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("tokens"), TOKEN).expect("a file");
        Self(folder)
    }

    fn path(&self) -> String {
        self.0.path().join("tokens").display().to_string()
    }
}

async fn conform(name: &str, endpoint: &Endpoint, examples: u32, args: &[&str]) {
    let python = std::env::var_os("SCHEMATHESIS_PYTHON").unwrap_or_default();
    if !Path::new(&python).exists() {
        return skip(name, "there is no Schemathesis: tools/setup schemathesis says why");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(&python);
    command
        .args(["-m", "schemathesis.cli", "run", &format!("http://{}/openapi.json", endpoint.address)])
        .args(["--no-color", "--generation-database", "none", "--suppress-health-check", "too_slow,data_too_large"])
        .args(args)
        .env("SCHEMATHESIS_HOOKS", Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schema/hooks.py"))
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let seconds: Option<u64> = std::env::var("TOLLGATE_FUZZ_SECONDS").ok().map(|text| text.parse().expect("seconds"));
    match seconds {
        Some(seconds) => command.args(["--max-time", &seconds.to_string()]),
        None => command.args(["--max-examples", &examples.to_string(), "--seed", "1"]),
    };
    let bound = Duration::from_secs(seconds.unwrap_or(0) + 180);
    let output = timeout(bound, command.output()).await.unwrap_or_else(|_| panic!("no end within {bound:?}"));
    let output = output.expect("python runs");
    assert!(output.status.success(), "{}{}", short(&output.stdout), short(&output.stderr));
    assert!(!endpoint.process.log().contains("panicked"), "{}", endpoint.process.log());
}

/// What it found, without most of a body of a megabyte.
fn short(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    text.lines().map(|line| line.chars().take(2000).chain(['\n']).collect::<String>()).collect()
}
