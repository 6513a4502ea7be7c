//! What headers of pages and the footer state, read before the library relies on it.
//!
//! The library reserves what the header of a page states, and it skips an unknown list of the footer element by element, as many as
//! that states, also where an element takes no bytes. So both are walked here first, by the rules of Thrift's
//! compact protocol: fields in ascending order, each at most once, each element of a list in a byte at the least, and none of
//! them beyond the limit. What does not keep to them is damage.

use std::io::{self, Read};

use crate::limits::PARQUET_HEADER_BYTES;

/// What a page takes, as its header states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stated {
    /// Uncompressed.
    pub bytes: u64,
    /// As it lies in the file.
    pub compressed_bytes: u64,
}

/// Thrift's types that are numbers or flags without a length.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I8: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const STRUCT: u8 = 12;

/// Structs within structs: a page's header has three.
const DEPTH: u32 = 8;

/// Structs and lists within each other in a footer: row groups, columns, their statistics; a format of today has ten.
const FOOTER_DEPTH: u32 = 16;

/// Reads the header of a page.
pub fn read(stream: impl Read) -> io::Result<Stated> {
    stated(stream).map_err(|error| named("the header of a page", error))
}

/// Whether a footer is one struct of which each list is as long as it states.
pub fn check_footer(bytes: &[u8]) -> io::Result<()> {
    let mut stream = Header { stream: bytes.take(bytes.len() as u64) };
    stream.skip(STRUCT, FOOTER_DEPTH).map_err(|error| named("the footer", error))
}

fn stated(stream: impl Read) -> io::Result<Stated> {
    let mut stream = Header { stream: stream.take(PARQUET_HEADER_BYTES) };
    let (mut bytes, mut compressed_bytes) = (None, None);
    let mut last = 0;
    while let Some((id, kind)) = stream.field(last)? {
        match (id, kind) {
            (2, I32) => bytes = Some(stream.signed()?),
            (3, I32) => compressed_bytes = Some(stream.signed()?),
            (2 | 3, _) => return Err(damaged("a length that is no number")),
            (_, kind) => stream.skip(kind, DEPTH)?,
        }
        last = id;
    }
    let length = |found: Option<i64>| {
        let found = found.and_then(|length| u64::try_from(length).ok());
        found.ok_or_else(|| damaged("no length, or one below 0"))
    };
    Ok(Stated { bytes: length(bytes)?, compressed_bytes: length(compressed_bytes)? })
}

struct Header<R> {
    stream: io::Take<R>,
}

impl<R: Read> Header<R> {
    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.stream.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    fn unsigned(&mut self) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(damaged("a number of more than 64 bits"))
    }

    fn signed(&mut self) -> io::Result<i64> {
        let number = self.unsigned()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// The next field's number and type, or the end of the struct.
    fn field(&mut self, last: i64) -> io::Result<Option<(i64, u8)>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Ok(None);
        }
        let id = match i64::from(byte >> 4) {
            0 => self.signed()?,
            delta => last + delta,
        };
        if id <= last || id > i64::from(i16::MAX) {
            return Err(damaged("fields that are not in order"));
        }
        Ok(Some((id, byte & 0x0f)))
    }

    fn skip(&mut self, kind: u8, depth: u32) -> io::Result<()> {
        match kind {
            TRUE | FALSE => Ok(()),
            I8 => self.byte().map(drop),
            I16 | I32 | I64 => self.unsigned().map(drop),
            DOUBLE => self.pass(8),
            BINARY => {
                let length = self.unsigned()?;
                self.pass(length)
            }
            LIST | SET if depth > 0 => {
                let byte = self.byte()?;
                let count = if byte >> 4 == 15 { self.unsigned()? } else { u64::from(byte >> 4) };
                // Flags of a list take a byte each, unlike those that are fields.
                let kind = if matches!(byte & 0x0f, TRUE | FALSE) { I8 } else { byte & 0x0f };
                (0..count).try_for_each(|_| self.skip(kind, depth - 1))
            }
            STRUCT if depth > 0 => {
                let mut last = 0;
                while let Some((id, kind)) = self.field(last)? {
                    self.skip(kind, depth - 1)?;
                    last = id;
                }
                Ok(())
            }
            _ => Err(damaged("a field of a type that no header has")),
        }
    }

    fn pass(&mut self, count: u64) -> io::Result<()> {
        match io::copy(&mut self.stream.by_ref().take(count), &mut io::sink())? {
            passed if passed == count => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn damaged(how: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, how)
}

/// Says of which part of the file an error is.
fn named(part: &str, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => io::Error::new(error.kind(), format!("{part} has {error}")),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(bytes: &[u8]) -> Result<(u64, u64), String> {
        read(bytes).map(|s| (s.bytes, s.compressed_bytes)).map_err(|error| error.to_string())
    }

    #[test]
    fn lengths_are_read_and_the_rest_is_passed_over() {
        // Type 0, 300 bytes, 20 compressed, a struct with a list of flags and a text.
        let header = [0x15, 0, 0x15, 0xd8, 4, 0x15, 40, 0x2c, 0x19, 0x21, 1, 2, 0x18, 2, b'x', b'y', 0, 0];
        assert_eq!(told(&header), Ok((300, 20)));
        for cut in 0..header.len() {
            assert!(told(&header[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_footer_whose_lists_are_longer_than_it_is_refused() {
        // A list of two flags; the same that states 2^31 - 1 of them, and of empty structs.
        assert!(check_footer(&[0x19, 0x21, 1, 2, 0]).is_ok());
        for kind in [0xf1, 0xf2, 0xfc] {
            let lying = [0x19, kind, 0xff, 0xff, 0xff, 0xff, 0x07, 0, 0, 0];
            assert_eq!(check_footer(&lying).unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "{kind:x}");
        }
        let deep = [[0x1c].repeat(40), [0].repeat(41)].concat();
        assert!(check_footer(&deep).unwrap_err().to_string().starts_with("the footer has a field of a type"));
    }

    #[test]
    fn a_header_that_states_a_length_twice_or_below_0_is_damaged() {
        let twice = [0x15, 0, 0x15, 2, 0x15, 2, 0x05, 4, 0x7e, 0];
        assert!(told(&twice).unwrap_err().contains("not in order"));
        assert!(told(&[0x25, 1, 0x15, 2, 0]).unwrap_err().contains("below 0"));
        assert!(told(&[0x25, 2, 0]).unwrap_err().contains("no length"));
        assert!(told(&[0x28, 0, 0]).unwrap_err().contains("no number"));
        let deep = [[0x1c].repeat(40), [0].repeat(41)].concat();
        assert!(told(&deep).unwrap_err().contains("type"));
        assert!(told(&[0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err());
    }
}
