//! envoy/envoy.yaml and envoy/endpoint.yaml, run as they are: only addresses, ports and paths are this machine's.

use crate::files::{path, replace, text, yaml};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;
use tollgate_tests::{Authority, Client, Endpoint, HASH_KEY, Process, Upstream, eventually, free_port, tool};

const TOKEN: &str = "a-token-for-the-manifests";

/// What stands at the other ends of what the files name.
pub struct Site {
    upstream: Upstream,
    endpoint: Endpoint,
    edge: Proxy,
    beside: Proxy,
    identity: Identity,
    ca: String,
    _authority: Authority,
}

/// One Envoy, with a file of ours.
struct Proxy {
    process: Process,
    admin: SocketAddr,
    port: u16,
    /// Where Prometheus asks.
    metrics: u16,
    _folder: TempDir,
}

impl Proxy {
    async fn start(document: &Value, port: u16, metrics: u16) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = folder.path().join("envoy.json");
        std::fs::write(&config, document.to_string()).expect("a file");
        let admin: SocketAddr = ([127, 0, 0, 1], admin_port(document)).into();
        let mut command = envoy(&config);
        command.args(["--concurrency", "2", "--disable-hot-restart", "-l", "warning"]);
        let process = Process::start(&mut command, &folder.path().join("envoy.log"));
        let mut proxy = Self { process, admin, port, metrics, _folder: folder };
        eventually("Envoy is ready", async || {
            assert!(proxy.process.is_running(), "Envoy ended:\n{}", proxy.process.log());
            let http = reqwest::Client::builder().no_proxy().build().expect("a client");
            let ready = http.get(format!("http://{admin}/ready")).send().await;
            ready.map_err(|error| error.to_string())?.error_for_status().map_err(|error| error.to_string())
        })
        .await;
        proxy
    }

    async fn stats(&self, filter: &str) -> String {
        Client::new(self.admin).get(&format!("/stats?filter={filter}")).await.body
    }
}

fn admin_port(document: &Value) -> u16 {
    let port = document["admin"]["address"]["socket_address"]["port_value"].as_u64().expect("an admin port");
    port.try_into().expect("a port")
}

fn envoy(config: &Path) -> Command {
    let mut command = Command::new(tool("ENVOY_BIN"));
    command.arg("-c").arg(config).env("TOLLGATE_HASH_KEY", HASH_KEY).env("TOLLGATE_TOKEN", TOKEN);
    command
}

fn validate(document: &Value) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("envoy.json");
    std::fs::write(&config, document.to_string()).expect("a file");
    envoy(&config).args(["--mode", "validate", "-l", "warning"]).output().expect("Envoy runs")
}

/// An issuer of tokens, and its key.
struct Identity {
    key: rcgen::KeyPair,
}

impl Identity {
    fn new() -> Self {
        Self { key: rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key") }
    }

    fn keys(&self) -> Value {
        let raw = self.key.public_key_raw();
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "k", "x": base64(raw)}]})
    }

    /// A token that says this of the caller, for an hour.
    fn token(&self, tenant: &str) -> String {
        use rcgen::SigningKey;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs();
        let head = json!({"alg": "EdDSA", "typ": "JWT", "kid": "k"});
        let body = json!({"iss": "https://identity.example.com/", "aud": "api", "sub": "a", "exp": now + 3600,
                          "tenant": tenant});
        let text = format!("{}.{}", base64(head.to_string().as_bytes()), base64(body.to_string().as_bytes()));
        let signature = self.key.sign(text.as_bytes()).expect("a signature");
        format!("{text}.{}", base64(&signature))
    }
}

/// Base64 for URLs, without padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            text.push(char::from(DIGITS[(word >> (18 - 6 * digit)) as usize & 63]));
        }
    }
    text
}

