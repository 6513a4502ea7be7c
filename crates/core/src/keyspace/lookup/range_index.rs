//! The owner of a key among up to millions of key ranges.
//!
//! The way one finds a word in a dictionary: most words are told apart by their first letters, as numbers
//! are; only where several entries begin alike does one read on. Of each begin eight bytes become a number
//! (big-endian, so numbers sort as bytes do). What all begins share at their start is compared once and
//! left out of the numbers.
//!
//! ```text
//!  number of the key ──► RadixTable, or SearchTree where begins crowd ──► Leaf ──► position
//!                        which leaf: small, in the second cache           one line of up to 28 begins
//! ```
//!
//! A [`Leaf`] keeps a few bits of each number. A key that meets one in all of those is compared with its begins in
//! full, by binary search. Where many begins have the same number (`python3-…`) they get a level of
//! their own, made the same way of the bytes that follow. So skewed keys cost a few levels more, not a scan.
//!
//! A begin shorter than eight bytes is filled up with zeros, so it may share its number with longer ones;
//! the full comparison tells them apart.
//!
//! Memory for n begins: their bytes, 4n for their ends, and 3 (begins spread evenly) to 6 for each begin
//! ([`RangeIndex::memory_bytes`] has the exact figure). A lookup touches only the last part of it,
//! unless it has to compare in full. Not here: compressed or succinct forms of the begins, as a map has them
//! in memory anyway and a request pays for every step.

use super::leaf::{Found, Leaf, NARROW};
use super::radix_table::{NEAR, RadixTable};
use super::search_tree::SearchTree;
use crate::limits;

/// Bytes of a begin that become its number.
const WORD: usize = 8;

/// Most begins with the same number that are told apart by comparing them in full; more have a level of their
/// own, which costs some 300 bytes, while sixteen begins take four comparisons in neighbouring memory.
const MOST_ALIKE: usize = 16;

/// Why a list of begins cannot be looked up in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeIndexError {
    /// The first range does not begin at the lowest key, or there is none.
    #[error(
        "the ranges do not begin at the lowest key: the first begin must be empty, so that every key has an owner"
    )]
    Uncovered,
    /// A begin that is not above the one before it.
    #[error("range {at} begins at \"{}\", not above the one before it: sort them", begin.escape_ascii())]
    Unsorted {
        /// The position of the range in the list, from 0.
        at: usize,
        /// The begin of that range.
        begin: Vec<u8>,
    },
    /// The list has more than [`limits::SHARDS`] ranges.
    #[error("more than {max} ranges are too many", max = limits::SHARDS)]
    TooMany,
    /// A begin longer than [`limits::KEY_BYTES`].
    #[error("range {at} begins with a key of {bytes} bytes: the limit is {max}", max = limits::KEY_BYTES)]
    TooLong {
        /// The position of the range in the list, from 0.
        at: usize,
        /// The length of its begin.
        bytes: usize,
    },
    /// All begins together have more bytes than a 32-bit number counts.
    #[error("the begins have more than 4 GiB together: shorten them, or use fewer ranges")]
    TooManyBytes,
}

/// All begins, end to end.
#[derive(Debug, Clone, Default)]
struct Begins {
    bytes: Vec<u8>,
    /// For each, where its bytes end.
    ends: Vec<u32>,
}

impl Begins {
    fn get(&self, at: usize) -> &[u8] {
        let begin = if at == 0 { 0 } else { self.ends[at - 1] as usize };
        &self.bytes[begin..self.ends[at] as usize]
    }

    fn push(&mut self, begin: &[u8]) -> Result<(), RangeIndexError> {
        let at = self.ends.len() + 1; // The empty begin is not kept.
        if at >= limits::SHARDS {
            return Err(RangeIndexError::TooMany);
        }
        if begin.len() > limits::KEY_BYTES {
            return Err(RangeIndexError::TooLong { at, bytes: begin.len() });
        }
        let before: &[u8] = if self.ends.is_empty() { b"" } else { self.get(self.ends.len() - 1) };
        if before >= begin {
            return Err(RangeIndexError::Unsorted { at, begin: begin.to_vec() });
        }
        self.bytes.extend_from_slice(begin);
        self.ends.push(u32::try_from(self.bytes.len()).map_err(|_| RangeIndexError::TooManyBytes)?);
        Ok(())
    }
}

