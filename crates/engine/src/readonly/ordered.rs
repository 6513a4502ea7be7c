//! The layout for scans: blocks of entries in the order of their keys, and the first key of each block in memory.
//!
//! A lookup finds the block by a binary search of those first keys, and the entry by a binary search within the block. A
//! block is compressed as a whole, so neighbours that resemble each other cost little.
//!
//! ```text
//! block  checksum u32 · coding u8 · length uncompressed · what is stored
//!        uncompressed: entries · count begins u32 · count u32;  entry: key length · key · value
//! index  for each block: offset u64 · length · the shortest key that is after all before the block
//! ```
//!
//! The checksum of a block covers its offset. The index is checked and copied when the file is opened.

use std::borrow::Cow;
use std::ops::{Bound, Range};

use super::checksum::placed_crc;
use super::codec::{Coding, Decoder, Encoder};
use super::error::{BuildError, Part, ReadError, Reason};
use super::form::{Footer, put_number, take, take_number, u32_at, u64_at};
use super::mapped::Mapped;
use super::output::Output;
use super::sort::Entry;
use crate::limits::{BLOCK_BYTES, BLOCK_MOST_BYTES, KEY_BYTES};

/// Bytes of checksum and coding, before the length.
const BLOCK_HEAD: u64 = 5;

/// Writes blocks from entries in the order of their keys.
#[derive(Debug, Default)]
pub struct BlockWriter {
    raw: Vec<u8>,
    begins: Vec<u32>,
    separator: Vec<u8>,
    last: Vec<u8>,
    blocks: u64,
}

impl BlockWriter {
    pub fn add(
        &mut self,
        entry: Entry<'_>,
        encoder: &mut Encoder,
        out: &mut Output,
    ) -> Result<(), BuildError> {
        // Its length, its place in the table, and the count.
        let need = entry.key.len() + entry.value.len() + 5 + 4 + 4;
        if !self.begins.is_empty() && self.raw.len() + 4 * self.begins.len() + need > BLOCK_BYTES {
            self.close(encoder, out)?;
        }
        if self.begins.is_empty() && self.blocks > 0 {
            let common = self.last.iter().zip(entry.key).take_while(|(a, b)| a == b).count();
            self.separator.clear();
            self.separator.extend_from_slice(entry.key.get(..=common).unwrap_or(entry.key));
        }
        self.begins.push(self.raw.len() as u32);
        put_number(&mut self.raw, entry.key.len() as u64);
        self.raw.extend_from_slice(entry.key);
        self.raw.extend_from_slice(entry.value);
        self.last.clear();
        self.last.extend_from_slice(entry.key);
        Ok(())
    }

    /// Closes the rest, and says how many blocks there are.
    pub fn finish(&mut self, encoder: &mut Encoder, out: &mut Output) -> Result<u64, BuildError> {
        if !self.begins.is_empty() {
            self.close(encoder, out)?;
        }
        Ok(self.blocks)
    }

    fn close(&mut self, encoder: &mut Encoder, out: &mut Output) -> Result<(), BuildError> {
        for begin in &self.begins {
            self.raw.extend(begin.to_le_bytes());
        }
        self.raw.extend((self.begins.len() as u32).to_le_bytes());
        let (coding, stored) = encoder.encode(&self.raw).map_err(|e| out.failed(e))?;
        let mut head = vec![0, 0, 0, 0, coding as u8];
        put_number(&mut head, self.raw.len() as u64);
        let crc = crc32c::crc32c_append(placed_crc(out.at, &head[4..]), &stored);
        head[..4].copy_from_slice(&crc.to_le_bytes());
        let mut index = out.at.to_le_bytes().to_vec();
        put_number(&mut index, self.separator.len() as u64);
        index.extend_from_slice(&self.separator);
        out.write_index(&index)?;
        out.write(&head)?;
        out.write(&stored)?;
        self.blocks += 1;
        self.begins.clear();
        self.raw.clear();
        self.raw.shrink_to(2 * BLOCK_BYTES);
        Ok(())
    }
}

/// Where each block is and from which key on, in memory.
#[derive(Debug)]
pub struct SparseIndex {
    separators: Vec<u8>,
    /// Offset of the block, and where its separator ends.
    blocks: Vec<(u64, usize)>,
    data_end: u64,
}

