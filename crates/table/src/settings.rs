//! The numbers that a node runs by. Each has a default and a reason.

use crate::stored::keys;
use partage_core::keyspace::RowValues;
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use partage_core::node::disk::DiskLimits;
use partage_engine::replica::{Options, limits};
use partage_log::{LogSettings, WriterSettings};
use partage_service::table::copy::pacing;
use partage_service::table::feed::FeedSettings;
use partage_service::table::replication;
use partage_service::table::split::inherit;
use std::num::NonZeroUsize;

/// The settings of one node, which is one data directory.
#[derive(Debug, Clone, Copy)]
pub struct NodeSettings {
    /// The log, with the store that it belongs to. Its largest entry must be the same on all nodes: what one takes, all must.
    pub log: LogSettings,
    /// The thread that writes the log.
    pub writer: WriterSettings,
    /// What all stores share.
    pub engine: Options,
    /// Threads that have the machines of replicas. One replica is always on the same one.
    pub replica_threads: usize,
    /// Threads that flush, compact, and export and fill stores.
    pub storage_threads: usize,
    /// A store with so many bytes in memory is flushed.
    pub flush_bytes: usize,
    /// How much of its disk may be used.
    pub disk: DiskLimits,
    /// How fast rows are copied to and from other replicas.
    pub copies: pacing::Settings,
}

/// What is left at `full` is for compactions and for what the node's followers still log; `nearly_full` leaves time to make room.
/// No limit counts bytes: on a small disk it would refuse all.
pub const DISK_LIMITS: DiskLimits = DiskLimits { nearly_full: 0.95, full: 0.98 };

impl Default for NodeSettings {
    /// A thread of replicas for each two cores: the log, the network and the connections need as much. Two threads of storage:
    /// stores of different replicas go on while one waits for the disk.
    fn default() -> NodeSettings {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        NodeSettings {
            log: LogSettings::default(),
            writer: WriterSettings::default(),
            engine: Options::default(),
            replica_threads: (cores / 2).max(1),
            storage_threads: 2,
            flush_bytes: limits::FLUSH_BYTES,
            disk: DISK_LIMITS,
            copies: pacing::Settings::default(),
        }
    }
}

/// The settings of one replica, as its keyspace says.
#[derive(Debug, Clone, Copy)]
pub struct ReplicaSettings {
    /// The times and bounds of its replication, and how many replicas must be in sync.
    pub replication: replication::Settings,
    /// Which part of a key decides its partition: a batch stays within one.
    pub partition_key: PartitionKey,
    /// How its keys map to shards: which child of a split a row goes to.
    pub sharding: Sharding,
    /// Which values its rows may have.
    pub values: RowValues,
    /// For how long its change feed keeps changes, in milliseconds; 0: it has no feed.
    pub feed_ms: u64,
}

impl Default for ReplicaSettings {
    /// Of a table whose shards are ranges of whole keys.
    fn default() -> ReplicaSettings {
        let (replication, partition_key) = (replication::Settings::default(), PartitionKey::default());
        let (sharding, values) = (Sharding::KeyRange, RowValues::Bytes);
        ReplicaSettings { replication, partition_key, sharding, values, feed_ms: 0 }
    }
}

impl ReplicaSettings {
    /// How changes are kept; none: they are not.
    pub(crate) fn feed(&self) -> Option<FeedSettings> {
        let ReplicaSettings { feed_ms: kept_ms, sharding, partition_key, .. } = *self;
        (kept_ms > 0).then_some(FeedSettings { kept_ms, sharding, partition_key })
    }

    /// Whether a child with these bounds takes a stored record of its parent.
    pub(crate) fn inherits(&self, bounds: &Bounds, stored: &[u8]) -> bool {
        match keys::row_of(stored) {
            Some(key) => bounds.contains(self.sharding.position(self.partition_key, key)),
            None => {
                inherit::takes_outcomes()
                    || stored == keys::SHARD_STATE
                    || stored == keys::REMOVED
                    || keys::is_index(stored)
            }
        }
    }
}
