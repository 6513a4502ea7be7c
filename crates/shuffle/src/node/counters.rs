//! What a node has done since it started, for metrics.

use crate::counted::{Counted, Durations};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// On disk.
    pub(crate) stored: Counted,
    /// Read here for readers, of this node and of others.
    pub(crate) to_readers: Counted,
    /// Batches that found no room to be stored: their senders send them again.
    pub(crate) not_stored: AtomicU64,
    /// From the end of an attempt to its acknowledgement.
    pub(crate) acknowledged: Durations,
    /// Calls of clients that were refused, by the word that they got.
    refused: Mutex<BTreeMap<&'static str, u64>>,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }

    /// A client gets this word instead of what it asked for.
    pub(crate) fn refused(&self, word: &'static str) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner).entry(word).or_default() += 1;
    }

    /// How often each word was said. There are as many as words.
    pub(crate) fn refusals(&self) -> BTreeMap<&'static str, u64> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
