//! How far loading is: counters that threads add to and any task may read.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

/// Shared by who loads and who shows it.
#[derive(Debug, Default)]
pub struct Progress {
    bytes: AtomicU64,
    bytes_in_all: AtomicU64,
    records: AtomicU64,
    files: AtomicU64,
    files_in_all: AtomicU64,
    rejected: AtomicU64,
}

/// The progress of a load at one moment. It may go back when files have to be read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProgressSnapshot {
    /// Bytes that were read from the source.
    pub bytes: u64,
    /// Bytes that are to be read, of all files together.
    pub bytes_in_all: u64,
    /// Records that were read, also those of partitions that are not wanted here.
    pub records: u64,
    /// Files that were read to their end.
    pub files: u64,
    /// Files to be read.
    pub files_in_all: u64,
    /// Rows that are no records, and are listed.
    pub rejected: u64,
}

impl Progress {
    /// The counters as they are now.
    pub fn snapshot(&self) -> ProgressSnapshot {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ProgressSnapshot {
            bytes: of(&self.bytes),
            bytes_in_all: of(&self.bytes_in_all),
            records: of(&self.records),
            files: of(&self.files),
            files_in_all: of(&self.files_in_all),
            rejected: of(&self.rejected),
        }
    }

    pub(super) fn begin(&self, files: u64, bytes: u64) {
        for counter in [&self.bytes, &self.records, &self.files] {
            counter.store(0, Ordering::Relaxed);
        }
        self.bytes_in_all.store(bytes, Ordering::Relaxed);
        self.files_in_all.store(files, Ordering::Relaxed);
    }

    pub(super) fn add_records(&self, records: u64) {
        self.records.fetch_add(records, Ordering::Relaxed);
    }

    pub(super) fn set_rejected(&self, rows: u64) {
        self.rejected.fetch_max(rows, Ordering::Relaxed);
    }

    pub(super) fn add_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts what is read.
pub(super) struct CountingReader<R> {
    pub bytes: R,
    pub progress: Arc<Progress>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.read(into)?;
        self.progress.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// The threads of a load. A task can be dropped, but a thread ends by itself: the next load waits for that.
#[derive(Debug)]
pub(super) struct ThreadGroup {
    alive: mpsc::Sender<()>,
    gone: mpsc::Receiver<()>,
}

/// Held by each thread of a group.
pub(super) type Alive = mpsc::Sender<()>;

impl ThreadGroup {
    pub fn new() -> ThreadGroup {
        let (alive, gone) = mpsc::channel(1);
        ThreadGroup { alive, gone }
    }

    pub fn alive(&self) -> &Alive {
        &self.alive
    }

    /// Waits until no thread is left.
    pub async fn join(self) {
        let ThreadGroup { alive, mut gone } = self;
        drop(alive);
        // No thread sends: it ends when the last sender is dropped.
        gone.recv().await;
    }
}
