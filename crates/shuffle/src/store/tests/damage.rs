//! Flipped bits and unfinished writes: each is told for what it is.

use super::{DIR, batch, files, key, keys, open};
use crate::store::{BatchError, Place, StoreError};
use partage_journal::faulty_disk::FaultyDisk;
use partage_journal::frame::{self, FILE_HEADER, Found};
use partage_journal::{BLOCK, Disk};
use partage_service::shuffle::record::BatchKey;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Three groups: of one batch, of two, and of two.
const GROUPS: [&[u64]; 3] = [&[1], &[2, 3], &[4, 5]];

fn all() -> BTreeSet<BatchKey> {
    (1..=5).map(|number| key(1, 1, number)).collect()
}

/// A disk with these groups in one file; its path, its bytes, and where the frame of each batch lies.
fn written() -> (FaultyDisk, PathBuf, Vec<u8>, Vec<Range<usize>>) {
    let disk = FaultyDisk::default();
    let (mut store, _) = open(&disk).unwrap();
    for group in GROUPS {
        let group: Vec<_> = group.iter().map(|number| batch(1, 1, *number, 150)).collect();
        store.store(&group).unwrap();
    }
    let path = Path::new(DIR).join(&files(&disk)[0]);
    let bytes = disk.read(&path).unwrap();
    let frame = |number| {
        let place = store.reader().place(&key(1, 1, number)).unwrap();
        place.offset as usize..place.offset as usize + place.bytes
    };
    let frames: Vec<Range<usize>> = (1..=5).map(frame).collect();
    drop(store);
    (disk, path, bytes, frames)
}

#[test]
fn each_group_is_whole_blocks_and_its_frames_follow_one_another() {
    let (_, _, bytes, frames) = written();
    let begins: Vec<usize> = frames.iter().map(|frame| frame.start).collect();
    assert_eq!(begins, [BLOCK, 2 * BLOCK, frames[1].end, 3 * BLOCK, frames[3].end]);
    assert_eq!(bytes.len(), 4 * BLOCK);
}

fn put(disk: &FaultyDisk, path: &Path, bytes: &[u8]) {
    // A file that is made anew keeps the former content in memory.
    let mut file = disk.open(path).or_else(|_| disk.create(path)).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    file.write_at(0, bytes).unwrap();
    file.sync().unwrap();
}

#[test]
fn every_flipped_bit_is_damage_and_costs_one_batch_at_most() {
    let (disk, path, bytes, frames) = written();
    for at in 0..bytes.len() {
        let is_written = at < FILE_HEADER || frames.iter().any(|frame| frame.contains(&at));
        // Of the many bytes that are zeros one bit each.
        for bit in (0..8).filter(|bit| is_written || at % 8 == *bit) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            put(&disk, &path, &flipped);
            let (_, found) = open(&disk).unwrap();
            let what = format!("bit {bit} of byte {at}");
            assert_eq!((found.damages.len(), found.unfinished), (1, 0), "{what}: {:?}", found.damages);
            let damage = &found.damages[0];
            assert_eq!(damage.file, path.file_name().unwrap().to_str().unwrap(), "{what}");
            assert!(damage.offset <= at as u64, "{what}: {damage}");
            let left = keys(&found);
            let lost = all().difference(&left).count();
            assert_eq!(lost, usize::from(is_written && at >= FILE_HEADER), "{what}: {left:?}");
        }
    }
}

