//! What a body is decoded to takes no more than is stated, whatever stands in it: counted, without a clock.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise, in its helping functions too")]

use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_service::shuffle::record::{BatchKey, Stream};
use partage_service::shuffle::{BufferId, PoolSlot, ShuffleId, Writer};
use partage_shuffle_wire::form::{Form, put_number};
use partage_shuffle_wire::frame::{Frame, Kind};
use partage_shuffle_wire::limits::DECODED_BYTES_A_BYTE;
use partage_shuffle_wire::node::Received;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes that even a small body may take besides.
const ALWAYS: usize = 4_096;
const SHUFFLE: ShuffleId = ShuffleId(7);
const MANY: u64 = 10_000;

fn buffer() -> BufferId {
    BufferId { node: NodeId::new("b").unwrap(), incarnation: Incarnation(1) }
}

/// A batch up to its attempts, of which there is one.
fn batch() -> Vec<u8> {
    let stream = Stream { shuffle: SHUFFLE, slot: PoolSlot(1), writer: Writer::Buffer(buffer()) };
    let mut body = Vec::new();
    BatchKey { stream, number: 1 }.put(&mut body);
    body.extend([1, 1]);
    body.extend([0; 13]);
    body
}

fn tag(range: u64, out: &mut Vec<u8>) {
    out.extend([0; 4]);
    out.extend(range.to_be_bytes());
}

/// A batch of many records without keys and values.
fn records() -> Vec<u8> {
    let mut body = batch();
    body.push(1);
    tag(1, &mut body);
    body.extend([1, 0, 1]);
    put_number(MANY, &mut body);
    put_number(2 * MANY, &mut body);
    body.extend(vec![0; 2 * MANY as usize]);
    body
}

/// A batch of many segments without records.
fn segments() -> Vec<u8> {
    let mut body = batch();
    body.push(1);
    tag(1, &mut body);
    put_number(MANY, &mut body);
    body.extend(vec![0; 4 * MANY as usize]);
    body
}

/// Segments of a record of nothing.
fn segments_of_one() -> Vec<u8> {
    let mut body = batch();
    body.push(1);
    tag(1, &mut body);
    put_number(MANY, &mut body);
    (0..MANY).for_each(|_| body.extend([0, 0, 1, 2, 0, 0]));
    body
}

/// A batch of many tags without segments.
fn tags() -> Vec<u8> {
    let mut body = batch();
    put_number(MANY, &mut body);
    (0..MANY).for_each(|range| {
        tag(range, &mut body);
        body.push(0);
    });
    body
}

/// A plan in which each slot needs one writer: a map of one for each.
fn maps() -> Vec<u8> {
    let mut body = vec![2];
    SHUFFLE.put(&mut body);
    body.push(0);
    put_number(MANY, &mut body);
    for slot in 0..MANY {
        body.extend((slot as u32).to_be_bytes());
        body.push(1);
        Writer::Buffer(buffer()).put(&mut body);
        body.extend([0; 8]);
    }
    body.push(0);
    body
}

#[test]
fn what_is_decoded_takes_no_more_than_is_stated() {
    let cases = [
        (Kind::Batch, records(), true),
        (Kind::Batch, segments(), false),
        (Kind::Batch, segments_of_one(), false),
        (Kind::Batch, tags(), false),
        (Kind::Word, maps(), false),
    ];
    for (at, (kind, body, stays)) in cases.into_iter().enumerate() {
        let bytes = body.len();
        let frame = Frame::new(kind, Some(SHUFFLE), body).unwrap();
        let region = Region::new(ALLOCATOR);
        let message = Received::of(&frame).map(Received::message);
        let taken = region.change().bytes_allocated;
        drop(message.unwrap_or_else(|why| panic!("case {at}: {why}")));
        let most = DECODED_BYTES_A_BYTE * bytes + ALWAYS;
        assert!(taken <= most, "case {at}: {taken} of {most} bytes for {bytes}");
        if stays {
            assert!(taken <= ALWAYS, "case {at}: {taken}: records stay where they lie");
        } else {
            assert!(taken >= bytes, "case {at}: {taken}: something was decoded");
        }
    }
    // One that claims more than it has gets nothing.
    let mut body = vec![0, 0];
    put_number(1 << 40, &mut body);
    let frame = Frame::new(Kind::Marks, Some(SHUFFLE), body).unwrap();
    let region = Region::new(ALLOCATOR);
    assert!(Received::of(&frame).is_err());
    assert!(region.change().bytes_allocated <= ALWAYS);
}
