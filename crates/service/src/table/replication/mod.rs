//! Replication: how the replicas of one shard of a table keep one log, and who may write and read.
//!
//! The map of the keyspace is the configuration (vertical Paxos, Lamport et al. 2009; PacificA, Lin et al. 2008; Kafka's
//! in-sync replicas): the coordinator alone says which replica leads, under which epoch, and which replicas are the *in-sync
//! set*. The replicas hold no votes. The leader appends entries, and an entry is *committed* when every in-sync replica has it
//! on disk. So each of them can lead without losing anything, and the coordinator makes no other replica the leader. A leader
//! asks for another set by a *wish*; an *order* is what the coordinator tells a replica.
//!
//! ```text
//!            order: epoch, configuration, leader, in-sync set
//!               │                                 ▲ wish: another set, on that epoch and configuration
//!  write ──► leader ── append (before, entries, committed) ──► follower ──► its disk
//!               ▲                                                  │
//!               └──────── reply (matched and synced, promise) ─────┘
//! ```
//!
//! | rule | where |
//! |---|---|
//! | 1. The leader *requires* the replicas of the set in its last order, and all that it has asked for since, until an order of a later configuration comes | `lead.rs`: `required` |
//! | 2. An entry is committed when all required replicas have it on disk. While fewer than `min_in_sync` are in the set, the leader refuses writes, and commits only the first entry of its epoch and what is before that | `commit.rs`; `writes.rs` |
//! | 3. A follower compares the entry before the appended ones, and cuts its log where that differs, but never what it knows to be committed. It refuses an epoch below its *fence*, the highest epoch that it has seen; for a higher one it raises the fence on disk before it replies | `follower.rs`, `log.rs` |
//! | 4. A new leader raises its fence, waits until its own promise (6) has ended, and appends `Begin`. When that is committed, it acknowledges, reads, and asks for newcomers | `lead.rs` |
//! | 4a. The *closer* of a shard that was split or merged does the same with `Close`, the last entry of the log, and admits nothing | `closing.rs` |
//! | 5. A leader has one wish at a time, on an epoch and configuration. It asks for a newcomer that has all that is committed, later and later for one that leaves again and again | `wishes.rs`, `rejoin_delay.rs` |
//! | 6. A reply is a promise to lead under no later epoch for `promise_ms`; linearizable reads and acknowledgements rest on the promises of all required replicas | `promise.rs`, `reads.rs`, `lead.rs`: `advance` |
//! | 7. A follower reports to the coordinator that its leader is silent | `follower.rs`: `report_silence` |
//! | 8. A leader sends entries to a follower that is behind, or a snapshot where its log does not reach back, and keeps the log from there until the follower has caught up | `sending.rs`, `copies.rs` |
//! | 9. A leader that hands over admits nothing until its *heir*, the replica that is to lead next, has all entries. A former leader tells the next one that it has let go ([`Message::LetGo`]), so that this one need not wait for its promise | `transfer.rs` |
//!
//! A former leader answers the writes that it had admitted when it learns what became of their entries (`unsettled.rs`).
//!
//! The driver:
//! 1. begins with [`Replica::recover`], with what the disk has. Each process has an incarnation of its own;
//! 2. reads the clock after it has received an event, and carries out the effects in their order;
//! 3. hands in [`Event::Synced`] with the number of the last [`Effect::Write`] that is on disk. If a sync fails, it ends the
//!    process;
//! 4. hands in [`Event::Tick`] at [`Replica::wake_at`];
//! 5. hands in orders in the order of their maps, and drops those that a later one has overtaken;
//! 6. reads for an [`Answer::Read`] after it has applied all entries that came in earlier effects;
//! 7. calls [`Replica::renamed`] when the coordinator gives the process another incarnation, before orders to that;
//! 8. stores the position of what it flushes with it, atomically ([`Stored::flushed`]);
//! 9. hands in [`Event::Trim`] after [`Event::Flushed`] when the disk wants room for its log. The log keeps what copies of rows
//!    need until the driver calls [`Replica::end_copies`], as it must when the disk has no room at all;
//! 10. reports how far the snapshots to followers are ([`Replica::copies_to`]), and holds writes back while there is no room
//!     for them ([`Replica::write_room`]);
//! 11. also gives what it applies to the children of the shard, and keeps the replica open while the shard closes
//!     ([`super::split`]).
//!
//! What was not done: a replica applies no entry before its own disk has it, though it could, for a shorter latency. A leader
//! does not step down by itself when its own disk is slow.

