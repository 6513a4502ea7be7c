//! Packets between the replicas of tables on different nodes.
//!
//! The bytes of entries and rows are the largest part. They are shared on the way out until the message is encoded, and on the
//! way in with the message that they came in ([`bytes::Bytes`]); only the payload of an entry is copied once more, as `core` has
//! it as an `Arc<[u8]>`.
//!
//! `core` has messages of replication ([`Message`]); what else replicas send is between the drivers of nodes, and has its plain
//! form here ([`Content`]). Each message of a stream has a checksum ([`SummedCodec`]).

mod grpc;
mod summed;
#[cfg(test)]
mod tests;

pub use summed::{SummedCodec, SummedDecoder, SummedEncoder};

use bytes::Bytes;
use partage_core::base::id::{Incarnation, PlacementId, ShardId};
use partage_core::base::name::NodeId;
use partage_core::keyspace::sharding::Bounds;
use partage_core::node::exchange::ReplicaKey;
use partage_service::table::replication::{LogPosition, Message};
use partage_service::table::split::{Ask, Given};

/// How a stream of packets begins: which node sends, and which one is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// The node that sends.
    pub from: NodeId,
    /// The incarnation of its process, if it has one yet.
    pub incarnation: Option<Incarnation>,
    /// The node that is meant.
    pub to: NodeId,
}

/// What one replica sends to another one, of its shard or of a parent or child of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The replica that is meant.
    pub to: ReplicaKey,
    /// The replica that sends.
    pub from: PlacementId,
    /// What the sending replica says, asks for or gives.
    pub content: Content,
}

/// What a packet brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A message of replication.
    Message(Message),
    /// A chunk of a snapshot.
    Chunk(Chunk),
    /// A chunk is stored.
    Stored {
        /// The position of the snapshot.
        position: LogPosition,
        /// The number of the chunk.
        number: u64,
    },
    /// The replica has started again, and has all rows of the snapshot up to that key.
    Resumed {
        /// The position of the snapshot.
        position: LogPosition,
        /// The number of the chunk that has come.
        number: u64,
        /// The last key that it has, as it is stored.
        through: Bytes,
    },
    /// The snapshot is of no use, or of no use any more.
    Useless {
        /// The position of the snapshot.
        position: LogPosition,
    },
    /// A child's replica asks a parent's for what that has.
    Ask(ParentAsk),
    /// A replica of a parent gives what was asked for.
    Given(ParentGiven),
}

/// What a replica of a child asks of one of a parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentAsk {
    /// The shard of the replica that asks: a child of the packet's shard.
    pub child: ShardId,
    /// What the child holds.
    pub bounds: Bounds,
    /// The node of the replica that asks.
    pub node: NodeId,
    /// From which position on it asks. The parent and its replica are those that the packet is for.
    pub ask: Ask,
}

/// What a replica of a parent gives to one of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentGiven {
    /// What it is. The replica is the one that sends the packet.
    pub given: Given,
    /// Keys with what they have from then on, as they are stored, in the order of the changes.
    pub changes: Vec<(Bytes, Option<Bytes>)>,
}

/// A part of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Up to there the leader had applied entries.
    pub position: LogPosition,
    /// Counts the chunks, from 0.
    pub number: u64,
    /// Keys and values as they are stored, in the order of their keys.
    pub rows: Vec<(Bytes, Bytes)>,
    /// Whether this is the last chunk of the snapshot.
    pub is_last: bool,
    /// The copy is not to give way to clients.
    pub is_pressed: bool,
    /// The copy is not to heed the limit of bytes either.
    pub is_urgent: bool,
}
