//! Apache Parquet, by its own library.
//!
//! A Parquet file is read from its end, so it is first copied to a temporary file without a name. Only the columns that
//! are wanted are read, a page of each at a time, within a bound of memory ([`bounded`]).
//!
//! The library trusts a file more than we do: it may panic over a damaged one. That is caught here and is an
//! error like any other.

mod bounded;
mod compact;
mod footer;
mod page_header;
mod paths;
mod shape;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::FileReader;
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::Type;

use super::columns::{Object, Selection, add_to_key, find};
use super::error::{Failure, FormatError, Place, Reason};
use super::input::Input;
use super::recognise::Format;
use super::{Options, Record, Records};
use bounded::{BoundedFile, MemoryBudget, TooLarge};
use paths::SchemaColumns;

/// A file of rows with typed fields.
pub struct Parquet {
    file: String,
    rows: RowIter<'static>,
    /// The columns that are read: those of the key and of the value.
    columns: SchemaColumns,
    key: Vec<usize>,
    values: Selection,
    number: u64,
    memory: Arc<MemoryBudget>,
    most_bytes: usize,
    key_bytes: Vec<u8>,
    /// One column of the key, before it is added.
    part: Vec<u8>,
    value_bytes: Vec<u8>,
}

impl Parquet {
    /// Copies the file, reads its footer and finds the columns.
    pub fn open(
        file: String,
        input: Input,
        Options { columns, temporary, most_bytes, .. }: &Options,
    ) -> Result<Parquet, Failure> {
        columns.key().map_err(Failure::at_start)?;
        let mut copy = copy(input, temporary.as_deref())?;
        is_whole(&mut copy).map_err(Failure::at_start)?;
        let (most_bytes, memory) = (*most_bytes, MemoryBudget::new(*most_bytes));
        let opened = guarded(|| BoundedFile::open(copy, Arc::clone(&memory))).map_err(Failure::at_start)?;
        is_readable(opened.metadata()).map_err(Failure::at_start)?;
        let schema = opened.metadata().file_metadata().schema();
        let all = SchemaColumns::of(schema);
        let wanted = find(columns, &all.names).map_err(Failure::at_start)?;
        let wanted = projection(schema, &all, &wanted).map_err(Failure::at_start)?;
        let read = SchemaColumns::of(&wanted);
        let (key, values) = find(columns, &read.names).map_err(Failure::at_start)?;
        let batch = opened.batch();
        let rows = guarded(|| RowIter::from_file_into(Box::new(opened)).project(Some(wanted)));
        let rows = rows.map_err(Failure::at_start)?.with_batch_size(batch);
        Ok(Parquet {
            file,
            rows,
            columns: read,
            key,
            values,
            number: 0,
            memory,
            most_bytes,
            key_bytes: Vec::new(),
            part: Vec::new(),
            value_bytes: Vec::new(),
        })
    }

    fn read_row(&mut self) -> Result<bool, Reason> {
        self.memory.next_row();
        let Some(row) = guarded(|| self.rows.next().transpose())? else { return Ok(false) };
        if row.len() != self.columns.top {
            return Err(damaged(format!("a row of {} columns, not {}", row.len(), self.columns.top)));
        }
        self.key_bytes.clear();
        for (number, column) in self.key.iter().enumerate() {
            let field = field(&self.columns, &row, *column)?;
            let found = match field {
                Field::Null => Some("null"),
                Field::Group(_) | Field::MapInternal(_) => Some("an object"),
                Field::ListInternal(_) => Some("a list"),
                _ => None,
            };
            if let Some(found) = found {
                return Err(Reason::KeyValue { column: self.columns.names[*column].clone(), found });
            }
            self.part.clear();
            write_plain(&mut self.part, field)?;
            add_to_key(&mut self.key_bytes, (number, self.key.len()), &self.part);
        }
        self.value_bytes.clear();
        let (into, columns) = (&mut self.value_bytes, &self.columns);
        match &self.values {
            Selection::One(column) => write_plain(into, field(columns, &row, *column)?)?,
            Selection::Row => write_object(into, columns, &row, 0..columns.top)?,
            Selection::Several(several) => write_object(into, columns, &row, several.iter().copied())?,
        }
        match self.key_bytes.len() + self.value_bytes.len() {
            bytes if bytes > self.most_bytes => Err(Reason::record_too_long(bytes as u64, self.most_bytes)),
            _ => Ok(true),
        }
    }
}

