//! What nodes say about snapshots of shards, and of rows that they have taken in.

use crate::json::KeyText;
use crate::table::{PlaceForm, RowText};
use serde::{Deserialize, Serialize};

/// Header of a chunk: how many rows it has.
pub const ROWS: &str = "partage-rows";

/// Header of a chunk: the key at which the next one begins, percent-encoded; absent: this was the last one.
pub const NEXT: &str = "partage-next";

/// Bytes of content before which a node does not cut, unless the shard ends.
pub const CUT_LEAST_BYTES: usize = 512 << 10;

/// Bytes of content between two cuts, in the middle, counted from [`CUT_LEAST_BYTES`] on.
pub const CUT_BYTES: usize = 2 << 20;

/// Bytes of content at which a node cuts whatever the next key is.
pub const CUT_MOST_BYTES: usize = 8 << 20;

/// A snapshot that a node keeps: the rows of one shard as one place of its log has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedSnapshot {
    /// The name by which later requests ask for it.
    pub snapshot: String,
    /// The id of the shard whose rows it has.
    pub shard: u64,
    /// Where the shard begins. Earlier nodes leave it out for named partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<PlaceForm>,
    /// Where the next shard begins; absent: this is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<PlaceForm>,
    /// The place in the log, as versions of rows are written.
    pub position: String,
    /// The clock of the shard there, in milliseconds of Unix time: rows that ended before are not in the snapshot.
    pub clock_ms: u64,
    /// The node forgets the snapshot when no request has named it for so long.
    pub idle_ms: u64,
    /// After so long the node forgets it in any case.
    pub life_ms: u64,
}

/// A page of the rows of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRows {
    /// The rows, in the order of their keys.
    pub rows: Vec<RowText>,
    /// The key to give as `from` for the next page; absent: this was the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<KeyText>,
}

/// What became of rows that a node was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RowsTaken {
    /// Rows that it has written.
    pub written: u64,
    /// Keys that had a row already, which stays as it is.
    pub there: u64,
    /// Rows whose time has passed.
    pub ended: u64,
}
