//! Why a file was not read to its end: which file, where in it, and what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::recognise::Format;

/// A file that cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {place}: {reason}")]
pub struct FormatError {
    /// The file, as it was named.
    pub file: String,
    /// Where the reader stopped, as far as the format has places.
    pub place: Place,
    /// What is wrong there, and the way out.
    pub reason: Reason,
}

/// A place in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The offset of a byte in the file, from 0.
    Offset(u64),
    /// A line of text, from 1; of a compressed file, uncompressed.
    Line(u64),
    /// A row of a table that has no lines, from 1.
    Row(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Offset(offset) => write!(f, "offset {offset}"),
            Place::Line(line) => write!(f, "line {line}"),
            Place::Row(row) => write!(f, "row {row}"),
        }
    }
}

/// What is wrong with a file at some place.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// It could not be read from where it lies.
    #[error("{0}")]
    Read(io::Error),
    /// What must be copied before it can be read was not.
    #[error("copying it to {}: {source}; make room there, or choose another folder", folder.display())]
    Temporary {
        /// The folder that the copy was to be written to.
        folder: PathBuf,
        /// The error that ended the copying.
        source: io::Error,
    },
    /// It ends in the middle of something.
    #[error("the file ends within {what}: cut off; write it again")]
    CutOff {
        /// What is not whole.
        what: &'static str,
    },
    /// Another kind of file.
    #[error("not {}; check the dataset's format, or take the file out", .format.with_article())]
    Foreign {
        /// What it should be.
        format: Format,
    },
    /// Neither its content nor its name says what it is.
    #[error(
        "neither the beginning of the file nor its name says what it is; give the dataset a format: {}",
        Format::names()
    )]
    Unrecognised,
    /// A file whose name ends in `.gz` or `.zst` and which is neither.
    #[error("the name ends in {ending}, but the file is not {compression}; name it for what it is")]
    Misnamed {
        /// The end of the name.
        ending: &'static str,
        /// What would end so.
        compression: &'static str,
    },
    /// Left out when Partage was built.
    #[error("Parquet was left out when this Partage was built; build it with the feature `parquet`")]
    NotBuiltIn,
    /// A SequenceFile from before 2007, or after what is known here.
    #[error(
        "SequenceFile of version {version}; versions 4 to 6 can be read: write it with a Hadoop of today"
    )]
    Version {
        /// The fourth byte of the file: Hadoop's number of the version.
        version: u8,
    },
    /// A SequenceFile's codec that is not known here.
    #[error(
        "compressed with {class}, which cannot be read here; write it with gzip, deflate, snappy, lz4, zstd, bzip2, \
         or uncompressed"
    )]
    Codec {
        /// The Java class of the codec, as the header of the file names it.
        class: String,
    },
    /// Something in the file cannot be as it is.
    #[error("{what}: {how}; the file is damaged: write it again")]
    Damaged {
        /// The part of the file that is damaged, or the compression whose data is.
        what: &'static str,
        /// What the reader met there, in words that follow `what`.
        how: String,
    },
    /// Not where the file says that there is one.
    #[error("no sync marker where one must be; the file is damaged, or two were mixed: write it again")]
    Sync,
    /// A part of the file is longer than a reader holds.
    #[error("{what} of {bytes} bytes, more than the limit of {limit}; {way_out}")]
    TooLong {
        /// The part of the file that is too long: a record, a block, a page.
        what: &'static str,
        /// Its length, as far as it is known.
        bytes: u64,
        /// The most bytes that the reader holds of such a part.
        limit: usize,
        /// How a person makes the part shorter, or the limit greater.
        way_out: &'static str,
    },
    /// The format has columns, and the settings of the dataset do not say which is the key.
    #[error("the dataset has no key column; name one")]
    NoKeyColumn,
    /// A column that is not in the file.
    #[error("no column {column:?}; {}", list(.known))]
    NoColumn {
        /// The name of the column, as the settings of the dataset say it.
        column: String,
        /// The names of the columns that the file has, or of some.
        known: Vec<String>,
    },
    /// A row in which a column is not there.
    #[error("no {column:?} in this row; every row must have it")]
    Missing {
        /// The name of the column that the row lacks.
        column: String,
    },
    /// A file of JSON that is no JSON Lines.
    #[error(
        "the file is one JSON list, but each line must be one object: `jq -c '.[]'` writes each element of it on a line"
    )]
    JsonList,
    /// A row whose key says nothing.
    #[error("the key, {column:?}, is {found}; a key is text, a number, a truth value or bytes")]
    KeyValue {
        /// The name of the key's column.
        column: String,
        /// What it is instead.
        found: &'static str,
    },
    /// A row that does not follow the format's rules.
    #[error("not {}: {how}", .format.with_article())]
    Malformed {
        /// The format whose rules the row breaks.
        format: Format,
        /// What the parser of the format says, or which rule the row breaks.
        how: String,
    },
}

impl Reason {
    /// Whether it is about one row, and the next can be read all the same.
    pub fn is_of_row(&self) -> bool {
        match self {
            Reason::Malformed { format, .. } => *format != Format::Parquet,
            Reason::Missing { .. } | Reason::KeyValue { .. } => true,
            _ => false,
        }
    }

    /// The reason that a record is longer than a reader holds.
    pub fn record_too_long(bytes: u64, limit: usize) -> Reason {
        Reason::TooLong {
            what: "a record",
            bytes,
            limit,
            way_out: "divide it, look for a quote that is not closed, or give the node a larger load_memory_mib",
        }
    }

    /// The reason that a part of a SequenceFile's block is longer than a reader holds.
    pub fn block_too_long(bytes: u64, limit: usize) -> Reason {
        Reason::TooLong {
            what: "a block",
            bytes,
            limit,
            way_out: "write it with a smaller io.seqfile.compress.blocksize, if it is not damaged, or give the node a \
                      larger load_memory_mib",
        }
    }

    /// What a stream that is being uncompressed failed of.
    pub fn uncompressing(compression: &'static str, error: io::Error) -> Reason {
        match error.kind() {
            _ if is_of_source(&error) => Reason::Read(error),
            io::ErrorKind::UnexpectedEof => Reason::CutOff { what: compression },
            _ => Reason::Damaged { what: compression, how: error.to_string() },
        }
    }
}

fn list(columns: &[String]) -> String {
    if columns.is_empty() { "there are none".to_owned() } else { format!("there are {}", columns.join(", ")) }
}

/// An error of reading the bytes of a file, marked to distinguish it from one of uncompressing them.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct OfSource(io::Error);

/// Marks what went wrong in the source.
pub fn of_source(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), OfSource(error))
}

/// The error in the source, without its mark; else the error as it was.
pub fn unmarked(error: io::Error) -> Result<io::Error, io::Error> {
    error.downcast::<OfSource>().map(|OfSource(error)| error)
}

fn is_of_source(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<OfSource>())
}

/// A place and a reason; whose file it is, is said where its name is known.
#[derive(Debug)]
pub struct Failure {
    place: Place,
    reason: Reason,
}

impl Failure {
    pub fn new(place: Place, reason: Reason) -> Failure {
        Failure { place, reason }
    }

    pub fn at(offset: u64, reason: Reason) -> Failure {
        Failure::new(Place::Offset(offset), reason)
    }

    /// An error about the file as a whole.
    pub fn at_start(reason: Reason) -> Failure {
        Failure::at(0, reason)
    }

    /// The error with the name of the file, as callers of this crate get it.
    pub fn of(self, file: &str) -> FormatError {
        FormatError { file: file.to_owned(), place: self.place, reason: self.reason }
    }
}
