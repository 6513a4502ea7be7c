//! A sketch of the keys that went by, and the distribution that it tells (X5).
//!
//! This is the KLL sketch (Karnin, Lang, Liberty 2016). Keys lie in levels; a key of level h stands for 2^h keys. A level that is
//! full is sorted, and every second key of it goes up. Which half goes is drawn from the seed that the caller gave, so the same
//! keys in the same order give the same sketch. Two sketches are merged level by level. The weights of all keys always add up to
//! the number of keys that were inserted.
//!
//! Keys are cut to [`limits::SAMPLE_KEY_BYTES`]: what is cut is still a bound, and the memory of a sketch has a limit whatever
//! the keys.

use super::Bytes;
use partage_core::limits;
use std::collections::BTreeSet;

/// The keys that stand for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sketch {
    k: usize,
    seed: u64,
    levels: Vec<Vec<Bytes>>,
    count: u64,
}

/// Least capacity of a level: below it sorting costs more than it saves.
const LEAST: usize = 8;
/// Limits of a sketch that is made of parts: most levels, the largest `k`, and most keys that it stands for. No shuffle has
/// counted 2^48 keys, and thousands of such sketches are merged before a number overflows.
const MOST_LEVELS: usize = 48;
const MOST_COUNT: u64 = 1 << 48;
const MOST_K: usize = 1 << 16;

impl Sketch {
    /// An empty sketch whose largest level holds `k` keys; the error of a rank is some `2 / k` of all. `seed` decides the draws.
    pub fn new(k: usize, seed: u64) -> Sketch {
        Sketch { k: k.max(LEAST), seed, levels: vec![Vec::new()], count: 0 }
    }

    /// Its `k`, its seed, and its keys by their levels: what [`Sketch::of_parts`] makes the same sketch of.
    pub fn parts(&self) -> (usize, u64, &[Vec<Bytes>]) {
        (self.k, self.seed, &self.levels)
    }

    /// A sketch of its parts. None: these are no parts of one, as it would hold more keys or longer ones than a sketch does, or
    /// stand for more than were ever counted.
    pub fn of_parts(k: usize, seed: u64, levels: Vec<Vec<Bytes>>) -> Option<Sketch> {
        if !(LEAST..=MOST_K).contains(&k) || !(1..=MOST_LEVELS).contains(&levels.len()) {
            return None;
        }
        if levels.iter().flatten().any(|key| key.len() > limits::SAMPLE_KEY_BYTES) {
            return None;
        }
        let mut sketch = Sketch { k, seed, levels, count: 0 };
        if sketch.held() > sketch.room() {
            return None;
        }
        for (keys, level) in sketch.levels.iter().zip(0u32..) {
            let weight = (keys.len() as u64).checked_mul(1u64 << level)?;
            sketch.count = sketch.count.checked_add(weight).filter(|count| *count <= MOST_COUNT)?;
        }
        Some(sketch)
    }

    /// How many keys were inserted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many keys are held: at most some 3 k, and [`LEAST`] for each level.
    pub fn held(&self) -> usize {
        self.levels.iter().map(Vec::len).sum()
    }

    /// Takes in one more key, cut to [`limits::SAMPLE_KEY_BYTES`].
    pub fn insert(&mut self, key: &[u8]) {
        let cut = key.get(..limits::SAMPLE_KEY_BYTES).unwrap_or(key);
        if let Some(lowest) = self.levels.first_mut() {
            lowest.push(cut.into());
        }
        self.count = self.count.saturating_add(1);
        self.compress();
    }

    /// Takes in all that another sketch stands for.
    pub fn merge(&mut self, other: &Sketch) {
        while self.levels.len() < other.levels.len() {
            self.levels.push(Vec::new());
        }
        for (own, level) in self.levels.iter_mut().zip(&other.levels) {
            own.extend(level.iter().cloned());
        }
        self.count = self.count.saturating_add(other.count);
        self.compress();
    }

    /// What share of the keys is where.
    pub fn cdf(&self) -> Cdf {
        let weighted = self.levels.iter().zip(0u32..).flat_map(|(keys, level)| {
            let weight = 1u64.checked_shl(level).unwrap_or(u64::MAX);
            keys.iter().map(move |key| (key, weight))
        });
        let mut points: Vec<(Bytes, u64)> = weighted.map(|(key, weight)| (key.clone(), weight)).collect();
        points.sort();
        let mut total = 0u64;
        points.iter_mut().for_each(|(_, weight)| {
            total = total.saturating_add(*weight);
            *weight = total;
        });
        // Of equal keys the last has the weight of all.
        let mut distinct: Vec<(Bytes, u64)> = Vec::with_capacity(points.len());
        for (key, upto) in points {
            match distinct.last_mut() {
                Some((last, weight)) if *last == key => *weight = upto,
                _ => distinct.push((key, upto)),
            }
        }
        Cdf { points: distinct }
    }

