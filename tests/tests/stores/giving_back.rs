//! What the script gives back, by its id: never more than would be there had it never been taken, and all of it where
//! nothing else has happened.

use crate::arithmetic::{Random, script};
use redis::aio::MultiplexedConnection;
use tollgate_tests::Redis;

struct Bucket {
    connection: MultiplexedConnection,
    script: redis::Script,
    letter: char,
    /// Capacity, units or window, period.
    numbers: [u64; 3],
}

impl Bucket {
    /// Verdict and units left; nothing for `back`.
    async fn call(&mut self, mode: &str, key: &str, id: Option<&str>, cost: u64, now: u64) -> Vec<i64> {
        let mut call = self.script.key(key);
        if let Some(id) = id {
            call.key(id);
        }
        call.arg(mode).arg(self.letter.to_string()).arg(&self.numbers).arg(cost).arg(now);
        call.invoke_async(&mut self.connection).await.expect("a reply")
    }

    async fn left(&mut self, key: &str, now: u64) -> i64 {
        self.call("check", key, None, 1, now).await[1]
    }
}

async fn property(letter: char) {
    let redis = Redis::start().await;
    let mut random = Random::new(u64::from(u32::from(letter)));
    let (mut given, mut kept) = (0, 0);
    for run in 0..60_u64 {
        let capacity = random.upto(200);
        let numbers = match letter {
            'b' | 'g' => {
                // In lowest terms: one unit in so many microseconds, or many in one.
                if random.next().is_multiple_of(2) {
                    [capacity, 1, random.upto(2_000_000)]
                } else {
                    [capacity, random.upto(50), 1]
                }
            }
            _ => [capacity, random.upto(10_000_000), 0],
        };
        let connection = redis.connect().await;
        let mut bucket = Bucket { connection, script: script(), letter, numbers };
        let (key, without) = (format!("{{{run}}}with"), format!("{{{run}}}without"));
        let mut now = 1_796_000_000_000_000_u64;
        let mut out: Vec<(String, u64)> = Vec::new();
        for step in 0..60 {
            now += [0, 1, random.upto(1000), random.upto(1_000_000), random.upto(5_000_000)]
                [usize::try_from(random.next() % 5).unwrap()];
            let cost = random.upto(capacity);
            match random.next() % 3 {
                0 => {
                    let id = format!("{{{run}}}id{step}");
                    let before = bucket.left(&key, now).await;
                    if bucket.call("take", &key, Some(&id), cost, now).await[0] == 0 {
                        if random.next().is_multiple_of(3) {
                            bucket.call("back", &key, Some(&id), cost, now).await;
                            assert_eq!(
                                bucket.left(&key, now).await,
                                before,
                                "{letter} {numbers:?}: at once, all comes back"
                            );
                        } else {
                            out.push((id, cost));
                        }
                    }
                }
                1 if !out.is_empty() => {
                    let chosen = usize::try_from(random.next()).unwrap_or(0) % out.len();
                    let (id, cost) = out.swap_remove(chosen);
                    bucket.call("back", &key, Some(&id), cost, now).await;
                    // Once: the second finds no id.
                    bucket.call("back", &key, Some(&id), cost, now).await;
                    given += 1;
                }
                _ => {
                    if bucket.call("take", &key, None, cost, now).await[0] == 0 {
                        let other = bucket.call("take", &without, None, cost, now).await;
                        assert_eq!(other[0], 0, "{letter} {numbers:?}: admitted beyond the limit");
                        kept += 1;
                    }
                }
            }
            let (with, without) = (bucket.left(&key, now).await, bucket.left(&without, now).await);
            assert!(with <= without, "{letter} {numbers:?}, step {step}: {with} is more than {without}");
        }
    }
    println!("{letter}: {given} were given back, {kept} kept");
    assert!(given > 100 && kept > 100);
}

#[tokio::test]
async fn a_token_bucket_gets_back_no_more_than_it_would_have() {
    property('b').await;
}

#[tokio::test]
async fn a_gcra_gets_back_no_more_than_it_would_have() {
    property('g').await;
}

#[tokio::test]
async fn a_fixed_window_gets_back_no_more_than_it_would_have() {
    property('f').await;
}

#[tokio::test]
async fn a_sliding_window_gets_back_no_more_than_it_would_have() {
    property('s').await;
}

#[tokio::test]
async fn a_sliding_log_gets_back_no_more_than_it_would_have() {
    property('l').await;
}
