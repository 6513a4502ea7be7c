//! What waits for a replica, with its bounds.

use crate::base::BaseWork;
use crate::error::{ReadError, WriteError};
use crate::figures::ReplicaFigures;
use crate::limits;
use crate::node::ReadAnswer;
use crate::replica::WorkDone;
use crate::rows::{IndexRange, IndexRead, PinnedRows, ScanPage, ScanRange};
use crate::transport::Packet;
use partage_core::base::id::{Incarnation, PlacementId, ShardId};
use partage_core::keyspace::key::Key;
use partage_core::node::exchange;
use partage_engine::replica::{Size, TreeSnapshot};
use partage_service::table::index::Definition;
use partage_service::table::replication::{Consistency, Order, Payload, Status};
use partage_service::table::rows::Outcome;
use std::collections::{BTreeSet, VecDeque};
use tokio::sync::oneshot;

/// Where the outcome of a write goes.
pub(crate) type WriteAnswer = oneshot::Sender<Result<Outcome, WriteError>>;

/// A read that waits.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) consistency: Consistency,
    pub(crate) at_least: u64,
    pub(crate) wanted: Wanted,
}

/// What a read wants, and where its answer goes.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// The row of this key, if there is one.
    Row(Key, oneshot::Sender<Result<ReadAnswer, ReadError>>),
    /// The rows of a range.
    Range(ScanRange, oneshot::Sender<Result<ScanPage, ReadError>>),
    /// Rows by an index.
    Index(IndexRange, oneshot::Sender<Result<IndexRead, ReadError>>),
    /// All indexes of the shard, with their states.
    Indexes(oneshot::Sender<Result<Vec<Definition>, ReadError>>),
    /// All rows, as they are, to be read later.
    Pinned(oneshot::Sender<Result<PinnedRows<TreeSnapshot>, ReadError>>),
}

impl Read {
    /// Answers that nothing was read. A client that has gone does not see it.
    pub(crate) fn refuse(self, why: ReadError) {
        match self.wanted {
            Wanted::Row(_, answer) => drop(answer.send(Err(why))),
            Wanted::Range(_, answer) => drop(answer.send(Err(why))),
            Wanted::Index(_, answer) => drop(answer.send(Err(why))),
            Wanted::Indexes(answer) => drop(answer.send(Err(why))),
            Wanted::Pinned(answer) => drop(answer.send(Err(why))),
        }
    }
}

/// What the service wants of a replica.
#[derive(Debug)]
pub(crate) enum Command {
    /// How its machine stands: role, epoch, and end of the log.
    Status(oneshot::Sender<Status>),
    /// How it stands, by the clock of now: metrics have the last time that its thread said so.
    Figures(oneshot::Sender<ReplicaFigures>),
    /// How much its store has.
    Size(oneshot::Sender<Size>),
    /// A key that halves its rows; none where they are few, or not known.
    Median(oneshot::Sender<Option<Key>>),
    /// Answered when it could serve as soon as it may: at once, but for a child's that takes its base.
    WhenReady(oneshot::Sender<()>),
    /// Answered when it takes part: at once, but for a child's that has not its whole base.
    WhenOpen(oneshot::Sender<()>),
    /// Answered when it has had all that was acknowledged at some time since it was opened.
    WhenFresh(oneshot::Sender<()>),
    /// The replica stops, with all of its rows on disk.
    Close(oneshot::Sender<()>),
}

/// What waits for a replica.
#[derive(Default)]
pub(crate) struct Waiting {
    pub(crate) synced: u64,
    /// The log may have room for what the replica writes.
    pub(crate) has_room: bool,
    /// The log wants the room of its entries.
    pub(crate) holds_log: bool,
    /// Why the log refuses its records.
    pub(crate) refused: Option<String>,
    pub(crate) incarnation: Option<Incarnation>,
    pub(crate) order: Option<Order>,
    pub(crate) packets: VecDeque<(PlacementId, Packet)>,
    packet_bytes: usize,
    /// At most one of each kind for each task that is under way.
    pub(crate) done: Vec<WorkDone>,
    /// The same of a child's replica that takes its base.
    pub(crate) base_done: Vec<BaseWork>,
    /// The latest order, of a child's replica that takes its base: it says where its parents are.
    pub(crate) base_order: Option<exchange::Order>,
    /// Parents of which replicas on this node have applied something.
    pub(crate) parents_applied: BTreeSet<ShardId>,
    pub(crate) writes: Vec<(Payload, WriteAnswer)>,
    /// When the first of them came, by the clock of the node in nanoseconds.
    pub(crate) writes_since: u64,
    write_bytes: usize,
    pub(crate) reads: Vec<Read>,
    pub(crate) commands: VecDeque<Command>,
}

impl Waiting {
    /// What a replica begins with that has been here as a child's, which took its base.
    pub(crate) fn of_opened(order: Option<Order>, command: Option<Command>) -> Waiting {
        Waiting { order, commands: command.into_iter().collect(), ..Waiting::default() }
    }

    /// Adds a packet, or drops it.
    pub(crate) fn add_packet(&mut self, from: PlacementId, packet: Packet) {
        let bytes = packet.bytes();
        let is_full = self.packets.len() >= limits::PACKETS_WAITING
            || (self.packet_bytes > 0 && self.packet_bytes + bytes > limits::PACKET_BYTES_WAITING);
        if !is_full {
            self.packet_bytes += bytes;
            self.packets.push_back((from, packet));
        }
    }

    /// Adds a write that came at `now`, by the clock of the node in nanoseconds.
    pub(super) fn add_write(
        &mut self,
        payload: Payload,
        answer: WriteAnswer,
        now: u64,
    ) -> Result<(), WriteError> {
        let bytes = self.write_bytes + payload.len();
        if self.writes.len() >= limits::WRITES_WAITING
            || (self.write_bytes > 0 && bytes > limits::WRITE_BYTES_WAITING)
        {
            return Err(WriteError::Busy);
        }
        self.write_bytes = bytes;
        if self.writes.is_empty() {
            self.writes_since = now;
        }
        self.writes.push((payload, answer));
        Ok(())
    }

    /// Whether nothing of it takes long: writes, messages of other replicas, and what the log says.
    pub(super) fn is_light(&self) -> bool {
        let has_orders = self.incarnation.is_some() || self.order.is_some() || self.base_order.is_some();
        let has_news = self.refused.is_some() || self.holds_log || !self.parents_applied.is_empty();
        let has_tasks = !self.done.is_empty() || !self.base_done.is_empty();
        let has_requests = !self.reads.is_empty() || !self.commands.is_empty();
        let is_message = |(_, packet): &(PlacementId, Packet)| matches!(packet, Packet::Message(_));
        !(has_orders || has_news || has_tasks || has_requests) && self.packets.iter().all(is_message)
    }
}
