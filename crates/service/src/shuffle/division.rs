//! What a range is divided by: which batches count, and what of them. Nothing is inferred from what happens to lie on a disk
//! (rules 3 and 4).

use super::bounds::{Bounds, Tag};
use super::record::{Batch, BatchKey, Body, Segment, Stream};
use super::{Durability, PoolSlot, ShuffleId, TaskId, Writer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a holder divides: what lies in a slot under tags that are wanted no more.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Division {
    /// The task; what it writes is a stream of its own.
    pub task: TaskId,
    /// The shuffle whose records are divided.
    pub shuffle: ShuffleId,
    /// The slot whose batches the holder reads for it.
    pub slot: PoolSlot,
    /// The tags, and up to which batch of each writer they were divided before.
    pub tags: BTreeMap<Tag, BTreeMap<Writer, u64>>,
    /// Up to which batch of each writer they are divided now.
    pub upto: BTreeMap<Writer, u64>,
    /// The bounds by which they are divided.
    pub to: Arc<Bounds>,
    /// How durable what it writes is, as the shuffle was started.
    pub durability: Durability,
}

impl Division {
    /// What is read for it: of each writer the batches behind the first number, up to the second one. What was divided before
    /// under each of the tags is not read.
    pub fn wanted(&self) -> impl Iterator<Item = (&Writer, u64, u64)> {
        let before = move |writer: &Writer| {
            let divided = self.tags.values().map(|before| before.get(writer).copied().unwrap_or(0));
            divided.min()
        };
        self.upto.iter().filter_map(move |(writer, upto)| Some((writer, before(writer)?, *upto)))
    }

    /// The batches that are read for it.
    pub fn batches(&self) -> impl Iterator<Item = BatchKey> {
        self.wanted().flat_map(move |(writer, before, upto)| {
            let stream = Stream { shuffle: self.shuffle, slot: self.slot, writer: writer.clone() };
            (before + 1..=upto).map(move |number| BatchKey { stream: stream.clone(), number })
        })
    }

    /// The segments of a batch that are divided.
    fn segments_of<'a>(&'a self, batch: &'a Batch) -> impl Iterator<Item = &'a Segment> {
        let BatchKey { stream, number } = &batch.key;
        let is_upto = self.upto.get(&stream.writer).is_some_and(|upto| number <= upto);
        let tagged = match &batch.body {
            Body::Records(tagged)
                if stream.shuffle == self.shuffle && stream.slot == self.slot && is_upto =>
            {
                Some(tagged)
            }
            _ => None,
        };
        let wanted = tagged.into_iter().flatten().filter(move |(tag, _)| {
            let before = self.tags.get(*tag).map(|before| before.get(&stream.writer).copied().unwrap_or(0));
            before.is_some_and(|before| *number > before)
        });
        wanted.flat_map(|(_, segments)| segments)
    }

    /// What is to be divided, from the batches of the slot. Others may be among these; each must be there once. Of each batch
    /// the records are copied together: the rest of it need not stay in memory.
    pub fn collect<'a>(&self, batches: impl IntoIterator<Item = &'a Arc<Batch>>) -> Vec<Segment> {
        let mut segments = Vec::new();
        for batch in batches {
            let room: usize = self.segments_of(batch).map(|one| one.records.bytes().len()).sum();
            let mut all = Vec::with_capacity(room);
            self.segments_of(batch).for_each(|one| all.extend_from_slice(one.records.bytes()));
            let (all, mut at) = (bytes::Bytes::from(all), 0);
            segments.extend(self.segments_of(batch).map(|one| {
                let records = one.records.moved(&all, at);
                at += records.bytes().len();
                Segment { records, ..one.clone() }
            }));
        }
        segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shuffle::records::PackedRecords;
    use crate::shuffle::{AttemptKey, BufferId, RangeId};
    use partage_core::base::id::{Epoch, Incarnation};
    use partage_core::base::name::NodeId;

    const SHUFFLE: ShuffleId = ShuffleId(7);

    #[test]
    fn what_is_divided_of_a_batch_is_copied_together_and_nothing_else_is() {
        let buffer = BufferId { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) };
        let attempt = AttemptKey { buffer: buffer.clone(), number: 1 };
        let segment = |value: &[u8]| {
            let records = PackedRecords::pack([(&b"k"[..], value)]);
            Segment { attempt: attempt.clone(), partition: 0, frame: 1, records }
        };
        let writer = Writer::Buffer(buffer);
        let tag = |range| Tag { version: 0, range: RangeId(range) };
        let batch = |number| {
            let stream = Stream { shuffle: SHUFFLE, slot: PoolSlot(0), writer: writer.clone() };
            let tagged = [(tag(1), vec![segment(b"one")]), (tag(2), vec![segment(b"two")])];
            let tagged = tagged.into_iter().chain([(tag(3), vec![segment(b"three"), segment(b"four")])]);
            let (key, body) = (BatchKey { stream, number }, Body::Records(tagged.collect()));
            Arc::new(Batch { key, durability: Durability::Disk, body })
        };
        let division = Division {
            task: TaskId { epoch: Epoch(1), number: 1 },
            shuffle: SHUFFLE,
            slot: PoolSlot(0),
            // Range 1 was divided up to the second batch before.
            tags: [(tag(1), [(writer.clone(), 2)].into()), (tag(3), BTreeMap::new())].into(),
            upto: [(writer.clone(), 3)].into(),
            to: Arc::new(Bounds::stashes(1)),
            durability: Durability::Disk,
        };
        assert_eq!(division.wanted().collect::<Vec<_>>(), [(&writer, 0, 3)]);
        assert_eq!(division.batches().map(|key| key.number).collect::<Vec<_>>(), [1, 2, 3]);
        let of = |number| division.collect([&batch(number)]);
        assert_eq!(of(1), [segment(b"three"), segment(b"four")]);
        let found = of(3);
        assert_eq!(found, [segment(b"one"), segment(b"three"), segment(b"four")]);
        let ends = found.iter().map(|one| one.records.bytes().as_ptr_range().end);
        let begins = found.iter().map(|one| one.records.bytes().as_ptr_range().start);
        assert!(ends.zip(begins.skip(1)).all(|(end, begin)| end == begin), "in one place of memory");
        assert_eq!(of(4), []);
    }
}
