//! How files have their records: what is a key of them, what goes with it, and how a part is written.
//!
//! | format | key | value | what is split into input partitions |
//! |---|---|---|---|
//! | binary | the first bytes of a record | the others | records |
//! | CSV | columns ([`partage_shuffle_client::key`]) | the row as it is written | nothing: a line break may stand in quotes |
//! | JSON Lines | fields | the line | lines |
//! | Parquet | columns | all columns of the row | row groups |

use super::by::By;
use super::{binary, delimited, json_lines, parquet};
use crate::output::Failure;
use clap::ValueEnum;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The format of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Records of a fixed length, which begin with their key
    Binary,
    /// Fields between commas, with their names in the first line
    Csv,
    /// A JSON object in each line
    Jsonl,
    /// Apache Parquet
    Parquet,
}

impl Format {
    /// The format that the name of a file says.
    pub fn of_name(file: &Path) -> Option<Format> {
        match file.extension()?.to_str()? {
            "bin" | "dat" => Some(Format::Binary),
            "csv" => Some(Format::Csv),
            "jsonl" | "ndjson" => Some(Format::Jsonl),
            "parquet" => Some(Format::Parquet),
            _ => None,
        }
    }
}

/// An input partition: a part of a file, in bytes, or in row groups of Parquet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The file.
    pub file: PathBuf,
    /// Where it begins.
    pub begin: u64,
    /// Before which place it ends.
    pub end: u64,
}

impl Piece {
    /// What failures call it.
    pub fn name(&self) -> String {
        self.file.display().to_string()
    }

    /// The file, opened.
    pub fn open(&self) -> Result<File, Failure> {
        open(&self.file)
    }

    /// What is wrong with the file while it is read.
    pub fn cannot_read(&self, error: impl std::fmt::Display) -> Failure {
        Failure::failed(format!("cannot read {} any further: {error}", self.name()))
    }
}

/// A file that is to be sorted.
pub fn open(file: &Path) -> Result<File, Failure> {
    File::open(file).map_err(|error| {
        Failure::usage(format!("cannot read {}: {error}", file.display())).help("name files that are there")
    })
}

/// Bytes of a file.
pub fn length(file: &Path) -> Result<u64, Failure> {
    let metadata = open(file)?.metadata();
    let metadata =
        metadata.map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))?;
    if !metadata.is_file() {
        let what = format!("{} is no file", file.display());
        return Err(Failure::usage(what).help(
            "name files: an attempt that fails reads its part again, which a pipe or folder cannot give",
        ));
    }
    Ok(metadata.len())
}

/// Divides `bytes` of a file into pieces of about `piece` bytes, each a multiple of `unit`.
pub fn pieces_of(file: &Path, bytes: u64, piece: u64, unit: u64) -> Vec<Piece> {
    let piece = piece.div_ceil(unit).max(1) * unit;
    let begins = (0..bytes).step_by(usize::try_from(piece).unwrap_or(usize::MAX));
    begins
        .map(|begin| Piece { file: file.to_owned(), begin, end: (begin.saturating_add(piece)).min(bytes) })
        .collect()
}

/// What takes the records of a piece: key, value, and how many bytes of the file were read so far. Where it says no, the rest is
/// not read.
pub type Take<'a> = dyn FnMut(&[u8], &[u8], u64) -> bool + 'a;

/// How the files have their records.
#[derive(Debug)]
pub enum Layout {
    Binary(binary::Binary),
    Csv(delimited::Csv),
    JsonLines(json_lines::JsonLines),
    Parquet(Box<parquet::Parquet>),
}

/// What says how files have their records.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub format: Format,
    pub record: Option<u64>,
    pub key: Option<u64>,
    pub by: Vec<By>,
}

impl Layout {
    /// Of files that all have the same format, with their input partitions, each of about `piece` bytes.
    ///
    /// # Errors
    /// A file is not there, is not of that format, or has no such column.
    pub fn of(files: &[PathBuf], wanted: &Wanted, piece: u64) -> Result<(Layout, Vec<Piece>), Failure> {
        if wanted.format != Format::Binary && (wanted.record.is_some() || wanted.key.is_some()) {
            return Err(Failure::usage("--record and --key are for records of a fixed length")
                .help("leave them out, or give --format binary"));
        }
        match wanted.format {
            Format::Binary => {
                let (binary, pieces) = binary::Binary::of(files, wanted, piece)?;
                Ok((Layout::Binary(binary), pieces))
            }
            _ if wanted.by.is_empty() => Err(Failure::usage("it is not said by what the rows are sorted")
                .help("give --by COLUMN, or --by COLUMN:desc; several --by sort by the first column first")),
            Format::Csv => {
                let (csv, pieces) = delimited::Csv::of(files, &wanted.by)?;
                Ok((Layout::Csv(csv), pieces))
            }
            Format::Jsonl => {
                let (lines, pieces) = json_lines::JsonLines::of(files, &wanted.by, piece)?;
                Ok((Layout::JsonLines(lines), pieces))
            }
            Format::Parquet => {
                let (parquet, pieces) = parquet::Parquet::of(files, &wanted.by)?;
                Ok((Layout::Parquet(Box::new(parquet)), pieces))
            }
        }
    }

    /// Gives the records of a piece to `take`, in their order.
    ///
    /// # Errors
    /// The file cannot be read, or a row has no key; the failure names its place.
    pub fn read(&self, piece: &Piece, take: &mut Take<'_>) -> Result<(), Failure> {
        match self {
            Layout::Binary(binary) => binary.read(piece, take),
            Layout::Csv(csv) => csv.read(piece, take),
            Layout::JsonLines(lines) => lines.read(piece, take),
            Layout::Parquet(parquet) => parquet.read(piece, take),
        }
    }

    /// What is found only when all pieces were read: that no row has a field by which rows are sorted.
    pub fn all_read(&self) -> Result<(), Failure> {
        match self {
            Layout::JsonLines(lines) => lines.all_read(),
            Layout::Binary(_) | Layout::Csv(_) | Layout::Parquet(_) => Ok(()),
        }
    }

    /// Writes a part.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn writer(&self, file: File) -> Result<Box<dyn PartWriter>, Failure> {
        match self {
            Layout::Binary(_) => Ok(Box::new(binary::RecordWriter::new(file))),
            Layout::Csv(csv) => csv.writer(file),
            Layout::JsonLines(_) => Ok(Box::new(json_lines::LineWriter::new(file))),
            Layout::Parquet(parquet) => parquet.writer(file),
        }
    }
}

/// Writes one part.
pub trait PartWriter {
    /// The next record.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure>;

    /// There are no more; all is written to the file.
    fn end(self: Box<Self>) -> Result<File, Failure>;
}

/// What is wrong with a part.
pub fn cannot_write(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("cannot write a part: {error}"))
        .help("make room where -o is, or name another folder with -o")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_all_of_a_file_in_order_at_multiples_of_a_unit() {
        let places = |bytes, piece, unit| -> Vec<(u64, u64)> {
            let pieces = pieces_of(Path::new("f"), bytes, piece, unit);
            pieces.iter().map(|piece| (piece.begin, piece.end)).collect()
        };
        assert!(places(0, 10, 1).is_empty());
        assert_eq!(places(25, 10, 1), [(0, 10), (10, 20), (20, 25)]);
        assert_eq!(places(700, 150, 100), [(0, 200), (200, 400), (400, 600), (600, 700)]);
    }
}
