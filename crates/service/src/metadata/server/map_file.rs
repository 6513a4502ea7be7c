//! What a metadata server has on its disk of one map: the map, and operations that may yet count.

use partage_core::base::id::{Generation, TransactionId};
use partage_core::base::time::Millis;
use partage_core::keyspace::map::{MapDiff, ShardMap};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An operation that is on disk and waits to be committed or aborted.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) diff: Arc<MapDiff>,
    pub(super) since: Millis,
    /// The first read of the head that began after it was stored.
    pub(super) read: u64,
    /// The latest version of the head that its swap may require, once that was read.
    pub(super) doubt: Option<u64>,
}

impl Pending {
    pub(super) fn new(diff: Arc<MapDiff>, now: Millis, read: u64) -> Pending {
        Pending { diff, since: now, read, doubt: None }
    }
}

/// A map, and what is stored on it.
#[derive(Debug, Clone)]
pub(super) struct MapFile {
    pub(super) map: Arc<ShardMap>,
    /// Whether the map was the head's once. One that was not may be created yet.
    pub(super) counts: bool,
    pub(super) since: Millis,
    /// The first read of the head that began after it was stored.
    pub(super) read: u64,
    pub(super) pending: BTreeMap<TransactionId, Pending>,
}

impl MapFile {
    pub(super) fn new(map: Arc<ShardMap>, now: Millis, read: u64) -> MapFile {
        MapFile { map, counts: false, since: now, read, pending: BTreeMap::new() }
    }

    /// The operations that lead from the map to `to`, if they are all here.
    pub(super) fn path(&self, to: Generation) -> Option<Vec<Arc<MapDiff>>> {
        let (mut path, mut at) = (Vec::new(), to);
        while at != self.map.generation() {
            let step = self.pending.get(&at.transaction).filter(|p| p.diff.to == at && p.diff.from != at)?;
            // Sequences fall with each step back, so this ends.
            if step.diff.from.sequence >= at.sequence {
                return None;
            }
            path.push(step.diff.clone());
            at = step.diff.from;
        }
        path.reverse();
        Some(path)
    }

    /// Whether its map has a higher sequence.
    pub(super) fn is_ahead_of(&self, at: Generation) -> bool {
        self.map.generation().sequence > at.sequence
    }

    pub(super) fn reaches(&self, to: Generation) -> bool {
        self.path(to).is_some()
    }

    /// Whether there is nothing in it but a map that never counted.
    pub(super) fn is_only(&self, generation: Generation) -> bool {
        !self.counts && self.map.generation() == generation
    }

    /// Takes out an operation and all that build on it.
    pub(super) fn drop(&mut self, gone: Generation) -> Vec<TransactionId> {
        let mut dropped = Vec::new();
        let mut left = vec![gone];
        while let Some(gone) = left.pop() {
            if self.pending.get(&gone.transaction).is_some_and(|pending| pending.diff.to == gone) {
                self.pending.remove(&gone.transaction);
                dropped.push(gone.transaction);
                left.extend(self.pending.values().filter(|p| p.diff.from == gone).map(|p| p.diff.to));
            }
        }
        dropped
    }
}
