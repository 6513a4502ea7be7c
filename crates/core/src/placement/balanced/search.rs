//! The local search under the balance phase: which single move or swap helps most, at what price.
//!
//! A node above its mark (share and tolerance) in some metric is *hot*; how far all nodes are above their
//! marks, summed, is the *excess*. A replica's *home* is its node before the plan. A step moves one replica, or
//! swaps two. Its price is by how much it raises the number of replicas away from home: sending one back lowers
//! that by one; sending another in its stead, or one that is away already to another node, is free.
//!
//! A node's neighbours are all nodes in small clusters and the coldest [`NEIGHBOURS`] in large ones.

use super::super::draft::Draft;
use super::super::problem::{NodeIndex, ShardIndex, Standing};
use super::super::solution::Reason;
use super::price::Price;
use std::collections::{BTreeMap, BTreeSet};

/// No node: the home of a new replica, or of one whose home is lost, drained or forbidden.
const AWAY: NodeIndex = NodeIndex::MAX;

/// In clusters larger than this only this many nodes, the coldest, can be partners of a hot one.
const NEIGHBOURS: usize = 256;

/// A change of excess below this is noise of floating point.
pub(super) const NOISE: f64 = 1e-9;

/// One move, or a swap of two replicas.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    /// The replica that leaves the hot node, as a slot.
    slot: u32,
    /// The node that the replica goes to.
    to: NodeIndex,
    /// The replica that comes back from there.
    back: Option<u32>,
    /// How much the excess shrinks.
    pub(super) gain: f64,
    /// Tie-break: how much evener the two nodes get.
    evener: f64,
}

pub(super) struct Search<'d, 'p> {
    draft: &'d mut Draft<'p>,
    pub(super) state: State,
}

/// What a search holds beside its draft: kept while it waits for its next piece of work.
#[derive(Debug, Clone)]
pub(super) struct State {
    metrics: usize,
    /// 1 / share, node-major; 0 where there is nothing to share.
    inverse: Vec<f64>,
    /// Level above which a node is hot, node-major.
    marks: Vec<f64>,
    price: Price,
    /// The slots on each node.
    pub(super) held: Vec<Vec<u32>>,
    /// Where each slot is in its node's list.
    position: Vec<u32>,
    shard_of: Vec<ShardIndex>,
    home: Vec<NodeIndex>,
    /// Slots on each node that are not at home there.
    pub(super) arrived: Vec<Vec<u32>>,
    /// Slots that are at home on each node and are elsewhere.
    pub(super) departed: Vec<Vec<u32>>,
    /// Nodes that accept, by highest level.
    coldest: BTreeSet<(u64, NodeIndex)>,
    /// Nodes above a mark, by how far.
    hot: BTreeSet<(u64, NodeIndex)>,
    over: Vec<f64>,
    rank: Vec<u64>,
    /// How far all nodes are above their marks.
    pub(super) excess: f64,
    /// Replicas with a home that are not there.
    pub(super) away: i64,
    /// Moves, for undo: slot, from, to.
    journal: Vec<(u32, NodeIndex, NodeIndex)>,
    /// Why a replica left home.
    why: BTreeMap<u32, Reason>,
    /// Steps that were weighed.
    pub(super) evaluations: u64,
    /// Nodes and replicas that were listed to find them.
    pub(super) listed: u64,
}

impl<'d, 'p> Search<'d, 'p> {
    /// None when no node is hot: then there is nothing to do.
    pub(super) fn new(draft: &'d mut Draft<'p>) -> Option<Search<'d, 'p>> {
        let metrics = draft.metrics();
        let nodes = draft.problem.nodes.len();
        let mark = |at: usize| draft.mark((at / metrics) as NodeIndex, at % metrics) * (1.0 - NOISE);
        let marks: Vec<f64> = (0..nodes * metrics).map(mark).collect();
        let hot = (0..nodes as NodeIndex).filter(|node| stays(draft, *node));
        let is_hot = |node: NodeIndex| {
            (0..metrics).any(|metric| draft.level(node, metric) > marks[node as usize * metrics + metric])
        };
        if !hot.clone().any(is_hot) {
            return None;
        }
        let inverse = (0..nodes * metrics).map(|at| {
            let share = draft.share((at / metrics) as NodeIndex, at % metrics);
            if share > 0.0 { 1.0 / share } else { 0.0 }
        });
        let state = State {
            metrics,
            inverse: inverse.collect(),
            marks,
            price: Price::of(draft),
            held: vec![Vec::new(); nodes],
            position: Vec::new(),
            shard_of: Vec::new(),
            home: Vec::new(),
            arrived: vec![Vec::new(); nodes],
            departed: vec![Vec::new(); nodes],
            coldest: BTreeSet::new(),
            hot: BTreeSet::new(),
            excess: 0.0,
            over: vec![0.0; nodes],
            rank: vec![0; nodes],
            journal: Vec::new(),
            away: 0,
            evaluations: 0,
            listed: 0,
            why: BTreeMap::new(),
        };
        let mut search = Search { draft, state };
        search.list_replicas();
        Some(search)
    }