impl SparseIndex {
    /// Reads the index, whose checksum the caller has checked.
    pub fn read(footer: &Footer, mut bytes: &[u8]) -> Result<SparseIndex, &'static str> {
        let data = footer.data();
        // Each takes 9 bytes or more, so a false count cannot ask for more memory than the file is long.
        if footer.parts > footer.index_bytes / 9 || (footer.parts == 0) != (footer.data_bytes == 0) {
            return Err("its number of blocks");
        }
        let mut index = SparseIndex {
            separators: Vec::with_capacity(bytes.len() - 9 * footer.parts as usize),
            blocks: Vec::with_capacity(footer.parts as usize),
            data_end: data.end,
        };
        for number in 0..footer.parts as usize {
            let offset = take(&mut bytes, 8).map(|b| u64_at(b, 0)).ok_or("it ends early")?;
            let length = take_number(&mut bytes).filter(|n| *n <= KEY_BYTES as u64);
            let separator = length.and_then(|n| take(&mut bytes, n)).ok_or("it ends early")?;
            let follows = match index.blocks.last() {
                None => offset == data.start && separator.is_empty(),
                Some((before, _)) => *before < offset && index.separator(number - 1) < separator,
            };
            if !follows || offset >= data.end {
                return Err("its blocks are out of order");
            }
            index.separators.extend_from_slice(separator);
            index.blocks.push((offset, index.separators.len()));
        }
        if bytes.is_empty() { Ok(index) } else { Err("it goes on after the last block") }
    }

    /// Bytes of memory it takes.
    pub fn bytes(&self) -> u64 {
        (self.separators.len() + self.blocks.len() * size_of::<(u64, usize)>()) as u64
    }

    fn separator(&self, block: usize) -> &[u8] {
        let begin = block.checked_sub(1).map_or(0, |before| self.blocks[before].1);
        &self.separators[begin..self.blocks[block].1]
    }

    /// The block that has the key if any has.
    fn block_of(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.blocks.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.separator(middle) <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.saturating_sub(1)
    }

    fn range(&self, block: usize) -> Option<Range<u64>> {
        let begin = self.blocks.get(block)?.0;
        Some(begin..self.blocks.get(block + 1).map_or(self.data_end, |next| next.0))
    }
}

/// A block, uncompressed. `at` is its offset in the file, to be named in errors.
#[derive(Debug, Clone)]
struct Block<'a> {
    raw: Cow<'a, [u8]>,
    count: usize,
    entries_end: usize,
}

impl<'a> Block<'a> {
    fn new(raw: Cow<'a, [u8]>) -> Option<Block<'a>> {
        let count_at = raw.len().checked_sub(4)?;
        let count = u32_at(&raw, count_at) as usize;
        let entries_end = count_at.checked_sub(count.checked_mul(4)?)?;
        (count > 0).then_some(Block { raw, count, entries_end })
    }

    /// The places of key and value of an entry.
    fn entry(&self, number: usize) -> Option<(Range<usize>, Range<usize>)> {
        let place = |n: usize| match n == self.count {
            true => self.entries_end,
            false => u32_at(&self.raw, self.entries_end + 4 * n) as usize,
        };
        let (begin, end) = (place(number), place(number + 1));
        let bytes = self.raw.get(..self.entries_end)?.get(begin..end)?;
        let mut rest = bytes;
        let key_bytes = take_number(&mut rest).filter(|n| *n <= rest.len().min(KEY_BYTES) as u64)? as usize;
        let key_at = end - rest.len();
        Some((key_at..key_at + key_bytes, key_at + key_bytes..end))
    }

    fn key(&self, number: usize) -> Option<&[u8]> {
        self.entry(number).map(|(key, _)| &self.raw[key])
    }

    /// Number of the first entry whose key is not before this one, or of the first after it.
    fn first(&self, key: &[u8], after: bool) -> Option<usize> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = usize::midpoint(low, high);
            let have = self.key(middle)?;
            if have < key || (after && have == key) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(low)
    }

    fn into_slice(self, range: Range<usize>) -> Cow<'a, [u8]> {
        match self.raw {
            Cow::Borrowed(raw) => Cow::Borrowed(&raw[range]),
            Cow::Owned(raw) => Cow::Owned(raw[range].to_vec()),
        }
    }
}

/// Looks keys up in blocks, and scans them.
#[derive(Debug, Clone, Copy)]
pub struct Blocks<'a> {
    pub map: &'a Mapped,
    pub footer: &'a Footer,
    pub decoder: &'a Decoder,
    pub index: &'a SparseIndex,
}

