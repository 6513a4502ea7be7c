//! The store of one table replica: its rows in the order of their keys, and the log position up to which it has them.
//!
//! A node writes all entries of its replicas to one log. The driver applies committed entries to the store of their replica. The
//! store keeps the changes in a sorted map in memory (a memtable) until a flush writes the map as one sorted run to its folder.
//! So the store needs no log of its own.
//!
//! ```text
//!  apply ──► map in memory ──► flush ──► run, with the log position as one of its rows
//!            (layers: one for            │
//!             each snapshot)             ▼ compaction merges runs
//!  get, range, export ◄── newest layer, …, oldest layer, newest run, …, oldest run
//! ```
//!
//! [`TreeEngine`] is the engine of the product, over `lsm-tree`; [`SimulatedEngine`] keeps everything in memory and loses on
//! request what a crash would. One suite, in `crates/engine/tests/replica`, runs on both.
//!
//! # What a driver relies on
//!
//! 1. After a crash a store has exactly the groups up to [`Store::flushed`], all of each: the position is a row of the same
//!    run, and the library adds a run to a store as a whole. The driver then applies the log from there.
//! 2. The store refuses a group that does not follow on the last one: so no gap in a log goes unseen.
//! 3. A read sees a group as a whole or not at all, and a snapshot does not change.
//! 4. A store that is being filled from another replica refuses all other calls until it has the last chunk, also after a crash.
//! 5. Damage is an error, never a wrong row. [`Store::verify`] reads all files and names the damaged one.
//! 6. All calls block, on the disk too; a driver makes them on threads that may. One thread may flush or compact while others
//!    apply and read.
//! 7. After a failed write to the disk the store returns [`Error::Broken`] until the driver opens it again.
//!
//! A row has no version here: what a table needs to know of a row, its version and its expiry, is a part of its value.

mod error;
mod layers;
pub mod limits;
mod merge;
mod shared_bytes;
mod simulated;
mod stored_form;
mod tree;

use std::path::Path;

use partage_service::table::replication::LogPosition;

pub use error::Error;
pub use shared_bytes::SharedBytes;
pub use simulated::{SimulatedEngine, SimulatedSnapshot, SimulatedStore};
pub use tree::{Options, TreeEngine, TreeSnapshot, TreeStore};

/// Opens and removes the stores of a node. Each store has a folder of its own.
pub trait Engine: Send + Sync {
    /// A store of this engine.
    type Store: Store;

    /// Opens the store in a folder, or begins one there if there is none. The driver must not open a folder twice at a time.
    fn open(&self, folder: &Path) -> Result<Self::Store, Error>;

    /// Removes a store that is not open, with everything in its folder. After a crash in the middle of it the store is either
    /// there as a whole or gone.
    fn remove(&self, folder: &Path) -> Result<(), Error>;
}

/// The store of one replica. After a failure the driver opens it again.
pub trait Store: Send + Sync {
    /// A snapshot of this store.
    type Snapshot: Snapshot;

    /// What the store has on the disk.
    fn condition(&self) -> Condition;

    /// The position of the last group that was applied, on the disk or not.
    fn applied(&self) -> LogPosition;

    /// The position up to which everything is on the disk. It is 0 of epoch 0 in a new store, and while the store is filled.
    fn flushed(&self) -> LogPosition {
        match self.condition() {
            Condition::Usable { flushed } => flushed,
            Condition::Filling { .. } => LogPosition::default(),
        }
    }

    /// Applies a group: all entries of the log behind `before` up to `position`, as changes of which the last one of a key
    /// counts.
    ///
    /// # Errors
    ///
    /// [`Error::NotNext`] if `before` is not what the store has applied. A group with an error is not applied at all.
    fn apply(&self, before: LogPosition, position: LogPosition, changes: &[Change<'_>]) -> Result<(), Error>;

    /// The value of a key, with all groups that were applied before the call.
    fn get(&self, key: &[u8]) -> Result<Option<SharedBytes>, Error>;

    /// All rows as they are now.
    fn snapshot(&self) -> Result<Self::Snapshot, Error>;

    /// Bytes of memory of the unflushed rows. A driver flushes at [`limits::FLUSH_BYTES`].
    fn unflushed_bytes(&self) -> usize;

    /// Writes all groups to the disk that were applied before the call, and returns the position of the last one. Other threads
    /// may apply meanwhile. After [`Error::NoRoom`] all rows are as they were, and the driver flushes again when there is room.
    fn flush(&self) -> Result<LogPosition, Error>;

    /// Adds a chunk of another replica's snapshot at `position` to a store that is new or is being filled from the same snapshot.
    /// Rows ascend. When the last chunk is on the disk, the store is usable, and has applied `position`.
    ///
    /// Each chunk is on the disk when the call returns. After a crash [`Store::condition`] has the key behind which to resume.
    fn fill(&self, position: LogPosition, rows: &[Row], is_last: bool) -> Result<(), Error>;

    /// Does one step of compaction, and returns whether it changed something: if so, another step may be due.
    fn compact(&self) -> Result<bool, Error>;

    /// How large the store is.
    fn size(&self) -> Size;

    /// A key with about half of the data before it, for a split; none in a store that has not got two rows. In a store that has
    /// most of its data on the disk the unflushed rows are not looked at.
    fn median(&self) -> Result<Option<SharedBytes>, Error>;

    /// Reads everything that is on the disk.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] with the first file that is not as it was written.
    fn verify(&self) -> Result<(), Error>;
}

/// All rows of a store at one position of the log.
pub trait Snapshot: Send + Sync {
    /// The position: all groups up to it are in the snapshot, and none behind it.
    fn position(&self) -> LogPosition;

    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<SharedBytes>, Error>;

    /// The rows from a key on and before another one, in the order of their keys or against it. Behind an error comes nothing.
    fn range<'a>(&'a self, from: Option<&[u8]>, to: Option<&[u8]>, direction: Direction) -> Rows<'a>;

    /// A chunk of the rows from a key on and before another one. It has at least one row if there is one, and ends with the row
    /// at which its keys and values take `bytes`.
    fn export(&self, from: Option<&[u8]>, to: Option<&[u8]>, bytes: usize) -> Result<Chunk, Error> {
        let mut chunk = Chunk { rows: Vec::new(), next: None };
        let mut left = bytes;
        for row in self.range(from, to, Direction::Forward) {
            let row = row?;
            if left == 0 && !chunk.rows.is_empty() {
                chunk.next = Some(row.key);
                break;
            }
            left = left.saturating_sub(row.key.len() + row.value.len()).min(left.saturating_sub(1));
            chunk.rows.push(row);
        }
        Ok(chunk)
    }
}

/// Rows of a snapshot.
pub type Rows<'a> = Box<dyn Iterator<Item = Result<Row, Error>> + Send + 'a>;

/// A change of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change<'a> {
    /// The key of the row: any bytes, none too, up to [`limits::KEY_BYTES`].
    pub key: &'a [u8],
    /// What the row has from now on, up to [`limits::VALUE_BYTES`]; none deletes it.
    pub value: Option<&'a [u8]>,
}

