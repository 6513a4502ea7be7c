//! The layout for lookups: pages in the order of their keys' hashes, and a table that says where each page is.
//!
//! The hash says which page a key is on, and a page holds about four keys, each with a fingerprint of one byte. The hash
//! of a key, as a part of 2^64, times the number of pages is its page; there is nothing to search. One look into the
//! table (8 bytes a page, so 2 a key), one at the page's directory with a fingerprint of each key, one at the entry
//! just before it: two misses of the cache to places that cannot be foreseen, the third is next door. A caller with several
//! keys takes these steps for all of them side by side: the memory of one is fetched while the others are looked at.
//!
//! ```text
//! entry      checksum u32 · coding u8 · key length · [length uncompressed] · key · value
//! directory  checksum u32 · count u16 · count fingerprints u8 · count distances u32
//! ```
//!
//! A page is its entries and then its directory, which the table points at: so a page is written without being held in
//! memory. The fingerprint is the lowest byte of the hash, the distance goes back from the directory to the entry.
//! The checksum of a directory covers its page's number, that of an entry its offset.

use std::borrow::Cow;
use std::ops::Range;

use super::checksum::placed_crc;
use super::codec::{Coding, Decoder, Encoder};
use super::error::{BuildError, Part, ReadError, Reason};
use super::form::{Footer, HEADER_BYTES, Layout, put_number, take, take_number, u32_at, u64_at};
use super::mapped::Mapped;
use super::output::Output;
use super::sort::{Entry, rank};
use crate::limits::{KEY_BYTES, PAGE_KEYS, PAGE_MOST_KEYS, VALUE_BYTES};

/// Bytes of checksum and count, before the fingerprints.
const DIRECTORY_HEAD: u64 = 6;
/// Bytes of checksum and coding, before the lengths.
const ENTRY_HEAD: u64 = 5;

/// How much of a directory is prefetched for a lookup: that of a page with eight keys.
const PREFETCHED_DIRECTORY_BYTES: u64 = DIRECTORY_HEAD + 8 * 5;

/// How many pages so many keys get.
pub fn pages(keys: u64) -> u64 {
    keys.div_ceil(PAGE_KEYS).max(1)
}

fn page_of(rank: u64, pages: u64) -> u64 {
    ((u128::from(rank) * u128::from(pages)) >> 64) as u64
}

fn fingerprint(rank: u64) -> u8 {
    rank as u8
}

/// Writes pages from entries in the order of their hashes.
#[derive(Debug)]
pub struct PageWriter {
    pages: u64,
    page: u64,
    fingerprints: Vec<u8>,
    begins: Vec<u64>,
    bytes: Vec<u8>,
}

impl PageWriter {
    pub fn new(pages: u64) -> PageWriter {
        PageWriter { pages, page: 0, fingerprints: Vec::new(), begins: Vec::new(), bytes: Vec::new() }
    }

    pub fn add(
        &mut self,
        entry: Entry<'_>,
        encoder: &mut Encoder,
        out: &mut Output,
    ) -> Result<(), BuildError> {
        let page = page_of(entry.rank, self.pages);
        while self.page < page {
            self.close(out)?;
        }
        if self.begins.len() == PAGE_MOST_KEYS {
            return Err(self.full(out.at));
        }
        let (coding, stored) = encoder.encode(entry.value).map_err(|e| out.failed(e))?;
        self.fingerprints.push(fingerprint(entry.rank));
        self.begins.push(out.at);
        let at = out.at;
        out.compose(|bytes| {
            let begin = bytes.len();
            bytes.extend_from_slice(&[0, 0, 0, 0, coding as u8]);
            put_number(bytes, entry.key.len() as u64);
            if coding != Coding::Plain {
                put_number(bytes, entry.value.len() as u64);
            }
            bytes.extend_from_slice(entry.key);
            bytes.extend_from_slice(&stored);
            let crc = placed_crc(at, &bytes[begin + 4..]);
            bytes[begin..begin + 4].copy_from_slice(&crc.to_le_bytes());
        })
    }

