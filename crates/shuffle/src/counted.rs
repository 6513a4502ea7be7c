//! Numbers that only grow, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Records that went somewhere, and their bytes.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    records: AtomicU64,
    bytes: AtomicU64,
}

impl Counted {
    pub(crate) fn add(&self, records: u64, bytes: u64) {
        self.records.fetch_add(records, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Both so far.
    pub(crate) fn get(&self) -> (u64, u64) {
        (self.records.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// How long something took, counted by the first of some bounds that it was within.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    within: [AtomicU64; BOUNDS_MS.len()],
    all: AtomicU64,
    sum_ms: AtomicU64,
}

/// The bounds, in milliseconds. An acknowledgement takes two syncs; an attempt is given up after a minute.
const BOUNDS_MS: [u64; 15] =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000];

impl Durations {
    pub(crate) fn add(&self, took_ms: u64) {
        if let Some(within) = BOUNDS_MS.iter().zip(&self.within).find(|(bound, _)| took_ms <= **bound) {
            within.1.fetch_add(1, Ordering::Relaxed);
        }
        self.all.fetch_add(1, Ordering::Relaxed);
        self.sum_ms.fetch_add(took_ms, Ordering::Relaxed);
    }

    /// How many were within each bound, the bounds in milliseconds.
    pub(crate) fn within(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut sum = 0;
        BOUNDS_MS.iter().zip(&self.within).map(move |(bound, count)| {
            sum += count.load(Ordering::Relaxed);
            (*bound, sum)
        })
    }

    /// How many there were, and how long they took together, in milliseconds.
    pub(crate) fn all(&self) -> (u64, u64) {
        (self.all.load(Ordering::Relaxed), self.sum_ms.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_counted_by_bounds_and_one_beyond_all_only_in_the_sum() {
        let durations = Durations::default();
        [0, 1, 2, 60_000, 60_001].iter().for_each(|took_ms| durations.add(*took_ms));
        let within: Vec<(u64, u64)> = durations.within().collect();
        assert_eq!((within[0], within[1], within[2]), ((1, 2), (2, 3), (5, 3)));
        assert_eq!((within[14], durations.all()), ((60_000, 4), (5, 120_004)));
    }
}
