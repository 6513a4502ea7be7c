//! Where each batch lies in the objects of a slot of a shuffle, and the forms of both.
//!
//! ```text
//! object   ( batch | CRC32C 4 ) for each
//! index    version 1 | writers 4 | ( writer | batches 4 | ( object 4 | first byte 8 | bytes 4 ) for each ) for each | CRC32C 4
//! ```
//!
//! The batches of a writer are all from the first to the last one.

use crate::forms::batch;
use crate::forms::{VERSION, count, items, put_count, put_writer, u8, u32, u64, writer};
use bytes::BufMut;
use partage_service::shuffle::Writer;
use partage_service::shuffle::record::Batch;
use std::collections::BTreeMap;

/// Bytes of a checksum.
const SUM: usize = 4;

/// Where a batch lies, with its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) object: u32,
    pub(super) from: u64,
    pub(super) bytes: u32,
}

/// Where all lie.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Layout {
    spots: BTreeMap<Writer, Vec<Spot>>,
    /// The bytes of each object.
    ends: BTreeMap<u32, u64>,
}

impl Layout {
    /// The next batch of its writer.
    pub(super) fn push(&mut self, writer: &Writer, spot: Spot) {
        let end = self.ends.entry(spot.object).or_default();
        *end = (*end).max(spot.from.saturating_add(u64::from(spot.bytes)));
        match self.spots.get_mut(writer) {
            Some(spots) => spots.push(spot),
            None => drop(self.spots.insert(writer.clone(), vec![spot])),
        }
    }

    /// Where the batch of that number lies, and the bytes of its object.
    pub(super) fn find(&self, writer: &Writer, number: u64) -> Option<(Spot, u64)> {
        let at = usize::try_from(number.checked_sub(1)?).ok()?;
        let spot = *self.spots.get(writer)?.get(at)?;
        Some((spot, self.ends.get(&spot.object).copied()?))
    }

    /// About what it takes in memory, in bytes.
    pub(super) fn memory(&self) -> u64 {
        let spots: usize = self.spots.values().map(|spots| 128 + 16 * spots.len()).sum();
        (spots + 48 * self.ends.len()) as u64
    }

    /// More than the index takes of writers with so many batches.
    pub(super) fn most_bytes(batches: impl Iterator<Item = u64>) -> u64 {
        batches.fold(64, |all, batches| all.saturating_add(512).saturating_add(batches.saturating_mul(16)))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put_count(&mut out, self.spots.len());
        for (writer, spots) in &self.spots {
            put_writer(&mut out, writer);
            put_count(&mut out, spots.len());
            for spot in spots {
                out.put_u32(spot.object);
                out.put_u64(spot.from);
                out.put_u32(spot.bytes);
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
        let mut layout = Layout::default();
        for _ in 0..count(from)? {
            let writer = writer(from)?;
            let spots: Vec<Spot> =
                items(from, |from| Some(Spot { object: u32(from)?, from: u64(from)?, bytes: u32(from)? }))?;
            spots.into_iter().for_each(|spot| layout.push(&writer, spot));
        }
        from.is_empty().then_some(layout)
    }
}

/// What is before a checksum, if that is right.
fn summed(form: &[u8]) -> Option<&[u8]> {
    let (what, sum) = form.split_at_checked(form.len().checked_sub(SUM)?)?;
    (crc32c::crc32c(what).to_be_bytes() == sum).then_some(what)
}

/// Adds a batch to an object. The answer is how many bytes it takes there.
pub(super) fn put_batch(batch: &Batch, out: &mut Vec<u8>) -> u32 {
    let before = out.len();
    batch::encode(batch, out);
    let sum = crc32c::crc32c(out.get(before..).unwrap_or_default());
    out.put_u32(sum);
    u32::try_from(out.len() - before).unwrap_or(u32::MAX)
}

/// The batch that lies in these bytes, unless it is damaged.
pub(super) fn batch_of(bytes: &[u8]) -> Option<Batch> {
    batch::decode(summed(bytes)?)
}
