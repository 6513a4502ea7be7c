//! Which range a key is in, for many keys: most are told apart by one word of each, without a look at the keys themselves.
//!
//! ```text
//!  key ─► what follows the common part, as a number ─► its bucket ─► the few words of it ─► equal words: whole keys
//! ```

use super::{Bounds, Tag};
use crate::shuffle::Bytes;
use std::ops::Deref;
use std::sync::Arc;

/// Bounds with what finds ranges in them, made once for each version.
///
/// Of each range but the first it has the eight bytes behind what all of these begin with, as a number: of shorter keys with
/// zeros behind them. Keys whose numbers differ are in the order of these. Whole keys are compared only among equal numbers.
/// The numbers lie in buckets of equal width, two for each: of keys that are spread evenly one or two numbers are compared, of
/// others no more than in a search among all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finder {
    bounds: Arc<Bounds>,
    /// What the ranges but the first begin with.
    common: Bytes,
    words: Vec<u64>,
    /// A number less the first one, shifted so far, is its bucket.
    shift: u32,
    /// How many numbers are in buckets before each, and all of them at the end.
    starts: Vec<u32>,
}

impl Finder {
    /// Of these bounds, whose ranges are in the order of their keys.
    pub fn new(bounds: Arc<Bounds>) -> Finder {
        let begins = || bounds.ranges.iter().skip(1).map(|range| &range.begins[..]);
        let common = match (begins().next(), begins().next_back()) {
            // What the first and the last of keys in order begin with, all between begin with.
            (Some(first), Some(last)) => &first[..common_bytes(first, last)],
            _ => &[][..],
        };
        let common: Bytes = common.into();
        let words: Vec<u64> =
            begins().map(|begins| word(begins.get(common.len()..).unwrap_or_default())).collect();
        let (shift, starts) = buckets(&words);
        Finder { bounds, common, words, shift, starts }
    }

    /// The tag of a key, as [`Bounds::tag_of`] says it.
    pub fn tag_of(&self, key: &[u8], turn: u64) -> Tag {
        if self.bounds.version == 0 {
            return self.bounds.tag_of(key, turn);
        }
        self.bounds.tag_at(self.place_of(key))
    }

    /// The place of the range: so many but the first begin at the key or before it.
    pub(in crate::shuffle) fn place_of(&self, key: &[u8]) -> usize {
        let Some(rest) = key.strip_prefix(&self.common[..]) else {
            return if *key < self.common[..] { 0 } else { self.words.len() };
        };
        let own = word(rest);
        let lower = self.lower(own);
        if self.words.get(lower) != Some(&own) {
            return lower;
        }
        let equal = self.words[lower..].partition_point(|word| *word == own);
        let equal = self.bounds.ranges.get(lower + 1..=lower + equal).unwrap_or_default();
        lower + equal.partition_point(|range| range.begins[..] <= *key)
    }

    /// How many numbers are less than this one.
    fn lower(&self, own: u64) -> usize {
        match (self.words.first(), self.words.last()) {
            (Some(first), Some(last)) if *first < own && own <= *last => {
                let bucket = ((own - first) >> self.shift) as usize;
                let (from, upto) = (self.starts[bucket] as usize, self.starts[bucket + 1] as usize);
                from + self.words[from..upto].partition_point(|word| *word < own)
            }
            (Some(_), Some(last)) if own > *last => self.words.len(),
            _ => 0,
        }
    }
}

/// The shift and the starts of a [`Finder`], of numbers in order.
fn buckets(words: &[u64]) -> (u32, Vec<u32>) {
    let (Some(first), Some(last)) = (words.first(), words.last()) else { return (0, Vec::new()) };
    let span = last.saturating_sub(*first);
    let bits = (2 * words.len()).next_power_of_two().trailing_zeros();
    let shift = (u64::BITS - span.leading_zeros()).saturating_sub(bits);
    let last = (span >> shift) as usize;
    let mut starts = vec![0; last + 2];
    for word in words {
        let bucket = (word.saturating_sub(*first) >> shift) as usize;
        starts[bucket.min(last) + 1] += 1;
    }
    for bucket in 1..starts.len() {
        starts[bucket] += starts[bucket - 1];
    }
    (shift, starts)
}

