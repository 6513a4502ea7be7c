//! JSON Lines: an object in each line, sorted by its fields. The parts have the lines as they were.
//!
//! A field is named as it stands in the object, or by its path, as in `user.id`. A field that is absent or null is null; truth
//! values come before numbers, and numbers before texts.

use super::by::By;
use super::layout::{PartWriter, Piece, Take, cannot_write, length, pieces_of};
use crate::output::Failure;
use crate::table::ROW_BYTES;
use partage_shuffle_client::key::{Value, put};
use serde_json::{Map, Value as Json};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// The fields by which lines are sorted.
#[derive(Debug)]
pub struct JsonLines {
    by: Vec<By>,
    /// Whether a line had the field.
    found: Vec<AtomicBool>,
    /// Whether there was a line.
    has_lines: AtomicBool,
}

impl JsonLines {
    /// See [`super::layout::Layout::of`].
    pub fn of(files: &[PathBuf], by: &[By], piece: u64) -> Result<(JsonLines, Vec<Piece>), Failure> {
        if let Some(by) = by.iter().find(|by| by.is_number) {
            return Err(Failure::usage(format!("{:?} is no field of JSON: it has :number", by.column))
                .help("leave :number out: JSON has its own numbers"));
        }
        let mut pieces = Vec::new();
        for file in files {
            pieces.extend(pieces_of(file, length(file)?, piece, 1));
        }
        let found = by.iter().map(|_| AtomicBool::new(false)).collect();
        Ok((JsonLines { by: by.to_vec(), found, has_lines: AtomicBool::new(false) }, pieces))
    }

    /// See [`super::layout::Layout::read`]: a piece has the lines that begin in it.
    pub fn read(&self, piece: &Piece, take: &mut Take<'_>) -> Result<(), Failure> {
        let cannot = |error: std::io::Error| piece.cannot_read(error);
        let mut file = BufReader::with_capacity(BUFFER_BYTES, piece.open()?);
        let mut at = piece.begin;
        let mut line = Vec::new();
        if let Some(before) = piece.begin.checked_sub(1) {
            file.seek(SeekFrom::Start(before)).map_err(cannot)?;
            at = before + self.line(piece, &mut file, before, &mut line)?;
        }
        let mut key = Vec::new();
        while at < piece.end {
            let begin = at;
            let read = self.line(piece, &mut file, begin, &mut line)?;
            if read == 0 {
                break;
            }
            at += read;
            let text = line.trim_ascii();
            if text.is_empty() {
                continue;
            }
            key.clear();
            self.key(text, &mut key).map_err(|why| {
                Failure::refused(format!("{}: the line at byte {begin}: {why}", piece.name()))
                    .help("mend that line, or leave it out")
            })?;
            if !take(&key, text, at - piece.begin) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads a line; says how many bytes it has.
    fn line(
        &self,
        piece: &Piece,
        file: &mut BufReader<File>,
        begin: u64,
        line: &mut Vec<u8>,
    ) -> Result<u64, Failure> {
        line.clear();
        let read = file.by_ref().take(ROW_BYTES).read_until(b'\n', line);
        let read = read.map_err(|error| piece.cannot_read(error))? as u64;
        if read == ROW_BYTES && !line.ends_with(b"\n") {
            let what = format!("{}: the line at byte {begin} has more than {ROW_BYTES} bytes", piece.name());
            return Err(
                Failure::refused(what).help("is it JSON Lines? write each object in a line of its own")
            );
        }
        Ok(read)
    }

    fn key(&self, text: &[u8], key: &mut Vec<u8>) -> Result<(), String> {
        let object: Map<String, Json> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        self.has_lines.store(true, Ordering::Relaxed);
        for (by, found) in self.by.iter().zip(&self.found) {
            let field = field(&object, &by.column);
            if field.is_some() {
                found.store(true, Ordering::Relaxed);
            }
            let value = match field {
                None | Some(Json::Null) => Value::Null,
                Some(Json::Bool(value)) => Value::Bool(*value),
                Some(Json::Number(number)) => {
                    let integer = number.as_i64().map(Value::Int).or(number.as_u64().map(Value::Unsigned));
                    integer.or(number.as_f64().map(Value::Float)).unwrap_or(Value::Null)
                }
                Some(Json::String(text)) => Value::Text(text.as_bytes()),
                Some(Json::Array(_) | Json::Object(_)) => {
                    return Err(format!(
                        "field {:?} is a list or an object, by which nothing is sorted",
                        by.column
                    ));
                }
            };
            put(value, by.order, key);
        }
        Ok(())
    }

    /// See [`super::layout::Layout::all_read`].
    pub fn all_read(&self) -> Result<(), Failure> {
        let mut fields = self.by.iter().zip(&self.found);
        let lacks = fields.find(|(_, found)| !found.load(Ordering::Relaxed));
        match lacks {
            Some((by, _)) if self.has_lines.load(Ordering::Relaxed) => Err(Failure::usage(format!(
                "no line has a field {:?}",
                by.column
            ))
            .help(
                "name a field by --by as the lines have it; one in an object by its path, such as user.id",
            )),
            _ => Ok(()),
        }
    }
}

/// A field at the top, or by its path.
fn field<'a>(object: &'a Map<String, Json>, name: &str) -> Option<&'a Json> {
    if let Some(field) = object.get(name) {
        return Some(field);
    }
    let (first, rest) = name.split_once('.')?;
    field(object.get(first)?.as_object()?, rest)
}

