//! A buffer: it takes attempts of many clients, batches their records by slot, and says when an attempt is stored (rule 1, X4,
//! X6).
//!
//! | state of an attempt | event | next |
//! |---|---|---|
//! | – | open | writing |
//! | writing | frame that follows | writing; one that came before is ignored, one that is ahead fails the attempt |
//! | writing | end, with the count that was seen | ended: its records go out in batches, at once if no other attempt is being written, else after a while with what others have by then |
//! | ended | R nodes have all batches up to its last in each slot | marking: its end mark goes out as a batch |
//! | marking | R nodes have the mark | whole: the buffer tells the client |
//! | any but whole | the shuffle ends, or is sealed; the client goes, or is silent; no R nodes in time | gone: its records are never read |
//!
//! A reader needs all batches of a stream up to the last one of a winner, also those of others between. So an attempt waits for
//! all of them. Records that are held when new bounds come are divided in memory; what is under way keeps its tag. What would be
//! written before the first bounds, and so be divided later, waits for them for a moment if they are about to come (`sampling`).
//! The same streams carry what a division writes: that is a writer of its own, without an end mark (`dividing.rs`).
//! What goes out does so a little at a time (`outgoing`). How much of its memory each shuffle may fill, `share` says. Of a
//! shuffle that combines, records of equal keys of one attempt become one when a frame comes, and before chunks go out
//! (`combining`): the mark counts what is stored then.

use super::bounds::{Bounds, Finder, Tag};
use super::divider::{Divider, divide};
use super::message::{Message, WhyNotStored, Word};
use super::plan::{Division, Plan};
use super::pool::PoolMap;
use super::record::{Batch, BatchKey, Body, EndMark, MEMORY_OF_SEGMENT, Segment, Stream};
use super::records::{PackedRecords, is_large};
use super::sending::Sending;
use super::settings::Settings;
use super::sketch::Sketch;
use super::turns::Turns;
use super::{AttemptId, AttemptKey, BufferId, Ended, PoolSlot, ShuffleId, Terms, Writer};
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_core::limits;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod combining;
mod counts;
mod dividing;
mod due;
mod durability;
mod ending;
mod failed;
mod open;
mod outgoing;
mod sampling;
mod share;
mod storing;

pub use counts::BufferCounts;
pub use failed::Failed;
use open::{Held, Open, State};
use outgoing::Outgoing;
use share::Waits;

/// The name that a client gives an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt {
    /// The shuffle that gets its records.
    pub shuffle: ShuffleId,
    /// The client's input partition: one attempt of each wins.
    pub partition: u32,
    /// The number of this attempt: the client uses none twice.
    pub id: AttemptId,
}

/// What a client sends for an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The attempt begins, with the terms of the shuffle's handle.
    Open(Terms),
    /// A frame of records, numbered from 1.
    Frame(u64, PackedRecords),
    /// The attempt ends; the client counts so many records and bytes.
    End(u64, u64),
    /// The client is gone.
    Abort,
}

/// What the driver tells a buffer ([`Buffer::handle`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client has sent this for its attempt.
    Client(Attempt, Input),
    /// A node has a batch on disk.
    Stored(NodeId, BatchKey),
    /// A node does not store the batch, as there is no such shuffle any more.
    Refused(BatchKey, Ended),
    /// It has not stored it, so far.
    NotStored(NodeId, BatchKey, WhyNotStored),
    /// What the leader says of a shuffle.
    Word(ShuffleId, Word),
    /// The holder of this process has all that this leader wants to be divided, which takes about so much memory.
    DivisionOrdered(NodeId, Arc<Division>, u64),
    /// The driver has read what [`Effect::ReadDivision`] names.
    Divide(NodeId, Arc<Division>, Vec<Segment>),
    /// The pool has a later map.
    Map(Arc<PoolMap>),
    /// Time has passed: what is due goes out, and late attempts fail.
    Tick,
}

/// What a buffer asks its driver to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Send this message to a node.
    Send(NodeId, Message),
    /// Tell the client that the attempt is stored, or why not.
    Answer(Attempt, Result<(), Failed>),
    /// The frame of that number was taken: the client need not send it again.
    Taken(Attempt, u64),
    /// There is no room for the frame of that number: read on from the client later, and hand it in again.
    Full(Attempt, u64),
    /// Read what this leader wants to be divided, and hand it in: room is kept for it.
    ReadDivision(NodeId, Arc<Division>),
}