/// A stretch of begins that have their first bytes in common.
#[derive(Debug, Clone)]
struct Level {
    /// The position of its first begin.
    first: usize,
    /// How many begins it has.
    count: usize,
    /// How many bytes, from the start of the key, were compared on the way here.
    known: usize,
    /// What all its begins have in common after those.
    common: Box<[u8]>,
    /// The lowest number of each leaf.
    lowest: SearchTree,
    /// A short cut to them.
    radix_table: RadixTable,
    leaves: Vec<Leaf>,
}

/// The bytes of a key after the first `known`. Equal numbers mean equal bytes but for zeros at the end, so a
/// key that is too short to have all `known` bytes sorts before those that do, as it should.
#[inline]
fn after(key: &[u8], known: usize) -> &[u8] {
    key.get(known..).unwrap_or_default()
}

/// The first eight bytes as a number that sorts as they do, filled up with zeros.
#[inline]
fn number(rest: &[u8]) -> u64 {
    if let Some(word) = rest.first_chunk::<WORD>() {
        return u64::from_be_bytes(*word);
    }
    // Of four to seven bytes, the first four and the last four, moved to where they belong.
    if let (Some(start), Some(end)) = (rest.first_chunk(), rest.last_chunk()) {
        let end = u64::from(u32::from_be_bytes(*end)) << (8 * (WORD - rest.len()));
        return u64::from(u32::from_be_bytes(*start)) << 32 | end;
    }
    (0..WORD).fold(0, |number, at| number << 8 | u64::from(rest.get(at).copied().unwrap_or(0)))
}

/// What follows `common`, if the key begins so. Nothing in common is the usual case, and a call to compare it.
#[inline]
fn strip<'a>(rest: &'a [u8], common: &[u8]) -> Option<&'a [u8]> {
    if common.is_empty() { Some(rest) } else { rest.strip_prefix(common) }
}

/// The start that both have.
fn common<'a>(a: &'a [u8], b: &[u8]) -> &'a [u8] {
    &a[..a.iter().zip(b).take_while(|(x, y)| x == y).count()]
}

impl Level {
    /// Of `count` begins from position `first` on.
    fn build(begins: &Begins, first: usize, count: usize, known: usize) -> Level {
        let rest = |at: usize| after(begins.get(at), known);
        let common = if count == 0 { &[][..] } else { common(rest(first), rest(first + count - 1)) };
        let numbers: Vec<u64> = (first..first + count).map(|at| number(&rest(at)[common.len()..])).collect();
        let (mut lowest, mut leaves) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < count {
            let (leaf, taken) = Level::leaf(first + at, &numbers[at..]);
            lowest.push(numbers[at]);
            leaves.push(leaf);
            at += taken;
        }
        leaves.shrink_to_fit();
        let (radix_table, lowest) = (RadixTable::build(&lowest), SearchTree::build(&lowest));
        Level { first, count, known, common: common.into(), lowest, radix_table, leaves }
    }

    /// The next leaf: of the many begins that have the first number, or of those up to the next such number.
    fn leaf(first: usize, numbers: &[u64]) -> (Leaf, usize) {
        let count = numbers.partition_point(|number| *number == numbers[0]);
        if count > MOST_ALIKE {
            return (Leaf::Alike { first: first as u32, count: count as u32, level: None }, count);
        }
        let next = numbers.iter().take(NARROW + 1);
        let many = next.zip(numbers.get(MOST_ALIKE..).unwrap_or_default()).position(|(a, b)| a == b);
        Leaf::build(first, &numbers[..many.unwrap_or(numbers.len())])
    }

    /// The last leaf whose lowest number is at most `number`, and that number.
    #[inline]
    fn floor(&self, number: u64) -> Option<(usize, u64)> {
        let Some((from, to)) = self.radix_table.near(number) else { return self.lowest.floor(number) };
        let (mut at, mut lowest) = (from, self.lowest.get(from)?);
        for next in 1..=NEAR {
            let next = (from + next).min(to);
            let candidate = self.lowest.get(next)?;
            let reached = candidate <= number;
            at = if reached { next } else { at };
            lowest = if reached { candidate } else { lowest };
        }
        Some((at, lowest))
    }