impl Records for Parquet {
    fn next(&mut self) -> Result<Option<Record<'_>>, FormatError> {
        self.number += 1;
        match self.read_row() {
            Ok(true) => Ok(Some((&self.key_bytes, &self.value_bytes))),
            Ok(false) => Ok(None),
            Err(reason) => Err(Failure::new(Place::Row(self.number), reason).of(&self.file)),
        }
    }
}

/// A file that can be read from its end, and vanishes when it is closed.
fn copy(mut input: Input, temporary: Option<&Path>) -> Result<File, Failure> {
    let (file, folder) = match temporary {
        Some(folder) => (tempfile::tempfile_in(folder), folder.to_owned()),
        None => (tempfile::tempfile(), PathBuf::from("the folder for temporary files")),
    };
    let failed = |source| Reason::Temporary { folder: folder.clone(), source };
    let mut file = file.map_err(failed).map_err(Failure::at_start)?;
    loop {
        let at = input.at();
        let piece = input.next_piece()?;
        if piece.is_empty() {
            return Ok(file);
        }
        file.write_all(piece).map_err(failed).map_err(|reason| Failure::at(at, reason))?;
    }
}

/// The columns that are wanted, in the order of the file.
fn projection(
    schema: &Type,
    columns: &SchemaColumns,
    (key, values): &(Vec<usize>, Selection),
) -> Result<Type, Reason> {
    let is_wanted = |column: usize| match values {
        Selection::Row => true,
        Selection::One(value) => column == *value || key.contains(&column),
        Selection::Several(values) => values.contains(&column) || key.contains(&column),
    };
    columns.projection(schema, is_wanted).map_err(of_library)
}

fn field<'a>(columns: &SchemaColumns, row: &'a Row, column: usize) -> Result<&'a Field, Reason> {
    let lacks =
        || damaged(format!("a row that does not have {:?} as its schema says", columns.names[column]));
    columns.field(row, column).ok_or_else(lacks)
}

fn write_object(
    into: &mut Vec<u8>,
    columns: &SchemaColumns,
    row: &Row,
    wanted: impl Iterator<Item = usize>,
) -> Result<(), Reason> {
    let mut object = Object::begin(into);
    for column in wanted {
        write_json(object.field(&columns.names[column]), field(columns, row, column)?)?;
    }
    object.end();
    Ok(())
}

/// Text and bytes as they are, null as nothing, a time without quotes, all else as JSON.
fn write_plain(into: &mut Vec<u8>, field: &Field) -> Result<(), Reason> {
    match field {
        Field::Null => {}
        Field::Bytes(bytes) => into.extend_from_slice(bytes.data()),
        Field::Str(text) => into.extend_from_slice(text.as_bytes()),
        Field::Group(_) | Field::ListInternal(_) | Field::MapInternal(_) => write_json(into, field)?,
        field => match guarded(|| Ok(scalar(field)))? {
            serde_json::Value::String(text) => into.extend_from_slice(text.as_bytes()),
            json => into.extend_from_slice(json.to_string().as_bytes()),
        },
    }
    Ok(())
}

/// As JSON: a struct is an object, a list a list, a map an object whose names are its keys.
fn write_json(into: &mut Vec<u8>, field: &Field) -> Result<(), Reason> {
    let json = guarded(|| Ok(json(field)))?;
    into.extend_from_slice(json.to_string().as_bytes());
    Ok(())
}

