//! Pure decisions of the services: the state machines of what stands on the shard manager, or beside it. Their drivers are
//! crates of their own.
//!
//! As in `partage_core`, nothing here reads a clock, draws a random number, does I/O or awaits; `tests/house` holds both crates
//! to it. A machine knows `partage_core`; the services do not know each other.
//!
//! | machine | what it decides | its driver |
//! |---|---|---|
//! | [`dataset`] | which partitions and versions a node loads, serves and lets go | `crates/dataset` |
//! | [`metadata`] | what a metadata server stores and answers, and when a change of a map counts | `crates/metadata` |
//! | [`table`] | how the replicas of a shard of a table keep one log, and when a replica may write and read, and what an entry does to rows | `crates/table` |
//! | [`shuffle`] | what buffers, holders, leaders and readers of shuffles do | `crates/shuffle` |
//! | [`whatif`] | what would happen to the keys of a sample under another scheme | `partage simulate` |

pub mod dataset;
pub mod metadata;
pub mod shuffle;
pub mod table;
pub mod whatif;
