//! Where each batch lies, and how much of each file is in use.

use partage_service::shuffle::record::{BatchKey, Stream};
use partage_service::shuffle::{BufferId, PoolSlot, ShuffleId, Writer};
use std::collections::BTreeMap;

/// Where a batch lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of the file.
    pub(crate) file: u64,
    /// The frame: its first byte, its length, and its number in the file.
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    pub(crate) number: u64,
    /// Bytes of the head of the batch, with which it begins.
    pub(crate) head: u32,
}

/// How much of a file is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileUse {
    pub(crate) shuffle: ShuffleId,
    /// Bytes of all its frames, and of those that hold batches which are still wanted.
    pub(crate) bytes: u64,
    pub(crate) live: u64,
}

impl FileUse {
    /// Whether less than one in so many bytes is wanted.
    pub(crate) fn is_sparse(self, part: u64) -> bool {
        self.live.saturating_mul(part) < self.bytes
    }
}

/// The batches of one shuffle in one slot.
type OfSlot = BTreeMap<(Writer, u64), Place>;

/// All batches, and all files.
#[derive(Debug, Default)]
pub(crate) struct Index {
    batches: BTreeMap<(ShuffleId, PoolSlot), OfSlot>,
    files: BTreeMap<u64, FileUse>,
    /// Bytes of the frames of each slot.
    slots: BTreeMap<PoolSlot, u64>,
}

impl Index {
    pub(crate) fn add_file(&mut self, number: u64, shuffle: ShuffleId) {
        self.files.insert(number, FileUse { shuffle, bytes: 0, live: 0 });
    }

    /// A batch is on disk. One that was there before counts no more.
    pub(crate) fn insert(&mut self, key: &BatchKey, place: Place) {
        if let Some(file) = self.files.get_mut(&place.file) {
            file.bytes += place.bytes as u64;
            file.live += place.bytes as u64;
        }
        let Stream { shuffle, slot, writer } = &key.stream;
        *self.slots.entry(*slot).or_default() += place.bytes as u64;
        let of_slot = self.batches.entry((*shuffle, *slot)).or_default();
        if let Some(before) = of_slot.insert((writer.clone(), key.number), place) {
            self.dies(*slot, before);
        }
    }

    fn dies(&mut self, slot: PoolSlot, place: Place) {
        let bytes = place.bytes as u64;
        if let Some(file) = self.files.get_mut(&place.file) {
            file.live = file.live.saturating_sub(bytes);
        }
        match self.slots.get_mut(&slot) {
            Some(all) if *all > bytes => *all -= bytes,
            _ => {
                self.slots.remove(&slot);
            }
        }
    }

    /// Bytes of the frames of a slot that are wanted.
    pub(crate) fn slot_bytes(&self, slot: PoolSlot) -> u64 {
        self.slots.get(&slot).copied().unwrap_or(0)
    }

    pub(crate) fn get(&self, key: &BatchKey) -> Option<Place> {
        let Stream { shuffle, slot, writer } = &key.stream;
        self.batches.get(&(*shuffle, *slot))?.get(&(writer.clone(), key.number)).copied()
    }

    /// How many batches of a writer up to that number are here.
    pub(crate) fn count(&self, part: (ShuffleId, PoolSlot), writer: &Writer, upto: u64) -> u64 {
        let Some(of_slot) = self.batches.get(&part) else { return 0 };
        of_slot.range((writer.clone(), 0)..=(writer.clone(), upto)).count() as u64
    }

    /// The batches that lie in a file.
    pub(crate) fn of_file(&self, number: u64) -> Vec<BatchKey> {
        let Some(shuffle) = self.files.get(&number).map(|file| file.shuffle) else { return Vec::new() };
        let slots = self.batches.range((shuffle, PoolSlot(0))..=(shuffle, PoolSlot(u32::MAX)));
        let found = slots.flat_map(|((_, slot), batches)| {
            let inside = batches.iter().filter(|(_, place)| place.file == number);
            inside.map(|((writer, batch), _)| BatchKey {
                stream: Stream { shuffle, slot: *slot, writer: writer.clone() },
                number: *batch,
            })
        });
        found.collect()
    }

    /// A batch that lies there counts no more. One that lies elsewhere stays: it was stored anew.
    pub(crate) fn remove(&mut self, key: &BatchKey, place: Place) {
        if self.get(key) != Some(place) {
            return;
        }
        let Stream { shuffle, slot, writer } = &key.stream;
        let of_slot = self.batches.get_mut(&(*shuffle, *slot));
        if let Some(place) = of_slot.and_then(|batches| batches.remove(&(writer.clone(), key.number))) {
            self.dies(*slot, place);
        }
    }

    /// No batch of a shuffle counts any more.
    pub(crate) fn remove_shuffle(&mut self, shuffle: ShuffleId) {
        self.remove_if(|of, _| of == shuffle);
    }

    /// No batch of a slot counts any more.
    pub(crate) fn remove_slot(&mut self, slot: PoolSlot) {
        self.remove_if(|_, of| of == slot);
    }

    /// No batch of a shuffle in a slot counts any more, but for receipts of an object store.
    pub(crate) fn remove_copies(&mut self, shuffle: ShuffleId, slot: PoolSlot) {
        let Some(of_slot) = self.batches.get_mut(&(shuffle, slot)) else { return };
        let gone = of_slot.extract_if(.., |(writer, _), _| !writer.is_objects());
        let places: Vec<Place> = gone.map(|(_, place)| place).collect();
        places.into_iter().for_each(|place| self.dies(slot, place));
    }

