//! Backups of tables: the files that they consist of, and what nodes and the command send each other for them.
//!
//! ```text
//! LOCATION/
//!   chunks/3f/3f0c…         rows, in a file named after the SHA-256 of its content      [`chunk`], [`rows`]
//!   tables/stock/<id>       a backup of the table stock: which chunks it consists of    [`manifest`]
//! ```
//!
//! The command writes the manifest last, as one object: a backup without one does not exist, and chunks that no manifest names
//! are of use to the next backup.
//!
//! Each bit of each file is covered twice. A chunk file has a CRC32C of all its bytes, which finds a flipped bit wherever it is,
//! in the compressed payload too; its name is the SHA-256 of its rows, so that no other chunk passes for it, and so that two rows
//! sets of one name are equal, whichever node wrote the values. A manifest begins with the SHA-256 of the rest, and is listed
//! under its own table and id, so that one that was moved is refused.

pub mod chunk;
pub mod manifest;
pub mod messages;
pub mod rows;

use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

/// The SHA-256 of some content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentDigest(pub [u8; 32]);

impl ContentDigest {
    /// Computes the digest of these bytes.
    pub fn of(bytes: &[u8]) -> ContentDigest {
        ContentDigest(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not 64 small hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 hex digits in small letters")]
pub struct NoDigest;

impl FromStr for ContentDigest {
    type Err = NoDigest;

    /// Only the form that is written is taken: in another one a flipped bit could hide.
    fn from_str(text: &str) -> Result<ContentDigest, NoDigest> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(NoDigest),
        };
        let mut digest = [0; 32];
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != digest.len() || !rest.is_empty() {
            return Err(NoDigest);
        }
        for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Ok(ContentDigest(digest))
    }
}

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
