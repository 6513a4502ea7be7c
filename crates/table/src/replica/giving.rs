//! What a replica gives to the children of its shard, of a split or a merge: a snapshot of what a child holds, and then what it
//! changes there. `core` decides which of the two ([`Source`]).
//!
//! What is changed while a snapshot is copied, the child asks for meanwhile, and keeps on its disk. Until it has asked, it waits
//! here in memory, up to [`Kept::bytes`]; a child for which half of that waits copies without giving way to clients, and one for
//! which more waits than may is given another snapshot.

use super::LocalReplica;
use crate::transport::{Packet, ParentAsk, ParentGiven, StoredChange, change_bytes};
use partage_core::base::id::PlacementId;
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_core::node::exchange::ReplicaKey;
use partage_service::table::replication::LogPosition;
use partage_service::table::split::{Kept, Source, What};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What an entry has changed in the store.
type Changes = Arc<Vec<StoredChange>>;

/// The children that the replica gives its changes to, and what it keeps for them.
pub(super) struct Giving {
    source: Source<Changes>,
    children: BTreeMap<PlacementId, (ReplicaKey, NodeId)>,
}

impl Default for Giving {
    fn default() -> Giving {
        Giving { source: Source::new(Kept::default()), children: BTreeMap::new() }
    }
}

impl Giving {
    /// The replica of a child with that placement, and its node.
    pub(super) fn child(&self, placement: PlacementId) -> Option<&(ReplicaKey, NodeId)> {
        self.children.get(&placement)
    }

    /// Whether so much has changed while that child copies its snapshot that it is to go on without giving way.
    pub(super) fn is_pressed_by(&self, child: PlacementId) -> bool {
        self.source.is_pressed_by(child)
    }

    /// A child has stored a chunk of its snapshot.
    pub(super) fn heard(&mut self, now: Millis, child: PlacementId) {
        self.source.heard(now, child);
    }

    /// The rows came as a snapshot: children begin anew.
    pub(super) fn replaced(&mut self) {
        self.source.replaced();
    }
}

impl LocalReplica {
    /// A child's replica asks.
    pub(super) fn give(&mut self, from: PlacementId, asked: ParentAsk) {
        let now = self.shared.clock.now();
        let ParentAsk { child, bounds, node, ask } = asked;
        let key = ReplicaKey { shard: child, placement: from, ..self.queue.key.clone() };
        let applied = self.rows.applied();
        let (given, changes) = self.giving.source.ask(now, from, ask, (&self.machine, applied));
        let Giving { source, children } = &mut self.giving;
        children.retain(|child, _| source.is_asked_by(*child));
        children.insert(from, (key, node));
        let takes = |change: &&StoredChange| self.replica_settings.inherits(&bounds, &change.0);
        let changes = changes.iter().flat_map(|changes| changes.iter()).filter(takes).cloned().collect();
        let is_snapshot = matches!(given.what, What::Snapshot(_));
        self.send(from, Packet::Given(ParentGiven { given, changes }));
        // If as many snapshots are under way as may be, the child asks again.
        if is_snapshot {
            self.send_snapshot(now, from, Some(Arc::new(bounds)));
        }
    }

    /// Keeps what an entry has changed, if a child asks for that.
    pub(super) fn keep_for_children(&mut self, position: LogPosition, changes: Vec<StoredChange>) {
        if self.giving.source.is_asked() {
            let bytes = changes.iter().map(change_bytes).sum();
            self.giving.source.applied(self.shared.clock.now(), position, &Arc::new(changes), bytes);
        }
    }

    /// Children on this node need not wait for their time to ask again when the shard closes: requests wait for them.
    pub(super) fn tell_children(&mut self) {
        if !self.machine.closes() {
            return;
        }
        let (parent, registry) = (self.queue.key.shard, &self.shared.registry);
        let is_here = |node: &NodeId| *node == *self.shared.node();
        self.giving.children.retain(|_, (key, node)| {
            if !is_here(node) {
                return true;
            }
            let queue = registry.queue(key).filter(|queue| queue.is_base());
            queue.is_some_and(|queue| queue.add(|waiting| waiting.news.insert(parent)).is_some())
        });
    }
}
