use crate::{Client, HASH_KEY, Process, eventually, tool};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A real Envoy with the filter, in front of an upstream.
pub struct Envoy {
    pub process: Process,
    pub address: SocketAddr,
    admin: SocketAddr,
    listeners: PathBuf,
    builder: EnvoyBuilder,
    _folder: TempDir,
}

/// What an Envoy is to be like.
#[derive(Clone)]
pub struct EnvoyBuilder {
    /// `None` leaves the filter out.
    policy: Option<Value>,
    /// `None` is ours.
    module: Option<PathBuf>,
    /// `None` answers by itself.
    upstream: Option<SocketAddr>,
    upstream_http2: bool,
    endpoint: Option<SocketAddr>,
    cluster: &'static str,
    workers: u32,
    drain_seconds: u32,
    as_struct: bool,
    stop_iteration: bool,
    /// Our filter stands there two times.
    twice: bool,
    /// HTTP filters in front of ours.
    before: Vec<Value>,
    /// Fields of the bootstrap, the connection manager, the virtual host and the filter chain that are to be otherwise.
    rest: Value,
    manager: Value,
    virtual_host: Value,
    chain: Value,
    capabilities: Vec<String>,
}

impl EnvoyBuilder {
    /// Two workers, no endpoint, the policy as JSON text.
    pub fn new(policy: Value, upstream: SocketAddr) -> Self {
        Self { upstream: Some(upstream), ..Self::benchmark(Some(policy)) }
    }

    /// With a fixed answer in place of an upstream, and perhaps without the filter.
    pub fn benchmark(policy: Option<Value>) -> Self {
        Self {
            policy,
            module: None,
            upstream: None,
            upstream_http2: false,
            endpoint: None,
            cluster: "tollgate",
            workers: 2,
            drain_seconds: 600,
            as_struct: false,
            stop_iteration: false,
            twice: false,
            before: Vec::new(),
            rest: json!({}),
            manager: json!({}),
            virtual_host: json!({}),
            chain: json!({}),
            capabilities: Vec::new(),
        }
    }

    /// Where the cluster `tollgate` leads.
    pub fn endpoint(mut self, address: SocketAddr) -> Self {
        self.endpoint = Some(address);
        self
    }

    /// Another name for the cluster of the endpoint, which then speaks HTTP/2.
    pub fn http2_cluster(mut self, name: &'static str) -> Self {
        self.cluster = name;
        self
    }

    /// Another module in the place of ours.
    pub fn module(mut self, module: PathBuf) -> Self {
        self.module = Some(module);
        self
    }

    pub fn workers(mut self, workers: u32) -> Self {
        self.workers = workers;
        self
    }

    /// The policy as a protobuf `Struct`, as it is when it was written as plain YAML.
    pub fn as_struct(mut self) -> Self {
        self.as_struct = true;
        self
    }

    /// `allow_on_headers_stop_iteration`: a paused request's body reaches the filter all the same.
    pub fn stop_iteration(mut self) -> Self {
        self.stop_iteration = true;
        self
    }

    /// The filter two times, one behind the other.
    pub fn twice(mut self) -> Self {
        self.twice = true;
        self
    }

    /// The upstream speaks HTTP/2, as gRPC servers do.
    pub fn http2_upstream(mut self) -> Self {
        self.upstream_http2 = true;
        self
    }

    /// In front of an upstream after all.
    pub fn to(mut self, upstream: SocketAddr) -> Self {
        self.upstream = Some(upstream);
        self
    }

    /// How long an old listener lives on; ten minutes, if nothing is said.
    pub fn drain_seconds(mut self, seconds: u32) -> Self {
        self.drain_seconds = seconds;
        self
    }

    /// Another HTTP filter in front of ours, behind those that were added before.
    pub fn filter_before(mut self, name: &str, config: Value) -> Self {
        self.before.push(json!({"name": name, "typed_config": config}));
        self
    }

    /// Fields of the bootstrap that are to be there too.
    pub fn bootstrap_fields(mut self, fields: Value) -> Self {
        self.rest = fields;
        self
    }

    /// Fields of the connection manager that are to be otherwise.
    pub fn manager(mut self, fields: Value) -> Self {
        self.manager = fields;
        self
    }

    /// Fields of the virtual host that are to be otherwise, its routes too.
    pub fn virtual_host(mut self, fields: Value) -> Self {
        self.virtual_host = fields;
        self
    }

