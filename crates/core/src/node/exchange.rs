//! What a coordinator and a worker tell each other, whichever protocol carries it.
//!
//! In a heartbeat, a [`Beat`], the worker reports the states of its replicas. The coordinator answers with [`Orders`]: the states
//! that they should have. Both are differences against what the other side has confirmed, and both can always be sent whole
//! instead; so a lost, doubled or late message costs time and nothing else.
//!
//! The way of a heartbeat:
//!
//! 1. The worker's state machine builds a [`Beat`] when one is due or it has news (`worker/mod.rs`, `Worker::beat`).
//! 2. The worker's driver sends it to the coordinator, over gRPC or over HTTP (`crates/worker/src/connection.rs`; the forms
//!    are in `crates/wire/src/worker`).
//! 3. The coordinator hands it to its decision loop (`crates/coordinator/src/lead/decision_loop.rs`).
//! 4. `Cluster::beat` checks the heartbeat, renews the lease, and notes the reports (`cluster/membership.rs`). During a commit
//!    `cluster/during_commit.rs` calls that, or lets the heartbeat wait for the end of the commit.
//! 5. The answer is the renewed lease and the [`Orders`] that have changed (`cluster/orders.rs`).
//! 6. The worker's state machine applies the orders (`Worker::apply_orders`), and returns the callbacks of the service to begin.
//! 7. The coordinator's next decision makes a new map from the reports (`cluster/decide.rs`, `plan/handover`). It sends the
//!    orders that follow when the map is durable.

use crate::base::id::{
    ClusterId, Configuration, Epoch, Generation, Incarnation, PlacementId, SessionDigest, ShardId,
};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::time::Millis;
use crate::keyspace::hash::HashFunction;
use crate::keyspace::key::KeyRange;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::Role;
use crate::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use crate::keyspace::{KeyspaceKind, Ownership, RowValues};
use crate::node::NodeSpec;
use crate::node::load::Load;
use std::fmt;

/// A worker that wants to take part.
#[derive(Debug, Clone, PartialEq)]
pub struct Registration {
    /// What the worker announces of itself.
    pub spec: NodeSpec,
    /// The incarnation it has already, when it only comes back to a coordinator; none for a new process.
    pub incarnation: Option<Incarnation>,
    /// Digest of the token that a new process gets, or that one comes back with.
    pub session: SessionDigest,
    /// The cluster that it registered with before, or whose data it has stored; none for a process that knows of none.
    pub cluster: Option<ClusterId>,
    /// What it has stored that no order of this incarnation is about.
    pub stored: Vec<Stored>,
    /// The cluster that ordered what was stored when its process began; none where its service does not know.
    pub stored_of: Option<ClusterId>,
    /// The latest maps that its orders came from. A coordinator with older maps refuses the registration.
    pub known: Vec<Known>,
    /// The address from which it came, as the driver saw it; none where that is not known.
    pub from: Option<String>,
}

impl Registration {
    /// Of a new process that has nothing stored.
    pub fn new(spec: NodeSpec) -> Registration {
        let session = SessionDigest::default();
        let (stored, known) = (vec![], vec![]);
        Registration {
            spec,
            incarnation: None,
            session,
            cluster: None,
            stored,
            stored_of: None,
            known,
            from: None,
        }
    }
}

/// The answer to a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The coordinator's cluster. A worker of another one refuses it (D11).
    pub cluster: ClusterId,
    /// Clusters that this one was restored from: their workers are its own.
    pub continues: Vec<ClusterId>,
    /// The number of this start, which the worker sends with every beat.
    pub incarnation: Incarnation,
    /// How often to beat, in milliseconds.
    pub heartbeat_ms: u64,
    /// How long a lease is, in milliseconds.
    pub lease_ms: u64,
}

/// Names one replica in a cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaKey {
    /// The keyspace that the replica's shard is in.
    pub keyspace: KeyspaceName,
    /// The shard that the replica is one copy of.
    pub shard: ShardId,
    /// The placement id, which differs each time the shard is placed on the node.
    pub placement: PlacementId,
}

