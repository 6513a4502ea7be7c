//! What of the log and of the fence is on disk.

use partage_core::base::id::Epoch;
use std::collections::VecDeque;

/// The writes that were given out, and which of them are on disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Durable {
    /// The highest epoch that was seen, on disk or not.
    fence: Epoch,
    fence_write: u64,
    last_write: u64,
    done: u64,
    /// Writes that are not on disk, with the index up to which the log is on disk when they are.
    under_way: VecDeque<(u64, u64)>,
    synced: u64,
}

impl Durable {
    /// All of it is on disk.
    pub(super) fn recovered(fence: Epoch, end: u64) -> Durable {
        Durable { fence, synced: end, ..Durable::default() }
    }

    /// The highest epoch that was seen.
    pub(super) fn fence(&self) -> Epoch {
        self.fence
    }

    /// Whether that is on disk.
    pub(super) fn has_fence(&self) -> bool {
        self.done >= self.fence_write
    }

    /// Up to which index the log is on disk.
    pub(super) fn synced(&self) -> u64 {
        self.synced
    }

    /// Up to which index the log will be on disk when all writes are.
    pub(super) fn end(&self) -> u64 {
        self.under_way.back().map_or(self.synced, |(_, end)| *end)
    }

    /// The number of a write, with which the log will be on disk up to there.
    pub(super) fn begin(&mut self, end: u64) -> u64 {
        self.last_write += 1;
        self.under_way.push_back((self.last_write, end));
        self.last_write
    }

    /// The number of a write that raises the fence.
    pub(super) fn raise_fence(&mut self, epoch: Epoch) -> u64 {
        self.fence = epoch;
        self.fence_write = self.begin(self.end());
        self.fence_write
    }

    /// What is behind that index is no part of the log any more, so no write of it counts.
    pub(super) fn cut(&mut self, after: u64) {
        self.synced = self.synced.min(after);
        self.under_way.iter_mut().for_each(|(_, end)| *end = (*end).min(after));
    }

    /// The log begins anew: nothing of it counts until that is on disk.
    pub(super) fn restart(&mut self, base: u64) -> u64 {
        self.cut(0);
        self.begin(base)
    }

    /// All writes up to that number are on disk.
    pub(super) fn complete(&mut self, number: u64) {
        self.done = self.done.max(number.min(self.last_write));
        while let Some((_, end)) = self.under_way.pop_front_if(|(write, _)| *write <= self.done) {
            self.synced = self.synced.max(end);
        }
    }
}