/// The machine that takes the attempts of clients on one node.
#[derive(Debug, Clone)]
pub struct Buffer {
    id: BufferId,
    settings: Settings,
    map: Arc<PoolMap>,
    sending: Sending,
    shuffles: BTreeMap<ShuffleId, Open>,
    waits: Waits,
    divider: Divider,
    attempts: u64,
    /// The shuffles of which something goes out.
    turns: Turns<ShuffleId, ()>,
    /// The shuffle of the chunk that is half out.
    half_out: Option<ShuffleId>,
    /// The event that is handled has let something go out.
    sends: bool,
    /// When it looked for late attempts last.
    looked: Option<Millis>,
    counts: BufferCounts,
    out: Vec<(NodeId, Message)>,
    effects: Vec<Effect>,
}

impl Buffer {
    /// A buffer that has just started.
    pub fn new(id: BufferId, settings: Settings, map: Arc<PoolMap>) -> Buffer {
        let (sending, shuffles, waits, divider, turns) = Default::default();
        let (attempts, half_out, sends, looked, counts, out, effects) = Default::default();
        Buffer {
            id,
            settings,
            map,
            sending,
            shuffles,
            waits,
            divider,
            attempts,
            turns,
            half_out,
            sends,
            looked,
            counts,
            out,
            effects,
        }
    }

    /// Whether nothing of a shuffle is left in memory.
    pub fn has_nothing_of(&self, shuffle: ShuffleId) -> bool {
        !self.shuffles.contains_key(&shuffle)
    }

    /// Keys and values that are held or under way, in bytes.
    pub fn bytes(&self) -> u64 {
        self.sending.bytes()
            + self.shuffles.values().map(|open| open.bytes + open.outgoing.bytes()).sum::<u64>()
    }

    /// The same, with what records and segments take in memory besides: it has a limit also for records of nothing.
    pub fn memory(&self) -> u64 {
        self.sending.memory() + self.shuffles.values().map(Open::memory).sum::<u64>()
    }

    /// What it has done since it started.
    pub fn counts(&self) -> BufferCounts {
        let sent = self.sending.counts();
        let (sent_records, sent_bytes) = (sent.records, sent.bytes);
        let (stand_ins, sent_again) = (sent.stand_ins, sent.again);
        BufferCounts { sent_records, sent_bytes, stand_ins, sent_again, ..self.counts }
    }

    /// Takes in an event; the driver carries out the effects in their order.
    pub fn handle(&mut self, now: Millis, event: Event) -> Vec<Effect> {
        self.sends = matches!(event, Event::Tick);
        match event {
            Event::Client(attempt, Input::Open(terms)) => self.open(now, attempt, terms),
            Event::Client(attempt, Input::Frame(number, records)) => {
                self.frame(now, attempt, number, records)
            }
            Event::Client(attempt, Input::End(records, bytes)) => self.end(now, attempt, (records, bytes)),
            Event::Client(attempt, Input::Abort) => self.abort(attempt),
            Event::Stored(node, key) => self.stored(now, node, &key),
            Event::Refused(key, how) => self.over(key.stream.shuffle, Failed::Over(how)),
            Event::NotStored(node, key, why) => self.not_stored(now, &node, (&key, why)),
            Event::Word(shuffle, word) => self.word(now, shuffle, word),
            Event::DivisionOrdered(leader, division, memory) => {
                self.division_ordered(now, leader, division, memory);
            }
            Event::Divide(leader, division, segments) => self.divide(now, leader, &division, segments),
            Event::Map(map) => self.take_map(now, map),
            Event::Tick => self.tick(now),
        }
        if self.sends {
            self.send_some(now);
        }
        let sends = self.out.drain(..).map(|(node, message)| Effect::Send(node, message));
        let mut effects = std::mem::take(&mut self.effects);
        effects.extend(sends);
        effects
    }

    /// When it wants to be called again: at once, while something goes out.
    pub fn wake_at(&self) -> Millis {
        if !self.turns.is_empty() {
            return Millis(0);
        }
        let opens = self.shuffles.values().map(|open| open.flush_at.min(open.sample_at)).min();
        opens.unwrap_or(Millis::NEVER).min(self.sending.wake_at())
    }

    fn answer(&mut self, attempt: Attempt, answer: Result<(), Failed>) {
        self.effects.push(Effect::Answer(attempt, answer));
    }

    fn fail(&mut self, attempt: Attempt, why: Failed) {
        self.waits.remove_attempt(attempt);
        if let Some(open) = self.shuffles.get_mut(&attempt.shuffle) {
            open.remove((attempt.partition, attempt.id));
        }
        self.answer(attempt, Err(why));
    }

