//! Hadoop's SequenceFile, versions 4 to 6, as `org.apache.hadoop.io.SequenceFile` writes it.
//!
//! ```text
//! header   "SEQ", version u8, class of keys, class of values, compressed? u8, in blocks? u8,
//!          codec's class if compressed (from 5), count and pairs of metadata (from 6), sync marker of 16 bytes
//! records  uncompressed, or each value compressed by itself:
//!              [-1 i32, the sync marker]  length i32, of it the key i32, key, value
//! blocks   -1 i32, the sync marker, count of records,
//!              lengths of keys, keys, lengths of values, values: each with its length, compressed
//! ```
//!
//! Numbers are big-endian, or in Hadoop's variable form where nothing else is said. The sync marker is drawn at random
//! for each file: where it is not what the header says, bytes are lost or of another file. Of a key or value of the
//! class `BytesWritable` or `Text` only the bytes are given; of any other class what its `write` wrote.
//!
//! Not here: versions 0 to 3, which Hadoop stopped writing before its 0.10, and classes' own Java code.

mod blocks;
pub(super) mod codec;
mod framed;
mod header;
mod number;
mod plain;
mod writable;

use super::error::{Failure, FormatError};
use super::input::Input;
use super::{Record, Records};
use blocks::Blocks;
use header::{Compression, Header};
use plain::Plain;

/// A SequenceFile that is being read.
pub struct SequenceFile {
    file: String,
    input: Input,
    header: Header,
    body: Body,
}

enum Body {
    Records(Plain),
    Blocks(Box<Blocks>),
}

impl SequenceFile {
    /// Reads the header, which says how the records after it are compressed.
    pub fn open(file: String, mut input: Input, most_bytes: usize) -> Result<SequenceFile, Failure> {
        let header = Header::read(&mut input)?;
        let body = match &header.compression {
            Compression::None => Body::Records(Plain::new(None, most_bytes)),
            Compression::Record(codec) => {
                Body::Records(Plain::new(Some(codec.decoder(most_bytes)), most_bytes))
            }
            Compression::Block(codec) => {
                Body::Blocks(Box::new(Blocks::new(codec.decoder(most_bytes), most_bytes)))
            }
        };
        Ok(SequenceFile { file, input, header, body })
    }
}

impl Records for SequenceFile {
    fn next(&mut self) -> Result<Option<Record<'_>>, FormatError> {
        let SequenceFile { file, input, header, body } = self;
        let record = match body {
            Body::Records(records) => records.next(input, header),
            Body::Blocks(blocks) => blocks.next(input, header),
        };
        record.map_err(|failure| failure.of(file))
    }
}