/// What a worker has done about a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// The service's `load` runs, or is about to begin.
    Loading,
    /// `load` is done: the replica could serve.
    Ready,
    /// The service answers requests.
    Serving,
    /// No more requests are taken; the last ones and `unload` run.
    Unloading,
    /// Nothing of it runs here any more.
    Unloaded,
    /// Nothing of it runs here any more and no order names it; its data is still here, until the coordinator gives
    /// a [`Permission`] to delete it or orders the replica again.
    Kept,
    /// The data is deleted, and nothing of the replica is left.
    Dropped,
    /// A callback failed, hung or refused; it is tried again. In a box, as it is rare and a coordinator keeps
    /// a phase for each replica.
    Failed(Box<Failure>),
}

/// How a callback went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// How often it has failed, without a success between.
    pub attempts: u32,
    /// What the service said of the last attempt.
    pub reason: String,
    /// What is stored of the replica is damaged: no further attempt can succeed.
    pub damaged: bool,
}

impl Phase {
    /// [`Phase::Failed`], for so many attempts and what the service said last.
    pub fn failed(attempts: u32, reason: String) -> Phase {
        Phase::Failed(Box::new(Failure { attempts, reason, damaged: false }))
    }
}

/// Why a worker may delete the data of a replica (D7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// Another replica took its place and is known to serve.
    Moved,
    /// Its keyspace or its partition was deleted, or the split or merge that it prepared for was given up.
    Deleted,
    /// Its worker was away; other replicas serve its keys meanwhile, under its epoch or a later one.
    Superseded,
}

impl DropReason {
    /// Every reason, in the order of the declaration.
    pub const ALL: [DropReason; 3] = [DropReason::Moved, DropReason::Deleted, DropReason::Superseded];

    /// The word that people write.
    pub fn word(self) -> &'static str {
        match self {
            DropReason::Moved => "moved",
            DropReason::Deleted => "deleted",
            DropReason::Superseded => "superseded",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// Leave to delete the data of a replica in [`Phase::Kept`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permission {
    /// The replica whose data may be deleted.
    pub replica: ReplicaKey,
    /// Why its data may be deleted.
    pub reason: DropReason,
    /// The epoch under which others serve, or up to which everything was deleted. A worker that has data of a
    /// later epoch knows more than this coordinator, and keeps it (D11).
    pub epoch: Epoch,
}

/// A replica that a worker has stored and no coordinator has ordered from this start of it (yet).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The replica whose data the worker has stored.
    pub replica: ReplicaKey,
    /// What its shard held.
    pub bounds: Bounds,
    /// The latest epoch that it has served under; 0 = it has only loaded what others have.
    pub epoch: Epoch,
    /// Names the disk or directory on which it lies; 0 = not named.
    pub store: u64,
    /// Some of it cannot be read: it counts for nothing, and its shard is loaded anew from others.
    pub damaged: bool,
}

impl Stored {
    /// Of a replica of which nothing can be read, not even what its shard held. It may hold any key: what is no longer in
    /// the map is deleted when all that may have its keys serve, or not at all.
    pub fn unreadable(replica: ReplicaKey, store: u64) -> Stored {
        let bounds = Bounds::Keys(KeyRange::all());
        Stored { replica, bounds, epoch: Epoch(0), store, damaged: true }
    }
}

/// The latest map of a keyspace that a worker's orders came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The keyspace that the map is of.
    pub keyspace: KeyspaceName,
    /// [`KeyspaceBrief::first_shard`]: tells it from earlier keyspaces of that name.
    pub first_shard: ShardId,
    /// The generation of the map.
    pub generation: Generation,
}

impl Known {
    /// Whether this map is later than the one at `generation` of the keyspace that begins with `first_shard`, or
    /// another one of the same number.
    pub fn is_ahead_of(&self, first_shard: ShardId, generation: Generation) -> bool {
        let (ours, theirs) =
            ((self.first_shard, self.generation.sequence), (first_shard, generation.sequence));
        ours > theirs || (ours == theirs && self.generation != generation)
    }
}

