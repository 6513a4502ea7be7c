//! Batches: what is stored and sent as one, with records that stay where they lie.
//!
//! ```text
//!  batch    key of the batch · 1 · attempts · tags            records of attempts
//!           key of the batch · 2 · end mark                   an attempt is whole
//!           key of the batch · 3 or 4 · …                     the same of a shuffle of durability `memory`
//!  attempts count · ( number · input partition · buffer: 0 = the writer's own, else 1 and it )*
//!  tags     count · ( version · range · segments )*           ascending
//!  segments count · ( attempt, by its place above · frame · records · bytes of them · records )*
//! ```
//!
//! Attempts stand once at the begin, so a segment has four short numbers, some six bytes, before its records: segments have a few
//! records only when a frame of 256 KiB is divided into hundreds of ranges.

use crate::form::{Cursor, Form, put_number};
use crate::malformed::Malformed;
use crate::records::PackedRecords;
use partage_service::shuffle::bounds::Tag;
use partage_service::shuffle::record::{Batch, BatchKey, Body, EndMark, Segment, Tagged};
use partage_service::shuffle::{AttemptKey, BufferId, Durability, Writer};
use std::collections::BTreeMap;

const RECORDS: u8 = 1;
const MARK: u8 = 2;

/// What is added to these of a batch that need not be synced.
const IN_MEMORY: u8 = 2;

/// Fewest bytes of a batch.
pub(crate) const LEAST: usize = 40;

/// Reads a batch. Its records stay where they lie.
pub(crate) fn take(from: &mut Cursor<'_>) -> Result<Batch, Malformed> {
    let key = BatchKey::take(from)?;
    let found = u8::take(from)?;
    let kinds = [RECORDS, MARK].into_iter();
    let mut all = kinds.flat_map(|kind| Durability::ALL.map(|durability| (kind, durability)));
    let (kind, durability) = all
        .find(|(kind, durability)| code(*kind, *durability) == found)
        .ok_or(Malformed::Choice { what: "kind of batch", found })?;
    let body = match kind {
        MARK => Body::Mark(EndMark::take(from)?),
        _ => Body::Records(take_tagged(from, writer_of(&key))?),
    };
    Ok(Batch { key, durability, body })
}

/// The byte that says what a batch carries, and whether it need be synced.
fn code(kind: u8, durability: Durability) -> u8 {
    match durability {
        Durability::Disk => kind,
        Durability::Memory => kind + IN_MEMORY,
    }
}

/// The buffer that writes the stream of the batch.
fn writer_of(key: &BatchKey) -> &BufferId {
    match &key.stream.writer {
        Writer::Buffer(buffer) | Writer::Division(_, buffer) | Writer::Objects(buffer) => buffer,
    }
}

/// Writes a batch: its records are copied once.
pub(crate) fn put(batch: &Batch, out: &mut Vec<u8>) {
    batch.key.put(out);
    match &batch.body {
        Body::Mark(mark) => put_mark(mark, batch.durability, out),
        Body::Records(tagged) => {
            out.push(code(RECORDS, batch.durability));
            put_tagged(tagged, writer_of(&batch.key), out);
        }
    }
}

fn put_mark(mark: &EndMark, durability: Durability, out: &mut Vec<u8>) {
    out.push(code(MARK, durability));
    mark.put(out);
}

fn put_tagged(tagged: &Tagged, writer: &BufferId, out: &mut Vec<u8>) {
    // Attempts are few, segments are many, and numbers tell most attempts apart: they are compared before names are.
    let mut met: BTreeMap<(u64, u32, &BufferId), usize> = BTreeMap::new();
    let mut of_segments = Vec::new();
    for Segment { attempt, partition, .. } in tagged.values().flatten() {
        let next = met.len();
        of_segments.push(*met.entry((attempt.number, *partition, &attempt.buffer)).or_insert(next));
    }
    let mut attempts: Vec<((u64, u32, &BufferId), usize)> = met.into_iter().collect();
    attempts.sort_unstable_by_key(|((number, partition, buffer), _)| (*buffer, *number, *partition));
    let mut places = vec![0; attempts.len()];
    put_number(attempts.len() as u64, out);
    for (((number, partition, buffer), met), place) in attempts.into_iter().zip(0_u64..) {
        places[met] = place;
        number.put(out);
        partition.put(out);
        (buffer != writer).then(|| buffer.clone()).put(out);
    }
    let mut of_segments = of_segments.into_iter().map(|met| places[met]);
    put_number(tagged.len() as u64, out);
    for (tag, segments) in tagged {
        tag.put(out);
        put_number(segments.len() as u64, out);
        for segment in segments {
            put_number(of_segments.next().unwrap_or(0), out);
            put_number(segment.frame, out);
            segment.records.put(out);
        }
    }
}

fn take_tagged(from: &mut Cursor<'_>, writer: &BufferId) -> Result<Tagged, Malformed> {
    let attempts = take_attempts(from, writer)?;
    // A tag, and no segment; a segment, and no record.
    let (tag_least, segment_least) = (Tag::LEAST + 1, 4);
    let mut tagged = Tagged::new();
    for _ in 0..from.count("tags", tag_least)? {
        let tag = Tag::take(from)?;
        if tagged.last_key_value().is_some_and(|(last, _)| *last >= tag) {
            return Err(Malformed::Order("tags"));
        }
        let count = from.count("segments", segment_least)?;
        let mut segments = Vec::with_capacity(count);
        for _ in 0..count {
            let place = from.number("the place of an attempt")?;
            let place = usize::try_from(place).ok().and_then(|place| attempts.get(place));
            let (attempt, partition) = place.ok_or(Malformed::Value("the place of an attempt"))?;
            let (frame, records) = (from.number("a frame")?, PackedRecords::take(from)?);
            segments.push(Segment { attempt: attempt.clone(), partition: *partition, frame, records });
        }
        tagged.insert(tag, segments);
    }
    Ok(tagged)
}

fn take_attempts(from: &mut Cursor<'_>, writer: &BufferId) -> Result<Vec<(AttemptKey, u32)>, Malformed> {
    // Number, partition, and that the buffer is the writer.
    let count = from.count("attempts", 13)?;
    let mut attempts: Vec<(AttemptKey, u32)> = Vec::with_capacity(count);
    for _ in 0..count {
        let (number, partition) = (u64::take(from)?, u32::take(from)?);
        let buffer: Option<BufferId> = Form::take(from)?;
        if buffer.as_ref() == Some(writer) {
            return Err(Malformed::Value("the writer's own buffer, named"));
        }
        let attempt = AttemptKey { buffer: buffer.unwrap_or_else(|| writer.clone()), number };
        let one = (attempt, partition);
        if attempts.last().is_some_and(|last| *last >= one) {
            return Err(Malformed::Order("attempts"));
        }
        attempts.push(one);
    }
    Ok(attempts)
}
