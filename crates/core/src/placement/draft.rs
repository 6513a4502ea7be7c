//! A placement in progress: the one mutable state that policies work on.
//!
//! Each wanted or present replica is a slot; a slot holds a node or is empty; the load of every node is kept
//! up to date as slots change. At the end the slots are compared with the current placement, and what differs
//! becomes the decisions. A replica that was moved twice in the draft is moved once in the cluster, with the
//! reason of the last entry in the log.

use super::balance::{self, Balance, Score};
use super::problem::{
    Level, NodeIndex, Placement, Problem, Rule, ShardIndex, Spread, Standing, UNKNOWN_DOMAIN,
};
use super::solution::{Decision, Reason, Solution, Unplaceable, Unplaced};
use crate::limits;

/// A part of a share this small is floating-point noise, and needs no further replica.
const WHOLE: f64 = 1e-9;

/// A slot without a node.
const EMPTY: NodeIndex = NodeIndex::MAX;

pub(super) struct Draft<'p> {
    pub(super) problem: &'p Problem,
    state: DraftState,
}

/// What a draft holds beside its problem: kept while it waits for its next piece of work.
#[derive(Debug, Clone)]
pub(super) struct DraftState {
    /// First slot of each shard, and one more.
    starts: Vec<u32>,
    slots: Vec<NodeIndex>,
    /// What each slot held when the pass began: where its replica is for the next plan, if the pass is its first.
    homes: Vec<NodeIndex>,
    metrics: usize,
    /// Load of each node in each metric, node-major.
    load: Vec<f64>,
    /// Load that each node is entitled to, node-major; 0 where none is.
    share: Vec<f64>,
    /// Load of the mean replica that has any, by metric.
    typical: Vec<f64>,
    /// Load of the heaviest replica, by metric.
    largest: Vec<f64>,
    /// How many replicas each node has: breaks ties between nodes without load.
    count: Vec<u32>,
    /// What was done to which slot, in order.
    log: Vec<(u32, Reason)>,
    unplaced: Vec<Unplaced>,
    deferred: u32,
    budget: u32,
    before: Balance,
    no_rule: Rule,
}

