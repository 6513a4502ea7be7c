//! Parts of batches: what is read by its range is what the whole has of it, and no part that is damaged is read.

use super::{DIR, buffer, files, key, keys, open};
use crate::limits::WHOLE_FRAME_BYTES;
use crate::store::{BatchError, BatchReader};
use partage_journal::Disk;
use partage_journal::faulty_disk::FaultyDisk;
use partage_service::shuffle::bounds::Tag;
use partage_service::shuffle::head::BatchHead;
use partage_service::shuffle::plan::{Plan, PlanRange, Winner};
use partage_service::shuffle::record::{Batch, Body, Segment, Tagged};
use partage_service::shuffle::records::PackedRecords;
use partage_service::shuffle::{AttemptKey, Durability, PoolSlot, RangeId, ShuffleId, Writer};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SLOT: PoolSlot = PoolSlot(1);
/// The attempt that does not win.
const LOSER: u64 = 3;

/// A version and a range, an attempt, and the lengths of values of its records.
type Part = (u32, u64, u64, Vec<usize>);

fn batch_of(number: u64, parts: &[Part]) -> Arc<Batch> {
    let mut tagged = Tagged::new();
    for (frame, (version, range, attempt, lengths)) in (1..).zip(parts) {
        let values: Vec<Vec<u8>> = (1..).zip(lengths).map(|(at, length)| vec![at; *length]).collect();
        let records = values.iter().map(|value| (&b"key"[..], &value[..]));
        let segment = Segment {
            attempt: AttemptKey { buffer: buffer(), number: *attempt },
            partition: *attempt as u32,
            frame: number * 100 + frame,
            records: PackedRecords::pack(records),
        };
        let tag = Tag { version: *version, range: RangeId(*range) };
        tagged.entry(tag).or_default().push(segment);
    }
    Arc::new(Batch { key: key(1, 1, number), durability: Durability::Disk, body: Body::Records(tagged) })
}

/// What is read of so many batches: ranges 1 and 2 from version 1 on, range 3 from version 2 on.
fn plan(upto: u64) -> Plan {
    let range = |(id, since)| {
        let (id, begins) = (RangeId(id), Vec::new().into());
        PlanRange { id, since, begins, slot: SLOT, records: 0, bytes: 0 }
    };
    let winner = |number: u64| {
        let attempt = AttemptKey { buffer: buffer(), number };
        (attempt, Winner { partition: number as u32, records: 0, bytes: 0 })
    };
    Plan {
        shuffle: ShuffleId(1),
        winners: Arc::new((1..LOSER).map(winner).collect()),
        needed: [(SLOT, [(Writer::Buffer(buffer()), upto)].into())].into(),
        ranges: [(1, 1), (2, 1), (3, 2)].map(range).to_vec(),
    }
}

/// The batches of a range as parts, and the bytes that were read for it.
fn parts_of(reader: &BatchReader, plan: &Plan, at: usize) -> Result<(Vec<Arc<Batch>>, u64), BatchError> {
    let (before, mut parts) = (reader.reads().1, Vec::new());
    let read = reader.read_range(crate::store::RangeSource::Disk, (plan, &plan.ranges[at]), |part| {
        parts.push(Arc::clone(part));
        true
    });
    read.map(|()| (parts, reader.reads().1 - before))
}

type Counts = BTreeMap<RangeId, (u64, u64)>;

/// What is counted of the slot, and the bytes that were read for it.
fn counts_of(reader: &BatchReader, plan: &Plan) -> Result<(Counts, u64), BatchError> {
    let (before, mut counts) = (reader.reads().1, plan.counts_of(SLOT));
    let wanted = plan.needed[&SLOT].iter().map(|(writer, upto)| (writer, 0, *upto));
    let read = reader.read_heads((plan.shuffle, SLOT), wanted, |head| counts.add(head));
    read.map(|()| (counts.counts(), reader.reads().1 - before))
}

