//! The first shards of an empty keyspace (K4).
//!
//! A keyspace that begins as one shard sends all its load to one node until splits catch up. If something is
//! known about the keys, cut beforehand: at given points, at the quantiles of a sample, or, where hashes
//! are ranged over, evenly.
//!
//! The quantiles are exact for the sample: samples are small enough to sort. The estimate of a stream too
//! large for that is the business of the caller that samples it.

use crate::keyspace::key::{HashRange, Key, KeyRange};
use crate::limits;
use std::collections::BTreeMap;

/// Why a keyspace cannot be cut into its first shards so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PresplitError {
    /// A split point is empty, and the first shard begins there anyway.
    #[error("split point {at} is empty: {}", self.way_out())]
    EmptyPoint {
        /// Its index, from 0.
        at: usize,
    },
    /// A point below the one before it.
    #[error("split point {at}, {point:?}, is below the one before it, {before:?}: {}", self.way_out())]
    Unsorted {
        /// Its index, from 0.
        at: usize,
        /// The split point that is below the one before it.
        point: Key,
        /// The split point before it.
        before: Key,
    },
    /// Two neighbouring split points are the same.
    #[error("split point {at}, {point:?}, is given twice: {}", self.way_out())]
    Duplicate {
        /// The second one's index, from 0.
        at: usize,
        /// The split point that is given twice.
        point: Key,
    },
    /// The number of shards that was asked for is 0.
    #[error("a keyspace needs at least one shard: {}", self.way_out())]
    NoShards,
    /// There would be more than [`limits::SHARDS`] shards.
    #[error("{shards} shards are too many: {}", self.way_out())]
    TooManyShards {
        /// How many shards there would be.
        shards: usize,
    },
    /// A sample that cannot tell so many shards apart.
    #[error("the sample has {distinct} different keys, too few for {shards} shards: {}", self.way_out())]
    TooFewKeys {
        /// How many different keys the sample has.
        distinct: usize,
        /// The number of shards that was asked for.
        shards: usize,
    },
    /// A sampled key that weighs nothing.
    #[error("the sampled key {key:?} has weight 0: {}", self.way_out())]
    ZeroWeight {
        /// The sampled key that has weight 0.
        key: Key,
    },
}

impl PresplitError {
    /// What to do instead: the end of the sentence.
    pub fn way_out(&self) -> String {
        match self {
            PresplitError::EmptyPoint { .. } => {
                "the first shard begins there anyway, leave it out".to_owned()
            }
            PresplitError::Unsorted { .. } => "sort them".to_owned(),
            PresplitError::Duplicate { .. } => "a shard between them would be empty, give it once".to_owned(),
            PresplitError::NoShards => "ask for 1 or more".to_owned(),
            PresplitError::TooManyShards { .. } => {
                format!("the limit is {}, ask for no more", limits::SHARDS)
            }
            PresplitError::TooFewKeys { distinct: 0, .. } => "give a sample with at least one key".to_owned(),
            PresplitError::TooFewKeys { distinct, .. } => {
                format!("ask for at most {distinct}, or sample more keys")
            }
            PresplitError::ZeroWeight { .. } => "give it at least 1, or leave it out".to_owned(),
        }
    }
}

fn check_count(shards: usize) -> Result<(), PresplitError> {
    match shards {
        0 => Err(PresplitError::NoShards),
        1..=limits::SHARDS => Ok(()),
        _ => Err(PresplitError::TooManyShards { shards }),
    }
}

/// Ranges that begin at the lowest key and at each of `points`; one more than there are points.
pub fn at_points(points: &[Key]) -> Result<Vec<KeyRange>, PresplitError> {
    check_count(points.len() + 1)?;
    if let Some(at) = points.iter().position(Key::is_empty) {
        return Err(PresplitError::EmptyPoint { at });
    }
    for (i, pair) in points.windows(2).enumerate() {
        let (before, point, at) = (pair[0].clone(), pair[1].clone(), i + 1);
        if before == point {
            return Err(PresplitError::Duplicate { at, point });
        }
        if before > point {
            return Err(PresplitError::Unsorted { at, point, before });
        }
    }
    let begins = std::iter::once(Key::empty()).chain(points.iter().cloned());
    let ends = points.iter().cloned().chain(std::iter::once(Key::empty()));
    Ok(begins.zip(ends).map(|(begin, end)| KeyRange { begin, end }).collect())
}

/// `shards` ranges that share the weight of a sample as evenly as whole keys allow. The sample is in any
/// order and may name a key more than once; sample the partition keys, since those are placed.
///
/// Each shard in turn aims at an equal part of the weight that is left, and ends at the key where it comes
/// nearest. So a key heavier than a whole part fills one shard, and the others still share the rest.
pub fn from_sample(
    sample: impl IntoIterator<Item = (Key, u64)>,
    shards: usize,
) -> Result<Vec<KeyRange>, PresplitError> {
    check_count(shards)?;
    let mut weights: BTreeMap<Key, u128> = BTreeMap::new();
    for (key, weight) in sample {
        if weight == 0 {
            return Err(PresplitError::ZeroWeight { key });
        }
        *weights.entry(key).or_default() += u128::from(weight);
    }
    if weights.len() < shards {
        return Err(PresplitError::TooFewKeys { distinct: weights.len(), shards });
    }
    let weights: Vec<(Key, u128)> = weights.into_iter().collect();
    at_points(&quantiles(&weights, shards))
}

