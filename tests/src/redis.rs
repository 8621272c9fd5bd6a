use crate::{Process, eventually, tool};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use tempfile::TempDir;

/// A real `redis-server` without persistence.
pub struct Redis {
    pub process: Process,
    pub address: SocketAddr,
    _folder: TempDir,
}

impl Redis {
    pub async fn start() -> Self {
        // A port is free until somebody takes it: if that was not Redis, it takes another.
        for _ in 0..10 {
            if let Some(redis) = Self::try_start().await {
                return redis;
            }
        }
        panic!("redis-server found no free port in ten attempts");
    }

    async fn try_start() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
        let mut command = Command::new(tool("REDIS_SERVER_BIN"));
        command.args([
            "--port",
            &address.port().to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.arg("--dir").arg(folder.path());
        let mut process = Process::start(&mut command, &folder.path().join("redis.log"));
        let client = redis::Client::open(format!("redis://{address}")).expect("a URL");
        let ready = eventually("redis-server answers", async || {
            if !process.is_running() {
                return Ok(false);
            }
            let mut connection = client.get_multiplexed_async_connection().await?;
            redis::cmd("PING").query_async::<()>(&mut connection).await.map(|()| true)
        })
        .await;
        ready.then_some(Self { process, address, _folder: folder })
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub async fn connect(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.url()).expect("a URL");
        client.get_multiplexed_async_connection().await.expect("a connection")
    }

    /// Every key, in order.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> =
            redis::cmd("KEYS").arg("*").query_async(&mut self.connect().await).await.expect("the keys");
        keys.sort();
        keys
    }
}
