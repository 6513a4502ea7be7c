//! The nodes of a cluster, and the processes that ask to be one.

use super::session::Registrations;
use super::stored::Nodes;
use crate::base::time::Millis;

/// The nodes, with what was seen of each.
#[derive(Debug, Clone)]
pub(super) struct Members {
    /// Dead ones included until they are removed.
    pub(super) nodes: Nodes,
    /// When a node came last.
    pub(super) last_join: Millis,
    /// Refused registrations and messages.
    pub(super) registrations: Registrations,
}

impl Members {
    /// No nodes yet.
    pub(super) fn new(now: Millis) -> Members {
        Members { nodes: Nodes::new(), last_join: now, registrations: Registrations::default() }
    }

    /// Packs what each node should hold, as far as there is `room` for that in this decision.
    pub(super) fn pack(&mut self, room: &mut i64) {
        self.nodes.values_mut().for_each(|node| node.orders.pack(room));
    }
}
