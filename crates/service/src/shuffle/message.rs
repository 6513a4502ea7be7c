//! What the nodes of a pool say to each other. Messages may be lost, late, doubled, and overtake each other.

use super::bounds::Bounds;
use super::log::{Append, Refused};
use super::plan::{Division, Plan};
use super::record::{Batch, BatchKey, EndMark, Numbers, Stream};
use super::sketch::Sketch;
use super::{AttemptKey, BufferId, Durability, Ended, Failure, PoolSlot, RangeId, ShuffleId, TaskId};
use partage_core::base::id::{Epoch, Incarnation};
use partage_core::base::name::NodeId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the leader says of a shuffle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// It takes records, by these bounds, which are to be stored so.
    Open(Arc<Bounds>, Durability),
    /// It is sealed, by this plan.
    Sealed(Arc<Plan>),
    /// It has failed: no client can read it.
    Failed(Failure),
    /// It has ended: all that it has goes.
    Ended(Ended),
}

/// Why a batch is not stored, so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyNotStored {
    /// The node knows nothing of it: it was lost on its way.
    Unknown,
    /// It is being stored.
    Soon,
    /// The node has no memory for it now.
    Busy,
    /// The disk of the node has no room for it.
    Full,
    /// The node stores nothing of its slot.
    Elsewhere,
}

/// In which order a question about a batch comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskOrder {
    /// Behind the batches that were sent before it, of the same shuffle: a node that lacks the batch has lost it.
    Behind,
    /// As fast as it can, so that it may overtake the batch: it only asks whether the node answers.
    Ahead,
}

/// What one node says to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Store this batch, and say when it is stored.
    Batch(Arc<Batch>),
    /// It is stored, as its [`Durability`] says.
    Stored(BatchKey),
    /// The shuffle of it has ended: it is not stored.
    Refused(BatchKey, Ended),
    /// Nothing was heard of a batch that was sent: the sender asks whether it is stored.
    AskStored(BatchKey, AskOrder),
    /// It is not, and why.
    NotStored(BatchKey, WhyNotStored),
    /// What the sender has on disk of a slot.
    Inventory {
        /// The slot that the batches belong to.
        slot: PoolSlot,
        /// The round of the one that asked.
        round: u64,
        /// Whether the receiver is to say what it has.
        asks: bool,
        /// The batches, by their streams.
        has: BTreeMap<Stream, Numbers>,
    },
    /// Send these batches, which the sender lacks.
    Fetch(Vec<BatchKey>),
    /// Put what the slot has of the shuffle into the object store: the disk of the sender fills. To the leader of the slot.
    MakeRoom(ShuffleId, PoolSlot),
    /// Decisions of the leader of a slot.
    Append(Append),
    /// A replica has synced the decisions up to that one.
    Appended(PoolSlot, Epoch, u64),
    /// A replica has not taken decisions.
    NotAppended(PoolSlot, Epoch, Refused),
    /// Asks the leader of its home for the state of this shuffle.
    Ask(ShuffleId),
    /// The state of a shuffle. From a leader.
    Word(ShuffleId, Word),
    /// The node has dropped all that it had of the shuffle that has ended.
    Dropped(ShuffleId),
    /// A leader asks which end marks the node has behind that of this attempt; none: from the first one on.
    AskMarks(ShuffleId, Option<AttemptKey>),
    /// Those that the node has, in the order of their attempts, as many as one message may have. Or one that it has just stored.
    Marks {
        /// The shuffle of the attempts.
        shuffle: ShuffleId,
        /// The attempt behind whose mark the leader asked for them; none: from the first one on.
        after: Option<AttemptKey>,
        /// The marks, in the order of their attempts.
        marks: Vec<EndMark>,
        /// Whether others come behind them, which are to be asked for.
        has_more: bool,
    },
    /// The keys that a buffer has sampled so far.
    Sample(ShuffleId, NodeId, Incarnation, Arc<Sketch>),
    /// The leader orders this division.
    Divide(Arc<Division>),
    /// That process has done the division: its last batch in each slot, all of them on R nodes.
    Divided(ShuffleId, TaskId, BufferId, BTreeMap<PoolSlot, u64>),
    /// Count records and bytes of the ranges in this slot, by what is said of it in the one plan without counts that the leader
    /// has under that epoch.
    Count(Epoch, Arc<Plan>, PoolSlot),
    /// The records and bytes of each range, as [`Message::Count`] asked.
    Counted(ShuffleId, Epoch, PoolSlot, BTreeMap<RangeId, (u64, u64)>),
    /// A replica of the slot was asked to divide or to count, and has not all that is needed for it. It asks other nodes.
    Lacks(ShuffleId, PoolSlot),
}
