//! Stored forms of tables: the records of a shard as keys and values of a store, and a write as the payload of an entry.
//!
//! | form | where |
//! |---|---|
//! | keys | `keys.rs` |
//! | values: a row, an outcome, how the shard stands | `values.rs` |
//! | the payload of an entry | `write.rs`, and `index.rs` of one that is about indexes |
//! | an index | `index.rs` |
//! | values of the change feed: a change, up to where changes are removed | `changes.rs` |
//! | bounds of shards | `bounds.rs` |
//!
//! They stand here and not in `wire`, as the forms of the log and of the engine stand with those: this driver alone writes and
//! reads them, a network carries them as bytes, and `wire` would bring gRPC to a crate that has no network. Numbers are
//! big-endian. Each value and each payload begins with its version, and what is read is checked to its last byte.

pub(crate) mod bounds;
pub(crate) mod changes;
pub(crate) mod cursor;
pub mod index;
pub(crate) mod keys;
#[cfg(test)]
mod tests;
pub mod values;
pub mod write;

use std::fmt;

/// Bytes that are no form of this program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// What they should be.
    pub form: &'static str,
    /// The part that is wrong.
    pub part: &'static str,
    /// Where that begins, in bytes.
    pub at: usize,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Malformed { form, part, at, why } = self;
        write!(f, "{form} is malformed: {part} at byte {at} {why}; fill the replica from another one")
    }
}

impl std::error::Error for Malformed {}
