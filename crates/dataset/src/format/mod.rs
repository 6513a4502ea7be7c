//! What records are in a file: keys and values, one after the other, out of a stream of bytes.
//!
//! Every format is parsed in its own way, and the result is always the same: a key and a value. A file that is not what
//! its name or its settings say is refused here, with the place in it and the reason.
//!
//! ```text
//!  bytes ──► .gz .zst ──► csv, tsv, JSON Lines ──┐
//!    │                                           ├──► Records: (key, value), ...
//!    ├──────────────────► SequenceFile ──────────┤
//!    └──► a file ───────► Parquet ───────────────┘
//! ```
//!
//! A reader holds one record, or one block of a SequenceFile, or one page of each column of a Parquet file, and the
//! limits are in [`limits`](crate::limits). It never trusts a length that it reads: memory grows with the bytes
//! that are there, not with those that are promised.

mod columns;
mod compressed;
mod delimited;
mod error;
mod input;
mod json_lines;
#[cfg(feature = "parquet")]
mod parquet;
mod recognise;
mod sequence;

pub use columns::{Columns, Quoting};
pub(crate) use error::unmarked;
pub use error::{FormatError, Place, Reason};
pub use recognise::{Format, UnknownFormat};

use std::io::Read;
use std::path::PathBuf;

use crate::limits::{LEAST_RECORD_BYTES, RECORD_BYTES};
use error::Failure;
use input::Input;
use recognise::{Content, content};

/// How the files of a dataset are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `None`: recognised for each file, by its content, then by its name.
    pub format: Option<Format>,
    /// Which columns are key and value; not asked of SequenceFiles.
    pub columns: Columns,
    /// Where a Parquet file is kept while it is read, since it is read from its end. `None`: the system's folder.
    pub temporary: Option<PathBuf>,
    /// Whether a sample goes on after a row that is [bad](Reason::is_of_row).
    pub is_tolerant: bool,
    /// The longest record, block or page that is held, uncompressed; what is longer is refused before it is.
    pub most_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            format: None,
            columns: Columns::default(),
            temporary: None,
            is_tolerant: false,
            most_bytes: RECORD_BYTES,
        }
    }
}

impl Options {
    /// The same within the memory of a load: a reader may hold a third of it, and no record longer than any can be.
    pub fn within(mut self, memory_bytes: usize) -> Options {
        self.most_bytes = (memory_bytes / 3).clamp(LEAST_RECORD_BYTES, RECORD_BYTES);
        self
    }
}

/// The records of a file, one at a time.
pub trait Records: Send {
    /// The next key and value, until there are no more. After an error there is nothing more to
    /// be had, unless it is [of a row](Reason::is_of_row): then the rows after it are.
    fn next(&mut self) -> Result<Option<Record<'_>>, FormatError>;
}

/// A key and its value, for as long as the reader is not asked for the next.
pub type Record<'a> = (&'a [u8], &'a [u8]);

/// Begins to read a file. `file` is its name, for the format and for errors.
pub fn records(
    file: &str,
    bytes: impl Read + Send + 'static,
    options: &Options,
) -> Result<Box<dyn Records>, FormatError> {
    begin(file, Input::new(Box::new(bytes)), options).map_err(|failure| failure.of(file))
}

/// What a file is, and some of its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sampled {
    /// The format of the file, as its first bytes, its name and the options say.
    pub format: Format,
    /// The first keys. None of a Parquet file, which a node would have to fetch whole, and which no job partitions by a
    /// hash of Java's.
    pub keys: Vec<Vec<u8>>,
    /// Whether `keys` are all keys of the file.
    pub is_whole: bool,
}

/// Reads so many keys of a file, from its beginning.
pub fn sample(
    file: &str,
    bytes: impl Read + Send + 'static,
    options: &Options,
    most: usize,
) -> Result<Sampled, FormatError> {
    let mut input = Input::new(Box::new(bytes));
    let format = recognised(file, &mut input, options).map_err(|failure| failure.of(file))?.1;
    let mut sampled = Sampled { format, keys: Vec::new(), is_whole: false };
    if format == Format::Parquet {
        return Ok(sampled);
    }
    let mut records = begin(file, input, options).map_err(|failure| failure.of(file))?;
    let mut bad = 0;
    while sampled.keys.len() + bad < most {
        match records.next() {
            Ok(Some((key, _))) => sampled.keys.push(key.to_vec()),
            Ok(None) => return Ok(Sampled { is_whole: true, ..sampled }),
            Err(error) if options.is_tolerant && error.reason.is_of_row() => bad += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(sampled)
}

fn recognised(file: &str, input: &mut Input, options: &Options) -> Result<(Content, Format), Failure> {
    let content = content(input)?;
    Ok((content, recognise::format(file, content, options.format)?))
}

fn begin(file: &str, mut input: Input, options: &Options) -> Result<Box<dyn Records>, Failure> {
    let (content, format) = recognised(file, &mut input, options)?;
    let name = file.to_owned();
    Ok(match format {
        Format::SequenceFile => Box::new(sequence::SequenceFile::open(name, input, options.most_bytes)?),
        Format::Csv | Format::Tsv => {
            let text = compressed::text(file, content, input, options.most_bytes)?;
            Box::new(delimited::Delimited::open(name, text, format, options)?)
        }
        Format::JsonLines => {
            let text = compressed::text(file, content, input, options.most_bytes)?;
            Box::new(json_lines::JsonLines::open(name, text, options)?)
        }
        Format::Parquet => parquet_records(name, input, content, options)?,
    })
}

#[cfg(feature = "parquet")]
fn parquet_records(
    name: String,
    input: Input,
    content: Content,
    options: &Options,
) -> Result<Box<dyn Records>, Failure> {
    if content != Content::Parquet {
        return Err(Failure::at_start(Reason::Foreign { format: Format::Parquet }));
    }
    let reader = parquet::Parquet::open(name, input, options)?;
    Ok(Box::new(reader))
}

#[cfg(not(feature = "parquet"))]
fn parquet_records(_: String, _: Input, _: Content, _: &Options) -> Result<Box<dyn Records>, Failure> {
    Err(Failure::at_start(Reason::NotBuiltIn))
}

#[cfg(test)]
mod tests;
