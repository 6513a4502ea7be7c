//! Bounds: which range a key is in. They are versions; each is final, and the last one is the one that is wanted.
//!
//! Version 0 knows nothing of keys: its ranges are *stashes*, each over all keys. Every later version divides the keys into
//! ranges that follow one another. A range has an identity, which a later version may take over with other bounds (X11,
//! [`identities`]). So what lies somewhere is named by a [`Tag`]: the range, and the version that it was written by. A tag is
//! *wanted* while the range has had the same bounds in all versions since; what has a tag that is not wanted is divided anew.

use super::sketch::Cdf;
use super::{Bytes, RangeId};
use partage_core::limits;
use std::collections::{BTreeMap, BTreeSet};

mod finder;

pub use finder::Finder;
pub(super) use finder::{common_bytes, word};

/// A range: the keys from its begin, included, to the begin of the next one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Range {
    /// Its identity, by which it has a slot.
    pub id: RangeId,
    /// Its first key. Each stash begins at the empty key.
    pub begins: Bytes,
}

/// The ranges of one version.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Counts the versions from 0, which is the stashes.
    pub version: u32,
    /// The ranges, in the order of their keys.
    pub ranges: Vec<Range>,
}

/// What a record was written by: a version, and a range of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// The version of the bounds.
    pub version: u32,
    /// The identity of a range in that version.
    pub range: RangeId,
}

impl Bounds {
    /// Version 0, of so many stashes, within the limit of core.
    pub fn stashes(count: u32) -> Bounds {
        let begins: Bytes = [].as_slice().into();
        let stash = |id| Range { id: RangeId(id), begins: begins.clone() };
        let count = count.clamp(1, limits::SHUFFLE_RANGES);
        Bounds { version: 0, ranges: (0..u64::from(count)).map(stash).collect() }
    }

    /// Whether its ranges are stashes.
    pub fn has_stashes(&self) -> bool {
        self.version == 0
    }

    /// The tag of a key. Of stashes that one is taken whose `turn` it is. Who looks for many keys has a [`Finder`].
    pub fn tag_of(&self, key: &[u8], turn: u64) -> Tag {
        self.tag_at(match self.has_stashes() {
            true => (turn % self.ranges.len().max(1) as u64) as usize,
            false => self.place_of(key),
        })
    }

    /// The place of the range that has a key, if the ranges follow one another.
    pub(super) fn place_of(&self, key: &[u8]) -> usize {
        self.ranges.partition_point(|range| range.begins[..] <= *key).saturating_sub(1)
    }

    /// The tag of a range by its place.
    pub(in crate::shuffle) fn tag_at(&self, at: usize) -> Tag {
        let range = self.ranges.get(at).map_or(RangeId(0), |range| range.id);
        Tag { version: self.version, range }
    }

    /// The most parts into which these bounds divide so many records of one frame.
    pub fn most_parts(&self, records: u64) -> u64 {
        let ranges = if self.version == 0 { 1 } else { self.ranges.len() };
        records.min(ranges as u64)
    }

    /// The ranges that have the same keys in another version.
    pub(super) fn same_in(&self, other: &Bounds) -> BTreeSet<RangeId> {
        if self.has_stashes() || other.has_stashes() {
            return BTreeSet::new();
        }
        // The first range has all keys below its end.
        let keys = |bounds: &Bounds, at: usize| {
            bounds.interval(at).map(|keys| (at == 0, keys.0.clone(), keys.1.cloned()))
        };
        let own: BTreeMap<RangeId, _> =
            self.ranges.iter().enumerate().map(|(at, range)| (range.id, keys(self, at))).collect();
        let ranges = other.ranges.iter().enumerate();
        let same = ranges.filter(|(at, range)| own.get(&range.id) == Some(&keys(other, *at)));
        same.map(|(_, range)| range.id).collect()
    }

    /// The first key of a range and, unless it is the last one, the first key of the next.
    fn interval(&self, at: usize) -> Option<(&Bytes, Option<&Bytes>)> {
        let next = self.ranges.get(at + 1).filter(|_| self.version > 0);
        Some((&self.ranges.get(at)?.begins, next.map(|range| &range.begins)))
    }
}

/// All versions of a shuffle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    all: Vec<Bounds>,
    /// The version since which each range of the last version has had its bounds.
    since: BTreeMap<RangeId, u32>,
    /// The next identity: above all that there were.
    next: RangeId,
}

impl Versions {
    /// The versions of a new shuffle: its stashes alone.
    pub fn new(stashes: u32) -> Versions {
        let first = Bounds::stashes(stashes);
        let since = first.ranges.iter().map(|range| (range.id, 0)).collect();
        let next = RangeId(first.ranges.len() as u64);
        Versions { all: vec![first], since, next }
    }