fn part() -> impl Strategy<Value = Part> {
    let lengths = prop::collection::vec(prop_oneof![3 => 0..100_usize, 1 => 10_000..40_000_usize], 0..6);
    (0_u32..4, 1_u64..5, 1..=LOSER, lengths)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_read_by_its_range_is_what_whole_batches_have_of_it(
        all in prop::collection::vec(prop::collection::vec(part(), 0..12), 1..5),
    ) {
        let disk = FaultyDisk::default();
        let (mut store, _) = open(&disk).unwrap();
        let batches: Vec<Arc<Batch>> = (1..).zip(&all).map(|(number, parts)| batch_of(number, parts)).collect();
        store.store(&batches).unwrap();
        // Where heads end is known of batches that were written, and of those that a start has found.
        for batch in &batches {
            prop_assert_eq!(store.reader().head(&batch.key).unwrap(), BatchHead::of(batch));
        }
        drop(store);
        let (store, _) = open(&disk).unwrap();
        let (reader, plan) = (store.reader(), plan(batches.len() as u64));
        let (counts, _) = counts_of(&reader, &plan).unwrap();
        for batch in &batches {
            prop_assert_eq!(&reader.read(&batch.key).unwrap(), batch);
            prop_assert_eq!(reader.head(&batch.key).unwrap(), BatchHead::of(batch));
        }
        for (at, range) in plan.ranges.iter().enumerate() {
            let whole = plan.collect(range, &batches);
            let (parts, _) = parts_of(&reader, &plan, at).unwrap();
            prop_assert!(plan.collect(range, &parts) == whole);
            let tags = parts.iter().map(|part| plan.tags_of(range, &BatchHead::of(part)).len() as u64);
            let segments = |part: &Arc<Batch>| match &part.body {
                Body::Records(tagged) => tagged.len() as u64,
                Body::Mark(_) => 0,
            };
            prop_assert_eq!(tags.sum::<u64>(), parts.iter().map(segments).sum::<u64>(), "nothing else");
            prop_assert_eq!(counts.get(&range.id).copied(), Some(whole.sizes()));
        }
    }
}

/// A batch that is read whole when a range of it is wanted, or, if it is large, is not; with two ranges, and one that no
/// range of the plan has. Its disk and its file.
fn stored(is_large: bool) -> (FaultyDisk, BatchReader, PathBuf) {
    let disk = FaultyDisk::default();
    let (mut store, _) = open(&disk).unwrap();
    let length = if is_large { WHOLE_FRAME_BYTES } else { 1_000 };
    let batch = batch_of(1, &[(1, 1, 1, vec![length]), (1, 2, 1, vec![length]), (1, 7, 1, vec![length])]);
    store.store(&[batch]).unwrap();
    let path = Path::new(DIR).join(&files(&disk)[0]);
    let reader = store.reader();
    (disk, reader, path)
}

#[test]
fn a_range_of_a_large_batch_costs_its_own_bytes_and_a_count_none_of_them() {
    let (_, reader, _) = stored(true);
    let place = reader.place(&key(1, 1, 1)).unwrap();
    let around = place.bytes as u64 - 3 * WHOLE_FRAME_BYTES as u64;
    let (counts, of_count) = counts_of(&reader, &plan(1)).unwrap();
    let of_one = (1, WHOLE_FRAME_BYTES as u64 + 3);
    assert_eq!(counts, [(RangeId(1), of_one), (RangeId(2), of_one), (RangeId(3), (0, 0))].into());
    assert!(of_count < around, "{of_count} of {around}");
    for at in [0, 1] {
        let (parts, of_range) = parts_of(&reader, &plan(1), at).unwrap();
        assert_eq!(parts[0].records(), 1);
        assert!(of_range < around + WHOLE_FRAME_BYTES as u64, "{of_range}");
    }
    let (parts, of_none) = parts_of(&reader, &plan(1), 2).unwrap();
    assert_eq!((parts[0].records(), of_none), (0, of_count));
    assert_eq!(reader.reads().0, 2);
}

