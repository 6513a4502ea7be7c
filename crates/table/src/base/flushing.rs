//! The flushes of the stores of a child that takes its base, and their compactions.
//!
//! Each flush adds one run, and a step of compaction merges several. Changes must be stored as fast as they come, so both rest
//! for nothing, and no copy rests for them: many changes would stop all copies.
//!
//! A step of compaction may take seconds, and what is stored when the parents have closed waits for it, and requests with it.
//! So a child compacts nothing from the time on when it lags little, and the parents may close when the last compaction is over.
//! Only a child that waits for others for so long that its runs are many compacts again.

use crate::pool::Pool;
use partage_core::base::id::PlacementId;
use partage_engine::replica::{Store, TreeStore};
use std::sync::Arc;

/// A store with so many runs is compacted whatever waits for it.
const MOST_RUNS: usize = 64;

/// What is under way for a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Flushing {
    #[default]
    No,
    Only,
    AndCompacting,
}

/// Flushes a store, and does one step of compaction if it `compacts` or has many runs; then calls `done`. A failure of it shows
/// when the whole base is stored.
pub(super) fn begin(
    pool: &Pool,
    placement: PlacementId,
    store: Arc<TreeStore>,
    compacts: bool,
    done: impl FnOnce() + Send + 'static,
) -> Flushing {
    let compacts = compacts || store.size().runs >= MOST_RUNS;
    let flush = move || {
        if let Err(error) = store.flush() {
            tracing::warn!(%error, "the rows of a shard that forms are not flushed");
        } else if compacts {
            // A failure shows at the next flush.
            let _ = store.compact();
        }
        drop(store);
        done();
    };
    if compacts {
        pool.add_compaction(placement, flush);
        Flushing::AndCompacting
    } else {
        pool.add(placement, flush);
        Flushing::Only
    }
}
