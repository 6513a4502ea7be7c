//! The header of a SequenceFile.

use super::super::error::{Failure, Reason};
use super::super::input::Input;
use super::super::recognise::Format;
use super::codec::Codec;
use super::number;
use super::writable::Writable;
use crate::limits::{SEQUENCE_METADATA, SEQUENCE_NAME_BYTES};

/// Length of a sync marker.
pub const SYNC_BYTES: usize = 16;

/// What stands where a length would, before a sync marker.
pub const SYNC_ESCAPE: i32 = -1;

/// What the header says.
#[derive(Debug)]
pub struct Header {
    pub key: Writable,
    pub value: Writable,
    pub compression: Compression,
    pub sync: [u8; SYNC_BYTES],
}

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Keys and values lie in the file as they are.
    None,
    /// Each value by itself.
    Record(Codec),
    /// Many keys and many values together.
    Block(Codec),
}

impl Header {
    /// Reads the header, up to the first sync marker, which it holds.
    pub fn read(input: &mut Input) -> Result<Header, Failure> {
        if input.peek(3)? != b"SEQ" {
            return Err(input.failure(Reason::Foreign { format: Format::SequenceFile }));
        }
        let at = input.at();
        let [.., version] = input.array::<4>(HEADER)?;
        if !(4..=6).contains(&version) {
            return Err(Failure::at(at + 3, Reason::Version { version }));
        }
        let key = Writable::of_class(&class(input)?);
        let value = Writable::of_class(&class(input)?);
        let is_compressed = flag(input)?;
        let in_blocks = flag(input)?;
        let codec = match is_compressed {
            false => None,
            true if version == 4 => Some(Codec::Deflate),
            true => Some(codec(input)?),
        };
        if version >= 6 {
            skip_metadata(input)?;
        }
        let compression = match codec {
            // Hadoop itself reads blocks only when they are compressed.
            None if in_blocks => {
                return Err(input.failure(damaged("blocks that are not compressed")));
            }
            None => Compression::None,
            Some(codec) if in_blocks => Compression::Block(codec),
            Some(codec) => Compression::Record(codec),
        };
        Ok(Header { key, value, compression, sync: input.array(HEADER)? })
    }
}

const HEADER: &str = "the header";

fn damaged(how: &str) -> Reason {
    Reason::Damaged { what: HEADER, how: how.to_owned() }
}

fn flag(input: &mut Input) -> Result<bool, Failure> {
    let at = input.at();
    match input.array(HEADER)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [other] => Err(Failure::at(at, damaged(&format!("{other} where only 0 or 1 can be")))),
    }
}

fn codec(input: &mut Input) -> Result<Codec, Failure> {
    let at = input.at();
    let class = class(input)?;
    Codec::of_class(&class).ok_or(Failure::at(at, Reason::Codec { class }))
}

/// The name of a Java class.
fn class(input: &mut Input) -> Result<String, Failure> {
    let at = input.at();
    let name = text(input)?;
    let is_class = |name: &String| {
        !name.is_empty() && !name.chars().any(|c| c.is_control() || c.is_whitespace() || c == '/')
    };
    let name = String::from_utf8(name).ok().filter(is_class);
    name.ok_or_else(|| Failure::at(at, damaged("a name that no Java class has")))
}

fn text(input: &mut Input) -> Result<Vec<u8>, Failure> {
    let at = input.at();
    let first = input.peek(1)?.first().copied().unwrap_or(0);
    let (length, _) = number::read(input.next_bytes(number::length(first), HEADER)?).unwrap_or((-1, 0));
    let length = usize::try_from(length).ok().filter(|length| *length <= SEQUENCE_NAME_BYTES);
    let length = length.ok_or_else(|| Failure::at(at, damaged("a text whose length cannot be")))?;
    Ok(input.next_bytes(length, HEADER)?.to_vec())
}

fn skip_metadata(input: &mut Input) -> Result<(), Failure> {
    let at = input.at();
    let count = i32::from_be_bytes(input.array(HEADER)?);
    let count = usize::try_from(count).ok().filter(|count| *count <= SEQUENCE_METADATA);
    let count = count.ok_or_else(|| Failure::at(at, damaged("a count of metadata that cannot be")))?;
    for _ in 0..2 * count {
        text(input)?;
    }
    Ok(())
}
