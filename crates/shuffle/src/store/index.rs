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

/// What one shuffle has in one slot: its batches, and sums of them, which change as batches come and go.
#[derive(Debug, Default)]
struct OfSlot {
    batches: BTreeMap<(Writer, u64), Place>,
    /// Bytes of the frames of all batches but receipts of an object store.
    copies: u64,
    /// How many receipts there are.
    receipts: usize,
}

impl OfSlot {
    /// A batch is there. The answer is where it lay before.
    fn insert(&mut self, key: (Writer, u64), place: Place) -> Option<Place> {
        let is_receipt = key.0.is_objects();
        let before = self.batches.insert(key, place);
        self.count_out(is_receipt, before);
        match is_receipt {
            true => self.receipts += 1,
            false => self.copies += place.bytes as u64,
        }
        before
    }

    fn remove(&mut self, key: &(Writer, u64)) -> Option<Place> {
        let gone = self.batches.remove(key);
        self.count_out(key.0.is_objects(), gone);
        gone
    }

    fn count_out(&mut self, is_receipt: bool, gone: Option<Place>) {
        match gone {
            Some(_) if is_receipt => self.receipts -= 1,
            Some(place) => self.copies -= place.bytes as u64,
            None => {}
        }
    }

    /// All batches but receipts go.
    fn remove_copies(&mut self) -> Vec<Place> {
        self.copies = 0;
        let gone = self.batches.extract_if(.., |(writer, _), _| !writer.is_objects());
        gone.map(|(_, place)| place).collect()
    }
}

