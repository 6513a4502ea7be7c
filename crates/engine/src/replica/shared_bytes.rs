//! Bytes of a key or a value that are cheap to clone and may lie in a cached block.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use lsm_tree::Slice;

/// A key or a value. A clone shares the bytes. While it lives, it may keep the block alive that it was read from.
#[derive(Clone, Default)]
pub struct SharedBytes {
    bytes: Slice,
    /// So many bytes before the value are not part of it: the prefix of a stored key.
    skipped: u8,
}

impl SharedBytes {
    pub(super) fn value(bytes: Slice) -> SharedBytes {
        SharedBytes { bytes, skipped: 0 }
    }

    /// The key of a row, given as it is stored.
    pub(super) fn stored_key(bytes: Slice) -> SharedBytes {
        SharedBytes { bytes, skipped: 1 }
    }

    /// The stored form, if it was made from one.
    pub(super) fn as_stored_key(&self) -> Option<&Slice> {
        (self.skipped == 1).then_some(&self.bytes)
    }

    pub(super) fn to_slice(&self) -> Slice {
        if self.skipped == 0 { self.bytes.clone() } else { Slice::from(&**self) }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes.get(usize::from(self.skipped)..).unwrap_or_default()
    }
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<&[u8]> for SharedBytes {
    fn from(bytes: &[u8]) -> SharedBytes {
        SharedBytes::value(Slice::from(bytes))
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> SharedBytes {
        SharedBytes::value(Slice::from(bytes))
    }
}

impl PartialEq for SharedBytes {
    fn eq(&self, other: &SharedBytes) -> bool {
        **self == **other
    }
}

impl Eq for SharedBytes {}

impl PartialOrd for SharedBytes {
    fn partial_cmp(&self, other: &SharedBytes) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SharedBytes {
    fn cmp(&self, other: &SharedBytes) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for SharedBytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}
