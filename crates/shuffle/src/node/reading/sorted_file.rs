//! The records of a range, in order, on disk: so that a range that is larger than its memory is sorted once, and read in slices.
//!
//! ```text
//! records  head: checksum of the rest of it and of the key 4 | that of the value 4 | partition 4 | length of the key 4
//!                | frame 8 | place 8 | length of the value 4;   then key | value                        for each, in order
//! marks    offset of every 64th record 8 | keys and values before it 8 | checksum of its number and of these 4
//! ```
//!
//! Both are temporary files without a name: nothing is left of them when the process is killed, and they are never synced. What
//! comes back changed from the disk is an error, and no record. Whoever searches reads marks, and heads and keys near to what is
//! sought: a question takes as long in a range of any length.

use crate::limits::{FILE_CUTS_AT_ONCE, KEY_LOOK_BYTES, MARKED_RECORDS, RUN_BUFFER_BYTES};
use partage_service::shuffle::Bytes;
use partage_service::shuffle::holder::Slice;
use partage_service::shuffle::ordered::Ordered;
use partage_service::shuffle::ordered_records::{OrderedBuilder, OrderedRecord, OrderedRecords};
use partage_service::shuffle::partition::CutAt;
use partage_service::shuffle::plan::Placed;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

const HEAD: usize = 36;
const MARK: u64 = 20;

fn damaged(at: u64) -> io::Error {
    let why =
        format!("a temporary file of sorted records is not as it was written at byte {at}: look at the disk");
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    found.map_or(0, |found| u32::from_le_bytes(*found))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The place of a record among those of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Rank {
    partition: u32,
    frame: u64,
    index: u64,
}

/// A record whose value is still in the file. Fields in the order of comparison.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Front {
    pub(super) key: Vec<u8>,
    pub(super) rank: Rank,
    value_at: u64,
    value_bytes: usize,
    value_crc: u32,
}

impl Front {
    /// The bytes of its key and value.
    fn bytes(&self) -> u64 {
        (self.key.len() + self.value_bytes) as u64
    }
}

/// Records that are written one behind the other.
#[derive(Debug)]
pub(super) struct RecordsOut {
    file: BufWriter<File>,
    /// Bytes so far.
    pub(super) length: u64,
}

impl RecordsOut {
    pub(super) fn new(folder: &Path) -> io::Result<RecordsOut> {
        let file = BufWriter::with_capacity(RUN_BUFFER_BYTES, tempfile::tempfile_in(folder)?);
        Ok(RecordsOut { file, length: 0 })
    }

    pub(super) fn add(&mut self, key: &[u8], rank: Rank, value: &[u8]) -> io::Result<()> {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(io::Error::other);
        let mut head = [0; HEAD];
        head[4..8].copy_from_slice(&crc32c::crc32c(value).to_le_bytes());
        head[8..12].copy_from_slice(&rank.partition.to_le_bytes());
        head[12..16].copy_from_slice(&length(key)?.to_le_bytes());
        head[16..24].copy_from_slice(&rank.frame.to_le_bytes());
        head[24..32].copy_from_slice(&rank.index.to_le_bytes());
        head[32..].copy_from_slice(&length(value)?.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head[4..]), key);
        head[..4].copy_from_slice(&crc.to_le_bytes());
        for part in [&head[..], key, value] {
            self.file.write_all(part)?;
        }
        self.length += (HEAD + key.len() + value.len()) as u64;
        Ok(())
    }

    pub(super) fn add_placed(&mut self, one: &Placed) -> io::Result<()> {
        let rank = Rank { partition: one.partition, frame: one.frame, index: u64::from(one.index) };
        self.add(&one.key, rank, &one.value)
    }

    pub(super) fn into_file(self) -> io::Result<File> {
        self.file.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

/// Reads records one behind the other.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    file: &'a File,
    at: u64,
    end: u64,
    /// What is read of the file at once.
    at_once: usize,
    buffer: Vec<u8>,
    buffer_at: u64,
}

