//! What a coordinator keeps: each of core's writes as keys and checksummed bytes, and all of them read back.
//!
//! Think of a ledger with a bookmark. A map is one *base*, written whole, and a *log* of diffs on it; the
//! bookmark, called *head*, says which base counts. Now and then a new base is written beside the old one, and
//! then the bookmark moves, in the same transaction as everything else that happened. Whatever the bookmark
//! does not lead to is litter, whoever crashed when.
//!
//! | key | value |
//! |---|---|
//! | `cluster` | counters and switches |
//! | `keyspaces/<name>/record` | settings and rules |
//! | `keyspaces/<name>/map/metadata` | which METADATA file counts, and who has it; in place of the three below |
//! | `keyspaces/<name>/map/head` | which log counts |
//! | `keyspaces/<name>/map/logs/<log>/base/<chunk>` | some shards of the base |
//! | `keyspaces/<name>/map/logs/<log>/diff/<sequence>` | from the map before to the map at `<sequence>` |
//! | `nodes/<id>` | a node |
//! | `plans/<number>` | a plan with its progress |
//! | `redo/head`, `redo/pieces/<n>` | a commit in several transactions, see `redo.rs` |
//!
//! `<log>` is the base's sequence, a dash, and the first 16 hex digits of its transaction, so no two lives
//! of a keyspace share one. A value above [`limits::VALUE_BYTES`] goes on in `<key>/1`, `<key>/2` and so on.
//!
//! The driver, in numbered sentences:
//! 1. Read all keys below [`ROOTS`] and call [`read`]; it gives the records, the [`Shelf`] and the litter.
//! 2. Carry out the transactions of [`Recovered::finish`], in order: the rest of a commit, and the litter.
//! 3. For every outbox call [`Shelf::encode`], and carry out its [`Batch::transactions`], in order; or
//!    [`Shelf::encode_apart`] where metadata servers keep the maps, whose heads change in the transaction that is the
//!    commit.
//! 4. If one of them fails, throw the shelf away with the cluster, and begin again at 1.
//!
//! Not done: compression (diffs are small, and the store does it better), and checksums over several keys
//! (the store's transactions are trusted to be whole; that parts belong together is checked).

pub mod book;
mod envelope;
mod path;
mod presence;
mod read;
mod redo;
mod shelf;
#[cfg(test)]
mod tests;

pub use presence::{COORDINATORS, ELECTION, Presence};
pub use read::{Recovered, StoredError, inspect, read};
pub use redo::{Room, Transactions};
pub use shelf::{Batch, EncodeError, Shelf, StoreOp};

/// The first segments of all keys: what to list.
pub const ROOTS: [&str; 5] = ["cluster", "keyspaces", "nodes", "plans", REDO];

/// Whether a key is below one of [`ROOTS`].
pub fn is_record(key: &str) -> bool {
    ROOTS.contains(&key.split('/').next().unwrap_or_default())
}

/// The root of what a commit in several transactions leaves until it has ended.
const REDO: &str = "redo";

#[cfg(doc)]
use crate::limits;
