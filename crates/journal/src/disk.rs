//! The few things that the journal asks of a file system, so that tests can break each of them.
//!
//! [`RealDisk`] is the system's. Tests put a disk in its place that writes short, fills up, fails to
//! sync, loses what was not synced, or flips bits.

use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread};
use std::any::Any;
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A file that is open for writing.
pub trait DiskFile: fmt::Debug + Send {
    /// Writes all of `bytes` at `offset`. After an error, any part of them may be there.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes the file this long; new bytes read as zeros.
    fn set_len(&mut self, bytes: u64) -> io::Result<()>;
    /// Returns when content and length are on stable storage.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file system, as far as the journal needs one.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Creates a directory with its parents; one that exists is fine.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Names of the files in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Reads a whole file into memory.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Reads at most so many bytes of a file from `offset` on; fewer if the file ends before. A disk that does not say how
    /// reads the whole file for it.
    fn read_at(&self, path: &Path, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let file = self.read(path)?;
        let start = usize::try_from(offset).map_or(file.len(), |offset| offset.min(file.len()));
        Ok(file[start..file.len().min(start.saturating_add(bytes))].to_vec())
    }
    /// Opens a file that exists, for writing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Creates an empty file, in place of any that exists.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Renames, atomically, over any file of the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Deletes a file; [`Disk::sync_dir`] makes that durable.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Returns when creations, renames and deletions in the directory are on stable storage.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Opens a file that exists so that each write goes past the page cache and is on stable storage when it returns: `sync`
    /// then waits only for a changed length. Offset, length and address of what is written must be multiples of the
    /// disk's block. `None`: this file system does not open files so. One that does may still refuse the writes.
    fn open_direct(&self, _: &Path) -> io::Result<Option<Box<dyn DiskFile>>> {
        Ok(None)
    }
    /// As [`Disk::create`], for a file whose content goes to the disk at once: it goes past the page cache, without a copy, where
    /// the file system lets it. Offset, length and address of each write are multiples of [`BLOCK`](crate::BLOCK). `sync` is
    /// needed as ever. A disk that does not say how creates a plain file.
    fn create_past_cache(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.create(path)
    }
    /// Opens a file that exists as [`Disk::create_past_cache`] creates one.
    fn open_past_cache(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.open(path)
    }
    /// Locks a file against other processes until the answer is dropped. `None`: another process has it.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send>>>;
}

/// The file system of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl DiskFile for File {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn set_len(&mut self, bytes: u64) -> io::Result<()> {
        File::set_len(self, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        // fdatasync: a changed length is part of what it waits for, time stamps are not.
        self.sync_data()
    }
}

/// A file whose writes go past the page cache and are on stable storage when they return.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct DirectFile {
    file: File,
    is_len_changed: bool,
}

#[cfg(target_os = "linux")]
impl DiskFile for DirectFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn set_len(&mut self, bytes: u64) -> io::Result<()> {
        self.is_len_changed = true;
        self.file.set_len(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.is_len_changed {
            self.file.sync_data()?;
            self.is_len_changed = false;
        }
        Ok(())
    }
}

/// Whether the file system says that it does not write this way.
pub fn is_refused(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

/// A file whose writes go past the page cache as long as the file system takes them so.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct PastCacheFile {
    file: File,
    is_past_cache: bool,
}

#[cfg(target_os = "linux")]
impl PastCacheFile {
    fn new(file: File) -> PastCacheFile {
        // Not every file system can: then it is plain.
        let is_past_cache = set_past_cache(&file, true).is_ok();
        PastCacheFile { file, is_past_cache }
    }
}

#[cfg(target_os = "linux")]
fn set_past_cache(file: &File, is_past_cache: bool) -> io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(file)?;
    flags.set(rustix::fs::OFlags::DIRECT, is_past_cache);
    Ok(rustix::fs::fcntl_setfl(file, flags)?)
}

