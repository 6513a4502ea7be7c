//! A thread that writes the records of many replicas in groups: while the disk is busy with one group, the next one gathers.

use crate::error::WriteError;
use crate::group::section_bytes;
use crate::log::Log;
use crate::record::{BodyRef, Record};
use partage_core::node::exchange::ReplicaKey;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The numbers that a [`GroupWriter`] runs by. Each has a default and a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterSettings {
    /// Bytes of records that may wait; one record may always wait. Some groups, so that the disk is never idle for want of one.
    pub queue_bytes: usize,
    /// Bytes of the records of a group; one record always goes. As many as the disk writes in the time of a sync.
    pub group_bytes: usize,
    /// While the disk is full, the writer tries again after so long.
    pub retry: Duration,
    /// While there are more segments than that, the writer reports which replicas keep the oldest one. The log has about
    /// so many segments, and reading it at a start takes as long as that.
    pub segments: usize,
}

impl Default for WriterSettings {
    fn default() -> WriterSettings {
        WriterSettings {
            queue_bytes: 32 << 20,
            group_bytes: 4 << 20,
            retry: Duration::from_secs(1),
            segments: 16,
        }
    }
}

/// What a [`GroupWriter`] tells. The callback runs on the writer's thread: no group is written while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The records of these replicas up to these numbers are on stable storage.
    Synced(Vec<(ReplicaKey, u64)>),
    /// The log refuses a record, and nothing of it was written. The driver must let go of the replica until it has
    /// forgotten and filled it again: what follows would lack the record.
    Refused(ReplicaKey, u64, WriteError),
    /// The disk is full. The writer keeps what waits, and tries again until there is room: the driver should admit no
    /// writes meanwhile.
    Full(WriteError),
    /// There is room again.
    HasRoom,
    /// The log has more segments than it should have: these replicas should flush what they have applied and trim their logs.
    /// Told once for each segment.
    Holding(Vec<ReplicaKey>),
    /// The disk failed: the driver must end the process. Nothing is written any more.
    Ended(WriteError),
}

/// Why a record was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// More records wait than [`WriterSettings::queue_bytes`] allows.
    #[error("too many records wait for the log: try again later")]
    Full,
    /// The disk failed, or the writer was stopped.
    #[error("the log takes no records any more")]
    Stopped,
}

#[derive(Debug, Default)]
struct Waiting {
    records: VecDeque<(ReplicaKey, u64, Record)>,
    bytes: usize,
    /// The thread waits for records, and no other thread has woken it yet. To wake one that does not wait is a system call all
    /// the same.
    is_waiting: bool,
    /// So many wait for room.
    waiting_for_room: usize,
    /// How many groups the thread has taken.
    taken: u64,
    /// The last one of them is being written.
    is_writing: bool,
    is_stopped: bool,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    filled: Condvar,
    emptied: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A thread that panicked while it had the lock has changed nothing by halves: each change is one push or pop.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        self.lock().is_stopped = true;
        self.filled.notify_all();
        self.emptied.notify_all();
    }

    /// Waits for records; so many bytes of them, one at least. None: the queue was stopped and is empty.
    fn take(&self, most: usize) -> Option<Batch> {
        let mut waiting = self.lock();
        waiting.is_writing = false;
        while waiting.records.is_empty() {
            if waiting.is_stopped {
                return None;
            }
            waiting.is_waiting = true;
            waiting = self.filled.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        waiting.is_waiting = false;
        let (mut batch, mut bytes) = (Batch::default(), 0);
        while let Some((key, _, record)) = waiting.records.front() {
            bytes += section_bytes(key, &BodyRef::Record(record));
            if bytes > most && !batch.numbers.is_empty() {
                break;
            }
            let Some((key, number, record)) = waiting.records.pop_front() else { break };
            waiting.bytes -= section_bytes(&key, &BodyRef::Record(&record));
            batch.group.push((key, record));
            batch.numbers.push(number);
        }
        (waiting.taken, waiting.is_writing) = (waiting.taken + 1, true);
        let has_waiting = waiting.waiting_for_room > 0;
        drop(waiting);
        if has_waiting {
            self.emptied.notify_all();
        }
        Some(batch)
    }

    /// Waits for so long, or until the queue is stopped; says whether it is.
    fn pause(&self, time: Duration) -> bool {
        let waiting = self.emptied.wait_timeout_while(self.lock(), time, |waiting| !waiting.is_stopped);
        waiting.unwrap_or_else(PoisonError::into_inner).0.is_stopped
    }
}

