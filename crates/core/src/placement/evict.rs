//! Which replicas cannot stay where they are, and which are too many. Shared by the policies.

use super::draft::Draft;
use super::problem::{Level, NodeIndex, ShardIndex, Spread, Standing};
use super::solution::Reason;

/// Removes replicas of shards that have more than they want: those that could not stay anyway first, then
/// those on the fullest nodes. The leader goes last.
pub(super) fn surplus(draft: &mut Draft<'_>) {
    for shard in 0..draft.problem.shard_count() as ShardIndex {
        let want = draft.problem.replicas[shard as usize];
        let mut have = draft.have(shard);
        while have > want as usize {
            let leader = draft.slot_range(shard).find(|slot| draft.at(*slot).is_some());
            let dispensable = |slot: &usize| {
                let node = draft.at(*slot)?;
                let stays = fault(draft, shard, *slot, node).is_none();
                Some((!stays, Some(*slot) != leader, draft.highest(node).0.to_bits(), draft.count(node)))
            };
            let slots = draft.slot_range(shard).filter(|slot| draft.at(*slot).is_some());
            let Some(slot) = slots.max_by_key(dispensable) else { break };
            draft.remove(shard, slot, Reason::Surplus { have: have as u8, want });
            have -= 1;
        }
    }
}

/// Replicas that should leave their node, with the reason, in shard order.
pub(super) fn misplaced(draft: &Draft<'_>) -> Vec<(ShardIndex, usize, Reason)> {
    let mut found = Vec::new();
    for shard in 0..draft.problem.shard_count() as ShardIndex {
        for slot in draft.slot_range(shard) {
            let Some(node) = draft.at(slot) else { continue };
            if let Some(reason) = fault(draft, shard, slot, node) {
                found.push((shard, slot, reason));
            }
        }
    }
    found
}

/// What is wrong with a replica's place, if anything. Of two that should be apart, the later is at fault.
fn fault(draft: &Draft<'_>, shard: ShardIndex, slot: usize, node: NodeIndex) -> Option<Reason> {
    if draft.standing(node) == Standing::Drains {
        return Some(Reason::Drained);
    }
    if !draft.allows(shard, node) {
        return Some(Reason::Forbidden);
    }
    let rule = draft.rule(shard);
    for (level, spread) in [(Level::Zone, rule.zone), (Level::Rack, rule.rack)] {
        let domain = draft.domain(node, level);
        let mut earlier =
            draft.slot_range(shard).filter(|other| *other < slot).filter_map(|other| draft.at(other));
        let known = domain != super::UNKNOWN_DOMAIN;
        if spread == Spread::Hard && known && earlier.any(|other| draft.domain(other, level) == domain) {
            return Some(Reason::Crowded { level });
        }
    }
    None
}