    /// Levels for the leaves whose begins have one number, the first of which will be level `next`.
    fn deeper(&mut self, begins: &Begins, next: usize) -> Vec<Level> {
        let mut levels = Vec::new();
        let known = self.known + self.common.len() + WORD;
        for leaf in &mut self.leaves {
            if let Leaf::Alike { first, count, level } = leaf
                // When these are all, they differ only in zeros at the end; one more level would too.
                && (*count as usize) < self.count
            {
                *level = Some((next + levels.len()) as u32);
                levels.push(Level::build(begins, *first as usize, *count as usize, known));
            }
        }
        levels
    }
}

/// Key ranges that cover the keyspace, each from its begin to the next one's.
#[derive(Debug, Clone)]
pub struct RangeIndex {
    begins: Begins,
    /// The first is the one to start with.
    levels: Vec<Level>,
}

impl RangeIndex {
    /// From the begin of each range, in order; the first of all is the empty key.
    pub fn build<'a>(begins: impl IntoIterator<Item = &'a [u8]>) -> Result<RangeIndex, RangeIndexError> {
        let mut given = begins.into_iter();
        if given.next().is_none_or(|first| !first.is_empty()) {
            return Err(RangeIndexError::Uncovered);
        }
        let mut begins = Begins::default();
        given.try_for_each(|begin| begins.push(begin))?;
        begins.bytes.shrink_to_fit();
        begins.ends.shrink_to_fit();
        let mut levels = vec![Level::build(&begins, 0, begins.ends.len(), 0)];
        let mut at = 0;
        while at < levels.len() {
            let next = levels.len();
            let deeper = levels[at].deeper(&begins, next);
            levels.extend(deeper);
            at += 1;
        }
        levels.shrink_to_fit();
        Ok(RangeIndex { begins, levels })
    }

    /// Position of the range that holds `key`: as the empty begin is left out, the count of begins that are
    /// not above the key.
    #[inline]
    pub fn find(&self, key: &[u8]) -> usize {
        let mut level = &self.levels[0];
        loop {
            let rest = after(key, level.known);
            let Some(rest) = strip(rest, &level.common) else {
                return level.first + if rest < &*level.common { 0 } else { level.count };
            };
            let number = number(rest);
            let Some((at, lowest)) = level.floor(number) else { return level.first };
            match level.leaves[at].find(number - lowest) {
                Found::Rank(rank) => return rank,
                Found::Among(from, to) => return self.among(from, to, key),
                Found::Level(deeper) => level = &self.levels[deeper as usize],
            }
        }
    }

    /// How many begins are not above the key, when those before `from` are not and those from `to` on are.
    fn among(&self, mut from: usize, mut to: usize, key: &[u8]) -> usize {
        while from < to {
            let middle = from.midpoint(to);
            if self.begins.get(middle) <= key {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }

    /// How many ranges there are.
    pub fn ranges(&self) -> usize {
        self.begins.ends.len() + 1
    }

    /// How many bytes of memory the whole index takes.
    pub fn memory_bytes(&self) -> usize {
        let level = |level: &Level| {
            size_of::<Level>() - size_of::<SearchTree>()
                + level.lowest.memory_bytes()
                + level.radix_table.memory_bytes()
                + level.common.len()
                + level.leaves.capacity() * size_of::<Leaf>()
        };
        let begins = self.begins.bytes.capacity() + self.begins.ends.capacity() * size_of::<u32>();
        size_of::<RangeIndex>() + begins + self.levels.iter().map(level).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::hash::mix;
    use proptest::prelude::*;

    fn check(mut keys: Vec<Vec<u8>>, probes: &[Vec<u8>]) {
        keys.push(Vec::new());
        keys.sort();
        keys.dedup();
        let index = RangeIndex::build(keys.iter().map(Vec::as_slice)).unwrap();
        assert_eq!(index.ranges(), keys.len());
        for key in keys.iter().chain(probes) {
            let mut near = vec![key.clone(), [key, &b"\0"[..]].concat(), [key, &b"\xff"[..]].concat()];
            if let Some((last, start)) = key.split_last() {
                near.push(start.to_vec());
                near.push([start, &[last.wrapping_sub(1), 0xff]].concat());
                near.push([start, &[last.wrapping_add(1)]].concat());
            }
            for probe in near {
                let expected = keys.partition_point(|begin| *begin <= probe) - 1;
                assert_eq!(index.find(&probe), expected, "\"{}\"", probe.escape_ascii());
            }
        }
    }

    #[test]
    fn one_range_holds_every_key() {
        check(vec![], &[vec![0], vec![0xff; 20]]);
    }

    #[test]
    fn long_runs_have_levels_of_their_own() {
        let names = (0..3_000u64).map(|i| format!("python3-{}-{}", i % 7, mix(i) % 10_000).into_bytes());
        let others = (0..50u64).map(|i| format!("lib{i}").into_bytes());
        let keys: Vec<Vec<u8>> = names.chain(others).collect();
        check(keys.clone(), &[b"python3".to_vec(), b"python3-".to_vec(), b"python4".to_vec()]);
        let mut sorted = keys;
        sorted.push(vec![]);
        sorted.sort();
        sorted.dedup();
        let index = RangeIndex::build(sorted.iter().map(Vec::as_slice)).unwrap();
        assert!(index.levels.len() > 1, "{} levels", index.levels.len());
    }

    #[test]
    fn crowds_between_begins_that_are_spread_evenly_are_found() {
        let even = (0..8_000u64).map(|i| mix(i).to_be_bytes().to_vec());
        let crowd = (0..4_000u64).map(|i| format!("node-{:x}", mix(i) % 60_000).into_bytes());
        check(even.chain(crowd).collect(), &[b"node-".to_vec(), b"node-~".to_vec()]);
    }

    #[test]
    fn a_common_start_is_left_out() {
        let keys: Vec<Vec<u8>> = (0..500).map(|i| format!("https://example.org/{i}").into_bytes()).collect();
        check(
            keys,
            &[
                b"https://example.com".to_vec(),
                b"https://example.org/".to_vec(),
                b"i".to_vec(),
                b"a".to_vec(),
            ],
        );
    }

    #[test]
    fn begins_that_differ_in_zeros_at_the_end_are_told_apart() {
        let keys = (0..300).map(|zeros| [&b"ab"[..], &vec![0; zeros]].concat()).collect();
        check(keys, &[b"ab\0\0\x01".to_vec()]);
    }

    #[test]
    fn keys_of_the_highest_bytes_are_found() {
        check((0..40).map(|length| vec![0xff; length]).collect(), &[vec![0xff; 60], vec![0xfe; 60]]);
    }

    #[test]
    fn bad_lists_are_refused_with_their_place() {
        let error = |begins: &[&[u8]]| RangeIndex::build(begins.iter().copied()).unwrap_err();
        assert_eq!(error(&[]), RangeIndexError::Uncovered);
        assert_eq!(error(&[b"a"]), RangeIndexError::Uncovered);
        let unsorted = |at, begin: &[u8]| RangeIndexError::Unsorted { at, begin: begin.to_vec() };
        assert_eq!(error(&[b"", b""]), unsorted(1, b""));
        assert_eq!(error(&[b"", b"b", b"a"]), unsorted(2, b"a"));
        assert_eq!(error(&[b"", b"b", b"b"]), unsorted(2, b"b"));
        let bytes = limits::KEY_BYTES + 1;
        assert_eq!(error(&[b"", &vec![1; bytes]]), RangeIndexError::TooLong { at: 1, bytes });
        assert!(RangeIndex::build([&b""[..], &vec![1; bytes - 1]]).is_ok());
    }

    fn keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
        // Few different bytes and shared starts make runs, levels and zeros at the end.
        let byte = prop_oneof![Just(0u8), Just(b'a'), Just(b'b'), Just(0xff)];
        let start = prop_oneof![Just(&b""[..]), Just(&b"python3-"[..]), Just(&b"\0\0\0\0\0\0\0\0\0\0"[..])];
        let key =
            (start, prop::collection::vec(byte, 0..20)).prop_map(|(start, rest)| [start, &rest].concat());
        prop::collection::vec(key, 0..300)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn binary_search_agrees(begins in keys(), probes in keys()) {
            check(begins, &probes);
        }
    }
}