    /// The version that is wanted.
    pub fn current(&self) -> &Bounds {
        self.all.last().unwrap_or_else(|| unreachable!("there is version 0, and nothing takes one away"))
    }

    /// Since which version each range of the last one has had its bounds.
    pub fn since(&self) -> &BTreeMap<RangeId, u32> {
        &self.since
    }

    /// Whether what has this tag lies where the last version wants it.
    pub fn is_wanted(&self, tag: Tag) -> bool {
        self.since.get(&tag.range).is_some_and(|since| tag.version >= *since)
    }

    /// All tags that are wanted no more.
    pub fn unwanted(&self) -> impl Iterator<Item = Tag> {
        let tags = self.all.iter().flat_map(|bounds| {
            bounds.ranges.iter().map(|range| Tag { version: bounds.version, range: range.id })
        });
        tags.filter(|tag| !self.is_wanted(*tag))
    }

    /// The next version, of about `n` ranges of equal weight. Ranges take over the identities of those with which they
    /// share most, so that little moves (X11).
    pub fn next(&self, cdf: &Cdf, n: usize) -> Bounds {
        let begins = cdf.begins(n);
        let current = self.current();
        let ids = match current.version {
            0 => (0..begins.len()).map(|at| RangeId(self.next.0 + at as u64)).collect(),
            _ => {
                let old: Vec<RangeId> = current.ranges.iter().map(|range| range.id).collect();
                let starts: Vec<&Bytes> = current.ranges.iter().map(|range| &range.begins).collect();
                identities(&old, begins.len(), &shared(&starts, &begins, cdf), self.next)
            }
        };
        let ranges = ids.into_iter().zip(begins).map(|(id, begins)| Range { id, begins }).collect();
        Bounds { version: current.version + 1, ranges }
    }

    /// The next version, if ranges have got more than `drift` times the weight that each of `n` would have. These are divided
    /// into parts of about that weight; all others stay as they are, so that nothing of them is divided anew. Only if that would
    /// be more than twice `n` ranges, all are made anew. None: no range is so heavy, or each that is has one key.
    pub fn split(&self, cdf: &Cdf, n: usize, drift: u64) -> Option<Bounds> {
        let (current, count) = (self.current(), n.max(1) as u64);
        let limit = drift.saturating_mul(cdf.total()) / count;
        let mean = (cdf.total() / count).max(1);
        let (mut ranges, mut next) = (Vec::with_capacity(current.ranges.len()), self.next.0);
        for (at, range) in current.ranges.iter().enumerate() {
            ranges.push(range.clone());
            let end = current.ranges.get(at + 1).map(|next| &next.begins);
            let (from, upto) = (cdf.below(&range.begins), end.map_or(cdf.total(), |end| cdf.below(end)));
            let weight = upto.saturating_sub(from);
            if weight <= limit {
                continue;
            }
            // A cut at an end of the range is none.
            let cuts = cdf.cuts(from, upto, weight.div_ceil(mean) as usize).into_iter();
            for begins in cuts.filter(|cut| *cut > range.begins && end.is_none_or(|end| cut < end)) {
                ranges.push(Range { id: RangeId(next), begins });
                next += 1;
            }
        }
        let is_more = ranges.len() > current.ranges.len();
        let split = if is_more && ranges.len() > n.saturating_mul(2) {
            self.next(cdf, n)
        } else {
            Bounds { version: current.version + 1, ranges }
        };
        (is_more && split.ranges != current.ranges).then_some(split)
    }

    /// Takes up the next version. One that does not follow the last is ignored, and the answer is false.
    pub fn push(&mut self, bounds: Bounds) -> bool {
        let last = self.current();
        if bounds.version != last.version + 1 || bounds.ranges.is_empty() {
            return false;
        }
        let before: BTreeMap<RangeId, _> =
            last.ranges.iter().enumerate().map(|(at, range)| (range.id, last.interval(at))).collect();
        let since = bounds.ranges.iter().enumerate().map(|(at, range)| {
            let is_same = last.version > 0 && before.get(&range.id) == Some(&bounds.interval(at));
            let since = self.since.get(&range.id).copied().filter(|_| is_same);
            (range.id, since.unwrap_or(bounds.version))
        });
        self.since = since.collect();
        let highest = bounds.ranges.iter().map(|range| range.id.0 + 1).max().unwrap_or(0);
        self.next = RangeId(self.next.0.max(highest));
        self.all.push(bounds);
        true
    }
}

