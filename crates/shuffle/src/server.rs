//! One node of a pool: a listener, a worker, the machines.
//!
//! One address has both protocols: the frames of shuffles, for nodes and clients, and HTTP, for the coordinator, for people, and
//! for what [`Config::routes`] adds. A connection is told by its first bytes, which are those of no request of HTTP. So whoever
//! knows a node's address in the map knows where its frames go.
//!
//! ```text
//!  start: members ─► worker registers ─► listener ─► the pool is there ─► first map ─► node opens its files ─► orders
//! ```

use crate::limits;
use crate::network::{PoolService, WireTransport};
use crate::node::{BATCHES, Node, NodeConfig, NodeError, NodeSettings, Roles};
use crate::objects::{ObjectPlace, ObjectStoreConfig};
use crate::pool::{
    DISK_LIMITS, Doors, LocalPool, PoolError, PoolHandler, PoolLabels, PoolListener, PoolSpec, Running, Seen,
    Settings, Starting, attend_disk, attend_leads, ensure, hand_over_all, look, metrics_text, routes,
    running,
};
use crate::store::is_locked;
use axum::Router;
use bytes::Bytes;
use partage_core::base::name::{KeyspaceName, NameError, NodeId};
use partage_core::keyspace::KeyspaceKind;
use partage_door::state::make_private;
use partage_door::{AcceptedConnection, Door, Ending, Role, TowerService, Windows};
use partage_journal::{Disk, RealDisk};
use partage_maps::MapClient;
use partage_service::shuffle::BufferId;
use partage_shuffle_wire::frame::MAGIC;
use partage_shuffle_wire::node::Peer;
use partage_shuffle_wire::transport::{Address, Listener, Server, Timing};
use partage_worker::http::{WORKER_PATH, router_with};
use partage_worker::{CallbackTimeouts, DiskLimits, LeaveError, MembersError, Memberships, Worker};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// What a node needs to be told.
pub struct Config {
    /// Its name, kept across restarts.
    pub node: String,
    /// Coordinators, `host:port`.
    pub coordinators: Vec<String>,
    /// Where it listens. Bind port 0 to take any.
    pub listener: TcpListener,
    /// Where others reach it, if that is not where it listens.
    pub advertise: Option<String>,
    /// A Unix socket at which it listens too, for clients on this machine.
    pub unix: Option<PathBuf>,
    /// Its folder: batches, decisions, and what it knows of them.
    pub folder: PathBuf,
    /// Its share of every load, relative to other nodes.
    pub capacity: f64,
    /// What fails with it.
    pub zone: Option<String>,
    /// A smaller failure domain inside the zone.
    pub rack: Option<String>,
    /// Words to pin and exclude slots by.
    pub labels: Vec<String>,
    /// The keyspace of its pool.
    pub pool: String,
    /// Slots of the pool, if this node creates it.
    pub slots: u32,
    /// Replicas of each slot, if this node creates it.
    pub replicas: u32,
    /// Of the machines and the files, and what the node does in its pool.
    pub settings: NodeSettings,
    /// Of the disk.
    pub disk: DiskLimits,
    /// Who may connect over HTTP, and what that may cost.
    pub door: partage_door::Settings,
    /// Where slots of sealed shuffles go when the disk fills. All nodes of a pool should have the same.
    pub object_store: Option<Arc<dyn ObjectPlace>>,
    /// Other protocols at the same address.
    pub routes: Option<MoreRoutes>,
}

/// Makes routes for a listener of a node. They are made before the node runs.
pub type MoreRoutes = Arc<dyn Fn(LocalPool) -> Router + Send + Sync>;

/// The pool of a node that names none.
pub const POOL: &str = "default";
/// Slots of a pool: enough that each of some tens of nodes has several, few enough that what nodes compare of each is little.
pub const SLOTS: u32 = 256;
/// Replicas of each slot.
pub const REPLICAS: u32 = 2;

