//! Batches that are being stored.

use partage_service::shuffle::ShuffleId;
use partage_service::shuffle::record::{Batch, BatchKey};
use partage_service::shuffle::turns::may_wait;
use std::collections::BTreeMap;

/// A batch by its sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    /// What it takes in memory, in bytes.
    memory: u64,
    /// Its records.
    pub(super) records: u64,
    /// Their keys and values, in bytes.
    pub(super) bytes: u64,
}

/// Batches that are being stored, and what they take in memory.
#[derive(Debug, Default)]
pub(in crate::node) struct StoredSoon {
    batches: BTreeMap<BatchKey, Size>,
    memory: u64,
    /// That of each shuffle.
    of: BTreeMap<ShuffleId, u64>,
}

impl StoredSoon {
    /// In bytes.
    pub(super) fn memory(&self) -> u64 {
        self.memory
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    /// Whether a batch more of a shuffle may be stored, where so much memory is for them. One batch may go beyond it.
    pub(super) fn has_room(&self, shuffle: ShuffleId, most: u64) -> bool {
        let own = self.of.get(&shuffle).copied();
        let shuffles = self.of.len() as u64 + u64::from(own.is_none());
        may_wait((self.memory, most), (own.unwrap_or(0), shuffles), 1)
    }

    pub(super) fn insert(&mut self, batch: &Batch) {
        self.remove(&batch.key);
        let size = Size { memory: batch.memory(), records: batch.records(), bytes: batch.bytes() };
        self.memory += size.memory;
        *self.of.entry(batch.key.stream.shuffle).or_default() += size.memory;
        self.batches.insert(batch.key.clone(), size);
    }

    /// It is stored, or is not going to be.
    pub(super) fn remove(&mut self, key: &BatchKey) -> Option<Size> {
        let size = self.batches.remove(key)?;
        self.memory -= size.memory;
        let shuffle = key.stream.shuffle;
        let left = self.of.get(&shuffle).map_or(0, |memory| memory.saturating_sub(size.memory));
        match left {
            0 => drop(self.of.remove(&shuffle)),
            left => drop(self.of.insert(shuffle, left)),
        }
        Some(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::batch;

    #[test]
    fn r1_a_shuffle_of_which_much_is_being_stored_leaves_room_for_others() {
        let (mut soon, one) = (StoredSoon::default(), batch(1, 1, 1, 500).memory());
        let most = 40 * one;
        let mut number = 0;
        while soon.has_room(ShuffleId(1), most) {
            number += 1;
            soon.insert(&batch(1, 1, number, 500));
        }
        assert_eq!((number, soon.memory()), (35, 35 * one));
        for number in 1..=3 {
            assert!(soon.has_room(ShuffleId(2), most), "half of the last eighth");
            soon.insert(&batch(2, 1, number, 500));
        }
        assert!(!soon.has_room(ShuffleId(2), most) && soon.has_room(ShuffleId(3), most));
        soon.insert(&batch(2, 1, 3, 500));
        assert_eq!(soon.memory(), 38 * one, "one that comes again counts once");
        let keys: Vec<BatchKey> = soon.batches.keys().cloned().collect();
        assert!(keys.iter().all(|key| soon.remove(key).is_some_and(|size| size.records == 1)));
        assert!(soon.memory() == 0 && soon.of.is_empty() && soon.remove(&keys[0]).is_none());
    }
}
