//! An object store: it loses nothing once it has answered, and answers late, or not as it was.

use partage_service::shuffle::pool::PoolMap;
use partage_service::shuffle::record::{Batch, Stream};
use partage_service::shuffle::{BufferId, PoolSlot, ShuffleId, Writer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a process asks it for.
#[derive(Debug, Clone)]
pub enum ObjectCall {
    Put(ShuffleId, PoolSlot, BufferId, Vec<Arc<Batch>>),
    See(ShuffleId, PoolSlot, BufferId),
    Delete(ShuffleId, PoolSlot),
    List(PoolSlot),
}

/// What one process has put of a slot of a shuffle. None: it has no index.
type Batches = Option<Vec<Arc<Batch>>>;

#[derive(Debug, Default)]
pub struct ObjectStore {
    parts: BTreeMap<(ShuffleId, PoolSlot, BufferId), Batches>,
}

impl ObjectStore {
    pub fn put(&mut self, part: (ShuffleId, PoolSlot, BufferId), batches: Vec<Arc<Batch>>) {
        self.parts.insert(part, Some(batches));
    }

    /// Some objects are there, and no index, unless they were all there before.
    pub fn put_some(&mut self, part: (ShuffleId, PoolSlot, BufferId)) {
        self.parts.entry(part).or_default();
    }

    /// Whether all is there that a process has put of a slot of a shuffle.
    pub fn has(&self, shuffle: ShuffleId, slot: PoolSlot, by: &BufferId) -> bool {
        matches!(self.parts.get(&(shuffle, slot, by.clone())), Some(Some(_)))
    }

    /// Whether that is so of the batch that is a receipt.
    pub fn has_put(&self, receipt: &Stream) -> bool {
        match &receipt.writer {
            Writer::Objects(by) => self.has(receipt.shuffle, receipt.slot, by),
            Writer::Buffer(_) | Writer::Division(..) => false,
        }
    }

    pub fn delete(&mut self, shuffle: ShuffleId, slot: PoolSlot) {
        self.parts.retain(|(of, at, _), _| (*of, *at) != (shuffle, slot));
    }

    /// Slots of shuffles of a home.
    pub fn list(&self, map: &PoolMap, home: PoolSlot) -> Vec<(ShuffleId, PoolSlot)> {
        let parts = self.parts.keys().filter(|(shuffle, ..)| map.home(*shuffle) == home);
        let mut found: Vec<_> = parts.map(|(shuffle, slot, _)| (*shuffle, *slot)).collect();
        found.dedup();
        found
    }

    /// What a node reads of a slot of a shuffle by the receipts that it has, if that is there; none: it has no receipt.
    pub fn of(
        &self,
        here: &[Arc<Batch>],
        shuffle: ShuffleId,
        slot: PoolSlot,
    ) -> Option<Option<Vec<Arc<Batch>>>> {
        let of_part = here.iter().map(|batch| &batch.key.stream);
        let of_part = of_part.filter(|stream| (stream.shuffle, stream.slot) == (shuffle, slot));
        let by = of_part.filter_map(|stream| match &stream.writer {
            Writer::Objects(by) => Some(by.clone()),
            Writer::Buffer(_) | Writer::Division(..) => None,
        });
        let mut by = by.peekable();
        by.peek()?;
        Some(by.find_map(|by| self.parts.get(&(shuffle, slot, by)).cloned().flatten()))
    }

    pub fn left_of(&self, shuffle: ShuffleId) -> Option<String> {
        let (_, slot, by) = self.parts.keys().find(|(of, ..)| *of == shuffle)?;
        Some(format!("{slot:?}, put by {by:?},"))
    }
}