impl<'p> Draft<'p> {
    /// The current placement, without what is on lost nodes. The problem must have passed its check.
    pub(super) fn new(problem: &'p Problem) -> Draft<'p> {
        let metrics = problem.metrics.len().max(1);
        let state = DraftState {
            starts: Vec::with_capacity(problem.shard_count() + 1),
            slots: Vec::with_capacity(problem.current.replicas()),
            homes: Vec::new(),
            metrics,
            load: match problem.background.is_empty() {
                true => vec![0.0; problem.nodes.len() * metrics],
                false => problem.background.clone(),
            },
            share: Vec::new(),
            typical: vec![0.0; metrics],
            largest: vec![0.0; metrics],
            count: vec![0; problem.nodes.len()],
            log: Vec::new(),
            unplaced: Vec::new(),
            deferred: 0,
            budget: problem.budget.unwrap_or(u32::MAX),
            before: Balance::default(),
            no_rule: Rule::default(),
        };
        let mut draft = Draft { problem, state };
        let mut totals = vec![0.0; metrics];
        let mut placed = vec![0.0; metrics];
        draft.state.starts.push(0);
        for (shard, now) in problem.current.iter().enumerate() {
            let wanted = problem.replicas[shard] as usize;
            for slot in 0..wanted.max(now.len()) {
                let node = now.get(slot).copied().filter(|node| draft.standing(*node) != Standing::Gone);
                draft.state.slots.push(EMPTY);
                if let Some(node) = node {
                    draft.put(shard as ShardIndex, draft.state.slots.len() - 1, node);
                }
            }
            draft.state.starts.push(draft.state.slots.len() as u32);
            for (metric, total) in totals.iter_mut().enumerate() {
                let size = draft.size(shard as ShardIndex, metric);
                *total += wanted as f64 * size;
                placed[metric] += if size > 0.0 { wanted as f64 } else { 0.0 };
                draft.state.largest[metric] = draft.state.largest[metric].max(size);
            }
        }
        for ((typical, total), placed) in draft.state.typical.iter_mut().zip(&totals).zip(placed) {
            *typical = if placed > 0.0 { total / placed } else { 0.0 };
        }
        for (at, load) in problem.background.iter().enumerate() {
            totals[at % metrics] += load;
        }
        draft.set_shares(&totals);
        draft.state.before = Balance::of(&draft);
        draft
    }

    /// Puts the draft aside until its next piece of work.
    pub(super) fn into_state(self) -> DraftState {
        self.state
    }

    /// Goes on with a draft of the same problem.
    pub(super) fn resume(problem: &'p Problem, state: DraftState) -> Draft<'p> {
        Draft { problem, state }
    }

    fn set_shares(&mut self, totals: &[f64]) {
        let (problem, metrics) = (self.problem, self.state.metrics);
        let capacity = |node: usize, metric: usize| {
            problem.capacities.get(node * metrics + metric).copied().unwrap_or(1.0)
        };
        let ideals = balance::ideals(problem, totals, capacity);
        self.state.share = (0..problem.nodes.len() * metrics)
            .map(|at| ideals[at % metrics] * capacity(at / metrics, at % metrics))
            .collect();
    }

    // Reads.

    /// Number of metrics; 1, the replicas, when the problem has none.
    pub(super) fn metrics(&self) -> usize {
        self.state.metrics
    }

    pub(super) fn standing(&self, node: NodeIndex) -> Standing {
        self.problem.nodes[node as usize].standing
    }

    pub(super) fn rule(&self, shard: ShardIndex) -> &Rule {
        self.problem.rules.get(self.problem.rule_index(shard)).unwrap_or(&self.state.no_rule)
    }

    /// Load that one replica of the shard puts on its node.
    pub(super) fn size(&self, shard: ShardIndex, metric: usize) -> f64 {
        self.problem.loads.get(shard as usize * self.state.metrics + metric).copied().unwrap_or(1.0)
    }

    pub(super) fn load(&self, node: NodeIndex, metric: usize) -> f64 {
        self.state.load[node as usize * self.state.metrics + metric]
    }

    pub(super) fn share(&self, node: NodeIndex, metric: usize) -> f64 {
        self.state.share[node as usize * self.state.metrics + metric]
    }

    /// Load as a multiple of the share; 0 where there is no load to share.
    pub(super) fn level(&self, node: NodeIndex, metric: usize) -> f64 {
        let share = self.share(node, metric);
        if share > 0.0 { self.load(node, metric) / share } else { 0.0 }
    }

    /// The highest level over the metrics, and which one it is.
    pub(super) fn highest(&self, node: NodeIndex) -> (f64, usize) {
        (0..self.state.metrics).fold((0.0, 0), |best, metric| {
            let level = self.level(node, metric);
            if level > best.0 { (level, metric) } else { best }
        })
    }

    /// The highest level that the node would have with the shard added.
    pub(super) fn level_with(&self, node: NodeIndex, shard: ShardIndex) -> f64 {
        (0..self.state.metrics).fold(0.0, |highest: f64, metric| {
            let share = self.share(node, metric);
            let load = self.load(node, metric) + self.size(shard, metric);
            if share > 0.0 { highest.max(load / share) } else { highest }
        })
    }

    pub(super) fn count(&self, node: NodeIndex) -> u32 {
        self.state.count[node as usize]
    }

    /// The slots of a shard; empty ones hold a number that is no node's.
    pub(super) fn nodes_of(&self, shard: ShardIndex) -> &[NodeIndex] {
        &self.state.slots[self.slot_range(shard)]
    }

    pub(super) fn slot_range(&self, shard: ShardIndex) -> std::ops::Range<usize> {
        self.state.starts[shard as usize] as usize..self.state.starts[shard as usize + 1] as usize
    }

    pub(super) fn at(&self, slot: usize) -> Option<NodeIndex> {
        Some(self.state.slots[slot]).filter(|node| *node != EMPTY)
    }

    /// Where the slot's replica is now, lost or not.
    pub(super) fn origin(&self, shard: ShardIndex, slot: usize) -> Option<NodeIndex> {
        self.problem.current.of(shard).get(slot - self.state.starts[shard as usize] as usize).copied()
    }

    /// Where the slot's replica was when the pass began.
    pub(super) fn home(&self, slot: usize) -> Option<NodeIndex> {
        Some(self.state.homes[slot]).filter(|node| *node != EMPTY)
    }

    /// Whether some shard is on other nodes than when the pass began: whether the next plan, if it did as the pass,
    /// would have decisions.
    pub(super) fn has_changed(&self) -> bool {
        (0..self.problem.shard_count()).any(|shard| {
            let slots = self.slot_range(shard as ShardIndex);
            let (now, then) = (&self.state.slots[slots.clone()], &self.state.homes[slots]);
            let sorted = |nodes: &[NodeIndex]| {
                let mut nodes = nodes.to_vec();
                nodes.sort_unstable();
                nodes
            };
            now != then && sorted(now) != sorted(then)
        })
    }

    /// The slots that have a replica, in the order of the solution and so of the next plan: those that stay come
    /// first, as the first one leads.
    pub(super) fn in_order(&self, shard: ShardIndex) -> impl Iterator<Item = usize> + '_ {
        let stayed = move |slot: &usize| self.at(*slot) == self.origin(shard, *slot);
        let held = move || self.slot_range(shard).filter(move |slot| self.at(*slot).is_some());
        held().filter(stayed).chain(held().filter(move |slot| !stayed(slot)))
    }

    /// The nodes that have a replica of the shard.
    pub(super) fn holders(&self, shard: ShardIndex) -> impl Iterator<Item = NodeIndex> + Clone + '_ {
        self.nodes_of(shard).iter().copied().filter(|node| *node != EMPTY)
    }

