//! Whether the store answers, asked at most so often: anybody may ask `/readyz`, and the store has better things to do.

use crate::store::Store;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long an answer is good.
const FRESH: Duration = Duration::from_millis(100);

/// The last answer. Whoever asks while the store is being asked waits for that answer.
#[derive(Default)]
pub struct Readiness(Mutex<Option<(Instant, Result<(), String>)>>);

impl Readiness {
    pub async fn of(&self, store: &Store) -> Result<(), String> {
        let mut last = self.0.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < FRESH
        {
            return answer.clone();
        }
        let answer = store.ready().await;
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}
