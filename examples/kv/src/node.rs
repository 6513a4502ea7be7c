//! A node of the service: its listener, its worker, its data.

use crate::handler::KvHandler;
use crate::service;
use crate::store::{Seed, Store};
use partage_worker::{LeaveError, StartError, Worker, http};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What a node needs to be told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its name.
    pub id: String,
    /// `host:port` of each coordinator.
    pub coordinators: Vec<String>,
    /// Where it listens; port 0 takes any.
    pub listen: SocketAddr,
    /// Where others reach it; none = where it listens.
    pub address: Option<String>,
    /// What fails with it.
    pub zone: Option<String>,
    /// Its share of every load.
    pub capacity: f64,
    /// What shards that nobody holds begin with.
    pub seed: Arc<Seed>,
}

/// A node that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its address is not to be had.
    #[error("cannot listen on {address}: {error}: choose another address, or stop who has this one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        error: std::io::Error,
    },
    /// The coordinator does not take it.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// A running node.
pub struct Node {
    address: SocketAddr,
    worker: Worker,
    server: JoinHandle<()>,
}

impl Node {
    /// Starts it; returns when it is registered.
    pub async fn start(options: Options) -> Result<Node, NodeError> {
        let listen_error = |error| NodeError::Listen { address: options.listen, error };
        let listener = TcpListener::bind(options.listen).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let announced = options.address.unwrap_or_else(|| address.to_string());
        let store = Arc::new(Store::default());
        let handler = KvHandler::new(store.clone(), options.seed);
        let mut builder = Worker::builder(&options.id, options.coordinators, announced)
            .capacity(options.capacity)
            .check_path(http::WORKER_PATH);
        if let Some(zone) = options.zone {
            builder = builder.zone(zone);
        }
        let worker = builder.start(handler).await?;
        let router = service::router(&worker, store);
        // It ends when it is aborted, and says nothing of value then.
        let server = tokio::spawn(async move { drop(axum::serve(listener, router).await) });
        Ok(Node { address, worker, server })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Has everything served elsewhere, then stops.
    pub async fn leave(&self, within: Duration) -> Result<(), LeaveError> {
        let left = self.worker.leave(within).await;
        self.server.abort();
        left
    }
}
