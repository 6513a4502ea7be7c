//! What nodes ask each other for their clients: any node takes any call, and passes on what another one leads or holds.
//!
//! A question has a number of the node that asks, and its answer has the same. A slice is named by its shuffle: the holder has
//! the plan of a sealed shuffle, or asks for it ([`Message::Ask`](partage_service::shuffle::message::Message::Ask)).

use crate::form::{Cursor, Form, choices, fields, put_bytes, put_number};
use crate::frame::{Frame, Kind};
use crate::malformed::{FrameError, Malformed};
use crate::node::read;
use partage_service::shuffle::holder::NotRead;
use partage_service::shuffle::leader::{Answer, Failed, QuotaUsedUp, Request, ShuffleOverview, ShuffleStage};
use partage_service::shuffle::ordered_records::{OrderedRecords, RecordPlace};
use partage_service::shuffle::partition::{CutAt, HeavyKey};
use partage_service::shuffle::seek::{Found, SeekFor};
use partage_service::shuffle::{Bytes, Combine, Durability, ShuffleId, ShuffleOptions};
use std::sync::Arc;

/// A part of a range of a sealed shuffle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceOf {
    /// The sealed shuffle whose plan has the range.
    pub shuffle: ShuffleId,
    /// The range, by its place in the plan.
    pub range: u64,
    /// Only keys from the first, included, to the second.
    pub keys: Option<(Bytes, Option<Bytes>)>,
    /// The first record to send, counted from 0 among those of `keys`.
    pub from: u64,
    /// The record behind the last one to send.
    pub to: u64,
}

/// A question about the order of a range of a sealed shuffle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeekOf {
    /// The sealed shuffle whose plan has the range.
    pub shuffle: ShuffleId,
    /// The range, by its place in the plan.
    pub range: u64,
    /// What is sought in it.
    pub what: SeekFor,
}

/// A question of a node for one of its clients, or its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Relay {
    /// A request of a client, to the leader of its shuffle.
    Request(u64, ShuffleId, Request),
    /// What the leader answers to the request of that number.
    Answered(u64, Result<Answer, Failed>),
    /// A client reads: a slice, from a holder of its range.
    Read(u64, SliceOf),
    /// From the holder: records, or why it gives none, or has not looked for what is sought.
    Records(u64, Result<OrderedRecords, NotRead>),
    /// What is to be found in a range, by a holder of it.
    Seek(u64, SeekOf),
    /// What the holder has found for the question of that number.
    Found(u64, Found),
}

fields! {
    ShuffleOverview, "the overview of a shuffle", {
        shuffle: ShuffleId,
        options: Arc<ShuffleOptions>,
        combine: Option<Combine>,
        durability: Durability,
        stage: ShuffleStage,
        partitions: u64,
        attempts: u64,
        records: u64,
        bytes: u64,
        version: u32,
        ranges: u32,
        ends_in_ms: u64,
        dividing: u32,
        short_slots: u32,
        lacking: Vec<u32>
    };
    SliceOf, "a part of a range", {
        shuffle: ShuffleId, range: u64, keys: Option<(Bytes, Option<Bytes>)>, from: u64, to: u64
    };
    SeekOf, "a question about a range", { shuffle: ShuffleId, range: u64, what: SeekFor };
    CutAt, "a cut", { record: u64, key: Option<Bytes> };
    HeavyKey, "a heavy key", { key: Bytes, first: u64, records: u64 };
}
choices! {
    ShuffleStage, "how far a shuffle is", { 1 => Open, 2 => Sealing, 3 => Sealed, 4 => Failed(why) };
    Request, "request to a leader", {
        1 => Start(terms, options), 2 => Seal(expected), 3 => Delete, 4 => KeepAlive, 5 => Overview
    };
    Answer, "answer of a leader", {
        1 => Started(terms), 2 => Sealed(plan), 3 => Lacks(partitions), 4 => Deleted, 5 => Alive, 6 => Overview(overview)
    };
    Failed, "refusal of a leader", {
        1 => NotLeading, 2 => Over(how), 3 => Failed(why), 4 => NotExpected(partition), 5 => StartDiffers(what),
        6 => QuotaUsedUp(what)
    };
    QuotaUsedUp, "quota that is used up", { 1 => Shuffles { has, share, quota }, 2 => Bytes { has, share, quota } };
    NotRead, "refusal of a holder", { 1 => Lacks, 2 => Busy, 3 => Differs, 4 => Over(how), 5 => Sorts, 6 => ObjectStore, 7 => ObjectLost };
    SeekFor, "kind of question about a range", { 1 => Cuts(by, offsets), 2 => HeavyKeys { more_than, from } };
    Found, "kind of answer about a range", { 1 => Cuts(cuts), 2 => HeavyKeys { keys, has_more } };
}