impl<'a> Blocks<'a> {
    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Cow<'a, [u8]>>, ReadError> {
        let Some(at) = self.index.range(self.index.block_of(key)) else { return Ok(None) };
        let block = self.block(at.clone())?;
        let number = block.first(key, false).ok_or_else(|| self.nonsense(at.start))?;
        if number == block.count {
            return Ok(None);
        }
        let (found, value) = block.entry(number).ok_or_else(|| self.nonsense(at.start))?;
        Ok((block.raw[found] == *key).then(|| block.into_slice(value)))
    }

    /// Entries from one bound to another.
    pub fn scan(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Scan<'a> {
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        let block = match from {
            Bound::Included(key) | Bound::Excluded(key) => self.index.block_of(key),
            Bound::Unbounded => 0,
        };
        Scan {
            blocks: *self,
            next_block: block,
            current: None,
            from: owned(from),
            to: owned(to),
            done: false,
        }
    }

    fn block(&self, at: Range<u64>) -> Result<Block<'a>, ReadError> {
        if at.end - at.start < BLOCK_HEAD {
            return Err(self.nonsense(at.start));
        }
        let bytes = self.map.slice(at.clone())?;
        if placed_crc(at.start, &bytes[4..]) != u32_at(bytes, 0) {
            return Err(self.map.refused(at.start, Reason::Checksum { what: Part::Block }));
        }
        self.read_block(bytes).ok_or_else(|| self.nonsense(at.start))
    }

    fn read_block(&self, bytes: &'a [u8]) -> Option<Block<'a>> {
        let coding = Coding::from_byte(bytes[4])?;
        let mut stored = &bytes[BLOCK_HEAD as usize..];
        let length = take_number(&mut stored).filter(|n| *n <= BLOCK_MOST_BYTES as u64)?;
        Block::new(self.decoder.decode(coding, stored, usize::try_from(length).ok()?)?)
    }

    /// Reads everything there is, as [`Reader::verify_while`](super::Reader::verify_while).
    pub fn verify(&self, go_on: &mut dyn FnMut(u64) -> bool) -> Result<bool, ReadError> {
        let (mut keys, mut key_bytes, mut value_bytes) = (0, 0, 0);
        let mut last: Option<Vec<u8>> = None;
        for number in 0..self.index.blocks.len() {
            let Some(at) = self.index.range(number) else { break };
            if !go_on(at.start) {
                return Ok(false);
            }
            let block = self.block(at.clone())?;
            let mut expected = 0;
            for entry in 0..block.count {
                let (key, value) = block.entry(entry).ok_or_else(|| self.nonsense(at.start))?;
                let begin = u32_at(&block.raw, block.entries_end + 4 * entry) as usize;
                let bytes = &block.raw[key.clone()];
                let separated = self.index.separator(number) <= bytes
                    && (entry > 0 || last.as_deref().is_none_or(|last| last < self.index.separator(number)));
                if begin != expected || !separated || last.as_deref().is_some_and(|last| last >= bytes) {
                    return Err(self.nonsense(at.start));
                }
                expected = value.end;
                keys += 1;
                key_bytes += key.len() as u64;
                value_bytes += value.len() as u64;
                let last = last.get_or_insert_default();
                last.clear();
                last.extend_from_slice(bytes);
            }
        }
        let footer = self.footer;
        if (keys, key_bytes, value_bytes) == (footer.keys, footer.key_bytes, footer.value_bytes) {
            return Ok(true);
        }
        let reason = Reason::Contradiction { what: Part::Footer, how: "its counts" };
        Err(self.map.refused(footer.dictionary().end, reason))
    }

    fn nonsense(&self, at: u64) -> ReadError {
        self.map.refused(
            at,
            Reason::Contradiction { what: Part::Block, how: "its lengths or the order of its keys" },
        )
    }
}

/// Entries of an ordered file, in order. After an error it ends.
#[derive(Debug)]
pub struct Scan<'a> {
    blocks: Blocks<'a>,
    next_block: usize,
    current: Option<(Block<'a>, usize, u64)>,
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    done: bool,
}

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

impl Scan<'_> {
    fn step(&mut self) -> Result<Option<Pair>, ReadError> {
        loop {
            let Some((block, number, at)) = &mut self.current else {
                let Some(range) = self.blocks.index.range(self.next_block) else { return Ok(None) };
                self.next_block += 1;
                let block = self.blocks.block(range.clone())?;
                // Only in the first block may keys lie before the bound.
                let first = match std::mem::replace(&mut self.from, Bound::Unbounded) {
                    Bound::Included(key) => block.first(&key, false),
                    Bound::Excluded(key) => block.first(&key, true),
                    Bound::Unbounded => Some(0),
                };
                let first = first.ok_or_else(|| self.blocks.nonsense(range.start))?;
                self.current = Some((block, first, range.start));
                continue;
            };
            if *number == block.count {
                self.current = None;
                continue;
            }
            let (key, value) = block.entry(*number).ok_or_else(|| self.blocks.nonsense(*at))?;
            let key = &block.raw[key];
            let within = match &self.to {
                Bound::Included(to) => key <= to.as_slice(),
                Bound::Excluded(to) => key < to.as_slice(),
                Bound::Unbounded => true,
            };
            if !within {
                return Ok(None);
            }
            *number += 1;
            return Ok(Some((key.to_vec(), block.raw[value].to_vec())));
        }
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<Pair, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        // Checked after the copy: what was copied may have gone meanwhile.
        let next = self.step();
        let next = self.blocks.map.unless_lost(next).transpose();
        self.done = !matches!(next, Some(Ok(_)));
        next
    }
}
