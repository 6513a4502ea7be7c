//! Reading a stored form from its first byte to its last.

use super::Malformed;
use bytes::Buf;
use partage_core::base::id::Epoch;
use partage_service::table::replication::LogPosition;

/// What is left of a form.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    form: &'static str,
    bytes: &'a [u8],
    whole: usize,
}

impl<'a> Cursor<'a> {
    /// Begins to read, with the version.
    pub(crate) fn begin(form: &'static str, bytes: &'a [u8], version: u8) -> Result<Cursor<'a>, Malformed> {
        let mut cursor = Cursor { form, bytes, whole: bytes.len() };
        match cursor.u8("the version")? {
            found if found == version => Ok(cursor),
            found => {
                Err(cursor.wrong("the version", 1, format!("is {found}, and this program knows {version}")))
            }
        }
    }

    /// What is wrong with a part of which `read` bytes were read.
    pub(crate) fn wrong(&self, part: &'static str, read: usize, why: impl Into<String>) -> Malformed {
        Malformed { form: self.form, part, at: self.whole - self.bytes.len() - read, why: why.into() }
    }

    pub(crate) fn bytes(&mut self, count: usize, part: &'static str) -> Result<&'a [u8], Malformed> {
        let left = self.bytes.len();
        let (taken, rest) = self
            .bytes
            .split_at_checked(count)
            .ok_or_else(|| self.wrong(part, 0, format!("takes {count} bytes, and {left} are left")))?;
        self.bytes = rest;
        Ok(taken)
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    pub(crate) fn u8(&mut self, part: &'static str) -> Result<u8, Malformed> {
        self.bytes(1, part).map(|mut bytes| bytes.get_u8())
    }

    pub(crate) fn u16(&mut self, part: &'static str) -> Result<u16, Malformed> {
        self.bytes(2, part).map(|mut bytes| bytes.get_u16())
    }

    pub(crate) fn u32(&mut self, part: &'static str) -> Result<u32, Malformed> {
        self.bytes(4, part).map(|mut bytes| bytes.get_u32())
    }

    pub(crate) fn u64(&mut self, part: &'static str) -> Result<u64, Malformed> {
        self.bytes(8, part).map(|mut bytes| bytes.get_u64())
    }

    pub(crate) fn i64(&mut self, part: &'static str) -> Result<i64, Malformed> {
        self.bytes(8, part).map(|mut bytes| bytes.get_i64())
    }

    pub(crate) fn position(&mut self, part: &'static str) -> Result<LogPosition, Malformed> {
        let mut bytes = self.bytes(16, part)?;
        Ok(LogPosition { epoch: Epoch(bytes.get_u64()), index: bytes.get_u64() })
    }

    /// A byte of which only these bits may be set.
    pub(crate) fn flags(&mut self, known: u8, part: &'static str) -> Result<u8, Malformed> {
        let flags = self.u8(part)?;
        match flags & !known {
            0 => Ok(flags),
            unknown => Err(self.wrong(part, 1, format!("has unknown bits: {unknown:#010b}"))),
        }
    }

    pub(crate) fn end(self) -> Result<(), Malformed> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(self.wrong("the end", 0, format!("is followed by {left} bytes"))),
        }
    }
}
