//! Making room takes little room.

use super::*;
use partage_journal::DiskFile;
use std::any::Any;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many files of batches there are at most when one more is made.
#[derive(Debug, Default)]
struct Crowded {
    disk: FaultyDisk,
    most: AtomicUsize,
}

impl Disk for Crowded {
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
        self.disk.open(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.most.fetch_max(files(&self.disk).len() + 1, Ordering::Relaxed);
        self.disk.create(path)
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

fn open_crowded() -> (Arc<Crowded>, Store) {
    let disk = Arc::new(Crowded::default());
    let settings = StoreSettings { file_bytes: 24_000, open_files: 2 };
    let (store, _) = Store::open(Arc::clone(&disk) as Arc<dyn Disk>, Path::new(DIR), settings).unwrap();
    (disk, store)
}

/// Some files of a shuffle, of each of which slot 2 has about one part in so many, and slot 1 the rest.
fn fill(store: &mut Store, part: u64) {
    for number in 1..=20 {
        let large = (1..part).map(|of| batch(1, 1, number * 100 + of, 1_300));
        let group: Vec<Arc<Batch>> = large.chain([batch(1, 2, number, 1_300)]).collect();
        store.store(&group).unwrap();
    }
}

#[test]
fn each_file_is_deleted_before_the_next_one_is_written_anew() {
    let (disk, mut store) = open_crowded();
    fill(&mut store, 16);
    let before = files(&disk.disk).len();
    assert!(before >= 20, "{before} files");
    disk.most.store(0, Ordering::Relaxed);
    store.drop_copies(ShuffleId(1), PoolSlot(1)).unwrap();
    let most = disk.most.load(Ordering::Relaxed);
    assert!(most > 0 && most <= before + 1, "{most} files at a time, of {before}");
    assert!(files(&disk.disk).len() < before / 2, "{:?}", files(&disk.disk));
    assert!((1..=20).all(|number| store.reader().read(&key(1, 2, number)).is_ok()));
}

#[test]
fn when_copies_go_a_file_of_which_a_fourth_is_wanted_is_not_written_anew() {
    let (disk, mut store) = open_crowded();
    fill(&mut store, 4);
    let (files_before, bytes) = (files(&disk.disk), store.bytes());
    store.drop_copies(ShuffleId(1), PoolSlot(1)).unwrap();
    assert_eq!((files(&disk.disk), store.bytes()), (files_before, bytes));
    // The other slot goes too: then nothing was copied in vain.
    store.drop_copies(ShuffleId(1), PoolSlot(2)).unwrap();
    assert_eq!(files(&disk.disk), Vec::<String>::new());
}