    pub(super) fn is_draining(&self, node: NodeIndex) -> bool {
        self.standing(node) == Standing::Drains
    }

    /// A node's sort key, the coldest first: level, number of replicas, index.
    pub(super) fn rank(&self, node: NodeIndex) -> (u64, u32, NodeIndex) {
        // The bits of floats that are not negative sort as the floats do.
        (self.highest(node).0.max(0.0).to_bits(), self.count(node), node)
    }

    /// How far above its share a node may be.
    pub(super) fn tolerance(&self, metric: usize) -> f64 {
        self.problem.metrics.get(metric).map_or(limits::PLAIN_TOLERANCE, |metric| metric.tolerance)
    }

    /// The level above which a node is relieved: its share and the tolerance; but where a node holds few replicas
    /// that are much alike, not below what it must hold when they are dealt out as evenly as whole replicas can
    /// be. 128 shards on nine nodes leave 15 on two of them, a twentieth above the mean, whatever is moved.
    pub(super) fn mark(&self, node: NodeIndex, metric: usize) -> f64 {
        let even = 1.0 + self.tolerance(metric);
        let (share, typical) = (self.share(node, metric), self.state.typical[metric]);
        let own = share - self.background(node, metric);
        if own <= 0.0 || typical <= 0.0 || self.state.largest[metric] > limits::ALIKE * typical {
            return even;
        }
        let dealt = (own / typical * (1.0 - WHOLE)).ceil() * typical;
        let least = (share - own + dealt) / share;
        if least > even { least * even } else { even }
    }

    fn background(&self, node: NodeIndex, metric: usize) -> f64 {
        self.problem.background.get(node as usize * self.state.metrics + metric).copied().unwrap_or(0.0)
    }

    /// The largest share of the metric; 0 if there is no load.
    pub(super) fn share_of_any(&self, metric: usize) -> f64 {
        self.state.share.iter().skip(metric).step_by(self.state.metrics).copied().fold(0.0, f64::max)
    }

    /// How many replicas of the shard have a node.
    pub(super) fn have(&self, shard: ShardIndex) -> usize {
        self.nodes_of(shard).iter().filter(|node| **node != EMPTY).count()
    }

    /// The empty slots of the shard that should have a node, those of lost replicas first in line.
    pub(super) fn to_fill(&self, shard: ShardIndex) -> impl Iterator<Item = usize> + use<> {
        let missing = (self.problem.replicas[shard as usize] as usize).saturating_sub(self.have(shard));
        let empty: Vec<usize> = match missing {
            0 => Vec::new(),
            _ => {
                self.slot_range(shard).filter(|slot| self.state.slots[*slot] == EMPTY).take(missing).collect()
            }
        };
        empty.into_iter()
    }

