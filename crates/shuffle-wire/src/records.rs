//! Records as they travel and lie on disk: two lengths, key, value, one after the other, without anything between them.
//!
//! ```text
//!  ( bytes of the key · bytes of the value · key · value )*        lengths in groups of 7 bits
//! ```
//!
//! They are checked once, when they come, and then read where they lie. Core's form of them ([`Record`]) takes a copy of each key
//! and value.

use crate::form::{Cursor, number, put_number};
use crate::malformed::Malformed;
use bytes::Bytes;
use partage_core::limits;
use partage_service::shuffle::record::{MEMORY_OF_RECORD, Record};

/// Fewest bytes of a record.
const LEAST: usize = 2;

/// Records that lie together, checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PackedRecords {
    count: u64,
    content: u64,
    bytes: Bytes,
}

impl PackedRecords {
    /// Takes so many records as they are; the bytes are shared.
    ///
    /// # Errors
    /// These bytes are not so many records, or one of them is larger than a record may be.
    pub fn new(count: u64, bytes: Bytes) -> Result<PackedRecords, Malformed> {
        if count > (bytes.len() / LEAST) as u64 {
            return Err(Malformed::Count { what: "records", count, bytes: bytes.len() });
        }
        let (mut rest, mut content) = (&bytes[..], 0);
        for _ in 0..count {
            let ((key, value), after) = split(rest)?;
            let is_large = key.len() > limits::SHUFFLE_KEY_BYTES
                || key.len() + value.len() > limits::SHUFFLE_RECORD_BYTES;
            if is_large {
                return Err(Malformed::Value("a record larger than records may be"));
            }
            content += (key.len() + value.len()) as u64;
            rest = after;
        }
        if !rest.is_empty() {
            return Err(Malformed::Rest(rest.len()));
        }
        Ok(PackedRecords { count, content, bytes })
    }

    /// Copies keys and values into one piece of memory, in that order.
    pub fn pack<'a>(records: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> PackedRecords {
        let (mut packed, mut bytes) = (PackedRecords::default(), Vec::new());
        for (key, value) in records {
            packed.count += 1;
            packed.content += (key.len() + value.len()) as u64;
            put_record(key, value, &mut bytes);
        }
        PackedRecords { bytes: bytes.into(), ..packed }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their keys and values, in bytes.
    pub fn content_bytes(&self) -> u64 {
        self.content
    }

    /// What they take in memory in core's form.
    pub fn memory(&self) -> u64 {
        self.content.saturating_add(MEMORY_OF_RECORD.saturating_mul(self.count))
    }

    /// As they lie there.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Each key and value.
    pub fn iter(&self) -> Records<'_> {
        Records(&self.bytes)
    }

    /// Core's form of them: each key and value is copied.
    pub fn unpack(&self) -> Vec<Record> {
        let mut records = Vec::with_capacity(usize::try_from(self.count).unwrap_or(0));
        records.extend(self.iter().map(|(key, value)| Record { key: key.into(), value: value.into() }));
        records
    }

    /// Reads so many records, which have so many bytes together.
    pub(crate) fn take(from: &mut Cursor<'_>, count: u64, bytes: usize) -> Result<PackedRecords, Malformed> {
        PackedRecords::new(count, from.part(bytes, "records")?)
    }
}

impl<'a> IntoIterator for &'a PackedRecords {
    type Item = (&'a [u8], &'a [u8]);
    type IntoIter = Records<'a>;
    fn into_iter(self) -> Records<'a> {
        self.iter()
    }
}

/// The keys and values of records that were checked.
#[derive(Debug, Clone)]
pub struct Records<'a>(&'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (record, rest) = split(self.0).ok()?;
        self.0 = rest;
        Some(record)
    }
}

/// Appends the form of a record to `out`, for [`PackedRecords::new`].
pub fn put_record(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    put_number(key.len() as u64, out);
    put_number(value.len() as u64, out);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// A key and a value.
type Pair<'a> = (&'a [u8], &'a [u8]);

/// The first record, and what follows.
fn split(bytes: &[u8]) -> Result<(Pair<'_>, &[u8]), Malformed> {
    const WHAT: &str = "a record";
    let (key, first) = number(bytes, WHAT)?;
    let (value, second) = number(&bytes[first..], WHAT)?;
    let rest = &bytes[first + second..];
    let length = |length: u64| usize::try_from(length).map_err(|_| Malformed::Ends(WHAT));
    let (key, rest) = rest.split_at_checked(length(key)?).ok_or(Malformed::Ends(WHAT))?;
    let (value, rest) = rest.split_at_checked(length(value)?).ok_or(Malformed::Ends(WHAT))?;
    Ok(((key, value), rest))
}
