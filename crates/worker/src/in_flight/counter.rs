//! How many requests are in flight, and how many drivers wait for none to be: one number, so that the last request that
//! ends sees whether a driver waits, and a driver that waits sees whether a request is left. Beside it, how often all that
//! were in flight were evicted. `tests/loom.rs` tries all orders in which threads can meet here.

use super::atomics::{AtomicU64, Ordering};

/// Drivers that wait are counted above this, requests in flight below.
const WAITER: u64 = 1 << 32;

#[derive(Debug)]
pub struct InFlightCounter {
    count: AtomicU64,
    evictions: AtomicU64,
}

/// The number of evictions before a request entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictionEpoch(u64);

impl InFlightCounter {
    pub fn new() -> InFlightCounter {
        InFlightCounter { count: AtomicU64::new(0), evictions: AtomicU64::new(0) }
    }

    /// One more is in flight. Read the gates again afterwards, and leave if they are shut.
    pub fn enter(&self) -> EvictionEpoch {
        // Before it counts: an eviction while it is in flight evicts it, too.
        let entered_at = EvictionEpoch(self.evictions.load(Ordering::SeqCst));
        self.count.fetch_add(1, Ordering::AcqRel);
        entered_at
    }

    /// What is in flight has to end. Publish shut gates first: a request that still enters is not evicted.
    pub fn evict(&self) {
        self.evictions.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether one that entered at that epoch has to end.
    pub fn is_evicted(&self, entered_at: EvictionEpoch) -> bool {
        self.evictions.load(Ordering::SeqCst) != entered_at.0
    }

    /// One less is in flight. True when the caller must wake the waiting tasks.
    #[must_use]
    pub fn leave(&self) -> bool {
        let before = self.count.fetch_sub(1, Ordering::SeqCst);
        before % WAITER == 1 && before >= WAITER
    }

    /// How many are in flight.
    pub fn count(&self) -> usize {
        (self.count.load(Ordering::SeqCst) % WAITER) as usize
    }

    /// Counts a waiting driver: the gates are shut and published, so that the count says which requests entered before.
    pub fn begin_to_wait(&self) {
        self.count.fetch_add(WAITER, Ordering::SeqCst);
    }

    /// Counts a waiting driver no more.
    pub fn end_to_wait(&self) {
        self.count.fetch_sub(WAITER, Ordering::SeqCst);
    }
}
