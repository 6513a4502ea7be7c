//! One cache line that finds a number among up to 28 sorted ones.
//!
//! Numbers that lie next to each other among a million have much in common. What a leaf keeps of each is
//! how far it is above the lowest, without the lowest bits: 15 bits of it (28 numbers a line) or, where those would
//! tell too few apart, 31 (14 numbers). That decides nearly every search. Where a number is the same in all
//! of the bits that are kept, the leaf says so, and the search has to look at what was left out.
//!
//! So a search of a million ranges waits for one line that is not in a near cache, and all lines together are a
//! quarter of the numbers.

/// Numbers in a leaf of 15 bits each: the signed 16 that every processor compares eight at a time.
pub(super) const NARROW: usize = 28;

/// Numbers in a leaf of 31 bits each.
const WIDE: usize = 14;

/// Of a narrow leaf, one number in so many may be the same as the next in its 15 bits.
const TOLD_APART: usize = 16;

/// Numbers of neighbouring begins, or begins that have one number in common.
#[derive(Debug, Clone)]
#[repr(align(64))]
pub(super) enum Leaf {
    /// 28 numbers, of each 15 bits.
    Narrow {
        /// The position of its first begin.
        first: u32,
        /// How many low bits are left out.
        shift: u8,
        /// What is kept, filled up with the highest value.
        kept: [i16; NARROW],
    },
    /// 14 numbers, of each 31 bits; otherwise the same.
    Wide {
        /// The position of its first begin.
        first: u32,
        /// How many low bits are left out.
        shift: u8,
        /// What is kept, filled up with the highest value.
        kept: [i32; WIDE],
    },
    /// All begins have the same number.
    Alike {
        /// The position of the first begin.
        first: u32,
        /// How many begins have that number.
        count: u32,
        /// The level that tells them apart; none when they differ in zeros at the end only.
        level: Option<u32>,
    },
}

/// What a leaf knows of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// So many begins have a lower number or the same one.
    Rank(usize),
    /// The begins before the first position are not above the key, those from the second on are.
    Among(usize, usize),
    /// The level that tells them apart.
    Level(u32),
}

impl Leaf {
    /// The leaf of the begins from position `first` on, and how many of their `numbers` (sorted) it took.
    /// Never one without the others that are the same; of those there must be at most [`NARROW`].
    pub(super) fn build(first: usize, numbers: &[u64]) -> (Leaf, usize) {
        let first = first as u32;
        let taken = whole(numbers, NARROW);
        let shift = shift(&numbers[..taken], i16::MAX as u64);
        let kept = |number: &u64| ((number - numbers[0]) >> shift) as i16;
        let alike =
            numbers[..taken].windows(2).filter(|pair| pair[0] != pair[1] && kept(&pair[0]) == kept(&pair[1]));
        let wide = whole(numbers, WIDE);
        if wide == 0 || alike.count() * TOLD_APART <= taken {
            let mut all = [i16::MAX; NARROW];
            all.iter_mut().zip(&numbers[..taken]).for_each(|(slot, number)| *slot = kept(number));
            return (Leaf::Narrow { first, shift, kept: all }, taken);
        }
        let shift = self::shift(&numbers[..wide], i32::MAX as u64);
        let mut all = [i32::MAX; WIDE];
        let kept = |number: &u64| ((number - numbers[0]) >> shift) as i32;
        all.iter_mut().zip(&numbers[..wide]).for_each(|(slot, number)| *slot = kept(number));
        (Leaf::Wide { first, shift, kept: all }, wide)
    }

    /// Where a number is that is `above` the lowest by so much.
    #[inline]
    pub(super) fn find(&self, above: u64) -> Found {
        match self {
            Leaf::Narrow { first, shift, kept } => {
                let number = (above >> shift).min(i16::MAX as u64 - 1) as i16;
                // Four sums side by side, which the compiler keeps in one register.
                let mut below = [0i16; 4];
                for four in kept.as_chunks::<4>().0 {
                    below.iter_mut().zip(four).for_each(|(below, kept)| *below += i16::from(*kept < number));
                }
                ranked(kept, *first as usize, below.iter().sum::<i16>() as usize, number)
            }
            Leaf::Wide { first, shift, kept } => {
                let number = (above >> shift).min(i32::MAX as u64 - 1) as i32;
                let below: i32 = kept.iter().map(|kept| i32::from(*kept < number)).sum();
                ranked(kept, *first as usize, below as usize, number)
            }
            Leaf::Alike { first, count, .. } if above > 0 => Found::Rank((first + count) as usize),
            Leaf::Alike { level: Some(level), .. } => Found::Level(*level),
            Leaf::Alike { first, count, level: None } => {
                Found::Among(*first as usize, (first + count) as usize)
            }
        }
    }
}

/// When `below` of what is kept is below `number`.
#[inline]
fn ranked<N: PartialEq>(kept: &[N], first: usize, below: usize, number: N) -> Found {
    if kept.get(below) != Some(&number) {
        return Found::Rank(first + below);
    }
    let met = kept[below..].iter().take_while(|slot| **slot == number).count();
    Found::Among(first + below, first + below + met)
}

/// As many of the numbers as fit, but never one without the others that are the same.
fn whole(numbers: &[u64], room: usize) -> usize {
    match numbers.get(room) {
        None => numbers.len(),
        Some(next) => numbers[..room].partition_point(|number| number < next),
    }
}

/// How many low bits to leave out, so that the rest is below the two highest values: `filling`, and what stands for
/// everything further up.
fn shift(numbers: &[u64], filling: u64) -> u8 {
    let span = numbers[numbers.len() - 1] - numbers[0];
    (0..64).find(|shift| span >> shift < filling - 1).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_leaf_is_one_cache_line() {
        assert_eq!((size_of::<Leaf>(), align_of::<Leaf>()), (64, 64));
    }

    #[test]
    fn numbers_that_15_bits_do_not_tell_apart_get_31() {
        let even: Vec<u64> = (0..40).map(|i| i << 40).collect();
        assert!(matches!(Leaf::build(7, &even), (Leaf::Narrow { first: 7, shift: 30, .. }, NARROW)));
        let skewed: Vec<u64> = (0..40).map(|i| (i % 14) << 8 | (i / 14) << 40).collect();
        assert!(matches!(Leaf::build(7, &skewed), (Leaf::Wide { first: 7, .. }, WIDE)));
    }

    proptest! {
        #[test]
        fn what_a_leaf_says_is_true(
            mut numbers in prop::collection::vec((0u64..6, 0u32..64).prop_map(|(n, up)| n << up), 1..60),
            probes in prop::collection::vec((0u64..9, 0u32..64).prop_map(|(n, up)| n << up), 1..60),
        ) {
            numbers.sort_unstable();
            numbers.dedup();
            let (leaf, taken) = Leaf::build(100, &numbers);
            prop_assert!(taken > 0);
            let near = numbers.iter().flat_map(|n| [n.saturating_sub(1), *n, n.saturating_add(1)]);
            for probe in near.chain(probes).filter(|probe| *probe >= numbers[0]) {
                let rank = numbers[..taken].partition_point(|number| *number <= probe);
                match leaf.find(probe - numbers[0]) {
                    Found::Rank(found) => prop_assert_eq!(found, 100 + rank),
                    Found::Among(from, to) => prop_assert!(from <= 100 + rank && 100 + rank <= to),
                    Found::Level(_) => prop_assert!(false),
                }
            }
        }
    }
}
