//! What does not fit into memory: entries in order, in temporary files, and how they are merged.
//!
//! A spill file is one temporary file without a name for each pass, so nothing is left of it when the process is killed.
//! While runs are merged only keys are in memory, and one value at a time. Every entry has a checksum: what comes
//! back from the disk changed is an error, not an entry.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::error::BuildError;
use super::form::{u32_at, u64_at};
use super::sort::Entry;
use crate::limits::{KEY_BYTES, RUN_BUFFER_BYTES, VALUE_BYTES};

/// Checksum, rank, number of the entry, lengths of key and value.
const ENTRY_HEADER_BYTES: usize = 28;

/// A sorted run: where it lies in the temporary file.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    begin: u64,
    end: u64,
}

/// A temporary file of sorted runs, one behind the other.
#[derive(Debug)]
pub struct SpillFile {
    folder: PathBuf,
    file: BufWriter<File>,
    runs: Vec<Run>,
    /// Bytes that were written.
    pub length: u64,
    open: u64,
}

/// A spill file that is only read.
pub struct SpilledRuns {
    folder: PathBuf,
    file: File,
    pub runs: Vec<Run>,
}

/// The error that something failed in this folder.
pub fn failed(folder: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> BuildError {
    let path = folder.to_owned();
    move |source| BuildError::Io { path, doing, source }
}

impl SpillFile {
    /// A new file without a name, in that folder.
    pub fn new(folder: &Path) -> Result<SpillFile, BuildError> {
        let file = tempfile::tempfile_in(folder).map_err(failed(folder, "making a temporary file"))?;
        let file = BufWriter::with_capacity(RUN_BUFFER_BYTES, file);
        Ok(SpillFile { folder: folder.to_owned(), file, runs: Vec::new(), length: 0, open: 0 })
    }

    /// Begins a run, behind those before it.
    pub fn begin(&mut self) {
        self.open = self.length;
    }

    /// Ends the run that was begun last.
    pub fn end(&mut self) {
        self.runs.push(Run { begin: self.open, end: self.length });
    }

    /// Adds the next entry to that run.
    pub fn write(&mut self, entry: Entry<'_>, number: u64) -> Result<(), BuildError> {
        let mut head = [0; ENTRY_HEADER_BYTES];
        head[4..12].copy_from_slice(&entry.rank.to_le_bytes());
        head[12..20].copy_from_slice(&number.to_le_bytes());
        head[20..24].copy_from_slice(&(entry.key.len() as u32).to_le_bytes());
        head[24..28].copy_from_slice(&(entry.value.len() as u32).to_le_bytes());
        let crc = crc(&head, entry.key, entry.value);
        head[..4].copy_from_slice(&crc.to_le_bytes());
        for part in [&head, entry.key, entry.value] {
            self.file.write_all(part).map_err(failed(&self.folder, "writing a temporary file"))?;
        }
        self.length += (ENTRY_HEADER_BYTES + entry.key.len() + entry.value.len()) as u64;
        Ok(())
    }

    /// Ends the writing, so that the runs can be read.
    pub fn closed(self) -> Result<SpilledRuns, BuildError> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error);
        let file = file.map_err(failed(&self.folder, "writing a temporary file"))?;
        Ok(SpilledRuns { folder: self.folder, file, runs: self.runs })
    }
}

fn crc(head: &[u8; ENTRY_HEADER_BYTES], key: &[u8], value: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&head[4..]), key), value)
}

/// The first entry of a run that is not merged yet: its key is in memory, its value still on the disk. Fields in the order of
/// comparison.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RunHead {
    rank: u64,
    key: Vec<u8>,
    /// Of equal keys the last comes first.
    number: Reverse<u64>,
    run: usize,
    /// Where its value begins, and how long it is.
    value: (u64, usize),
    head: [u8; ENTRY_HEADER_BYTES],
}

/// Reads one run from its beginning to its end.
struct RunReader<'a> {
    spilled: &'a SpilledRuns,
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    buffer_at: u64,
}

