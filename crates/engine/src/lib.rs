//! Local storage of shards. So far the read-only part: what a node keeps of one partition of a dataset version.
//!
//! A dataset is published as a book is: printed once, in as many editions as there are versions, and never corrected
//! by hand. [`readonly`] prints the book and opens it. Nothing here knows of networks, nodes or versions; that is the
//! dataset service's business.

pub mod limits;
pub mod memory;
pub mod readonly;
