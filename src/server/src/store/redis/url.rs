//! Where Redis is, and as whom to go there.

use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisResult,
    TlsCertificates, TlsMode,
};

/// How a store in Redis is written.
pub const FORMS: &str = "redis://[user:password@]host[:port][/db], \
                         redis+sentinel://[user:password@]host[:port],host[:port]…/service[/db] or \
                         redis+cluster://[user:password@]host[:port],host[:port]…, \
                         each also with rediss for TLS";

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// A URL that has been read. It may hold a password, so it is never shown.
#[derive(Clone)]
pub struct RedisUrl {
    topology: Topology,
    /// The servers to begin with, each with the user, the password and the database.
    nodes: Vec<ConnectionInfo>,
}

/// How the Redis servers belong together.
#[derive(Clone)]
enum Topology {
    Server,
    /// Sentinels know which server is the master of this service.
    Sentinel(String),
    Cluster,
}

/// Who to be and whom to trust, from outside the URL.
#[derive(Clone, Default)]
pub struct Access {
    pub redis: Login,
    pub sentinel: Login,
    /// For a `rediss` URL: the authorities to trust instead of the system's, and a certificate of one's own.
    pub certificates: Option<TlsCertificates>,
}

impl Access {
    pub fn is_empty(&self) -> bool {
        let logins = [&self.redis, &self.sentinel];
        self.certificates.is_none() && logins.iter().all(|login| login.user.is_none() && login.password.is_none())
    }
}

/// A user (of an ACL) and a password.
#[derive(Clone, Default)]
pub struct Login {
    pub user: Option<String>,
    pub password: Option<String>,
}

/// Where the connections go.
pub enum Target {
    Server(Client),
    Sentinel(Sentinels),
    /// The servers to begin with, and what TLS needs.
    Cluster(Vec<ConnectionInfo>, Option<TlsCertificates>),
}

impl RedisUrl {
    /// An error never repeats the text, which may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| format!("not a Redis URL: write {FORMS}"))?;
        let (scheme, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        if !matches!(scheme, "redis" | "rediss") || !matches!(kind, "" | "sentinel" | "cluster") {
            return Err(format!("not a Redis URL: write {FORMS}"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').map_or(("", authority), |(login, hosts)| (login, hosts));
        let hosts: Vec<&str> = hosts.split(',').collect();
        let (topology, db) = match kind {
            "sentinel" => {
                let (service, db) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err("the name of the service that the sentinels watch is missing: write \
                                redis+sentinel://host[:port],…/service, as `sentinel monitor` has it"
                        .into());
                }
                (Topology::Sentinel(service.to_owned()), db)
            }
            "cluster" if !path.is_empty() => {
                return Err("a cluster has no databases: end the URL after the hosts".into());
            }
            "cluster" => (Topology::Cluster, ""),
            _ if hosts.len() > 1 => {
                return Err("several servers are a cluster (redis+cluster://) or sentinels (redis+sentinel://)".into());
            }
            _ => (Topology::Server, path),
        };
        let port = if kind == "sentinel" { SENTINEL_PORT } else { REDIS_PORT };
        let nodes: Option<Vec<ConnectionInfo>> = hosts
            .into_iter()
            .map(|host| {
                let port = if has_port(host) { String::new() } else { format!(":{port}") };
                let login = if login.is_empty() { String::new() } else { format!("{login}@") };
                let info = format!("{scheme}://{login}{host}{port}/{db}").into_connection_info().ok()?;
                let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
                (!host.is_empty()).then(|| info.set_redis_settings(settings))
            })
            .collect();
        let nodes = nodes.ok_or_else(|| format!("not a Redis URL: write {FORMS}"))?;
        Ok(Self { topology, nodes })
    }

    /// What to call it in a log: no user, no password.
    pub fn describe(&self) -> String {
        let address = |node: &ConnectionInfo| match node.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } if host.contains(':') => {
                format!("[{host}]:{port}")
            }
            address => address.to_string(),
        };
        let nodes: Vec<String> = self.nodes.iter().map(address).collect();
        let nodes = nodes.join(",");
        match &self.topology {
            Topology::Server => format!("redis {nodes}"),
            Topology::Sentinel(service) => format!("redis {service} by sentinels {nodes}"),
            Topology::Cluster => format!("redis cluster {nodes}"),
        }
    }

