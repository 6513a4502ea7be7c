//! The bytes of a file, with a look ahead, and where we are in them.

use std::io::{self, Read};

use super::error::{Failure, Reason, of_source};
use crate::limits::READ_BYTES;

/// A stream of bytes. Memory grows with the bytes that arrive, never with a length that the file states.
pub struct Input {
    stream: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    /// What of the buffer has been taken.
    taken: usize,
    /// What of the buffer is filled.
    filled: usize,
    /// Offset of the buffer's first byte.
    base: u64,
}

impl Input {
    /// The input of a stream that has not been read.
    pub fn new(stream: Box<dyn Read + Send>) -> Input {
        Input { stream, buffer: vec![0; READ_BYTES], taken: 0, filled: 0, base: 0 }
    }

    /// Offset of the next byte.
    pub fn at(&self) -> u64 {
        self.base + self.taken as u64
    }

    /// A failure at the next byte.
    pub fn failure(&self, reason: Reason) -> Failure {
        Failure::at(self.at(), reason)
    }

    /// The next bytes without taking them: `count`, or all that are left.
    pub fn peek(&mut self, count: usize) -> Result<&[u8], Failure> {
        self.fill(count)?;
        Ok(&self.buffer[self.taken..self.filled.min(self.taken + count)])
    }

    /// The next `N` bytes without taking them, if they are in the buffer.
    pub fn at_hand<const N: usize>(&self) -> Option<&[u8; N]> {
        self.buffer[self.taken..self.filled].first_chunk()
    }

    /// The next bytes, as many as are there without waiting for more, but one; none at the end.
    #[cfg(feature = "parquet")]
    pub fn next_piece(&mut self) -> Result<&[u8], Failure> {
        self.fill(1)?;
        let from = std::mem::replace(&mut self.taken, self.filled);
        Ok(&self.buffer[from..self.filled])
    }

    /// Whether all is taken.
    pub fn is_at_end(&mut self) -> Result<bool, Failure> {
        Ok(self.peek(1)?.is_empty())
    }

    /// Takes `count` bytes of `what`.
    pub fn next_bytes(&mut self, count: usize, what: &'static str) -> Result<&[u8], Failure> {
        if self.filled - self.taken < count {
            self.fill(count)?;
            if self.filled - self.taken < count {
                return Err(self.failure(Reason::CutOff { what }));
            }
        }
        let from = self.taken;
        self.taken += count;
        Ok(&self.buffer[from..self.taken])
    }

    /// Takes so many bytes as an array.
    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Failure> {
        let mut array = [0; N];
        array.copy_from_slice(self.next_bytes(N, what)?);
        Ok(array)
    }

    /// Sees to it that `count` bytes are in the buffer, if there are so many.
    fn fill(&mut self, count: usize) -> Result<(), Failure> {
        if self.filled - self.taken >= count {
            return Ok(());
        }
        self.buffer.copy_within(self.taken..self.filled, 0);
        self.base += self.taken as u64;
        self.filled -= self.taken;
        self.taken = 0;
        // After a long record the room it needed is given back.
        if self.buffer.len() > READ_BYTES && count.max(self.filled) <= READ_BYTES {
            self.buffer.truncate(READ_BYTES);
            self.buffer.shrink_to_fit();
        }
        while self.filled < count {
            if self.filled == self.buffer.len() {
                // To no more than twice what has arrived.
                let size = (2 * self.filled).min(count.max(READ_BYTES));
                self.buffer.resize(size, 0);
            }
            let room = &mut self.buffer[self.filled..];
            match self.stream.read(room) {
                Ok(0) => break,
                Ok(more) => self.filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let at = self.base + self.filled as u64;
                    return Err(Failure::at(at, Reason::Read(error)));
                }
            }
        }
        Ok(())
    }
}

/// As a plain stream, for decoders: what goes wrong in the source is marked.
impl Read for Input {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.filled {
            self.base += self.taken as u64;
            (self.taken, self.filled) = (0, 0);
            if into.len() >= self.buffer.len() {
                let count = self.stream.read(into).map_err(of_source)?;
                self.base += count as u64;
                return Ok(count);
            }
            self.filled = self.stream.read(&mut self.buffer).map_err(of_source)?;
        }
        let count = into.len().min(self.filled - self.taken);
        into[..count].copy_from_slice(&self.buffer[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time.
    struct OneByteReader(Vec<u8>, usize);

    impl Read for OneByteReader {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let Some(byte) = self.0.get(self.1) else { return Ok(0) };
            into[0] = *byte;
            self.1 += 1;
            Ok(1)
        }
    }

    #[test]
    fn bytes_come_in_order_however_they_arrive() {
        let bytes: Vec<u8> = (0..=255).cycle().take(2_000).collect();
        let mut input = Input::new(Box::new(OneByteReader(bytes.clone(), 0)));
        assert_eq!(input.peek(3).unwrap(), &bytes[..3]);
        assert_eq!(input.next_bytes(700, "").unwrap(), &bytes[..700]);
        assert_eq!(input.array::<4>("").unwrap(), bytes[700..704]);
        let mut rest = Vec::new();
        assert_eq!(input.at(), 704);
        input.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, &bytes[704..]);
        assert!(input.is_at_end().unwrap());
    }

    #[test]
    fn a_promised_length_takes_no_memory() {
        let mut input = Input::new(Box::new(&b"short"[..]));
        let failure = input.next_bytes(1 << 40, "a record").unwrap_err().of("f").to_string();
        assert_eq!(failure, "f: offset 0: the file ends within a record: cut off; write it again");
        assert!(input.buffer.capacity() <= READ_BYTES);
    }

    #[test]
    fn room_for_a_long_record_is_given_back() {
        let mut input = Input::new(Box::new(io::repeat(7)));
        assert_eq!(input.next_bytes(5 * READ_BYTES + 1, "").unwrap().len(), 5 * READ_BYTES + 1);
        for _ in 0..20 {
            input.next_bytes(READ_BYTES - 1, "").unwrap();
        }
        assert_eq!(input.buffer.len(), READ_BYTES);
        assert_eq!(input.at(), (25 * READ_BYTES - 19) as u64);
    }
}
