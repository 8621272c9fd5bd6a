use crate::{Process, eventually, tool};
use futures_util::StreamExt;
use std::future::ready;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// A real `redis-server`: without persistence, unless its settings say otherwise.
pub struct Redis {
    pub process: Process,
    pub address: SocketAddr,
    args: Vec<String>,
    /// What a test's own connection says first: `AUTH user password`, where there is a password.
    login: Option<(String, String)>,
    folder: TempDir,
}

impl Redis {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// With more settings, as on the command line of `redis-server`.
    pub async fn start_with(args: &[&str]) -> Self {
        Self::start_as(args, None).await
    }

    /// With a password for the user `default`, or for `user` beside it (`--user` in `args`).
    pub async fn start_as(args: &[&str], login: Option<(&str, &str)>) -> Self {
        // A port is free until somebody takes it: if that was not Redis, it takes another.
        for _ in 0..10 {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            // A node of a cluster listens 10000 ports higher too.
            if address.port() > 55_535 || TcpListener::bind(("127.0.0.1", address.port() + 10_000)).is_err() {
                continue;
            }
            drop(listener);
            let login = login.map(|(user, password)| (user.to_owned(), password.to_owned()));
            let folder = tempfile::tempdir().expect("a temporary folder");
            let args: Vec<String> = args.iter().map(ToString::to_string).collect();
            let process = spawn(address, &args, &folder);
            let mut redis = Self { process, address, args, login, folder };
            if redis.answers().await {
                // One that has been in use: an endpoint takes a while to believe that a server is new. A node of a cluster
                // has no marker, and a replica gets its master's.
                let _ = redis.try_run::<()>("SET tollgate-marker m:0").await;
                return redis;
            }
        }
        panic!("redis-server found no free port in ten attempts");
    }

    /// A new process with the same address, settings and folder.
    pub async fn restart(&mut self) {
        self.process.kill();
        self.process = spawn(self.address, &self.args, &self.folder);
        assert!(self.answers().await, "redis-server came back");
    }

