//! What replicas of one shard say to each other: plain data, which `wire` carries.

use super::{Entry, LogPosition};
use partage_core::base::id::{Epoch, Incarnation};
use partage_core::base::time::Millis;

/// What one replica sends to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The leader has entries, or says that it still leads.
    Append(Append),
    /// A follower replies to an append, or has synced more since.
    Reply(Reply),
    /// A former leader of that epoch, which had begun, answers nothing any more.
    LetGo(Epoch),
}

/// What a leader sends to each replica, at least every `append_ms`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The epoch under which the leader leads.
    pub epoch: Epoch,
    /// The entry before the first of these.
    pub before: LogPosition,
    /// Entries that follow on each other.
    pub entries: Vec<Entry>,
    /// Up to which index entries are committed.
    pub committed: u64,
    /// As many replicas as a write needs have these: a replica may answer the requests that wait for one of them.
    pub is_enough: bool,
    /// When the leader sent this, by its clock.
    pub sent: Millis,
    /// The latest clock that the leader has had of this follower, if it knew at `sent` that it leads.
    pub echo: Option<Echo>,
}

/// A clock of a follower that comes back to it: what was acknowledged before is committed in the append that brings it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo {
    /// The process whose clock it is.
    pub incarnation: Incarnation,
    /// What that clock read when the follower replied.
    pub clock: Millis,
}

/// What a follower replies. If it does not refuse, it promises to lead under no later epoch for `promise_ms` from the receipt of
/// the append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The epoch of the append.
    pub epoch: Epoch,
    /// The highest epoch that the follower has seen. If it is above that of the append, the follower has refused, and promises
    /// nothing.
    pub fence: Epoch,
    /// The process that replies.
    pub incarnation: Incarnation,
    /// When the append was sent, by the leader's clock.
    pub sent: Millis,
    /// What the follower's clock reads.
    pub clock: Millis,
    /// Up to this index the log on the follower's disk is the leader's.
    pub matched: u64,
    /// The append did not fit: up to this index the log of the follower may be the leader's.
    pub ends: Option<u64>,
}
