//! Records of equal keys of one attempt become one: those of a frame when it comes, and those of several frames when chunks are
//! full or go out. Frames that are out are not looked at again.

use super::{Attempt, Buffer, Failed};
use crate::shuffle::ShuffleId;
use crate::shuffle::combine::{self, Less};
use crate::shuffle::record::Segment;
use crate::shuffle::records::PackedRecords;

impl Buffer {
    /// A frame as it is stored. Its attempt has these records from now on.
    pub(super) fn combine_frame(
        &mut self,
        attempt: Attempt,
        mut segment: Segment,
    ) -> Result<Segment, Failed> {
        let how = self.shuffles.get(&attempt.shuffle).and_then(|open| open.combine);
        let before = segment.records.count();
        if let Some(how) = how {
            let mut records = segment.records.unpack();
            for record in &mut records {
                record.value = how.stored(&record.value).map_err(Failed::NoNumber)?.into();
            }
            segment.records = PackedRecords::of(&records);
            combine::segments(how, std::slice::from_mut(&mut segment));
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
        let Some(open) = self.shuffles.get_mut(&shuffle) else { return false };
        let Some(how) = open.combine else { return false };
        let mut less = Less::new();
        for segments in open.chunks.values_mut().flat_map(|tagged| tagged.values_mut()) {
            for (number, (records, bytes)) in combine::segments(how, segments) {
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
