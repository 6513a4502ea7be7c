//! Which replicas cannot stay where they are, and which are too many. Shared by the policies.

use super::draft::Draft;
use super::problem::{Level, NodeIndex, ShardIndex, Spread, Standing, UNKNOWN_DOMAIN};
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
                let stays = unfit(draft, shard, node).is_none()
                    && crowded(draft, shard, *slot, node, Spread::Hard, [usize::MAX; 2], &[]).is_none();
                Some((!stays, Some(*slot) != leader, draft.highest(node).0.to_bits(), draft.count(node)))
            };
            let slots = draft.slot_range(shard).filter(|slot| draft.at(*slot).is_some());
            let Some(slot) = slots.max_by_key(dispensable) else { break };
            draft.remove(shard, slot, Reason::Surplus { have: have as u8, want });
            have -= 1;
        }
    }
}

/// Replicas that should leave their node, with the reason, in shard order. Those that are crowded where
/// that is only undesirable are among them when there are domains that the shard does not use.
pub(super) fn misplaced(draft: &Draft<'_>) -> Vec<(ShardIndex, usize, Reason)> {
    let mut found = Vec::new();
    let domains = [accepting_domains(draft, Level::Zone), accepting_domains(draft, Level::Rack)];
    let mut leaving = Vec::new();
    for shard in 0..draft.problem.shard_count() as ShardIndex {
        leaving.clear();
        for slot in draft.slot_range(shard) {
            let Some(node) = draft.at(slot) else { continue };
            let crowded = |spread, domains| crowded(draft, shard, slot, node, spread, domains, &leaving);
            let fault = unfit(draft, shard, node)
                .or_else(|| crowded(Spread::Hard, [usize::MAX; 2]))
                .or_else(|| crowded(Spread::Soft, domains));
            if let Some(reason) = fault {
                leaving.push(slot);
                found.push((shard, slot, reason));
            }
        }
    }
    found
}

/// Why the shard should not be on the node whatever else is there, if so.
pub(super) fn unfit(draft: &Draft<'_>, shard: ShardIndex, node: NodeIndex) -> Option<Reason> {
    match draft.standing(node) {
        Standing::Drains => Some(Reason::Drained),
        _ if !draft.allows(shard, node) => Some(Reason::Forbidden),
        _ => None,
    }
}

/// In which kind of domain, if any, an earlier replica of the shard sits too and stays, when the rule has that spread
/// and the shard uses fewer domains than there are.
fn crowded(
    draft: &Draft<'_>,
    shard: ShardIndex,
    slot: usize,
    node: NodeIndex,
    spread: Spread,
    domains: [usize; 2],
    leaving: &[usize],
) -> Option<Reason> {
    let rule = draft.rule(shard);
    for (level, of_rule, count) in
        [(Level::Zone, rule.zone, domains[0]), (Level::Rack, rule.rack, domains[1])]
    {
        if of_rule != spread {
            continue;
        }
        let domain = draft.domain(node, level);
        let stays = |other: &usize| !leaving.contains(other);
        let mut earlier =
            (draft.slot_range(shard).start..slot).filter(stays).filter_map(|other| draft.at(other));
        if domain != UNKNOWN_DOMAIN && earlier.any(|other| draft.domain(other, level) == domain) {
            let mut used: Vec<u32> = draft.holders(shard).map(|node| draft.domain(node, level)).collect();
            used.sort_unstable();
            used.dedup();
            if used.len() < count {
                return Some(Reason::Crowded { level });
            }
        }
    }
    None
}

/// How many domains have a node that accepts; a node of no known domain is one of its own.
pub(super) fn accepting_domains(draft: &Draft<'_>, level: Level) -> usize {
    let nodes = 0..draft.problem.nodes.len() as NodeIndex;
    let accepting = nodes.filter(|node| draft.standing(*node) == Standing::Accepts);
    let mut domains: Vec<u32> = accepting.map(|node| draft.domain(node, level)).collect();
    domains.sort_unstable();
    domains.dedup_by(|a, b| a == b && *a != UNKNOWN_DOMAIN);
    domains.len()
}
