//! Records that lie together, as they travel and lie on disk: two lengths, key, value, without anything between them.
//!
//! ```text
//!  ( bytes of the key · bytes of the value · key · value )*        lengths in groups of 7 bits
//! ```
//!
//! They are checked once, when they come, and then read where they lie: clones and parts share the bytes. What keeps a part keeps
//! all bytes that it was taken from, so a machine that keeps some for long copies them together, and nothing else.

use super::record::{MEMORY_APART, MEMORY_OF_RECORD, Record};
use bytes::Bytes;
use partage_core::limits;
use std::ops::Range;

/// Fewest bytes of a record.
const LEAST: usize = 2;

/// Why bytes are not so many records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotRecords {
    /// A length has more bytes than it needs, or more than 64 bits.
    #[error("a length that is not written as lengths are")]
    Number,
    /// The bytes end within a record.
    #[error("the bytes end within a record")]
    Ends,
    /// So many bytes follow the last record.
    #[error("{0} bytes follow the last record")]
    Rest(usize),
    /// Fewer bytes than so many records have.
    #[error("{count} records have more than {bytes} bytes")]
    Count {
        /// The records that the bytes should be.
        count: u64,
        /// The bytes that there are.
        bytes: usize,
    },
    /// A record is larger than records may be.
    #[error("a record larger than records may be")]
    Large,
    /// Records in order have no more than 4 GiB together.
    #[error("{0} bytes, which are more than records in order may have together")]
    Long(usize),
}

/// Records that lie together, checked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
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
    pub fn new(count: u64, bytes: Bytes) -> Result<PackedRecords, NotRecords> {
        let mut content = 0;
        check(count, &bytes, |_, of_record| content += of_record as u64)?;
        Ok(PackedRecords { count, content, bytes })
    }

    /// Copies records together.
    pub fn pack<'a>(records: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> PackedRecords {
        let (mut packed, mut bytes) = (PackedRecords::default(), Vec::new());
        for (key, value) in records {
            packed.count += 1;
            packed.content += (key.len() + value.len()) as u64;
            put_record(key, value, &mut bytes);
        }
        PackedRecords { bytes: bytes.into(), ..packed }
    }

    /// Copies records together that lie apart.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> PackedRecords {
        PackedRecords::pack(records.into_iter().map(|one| (&one.key[..], &one.value[..])))
    }

    /// Each record apart, with a copy of its key and value.
    pub fn unpack(&self) -> Vec<Record> {
        let mut records = Vec::with_capacity(usize::try_from(self.count).unwrap_or(0));
        records.extend(self.iter().map(|(key, value)| Record { key: key.into(), value: value.into() }));
        records
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Their keys and values, in bytes.
    pub fn content_bytes(&self) -> u64 {
        self.content
    }

    /// What they take in memory at most, in bytes: a record of length 0 counts too.
    pub fn memory(&self) -> u64 {
        self.content.saturating_add(MEMORY_OF_RECORD.saturating_mul(self.count))
    }

    /// The same while they are combined, in bytes, about: of each its key is looked up, and its value lies apart.
    pub fn memory_apart(&self) -> u64 {
        self.content.saturating_add(MEMORY_APART.saturating_mul(self.count))
    }

    /// As they lie there.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Each key and value.
    pub fn iter(&self) -> Records<'_> {
        Records(&self.bytes)
    }

    /// The same where they lie from `at` on in other bytes, into which they were copied.
    pub(super) fn moved(&self, bytes: &Bytes, at: usize) -> PackedRecords {
        PackedRecords { bytes: bytes.slice(at..at + self.bytes.len()), ..*self }
    }

    /// Records whose sizes are known.
    pub(super) fn part(count: u64, content: u64, bytes: Bytes) -> PackedRecords {
        PackedRecords { count, content, bytes }
    }

    /// Where each record begins and ends, and where its key and its value do.
    pub(super) fn places(&self) -> Places<'_> {
        Places { all: &self.bytes, rest: &self.bytes }
    }
}

impl From<Vec<Record>> for PackedRecords {
    /// Copies them together.
    fn from(records: Vec<Record>) -> PackedRecords {
        PackedRecords::of(&records)
    }
}

impl<'a> IntoIterator for &'a PackedRecords {
    type Item = (&'a [u8], &'a [u8]);
    type IntoIter = Records<'a>;
    fn into_iter(self) -> Records<'a> {
        self.iter()
    }
}

/// Whether a record is larger than records may be.
pub fn is_large(key: &[u8], value: &[u8]) -> bool {
    key.len() > limits::SHUFFLE_KEY_BYTES || key.len() + value.len() > limits::SHUFFLE_RECORD_BYTES
}

/// The keys and values of records that were checked.
#[derive(Debug, Clone)]
pub struct Records<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (record, rest) = split(self.0).ok()?;
        self.0 = rest;
        Some(record)
    }
}

/// Where a record lies: all of it, its key, and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) record: Range<usize>,
    pub(super) key: Range<usize>,
    pub(super) value: Range<usize>,
}

/// The places of records that were checked.
#[derive(Debug, Clone)]
pub(super) struct Places<'a> {
    all: &'a [u8],
    rest: &'a [u8],
}

