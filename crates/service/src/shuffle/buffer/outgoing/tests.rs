//! What goes out in many calls is what would go out in one.

use crate::shuffle::bounds::Range;
use crate::shuffle::buffer::*;
use crate::shuffle::pool::SlotPlace;
use crate::shuffle::record::Record;
use crate::shuffle::{Durability, RangeId, TaskId};
use partage_core::base::id::{Epoch, Incarnation};
use proptest::prelude::*;

const SHUFFLE: ShuffleId = ShuffleId(7);
const ATTEMPTS: u32 = 4;

fn node() -> NodeId {
    NodeId::new("a").unwrap()
}

/// A buffer for three slots on one node.
fn buffer(settings: Settings) -> Buffer {
    let place = || SlotPlace { epoch: Epoch(1), live: vec![node()], loading: Vec::new() };
    let map = PoolMap {
        generation: 1,
        replicas: 1,
        places: vec![place(), place(), place()],
        nodes: vec![node()],
        no_stand_ins: Default::default(),
    };
    Buffer::new(BufferId { node: node(), incarnation: Incarnation(1) }, settings, map.into())
}

/// What it takes to make a batch.
fn cost_of(batch: &Batch) -> u64 {
    super::memory_in_all(batch.bytes(), batch.records(), batch.segments())
}

fn keys_of(segment: &Segment) -> Vec<u8> {
    segment.records.unpack().iter().map(|record| record.key[0]).collect()
}

fn segments_in(batch: &Batch) -> Vec<&Segment> {
    match &batch.body {
        Body::Records(tagged) => tagged.values().flatten().collect(),
        Body::Mark(_) => Vec::new(),
    }
}

/// A buffer and attempts of one shuffle, one of each partition.
struct Driven {
    buffer: Buffer,
    now: u64,
    /// The keys that each attempt has sent, by frames.
    given: BTreeMap<u32, Vec<Vec<u8>>>,
    ended: BTreeSet<u32>,
    acknowledged: BTreeSet<u32>,
    sent: Vec<Arc<Batch>>,
    stored: usize,
}

impl Driven {
    fn new(sent_at_once: u64) -> Driven {
        let settings = Settings {
            sent_at_once,
            chunk_bytes: 120,
            batch_bytes: 30,
            small_sample: u64::MAX,
            window_bytes: u64::MAX,
            window_batches: 1_000_000,
            ..Settings::default()
        };
        let (given, ended, acknowledged, sent) = Default::default();
        let buffer = buffer(settings);
        let mut driven = Driven { buffer, now: 1, given, ended, acknowledged, sent, stored: 0 };
        for partition in 0..ATTEMPTS {
            driven.client(partition, Input::Open(Terms::new(4, 8)));
            driven.given.insert(partition, Vec::new());
        }
        driven
    }

    fn handle(&mut self, event: Event) {
        let before = self.sent.len();
        for effect in self.buffer.handle(Millis(self.now), event) {
            match effect {
                Effect::Send(_, Message::Batch(batch)) => self.sent.push(batch),
                Effect::Answer(attempt, Ok(())) => {
                    self.acknowledged.insert(attempt.partition);
                }
                _ => {}
            }
        }
        let costs: Vec<u64> =
            self.sent[before..].iter().filter(|batch| batch.segments() > 0).map(|one| cost_of(one)).collect();
        if let Some((_, before)) = costs.split_last() {
            assert!(before.iter().sum::<u64>() < self.buffer.settings.sent_at_once, "{costs:?}");
        }
    }

    fn client(&mut self, partition: u32, input: Input) {
        let id = AttemptId(u128::from(partition) + 1);
        self.handle(Event::Client(Attempt { shuffle: SHUFFLE, partition, id }, input));
    }

