//! CSV, with the names of the columns in the first line.
//!
//! A field is a text, ordered by its bytes, or with `:number` a number. A field that is empty is null. The parts have the first
//! line of the files, and each row as it was, with quotes where it needs them.

use super::by::By;
use super::layout::{PartWriter, Piece, Take, cannot_write, length};
use crate::output::Failure;
use crate::table::{Bounded, ROW_BYTES};
use csv::{ByteRecord, Reader, ReaderBuilder};
use partage_shuffle_client::key::{Order, Value, put};
use std::cell::Cell;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::rc::Rc;

/// A column by which rows are sorted.
#[derive(Debug)]
struct Column {
    name: String,
    at: usize,
    is_number: bool,
    order: Order,
}

/// The columns of CSV files.
#[derive(Debug)]
pub struct Csv {
    /// The first line.
    header: Vec<u8>,
    columns: Vec<Column>,
}

fn reader(file: File, left: &Rc<Cell<u64>>) -> Reader<Bounded<File>> {
    ReaderBuilder::new().from_reader(Bounded { inner: file, left: Rc::clone(left) })
}

fn whole(file: PathBuf, bytes: u64) -> Piece {
    Piece { file, begin: 0, end: bytes }
}

impl Csv {
    /// See [`super::layout::Layout::of`].
    pub fn of(files: &[PathBuf], by: &[By]) -> Result<(Csv, Vec<Piece>), Failure> {
        let mut pieces = Vec::new();
        let mut first: Option<(String, ByteRecord)> = None;
        for file in files {
            let piece = whole(file.clone(), length(file)?);
            let mut reader = reader(piece.open()?, &Rc::new(Cell::new(ROW_BYTES)));
            let header = reader.byte_headers().map_err(|error| piece.cannot_read(error))?;
            match &first {
                Some((name, first)) if first != header => {
                    return Err(Failure::usage(format!(
                        "the first line of {} names other columns than that of {name}",
                        piece.name()
                    ))
                    .help("sort files with the same columns together"));
                }
                Some(_) => {}
                None => first = Some((piece.name(), header.clone())),
            }
            pieces.push(piece);
        }
        let (name, header) = first.unwrap_or_default();
        let columns = by.iter().map(|by| column(by, &name, &header)).collect::<Result<_, _>>()?;
        let mut line = Vec::new();
        put_row(&header, &mut line);
        Ok((Csv { header: line, columns }, pieces))
    }

    /// See [`super::layout::Layout::read`].
    pub fn read(&self, piece: &Piece, take: &mut Take<'_>) -> Result<(), Failure> {
        let left = Rc::new(Cell::new(ROW_BYTES));
        let mut reader = reader(piece.open()?, &left);
        let (mut record, mut key, mut row) = (ByteRecord::new(), Vec::new(), Vec::new());
        // Before the first row the reader reads the first line.
        reader.byte_headers().map_err(|error| piece.cannot_read(error))?;
        loop {
            left.set(ROW_BYTES);
            if !reader.read_byte_record(&mut record).map_err(|error| piece.cannot_read(error))? {
                return Ok(());
            }
            key.clear();
            row.clear();
            self.key(&record, &mut key).map_err(|why| {
                let line = record.position().map_or(0, csv::Position::line);
                Failure::refused(format!("{}: line {line}: {why}", piece.name()))
                    .help("mend that row, or sort the column as text")
            })?;
            put_row(&record, &mut row);
            if !take(&key, &row, reader.position().byte()) {
                return Ok(());
            }
        }
    }

    fn key(&self, record: &ByteRecord, key: &mut Vec<u8>) -> Result<(), String> {
        for Column { name, at, is_number, order } in &self.columns {
            let field = record.get(*at).unwrap_or_default();
            let value = match field {
                [] => Value::Null,
                field if *is_number => number(field).ok_or_else(|| {
                    format!("column {name:?} is {:?}, which is no number", String::from_utf8_lossy(field))
                })?,
                field => Value::Text(field),
            };
            put(value, *order, key);
        }
        Ok(())
    }

    /// Writes a part.
    pub fn writer(&self, file: File) -> Result<Box<dyn PartWriter>, Failure> {
        let mut file = BufWriter::new(file);
        file.write_all(&self.header).map_err(cannot_write)?;
        Ok(Box::new(RowWriter(file)))
    }
}