    fn held(&mut self, attempt: Attempt) -> Option<&mut Held> {
        self.shuffles.get_mut(&attempt.shuffle)?.attempts.get_mut(&(attempt.partition, attempt.id))
    }

    fn shuffle(&mut self, now: Millis, shuffle: ShuffleId, terms: Terms) -> &mut Open {
        let seed = (shuffle.0 as u64) ^ self.id.incarnation.0;
        let k = self.settings.sketch_k;
        self.shuffles.entry(shuffle).or_insert_with(|| Open {
            bounds: Finder::new(Bounds::stashes(terms.stashes).into()).into(),
            ranges: 1,
            attempts: BTreeMap::new(),
            out: BTreeSet::new(),
            marking: BTreeMap::new(),
            last: BTreeMap::new(),
            unmarked: BTreeMap::new(),
            chunks: BTreeMap::new(),
            outgoing: Outgoing::default(),
            bytes: 0,
            records: 0,
            segments: 0,
            weight: 1,
            combine: None,
            durability: None,
            writing: 0,
            heard: now,
            flush_at: Millis::NEVER,
            divisions: BTreeMap::new(),
            sketch: Sketch::new(k, seed),
            seen: 0,
            // It hears of later bounds when it reports.
            sample_at: now,
            reported: 0,
            answer_by: Millis(0),
            put_off: None,
            plan: None,
        })
    }

    fn open(&mut self, now: Millis, attempt: Attempt, terms: Terms) {
        let number = self.attempts + 1;
        let open = self.shuffle(now, attempt.shuffle, terms);
        if open.plan.is_some() {
            return self.answer_sealed(attempt);
        }
        if let Err(why) = open.takes(terms) {
            return self.answer(attempt, Err(why));
        }
        open.heard = now;
        let key = (attempt.partition, attempt.id);
        match open.attempts.get(&key).map(|held| held.state.clone()) {
            // The same opening, once more.
            Some(State::Writing { frames: 0, .. }) => {}
            Some(_) => self.answer(attempt, Err(Failed::IdTwice)),
            None => {
                let state = State::Writing { at: now, frames: 0 };
                let (records, bytes, last, durability) = (0, 0, BTreeMap::new(), terms.durability);
                let (taken, waits_for) = ((0, 0), PoolSlot(0));
                let held = Held { number, state, taken, records, bytes, last, waits_for, durability };
                open.attempts.insert(key, held);
                open.unmarked.insert(number, key);
                open.writing += 1;
                self.attempts = number;
                self.ask_durability(attempt.shuffle, durability);
            }
        }
    }

    fn frame(&mut self, now: Millis, attempt: Attempt, number: u64, records: PackedRecords) {
        if let Some(open) = self.shuffles.get_mut(&attempt.shuffle) {
            open.heard = now;
        }
        let Some(held) = self.held(attempt) else { return self.no_attempt(attempt) };
        // One that has ended takes nothing any more, and nothing that comes late undoes it.
        let State::Writing { at, frames } = &mut held.state else { return };
        *at = now;
        let expected = *frames + 1;
        match number.cmp(&expected) {
            std::cmp::Ordering::Less => return self.effects.push(Effect::Taken(attempt, number)),
            std::cmp::Ordering::Greater => {
                return self.fail(attempt, Failed::FrameMissing { expected, found: number });
            }
            std::cmp::Ordering::Equal => {}
        }
        let combines = self.shuffles.get(&attempt.shuffle).is_some_and(|open| open.combine.is_some());
        let bytes = match bytes_within_limits(&records, combines) {
            Ok(bytes) => bytes,
            Err(why) => return self.fail(attempt, why),
        };
        let memory = self
            .shuffles
            .get(&attempt.shuffle)
            .map_or(0, |open| memory_in(&open.bounds, memory_of(&records, combines), records.count()));
        if !self.has_room(now, attempt, memory) {
            return self.effects.push(Effect::Full(attempt, number));
        }
        let buffer = self.id.clone();
        self.counts.taken_records += records.count();
        self.counts.taken_bytes += bytes;
        let Some(held) = self.held(attempt) else { return };
        held.state = State::Writing { at: now, frames: number };
        held.taken = (held.taken.0 + records.count(), held.taken.1 + bytes);
        let key = AttemptKey { buffer, number: held.number };
        let segment = Segment { attempt: key, partition: attempt.partition, frame: number, records };
        let segment = match self.combine_frame(attempt, segment) {
            Ok(segment) => segment,
            Err(why) => return self.fail(attempt, why),
        };
        self.effects.push(Effect::Taken(attempt, number));
        self.chunk(now, attempt.shuffle, segment);
    }