    /// With what the URL does not say.
    pub fn target(&self, access: &Access) -> Result<Target, String> {
        let tls = self.nodes.iter().any(|node| matches!(node.addr(), ConnectionAddr::TcpTls { .. }));
        if access.certificates.is_some() && !tls {
            return Err("certificates are for TLS: the store's URL must begin with rediss".into());
        }
        let is_sentinel = matches!(self.topology, Topology::Sentinel(_));
        if !is_sentinel && (access.sentinel.user.is_some() || access.sentinel.password.is_some()) {
            return Err("a login for sentinels is given, but the store is not redis+sentinel://".into());
        }
        let nodes: Result<Vec<ConnectionInfo>, String> =
            self.nodes.iter().map(|node| access.redis.fill(node)).collect();
        let nodes = nodes?;
        let certificates = access.certificates.clone();
        match &self.topology {
            Topology::Cluster => Ok(Target::Cluster(nodes, certificates)),
            Topology::Sentinel(service) => {
                let service = service.clone();
                let login = access.sentinel.clone();
                let sentinels = Sentinels { service, nodes, login, certificates, next: 0 };
                // What is wrong with the certificates is to be seen at the start.
                sentinels.client(0).map_err(|error| error.to_string())?;
                Ok(Target::Sentinel(sentinels))
            }
            Topology::Server => {
                let node = nodes.into_iter().next().ok_or("no server")?;
                let client = match certificates {
                    Some(certificates) => Client::build_with_tls(node, certificates),
                    None => Client::open(node),
                };
                client.map(Target::Server).map_err(|error| error.to_string())
            }
        }
    }
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

impl Login {
    fn fill(&self, node: &ConnectionInfo) -> Result<ConnectionInfo, String> {
        let mut settings = node.redis_settings().clone();
        if let Some(user) = &self.user {
            if settings.username().is_some_and(|name| name != user) {
                return Err("the store's URL names another user than --redis-user: leave one of them out".into());
            }
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            if settings.password().is_some() {
                return Err(
                    "the store's URL has a password, and another is given beside it: leave one of them out".into()
                );
            }
            settings = settings.set_password(password);
        }
        if settings.username().is_some() && settings.password().is_none() {
            return Err("there is a user for Redis but no password".into());
        }
        Ok(node.clone().set_redis_settings(settings))
    }
}

/// Servers that know who the master is.
pub struct Sentinels {
    service: String,
    /// Where the sentinels are, and as whom to go to the master.
    nodes: Vec<ConnectionInfo>,
    login: Login,
    certificates: Option<TlsCertificates>,
    /// Which one to ask first: another each time, since one that is frozen would hold up every attempt.
    next: usize,
}

impl Sentinels {
    /// Asks for the master.
    pub async fn master(&mut self) -> RedisResult<Client> {
        let mut client = self.client(self.next)?;
        self.next += 1;
        client.async_get_client().await
    }

