//! CSV and TSV.
//!
//! CSV as RFC 4180 and everybody writes it: quotes where need be, doubled within. TSV as Hadoop and databases write it:
//! a tabulator ends a field and a line end the row, whatever is between them is the field, quotes included.

use std::io::{self, Read};

use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};

use super::columns::{Columns, Object, Selection, find, text};
use super::compressed::Text;
use super::error::{Failure, FormatError, Place, Reason};
use super::recognise::Format;
use super::{Record, Records};
use crate::limits::{READ_BYTES, RECORD_BYTES};

/// A file of rows with fields.
pub struct Delimited {
    file: String,
    format: Format,
    source: &'static str,
    rows: Reader<Rationed>,
    names: Vec<String>,
    key: usize,
    values: Selection,
    row: ByteRecord,
    /// A first row that is not the header.
    is_row_read: bool,
    value: Vec<u8>,
}

impl Delimited {
    /// Reads the header, or the first row where there is none.
    pub fn open(file: String, input: Text, format: Format, columns: &Columns) -> Result<Delimited, Failure> {
        columns.key().map_err(Failure::at_start)?;
        let rows = ReaderBuilder::new()
            .has_headers(false)
            .delimiter(if format == Format::Tsv { b'\t' } else { b',' })
            .quoting(format == Format::Csv)
            .buffer_capacity(READ_BYTES)
            .from_reader(Rationed { stream: input.stream, left: 0 });
        let mut file = Delimited {
            file,
            format,
            source: input.source,
            rows,
            names: Vec::new(),
            key: 0,
            values: Selection::Row,
            row: ByteRecord::new(),
            is_row_read: false,
            value: Vec::new(),
        };
        file.begin(columns)?;
        Ok(file)
    }

    fn begin(&mut self, columns: &Columns) -> Result<(), Failure> {
        if !self.read_row()? {
            // A file without a byte has no rows, and no columns that could be missing.
            return Ok(());
        }
        if columns.header {
            let utf8 = |field: &[u8]| String::from_utf8(field.to_vec());
            let names = self.row.iter().map(utf8).collect::<Result<Vec<_>, _>>();
            self.names = names.map_err(|_| self.failure(self.malformed("the header is not UTF-8")))?;
        } else {
            self.names = (1..=self.row.len()).map(|number| number.to_string()).collect();
            self.is_row_read = true;
        }
        (self.key, self.values) = find(columns, &self.names).map_err(|reason| self.failure(reason))?;
        Ok(())
    }

    fn read_row(&mut self) -> Result<bool, Failure> {
        self.rows.get_mut().left = RECORD_BYTES;
        self.rows.read_byte_record(&mut self.row).map_err(|error| {
            let line = error.position().map_or(self.rows.position().line(), csv::Position::line);
            Failure::new(Place::Line(line), self.reason(error))
        })
    }

    fn reason(&self, error: csv::Error) -> Reason {
        let how = error.to_string();
        match error.into_kind() {
            ErrorKind::Io(error) if error.get_ref().is_some_and(|e| e.is::<RationOver>()) => {
                Reason::record_too_long(RECORD_BYTES as u64 + 1)
            }
            ErrorKind::Io(error) => Reason::uncompressing(self.source, error),
            ErrorKind::UnequalLengths { expected_len, len, .. } => {
                self.malformed(&format!("{len} fields where the first row has {expected_len}"))
            }
            _ => self.malformed(&how),
        }
    }

    fn malformed(&self, how: &str) -> Reason {
        Reason::Malformed { format: self.format, how: how.to_owned() }
    }

    fn failure(&self, reason: Reason) -> Failure {
        Failure::new(Place::Line(self.row.position().map_or(1, csv::Position::line)), reason)
    }

    /// Writes the value of the row.
    fn write_value(&mut self) -> Result<(), Failure> {
        self.value.clear();
        let mut value = std::mem::take(&mut self.value);
        let written = match &self.values {
            Selection::One(_) => Ok(()),
            Selection::Row => self.write_fields(&mut value, 0..self.names.len()),
            Selection::Several(columns) => self.write_fields(&mut value, columns.iter().copied()),
        };
        self.value = value;
        written
    }

    fn write_fields(&self, value: &mut Vec<u8>, columns: impl Iterator<Item = usize>) -> Result<(), Failure> {
        let mut object = Object::begin(value);
        for column in columns {
            let name = &self.names[column];
            let field = std::str::from_utf8(&self.row[column])
                .map_err(|_| self.failure(self.malformed(&format!("column {name:?} is not UTF-8"))))?;
            text(object.field(name), field);
        }
        object.end();
        Ok(())
    }

    fn advance(&mut self) -> Result<bool, Failure> {
        if !std::mem::take(&mut self.is_row_read) && !self.read_row()? {
            return Ok(false);
        }
        self.write_value()?;
        Ok(true)
    }
}

impl Records for Delimited {
    fn next(&mut self) -> Result<Option<Record<'_>>, FormatError> {
        match self.advance() {
            Err(failure) => Err(failure.of(&self.file)),
            Ok(false) => Ok(None),
            Ok(true) => {
                let value = match self.values {
                    Selection::One(column) => &self.row[column],
                    Selection::Row | Selection::Several(_) => &self.value,
                };
                Ok(Some((&self.row[self.key], value)))
            }
        }
    }
}

/// Gives no more for one row than a record may have, so that a quote that is not closed does not fill the memory.
struct Rationed {
    stream: Box<dyn Read + Send>,
    left: usize,
}

#[derive(Debug, thiserror::Error)]
#[error("the row is too long")]
struct RationOver;

impl Read for Rationed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::Error::other(RationOver));
        }
        let most = into.len().min(self.left);
        let count = self.stream.read(&mut into[..most])?;
        self.left -= count;
        Ok(count)
    }
}
