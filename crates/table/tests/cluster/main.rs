//! Replicas of tables on three nodes in one process: real files, real threads, a network in memory, and orders made by hand.

#![allow(clippy::unwrap_used, reason = "a test on real files and threads stops at its first surprise")]

mod failing;
mod following;
mod leading;
mod serving;
mod support;