#[test]
fn a_bit_that_flips_is_found_by_who_reads_what_it_is_in_and_by_a_start() {
    for is_large in [false, true] {
        let (disk, reader, path) = stored(is_large);
        let whole = disk.read(&path).unwrap();
        let frame = partage_journal::BLOCK;
        let head = crate::store::file::head_bytes(reader.place(&key(1, 1, 1)).unwrap());
        let run = if is_large { WHOLE_FRAME_BYTES } else { 1_000 };
        // In the header, in the head, and in the records of each tag; who finds it: a count, a read of either range, of all.
        let places = [
            (frame + 9, [true, true, true]),
            (frame + 60, [true, true, true]),
            (frame + head - 1, [true, true, true]),
            (frame + head + run / 2, [false, true, false]),
            (frame + head + run + run / 2, [false, false, true]),
            (frame + head + 2 * run + run / 2, [false, false, false]),
        ];
        for (at, found_by) in places {
            let mut flipped = whole.clone();
            flipped[at] ^= 0x10;
            disk.open(&path).unwrap().write_at(0, &flipped).unwrap();
            let plan = plan(1);
            let counted = counts_of(&reader, &plan).map(drop);
            let read = [0, 1].map(|range| parts_of(&reader, &plan, range).map(drop));
            for (result, is_found) in [&counted, &read[0], &read[1]].into_iter().zip(found_by) {
                assert_eq!(result.is_err(), is_found, "byte {at}: {result:?}");
                let Err(error) = result else { continue };
                let BatchError::Damaged { key: damaged, place, damage } = error else { panic!("{error}") };
                assert_eq!((damaged, Some(**place)), (&key(1, 1, 1), reader.place(&key(1, 1, 1))));
                assert_eq!(damage.file, path.file_name().unwrap().to_str().unwrap());
                assert_eq!(damage.offset, frame as u64, "{damage}");
            }
            assert!(matches!(reader.read(&key(1, 1, 1)), Err(BatchError::Damaged { .. })), "byte {at}");
            let copy = FaultyDisk::default();
            copy.create_dir(Path::new(DIR)).unwrap();
            copy.create(&path).unwrap().write_at(0, &flipped).unwrap();
            let (_, found) = open(&copy).unwrap();
            assert_eq!((found.damages.len(), keys(&found).len()), (1, 0), "byte {at}");
        }
        disk.open(&path).unwrap().write_at(0, &whole).unwrap();
        assert!([0, 1].iter().all(|range| parts_of(&reader, &plan(1), *range).is_ok()));
        // Of a frame the disk may give less than there was.
        disk.open(&path).unwrap().set_len((frame + head) as u64).unwrap();
        assert!(counts_of(&reader, &plan(1)).is_ok());
        assert!(matches!(parts_of(&reader, &plan(1), 0), Err(BatchError::Damaged { .. })));
        disk.open(&path).unwrap().set_len((frame + head - 1) as u64).unwrap();
        assert!(matches!(counts_of(&reader, &plan(1)), Err(BatchError::Damaged { .. })));
    }
}

#[test]
fn what_lies_in_another_place_or_under_another_name_is_damage() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open(&disk).unwrap();
    let batches = [1, 2].map(|number| batch_of(number, &[(1, 1, 1, vec![100])]));
    store.store(&batches).unwrap();
    let (reader, path) = (store.reader(), Path::new(DIR).join(&files(&disk)[0]));
    let mut bytes = disk.read(&path).unwrap();
    let [first, second] = [1, 2].map(|number| reader.place(&key(1, 1, number)).unwrap());
    assert_eq!(first.bytes, second.bytes);
    bytes.copy_within(first.offset as usize..second.offset as usize, second.offset as usize);
    disk.open(&path).unwrap().write_at(0, &bytes).unwrap();
    assert!(reader.head(&key(1, 1, 1)).is_ok());
    let Err(BatchError::Damaged { damage, .. }) = reader.head(&key(1, 1, 2)) else { panic!("it is another") };
    assert_eq!((damage.offset, damage.what.contains("another record")), (second.offset, true), "{damage}");
}
