//! The file of a node: chunks of ranges, one after the other, written past the page cache where the file system lets one.

use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What lies past the page cache begins and ends at multiples of this, on disk and in memory.
const ALIGN: usize = 4_096;

/// Bytes that begin at a multiple of a page.
#[derive(Debug)]
pub struct Aligned {
    bytes: Vec<u8>,
    begin: usize,
    length: usize,
}

impl Aligned {
    /// So many, which the kernel has given already: each page was touched.
    pub fn new(length: usize) -> Aligned {
        let bytes = vec![1; length + ALIGN];
        let begin = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        Aligned { bytes, begin, length }
    }

    /// The bytes, the first at a multiple of a page.
    pub fn get(&self) -> &[u8] {
        &self.bytes[self.begin..self.begin + self.length]
    }

    /// The same bytes, to be written.
    pub fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..self.begin + self.length]
    }
}

/// Where a chunk lies.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    offset: u64,
    /// Bytes of its records.
    pub bytes: usize,
    sum: u32,
}

/// The file, and what lies where in it.
#[derive(Debug)]
pub struct Store {
    file: File,
    end: AtomicU64,
    extents: Vec<Mutex<Vec<Extent>>>,
}

impl Store {
    /// An empty one, for so many ranges.
    pub fn create(path: &Path, ranges: usize) -> Result<Store> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        // Not every file system can: then it is plain.
        let direct = options.clone().custom_flags(libc::O_DIRECT).open(path);
        let file = direct.or_else(|_| options.open(path))?;
        let extents = (0..ranges).map(|_| Mutex::default()).collect();
        Ok(Store { file, end: AtomicU64::new(0), extents })
    }

    /// Writes the first bytes of `chunk`, which begins at a page and has room up to the end of the last one.
    pub fn put(&self, range: usize, sum: u32, chunk: &[u8], bytes: usize) -> Result<()> {
        let padded = bytes.next_multiple_of(ALIGN);
        let offset = self.end.fetch_add(padded as u64, Ordering::Relaxed);
        self.file.write_all_at(&chunk[..padded], offset)?;
        let mut extents = self.extents[range].lock().unwrap_or_else(PoisonError::into_inner);
        extents.push(Extent { offset, bytes, sum });
        Ok(())
    }

    /// What was written is on disk.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data()
    }

    /// The chunks of a range.
    pub fn extents(&self, range: usize) -> Vec<Extent> {
        self.extents[range].lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads a chunk to the front of `into`, which begins at a page, and checks it.
    pub fn get(&self, extent: Extent, into: &mut [u8]) -> Result<()> {
        let padded = extent.bytes.next_multiple_of(ALIGN);
        self.file.read_exact_at(&mut into[..padded], extent.offset)?;
        if crc32c::crc32c(&into[..extent.bytes]) != extent.sum {
            return Err(Error::other("the checksum of a chunk on disk is wrong"));
        }
        Ok(())
    }
}
