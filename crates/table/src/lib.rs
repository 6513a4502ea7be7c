//! Tables: the driver that hosts their replicas on one node, and the service and listeners around it.
//!
//! `crates/service` decides what the replicas of a shard do (`table/replication`), and what an entry does to rows (`table/rows`).
//! This crate carries it out: with one log for all replicas of the node, one store for each replica, and real time.
//!
//! ```text
//!   worker ── orders ──►╭──────────── Node ────────────╮── notices ──► worker
//!   doors ─── requests ►│  replica  replica  replica … │◄─ packets ──► replicas of other nodes
//!                       ╰─────│────────│────────│──────╯
//!                           store    store    store        one folder each
//!                             └──── log ─┴──────┘          one synced write for all that wait
//! ```
//!
//! | question | file |
//! |---|---|
//! | how a worker uses the node: orders in, reports out, what is known of stored replicas | `service/mod.rs` |
//! | what HTTP clients ask | `http/mod.rs` |
//! | what gRPC clients ask | `grpc/mod.rs` |
//! | which errors clients get, through HTTP and gRPC | `table_error.rs` |
//! | what Redis clients ask, and where they are sent | `redis/mod.rs`, `redis/slots/mod.rs` |
//! | how a node asks for keys that it does not have | `access.rs` |
//! | how often writes that may have been carried out are sent again | `retry_budget.rs` |
//! | how several rows are asked for at once | `bulk/mod.rs` |
//! | the node as a whole | `server.rs` |
//! | what the service calls, and which notices it gets | `node/mod.rs`, `notice.rs` |
//! | what is found at a start | `node/recovery.rs`, `node/folders.rs` |
//! | which thread does what | `queue/mod.rs`, `event_loop.rs`, `pool.rs`; the log has its own |
//! | what waits for a replica, and which bound that has | `queue/`, `limits.rs` |
//! | how effects of the machine are carried out | `replica/mod.rs` |
//! | which reads do not wait until a replica is served | `direct.rs` |
//! | how a child's replica, of a split or a merge, gets what its parents have | `base/mod.rs`, `replica/children.rs` |
//! | how fast rows are copied | `pacing.rs` |
//! | how packets get to other nodes | `network/mod.rs`, over the trait in `transport.rs` |
//! | how a whole table is scanned, shard after shard | `scans/mod.rs` |
//! | how indexes of a whole table are created, asked and dropped, and tables checked | `indexes/mod.rs` |
//! | what a replica has, summed up to be compared | `check/mod.rs` |
//! | how the change feed of a table is read, from all shards | `feed/mod.rs` |
//! | what a backup reads of a shard, and how it is cut into chunks | `backup/mod.rs` |
//! | what all tokens have around them | `token_frame.rs` |
//! | which values are JSON, and what a filter sees of them | `json.rs` |
//! | how records and writes look on disk | `stored/mod.rs` |
//!
//! # What is promised
//!
//! - A write that was answered with an outcome is on the disks of all in-sync replicas, and applied here.
//! - An error of a write says whether it is certain that nothing was done ([`WriteError::is_definite`]).
//! - If the disk of the log fails, each replica stops at its next event, and acknowledges nothing that was not on disk before.
//! - If the store of one replica fails or is damaged, the others go on.
//!
//! # What was not done
//!
//! - The rest of the stores of merged shards is joined while requests wait; a restarted child takes its base anew.
//! - A stored replica that the service neither opens nor drops keeps entries in the log that are not known to be committed
//!   ([`Notice::HoldsLog`]).
//! - Entries of the log that a follower lacks are sent as fast as it stores them: they are not paced as copies of rows are.
//! - Stores are flushed by their size, or when the log wants room; nothing looks at the memory of all together.

pub mod access;
mod backoff;
pub mod backup;
mod base;
pub mod bulk;
mod check;
mod direct;
mod error;
mod event_loop;
pub mod feed;
mod figures;
pub mod grpc;
pub mod http;
pub mod indexes;
mod json;
pub mod limits;
mod network;
mod node;
mod notice;
mod pacing;
mod pool;
mod queue;
pub mod redis;
mod registry;
mod replica;
mod retry_budget;
pub mod rows;
pub mod scans;
pub mod server;
pub mod service;
mod settings;
pub mod stored;
mod table_error;
mod timing;
mod token_frame;
mod transport;

pub use error::{OpenError, ReadError, ReplicaError, WriteError};
pub use network::{NetworkTransport, PacketService, PacketSink, ReceiveCounts, SendCounts};
pub use node::{Identity, Node, ReadAnswer, StoredReplica};
pub use notice::{Notice, NoticeSink};
pub use pacing::CopyCounts;
pub use partage_service::table::copy::pacing::{
    LEAST_BYTES_PER_S as LEAST_COPY_BYTES_PER_S, Settings as CopySettings,
};
pub use rows::{ChangesPage, FoundChange, PinnedRows, ScanPage, ScanRange, ScannedRow};
pub use settings::{DISK_LIMITS, NodeSettings, ReplicaSettings};
pub use transport::{Packet, ParentAsk, ParentGiven, SnapshotChunk, StoredChange, Transport};