impl Iterator for Places<'_> {
    type Item = Place;

    fn next(&mut self) -> Option<Place> {
        let ((key, value), rest) = split(self.rest).ok()?;
        let begin = self.all.len() - self.rest.len();
        let end = self.all.len() - rest.len();
        self.rest = rest;
        let value = end - value.len()..end;
        let key = value.start - key.len()..value.start;
        Some(Place { record: begin..end, key, value })
    }
}

/// Writes one record.
pub fn put_record(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    put_number(key.len() as u64, out);
    put_number(value.len() as u64, out);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// Writes a number in groups of 7 bits, the least significant one first.
pub fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push((number as u8 & 0x7f) | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The number at the front of bytes, and how many it has.
///
/// # Errors
/// There is none, or it has more bytes than it needs.
pub fn number(bytes: &[u8]) -> Result<(u64, usize), NotRecords> {
    // Nearly all lengths.
    if let Some(first) = bytes.first().filter(|first| **first < 0x80) {
        return Ok((u64::from(*first), 1));
    }
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        let group = u64::from(byte & 0x7f);
        if (at == 9 && group > 1) || (*byte == 0 && at > 0) {
            return Err(NotRecords::Number);
        }
        value |= group << (7 * at);
        if *byte < 0x80 {
            return Ok((value, at + 1));
        }
    }
    if bytes.len() < 10 { Err(NotRecords::Ends) } else { Err(NotRecords::Number) }
}

/// A key and a value.
type Pair<'a> = (&'a [u8], &'a [u8]);

/// Whether bytes are so many records: tells of each, in turn, where it ends, and the bytes of its key and value.
pub(super) fn check(count: u64, bytes: &[u8], mut tell: impl FnMut(usize, usize)) -> Result<(), NotRecords> {
    if count > (bytes.len() / LEAST) as u64 {
        return Err(NotRecords::Count { count, bytes: bytes.len() });
    }
    let mut rest = bytes;
    for _ in 0..count {
        let ((key, value), after) = split(rest)?;
        if is_large(key, value) {
            return Err(NotRecords::Large);
        }
        rest = after;
        tell(bytes.len() - rest.len(), key.len() + value.len());
    }
    if rest.is_empty() { Ok(()) } else { Err(NotRecords::Rest(rest.len())) }
}

/// The first record, and what follows.
pub(super) fn split(bytes: &[u8]) -> Result<(Pair<'_>, &[u8]), NotRecords> {
    let (key, first) = number(bytes)?;
    let (value, second) = number(&bytes[first..])?;
    let rest = &bytes[first + second..];
    let length = |length: u64| usize::try_from(length).map_err(|_| NotRecords::Ends);
    let (key, rest) = rest.split_at_checked(length(key)?).ok_or(NotRecords::Ends)?;
    let (value, rest) = rest.split_at_checked(length(value)?).ok_or(NotRecords::Ends)?;
    Ok(((key, value), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_are_found_where_they_lie(
            records in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..200), prop::collection::vec(any::<u8>(), 0..300)),
                0..20,
            ),
        ) {
            let packed = PackedRecords::pack(records.iter().map(|(key, value)| (&key[..], &value[..])));
            prop_assert_eq!(PackedRecords::new(packed.count(), packed.bytes().clone()), Ok(packed.clone()));
            let found: Vec<(Vec<u8>, Vec<u8>)> = packed.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            prop_assert_eq!(&found, &records);
            prop_assert_eq!(PackedRecords::of(&packed.unpack()), packed.clone());
            let mut at = 0;
            for (place, (key, value)) in packed.places().zip(&records) {
                prop_assert_eq!(place.record.start, at);
                at = place.record.end;
                prop_assert_eq!(&packed.bytes()[place.key], &key[..]);
                prop_assert_eq!(&packed.bytes()[place.value], &value[..]);
            }
            prop_assert_eq!(at, packed.bytes().len());
            let content: usize = records.iter().map(|(key, value)| key.len() + value.len()).sum();
            prop_assert_eq!(packed.content_bytes(), content as u64);
            prop_assert!(packed.memory() >= packed.bytes().len() as u64);
            // Nothing shorter is so many records.
            for length in 0..packed.bytes().len() {
                prop_assert!(PackedRecords::new(packed.count(), packed.bytes().slice(..length)).is_err());
            }
        }
    }

    #[test]
    fn a_length_with_more_bytes_than_it_needs_is_none() {
        assert_eq!(number(&[0x80, 0]), Err(NotRecords::Number));
        assert_eq!(number(&[0x80, 1]), Ok((128, 2)));
        assert_eq!(number(&[0xff]), Err(NotRecords::Ends));
        assert_eq!(number(&[0xff; 11]), Err(NotRecords::Number));
        assert_eq!(PackedRecords::new(1, Bytes::from_static(&[0, 0, 7])), Err(NotRecords::Rest(1)));
        assert_eq!(
            PackedRecords::new(2, Bytes::from_static(&[0, 0])),
            Err(NotRecords::Count { count: 2, bytes: 2 })
        );
    }
}
