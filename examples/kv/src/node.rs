//! One node: a listener, a worker, a server.

use crate::api;
use crate::disk::{Folder, FolderError};
use crate::limits;
use crate::seed::Seed;
use crate::service::Service;
use futures::future::BoxFuture;
use partage_door::{Changes, Door, Ending, Role, TowerService};
use partage_worker::http::WORKER_PATH;
use partage_worker::{CallbackTimeouts, Worker};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What a node needs to be told.
pub struct Config {
    /// The name of the node, by which the coordinator knows it again after a restart.
    pub node: String,
    /// The addresses of the coordinators, each as `host:port`.
    pub coordinators: Vec<String>,
    /// Where it listens. Bind port 0 to take any.
    pub listener: TcpListener,
    /// Where others reach it, if that is not where it listens.
    pub advertise: Option<String>,
    /// Its share of every load, relative to other nodes.
    pub capacity: f64,
    /// What fails with it.
    pub zone: Option<String>,
    /// A smaller failure domain inside the zone.
    pub rack: Option<String>,
    /// Words to pin and exclude shards by.
    pub labels: Vec<String>,
    /// Rows that are there before the first write.
    pub seed: Option<Seed>,
    /// Where the data of durable keyspaces lies; none = it takes no shard of those.
    pub durable: Option<PathBuf>,
    /// How long callbacks may take.
    pub callback_timeouts: CallbackTimeouts,
    /// What the node asks of clients that connect, and what they may cost it.
    pub door: partage_door::Settings,
}

/// A node that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its listener is of no use.
    #[error("the listener has no address: {0}")]
    Listener(#[from] std::io::Error),
    /// Its folder is of no use.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The node cannot register with a coordinator.
    #[error(transparent)]
    Worker(#[from] partage_worker::StartError),
}

/// A node that runs, until it leaves or is killed.
pub struct Node {
    worker: Worker,
    address: SocketAddr,
    close: watch::Sender<bool>,
    server: JoinHandle<()>,
}

impl Config {
    /// A node of capacity 1 in no zone, without seed, with default timeouts.
    pub fn new(node: impl Into<String>, coordinator: impl Into<String>, listener: TcpListener) -> Config {
        Config {
            node: node.into(),
            coordinators: vec![coordinator.into()],
            listener,
            advertise: None,
            capacity: 1.0,
            zone: None,
            rack: None,
            labels: Vec::new(),
            seed: None,
            durable: None,
            callback_timeouts: CallbackTimeouts::default(),
            door: partage_door::Settings::default(),
        }
    }
}

impl Node {
    /// Registers and serves. Returns when it has registered.
    pub fn start(config: Config) -> BoxFuture<'static, Result<Node, StartError>> {
        // Boxed, so that the compiler makes the code of a node in this crate, and not in each that starts one.
        Box::pin(Node::begin(config))
    }

    async fn begin(config: Config) -> Result<Node, StartError> {
        let address = config.listener.local_addr()?;
        let announced = config.advertise.unwrap_or_else(|| address.to_string());
        let folder = config.durable.as_deref().map(Folder::open).transpose()?;
        let service = Arc::new(Service::new(config.seed, folder));
        let mut builder = Worker::builder(config.node, config.coordinators, announced.clone())
            .check_path(WORKER_PATH)
            .capacity(config.capacity)
            .labels(config.labels)
            .callback_timeouts(config.callback_timeouts);
        if let Some(zone) = config.zone {
            builder = builder.zone(zone);
        }
        if let Some(rack) = config.rack {
            builder = builder.rack(rack);
        }
        let worker = builder.start_shared(service.clone()).await?;
        let (close, closed) = watch::channel(false);
        let role = Role {
            announced: vec![announced, address.to_string()],
            // What clients write is what they like.
            changes: Changes::None,
            body_bytes: limits::IMPORT_BYTES.max(limits::VALUE_BYTES) as u64,
            ending: Ending::After(limits::DRAIN),
            ..Role::default()
        };
        let door = Door::new(role, config.door);
        let routes = api::routes(&worker, service, &door);
        let listener = config.listener;
        let server = tokio::spawn(door.listen(listener, TowerService::new(routes), closed));
        Ok(Node { worker, address, close, server })
    }

    /// The address that the node listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The SDK's worker that this node runs.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Leaves: everything is served elsewhere first, for at most `within`.
    pub async fn leave(self, within: Duration) -> Result<(), partage_worker::LeaveError> {
        let left = self.worker.leave(within).await;
        // No task listens when the server has ended by itself.
        let _ = self.close.send(true);
        drop(self.worker);
        // A client that holds a connection open must not hold up the end.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.server).await;
        left
    }

    /// Stops dead, as if it had crashed.
    pub async fn kill(self) {
        self.server.abort();
        let _ = self.close.send(true);
        self.worker.abort().await;
        // Its address is free only when the task is gone.
        let _ = self.server.await;
    }
}
