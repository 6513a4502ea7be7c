//! What a service writes: how one shard is loaded, served, unloaded and dropped.
//!
//! The worker calls back in this order, one call at a time for each replica; another replica's calls may run
//! beside it:
//!
//! | call     | when                                     | afterwards                                          |
//! |----------|------------------------------------------|-----------------------------------------------------|
//! | `load`   | the shard is coming; others serve it     | it could serve from one moment to the next          |
//! | `serve`  | it serves from now on, in that role      | the gate opens: requests come in                    |
//! | `unload` | the gate is shut, the last request is out| whatever ran for the shard has stopped              |
//! | `drop`   | the coordinator lets the data go, and says why | its data is deleted                           |
//!
//! A shard that no order names any more, or whose coordinator was replaced by one that does not know it, is unloaded
//! and *not* dropped: its data may be the only copy. `drop` comes when the coordinator says so ([`DropReason`]). When
//! the shard is given to this worker again before, `load` comes again, for the same [`Assignment::replica`] and with
//! [`Assignment::has_data`].
//!
//! A service whose data outlives its process (keyspaces that are `durable`) names what it finds on its disk by
//! [`Handler::stored`]. The worker keeps that, and calls `load` when the coordinator orders it again. Its leader
//! acknowledges a write when these have stored it: all [`Assignment::peers`] of its shard in `Live`, and those in `Load` of
//! which it does not know that their `load` has not begun; while it is in `Unload` itself and lets the last requests out,
//! those in `Unload`, too. (It asks for its assignment after it has stored the write itself;
//! a peer says whether it has begun.) `load` copies from the leader, and only in that order: first take writes, then copy.
//! The coordinator lets `load` begin when the leader knows of it; so a replica in `Live` has all that was acknowledged,
//! whichever processes have ended, and may lead.
//!
//! Other workers may ask for stored data before it is ordered, or though it is never loaded again: after a split or merge that
//! all processes died in, the new shards fetch their last writes from the stored replicas of the old ones. So in a durable
//! keyspace `serve` must fail where [`Assignment::peers`] names replicas of other shards that are `Live` or in `Unload`, and of
//! one of these shards none could be read (as leader), or the leader could not be read (as follower; the worker calls it after
//! the leader serves). The coordinator keeps each of the old replicas until all new ones serve.
//!
//! `serve` comes again when role or epoch change; a leader's requests are then let out first, a follower's go
//! on. A call that fails, panics or hangs is reported to the coordinator with what it said, and made again
//! later with longer and longer rests ([`partage_core::worker::CallbackTimeouts`]); only `unload` is not, because
//! the next owner waits for it: what it was to end must not go on even if it failed.
//!
//! A call that takes too long is cancelled and aborted at its next `await`. What blocks a thread cannot be
//! aborted: run it by [`Scope::spawn_blocking`] and let it ask [`Scope::is_cancelled`] between its steps. The
//! replica's next call begins after the aborted one and its blocking work have ended, never beside them. (Tasks
//! and threads that the service starts by other means are its own to stop.)

use crate::scope::Scope;
use async_trait::async_trait;
use partage_core::base::id::{ClusterId, Epoch, Incarnation, ShardId};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Role;
use partage_core::keyspace::sharding::Bounds;
use partage_core::node::exchange::{DropReason, KeyspaceBrief, Order, Peer, ReplicaKey, Stored};
use partage_core::node::load::Load;
use partage_core::worker::LocalReplica;
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Mutex, PoisonError};

/// Why a callback could not do its work: a sentence, or any error. Shown to people as it is.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Why a `load` failed: what this node has stored of the replica is damaged, in these words. The coordinator waits for no further
/// attempt, as for other failures: while another replica has the data, this one is deleted and loaded anew from there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Damaged(pub String);

