//! What is stored is there after every kind of end, and what is dropped gives its room back.

mod damage;
mod faults;
mod memory;
mod parts;
mod room;

use super::{BatchError, Found, Store, StoreError, StoreSettings, Written, is_locked};
use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_journal::faulty_disk::FaultyDisk;
use partage_journal::{Disk, RealDisk};
use partage_service::shuffle::bounds::Tag;
use partage_service::shuffle::record::{Batch, BatchKey, Body, Segment, Stream};
use partage_service::shuffle::records::PackedRecords;
use partage_service::shuffle::{AttemptKey, BufferId, Durability, PoolSlot, RangeId, ShuffleId, Writer};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

const DIR: &str = "/batches";

pub(crate) fn buffer() -> BufferId {
    BufferId { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) }
}

pub(crate) fn key(shuffle: u128, slot: u32, number: u64) -> BatchKey {
    let writer = Writer::Buffer(buffer());
    BatchKey { stream: Stream { shuffle: ShuffleId(shuffle), slot: PoolSlot(slot), writer }, number }
}

/// A batch of so many bytes or a few more; the same name has the same content.
pub(crate) fn batch(shuffle: u128, slot: u32, number: u64, bytes: usize) -> Arc<Batch> {
    let key = key(shuffle, slot, number);
    let value: Vec<u8> = (0..bytes).map(|at| (at as u64 * 31 + number) as u8).collect();
    let records = PackedRecords::pack([(&number.to_be_bytes()[..], &value[..])]);
    let attempt = AttemptKey { buffer: buffer(), number };
    let segment = Segment { attempt, partition: 0, frame: 1, records };
    let tag = Tag { version: 0, range: RangeId(1) };
    let body = Body::Records([(tag, vec![segment])].into());
    Arc::new(Batch { key, durability: Durability::Disk, body })
}

/// The same of a shuffle of durability `memory`.
fn unsynced(shuffle: u128, slot: u32, number: u64, bytes: usize) -> Arc<Batch> {
    let Batch { key, body, .. } = batch(shuffle, slot, number, bytes).as_ref().clone();
    Arc::new(Batch { key, durability: Durability::Memory, body })
}

pub(crate) fn open(disk: &FaultyDisk) -> Result<(Store, Found), StoreError> {
    open_with(disk, 1 << 20)
}

fn open_with(disk: &FaultyDisk, file_bytes: u64) -> Result<(Store, Found), StoreError> {
    Store::open(Arc::new(disk.clone()), Path::new(DIR), StoreSettings { file_bytes, open_files: 2 })
}

fn keys(found: &Found) -> BTreeSet<BatchKey> {
    found.batches.iter().map(|(key, _)| key.clone()).collect()
}

fn files(disk: &FaultyDisk) -> Vec<String> {
    let names = disk.list(Path::new(DIR)).unwrap();
    names.into_iter().filter(|name| super::file::parse(name).is_some()).collect()
}

#[test]
fn what_was_stored_is_read_and_found_at_the_next_start() {
    let disk = FaultyDisk::default();
    let (mut store, found) = open_with(&disk, 2_000).unwrap();
    assert_eq!(found, Found::default());
    let all: Vec<Arc<Batch>> = (1..=20).map(|number| batch(u128::from(number % 3), 1, number, 300)).collect();
    for group in all.chunks(4) {
        let written = store.store(group).unwrap();
        assert_eq!((written.stored.len(), written.refused.len()), (4, 0));
    }
    assert!(files(&disk).len() > 3, "files are changed when they are large: {:?}", files(&disk));
    let reader = store.reader();
    assert!(all.iter().all(|batch| reader.read(&batch.key).unwrap() == *batch));
    assert_eq!(reader.read(&key(1, 1, 99)), Err(BatchError::Absent(key(1, 1, 99))));
    drop(store);
    let (store, found) = open_with(&disk, 2_000).unwrap();
    assert_eq!(keys(&found), all.iter().map(|batch| batch.key.clone()).collect());
    assert_eq!((found.damages, found.unfinished), (vec![], 0));
    assert!(all.iter().all(|batch| store.reader().read(&batch.key).unwrap() == *batch));
}

#[test]
fn x8_all_batches_that_are_wanted_are_read_or_none_counts() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open(&disk).unwrap();
    let all: Vec<Arc<Batch>> = (1..=5).map(|number| batch(1, 1, number, 300)).collect();
    store.store(&all).unwrap();
    let (reader, writer) = (store.reader(), Writer::Buffer(buffer()));
    let read = |after, upto| {
        let mut numbers = Vec::new();
        let wanted = [(&writer, after, upto)];
        let read =
            reader.read_all((ShuffleId(1), PoolSlot(1)), wanted, |batch| numbers.push(batch.key.number));
        read.map(|()| numbers)
    };
    assert_eq!(read(0, 5), Ok(vec![1, 2, 3, 4, 5]));
    assert_eq!(read(2, 4), Ok(vec![3, 4]));
    assert_eq!(read(4, 4), Ok(vec![]));
    assert_eq!(read(0, 6), Err(BatchError::Absent(key(1, 1, 6))));
    // It goes between the question whether all are here and the reading.
    let place = reader.place(&key(1, 1, 3)).unwrap();
    store.forget(&key(1, 1, 3), place).unwrap();
    assert_eq!(read(0, 5), Err(BatchError::Absent(key(1, 1, 3))));
    assert_eq!(read(3, 5), Ok(vec![4, 5]));
}

