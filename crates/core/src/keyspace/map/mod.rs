//! The map of a keyspace: its shards, their replicas, at a generation.
//!
//! A map is replaced, never changed: [`Edit`] collects changes on a map and [`Edit::commit`] gives the
//! next one, with exactly one parent and a [`MapDiff`] that leads there (M3, M4). Routers and
//! coordinators that stand by hold copies, to which they apply the diffs.
//!
//! A shard is in one of four [`Stage`]s. *Serving* shards are disjoint and cover the keyspace (M1).
//! While a split or a merge prepares, its children are *Forming* beside the parents that still serve; one
//! commit makes the children serving and the parents *Closing* (O8). So a lookup never sees a gap. A named
//! partition that is not wanted any more is *Removing* until the last of its replicas has unloaded.

mod diff;
mod edit;
mod family;
mod lineage;
mod replicas;

pub use diff::{DiffError, MapDiff};
pub use edit::{Edit, EditError};
pub use family::Family;
pub use lineage::Lineage;
pub use replicas::Replicas;

use crate::base::counter_jump::CounterJump;
use crate::base::id::{Configuration, Epoch, Generation, Incarnation, PlacementId, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

/// What a replica may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Accepts writes (and, in exclusive mode, is the owner). At most one per shard.
    Leader,
    /// Serves reads, follows the leader, and may take its place.
    Follower,
    /// Serves reads, of a hot shard of a replicated keyspace: follows the leader, which waits for nothing of it. It is never in
    /// the in-sync set, and never leads; the coordinator may make it a follower.
    ReadReplica,
}

impl Role {
    /// Every role, in the order of the declaration.
    pub const ALL: [Role; 3] = [Role::Leader, Role::Follower, Role::ReadReplica];

    /// What it is when it does not lead (any more).
    #[must_use]
    pub fn without_lead(self) -> Role {
        match self {
            Role::Leader | Role::Follower => Role::Follower,
            Role::ReadReplica => Role::ReadReplica,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Role::Leader => "leader",
            Role::Follower => "follower",
            Role::ReadReplica => "read replica",
        })
    }
}

/// What a request wants of the replica that answers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Any replica that serves.
    Read,
    /// The leader alone: it orders the writes of its shard.
    Write,
}

/// One shard on one node, for one stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// An id that is new on every add, so that a process which comes back is not mistaken for its former self.
    pub placement: PlacementId,
    /// The node that the replica is on.
    pub node: NodeId,
    /// Which start of that node: a later one is another place (O6).
    pub incarnation: Incarnation,
    /// What the replica may do while it serves.
    pub role: Role,
    /// Where it is in its life.
    pub state: ReplicaState,
    /// Whether it is in the in-sync set of its shard: in `Live`, and a leader acknowledges no write that it has not stored; or in
    /// `Unload` of a shard that closes.
    /// Of keyspaces that are not replicated no replica is.
    pub in_sync: bool,
    /// See [`Replica::replaces`].
    pub predecessor: Option<Predecessor>,
}

impl Replica {
    /// Whether it is there to be read from only.
    pub fn is_read_replica(&self) -> bool {
        self.role == Role::ReadReplica
    }

    /// The replica that leaves when this one serves: make before break (O11).
    pub fn replaces(&self) -> Option<PlacementId> {
        self.predecessor.map(PlacementId::from)
    }
}

/// The placement id of another replica. Ids are counted from 1, so that none takes no room of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predecessor(NonZeroU64);

impl Predecessor {
    /// None for the id 0, which nothing has.
    pub fn new(placement: PlacementId) -> Option<Predecessor> {
        NonZeroU64::new(placement.0).map(Predecessor)
    }
}

impl From<Predecessor> for PlacementId {
    fn from(predecessor: Predecessor) -> PlacementId {
        PlacementId(predecessor.0.get())
    }
}

/// Where a shard is in its own life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// Child of a split or merge that prepares; part of no lookup yet. Names all children, itself included.
    Forming(Family),
    /// Answers for its bounds: lookups find it.
    Serving,
    /// Parent of a finished split or merge; forwards and goes. Names its children. Where it is replicated it keeps its in-sync
    /// set, in `Unload`, and a leader, the *closer*, until its children have all that it has.
    Closing(Family),
    /// A partition that its user has unregistered: its replicas unload, and it goes with the last of them.
    Removing,
}

/// For people: what follows on "shard s2 is".
impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |family: &Family| family.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Stage::Forming(_) => write!(f, "forming: the split or merge that makes it has not ended"),
            Stage::Serving => write!(f, "serving"),
            Stage::Closing(children) => write!(f, "closing: its keys are in {} now", named(children)),
            Stage::Removing => write!(f, "being removed"),
        }
    }
}