    /// How many changes have been made so far, those undone by later ones included.
    pub(super) fn logged(&self) -> usize {
        self.state.log.len()
    }

    // Checks.

    /// Whether every hard rule lets the shard have a replica on the node, besides those it has.
    pub(super) fn admits(&self, shard: ShardIndex, node: NodeIndex) -> bool {
        self.admits_but(shard, node, None)
    }

    /// The same when the replica in slot `but` leaves its place.
    pub(super) fn admits_but(&self, shard: ShardIndex, node: NodeIndex, but: Option<usize>) -> bool {
        self.standing(node) == Standing::Accepts
            && self.allows(shard, node)
            && !self.nodes_of(shard).contains(&node)
            && self.hard_spread(shard, node, but)
            && self.room(shard, node).is_none()
    }

    /// Whether the shard's rule lets it be on the node at all.
    pub(super) fn allows(&self, shard: ShardIndex, node: NodeIndex) -> bool {
        self.rule(shard).nodes.as_ref().is_none_or(|allowed| allowed.contains(node))
    }

    /// Whether hard spreads let the shard be on the node, the replica in slot `but` left out of account.
    pub(super) fn hard_spread(&self, shard: ShardIndex, node: NodeIndex, but: Option<usize>) -> bool {
        let rule = self.rule(shard);
        (rule.zone != Spread::Hard || !self.shares_domain(shard, node, Level::Zone, but))
            && (rule.rack != Spread::Hard || !self.shares_domain(shard, node, Level::Rack, but))
    }

    /// How many soft spreads the node would break for the shard.
    pub(super) fn crowding(&self, shard: ShardIndex, node: NodeIndex, but: Option<usize>) -> u32 {
        let rule = self.rule(shard);
        u32::from(rule.zone == Spread::Soft && self.shares_domain(shard, node, Level::Zone, but))
            + u32::from(rule.rack == Spread::Soft && self.shares_domain(shard, node, Level::Rack, but))
    }

    fn shares_domain(&self, shard: ShardIndex, node: NodeIndex, level: Level, but: Option<usize>) -> bool {
        let domain = self.domain(node, level);
        let other = |slot: usize| self.state.slots[slot] != EMPTY && Some(slot) != but;
        domain != UNKNOWN_DOMAIN
            && self
                .slot_range(shard)
                .any(|slot| other(slot) && self.domain(self.state.slots[slot], level) == domain)
    }

    /// Whether two nodes are in the same known domain.
    pub(super) fn same_domain(&self, one: NodeIndex, other: NodeIndex, level: Level) -> bool {
        let domain = self.domain(one, level);
        domain != UNKNOWN_DOMAIN && domain == self.domain(other, level)
    }

    pub(super) fn domain(&self, node: NodeIndex, level: Level) -> u32 {
        let spec = &self.problem.nodes[node as usize];
        match level {
            Level::Node => node,
            Level::Rack => spec.rack,
            Level::Zone => spec.zone,
        }
    }

    /// The metric of which the node has no room for the shard, if any.
    pub(super) fn room(&self, shard: ShardIndex, node: NodeIndex) -> Option<usize> {
        self.room_without(shard, node, None)
    }

    /// The same when another shard's replica leaves the node.
    pub(super) fn room_without(
        &self,
        shard: ShardIndex,
        node: NodeIndex,
        leaving: Option<ShardIndex>,
    ) -> Option<usize> {
        self.problem.metrics.iter().enumerate().position(|(metric, spec)| {
            let capacity = self.problem.capacities[node as usize * self.state.metrics + metric];
            spec.limit.is_some_and(|limit| {
                let freed = leaving.map_or(0.0, |leaving| self.size(leaving, metric));
                self.load(node, metric) + self.size(shard, metric) - freed > limit * capacity
            })
        })
    }

    // Changes.

    /// Puts a replica of the shard, in an empty slot, on the node.
    pub(super) fn place(&mut self, shard: ShardIndex, slot: usize, node: NodeIndex, reason: Reason) {
        self.put(shard, slot, node);
        self.state.log.push((slot as u32, reason));
    }

