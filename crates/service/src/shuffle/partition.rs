//! Exact partitions: after seal the records and bytes of each range are known, so partitions are cut at exact ranks (X13, X14).
//!
//! Nothing is moved for it. Prefix sums of the ranges' counts say in which range a rank lies and how far from its begin; the
//! range's one order, by key, input partition and place in it, does the rest. So sizes differ by one record at most, for any
//! number of partitions and whatever the skew. By choice cuts are by bytes, or only between different keys: those are moved
//! inside the range that they fall into, which alone is looked at, as a key is in one range only.

use super::Bytes;

/// A part of a range: records from and to these offsets of the range's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The range, by its place.
    pub range: usize,
    /// The first record.
    pub from: u64,
    /// The one after the last.
    pub to: u64,
}

/// A place among ranges: this far from the begin of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cut {
    /// The range, by its place.
    pub range: usize,
    /// Records or bytes before it in the range.
    pub offset: u64,
}

/// A key that alone is more than a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeavyKey {
    /// The key.
    pub key: Bytes,
    /// Its records.
    pub records: u64,
}

/// Where partition `i` of `n` begins: at the rank ⌊i·total / n⌋, of records or of bytes. Without partitions (`n` = 0) it is 0.
pub fn rank(i: u64, n: u64, total: u64) -> u64 {
    let rank = u128::from(i) * u128::from(total) / u128::from(n.max(1));
    u64::try_from(rank).unwrap_or(u64::MAX).min(total)
}

/// Where a rank lies, by what each range holds, in records or bytes. The end of all is the end of the last range.
pub fn cut(held: &[u64], rank: u64) -> Cut {
    let mut before = 0;
    for (range, count) in held.iter().enumerate() {
        if rank < before + count {
            return Cut { range, offset: rank - before };
        }
        before += count;
    }
    Cut { range: held.len().saturating_sub(1), offset: held.last().copied().unwrap_or(0) }
}

/// The pieces of ranges from one cut to another, by the records of each range. Empty ones are left out.
pub fn pieces(records: &[u64], from: Cut, to: Cut) -> Vec<Piece> {
    let ranges = from.range..records.len().min(to.range + 1);
    let piece = |range: usize| {
        let first = if range == from.range { from.offset } else { 0 };
        let end = if range == to.range { to.offset } else { records[range] };
        Piece { range, from: first, to: end.min(records[range]) }
    };
    ranges.map(piece).filter(|piece| piece.from < piece.to).collect()
}

/// The first record of a range that begins at this byte or behind it, by the bytes of each record in order. The last partition
/// ends with the last record instead: records of no bytes may be at the end.
pub fn record_at_byte(bytes: impl Iterator<Item = u64>, offset: u64) -> u64 {
    let mut before = 0;
    let starts = bytes.take_while(|bytes| {
        let is_before = before < offset;
        before += bytes;
        is_before
    });
    starts.count() as u64
}

/// The offset nearest to this one at which another key begins, or where the range begins or ends. Of two as near ones it is the
/// earlier. The keys are those of the range, in order.
pub fn between_keys(keys: &[Bytes], offset: u64) -> u64 {
    let at = (offset as usize).min(keys.len());
    let (Some(key), Some(before)) = (keys.get(at), at.checked_sub(1).and_then(|before| keys.get(before)))
    else {
        return at as u64;
    };
    if key != before {
        return at as u64;
    }
    let first = keys.partition_point(|one| one < key);
    let next = keys.partition_point(|one| one <= key);
    (if at - first <= next - at { first } else { next }) as u64
}

