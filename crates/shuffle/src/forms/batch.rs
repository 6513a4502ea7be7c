//! The stored form of a batch.
//!
//! ```text
//! batch      head | records, packed, of each segment, in the order of the directory
//! head       version 2 (1 byte) | kind 1 | bytes of the head 4 | shuffle 16 | slot 4 | writer | number 8 | directory or mark
//!            | CRC32C of the head 4
//! directory  attempts 4 | attempt … | tags 4
//!            | ( version of the bounds 4 | range 8 | CRC32C of its records 4 | segments 4 | segment … ) for each
//! segment    attempt 4, by its place from 0 on | partition 4 | frame 8 | records 4 | keys and values 4 | bytes as they lie 4
//! kind       1 of records, 2 of a mark; 3 and 4 the same of a shuffle of durability `memory`
//! mark       attempt | partition 4 | attempt id 16 | records 8 | bytes 8 | slots 4 | ( slot 4 | last batch 8 ) for each
//! ```
//!
//! The records of a tag lie together. The head and the records of each tag have checksums of their own: so the head is read
//! alone, and with it the records of some tags, without the rest of the batch and without the checksum of the frame around it.

use super::{attempt, count, items, put_attempt, put_count, put_writer, slot, u8, u32, u64, u128, writer};
use bytes::{BufMut, Bytes as Shared};
use partage_service::shuffle::bounds::Tag;
use partage_service::shuffle::head::{BatchHead, HeadBody, SegmentHead};
use partage_service::shuffle::record::{Batch, BatchKey, Body, EndMark, Segment, Stream, Tagged};
use partage_service::shuffle::records::PackedRecords;
use partage_service::shuffle::{AttemptId, AttemptKey, Durability, RangeId, ShuffleId};
use std::collections::BTreeMap;
use std::ops::Range;

/// The version of this form. Batches of version 1 had no directory.
pub(crate) const VERSION: u8 = 2;

const RECORDS: u8 = 1;
const MARK: u8 = 2;

/// What is added to these of a batch that need not be synced.
const IN_MEMORY: u8 = 2;

/// Where the head says how many bytes it has, and bytes of that, and of a checksum.
const LENGTH_AT: usize = 2;
const LENGTH: usize = 4;
const SUM: usize = 4;

/// Another version of this program has written a form of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherVersion {
    /// One of before, whose batches this one does not read.
    Earlier,
    /// One that came after this one.
    Later,
}

/// Whether a batch is in the form of another version. That is no damage: nothing of it may be removed.
pub(crate) fn other_version(form: &[u8]) -> Option<OtherVersion> {
    match *form.first()? {
        1..VERSION => Some(OtherVersion::Earlier),
        version if version > VERSION => Some(OtherVersion::Later),
        _ => None,
    }
}

/// Adds the stored form, and says how many bytes of it are the head.
pub(crate) fn encode(batch: &Batch, out: &mut Vec<u8>) -> u32 {
    let begin = out.len();
    let BatchKey { stream, number } = &batch.key;
    out.put_u8(VERSION);
    let kind = match batch.body {
        Body::Records(_) => RECORDS,
        Body::Mark(_) => MARK,
    };
    out.put_u8(match batch.durability {
        Durability::Disk => kind,
        Durability::Memory => kind + IN_MEMORY,
    });
    out.put_bytes(0, LENGTH);
    out.put_u128(stream.shuffle.0);
    out.put_u32(stream.slot.0);
    put_writer(out, &stream.writer);
    out.put_u64(*number);
    match &batch.body {
        Body::Records(tagged) => put_directory(out, tagged),
        Body::Mark(mark) => put_mark(out, mark),
    }
    let length = u32::try_from(out.len() - begin + SUM).unwrap_or(u32::MAX);
    out[begin + LENGTH_AT..begin + LENGTH_AT + LENGTH].copy_from_slice(&length.to_be_bytes());
    let sum = crc32c::crc32c(&out[begin..]);
    out.put_u32(sum);
    if let Body::Records(tagged) = &batch.body {
        tagged.values().flatten().for_each(|segment| out.put_slice(segment.records.bytes()));
    }
    length
}

