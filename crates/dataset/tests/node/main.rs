//! Leaderless nodes: real files, real doors on loopback, and one coordination service in memory.
//!
//! Nothing here waits for a time: each step waits until something is so, and gives up only after half a minute. While
//! it waits, a reader at every node reads all keys again and again, and stops the test at the first read that fails or
//! goes back.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod bad;
mod cluster;
mod columns;
mod damage;
mod digest;
mod guard;
mod log;
mod service;
mod test_cluster;
mod trouble;
