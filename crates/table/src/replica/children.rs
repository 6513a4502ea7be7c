//! What a replica gives to the children of its shard, of a split or a merge: a snapshot of the rows that a child holds, then the
//! changes to these. [`Source`] decides which of the two.
//!
//! While a child copies its snapshot, it asks for the changes and keeps them on its disk. Until it asks, they wait here in
//! memory, up to [`Retention::bytes`]: beyond half of that the copy does not give way to clients, and beyond all of it the
//! child gets another snapshot.

use super::LocalReplica;
use crate::transport::{Packet, ParentAsk, ParentGiven, StoredChange, change_bytes};
use partage_core::base::id::PlacementId;
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_core::node::exchange::ReplicaKey;
use partage_service::table::replication::LogPosition;
use partage_service::table::split::{GivenExtent, Retention, Source};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What an entry has changed in the store.
type Changes = Arc<Vec<StoredChange>>;

/// The children that the replica gives its changes to, and what it keeps for them.
pub(super) struct Children {
    source: Source<Changes>,
    askers: BTreeMap<PlacementId, (ReplicaKey, NodeId)>,
}

impl Default for Children {
    fn default() -> Children {
        Children { source: Source::new(Retention::default()), askers: BTreeMap::new() }
    }
}

impl Children {
    /// The replica of a child with that placement, and its node.
    pub(super) fn child(&self, placement: PlacementId) -> Option<&(ReplicaKey, NodeId)> {
        self.askers.get(&placement)
    }

    /// Whether so many changes wait for that child that its copy must not give way to clients.
    pub(super) fn is_pressed_by(&self, child: PlacementId) -> bool {
        self.source.is_pressed_by(child)
    }

    /// A child has stored a chunk of its snapshot.
    pub(super) fn progressed(&mut self, now: Millis, child: PlacementId) {
        self.source.asker_progressed(now, child);
    }

    /// The rows came as a snapshot: children begin anew.
    pub(super) fn reset(&mut self) {
        self.source.reset();
    }
}

impl LocalReplica {
    /// Answers a child's replica that asks.
    pub(super) fn answer_child(&mut self, from: PlacementId, asked: ParentAsk) {
        let now = self.shared.clock.now();
        let ParentAsk { child, bounds, node, ask } = asked;
        let key = ReplicaKey { shard: child, placement: from, ..self.queue.key.clone() };
        let applied = self.rows.applied();
        let (given, changes) = self.children.source.ask(now, from, ask, (&self.machine, applied));
        let Children { source, askers } = &mut self.children;
        askers.retain(|child, _| source.keeps_for(*child));
        askers.insert(from, (key, node));
        let takes = |change: &&StoredChange| self.replica_settings.inherits(&bounds, &change.0);
        let changes = changes.iter().flat_map(|changes| changes.iter()).filter(takes).cloned().collect();
        let is_snapshot = matches!(given.what, GivenExtent::Snapshot(_));
        self.send(from, Packet::Given(ParentGiven { given, changes }));
        // If too many snapshots are under way, this sends none, and the child asks again.
        if is_snapshot {
            self.send_snapshot(now, from, Some(Arc::new(bounds)));
        }
    }

    /// Keeps what an entry has changed, if a child asks for that.
    pub(super) fn keep_for_children(&mut self, position: LogPosition, changes: Vec<StoredChange>) {
        if self.children.source.has_askers() {
            let bytes = changes.iter().map(change_bytes).sum();
            self.children.source.applied(self.shared.clock.now(), position, &Arc::new(changes), bytes);
        }
    }

    /// Tells children on this node to ask at once when the shard closes, since requests wait for them.
    pub(super) fn tell_children(&mut self) {
        if !self.machine.closes() {
            return;
        }
        let (parent, registry) = (self.queue.key.shard, &self.shared.registry);
        let is_here = |node: &NodeId| *node == *self.shared.node();
        self.children.askers.retain(|_, (key, node)| {
            if !is_here(node) {
                return true;
            }
            let queue = registry.queue(key).filter(|queue| queue.is_base());
            queue.is_some_and(|queue| queue.add(|waiting| waiting.parents_applied.insert(parent)).is_some())
        });
    }
}