/// A listener with the issuer's keys, over TLS.
fn identity_provider(keys: &Value, port: u16, (certificate, key): &(String, String)) -> Value {
    let tls = json!({
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": {"tls_certificates": [
            {"certificate_chain": {"filename": certificate}, "private_key": {"filename": key}}]},
    });
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "identity",
        "route_config": {"virtual_hosts": [{"name": "keys", "domains": ["*"], "routes": [{
            "match": {"path": "/jwks.json"},
            "direct_response": {"status": 200, "body": {"inline_string": keys.to_string()}}}]}]},
        "http_filters": [{"name": "router", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
    });
    json!({
        "name": "identity",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{
            "transport_socket": {"name": "tls", "typed_config": tls},
            "filters": [{"name": "http", "typed_config": manager}]}],
    })
}

impl Site {
    /// `shown` is the name in the certificate that the edge shows to the endpoint.
    async fn start(shown: &str) -> Self {
        Self::start_with(shown, &[]).await
    }

    /// With more policies than are in the file.
    pub async fn start_with(shown: &str, policies: &[Value]) -> Self {
        let authority = Authority::new();
        let identity = Identity::new();
        let ca = authority.ca();
        let upstream = Upstream::start().await;
        let tokens = Path::new(&ca).with_file_name("tokens");
        std::fs::write(&tokens, TOKEN).expect("a file");
        let endpoint = Endpoint::start_with(&["--auth-token-file", &tokens.display().to_string()]).await;

        let [inner, beside_admin, keys] = [free_port(), free_port(), free_port()];
        let mut document = yaml(&text("endpoint.yaml"));
        replace(&mut document, 9901, beside_admin);
        replace(&mut document, 10443, inner);
        replace(&mut document, 10002, endpoint.address.port());
        replace(&mut document, "0.0.0.0", "127.0.0.1");
        let (certificate, key) = authority.issue("endpoint", &["tollgate.internal"]);
        replace(&mut document, "/etc/envoy/tls/tls.crt", certificate);
        replace(&mut document, "/etc/envoy/tls/tls.key", key);
        replace(&mut document, "/etc/envoy/tls/internal-ca.crt", ca.clone());
        let listener = identity_provider(&identity.keys(), keys, &authority.issue("idp", &["identity.example.com"]));
        document["static_resources"]["listeners"].as_array_mut().expect("listeners").push(listener);
        let beside = Proxy::start(&document, inner, 0).await;

        let mut document = edge(&authority, shown);
        let filters = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters";
        let config = format!("{filters}/1/typed_config/config/configuration/value/policies");
        let own = document.pointer_mut(&config).and_then(Value::as_array_mut).expect("the policies");
        own.extend(policies.iter().cloned());
        let [outer, edge_admin, metrics] = [free_port(), free_port(), free_port()];
        replace(&mut document, 9901, edge_admin);
        replace(&mut document, 8443, outer);
        replace(&mut document, 9902, metrics);
        replace(&mut document, "0.0.0.0", "127.0.0.1");
        for (cluster, port) in [("service", upstream.address.port()), ("tollgate", inner), ("identity-provider", keys)]
        {
            let clusters = document["static_resources"]["clusters"].as_array_mut().expect("clusters");
            let cluster = clusters.iter_mut().find(|entry| entry["name"] == cluster).expect("the cluster");
            let address = &mut cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"];
            assert!(address["socket_address"]["port_value"].is_number(), "an address");
            address["socket_address"] = json!({"address": "127.0.0.1", "port_value": port});
        }
        let edge = Proxy::start(&document, outer, metrics).await;
        Self { upstream, endpoint, edge, beside, identity, ca, _authority: authority }
    }

    /// What Prometheus gets from the proxy.
    pub async fn proxy_metrics(&self) -> String {
        let metrics = Client::new(([127, 0, 0, 1], self.edge.metrics).into());
        let page = metrics.get("/metrics").await;
        assert_eq!(page.status, 200);
        page.body
    }

