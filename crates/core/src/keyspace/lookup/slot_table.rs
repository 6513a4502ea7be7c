//! Lookups by hash: fixed slots, and ranges of the hash space.

use super::search_tree::SearchTree;
use crate::keyspace::hash::modulo;
use crate::limits;

/// Why a slot table cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SlotTableError {
    /// The list of owners is empty.
    #[error("a slot table needs at least one slot")]
    NoSlots,
    /// The list of owners is longer than [`limits::SHARDS`].
    #[error("{slots} slots are too many: the limit is {max}", max = limits::SHARDS)]
    TooManySlots {
        /// How many were given.
        slots: usize,
    },
}

/// For each of n slots, a number: which shard, which node, whatever the caller counts.
#[derive(Debug, Clone)]
pub struct SlotTable {
    owners: Box<[u32]>,
}

impl SlotTable {
    /// A table in which slot i belongs to `owners[i]`.
    pub fn build(owners: Vec<u32>) -> Result<SlotTable, SlotTableError> {
        match owners.len() {
            0 => Err(SlotTableError::NoSlots),
            1..=limits::SHARDS => Ok(SlotTable { owners: owners.into() }),
            slots => Err(SlotTableError::TooManySlots { slots }),
        }
    }

    /// Whose a slot is; none when there is no such slot.
    #[inline]
    pub fn find(&self, slot: u32) -> Option<u32> {
        self.owners.get(slot as usize).copied()
    }

    /// Whose the slot `value modulo n` is, for a hash of at most 64 bits.
    #[inline]
    pub fn find_hash(&self, value: u64) -> u32 {
        let slots = self.owners.len() as u64;
        // A division takes longer than all the rest, and most tables are a power of two long.
        let slot = if slots.is_power_of_two() { value & (slots - 1) } else { value % slots };
        self.owners[slot as usize]
    }

    /// Whose the slot `value modulo n` is, for a hash of any width.
    #[inline]
    pub fn find_value(&self, value: u128) -> u32 {
        match u64::try_from(value) {
            Ok(value) => self.find_hash(value),
            Err(_) => self.owners[modulo(value, self.owners.len() as u32) as usize],
        }
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.owners.len()
    }

    /// How many bytes of memory the table takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<SlotTable>() + size_of_val(&*self.owners)
    }
}

/// Why a list of begins cannot be looked up in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HashIndexError {
    /// The first range does not begin at 0, or there is none.
    #[error("the hash ranges do not begin at 0: the first must, so that every hash has an owner")]
    Uncovered,
    /// A begin that is not above the one before it.
    #[error("hash range {at} begins at {begin:016x}, not above the one before it: sort them")]
    Unsorted {
        /// The position of the range in the list, from 0.
        at: usize,
        /// The begin of that range.
        begin: u64,
    },
    /// The list has more than [`limits::SHARDS`] ranges.
    #[error("{ranges} ranges are too many: the limit is {max}", max = limits::SHARDS)]
    TooMany {
        /// How many were given.
        ranges: usize,
    },
}

/// Ranges that cover the hash space, each from its begin to the next one's.
#[derive(Debug, Clone)]
pub struct HashIndex {
    begins: SearchTree,
}

impl HashIndex {
    /// From the first point of each range, in order; the first of all is 0.
    pub fn build(begins: &[u64]) -> Result<HashIndex, HashIndexError> {
        if begins.first() != Some(&0) {
            return Err(HashIndexError::Uncovered);
        }
        if begins.len() > limits::SHARDS {
            return Err(HashIndexError::TooMany { ranges: begins.len() });
        }
        if let Some(before) = begins.windows(2).position(|pair| pair[0] >= pair[1]) {
            return Err(HashIndexError::Unsorted { at: before + 1, begin: begins[before + 1] });
        }
        Ok(HashIndex { begins: SearchTree::build(&begins[1..]) })
    }

    /// Position of the range that holds `point`.
    #[inline]
    pub fn find(&self, point: u64) -> usize {
        self.begins.rank(point)
    }

    /// How many bytes of memory the index takes.
    pub fn memory_bytes(&self) -> usize {
        self.begins.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::hash::mix;
    use crate::keyspace::sharding::presplit;

    #[test]
    fn slots_are_found_and_others_are_not() {
        let table = SlotTable::build(vec![7, 8, 9]).unwrap();
        assert_eq!((table.find(2), table.find(3)), (Some(9), None));
        assert_eq!((table.find_hash(4), table.find_hash(u64::MAX)), (8, 7));
        assert_eq!((table.find_value(1 << 64 | 1), table.find_value(5)), (9, 9), "2^64 is 1 modulo 3");
        let even = SlotTable::build((0..16).collect()).unwrap();
        assert_eq!(even.find_hash(u64::MAX), 15);
        assert_eq!(SlotTable::build(vec![]).err(), Some(SlotTableError::NoSlots));
        let slots = limits::SHARDS + 1;
        assert_eq!(SlotTable::build(vec![0; slots]).err(), Some(SlotTableError::TooManySlots { slots }));
    }

    #[test]
    fn hash_ranges_are_found_as_their_bounds_say() {
        let ranges = presplit::even_hashes(1_000).unwrap();
        let begins: Vec<u64> = ranges.iter().map(|range| range.first).collect();
        let index = HashIndex::build(&begins).unwrap();
        let edges = ranges.iter().flat_map(|range| [range.first, range.last]);
        for point in edges.chain((0..1_000).map(mix)) {
            assert!(ranges[index.find(point)].contains(point), "{point:x}");
        }
        assert_eq!(HashIndex::build(&[0]).unwrap().find(u64::MAX), 0);
    }

    #[test]
    fn begins_that_do_not_cover_or_are_not_sorted_are_refused() {
        assert_eq!(HashIndex::build(&[]).err(), Some(HashIndexError::Uncovered));
        assert_eq!(HashIndex::build(&[1]).err(), Some(HashIndexError::Uncovered));
        let unsorted = HashIndexError::Unsorted { at: 2, begin: 5 };
        assert_eq!(HashIndex::build(&[0, 5, 5]).err(), Some(unsorted));
    }
}
