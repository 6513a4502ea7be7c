//! Records, and how they travel: a client's frame becomes segments, segments of a slot become a batch, batches are a stream.

use super::bounds::Tag;
use super::records::PackedRecords;
use super::{AttemptId, AttemptKey, Bytes, Durability, PoolSlot, ShuffleId, Writer};
use partage_core::limits;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes around a record, on its way and on disk, at most: two lengths.
const AROUND_RECORD: u64 = 8;
/// Bytes of memory that a record takes besides its key and value, at most: two lengths, as records lie packed.
pub const MEMORY_OF_RECORD: u64 = AROUND_RECORD;
/// The same of a record that lies apart: two pointers with lengths, and two counts of each.
pub(super) const MEMORY_APART: u64 = 64;
/// Bytes of memory that a segment takes besides its records: its attempt, its place and its list of records, where it lies in the
/// list of its tag. Where ranges are many it has one record or a few.
pub const MEMORY_OF_SEGMENT: u64 = 128;
/// Bytes around the records of a segment, besides the name of its buffer: its place and counts, and its attempt and its tag,
/// which several may share.
const AROUND_SEGMENT: u64 = 88;
/// Bytes around the segments of a batch, or its mark: the key of the batch, with names of the longest kind, and counts.
const AROUND_BATCH: u64 = 384;
/// Bytes of an end mark, besides the name of its buffer.
const MARK: u64 = 72;
/// Bytes of a slot in an end mark.
const SLOT_OF_MARK: u64 = 12;

/// What one frame brings to one range fits into a batch.
const _: () = {
    let around = AROUND_BATCH + AROUND_SEGMENT + limits::NAME_BYTES as u64;
    assert!(around + limits::SHUFFLE_FRAME_BYTES as u64 <= limits::SHUFFLE_BATCH_BYTES as u64);
};

/// A record. Both are opaque bytes; keys are compared as unsigned bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    /// The key, by which records are ordered.
    pub key: Bytes,
    /// The value, which may be empty.
    pub value: Bytes,
}

impl Record {
    /// Its key and value, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.key.len() + self.value.len()) as u64
    }

    /// The same, with what it takes in memory besides as long as it lies apart from others.
    pub fn memory(&self) -> u64 {
        MEMORY_APART + self.bytes()
    }
}

/// Records of one frame of an attempt that lie together, in the order in which they came.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Segment {
    /// The attempt that the records belong to.
    pub attempt: AttemptKey,
    /// The input partition of that attempt: equal keys are in its order.
    pub partition: u32,
    /// The number of the frame in the attempt.
    pub frame: u64,
    /// The records: their places here are their order.
    pub records: PackedRecords,
}

impl Segment {
    /// Its bytes on its way and on disk, at most.
    pub fn room(&self) -> u64 {
        self.around() + self.bytes()
    }

    /// Keys and values of its records, in bytes.
    pub fn bytes(&self) -> u64 {
        self.records.content_bytes()
    }

    fn around(&self) -> u64 {
        let name = self.attempt.buffer.node.as_str().len() as u64;
        AROUND_SEGMENT + name + AROUND_RECORD * self.records.count()
    }
}

/// Segments by the tags that they were written by.
pub type Tagged = BTreeMap<Tag, Vec<Segment>>;

/// How many segments these are.
pub fn segments_of(tagged: &Tagged) -> u64 {
    tagged.values().map(|segments| segments.len() as u64).sum()
}

/// The mark which says that an attempt is whole.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EndMark {
    /// The attempt that is whole, and may win.
    pub attempt: AttemptKey,
    /// The input partition that it is an attempt of.
    pub partition: u32,
    /// The name that the client gave it.
    pub id: AttemptId,
    /// Its records, as they are stored: after they were combined.
    pub records: u64,
    /// Their keys and values, in bytes.
    pub bytes: u64,
    /// The last batch of the buffer in each slot that has records of the attempt.
    pub last: BTreeMap<PoolSlot, u64>,
}

