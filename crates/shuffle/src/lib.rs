//! Shuffles on one node: the machines of [`partage_core::service::shuffle`] with real files, threads and a network.
//!
//! | module | what it is |
//! |---|---|
//! | [`store`] | the files in which a holder keeps batches |
//! | [`log`] | the decisions of leaders, on disk |
//! | [`node`] | one node: what comes in, the machines, what goes out; and the client in the same process |
//!
//! Decisions are the machines'. Here are the clock, randomness and what reads and writes.
#![forbid(unsafe_code)]

mod forms;
mod limits;
pub mod log;
pub mod node;
pub mod store;
