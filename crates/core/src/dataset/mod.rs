//! Datasets: which partition a key is in, who holds it, when clients get the next version, who is asked for the rest.
//!
//! A library with many branches and no head office. Each branch hears, late and never from all at once, which
//! volumes the others have, and decides by that and by fixed rules alone.
//!
//! | question | file |
//! |---|---|
//! | what a dataset and a version may be called | [`name`] |
//! | which partition a key is in, and by which hash a version's files were written | [`partition`] |
//!
//! What drives these decisions is in `crates/dataset`; `tests/sim` drives the same with faults.

pub mod name;
pub mod partition;

pub use name::{DatasetName, DatasetNameError, VersionName};
pub use partition::{Partitioner, Recognised, Sample, UnknownPartitioner};
