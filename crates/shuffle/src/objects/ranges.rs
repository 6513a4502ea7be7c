//! Reading what a range has in an object store: its own runs, of which the index says where they lie, some of them ahead.

use super::ahead::{Bounds, in_order};
use super::layout::{Layout, Run, next_piece};
use super::{ObjectError, Objects, lock};
use crate::limits::{AHEAD_BYTES, AHEAD_READS, INDEX_BYTES, LAYOUT_BYTES};
use bytes::Bytes;
use partage_service::shuffle::BufferId;
use partage_service::shuffle::plan::{Plan, PlanRange};
use partage_service::shuffle::record::{Batch, BatchKey};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const AHEAD: Bounds = Bounds { reads: AHEAD_READS, bytes: AHEAD_BYTES };

impl Objects {
    /// Hands out what a process has put of a range, in the order of batches: those behind `after`, until `take` says that it
    /// wants no more. `after` goes with them, so that the objects of another process may be gone on with.
    pub(crate) fn read_range(
        &self,
        (plan, range): (&Plan, &PlanRange),
        by: &BufferId,
        after: &mut Option<BatchKey>,
        mut take: impl FnMut(&Arc<Batch>) -> bool,
    ) -> Result<(), ObjectError> {
        let folder = self.folder(plan.shuffle, range.slot, by)?;
        let layout = self.layout(&folder)?;
        let lost = |what: &str| {
            let why = format!("{}/{folder}: {what}", self.place().url());
            ObjectError { is_lost: true, why }
        };
        if !layout.has(plan.needed.get(&range.slot).into_iter().flatten()) {
            return Err(lost("the index has not all batches that are needed"));
        }
        let runs = layout.runs(range.id);
        let sizes: Vec<u64> = runs.iter().map(|run| u64::from(run.bytes)).collect();
        let run_of = |at: usize| runs.get(at).ok_or_else(|| lost("the index has no such run"));
        let get = |at: usize| {
            let run = run_of(at)?;
            self.get(&Objects::object(&folder, run.object), run.from, u64::from(run.bytes))
        };
        // Pieces follow each other through all runs, also those that were taken before.
        let mut last = None;
        in_order(&sizes, AHEAD, get, |at, bytes: Bytes| {
            let pieces = pieces_of(*run_of(at)?, &bytes, (plan, range), &mut last);
            for piece in pieces.ok_or_else(|| lost("an object differs from what was put"))? {
                if after.as_ref().is_some_and(|after| piece.key <= *after) {
                    continue;
                }
                *after = Some(piece.key.clone());
                if !take(&Arc::new(piece)) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    fn get(&self, path: &str, from: u64, bytes: u64) -> Result<Bytes, ObjectError> {
        let got = self.read(|place| place.get(path, from, bytes))?;
        self.counts.read_bytes.fetch_add(got.len() as u64, Ordering::Relaxed);
        Ok(got)
    }

    /// Asks the store, unless it has not answered for so long that it is left alone for a while.
    fn read(
        &self,
        read: impl FnOnce(&dyn super::ObjectPlace) -> Result<Bytes, ObjectError>,
    ) -> Result<Bytes, ObjectError> {
        let begun = self.clock.now();
        let may_begin = lock(&self.rest).begin(begun);
        if let Err(left) = may_begin {
            let url = self.place().url();
            let why = format!("{url} has not answered reads; it is asked again within {left} ms");
            return Err(ObjectError { is_lost: false, why });
        }
        let got = read(self.place()).map_err(|error| self.confirmed(error));
        let is_answered = !matches!(&got, Err(error) if !error.is_lost);
        lock(&self.rest).end((begun, self.clock.now()), is_answered);
        self.noted("get", got)
    }

    /// Where ranges lie in a folder. Those that were read last are kept.
    pub(super) fn layout(&self, folder: &str) -> Result<Arc<Layout>, ObjectError> {
        let used = self.used.fetch_add(1, Ordering::Relaxed);
        if let Some((layout, at)) = lock(&self.layouts).get_mut(folder) {
            *at = used;
            return Ok(Arc::clone(layout));
        }
        let path = Objects::index(folder);
        let form = self.read(|place| place.get_all(&path, INDEX_BYTES))?;
        let damaged = || ObjectError {
            is_lost: true,
            why: format!("{}/{path}: the index differs from what was put", self.place().url()),
        };
        let layout = Arc::new(Layout::decode(&form).ok_or_else(damaged)?);
        let mut layouts = lock(&self.layouts);
        layouts.insert(folder.to_owned(), (Arc::clone(&layout), used));
        let bytes = |layouts: &BTreeMap<String, (Arc<Layout>, u64)>| {
            layouts.values().map(|(layout, _)| layout.memory()).sum::<u64>()
        };
        while layouts.len() > 1 && bytes(&layouts) > LAYOUT_BYTES {
            let oldest = layouts.iter().min_by_key(|(_, (_, used))| *used).map(|(folder, _)| folder.clone());
            oldest.into_iter().for_each(|folder| drop(layouts.remove(&folder)));
        }
        Ok(layout)
    }
}

/// The pieces of a run, unless they are not what was put: as many as the index says, of batches of the slot, each behind the one
/// before it.
fn pieces_of(
    run: Run,
    mut bytes: &[u8],
    (plan, range): (&Plan, &PlanRange),
    last: &mut Option<BatchKey>,
) -> Option<Vec<Batch>> {
    let mut pieces = Vec::new();
    for _ in 0..run.pieces {
        let piece = next_piece(&mut bytes)?;
        let stream = &piece.key.stream;
        let is_of_slot = stream.shuffle == plan.shuffle && stream.slot == range.slot;
        if !is_of_slot || last.as_ref().is_some_and(|last| piece.key <= *last) {
            return None;
        }
        *last = Some(piece.key.clone());
        pieces.push(piece);
    }
    bytes.is_empty().then_some(pieces)
}