fn put_directory(out: &mut Vec<u8>, tagged: &Tagged) {
    let mut attempts: BTreeMap<&AttemptKey, u32> = BTreeMap::new();
    for segment in tagged.values().flatten() {
        attempts.insert(&segment.attempt, 0);
    }
    put_count(out, attempts.len());
    for (place, (attempt, number)) in (0..).zip(&mut attempts) {
        *number = place;
        put_attempt(out, attempt);
    }
    put_count(out, tagged.len());
    for (tag, segments) in tagged {
        out.put_u32(tag.version);
        out.put_u64(tag.range.0);
        let packed = segments.iter().map(|segment| segment.records.bytes());
        out.put_u32(packed.fold(0, |sum, bytes| crc32c::crc32c_append(sum, bytes)));
        put_count(out, segments.len());
        for segment in segments {
            out.put_u32(attempts.get(&segment.attempt).copied().unwrap_or(u32::MAX));
            out.put_u32(segment.partition);
            out.put_u64(segment.frame);
            put_size(out, segment.records.count());
            put_size(out, segment.records.content_bytes());
            put_count(out, segment.records.bytes().len());
        }
    }
}

fn put_size(out: &mut Vec<u8>, size: u64) {
    put_count(out, usize::try_from(size).unwrap_or(usize::MAX));
}

fn put_mark(out: &mut Vec<u8>, mark: &EndMark) {
    put_attempt(out, &mark.attempt);
    out.put_u32(mark.partition);
    out.put_u128(mark.id.0);
    out.put_u64(mark.records);
    out.put_u64(mark.bytes);
    put_count(out, mark.last.len());
    for (slot, last) in &mark.last {
        out.put_u32(slot.0);
        out.put_u64(*last);
    }
}

/// The head of a batch, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredHead {
    pub(crate) head: BatchHead,
    /// Where the records of each tag lie, counted from the end of the head, and their checksum.
    runs: BTreeMap<Tag, (Range<usize>, u32)>,
    /// Its own bytes, and those of all records.
    bytes: usize,
    records_bytes: usize,
}

impl StoredHead {
    /// Of a batch, or of the first bytes of one. None: it is not as it was written, or there is not all of it.
    pub(crate) fn of(form: &[u8]) -> Option<StoredHead> {
        let from = &mut summed(form)?;
        let bytes = from.len() + SUM;
        let (kind, durability, key) = name(from)?;
        let (mut runs, mut records_bytes) = (BTreeMap::new(), 0);
        let body = match kind {
            MARK => HeadBody::Mark(mark(from)?),
            _ => HeadBody::Records(directory(from, &mut runs, &mut records_bytes)?),
        };
        let head = BatchHead { key, durability, body };
        from.is_empty().then_some(StoredHead { head, runs, bytes, records_bytes })
    }

    /// The bytes of the batch.
    pub(crate) fn form_bytes(&self) -> usize {
        self.bytes + self.records_bytes
    }

    /// Where the records of a tag lie, counted from the end of the head.
    pub(crate) fn run(&self, tag: Tag) -> Option<Range<usize>> {
        self.runs.get(&tag).map(|(run, _)| run.clone())
    }

    /// Whether these are the records of a tag, as they were written.
    pub(crate) fn has_sum(&self, tag: Tag, run: &[u8]) -> bool {
        self.runs.get(&tag).is_some_and(|(_, sum)| crc32c::crc32c(run) == *sum)
    }

