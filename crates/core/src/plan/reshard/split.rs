//! Where a shard is cut in two: key ranges at the median of their data, hash ranges in the middle.
//!
//! A hash spreads evenly, so the middle of the range halves the data without asking anybody. A shard of one
//! partition key, of one point, of one slot or of one name cannot be cut (T13).

use crate::keyspace::key::Key;
use crate::keyspace::sharding::geometry::{cut_keys, cut_points, middle};
use crate::keyspace::sharding::{Bounds, PartitionKey};

/// The two halves and, in words, where they part; none where there is no cut.
pub fn in_two(bounds: &Bounds, by: PartitionKey, median: Option<&Key>) -> Option<(Vec<Bounds>, String)> {
    match bounds {
        Bounds::Keys(range) => {
            // Rows of one partition key stay together (K2).
            let at = Key::new(by.of(median?.as_bytes())).ok()?;
            let parts = cut_keys(range, std::slice::from_ref(&at)).ok()?;
            Some((parts, format!("its median {at:?}")))
        }
        Bounds::Hashes(range) => {
            let at = middle(*range).ok()?;
            Some((cut_points(*range, &[at]).ok()?, format!("the middle of its hash range, {at:016x}")))
        }
        Bounds::Slot(_) | Bounds::Name(_) => None,
    }
}
