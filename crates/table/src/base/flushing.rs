//! The flushes of the stores of a child that takes its base, and their compactions.
//!
//! Each flush adds one run, and a step of compaction merges several. Changes must be stored as fast as they come, so both rest
//! for nothing, and no copy rests for them: many changes would stop all copies.
//!
//! A step of compaction may take seconds, and what is stored when the parents have closed waits for it, and requests with it.
//! So a child begins no compaction from the time on when it lags little, and the parents may close when none is under way. Only
//! a child that waits for others for so long that its runs are many compacts again.

use crate::pool::Pool;
use crate::queue::ReplicaQueue;
use partage_engine::replica::{Store, TreeStore};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// A store with so many runs is compacted whatever waits for it. The engine itself merges twice as many at a flush.
const MOST_RUNS: usize = 32;

/// The compactions of all stores of a child.
#[derive(Debug, Default)]
pub(super) struct Compactions {
    /// The child lags little: none begins.
    rest: AtomicBool,
    /// One waits for its turn. A store that is flushed meanwhile is compacted after its next flush.
    waits: AtomicBool,
    /// One is under way: no two are at a time, as tasks of a placement are done one after the other.
    runs: AtomicBool,
}

impl Compactions {
    /// Begins none from now on, or begins them again.
    pub(super) fn set_rest(&self, rest: bool) {
        self.rest.store(rest, Ordering::SeqCst);
    }

    /// Whether one is under way. None begins after this has said no, if they rest since before.
    pub(super) fn is_under_way(&self) -> bool {
        self.runs.load(Ordering::SeqCst)
    }

    /// Lets a store that was flushed be compacted, and wakes the child then.
    pub(super) fn flushed(self: &Arc<Self>, pool: &Pool, queue: &Arc<ReplicaQueue>, store: &Arc<TreeStore>) {
        if self.waits.swap(true, Ordering::SeqCst) {
            return;
        }
        // A store that was given up meanwhile is left as it is: its folder may be gone.
        let (compactions, queue, store) = (Arc::clone(self), Arc::clone(queue), Arc::downgrade(store));
        pool.add_compaction(queue.key.placement, move || {
            compactions.waits.store(false, Ordering::SeqCst);
            // Before it looks whether they rest: see `is_under_way`.
            compactions.runs.store(true, Ordering::SeqCst);
            compactions.compact(&store);
            compactions.runs.store(false, Ordering::SeqCst);
            queue.wake();
        });
    }

    fn compact(&self, store: &Weak<TreeStore>) {
        let Some(store) = store.upgrade() else { return };
        if !self.rest.load(Ordering::SeqCst) || store.size().runs >= MOST_RUNS {
            // A failure shows at the next flush.
            let _ = store.compact();
        }
    }
}
