//! What the machines want done.

use super::{Ends, EventLoop, Result};
use crate::node::inbox::Note;
use crate::node::reading::Job;
use crate::node::storing::Order;
use crate::objects::ObjectJob;
use partage_core::base::name::NodeId;
use partage_service::shuffle::holder::{self, NotRead};
use partage_service::shuffle::plan::Division;
use partage_service::shuffle::record::{Batch, BatchKey};
use partage_service::shuffle::{PoolSlot, buffer};
use std::sync::Arc;

impl EventLoop {
    pub(super) fn buffer(&mut self, event: buffer::Event) -> Result {
        let now = self.now();
        for effect in self.buffer.handle(now, event) {
            match effect {
                buffer::Effect::Send(to, message) => self.send(to, message),
                buffer::Effect::Answer(attempt, answer) => {
                    if let Some(since) = self.ending.remove(&attempt)
                        && answer.is_ok()
                    {
                        self.shared.counters.acknowledged.add(now.since(since));
                    }
                    if let Some(client) = self.attempts.remove(&attempt) {
                        client.tell(Note::Answer(answer));
                    }
                }
                buffer::Effect::Taken(attempt, number) => self.note(&attempt, Note::Taken(number)),
                buffer::Effect::Full(attempt, number) => self.note(&attempt, Note::Full(number)),
                buffer::Effect::ReadDivision(leader, division) => self.read(Job::Divide(leader, division)),
            }
        }
        Ok(())
    }

    /// A client that does not listen asks again.
    fn note(&self, attempt: &buffer::Attempt, note: Note) {
        if let Some(client) = self.attempts.get(attempt) {
            client.tell(note);
        }
    }

    pub(super) fn holder(&mut self, event: holder::Event) -> Result {
        let now = self.now();
        let effects = self.holder.handle(now, event);
        effects.into_iter().try_for_each(|effect| self.carry_out(effect))
    }

    fn carry_out(&mut self, effect: holder::Effect) -> Result {
        match effect {
            holder::Effect::Store(batch) => self.store(batch),
            holder::Effect::Send(to, message) => self.send(to, message),
            holder::Effect::Pass(to, key) => self.read(Job::Pass(to, key)),
            holder::Effect::Divide(leader, division) => return self.divide(leader, division),
            holder::Effect::Count(leader, epoch, plan, slot) => {
                self.read(Job::Count(leader, epoch, plan, slot));
            }
            holder::Effect::Read(number, slice) => self.read(Job::Read(number, slice, self.now())),
            holder::Effect::Seek(number, seek) => self.read(Job::Seek(number, seek, self.now())),
            holder::Effect::NotRead(number, why) => self.answer_read(number, Err(why)),
            holder::Effect::DropSlot(slot) => return self.drop_slot(slot),
            holder::Effect::DropShuffle(shuffle) => {
                self.offloading.iter().for_each(|offloading| offloading.forget(shuffle));
                self.storing.order(Order::DropShuffle(shuffle));
            }
            holder::Effect::Ready(slot, epoch) => self.transport.ready(slot, epoch),
            holder::Effect::Offload(plan, slot) => self.objects(ObjectJob::Put(plan, slot)),
            holder::Effect::SeeObjects(shuffle, slot, by) => self.objects(ObjectJob::See(shuffle, slot, by)),
            holder::Effect::DropCopies(shuffle, slot) => self.storing.order(Order::DropCopies(shuffle, slot)),
            holder::Effect::DeleteObjects(shuffle, slot) => self.objects(ObjectJob::Delete(shuffle, slot)),
            holder::Effect::ListObjects(home) => self.objects(ObjectJob::List(home)),
        }
        Ok(())
    }

    /// The holder orders none without an object store.
    fn objects(&self, job: ObjectJob) {
        if let Some(offloading) = &self.offloading {
            offloading.job(job);
        }
    }

    fn store(&mut self, batch: Arc<Batch>) {
        self.stored_soon.insert(&batch);
        self.storing.order(Order::Store(batch));
    }

    /// It is read when the buffer has room for it: a division that the buffer has begun is not read again.
    fn divide(&mut self, leader: NodeId, division: Arc<Division>) -> Result {
        let bytes = |key: &BatchKey| self.reading.place(key).map_or(0, |place| place.bytes as u64);
        let memory = division.batches().map(|key| bytes(&key)).sum();
        self.buffer(buffer::Event::DivisionOrdered(leader, division, memory))
    }

    /// Of what is not taken the machines ask again; a reader hears that the node is busy.
    fn read(&mut self, job: Job) {
        if let Err(Job::Read(number, ..) | Job::Seek(number, ..)) = self.reading.job(job) {
            self.answer_read(number, Err(NotRead::Busy));
        }
    }

    /// What an earlier stay of the replica had taken of decisions counts no more.
    pub(super) fn begin_load(&mut self, slot: PoolSlot) -> Result {
        self.decisions.forget(slot).map_err(|error| Ends(error.to_string()))?;
        self.holder(holder::Event::LoadBegins(slot))
    }

    pub(super) fn delete_slot(&mut self, slot: PoolSlot) -> Result {
        self.drop_leader(slot)?;
        self.holder(holder::Event::SlotDeleted(slot))?;
        self.decisions.forget_epochs(slot).map_err(|error| Ends(error.to_string()))
    }

    fn drop_slot(&mut self, slot: PoolSlot) -> Result {
        self.storing.order(Order::DropSlot(slot));
        self.decisions.forget(slot).map_err(|error| Ends(error.to_string()))
    }
}
