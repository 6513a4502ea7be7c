//! A short cut into a long sorted list of numbers.
//!
//! The span of the numbers is cut into equal cells, one or two for each number, and each cell notes how many
//! numbers are below it. Where the numbers are spread evenly, one look into the table leaves one or two
//! to compare with, in a quarter of the instructions that a [`SearchTree`](super::search_tree::SearchTree) takes: so
//! the processor has more searches in hand while it waits for memory. Where they crowd (names that begin alike)
//! the table says so, and the tree is asked.

/// Fewer numbers than this are searched as fast without.
const FEWEST: usize = 64;

/// Most numbers that may be left to compare with.
pub(super) const NEAR: usize = 2;

/// See the module. Without cells there is no short cut.
#[derive(Debug, Clone)]
pub(super) struct RadixTable {
    lowest: u64,
    shift: u32,
    /// For each cell, the last number at or before its begin; one more for the end.
    cells: Vec<u32>,
}

impl RadixTable {
    /// Cuts the span of sorted numbers into cells; of fewer than [`FEWEST`] it makes none.
    pub(super) fn build(numbers: &[u64]) -> RadixTable {
        let (Some(lowest), Some(highest)) = (numbers.first().copied(), numbers.last()) else {
            return RadixTable { lowest: 0, shift: 0, cells: Vec::new() };
        };
        let bits = (2 * numbers.len()).ilog2();
        let shift = (u64::BITS - (highest - lowest).leading_zeros()).saturating_sub(bits);
        let mut cells = Vec::new();
        if numbers.len() >= FEWEST {
            let count = ((highest - lowest) >> shift) + 1;
            cells.reserve_exact(count as usize + 1);
            let mut at = 0;
            for cell in 0..count {
                let begin = lowest + (cell << shift);
                while numbers.get(at + 1).is_some_and(|next| *next <= begin) {
                    at += 1;
                }
                cells.push(at as u32);
            }
            cells.push(numbers.len() as u32 - 1);
        }
        RadixTable { lowest, shift, cells }
    }

    /// The positions between which the last number lies that is at most `number`, both included, when they are
    /// near each other.
    #[inline]
    pub(super) fn near(&self, number: u64) -> Option<(usize, usize)> {
        let cell = usize::try_from(number.checked_sub(self.lowest)? >> self.shift).ok()?;
        let [from, to] = self.cells.get(cell..cell.checked_add(2)?)? else { return None };
        (to - from <= NEAR as u32).then_some((*from as usize, *to as usize))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.cells.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::hash::mix;

    /// Checks what is said, and returns how many of the probes found a short cut.
    fn short_cuts(mut numbers: Vec<u64>) -> usize {
        numbers.sort_unstable();
        numbers.dedup();
        let table = RadixTable::build(&numbers);
        let near = numbers.iter().flat_map(|n| [n.saturating_sub(1), *n, n.saturating_add(1)]);
        let probes = near.chain((0..1_000).map(mix)).chain([0, u64::MAX]);
        let found = |probe: u64| {
            let Some((from, to)) = table.near(probe) else { return false };
            let floor = numbers.partition_point(|number| *number <= probe) - 1;
            assert!(from <= floor && floor <= to && to - from <= NEAR, "{probe:x}: {from} {floor} {to}");
            true
        };
        probes.filter(|probe| found(*probe)).count()
    }

    #[test]
    fn even_numbers_have_a_short_cut_and_it_is_right() {
        // Of 31,000 probes, most of them at a number: some in eight share their cell with two others or more.
        for numbers in [|i| mix(i), |i| i * 1_000 + 77, |i| u64::MAX - i] {
            let found = short_cuts((0..10_000).map(numbers).collect());
            assert!(found > 26_000, "{found}");
        }
    }

    #[test]
    fn crowded_numbers_have_none_where_they_crowd() {
        let crowd = (0..10_000).map(|i| (1 << 60) + i);
        let found = short_cuts(crowd.chain([0, u64::MAX]).collect());
        assert!((1..2_000).contains(&found), "{found}");
    }

    #[test]
    fn few_numbers_and_none_have_none() {
        assert_eq!(short_cuts((0..FEWEST as u64 - 1).map(mix).collect()), 0);
        assert!(short_cuts((0..FEWEST as u64).map(mix).collect()) > 0);
        assert_eq!(RadixTable::build(&[]).near(0), None);
    }
}
