//! What a coordinator keeps: each of core's writes as keys and checksummed bytes, and all of them read back.
//!
//! A map is one *base*, written whole, and a *log* of diffs on it; the *head* says which base counts. Now and then a new
//! base is written beside the old one, and then the head is moved to it, in the same transaction as everything else that
//! happened. Whatever the head does not lead to is litter, whatever crashed and whenever.
//!
//! | key | value |
//! |---|---|
//! | `cluster` | counters and switches |
//! | `manifest` | checksums of the cluster's record, of all nodes and of all plans |
//! | `keyspaces/<name>/record` | settings and rules |
//! | `keyspaces/<name>/manifest` | the checksum of the record, and the generation of the map |
//! | `keyspaces/<name>/map/metadata` | which METADATA file counts, and who has it; in place of the three below |
//! | `keyspaces/<name>/map/head` | which log counts |
//! | `keyspaces/<name>/map/logs/<log>/base/<chunk>` | some shards of the base |
//! | `keyspaces/<name>/map/logs/<log>/diff/<sequence>` | from the map before to the map at `<sequence>` |
//! | `nodes/<id>` | a node |
//! | `plans/<number>` | a plan with its progress |
//! | `redo/head`, `redo/pieces/<n>` | a commit in several transactions, see `redo.rs` |
//! | `events/<n>` | what happened lately; no record, and below none of [`ROOTS`]: see `events.rs` |
//!
//! `<log>` is the base's sequence, a dash, and the first 16 hex digits of its transaction, so no two lives
//! of a keyspace share one. A value above [`limits::VALUE_BYTES`] goes on in `<key>/1`, `<key>/2` and so on.
//!
//! The driver, in numbered sentences:
//! 1. Read all keys below [`ROOTS`] and call [`read`]; it gives the records, the [`StoreEncoder`] and the litter.
//! 2. Carry out the transactions of [`Recovered::finish`], in order: the rest of a commit, and the litter.
//! 3. For every outbox call [`StoreEncoder::encode`], and carry out its [`Batch::transactions`], in order; or
//!    [`StoreEncoder::encode_apart`] where metadata servers keep the maps, whose heads change in the transaction that is the
//!    commit.
//! 4. If one of them fails, throw the encoder away with the cluster, and begin again at 1.
//!
//! A key that was deleted, or set back to an earlier value, is as well-formed as any. The manifests find it: each
//! commit writes there, in its own transaction, what the records that it changes are from now on. What follows from a
//! difference is in `compare.rs`.
//!
//! Not done: compression (diffs are small, and the store does it better).

mod compare;
mod encoder;
mod envelope;
mod events;
mod manifest;
pub mod map_file;
mod path;
mod presence;
mod read;
mod records;
mod redo;
mod show;
pub mod table_members;
pub mod term;
#[cfg(test)]
mod tests;

pub use encoder::{Batch, EncodeError, StoreEncoder, StoreOp, shards_named};
pub use events::{EVENTS, event_line, events_key, events_slot, open_events, seal_events};
pub use presence::{COORDINATORS, ELECTION, Presence};
pub use read::{Recovered, StoredError, inspect, read};
pub use redo::{TransactionLimits, Transactions};
pub use show::{Shown, describe};

/// The first segments of all keys: what to list.
pub const ROOTS: [&str; 6] = ["cluster", "keyspaces", MANIFEST, "nodes", "plans", REDO];

/// The key of the manifest of all that is no keyspace.
pub const MANIFEST: &str = "manifest";

/// Whether a key is below one of [`ROOTS`].
pub fn is_record(key: &str) -> bool {
    ROOTS.contains(&key.split('/').next().unwrap_or_default())
}

/// The root of what a commit in several transactions leaves until it has ended.
const REDO: &str = "redo";

#[cfg(doc)]
use crate::limits;
