//! A disk that is full, at each size of what is left: nothing is lost, nothing is left behind, and the store goes on.

use crate::harness::{Machine, Map, Small, all, at, compact, set};
use crate::small_disk::SmallDisk;
use partage_engine::replica::{Engine, Error, Store};
use std::path::Path;

/// Bytes that do not compress.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(next).collect()
}

/// Bytes of all files below a folder.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => bytes_in(&entry.path()),
            false => entry.metadata().unwrap().len(),
        })
        .sum()
}

#[test]
fn a_store_on_a_full_disk_keeps_all_and_flushes_and_compacts_when_there_is_room() {
    let machine = Small::new();
    let folder = machine.folder("small");
    std::fs::create_dir(&folder).unwrap();
    let Some(disk) = SmallDisk::new(&folder, 16) else { return };
    let folder = disk.path().join("store");
    let store = machine.engine().open(&folder).unwrap();
    let (mut rows, mut refused) = (Map::new(), 0);
    let mut put = |key: String, seed: u64, bytes: usize| {
        let value = noise(seed, bytes);
        set(&store, key.as_bytes(), &value);
        rows.insert(key.into_bytes(), value);
        rows.clone()
    };
    // From nothing on, in steps of a page: so each file that a flush or a compaction writes is once the one without room.
    for step in 0..40_u64 {
        for number in 0..6 {
            // Some of the values are so long that they have files of their own.
            put(format!("k{}", (step * 5 + number) % 50), step * 100 + number, 300 + 2_500 * number as usize);
        }
        let expected = put("last".to_owned(), step, 10);
        disk.fill(step * 4096);
        let before = bytes_in(&folder);
        for write in [|store: &_| Store::flush(store).map(drop), |store: &_| Store::compact(store).map(drop)]
        {
            match write(&store) {
                Ok(()) => {}
                Err(Error::NoRoom { .. }) => {
                    refused += 1;
                    assert!(write(&store).is_err(), "nothing has made room");
                }
                Err(error) => panic!("{error}"),
            }
            assert_eq!(all(&store), expected);
        }
        if step == 0 {
            assert_eq!(bytes_in(&folder), before, "nothing is left of what was refused");
        }
        disk.clear();
        assert_eq!(store.flush().unwrap(), store.applied());
        compact(&store);
        store.verify().unwrap();
        assert_eq!(all(&store), expected);
    }
    assert!(refused > 5, "the disk was full {refused} times");
    let (applied, expected) = (store.applied(), all(&store));
    drop(store);
    let again = machine.engine().open(&folder).unwrap();
    assert_eq!((again.flushed(), all(&again)), (applied, expected));
    assert_eq!(applied, at(applied.index));
}
