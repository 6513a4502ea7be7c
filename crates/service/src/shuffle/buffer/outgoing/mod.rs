//! What goes out, a little of it at a time.
//!
//! To make the batches of a full chunk takes long: all of it is copied. So a chunk that is to go out is moved aside, and each
//! call makes batches of a part of it, until all are sent. Shuffles take turns, by bytes: one of which little goes out is not
//! behind one that floods.
//!
//! | part | what becomes of it |
//! |---|---|
//! | records in a slot | batches of the stream of the buffer there, or of a division |
//! | the end of a chunk, with the attempts that had ended | their marks follow when all that is before it is stored |
//! | what a division has read | it is divided, some segments in each call; then come the records in slots |
//! | the end of a division | its leader hears of it when all that is before it is stored |
//!
//! The parts of a shuffle go out in their order. What is aside counts as memory until its batch counts as under way. Parts of a
//! frame share its bytes, which stay until the last of them is copied: so of large chunks one is out before another one begins,
//! whatever turn it is.
//!
//! What was not done: records that are aside when bounds come are not divided by these, as those that are out already are not.

use super::open::{Open, State, memory_in_all};
use super::{Buffer, ShuffleId};
use crate::shuffle::bounds::Finder;
use crate::shuffle::record::{Batch, BatchKey, Body, Queued, Segment, Stream, Tagged, next_batch, queued};
use crate::shuffle::turns::cost;
use crate::shuffle::{AttemptId, Durability, PoolSlot, TaskId, Writer};
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Who writes the batches.
#[derive(Debug, Clone, Copy)]
enum Origin {
    /// The buffer, for attempts.
    Attempts,
    /// A division, and how durable its batches are.
    Division(TaskId, Durability),
}

/// Segments that a division has read, and those of them that are divided.
#[derive(Debug, Clone)]
struct Undivided {
    origin: Origin,
    to: Arc<Finder>,
    segments: VecDeque<Segment>,
    parts: BTreeMap<PoolSlot, Tagged>,
}

#[derive(Debug, Clone)]
enum Part {
    Records(Origin, PoolSlot, Queued),
    /// The numbers of attempts that had ended: all that they have sent is before this.
    EndOfChunk(Vec<u64>),
    Undivided(Box<Undivided>),
    EndOfDivision(TaskId),
}

impl Part {
    fn is_end(&self) -> bool {
        matches!(self, Part::EndOfChunk(_) | Part::EndOfDivision(_))
    }
}

/// What goes out of one shuffle.
#[derive(Debug, Clone, Default)]
pub(super) struct Outgoing {
    parts: VecDeque<Part>,
    /// Its place where shuffles take turns, while it has parts.
    place: Option<u64>,
    /// Keys and values, in bytes, how many records have them, and in how many segments at most.
    bytes: u64,
    records: u64,
    segments: u64,
}

impl Outgoing {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn memory(&self) -> u64 {
        memory_in_all(self.bytes, self.records, self.segments)
    }

    /// An attempt ends without success: what is aside of it need not go out. Of a division nothing is dropped: others may have
    /// winners with these numbers.
    pub(super) fn drop_records(&mut self, number: u64) {
        let Outgoing { parts, bytes, records, segments, .. } = self;
        for part in parts {
            let Part::Records(Origin::Attempts, _, queued) = part else { continue };
            for all in queued.values_mut() {
                all.retain(|segment| {
                    let stays = segment.attempt.number != number;
                    if !stays {
                        *bytes -= segment.bytes();
                        *records -= segment.records.count();
                        *segments -= 1;
                    }
                    stays
                });
            }
            queued.retain(|_, all| !all.is_empty());
        }
    }

    /// What a division has read goes out, divided by these bounds.
    pub(super) fn add_division(
        &mut self,
        (task, durability): (TaskId, Durability),
        to: Arc<Finder>,
        segments: Vec<Segment>,
    ) {
        for segment in &segments {
            self.bytes += segment.bytes();
            self.records += segment.records.count();
            self.segments += to.most_parts(segment.records.count());
        }
        let (origin, segments, parts) =
            (Origin::Division(task, durability), VecDeque::from(segments), BTreeMap::new());
        self.parts.push_back(Part::Undivided(Box::new(Undivided { origin, to, segments, parts })));
        self.parts.push_back(Part::EndOfDivision(task));
    }
}

