//! How many are inside, and how many wait for nobody to be: one number, so that the last request to go sees whether
//! a driver waits, and a driver that waits sees whether a request is left. Beside it, how often all that were inside had
//! to go. `tests/loom.rs` tries all orders in which threads can meet here.

use super::atomics::{AtomicU64, Ordering};

/// Who waits is counted above this, who is inside below.
const WAITER: u64 = 1 << 32;

#[derive(Debug)]
pub struct Occupancy {
    count: AtomicU64,
    evictions: AtomicU64,
}

/// The evictions before a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Came(u64);

impl Occupancy {
    pub fn new() -> Occupancy {
        Occupancy { count: AtomicU64::new(0), evictions: AtomicU64::new(0) }
    }

    /// One more is inside. Read the gates again afterwards, and go if they are shut.
    pub fn come(&self) -> Came {
        // Before it counts: whoever evicts when it is inside evicts it, too.
        let came = Came(self.evictions.load(Ordering::SeqCst));
        self.count.fetch_add(1, Ordering::AcqRel);
        came
    }

    /// Who is inside has to go. Publish shut gates first: whoever still comes in is not evicted.
    pub fn evict(&self) {
        self.evictions.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether one that came in then has to go.
    pub fn is_evicted(&self, came: Came) -> bool {
        self.evictions.load(Ordering::SeqCst) != came.0
    }

    /// One less is inside. True when those who wait are to be woken.
    #[must_use]
    pub fn go(&self) -> bool {
        let before = self.count.fetch_sub(1, Ordering::SeqCst);
        before % WAITER == 1 && before >= WAITER
    }

    /// How many are inside.
    pub fn count(&self) -> usize {
        (self.count.load(Ordering::SeqCst) % WAITER) as usize
    }

    /// One more waits: the gates are shut and published, so that the count says who came in before.
    pub fn begin_to_wait(&self) {
        self.count.fetch_add(WAITER, Ordering::SeqCst);
    }

    /// One less waits.
    pub fn end_to_wait(&self) {
        self.count.fetch_sub(WAITER, Ordering::SeqCst);
    }
}
