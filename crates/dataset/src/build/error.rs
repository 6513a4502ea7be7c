//! Why a version could not be loaded: what its status says, so file, place and reason.

use std::io;
use std::path::PathBuf;

use partage_engine::readonly::{BuildError, ReadError};
use partage_wire::dataset::manifest::ManifestError;

use super::Tolerance;
use crate::format::{Format, FormatError, Reason};
use crate::limits::SAMPLE_KEYS;
use crate::source::{SourceError, Stopped};

/// Why a version, or a partition of it, is not there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source did not give what it was asked for.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A file is not what it should be.
    #[error(transparent)]
    Format(FormatError),
    /// Files of several formats in one version.
    #[error(
        "{file} is {found}, but {first} is {expected}; a version has one format: take out what does not belong"
    )]
    Mixed {
        /// The file that is different.
        file: String,
        /// The format that `file` was recognised as.
        found: Format,
        /// The version's first file.
        first: String,
        /// The format of `first`, which every file of the version must have.
        expected: Format,
    },
    /// Each file of a version may become a partition, and nodes publish the partitions that they have: so files are limited.
    #[error("{url} has {files} files, the limit is {limit}: have the job write fewer, larger ones")]
    TooMany {
        /// The URL of the version in the source.
        url: String,
        /// How many it has.
        files: usize,
        /// How many it may have.
        limit: u32,
    },
    /// Store files and others in one version.
    #[error("{file} is no store file, but others of its version are; take out what does not belong")]
    PartlyBuilt {
        /// The URL of the file that is no store file.
        file: String,
    },
    /// The manifest of a version that was built before.
    #[error("{url}: {source}")]
    Manifest {
        /// The URL of the version whose manifest is not understood.
        url: String,
        /// What is wrong with it.
        source: ManifestError,
    },
    /// The store files of a version are not those of its manifest.
    #[error("{url}: {how}; build the version again with `partage dataset build`")]
    NotAsBuilt {
        /// The URL of the version, or of the store file that differs from the manifest.
        url: String,
        /// How they differ, in words that follow the URL.
        how: String,
    },
    /// A record that no store file takes.
    #[error("{file}: record {record}: {source}")]
    Record {
        /// The URL of the file with the record.
        file: String,
        /// Its number in the file, from 0.
        record: u64,
        /// What is wrong with it.
        source: BuildError,
    },
    /// More bad rows than the settings of the dataset allow.
    #[error(
        "{found} are no records, and max_bad_rows = {limit}; the last is {last}, and all are listed in {}: mend them, or allow \
         more", list.display()
    )]
    BadRows {
        /// How many rows are no records, in words.
        found: String,
        /// The place of the last bad row that was met, or its file.
        last: String,
        /// How many may be.
        limit: Tolerance,
        /// The file in the folder of the version that lists the bad rows.
        list: PathBuf,
    },
    /// No room on the disk.
    #[error("{}: the disk is full; make room, or move the data directory: what is loaded already stays", path.display())]
    DiskFull {
        /// The folder or file that the system could not write.
        path: PathBuf,
    },
    /// A store file could not be written.
    #[error(transparent)]
    Build(BuildError),
    /// A store file that was just written cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Something else of the local disk.
    #[error("{}: {source}", path.display())]
    Disk {
        /// The file or folder.
        path: PathBuf,
        /// The error of the file operation.
        source: io::Error,
    },
    /// A partition that the version does not have.
    #[error("partition {partition} of a version that has {partitions}, counted from 0")]
    NoPartition {
        /// The number that was asked for.
        partition: u32,
        /// How many there are.
        partitions: u32,
    },
    /// A key of another partition in a file that was taken for one.
    #[error(
        "{file}: record {record}: not of the partition that the file is by its first {SAMPLE_KEYS} keys, so nodes that do not \
         read this file would lack it; write `sampled = false` into the dataset's settings, and give the files a new version"
    )]
    Stray {
        /// The URL of the file with the key.
        file: String,
        /// Its number in the file, from 0.
        record: u64,
    },
    /// The caller has stopped the load, or has dropped it.
    #[error("loading was stopped")]
    Cancelled,
    /// The system gives no more threads.
    #[error("{what}: no thread for it: {source}; raise how many processes this user may have")]
    NoThread {
        /// What it was about.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A thread ended by a panic: a fault of Partage.
    #[error("{what} was given up by a fault of Partage itself; please report it, with the file if you may")]
    Fault {
        /// What it was about.
        what: String,
    },
}

impl Error {
    /// Whether the next try may succeed without a person's doing.
    pub fn may_pass(&self) -> bool {
        matches!(self, Error::Source(error) if error.kind.may_pass())
    }

    /// Whether something is longer than the memory for it.
    pub fn is_too_long(&self) -> bool {
        matches!(self, Error::Format(FormatError { reason: Reason::TooLong { .. }, .. }))
    }

    /// Whether there is no room on the disk.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Error::DiskFull { .. })
    }

    /// An error of a file that was read: of the source, of the disk, or of its format.
    pub fn of_format(error: FormatError) -> Error {
        match error.reason {
            Reason::Read(inner) => match of_source(inner) {
                Ok(error) => error,
                Err(inner) => Error::Format(FormatError { reason: Reason::Read(inner), ..error }),
            },
            _ => Error::Format(error),
        }
    }

    /// An error of writing a store file: [`Error::DiskFull`] if the disk has no more room.
    pub fn of_build(error: BuildError) -> Error {
        match error {
            BuildError::Io { path, source, .. } if is_full(&source) => Error::DiskFull { path },
            error => Error::Build(error),
        }
    }

    /// An error that is about one record of a file becomes [`Error::Record`]; others are about the store file.
    pub fn of_record(error: BuildError, file: &str, record: u64) -> Error {
        match error {
            BuildError::KeyTooLong { .. } | BuildError::ValueTooLong { .. } => {
                Error::Record { file: file.to_owned(), record, source: error }
            }
            error => Error::of_build(error),
        }
    }

    /// An error of the local disk: [`Error::DiskFull`] if it has no more room.
    pub fn of_disk(path: impl Into<PathBuf>, source: io::Error) -> Error {
        let path = path.into();
        if is_full(&source) { Error::DiskFull { path } } else { Error::Disk { path, source } }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// What our own readers said, if it was they.
pub(super) fn of_source(error: io::Error) -> Result<Error, io::Error> {
    let error = error.downcast::<SourceError>().map(Error::Source);
    let error = error.or_else(|error| error.downcast::<Stopped>().map(|_| Error::Cancelled));
    // Decoders hand on what they read from with a mark on it.
    error.or_else(|error| match crate::format::unmarked(error) {
        Ok(inner) => of_source(inner),
        Err(error) => Err(error),
    })
}
