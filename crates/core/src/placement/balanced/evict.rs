//! Phase *evict*: removes surplus replicas, and takes up those on draining nodes.

use super::PendingReplica;
use crate::placement::draft::Draft;
use crate::placement::evict;
use crate::placement::problem::{ShardIndex, Standing};
use crate::placement::solution::Reason;

/// Runs the phase and returns what was taken up.
pub(super) fn evict(draft: &mut Draft<'_>) -> Vec<PendingReplica> {
    evict::surplus(draft);
    let mut pending = Vec::new();
    if !draft.problem.nodes.iter().any(|node| node.standing == Standing::Drains) {
        return pending;
    }
    for shard in 0..draft.problem.shard_count() as ShardIndex {
        for slot in draft.slot_range(shard) {
            let drains = |node| draft.standing(node) == Standing::Drains;
            if draft.at(slot).is_some_and(drains) && draft.spend() {
                let was = Some(draft.vacate(shard, slot));
                pending.push(PendingReplica { shard, slot, was, reason: Reason::Drained });
            }
        }
    }
    pending
}