    /// Whether it answers, or has ended.
    async fn answers(&mut self) -> bool {
        let client = self.client();
        let process = &mut self.process;
        eventually("redis-server answers", async || {
            if !process.is_running() {
                return Ok(false);
            }
            let mut connection = client.get_multiplexed_async_connection().await?;
            redis::cmd("PING").query_async::<()>(&mut connection).await.map(|()| true)
        })
        .await
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    fn client(&self) -> redis::Client {
        let mut info = redis::IntoConnectionInfo::into_connection_info(self.url()).expect("a URL");
        if let Some((user, password)) = &self.login {
            let settings = info.redis_settings().clone().set_username(user).set_password(password);
            info = info.set_redis_settings(settings);
        }
        redis::Client::open(info).expect("a client")
    }

    pub async fn connect(&self) -> redis::aio::MultiplexedConnection {
        self.try_connect().await.expect("a connection")
    }

    /// Until its one replica has all that it has. WAIT would wait for what was written on the same connection alone.
    pub async fn is_copied(&self) {
        eventually("the replica has everything", async || {
            let info: String = self.run("INFO replication").await;
            let number = |text: &str, name: &str| -> Option<u64> {
                let (_, rest) = text.split_once(name)?;
                rest.split([',', '\r']).next()?.parse().ok()
            };
            let replica =
                info.lines().find(|line| line.starts_with("slave0:")).and_then(|line| number(line, "offset="));
            if replica.is_some() && replica == number(&info, "master_repl_offset:") { Ok(()) } else { Err(info) }
        })
        .await;
    }

    async fn try_connect(&self) -> redis::RedisResult<redis::aio::MultiplexedConnection> {
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        self.client().get_multiplexed_async_connection_with_config(&config).await
    }

    /// Runs one command, as words with spaces between them.
    pub async fn run<T: redis::FromRedisValue>(&self, command: &str) -> T {
        let result = self.try_run(command).await;
        result.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    pub async fn try_run<T: redis::FromRedisValue>(&self, command: &str) -> redis::RedisResult<T> {
        let mut words = command.split_whitespace();
        let mut cmd = redis::cmd(words.next().expect("a command"));
        for word in words {
            cmd.arg(word);
        }
        cmd.query_async(&mut self.try_connect().await?).await
    }

    /// The commands that reach it while `work` is done, with their arguments; what scripts call is not among them.
    pub async fn sent_by(&self, work: impl Future<Output = ()>) -> Vec<Vec<String>> {
        const LAST: &str = "that was all";
        let client = redis::Client::open(self.url()).expect("a URL");
        let mut monitor = client.get_async_monitor().await.expect("a connection");
        work.await;
        redis::cmd("ECHO").arg(LAST).query_async::<()>(&mut self.connect().await).await.expect("an echo");
        let lines: Vec<String> =
            monitor.on_message().take_while(|line: &String| ready(!line.contains(LAST))).collect().await;
        // 1339518083.107412 [0 127.0.0.1:60866] "SET" "key" "value"
        let commands = lines.iter().filter(|line| !line.contains(" lua] ")).filter_map(|line| line.split_once("] \""));
        commands.map(|(_, parts)| parts.trim_end_matches('"').split("\" \"").map(str::to_owned).collect()).collect()
    }

    /// Bytes that its data and its own tables occupy.
    /// How often a command was called.
    pub async fn commands(&self, name: &str) -> u64 {
        let stats: String = self.run("INFO commandstats").await;
        let calls = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
        calls.and_then(|calls| calls.split(',').next()).map_or(0, |calls| calls.parse().expect("a count"))
    }

    pub async fn used_memory(&self) -> i64 {
        let info: redis::InfoDict =
            redis::cmd("INFO").arg("memory").query_async(&mut self.connect().await).await.expect("its memory");
        info.get("used_memory").expect("a number of bytes")
    }

    /// Every key is gone.
    pub async fn flush(&self) {
        redis::cmd("FLUSHALL").query_async::<()>(&mut self.connect().await).await.expect("an empty server");
    }

    /// Every key, in order, but for the one that says whether state was lost.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.run("KEYS *").await;
        keys.retain(|key| key != "tollgate-marker");
        keys.sort();
        keys
    }
}

fn spawn(address: SocketAddr, args: &[String], folder: &TempDir) -> Process {
    let mut command = Command::new(tool("REDIS_SERVER_BIN"));
    command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(folder.path()).args(args);
    Process::start(&mut command, &folder.path().join("redis.log"))
}

/// A master, a replica, and three sentinels that watch them under the name `main`.
pub struct Sentinels {
    pub master: Redis,
    pub replica: Redis,
    sentinels: Vec<(Process, SocketAddr)>,
    _folder: TempDir,
}

impl Sentinels {
    pub async fn start() -> Self {
        let master = Redis::start().await;
        let of = format!("127.0.0.1 {}", master.address.port());
        let replica = Redis::start_with(&["--replicaof", &of, "--repl-diskless-sync-delay", "0"]).await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sentinels: Vec<(Process, SocketAddr)> = (0..3).map(|n| sentinel(&master, &folder, n)).collect();
        for (_, address) in &sentinels {
            let client = redis::Client::open(format!("redis://{address}")).expect("a URL");
            eventually("the sentinel knows the replica and the others", async || {
                let mut connection =
                    client.get_multiplexed_async_connection().await.map_err(|error| error.to_string())?;
                let mut ask = redis::cmd("INFO");
                let info: String = ask.arg("sentinel").query_async(&mut connection).await.map_err(|e| e.to_string())?;
                if info.contains("status=ok") && info.contains("slaves=1,sentinels=3") { Ok(()) } else { Err(info) }
            })
            .await;
        }
        Self { master, replica, sentinels, _folder: folder }
    }

    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.sentinels.iter().map(|(_, address)| address.to_string()).collect();
        format!("redis+sentinel://{}/main", addresses.join(","))
    }