    /// TLS, with this certificate and key, for clients that show a certificate of this authority.
    pub fn mutual_tls(mut self, certificate: &str, key: &str, authority: &str) -> Self {
        let context = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "require_client_certificate": true,
            "common_tls_context": {
                "tls_certificates": [{"certificate_chain": {"filename": certificate}, "private_key": {"filename": key}}],
                "validation_context": {"trusted_ca": {"filename": authority}},
            },
        });
        self.chain = json!({"transport_socket": {"name": "tls", "typed_config": context}});
        self
    }

    /// The only host calls and callbacks of the filter that Envoy allows; all, where there are none.
    pub fn capabilities(mut self, names: &[&str]) -> Self {
        self.capabilities = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    pub async fn start(self) -> Envoy {
        self.try_start(true).await.unwrap_or_else(|log| panic!("Envoy does not start:\n{log}"))
    }

    /// For a policy that keeps Envoy from starting: gives the log.
    pub async fn start_refusing(self) -> String {
        match self.try_start(false).await {
            Ok(_) => panic!("Envoy has started"),
            Err(log) => log,
        }
    }

    /// The listener comes from a file that can be pushed anew, or is a fixed part of the bootstrap. An error is the
    /// log of an Envoy that ended instead of starting.
    async fn try_start(self, dynamic: bool) -> Result<Envoy, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name);
        let listener = self.listener();
        let mut bootstrap = self.bootstrap();
        if dynamic {
            write(&path("lds.json"), &json!({"resources": [listener]}));
            let source = json!({"resource_api_version": "V3", "path_config_source": {"path": path("lds.json")}});
            bootstrap["dynamic_resources"] = json!({"lds_config": source});
        } else {
            let mut listener = listener;
            listener.as_object_mut().and_then(|fields| fields.remove("@type"));
            bootstrap["static_resources"]["listeners"] = json!([listener]);
        }
        write(&path("envoy.json"), &bootstrap);
        let mut command = Command::new(tool("ENVOY_BIN"));
        command.arg("-c").arg(path("envoy.json")).arg("--admin-address-path").arg(path("admin"));
        command.args(["--concurrency", &self.workers.to_string(), "--disable-hot-restart", "-l", "warning"]);
        command.args(["--drain-time-s", &self.drain_seconds.to_string()]);
        command.args(["--component-log-level", "wasm:info"]).env("TOLLGATE_HASH_KEY", HASH_KEY);
        let mut process = Process::start(&mut command, &path("envoy.log"));
        let started = eventually("Envoy listens", async || {
            if !process.is_running() {
                return Ok(None);
            }
            let admin: SocketAddr = std::fs::read_to_string(path("admin"))
                .map_err(|error| error.to_string())?
                .trim()
                .parse()
                .map_err(|_| "no admin address yet".to_string())?;
            let http = reqwest::Client::builder().no_proxy().build().expect("a client");
            let get = async |path: &str| {
                let response = http.get(format!("http://{admin}{path}")).send().await.map_err(|e| e.to_string())?;
                let ready = response.status().is_success();
                if ready { response.text().await.map_err(|e| e.to_string()) } else { Err("not ready".into()) }
            };
            get("/ready").await?;
            let listeners: Value = serde_json::from_str(&get("/listeners?format=json").await?).expect("JSON");
            let socket = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
            let port = socket["port_value"].as_u64().ok_or("no listener yet")?;
            let address: SocketAddr = format!("127.0.0.1:{port}").parse().expect("an address");
            Ok::<_, String>(Some((admin, address)))
        })
        .await;
        match started {
            Some((admin, address)) => {
                let listeners = path("lds.json");
                Ok(Envoy { process, address, admin, listeners, builder: self, _folder: folder })
            }
            None => Err(process.log()),
        }
    }

    fn bootstrap(&self) -> Value {
        let clusters = [
            ("upstream", self.upstream, self.upstream_http2),
            (self.cluster, self.endpoint, self.cluster != "tollgate"),
        ];
        let clusters = clusters.into_iter().filter_map(|(name, address, http2)| Some(cluster(name, address?, http2)));
        let mut bootstrap = json!({
            "node": {"id": "test", "cluster": "test"},
            "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
            "static_resources": {"clusters": clusters.collect::<Vec<Value>>()},
        });
        set(&mut bootstrap, &self.rest);
        bootstrap
    }

    fn filter(&self, policy: &Value) -> Value {
        let configuration = if self.as_struct {
            json!({"@type": "type.googleapis.com/google.protobuf.Struct", "value": policy})
        } else {
            json!({"@type": "type.googleapis.com/google.protobuf.StringValue", "value": policy.to_string()})
        };
        let mut filter = json!({"name": "tollgate", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": "tollgate", "root_id": "tollgate", "failure_policy": "FAIL_RELOAD",
                "allow_on_headers_stop_iteration": self.stop_iteration,
                "vm_config": {
                    "vm_id": "tollgate", "runtime": "envoy.wasm.runtime.v8",
                    "code": {"local": {"filename": self.module.clone().unwrap_or_else(|| tool("TOLLGATE_WASM"))}},
                    "environment_variables": {"host_env_keys": ["TOLLGATE_HASH_KEY"]},
                },
                "configuration": configuration,
            },
        }});
        if !self.capabilities.is_empty() {
            let capabilities: Map<String, Value> =
                self.capabilities.iter().map(|name| (name.clone(), json!({}))).collect();
            filter["typed_config"]["config"]["capability_restriction_config"] =
                json!({"allowed_capabilities": capabilities});
        }
        filter
    }

    fn listener(&self) -> Value {
        let mut filters = self.before.clone();
        if let Some(policy) = &self.policy {
            filters.extend(std::iter::repeat_n(self.filter(policy), if self.twice { 2 } else { 1 }));
        }
        filters.push(json!({"name": "router", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}));
        let mut route = json!({"match": {"prefix": "/"}});
        match self.upstream {
            Some(_) => route["route"] = json!({"cluster": "upstream"}),
            None => route["direct_response"] = json!({"status": 200, "body": {"inline_string": "benchmarked"}}),
        }
        let mut virtual_host = json!({"name": "all", "domains": ["*"], "routes": [route]});
        set(&mut virtual_host, &self.virtual_host);
        let mut manager = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "proxy",
            "use_remote_address": true,
            "max_request_headers_kb": 200,
            "route_config": {"virtual_hosts": [virtual_host]},
            "http_filters": filters,
        });
        set(&mut manager, &self.manager);
        let mut chain = json!({"filters": [{"name": "http", "typed_config": manager}]});
        set(&mut chain, &self.chain);
        json!({
            "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
            "name": "proxy",
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
            "filter_chains": [chain],
        })
    }
}

