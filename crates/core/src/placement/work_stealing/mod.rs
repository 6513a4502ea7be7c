//! `work_stealing`: the least loaded node takes the next shard; a node with far too much load gives some up.
//!
//! Shards are not rebalanced, but a node at a third more than its share gives the excess to others.
//! Cheap, easy to predict, and good enough where shards are alike and nodes too; a node that joins gets only new
//! shards.
//!
//! - (wa) never two replicas on one node, unless the shard's rule allows it and there is no other node (A5);
//! - (wb) a replica goes to the least loaded node, if that may have it (A5);
//! - (wc) if it may not, the policy tries others in an order drawn from the seed, at most `steal_tries` of
//!   them, and then the rest in turn: while nodes suffice, every replica is placed (A2, A5);
//! - (wd) a node above `steal_above` times its share gives up the excess over that, and no more (A6);
//! - (we) a move never makes another node give up: two runs in a row do not undo each other;
//! - (wf) replicas spread over zones and racks as their rule asks (A4).
//!
//! Load is the highest of the metrics, each as a multiple of the node's share. Not done: evening out below
//! `steal_above`. A node that joins an even cluster gets the next shards, but draws none: `balanced` does.

use super::domains::AcceptingDomains;
use super::draft::Draft;
use super::problem::{Level, NodeIndex, Problem, ProblemError, ShardIndex, Standing, spread_bits};
use super::solution::{Reason, Solution};
use super::{Policy, evict};
use crate::limits;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The policy of this module.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkStealing;

impl Policy for WorkStealing {
    fn name(&self) -> &'static str {
        "work_stealing"
    }

    fn place(&self, problem: &Problem) -> Result<Solution, ProblemError> {
        problem.check()?;
        let mut draft = Draft::new(problem);
        evict::surplus(&mut draft);
        let mut queue = Queue::new(&draft);
        // What one pass frees may be what another needed; the last pass changes nothing, as a rule, and
        // says what is left undone.
        for _ in 0..limits::PASSES {
            let before = draft.begin_pass();
            queue.fill(&mut draft);
            queue.evict(&mut draft);
            queue.steal(&mut draft);
            if draft.logged() == before {
                break;
            }
            draft.untangle();
        }
        Ok(draft.finish())
    }
}

/// Nodes that accept, the least loaded first. Entries grow stale when loads change; a stale one is corrected
/// at the top.
struct Queue {
    heap: BinaryHeap<Reverse<(u64, u32, NodeIndex)>>,
    accepting: Vec<NodeIndex>,
    zones: AcceptingDomains,
    racks: AcceptingDomains,
}

impl Queue {
    fn new(draft: &Draft<'_>) -> Queue {
        let nodes = 0..draft.problem.nodes.len() as NodeIndex;
        let accepting: Vec<_> = nodes.filter(|node| draft.standing(*node) == Standing::Accepts).collect();
        let heap = accepting.iter().map(|node| Reverse(draft.rank(*node))).collect();
        let [zones, racks] = [Level::Zone, Level::Rack].map(|level| AcceptingDomains::of(draft, level));
        Queue { heap, zones, racks, accepting }
    }

    /// The least loaded node, as of now.
    fn least(&mut self, draft: &Draft<'_>) -> Option<NodeIndex> {
        loop {
            let mut top = self.heap.peek_mut()?;
            let node = top.0.2;
            let now = draft.rank(node);
            if top.0 == now {
                return Some(node);
            }
            top.0 = now;
        }
    }

    /// Notes that a node has less load than its entry says.
    fn lighter(&mut self, draft: &Draft<'_>, node: NodeIndex) {
        if draft.standing(node) == Standing::Accepts {
            self.heap.push(Reverse(draft.rank(node)));
        }
    }

    /// A5: where the next replica of the shard goes.
    fn choose(&mut self, draft: &Draft<'_>, shard: ShardIndex, level_below: f64) -> Option<NodeIndex> {
        let least = self.least(draft)?;
        let fits = |node: NodeIndex, apart: bool| {
            draft.admits(shard, node)
                && !(apart && draft.crowding(shard, node, None) > 0)
                && draft.level_with(node, shard) <= level_below
        };
        let apart_first = if self.spread_is_possible(draft, shard) { &[true, false][..] } else { &[false] };
        for apart in apart_first {
            if fits(least, *apart) {
                return Some(least);
            }
            let found = self.at_random(draft, shard).find(|node| fits(*node, *apart));
            if found.is_some() {
                return found;
            }
        }
        let may_share = draft.rule(shard).share_node && level_below.is_infinite();
        Some(least).filter(|node| {
            may_share
                && draft.allows(shard, *node)
                && draft.hard_spread(shard, *node, None)
                && draft.room(shard, *node).is_none()
        })
    }

    /// A few nodes drawn from the seed, then all from a drawn place on.
    fn at_random(&self, draft: &Draft<'_>, shard: ShardIndex) -> impl Iterator<Item = NodeIndex> {
        let have = draft.have(shard) as u64;
        let seed = draft.problem.seed ^ draft.problem.hashes[shard as usize] ^ have.rotate_left(32);
        let many = self.accepting.len() as u64;
        let drawn = (0..u64::from(draft.problem.settings.steal_tries))
            .map(move |at| spread_bits(seed.wrapping_add(at)));
        let sweep = (0..many).map(move |at| spread_bits(seed) % many + at);
        drawn.chain(sweep).map(move |at| self.accepting[(at % many) as usize])
    }

