//! One node of a dataset cluster: the driver of the machine in `partage_service::dataset::node`.
//!
//! The machine says what to do, in order; the helpers below do it. Each does one thing, and fails and tries again by
//! itself; their results come back through one queue, so that the driver takes one event after the other.
//!
//! ```text
//!  coordination service          source                    local store
//!    ▲ keys      │ mirror          │ versions, files          ▲ store files
//!  presence    watching         refreshing   loading ─────────┘
//!    ▲           └──────┐          ┌────────────┘│
//!    │                  ▼          ▼             │ readers
//!    └─────────────── driving: the machine ──────┴────────► catalogue ◄── serve
//! ```
//!
//! Nothing here delays a read: requests use the catalogue alone.

mod coordinated;
mod driving;
mod effects;
mod keyspace;
mod known;
mod loading;
mod presence;
mod refreshing;
mod remembering;
mod repair;
mod trouble;
mod warnings;
mod watching;

use crate::catalogue::{Catalogue, NodeInfo};
use crate::limits::{INPUTS, LEAVE};
use crate::local::{self, Store};
use crate::serve::{self, OrderError, Orders, ServeError, Server};
use crate::source::{Source, Throttle};
pub use coordinated::Membership;
use coordinated::{AssignedShards, DatasetHandler};
use driving::{Driver, Input};
use futures::future::BoxFuture;
use known::Known;
use partage_coordination::Coordination;
use partage_service::dataset::node::{NodeSettings, Spread};
use partage_service::dataset::{
    Address, AddressError, DatasetName, DatasetNameError, ReplicationError, Seat, VersionName,
};
use partage_worker::{LeaveError, Worker};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// What a node is to do.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// The name of its cluster: nodes of other clusters do not see it.
    pub cluster: DatasetName,
    /// The address on which it listens to clients and peers.
    pub listen: SocketAddr,
    /// The address at which peers reach it, if that is another one.
    pub address: Option<Address>,
    /// The folder for its store files and what it remembers.
    pub data_dir: PathBuf,
    /// The datasets it takes part in; none named: all that the source has.
    pub datasets: BTreeSet<DatasetName>,
    /// Its seat, which Sequins calls shard id; absent: the lowest that is free.
    pub seat: Option<Seat>,
    /// How datasets are spread over nodes.
    pub spread: Spread,
    /// Whether replicas that are lost are made good (S18).
    pub re_replicate: bool,
    /// How long nodes must be the same before shares are computed (S9).
    pub stable: Duration,
    /// How long a version stays that no request asks for and clients do not get (S15).
    pub keep: Duration,
    /// How long it waits for its peers after a restart before it serves a version that is not whole again.
    pub resume: Duration,
    /// How long it logs nothing of versions that peers have and its own source does not list, or lists with other
    /// files: a source lists a version to some nodes a moment before it does to others.
    pub unlisted: Duration,
    /// How often it looks for new versions.
    pub refresh: Duration,
    /// After how long the others take it for dead.
    pub session_ttl: Duration,
    /// How fast it loads.
    pub throttle: Throttle,
    /// Files that are read, and store files that are written, at once.
    pub load_at_once: usize,
    /// Whether store files of a local source are linked, not copied: [`is_linked`](crate::build::Options::is_linked).
    pub load_by_link: bool,
    /// Memory of what is being loaded.
    pub load_memory_bytes: usize,
    /// How it serves. [`Node::start`] sets `orders` and `announced`.
    pub serve: serve::Settings,
    /// Whether there is no coordination service: other nodes do not see it.
    pub is_alone: bool,
    /// The coordinator that orders its shards; without one it computes its share.
    pub coordinator: Option<Membership>,
    /// How long a partition is kept whose key is withdrawn: until all others must have heard (S18).
    pub let_go: Duration,
}

