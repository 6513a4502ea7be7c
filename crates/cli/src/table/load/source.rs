//! Reading the rows of a file: JSON lines, CSV or TSV, each row with the line that it begins on.

use crate::output::Failure;
use clap::ValueEnum;
use partage_core::limits::{KEY_BYTES, VALUE_BYTES};
use partage_wire::table::BytesText;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::cell::Cell;
use std::io::{BufRead, BufReader, Read};
use std::rc::Rc;

/// The longest row of a file: a value and a key of the largest kind, each byte written as six.
pub const ROW_BYTES: u64 = 8 << 20;

/// How a file has its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A JSON object in each line
    Jsonl,
    /// Fields between commas, with their names in the first line
    Csv,
    /// Fields between tabs, with their names in the first line
    Tsv,
}

/// The fields of a row that are its key and its value.
#[derive(Debug, Clone)]
pub struct Fields {
    /// The fields whose texts joined are the key; none: `key` is the key and `value` the value, as `scan --json` has them.
    pub key: Vec<String>,
    /// What stands between the texts of the key.
    pub separator: String,
    /// The field whose text is the value; none: the whole row, as a JSON object.
    pub value: Option<String>,
    /// Fields of CSV and TSV that are numbers in that object.
    pub number: Vec<String>,
}

/// A row to be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub line: u64,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    /// When it ends, in milliseconds of Unix time.
    pub expires_ms: Option<u64>,
}

/// A row that cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRow {
    pub line: u64,
    pub why: String,
}

/// What is read of a row: its key, its value, and when it ends.
type Parsed = (Vec<u8>, Vec<u8>, Option<u64>);

/// Reads all rows, and gives each to `take` with how many bytes were read, until that says no.
pub fn read(
    from: impl Read,
    format: Format,
    fields: &Fields,
    mut take: impl FnMut(Result<Row, BadRow>, u64) -> bool,
) -> Result<(), Failure> {
    let checked = |line: u64, parsed: Result<Parsed, String>| {
        let bad = |why| BadRow { line, why };
        let (key, value, expires_ms) = parsed.map_err(bad)?;
        if key.len() > KEY_BYTES {
            return Err(bad(format!("the key has {} bytes, and may have {KEY_BYTES}", key.len())));
        }
        if value.len() > VALUE_BYTES {
            return Err(bad(format!("the value has {} bytes, and may have {VALUE_BYTES}", value.len())));
        }
        Ok(Row { line, key, value, expires_ms })
    };
    match format {
        Format::Jsonl => json_lines(from, fields, |line, parsed, bytes| take(checked(line, parsed), bytes)),
        Format::Csv | Format::Tsv => {
            records(from, format, fields, |line, parsed, bytes| take(checked(line, parsed), bytes))
        }
    }
}

fn cannot_read(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("cannot read the file any further: {error}"))
}

fn json_lines(
    from: impl Read,
    fields: &Fields,
    mut take: impl FnMut(u64, Result<Parsed, String>, u64) -> bool,
) -> Result<(), Failure> {
    let mut from = BufReader::new(from);
    let (mut line, mut bytes, mut text) = (0, 0, Vec::new());
    loop {
        text.clear();
        line += 1;
        let read = from.by_ref().take(ROW_BYTES).read_until(b'\n', &mut text).map_err(cannot_read)?;
        bytes += read as u64;
        if read == 0 {
            return Ok(());
        }
        let parsed = if text.len() as u64 == ROW_BYTES && !text.ends_with(b"\n") {
            bytes += skip_line(&mut from)?;
            Err(format!("the line has more than {ROW_BYTES} bytes"))
        } else if text.trim_ascii().is_empty() {
            continue;
        } else {
            json_row(text.trim_ascii(), fields)
        };
        if !take(line, parsed, bytes) {
            return Ok(());
        }
    }
}

/// Reads the rest of a line that is too long, in pieces.
fn skip_line(from: &mut impl BufRead) -> Result<u64, Failure> {
    let mut skipped = 0;
    loop {
        let piece = from.fill_buf().map_err(cannot_read)?;
        if piece.is_empty() {
            return Ok(skipped);
        }
        let end = piece.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(piece.len(), |at| at + 1);
        from.consume(used);
        skipped += used as u64;
        if end.is_some() {
            return Ok(skipped);
        }
    }
}

/// A row as `scan --json` prints it, or as a request has it.
#[derive(Deserialize)]
struct Plain {
    key: BytesText,
    value: Option<BytesText>,
    json: Option<Box<RawValue>>,
    expires_ms: Option<u64>,
}

