//! Records in the order of their range, packed: one run of shared bytes, and of each record its place and where it ends.
//!
//! ```text
//!  bytes    ( bytes of the key · bytes of the value · key · value )*               as `PackedRecords` have them
//!  places   ( partition · frame · index · its end · keys and values up to it )*    24 bytes each
//! ```
//!
//! A slice shares both: it costs two counts, whatever records it has, and is [`PackedRecords`] without a copy. What keeps a slice
//! keeps all that it was taken from.

use super::plan::Placed;
use super::record::MEMORY_OF_RECORD;
use super::records::{self, NotRecords, PackedRecords, Records, put_record};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// A record where it lies among others, with its place in the order of its range. Fields in the order of comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderedRecord<'a> {
    /// The client's key: records are in order of it first.
    pub key: &'a [u8],
    /// The input partition of its attempt: second in the order.
    pub partition: u32,
    /// The number of its frame in the attempt: third in the order.
    pub frame: u64,
    /// Its place among those of that frame that lie together.
    pub index: u32,
    /// The value, as the client sent it or combining left it.
    pub value: &'a [u8],
}

impl<'a> OrderedRecord<'a> {
    /// The bytes of its key and value.
    pub fn bytes(&self) -> u64 {
        (self.key.len() + self.value.len()) as u64
    }

    /// Its key, and the bytes of its key and value.
    pub fn sized(&self) -> (&'a [u8], u64) {
        (self.key, self.bytes())
    }
}

/// The place of a record among those of its key, and where it lies among others.
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordPlace {
    /// The number of its frame in the attempt.
    pub frame: u64,
    /// The input partition of its attempt.
    pub partition: u32,
    /// Its place among those of that frame that lie together.
    pub index: u32,
    /// The bytes up to its end.
    end: u32,
    /// Keys and values up to its end, in bytes.
    content: u32,
}

impl RecordPlace {
    /// What one takes in memory, in bytes.
    pub(super) const MEMORY: u64 = size_of::<RecordPlace>() as u64;

    /// Of a record that lies nowhere yet.
    pub fn new(partition: u32, frame: u64, index: u32) -> RecordPlace {
        RecordPlace { frame, partition, index, end: 0, content: 0 }
    }
}

/// Records in order, packed. Two are equal if their records and places are.
#[derive(Debug, Clone, Default)]
pub struct OrderedRecords {
    /// Those of all records that these are a slice of.
    bytes: Bytes,
    places: Arc<Vec<RecordPlace>>,
    /// The slice, by the places of the first record and of the one behind the last.
    from: usize,
    to: usize,
}

impl PartialEq for OrderedRecords {
    fn eq(&self, other: &OrderedRecords) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for OrderedRecords {}

impl OrderedRecords {
    /// What a record takes in memory at most, in bytes, besides its key and value.
    pub const AROUND: u64 = RecordPlace::MEMORY + MEMORY_OF_RECORD;

    /// Takes records as they lie there, one for each place; the bytes are shared.
    ///
    /// # Errors
    /// These bytes are not so many records, or are too many, or one of the records is larger than a record may be.
    pub fn new(mut places: Vec<RecordPlace>, bytes: Bytes) -> Result<OrderedRecords, NotRecords> {
        if u32::try_from(bytes.len()).is_err() {
            return Err(NotRecords::Long(bytes.len()));
        }
        let to = places.len();
        let (mut next, mut content) = (places.iter_mut(), 0);
        records::check(to as u64, &bytes, |end, of_record| {
            content += of_record;
            if let Some(place) = next.next() {
                (place.end, place.content) = (end as u32, content as u32);
            }
        })?;
        Ok(OrderedRecords { bytes, places: Arc::new(places), from: 0, to })
    }