    /// Takes records into the chunks of their slots.
    fn chunk(&mut self, now: Millis, shuffle: ShuffleId, segment: Segment) {
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return };
        let every = self.settings.sample_every.max(1);
        // Keys up to the next one that is sampled.
        let mut until = every - open.seen % every;
        open.seen += segment.records.count();
        open.sample_at = open.sample_at.min(now + self.settings.sample_ms);
        open.bytes += segment.bytes();
        open.records += segment.records.count();
        let (sketch, chunks, segments) = (&mut open.sketch, &mut open.chunks, &mut open.segments);
        let sample = |key: &[u8]| {
            until -= 1;
            if until == 0 {
                sketch.insert(key);
                until = every;
            }
        };
        let map = &self.map;
        self.divider.divide(segment, &open.bounds, sample, |tag, part| {
            *segments += 1;
            let chunk = chunks.entry(map.slot_of(shuffle, tag.range)).or_default();
            chunk.entry(tag).or_default().push(part);
        });
        let is_full = open.bytes >= self.settings.chunk_bytes;
        self.report_first(now, shuffle);
        if is_full && !self.waits_for_bounds(now, shuffle) && !self.combine_chunks(shuffle) {
            self.send_chunks(shuffle);
        }
    }

    fn end(&mut self, now: Millis, attempt: Attempt, said: (u64, u64)) {
        let Some(held) = self.held(attempt) else { return self.no_attempt(attempt) };
        match held.state {
            State::Writing { .. } if held.taken == said => {
                held.state = State::Ended { at: now, is_out: false };
                self.ended(now, attempt.shuffle);
            }
            State::Writing { .. } => {
                let seen = held.taken;
                self.fail(attempt, Failed::CountDiffers { said, seen });
            }
            State::Ended { .. } | State::Marking { .. } => {}
            State::Whole => self.answer(attempt, Ok(())),
        }
    }

    fn no_attempt(&mut self, attempt: Attempt) {
        match self.shuffles.get(&attempt.shuffle).is_some_and(|open| open.plan.is_some()) {
            true => self.answer_sealed(attempt),
            false => self.answer(attempt, Err(Failed::Unknown)),
        }
    }

    fn abort(&mut self, attempt: Attempt) {
        self.waits.remove_attempt(attempt);
        let is_open = self.held(attempt).is_some_and(|held| matches!(held.state, State::Writing { .. }));
        if is_open && let Some(open) = self.shuffles.get_mut(&attempt.shuffle) {
            open.remove((attempt.partition, attempt.id));
        }
    }

    /// Sends the marks of attempts whose batches are all stored.
    fn progress(&mut self, now: Millis, shuffle: ShuffleId) {
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return };
        let writer = Writer::Buffer(self.id.clone());
        let (home, durability, weight) = (self.map.home(shuffle), open.batch_durability(), open.weight);
        let out: Vec<(u32, AttemptId)> = open.out.iter().copied().collect();
        for attempt in out {
            let Some(held) = open.attempts.get_mut(&attempt) else {
                open.out.remove(&attempt);
                continue;
            };
            let State::Ended { at, is_out: true } = held.state else { continue };
            let stream = |slot: &PoolSlot| Stream { shuffle, slot: *slot, writer: writer.clone() };
            // What is stored stays so: those before it are not looked at again.
            let mut rest = held.last.range(held.waits_for..);
            if let Some((slot, _)) = rest.find(|(slot, last)| !self.sending.has_stored(&stream(slot), **last))
            {
                held.waits_for = *slot;
                continue;
            }
            let number = open.last.get(&home).copied().unwrap_or(0) + 1;
            open.last.insert(home, number);
            let (partition, id) = attempt;
            let key_of = AttemptKey { buffer: self.id.clone(), number: held.number };
            // The mark has it from now on: a whole attempt is kept as long as its shuffle.
            let (records, bytes, last) = (held.records, held.bytes, std::mem::take(&mut held.last));
            let mark = EndMark { attempt: key_of, partition, id, records, bytes, last };
            let key = BatchKey { stream: stream(&home), number };
            held.state = State::Marking { at, mark: key.clone() };
            open.out.remove(&attempt);
            open.unmarked.remove(&held.number);
            open.marking.insert(key.clone(), attempt);
            let batch = (Batch { key, durability, body: Body::Mark(mark) }, weight);
            self.sending.send(now, &self.map, &self.settings, batch, &mut self.out);
        }
    }

    fn word(&mut self, now: Millis, shuffle: ShuffleId, word: Word) {
        match word {
            Word::Open(bounds, durability) => {
                let is_new = self.learn_durability(shuffle, durability);
                self.bounds(shuffle, bounds);
                if is_new {
                    self.durability_is_known(shuffle);
                }
            }
            Word::Sealed(plan) => self.sealed(now, shuffle, plan),
            Word::Failed(_) => self.over(shuffle, Failed::ShuffleFailed),
            Word::Ended(how) => self.over(shuffle, Failed::Over(how)),
        }
    }

    fn bounds(&mut self, shuffle: ShuffleId, bounds: Arc<Bounds>) {
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return };
        if bounds.version <= open.bounds.version {
            return self.answered(shuffle);
        }
        // Without room for more segments what is held goes out as it is.
        let more = open.more_divided(&bounds);
        if self.memory().saturating_add(more) > self.most_memory() {
            self.flush(shuffle);
        }
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return };
        // Most ranges stay as they are: what is held of these needs no look at its keys.
        let held = open.take_up(Arc::new(Finder::new(bounds)));
        let parts = divide(held, &open.bounds, |tag: Tag| self.map.slot_of(shuffle, tag.range));
        open.add(parts);
        if open.flush_at != Millis::NEVER {
            self.flush(shuffle);
        }
    }

    /// What is not whole now is not needed; an attempt of a partition that has a winner has succeeded.
    fn sealed(&mut self, now: Millis, shuffle: ShuffleId, plan: Arc<Plan>) {
        let grace = self.settings.grace_ms;
        self.drop_outgoing(shuffle);
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return };
        if open.plan.is_some() {
            return;
        }
        open.plan = Some(plan);
        // The plan stays as long as the shuffle lives; what serves to write goes.
        open.chunks.clear();
        open.divisions.clear();
        (open.out, open.marking, open.unmarked, open.last) = Default::default();
        open.sketch = Sketch::new(self.settings.sketch_k, 0);
        (open.bytes, open.records, open.segments, open.writing) = (0, 0, 0, 0);
        (open.flush_at, open.sample_at) = (Millis::NEVER, now + grace);
        self.waits.remove(shuffle);
        let waiting = std::mem::take(&mut open.attempts).into_iter();
        let waiting = waiting.filter(|(_, held)| held.state != State::Whole);
        let waiting: Vec<_> =
            waiting.map(|((partition, id), _)| Attempt { shuffle, partition, id }).collect();
        self.sending.forget(|stream| stream.shuffle == shuffle);
        waiting.into_iter().for_each(|attempt| self.answer_sealed(attempt));
    }

    fn answer_sealed(&mut self, attempt: Attempt) {
        let plan = self.shuffles.get(&attempt.shuffle).and_then(|open| open.plan.as_ref());
        let mut winners = plan.into_iter().flat_map(|plan| plan.winners.values());
        let has_winner = winners.any(|winner| winner.partition == attempt.partition);
        self.answer(attempt, if has_winner { Ok(()) } else { Err(Failed::Sealed) });
    }

    /// Removes everything of the shuffle.
    fn over(&mut self, shuffle: ShuffleId, why: Failed) {
        self.sending.forget(|stream| stream.shuffle == shuffle);
        self.waits.remove(shuffle);
        self.drop_outgoing(shuffle);
        let Some(open) = self.shuffles.remove(&shuffle) else { return };
        for ((partition, id), held) in open.attempts {
            if held.state != State::Whole {
                self.answer(Attempt { shuffle, partition, id }, Err(why));
            }
        }
    }
}

/// What the records of a frame take in memory at most, in bytes: if they are combined, while that goes on.
fn memory_of(records: &PackedRecords, combines: bool) -> u64 {
    if combines { records.memory_apart() } else { records.memory() }
}

/// Keys and values of a frame, in bytes.
fn bytes_within_limits(records: &PackedRecords, combines: bool) -> Result<u64, Failed> {
    if let Some((key, value)) = records.iter().find(|(key, value)| is_large(key, value)) {
        return Err(Failed::TooLarge { key: key.len(), record: (key.len() + value.len()) as u64 });
    }
    let memory = memory_of(records, combines);
    match memory > limits::SHUFFLE_FRAME_BYTES as u64 {
        true => Err(Failed::FrameTooLarge { bytes: memory }),
        false => Ok(records.content_bytes()),
    }
}

/// What so many records of one frame, which take so much, take in memory at most when they are divided by these bounds.
fn memory_in(bounds: &Bounds, memory: u64, records: u64) -> u64 {
    MEMORY_OF_SEGMENT * bounds.most_parts(records) + memory
}

#[cfg(test)]
mod tests;