impl EndMark {
    /// Its bytes on its way and on disk, at most.
    pub fn room(&self) -> u64 {
        let name = self.attempt.buffer.node.as_str().len() as u64;
        MARK + name + SLOT_OF_MARK * self.last.len() as u64
    }
}

/// What a batch carries.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Body {
    /// Records, by the tags that they were written by.
    Records(Tagged),
    /// An attempt is whole. It lies in the home of the shuffle.
    Mark(EndMark),
}

/// The batches of one writer to one slot, numbered from 1 without gaps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream {
    /// The shuffle that the batches belong to.
    pub shuffle: ShuffleId,
    /// The slot whose replicas store the batches.
    pub slot: PoolSlot,
    /// The writer that numbers them, and no other does.
    pub writer: Writer,
}

/// A batch of a stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchKey {
    /// The stream that it is a part of.
    pub stream: Stream,
    /// Its number in the stream, from 1.
    pub number: u64,
}

/// What is stored and sent as one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Batch {
    /// The stream and the number of the batch.
    pub key: BatchKey,
    /// Where it is when its holder says that it is stored.
    pub durability: Durability,
    /// Records, or the mark of a whole attempt.
    pub body: Body,
}

impl Batch {
    /// Keys and values of its records, in bytes.
    pub fn bytes(&self) -> u64 {
        match &self.body {
            Body::Records(tagged) => tagged.values().flatten().map(Segment::bytes).sum(),
            Body::Mark(_) => 0,
        }
    }

    /// How many records it has.
    pub fn records(&self) -> u64 {
        match &self.body {
            Body::Records(tagged) => tagged.values().flatten().map(|segment| segment.records.count()).sum(),
            Body::Mark(_) => 0,
        }
    }

    /// How many segments it has.
    pub fn segments(&self) -> u64 {
        match &self.body {
            Body::Records(tagged) => segments_of(tagged),
            Body::Mark(_) => 0,
        }
    }

    /// What it takes in memory at most, in bytes: records of length 0 count too. It is what it takes on its way.
    pub fn memory(&self) -> u64 {
        self.room()
    }

    /// Its bytes on its way and on disk, at most.
    pub fn room(&self) -> u64 {
        AROUND_BATCH
            + match &self.body {
                Body::Records(tagged) => tagged.values().flatten().map(Segment::room).sum::<u64>(),
                Body::Mark(mark) => mark.room(),
            }
    }
}

/// Which numbers of a stream are there.
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Numbers {
    /// All from 1 to this one.
    upto: u64,
    /// Some beyond a gap.
    beyond: BTreeSet<u64>,
}

impl Numbers {
    /// Up to which number all are there, and those beyond a gap, in order: what [`Numbers::of_parts`] makes the same numbers of.
    pub fn parts(&self) -> (u64, &BTreeSet<u64>) {
        (self.upto, &self.beyond)
    }

    /// Numbers of their parts. None: these are no parts, as a number beyond the gap is not beyond it, or there is none after the
    /// last.
    pub fn of_parts(upto: u64, beyond: BTreeSet<u64>) -> Option<Numbers> {
        let first = upto.checked_add(2)?;
        let are_beyond = beyond.first().is_none_or(|least| *least >= first);
        (are_beyond && !beyond.contains(&u64::MAX)).then_some(Numbers { upto, beyond })
    }

    /// Adds a number. The answer is false if it was there.
    pub fn insert(&mut self, number: u64) -> bool {
        if self.has(number) {
            return false;
        }
        self.beyond.insert(number);
        while self.beyond.remove(&(self.upto + 1)) {
            self.upto += 1;
        }
        true
    }

    /// Takes a number out: its batch turned out to be damaged.
    pub fn remove(&mut self, number: u64) {
        if !self.beyond.remove(&number) && (1..=self.upto).contains(&number) {
            self.beyond.extend(number + 1..=self.upto);
            self.upto = number - 1;
        }
    }

