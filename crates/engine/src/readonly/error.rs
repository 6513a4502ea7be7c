//! What can go wrong with a store file, said with the file, the place in it, and the way out.

use std::io;
use std::path::{Path, PathBuf};

use crate::limits::{KEY_BYTES, LEAST_MEMORY_BYTES, PAGE_MOST_KEYS, VALUE_BYTES, ZSTD_MOST_LEVEL};

/// Why a store file was not built. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A file operation failed: the disk is full, or the folder is not there.
    #[error("{}: {doing}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the builder was doing, for the message: "writing the file", for one.
        doing: &'static str,
        /// Why it failed; mostly the error that the operating system gave.
        source: io::Error,
    },
    /// The name is taken. Store files are never written over: a process may be reading it.
    #[error("{} is there already and is never written over; remove it, or build under another name", .0.display())]
    Exists(PathBuf),
    /// See [`KEY_BYTES`].
    #[error("entry {entry}: a key of {bytes} bytes is longer than the limit of {KEY_BYTES}; shorten it")]
    KeyTooLong {
        /// Number of the entry, from 0.
        entry: u64,
        /// Length of its key.
        bytes: usize,
    },
    /// See [`VALUE_BYTES`].
    #[error(
        "entry {entry}: a value of {bytes} bytes is longer than the limit of {VALUE_BYTES}; divide it, or keep it in a file store"
    )]
    ValueTooLong {
        /// Number of the entry, from 0.
        entry: u64,
        /// Length of its value.
        bytes: usize,
    },
    /// See [`LEAST_MEMORY_BYTES`].
    #[error("{0} bytes of memory are too few to build with; give it {LEAST_MEMORY_BYTES} or more")]
    TooLittleMemory(usize),
    /// See [`ZSTD_MOST_LEVEL`].
    #[error("zstd has no level {0} here; take one from 1 to {ZSTD_MOST_LEVEL}")]
    Level(i32),
    /// More keys on one page, or more bytes, than can be.
    #[error(
        "page {page} would hold {keys} keys and {bytes} bytes, more than {PAGE_MOST_KEYS} keys or 4 GiB: the keys have been made to collide; build it ordered"
    )]
    PageFull {
        /// Number of the page.
        page: u64,
        /// Its keys so far.
        keys: usize,
        /// Its bytes so far.
        bytes: u64,
    },
    /// A run came back from the temporary folder other than it was written.
    #[error("temporary file in {}, offset {offset}: what was spilled came back changed; check the disk, and build it again", folder.display())]
    Spill {
        /// The folder in which the temporary file was.
        folder: PathBuf,
        /// Where in the temporary file.
        offset: u64,
    },
}

/// Why a store file was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be opened or mapped.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file that was to be opened.
        path: PathBuf,
        /// The error that the operating system gave.
        source: io::Error,
    },
    /// Something in it is not as it must be.
    #[error("{}: offset {offset}: {reason}", path.display())]
    Refused {
        /// The file that is not as it must be.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: u64,
        /// What is wrong at that place, and the way out.
        reason: Reason,
    },
    /// A scan of a hashed file.
    #[error("{}: built without ordering, so it cannot be scanned; build it ordered", .0.display())]
    NotOrdered(PathBuf),
}

impl ReadError {
    pub(crate) fn refused(path: &Path, offset: u64, reason: Reason) -> ReadError {
        ReadError::Refused { path: path.to_owned(), offset, reason }
    }
}

/// What is wrong with a store file at some place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Shorter than a store file without a key.
    #[error("only {bytes} bytes: cut off, or not finished; build or fetch it again")]
    Short {
        /// The length that the file has.
        bytes: u64,
    },
    /// Another kind of file.
    #[error("not a Partage store file; check the path")]
    Foreign,
    /// Made by a later version.
    #[error(
        "format {version}, of which this version knows up to {known}; update, or build it with this version"
    )]
    Later {
        /// The format that its header names.
        version: u32,
        /// The latest that is read here.
        known: u32,
    },
    /// It does not end as a store file does.
    #[error(
        "the end of the file is not that of a store file: cut off, added to, or not finished; build or fetch it again"
    )]
    NoEnd,
    /// A checksum does not match.
    #[error("{what} does not match its checksum: damaged; build or fetch it again")]
    Checksum {
        /// The part of the file whose checksum does not match.
        what: Part,
    },
    /// The bytes are what was written, but make no sense.
    #[error("{what} contradicts the rest of the file: {how}; build or fetch it again")]
    Contradiction {
        /// The part of the file that contradicts the rest.
        what: Part,
        /// In what way it does, for the message.
        how: &'static str,
    },
    /// Some of it was there when it was opened, and could not be read when it was looked at.
    #[error(
        "it had {bytes} bytes when it was opened, and some of them cannot be read any more: cut off, or the disk fails; build or fetch it again"
    )]
    Lost {
        /// Its length when it was opened.
        bytes: u64,
    },
    /// A part lies outside the file.
    #[error("the file should reach to byte {end} and does not: cut off; build or fetch it again")]
    Outside {
        /// Where the part would end.
        end: u64,
    },
}

impl Reason {
    /// What is wrong, without the way out: for a caller that knows a better one.
    pub fn what(&self) -> String {
        let text = self.to_string();
        text.split("; ").next().unwrap_or(&text).to_owned()
    }
}

/// The parts of a store file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The first 16 bytes of the file.
    Header,
    /// The last 96 bytes of the file.
    Footer,
    /// The page table, or the sparse index.
    Index,
    /// The zstd dictionary by which the file is decompressed.
    Dictionary,
    /// The directory of a page.
    Directory,
    /// One key and its value in a hashed file.
    Entry,
    /// A block of an ordered file.
    Block,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Part::Header => "the header",
            Part::Footer => "the footer",
            Part::Index => "the index",
            Part::Dictionary => "the dictionary",
            Part::Directory => "a page's directory",
            Part::Entry => "an entry",
            Part::Block => "a block",
        })
    }
}
