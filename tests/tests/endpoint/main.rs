//! The token endpoint as a process: who may ask, what it bears, what it tells, and how it is configured.

mod auth;
mod metrics;
mod overload;
mod settings;
mod traces;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use tollgate_tests::{Client, Process, eventually};

/// One unit of one bucket, of which there are 1000.
fn decision() -> Value {
    let name = format!("{:032x}", 1);
    json!({"decisions": [{"charges": [{"policy": "p", "key": name, "group": name, "cost": 1,
        "token_bucket": {"capacity": 1000, "refill": 1, "per_us": 60_000_000}}]}]})
}

/// POST /v1/admit for one decision.
fn ask(address: SocketAddr) -> RequestBuilder {
    Client::new(address).request(Method::POST, "/v1/admit").body(decision().to_string())
}

/// Waits until so many requests are being decided.
async fn in_flight(address: SocketAddr, count: &str) {
    eventually("the requests are in flight", async || {
        let page = Client::new(address).get("/metrics").await.body;
        let line = page.lines().find_map(|line| line.strip_prefix("tollgate_in_flight "));
        if line == Some(count) { Ok(()) } else { Err(format!("{line:?}")) }
    })
    .await;
}

/// A file for one test.
struct Scratch {
    path: PathBuf,
    _folder: TempDir,
}

impl Scratch {
    fn file(content: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("file");
        std::fs::write(&path, content).expect("a file");
        Self { path, _folder: folder }
    }

    fn path(&self) -> &str {
        self.path.to_str().expect("text")
    }
}

/// `tollgate serve` with nothing but what a test gives it.
struct Program {
    process: Process,
    _folder: TempDir,
}

impl Program {
    fn start(args: &[&str], variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let program = std::env::var_os("TOLLGATE_BIN").expect("TOLLGATE_BIN, which `make test` sets");
        let mut command = Command::new(program);
        command.arg("serve").args(args).envs(variables.iter().copied());
        let process = Process::start(&mut command, &folder.path().join("tollgate.log"));
        Self { process, _folder: folder }
    }

    /// Where it says that it listens.
    async fn address(&mut self) -> SocketAddr {
        eventually("the endpoint listens", async || {
            let log = self.process.log();
            assert!(self.process.is_running(), "the endpoint ended:\n{log}");
            let line = log.lines().find_map(|line| line.strip_prefix("listening on http://").map(str::to_owned));
            line.ok_or("no such line yet").map(|address| address.parse().expect("an address"))
        })
        .await
    }

    /// What it said, once it has ended.
    async fn end(&mut self) -> String {
        eventually("the endpoint ends", async || if self.process.is_running() { Err("it runs") } else { Ok(()) }).await;
        self.process.log()
    }
}
