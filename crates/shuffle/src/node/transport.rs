//! What nodes of a pool send to each other.

use partage_core::base::id::Epoch;
use partage_core::base::name::NodeId;
use partage_service::shuffle::holder::{NotRead, Slice};
use partage_service::shuffle::leader::{Answer, Failed, Request};
use partage_service::shuffle::message::{AskOrder, Message};
use partage_service::shuffle::ordered_records::OrderedRecords;
use partage_service::shuffle::plan::Plan;
use partage_service::shuffle::seek::{Found, Seek, SeekFor};
use partage_service::shuffle::{PoolSlot, ShuffleId};
pub use partage_shuffle_wire::relay::{SeekOf, SliceOf};
use std::sync::Arc;

/// What a slice is to another node, which has the plan or asks for it.
pub(crate) fn slice_of(slice: &Slice) -> SliceOf {
    let Slice { plan, range, keys, from, to } = slice;
    SliceOf { shuffle: plan.shuffle, range: *range as u64, keys: keys.clone(), from: *from, to: *to }
}

/// The slice, with the plan of its shuffle. A range that there is not is one beyond all.
pub(crate) fn slice(of: SliceOf, plan: Arc<Plan>) -> Slice {
    let SliceOf { range, keys, from, to, .. } = of;
    Slice { plan, range: usize::try_from(range).unwrap_or(usize::MAX), keys, from, to }
}

/// The same of a question about a range.
pub(crate) fn seek_of(seek: &Seek) -> SeekOf {
    let Seek { plan, range, what } = seek;
    SeekOf { shuffle: plan.shuffle, range: *range as u64, what: what.clone() }
}

/// The question, with the plan of its shuffle.
pub(crate) fn seek(of: SeekOf, plan: Arc<Plan>) -> Seek {
    Seek { plan, range: usize::try_from(of.range).unwrap_or(usize::MAX), what: of.what }
}

/// What an offset takes in memory that is asked for, in bytes.
const OFFSET: u64 = 16;

/// What one node sends to another. Questions have a number of the node that asks; the answer has the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    /// From machine to machine.
    Message(Message),
    /// A client of the sender asks the leader of a shuffle.
    Request(u64, ShuffleId, Request),
    /// The leader answers.
    Answered(u64, Result<Answer, Failed>),
    /// A client of the sender reads.
    Read(u64, SliceOf),
    /// The holder answers: with records, or why it gives none, or does not look for what is sought.
    Records(u64, Result<OrderedRecords, NotRead>),
    /// A client of the sender wants to know something of the order of a range.
    Seek(u64, SeekOf),
    /// The holder has found it.
    Found(u64, Found),
}

impl Packet {
    /// The shuffle in whose turn it goes: that of a batch, or of a question that waits behind batches.
    pub(crate) fn turn_of(&self) -> Option<ShuffleId> {
        match self {
            Packet::Message(Message::Batch(batch)) => Some(batch.key.stream.shuffle),
            Packet::Message(Message::AskStored(key, AskOrder::Behind)) => Some(key.stream.shuffle),
            _ => None,
        }
    }

    /// Whether it carries records or keys, or stays behind what does.
    pub(crate) fn is_bulk(&self) -> bool {
        self.turn_of().is_some() || matches!(self, Packet::Found(..) | Packet::Records(_, Ok(_)))
    }

    /// What its records, or the keys and offsets of questions and answers, take in memory, in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Packet::Message(Message::Batch(batch)) => batch.memory(),
            Packet::Records(_, Ok(records)) => records.memory(),
            Packet::Found(_, found) => found.memory(),
            Packet::Read(_, SliceOf { keys: Some((first, end)), .. }) => {
                (first.len() + end.as_ref().map_or(0, |end| end.len())) as u64
            }
            Packet::Seek(_, SeekOf { what: SeekFor::Cuts(_, offsets), .. }) => OFFSET * offsets.len() as u64,
            _ => 0,
        }
    }
}

/// How a node reaches the others and the coordinator. Packets may be lost, late, doubled, and overtake each other. The thread of
/// the node calls: nothing here may wait.
pub trait Transport: Send + Sync + 'static {
    /// Sends to another node, or drops the packet.
    fn send(&self, to: &NodeId, packet: Packet);

    /// Whether it is known that questions do not reach the node now. What was asked before has no answer then. The transport
    /// tries again to reach it, as the caller sends it nothing.
    fn is_unreachable(&self, _node: &NodeId) -> bool {
        false
    }

    /// The loading replica of this slot has everything, under that epoch: the coordinator is to hear of it. Said again in every
    /// round until the map has changed.
    fn ready(&self, slot: PoolSlot, epoch: Epoch);
}