/// All batches, and all files.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// None of these has nothing.
    parts: BTreeMap<(ShuffleId, PoolSlot), OfSlot>,
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
        let of_slot = self.parts.entry((*shuffle, *slot)).or_default();
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
        self.parts.get(&(*shuffle, *slot))?.batches.get(&(writer.clone(), key.number)).copied()
    }

    /// How many batches of a writer up to that number are here.
    pub(crate) fn count(&self, part: (ShuffleId, PoolSlot), writer: &Writer, upto: u64) -> u64 {
        let Some(of_slot) = self.parts.get(&part) else { return 0 };
        of_slot.batches.range((writer.clone(), 0)..=(writer.clone(), upto)).count() as u64
    }

    /// What a shuffle has, by slots.
    fn of(&self, shuffle: ShuffleId) -> impl Iterator<Item = (PoolSlot, &OfSlot)> {
        let slots = self.parts.range((shuffle, PoolSlot(0))..=(shuffle, PoolSlot(u32::MAX)));
        slots.map(|((_, slot), of_slot)| (*slot, of_slot))
    }

    /// The batches that lie in a file.
    pub(crate) fn of_file(&self, number: u64) -> Vec<BatchKey> {
        let Some(shuffle) = self.files.get(&number).map(|file| file.shuffle) else { return Vec::new() };
        let found = self.of(shuffle).flat_map(|(slot, of_slot)| {
            let inside = of_slot.batches.iter().filter(|(_, place)| place.file == number);
            inside.map(move |((writer, batch), _)| BatchKey {
                stream: Stream { shuffle, slot, writer: writer.clone() },
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
        let part = (*shuffle, *slot);
        let of_slot = self.parts.get_mut(&part);
        if let Some(place) = of_slot.and_then(|of_slot| of_slot.remove(&(writer.clone(), key.number))) {
            self.dies(*slot, place);
        }
        self.remove_empty(part);
    }

    fn remove_empty(&mut self, part: (ShuffleId, PoolSlot)) {
        if self.parts.get(&part).is_some_and(|of_slot| of_slot.batches.is_empty()) {
            self.parts.remove(&part);
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
        let Some(of_slot) = self.parts.get_mut(&(shuffle, slot)) else { return };
        of_slot.remove_copies().into_iter().for_each(|place| self.dies(slot, place));
        self.remove_empty((shuffle, slot));
    }

    /// The processes that have put what a shuffle has in a slot into the object store, as receipts on this disk say.
    pub(crate) fn receipts(&self, shuffle: ShuffleId, slot: PoolSlot) -> Vec<BufferId> {
        // Receipts are the last ones in the order of writers.
        let of_slot = self.parts.get(&(shuffle, slot)).into_iter();
        let writers = of_slot.flat_map(|of_slot| of_slot.batches.keys().rev());
        let by = writers.map_while(|(writer, _)| match writer {
            Writer::Objects(by) => Some(by.clone()),
            Writer::Buffer(_) | Writer::Division(..) => None,
        });
        by.collect()
    }

    /// The bytes of each slot of each shuffle, besides receipts.
    pub(crate) fn sizes(&self) -> Vec<(ShuffleId, PoolSlot, u64)> {
        let sizes = self.parts.iter().map(|((shuffle, slot), of_slot)| (*shuffle, *slot, of_slot.copies));
        sizes.filter(|(.., bytes)| *bytes > 0).collect()
    }

    /// The slots of a shuffle of which something is here: the bytes of each, besides receipts, and whether there is a receipt.
    /// It takes as long whatever batches there are: pages of status ask for it.
    pub(crate) fn of_shuffle(&self, shuffle: ShuffleId) -> Vec<(PoolSlot, u64, bool)> {
        self.of(shuffle).map(|(slot, of_slot)| (slot, of_slot.copies, of_slot.receipts > 0)).collect()
    }

    /// Whether less than one in so many bytes of a file is wanted.
    pub(crate) fn is_sparse(&self, number: u64, part: u64) -> bool {
        self.files.get(&number).is_some_and(|file| file.is_sparse(part))
    }

    fn remove_if(&mut self, is_gone: impl Fn(ShuffleId, PoolSlot) -> bool) {
        let gone = self.parts.extract_if(.., |(shuffle, slot), _| is_gone(*shuffle, *slot));
        let places = |((_, slot), of_slot): ((ShuffleId, PoolSlot), OfSlot)| {
            of_slot.batches.into_values().map(move |place| (slot, place))
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
    use proptest::prelude::*;

    /// What comes and goes.
    #[derive(Debug, Clone)]
    enum Change {
        Insert(BatchKey, usize),
        Remove(BatchKey),
        RemoveCopies(u128, u32),
        RemoveSlot(u32),
        RemoveShuffle(u128),
    }

    fn change() -> impl Strategy<Value = Change> {
        let key =
            (1..3u128, 0..3u32, any::<bool>(), 1..4u64).prop_map(|(shuffle, slot, is_receipt, number)| {
                let by = BufferId { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) };
                let writer = if is_receipt { Writer::Objects(by) } else { Writer::Buffer(by) };
                let stream = Stream { shuffle: ShuffleId(shuffle), slot: PoolSlot(slot), writer };
                BatchKey { stream, number }
            });
        prop_oneof![
            8 => (key.clone(), 1..100usize).prop_map(|(key, bytes)| Change::Insert(key, bytes)),
            4 => key.prop_map(Change::Remove),
            1 => (1..3u128, 0..3u32).prop_map(|(shuffle, slot)| Change::RemoveCopies(shuffle, slot)),
            1 => (0..3u32).prop_map(Change::RemoveSlot),
            1 => (1..3u128).prop_map(Change::RemoveShuffle),
        ]
    }

    /// The sums of a shuffle, by a walk over all of its batches.
    fn walk(index: &Index, shuffle: ShuffleId) -> Vec<(PoolSlot, u64, bool)> {
        let parts =
            index.parts.iter().filter(|((of, _), of_slot)| *of == shuffle && !of_slot.batches.is_empty());
        let sums = parts.map(|((_, slot), of_slot)| {
            let copies = of_slot.batches.iter().filter(|((writer, _), _)| !writer.is_objects());
            let bytes = copies.map(|(_, place)| place.bytes as u64).sum::<u64>();
            (*slot, bytes, of_slot.batches.keys().any(|(writer, _)| writer.is_objects()))
        });
        sums.collect()
    }

    proptest! {
        #[test]
        fn sums_are_those_of_a_walk_over_all_batches(changes in prop::collection::vec(change(), 0..60)) {
            let mut index = Index::default();
            index.add_file(1, ShuffleId(1));
            for change in changes {
                match change {
                    Change::Insert(key, bytes) => {
                        index.insert(&key, Place { file: 1, offset: 0, bytes, number: 1, head: 0 });
                    }
                    Change::Remove(key) => {
                        index.get(&key).into_iter().for_each(|place| index.remove(&key, place));
                    }
                    Change::RemoveCopies(shuffle, slot) => index.remove_copies(ShuffleId(shuffle), PoolSlot(slot)),
                    Change::RemoveSlot(slot) => index.remove_slot(PoolSlot(slot)),
                    Change::RemoveShuffle(shuffle) => index.remove_shuffle(ShuffleId(shuffle)),
                }
                let mut sizes = Vec::new();
                for shuffle in [1, 2].map(ShuffleId) {
                    let sums = walk(&index, shuffle);
                    prop_assert_eq!(index.of_shuffle(shuffle), sums.clone());
                    let copies = sums.into_iter().filter(|(_, bytes, _)| *bytes > 0);
                    sizes.extend(copies.map(|(slot, bytes, _)| (shuffle, slot, bytes)));
                }
                prop_assert_eq!(index.sizes(), sizes);
                prop_assert!(index.parts.values().all(|of_slot| !of_slot.batches.is_empty()));
            }
        }
    }

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
