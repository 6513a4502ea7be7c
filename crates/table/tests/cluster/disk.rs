//! A disk that is full or stores nothing for as long as a test wants.

use partage_journal::faulty_disk::FaultyDisk;
use partage_journal::{Disk, DiskFile};
use std::any::Any;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// A switch by which a test makes writes to the disk wait.
#[derive(Debug, Default)]
pub struct Held {
    is_held: Mutex<bool>,
    changed: Condvar,
}

impl Held {
    /// From now on writes wait, or go on.
    pub fn set(&self, is_held: bool) {
        *self.is_held.lock().unwrap() = is_held;
        self.changed.notify_all();
    }
}

/// A disk that takes no more files while it is full, and stores nothing while it is held.
#[derive(Debug, Default, Clone)]
pub struct TroubledDisk {
    disk: FaultyDisk,
    /// Whether it is full.
    pub is_full: Arc<AtomicBool>,
    /// Whether it is held.
    pub held: Arc<Held>,
}

#[derive(Debug)]
struct HeldFile(Box<dyn DiskFile>, Arc<Held>);

impl DiskFile for HeldFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let held = self.1.is_held.lock().unwrap();
        drop(self.1.changed.wait_while(held, |held| *held).unwrap());
        self.0.write_at(offset, bytes)
    }
    fn set_len(&mut self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }
    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }
}

impl TroubledDisk {
    fn file(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(HeldFile(file, Arc::clone(&self.held)))
    }
}

impl Disk for TroubledDisk {
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
        Ok(self.file(self.disk.open(path)?))
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        if self.is_full.load(Ordering::Acquire) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(self.file(self.disk.create(path)?))
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