use partage_core::base::id::{Configuration, Epoch, Incarnation, PlacementId};
use partage_core::base::name::NodeId;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

mod closing;
mod commit;
mod copies;
mod durable;
mod follower;
mod lead;
mod log;
pub mod message;
mod promise;
mod reads;
mod rejoin_delay;
mod replica;
mod sending;
pub mod settings;
mod transfer;
mod unsettled;
mod wishes;
mod writes;

pub use copies::SnapshotProgress;
pub use message::Message;
pub use replica::{Replica, Status};
pub use settings::Settings;

/// The number of a request that waits for an answer.
pub type Request = u64;

/// What a write carries; opaque here.
pub type Payload = Arc<[u8]>;

/// A place in a log. Of two places the one with the higher epoch is the later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogPosition {
    /// The epoch of the leader that appended the entry.
    pub epoch: Epoch,
    /// Counts entries, from 1; 0 is before the first.
    pub index: u64,
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.epoch, self.index))
    }
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// The first entry of an epoch.
    Begin,
    /// A write of a client.
    Write(Payload),
    /// The first entry of an epoch under which the shard closes. Only such entries follow it.
    Close,
}

/// Bytes that an entry counts against limits, beside its payload.
pub const ENTRY_AROUND_BYTES: usize = 48;

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Where it is in the log: one index behind the entry before.
    pub position: LogPosition,
    /// What it is, and what it carries.
    pub kind: EntryKind,
}

impl Entry {
    /// Bytes that it counts against limits: its payload and [`ENTRY_AROUND_BYTES`].
    pub fn bytes(&self) -> usize {
        match &self.kind {
            EntryKind::Begin | EntryKind::Close => ENTRY_AROUND_BYTES,
            EntryKind::Write(payload) => ENTRY_AROUND_BYTES + payload.len(),
        }
    }
}

/// A replica of the shard, as an order names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The identity of the replica, which no other one ever has.
    pub placement: PlacementId,
    /// The node that has the replica.
    pub node: NodeId,
    /// The process that has it. The leader ignores replies of others.
    pub incarnation: Incarnation,
    /// Whether the leader may ask it into the in-sync set: not so for read replicas.
    pub may_join: bool,
}

/// What the coordinator tells a replica of its shard, from one map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The epoch under which the leader leads.
    pub epoch: Epoch,
    /// Grows with each change of leader or set.
    pub configuration: Configuration,
    /// The replica that leads.
    pub leader: PlacementId,
    /// The replicas that have all that is committed; the leader is one of them.
    pub in_sync: BTreeSet<PlacementId>,
    /// All replicas of the shard, this one too.
    pub peers: Vec<Peer>,
    /// The shard was split or merged: the leader is its closer.
    pub closes: bool,
    /// The heir that the leader is to hand over to; [`Status::heir_ready`] says when the heir is ready.
    pub hand_over_to: Option<PlacementId>,
}

/// The in-sync set that a leader asks the coordinator for. The coordinator takes it only if epoch and configuration are
/// still those of the map.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Wish {
    /// The replica that asks.
    pub placement: PlacementId,
    /// The epoch under which it leads.
    pub epoch: Epoch,
    /// The configuration that it knows.
    pub configuration: Configuration,
    /// The set. If it is the present one, the leader asks for a later epoch.
    pub in_sync: BTreeSet<PlacementId>,
}

/// How fresh a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// It sees all that was acknowledged before it began. Only the leader answers.
    Linearizable,
    /// It sees all that was acknowledged so many milliseconds before it is answered. Any replica may answer.
    Bounded(u64),
    /// It sees some state that was committed.
    Any,
}

