//! What a coordinator and a worker tell each other, whichever protocol carries it.
//!
//! Up goes a [`Beat`]: "I live, this is how my replicas are". Down come [`Orders`]: "this is what they
//! should be". Both are differences against what the other side has confirmed, and both can always be
//! sent whole instead; so a lost, doubled or late message costs time and nothing else.

use crate::id::{Epoch, Generation, Incarnation, PlacementId, ShardId};
use crate::keyspace::Ownership;
use crate::lifecycle::ReplicaState;
use crate::load::Load;
use crate::map::Role;
use crate::name::{KeyspaceName, NodeId};
use crate::sharding::{Bounds, PartitionKey, Sharding};
use crate::time::Millis;

/// Names one replica in a cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaKey {
    /// Which keyspace.
    pub keyspace: KeyspaceName,
    /// Which shard.
    pub shard: ShardId,
    /// Which stay of it.
    pub placement: PlacementId,
}

/// What a worker has done about a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// `load` runs.
    Loading,
    /// `load` is done: it could serve.
    Ready,
    /// Requests are answered.
    Serving,
    /// No more requests are taken; the last ones and `unload` run.
    Unloading,
    /// Nothing of it runs here any more.
    Unloaded,
    /// Its data is deleted.
    Dropped,
    /// A callback failed, hung or refused; it is tried again. In a box, as it is rare and a coordinator keeps
    /// a phase for each replica.
    Failed(Box<Failure>),
}

/// How a callback went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// How often, without a success between.
    pub attempts: u32,
    /// What the service said.
    pub reason: String,
}

impl Phase {
    /// [`Phase::Failed`], for so many attempts and what the service said last.
    pub fn failed(attempts: u32, reason: String) -> Phase {
        Phase::Failed(Box::new(Failure { attempts, reason }))
    }
}

/// How one replica is, as its worker sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Which replica.
    pub replica: ReplicaKey,
    /// What was done.
    pub phase: Phase,
    /// The epoch of the last order that the worker has carried out: what that order ended has ended, so
    /// under every earlier epoch this replica leads no more.
    pub epoch: Epoch,
    /// Its load, when it was measured anew.
    pub load: Option<Load>,
}

/// From worker to coordinator, every `heartbeat_ms` and when something changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Beat {
    /// Who.
    pub node: NodeId,
    /// Which start of it.
    pub incarnation: Incarnation,
    /// Counts this incarnation's beats from 1; older ones that arrive late are ignored.
    pub sequence: u64,
    /// When it was sent, by the worker's own monotonic clock; comes back with the answer.
    pub sent_at: Millis,
    /// The version of [`Orders`] that has been taken in; 0 = none, send them whole.
    pub applied: u64,
    /// Whether `reports` names every replica it holds, so that what is not named is not there.
    pub whole: bool,
    /// What changed since the last answered beat.
    pub reports: Vec<Report>,
    /// The worker leaves: move its shards, then tell it (A13).
    pub leaving: bool,
    /// Share of its own capacity that foreground work takes, 0 to 1; moves give way above 0.5 (K17).
    pub busy: f64,
}

/// Another replica that a worker may need: to load from, to forward to, to hint at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its shard: the same, or a parent or child.
    pub shard: ShardId,
    /// What that shard holds.
    pub bounds: Bounds,
    /// On which node.
    pub node: NodeId,
    /// `host:port` of that node.
    pub address: String,
    /// Its role.
    pub role: Role,
    /// Its state.
    pub state: ReplicaState,
}

/// What one replica should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Which replica.
    pub replica: ReplicaKey,
    /// What its shard holds.
    pub bounds: Bounds,
    /// What it may do.
    pub role: Role,
    /// What it should be.
    pub state: ReplicaState,
    /// The shard's epoch.
    pub epoch: Epoch,
    /// In exclusive mode: whether the former owner is certainly gone, so that this one may begin.
    pub granted: bool,
    /// In `Load`: where to load from. In `Unload`: where to forward to. Else: the other replicas.
    pub peers: Vec<Peer>,
}

/// What a worker must know of a keyspace to tell whose a key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyspaceBrief {
    /// Its name.
    pub name: KeyspaceName,
    /// How keys map to shards.
    pub sharding: Sharding,
    /// Which part of a key is sharded by.
    pub partition_key: PartitionKey,
    /// What a worker may believe.
    pub ownership: Ownership,
    /// The generation of the map behind the orders.
    pub generation: Generation,
}

/// From coordinator to worker, in answer to a beat and when something changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Orders {
    /// For which start of the node.
    pub incarnation: Incarnation,
    /// Counts changes of what this incarnation should hold.
    pub version: u64,
    /// The version that `changed` and `removed` build on; 0 = they are the whole.
    pub base: u64,
    /// The keyspaces of everything in `changed`.
    pub keyspaces: Vec<KeyspaceBrief>,
    /// New or different orders.
    pub changed: Vec<Order>,
    /// Replicas that it should no longer know.
    pub removed: Vec<ReplicaKey>,
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
    /// For how long.
    pub lease_ms: u64,
    /// Over how long it spreads with the other workers when the coordinator is lost ([`crate::reconnect`]).
    pub spread_ms: u64,
}
