//! What a sealed shuffle is read by. Like a [`Division`] it says exactly which batches count; nothing is inferred from what
//! happens to lie on a disk (rules 3 and 8).

use super::bounds::{Tag, common_bytes, word};
use super::head::{BatchHead, HeadBody, SegmentHead};
use super::ordered_records::{OrderedBuilder, OrderedRecords, RecordPlace};
use super::record::{Batch, BatchKey, Body, MEMORY_OF_RECORD, Segment};
use super::{AttemptKey, Bytes, PoolSlot, RangeId, ShuffleId, Writer};
use partage_core::base::planted::{self, Planted};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use super::division::Division;

/// An attempt that is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Winner {
    /// The input partition that it wins: no other winner has it.
    pub partition: u32,
    /// Its records, as its end mark counts them: after they were combined.
    pub records: u64,
    /// Their keys and values, in bytes.
    pub bytes: u64,
}

/// A range of a sealed shuffle.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlanRange {
    /// Its identity, by which the pool gives it a slot.
    pub id: RangeId,
    /// What was written by this version of the bounds or a later one lies in it.
    pub since: u32,
    /// Its first key: the range ends before the first key of the next one.
    pub begins: Bytes,
    /// The slot whose replicas have its records.
    pub slot: PoolSlot,
    /// Records of winners in it.
    pub records: u64,
    /// Their keys and values, in bytes.
    pub bytes: u64,
}

impl PlanRange {
    /// Whether what was written by a tag lies in the range.
    fn has(&self, tag: Tag) -> bool {
        tag.range == self.id && tag.version >= self.since
    }

    /// What there is under tags of the range, in their order: looked up by version, as a batch has tags of many ranges.
    fn under<'a, T>(&self, tagged: &'a BTreeMap<Tag, T>) -> impl Iterator<Item = (Tag, &'a T)> + use<'a, T> {
        let (range, mut next) = (self.id, Some(self.since));
        let versions = std::iter::from_fn(move || {
            let first = Tag { version: next?, range: RangeId(0) };
            let (tag, _) = tagged.range(first..).next()?;
            next = tag.version.checked_add(1);
            Some(tag.version)
        });
        versions.filter_map(move |version| {
            let tag = Tag { version, range };
            Some((tag, tagged.get(&tag)?))
        })
    }

    /// What its records take in memory at most while they are collected and put in order, in bytes: they are copied together
    /// twice, as they come and in order.
    pub fn sorting_memory(&self) -> u64 {
        self.records.saturating_mul(SORTING).saturating_add(self.bytes.saturating_mul(2))
    }
}

/// How far each stream of a slot is needed.
pub type Needed = BTreeMap<PoolSlot, BTreeMap<Writer, u64>>;

/// What a sealed shuffle is read by. It is final: any node that has it may serve, and any client may read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The shuffle that this plan seals.
    pub shuffle: ShuffleId,
    /// The attempts that are read: one for each input partition. What a plan says of one slot shares them with the whole plan.
    pub winners: Arc<BTreeMap<AttemptKey, Winner>>,
    /// The number up to which batches are needed, of each slot and writer.
    pub needed: Needed,
    /// The ranges, in the order of their keys.
    pub ranges: Vec<PlanRange>,
}

/// A record with its place in the order of a range, which lies apart from others: [`OrderedRecords`] are many of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placed {
    /// The client's key: records are in order of it first.
    pub key: bytes::Bytes,
    /// The input partition of its attempt: second in the order.
    pub partition: u32,
    /// The number of its frame in the attempt: third in the order.
    pub frame: u64,
    /// Its place among those of that frame that lie together.
    pub index: u32,
    /// The value, as the client sent it or combining left it.
    pub value: bytes::Bytes,
}

impl Placed {
    /// What it takes in memory, in bytes, besides its key and value: two views of shared bytes, its place, and two lengths.
    pub const AROUND: u64 = 96;