impl Walk<'_> {
    pub(super) fn new(file: &File, begin: u64, end: u64) -> Walk<'_> {
        Walk { file, at: begin, end, at_once: RUN_BUFFER_BYTES, buffer: Vec::new(), buffer_at: begin }
    }

    fn read(&mut self, at: u64, out: &mut [u8]) -> io::Result<()> {
        if out.len() > self.at_once {
            return self.file.read_exact_at(out, at);
        }
        let buffer_end = self.buffer_at + self.buffer.len() as u64;
        if at < self.buffer_at || at + out.len() as u64 > buffer_end {
            let left = usize::try_from(self.end.saturating_sub(at)).unwrap_or(usize::MAX);
            self.buffer.resize(left.min(self.at_once), 0);
            self.file.read_exact_at(&mut self.buffer, at)?;
            self.buffer_at = at;
        }
        // The offset lies in the buffer, or the file has ended before.
        let begin = usize::try_from(at - self.buffer_at).unwrap_or(usize::MAX);
        let found = begin.checked_add(out.len()).and_then(|end| self.buffer.get(begin..end));
        out.copy_from_slice(found.ok_or_else(|| damaged(at))?);
        Ok(())
    }

    /// The next record, in place of the last one. False: there is none.
    pub(super) fn next(&mut self, front: &mut Front) -> io::Result<bool> {
        let at = self.at;
        if at >= self.end {
            return Ok(false);
        }
        let mut head = [0; HEAD];
        self.read(at, &mut head)?;
        let (key_bytes, value_bytes) = (u32_at(&head, 12) as usize, u32_at(&head, 32) as usize);
        let value_at = at + (HEAD + key_bytes) as u64;
        let end = value_at + value_bytes as u64;
        if end > self.end {
            return Err(damaged(at));
        }
        front.key.resize(key_bytes, 0);
        self.read(at + HEAD as u64, &mut front.key)?;
        if crc32c::crc32c_append(crc32c::crc32c(&head[4..]), &front.key) != u32_at(&head, 0) {
            return Err(damaged(at));
        }
        let (frame, index) = (u64_at(&head, 16), u64_at(&head, 24));
        front.rank = Rank { partition: u32_at(&head, 8), frame, index };
        (front.value_at, front.value_bytes, front.value_crc) = (value_at, value_bytes, u32_at(&head, 4));
        self.at = end;
        Ok(true)
    }

    /// The value of a record.
    pub(super) fn value(&mut self, front: &Front, value: &mut Vec<u8>) -> io::Result<()> {
        value.resize(front.value_bytes, 0);
        self.read(front.value_at, value)?;
        if crc32c::crc32c(value) == front.value_crc { Ok(()) } else { Err(damaged(front.value_at)) }
    }
}

/// A file that is being written, in order.
#[derive(Debug)]
pub(super) struct SortedOut {
    records: RecordsOut,
    marks: BufWriter<File>,
    count: u64,
    /// Of keys and values.
    bytes: u64,
}

impl SortedOut {
    pub(super) fn new(folder: &Path) -> io::Result<SortedOut> {
        let marks = BufWriter::with_capacity(RUN_BUFFER_BYTES, tempfile::tempfile_in(folder)?);
        Ok(SortedOut { records: RecordsOut::new(folder)?, marks, count: 0, bytes: 0 })
    }

    pub(super) fn add(&mut self, front: &Front, value: &[u8]) -> io::Result<()> {
        if self.count.is_multiple_of(MARKED_RECORDS) {
            let mark = Mark { offset: self.records.length, bytes: self.bytes };
            self.marks.write_all(&mark.encode(self.count / MARKED_RECORDS))?;
        }
        self.count += 1;
        self.bytes += (front.key.len() + value.len()) as u64;
        self.records.add(&front.key, front.rank, value)
    }

    pub(super) fn finish(self) -> io::Result<SortedFile> {
        let (records_bytes, count) = (self.records.length, self.count);
        let marks = self.marks.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(SortedFile { records: self.records.into_file()?, marks, records_bytes, count })
    }
}