impl Config {
    /// A node of capacity 1 in no zone, of the pool [`POOL`], with default settings.
    pub fn new(
        node: impl Into<String>,
        coordinators: Vec<String>,
        listener: TcpListener,
        folder: PathBuf,
    ) -> Config {
        Config {
            node: node.into(),
            coordinators,
            listener,
            advertise: None,
            unix: None,
            folder,
            capacity: 1.0,
            zone: None,
            rack: None,
            labels: Vec::new(),
            pool: POOL.to_owned(),
            slots: SLOTS,
            replicas: REPLICAS,
            settings: NodeSettings::default(),
            disk: DISK_LIMITS,
            door: partage_door::Settings::default(),
            object_store: None,
            routes: None,
        }
    }
}

/// A node that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A listener is of no use.
    #[error("the node cannot listen: {0}")]
    Listener(#[from] std::io::Error),
    /// Its folder cannot be made.
    #[error("{}: {source}: name a folder that this process may write", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The error that the operating system gave.
        source: std::io::Error,
    },
    /// What is known of the stored slots cannot be read or written.
    #[error(transparent)]
    Members(#[from] MembersError),
    /// What is stored cannot be opened.
    #[error(transparent)]
    Open(#[from] NodeError),
    /// It cannot register.
    #[error(transparent)]
    Worker(#[from] partage_worker::StartError),
    /// There is no pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The start was given up.
    #[error("the start was given up: {0}")]
    Stopped(String),
}

/// A running node.
pub struct ShuffleNode {
    worker: Worker,
    running: Arc<Running>,
    address: SocketAddr,
    close: watch::Sender<bool>,
    ending: CancellationToken,
    listeners: JoinSet<()>,
    attends: JoinSet<()>,
    starting: watch::Sender<Option<Arc<Running>>>,
    _maps: MapClient,
}

impl ShuffleNode {
    /// Registers, opens what is stored, and serves. Returns when the pool is there and the node is part of it.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub async fn start(config: Config) -> Result<ShuffleNode, StartError> {
        let address = config.listener.local_addr()?;
        let announced = config.advertise.clone().unwrap_or_else(|| address.to_string());
        let (id, pool) = (NodeId::new(&config.node)?, KeyspaceName::new(&config.pool)?);
        let labels = PoolLabels::of(&pool)?;
        let spec = spec_of(&config, &pool, &labels);
        let unix = match &config.unix {
            Some(path) => Some(Listener::bind(&Address::Unix(path.clone())).await?),
            None => None,
        };
        let (disk, members) = open_members(config.folder.clone()).await?;
        let objects = config.object_store.clone().map(|place| objects_of(place, members.clone()));
        let (starting, started) = watch::channel(None);
        let handler =
            PoolHandler { pool: pool.clone(), members, starting: started.clone(), last: Default::default() };
        let worker = builder(&config, &announced, &labels).start_shared(Arc::new(handler)).await?;
        let (tell, seen) = watch::channel(None);
        let (close, closed) = watch::channel(false);
        let ending = CancellationToken::new();
        let door = Door::new(role(&announced, address), config.door);
        let more_routes = config.routes.map(|routes| (routes, config.settings.protocol_bytes));
        let service = service(&worker, &door, (id.clone(), &started, seen.clone()), more_routes);
        let mut listeners = JoinSet::new();
        let stop = (closed, ending.clone());
        listeners.spawn(listen(door, config.listener, service, started.clone(), stop));
        if let Some(unix) = unix {
            listeners.spawn(listen_unix(unix, started, ending.clone()));
        }
        let settings = pool_settings(&config.coordinators, &spec, config.settings.roles).await?;
        let listener = PoolListener { pool: pool.clone(), me: id.clone(), labels, tell };
        let keyspaces = BTreeSet::from([pool.clone()]);
        let maps = MapClient::follow_with(config.coordinators.clone(), keyspaces, listener);
        let first = first_map(seen.clone()).await?;
        let incarnation = worker.incarnation().ok_or_else(|| lost("the worker has ended"))?;
        let own = Peer { node: id.clone(), incarnation };
        let (sending, bounds) = (config.settings.sending_bytes, config.settings.connection_bounds());
        let transport = WireTransport::bounded(own.clone(), Timing::default(), Handle::current(), sending);
        let transport = Arc::new(transport);
        transport.set_addresses(&first.frame_addresses());
        let led = pool.clone();
        let node_config = NodeConfig {
            id: BufferId { node: id.clone(), incarnation },
            pool,
            folder: config.folder.clone(),
            disk,
            settings: config.settings,
        };
        let (map, link) = (Arc::new(first.pool_map(1, settings.replicas)), Arc::clone(&transport));
        let opening = spawn_blocking(move || Node::start_with_objects(node_config, map, link, objects));
        let node = opening.await.map_err(lost)??;
        let server = Server::bounded(own, Timing::default(), PoolService::new(id, &node), bounds);
        let running = Arc::new(Running { node, transport, server });
        starting.send_replace(Some(Arc::clone(&running)));
        let mut attends = JoinSet::new();
        attends.spawn(attend_maps(Arc::clone(&running), seen, (config.coordinators, spec, settings)));
        attends.spawn(attend_leads(led, Arc::clone(&running), worker.clone()));
        attends.spawn(attend_disk(config.disk, config.folder, Arc::clone(&running), worker.clone()));
        Ok(ShuffleNode { worker, running, address, close, ending, listeners, attends, starting, _maps: maps })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The worker inside.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The node inside.
    pub fn node(&self) -> &Node {
        &self.running.node
    }

    /// Returns when the node has ended by itself, with what it said: it acknowledges nothing any more, and the process should
    /// end.
    pub async fn ended(&self) -> String {
        loop {
            if let Some(why) = self.running.node.ended() {
                return why;
            }
            sleep(limits::END_LOOK).await;
        }
    }

    /// Leaves: other nodes have all that it has first, for at most `within`.
    ///
    /// # Errors
    /// As of [`Worker::leave`].
    pub async fn leave(self, within: Duration) -> Result<(), LeaveError> {
        let until = Instant::now() + within;
        self.running.node.stop_standing_in();
        // Orders to drop replicas wait for what lies here. Without a replica none comes.
        if self.worker.replicas().is_empty() {
            hand_over_all(&self.running.node, until).await;
        }
        let left = self.worker.leave(until.saturating_duration_since(Instant::now())).await;
        self.stop().await;
        left
    }

    /// Stops without handing over: what is stored is there when the node starts again.
    pub async fn shutdown(self) {
        self.worker.shutdown().await;
        self.stop().await;
    }

    async fn stop(self) {
        let ShuffleNode { worker, running, close, ending, mut listeners, mut attends, starting, .. } = self;
        ending.cancel();
        // Nobody listens when the listener has ended by itself.
        let _ = close.send(true);
        attends.shutdown().await;
        drop(worker);
        // A client that holds a connection open must not hold up the end.
        let all = async { while listeners.join_next().await.is_some() {} };
        let _ = timeout(limits::SERVER_END, all).await;
        listeners.shutdown().await;
        running.node.end();
        starting.send_replace(None);
        // It waits for threads and for the disk.
        let _ = spawn_blocking(move || drop(running)).await;
    }
}

fn lost(why: impl std::fmt::Display) -> StartError {
    StartError::Stopped(why.to_string())
}

/// Whether a node that runs, in this process or another one, has this folder: no other one can start with it.
///
/// # Errors
/// The disk failed.
pub async fn is_in_use(folder: PathBuf) -> Result<bool, StartError> {
    let looking = spawn_blocking(move || is_locked(&RealDisk, &folder.join(BATCHES)));
    Ok(looking.await.map_err(lost)?.map_err(NodeError::from)?)
}

/// The disk, and the file of what is stored here.
async fn open_members(folder: PathBuf) -> Result<(Arc<dyn Disk>, Memberships), StartError> {
    let opening = spawn_blocking(move || -> Result<(Arc<dyn Disk>, Memberships), StartError> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let failed = |source| StartError::Folder { path: folder.clone(), source };
        disk.create_dir(&folder).map_err(failed)?;
        make_private(&folder);
        let path = folder.join("members");
        let (members, damage) = Memberships::open(Arc::clone(&disk), &path, false)?;
        if let Some(damage) = damage {
            tracing::error!(
                file = %path.display(), offset = damage.offset,
                "damaged ({}): the coordinator takes this node for one that has nothing of its slots", damage.what
            );
        }
        Ok((disk, members))
    });
    opening.await.map_err(lost)?
}

/// The object store of a node: what it puts has the name of the cluster that everything on its disk is of.
fn objects_of(place: Arc<dyn ObjectPlace>, members: Memberships) -> ObjectStoreConfig {
    ObjectStoreConfig { place, cluster: Arc::new(move || members.cluster()) }
}

/// The pool as this node would create it.
fn spec_of(config: &Config, pool: &KeyspaceName, labels: &PoolLabels) -> PoolSpec {
    PoolSpec {
        name: pool.clone(),
        slots: config.slots,
        replicas: config.replicas,
        storage: labels.storage.clone(),
    }
}

fn builder(config: &Config, announced: &str, labels: &PoolLabels) -> partage_worker::Builder {
    let mut builder = Worker::builder(config.node.clone(), config.coordinators.clone(), announced)
        .kinds([KeyspaceKind::Shuffle])
        .check_path(WORKER_PATH)
        .callback_timeouts(CallbackTimeouts {
            callback_ms: limits::CALLBACK_MS,
            ..CallbackTimeouts::default()
        })
        .capacity(config.capacity)
        .labels(config.labels.iter().cloned().chain(labels.of_roles(config.settings.roles)));
    if let Some(zone) = &config.zone {
        builder = builder.zone(zone);
    }
    if let Some(rack) = &config.rack {
        builder = builder.rack(rack);
    }
    builder
}

/// Changes need the mark against pages of other sites, as a `DELETE` of a shuffle; gRPC, and so Arrow Flight, has it by its form.
/// Attempts over Arrow Flight are held back while the buffer has no room, and many share the connection of a program.
fn role(announced: &str, address: SocketAddr) -> Role {
    Role {
        announced: vec![announced.to_owned(), address.to_string()],
        ending: Ending::After(limits::DRAIN),
        windows: Windows { stream: limits::STREAM_WINDOW, connection: limits::CONNECTION_WINDOW },
        ..Role::default()
    }
}

/// What is answered over HTTP. Other protocols have so many bytes of memory.
fn service(
    worker: &Worker,
    door: &Door,
    (me, started, seen): (NodeId, &Starting, watch::Receiver<Option<Seen>>),
    more_routes: Option<(MoreRoutes, u64)>,
) -> TowerService {
    let (counted, of) = (door.clone(), started.clone());
    let more = move || {
        let running = of.borrow().clone();
        counted.text("partage_worker") + &running.map(|running| metrics_text(&running)).unwrap_or_default()
    };
    let doors = Doors::new(me, started.clone(), seen);
    let mut all = router_with(worker, more).merge(routes(doors.clone()));
    if let Some((more_routes, bytes)) = more_routes {
        all = all.merge(more_routes(LocalPool::new(doors, bytes)));
    }
    TowerService::new(all)
}

/// The pool's settings: asked for until a coordinator says them. It is there, as it has taken the node in.
async fn pool_settings(
    coordinators: &[String],
    spec: &PoolSpec,
    roles: Roles,
) -> Result<Settings, StartError> {
    let mut is_said = false;
    loop {
        match ensure(coordinators, spec).await {
            Ok(settings) if !settings.is_parted && !roles.stores() => {
                return Err(PoolError::Unparted(spec.name.clone(), spec.storage.clone()).into());
            }
            Ok(settings) => return Ok(settings),
            Err(taken @ PoolError::Taken(..)) => return Err(taken.into()),
            Err(why) => {
                if !std::mem::replace(&mut is_said, true) {
                    tracing::warn!("{why}; the node asks again until one does");
                }
                sleep(limits::POOL_WAIT).await;
            }
        }
    }
}

async fn first_map(mut seen: watch::Receiver<Option<Seen>>) -> Result<Seen, StartError> {
    let first = seen.wait_for(Option::is_some).await.map_err(lost)?.clone();
    first.ok_or_else(|| lost("there is no map"))
}

/// Hands on what the maps say, and how many replicas the pool is to have: runs until it is dropped.
async fn attend_maps(
    running: Arc<Running>,
    mut seen: watch::Receiver<Option<Seen>>,
    (coordinators, spec, mut settings): (Vec<String>, PoolSpec, Settings),
) {
    let mut generation = 1;
    let mut look_at = Instant::now() + limits::POOL_LOOK;
    // What has come since the first map.
    seen.mark_changed();
    loop {
        tokio::select! {
            changed = seen.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(look_at) => {
                look_at = Instant::now() + limits::POOL_LOOK;
                // Without a coordinator the pool is as it was; one that somebody has deleted is created by no node that runs.
                match look(&coordinators, &spec).await {
                    Ok(Some(now)) if now != settings => settings = now,
                    _ => continue,
                }
            }
        }
        let Some(now) = seen.borrow_and_update().clone() else { continue };
        generation += 1;
        running.transport.set_addresses(&now.frame_addresses());
        running.node.set_buffers(now.buffers.clone());
        let map = Arc::new(now.pool_map(generation, settings.replicas));
        running.node.set_map_when_room(map).await;
    }
}

/// Accepts connections until the node is to end: frames are for the node's server, all else is HTTP.
async fn listen(
    door: Door,
    listener: TcpListener,
    service: TowerService,
    started: Starting,
    (mut closed, ending): (watch::Receiver<bool>, CancellationToken),
) {
    let under_way = Arc::new(Semaphore::new(limits::UNDER_WAY));
    let framed = Arc::new(Semaphore::new(limits::FRAMED));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = door.accept(&listener) => accepted,
            Some(_) = connections.join_next() => continue,
            () = is_over(&mut closed) => break,
        };
        let Ok(permit) = Arc::clone(&under_way).try_acquire_owned() else { continue };
        let (door, service, started) = (door.clone(), service.clone(), started.clone());
        let (stopped, ending, framed) = (closed.clone(), ending.clone(), Arc::clone(&framed));
        connections.spawn(async move {
            let accepted = tokio::select! {
                accepted = door.wait_for_first_byte(accepted) => accepted,
                () = ending.cancelled() => None,
            };
            let Some(accepted) = accepted else { return };
            let peer = accepted.peer;
            let served = if says_frames(&accepted.stream).await {
                // However many clients have connections of frames, there is room to tell others apart, and for HTTP.
                drop(permit);
                let Ok(_framed) = framed.try_acquire_owned() else { return };
                serve_frames(stream_of(accepted), &started, ending).await
            } else {
                let served = door.serve(accepted, Bytes::new(), service, stopped).await;
                drop(permit);
                served
            };
            if let Err(error) = served {
                tracing::debug!(%peer, %error, "a connection broke");
            }
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Waits until it is true, or gone.
async fn is_over(closed: &mut watch::Receiver<bool>) {
    let _ = closed.wait_for(|closed| *closed).await;
}

/// Only the stream: the server of frames counts its connections itself.
fn stream_of(accepted: AcceptedConnection) -> TcpStream {
    accepted.stream
}

/// Whether a connection begins as frames do.
async fn says_frames(stream: &TcpStream) -> bool {
    let latest = Instant::now() + limits::FIRST_BYTES;
    let mut first = [0; MAGIC.len()];
    loop {
        let Ok(Ok(count)) = tokio::time::timeout_at(latest, stream.peek(&mut first)).await else {
            return false;
        };
        let come = first.get(..count).unwrap_or_default();
        if count == 0 || !MAGIC.starts_with(come) || Instant::now() >= latest {
            return false;
        }
        if count == MAGIC.len() {
            return true;
        }
        // Fewer are rare, and nothing wakes at the last one.
        sleep(limits::FIRST_BYTES_REST).await;
    }
}

async fn serve_frames(
    stream: TcpStream,
    started: &Starting,
    ending: CancellationToken,
) -> Result<(), std::io::Error> {
    let running = tokio::select! {
        running = running(started) => running,
        () = ending.cancelled() => None,
    };
    match running {
        Some(running) => running.server.serve_stream(stream, ending).await,
        None => Ok(()),
    }
}

async fn listen_unix(listener: Listener, started: Starting, ending: CancellationToken) {
    let running = tokio::select! {
        running = running(&started) => running,
        () = ending.cancelled() => None,
    };
    if let Some(running) = running {
        Arc::clone(&running.server).serve(listener, ending).await;
    }
}