#[test]
fn a_bit_that_flips_while_the_process_runs_is_found_by_the_read() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open(&disk).unwrap();
    store.store(&[batch(1, 1, 1, 150), batch(1, 1, 2, 150)]).unwrap();
    let path = Path::new(DIR).join(&files(&disk)[0]);
    let bytes = disk.read(&path).unwrap();
    let place = store.reader().place(&key(1, 1, 2)).unwrap();
    let at = place.offset as usize + place.bytes - 100;
    disk.open(&path).unwrap().write_at(at as u64, &[bytes[at] ^ 4]).unwrap();
    let reader = store.reader();
    assert!(reader.read(&key(1, 1, 1)).is_ok());
    let Err(BatchError::Damaged { key: damaged, place, damage }) = reader.read(&key(1, 1, 2)) else {
        panic!("the damage was not found");
    };
    assert_eq!((damaged, damage.file.as_str()), (key(1, 1, 2), path.file_name().unwrap().to_str().unwrap()));
    // It is fetched from another node, and stored again.
    store.forget(&key(1, 1, 2), *place).unwrap();
    assert!(matches!(reader.read(&key(1, 1, 2)), Err(BatchError::Absent(_))));
    store.store(&[batch(1, 1, 2, 150)]).unwrap();
    assert_eq!(reader.read(&key(1, 1, 2)).unwrap(), batch(1, 1, 2, 150));
    // Another read had found the same damage, and its report comes late.
    store.forget(&key(1, 1, 2), *place).unwrap();
    assert_eq!(reader.read(&key(1, 1, 2)).unwrap(), batch(1, 1, 2, 150));
    drop(store);
    let (store, found) = open(&disk).unwrap();
    assert_eq!((keys(&found).len(), found.damages.len()), (2, 1));
    assert!(store.reader().read(&key(1, 1, 2)).is_ok());
}

#[test]
fn batches_of_another_version_are_no_damage_and_are_kept() {
    let (disk, path, bytes, _) = written();
    // The first frame again, with another version before the same batch.
    let Ok(Found::Record { payload, number, .. }) = frame::find(&bytes, 1, BLOCK, 1) else {
        panic!("the first frame is whole");
    };
    assert_eq!(payload[8], 2);
    let name = path.display().to_string();
    for (version, refused) in [(1, StoreError::Earlier(name.clone())), (3, StoreError::Later(name))] {
        let mut payload = payload.clone();
        payload[8] = version;
        let mut other = bytes.clone();
        let changed = frame::encode(1, number, payload);
        other[BLOCK..BLOCK + changed.len()].copy_from_slice(&changed);
        put(&disk, &path, &other);
        assert_eq!(open(&disk).err(), Some(refused));
        assert_eq!(disk.read(&path).unwrap(), other);
    }
    // The version that has written it goes on with all of it.
    put(&disk, &path, &bytes);
    assert_eq!(keys(&open(&disk).unwrap().1), all());
}

/// Files of form 1 have their first record right behind the header, where files of form 2 have zeros up to the next block.
#[test]
fn a_file_of_form_1_is_refused_and_kept_also_if_it_is_smaller_than_a_block() {
    let (disk, path, bytes, _) = written();
    let Ok(Found::Record { mut payload, number, .. }) = frame::find(&bytes, 1, BLOCK, 1) else {
        panic!("the first frame is whole");
    };
    payload[8] = 1;
    let earlier = [&bytes[..frame::FILE_HEADER], &frame::encode(1, number, payload)[..]].concat();
    assert!(earlier.len() < BLOCK);
    for length in [earlier.len(), BLOCK] {
        let mut file = earlier.clone();
        file.resize(length, 0);
        put(&disk, &path, &file);
        assert_eq!(open(&disk).err(), Some(StoreError::Earlier(path.display().to_string())));
        assert_eq!(disk.read(&path).unwrap(), file);
    }
}

#[test]
fn an_unfinished_group_is_cut_and_the_store_goes_on() {
    let (disk, path, bytes, frames) = written();
    // Of what lies behind the last frame few lengths are enough.
    for length in (frames[3].start..frames[4].end + 40).chain([bytes.len() - 1, bytes.len()]) {
        put(&disk, &path, &bytes[..length]);
        let (mut store, found) = open(&disk).unwrap();
        let what = format!("{length} of {} bytes", bytes.len());
        assert_eq!(found.damages, [], "{what}");
        let left = keys(&found);
        let expected = frames.iter().filter(|frame| frame.end <= length).count() as u64;
        assert_eq!(left, (1..=expected).map(|number| key(1, 1, number)).collect(), "{what}");
        let is_inside = frames.iter().any(|frame| frame.start < length && length < frame.end);
        assert_eq!(found.unfinished, usize::from(is_inside), "{what}");
        store.store(&[batch(1, 1, 9, 150)]).unwrap();
        drop(store);
        let (_, found) = open(&disk).unwrap();
        assert_eq!(
            (keys(&found).len(), found.damages, found.unfinished),
            (left.len() + 1, vec![], 0),
            "{what}"
        );
        for name in files(&disk) {
            disk.remove(&Path::new(DIR).join(name)).unwrap();
        }
    }
}

