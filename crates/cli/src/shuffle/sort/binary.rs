//! Records of a fixed length, which begin with their key.

use super::layout::{PartWriter, Piece, Take, Wanted, cannot_write, length, pieces_of};
use crate::output::Failure;
use partage_core::limits::{SHUFFLE_KEY_BYTES, SHUFFLE_RECORD_BYTES};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

/// Bytes that are read and written at once.
const BUFFER_BYTES: usize = 1 << 20;

/// How long records and their keys are.
#[derive(Debug, Clone, Copy)]
pub struct Binary {
    record: usize,
    key: usize,
}

impl Binary {
    /// See [`super::layout::Layout::of`].
    pub fn of(files: &[PathBuf], wanted: &Wanted, piece: u64) -> Result<(Binary, Vec<Piece>), Failure> {
        if !wanted.by.is_empty() {
            return Err(Failure::usage("--by is for files with columns").help(
                "sort records of a fixed length by their first bytes: give --record BYTES and --key BYTES",
            ));
        }
        let (Some(record), Some(key)) = (wanted.record, wanted.key) else {
            return Err(Failure::usage("it is not said how long records and their keys are")
                .help("give --record BYTES and --key BYTES, such as --record 100 --key 10"));
        };
        if key == 0 || key > record || key > SHUFFLE_KEY_BYTES as u64 {
            let most = record.min(SHUFFLE_KEY_BYTES as u64);
            return Err(Failure::usage(format!(
                "--key {key} is no length of a key of records of {record} bytes"
            ))
            .help(format!("give --key 1 to --key {most}")));
        }
        if record > SHUFFLE_RECORD_BYTES as u64 {
            return Err(Failure::usage(format!("--record {record} is longer than records may be"))
                .help(format!("records may have {SHUFFLE_RECORD_BYTES} bytes")));
        }
        let mut pieces = Vec::new();
        for file in files {
            let bytes = length(file)?;
            if !bytes.is_multiple_of(record) {
                let (whole, rest, name) = (bytes / record, bytes % record, file.display());
                let what = format!(
                    "{name} has {bytes} bytes, which are {whole} records of {record} bytes and {rest} bytes more"
                );
                return Err(Failure::usage(what).help("give the length of its records with --record BYTES"));
            }
            pieces.extend(pieces_of(file, bytes, piece, record));
        }
        Ok((Binary { record: record as usize, key: key as usize }, pieces))
    }

    /// See [`super::layout::Layout::read`].
    pub fn read(&self, piece: &Piece, take: &mut Take<'_>) -> Result<(), Failure> {
        let cannot = |error: std::io::Error| piece.cannot_read(error);
        let mut file = piece.open()?;
        file.seek(SeekFrom::Start(piece.begin)).map_err(cannot)?;
        let mut file = BufReader::with_capacity(BUFFER_BYTES, file.take(piece.end - piece.begin));
        let mut record = vec![0; self.record];
        for number in 1..=(piece.end - piece.begin) / self.record as u64 {
            file.read_exact(&mut record).map_err(cannot)?;
            let (key, value) = record.split_at(self.key);
            if !take(key, value, number * self.record as u64) {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Writes keys and values as they are.
pub struct RecordWriter(BufWriter<File>);

impl RecordWriter {
    /// To that file.
    pub fn new(file: File) -> RecordWriter {
        RecordWriter(BufWriter::with_capacity(BUFFER_BYTES, file))
    }
}

impl PartWriter for RecordWriter {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.0.write_all(key).and_then(|()| self.0.write_all(value)).map_err(cannot_write)
    }

    fn end(self: Box<Self>) -> Result<File, Failure> {
        self.0.into_inner().map_err(cannot_write)
    }
}
