//! The stored form of a batch.
//!
//! ```text
//! batch    version 1 | kind 1 | shuffle 16 | slot 4 | writer | number 8 | records or mark
//! records  tags 4 | ( version of the bounds 4 | range 8 | segments 4 | segment … ) for each
//! segment  attempt | partition 4 | frame 8 | records 4 | bytes of them 4 | records, packed
//! kind     1 of records, 2 of a mark; 3 and 4 the same of a shuffle of durability `memory`
//! mark     attempt | partition 4 | attempt id 16 | records 8 | bytes 8 | slots 4 | ( slot 4 | last batch 8 ) for each
//! ```

use super::{
    VERSION, attempt, count, items, put_attempt, put_bytes, put_count, put_writer, slot, u8, u32, u64, u128,
    writer,
};
use bytes::{BufMut, Bytes as Shared};
use partage_service::shuffle::bounds::Tag;
use partage_service::shuffle::record::{Batch, BatchKey, Body, EndMark, Segment, Stream, Tagged};
use partage_service::shuffle::records::PackedRecords;
use partage_service::shuffle::{AttemptId, Durability, RangeId, ShuffleId};

const RECORDS: u8 = 1;
const MARK: u8 = 2;

/// What is added to these of a batch that need not be synced.
const IN_MEMORY: u8 = 2;

/// Adds the stored form.
pub(crate) fn encode(batch: &Batch, out: &mut Vec<u8>) {
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
    out.put_u128(stream.shuffle.0);
    out.put_u32(stream.slot.0);
    put_writer(out, &stream.writer);
    out.put_u64(*number);
    match &batch.body {
        Body::Records(tagged) => put_tagged(out, tagged),
        Body::Mark(mark) => put_mark(out, mark),
    }
}

fn put_tagged(out: &mut Vec<u8>, tagged: &Tagged) {
    put_count(out, tagged.len());
    for (tag, segments) in tagged {
        out.put_u32(tag.version);
        out.put_u64(tag.range.0);
        put_count(out, segments.len());
        for segment in segments {
            put_attempt(out, &segment.attempt);
            out.put_u32(segment.partition);
            out.put_u64(segment.frame);
            put_count(out, usize::try_from(segment.records.count()).unwrap_or(usize::MAX));
            put_bytes(out, segment.records.bytes());
        }
    }
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

/// The name of a batch, and the mark that it carries; records are not looked at.
pub(crate) fn decode_name(form: &[u8]) -> Option<(BatchKey, Option<EndMark>)> {
    let from = &mut &form[..];
    let (kind, _, key) = head(from)?;
    let mark = if kind == MARK { Some(mark(from)?) } else { None };
    Some((key, mark))
}

/// A batch. Its records stay where they lie.
pub(crate) fn decode(form: &Shared) -> Option<Batch> {
    let from = &mut &form[..];
    let (kind, durability, key) = head(from)?;
    let body = if kind == MARK { Body::Mark(mark(from)?) } else { Body::Records(tagged(form, from)?) };
    from.is_empty().then_some(Batch { key, durability, body })
}

fn head(from: &mut &[u8]) -> Option<(u8, Durability, BatchKey)> {
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
    let stream = Stream { shuffle: ShuffleId(u128(from)?), slot: slot(from)?, writer: writer(from)? };
    Some((kind, durability, BatchKey { stream, number: u64(from)? }))
}

fn tagged(form: &Shared, from: &mut &[u8]) -> Option<Tagged> {
    items(from, |from| {
        let tag = Tag { version: u32(from)?, range: RangeId(u64(from)?) };
        Some((tag, items(from, |from| segment(form, from))?))
    })
}

fn segment(form: &Shared, from: &mut &[u8]) -> Option<Segment> {
    let (attempt, partition, frame) = (attempt(from)?, u32(from)?, u64(from)?);
    let (records, length) = (count(from)?, count(from)?);
    let (packed, rest) = from.split_at_checked(length)?;
    *from = rest;
    let records = PackedRecords::new(records as u64, form.slice_ref(packed)).ok()?;
    Some(Segment { attempt, partition, frame, records })
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
    use super::super::is_later;
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
            form[1] = bad;
            assert_eq!(decode_name(&form), None, "{bad}");
        }
    }

    #[test]
    fn the_form_of_a_segment_is_what_stands_above_and_its_records_stay_where_they_lie() {
        let batch = &batches()[0];
        let mut form = Vec::new();
        encode(batch, &mut form);
        // Records, the bytes of them, and each with two lengths.
        let end = [&[0, 0, 0, 2, 0, 0, 0, 10][..], &[0, 0, 1, 5], b"kvalue"].concat();
        assert!(form.ends_with(&end), "{form:?}");
        // A count that is not that of the records, and a length that is not theirs.
        let counts = form.len() - end.len();
        for (at, bad) in [(3, 1), (3, 3), (7, 9), (7, 11), (10, 2)] {
            let mut form = form.clone();
            form[counts + at] = bad;
            assert_eq!(decode(&form.into()), None, "{bad} at {at}");
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
            let (key, mark) = decode_name(&form).unwrap();
            assert_eq!((&key, mark.is_some()), (&batch.key, matches!(batch.body, Body::Mark(_))));
            for length in 0..form.len() {
                assert_eq!(decode(&whole.slice(..length)), None, "{length} bytes of {batch:?}");
            }
            form.push(0);
            assert_eq!(decode(&Shared::from(form.clone())), None, "a byte too many");
            form[0] = 9;
            assert_eq!(decode_name(&form), None, "a version that is not known");
            assert!(is_later(&form) && !is_later(&[]));
        }
    }
}