    /// What it takes in memory, in bytes: a record of length 0 counts too.
    pub fn memory(&self) -> u64 {
        Placed::AROUND + (self.key.len() + self.value.len()) as u64
    }

    /// Its key, and the bytes of its key and value.
    pub fn sized(&self) -> (&[u8], u64) {
        (&self.key, (self.key.len() + self.value.len()) as u64)
    }
}

/// A holder's records are not those that the plan counts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "range {range:?} has {found:?} records and bytes, and the plan counts {counted:?}: ask another replica, and tell an operator"
)]
pub struct Differs {
    /// The range of which the holder has other records.
    pub range: RangeId,
    /// Records and bytes that were found.
    pub found: (u64, u64),
    /// Records and bytes that the plan counts.
    pub counted: (u64, u64),
}

impl Plan {
    /// The records of all winners: those of the whole shuffle.
    pub fn records(&self) -> u64 {
        self.winners.values().map(|winner| winner.records).sum()
    }

    /// The first of these input partitions of which no attempt is read.
    pub fn first_without(&self, expected: &BTreeSet<u32>) -> Option<u32> {
        let read: BTreeSet<u32> = self.winners.values().map(|winner| winner.partition).collect();
        expected.difference(&read).next().copied()
    }

    /// The records of each range.
    pub fn counts(&self) -> Vec<u64> {
        self.ranges.iter().map(|range| range.records).collect()
    }

    /// The records and bytes of each range.
    pub fn held(&self) -> Vec<(u64, u64)> {
        self.ranges.iter().map(|range| (range.records, range.bytes)).collect()
    }

    /// The records of a range, in order, from the batches of its slot. Others may be among these; each must be there once.
    pub fn collect<'a>(
        &self,
        range: &PlanRange,
        batches: impl IntoIterator<Item = &'a Arc<Batch>>,
    ) -> OrderedRecords {
        let mut records = self.records_of(range);
        batches.into_iter().for_each(|batch| records.add(batch));
        records.in_order()
    }

    /// Collects the records of a range, batch by batch.
    pub fn records_of<'p>(&'p self, range: &'p PlanRange) -> RangeRecords<'p> {
        // All keys of the range begin as its first key and that of the next range both do.
        let next =
            self.ranges.iter().map(|other| &other.begins).filter(|begins| **begins > range.begins).min();
        let common = next.map_or(0, |next| common_bytes(&range.begins, next));
        let (taken, segments, entries) = (Vec::new(), Vec::new(), Vec::new());
        RangeRecords { plan: self, range, common, taken, segments, entries, bytes: 0 }
    }

    /// Whether a batch is one of those that are read of a slot.
    fn reads_batch(&self, slot: PoolSlot, key: &BatchKey) -> bool {
        let BatchKey { stream, number } = key;
        let upto = self.needed.get(&slot).and_then(|needed| needed.get(&stream.writer));
        stream.shuffle == self.shuffle && stream.slot == slot && upto.is_some_and(|upto| number <= upto)
    }

    /// Whether the records of an attempt are read.
    fn reads_attempt(&self, attempt: &AttemptKey) -> bool {
        self.winners.contains_key(attempt) || planted::is(Planted::LoserRead)
    }

    /// The segments of a batch that a range has, each with the tag that it lies under: all else is not read.
    pub fn segments_of<'a>(
        &'a self,
        range: &'a PlanRange,
        batch: &'a Batch,
    ) -> impl Iterator<Item = (Tag, &'a Segment)> {
        let tagged = match &batch.body {
            Body::Records(tagged) if self.reads_batch(range.slot, &batch.key) => Some(tagged),
            _ => None,
        };
        let under = tagged.into_iter().flat_map(move |tagged| range.under(tagged));
        let segments = under.flat_map(|(tag, segments)| segments.iter().map(move |segment| (tag, segment)));
        segments.filter(move |(_, segment)| self.reads_attempt(&segment.attempt))
    }

    /// The tags of a batch under which a range has records, in their order. Of a batch that has nothing but what lies under these
    /// the range has the same records.
    pub fn tags_of(&self, range: &PlanRange, head: &BatchHead) -> Vec<Tag> {
        let HeadBody::Records(tagged) = &head.body else { return Vec::new() };
        if !self.reads_batch(range.slot, &head.key) {
            return Vec::new();
        }
        let reads_one =
            |segments: &[SegmentHead]| segments.iter().any(|one| self.reads_attempt(&one.attempt));
        range.under(tagged).filter(|(_, segments)| reads_one(segments)).map(|(tag, _)| tag).collect()
    }

    /// Counts the records of the ranges of a slot, batch by batch.
    pub fn counts_of(&self, slot: PoolSlot) -> SlotCounts<'_> {
        let of_slot = self.ranges.iter().filter(|range| range.slot == slot);
        SlotCounts { plan: self, slot, ranges: of_slot.map(|range| (range.id, (range, (0, 0)))).collect() }
    }

    /// Compares records and bytes that were found of a range with those that are counted.
    pub fn check(&self, range: &PlanRange, found: (u64, u64)) -> Result<(), Differs> {
        let counted = (range.records, range.bytes);
        if found == counted { Ok(()) } else { Err(Differs { range: range.id, found, counted }) }
    }
}