    /// Whether looking for a node apart from the others makes sense.
    fn spread_is_possible(&self, draft: &Draft<'_>, shard: ShardIndex) -> bool {
        let (rule, holders) = (draft.rule(shard), draft.holders(shard));
        self.zones.allow(draft, rule.zone, holders.clone()) && self.racks.allow(draft, rule.rack, holders)
    }

    /// Places what is lost or missing.
    fn fill(&mut self, draft: &mut Draft<'_>) {
        for shard in 0..draft.problem.shard_count() as ShardIndex {
            let want = draft.problem.replicas[shard as usize];
            for slot in draft.to_fill(shard) {
                let reason = match draft.origin(shard, slot) {
                    Some(_) => Reason::Lost,
                    None => Reason::Missing { have: draft.have(shard) as u8, want },
                };
                match self.choose(draft, shard, f64::INFINITY) {
                    Some(node) => draft.place(shard, slot, node, reason),
                    None => draft.give_up(shard, slot),
                }
            }
        }
    }

    /// Moves what must leave: from nodes that drain, and from where its rule does not allow it.
    fn evict(&mut self, draft: &mut Draft<'_>) {
        for (shard, slot, reason) in evict::misplaced(draft) {
            if !draft.spend() {
                continue;
            }
            let node = draft.vacate(shard, slot);
            self.lighter(draft, node);
            // Breaks a soft spread only: moves if that helps, else stays without complaint.
            let optional = matches!(reason, Reason::Crowded { .. }) && draft.hard_spread(shard, node, None);
            let before = draft.crowding(shard, node, None);
            let helps =
                |to: &NodeIndex| *to != node && (!optional || draft.crowding(shard, *to, None) < before);
            match self.choose(draft, shard, f64::INFINITY).filter(helps) {
                Some(to) => draft.place(shard, slot, to, reason),
                None => {
                    draft.restore(shard, slot, node);
                    draft.refund();
                    if !optional {
                        draft.give_up(shard, slot);
                    }
                }
            }
        }
    }

    /// A6: nodes that carry far too much give up the excess.
    fn steal(&mut self, draft: &mut Draft<'_>) {
        let above = draft.problem.settings.steal_above;
        let nodes = 0..draft.problem.nodes.len() as NodeIndex;
        let stays = |node: &NodeIndex| matches!(draft.standing(*node), Standing::Accepts | Standing::Keeps);
        let mut full: Vec<NodeIndex> =
            nodes.filter(stays).filter(|node| draft.highest(*node).0 > above).collect();
        if full.is_empty() {
            return;
        }
        full.sort_by(|a, b| draft.highest(*b).0.total_cmp(&draft.highest(*a).0).then(a.cmp(b)));
        let held = held_by(draft, &full);
        for (node, shards) in full.into_iter().zip(held) {
            self.relieve(draft, node, shards, above);
        }
    }

    fn relieve(&mut self, draft: &mut Draft<'_>, node: NodeIndex, mut shards: Vec<ShardIndex>, above: f64) {
        while let (level, metric) = draft.highest(node)
            && level > above
            && let Some(shard) = best_to_give(draft, node, metric, above, &mut shards)
        {
            let Some(slot) = draft.slot_range(shard).find(|slot| draft.at(*slot) == Some(node)) else {
                continue;
            };
            if !draft.spend() {
                return;
            }
            let reason = Reason::Overfull {
                metric: metric as u16,
                load: draft.load(node, metric) as f32,
                share: draft.share(node, metric) as f32,
                times: above as f32,
            };
            draft.vacate(shard, slot);
            self.lighter(draft, node);
            let before = draft.crowding(shard, node, None);
            let helps = |to: &NodeIndex| *to != node && draft.crowding(shard, *to, None) <= before;
            match self.choose(draft, shard, above).filter(helps) {
                Some(to) => draft.place(shard, slot, to, reason),
                None => {
                    draft.restore(shard, slot, node);
                    draft.refund();
                }
            }
        }
    }
}

/// The shards that each of the nodes holds.
fn held_by(draft: &Draft<'_>, nodes: &[NodeIndex]) -> Vec<Vec<ShardIndex>> {
    let mut place = vec![usize::MAX; draft.problem.nodes.len()];
    nodes.iter().enumerate().for_each(|(at, node)| place[*node as usize] = at);
    let mut held = vec![Vec::new(); nodes.len()];
    for shard in 0..draft.problem.shard_count() as ShardIndex {
        for slot in draft.slot_range(shard) {
            if let Some(list) = draft.at(slot).and_then(|node| held.get_mut(place[node as usize])) {
                list.push(shard);
            }
        }
    }
    held
}

/// Takes out of `shards` the one whose leaving helps most: the smallest that ends the excess, else the
/// largest. Shards without load in that metric cannot help.
fn best_to_give(
    draft: &Draft<'_>,
    node: NodeIndex,
    metric: usize,
    above: f64,
    shards: &mut Vec<ShardIndex>,
) -> Option<ShardIndex> {
    let excess = draft.load(node, metric) - above * draft.share(node, metric);
    let worth = |shard: ShardIndex| {
        let size = draft.size(shard, metric);
        if size >= excess { (1, -size) } else { (0, size) }
    };
    let better = |a: &usize, b: &usize| {
        let (a, b) = (worth(shards[*a]), worth(shards[*b]));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    };
    let helps = |at: &usize| draft.size(shards[*at], metric) > 0.0;
    let best = (0..shards.len()).filter(helps).max_by(better)?;
    Some(shards.swap_remove(best))
}

#[cfg(test)]
mod tests;
