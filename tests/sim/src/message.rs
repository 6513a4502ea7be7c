//! What places tell each other, and what happens at a place.

use crate::coordinator::Question;
use crate::model::{Deed, KeyAt, Op, Seen};
use crate::store::Attended;
use crate::table::{Asked, BasePart, Registers, RowDeed, RowSeen};
use partage_core::base::id::{Epoch, Generation, Incarnation, PlacementId, SessionDigest, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::cluster::publication::NodesSince;
use partage_core::cluster::{BeatError, RegisterError};
use partage_core::keyspace::map::Access;
use partage_core::keyspace::map::MapDiff;
use partage_core::node::exchange::Registration;
use partage_core::node::exchange::Welcome;
use partage_core::node::exchange::{Beat, KeyspaceBrief, Orders, ReplicaKey};
use partage_core::worker::Callback;
use partage_core::worker::gates::Permit;
use partage_service::table::replication;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A process's place in the cluster: an address that is kept across restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A coordinator, by its position in the run.
    Coordinator(usize),
    /// A worker, by its position in the run.
    Node(usize),
    /// A router, with the clients behind it.
    Router(usize),
}

/// How a message came: on a connection, or alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Via {
    /// On that connection, in order.
    Stream(u64),
    /// Alone, with the number of the question that it asks or answers.
    Post(u64),
}

/// What one place tells another.
#[derive(Debug, Clone)]
pub enum Message {
    /// Worker to coordinator: the first message of a link.
    Register(Registration),
    /// Coordinator to worker: the registration was taken.
    Welcome(Welcome),
    /// Coordinator to worker: the registration was refused.
    NotRegistered(RegisterError),
    /// The coordinator that was asked does not lead.
    NotLeader,
    /// Worker to coordinator: a heartbeat, with what has changed.
    Beat(Beat),
    /// Coordinator to worker, in answer and unasked.
    Orders(Orders),
    /// In answer to a beat.
    BeatRefused(BeatError),
    /// The worker's last word.
    Goodbye(NodeId, Incarnation, SessionDigest),
    /// Coordinator to worker, at the address that it announced.
    CheckBack(NodeId, Incarnation),
    /// Worker to coordinator, in answer to `CheckBack`.
    CheckedBack(NodeId, Incarnation),
    /// Router to coordinator, or one that stands by to the leader: what it has already.
    Subscribe(BTreeMap<KeyspaceName, Generation>),
    /// Coordinator to router: the next map.
    Publication(Publication),
    /// Coordinator to router: a keyspace is gone whose shards began below that.
    Deleted(KeyspaceName, ShardId),
    /// Coordinator to router: that was everything that there is of keyspaces whose shards begin below that.
    Current(ShardId),
    /// Router to coordinator: taken in.
    Taken(KeyspaceName, Generation),
    /// Router to node, or forwarded from node to node.
    Request(Request),
    /// Node to router: what came of one try.
    Response(Response),
    /// To a replica of a table, from another one.
    Table(ReplicaKey, PlacementId, replication::Message),
    /// To a replica of a table: what the leader has applied.
    TableSnapshot(ReplicaKey, Box<Registers>),
    /// To a parent's replica, from a child's.
    TableAsked(Box<Asked>),
    /// To a child's replica, from a parent's: a part of its base.
    TableBasePart(Box<BasePart>),
}

/// Changes of a map, or a whole map, on their way to a router.
#[derive(Debug, Clone)]
pub struct Publication {
    /// The settings of the keyspace.
    pub brief: KeyspaceBrief,
    /// Follow what the router has, in order; or lead from nothing to a whole map.
    pub diffs: Vec<Arc<MapDiff>>,
    /// They do not follow: drop what is there.
    pub resync: bool,
    /// Addresses that the router has not heard of.
    pub nodes: NodesSince,
}

/// One try of one operation.
#[derive(Debug, Clone)]
pub struct Request {
    /// The number of the operation that this is a try of.
    pub op: Op,
    /// Which try of it.
    pub attempt: u32,
    /// The key whose register or row it is about.
    pub key: KeyAt,
    /// Whether the leader must answer (`Write`), or any replica may.
    pub access: Access,
    /// What it writes; none for a read.
    pub deed: Option<Deed>,
    /// It is about the row beside the register, and wants that of it.
    pub row: Option<RowDeed>,
    /// The router that asks, which gets the answer.
    pub router: usize,
    /// It was forwarded once already.
    pub forwarded: bool,
}

