//! Maps as replicated METADATA files: what drives the machines of [`partage_core::metadata`].
//!
//! ```text
//!  the client of a change         metadata server                     coordination service
//!  ─────────────────────          ───────────────                     ────────────────────
//!  Maps::prepare ──── line ─────► service ─► keeper ─► book (fsync)
//!            ◄───── stored ──────    (a majority)
//!  Prepared::condition ──────────────── swap of the head ───────────► keyspaces/<name>/map/metadata
//!  Prepared::finish ── committed ► keeper ─── reads the head ───────►
//! ```
//!
//! - [`Keepers`] is a metadata server: all keyspaces of one process, each a task with its machine and its files.
//! - [`MetadataService`] is its gRPC door; [`Peers`] knows where the others are.
//! - [`Maps`] changes maps and lists of servers: [`Maps::change`] alone, or [`Maps::prepare`] for a leader that
//!   puts the swap into a transaction of its own.
//! - [`Notices`] tells whoever has an interest, until it has heard.
//!
//! A whole keyspace is one directory, `<data>/<keyspace>`, and each METADATA file in it has the name of the
//! transaction that it began with.

mod book;
mod entropy;
mod head;
mod keeper;
pub mod limits;
mod line;
mod maps;
mod notices;
mod peers;
mod service;

pub use book::{DamagedBook, Shelf, WriteError};
pub use entropy::transaction;
pub use head::{HeadError, Heads, swapped};
pub use keeper::{Keepers, OpenError};
pub use maps::{Base, ChangeError, Maps, Prepared};
pub use notices::Notices;
pub use peers::{Directory, Peers};
pub use service::MetadataService;
