//! Entries of any number brought into the order of the file, with bounded memory.
//!
//! An external merge sort: when the [buffer](super::sort_buffer) is full, its entries are sorted and written as a run to the
//! [spill file](super::spill); at the end the runs are merged, looking only at the first entry of each. If there are too many
//! runs to be merged at a time, some are merged into longer ones first.

use std::path::{Path, PathBuf};

use super::arena::Arenas;
use super::error::BuildError;
use super::form::Layout;
use super::sort_buffer::SortBuffer;
use super::spill::{SpillFile, failed, merge};
use crate::limits::{KEY_BYTES, MERGED_RUNS, RUN_BUFFER_BYTES};

/// One entry on its way into the file.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// See [`rank`].
    pub rank: u64,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

/// What takes the entries, in order.
type Take<'a> = &'a mut dyn FnMut(Entry<'_>) -> Result<(), BuildError>;

/// What is compared before the key: its hash, or its first eight bytes.
#[inline]
pub fn rank(layout: Layout, key: &[u8]) -> u64 {
    match layout {
        Layout::Hashed => xxhash_rust::xxh3::xxh3_64(key),
        Layout::Ordered => {
            let mut first = [0; 8];
            let count = key.len().min(8);
            first[..count].copy_from_slice(&key[..count]);
            u64::from_be_bytes(first)
        }
    }
}

/// Sorts entries: the buffer, and the spill file for what it cannot hold.
#[derive(Debug)]
pub struct Sorter {
    folder: PathBuf,
    buffer: SortBuffer,
    memory: usize,
    spill_file: Option<SpillFile>,
    /// Entries that a later one replaced.
    replaced: u64,
    /// Bytes written to the temporary folder.
    spilled_bytes: u64,
}

impl Sorter {
    /// `memory`: bytes that entries may take. An entry larger than that is held all the same, alone.
    pub fn new(folder: &Path, memory: usize, arenas: Arenas) -> Sorter {
        let buffer = SortBuffer::new(memory, arenas);
        Sorter { folder: folder.to_owned(), buffer, memory, spill_file: None, replaced: 0, spilled_bytes: 0 }
    }

    /// `number`: of equal keys the highest counts.
    pub fn add(&mut self, entry: Entry<'_>, number: u64) -> Result<(), BuildError> {
        loop {
            match self.buffer.add(entry, number) {
                Ok(true) => return Ok(()),
                Ok(false) => self.spill()?,
                Err(error) => return Err(failed(&self.folder, "taking memory for entries")(error)),
            }
        }
    }

    /// Gives out all entries in order, of equal keys the last. Says how many were replaced, and what was spilled.
    pub fn drain(mut self, take: Take<'_>) -> Result<(u64, u64), BuildError> {
        if self.spill_file.is_none() {
            self.replaced += self.buffer.drain(|entry, _| take(entry))?;
            return Ok((self.replaced, 0));
        }
        self.spill()?;
        let Sorter { folder, buffer, memory, mut spill_file, mut replaced, mut spilled_bytes } = self;
        // What is read ahead takes as much.
        buffer.discard();
        let together = (memory / (RUN_BUFFER_BYTES + KEY_BYTES)).clamp(2, MERGED_RUNS);
        while let Some(full) = spill_file.take() {
            let full = full.closed()?;
            if full.runs.len() <= together {
                replaced += merge(&full, &full.runs, &mut |entry, _| take(entry))?;
                break;
            }
            let mut next = SpillFile::new(&folder)?;
            for runs in full.runs.chunks(together) {
                next.begin();
                replaced += merge(&full, runs, &mut |entry, number| next.write(entry, number))?;
                next.end();
            }
            spilled_bytes += next.length;
            spill_file = Some(next);
        }
        Ok((replaced, spilled_bytes))
    }

    fn spill(&mut self) -> Result<(), BuildError> {
        let spill_file = match self.spill_file.take() {
            Some(spill_file) => spill_file,
            None => SpillFile::new(&self.folder)?,
        };
        let spill_file = self.spill_file.insert(spill_file);
        let before = spill_file.length;
        spill_file.begin();
        self.replaced += self.buffer.drain(|entry, number| spill_file.write(entry, number))?;
        spill_file.end();
        self.spilled_bytes += spill_file.length - before;
        Ok(())
    }
}