    /// Copies records together that lie apart, and are in order.
    ///
    /// # Errors
    /// They have more than 4 GiB together.
    pub fn of<'a>(placed: impl IntoIterator<Item = &'a Placed>) -> Result<OrderedRecords, NotRecords> {
        let mut all = OrderedBuilder::default();
        for one in placed {
            let Placed { key, partition, frame, index, value } = one;
            all.add(OrderedRecord { key, partition: *partition, frame: *frame, index: *index, value })?;
        }
        Ok(all.finish())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.to - self.from
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of records, and the bytes of their keys and values.
    pub fn sizes(&self) -> (u64, u64) {
        (self.len() as u64, self.before(self.len()).1 - self.before(0).1)
    }

    /// What they take in memory, in bytes: those of this slice alone.
    pub fn memory(&self) -> u64 {
        self.memory_of_first(self.len())
    }

    /// Where they lie together.
    fn span(&self) -> Range<usize> {
        self.before(0).0..self.before(self.len()).0
    }

    /// The same without copies, and without their places.
    pub fn packed(&self) -> PackedRecords {
        let (count, content) = self.sizes();
        PackedRecords::part(count, content, self.bytes.slice(self.span()))
    }

    /// The places of all of them.
    pub fn places(&self) -> &[RecordPlace] {
        self.places.get(self.from..self.to).unwrap_or_default()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = OrderedRecord<'_>> {
        let records = Records(self.bytes.get(self.span()).unwrap_or_default());
        records.zip(self.places()).map(|((key, value), place)| {
            let RecordPlace { partition, frame, index, .. } = *place;
            OrderedRecord { key, partition, frame, index, value }
        })
    }

    /// Each of them apart, with views of the bytes that they share.
    pub fn placed(&self) -> impl Iterator<Item = Placed> {
        self.iter().map(move |one| {
            let OrderedRecord { key, partition, frame, index, value } = one;
            let (key, value) = (self.bytes.slice_ref(key), self.bytes.slice_ref(value));
            Placed { key, partition, frame, index, value }
        })
    }

    /// The key of the record at that place; none: there are fewer.
    pub fn key(&self, at: usize) -> Option<&[u8]> {
        let (begin, end) = (self.before(at).0, self.places().get(at)?.end as usize);
        let ((key, _), _) = records::split(self.bytes.get(begin..end)?).ok()?;
        Some(key)
    }

    /// Those from one place to before another, as far as there are some. Nothing is copied.
    #[must_use]
    pub fn slice(&self, places: Range<usize>) -> OrderedRecords {
        let to = places.end.min(self.len());
        if places.start >= to {
            return OrderedRecords::default();
        }
        let (from, to) = (self.from + places.start, self.from + to);
        OrderedRecords { bytes: self.bytes.clone(), places: Arc::clone(&self.places), from, to }
    }

    /// The same in bytes of their own, unless they are all that lie there: a slice keeps all of these in memory.
    #[must_use]
    pub fn copied(&self) -> OrderedRecords {
        if self.len() == self.places.len() {
            return self.clone();
        }
        let (begin, content) = self.before(0);
        let place = |place: &RecordPlace| RecordPlace {
            end: place.end - begin as u32,
            content: place.content - content as u32,
            ..*place
        };
        let places: Vec<RecordPlace> = self.places().iter().map(place).collect();
        let bytes = Bytes::copy_from_slice(self.bytes.get(self.span()).unwrap_or_default());
        OrderedRecords { bytes, places: Arc::new(places), from: 0, to: self.len() }
    }

    /// The first of them: as many as take so much memory, and one at least.
    #[must_use]
    pub fn within(&self, most_bytes: u64) -> OrderedRecords {
        let fits = |at: usize| self.memory_of_first(at + 1) <= most_bytes;
        self.slice(0..first_not(0..self.len(), fits).max(1))
    }

    /// All of them in pieces, each of which ends with the record by which it has so many bytes.
    pub fn pieces(&self, least_bytes: usize) -> impl Iterator<Item = PackedRecords> {
        let mut from = 0;
        std::iter::from_fn(move || {
            if from >= self.len() {
                return None;
            }
            let end = self.before(from).0.saturating_add(least_bytes);
            let last = first_not(from..self.len(), |at| self.before(at + 1).0 < end);
            let piece = self.slice(from..last.saturating_add(1)).packed();
            from = last.saturating_add(1);
            Some(piece)
        })
    }

    /// The first of these places whose key is not told to be before; the keys before it all are.
    pub(super) fn first_key(&self, places: Range<usize>, is_before: impl Fn(&[u8]) -> bool) -> usize {
        first_not(places, |at| self.key(at).is_some_and(&is_before))
    }

    /// The first record that so many bytes of keys and values are before, or more; or how many there are.
    pub(super) fn first_at_bytes(&self, bytes: u64) -> usize {
        let begin = self.before(0).1;
        first_not(0..self.len(), |at| self.before(at).1 - begin < bytes)
    }

    fn memory_of_first(&self, count: usize) -> u64 {
        let bytes = self.before(count).0 - self.before(0).0;
        RecordPlace::MEMORY * count as u64 + bytes as u64
    }

    /// The bytes before the record at that place, and those of keys and values alone, also of records before these.
    fn before(&self, at: usize) -> (usize, u64) {
        let last = (self.from + at).checked_sub(1).and_then(|last| self.places.get(last));
        last.map_or((0, 0), |last| (last.end as usize, u64::from(last.content)))
    }
}

/// The first of some numbers of which it is not so, or the one behind them; of those before it is so.
fn first_not(of: Range<usize>, is_so: impl Fn(usize) -> bool) -> usize {
    let Range { start: mut low, end: mut high } = of;
    while low < high {
        let middle = low + (high - low) / 2;
        (low, high) = if is_so(middle) { (middle + 1, high) } else { (low, middle) };
    }
    low
}

/// Copies records together, in their order.
#[derive(Debug, Default)]
pub struct OrderedBuilder {
    bytes: Vec<u8>,
    places: Vec<RecordPlace>,
    content: u32,
}

impl OrderedBuilder {
    /// With room for so many records, and for so many bytes of them with their lengths.
    pub fn with_room(records: usize, bytes: usize) -> OrderedBuilder {
        let (bytes, places) = (Vec::with_capacity(bytes), Vec::with_capacity(records));
        OrderedBuilder { bytes, places, content: 0 }
    }

