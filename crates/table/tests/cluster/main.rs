//! Replicas of tables on three nodes in one process: real files, real threads, a network in memory or on loopback, and
//! orders made by hand.

#![allow(clippy::unwrap_used, reason = "a test on real files and threads stops at its first surprise")]

mod closing;
mod disk;
mod failing;
mod following;
mod forming;
mod indexing;
mod leading;
mod network;
mod serving;
mod support;
