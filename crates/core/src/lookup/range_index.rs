//! The owner of a key among up to millions of key ranges.
//!
//! The way one finds a word in a dictionary: most words are told apart by their first letters, as numbers
//! are; only where several entries begin alike does one read on. Of each begin eight bytes become a number
//! (big-endian, so numbers sort as bytes do), and the numbers a [`SearchTree`]. What all begins share at
//! their start is compared once and left out of the numbers. Begins with the same number form a *run*; a
//! key that meets a run is compared with the run's begins in full, by binary search, or, where a run is
//! long (`python3-…`), in a level of its own, made the same way of the bytes that follow. So skewed keys cost a
//! few levels more, not a scan.
//!
//! A begin shorter than eight bytes is filled up with zeros, so it may share its number with longer ones;
//! the full comparison tells them apart.
//!
//! Memory for n begins: their bytes, 4n for their ends, about 8.5 for each different number, and 8 for each of
//! those if any two begins share one ([`RangeIndex::memory_bytes`] has the exact figure). Not here:
//! compressed or succinct forms, as a map has its begins in memory anyway and a request pays for every step.

use super::search_tree::SearchTree;
use crate::limits;

/// Bytes of a begin that become its number.
const WORD: usize = 8;

/// Longest run searched by comparing keys; a longer one has a level of its own. A level costs some 200
/// bytes, sixteen begins take four comparisons in neighbouring memory.
const LONGEST_RUN: usize = 16;

/// A run without a level of its own.
const NO_LEVEL: u32 = u32::MAX;

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
        /// Its position.
        at: usize,
        /// Where it begins.
        begin: Vec<u8>,
    },
    /// More than [`limits::SHARDS`].
    #[error("more than {max} ranges are too many", max = limits::SHARDS)]
    TooMany,
    /// A begin longer than [`limits::KEY_BYTES`].
    #[error("range {at} begins with a key of {bytes} bytes: the limit is {max}", max = limits::KEY_BYTES)]
    TooLong {
        /// Its position.
        at: usize,
        /// Its length.
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

/// Begins with the same number.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// How many begins of the level come before it.
    before: u32,
    /// The level that tells its begins apart, or [`NO_LEVEL`].
    level: u32,
}

/// A stretch of begins that have their first bytes in common.
#[derive(Debug, Clone)]
struct Level {
    /// How many begins come before it in all.
    before: usize,
    /// How many begins it has.
    count: usize,
    /// How many bytes, from the start of the key, were compared on the way here.
    known: usize,
    /// What all its begins have in common after those.
    common: Box<[u8]>,
    /// The different numbers of its begins.
    numbers: SearchTree,
    /// For each number, its run, and one more at the end; empty when every run is one begin.
    runs: Vec<Run>,
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
    match rest.first_chunk::<WORD>() {
        Some(word) => u64::from_be_bytes(*word),
        None => (0..WORD).fold(0, |number, at| number << 8 | u64::from(rest.get(at).copied().unwrap_or(0))),
    }
}

fn common_length(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

impl Level {
    fn build(begins: &Begins, before: usize, count: usize, known: usize) -> Level {
        let rest = |at: usize| after(begins.get(before + at), known);
        let common = if count == 0 { 0 } else { common_length(rest(0), rest(count - 1)) };
        let (mut numbers, mut runs) = (Vec::new(), Vec::new());
        for at in 0..count {
            let number = number(&rest(at)[common..]);
            if numbers.last() != Some(&number) {
                numbers.push(number);
                runs.push(Run { before: at as u32, level: NO_LEVEL });
            }
        }
        runs.push(Run { before: count as u32, level: NO_LEVEL });
        if numbers.len() == count {
            runs = Vec::new();
        }
        let common = if count == 0 { Box::default() } else { rest(0)[..common].into() };
        Level { before, count, known, common, numbers: SearchTree::build(&numbers), runs }
    }

    /// Levels for its long runs, the first of which will be level `next`.
    fn deeper(&mut self, begins: &Begins, next: usize) -> Vec<Level> {
        let mut levels = Vec::new();
        let known = self.known + self.common.len() + WORD;
        for i in 1..self.runs.len() {
            let (from, to) = (self.runs[i - 1].before as usize, self.runs[i].before as usize);
            // A run that is all of the level differs only in zeros at the end; one more level would too.
            if to - from > LONGEST_RUN && to - from < self.count {
                self.runs[i - 1].level = (next + levels.len()) as u32;
                levels.push(Level::build(begins, self.before + from, to - from, known));
            }
        }
        levels
    }

    /// The run at position `at` among the numbers: its first begin, the begin after it, its level.
    #[inline]
    fn run(&self, at: usize) -> (usize, usize, u32) {
        match self.runs.get(at..at + 2) {
            Some([run, next]) => (run.before as usize, next.before as usize, run.level),
            _ => (at, at + 1, NO_LEVEL),
        }
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
            let Some(rest) = rest.strip_prefix(&*level.common) else {
                return level.before + if rest < &*level.common { 0 } else { level.count };
            };
            let (rank, met) = level.numbers.find(number(rest));
            if !met {
                return level.before
                    + if level.runs.is_empty() { rank } else { level.runs[rank].before as usize };
            }
            let (from, to, deeper) = level.run(rank - 1);
            if deeper == NO_LEVEL {
                return self.among(level.before + from, level.before + to, key);
            }
            level = &self.levels[deeper as usize];
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

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        let level = |level: &Level| {
            size_of::<Level>() - size_of::<SearchTree>()
                + level.numbers.memory_bytes()
                + level.common.len()
                + level.runs.capacity() * size_of::<Run>()
        };
        let begins = self.begins.bytes.capacity() + self.begins.ends.capacity() * size_of::<u32>();
        size_of::<RangeIndex>() + begins + self.levels.iter().map(level).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::mix;
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
