//! Budgets in Redis: one script call for each decision, so that a decision is atomic whoever else asks.
//!
//! In a cluster, budgets of several slots cannot be charged in one call. They are joined by asking all, and then
//! reserving in the order of the slots; see [`RedisStore::join`].

mod call;
mod cluster;
mod link;
mod url;

pub use self::url::{Access, FORMS, Login, RedisUrl};

use self::call::{Call, Mode};
use self::cluster::Cluster;
use self::link::{Link, Server};
use self::url::Target;
use super::breaker::{Breaker, Change};
use super::fault::{Fault, FaultKind, Faults};
use super::leases::LeaseCounts;
use super::remembered_as;
use crate::throttle::Throttle;
use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, RedisResult};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};
use tollgate_core::key::Digest;
use tollgate_core::wire::{DecisionAnswer, DecisionRequest, Denied};
use tracing::{info, warn};

/// How long to look for the reason why there is no answer; nobody's request waits for it.
const DIAGNOSIS: Duration = Duration::from_secs(1);

/// Groups of neighbouring slots, each with a breaker of its own: one dead node of a cluster stops no other's calls.
const SLOT_GROUPS: u16 = 64;

pub struct RedisStore {
    nodes: Nodes,
    /// One, or one for each group of slots.
    breakers: Vec<Breaker>,
    timeout: Duration,
    address: String,
    faults: Faults,
    leases: LeaseCounts,
    failures: Throttle,
    ids: call::Ids,
}

enum Nodes {
    /// One server has all keys.
    One(Link),
    Many(Arc<Cluster>),
}

impl RedisStore {
    /// Does not connect yet: a server that is away now may come later, and each call until then fails in time.
    pub fn open(
        url: &RedisUrl,
        access: &Access,
        timeout: Duration,
        (faults, leases): (Faults, LeaseCounts),
    ) -> Result<Self, String> {
        let address = url.describe();
        let target = url.target(access)?;
        let nodes = match target {
            Target::Cluster(nodes, certificates) => Cluster::open(nodes, certificates, timeout)
                .map(|cluster| Nodes::Many(Arc::new(cluster)))
                .map_err(|error| format!("{address}: {error}"))?,
            Target::Server(client) => Nodes::One(Link::start(Server::Fixed(client), timeout, address.clone())),
            Target::Sentinel(sentinels) => Nodes::One(Link::start(Server::Master(sentinels), timeout, address.clone())),
        };
        let breakers = match nodes {
            Nodes::One(_) => 1,
            Nodes::Many(_) => SLOT_GROUPS,
        };
        let store = Self {
            nodes,
            breakers: (0..breakers).map(|_| Breaker::default()).collect(),
            timeout,
            address,
            faults,
            leases,
            failures: Throttle::default(),
            ids: call::Ids::new()?,
        };
        // A wrong name, port or password is to be seen at the start, and not only when the first request fails.
        store.say_why();
        Ok(store)
    }

    pub fn describe(&self) -> &str {
        &self.address
    }

    /// How many breakers are open: of one, or of one for each group of slots in a cluster.
    pub fn open_breakers(&self) -> usize {
        self.breakers.iter().filter(|breaker| breaker.is_open()).count()
    }

    pub async fn ready(&self) -> Result<(), String> {
        let answer = timeout(self.timeout, async {
            match &self.nodes {
                Nodes::One(link) => {
                    let mut link = link.connection().await?;
                    ::redis::cmd("PING").query_async::<()>(&mut link.connection).await.map_err(Fault::from)
                }
                Nodes::Many(cluster) => cluster.ping().await.map_err(Fault::from),
            }
        });
        match answer.await {
            Ok(answer) => answer.map_err(|fault| fault.to_string()),
            Err(_) => Err(format!("no answer within {:?}", self.timeout)),
        }
    }

    pub async fn admit(&self, decisions: &[DecisionRequest]) -> Vec<DecisionAnswer> {
        match &self.nodes {
            Nodes::One(link) => self.admit_at_one(link, decisions).await,
            Nodes::Many(cluster) => {
                let deadline = Instant::now() + self.timeout;
                join_all(decisions.iter().map(|decision| self.admit_in(cluster, decision, deadline))).await
            }
        }
    }
}

/// What the limits of one call say.
type Reply = Result<Vec<Denied>, Fault>;

/// Charges of one decision whose keys share a slot, by their place in the decision.
#[derive(Clone)]
struct Part {
    slot: u16,
    charges: Vec<usize>,
}

impl Part {
    /// Those of its charges that take something, if there are any: others are about a lease alone.
    fn that_cost(&self, decision: &DecisionRequest) -> Option<Self> {
        let costs = |index: &usize| decision.charges.get(*index).is_some_and(|charge| charge.cost.is_some());
        let charges: Vec<usize> = self.charges.iter().copied().filter(costs).collect();
        (!charges.is_empty()).then_some(Self { slot: self.slot, charges })
    }
}

