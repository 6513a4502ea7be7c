//! What can go wrong, and what to do then.

use crate::SettingsError;
use partage_core::node::exchange::ReplicaKey;
use std::fmt;

/// A place in a file of the log that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The name of the file, in the folder of the log.
    pub file: String,
    /// The offset in the file, in bytes, of the part that is damaged.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file `{}`, byte {}: {}", self.file, self.offset, self.what)
    }
}

/// Why a log was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The settings cannot work.
    #[error("the settings of the log: {0}")]
    Settings(#[from] SettingsError),
    /// Another process has the folder.
    #[error("another process uses the log in `{0}`: stop it, or give this one a folder of its own")]
    Locked(String),
    /// The files are of another store.
    #[error(
        "the segment `{file}` is of the store {found:x}, and this is the store {owner:x}: give each store a folder of its own"
    )]
    Owner {
        /// The name of the segment's file.
        file: String,
        /// The store that the segment belongs to.
        found: u128,
        /// The store that the log was opened for.
        owner: u128,
    },
    /// A later program wrote the files.
    #[error(
        "the segment `{file}` has a form that this program does not know: {what}; use the program that wrote it"
    )]
    Format {
        /// The name of the segment's file.
        file: String,
        /// What is not known.
        what: String,
    },
    /// The disk failed: the text says at what.
    #[error("{0}")]
    Disk(String),
}

/// Why a group was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The disk has no room for another segment. Nothing was written, and the log stays in use.
    #[error("the disk is full; nothing was written: free room, and write again ({0})")]
    Full(String),
    /// An entry is larger than the bound. Nothing was written.
    #[error("an entry of {replica:?} has {bytes} bytes, the limit is {most}: nothing was written")]
    EntryTooLarge {
        /// The replica that the entry is of.
        replica: ReplicaKey,
        /// Bytes of its payload.
        bytes: usize,
        /// The most that an entry may have: [`crate::LogSettings::entry_bytes`].
        most: usize,
    },
    /// A group is larger than the bound. Nothing was written.
    #[error("a group has {bytes} bytes, the limit is {most}: write less at once; nothing was written")]
    GroupTooLarge {
        /// Bytes of the group.
        bytes: usize,
        /// The most that a group may have: [`crate::LogSettings::group_bytes`].
        most: usize,
    },
    /// A record does not follow on what the log has of the replica. Nothing was written.
    #[error("a record of {replica:?} makes no sense here: {what}; nothing was written")]
    OutOfOrder {
        /// The replica that the record is of.
        replica: ReplicaKey,
        /// Why it does not follow.
        what: &'static str,
    },
    /// What is stored of the replica is damaged. Nothing was written.
    #[error(
        "{replica:?} is damaged: {damage}; nothing was written: forget the replica, and fill it again from another one"
    )]
    Damaged {
        /// The replica that the log has damaged records of.
        replica: ReplicaKey,
        /// The place that is damaged.
        damage: Damage,
    },
    /// A write or a sync failed: what is on the disk is not known, and the log refuses every later write.
    #[error("the disk failed, so the process must end and open the log again: {0}")]
    Ends(String),
}

impl WriteError {
    /// Whether it is certain that nothing of the group is on the disk.
    pub fn is_definite(&self) -> bool {
        !matches!(self, WriteError::Ends(_))
    }

    /// The replica whose records the log refuses, if the log refuses those of one replica only.
    pub fn replica(&self) -> Option<&ReplicaKey> {
        match self {
            WriteError::EntryTooLarge { replica, .. }
            | WriteError::OutOfOrder { replica, .. }
            | WriteError::Damaged { replica, .. } => Some(replica),
            WriteError::Full(_) | WriteError::GroupTooLarge { .. } | WriteError::Ends(_) => None,
        }
    }
}
