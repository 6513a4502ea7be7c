//! Shuffles: records that come from clients which may vanish are re-ordered by key and divided anew, and no node's death loses one.
//!
//! | rule | where |
//! |---|---|
//! | what has a tag that is wanted no more is divided and stored anew (X5, X11) | [`bounds`], from [`sketch`] |
//! | after seal partitions are cut at exact ranks (X13, X14) | [`partition`] |

use std::sync::Arc;

pub mod bounds;
pub mod partition;
pub mod sketch;

/// Bytes that are shared and never changed.
pub type Bytes = Arc<[u8]>;

/// The identity of a range of one shuffle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RangeId(pub u64);