    fn does(&mut self, what: &Does) {
        match what {
            Does::Frame(partition, keys) if self.is_writing(*partition) => {
                let frames = self.given.entry(*partition).or_default();
                frames.push(keys.clone());
                let number = frames.len() as u64;
                let records = keys.iter().map(|key| (std::slice::from_ref(key), &b"v"[..]));
                self.client(*partition, Input::Frame(number, PackedRecords::pack(records)));
            }
            Does::End(partition) if self.is_writing(*partition) => {
                let records: usize = self.given[partition].iter().map(Vec::len).sum();
                self.ended.insert(*partition);
                self.client(*partition, Input::End(records as u64, 2 * records as u64));
            }
            Does::Abort(partition) if self.is_writing(*partition) => {
                self.given.remove(partition);
                self.client(*partition, Input::Abort);
            }
            Does::Bounds(version) => {
                let range =
                    |id: u8| Range { id: RangeId(id.into()), begins: vec![id * 40; id.into()].into() };
                let bounds =
                    Bounds { version: *version, ranges: (0..2 + *version as u8).map(range).collect() };
                self.handle(Event::Word(SHUFFLE, Word::Open(bounds.into(), Durability::Disk)));
            }
            Does::Store => self.store(),
            Does::Tick => {
                self.now += 3;
                self.handle(Event::Tick);
            }
            Does::Frame(..) | Does::End(_) | Does::Abort(_) => {}
        }
    }

    fn is_writing(&self, partition: u32) -> bool {
        self.given.contains_key(&partition) && !self.ended.contains(&partition)
    }

    fn store(&mut self) {
        if let Some(batch) = self.sent.get(self.stored) {
            let key = batch.key.clone();
            self.stored += 1;
            self.handle(Event::Stored(node(), key));
        }
    }

    /// All that goes out is sent, and stored.
    fn finish(&mut self) {
        self.now += 100;
        self.handle(Event::Tick);
        while self.buffer.wake_at() == Millis(0) {
            self.handle(Event::Tick);
        }
        while self.stored < self.sent.len() {
            self.store();
        }
    }
}

#[derive(Debug, Clone)]
enum Does {
    Frame(u32, Vec<u8>),
    End(u32),
    Abort(u32),
    Bounds(u32),
    Store,
    Tick,
}

fn does() -> impl Strategy<Value = Does> {
    let keys = prop::collection::vec(0u8..120, 1..20);
    prop_oneof![
        8 => (0..ATTEMPTS, keys).prop_map(|(partition, keys)| Does::Frame(partition, keys)),
        1 => (0..ATTEMPTS).prop_map(Does::End),
        1 => (1u32..3).prop_map(Does::Bounds),
        2 => Just(Does::Tick),
    ]
}

fn does_all() -> impl Strategy<Value = Does> {
    prop_oneof![12 => does(), 1 => (0..ATTEMPTS).prop_map(Does::Abort), 4 => Just(Does::Store)]
}

