//! Tables: a key-value store that keeps what it has acknowledged, on several nodes.
//!
//! [`replication`] is the machine of one stored replica: it keeps the log of its shard alike on all of them. It knows nothing
//! of keys and rows; an entry is bytes to it.

pub mod replication;