    /// And from the endpoint.
    pub async fn endpoint_metrics(&self) -> String {
        let request = Client::new(self.endpoint.address).request(reqwest::Method::GET, "/metrics");
        let page = tollgate_tests::send(request.header("authorization", format!("Bearer {TOKEN}"))).await;
        assert_eq!(page.status, 200);
        page.body
    }

    /// What curl gets: the status, and all that came.
    fn get(&self, path: &str, headers: &[&str]) -> (u16, String) {
        let mut command = self.curl(path);
        // Over HTTP/2 a header that is refused ends the stream without a status.
        command.args(["-i", "--http1.1"]).args(headers.iter().flat_map(|header| ["-H", header]));
        let output = command.output().expect("curl is there");
        assert!(output.status.success(), "curl ends with {}", output.status);
        let text = String::from_utf8(output.stdout).expect("text");
        let status = text.split_whitespace().nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("no status: {text}")), text)
    }

    /// What comes back from many requests over one connection, by a path of curl's: the statuses, and all of it.
    fn many(&self, path: &str) -> (Vec<u16>, String) {
        let mut command = self.curl(path);
        command.args(["-i", "-H", &format!("Authorization: Bearer {}", self.identity.token("acme"))]);
        let output = command.output().expect("curl is there");
        let text = String::from_utf8(output.stdout).expect("text");
        // A body may end without a newline.
        let replies = text.split("HTTP/2 ").skip(1);
        (replies.map(|reply| reply[..3].parse().expect("a status")).collect(), text)
    }

    fn curl(&self, path: &str) -> Command {
        let mut command = Command::new("curl");
        command.args(["-s", "--path-as-is", "--max-time", "20", "--noproxy", "*", "--cacert", &self.ca]);
        command.args(["--resolve", &format!("api.example.com:{}:127.0.0.1", self.edge.port)]);
        command.arg(format!("https://api.example.com:{}{path}", self.edge.port));
        command
    }

    fn get_as(&self, tenant: &str, path: &str) -> (u16, String) {
        self.get(path, &[&format!("Authorization: Bearer {}", self.identity.token(tenant))])
    }
}

/// envoy/envoy.yaml with the paths of this machine.
fn edge(authority: &Authority, shown: &str) -> Value {
    let mut document = yaml(&text("envoy.yaml"));
    let (certificate, key) = authority.issue("edge", &["api.example.com"]);
    let (client, client_key) = authority.issue("client", &[shown]);
    let ca = authority.ca();
    replace(&mut document, "/etc/envoy/tls/tls.crt", certificate);
    replace(&mut document, "/etc/envoy/tls/tls.key", key);
    replace(&mut document, "/etc/envoy/tls/client.crt", client);
    replace(&mut document, "/etc/envoy/tls/client.key", client_key);
    replace(&mut document, "/etc/envoy/tls/internal-ca.crt", ca.clone());
    replace(&mut document, "/etc/ssl/certs/ca-certificates.crt", ca);
    replace(&mut document, "/etc/envoy/tollgate_filter.wasm", tool("TOLLGATE_WASM").display().to_string());
    document
}

#[test]
fn envoy_takes_the_files_and_says_nothing_of_them() {
    let authority = Authority::new();
    let edge = edge(&authority, "edge.internal");
    let output = validate(&edge);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    assert!(!log.contains("eprecated"), "{log}");

    let mut broken = edge.clone();
    broken["static_resources"]["clusters"][1]["outlier_detection"]["consecutive_5xxx"] = json!(5);
    assert!(!validate(&broken).status.success(), "a field that Envoy does not know is refused");

    let mut beside = yaml(&text("endpoint.yaml"));
    let (certificate, key) = authority.issue("endpoint", &["tollgate.internal"]);
    replace(&mut beside, "/etc/envoy/tls/tls.crt", certificate);
    replace(&mut beside, "/etc/envoy/tls/tls.key", key);
    replace(&mut beside, "/etc/envoy/tls/internal-ca.crt", authority.ca());
    let output = validate(&beside);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !log.contains("eprecated"), "{log}");
}

