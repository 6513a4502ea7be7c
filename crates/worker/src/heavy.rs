//! The keys that are asked for most, in little memory.
//!
//! A fixed number of counters, each for one key. A key without one takes over the smallest, together with its
//! count: so it may be counted too high, by at most what it took over, and never too low. After n keys
//! through m counters that error is at most n/m, and every key with more than n/m requests has a counter
//! ("Efficient computation of frequent and top-k elements in data streams", Metwally and others, 2005).
//!
//! What is reported is the count less its possible error: a key that is called hot is hot.

use crate::limits::{HEAVY_COUNTERS, HEAVY_KEY_BYTES};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::Key;

#[derive(Debug)]
struct Counter {
    hash: u64,
    key: Box<[u8]>,
    count: u64,
    /// How much of `count` may be another key's.
    error: u64,
}

/// Counters of the keys that are asked for most.
#[derive(Debug, Default)]
pub struct HeavyKeys {
    counters: Vec<Counter>,
    seen: u64,
}

impl HeavyKeys {
    /// Counts one request for `key`.
    pub fn count(&mut self, key: &[u8]) {
        self.seen += 1;
        if key.len() > HEAVY_KEY_BYTES {
            return;
        }
        let hash = HashFunction::Xxh3_64.point(key);
        let same = |counter: &&mut Counter| counter.hash == hash && *counter.key == *key;
        if let Some(counter) = self.counters.iter_mut().find(same) {
            counter.count += 1;
        } else if self.counters.len() < HEAVY_COUNTERS {
            self.counters.push(Counter { hash, key: key.into(), count: 1, error: 0 });
        } else if let Some(least) = self.counters.iter_mut().min_by_key(|counter| counter.count) {
            *least = Counter { hash, key: key.into(), count: least.count + 1, error: least.count };
        }
    }

    /// The heaviest keys, at most `most`, with the share of all requests that each certainly had; then
    /// forgets everything. Keys below one hundredth are not heavy.
    pub fn take(&mut self, most: usize) -> Vec<(Key, f64)> {
        let seen = std::mem::take(&mut self.seen).max(1) as f64;
        let certain = |counter: Counter| {
            let share = (counter.count - counter.error) as f64 / seen;
            Key::new(&counter.key).ok().map(|key| (key, share))
        };
        let mut heavy: Vec<_> = std::mem::take(&mut self.counters)
            .into_iter()
            .filter_map(certain)
            .filter(|(_, share)| *share >= 0.01)
            .collect();
        heavy.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        heavy.truncate(most);
        heavy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heavy_key_among_many_is_found_and_never_overstated() {
        let mut heavy = HeavyKeys::default();
        for n in 0..10_000u32 {
            // One in four is the hot key; the others come once each.
            let key = if n % 4 == 0 { b"hot".to_vec() } else { n.to_be_bytes().to_vec() };
            heavy.count(&key);
        }
        let found = heavy.take(8);
        assert_eq!(found[0].0.as_bytes(), b"hot");
        assert!(found[0].1 <= 0.25, "{found:?}");
        assert!(found[0].1 >= 0.25 - 1.0 / HEAVY_COUNTERS as f64, "{found:?}");
        assert_eq!(found.len(), 1, "a key that came once is not heavy: {found:?}");
        assert!(heavy.take(8).is_empty(), "it begins anew");
    }

    #[test]
    fn the_heaviest_comes_first_and_few_keys_are_counted_exactly() {
        let mut heavy = HeavyKeys::default();
        for (key, times) in [("a", 1), ("b", 6), ("c", 3)] {
            (0..times).for_each(|_| heavy.count(key.as_bytes()));
        }
        let found: Vec<_> = heavy.take(2).into_iter().map(|(key, share)| (key.to_string(), share)).collect();
        assert_eq!(found, [("b".to_owned(), 0.6), ("c".to_owned(), 0.3)]);
    }

    #[test]
    fn a_key_at_the_limit_is_counted_and_one_above_is_not() {
        let mut heavy = HeavyKeys::default();
        heavy.count(&vec![1; HEAVY_KEY_BYTES]);
        heavy.count(&vec![2; HEAVY_KEY_BYTES + 1]);
        assert_eq!(heavy.take(8).len(), 1);
    }
}
