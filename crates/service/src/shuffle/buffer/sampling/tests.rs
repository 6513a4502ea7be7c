//! When the leader hears of keys, and what waits for its answer.

use crate::shuffle::bounds::Range;
use crate::shuffle::buffer::*;
use crate::shuffle::pool::SlotPlace;
use crate::shuffle::{Durability, RangeId};
use partage_core::base::id::{Epoch, Incarnation};

const SHUFFLE: ShuffleId = ShuffleId(7);
/// No batch goes out.
const NONE: [u32; 0] = [];

/// Each of three buffers has its part of the sample with four keys.
fn settings() -> Settings {
    Settings { sample_every: 1, first_sample: 12, range_sample: 0, ..Settings::default() }
}

/// A buffer of three nodes, with an open attempt of which the leader has heard.
fn buffer(settings: Settings) -> Buffer {
    let nodes: Vec<NodeId> = ["a", "b", "c"].map(|name| NodeId::new(name).unwrap()).to_vec();
    let place = SlotPlace { epoch: Epoch(1), live: nodes[..2].to_vec(), loading: Vec::new() };
    let id = BufferId { node: nodes[0].clone(), incarnation: Incarnation(1) };
    let map =
        PoolMap { generation: 1, replicas: 2, places: vec![place], nodes, no_stand_ins: Default::default() };
    let mut buffer = Buffer::new(id, settings, map.into());
    buffer.does(0, 1, Input::Open(Terms::new(1, 2)));
    buffer.handle(Millis(0), Event::Tick);
    buffer
}

/// So many records, of two bytes each.
fn frame(number: u64, records: u8) -> Input {
    let keys: Vec<[u8; 1]> = (0..records).map(|key| [key]).collect();
    Input::Frame(number, PackedRecords::pack(keys.iter().map(|key| (&key[..], &b"v"[..]))))
}

impl Buffer {
    fn does(&mut self, at: u64, attempt: u128, input: Input) -> Vec<Effect> {
        let attempt = Attempt { shuffle: SHUFFLE, partition: 3, id: AttemptId(attempt) };
        self.handle(Millis(at), Event::Client(attempt, input))
    }

    /// Hears bounds of that version.
    fn hears(&mut self, at: u64, version: u32) -> Vec<Effect> {
        let range = |id: u8| Range { id: RangeId(id.into()), begins: vec![0_u8; id.into()].into() };
        let bounds = Bounds { version, ranges: (0..2).map(range).collect() };
        self.handle(Millis(at), Event::Word(SHUFFLE, Word::Open(bounds.into(), Durability::Disk)))
    }

    fn ticks(&mut self, at: u64) -> Vec<u32> {
        versions(&self.handle(Millis(at), Event::Tick))
    }
}

/// By which bounds what goes out was written.
fn versions(effects: &[Effect]) -> Vec<u32> {
    let tags = |effect: &Effect| match effect {
        Effect::Send(_, Message::Batch(batch)) => match &batch.body {
            Body::Records(tagged) => tagged.keys().map(|tag| tag.version).collect::<Vec<u32>>(),
            Body::Mark(_) => Vec::new(),
        },
        _ => Vec::new(),
    };
    let all: BTreeSet<u32> = effects.iter().flat_map(tags).collect();
    all.into_iter().collect()
}

/// Of how many keys the leader hears.
fn sampled(effects: &[Effect]) -> Option<u64> {
    effects.iter().find_map(|effect| match effect {
        Effect::Send(_, Message::Sample(_, _, _, sketch)) => Some(sketch.count()),
        _ => None,
    })
}

#[test]
fn x5_the_leader_hears_of_a_sample_at_once_and_of_twice_as_many_keys_until_there_are_bounds() {
    let mut buffer = buffer(settings());
    let heard = |buffer: &mut Buffer, numbers: std::ops::RangeInclusive<u64>| {
        let reports = numbers.filter_map(|number| sampled(&buffer.does(1, 1, frame(number, 1))));
        reports.collect::<Vec<u64>>()
    };
    assert_eq!(heard(&mut buffer, 1..=40), [4, 8, 16, 32]);
    buffer.hears(2, 1);
    assert_eq!(heard(&mut buffer, 41..=200), Vec::<u64>::new());
    assert_eq!(sampled(&buffer.handle(Millis(251), Event::Tick)), Some(200), "from now on in its time");
}

#[test]
fn x5_an_attempt_that_has_ended_waits_for_the_first_bounds_or_for_the_answer_that_there_are_none() {
    let ended = |records: u8| {
        let mut buffer = buffer(settings());
        buffer.does(1, 1, frame(1, records));
        let effects = buffer.does(1, 1, Input::End(records.into(), 2 * u64::from(records)));
        (buffer, versions(&effects))
    };
    let (_, sent) = ended(3);
    assert_eq!(sent, [0], "three keys suffice for nothing");
    let (mut buffer, sent) = ended(4);
    assert_eq!(sent, NONE);
    assert_eq!(versions(&buffer.hears(20, 1)), [1], "it is divided, and goes out");
    let (mut buffer, _) = ended(4);
    assert_eq!(versions(&buffer.hears(2, 0)), [0], "other buffers have no keys");
    let (mut buffer, _) = ended(4);
    assert_eq!((buffer.ticks(50), buffer.wake_at()), (NONE.to_vec(), Millis(51)));
    assert_eq!(buffer.ticks(51), [0], "the leader is away");
    // What ends from now on goes out at once, until there is more to report.
    buffer.does(52, 2, Input::Open(Terms::new(1, 2)));
    buffer.does(52, 2, frame(1, 1));
    assert_eq!(versions(&buffer.does(52, 2, Input::End(1, 2))), [0]);
}

#[test]
fn x5_nothing_waits_for_longer_than_once_however_much_is_reported_meanwhile() {
    let mut buffer = buffer(settings());
    buffer.does(1, 2, Input::Open(Terms::new(1, 2)));
    buffer.does(1, 1, frame(1, 4));
    buffer.does(1, 1, Input::End(4, 8));
    assert_eq!(buffer.ticks(6), NONE, "it has waited for the other one");
    assert_eq!(sampled(&buffer.does(40, 2, frame(1, 4))), Some(8));
    assert_eq!(buffer.ticks(51), NONE);
    assert_eq!(buffer.ticks(55), NONE);
    assert_eq!(buffer.ticks(56), [0]);
}

#[test]
fn x5_a_chunk_that_is_full_waits_and_what_makes_room_does_not() {
    let mut full = buffer(Settings { chunk_bytes: 8, ..settings() });
    assert_eq!(versions(&full.does(1, 1, frame(1, 4))), NONE);
    assert_eq!(versions(&full.does(1, 1, frame(2, 1))), NONE);
    assert_eq!(full.ticks(51), [0]);
    let mut small = buffer(Settings { buffer_bytes: 3, ..settings() });
    assert_eq!(versions(&small.does(1, 1, frame(1, 4))), NONE);
    let effects = small.does(1, 1, frame(2, 4));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Full(_, 2))), "{effects:?}");
    assert_eq!(versions(&effects), [0]);
}