#[test]
fn a_shuffle_that_is_dropped_leaves_no_file() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open(&disk).unwrap();
    store.store(&[batch(1, 1, 1, 100), batch(2, 1, 1, 100)]).unwrap();
    store.drop_shuffle(ShuffleId(1)).unwrap();
    assert_eq!(files(&disk).len(), 1);
    assert!(matches!(store.reader().read(&key(1, 1, 1)), Err(BatchError::Absent(_))));
    assert!(store.reader().read(&key(2, 1, 1)).is_ok());
    store.drop_shuffle(ShuffleId(2)).unwrap();
    assert_eq!((files(&disk), store.bytes()), (vec![], 0));
    drop(store);
    assert_eq!(open(&disk).unwrap().1, Found::default());
}

#[test]
fn few_files_are_open_however_many_shuffles_live() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open(&disk).unwrap();
    let all: Vec<Arc<Batch>> =
        (1..=3).flat_map(|number| (1..=40).map(move |shuffle| batch(shuffle, 1, number, 80))).collect();
    for batch in &all {
        assert_eq!(store.store(&[Arc::clone(batch)]).unwrap().stored.len(), 1);
        assert!(store.heads.values().filter(|head| head.is_open()).count() <= 2);
        assert!(store.open.len() <= 2);
    }
    assert_eq!(files(&disk).len(), 40, "a file that was closed is added to again");
    assert!(all.iter().all(|batch| store.reader().read(&batch.key).unwrap() == *batch));
    for shuffle in 1..=40 {
        store.drop_shuffle(ShuffleId(shuffle)).unwrap();
    }
    assert!(store.heads.is_empty() && files(&disk).is_empty());
}

#[test]
fn room_of_slots_that_are_dropped_comes_back() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open_with(&disk, 20_000).unwrap();
    for number in 1..=20 {
        let group: Vec<Arc<Batch>> = (1..=4).map(|slot| batch(1, slot, number, 200)).collect();
        store.store(&group).unwrap();
    }
    let before = store.bytes();
    for slot in [1, 2, 3] {
        assert_eq!(store.drop_slot(PoolSlot(slot)), Ok(vec![]));
    }
    // What is left is a quarter; a file of which half is wanted stays, and so does the one that is added to.
    assert!(store.bytes() < before * 6 / 10, "{} of {before} bytes", store.bytes());
    for number in 1..=20 {
        assert_eq!(store.reader().read(&key(1, 4, number)).unwrap(), batch(1, 4, number, 200));
        assert!(store.reader().read(&key(1, 2, number)).is_err());
    }
    drop(store);
    let (mut store, found) = open_with(&disk, 20_000).unwrap();
    assert!((1..=20).all(|number| keys(&found).contains(&key(1, 4, number))));
    store.drop_slot(PoolSlot(4)).unwrap();
    store.drop_shuffle(ShuffleId(1)).unwrap();
    assert_eq!(files(&disk), Vec::<String>::new());
}

#[test]
fn two_processes_do_not_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let opened = |settings| Store::open(Arc::new(RealDisk), dir.path(), settings);
    let (first, _) = opened(StoreSettings::default()).unwrap();
    assert!(matches!(opened(StoreSettings::default()), Err(StoreError::Locked(_))));
    assert_eq!(is_locked(&RealDisk, dir.path()), Ok(true));
    drop(first);
    assert_eq!(is_locked(&RealDisk, dir.path()), Ok(false));
    assert_eq!(is_locked(&RealDisk, &dir.path().join("none")), Ok(false));
    assert!(opened(StoreSettings::default()).is_ok());
}

#[test]
fn files_are_real_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(Arc::new(RealDisk), dir.path(), StoreSettings::default()).unwrap();
    let all: Vec<Arc<Batch>> = (1..=5).map(|number| batch(7, 1, number, 3_000)).collect();
    store.store(&all).unwrap();
    assert!(all.iter().all(|batch| store.reader().read(&batch.key).unwrap() == *batch));
    drop(store);
    let (mut store, found) = Store::open(Arc::new(RealDisk), dir.path(), StoreSettings::default()).unwrap();
    assert_eq!(found.batches.len(), 5);
    store.drop_shuffle(ShuffleId(7)).unwrap();
    let left: Vec<String> = RealDisk.list(dir.path()).unwrap();
    assert_eq!(left, ["lock"]);
}

#[test]
fn r1_a_shuffle_with_little_in_a_group_hears_of_it_before_more_of_others_is_written() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open(&disk).unwrap();
    store.store(&[batch(1, 1, 1, 50), batch(2, 1, 1, 50)]).unwrap();
    let group = [batch(1, 1, 2, 50_000), batch(2, 1, 2, 50), batch(1, 1, 3, 50_000), batch(3, 1, 1, 10)];
    let (mut said, reader) = (Vec::new(), store.reader());
    let say = |written: Written| {
        let there = group.iter().filter(|batch| reader.read(&batch.key).is_ok()).count();
        said.push((written.stored, there));
    };
    store.store_each(&group, say).unwrap();
    let expected = [(vec![key(2, 1, 2), key(3, 1, 1)], 2), (vec![key(1, 1, 2), key(1, 1, 3)], 4)];
    assert_eq!(said, expected);
}
