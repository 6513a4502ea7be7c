//! What a batch has before its records: whose they are, how many, and where. A count needs no more, and a read of a range knows
//! by it which records it wants.

use super::bounds::Tag;
use super::record::{Batch, BatchKey, Body, EndMark, Segment};
use super::{AttemptKey, Durability};
use std::collections::BTreeMap;

/// A segment without its records.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SegmentHead {
    /// The attempt that the records belong to.
    pub attempt: AttemptKey,
    /// The input partition of that attempt.
    pub partition: u32,
    /// The number of the frame in the attempt.
    pub frame: u64,
    /// How many records it has.
    pub records: u64,
    /// Their keys and values, in bytes.
    pub bytes: u64,
    /// What they take as they lie together, in bytes.
    pub packed: usize,
}

impl SegmentHead {
    /// That of a segment.
    pub fn of(segment: &Segment) -> SegmentHead {
        let Segment { attempt, partition, frame, records } = segment;
        SegmentHead {
            attempt: attempt.clone(),
            partition: *partition,
            frame: *frame,
            records: records.count(),
            bytes: records.content_bytes(),
            packed: records.bytes().len(),
        }
    }
}

/// What a batch carries, without records.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HeadBody {
    /// Its segments, by the tags that they were written by.
    Records(BTreeMap<Tag, Vec<SegmentHead>>),
    /// An attempt is whole.
    Mark(EndMark),
}

/// A batch without its records.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BatchHead {
    /// The stream and the number of the batch.
    pub key: BatchKey,
    /// Where the batch is when its holder says that it is stored.
    pub durability: Durability,
    /// Segments, or the mark of a whole attempt.
    pub body: HeadBody,
}

impl BatchHead {
    /// That of a batch.
    pub fn of(batch: &Batch) -> BatchHead {
        let body = match &batch.body {
            Body::Records(tagged) => {
                let heads = |segments: &[Segment]| -> Vec<SegmentHead> {
                    segments.iter().map(SegmentHead::of).collect()
                };
                HeadBody::Records(tagged.iter().map(|(tag, segments)| (*tag, heads(segments))).collect())
            }
            Body::Mark(mark) => HeadBody::Mark(mark.clone()),
        };
        BatchHead { key: batch.key.clone(), durability: batch.durability, body }
    }
}
