//! How batches of a slot become objects: what is read of each range lies together, so that who reads a range reads no other one.
//!
//! Some megabytes of batches make an object. In it the pieces of a range follow each other, as a run; a range of which there is
//! much has several runs. What nobody reads, of attempts that have lost or of ranges that were divided, is not put.

use super::layout::{Layout, Run, put_piece};
use crate::limits::{OBJECT_BYTES, RUN_BYTES};
use partage_service::shuffle::plan::{Plan, PlanRange};
use partage_service::shuffle::record::{Batch, Body, Tagged};
use partage_service::shuffle::{PoolSlot, RangeId};
use std::collections::{BTreeMap, BTreeSet};

/// The pieces of a run, and how many these are.
type Pieces = (Vec<u8>, u32);

/// What was taken in of a slot, and not put yet.
#[derive(Debug)]
pub(super) struct Packing<'a> {
    plan: &'a Plan,
    ranges: BTreeMap<RangeId, &'a PlanRange>,
    runs: BTreeMap<RangeId, Vec<Pieces>>,
    bytes: usize,
    /// The number of the next object.
    object: u32,
    layout: Layout,
}

impl<'a> Packing<'a> {
    /// Of a slot of a sealed shuffle.
    pub(super) fn new(plan: &'a Plan, slot: PoolSlot) -> Packing<'a> {
        let ranges = plan.ranges.iter().filter(|range| range.slot == slot);
        let ranges = ranges.map(|range| (range.id, range)).collect();
        Packing { plan, ranges, runs: BTreeMap::new(), bytes: 0, object: 1, layout: Layout::default() }
    }

    /// About what the index will take at most.
    pub(super) fn most_index_bytes(&self, writers: usize) -> u64 {
        let sizes =
            self.ranges.values().map(|range| range.bytes.saturating_add(range.records.saturating_mul(8)));
        let bytes = sizes.fold(0, u64::saturating_add);
        let objects = 1 + bytes / OBJECT_BYTES as u64;
        Layout::most_bytes(writers, self.ranges.len(), objects)
    }

    /// The next batch of its writer.
    pub(super) fn add(&mut self, batch: &Batch) {
        self.layout.took(&batch.key.stream.writer, batch.key.number);
        let Body::Records(tagged) = &batch.body else { return };
        let inside: BTreeSet<RangeId> = tagged.keys().map(|tag| tag.range).collect();
        for id in inside {
            let Some(range) = self.ranges.get(&id).copied() else { continue };
            let mut wanted = Tagged::new();
            for (tag, segment) in self.plan.segments_of(range, batch) {
                wanted.entry(tag).or_default().push(segment.clone());
            }
            if !wanted.is_empty() {
                let body = Body::Records(wanted);
                self.put(id, &Batch { key: batch.key.clone(), durability: batch.durability, body });
            }
        }
    }

    fn put(&mut self, range: RangeId, piece: &Batch) {
        let runs = self.runs.entry(range).or_default();
        if runs.last().is_none_or(|(run, _)| run.len() >= RUN_BYTES) {
            runs.push((Vec::new(), 0));
        }
        let Some((run, pieces)) = runs.last_mut() else { return };
        let before = run.len();
        put_piece(piece, run);
        *pieces += 1;
        self.bytes += run.len() - before;
    }

    /// Whether so much was taken in that it is to be put.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= OBJECT_BYTES
    }

    /// The next object, with its number: all that was taken in since the last one. None: there is nothing in it.
    pub(super) fn object(&mut self) -> Option<(u32, Vec<u8>)> {
        if self.bytes == 0 {
            return None;
        }
        let (object, mut all) = (self.object, Vec::with_capacity(self.bytes));
        for (range, runs) in std::mem::take(&mut self.runs) {
            for (run, pieces) in runs {
                let (from, bytes) = (all.len() as u64, u32::try_from(run.len()).unwrap_or(u32::MAX));
                self.layout.push(range, Run { object, from, bytes, pieces });
                all.extend_from_slice(&run);
            }
        }
        self.bytes = 0;
        self.object += 1;
        Some((object, all))
    }

    /// Where all of it lies.
    pub(super) fn layout(self) -> Layout {
        self.layout
    }
}
