//! A reader: it takes pieces of ranges from holders in turn, and goes elsewhere when one refuses or does not answer (rule 8, X9,
//! X12).
//!
//! | event | what it does |
//! |---|---|
//! | records | hands them on, and asks for what follows |
//! | "I am sorting the range" | rests, and asks the same holder again: another one would have to sort it too |
//! | a refusal, or silence | asks the next holder: replicas in `Live` first, then those in `Load` and all nodes that may stand in; of each of these two, one that was silent comes last from then on |
//! | "the node is not reached" | the same; if all of a round have failed, it waits for at least as long as for silent ones |
//! | all have failed | waits, twice as long each time, and takes one round from its budget; each answer gives back a tenth of a round (R3) |
//! | where a cut falls | takes the next cut; when both ends of a partition are known, its pieces |
//! | the budget is used up, or the shuffle has ended | the read fails, and says so |
//!
//! The order of records is the same at each holder, so one goes on where another has stopped, and each says the same of a cut.
//!
//! All readers ask the same holder of a range first, of each range another one: it puts the range in order once, for all of
//! them, and where partitions end inside of a range two readers share it. It is the work of all holders together, not of one.

use super::holder::{NotRead, Slice};
use super::ordered_records::OrderedRecords;
use super::partition::{self, Cut, CutBy, Edge};
use super::plan::Plan;
use super::pool::PoolMap;
use super::seek::{Found, Seek, SeekFor};
use super::settings::Settings;
use super::{Bytes, Ended, RangeId};
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Why a read ends without all of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// No holder gave that range; with the refusal that says most.
    #[error(
        "no node could read range {0:?}: try again when its replicas are there (they refused as follows: {1:?})"
    )]
    NoHolder(RangeId, Option<NotRead>),
    /// There is no shuffle any more.
    #[error("{0}")]
    Over(Ended),
}

/// What the driver tells a reader ([`Reader::handle`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The answer to the question of that number.
    Answer(u64, Result<OrderedRecords, NotRead>),
    /// What was found for the question of that number.
    Found(u64, Found),
    /// The node that was asked is not reached, so the question of that number has no answer.
    NotReached(u64),
    /// The pool has a later map.
    Map(Arc<PoolMap>),
    /// Time has passed, or the read begins.
    Tick,
}

/// What a reader asks its driver to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Ask this node; the number grows with each question.
    Ask(NodeId, u64, Slice),
    /// Ask this node where something is.
    Seek(NodeId, u64, Seek),
    /// Hand these records on: they are the next ones, in order.
    Records(OrderedRecords),
    /// What was sought in a range, and found.
    Found(usize, SeekFor, Found),
    /// The read has ended, and all of it was handed on.
    Done,
    /// The read has failed: no more comes.
    Failed(Failed),
}

/// What is wanted of a range.
#[derive(Debug, Clone)]
struct Part {
    range: usize,
    wants: Wants,
}

#[derive(Debug, Clone)]
enum Wants {
    /// The records from one place to before another, of that interval of keys.
    Records { keys: Option<(Bytes, Option<Bytes>)>, from: u64, to: u64 },
    /// To know where something is.
    Sought(SeekFor),
}

#[derive(Debug, Clone)]
struct Asked {
    number: u64,
    node: NodeId,
    at: Millis,
}

/// The machine of one read.
#[derive(Debug, Clone)]
pub struct Reader {
    plan: Arc<Plan>,
    map: Arc<PoolMap>,
    settings: Settings,
    parts: VecDeque<Part>,
    /// The ends of a partition that is read, until both are known.
    ends: Option<[Edge; 2]>,
    asked: Option<Asked>,
    number: u64,
    /// By how many holders it begins later than others.
    turn: usize,
    /// The holder that has given something of this range, and has not failed since: it is asked for the rest of it.
    gives: Option<(usize, NodeId)>,
    /// Nodes that have not answered in time.
    silent: BTreeSet<NodeId>,
    /// Holders that have failed in this round.
    failed: BTreeSet<NodeId>,
    rounds: u32,
    rest_until: Millis,
    /// The budget of rounds, in tenths: an answer gives back one, a round costs ten.
    budget: u64,
    /// The refusal of this round that says most ([`rank`]).
    refusal: Option<NotRead>,
    /// Whether a holder of this round has not said what it has.
    is_unheard: bool,
    /// Whether one was not reached, so that the round has taken no time for it.
    is_unreached: bool,
    is_over: bool,
}

