//! What a division writes: batches of a writer of its own.

use super::open::{Divided, written_as};
use super::{Buffer, Effect, NodeId, ShuffleId, memory_in};
use crate::shuffle::bounds::Finder;
use crate::shuffle::message::Message;
use crate::shuffle::plan::Division;
use crate::shuffle::record::{Segment, Stream};
use crate::shuffle::{PoolSlot, TaskId, Terms, Writer};
use partage_core::base::time::Millis;
use std::collections::BTreeMap;
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
        let to = Arc::new(Finder::new(to.clone()));
        if let Some(open) = self.shuffles.get_mut(shuffle) {
            open.divisions.insert(*task, Divided { leader, last: BTreeMap::new(), is_out: false });
            open.outgoing.add_division((*task, written_as(division.durability)), to, segments);
            self.counts.divisions += 1;
        }
        self.goes_out(*shuffle);
    }

    /// Tells the leader, if all that the division has written is stored.
    pub(super) fn end_division(&mut self, shuffle: ShuffleId, task: TaskId) {
        let Some(divided) = self.shuffles.get(&shuffle).and_then(|open| open.divisions.get(&task)) else {
            return;
        };
        if !divided.is_out {
            return;
        }
        let writer = Writer::Division(task, self.id.clone());
        let stream = |slot: &PoolSlot| Stream { shuffle, slot: *slot, writer: writer.clone() };
        if divided.last.iter().all(|(slot, last)| self.sending.has_stored(&stream(slot), *last)) {
            let message = Message::Divided(shuffle, task, self.id.clone(), divided.last.clone());
            self.out.push((divided.leader.clone(), message));
        }
    }
}