    /// Goes on with a search of the same draft.
    pub(super) fn resume(draft: &'d mut Draft<'p>, state: State) -> Search<'d, 'p> {
        Search { draft, state }
    }

    /// Puts the search aside until its next piece of work.
    pub(super) fn into_state(self) -> State {
        self.state
    }

    fn list_replicas(&mut self) {
        for node in 0..self.state.held.len() {
            self.state.held[node].reserve_exact(self.draft.count(node as NodeIndex) as usize + 8);
        }
        for shard in 0..self.draft.problem.shard_count() as ShardIndex {
            let free = self.draft.slot_range(shard);
            for slot in free {
                let now = self.draft.at(slot);
                let home = self.draft.home(slot).filter(|home| {
                    stays(self.draft, *home) && (now == Some(*home) || self.draft.allows(shard, *home))
                });
                self.state.shard_of.push(shard);
                self.state.home.push(home.unwrap_or(AWAY));
                self.state.position.push(0);
                if let Some(node) = now {
                    self.attach(slot as u32, node);
                }
            }
        }
        for node in 0..self.state.held.len() as NodeIndex {
            if stays(self.draft, node) {
                self.refresh(node);
            }
        }
    }

    /// Adds a slot to the lists of its node.
    fn attach(&mut self, slot: u32, node: NodeIndex) {
        let home = self.state.home[slot as usize];
        self.state.position[slot as usize] = self.state.held[node as usize].len() as u32;
        self.state.held[node as usize].push(slot);
        if home == node {
            self.state.departed[node as usize].retain(|other| *other != slot);
        } else {
            self.state.arrived[node as usize].push(slot);
            self.state.away += i64::from(home != AWAY);
        }
    }

    /// Removes a slot from the lists of its node.
    fn detach(&mut self, slot: u32, node: NodeIndex) {
        let (home, position) = (self.state.home[slot as usize], self.state.position[slot as usize] as usize);
        let held = &mut self.state.held[node as usize];
        held.swap_remove(position);
        if let Some(moved) = held.get(position) {
            self.state.position[*moved as usize] = position as u32;
        }
        if home == node {
            self.state.departed[node as usize].push(slot);
        } else {
            self.state.arrived[node as usize].retain(|other| *other != slot);
            self.state.away -= i64::from(home != AWAY);
        }
    }

    /// Updates a node's entries from its load.
    fn refresh(&mut self, node: NodeIndex) {
        let at = node as usize;
        let (over, _) = self.weigh(node, None, None);
        let (was, rank) = (self.state.over[at], self.draft.highest(node).0.max(0.0).to_bits());
        self.state.excess += over - was;
        if was > 0.0 {
            self.state.hot.remove(&(was.to_bits(), node));
        }
        if over > 0.0 {
            self.state.hot.insert((over.to_bits(), node));
        }
        self.state.over[at] = over;
        if self.draft.standing(node) == Standing::Accepts {
            self.state.coldest.remove(&(self.state.rank[at], node));
            self.state.coldest.insert((rank, node));
            self.state.rank[at] = rank;
        }
    }

    /// How far a node is above its marks, and how uneven it is, with one replica more and one less.
    fn weigh(&self, node: NodeIndex, plus: Option<u32>, minus: Option<u32>) -> (f64, f64) {
        let (mut over, mut squares) = (0.0, 0.0);
        for metric in 0..self.state.metrics {
            let size = |slot: u32| self.draft.size(self.state.shard_of[slot as usize], metric);
            let change = plus.map_or(0.0, size) - minus.map_or(0.0, size);
            let at = node as usize * self.state.metrics + metric;
            let level = (self.draft.load(node, metric) + change) * self.state.inverse[at];
            over += (level - self.state.marks[at]).max(0.0);
            squares += level * level;
        }
        (over, squares)
    }

