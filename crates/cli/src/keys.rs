//! Reads the keys: plain lines, CSV and TSV columns, JSON Lines fields, each perhaps compressed with gzip.
//!
//! A line that cannot be used is left out, counted, and the first one told with its number: real exports have a few, and
//! a sample of ten million keys is as good without them. Where they are more than a small share of the lines, the file
//! is not what it was taken for, and nothing is computed from it.

use crate::output::Failure;
use clap::Args;
use flate2::bufread::MultiGzDecoder;
use partage_core::base::suggest;
use partage_core::keyspace::key::Key;
use partage_core::limits;
use partage_service::whatif::Item;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Longest line that is read, in bytes: a JSON object with a long document in it, and no more, so that a
/// file without line ends does not fill the memory.
const LINE_BYTES: usize = 16 << 20;

/// One line in so many may be left out.
const LEFT_OUT_ONE_IN: u64 = 100;

/// Lines after which a file with too many unusable ones is read no further.
const SURE_AFTER_LINES: u64 = 10_000;

/// The keys of a file, and what could not be used of it.
pub struct Keys {
    /// The keys in the order of the file.
    pub items: Vec<Item>,
    /// The lines of the file that could not be used.
    pub left_out: LeftOut,
}

/// Lines that could not be used.
#[derive(Debug, Default)]
pub struct LeftOut {
    /// The number of lines that cannot be used.
    pub lines: u64,
    /// How many lines there were in all.
    pub of: u64,
    /// What is wrong with the first.
    first: Option<Failure>,
}

impl LeftOut {
    /// A sentence on them, if there are any.
    pub fn told(&self) -> Option<String> {
        let first = self.first.as_ref()?;
        let LeftOut { lines, of, .. } = self;
        Some(format!("{lines} of {of} lines cannot be used and were left out; the first: {}", first.what()))
    }

    fn is_too_much(&self) -> bool {
        self.lines.saturating_mul(LEFT_OUT_ONE_IN) > self.of
    }

    /// The failure that so many lines are left out that nothing can be said about the keys.
    fn failure(&mut self) -> Option<Failure> {
        let LeftOut { lines, of, .. } = *self;
        let first = self.first.take()?;
        if lines == 1 {
            return Some(first);
        }
        let what = format!("{}; and {lines} of {of} lines cannot be used", first.what());
        Some(Failure::failed(what).help(format!(
            "one line in {LEFT_OUT_ONE_IN} may be wrong: see whether the format and the column are meant so"
        )))
    }
}

/// Where in the input the keys are, as flags.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Columns {
    /// The column of a CSV or TSV file with the keys [default: the first]
    #[arg(long, value_name = "NAME")]
    pub column: Option<String>,
    /// The field of JSON Lines with the keys
    #[arg(long, value_name = "NAME")]
    pub field: Option<String>,
    /// The column or field with the load of each key [default: 1 for each]
    #[arg(long, value_name = "NAME")]
    pub weight: Option<String>,
    /// The first line of a CSV or TSV file is data; columns are named by number, from 1
    #[arg(long)]
    pub no_header: bool,
}

/// The part of the input to read.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// The columns or fields with the keys and their weights.
    pub columns: Columns,
    /// Column or field with the bytes of a key.
    pub bytes: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Lines,
    Separated(u8),
    JsonLines,
}

/// All keys of the file, or of stdin for `-`.
pub fn read(path: &Path, wanted: &Wanted) -> Result<Keys, Failure> {
    let format = format(path, wanted)?;
    let shown = if is_stdin(path) { "stdin".to_owned() } else { path.display().to_string() };
    let source: Box<dyn Read> = if is_stdin(path) {
        Box::new(io::stdin())
    } else {
        let file = File::open(path).map_err(|error| {
            Failure::failed(format!("cannot open {shown}: {error}"))
                .help("give a file with one key a line, or - to read from stdin")
        })?;
        Box::new(file)
    };
    let mut source = BufReader::new(source);
    let begin =
        source.fill_buf().map_err(|error| Failure::failed(format!("cannot read {shown}: {error}")))?;
    let zipped = begin.starts_with(&[0x1f, 0x8b]);
    let reader: Box<dyn BufRead> =
        if zipped { Box::new(BufReader::new(MultiGzDecoder::new(source))) } else { Box::new(source) };
    let mut items = Items { shown, items: Vec::new(), left_out: LeftOut::default() };
    match format {
        Format::Lines => items.lines(reader)?,
        Format::Separated(by) => items.separated(reader, by, wanted)?,
        Format::JsonLines => items.json_lines(reader, wanted)?,
    }
    if items.left_out.is_too_much()
        && let Some(failure) = items.left_out.failure()
    {
        return Err(failure);
    }
    if items.items.is_empty() {
        return Err(Failure::failed(format!("there is no key in {}", items.shown))
            .help("give a file with at least one key, one a line"));
    }
    Ok(Keys { items: items.items, left_out: items.left_out })
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The format that the flags say, else that of the file's name.
fn format(path: &Path, wanted: &Wanted) -> Result<Format, Failure> {
    let name = path.to_string_lossy().to_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name).to_owned();
    let by = if name.ends_with(".tsv") { b'\t' } else { b',' };
    let json = [".jsonl", ".ndjson", ".json"].iter().any(|end| name.ends_with(end));
    match (&wanted.columns.column, &wanted.columns.field) {
        (Some(_), Some(_)) => Err(Failure::usage("--column and --field are given both")
            .help("--column is for CSV and TSV, --field is for JSON Lines")),
        (Some(_), None) => Ok(Format::Separated(by)),
        (None, Some(_)) => Ok(Format::JsonLines),
        (None, None) if name.ends_with(".csv") || name.ends_with(".tsv") => Ok(Format::Separated(by)),
        (None, None) if json => Err(Failure::usage(format!("which field of {} is the key?", path.display()))
            .help("name it with --field NAME")),
        (None, None) if wanted.columns.weight.is_some() || wanted.bytes.is_some() => Err(Failure::usage(
            "--weight and --bytes name a column or a field, and the keys have none",
        )
        .help(
            "name the keys' own with --column or --field; in plain lines, weight and bytes follow the key \
                 after tabs",
        )),
        (None, None) => Ok(Format::Lines),
    }
}

