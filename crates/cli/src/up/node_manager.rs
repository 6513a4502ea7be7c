//! The nodes of `up`, of all four kinds, each with a runtime of its own, so that one can be killed as if its machine had lost
//! power: its tasks, connections and listener are gone at once, and no peer hears of it before.

use super::sample_dataset::SampleDataset;
use crate::output::Failure;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use partage_door::{Door, Role, Settings, TowerService};
use partage_kv::{Config, Node};
use partage_shuffle::node::NodeSettings as ShuffleSettings;
use partage_shuffle::server::{Config as ShuffleConfig, ShuffleNode, is_in_use};
use partage_table::NodeSettings;
use partage_table::server::{Config as TableConfig, RedisConfig, TableNode};
use partage_wire::json::ErrorBody;
use partage_worker::{DiskLimits, Worker};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The listener for clients of Redis has the port so much above that of its node.
pub const REDIS_ABOVE: u16 = 5;

/// Slots of the pool of shuffles: some for each of ten nodes. What nodes compare of each in turn costs something also at rest.
const SHUFFLE_SLOTS: u32 = 24;

/// What a node of shuffles keeps of records in memory: three of them leave a laptop its own.
const SHUFFLE_MEMORY: u64 = 128 << 20;

/// Threads of one node.
const THREADS: usize = 1;

/// Rest between two looks whether a folder is free.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long all nodes may take to stop.
const STOP: Duration = Duration::from_secs(3);

struct RunningNode {
    address: SocketAddr,
    /// Kept for the node inside it; taken when it is dropped.
    runtime: Option<Runtime>,
    service: Option<Service>,
}

/// What runs on a node, so that it can be stopped as a service is.
enum Service {
    KeyValue(Worker),
    /// It answers requests on threads of its own.
    Dataset(Box<partage_dataset::node::Node>),
    /// Its replicas have threads of their own.
    Table(Box<TableNode>),
    /// Its machines and its files have threads of their own.
    Shuffle(Box<ShuffleNode>),
}

impl Drop for RunningNode {
    /// In the background: the thread that drops the node may belong to a runtime, which must not wait.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        let service = self.service.take();
        std::thread::spawn(move || drop(service));
    }
}

/// Whether a node of that name is one of the dataset: `d1`, and not `n1`.
pub fn is_of_dataset(id: &str) -> bool {
    id.starts_with('d')
}

/// Whether a node of that name is one of the tables: `t1`.
pub fn is_of_tables(id: &str) -> bool {
    id.starts_with('t')
}

/// Whether a node of that name is one of the pool of shuffles: `s1`.
pub fn is_of_shuffles(id: &str) -> bool {
    id.starts_with('s')
}

/// Starts, lists and kills the nodes.
#[derive(Clone)]
pub struct NodeManager {
    coordinator: String,
    dataset: Arc<SampleDataset>,
    /// The folder with `tables` and `shuffles`, which have a folder for each node.
    data: Arc<FilePath>,
    /// On how many nodes shuffles store each record, if their pool is created now.
    replicas: u32,
    door: Settings,
    running: Arc<Mutex<BTreeMap<String, RunningNode>>>,
}

