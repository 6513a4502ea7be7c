//! What a division writes: batches of a writer of its own.

use super::open::Divided;
use super::{Buffer, NodeId, ShuffleId};
use crate::shuffle::bounds::Tag;
use crate::shuffle::message::Message;
use crate::shuffle::plan::Division;
use crate::shuffle::record::{Batch, BatchKey, Body, Record, Segment, Stream, Tagged, divide, in_batches};
use crate::shuffle::{PoolSlot, TaskId, Terms, Writer};
use partage_core::base::time::Millis;

impl Buffer {
    pub(super) fn divide(
        &mut self,
        now: Millis,
        leader: NodeId,
        division: &Division,
        segments: Vec<Segment>,
    ) {
        let Division { task, shuffle, to, .. } = division;
        let open = self.shuffle(now, *shuffle, Terms::new(1, 1));
        // The plan names what divisions have written: an order that comes late writes none of these numbers again.
        if open.plan.is_some() {
            return;
        }
        if open.divisions.contains_key(task) {
            return self.end_division(*shuffle, *task);
        }
        // Without room it is not begun: the leader orders it again.
        let memory: u64 = segments.iter().flat_map(|segment| &segment.records).map(Record::memory).sum();
        let before = self.memory();
        if before > 0 && before + memory > self.settings.buffer_bytes {
            return self.make_room(now);
        }
        let parts = divide(segments, to, |tag: Tag| self.map.slot_of(*shuffle, tag.range));
        let most = self.settings.batch_bytes;
        let parts: Vec<(PoolSlot, Vec<Tagged>)> =
            parts.into_iter().map(|(slot, tagged)| (slot, in_batches(tagged, most))).collect();
        let last = parts.iter().map(|(slot, batches)| (*slot, batches.len() as u64)).collect();
        if let Some(open) = self.shuffles.get_mut(shuffle) {
            open.divisions.insert(*task, Divided { leader, last });
            self.counts.divisions += 1;
        }
        for (slot, batches) in parts {
            let stream = Stream { shuffle: *shuffle, slot, writer: Writer::Division(*task, self.id.clone()) };
            for (number, tagged) in (1..).zip(batches) {
                let key = BatchKey { stream: stream.clone(), number };
                let batch = Batch { key, body: Body::Records(tagged) };
                self.sending.send(now, &self.map, batch, &mut self.out);
            }
        }
        self.end_division(*shuffle, *task);
    }

    /// Tells the leader, if all that the division has written is stored.
    pub(super) fn end_division(&mut self, shuffle: ShuffleId, task: TaskId) {
        let Some(divided) = self.shuffles.get(&shuffle).and_then(|open| open.divisions.get(&task)) else {
            return;
        };
        let writer = Writer::Division(task, self.id.clone());
        let stream = |slot: &PoolSlot| Stream { shuffle, slot: *slot, writer: writer.clone() };
        if divided.last.iter().all(|(slot, last)| self.sending.has_stored(&stream(slot), *last)) {
            let message = Message::Divided(shuffle, task, self.id.clone(), divided.last.clone());
            self.out.push((divided.leader.clone(), message));
        }
    }
}
