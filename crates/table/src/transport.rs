//! What replicas send to each other, and the trait by which a node sends it to other nodes.

use crate::limits::ROW_AROUND_BYTES;
use bytes::Bytes;
use partage_core::base::id::{PlacementId, ShardId};
use partage_core::base::name::NodeId;
use partage_core::keyspace::sharding::Bounds;
use partage_core::node::exchange::ReplicaKey;
use partage_engine::replica::{Row, SharedBytes};
use partage_service::table::copy::deadline::Urgency;
use partage_service::table::replication::{LogPosition, Message};
use partage_service::table::split;
use std::sync::Arc;

/// What one replica sends to another.
#[derive(Debug, Clone, PartialEq)]
pub enum Packet {
    /// A message of replication.
    Message(Message),
    /// A chunk of a snapshot.
    Chunk(SnapshotChunk),
    /// A chunk is stored.
    Stored {
        /// The position of the snapshot.
        position: LogPosition,
        /// The number of the chunk.
        number: u64,
    },
    /// The replica has started again, and has all rows of the snapshot up to that key: it takes what is behind.
    Resumed {
        /// The position of the snapshot.
        position: LogPosition,
        /// The number of the chunk that has come.
        number: u64,
        /// The last key that it has.
        through: SharedBytes,
    },
    /// The snapshot is of no use, or of no use any more.
    Useless {
        /// The position of the snapshot.
        position: LogPosition,
    },
    /// A child's replica asks a parent's for what that has (`base/mod.rs`).
    Ask(ParentAsk),
    /// A parent's replica gives that; of a snapshot the chunks follow.
    Given(ParentGiven),
}

/// What a replica of a child, of a split or a merge, asks of a replica of a parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentAsk {
    /// The shard that takes over rows of the parent.
    pub child: ShardId,
    /// What the child holds.
    pub bounds: Bounds,
    /// The node of its replica.
    pub node: NodeId,
    /// The place in the parent from which on the child asks.
    pub ask: split::Ask,
}

impl ParentAsk {
    /// Bytes of the names in it.
    fn bytes(&self) -> usize {
        let of_bounds = match &self.bounds {
            Bounds::Keys(range) => range.begin.as_bytes().len() + range.end.as_bytes().len(),
            Bounds::Name(name) => name.as_str().len(),
            Bounds::Hashes(_) | Bounds::Slot(_) => 0,
        };
        of_bounds + self.node.as_str().len()
    }
}

/// What a replica of a parent gives to one of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentGiven {
    /// From which parent it is, and which part of what that has; the content is beside it.
    pub given: split::Given,
    /// Changes of the store, in their order; none if a snapshot follows.
    pub changes: Vec<StoredChange>,
}

/// A key of a store, and what it has from then on; none deletes it.
pub type StoredChange = (Bytes, Option<Bytes>);

/// What a change counts against limits, in bytes.
pub(crate) fn change_bytes<B: AsRef<[u8]>>((key, value): &(B, Option<B>)) -> usize {
    ROW_AROUND_BYTES + key.as_ref().len() + value.as_ref().map_or(0, |value| value.as_ref().len())
}

/// A part of what a replica has applied: for a follower that the log does not reach, or for a child, of which it has the rows
/// that the child holds.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotChunk {
    /// Up to there the leader had applied entries.
    pub position: LogPosition,
    /// Counts the chunks, from 0.
    pub number: u64,
    /// Rows of the store, in the order of their keys.
    pub rows: Arc<Vec<Row>>,
    /// No other chunk follows.
    pub is_last: bool,
    /// What the copy takes, so that it gets done however much clients write.
    pub urgency: Urgency,
}

impl Packet {
    /// What it counts against limits, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Packet::Message(Message::Append(append)) => {
                append.entries.iter().map(|entry| entry.bytes()).sum()
            }
            Packet::Chunk(chunk) => chunk.rows.iter().map(|row| row.key.len() + row.value.len()).sum(),
            Packet::Given(given) => given.changes.iter().map(change_bytes).sum(),
            Packet::Ask(ask) => ask.bytes(),
            Packet::Resumed { through, .. } => through.len(),
            Packet::Message(_) | Packet::Stored { .. } | Packet::Useless { .. } => 0,
        }
    }
}

/// Brings packets to the replicas of other nodes, and hands them in there with [`crate::Node::receive`].
///
/// Packets may be lost, late, doubled, and overtake each other. The node calls while it serves a replica, on threads that have
/// others to serve, that of the log among them, so `send` must not block: what does not fit into a queue is dropped.
pub trait Transport: Send + Sync {
    /// Sends a packet of the replica with the placement `from` to a replica on that node.
    fn send(&self, node: &NodeId, to: &ReplicaKey, from: PlacementId, packet: Packet);
}
