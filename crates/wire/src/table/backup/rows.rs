//! Rows as a chunk has them, and as nodes send and take them.
//!
//! ```text
//! row   key bytes u16 · flags u8 (1 = it ends) · value bytes u32 · [ends u64] · key · value
//! ```
//!
//! All integers are big-endian, `ends` is in milliseconds of Unix time, keys ascend. Rows follow each other without anything
//! between them, so that the bytes, and with them the name of a chunk, follow from the rows alone: neither the replica that
//! they were read from nor the versions that they had there have a part in them.

use partage_core::limits::{KEY_BYTES, VALUE_BYTES};

const ENDS: u8 = 1;

/// Bytes that a row takes at most.
pub const ROW_BYTES: usize = 2 + 1 + 4 + 8 + KEY_BYTES + VALUE_BYTES;

/// A row as a chunk has it, without the version that it had in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupRow<'a> {
    /// Its key, of at most [`KEY_BYTES`] bytes.
    pub key: &'a [u8],
    /// Its value, of at most [`VALUE_BYTES`] bytes.
    pub value: &'a [u8],
    /// When it ends, in milliseconds of Unix time; none: never.
    pub expires_ms: Option<u64>,
}

impl BackupRow<'_> {
    /// Bytes that it takes.
    pub fn size(&self) -> usize {
        7 + self.expires_ms.map_or(0, |_| 8) + self.key.len() + self.value.len()
    }

    /// Appends it. Keys and values are within the limits of tables.
    pub fn put(&self, bytes: &mut Vec<u8>) {
        let key = u16::try_from(self.key.len()).expect("keys of tables are shorter");
        let value = u32::try_from(self.value.len()).expect("values of tables are shorter");
        bytes.extend_from_slice(&key.to_be_bytes());
        bytes.push(if self.expires_ms.is_some() { ENDS } else { 0 });
        bytes.extend_from_slice(&value.to_be_bytes());
        self.expires_ms.iter().for_each(|ends| bytes.extend_from_slice(&ends.to_be_bytes()));
        bytes.extend_from_slice(self.key);
        bytes.extend_from_slice(self.value);
    }
}

/// Bytes that are no rows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the row at byte {at} {what}")]
pub struct RowsError {
    /// Where the row begins.
    pub at: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

/// Reads rows. Behind an error comes nothing.
#[derive(Debug, Clone)]
pub struct RowReader<'a> {
    bytes: &'a [u8],
    at: usize,
    last: Option<&'a [u8]>,
}

impl<'a> RowReader<'a> {
    /// Stands before the first row of these bytes.
    pub fn new(bytes: &'a [u8]) -> RowReader<'a> {
        RowReader { bytes, at: 0, last: None }
    }

    /// Where the next row begins.
    pub fn at(&self) -> usize {
        self.at
    }

    fn part(&self, at: &mut usize, count: usize) -> Result<&'a [u8], RowsError> {
        let end = at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(RowsError { at: self.at, what: "is cut" })?;
        let taken = &self.bytes[*at..end];
        *at = end;
        Ok(taken)
    }

    fn number<const BYTES: usize>(&self, at: &mut usize) -> Result<[u8; BYTES], RowsError> {
        let bytes = self.part(at, BYTES)?;
        Ok(bytes.try_into().expect("as many were taken"))
    }

    fn row(&mut self) -> Result<BackupRow<'a>, RowsError> {
        let wrong = |what| RowsError { at: self.at, what };
        let mut at = self.at;
        let key = usize::from(u16::from_be_bytes(self.number(&mut at)?));
        let [flags] = self.number(&mut at)?;
        let value = u32::from_be_bytes(self.number(&mut at)?) as usize;
        if flags & !ENDS != 0 {
            return Err(wrong("has unknown flags"));
        }
        if key > KEY_BYTES || value > VALUE_BYTES {
            return Err(wrong("is longer than a row may be"));
        }
        let expires_ms = match flags & ENDS {
            0 => None,
            _ => Some(u64::from_be_bytes(self.number(&mut at)?)),
        };
        let (key, value) = (self.part(&mut at, key)?, self.part(&mut at, value)?);
        if self.last.is_some_and(|last| key <= last) {
            return Err(wrong("does not follow the one before in the order of keys"));
        }
        (self.at, self.last) = (at, Some(key));
        Ok(BackupRow { key, value, expires_ms })
    }
}

impl<'a> Iterator for RowReader<'a> {
    type Item = Result<BackupRow<'a>, RowsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let row = self.row();
        if row.is_err() {
            self.bytes = &[];
        }
        Some(row)
    }
}
