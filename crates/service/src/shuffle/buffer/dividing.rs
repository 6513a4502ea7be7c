//! What a division writes: batches of a writer of its own.

use super::open::{Divided, written_as};
use super::{Buffer, Effect, NodeId, ShuffleId, memory_in};
use crate::shuffle::bounds::{Finder, Tag};
use crate::shuffle::divider::divide;
use crate::shuffle::message::Message;
use crate::shuffle::plan::Division;
use crate::shuffle::record::{Batch, BatchKey, Body, Segment, Stream, Tagged, in_batches};
use crate::shuffle::{PoolSlot, TaskId, Terms, Writer};
use partage_core::base::time::Millis;
use std::sync::Arc;

impl Buffer {
    /// The leader has ordered a division that takes about so much memory. The buffer has it read if there is room for it;
    /// else the leader orders it again.
    pub(super) fn division_ordered(
        &mut self,
        now: Millis,
        leader: NodeId,
        division: Arc<Division>,
        memory: u64,
    ) {
        let (shuffle, slot, task) = (division.shuffle, division.slot, division.task);
        match self.shuffles.get(&shuffle) {
            Some(open) if open.plan.is_some() => {}
            Some(open) if open.divisions.contains_key(&task) => self.end_division(shuffle, task),
            _ => {
                if self.has_room_to_divide(now, (shuffle, Some(slot)), memory) {
                    self.effects.push(Effect::ReadDivision(leader, division));
                }
            }
        }
    }

    pub(super) fn divide(
        &mut self,
        now: Millis,
        leader: NodeId,
        division: &Division,
        segments: Vec<Segment>,
    ) {
        let Division { task, shuffle, slot, to, .. } = division;
        let open = self.shuffle(now, *shuffle, Terms::new(1, 1));
        // The plan names what divisions have written: an order that comes late writes none of these numbers again.
        if open.plan.is_some() {
            return;
        }
        if open.divisions.contains_key(task) {
            return self.end_division(*shuffle, *task);
        }
        // Without room it is not begun: the leader orders it again.
        let memory_of = |Segment { records, .. }: &Segment| memory_in(to, records.memory(), records.count());
        let memory: u64 = segments.iter().map(memory_of).sum();
        let waiter = (*shuffle, Some(*slot));
        if !self.has_room_to_divide(now, waiter, memory) {
            return;
        }
        self.waits.end(waiter);
        let to = Finder::new(to.clone());
        let parts = divide(segments, &to, |tag: Tag| self.map.slot_of(*shuffle, tag.range));
        let most = self.settings.batch_bytes;
        let parts: Vec<(PoolSlot, Vec<Tagged>)> =
            parts.into_iter().map(|(slot, tagged)| (slot, in_batches(tagged, most))).collect();
        let last = parts.iter().map(|(slot, batches)| (*slot, batches.len() as u64)).collect();
        if let Some(open) = self.shuffles.get_mut(shuffle) {
            open.divisions.insert(*task, Divided { leader, last });
            self.counts.divisions += 1;
        }
        let durability = written_as(division.durability);
        let weight = self.shuffles.get(shuffle).map_or(1, |open| open.weight);
        for (slot, batches) in parts {
            let stream = Stream { shuffle: *shuffle, slot, writer: Writer::Division(*task, self.id.clone()) };
            for (number, tagged) in (1..).zip(batches) {
                let key = BatchKey { stream: stream.clone(), number };
                let batch = (Batch { key, durability, body: Body::Records(tagged) }, weight);
                self.sending.send(now, &self.map, &self.settings, batch, &mut self.out);
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
