//! Shuffles on one node: the machines of [`partage_service::shuffle`] with real files, threads and a network.
//!
//! | module | what it is |
//! |---|---|
//! | [`store`] | the files in which a holder keeps batches |
//! | [`log`] | the decisions of leaders, on disk |
//! | [`node`] | one node: what comes in, the machines, what goes out; and the client in the same process |
//! | [`network`] | the node over sockets: packets as frames, calls of clients |
//! | `pool` | the node as a service of the shard manager: maps in, loads out; status and metrics |
//! | [`server`] | all of it together: `partage shuffle serve` |
//!
//! Decisions are the machines'. Here are the clock, randomness and what reads and writes.
//!
//! # What was not done
//!
//! | what | where |
//! |---|---|
//! | the records of a range that is read are in memory as a whole: one that is larger than the memory for ranges is not parted | `node/reading.rs` |
//! | a node without a slot is not known to the others, so it neither stands in nor takes its share before the coordinator has placed something on it | `pool/map.rs` |
//! | records of Arrow, and partitions that are cut at bytes or between keys, are refused | `network/calls.rs` |
//! | a node that leaves hands over the slots that it has: what it has taken as a stand-in for others stays on its disk if it ends before their replicas have fetched it | `pool/handler.rs` |
//! | after 50 s a replica is dropped though its slot has too few replicas; what is left is fetched while the node has an address | `pool/handler.rs` |
//! | what is told of a slot that was moved says nothing of bytes: the placement knows no sizes | `pool/handler.rs` |
//! | nothing goes to an object store, and there are no quotas and weights | `pool/disk.rs`, `network/session.rs` |
#![forbid(unsafe_code)]

mod forms;
mod limits;
pub mod log;
pub mod network;
pub mod node;
mod pool;
pub mod server;
pub mod store;

pub use pool::{DISK_LIMITS, LocalPool, PoolError};
