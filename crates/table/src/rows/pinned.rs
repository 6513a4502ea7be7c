//! The rows of one state of a shard, which stay as they are while others are written.
//!
//! A store's snapshot keeps the runs that it reads on the disk, and the rows in memory that were not flushed yet.
//! [`crate::backup`] bounds for how long rows are pinned.

use super::{RowsError, StoredRows, malformed};
use crate::backup::{Chunk, Cutter};
use crate::stored::keys;
use crate::stored::values::decode_row;
use partage_core::keyspace::key::Key;
use partage_engine::replica::{Direction, Snapshot, Store};
use partage_service::table::feed::FeedSettings;
use partage_service::table::replication::LogPosition;
use std::fmt;

/// The rows of a shard at one place of its log.
pub struct PinnedRows<S> {
    pub(super) snapshot: S,
    pub(super) clock_ms: u64,
    /// How changes are kept, of a table with a feed.
    pub(super) feed: Option<FeedSettings>,
}

impl<S: Snapshot> fmt::Debug for PinnedRows<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedRows").field("position", &self.snapshot.position()).finish_non_exhaustive()
    }
}

impl<S: Store> StoredRows<S> {
    /// Pins the rows as they are now.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn pin(&self) -> Result<PinnedRows<S::Snapshot>, RowsError> {
        let (clock_ms, feed) = (self.shard_state.clock_ms, self.feed.settings);
        Ok(PinnedRows { snapshot: self.store.snapshot()?, clock_ms, feed })
    }
}

impl<S: Snapshot> PinnedRows<S> {
    /// Up to which entry of the log they are.
    pub fn position(&self) -> LogPosition {
        self.snapshot.position()
    }

    /// The clock of the shard: rows whose time had come by it are absent.
    pub fn clock_ms(&self) -> u64 {
        self.clock_ms
    }

    /// Reads the chunk that begins with the first row from a key on.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn chunk(&self, from: &Key) -> Result<Chunk, RowsError> {
        let (from, mut cutter) = (keys::row(from), Cutter::new());
        for stored in self.snapshot.range(Some(&from), Some(keys::BEHIND_ROWS), Direction::Forward) {
            let stored = stored?;
            let key = keys::parse_row(&stored.key)
                .ok_or_else(|| malformed("a stored row", "its key", "has another form"))?;
            let row = decode_row(&stored.value)?;
            if row.is_there(self.clock_ms) && !cutter.add(key.as_bytes(), &row.value, row.expires_ms) {
                return Ok(cutter.end(Some(key)));
            }
        }
        Ok(cutter.end(None))
    }
}
