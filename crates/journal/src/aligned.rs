//! A buffer that begins at a multiple of the block size in memory, as a write past the page cache (`O_DIRECT`) asks.

/// What is written past the page cache begins and ends at multiples of so many bytes, in the file and in memory: the page of most
/// disks, and a multiple of what any disk asks.
pub const BLOCK: usize = 4096;

/// Bytes of which the first lies at a multiple of [`BLOCK`], and zeros behind them up to the next multiple: a part of a vector
/// that has room for one block more. What is put into it next lies in the same memory.
#[derive(Debug, Default)]
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
}

/// Where in the memory of a vector the first block begins.
fn start_of(bytes: &[u8]) -> usize {
    bytes.as_ptr().addr().wrapping_neg() % BLOCK
}

impl AlignedBuffer {
    /// A buffer with a copy of `content`.
    pub fn of(content: &[u8]) -> AlignedBuffer {
        let mut buffer = AlignedBuffer::default();
        buffer.fill(content);
        buffer
    }

    /// Puts a copy of `content` in place of what was there.
    pub fn fill(&mut self, content: &[u8]) {
        self.clear(content.len());
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    /// Puts what `put` adds to a vector in place of what was there; bytes that the vector has before are no part of it. `put`
    /// adds no more than `room` bytes; else all are copied once more.
    pub fn build<T>(&mut self, room: usize, put: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.clear(room);
        let put = put(&mut self.bytes);
        self.pad();
        if start_of(&self.bytes) != self.start {
            let (bytes, start) = (std::mem::take(&mut self.bytes), self.start);
            self.fill(&bytes[start..]);
        }
        put
    }

    /// Lets go of the memory if there is more of it than so many bytes.
    pub fn shrink(&mut self, most: usize) {
        if self.bytes.capacity() > most {
            *self = AlignedBuffer::default();
        }
    }

    /// What was put there, with the zeros behind it.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn clear(&mut self, room: usize) {
        let room = room.next_multiple_of(BLOCK) + BLOCK;
        self.bytes.clear();
        if self.bytes.capacity() < room {
            // Exactly, and nothing of the former memory is copied.
            self.bytes = Vec::with_capacity(room);
        }
        self.start = start_of(&self.bytes);
        self.bytes.resize(self.start, 0);
    }

    fn pad(&mut self) {
        let end = self.start + (self.bytes.len() - self.start).next_multiple_of(BLOCK);
        self.bytes.resize(end, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_whole(buffer: &AlignedBuffer, bytes: usize) {
        let slice = buffer.as_slice();
        assert_eq!(slice.as_ptr().addr() % BLOCK, 0);
        assert_eq!(slice.len(), bytes.next_multiple_of(BLOCK));
        assert!(slice[..bytes].iter().all(|byte| *byte == 0xab));
        assert!(slice[bytes..].iter().all(|byte| *byte == 0), "the rest of {bytes} bytes");
    }

    #[test]
    fn a_buffer_is_aligned_and_ends_in_zeros() {
        let mut buffer = AlignedBuffer::default();
        for bytes in [1, BLOCK - 1, BLOCK, BLOCK + 1, 10 * BLOCK + 7, 3] {
            buffer.fill(&vec![0xab; bytes]);
            is_whole(&buffer, bytes);
            // With the room that was asked for, with too little of it, and with what there is from before.
            for room in [bytes, 0, bytes] {
                let mut built = AlignedBuffer::default();
                for buffer in [&mut built, &mut buffer] {
                    let put = |out: &mut Vec<u8>| {
                        let start = out.len();
                        out.resize(start + bytes, 0xab);
                        out.len() - start
                    };
                    assert_eq!(buffer.build(room, put), bytes);
                    is_whole(buffer, bytes);
                }
            }
        }
        let kept = buffer.as_slice().as_ptr();
        buffer.fill(&[0xab; 9]);
        assert_eq!(buffer.as_slice().as_ptr(), kept);
        buffer.shrink(BLOCK);
        assert!(buffer.as_slice().is_empty());
    }
}
