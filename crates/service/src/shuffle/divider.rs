//! Divides the records of a frame by bounds, with one look at each key and one copy of each record.
//!
//! ```text
//!  frame    a1 b1 b2 a2 c1        runs, each with its range:  a1 · b1 b2 · a2 · c1
//!  copied   a1 a2 b1 b2 c1        by range, runs of a range in the order of the frame
//! ```
//!
//! The copy goes from its first byte to its last, so its memory is not cleared first; records of a range that come one after the
//! other are copied as one. A frame whose records are all in one range is not copied by [`Divider`], as it has its memory alone.
//! [`divide`] copies such a segment, too: it may be a small part of a batch, all of which it would keep in memory.

use super::PoolSlot;
use super::bounds::{Finder, Tag};
use super::record::{Segment, Tagged};
use super::records::PackedRecords;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Runs of a frame for which a divider keeps its memory: a frame of 256 KiB with records of 16 bytes has no more. Frames of more
/// records come seldom.
const KEPT_RUNS: usize = 16 << 10;

/// Divides segments by bounds, and by the slots that the ranges have. A segment that is divided keeps its order in every part. No
/// part shares memory with what was divided.
pub fn divide(
    segments: impl IntoIterator<Item = Segment>,
    bounds: &Finder,
    slot_of: impl Fn(Tag) -> PoolSlot,
) -> BTreeMap<PoolSlot, Tagged> {
    let (mut divided, mut divider) = (BTreeMap::<PoolSlot, Tagged>::new(), Divider::default());
    for segment in segments {
        let source = segment.records.bytes().as_ptr();
        divider.divide(
            segment,
            bounds,
            |_| (),
            |tag, part| {
                let is_whole = part.records.bytes().as_ptr() == source;
                let part = if is_whole { copied(part) } else { part };
                divided.entry(slot_of(tag)).or_default().entry(tag).or_default().push(part);
            },
        );
    }
    divided
}

/// The segment with records that have their memory alone.
fn copied(segment: Segment) -> Segment {
    let records = &segment.records;
    let bytes = Bytes::copy_from_slice(records.bytes());
    let records = PackedRecords::part(records.count(), records.content_bytes(), bytes);
    Segment { records, ..segment }
}

/// What of a frame is in one range.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    records: u64,
    content: u64,
    bytes: usize,
    runs: usize,
    /// Where the next run of it stands, in the order of ranges.
    next: usize,
}

/// Records that come one after the other and are in one range.
#[derive(Debug, Clone, Copy)]
struct Run {
    range: usize,
    begin: usize,
    end: usize,
}

/// Divides segments. What memory it needs for one it keeps for the next.
#[derive(Debug, Clone, Default)]
pub struct Divider {
    /// For each range by its place: nothing, between two segments.
    parts: Vec<Part>,
    /// The places of the ranges that have some of the segment.
    touched: Vec<usize>,
    runs: Vec<Run>,
    /// Where each run begins and ends, in the order of ranges.
    ordered: Vec<(usize, usize)>,
}

impl Divider {
    /// Hands each key to `look`, in the order of the records, and then each part of the segment to `put`, in the order of ranges.
    pub fn divide(
        &mut self,
        segment: Segment,
        bounds: &Finder,
        mut look: impl FnMut(&[u8]),
        mut put: impl FnMut(Tag, Segment),
    ) {
        if bounds.has_stashes() {
            segment.records.iter().for_each(|(key, _)| look(key));
            let turn = segment.attempt.number.wrapping_add(segment.frame);
            return put(bounds.tag_of(&[], turn), segment);
        }
        self.find_runs(&segment.records, bounds, look);
        if let [range] = self.touched[..] {
            self.touched.clear();
            self.parts[range] = Part::default();
            return put(bounds.tag_at(range), segment);
        }
        let Segment { attempt, partition, frame, records } = segment;
        self.gather(&records, |range, records| {
            put(bounds.tag_at(range), Segment { attempt: attempt.clone(), partition, frame, records });
        });
    }