/// What is on the disk of a replica when its process starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stored {
    /// The position before the first entry.
    pub base: LogPosition,
    /// The entries that were synced.
    pub entries: Vec<Entry>,
    /// The highest epoch that was seen.
    pub fence: Epoch,
    /// The last index that is noted as committed. May lag.
    pub committed: u64,
    /// The applied state is stored up to here: later entries are applied again.
    pub flushed: LogPosition,
}

impl Stored {
    /// A write to the log is on the disk.
    pub fn write(&mut self, write: LogWrite) {
        match write {
            LogWrite::Fence(epoch) => self.fence = epoch,
            LogWrite::Append(entries) => self.entries.extend(entries),
            LogWrite::Truncate(after) => self.entries.retain(|entry| entry.position.index <= after),
            LogWrite::Trim(base) => {
                self.entries.retain(|entry| entry.position.index > base.index);
                self.base = base;
            }
            LogWrite::Restart(base) => (self.base, self.entries) = (base, Vec::new()),
        }
    }

    /// Whether an entry closes the shard. Its children are told of that entry from the log, so it is not trimmed.
    pub fn has_close(&self) -> bool {
        self.entries.iter().any(|entry| entry.kind == EntryKind::Close)
    }

    /// What is wrong with the log, or with how it joins what was flushed: [`Replica::recover`] finds the same.
    pub fn damage(&self) -> Option<Damage> {
        let mut last = self.base;
        for entry in &self.entries {
            if entry.position.index != last.index + 1 || entry.position.epoch < last.epoch {
                return Some(Damage::NotInOrder { after: last, found: entry.position });
            }
            last = entry.position;
        }
        let (base, flushed) = (self.base, self.flushed);
        (flushed.index < base.index).then_some(Damage::Gap { base, flushed })
    }
}

/// A write to the log on disk. Each is done after those before it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LogWrite {
    /// The fence is at this epoch.
    Fence(Epoch),
    /// These entries follow on the last one.
    Append(Vec<Entry>),
    /// The entries behind this index are no part of the log.
    Truncate(u64),
    /// The entries up to this one are needed no more. Need not be done.
    Trim(LogPosition),
    /// The log begins anew behind this position: what was before came as a snapshot.
    Restart(LogPosition),
}

/// What the driver tells a replica ([`Replica::handle`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// An order of the coordinator.
    Order(Order),
    /// The coordinator refuses the wish on this epoch and configuration.
    WishRefused(Epoch, Configuration),
    /// A message of another replica.
    Message(PlacementId, Message),
    /// All writes up to that number are on disk.
    Synced(u64),
    /// Clients have writes, in this order.
    Write(Vec<(Request, Payload)>),
    /// A client reads, at that index or a later one (0: any).
    Read(Request, Consistency, u64),
    /// What was applied up to there is stored.
    Flushed(LogPosition),
    /// A snapshot up to there, for which [`Replica::takes_snapshot`] was true, is stored and is now the applied state.
    Installed(LogPosition),
    /// The disk wants room: the log drops entries that are applied and flushed, also those that a follower which is behind
    /// needs, which gets a snapshot then.
    Trim,
    /// Time has passed: [`Replica::wake_at`] says when to call.
    Tick,
}