impl RedisStore {
    /// All decisions in one pipeline.
    async fn admit_at_one(&self, link: &Link, decisions: &[DecisionRequest]) -> Vec<DecisionAnswer> {
        let calls: Vec<Call> = decisions
            .iter()
            .map(|decision| {
                let all = Part { slot: 0, charges: (0..decision.charges.len()).collect() };
                Call { learns: true, ..Call::of_part(Mode::Take, &all, decision, remembered_as(decision)) }
            })
            .collect();
        let is_silence = |replies: &Vec<Reply>| replies.iter().all(is_silence);
        let deadline = Instant::now() + self.timeout;
        let replies = match self.guarded(0, deadline, self.pipeline(link, &calls), is_silence).await {
            Ok(replies) => replies,
            Err(fault) => vec![Err(fault); calls.len()],
        };
        replies.into_iter().map(|reply| reply.map_or_else(|fault| self.failed(&fault), call::answer)).collect()
    }

    /// By the script's hash. Where the server does not know the script (it was restarted, or its scripts were flushed)
    /// nothing was charged, and those are sent again with the script itself.
    async fn pipeline(&self, link: &Link, calls: &[Call<'_>]) -> Vec<Reply> {
        let mut connection = match link.connection().await {
            Ok(connection) => connection,
            Err(fault) => return vec![Err(fault); calls.len()],
        };
        let all: Vec<usize> = (0..calls.len()).collect();
        let mut replies = send(&mut connection.connection, calls, &all, false).await;
        let unknown: Vec<usize> =
            all.into_iter().filter(|index| replies[*index].as_ref().is_err_and(call::is_unknown_script)).collect();
        if !unknown.is_empty() {
            let again = send(&mut connection.connection, calls, &unknown, true).await;
            for (index, reply) in unknown.into_iter().zip(again) {
                replies[index] = reply;
            }
        }
        let read = |(reply, call): (RedisResult<Vec<i64>>, &Call)| call.read(&reply?, &self.leases);
        let replies: Vec<Reply> = replies.into_iter().zip(calls).map(read).collect();
        if replies.iter().any(|reply| reply.as_ref().is_err_and(|fault| fault.kind.wants_another_server())) {
            link.give_up(&connection);
        }
        replies
    }

    /// One decision in a cluster.
    async fn admit_in(&self, cluster: &Arc<Cluster>, decision: &DecisionRequest, deadline: Instant) -> DecisionAnswer {
        let mut slots = BTreeMap::<u16, Vec<usize>>::new();
        for (index, charge) in decision.charges.iter().enumerate() {
            slots.entry(cluster::slot(charge.group)).or_default().push(index);
        }
        let parts: Vec<Part> = slots.into_iter().map(|(slot, charges)| Part { slot, charges }).collect();
        let id = remembered_as(decision);
        let charges = match &parts[..] {
            [part] => self.ask(cluster, Mode::Take, part, decision, id, deadline).await,
            _ => self.join(cluster, &parts, decision, id, deadline).await,
        };
        charges.map_or_else(|fault| self.failed(&fault), call::answer)
    }

    /// All or nothing over several slots: all are asked, and only when each has the units are they reserved, in the
    /// order of the slots. So a denied request spends nothing, but for a race: a slot that had the units when it was
    /// asked and has them no more a moment later. Then what was reserved goes back, as far as the bucket would have it
    /// had it never been taken. Where the endpoint dies or gets no answer in between, it stays spent and refills: never
    /// more is admitted than the limits allow.
    ///
    /// What was reserved under the caller's own id never goes back: sending the decision again completes it.
    ///
    /// Leases are settled and lent with the question, beside what the decision would take, and not again when that is
    /// taken: each call about a lease has a number and counts once. Where the decision fails, its lessee's next call
    /// brings back what it was lent and never told of.
    async fn join(
        &self,
        cluster: &Arc<Cluster>,
        parts: &[Part],
        decision: &DecisionRequest,
        id: Option<Digest>,
        deadline: Instant,
    ) -> Reply {
        let known = id.unwrap_or_else(|| self.ids.next());
        let ask = |mode, part| self.ask(cluster, mode, part, decision, Some(known), deadline);
        let asked = join_all(parts.iter().map(|part| ask(Mode::Check, part))).await;
        let mut charges = vec![Denied { remaining: 0, denied: None, lease: None }; decision.charges.len()];
        for (part, reply) in parts.iter().zip(asked) {
            for (index, charge) in part.charges.iter().zip(reply?) {
                charges[*index] = charge;
            }
        }
        if !call::is_admitted(&charges) {
            return Ok(charges);
        }
        let costs = parts.iter().filter_map(|part| part.that_cost(decision)).collect::<Vec<_>>();
        for (index, part) in costs.iter().enumerate() {
            let taken = ask(Mode::Reserve, part).await;
            let is_reserved = taken.as_ref().is_ok_and(|reply| call::is_admitted(reply));
            if !is_reserved && id.is_none() {
                // This one too: it may have been reserved without an answer. Where it was not, nothing goes back.
                self.give_back(cluster, &costs[..=index], decision, known);
            }
            for (index, charge) in part.charges.iter().zip(taken?) {
                let lease = charges[*index].lease;
                charges[*index] = Denied { lease, ..charge };
            }
            if !is_reserved {
                break;
            }
        }
        Ok(charges)
    }

    /// Best effort, in the background and not for long: what does not get back stays spent.
    fn give_back(&self, cluster: &Arc<Cluster>, parts: &[Part], decision: &DecisionRequest, id: Digest) {
        let (cluster, parts, decision) = (Arc::clone(cluster), parts.to_vec(), decision.clone());
        let within = self.timeout;
        tokio::spawn(async move {
            let back = parts.iter().map(async |part| {
                let call = Call::of_part(Mode::Back, part, &decision, Some(id));
                cluster.run::<()>(|with_script| call.command(with_script)).await
            });
            let _ = timeout(within, join_all(back)).await;
        });
    }

    /// What the limits of one slot say.
    async fn ask(
        &self,
        cluster: &Cluster,
        mode: Mode,
        part: &Part,
        decision: &DecisionRequest,
        id: Option<Digest>,
        deadline: Instant,
    ) -> Reply {
        let call = Call::of_part(mode, part, decision, id);
        let run = async {
            let reply: Vec<i64> = cluster.run(|with_script| call.command(with_script)).await?;
            call.read(&reply, &self.leases)
        };
        let breaker = usize::from(part.slot / (cluster::SLOTS / SLOT_GROUPS));
        self.guarded(breaker, deadline, run, is_silence).await?
    }

    /// Runs a call within its deadline, if its breaker lets it through, and tells the breaker whether anybody answered.
    async fn guarded<T>(
        &self,
        breaker: usize,
        deadline: Instant,
        run: impl Future<Output = T>,
        is_silence: impl Fn(&T) -> bool,
    ) -> Result<T, Fault> {
        let Some(call) = self.breakers[breaker].enter() else {
            return Err(Fault::new(FaultKind::BreakerOpen, "the breaker is open"));
        };
        let result = timeout_at(deadline, run)
            .await
            .map_err(|_| Fault::new(FaultKind::Timeout, format!("no answer within {:?}", self.timeout)));
        match call.ended(!result.as_ref().map_or(true, is_silence)) {
            Some(Change::Opened) => {
                warn!(address = self.address, "the store does not answer: calls fail at once, but for one each second");
                self.look_elsewhere();
            }
            Some(Change::Closed) => info!(address = self.address, "the store answers again"),
            None => {}
        }
        result
    }

    /// The connection that gives no answers may lead to a server that is no more, or no more the master.
    fn look_elsewhere(&self) {
        match &self.nodes {
            Nodes::One(link) => link.give_up_any(),
            Nodes::Many(_) => self.say_why(),
        }
    }

    /// A cluster's connections do not tell why they cannot be made: looks for the reason, and nobody waits for that.
    fn say_why(&self) {
        let Nodes::Many(cluster) = &self.nodes else { return };
        let (cluster, address) = (Arc::clone(cluster), self.address.clone());
        tokio::spawn(async move {
            let fault = match timeout(DIAGNOSIS, cluster.diagnose()).await {
                Ok(Ok(())) => return,
                Ok(Err(fault)) => fault,
                Err(_) => Fault::new(FaultKind::Timeout, format!("no answer within {DIAGNOSIS:?}")),
            };
            let (error, kind) = (&fault, fault.kind.name());
            warn!(%error, kind, address, "the store cannot be reached; it is tried again until it can");
        });
    }

    /// Counts and logs it.
    fn failed(&self, fault: &Fault) -> DecisionAnswer {
        self.faults.count(fault.kind, 1);
        if let Some(held_back) = self.failures.pass() {
            warn!(error = %fault, kind = fault.kind.name(), held_back, "the store failed");
        }
        DecisionAnswer::Failed(fault.kind.failure())
    }
}

fn is_silence(reply: &Reply) -> bool {
    reply.as_ref().is_err_and(|fault| fault.kind.is_silence())
}

/// Some of the calls, in one pipeline.
async fn send(
    connection: &mut MultiplexedConnection,
    calls: &[Call<'_>],
    which: &[usize],
    with_script: bool,
) -> Vec<RedisResult<Vec<i64>>> {
    let mut pipeline = Pipeline::with_capacity(which.len());
    pipeline.ignore_errors();
    for index in which {
        pipeline.add_command(calls[*index].command(with_script));
    }
    match pipeline.query_async(connection).await {
        Ok(replies) => replies,
        Err(error) => which.iter().map(|_| Err(error.clone())).collect(),
    }
}