fn column(by: &By, file: &str, header: &ByteRecord) -> Result<Column, Failure> {
    let at = header.iter().position(|field| field == by.column.as_bytes()).ok_or_else(|| {
        let names: Vec<_> = header.iter().map(String::from_utf8_lossy).collect();
        Failure::usage(format!("{file} has no column {:?}: it has {}", by.column, names.join(", ")))
            .help("name a column by --by as the first line has it")
    })?;
    Ok(Column { name: by.column.clone(), at, is_number: by.is_number, order: by.order })
}

/// What a field is as a number.
fn number(field: &[u8]) -> Option<Value<'static>> {
    let text = std::str::from_utf8(field).ok()?.trim();
    let integer = text.parse().map(Value::Int).or_else(|_| text.parse().map(Value::Unsigned));
    integer.ok().or_else(|| text.parse().map(Value::Float).ok())
}

/// Writes a row: with quotes where a field has a quote, a comma or a line break, and around a single empty field, as an empty
/// line is no row.
fn put_row(record: &ByteRecord, out: &mut Vec<u8>) {
    for (at, field) in record.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        let is_quoted = field.iter().any(|byte| matches!(byte, b'"' | b',' | b'\n' | b'\r'))
            || (field.is_empty() && record.len() == 1);
        if !is_quoted {
            out.extend_from_slice(field);
            continue;
        }
        out.push(b'"');
        for byte in field {
            if *byte == b'"' {
                out.push(b'"');
            }
            out.push(*byte);
        }
        out.push(b'"');
    }
    out.push(b'\n');
}

/// Writes values, which are whole rows.
struct RowWriter(BufWriter<File>);

impl PartWriter for RowWriter {
    fn put(&mut self, _: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.0.write_all(value).map_err(cannot_write)
    }

    fn end(self: Box<Self>) -> Result<File, Failure> {
        self.0.into_inner().map_err(cannot_write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    /// The rows, by their keys.
    fn sorted(text: &[u8], by: &[&str]) -> Result<String, Failure> {
        let (_folder, path) = file(text);
        let by: Vec<By> = by.iter().map(|by| by.parse().unwrap()).collect();
        let (csv, pieces) = Csv::of(&[path], &by)?;
        let mut rows = Vec::new();
        csv.read(&pieces[0], &mut |key, row, _| {
            rows.push((key.to_vec(), String::from_utf8(row.to_vec()).unwrap()));
            true
        })?;
        rows.sort_by(|left, right| left.0.cmp(&right.0));
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    #[test]
    fn rows_are_sorted_as_texts_or_numbers_with_empty_fields_as_nulls() {
        let text = b"id,size\na,10\nb,9\nc,\n\"d,\"\"\",-1.5\n";
        let by = |by: &[&str]| sorted(text, by).unwrap();
        assert_eq!(by(&["size"]), "\"d,\"\"\",-1.5\na,10\nb,9\nc,\n");
        assert_eq!(by(&["size:number"]), "\"d,\"\"\",-1.5\nb,9\na,10\nc,\n");
        assert_eq!(by(&["size:number:desc:nulls-first"]), "c,\na,10\nb,9\n\"d,\"\"\",-1.5\n");
        assert_eq!(by(&["id:desc"]), "\"d,\"\"\",-1.5\nc,\nb,9\na,10\n");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let what = |text: &[u8], by: &str| sorted(text, &[by]).unwrap_err().to_string();
        assert!(what(b"id,size\n1,2\n", "sise").contains("no column \"sise\": it has id, size"));
        assert!(what(b"id,size\n1,2\n2,x\n", "size:number").contains("line 3: column \"size\" is \"x\""));
        assert!(what(b"id,size\n1,2\n2\n", "id").contains("cannot read"));
    }

    #[test]
    fn a_row_is_read_as_it_was_written() {
        for fields in [&["", "a b", "\"", ",\r\n"][..], &[""], &["x"]] {
            let (mut line, record) = (Vec::new(), ByteRecord::from(fields));
            put_row(&record, &mut line);
            let mut reader = ReaderBuilder::new().has_headers(false).from_reader(&line[..]);
            assert_eq!(reader.byte_records().next().unwrap().unwrap(), record);
        }
    }
}
