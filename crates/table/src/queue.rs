//! What waits for one replica, and which replicas a thread has to serve.
//!
//! Each replica has a queue, which anybody may add to, and a thread that empties it. Of what only the latest counts there is one
//! place (the number that is synced, the order); the rest has bounds. What does not fit is dropped if it is a packet, and
//! refused if it is a request. So nothing that adds to a queue ever waits, and the thread of the log can report to replicas that
//! wait for the log.

use crate::base::BaseWork;
use crate::direct::DirectReads;
use crate::error::{ReadError, WriteError};
use crate::event_loop::Local;
use crate::figures::{Figures, Standing};
use crate::limits;
use crate::node::ReadAnswer;
use crate::replica::WorkDone;
use crate::rows::{IndexRange, IndexRead, PinnedRows, ScanPage, ScanRange};
use crate::transport::Packet;
use partage_core::base::id::{Incarnation, PlacementId, ShardId};
use partage_core::keyspace::RowValues;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::PartitionKey;
use partage_core::node::exchange::{self, ReplicaKey};
use partage_core::service::table::index::Definition;
use partage_core::service::table::replication::{Consistency, Order, Payload, Status};
use partage_core::service::table::rows::Outcome;
use partage_engine::replica::{Size, TreeSnapshot};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Who waits for a write.
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
    /// One row.
    Row(Key, oneshot::Sender<Result<ReadAnswer, ReadError>>),
    /// The rows of a range.
    Range(ScanRange, oneshot::Sender<Result<ScanPage, ReadError>>),
    /// Rows by an index.
    Index(IndexRange, oneshot::Sender<Result<IndexRead, ReadError>>),
    /// The indexes.
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

/// What the owner wants of a replica.
#[derive(Debug)]
pub(crate) enum Command {
    /// The lead is to go there.
    Transfer(PlacementId),
    /// How it stands.
    Status(oneshot::Sender<Status>),
    /// How it stands, by the clock of now: metrics have the last time that its thread said so.
    Standing(oneshot::Sender<Standing>),
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
    /// It stops, with all of it on disk.
    Close(oneshot::Sender<()>),
}

/// What waits for a replica.
#[derive(Default)]
pub(crate) struct Waiting {
    /// The replica itself, when it has just been opened.
    pub(crate) replica: Option<Local>,
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
    pub(crate) news: BTreeSet<ShardId>,
    pub(crate) writes: Vec<(Payload, WriteAnswer)>,
    /// When the first of them came, by the clock of the node in nanoseconds.
    pub(crate) writes_since: u64,
    write_bytes: usize,
    pub(crate) reads: Vec<Read>,
    pub(crate) commands: VecDeque<Command>,
    is_listed: bool,
    is_closed: bool,
}

impl Waiting {
    /// What a replica begins with that has been here as a child's, which took its base.
    pub(crate) fn of_opened(order: Option<Order>, command: Option<Command>) -> Waiting {
        Waiting { order, commands: command.into_iter().collect(), ..Waiting::default() }
    }
}

/// The queue of one replica.
pub(crate) struct ReplicaQueue {
    pub(crate) key: ReplicaKey,
    /// Of this opening of the replica; no other has it in this process.
    pub(crate) number: u64,
    pub(crate) partition_key: PartitionKey,
    pub(crate) values: RowValues,
    /// The replica is a child's that takes its base, and takes part in nothing yet.
    is_base: AtomicBool,
    /// The replica was told to close. That takes as long as its disk does, and with a full one until there is room.
    is_closing: AtomicBool,
    /// For reads that do not wait for the thread of the replica.
    pub(crate) direct: DirectReads,
    pub(crate) figures: Figures,
    waiting: Mutex<Waiting>,
    ready: Arc<ReadyList>,
}

impl ReplicaQueue {
    pub(crate) fn new(
        key: ReplicaKey,
        number: u64,
        (partition_key, values): (PartitionKey, RowValues),
        ready: Arc<ReadyList>,
    ) -> ReplicaQueue {
        let (is_base, is_closing) = (AtomicBool::new(false), AtomicBool::new(false));
        let (direct, figures, waiting) = (DirectReads::default(), Figures::default(), Mutex::default());
        ReplicaQueue {
            key,
            number,
            partition_key,
            values,
            is_base,
            is_closing,
            direct,
            figures,
            waiting,
            ready,
        }
    }

    /// Whether the replica is a child's that takes its base.
    pub(crate) fn is_base(&self) -> bool {
        self.is_base.load(Ordering::Acquire)
    }

    pub(crate) fn set_base(&self, is_base: bool) {
        self.is_base.store(is_base, Ordering::Release);
    }

