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
use crate::records::{PackedRecords, put_record};
use bytes::Bytes;
use partage_service::shuffle::bounds::Tag;
use partage_service::shuffle::record::{Batch, BatchKey, Body, EndMark, Record, Segment};
use partage_service::shuffle::{AttemptKey, BufferId, Durability, Writer};
use std::collections::BTreeMap;

const RECORDS: u8 = 1;
const MARK: u8 = 2;

/// What is added to these of a batch that need not be synced.
const IN_MEMORY: u8 = 2;

/// A batch whose records lie in the bytes in which it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedBatch {
    /// The stream of the batch, and its number in that.
    pub key: BatchKey,
    /// Where it is when its holder says that it is stored.
    pub durability: Durability,
    /// Records of attempts, or the mark that one of them is whole.
    pub body: PackedBody,
}

/// What a batch carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackedBody {
    /// Records of attempts, by the version of the bounds and the range under which they lie.
    Records(BTreeMap<Tag, Vec<PackedSegment>>),
    /// The mark that an attempt is whole.
    Mark(EndMark),
}

/// Records of one frame of an attempt that lie together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedSegment {
    /// The attempt that has written them; the batch names it once, before the records.
    pub attempt: AttemptKey,
    /// The input partition of that attempt.
    pub partition: u32,
    /// The number of the frame in the attempt.
    pub frame: u64,
    /// The records, where they lie.
    pub records: PackedRecords,
}

impl PackedBatch {
    /// Core's form of it: each key and value is copied.
    pub fn unpack(&self) -> Batch {
        let segment = |packed: &PackedSegment| Segment {
            attempt: packed.attempt.clone(),
            partition: packed.partition,
            frame: packed.frame,
            records: packed.records.unpack(),
        };
        let body = match &self.body {
            PackedBody::Mark(mark) => Body::Mark(mark.clone()),
            PackedBody::Records(tagged) => {
                let tags =
                    tagged.iter().map(|(tag, segments)| (*tag, segments.iter().map(segment).collect()));
                Body::Records(tags.collect())
            }
        };
        Batch { key: self.key.clone(), durability: self.durability, body }
    }

    /// The form of it. Records are copied once, into it.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.key.put(out);
        match &self.body {
            PackedBody::Mark(mark) => put_mark(mark, self.durability, out),
            PackedBody::Records(tagged) => {
                out.push(code(RECORDS, self.durability));
                put_tagged(tagged, writer_of(&self.key), out);
            }
        }
    }
}

impl PackedBatch {
    pub(crate) const NAME: &'static str = "a batch";
    pub(crate) const LEAST: usize = 40;

    pub(crate) fn take(from: &mut Cursor<'_>) -> Result<PackedBatch, Malformed> {
        let key = BatchKey::take(from)?;
        let found = u8::take(from)?;
        let kinds = [RECORDS, MARK].into_iter();
        let mut all = kinds.flat_map(|kind| Durability::ALL.map(|durability| (kind, durability)));
        let (kind, durability) = all
            .find(|(kind, durability)| code(*kind, *durability) == found)
            .ok_or(Malformed::Choice { what: "kind of batch", found })?;
        let body = match kind {
            MARK => PackedBody::Mark(EndMark::take(from)?),
            _ => PackedBody::Records(take_tagged(from, writer_of(&key))?),
        };
        Ok(PackedBatch { key, durability, body })
    }

    /// Reads a batch, and nothing behind it. Records stay where they lie.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(bytes: &Bytes) -> Result<PackedBatch, Malformed> {
        let mut from = Cursor::new(bytes);
        let batch = PackedBatch::take(&mut from)?;
        from.end()?;
        Ok(batch)
    }
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

/// A segment, in core's form or where its records lie.
trait AnySegment {
    fn attempt(&self) -> (&AttemptKey, u32);
    fn frame(&self) -> u64;
    fn put_records(&self, out: &mut Vec<u8>);
}

impl AnySegment for Segment {
    fn attempt(&self) -> (&AttemptKey, u32) {
        (&self.attempt, self.partition)
    }
    fn frame(&self) -> u64 {
        self.frame
    }
    fn put_records(&self, out: &mut Vec<u8>) {
        let length = |bytes: usize| (bytes.max(1).ilog2() / 7 + 1) as usize;
        let sizes = |record: &Record| {
            let (key, value) = (record.key.len(), record.value.len());
            length(key) + length(value) + key + value
        };
        put_number(self.records.len() as u64, out);
        put_number(self.records.iter().map(sizes).sum::<usize>() as u64, out);
        self.records.iter().for_each(|record| put_record(&record.key, &record.value, out));
    }
}

impl AnySegment for PackedSegment {
    fn attempt(&self) -> (&AttemptKey, u32) {
        (&self.attempt, self.partition)
    }
    fn frame(&self) -> u64 {
        self.frame
    }
    fn put_records(&self, out: &mut Vec<u8>) {
        put_number(self.records.count(), out);
        put_number(self.records.bytes().len() as u64, out);
        out.extend_from_slice(self.records.bytes());
    }
}

/// Writes core's form of a batch: each key and value is copied once.
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

fn put_tagged<S: AnySegment>(tagged: &BTreeMap<Tag, Vec<S>>, writer: &BufferId, out: &mut Vec<u8>) {
    let mut places: BTreeMap<(&AttemptKey, u32), u64> =
        tagged.values().flatten().map(|segment| (segment.attempt(), 0)).collect();
    places.values_mut().zip(0..).for_each(|(place, at)| *place = at);
    put_number(places.len() as u64, out);
    for (attempt, partition) in places.keys() {
        attempt.number.put(out);
        partition.put(out);
        (attempt.buffer != *writer).then(|| attempt.buffer.clone()).put(out);
    }
    put_number(tagged.len() as u64, out);
    for (tag, segments) in tagged {
        tag.put(out);
        put_number(segments.len() as u64, out);
        for segment in segments {
            put_number(places.get(&segment.attempt()).copied().unwrap_or(0), out);
            put_number(segment.frame(), out);
            segment.put_records(out);
        }
    }
}

fn take_tagged(
    from: &mut Cursor<'_>,
    writer: &BufferId,
) -> Result<BTreeMap<Tag, Vec<PackedSegment>>, Malformed> {
    let attempts = take_attempts(from, writer)?;
    // A tag, and no segment; a segment, and no record.
    let (tag_least, segment_least) = (Tag::LEAST + 1, 4);
    let mut tagged: BTreeMap<Tag, Vec<PackedSegment>> = BTreeMap::new();
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
            let (frame, count) = (from.number("a frame")?, from.number("records")?);
            let bytes = from.length("records")?;
            let records = PackedRecords::take(from, count, bytes)?;
            segments.push(PackedSegment { attempt: attempt.clone(), partition: *partition, frame, records });
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
