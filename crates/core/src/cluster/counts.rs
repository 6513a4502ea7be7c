//! How much is under way in a keyspace: what the throttle counts ([`super::execute`]).

use crate::base::id::ShardId;
use crate::base::name::NodeId;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Shard, Stage};
use std::collections::{BTreeMap, BTreeSet};

/// Moves and loads under way in a keyspace, per node and in all. Kept up to date shard by shard: a large keyspace has
/// so many under way that no decision could count them anew.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) moves: u32,
    pub(super) moves_on: BTreeMap<NodeId, u32>,
    pub(super) loads_on: BTreeMap<NodeId, u32>,
    /// The shards that these are of.
    pub(super) loading: BTreeSet<ShardId>,
}

impl Counts {
    /// What is under way in these shards.
    pub(super) fn of<'a>(shards: impl IntoIterator<Item = &'a Shard>) -> Counts {
        let mut counts = Counts::default();
        shards.into_iter().for_each(|shard| counts.count(shard, 1));
        counts
    }

    /// A shard has something under way from now on (`by` is 1), or no longer (-1).
    pub(super) fn count(&mut self, shard: &Shard, by: i32) {
        let loads = || shard.replicas.iter().filter(|r| r.state == ReplicaState::Load);
        if loads().next().is_some() && by > 0 {
            self.loading.insert(shard.id);
        } else {
            self.loading.remove(&shard.id);
        }
        for replica in loads() {
            match replica.replaces().and_then(|old| shard.replica(old)) {
                Some(old) => self.count_move([&old.node, &replica.node], by),
                None => self.count_load(&replica.node, by),
            }
        }
        // One of the children stands for all. A split or merge takes part in the work of each node where its children
        // begin.
        if matches!(shard.stage(), Stage::Forming(children) if children.first() == Some(&shard.id)) {
            self.count_move(shard.staying().map(|r| &r.node), by);
        }
    }

    /// A load that replaces nothing.
    pub(super) fn count_load(&mut self, node: &NodeId, by: i32) {
        add(&mut self.loads_on, node, by);
    }

    pub(super) fn count_move<'a>(&mut self, nodes: impl IntoIterator<Item = &'a NodeId>, by: i32) {
        self.moves = self.moves.saturating_add_signed(by);
        nodes.into_iter().for_each(|node| add(&mut self.moves_on, node, by));
    }
}

fn add(to: &mut BTreeMap<NodeId, u32>, node: &NodeId, by: i32) {
    let count = to.entry(node.clone()).or_default();
    *count = count.saturating_add_signed(by);
    if *count == 0 {
        to.remove(node);
    }
}