/// One replica that this worker has or is to have, as the newest order describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// Which keyspace, shard, and stay of it here.
    pub replica: ReplicaKey,
    /// What the shard holds.
    pub bounds: Bounds,
    /// What it may do, or is to do soon.
    pub role: Role,
    /// The state that it should have: in `Load` it has to catch up with those that are `Live`; one that is ordered to be `Live`
    /// at once counts as a copy of the shard already.
    pub state: ReplicaState,
    /// The epoch of the shard, which grows with each change of its leader or bounds; each write carries it.
    pub epoch: Epoch,
    /// The other nodes that have something of the shard, of its parents or its children.
    pub peers: Vec<Peer>,
    /// How the keyspace is sharded. Of a replica that [`Handler::stored`] named and no order did, only the keyspace's
    /// name can be relied upon.
    pub brief: KeyspaceBrief,
    /// Whether the shard has been served before, here or elsewhere, so that it may have data. In a durable keyspace
    /// `load` is not called when it has had data and there is no source of it.
    pub had_data: bool,
    /// Whether this worker has data of this very replica: it was loaded before, or [`Handler::stored`] named it
    /// undamaged. Then `load` opens what is here; what `sources` have may be newer.
    pub has_data: bool,
    /// The cluster of the coordinator that ordered it; to be stored with the data, for [`StoredReplicas::cluster`].
    /// None while no coordinator has taken this worker in.
    pub cluster: Option<ClusterId>,
    /// The callback that this was passed to.
    pub(crate) scope: Scope,
}

impl Assignment {
    pub(crate) fn new(
        local: &LocalReplica,
        brief: Option<&KeyspaceBrief>,
        cluster: Option<ClusterId>,
    ) -> Assignment {
        let order = &local.order;
        let unknown = || KeyspaceBrief::of_stored(order.replica.keyspace.clone(), &order.bounds);
        Assignment {
            replica: order.replica.clone(),
            bounds: order.bounds.clone(),
            role: order.role,
            state: order.state,
            epoch: order.epoch,
            peers: order.peers.clone(),
            brief: brief.cloned().unwrap_or_else(unknown),
            had_data: order.had_data,
            has_data: local.has_data(),
            cluster,
            scope: Scope::idle(),
        }
    }

    /// The scope of the callback that this was passed to (elsewhere one that is never cancelled): says when the worker has given
    /// the callback up, and runs blocking work that the replica's next callback waits for.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The name of the keyspace that the shard is in.
    pub fn keyspace(&self) -> &KeyspaceName {
        &self.replica.keyspace
    }

    /// The number of the shard in its keyspace.
    pub fn shard(&self) -> ShardId {
        self.replica.shard
    }

    /// Whether `key` belongs to the shard.
    pub fn holds(&self, key: &[u8]) -> bool {
        self.bounds.contains(self.brief.sharding.position(self.brief.partition_key, key))
    }

    /// Where to copy from: replicas of the shard itself that serve or hand over; where there are none (the
    /// shard is being split off or merged), those of its parents. Leaders first.
    ///
    /// A source may be this node itself: when the node that took over a shard has died and no other node may take it,
    /// it comes back as a new stay while the former one still hands over. So keep what you hold by
    /// [`Assignment::replica`], which is new for each stay, and not by shard.
    pub fn sources(&self) -> Vec<Peer> {
        let has_data = |peer: &&Peer| matches!(peer.state, ReplicaState::Live | ReplicaState::Unload);
        let (own, others): (Vec<_>, Vec<_>) =
            self.peers.iter().filter(has_data).cloned().partition(|peer| peer.shard == self.shard());
        let mut sources = if own.is_empty() { others } else { own };
        sources.sort_by_key(|peer| (peer.role != Role::Leader, peer.state != ReplicaState::Live));
        sources
    }

    /// The replicas that serve the shard's keys from now on. Leaders first.
    pub fn successors(&self) -> Vec<Peer> {
        let serves = |peer: &&Peer| peer.state == ReplicaState::Live;
        let mut successors: Vec<_> = self.peers.iter().filter(serves).cloned().collect();
        successors.sort_by_key(|peer| peer.role != Role::Leader);
        successors
    }
}

/// What an earlier process of this node has stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredReplicas {
    /// The cluster that the data is of ([`Assignment::cluster`] of its loads): the worker refuses coordinators of
    /// another one. None where nothing is stored.
    pub cluster: Option<ClusterId>,
    /// What it has stored of each replica.
    pub replicas: Vec<Stored>,
}