#[cfg(target_os = "linux")]
impl DiskFile for PastCacheFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self.file.write_all_at(bytes, offset) {
            // Some file systems take the flag and refuse the writes.
            Err(error) if self.is_past_cache && is_refused(&error) => {
                set_past_cache(&self.file, false)?;
                self.is_past_cache = false;
                self.file.write_all_at(bytes, offset)
            }
            written => written,
        }
    }

    fn set_len(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        // The disk has a cache of its own, and the length is not on it.
        self.file.sync_data()
    }
}

impl Disk for RealDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir)?;
        match dir.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
            _ => Ok(()),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            names.extend(entry?.file_name().into_string().ok());
        }
        names.sort();
        Ok(names)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn read_at(&self, path: &Path, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let file = File::open(path)?;
        // The memory is not cleared first.
        let mut read = Vec::with_capacity(bytes);
        while read.len() < bytes {
            let at = offset + read.len() as u64;
            match pread(&file, spare_capacity(&mut read), at) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(read)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().write(true).open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(File::create(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    #[cfg(target_os = "linux")]
    fn open_direct(&self, path: &Path) -> io::Result<Option<Box<dyn DiskFile>>> {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = libc::O_DIRECT | libc::O_DSYNC;
        match OpenOptions::new().write(true).custom_flags(flags).open(path) {
            Ok(file) => Ok(Some(Box::new(DirectFile { file, is_len_changed: false }))),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
            Err(error) => Err(error),
        }
    }

    #[cfg(target_os = "linux")]
    fn create_past_cache(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(PastCacheFile::new(File::create(path)?)))
    }

    #[cfg(target_os = "linux")]
    fn open_past_cache(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(PastCacheFile::new(OpenOptions::new().write(true).open(path)?)))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send>>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuffer, BLOCK};

    #[test]
    fn what_goes_past_the_page_cache_is_read_whether_the_file_system_takes_it_so_or_not() {
        let dir = std::env::temp_dir().join(format!("partage-journal-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("blocks");
        let blocks: Vec<u8> = (0..3 * BLOCK).map(|at| (at / 7) as u8).collect();
        let mut file = RealDisk.create_past_cache(&path).unwrap();
        file.write_at(0, AlignedBuffer::of(&blocks[..2 * BLOCK]).as_slice()).unwrap();
        file.sync().unwrap();
        assert_eq!(RealDisk.read(&path).unwrap(), blocks[..2 * BLOCK]);
        drop(file);
        let mut file = RealDisk.open_past_cache(&path).unwrap();
        file.write_at(2 * BLOCK as u64, AlignedBuffer::of(&blocks[2 * BLOCK..]).as_slice()).unwrap();
        // Of these no file system takes the length so.
        file.write_at(3 * BLOCK as u64, &blocks[..100]).unwrap();
        file.write_at(3 * BLOCK as u64 + 100, &blocks[100..300]).unwrap();
        file.sync().unwrap();
        let whole = [&blocks[..], &blocks[..300]].concat();
        assert_eq!(RealDisk.read(&path).unwrap(), whole);
        for (offset, bytes) in [(0, 10), (5, BLOCK), (whole.len() - 3, 9), (whole.len(), 1), (7, 0)] {
            let read = RealDisk.read_at(&path, offset as u64, bytes).unwrap();
            assert_eq!(read, whole[offset..whole.len().min(offset + bytes)], "{bytes} at {offset}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_file_says_whether_it_goes_past_the_page_cache() {
        let dir = std::env::temp_dir().join(format!("partage-journal-past-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let is_past = |file: &PastCacheFile| {
            rustix::fs::fcntl_getfl(&file.file).unwrap().contains(rustix::fs::OFlags::DIRECT)
        };
        let mut file = PastCacheFile::new(File::create(dir.join("blocks")).unwrap());
        assert_eq!(file.is_past_cache, is_past(&file));
        file.write_at(0, AlignedBuffer::of(&[7; BLOCK]).as_slice()).unwrap();
        file.write_at(BLOCK as u64, &[7; 100]).unwrap();
        assert_eq!(file.is_past_cache, is_past(&file));
        assert_eq!(RealDisk.read(&dir.join("blocks")).unwrap(), [7; BLOCK + 100]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