impl<T: Form, E: Form> Form for Result<T, E> {
    const NAME: &'static str = T::NAME;
    const LEAST: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        Ok(match bool::take(from)? {
            true => Ok(T::take(from)?),
            false => Err(E::take(from)?),
        })
    }
}

/// How many records, the place of each, and the records, as they lie packed: their bytes stay where they lie in the frame.
///
/// Records of one key, or of one frame, follow each other often. So the partition and the frame of a record are told by how much
/// they differ from those of the record before, the first one from 0; what differs by less than 0 has odd numbers.
impl Form for OrderedRecords {
    const NAME: &'static str = "records in order";
    // Their count, and that of their bytes.
    const LEAST: usize = 2;
    fn put(&self, out: &mut Vec<u8>) {
        put_number(self.len() as u64, out);
        let mut last = RecordPlace::default();
        for place in self.places() {
            put_number(folded(i64::from(place.partition) - i64::from(last.partition)), out);
            put_number(folded(place.frame.wrapping_sub(last.frame) as i64), out);
            put_number(u64::from(place.index), out);
            last = *place;
        }
        put_bytes(self.packed().bytes(), out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        // Three numbers of its place, and two lengths.
        let count = from.count(Self::NAME, 5)?;
        let mut places = Vec::with_capacity(count);
        let mut last = RecordPlace::default();
        for _ in 0..count {
            let partition = i64::from(last.partition).checked_add(unfolded(from.number(PLACE)?));
            let partition = partition.and_then(|partition| u32::try_from(partition).ok());
            let frame = last.frame.wrapping_add(unfolded(from.number(PLACE)?) as u64);
            let index = u32::try_from(from.number(PLACE)?);
            let partition = partition.ok_or(Malformed::Value(PLACE))?;
            last = RecordPlace::new(partition, frame, index.map_err(|_| Malformed::Value(PLACE))?);
            places.push(last);
        }
        let length = from.length(Self::NAME)?;
        Ok(OrderedRecords::new(places, from.part(length, Self::NAME)?)?)
    }
}

const PLACE: &str = "the place of a record";

/// A number that is short where the difference is near to 0, above or below it.
fn folded(difference: i64) -> u64 {
    ((difference << 1) ^ (difference >> 63)) as u64
}

fn unfolded(number: u64) -> i64 {
    ((number >> 1) as i64) ^ -((number & 1) as i64)
}

impl Relay {
    /// As a frame.
    ///
    /// # Errors
    /// It is too long for one.
    pub fn frame(&self) -> Result<Frame, FrameError> {
        let mut body = Vec::with_capacity(self.room());
        let (kind, shuffle) = match self {
            Relay::Request(number, shuffle, request) => {
                (*number).put(&mut body);
                request.put(&mut body);
                (Kind::AskLeader, Some(*shuffle))
            }
            Relay::Answered(number, answer) => {
                (*number).put(&mut body);
                answer.put(&mut body);
                (Kind::LeaderAnswers, None)
            }
            Relay::Read(number, slice) => {
                (*number).put(&mut body);
                slice.put(&mut body);
                (Kind::AskHolder, Some(slice.shuffle))
            }
            Relay::Records(number, answer) => {
                (*number).put(&mut body);
                answer.put(&mut body);
                (Kind::HolderAnswers, None)
            }
            Relay::Seek(number, seek) => {
                (*number).put(&mut body);
                seek.put(&mut body);
                (Kind::AskSeek, Some(seek.shuffle))
            }
            Relay::Found(number, found) => {
                (*number).put(&mut body);
                found.put(&mut body);
                (Kind::Found, None)
            }
        };
        Frame::new(kind, shuffle, body)
    }

    /// Whether a frame of that kind carries one.
    pub fn is(kind: Kind) -> bool {
        matches!(
            kind,
            Kind::AskLeader
                | Kind::LeaderAnswers
                | Kind::AskHolder
                | Kind::HolderAnswers
                | Kind::AskSeek
                | Kind::Found
        )
    }

