//! Disks that fill, and what nodes ask the object store for.

use super::{Happening, World};
use crate::clock::MS;
use crate::shuffle::objects::ObjectCall;
use partage_core::base::id::Incarnation;
use partage_service::shuffle::holder::OffloadOutcome;
use partage_service::shuffle::plan::Plan;
use partage_service::shuffle::record::{Batch, BatchKey, Stream};
use partage_service::shuffle::{BufferId, PoolSlot, ShuffleId, holder};
use std::collections::BTreeMap;
use std::sync::Arc;

impl World {
    /// A disk fills or has room again, which only its node sees.
    pub(super) fn fills(&mut self) -> Result<(), String> {
        let rest = self.draw.between(50, 600) * MS;
        self.after(rest, Happening::Fills);
        let node = self.draw.index(self.nodes.len());
        let mut parts: BTreeMap<(ShuffleId, PoolSlot), u64> = BTreeMap::new();
        if self.draw.chance(800) {
            let copies = self.nodes[node].disk.batches.iter().map(|batch| &batch.key.stream);
            for stream in copies.filter(|stream| !stream.writer.is_objects()) {
                *parts.entry((stream.shuffle, stream.slot)).or_default() += 1;
            }
        }
        let stored = parts.into_iter().map(|((shuffle, slot), batches)| (shuffle, slot, batches));
        if self.now < self.nodes[node].paused || self.nodes[node].process.is_none() {
            return Ok(());
        }
        self.holder(node, holder::Event::MakeRoom(stored.collect()))
    }

    /// What a holder wants of the object store.
    pub(super) fn carry_out_of_objects(&mut self, node: usize, effect: holder::Effect) -> Result<(), String> {
        match effect {
            holder::Effect::Offload(plan, slot) => return self.offloads(node, &plan, slot),
            holder::Effect::DropCopies(shuffle, slot) => {
                self.oracle.copies_dropped((shuffle, slot), &self.nodes[node], &self.objects)?;
                self.nodes[node].disk.drop_written(|key| {
                    let stream = &key.stream;
                    (stream.shuffle, stream.slot) == (shuffle, slot) && !stream.writer.is_objects()
                });
            }
            holder::Effect::SeeObjects(shuffle, slot, by) => {
                self.asks_objects(node, ObjectCall::See(shuffle, slot, by));
            }
            holder::Effect::DeleteObjects(shuffle, slot) => {
                self.oracle.objects_deleted(shuffle, slot)?;
                self.asks_objects(node, ObjectCall::Delete(shuffle, slot));
            }
            holder::Effect::ListObjects(home) => self.asks_objects(node, ObjectCall::List(home)),
            other => return Err(format!("{other:?} is no order about objects")),
        }
        Ok(())
    }

    /// A node puts what a plan needs of a slot.
    fn offloads(&mut self, node: usize, plan: &Plan, slot: PoolSlot) -> Result<(), String> {
        let (life, shuffle) = (self.nodes[node].incarnation, plan.shuffle);
        if let Some(key) = self.nodes[node].disk.damaged_of(shuffle, slot) {
            self.nodes[node].disk.forget(&key);
            self.holder(node, holder::Event::Damaged(key))?;
            return self.holder(node, holder::Event::Offloaded(shuffle, slot, OffloadOutcome::Unreadable));
        }
        let disk = &self.nodes[node].disk;
        let needed = plan.needed.get(&slot).into_iter().flatten();
        let keys = needed.flat_map(|(writer, upto)| {
            let stream = Stream { shuffle, slot, writer: writer.clone() };
            (1..=*upto).map(move |number| BatchKey { stream: stream.clone(), number })
        });
        let batches: Option<Vec<Arc<Batch>>> = keys.map(|key| disk.get(&key).cloned()).collect();
        match batches {
            Some(batches) => {
                let by = BufferId { node: self.nodes[node].name.clone(), incarnation: life };
                self.asks_objects(node, ObjectCall::Put(shuffle, slot, by, batches));
                Ok(())
            }
            None => self.holder(node, holder::Event::Offloaded(shuffle, slot, OffloadOutcome::Unreadable)),
        }
    }

    /// A call is under way: it arrives, be it that the process ends.
    fn asks_objects(&mut self, node: usize, call: ObjectCall) {
        let is_slow = self.stopped.is_none() && self.draw.chance(100);
        let takes = self.draw.between(1, if is_slow { 5_000 } else { 60 }) * MS;
        let life = self.nodes[node].incarnation;
        self.after(takes, Happening::Objects(node, life, call));
    }

    /// What the object store does. One call in some it refuses, and says so though it may have done it.
    pub(super) fn object_store_does(&mut self, node: usize, life: Incarnation, call: ObjectCall) {
        let refuses = self.stopped.is_none() && self.draw.chance(self.weather.refused);
        let does = !refuses || self.draw.chance(500);
        let event = match call {
            ObjectCall::Put(shuffle, slot, by, batches) => {
                if does {
                    self.outcome.offloaded += 1;
                    self.objects.put((shuffle, slot, by), batches);
                } else if self.draw.chance(500) {
                    self.objects.put_some((shuffle, slot, by));
                }
                let outcome = if refuses { OffloadOutcome::Refused } else { OffloadOutcome::Durable };
                holder::Event::Offloaded(shuffle, slot, outcome)
            }
            ObjectCall::See(shuffle, slot, by) => {
                let is_blind = self.stopped.is_none() && self.weather.blind == Some(node);
                let sees = !refuses && !is_blind && self.objects.has(shuffle, slot, &by);
                holder::Event::ObjectsSeen(shuffle, slot, by, sees)
            }
            ObjectCall::Delete(shuffle, slot) => {
                if does {
                    self.objects.delete(shuffle, slot);
                }
                holder::Event::ObjectsDeleted(shuffle, slot, !refuses)
            }
            ObjectCall::List(_) if refuses => return,
            ObjectCall::List(home) => holder::Event::ObjectsFound(self.objects.list(&self.pool.map, home)),
        };
        let delay = self.draw.around(self.weather.delay);
        let at = (self.now + delay).max(self.nodes[node].paused);
        self.at(at, Happening::ObjectAnswer(node, life, event));
    }
}
