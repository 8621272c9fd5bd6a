//! Where budgets are kept. Every store gives the same answers; `tests/` runs one suite over all of them.

mod breaker;
mod memory;
mod redis;

use self::memory::MemoryStore;
use self::redis::RedisStore;
use std::str::FromStr;
use std::time::Duration;
use tollgate_core::wire::{AdmitAnswer, AdmitRequest};

/// Which store to use, as written on the command line.
#[derive(Clone)]
pub enum StoreUrl {
    /// This process's memory.
    Memory,
    /// A Redis server. The URL may hold a password, so it is never shown.
    Redis(Box<::redis::ConnectionInfo>),
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORMS: &str = "write `memory` or redis://[user:password@]host[:port][/db]";
        if text == "memory" {
            return Ok(Self::Memory);
        }
        if text.starts_with("rediss://") {
            return Err(format!("TLS to Redis is not supported yet: {FORMS}"));
        }
        if !text.starts_with("redis://") {
            return Err(format!("not a store: {FORMS}"));
        }
        // The library's own message may repeat the URL and with it a password.
        ::redis::IntoConnectionInfo::into_connection_info(text)
            .map(|info| Self::Redis(Box::new(info)))
            .map_err(|_| format!("not a Redis URL: {FORMS}"))
    }
}

impl StoreUrl {
    /// Opens the store. One that cannot be reached now is tried again until it can.
    ///
    /// `timeout` bounds every call; `keys` bounds the memory store.
    pub fn open(&self, timeout: Duration, keys: usize) -> Result<Store, String> {
        Ok(match self {
            Self::Memory => Store::Memory(MemoryStore::new(keys)),
            Self::Redis(info) => Store::Redis(Box::new(RedisStore::open(info, timeout)?)),
        })
    }
}

/// An open store.
pub enum Store {
    /// This process's memory.
    Memory(MemoryStore),
    /// A Redis server.
    Redis(Box<RedisStore>),
}

impl Store {
    /// Decides each decision of the batch, all-or-nothing by itself.
    pub async fn admit(&self, request: AdmitRequest) -> AdmitAnswer {
        let decisions = match self {
            Self::Memory(store) => store.admit(request.decisions),
            Self::Redis(store) => store.admit(&request.decisions).await,
        };
        AdmitAnswer { decisions }
    }

    /// Whether the store answers now; if not, why.
    pub async fn ready(&self) -> Result<(), String> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Redis(store) => store.ready().await,
        }
    }

    /// Forgets budgets that are full, for ever.
    pub async fn keep_small(&self) {
        if let Self::Memory(store) = self {
            store.keep_small().await;
        }
    }

    /// What to call it in a log: no user, no password.
    pub fn describe(&self) -> String {
        match self {
            Self::Memory(_) => "memory".into(),
            Self::Redis(store) => store.describe(),
        }
    }
}