    /// Which records are in which range.
    fn find_runs(&mut self, records: &PackedRecords, bounds: &Finder, mut look: impl FnMut(&[u8])) {
        let ranges = bounds.ranges.len().max(1);
        if self.parts.len() < ranges {
            self.parts.resize(ranges, Part::default());
        }
        self.runs.clear();
        let bytes = &records.bytes()[..];
        for place in records.places() {
            let key = &bytes[place.key.clone()];
            look(key);
            let range = bounds.place_of(key);
            // The finder gives no place beyond the last range: a record that was left out here would be lost.
            let part = &mut self.parts[range];
            let (begin, end) = (place.record.start, place.record.end);
            match self.runs.last_mut() {
                Some(last) if last.range == range && last.end == begin => last.end = end,
                _ => {
                    if part.runs == 0 {
                        self.touched.push(range);
                    }
                    part.runs += 1;
                    self.runs.push(Run { range, begin, end });
                }
            }
            part.records += 1;
            part.content += (place.key.len() + place.value.len()) as u64;
            part.bytes += end - begin;
        }
        self.touched.sort_unstable();
    }

    /// The records of each range, by its place, in their order: all are copied into bytes that they share.
    fn gather(&mut self, records: &PackedRecords, mut put: impl FnMut(usize, PackedRecords)) {
        let (mut runs, mut room) = (0, 0);
        for range in &self.touched {
            let part = &mut self.parts[*range];
            part.next = runs;
            runs += part.runs;
            room += part.bytes;
        }
        self.ordered.clear();
        self.ordered.resize(runs, (0, 0));
        for run in &self.runs {
            let next = &mut self.parts[run.range].next;
            self.ordered[*next] = (run.begin, run.end);
            *next += 1;
        }
        let (bytes, mut all) = (&records.bytes()[..], Vec::with_capacity(room));
        for (begin, end) in &self.ordered {
            all.extend_from_slice(&bytes[*begin..*end]);
        }
        let (all, mut at) = (Bytes::from(all), 0);
        for range in self.touched.drain(..) {
            let Part { records, content, bytes, .. } = std::mem::take(&mut self.parts[range]);
            put(range, PackedRecords::part(records, content, all.slice(at..at + bytes)));
            at += bytes;
        }
        if self.runs.capacity() > KEPT_RUNS {
            (self.runs, self.ordered) = (Vec::new(), Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shuffle::bounds::{Bounds, Range};
    use crate::shuffle::{AttemptKey, BufferId, RangeId};
    use partage_core::base::id::Incarnation;
    use partage_core::base::name::NodeId;
    use proptest::prelude::*;

    fn bounds(begins: &[u8]) -> Finder {
        let range = |(id, begins): (u64, &[u8])| Range { id: RangeId(id), begins: begins.into() };
        let begins = std::iter::once(&[][..]).chain(begins.chunks(1));
        Finder::new(Bounds { version: 1, ranges: (0..).zip(begins).map(range).collect() }.into())
    }

    fn segment(frame: u64, records: &[(Vec<u8>, Vec<u8>)]) -> Segment {
        let buffer = BufferId { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) };
        let records = PackedRecords::pack(records.iter().map(|(key, value)| (&key[..], &value[..])));
        Segment { attempt: AttemptKey { buffer, number: 1 }, partition: 1, frame, records }
    }

    fn records() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
        let key = prop_oneof![Just(vec![]), prop::collection::vec(0..60u8, 1..3)];
        prop::collection::vec((key, prop::collection::vec(any::<u8>(), 0..150)), 0..40)
    }

    proptest! {
        #[test]
        fn a_divider_that_was_used_divides_as_record_by_record(
            frames in prop::collection::vec(
                (records(), prop::collection::btree_set(1..60u8, 0..8)),
                1..6,
            ),
        ) {
            let mut divider = Divider::default();
            for (number, (records, begins)) in (1..).zip(frames) {
                let bounds = bounds(&begins.into_iter().collect::<Vec<u8>>());
                let whole = segment(number, &records);
                let (mut seen, mut found) = (Vec::new(), Vec::new());
                let look = |key: &[u8]| seen.push(key.to_vec());
                divider.divide(whole.clone(), &bounds, look, |tag, part| found.push((tag, part)));
                let keys: Vec<Vec<u8>> = records.iter().map(|(key, _)| key.clone()).collect();
                prop_assert_eq!(seen, keys);
                let mut expected: BTreeMap<Tag, Vec<_>> = BTreeMap::new();
                for record in &records {
                    expected.entry(bounds.tag_of(&record.0, 0)).or_default().push(record.clone());
                }
                let expected: Vec<(Tag, Segment)> =
                    expected.into_iter().map(|(tag, records)| (tag, segment(number, &records))).collect();
                prop_assert_eq!(found, expected);
                prop_assert!(divider.touched.is_empty());
                prop_assert!(divider.parts.iter().all(|part| part.runs == 0 && part.bytes == 0));
            }
        }
    }

    #[test]
    fn a_frame_of_one_range_is_not_copied_and_neighbours_are_one_run() {
        let record = |key: u8| (vec![key], vec![key; 5]);
        let sorted: Vec<_> = (0..40).map(record).collect();
        let whole = segment(1, &sorted);
        let mut divider = Divider::default();
        let mut found = Vec::new();
        divider.divide(whole.clone(), &bounds(&[50]), |_| (), |_, part| found.push(part));
        assert_eq!(found, std::slice::from_ref(&whole));
        assert_eq!(found[0].records.bytes().as_ptr(), whole.records.bytes().as_ptr());
        found.clear();
        divider.divide(whole, &bounds(&[10, 30]), |_| (), |_, part| found.push(part));
        assert_eq!((found.len(), divider.runs.len()), (3, 3));
    }

    #[test]
    fn r1_a_part_keeps_nothing_of_the_batch_that_it_was_a_part_of() {
        let record = |key: u8| (vec![key], vec![key; 50]);
        let wholes = [segment(1, &[record(1), record(2)]), segment(2, &[record(7)]), segment(3, &[])];
        // As they lie in a batch that was read.
        let batch: Bytes = wholes.iter().flat_map(|whole| whole.records.bytes().to_vec()).collect();
        let mut at = 0;
        let lying = wholes.clone().map(|whole| {
            let bytes = batch.slice(at..at + whole.records.bytes().len());
            at += bytes.len();
            let (count, content) = (whole.records.count(), whole.records.content_bytes());
            Segment { records: PackedRecords::part(count, content, bytes), ..whole }
        });
        let divided = divide(lying, &bounds(&[5]), |_| PoolSlot(1));
        let parts: Vec<Segment> = divided.into_values().flat_map(BTreeMap::into_values).flatten().collect();
        assert_eq!(parts.iter().map(|part| part.records.count()).sum::<u64>(), 3);
        assert!(parts.iter().all(|part| wholes.contains(part)), "{parts:?}");
        assert!(batch.is_unique(), "a part holds the batch");
    }

    #[test]
    fn r1_memory_for_a_frame_of_very_many_records_is_given_back() {
        // Neighbours are in different ranges.
        let many: Vec<(Vec<u8>, Vec<u8>)> =
            (0..3 * KEPT_RUNS).map(|at| (vec![(at % 2) as u8], Vec::new())).collect();
        let (mut divider, bounds, mut count) = (Divider::default(), bounds(&[1]), 0);
        for records in [&many[..], &many[..60]] {
            divider.divide(segment(1, records), &bounds, |_| (), |_, part| count += part.records.count());
        }
        assert_eq!(count, many.len() as u64 + 60);
        assert!(divider.runs.capacity() <= KEPT_RUNS && divider.ordered.capacity() <= KEPT_RUNS);
    }
}