    /// Whether a number is there.
    pub fn has(&self, number: u64) -> bool {
        number <= self.upto || self.beyond.contains(&number)
    }

    /// Whether all are there up to this one.
    pub fn has_upto(&self, number: u64) -> bool {
        number <= self.upto
    }

    /// Those up to this one that are not there.
    pub fn gaps(&self, upto: u64) -> impl Iterator<Item = u64> {
        (self.upto + 1..=upto).filter(|number| !self.beyond.contains(number))
    }

    /// Those that another has and that are not here.
    pub fn lacks_of<'a>(&'a self, other: &'a Numbers) -> impl Iterator<Item = u64> + 'a {
        let beyond = other.beyond.iter().copied().filter(|number| !self.has(*number));
        self.gaps(other.upto).chain(beyond)
    }
}

/// The same segments with all records in bytes of their own. Parts of frames share the bytes of their frames: without that a
/// batch that takes long to be stored would keep the frames of all others in memory.
fn compact(mut tagged: Tagged) -> Tagged {
    let packed = |segment: &Segment| segment.records.bytes().len();
    let mut all = Vec::with_capacity(tagged.values().flatten().map(packed).sum());
    for segment in tagged.values().flatten() {
        all.extend_from_slice(segment.records.bytes());
    }
    let (all, mut at) = (bytes::Bytes::from(all), 0);
    for segment in tagged.values_mut().flatten() {
        segment.records = segment.records.moved(&all, at);
        at += segment.records.bytes().len();
    }
    tagged
}

/// Segments that go into batches, each list from its first one on.
pub type Queued = BTreeMap<Tag, VecDeque<Segment>>;

/// The same segments, of which batches are to be made.
pub fn queued(tagged: Tagged) -> Queued {
    tagged.into_iter().map(|(tag, segments)| (tag, segments.into())).collect()
}

/// Takes the next batch of what is queued: about so many bytes of keys and values, or one segment, and no more than a batch may
/// be. It has its records in bytes of its own. Nothing: nothing is queued.
pub fn next_batch(queued: &mut Queued, bytes: u64) -> Tagged {
    compact(next_batch_of(queued, bytes, limits::SHUFFLE_BATCH_BYTES as u64))
}