    /// The segments of a tag, of its records, which stay where they lie.
    pub(crate) fn segments(&self, tag: Tag, run: &Shared) -> Option<Vec<Segment>> {
        let HeadBody::Records(tagged) = &self.head.body else { return None };
        let (mut segments, mut rest) = (Vec::new(), &run[..]);
        for head in tagged.get(&tag)? {
            let SegmentHead { attempt, partition, frame, records, bytes, packed } = head;
            let (lie, behind) = rest.split_at_checked(*packed)?;
            rest = behind;
            let records = PackedRecords::new(*records, run.slice_ref(lie)).ok()?;
            if records.content_bytes() != *bytes {
                return None;
            }
            segments.push(Segment {
                attempt: attempt.clone(),
                partition: *partition,
                frame: *frame,
                records,
            });
        }
        rest.is_empty().then_some(segments)
    }
}

/// The head of a form without its checksum, if that is right.
fn summed(form: &[u8]) -> Option<&[u8]> {
    if *form.first()? != VERSION {
        return None;
    }
    let length = count(&mut form.get(LENGTH_AT..)?)?;
    let (what, sum) = form.get(..length)?.split_at_checked(length.checked_sub(SUM)?)?;
    (crc32c::crc32c(what).to_be_bytes() == sum).then_some(what)
}

/// The name of a batch, the mark that it carries, and the bytes of its head; segments and records are not looked at.
pub(crate) fn decode_name(form: &[u8]) -> Option<(BatchKey, Option<EndMark>, u32)> {
    let from = &mut summed(form)?;
    let bytes = u32::try_from(from.len() + SUM).ok()?;
    let (kind, _, key) = name(from)?;
    let mark = if kind == MARK { Some(mark(from)?) } else { None };
    Some((key, mark, bytes))
}

/// A batch. Its records stay where they lie. Their checksums are not compared: that of the frame or the object around them was.
pub(crate) fn decode(form: &Shared) -> Option<Batch> {
    let stored = StoredHead::of(form)?;
    if form.len() != stored.form_bytes() {
        return None;
    }
    let body = match &stored.head.body {
        HeadBody::Mark(mark) => Body::Mark(mark.clone()),
        HeadBody::Records(_) => {
            let records = form.slice(stored.bytes..);
            let segments = |(tag, (run, _)): (&Tag, &(Range<usize>, u32))| {
                Some((*tag, stored.segments(*tag, &records.slice(run.clone()))?))
            };
            Body::Records(stored.runs.iter().map(segments).collect::<Option<Tagged>>()?)
        }
    };
    let BatchHead { key, durability, .. } = stored.head;
    Some(Batch { key, durability, body })
}

fn name(from: &mut &[u8]) -> Option<(u8, Durability, BatchKey)> {
    if u8(from)? != VERSION {
        return None;
    }
    let (kind, durability) = match u8(from)? {
        kind @ (RECORDS | MARK) => (kind, Durability::Disk),
        code => (code.checked_sub(IN_MEMORY)?, Durability::Memory),
    };
    if ![RECORDS, MARK].contains(&kind) {
        return None;
    }
    count(from)?;
    let stream = Stream { shuffle: ShuffleId(u128(from)?), slot: slot(from)?, writer: writer(from)? };
    Some((kind, durability, BatchKey { stream, number: u64(from)? }))
}

fn directory(
    from: &mut &[u8],
    runs: &mut BTreeMap<Tag, (Range<usize>, u32)>,
    end: &mut usize,
) -> Option<BTreeMap<Tag, Vec<SegmentHead>>> {
    let attempts: Vec<AttemptKey> = items(from, attempt)?;
    items(from, |from| {
        let tag = Tag { version: u32(from)?, range: RangeId(u64(from)?) };
        let (sum, begin) = (u32(from)?, *end);
        let segments: Vec<SegmentHead> = items(from, |from| segment(from, &attempts))?;
        for segment in &segments {
            *end = end.checked_add(segment.packed)?;
        }
        runs.insert(tag, (begin..*end, sum));
        Some((tag, segments))
    })
}

fn segment(from: &mut &[u8], attempts: &[AttemptKey]) -> Option<SegmentHead> {
    Some(SegmentHead {
        attempt: attempts.get(count(from)?)?.clone(),
        partition: u32(from)?,
        frame: u64(from)?,
        records: count(from)? as u64,
        bytes: count(from)? as u64,
        packed: count(from)?,
    })
}

