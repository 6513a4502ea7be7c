//! Memory for entries that wait to be sorted: taken once, filled, emptied, filled again, and handed on from one builder to
//! the next.
//!
//! The kernel gives memory as it is first written, four KiB at a time, and for entries of a hundred bytes that takes
//! longer than all that is done with them. So large arenas ask for pages of two MiB. Taking memory back costs as much
//! again, and holds up every thread of the process: so a load gives it back when it ends, and not with each builder.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Advice, MmapMut};

use super::prefetch::prefetch;
use crate::limits::{HUGE_BYTES, LINE_BYTES};

/// What is prefetched at once: an entry of common size.
pub const PREFETCHED_BYTES: usize = 3 * LINE_BYTES;

/// Bytes to write to.
#[derive(Debug)]
pub struct Arena {
    map: MmapMut,
}

impl Arena {
    /// Room for so many bytes; none of it is taken from the machine yet.
    fn new(room: usize) -> io::Result<Arena> {
        let map = MmapMut::map_anon(room.max(1))?;
        if room >= HUGE_BYTES {
            // A hint: without it all is as before, but slower.
            let _ = map.advise(Advice::HugePage);
        }
        Ok(Arena { map })
    }

    /// All of its bytes, written or not.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The same, to be written to.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }

    /// How many bytes there are.
    pub fn room(&self) -> usize {
        self.map.len()
    }
}

/// Arenas that are not in use: builders of the same load take them one after the other. Never more of them, nor larger
/// ones, than were in use at a time. Gone with the last copy of this.
#[derive(Debug, Clone, Default)]
pub struct Arenas {
    idle: Arc<Mutex<Vec<Arena>>>,
}

impl Arenas {
    /// An idle one with that room, or a new one.
    pub fn take(&self, room: usize) -> io::Result<Arena> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let found = idle.iter().position(|arena| arena.room() == room);
        match found {
            Some(number) => Ok(idle.swap_remove(number)),
            None => Arena::new(room),
        }
    }

    /// Keeps one that its builder does not need any more.
    pub fn give_back(&self, arena: Arena) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(arena);
    }
}

/// Asks the processor to fetch the memory where these bytes are, of which a hundred or two are to be read, or written,
/// soon: nothing waits for it.
#[inline]
pub fn prefetch_range<const IS_WRITTEN: bool>(bytes: &[u8], at: usize) {
    for line in (at..at + PREFETCHED_BYTES).step_by(LINE_BYTES) {
        if let Some(byte) = bytes.get(line) {
            prefetch::<IS_WRITTEN>(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_taken_again() {
        for room in [1, 10, HUGE_BYTES + 1] {
            let arenas = Arenas::default();
            let mut first = arenas.take(room).unwrap();
            first.bytes_mut()[room - 1] = 7;
            let second = arenas.clone().take(room).unwrap();
            assert_eq!((first.room(), second.bytes()[room - 1]), (room, 0));
            arenas.give_back(first);
            assert_eq!(arenas.take(room + 1).unwrap().bytes()[room - 1], 0, "of another size");
            assert_eq!(arenas.take(room).unwrap().bytes()[room - 1], 7);
            assert_eq!(arenas.take(room).unwrap().bytes()[room - 1], 0, "there was one");
        }
    }
}
