//! CSV and TSV.
//!
//! CSV as RFC 4180 and everybody writes it: quotes where need be, doubled within. TSV as Hadoop and databases write it:
//! a tabulator ends a field and a line end the row, whatever is between them is the field, quotes included. The dataset's
//! settings may name another delimiter or quote.

use std::io::{self, Read};

use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};

use super::columns::{Columns, Object, Quoting, Selection, add_to_key, find, text};
use super::compressed::Text;
use super::error::{Failure, FormatError, Place, Reason};
use super::recognise::Format;
use super::{Options, Record, Records};
use crate::limits::READ_BYTES;

/// A file of rows with fields.
pub struct Delimited {
    file: String,
    format: Format,
    source: &'static str,
    rows: Reader<RowLimitReader>,
    names: Vec<String>,
    key: Vec<usize>,
    values: Selection,
    row: ByteRecord,
    /// How many fields a row has: as many as the first one.
    fields: Option<usize>,
    /// A first row that is not the header.
    is_row_read: bool,
    /// The key of the current row, where several columns make it up.
    key_bytes: Vec<u8>,
    value: Vec<u8>,
    most_bytes: usize,
}

impl Delimited {
    /// Reads the header, or the first row where there is none.
    pub fn open(
        file: String,
        input: Text,
        format: Format,
        Options { columns, most_bytes, .. }: &Options,
    ) -> Result<Delimited, Failure> {
        columns.key().map_err(Failure::at_start)?;
        let usual = if format == Format::Tsv { b'\t' } else { b',' };
        let delimiter = columns.delimiter.unwrap_or(usual);
        let quote = match columns.quoting {
            Quoting::OfFormat => (format == Format::Csv).then_some(b'"'),
            Quoting::None => None,
            Quoting::By(quote) => Some(quote),
        };
        let is_quoted = quote.is_some();
        let rows = ReaderBuilder::new()
            .has_headers(false)
            // The end's own row has one field: lengths are compared here.
            .flexible(true)
            .delimiter(delimiter)
            .quoting(is_quoted)
            .quote(quote.unwrap_or(b'"'))
            .buffer_capacity(READ_BYTES)
            .from_reader(RowLimitReader {
                stream: input.stream,
                left: 0,
                delimiter,
                end: EndRow::Ahead(is_quoted),
            });
        let mut file = Delimited {
            file,
            format,
            source: input.source,
            rows,
            names: Vec::new(),
            key: Vec::new(),
            values: Selection::Row,
            row: ByteRecord::new(),
            fields: None,
            is_row_read: false,
            key_bytes: Vec::new(),
            value: Vec::new(),
            most_bytes: *most_bytes,
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
        self.rows.get_mut().left = self.most_bytes;
        let is_read = self.rows.read_byte_record(&mut self.row).map_err(|error| {
            let line = error.position().map_or(self.rows.position().line(), csv::Position::line);
            Failure::new(Place::Line(line), self.reason(error))
        })?;
        if !is_read {
            return Ok(false);
        }
        if self.rows.get_ref().is_at_end() {
            let last = self.row.iter().next_back().unwrap_or_default();
            if self.row.len() == 1 && last == END {
                return Ok(false);
            }
            // The end is within the field: a quote was opened before it, and not closed.
            if last.ends_with(&[END, b"\n"].concat()) {
                return Err(self.failure(Reason::CutOff { what: "a quoted field" }));
            }
        }
        let (found, expected) = (self.row.len(), *self.fields.get_or_insert(self.row.len()));
        if found != expected {
            let how = format!("{found} fields where the first row has {expected}");
            return Err(self.failure(self.malformed(&how)));
        }
        Ok(true)
    }

    fn reason(&self, error: csv::Error) -> Reason {
        let how = error.to_string();
        match error.into_kind() {
            ErrorKind::Io(error) if error.get_ref().is_some_and(|e| e.is::<RowTooLong>()) => {
                Reason::record_too_long(self.most_bytes as u64 + 1, self.most_bytes)
            }
            ErrorKind::Io(error) => Reason::uncompressing(self.source, error),
            _ => self.malformed(&how),
        }
    }

    fn malformed(&self, how: &str) -> Reason {
        Reason::Malformed { format: self.format, how: how.to_owned() }
    }

    fn failure(&self, reason: Reason) -> Failure {
        Failure::new(Place::Line(self.row.position().map_or(1, csv::Position::line)), reason)
    }

    /// Writes the key of the row, if it is of several columns.
    fn write_key(&mut self) {
        self.key_bytes.clear();
        if self.key.len() > 1 {
            for (number, column) in self.key.iter().enumerate() {
                add_to_key(&mut self.key_bytes, (number, self.key.len()), &self.row[*column]);
            }
        }
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
        self.check_key()?;
        self.write_key();
        self.write_value()?;
        Ok(true)
    }

    /// Refuses a row whose key is empty: databases write null so, and the row most likely has none. Of several columns one may be
    /// empty.
    fn check_key(&self) -> Result<(), Failure> {
        match self.key.first() {
            Some(first) if self.key.iter().all(|column| self.row[*column].is_empty()) => {
                let column = self.names[*first].clone();
                Err(self.failure(Reason::KeyValue { column, found: "empty" }))
            }
            _ => Ok(()),
        }
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
                let key = match self.key[..] {
                    [one] => &self.row[one],
                    _ => &self.key_bytes,
                };
                Ok(Some((key, value)))
            }
        }
    }
}

/// Gives no more for one row than a record may have, so that a quote that is not closed does not fill the memory; nor do
/// fields without number, each of which takes a few bytes more than stand in the file.
struct RowLimitReader {
    stream: Box<dyn Read + Send>,
    left: usize,
    delimiter: u8,
    end: EndRow,
}

/// A row of its own after the last one: where a quoted field is open at the end of the file, it is read as a part of that.
const END: &[u8] = b"\x01end of the file\x01";

/// How much of [`END`] was given to the reader of rows.
enum EndRow {
    /// The file goes on; whether one is added.
    Ahead(bool),
    /// So many of its bytes were given.
    Given(usize),
}

/// What is kept of each field beside its bytes.
const FIELD_BYTES: usize = size_of::<usize>();

impl RowLimitReader {
    fn is_at_end(&self) -> bool {
        matches!(self.end, EndRow::Given(_))
    }

    fn give_end(&mut self, given: usize, into: &mut [u8]) -> usize {
        let end = [b"\n", END, b"\n"].concat();
        let count = into.len().min(end.len() - given);
        into[..count].copy_from_slice(&end[given..given + count]);
        self.end = EndRow::Given(given + count);
        count
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the row is too long")]
struct RowTooLong;

impl Read for RowLimitReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let EndRow::Given(given) = self.end {
            return Ok(self.give_end(given, into));
        }
        if self.left == 0 {
            return Err(io::Error::other(RowTooLong));
        }
        let most = into.len().min(self.left);
        let count = self.stream.read(&mut into[..most])?;
        if let (0, EndRow::Ahead(true)) = (count, &self.end) {
            return Ok(self.give_end(0, into));
        }
        let fields = into[..count].iter().filter(|byte| **byte == self.delimiter).count();
        self.left = self.left.saturating_sub(count + fields * FIELD_BYTES);
        Ok(count)
    }
}