    /// Asks a sentinel to make the replica the master.
    pub async fn failover(&self) {
        let client = redis::Client::open(format!("redis://{}", self.sentinels[1].1)).expect("a URL");
        let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
        let mut command = redis::cmd("SENTINEL");
        command.arg("FAILOVER").arg("main").query_async::<()>(&mut connection).await.expect("a failover");
    }

    /// One of the sentinels stops answering, and keeps its connections.
    pub fn freeze_one(&self) {
        self.sentinels[0].0.freeze();
    }
}

fn sentinel(master: &Redis, folder: &TempDir, number: usize) -> (Process, SocketAddr) {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let config = folder.path().join(format!("sentinel{number}.conf"));
    let text = format!(
        "port {}\nbind 127.0.0.1\ndir {}\nsentinel monitor main 127.0.0.1 {} 2\n\
         sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n",
        address.port(),
        folder.path().display(),
        master.address.port(),
    );
    std::fs::write(&config, text).expect("a settings file");
    let mut command = Command::new(tool("REDIS_SERVER_BIN"));
    command.arg(&config).arg("--sentinel");
    (Process::start(&mut command, &folder.path().join(format!("sentinel{number}.log"))), address)
}

/// Three masters that share all slots, in three ranges; each may have a replica.
pub struct RedisCluster {
    pub masters: Vec<Redis>,
    pub replicas: Vec<Redis>,
}

impl RedisCluster {
    /// The first slot of each master.
    const RANGES: [u16; 4] = [0, 5461, 10_922, 16_384];

    pub async fn start() -> Self {
        Self::start_with(false).await
    }

    pub async fn start_with(replicas: bool) -> Self {
        const NODE: [&str; 4] = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let start = async || Redis::start_with(&NODE).await;
        let masters = [start().await, start().await, start().await];
        let mut cluster = Self { masters: masters.into(), replicas: Vec::new() };
        for (index, node) in cluster.masters.iter().enumerate() {
            let slots: Vec<String> =
                (Self::RANGES[index]..Self::RANGES[index + 1]).map(|slot| slot.to_string()).collect();
            node.run::<()>(&format!("CLUSTER ADDSLOTS {}", slots.join(" "))).await;
            // Of one epoch, they would first have to agree on who is who.
            node.run::<()>(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1)).await;
        }
        if replicas {
            for _ in 0..3 {
                cluster.replicas.push(start().await);
            }
        }
        let first = &cluster.masters[0];
        for node in cluster.nodes().skip(1) {
            first.run::<()>(&format!("CLUSTER MEET 127.0.0.1 {}", node.address.port())).await;
        }
        let count = cluster.nodes().count();
        for node in cluster.nodes() {
            eventually("the cluster is whole", async || {
                let info: String = node.run("CLUSTER INFO").await;
                let whole = info.contains("cluster_state:ok") && info.contains(&format!("known_nodes:{count}"));
                if whole { Ok(()) } else { Err(info) }
            })
            .await;
        }
        for (master, replica) in cluster.masters.iter().zip(&cluster.replicas) {
            let id: String = master.run("CLUSTER MYID").await;
            replica.run::<()>(&format!("CLUSTER REPLICATE {id}")).await;
        }
        for replica in &cluster.replicas {
            eventually("the replica follows", async || {
                let info: String = replica.run("INFO replication").await;
                if info.contains("master_link_status:up") { Ok(()) } else { Err(info) }
            })
            .await;
        }
        cluster
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Redis> {
        self.masters.iter().chain(&self.replicas)
    }

    /// With all masters to begin with.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.masters.iter().map(|node| node.address.to_string()).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// The number of the master that has this slot at first.
    pub fn master_of(slot: u16) -> usize {
        (1..3).filter(|index| slot >= Self::RANGES[*index]).count()
    }
}
