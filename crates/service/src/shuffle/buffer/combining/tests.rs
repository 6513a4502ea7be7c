//! What is sent of a shuffle that combines, and what its mark counts.

use crate::shuffle::buffer::{Attempt, Buffer, Effect, Event, Failed, Input};
use crate::shuffle::combine::{Combine, NoNumber};
use crate::shuffle::message::Message;
use crate::shuffle::pool::{PoolMap, SlotPlace};
use crate::shuffle::record::{Batch, BatchKey, Body, EndMark, Record, Segment};
use crate::shuffle::records::PackedRecords;
use crate::shuffle::settings::Settings;
use crate::shuffle::{AttemptId, BufferId, ShuffleId, Terms};
use partage_core::base::id::{Epoch, Incarnation};
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use std::sync::Arc;

fn node() -> NodeId {
    NodeId::new("a").unwrap()
}

fn attempt(partition: u32) -> Attempt {
    Attempt { shuffle: ShuffleId(7), partition, id: AttemptId(partition.into()) }
}

fn records(all: &[(&str, i64)]) -> PackedRecords {
    let record = |(key, value): &(&str, i64)| Record {
        key: key.as_bytes().into(),
        value: value.to_le_bytes().as_slice().into(),
    };
    all.iter().map(record).collect::<Vec<_>>().into()
}

/// A buffer of one slot on one node, with an attempt of partition 1.
fn buffer(chunk_bytes: u64) -> Buffer {
    let place = SlotPlace { epoch: Epoch(1), live: vec![node()], loading: Vec::new() };
    let (places, nodes, no_stand_ins) = (vec![place], vec![node()], Default::default());
    let map = PoolMap { generation: 1, replicas: 1, places, nodes, no_stand_ins };
    let id = BufferId { node: node(), incarnation: Incarnation(1) };
    // No chunk waits for first bounds.
    let settings = Settings { chunk_bytes, small_sample: u64::MAX, ..Settings::default() };
    let mut buffer = Buffer::new(id, settings, map.into());
    buffer.sends(1, opened(Some(Combine::SumI64)));
    buffer
}

fn opened(combine: Option<Combine>) -> Input {
    Input::Open(Terms { combine, ..Terms::new(1, 1) })
}

impl Buffer {
    fn sends(&mut self, partition: u32, input: Input) -> Vec<Effect> {
        self.handle(Millis(0), Event::Client(attempt(partition), input))
    }

    fn stores(&mut self, key: &BatchKey) -> Vec<Effect> {
        self.handle(Millis(1), Event::Stored(node(), key.clone()))
    }
}

fn batches(effects: &[Effect]) -> Vec<Arc<Batch>> {
    let batch = |effect: &Effect| match effect {
        Effect::Send(_, Message::Batch(batch)) => Some(batch.clone()),
        _ => None,
    };
    effects.iter().filter_map(batch).collect()
}

fn segments(batch: &Batch) -> Vec<Segment> {
    match &batch.body {
        Body::Records(tagged) => tagged.values().flatten().cloned().collect(),
        Body::Mark(_) => Vec::new(),
    }
}

fn mark(effects: &[Effect]) -> Option<EndMark> {
    batches(effects).iter().find_map(|batch| match &batch.body {
        Body::Mark(mark) => Some(mark.clone()),
        Body::Records(_) => None,
    })
}

fn answer(effects: &[Effect]) -> Option<Result<(), Failed>> {
    effects.iter().find_map(|effect| match effect {
        Effect::Answer(_, answer) => Some(*answer),
        _ => None,
    })
}

#[test]
fn records_of_one_attempt_become_one_of_each_key_and_the_mark_counts_these() {
    let mut buffer = buffer(1 << 20);
    buffer.sends(1, Input::Frame(1, records(&[("k", 1), ("j", 5), ("k", 2)])));
    assert_eq!(buffer.bytes(), 18, "a frame is combined when it comes");
    buffer.sends(1, Input::Frame(2, records(&[("k", 4)])));
    let sent = batches(&buffer.sends(1, Input::End(4, 36)));
    let found = segments(&sent[0]);
    assert_eq!((sent.len(), found.len(), found[0].frame), (1, 1, 1), "of frame 2 nothing is left");
    assert_eq!(found[0].records, records(&[("k", 7), ("j", 5)]));
    assert_eq!((buffer.counts().taken_records, buffer.counts().combined_records), (4, 2));
    let mark = mark(&buffer.stores(&sent[0].key)).unwrap();
    assert_eq!((mark.records, mark.bytes), (2, 18), "D6: as much as holders have");
}

#[test]
fn the_end_counts_what_the_client_has_sent() {
    let mut buffer = buffer(1 << 20);
    buffer.sends(1, Input::Frame(1, records(&[("k", 1), ("k", 2)])));
    let refused = answer(&buffer.sends(1, Input::End(1, 9)));
    assert_eq!(refused, Some(Err(Failed::CountDiffers { said: (1, 9), seen: (2, 18) })));
}

