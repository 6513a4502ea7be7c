//! One listener for everything: gRPC (HTTP/2) and JSON (HTTP/1.1 or 2) on one port.

use crate::limits;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

/// Serves `router` until `stop` is true or gone; connections that are open then are closed.
pub async fn serve(listener: Arc<TcpListener>, router: Router, mut stop: watch::Receiver<bool>) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_millis(limits::KEEP_ALIVE_MS))
        .keep_alive_timeout(Duration::from_millis(limits::KEEP_ALIVE_MS))
        .max_concurrent_streams(limits::STREAMS);
    let builder = Arc::new(builder);
    let slots = Arc::new(Semaphore::new(limits::CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, most likely: others must close first.
            tokio::time::sleep(Duration::from_millis(limits::ACCEPT_REST_MS)).await;
            continue;
        };
        // Small messages to and fro are all there is here; waiting for more to send only delays them.
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let (builder, mut stop) = (builder.clone(), stop.clone());
        tokio::spawn(async move {
            let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
            tokio::select! {
                // How a connection ended is its client's business.
                _ = connection => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
            drop(slot);
        });
    }
}