/// How much a refusal says: the reader tells its client that of the round which says most. That the object store does not give
/// something is the reason why other nodes lack it.
fn rank(refusal: NotRead) -> u8 {
    match refusal {
        NotRead::ObjectStore => 5,
        NotRead::Differs => 4,
        NotRead::ObjectLost => 3,
        NotRead::Busy => 2,
        NotRead::Lacks => 1,
        // They are no refusals.
        NotRead::Sorts | NotRead::Over(_) => 0,
    }
}

impl Reader {
    /// Partition `i` of `n`. Where its ends fall inside ranges, holders of these say at which record.
    pub fn of_partition(
        (plan, map): (Arc<Plan>, Arc<PoolMap>),
        settings: Settings,
        (i, n, by): (u64, u64, CutBy),
    ) -> Reader {
        if i >= n {
            return Reader::new((plan, map), settings, VecDeque::new());
        }
        let held = plan.held();
        let edge = |i| partition::edge(&held, (i, n), by);
        Reader::between((plan, map), settings, ([edge(i), edge(i + 1)], by))
    }

    /// The records of these ranks among all, from the first, included, to the second.
    pub fn of_ranks(
        (plan, map): (Arc<Plan>, Arc<PoolMap>),
        settings: Settings,
        (from, to): (u64, u64),
    ) -> Reader {
        let counts = plan.counts();
        let ends = [from, to].map(|rank| Edge::At(partition::cut(&counts, rank)));
        Reader::between((plan, map), settings, (ends, CutBy::Records))
    }

    /// What is to be known of ranges, by their places. It gives no records.
    pub fn of_seeks(
        (plan, map): (Arc<Plan>, Arc<PoolMap>),
        settings: Settings,
        seeks: impl IntoIterator<Item = (usize, SeekFor)>,
    ) -> Reader {
        let part = |(range, what)| Part { range, wants: Wants::Sought(what) };
        Reader::new((plan, map), settings, seeks.into_iter().map(part).collect())
    }

    fn between(
        (plan, map): (Arc<Plan>, Arc<PoolMap>),
        settings: Settings,
        (ends, by): ([Edge; 2], CutBy),
    ) -> Reader {
        let seek = |edge: &Edge| match edge {
            Edge::At(_) => None,
            Edge::Near(Cut { range, offset }) => {
                let wants = Wants::Sought(SeekFor::Cuts(by, [*offset].into()));
                Some(Part { range: *range, wants })
            }
        };
        let seeks = ends.iter().filter_map(seek).collect();
        let mut reader = Reader::new((plan, map), settings, seeks);
        reader.ends = Some(ends);
        reader.take_pieces();
        reader
    }

    /// When both ends of a partition are known, its pieces are what is wanted next.
    fn take_pieces(&mut self) {
        let Some([Edge::At(from), Edge::At(to)]) = self.ends else { return };
        self.ends = None;
        let part = |piece: partition::Piece| {
            let wants = Wants::Records { keys: None, from: piece.from, to: piece.to };
            Part { range: piece.range, wants }
        };
        self.parts.extend(partition::pieces(&self.plan.counts(), from, to).into_iter().map(part));
    }