#[test]
fn a_later_frame_of_an_unfinished_group_may_be_whole_and_one_that_was_synced_may_not_lack() {
    let (disk, path, bytes, frames) = written();
    // The first frame of the last group never came to the disk, the second one did.
    let mut torn = bytes.clone();
    torn[frames[3].clone()].fill(0);
    put(&disk, &path, &torn);
    let (_, found) = open(&disk).unwrap();
    assert_eq!((found.damages.clone(), found.unfinished), (vec![], 1));
    assert_eq!(keys(&found), (1..=3).map(|number| key(1, 1, number)).collect());
    // The same in a group that a later one says was synced.
    let mut lost = bytes.clone();
    lost[frames[1].clone()].fill(0);
    put(&disk, &path, &lost);
    let (_, found) = open(&disk).unwrap();
    assert_eq!((found.damages.len(), found.unfinished), (1, 0), "{:?}", found.damages);
    assert_eq!(found.damages[0].offset, frames[1].start as u64);
    assert_eq!(keys(&found), [1, 3, 4, 5].into_iter().map(|number| key(1, 1, number)).collect());
}

#[test]
fn a_last_frame_of_a_group_that_never_came_is_the_end_and_one_that_was_synced_is_damage() {
    let (disk, path, bytes, frames) = written();
    // The second frame of a group is gone, and zeros are there as behind a group that ends.
    for (gone, damages, unfinished) in [(4, 0, 0), (2, 1, 0)] {
        let mut without = bytes.clone();
        without[frames[gone].clone()].fill(0);
        put(&disk, &path, &without);
        let (_, found) = open(&disk).unwrap();
        assert_eq!((found.damages.len(), found.unfinished), (damages, unfinished), "{:?}", found.damages);
        assert!(found.damages.iter().all(|damage| damage.offset == frames[gone].start as u64));
        let left = (1..=5).filter(|number| *number != gone as u64 + 1);
        assert_eq!(keys(&found), left.map(|number| key(1, 1, number)).collect());
    }
}

#[test]
fn a_sector_of_a_large_group_that_never_came_is_unfinished_and_one_that_was_synced_costs_its_batch() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open(&disk).unwrap();
    // Frames of several blocks, so that a block may begin anywhere in them.
    for group in [[1, 2], [3, 4], [5, 6]] {
        store.store(&group.map(|number| batch(1, 1, number, 5_000))).unwrap();
    }
    let place = |number| store.reader().place(&key(1, 1, number)).unwrap();
    let places: Vec<_> = (1..=6).map(place).collect();
    drop(store);
    let path = Path::new(DIR).join(&files(&disk)[0]);
    let bytes = disk.read(&path).unwrap();
    for sector in (BLOCK..bytes.len()).step_by(512) {
        let mut without = bytes.clone();
        without[sector..sector + 512].fill(0);
        put(&disk, &path, &without);
        let (_, found) = open(&disk).unwrap();
        let hit = |place: &&Place| {
            let (begin, end) = (place.offset as usize, place.offset as usize + place.bytes);
            begin < sector + 512 && sector < end
        };
        let hit: BTreeSet<u64> = places.iter().filter(hit).map(|place| place.number).collect();
        let what = format!("the sector at {sector}: {:?}", found.damages);
        // What follows on an unfinished frame is not acknowledged either.
        let is_synced = hit.first().is_none_or(|first| *first <= 4);
        let left = (1..=6).filter(|number| match is_synced {
            true => !hit.contains(number),
            false => hit.first().is_none_or(|first| number < first),
        });
        assert_eq!(keys(&found), left.map(|number| key(1, 1, number)).collect(), "{what}");
        let damages = if is_synced { !hit.is_empty() } else { false };
        assert_eq!(
            (!found.damages.is_empty(), found.unfinished),
            (damages, usize::from(!is_synced)),
            "{what}"
        );
    }
}
