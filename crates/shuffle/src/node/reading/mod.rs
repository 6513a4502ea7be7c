//! The threads that read batches: for readers, for other replicas, for divisions and counts.
//!
//! A reader takes a range in pieces. The records of the range are read, checked against the plan and put in order once, and kept
//! for the next piece, and for readers that ask where cuts fall in it: the order is final with the plan, so what is kept never
//! changes, and all readers of the range share it.
//!
//! | a range | is kept | sorted by |
//! |---|---|---|
//! | for which the memory has room | in memory (`ranges.rs`) | the thread that reads it first |
//! | that is larger: of one key, say, or under bounds that a sample misled | in a file (`sorted_file.rs`) | a thread of its own (`sorter.rs`); until it is done readers hear so, and ask again |
//! | that lies in the object store, which may be slow, or not answer | in memory or in a file, as the others | threads for what comes from there; readers hear so, and ask again |
//!
//! No other thread asks the object store: one that finds that a range has gone there while it read hands it over to these.
//!
//! So no input makes reading take more memory than its limit, besides the batches that the threads have at hand, and one record.

mod ranges;
mod sorted_file;
mod sorter;

pub(crate) use ranges::{Ranges, ReadingUse, TakenMemory};

use super::inbox::{Done, EndsAtPanic, Inbox};
use crate::limits;
use crate::store::{BatchError, BatchReader, Place, RangeSource};
use partage_clock::Clock;
use partage_core::base::id::Epoch;
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_service::shuffle::holder::{NotRead, Slice};
use partage_service::shuffle::message::Message;
use partage_service::shuffle::ordered_records::OrderedRecords;
use partage_service::shuffle::plan::{Division, Plan, PlanRange};
use partage_service::shuffle::record::{Batch, BatchKey, MEMORY_OF_SEGMENT, Segment};
use partage_service::shuffle::seek::{self, Seek};
use partage_service::shuffle::{PoolSlot, RangeId, ShuffleId, TaskId};
use ranges::{Found, Turn};
use sorted_file::SortedFile;
use sorter::Sorter;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What is to be read.
#[derive(Debug)]
pub(crate) enum Job {
    Pass(NodeId, BatchKey),
    Divide(NodeId, Arc<Division>),
    Count(NodeId, Epoch, Arc<Plan>, PoolSlot),
    /// With the time at which it was asked for.
    Read(u64, Slice, Millis),
    Seek(u64, Seek, Millis),
}

/// What tells one job from another. What has no answer yet is ordered again and again: it is read once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum JobName {
    Pass(NodeId, BatchKey),
    Divide(ShuffleId, PoolSlot, TaskId),
    Count(ShuffleId, PoolSlot, Epoch),
    Read(u64),
}

impl Job {
    fn name(&self) -> JobName {
        match self {
            Job::Pass(to, key) => JobName::Pass(to.clone(), key.clone()),
            Job::Divide(_, division) => JobName::Divide(division.shuffle, division.slot, division.task),
            Job::Count(_, epoch, plan, slot) => JobName::Count(plan.shuffle, *slot, *epoch),
            Job::Read(number, ..) | Job::Seek(number, ..) => JobName::Read(*number),
        }
    }
}

/// The numbers that reading runs by.
#[derive(Debug, Clone)]
pub(crate) struct ReadingSettings {
    /// Jobs that wait, and ranges that wait to be sorted on disk.
    pub(crate) jobs: usize,
    /// Threads that read. One more sorts on disk, and with an object store there are others for what comes from there.
    pub(crate) threads: usize,
    /// Memory of ranges and divisions, in bytes.
    pub(crate) range_bytes: u64,
    /// Memory of one answer, in bytes.
    pub(crate) answer_bytes: u64,
    /// Bytes of files of sorted ranges.
    pub(crate) file_bytes: u64,
    /// Nobody waits for an answer any more after this time, in milliseconds.
    pub(crate) wait_ms: u64,
    /// After so long without a reader a range is not kept, in milliseconds.
    pub(crate) idle_ms: u64,
    /// Where these files are.
    pub(crate) folder: PathBuf,
}

impl ReadingSettings {
    /// What a sort on disk takes in memory, and a division.
    pub(crate) fn part(&self) -> u64 {
        self.range_bytes / 4
    }

