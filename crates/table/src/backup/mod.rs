//! Backups of tables: what a node does for them. The command (`partage table backup`, in `crates/cli`) does the rest.
//!
//! ```text
//!  command ── POST …/snapshots ──────────► node: pins the rows of a shard at one place of its log   snapshots.rs
//!          ── GET …/chunk?from=KEY ──────► reads a chunk of them, or says that it is the known one  cutter.rs
//!          ── PUT chunks/…, tables/… ────► folder or object store                                   (not the node)
//!          ── POST /v1/tables/T/chunks ──► writes rows, through the leaders of their shards         loading.rs
//! ```
//!
//! # Why the command writes the files, and not the nodes
//!
//! A node that writes to an object store has credentials for it, and writes there for every client that asks: today for each that
//! reaches its port. It would read and overwrite, on the word of a stranger, what only its credentials may. So the credentials
//! stay with the person who has them, and a folder as destination is one on one machine. The price: all rows of a *first* backup
//! go through the command's machine. It reads from all nodes at once, several shards at a time, so that its network is the bound.
//! Later backups send only what has changed, as nodes cut and hash chunks themselves and answer 304 for those that are in the
//! earlier backup.
//!
//! # Why chunks that are cut by their content, and not the runs of the engine
//!
//! Run files never change, so the name of a file could stand for its rows. But each replica has runs of its own, flushed and
//! compacted at moments of its own: after a change of leader nothing would be the same, and after a compaction most of it would
//! not. What all replicas have in common are the rows. So a chunk is a range of rows, cut where the *keys* say so ([`Cutter`]),
//! and named by a hash of its rows: the same rows are the same chunks from whichever replica, before and after compactions,
//! moves, merges and splits of ranges; after a split by hash the rows of a shard are others, and so are its chunks. An update
//! changes its own chunk, an insertion or deletion one or two as a rule. Versions of rows are left out, so that
//! they take no part in the names.
//!
//! # What consistent means
//!
//! The rows of a shard are read from one state, which a linearizable read has found: it has every write that was acknowledged
//! before the backup began, and each batch as a whole. Different shards are read at different moments. If a shard is split,
//! merged, moved or led elsewhere while it is read, the command begins with that range anew; chunks that it has stored already
//! are not stored again.
//!
//! # What was not done
//!
//! - Reads at followers: a backup loads the leaders' disks.
//! - A limit of bytes a second. [`limits::SNAPSHOT_READS`](crate::limits::SNAPSHOT_READS) reads at a time on a node is one.

mod cutter;
mod loading;
mod snapshots;
#[cfg(test)]
mod tests;

pub use cutter::{Chunk, Cutter};
pub(crate) use loading::Loader;
pub(crate) use snapshots::{Pinned, SnapshotError, Snapshots};
