use crate::{Process, eventually, tool};
use axum::Router;
use axum::response::Response;
use std::net::SocketAddr;
use std::process::Command;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// A real `tollgate serve`.
pub struct Endpoint {
    pub process: Process,
    pub address: SocketAddr,
    args: Vec<String>,
    folder: TempDir,
}

impl Endpoint {
    pub async fn start(store: &str) -> Self {
        Self::start_with(&["--store", store]).await
    }

    pub async fn start_with(args: &[&str]) -> Self {
        Self::listening("127.0.0.1:0".parse().expect("an address"), args).await
    }

    /// In memory, in the place of one that was there.
    pub async fn start_at(address: SocketAddr) -> Self {
        Self::listening(address, &["--store", "memory"]).await
    }

    async fn listening(address: SocketAddr, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let (process, address) = spawn(address, &args, &folder).await;
        Self { process, address, args, folder }
    }

    /// A new process with the same address and arguments.
    pub async fn restart(&mut self) {
        self.process.kill();
        self.process = spawn(self.address, &self.args, &self.folder).await.0;
    }
}

async fn spawn(listen: SocketAddr, args: &[String], folder: &TempDir) -> (Process, SocketAddr) {
    let mut command = Command::new(tool("TOLLGATE_BIN"));
    command.args(["serve", "--listen", &listen.to_string()]).args(args);
    let mut process = Process::start(&mut command, &folder.path().join("tollgate.log"));
    let address = eventually("the endpoint listens", async || {
        assert!(process.is_running(), "the endpoint ended:\n{}", process.log());
        let log = process.log();
        let line = log.lines().find_map(|line| line.strip_prefix("listening on http://"));
        line.ok_or("no such line yet").map(|address| address.parse().expect("an address"))
    })
    .await;
    (process, address)
}

/// An endpoint that answers what a real one never would.
pub struct FakeEndpoint {
    pub address: SocketAddr,
    server: JoinHandle<()>,
}

impl Drop for FakeEndpoint {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl FakeEndpoint {
    pub async fn start<F>(answer: impl Fn() -> F + Clone + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), answer).await
    }

    /// In the place of an endpoint that was there.
    pub async fn start_at<F>(address: SocketAddr, answer: impl Fn() -> F + Clone + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let listener = tokio::net::TcpListener::bind(address).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let app = Router::new().fallback(answer);
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        Self { address, server }
    }
}
