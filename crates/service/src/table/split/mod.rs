//! Splits and merges: how the child shards get the data of their parents.
//!
//! The commits of the map are those of any split or merge (`plan/handover`). Beside them, each child's replica copies the data
//! from a parent's replica, on its own node where there is one:
//!
//! ```text
//!  parent's replica ── applies ──► its rows                 log: … w w w Close
//!        │ what it has of the child's half, then each change      │
//!        ▼                                                        ▼
//!  child's replica: its base ─── within split_lag ──► Ready ── has all up to Close, on disk ──► it opens
//! ```
//!
//! | map | the parent's replicas | the child's replicas |
//! |---|---|---|
//! | children `Forming` | lead and follow, and give what they apply | take their base; each reports `Ready` when it lags by [`Settings::split_lag`] entries at most |
//! | parents `Closing`, children serve | the closer appends `Close` ([`super::replication`]); all are kept open, and give | take the rest |
//! | the same, `Close` is committed | name the end of the log with what they give | store the whole base, open, and answer and acknowledge from then on |
//! | parents removed, when each child's replica in sync serves | are deleted | |
//! | children given up | go on | are deleted |
//!
//! The *base* of a child is what its parents had of its bounds where their logs ended: the rows, and the outcomes of all
//! requests that are kept, so that a request that is sent again gets its first answer ([`inherit`]). It lies before the first
//! entry of the child's own log, at a position whose index is the highest at which a parent's log ended, and whose epoch is 0:
//! so indexes go on growing for clients that count by them, and a replica that begins with an empty log is given the base as a
//! snapshot.
//!
//! A parent's replica gives not its log, but the changes that it made by applying that: a child with one half of the rows could
//! not judge requests about the other half as the parent did, and its replicas would keep different outcomes of these.
//!
//! | module | what it decides |
//! |---|---|
//! | [`base`] | from whom a child's replica takes its base, when it is ready, and when it may open |
//! | [`source`] | what a parent's replica gives to whom |
//! | [`inherit`] | what of a parent's records goes to which child |
//!
//! What the driver does (`crates/table/src/base`):
//! 1. A replica whose `load` begins while it has no leader and other shards are among its peers ([`super::member::forms`]) is a
//!    child's. The driver notes with its folder that it has no base yet, and makes a [`Base`]. Each process begins an unfinished
//!    base anew.
//! 2. It hands the base the parents' replicas of each order ([`super::member::parents`]), calls it at [`Base::wake_at`], and
//!    calls [`Base::parent_applied`] when a parent's replica on its own node has applied something.
//! 3. It delivers each [`Ask`] to the parent's replica, on its own node or over the network; asks and answers may be lost.
//! 4. It answers an ask from the [`Source`] of the replica, which it tells each change that the replica has applied. A snapshot
//!    has only rows within the asker's bounds, and nothing older than its position.
//! 5. It applies an answer as [`Base::take`] says; [`inherit`] chooses the records. Where a snapshot comes in parts, it calls
//!    [`Base::copy_begins`] at the first, keeps the changes that come meanwhile aside, and calls [`Base::caught_up`] when it has
//!    applied those.
//! 6. [`Effect::Store`]: it joins the parents' parts, and stores them atomically with that position as flushed, a log that begins
//!    behind it, and a note that the base is whole; then it calls [`Base::stored`].
//! 7. [`Effect::Open`]: it opens the replica from that, as one that has sent no reply.
//! 8. `load` returns when the base is ready, `serve` when the replica is open. So a child that serves has its base on disk, and
//!    the coordinator removes the parents when all do.
//! 9. It opens a replica that closes ([`super::member::closes`]), and keeps it open without callbacks until the coordinator has
//!    its data deleted: `unload` only ends requests.
//! 10. A child's replica that has no base and is not in sync when its shard serves ([`super::member::forms`] no more, `Load`)
//!     gives up its base, and opens empty: its leader sends a snapshot, with which it has its base.
//!
//! An unfinished base is begun anew after a restart, because the parents' replicas can neither give the same snapshot again nor
//! know their changes since. What was not done: a child takes no base from another child's replica.

pub mod base;
pub mod inherit;
pub mod source;

use super::replication::LogPosition;
use partage_core::base::id::{Epoch, PlacementId, ShardId};

pub use base::{Base, Effect, Parent, Settings, Taken};
pub use source::{Retention, Source};

/// What a child's replica asks of a parent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The shard that was split or merged.
    pub parent: ShardId,
    /// The replica of it that the child asks.
    pub of: PlacementId,
    /// The child has all that the parent had up to here; none: it has nothing yet.
    pub after: Option<LogPosition>,
}

/// What a parent's replica gives. The rows or changes go beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    /// The shard that was split or merged.
    pub parent: ShardId,
    /// The replica of it that gives.
    pub by: PlacementId,
    /// A snapshot or changes, and up to which position.
    pub what: GivenExtent,
    /// The index of the last entry in the log of that replica, which may be beyond what it gives.
    pub end: u64,
    /// Where the parent's log has ended, once what is given reaches that.
    pub closed: Option<LogPosition>,
    /// The source keeps more changes than it gives now.
    pub has_more: bool,
}

/// Which part of a parent's data an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenExtent {
    /// All rows as of that position.
    Snapshot(LogPosition),
    /// The changes between two positions.
    Changes {
        /// The position behind which the changes begin.
        after: LogPosition,
        /// The position of the last of them.
        to: LogPosition,
    },
}

impl GivenExtent {
    /// The last position in it.
    pub fn to(&self) -> LogPosition {
        match self {
            GivenExtent::Snapshot(to) | GivenExtent::Changes { to, .. } => *to,
        }
    }
}

/// Where the log of a child begins whose parents' logs have ended there.
pub fn base_position(ends: impl IntoIterator<Item = LogPosition>) -> LogPosition {
    let index = ends.into_iter().map(|end| end.index).max().unwrap_or(0);
    LogPosition { epoch: Epoch(0), index }
}
