//! Maps as replicated METADATA files: what drives the machines of [`partage_service::metadata`].
//!
//! ```text
//!  the client of a change         metadata server                     coordination service
//!  ─────────────────────          ───────────────                     ────────────────────
//!  prepare ───────── stream ────► service ─► server ─► file (fsync)
//!            ◄───── stored ──────    (a majority)
//!  Prepared::condition ──────────────── swap of the head ───────────► keyspaces/<name>/map/metadata
//!  Prepared::finish ── committed ► server ─── reads the head ───────►
//! ```
//!
//! - [`LocalServer`] is a metadata server: all keyspaces of one process, each a task with its machine and its files.
//! - [`MetadataService`] is its gRPC service; [`Peers`] knows where the others are.
//! - [`MetadataServerClient`] reads and changes maps and lists of servers: by [`MetadataServerClient::change`] alone, or by
//!   [`MetadataServerClient::prepare`] for a leader that puts the swap into a transaction of its own.
//! - [`Notices`] tells servers what became of a change, until they have heard.
//!
//! A whole keyspace is one directory, `<data>/<keyspace>`, and each METADATA file in it has the name of the
//! transaction that it began with.

mod client;
mod head;
pub mod limits;
mod map_files;
mod notices;
mod peers;
mod server;
mod service;
mod store_stream;

/// The id of a new transaction: 160 bits that no other one has (T6).
pub fn transaction() -> partage_core::base::id::TransactionId {
    partage_core::base::id::TransactionId(partage_random::bytes())
}
pub use client::{Base, ChangeError, MetadataServerClient, Prepared};
pub use head::{HeadError, Heads, swapped};
pub use map_files::{DamagedMapFile, MapFiles, WriteError};
pub use notices::Notices;
pub use peers::{Directory, Peers};
pub use server::{LocalServer, OpenError};
pub use service::MetadataService;
