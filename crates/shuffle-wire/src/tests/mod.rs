//! Round trips, every way to be wrong, and golden cases.

mod damaged;
mod golden;
mod sizes;

use crate::client::{Answer, Call, Refusal, RefusalWord, Request};
use crate::form::{self, Form};
use crate::frame::{Frame, Kind};
use crate::node::{self, Control, Received};
use crate::records::PackedRecords;
use crate::testing;
use bytes::Bytes;
use partage_service::shuffle::combine::NoNumber;
use partage_service::shuffle::message::Message;
use partage_service::shuffle::options::{BadShuffleOptions, OptionDifference};
use partage_service::shuffle::record::{Batch, Body, Record};
use partage_service::shuffle::{Combine, Ended, RangeId, buffer, holder, leader, reader};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Through the bytes of a connection and back.
fn carried(frame: &Frame, number: u64) -> Frame {
    let mut bytes = Vec::new();
    frame.encode(number, &mut bytes);
    let mut bytes = Bytes::from(bytes);
    let (carried, found) = Frame::decode(&mut bytes).unwrap();
    assert_eq!((found, bytes.len()), (number, 0));
    carried
}

fn message(frame: &Frame) -> Message {
    Received::of(frame).unwrap().message()
}

proptest! {
    #[test]
    fn messages_of_nodes_come_as_they_were_sent(message in testing::messages(), number in any::<u64>()) {
        let frame = carried(&node::frame(&message).unwrap(), number);
        prop_assert_eq!(super::tests::message(&frame), message.clone());
        // The same value has the same bytes: what was read gives the same frame.
        prop_assert_eq!(node::frame(&super::tests::message(&frame)).unwrap(), frame.clone());
        prop_assert_eq!(frame.shuffle(), node::shuffle_of(&message));
    }

    #[test]
    fn requests_come_as_they_were_sent(call in testing::requests(), number in any::<u64>()) {
        prop_assert_eq!(Call::<Request>::of(&carried(&call.frame().unwrap(), number)).unwrap(), call);
    }

    #[test]
    fn answers_come_as_they_were_sent(call in testing::answers(), number in any::<u64>()) {
        prop_assert_eq!(Call::<Answer>::of(&carried(&call.frame().unwrap(), number)).unwrap(), call);
    }

    #[test]
    fn what_is_said_of_a_connection_comes_as_it_was_sent(control in testing::controls()) {
        prop_assert_eq!(Control::of(&carried(&control.frame().unwrap(), 0)).unwrap(), control);
    }

    #[test]
    fn a_batch_in_bytes_is_the_batch_of_core(batch in testing::batches()) {
        let mut bytes = Vec::new();
        batch.put(&mut bytes);
        let bytes = Bytes::from(bytes);
        let read: Batch = form::whole(&bytes).unwrap();
        prop_assert_eq!(&read, &batch);
        let mut again = Vec::new();
        read.put(&mut again);
        prop_assert_eq!(&again[..], &bytes[..]);
        let frame = node::batch_frame(batch.key.stream.shuffle, bytes).unwrap();
        prop_assert_eq!(frame, node::frame(&Message::Batch(batch.into())).unwrap());
    }

    #[test]
    fn a_batch_that_came_shares_the_bytes_of_its_frame_which_can_be_passed_on(batch in testing::batches()) {
        let frame = carried(&node::frame(&Message::Batch(batch.into())).unwrap(), 0);
        let Received::Batch(read, kept) = Received::of(&frame).unwrap() else { panic!("a batch") };
        prop_assert_eq!(kept.body().as_ptr_range(), frame.body().as_ptr_range());
        let Body::Records(tagged) = read.body else { return Ok(()) };
        for segment in tagged.values().flatten() {
            let bytes = segment.records.bytes();
            let is_inside = frame.body().as_ptr_range().contains(&bytes.as_ptr());
            prop_assert!(bytes.is_empty() || is_inside, "it was copied");
        }
    }
}

#[test]
fn records_lie_in_the_bytes_that_came() {
    let value = vec![7; 1_000];
    let packed = PackedRecords::pack([(&b"key"[..], &value[..])]);
    let call = Call {
        number: 1,
        shuffle: partage_service::shuffle::ShuffleId(1),
        what: Request::Records(1, packed),
    };
    let frame = carried(&call.frame().unwrap(), 0);
    let Request::Records(_, read) = Call::<Request>::of(&frame).unwrap().what else { panic!("records") };
    let (key, found) = read.iter().next().unwrap();
    assert_eq!((key, found), (&b"key"[..], &value[..]));
    assert!(frame.body().as_ptr_range().contains(&found.as_ptr()), "not copied");
    assert_eq!((read.count(), read.content_bytes()), (1, 1_003));
    assert_eq!(read.unpack(), [Record { key: b"key".as_slice().into(), value: value.into() }]);
}