    /// Closes the rest, and says how many pages there are.
    pub fn finish(&mut self, out: &mut Output) -> Result<u64, BuildError> {
        while self.page < self.pages {
            self.close(out)?;
        }
        Ok(self.pages)
    }

    fn close(&mut self, out: &mut Output) -> Result<(), BuildError> {
        let directory = out.at;
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.extend([0; 4]);
        bytes.extend((self.begins.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&self.fingerprints);
        for begin in &self.begins {
            let Ok(distance) = u32::try_from(directory - begin) else { return Err(self.full(directory)) };
            bytes.extend(distance.to_le_bytes());
        }
        let crc = placed_crc(self.page, &bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        out.write(&bytes)?;
        self.bytes = bytes;
        out.write_index(&directory.to_le_bytes())?;
        self.page += 1;
        self.begins.clear();
        self.fingerprints.clear();
        Ok(())
    }

    fn full(&self, at: u64) -> BuildError {
        let bytes = at - self.begins.first().unwrap_or(&at);
        BuildError::PageFull { page: self.page, keys: self.begins.len(), bytes }
    }
}

/// Looks keys up in pages.
#[derive(Debug, Clone, Copy)]
pub struct Pages<'a> {
    pub map: &'a Mapped,
    pub footer: &'a Footer,
    pub decoder: &'a Decoder,
}

/// A page's directory, checked.
#[derive(Debug, Clone, Copy)]
pub struct Directory<'a> {
    at: u64,
    count: usize,
    /// Fingerprints, and behind them distances.
    lists: &'a [u8],
}

impl Directory<'_> {
    fn end(&self) -> u64 {
        self.at + DIRECTORY_HEAD + self.lists.len() as u64
    }

    /// Where an entry lies. For the number after the last: from the directory's place.
    #[inline]
    fn begin(&self, entry: usize) -> u64 {
        if entry == self.count {
            return self.at;
        }
        self.at.saturating_sub(u64::from(u32_at(self.lists, self.count + 4 * entry)))
    }

    #[inline]
    fn entry(&self, entry: usize) -> Range<u64> {
        self.begin(entry)..self.begin(entry + 1)
    }

    /// The first entry from a number on that has the fingerprint of this hash. Eight are looked at together, since nothing
    /// foresees where the loop would end.
    #[inline]
    fn find(&self, rank: u64, from: usize) -> Option<usize> {
        const ONES: u64 = u64::MAX / 0xff;
        let wanted = fingerprint(rank);
        for at in (from..self.count).step_by(8) {
            let Some(eight) = self.lists[at..].first_chunk::<8>() else {
                let left = &self.lists[at..self.count];
                return left.iter().position(|have| *have == wanted).map(|number| at + number);
            };
            // A byte that is the same becomes zero, and then, as the lowest of those, one with its high bit set.
            let differ = u64::from_le_bytes(*eight) ^ (ONES * u64::from(wanted));
            let same = differ.wrapping_sub(ONES) & !differ & (ONES << 7);
            let found = at + same.trailing_zeros() as usize / 8;
            if found < self.count.min(at + 8) {
                return Some(found);
            }
        }
        None
    }
}

