//! Batches of durability `memory`: no sync before the answer, and what is there after each kind of end.

use super::{DIR, batch, files, key, keys, open_with, unsynced};
use crate::store::{Store, StoreSettings};
use partage_journal::faulty_disk::{Fault, FaultyDisk};
use partage_journal::{BLOCK, Disk, DiskFile};
use partage_service::shuffle::record::{Batch, BatchKey};
use partage_service::shuffle::{PoolSlot, ShuffleId};
use std::any::Any;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

fn names(batches: &[Arc<Batch>]) -> BTreeSet<BatchKey> {
    batches.iter().map(|batch| batch.key.clone()).collect()
}

fn write(store: &mut Store, batches: &[Arc<Batch>]) {
    for group in batches.chunks(3) {
        let written = store.store(group).unwrap();
        assert_eq!((written.stored.len(), written.refused.len()), (group.len(), 0));
    }
}

#[test]
fn what_was_written_outlives_the_process() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open_with(&disk, 2_000).unwrap();
    let all: Vec<Arc<Batch>> = (1..=20).map(|number| unsynced(1, 1, number, 300)).collect();
    write(&mut store, &all);
    assert!(files(&disk).len() > 2, "{:?}", files(&disk));
    disk.kill();
    let (store, found) = open_with(&disk, 2_000).unwrap();
    assert_eq!(keys(&found), names(&all));
    assert_eq!((found.damages, found.unfinished), (vec![], 0));
    assert!(all.iter().all(|batch| store.reader().read(&batch.key).unwrap() == *batch));
}

#[test]
fn no_sync_is_waited_for_unless_a_batch_is_to_be_on_disk() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open_with(&disk, 1 << 20).unwrap();
    // The first sync fails.
    disk.arm(0, Fault::SyncFails);
    write(&mut store, &[unsynced(1, 1, 1, 50), unsynced(1, 1, 2, 50)]);
    assert!(!disk.fired());
    assert!(store.store(&[unsynced(1, 1, 3, 50), batch(2, 1, 1, 50)]).is_err());
    assert!(disk.fired());
}

#[test]
fn power_that_goes_takes_only_what_was_not_synced_and_nothing_of_it_is_taken_for_a_batch() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 1..200_u64 {
        let disk = FaultyDisk::default();
        let (mut store, _) = open_with(&disk, 40_000).unwrap();
        // The folder is synced before the file of the other shuffle is made.
        let other = batch(2, 1, 1, 300);
        write(&mut store, std::slice::from_ref(&other));
        let before: Vec<Arc<Batch>> = (1..=3).map(|number| unsynced(1, 1, number, 300)).collect();
        write(&mut store, &before);
        // A batch that is synced takes those before it along, as it lies in the same file.
        let synced = batch(1, 1, 4, 100);
        write(&mut store, std::slice::from_ref(&synced));
        let after: Vec<Arc<Batch>> = (5..=9).map(|number| unsynced(1, 1, number, 300)).collect();
        write(&mut store, &after);
        drop(store);
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        disk.lose_power(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.is_multiple_of(2)
        });
        let (mut store, found) = open_with(&disk, 40_000).unwrap();
        assert_eq!(found.damages, [], "seed {seed}");
        let there = keys(&found);
        assert!(names(&before).is_subset(&there), "seed {seed}: {there:?}");
        assert!(there.contains(&synced.key) && there.contains(&other.key), "seed {seed}: {there:?}");
        for batch in &after {
            let is_there = there.contains(&batch.key);
            let read = store.reader().read(&batch.key);
            assert_eq!(read.is_ok_and(|found| found == *batch), is_there, "seed {seed}: {:?}", batch.key);
            if is_there { kept += 1 } else { lost += 1 }
        }
        // It goes on with what is there.
        write(&mut store, &[unsynced(1, 1, 10, 50)]);
        assert!(store.reader().read(&key(1, 1, 10)).is_ok());
        store.drop_shuffle(ShuffleId(1)).unwrap();
    }
    assert!(lost > 100 && kept > 20, "{lost} lost, {kept} kept");
}

