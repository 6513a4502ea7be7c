//! Where a pool has its data: ranges to slots by hash, slots to nodes by the map.

use super::{PoolSlot, RangeId, ShuffleId};
use partage_core::base::id::Epoch;
use partage_core::base::name::NodeId;
use partage_core::keyspace::hash::HashFunction;
use std::collections::BTreeSet;

/// The nodes of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotPlace {
    /// The epoch of its leader: each process that leads a slot has one of its own.
    pub epoch: Epoch,
    /// The replicas in `Live`; the first one leads.
    pub live: Vec<NodeId>,
    /// Those in `Load`: they get new batches and do not count.
    pub loading: Vec<NodeId>,
}

/// The map of a pool, as far as shuffles look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolMap {
    /// Grows with each change of the map.
    pub generation: u64,
    /// R: so many nodes store everything.
    pub replicas: usize,
    /// The nodes of each slot, by its number.
    pub places: Vec<SlotPlace>,
    /// The nodes that the pool may use.
    pub nodes: Vec<NodeId>,
    /// Those of these nodes that stand in for no other: they only buffer, or they are drained.
    pub no_stand_ins: BTreeSet<NodeId>,
}

impl PoolMap {
    /// The nodes of a slot.
    pub fn place(&self, slot: PoolSlot) -> Option<&SlotPlace> {
        self.places.get(slot.0 as usize)
    }

    /// The replicas in `Live`; the first one leads.
    pub fn live(&self, slot: PoolSlot) -> &[NodeId] {
        self.place(slot).map_or(&[], |place| &place.live)
    }

    /// Whether the map names the node for the slot.
    pub fn has(&self, slot: PoolSlot, node: &NodeId) -> bool {
        self.place(slot).is_some_and(|place| place.live.contains(node) || place.loading.contains(node))
    }

    /// The slot of a shuffle's id.
    pub fn home(&self, shuffle: ShuffleId) -> PoolSlot {
        self.slot(&shuffle.0.to_be_bytes())
    }

    /// The slot of a shuffle's id in a pool of so many slots.
    pub fn home_among(shuffle: ShuffleId, slots: u32) -> PoolSlot {
        PoolSlot(HashFunction::Xxh3_64.slot(&shuffle.0.to_be_bytes(), slots.max(1)))
    }

    /// The slot of a range: of its shuffle's number and its own, most significant byte first.
    pub fn slot_of(&self, shuffle: ShuffleId, range: RangeId) -> PoolSlot {
        let mut key = [0; 24];
        key[..16].copy_from_slice(&shuffle.0.to_be_bytes());
        key[16..].copy_from_slice(&range.0.to_be_bytes());
        self.slot(&key)
    }

    fn slot(&self, key: &[u8]) -> PoolSlot {
        let slots = u32::try_from(self.places.len()).unwrap_or(u32::MAX).max(1);
        PoolSlot(HashFunction::Xxh3_64.slot(key, slots))
    }

    /// The nodes that may stand in for replicas of a slot, in the order of [`PoolMap::others`].
    pub fn stand_ins(&self, slot: PoolSlot) -> Vec<NodeId> {
        let mut nodes = self.others(slot);
        nodes.retain(|node| !self.no_stand_ins.contains(node));
        nodes
    }

    /// The nodes that the map does not name for a slot, in rendezvous order (Thaler, Ravishankar 1996), which is another for each
    /// slot. Any of them may have something of the slot.
    pub fn others(&self, slot: PoolSlot) -> Vec<NodeId> {
        let lot = |node: &NodeId| {
            let key = [node.as_str().as_bytes(), &slot.0.to_be_bytes()].concat();
            HashFunction::Xxh3_64.point(&key)
        };
        let mut nodes: Vec<_> = self.nodes.iter().filter(|node| !self.has(slot, node)).cloned().collect();
        nodes.sort_by_key(|node| (std::cmp::Reverse(lot(node)), node.clone()));
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_only_buffers_stands_in_for_none() {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| NodeId::new(name).unwrap());
        let place = SlotPlace { epoch: Epoch(1), live: vec![a.clone()], loading: Vec::new() };
        let nodes = vec![a, b.clone(), c.clone(), d];
        let mut map = PoolMap {
            generation: 1,
            replicas: 2,
            places: vec![place; 64],
            nodes,
            no_stand_ins: BTreeSet::new(),
        };
        let before: Vec<_> = (0..64).map(|slot| map.stand_ins(PoolSlot(slot))).collect();
        map.no_stand_ins.insert(c.clone());
        for (slot, mut before) in (0..64).map(PoolSlot).zip(before) {
            assert_eq!(map.others(slot), before, "who may have something stays");
            before.retain(|node| *node != c);
            assert_eq!(map.stand_ins(slot), before, "the others stay in their order");
        }
        assert!((0..64).any(|slot| map.stand_ins(PoolSlot(slot))[0] == b));
    }
}
