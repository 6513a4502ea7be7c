//! Thrift's compact protocol, in which the footer of a Parquet file and the headers of its pages are written: fields in ascending
//! order, each at most once, each element of a list in a byte at the least, and none of them beyond the limit. What does
//! not keep to that is damage.

use std::io::{self, Read};

/// Thrift's types that are numbers or flags without a length.
pub const TRUE: u8 = 1;
pub const FALSE: u8 = 2;
pub const I8: u8 = 3;
pub const I16: u8 = 4;
pub const I32: u8 = 5;
pub const I64: u8 = 6;
pub const DOUBLE: u8 = 7;
pub const BINARY: u8 = 8;
pub const LIST: u8 = 9;
pub const SET: u8 = 10;
pub const STRUCT: u8 = 12;

/// Reads what Thrift's compact protocol has written.
pub struct CompactReader<R> {
    pub stream: io::Take<R>,
}

impl<R: Read> CompactReader<R> {
    pub fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.stream.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    pub fn unsigned(&mut self) -> io::Result<u64> {
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

    pub fn signed(&mut self) -> io::Result<i64> {
        let number = self.unsigned()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// The next field's number and type, or the end of the struct.
    pub fn field(&mut self, last: i64) -> io::Result<Option<(i64, u8)>> {
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

    /// How many elements a list has, and of which type.
    ///
    /// # Errors
    /// Also for flags. Each takes a byte, but the library takes it for none: from there on it would read something else than
    /// what was checked. No header of today and no footer has such a list.
    pub fn list(&mut self) -> io::Result<(u64, u8)> {
        let byte = self.byte()?;
        let count = if byte >> 4 == 15 { self.unsigned()? } else { u64::from(byte >> 4) };
        match byte & 0x0f {
            TRUE | FALSE if count > 0 => Err(damaged("a list of flags")),
            kind => Ok((count, kind)),
        }
    }

    /// Passes over a value of this type, within which structs and lists may lie so deep.
    pub fn skip(&mut self, kind: u8, depth: u32) -> io::Result<()> {
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
                let (count, kind) = self.list()?;
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

pub fn damaged(how: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, how)
}

/// Says of which part of the file an error is.
pub fn named(part: &str, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => io::Error::new(error.kind(), format!("{part} has {error}")),
        _ => error,
    }
}