#[derive(Debug, Default)]
struct Batch {
    group: Vec<(ReplicaKey, Record)>,
    numbers: Vec<u64>,
}

impl Batch {
    /// Takes the records of a replica out.
    fn remove(&mut self, key: &ReplicaKey) -> Vec<u64> {
        let mut removed = Vec::new();
        let (mut group, mut numbers) = (Vec::new(), Vec::new());
        for ((of, record), number) in self.group.drain(..).zip(self.numbers.drain(..)) {
            if of == *key {
                removed.push(number);
            } else {
                group.push((of, record));
                numbers.push(number);
            }
        }
        (self.group, self.numbers) = (group, numbers);
        removed
    }

    fn split(&mut self) -> Batch {
        let half = self.numbers.len() / 2;
        Batch { group: self.group.split_off(half), numbers: self.numbers.split_off(half) }
    }

    /// The last number of each run of one replica.
    fn synced(self) -> Vec<(ReplicaKey, u64)> {
        let mut synced: Vec<(ReplicaKey, u64)> = Vec::new();
        for ((key, _), number) in self.group.into_iter().zip(self.numbers) {
            match synced.last_mut().filter(|(last, _)| *last == key) {
                Some(last) => last.1 = number,
                None => synced.push((key, number)),
            }
        }
        synced
    }
}

/// The thread that has the log, and the queue before it.
pub struct GroupWriter {
    queue: Arc<Queue>,
    settings: WriterSettings,
    thread: Option<JoinHandle<Log>>,
}

impl fmt::Debug for GroupWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupWriter").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl GroupWriter {
    /// Starts the thread, which calls `report`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        log: Log,
        settings: WriterSettings,
        report: impl FnMut(Report) + Send + 'static,
    ) -> std::io::Result<GroupWriter> {
        let queue = Arc::new(Queue::default());
        let mut run = Run { log, queue: Arc::clone(&queue), settings, report: Box::new(report), told: None };
        let work = move || {
            let guard = StopAtEnd(Arc::clone(&run.queue));
            run.work();
            drop(guard);
            run.log
        };
        let thread = std::thread::Builder::new().name("log-writer".to_owned()).spawn(work)?;
        Ok(GroupWriter { queue, settings, thread: Some(thread) })
    }

    /// Hands over a record, and waits while too much waits. Records of one replica are written in the order in which they
    /// are handed over; `number` is what [`Report::Synced`] names.
    ///
    /// # Errors
    /// The writer has stopped.
    pub fn submit(&self, key: ReplicaKey, number: u64, record: Record) -> Result<(), SubmitError> {
        let bytes = section_bytes(&key, &BodyRef::Record(&record));
        let mut waiting = self.queue.lock();
        while self.is_full(&waiting, bytes) && !waiting.is_stopped {
            waiting.waiting_for_room += 1;
            waiting = self.queue.emptied.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            waiting.waiting_for_room -= 1;
        }
        self.push(waiting, bytes, (key, number, record)).map_err(|_| SubmitError::Stopped)
    }

    /// Hands over a record if there is room for it in the queue; if not, gives it back.
    ///
    /// # Errors
    /// Too much waits, or the writer has stopped.
    pub fn try_submit(
        &self,
        key: ReplicaKey,
        number: u64,
        record: Record,
    ) -> Result<(), (SubmitError, Record)> {
        let bytes = section_bytes(&key, &BodyRef::Record(&record));
        let waiting = self.queue.lock();
        if self.is_full(&waiting, bytes) && !waiting.is_stopped {
            return Err((SubmitError::Full, record));
        }
        self.push(waiting, bytes, (key, number, record)).map_err(|record| (SubmitError::Stopped, record))
    }

    /// The number of the group that is being written, or for which there is no room yet; none: nothing waits. A disk that has the
    /// same one for long stores nothing.
    pub fn writing(&self) -> Option<u64> {
        let waiting = self.queue.lock();
        waiting.is_writing.then_some(waiting.taken)
    }

    fn is_full(&self, waiting: &Waiting, bytes: usize) -> bool {
        !waiting.records.is_empty() && waiting.bytes + bytes > self.settings.queue_bytes
    }

    fn push(
        &self,
        mut waiting: MutexGuard<'_, Waiting>,
        bytes: usize,
        record: (ReplicaKey, u64, Record),
    ) -> Result<(), Record> {
        if waiting.is_stopped {
            return Err(record.2);
        }
        waiting.bytes += bytes;
        waiting.records.push_back(record);
        let wakes = std::mem::take(&mut waiting.is_waiting);
        drop(waiting);
        if wakes {
            self.queue.filled.notify_one();
        }
        Ok(())
    }

    /// Writes what waits, ends the thread, and gives the log back. While the disk is full, what waits is dropped instead: it
    /// was not reported. None: the callback panicked.
    pub fn stop(mut self) -> Option<Log> {
        self.queue.stop();
        self.thread.take().and_then(|thread| thread.join().ok())
    }
}

