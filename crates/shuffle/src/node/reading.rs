//! The threads that read batches: for readers, for other replicas, for divisions and counts.
//!
//! A reader takes a range in pieces. The records of the range are read, checked against the plan and put in order once, and kept
//! for the next piece while there is room: the order is final with the plan, so what is kept never changes.

use super::inbox::{Done, Inbox};
use crate::store::{BatchError, BatchReader};
use partage_core::base::id::Epoch;
use partage_core::base::name::NodeId;
use partage_service::shuffle::holder::{NotRead, Slice};
use partage_service::shuffle::message::Message;
use partage_service::shuffle::plan::{self, Division, Placed, Plan};
use partage_service::shuffle::record::{Batch, BatchKey};
use partage_service::shuffle::{PoolSlot, ShuffleId, TaskId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What is to be read.
#[derive(Debug)]
pub(crate) enum Job {
    Pass(NodeId, BatchKey),
    Divide(NodeId, Arc<Division>),
    Count(NodeId, Epoch, Arc<Plan>, PoolSlot),
    Read(u64, Slice),
}

/// What tells one job from another. What has no answer yet is ordered again and again: it is read once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum JobName {
    Pass(NodeId, BatchKey),
    Divide(TaskId),
    Count(ShuffleId, PoolSlot, Epoch),
    Read(u64),
}

impl Job {
    fn name(&self) -> JobName {
        match self {
            Job::Pass(to, key) => JobName::Pass(to.clone(), key.clone()),
            Job::Divide(_, division) => JobName::Divide(division.task),
            Job::Count(_, epoch, plan, slot) => JobName::Count(plan.shuffle, *slot, *epoch),
            Job::Read(number, _) => JobName::Read(*number),
        }
    }
}

/// The records of a range, in order.
type Sorted = Arc<Vec<Placed>>;

/// Ranges that were read, the ones that were used last.
#[derive(Debug, Default)]
struct Ranges {
    /// By shuffle and place of the range; with their bytes, and when each was used last.
    kept: BTreeMap<(ShuffleId, usize), (Sorted, u64, u64)>,
    bytes: u64,
    uses: u64,
    most_bytes: u64,
}

impl Ranges {
    fn get(&mut self, key: (ShuffleId, usize)) -> Option<Sorted> {
        self.uses += 1;
        let (sorted, _, used) = self.kept.get_mut(&key)?;
        *used = self.uses;
        Some(Arc::clone(sorted))
    }

    fn insert(&mut self, key: (ShuffleId, usize), sorted: &Sorted) {
        let bytes = plan::sizes(sorted).1;
        self.remove(key);
        while self.bytes + bytes > self.most_bytes {
            let oldest = self.kept.iter().min_by_key(|(_, (_, _, used))| *used).map(|(key, _)| *key);
            let Some(oldest) = oldest else { break };
            self.remove(oldest);
        }
        self.bytes += bytes;
        self.uses += 1;
        self.kept.insert(key, (Arc::clone(sorted), bytes, self.uses));
    }

    fn remove(&mut self, key: (ShuffleId, usize)) {
        if let Some((_, bytes, _)) = self.kept.remove(&key) {
            self.bytes -= bytes;
        }
    }

    fn remove_shuffle(&mut self, shuffle: ShuffleId) {
        let keys: Vec<_> =
            self.kept.range((shuffle, 0)..=(shuffle, usize::MAX)).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.remove(key));
    }
}

/// The threads, and the way to them.
#[derive(Debug)]
pub(crate) struct Reading {
    jobs: Option<SyncSender<Job>>,
    ranges: Arc<Mutex<Ranges>>,
    under_way: Arc<Mutex<BTreeSet<JobName>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Reading {
    pub(crate) fn start(
        reader: &BatchReader,
        inbox: &Arc<Inbox>,
        (most_jobs, threads, range_bytes): (usize, usize, u64),
    ) -> std::io::Result<Reading> {
        let (jobs, receiver) = sync_channel(most_jobs);
        let receiver = Arc::new(Mutex::new(receiver));
        let ranges = Arc::new(Mutex::new(Ranges { most_bytes: range_bytes, ..Ranges::default() }));
        let mut reading =
            Reading { jobs: Some(jobs), ranges, under_way: Arc::default(), threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let work = Work {
                reader: reader.clone(),
                inbox: Arc::clone(inbox),
                ranges: Arc::clone(&reading.ranges),
                under_way: Arc::clone(&reading.under_way),
            };
            let receiver = Arc::clone(&receiver);
            let thread = std::thread::Builder::new().name("shuffle-reader".to_owned());
            reading.threads.push(thread.spawn(move || work.run(&receiver))?);
        }
        Ok(reading)
    }

    /// Hands a job over; a job that is given back found too many before it.
    pub(crate) fn job(&self, job: Job) -> Result<(), Job> {
        let Some(jobs) = &self.jobs else { return Ok(()) };
        let name = job.name();
        if !lock(&self.under_way).insert(name.clone()) {
            return Ok(());
        }
        match jobs.try_send(job) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => {
                lock(&self.under_way).remove(&name);
                Err(job)
            }
        }
    }