impl Open {
    /// All that is held goes out from now on.
    pub(super) fn move_aside(&mut self) {
        let has_ended = |key: &(u32, AttemptId)| {
            let held = self.attempts.get(key);
            held.is_some_and(|held| matches!(held.state, State::Ended { is_out: false, .. }))
        };
        let ended = self.unmarked.iter().filter(|(_, key)| has_ended(key));
        let ended: Vec<u64> = ended.map(|(number, _)| *number).collect();
        if self.chunks.is_empty() && ended.is_empty() {
            return;
        }
        let out = &mut self.outgoing;
        for (slot, tagged) in std::mem::take(&mut self.chunks) {
            out.parts.push_back(Part::Records(Origin::Attempts, slot, queued(tagged)));
        }
        out.parts.push_back(Part::EndOfChunk(ended));
        out.bytes += std::mem::take(&mut self.bytes);
        out.records += std::mem::take(&mut self.records);
        out.segments += std::mem::take(&mut self.segments);
    }
}

impl Buffer {
    /// Sends what is held of a shuffle.
    pub(super) fn flush(&mut self, shuffle: ShuffleId) {
        self.combine_chunks(shuffle);
        self.send_chunks(shuffle);
    }

    /// The same, as it is.
    pub(super) fn send_chunks(&mut self, shuffle: ShuffleId) {
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return };
        (open.flush_at, open.put_off) = (Millis::NEVER, None);
        self.counts.flushes += u64::from(open.records > 0);
        open.move_aside();
        self.goes_out(shuffle);
    }

    /// Something of the shuffle goes out: it gets its turn, in this call first.
    pub(super) fn goes_out(&mut self, shuffle: ShuffleId) {
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return };
        if open.outgoing.place.is_none() && !open.outgoing.parts.is_empty() {
            open.outgoing.place = Some(self.turns.push(shuffle, (), 0));
        }
        self.sends = true;
    }

    /// Nothing of the shuffle goes out any more.
    pub(super) fn drop_outgoing(&mut self, shuffle: ShuffleId) {
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return };
        if let Some(place) = std::mem::take(&mut open.outgoing).place {
            self.turns.remove(&shuffle, place);
        }
        self.half_out = self.half_out.filter(|half| *half != shuffle);
    }

    /// Makes batches of some of what goes out, and sends them. [`Buffer::wake_at`] says that there is more.
    pub(super) fn send_some(&mut self, now: Millis) {
        self.sends = false;
        let mut made = 0;
        while made < self.settings.sent_at_once
            && let Some(shuffle) = self.next_to_send()
        {
            let (memory, is_end) = self.send_part(now, shuffle);
            made += memory;
            match self.half_out {
                Some(half) if half == shuffle && is_end => self.half_out = None,
                None if !is_end => self.half_out = Some(shuffle),
                _ => {}
            }
            let weight = self.shuffles.get(&shuffle).map_or(1, |open| open.weight);
            self.turns.charge(&shuffle, cost(memory, weight));
            self.end_turns(shuffle);
        }
    }

    /// Whose turn it is. While a chunk is half out only shuffles go besides of which no more does than goes out at once: what is
    /// half out keeps the frames that it came in.
    fn next_to_send(&self) -> Option<ShuffleId> {
        let most = self.settings.sent_at_once;
        let is_little = |shuffle: &ShuffleId| {
            self.shuffles.get(shuffle).is_none_or(|open| open.outgoing.memory() <= most)
        };
        let may_go =
            |shuffle: &ShuffleId| self.half_out.is_none_or(|half| half == *shuffle) || is_little(shuffle);
        self.turns.first_if(may_go).copied()
    }

    /// A shuffle of which nothing goes out now takes no turns.
    fn end_turns(&mut self, shuffle: ShuffleId) {
        if self.shuffles.get(&shuffle).is_some_and(|open| open.outgoing.parts.is_empty()) {
            self.drop_outgoing(shuffle);
        }
    }

    /// Sends the next batch of a shuffle, or does what comes between two. The answer is what that takes in memory, and whether
    /// it was the end of a chunk, or of a division.
    fn send_part(&mut self, now: Millis, shuffle: ShuffleId) -> (u64, bool) {
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return (0, true) };
        let Some(part) = open.outgoing.parts.pop_front() else { return (0, true) };
        let is_end = part.is_end();
        let memory = match part {
            Part::Records(origin, slot, mut queued) => {
                let tagged = next_batch(&mut queued, self.settings.batch_bytes);
                if !queued.is_empty() {
                    open.outgoing.parts.push_front(Part::Records(origin, slot, queued));
                }
                self.send_batch(now, shuffle, (origin, slot), tagged)
            }
            Part::EndOfChunk(ended) => {
                for key in ended.iter().filter_map(|number| open.unmarked.get(number)) {
                    let state = open.attempts.get_mut(key).map(|held| &mut held.state);
                    if let Some(State::Ended { is_out, .. }) = state {
                        *is_out = true;
                        open.out.insert(*key);
                    }
                }
                self.progress(now, shuffle);
                0
            }
            Part::Undivided(undivided) => self.divide_some(shuffle, undivided),
            Part::EndOfDivision(task) => {
                if let Some(divided) = open.divisions.get_mut(&task) {
                    divided.is_out = true;
                }
                self.end_division(shuffle, task);
                0
            }
        };
        (memory, is_end)
    }

    /// The next batch of a stream. The answer is what it takes in memory.
    fn send_batch(
        &mut self,
        now: Millis,
        shuffle: ShuffleId,
        (origin, slot): (Origin, PoolSlot),
        tagged: Tagged,
    ) -> u64 {
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return 0 };
        // What there was of it was of attempts that have failed since.
        if tagged.is_empty() {
            return 0;
        }
        let said = open.batch_durability();
        let (last, writer, durability) = match origin {
            Origin::Attempts => (&mut open.last, Writer::Buffer(self.id.clone()), said),
            Origin::Division(task, durability) => {
                let Some(divided) = open.divisions.get_mut(&task) else { return 0 };
                (&mut divided.last, Writer::Division(task, self.id.clone()), durability)
            }
        };
        let number = last.get(&slot).copied().unwrap_or(0) + 1;
        last.insert(slot, number);
        if let Origin::Attempts = origin {
            let inside: BTreeSet<u64> =
                tagged.values().flatten().map(|segment| segment.attempt.number).collect();
            for key in inside.iter().filter_map(|inside| open.unmarked.get(inside)) {
                if let Some(held) = open.attempts.get_mut(key) {
                    held.last.insert(slot, number);
                }
            }
        }
        let key = BatchKey { stream: Stream { shuffle, slot, writer }, number };
        let batch = Batch { key, durability, body: Body::Records(tagged) };
        let (bytes, records, segments) = (batch.bytes(), batch.records(), batch.segments());
        let out = &mut open.outgoing;
        (out.bytes, out.records, out.segments) =
            (out.bytes - bytes, out.records - records, out.segments - segments);
        let batch = (batch, open.weight);
        self.sending.send(now, &self.map, &self.settings, batch, &mut self.out);
        memory_in_all(bytes, records, segments)
    }

    /// Divides some of what a division has read. When all of it is divided, its batches follow. The answer is what was divided,
    /// in bytes of memory.
    fn divide_some(&mut self, shuffle: ShuffleId, mut undivided: Box<Undivided>) -> u64 {
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return 0 };
        let (out, map, mut memory) = (&mut open.outgoing, &self.map, 0);
        let to = Arc::clone(&undivided.to);
        let Undivided { segments, parts, .. } = &mut *undivided;
        while memory < self.settings.sent_at_once
            && let Some(segment) = segments.pop_front()
        {
            memory += memory_in_all(segment.bytes(), segment.records.count(), 1);
            out.segments -= to.most_parts(segment.records.count());
            self.divider.divide(
                segment,
                &to,
                |_| (),
                |tag, part| {
                    out.segments += 1;
                    let tagged = parts.entry(map.slot_of(shuffle, tag.range)).or_default();
                    tagged.entry(tag).or_default().push(part);
                },
            );
        }
        if undivided.segments.is_empty() {
            let Undivided { origin, parts, .. } = *undivided;
            for (slot, tagged) in parts.into_iter().rev() {
                out.parts.push_front(Part::Records(origin, slot, queued(tagged)));
            }
        } else {
            out.parts.push_front(Part::Undivided(undivided));
        }
        memory
    }
}

#[cfg(test)]
mod tests;
