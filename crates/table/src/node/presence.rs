//! How replicas are there: open, stored, or taking their base.

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
}
