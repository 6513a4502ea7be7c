//! Which nodes need not be remembered any longer: those that have ended, and that nothing refers to.
//!
//! Where pods come and go each has a name of its own, and its record would stay for ever. A record is forgotten when
//! no map names the node, no earlier start of it may still act, and
//!
//! | it has                | after                                                              |
//! |-----------------------|--------------------------------------------------------------------|
//! | left with a goodbye   | [`limits::LEFT_NODE_MS`]                                           |
//! | died                  | [`limits::DEAD_NODE_MS`]                                           |
//! | died, and never held a shard | [`limits::UNUSED_NODE_MS`]                                  |
//! | a drain               | never by time: the drain holds for its next start too              |
//! | any of these          | at once while there are more than [`limits::ENDED_NODES`]: those that never held a shard first, then the oldest |
//!
//! While a shard waits for dead nodes since the coordinator's state was restored ([`super::restored`]), none that may have its
//! data is forgotten: a person removes it.
//!
//! Nothing is lost by it: the counter of starts is in the cluster's record, so no incarnation is given out again (M5),
//! and a process of a forgotten node that comes back registers as a new one. Replicas that a map still names, on a
//! disk perhaps, keep their node's record.

use super::decide::Transition;
use super::{Cluster, Moment, Write};
use crate::base::name::NodeId;
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::limits;

/// Nodes that no shard needs.
pub(super) struct ForgottenNodes {
    nodes: Vec<NodeId>,
    again: Millis,
}

/// A node that has ended, and that no map names.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Ended<'a> {
    has_held: bool,
    since: Millis,
    node: &'a NodeId,
}

impl Transition for ForgottenNodes {
    fn find(cluster: &Cluster, at: Moment) -> ForgottenNodes {
        let ended = cluster.members.nodes.values().filter(|node| node.record.ended && node.former.is_empty());
        let ended = ended.map(|node| Ended {
            has_held: node.has_held,
            since: node.ended_at,
            node: &node.record.spec.id,
        });
        let is_named =
            |id: &NodeId| cluster.keyspaces.by_name.values().any(|keyspace| keyspace.hosted.names(id));
        let mut ended: Vec<Ended<'_>> = ended.filter(|ended| !is_named(ended.node)).collect();
        ended.sort();
        let until = |ended: &Ended<'_>| {
            let record = &cluster.members.nodes[ended.node].record;
            let kept_ms = match (record.left, ended.has_held) {
                (true, _) => limits::LEFT_NODE_MS,
                (false, true) => limits::DEAD_NODE_MS,
                (false, false) => limits::UNUSED_NODE_MS,
            };
            if record.drain.is_some() { Millis::NEVER } else { ended.since + kept_ms }
        };
        let has_data = |ended: &Ended<'_>| cluster.members.nodes[ended.node].record.held;
        let mut found = ForgottenNodes { nodes: Vec::new(), again: Millis::NEVER };
        let is_due = ended.len() > limits::ENDED_NODES || ended.iter().any(|ended| until(ended) <= at.now);
        if is_due && ended.iter().any(has_data) && cluster.waits_for_the_dead() {
            ended.retain(|ended| !has_data(ended));
            found.again = at.now + limits::UNUSED_NODE_MS;
        }
        let surplus = ended.len().saturating_sub(limits::ENDED_NODES);
        for (number, ended) in ended.iter().enumerate() {
            match until(ended) {
                until if number >= surplus && at.now < until => found.again = found.again.min(until),
                _ => found.nodes.push(ended.node.clone()),
            }
        }
        found
    }

    fn apply(self, cluster: &mut Cluster, _: Moment) -> Millis {
        for id in self.nodes {
            let Some(node) = cluster.members.nodes.remove(&id) else { continue };
            cluster.members.registrations.unused_nodes_forgotten +=
                u64::from(!node.has_held && !node.record.left);
            cluster.outbox.changed_orders.remove(&id);
            cluster.outbox.writes.push(Write::DropNode(id.clone()));
            cluster.outbox.tell(
                EventKind::NodeForgotten,
                About::node(&id),
                false,
                format!("node {id} ended a while ago and holds nothing: it is forgotten"),
            );
        }
        self.again
    }
}

impl Cluster {
    /// How many nodes were forgotten that had died and never held a shard, since this coordinator leads: anybody can
    /// register such nodes.
    pub fn unused_nodes_forgotten(&self) -> u64 {
        self.members.registrations.unused_nodes_forgotten
    }
}
