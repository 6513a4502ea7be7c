//! Sorts a range that is larger than the memory for it.
//!
//! ```text
//!  batches ─► records, up to the memory ─► sorted runs in a temporary file ─► merged, some at a time ─► SortedFile
//! ```
//!
//! The order is that of [`Placed`]: the key, the input partition, the place in the attempt. No two records of a range have the
//! same, so every memory gives the same bytes. While runs are merged, one record and the keys of the runs' first ones are in
//! memory.
//!
//! What was not done: the sorter of `partage_engine`, which datasets use, orders by a rank and keeps the last of equal keys.
//! Here all are kept, and nearly all of a range may have one key.

use super::sorted_file::{Front, RecordsOut, SortedFile, SortedOut, Walk};
use crate::limits::{RUN_MEMORY_BYTES, RUNS_AT_ONCE, SORT_LOOK_RECORDS};
use partage_service::shuffle::plan::Placed;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// Records that wait to be sorted, and the runs so far.
#[derive(Debug)]
pub(super) struct Sorter {
    folder: PathBuf,
    most_bytes: u64,
    waiting: Vec<Placed>,
    bytes: u64,
    spill: Option<RecordsOut>,
    runs: Vec<Range<u64>>,
    sizes: (u64, u64),
}

impl Sorter {
    /// Of about so many records and bytes, in so much memory.
    pub(super) fn new(folder: PathBuf, most_bytes: u64, (records, bytes): (u64, u64)) -> Sorter {
        // A vector that grows would have its records twice for a moment; sorting it takes no memory besides.
        let each = Placed::AROUND + bytes / records.max(1);
        let expected = records.min(most_bytes / each).saturating_add(1);
        let waiting = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
        Sorter { folder, most_bytes, waiting, bytes: 0, spill: None, runs: Vec::new(), sizes: (0, 0) }
    }

    /// One more record.
    pub(super) fn add(&mut self, one: Placed) -> io::Result<()> {
        let bytes = one.memory();
        let is_full = self.bytes + bytes > self.most_bytes || self.waiting.len() == self.waiting.capacity();
        if is_full && !self.waiting.is_empty() {
            self.spill()?;
        }
        self.bytes += bytes;
        let (records, sum) = self.sizes;
        self.sizes = (records + 1, sum + (one.key.len() + one.value.len()) as u64);
        self.waiting.push(one);
        Ok(())
    }

    /// Records and bytes so far.
    pub(super) fn sizes(&self) -> (u64, u64) {
        self.sizes
    }

    fn spill(&mut self) -> io::Result<()> {
        let spill = match &mut self.spill {
            Some(spill) => spill,
            None => self.spill.insert(RecordsOut::new(&self.folder)?),
        };
        self.waiting.sort_unstable();
        let begin = spill.length;
        self.waiting.drain(..).try_for_each(|one| spill.add_placed(&one))?;
        self.runs.push(begin..spill.length);
        self.bytes = 0;
        Ok(())
    }

    /// All of them in order. None: it was not to go on.
    pub(super) fn finish(mut self, goes_on: &dyn Fn() -> bool) -> io::Result<Option<SortedFile>> {
        self.spill()?;
        let Sorter { folder, most_bytes, waiting, spill, mut runs, .. } = self;
        // Merging has the memory now.
        drop(waiting);
        let Some(spill) = spill else { return Ok(None) };
        let mut file = spill.into_file()?;
        let at_once = usize::try_from(most_bytes / RUN_MEMORY_BYTES).unwrap_or(RUNS_AT_ONCE);
        let at_once = at_once.clamp(2, RUNS_AT_ONCE);
        while runs.len() > at_once {
            let (mut out, mut merged) = (RecordsOut::new(&folder)?, Vec::new());
            for some in runs.chunks(at_once) {
                let begin = out.length;
                let take = &mut |front: &Front, value: &[u8]| out.add(&front.key, front.rank, value);
                if !merge(&file, some, goes_on, take)? {
                    return Ok(None);
                }
                merged.push(begin..out.length);
            }
            (file, runs) = (out.into_file()?, merged);
        }
        let mut sorted = SortedOut::new(&folder)?;
        let is_whole = merge(&file, &runs, goes_on, &mut |front, value| sorted.add(front, value))?;
        if is_whole { sorted.finish().map(Some) } else { Ok(None) }
    }
}