impl NodeManager {
    pub fn new(
        coordinator: String,
        dataset: SampleDataset,
        data: PathBuf,
        replicas: u32,
        door: Settings,
    ) -> NodeManager {
        let (dataset, data) = (Arc::new(dataset), data.into());
        NodeManager { coordinator, dataset, data, replicas, door, running: Arc::default() }
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<String, RunningNode>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name and the address of each node that runs.
    pub fn nodes(&self) -> Vec<(String, SocketAddr)> {
        self.running().iter().map(|(id, node)| (id.clone(), node.address)).collect()
    }

    /// The addresses on which nodes of tables listen to clients of Redis.
    pub fn redis(&self) -> Vec<String> {
        let running = self.running();
        let tables = running.values().filter_map(|node| match &node.service {
            Some(Service::Table(node)) => node.redis_address(),
            _ => None,
        });
        tables.map(|address| address.to_string()).collect()
    }

    /// The sample dataset that the dataset nodes serve.
    pub fn dataset(&self) -> &SampleDataset {
        &self.dataset
    }

    /// One node more; by its name one of the dataset, of the tables, of the pool of shuffles, or of the key-value service.
    pub async fn add(&self, id: &str, listen: SocketAddr) -> Result<SocketAddr, Failure> {
        if self.running().contains_key(id) {
            return Err(Failure::refused(format!("node {id} is up already: choose another name")));
        }
        let runtime = Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
        let runtime = runtime.map_err(|error| Failure::failed(format!("cannot start node {id}: {error}")))?;
        let (manager, name) = (self.clone(), id.to_owned());
        let started = runtime.spawn(async move { manager.start(name, listen).await });
        match started.await.map_err(|error| error.to_string()).and_then(|node| node) {
            Ok((address, service)) => {
                let node = RunningNode { address, runtime: Some(runtime), service: Some(service) };
                self.running().insert(id.to_owned(), node);
                Ok(address)
            }
            Err(why) => {
                runtime.shutdown_background();
                Err(Failure::failed(format!("node {id}: {why}")).help("choose a free --port, or 0 for any"))
            }
        }
    }

    /// Starts a node on this runtime.
    async fn start(self, name: String, listen: SocketAddr) -> Result<(SocketAddr, Service), String> {
        let NodeManager { coordinator, dataset, data, replicas, door, .. } = self;
        if is_of_dataset(&name) {
            let node = dataset.node(&name, listen, &coordinator, door).await?;
            return Ok((node.address(), Service::Dataset(Box::new(node))));
        }
        if is_of_tables(&name) {
            let folder = data.join("tables").join(&name);
            let node = store(name, listen, coordinator, folder, door).await?;
            return Ok((node.address(), Service::Table(Box::new(node))));
        }
        if is_of_shuffles(&name) {
            let folder = data.join("shuffles").join(&name);
            wait_until_free(&folder).await?;
            let listener = bind(listen).await?;
            let config = ShuffleConfig {
                slots: SHUFFLE_SLOTS,
                replicas,
                settings: ShuffleSettings::of_memory(SHUFFLE_MEMORY),
                // As for tables.
                disk: DiskLimits::NONE,
                door,
                routes: crate::shuffle::flight::routes(),
                ..ShuffleConfig::new(name, vec![coordinator], listener, folder)
            };
            let node = ShuffleNode::start(config).await.map_err(|error| error.to_string())?;
            return Ok((node.address(), Service::Shuffle(Box::new(node))));
        }
        let (address, worker) = keep(name, listen, coordinator, door).await?;
        Ok((address, Service::KeyValue(worker)))
    }

    /// Takes a node away, as a power cut would.
    pub fn kill(&self, id: &str) -> bool {
        self.running().remove(id).is_some()
    }

    /// Stops all nodes side by side. Each says goodbye: the next `up` does not take them for lost.
    pub async fn stop(&self) {
        let nodes = std::mem::take(&mut *self.running());
        let mut stopping = JoinSet::new();
        for mut node in nodes.into_values() {
            stopping.spawn(async move {
                match node.service.take() {
                    Some(Service::KeyValue(worker)) => worker.shutdown().await,
                    Some(Service::Dataset(reader)) => reader.stop().await,
                    Some(Service::Table(node)) => node.shutdown().await,
                    Some(Service::Shuffle(node)) => node.shutdown().await,
                    None => {}
                }
            });
        }
        // A node that does not end by then ends with the process.
        let _ = tokio::time::timeout(STOP, stopping.join_all()).await;
    }

    /// Opens the control listener: `POST /kill/<node>` and `POST /add/<node>`.
    pub async fn open(&self, listen: SocketAddr) -> Result<SocketAddr, Failure> {
        let cannot = |error| Failure::failed(format!("cannot listen on {listen}: {error}"));
        let listener = partage_door::bind(listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let router = Router::new()
            .route("/kill/{node}", post(kill))
            .route("/add/{node}", post(add))
            .method_not_allowed_fallback(refuse_other)
            .fallback(refuse_other)
            .with_state(self.clone());
        let role = Role { body_bytes: partage_door::limits::SMALL_BODY, ..Role::default() };
        let door = Door::new(role, self.door.clone());
        // It ends with the process.
        tokio::spawn(async move {
            let (_open, stop) = watch::channel(false);
            door.listen(listener, TowerService::new(router), stop).await;
        });
        Ok(address)
    }
}

async fn bind(listen: SocketAddr) -> Result<TcpListener, String> {
    partage_door::bind(listen).await.map_err(|error| format!("cannot listen on {listen}: {error}"))
}

/// A node of shuffles of that name that was killed a moment ago may have the folder still. A node registers before it opens its
/// files, so none starts before they are free.
async fn wait_until_free(folder: &FilePath) -> Result<(), String> {
    let until = Instant::now() + STOP;
    while is_in_use(folder.to_owned()).await.map_err(|error| error.to_string())? && Instant::now() < until {
        sleep(LOOK_AGAIN).await;
    }
    Ok(())
}

/// Starts a node of tables on this runtime. One of that name that was killed a moment ago may have the folder still: that is
/// waited for.
async fn store(
    name: String,
    listen: SocketAddr,
    coordinator: String,
    folder: PathBuf,
    door: Settings,
) -> Result<TableNode, String> {
    let until = Instant::now() + STOP;
    loop {
        let config = table_config(&name, listen, &coordinator, &folder, &door).await?;
        match TableNode::start(config).await {
            Err(error) if error.is_locked() && Instant::now() < until => sleep(LOOK_AGAIN).await,
            started => return started.map_err(|error| error.to_string()),
        }
    }
}

async fn table_config(
    name: &str,
    listen: SocketAddr,
    coordinator: &str,
    folder: &FilePath,
    door: &Settings,
) -> Result<TableConfig, String> {
    let listener = bind(listen).await?;
    let redis =
        SocketAddr::new(listen.ip(), if listen.port() == 0 { 0 } else { listen.port() + REDIS_ABOVE });
    let redis = Some(RedisConfig::new(bind(redis).await?));
    let config = TableConfig::new(name, coordinator, listener, folder.to_owned());
    // A look at the program on a disk that is nearly full should show more than a refusal.
    let settings = NodeSettings { disk: DiskLimits::NONE, ..NodeSettings::default() };
    Ok(TableConfig { door: door.clone(), redis, settings, ..config })
}

/// Starts a node of the key-value service on this runtime, to live as long as that does.
async fn keep(
    name: String,
    listen: SocketAddr,
    coordinator: String,
    door: Settings,
) -> Result<(SocketAddr, Worker), String> {
    let listener = bind(listen).await?;
    let node = Node::start(Config { door, ..Config::new(name, coordinator, listener) }).await;
    let node = node.map_err(|error| error.to_string())?;
    let (address, worker) = (node.address(), node.worker().clone());
    tokio::spawn(async move {
        let _node = node;
        std::future::pending::<()>().await;
    });
    Ok((address, worker))
}

/// The answer to a request: what has happened to the node, or an error in the shape of all others.
type ControlAnswer = Result<String, (StatusCode, Json<ErrorBody>)>;

/// Refuses every other path and method.
async fn refuse_other(request: Request) -> ControlAnswer {
    let path = request.uri().path();
    let is_known = path.starts_with("/kill/") || path.starts_with("/add/");
    let (status, kind) = match is_known {
        true => (StatusCode::METHOD_NOT_ALLOWED, "method"),
        false => (StatusCode::NOT_FOUND, "not_found"),
    };
    let what = format!("{} {path} is nothing here", request.method());
    Err((status, Json(ErrorBody::new(kind, what, "POST /kill/NODE and POST /add/NODE are there"))))
}

async fn kill(State(manager): State<NodeManager>, Path(node): Path<String>) -> ControlAnswer {
    if manager.kill(&node) {
        return Ok(format!("{node} is dead; see `partage status`\n"));
    }
    let names: Vec<_> = manager.nodes().into_iter().map(|(id, _)| id).collect();
    let help = format!("choose one of {}", names.join(", "));
    let error = ErrorBody::new("not_found", format!("there is no node {node} here"), help);
    Err((StatusCode::NOT_FOUND, Json(error)))
}

async fn add(State(manager): State<NodeManager>, Path(node): Path<String>) -> ControlAnswer {
    match manager.add(&node, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await {
        Ok(address) => Ok(format!("{node} is up at {address}\n")),
        Err(failure) => {
            let error = ErrorBody::new("refused", failure.what(), "choose another name");
            Err((StatusCode::CONFLICT, Json(error)))
        }
    }
}