    fn capacity(&self, level: usize) -> usize {
        let below = self.levels.len() - 1 - level;
        (0..below).fold(self.k, |capacity, _| (capacity * 2).div_ceil(3)).max(LEAST)
    }

    fn draw(&mut self) -> bool {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.seed ^ (self.seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) & (1 << 20) != 0
    }

    /// How many keys it may hold.
    fn room(&self) -> usize {
        (0..self.levels.len()).map(|level| self.capacity(level)).sum()
    }

    fn compress(&mut self) {
        loop {
            if self.held() <= self.room() {
                return;
            }
            let full =
                (0..self.levels.len()).find(|level| self.levels[*level].len() >= self.capacity(*level));
            let Some(level) = full else { return };
            let odd = usize::from(self.draw());
            let mut keys = std::mem::take(&mut self.levels[level]);
            keys.sort();
            // Of an odd number one stays: the weights must add up.
            if keys.len() % 2 == 1 {
                self.levels[level].extend(keys.pop());
            }
            if level + 1 == self.levels.len() {
                self.levels.push(Vec::new());
            }
            self.levels[level + 1].extend(keys.into_iter().skip(odd).step_by(2));
        }
    }
}

/// An approximate distribution of keys: different keys in order, each with the weight of all keys up to it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cdf {
    points: Vec<(Bytes, u64)>,
}

impl Cdf {
    /// The weight of all keys.
    pub fn total(&self) -> u64 {
        self.points.last().map_or(0, |(_, upto)| *upto)
    }

    /// The weight of the keys below `key`.
    pub fn below(&self, key: &[u8]) -> u64 {
        let at = self.points.partition_point(|(point, _)| point[..] < *key);
        at.checked_sub(1).and_then(|at| self.points.get(at)).map_or(0, |(_, upto)| *upto)
    }

    /// Where `n` ranges of about equal weight begin: the first at the empty key, each at another key. A key that alone is as
    /// heavy as a range has one for itself, so there may be up to `2 n` ranges; there are fewer when there are fewer keys.
    pub fn begins(&self, n: usize) -> Vec<Bytes> {
        let first = std::iter::once(Bytes::from([].as_slice()));
        let begins: BTreeSet<Bytes> = first.chain(self.cuts(0, self.total(), n)).collect();
        begins.into_iter().collect()
    }

    /// Where the keys of these ranks, `upto` not among them, are cut into `n` parts of about equal weight. A key that alone is as
    /// heavy as a part is cut off on both sides.
    pub(super) fn cuts(&self, from: u64, upto: u64, n: usize) -> BTreeSet<Bytes> {
        let (weight, n) = (u128::from(upto.saturating_sub(from)), n.max(1) as u128);
        let mut cuts = BTreeSet::new();
        for i in 1..n {
            let rank = from + (i * weight / n) as u64;
            let at = self.points.partition_point(|(_, upto)| *upto <= rank);
            let Some((key, upto)) = self.points.get(at) else { continue };
            let before = at.checked_sub(1).map_or(0, |at| self.points[at].1);
            cuts.insert(key.clone());
            if u128::from(upto - before) * n >= weight {
                cuts.insert(after(key));
            }
        }
        cuts
    }
}

