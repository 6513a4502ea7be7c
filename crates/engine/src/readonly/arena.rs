//! Memory for entries that wait to be sorted: taken once, filled from front to back, emptied, filled again.
//!
//! The kernel gives memory as it is first written, four KiB at a time, and for entries of a hundred bytes that takes
//! longer than all that is done with them. So large arenas ask for pages of two MiB.

use std::io;

use memmap2::{Advice, MmapMut};

use crate::limits::HUGE_BYTES;

/// Bytes that are only added to.
#[derive(Debug)]
pub struct Arena {
    map: MmapMut,
    used: usize,
}

impl Arena {
    /// Room for so many bytes; none of it is taken from the machine yet.
    pub fn new(room: usize) -> io::Result<Arena> {
        let map = MmapMut::map_anon(room.max(1))?;
        if room >= HUGE_BYTES {
            // A hint: without it all is as before, but slower.
            let _ = map.advise(Advice::HugePage);
        }
        Ok(Arena { map, used: 0 })
    }

    /// What was added.
    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.used]
    }

    /// How much more can be added.
    pub fn left(&self) -> usize {
        self.map.len() - self.used
    }

    /// Adds bytes for which there is room.
    pub fn add(&mut self, bytes: &[u8]) {
        self.map[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }

    /// Forgets what was added.
    pub fn clear(&mut self) {
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_there_until_it_is_forgotten() {
        for room in [0, 10, HUGE_BYTES + 1] {
            let mut arena = Arena::new(room).unwrap();
            assert!(arena.bytes().is_empty() && arena.left() >= room);
            for _ in 0..2 {
                (0..room.min(5)).for_each(|_| arena.add(b"ab"[..2.min(room / 5)].as_ref()));
                assert_eq!(arena.bytes(), b"ab".repeat(5)[..arena.bytes().len()].as_ref());
                arena.clear();
            }
        }
    }
}
