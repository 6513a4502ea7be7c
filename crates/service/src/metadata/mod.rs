//! METADATA: the map of a keyspace as a file on a few servers, with nothing but a pointer in the coordination
//! service (EventQL's METADATA file; T4 to T10).
//!
//! The pointer is the [`Head`] of the keyspace: which map counts, and which servers keep it. To change the map a client
//! has most of these servers store the change on disk, and then swaps the head, if it still is what it was before. A
//! server that is asked for the map reads the head before it answers.
//!
//! A map is a [`ShardMap`], the change of one a [`MapDiff`], which is the operation (with its base and its new
//! transaction) and is applied in one place, [`ShardMap::apply`]. What a server does is [`server`], what a client does
//! that changes a map is [`change`]; both are machines without I/O. What servers tell a node of a partition is
//! [`discover`](discover::Discovery), and which server replaces one that is gone is [`upkeep`].
//!
//! Why nothing is lost: a change is swapped in only when a majority of the servers of the head have it on disk,
//! and the swap fails when that head, and so its list, has changed. A list changes only when a majority of the
//! new one has the head's map on disk. A server drops what it has only when it can never be the head's again.

pub mod change;
pub mod discover;
pub mod server;
pub mod upkeep;

use partage_core::base::id::Generation;
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_core::keyspace::map::{DiffError, MapDiff, ShardMap};
use partage_core::plan::check::{self, Finding};

/// The number of servers on which a map is kept, where there are as many (T6).
pub const SERVERS: usize = 3;

/// Most servers of one map: more cost each change more than they add to its safety.
pub const SERVERS_MOST: usize = 15;

/// What the coordination service has of a map: everything else is in the files (T6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The map that counts: servers answer with this one alone.
    pub at: Generation,
    /// The servers that keep it, in the order of their names.
    pub servers: Vec<NodeId>,
}

/// A head as it was read: the version changes with every write of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The head that the key held at that read.
    pub head: Head,
    /// The key's version at that read, in the coordination service's own count: a swap requires it.
    pub version: u64,
}

/// How many of `servers` must have a map on disk before it may count.
pub fn majority(servers: usize) -> usize {
    if planted::is(Planted::Majority) { servers / 2 } else { servers / 2 + 1 }
}

/// `count` of `candidates`, drawn by `seed`, in the order of their names (T6).
pub fn choose(candidates: &[NodeId], count: usize, seed: u64) -> Vec<NodeId> {
    let mut left = candidates.to_vec();
    left.sort();
    left.dedup();
    let mut state = seed;
    while left.len() > count {
        // SplitMix64 (Steele, Lea, Flood 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        left.remove(((mixed ^ (mixed >> 31)) % left.len() as u64) as usize);
    }
    left
}

/// A change of a map that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeRefused {
    /// The change belongs to another keyspace, or builds on another map.
    #[error(transparent)]
    Diff(#[from] DiffError),
    /// It does not lead to the next map.
    #[error("a change of the map at {at} must lead to sequence {} with {at} as parent and a new transaction, not to {to}", at.sequence + 1)]
    NotNext {
        /// The map that the server has.
        at: Generation,
        /// The map to which the change leads.
        to: Generation,
    },
    /// It would make a map that must never be.
    #[error("the change would break the map: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Findings(Vec<Finding>),
}

/// Whether `change` may follow on `map`: checked before a server stores it (M1, M3, M5).
pub fn check(map: &ShardMap, change: &MapDiff) -> Result<(), ChangeRefused> {
    if change.keyspace != *map.keyspace() {
        let (ours, theirs) = (map.keyspace().clone(), change.keyspace.clone());
        return Err(DiffError::Keyspace { ours, theirs }.into());
    }
    let at = map.generation();
    if change.from != at {
        return Err(DiffError::Gap { at, from: change.from }.into());
    }
    let is_next = change.to.sequence == at.sequence + 1
        && change.parent == Some(at)
        && change.to.transaction != at.transaction;
    if !is_next {
        return Err(ChangeRefused::NotNext { at, to: change.to });
    }
    match check::diff(map, change) {
        none if none.is_empty() => Ok(()),
        findings => Err(ChangeRefused::Findings(findings)),
    }
}

#[cfg(test)]
mod tests;