impl NodeOptions {
    /// The defaults: a refresh every minute, a session of 10 seconds, and those of [`NodeSettings`].
    pub fn new(cluster: DatasetName, listen: SocketAddr, data_dir: PathBuf) -> NodeOptions {
        let build = crate::build::Options::default();
        NodeOptions {
            cluster,
            listen,
            address: None,
            data_dir,
            datasets: BTreeSet::new(),
            seat: None,
            spread: Spread::default(),
            re_replicate: false,
            stable: Duration::from_millis(NodeSettings::STABLE_MS),
            keep: Duration::from_millis(NodeSettings::KEEP_MS),
            resume: Duration::from_millis(NodeSettings::RESUME_MS),
            unlisted: Duration::from_secs(30),
            refresh: Duration::from_secs(60),
            session_ttl: Duration::from_secs(10),
            throttle: Throttle::new(0),
            load_at_once: build.at_once,
            load_by_link: build.is_linked,
            load_memory_bytes: build.memory_bytes,
            serve: serve::Settings::default(),
            is_alone: false,
            coordinator: None,
            let_go: Duration::from_millis(NodeSettings::LET_GO_MS),
        }
    }
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The numbers of replicas do not go together.
    #[error(transparent)]
    Replication(#[from] ReplicationError),
    /// Other nodes could not reach it at the address that it would announce.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The server for requests cannot listen, or cannot begin its threads.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The local store cannot be used.
    #[error(transparent)]
    Store(#[from] local::Error),
}

/// The other nodes that a node with this local store saw last.
pub fn last_peers(data_dir: &Path) -> BTreeSet<Address> {
    remembering::read(&Store::folder_in(data_dir)).peers
}

/// A node that runs. Dropped without [`Node::stop`], it is missed when its session has ended.
#[derive(Debug)]
pub struct Node {
    address: SocketAddr,
    catalogue: Arc<Catalogue>,
    handle: Handle,
    server: Server,
    driver: JoinHandle<()>,
    /// Registers at the coordinator, if there is one.
    joining: Option<JoinHandle<()>>,
}

/// What callers may ask of a node, from any thread. No call waits.
#[derive(Debug, Clone)]
pub struct Handle {
    inputs: mpsc::Sender<Input>,
    known: Known,
    assigned: Arc<AssignedShards>,
    /// Its name under a coordinator, and once it is registered, its worker.
    id: Option<Arc<str>>,
    worker: Arc<OnceLock<Worker>>,
}

impl Handle {
    /// Looks for new versions now, and tries again what failed.
    pub fn refresh(&self) {
        // If the queue is full, the next refresh comes soon enough.
        let _ = self.inputs.try_send(Input::Refresh);
    }

    /// Clients get this version until another order, or with `None` the latest again: on every node, as soon as it is
    /// whole there. Of several orders the last one counts.
    ///
    /// # Errors
    /// When there is no such dataset or version, the node cannot load the version, or has no time for the order.
    pub fn pin(&self, dataset: &DatasetName, version: Option<&VersionName>) -> Result<(), OrderError> {
        self.check_pin(dataset, version)?;
        let input = Input::Pin(dataset.clone(), version.cloned());
        self.inputs.try_send(input).map_err(|_| OrderError::Busy)
    }

    /// Whether the node knows the dataset and the version, and clients can get it.
    ///
    /// # Errors
    /// When there is not.
    pub fn check_pin(&self, dataset: &DatasetName, version: Option<&VersionName>) -> Result<(), OrderError> {
        self.known.check(dataset, version)
    }
}

fn pinned(dataset: &str, version: Option<&str>) -> Result<(DatasetName, Option<VersionName>), OrderError> {
    let told = |error: DatasetNameError| OrderError::Name(error.to_string());
    Ok((DatasetName::new(dataset).map_err(told)?, version.map(VersionName::new).transpose().map_err(told)?))
}

impl Orders for Handle {
    fn refresh(&self) {
        Handle::refresh(self);
    }

    fn pin(&self, dataset: &str, version: Option<&str>) -> Result<(), OrderError> {
        let (dataset, version) = pinned(dataset, version)?;
        Handle::pin(self, &dataset, version.as_ref())
    }

    fn check_pin(&self, dataset: &str, version: Option<&str>) -> Result<(), OrderError> {
        let (dataset, version) = pinned(dataset, version)?;
        Handle::check_pin(self, &dataset, version.as_ref())
    }

    fn worker(&self) -> Option<serde_json::Value> {
        let id = self.id.as_deref()?;
        // The coordinator may ask before it has answered the registration.
        let about = self.worker.get().map(partage_worker::http::about);
        Some(about.unwrap_or_else(|| serde_json::json!({ "node": id })))
    }
}

impl Node {
    /// Opens the local store and the listener, serves what is there, and begins. It does not wait for the source or the
    /// coordination service.
    ///
    /// # Errors
    /// [`StartError`]: wrong numbers, no listener, or a store that is in use or cannot be read.
    pub fn start(
        options: NodeOptions,
        coordination: Arc<dyn Coordination>,
        source: Source,
    ) -> BoxFuture<'static, Result<Node, StartError>> {
        // Boxed, so that the compiler makes the code of a node in this crate, and not in each that starts one.
        Box::pin(Node::begin(options, coordination, source))
    }

    async fn begin(
        options: NodeOptions,
        coordination: Arc<dyn Coordination>,
        source: Source,
    ) -> Result<Node, StartError> {
        options.spread.replication.check()?;
        let data_dir = options.data_dir.clone();
        let opened = tokio::task::spawn_blocking(move || Store::open(&data_dir)).await;
        let (store, scan) = opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
        for (path, reason) in &scan.removed {
            tracing::warn!(path = %path.display(), reason, "taken out of the local store");
        }
        let no_door = |source| ServeError { at: options.listen.to_string(), source };
        let bound = partage_door::bind(options.listen).await;
        let listener = bound.and_then(tokio::net::TcpListener::into_std).map_err(no_door)?;
        let at = listener.local_addr().map_err(no_door)?;
        let address = options.address.clone().map_or_else(|| Address::new(&at.to_string()), Ok)?;
        let info = NodeInfo { shard_id: String::new(), address: address.as_str().into() };
        let catalogue = Arc::new(Catalogue::new(info));
        let (inputs, queue) = mpsc::channel(INPUTS);
        let id = options.coordinator.as_ref().map(|membership| membership.id.as_str().into());
        let (known, assigned) = (Known::default(), Arc::new(AssignedShards::default()));
        let handle =
            Handle { inputs: inputs.clone(), known, assigned: assigned.clone(), id, worker: Arc::default() };
        let mut settings = options.serve.clone();
        settings.orders = Some(Arc::new(handle.clone()));
        settings.announced = Some(address.to_string());
        let found = (store, scan.versions);
        let (membership, datasets) = (options.coordinator.clone(), options.datasets.clone());
        let shown = (catalogue.clone(), handle.clone());
        let driver = Driver::start(options, address.clone(), source, found, shown).await;
        let server = Server::start(listener, catalogue.clone(), settings)?;
        let driver = tokio::spawn(driver.run(queue, coordination));
        // After the server listens: the coordinator checks back.
        let joining = membership.map(|membership| {
            let (catalogue, reported, joined) = (catalogue.clone(), Mutex::default(), handle.worker.clone());
            let handler = DatasetHandler { assigned, inputs, catalogue, datasets, reported };
            tokio::spawn(coordinated::join(membership, address, handler, joined))
        });
        Ok(Node { address: at, catalogue, handle, server, driver, joining })
    }

    /// The socket address of the server for requests, with the port that the system has chosen for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The catalogue: the versions that the node has, and the peers that have the rest.
    pub fn catalogue(&self) -> &Arc<Catalogue> {
        &self.catalogue
    }

    /// The handle by which other tasks order a refresh or a pin.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Looks at the source now, as [`Handle::refresh`] does.
    pub fn refresh(&self) {
        self.handle.refresh();
    }

    /// As [`Handle::pin`].
    ///
    /// # Errors
    /// As there.
    pub fn pin(&self, dataset: &DatasetName, version: Option<&VersionName>) -> Result<(), OrderError> {
        self.handle.pin(dataset, version)
    }

    /// Under a coordinator: first waits until other nodes serve all its shards, as long as `within` allows, and then
    /// ends as by [`Node::stop`].
    ///
    /// # Errors
    /// When it is not certain that others have all its shards. The node has ended all the same.
    pub async fn leave(self, within: Duration) -> Result<(), LeaveError> {
        let left = match self.handle.worker.get() {
            Some(worker) => worker.leave(within).await,
            None => Ok(()),
        };
        self.stop().await;
        left
    }

    /// Withdraws its keys, so that peers no longer ask it, answers what it was asked, and ends.
    pub async fn stop(mut self) {
        if let Some(joining) = &self.joining {
            joining.abort();
        }
        if let Some(worker) = self.handle.worker.get() {
            worker.shutdown().await;
        }
        // Without a receiver it has ended already.
        let _ = self.handle.inputs.send(Input::Leave).await;
        if tokio::time::timeout(LEAVE, &mut self.driver).await.is_err() {
            // The coordination service does not answer: its keys go with the session.
            self.driver.abort();
        }
        let server = self.server;
        // The server reports a panic of its threads.
        let _ = tokio::task::spawn_blocking(move || server.stop()).await;
    }
}
