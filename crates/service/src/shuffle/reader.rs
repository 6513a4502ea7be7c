//! A reader: it takes pieces of ranges from holders in turn, and goes elsewhere when one refuses or does not answer (rule 8, X9,
//! X12).
//!
//! | event | what it does |
//! |---|---|
//! | records | hands them on, and asks for what follows |
//! | "I am sorting the range" | rests, and asks the same holder again: another one would have to sort it too |
//! | a refusal, or silence | asks the next holder: replicas in `Live` first, another one first each time, then those in `Load` and all nodes that may stand in |
//! | all have failed | waits, twice as long each time, and takes one round from its budget; each answer gives back a tenth of a round (R3) |
//! | the budget is used up, or the shuffle has ended | the read fails, and says so |
//!
//! The order of records is the same at each holder, so one goes on where another has stopped.

use super::holder::{NotRead, Slice};
use super::partition::{self, Cut};
use super::plan::{Placed, Plan};
use super::pool::PoolMap;
use super::settings::Settings;
use super::{Bytes, Ended, RangeId};
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use std::collections::VecDeque;
use std::sync::Arc;

/// Why a read ends without all of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// No holder gave it.
    #[error(
        "no node could read range {0:?}: try again when its replicas are there (the last one refused as follows: {1:?})"
    )]
    NoHolder(RangeId, Option<NotRead>),
    /// There is no shuffle any more.
    #[error("{0}")]
    Over(Ended),
}

/// What has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The answer to the question of that number.
    Answer(u64, Result<Vec<Placed>, NotRead>),
    /// The next map.
    Map(Arc<PoolMap>),
    /// Time has passed, or the read begins.
    Tick,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Ask this node; the number grows with each question.
    Ask(NodeId, u64, Slice),
    /// The next records.
    Records(Vec<Placed>),
    /// These were all.
    Done,
    /// There will be no more.
    Failed(Failed),
}

/// A piece of a range that is to be read.
#[derive(Debug, Clone)]
struct Part {
    range: usize,
    keys: Option<(Bytes, Option<Bytes>)>,
    from: u64,
    to: u64,
}

#[derive(Debug, Clone)]
struct Asked {
    number: u64,
    at: Millis,
}

/// One read.
#[derive(Debug, Clone)]
pub struct Reader {
    plan: Arc<Plan>,
    map: Arc<PoolMap>,
    settings: Settings,
    parts: VecDeque<Part>,
    asked: Option<Asked>,
    number: u64,
    /// Which holder is asked first.
    turn: usize,
    /// Holders that have failed in this round.
    failed: usize,
    rounds: u32,
    rest_until: Millis,
    /// Tenths of rounds.
    budget: u64,
    last_refusal: Option<NotRead>,
    is_over: bool,
}

impl Reader {
    /// Partition `i` of `n`, cut at ranks of records. Readers with different `turn`s begin with different holders.
    pub fn of_partition(
        (plan, map): (Arc<Plan>, Arc<PoolMap>),
        settings: Settings,
        (i, n): (u64, u64),
        turn: usize,
    ) -> Reader {
        let (counts, total) = (plan.counts(), plan.records());
        let cut = |i: u64| -> Cut { partition::cut(&counts, partition::rank(i, n, total)) };
        let pieces = if i < n { partition::pieces(&counts, cut(i), cut(i + 1)) } else { Vec::new() };
        let part =
            |piece: partition::Piece| Part { range: piece.range, keys: None, from: piece.from, to: piece.to };
        let parts = pieces.into_iter().map(part).collect();
        Reader::new((plan, map), settings, parts, turn)
    }

    /// The keys from `first`, included, to `end`, or to the last one.
    pub fn of_keys(
        (plan, map): (Arc<Plan>, Arc<PoolMap>),
        settings: Settings,
        (first, end): (Bytes, Option<Bytes>),
        turn: usize,
    ) -> Reader {
        let begins = |range: usize| plan.ranges.get(range).map(|range| &range.begins);
        let overlaps = |range: &usize| {
            let is_before = end.as_ref().is_none_or(|end| begins(*range).is_some_and(|begin| begin < end));
            is_before && begins(range + 1).is_none_or(|next| first < *next)
        };
        // No more than the range has: one that lies in the interval as a whole has its end where its count says.
        let records = |range: usize| plan.ranges.get(range).map_or(0, |range| range.records);
        let part =
            |range| Part { range, keys: Some((first.clone(), end.clone())), from: 0, to: records(range) };
        let has_some = |range: &usize| records(*range) > 0;
        let parts = (0..plan.ranges.len()).filter(overlaps).filter(has_some).map(part).collect();
        Reader::new((plan.clone(), map), settings, parts, turn)
    }

