//! The threads that put slots of shuffles into the object store, list what is there, and delete it.

use super::packing::Packing;
use super::{ObjectError, Objects};
use crate::limits::{FOUND_AT_ONCE, INDEX_BYTES, OBJECT_JOBS};
use crate::node::inbox::{Done, EndsAtPanic, Inbox};
use crate::store::{BatchError, BatchReader};
use bytes::Bytes;
use partage_service::shuffle::holder::OffloadOutcome;
use partage_service::shuffle::plan::Plan;
use partage_service::shuffle::{BufferId, PoolSlot, ShuffleId};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// An order of the holder to the threads.
#[derive(Debug)]
pub(crate) enum ObjectJob {
    Put(Arc<Plan>, PoolSlot),
    See(ShuffleId, PoolSlot, BufferId),
    Delete(ShuffleId, PoolSlot),
    List(PoolSlot),
}

impl ObjectJob {
    /// What is said of one that was not done.
    fn failed(&self) -> Option<Done> {
        match self {
            ObjectJob::Put(plan, slot) => Some(Done::Offloaded(plan.shuffle, *slot, OffloadOutcome::Refused)),
            ObjectJob::See(shuffle, slot, by) => Some(Done::ObjectsSeen(*shuffle, *slot, by.clone(), false)),
            ObjectJob::Delete(shuffle, slot) => Some(Done::ObjectsDeleted(*shuffle, *slot, false)),
            // The home is listed again in its turn.
            ObjectJob::List(_) => None,
        }
    }
}

/// Why a slot of a shuffle was not put.
#[derive(Debug)]
enum NotPut {
    Batch(BatchError),
    Object(ObjectError),
    /// The index would be longer than readers read.
    TooMany,
    /// The node ends.
    Ends,
}

/// The threads, and the way to them. What is put is large: deletions do not wait for it.
#[derive(Debug)]
pub(crate) struct Offloading {
    objects: Arc<Objects>,
    inbox: Arc<Inbox>,
    puts: Option<SyncSender<ObjectJob>>,
    others: Option<SyncSender<ObjectJob>>,
    threads: Vec<JoinHandle<()>>,
}

/// What a thread works with.
#[derive(Debug, Clone)]
struct Work {
    objects: Arc<Objects>,
    reader: BatchReader,
    inbox: Arc<Inbox>,
    own: BufferId,
}

impl Offloading {
    /// With so many threads that put.
    pub(crate) fn start(
        (objects, reader): (Arc<Objects>, BatchReader),
        inbox: &Arc<Inbox>,
        own: BufferId,
        threads: usize,
    ) -> std::io::Result<Offloading> {
        let (puts, to_put) = sync_channel(OBJECT_JOBS);
        let (others, to_do) = sync_channel(OBJECT_JOBS);
        let work = Work { objects: Arc::clone(&objects), reader, inbox: Arc::clone(inbox), own };
        let mut offloading = Offloading {
            objects,
            inbox: Arc::clone(inbox),
            puts: Some(puts),
            others: Some(others),
            threads: Vec::new(),
        };
        let to_put = Arc::new(Mutex::new(to_put));
        for _ in 0..threads.max(1) {
            offloading.spawn(work.clone(), Arc::clone(&to_put))?;
        }
        offloading.spawn(work, Arc::new(Mutex::new(to_do)))?;
        Ok(offloading)
    }

    fn spawn(&mut self, work: Work, jobs: Arc<Mutex<Receiver<ObjectJob>>>) -> std::io::Result<()> {
        let guard = EndsAtPanic::new(&self.inbox, "puts objects");
        let run = move || {
            let _guard = guard;
            work.run(&jobs);
        };
        self.threads.push(std::thread::Builder::new().name("shuffle-objects".to_owned()).spawn(run)?);
        Ok(())
    }

    /// A shuffle has ended: what is kept to read it goes.
    pub(crate) fn forget(&self, shuffle: ShuffleId) {
        self.objects.forget(shuffle);
    }

    /// Hands a job over. One for which there is no room fails.
    pub(crate) fn job(&self, job: ObjectJob) {
        let to = if matches!(job, ObjectJob::Put(..)) { &self.puts } else { &self.others };
        let failed = job.failed();
        if to.as_ref().is_none_or(|to| to.try_send(job).is_err()) {
            failed.into_iter().for_each(|done| self.inbox.done(done));
        }
    }
}

