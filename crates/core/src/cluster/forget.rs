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
//! data is forgotten by time: a person removes it.
//!
//! Nothing is lost by it: the counter of starts is in the cluster's record, so no incarnation is given out again (M5),
//! and a process of a forgotten node that comes back registers as a new one. Replicas that a map still names, on a
//! disk perhaps, keep their node's record.

use super::{Cluster, Moment, Write};
use crate::base::name::NodeId;
use crate::base::time::Millis;
use crate::cluster::event::{About, EventKind};
use crate::limits;

impl Cluster {
    /// Forgets whom nobody needs; returns when to look again.
    pub(super) fn forget_ended_nodes(&mut self, at: Moment) -> Millis {
        let mut ended: Vec<(bool, Millis, NodeId)> = self
            .nodes
            .values()
            .filter(|node| node.record.ended && node.former.is_empty())
            .map(|node| (node.has_held, node.ended_at, node.record.spec.id.clone()))
            .filter(|(.., id)| !self.keyspaces.values().any(|keyspace| keyspace.hosted.names(id)))
            .collect();
        ended.sort();
        let until = |cluster: &Cluster, (has_held, since, id): &(bool, Millis, NodeId)| {
            let record = &cluster.nodes[id].record;
            let kept_ms = match (record.left, has_held) {
                (true, _) => limits::LEFT_NODE_MS,
                (false, true) => limits::DEAD_NODE_MS,
                (false, false) => limits::UNUSED_NODE_MS,
            };
            if record.drain.is_some() { Millis::NEVER } else { *since + kept_ms }
        };
        let mut again = Millis::NEVER;
        let is_due = ended.len() > limits::ENDED_NODES || ended.iter().any(|one| until(self, one) <= at.now);
        if is_due && ended.iter().any(|(.., id)| self.nodes[id].record.held) && self.waits_for_the_dead() {
            ended.retain(|(.., id)| !self.nodes[id].record.held);
            again = at.now + limits::UNUSED_NODE_MS;
        }
        let mut surplus = ended.len().saturating_sub(limits::ENDED_NODES);
        for one in ended {
            let until = until(self, &one);
            let (has_held, _, id) = one;
            if surplus == 0 && at.now < until {
                again = again.min(until);
                continue;
            }
            surplus = surplus.saturating_sub(1);
            let has_left = self.nodes.remove(&id).is_some_and(|node| node.record.left);
            self.registrations.unused_nodes_forgotten += u64::from(!has_held && !has_left);
            self.outbox.changed_orders.remove(&id);
            self.outbox.writes.push(Write::DropNode(id.clone()));
            self.tell(
                EventKind::NodeForgotten,
                About::node(&id),
                false,
                format!("node {id} ended a while ago and holds nothing: it is forgotten"),
            );
        }
        again
    }

    /// How many nodes were forgotten that had died and never held a shard, since this coordinator leads: anybody can
    /// register such nodes.
    pub fn unused_nodes_forgotten(&self) -> u64 {
        self.registrations.unused_nodes_forgotten
    }
}