/// Gives out the records of some runs in order. False: it was not to go on.
fn merge(
    file: &File,
    runs: &[Range<u64>],
    goes_on: &dyn Fn() -> bool,
    take: &mut dyn FnMut(&Front, &[u8]) -> io::Result<()>,
) -> io::Result<bool> {
    let mut walks: Vec<Walk<'_>> = runs.iter().map(|run| Walk::new(file, run.start, run.end)).collect();
    let mut fronts = BinaryHeap::with_capacity(walks.len());
    for (run, walk) in walks.iter_mut().enumerate() {
        let mut front = Front::default();
        if walk.next(&mut front)? {
            fronts.push(Reverse((front, run)));
        }
    }
    let (mut value, mut count) = (Vec::new(), 0_u64);
    while let Some(mut top) = fronts.peek_mut() {
        if count.is_multiple_of(SORT_LOOK_RECORDS) && !goes_on() {
            return Ok(false);
        }
        count += 1;
        // Records of one run often follow each other: then the heap has little to do.
        let Reverse((front, run)) = &mut *top;
        let walk = &mut walks[*run];
        walk.value(front, &mut value)?;
        take(front, &value)?;
        if !walk.next(front)? {
            PeekMut::pop(top);
        }
    }
    Ok(true)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use bytes::Bytes;
    use partage_service::shuffle::ShuffleId;
    use partage_service::shuffle::holder::Slice;
    use partage_service::shuffle::ordered_records::OrderedRecords;
    use partage_service::shuffle::plan::Plan;
    use proptest::prelude::*;
    use std::path::Path;
    use std::sync::Arc;

    pub(in crate::node::reading) fn placed(key: &[u8], partition: u32, value: &[u8]) -> Placed {
        let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        Placed { key, partition, frame: 1, index: 0, value }
    }

    pub(in crate::node::reading) fn file_of(
        folder: &Path,
        most_bytes: u64,
        records: Vec<Placed>,
    ) -> SortedFile {
        let mut sorter = Sorter::new(folder.to_owned(), most_bytes, (records.len() as u64, 0));
        records.into_iter().for_each(|one| sorter.add(one).unwrap());
        sorter.finish(&|| true).unwrap().unwrap()
    }

    pub(in crate::node::reading) fn slice(
        keys: Option<(Vec<u8>, Option<Vec<u8>>)>,
        from: u64,
        to: u64,
    ) -> Slice {
        let (winners, needed) = Default::default();
        let plan = Arc::new(Plan { shuffle: ShuffleId(1), winners, needed, ranges: Vec::new() });
        let keys = keys.map(|(first, end)| (first.into(), end.map(Into::into)));
        Slice { plan, range: 0, keys, from, to }
    }

    /// Few keys, so that many records have the same, and values of up to 90 bytes.
    pub(in crate::node::reading) fn records() -> impl Strategy<Value = Vec<Placed>> {
        let one = (prop::collection::vec(0_u8..3, 0..3), 0_u32..4, prop::collection::vec(any::<u8>(), 0..90));
        prop::collection::vec(one, 0..700).prop_map(|all| {
            let numbered = all.into_iter().enumerate();
            let one = |(at, (key, partition, value)): (usize, (Vec<u8>, u32, Vec<u8>))| Placed {
                // The same numbers with some other ones between them, in no order.
                frame: (at as u64 * 7_919) % 1_009 / 3,
                index: at as u32,
                ..placed(&key, partition, &value)
            };
            numbered.map(one).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn r1_any_memory_gives_the_same_records(
            records in records(),
            most_bytes in 1_u64..200_000,
            keys in prop::option::of((
                prop::collection::vec(0_u8..3, 0..3),
                prop::option::of(prop::collection::vec(0_u8..4, 0..3)),
            )),
            (from, length) in (0_u64..800, 0_u64..800),
            answer_bytes in 1_u64..40_000,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let file = file_of(folder.path(), most_bytes, records.clone());
            let mut sorted = records;
            sorted.sort();
            let asked = slice(keys, from, from + length);
            let expected = asked.of(&OrderedRecords::of(&sorted).unwrap());
            prop_assert_eq!(&file.slice(&asked, u64::MAX).unwrap(), &expected);
            // The same in answers that are bounded.
            let (mut read, mut at) = (Vec::new(), from);
            loop {
                let some = file.slice(&Slice { from: at, ..asked.clone() }, answer_bytes).unwrap();
                prop_assert!(some.len() <= 1 || some.memory() <= answer_bytes);
                if some.is_empty() {
                    break;
                }
                at += some.len() as u64;
                read.extend(some.placed());
            }
            prop_assert_eq!(read, expected.placed().collect::<Vec<_>>());
            // Without names.
            prop_assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn r1_no_more_records_wait_than_the_memory_has() {
        let folder = tempfile::tempdir().unwrap();
        let most = 10_000;
        // It is told of far fewer, and of none.
        for expected in [(5, 0), (0, 0), (u64::MAX, u64::MAX)] {
            let mut sorter = Sorter::new(folder.path().to_owned(), most, expected);
            for at in 0..1_000_u32 {
                sorter.add(placed(&at.to_be_bytes(), at, &[7; 100])).unwrap();
                let memory: u64 = sorter.waiting.iter().map(Placed::memory).sum();
                assert!(memory <= most && memory == sorter.bytes, "{memory} bytes");
            }
            sorter.add(placed(b"large", 7, &[7; 20_000])).unwrap();
            assert_eq!(sorter.waiting.len(), 1, "one is always taken, alone");
            assert_eq!(sorter.sizes(), (1_001, 1_000 * 104 + 20_005));
            let file = sorter.finish(&|| true).unwrap().unwrap();
            assert_eq!(file.slice(&slice(None, 0, u64::MAX), u64::MAX).unwrap().len(), 1_001);
        }
    }

    #[test]
    fn a_sort_that_is_not_wanted_any_more_ends() {
        let folder = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::new(folder.path().to_owned(), 1 << 20, (1, 1));
        sorter.add(placed(b"k", 1, b"v")).unwrap();
        assert!(sorter.finish(&|| false).unwrap().is_none());
    }
}
