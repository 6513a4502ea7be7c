//! The keyspaces of a cluster, and what concerns all of them.

use super::planning::Footprint;
use super::{KeyspaceRecord, Moment, Observed, PackedMap};
use crate::base::id::{PlacementId, ShardId};
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::time::Millis;
use crate::keyspace::map::ShardMap;
use crate::node::exchange::{ReplicaKey, ReplicationReport};
use std::collections::{BTreeMap, BTreeSet};

/// The keyspaces, each with its map and what is known of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Keyspaces {
    pub(super) by_name: BTreeMap<KeyspaceName, KeyspaceState>,
    /// Exclusive keyspaces that were deleted a lease ago or less, and until when their names are not given
    /// out again. Not stored: a restart forgets the last few seconds of it.
    pub(super) deleted: BTreeMap<KeyspaceName, Millis>,
    /// What all of them carry on each node; not stored.
    pub(super) carried: Footprint,
    /// How many shards were noted as having news, since this coordinator started.
    pub(super) enqueued: u64,
}

/// A keyspace with its map and what is known of it.
#[derive(Debug, Clone)]
pub struct KeyspaceState {
    /// What the coordinator stores of the keyspace beside its map: the settings, the rules of single shards, the brake.
    pub record: KeyspaceRecord,
    /// The latest map, with every change that the coordinator has decided. Some may not be durable yet.
    pub map: ShardMap,
    /// Reports of the incarnations that the map names.
    pub observed: PackedMap<PlacementId, Observed>,
    /// What replicas of a replicated keyspace have said of the replication of their shards.
    pub(super) replication: BTreeMap<PlacementId, ReplicationReport>,
    /// The map by nodes instead of by shards.
    pub(super) hosted: super::hosted::Hosted,
    /// Shards to look at in the next decision, and what each waits for.
    pub(super) queue: super::shard_queue::ShardQueue,
    /// How far approved plans are carried out.
    pub(super) execution: super::execute::Execution,
    /// Steps that are overdue.
    pub(super) overdue: super::overdue::OverdueState,
    /// Which shards may be to blame when processes die.
    pub(super) suspicion: super::blame::Suspicion,
    /// What its planner remembers from one run to the next.
    pub(super) planning: super::planning::PlanningState,
    /// Which copies of durable shards are the latest.
    pub(super) restored: super::restored::RestoredCopies,
    /// Replicas of a durable keyspace that were placed, or began anew as followers, under this coordinator, and have not led
    /// since. Not stored.
    pub(super) never_led: BTreeSet<PlacementId>,
    /// Since when each shard has its present epoch, in milliseconds of Unix time; not stored, so a shard that
    /// is missing here has had it since before this coordinator started.
    pub(super) since: super::runs::Runs,
    /// Shards that began without the data of before, as no node had a copy; not stored.
    pub(super) begun_empty: Option<super::status::BegunEmpty>,
    /// The last step of each replica that is not live; not stored.
    pub(super) stepped: BTreeMap<PlacementId, super::moves::Step>,
    /// The leaders that were ordered to hand over; not stored.
    pub(super) transfers: BTreeMap<ShardId, super::transfers::LeadTransfer>,
}

impl Keyspaces {
    pub(super) fn get(&self, name: &KeyspaceName) -> Option<&KeyspaceState> {
        self.by_name.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &KeyspaceName) -> Option<&mut KeyspaceState> {
        self.by_name.get_mut(name)
    }

    /// The next decision looks at the shard.
    pub(super) fn enqueue_shard(&mut self, replica: &ReplicaKey) {
        if let Some(keyspace) = self.by_name.get_mut(&replica.keyspace) {
            keyspace.enqueue([replica.shard]);
        }
    }

    /// Wakes every shard with a replica on the node, of whichever incarnation.
    pub(super) fn enqueue_replicas_of(&mut self, id: &NodeId) {
        for keyspace in self.by_name.values_mut() {
            let ids: Vec<_> = keyspace.hosted.on(id).collect();
            self.enqueued += ids.len() as u64;
            keyspace.enqueue(ids);
        }
    }

    /// Plans every keyspace within `delay_ms`. Sooner stays sooner.
    pub(super) fn plan_soon(&mut self, at: Moment, delay_ms: u64) {
        for keyspace in self.by_name.values_mut() {
            keyspace.planning.plan_due = keyspace.planning.plan_due.min(at.now + delay_ms);
        }
    }

    /// Whether nothing is under way in any of them.
    pub(super) fn are_settled(&self) -> bool {
        self.by_name.values().all(|keyspace| keyspace.queue.unsettled.is_empty())
    }

    /// Packs what is kept for each replica and shard, as far as there is `room` for that in this decision.
    pub(super) fn pack(&mut self, room: &mut i64) {
        for keyspace in self.by_name.values_mut() {
            keyspace.observed.pack(room);
            keyspace.since.pack(room);
            keyspace.hosted.pack(room);
        }
    }

    /// Whether the map has a place for it: it is ordered, or waits to be.
    pub(super) fn is_named(&self, key: &ReplicaKey) -> bool {
        let keyspace = self.by_name.get(&key.keyspace);
        let shard = keyspace.and_then(|keyspace| keyspace.map.shard(key.shard));
        shard.is_some_and(|shard| shard.replica(key.placement).is_some())
    }
}