/// A part of a keyspace: what is placed, moved, split and merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// An id that the keyspace never gives out again.
    pub id: ShardId,
    /// Grows whenever the leader or the bounds change.
    pub epoch: Epoch,
    /// Grows whenever its in-sync set or, while it has one, its leader changes; 0 = it has had none.
    pub configuration: Configuration,
    /// The keys, hashes, slot or partition that the shard holds.
    pub bounds: Bounds,
    /// See [`Shard::stage`] and [`Shard::parents`].
    pub lineage: Lineage,
    /// Its replicas, in the order of their placement ids.
    pub replicas: Replicas,
}

impl Shard {
    /// What the shard is for now: its lookups know it only while it serves.
    pub fn stage(&self) -> &Stage {
        self.lineage.stage()
    }

    /// What it was split or merged from; empty for a shard that began with its keyspace. They may be gone.
    pub fn parents(&self) -> &[ShardId] {
        self.lineage.parents()
    }

    /// The replica that may accept writes under [`Shard::epoch`], if any.
    pub fn leader(&self) -> Option<&Replica> {
        self.replicas.iter().find(|r| r.role == Role::Leader && r.state == ReplicaState::Live)
    }

    /// The replica that ends the log of a replicated shard which closes.
    pub fn closer(&self) -> Option<&Replica> {
        let closes = matches!(self.stage(), Stage::Closing(_));
        self.replicas.iter().find(|r| closes && r.role == Role::Leader && r.state == ReplicaState::Unload)
    }

    /// The replica of that placement.
    pub fn replica(&self, placement: PlacementId) -> Option<&Replica> {
        self.replicas.iter().find(|r| r.placement == placement)
    }

    /// Replicas that serve or prepare to.
    pub fn staying(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|r| r.state.is_staying())
    }

    /// Its members: replicas that stay, without those that are there to be read from only.
    pub fn members(&self) -> impl Iterator<Item = &Replica> {
        self.staying().filter(|r| !r.is_read_replica())
    }

    /// Members that serve now, the leader among them.
    pub fn live(&self) -> impl Iterator<Item = &Replica> {
        self.readable().filter(|r| !r.is_read_replica())
    }

    /// Replicas that answer reads: members and read replicas that serve.
    pub fn readable(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|r| r.state == ReplicaState::Live)
    }

    /// Its in-sync set: the replicas of which each has every acknowledged write.
    pub fn in_sync(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|r| r.in_sync)
    }

    /// Whether it has, or has had, an in-sync set: then only a member of it may lead.
    pub fn has_in_sync_set(&self) -> bool {
        self.configuration > Configuration(0)
    }

    /// The replicas that have every acknowledged write, as far as the map says: the in-sync set, or where there is none
    /// those that serve.
    pub fn copies(&self) -> impl Iterator<Item = &Replica> {
        let by_set = self.has_in_sync_set();
        self.live().filter(move |r| r.in_sync || !by_set)
    }

    /// Whether a replica on that node keeps another one off it, which is to take the place of `replaced`: one that
    /// stays, or one that hands over to another that stays elsewhere. Where no other stays (the node that took over
    /// has died, or never begins and is to be replaced), a node that still hands over may take the shard again: as a
    /// new replica beside its former self, from which it can copy.
    pub fn bars(&self, node: &NodeId, replaced: Option<PlacementId>) -> bool {
        let here = |state: ReplicaState| self.replicas.iter().any(|r| r.node == *node && r.state == state);
        let another_stays = self.staying().any(|r| Some(r.placement) != replaced);
        self.staying().any(|r| r.node == *node) || another_stays && here(ReplicaState::Unload)
    }

    /// Whether it, or what it was split or merged from, has ever been led, so that it may have data. It stays so, as
    /// the first lead raises the epoch from 0 and no epoch goes back.
    pub fn had_data(&self) -> bool {
        self.epoch > Epoch(0)
    }

    /// It is wanted no more: all its replicas leave, none leads, and none needs to be in sync.
    fn leave_whole(&mut self) {
        for replica in &mut self.replicas {
            replica.role = replica.role.without_lead();
            replica.in_sync = false;
            replica.state = replica.state.leaving();
        }
        if self.has_in_sync_set() {
            self.configuration = self.configuration.next();
        }
    }

    /// It is split or merged: as [`Shard::leave_whole`], but those that have all that was acknowledged are still needed, and its
    /// leader is its closer.
    fn leave_to_children(&mut self) {
        let before = self.replicas.clone();
        self.leave_whole();
        for (replica, before) in
            self.replicas.iter_mut().zip(before.iter()).filter(|(_, before)| before.in_sync)
        {
            (replica.role, replica.in_sync) = (before.role, true);
        }
    }

    /// Whether the shard answers for its bounds.
    pub fn is_serving(&self) -> bool {
        *self.stage() == Stage::Serving
    }

    /// Whether nothing is on its way: it serves, every replica is live, one leads.
    pub fn is_settled(&self) -> bool {
        self.is_serving()
            && self.leader().is_some()
            && self.replicas.iter().all(|r| r.state == ReplicaState::Live)
    }
}