    /// The keys from `first`, included, to `end`, or to the last one.
    pub fn of_keys(
        (plan, map): (Arc<Plan>, Arc<PoolMap>),
        settings: Settings,
        (first, end): (Bytes, Option<Bytes>),
    ) -> Reader {
        let begins = |range: usize| plan.ranges.get(range).map(|range| &range.begins);
        let overlaps = |range: &usize| {
            let is_before = end.as_ref().is_none_or(|end| begins(*range).is_some_and(|begin| begin < end));
            is_before && begins(range + 1).is_none_or(|next| first < *next)
        };
        // No more than the range has: one that lies in the interval as a whole has its end where its count says.
        let records = |range: usize| plan.ranges.get(range).map_or(0, |range| range.records);
        let part = |range| {
            let keys = Some((first.clone(), end.clone()));
            Part { range, wants: Wants::Records { keys, from: 0, to: records(range) } }
        };
        let has_some = |range: &usize| records(*range) > 0;
        let parts = (0..plan.ranges.len()).filter(overlaps).filter(has_some).map(part).collect();
        Reader::new((plan.clone(), map), settings, parts)
    }

    fn new((plan, map): (Arc<Plan>, Arc<PoolMap>), settings: Settings, parts: VecDeque<Part>) -> Reader {
        Reader {
            plan,
            map,
            budget: 10 * settings.retry_budget,
            settings,
            parts,
            ends: None,
            asked: None,
            number: 0,
            turn: 0,
            gives: None,
            silent: BTreeSet::new(),
            failed: BTreeSet::new(),
            rounds: 0,
            rest_until: Millis(0),
            refusal: None,
            is_unheard: false,
            is_unreached: false,
            is_over: false,
        }
    }

    /// The same, but it begins with another holder of each range, so many later: for those who look whether all give the same.
    #[must_use]
    pub fn with_turn(self, turn: usize) -> Reader {
        Reader { turn, ..self }
    }

    /// Takes in an event; the driver carries out the effects in their order.
    pub fn handle(&mut self, now: Millis, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.is_over {
            return effects;
        }
        match event {
            Event::Map(map) => self.map = map,
            Event::Answer(number, answer) => {
                if let Some(asked) = self.asked.take_if(|asked| asked.number == number) {
                    self.answered((now, asked.node), answer, &mut effects);
                }
            }
            Event::Found(number, found) => {
                if let Some(asked) = self.asked.take_if(|asked| asked.number == number) {
                    self.found((now, asked.node), found, &mut effects);
                }
            }
            Event::NotReached(number) => {
                if let Some(asked) = self.asked.take_if(|asked| asked.number == number) {
                    self.is_unreached = true;
                    self.unheard((now, asked.node), &mut effects);
                }
            }
            Event::Tick => {
                let wait = self.settings.read_wait_ms;
                if let Some(asked) = self.asked.take_if(|asked| now.since(asked.at) >= wait) {
                    self.unheard((now, asked.node), &mut effects);
                }
            }
        }
        self.ask(now, &mut effects);
        effects
    }

    /// When it wants to be called again.
    pub fn wake_at(&self) -> Millis {
        match &self.asked {
            _ if self.is_over => Millis::NEVER,
            Some(asked) => asked.at + self.settings.read_wait_ms,
            None => self.rest_until,
        }
    }

    fn answered(
        &mut self,
        (now, by): (Millis, NodeId),
        answer: Result<OrderedRecords, NotRead>,
        effects: &mut Vec<Effect>,
    ) {
        match answer {
            Ok(records) => self.take((now, by), records, effects),
            // It takes no round: a holder that ends, or fails at it, does not say so.
            Err(NotRead::Sorts) => self.rest_until = now + self.settings.back_off_ms,
            Err(NotRead::Over(how)) => self.end(Effect::Failed(Failed::Over(how)), effects),
            Err(refusal) => {
                self.keep_refusal(refusal);
                self.fail((now, by), effects);
            }
        }
    }

    /// This holder has said nothing.
    fn unheard(&mut self, (now, by): (Millis, NodeId), effects: &mut Vec<Effect>) {
        self.is_unheard = true;
        self.silent.insert(by.clone());
        self.fail((now, by), effects);
    }

    fn keep_refusal(&mut self, refusal: NotRead) {
        self.is_unheard |= refusal == NotRead::Busy;
        if rank(refusal) >= self.refusal.map_or(0, rank) {
            self.refusal = Some(refusal);
        }
    }