    /// One more record, behind all others.
    ///
    /// # Errors
    /// They would have more than 4 GiB together: it is not added.
    pub fn add(&mut self, one: OrderedRecord<'_>) -> Result<(), NotRecords> {
        let begin = self.bytes.len();
        put_record(one.key, one.value, &mut self.bytes);
        let bytes = self.bytes.len();
        if u32::try_from(bytes).is_err() {
            self.bytes.truncate(begin);
            return Err(NotRecords::Long(bytes));
        }
        self.end_record(RecordPlace::new(one.partition, one.frame, one.index), one.bytes() as u32);
        Ok(())
    }

    /// One more record, which was checked, as it lies packed, with the bytes of its key and value. All of them have no more than
    /// 4 GiB together.
    pub(super) fn add_packed(&mut self, place: RecordPlace, packed: &[u8], content: u32) {
        self.bytes.extend_from_slice(packed);
        self.end_record(place, content);
    }

    fn end_record(&mut self, place: RecordPlace, content: u32) {
        self.content += content;
        self.places.push(RecordPlace { end: self.bytes.len() as u32, content: self.content, ..place });
    }

    /// How many there are so far.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none so far.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// All of them.
    pub fn finish(mut self) -> OrderedRecords {
        // What grew has up to twice the room that it needs.
        self.bytes.shrink_to_fit();
        self.places.shrink_to_fit();
        let to = self.places.len();
        OrderedRecords { bytes: self.bytes.into(), places: Arc::new(self.places), from: 0, to }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn placed() -> impl Strategy<Value = Vec<Placed>> {
        let key = prop::collection::vec(0u8..3, 0..4);
        let value = prop_oneof![prop::collection::vec(any::<u8>(), 0..4), Just(vec![7; 200])];
        let one = (key, 0u32..3, 0u64..3, value);
        prop::collection::vec(one, 0..60).prop_map(|all| {
            let one = |(index, (key, partition, frame, value)): (u32, (Vec<u8>, _, _, Vec<u8>))| Placed {
                key: key.into(),
                partition,
                frame,
                index,
                value: value.into(),
            };
            let mut all: Vec<Placed> = (0..).zip(all).map(one).collect();
            all.sort();
            all
        })
    }

    fn pairs(all: &[Placed]) -> impl Iterator<Item = (&[u8], &[u8])> {
        all.iter().map(|one| (&one.key[..], &one.value[..]))
    }

    proptest! {
        #[test]
        fn slices_are_those_of_the_plain_list(
            all in placed(), (from, to) in (0usize..70, 0usize..70), most_bytes in 0u64..9_000,
            key in prop::collection::vec(0u8..4, 0..4),
        ) {
            let whole = OrderedRecords::of(&all).unwrap();
            prop_assert_eq!(whole.placed().collect::<Vec<_>>(), all.clone());
            let plain = all.get(from..to.min(all.len())).unwrap_or_default();
            let slice = whole.slice(from..to);
            prop_assert_eq!(slice.len(), plain.len());
            prop_assert_eq!(slice.placed().collect::<Vec<_>>(), plain.to_vec());
            prop_assert_eq!(&slice, &OrderedRecords::of(plain).unwrap());
            let copied = slice.copied();
            prop_assert_eq!((&copied, copied.sizes(), copied.memory()), (&slice, slice.sizes(), slice.memory()));
            prop_assert_eq!(copied.places.len(), plain.len(), "nothing else is kept in memory");
            prop_assert_eq!(slice.packed(), PackedRecords::pack(pairs(plain)));
            prop_assert_eq!(slice.sizes(), (plain.len() as u64, plain.iter().map(|one| one.sized().1).sum::<u64>()));
            let keys = (0..plain.len()).map(|at| slice.key(at));
            prop_assert!(keys.eq(plain.iter().map(|one| Some(&one.key[..]))));
            prop_assert_eq!(slice.key(plain.len()), None);
            // Slices of slices, by key, by bytes and by memory.
            let before = slice.first_key(0..slice.len(), |one| one < &key[..]);
            prop_assert_eq!(before, plain.partition_point(|one| one.key[..] < key[..]));
            let mut bytes = 0;
            for (at, one) in plain.iter().enumerate() {
                if one.sized().1 > 0 {
                    prop_assert_eq!(slice.first_at_bytes(bytes + 1), at + 1);
                }
                bytes += one.sized().1;
                prop_assert_eq!(&slice.slice(at..at + 1), &OrderedRecords::of([one]).unwrap());
            }
            let within = slice.within(most_bytes);
            let memory = |count: usize| OrderedRecords::of(&plain[..count]).unwrap().memory();
            prop_assert!(within.len() <= 1 || within.memory() <= most_bytes);
            prop_assert!(within.len() == plain.len() || memory(within.len() + 1) > most_bytes);
            prop_assert_eq!(within.memory(), memory(within.len()));
            prop_assert!(slice.memory() <= slice.sizes().1 + OrderedRecords::AROUND * slice.len() as u64);
        }

        #[test]
        fn what_lies_together_is_taken_as_it_is_or_not_at_all(all in placed()) {
            let whole = OrderedRecords::of(&all).unwrap();
            let places = || whole.places().iter().map(|one| RecordPlace::new(one.partition, one.frame, one.index));
            let bytes = whole.packed().bytes().clone();
            let again = OrderedRecords::new(places().collect(), bytes.clone()).unwrap();
            prop_assert_eq!(&again, &whole);
            prop_assert_eq!((again.sizes(), again.memory()), (whole.sizes(), whole.memory()));
            for length in 0..bytes.len() {
                prop_assert!(OrderedRecords::new(places().collect(), bytes.slice(..length)).is_err());
            }
            prop_assert!(all.is_empty() || OrderedRecords::new(places().skip(1).collect(), bytes).is_err());
        }

        #[test]
        fn pieces_are_all_records_and_end_where_they_have_so_many_bytes(all in placed(), least in 0usize..900) {
            let whole = OrderedRecords::of(&all).unwrap();
            let pieces: Vec<PackedRecords> = whole.pieces(least).collect();
            prop_assert!(pieces.iter().flatten().eq(pairs(&all)));
            for (at, piece) in pieces.iter().enumerate() {
                let last = PackedRecords::pack(piece.iter().last()).bytes().len();
                prop_assert!(at + 1 == pieces.len() || piece.bytes().len() >= least);
                prop_assert!(piece.count() == 1 || piece.bytes().len() - last < least);
            }
        }
    }

    #[test]
    fn a_slice_shares_what_it_is_taken_from() {
        let one =
            |index| Placed { key: vec![1].into(), partition: 1, frame: 1, index, value: vec![2; 9].into() };
        let whole = OrderedRecords::of(&[one(0), one(1), one(2)]).unwrap();
        let slice = whole.slice(1..2);
        assert!(Arc::ptr_eq(&whole.places, &slice.places));
        assert_eq!(slice.packed().bytes().as_ptr(), whole.bytes[12..].as_ptr());
        assert_eq!(slice.key(0).unwrap().as_ptr(), whole.bytes[14..].as_ptr());
        // One without records keeps nothing.
        assert_eq!(Arc::strong_count(&whole.places), 2);
        let none = whole.slice(3..9);
        assert_eq!((none.len(), Arc::strong_count(&whole.places)), (0, 2));
        assert!(none.pieces(1).next().is_none() && none.within(9).is_empty());
    }
}
