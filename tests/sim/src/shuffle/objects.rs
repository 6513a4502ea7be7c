//! An object store: it loses nothing once it has answered, and answers late, or not as it was.

use partage_service::shuffle::pool::PoolMap;
use partage_service::shuffle::record::Batch;
use partage_service::shuffle::{BufferId, PoolSlot, ShuffleId, Writer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a process asks it for.
#[derive(Debug, Clone)]
pub enum ObjectCall {
    Put(ShuffleId, PoolSlot, BufferId, Vec<Arc<Batch>>),
    Delete(ShuffleId, PoolSlot),
    List(PoolSlot),
}

#[derive(Debug, Default)]
pub struct ObjectStore {
    /// What each process has put of a slot of a shuffle, whole.
    parts: BTreeMap<(ShuffleId, PoolSlot, BufferId), Vec<Arc<Batch>>>,
}

impl ObjectStore {
    pub fn put(&mut self, part: (ShuffleId, PoolSlot, BufferId), batches: Vec<Arc<Batch>>) {
        self.parts.insert(part, batches);
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
        Some(by.find_map(|by| self.parts.get(&(shuffle, slot, by)).cloned()))
    }

    pub fn left_of(&self, shuffle: ShuffleId) -> Option<String> {
        let (_, slot, by) = self.parts.keys().find(|(of, ..)| *of == shuffle)?;
        Some(format!("{slot:?}, put by {by:?},"))
    }
}