/// Records and bytes of the ranges of a slot, as far as batches were counted.
#[derive(Debug)]
pub struct SlotCounts<'p> {
    plan: &'p Plan,
    slot: PoolSlot,
    /// What was counted of each range.
    ranges: BTreeMap<RangeId, (&'p PlanRange, (u64, u64))>,
}

impl SlotCounts<'_> {
    /// Counts one more batch. Any may be counted; each must be so once.
    pub fn add(&mut self, head: &BatchHead) {
        let HeadBody::Records(tagged) = &head.body else { return };
        if !self.plan.reads_batch(self.slot, &head.key) {
            return;
        }
        for (tag, segments) in tagged {
            let Some((range, (records, bytes))) = self.ranges.get_mut(&tag.range) else { continue };
            if !range.has(*tag) {
                continue;
            }
            for segment in segments.iter().filter(|segment| self.plan.reads_attempt(&segment.attempt)) {
                *records += segment.records;
                *bytes += segment.bytes;
            }
        }
    }

    /// Records and bytes of each range.
    pub fn counts(self) -> BTreeMap<RangeId, (u64, u64)> {
        self.ranges.into_iter().map(|(range, (_, counts))| (range, counts)).collect()
    }
}

/// The records of a range that were collected.
#[derive(Debug)]
pub struct RangeRecords<'p> {
    plan: &'p Plan,
    range: &'p PlanRange,
    /// All keys of the range have so many first bytes in common.
    common: usize,
    /// The records, as they lay packed in their segments. The rest of the batches need not stay in memory.
    taken: Vec<u8>,
    /// The partition and the frame of each segment.
    segments: Vec<(u32, u64)>,
    entries: Vec<Entry>,
    bytes: u64,
}

/// A record that was taken: nearly all are told apart by eight bytes of the key. Where it lies is counted in all that was taken.
#[derive(Debug, Clone, Copy)]
struct Entry {
    prefix: u64,
    segment: u32,
    index: u32,
    begin: u32,
    key: (u32, u32),
    end: u32,
}

/// What is sorted of a record: those eight bytes of its key, and behind them its place among those that were taken.
type SortKey = u128;

/// What a record takes in memory at most, in bytes, while its range is put in order, besides its key and value twice: its lengths
/// twice, its place, what is known and sorted of it, and its segment, which others may share.
const SORTING: u64 = 2 * MEMORY_OF_RECORD
    + RecordPlace::MEMORY
    + (size_of::<Entry>() + size_of::<SortKey>() + size_of::<(u32, u64)>()) as u64;