/// The keys of a range, in order, that have more records than `least`.
pub fn heavy_keys(keys: &[Bytes], least: u64) -> Vec<HeavyKey> {
    let runs = keys.chunk_by(|one, other| one == other);
    let heavy = runs.filter(|run| run.len() as u64 > least);
    heavy.filter_map(|run| Some(HeavyKey { key: run.first()?.clone(), records: run.len() as u64 })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(keys: &[Bytes], counts: &[u64]) -> Vec<Vec<Bytes>> {
        let mut rest = keys;
        let take = |count: &u64| {
            let (taken, left) = rest.split_at(*count as usize);
            rest = left;
            taken.to_vec()
        };
        counts.iter().map(take).collect()
    }

    fn read(ranges: &[Vec<Bytes>], counts: &[u64], from: Cut, to: Cut) -> Vec<Bytes> {
        let pieces = pieces(counts, from, to);
        let of = |piece: &Piece| ranges[piece.range][piece.from as usize..piece.to as usize].to_vec();
        pieces.iter().flat_map(of).collect()
    }

    /// Sorted keys, and how many of them each range has, so that no key is in two ranges.
    fn input() -> impl Strategy<Value = (Vec<Bytes>, Vec<u64>)> {
        let key = prop_oneof![Just(9u8), any::<u8>()];
        (proptest::collection::vec(key, 0..200), proptest::collection::btree_set(any::<u8>(), 0..9)).prop_map(
            |(mut keys, bounds)| {
                keys.sort();
                let ends = bounds.iter().map(|bound| keys.partition_point(|key| key < bound));
                let ends: Vec<usize> = ends.chain([keys.len()]).collect();
                let begins = [0].into_iter().chain(ends.iter().copied());
                let counts = begins.zip(&ends).map(|(begin, end)| (end - begin) as u64).collect();
                (keys.into_iter().map(|key| Bytes::from([key].as_slice())).collect(), counts)
            },
        )
    }

    proptest! {
        #[test]
        fn x13_partitions_are_the_sorted_input_and_differ_by_one_record((keys, counts) in input(), n in 1u64..300) {
            let ranges = split(&keys, &counts);
            let total = keys.len() as u64;
            let cuts: Vec<Cut> = (0..=n).map(|i| cut(&counts, rank(i, n, total))).collect();
            let parts: Vec<Vec<Bytes>> =
                cuts.windows(2).map(|pair| read(&ranges, &counts, pair[0], pair[1])).collect();
            prop_assert_eq!(parts.concat(), keys);
            let sizes = || parts.iter().map(Vec::len);
            prop_assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
        }

        #[test]
        fn x14_between_keys_no_key_is_in_two_partitions((keys, counts) in input(), n in 1u64..20) {
            let ranges = split(&keys, &counts);
            let total = keys.len() as u64;
            let cuts: Vec<Cut> = (0..=n)
                .map(|i| cut(&counts, rank(i, n, total)))
                .map(|cut| match ranges.get(cut.range) {
                    Some(range) => Cut { offset: between_keys(range, cut.offset), ..cut },
                    None => cut,
                })
                .collect();
            let parts: Vec<Vec<Bytes>> =
                cuts.windows(2).map(|pair| read(&ranges, &counts, pair[0], pair[1])).collect();
            prop_assert_eq!(parts.concat(), keys.clone());
            for pair in parts.iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().windows(2) {
                prop_assert!(pair[0].last() < pair[1].first());
            }
            let heaviest = keys.chunk_by(|a, b| a == b).map(<[Bytes]>::len).max().unwrap_or(0) as u64;
            let limit = total / n + 1 + heaviest;
            prop_assert!(parts.iter().all(|part| part.len() as u64 <= limit), "{parts:?}");
            let reported: Vec<HeavyKey> = ranges.iter().flat_map(|range| heavy_keys(range, total / n)).collect();
            let naive = keys.chunk_by(|a, b| a == b).filter(|run| run.len() as u64 > total / n);
            prop_assert_eq!(reported.len(), naive.count());
        }

        #[test]
        fn x13_by_bytes_partitions_differ_by_a_record(sizes in proptest::collection::vec(0u64..50, 1..100), n in 1u64..20) {
            let total: u64 = sizes.iter().sum();
            let begins = (0..n).map(|i| record_at_byte(sizes.iter().copied(), rank(i, n, total)));
            let begins: Vec<u64> = begins.chain([sizes.len() as u64]).collect();
            let largest = sizes.iter().copied().max().unwrap();
            for pair in begins.windows(2) {
                let bytes: u64 = sizes[pair[0] as usize..pair[1] as usize].iter().sum();
                prop_assert!(bytes.abs_diff(total / n) <= largest + 1, "{bytes} of {total} / {n}");
            }
            prop_assert_eq!(begins[0], 0);
        }
    }

    #[test]
    fn the_edges_have_answers() {
        assert_eq!(rank(0, 0, 7), 0);
        assert_eq!(rank(3, 3, u64::MAX), u64::MAX);
        assert_eq!(cut(&[], 0), Cut { range: 0, offset: 0 });
        assert_eq!(cut(&[2, 0, 3], 2), Cut { range: 2, offset: 0 });
        assert_eq!(cut(&[2, 0, 3], 5), Cut { range: 2, offset: 3 });
        assert_eq!(pieces(&[], cut(&[], 0), cut(&[], 0)), []);
        assert_eq!(between_keys(&[], 0), 0);
    }
}