    /// Whether a range is sorted on disk: a sort in memory has room beside one on disk, and readers wait for it.
    pub(crate) fn is_large(&self, range: &PlanRange) -> bool {
        range.sorting_memory() > (self.range_bytes - self.part()).min(limits::SORTED_IN_MEMORY_BYTES)
    }
}

/// A range that another thread sorts, by its place.
#[derive(Debug)]
struct Order {
    plan: Arc<Plan>,
    range: usize,
    turn: Turn,
}

/// The ways to the threads for ranges that are large, and for those that come from the object store: these hold up no others.
#[derive(Debug, Clone)]
struct Sorters {
    large: SyncSender<Order>,
    of_objects: Option<OfObjects>,
}

#[derive(Debug, Clone)]
struct OfObjects {
    small: SyncSender<Order>,
    large: SyncSender<Order>,
}

impl Sorters {
    /// Which one sorts a range. None: the thread that reads it.
    fn of(&self, is_large: bool, is_offloaded: bool) -> Option<&SyncSender<Order>> {
        match &self.of_objects {
            Some(of_objects) if is_offloaded => {
                Some(if is_large { &of_objects.large } else { &of_objects.small })
            }
            _ => is_large.then_some(&self.large),
        }
    }
}

/// Why a range is not in order.
#[derive(Debug)]
enum NotSorted {
    /// It has gone to the object store, from which this thread does not read.
    Moved,
    Refused(NotRead),
}

