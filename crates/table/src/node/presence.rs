//! How replicas are there: open, stored, or taking their base; and how the disk is.

use super::Node;
use crate::registry::Presence;
use partage_core::node::exchange::ReplicaKey;

impl Node {
    /// Whether a child's replica is here that takes what its parents have.
    pub fn is_forming(&self, replica: &ReplicaKey) -> bool {
        self.queue(replica).is_some_and(|queue| queue.is_base())
    }

    /// Whether a replica is open: one that takes its base is not, nor one that is about to close.
    pub fn is_open(&self, replica: &ReplicaKey) -> bool {
        self.queue(replica).is_some_and(|queue| !queue.is_base() && !queue.is_closing())
    }

    /// Whether a replica is stored here, undamaged, and neither open nor about to be.
    pub fn is_stored(&self, replica: &ReplicaKey) -> bool {
        matches!(self.shared.registry.presences().get(replica), Some(Presence::Stored(_)))
    }

    /// Replicas of children here that take what their parents have.
    pub fn forming(&self) -> usize {
        self.shared.registry.queues().iter().filter(|queue| queue.is_base()).count()
    }

    /// The number of the group of records that the log is writing; none: nothing waits for it.
    pub(crate) fn writing(&self) -> Option<u64> {
        self.shared.writer.writing()
    }

    /// Whether the disk has no room for the log or for a store.
    pub(crate) fn is_full(&self) -> bool {
        self.shared.registry.is_full()
    }

    /// Those replicas, and how often each has taken something since it began: it gets on while that changes.
    pub(crate) fn forming_steps(&self) -> Vec<(ReplicaKey, u64)> {
        let queues = self.shared.registry.queues().into_iter().filter(|queue| queue.is_base());
        queues.map(|queue| (queue.key.clone(), queue.figures.steps())).collect()
    }
}