    fn put(&mut self, shard: ShardIndex, slot: usize, node: NodeIndex) {
        debug_assert_eq!(self.state.slots[slot], EMPTY);
        self.state.slots[slot] = node;
        self.state.count[node as usize] += 1;
        for metric in 0..self.state.metrics {
            self.state.load[node as usize * self.state.metrics + metric] += self.size(shard, metric);
        }
    }

    /// Empties a slot and says which node it held.
    pub(super) fn vacate(&mut self, shard: ShardIndex, slot: usize) -> NodeIndex {
        let node = std::mem::replace(&mut self.state.slots[slot], EMPTY);
        self.state.count[node as usize] -= 1;
        for metric in 0..self.state.metrics {
            self.state.load[node as usize * self.state.metrics + metric] -= self.size(shard, metric);
        }
        node
    }

    /// Puts a replica back where it was taken from a moment ago.
    pub(super) fn restore(&mut self, shard: ShardIndex, slot: usize, node: NodeIndex) {
        self.put(shard, slot, node);
    }

    /// Notes why a slot is where it is, when it was put there by [`Draft::restore`].
    pub(super) fn note(&mut self, slot: usize, reason: Reason) {
        self.state.log.push((slot as u32, reason));
    }

    /// Removes a replica for good.
    pub(super) fn remove(&mut self, shard: ShardIndex, slot: usize, reason: Reason) {
        self.vacate(shard, slot);
        self.state.log.push((slot as u32, reason));
    }

    /// Clears what an earlier pass could not do. Returns the length of the log so far.
    pub(super) fn begin_pass(&mut self) -> usize {
        self.state.homes.clone_from(&self.state.slots);
        self.state.unplaced.clear();
        self.state.deferred = 0;
        self.state.log.len()
    }

    /// Takes that many moves out of the budget, or counts them as deferred.
    pub(super) fn afford(&mut self, moves: u32) -> bool {
        if self.state.budget < moves {
            self.state.deferred += moves;
            return false;
        }
        self.state.budget -= moves;
        true
    }

    /// Takes one move out of the budget, or counts it as deferred.
    pub(super) fn spend(&mut self) -> bool {
        self.afford(1)
    }

    /// Gives back a move that came to nothing.
    pub(super) fn refund(&mut self) {
        self.state.budget = self.state.budget.saturating_add(1);
    }

    /// Takes a search's moves out of the budget.
    pub(super) fn charge(&mut self, moves: u32, deferred: u32) {
        self.state.budget = self.state.budget.saturating_sub(moves);
        self.state.deferred += deferred;
    }

    pub(super) fn budget(&self) -> u32 {
        self.state.budget
    }

    /// Notes that a slot has no node, or cannot leave the one it has, and finds out why.
    pub(super) fn give_up(&mut self, shard: ShardIndex, slot: usize) {
        let why = self.why_not(shard);
        let replica = (slot - self.state.starts[shard as usize] as usize) as u8;
        self.state.unplaced.push(Unplaced { shard, replica, stays: self.at(slot), why });
    }

    /// The first check, in order, that no node passes.
    fn why_not(&self, shard: ShardIndex) -> Unplaceable {
        let needs = self.problem.replicas[shard as usize];
        let nodes = 0..self.problem.nodes.len() as NodeIndex;
        let accepting = nodes.filter(|node| self.standing(*node) == Standing::Accepts);
        let mut allowed = accepting.clone().filter(|node| self.allows(shard, *node));
        let fresh = || allowed.clone().filter(|node| !self.nodes_of(shard).contains(node));
        if accepting.clone().next().is_none() {
            return Unplaceable::NoNodes;
        }
        if fresh().next().is_none() {
            let held = self.nodes_of(shard).iter().filter(|node| {
                **node != EMPTY && self.standing(**node) == Standing::Keeps && self.allows(shard, **node)
            });
            let eligible = (allowed.clone().count() + held.count()) as u32;
            return match eligible {
                0 => Unplaceable::NoneAllowed,
                _ => Unplaceable::TooFewNodes { needs, eligible },
            };
        }
        let apart: Vec<NodeIndex> = fresh().filter(|node| self.hard_spread(shard, *node, None)).collect();
        if apart.is_empty() {
            let level = if self.rule(shard).rack == Spread::Hard { Level::Rack } else { Level::Zone };
            let mut domains: Vec<u32> = allowed.by_ref().map(|node| self.domain(node, level)).collect();
            domains.sort_unstable();
            domains.dedup();
            return Unplaceable::TooFewDomains { level, needs, eligible: domains.len() as u32 };
        }
        let metric = apart.iter().find_map(|node| self.room(shard, *node)).unwrap_or(0) as u16;
        Unplaceable::NoRoom { metric }
    }