/// Writes each value as a line.
pub struct LineWriter(BufWriter<File>);

impl LineWriter {
    /// To that file.
    pub fn new(file: File) -> LineWriter {
        LineWriter(BufWriter::with_capacity(BUFFER_BYTES, file))
    }
}

impl PartWriter for LineWriter {
    fn put(&mut self, _: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.0.write_all(value).and_then(|()| self.0.write_all(b"\n")).map_err(cannot_write)
    }

    fn end(self: Box<Self>) -> Result<File, Failure> {
        self.0.into_inner().map_err(cannot_write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines, by their keys, of all pieces of so many bytes.
    fn sorted(text: &str, by: &str, piece: u64) -> Result<Vec<String>, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines.jsonl");
        std::fs::write(&path, text).unwrap();
        let (lines, pieces) = JsonLines::of(&[path], &[by.parse().unwrap()], piece)?;
        let mut rows = Vec::new();
        for piece in &pieces {
            lines.read(piece, &mut |key, row, _| {
                rows.push((key.to_vec(), String::from_utf8(row.to_vec()).unwrap()));
                true
            })?;
        }
        lines.all_read()?;
        rows.sort_by(|left, right| left.0.cmp(&right.0));
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    #[test]
    fn each_line_is_in_one_piece_wherever_the_pieces_are_cut() {
        let text = "{\"a\":2}\n{\"a\":10}\n\n{\"a\":\"x\"}\n{\"a\":true}\n{\"a\":1.5}\n{\"b\":1}";
        let expected =
            [r#"{"a":true}"#, r#"{"a":1.5}"#, r#"{"a":2}"#, r#"{"a":10}"#, r#"{"a":"x"}"#, r#"{"b":1}"#];
        for piece in 1..=text.len() as u64 {
            assert_eq!(sorted(text, "a", piece).unwrap(), expected, "pieces of {piece}");
        }
        let last = sorted(text, "a:desc", 9).unwrap();
        assert_eq!(last[0], r#"{"a":"x"}"#);
        assert_eq!(last[5], r#"{"b":1}"#, "nulls are last, either way");
        assert_eq!(sorted(text, "a:nulls-first", 9).unwrap()[0], r#"{"b":1}"#);
    }

    #[test]
    fn fields_of_objects_have_a_path_and_what_is_wrong_is_named() {
        let text = "{\"u\":{\"id\":2}}\n{\"u\":{\"id\":1},\"u.id\":3}\n";
        assert_eq!(sorted(text, "u.id", 100).unwrap()[0], r#"{"u":{"id":2}}"#, "a name goes before a path");
        let what = |text: &str, by: &str| sorted(text, by, 100).unwrap_err().to_string();
        assert!(what(text, "u").contains("at byte 0: field \"u\" is a list or an object"));
        assert!(what(text, "x").contains("no line has a field \"x\""));
        assert!(what("{\"a\":1}\n[1]\n", "a").contains("at byte 8"));
        assert_eq!(sorted("", "x", 100).unwrap(), Vec::<String>::new());
    }
}