impl<'a> Pages<'a> {
    /// The value of a key with this hash.
    pub fn get(&self, rank: u64, key: &[u8]) -> Result<Option<Cow<'a, [u8]>>, ReadError> {
        self.get_from(&self.directory(page_of(rank, self.footer.parts))?, rank, key)
    }

    /// The same, when the directory is at hand.
    #[inline]
    pub fn get_from(
        &self,
        directory: &Directory<'a>,
        rank: u64,
        key: &[u8],
    ) -> Result<Option<Cow<'a, [u8]>>, ReadError> {
        let mut next = directory.find(rank, 0);
        while let Some(number) = next {
            let at = directory.entry(number);
            let (found, value) = self.checked_entry(at.clone())?;
            if found == key {
                return self.decoded(at.start, value).map(Some);
            }
            next = directory.find(rank, number + 1);
        }
        Ok(None)
    }

    /// The first of three steps ahead of a lookup, each to be taken for many keys before the next: has the table entry
    /// fetched.
    #[inline]
    pub fn prefetch_table(&self, rank: u64) {
        self.map.prefetch(self.table_entry(page_of(rank, self.footer.parts)));
    }

    /// Has the directory fetched, or the beginning of one that is long.
    #[inline]
    pub fn prefetch_directory(&self, rank: u64) {
        if let Ok(bytes) = self.map.slice(self.table_entry(page_of(rank, self.footer.parts))) {
            let at = u64_at(bytes, 0);
            self.map.prefetch(at..at.saturating_add(PREFETCHED_DIRECTORY_BYTES));
        }
    }

    /// Checks the directory, and has the entry fetched that will be looked at first. What is wrong with the directory, if
    /// something is, the lookup finds again and tells.
    #[inline]
    pub fn prefetch_entry(&self, rank: u64) -> Option<Directory<'a>> {
        let directory = self.directory(page_of(rank, self.footer.parts)).ok()?;
        if let Some(number) = directory.find(rank, 0) {
            self.map.prefetch(directory.entry(number));
        }
        Some(directory)
    }

    #[inline]
    fn table_entry(&self, page: u64) -> Range<u64> {
        let at = self.footer.index().start + 8 * page;
        at..at + 8
    }

    #[inline]
    fn directory(&self, page: u64) -> Result<Directory<'a>, ReadError> {
        let entry = self.table_entry(page);
        let data = self.footer.data();
        let at = u64_at(self.map.slice(entry.clone())?, 0);
        if at < data.start || at > data.end.saturating_sub(DIRECTORY_HEAD) {
            return Err(self.contradiction(entry.start, Part::Index, "a page outside the data"));
        }
        let head = self.map.slice(at..at + DIRECTORY_HEAD)?;
        let count = usize::from(u16::from_le_bytes([head[4], head[5]]));
        let end = at + DIRECTORY_HEAD + 5 * count as u64;
        if end > data.end {
            return Err(self.checksum(at, Part::Directory));
        }
        let bytes = self.map.slice(at..end)?;
        if placed_crc(page, &bytes[4..]) != u32_at(bytes, 0) {
            return Err(self.checksum(at, Part::Directory));
        }
        Ok(Directory { at, count, lists: &bytes[DIRECTORY_HEAD as usize..] })
    }

    /// The key and what is stored of the value.
    #[inline]
    fn checked_entry(&self, at: Range<u64>) -> Result<(&'a [u8], Stored<'a>), ReadError> {
        if at.start < HEADER_BYTES as u64 || at.start + ENTRY_HEAD > at.end {
            return Err(self.contradiction(at.start, Part::Entry, "it has no room"));
        }
        let bytes = self.map.slice(at.clone())?;
        if placed_crc(at.start, &bytes[4..]) != u32_at(bytes, 0) {
            return Err(self.checksum(at.start, Part::Entry));
        }
        read_entry(bytes)
            .ok_or_else(|| self.contradiction(at.start, Part::Entry, "its lengths or its coding"))
    }

    #[inline]
    fn decoded(&self, at: u64, stored: Stored<'a>) -> Result<Cow<'a, [u8]>, ReadError> {
        self.decoder
            .decode(stored.coding, stored.bytes, stored.length)
            .ok_or_else(|| self.contradiction(at, Part::Entry, "its value does not decompress"))
    }

    /// Reads everything there is, as [`Reader::verify_while`](super::Reader::verify_while).
    pub fn verify(&self, go_on: &mut dyn FnMut(u64) -> bool) -> Result<bool, ReadError> {
        let footer = self.footer;
        let (mut at, mut keys, mut key_bytes, mut value_bytes) = (footer.data().start, 0, 0, 0);
        for page in 0..footer.parts {
            // Pages are small.
            if page % 1_024 == 0 && !go_on(at) {
                return Ok(false);
            }
            let directory = self.directory(page)?;
            if directory.begin(0) != at {
                return Err(self.contradiction(at, Part::Directory, "a gap before its page"));
            }
            let mut last = None;
            for number in 0..directory.count {
                let range = directory.entry(number);
                let (key, stored) = self.checked_entry(range.clone())?;
                let value = self.decoded(range.start, stored)?;
                let rank = rank(Layout::Hashed, key);
                if page_of(rank, footer.parts) != page || directory.lists[number] != fingerprint(rank) {
                    return Err(self.contradiction(range.start, Part::Entry, "a key on another's page"));
                }
                if last.replace((rank, key)).is_some_and(|last| last >= (rank, key)) {
                    return Err(self.contradiction(range.start, Part::Entry, "keys out of order"));
                }
                keys += 1;
                key_bytes += key.len() as u64;
                value_bytes += value.len() as u64;
            }
            at = directory.end();
        }
        if at != footer.data().end {
            return Err(self.contradiction(at, Part::Footer, "data after the last page"));
        }
        if (keys, key_bytes, value_bytes) != (footer.keys, footer.key_bytes, footer.value_bytes) {
            return Err(self.contradiction(at, Part::Footer, "its counts"));
        }
        Ok(true)
    }

    fn contradiction(&self, at: u64, what: Part, how: &'static str) -> ReadError {
        self.map.refused(at, Reason::Contradiction { what, how })
    }

    fn checksum(&self, at: u64, what: Part) -> ReadError {
        self.map.refused(at, Reason::Checksum { what })
    }
}

