//! What core makes fits a frame, by core's own limits.

use super::*;
use partage_core::base::id::{Epoch, Incarnation};
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_core::limits::SHUFFLE_BATCH_BYTES;
use partage_service::shuffle::buffer::{Attempt, Buffer, Effect, Event, Failed, Input};
use partage_service::shuffle::pool::{PoolMap, SlotPlace};
use partage_service::shuffle::settings::Settings;
use partage_service::shuffle::{AttemptId, BufferId, ShuffleId, Terms};
use proptest::prelude::*;
use std::sync::Arc;

proptest! {
    #[test]
    fn a_batch_takes_no_more_than_core_counts_for_it(batch in testing::batches()) {
        let room = batch.room();
        let frame = node::frame(&Message::Batch(Arc::new(batch))).unwrap();
        prop_assert!(frame.body().len() as u64 <= room, "{} of {}", frame.body().len(), room);
    }
}

/// A buffer of one slot on one node, with the longest name.
fn buffer() -> Buffer {
    let node = NodeId::new(&"n".repeat(255)).unwrap();
    let place = SlotPlace { epoch: Epoch(1), live: vec![node.clone()], loading: Vec::new() };
    let map = PoolMap {
        generation: 1,
        replicas: 1,
        places: vec![place],
        nodes: vec![node.clone()],
        no_stand_ins: Default::default(),
    };
    // What is sent at once has no bound here.
    let settings = Settings { window_bytes: u64::MAX, ..Settings::default() };
    Buffer::new(BufferId { node, incarnation: Incarnation(1) }, settings, Arc::new(map))
}

fn large(bytes: usize) -> Record {
    Record { key: b"k".as_slice().into(), value: vec![0; bytes].into() }
}

#[test]
fn the_largest_batch_that_core_makes_fits_a_frame() {
    let mut buffer = buffer();
    let half = large(50 << 20);
    let frames = [
        // What is held below the limit of a chunk, a frame that is refused, and the largest one.
        vec![large(63 << 20)],
        vec![half.clone(), half],
        vec![large((64 << 20) - 1), large(7 << 20)],
    ];
    let batch = |effect: Effect| match effect {
        Effect::Send(_, message @ Message::Batch(_)) => Some(message),
        _ => None,
    };
    let mut batches = Vec::new();
    for (id, frame) in (0..).zip(frames) {
        let attempt = Attempt { shuffle: ShuffleId(1), partition: 1, id: AttemptId(id) };
        let mut client = |input| buffer.handle(Millis(1), Event::Client(attempt, input));
        client(Input::Open(Terms::new(1, 1)));
        let is_too_large = id == 1;
        let effects = client(Input::Frame(1, frame.into()));
        let refused = effects
            .iter()
            .any(|effect| matches!(effect, Effect::Answer(_, Err(Failed::FrameTooLarge { .. }))));
        assert_eq!(refused, is_too_large, "{id}");
        batches.extend(effects.into_iter().filter_map(batch));
    }
    // One call sends one of them.
    batches.extend(buffer.handle(Millis(2), Event::Tick).into_iter().filter_map(batch));
    assert_eq!(batches.len(), 2);
    for batch in batches {
        let bytes = node::frame(&batch).unwrap().body().len();
        assert!((60 << 20..=SHUFFLE_BATCH_BYTES).contains(&bytes), "{bytes}");
    }
}

#[test]
fn the_largest_frame_of_records_that_core_takes_fits_one() {
    let attempt = |bytes: usize| {
        let value = vec![0; bytes];
        let what = Request::Records(u64::MAX, PackedRecords::pack([(&b""[..], &value[..])]));
        Call { number: u64::MAX, shuffle: ShuffleId(1), what }.frame().map(|frame| frame.body().len())
    };
    let most = partage_core::limits::SHUFFLE_FRAME_BYTES;
    assert!(attempt(most - 8).is_ok_and(|bytes| bytes > most));
    assert!(matches!(attempt(most + 64), Err(crate::FrameError::TooLong { .. })));
}
