//! What tables do when a disk is full, when it has lost or changed something, and when nodes do not come back: on real processes.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

#[path = "../table_cluster/mod.rs"]
mod cluster;
mod damage;
mod force_join;
mod full;
mod limits;
mod planted;
mod slow;
#[path = "../../../engine/tests/replica/small_disk.rs"]
mod small_disk;
mod wire;
mod writers;
