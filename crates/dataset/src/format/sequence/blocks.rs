//! Blocks of many records, compressed together.

use super::super::Record;
use super::super::error::{Failure, Reason};
use super::super::input::Input;
use super::codec::Decoder;
use super::header::{Header, SYNC_ESCAPE};
use super::number;

/// The block that is being read.
pub struct Blocks {
    decoder: Decoder,
    /// Offset of the block.
    at: u64,
    /// Records that are still in it.
    left: u64,
    keys: Column,
    values: Column,
    /// What all of a block may take.
    most_bytes: usize,
}

const BLOCK: &str = "a block";

impl Blocks {
    /// Before the first block.
    pub fn new(decoder: Decoder, most_bytes: usize) -> Blocks {
        let (keys, values) = (Column::default(), Column::default());
        Blocks { decoder, at: 0, left: 0, keys, values, most_bytes }
    }

    /// The next record; a block is uncompressed when its first record is asked for.
    pub fn next<'a>(
        &'a mut self,
        input: &'a mut Input,
        header: &Header,
    ) -> Result<Option<Record<'a>>, Failure> {
        while self.left == 0 {
            if input.is_at_end()? {
                return Ok(None);
            }
            self.read(input, header)?;
        }
        self.left -= 1;
        let is_last = self.left == 0;
        let failed = |reason| Failure::at(self.at, reason);
        let key = self.keys.next(is_last).map_err(failed)?;
        let value = self.values.next(is_last).map_err(failed)?;
        Ok(Some((header.key.unwrap(key).map_err(failed)?, header.value.unwrap(value).map_err(failed)?)))
    }

    fn read(&mut self, input: &mut Input, header: &Header) -> Result<(), Failure> {
        self.at = input.at();
        let escape = i32::from_be_bytes(input.array(BLOCK)?);
        if escape != SYNC_ESCAPE || input.array(BLOCK)? != header.sync {
            return Err(Failure::at(self.at, Reason::Sync));
        }
        self.left = length(input, i32::MAX as usize)?;
        let most = self.most_bytes;
        self.keys.read(input, &mut self.decoder, most)?;
        let left = most.saturating_sub(self.keys.lengths.len() + self.keys.bytes.len());
        self.values.read(input, &mut self.decoder, left)?;
        // Each record has a length, and each length at least a byte: so many records cannot be promised in vain.
        let lengths = self.keys.lengths.len().min(self.values.lengths.len()) as u64;
        if self.left > lengths || (self.left == 0 && !(self.keys.is_done() && self.values.is_done())) {
            let how = format!("{} records, but {lengths} bytes of lengths", self.left);
            return Err(Failure::at(self.at, damaged(how)));
        }
        Ok(())
    }
}

fn damaged(how: String) -> Reason {
    Reason::Damaged { what: BLOCK, how }
}

/// A number that counts something.
fn length(input: &mut Input, most: usize) -> Result<u64, Failure> {
    let at = input.at();
    let first = input.peek(1)?.first().copied().unwrap_or(0);
    let number = number::read(input.next_bytes(number::length(first), BLOCK)?);
    let number = number.and_then(|(number, _)| u64::try_from(number).ok());
    let number = number.ok_or_else(|| Failure::at(at, damaged("a length below 0".to_owned())))?;
    if number > most as u64 { Err(Failure::at(at, Reason::block_too_long(number, most))) } else { Ok(number) }
}

/// The keys or the values of a block.
#[derive(Default)]
struct Column {
    lengths: Vec<u8>,
    bytes: Vec<u8>,
    /// How far both have been read.
    lengths_at: usize,
    bytes_at: usize,
}

impl Column {
    fn read(&mut self, input: &mut Input, decoder: &mut Decoder, mut most: usize) -> Result<(), Failure> {
        (self.lengths_at, self.bytes_at) = (0, 0);
        for into in [&mut self.lengths, &mut self.bytes] {
            into.clear();
            let at = input.at();
            let count = length(input, most)?;
            let compressed = input.next_bytes(usize::try_from(count).unwrap_or(usize::MAX), BLOCK)?;
            decoder.decode(compressed, into, most).map_err(|how| {
                let too_long = || Reason::block_too_long(most as u64 + 1, most);
                Failure::at(at, how.reason(BLOCK, too_long))
            })?;
            most -= into.len();
        }
        Ok(())
    }

    fn next(&mut self, is_last: bool) -> Result<&[u8], Reason> {
        let lengths = &self.lengths[self.lengths_at..];
        let (length, size) = number::read(lengths).ok_or_else(|| damaged("too few lengths".to_owned()))?;
        self.lengths_at += size;
        let bytes = &self.bytes[self.bytes_at..];
        let next = usize::try_from(length).ok().and_then(|length| bytes.get(..length));
        let next = next.ok_or_else(|| {
            damaged(format!("a key or value of {length} bytes where {} are left", bytes.len()))
        })?;
        self.bytes_at += next.len();
        if is_last && !self.is_done() {
            return Err(damaged("more in it than its records".to_owned()));
        }
        Ok(next)
    }

    fn is_done(&self) -> bool {
        self.lengths_at == self.lengths.len() && self.bytes_at == self.bytes.len()
    }
}
