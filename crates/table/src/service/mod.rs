//! Tables as a service of a worker: it turns the coordinator's orders into replicas of a [`Node`], and their reports go back with
//! the worker's heartbeats.
//!
//! ```text
//!  coordinator ── orders ──► worker ── load, unload, drop ──► Tables ──► Node
//!       ▲                      │  └──── every order ────────────┘         │
//!       ╰─── heartbeats ◄──────┴── reports ◄── Notices ◄──────────────────╯
//! ```
//!
//! | question | file |
//! |---|---|
//! | what a node knows of its stored replicas before it hears a coordinator | [`Memberships`], of the worker |
//! | what follows from the notices of the node | `notices.rs` |
//! | what it does with children and parents, of splits and merges; where a shard would be cut | `children.rs` |
//! | what it does with a disk that is full or nearly full, or stores nothing | `disk.rs` |
//! | what it does when the system's time of day is set | `clock.rs` |
//! | what it tells the worker of read replicas | `read_replicas.rs` |
//! | how a request gets to its replica, and waits for a leader that has just changed | `requests.rs` |

mod busiest;
mod children;
mod clock;
mod counts;
mod disk;
mod index;
mod notices;
mod read_replicas;
mod requests;

pub use partage_worker::{MembersError, Membership, Memberships};
pub use requests::{Refusal, Refused};

use crate::error::{OpenError, ReplicaError};
use crate::network::{NetworkTransport, PacketSink};
use crate::node::{Identity, Node, StoredReplica, folders};
use crate::settings::NodeSettings;
use crate::transport::Packet;
use children::{Medians, replica_settings};
pub(crate) use counts::FeedStream;
use counts::RequestCounts;
use disk::DiskFigures;
use notices::Notices;
use partage_core::base::id::{Epoch, Incarnation, PlacementId, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Role;
use partage_core::keyspace::sharding::{Bounds, Sharding};
use partage_core::node::load::{Load, Profile};
use partage_journal::{Disk, is_full};
use partage_service::table::member;
use partage_worker::{
    Assignment, Damaged, DropReason, Failure, Handler, KeyspaceBrief, Order, Ownership, Peer, ReplicaKey,
    ReplicationReports, Stored, StoredReplicas, Worker, async_trait,
};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Why a node of tables does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folder cannot be made.
    #[error("{}: {source}: {}", path.display(), folder_help(source))]
    Folder {
        /// The node's folder, as the settings name it.
        path: PathBuf,
        /// The error that the operating system gave.
        source: std::io::Error,
    },
    /// What is known of the stored replicas cannot be read or written.
    #[error("{0}")]
    Members(#[from] MembersError),
    /// The log or a store cannot be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The thread that opened has stopped.
    #[error("the start was given up: {0}")]
    Stopped(String),
}

/// The way out where a folder cannot be made.
fn folder_help(error: &std::io::Error) -> &'static str {
    match is_full(error) {
        true => "free room on that disk, and start the node again",
        false => "name a folder that this process may write",
    }
}

/// The tables of one node. Cheap to clone.
#[derive(Clone)]
pub struct Tables(Arc<Inner>);

struct Inner {
    node: Node,
    network: Arc<NetworkTransport>,
    id: NodeId,
    members: Memberships,
    found: Vec<StoredReplica>,
    notices: Arc<Notices>,
    counts: RequestCounts,
    reports: ReplicationReports,
    orders: Mutex<Orders>,
    medians: Medians,
    disk: DiskFigures,
}

/// The latest orders of the coordinator.
#[derive(Debug, Default)]
struct Orders {
    incarnation: Incarnation,
    latest: BTreeMap<ReplicaKey, Order>,
    /// Where the nodes are that have other replicas of the same shards, as the network knows it.
    addresses: BTreeMap<NodeId, String>,
}