    fn take(&mut self, (now, by): (Millis, NodeId), records: OrderedRecords, effects: &mut Vec<Effect>) {
        let count = records.len() as u64;
        let asked = match self.parts.front_mut() {
            Some(Part { range, wants: Wants::Records { keys, from, to } }) => {
                let most = to.saturating_sub(*from).min(self.settings.read_records);
                // The plan says how many there are: only of an interval of keys a holder may have none.
                let may_be = count <= most && (count > 0 || keys.is_some());
                may_be.then_some((*range, from, *to))
            }
            _ => None,
        };
        let Some((range, from, to)) = asked else {
            self.keep_refusal(NotRead::Differs);
            return self.fail((now, by), effects);
        };
        *from += count;
        // A holder may give fewer at once than were asked for: only one that gives none has no more.
        let is_last = *from >= to || count == 0;
        self.has_given(range, by);
        if is_last {
            self.parts.pop_front();
        }
        if count > 0 {
            effects.push(Effect::Records(records));
        }
    }

    /// A holder says where something is.
    fn found(&mut self, (now, by): (Millis, NodeId), found: Found, effects: &mut Vec<Effect>) {
        let Some(Part { range, wants: Wants::Sought(what) }) = self.parts.front() else {
            return self.fail((now, by), effects);
        };
        let (range, what) = (*range, what.clone());
        let Ok(left) = what.behind(&found) else {
            self.keep_refusal(NotRead::Differs);
            return self.fail((now, by), effects);
        };
        self.has_given(range, by);
        self.parts.pop_front();
        if let Some(what) = left {
            self.parts.push_front(Part { range, wants: Wants::Sought(what) });
        }
        let Some(ends) = &mut self.ends else {
            return effects.push(Effect::Found(range, what, found));
        };
        // Its ends are asked for one by one, in their order.
        if let (Found::Cuts(cuts), Some(end)) =
            (&found, ends.iter_mut().find(|end| matches!(end, Edge::Near(_))))
            && let Some(cut) = cuts.first()
        {
            *end = Edge::At(Cut { range, offset: cut.record });
        }
        self.take_pieces();
    }

    fn has_given(&mut self, range: usize, by: NodeId) {
        self.silent.remove(&by);
        self.gives = Some((range, by));
        self.failed.clear();
        (self.rounds, self.refusal, self.is_unheard, self.is_unreached) = (0, None, false, false);
        self.budget = (self.budget + 1).min(10 * self.settings.retry_budget);
    }

    /// This holder did not give it.
    fn fail(&mut self, (now, by): (Millis, NodeId), effects: &mut Vec<Effect>) {
        self.gives = None;
        self.failed.insert(by);
        let Some(part) = self.parts.front() else { return };
        if self.next_holder(part.range).is_none() {
            self.end_round(now, effects);
        }
    }

    /// All holders have failed, or there is none.
    fn end_round(&mut self, now: Millis, effects: &mut Vec<Effect>) {
        let Some(part) = self.parts.front() else { return };
        self.failed.clear();
        if self.budget < 10 {
            let range = self.plan.ranges.get(part.range).map_or(RangeId(0), |range| range.id);
            let refusal = match self.refusal {
                // One that has not said what it has may have it all the same.
                Some(NotRead::ObjectLost) if self.is_unheard => Some(NotRead::Busy),
                refusal => refusal,
            };
            return self.end(Effect::Failed(Failed::NoHolder(range, refusal)), effects);
        }
        (self.refusal, self.is_unheard) = (None, false);
        self.budget -= 10;
        let rest = self.settings.back_off_ms.saturating_mul(1 << self.rounds.min(20));
        let rest = rest.min(self.settings.longest_back_off_ms);
        // Nodes that start again take as long as silent ones.
        let least = if std::mem::take(&mut self.is_unreached) { self.settings.read_wait_ms } else { 0 };
        self.rest_until = now + rest.max(least);
        self.rounds += 1;
    }

