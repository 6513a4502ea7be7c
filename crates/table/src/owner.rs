//! What a node tells its owner.

use partage_core::base::id::Epoch;
use partage_core::node::exchange::{ReplicaKey, ReplicationReport};

/// What a node tells its owner.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice {
    /// What the worker is to report of a replica has changed: a wish for another set, a silent leader, an heir
    /// that is ready, the end of the log.
    Report(ReplicaKey, ReplicationReport),
    /// The replica leads, and serves, under that epoch.
    Began(ReplicaKey, Epoch),
    /// What is stored of the replica is damaged, and it takes part in nothing any more: the owner reports so, and drops it.
    Damaged(ReplicaKey, String),
    /// The store of the replica has failed, and it takes part in nothing until the owner has closed and opened it.
    Failed(ReplicaKey, String),
    /// The disk has no room for the log or for a store: writes are refused until there is.
    DiskIsFull(String),
    /// There is room again for the log and all stores.
    DiskHasRoom,
    /// The log is longer than it should be because of a replica that is not open, of which it has entries that are not known to
    /// be committed, or which is damaged: the owner opens it, or drops it.
    HoldsLog(ReplicaKey),
    /// The disk of the log has failed. Nothing is acknowledged any more: the owner drops the node, and may open it again.
    Ended(String),
}

/// Hears what happens on a node. The node calls while it serves a replica, on any thread, that of the log among them: `hears`
/// must not block, and no thread may call the node while it holds a lock that `hears` takes.
pub trait Owner: Send + Sync {
    /// Takes a notice in, on a thread of the node that waits meanwhile.
    fn hears(&self, notice: Notice);
}
