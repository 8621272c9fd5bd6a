//! Listening, and an orderly end.

use crate::api::{Endpoint, service};
use crate::connection::{self, End};
use crate::refusal::Reason;
use crate::terminal;
use crate::throttle::Throttle;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// How long requests that are being answered may take once the program is told to end.
const DRAIN: Duration = Duration::from_secs(10);

/// Serves until SIGTERM or SIGINT, then answers what has arrived and ends.
pub async fn serve(listen: SocketAddr, endpoint: Endpoint, max_connections: usize) -> Result<(), String> {
    let listener = TcpListener::bind(listen).await.map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    let address = listener.local_addr().map_err(|error| format!("no local address: {error}"))?;
    let mut end = EndSignal::watch()?;
    let endpoint = Arc::new(endpoint);
    let sweeper = Arc::clone(&endpoint);
    tokio::spawn(async move { sweeper.store().keep_small().await });

    // Tests and scripts read this line to learn the port.
    terminal::say(format_args!("listening on http://{address}\n"));
    info!(%address, store = %endpoint.store().describe(), "listening");

    let (ending, _) = watch::channel(false);
    let mut connections = JoinSet::new();
    tokio::select! {
        () = accept(listener, &endpoint, max_connections, &mut connections, &ending) => {}
        () = end.come() => {}
    }
    info!(connections = connections.len(), "draining");
    ending.send_replace(true);
    if timeout(DRAIN, async { while connections.join_next().await.is_some() {} }).await.is_err() {
        warn!(connections = connections.len(), "ended with requests still open after {DRAIN:?}");
    }
    if let Some(traces) = endpoint.traces() {
        traces.end().await;
    }
    Ok(())
}

/// For ever. Whoever comes when there is no room is sent away at once: it is better served by another endpoint, or by
/// its fail mode, than by a queue.
async fn accept(
    listener: TcpListener,
    endpoint: &Arc<Endpoint>,
    max_connections: usize,
    connections: &mut JoinSet<End>,
    ending: &watch::Sender<bool>,
) {
    let builder = Arc::new(connection::builder());
    let app = service(Arc::clone(endpoint));
    let refusals = Throttle::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(ended) = connections.join_next() => {
                if ended.is_ok_and(|end| end == End::TooSlow) {
                    endpoint.metrics().refused(Reason::Timeout);
                }
                endpoint.metrics().connections(connections.len());
                continue;
            }
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // A client that is gone already is nothing. Without file descriptors, trying again at once would only
                // burn a processor.
                if let Some(held_back) = refusals.pass() {
                    warn!(%error, held_back, "a connection could not be accepted");
                }
                sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        if connections.len() >= max_connections {
            endpoint.metrics().refused(Reason::Overload);
            if let Some(held_back) = refusals.pass() {
                warn!(max_connections, held_back, "a connection was refused: there are as many as there may be");
            }
            continue;
        }
        // An answer is one small write: waiting for more to send with it only delays it.
        let _ = stream.set_nodelay(true);
        let (builder, app, ending) = (Arc::clone(&builder), app.clone(), ending.subscribe());
        // It counts before it can ask for the count.
        endpoint.metrics().connections(connections.len().saturating_add(1));
        connections.spawn(async move { connection::serve(&builder, stream, app, ending).await });
    }
}

/// SIGTERM, SIGINT, or SIGHUP: a terminal that is closed.
struct EndSignal {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl EndSignal {
    /// From here on they are seen.
    fn watch() -> Result<Self, String> {
        let watch = |kind| signal(kind).map_err(|error| format!("signals cannot be watched: {error}"));
        let [terminate, interrupt, hangup] = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        Ok(Self { terminate: watch(terminate)?, interrupt: watch(interrupt)?, hangup: watch(hangup)? })
    }

    async fn come(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
