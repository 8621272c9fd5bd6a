//! One connection: HTTP/1.1 or HTTP/2, bounded in what it may send and in how long it may do nothing.

use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::debug;

/// From the connection to its first whole request head. A proxy sends one as soon as it connects.
const FIRST_HEAD: Duration = Duration::from_secs(5);

/// Without a request, or with one whose head does not end. Longer than proxies commonly keep a connection that they do
/// not use, so that they are the ones to close it: a request can cross with the endpoint's own closing, and is lost.
const IDLE: Duration = Duration::from_secs(300);

/// What has been answered must be read in this time once the connection is told to end.
const LINGER: Duration = Duration::from_secs(5);

/// Requests of one HTTP/2 connection that are open at once. A worker of Envoy sends few, each a batch.
const STREAMS: u32 = 256;

/// The most that a request head may hold, in bytes. hyper's own bound is 400 KiB for HTTP/1.
const HEAD: usize = 16 * 1024;

/// How often the other side of an HTTP/2 connection is asked whether it is there, and how long it has to say so.
const PING: Duration = Duration::from_secs(20);

/// How connections are served; the same for all of them.
pub fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // It also runs while a connection is idle, and would close a proxy's connections under its requests.
        .header_read_timeout(None)
        .max_buf_size(HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(HEAD).unwrap_or(u32::MAX))
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    builder
}

/// Why a connection is no more.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The other side ended it, or it was idle, or the program ends.
    InOrder,
    /// No whole request head came in time.
    TooSlow,
}

/// Serves one connection until the other side ends it, it does nothing for too long, or `ending` becomes true and all
/// its requests are answered.
pub async fn serve<A>(
    builder: &auto::Builder<TokioExecutor>,
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    app: A,
    mut ending: watch::Receiver<bool>,
) -> End
where
    A: tower::Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>,
    A: Clone + Send + 'static,
{
    let activity = Arc::new(Activity::new());
    let app = TowerToHyperService::new(app);
    let service = service_fn(|request: Request<Incoming>| {
        let open = Open::begin(&activity);
        let answer = app.call(request);
        async move {
            let answer = answer.await;
            drop(open);
            answer
        }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // Once it is told to end, what is open is still answered.
    let mut told = false;
    loop {
        if !told && *ending.borrow_and_update() {
            connection.as_mut().graceful_shutdown();
            activity.hurry();
            told = true;
        }
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    debug!(error, "a connection failed");
                }
                return End::InOrder;
            }
            _ = ending.changed(), if !told => {}
            () = sleep_until(activity.look_at()) => match activity.idle() {
                None => {}
                Some(Idle::NeverAsked) if !told => return End::TooSlow,
                Some(Idle::Asked) if !told => {
                    connection.as_mut().graceful_shutdown();
                    activity.hurry();
                    told = true;
                }
                Some(_) => return End::InOrder,
            },
        }
    }
}

/// When a connection last had a request.
struct Activity(Mutex<State>);

struct State {
    open: usize,
    since: Instant,
    bound: Duration,
    asked: bool,
}

/// A connection that has had no request for too long.
enum Idle {
    NeverAsked,
    Asked,
}

impl Activity {
    fn new() -> Self {
        Self(Mutex::new(State { open: 0, since: Instant::now(), bound: FIRST_HEAD, asked: false }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When it may be idle for too long, unless a request comes before.
    fn look_at(&self) -> Instant {
        let state = self.state();
        if state.open > 0 { Instant::now() + state.bound } else { state.since + state.bound }
    }

    fn idle(&self) -> Option<Idle> {
        let state = self.state();
        let over = state.open == 0 && state.since.elapsed() >= state.bound;
        over.then_some(if state.asked { Idle::Asked } else { Idle::NeverAsked })
    }

    /// From now on, little time is left without a request.
    fn hurry(&self) {
        let mut state = self.state();
        state.bound = LINGER;
        state.since = Instant::now();
    }
}

/// A request that is being answered.
struct Open(Arc<Activity>);

impl Open {
    fn begin(activity: &Arc<Activity>) -> Self {
        let mut state = activity.state();
        state.open += 1;
        if !state.asked {
            state.asked = true;
            state.bound = IDLE;
        }
        drop(state);
        Self(Arc::clone(activity))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.open -= 1;
        state.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::task::JoinHandle;

    /// The other side of a connection, how it is told to end, and how it ended. Time is tokio's, and does not run by
    /// itself.
    fn connect() -> (DuplexStream, watch::Sender<bool>, JoinHandle<End>) {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (ending, told) = watch::channel(false);
        let slowly = || async {
            tokio::time::sleep(Duration::from_secs(8)).await;
            "slow"
        };
        let app = Router::new().route("/", get(|| async { "ok" })).route("/slow", get(slowly));
        (near, ending, tokio::spawn(async move { serve(&builder(), far, app, told).await }))
    }

    async fn ask(stream: &mut DuplexStream, path: &str) {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
    }

    async fn answer(stream: &mut DuplexStream) -> String {
        let mut bytes = [0; 1024];
        let count = stream.read(&mut bytes).await.unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    async fn ended_after(task: JoinHandle<End>) -> (End, Duration) {
        let start = Instant::now();
        (task.await.unwrap(), start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_come_is_not_waited_for() {
        for bytes in ["", "GET / HTTP/1.1\r\nhost: x\r\n", "PRI * HTTP/2.0\r\n"] {
            let (mut stream, _ending, task) = connect();
            stream.write_all(bytes.as_bytes()).await.unwrap();
            let (end, after) = ended_after(task).await;
            assert_eq!(end, End::TooSlow, "{bytes:?}");
            assert!(after >= FIRST_HEAD && after < FIRST_HEAD + Duration::from_millis(10), "{bytes:?}: {after:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_kept_for_the_next_request_and_not_for_ever() {
        let (mut stream, _ending, task) = connect();
        for _ in 0..2 {
            ask(&mut stream, "/").await;
            assert!(answer(&mut stream).await.ends_with("ok"));
            tokio::time::sleep(IDLE - Duration::from_secs(1)).await;
        }
        let (end, after) = ended_after(task).await;
        assert_eq!((end, after.as_millis().div_ceil(1000)), (End::InOrder, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_trickles_on_a_kept_connection_ends_it_too() {
        let (mut stream, _ending, task) = connect();
        ask(&mut stream, "/").await;
        answer(&mut stream).await;
        let trickle = tokio::spawn(async move {
            while stream.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
        });
        let (_, after) = ended_after(task).await;
        assert!(after <= IDLE + LINGER + Duration::from_millis(10), "{after:?}");
        trickle.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_waits_for_open_requests_and_for_nothing_else() {
        let (mut busy, ending, task) = connect();
        ask(&mut busy, "/slow").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        ending.send(true).unwrap();
        assert!(answer(&mut busy).await.ends_with("slow"));
        assert_eq!(ended_after(task).await, (End::InOrder, Duration::ZERO));

        let (mut kept, ending, task) = connect();
        ask(&mut kept, "/").await;
        answer(&mut kept).await;
        ending.send(true).unwrap();
        assert_eq!(ended_after(task).await, (End::InOrder, Duration::ZERO));

        let (mut slow, ending, task) = connect();
        slow.write_all(b"GET / HT").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        ending.send(true).unwrap();
        assert!(ended_after(task).await.1 <= LINGER + Duration::from_millis(10));
    }
}
