//! Partition discovery: what a metadata server tells a node of a partition that the node has (T9, T10).
//!
//! | the map says of its replica            | it should be | its data is pushed to                          |
//! |----------------------------------------|--------------|------------------------------------------------|
//! | `Load`                                 | LOAD         | no client yet                                  |
//! | `Live`                                 | SERVE        | the others of the shard, and of its children   |
//! | `Unload`, `UnloadFinal`                | UNLOAD       | the same                                       |
//! | nothing: it left, or the shard is gone | UNLOAD       | the holders of the shard now, and its children |
//!
//! Children are the shards of a split or a merge, while it prepares and after it. Each target has the placement
//! id that acknowledgements are kept by: a node that left and came back empty has another one (T10). A node that
//! has data and no target keeps it: it may have the only copy (T11).

use partage_core::base::id::{Epoch, Generation, Incarnation, PlacementId, ShardId};
use partage_core::base::name::NodeId;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{Replica, Role, Shard, ShardMap, Stage};
use partage_core::keyspace::sharding::Bounds;
use std::collections::{BTreeMap, BTreeSet};

/// What a partition on a node should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// Prepare or catch up; do not serve.
    Load,
    /// Answer clients, and push data to the targets.
    Serve,
    /// Push the data to the targets, and then go.
    Unload,
}

/// A replica to which a node must push data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The node that receives it.
    pub node: NodeId,
    /// The node's process that receives it.
    pub incarnation: Incarnation,
    /// The placement under which it acknowledges what it has received (T10).
    pub placement: PlacementId,
    /// The shard of that replica: another one than the node's in a split or merge.
    pub shard: ShardId,
    /// The part of the data that it takes: the keys of its shard.
    pub bounds: Bounds,
    /// Whether it leads that shard.
    pub leads: bool,
}

/// What a metadata server tells a node of one of its partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// The map from which this was read.
    pub at: Generation,
    /// The partition that was asked about.
    pub shard: ShardId,
    /// What the partition should be on that node.
    pub status: Status,
    /// The placement of the node's replica; none when the map has none there.
    pub placement: Option<PlacementId>,
    /// The shard's epoch; none when the shard is gone.
    pub epoch: Option<Epoch>,
    /// The replicas to which the node must push its data; none while it loads.
    pub targets: Vec<Target>,
}

/// A map with the children of each shard, for many questions.
#[derive(Debug)]
pub struct Discoverer<'a> {
    map: &'a ShardMap,
    children: BTreeMap<ShardId, Vec<ShardId>>,
}

impl<'a> Discoverer<'a> {
    /// Walks the map once, to find the children of each shard.
    pub fn new(map: &'a ShardMap) -> Discoverer<'a> {
        let mut children: BTreeMap<ShardId, Vec<ShardId>> = BTreeMap::new();
        for shard in map.shards() {
            for parent in shard.parents() {
                children.entry(*parent).or_default().push(shard.id);
            }
        }
        Discoverer { map, children }
    }

    /// What a metadata server tells the process of `node` with that incarnation of `shard`.
    pub fn tell(&self, shard: ShardId, node: &NodeId, incarnation: Incarnation) -> Discovery {
        let found = self.map.shard(shard);
        // The newest replica counts: an older one on the same node is being removed.
        let replica = found.and_then(|shard| {
            shard.replicas.iter().rev().find(|r| r.node == *node && r.incarnation == incarnation)
        });
        let status = match replica.map(|replica| replica.state) {
            Some(ReplicaState::Load) => Status::Load,
            Some(ReplicaState::Live) => Status::Serve,
            Some(ReplicaState::Unload | ReplicaState::UnloadFinal) | None => Status::Unload,
        };
        let mut targets = Vec::new();
        if status != Status::Load {
            let family = found.into_iter().chain(self.descendants(shard));
            let holders = family.flat_map(|shard| shard.staying().map(move |replica| (shard, replica)));
            let mine = replica.map(|replica| replica.placement);
            targets.extend(holders.filter(|(_, r)| Some(r.placement) != mine).map(target));
        }
        let placement = replica.map(|replica| replica.placement);
        let epoch = found.map(|shard| shard.epoch);
        Discovery { at: self.map.generation(), shard, status, placement, epoch, targets }
    }

    /// The shards that a shard is being split or merged into, or was: those that take its data now. Where a
    /// child has itself closed, its own children stand for it.
    fn descendants(&self, shard: ShardId) -> Vec<&'a Shard> {
        let mut found = Vec::new();
        let mut seen = BTreeSet::from([shard]);
        let mut left = vec![shard];
        while let Some(id) = left.pop() {
            for child in self.children.get(&id).into_iter().flatten() {
                if !seen.insert(*child) {
                    continue;
                }
                let Some(child) = self.map.shard(*child) else { continue };
                match child.stage() {
                    Stage::Serving | Stage::Forming(_) => found.push(child),
                    Stage::Closing(_) | Stage::Removing => {}
                }
                left.push(child.id);
            }
        }
        found.sort_by_key(|shard| shard.id);
        found
    }
}

fn target((shard, replica): (&Shard, &Replica)) -> Target {
    Target {
        node: replica.node.clone(),
        incarnation: replica.incarnation,
        placement: replica.placement,
        shard: shard.id,
        bounds: shard.bounds.clone(),
        leads: replica.role == Role::Leader,
    }
}
