//! Where each batch lies, and how much of each file is in use.

use partage_service::shuffle::record::{BatchKey, Stream};
use partage_service::shuffle::{PoolSlot, ShuffleId, Writer};
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
}

/// How much of a file is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileUse {
    pub(crate) shuffle: ShuffleId,
    /// Bytes of all its frames, and of those that hold batches which are still wanted.
    pub(crate) bytes: u64,
    pub(crate) live: u64,
}

/// The batches of one shuffle in one slot.
type OfSlot = BTreeMap<(Writer, u64), Place>;

/// All batches, and all files.
#[derive(Debug, Default)]
pub(crate) struct Index {
    batches: BTreeMap<(ShuffleId, PoolSlot), OfSlot>,
    files: BTreeMap<u64, FileUse>,
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
        let of_slot = self.batches.entry((*shuffle, *slot)).or_default();
        if let Some(before) = of_slot.insert((writer.clone(), key.number), place) {
            self.dies(before);
        }
    }

    fn dies(&mut self, place: Place) {
        if let Some(file) = self.files.get_mut(&place.file) {
            file.live = file.live.saturating_sub(place.bytes as u64);
        }
    }

    pub(crate) fn get(&self, key: &BatchKey) -> Option<Place> {
        let Stream { shuffle, slot, writer } = &key.stream;
        self.batches.get(&(*shuffle, *slot))?.get(&(writer.clone(), key.number)).copied()
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
            self.dies(place);
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

    fn remove_if(&mut self, is_gone: impl Fn(ShuffleId, PoolSlot) -> bool) {
        let gone = self.batches.extract_if(.., |(shuffle, slot), _| is_gone(*shuffle, *slot));
        let places: Vec<Place> = gone.flat_map(|(_, batches)| batches.into_values()).collect();
        places.into_iter().for_each(|place| self.dies(place));
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
