//! A page of an index of a table, from the pages of its shards.
//!
//! Each shard gives its rows from a place on, in the order of places, and says where it has stopped. What all of them have is
//! known below the lowest of these stops only; the page ends there, and the next one begins there at all shards. So a token is a
//! place in the index, and says nothing of shards: it stays good when these are split, merged and moved, and no row that is there
//! from the first page to the last is missed.
//!
//! Rows beyond what the page may have are dropped at once, and the page then ends at the lowest of them.

use partage_core::base::id::ShardId;
use std::collections::{BTreeMap, BTreeSet};

/// A page that is made.
#[derive(Debug)]
pub struct Merge<R> {
    /// By place: the shard, the bytes of the row, and the row.
    rows: BTreeMap<Vec<u8>, (ShardId, usize, R)>,
    bytes: usize,
    /// Nothing is known from this place on.
    stop: Option<Vec<u8>>,
    most: usize,
    most_bytes: usize,
}

impl<R> Merge<R> {
    /// A page of so many rows at most, and of so many bytes, unless its first row has more.
    pub fn new(most: usize, most_bytes: usize) -> Merge<R> {
        Merge { rows: BTreeMap::new(), bytes: 0, stop: None, most: most.max(1), most_bytes }
    }

    /// Takes the page of a shard: rows with their places and bytes, and where it has stopped. The page of a child comes after
    /// that of its parent.
    pub fn add(
        &mut self,
        shard: ShardId,
        rows: impl IntoIterator<Item = (Vec<u8>, usize, R)>,
        next: Option<Vec<u8>>,
    ) {
        if let Some(next) = next {
            self.stop_at(next);
        }
        for (place, bytes, row) in rows {
            self.bytes += bytes;
            if let Some((_, former, _)) = self.rows.insert(place, (shard, bytes, row)) {
                self.bytes -= former;
            }
            while self.rows.len() > self.most || (self.bytes > self.most_bytes && self.rows.len() > 1) {
                let Some((place, (_, bytes, _))) = self.rows.pop_last() else { break };
                self.bytes -= bytes;
                self.stop_at(place);
            }
        }
    }

    fn stop_at(&mut self, place: Vec<u8>) {
        if self.stop.as_ref().is_none_or(|stop| place < *stop) {
            self.stop = Some(place);
        }
    }

    /// The rows of these shards, which are those of one map, and where the next page begins; none: there is nothing more. Rows of
    /// other shards came from parents of these: they are here twice, or are not any more.
    pub fn end(self, shards: &BTreeSet<ShardId>) -> (Vec<R>, Option<Vec<u8>>) {
        let Merge { rows, stop, .. } = self;
        let is_known = |place: &Vec<u8>| stop.as_ref().is_none_or(|stop| place < stop);
        let rows = rows
            .into_iter()
            .filter(|(place, (shard, _, _))| is_known(place) && shards.contains(shard))
            .map(|(_, (_, _, row))| row)
            .collect();
        (rows, stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Page = (Vec<(Vec<u8>, usize, u8)>, Option<Vec<u8>>);

    /// What a shard gives of its places.
    fn page(places: &BTreeSet<u8>, from: &[u8], most: usize) -> Page {
        let mut rest = places.iter().filter(|place| [**place].as_slice() >= from);
        let rows = rest.by_ref().take(most).map(|place| (vec![*place], 10, *place)).collect();
        (rows, rest.next().map(|place| vec![*place]))
    }

    proptest! {
        #[test]
        fn no_row_is_missed_or_doubled_whatever_becomes_of_shards_between_pages(
            places in proptest::collection::btree_set(any::<u8>(), 0..60),
            most in 1usize..8, bytes in 1usize..60, cuts in proptest::collection::vec(1u64..6, 200),
            shard_most in 1usize..6, is_asked_twice in any::<bool>(),
        ) {
            let (mut found, mut from, mut rounds) = (Vec::new(), Vec::new(), 0);
            loop {
                // Each page meets other shards.
                let count = cuts[rounds % cuts.len()];
                let mut merge = Merge::new(most, bytes);
                let mut shards = BTreeSet::new();
                if is_asked_twice {
                    // A parent that was split before all had answered.
                    let (rows, next) = page(&places, &from, shard_most);
                    merge.add(ShardId(99), rows, next);
                }
                for shard in 0..count {
                    let own = places.iter().copied().filter(|place| u64::from(place % 7) % count == shard).collect();
                    let (rows, next) = page(&own, &from, shard_most);
                    merge.add(ShardId(shard), rows, next);
                    shards.insert(ShardId(shard));
                }
                let (rows, next) = merge.end(&shards);
                prop_assert!(rows.len() <= most);
                found.extend(rows);
                rounds += 1;
                match next {
                    Some(next) => {
                        prop_assert!(next > from && rounds < 300, "each page goes on");
                        from = next;
                    }
                    None => break,
                }
            }
            prop_assert_eq!(found, places.into_iter().collect::<Vec<_>>());
        }
    }
}
