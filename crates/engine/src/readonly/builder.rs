//! Makes a store file from entries in any order, in one pass over them.

use std::path::{Path, PathBuf};

use super::arena::Arenas;
use super::codec::{Encoder, Samples};
use super::error::BuildError;
use super::estimate::Estimate;
use super::form::{Compression, Footer, Layout};
use super::hashed::{PageWriter, pages};
use super::ordered::BlockWriter;
use super::output::{Output, folder_of};
use super::sort::{Entry, Sorter, rank};
use crate::limits::{KEY_BYTES, LEAST_MEMORY_BYTES, MEMORY_BYTES, VALUE_BYTES, ZSTD_MOST_LEVEL};

/// How a store file is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The order of the keys: for lookups alone, or for scans too.
    pub layout: Layout,
    /// The compression of values (hashed) or blocks (ordered).
    pub compression: Compression,
    /// Bytes that entries may take in memory; what does not fit is spilled. Beside it a builder holds one key and its
    /// value, the latter once more when it is compressed, for zstd the samples and tables of some megabytes, and while
    /// the file is written up to 256 KiB of it.
    pub memory_bytes: usize,
    /// Where what does not fit is spilled: twice the size of the input is needed there. `None`: beside the file.
    pub temporary: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            layout: Layout::Hashed,
            compression: Compression::None,
            memory_bytes: MEMORY_BYTES,
            temporary: None,
        }
    }
}

/// What [`Builder::finish`] has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Keys in the file: each key counts once.
    pub keys: u64,
    /// Entries that a later one with the same key replaced.
    pub replaced: u64,
    /// Length of the file.
    pub bytes: u64,
    /// Bytes of the page table or the sparse index in the file.
    pub index_bytes: u64,
    /// Bytes that were written to the temporary folder.
    pub spilled_bytes: u64,
}

/// A store file that is being made. Dropped before [`Builder::finish`], or killed, it leaves nothing that opens.
#[derive(Debug)]
pub struct Builder {
    path: PathBuf,
    options: Options,
    sorter: Sorter,
    /// Number of the next entry.
    next: u64,
    estimate: Estimate,
    samples: Option<Samples>,
    key_bytes: u64,
    value_bytes: u64,
}

impl Builder {
    /// Begins a file; the folder is there, the file is not.
    pub fn new(path: &Path, options: Options) -> Result<Builder, BuildError> {
        Builder::with_arenas(path, options, &Arenas::default())
    }

    /// The same with memory that builders before it have left there, if there is any, and leaves it there.
    pub fn with_arenas(path: &Path, options: Options, arenas: &Arenas) -> Result<Builder, BuildError> {
        if options.memory_bytes < LEAST_MEMORY_BYTES {
            return Err(BuildError::TooLittleMemory(options.memory_bytes));
        }
        if let Compression::Zstd { level } = options.compression
            && !(1..=ZSTD_MOST_LEVEL).contains(&level)
        {
            return Err(BuildError::Level(level));
        }
        if path.symlink_metadata().is_ok() {
            return Err(BuildError::Exists(path.to_owned()));
        }
        let spill = options.temporary.as_deref().unwrap_or(folder_of(path));
        let dictionary = matches!(options.compression, Compression::Zstd { .. });
        Ok(Builder {
            path: path.to_owned(),
            sorter: Sorter::new(spill, options.memory_bytes, arenas.clone()),
            next: 0,
            estimate: Estimate::new(),
            samples: dictionary.then(Samples::new),
            options,
            key_bytes: 0,
            value_bytes: 0,
        })
    }

    /// Adds an entry. Of several with the same key the one added last counts. After an error the builder may go on
    /// without that entry if the key or the value was too long; else it is of no more use.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), BuildError> {
        self.add_at(self.next, key, value)
    }

    /// The same for entries that come in no order of their own, from several readers say: of several with the same
    /// key the one with the highest number counts. No two have the same number.
    pub fn add_at(&mut self, entry: u64, key: &[u8], value: &[u8]) -> Result<(), BuildError> {
        if key.len() > KEY_BYTES {
            return Err(BuildError::KeyTooLong { entry, bytes: key.len() });
        }
        if value.len() > VALUE_BYTES {
            return Err(BuildError::ValueTooLong { entry, bytes: value.len() });
        }
        let rank = rank(self.options.layout, key);
        if self.options.layout == Layout::Hashed {
            self.estimate.add(rank);
        }
        if let Some(samples) = &mut self.samples {
            samples.offer(value);
        }
        self.next = self.next.max(entry + 1);
        self.sorter.add(Entry { rank, key, value }, entry)
    }

    /// Writes the file, syncs it, and gives it its name.
    pub fn finish(self) -> Result<Summary, BuildError> {
        let Builder { path, options, sorter, estimate, samples, mut key_bytes, mut value_bytes, .. } = self;
        let failed = |source| BuildError::Io { path: path.clone(), doing: "preparing compression", source };
        let dictionary = samples.map(|samples| samples.train()).unwrap_or_default();
        let mut encoder = Encoder::new(options.compression, &dictionary).map_err(failed)?;
        let spill = options.temporary.as_deref().unwrap_or(folder_of(&path));
        let mut out = Output::new(&path, spill)?;
        let mut writer = match options.layout {
            Layout::Hashed => Writer::Pages(PageWriter::new(pages(estimate.count()))),
            Layout::Ordered => Writer::Blocks(BlockWriter::default()),
        };
        let mut keys = 0;
        let (replaced, spilled_bytes) = sorter.drain(&mut |entry| {
            keys += 1;
            key_bytes += entry.key.len() as u64;
            value_bytes += entry.value.len() as u64;
            match &mut writer {
                Writer::Pages(pages) => pages.add(entry, &mut encoder, &mut out),
                Writer::Blocks(blocks) => blocks.add(entry, &mut encoder, &mut out),
            }
        })?;
        let parts = match &mut writer {
            Writer::Pages(pages) => pages.finish(&mut out)?,
            Writer::Blocks(blocks) => blocks.finish(&mut encoder, &mut out)?,
        };
        let sections = out.sections();
        let footer = Footer {
            layout: options.layout,
            compression: options.compression.number(),
            keys,
            replaced,
            parts,
            key_bytes,
            value_bytes,
            data_bytes: sections.data_bytes,
            index_bytes: sections.index_bytes,
            dictionary_bytes: dictionary.len() as u64,
            index_crc: sections.index_crc,
            dictionary_crc: crc32c::crc32c(&dictionary),
        };
        let bytes = out.finish(&dictionary, &footer)?;
        Ok(Summary { keys, replaced, bytes, index_bytes: sections.index_bytes, spilled_bytes })
    }
}

enum Writer {
    Pages(PageWriter),
    Blocks(BlockWriter),
}