    /// Ends the draft: what differs from the current placement, and how good it is.
    pub(super) fn finish(mut self) -> Solution {
        self.untangle();
        let log = std::mem::take(&mut self.state.log);
        let after = Balance::of(&self);
        let mut placement = Placement::with_capacity(self.problem.shard_count(), self.state.slots.len());
        let (mut decisions, mut bytes) = (Vec::with_capacity(log.len()), 0);
        let mut log = log.into_iter().peekable();
        for shard in 0..self.problem.shard_count() as ShardIndex {
            placement.push(self.in_order(shard).map(|slot| self.state.slots[slot]));
            for slot in self.slot_range(shard) {
                let reason = log.next_if(|(of, _)| *of as usize == slot).map(|(_, reason)| reason);
                let (from, to) = (self.origin(shard, slot), self.at(slot));
                if from != to {
                    // Only what is lost and found no place has no entry in the log.
                    let reason = reason.unwrap_or(Reason::Lost);
                    decisions.push(Decision { shard, from, to, reason });
                    bytes += if to.is_some() { self.problem.move_bytes(shard) } else { 0 };
                }
            }
        }
        let nowhere = self.state.unplaced.iter().filter(|unplaced| unplaced.stays.is_none()).count() as u64;
        let score = Score::of(&self, &after, nowhere, decisions.len() as u64, bytes);
        let DraftState { unplaced, deferred, before, .. } = self.state;
        Solution { placement, decisions, unplaced, deferred, before, after, score }
    }

    /// Untangles every shard that has log entries, and leaves one entry for each slot in the log, in slot order: the slots
    /// are then as the solution has them, and [`Draft::in_order`] is the order of the next plan.
    pub(super) fn untangle(&mut self) {
        let mut log = std::mem::take(&mut self.state.log);
        log.sort_by_key(|(slot, _)| *slot);
        let mut reasons: Vec<Option<Reason>> = Vec::new();
        let mut logged = 0;
        while let Some((first, _)) = log.get(logged) {
            let shard = self.state.starts.partition_point(|start| start <= first) - 1;
            let slots = self.slot_range(shard as ShardIndex);
            reasons.clear();
            reasons.resize(slots.len(), None);
            while let Some((slot, reason)) =
                log.get(logged).filter(|(slot, _)| slots.contains(&(*slot as usize)))
            {
                reasons[*slot as usize - slots.start] = Some(*reason);
                logged += 1;
            }
            self.untangle_shard(shard as ShardIndex, &mut reasons);
            let last = slots.zip(&reasons).filter_map(|(slot, reason)| Some((slot as u32, (*reason)?)));
            self.state.log.extend(last);
        }
    }

    /// When one replica of a shard has come to where another was, the other stays, and the first
    /// goes where the other would have gone: the same nodes, one move less, and a leader that stays.
    fn untangle_shard(&mut self, shard: ShardIndex, reasons: &mut [Option<Reason>]) {
        let slots = self.slot_range(shard);
        for slot in slots.clone() {
            while let Some(node) = self.at(slot).filter(|node| self.origin(shard, slot) != Some(*node)) {
                let was_here =
                    |other: &usize| self.origin(shard, *other) == Some(node) && self.at(*other) != Some(node);
                let Some(other) = slots.clone().find(was_here) else { break };
                self.state.slots.swap(slot, other);
                let (mine, its) = (slot - slots.start, other - slots.start);
                if self.at(slot).is_none() || reasons[mine].is_none() {
                    reasons[mine] = reasons[its];
                }
            }
        }
    }
}
