//! A light load: connections that are kept busy from one thread, or sent to at a rate that another one beats. It shares the
//! machine with what it measures, so it does little more than to write bytes and to read them.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

/// What to send, over and over: whole requests, written out beforehand.
pub type Requests = Arc<[Vec<u8>]>;

/// A key for each number, as spread as digests are; all zeros for 0.
pub fn key(number: usize) -> String {
    format!("{:032x}", (number as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

/// A POST of each body.
pub fn posts(path: &str, bodies: impl Iterator<Item = String>) -> Requests {
    bodies
        .map(|body| {
            let length = body.len();
            format!("POST {path} HTTP/1.1\r\nhost: load\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
        })
        .collect()
}

/// Answers, in the order of how long they took.
pub struct Answers {
    all: Vec<Answer>,
    over: Duration,
}

/// One answer: its status, and how long it took from the request's first byte.
#[derive(Clone, Copy)]
pub struct Answer {
    pub status: u16,
    pub took: Duration,
}

impl Answers {
    fn new(mut all: Vec<Answer>, over: Duration) -> Self {
        all.sort_unstable_by_key(|answer| answer.took);
        Self { all, over }
    }

    /// Those with this status.
    pub fn with(&self, status: u16) -> Self {
        let all = self.all.iter().filter(|answer| answer.status == status).copied().collect();
        Self { all, over: self.over }
    }

    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Answers a second.
    pub fn rate(&self) -> f64 {
        self.count() as f64 / self.over.as_secs_f64()
    }

    /// How long so many percent of them took at the most.
    pub fn percentile(&self, percent: f64) -> Duration {
        let index = (self.count() as f64 * percent / 100.0) as usize;
        self.all.get(index.min(self.count().saturating_sub(1))).map_or(Duration::ZERO, |answer| answer.took)
    }
}

/// Keeps so many connections busy for a time: each sends its next request when it has its answer. All must be 200 and
/// hold `expected`.
pub async fn busy(
    address: SocketAddr,
    connections: usize,
    time: Duration,
    requests: &Requests,
    expected: &'static str,
) -> Answers {
    let end = Instant::now() + time;
    let client = |number| {
        let requests = Arc::clone(requests);
        async move {
            let mut connection = Connection::open(address).await;
            let mut answers = Vec::new();
            for request in requests.iter().cycle().skip(number * requests.len() / connections) {
                if Instant::now() >= end {
                    break;
                }
                let answer = connection.exchange(request).await;
                let text = connection.reply();
                assert!(answer.status == 200 && text.contains(expected), "{text}");
                answers.push(answer);
            }
            answers
        }
    };
    Answers::new(together((0..connections).map(client)).await, time)
}

/// Sends so many requests a second for a time, over so many connections in turn. A connection that still waits when it
/// is its turn sends late.
pub async fn paced(address: SocketAddr, connections: usize, rate: f64, time: Duration, requests: &Requests) -> Answers {
    let (turns, received): (Vec<_>, Vec<_>) = (0..connections).map(|_| unbounded_channel()).unzip();
    let client = |(number, mut turns): (usize, UnboundedReceiver<()>)| {
        let requests = Arc::clone(requests);
        async move {
            let mut connection = Connection::open(address).await;
            let mut answers = Vec::new();
            let mut requests = requests.iter().cycle().skip(number * requests.len() / connections);
            while let (Some(()), Some(request)) = (turns.recv().await, requests.next()) {
                answers.push(connection.exchange(request).await);
            }
            answers
        }
    };
    let beat = thread::spawn(move || beat(&turns, Duration::from_secs_f64(1.0 / rate), time));
    let answers = together(received.into_iter().enumerate().map(client)).await;
    beat.join().expect("a thread that ends");
    Answers::new(answers, time)
}

/// Gives each of them its turn, one after the other, until the time is over. It is a thread because the runtime's timer
/// tells whole milliseconds: requests would go out by fours and sixteens.
fn beat(turns: &[UnboundedSender<()>], step: Duration, time: Duration) {
    let start = Instant::now();
    let mut turn = Duration::ZERO;
    for one in turns.iter().cycle() {
        if turn >= time {
            break;
        }
        thread::sleep(turn.saturating_sub(start.elapsed()));
        let is_gone = one.send(()).is_err();
        assert!(!is_gone, "a connection ended before its time");
        turn += step;
    }
}

/// One request from each of these made-up callers. Gives the statuses.
pub async fn identities(address: SocketAddr, connections: usize, numbers: Range<usize>) -> Vec<u16> {
    let client = |first: usize| {
        let numbers = numbers.clone().skip(first).step_by(connections);
        async move {
            let mut connection = Connection::open(address).await;
            let mut statuses = Vec::new();
            for number in numbers {
                let request = format!("GET / HTTP/1.1\r\nhost: load\r\nx-api-key: caller-{number}\r\n\r\n");
                statuses.push(connection.exchange(request.as_bytes()).await.status);
            }
            statuses
        }
    };
    together((0..connections).map(client)).await
}

async fn together<T: Clone + Send + 'static>(
    clients: impl Iterator<Item = impl Future<Output = Vec<T>> + Send + 'static>,
) -> Vec<T> {
    let clients: JoinSet<Vec<T>> = clients.collect();
    clients.join_all().await.concat()
}

/// A kept HTTP/1.1 connection with one request at a time.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl Connection {
    async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        Self { stream, buffer: vec![0; 64 * 1024], filled: 0 }
    }

    async fn exchange(&mut self, request: &[u8]) -> Answer {
        let start = Instant::now();
        self.stream.write_all(request).await.expect("a request");
        self.filled = 0;
        loop {
            let count = self.stream.read(&mut self.buffer[self.filled..]).await.expect("a reply");
            assert!(count > 0, "the connection ended: {}", self.reply());
            self.filled += count;
            if let Some((status, whole)) = head(&self.buffer[..self.filled])
                && self.filled >= whole
            {
                return Answer { status, took: start.elapsed() };
            }
        }
    }

    /// The last reply.
    fn reply(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.buffer[..self.filled])
    }
}

/// The status, and how many bytes the whole reply has; `None` while the head is not there.
fn head(bytes: &[u8]) -> Option<(u16, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut reply = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = reply.parse(bytes).expect("HTTP/1.1") else { return None };
    let length = reply.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse::<usize>().ok());
    Some((reply.code.expect("a status"), head + length.expect("a content-length")))
}
