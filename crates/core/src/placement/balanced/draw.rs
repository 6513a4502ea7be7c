//! Phase *draw*: a node that has just joined, or come back, gets its share.
//!
//! The fullest nodes give first, each the largest replica that keeps both nodes within tolerance; so
//! few replicas carry much, and nothing moves between the others.

use crate::placement::draft::Draft;
use crate::placement::problem::{NodeIndex, ShardIndex, Standing};
use crate::placement::solution::Reason;
use std::collections::BinaryHeap;

/// Runs the phase. False when no node draws: then it looked at nodes only.
pub(super) fn draw(draft: &mut Draft<'_>) -> bool {
    let empty: Vec<NodeIndex> = drawing(draft).collect();
    if empty.is_empty() {
        return false;
    }
    let below = draft.problem.settings.draw_below;
    let mut donors = Donors::new(draft, &empty);
    for node in empty {
        let found: Vec<f64> = (0..draft.metrics()).map(|metric| draft.load(node, metric)).collect();
        let reason = |draft: &Draft<'_>, metric: usize| Reason::Underfull {
            metric: metric as u16,
            load: found[metric] as f32,
            share: draft.share(node, metric) as f32,
            times: below as f32,
        };
        while draft.highest(node).0 < 1.0 && donors.give(draft, node, &reason) {}
    }
    true
}

/// The nodes that draw.
fn drawing(draft: &Draft<'_>) -> impl Iterator<Item = NodeIndex> {
    let below = draft.problem.settings.draw_below;
    let any_load = (0..draft.metrics()).any(|metric| draft.share_of_any(metric) > 0.0);
    let is_empty = move |node: &NodeIndex| {
        any_load && draft.standing(*node) == Standing::Accepts && draft.highest(*node).0 < below
    };
    (0..draft.problem.nodes.len() as NodeIndex).filter(is_empty)
}

/// Nodes that may give, the fullest first, with their replicas.
struct Donors {
    heap: BinaryHeap<(u64, NodeIndex)>,
    held: Vec<Vec<(ShardIndex, u32)>>,
}

impl Donors {
    fn new(draft: &Draft<'_>, empty: &[NodeIndex]) -> Donors {
        let nodes = draft.problem.nodes.len();
        let mut held: Vec<Vec<(ShardIndex, u32)>> = vec![Vec::new(); nodes];
        let mut gives: Vec<bool> = (0..nodes as NodeIndex)
            .map(|node| matches!(draft.standing(node), Standing::Accepts | Standing::Keeps))
            .collect();
        empty.iter().for_each(|node| gives[*node as usize] = false);
        let heap: BinaryHeap<_> = (0..nodes as NodeIndex)
            .filter(|node| gives[*node as usize])
            .map(|node| (draft.rank(node).0, node))
            .collect();
        for shard in 0..draft.problem.shard_count() as ShardIndex {
            for slot in draft.slot_range(shard) {
                if let Some(node) = draft.at(slot).filter(|node| gives[*node as usize]) {
                    held[node as usize].push((shard, slot as u32));
                }
            }
        }
        Donors { heap, held }
    }

    /// Moves one replica to the node; false when no donor has one.
    fn give(
        &mut self,
        draft: &mut Draft<'_>,
        to: NodeIndex,
        reason: &dyn Fn(&Draft<'_>, usize) -> Reason,
    ) -> bool {
        let mut passed = Vec::new();
        let mut done = false;
        while let Some((rank, donor)) = self.heap.pop() {
            if draft.highest(donor).0 <= draft.highest(to).0 {
                passed.push((rank, donor));
                break;
            }
            match self.best(draft, donor, to) {
                Some(at) if draft.spend() => {
                    let (shard, slot) = self.held[donor as usize].swap_remove(at);
                    let metric = draft.highest(donor).1;
                    let reason = reason(draft, metric);
                    draft.vacate(shard, slot as usize);
                    draft.place(shard, slot as usize, to, reason);
                    self.heap.push((draft.rank(donor).0, donor));
                    done = true;
                    break;
                }
                _ => passed.push((rank, donor)),
            }
        }
        self.heap.extend(passed);
        done
    }

    /// The largest replica that keeps both nodes within tolerance, or else the largest
    /// after which the donor is still hotter than the new node was.
    fn best(&self, draft: &Draft<'_>, donor: NodeIndex, to: NodeIndex) -> Option<usize> {
        let (level, metric) = draft.highest(donor);
        let (share, there) = (draft.share(donor, metric), draft.highest(to).0);
        let kind = |shard: ShardIndex| {
            let size = draft.size(shard, metric);
            let after = level - size / share;
            let then = draft.level_with(to, shard);
            let keeps = after >= 1.0 - draft.tolerance(metric) && then <= 1.0 + draft.tolerance(metric);
            let useful = size > 0.0 && then > there && (keeps || (then < level && after > there));
            useful.then_some((keeps, size))
        };
        let mut best: Option<((bool, f64), usize)> = None;
        for (at, (shard, slot)) in self.held[donor as usize].iter().enumerate() {
            let Some(worth) = kind(*shard) else { continue };
            let better = best.is_none_or(|(best, _)| (worth.0, worth.1) > best);
            let but = Some(*slot as usize);
            let crowds = || draft.crowding(*shard, to, but) > draft.crowding(*shard, donor, but);
            if better && draft.admits_but(*shard, to, but) && !crowds() {
                best = Some((worth, at));
            }
        }
        best.map(|(_, at)| at)
    }
}
