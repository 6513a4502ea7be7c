//! Where a shard is cut in two: key ranges at the median of their data, hash ranges in the middle.
//!
//! A hash spreads evenly, so the middle of the range halves the data without asking anybody. A shard of one
//! partition key, of one point, of one slot or of one name cannot be cut (T13).

use crate::key::{HashRange, Key, KeyRange};
use crate::sharding::{Bounds, PartitionKey};

/// The two halves and, in words, where they part; none where there is no cut.
pub fn in_two(bounds: &Bounds, by: PartitionKey, median: Option<&Key>) -> Option<(Vec<Bounds>, String)> {
    match bounds {
        Bounds::Keys(range) => {
            // Rows of one partition key stay together (K2).
            let at = Key::new(by.of(median?.as_bytes())).ok()?;
            let parts = cut_keys(range, std::slice::from_ref(&at))?;
            Some((parts, format!("its median {at:?}")))
        }
        Bounds::Hashes(range) if range.first < range.last => {
            let at = range.first + (range.last - range.first) / 2 + 1;
            Some((cut_points(*range, &[at])?, format!("the middle of its hash range, {at:016x}")))
        }
        Bounds::Hashes(_) | Bounds::Slot(_) | Bounds::Name(_) => None,
    }
}

/// The range cut at `keys`, which must lie inside it, above its begin, in order.
pub fn cut_keys(range: &KeyRange, keys: &[Key]) -> Option<Vec<Bounds>> {
    let mut begin = range.begin.clone();
    let mut parts = Vec::with_capacity(keys.len() + 1);
    for key in keys {
        if *key <= begin || !range.contains(key.as_bytes()) {
            return None;
        }
        parts.push(Bounds::Keys(KeyRange { begin, end: key.clone() }));
        begin = key.clone();
    }
    parts.push(Bounds::Keys(KeyRange { begin, end: range.end.clone() }));
    Some(parts)
}

/// The range cut before each of `points`, which must lie inside it, above its first, in order.
pub fn cut_points(range: HashRange, points: &[u64]) -> Option<Vec<Bounds>> {
    let mut first = range.first;
    let mut parts = Vec::with_capacity(points.len() + 1);
    for point in points {
        if *point <= first || *point > range.last {
            return None;
        }
        parts.push(Bounds::Hashes(HashRange { first, last: point - 1 }));
        first = *point;
    }
    parts.push(Bounds::Hashes(HashRange { first, last: range.last }));
    Some(parts)
}