#[test]
fn what_two_attempts_have_of_a_key_stays_apart() {
    let mut buffer = buffer(1 << 20);
    buffer.sends(2, opened(Some(Combine::SumI64)));
    for (frame, value) in [(1, 1), (2, 2)] {
        for partition in [1, 2] {
            buffer.sends(partition, Input::Frame(frame, records(&[("k", value * i64::from(partition))])));
        }
    }
    buffer.sends(1, Input::End(2, 18));
    let sent = batches(&buffer.sends(2, Input::End(2, 18)));
    let found: Vec<Segment> = sent.iter().flat_map(|batch| segments(batch)).collect();
    let sums: Vec<(u32, PackedRecords)> = found.into_iter().map(|one| (one.partition, one.records)).collect();
    assert_eq!(sums, [(1, records(&[("k", 3)])), (2, records(&[("k", 6)]))]);
}

#[test]
fn chunks_that_become_small_do_not_go_out() {
    let mut buffer = buffer(100);
    for frame in 1..=1_000 {
        let effects = buffer.sends(1, Input::Frame(frame, records(&[("k", 1), ("j", 2)])));
        assert_eq!(batches(&effects), [], "{frame}");
    }
    assert!(buffer.bytes() < 100);
    let sent = batches(&buffer.sends(1, Input::End(2_000, 18_000)));
    assert_eq!(segments(&sent[0])[0].records, records(&[("k", 1_000), ("j", 2_000)]));
    // Others do.
    let key = |frame: u64| format!("key {frame:05}");
    let frames = (1..=1_000).map(|frame| buffer_frame(&key(frame)));
    let mut other = self::buffer(100);
    let sent = (1..)
        .zip(frames)
        .map(|(frame, records)| batches(&other.sends(1, Input::Frame(frame, records))).len());
    assert!(sent.sum::<usize>() > 50);
}

fn buffer_frame(key: &str) -> PackedRecords {
    records(&[(key, 1)])
}

#[test]
fn r1_a_part_of_the_memory_is_left_free_to_combine_chunks() {
    let mut buffer = buffer(1 << 20);
    assert_eq!(buffer.most_memory(), buffer.settings.buffer_bytes - (17 << 20), "for keys, and for copies");
    buffer.settings.buffer_bytes = 8_000;
    assert_eq!(buffer.most_memory(), 6_000);
    // A frame comes in when there is room to combine it, too.
    let all: Vec<(String, i64)> = (0..90).map(|at| (format!("key {at:04}"), at)).collect();
    let frame =
        |count: usize| records(&all[..count].iter().map(|(key, at)| (&key[..], *at)).collect::<Vec<_>>());
    buffer.sends(1, Input::Frame(1, frame(1)));
    assert!(frame(90).memory() < 5_000 && frame(90).memory_apart() > 7_000);
    let held_back = buffer.sends(1, Input::Frame(2, frame(90)));
    assert!(held_back.contains(&Effect::Full(attempt(1), 2)), "{held_back:?}");
    let taken = buffer.sends(1, Input::Frame(2, frame(50)));
    assert!(taken.contains(&Effect::Taken(attempt(1), 2)), "{taken:?}");
    // With nothing that combines all of it is for records.
    let mut other = self::buffer(1 << 20);
    other.sends(1, Input::Abort);
    other.sends(2, opened(None));
    assert_eq!(other.most_memory(), other.settings.buffer_bytes);
}

#[test]
fn records_are_counted_whatever_their_values() {
    let mut buffer = buffer(1 << 20);
    buffer.sends(1, Input::Abort);
    buffer.sends(2, opened(Some(Combine::Count)));
    let record = |value: &str| Record { key: b"k".as_slice().into(), value: value.as_bytes().into() };
    buffer.sends(2, Input::Frame(1, vec![record(""), record("text")].into()));
    let sent = batches(&buffer.sends(2, Input::End(2, 6)));
    assert_eq!(segments(&sent[0])[0].records, records(&[("k", 2)]));
}

#[test]
fn what_is_no_number_or_combines_otherwise_is_refused() {
    let mut buffer = buffer(1 << 20);
    for combine in [None, Some(Combine::Count)] {
        assert_eq!(answer(&buffer.sends(2, opened(combine))), Some(Err(Failed::CombinesOtherwise)));
    }
    let text = Record { key: b"k".as_slice().into(), value: b"text".as_slice().into() };
    let refused = answer(&buffer.sends(1, Input::Frame(1, vec![text].into()))).unwrap().unwrap_err();
    assert_eq!(refused, Failed::NoNumber(NoNumber { how: Combine::SumI64, bytes: 4 }));
    assert!(refused.to_string().contains("do not run the attempt again"), "{refused}");
    assert_eq!(buffer.bytes(), 0);
    // Without attempts any may come.
    assert_eq!(answer(&buffer.sends(2, opened(None))), None);
}
