//! Shuffles on one node: the machines of [`partage_service::shuffle`] with real files, threads and a network.
//!
//! | module | what it is |
//! |---|---|
//! | [`store`] | the files in which a holder keeps batches |
//! | [`log`] | the decisions of leaders, on disk |
//! | [`objects`] | what goes to an object store when the disk fills |
//! | [`node`] | one node: what comes in, the machines, what goes out; and the client in the same process |
//! | [`network`] | the node over sockets: packets as frames, calls of clients; the same calls for other protocols of the process |
//! | `pool` | the node as a service of the shard manager: maps in, loads out; HTTP and metrics |
//! | [`server`] | all of it together: `partage shuffle serve` |
//! | `forms` | what batches, decisions and plans are on disk, byte by byte |
//! | `counted` | numbers that only grow, for metrics |
//!
//! Decisions are the machines'. Here are the clock, randomness and what reads and writes.
//!
//! # What was not done
//!
//! | what | where |
//! |---|---|
//! | readers that come at once have their answers in memory, a bounded one each: their number is bounded, and not by the memory of the node | `node/client/read.rs` |
//! | after 50 s a replica is dropped though its slot has too few replicas; what is left is fetched while the node has an address | `pool/handler.rs` |
//! | before a disk and before a connection batches of shuffles take turns by bytes, and not by weights: a batch does not say the weight of its shuffle. The weights count before that, where a buffer keeps what it has not sent | `node/orders.rs`, `network/transport/mod.rs` |
#![forbid(unsafe_code)]

mod counted;
mod forms;
mod limits;
pub mod log;
pub mod network;
pub mod node;
pub mod objects;
mod pool;
pub mod server;
pub mod store;

pub use pool::{DISK_LIMITS, LocalPool, PoolError};