/// The first key after `key`, in the order of bytes.
pub fn after(key: &[u8]) -> Bytes {
    key.iter().copied().chain([0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sketch_of(keys: impl Iterator<Item = u64>, k: usize, seed: u64) -> Sketch {
        let mut sketch = Sketch::new(k, seed);
        keys.for_each(|key| sketch.insert(&key.to_be_bytes()));
        sketch
    }

    #[test]
    fn weights_add_up_and_ranks_are_close() {
        // 31 has no common divisor with 50,000, so each key comes once.
        let sketch = sketch_of((0..50_000u64).map(|i| i * 31 % 50_000), 400, 7);
        let cdf = sketch.cdf();
        assert_eq!((sketch.count(), cdf.total()), (50_000, 50_000));
        assert!(sketch.held() < 2_000, "{}", sketch.held());
        for key in (0..50_000u64).step_by(1_000) {
            let off = cdf.below(&key.to_be_bytes()).abs_diff(key);
            assert!(off < 500, "{key} is off by {off}");
        }
    }

    #[test]
    fn merged_sketches_are_as_close_and_the_same_seed_gives_the_same_sketch() {
        let mut merged = Sketch::new(400, 1);
        for part in 0..10u64 {
            merged.merge(&sketch_of((0..5_000).map(|i| i * 10 + part), 400, part));
        }
        assert_eq!((merged.count(), merged.cdf().total()), (50_000, 50_000));
        assert!(merged.held() < 2_000, "{}", merged.held());
        let off = |key: u64| merged.cdf().below(&key.to_be_bytes()).abs_diff(key);
        (0..50_000u64).step_by(5_000).for_each(|key| assert!(off(key) < 700, "{key} by {}", off(key)));
        assert_eq!(sketch_of(0..9_999, 64, 3), sketch_of(0..9_999, 64, 3));
        assert_ne!(sketch_of(0..9_999, 64, 3), sketch_of(0..9_999, 64, 4));
    }

    #[test]
    fn x5_ranges_are_even_and_a_heavy_key_has_one_of_its_own() {
        let cdf = sketch_of(0..10_000, 20_000, 1).cdf();
        let begins = cdf.begins(10);
        let expected: Vec<Bytes> = (0..10u64)
            .map(|i| if i == 0 { [].as_slice().into() } else { (i * 1_000).to_be_bytes().as_slice().into() })
            .collect();
        assert_eq!(begins, expected);
        let heavy = sketch_of((0..1_000).map(|i| if i % 2 == 0 { 500 } else { i }), 20_000, 1).cdf();
        let key: Bytes = 500u64.to_be_bytes().as_slice().into();
        let begins = heavy.begins(4);
        assert!(begins.contains(&key) && begins.contains(&after(&key)), "{begins:?}");
        assert_eq!(Cdf::default().begins(5).len(), 1, "without keys there is one range");
    }

    #[test]
    fn a_sketch_is_made_of_its_parts_and_of_nothing_else() {
        let sketch = sketch_of(0..9_999, 64, 3);
        let (k, seed, levels) = sketch.parts();
        assert_eq!(Sketch::of_parts(k, seed, levels.to_vec()), Some(sketch.clone()));
        let key: Bytes = [1].as_slice().into();
        let long: Bytes = vec![1; limits::SAMPLE_KEY_BYTES + 1].into();
        for (k, levels) in [
            (7, vec![vec![]]),
            (MOST_K + 1, vec![vec![]]),
            (8, vec![]),
            (8, vec![vec![]; MOST_LEVELS + 1]),
            (8, vec![vec![long]]),
            (8, vec![vec![key.clone(); 9]]),
            // Their weights are more than a number holds.
            (MOST_K, [vec![vec![]; MOST_LEVELS - 1], vec![vec![key; 140_000]]].concat()),
        ] {
            assert_eq!(Sketch::of_parts(k, 1, levels.clone()), None, "{k} {}", levels.len());
        }
    }

    proptest! {
        #[test]
        fn no_weight_of_parts_is_lost(
            levels in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 1..=MOST_LEVELS),
        ) {
            let exact: u128 = levels.iter().zip(0u32..).map(|(keys, level)| (keys.len() as u128) << level).sum();
            let bytes = |key: u8| Bytes::from([key].as_slice());
            let parts = levels.into_iter().map(|keys| keys.into_iter().map(bytes).collect()).collect();
            let made = Sketch::of_parts(1_000, 1, parts);
            prop_assert_eq!(made.is_some(), exact <= u128::from(MOST_COUNT));
            if let Some(sketch) = made {
                let mut merged = sketch.clone();
                (0..20).for_each(|_| merged.merge(&sketch));
                let found = (u128::from(merged.count()), u128::from(merged.cdf().total()));
                prop_assert_eq!(found, (21 * exact, 21 * exact));
            }
        }
    }

    #[test]
    fn long_keys_are_cut() {
        let mut sketch = Sketch::new(8, 1);
        sketch.insert(&vec![7; limits::SAMPLE_KEY_BYTES + 1]);
        assert_eq!(sketch.cdf().begins(2)[1].len(), limits::SAMPLE_KEY_BYTES);
    }
}