impl RunReader<'_> {
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), BuildError> {
        let folder = &self.spilled.folder;
        let read_failed = |e| failed(folder, "reading a temporary file")(e);
        if at + out.len() as u64 > self.end {
            return Err(BuildError::Spill { folder: folder.clone(), offset: at });
        }
        if out.len() > RUN_BUFFER_BYTES {
            return self.spilled.file.read_exact_at(out, at).map_err(read_failed);
        }
        let buffer_end = self.buffer_at + self.buffer.len() as u64;
        if at < self.buffer_at || at + out.len() as u64 > buffer_end {
            let length = (self.end - at).min(RUN_BUFFER_BYTES as u64) as usize;
            self.buffer.resize(length, 0);
            self.spilled.file.read_exact_at(&mut self.buffer, at).map_err(read_failed)?;
            self.buffer_at = at;
        }
        let begin = (at - self.buffer_at) as usize;
        out.copy_from_slice(&self.buffer[begin..begin + out.len()]);
        Ok(())
    }

    fn next(&mut self, run: usize) -> Result<Option<RunHead>, BuildError> {
        if self.at == self.end {
            return Ok(None);
        }
        let mut head = [0; ENTRY_HEADER_BYTES];
        self.read(self.at, &mut head)?;
        let (key_bytes, value_bytes) = (u32_at(&head, 20) as usize, u32_at(&head, 24) as usize);
        if key_bytes > KEY_BYTES || value_bytes > VALUE_BYTES {
            return Err(BuildError::Spill { folder: self.spilled.folder.clone(), offset: self.at });
        }
        let mut key = vec![0; key_bytes];
        self.read(self.at + ENTRY_HEADER_BYTES as u64, &mut key)?;
        let value_at = self.at + (ENTRY_HEADER_BYTES + key_bytes) as u64;
        self.at = value_at + value_bytes as u64;
        Ok(Some(RunHead {
            rank: u64_at(&head, 4),
            key,
            number: Reverse(u64_at(&head, 12)),
            run,
            value: (value_at, value_bytes),
            head,
        }))
    }

    fn value(&mut self, first: &RunHead, value: &mut Vec<u8>) -> Result<(), BuildError> {
        value.resize(first.value.1, 0);
        self.read(first.value.0, value)?;
        if crc(&first.head, &first.key, value) == u32_at(&first.head, 0) {
            return Ok(());
        }
        Err(BuildError::Spill { folder: self.spilled.folder.clone(), offset: first.value.0 })
    }
}

/// Merges some runs, and says how many entries later ones replaced.
pub fn merge(
    spilled: &SpilledRuns,
    runs: &[Run],
    take: &mut dyn FnMut(Entry<'_>, u64) -> Result<(), BuildError>,
) -> Result<u64, BuildError> {
    let reader = |run: &Run| RunReader {
        spilled,
        at: run.begin,
        end: run.end,
        buffer: Vec::new(),
        buffer_at: run.begin,
    };
    let mut readers: Vec<RunReader<'_>> = runs.iter().map(reader).collect();
    let mut heads = BinaryHeap::new();
    for (run, reader) in readers.iter_mut().enumerate() {
        heads.extend(reader.next(run)?.map(Reverse));
    }
    let (mut value, mut last, mut replaced) = (Vec::new(), None::<(u64, Vec<u8>)>, 0);
    while let Some(Reverse(first)) = heads.pop() {
        let reader = &mut readers[first.run];
        // Also of one that is replaced: a damaged key may only look like the one before.
        reader.value(&first, &mut value)?;
        if last.as_ref().is_some_and(|(rank, key)| *rank == first.rank && *key == first.key) {
            replaced += 1;
        } else {
            take(Entry { rank: first.rank, key: &first.key, value: &value }, first.number.0)?;
        }
        heads.extend(reader.next(first.run)?.map(Reverse));
        last = Some((first.rank, first.key));
    }
    Ok(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_what_was_spilled_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let mut spill = SpillFile::new(folder.path()).unwrap();
        spill.begin();
        for (number, key) in [b"one", b"two"].into_iter().enumerate() {
            spill.write(Entry { rank: number as u64, key, value: b"value" }, number as u64).unwrap();
        }
        spill.end();
        let spilled = spill.closed().unwrap();
        let length = spilled.runs[0].end;
        let mut all = 0;
        merge(&spilled, &spilled.runs, &mut |_, _| {
            all += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(all, 2);
        for bit in 0..8 * length {
            let mut byte = [0];
            spilled.file.read_exact_at(&mut byte, bit / 8).unwrap();
            spilled.file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], bit / 8).unwrap();
            let read = merge(&spilled, &spilled.runs, &mut |_, _| Ok(()));
            assert!(matches!(read, Err(BuildError::Spill { .. })), "bit {bit}: {read:?}");
            spilled.file.write_all_at(&byte, bit / 8).unwrap();
        }
    }
}
