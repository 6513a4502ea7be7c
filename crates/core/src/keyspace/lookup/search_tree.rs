//! A sorted list of numbers, arranged to be searched fast.
//!
//! Binary search touches a new cache line at nearly each of its twenty steps over a million numbers. Here the
//! numbers lie in blocks of sixteen, two cache lines, with smaller lists above that tell which block to go
//! to: a B-tree without pointers, of five layers for a million numbers. In a block seven are compared, without
//! a branch, so nothing is mispredicted, and the processor works on the next search meanwhile. The
//! shape depends on the count of the numbers only: there is no bad distribution.
//!
//! Not here: interpolation and learned indexes, which are faster on even numbers and slow on real keys; the
//! [`RadixTable`](super::radix_table::RadixTable) beside it is a table for the even ones.

/// Numbers in a block; a block above has one more children than that.
const BLOCK: usize = 16;

/// Layers enough for 17^7 numbers, which is more than any limit of ours.
const LAYERS: usize = 8;

#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Block([u64; BLOCK]);

impl Block {
    /// How many of its numbers are at most `number`. Three numbers say which four to look at, so seven are
    /// compared, none of them with a branch.
    #[inline(always)]
    fn rank(&self, number: u64) -> usize {
        let upto = |at: usize| usize::from(self.0[at] <= number);
        let first = 4 * (upto(3) + upto(7) + upto(11));
        // The mask changes nothing, but lets the compiler see that `first` is in bounds.
        let first = first & 12;
        first + upto(first) + upto(first + 1) + upto(first + 2) + upto(first + 3)
    }
}

/// Sorted numbers that answer "how many of you are at most x?".
#[derive(Debug, Clone)]
pub(super) struct SearchTree {
    /// All layers, the topmost first, each one's blocks side by side. Filled up with the highest number.
    blocks: Vec<Block>,
    /// Where each layer begins. The first `depth` are used.
    begins: [u32; LAYERS],
    depth: usize,
    count: usize,
    /// The last of the numbers.
    highest: u64,
}

impl SearchTree {
    /// `sorted` may hold the same number more than once.
    pub(super) fn build(sorted: &[u64]) -> SearchTree {
        debug_assert!(sorted.is_sorted());
        let mut layers = vec![blocks(sorted.chunks(BLOCK))];
        // The lowest number below each block of the layer on top.
        let mut lowest: Vec<u64> = sorted.iter().copied().step_by(BLOCK).collect();
        while lowest.len() > 1 {
            layers.push(blocks(lowest.chunks(BLOCK + 1).map(|children| &children[1..])));
            lowest = lowest.into_iter().step_by(BLOCK + 1).collect();
        }
        let mut tree = SearchTree {
            blocks: Vec::new(),
            begins: [0; LAYERS],
            depth: layers.len(),
            count: sorted.len(),
            highest: sorted.last().copied().unwrap_or_default(),
        };
        for (begin, layer) in tree.begins.iter_mut().zip(layers.into_iter().rev()) {
            *begin = tree.blocks.len() as u32;
            tree.blocks.extend(layer);
        }
        tree.blocks.shrink_to_fit();
        tree
    }

    /// How many of the numbers are at most `number`.
    #[inline]
    pub(super) fn rank(&self, number: u64) -> usize {
        self.floor(number).map_or(0, |(at, _)| at + 1)
    }

    /// The last of the numbers that is at most `number`, with its position; none if all are above.
    #[inline]
    pub(super) fn floor(&self, number: u64) -> Option<(usize, u64)> {
        if number == u64::MAX {
            return Some((self.count.checked_sub(1)?, self.highest)); // The filling would count too.
        }
        let (last, above) = self.begins[..self.depth].split_last()?;
        let mut at = 0;
        for begin in above {
            at = at * (BLOCK + 1) + self.blocks[*begin as usize + at].rank(number);
        }
        let block = self.blocks.get(*last as usize + at)?;
        let below = block.rank(number).checked_sub(1)?;
        Some((at * BLOCK + below, block.0[below % BLOCK]))
    }

    /// The number at that position.
    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<u64> {
        let last = self.begins[self.depth.checked_sub(1)?] as usize;
        Some(self.blocks.get(last + at / BLOCK)?.0[at % BLOCK])
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<SearchTree>() + self.blocks.capacity() * size_of::<Block>()
    }
}

fn blocks<'a>(chunks: impl Iterator<Item = &'a [u64]>) -> Vec<Block> {
    let block = |chunk: &[u64]| {
        let mut block = [u64::MAX; BLOCK];
        block[..chunk.len()].copy_from_slice(chunk);
        Block(block)
    };
    chunks.map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::hash::mix;

    #[test]
    fn ranks_are_those_of_binary_search_at_every_size() {
        let sizes = (0..40).chain([271, 272, 273, 288, 289, 290, 4_624, 4_625, 4_913, 80_000]);
        for size in sizes {
            let mut numbers: Vec<u64> = (0..size).map(|i| mix(i) >> (i % 3 * 20)).collect();
            numbers.extend([0, u64::MAX].iter().take(size as usize % 3));
            numbers.sort_unstable();
            let tree = SearchTree::build(&numbers);
            let near = numbers.iter().step_by(1 + size as usize / 500);
            let near = near.flat_map(|n| [n.saturating_sub(1), *n, n.saturating_add(1)]);
            for probe in near.chain([0, 1, u64::MAX - 1, u64::MAX]) {
                let expected = numbers.partition_point(|number| *number <= probe);
                assert_eq!(tree.rank(probe), expected, "{probe:x} of {size}");
                let floor = expected.checked_sub(1).map(|at| (at, numbers[at]));
                assert_eq!(tree.floor(probe), floor, "{probe:x} of {size}");
            }
        }
    }
}