impl Drop for Offloading {
    fn drop(&mut self) {
        (self.puts, self.others) = (None, None);
        self.objects.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Work {
    fn run(self, jobs: &Mutex<Receiver<ObjectJob>>) {
        loop {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(job) = job else { return };
            if self.inbox.is_closed() {
                return;
            }
            self.work(job);
        }
    }

    fn work(&self, job: ObjectJob) {
        let done = match &job {
            ObjectJob::Put(plan, slot) => {
                let outcome = match self.put(plan, *slot) {
                    Ok(()) => OffloadOutcome::Durable,
                    Err(NotPut::Ends) => return,
                    Err(error) => self.not_put(plan, *slot, error),
                };
                Some(Done::Offloaded(plan.shuffle, *slot, outcome))
            }
            ObjectJob::See(shuffle, slot, by) => {
                let are_there = self.objects.sees(*shuffle, *slot, by);
                Some(Done::ObjectsSeen(*shuffle, *slot, by.clone(), are_there))
            }
            ObjectJob::Delete(shuffle, slot) => match self.objects.delete(*shuffle, *slot) {
                Ok(()) => Some(Done::ObjectsDeleted(*shuffle, *slot, true)),
                Err(_) => job.failed(),
            },
            ObjectJob::List(home) => self.objects.found(*home, FOUND_AT_ONCE).ok().map(Done::ObjectsFound),
        };
        done.into_iter().for_each(|done| self.inbox.done(done));
    }

    fn not_put(&self, plan: &Plan, slot: PoolSlot, error: NotPut) -> OffloadOutcome {
        let (slot, shuffle) = (slot.0, plan.shuffle);
        match error {
            NotPut::Batch(BatchError::Damaged { key, place, damage }) => {
                self.inbox.done(Done::Damaged(key, *place, *damage));
                OffloadOutcome::Unreadable
            }
            NotPut::Batch(error) => {
                tracing::warn!("slot {slot} of shuffle {shuffle} is not put into the object store: {error}");
                OffloadOutcome::Unreadable
            }
            NotPut::TooMany => {
                tracing::warn!(
                    "slot {slot} of shuffle {shuffle} is not put into the object store: it has more ranges and records than an index of {INDEX_BYTES} bytes has room for; it stays on the disks"
                );
                OffloadOutcome::Unreadable
            }
            NotPut::Object(error) => {
                tracing::debug!("slot {slot} of shuffle {shuffle} is not put: {error}");
                OffloadOutcome::Refused
            }
            NotPut::Ends => OffloadOutcome::Refused,
        }
    }

    /// Puts what is read of the slot by the plan, one object after the other, and the index last.
    fn put(&self, plan: &Plan, slot: PoolSlot) -> Result<(), NotPut> {
        let folder = self.objects.folder(plan.shuffle, slot, &self.own).map_err(NotPut::Object)?;
        let (mut packing, mut refused) = (Packing::new(plan, slot), None);
        let needed = || plan.needed.get(&slot).into_iter().flatten();
        if packing.most_index_bytes(needed().count()) > INDEX_BYTES {
            return Err(NotPut::TooMany);
        }
        let wanted = needed().map(|(writer, upto)| (writer, 0, *upto));
        let read = self.reader.read_while((plan.shuffle, slot), wanted, |batch| {
            packing.add(batch);
            if packing.is_full() {
                refused = self.put_next(&folder, &mut packing).err();
            }
            refused.is_none()
        });
        match refused {
            Some(refused) => return Err(refused),
            None => read.map_err(NotPut::Batch)?,
        }
        self.put_next(&folder, &mut packing)?;
        let index = packing.layout().encode();
        // What was put goes with the shuffle.
        if index.len() as u64 > INDEX_BYTES {
            return Err(NotPut::TooMany);
        }
        self.put_object(&Objects::index(&folder), index)
    }

    fn put_next(&self, folder: &str, packing: &mut Packing<'_>) -> Result<(), NotPut> {
        match packing.object() {
            Some((number, bytes)) => self.put_object(&Objects::object(folder, number), bytes),
            None => Ok(()),
        }
    }

    fn put_object(&self, path: &str, bytes: Vec<u8>) -> Result<(), NotPut> {
        if self.inbox.is_closed() {
            return Err(NotPut::Ends);
        }
        let bytes = Bytes::from(bytes);
        let length = bytes.len() as u64;
        self.objects.noted("put", self.objects.place().put(path, bytes)).map_err(NotPut::Object)?;
        self.objects.counts.put_bytes.fetch_add(length, Ordering::Relaxed);
        Ok(())
    }
}