/// The keys at which each shard but the first begins. There are at least as many keys as shards.
fn quantiles(weights: &[(Key, u128)], shards: usize) -> Vec<Key> {
    let mut left: u128 = weights.iter().map(|(_, weight)| weight).sum();
    let mut points = Vec::with_capacity(shards - 1);
    let mut next = 0;
    for parts in (2..=shards).rev() {
        // Each of the parts after this one needs at least one key.
        let last = weights.len() - (parts - 1);
        let aim = left / parts as u128;
        let mut taken = weights[next].1;
        next += 1;
        // One more key, unless that overshoots by more than the shard now falls short.
        while next < last && 2 * taken + weights[next].1 <= 2 * aim {
            taken += weights[next].1;
            next += 1;
        }
        left -= taken;
        points.push(weights[next].0.clone());
    }
    points
}

/// `shards` ranges of the hash space: range i begins at ⌊i · 2^64 / shards⌋, so no two differ in length by
/// more than one point.
pub fn even_hashes(shards: usize) -> Result<Vec<HashRange>, PresplitError> {
    check_count(shards)?;
    let begin = |i: usize| ((i as u128) << 64) / shards as u128;
    let range = |i: usize| HashRange { first: begin(i) as u64, last: (begin(i + 1) - 1) as u64 };
    Ok((0..shards).map(range).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text.as_bytes()).unwrap()
    }

    fn keys(texts: &[&str]) -> Vec<Key> {
        texts.iter().map(|text| key(text)).collect()
    }

    fn begins(ranges: &[KeyRange]) -> Vec<String> {
        ranges.iter().map(|range| range.begin.to_string()).collect()
    }

    #[test]
    fn points_cut_the_whole_space() {
        assert_eq!(at_points(&[]), Ok(vec![KeyRange::all()]));
        let ranges = at_points(&keys(&["g", "p"])).unwrap();
        assert_eq!(begins(&ranges), ["", "g", "p"]);
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].begin) && ranges[2].end.is_empty());
    }

    #[test]
    fn bad_points_are_told_with_their_place() {
        let error = |texts: &[&str]| at_points(&keys(texts)).unwrap_err();
        assert_eq!(error(&["a", ""]), PresplitError::EmptyPoint { at: 1 });
        assert_eq!(error(&["a", "b", "b"]), PresplitError::Duplicate { at: 2, point: key("b") });
        let unsorted = PresplitError::Unsorted { at: 1, point: key("a"), before: key("c") };
        assert_eq!(error(&["c", "a"]), unsorted);
        let many = vec![key("x"); limits::SHARDS];
        assert_eq!(at_points(&many), Err(PresplitError::TooManyShards { shards: limits::SHARDS + 1 }));
    }

    #[test]
    fn a_sample_is_cut_at_its_quantiles_in_any_order() {
        let sample = ["d", "a", "c", "b", "f", "e"].map(|text| (key(text), 1));
        assert_eq!(begins(&from_sample(sample, 3).unwrap()), ["", "c", "e"]);
    }

    #[test]
    fn a_heavy_key_fills_one_shard_and_the_rest_is_shared() {
        let sample = [("a", 1), ("b", 1), ("c", 100), ("d", 1), ("e", 1), ("f", 1), ("g", 1), ("c", 50)];
        let ranges = from_sample(sample.map(|(text, weight)| (key(text), weight)), 4).unwrap();
        // 156 by 4 is 39: a and b fall short of it, but less than c would overshoot.
        assert_eq!(begins(&ranges), ["", "c", "d", "f"]);
    }

    #[test]
    fn as_many_shards_as_keys_is_the_most() {
        let sample = || ["a", "b", "c"].map(|text| (key(text), 1_000 - u64::from(text.as_bytes()[0])));
        assert_eq!(begins(&from_sample(sample(), 3).unwrap()), ["", "b", "c"]);
        assert_eq!(from_sample(sample(), 4), Err(PresplitError::TooFewKeys { distinct: 3, shards: 4 }));
        assert_eq!(from_sample(sample(), 0), Err(PresplitError::NoShards));
        assert_eq!(from_sample([(key("a"), 0)], 1), Err(PresplitError::ZeroWeight { key: key("a") }));
    }

    #[test]
    fn even_ranges_cover_the_hash_space() {
        for shards in [1, 2, 3, 7, 1_000, 65_537] {
            let ranges = even_hashes(shards).unwrap();
            assert!(ranges.len() == shards && ranges[0].first == 0 && ranges[shards - 1].last == u64::MAX);
            assert!(ranges.windows(2).all(|pair| pair[0].last + 1 == pair[1].first));
            let lengths = ranges.iter().map(|range| range.last - range.first);
            assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1);
        }
        assert_eq!(even_hashes(0), Err(PresplitError::NoShards));
        assert!(even_hashes(limits::SHARDS).is_ok() && even_hashes(limits::SHARDS + 1).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_shard_is_above_its_part_by_more_than_one_key(
            weights in proptest::collection::vec(1u64..50, 1..200), shards in 1usize..40,
        ) {
            proptest::prop_assume!(weights.len() >= shards);
            let sample: Vec<(Key, u64)> =
                weights.iter().enumerate().map(|(i, weight)| (key(&format!("{i:04}")), *weight)).collect();
            let ranges = from_sample(sample.clone(), shards).unwrap();
            proptest::prop_assert_eq!(ranges.len(), shards);
            let total: u64 = weights.iter().sum();
            for range in &ranges {
                let held: Vec<u64> = sample.iter().filter(|s| range.contains(s.0.as_bytes())).map(|s| s.1).collect();
                let (sum, most) = (held.iter().sum::<u64>(), *weights.iter().max().unwrap());
                proptest::prop_assert!(!held.is_empty());
                proptest::prop_assert!(sum <= total / shards as u64 + 2 * most, "{} of {}", sum, total);
            }
        }
    }
}
