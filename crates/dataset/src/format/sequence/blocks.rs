//! Blocks of many records, compressed together.

use super::super::Record;
use super::super::error::{Failure, Reason};
use super::super::input::Input;
use super::codec::Decoder;
use super::header::{Header, SYNC_ESCAPE};
use super::number;
use crate::limits::SEQUENCE_BLOCK_BYTES;

/// The block that is being read.
pub struct Blocks {
    decoder: Decoder,
    /// Offset of the block.
    at: u64,
    /// Records that are still in it.
    left: u64,
    keys: Column,
    values: Column,
}

const BLOCK: &str = "a block";

impl Blocks {
    /// Before the first block.
    pub fn new(decoder: Decoder) -> Blocks {
        Blocks { decoder, at: 0, left: 0, keys: Column::default(), values: Column::default() }
    }

    /// The next record.
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
        self.left = length(input, u64::from(i32::MAX.unsigned_abs()))?;
        for column in [&mut self.keys, &mut self.values] {
            column.read(input, &mut self.decoder)?;
        }
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
fn length(input: &mut Input, most: u64) -> Result<u64, Failure> {
    let at = input.at();
    let first = input.peek(1)?.first().copied().unwrap_or(0);
    let number = number::read(input.next_bytes(number::length(first), BLOCK)?);
    let number = number.and_then(|(number, _)| u64::try_from(number).ok());
    let number = number.ok_or_else(|| Failure::at(at, damaged("a length below 0".to_owned())))?;
    if number > most { Err(Failure::at(at, Reason::block_too_long(number))) } else { Ok(number) }
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
    fn read(&mut self, input: &mut Input, decoder: &mut Decoder) -> Result<(), Failure> {
        (self.lengths_at, self.bytes_at) = (0, 0);
        for into in [&mut self.lengths, &mut self.bytes] {
            into.clear();
            let at = input.at();
            let count = length(input, SEQUENCE_BLOCK_BYTES as u64)?;
            let compressed = input.next_bytes(usize::try_from(count).unwrap_or(usize::MAX), BLOCK)?;
            decoder.decode(compressed, into, SEQUENCE_BLOCK_BYTES).map_err(|how| {
                let too_long = || Reason::block_too_long(SEQUENCE_BLOCK_BYTES as u64 + 1);
                Failure::at(at, how.reason(BLOCK, too_long))
            })?;
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