    pub(super) fn place_of(&self, slot: u32) -> NodeIndex {
        self.draft.at(slot as usize).expect("only slots with a node are in the lists")
    }

    /// Replicas away from home, after minus before, if the slot moved there.
    pub(super) fn price(&self, slot: u32, to: NodeIndex) -> i64 {
        let home = self.state.home[slot as usize];
        if home == AWAY { 0 } else { i64::from(to != home) - i64::from(self.place_of(slot) != home) }
    }

    /// Whether the rules let the replica go to `to`, when `leaving` leaves it.
    fn may(&self, slot: u32, to: NodeIndex, leaving: Option<u32>) -> bool {
        let (shard, draft) = (self.state.shard_of[slot as usize], &*self.draft);
        let opens = draft.standing(to) == Standing::Accepts || self.state.home[slot as usize] == to;
        let but = Some(slot as usize);
        opens
            && !draft.nodes_of(shard).contains(&to)
            && draft.allows(shard, to)
            && draft.hard_spread(shard, to, but)
            && draft.crowding(shard, to, but) <= draft.crowding(shard, self.place_of(slot), but)
            && draft.room_without(shard, to, leaving.map(|slot| self.state.shard_of[slot as usize])).is_none()
    }

    /// How much a node's own excess shrinks when the replica leaves it: no step with it gains more.
    pub(super) fn relief(&self, node: NodeIndex, slot: u32) -> f64 {
        self.state.over[node as usize] - self.weigh(node, None, Some(slot)).0
    }

    /// Measures a step out of `from` and keeps it if it is the best so far.
    pub(super) fn consider(
        &mut self,
        best: &mut Option<Step>,
        from: NodeIndex,
        slot: u32,
        to: NodeIndex,
        back: Option<u32>,
    ) {
        self.state.evaluations += 1;
        let (old, new) = (
            self.state.over[from as usize] + self.state.over[to as usize],
            self.weigh(from, back, Some(slot)),
        );
        let bar = best.map_or((NOISE, f64::MIN), |best| (best.gain, best.evener));
        if old - new.0 < bar.0 - NOISE {
            return;
        }
        let there = self.weigh(to, Some(slot), back);
        let gain = old - new.0 - there.0;
        if gain <= NOISE || gain < bar.0 - NOISE {
            return;
        }
        let before = self.weigh(from, None, None).1 + self.weigh(to, None, None).1;
        let evener = before - new.1 - there.1;
        let better = gain > bar.0 + NOISE || evener > bar.1;
        let back_may = || back.is_none_or(|back| self.may(back, from, Some(slot)));
        if better && self.is_won(slot, (from, to), back) && self.may(slot, to, back) && back_may() {
            *best = Some(Step { slot, to, back, gain, evener });
        }
    }

    /// Whether a step is worth its price, where nodes carry other keyspaces too. What is placed anew, from a node that is lost
    /// or to be emptied, has none: it goes somewhere in any case.
    fn is_won(&self, slot: u32, between: (NodeIndex, NodeIndex), back: Option<u32>) -> bool {
        if !self.state.price.is_any() || back.is_none() && self.state.home[slot as usize] == AWAY {
            return true;
        }
        let size = |slot: u32, metric| self.draft.size(self.state.shard_of[slot as usize], metric);
        let shifted = |metric| size(slot, metric) - back.map_or(0.0, |back| size(back, metric));
        self.state.price.is_won(self.draft, between, shifted)
    }

    /// The hottest node that is not known to be stuck.
    pub(super) fn hottest(&self) -> Option<NodeIndex> {
        self.state.hot.last().map(|(_, node)| *node)
    }

    /// How many nodes are hot and not set aside.
    pub(super) fn hot_count(&self) -> usize {
        self.state.hot.len()
    }

    /// Hides a node from [`Search::hottest`] until its load changes.
    pub(super) fn set_aside(&mut self, node: NodeIndex) {
        self.state.hot.remove(&(self.state.over[node as usize].to_bits(), node));
    }

