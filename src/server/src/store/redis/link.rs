//! A connection to one Redis server, made again whenever it is of no more use.

use super::call::{MARKER, NEVER_LOST};
use super::url::Sentinels;
use crate::store::fault::{Fault, FaultKind};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

/// How long one attempt to connect may take: nobody's request waits longer than its own deadline for it.
const ATTEMPT: Duration = Duration::from_secs(1);

/// Between attempts; doubled with each one that fails or does not last.
const MIN_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// How long a process that has just started leaves it to others to say that state was lost: for as long as they may need
/// to be connected again.
const TO_OTHERS: Duration = Duration::from_millis(1_500);

/// The connection that is kept by a task of its own.
pub struct Link {
    state: watch::Receiver<State>,
    broken: watch::Sender<u64>,
}

/// A connection, and which one it is.
#[derive(Clone)]
pub struct Numbered {
    number: u64,
    pub connection: MultiplexedConnection,
}

#[derive(Clone)]
enum State {
    /// Being made; nothing has failed yet.
    Connecting,
    Connected(Numbered),
    /// The last attempt failed, and why. It is tried again.
    Down(Fault),
}

impl Link {
    /// Begins to connect. `response` bounds every call. `address` is for the log.
    pub fn start(server: Server, response: Duration, address: String) -> Self {
        let (state, watched) = watch::channel(State::Connecting);
        let (broken, breaks) = watch::channel(0);
        let keeper = Keeper { server, response, address, state, broken: broken.clone(), breaks, is_marked: false };
        tokio::spawn(keeper.keep());
        Self { state: watched, broken }
    }

    /// The connection there is, or the one that is being made; no wait for one that cannot be made at present.
    pub async fn connection(&self) -> Result<Numbered, Fault> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| !matches!(state, State::Connecting)).await;
        match settled.as_deref() {
            Ok(State::Connected(connection)) => Ok(connection.clone()),
            Ok(State::Down(fault)) => Err(fault.clone()),
            Ok(State::Connecting) | Err(_) => Err(Fault::new(FaultKind::Unreachable, "not connected")),
        }
    }

    /// That connection is of no more use.
    pub fn give_up(&self, connection: &Numbered) {
        give_up(&self.broken, connection.number);
    }

    /// Whatever connection there is, is of no more use.
    pub fn give_up_any(&self) {
        if let State::Connected(connection) = &*self.state.borrow() {
            give_up(&self.broken, connection.number);
        }
    }
}

fn give_up(broken: &watch::Sender<u64>, number: u64) {
    broken.send_if_modified(|last| {
        let is_news = number > *last;
        *last = number.max(*last);
        is_news
    });
}

/// Where a link leads.
pub enum Server {
    Fixed(Client),
    /// The one that is the master now.
    Master(Sentinels),
}

impl Server {
    async fn client(&mut self) -> Result<Client, Fault> {
        match self {
            Self::Fixed(client) => Ok(client.clone()),
            Self::Master(sentinels) => Ok(sentinels.master().await?),
        }
    }
}

struct Keeper {
    server: Server,
    response: Duration,
    address: String,
    state: watch::Sender<State>,
    broken: watch::Sender<u64>,
    breaks: watch::Receiver<u64>,
    /// Whether this process has seen to it that the marker is there.
    is_marked: bool,
}

impl Keeper {
    /// For ever.
    async fn keep(mut self) {
        let (mut pause, mut told) = (MIN_PAUSE, false);
        for number in 1.. {
            let attempt = match timeout(ATTEMPT, self.connect(number)).await {
                Ok(attempt) => attempt,
                Err(_) => Err(Fault::new(FaultKind::Timeout, format!("no answer within {ATTEMPT:?}"))),
            };
            match attempt {
                Ok(mut connection) => {
                    let _ = self.mark(&mut connection).await;
                    if told {
                        info!(address = self.address, "the store is connected again");
                    }
                    told = false;
                    let since = Instant::now();
                    self.state.send_replace(State::Connected(Numbered { number, connection }));
                    let _ = self.breaks.wait_for(|broken| *broken >= number).await;
                    self.state.send_replace(State::Connecting);
                    if since.elapsed() > MAX_PAUSE {
                        pause = MIN_PAUSE;
                        continue;
                    }
                }
                Err(fault) => {
                    if !told {
                        let (error, kind, address) = (&fault, fault.kind.name(), &self.address);
                        warn!(%error, kind, address, "the store cannot be reached; it is tried again until it can");
                    }
                    told = true;
                    self.state.send_replace(State::Down(fault));
                }
            }
            sleep(pause).await;
            pause = MAX_PAUSE.min(pause * 2);
        }
    }

    /// A connection that has answered once: a server that is still loading, or wants a password, is none.
    async fn connect(&mut self, number: u64) -> Result<MultiplexedConnection, Fault> {
        let client = self.server.client().await?;
        let broken = self.broken.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ATTEMPT))
            .set_response_timeout(Some(self.response))
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    give_up(&broken, number);
                }
                Ok::<(), redis::aio::SendError>(())
            });
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        redis::cmd("PING").query_async::<()>(&mut connection).await?;
        Ok(connection)
    }

    /// Sees to it that the marker is there. A server that cannot do this now cannot decide either.
    async fn mark(&mut self, connection: &mut MultiplexedConnection) -> redis::RedisResult<()> {
        let mut mark = redis::cmd("SET");
        if self.is_marked {
            // It was there: where it is gone, state has been lost.
            let (secs, micros): (u64, u64) = redis::cmd("TIME").query_async(connection).await?;
            mark.arg(MARKER).arg(format!("m:{secs}{micros:06}")).arg("NX");
            return mark.query_async(connection).await;
        }
        let end = Instant::now() + TO_OTHERS;
        while redis::cmd("GET").arg(MARKER).query_async::<redis::Value>(connection).await? == redis::Value::Nil {
            if Instant::now() >= end {
                // Nobody knows of a loss: the server is a new one.
                mark.arg(MARKER).arg(NEVER_LOST).arg("NX");
                mark.query_async::<()>(connection).await?;
                break;
            }
            sleep(TO_OTHERS / 50).await;
        }
        self.is_marked = true;
        Ok(())
    }
}
