//! Shuffles: records that come from clients which may vanish are re-ordered by key and divided anew, and no node's death loses
//! one.
//!
//! The machines are pure: an event and the time go in, effects come out. One long-lived keyspace, the *pool*, places the data of
//! all shuffles: a range goes to a slot of the pool by hash of its identity, and a slot to its nodes by the map ([`pool`]). Each
//! shuffle is led by the node that leads the slot of its id, its *home*.
//!
//! ```text
//!  client ── frames ──► buffer ── batches ──► R holders ──► their disks
//!     ▲                   │  ▲                  │    ▲
//!     └──── success ──────┘  └─ bounds ┐        │    └── a slice of a range ── reader
//!                                    leader ◄───┘ end marks, counts
//! ```
//!
//! | rule | where |
//! |---|---|
//! | 1. An attempt succeeds when R nodes have every batch up to its last one in each slot, and its end mark. No leader is asked (X6) | `buffer`, `sending` |
//! | 2. A node that does not answer is replaced by a stand-in, at once; one that is busy is waited for, and gets nothing twice. The stand-in keeps what it has until all replicas of the slot have it (X12) | `sending`, `holder` |
//! | 3. A holder has each batch once, and serves only from streams without a gap; gaps are fetched (X8) | `holder`, [`record::Numbers`] |
//! | 4. What has a tag that is wanted no more is divided and stored anew, and one decision replaces the old by the new (X5, X11) | [`bounds`], `leader` |
//! | 5. A decision counts when every replica of the home has it synced under the epoch; a replica that has heard of a later epoch, by a leader or by its map, refuses (X10, O2) | [`log`] |
//! | 6. The first whole attempt of a partition that the leader hears of wins; the choice is final with the decision to seal (X7) | `leader` |
//! | 7. Seal needs a whole attempt of each partition expected, everything divided, and counts that agree; else it names what lacks, or the shuffle fails by name (D6) | `leader` |
//! | 8. A reader and a holder go by the sealed plan alone; records of losers are left out; the order is by key, partition and place, so it is the same at each replica (X9) | [`plan`], `reader` |
//! | 9. What a deleted shuffle had goes from everywhere; a node asks the home about what it does not know, and removes it when the home decides so (D7) | `leader`, `holder` |
//! | 10. Where a cut falls inside a range any holder of it says, from that order; the end of a partition is the begin of the next one (X13) | [`partition`], [`seek`], `reader` |
//! | 11. Shuffles share the memory of a buffer by weight; one that writes alone has all of it (X15, R1) | `buffer/share` |
//! | 12. A start says what a shuffle is, whose it is and how long it lives without a client; an owner has no more than its quota | [`options`], `leader/quota` |
//! | 13. Records of equal keys are combined within one attempt, and over attempts only when they are read | [`combine`], `buffer` |
//! | 14. A shuffle says whether its batches are stored when they are synced, or when R machines have them in memory | [`durability`] |
//! | 15. What a disk has no room for goes to an object store, of sealed shuffles only; copies go when the objects are durable and the node has the receipt on its disk (D6) | `holder/objects` |
//!
//! [`sketch`] is the sample of keys that bounds come from, [`settings`] has the numbers, [`message`] what nodes say to each
//! other. Where something of several shuffles waits, they take turns ([`turns`]).
//!
//! The driver, in numbered sentences:
//! 1. It gives each process an incarnation of its own, and each leader of a slot an epoch of its own: a process that starts leads
//!    nothing before the map has given it a later epoch. A leader begins with the copy that [`log::Replicas::lead`] gives it.
//! 2. It says that something is stored after it is on disk: synced, but for batches of [`Durability::Memory`], which are written,
//!    so that the end of the process loses none. It hands in what is on disk when a process starts.
//! 3. It drops what overtaken maps say, and hands in later ones to all machines of the node.
//! 4. It calls with a tick at `wake_at`.
//! 5. It reads the batches that an effect names from disk, checks their checksums, and says when one is damaged.
//!
//! What was not done: the log of a table's replica ([`crate::table::replication`]) does not carry the decisions. It
//! elects an in-sync set by wishes to the coordinator, and a pool asks the coordinator nothing. Input order and attempts by
//! stream are not here; neither are drivers and files (`crates/shuffle`) and forms on the network
//! (`crates/shuffle-wire`).

use partage_core::base::id::{Epoch, Incarnation};
use partage_core::base::name::NodeId;
use partage_core::limits;
use std::fmt;
use std::sync::Arc;

pub mod bounds;
pub mod buffer;
pub mod combine;
pub mod divider;
mod division;
pub mod durability;
pub mod head;
pub mod holder;
pub mod leader;
pub mod log;
pub mod message;
pub mod options;
pub mod ordered;
pub mod ordered_records;
pub mod partition;
pub mod plan;
pub mod pool;
pub mod reader;
pub mod record;
pub mod records;
pub mod seek;
pub mod sending;
pub mod settings;
pub mod sketch;
pub mod turns;

