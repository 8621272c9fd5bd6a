//! Budgets in Redis: one script call for each decision, so that a decision is atomic whoever else asks.

use super::breaker::{Breaker, Change};
use crate::throttle::Throttle;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult, Script,
    ServerErrorKind,
};
use std::time::Duration;
use tokio::time::timeout;
use tollgate_core::limit::Limit;
use tollgate_core::units::{Micros, RefillRate, Tokens};
use tollgate_core::wire::{Admitted, DecisionAnswer, DecisionRequest, Denial, Denied, Failure};
use tracing::{info, warn};

/// How long to look for the reason why there is no answer; nobody's request waits for it.
const DIAGNOSIS: Duration = Duration::from_secs(1);

const SCRIPT: &str = include_str!("limits.lua");

pub struct RedisStore {
    client: Client,
    connection: ConnectionManager,
    script: Script,
    timeout: Duration,
    address: String,
    failures: Throttle,
    breaker: Breaker,
}

impl RedisStore {
    /// Does not connect yet: a server that is away now may come later, and each call until then fails in time.
    pub fn open(info: &ConnectionInfo, timeout: Duration) -> Result<Self, String> {
        let address = info.addr().to_string();
        let refused = |error: RedisError| format!("{address}: {error}");
        let client = Client::open(info.clone()).map_err(refused)?;
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(timeout))
            .set_connection_timeout(Some(Duration::from_secs(1).max(timeout)))
            .set_max_delay(Duration::from_secs(1));
        let connection = ConnectionManager::new_lazy_with_config(client.clone(), config).map_err(refused)?;
        let store = Self {
            client,
            connection,
            script: Script::new(SCRIPT),
            timeout,
            address,
            failures: Throttle::default(),
            breaker: Breaker::default(),
        };
        // A wrong name, port or password is to be seen at the start, and not only when the first request fails.
        store.say_why();
        Ok(store)
    }

    pub fn describe(&self) -> String {
        format!("redis {}", self.address)
    }

    pub async fn ready(&self) -> Result<(), String> {
        let mut connection = self.connection.clone();
        match timeout(self.timeout, redis::cmd("PING").query_async::<()>(&mut connection)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            // The kept connection is made in the background and does not tell why it cannot be.
            Err(_) => match diagnose(&self.client).await {
                Ok(()) => Err(format!("no answer within {:?}, though a new connection is answered", self.timeout)),
                Err(error) => Err(error),
            },
        }
    }

    pub async fn admit(&self, decisions: &[DecisionRequest]) -> Vec<DecisionAnswer> {
        let Some(call) = self.breaker.enter() else {
            return vec![DecisionAnswer::Failed(Failure::StoreUnavailable); decisions.len()];
        };
        let answers = match timeout(self.timeout, self.call(decisions)).await {
            Ok(answers) => answers,
            Err(_) => {
                let failed = self.failed(Failure::StoreTimeout, &"no answer in time");
                vec![failed; decisions.len()]
            }
        };
        let silent = |answer: &DecisionAnswer| {
            matches!(answer, DecisionAnswer::Failed(Failure::StoreTimeout | Failure::StoreUnavailable))
        };
        match call.ended(!answers.iter().all(silent)) {
            Some(Change::Opened) => {
                warn!("the store does not answer: calls fail at once, but for one each second");
                self.say_why();
            }
            Some(Change::Closed) => info!("the store answers again"),
            None => {}
        }
        answers
    }

    /// Looks for the reason and logs it; nobody waits for that.
    fn say_why(&self) {
        let (client, address) = (self.client.clone(), self.address.clone());
        tokio::spawn(async move {
            if let Err(error) = diagnose(&client).await {
                warn!(%error, address, "the store does not answer; it is tried again until it does");
            }
        });
    }

    fn failed(&self, failure: Failure, error: &dyn std::fmt::Display) -> DecisionAnswer {
        if let Some(held_back) = self.failures.pass() {
            warn!(%error, ?failure, held_back, "the store failed");
        }
        DecisionAnswer::Failed(failure)
    }

    /// All decisions in one pipeline, by the script's hash. Where the server does not know the script (it was
    /// restarted, or its scripts were flushed) nothing was charged, and those are sent again with the script itself.
    async fn call(&self, decisions: &[DecisionRequest]) -> Vec<DecisionAnswer> {
        let all: Vec<usize> = (0..decisions.len()).collect();
        let mut replies = self.pipeline(decisions, &all, "EVALSHA", self.script.get_hash()).await;
        let unknown: Vec<usize> =
            all.into_iter().filter(|index| replies[*index].as_ref().is_err_and(is_unknown_script)).collect();
        if !unknown.is_empty() {
            let again = self.pipeline(decisions, &unknown, "EVAL", SCRIPT).await;
            for (index, reply) in unknown.into_iter().zip(again) {
                replies[index] = reply;
            }
        }
        replies.into_iter().zip(decisions).map(|(reply, decision)| self.answer(reply, decision)).collect()
    }

    /// What a script's reply means. Anything that is not a whole reply is a failure, never an admission.
    fn answer(&self, reply: RedisResult<Vec<i64>>, decision: &DecisionRequest) -> DecisionAnswer {
        let numbers = match reply {
            Ok(numbers) => numbers,
            Err(error) if error.is_timeout() => return self.failed(Failure::StoreTimeout, &error),
            Err(error) if error.is_io_error() || error.is_connection_dropped() => {
                return self.failed(Failure::StoreUnavailable, &error);
            }
            Err(error) => return self.failed(Failure::StoreError, &error),
        };
        let (charges, rest) = numbers.as_chunks::<3>();
        if charges.len() != decision.charges.len() || !rest.is_empty() {
            return self.failed(Failure::StoreError, &"a reply of another length");
        }
        let read: Option<Vec<Denied>> = charges.iter().map(|charge| read_charge(*charge)).collect();
        match read {
            None => self.failed(Failure::StoreError, &"a reply with numbers out of bounds"),
            Some(read) if read.iter().all(|charge| charge.denied.is_none()) => {
                DecisionAnswer::Admitted(read.iter().map(|charge| Admitted { remaining: charge.remaining }).collect())
            }
            Some(read) => DecisionAnswer::Denied(read),
        }
    }

    async fn pipeline(
        &self,
        decisions: &[DecisionRequest],
        which: &[usize],
        command: &str,
        script: &str,
    ) -> Vec<RedisResult<Vec<i64>>> {
        let mut pipeline = Pipeline::with_capacity(which.len());
        pipeline.ignore_errors();
        for decision in which.iter().map(|index| &decisions[*index]) {
            pipeline.cmd(command).arg(script).arg(decision.charges.len());
            for charge in &decision.charges {
                pipeline.arg(format!("tollgate:{{{}}}:{}:{}", charge.group, charge.policy, charge.key));
            }
            for charge in &decision.charges {
                let (algorithm, numbers) = arguments(&charge.limit);
                pipeline.arg(algorithm).arg(&numbers).arg(charge.cost.0.count());
            }
        }
        match pipeline.query_async(&mut self.connection.clone()).await {
            Ok(replies) => replies,
            Err(error) => which.iter().map(|_| Err(error.clone())).collect(),
        }
    }
}