#[test]
fn check_has_nothing_to_say_of_any_file_with_a_policy() {
    for name in ["demo.yaml", "envoy.yaml", "docker/envoy.yaml"] {
        let mut command = Command::new(tool("TOLLGATE_BIN"));
        let output = command.args(["check", "--deny-warnings"]).arg(path(name)).output().expect("tollgate runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_edge_admits_and_rejects_by_what_it_has_verified() {
    let mut site = Site::start("edge.internal").await;
    // The endpoint is reached by mutual TLS and HTTP/2, with a token.
    eventually("an admitted request", async || {
        let (status, reply) = site.get_as("acme", "/v1/items");
        if status == 200 && reply.contains("\"per-tenant\";r=") { Ok(()) } else { Err(reply) }
    })
    .await;
    let admitted = site.upstream.requests();

    // Who shows no token, or one of another issuer, is nobody; and a header is no token.
    assert_eq!(site.get("/v1/items", &["x-tenant-id: acme"]).0, 401);
    let forged = Identity::new().token("acme");
    assert_eq!(site.get("/v1/items", &[&format!("Authorization: Bearer {forged}")]).0, 401);
    assert_eq!(site.get("/healthz", &[]).0, 200, "exempt");
    // What could be read in two ways is refused before it is limited.
    assert_eq!(site.get_as("acme", "/v1/reports%2f7").0, 400);
    let bearer = format!("Authorization: Bearer {}", site.identity.token("acme"));
    assert_eq!(site.get("/v1/items", &[&bearer, "x_tenant_id: a"]).0, 400, "headers with underscores");
    assert_eq!(site.upstream.requests(), admitted + 1, "only the health check has reached the service");

    // A report costs 5, and the guard holds 200 for each client.
    let (statuses, replies) = site.many("/v1/reports/[1-100]");
    let denied = statuses.iter().filter(|status| **status == 429).count();
    assert!(denied > 0 && statuses.len() == 100, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 100 - denied, "{statuses:?}");
    assert_eq!(replies.matches("retry-after: 1\r\n").count(), denied);
    assert_eq!(replies.matches("\"violated-policies\":[\"guard\"]").count(), denied);

    let metrics = Client::new(([127, 0, 0, 1], site.edge.metrics).into());
    let page = metrics.get("/metrics").await.body;
    for line in
        ["tollgate_policy{policy=\"per-tenant\",outcome=\"allowed\"}", "tollgate_version{version=\"2026-12-01.1\"} "]
    {
        assert!(page.contains(line), "{line} is not in the metrics");
    }
    assert_eq!(metrics.get("/stats").await.status, 404, "no other page of the admin interface");
    let http2 = site.edge.stats("^cluster.tollgate.upstream_cx_http2_total$").await;
    assert!(!http2.trim().ends_with(": 0"), "{http2}");
    for proxy in [&mut site.edge, &mut site.beside] {
        assert!(proxy.process.is_running());
        let log = proxy.process.log();
        assert!(!log.contains("panicked") && !log.contains("restricted"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_with_another_name_gets_no_decision() {
    let site = Site::start("somebody.internal").await;
    let (status, _) = site.get_as("acme", "/v1/items");
    assert_eq!(status, 200, "the emergency bucket of the policy");
    let failed = site.edge.stats("wasmcustom.tollgate.policy.per-tenant.failed_local$").await;
    assert_eq!(failed.trim(), "wasmcustom.tollgate.policy.per-tenant.failed_local: 1");
    eventually("the endpoint's side has refused the name", async || {
        let refused = site.beside.stats("ssl.fail_verify_san$").await;
        if refused.lines().any(|line| !line.ends_with(": 0")) { Ok(()) } else { Err(refused) }
    })
    .await;
}
