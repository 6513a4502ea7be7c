//! What is counted of one replica, and how it stands, for metrics: kept beside its queue, so that nothing waits for its thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How a replica stands, as its thread has said last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Standing {
    /// Whether it leads and serves.
    pub(crate) leads: bool,
    /// How many replicas the in-sync set of its shard has.
    pub(crate) in_sync: usize,
    /// How old what is applied may be, in milliseconds: 0 at a leader, none if it is not known.
    pub(crate) lag_ms: Option<u64>,
    /// What it has taken of its leader's log, or of a snapshot: it changes while the replica gets on.
    pub(crate) taken: Taken,
    /// Bytes of log that it keeps.
    pub(crate) log_bytes: u64,
    /// Bytes of its files, and of its rows in memory.
    pub(crate) store_bytes: u64,
}

/// How far a follower has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Taken {
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
    standing: Mutex<Standing>,
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

    /// A child's replica has taken something of what its parents had, or has joined a row of several.
    pub(crate) fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// How many steps a child's replica has taken, to tell whether it gets on.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// The replica's thread says how the replica stands.
    pub(crate) fn set(&self, standing: Standing) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = standing;
    }

    /// How it stood when its thread said so last.
    pub(crate) fn standing(&self) -> Standing {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
