//! A buffer that begins at a multiple of the block size in memory, as a write past the page cache (`O_DIRECT`) asks.

use crate::segment::BLOCK;

/// Bytes of which the first lies at a multiple of [`BLOCK`]: a part of a vector that is one block larger.
#[derive(Debug, Default)]
pub(crate) struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// A buffer with a copy of `content`, and zeros up to the next multiple of [`BLOCK`].
    pub(crate) fn of(content: &[u8]) -> AlignedBuffer {
        let mut buffer = AlignedBuffer::default();
        buffer.fill(content);
        buffer
    }

    /// Copies `content` to the start, and puts zeros behind it up to the next multiple of [`BLOCK`].
    pub(crate) fn fill(&mut self, content: &[u8]) {
        self.len = content.len().next_multiple_of(BLOCK);
        if self.bytes.len() < self.len + BLOCK {
            self.bytes = vec![0; (self.len + BLOCK).next_power_of_two()];
            self.start = self.bytes.as_ptr().addr().wrapping_neg() % BLOCK;
        }
        let room = &mut self.bytes[self.start..self.start + self.len];
        let (written, rest) = room.split_at_mut(content.len());
        written.copy_from_slice(content);
        rest.fill(0);
    }

    /// Lets go of the memory if there is more of it than so many bytes.
    pub(crate) fn shrink(&mut self, most: usize) {
        if self.bytes.len() > most {
            *self = AlignedBuffer::default();
        }
    }

    /// What was filled in, with the zeros behind it.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_ends_in_zeros() {
        let mut buffer = AlignedBuffer::default();
        for bytes in [1, BLOCK - 1, BLOCK, BLOCK + 1, 10 * BLOCK + 7, 3] {
            buffer.fill(&vec![0xab; bytes]);
            let slice = buffer.as_slice();
            assert_eq!(slice.as_ptr().addr() % BLOCK, 0);
            assert_eq!(slice.len() % BLOCK, 0);
            assert!(slice[..bytes].iter().all(|byte| *byte == 0xab));
            assert!(slice[bytes..].iter().all(|byte| *byte == 0), "the rest of {bytes} bytes");
        }
    }
}