/// What came of one try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Written, or read, and what was seen; whether by its leader.
    Done(Seen, bool),
    /// The row beside the register was written, or read; whether by its leader.
    Row(RowSeen, bool),
    /// Another worker has the key: that one.
    Elsewhere(usize),
    /// Not done, try again.
    NotNow(&'static str),
    /// It may or may not have been done.
    Indefinite,
}

/// The answer to a try.
#[derive(Debug, Clone)]
pub struct Response {
    /// The number of the operation whose try is answered.
    pub op: Op,
    /// Which try of it.
    pub attempt: u32,
    /// What came of it.
    pub outcome: Outcome,
    /// The worker that answered, by its position.
    pub node: usize,
}

/// Something that happens at a moment of true time.
#[derive(Debug)]
#[expect(missing_docs, reason = "each event names whom it concerns; its line says what happens")]
pub enum Event {
    /// A message arrives: from where, at which place, and how.
    Deliver(Place, Place, Via, Box<Message>),
    /// A connection is found closed.
    Closed(Place, u64),
    /// A timer of a process.
    Wake(Place, u32, u64),
    /// A callback of a worker's service ends.
    CallbackEnds { node: usize, process: u32, replica: ReplicaKey, callback: Callback, call: u64 },
    /// A request inside a node has been worked on.
    Worked { node: usize, process: u32, op: Op, attempt: u32 },
    /// A request that was told to end does so.
    Evicted { node: usize, process: u32, op: Op, attempt: u32 },
    /// A service asks whether it has been the owner all along.
    Tenure { node: usize, process: u32, permit: Box<Permit>, key: KeyAt, owners: u64 },
    /// Storage takes in a write.
    StorageWrite {
        node: usize,
        process: u32,
        op: Op,
        attempt: u32,
        key: KeyAt,
        shard: ShardId,
        epoch: Epoch,
        deed: Option<Deed>,
    },
    /// Storage has answered what a request asked of it.
    StorageAnswers { node: usize, process: u32, op: Op, attempt: u32, seen: Option<Seen> },
    /// What a replica of a table wrote to its log is on the disk.
    TableSynced { node: usize, process: u32, replica: ReplicaKey, writes: usize },
    /// The base of a child's replica is on the disk.
    TableBaseStored { node: usize, process: u32, replica: ReplicaKey, base: Box<Registers> },
    /// The time of a replica of a table has come.
    TableWake { node: usize, process: u32, replica: ReplicaKey },
    /// A slow worker comes to what has happened before.
    Late(Box<Event>),
    /// What a worker serves kills it.
    Poisoned { node: usize, process: u32 },
    /// Clients turn to other keys.
    Heat,
    /// A held request is looked at again.
    HeldAgain { node: usize, process: u32, request: Box<Request> },
    /// A coordinator has computed a decision.
    Decided { coordinator: usize, process: u32, number: u64 },
    /// A worker has told a leader of a later map than its own.
    FellBehind { coordinator: usize, process: u32 },
    /// A coordinator's transaction reaches the disk.
    Commits { coordinator: usize, process: u32, number: u64 },
    /// The outcome of a transaction is known to the coordinator.
    Committed { coordinator: usize, process: u32, number: u64 },
    /// A heartbeat has gone by while the transaction is under way.
    Listens { coordinator: usize, process: u32, number: u64 },
    /// A coordinator asks for its session, and which coordinator leads.
    SessionAsked { coordinator: usize, process: u32 },
    /// The question of a coordinator reaches the store.
    Attends { coordinator: usize, process: u32, question: Question },
    /// The store's answer reaches the coordinator.
    Attended { coordinator: usize, process: u32, question: Question, attended: Attended },
    /// The next operation of the clients.
    Operate,
    /// The next operation of the clients whose rows end.
    OperateOnEnding,
    /// One of the readers of a table's changes reads on, or has heard what came of it.
    FeedReader(usize),
    /// One of the clients that keep lists does something, or has heard what came of it.
    ListClient(usize),
    /// A try has not been answered.
    TryAgain { router: usize, op: Op, attempt: u32 },
    /// A try may be made again.
    Rested { router: usize, op: Op, attempt: u32 },
    /// The next change that a person asks for.
    Change,
    /// The next fault begins, if faults still come.
    Fault,
    /// A person touches the coordination state.
    Touch,
    /// A fault ends, or goes into its next part.
    Mend(crate::faults::Mend),
}
