//! The figures of one replica for metrics, kept beside its queue, so that no caller waits for its thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The figures that the thread of a replica published last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ReplicaFigures {
    /// Whether it leads and serves.
    pub(crate) leads: bool,
    /// How many replicas the in-sync set of its shard has.
    pub(crate) in_sync: usize,
    /// How old what is applied may be, in milliseconds: 0 at a leader, none if it is not known.
    pub(crate) lag_ms: Option<u64>,
    /// How far it has loaded: changes while the replica makes progress.
    pub(crate) taken: LoadProgress,
    /// Bytes of log that it keeps.
    pub(crate) log_bytes: u64,
    /// Bytes of its files, and of its rows in memory.
    pub(crate) store_bytes: u64,
}

/// How much a follower has taken of its leader's log, or of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LoadProgress {
    /// The index of the last entry of its log.
    pub(crate) end: u64,
    /// Chunks of the snapshot that comes, as far as they are stored.
    pub(crate) chunks: u64,
}

/// What is counted of one replica, since it was opened.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    requests: AtomicU64,
    steps: AtomicU64,
    latest: Mutex<ReplicaFigures>,
}

impl Figures {
    /// A read or a write has reached it.
    pub(crate) fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// How many reads and writes have reached it.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// A child's replica has taken something of what its parents had, as a row, has stored it, or has joined a row of several.
    pub(crate) fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// How many steps a child's replica has taken, which shows whether it makes progress.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// The replica's thread publishes its figures.
    pub(crate) fn set(&self, figures: ReplicaFigures) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = figures;
    }

    /// The figures that the replica's thread published last.
    pub(crate) fn latest(&self) -> ReplicaFigures {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
