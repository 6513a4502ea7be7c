//! The change feed of a table: what became of its rows, in order for each key, for as long as the table keeps changes.
//!
//! ```text
//!  entry 7-12 of the log ──apply──► rows of a, b   +  changes 7-12·a, 7-12·b      one group of the store
//!
//!  reader: [ a ─ m )  after 7-12     [ m ─ z )  after 7-9·p                       its progress, which a token carries
//! ```
//!
//! A change is a record of the shard's own store, written with the row that it is of. So the replicas agree on changes as they do
//! on rows: a change of the leader loses none, a snapshot has them, and the children of a split or a merge take those of
//! their keys.
//!
//! | question | answer |
//! |---|---|
//! | where a change is | at the position of its entry, epoch and index, and within an entry in the order of keys. Along the line of a shard and its children positions only grow: a child has a later epoch than the writes of its parents, or the same and later indexes |
//! | what a reader has | for each part of the table the position up to which it has read ([`Progress`]). Bounds of parts are its own: a split cuts a part, and in a merged shard each part goes on from its own position. So no position is ever renumbered |
//! | how long changes are kept | [`FeedSettings::kept_ms`] by the shard's clock. Each entry removes the oldest ones whose time is over, in the order of positions, a bounded number; a leader without writes moves the clock on |
//! | when a reader is too late | when a change behind its position was removed ([`Removed`]), however few changes there are: a reader that had all of them is not late when they are gone |
//!
//! | module | what it decides |
//! |---|---|
//! | [`progress`] | what a reader has, and how that is cut by the bounds of shards |
//! | [`reader`] | which changes of one shard a reader lacks, and how far it then is |
//! | [`removed`] | up to where changes are removed, over splits and merges |

pub mod progress;
pub mod reader;
pub mod removed;
#[cfg(test)]
mod tests;

pub use progress::{Part, Progress, Reached, Since};
pub use reader::{Gone, Reader};
pub use removed::Removed;

use super::replication::LogPosition;
use super::rows::{Record, Records, Row, Value};
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::{PartitionKey, Position, Sharding};
use partage_core::limits;

/// How a table keeps changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedSettings {
    /// How long changes are kept, in milliseconds by the shard's clock.
    pub kept_ms: u64,
    /// How keys map to shards: which part of the table a change is in.
    pub sharding: Sharding,
    /// Which part of a key is sharded by.
    pub partition_key: PartitionKey,
}

impl FeedSettings {
    /// Where a key lies.
    pub fn position<'a>(&self, key: &'a Key) -> Position<'a> {
        self.sharding.position(self.partition_key, key.as_bytes())
    }
}

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// It was written: it has another value, version or time to end.
    Put,
    /// A write deleted it.
    Delete,
    /// Its time had come.
    Expired,
}

/// A change of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What became of the row.
    pub kind: ChangeKind,
    /// The shard's clock then, in milliseconds of Unix time.
    pub at_ms: u64,
    /// The value that the row has since; none where it is gone.
    pub value: Option<Value>,
    /// When the row ends, in milliseconds of Unix time; none: never, or it is gone.
    pub expires_ms: Option<u64>,
}

impl Change {
    /// The change of a row that is `now` so. `ended`: it was removed as its time had come.
    pub(super) fn of(now: Option<&Row>, ended: bool, at_ms: u64) -> Change {
        let kind = match now {
            Some(_) => ChangeKind::Put,
            None if ended => ChangeKind::Expired,
            None => ChangeKind::Delete,
        };
        let value = now.map(|row| row.value.clone());
        Change { kind, at_ms, value, expires_ms: now.and_then(|row| row.expires_ms) }
    }

    /// Bytes of its value.
    pub fn bytes(&self) -> usize {
        self.value.as_ref().map_or(0, |value| value.len())
    }
}

/// Where a change is: the position of its entry, and its key.
pub type Place = (LogPosition, Key);

/// The changes that an entry removes which has written `written`: the oldest whose time is over. More than it has written, so
/// that they do not pile up, and no more than a bounded number beyond.
pub(super) fn remove_old<R: Records>(
    records: &R,
    settings: FeedSettings,
    clock_ms: u64,
    written: &[Record],
) -> Result<Vec<Record>, R::Error> {
    let Some(until_ms) = clock_ms.checked_sub(settings.kept_ms) else { return Ok(Vec::new()) };
    let new = written.iter().filter_map(|record| match record {
        Record::Change(_, _, Some(change)) => Some(change.bytes()),
        _ => None,
    });
    let (count, bytes) = new.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
    let old = records.changes(
        until_ms,
        limits::CHANGES_REMOVED + 2 * count,
        limits::CHANGE_BYTES_REMOVED + 2 * bytes,
    )?;
    if old.is_empty() {
        return Ok(Vec::new());
    }
    let mut removed = records.removed()?;
    old.iter().for_each(|(at, key)| removed.remove(settings.position(key), *at));
    let gone = old.into_iter().map(|(at, key)| Record::Change(at, key, None));
    Ok(gone.chain([Record::Removed(removed)]).collect())
}
