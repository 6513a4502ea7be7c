//! Entries of any number brought into the order of the file, with bounded memory.
//!
//! A clerk with a small desk: when the [desk](super::desk) is full, its slips are put in order, bound, and laid on the
//! [floor](super::floor); at the end the bundles are merged, looking only at the top slip of each. If there are too many bundles
//! to stand around, some are merged into larger ones first.

use std::path::{Path, PathBuf};

use super::arena::Arenas;
use super::desk::Desk;
use super::error::BuildError;
use super::floor::{Floor, failed, merge};
use super::form::Layout;
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

/// The desk and the floor.
#[derive(Debug)]
pub struct Sorter {
    folder: PathBuf,
    desk: Desk,
    memory: usize,
    floor: Option<Floor>,
    /// Entries that a later one replaced.
    replaced: u64,
    /// Bytes written to the temporary folder.
    spilled_bytes: u64,
}

impl Sorter {
    /// `memory`: bytes that entries may take. An entry larger than that is held all the same, alone.
    pub fn new(folder: &Path, memory: usize, arenas: Arenas) -> Sorter {
        let desk = Desk::new(memory, arenas);
        Sorter { folder: folder.to_owned(), desk, memory, floor: None, replaced: 0, spilled_bytes: 0 }
    }

    /// `number`: of equal keys the highest counts.
    pub fn add(&mut self, entry: Entry<'_>, number: u64) -> Result<(), BuildError> {
        loop {
            match self.desk.add(entry, number) {
                Ok(true) => return Ok(()),
                Ok(false) => self.spill()?,
                Err(error) => return Err(failed(&self.folder, "taking memory for entries")(error)),
            }
        }
    }

    /// Gives out all entries in order, of equal keys the last. Says how many were replaced, and what was spilled.
    pub fn drain(mut self, take: Take<'_>) -> Result<(u64, u64), BuildError> {
        if self.floor.is_none() {
            self.replaced += self.desk.drain(|entry, _| take(entry))?;
            return Ok((self.replaced, 0));
        }
        self.spill()?;
        let Sorter { folder, desk, memory, mut floor, mut replaced, mut spilled_bytes } = self;
        // What is read ahead takes as much.
        desk.end();
        let together = (memory / (RUN_BUFFER_BYTES + KEY_BYTES)).clamp(2, MERGED_RUNS);
        while let Some(full) = floor.take() {
            let full = full.closed()?;
            if full.runs.len() <= together {
                replaced += merge(&full, &full.runs, &mut |entry, _| take(entry))?;
                break;
            }
            let mut next = Floor::new(&folder)?;
            for runs in full.runs.chunks(together) {
                next.begin();
                replaced += merge(&full, runs, &mut |entry, number| next.write(entry, number))?;
                next.end();
            }
            spilled_bytes += next.length;
            floor = Some(next);
        }
        Ok((replaced, spilled_bytes))
    }

    fn spill(&mut self) -> Result<(), BuildError> {
        let floor = match self.floor.take() {
            Some(floor) => floor,
            None => Floor::new(&self.folder)?,
        };
        let floor = self.floor.insert(floor);
        let before = floor.length;
        floor.begin();
        self.replaced += self.desk.drain(|entry, number| floor.write(entry, number))?;
        floor.end();
        self.spilled_bytes += floor.length - before;
        Ok(())
    }
}