    /// The processes that have put what a shuffle has in a slot into the object store, as receipts on this disk say.
    pub(crate) fn receipts(&self, shuffle: ShuffleId, slot: PoolSlot) -> Vec<BufferId> {
        // Receipts are the last ones in the order of writers.
        let of_slot = self.batches.get(&(shuffle, slot)).into_iter().flat_map(|of_slot| of_slot.keys().rev());
        let by = of_slot.map_while(|(writer, _)| match writer {
            Writer::Objects(by) => Some(by.clone()),
            Writer::Buffer(_) | Writer::Division(..) => None,
        });
        by.collect()
    }

    /// The bytes of each slot of each shuffle, besides receipts.
    pub(crate) fn sizes(&self) -> Vec<(ShuffleId, PoolSlot, u64)> {
        let size = |((shuffle, slot), of_slot): (&(ShuffleId, PoolSlot), &OfSlot)| {
            let copies = of_slot.iter().filter(|((writer, _), _)| !writer.is_objects());
            (*shuffle, *slot, copies.map(|(_, place)| place.bytes as u64).sum::<u64>())
        };
        self.batches.iter().map(size).filter(|(.., bytes)| *bytes > 0).collect()
    }

    /// The slots of a shuffle of which something is here: the bytes of each, besides receipts, and whether there is a receipt.
    pub(crate) fn of_shuffle(&self, shuffle: ShuffleId) -> Vec<(PoolSlot, u64, bool)> {
        let slots = self.batches.range((shuffle, PoolSlot(0))..=(shuffle, PoolSlot(u32::MAX)));
        let slots = slots.filter(|(_, of_slot)| !of_slot.is_empty());
        let found = slots.map(|((_, slot), of_slot)| {
            let copies = of_slot.iter().filter(|((writer, _), _)| !writer.is_objects());
            // Receipts are the last ones in the order of writers.
            let has_receipt = of_slot.keys().next_back().is_some_and(|(writer, _)| writer.is_objects());
            (*slot, copies.map(|(_, place)| place.bytes as u64).sum::<u64>(), has_receipt)
        });
        found.collect()
    }

    /// Whether less than one in so many bytes of a file is wanted.
    pub(crate) fn is_sparse(&self, number: u64, part: u64) -> bool {
        self.files.get(&number).is_some_and(|file| file.is_sparse(part))
    }

    fn remove_if(&mut self, is_gone: impl Fn(ShuffleId, PoolSlot) -> bool) {
        let gone = self.batches.extract_if(.., |(shuffle, slot), _| is_gone(*shuffle, *slot));
        let places = |((_, slot), batches): ((ShuffleId, PoolSlot), OfSlot)| {
            batches.into_values().map(move |place| (slot, place))
        };
        let places: Vec<(PoolSlot, Place)> = gone.flat_map(places).collect();
        places.into_iter().for_each(|(slot, place)| self.dies(slot, place));
    }

    pub(crate) fn remove_file(&mut self, number: u64) {
        self.files.remove(&number);
    }

    /// Files by their numbers.
    pub(crate) fn files(&self) -> impl Iterator<Item = (u64, FileUse)> {
        self.files.iter().map(|(number, file)| (*number, *file))
    }

    /// Bytes of all frames.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::Incarnation;
    use partage_core::base::name::NodeId;
    use partage_service::shuffle::BufferId;

    #[test]
    fn what_a_slot_has_is_counted_until_it_goes() {
        let node = NodeId::new("a").unwrap();
        let writer = Writer::Buffer(BufferId { node, incarnation: Incarnation(1) });
        let key = |shuffle, slot, number| {
            let stream = Stream { shuffle: ShuffleId(shuffle), slot: PoolSlot(slot), writer: writer.clone() };
            BatchKey { stream, number }
        };
        let place = |bytes| Place { file: 1, offset: 0, bytes, number: 1, head: 0 };
        let mut index = Index::default();
        index.add_file(1, ShuffleId(1));
        for (shuffle, slot, bytes) in [(1, 1, 10), (1, 2, 100), (2, 1, 1_000)] {
            index.insert(&key(shuffle, slot, 1), place(bytes));
        }
        // It is there a second time.
        index.insert(&key(1, 1, 1), place(20));
        let count = |upto| index.count((ShuffleId(1), PoolSlot(1)), &writer, upto);
        assert_eq!((count(0), count(1), count(9)), (0, 1, 1));
        let of = |index: &Index| [1, 2, 3].map(|slot| index.slot_bytes(PoolSlot(slot)));
        assert_eq!(of(&index), [1_020, 100, 0]);
        index.remove(&key(1, 2, 1), place(100));
        index.remove(&key(1, 2, 1), place(100));
        assert_eq!(of(&index), [1_020, 0, 0]);
        let receipt = |slot| {
            let writer =
                Writer::Objects(BufferId { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) });
            BatchKey { stream: Stream { writer, ..key(1, slot, 1).stream }, number: 1 }
        };
        index.insert(&receipt(1), place(5));
        index.insert(&receipt(3), place(5));
        assert_eq!(index.of_shuffle(ShuffleId(1)), [(PoolSlot(1), 20, true), (PoolSlot(3), 0, true)]);
        assert_eq!(index.of_shuffle(ShuffleId(2)), [(PoolSlot(1), 1_000, false)]);
        [1, 3].into_iter().for_each(|slot| index.remove(&receipt(slot), place(5)));
        index.remove_shuffle(ShuffleId(2));
        assert_eq!(of(&index), [20, 0, 0]);
        index.remove_slot(PoolSlot(1));
        assert_eq!((of(&index), index.slots.len()), ([0; 3], 0));
    }
}