    /// Nothing of the shuffle is kept.
    pub(crate) fn drop_shuffle(&self, shuffle: ShuffleId) {
        lock(&self.ranges).remove_shuffle(shuffle);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked while it had the lock has left a range or a name too many or too few: neither makes a wrong answer.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

struct Work {
    reader: BatchReader,
    inbox: Arc<Inbox>,
    ranges: Arc<Mutex<Ranges>>,
    under_way: Arc<Mutex<BTreeSet<JobName>>>,
}

impl Work {
    fn run(self, jobs: &Mutex<Receiver<Job>>) {
        loop {
            let job = lock(jobs).recv();
            let Ok(job) = job else { return };
            if self.inbox.is_closed() {
                return;
            }
            let name = job.name();
            self.work(job);
            lock(&self.under_way).remove(&name);
        }
    }

    fn work(&self, job: Job) {
        match job {
            Job::Pass(to, key) => match self.reader.read(&key) {
                Ok(batch) => self.inbox.done(Done::Passed(to, batch)),
                Err(error) => self.damaged(error),
            },
            Job::Divide(leader, division) => {
                if let Some(batches) = self.batches_of(&division) {
                    let segments = division.collect(&batches);
                    self.inbox.done(Done::Divided(leader, division, segments));
                }
            }
            Job::Count(leader, epoch, plan, slot) => {
                if let Some(batches) = self.batches(&plan, slot) {
                    let ranges = plan.ranges.iter().filter(|range| range.slot == slot);
                    let counts = ranges.map(|range| (range.id, plan::sizes(&plan.collect(range, &batches))));
                    let message = Message::Counted(plan.shuffle, epoch, slot, counts.collect());
                    self.inbox.done(Done::Counted(leader, message));
                }
            }
            Job::Read(number, slice) => {
                let answer = self.sorted(&slice).map(|sorted| slice.of(&sorted));
                self.inbox.done(Done::Read(number, answer));
            }
        }
    }

    fn damaged(&self, error: BatchError) {
        if let BatchError::Damaged { key, damage } = error {
            self.inbox.done(Done::Damaged(key, *damage));
        }
    }

    /// What a division reads: what was not divided before under one of its tags.
    fn batches_of(&self, division: &Division) -> Option<Vec<Arc<Batch>>> {
        let read = self.reader.read_slot((division.shuffle, division.slot), |writer, number| {
            let is_new = |before: &BTreeMap<_, u64>| before.get(writer).is_none_or(|before| number > *before);
            division.upto.get(writer).is_some_and(|upto| number <= *upto)
                && division.tags.values().any(is_new)
        });
        read.map_err(|error| self.damaged(error)).ok()
    }

    /// What a plan needs of a slot.
    fn batches(&self, plan: &Plan, slot: PoolSlot) -> Option<Vec<Arc<Batch>>> {
        let needed = plan.needed.get(&slot);
        let read = self.reader.read_slot((plan.shuffle, slot), |writer, number| {
            needed.and_then(|needed| needed.get(writer)).is_some_and(|upto| number <= *upto)
        });
        read.map_err(|error| self.damaged(error)).ok()
    }

    /// All records of the range of a slice, in order.
    fn sorted(&self, slice: &Slice) -> Result<Sorted, NotRead> {
        let plan = &slice.plan;
        let Some(range) = plan.ranges.get(slice.range) else { return Ok(Sorted::default()) };
        let key = (plan.shuffle, slice.range);
        let kept = lock(&self.ranges).get(key);
        if let Some(sorted) = kept {
            return Ok(sorted);
        }
        let batches = self.batches(plan, range.slot).ok_or(NotRead::Lacks)?;
        let sorted = Arc::new(plan.collect(range, &batches));
        plan.check(range, &sorted).map_err(|_| NotRead::Differs)?;
        lock(&self.ranges).insert(key, &sorted);
        Ok(sorted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(bytes: usize) -> Sorted {
        let value = vec![0; bytes].into();
        Arc::new(vec![Placed { key: Vec::new().into(), partition: 0, frame: 1, index: 0, value }])
    }

    #[test]
    fn r1_ranges_that_were_used_last_are_kept_up_to_the_limit() {
        let mut ranges = Ranges { most_bytes: 100, ..Ranges::default() };
        let key = |at| (ShuffleId(1), at);
        for at in 0..3 {
            ranges.insert(key(at), &range(40));
            assert!(ranges.get(key(0)).is_some());
        }
        assert_eq!(ranges.kept.keys().map(|(_, at)| *at).collect::<Vec<_>>(), [0, 2]);
        ranges.insert(key(9), &range(500));
        assert_eq!((ranges.kept.len(), ranges.bytes), (1, 500), "one is always kept");
        ranges.remove_shuffle(ShuffleId(1));
        assert_eq!((ranges.kept.len(), ranges.bytes), (0, 0));
    }
}
