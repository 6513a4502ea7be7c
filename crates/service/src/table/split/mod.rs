//! Splits and merges: how the children of shards of a table come to what their parents have.
//!
//! The commits of the map are those of any split or merge (`plan/handover`). The data goes beside them, from node to
//! itself where that can be:
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
//! | children `Forming` | lead and follow, and give what they apply | take their base; each says `Ready` when it lags by [`Settings::split_lag`] entries at most |
//! | parents `Closing`, children serve | the closer appends `Close` ([`super::replication`]); all are kept open, and give | take the rest |
//! | the same, `Close` is committed | say with what they give where the log ends | store the base whole, open, and answer and acknowledge from then on |
//! | parents removed, when each child's replica in sync serves | are deleted | |
//! | children given up | go on | are deleted |
//!
//! The *base* of a child is what its parents had of its bounds where their logs ended: the rows, and the outcomes of all
//! requests that are kept, so that a request that is sent again gets its first answer ([`inherit`]). It lies before the first
//! entry of the child's own log, at a position whose index is the highest at which a parent's log ended, and whose epoch is 0:
//! so indexes go on growing for clients that count by them, and a replica that begins with an empty log is given the base as a
//! snapshot.
//!
//! What a parent's replica gives is not its log, but what it has changed by applying that: a child that had one half only could
//! not judge the other half's requests as the parent did, and its replicas would come to differ in what they keep of these.
//!
//! | module | what it decides |
//! |---|---|
//! | [`base`] | from whom a child's replica takes its base, when it is ready, and when it may open |
//! | [`source`] | what a parent's replica gives to whom |
//! | [`inherit`] | what of a parent's records goes to which child |
//!
//! The driver (`base` in the crate of tables), in numbered sentences:
//! 1. A replica whose `load` begins while it has no leader and other shards are among its peers ([`super::member::forms`]) is a
//!    child's. The driver notes with its folder that it has no base yet, and makes a [`Base`]. A base that is not whole is begun
//!    anew by each process.
//! 2. It hands the base the parents' replicas of each order ([`super::member::parents`]), calls it at [`Base::wake_at`], and says
//!    [`Base::news`] when a replica on its own node has applied something.
//! 3. It carries [`Ask`]s to where they go: on its own node to the parent's replica itself, else over the network; both may be
//!    lost.
//! 4. It answers an ask from the [`Source`] of the replica, to which it says each change that the replica has applied; a snapshot
//!    is of the asker's bounds only, and not of a time before the position that it names.
//! 5. It takes what was given as [`Base::take`] says. Records are chosen by [`inherit`]. Where a snapshot comes in parts, it says
//!    when the first has come ([`Base::copies`]), keeps what is given meanwhile beside them, and says when that is applied
//!    ([`Base::is_caught_up`]).
//! 6. [`Effect::Store`]: it joins the parents' parts, stores them with that position as flushed, the log as
//!    beginning behind it, and that the base is whole, atomically; then it says [`Base::stored`].
//! 7. [`Effect::Open`]: it opens the replica from what is stored, as one that has sent no reply.
//! 8. `load` returns when the base is ready, `serve` when the replica is open. So a child that serves has its base on disk, and
//!    the coordinator removes the parents when all do.
//! 9. A replica that closes ([`super::member::closes`]) it opens and keeps open, without callbacks, until its data is to be
//!    deleted: `unload` only ends requests. It goes on sending, wishing and reporting.
//! 10. A child's replica that has no base and is not in sync when its shard serves ([`super::member::forms`] no more, `Load`)
//!     gives up its base, and opens empty: its leader sends a snapshot, with which it has its base.
//!
//! A base that was not whole when its process ended is begun anew. Its parents' replicas, of which that on the same node comes
//! first, cannot give the same snapshot again, and what they changed since then they do not know any more. What was not done: a
//! child takes no base from a child.

pub mod base;
pub mod inherit;
pub mod source;

use super::replication::LogPosition;
use partage_core::base::id::{Epoch, PlacementId, ShardId};

pub use base::{Base, Effect, Parent, Settings, Taken};
pub use source::{Kept, Source};

/// What a child's replica asks of a parent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The shard that was split or merged.
    pub parent: ShardId,
    /// The replica of it that the child asks.
    pub of: PlacementId,
    /// Up to where the child has what the parent had; none = it has nothing yet.
    pub after: Option<LogPosition>,
}

/// What a parent's replica gives. The content goes beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    /// The shard that was split or merged.
    pub parent: ShardId,
    /// The replica of it that gives.
    pub by: PlacementId,
    /// A snapshot, or changes, and up to where.
    pub what: What,
    /// The index of the last entry in the log of that replica: what it gives may lag behind.
    pub end: u64,
    /// Where the parent's log has ended, if it has, and if what is given has come so far.
    pub closed: Option<LogPosition>,
    /// More changes than are given at once are kept.
    pub has_more: bool,
}

/// A part of what a parent has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// All that it had at that position.
    Snapshot(LogPosition),
    /// What it has changed between two positions.
    Changes {
        /// The position behind which the changes begin.
        after: LogPosition,
        /// The position of the last of them.
        to: LogPosition,
    },
}

impl What {
    /// Up to where it is.
    pub fn to(&self) -> LogPosition {
        match self {
            What::Snapshot(to) | What::Changes { to, .. } => *to,
        }
    }
}

/// Where the log of a child begins whose parents' logs have ended there.
pub fn base_position(ends: impl IntoIterator<Item = LogPosition>) -> LogPosition {
    let index = ends.into_iter().map(|end| end.index).max().unwrap_or(0);
    LogPosition { epoch: Epoch(0), index }
}