/// How one replica is, as its worker sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The replica that the report is about.
    pub replica: ReplicaKey,
    /// What the worker has done with the replica.
    pub phase: Phase,
    /// The epoch of the last order that the worker has carried out: what that order ended has ended, so
    /// under every earlier epoch this replica leads no more.
    pub epoch: Epoch,
    /// Its load, when it was measured anew.
    pub load: Option<Load>,
    /// How often its `load` has reported progress. While it loads, each new number restarts its time limit.
    pub progress: u32,
    /// What is stored of it, in whole beats and in [`Phase::Kept`]: a coordinator whose state was restored has to
    /// compare copies, and may not know the shard.
    pub served: Option<Served>,
    /// Of a replica in a replicated keyspace: how the replication of its shard is; none where nothing was said since the
    /// last beat.
    pub replication: Option<ReplicationReport>,
}

/// How the replication of a shard is, as one of its replicas sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplicationReport {
    /// The configuration that it knows of.
    pub configuration: Configuration,
    /// How many entries its log has had, from the first.
    pub log_end: u64,
    /// A follower has not heard its leader for as long as a promise lasts.
    pub leader_silent: bool,
    /// Of a leader: the in-sync set that it asks for, itself included, in place of the one of this epoch and
    /// configuration. The answer is an order of a later configuration.
    pub wish: Option<Vec<PlacementId>>,
    /// Of a leader that was ordered to hand over: the replica that has all that there is, while the leader takes no writes. None
    /// when the hand-over has ended without a change of leader.
    pub heir_ready: Option<PlacementId>,
}

impl ReplicationReport {
    /// Whether the coordinator is to do something about it.
    pub fn asks(&self) -> bool {
        self.wish.is_some() || self.leader_silent || self.heir_ready.is_some()
    }
}

/// What a worker says of the data of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// The latest epoch under which it has served; 0 = it has only loaded what others have.
    pub epoch: Epoch,
    /// The keys, hashes, slot or partition that its shard holds.
    pub bounds: Bounds,
}

/// From worker to coordinator, every `heartbeat_ms` and when something changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Beat {
    /// The node that sent the heartbeat.
    pub node: NodeId,
    /// The incarnation of the process that sent it.
    pub incarnation: Incarnation,
    /// Digest of the token with which it came, from the message or from its stream.
    pub session: SessionDigest,
    /// Counts this incarnation's beats from 1; older ones that arrive late are ignored.
    pub sequence: u64,
    /// When it was sent, by the worker's own monotonic clock; comes back with the answer.
    pub sent_at: Millis,
    /// The version of the last [`Orders`] that the worker has applied; 0 = none, send them whole.
    pub applied: u64,
    /// The version of the latest [`Orders`] that the coordinator has sent on this worker's stream before the beat arrived. The
    /// worker applies them before the answer, but may not have done so yet. 0 if messages can overtake each other.
    pub sent: u64,
    /// Whether `reports` names every replica it holds, so that what is not named is not there.
    pub whole: bool,
    /// What changed since the last answered beat.
    pub reports: Vec<Report>,
    /// Whether the worker wants to leave, so that its shards move first (A13); none: as in the last heartbeat.
    pub leaving: Option<bool>,
    /// Share of its own capacity that foreground work takes, 0 to 1; moves give way above 0.5 (K17).
    pub busy: f64,
    /// The worker has no lease when it sends this: it serves nothing that is exclusive.
    pub lease_expired: bool,
    /// The health of the disk that the node stores on.
    pub disk: DiskHealth,
}

/// What a worker says of its disk. Where it takes no writes, other nodes lead if they can, and nothing new is placed there. Where
/// it is nearly full, nothing new is placed there either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskHealth {
    /// The disk has no room, and stores no write.
    pub full: bool,
    /// It has room for what the node holds already, and not for more.
    pub nearly_full: bool,
    /// It has stored nothing for seconds, though something waits to be stored.
    pub stalled: bool,
}

