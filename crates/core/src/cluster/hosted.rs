//! Which shards have a replica on a node, of any of its incarnations: so that what happens to one node costs as much
//! as that node holds, and not as much as the cluster holds.
//!
//! The map says it shard by shard; this is the same the other way round. It is derived: made from the map that a
//! coordinator takes over ([`super::recovered`]), and each commit brings it up to date for the shards it touches.

use super::PackedMap;
use crate::base::id::ShardId;
use crate::base::name::NodeId;
use crate::keyspace::map::{Shard, ShardMap};
use std::collections::BTreeMap;

/// The shards of one keyspace by the nodes that its map names.
#[derive(Debug, Clone, Default)]
pub(super) struct Hosted(BTreeMap<NodeId, PackedMap<ShardId, ()>>);

impl Hosted {
    /// Of a map that few or no replicas are in.
    pub(super) fn of(map: &ShardMap) -> Hosted {
        let mut hosted = Hosted::default();
        map.shards().for_each(|shard| hosted.note(shard.id, None, Some(shard)));
        hosted
    }

    /// By nodes, each with its shards in order.
    pub(super) fn from_lists(lists: impl Iterator<Item = (NodeId, Vec<ShardId>)>) -> Hosted {
        let packed = |ids: Vec<ShardId>| ids.into_iter().map(|id| (id, ())).collect();
        let named = lists.filter(|(_, ids)| !ids.is_empty());
        Hosted(named.map(|(node, ids)| (node, packed(ids))).collect())
    }

    /// The nodes that the map names.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.0.keys()
    }

    /// The shards that have a replica on `node`.
    pub(super) fn on(&self, node: &NodeId) -> impl Iterator<Item = ShardId> {
        self.0.get(node).into_iter().flat_map(|shards| shards.keys().copied())
    }

    /// How many they are.
    pub(super) fn count(&self, node: &NodeId) -> usize {
        self.0.get(node).map_or(0, |shards| shards.len())
    }

    /// Whether the map names the node at all.
    pub(super) fn names(&self, node: &NodeId) -> bool {
        self.0.contains_key(node)
    }

    /// The shard was `old`, and is `new`.
    pub(super) fn note(&mut self, id: ShardId, old: Option<&Shard>, new: Option<&Shard>) {
        let is_on = |shard: Option<&Shard>, node: &NodeId| {
            shard.is_some_and(|s| s.replicas.iter().any(|r| r.node == *node))
        };
        for replica in old.into_iter().flat_map(|shard| &shard.replicas) {
            if is_on(new, &replica.node) {
                continue;
            }
            if let Some(shards) = self.0.get_mut(&replica.node) {
                shards.remove(&id);
                if shards.is_empty() {
                    self.0.remove(&replica.node);
                }
            }
        }
        for replica in new.into_iter().flat_map(|shard| &shard.replicas) {
            if !is_on(old, &replica.node) {
                self.0.entry(replica.node.clone()).or_default().insert(id, ());
            }
        }
    }

    pub(super) fn pack(&mut self, room: &mut i64) {
        self.0.values_mut().for_each(|shards| shards.pack(room));
    }

    /// Node by node, for tests that compare.
    #[cfg(test)]
    pub(super) fn table(&self) -> Vec<(&NodeId, Vec<ShardId>)> {
        self.0.iter().map(|(node, shards)| (node, shards.keys().copied().collect())).collect()
    }
}