fn sort_key(prefix: u64, at: u32) -> SortKey {
    SortKey::from(prefix) << u32::BITS | SortKey::from(at)
}

fn prefix_of(key: SortKey) -> u64 {
    (key >> u32::BITS) as u64
}

impl Entry {
    fn key<'a>(&self, taken: &'a [u8]) -> &'a [u8] {
        let (begin, end) = self.key;
        &taken[begin as usize..end as usize]
    }

    /// What its place is compared by where keys are equal.
    fn place(&self, segments: &[(u32, u64)]) -> (u32, u64, u32) {
        let (partition, frame) = segments[self.segment as usize];
        (partition, frame, self.index)
    }
}

impl RangeRecords<'_> {
    /// Makes room at once for all that the plan counts of the range: what grows takes its memory twice.
    pub fn reserve(&mut self) {
        let PlanRange { records, bytes, .. } = *self.range;
        let room = |count: u64| usize::try_from(count).unwrap_or(0);
        self.entries.reserve_exact(room(records));
        self.taken.reserve_exact(room(bytes.saturating_add(MEMORY_OF_RECORD.saturating_mul(records))));
    }

    /// Takes the records of the range from one more batch. What would be behind 4 GiB is left out, so that the counts of the plan
    /// are not met: far smaller ranges are sorted on disk.
    pub fn add(&mut self, batch: &Batch) {
        let RangeRecords { plan, range, common, taken, segments, entries, bytes } = self;
        for (_, segment) in plan.segments_of(range, batch) {
            let (begin, lie) = (taken.len(), segment.records.bytes());
            if u32::try_from(begin + lie.len()).is_err() {
                break;
            }
            let at = |place: usize| (begin + place) as u32;
            let number = segments.len() as u32;
            for (index, place) in (0..).zip(segment.records.places()) {
                let prefix = word(lie[place.key.clone()].get(*common..).unwrap_or_default());
                let key = (at(place.key.start), at(place.key.end));
                let (begin, end) = (at(place.record.start), at(place.record.end));
                entries.push(Entry { prefix, segment: number, index, begin, key, end });
            }
            taken.extend_from_slice(lie);
            segments.push((segment.partition, segment.frame));
            *bytes += segment.bytes();
        }
    }

    /// Records and bytes so far.
    pub fn sizes(&self) -> (u64, u64) {
        (self.entries.len() as u64, self.bytes)
    }

    /// Hands out those so far, as they came: for who puts them in order in another way. They share memory that has nothing else.
    pub fn drain(&mut self) -> impl Iterator<Item = Placed> + use<> {
        let (mut taken, segments) = (std::mem::take(&mut self.taken), std::mem::take(&mut self.segments));
        // What it has grown to would stay as long as any of the records.
        taken.shrink_to_fit();
        let (taken, entries) = (bytes::Bytes::from(taken), std::mem::take(&mut self.entries));
        self.bytes = 0;
        entries.into_iter().map(move |entry| {
            let (partition, frame, index) = entry.place(&segments);
            let (begin, end) = entry.key;
            let key = taken.slice(begin as usize..end as usize);
            let value = taken.slice(end as usize..entry.end as usize);
            Placed { key, partition, frame, index, value }
        })
    }

    /// All of them, in order.
    pub fn in_order(self) -> OrderedRecords {
        let RangeRecords { taken, segments, entries, .. } = self;
        let entry = |key: SortKey| &entries[key as u32 as usize];
        let mut order: Vec<SortKey> =
            (0..).zip(&entries).map(|(at, entry): (u32, _)| sort_key(entry.prefix, at)).collect();
        // As numbers, without a look at the records: three times as fast as by what follows, which few need.
        order.sort_unstable();
        for alike in order.chunk_by_mut(|one, other| prefix_of(*one) == prefix_of(*other)) {
            alike.sort_unstable_by(|one, other| {
                let (one, other) = (entry(*one), entry(*other));
                let places = || one.place(&segments).cmp(&other.place(&segments));
                one.key(&taken).cmp(other.key(&taken)).then_with(places)
            });
        }
        let mut all = OrderedBuilder::with_room(entries.len(), taken.len());
        for entry in order.into_iter().map(entry) {
            let (partition, frame, index) = entry.place(&segments);
            let packed = &taken[entry.begin as usize..entry.end as usize];
            let content = entry.end - entry.key.0;
            all.add_packed(RecordPlace::new(partition, frame, index), packed, content);
        }
        all.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shuffle::bounds::{Bounds, Finder, Range};
    use crate::shuffle::divider::divide;
    use crate::shuffle::record::Stream;
    use crate::shuffle::records::PackedRecords;
    use crate::shuffle::{BufferId, Durability};
    use partage_core::base::id::Incarnation;
    use partage_core::base::name::NodeId;
    use proptest::prelude::*;

    const SHUFFLE: ShuffleId = ShuffleId(7);
    /// The input partition whose attempt does not win.
    const LOSER: u32 = 2;

    /// An input partition, and the records of a frame of its attempt.
    type Frame = (u32, Vec<(Vec<u8>, Vec<u8>)>);

    /// Empty keys, short ones, and such as have many first bytes in common.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        let front = prop::sample::select(vec![&b""[..], b"a", b"a long front\0", b"a long front\xff"]);
        let rest = prop::collection::vec(prop::sample::select(vec![0u8, 1, 0xff]), 0..11);
        (front, rest).prop_map(|(front, rest)| [front, &rest[..]].concat())
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let value = prop::collection::vec(any::<u8>(), 0..3);
        (0u32..3, prop::collection::vec((key(), value), 0..30))
    }

    fn attempt(partition: u32) -> AttemptKey {
        let buffer = BufferId { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) };
        AttemptKey { buffer, number: u64::from(partition) + 1 }
    }

    fn plan(bounds: &Bounds, upto: u64) -> Plan {
        let winner = |partition| (attempt(partition), Winner { partition, records: 0, bytes: 0 });
        let range = |range: &Range| PlanRange {
            id: range.id,
            since: bounds.version,
            begins: range.begins.clone(),
            slot: PoolSlot(0),
            records: 0,
            bytes: 0,
        };
        let writer = Writer::Buffer(attempt(0).buffer);
        Plan {
            shuffle: SHUFFLE,
            winners: Arc::new((0..LOSER).map(winner).collect()),
            needed: [(PoolSlot(0), [(writer, upto)].into())].into(),
            ranges: bounds.ranges.iter().map(range).collect(),
        }
    }

    /// A frame in a batch of its own, divided by the bounds.
    fn batch(bounds: &Finder, number: u64, (partition, records): &Frame) -> Arc<Batch> {
        let records = PackedRecords::pack(records.iter().map(|(key, value)| (&key[..], &value[..])));
        let attempt = attempt(*partition);
        let writer = Writer::Buffer(attempt.buffer.clone());
        let segment = Segment { attempt, partition: *partition, frame: number, records };
        let tagged = divide([segment], bounds, |_| PoolSlot(0)).remove(&PoolSlot(0)).unwrap_or_default();
        let key = BatchKey { stream: Stream { shuffle: SHUFFLE, slot: PoolSlot(0), writer }, number };
        Arc::new(Batch { key, durability: Durability::Disk, body: Body::Records(tagged) })
    }

    /// The same batch with nothing but what lies under these tags.
    fn part(batch: &Batch, tags: &[Tag]) -> Arc<Batch> {
        let Body::Records(tagged) = &batch.body else { panic!("records") };
        let kept = tagged.iter().filter(|(tag, _)| tags.contains(tag));
        let body = Body::Records(kept.map(|(tag, segments)| (*tag, segments.clone())).collect());
        Arc::new(Batch { body, ..batch.clone() })
    }

    #[test]
    fn records_take_as_much_memory_as_the_book_says() {
        assert_eq!((SORTING, OrderedRecords::AROUND), (104, 32));
    }

    proptest! {
        #[test]
        fn what_is_under_a_range_is_what_it_has(
            tags in prop::collection::btree_set((0u32..5, 1u64..4), 0..12), since in 0u32..6, id in 1u64..4,
        ) {
            let (id, begins, slot) = (RangeId(id), Vec::new().into(), PoolSlot(0));
            let range = PlanRange { id, since, begins, slot, records: 0, bytes: 0 };
            let tags = tags.into_iter().map(|(version, range)| Tag { version, range: RangeId(range) });
            let tagged: BTreeMap<Tag, usize> = tags.zip(0..).collect();
            let found: Vec<(Tag, &usize)> = range.under(&tagged).collect();
            let expected = tagged.iter().filter(|(tag, _)| range.has(**tag)).map(|(tag, at)| (*tag, at));
            prop_assert_eq!(found, expected.collect::<Vec<_>>());
        }

        #[test]
        fn a_range_has_its_records_of_winners_as_a_plain_sort_orders_them(
            mut begins in prop::collection::btree_set(key(), 0..5),
            frames in prop::collection::vec(frame(), 0..8),
            upto in 0u64..9,
        ) {
            begins.insert(Vec::new());
            let range = |(id, begins): (u64, Vec<u8>)| Range { id: RangeId(id), begins: begins.into() };
            let bounds = Bounds { version: 1, ranges: (1..).zip(begins).map(range).collect() };
            let bounds = Finder::new(bounds.into());
            let plan = plan(&bounds, upto);
            let batches: Vec<Arc<Batch>> =
                (1..).zip(&frames).map(|(number, frame)| batch(&bounds, number, frame)).collect();
            for (at, range) in plan.ranges.iter().enumerate() {
                let end = plan.ranges.get(at + 1).map(|next| &next.begins[..]);
                let is_inside = |key: &[u8]| range.begins[..] <= *key && end.is_none_or(|end| key < end);
                let mut sorted = Vec::new();
                let read = (1u64..=upto).zip(&frames).filter(|(_, (partition, _))| *partition != LOSER);
                for (frame, (partition, records)) in read {
                    let inside = records.iter().filter(|(key, _)| is_inside(key)).enumerate();
                    sorted.extend(inside.map(|(index, (key, value))| {
                        let (key, value) = (key.clone().into(), value.clone().into());
                        Placed { key, partition: *partition, frame, index: index as u32, value }
                    }));
                }
                sorted.sort();
                let sorted = OrderedRecords::of(&sorted).unwrap();
                prop_assert_eq!(&plan.collect(range, &batches), &sorted);
                // As they come, one batch after the other.
                let (mut drained, mut some) = (Vec::new(), plan.records_of(range));
                for batch in &batches {
                    some.add(batch);
                    drained.extend(some.drain());
                    prop_assert_eq!(some.sizes(), (0, 0));
                }
                drained.sort();
                prop_assert_eq!(&OrderedRecords::of(&drained).unwrap(), &sorted);
                let parts = batches.iter().map(|batch| part(batch, &plan.tags_of(range, &BatchHead::of(batch))));
                prop_assert_eq!(&plan.collect(range, &parts.collect::<Vec<_>>()), &sorted);
                let mut records = plan.records_of(range);
                let mut counts = plan.counts_of(PoolSlot(0));
                let before = PlanRange { records: sorted.sizes().0, bytes: sorted.sizes().1, ..range.clone() };
                prop_assert!(sorted.memory() <= before.sorting_memory());
                for batch in &batches {
                    counts.add(&BatchHead::of(batch));
                    records.add(batch);
                }
                prop_assert_eq!(records.sizes(), sorted.sizes());
                let counted = counts.counts();
                prop_assert_eq!(counted.get(&range.id).copied(), Some(sorted.sizes()));
            }
        }
    }
}