impl Envoy {
    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// A page of Envoy's admin interface.
    pub async fn admin(&self, path: &str) -> String {
        Client::new(self.admin).get(path).await.body
    }

    /// One of Envoy's counters or gauges; 0 while it is not there.
    pub async fn stat(&self, name: &str) -> u64 {
        let text = Client::new(self.admin).get(&format!("/stats?filter=^{name}$")).await.body;
        text.trim().rsplit(": ").next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// One of the filter's counters.
    pub async fn count(&self, name: &str) -> u64 {
        self.stat(&format!("wasmcustom.tollgate.{name}")).await
    }

    /// How many requests had this outcome, of whatever route class.
    pub async fn outcome(&self, name: &str) -> u64 {
        let filter = format!("/stats?filter=^wasmcustom.tollgate.requests\\..*\\.{name}$");
        let text = Client::new(self.admin).get(&filter).await.body;
        text.lines().filter_map(|line| line.rsplit(": ").next()?.parse::<u64>().ok()).sum()
    }

    /// Pushes another policy, as a control plane would; returns once Envoy has taken or refused it.
    pub async fn push(&mut self, policy: Value) -> bool {
        self.builder.policy = Some(policy);
        let counters = async || {
            let stat = async |name: &str| self.stat(&format!("listener_manager.lds.update_{name}")).await;
            (stat("success").await, stat("rejected").await)
        };
        let before = counters().await;
        // Envoy watches for a file that is moved into place.
        let new = self.listeners.with_extension("new");
        write(&new, &json!({"resources": [self.builder.listener()]}));
        std::fs::rename(&new, &self.listeners).expect("a rename");
        eventually("Envoy has read the listeners", async || {
            let now = counters().await;
            if now == before { Err("not yet") } else { Ok(now.0 > before.0) }
        })
        .await
    }

    /// What no test may ever see: a trap, a panic, or a dead Envoy.
    pub fn assert_sound(&mut self) {
        assert!(self.process.is_running(), "Envoy has ended");
        let log = self.process.log();
        for word in ["panicked", "unreachable", "Function: proxy_on_", "BorrowMutError", "RuntimeError"] {
            assert!(!log.contains(word), "{word:?} is in Envoy's log");
        }
    }
}

fn cluster(name: &str, address: SocketAddr, http2: bool) -> Value {
    let options = json!({"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }});
    json!({
        "typed_extension_protocol_options": if http2 { options } else { json!({}) },
        "name": name, "type": "STATIC", "connect_timeout": "0.05s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {
            "socket_address": {"address": address.ip().to_string(), "port_value": address.port()}}}}]}]},
    })
}

/// Sets fields of a map.
fn set(map: &mut Value, fields: &Value) {
    for (name, value) in fields.as_object().into_iter().flatten() {
        map[name] = value.clone();
    }
}

fn write(path: &Path, value: &Value) {
    std::fs::write(path, serde_json::to_vec(value).expect("JSON")).expect("a file");
}
