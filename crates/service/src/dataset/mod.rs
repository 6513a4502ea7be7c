//! Datasets: which partition a key is in, which nodes hold it, when clients get the next version, which node is asked for the
//! rest.
//!
//! Nodes need no leader: each hears, late and never from all at once, which partitions the others have, and decides by that
//! and by fixed rules alone.
//!
//! | question | file |
//! |---|---|
//! | what a dataset and a version may be called | [`name`] |
//! | which partition a key is in, and by which hash a version's files were written | [`partition`] |
//! | how several columns are one key | [`columns`] |
//! | which partitions a node takes | [`assign`], by its [seat](seats); under a coordinator [`shards`], by its orders |
//! | what a node tells, loads, and gives its clients | [`node`] |
//! | which peer is asked for what is not here, and when the next | [`fetch`] |
//!
//! What drives these decisions is in `crates/dataset`; `tests/sim` drives the same with faults.

pub mod assign;
pub mod columns;
pub mod fetch;
pub mod furthest;
pub mod name;
pub mod node;
pub mod partition;
pub mod seats;
pub mod shards;
pub mod version_search;

pub use assign::{Dealing, Replication, ReplicationError, UnknownDealing};
pub use fetch::{Failure, Fetch, FetchSettings, Next};
pub use name::{DatasetName, DatasetNameError, VersionName};
pub use partition::{Partitioner, Recognised, Sample, UnknownPartitioner};
pub use seats::{Address, AddressError, Claim, Right, Seat, Wish};
