//! Keys, ranges of keys, ranges of hashes.
//!
//! A range includes its begin and excludes its end. An empty end is "beyond the highest key", so
//! `["", "")` is everything (T1). Hash ranges name their last point instead, because the point after the
//! last 64-bit hash does not exist.

use crate::limits;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use triomphe::ThinArc;

/// A key: any bytes, at most [`limits::KEY_BYTES`], compared byte by byte. Cheap to clone; neighbours in a
/// map share the bytes of their common boundary, and each has a single pointer to them.
#[derive(Clone)]
pub struct Key(ThinArc<(), u8>);

/// A key that is too long.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a key of {bytes} bytes is too long: the limit is {max}", max = limits::KEY_BYTES)]
pub struct KeyTooLong {
    /// The length of the refused key.
    pub bytes: usize,
}

impl Key {
    /// Checks the length and keeps the bytes.
    pub fn new(bytes: &[u8]) -> Result<Key, KeyTooLong> {
        if bytes.len() > limits::KEY_BYTES {
            return Err(KeyTooLong { bytes: bytes.len() });
        }
        Ok(Key(ThinArc::from_header_and_slice((), bytes)))
    }

    /// The lowest key, which as the end of a range stands for "beyond the highest".
    pub fn empty() -> Key {
        Key(ThinArc::from_header_and_slice((), &[]))
    }

    /// The bytes as given; empty for the lowest key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0.slice
    }

    /// Whether this is the empty key.
    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }

    /// The smallest key above this one, or none when this one is as long as a key can be.
    pub fn successor(&self) -> Option<Key> {
        let mut bytes = self.as_bytes().to_vec();
        bytes.push(0);
        Key::new(&bytes).ok()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Key {}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Display for Key {
    /// Printable ASCII as it is, the rest as `\xNN`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_bytes().escape_ascii())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Keys from `begin` (included) to `end` (excluded; empty = no end).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// First key in the range.
    pub begin: Key,
    /// First key after the range, or empty.
    pub end: Key,
}

/// A range that holds nothing because its ends are the wrong way round or equal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the range from {begin:?} to {end:?} holds no key: its begin must be below its end (an empty end means no end)"
)]
pub struct ReversedRange {
    /// The first key of the range, as given.
    pub begin: Key,
    /// The first key after the range, as given; not above `begin`.
    pub end: Key,
}

impl KeyRange {
    /// A range that holds at least one key.
    pub fn new(begin: Key, end: Key) -> Result<KeyRange, ReversedRange> {
        if !end.is_empty() && begin >= end {
            return Err(ReversedRange { begin, end });
        }
        Ok(KeyRange { begin, end })
    }

    /// The range that holds every key.
    pub fn all() -> KeyRange {
        KeyRange { begin: Key::empty(), end: Key::empty() }
    }

    /// Whether `key` is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.begin.as_bytes() <= key && (self.end.is_empty() || key < self.end.as_bytes())
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:?}, {:?})", self.begin, self.end)
    }
}

/// Points of the 64-bit hash space from `first` to `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HashRange {
    /// Lowest point; never above `last`.
    pub first: u64,
    /// Highest point; never below `first`.
    pub last: u64,
}

impl HashRange {
    /// The whole hash space.
    pub const ALL: HashRange = HashRange { first: 0, last: u64::MAX };

    /// Whether the range holds `point`.
    pub fn contains(&self, point: u64) -> bool {
        (self.first..=self.last).contains(&point)
    }
}

impl fmt::Display for HashRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:016x}, {:016x}]", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_key_limit_is_exact_and_the_empty_key_is_a_key() {
        assert!(Key::new(b"").is_ok());
        assert!(Key::new(&vec![7; limits::KEY_BYTES]).is_ok());
        let bytes = limits::KEY_BYTES + 1;
        assert_eq!(Key::new(&vec![7; bytes]), Err(KeyTooLong { bytes }));
    }

    #[test]
    fn a_range_includes_its_begin_and_excludes_its_end() {
        let range = KeyRange::new(key("b"), key("d")).unwrap();
        assert!(
            range.contains(b"b")
                && range.contains(b"c\xff")
                && !range.contains(b"d")
                && !range.contains(b"a")
        );
        assert!(KeyRange::all().contains(b"") && KeyRange::all().contains(&[0xff; 9]));
    }

    #[test]
    fn reversed_and_empty_ranges_are_refused() {
        assert!(KeyRange::new(key("b"), key("a")).is_err());
        assert!(KeyRange::new(key("b"), key("b")).is_err());
        assert!(KeyRange::new(key("b"), Key::empty()).is_ok());
    }

    #[test]
    fn nothing_fits_between_a_key_and_its_successor() {
        let next = key("a").successor().unwrap();
        assert!(key("a") < next && next.as_bytes() == b"a\0");
        assert_eq!(Key::new(&vec![0; limits::KEY_BYTES]).unwrap().successor(), None);
    }
}
