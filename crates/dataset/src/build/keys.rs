//! What is asked of each key: is it kept here, and where.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use partage_engine::readonly::{BuildError, Builder};
use partage_service::dataset::Partitioner;
use partage_service::dataset::node::Layout;

/// The builders of the partitions that are made at the same time.
pub struct Builders {
    layout: Layout,
    /// The builder of each partition, by the partition's number.
    slots: BTreeMap<u32, Mutex<Builder>>,
}

/// What became of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordOutcome {
    /// It is in a store file, or in one that other jobs make.
    Kept,
    /// Its key is of another partition than its file was taken for, so nodes may have looked for it elsewhere.
    Stray,
}

/// A consumer of the records of a file that is one partition, or mixed. Of equal keys the highest `order` counts.
pub trait RecordSink: Send + 'static {
    /// `of` is the partition that the file was taken for; none: the file is mixed.
    fn accept(
        &mut self,
        of: Option<u32>,
        order: u64,
        key: &[u8],
        value: &[u8],
    ) -> Result<RecordOutcome, BuildError>;
}

impl Builders {
    /// The builders of some partitions, each with the partition's number.
    pub fn new(layout: Layout, slots: impl IntoIterator<Item = (u32, Builder)>) -> Builders {
        let slots = slots.into_iter().map(|(partition, builder)| (partition, Mutex::new(builder)));
        Builders { layout, slots: slots.collect() }
    }

    /// The builders, to be finished.
    pub fn into_builders(self) -> impl Iterator<Item = (u32, Builder)> {
        let inner = |builder: Mutex<Builder>| builder.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.slots.into_iter().map(move |(partition, builder)| (partition, inner(builder)))
    }
}

/// For a single reader, which needs no lock: a lock for each record would also wait until the record before is in memory.
impl RecordSink for Builders {
    fn accept(
        &mut self,
        of: Option<u32>,
        order: u64,
        key: &[u8],
        value: &[u8],
    ) -> Result<RecordOutcome, BuildError> {
        let Some(place) = place(self.layout, of, key) else { return Ok(RecordOutcome::Stray) };
        if let Some(builder) = self.slots.get_mut(&place) {
            builder.get_mut().unwrap_or_else(PoisonError::into_inner).add_at(order, key, value)?;
        }
        Ok(RecordOutcome::Kept)
    }
}

/// Several files are read at once.
impl RecordSink for Arc<Builders> {
    fn accept(
        &mut self,
        of: Option<u32>,
        order: u64,
        key: &[u8],
        value: &[u8],
    ) -> Result<RecordOutcome, BuildError> {
        let Some(place) = place(self.layout, of, key) else { return Ok(RecordOutcome::Stray) };
        if let Some(builder) = self.slots.get(&place) {
            // A thread that panicked has left a builder behind that no job finishes.
            builder.lock().unwrap_or_else(PoisonError::into_inner).add_at(order, key, value)?;
        }
        Ok(RecordOutcome::Kept)
    }
}

/// Where a key belongs, unless it has strayed.
fn place(Layout { partitioner, partitions, .. }: Layout, of: Option<u32>, key: &[u8]) -> Option<u32> {
    match of {
        None => Some(partitioner.partition(key, partitions)),
        Some(of) => is_at_home(partitioner, key, partitions, of).then_some(of),
    }
}

fn is_at_home(partitioner: Partitioner, key: &[u8], partitions: u32, of: u32) -> bool {
    partitioner.partition(key, partitions) == of || partitioner.alternative(key, partitions) == Some(of)
}
