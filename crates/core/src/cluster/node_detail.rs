//! One node for a person who looks at it: how it is, when it was heard, and every shard with a replica on it (A3).

use super::admin::AdminError;
use super::status::{NodeRow, ShardRow, node_row};
use super::{Cluster, Moment};
use crate::base::name::{KeyspaceName, NodeId};
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::Role;
use crate::node::load::Load;

/// A node, and what it holds.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeDetail {
    /// As in the table of all nodes.
    pub row: NodeRow,
    /// Why it is not up; none = it is.
    pub health_because: Option<String>,
    /// What the coordinator does to see whether the node's address answers.
    pub check: String,
    /// How long ago its last heartbeat came, in milliseconds; none before the first one since this coordinator leads.
    pub heard_ms_ago: Option<u64>,
    /// How long its lease still runs, in milliseconds.
    pub lease_left_ms: u64,
    /// The shards with a replica on it, in the order of keyspaces and ids.
    pub shards: Vec<(KeyspaceName, ShardRow)>,
    /// It holds more than were asked for.
    pub more: bool,
}

impl Cluster {
    /// A node with at most `limit` of its shards.
    pub fn node_detail(&self, at: Moment, id: &NodeId, limit: usize) -> Result<NodeDetail, AdminError> {
        let node = self.node(id)?;
        let mut row = node_row(node, at, self);
        let (mut shards, mut more) = (Vec::new(), false);
        for (name, keyspace) in &self.keyspaces.by_name {
            let held = keyspace.hosted.on(id).filter_map(|shard| keyspace.map.shard(shard));
            for shard in held {
                let own = shard.replicas.iter().filter(|replica| replica.node == *id);
                for replica in own.filter(|replica| replica.incarnation == row.incarnation) {
                    *row.replicas.entry(name.clone()).or_default() += 1;
                    let leads = replica.role == Role::Leader && replica.state == ReplicaState::Live;
                    row.leaders += usize::from(leads);
                    let load = keyspace.observed.get(&replica.placement).and_then(|seen| seen.load());
                    for (sum, value) in row.load.iter_mut().zip(load.map(Load::metrics).unwrap_or_default()) {
                        *sum += value;
                    }
                }
                match shards.len() < limit {
                    true => shards.push((name.clone(), self.shard_row(at, keyspace, shard))),
                    false => more = true,
                }
            }
        }
        let check = node.record.spec.check_text();
        Ok(NodeDetail {
            row,
            health_because: node.signs.reason(at.now, &self.settings, &check),
            check,
            heard_ms_ago: node.signs.last_beat.map(|beat| at.now.since(beat)),
            lease_left_ms: node.signs.lease.end().since(at.now),
            shards,
            more,
        })
    }
}