/// Whether a new connection is answered; if not, whether the name, the port, the password or the database is wrong.
async fn diagnose(client: &Client) -> Result<(), String> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(DIAGNOSIS)).set_response_timeout(Some(DIAGNOSIS));
    let attempt = async {
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        redis::cmd("PING").query_async::<()>(&mut connection).await
    };
    match timeout(DIAGNOSIS, attempt).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {DIAGNOSIS:?}")),
    }
}

/// A limit as the script takes it: its algorithm's letter and three numbers.
fn arguments(limit: &Limit) -> (&'static str, [u64; 3]) {
    let rate = |capacity: Tokens, rate: RefillRate| [capacity.count(), rate.tokens(), rate.period()];
    let window = |capacity: Tokens, window: Micros| [capacity.count(), window.count(), 0];
    match limit {
        Limit::TokenBucket(limit) => ("b", rate(limit.capacity, limit.refill)),
        Limit::Gcra(limit) => ("g", rate(limit.burst, limit.rate)),
        Limit::FixedWindow(limit) => ("f", window(limit.capacity, limit.window)),
        Limit::SlidingWindow(limit) => ("s", window(limit.capacity, limit.window)),
        Limit::SlidingLog(limit) => ("l", window(limit.capacity, limit.window)),
    }
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

fn read_charge([verdict, remaining, wait]: [i64; 3]) -> Option<Denied> {
    let denied = match verdict {
        0 => None,
        1 => Some(Denial::WaitUs(wait.try_into().ok()?)),
        2 => Some(Denial::OverCapacity),
        _ => return None,
    };
    Some(Denied { remaining: remaining.try_into().ok()?, denied })
}