/// What a replica asks its driver to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Write this to the log; the number grows by one with each.
    Write(u64, LogWrite),
    /// Send this to another replica. Messages may be lost, late, doubled, and overtake each other.
    Send(PlacementId, Message),
    /// Apply these entries, which are committed and on the own disk. Only of these the driver may note there that they are
    /// committed ([`Stored::committed`]): entries not on disk yet may replace others that still are.
    Apply(Vec<Entry>),
    /// Give the client of that request its answer.
    Answer(Request, Result<Answer, Failed>),
    /// Send the wish to the coordinator.
    Wish(Wish),
    /// Tell the coordinator that the leader of that epoch is silent.
    LeaderSilent(Epoch),
    /// The replica leads, and serves, under that epoch.
    Began(Epoch),
    /// The closing entry of that epoch is committed: the log of the shard has come to its end.
    Closed(Epoch),
    /// The follower needs a snapshot of the applied state: send it one, if none is under way.
    Snapshot(PlacementId),
    /// The heir has all entries, and the leader admits none meanwhile: [`Status::heir_ready`] tells the coordinator.
    HeirIsReady(PlacementId),
    /// The hand-over to this heir ended without a change of leader: the leader admits writes again.
    TransferEnded(PlacementId),
    /// The replica takes part in nothing any more: tell the coordinator.
    Damaged(Damage),
}

/// What a replica answers to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The write is committed, and applied here.
    Written(LogPosition),
    /// The client may read now, from what is applied here.
    Read {
        /// All entries up to this index were applied.
        applied: u64,
        /// How old that may be, in milliseconds: none if that is not known.
        age_ms: Option<u64>,
    },
}

/// Why a request fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// Another replica leads: that one, if it is known.
    #[error("this replica does not lead the shard: ask {}", .0.map_or_else(|| "the coordinator who does".to_owned(), |leader| leader.to_string()))]
    NotLeader(Option<PlacementId>),
    /// The leader has not begun.
    #[error("the leader of the shard has just changed and has not begun: try again")]
    NotBegun,
    /// The shard was split or merged.
    #[error("the shard was split or merged: look up the key again")]
    Closed,
    /// The lead is about to go to another replica.
    #[error("the shard is being handed over: try again")]
    HandingOver,
    /// The in-sync set is too small; nothing was logged.
    #[error(
        "{have} replicas of the shard are in sync and a write needs {need} (min_in_sync): wait until more have caught up"
    )]
    TooFewInSync {
        /// So many replicas are in sync.
        have: usize,
        /// So many replicas must be in sync.
        need: usize,
    },
    /// A queue is full.
    #[error("{0}: try again later")]
    Full(&'static str),
    /// The leader has not heard from all in-sync replicas, so it may have been replaced.
    #[error(
        "the leader has not heard from all in-sync replicas in time, so it cannot know that it still leads: try again, or read with a bound"
    )]
    NoPromises,
    /// What is here is older than the bound of the read.
    #[error("what this replica has may be older than the bound of the read: ask another one")]
    TooOld,
    /// What is here is before what the client has seen.
    #[error(
        "this replica has applied entries up to {applied}, which the client has seen beyond: ask another one"
    )]
    Behind {
        /// Up to this index entries are applied here.
        applied: u64,
    },
    /// The replica is damaged.
    #[error("this replica is damaged: ask another one")]
    Damaged,
    /// The write is in the log, and may or may not come to be committed.
    #[error("the outcome of the write is unknown: {0}")]
    Unknown(&'static str),
}

impl Failed {
    /// Whether it is certain that a write that failed so has done nothing.
    pub fn is_definite(&self) -> bool {
        !matches!(self, Failed::Unknown(_))
    }
}

/// Why a replica takes part in nothing any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A leader has another entry where one is committed here.
    #[error(
        "the leader has an entry before {leader} that differs from a committed one here: committed up to {committed}"
    )]
    CommittedDiffers {
        /// Where the leader's entry is.
        leader: LogPosition,
        /// Up to which index entries are committed here.
        committed: u64,
    },
    /// The log on disk has an entry where another one must be.
    #[error("in the log {found} follows on {after}: fill the replica from another one")]
    NotInOrder {
        /// The last entry that is in order.
        after: LogPosition,
        /// The one behind it.
        found: LogPosition,
    },
    /// The log on disk does not join what was flushed.
    #[error(
        "the log begins behind {base}, and what was applied is stored up to {flushed} only: fill the replica from another one"
    )]
    Gap {
        /// The position before its first entry.
        base: LogPosition,
        /// Up to where what was applied is stored.
        flushed: LogPosition,
    },
}

#[cfg(test)]
mod tests;