fn next_batch_of(queued: &mut Queued, bytes: u64, most_room: u64) -> Tagged {
    let (mut batch, mut size, mut room) = (Tagged::new(), 0, AROUND_BATCH);
    while let Some(mut entry) = queued.first_entry() {
        let (tag, segments) = (*entry.key(), entry.get_mut());
        let fits = |segment: &&Segment| {
            let is_first = room == AROUND_BATCH;
            let fits = is_first || (size < bytes && room + segment.room() <= most_room);
            if fits {
                size += segment.bytes();
                room += segment.room();
            }
            fits
        };
        let count = segments.iter().take_while(fits).count();
        if count < segments.len() {
            let part: Vec<Segment> = segments.drain(..count).collect();
            if !part.is_empty() {
                batch.insert(tag, part);
            }
            return batch;
        }
        // Nearly always.
        let all = entry.remove();
        if !all.is_empty() {
            batch.insert(tag, all.into());
        }
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shuffle::bounds::{Bounds, Finder, Range};
    use crate::shuffle::divider::divide;
    use crate::shuffle::{BufferId, RangeId};
    use partage_core::base::id::Incarnation;
    use partage_core::base::name::NodeId;

    /// What is queued, in batches.
    fn in_batches(tagged: Tagged, next: impl Fn(&mut Queued) -> Tagged) -> Vec<Tagged> {
        let mut queued = queued(tagged);
        let batches = std::iter::from_fn(|| Some(next(&mut queued)).filter(|batch| !batch.is_empty()));
        batches.collect()
    }

    #[test]
    fn numbers_know_their_gaps() {
        let mut numbers = Numbers::default();
        for (number, is_new) in [(1, true), (3, true), (3, false), (5, true), (1, false)] {
            assert_eq!(numbers.insert(number), is_new, "{number}");
        }
        assert_eq!(numbers.gaps(6).collect::<Vec<_>>(), [2, 4, 6]);
        assert!(numbers.has(5) && !numbers.has_upto(3) && numbers.has_upto(1));
        assert!(numbers.insert(2) && numbers.has_upto(3));
        numbers.remove(2);
        assert_eq!(numbers.gaps(5).collect::<Vec<_>>(), [2, 4]);
        let mut other = Numbers::default();
        assert!([1, 2, 6].into_iter().all(|number| other.insert(number)));
        assert_eq!(numbers.lacks_of(&other).collect::<Vec<_>>(), [2, 6]);
        assert_eq!(other.lacks_of(&numbers).collect::<Vec<_>>(), [3, 5]);
        let (upto, beyond) = numbers.parts();
        assert_eq!(Numbers::of_parts(upto, beyond.clone()), Some(numbers.clone()));
        for (upto, beyond) in [(1, 2), (1, 1), (u64::MAX, 7), (1, u64::MAX)] {
            assert_eq!(Numbers::of_parts(upto, [beyond].into()), None, "{upto} {beyond}");
        }
    }

    #[test]
    fn batches_are_no_larger_than_they_may_be_and_keep_all_in_order() {
        let buffer = BufferId { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) };
        let tag = |range| Tag { version: 1, range: RangeId(range) };
        // Records of nothing count too.
        let segment = |frame: u64| Segment {
            attempt: AttemptKey { buffer: buffer.clone(), number: 1 },
            partition: 1,
            frame,
            records: PackedRecords::of(&vec![
                Record {
                    key: Vec::new().into(),
                    value: vec![0; frame as usize % 3].into()
                };
                9
            ]),
        };
        let tagged: Tagged =
            (0..4).map(|at| (tag(at), (at * 10..at * 10 + 10).map(segment).collect())).collect();
        let all: u64 = tagged.values().flatten().map(Segment::room).sum();
        for most in [1, 600, 1_000, 3_000, AROUND_BATCH + all - 1, AROUND_BATCH + all] {
            let batches = in_batches(tagged.clone(), |queued| next_batch_of(queued, u64::MAX, most));
            let mut united: BTreeMap<Tag, Vec<Segment>> = BTreeMap::new();
            for batch in &batches {
                let room = AROUND_BATCH + batch.values().flatten().map(Segment::room).sum::<u64>();
                assert!(room <= most || batch.values().flatten().count() == 1, "{room} of {most}");
                batch
                    .iter()
                    .for_each(|(tag, part)| united.entry(*tag).or_default().extend(part.iter().cloned()));
            }
            assert_eq!(united, tagged, "{most}");
            assert_eq!(batches.len() == 1, most >= AROUND_BATCH + all, "{most}");
        }
        assert!(in_batches(tagged, |queued| next_batch(queued, 20)).len() > 4);
    }

    #[test]
    fn r1_parts_of_a_frame_have_no_room_to_spare_and_are_no_more_than_is_counted_on() {
        let attempt = AttemptKey {
            buffer: BufferId { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) },
            number: 1,
        };
        let record = |key: u8| Record { key: [key].as_slice().into(), value: Vec::new().into() };
        let range = |id: u64| Range { id: RangeId(id), begins: [id as u8 * 10].as_slice().into() };
        let bounds = Finder::new(Bounds { version: 1, ranges: (0..9).map(range).collect() }.into());
        for records in [1, 5, 90] {
            let all: Vec<Record> = (0..records).map(record).collect();
            let segment = Segment {
                attempt: attempt.clone(),
                partition: 1,
                frame: 1,
                records: PackedRecords::of(&all),
            };
            let divided = divide([segment], &bounds, |_| PoolSlot(0));
            let parts: Vec<&Segment> =
                divided.values().flat_map(|tagged| tagged.values().flatten()).collect();
            let lie: usize = parts.iter().map(|part| part.records.bytes().len()).sum();
            assert_eq!(lie, PackedRecords::of(&all).bytes().len());
            assert!(parts.len() as u64 <= bounds.most_parts(all.len() as u64), "{records}");
            let united: Vec<Record> = parts.iter().flat_map(|part| part.records.unpack()).collect();
            assert_eq!(united, all);
        }
    }

    #[test]
    fn r1_a_batch_shares_no_bytes_with_the_frames_that_it_has_parts_of() {
        let buffer = BufferId { node: NodeId::new("a").unwrap(), incarnation: Incarnation(1) };
        let record = |key: u8| Record { key: [key].as_slice().into(), value: vec![key; 9].into() };
        let frame = |frame: u64| Segment {
            attempt: AttemptKey { buffer: buffer.clone(), number: 1 },
            partition: 1,
            frame,
            records: (0..20).map(record).collect::<Vec<_>>().into(),
        };
        let range = |id: u64| Range { id: RangeId(id), begins: [id as u8 * 10].as_slice().into() };
        let bounds = Finder::new(Bounds { version: 1, ranges: (0..2).map(range).collect() }.into());
        let slot = |tag: Tag| if tag.range == RangeId(0) { PoolSlot(0) } else { PoolSlot(1) };
        let frames = [frame(1), frame(2)];
        let divided = divide(frames.clone(), &bounds, slot);
        let lie = |segment: &Segment| segment.records.bytes().as_ptr_range();
        let of = |tagged: &Tagged| tagged.values().flatten().map(lie).collect::<Vec<_>>();
        let parts = divided.values().map(of).collect::<Vec<_>>();
        assert_eq!((divided.len(), parts[0].len()), (2, 2));
        assert_eq!(parts[0][0].end, parts[1][0].start, "parts of a frame lie together");
        let whole = frames.iter().map(lie);
        let taken: Vec<_> = parts.iter().flatten().cloned().chain(whole).collect();
        let is_apart = |own: &std::ops::Range<*const u8>| {
            taken.iter().all(|other| own.end <= other.start || other.end <= own.start)
        };
        for tagged in divided.values() {
            let batches = in_batches(tagged.clone(), |queued| next_batch(queued, u64::MAX));
            assert_eq!(batches, std::slice::from_ref(tagged));
            let own = of(&batches[0]);
            assert!(own.iter().all(is_apart), "{own:?} of {taken:?}");
            assert_eq!(own[0].end, own[1].start, "one piece of memory for a batch");
        }
        // A frame in a stash is not divided.
        let stashed = divide(frames.clone(), &Finder::new(Bounds::stashes(1).into()), |_| PoolSlot(0));
        let batches = in_batches(stashed[&PoolSlot(0)].clone(), |queued| next_batch(queued, u64::MAX));
        assert!(of(&batches[0]).iter().all(is_apart));
    }

    #[test]
    fn r1_records_of_length_zero_take_memory() {
        let node = NodeId::new("a").unwrap();
        let attempt = AttemptKey { buffer: BufferId { node, incarnation: Incarnation(1) }, number: 1 };
        let memory = |records: usize, length: usize| {
            let record = Record { key: Vec::new().into(), value: vec![0; length].into() };
            let attempt = attempt.clone();
            let segment = Segment {
                attempt,
                partition: 1,
                frame: 1,
                records: PackedRecords::of(&vec![record; records]),
            };
            let writer = Writer::Buffer(segment.attempt.buffer.clone());
            let stream = Stream { shuffle: ShuffleId(1), slot: PoolSlot(1), writer };
            let tag = Tag { version: 1, range: RangeId(1) };
            let body = Body::Records([(tag, vec![segment])].into());
            Batch { key: BatchKey { stream, number: 1 }, durability: Durability::Disk, body }.memory()
        };
        assert_eq!(memory(1_001, 0) - memory(1, 0), 1_000 * MEMORY_OF_RECORD);
        assert_eq!(memory(10, 7) - memory(10, 0), 70);
    }
}
