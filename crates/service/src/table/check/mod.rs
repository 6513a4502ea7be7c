//! Whether the replicas of a shard have the same, and each of them the index entries that its rows ask for.
//!
//! An entry of the log says when: each replica sums up what it has as of that entry, range by range of keys, and this compares
//! the sums.
//!
//! ```text
//!  replica of n1   a … f: rows 812, by-size 640 of 640     g … z: rows 799, by-size 611 of 612   ◄── an entry is missing
//!  replica of n2   a … f: rows 812, by-size 640 of 640     g … z: rows 799, by-size 612 of 612
//!  replica of n3   a … f: rows 811, by-size 640 of 640 …                                         ◄── a row is missing
//! ```
//!
//! A range begins at a key whose hash says so ([`begins_range`]), and not after so many rows: a row that one replica lacks
//! changes no other range. Sums do not depend on the order in which they are made ([`Sum`]), so that an index is read in its own
//! order and its entries still count for the range of their row.
//!
//! What most replicas have counts as right; where there is no such majority each is named.

mod compare;
#[cfg(test)]
mod tests;

pub use compare::{Difference, Kind, compare};

use partage_core::base::name::IndexName;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::Key;
use std::collections::BTreeMap;
use std::fmt;

/// How many entries there are, and a sum of their hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
    /// How many entries were added.
    pub count: u64,
    /// The sum of their hashes, which begins again at 2^64. Two sums of different entries are equal with a chance of 2^-64:
    /// it is against damage, not against malice.
    pub hash: u64,
}

impl Sum {
    /// Adds an entry of that hash.
    pub fn add(&mut self, hash: u64) {
        self.count += 1;
        self.hash = self.hash.wrapping_add(hash);
    }
}

/// What is summed up apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Keys, values, versions and ends of rows.
    Rows,
    /// The times at which rows end, by which they are removed.
    Ends,
    /// The entries of an index.
    Index(IndexName),
    /// Entries of an index that there is not: there should be none.
    Stray,
    /// What the shard has beside rows: outcomes of requests, its clock, which indexes there are.
    Others,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Rows => f.write_str("rows"),
            Part::Ends => f.write_str("times when rows end"),
            Part::Index(name) => write!(f, "index {name}"),
            Part::Stray => f.write_str("entries of an index that there is not"),
            Part::Others => f.write_str("outcomes of requests, and other records"),
        }
    }
}

/// What a replica has in a range of keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RangeDigest {
    /// What the replica has stored of each part.
    pub stored: BTreeMap<Part, Sum>,
    /// What should be stored by the rows of the range; none of an index that is not ready.
    pub expected: BTreeMap<Part, Sum>,
}

/// What a replica has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Digest {
    /// The ranges, by the key with which they begin. The first one begins with the empty key.
    pub ranges: BTreeMap<Key, RangeDigest>,
    /// Indexes that are being built or dropped: whether they fit the rows cannot be said.
    pub unfinished: Vec<IndexName>,
}

/// Whether a range begins at that key, if there is to be one for so many rows, a power of two.
pub fn begins_range(key: &[u8], range_rows: u64) -> bool {
    let hash = HashFunction::Xxh3_64.hash(key);
    hash & u128::from(range_rows.saturating_sub(1)) == 0
}
