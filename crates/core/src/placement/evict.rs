//! Which replicas cannot stay where they are, and which are too many. Shared by the policies.

use super::domains::AcceptingDomains;
use super::draft::Draft;
use super::problem::{Level, NodeIndex, ShardIndex, Spread, Standing};
use super::solution::Reason;

/// Removes surplus replicas: first those that cannot stay anyway, then those on nodes that take nothing new, as these
/// may be silent, then those on the fullest nodes. In each kind the leader goes last.
pub(super) fn surplus(draft: &mut Draft<'_>) {
    for shard in 0..draft.problem.shard_count() as ShardIndex {
        let want = draft.problem.replicas[shard as usize];
        let mut have = draft.have(shard);
        while have > want as usize {
            let leader = draft.slot_range(shard).find(|slot| draft.at(*slot).is_some());
            let dispensable = |slot: &usize| {
                let node = draft.at(*slot)?;
                let earlier = draft.slot_range(shard).start..*slot;
                let earlier = earlier.filter_map(|other| draft.at(other));
                let stays = unfit(draft, shard, node).is_none()
                    && crowded(draft, shard, node, Spread::Hard, None, earlier).is_none();
                let accepts = draft.standing(node) == Standing::Accepts;
                let load = draft.highest(node).0.to_bits();
                Some((!stays, !accepts, Some(*slot) != leader, load, draft.count(node)))
            };
            let slots = draft.slot_range(shard).filter(|slot| draft.at(*slot).is_some());
            let Some(slot) = slots.max_by_key(dispensable) else { break };
            draft.remove(shard, slot, Reason::Surplus { have: have as u8, want });
            have -= 1;
        }
    }
}

/// Replicas that should leave their node, with the reason, in shard order. Those that break a soft spread are among
/// them when there are domains that the shard does not use. Of two that crowd each other it names the later one, in
/// the order of the next plan, which so names the same one, and changes nothing (M10).
pub(super) fn misplaced(draft: &Draft<'_>) -> Vec<(ShardIndex, usize, Reason)> {
    let domains = [Level::Zone, Level::Rack].map(|level| AcceptingDomains::of(draft, level));
    let (mut found, mut staying) = (Vec::new(), Vec::new());
    for shard in 0..draft.problem.shard_count() as ShardIndex {
        staying.clear();
        for slot in draft.in_order(shard) {
            let Some(node) = draft.at(slot) else { continue };
            let crowded =
                |spread, domains| crowded(draft, shard, node, spread, domains, staying.iter().copied());
            let fault = unfit(draft, shard, node)
                .or_else(|| crowded(Spread::Hard, None))
                .or_else(|| crowded(Spread::Soft, Some(&domains)));
            match fault {
                Some(reason) => found.push((shard, slot, reason)),
                None => staying.push(node),
            }
        }
    }
    found
}

/// Why the shard may not be on the node, whatever else is there.
pub(super) fn unfit(draft: &Draft<'_>, shard: ShardIndex, node: NodeIndex) -> Option<Reason> {
    match draft.standing(node) {
        Standing::Drains => Some(Reason::Drained),
        _ if !draft.allows(shard, node) => Some(Reason::Forbidden),
        _ => None,
    }
}

/// [`Reason::Crowded`] when a replica on one of `staying` is in the same domain and the rule has that spread; with
/// `domains`, of zones and racks, only if one of them is free.
fn crowded(
    draft: &Draft<'_>,
    shard: ShardIndex,
    node: NodeIndex,
    spread: Spread,
    domains: Option<&[AcceptingDomains; 2]>,
    staying: impl Iterator<Item = NodeIndex> + Clone,
) -> Option<Reason> {
    let rule = draft.rule(shard);
    [(Level::Zone, rule.zone), (Level::Rack, rule.rack)].into_iter().enumerate().find_map(
        |(at, (level, of_rule))| {
            let is_shared =
                of_rule == spread && staying.clone().any(|other| draft.same_domain(node, other, level));
            let has_free = || domains.is_none_or(|domains| domains[at].has_free(draft, draft.holders(shard)));
            (is_shared && has_free()).then_some(Reason::Crowded { level })
        },
    )
}
