//! A disk: what is synced, what is not yet, and what of it is damaged.

use partage_core::base::id::Epoch;
use partage_core::base::name::NodeId;
use partage_service::shuffle::holder::Stored;
use partage_service::shuffle::log::{Decisions, Replicas};
use partage_service::shuffle::record::{Batch, BatchKey, Body};
use partage_service::shuffle::{Durability, PoolSlot, ShuffleId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A write that the disk has not synced yet.
#[derive(Debug, Clone)]
pub enum Write {
    Batch(Arc<Batch>),
    /// And which leader waits for it, under which epoch.
    Decisions(PoolSlot, Decisions, (NodeId, Epoch)),
}

#[derive(Debug, Clone, Default)]
pub struct Disk {
    /// In the order in which they were written. One that is stored twice is there twice.
    pub batches: Vec<Arc<Batch>>,
    pub damaged: Vec<BatchKey>,
    /// Those of durability `memory` that are there, and go with the power of the machine.
    pub unsynced: BTreeSet<BatchKey>,
    pub replicas: Replicas,
    /// Writes that are not synced, each with its number.
    pub pending: Vec<(u64, Write)>,
}

impl Disk {
    pub fn sync(&mut self, number: u64) -> Option<Write> {
        let at = self.pending.iter().position(|(known, _)| *known == number)?;
        let (_, write) = self.pending.remove(at);
        self.apply(write.clone());
        Some(write)
    }

    pub fn apply(&mut self, write: Write) {
        match write {
            // It was written before, unless it was dropped meanwhile.
            Write::Batch(batch) if batch.durability == Durability::Memory => {
                self.unsynced.remove(&batch.key);
            }
            Write::Batch(batch) => self.batches.push(batch),
            Write::Decisions(slot, decisions, _) => drop(self.replicas.copies.insert(slot, decisions)),
        }
    }

    /// A batch of durability `memory` is in the memory of the machine.
    pub fn write(&mut self, batch: Arc<Batch>) {
        self.unsynced.insert(batch.key.clone());
        self.batches.push(batch);
    }

    pub fn stored(&self) -> Stored {
        let intact = self.batches.iter().filter(|batch| !self.damaged.contains(&batch.key));
        let mark = |batch: &Arc<Batch>| match &batch.body {
            Body::Mark(mark) => Some(mark.clone()),
            Body::Records(_) => None,
        };
        let batches = intact.map(|batch| (batch.key.clone(), mark(batch))).collect();
        Stored { batches, replicas: self.replicas.clone() }
    }

    pub fn has_intact(&self, key: &BatchKey) -> bool {
        !self.damaged.contains(key) && self.batches.iter().any(|batch| batch.key == *key)
    }

    /// Whether a copy is here that only goes with the disk.
    pub fn has_synced(&self, key: &BatchKey) -> bool {
        self.has_intact(key) && !self.unsynced.contains(key)
    }

    pub fn get(&self, key: &BatchKey) -> Option<&Arc<Batch>> {
        self.batches.iter().find(|batch| batch.key == *key)
    }

    pub fn forget(&mut self, key: &BatchKey) {
        self.batches.retain(|batch| batch.key != *key);
        self.damaged.retain(|damaged| damaged != key);
        self.unsynced.remove(key);
        // One that comes again is not on the disk when this one would have come there. What is being synced stays.
        self.pending.retain(|(_, write)| match write {
            Write::Batch(batch) => batch.durability != Durability::Memory || batch.key != *key,
            Write::Decisions(..) => true,
        });
    }

    /// The first damaged batch among those of a shuffle in a slot.
    pub fn damaged_of(&self, shuffle: ShuffleId, slot: PoolSlot) -> Option<BatchKey> {
        let is_of = |key: &&BatchKey| key.stream.shuffle == shuffle && key.stream.slot == slot;
        self.damaged.iter().find(is_of).cloned()
    }

    /// What is being written stays.
    pub fn drop_written(&mut self, is_gone: impl Fn(&BatchKey) -> bool) {
        self.batches.retain(|batch| !is_gone(&batch.key));
        self.damaged.retain(|key| !is_gone(key));
        self.unsynced.retain(|key| !is_gone(key));
    }

    pub fn drop_if(&mut self, is_gone: impl Fn(&BatchKey) -> bool) {
        self.drop_written(&is_gone);
        self.pending.retain(|(_, write)| match write {
            Write::Batch(batch) => !is_gone(&batch.key),
            Write::Decisions(..) => true,
        });
    }

    pub fn drop_decisions(&mut self, slot: PoolSlot) {
        self.replicas.copies.remove(&slot);
        self.pending.retain(|(_, write)| !matches!(write, Write::Decisions(other, ..) if *other == slot));
    }
}
