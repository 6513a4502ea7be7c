//! A number for each shard, kept once for neighbours that have the same.
//!
//! Shards that were given out together began together: their ids follow each other and so do their moments. Think of
//! a step function over the ids: only where it steps is something kept. In the worst case, when no shard is like
//! its neighbour, that is as much as a plain map holds; in the usual one it is next to nothing.

use super::PackedMap;
use crate::base::id::ShardId;

/// The value of an id that has none.
const NONE: u64 = u64::MAX;

/// Numbers below [`u64::MAX`], by shard.
///
/// Each entry says what holds from its id up to the next entry; before the first there is nothing. No entry says
/// the same as the one before it.
#[derive(Debug, Clone, Default)]
pub(super) struct Runs {
    steps: PackedMap<ShardId, u64>,
}

impl Runs {
    /// The number of that shard.
    pub(super) fn get(&self, id: ShardId) -> Option<u64> {
        Some(self.at(id)).filter(|value| *value != NONE)
    }

    pub(super) fn insert(&mut self, id: ShardId, value: u64) {
        self.set(id, value);
    }

    pub(super) fn remove(&mut self, id: ShardId) {
        self.set(id, NONE);
    }

    pub(super) fn pack(&mut self, room: &mut i64) {
        self.steps.pack(room);
    }

    fn at(&self, id: ShardId) -> u64 {
        self.steps.range(..=id).next_back().map_or(NONE, |(_, value)| *value)
    }

    fn set(&mut self, id: ShardId, value: u64) {
        if self.at(id) == value {
            return;
        }
        let next = id.0.checked_add(1).map(ShardId);
        let beyond = next.map(|next| (next, self.at(next)));
        let before = id.0.checked_sub(1).map_or(NONE, |before| self.at(ShardId(before)));
        self.step(id, before, value);
        if let Some((next, beyond)) = beyond {
            self.step(next, value, beyond);
        }
    }

    /// From `before` below `id` to `value` at it.
    fn step(&mut self, id: ShardId, before: u64, value: u64) {
        if before == value {
            self.steps.remove(&id);
        } else {
            self.steps.insert(id, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn they_hold_what_a_map_holds_and_no_step_twice(
            steps in prop::collection::vec((0u64..30, prop::option::of(0u64..3), any::<bool>()), 0..200),
        ) {
            let (mut runs, mut map) = (Runs::default(), BTreeMap::new());
            for (id, value, at_the_end) in steps {
                let id = ShardId(if at_the_end { u64::MAX - id } else { id });
                match value {
                    Some(value) => {
                        runs.insert(id, value);
                        map.insert(id, value);
                    }
                    None => {
                        runs.remove(id);
                        map.remove(&id);
                    }
                }
                for id in (0..32).chain(u64::MAX - 32..=u64::MAX).map(ShardId) {
                    prop_assert_eq!(runs.get(id), map.get(&id).copied());
                }
                let values: Vec<u64> = std::iter::once(NONE).chain(runs.steps.values().copied()).collect();
                prop_assert!(values.windows(2).all(|pair| pair[0] != pair[1]), "{:?}", runs);
            }
        }
    }

    #[test]
    fn neighbours_that_began_together_are_one_step() {
        let mut runs = Runs::default();
        (1..=1_000).for_each(|id| runs.insert(ShardId(id), 77));
        assert_eq!(runs.steps.len(), 2, "where they begin, and where they end");
        runs.insert(ShardId(500), 78);
        assert_eq!(runs.steps.len(), 4);
        assert_eq!(
            [499, 500, 501, 1_001].map(|id| runs.get(ShardId(id))),
            [Some(77), Some(78), Some(77), None]
        );
    }
}