/// A row of a snapshot or a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The key, of up to [`limits::KEY_BYTES`].
    pub key: SharedBytes,
    /// The value, of up to [`limits::VALUE_BYTES`].
    pub value: SharedBytes,
}

/// A part of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Rows in ascending order.
    pub rows: Vec<Row>,
    /// The key to export the next chunk from; none if this was the last one.
    pub next: Option<SharedBytes>,
}

/// What a store has on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Everything up to a position.
    Usable {
        /// The position up to which it has all groups.
        flushed: LogPosition,
    },
    /// A part of another replica's snapshot.
    Filling {
        /// The position of the snapshot.
        position: LogPosition,
        /// The last key that the store has; none if it has no row.
        through: Option<SharedBytes>,
    },
}

/// How large a store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// What its files take, with rows that are overwritten or deleted and not compacted away yet.
    pub disk_bytes: u64,
    /// What its unflushed rows take in memory.
    pub unflushed_bytes: u64,
    /// Rows on the disk, with each overwritten one and each deletion counted too.
    pub disk_rows: u64,
    /// Runs in the first level: reads look into each of them. Compaction is due at [`limits::DUE_RUNS`].
    pub runs: usize,
}

/// The order in which rows come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the first key on.
    Forward,
    /// From the last key back.
    Backward,
}

/// Whether a group may be applied behind `applied`, and whether its changes keep the limits.
fn check_group(
    applied: LogPosition,
    before: LogPosition,
    position: LogPosition,
    changes: &[Change<'_>],
) -> Result<(), Error> {
    if before != applied {
        return Err(Error::NotNext { applied, before });
    }
    if position.index <= before.index || position.epoch < before.epoch {
        return Err(Error::Backwards { before, position });
    }
    changes.iter().try_for_each(|change| check_row(change.key, change.value.unwrap_or_default()))
}

fn check_row(key: &[u8], value: &[u8]) -> Result<(), Error> {
    if key.len() > limits::KEY_BYTES {
        return Err(Error::KeyTooLong(key.len()));
    }
    if value.len() > limits::VALUE_BYTES {
        return Err(Error::ValueTooLong(value.len()));
    }
    Ok(())
}

/// Whether a chunk may be added to a store with that condition.
fn check_chunk(
    has: &Condition,
    applied: LogPosition,
    position: LogPosition,
    rows: &[Row],
) -> Result<(), Error> {
    let mut last = match has {
        Condition::Usable { .. } if applied == LogPosition::default() => None,
        Condition::Usable { .. } => {
            return Err(Error::NotForFilling { has: format!("everything up to {applied}"), position });
        }
        Condition::Filling { position: other, through } if *other == position => through.clone(),
        Condition::Filling { position: other, .. } => {
            return Err(Error::NotForFilling { has: format!("a part of a snapshot at {other}"), position });
        }
    };
    for (number, row) in rows.iter().enumerate() {
        check_row(&row.key, &row.value)?;
        if last.is_some_and(|last| row.key <= last) {
            return Err(Error::NotSorted { row: number });
        }
        last = Some(row.key.clone());
    }
    Ok(())
}

/// The condition behind a chunk.
fn condition_after(has: &Condition, position: LogPosition, rows: &[Row], is_last: bool) -> Condition {
    if is_last {
        return Condition::Usable { flushed: position };
    }
    let before = match has {
        Condition::Filling { through, .. } => through.clone(),
        Condition::Usable { .. } => None,
    };
    Condition::Filling { position, through: rows.last().map(|row| row.key.clone()).or(before) }
}