impl DiskHealth {
    /// Whether writes are stored there.
    pub fn takes_writes(self) -> bool {
        !self.full && !self.stalled
    }

    /// Whether new replicas are placed there.
    pub fn takes_replicas(self) -> bool {
        self.takes_writes() && !self.nearly_full
    }

    /// The sentence that says why a node takes no writes.
    pub fn trouble(self, node: &NodeId) -> Option<String> {
        match self {
            DiskHealth { full: true, .. } => Some(format!("the disk of {node} is full")),
            DiskHealth { stalled: true, .. } => {
                Some(format!("the disk of {node} is stalled: it stores nothing"))
            }
            DiskHealth { full: false, stalled: false, .. } => None,
        }
    }
}

impl Beat {
    /// The version of the orders that the worker will have applied when the answer comes, which builds on them.
    pub fn base_of_answer(&self) -> u64 {
        self.applied.max(self.sent)
    }
}

/// Another replica that a worker may need: to load from, to forward to, to hint at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its shard: the same, or a parent or child.
    pub shard: ShardId,
    /// Which replica of it: a node can have data of several, as what it keeps is named by no order.
    pub placement: PlacementId,
    /// The keys, hashes, slot or partition that its shard holds.
    pub bounds: Bounds,
    /// The node that this replica is on.
    pub node: NodeId,
    /// The start of that node by which the map names it.
    pub incarnation: Incarnation,
    /// `host:port` of that node; `None` when the node is removed from the cluster, but the map still names its replica.
    pub address: Option<String>,
    /// What this replica may do, by the map.
    pub role: Role,
    /// The state that the map gives this replica.
    pub state: ReplicaState,
    /// Whether it is in the in-sync set of its shard.
    pub in_sync: bool,
}

/// What one replica should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The replica that the order is about.
    pub replica: ReplicaKey,
    /// The keys, hashes, slot or partition that its shard holds.
    pub bounds: Bounds,
    /// What it may do. In a replicated keyspace the leader in `Unload` is the closer of a shard that was split or merged: it ends
    /// the log of the shard.
    pub role: Role,
    /// The state that the replica should get to.
    pub state: ReplicaState,
    /// The present epoch of the shard. A worker ignores an order of an earlier one.
    pub epoch: Epoch,
    /// The shard's configuration: in a replicated keyspace, which in-sync set `in_sync` and those of `peers` are.
    pub configuration: Configuration,
    /// Whether it is in the in-sync set; in `Unload`, that of a shard that was split or merged.
    pub in_sync: bool,
    /// Whether it may begin. To lead: in exclusive mode, when the former owner is certainly gone. To load, in a
    /// durable keyspace: when the leader knows of it, and acknowledges no write without it. To follow, after a durable
    /// shard was split or merged: when the leader serves.
    pub granted: bool,
    /// In `Load`: where to load from. In `Unload`: where to forward to. Else: the other replicas.
    pub peers: Vec<Peer>,
    /// Whether the shard has ever been led, so that it may have data: then a replica that finds no source of it
    /// must not serve.
    pub had_data: bool,
    /// In `UnloadFinal`: why its data may be deleted.
    pub drop: Option<DropReason>,
    /// Of the leader in a replicated keyspace: the replica that it is to hand the lead over to. It lets no more writes in for a
    /// bounded time, and reports when that replica has all of them ([`ReplicationReport::heir_ready`]).
    pub hand_over_to: Option<PlacementId>,
}

/// Which cluster a coordinator is of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterIdentity {
    /// The id that the cluster drew when it began, or anew when it was restored.
    pub cluster: ClusterId,
    /// The clusters that it was restored from.
    pub continues: Vec<ClusterId>,
}