/// Goes as deep as the schema, which the library has gone down before.
fn json(field: &Field) -> serde_json::Value {
    use serde_json::Value;
    match field {
        Field::Group(row) => {
            let fields = row.get_column_iter().map(|(name, field)| (name.clone(), json(field)));
            Value::Object(fields.collect())
        }
        Field::ListInternal(list) => Value::Array(list.elements().iter().map(json).collect()),
        Field::MapInternal(map) => {
            let name = |field: &Field| match scalar(field) {
                Value::String(text) => text,
                other => other.to_string(),
            };
            let fields = map.entries().iter().map(|(key, value)| (name(key), json(value)));
            Value::Object(fields.collect())
        }
        field => scalar(field),
    }
}

/// What is no struct, list or map. The library writes times with a blank where RFC 3339 has a T, and the offset apart.
fn scalar(field: &Field) -> serde_json::Value {
    match (field, field.to_json_value()) {
        (Field::TimestampMillis(_) | Field::TimestampMicros(_), serde_json::Value::String(text)) => {
            let text = text.strip_suffix(" +00:00").unwrap_or(&text);
            serde_json::Value::String(format!("{}Z", text.replacen(' ', "T", 1)))
        }
        (_, json) => json,
    }
}

/// Calls the library, and takes a panic of it for what it is: a file that it did not expect.
fn guarded<T>(call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, Reason> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => Err(of_library(error)),
        Err(_) => Err(damaged("its library gave it up".to_owned())),
    }
}

/// Whether the file's end is there. What lacks beyond that is not cut off but damaged.
fn is_whole(file: &mut File) -> Result<(), Reason> {
    let cut_off = || Reason::CutOff { what: "the Parquet file" };
    let mut last = [0; MAGIC.len()];
    let end = file.seek(SeekFrom::End(-(MAGIC.len() as i64))).and_then(|_| file.read_exact(&mut last));
    end.map_err(|_: io::Error| cut_off())?;
    match last.iter().zip(MAGIC).filter(|(found, byte)| found == byte).count() {
        4 => Ok(()),
        3 => Err(damaged(format!("it ends in {:?}, not in PAR1", String::from_utf8_lossy(&last)))),
        _ => Err(cut_off()),
    }
}

const MAGIC: &[u8; 4] = b"PAR1";

fn of_library(error: ParquetError) -> Reason {
    match error {
        ParquetError::External(error) if error.is::<TooLarge>() => {
            let Ok(TooLarge { what, bytes, limit }) = error.downcast::<TooLarge>().map(|error| *error) else {
                return damaged("its library gave it up".to_owned());
            };
            Reason::TooLong {
                what,
                bytes,
                limit,
                way_out: "write it with smaller pages, name fewer columns, or give the node a larger load_memory_mib",
            }
        }
        ParquetError::EOF(how) => damaged(how),
        ParquetError::NeedMoreData(bytes) => {
            damaged(format!("a footer of {bytes} bytes, more than there are"))
        }
        error @ ParquetError::NYI(_) => Reason::Malformed { format: Format::Parquet, how: error.to_string() },
        ParquetError::General(how) => damaged(how),
        ParquetError::External(error) => damaged(error.to_string()),
        error => damaged(error.to_string()),
    }
}

/// Whether all columns are compressed in a way that is read here: the library takes the others for damage.
fn is_readable(metadata: &ParquetMetaData) -> Result<(), Reason> {
    let columns = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
    let mut codecs = columns.map(ColumnChunkMetaData::compression);
    match codecs.find(|codec| matches!(codec, Compression::BROTLI(_) | Compression::LZO)) {
        Some(codec) => {
            let how =
                format!("its columns are compressed by {codec}, which is not read here; write it with zstd");
            Err(Reason::Malformed { format: Format::Parquet, how })
        }
        None => Ok(()),
    }
}

fn damaged(how: String) -> Reason {
    Reason::Damaged { what: "the Parquet file", how }
}
