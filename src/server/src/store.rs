//! Where budgets are kept. Every store gives the same answers; `tests/` runs one suite over all of them.

mod breaker;
mod fault;
mod leases;
mod memory;
mod redis;

pub use self::fault::{FaultKind, Faults};
pub use self::leases::LeaseCounts;
pub use self::memory::MemoryStore;
pub use self::redis::{Access, Login};

use self::redis::{FORMS, RedisStore, RedisUrl};
use crate::calendar;
use crate::throttle::Throttle;
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};
use tollgate_core::key::{Digest, HashKey};
use tollgate_core::units::Micros;
use tollgate_core::wire::{AdmitAnswer, AdmitRequest, DecisionAnswer, DecisionRequest, Failure};
use tracing::warn;

/// Which store to use, as written on the command line.
#[derive(Clone)]
pub enum StoreUrl {
    /// This process's memory.
    Memory,
    /// Redis. The URL may hold a password, so it is never shown.
    Redis(RedisUrl),
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "memory" => Ok(Self::Memory),
            _ if text.starts_with("redis") => RedisUrl::parse(text).map(Self::Redis),
            _ => Err(format!("not a store: write `memory` or {FORMS}")),
        }
    }
}

impl StoreUrl {
    /// Opens the store. One that cannot be reached now is tried again until it can.
    ///
    /// `timeout` bounds every call; `keys` bounds the memory store.
    pub fn open(&self, access: &Access, timeout: Duration, keys: usize) -> Result<Store, String> {
        let (faults, leases) = (Faults::new(), LeaseCounts::new());
        let kind = match self {
            Self::Memory if !access.is_empty() => {
                return Err("a login or certificates for Redis are given, but the store is `memory`".into());
            }
            Self::Memory => Kind::Memory(MemoryStore::new(keys, leases.clone())),
            Self::Redis(url) => Kind::Redis(RedisStore::open(url, access, timeout, (faults.clone(), leases.clone()))?),
        };
        Ok(Store { kind, faults, leases, strange_zones: Throttle::default() })
    }
}

/// An open store.
pub struct Store {
    kind: Kind,
    faults: Faults,
    leases: LeaseCounts,
    strange_zones: Throttle,
}

enum Kind {
    Memory(MemoryStore),
    Redis(RedisStore),
}

impl Store {
    /// Decides each decision of the batch, all-or-nothing by itself.
    pub async fn admit(&self, mut request: AdmitRequest) -> AdmitAnswer {
        let strange = self.without_strange_zones(&mut request.decisions);
        let mut decisions = match &self.kind {
            _ if request.decisions.is_empty() => Vec::new(),
            Kind::Memory(store) => {
                let answers = store.admit(&mut request.decisions);
                self.count(&answers);
                answers
            }
            Kind::Redis(store) => {
                // Redis decides by its own clock: it is given the windows around this one's, and fails where its own
                // is in none of them.
                calendar::resolve(&mut request.decisions, wall_clock());
                store.admit(&request.decisions).await
            }
        };
        for index in strange {
            decisions.insert(index, DecisionAnswer::Failed(Failure::UnknownTimeZone));
        }
        AdmitAnswer { decisions }
    }

    /// Takes out the decisions in a time zone that there is not, and gives their places in ascending order. They fail by
    /// themselves: the other decisions of a batch are those of other requests.
    fn without_strange_zones(&self, decisions: &mut Vec<DecisionRequest>) -> Vec<usize> {
        let mut strange = Vec::new();
        let mut index = 0;
        decisions.retain(|decision| {
            let zone = calendar::strange(decision);
            if let Some(zone) = zone {
                strange.push(index);
                self.faults.count(FaultKind::UnknownTimeZone, 1);
                // What was meant is searched for a long time: once for a line.
                if let Some(held_back) = self.strange_zones.pass() {
                    let error = calendar::check(zone).err();
                    warn!(error, held_back, "a decision failed: its calendar window is in no time zone");
                }
            }
            index += 1;
            zone.is_none()
        });
        strange
    }

    /// What the memory store could not decide.
    fn count(&self, answers: &[DecisionAnswer]) {
        for answer in answers {
            match answer {
                DecisionAnswer::Failed(Failure::StoreFull) => self.faults.count(FaultKind::Full, 1),
                DecisionAnswer::Failed(_) => self.faults.count(FaultKind::Malformed, 1),
                DecisionAnswer::Admitted(_) | DecisionAnswer::Denied(_) => {}
            }
        }
    }

    /// How many decisions could not be made, by kind.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// What came of its leases.
    pub fn leases(&self) -> &LeaseCounts {
        &self.leases
    }

    /// How many of the store's breakers are open.
    pub fn open_breakers(&self) -> usize {
        match &self.kind {
            Kind::Memory(_) => 0,
            Kind::Redis(store) => store.open_breakers(),
        }
    }

    /// Whether the store answers now; if not, why.
    pub async fn ready(&self) -> Result<(), String> {
        match &self.kind {
            Kind::Memory(_) => Ok(()),
            Kind::Redis(store) => store.ready().await,
        }
    }

    /// Forgets budgets that are full, for ever.
    pub async fn keep_small(&self) {
        if let Kind::Memory(store) = &self.kind {
            store.keep_small().await;
        }
    }

    /// What to call it in a log: no user, no password.
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Memory(_) => "memory".into(),
            Kind::Redis(store) => store.describe().to_owned(),
        }
    }
}

/// What a decision with an id is remembered by: the same id with other charges is another decision.
fn remembered_as(decision: &DecisionRequest) -> Option<Digest> {
    static KEY: LazyLock<HashKey> = LazyLock::new(|| HashKey::new(b""));
    let id = decision.id.as_ref()?;
    let mut digest = KEY.digest("decision id");
    digest.part(id.as_bytes());
    digest.part(&serde_json::to_vec(&decision.charges).ok()?);
    Some(digest.finish())
}

/// The time since 1970, by a clock that may step.
fn wall_clock() -> Micros {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Micros::new(u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}
