//! The few things that the journal asks of a file system, so that tests can break each of them.
//!
//! [`RealDisk`] is the system's. Tests put a disk in its place that writes short, fills up, fails to
//! sync, loses what was not synced, or flips bits.

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
        let mut read = vec![0; bytes];
        let mut length = 0;
        while length < bytes {
            match file.read_at(&mut read[length..], offset + length as u64) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        read.truncate(length);
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

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send>>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}