proptest! {
    #[test]
    fn what_goes_out_in_many_calls_is_in_the_same_batches_as_in_one(
        all in prop::collection::vec(does(), 1..80),
        sent_at_once in 1u64..1_500,
    ) {
        let (mut at_once, mut slowly) = (Driven::new(u64::MAX), Driven::new(sent_at_once));
        for what in &all {
            at_once.does(what);
            slowly.does(what);
            prop_assert_eq!(at_once.buffer.memory(), slowly.buffer.memory());
        }
        at_once.finish();
        slowly.finish();
        prop_assert_eq!(&at_once.sent, &slowly.sent);
        prop_assert_eq!(&at_once.acknowledged, &slowly.acknowledged);
    }

    /// X4: each attempt that has ended is acknowledged, and a reader finds each of its records once up to the last batch that its
    /// mark names.
    #[test]
    fn x4_nothing_is_lost_or_doubled_when_attempts_end_and_are_given_up_while_others_go_out(
        all in prop::collection::vec(does_all(), 1..120),
        sent_at_once in 1u64..1_500,
    ) {
        let mut driven = Driven::new(sent_at_once);
        all.iter().for_each(|what| driven.does(what));
        driven.finish();
        prop_assert_eq!(&driven.acknowledged, &driven.ended);
        let open: Vec<u32> = (0..ATTEMPTS).filter(|partition| driven.is_writing(*partition)).collect();
        open.into_iter().for_each(|partition| driven.client(partition, Input::Abort));
        prop_assert_eq!((driven.buffer.memory(), driven.buffer.bytes()), (0, 0));
        prop_assert!(driven.buffer.turns.is_empty() && driven.buffer.half_out.is_none());
        let mut numbers: BTreeMap<Stream, Vec<u64>> = BTreeMap::new();
        for batch in &driven.sent {
            numbers.entry(batch.key.stream.clone()).or_default().push(batch.key.number);
        }
        for numbers in numbers.into_values() {
            let expected: Vec<u64> = (1..=numbers.len() as u64).collect();
            prop_assert_eq!(numbers, expected);
        }
        let marks = driven.sent.iter().filter_map(|batch| match &batch.body {
            Body::Mark(mark) => Some(mark),
            Body::Records(_) => None,
        });
        for mark in marks {
            let is_read =
                |key: &BatchKey| mark.last.get(&key.stream.slot).is_some_and(|last| key.number <= *last);
            let read = driven.sent.iter().filter(|batch| is_read(&batch.key));
            let segments = read.flat_map(|batch| segments_in(batch));
            let own = segments.filter(|segment| segment.attempt == mark.attempt);
            let mut found: Vec<u8> = own.flat_map(keys_of).collect();
            let mut given: Vec<u8> = driven.given[&mark.partition].concat();
            found.sort_unstable();
            given.sort_unstable();
            prop_assert_eq!(found.len() as u64, mark.records);
            prop_assert_eq!(found, given);
        }
    }
}

/// Frames of 300 bytes, in chunks of 10 kB, of which one call sends a batch of 500 bytes.
struct Floods {
    buffer: Buffer,
    frames: BTreeMap<u128, u64>,
}

impl Floods {
    fn new() -> Floods {
        let settings = Settings {
            sent_at_once: 500,
            chunk_bytes: 10_000,
            batch_bytes: 500,
            window_bytes: u64::MAX,
            ..Settings::default()
        };
        Floods { buffer: buffer(settings), frames: BTreeMap::new() }
    }

    fn handle(&mut self, event: Event) -> Vec<u128> {
        let effects = self.buffer.handle(Millis(1), event);
        let of = |effect: &Effect| match effect {
            Effect::Send(_, Message::Batch(batch)) => Some(batch.key.stream.shuffle.0),
            _ => None,
        };
        effects.iter().filter_map(of).collect()
    }

    fn client(&mut self, shuffle: u128, input: Input) -> Vec<u128> {
        let attempt = Attempt { shuffle: ShuffleId(shuffle), partition: 0, id: AttemptId(1) };
        self.handle(Event::Client(attempt, input))
    }

    /// Hands in so many frames. Of which shuffles batches are sent.
    fn writes(&mut self, shuffle: u128, frames: u64) -> Vec<u128> {
        let mut sent = Vec::new();
        for _ in 0..frames {
            let number = self.frames.entry(shuffle).or_default();
            *number += 1;
            let number = *number;
            if number == 1 {
                self.client(shuffle, Input::Open(Terms::new(1, 1)));
            }
            let record = Record { key: b"k".as_slice().into(), value: vec![0; 299].into() };
            sent.extend(self.client(shuffle, Input::Frame(number, vec![record].into())));
        }
        sent
    }
}

#[test]
fn r1_a_shuffle_of_which_little_goes_out_is_not_behind_a_chunk_and_large_ones_go_one_by_one() {
    let mut floods = Floods::new();
    assert_eq!(floods.writes(1, 34), [1], "the rest of the chunk waits");
    assert_eq!(floods.handle(Event::Tick), [1]);
    floods.writes(3, 1);
    assert_eq!(floods.client(3, Input::End(1, 300)), [3, 1], "it goes out at once, and first");
    // The first one, of which it is the turn, is out before another large one begins.
    let mut sent = floods.writes(2, 34);
    while floods.buffer.wake_at() == Millis(0) {
        sent.extend(floods.handle(Event::Tick));
    }
    assert!(sent.is_sorted() && sent.len() == 17 - 3 + 17, "{sent:?}");
}