fn json_row(text: &[u8], fields: &Fields) -> Result<Parsed, String> {
    if fields.key.is_empty() {
        let plain: Plain = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let bytes = |bytes: BytesText| bytes.bytes().map_err(|error| error.to_string());
        let value = match (plain.value, plain.json) {
            (Some(value), None) => bytes(value)?,
            (None, Some(json)) => json.get().as_bytes().to_vec(),
            _ => return Err("the row has no value: give one of value and json, or --key FIELD".to_owned()),
        };
        return Ok((bytes(plain.key)?, value, plain.expires_ms));
    }
    let object: Map<String, Value> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let field = |name: &String| object.get(name).ok_or_else(|| format!("the row has no field {name:?}"));
    let mut key = Vec::new();
    for name in &fields.key {
        key.push(match field(name)? {
            Value::String(text) => text.clone(),
            Value::Null | Value::Array(_) | Value::Object(_) => {
                return Err(format!(
                    "field {name:?} is no text, number or truth value, and so no part of a key"
                ));
            }
            other => other.to_string(),
        });
    }
    let value = match &fields.value {
        None => text.to_vec(),
        Some(name) => match field(name)? {
            Value::String(text) => text.clone().into_bytes(),
            other => other.to_string().into_bytes(),
        },
    };
    Ok((key.join(&fields.separator).into_bytes(), value, None))
}

/// A reader that gives no more than so many bytes until it is allowed to again: a quote that is not closed would take the rest of
/// the file into one record.
pub struct Bounded<R> {
    pub inner: R,
    /// Bytes that it gives before it must be allowed more.
    pub left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.left.get() == 0 {
            return Err(std::io::Error::other(format!(
                "a row has more than {ROW_BYTES} bytes: is there a double quote that is not closed?"
            )));
        }
        let most = into.len().min(usize::try_from(self.left.get()).unwrap_or(usize::MAX));
        let read = self.inner.read(&mut into[..most])?;
        self.left.set(self.left.get() - read as u64);
        Ok(read)
    }
}

fn records(
    from: impl Read,
    format: Format,
    fields: &Fields,
    mut take: impl FnMut(u64, Result<Parsed, String>, u64) -> bool,
) -> Result<(), Failure> {
    let left = Rc::new(Cell::new(ROW_BYTES));
    let mut builder = csv::ReaderBuilder::new();
    builder.flexible(true);
    if format == Format::Tsv {
        builder.delimiter(b'\t').quoting(false);
    }
    let mut reader = builder.from_reader(Bounded { inner: from, left: Rc::clone(&left) });
    let header = reader.headers().map_err(cannot_read)?.clone();
    let columns = Columns::of(&header, fields)?;
    let mut record = csv::ByteRecord::new();
    loop {
        left.set(ROW_BYTES);
        if !reader.read_byte_record(&mut record).map_err(cannot_read)? {
            return Ok(());
        }
        let line = record.position().map_or(0, csv::Position::line);
        if !take(line, columns.row(&record), reader.position().byte()) {
            return Ok(());
        }
    }
}

/// The places of the fields in a record.
struct Columns {
    names: Vec<String>,
    key: Vec<usize>,
    separator: String,
    value: Option<usize>,
    number: Vec<usize>,
}

impl Columns {
    fn of(header: &csv::StringRecord, fields: &Fields) -> Result<Columns, Failure> {
        let at = |name: &str| {
            let has = header.iter().collect::<Vec<_>>().join(", ");
            header.iter().position(|field| field == name).ok_or_else(|| {
                Failure::usage(format!("the first line has no field {name:?}: it has {has}"))
                    .help("name fields by --key, --value and --number as the first line has them")
            })
        };
        let all = |names: &[String]| names.iter().map(|name| at(name)).collect::<Result<Vec<_>, _>>();
        let (key, value) = match (fields.key.as_slice(), &fields.value) {
            ([], value) => (vec![at("key")?], Some(at(value.as_deref().unwrap_or("value"))?)),
            (names, value) => (all(names)?, value.as_deref().map(at).transpose()?),
        };
        let (names, separator) = (header.iter().map(str::to_owned).collect(), fields.separator.clone());
        Ok(Columns { names, key, separator, value, number: all(&fields.number)? })
    }

    fn row(&self, record: &csv::ByteRecord) -> Result<Parsed, String> {
        if record.len() != self.names.len() {
            let (has, wanted) = (record.len(), self.names.len());
            return Err(format!("the row has {has} fields, and the first line names {wanted}"));
        }
        let key: Vec<&[u8]> = self.key.iter().filter_map(|at| record.get(*at)).collect();
        let value = match self.value {
            Some(at) => record.get(at).unwrap_or_default().to_vec(),
            None => self.object(record)?.into_bytes(),
        };
        Ok((key.join(self.separator.as_bytes()), value, None))
    }