fn mark(from: &mut &[u8]) -> Option<EndMark> {
    Some(EndMark {
        attempt: attempt(from)?,
        partition: u32(from)?,
        id: AttemptId(u128(from)?),
        records: u64(from)?,
        bytes: u64(from)?,
        last: items(from, |from| Some((slot(from)?, u64(from)?)))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::base::id::{Epoch, Incarnation};
    use partage_core::base::name::NodeId;
    use partage_service::shuffle::{AttemptKey, BufferId, PoolSlot, TaskId, Writer};

    fn batches() -> Vec<Batch> {
        let buffer = BufferId { node: NodeId::new("a").unwrap(), incarnation: Incarnation(7) };
        let attempt = AttemptKey { buffer: buffer.clone(), number: 3 };
        let records = PackedRecords::pack([(&b""[..], &b""[..]), (b"k", b"value")]);
        let segment = Segment { attempt: attempt.clone(), partition: 9, frame: 2, records };
        let tag = Tag { version: 1, range: RangeId(4) };
        let key = |writer, number| BatchKey {
            stream: Stream { shuffle: ShuffleId(5), slot: PoolSlot(6), writer },
            number,
        };
        let task = TaskId { epoch: Epoch(2), number: 8 };
        let last = [(PoolSlot(1), 2)].into();
        let mark = EndMark { attempt, partition: 9, id: AttemptId(10), records: 11, bytes: 12, last };
        vec![
            Batch {
                key: key(Writer::Buffer(buffer.clone()), 1),
                durability: Durability::Memory,
                body: Body::Records([(tag, vec![segment])].into()),
            },
            Batch {
                key: key(Writer::Division(task, buffer.clone()), 2),
                durability: Durability::Disk,
                body: Body::Records(Tagged::new()),
            },
            Batch {
                key: key(Writer::Objects(buffer.clone()), 1),
                durability: Durability::Disk,
                body: Body::Records(Tagged::new()),
            },
            Batch {
                key: key(Writer::Buffer(buffer.clone()), 3),
                durability: Durability::Disk,
                body: Body::Mark(mark.clone()),
            },
            Batch {
                key: key(Writer::Buffer(buffer), 4),
                durability: Durability::Memory,
                body: Body::Mark(mark),
            },
        ]
    }

    /// The form with other bytes at these places of its head, and a checksum that is right.
    fn changed(form: &[u8], bytes: &[(usize, u8)]) -> Vec<u8> {
        let mut form = form.to_vec();
        bytes.iter().for_each(|(at, byte)| form[*at] = *byte);
        let end = count(&mut &form[LENGTH_AT..]).unwrap();
        let sum = crc32c::crc32c(&form[..end - SUM]);
        form[end - SUM..end].copy_from_slice(&sum.to_be_bytes());
        form
    }

    #[test]
    fn a_batch_has_these_bytes_and_no_others() {
        let records = "0203000000810000000000000000000000000000000500000006010000000161000000000000000700000000\
             0000000100000001000000016100000000000000070000000000000003000000010000000100000000000000\
             041cda8fa0000000010000000000000009000000000000000200000002000000060000000aa0476025000001\
             056b76616c7565";
        let mark = "02020000007d0000000000000000000000000000000500000006010000000161000000000000000700000000\
             0000000300000001610000000000000007000000000000000300000009000000000000000000000000000000\
             0a000000000000000b000000000000000c000000010000000100000000000000028495d757";
        for (batch, expected) in [(0, records), (3, mark)] {
            let (mut form, batch) = (Vec::new(), &batches()[batch]);
            let head_bytes = encode(batch, &mut form);
            let hex: String = form.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, expected);
            let records_bytes = if matches!(batch.body, Body::Mark(_)) { 0 } else { 10 };
            assert_eq!(head_bytes as usize, form.len() - records_bytes);
        }
    }

    #[test]
    fn the_byte_of_the_kind_says_how_durable_a_batch_is() {
        let kinds = batches().into_iter().map(|batch| {
            let mut form = Vec::new();
            encode(&batch, &mut form);
            form[1]
        });
        assert_eq!(kinds.collect::<Vec<u8>>(), [3, 1, 1, 2, 4]);
        let mut form = Vec::new();
        encode(&batches()[0], &mut form);
        for bad in [0, 5, 255] {
            assert_eq!(decode_name(&changed(&form, &[(1, bad)])), None, "{bad}");
        }
    }

    #[test]
    fn the_form_of_a_segment_is_what_stands_above_and_its_records_stay_where_they_lie() {
        let batch = &batches()[0];
        let mut form = Vec::new();
        encode(batch, &mut form);
        // The last segment of the directory, and records: each with two lengths.
        let end = [
            &[0_u8, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 2][..],
            &[0, 0, 0, 2, 0, 0, 0, 6, 0, 0, 0, 10],
        ];
        let (end, records) = (end.concat(), [&[0_u8, 0, 1, 5][..], b"kvalue"].concat());
        let directory = form.len() - records.len() - SUM - end.len();
        assert_eq!(&form[directory..directory + end.len()], &end[..], "{form:?}");
        assert!(form.ends_with(&records), "{form:?}");
        // An attempt that there is none of, counts and sizes that are not those of the records.
        for (at, bad) in [(3, 1), (19, 1), (19, 3), (23, 5), (23, 7), (27, 9), (27, 11)] {
            assert_eq!(decode(&changed(&form, &[(directory + at, bad)]).into()), None, "{bad} at {at}");
        }
        let form = Shared::from(form);
        let Some(Body::Records(tagged)) = decode(&form).map(|batch| batch.body) else { panic!("records") };
        let lie = |segment: &Segment| segment.records.bytes().as_ptr_range();
        let lie: Vec<_> = tagged.values().flatten().map(lie).collect();
        assert_eq!(lie, [form.slice(form.len() - 10..).as_ptr_range()], "they were copied");
    }

    #[test]
    fn every_batch_comes_back_and_nothing_shorter_or_longer_does() {
        for batch in batches() {
            let mut form = Vec::new();
            encode(&batch, &mut form);
            let whole = Shared::from(form.clone());
            assert_eq!(decode(&whole).as_ref(), Some(&batch));
            let (key, mark, head_bytes) = decode_name(&form).unwrap();
            assert_eq!((&key, mark.is_some()), (&batch.key, matches!(batch.body, Body::Mark(_))));
            let head_bytes = head_bytes as usize;
            for length in 0..form.len() {
                assert_eq!(decode(&whole.slice(..length)), None, "{length} bytes of {batch:?}");
                assert_eq!(StoredHead::of(&form[..length]).is_some(), length >= head_bytes, "{length}");
            }
            assert_eq!(StoredHead::of(&form).map(|stored| stored.head), Some(BatchHead::of(&batch)));
            for at in 0..head_bytes * 8 {
                let mut flipped = form.clone();
                flipped[at / 8] ^= 1 << (at % 8);
                assert_eq!(StoredHead::of(&flipped), None, "bit {at} of {batch:?}");
                assert_eq!(decode_name(&flipped), None, "bit {at} of {batch:?}");
            }
            form.push(0);
            assert_eq!(decode(&Shared::from(form.clone())), None, "a byte too many");
            form[0] = 9;
            assert_eq!(decode_name(&form), None, "a version that is not known");
            assert_eq!(other_version(&form), Some(OtherVersion::Later));
            form[0] = 1;
            assert_eq!(decode_name(&form), None, "batches of version 1 had no directory");
            assert_eq!(other_version(&form), Some(OtherVersion::Earlier));
            for none in [&[][..], &[0], &[VERSION]] {
                assert_eq!(other_version(none), None, "{none:?}");
            }
        }
    }
}