/// The shards of a keyspace with their replicas, at a generation. A copy costs the same for any number of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardMap {
    keyspace: KeyspaceName,
    sharding: Sharding,
    partition_key: PartitionKey,
    generation: Generation,
    parent: Option<Generation>,
    /// Shared with the copies of this map: a change copies the shards first where another copy still has them.
    shards: Arc<BTreeMap<ShardId, Shard>>,
    next_shard: ShardId,
    next_placement: PlacementId,
}

impl ShardMap {
    /// The map before the first: no shards, sequence 0.
    pub fn empty(keyspace: KeyspaceName, sharding: Sharding, partition_key: PartitionKey) -> ShardMap {
        ShardMap {
            keyspace,
            sharding,
            partition_key,
            generation: Generation::default(),
            parent: None,
            shards: Arc::default(),
            next_shard: ShardId(1),
            next_placement: PlacementId(1),
        }
    }

    /// An empty map whose ids begin above those that were given out before it: a keyspace that is created
    /// after another was deleted never uses its ids again (M5).
    pub fn empty_after(self, next_shard: ShardId, next_placement: PlacementId) -> ShardMap {
        ShardMap {
            next_shard: self.next_shard.max(next_shard),
            next_placement: self.next_placement.max(next_placement),
            ..self
        }
    }

    /// The same map where later ones may have been lost: its counters, its epochs and its generation go on beyond what
    /// can have been given out (M5, O2, M2). Routers take a later map only; one that went back they would refuse for
    /// ever. A keyspace that has had no map yet has none to go on from.
    #[must_use]
    pub fn after_loss(mut self, jump: CounterJump) -> ShardMap {
        for shard in Arc::make_mut(&mut self.shards).values_mut() {
            shard.epoch = Epoch(jump.beyond(shard.epoch.0));
            if shard.has_in_sync_set() {
                shard.configuration = Configuration(jump.beyond(shard.configuration.0));
            }
        }
        self.next_shard = ShardId(jump.beyond(self.next_shard.0));
        self.next_placement = PlacementId(jump.beyond(self.next_placement.0));
        if self.generation.sequence > 0 {
            let sequence = jump.beyond(self.generation.sequence);
            self.parent = Some(self.generation);
            self.generation = Generation { sequence, ..self.generation };
        }
        self
    }

    /// The same map without what splits and merges are forming. It may have come to serve since, where later maps were lost,
    /// and be later than its parents: so its copies count as those of any shard that the map does not know, and none of
    /// them is deleted as an abandoned one.
    #[must_use]
    pub fn without_forming(mut self) -> ShardMap {
        Arc::make_mut(&mut self.shards).retain(|_, shard| !matches!(shard.stage(), Stage::Forming(_)));
        self
    }

    /// Takes the shards away from other copies of the map: they are copied here and now, and the next change copies none.
    pub fn unshare(&mut self) {
        Arc::make_mut(&mut self.shards);
    }

    /// The map as one diff from nothing: how a whole map is stored and sent.
    pub fn whole(&self) -> MapDiff {
        let empty = ShardMap::empty(self.keyspace.clone(), self.sharding, self.partition_key);
        empty.diff(self)
    }

    /// The keyspace that the map is of.
    pub fn keyspace(&self) -> &KeyspaceName {
        &self.keyspace
    }

    /// How keys map to shards.
    pub fn sharding(&self) -> Sharding {
        self.sharding
    }

    /// Which part of a key is sharded by.
    pub fn partition_key(&self) -> PartitionKey {
        self.partition_key
    }

    /// The number of this map, and its transaction.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The map this one was made from; none for the empty map.
    pub fn parent(&self) -> Option<Generation> {
        self.parent
    }

    /// The id that the next new shard gets.
    pub fn next_shard(&self) -> ShardId {
        self.next_shard
    }

    /// The id that the next new replica gets.
    pub fn next_placement(&self) -> PlacementId {
        self.next_placement
    }

    /// The shard of that id.
    pub fn shard(&self, id: ShardId) -> Option<&Shard> {
        self.shards.get(&id)
    }

    /// All shards in the order of their ids.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = &Shard> {
        self.shards.values()
    }

    /// Those of that id and of later ones.
    pub fn shards_from(&self, from: ShardId) -> impl Iterator<Item = &Shard> {
        self.shards.range(from..).map(|(_, shard)| shard)
    }

    /// How many shards, of any stage.
    pub fn len(&self) -> usize {
        self.shards.len()
    }

    /// Whether there is no shard.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// The serving shard whose bounds hold `key`. Walks all shards: for one-off questions; routers build
    /// an index ([`crate::keyspace::lookup`]).
    pub fn find(&self, key: &[u8]) -> Option<&Shard> {
        let position = self.sharding.position(self.partition_key, key);
        self.shards.values().find(|shard| shard.is_serving() && shard.bounds.contains(position))
    }

    /// Begins the next map.
    pub fn edit(&self) -> Edit<'_> {
        Edit::new(self)
    }
}

#[cfg(test)]
mod tests;
