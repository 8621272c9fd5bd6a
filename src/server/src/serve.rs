//! Listening, and an orderly end.

use crate::api::{Endpoint, router};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

/// How long requests that are being answered may take once the program is told to end.
const DRAIN: Duration = Duration::from_secs(10);

/// Serves until SIGTERM or SIGINT, then answers what has arrived and ends.
pub async fn serve(listen: SocketAddr, endpoint: Endpoint) -> Result<(), String> {
    let listener = TcpListener::bind(listen).await.map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    let address = listener.local_addr().map_err(|error| format!("no local address: {error}"))?;
    let endpoint = Arc::new(endpoint);
    let sweeper = Arc::clone(&endpoint);
    tokio::spawn(async move { sweeper.store().keep_small().await });
    let app = router(Arc::clone(&endpoint));

    // Tests and scripts read this line to learn the port.
    println!("listening on http://{address}");
    info!(%address, store = %endpoint.store().describe(), "listening");

    let (ending, ended) = tokio::sync::oneshot::channel();
    let server = axum::serve(listener, app).with_graceful_shutdown(async move {
        shutdown().await;
        info!("draining");
        let _ = ending.send(());
    });
    tokio::select! {
        result = server.into_future() => result.map_err(|error| format!("the server failed: {error}")),
        () = async { if ended.await.is_ok() { tokio::time::sleep(DRAIN).await } else { std::future::pending().await } } => {
            warn!("ended with requests still open after {DRAIN:?}");
            Ok(())
        }
    }
}

async fn shutdown() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        warn!("signals cannot be watched: the program ends without draining");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
