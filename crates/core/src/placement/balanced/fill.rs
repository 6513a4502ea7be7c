//! Phase *fill*: each replica without a node gets one, the largest first, on the coldest node.
//!
//! Nodes are in heaps, one for each zone, so that the search for a shard which needs a certain zone skips
//! the others. A stale entry is corrected when it comes to the top. Shards whose rule names
//! its nodes have heaps of their own.
//!
//! It can stop between any two replicas, and go on in another decision.

use super::PendingReplica;
use crate::limits;
use crate::placement::domains::AcceptingDomains;
use crate::placement::draft::Draft;
use crate::placement::problem::{Level, NodeIndex, ShardIndex, Spread, Standing, UNKNOWN_DOMAIN};
use crate::placement::solution::Reason;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// The phase, between two pieces of it.
#[derive(Debug, Clone)]
pub(super) struct Filling {
    pending: Vec<PendingReplica>,
    /// Which of them still wait for a place, the largest last.
    order: Vec<u32>,
    heaps: Heaps,
}

/// Begins the phase: lists replicas taken up, lost or missing. None without any.
pub(super) fn begin(draft: &Draft<'_>, mut pending: Vec<PendingReplica>) -> Option<Box<Filling>> {
    add_missing(draft, &mut pending);
    if pending.is_empty() {
        return None;
    }
    let weights = weights(draft);
    let size = |one: &PendingReplica| {
        let part = |(metric, weight): (usize, &f64)| draft.size(one.shard, metric) * weight;
        weights.iter().enumerate().map(part).fold(0.0, f64::max)
    };
    let mut order: Vec<(f64, u32)> = pending.iter().map(size).zip(0..).collect();
    order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    let order = order.into_iter().map(|(_, at)| at).collect();
    // A replica may go back to its node, so no other of its shard may.
    let was = pending.iter().filter_map(|one| Some((one.shard, one.was?)));
    let heaps = Heaps { reserved: was.collect(), ..Heaps::default() };
    Some(Box::new(Filling { pending, order, heaps }))
}

impl Filling {
    /// Places as many replicas as about `most` looks allow. Returns the rest, and how many looks it took.
    pub(super) fn go_on(
        mut self: Box<Self>,
        draft: &mut Draft<'_>,
        most: usize,
    ) -> (Option<Box<Self>>, usize) {
        let mut looks = 0;
        while looks < most.max(1)
            && let Some(at) = self.order.pop()
        {
            place(draft, &mut self.heaps, &self.pending[at as usize]);
            looks += limits::LOOKS_A_PLACE;
        }
        ((!self.order.is_empty()).then_some(self), looks)
    }
}

fn add_missing(draft: &Draft<'_>, pending: &mut Vec<PendingReplica>) {
    // Those already taken up have empty slots too.
    let mut taken: Vec<usize> = pending.iter().map(|one| one.slot).collect();
    taken.sort_unstable();
    for shard in 0..draft.problem.shard_count() as ShardIndex {
        let want = draft.problem.replicas[shard as usize];
        let have = draft.have(shard);
        if have >= want as usize {
            continue;
        }
        let slots = draft.slot_range(shard);
        let up = taken.partition_point(|slot| *slot < slots.end)
            - taken.partition_point(|slot| *slot < slots.start);
        let missing = (want as usize).saturating_sub(have + up);
        let empty = slots.filter(|slot| draft.at(*slot).is_none() && taken.binary_search(slot).is_err());
        for slot in empty.take(missing) {
            let lost = draft.origin(shard, slot).is_some_and(|node| draft.standing(node) == Standing::Gone);
            let reason = if lost { Reason::Lost } else { Reason::Missing { have: (have + up) as u8, want } };
            pending.push(PendingReplica { shard, slot, was: None, reason });
        }
    }
}

/// Makes sizes in different metrics comparable: one over the summed shares.
fn weights(draft: &Draft<'_>) -> Vec<f64> {
    (0..draft.metrics())
        .map(|metric| {
            let sum: f64 =
                (0..draft.problem.nodes.len()).map(|node| draft.share(node as NodeIndex, metric)).sum();
            if sum > 0.0 { 1.0 / sum } else { 0.0 }
        })
        .collect()
}

fn place(draft: &mut Draft<'_>, heaps: &mut Heaps, one: &PendingReplica) {
    if let Some(was) = one.was {
        heaps.reserved.remove(&(one.shard, was));
    }
    let before = one.was.map(|was| draft.crowding(one.shard, was, None));
    match (heaps.choose(draft, one.shard, one.was), one.was, one.reason) {
        // Breaks a soft spread only: moves if that helps, else stays without complaint.
        (Some((_, crowding)), Some(was), Reason::Crowded { .. })
            if draft.hard_spread(one.shard, was, None) && Some(crowding) >= before =>
        {
            draft.restore(one.shard, one.slot, was);
            draft.refund();
        }
        (Some((node, _)), _, _) => draft.place(one.shard, one.slot, node, one.reason),
        (None, Some(was), reason) => {
            let soft = matches!(reason, Reason::Crowded { .. }) && draft.hard_spread(one.shard, was, None);
            draft.restore(one.shard, one.slot, was);
            draft.refund();
            if !soft {
                draft.give_up(one.shard, one.slot);
            }
        }
        (None, None, _) => draft.give_up(one.shard, one.slot),
    }
}