    /// Reads the question or the answer in a frame.
    ///
    /// # Errors
    /// It is of another kind, or malformed.
    pub fn of(frame: &Frame) -> Result<Relay, FrameError> {
        read(frame, |kind, from| {
            let number = Form::take(from)?;
            let (relay, shuffle) = match kind {
                Kind::AskLeader => {
                    let shuffle = frame.shuffle().ok_or(Malformed::NoShuffle)?;
                    (Relay::Request(number, shuffle, Form::take(from)?), Some(shuffle))
                }
                Kind::LeaderAnswers => (Relay::Answered(number, Form::take(from)?), None),
                Kind::AskHolder => {
                    let slice = SliceOf::take(from)?;
                    let shuffle = slice.shuffle;
                    (Relay::Read(number, slice), Some(shuffle))
                }
                Kind::HolderAnswers => (Relay::Records(number, Form::take(from)?), None),
                Kind::AskSeek => {
                    let seek = SeekOf::take(from)?;
                    let shuffle = seek.shuffle;
                    (Relay::Seek(number, seek), Some(shuffle))
                }
                Kind::Found => (Relay::Found(number, Form::take(from)?), None),
                other => return Err(Malformed::Unexpected(other)),
            };
            if frame.shuffle() == shuffle { Ok(relay) } else { Err(Malformed::OtherShuffle) }
        })
    }

    /// The bytes of it, or more: a vector that has to grow copies records again.
    fn room(&self) -> usize {
        let Relay::Records(_, Ok(records)) = self else { return 64 };
        // The places take less than in memory.
        64 + usize::try_from(records.memory()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_service::shuffle::options::OptionDifference;
    use partage_service::shuffle::ordered_records::{OrderedBuilder, OrderedRecord};
    use partage_service::shuffle::partition::CutBy;
    use partage_service::shuffle::{Ended, Terms};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const SHUFFLE: ShuffleId = ShuffleId(9);

    fn options() -> Arc<ShuffleOptions> {
        Arc::new(ShuffleOptions {
            sealed_ttl_ms: Some(90_000),
            owner: "etl".to_owned(),
            ..ShuffleOptions::default()
        })
    }

    /// The partition, frame and index of a record, its key, and its value.
    type Whole = ((u32, u64, u32), Vec<u8>, Vec<u8>);

    fn records(all: &[Whole]) -> OrderedRecords {
        let mut records = OrderedBuilder::default();
        for ((partition, frame, index), key, value) in all {
            let (partition, frame, index) = (*partition, *frame, *index);
            records.add(OrderedRecord { key, partition, frame, index, value }).unwrap();
        }
        records.finish()
    }

    fn whole() -> impl Strategy<Value = Whole> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..9);
        let near = (0..3_u32, 0..3_u64, 0..3_u32);
        (prop_oneof![near, any::<(u32, u64, u32)>()], bytes(), bytes())
    }

    proptest! {
        #[test]
        fn records_in_order_come_back_and_no_cut_of_them_is_taken(all in prop::collection::vec(whole(), 0..12)) {
            let relay = Relay::Records(7, Ok(records(&all)));
            let frame = relay.frame().unwrap();
            prop_assert!(frame.body().len() <= relay.room());
            prop_assert_eq!(Relay::of(&frame), Ok(relay));
            let with = |body: bytes::Bytes| Relay::of(&Frame::new(frame.kind(), frame.shuffle(), body).unwrap());
            for length in 0..frame.body().len() {
                prop_assert!(with(frame.body().slice(..length)).is_err(), "{} bytes", length);
            }
            prop_assert!(with([&frame.body()[..], &[0]].concat().into()).is_err());
        }

        #[test]
        fn a_folded_number_is_of_one_difference(difference in any::<i64>()) {
            prop_assert_eq!(unfolded(folded(difference)), difference);
        }
    }

    #[test]
    fn places_and_records_that_do_not_belong_together_are_refused() {
        let taken =
            |bytes: &[u8]| crate::form::whole::<OrderedRecords>(&bytes::Bytes::copy_from_slice(bytes));
        // Of a record with an empty key and value: count, partition 3, frame 1, index 0, bytes.
        let one = taken(&[1, 6, 2, 0, 2, 0, 0]).unwrap();
        assert_eq!(one, records(&[((3, 1, 0), Vec::new(), Vec::new())]));
        assert_eq!(taken(&[0, 2, 0, 0]), Err(Malformed::Rest(2)), "a record without a place");
        assert_eq!(taken(&[1, 6, 2, 0, 4, 0, 0, 0, 0]), Err(Malformed::Rest(2)));
        let count = Malformed::Count { what: "records", count: 1, bytes: 1 };
        assert_eq!(taken(&[1, 6, 2, 0, 1, 0]), Err(count));
        assert_eq!(taken(&[1, 6, 2, 0, 2, 0, 1]), Err(Malformed::Ends("a record")));
        let many = Malformed::Count { what: "records in order", count: 2, bytes: 9 };
        assert_eq!(taken(&[2, 0, 0, 0, 0, 0, 0, 4, 0, 0]), Err(many), "no room for what did not come");
        // A partition below 0, and an index that is none.
        assert_eq!(taken(&[1, 1, 2, 0, 2, 0, 0]), Err(Malformed::Value(PLACE)));
        assert_eq!(taken(&[1, 6, 2, 0x80, 0x80, 0x80, 0x80, 0x10, 2, 0, 0]), Err(Malformed::Value(PLACE)));
    }