/// The threads, and the way to them.
#[derive(Debug)]
pub(crate) struct Reading {
    reader: BatchReader,
    jobs: Option<SyncSender<Job>>,
    ranges: Arc<Ranges>,
    under_way: Arc<Mutex<BTreeSet<JobName>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Reading {
    pub(crate) fn start(
        reader: &BatchReader,
        inbox: &Arc<Inbox>,
        clock: Clock,
        settings: &ReadingSettings,
    ) -> std::io::Result<Reading> {
        let (jobs, receiver) = sync_channel(settings.jobs);
        let (large, sorts) = sync_channel(settings.jobs);
        let receiver = Arc::new(Mutex::new(receiver));
        let ranges = Arc::new(Ranges::new(settings.range_bytes, settings.file_bytes));
        let (reader, under_way) = (reader.clone(), Arc::default());
        let mut reading = Reading { reader, jobs: Some(jobs), ranges, under_way, threads: Vec::new() };
        let work = Work {
            reader: reading.reader.clone(),
            inbox: Arc::clone(inbox),
            clock,
            ranges: Arc::clone(&reading.ranges),
            settings: settings.clone(),
            source: RangeSource::Disk,
        };
        let of_objects = match reading.reader.has_objects() {
            true => Some(reading.start_of_objects(&work, inbox)?),
            false => None,
        };
        let large_of_objects = of_objects.as_ref().map(|of_objects| of_objects.large.clone());
        let sorters = Sorters { large, of_objects };
        for _ in 0..settings.threads.max(1) {
            let (work, receiver, sorters) = (work.clone(), Arc::clone(&receiver), sorters.clone());
            let under_way = Arc::clone(&reading.under_way);
            reading.spawn("shuffle-reader", inbox, move || work.run(&receiver, &under_way, &sorters))?;
        }
        // The threads that sort end when those that read have.
        let sort = move || work.sort_ranges(&sorts, large_of_objects.as_ref());
        reading.spawn("shuffle-sorter", inbox, sort)?;
        Ok(reading)
    }

    /// The threads for ranges that come from the object store.
    fn start_of_objects(&mut self, work: &Work, inbox: &Arc<Inbox>) -> std::io::Result<OfObjects> {
        // What waits has its memory already: one that finds no room is asked for again.
        let (small, reads) = sync_channel(1);
        let (large, sorts) = sync_channel(work.settings.jobs);
        let reads = Arc::new(Mutex::new(reads));
        let work = Work { source: RangeSource::DiskAndObjects, ..work.clone() };
        for _ in 0..limits::OBJECT_READERS {
            let (work, reads) = (work.clone(), Arc::clone(&reads));
            self.spawn("shuffle-object-reader", inbox, move || work.read_ranges(&reads))?;
        }
        self.spawn("shuffle-object-sorter", inbox, move || work.sort_ranges(&sorts, None))?;
        Ok(OfObjects { small, large })
    }

    fn spawn(
        &mut self,
        name: &str,
        inbox: &Arc<Inbox>,
        run: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let guard = EndsAtPanic::new(inbox, "reads batches");
        let run = move || {
            let _guard = guard;
            run();
        };
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(run)?);
        Ok(())
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

    /// Where a batch lies. None: it is not here.
    pub(crate) fn place(&self, key: &BatchKey) -> Option<Place> {
        self.reader.place(key)
    }

    /// The ranges that it keeps.
    pub(crate) fn ranges(&self) -> Arc<Ranges> {
        Arc::clone(&self.ranges)
    }

    /// What it takes of memory and disk.
    pub(crate) fn uses(&self) -> ReadingUse {
        self.ranges.uses()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked while it had the lock has left a name too many or too few: that makes no wrong answer.
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

/// What a thread works with.
#[derive(Debug, Clone)]
struct Work {
    reader: BatchReader,
    inbox: Arc<Inbox>,
    clock: Clock,
    ranges: Arc<Ranges>,
    settings: ReadingSettings,
    /// Where it reads ranges.
    source: RangeSource,
}

impl Work {
    fn run(self, jobs: &Mutex<Receiver<Job>>, under_way: &Mutex<BTreeSet<JobName>>, sorters: &Sorters) {
        loop {
            let job = lock(jobs).recv();
            let Ok(job) = job else { return };
            if self.inbox.is_closed() {
                return;
            }
            let name = job.name();
            self.work(job, sorters);
            lock(under_way).remove(&name);
        }
    }

    fn work(&self, job: Job, sorters: &Sorters) {
        match job {
            Job::Pass(to, key) => match self.reader.read(&key) {
                Ok(batch) => self.inbox.done(Done::Passed(to, batch)),
                Err(error) => self.damaged(error),
            },
            Job::Divide(leader, division) => {
                // The leader orders no more batches than have about this in keys and values.
                let mut taken = self.ranges.take(self.settings.part());
                if let Some(segments) = self.segments(&division, &mut taken) {
                    self.inbox.done(Done::Divided(leader, division, segments, taken));
                }
            }
            Job::Count(leader, epoch, plan, slot) => {
                if let Some(counts) = self.counts(&plan, slot) {
                    let message = Message::Counted(plan.shuffle, epoch, slot, counts);
                    self.inbox.done(Done::Counted(leader, message));
                }
            }
            // Who asked has asked somebody else, or will ask again.
            Job::Read(number, _, asked) | Job::Seek(number, _, asked) if self.is_late(asked) => {
                self.inbox.done(Done::Read(number, Err(NotRead::Busy)));
            }
            Job::Read(number, slice, _) => {
                let answer = self.slice(&slice, sorters);
                self.inbox.done(Done::Read(number, answer));
            }
            Job::Seek(number, seek, _) => self.inbox.done(match self.seek(&seek, sorters) {
                Ok(found) => Done::Found(number, found),
                Err(why) => Done::Read(number, Err(why)),
            }),
        }
    }

    fn is_late(&self, asked: Millis) -> bool {
        self.clock.now().since(asked) >= self.settings.wait_ms
    }

    /// Says when a batch is damaged. Of one that is not here the machine knows, or will: what wanted it is asked for again.
    fn damaged(&self, error: BatchError) {
        if let BatchError::Damaged { key, place, damage } = error {
            self.inbox.done(Done::Damaged(key, *place, *damage));
        }
    }

    /// What is to be divided: all of it, or none. Memory of its records beyond what was taken for it is taken as they come.
    fn segments(&self, division: &Division, taken: &mut TakenMemory) -> Option<Vec<Segment>> {
        let (mut segments, mut left) = (Vec::new(), self.settings.part());
        let read = self.reader.read_all((division.shuffle, division.slot), division.wanted(), |batch| {
            let found = division.collect([batch]);
            let memory: u64 = found.iter().map(|one| MEMORY_OF_SEGMENT + one.records.memory()).sum();
            if memory > left {
                taken.grow(memory - left);
            }
            left = left.saturating_sub(memory);
            segments.extend(found);
        });
        read.map(|()| segments).map_err(|error| self.damaged(error)).ok()
    }

    /// Hands over what a plan needs of a range, batch by batch, as long as more is wanted; or it is not all here, or not given by
    /// the object store.
    fn needed(
        &self,
        plan: &Plan,
        range: &PlanRange,
        take: impl FnMut(&Arc<Batch>) -> bool,
    ) -> Result<(), NotSorted> {
        self.reader.read_range(self.source, (plan, range), take).map_err(|error| {
            let why = match &error {
                BatchError::Moved(_) => NotSorted::Moved,
                BatchError::Object { is_lost: true, .. } => NotSorted::Refused(NotRead::ObjectLost),
                BatchError::Object { is_lost: false, .. } => NotSorted::Refused(NotRead::ObjectStore),
                BatchError::Absent(_) | BatchError::Failed { .. } | BatchError::Damaged { .. } => {
                    NotSorted::Refused(NotRead::Lacks)
                }
            };
            self.damaged(error);
            why
        })
    }

    /// Records and bytes of the ranges of a slot.
    fn counts(&self, plan: &Plan, slot: PoolSlot) -> Option<BTreeMap<RangeId, (u64, u64)>> {
        let mut counts = plan.counts_of(slot);
        let needed = plan.needed.get(&slot).into_iter().flatten();
        let wanted = needed.map(|(writer, upto)| (writer, 0, *upto));
        // Only what is sealed goes to the object store, and that is counted.
        let read = self.reader.read_heads((plan.shuffle, slot), wanted, |head| counts.add(head));
        read.map(|()| counts.counts()).map_err(|error| self.damaged(error)).ok()
    }

    /// The records of a slice, as many as one answer has.
    fn slice(&self, slice: &Slice, sorters: &Sorters) -> Result<OrderedRecords, NotRead> {
        let most_bytes = self.settings.answer_bytes;
        self.in_order(
            (&slice.plan, slice.range),
            sorters,
            // What an answer waits for must not keep the range, whose memory is counted until it is let go.
            |sorted| slice.of(sorted).within(most_bytes).copied(),
            |file| file.slice(slice, most_bytes),
        )
    }

    /// What is sought in a range, as much as one answer has.
    fn seek(&self, seek: &Seek, sorters: &Sorters) -> Result<seek::Found, NotRead> {
        let most_bytes = self.settings.answer_bytes;
        let in_memory = |sorted: &OrderedRecords| {
            let Ok(found) = seek.within(sorted, most_bytes);
            found
        };
        self.in_order((&seek.plan, seek.range), sorters, in_memory, |file| seek.within(file, most_bytes))
    }

    /// What is read of a range in its order, which is in memory or in a file.
    fn in_order<T>(
        &self,
        (plan, range): (&Arc<Plan>, usize),
        sorters: &Sorters,
        in_memory: impl FnOnce(&OrderedRecords) -> T,
        in_file: impl FnOnce(&SortedFile) -> std::io::Result<T>,
    ) -> Result<T, NotRead> {
        let Some(of) = plan.ranges.get(range) else { return Ok(in_memory(&OrderedRecords::default())) };
        let (key, is_large) = ((plan.shuffle, range), self.settings.is_large(of));
        let memory = (!is_large).then(|| of.sorting_memory());
        match self.ranges.find(key, memory, self.clock.now()) {
            Found::Kept(sorted) => Ok(in_memory(&sorted)),
            Found::Stored(file) => in_file(&file).map_err(|error| {
                self.ranges.forget(key, &file);
                self.cannot_sort(&error)
            }),
            Found::Sorts => Err(NotRead::Sorts),
            Found::Failed(why) => Err(why),
            Found::Turn(mut turn) => {
                let mut is_offloaded = self.reader.is_offloaded(plan, of.slot);
                if sorters.of(is_large, is_offloaded).is_none() {
                    match self.sorted(plan, of) {
                        Ok(sorted) => {
                            turn.keep(&sorted, self.clock.now());
                            return Ok(in_memory(&sorted));
                        }
                        Err(NotSorted::Refused(why)) => return Err(why),
                        Err(NotSorted::Moved) => is_offloaded = true,
                    }
                }
                // The store may not answer: what waits for it must leave memory for what is on disks.
                let sorts_on_disk =
                    is_offloaded && of.sorting_memory() > self.settings.range_bytes / limits::OBJECTS_PART;
                if sorts_on_disk {
                    turn.release_memory();
                }
                // Nothing goes to an object store without threads for what comes from there.
                let Some(sorter) = sorters.of(is_large || sorts_on_disk, is_offloaded) else {
                    return Err(NotRead::Lacks);
                };
                turn.hand_over();
                let is_taken = sorter.try_send(Order { plan: Arc::clone(plan), range, turn }).is_ok();
                // Too many are sorted on disk. Those from the object store that fit into memory have their turn soon.
                Err(if is_large && !is_taken { NotRead::Busy } else { NotRead::Sorts })
            }
        }
    }

    /// All records of a range, in order, in memory.
    fn sorted(&self, plan: &Plan, range: &PlanRange) -> Result<OrderedRecords, NotSorted> {
        let mut records = plan.records_of(range);
        records.reserve();
        self.needed(plan, range, |batch| {
            records.add(batch);
            // More than are counted are none that anybody reads.
            let (count, bytes) = records.sizes();
            count <= range.records && bytes <= range.bytes
        })?;
        plan.check(range, records.sizes()).map_err(|_| NotSorted::Refused(NotRead::Differs))?;
        Ok(records.in_order())
    }

    /// Reads ranges from the object store and sorts them in memory, one by one.
    fn read_ranges(self, orders: &Mutex<Receiver<Order>>) {
        loop {
            let order = lock(orders).recv();
            let Ok(Order { plan, range, turn }) = order else { return };
            if self.inbox.is_closed() {
                return;
            }
            let Some(of) = plan.ranges.get(range).filter(|_| turn.is_wanted()) else { continue };
            match self.sorted(&plan, of) {
                Ok(sorted) => turn.keep(&sorted, self.clock.now()),
                Err(NotSorted::Refused(why)) => turn.fail(why),
                // It reads what has gone there.
                Err(NotSorted::Moved) => {}
            }
        }
    }

    /// Sorts ranges on disk, one by one, and removes those that no reader uses any more. What has gone to the object store it
    /// hands over to the thread that sorts what comes from there.
    fn sort_ranges(self, orders: &Receiver<Order>, of_objects: Option<&SyncSender<Order>>) {
        loop {
            match orders.recv_timeout(limits::IDLE_LOOK) {
                Ok(_) if self.inbox.is_closed() => return,
                Ok(Order { plan, range, turn }) => match self.sorted_file(&plan, range, &turn) {
                    Ok(Some(file)) => turn.store(file, self.clock.now()),
                    // Nobody wants it.
                    Ok(None) => {}
                    Err(NotSorted::Refused(why)) => turn.fail(why),
                    Err(NotSorted::Moved) => {
                        // If too many wait there, the next read of the range hears so.
                        let order = Order { plan, range, turn };
                        let _ = of_objects.map(|sorter| sorter.try_send(order));
                    }
                },
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = self.clock.now().0;
            self.ranges.remove_idle(Millis(now.saturating_sub(self.settings.idle_ms)));
        }
    }

    /// All records of a range, in order, on disk. None: the range is not wanted any more.
    fn sorted_file(&self, plan: &Plan, range: usize, turn: &Turn) -> Result<Option<SortedFile>, NotSorted> {
        let Some(range) = plan.ranges.get(range) else { return Ok(None) };
        // With an object store two threads share it.
        let most_bytes = self.settings.part() / if self.reader.has_objects() { 2 } else { 1 };
        let _taken = self.ranges.take(most_bytes);
        let goes_on = || turn.is_wanted() && !self.inbox.is_closed();
        let mut sorter = Sorter::new(self.settings.folder.clone(), most_bytes, (range.records, range.bytes));
        let (mut added, mut records) = (Ok(()), plan.records_of(range));
        let read = self.needed(plan, range, |batch| {
            records.add(batch);
            added = records.drain().try_for_each(|one| sorter.add(one));
            added.is_ok() && goes_on()
        });
        let cannot = |error: std::io::Error| NotSorted::Refused(self.cannot_sort(&error));
        added.map_err(cannot)?;
        if !goes_on() {
            return Ok(None);
        }
        read?;
        plan.check(range, sorter.sizes()).map_err(|_| NotSorted::Refused(NotRead::Differs))?;
        sorter.finish(&goes_on).map_err(cannot)
    }

    fn cannot_sort(&self, error: &std::io::Error) -> NotRead {
        let folder = self.settings.folder.display();
        tracing::warn!(
            "a range that is larger than the memory for ranges cannot be sorted in `{folder}`: {error}; make room there, or give the node more memory (`--memory`)"
        );
        NotRead::Busy
    }
}

#[cfg(test)]
mod tests;