    /// Shows nodes that were set aside again.
    pub(super) fn look_again(&mut self, nodes: &[NodeIndex]) {
        for node in nodes.iter().filter(|node| self.state.over[**node as usize] > 0.0) {
            self.state.hot.insert((self.state.over[*node as usize].to_bits(), *node));
        }
    }

    /// The nodes that may be a hot node's partners.
    pub(super) fn neighbours(&self, of: NodeIndex) -> Vec<NodeIndex> {
        self.state.coldest.iter().map(|(_, node)| *node).filter(|node| *node != of).take(NEIGHBOURS).collect()
    }

    /// Does a step and notes why.
    pub(super) fn apply(&mut self, step: Step) {
        let from = self.place_of(step.slot);
        let metric = self.draft.highest(from).1;
        self.state.why.insert(
            step.slot,
            Reason::Overfull {
                metric: metric as u16,
                load: self.draft.load(from, metric) as f32,
                share: self.draft.share(from, metric) as f32,
                times: (self.state.marks[from as usize * self.state.metrics + metric] * 1e4).round() as f32
                    / 1e4,
            },
        );
        if let Some(back) = step.back {
            let with = self.state.shard_of[step.slot as usize];
            self.state.why.insert(back, Reason::Exchanged { with, metric: metric as u16 });
            self.shift(back, from);
        }
        self.shift(step.slot, step.to);
        self.refresh(from);
        self.refresh(step.to);
    }

    fn shift(&mut self, slot: u32, to: NodeIndex) {
        let from = self.relocate(slot, to);
        self.state.journal.push((slot, from, to));
    }

    fn relocate(&mut self, slot: u32, to: NodeIndex) -> NodeIndex {
        let shard = self.state.shard_of[slot as usize];
        let from = self.draft.vacate(shard, slot as usize);
        self.detach(slot, from);
        self.draft.restore(shard, slot as usize, to);
        self.attach(slot, to);
        from
    }

    /// A point in the journal to which [`Search::undo`] can go back.
    pub(super) fn mark(&self) -> usize {
        self.state.journal.len()
    }

    /// Takes back all steps since the mark.
    pub(super) fn undo(&mut self, mark: usize) {
        while self.state.journal.len() > mark
            && let Some((slot, from, to)) = self.state.journal.pop()
        {
            self.relocate(slot, from);
            self.refresh(from);
            self.refresh(to);
        }
    }

    /// Sends a replica home, if the rules let it.
    pub(super) fn send_home(&mut self, slot: u32) -> bool {
        let (home, from) = (self.state.home[slot as usize], self.place_of(slot));
        if home == AWAY || home == from || !self.may(slot, home, None) {
            return false;
        }
        self.shift(slot, home);
        self.refresh(from);
        self.refresh(home);
        true
    }

    /// Where the replica is at home.
    pub(super) fn home(&self, slot: u32) -> Option<NodeIndex> {
        Some(self.state.home[slot as usize]).filter(|home| *home != AWAY)
    }

    /// The replicas that are away from a home they have, in slot order.
    pub(super) fn travellers(&self) -> Vec<u32> {
        let mut slots: Vec<u32> = self.state.departed.iter().flatten().copied().collect();
        slots.sort_unstable();
        slots
    }

    /// The highest price, up to `most`, that the budget of moves leaves.
    pub(super) fn affordable(&self, most: i64) -> i64 {
        most.min(i64::from(self.draft.budget()) - self.state.away)
    }

    /// Writes the reasons of all replicas away from home into the draft, and charges the budget;
    /// `stuck` nodes wait for the next plan if it was the budget that held them up.
    pub(super) fn close(self, stuck: u32) {
        for (slot, reason) in &self.state.why {
            let home = self.state.home[*slot as usize];
            if home != AWAY && self.draft.at(*slot as usize) != Some(home) {
                self.draft.note(*slot as usize, *reason);
            }
        }
        let moves = self.state.away.clamp(0, i64::from(u32::MAX)) as u32;
        let deferred = if self.draft.budget() <= moves { stuck } else { 0 };
        self.draft.charge(moves, deferred);
    }
}

fn stays(draft: &Draft<'_>, node: NodeIndex) -> bool {
    matches!(draft.standing(node), Standing::Accepts | Standing::Keeps)
}