type Object = serde_json::Map<String, serde_json::Value>;

struct Items {
    /// The file, for people.
    shown: String,
    items: Vec<Item>,
    left_out: LeftOut,
}

impl Items {
    fn wrong(&self, line: u64, what: impl std::fmt::Display) -> Failure {
        Failure::failed(format!("{}, line {line}: {what}", self.shown))
    }

    /// What one line is, or why it cannot be used.
    fn add(&mut self, line: u64, item: Result<Item, Failure>) -> Result<(), Failure> {
        self.left_out.of += 1;
        let item = match item {
            Ok(item) => item,
            Err(failure) => return self.leave_out(failure),
        };
        if self.items.len() == limits::WHATIF_KEYS {
            return Err(self
                .wrong(line, format!("more than {} keys", limits::WHATIF_KEYS))
                .help("take a sample of the keys: every tenth tells as much"));
        }
        self.items.push(item);
        Ok(())
    }

    fn leave_out(&mut self, why: Failure) -> Result<(), Failure> {
        self.left_out.lines += 1;
        self.left_out.first.get_or_insert(why);
        if self.left_out.of < SURE_AFTER_LINES || !self.left_out.is_too_much() {
            return Ok(());
        }
        self.left_out.failure().map_or(Ok(()), Err)
    }

    fn item(
        &self,
        line: u64,
        key: &[u8],
        weight: Option<&[u8]>,
        bytes: Option<&[u8]>,
    ) -> Result<Item, Failure> {
        let key = Key::new(key).map_err(|error| self.wrong(line, error))?;
        let weight = weight.map_or(Ok(1.0), |text| self.number(line, "weight", text))?;
        let size = bytes.map(|text| self.number(line, "number of bytes", text)).transpose()?;
        let bytes = size.map_or(key.as_bytes().len() as u64, |size| size as u64);
        Ok(Item { key, weight, bytes })
    }

    fn number(&self, line: u64, what: &str, text: &[u8]) -> Result<f64, Failure> {
        let text = String::from_utf8_lossy(text);
        let number = text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
        number.ok_or_else(|| {
            let text: String = text.chars().take(60).collect();
            self.wrong(line, format!("{text:?} is no {what}"))
                .help(format!("a {what} is a finite number, 0 or more"))
        })
    }

    /// A key a line; after tabs its weight and its bytes, if the line has them.
    fn lines(&mut self, mut reader: Box<dyn BufRead>) -> Result<(), Failure> {
        let mut line = Vec::new();
        for number in 1.. {
            if !self.next_line(&mut reader, &mut line, number)? {
                break;
            }
            if line.is_empty() {
                continue;
            }
            let mut parts = line.splitn(3, |byte| *byte == b'\t');
            let key = parts.next().unwrap_or_default();
            let item = self.item(number, key, parts.next(), parts.next());
            self.add(number, item)?;
        }
        Ok(())
    }

