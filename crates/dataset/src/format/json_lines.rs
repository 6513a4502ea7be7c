//! JSON Lines: an object on each line.
//!
//! A row that is wanted whole is the line as it stands. Otherwise only the columns that are wanted are kept, and those
//! as they stand in the line: a number loses no digit.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

use serde::Deserializer as _;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::columns::{Object, add_to_key};
use super::compressed::Text;
use super::error::{Failure, FormatError, Place, Reason};
use super::recognise::Format;
use super::{Options, Record, Records};
use crate::limits::READ_BYTES;

/// A file of objects.
pub struct JsonLines {
    file: String,
    source: &'static str,
    lines: BufReader<Box<dyn Read + Send>>,
    number: u64,
    /// No line was read yet.
    is_first: bool,
    line: Vec<u8>,
    most_bytes: usize,
    /// The key's columns, then those of the value.
    columns: Vec<String>,
    /// How many are the key's.
    key_columns: usize,
    key: Vec<u8>,
    /// One column of the key, before it is added.
    part: Vec<u8>,
    value: Vec<u8>,
}

impl JsonLines {
    /// Begins before the first line.
    pub fn open(file: String, text: Text, options: &Options) -> Result<JsonLines, Failure> {
        let columns = &options.columns;
        let key = columns.key().map_err(Failure::at_start)?;
        Ok(JsonLines {
            file,
            source: text.source,
            lines: BufReader::with_capacity(READ_BYTES, text.stream),
            number: 0,
            is_first: true,
            line: Vec::new(),
            most_bytes: options.most_bytes,
            columns: key.iter().chain(&columns.values).cloned().collect(),
            key_columns: key.len(),
            key: Vec::new(),
            part: Vec::new(),
            value: Vec::new(),
        })
    }

    /// Reads to the next line that is not empty.
    fn read_line(&mut self) -> Result<bool, Reason> {
        loop {
            self.line.clear();
            self.number += 1;
            let limit = self.most_bytes as u64 + 1;
            let read = self.lines.by_ref().take(limit).read_until(b'\n', &mut self.line);
            let count = read.map_err(|error: io::Error| Reason::uncompressing(self.source, error))?;
            if count == 0 {
                return Ok(false);
            }
            if count > self.most_bytes {
                if self.is_first && is_list(&self.line) {
                    return Err(Reason::JsonList);
                }
                return Err(Reason::record_too_long(count as u64, self.most_bytes));
            }
            if self.number == 1 && self.line.starts_with(b"\xef\xbb\xbf") {
                self.line.drain(..3);
            }
            self.line.truncate(self.line.trim_ascii_end().len());
            if !self.line.is_empty() {
                return Ok(true);
            }
        }
    }

    fn read_row(&mut self) -> Result<(), Reason> {
        let JsonLines { line, columns, key_columns, key, part, value, .. } = self;
        let fields = fields(line, columns)?;
        let (key_fields, value_fields) = fields.split_at(*key_columns);
        key.clear();
        for (number, field) in key_fields.iter().enumerate() {
            part.clear();
            write_key(part, &columns[number], field.get())?;
            add_to_key(key, (number, *key_columns), part);
        }
        value.clear();
        match value_fields {
            [] => {}
            [one] => write_plain(value, one.get())?,
            several => {
                let mut object = Object::begin(value);
                for (name, field) in columns[*key_columns..].iter().zip(several) {
                    object.field(name).extend_from_slice(field.get().as_bytes());
                }
                object.end();
            }
        }
        Ok(())
    }
}

impl Records for JsonLines {
    fn next(&mut self) -> Result<Option<Record<'_>>, FormatError> {
        match self.read_line() {
            Ok(false) => return Ok(None),
            Ok(true) => {}
            Err(reason) => return Err(Failure::new(Place::Line(self.number), reason).of(&self.file)),
        }
        // No row of its own: with a tolerance for bad rows those lines of it would be taken that happen to be objects.
        if std::mem::take(&mut self.is_first) && is_list(&self.line) {
            return Err(Failure::new(Place::Line(self.number), Reason::JsonList).of(&self.file));
        }
        if let Err(reason) = self.read_row() {
            return Err(Failure::new(Place::Line(self.number), reason).of(&self.file));
        }
        let value = if self.columns.len() == self.key_columns { &self.line } else { &self.value };
        Ok(Some((&self.key, value)))
    }
}

/// Whether a file that begins so is one JSON list. A line of a log may begin with a bracket, too.
fn is_list(line: &[u8]) -> bool {
    let inner = line.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    inner.is_some_and(|inner| inner.first().is_none_or(|first| b"[{]".contains(first)))
}

/// The fields of these columns, as they stand in the line.
fn fields<'a>(line: &'a [u8], columns: &[String]) -> Result<Vec<&'a RawValue>, Reason> {
    let malformed = |error: serde_json::Error| Reason::Malformed {
        format: Format::JsonLines,
        how: format!("{error}; each line is one object"),
    };
    let mut reader = serde_json::Deserializer::from_slice(line);
    let fields = reader.deserialize_map(ColumnsVisitor(columns)).map_err(malformed)?;
    reader.end().map_err(malformed)?;
    let field = |column: &String| {
        // The key may be part of the value too: a field is kept at the first of equal columns.
        let first = columns.iter().position(|other| other == column);
        first.and_then(|first| fields[first]).ok_or_else(|| Reason::Missing { column: column.clone() })
    };
    columns.iter().map(field).collect()
}

fn write_key(into: &mut Vec<u8>, column: &str, field: &str) -> Result<(), Reason> {
    let found = match field.as_bytes().first() {
        Some(b'n') => "null",
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        _ => return write_plain(into, field),
    };
    Err(Reason::KeyValue { column: column.to_owned(), found })
}

/// Text without its quotes, null as nothing, all else as it stands.
fn write_plain(into: &mut Vec<u8>, field: &str) -> Result<(), Reason> {
    if field.starts_with('"') {
        let text: String = serde_json::from_str(field)
            .map_err(|error| Reason::Malformed { format: Format::JsonLines, how: error.to_string() })?;
        into.extend_from_slice(text.as_bytes());
    } else if field != "null" {
        into.extend_from_slice(field.as_bytes());
    }
    Ok(())
}

/// Keeps the fields of these columns of an object, the last of equal names.
struct ColumnsVisitor<'c>(&'c [String]);

impl<'de> Visitor<'de> for ColumnsVisitor<'_> {
    type Value = Vec<Option<&'de RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = vec![None; self.0.len()];
        while let Some(column) = map.next_key_seed(ColumnSeed(self.0))? {
            match column {
                Some(column) => fields[column] = Some(map.next_value()?),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(fields)
    }
}

/// Which of the columns a name is.
struct ColumnSeed<'c>(&'c [String]);

impl<'de> DeserializeSeed<'de> for ColumnSeed<'_> {
    type Value = Option<usize>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Option<usize>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for ColumnSeed<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Option<usize>, E> {
        Ok(self.0.iter().position(|column| column == name))
    }
}
