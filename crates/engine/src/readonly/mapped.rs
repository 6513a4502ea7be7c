//! A file as a slice of memory, by one unsafe call.
//!
//! What stands in the file is read without being copied first. The kernel reads a page when it is accessed, and forgets it
//! when memory is short, so a store may be larger than memory.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::{Advice, Mmap};

use super::error::{ReadError, Reason};
use super::loss::Watch;
use super::prefetch::prefetch;
use crate::limits::{LEAST_PREFETCHED_LINES, LINE_BYTES, PREFETCHED_LINES};

/// A mapped store file.
#[derive(Debug)]
pub struct Mapped {
    /// Before the map, so that it ends before the map does.
    watch: Watch,
    map: Mmap,
    path: PathBuf,
}

impl Mapped {
    /// Maps the whole file for reading.
    pub fn open(path: &Path) -> Result<Mapped, ReadError> {
        let failed = |source| ReadError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        if length == 0 {
            return Err(ReadError::refused(path, 0, Reason::Short { bytes: 0 }));
        }
        let map = map(&file).map_err(failed)?;
        // Lookups jump about: without this the kernel reads 128 KiB where 4 would do. It is a hint, and may fail.
        let _ = map.advise(Advice::Random);
        let watch = Watch::over(&map).map_err(failed)?;
        Ok(Mapped { watch, map, path: path.to_owned() })
    }

    /// What was read, unless the file has lost some of what is mapped: then nothing that was read counts.
    #[inline]
    pub fn unless_lost<T>(&self, read: Result<T, ReadError>) -> Result<T, ReadError> {
        if self.watch.has_lost() { Err(self.lost()) } else { read }
    }

    #[cold]
    fn lost(&self) -> ReadError {
        let left = std::fs::metadata(&self.path).map_or(0, |file| file.len());
        self.refused(left.min(self.map.len() as u64), Reason::Lost { bytes: self.map.len() as u64 })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All of its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Some of its bytes, or the error that the file should have them and has not.
    #[inline]
    pub fn slice(&self, range: Range<u64>) -> Result<&[u8], ReadError> {
        let begin = usize::try_from(range.start).ok();
        let end = usize::try_from(range.end).ok();
        begin
            .zip(end)
            .and_then(|(begin, end)| self.map.get(begin..end))
            .ok_or_else(|| self.refused(range.start, Reason::Outside { end: range.end }))
    }

    /// Has the beginning of some of its bytes fetched into the processor's cache, if they are in memory, and does not wait.
    #[inline]
    pub fn prefetch(&self, range: Range<u64>) {
        let (Ok(begin), Ok(end)) = (usize::try_from(range.start), usize::try_from(range.end)) else { return };
        let Some(bytes) = self.map.get(begin..end) else { return };
        let Some(last) = bytes.len().checked_sub(1) else { return };
        // The first lines in any case, be some of them the last one again: nothing foresees how many a short part has.
        for line in 0..LEAST_PREFETCHED_LINES {
            prefetch::<false>(&bytes[(line * LINE_BYTES).min(last)]);
        }
        for line in (LEAST_PREFETCHED_LINES..PREFETCHED_LINES).take_while(|line| line * LINE_BYTES < last) {
            prefetch::<false>(&bytes[line * LINE_BYTES]);
        }
    }

    /// That this file is refused, and why.
    pub fn refused(&self, offset: u64, reason: Reason) -> ReadError {
        ReadError::refused(&self.path, offset, reason)
    }
}

#[expect(unsafe_code, reason = "the one way to map a file; the proof is in the function")]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the bytes of a map must not change while a slice of them is lent. The mapping is read-only and private
    // to this module, so no code of this process writes through it. The file is a store file: the builder writes it
    // under another name, syncs it, and only then gives it this name, never over an existing file; nobody opens it for
    // writing after that. To delete it is to unlink it, after which the map stays valid until it is dropped.
    // A stranger who writes into the file all the same breaks this condition, as with every mapped file. What is
    // read is checked in place against its checksum, every index is bounds-checked, and no reference to anything but
    // plain bytes is made, for which any content is valid. What is cut off under the map reads as zeros, and is told
    // (`loss.rs`).
    unsafe { Mmap::map(file) }
}
