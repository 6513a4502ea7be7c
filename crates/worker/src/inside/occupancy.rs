//! How many are inside, and how many wait for nobody to be: one number, so that the last request to go sees whether
//! a driver waits, and a driver that waits sees whether a request is left. `tests/loom.rs` tries all orders in which threads can meet here.

use super::atomics::{AtomicU64, Ordering};

/// Who waits is counted above this, who is inside below.
const WAITER: u64 = 1 << 32;

#[derive(Debug)]
pub struct Occupancy(AtomicU64);

impl Occupancy {
    pub fn new() -> Occupancy {
        Occupancy(AtomicU64::new(0))
    }

    /// One more is inside. Read the gates again afterwards, and go if they are shut.
    pub fn come(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// One less is inside. True when those who wait are to be woken.
    #[must_use]
    pub fn go(&self) -> bool {
        let before = self.0.fetch_sub(1, Ordering::SeqCst);
        before % WAITER == 1 && before >= WAITER
    }

    /// How many are inside.
    pub fn count(&self) -> usize {
        (self.0.load(Ordering::SeqCst) % WAITER) as usize
    }

    /// One more waits: the gates are shut and published, so that the count says who came in before.
    pub fn begin_to_wait(&self) {
        self.0.fetch_add(WAITER, Ordering::SeqCst);
    }

    /// One less waits.
    pub fn end_to_wait(&self) {
        self.0.fetch_sub(WAITER, Ordering::SeqCst);
    }
}