    /// Reads a line without its end. False at the end of the file.
    fn next_line(&self, reader: &mut dyn BufRead, line: &mut Vec<u8>, number: u64) -> Result<bool, Failure> {
        line.clear();
        let read = reader.take(LINE_BYTES as u64 + 1).read_until(b'\n', line);
        if read.map_err(|error| self.wrong(number, format!("cannot read: {error}")))? == 0 {
            return Ok(false);
        }
        if line.len() > LINE_BYTES {
            return Err(self.wrong(number, format!("the line is longer than {LINE_BYTES} bytes")));
        }
        while line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            line.pop();
        }
        Ok(true)
    }

    fn separated(&mut self, reader: Box<dyn BufRead>, by: u8, wanted: &Wanted) -> Result<(), Failure> {
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(by)
            .has_headers(!wanted.columns.no_header)
            .from_reader(reader);
        let mut record = csv::ByteRecord::new();
        let names: Vec<String> = if wanted.columns.no_header {
            Vec::new()
        } else {
            let header = reader.byte_headers().map_err(|error| self.wrong(1, error))?;
            header.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
        };
        if !wanted.columns.no_header && names.is_empty() {
            return Ok(());
        }
        let find = |name: &Option<String>| name.as_ref().map(|name| self.column(&names, name)).transpose();
        let key = find(&wanted.columns.column)?.unwrap_or(0);
        let (weight, bytes) = (find(&wanted.columns.weight)?, find(&wanted.bytes)?);
        loop {
            let more = reader.read_byte_record(&mut record);
            let line = record.position().map_or(reader.position().line(), csv::Position::line);
            let item = match more {
                Ok(false) => return Ok(()),
                Ok(true) => self.record(line, &record, key, weight, bytes),
                // Only a line by itself can be left out: nothing comes after a file that cannot be read.
                Err(error) if error.is_io_error() => return Err(self.wrong(line, error)),
                Err(error) => Err(self.wrong(line, error)),
            };
            self.add(line, item)?;
        }
    }

    fn record(
        &self,
        line: u64,
        record: &csv::ByteRecord,
        key: usize,
        weight: Option<usize>,
        bytes: Option<usize>,
    ) -> Result<Item, Failure> {
        let cell = |column: usize| {
            let missing = || self.wrong(line, format!("there is no column {}", column + 1));
            record.get(column).ok_or_else(missing)
        };
        self.item(line, cell(key)?, weight.map(cell).transpose()?, bytes.map(cell).transpose()?)
    }

    fn column(&self, names: &[String], name: &str) -> Result<usize, Failure> {
        if names.is_empty() {
            let number = name.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
            return number.ok_or_else(|| {
                Failure::usage(format!("there is no column {name:?}: without a header, columns have numbers"))
                    .help("give a number from 1, or leave --no-header out")
            });
        }
        let found = names.iter().position(|known| known == name);
        found.ok_or_else(|| self.unknown("column", name, names.iter().map(String::as_str)))
    }

    fn unknown<'a>(&self, what: &str, name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Failure {
        let failure = Failure::usage(format!("{} has no {what} {name:?}", self.shown));
        match suggest::nearest(name, known.clone()) {
            None => failure,
            Some(nearest) => {
                let known: Vec<&str> = known.take(limits::COMPLAINTS).collect();
                failure.help(format!("did you mean {nearest:?}? There are: {}", known.join(", ")))
            }
        }
    }

    fn json_lines(&mut self, mut reader: Box<dyn BufRead>, wanted: &Wanted) -> Result<(), Failure> {
        let key = wanted.columns.field.as_deref().unwrap_or("key");
        let mut line = Vec::new();
        for number in 1.. {
            if !self.next_line(&mut reader, &mut line, number)? {
                break;
            }
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let object = serde_json::from_slice::<Object>(&line)
                .map_err(|error| self.wrong(number, format!("this is no JSON object: {error}")));
            if let Ok(object) = &object
                && self.items.is_empty()
            {
                // In the first usable line a name that is not there is a slip of the person who typed it.
                let named = [Some(key), wanted.columns.weight.as_deref(), wanted.bytes.as_deref()];
                let unknown = named.into_iter().flatten().find(|name| !object.contains_key(*name));
                unknown.map_or(Ok(()), |name| {
                    Err(self.unknown("field", name, object.keys().map(String::as_str)))
                })?;
            }
            let item = object.and_then(|object| self.object(number, &object, key, wanted));
            self.add(number, item)?;
        }
        Ok(())
    }

    fn object(&self, line: u64, object: &Object, key: &str, wanted: &Wanted) -> Result<Item, Failure> {
        let text = |name: &str| match object.get(name) {
            Some(serde_json::Value::String(text)) => Ok(text.clone()),
            Some(value @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_))) => {
                Ok(value.to_string())
            }
            Some(_) => Err(self.wrong(line, format!("{name:?} is neither a text nor a number"))),
            None => Err(self.wrong(line, format!("there is no {name:?}"))),
        };
        let optional = |name: &Option<String>| name.as_deref().map(text).transpose();
        let (weight, bytes) = (optional(&wanted.columns.weight)?, optional(&wanted.bytes)?);
        let bytes_of = |text: &'_ Option<String>| text.as_ref().map(|text| text.as_bytes().to_vec());
        let (weight, bytes) = (bytes_of(&weight), bytes_of(&bytes));
        self.item(line, text(key)?.as_bytes(), weight.as_deref(), bytes.as_deref())
    }
}
