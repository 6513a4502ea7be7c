//! What changed between two maps, in whole shards: small enough to push, simple enough to trust.

use super::{Shard, ShardMap};
use crate::base::id::{Generation, PlacementId, ShardId};
use crate::base::name::KeyspaceName;
use crate::keyspace::sharding::slot::common_multiple;
use crate::keyspace::sharding::{Bounds, Sharding};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Leads from the map at `from` to the map at `to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapDiff {
    /// The keyspace of both maps.
    pub keyspace: KeyspaceName,
    /// The map this diff applies to.
    pub from: Generation,
    /// The map it gives.
    pub to: Generation,
    /// The parent of the map it gives; `from` itself when the diff is one commit long.
    pub parent: Option<Generation>,
    /// Shards that are new or differ, whole, by id.
    pub changed: Vec<Shard>,
    /// Shards that are gone, by id.
    pub removed: Vec<ShardId>,
    /// The counter of shard ids after it.
    pub next_shard: ShardId,
    /// The counter of placement ids after it.
    pub next_placement: PlacementId,
}

/// A diff that does not belong on this map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiffError {
    /// The diff is of another keyspace than the map.
    #[error("a diff of keyspace {theirs} cannot be applied to the map of {ours}")]
    Keyspace {
        /// The keyspace of the map.
        ours: KeyspaceName,
        /// The keyspace of the diff.
        theirs: KeyspaceName,
    },
    /// The diff begins at another generation: something in between is missing; ask for the whole map.
    #[error("the diff begins at {from} but the map is at {at}: ask for the whole map")]
    Gap {
        /// The generation of the map.
        at: Generation,
        /// The generation at which the diff begins.
        from: Generation,
    },
}

impl ShardMap {
    /// What leads from this map to `to`, a later map of the same keyspace.
    pub fn diff(&self, to: &ShardMap) -> MapDiff {
        let changed = to.shards.values().filter(|shard| self.shards.get(&shard.id) != Some(shard)).cloned();
        let removed = self.shards.keys().filter(|id| !to.shards.contains_key(id)).copied();
        MapDiff {
            keyspace: to.keyspace.clone(),
            from: self.generation,
            to: to.generation,
            parent: to.parent,
            changed: changed.collect(),
            removed: removed.collect(),
            next_shard: to.next_shard,
            next_placement: to.next_placement,
        }
    }

    /// Becomes the map at `diff.to`. On an error nothing has changed.
    pub fn apply(&mut self, diff: &MapDiff) -> Result<(), DiffError> {
        if diff.keyspace != self.keyspace {
            return Err(DiffError::Keyspace { ours: self.keyspace.clone(), theirs: diff.keyspace.clone() });
        }
        if diff.from != self.generation {
            return Err(DiffError::Gap { at: self.generation, from: diff.from });
        }
        let shards = Arc::make_mut(&mut self.shards);
        for id in &diff.removed {
            shards.remove(id);
        }
        let changed = diff.changed.iter().map(|shard| (shard.id, shard.clone()));
        if diff.changed.len() > shards.len() / 8 {
            // Built anew the tree has full nodes: one that grew by insertion is half empty.
            shards.append(&mut changed.collect());
        } else {
            shards.extend(changed);
        }
        self.generation = diff.to;
        self.parent = diff.parent;
        self.next_shard = diff.next_shard;
        self.next_placement = diff.next_placement;
        self.count_slots(diff);
        Ok(())
    }

    /// The number of slots follows from the serving shards, and from nothing else: so it changes with the map, in every process
    /// that has a copy, and no message names it (K7).
    fn count_slots(&mut self, diff: &MapDiff) {
        let Sharding::Fixed { hash, shards } = self.sharding else { return };
        let divisor = |shard: &Shard| match &shard.bounds {
            Bounds::Slot(slot) if shard.is_serving() => Some(slot.of()),
            Bounds::Slot(_) | Bounds::Keys(_) | Bounds::Hashes(_) | Bounds::Name(_) => None,
        };
        if diff.changed.iter().filter_map(divisor).any(|of| of != shards)
            && let Some(ring) = common_multiple(self.shards.values().filter_map(divisor))
        {
            self.sharding = Sharding::Fixed { hash, shards: ring };
        }
    }
}

impl MapDiff {
    /// This diff followed by `later`, as one.
    pub fn then(&self, later: &MapDiff) -> Result<MapDiff, DiffError> {
        if later.keyspace != self.keyspace {
            return Err(DiffError::Keyspace { ours: self.keyspace.clone(), theirs: later.keyspace.clone() });
        }
        if later.from != self.to {
            return Err(DiffError::Gap { at: self.to, from: later.from });
        }
        let mut shards: BTreeMap<ShardId, Option<&Shard>> = BTreeMap::new();
        for diff in [self, later] {
            shards.extend(diff.removed.iter().map(|id| (*id, None)));
            shards.extend(diff.changed.iter().map(|shard| (shard.id, Some(shard))));
        }
        Ok(MapDiff {
            from: self.from,
            changed: shards.values().flatten().copied().cloned().collect(),
            removed: shards.iter().filter(|(_, shard)| shard.is_none()).map(|(id, _)| *id).collect(),
            ..later.clone()
        })
    }
}
