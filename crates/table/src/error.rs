//! What can go wrong, and what to do then.

use partage_core::base::id::PlacementId;
use partage_core::node::exchange::ReplicaKey;
use partage_service::table::replication::Failed;
use partage_service::table::rows::Invalid;
use std::path::PathBuf;

/// Why a node was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The log was not opened.
    #[error("{0}")]
    Log(#[from] partage_log::OpenError),
    /// The folder of the stores cannot be read.
    #[error("{}: {doing}: {source}", path.display())]
    Folder {
        /// The folder below which the node's stores lie.
        path: PathBuf,
        /// What the node tried to do with the folder, for the message.
        doing: &'static str,
        /// The error that the operating system gave.
        source: std::io::Error,
    },
    /// What an ended drop has left cannot be removed.
    #[error("{0}")]
    Leftover(partage_engine::replica::Error),
    /// A store needs room to be opened.
    #[error("{0}; then start the node again")]
    NoRoom(partage_engine::replica::Error),
    /// The system gives no thread.
    #[error("the system gives no thread ({0}): raise its limit, or run fewer nodes")]
    Thread(std::io::Error),
}

/// Why a replica was not opened, closed or dropped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplicaError {
    /// It is open, or is being opened, closed or dropped.
    #[error("the replica {0:?} is open, or about to be opened, closed or dropped: wait, or close it first")]
    Busy(ReplicaKey),
    /// The replica is on disk, and not open.
    #[error("the replica {0:?} is not open: open it first")]
    NotOpen(ReplicaKey),
    /// What is stored of it is damaged.
    #[error("the replica {0:?} is damaged: {1}; drop it, and let another placement be filled")]
    Damaged(ReplicaKey, String),
    /// The store of the replica cannot be opened.
    #[error("the store of the replica {0:?} cannot be opened: {1}")]
    Store(ReplicaKey, String),
    /// The disk of the log has failed.
    #[error("the node has ended, as the disk of its log failed: {0}; open the node again")]
    Ended(String),
    /// The folder of the replica cannot be removed.
    #[error(
        "the replica {0:?} is forgotten, and its folder cannot be removed: {1}; the next opening of the node does"
    )]
    NotRemoved(ReplicaKey, String),
}

/// Why a write was not done, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The write is beyond the limits of writes.
    #[error("{0}")]
    Invalid(#[from] Invalid),
    /// It is larger than an entry of the log may be.
    #[error("the write takes {bytes} bytes in the log, the limit is {most}: send several")]
    TooLarge {
        /// The bytes that the write takes in the log.
        bytes: usize,
        /// The limit of this node's log.
        most: usize,
    },
    /// The replica is not open here.
    #[error("the replica is not open on this node: ask for the shard's leader anew")]
    NotOpen,
    /// Too many requests wait for the replica.
    #[error("too many requests wait for the replica: try again later")]
    Busy,
    /// The disk has no room for the log or for a store.
    #[error(
        "the disk of the shard's leader is full, and nothing was written: free room on it, or write again when another node leads"
    )]
    DiskIsFull,
    /// The disk has stored nothing for long, and no other node could lead.
    #[error(
        "the disk of the shard's leader is stalled and stores nothing, and nothing was written: look at the disk, or write again when \
         another node leads"
    )]
    DiskIsStalled,
    /// The replica has stopped, as its store failed.
    #[error("the replica has stopped: {0}")]
    Stopped(String),
    /// Replication refuses it; nothing was logged.
    #[error("{0}")]
    Refused(Failed),
    /// It may or may not be done. A client that gave a request id sends it again.
    #[error("the outcome of the write is unknown: {0}")]
    Unknown(String),
}

impl WriteError {
    /// Whether it is certain that the write has done nothing.
    pub fn is_definite(&self) -> bool {
        !matches!(self, WriteError::Unknown(_))
    }

    /// Which replica leads, if that is why the write was refused and it is known.
    pub fn leader(&self) -> Option<PlacementId> {
        match self {
            WriteError::Refused(Failed::NotLeader(leader)) => *leader,
            _ => None,
        }
    }
}

impl From<Failed> for WriteError {
    fn from(failed: Failed) -> WriteError {
        match failed {
            Failed::Unknown(why) => WriteError::Unknown(why.to_owned()),
            refused => WriteError::Refused(refused),
        }
    }
}

/// Why a read was not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The replica is not open here.
    #[error("the replica is not open on this node: ask another one")]
    NotOpen,
    /// Too many requests wait for the replica.
    #[error("too many requests wait for the replica: try again later")]
    Busy,
    /// The replica has stopped, as its store or the log failed.
    #[error("the replica has stopped: {0}")]
    Stopped(String),
    /// The machine of the replica refuses it, for example as it does not lead or has too old rows.
    #[error("{0}")]
    Refused(#[from] Failed),
}