    /// The row as a JSON object, with its fields in their order.
    fn object(&self, record: &csv::ByteRecord) -> Result<String, String> {
        let mut fields = Vec::new();
        for (at, name) in self.names.iter().enumerate() {
            let text = std::str::from_utf8(record.get(at).unwrap_or_default())
                .map_err(|_| format!("field {name:?} is not of UTF-8, and so no JSON: name it by --value"))?;
            let value = match self.number.contains(&at) {
                false => Value::from(text).to_string(),
                true => match serde_json::from_str::<Box<RawValue>>(text) {
                    Ok(number)
                        if number.get().starts_with(|first: char| first == '-' || first.is_ascii_digit()) =>
                    {
                        number.get().to_owned()
                    }
                    _ => {
                        return Err(format!(
                            "field {name:?} is {text:?}, which is no number as JSON has them"
                        ));
                    }
                },
            };
            fields.push(format!("{}:{value}", Value::from(name.as_str())));
        }
        Ok(format!("{{{}}}", fields.join(",")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(key: &[&str], value: Option<&str>, number: &[&str]) -> Fields {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Fields {
            key: owned(key),
            separator: ":".into(),
            value: value.map(str::to_owned),
            number: owned(number),
        }
    }

    /// Each row as its line, key and value, or what is wrong.
    fn all(text: &[u8], format: Format, fields: &Fields) -> Vec<String> {
        let mut rows = Vec::new();
        read(text, format, fields, |row, _| {
            rows.push(match row {
                Ok(row) => {
                    let text = |bytes: &[u8]| bytes.escape_ascii().to_string().replace("\\\"", "\"");
                    format!("{} {}={}", row.line, text(&row.key), text(&row.value))
                }
                Err(bad) => format!("{} {}", bad.line, bad.why),
            });
            true
        })
        .unwrap_or_else(|failure| rows.push(failure.what().to_owned()));
        rows
    }

    #[test]
    fn json_lines_have_their_key_in_fields() {
        let text = br#"{"a":"x","n":7,"v":[1]}

  {"n":8, "a":"y", "v":"text"}
{"a":"z"}
[1]
{"a":"z","n":null,"v":1}"#;
        let whole = all(text, Format::Jsonl, &fields(&["a", "n"], None, &[]));
        assert_eq!(whole[0], r#"1 x:7={"a":"x","n":7,"v":[1]}"#);
        assert_eq!(whole[1], r#"3 y:8={"n":8, "a":"y", "v":"text"}"#);
        assert_eq!(whole[2], "4 the row has no field \"n\"");
        assert!(whole[3].starts_with("5 invalid type") && whole[4].starts_with("6 field \"n\" is no text"));
        let value = all(text, Format::Jsonl, &fields(&["a"], Some("v"), &[]));
        assert_eq!(value[..2], ["1 x=[1]", "3 y=text"]);
    }

    #[test]
    fn what_a_scan_prints_is_what_is_loaded() {
        let text = br#"{"key":"a","value":"1","version":"3-9"}
{"key":{"base64":"/wA="},"value":{"hex":"00"}}
{"key":"b","json":{ "x": 1.0 },"expires_ms":7}
{"key":"c"}
{"key":{"base64":"?"},"value":""}"#;
        let rows = all(text, Format::Jsonl, &fields(&[], None, &[]));
        assert_eq!(rows[..3], ["1 a=1", "2 \\xff\\x00=\\x00", "3 b={ \"x\": 1.0 }"]);
        assert!(rows[3].contains("no value") && rows[4].contains("base64"), "{rows:?}");
    }

    #[test]
    fn records_are_objects_or_one_of_their_fields() {
        let text = b"id,name,size\n1,\"a \"\"b\"\"\n2\",30\n2,c,x\n3,d\n4,\xff,1\n";
        let rows = all(text, Format::Csv, &fields(&["id", "name"], None, &["size"]));
        assert_eq!(rows[0], r#"2 1:a "b"\n2={"id":"1","name":"a \\"b\\"\\n2","size":30}"#);
        assert_eq!(rows[1], "4 field \"size\" is \"x\", which is no number as JSON has them");
        assert!(
            rows[2].starts_with("5 the row has 2 fields") && rows[3].starts_with("6 field \"name\" is not")
        );
        assert_eq!(all(text, Format::Csv, &fields(&["id"], Some("name"), &[]))[3], "6 4=\\xff");
        let tabs = b"key\tvalue\na\t\"1\n";
        assert_eq!(all(tabs, Format::Tsv, &fields(&[], None, &[])), ["2 a=\"1"]);
        let none = all(text, Format::Csv, &fields(&["nme"], None, &[]));
        assert!(none[0].contains("no field \"nme\": it has id, name, size"), "{none:?}");
    }

    #[test]
    fn a_row_has_a_bound() {
        let long = format!("\"{}\n\n{{\"k\":\"a\"}}", "x".repeat(9 << 20));
        let rows = all(long.as_bytes(), Format::Jsonl, &fields(&["k"], None, &[]));
        assert!(rows[0].starts_with("1 the line has more than"), "{}", &rows[0][..60]);
        assert_eq!(rows[1], r#"3 a={"k":"a"}"#);
        let open = format!("key,value\na,\"{}\n", "x".repeat(9 << 20));
        assert!(all(open.as_bytes(), Format::Csv, &fields(&[], None, &[]))[0].contains("quote"));
        let large = format!("{{\"k\":\"{}\"}}", "x".repeat(KEY_BYTES + 1));
        assert!(
            all(large.as_bytes(), Format::Jsonl, &fields(&["k"], None, &[]))[0].contains("the key has 4097")
        );
    }
}