impl ClusterIdentity {
    /// Whether it is `other`, or was restored from it.
    pub fn is_or_continues(&self, other: ClusterId) -> bool {
        self.cluster == other || self.continues.contains(&other)
    }
}

/// What a worker must know of a keyspace to find the shard of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyspaceBrief {
    /// The name of the keyspace. An earlier, deleted one may have had it, too: `first_shard` tells them apart.
    pub name: KeyspaceName,
    /// How keys map to shards.
    pub sharding: Sharding,
    /// Which part of a key is sharded by.
    pub partition_key: PartitionKey,
    /// What a worker may believe when it hears no coordinator.
    pub ownership: Ownership,
    /// The generation of the map behind the orders.
    pub generation: Generation,
    /// Tells it from deleted keyspaces of the same name: their shards have lower ids.
    pub first_shard: ShardId,
    /// Whether its data lies on disk and outlives its processes.
    pub durable: bool,
    /// How many replicas must have stored a write before it is acknowledged; 0 where the keyspace is not replicated.
    pub min_in_sync: u32,
    /// The service whose nodes hold the keyspace.
    pub kind: KeyspaceKind,
    /// Of a table: what values its rows may have.
    pub values: RowValues,
    /// Of a table: for how long its change feed keeps changes, in milliseconds; 0: it has no feed.
    pub feed_ms: u64,
}

impl KeyspaceBrief {
    /// Which map it is of.
    pub fn known(&self) -> Known {
        Known { keyspace: self.name.clone(), first_shard: self.first_shard, generation: self.generation }
    }

    /// Of a keyspace that a worker has stored replicas of, and no orders about: only its name can be relied upon.
    pub fn of_stored(name: KeyspaceName, bounds: &Bounds) -> KeyspaceBrief {
        let hash = HashFunction::Xxh3_64;
        let sharding = match bounds {
            Bounds::Keys(_) => Sharding::KeyRange,
            Bounds::Hashes(_) => Sharding::HashRange { hash },
            Bounds::Slot(slot) => Sharding::Fixed { hash, shards: slot.of() },
            Bounds::Name(_) => Sharding::Named,
        };
        KeyspaceBrief {
            name,
            sharding,
            partition_key: PartitionKey::default(),
            ownership: Ownership::Exclusive,
            generation: Generation::default(),
            first_shard: ShardId(0),
            durable: true,
            min_in_sync: 0,
            kind: KeyspaceKind::App,
            values: RowValues::Bytes,
            feed_ms: 0,
        }
    }
}

/// From coordinator to worker, in answer to a beat and when something changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Orders {
    /// The cluster of the coordinator that gives them.
    pub cluster: ClusterId,
    /// The incarnation that they are for.
    pub incarnation: Incarnation,
    /// Counts changes of what this incarnation should hold.
    pub version: u64,
    /// The version that `changed` and `removed` build on; 0 = they are the whole.
    pub base: u64,
    /// The keyspaces of everything in `changed`.
    pub keyspaces: Vec<KeyspaceBrief>,
    /// Orders that are new, or differ from those of `base`.
    pub changed: Vec<Order>,
    /// Replicas that it should no longer serve. Their data is kept until there is a permission.
    pub removed: Vec<ReplicaKey>,
    /// Replicas in [`Phase::Kept`] whose data may be deleted.
    pub permissions: Vec<Permission>,
    /// A renewed lease, only in answer to a beat.
    pub lease: Option<LeaseRenewal>,
    /// In answer to `leaving`: everything is served elsewhere, the worker may go.
    pub may_go: bool,
}

/// Until when the worker may believe its assignment: `lease_ms` after it *sent* the beat, by its own clock. And what
/// it does when it hears no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseRenewal {
    /// [`Beat::sent_at`] of the beat that is answered.
    pub sent_at: Millis,
    /// How long the renewed lease is, in milliseconds from `sent_at`.
    pub lease_ms: u64,
    /// Over how long it spreads with the other workers when the coordinator is lost ([`crate::node::reconnect`]).
    pub spread_ms: u64,
}
