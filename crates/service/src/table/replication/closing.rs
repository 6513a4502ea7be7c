//! How the log of a shard ends that was split or merged.
//!
//! From the commit on by which its children serve, the map names a *closer* in the place of its leader: a member of its in-sync
//! set, under a later epoch. The closer does what any new leader does (rule 4), but appends `Close` and admits nothing. When
//! that is committed, no leader of an earlier epoch acknowledges a write or answers a read any more, and what the shard has
//! acknowledged is before the closing entry, on each replica that is in sync. A closer that is named later appends another one:
//! the first that is committed counts, and it is the same for all replicas, as only others follow it.
//!
//! A log that ends so is not trimmed, and no replica is filled from one: the children learn from it where it ends.

use super::{LogPosition, Replica};

impl Replica {
    /// Whether the order says that the shard closes.
    pub fn closes(&self) -> bool {
        self.order.as_ref().is_some_and(|order| order.closes)
    }

    /// Where the log ends for good: all that the shard has acknowledged is before, and applied here. None as long as that is not
    /// known.
    pub fn closed(&self) -> Option<LogPosition> {
        self.log.first_of_close().filter(|first| first.index <= self.applied)
    }
}
