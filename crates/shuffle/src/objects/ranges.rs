//! Reading what a range has in an object store: its own runs, of which the index says where they lie, some of them ahead.

use super::ahead::in_order;
use super::layout::{Layout, Run, next_piece};
use super::memory::TakenBytes;
use super::packing::Packing;
use super::{ObjectError, Objects, lock};
use crate::limits::{AHEAD_READS, INDEX_BYTES, SEEN_INDEX_BYTES};
use bytes::Bytes;
use partage_service::shuffle::BufferId;
use partage_service::shuffle::plan::{Plan, PlanRange};
use partage_service::shuffle::record::{Batch, BatchKey};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Objects {
    /// Hands out what a process has put of a range, in the order of batches: those behind `after`, until `take` says that it
    /// wants no more. `after` goes with them, so that the objects of another process may be gone on with.
    pub(crate) fn read_range(
        &self,
        (plan, range): (&Plan, &PlanRange),
        by: &BufferId,
        after: &mut Option<BatchKey>,
        take: impl FnMut(&Arc<Batch>) -> bool,
    ) -> Result<(), ObjectError> {
        let folder = self.folder(plan.shuffle, range.slot, by)?;
        let read = self.read_runs(&folder, (plan, range), after, take);
        if read.as_ref().is_err_and(|error| error.is_lost) {
            // The index that is kept may be one of before.
            self.layouts.forget(&folder);
        }
        read
    }

    fn read_runs(
        &self,
        folder: &str,
        (plan, range): (&Plan, &PlanRange),
        after: &mut Option<BatchKey>,
        mut take: impl FnMut(&Arc<Batch>) -> bool,
    ) -> Result<(), ObjectError> {
        let runs = self.runs(folder, (plan, range))?;
        let run_of = |at: usize| runs.get(at).ok_or_else(|| self.lost(folder, "the index has no such run"));
        let differs = || self.lost(folder, "an object differs from what was put");
        let begin = |at: usize| self.memory.take(runs.get(at).map_or(0, |run| u64::from(run.bytes)));
        let get = |at: usize, taken| {
            let run = run_of(at)?;
            let bytes = self.get(&Objects::object(folder, run.object), run.from, u64::from(run.bytes))?;
            Ok::<_, ObjectError>((taken, bytes))
        };
        // Pieces follow each other through all runs, also those that were taken before.
        let mut last: Option<BatchKey> = None;
        let mut hand_out =
            |at: usize, (_taken, mut bytes): (TakenBytes<'_>, Bytes)| -> Result<bool, ObjectError> {
                for _ in 0..run_of(at)?.pieces {
                    let piece =
                        next_piece(&mut bytes).filter(|piece| is_next(piece, (plan, range), last.as_ref()));
                    let piece = piece.ok_or_else(differs)?;
                    last = Some(piece.key.clone());
                    if after.as_ref().is_some_and(|after| piece.key <= *after) {
                        continue;
                    }
                    *after = Some(piece.key.clone());
                    if !take(&Arc::new(piece)) {
                        return Ok(false);
                    }
                }
                if bytes.is_empty() { Ok(true) } else { Err(differs()) }
            };
        // Before the trial has its answer all other reads are refused, also those of this range: the first run is read alone.
        let alone = usize::from(lock(&self.rest).waits_for_trial()).min(runs.len());
        let mut goes_on = true;
        in_order((alone, 1), begin, get, |at, got| {
            goes_on = hand_out(at, got)?;
            Ok(goes_on)
        })?;
        if !goes_on {
            return Ok(());
        }
        let begin = |at: usize| begin(alone + at);
        let get = |at: usize, taken| get(alone + at, taken);
        in_order((runs.len() - alone, AHEAD_READS), begin, get, |at, got| hand_out(alone + at, got))
    }

    /// Where what is needed of a range lies in a folder.
    fn runs(&self, folder: &str, (plan, range): (&Plan, &PlanRange)) -> Result<Vec<Run>, ObjectError> {
        let needed = || plan.needed.get(&range.slot).into_iter().flatten();
        let layout = match self.layouts.get(folder) {
            Some(layout) => layout,
            None => {
                let about = Packing::new(plan, range.slot).most_index_bytes(needed().count());
                self.missing_layout(folder, about)?
            }
        };
        match layout.has(needed()) {
            true => Ok(layout.runs(range.id).to_vec()),
            false => Err(self.lost(folder, "the index has not all batches that are needed")),
        }
    }

    fn lost(&self, folder: &str, what: &str) -> ObjectError {
        ObjectError { is_lost: true, why: format!("{}/{folder}: {what}", self.place().url()) }
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

    /// Whether a folder has an index, as the store says now.
    pub(super) fn has_index(&self, folder: &str) -> Result<(), ObjectError> {
        // The thread that looks deletes, too, and does not wait for reads.
        self.read_layout(folder, self.memory.count(SEEN_INDEX_BYTES)).map(drop)
    }

    /// Where ranges lie in a folder, whose index was not kept and has about so many bytes. Of several that miss it one reads it.
    fn missing_layout(&self, folder: &str, about: u64) -> Result<Arc<Layout>, ObjectError> {
        let _turn = self.layouts.turn(folder);
        if let Some(layout) = self.layouts.get(folder) {
            return Ok(layout);
        }
        self.read_layout(folder, self.memory.take(about.min(INDEX_BYTES)))
    }

    /// Where ranges lie in a folder. It is kept.
    fn read_layout(&self, folder: &str, mut taken: TakenBytes<'_>) -> Result<Arc<Layout>, ObjectError> {
        let (path, reading) = (Objects::index(folder), self.layouts.begin_reading(folder));
        let read = self.read(|place| place.get_all(&path, INDEX_BYTES)).and_then(|form| {
            taken.grow_to(form.len() as u64);
            let layout = Layout::decode(&form);
            let layout = layout.ok_or_else(|| self.lost(&path, "the index differs from what was put"))?;
            taken.grow_to(form.len() as u64 + layout.memory());
            Ok(Arc::new(layout))
        });
        match &read {
            Ok(layout) => reading.keep(layout),
            Err(error) if error.is_lost => self.layouts.forget(folder),
            Err(_) => {}
        }
        read
    }
}

/// Whether a piece is of the slot, and behind the one before it.
fn is_next(piece: &Batch, (plan, range): (&Plan, &PlanRange), last: Option<&BatchKey>) -> bool {
    let stream = &piece.key.stream;
    let is_of_slot = stream.shuffle == plan.shuffle && stream.slot == range.slot;
    is_of_slot && last.is_none_or(|last| piece.key > *last)
}