/// A value as it lies in the file.
#[derive(Clone, Copy)]
struct Stored<'a> {
    coding: Coding,
    bytes: &'a [u8],
    length: usize,
}

#[inline]
fn read_entry(bytes: &[u8]) -> Option<(&[u8], Stored<'_>)> {
    let coding = Coding::from_byte(*bytes.get(4)?)?;
    let mut rest = bytes.get(ENTRY_HEAD as usize..)?;
    let key_bytes = take_number(&mut rest).filter(|n| *n <= KEY_BYTES as u64)?;
    let length = if coding == Coding::Plain { None } else { Some(take_number(&mut rest)?) };
    let key = take(&mut rest, key_bytes)?;
    let length = usize::try_from(length.unwrap_or(rest.len() as u64)).ok()?;
    (length <= VALUE_BYTES).then_some((key, Stored { coding, bytes: rest, length }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readonly::{BuildError, Compression};
    use proptest::prelude::*;

    #[test]
    fn a_page_takes_its_limit_of_keys_and_not_one_more() {
        let folder = tempfile::tempdir().unwrap();
        let mut out = Output::new(&folder.path().join("store"), folder.path()).unwrap();
        let mut encoder = Encoder::new(Compression::None, &[]).unwrap();
        let mut writer = PageWriter::new(1);
        let entry = |n: &u64| Entry { rank: *n, key: b"k", value: b"" };
        for n in 0..PAGE_MOST_KEYS as u64 {
            writer.add(entry(&n), &mut encoder, &mut out).unwrap();
        }
        let refused = writer.add(entry(&u64::MAX), &mut encoder, &mut out).unwrap_err();
        assert!(matches!(refused, BuildError::PageFull { page: 0, keys: PAGE_MOST_KEYS, .. }), "{refused}");
        assert!(refused.to_string().contains("build it ordered"));
        assert_eq!(writer.finish(&mut out).unwrap(), 1);
    }

    #[test]
    fn pages_follow_the_hash_to_both_ends() {
        assert_eq!([pages(0), pages(1), pages(4), pages(5)], [1, 1, 1, 2]);
        for count in [1, 2, 3, 1_000_003, u64::MAX] {
            assert_eq!((page_of(0, count), page_of(u64::MAX, count)), (0, count - 1));
        }
    }

    proptest! {
        #[test]
        fn a_fingerprint_is_found_where_it_is_first(
            (fingerprints, distances) in prop::collection::vec(any::<u8>().prop_map(|n| n % 4), 0..40)
                .prop_flat_map(|all| { let bytes = 4 * all.len(); (Just(all), prop::collection::vec(0..4_u8, bytes)) }),
            wanted in 0..5_u64, from in 0..45_usize,
        ) {
            let lists = [fingerprints.as_slice(), &distances].concat();
            let directory = Directory { at: 0, count: fingerprints.len(), lists: &lists };
            let naive = (from..fingerprints.len()).find(|at| u64::from(fingerprints[*at]) == wanted);
            prop_assert_eq!(directory.find(wanted, from), naive);
        }
    }
}