pub use combine::Combine;
pub use durability::Durability;
pub use options::{ArrowKind, ColumnCombine, CombinedColumn, RecordKind, ShuffleOptions, SortColumn};

/// Bytes that are shared and never changed.
pub type Bytes = Arc<[u8]>;

/// A shuffle. The driver draws its number at random, and it is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShuffleId(pub u128);

impl fmt::Display for ShuffleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The identity of a range of one shuffle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RangeId(pub u64);

/// A slot of the pool: a shard of its keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolSlot(pub u32);

/// A process that buffers. Its numbers of batches and attempts end with it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId {
    /// The node on which the process runs.
    pub node: NodeId,
    /// The incarnation of the process: each start has another one.
    pub incarnation: Incarnation,
}

/// How a client calls an attempt. It never uses one twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(pub u128);

/// What a buffer calls an attempt, for it and only for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptKey {
    /// The buffer that the client wrote to.
    pub buffer: BufferId,
    /// Counts the attempts that this buffer has opened, from 1.
    pub number: u64,
}

/// A division that a leader has ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The epoch under which the leader ordered it.
    pub epoch: Epoch,
    /// Counts the divisions under that epoch.
    pub number: u64,
}

/// The process or the division that numbers the batches of a stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Writer {
    /// A buffer: records of clients, and end marks of their attempts.
    Buffer(BufferId),
    /// A division, by a process: another that was asked for the same may put the same records into other batches.
    Division(TaskId, BufferId),
    /// A process that has put what a slot has of a sealed shuffle into the object store. Its one batch is a receipt, which has no
    /// records ([`holder`]).
    Objects(BufferId),
}

impl Writer {
    /// Whether its batches are receipts of an object store.
    pub fn is_objects(&self) -> bool {
        matches!(self, Writer::Objects(_))
    }
}

/// What a shuffle is started with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Terms {
    /// Ranges before anything is known of keys: ten for each follower (X3).
    pub stashes: u32,
    /// About so many ranges when keys are known.
    pub ranges: u32,
    /// Its part of a buffer's memory, relative to that of other shuffles: from 1, which is what most have, to
    /// [`limits::SHUFFLE_WEIGHT`].
    pub weight: u16,
    /// How records of equal keys become one within an attempt; none: they all remain.
    pub combine: Option<Combine>,
    /// Where its records are when an attempt is acknowledged.
    pub durability: Durability,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms::new(0, 0)
    }
}

impl Terms {
    /// Terms of weight 1, on disk; records remain as they are.
    pub const fn new(stashes: u32, ranges: u32) -> Terms {
        Terms { stashes, ranges, weight: 1, combine: None, durability: Durability::Disk }
    }

    /// Whether the ranges are within [`limits::SHUFFLE_RANGES`], and the weight within [`limits::SHUFFLE_WEIGHT`]: a server
    /// that takes terms from a client refuses others.
    pub fn are_within_limits(&self) -> bool {
        self.stashes.max(self.ranges) <= limits::SHUFFLE_RANGES
            && (1..=limits::SHUFFLE_WEIGHT).contains(&self.weight)
    }

    /// The terms that a machine goes by, whatever a message or a log says: each number is 1 at least, and within its limit.
    pub fn bounded(self) -> Terms {
        let within = |count: u32| count.clamp(1, limits::SHUFFLE_RANGES);
        let weight = self.weight.clamp(1, limits::SHUFFLE_WEIGHT);
        Terms { stashes: within(self.stashes), ranges: within(self.ranges), weight, ..self }
    }
}

/// Why there is nothing of a shuffle any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Ended {
    /// A client deleted the shuffle.
    #[error("the shuffle was deleted: start another one")]
    Deleted,
    /// No client asked for it during its time to live.
    #[error("the shuffle has expired, as no client has asked for it: start another one, and keep it alive")]
    Expired,
    /// Its home knows nothing of it.
    #[error("the shuffle is unknown: look at its number, or start it")]
    Unknown,
}

/// Why no client can read a shuffle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Failure {
    /// D6: what was counted is not what was acknowledged.
    #[error(
        "the holders have {found} records and {found_bytes} bytes of the shuffle, and {acknowledged} records and {acknowledged_bytes} bytes were acknowledged: start another shuffle, and report this"
    )]
    Differs {
        /// Records that the holders have.
        found: u64,
        /// Keys and values of these records, in bytes.
        found_bytes: u64,
        /// Records of the winners.
        acknowledged: u64,
        /// Keys and values of these records, in bytes.
        acknowledged_bytes: u64,
    },
    /// No node has some records that were acknowledged in memory.
    #[error(
        "no node gives some records of the shuffle that were acknowledged: it has durability memory, and their machines have ended at once, or one soon after the other: start another shuffle, with durability disk if this must not happen"
    )]
    Lost,
}
