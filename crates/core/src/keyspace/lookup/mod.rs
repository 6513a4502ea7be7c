//! The tables that say on every request which shard owns a key, without allocating.
//!
//! They are built once for each map, from the bounds of its shards in order, and give back positions in that
//! order, so that what is looked up stays where it is (shards, replicas, addresses).
//!
//! | sharding | table | memory |
//! |---|---|---|
//! | key ranges | [`RangeIndex`] | the begins, and 7 to 10 bytes for each |
//! | hash ranges | [`HashIndex`] | 9 bytes a range |
//! | fixed slots | [`SlotTable`] | 4 bytes a slot |

mod leaf;
mod radix_table;
mod range_index;
mod search_tree;
mod slot_table;

pub use range_index::{RangeIndex, RangeIndexError};
pub use slot_table::{HashIndex, HashIndexError, SlotTable, SlotTableError};