    fn new(
        (plan, map): (Arc<Plan>, Arc<PoolMap>),
        settings: Settings,
        parts: VecDeque<Part>,
        turn: usize,
    ) -> Reader {
        Reader {
            plan,
            map,
            budget: 10 * settings.retry_budget,
            settings,
            parts,
            asked: None,
            number: 0,
            turn,
            failed: 0,
            rounds: 0,
            rest_until: Millis(0),
            last_refusal: None,
            is_over: false,
        }
    }

    /// Takes in what has come; the effects are to be carried out in their order.
    pub fn handle(&mut self, now: Millis, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.is_over {
            return effects;
        }
        match event {
            Event::Map(map) => self.map = map,
            Event::Answer(number, answer) => {
                if self.asked.as_ref().is_some_and(|asked| asked.number == number) {
                    self.asked = None;
                    self.answered(now, answer, &mut effects);
                }
            }
            Event::Tick => {
                let wait = self.settings.read_wait_ms;
                if self.asked.as_ref().is_some_and(|asked| now.since(asked.at) >= wait) {
                    self.asked = None;
                    self.fail(now, &mut effects);
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

    fn answered(&mut self, now: Millis, answer: Result<Vec<Placed>, NotRead>, effects: &mut Vec<Effect>) {
        match answer {
            Ok(records) => self.take(records, effects),
            // It takes no round: a holder that ends, or fails at it, does not say so.
            Err(NotRead::Sorts) => self.rest_until = now + self.settings.back_off_ms,
            Err(NotRead::Over(how)) => self.end(Effect::Failed(Failed::Over(how)), effects),
            Err(refusal) => {
                self.last_refusal = Some(refusal);
                self.fail(now, effects);
            }
        }
    }

    fn take(&mut self, records: Vec<Placed>, effects: &mut Vec<Effect>) {
        let Some(part) = self.parts.front_mut() else { return };
        let count = records.len() as u64;
        part.from += count;
        // A holder may give fewer at once than were asked for: only one that gives none has no more.
        let is_last = part.from >= part.to || count == 0;
        (self.failed, self.rounds) = (0, 0);
        self.budget = (self.budget + 1).min(10 * self.settings.retry_budget);
        if is_last {
            self.parts.pop_front();
            self.turn += 1;
        }
        if count > 0 {
            effects.push(Effect::Records(records));
        }
    }

    /// This holder did not give it.
    fn fail(&mut self, now: Millis, effects: &mut Vec<Effect>) {
        let Some(part) = self.parts.front() else { return };
        self.failed += 1;
        if self.failed < self.holders(part.range).len() {
            return;
        }
        self.failed = 0;
        if self.budget < 10 {
            let range = self.plan.ranges.get(part.range).map_or(RangeId(0), |range| range.id);
            return self.end(Effect::Failed(Failed::NoHolder(range, self.last_refusal)), effects);
        }
        self.budget -= 10;
        let rest = self.settings.back_off_ms.saturating_mul(1 << self.rounds.min(20));
        self.rest_until = now + rest.min(self.settings.longest_back_off_ms);
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
        let holders = self.holders(part.range);
        let Some(node) = holders.get(self.failed).cloned() else {
            return self.fail(now, effects);
        };
        self.number += 1;
        self.asked = Some(Asked { number: self.number, at: now });
        let Part { range, keys, from, to } = part;
        let to = to.min(from.saturating_add(self.settings.read_records));
        let slice = Slice { plan: self.plan.clone(), range, keys, from, to };
        effects.push(Effect::Ask(node, self.number, slice));
    }

    /// The nodes that may have a range, in the order in which they are asked.
    fn holders(&self, range: usize) -> Vec<NodeId> {
        let Some(slot) = self.plan.ranges.get(range).map(|range| range.slot) else { return Vec::new() };
        let Some(place) = self.map.place(slot) else { return Vec::new() };
        let mut live = place.live.clone();
        let by = self.turn % live.len().max(1);
        live.rotate_left(by);
        live.into_iter().chain(place.loading.iter().cloned()).chain(self.map.stand_ins(slot)).collect()
    }
}

impl Slice {
    /// The records of it, from all records of its range in order, by [`Plan::collect`]: so they are found by their keys.
    pub fn of(&self, placed: &[Placed]) -> Vec<Placed> {
        let first_at = |key: &Bytes| placed.partition_point(|one| one.key < *key);
        let inside = match &self.keys {
            None => placed,
            Some((first, end)) => {
                let end = end.as_ref().map_or(placed.len(), first_at);
                placed.get(first_at(first)..end).unwrap_or_default()
            }
        };
        let at = |rank: u64| usize::try_from(rank).unwrap_or(usize::MAX).min(inside.len());
        inside.get(at(self.from)..at(self.to)).unwrap_or_default().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shuffle::plan::PlanRange;
    use crate::shuffle::pool::SlotPlace;
    use crate::shuffle::{AttemptKey, BufferId, PoolSlot, ShuffleId};
    use partage_core::base::id::Epoch;
    use std::collections::BTreeMap;

    const RECORDS: u64 = 10;

    fn reader(settings: Settings) -> Reader {
        Reader::of_partition(plan_and_map(), settings, (0, 1), 0)
    }

    fn plan_and_map() -> (Arc<Plan>, Arc<PoolMap>) {
        let nodes: Vec<NodeId> = ["a", "b", "c"].map(|name| NodeId::new(name).unwrap()).to_vec();
        let place = SlotPlace { epoch: Epoch(1), live: nodes[..2].to_vec(), loading: Vec::new() };
        let map = PoolMap { generation: 1, replicas: 2, places: vec![place], nodes: nodes.clone() };
        let buffer = BufferId { node: nodes[0].clone(), incarnation: partage_core::base::id::Incarnation(1) };
        let winner = crate::shuffle::plan::Winner { partition: 0, records: RECORDS, bytes: 0 };
        let range = PlanRange {
            id: RangeId(1),
            since: 1,
            begins: [].as_slice().into(),
            slot: PoolSlot(0),
            records: RECORDS,
            bytes: 0,
        };
        let plan = Plan {
            shuffle: ShuffleId(1),
            winners: [(AttemptKey { buffer, number: 1 }, winner)].into(),
            needed: BTreeMap::new(),
            ranges: vec![range],
        };
        (Arc::new(plan), Arc::new(map))
    }

    fn asked(effects: &[Effect]) -> Option<(String, u64, u64)> {
        effects.iter().find_map(|effect| match effect {
            Effect::Ask(node, number, slice) => Some((node.to_string(), *number, slice.from)),
            _ => None,
        })
    }

    fn records(count: u64) -> Vec<Placed> {
        let one = |index| Placed {
            key: [].as_slice().into(),
            partition: 0,
            frame: 1,
            index,
            value: [].as_slice().into(),
        };
        (0..count as usize).map(one).collect()
    }

    #[test]
    fn x9_one_holder_goes_on_where_another_has_stopped() {
        let mut reader = reader(Settings { read_records: 4, ..Settings::default() });
        let first = reader.handle(Millis(0), Event::Tick);
        assert_eq!(asked(&first), Some(("a".to_owned(), 1, 0)));
        let next = reader.handle(Millis(1), Event::Answer(1, Ok(records(4))));
        assert_eq!(asked(&next), Some(("a".to_owned(), 2, 4)));
        let other = reader.handle(Millis(2), Event::Answer(2, Err(NotRead::Busy)));
        assert_eq!(asked(&other), Some(("b".to_owned(), 3, 4)));
        assert_eq!(reader.handle(Millis(3), Event::Answer(2, Ok(records(4)))), [], "a late answer is none");
        let silent = reader.handle(Millis(2 + 2_000), Event::Tick);
        assert_eq!(asked(&silent), Some(("c".to_owned(), 4, 4)), "also who may stand in is asked");
        reader.handle(Millis(2_003), Event::Answer(4, Ok(records(4))));
        let last = reader.handle(Millis(2_004), Event::Answer(5, Ok(records(2))));
        assert_eq!(last, [Effect::Records(records(2)), Effect::Done]);
        assert_eq!(reader.wake_at(), Millis::NEVER);
    }

    #[test]
    fn r1_a_holder_that_sorts_is_asked_again_and_takes_nothing_from_the_budget() {
        let mut reader = reader(Settings { retry_budget: 1, back_off_ms: 10, ..Settings::default() });
        let mut effects = reader.handle(Millis(0), Event::Tick);
        for number in 1..=100 {
            let now = 10 * (number - 1);
            assert_eq!(asked(&effects), Some(("a".to_owned(), number, 0)), "always the same one");
            assert_eq!(reader.handle(Millis(now), Event::Answer(number, Err(NotRead::Sorts))), []);
            assert_eq!(reader.wake_at(), Millis(now + 10));
            effects = reader.handle(Millis(now + 10), Event::Tick);
        }
        let next = reader.handle(Millis(2_000), Event::Answer(101, Err(NotRead::Busy)));
        assert_eq!(asked(&next), Some(("b".to_owned(), 102, 0)));
    }

    #[test]
    fn r1_a_holder_may_give_fewer_records_than_were_asked_for() {
        let mut reader = reader(Settings::default());
        reader.handle(Millis(0), Event::Tick);
        let next = reader.handle(Millis(1), Event::Answer(1, Ok(records(3))));
        assert_eq!(asked(&next), Some(("a".to_owned(), 2, 3)));
        let last = reader.handle(Millis(2), Event::Answer(2, Ok(records(RECORDS - 3))));
        assert_eq!(last, [Effect::Records(records(RECORDS - 3)), Effect::Done]);
    }

    #[test]
    fn r1_a_holder_may_give_fewer_records_of_an_interval_of_keys_too() {
        let keys: (Bytes, Option<Bytes>) = ([].as_slice().into(), Some(b"m".as_slice().into()));
        let mut reader = Reader::of_keys(plan_and_map(), Settings::default(), keys, 0);
        reader.handle(Millis(0), Event::Tick);
        let next = reader.handle(Millis(1), Event::Answer(1, Ok(records(3))));
        assert_eq!(asked(&next), Some(("a".to_owned(), 2, 3)));
        let next = reader.handle(Millis(2), Event::Answer(2, Ok(records(2))));
        assert_eq!(asked(&next), Some(("a".to_owned(), 3, 5)));
        // How many of the range lie in the interval only the holder knows.
        assert_eq!(reader.handle(Millis(3), Event::Answer(3, Ok(records(0)))), [Effect::Done]);
        let all: (Bytes, Option<Bytes>) = ([].as_slice().into(), None);
        let mut reader = Reader::of_keys(plan_and_map(), Settings::default(), all, 0);
        reader.handle(Millis(0), Event::Tick);
        let last = reader.handle(Millis(1), Event::Answer(1, Ok(records(RECORDS))));
        assert_eq!(
            last,
            [Effect::Records(records(RECORDS)), Effect::Done],
            "it has no more than are counted"
        );
    }

    #[test]
    fn a_slice_has_the_keys_of_its_interval_and_of_them_the_ranks() {
        let (plan, _) = plan_and_map();
        let placed = |key: u8| Placed { key: [key].as_slice().into(), ..records(1).remove(0) };
        let all: Vec<Placed> = [1, 3, 3, 5, 7, 9].map(placed).to_vec();
        let key = |key: u8| Bytes::from([key].as_slice());
        let cases = [
            (None, (0, 2), &all[..2]),
            (None, (4, u64::MAX), &all[4..]),
            (Some((key(0), None)), (0, 9), &all[..]),
            (Some((key(3), Some(key(7)))), (0, 9), &all[1..4]),
            (Some((key(3), Some(key(7)))), (1, 2), &all[2..3]),
            (Some((key(3), Some(key(7)))), (3, 9), &all[..0]),
            (Some((key(4), Some(key(5)))), (0, 9), &all[..0]),
            (Some((key(9), Some(key(1)))), (0, 9), &all[..0]),
        ];
        for (keys, (from, to), found) in cases {
            let slice = Slice { plan: plan.clone(), range: 0, keys, from, to };
            assert_eq!(slice.of(&all), found, "{from} {to}");
        }
    }

    #[test]
    fn r3_when_all_have_failed_it_waits_longer_each_time_until_its_budget_is_used_up() {
        let settings =
            Settings { retry_budget: 3, back_off_ms: 10, longest_back_off_ms: 25, ..Settings::default() };
        let mut reader = reader(settings);
        let (mut now, mut number, mut rests) = (0, 0, Vec::new());
        let failed = loop {
            let mut effects = reader.handle(Millis(now), Event::Tick);
            while asked(&effects).is_some() {
                number += 1;
                effects = reader.handle(Millis(now), Event::Answer(number, Err(NotRead::Lacks)));
            }
            if let Some(Effect::Failed(why)) = effects.first() {
                break *why;
            }
            rests.push(reader.wake_at().0 - now);
            now = reader.wake_at().0;
        };
        assert_eq!(failed, Failed::NoHolder(RangeId(1), Some(NotRead::Lacks)));
        assert_eq!((rests, number), (vec![10, 20, 25], 12));
    }
}