impl Orders {
    /// Takes in an order, or forgets a replica. Says where the other nodes are if that has changed.
    fn change(&mut self, replica: &ReplicaKey, order: Option<&Order>) -> Option<BTreeMap<NodeId, String>> {
        match order {
            Some(order) => self.latest.insert(replica.clone(), order.clone()),
            None => self.latest.remove(replica),
        };
        let is_known = |peer: &Peer| {
            peer.address.as_ref().is_none_or(|address| self.addresses.get(&peer.node) == Some(address))
        };
        let named = |peer: &Peer| Some((peer.node.clone(), peer.address.clone()?));
        if order.is_some_and(|order| order.peers.iter().all(is_known)) {
            return None;
        }
        let peers = self.latest.values().flat_map(|order| &order.peers);
        self.addresses = peers.filter_map(named).collect();
        // What the latest order says of a node is true, whatever older ones say.
        let newest = order.into_iter().flat_map(|order| &order.peers);
        self.addresses.extend(newest.filter_map(named));
        Some(self.addresses.clone())
    }
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables").field("node", &self.0.id).finish_non_exhaustive()
    }
}

impl Tables {
    /// Opens what is stored in `folder`, for the node of that name. Blocks for as long as that takes.
    ///
    /// # Errors
    /// What cannot be used, and what to do.
    pub fn open(
        id: NodeId,
        folder: &Path,
        disk: Arc<dyn Disk>,
        network: Arc<NetworkTransport>,
        settings: NodeSettings,
    ) -> Result<Tables, StartError> {
        let failed = |source| StartError::Folder { path: folder.to_owned(), source };
        disk.create_dir(folder).map_err(failed)?;
        let has_log = has_log(&*disk, folder).map_err(failed)?;
        let (members, damage) = Memberships::open(Arc::clone(&disk), &folder.join("members"), has_log)?;
        if let Some(damage) = damage {
            let file = folder.join("members");
            tracing::error!(
                file = %file.display(), offset = damage.offset,
                "damaged ({}): all replicas stored here are filled again from other nodes", damage.what
            );
        }
        let reports = ReplicationReports::default();
        let notices = Arc::new(Notices::new(reports.clone()));
        let mut settings = settings;
        settings.log.owner = members.store().into();
        // The coordinator names this start when it takes the worker in.
        let incarnation = Incarnation::default();
        let identity = Identity { node: id.clone(), incarnation, folder: folder.to_owned() };
        let sink = Arc::clone(&notices) as Arc<dyn crate::NoticeSink>;
        let transport = Arc::clone(&network) as Arc<dyn crate::Transport>;
        let (node, found) = Node::open(settings, identity, disk, transport, sink)?;
        for (found, why) in found.iter().filter_map(|found| Some((found, found.damaged.as_ref()?))) {
            let ReplicaKey { keyspace, shard, placement } = &found.replica;
            tracing::error!(
                %keyspace, %shard, %placement,
                "damaged: {why}: the replica neither leads nor serves, and is filled again from another node"
            );
        }
        if members.found_no_room() {
            node.start_was_full(true);
        }
        let orders = Mutex::default();
        Ok(Tables(Arc::new(Inner {
            node,
            network,
            id,
            members,
            found,
            notices,
            counts: RequestCounts::default(),
            reports,
            orders,
            medians: Medians::default(),
            disk: DiskFigures::default(),
        })))
    }

    /// The replicas of this node.
    pub fn node(&self) -> &Node {
        &self.0.node
    }

    /// The reports of the replicas: for [`partage_worker::Builder::replication`].
    pub fn reports(&self) -> &ReplicationReports {
        &self.0.reports
    }

    /// Set once the disk of the log has failed, with the reason: the node acknowledges nothing any more, and the process should
    /// end.
    pub fn ended(&self) -> watch::Receiver<Option<String>> {
        self.0.notices.ended()
    }

    /// Why the disk has no room, while that is so: writes are refused.
    pub fn full(&self) -> watch::Receiver<Option<String>> {
        self.0.notices.full()
    }

    /// Runs the tasks of the service until it is dropped: they watch the disk, the clock, stopped replicas, read replicas and
    /// children, and tell the worker.
    pub async fn run_tasks(self, worker: Worker) {
        tokio::join!(
            self.watch_stopped(&worker),
            self.watch_full(&worker),
            self.watch_full_start(),
            self.watch_limits(&worker),
            self.watch_stalled(&worker),
            self.watch_clock(),
            self.watch_read_replicas(&worker),
            self.watch_children(&worker)
        );
    }

