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
use partage_service::shuffle::partition::{CutAt, HeavyKey};
use partage_service::shuffle::plan::Placed;
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
    Records(u64, Result<Vec<Placed>, NotRead>),
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

impl Form for Placed {
    const NAME: &'static str = "a record with its place";
    // Two lengths, the partition, the frame, and the place.
    const LEAST: usize = 15;
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(&self.key, out);
        self.partition.put(out);
        self.frame.put(out);
        put_number(self.index as u64, out);
        put_bytes(&self.value, out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        // Both stay where they lie in the frame.
        let part = |from: &mut Cursor<'_>| {
            let length = from.length(Self::NAME)?;
            from.part(length, Self::NAME)
        };
        let (key, partition, frame) = (part(from)?, Form::take(from)?, Form::take(from)?);
        let index = usize::try_from(from.number(Self::NAME)?);
        let index = index.map_err(|_| Malformed::Value("the place of a record"))?;
        Ok(Placed { key, partition, frame, index, value: part(from)? })
    }
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

    /// About the bytes of it: a vector that has to grow copies records again.
    fn room(&self) -> usize {
        let Relay::Records(_, Ok(placed)) = self else { return 64 };
        64 + placed.iter().map(|one| one.key.len() + one.value.len() + 24).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_service::shuffle::options::OptionDifference;
    use partage_service::shuffle::partition::CutBy;
    use partage_service::shuffle::{Ended, Terms};
    use std::collections::BTreeSet;

    const SHUFFLE: ShuffleId = ShuffleId(9);

    fn options() -> Arc<ShuffleOptions> {
        Arc::new(ShuffleOptions {
            sealed_ttl_ms: Some(90_000),
            owner: "etl".to_owned(),
            ..ShuffleOptions::default()
        })
    }

    fn relays() -> Vec<Relay> {
        let slice = SliceOf {
            shuffle: SHUFFLE,
            range: 3,
            keys: Some((b"a".as_slice().into(), Some(b"b".as_slice().into()))),
            from: 7,
            to: 4_000,
        };
        let placed = Placed {
            key: b"key".as_slice().into(),
            partition: 4,
            frame: 2,
            index: 300,
            value: b"value".as_slice().into(),
        };
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
            Relay::Records(5, Ok(vec![placed.clone(), placed])),
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
            let cut = frame.body().slice(..frame.body().len() - 1);
            assert!(Relay::of(&Frame::new(frame.kind(), frame.shuffle(), cut).unwrap()).is_err());
        }
        let frame = relays()[8].frame().unwrap();
        let other = Frame::new(frame.kind(), Some(ShuffleId(1)), frame.body().clone()).unwrap();
        assert_eq!(Relay::of(&other), Err(FrameError::Body(Kind::AskHolder, Malformed::OtherShuffle)));
    }
}
