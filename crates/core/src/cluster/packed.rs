//! An ordered map that is kept for each replica, so its room counts.
//!
//! The nodes of a B-tree that has grown by insertion are two thirds full. A map that is packed when the
//! cluster has come to rest has full ones; what is added afterwards opens a few again. Not in its place: a table
//! of our own making, which would save a little more and would have to be right.

use std::collections::BTreeMap;
use std::ops::Deref;

/// Packed again once one entry in so many was added or removed.
const WORTH_IT: usize = 8;

/// Reads as the [`BTreeMap`] it is.
#[derive(Debug, Clone)]
pub struct PackedMap<K, V> {
    entries: BTreeMap<K, V>,
    /// Entries added or removed since it was packed.
    changes: usize,
}

impl<K, V> Default for PackedMap<K, V> {
    fn default() -> PackedMap<K, V> {
        PackedMap { entries: BTreeMap::new(), changes: 0 }
    }
}

impl<K: Ord, V> PackedMap<K, V> {
    pub(super) fn insert(&mut self, key: K, value: V) {
        self.changes += usize::from(self.entries.insert(key, value).is_none());
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let removed = self.entries.remove(key);
        self.changes += usize::from(removed.is_some());
        removed
    }

    /// Fills its nodes, if much has changed since they were full and there is room left: takes the entries from that,
    /// which may so fall below 0. What is not packed now is as before, and may be packed later.
    pub(super) fn pack(&mut self, room: &mut i64) {
        if *room > 0 && self.changes > self.entries.len() / WORTH_IT {
            *room -= self.entries.len() as i64;
            // Collecting builds full nodes; moving a whole tree over would keep the old ones.
            self.entries = std::mem::take(&mut self.entries).into_iter().collect();
            self.changes = 0;
        }
    }
}

impl<K, V> Deref for PackedMap<K, V> {
    type Target = BTreeMap<K, V>;
    fn deref(&self) -> &BTreeMap<K, V> {
        &self.entries
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for PackedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> PackedMap<K, V> {
        PackedMap { entries: entries.into_iter().collect(), changes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(steps in prop::collection::vec((0u8..40, 0u8..4), 0..200)) {
            let (mut packed, mut map) = (PackedMap::default(), BTreeMap::new());
            for (key, what) in steps {
                match what {
                    0 => prop_assert_eq!(packed.remove(&key), map.remove(&key)),
                    1 => packed.pack(&mut 1),
                    value => {
                        packed.insert(key, value);
                        map.insert(key, value);
                    }
                }
                prop_assert_eq!(&*packed, &map);
            }
        }
    }

    #[test]
    fn it_is_packed_when_much_has_changed_and_not_before() {
        let mut map: PackedMap<u32, u32> = (0..80).map(|i| (i, i)).collect();
        (0..10).for_each(|i| map.insert(100 + i, i));
        (0..10).for_each(|i| map.insert(i, i));
        let mut room = 1_000;
        map.pack(&mut room);
        assert_eq!(
            (map.changes, room),
            (10, 1_000),
            "10 of 90 are below an eighth, and what is replaced does not count"
        );
        map.remove(&1);
        map.remove(&2);
        map.pack(&mut 0);
        assert_eq!(map.changes, 12, "there was no room");
        map.pack(&mut room);
        assert_eq!((map.changes, room), (0, 1_000 - 88));
    }
}