impl Deref for Finder {
    type Target = Bounds;

    fn deref(&self) -> &Bounds {
        &self.bounds
    }
}

/// How many first bytes two keys have in common: all keys between them have these, too.
pub(in crate::shuffle) fn common_bytes(first: &[u8], last: &[u8]) -> usize {
    first.iter().zip(last).take_while(|(first, last)| first == last).count()
}

/// The first eight bytes, zeros behind the end, as a number that is ordered as they are.
pub(in crate::shuffle) fn word(bytes: &[u8]) -> u64 {
    if let Some(first) = bytes.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut word = [0; 8];
    word.iter_mut().zip(bytes).for_each(|(word, byte)| *word = *byte);
    u64::from_be_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shuffle::RangeId;
    use crate::shuffle::bounds::Range;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn bounds(version: u32, begins: BTreeSet<Vec<u8>>) -> Bounds {
        let range = |(id, begins): (u64, Vec<u8>)| Range { id: RangeId(id), begins: begins.into() };
        let begins = begins.into_iter().filter(|begins| !begins.is_empty());
        Bounds { version, ranges: (7..).zip(std::iter::once(Vec::new()).chain(begins)).map(range).collect() }
    }

    /// Few different bytes, so that many keys begin alike.
    fn keys() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(0u8), Just(1), Just(255), any::<u8>()];
        let common = prop_oneof![Just(&b""[..]), Just(&b"user"[..]), Just(&b"user\0\0\0\0\0\0\0\0"[..])];
        (common, prop::collection::vec(byte, 0..12)).prop_map(|(common, rest)| [common, &rest[..]].concat())
    }

    proptest! {
        #[test]
        fn every_key_is_found_as_a_plain_search_finds_it(
            begins in prop::collection::btree_set(keys(), 0..40),
            common in prop_oneof![Just(Vec::<u8>::new()), keys()],
            others in prop::collection::vec(keys(), 0..40),
            version in 0..3u32,
        ) {
            let with_common = |key: &Vec<u8>| [&common[..], &key[..]].concat();
            let begins: BTreeSet<Vec<u8>> = begins.iter().map(with_common).collect();
            let near = begins.iter().flat_map(|key| {
                let longer = [&key[..], &[0]].concat();
                [key.clone(), longer, key[..key.len().saturating_sub(1)].to_vec()]
            });
            let near: Vec<Vec<u8>> = near.collect();
            let bounds = Arc::new(bounds(version, begins));
            let finder = Finder::new(bounds.clone());
            let all = near.iter().chain(&others).cloned().chain(others.iter().map(with_common));
            for (key, turn) in all.zip(0u64..) {
                prop_assert_eq!(finder.tag_of(&key, turn), bounds.tag_of(&key, turn), "{:?}", key);
            }
        }
    }

    #[test]
    fn keys_that_are_spread_evenly_have_buckets_of_a_few_words() {
        let spread: Vec<u64> = (0..1_000u64).map(|at| at * (u64::MAX / 1_000) + 7).collect();
        let (_, starts) = buckets(&spread);
        assert_eq!((starts.first(), starts.last()), (Some(&0), Some(&1_000)));
        assert!(starts.len() <= 4_097 && starts.windows(2).all(|pair| pair[1] - pair[0] <= 2));
        // All alike, and as far apart as numbers are.
        assert_eq!(buckets(&[5; 3]), (0, vec![0, 3]));
        assert_eq!(buckets(&[0, u64::MAX]), (62, vec![0, 1, 1, 1, 2]));
        assert_eq!(buckets(&[]), (0, vec![]));
    }

    #[test]
    fn a_key_is_found_whatever_ranges_there_are() {
        for count in [0, 1, 2] {
            let ranges: Vec<Range> = bounds(1, [vec![5]].into()).ranges.into_iter().take(count).collect();
            let bounds = Arc::new(Bounds { version: 1, ranges });
            for key in [&[][..], &[4], &[5], &[5, 0], &[6]] {
                assert_eq!(Finder::new(bounds.clone()).tag_of(key, 0), bounds.tag_of(key, 0), "{key:?}");
            }
        }
    }
}
