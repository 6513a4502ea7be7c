//! A real disk whose power goes: what was not synced is not there. It can be full, too, or only the process ends.

use partage_journal::{Disk, DiskFile, RealDisk};
use std::any::Any;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Default)]
struct State {
    is_dead: AtomicBool,
    is_full: AtomicBool,
    reads_panic: AtomicBool,
    outlives: AtomicBool,
}

/// The disk; a copy is the same disk.
#[derive(Debug, Clone, Default)]
pub struct PowerDisk(Arc<State>);

impl PowerDisk {
    /// From now on nothing comes to the disk any more.
    pub fn kill(&self) {
        self.0.is_dead.store(true, Ordering::Release);
    }

    /// The disk of the next process on the machine.
    pub fn of_next_process(&self) -> PowerDisk {
        let next = PowerDisk::default();
        next.0.outlives.store(self.0.outlives.load(Ordering::Acquire), Ordering::Release);
        next
    }

    /// No file can grow, or files can grow again.
    pub fn set_full(&self, is_full: bool) {
        self.0.is_full.store(is_full, Ordering::Release);
    }

    /// From now on what is written to files is there when the process ends, this one and each later one: the machine lives on.
    pub fn outlives_the_process(&self) {
        self.0.outlives.store(true, Ordering::Release);
    }

    /// From now on each read of a part of a file panics.
    pub fn panic_at_reads(&self) {
        self.0.reads_panic.store(true, Ordering::Release);
    }

    fn check(&self) -> io::Result<()> {
        if self.0.is_dead.load(Ordering::Acquire) { Err(io::Error::other("no power")) } else { Ok(()) }
    }

    fn file(&self, file: Box<dyn DiskFile>, length: u64) -> Box<dyn DiskFile> {
        Box::new(PowerFile { disk: self.clone(), file, length, pending: Vec::new() })
    }
}

enum Write {
    At(u64, Vec<u8>),
    Length(u64),
}

struct PowerFile {
    disk: PowerDisk,
    file: Box<dyn DiskFile>,
    length: u64,
    pending: Vec<Write>,
}

impl std::fmt::Debug for PowerFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PowerFile").field("file", &self.file).finish_non_exhaustive()
    }
}

impl DiskFile for PowerFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.check()?;
        let end = offset + bytes.len() as u64;
        if end > self.length && self.disk.0.is_full.load(Ordering::Acquire) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.length = self.length.max(end);
        if self.pending.is_empty() && self.disk.0.outlives.load(Ordering::Acquire) {
            return self.file.write_at(offset, bytes);
        }
        self.pending.push(Write::At(offset, bytes.to_vec()));
        Ok(())
    }

    fn set_len(&mut self, bytes: u64) -> io::Result<()> {
        self.disk.check()?;
        self.length = self.length.min(bytes);
        self.pending.push(Write::Length(bytes));
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.check()?;
        for write in self.pending.drain(..) {
            match write {
                Write::At(offset, bytes) => self.file.write_at(offset, &bytes)?,
                Write::Length(bytes) => self.file.set_len(bytes)?,
            }
        }
        Ok(())
    }
}

impl Disk for PowerDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealDisk.list(dir)
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        RealDisk.read(path)
    }
    fn read_at(&self, path: &Path, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        assert!(!self.0.reads_panic.load(Ordering::Acquire), "the test wants this read to panic");
        RealDisk.read_at(path, offset, bytes)
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.check()?;
        let length = std::fs::metadata(path)?.len();
        Ok(self.file(RealDisk.open(path)?, length))
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.check()?;
        Ok(self.file(RealDisk.create(path)?, 0))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check()?;
        RealDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.check()?;
        RealDisk.remove(path)
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        self.check()
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send>>> {
        RealDisk.lock(path)
    }
}