#[test]
fn what_a_start_has_found_is_there_after_the_power_was_gone() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open_with(&disk, 2_000).unwrap();
    let all: Vec<Arc<Batch>> = (1..=20).map(|number| unsynced(1, 1, number, 300)).collect();
    write(&mut store, &all);
    drop(store);
    // The process ends, and its machine after the next start.
    disk.kill();
    disk.arm(0, Fault::SyncFails);
    let failed = open_with(&disk, 2_000).map(|_| ()).unwrap_err();
    assert!(failed.to_string().contains("syncing `/batches/"), "{failed}");
    disk.kill();
    let (mut store, _) = open_with(&disk, 2_000).unwrap();
    write(&mut store, &all);
    drop(store);
    disk.kill();
    drop(open_with(&disk, 2_000).unwrap());
    disk.lose_power(|| false);
    let (store, found) = open_with(&disk, 2_000).unwrap();
    assert_eq!((keys(&found), found.damages), (names(&all), vec![]));
    assert!(all.iter().all(|batch| store.reader().read(&batch.key).unwrap() == *batch));
}

#[test]
fn what_is_written_anew_is_synced_as_it_may_have_been_on_the_disk_before() {
    let disk = FaultyDisk::default();
    let (mut store, _) = open_with(&disk, 2_000).unwrap();
    for number in 1..=20 {
        write(&mut store, &[unsynced(1, 1, number, 600), unsynced(1, 2, number, 50)]);
    }
    drop(store);
    // This start brings all of it to the disk.
    let (mut store, _) = open_with(&disk, 2_000).unwrap();
    let before = files(&disk);
    assert_eq!(store.drop_slot(PoolSlot(1)), Ok(vec![]));
    assert!(before.iter().any(|name| !files(&disk).contains(name)), "some file was written anew");
    drop(store);
    disk.lose_power(|| false);
    let (_, found) = open_with(&disk, 2_000).unwrap();
    assert!((1..=20).all(|number| keys(&found).contains(&key(1, 2, number))), "{:?}", keys(&found));
}

/// Says how files are opened, and checks that what goes past the page cache is whole blocks.
#[derive(Debug, Default)]
struct Watched {
    disk: FaultyDisk,
    opened: Mutex<Vec<&'static str>>,
}

#[derive(Debug)]
struct Blocks(Box<dyn DiskFile>);

impl DiskFile for Blocks {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(BLOCK as u64) && bytes.len().is_multiple_of(BLOCK));
        assert!(bytes.as_ptr().addr().is_multiple_of(BLOCK));
        self.0.write_at(offset, bytes)
    }

    fn set_len(&mut self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }
}

impl Watched {
    fn open_as(&self, how: &'static str) {
        self.opened.lock().unwrap().push(how);
    }

    fn opened(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.opened.lock().unwrap())
    }
}

impl Disk for Watched {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.disk.read(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.open_as("plain");
        self.disk.open(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.open_as("new, plain");
        self.disk.create(path)
    }

    fn create_past_cache(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.open_as("new, past the cache");
        Ok(Box::new(Blocks(self.disk.create(path)?)))
    }

    fn open_past_cache(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.open_as("past the cache");
        Ok(Box::new(Blocks(self.disk.open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send>>> {
        self.disk.lock(path)
    }
}

#[test]
fn only_what_is_synced_goes_past_the_page_cache() {
    let disk = Arc::new(Watched::default());
    let settings = StoreSettings { file_bytes: 1 << 20, open_files: 1 };
    let (mut store, _) = Store::open(Arc::clone(&disk) as Arc<dyn Disk>, Path::new(DIR), settings).unwrap();
    // Of the first groups it is not known yet that they need not be synced.
    write(&mut store, &[batch(1, 1, 1, 10_000), batch(1, 1, 2, 50)]);
    write(&mut store, &[batch(1, 1, 3, 50)]);
    assert_eq!(disk.opened(), ["new, past the cache"]);
    // The other file closes the first one.
    write(&mut store, &[unsynced(2, 1, 1, 50)]);
    write(&mut store, &[batch(1, 1, 4, 50)]);
    assert_eq!(disk.opened(), ["new, plain", "past the cache"]);
    write(&mut store, &[unsynced(1, 1, 5, 50)]);
    write(&mut store, &[batch(1, 1, 6, 50)]);
    assert_eq!(disk.opened(), ["plain"]);
    assert!((1..=6).all(|number| store.reader().read(&key(1, 1, number)).is_ok()));
    drop(store);
    let (_, found) = open_with(&disk.disk, 1 << 20).unwrap();
    assert_eq!((found.batches.len(), found.damages.len(), found.unfinished), (7, 0, 0));
}
