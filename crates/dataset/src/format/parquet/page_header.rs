//! What headers of pages state, read before the library relies on it: it reserves that many bytes. At the end of a file it also
//! takes a list of numbers for as long as it states, so each known field must have its type ([`super::shape`]).

use super::compact::{CompactReader, I32, damaged, named};
use super::shape::Shape::{self, Flag, Struct};
use super::shape::{EMPTY, INT, STATISTICS, follow_field};
use crate::limits::PARQUET_HEADER_BYTES;
use std::io::{self, Read};

/// What a page takes, as its header states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stated {
    /// The length of the page once it is uncompressed.
    pub bytes: u64,
    /// The length of the page in the file.
    pub compressed_bytes: u64,
}

/// Structs within structs: a page's header has three.
const DEPTH: u32 = 8;

/// `PageHeader` of the format (parquet.thrift, version 2.12), but for the two lengths.
const FIELDS: [(i64, Shape); 6] = [
    (1, INT),
    (4, INT),
    (5, Struct(&[(1, INT), (2, INT), (3, INT), (4, INT), (5, STATISTICS)])),
    (6, EMPTY),
    (7, Struct(&[(1, INT), (2, INT), (3, Flag)])),
    (8, Struct(&[(1, INT), (2, INT), (3, INT), (4, INT), (5, INT), (6, INT), (7, Flag), (8, STATISTICS)])),
];

/// Reads the header of a page.
pub fn read(stream: impl Read) -> io::Result<Stated> {
    stated(stream).map_err(|error| named("the header of a page", error))
}

fn stated(stream: impl Read) -> io::Result<Stated> {
    let mut stream = CompactReader { stream: stream.take(PARQUET_HEADER_BYTES) };
    let (mut bytes, mut compressed_bytes) = (None, None);
    let mut last = 0;
    while let Some((id, kind)) = stream.field(last)? {
        match (id, kind) {
            (2, I32) => bytes = Some(stream.signed()?),
            (3, I32) => compressed_bytes = Some(stream.signed()?),
            (2 | 3, _) => return Err(damaged("a length that is no number")),
            field => follow_field(&mut stream, field, &FIELDS, DEPTH)?,
        }
        last = id;
    }
    let length = |found: Option<i64>| {
        let found = found.and_then(|length| u64::try_from(length).ok());
        found.ok_or_else(|| damaged("no length, or one below 0"))
    };
    Ok(Stated { bytes: length(bytes)?, compressed_bytes: length(compressed_bytes)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(bytes: &[u8]) -> Result<(u64, u64), String> {
        read(bytes).map(|s| (s.bytes, s.compressed_bytes)).map_err(|error| error.to_string())
    }

    #[test]
    fn lengths_are_read_and_the_rest_is_passed_over() {
        // Type 0, 300 bytes, 20 compressed; as field 20, a struct with a list of bytes and a text.
        let header =
            [0x15, 0, 0x15, 0xd8, 4, 0x15, 40, 0x0c, 40, 0x19, 0x23, 1, 2, 0x18, 2, b'x', b'y', 0, 0];
        assert_eq!(told(&header), Ok((300, 20)));
        for cut in 0..header.len() {
            assert!(told(&header[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_header_that_states_a_length_twice_or_below_0_is_damaged() {
        let twice = [0x15, 0, 0x15, 2, 0x15, 2, 0x05, 4, 0x7e, 0];
        assert!(told(&twice).unwrap_err().contains("not in order"));
        assert!(told(&[0x25, 1, 0x15, 2, 0]).unwrap_err().contains("below 0"));
        assert!(told(&[0x25, 2, 0]).unwrap_err().contains("no length"));
        assert!(told(&[0x28, 0, 0]).unwrap_err().contains("no number"));
        let deep = [&[0x0c, 40][..], &[0x1c].repeat(40), &[0].repeat(42)].concat();
        assert!(told(&deep).unwrap_err().contains("type"));
        // The header of a data page is a text.
        let text = [0x15, 0, 0x15, 2, 0x15, 2, 0x28, 1, b'x', 0];
        assert!(told(&text).unwrap_err().contains("of another type than the format gives it"));
        assert!(told(&[0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
    }
}
