//! Where chunks end.
//!
//! A row of b bytes begins a chunk of its own if a hash of its key says so, with a probability of b / [`CUT_BYTES`], but not
//! before the chunk has [`CUT_LEAST_BYTES`], and always when it has [`CUT_MOST_BYTES`]. So chunks have some 2.5 MiB whatever the
//! size of rows is, and where they end depends on keys near the end alone: after a change the cuts are soon the old ones.
//!
//! The lower bound keeps chunks from being many and small, the upper one bounds memory. Values are not hashed: an update would
//! move cuts. This is content-defined chunking (Muthitacharoen, Chen, Mazières, "A low-bandwidth network file system", 2001) with
//! rows for bytes.

use partage_core::keyspace::key::Key;
use partage_wire::table::backup::ContentDigest;
use partage_wire::table::backup::messages::{CUT_BYTES, CUT_LEAST_BYTES, CUT_MOST_BYTES};
use partage_wire::table::backup::rows::BackupRow;
use xxhash_rust::xxh3::xxh3_64;

/// A chunk of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The rows, as [`partage_wire::table::backup::rows`] has them.
    pub content: Vec<u8>,
    /// The number of rows.
    pub rows: u64,
    /// The key that the next chunk begins with; none: there is none.
    pub next: Option<Key>,
}

impl Chunk {
    /// The hash of its rows, which names the chunk in a backup.
    pub fn digest(&self) -> ContentDigest {
        ContentDigest::of(&self.content)
    }
}

/// A chunk that grows.
#[derive(Debug)]
pub struct Cutter {
    content: Vec<u8>,
    rows: u64,
}

impl Cutter {
    /// Begins a chunk, which has no row yet.
    #[expect(clippy::new_without_default, reason = "a cutter is begun on purpose")]
    pub fn new() -> Cutter {
        Cutter { content: Vec::new(), rows: 0 }
    }

    /// Adds the next row, unless it begins the next chunk. Says whether it was added.
    pub fn add(&mut self, key: &[u8], value: &[u8], expires_ms: Option<u64>) -> bool {
        let row = BackupRow { key, value, expires_ms };
        if self.content.len() >= CUT_MOST_BYTES
            || (self.content.len() >= CUT_LEAST_BYTES && begins(key, row.size()))
        {
            return false;
        }
        row.put(&mut self.content);
        self.rows += 1;
        true
    }

    /// The chunk, which ends before that key.
    pub fn end(self, next: Option<Key>) -> Chunk {
        Chunk { content: self.content, rows: self.rows, next }
    }
}

/// Whether a row of so many bytes begins a chunk.
fn begins(key: &[u8], bytes: usize) -> bool {
    // The hash is below a share of its range that is the size's share of the mean.
    (u128::from(xxh3_64(key)) * CUT_BYTES as u128) >> 64 < bytes as u128
}