#[test]
fn a_shuffle_that_is_over_sends_nothing_more_and_is_in_nobodys_way() {
    let (winners, needed, ranges) = Default::default();
    let plan = Arc::new(Plan { shuffle: ShuffleId(1), winners, needed, ranges });
    for word in [Word::Ended(Ended::Deleted), Word::Sealed(plan)] {
        let mut floods = Floods::new();
        floods.writes(1, 34);
        assert_eq!(floods.buffer.bytes(), 34 * 300);
        floods.handle(Event::Word(ShuffleId(1), word));
        assert_eq!((floods.buffer.bytes(), floods.buffer.memory()), (0, 0));
        assert!(floods.buffer.wake_at() > Millis(0) && floods.handle(Event::Tick).is_empty());
        let mut sent = floods.writes(2, 34);
        while floods.buffer.wake_at() == Millis(0) {
            sent.extend(floods.handle(Event::Tick));
        }
        assert_eq!(sent, [2; 17]);
    }
}

#[test]
fn what_an_attempt_has_aside_goes_with_it() {
    let mut floods = Floods::new();
    floods.writes(1, 34);
    floods.client(1, Input::Abort);
    assert_eq!(floods.buffer.bytes(), 600, "one batch is under way");
    floods.handle(Event::Tick);
    assert!(floods.buffer.wake_at() > Millis(0) && floods.buffer.turns.is_empty());
}

#[test]
fn a_division_is_written_in_many_calls_and_its_leader_hears_when_all_is_stored() {
    let task = TaskId { epoch: Epoch(1), number: 4 };
    let range = |id: u8| Range { id: RangeId(id.into()), begins: vec![id * 40; id.into()].into() };
    let to = Arc::new(Bounds { version: 2, ranges: (0..5).map(range).collect() });
    let (tags, upto, durability) = (BTreeMap::new(), BTreeMap::new(), Durability::Disk);
    let division =
        Arc::new(Division { task, shuffle: SHUFFLE, slot: PoolSlot(0), tags, upto, to, durability });
    // As the attempts of another buffer are counted, which has failed here none of them.
    let by = BufferId { node: NodeId::new("b").unwrap(), incarnation: Incarnation(1) };
    let segment = |frame: u64| {
        let keys: Vec<[u8; 1]> = (0..50).map(|key| [(key * 4) as u8]).collect();
        let records = PackedRecords::pack(keys.iter().map(|key| (&key[..], &b"v"[..])));
        Segment { attempt: AttemptKey { buffer: by.clone(), number: 1 }, partition: 3, frame, records }
    };
    let read: Vec<Segment> = (1..=20).map(segment).collect();
    let batches = |sent_at_once: u64| {
        let mut driven = Driven::new(sent_at_once);
        driven.handle(Event::Divide(node(), division.clone(), read.clone()));
        let mut calls = 1;
        while driven.buffer.wake_at() == Millis(0) {
            driven.now += 1;
            driven.handle(Event::Tick);
            driven.client(0, Input::Abort);
            calls += 1;
        }
        for at in 0..driven.sent.len() {
            let event = Event::Stored(node(), driven.sent[at].key.clone());
            let effects = driven.buffer.handle(Millis(driven.now), event);
            let is_told = |effect: &Effect| matches!(effect, Effect::Send(_, Message::Divided(..)));
            assert_eq!(effects.iter().any(is_told), at + 1 == driven.sent.len(), "{at}");
        }
        assert_eq!(driven.buffer.memory(), 0);
        (driven.sent, calls)
    };
    let (at_once, calls) = batches(u64::MAX);
    let (slowly, more_calls) = batches(2_000);
    assert!(calls == 1 && more_calls > 10, "{more_calls}");
    assert_eq!(at_once, slowly);
}
