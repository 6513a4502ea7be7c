//! What is not as it was sent: each way is an error with a name, and none is taken for something else.

use crate::client::{Answer, Call, Request};
use crate::form::{self, Cursor};
use crate::frame::{Frame, HEADER_BYTES, Header, Kind, Sequence};
use crate::limits::SHORT_BYTES;
use crate::node::{self, Control, Received};
use crate::records::PackedRecords;
use crate::relay::Relay;
use crate::{FrameError, Malformed, testing};
use bytes::Bytes;
use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_core::limits;
use partage_service::shuffle::message::Message;
use partage_service::shuffle::record::{BatchKey, Numbers, Stream};
use partage_service::shuffle::{BufferId, PoolSlot, ShuffleId, Writer};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Every reader there is.
fn read_all(frame: &Frame) {
    let _ = Received::of(frame).map(Received::message);
    let _ = Call::<Request>::of(frame);
    let _ = Call::<Answer>::of(frame);
    let _ = Control::of(frame);
    let _ = Relay::of(frame);
}

fn decoded(bytes: &[u8]) -> Result<(Frame, u64), FrameError> {
    Frame::decode(&mut Bytes::copy_from_slice(bytes))
}

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(3, &mut bytes);
    bytes
}

proptest! {
    #[test]
    fn no_bytes_make_it_stop(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0..Kind::ALL.len()) {
        let _ = decoded(&bytes);
        for shuffle in [None, Some(ShuffleId(7))] {
            read_all(&Frame::new(Kind::ALL[kind], shuffle, bytes.clone()).unwrap());
        }
    }

    /// Random bytes are rarely a message; those of one with an error in it nearly are. Their sum is made right again.
    #[test]
    fn no_error_of_a_sender_makes_it_stop(
        message in testing::messages(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
    ) {
        let frame = node::frame(&message).unwrap();
        let mut body = frame.body().to_vec();
        prop_assume!(!body.is_empty());
        let at = at.index(body.len());
        body[at] = byte;
        body.truncate(if cut { at } else { body.len() });
        read_all(&Frame::new(frame.kind(), frame.shuffle(), body).unwrap());
    }

    #[test]
    fn a_body_that_is_cut_or_has_more_is_none(message in testing::messages(), at in any::<prop::sample::Index>()) {
        let frame = node::frame(&message).unwrap();
        let with = |body: Vec<u8>| Received::of(&Frame::new(frame.kind(), frame.shuffle(), body).unwrap());
        prop_assert!(with([&frame.body()[..], &[0]].concat()).is_err());
        if !frame.body().is_empty() {
            let cut = frame.body()[..at.index(frame.body().len())].to_vec();
            prop_assert!(with(cut).is_err());
        }
    }

    #[test]
    fn numbers_have_one_form(number in any::<u64>(), bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
        let mut out = Vec::new();
        form::put_number(number, &mut out);
        prop_assert_eq!(form::number(&out, "n"), Ok((number, out.len())));
        if let Ok((number, length)) = form::number(&bytes, "n") {
            let mut again = Vec::new();
            form::put_number(number, &mut again);
            prop_assert_eq!(&again[..], &bytes[..length]);
        }
    }
}

#[test]
fn a_frame_is_taken_as_it_was_sent_or_not_at_all() {
    let stored = Message::Stored(key());
    let frame = node::frame(&stored).unwrap();
    let sent = bytes_of(&frame);
    assert_eq!(decoded(&sent), Ok((frame.clone(), 3)));
    for bit in 0..sent.len() * 8 {
        let mut damaged = sent.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let refused = decoded(&damaged).unwrap_err();
        let is_named = match bit / 8 {
            0..4 => matches!(refused, FrameError::NotOurs(_)),
            4 => matches!(refused, FrameError::Version(_)),
            5..HEADER_BYTES => refused == FrameError::HeaderSum,
            _ => refused == FrameError::BodySum(Kind::Stored),
        };
        assert!(is_named, "bit {bit}: {refused}");
    }
    for length in 0..sent.len() {
        let expected = if length < HEADER_BYTES { HEADER_BYTES } else { sent.len() };
        assert_eq!(decoded(&sent[..length]), Err(FrameError::Cut { found: length, expected }));
    }
}

fn key() -> BatchKey {
    let buffer = BufferId { node: NodeId::new("b").unwrap(), incarnation: Incarnation(1) };
    let stream = Stream { shuffle: ShuffleId(7), slot: PoolSlot(1), writer: Writer::Buffer(buffer) };
    BatchKey { stream, number: 1 }
}

#[test]
fn a_batch_that_a_disk_has_changed_is_found_where_it_arrives() {
    let frame = node::frame(&Message::Stored(key())).unwrap();
    let batch = Frame::new(Kind::Batch, Some(ShuffleId(7)), vec![1; 100]).unwrap();
    let pass_on = |body: &[u8]| {
        let body = Bytes::copy_from_slice(body);
        decoded(&bytes_of(&node::stored_batch_frame(ShuffleId(7), body, batch.sum()).unwrap()))
    };
    assert_eq!(pass_on(&batch.body()[..]).unwrap().0, batch);
    let mut changed = batch.body().to_vec();
    changed[50] ^= 4;
    assert_eq!(pass_on(&changed), Err(FrameError::BodySum(Kind::Batch)));
    assert!(
        Frame::stored(Kind::Stored, None, vec![0; SHORT_BYTES + 1], frame.sum()).is_err(),
        "limits hold for it too"
    );
}

/// A header with these bytes changed and its sum made right again: what a sender could write.
fn header(change: impl Fn(&mut [u8; HEADER_BYTES])) -> Result<Header, FrameError> {
    let mut header = node::frame(&Message::Stored(key())).unwrap().header(3);
    change(&mut header);
    let sum = crc32c::crc32c(&header[..HEADER_BYTES - 4]);
    header[HEADER_BYTES - 4..].copy_from_slice(&sum.to_be_bytes());
    Header::decode(&header)
}

#[test]
fn headers_that_cannot_be_are_each_refused_by_their_own_name() {
    assert!(header(|_| {}).is_ok());
    assert_eq!(header(|bytes| bytes[0] = b'G'), Err(FrameError::NotOurs(*b"GSHF")));
    for version in [1, 3] {
        assert_eq!(header(|bytes| bytes[4] = version), Err(FrameError::Version(version)));
    }
    assert_eq!(header(|bytes| bytes[5] = 200), Err(FrameError::Kind(200)));
    assert_eq!(header(|bytes| bytes[6] = 1), Err(FrameError::Flags(0x101)));
    assert_eq!(header(|bytes| bytes[7] = 0), Err(FrameError::Flags(0)), "a shuffle, and no flag for it");
    let long = header(|bytes| bytes[8..12].copy_from_slice(&u32::MAX.to_be_bytes()));
    let bytes = u32::MAX as usize;
    assert_eq!(long, Err(FrameError::TooLong { kind: Kind::Stored, bytes, most: SHORT_BYTES }));
    let edge = |bytes: usize| Frame::new(Kind::Stored, None, vec![0; bytes]).map(|frame| frame.bytes());
    assert_eq!(edge(SHORT_BYTES), Ok(HEADER_BYTES + SHORT_BYTES));
    let most = SHORT_BYTES;
    assert_eq!(edge(most + 1), Err(FrameError::TooLong { kind: Kind::Stored, bytes: most + 1, most }));
}

#[test]
fn a_doubled_frame_and_a_missing_one_are_told_apart() {
    let mut sequence = Sequence::default();
    assert_eq!(sequence.take(1), Err(FrameError::Missing { found: 1, expected: 0 }));
    assert_eq!(sequence.take(0), Ok(()));
    assert_eq!(sequence.take(0), Err(FrameError::Doubled { found: 0, expected: 1 }));
    assert_eq!(sequence.take(1), Ok(()));
}

/// What `body` is refused for as a frame of that kind of the shuffle 7.
fn why(kind: Kind, body: &[u8]) -> Malformed {
    let frame = Frame::new(kind, Some(ShuffleId(7)), body.to_vec()).unwrap();
    match Received::of(&frame) {
        Err(FrameError::Body(of, why)) if of == kind => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bodies_that_cannot_be_are_each_refused_by_their_own_name() {
    let body = |message: &Message| node::frame(message).unwrap().body().to_vec();
    let stored = body(&Message::Stored(key()));
    assert!(matches!(why(Kind::Stored, &stored[..stored.len() - 1]), Malformed::Ends(_)));
    assert_eq!(why(Kind::Stored, &[&stored[..], &[0, 0]].concat()), Malformed::Rest(2));
    let of_other = Frame::new(Kind::Stored, Some(ShuffleId(8)), stored.clone()).unwrap();
    assert_eq!(Received::of(&of_other), Err(FrameError::Body(Kind::Stored, Malformed::OtherShuffle)));
    let of_none = Frame::new(Kind::Ask, None, Vec::new()).unwrap();
    assert_eq!(Received::of(&of_none), Err(FrameError::Body(Kind::Ask, Malformed::NoShuffle)));
    assert_eq!(why(Kind::Ping, &[]), Malformed::Unexpected(Kind::Ping));
    let mut writer = stored.clone();
    writer[20] = 9;
    assert_eq!(why(Kind::Stored, &writer), Malformed::Choice { what: "kind of writer", found: 9 });
    let mut name = stored;
    name[22] = b'/';
    assert!(matches!(why(Kind::Stored, &name), Malformed::Name(_)));
    // More marks than there are bytes for: no room is made for them.
    let mut marks = vec![0, 0];
    form::put_number(u64::MAX, &mut marks);
    let claimed = why(Kind::Marks, &marks);
    assert_eq!(claimed, Malformed::Count { what: "an end mark", count: u64::MAX, bytes: 0 });
    assert_eq!(why(Kind::Marks, &[0, 0, 0x80, 0]), Malformed::Number("an end mark"));
    let sketch = [&[1, b'a'][..], &[0; 8], &[0, 0, 0, 1], &[0; 8], &[1, 0]].concat();
    assert_eq!(why(Kind::Sample, &sketch), Malformed::Value("a sketch"));
}

#[test]
fn what_is_there_twice_in_a_map_is_refused() {
    let has: BTreeMap<Stream, Numbers> = [(key().stream, Numbers::default())].into();
    let inventory = Message::Inventory { slot: PoolSlot(1), round: 1, asks: false, has };
    let body = node::frame(&inventory).unwrap().body().to_vec();
    let (head, entry) = body.split_at(14);
    assert_eq!(head[13], 1, "one entry");
    let doubled = [&head[..13], &[2], entry, entry].concat();
    let frame = Frame::new(Kind::Inventory, None, doubled).unwrap();
    let refused = Received::of(&frame).unwrap_err();
    assert_eq!(refused, FrameError::Body(Kind::Inventory, Malformed::Order("a stream")));
}

#[test]
fn records_that_lie_about_themselves_are_refused() {
    let new = |count, bytes: &[u8]| {
        PackedRecords::new(count, Bytes::copy_from_slice(bytes)).map_err(Malformed::from)
    };
    assert_eq!(new(1, &[1, 1, b'k', b'v']).unwrap().content_bytes(), 2);
    assert_eq!(new(2, &[1, 1, b'k', b'v']), Err(Malformed::Ends("a record")));
    assert_eq!(new(0, &[1]), Err(Malformed::Rest(1)));
    assert_eq!(new(1, &[1, 2, b'k', b'v']), Err(Malformed::Ends("a record")));
    let count = u64::MAX;
    assert_eq!(new(count, &[0, 0]), Err(Malformed::Count { what: "records", count, bytes: 2 }));
    let key = vec![0; limits::SHUFFLE_KEY_BYTES + 1];
    let large = PackedRecords::pack([(&key[..], &[][..])]);
    assert_eq!(new(1, large.bytes()), Err(Malformed::Value("a record larger than records may be")));
    let edge = PackedRecords::pack([(&key[1..], &[][..])]);
    assert_eq!(new(1, edge.bytes()), Ok(edge));
}

#[test]
fn a_length_makes_no_room_for_what_did_not_come() {
    let bytes = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2]);
    let mut cursor = Cursor::new(&bytes);
    assert_eq!(cursor.length("bytes"), Err(Malformed::Ends("bytes")));
}
