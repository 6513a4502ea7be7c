//! What a node tells the service that opened it (`service/mod.rs`).

use partage_core::base::id::Epoch;
use partage_core::node::exchange::{ReplicaKey, ReplicationReport};

/// What a node tells its service.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice {
    /// The worker's report of a replica has changed: its wish for another set, a silent leader, a ready heir, the end of the log.
    Report(ReplicaKey, ReplicationReport),
    /// The replica leads, and serves, under that epoch.
    Began(ReplicaKey, Epoch),
    /// The stored data of the replica is damaged, and the replica has stopped: the service reports that, and drops it.
    Damaged(ReplicaKey, String),
    /// The store of the replica has failed, and the replica has stopped until the service closes and opens it.
    Failed(ReplicaKey, String),
    /// The disk has no room for the log or for a store: writes are refused until there is.
    DiskIsFull(String),
    /// There is room again for the log and all stores.
    DiskHasRoom,
    /// A replica that is not open keeps the log too long, as it is damaged or has entries not known to be committed: the service
    /// opens or drops it.
    HoldsLog(ReplicaKey),
    /// The disk of the log has failed. The node acknowledges nothing any more: the service drops it, and may open it again.
    Ended(String),
}

/// Takes the notices of a node. The node calls it while it serves a replica, on any thread, also that of the log: `notify` must
/// not block, and no thread may call the node while it holds a lock that `notify` takes.
pub trait NoticeSink: Send + Sync {
    /// Takes a notice, while a thread of the node waits.
    fn notify(&self, notice: Notice);
}
