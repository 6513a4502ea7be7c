//! Publication of maps: what to send to a subscriber that has the map of some generation.
//!
//! Think of a magazine: whoever has read the last issue gets the next one; whoever was away for a few gets
//! one issue that sums them up; whoever was away for too long gets the collected works, marked as such (W4).
//! A subscriber has one update under way at a time and says when it has taken it in; what is published
//! meanwhile is summed up in the next. So nobody has a backlog, and nobody waits for anybody (W6).
//!
//! Not here: connections, and when to send. The driver calls [`History::update`] when a subscriber is free.

use partage_core::id::Generation;
use partage_core::map::{MapDiff, ShardMap};
use partage_core::name::KeyspaceName;
use std::collections::{BTreeMap, VecDeque};

/// Diffs of a keyspace kept for subscribers that were away: few, so that runs get beyond.
const DIFFS_KEPT: usize = 16;

/// One update: whole generations only (W3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// Follows the map that the subscriber has, or leads from nothing to the whole map.
    pub diff: MapDiff,
    /// It does not follow: forget the map that is there and begin from this one.
    pub resync: bool,
}

/// The last diffs of each keyspace, at most [`DIFFS_KEPT`] of each.
#[derive(Debug, Default)]
pub struct History {
    diffs: BTreeMap<KeyspaceName, VecDeque<MapDiff>>,
}

impl History {
    /// Takes in a diff that was committed, after the one before it.
    pub fn committed(&mut self, diff: MapDiff) {
        let diffs = self.diffs.entry(diff.keyspace.clone()).or_default();
        if diffs.back().is_some_and(|last| last.to != diff.from) {
            diffs.clear();
        }
        diffs.push_back(diff);
        if diffs.len() > DIFFS_KEPT {
            diffs.pop_front();
        }
    }

    /// Forgets a keyspace that is gone.
    pub fn forget(&mut self, keyspace: &KeyspaceName) {
        self.diffs.remove(keyspace);
    }

    /// What leads a subscriber from `has` to `map`, the latest; nothing if that is what it has.
    pub fn update(&self, map: &ShardMap, has: Option<Generation>) -> Option<Update> {
        if has == Some(map.generation()) {
            return None;
        }
        let followed = has.and_then(|has| self.chain(map, has));
        Some(match followed {
            Some(diff) => Update { diff, resync: false },
            None => Update { diff: map.whole(), resync: true },
        })
    }

    fn chain(&self, map: &ShardMap, has: Generation) -> Option<MapDiff> {
        let diffs = self.diffs.get(map.keyspace())?;
        let mut later = diffs.iter().skip_while(|diff| diff.from != has);
        let first = later.next()?.clone();
        let sum = later.try_fold(first, |sum, diff| sum.then(diff)).ok()?;
        (sum.to == map.generation()).then_some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::hash::HashFunction;
    use partage_core::id::TransactionId;
    use partage_core::sharding::{Bounds, PartitionKey, Sharding};

    fn maps(count: u32) -> (Vec<ShardMap>, History) {
        let name = KeyspaceName::new("k").unwrap();
        let sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 1_000 };
        let mut maps = vec![ShardMap::empty(name, sharding, PartitionKey::default())];
        let mut history = History::default();
        for slot in 0..count {
            let mut map = maps.last().unwrap().clone();
            let mut edit = map.edit();
            edit.create_shard(Bounds::Slot(slot)).unwrap();
            let diff = edit.commit(TransactionId([slot as u8; 20]));
            map.apply(&diff).unwrap();
            history.committed(diff);
            maps.push(map);
        }
        (maps, history)
    }

    #[test]
    fn w1_w4_a_subscriber_gets_the_sum_of_what_it_missed_or_a_whole_map_that_says_so() {
        let missed = 5 + DIFFS_KEPT;
        let (maps, history) = maps(missed as u32);
        let last = maps.last().unwrap();
        for (at, map) in maps.iter().enumerate() {
            let Some(update) = history.update(last, Some(map.generation())) else {
                assert_eq!(at, missed);
                continue;
            };
            assert_eq!(update.resync, missed - at > DIFFS_KEPT, "from map {at}");
            let mut has = if update.resync { maps[0].clone() } else { map.clone() };
            has.apply(&update.diff).unwrap();
            assert_eq!(&has.whole(), &last.whole());
        }
        assert!(history.update(last, None).unwrap().resync);
    }

    #[test]
    fn w4_a_generation_of_another_history_is_answered_by_a_whole_map() {
        let (maps, history) = maps(3);
        let stranger = Generation { sequence: 2, transaction: TransactionId([9; 20]) };
        assert!(history.update(&maps[3], Some(stranger)).unwrap().resync);
    }
}