    /// Whether the replica is about to close, and takes part in nothing any more.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    pub(crate) fn begin_to_close(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A thread that panicked while it had the lock has changed nothing by halves: each change is one push.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what waits, unless the replica is closed, and lists the replica to be served.
    pub(crate) fn add<T>(self: &Arc<Self>, change: impl FnOnce(&mut Waiting) -> T) -> Option<T> {
        let mut waiting = self.lock();
        if waiting.is_closed {
            return None;
        }
        let changed = change(&mut waiting);
        let is_listed = std::mem::replace(&mut waiting.is_listed, true);
        drop(waiting);
        if !is_listed {
            self.ready.add(Arc::clone(self));
        }
        Some(changed)
    }

    /// Lists the replica to be served.
    pub(crate) fn wake(self: &Arc<Self>) {
        self.add(|_| ());
    }

    /// Adds a packet, or drops it.
    pub(crate) fn add_packet(self: &Arc<Self>, from: PlacementId, packet: Packet) {
        let bytes = packet.bytes();
        self.add(|waiting| {
            let is_full = waiting.packets.len() >= limits::PACKETS_WAITING
                || (waiting.packet_bytes > 0 && waiting.packet_bytes + bytes > limits::PACKET_BYTES_WAITING);
            if !is_full {
                waiting.packet_bytes += bytes;
                waiting.packets.push_back((from, packet));
            }
        });
    }

    /// Adds a write.
    pub(crate) fn add_write(
        self: &Arc<Self>,
        payload: Payload,
        answer: WriteAnswer,
        now: u64,
    ) -> Result<(), WriteError> {
        let added = self.add(|waiting| {
            let bytes = waiting.write_bytes + payload.len();
            if waiting.writes.len() >= limits::WRITES_WAITING
                || (waiting.write_bytes > 0 && bytes > limits::WRITE_BYTES_WAITING)
            {
                return Err(WriteError::Busy);
            }
            waiting.write_bytes = bytes;
            if waiting.writes.is_empty() {
                waiting.writes_since = now;
            }
            waiting.writes.push((payload, answer));
            Ok(())
        });
        added.unwrap_or(Err(WriteError::NotOpen))
    }

    /// Adds a read.
    pub(crate) fn add_read(self: &Arc<Self>, read: Read) -> Result<(), ReadError> {
        let added = self.add(|waiting| {
            if waiting.reads.len() >= limits::READS_WAITING {
                return Err(ReadError::Busy);
            }
            waiting.reads.push(read);
            Ok(())
        });
        added.unwrap_or(Err(ReadError::NotOpen))
    }

    /// Adds a command; says whether it did.
    pub(crate) fn add_command(self: &Arc<Self>, command: Command) -> bool {
        let added = self.add(|waiting| {
            let has_room = waiting.commands.len() < limits::COMMANDS_WAITING;
            if has_room {
                waiting.commands.push_back(command);
            }
            has_room
        });
        added.unwrap_or(false)
    }

    /// All that waits.
    pub(crate) fn take(&self) -> Waiting {
        let mut waiting = self.lock();
        let is_closed = waiting.is_closed;
        std::mem::replace(&mut *waiting, Waiting { is_closed, ..Waiting::default() })
    }

    /// Nothing is added any more; gives what waits.
    pub(crate) fn close(&self) -> Waiting {
        let waiting = Waiting { is_closed: true, ..Waiting::default() };
        std::mem::replace(&mut *self.lock(), waiting)
    }
}

#[derive(Default)]
struct Listed {
    queues: VecDeque<Arc<ReplicaQueue>>,
    /// The thread waits, and no other thread has woken it yet. To wake one that does not wait is a system call all the same.
    is_waiting: bool,
    is_stopped: bool,
}

/// The replicas that a thread has to serve: each at most once.
#[derive(Default)]
pub(crate) struct ReadyList {
    listed: Mutex<Listed>,
    filled: Condvar,
}

impl ReadyList {
    fn lock(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, queue: Arc<ReplicaQueue>) {
        let mut listed = self.lock();
        listed.queues.push_back(queue);
        let wakes = std::mem::take(&mut listed.is_waiting);
        drop(listed);
        if wakes {
            self.filled.notify_one();
        }
    }

    /// The thread is to end.
    pub(crate) fn stop(&self) {
        self.lock().is_stopped = true;
        self.filled.notify_all();
    }

    /// Waits until there is something to serve, for so long at most. None: the thread is to end.
    pub(crate) fn wait(&self, at_most: Duration) -> Option<VecDeque<Arc<ReplicaQueue>>> {
        let idle = |listed: &mut Listed| {
            listed.is_waiting = listed.queues.is_empty() && !listed.is_stopped;
            listed.is_waiting
        };
        let waited = self.filled.wait_timeout_while(self.lock(), at_most, idle);
        let mut listed = waited.unwrap_or_else(PoisonError::into_inner).0;
        listed.is_waiting = false;
        (!listed.is_stopped).then(|| std::mem::take(&mut listed.queues))
    }
}