    fn client(&self, first: usize) -> RedisResult<SentinelClient> {
        let mut addresses: Vec<_> = self.nodes.iter().map(|node| node.addr().clone()).collect();
        let count = addresses.len().max(1);
        addresses.rotate_left(first % count);
        let tls = addresses.iter().any(|address| matches!(address, ConnectionAddr::TcpTls { .. }));
        let settings = self.nodes.first().map(ConnectionInfo::redis_settings).cloned();
        let settings = settings.unwrap_or_else(RedisConnectionInfo::default);
        let mut builder = SentinelClientBuilder::new(addresses, &self.service, SentinelServerType::Master)?
            .set_client_to_redis_db(settings.db())
            .set_client_to_redis_protocol(ProtocolVersion::RESP3);
        if tls {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
            if let Some(certificates) = &self.certificates {
                builder = builder
                    .set_client_to_redis_certificates(certificates.clone())
                    .set_client_to_sentinel_certificates(certificates.clone());
            }
        }
        if let Some(user) = settings.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = settings.password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if let Some(user) = &self.login.user {
            builder = builder.set_client_to_sentinel_username(user);
        }
        if let Some(password) = &self.login.password {
            builder = builder.set_client_to_sentinel_password(password);
        }
        builder.build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        RedisUrl::parse(text).err().unwrap_or_else(|| panic!("{text} is taken"))
    }

    #[test]
    fn a_url_says_where_redis_is_and_how_its_servers_belong_together() {
        for (text, expected) in [
            ("redis://r", "redis r:6379"),
            ("redis://u:p@r:1/3", "redis r:1"),
            ("rediss://r", "redis r:6379"),
            ("redis://[::1]:7", "redis [::1]:7"),
            ("redis+sentinel://a,b:2/main", "redis main by sentinels a:26379,b:2"),
            ("rediss+sentinel://u:p@a/main/2", "redis main by sentinels a:26379"),
            ("redis+cluster://u:p@a:1,b", "redis cluster a:1,b:6379"),
        ] {
            let url = RedisUrl::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(url.describe(), expected, "{text}");
            assert!(url.target(&Access::default()).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for (text, says) in [
            ("redis:/r", "not a Redis URL"),
            ("http://u:s3cret@r", "not a Redis URL"),
            ("redis+sentinels://u:s3cret@r/m", "not a Redis URL"),
            ("redis+sentinel://u:s3cret@r", "name of the service"),
            ("redis+cluster://u:s3cret@r/1", "no databases"),
            ("redis://u:s3cret@a,b", "several servers"),
            ("redis://u:s3cret@", "not a Redis URL"),
            ("redis+cluster://u:s3cret@a,,b", "not a Redis URL"),
            ("redis://u:s3cret@r:port", "not a Redis URL"),
            ("redis://u:s3cret@r/db", "not a Redis URL"),
        ] {
            let error = error(text);
            assert!(error.contains(says) && !error.contains("s3cret"), "{text}: {error}");
        }
    }

    #[test]
    fn a_login_beside_the_url_adds_to_it_and_never_contradicts_it() {
        let login = |user: Option<&str>, password: Option<&str>| Access {
            redis: Login { user: user.map(str::to_owned), password: password.map(str::to_owned) },
            ..Access::default()
        };
        let target = |text: &str, access: &Access| RedisUrl::parse(text).unwrap().target(access).map(drop);
        assert_eq!(target("redis://r", &login(Some("u"), Some("p"))), Ok(()));
        assert_eq!(target("redis://r", &login(None, Some("p"))), Ok(()));
        assert_eq!(target("redis://u@r", &login(None, Some("p"))), Ok(()));
        assert_eq!(target("redis+cluster://a,b", &login(Some("u"), Some("p"))), Ok(()));
        assert!(target("redis://u:p@r", &login(None, Some("q"))).unwrap_err().contains("leave one of them out"));
        assert!(target("redis://u:p@r", &login(Some("v"), None)).unwrap_err().contains("leave one of them out"));
        assert!(target("redis://r", &login(Some("u"), None)).unwrap_err().contains("no password"));
        let sentinel = Access { sentinel: login(None, Some("p")).redis, ..Access::default() };
        assert!(target("redis://r", &sentinel).unwrap_err().contains("redis+sentinel"));
        assert_eq!(target("redis+sentinel://r/m", &sentinel), Ok(()));
        let certificates = TlsCertificates { client_tls: None, root_cert: None };
        let tls = Access { certificates: Some(certificates), ..Access::default() };
        assert!(target("redis://r", &tls).unwrap_err().contains("rediss"));
    }
}
