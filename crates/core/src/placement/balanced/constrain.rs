//! Phase *constrain*: takes up replicas on forbidden nodes, or crowded where there is room apart.

use super::PendingReplica;
use crate::placement::draft::Draft;
use crate::placement::evict;

/// Runs the phase; adds what it takes up to `pending`.
pub(super) fn constrain(draft: &mut Draft<'_>, pending: &mut Vec<PendingReplica>) {
    for (shard, slot, reason) in evict::misplaced(draft) {
        // `evict` has left it there for want of budget.
        let drains = draft.at(slot).is_some_and(|node| draft.is_draining(node));
        if !drains && draft.spend() {
            let was = Some(draft.vacate(shard, slot));
            pending.push(PendingReplica { shard, slot, was, reason });
        }
    }
}
