//! Where the records of each range lie in the objects of a slot of a shuffle, and the forms of both.
//!
//! ```text
//! object   ( run ) for each range that has something in it, several of a large one
//! run      ( length 4 | piece | CRC32C 4 ) for each
//! piece    a batch, with nothing but what is read of one range
//! index    version 1 | writers 4 | ( writer | last batch 8 ) for each
//!          | ranges 4 | ( range 8 | runs 4 | ( object 4 | first byte 8 | bytes 4 | pieces 4 ) for each ) for each | CRC32C 4
//! ```
//!
//! The batches of a writer are all from the first to the last one. The pieces of a range are in the order of writers and numbers,
//! from run to run, and no batch has two of one range.

use crate::forms::batch;
use crate::forms::{VERSION, count, items, put_bytes, put_count, put_writer, u8, u32, u64, writer};
use bytes::{BufMut, Bytes};
use partage_service::shuffle::record::Batch;
use partage_service::shuffle::{RangeId, Writer};
use std::collections::BTreeMap;

/// Bytes of a checksum.
const SUM: usize = 4;
/// Bytes of a run in the index, of a range besides its runs, and more than those of a writer.
const OF_RUN: u64 = 20;
const OF_RANGE: u64 = 12;
const OF_WRITER: u64 = 512;

/// Pieces of one range that lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) object: u32,
    pub(super) from: u64,
    pub(super) bytes: u32,
    pub(super) pieces: u32,
}

/// Where all lie.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Layout {
    /// The last batch of each writer that was put, or had nothing that is read.
    last: BTreeMap<Writer, u64>,
    runs: BTreeMap<RangeId, Vec<Run>>,
}

impl Layout {
    /// The next batch of its writer is put.
    pub(super) fn took(&mut self, writer: &Writer, number: u64) {
        match self.last.get_mut(writer) {
            Some(last) => *last = number,
            None => {
                self.last.insert(writer.clone(), number);
            }
        }
    }

    /// The next run of a range.
    pub(super) fn push(&mut self, range: RangeId, run: Run) {
        self.runs.entry(range).or_default().push(run);
    }

    /// Whether all batches of these writers up to these numbers were put.
    pub(super) fn has<'a>(&self, needed: impl IntoIterator<Item = (&'a Writer, &'a u64)>) -> bool {
        let last = |writer: &Writer| self.last.get(writer).copied().unwrap_or(0);
        needed.into_iter().all(|(writer, upto)| last(writer) >= *upto)
    }

    /// The runs of a range, in their order.
    pub(super) fn runs(&self, range: RangeId) -> &[Run] {
        self.runs.get(&range).map_or(&[], Vec::as_slice)
    }

    /// About what it takes in memory, in bytes.
    pub(super) fn memory(&self) -> u64 {
        let runs: usize = self.runs.values().map(|runs| 64 + size_of::<Run>() * runs.capacity()).sum();
        (runs + 128 * self.last.len()) as u64
    }

    /// About what the index takes at most, when each of so many objects has something of each range.
    pub(super) fn most_bytes(writers: usize, ranges: usize, objects: u64) -> u64 {
        let of_range = objects.saturating_mul(OF_RUN).saturating_add(OF_RANGE);
        let of_ranges = of_range.saturating_mul(ranges as u64);
        of_ranges.saturating_add(OF_WRITER.saturating_mul(writers as u64)).saturating_add(64)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_count(&mut out, self.last.len());
        for (writer, last) in &self.last {
            put_writer(&mut out, writer);
            out.put_u64(*last);
        }
        put_count(&mut out, self.runs.len());
        for (range, runs) in &self.runs {
            out.put_u64(range.0);
            put_count(&mut out, runs.len());
            for run in runs {
                out.put_u32(run.object);
                out.put_u64(run.from);
                out.put_u32(run.bytes);
                out.put_u32(run.pieces);
            }
        }
        out.put_u32(crc32c::crc32c(&out));
        out
    }

    /// Of an index, unless it is damaged.
    pub(super) fn decode(form: &[u8]) -> Option<Layout> {
        let from = &mut &summed(form)?[..];
        if u8(from)? != VERSION {
            return None;
        }
        let last = items(from, |from| Some((writer(from)?, u64(from)?)))?;
        let run = |from: &mut &[u8]| {
            Some(Run { object: u32(from)?, from: u64(from)?, bytes: u32(from)?, pieces: u32(from)? })
        };
        let runs = items(from, |from| Some((RangeId(u64(from)?), items(from, run)?)))?;
        from.is_empty().then_some(Layout { last, runs })
    }
}

/// What is before a checksum, if that is right.
fn summed(form: &[u8]) -> Option<&[u8]> {
    let (what, sum) = form.split_at_checked(form.len().checked_sub(SUM)?)?;
    (crc32c::crc32c(what).to_be_bytes() == sum).then_some(what)
}

/// Adds a piece to a run.
pub(super) fn put_piece(piece: &Batch, out: &mut Vec<u8>) {
    let mut form = Vec::new();
    batch::encode(piece, &mut form);
    form.put_u32(crc32c::crc32c(&form));
    put_bytes(out, &form);
}

/// The next piece of a run. None: there is none, or it is damaged. Its records stay where they lie, in the bytes of the run.
pub(super) fn next_piece(from: &mut Bytes) -> Option<Batch> {
    let length = count(&mut &from[..])?;
    let end = size_of::<u32>().checked_add(length)?;
    if end > from.len() {
        return None;
    }
    let form = from.split_to(end).slice(size_of::<u32>()..);
    let bytes = summed(&form)?.len();
    batch::decode(&form.slice(..bytes))
}
