//! What can go wrong with a stored replica, said with its folder or file and the way out.

use std::io;
use std::path::PathBuf;

use partage_service::table::replication::LogPosition;

use super::limits::{KEY_BYTES, RUNS, VALUE_BYTES};

/// Why a store did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{}: {doing}: {source}", path.display())]
    Io {
        /// The file, or the folder if the file is not known.
        path: PathBuf,
        /// What the store was doing, for the message.
        doing: &'static str,
        /// The error that the operating system gave.
        source: io::Error,
    },
    /// The disk is full. Nothing was written, and the store goes on.
    #[error("{}: {doing}: {source}; nothing was written: free room on the disk, and write again", path.display())]
    NoRoom {
        /// The folder of the store.
        path: PathBuf,
        /// What the store was doing, for the message.
        doing: &'static str,
        /// The error that the operating system gave.
        source: io::Error,
    },
    /// What is on the disk is not what was written.
    #[error("{}: damaged ({what}); remove the store and fill it from another replica", path.display())]
    Damaged {
        /// The file, or the folder if the file is not known.
        path: PathBuf,
        /// What is wrong with it, for the message.
        what: String,
    },
    /// The library stopped at something that it had not expected: damage, or a fault of it.
    #[error(
        "{}: {doing}: lsm-tree panicked ({what}); open the store again, and if that does not help fill it from another replica",
        path.display()
    )]
    Panicked {
        /// The folder of the store.
        path: PathBuf,
        /// What the store was doing, for the message.
        doing: &'static str,
        /// What the panic said.
        what: String,
    },
    /// An earlier write failed, so that it is unknown what of it is on the disk.
    #[error("{}: {why}; open the store again", path.display())]
    Broken {
        /// The folder of the store.
        path: PathBuf,
        /// The failure of that write, in words.
        why: String,
    },
    /// The group does not join what was applied.
    #[error(
        "a group after {before} was given to a store that has applied {applied}: replay the log from there, or fill the store from another replica if the log begins later"
    )]
    NotNext {
        /// What the store has applied.
        applied: LogPosition,
        /// The position before the group.
        before: LogPosition,
    },
    /// The position of a group is not behind the one before it.
    #[error("the position {position} of a group is not behind {before}")]
    Backwards {
        /// The position before the group.
        before: LogPosition,
        /// The position of the group itself.
        position: LogPosition,
    },
    /// See [`KEY_BYTES`].
    #[error("a key of {0} bytes is longer than the limit of {KEY_BYTES}; shorten it")]
    KeyTooLong(usize),
    /// See [`VALUE_BYTES`].
    #[error("a value of {0} bytes is longer than the limit of {VALUE_BYTES}; divide it")]
    ValueTooLong(usize),
    /// The store is being filled from another replica and has not got everything.
    #[error(
        "the store is being filled up to {position} and is not complete; go on behind the last key, or remove it and begin again"
    )]
    Filling {
        /// The position that the store has when it is complete.
        position: LogPosition,
    },
    /// The store has rows of its own, or is filled with another snapshot.
    #[error("a store with {has} cannot be filled with a snapshot at {position}; remove it and begin again")]
    NotForFilling {
        /// What the store has, for the message.
        has: String,
        /// The position of the snapshot.
        position: LogPosition,
    },
    /// Rows to fill a store with must ascend, within a chunk and from chunk to chunk.
    #[error("row {row} of the chunk is not behind the row before it; give rows in ascending order of keys")]
    NotSorted {
        /// Number of the row in the chunk, from 0.
        row: usize,
    },
    /// Compaction did not make room in the first level.
    #[error(
        "{}: {runs} runs wait for compaction, with a limit of {RUNS}; call compact until it says that nothing is due",
        path.display()
    )]
    TooManyRuns {
        /// The folder of the store.
        path: PathBuf,
        /// The runs that wait in the first level.
        runs: usize,
    },
}

impl Error {
    /// Whether the disk has lost something, so that the store must be filled from another replica.
    pub fn is_damage(&self) -> bool {
        matches!(self, Error::Damaged { .. })
    }

    /// Whether there was no room, and nothing else is wrong: the same succeeds when there is.
    pub fn is_no_room(&self) -> bool {
        matches!(self, Error::NoRoom { .. })
    }
}