/// Where a record begins, and the bytes of keys and values before it.
#[derive(Debug, Clone, Copy)]
struct Mark {
    offset: u64,
    bytes: u64,
}

impl Mark {
    /// As the mark of that number.
    fn encode(self, number: u64) -> [u8; MARK as usize] {
        let mut mark = [0; MARK as usize];
        mark[..8].copy_from_slice(&self.offset.to_le_bytes());
        mark[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), &mark[..16]);
        mark[16..].copy_from_slice(&crc.to_le_bytes());
        mark
    }
}

/// The records of a range, in order.
#[derive(Debug)]
pub(super) struct SortedFile {
    records: File,
    marks: File,
    records_bytes: u64,
    count: u64,
}

impl SortedFile {
    /// Bytes on disk.
    pub(super) fn bytes(&self) -> u64 {
        self.records_bytes + MARK * self.count.div_ceil(MARKED_RECORDS)
    }

    fn marks(&self) -> u64 {
        self.count.div_ceil(MARKED_RECORDS)
    }

    fn mark(&self, number: u64) -> io::Result<Mark> {
        let mut found = [0; MARK as usize];
        self.marks.read_exact_at(&mut found, number * MARK)?;
        let mark = Mark { offset: u64_at(&found, 0), bytes: u64_at(&found, 8) };
        if found == mark.encode(number) { Ok(mark) } else { Err(damaged(number * MARK)) }
    }

    /// From the record of that mark on.
    fn walk(&self, number: u64) -> io::Result<Walk<'_>> {
        Ok(Walk::new(&self.records, self.mark(number)?.offset, self.records_bytes))
    }

    /// How many records are before a place, which is sought from that mark on in both directions: keys before it are told so.
    fn first_from(&self, near: u64, is_before: &dyn Fn(&[u8]) -> bool) -> io::Result<u64> {
        let mut front = Front::default();
        let mut is_mark_before = |number: u64| -> io::Result<bool> {
            let mut walk = Walk { at_once: KEY_LOOK_BYTES, ..self.walk(number)? };
            Ok(walk.next(&mut front)? && is_before(&front.key))
        };
        // The marks below `low` are before the place, those from `high` on are not.
        let (mut low, mut high, mut step) = (0, self.marks(), 1);
        let Some(near) = high.checked_sub(1).map(|last| near.min(last)) else { return Ok(0) };
        let is_behind = is_mark_before(near)?;
        (low, high) = if is_behind { (near + 1, high) } else { (low, near) };
        while low < high {
            let at = if is_behind { low + step - 1 } else { high.saturating_sub(step) };
            if at >= high {
                break;
            }
            step *= 2;
            let is_before = is_mark_before(at)?;
            (low, high) = if is_before { (at + 1, high) } else { (low, at) };
            if is_before != is_behind {
                break;
            }
        }
        while low < high {
            let middle = low + (high - low) / 2;
            (low, high) = if is_mark_before(middle)? { (middle + 1, high) } else { (low, middle) };
        }
        let Some(before) = low.checked_sub(1) else { return Ok(0) };
        let (mut walk, mut at) = (self.walk(before)?, before * MARKED_RECORDS);
        while walk.next(&mut front)? && is_before(&front.key) {
            at += 1;
        }
        Ok(at)
    }

    /// How many records have a smaller key.
    fn first_at(&self, key: &[u8]) -> io::Result<u64> {
        self.first_from(self.marks() / 2, &|one| one < key)
    }

    /// The first record at so many bytes or behind them, which is none before that mark.
    fn cut_from(&self, number: u64, bytes: u64) -> io::Result<CutAt> {
        let (mark, mut record) = (self.mark(number)?, number * MARKED_RECORDS);
        let mut walk = Walk::new(&self.records, mark.offset, self.records_bytes);
        let (mut front, mut begins) = (Front::default(), mark.bytes);
        while walk.next(&mut front)? {
            if begins >= bytes {
                return Ok(CutAt { record, key: Some(Bytes::from(&front.key[..])) });
            }
            record += 1;
            begins += front.bytes();
        }
        Ok(CutAt { record, key: None })
    }

    /// The records of a slice, as [`Slice::of`] has them; no more than take so much memory, and one at least.
    pub(super) fn slice(&self, slice: &Slice, most_bytes: u64) -> io::Result<OrderedRecords> {
        let (begin, end) = match &slice.keys {
            None => (0, self.count),
            Some((first, end)) => {
                let end = end.as_ref().map_or(Ok(self.count), |end| self.first_at(end));
                (self.first_at(first)?, end?)
            }
        };
        let (from, to) = (begin.saturating_add(slice.from), begin.saturating_add(slice.to).min(end));
        let (mut records, mut bytes) = (OrderedBuilder::default(), 0);
        if from >= to {
            return Ok(records.finish());
        }
        let mut walk = self.walk(from / MARKED_RECORDS)?;
        let (mut front, mut value) = (Front::default(), Vec::new());
        for at in from - from % MARKED_RECORDS..to {
            if !walk.next(&mut front)? {
                return Err(damaged(self.records_bytes));
            }
            if at < from {
                continue;
            }
            bytes += OrderedRecords::AROUND + front.bytes();
            if bytes > most_bytes && !records.is_empty() {
                break;
            }
            walk.value(&front, &mut value)?;
            let Rank { partition, frame, index } = front.rank;
            let index = u32::try_from(index).map_err(io::Error::other)?;
            let one = OrderedRecord { key: &front.key, partition, frame, index, value: &value };
            records.add(one).map_err(io::Error::other)?;
        }
        Ok(records.finish())
    }
}