type Entry = Reverse<(u64, u32, NodeIndex)>;
type Heap = BinaryHeap<Entry>;

/// The nodes that accept shards of one rule.
#[derive(Debug, Clone)]
struct Candidates {
    zones: Vec<(u32, Heap)>,
    nodes: usize,
    free_zones: AcceptingDomains,
    free_racks: AcceptingDomains,
}

#[derive(Debug, Clone, Default)]
struct Heaps {
    by_rule: BTreeMap<usize, Candidates>,
    stash: Vec<(usize, Entry)>,
    reserved: BTreeSet<(ShardIndex, NodeIndex)>,
}

impl Heaps {
    /// The coldest node for a further replica, and how crowded it will be there.
    fn choose(
        &mut self,
        draft: &Draft<'_>,
        shard: ShardIndex,
        was: Option<NodeIndex>,
    ) -> Option<(NodeIndex, u32)> {
        let rule = draft.problem.rule_index(shard);
        let key = if draft.rule(shard).nodes.is_some() { rule + 1 } else { 0 };
        let candidates = self.by_rule.entry(key).or_insert_with(|| Candidates::new(draft, shard));
        let (stash, reserved) = (&mut self.stash, &self.reserved);
        let bars = |node| Some(node) == was || reserved.contains(&(shard, node));
        (candidates.least_crowding(draft, shard)?..=2).find_map(|crowding| {
            candidates.coldest(draft, shard, &bars, crowding, stash).map(|node| (node, crowding))
        })
    }
}

impl Candidates {
    fn new(draft: &Draft<'_>, shard: ShardIndex) -> Candidates {
        let mut zones: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        let mut nodes = 0;
        for node in 0..draft.problem.nodes.len() as NodeIndex {
            if draft.standing(node) == Standing::Accepts && draft.allows(shard, node) {
                zones.entry(draft.domain(node, Level::Zone)).or_default().push(Reverse(draft.rank(node)));
                nodes += 1;
            }
        }
        let [free_zones, free_racks] = [Level::Zone, Level::Rack]
            .map(|level| AcceptingDomains::among(draft, level, |node| draft.allows(shard, node)));
        let zones = zones.into_iter().map(|(zone, entries)| (zone, Heap::from(entries))).collect();
        Candidates { zones, nodes, free_zones, free_racks }
    }

    /// The least crowding that is possible, by counting; none when every node or domain that
    /// could take the shard has a replica already and may not have two.
    fn least_crowding(&self, draft: &Draft<'_>, shard: ShardIndex) -> Option<u32> {
        let rule = draft.rule(shard);
        let held = || draft.holders(shard);
        let accepts =
            |node: &NodeIndex| draft.standing(*node) == Standing::Accepts && draft.allows(shard, *node);
        let is_full = |spread: Spread, domains: &AcceptingDomains| {
            spread != Spread::Ignore && !domains.has_free(draft, held())
        };
        let no_zone = is_full(rule.zone, &self.free_zones);
        let no_rack = is_full(rule.rack, &self.free_racks);
        if held().filter(accepts).count() >= self.nodes
            || (no_zone && rule.zone == Spread::Hard)
            || (no_rack && rule.rack == Spread::Hard)
        {
            return None;
        }
        Some(u32::from(no_zone) + u32::from(no_rack))
    }

    fn coldest(
        &mut self,
        draft: &Draft<'_>,
        shard: ShardIndex,
        bars: &dyn Fn(NodeIndex) -> bool,
        crowding: u32,
        stash: &mut Vec<(usize, Entry)>,
    ) -> Option<NodeIndex> {
        let rule = draft.rule(shard);
        let apart = rule.zone == Spread::Hard || (rule.zone == Spread::Soft && crowding == 0);
        let taken = |zone: u32| draft.holders(shard).any(|node| draft.domain(node, Level::Zone) == zone);
        let open: Vec<bool> =
            self.zones.iter().map(|(zone, _)| !apart || *zone == UNKNOWN_DOMAIN || !taken(*zone)).collect();
        let mut found = None;
        while found.is_none() && stash.len() < limits::FILL_LOOKS {
            let tops = (0..self.zones.len())
                .filter(|at| open[*at])
                .filter_map(|at| Some((self.top(draft, at)?, at)));
            let Some((top, at)) = tops.collect::<Vec<_>>().into_iter().min() else { break };
            let node = top.2;
            if draft.admits(shard, node) && !bars(node) && draft.crowding(shard, node, None) <= crowding {
                found = Some(node);
            } else if let Some(entry) = self.zones[at].1.pop() {
                stash.push((at, entry));
            }
        }
        stash.drain(..).for_each(|(at, entry)| self.zones[at].1.push(entry));
        found
    }

    /// The coldest node of a zone, as of now.
    fn top(&mut self, draft: &Draft<'_>, at: usize) -> Option<(u64, u32, NodeIndex)> {
        loop {
            let mut top = self.zones[at].1.peek_mut()?;
            let now = draft.rank(top.0.2);
            if top.0 == now {
                return Some(now);
            }
            top.0 = now;
        }
    }
}