    fn relays() -> Vec<Relay> {
        let slice = SliceOf {
            shuffle: SHUFFLE,
            range: 3,
            keys: Some((b"a".as_slice().into(), Some(b"b".as_slice().into()))),
            from: 7,
            to: 4_000,
        };
        let one = |partition, frame, index| ((partition, frame, index), b"key".to_vec(), b"value".to_vec());
        let records =
            records(&[one(4, 2, 300), one(4, 3, 0), one(u32::MAX, 0, u32::MAX), one(0, u64::MAX, 1)]);
        let overview = ShuffleOverview {
            shuffle: SHUFFLE,
            options: options(),
            combine: Some(Combine::MaxF64),
            durability: Durability::Memory,
            stage: ShuffleStage::Sealing,
            partitions: 2,
            attempts: 3,
            records: 40,
            bytes: 4_000,
            version: 1,
            ranges: 90,
            ends_in_ms: 1_500,
            dividing: 5,
            short_slots: 1,
            lacking: vec![1, 7],
        };
        let seek = |what| SeekOf { shuffle: SHUFFLE, range: 3, what };
        let cut = CutAt { record: 4, key: Some(b"k".as_slice().into()) };
        let heavy = HeavyKey { key: b"k".as_slice().into(), first: 2, records: 10 };
        vec![
            Relay::Request(1, SHUFFLE, Request::Start(Terms::new(30, 90), options().as_ref().clone())),
            Relay::Request(2, SHUFFLE, Request::Seal(BTreeSet::from([0, 1, 5]))),
            Relay::Request(3, SHUFFLE, Request::Overview),
            Relay::Answered(3, Ok(Answer::Overview(overview))),
            Relay::Answered(4, Err(Failed::Over(Ended::Expired))),
            Relay::Answered(4, Err(Failed::NotExpected(7))),
            Relay::Answered(4, Err(Failed::StartDiffers(OptionDifference::Owner))),
            Relay::Answered(4, Err(Failed::QuotaUsedUp(QuotaUsedUp::Bytes { has: 7, share: 5, quota: 9 }))),
            Relay::Read(5, slice),
            Relay::Records(5, Ok(records.slice(1..3))),
            Relay::Records(5, Ok(records)),
            Relay::Records(5, Ok(OrderedRecords::default())),
            Relay::Records(6, Err(NotRead::Busy)),
            Relay::Seek(7, seek(SeekFor::Cuts(CutBy::Bytes, [3, 300].into()))),
            Relay::Seek(8, seek(SeekFor::HeavyKeys { more_than: 9, from: 2 })),
            Relay::Found(7, Found::Cuts(vec![cut, CutAt { record: 9, key: None }])),
            Relay::Found(8, Found::HeavyKeys { keys: vec![heavy], has_more: true }),
            Relay::Records(7, Err(NotRead::Sorts)),
            Relay::Records(8, Err(NotRead::ObjectStore)),
            Relay::Records(9, Err(NotRead::ObjectLost)),
        ]
    }

    #[test]
    fn what_was_written_is_read() {
        for relay in relays() {
            let frame = relay.frame().unwrap();
            assert!(Relay::is(frame.kind()));
            assert_eq!(Relay::of(&frame), Ok(relay));
        }
    }

    #[test]
    fn a_body_that_is_cut_or_of_another_shuffle_is_refused() {
        for relay in relays() {
            let frame = relay.frame().unwrap();
            for length in 0..frame.body().len() {
                let cut = frame.body().slice(..length);
                assert!(Relay::of(&Frame::new(frame.kind(), frame.shuffle(), cut).unwrap()).is_err());
            }
        }
        let frame = relays()[8].frame().unwrap();
        let other = Frame::new(frame.kind(), Some(ShuffleId(1)), frame.body().clone()).unwrap();
        assert_eq!(Relay::of(&other), Err(FrameError::Body(Kind::AskHolder, Malformed::OtherShuffle)));
    }
}
