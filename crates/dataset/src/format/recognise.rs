//! Which format a file has: what its first bytes say, then its name, then the dataset's options.

use std::fmt;
use std::str::FromStr;

use super::error::{Failure, Reason};
use super::input::Input;

/// A format that records are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Hadoop's, versions 4 to 6.
    SequenceFile,
    /// Fields divided by commas, quoted where need be (RFC 4180).
    Csv,
    /// Fields divided by tabulators, never quoted.
    Tsv,
    /// A JSON object on each line.
    JsonLines,
    /// Apache Parquet: columns of values, with a footer at the end.
    Parquet,
}

/// A name that no format has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no format {name:?}; the known ones are {}", Format::names())]
pub struct UnknownFormat {
    /// As given, cut to 64 characters.
    pub name: String,
}

impl Format {
    /// Every format, in the order in which errors list them.
    pub const ALL: [Format; 5] =
        [Format::SequenceFile, Format::Csv, Format::Tsv, Format::JsonLines, Format::Parquet];

    /// The name of the format in the settings of a dataset.
    pub fn name(self) -> &'static str {
        match self {
            Format::SequenceFile => "sequencefile",
            Format::Csv => "csv",
            Format::Tsv => "tsv",
            Format::JsonLines => "jsonl",
            Format::Parquet => "parquet",
        }
    }

    pub(super) fn with_article(self) -> &'static str {
        match self {
            Format::SequenceFile => "a Hadoop SequenceFile",
            Format::Csv => "a CSV file",
            Format::Tsv => "a TSV file",
            Format::JsonLines => "JSON Lines",
            Format::Parquet => "a Parquet file",
        }
    }

    pub(super) fn names() -> String {
        Format::ALL.map(Format::name).join(", ")
    }

    fn is_text(self) -> bool {
        matches!(self, Format::Csv | Format::Tsv | Format::JsonLines)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Format, UnknownFormat> {
        let unknown = || UnknownFormat { name: name.chars().take(64).collect() };
        Format::ALL.into_iter().find(|format| format.name() == name).ok_or_else(unknown)
    }
}

/// What the first bytes of a file say about its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The bytes `SEQ` and a version.
    SequenceFile,
    /// The bytes `PAR1`, at both ends of the file.
    Parquet,
    /// The bytes 1f 8b.
    Gzip,
    /// The bytes 28 b5 2f fd.
    Zstd,
    /// Nothing that is known here: text, mostly.
    Other,
}

/// Looks at the first bytes.
pub fn content(input: &mut Input) -> Result<Content, Failure> {
    let begin = input.peek(4)?;
    Ok(match begin {
        [b'S', b'E', b'Q', 0..=31] => Content::SequenceFile,
        b"PAR1" => Content::Parquet,
        [0x1f, 0x8b, ..] => Content::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd] => Content::Zstd,
        _ => Content::Other,
    })
}

/// The endings of compressed text.
pub const COMPRESSED: [(&str, Content, &str); 2] =
    [(".gz", Content::Gzip, "gzip"), (".zst", Content::Zstd, "zstd")];

/// What a file is read as.
pub fn format(file: &str, content: Content, asked: Option<Format>) -> Result<Format, Failure> {
    let binary = match content {
        Content::SequenceFile => Some(Format::SequenceFile),
        Content::Parquet => Some(Format::Parquet),
        Content::Gzip | Content::Zstd | Content::Other => None,
    };
    let Some(asked) = asked else {
        return binary.or_else(|| by_name(file)).ok_or(Failure::at_start(Reason::Unrecognised));
    };
    // A text that begins with `SEQ` and a control character is none.
    if (asked.is_text() && binary.is_some()) || binary.is_some_and(|binary| binary != asked) {
        return Err(Failure::at_start(Reason::Foreign { format: asked }));
    }
    Ok(asked)
}

fn by_name(file: &str) -> Option<Format> {
    let bare = COMPRESSED.iter().find_map(|(ending, ..)| file.strip_suffix(ending)).unwrap_or(file);
    match bare.rsplit_once('.')?.1 {
        "csv" => Some(Format::Csv),
        "tsv" => Some(Format::Tsv),
        "jsonl" | "ndjson" | "json" => Some(Format::JsonLines),
        "parquet" => Some(Format::Parquet),
        "seq" | "sequencefile" => Some(Format::SequenceFile),
        _ => None,
    }
}