/// How much of the keys each old range, by its place, shares with each new one.
fn shared(old: &[&Bytes], new: &[Bytes], cdf: &Cdf) -> Vec<(usize, usize, u64)> {
    let cuts: BTreeSet<&Bytes> = old.iter().copied().chain(new).collect();
    let cuts: Vec<&Bytes> = cuts.into_iter().collect();
    let upto = |at: usize| cuts.get(at).map_or(cdf.total(), |key| cdf.below(key));
    let place = |starts: usize| starts.saturating_sub(1);
    let pieces = cuts.iter().enumerate().map(|(at, begin)| {
        let from_old = place(old.partition_point(|key| key <= begin));
        let from_new = place(new.partition_point(|key| key <= *begin));
        (from_old, from_new, upto(at + 1) - upto(at))
    });
    let mut all: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    pieces.for_each(|(old, new, weight)| *all.entry((old, new)).or_default() += weight);
    all.into_iter().map(|((old, new), weight)| (old, new, weight)).collect()
}

/// The identities of `count` new ranges (X11): the pairs of an old range, by its place, and a new one are taken in the order of
/// the density that they share, the greatest first, of equal ones the first pair; each gives its identity to the new range unless
/// one of both has been used. New ranges that are left get identities from `next` on.
pub fn identities(
    old: &[RangeId],
    count: usize,
    shared: &[(usize, usize, u64)],
    next: RangeId,
) -> Vec<RangeId> {
    let mut pairs: Vec<_> = shared.iter().filter(|(.., density)| *density > 0).collect();
    pairs.sort_by_key(|(from, to, density)| (std::cmp::Reverse(*density), *from, *to));
    let mut used = BTreeSet::new();
    let mut given: Vec<Option<RangeId>> = vec![None; count];
    for (from, to, _) in pairs {
        if let (Some(id), Some(free @ None)) = (old.get(*from), given.get_mut(*to))
            && used.insert(*from)
        {
            *free = Some(*id);
        }
    }
    let mut fresh = next.0..;
    given.into_iter().map(|id| id.or_else(|| fresh.next().map(RangeId)).unwrap_or(next)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shuffle::sketch::Sketch;
    use proptest::prelude::*;

    fn cdf(keys: impl Iterator<Item = u8>) -> Cdf {
        let mut sketch = Sketch::new(10_000, 1);
        keys.for_each(|key| sketch.insert(&[key]));
        sketch.cdf()
    }

    #[test]
    fn x11_each_identity_goes_once_in_the_order_of_shared_density() {
        let old = [RangeId(1), RangeId(2), RangeId(3)];
        // New ranges 4 to 8 are at places 0 to 4.
        let shared = [(0, 0, 20), (0, 1, 15), (2, 0, 10), (2, 1, 9), (1, 2, 8)];
        let ids = identities(&old, 5, &shared, RangeId(4));
        assert_eq!(ids, [1, 3, 2, 4, 5].map(RangeId));
    }

    proptest! {
        #[test]
        fn a_range_that_is_the_same_in_two_versions_has_the_same_keys_in_both(
            first in prop::collection::btree_set(0u8..40, 1..12),
            second in prop::collection::btree_set(0u8..40, 1..12),
        ) {
            // Each range has the identity that its first key says.
            let of = |version: u32, begins: &BTreeSet<u8>| {
                let range = |begin: &u8| Range { id: RangeId((*begin).into()), begins: vec![*begin].into() };
                Bounds { version, ranges: begins.iter().map(range).collect() }
            };
            let (one, other) = (of(1, &first), of(3, &second));
            let same = one.same_in(&other);
            for id in first.iter().chain(&second).map(|begin| RangeId((*begin).into())) {
                let keys = |bounds: &Bounds| {
                    let has = |key: &u8| bounds.tag_of(&[*key], 0).range == id;
                    (0u8..50).filter(has).collect::<Vec<u8>>()
                };
                prop_assert_eq!(same.contains(&id), keys(&one) == keys(&other) && !keys(&one).is_empty());
            }
            prop_assert_eq!(one.same_in(&of(2, &first)).len(), first.len());
            prop_assert!(Bounds::stashes(2).same_in(&Bounds::stashes(2)).is_empty());
        }
    }

    #[test]
    fn a_range_that_keeps_its_bounds_is_wanted_on_and_others_are_divided() {
        let mut versions = Versions::new(2);
        let stash = Tag { version: 0, range: RangeId(1) };
        assert!(versions.is_wanted(stash));
        let first = versions.next(&cdf(0..100), 4);
        assert_eq!(first.ranges.iter().map(|range| range.id.0).collect::<Vec<_>>(), [2, 3, 4, 5]);
        assert!(versions.push(first.clone()) && !versions.push(first.clone()), "a version is pushed once");
        assert!(!versions.is_wanted(stash));
        assert_eq!(versions.unwanted().count(), 2);
        // Most new keys are above 75: what is below 50 stays as it is, or nearly so.
        let second = versions.next(&cdf((0..100).chain((0..100).map(|key| 75 + key % 25))), 6);
        assert!(versions.push(second.clone()));
        for (at, range) in second.ranges.iter().enumerate() {
            let tag = Tag { version: 1, range: range.id };
            let before = first.ranges.iter().position(|old| old.id == range.id);
            let is_same = before.is_some_and(|old| first.interval(old) == second.interval(at));
            assert_eq!(versions.is_wanted(tag), is_same, "{range:?}");
            assert!(versions.is_wanted(Tag { version: 2, range: range.id }));
        }
        let same = Bounds { version: 3, ..second };
        assert!(versions.push(same.clone()));
        assert!(same.ranges.iter().all(|range| versions.is_wanted(Tag { version: 2, range: range.id })));
    }

    #[test]
    fn x5_of_a_sample_that_misled_only_heavy_ranges_are_divided_and_nothing_else_is() {
        let mut versions = Versions::new(1);
        // The first partitions have the lowest keys.
        let first = versions.next(&cdf(0..64), 8);
        versions.push(first.clone());
        assert_eq!(versions.split(&cdf((0..64).chain(0..64)), 8, 2), None, "it did not mislead");
        let second = versions.split(&cdf(0..128), 8, 2).unwrap();
        assert!(versions.push(second.clone()));
        let wanted: Vec<RangeId> = first.ranges.iter().map(|range| range.id).collect();
        let (last, kept) = wanted.split_last().unwrap();
        assert!(kept.iter().all(|id| versions.is_wanted(Tag { version: 1, range: *id })), "{second:?}");
        assert!(!versions.is_wanted(Tag { version: 1, range: *last }), "it had half of all");
        let begins: Vec<&[u8]> = second.ranges.iter().map(|range| &range.begins[..]).collect();
        assert!(begins.is_sorted() && begins.len() > 8 && begins.len() <= 16, "{begins:?}");
        let ids: BTreeSet<RangeId> = second.ranges.iter().map(|range| range.id).collect();
        assert_eq!(ids.len(), second.ranges.len());
        assert_eq!(versions.split(&cdf(0..128), 8, 2), None, "now they are even");
        // Again and again: there are never more than twice as many as are wanted.
        let counts = [160, 192, 224, 250].map(|most| {
            let next = versions.split(&cdf(0..most), 8, 1).unwrap();
            assert!(next.ranges[0].begins.is_empty() && versions.push(next.clone()), "{next:?}");
            next.ranges.len()
        });
        assert_eq!(counts, [14, 15, 16, 8]);
    }

    #[test]
    fn x5_a_range_of_one_key_is_not_split_and_one_with_a_heavy_key_is() {
        let mut versions = Versions::new(1);
        versions.push(versions.next(&cdf(0..40), 4));
        let heavy = cdf((0..40).chain([25; 200]));
        let split = versions.split(&heavy, 4, 2).unwrap();
        let begins: Vec<&[u8]> = split.ranges.iter().map(|range| &range.begins[..]).collect();
        assert!(begins.contains(&&[25][..]) && begins.contains(&&[25, 0][..]), "{begins:?}");
        assert!(versions.push(split));
        assert_eq!(versions.split(&heavy, 4, 2), None);
        assert_eq!(versions.split(&Cdf::default(), 4, 2), None);
    }

    #[test]
    fn r1_no_number_of_stashes_takes_more_memory_than_the_limit() {
        for (count, made) in [(0, 1), (7, 7), (u32::MAX, limits::SHUFFLE_RANGES)] {
            assert_eq!(Bounds::stashes(count).ranges.len(), made as usize);
        }
    }

    #[test]
    fn every_key_is_in_the_range_whose_interval_holds_it() {
        let mut versions = Versions::new(1);
        versions.push(versions.next(&cdf(0..200), 7));
        let bounds = versions.current();
        for key in 0..=255u8 {
            let tag = bounds.tag_of(&[key], 0);
            let at = bounds.ranges.iter().position(|range| range.id == tag.range).unwrap();
            let (begin, end) = bounds.interval(at).unwrap();
            assert!(begin[..] <= [key][..] && end.is_none_or(|end| [key][..] < end[..]), "{key}");
        }
        let turns: Vec<_> = (0..4).map(|turn| Bounds::stashes(3).tag_of(b"x", turn).range.0).collect();
        assert_eq!(turns, [0, 1, 2, 0]);
    }
}
