//! The threads that read batches: for readers, for other replicas, for divisions and counts.
//!
//! A reader takes a range in pieces. The records of the range are read, checked against the plan and put in order once, and kept
//! for the next piece while there is room, and for readers that ask where cuts fall in it: the order is final with the plan, so
//! what is kept never changes. Ranges that are read at the same time have as much memory together as those that are kept; one is
//! always read.

use super::inbox::{Done, EndsAtPanic, Inbox};
use crate::store::{BatchError, BatchReader, Place};
use partage_core::base::id::Epoch;
use partage_core::base::name::NodeId;
use partage_service::shuffle::holder::{NotRead, Slice};
use partage_service::shuffle::message::Message;
use partage_service::shuffle::plan::{self, Division, Placed, Plan};
use partage_service::shuffle::record::{Batch, BatchKey, Segment};
use partage_service::shuffle::seek::Seek;
use partage_service::shuffle::{PoolSlot, RangeId, ShuffleId, TaskId, Writer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What is to be read.
#[derive(Debug)]
pub(crate) enum Job {
    Pass(NodeId, BatchKey),
    Divide(NodeId, Arc<Division>),
    Count(NodeId, Epoch, Arc<Plan>, PoolSlot),
    Read(u64, Slice),
    Seek(u64, Seek),
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
            Job::Read(number, _) | Job::Seek(number, _) => JobName::Read(*number),
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
        let bytes: u64 = sorted.iter().map(Placed::memory).sum();
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

/// Memory of ranges that are being read and sorted, in bytes.
#[derive(Debug)]
struct RoomToSort {
    taken: Mutex<u64>,
    given_back: Condvar,
    most: u64,
}

/// So much of it is taken until this is dropped.
#[derive(Debug)]
struct Taken<'a>(&'a RoomToSort, u64);

impl RoomToSort {
    fn new(most: u64) -> RoomToSort {
        RoomToSort { taken: Mutex::new(0), given_back: Condvar::new(), most }
    }

    /// Waits while other threads have too much of it. One range is always read, however large.
    fn take(&self, bytes: u64) -> Taken<'_> {
        let is_too_much = |taken: &mut u64| *taken > 0 && taken.saturating_add(bytes) > self.most;
        let taken = self.given_back.wait_while(lock(&self.taken), is_too_much);
        *taken.unwrap_or_else(PoisonError::into_inner) += bytes;
        Taken(self, bytes)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *lock(&self.0.taken) -= self.1;
        self.0.given_back.notify_all();
    }
}