impl Ordered for SortedFile {
    type Error = io::Error;

    fn count(&self) -> u64 {
        self.count
    }

    fn key_at(&self, at: u64) -> io::Result<Bytes> {
        let (mut walk, mut front) = (self.walk(at / MARKED_RECORDS)?, Front::default());
        for _ in 0..=at % MARKED_RECORDS {
            if !walk.next(&mut front)? {
                return Err(damaged(self.records_bytes));
            }
        }
        Ok(Bytes::from(&front.key[..]))
    }

    fn run_at(&self, at: u64, key: &Bytes) -> io::Result<(u64, u64)> {
        let (near, key) = (at / MARKED_RECORDS, &key[..]);
        Ok((self.first_from(near, &|one| one < key)?, self.first_from(near, &|one| one <= key)?))
    }

    fn cuts_at_bytes(&self, offsets: &BTreeSet<u64>) -> io::Result<Vec<CutAt>> {
        let (mut cuts, mut low) = (Vec::new(), 0);
        for offset in offsets {
            if self.count == 0 {
                cuts.push(CutAt { record: 0, key: None });
                continue;
            }
            // The marks below `low` have fewer bytes before them, also than later offsets; those from `high` on have not.
            let mut high = self.marks();
            while low < high {
                let middle = low + (high - low) / 2;
                if self.mark(middle)?.bytes < *offset {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            cuts.push(self.cut_from(low.saturating_sub(1), *offset)?);
        }
        Ok(cuts)
    }

    fn cuts_at_once(&self) -> usize {
        FILE_CUTS_AT_ONCE
    }
}

#[cfg(test)]
mod tests {
    use super::super::sorter::tests::{file_of, placed, records, slice};
    use super::*;
    use partage_service::shuffle::partition::CutBy;
    use partage_service::shuffle::seek::{Found, Seek, SeekFor};
    use proptest::prelude::*;

    fn seek(what: SeekFor) -> Seek {
        Seek { plan: slice(None, 0, 0).plan, range: 0, what }
    }

    fn what() -> impl Strategy<Value = SeekFor> {
        let by = prop::sample::select(vec![CutBy::Records, CutBy::Bytes, CutBy::Keys]);
        prop_oneof![
            (by, prop::collection::btree_set(0_u64..40_000, 0..9)).prop_map(|(by, mut at)| {
                // Bytes go farther than records.
                at = if by == CutBy::Bytes { at } else { at.iter().map(|at| at / 50).collect() };
                SeekFor::Cuts(by, at)
            }),
            (0_u64..300, 0_u64..800).prop_map(|(more_than, from)| SeekFor::HeavyKeys { more_than, from }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn x13_x14_what_is_found_in_a_file_is_what_all_of_its_records_say(
            records in records(), what in what(), most_bytes in prop_oneof![0_u64..500, Just(u64::MAX)],
        ) {
            let (folder, seek) = (tempfile::tempdir().unwrap(), seek(what));
            let file = file_of(folder.path(), 1 << 20, records.clone());
            let mut sorted = records;
            sorted.sort();
            let expected = seek.of(sorted.iter().map(Placed::sized)).bounded(most_bytes);
            prop_assert_eq!(seek.within(&file, most_bytes).unwrap(), expected.clone());
            let sorted = OrderedRecords::of(&sorted).unwrap();
            prop_assert_eq!(seek.within(&sorted, most_bytes).unwrap(), expected);
        }
    }

    #[test]
    fn r1_a_question_about_a_large_file_reads_only_what_is_near_to_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let all: Vec<Placed> =
            (0..2_000_u32).map(|at| placed(&(at / 10).to_be_bytes(), at, &[7; 46])).collect();
        let file = file_of(folder.path(), 1 << 20, all);
        // One record in each quarter is damaged, none of them near to a mark: who reads all of them finds it.
        let length = file.records_bytes / 2_000;
        for record in [10, 520, 1_030] {
            file.records.write_all_at(&[0xff; HEAD], record * length).unwrap();
        }
        for (by, offset) in [(CutBy::Records, 1_999), (CutBy::Bytes, 1_999 * 50), (CutBy::Keys, 1_992)] {
            let found = seek(SeekFor::Cuts(by, [offset].into())).within(&file, u64::MAX).unwrap();
            let record = if by == CutBy::Keys { 1_990 } else { 1_999 };
            let key = Some(199_u32.to_be_bytes().as_slice().into());
            assert_eq!(found, Found::Cuts(vec![CutAt { record, key }]), "{by:?}");
        }
        let heavy = seek(SeekFor::HeavyKeys { more_than: 200, from: 0 }).within(&file, u64::MAX).unwrap();
        assert_eq!(heavy, Found::HeavyKeys { keys: Vec::new(), has_more: false });
        let many = (0..2_000).collect();
        let found = seek(SeekFor::Cuts(CutBy::Records, many)).within(
            &file_of(folder.path(), 1 << 20, (0..2_000).map(|at| placed(b"k", at, b"")).collect()),
            u64::MAX,
        );
        assert!(matches!(found, Ok(Found::Cuts(cuts)) if cuts.len() == FILE_CUTS_AT_ONCE));
    }

    #[test]
    fn x8_every_flipped_bit_is_found_or_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let all: Vec<Placed> = (0..3).map(|at| placed(&[at], u32::from(at), b"value")).collect();
        let file = file_of(folder.path(), 1 << 20, all.clone());
        let read = |file: &SortedFile| {
            file.slice(&slice(Some((vec![0], Some(vec![2]))), 0, 9), u64::MAX).map(|found| found.len())
        };
        assert_eq!(read(&file).unwrap(), 2);
        let of_records = (0..file.records_bytes).map(|at| (&file.records, at));
        for (of, at) in of_records.chain((0..MARK).map(|at| (&file.marks, at))) {
            let mut byte = [0];
            of.read_exact_at(&mut byte, at).unwrap();
            for bit in 0..8 {
                of.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
                // A value that is not in the slice is not read.
                let is_wrong = read(&file).is_ok_and(|count| count != 2);
                assert!(!is_wrong, "bit {bit} of byte {at}");
            }
            of.write_all_at(&byte, at).unwrap();
        }
        let all = OrderedRecords::of(&all).unwrap();
        assert_eq!(file.slice(&slice(None, 0, 9), u64::MAX).unwrap(), all);
    }
}