/// A sharded service. See the module for when what is called.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// The replicas that an earlier process of this node has stored, for a service whose data lies on disk. Asked once,
    /// before the worker registers; when it fails the worker does not start.
    async fn stored(&self) -> Result<StoredReplicas, Failure> {
        Ok(StoredReplicas::default())
    }

    /// Prepares to serve `shard`: opens what is here of it ([`Assignment::has_data`]) and copies what is newer from one
    /// of `sources`, which go on serving. Where there is neither, the shard is new, or (only in keyspaces that
    /// are not durable) every replica of it is lost, and it begins empty.
    async fn load(&self, shard: &Assignment, sources: &[Peer]) -> Result<(), Failure>;

    /// Begins to serve, or goes on in another role or epoch. In exclusive mode no other replica leads when a
    /// leader is asked. `shard.peers` names former owners, which still have what was written last.
    ///
    /// The worker asks a follower that goes on under a later epoch in durable keyspaces only. The service stores the epoch: it
    /// says how late the copy is, should all others be lost.
    async fn serve(&self, shard: &Assignment, role: Role, epoch: Epoch) -> Result<(), Failure>;

    /// Stops whatever runs for the shard. No request is inside, and none comes. `successors` serve it next.
    ///
    /// The worker reports the replica as unloaded when this has returned, failed, or run out of time. So a service that goes on
    /// by itself, as replication does, stops that *first*, before anything that could fail or hang.
    async fn unload(&self, shard: &Assignment, successors: &[Peer]) -> Result<(), Failure>;

    /// Deletes what is left of the shard. The coordinator allows it, for `reason`: another replica has taken its place
    /// and is known to serve ([`DropReason::Moved`]), its keyspace or partition was deleted
    /// ([`DropReason::Deleted`]), or this worker was away and others serve its keys meanwhile
    /// ([`DropReason::Superseded`]).
    async fn drop(&self, shard: &Assignment, reason: DropReason) -> Result<(), Failure>;

    /// The worker, in that incarnation, has taken in an order for a replica of a `replicated` keyspace, whatever callback runs
    /// for the replica. Its replication goes by every order at once, and not only by those that a callback follows from: the
    /// in-sync set, the leader, and the nodes of the others. Called before the callbacks that the order leads to, also again
    /// with the same order; from the call of [`Handler::drop`] on not until the next load. Must not block; the default does
    /// nothing.
    fn ordered(&self, order: &Order, brief: &KeyspaceBrief, incarnation: Incarnation) {
        let _ = (order, brief, incarnation);
    }

    /// How heavy the shard is, asked every few seconds. What is left 0 or empty of requests, processor time and hot
    /// keys is filled in with what the worker has measured; none = only that.
    async fn report(&self, shard: &Assignment) -> Option<Load> {
        let _ = shard;
        None
    }
}

/// A service of two closures (A10): `serve` when a shard comes here, `delete` when it goes. Each is called
/// once for each stay, however often role and epoch change between, and again if it failed.
pub struct Closures<S, D> {
    serve: S,
    delete: D,
    /// Replicas that `serve` has returned for and `delete` has not.
    served: Mutex<BTreeSet<ReplicaKey>>,
}

impl<S, D> Closures<S, D> {
    /// Calls `serve` when a shard comes, and `delete` when it goes.
    pub fn new(serve: S, delete: D) -> Closures<S, D> {
        Closures { serve, delete, served: Mutex::new(BTreeSet::new()) }
    }

    fn is_served(&self, shard: &Assignment) -> bool {
        self.served.lock().unwrap_or_else(PoisonError::into_inner).contains(&shard.replica)
    }
}

impl<S, D, FD> Closures<S, D>
where
    D: Fn(Assignment) -> FD,
    FD: Future<Output = Result<(), Failure>>,
{
    async fn delete(&self, shard: &Assignment) -> Result<(), Failure> {
        if self.is_served(shard) {
            (self.delete)(shard.clone()).await?;
            self.served.lock().unwrap_or_else(PoisonError::into_inner).remove(&shard.replica);
        }
        Ok(())
    }
}

#[async_trait]
impl<S, D, FS, FD> Handler for Closures<S, D>
where
    S: Fn(Assignment) -> FS + Send + Sync + 'static,
    D: Fn(Assignment) -> FD + Send + Sync + 'static,
    FS: Future<Output = Result<(), Failure>> + Send,
    FD: Future<Output = Result<(), Failure>> + Send,
{
    async fn load(&self, _: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        Ok(())
    }

    async fn serve(&self, shard: &Assignment, _: Role, _: Epoch) -> Result<(), Failure> {
        if !self.is_served(shard) {
            (self.serve)(shard.clone()).await?;
            self.served.lock().unwrap_or_else(PoisonError::into_inner).insert(shard.replica.clone());
        }
        Ok(())
    }

    /// The next owner waits for this, so `delete` runs here already.
    async fn unload(&self, shard: &Assignment, _: &[Peer]) -> Result<(), Failure> {
        self.delete(shard).await
    }

    /// Deletes again where `delete` has failed before.
    async fn drop(&self, shard: &Assignment, _: DropReason) -> Result<(), Failure> {
        self.delete(shard).await
    }
}