impl Drop for GroupWriter {
    fn drop(&mut self) {
        self.queue.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Refuses records when the thread is gone, for whatever reason.
struct StopAtEnd(Arc<Queue>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.stop();
    }
}

struct Run {
    log: Log,
    queue: Arc<Queue>,
    settings: WriterSettings,
    report: Box<dyn FnMut(Report) + Send>,
    /// The oldest segment, when the replicas that keep it were reported last.
    told: Option<u64>,
}

/// The thread must end: the disk failed, or the writer was stopped while the disk was full.
struct Ends;

impl Run {
    fn work(&mut self) {
        while let Some(batch) = self.queue.take(self.settings.group_bytes) {
            if self.write(batch).and_then(|()| self.reclaim()).is_err() {
                return;
            }
        }
    }

    fn write(&mut self, mut batch: Batch) -> Result<(), Ends> {
        let mut is_full = false;
        while !batch.group.is_empty() {
            let Err(error) = self.log.write(&batch.group) else {
                if is_full {
                    (self.report)(Report::HasRoom);
                }
                (self.report)(Report::Synced(batch.synced()));
                return Ok(());
            };
            match (&error, error.replica().cloned()) {
                (WriteError::Ends(_), _) => {
                    (self.report)(Report::Ended(error));
                    return Err(Ends);
                }
                (WriteError::Full(_), _) => {
                    if !std::mem::replace(&mut is_full, true) {
                        (self.report)(Report::Full(error));
                    }
                    self.reclaim()?;
                    if self.queue.pause(self.settings.retry) {
                        return Err(Ends);
                    }
                }
                (_, Some(key)) => {
                    for number in batch.remove(&key) {
                        (self.report)(Report::Refused(key.clone(), number, error.clone()));
                    }
                }
                (_, None) if batch.numbers.len() > 1 => {
                    let rest = batch.split();
                    self.write(batch)?;
                    batch = rest;
                }
                (_, None) => {
                    for ((key, _), number) in batch.group.drain(..).zip(batch.numbers.drain(..)) {
                        (self.report)(Report::Refused(key, number, error.clone()));
                    }
                }
            }
        }
        Ok(())
    }

    fn reclaim(&mut self) -> Result<(), Ends> {
        if self.log.can_reclaim() {
            match self.log.reclaim() {
                // When the disk is full, a write will say so.
                Ok(_) | Err(WriteError::Full(_)) => {}
                Err(error) => {
                    (self.report)(Report::Ended(error));
                    return Err(Ends);
                }
            }
        }
        let oldest = self.log.oldest_needed();
        if self.log.segments() > self.settings.segments && self.told != oldest {
            self.told = oldest;
            let holding = self.log.holding_oldest();
            if !holding.is_empty() {
                (self.report)(Report::Holding(holding));
            }
        }
        Ok(())
    }
}
