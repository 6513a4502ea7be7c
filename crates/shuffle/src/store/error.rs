//! What can go wrong with the files of batches, and what to do then.

use super::index::Place;
use partage_log::Damage;
use partage_service::shuffle::record::BatchKey;

/// Why the store was not opened, or ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Another process has the folder.
    #[error("another process uses the batches in `{0}`: stop it, or give this one a folder of its own")]
    Locked(String),
    /// A file was written by a later version of this program.
    #[error(
        "file `{0}` has batches in a form of a later version of this program: start that version, or give this one another folder"
    )]
    Later(String),
    /// A file was written by an earlier version of this program, whose form this one does not read.
    #[error(
        "file `{0}` has batches in a form of an earlier version of this program: start that version until its shuffles have ended, or give this one another folder"
    )]
    Earlier(String),
    /// A write or a sync failed: what is on the disk is not known, and the store refuses all that follows.
    #[error("the disk failed, so the process must end and open its files again: {0}")]
    Ends(String),
}

/// Why a batch was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// It is not stored here, or not any more.
    #[error("batch {0:?} is not here")]
    Absent(BatchKey),
    /// The system has not read it, for want of file descriptors or memory, say: that tells nothing of the batch.
    #[error("batch {key:?} cannot be read now: {why}")]
    Failed {
        /// The batch.
        key: BatchKey,
        /// What the system says.
        why: String,
    },
    /// It is not stored here any more, as its range is in the object store, which was not asked.
    #[error("batch {0:?} is not here any more: its range is in the object store")]
    Moved(BatchKey),
    /// What it has of a range is in the object store, and was not read from there.
    #[error("batch {key:?} is not here any more, and its range is not read from the object store: {why}")]
    Object {
        /// The first batch that was not on the disk.
        key: BatchKey,
        /// It is not there any more, or damaged: reading it again does not help.
        is_lost: bool,
        /// What the store says.
        why: String,
    },
    /// It is not as it was written.
    #[error("batch {key:?} is damaged: {damage}; fetch it from another replica")]
    Damaged {
        /// The batch.
        key: BatchKey,
        /// Where it lies: it may have been stored anew since, at another place.
        place: Box<Place>,
        /// Where, and what is wrong.
        damage: Box<Damage>,
    },
}