/// The threads, and the way to them.
#[derive(Debug)]
pub(crate) struct Reading {
    reader: BatchReader,
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
        let room = Arc::new(RoomToSort::new(range_bytes));
        let (reader, under_way) = (reader.clone(), Arc::default());
        let mut reading = Reading { reader, jobs: Some(jobs), ranges, under_way, threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let work = Work {
                reader: reading.reader.clone(),
                inbox: Arc::clone(inbox),
                ranges: Arc::clone(&reading.ranges),
                room: Arc::clone(&room),
                under_way: Arc::clone(&reading.under_way),
            };
            let receiver = Arc::clone(&receiver);
            let thread = std::thread::Builder::new().name("shuffle-reader".to_owned());
            let guard = EndsAtPanic::new(inbox, "reads batches");
            let run = move || {
                let _guard = guard;
                work.run(&receiver);
            };
            reading.threads.push(thread.spawn(run)?);
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

    /// Where a batch lies. None: it is not here.
    pub(crate) fn place(&self, key: &BatchKey) -> Option<Place> {
        self.reader.place(key)
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
    room: Arc<RoomToSort>,
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
                if let Some(segments) = self.segments(&division) {
                    self.inbox.done(Done::Divided(leader, division, segments));
                }
            }
            Job::Count(leader, epoch, plan, slot) => {
                if let Some(counts) = self.counts(&plan, slot) {
                    let message = Message::Counted(plan.shuffle, epoch, slot, counts);
                    self.inbox.done(Done::Counted(leader, message));
                }
            }
            Job::Read(number, slice) => {
                let answer = self.sorted(&slice).map(|sorted| slice.of(&sorted));
                self.inbox.done(Done::Read(number, answer));
            }
            Job::Seek(number, seek) => {
                let (plan, range) = (Arc::clone(&seek.plan), seek.range);
                let all = Slice { plan, range, keys: None, from: 0, to: u64::MAX };
                self.inbox.done(match self.sorted(&all) {
                    Ok(sorted) => Done::Found(number, seek.of(sorted.iter().map(Placed::sized))),
                    Err(why) => Done::Read(number, Err(why)),
                });
            }
        }
    }

    /// Says when a batch is damaged. Of one that is not here the machine knows, or will: what wanted it is asked for again.
    fn damaged(&self, error: BatchError) {
        if let BatchError::Damaged { key, place, damage } = error {
            self.inbox.done(Done::Damaged(key, *place, *damage));
        }
    }

    /// What is to be divided: all of it, or none.
    fn segments(&self, division: &Division) -> Option<Vec<Segment>> {
        // What was divided before under each of the tags is not read.
        let before = |writer: &Writer| {
            let divided = division.tags.values().map(|before| before.get(writer).copied().unwrap_or(0));
            divided.min()
        };
        let wanted = division.upto.iter().filter_map(|(writer, upto)| Some((writer, before(writer)?, *upto)));
        let mut segments = Vec::new();
        let read = self.reader.read_all((division.shuffle, division.slot), wanted, |batch| {
            segments.extend(division.collect([batch]));
        });
        read.map(|()| segments).map_err(|error| self.damaged(error)).ok()
    }

    /// Hands over what a plan needs of a slot, one by one. False: it is not all here.
    fn needed(&self, plan: &Plan, slot: PoolSlot, take: impl FnMut(&Arc<Batch>)) -> bool {
        let needed = plan.needed.get(&slot).into_iter().flatten();
        let wanted = needed.map(|(writer, upto)| (writer, 0, *upto));
        let read = self.reader.read_all((plan.shuffle, slot), wanted, take);
        read.map_err(|error| self.damaged(error)).is_ok()
    }

    /// Records and bytes of the ranges of a slot.
    fn counts(&self, plan: &Plan, slot: PoolSlot) -> Option<BTreeMap<RangeId, (u64, u64)>> {
        let ranges = || plan.ranges.iter().filter(|range| range.slot == slot);
        let mut counts: BTreeMap<RangeId, (u64, u64)> = ranges().map(|range| (range.id, (0, 0))).collect();
        let is_whole = self.needed(plan, slot, |batch| {
            for range in ranges() {
                let (records, bytes) = plan::sizes(&plan.collect(range, [batch]));
                let count = counts.entry(range.id).or_default();
                *count = (count.0 + records, count.1 + bytes);
            }
        });
        is_whole.then_some(counts)
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
        let _taken = self.room.take(range.records.saturating_mul(Placed::AROUND).saturating_add(range.bytes));
        let mut sorted = Vec::new();
        if !self.needed(plan, range.slot, |batch| sorted.extend(plan.collect(range, [batch]))) {
            return Err(NotRead::Lacks);
        }
        sorted.sort();
        let sorted = Arc::new(sorted);
        plan.check(range, &sorted).map_err(|_| NotRead::Differs)?;
        lock(&self.ranges).insert(key, &sorted);
        Ok(sorted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::{batch, buffer, key, open};
    use partage_journal::faulty_disk::FaultyDisk;
    use partage_service::shuffle::AttemptKey;
    use partage_service::shuffle::bounds::{Bounds, Tag};
    use partage_service::shuffle::plan::{PlanRange, Winner};
    use std::time::Duration;

    const SLOT: PoolSlot = PoolSlot(1);

    /// The plan of the first three batches, each of a record of 50 bytes and a key of 8.
    fn plan() -> Arc<Plan> {
        let winner = |number| {
            let attempt = AttemptKey { buffer: buffer(), number };
            (attempt, Winner { partition: 0, records: 1, bytes: 58 })
        };
        let (id, begins) = (RangeId(1), Vec::new().into());
        let range = PlanRange { id, since: 0, begins, slot: SLOT, records: 3, bytes: 3 * 58 };
        Arc::new(Plan {
            shuffle: ShuffleId(1),
            winners: (1..=3).map(winner).collect(),
            needed: [(SLOT, [(Writer::Buffer(buffer()), 3)].into())].into(),
            ranges: vec![range],
        })
    }

    fn division(shuffle: u128) -> Arc<Division> {
        Arc::new(Division {
            task: TaskId { epoch: Epoch(1), number: 1 },
            shuffle: ShuffleId(shuffle),
            slot: SLOT,
            tags: [(Tag { version: 0, range: RangeId(1) }, BTreeMap::new())].into(),
            upto: [(Writer::Buffer(buffer()), 3)].into(),
            to: Arc::new(Bounds::stashes(2)),
        })
    }

    /// What comes of a count, a division and a read, in this order.
    fn answers(reading: &Reading, inbox: &Inbox, number: u64) -> Vec<Done> {
        let leader = buffer().node;
        let slice = Slice { plan: plan(), range: 0, keys: None, from: 0, to: 3 };
        reading.job(Job::Count(leader.clone(), Epoch(1), plan(), SLOT)).unwrap();
        reading.job(Job::Divide(leader, division(1))).unwrap();
        reading.job(Job::Read(number, slice)).unwrap();
        let mut all = Vec::new();
        while !matches!(all.last(), Some(Done::Read(..))) {
            all.extend(inbox.take(Duration::from_secs(20)).unwrap().done);
        }
        all
    }

    #[test]
    fn x8_a_batch_that_has_gone_meanwhile_makes_no_answer() {
        let (mut store, _) = open(&FaultyDisk::default()).unwrap();
        let all: Vec<Arc<Batch>> = (1..=4).map(|number| batch(1, 1, number, 50)).collect();
        store.store(&all).unwrap();
        let inbox = Arc::new(Inbox::new(16, 1 << 20));
        let reading = Reading::start(&store.reader(), &inbox, (16, 1, 1 << 20)).unwrap();
        match &answers(&reading, &inbox, 1)[..] {
            [Done::Counted(_, counted), Done::Divided(_, _, segments), Done::Read(1, Ok(read))] => {
                let counts = [(RangeId(1), (3, 3 * 58))].into();
                assert_eq!(*counted, Message::Counted(ShuffleId(1), Epoch(1), SLOT, counts));
                assert_eq!((segments.len(), read.len()), (3, 3), "the fourth batch is not wanted");
            }
            other => panic!("{other:?}"),
        }
        reading.drop_shuffle(ShuffleId(1));
        store.forget(&key(1, 1, 2), reading.place(&key(1, 1, 2)).unwrap()).unwrap();
        match &answers(&reading, &inbox, 2)[..] {
            [Done::Read(2, Err(NotRead::Lacks))] => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn r1_a_range_waits_for_room_and_one_is_always_read() {
        let room = RoomToSort::new(100);
        let large = room.take(5_000);
        std::thread::scope(|scope| {
            let (sender, has_room) = sync_channel(1);
            let room = &room;
            scope.spawn(move || {
                let _taken = room.take(60);
                sender.send(()).unwrap();
            });
            assert!(has_room.recv_timeout(Duration::from_millis(100)).is_err(), "another range takes it all");
            drop(large);
            has_room.recv_timeout(Duration::from_secs(20)).unwrap();
        });
        let (first, second) = (room.take(60), room.take(40));
        assert_eq!(*lock(&room.taken), 100);
        drop((first, second));
        assert_eq!(*lock(&room.taken), 0);
    }

    #[test]
    fn divisions_of_two_shuffles_with_one_number_are_two_jobs() {
        let leader = buffer().node;
        let name = |shuffle| Job::Divide(leader.clone(), division(shuffle)).name();
        assert_ne!(name(1), name(2));
        assert_eq!(name(1), name(1));
    }

    fn range(bytes: usize) -> Sorted {
        let value = vec![0; bytes].into();
        Arc::new(vec![Placed { key: Vec::new().into(), partition: 0, frame: 1, index: 0, value }])
    }

    #[test]
    fn r1_ranges_that_were_used_last_are_kept_up_to_the_limit() {
        let around = range(0)[0].memory();
        let mut ranges = Ranges { most_bytes: 100 + 2 * around, ..Ranges::default() };
        let key = |at| (ShuffleId(1), at);
        for at in 0..3 {
            ranges.insert(key(at), &range(40));
            assert!(ranges.get(key(0)).is_some());
        }
        assert_eq!(ranges.kept.keys().map(|(_, at)| *at).collect::<Vec<_>>(), [0, 2]);
        ranges.insert(key(9), &range(500));
        assert_eq!((ranges.kept.len(), ranges.bytes), (1, 500 + around), "one is always kept");
        ranges.remove_shuffle(ShuffleId(1));
        assert_eq!((ranges.kept.len(), ranges.bytes), (0, 0));
    }
}