    fn end(&mut self, with: Effect, effects: &mut Vec<Effect>) {
        self.is_over = true;
        effects.push(with);
    }

    fn ask(&mut self, now: Millis, effects: &mut Vec<Effect>) {
        if self.is_over || self.asked.is_some() || now < self.rest_until {
            return;
        }
        let Some(part) = self.parts.front().cloned() else { return self.end(Effect::Done, effects) };
        let Some(node) = self.next_holder(part.range) else { return self.end_round(now, effects) };
        self.number += 1;
        self.asked = Some(Asked { number: self.number, node: node.clone(), at: now });
        let (plan, Part { range, wants }) = (self.plan.clone(), part);
        effects.push(match wants {
            Wants::Records { keys, from, to } => {
                let to = to.min(from.saturating_add(self.settings.read_records));
                Effect::Ask(node, self.number, Slice { plan, range, keys, from, to })
            }
            Wants::Sought(what) => Effect::Seek(node, self.number, Seek { plan, range, what }),
        });
    }

    /// The node that is asked next for something of a range. None: all that may have it have failed in this round.
    fn next_holder(&self, range: usize) -> Option<NodeId> {
        let slot = self.plan.ranges.get(range)?.slot;
        let place = self.map.place(slot)?;
        if let Some((of, by)) = &self.gives
            && *of == range
            && self.map.nodes.contains(by)
        {
            return Some(by.clone());
        }
        let is_left = |node: &&NodeId| !self.failed.contains(*node);
        let is_silent = |node: &&NodeId| self.silent.contains(*node);
        let live = self.plan.live_of(&self.map, range, self.turn);
        let holder = live.chain(&place.loading).filter(is_left).min_by_key(is_silent).cloned();
        holder.or_else(|| self.map.others(slot).iter().filter(is_left).min_by_key(is_silent).cloned())
    }
}

impl Plan {
    /// The replicas in `Live` of a range, in the order in which readers ask them that begin so many holders later than others.
    fn live_of<'a>(
        &self,
        map: &'a PoolMap,
        range: usize,
        turn: usize,
    ) -> impl Iterator<Item = &'a NodeId> + use<'a> {
        let live = self.ranges.get(range).map(|range| map.live(range.slot)).unwrap_or_default();
        let (before, first) = live.split_at(turn.wrapping_add(range) % live.len().max(1));
        first.iter().chain(before)
    }

    /// The nodes that have what lies in the middle of each of `n` partitions, in the order in which readers ask them: the first
    /// one has most of a partition that is no larger than a range.
    pub fn holders_of_partitions<'a>(&'a self, map: &'a PoolMap, n: u64) -> impl Fn(u64) -> Vec<NodeId> + 'a {
        let mut total = 0;
        let ends = self.ranges.iter().map(|range| {
            total += range.records;
            total
        });
        let ends: Vec<u64> = ends.collect();
        move |i: u64| {
            let [i, n] = [i, n].map(|of| of.saturating_mul(2));
            let middle = partition::rank(i.saturating_add(1), n, total);
            // Ranges without records end where they begin: none of them is taken.
            let range = ends.partition_point(|end| *end <= middle).min(ends.len().saturating_sub(1));
            self.live_of(map, range, 0).cloned().collect()
        }
    }
}

impl Slice {
    /// The records of it, from all records of its range in order, by [`Plan::collect`]: so they are found by their keys. Nothing
    /// is copied.
    pub fn of(&self, all: &OrderedRecords) -> OrderedRecords {
        let first_at = |key: &Bytes| all.first_key(0..all.len(), |one| one < &key[..]);
        let (begin, end) = match &self.keys {
            None => (0, all.len()),
            Some((first, end)) => (first_at(first), end.as_ref().map_or(all.len(), first_at)),
        };
        let inside = end.saturating_sub(begin);
        let at = |rank: u64| begin + usize::try_from(rank).unwrap_or(usize::MAX).min(inside);
        all.slice(at(self.from)..at(self.to))
    }
}

#[cfg(test)]
mod tests;
