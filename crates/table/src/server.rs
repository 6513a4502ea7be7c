//! One node of tables: a listener, a worker, the replicas.

use crate::access::TableClient;
use crate::bulk::Bulk;
use crate::feed::Feeds;
use crate::grpc::{self, TableService};
use crate::http;
use crate::limits;
use crate::network::{NetworkTransport, PacketService};
use crate::redis::{RedisTables, Settings as RedisSettings};
use crate::scans::Scans;
use crate::service::{StartError as OpenError, Tables};
use crate::settings::NodeSettings;
use futures::future::BoxFuture;
use partage_core::base::name::{KeyspaceName, NameError, NodeId};
use partage_core::keyspace::KeyspaceKind;
use partage_door::state::make_private;
use partage_door::{Changes, Door, Ending, Role, TowerService};
use partage_journal::RealDisk;
use partage_resp::Listener;
use partage_worker::http::{WORKER_PATH, router_with};
use partage_worker::{LeaveError, Worker};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};

/// Where other nodes send packets.
const PACKETS: &str = "/partage.v1.Packets/{*method}";

/// The configuration of a node.
pub struct Config {
    /// The name of the node, by which the coordinator knows it again after a restart.
    pub node: String,
    /// The coordinators, `host:port` each: the node registers at them, and gets maps from one of them.
    pub coordinators: Vec<String>,
    /// Where it listens. Bind port 0 to take any.
    pub listener: TcpListener,
    /// Where others reach it, if that is not where it listens.
    pub advertise: Option<String>,
    /// Its folder: log, stores, and what it knows of them.
    pub folder: PathBuf,
    /// Its share of every load, relative to other nodes.
    pub capacity: f64,
    /// The zone, whose nodes fail together.
    pub zone: Option<String>,
    /// A smaller failure domain inside the zone.
    pub rack: Option<String>,
    /// Words to pin and exclude shards by.
    pub labels: Vec<String>,
    /// The listener for clients of Redis, if there is to be one.
    pub redis: Option<RedisConfig>,
    /// The settings of the log and of the stores.
    pub settings: NodeSettings,
    /// What the node asks of clients that connect, and what they may cost it.
    pub door: partage_door::Settings,
}

/// The listener for clients of Redis.
pub struct RedisConfig {
    /// The bound socket that the listener accepts connections on.
    pub listener: TcpListener,
    /// The table of a connection that names none: absent, the only table that the node knows.
    pub table: Option<KeyspaceName>,
    /// Where clients reach it, `host:port`, if that is not where it listens.
    pub advertise: Option<String>,
    /// Forwards commands for keys that other nodes lead, where it could send the client to their listeners.
    pub forwards: bool,
}

impl RedisConfig {
    /// A listener that clients reach where it listens, for the only table that the node knows.
    pub fn new(listener: TcpListener) -> RedisConfig {
        RedisConfig { listener, table: None, advertise: None, forwards: false }
    }
}

impl Config {
    /// A node of capacity 1 in no zone, with default settings.
    pub fn new(
        node: impl Into<String>,
        coordinator: impl Into<String>,
        listener: TcpListener,
        folder: PathBuf,
    ) -> Config {
        Config {
            node: node.into(),
            coordinators: vec![coordinator.into()],
            listener,
            advertise: None,
            folder,
            capacity: 1.0,
            zone: None,
            rack: None,
            labels: Vec::new(),
            redis: None,
            settings: NodeSettings::default(),
            door: partage_door::Settings::default(),
        }
    }
}

