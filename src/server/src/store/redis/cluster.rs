//! A Redis Cluster: which slot a budget is in, and the way to the node that has the slot now.
//!
//! The library is told never to send a command again, since a connection that drops may have delivered it. Only what
//! a node refused without running it is sent again, here.

use crate::store::fault::{Fault, FaultKind};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, ResponsePolicy, RoutingInfo, SingleNodeRoutingInfo};
use redis::{
    Cmd, ConnectionInfo, ErrorKind, FromRedisValue, Pipeline, ProtocolVersion, RedisError, RedisResult,
    ServerErrorKind, TlsCertificates, Value,
};
use std::time::Duration;
use tokio::time::sleep;
use tollgate_core::key::Digest;

/// How many slots there are.
pub const SLOTS: u16 = 16_384;

/// How often a call may be told to go elsewhere, within its deadline: MOVED, then ASK, then a script that is not there.
const ATTEMPTS: usize = 6;

/// Between two attempts where a slot is just moving: some of its keys are here and some there.
const MOVING: Duration = Duration::from_millis(1);

pub struct Cluster {
    client: ClusterClient,
    connection: ClusterConnection,
}

impl Cluster {
    /// Does not connect yet. `response` bounds every call to a node.
    pub fn open(
        nodes: Vec<ConnectionInfo>,
        certificates: Option<TlsCertificates>,
        response: Duration,
    ) -> RedisResult<Self> {
        let mut builder = ClusterClient::builder(nodes)
            .retries(0)
            .use_protocol(ProtocolVersion::RESP3)
            .connection_timeout(Duration::from_secs(1))
            .response_timeout(response);
        if let Some(certificates) = certificates {
            builder = builder.certs(certificates);
        }
        let client = builder.build()?;
        let connection = client.get_pending_async_connection_with_config(redis::cluster::ClusterConfig::new());
        Ok(Self { client, connection })
    }

    /// Runs the command that `command` makes, on the node that has its key. Given true, it must carry the script itself.
    pub async fn run<T: FromRedisValue>(&self, command: impl Fn(bool) -> Cmd) -> Result<T, Fault> {
        let (mut with_script, mut asked) = (false, None);
        let mut attempt = 1;
        loop {
            let error = match self.send(command(with_script), asked.take()).await {
                Ok(value) => return redis::from_redis_value(value).map_err(|error| RedisError::from(error).into()),
                Err(error) => error,
            };
            // Each of these was refused before it ran.
            match error.kind() {
                ErrorKind::Server(ServerErrorKind::NoScript) if !with_script => with_script = true,
                // The library reads the slots anew before it sends what comes next.
                ErrorKind::Server(ServerErrorKind::Moved) => {}
                ErrorKind::Server(ServerErrorKind::Ask) => asked = node(&error),
                ErrorKind::Server(ServerErrorKind::TryAgain) => sleep(MOVING).await,
                _ => return Err(error.into()),
            }
            if attempt == ATTEMPTS {
                return Err(lost(error));
            }
            attempt += 1;
        }
    }

    async fn send(&self, command: Cmd, asked: Option<(String, u16)>) -> RedisResult<Value> {
        let mut connection = self.connection.clone();
        let Some((host, port)) = asked else {
            return command.query_async(&mut connection).await;
        };
        // The node that a slot is moving to serves it only right after ASKING.
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("ASKING").add_command(command);
        let route = SingleNodeRoutingInfo::ByAddress { host, port };
        let values = connection.route_pipeline(pipeline, 0, 2, route).await?;
        match values.into_iter().nth(1) {
            Some(value) => value.extract_error(),
            None => Err((ErrorKind::UnexpectedReturnType, "one reply for two commands").into()),
        }
    }

    /// Whether any node answers.
    pub async fn ping(&self) -> RedisResult<()> {
        let nodes = (MultipleNodeRoutingInfo::AllMasters, Some(ResponsePolicy::OneSucceeded));
        self.connection.clone().route_command(redis::cmd("PING"), RoutingInfo::MultiNode(nodes)).await.map(drop)
    }

    /// Why new connections are not made, if they are not: the kept ones do not tell.
    pub async fn diagnose(&self) -> Result<(), Fault> {
        self.client.get_async_connection().await.map(drop).map_err(Fault::from)
    }
}

/// After all attempts.
fn lost(error: RedisError) -> Fault {
    match error.kind() {
        // All nodes name one that nobody can be led to: it is gone, and has no successor yet.
        ErrorKind::Server(ServerErrorKind::Moved) => Fault::new(FaultKind::Unreachable, error.to_string()),
        _ => error.into(),
    }
}

/// The node that a redirect names.
fn node(error: &RedisError) -> Option<(String, u16)> {
    let (address, _) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// The slot of the keys with this tag, as Redis Cluster computes it.
pub fn slot(group: Digest) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(group.to_string().as_bytes()) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_the_one_that_redis_computes() {
        // CLUSTER KEYSLOT tollgate:{…}:p:k, asked of Redis 7.
        for (group, expected) in [(1_u128, 11_313), (2, 7_250), (u128::MAX, 14_242)] {
            assert_eq!(slot(Digest::from_bytes(group.to_be_bytes())), expected, "{group:x}");
        }
    }
}