    async fn watch_stopped(&self, worker: &Worker) {
        loop {
            for (replica, why) in self.0.notices.next_stopped().await {
                // A worker that has stopped serves nothing.
                let _ = worker.report_unhealthy(&replica.keyspace, replica.shard, why).await;
            }
        }
    }

    /// For each replica here, how many replicas its shard has in sync by the latest order.
    pub(crate) fn in_sync(&self) -> Vec<(ReplicaKey, usize)> {
        let of = |order: &Order| {
            let others = order.peers.iter();
            others.filter(|peer| peer.shard == order.replica.shard && peer.in_sync).count()
                + usize::from(order.in_sync)
        };
        self.orders().latest.values().map(|order| (order.replica.clone(), of(order))).collect()
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.0.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change_orders(&self, replica: &ReplicaKey, order: Option<&Order>) {
        let mut orders = self.orders();
        if let Some(addresses) = orders.change(replica, order) {
            // Under the lock, so that a later change comes later.
            self.0.network.set_addresses(&addresses);
        }
    }

    /// The replicas of this node that are ordered to be read from only, and in which state.
    fn read_replicas(&self) -> Vec<(ReplicaKey, ReplicaState)> {
        let orders = self.orders();
        let ordered = orders.latest.values().filter(|order| order.role == Role::ReadReplica);
        ordered.map(|order| (order.replica.clone(), order.state)).collect()
    }

    fn order_of(&self, replica: &ReplicaKey) -> Option<Order> {
        self.orders().latest.get(replica).cloned()
    }

    /// The replica of a shard that is open on this node, and what the shard holds.
    pub(crate) fn replica_of(&self, table: &KeyspaceName, shard: ShardId) -> Option<(ReplicaKey, Bounds)> {
        let first = ReplicaKey { keyspace: table.clone(), shard, placement: PlacementId(0) };
        let orders = self.orders();
        let of_shard =
            orders.latest.range(first..).take_while(|(key, _)| key.keyspace == *table && key.shard == shard);
        let open = of_shard.map(|(key, order)| (key.clone(), order.bounds.clone()));
        open.filter(|(key, _)| self.0.node.is_open(key)).last()
    }

    /// Opens what is stored of a replica, or begins it.
    async fn open_stored(&self, shard: &Assignment) -> Result<(), Failure> {
        let replica = &shard.replica;
        let cluster = shard.cluster.ok_or("no coordinator has taken this node in")?;
        self.0.members.set_cluster(cluster).await?;
        let order = self.order_of(replica);
        let takes_base = order.as_ref().is_some_and(|order| self.takes_base(order));
        let served = self.0.members.of(replica).map_or(Epoch(0), |membership| membership.served);
        let membership = Membership { bounds: shard.bounds.clone(), served, forms: takes_base };
        self.0.members.set(replica, membership).await?;
        let settings = replica_settings(&shard.brief);
        match order {
            Some(order) if takes_base => {
                self.0.node.form_replica(&order, settings)?;
                // A later one may have come meanwhile.
                self.order_again(replica);
                self.0.node.when_ready(replica).await?;
            }
            _ => {
                self.0.node.open_replica(replica, settings, !shard.had_data).await?;
                self.order_again(replica);
            }
        }
        Ok(())
    }

    /// What the worker registers of a stored replica. One whose bounds are not known counts as unreadable.
    fn stored_replica(&self, found: &StoredReplica) -> Stored {
        let (replica, store) = (found.replica.clone(), self.0.members.store());
        match self.0.members.of(&replica) {
            Some(Membership { bounds, served, .. }) => {
                Stored { replica, bounds, epoch: served, store, damaged: found.damaged.is_some() }
            }
            None => Stored::unreadable(replica, store),
        }
    }
}

/// An error for the worker, which treats damage apart.
fn damage_apart(error: Failure) -> Failure {
    match error.downcast_ref() {
        Some(ReplicaError::Damaged(..)) => Damaged(error.to_string()).into(),
        _ => error,
    }
}

/// Whether a log was begun in a node's folder.
fn has_log(disk: &dyn Disk, folder: &Path) -> std::io::Result<bool> {
    match disk.list(&folders::log(folder)) {
        Ok(files) => Ok(!files.is_empty()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl PacketSink for Tables {
    fn receive(&self, packets: Vec<(ReplicaKey, PlacementId, Packet)>) {
        self.0.node.receive_all(packets);
    }
}

#[async_trait]
impl Handler for Tables {
    async fn stored(&self) -> Result<StoredReplicas, Failure> {
        let found = self.0.found.iter().map(|found| self.stored_replica(found));
        let replicas = found.chain(self.forming()).collect();
        Ok(StoredReplicas { cluster: self.0.members.cluster(), replicas })
    }

    /// Opens the replica. It takes part in the replication of its shard from then on; whether it has caught up the leader says,
    /// by asking for it to be in sync. A child's, of a split or a merge, takes what its parents have, and is loaded when it lags
    /// by little.
    async fn load(&self, shard: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        let replica = &shard.replica;
        if shard.brief.ownership != Ownership::Replicated {
            let keyspace = shard.keyspace();
            let what = format!("keyspace {keyspace} is of kind table and not replicated");
            return Err(format!("{what}: create tables with `partage table create`").into());
        }
        if !self.0.node.is_open(replica) {
            self.open_stored(shard).await.map_err(damage_apart)?;
        }
        // A read replica says itself that it has caught up: no leader asks for it to be in sync.
        if shard.role == Role::ReadReplica {
            self.0.node.when_fresh(replica).await?;
        }
        Ok(())
    }

    /// Notes the epoch under which the replica served, which says how old the copy is should all others be lost; a read replica
    /// is no copy. A child's replica serves when its base is whole and on its disk.
    async fn serve(&self, shard: &Assignment, role: Role, epoch: Epoch) -> Result<(), Failure> {
        let replica = &shard.replica;
        self.0.node.when_open(replica).await?;
        let known = self.0.members.of(replica).map_or(Epoch(0), |membership| membership.served);
        let epoch = if role == Role::ReadReplica { Epoch(0) } else { epoch };
        let membership = Membership { bounds: shard.bounds.clone(), served: known.max(epoch), forms: false };
        Ok(self.0.members.set(replica, membership).await?)
    }

    /// A replica of a shard that was split or merged goes on until its data is deleted: its children take what it has.
    async fn unload(&self, shard: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        if self.order_of(&shard.replica).is_some_and(|order| member::closes(&order)) {
            return Ok(());
        }
        match self.0.node.close_replica(&shard.replica).await {
            Ok(()) | Err(ReplicaError::NotOpen(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn drop(&self, shard: &Assignment, reason: DropReason) -> Result<(), Failure> {
        let replica = &shard.replica;
        tracing::info!(keyspace = %shard.keyspace(), shard = %shard.shard(), %reason, "deletes its data");
        self.0.node.drop_replica(replica).await?;
        self.0.members.remove(replica).await?;
        self.change_orders(replica, None);
        self.0.medians.forget(replica);
        Ok(())
    }

    fn ordered(&self, order: &Order, brief: &KeyspaceBrief, incarnation: Incarnation) {
        let is_renamed = {
            let mut orders = self.orders();
            std::mem::replace(&mut orders.incarnation, incarnation) != incarnation
        };
        if is_renamed {
            self.0.node.renamed(incarnation);
            self.0.network.renamed(incarnation);
        }
        self.change_orders(&order.replica, Some(order));
        self.0.node.order(order);
        self.open_closing(order, replica_settings(brief));
    }

    async fn report(&self, shard: &Assignment) -> Option<Load> {
        let size = self.0.node.size(&shard.replica).await?;
        let size_bytes = size.disk_bytes + size.unflushed_bytes;
        let may_be_cut = shard.role == Role::Leader && shard.brief.sharding == Sharding::KeyRange;
        let median = if may_be_cut { self.median(&shard.replica, size_bytes).await } else { None };
        Some(Load { size_bytes, profile: Profile::new(Vec::new(), median), ..Load::default() })
    }
}
