//! The state machines of what stands on the shard manager, or beside it. Their drivers are crates of their own: each
//! machine is here and not there because `tests/house` holds everything here to be pure.
//!
//! | machine | what it decides | its driver |
//! |---|---|---|
//! | [`dataset`] | which partitions and versions a node loads, serves and lets go | `crates/dataset` |
//! | [`metadata`] | what a metadata server stores and answers, and when a change of a map counts | `crates/metadata` |
//! | [`table`] | how the replicas of a shard of a table keep one log, and who may write and read, and what an entry does to rows | `crates/table`, without a network yet |
//! | [`shuffle`] | what buffers, holders, leaders and readers of shuffles do | none yet: `tests/sim` alone |
//! | [`whatif`] | what would happen to the keys of a sample under another scheme | `partage simulate` |

pub mod dataset;
pub mod metadata;
pub mod shuffle;
pub mod table;
pub mod whatif;