/// A node that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The name of the node is not a valid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The listener of the node has no address.
    #[error("the listener has no address: {0}")]
    Listener(#[from] std::io::Error),
    /// What is stored cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The worker does not start: no coordinator took it in, or its name or announcement is wrong.
    #[error(transparent)]
    Worker(#[from] partage_worker::StartError),
}

impl StartError {
    /// Whether another process, or one that is about to end, uses the folder.
    pub fn is_locked(&self) -> bool {
        let StartError::Open(OpenError::Open(crate::OpenError::Log(error))) = self else { return false };
        matches!(error, partage_log::OpenError::Locked(_))
    }
}

/// A running node: the listeners, the worker and the replicas, until it leaves or is shut down.
pub struct TableNode {
    worker: Worker,
    tables: Tables,
    address: SocketAddr,
    close: watch::Sender<bool>,
    server: JoinHandle<()>,
    redis: Option<(SocketAddr, JoinHandle<()>)>,
    tasks: JoinHandle<()>,
}

impl TableNode {
    /// Opens what is stored, registers and serves. Returns when it has registered.
    pub fn start(config: Config) -> BoxFuture<'static, Result<TableNode, StartError>> {
        // Boxed, so that the compiler makes the code of a node in this crate, and not in each that starts one.
        Box::pin(TableNode::begin(config))
    }

    async fn begin(config: Config) -> Result<TableNode, StartError> {
        let address = config.listener.local_addr()?;
        let announced = config.advertise.unwrap_or_else(|| address.to_string());
        let id = NodeId::new(&config.node)?;
        let network = Arc::new(NetworkTransport::new(id.clone(), None, Handle::current()));
        let tables = open(id.clone(), config.folder, network, config.settings).await?;
        let door = Door::new(role(&announced, address), config.door.clone());
        let (close, closed) = watch::channel(false);
        let scans = Scans::new(id.clone(), tables.clone(), config.coordinators.clone());
        let mut builder = Worker::builder(config.node, config.coordinators, announced.as_str())
            .kinds([KeyspaceKind::Table])
            .check_path(WORKER_PATH)
            .replication(tables.reports())
            .capacity(config.capacity)
            .labels(config.labels);
        if let Some(zone) = config.zone {
            builder = builder.zone(zone);
        }
        if let Some(rack) = config.rack {
            builder = builder.rack(rack);
        }
        let redis = config.redis.map(|redis| redis_settings(redis, &announced)).transpose()?;
        if let Some(at) = redis.as_ref().and_then(|(_, settings)| settings.announced.as_ref()) {
            builder = builder.resp_address(at);
        }
        let worker = builder.start_shared(Arc::new(tables.clone())).await?;
        let (metrics, counted) = (door.clone(), tables.clone());
        let client = TableClient::new(&worker, &tables);
        let bulk = Bulk::new(client.clone(), &scans);
        let feeds = Feeds::new(id.clone(), &scans);
        let service =
            TableService::new(bulk.clone(), scans.clone(), feeds.clone(), close.subscribe()).server();
        let packets = PacketService::new(id, Arc::new(tables.clone())).server();
        let routes = router_with(&worker, move || metrics.text("partage_worker") + &counted.metrics())
            .route_service(PACKETS, packets)
            .route_service(grpc::PATH, service)
            .merge(http::routes(&worker, tables.clone(), (scans.clone(), feeds), bulk))
            .merge(http::backup_routes(client.clone()));
        let server = tokio::spawn(door.listen(config.listener, TowerService::new(routes), closed));
        let clients = (client, scans.clone());
        let redis = redis.map(|redis| listen(redis, clients, config.door, close.subscribe()));
        let tasks = tokio::spawn(tables.clone().run_tasks(worker.clone()));
        Ok(TableNode { worker, tables, address, close, server, redis, tasks })
    }

    /// The address that the listener is bound to, with the port that the system gave.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens for clients of Redis, if it does.
    pub fn redis_address(&self) -> Option<SocketAddr> {
        self.redis.as_ref().map(|(address, _)| *address)
    }

    /// The worker, which speaks with the coordinator for this node.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The replicas of this node, for callers in the same process.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Returns when the disk of the log has failed, with what it said: nothing is acknowledged any more, and the process should
    /// end.
    pub async fn ended(&self) -> String {
        let mut ended = self.tables.ended();
        let why = ended.wait_for(Option::is_some).await.map(|why| why.clone());
        why.ok().flatten().unwrap_or_default()
    }

    /// Leaves: everything is served elsewhere first, for at most `within`. What is stored stays.
    ///
    /// # Errors
    /// As of [`Worker::leave`].
    pub async fn leave(self, within: Duration) -> Result<(), LeaveError> {
        let left = self.worker.leave(within).await;
        self.stop().await;
        left
    }

    /// Stops without handing over: what is stored is there when the node starts again.
    pub async fn shutdown(self) {
        self.worker.shutdown().await;
        self.stop().await;
    }

    async fn stop(self) {
        let TableNode { worker, tables, close, server, redis, tasks, .. } = self;
        // No task listens when the server has ended by itself.
        let _ = close.send(true);
        tasks.abort();
        drop(worker);
        // A client that holds a connection open must not hold up the end.
        let _ = tokio::time::timeout(limits::SERVER_END, server).await;
        if let Some((_, redis)) = redis {
            let _ = tokio::time::timeout(limits::SERVER_END, redis).await;
        }
        // It waits for threads and for the disk.
        let _ = spawn_blocking(move || drop(tables)).await;
    }
}

/// Starts the listener for clients of Redis.
fn listen(
    (listener, settings): (TcpListener, RedisSettings),
    (client, scans): (TableClient, Scans),
    door: partage_door::Settings,
    stop: watch::Receiver<bool>,
) -> (SocketAddr, JoinHandle<()>) {
    let address = settings.address;
    let tables = Arc::new(RedisTables::new(client, scans, settings));
    (address, tokio::spawn(Listener::new(tables, door).listen(listener, stop)))
}

/// The listener for clients of Redis, and where they reach it. One that listens on all addresses of the machine is reached at the
/// host by which others reach the node, whose address is `announced`.
fn redis_settings(
    RedisConfig { listener, table, advertise, forwards }: RedisConfig,
    announced: &str,
) -> Result<(TcpListener, RedisSettings), std::io::Error> {
    let address = listener.local_addr()?;
    let of_node = announced.rsplit_once(':').map(|(host, _)| format!("{host}:{}", address.port()));
    let announced = match advertise {
        Some(advertise) => Some(advertise),
        None if address.ip().is_unspecified() => of_node,
        None => Some(address.to_string()),
    };
    Ok((listener, RedisSettings { table, address, announced, forwards }))
}

async fn open(
    id: NodeId,
    folder: PathBuf,
    network: Arc<NetworkTransport>,
    settings: NodeSettings,
) -> Result<Tables, OpenError> {
    let opening = spawn_blocking(move || {
        make_private(&folder);
        Tables::open(id, &folder, Arc::new(RealDisk), network, settings)
    });
    opening.await.unwrap_or_else(|error| Err(OpenError::Stopped(error.to_string())))
}

fn role(announced: &str, address: SocketAddr) -> Role {
    Role {
        announced: vec![announced.to_owned(), address.to_string()],
        // Clients may write whatever they like.
        changes: Changes::None,
        body_bytes: limits::BULK_BODY_BYTES as u64,
        ending: Ending::After(limits::DRAIN),
        ..Role::default()
    }
}