#[test]
fn codes_and_words_are_each_ones_own() {
    let codes: BTreeSet<u8> = Kind::ALL.iter().map(|kind| kind.code()).collect();
    assert_eq!(codes.len(), Kind::ALL.len());
    for code in 0..=u8::MAX {
        assert_eq!(Kind::of_code(code).map(Kind::code), codes.contains(&code).then_some(code));
    }
    let words: BTreeSet<&str> = RefusalWord::ALL.iter().map(|word| word.as_str()).collect();
    assert_eq!(words.len(), RefusalWord::ALL.len());
}

/// Every refusal of core says in its sentence what its flag says.
#[test]
fn refusals_of_core_say_whether_to_run_the_attempt_again() {
    use crate::client::Again;
    let cases: [(Refusal, &str, Again); 29] = [
        (buffer::Failed::IdTwice.into(), "attempt-id-used", Again::Attempt),
        (buffer::Failed::FrameMissing { expected: 1, found: 3 }.into(), "frame-missing", Again::Attempt),
        (buffer::Failed::CountDiffers { said: (1, 1), seen: (2, 2) }.into(), "count-differs", Again::Attempt),
        (buffer::Failed::TooLarge { key: 1, record: 1 }.into(), "record-too-large", Again::No),
        (buffer::Failed::FrameTooLarge { bytes: 1 }.into(), "record-too-large", Again::No),
        (buffer::Failed::NoNumber(NoNumber { how: Combine::Count, bytes: 1 }).into(), "no-number", Again::No),
        (buffer::Failed::CombinesOtherwise.into(), "start-differs", Again::No),
        (buffer::Failed::OtherDurability.into(), "start-differs", Again::No),
        (buffer::Failed::Unknown.into(), "attempt-unknown", Again::Attempt),
        (buffer::Failed::TooFewNodes { replicas: 2 }.into(), "too-few-nodes", Again::Attempt),
        (buffer::Failed::Silent { silent_ms: 1 }.into(), "client-silent", Again::Attempt),
        (buffer::Failed::Sealed.into(), "partition-not-expected", Again::No),
        (buffer::Failed::Over(Ended::Deleted).into(), "shuffle-deleted", Again::No),
        (buffer::Failed::ShuffleFailed.into(), "shuffle-failed", Again::No),
        (leader::Failed::NotLeading.into(), "not-leading", Again::Request),
        (leader::Failed::Over(Ended::Expired).into(), "shuffle-expired", Again::No),
        (leader::Failed::NotExpected(3).into(), "partition-not-expected", Again::No),
        (leader::Failed::StartDiffers(OptionDifference::Owner).into(), "start-differs", Again::No),
        (
            leader::Failed::QuotaUsedUp(leader::QuotaUsedUp::Bytes { has: 1, share: 1, quota: 2 }).into(),
            "quota-used-up",
            Again::Request,
        ),
        (BadShuffleOptions::Ttl(1).into(), "bad-options", Again::No),
        (holder::NotRead::Lacks.into(), "holder-lacks", Again::Request),
        (holder::NotRead::Busy.into(), "busy", Again::Request),
        (holder::NotRead::Sorts.into(), "busy", Again::Request),
        (holder::NotRead::Differs.into(), "holder-differs", Again::Request),
        (holder::NotRead::ObjectStore.into(), "object-store", Again::Request),
        (holder::NotRead::ObjectLost.into(), "object-lost", Again::No),
        (reader::Failed::NoHolder(RangeId(1), None).into(), "no-holder", Again::Request),
        (
            reader::Failed::NoHolder(RangeId(1), Some(holder::NotRead::ObjectStore)).into(),
            "object-store",
            Again::Request,
        ),
        (reader::Failed::Over(Ended::Unknown).into(), "shuffle-unknown", Again::No),
    ];
    for (refusal, word, again) in cases {
        assert_eq!((refusal.word.as_str(), refusal.again), (word, again), "{refusal}");
        let says = refusal.why.contains("again") && !refusal.why.contains("do not run");
        assert!(again != Again::Attempt || says, "{refusal}");
    }
}
