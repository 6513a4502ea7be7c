//! Exact partitions: after seal the records and bytes of each range are known, so partitions are cut at exact ranks (X13, X14).
//!
//! Nothing is moved for it. Prefix sums of the ranges' counts say in which range a rank lies and how far from its begin; the
//! range's one order, by key, input partition and place in it, does the rest. So sizes differ by one record at most, for any
//! number of partitions and whatever the skew. By choice cuts are by bytes, or only between different keys. Where such a cut
//! falls inside a range the counts do not say at which record it lies: a holder looks through the order of that range
//! ([`super::seek`]), and no other range, as a key is in one range only. The order is the same at each holder, and the cut at
//! which a partition ends is by definition that at which the next one begins: so partitions are disjoint, and all of it.

use super::Bytes;
use std::collections::BTreeSet;

/// Where partitions are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CutBy {
    /// At ranks of records: sizes differ by one record at most.
    Records,
    /// At bytes: a partition differs from its share by one record's bytes at most.
    Bytes,
    /// Only between different keys: a key is in one partition.
    Keys,
}

/// A part of a range: records from and to these offsets of the range's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The place of the range in the plan.
    pub range: usize,
    /// The first record, by its place in the range.
    pub from: u64,
    /// The record after the last one.
    pub to: u64,
}

/// A place among ranges: this far from the begin of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cut {
    /// The place of the range in the plan.
    pub range: usize,
    /// Records or bytes before it in the range.
    pub offset: u64,
}

/// Where a partition begins, as far as the counts of the ranges say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// At this record of the range.
    At(Cut),
    /// Near so many bytes or records from the begin of the range: a holder says at which record.
    Near(Cut),
}

/// A cut that was found in the order of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutAt {
    /// The record before which it is, by its place in the order of the range.
    pub record: u64,
    /// The key of that record; none: it is behind the last one.
    pub key: Option<Bytes>,
}

/// A key that alone is more than a partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HeavyKey {
    /// The key that all these records have.
    pub key: Bytes,
    /// Where its first record is: in the order of its range, or of all records.
    pub first: u64,
    /// How many records have the key.
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

/// Where partition `i` of `n` begins, which is where the one before it ends; with `i` = `n` it is the end of all. `held` are the
/// records and bytes of each range.
pub fn edge(held: &[(u64, u64)], (i, n): (u64, u64), by: CutBy) -> Edge {
    let last = held.len().saturating_sub(1);
    // Records of no bytes may be at the begin and at the end: these belong to the first and the last partition.
    if i == 0 {
        return Edge::At(Cut { range: 0, offset: 0 });
    }
    if i >= n {
        return Edge::At(Cut { range: last, offset: held.last().map_or(0, |(records, _)| *records) });
    }
    let measure = |(records, bytes): &(u64, u64)| if by == CutBy::Bytes { *bytes } else { *records };
    let measured: Vec<u64> = held.iter().map(measure).collect();
    let cut = cut(&measured, rank(i, n, measured.iter().sum()));
    if by == CutBy::Records || cut.offset == 0 { Edge::At(cut) } else { Edge::Near(cut) }
}

/// The cuts nearest to some offsets of a range, by its records in order, each with its key and bytes. By records and bytes it is
/// the first record that begins at the offset or behind it. By keys it is where another key begins, or the range begins or
/// ends; of two as near ones the earlier.
pub fn cuts_at<K: AsRef<[u8]> + PartialEq>(
    by: CutBy,
    records: impl IntoIterator<Item = (K, u64)>,
    offsets: &BTreeSet<u64>,
) -> Vec<CutAt> {
    if by == CutBy::Keys {
        return cuts_between_keys(records.into_iter().map(|(key, _)| key), offsets);
    }
    let mut left = offsets.iter().peekable();
    let (mut record, mut begins, mut cuts) = (0, 0, Vec::new());
    for (key, bytes) in records {
        while left.next_if(|offset| **offset <= begins).is_some() {
            cuts.push(CutAt { record, key: Some(key.as_ref().into()) });
        }
        if left.peek().is_none() {
            break;
        }
        record += 1;
        begins += if by == CutBy::Bytes { bytes } else { 1 };
    }
    cuts.extend(left.map(|_| CutAt { record, key: None }));
    cuts
}

fn cuts_between_keys<K: AsRef<[u8]> + PartialEq>(
    keys: impl Iterator<Item = K>,
    offsets: &BTreeSet<u64>,
) -> Vec<CutAt> {
    let mut left = offsets.iter().peekable();
    let mut cuts = Vec::new();
    let mut runs = runs(keys).peekable();
    let mut end = 0;
    while let Some((key, begin, records)) = runs.next() {
        if left.peek().is_none() {
            break;
        }
        end = begin + records;
        let next = runs.peek().map(|(next, ..)| Bytes::from(next.as_ref()));
        while let Some(offset) = left.next_if(|offset| **offset < end) {
            let is_begin = offset - begin <= end - offset;
            cuts.push(if is_begin {
                CutAt { record: begin, key: Some(key.as_ref().into()) }
            } else {
                CutAt { record: end, key: next.clone() }
            });
        }
    }
    cuts.extend(left.map(|_| CutAt { record: end, key: None }));
    cuts
}

