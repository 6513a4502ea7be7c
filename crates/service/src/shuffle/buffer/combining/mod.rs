//! Records of equal keys of one attempt become one: those of a frame when it comes, and those of several frames when chunks are
//! full or go out. Frames that are out are not looked at again.
//!
//! Both take memory besides the records, and have it in the budget of the buffer: a frame comes in when there is room for that,
//! too, and for chunks a part of the buffer is left free while a shuffle that combines is written here: for the keys of the list
//! of segments that is combined, and for copies of all that is left of a chunk. The parts of a frame share its bytes, so these go
//! only with the last of them.

use super::{Attempt, Buffer, Failed};
use crate::shuffle::ShuffleId;
use crate::shuffle::combine::{self, Less};
use crate::shuffle::record::Segment;

/// One in so many bytes of the buffer is left free to combine chunks.
const COMBINING_PART: u64 = 8;
/// But no more than this: it suffices for a hundred thousand keys of one range, which are more than its part of a chunk has.
const COMBINING_BYTES: u64 = 16 << 20;

impl Buffer {
    /// What combining a list of segments takes at most, in bytes.
    fn combining_memory(&self) -> u64 {
        (self.settings.buffer_bytes / COMBINING_PART).min(COMBINING_BYTES)
    }

    /// The memory for what is held and under way, in bytes.
    pub(super) fn most_memory(&self) -> u64 {
        let combines = self.shuffles.values().any(|open| open.combine.is_some() && !open.attempts.is_empty());
        let copies = self.settings.chunk_bytes.min(self.settings.buffer_bytes / COMBINING_PART);
        self.settings.buffer_bytes - if combines { self.combining_memory() + copies } else { 0 }
    }

    /// A frame as it is stored. Its attempt has these records from now on.
    pub(super) fn combine_frame(
        &mut self,
        attempt: Attempt,
        mut segment: Segment,
    ) -> Result<Segment, Failed> {
        let how = self.shuffles.get(&attempt.shuffle).and_then(|open| open.combine);
        let before = segment.records.count();
        if let Some(how) = how {
            segment.records = combine::frame(how, &segment.records).map_err(Failed::NoNumber)?;
        }
        self.counts.combined_records += before - segment.records.count();
        if let Some(held) = self.held(attempt) {
            held.records += segment.records.count();
            held.bytes += segment.bytes();
        }
        Ok(segment)
    }

    /// Combines what is held of a shuffle. The answer says whether at most half of what fills chunks is left, so that they need
    /// not go out.
    pub(super) fn combine_chunks(&mut self, shuffle: ShuffleId) -> bool {
        let most_memory = self.combining_memory();
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return false };
        let Some(how) = open.combine else { return false };
        let mut less = Less::new();
        for segments in open.chunks.values_mut().flat_map(|tagged| tagged.values_mut()) {
            for (number, (records, bytes)) in combine::segments(how, segments, most_memory) {
                let sum = less.entry(number).or_default();
                *sum = (sum.0 + records, sum.1 + bytes);
            }
            segments.retain(|segment| !segment.records.is_empty());
        }
        for held in open.attempts.values_mut() {
            let (records, bytes) = less.get(&held.number).copied().unwrap_or_default();
            (held.records, held.bytes) = (held.records - records, held.bytes - bytes);
        }
        open.count_segments();
        for (records, bytes) in less.into_values() {
            (open.records, open.bytes) = (open.records - records, open.bytes - bytes);
            self.counts.combined_records += records;
        }
        2 * open.bytes <= self.settings.chunk_bytes
    }
}

#[cfg(test)]
mod tests;
