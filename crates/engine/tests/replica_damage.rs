//! Damaged files of a stored replica: what is read is right, or an error says where the damage is.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests may stop at the first surprise, and say what they counted"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use partage_core::base::id::Epoch;
use partage_engine::replica::{Change, Direction, Engine, Error, Snapshot, Store, TreeEngine};
use partage_service::table::replication::LogPosition;
use tempfile::TempDir;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn temporary() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// A store with runs in two levels, separated values, and deletions.
fn build(folder: &Path) -> Map {
    let store = TreeEngine::default().open(folder).unwrap();
    let mut map = Map::new();
    for run in 0..7u8 {
        for key in 0..12u8 {
            let key = [b'k', (key * 5 + run) % 30];
            let value = (key[1] % 4 != run % 4).then(|| vec![run; if key[1] == 9 { 4_200 } else { 12 }]);
            let before = store.applied();
            let after = LogPosition { epoch: Epoch(1), index: before.index + 1 };
            store.apply(before, after, &[Change { key: &key, value: value.as_deref() }]).unwrap();
            match value {
                Some(value) => map.insert(key.to_vec(), value),
                None => map.remove(&key[..]),
            };
        }
        store.flush().unwrap();
        if run == 4 {
            while store.compact().unwrap() {}
        }
    }
    let size = store.size();
    assert!(size.runs > 1 && size.disk_rows > 30, "{size:?}");
    map
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for inner in ["", "tables", "blobs"] {
        let entries = fs::read_dir(folder.join(inner)).unwrap().map(|entry| entry.unwrap().path());
        found.extend(entries.filter(|path| path.is_file()));
    }
    found.sort();
    found
}

/// What came of damage to one file.
#[derive(Debug, Default)]
struct Outcomes {
    /// Everything was read and was right.
    unnoticed: usize,
    /// The first error names the file.
    named: usize,
    /// The first error names another file, or only the folder.
    elsewhere: usize,
    /// The first error is a panic of the library.
    panicked: usize,
    /// Not read, but seen by `verify`.
    verified: usize,
}

/// Reads everything in all ways. What is not refused must be right.
fn read(folder: &Path, map: &Map) -> Vec<Error> {
    let mut errors = Vec::new();
    let store = match TreeEngine::default().open(folder) {
        Ok(store) => store,
        Err(error) => return vec![error],
    };
    if store.applied().index != 84 {
        panic!("the store says {}", store.applied());
    }
    for key in 0..31u8 {
        match store.get(&[b'k', key]) {
            Ok(value) => assert_eq!(value.as_deref(), map.get(&[b'k', key][..]).map(|value| &value[..])),
            Err(error) => errors.push(error),
        }
    }
    let snapshot = store.snapshot().unwrap();
    for direction in [Direction::Forward, Direction::Backward] {
        let mut found = Vec::new();
        let mut whole = true;
        for row in snapshot.range(None, None, direction) {
            match row {
                Ok(row) => found.push((row.key.to_vec(), row.value.to_vec())),
                Err(error) => {
                    errors.push(error);
                    whole = false;
                }
            }
        }
        let wanted: Vec<_> = map.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let begins = match direction {
            Direction::Forward => wanted.starts_with(&found),
            Direction::Backward => {
                found.reverse();
                wanted.ends_with(&found)
            }
        };
        assert!(begins && (!whole || found.len() == wanted.len()), "{direction:?}: wrong rows");
    }
    errors
}

/// Compacts what was damaged: the rows are then right, or refused.
fn compacted(folder: &Path, map: &Map) {
    let Ok(store) = TreeEngine::default().open(folder) else { return };
    while let Ok(true) = store.compact() {}
    drop(store);
    read(folder, map);
}

fn note(outcomes: &mut Outcomes, path: &Path, folder: &Path, map: &Map) {
    let errors = read(folder, map);
    match errors.first() {
        None => match TreeEngine::default().open(folder).unwrap().verify() {
            Ok(()) => outcomes.unnoticed += 1,
            Err(Error::Damaged { path: named, .. }) => {
                assert_eq!(named, path);
                outcomes.verified += 1;
            }
            Err(other) => panic!("{other}"),
        },
        Some(Error::Damaged { path: named, .. }) if named == path => outcomes.named += 1,
        Some(Error::Damaged { .. } | Error::Io { .. }) => outcomes.elsewhere += 1,
        Some(Error::Panicked { .. }) => outcomes.panicked += 1,
        Some(other) => panic!("{other}"),
    }
}

/// Flips one bit in every `step`th byte of each file.
fn flip(step: usize, with_compaction: usize) {
    // The library says on standard error where it panicked; this engine catches it.
    let disk = temporary();
    let folder = disk.path().join("store");
    let map = build(&folder);
    assert_eq!(read(&folder, &map).len(), 0);
    let scratch = disk.path().join("scratch");
    let mut flips = 0;
    for path in files(&folder) {
        let mut outcomes = Outcomes::default();
        let bytes = fs::read(&path).unwrap();
        let name = path.strip_prefix(&folder).unwrap();
        for at in (0..bytes.len()).step_by(step) {
            copy(&folder, &scratch);
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(scratch.join(name), &damaged).unwrap();
            note(&mut outcomes, &scratch.join(name), &scratch, &map);
            if flips % with_compaction == 0 {
                compacted(&scratch, &map);
            }
            fs::remove_dir_all(&scratch).unwrap();
            flips += 1;
        }
        println!("{}: {} bytes, {outcomes:?}", name.display(), bytes.len());
        assert_eq!(outcomes.unnoticed, 0, "{}: damage that `verify` does not see", name.display());
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn flipped_bits_never_give_a_wrong_row() {
    flip(37, 7);
}

#[test]
#[ignore = "takes minutes: ./test long"]
fn every_flipped_byte_never_gives_a_wrong_row() {
    flip(1, 3);
}

#[test]
fn missing_and_cut_files_never_give_a_wrong_row() {
    let disk = temporary();
    let folder = disk.path().join("store");
    let map = build(&folder);
    let scratch = disk.path().join("scratch");
    for path in files(&folder) {
        let name = path.strip_prefix(&folder).unwrap();
        let bytes = fs::read(&path).unwrap();
        for cut in [None, Some(0), Some(1), Some(bytes.len() / 2), Some(bytes.len() - 1)] {
            copy(&folder, &scratch);
            match cut {
                None => fs::remove_file(scratch.join(name)).unwrap(),
                Some(length) => fs::write(scratch.join(name), &bytes[..length]).unwrap(),
            }
            let errors = read(&scratch, &map);
            assert!(!errors.is_empty(), "{} cut to {cut:?}", name.display());
            fs::remove_dir_all(&scratch).unwrap();
        }
    }
}