/// The keys of a range, in order, each with the place of its first record, that have more records than `more_than`.
pub fn heavy_keys<K: AsRef<[u8]> + PartialEq>(
    keys: impl IntoIterator<Item = K>,
    more_than: u64,
) -> Vec<HeavyKey> {
    let heavy = runs(keys.into_iter()).filter(|(_, _, records)| *records > more_than);
    heavy.map(|(key, first, records)| HeavyKey { key: key.as_ref().into(), first, records }).collect()
}

/// Each key once, with the place of its first record and the number of its records.
fn runs<K: PartialEq>(keys: impl Iterator<Item = K>) -> impl Iterator<Item = (K, u64, u64)> {
    let mut keys = keys.peekable();
    let mut begin = 0;
    std::iter::from_fn(move || {
        let key = keys.next()?;
        let mut records = 1;
        while keys.next_if(|next| *next == key).is_some() {
            records += 1;
        }
        let first = begin;
        begin += records;
        Some((key, first, records))
    })
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
        fn x14_between_keys_no_key_is_in_two_partitions((keys, counts) in input(), n in 1u64..300) {
            let ranges = split(&keys, &counts);
            let total = keys.len() as u64;
            let cuts = resolved(&ranges.iter().map(|range| sized(range)).collect::<Vec<_>>(), n, CutBy::Keys);
            let parts: Vec<Vec<Bytes>> =
                cuts.windows(2).map(|pair| read(&ranges, &counts, pair[0], pair[1])).collect();
            prop_assert_eq!(parts.concat(), keys.clone());
            for pair in parts.iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().windows(2) {
                prop_assert!(pair[0].last() < pair[1].first());
            }
            let heaviest = keys.chunk_by(|a, b| a == b).map(<[Bytes]>::len).max().unwrap_or(0) as u64;
            let limit = total / n + 1 + heaviest;
            prop_assert!(parts.iter().all(|part| part.len() as u64 <= limit), "{parts:?}");
        }

        #[test]
        fn x14_heavy_keys_are_those_of_more_records_than_a_partition((keys, counts) in input(), n in 1u64..20) {
            let (ranges, most) = (split(&keys, &counts), (keys.len() as u64).div_ceil(n));
            let mut before = 0;
            let mut reported = Vec::new();
            for range in &ranges {
                let heavy = heavy_keys(range, most).into_iter();
                reported.extend(heavy.map(|one| HeavyKey { first: before + one.first, ..one }));
                before += range.len() as u64;
            }
            let runs = keys.chunk_by(|a, b| a == b).filter(|run| run.len() as u64 > most);
            prop_assert_eq!(reported.len(), runs.count());
            prop_assert!((reported.len() as u64) < n.max(1));
            for HeavyKey { key, first, records } in reported {
                let (first, end) = (first as usize, (first + records) as usize);
                prop_assert!(keys[first..end].iter().all(|one| *one == key));
                prop_assert!(first == 0 || keys[first - 1] != key);
                prop_assert!(keys.get(end) != Some(&key));
            }
        }

        #[test]
        fn x13_by_bytes_partitions_differ_from_their_share_by_a_record(
            sizes in proptest::collection::vec(0u64..50, 1..100),
            ends in proptest::collection::btree_set(0usize..100, 0..5),
            n in 1u64..150,
        ) {
            let key: Bytes = [].as_slice().into();
            let all: Vec<(Bytes, u64)> = sizes.iter().map(|bytes| (key.clone(), *bytes)).collect();
            let ends: Vec<usize> = ends.into_iter().filter(|end| *end < all.len()).chain([all.len()]).collect();
            let begins = [0].into_iter().chain(ends.iter().copied());
            let ranges: Vec<Vec<(Bytes, u64)>> = begins.zip(&ends).map(|(from, to)| all[from..*to].to_vec()).collect();
            let (total, largest): (u64, u64) = (sizes.iter().sum(), sizes.iter().copied().max().unwrap());
            let counts: Vec<u64> = ranges.iter().map(|range| range.len() as u64).collect();
            let mut parts = 0;
            for pair in resolved(&ranges, n, CutBy::Bytes).windows(2) {
                let pieces = pieces(&counts, pair[0], pair[1]);
                let of = |piece: &Piece| ranges[piece.range][piece.from as usize..piece.to as usize].to_vec();
                let part: Vec<(Bytes, u64)> = pieces.iter().flat_map(of).collect();
                let bytes: u64 = part.iter().map(|(_, bytes)| bytes).sum();
                prop_assert!(bytes.abs_diff(total / n) <= largest + 1, "{bytes} of {total} / {n}");
                parts += part.len();
            }
            prop_assert_eq!(parts, all.len(), "none is lost, and none is there twice");
        }

        #[test]
        fn x13_by_any_measure_cuts_never_go_back(
            (keys, counts) in zipf(), n in 1u64..300, by in proptest::sample::select(vec![CutBy::Records, CutBy::Bytes, CutBy::Keys]),
        ) {
            let ranges: Vec<Vec<(Bytes, u64)>> = split(&keys, &counts).iter().map(|range| sized(range)).collect();
            let cuts = resolved(&ranges, n, by);
            prop_assert!(cuts.windows(2).all(|pair| pair[0] <= pair[1]), "{cuts:?}");
            prop_assert_eq!(cuts[0], Cut { range: 0, offset: 0 });
            let last = ranges.len() - 1;
            prop_assert_eq!(cuts[n as usize], Cut { range: last, offset: counts[last] });
        }
    }

    /// Keys with bytes that differ, some without any.
    fn sized(keys: &[Bytes]) -> Vec<(Bytes, u64)> {
        let bytes = |(at, key): (usize, &Bytes)| (key.clone(), u64::from(key[0]) * (at as u64 % 3));
        keys.iter().enumerate().map(bytes).collect()
    }

    /// Sorted keys of a skewed input, the k-th of them about 1/k as often as the first, in ranges.
    fn zipf() -> impl Strategy<Value = (Vec<Bytes>, Vec<u64>)> {
        let keys = (1u8..20, 1usize..60).prop_map(|(keys, most)| {
            let copies = |key: u8| vec![Bytes::from([key].as_slice()); most / usize::from(key + 1)];
            (0..keys).flat_map(copies).collect::<Vec<Bytes>>()
        });
        (keys, proptest::collection::btree_set(0u8..20, 0..5)).prop_map(|(keys, bounds)| {
            let ends = bounds.iter().map(|bound| keys.partition_point(|key| key[0] < *bound));
            let ends: Vec<usize> = ends.chain([keys.len()]).collect();
            let begins = [0].into_iter().chain(ends.iter().copied());
            let counts = begins.zip(&ends).map(|(begin, end)| (end - begin) as u64).collect();
            (keys, counts)
        })
    }

    /// All n + 1 cuts, each where a holder of its range finds it.
    fn resolved(ranges: &[Vec<(Bytes, u64)>], n: u64, by: CutBy) -> Vec<Cut> {
        let bytes = |range: &Vec<(Bytes, u64)>| range.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let held: Vec<(u64, u64)> = ranges.iter().map(|range| (range.len() as u64, bytes(range))).collect();
        let of = |i| match edge(&held, (i, n), by) {
            Edge::At(cut) => cut,
            Edge::Near(cut) => {
                let records = ranges[cut.range].iter().map(|(key, bytes)| (key, *bytes));
                let found = cuts_at(by, records, &[cut.offset].into());
                Cut { offset: found[0].record, ..cut }
            }
        };
        (0..=n).map(of).collect()
    }

    #[test]
    fn several_cuts_of_a_range_are_found_at_once_as_one_by_one() {
        let keys = [1u8, 1, 1, 2, 3, 3].map(|key| Bytes::from([key].as_slice()));
        let records = || keys.iter().zip([4u64, 0, 6, 1, 2, 2]);
        for (by, found) in [
            (CutBy::Records, [0, 1, 2, 3, 4, 5, 6, 6]),
            (CutBy::Bytes, [0, 1, 1, 1, 1, 3, 3, 3]),
            (CutBy::Keys, [0, 0, 3, 3, 4, 4, 6, 6]),
        ] {
            let offsets: BTreeSet<u64> = (0..8).collect();
            let cuts = cuts_at(by, records(), &offsets);
            assert_eq!(cuts.iter().map(|cut| cut.record).collect::<Vec<_>>(), found, "{by:?}");
            for (cut, offset) in cuts.iter().zip(0..8) {
                assert_eq!(cut.key.as_ref(), keys.get(cut.record as usize), "{by:?} {offset}");
                assert!(cuts_at(by, records(), &[offset].into()).iter().eq([cut]), "{by:?} {offset}");
            }
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
        for by in [CutBy::Records, CutBy::Bytes, CutBy::Keys] {
            assert_eq!(
                cuts_at::<Bytes>(by, [], &[0, 7].into()),
                [CutAt { record: 0, key: None }, CutAt { record: 0, key: None }]
            );
            for i in 0..4 {
                assert_eq!(edge(&[], (i, 3), by), Edge::At(Cut { range: 0, offset: 0 }));
            }
            // Records of no bytes are in one partition, whatever n.
            assert_eq!(edge(&[(5, 0)], (0, 1), by), Edge::At(Cut { range: 0, offset: 0 }));
            assert_eq!(edge(&[(5, 0)], (1, 1), by), Edge::At(Cut { range: 0, offset: 5 }));
        }
        assert_eq!(edge(&[(5, 0)], (1, 2), CutBy::Bytes), Edge::At(Cut { range: 0, offset: 0 }));
        assert_eq!(heavy_keys::<Bytes>([], 0), []);
    }
}
