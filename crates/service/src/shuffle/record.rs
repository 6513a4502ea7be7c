//! Records, and how they travel: a client's frame becomes segments, segments of a slot become a batch, batches are a stream.

use super::bounds::{Bounds, Tag};
use super::{AttemptId, AttemptKey, Bytes, PoolSlot, ShuffleId, Writer};
use std::collections::{BTreeMap, BTreeSet};

/// A record. Both are opaque bytes; keys are compared as unsigned bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Record {
    /// By which it is ordered.
    pub key: Bytes,
    /// What goes with it.
    pub value: Bytes,
}

impl Record {
    /// Its key and value, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.key.len() + self.value.len()) as u64
    }
}

/// Records of one frame of an attempt that lie together, in the order in which they came.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Segment {
    /// The attempt.
    pub attempt: AttemptKey,
    /// Its input partition.
    pub partition: u32,
    /// The number of the frame in the attempt.
    pub frame: u64,
    /// The records.
    pub records: Vec<Record>,
}

/// Segments by the tags that they were written by.
pub type Tagged = BTreeMap<Tag, Vec<Segment>>;

/// That an attempt is whole.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EndMark {
    /// The attempt.
    pub attempt: AttemptKey,
    /// Its input partition.
    pub partition: u32,
    /// How the client calls it.
    pub id: AttemptId,
    /// Its records.
    pub records: u64,
    /// Their keys and values, in bytes.
    pub bytes: u64,
    /// Of each slot, the last batch of the buffer that has records of it.
    pub last: BTreeMap<PoolSlot, u64>,
}

/// What a batch carries.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Body {
    /// Records.
    Records(Tagged),
    /// An attempt is whole. It lies in the home of the shuffle.
    Mark(EndMark),
}

/// The batches of one writer to one slot, numbered from 1 without gaps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stream {
    /// The shuffle.
    pub shuffle: ShuffleId,
    /// The slot.
    pub slot: PoolSlot,
    /// Who numbers them.
    pub writer: Writer,
}

/// A batch of a stream.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchKey {
    /// The stream.
    pub stream: Stream,
    /// Its number.
    pub number: u64,
}

/// What is stored and sent as one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Batch {
    /// Which one it is.
    pub key: BatchKey,
    /// What it carries.
    pub body: Body,
}

impl Batch {
    /// Keys and values, in bytes.
    pub fn bytes(&self) -> u64 {
        match &self.body {
            Body::Records(tagged) => {
                let segments = tagged.values().flatten();
                segments.flat_map(|segment| &segment.records).map(Record::bytes).sum()
            }
            Body::Mark(_) => 0,
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

    /// One more. The answer is false if it was there.
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

    /// One less: it turned out to be damaged.
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

/// Divides segments by bounds, and by the slots that the ranges have. A segment that is divided keeps its order in every part.
pub fn divide(
    segments: impl IntoIterator<Item = Segment>,
    bounds: &Bounds,
    slot_of: impl Fn(Tag) -> PoolSlot,
) -> BTreeMap<PoolSlot, Tagged> {
    let mut divided: BTreeMap<PoolSlot, Tagged> = BTreeMap::new();
    for segment in segments {
        let Segment { attempt, partition, frame, records } = segment;
        let turn = attempt.number.wrapping_add(frame);
        let mut parts: BTreeMap<Tag, Vec<Record>> = BTreeMap::new();
        for record in records {
            parts.entry(bounds.tag_of(&record.key, turn)).or_default().push(record);
        }
        for (tag, records) in parts {
            let part = Segment { attempt: attempt.clone(), partition, frame, records };
            divided.entry(slot_of(tag)).or_default().entry(tag).or_default().push(part);
        }
    }
    divided
}

/// Parts of segments in batches of about so many bytes.
pub fn in_batches(tagged: Tagged, bytes: u64) -> Vec<Tagged> {
    let mut batches = vec![Tagged::new()];
    let mut size = 0;
    for (tag, segments) in tagged {
        for segment in segments {
            if size >= bytes {
                batches.push(Tagged::new());
                size = 0;
            }
            size += segment.records.iter().map(Record::bytes).sum::<u64>();
            if let Some(last) = batches.last_mut() {
                last.entry(tag).or_default().push(segment);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
