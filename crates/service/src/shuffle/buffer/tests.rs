//! What a client hears, and when.

use super::*;
use crate::shuffle::bounds::Range;
use crate::shuffle::message::AskOrder;
use crate::shuffle::pool::SlotPlace;
use crate::shuffle::record::{MEMORY_OF_RECORD, Record};
use crate::shuffle::{Durability, RangeId, TaskId};
use partage_core::base::id::{Epoch, Incarnation};

const SHUFFLE: ShuffleId = ShuffleId(7);

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// One slot on two nodes of three.
fn map() -> Arc<PoolMap> {
    let nodes: Vec<NodeId> = ["a", "b", "c"].map(node).to_vec();
    let place = SlotPlace { epoch: Epoch(1), live: nodes[..2].to_vec(), loading: Vec::new() };
    Arc::new(PoolMap {
        generation: 1,
        replicas: 2,
        places: vec![place],
        nodes,
        no_stand_ins: Default::default(),
    })
}

fn buffer(settings: Settings) -> Buffer {
    Buffer::new(BufferId { node: node("a"), incarnation: Incarnation(1) }, settings, map())
}

fn attempt(id: u128) -> Attempt {
    Attempt { shuffle: SHUFFLE, partition: 3, id: AttemptId(id) }
}

fn record(key: &str) -> Record {
    Record { key: key.as_bytes().into(), value: b"v".as_slice().into() }
}

impl Buffer {
    fn client(&mut self, at: u64, id: u128, input: Input) -> Vec<Effect> {
        self.handle(Millis(at), Event::Client(attempt(id), input))
    }

    /// Opens an attempt, and sends a frame.
    fn writes(&mut self, id: u128) {
        self.client(0, id, Input::Open(Terms::new(1, 1)));
        let effects = self.client(0, id, Input::Frame(1, vec![record("k")].into()));
        assert!(effects.contains(&Effect::Taken(attempt(id), 1)), "{effects:?}");
    }
}

fn answers(effects: &[Effect]) -> Vec<Result<(), Failed>> {
    let answer = |effect: &Effect| match effect {
        Effect::Answer(_, answer) => Some(*answer),
        _ => None,
    };
    effects.iter().filter_map(answer).collect()
}

/// The batches that are sent, each to one or more nodes.
fn sent(effects: &[Effect]) -> BTreeMap<BatchKey, Vec<NodeId>> {
    let mut sent: BTreeMap<BatchKey, Vec<NodeId>> = BTreeMap::new();
    for effect in effects {
        if let Effect::Send(to, Message::Batch(batch)) = effect {
            sent.entry(batch.key.clone()).or_default().push(to.clone());
        }
    }
    sent
}

#[test]
fn an_attempt_is_acknowledged_when_two_nodes_have_its_batches_and_then_its_mark() {
    let mut buffer = buffer(Settings::default());
    buffer.writes(1);
    buffer.client(0, 2, Input::Open(Terms::new(1, 1)));
    assert!(sent(&buffer.client(0, 1, Input::End(1, 2))).is_empty(), "it waits for company");
    let batches = sent(&buffer.handle(Millis(5), Event::Tick));
    let (key, nodes) = batches.first_key_value().unwrap();
    assert_eq!((batches.len(), &nodes[..]), (1, &[node("a"), node("b")][..]));
    let stored = |key: &BatchKey, by: &str| Event::Stored(node(by), key.clone());
    assert!(sent(&buffer.handle(Millis(6), stored(key, "a"))).is_empty());
    assert!(sent(&buffer.handle(Millis(6), stored(key, "a"))).is_empty(), "one node counts once");
    let marks = sent(&buffer.handle(Millis(7), stored(key, "b")));
    let mark = marks.first_key_value().unwrap().0;
    assert_eq!(mark.number, 2, "it follows in the stream");
    assert_eq!(answers(&buffer.handle(Millis(8), stored(mark, "a"))), []);
    assert_eq!(answers(&buffer.handle(Millis(8), stored(mark, "b"))), [Ok(())]);
    assert_eq!(answers(&buffer.client(9, 1, Input::End(1, 2))), [Ok(())], "as often as the client asks");
    for open in buffer.shuffles.values() {
        assert!(open.attempts.values().all(|held| held.last.is_empty()), "its mark has it");
        assert!(open.out.is_empty() && open.marking.is_empty());
    }
    assert_eq!(buffer.bytes(), 0);
}

/// How many keys the leader hears of.
fn sampled(effects: &[Effect]) -> Option<u64> {
    effects.iter().find_map(|effect| match effect {
        Effect::Send(_, Message::Sample(_, _, _, sketch)) => Some(sketch.count()),
        _ => None,
    })
}

#[test]
fn an_attempt_without_company_goes_out_at_once_and_its_sample_with_it() {
    let settings = Settings { sample_every: 1, small_sample: u64::MAX, ..Settings::default() };
    let mut buffer = buffer(settings);
    buffer.writes(1);
    assert_eq!(
        sampled(&buffer.handle(Millis(0), Event::Tick)),
        Some(1),
        "a shuffle that is new here is told of"
    );
    for (id, company) in [(2, None), (3, Some(4)), (5, None)] {
        buffer.writes(id);
        if let Some(other) = company {
            buffer.writes(other);
            buffer.client(0, other, Input::Abort);
        }
        // The first attempt is given up: nothing is written any more but this one.
        buffer.client(0, 1, Input::Abort);
        assert_eq!(sent(&buffer.client(1, id, Input::End(1, 2))).len(), 1, "{id}");
    }
    buffer.writes(6);
    let wrong = buffer.client(1, 6, Input::End(9, 9));
    assert_eq!(answers(&wrong).len(), 1);
    buffer.writes(7);
    assert_eq!(sent(&buffer.client(1, 7, Input::End(1, 2))).len(), 1, "one that failed is no company");
    // Of 1, then of 2, then of 4 and more keys: each time twice as many at least.
    let mut known = 4;
    for id in 8..40 {
        buffer.writes(id);
        let now = sampled(&buffer.client(1, id, Input::End(1, 2)));
        assert!(
            now.is_none_or(|now| now >= 2 * known) && id as u64 <= 2 * known + 2,
            "{id}: {now:?} after {known}"
        );
        known = now.unwrap_or(known);
    }
}

#[test]
fn a_stand_in_gets_what_a_node_does_not_store_in_time() {
    let mut buffer = buffer(Settings::default());
    buffer.writes(1);
    let batches = sent(&buffer.client(0, 1, Input::End(1, 2)));
    let key = batches.first_key_value().unwrap().0.clone();
    buffer.handle(Millis(6), Event::Stored(node("a"), key.clone()));
    let asks = buffer.handle(Millis(250), Event::Tick);
    let question = Effect::Send(node("b"), Message::AskStored(key.clone(), AskOrder::Ahead));
    assert!(
        asks.contains(&question) && sent(&asks).is_empty(),
        "it is asked, and gets nothing twice: {asks:?}"
    );
    let to_stand_in = sent(&buffer.handle(Millis(500), Event::Tick));
    assert!(to_stand_in[&key].contains(&node("c")), "{to_stand_in:?}");
    let marks = sent(&buffer.handle(Millis(506), Event::Stored(node("c"), key)));
    assert_eq!(marks.len(), 1, "a stand-in counts");
}

#[test]
fn what_a_client_does_wrong_is_named_and_each_error_says_what_to_do() {
    let mut buffer = buffer(Settings::default());
    let unknown = answers(&buffer.client(0, 9, Input::End(0, 0)));
    assert_eq!(unknown, [Err(Failed::Unknown)]);
    buffer.writes(1);
    let twice = answers(&buffer.client(1, 1, Input::Open(Terms::new(1, 1))));
    assert_eq!(twice, [Err(Failed::IdTwice)]);
    let doubled = buffer.client(1, 1, Input::Frame(1, vec![record("k")].into()));
    assert_eq!((answers(&doubled), buffer.bytes()), (vec![], 2), "a frame that comes twice is taken once");
    let missing = answers(&buffer.client(1, 1, Input::Frame(3, vec![record("k")].into())));
    assert_eq!(missing, [Err(Failed::FrameMissing { expected: 2, found: 3 })]);
    assert_eq!(buffer.bytes(), 0, "what it held goes with the attempt");
    buffer.writes(2);
    let differs = answers(&buffer.client(1, 2, Input::End(2, 4)));
    assert_eq!(differs, [Err(Failed::CountDiffers { said: (2, 4), seen: (1, 2) })]);
    buffer.writes(3);
    let silent_ms = Settings::default().silent_ms;
    let silent = answers(&buffer.handle(Millis(silent_ms), Event::Tick));
    assert_eq!(silent, [Err(Failed::Silent { silent_ms })]);
    for failed in [unknown, twice, missing, differs, silent].concat() {
        assert!(failed.unwrap_err().to_string().contains("run the attempt again"));
    }
}

/// How durable the batches are that are sent.
fn durabilities(effects: &[Effect]) -> Vec<Durability> {
    let durability = |effect: &Effect| match effect {
        Effect::Send(_, Message::Batch(batch)) => Some(batch.durability),
        _ => None,
    };
    effects.iter().filter_map(durability).collect()
}

#[test]
fn x6_batches_are_as_durable_as_the_leader_says_and_on_disk_until_it_has_said_so() {
    let [disk, memory] = Durability::ALL;
    let open = |durability| Input::Open(Terms { durability, ..Terms::new(1, 1) });
    for (durability, other) in [(disk, memory), (memory, disk)] {
        let mut buffer = buffer(Settings::default());
        // The client with the wrong handle comes first.
        let mut opened = buffer.client(0, 1, open(other));
        opened.extend(buffer.client(0, 2, open(durability)));
        let asks = opened.iter().filter(|effect| **effect == Effect::Send(node("a"), Message::Ask(SHUFFLE)));
        assert_eq!(asks.count(), 1, "{opened:?}");
        for id in [1, 2] {
            buffer.client(0, id, Input::Frame(1, vec![record("k")].into()));
        }
        buffer.client(0, 1, Input::End(1, 2));
        assert_eq!(
            durabilities(&buffer.handle(Millis(5), Event::Tick)),
            [disk; 2],
            "one batch, to two nodes"
        );
        let says = |durability| Event::Word(SHUFFLE, Word::Open(Arc::new(Bounds::stashes(1)), durability));
        let failed = buffer.handle(Millis(6), says(durability));
        assert_eq!(failed, [Effect::Answer(attempt(1), Err(Failed::OtherDurability))]);
        // Those with the right one go on.
        buffer.client(7, 2, Input::Frame(2, vec![record("k")].into()));
        assert_eq!(durabilities(&buffer.client(7, 2, Input::End(2, 4))), [durability; 2]);
        assert_eq!(answers(&buffer.client(8, 3, open(other))), [Err(Failed::OtherDurability)]);
        assert_eq!(buffer.client(9, 4, open(durability)), []);
    }
    for is_answered in [true, false] {
        let mut alone = buffer(Settings::default());
        alone.client(0, 1, open(memory));
        alone.client(0, 1, Input::Frame(1, vec![record("k")].into()));
        assert_eq!(durabilities(&alone.client(0, 1, Input::End(1, 2))), [], "the leader is asked");
        let bounds = Arc::new(Bounds::stashes(1));
        let (event, durability) = match is_answered {
            true => (Event::Word(SHUFFLE, Word::Open(bounds, memory)), memory),
            false => (Event::Tick, disk),
        };
        assert_eq!(durabilities(&alone.handle(Millis(5), event)), [durability; 2]);
    }
}

#[test]
fn r1_a_frame_beyond_the_limit_waits_and_is_taken_when_there_is_room() {
    let mut buffer = buffer(Settings { buffer_bytes: 3, ..Settings::default() });
    buffer.writes(1);
    let full = buffer.client(1, 1, Input::Frame(2, vec![record("k")].into()));
    assert!(full.contains(&Effect::Full(attempt(1), 2)), "{full:?}");
    let batches = sent(&full);
    let key = batches.first_key_value().unwrap().0;
    for by in ["a", "b"] {
        buffer.handle(Millis(2), Event::Stored(node(by), key.clone()));
    }
    let taken = buffer.client(3, 1, Input::Frame(2, vec![record("k")].into()));
    assert!(taken.contains(&Effect::Taken(attempt(1), 2)), "{taken:?}");
}

#[test]
fn an_attempt_that_too_few_nodes_store_fails_and_so_does_one_of_a_shuffle_that_is_over() {
    let mut buffer = buffer(Settings::default());
    buffer.writes(1);
    buffer.client(0, 1, Input::End(1, 2));
    buffer.handle(Millis(5), Event::Tick);
    let failed = answers(&buffer.handle(Millis(Settings::default().give_up_ms), Event::Tick));
    assert_eq!(failed, [Err(Failed::TooFewNodes { replicas: 2 })]);
    buffer.writes(2);
    let over = buffer.handle(Millis(1), Event::Word(SHUFFLE, Word::Ended(Ended::Deleted)));
    assert_eq!(answers(&over), [Err(Failed::Over(Ended::Deleted))]);
    assert!(buffer.has_nothing_of(SHUFFLE) && buffer.bytes() == 0);
}

#[test]
fn r1_of_a_sealed_shuffle_hardly_anything_is_kept() {
    let mut buffer = buffer(Settings { sample_every: 1, ..Settings::default() });
    buffer.writes(1);
    buffer.client(0, 1, Input::End(1, 2));
    buffer.writes(2);
    let (winners, needed, ranges) = Default::default();
    let plan = Arc::new(Plan { shuffle: SHUFFLE, winners, needed, ranges });
    buffer.handle(Millis(1), Event::Word(SHUFFLE, Word::Sealed(plan)));
    let open = &buffer.shuffles[&SHUFFLE];
    assert_eq!((open.sketch.count(), open.memory(), buffer.memory()), (0, 0, 0));
    assert!(open.attempts.is_empty() && open.out.is_empty() && open.marking.is_empty());
    assert!(open.chunks.is_empty() && open.last.is_empty() && open.divisions.is_empty());
}

#[test]
fn a_key_at_the_limit_is_taken_and_one_above_it_is_refused() {
    let mut buffer = buffer(Settings::default());
    buffer.writes(1);
    let most = "k".repeat(limits::SHUFFLE_KEY_BYTES);
    let taken = buffer.client(1, 1, Input::Frame(2, vec![record(&most)].into()));
    assert!(taken.contains(&Effect::Taken(attempt(1), 2)), "{taken:?}");
    let refused = answers(&buffer.client(1, 1, Input::Frame(3, vec![record(&format!("{most}k"))].into())));
    let key = limits::SHUFFLE_KEY_BYTES + 1;
    assert_eq!(refused, [Err(Failed::TooLarge { key, record: key as u64 + 1 })]);
}

#[test]
fn a_division_that_is_ordered_again_writes_nothing_twice_and_is_answered() {
    let mut buffer = buffer(Settings::default());
    let task = TaskId { epoch: Epoch(1), number: 4 };
    let (tags, upto) = (BTreeMap::new(), BTreeMap::new());
    let (to, durability) = (Arc::new(Bounds::stashes(1)), Durability::Memory);
    let division =
        Arc::new(Division { task, shuffle: SHUFFLE, slot: PoolSlot(0), tags, upto, to, durability });
    let by = AttemptKey { buffer: buffer.id.clone(), number: 1 };
    let read = vec![Segment { attempt: by, partition: 3, frame: 1, records: vec![record("k")].into() }];
    let first = buffer.handle(Millis(0), Event::Divide(node("b"), division.clone(), read));
    let batches = sent(&first);
    assert_eq!(batches.len(), 1);
    assert_eq!(durabilities(&first), [durability; 2], "as its order says, whatever clients say");
    // Nothing is read for it then.
    assert_eq!(buffer.handle(Millis(1), Event::DivisionOrdered(node("b"), division.clone(), 9)), []);
    let (key, nodes) = batches.first_key_value().unwrap();
    let stored = |node: &NodeId| Event::Stored(node.clone(), key.clone());
    let last: Vec<Effect> = nodes.iter().flat_map(|node| buffer.handle(Millis(2), stored(node))).collect();
    let again = buffer.handle(Millis(3), Event::Divide(node("b"), division, Vec::new()));
    assert!(matches!(&last[..], [Effect::Send(_, Message::Divided(..))]), "{last:?}");
    assert_eq!(again, last);
}

fn large(bytes: usize) -> Record {
    Record { key: b"k".as_slice().into(), value: vec![0; bytes].into() }
}

#[test]
fn a_chunk_that_is_larger_than_a_batch_may_be_goes_out_in_two() {
    let mut buffer = buffer(Settings { window_bytes: u64::MAX, ..Settings::default() });
    buffer.writes(1);
    // Just below what is sent at once; with the next frame it is more than a batch may have.
    let (first, second) = (large(63 << 20), large(35 << 20));
    let size = |records: &[Record]| records.iter().map(Record::bytes).sum::<u64>();
    assert_eq!(sent(&buffer.client(1, 1, Input::Frame(2, vec![first.clone()].into()))).len(), 0);
    let frame = vec![second.clone(), second];
    let all = size(&[record("k"), first]) + size(&frame);
    let mut effects = buffer.client(1, 1, Input::Frame(3, frame.into()));
    assert_eq!(sent(&effects).len(), 1, "the other one goes out with the next call");
    effects.extend(buffer.handle(Millis(1), Event::Tick));
    let batches = sent(&effects);
    assert_eq!(batches.keys().map(|key| key.number).collect::<Vec<_>>(), [1, 2]);
    for effect in &effects {
        let Effect::Send(_, Message::Batch(batch)) = effect else { continue };
        assert!(batch.room() <= limits::SHUFFLE_BATCH_BYTES as u64, "{}", batch.room());
    }
    buffer.client(2, 1, Input::End(4, all));
    buffer.handle(Millis(8), Event::Tick);
    let stored =
        batches.into_iter().flat_map(|(key, nodes)| nodes.into_iter().map(move |node| (node, key.clone())));
    let effects: Vec<Effect> =
        stored.flat_map(|(node, key)| buffer.handle(Millis(9), Event::Stored(node, key))).collect();
    let mark = effects.iter().find_map(|effect| match effect {
        Effect::Send(_, Message::Batch(batch)) => match &batch.body {
            Body::Mark(mark) => Some(mark.clone()),
            Body::Records(_) => None,
        },
        _ => None,
    });
    assert_eq!(mark.unwrap().last, BTreeMap::from([(PoolSlot(0), 2)]), "the last one is what it needs");
}

#[test]
fn a_frame_that_is_too_large_is_refused() {
    let mut buffer = buffer(Settings::default());
    buffer.writes(1);
    let record = large(40 << 20);
    let bytes = 2 * (record.bytes() + MEMORY_OF_RECORD);
    let refused = answers(&buffer.client(1, 1, Input::Frame(2, vec![record.clone(), record].into())));
    assert_eq!(refused, [Err(Failed::FrameTooLarge { bytes })]);
    assert_eq!(buffer.bytes(), 0);
}

#[test]
fn a_frame_that_comes_late_takes_nothing_away_that_is_acknowledged() {
    let mut buffer = buffer(Settings::default());
    buffer.writes(1);
    let large = || Input::Frame(1, vec![large(limits::SHUFFLE_RECORD_BYTES)].into());
    let doubled = buffer.client(0, 1, large());
    assert_eq!(doubled, [Effect::Taken(attempt(1), 1)], "one that came before");
    let batches = sent(&buffer.client(0, 1, Input::End(1, 2)));
    assert_eq!(buffer.client(1, 1, large()), [], "it has ended");
    let stored = |buffer: &mut Buffer, batches: &BTreeMap<BatchKey, Vec<NodeId>>| {
        let stored = batches.iter().flat_map(|(key, nodes)| nodes.iter().map(move |node| (node, key)));
        let stored = stored.map(|(node, key)| Event::Stored(node.clone(), key.clone()));
        stored.flat_map(|event| buffer.handle(Millis(2), event)).collect::<Vec<Effect>>()
    };
    let marks = sent(&stored(&mut buffer, &batches));
    assert_eq!(answers(&stored(&mut buffer, &marks)), [Ok(())]);
    assert_eq!(buffer.client(3, 1, large()), [], "it is whole");
    assert_eq!(answers(&buffer.client(4, 1, Input::End(1, 2))), [Ok(())]);
}

#[test]
fn r1_records_that_lie_in_many_ranges_take_more_room_and_new_bounds_are_within_the_limit() {
    let range = |id: u64| Range {
        id: RangeId(id),
        begins: if id == 0 { [].as_slice().into() } else { [id as u8].as_slice().into() },
    };
    let bounds = Arc::new(Bounds { version: 1, ranges: (0..200).map(range).collect() });
    let keys: Vec<[u8; 1]> = (0..20u8).map(|key| [key]).collect();
    let frame = PackedRecords::pack(keys.iter().map(|key| (&key[..], &[][..])));
    let records = 20 * (MEMORY_OF_RECORD + 1);
    for room in [10_000, 2_000] {
        let mut buffer = buffer(Settings { buffer_bytes: room, ..Settings::default() });
        buffer.client(0, 1, Input::Open(Terms::new(1, 200)));
        buffer.client(0, 1, Input::Frame(1, frame.clone()));
        assert_eq!(buffer.memory(), records + MEMORY_OF_SEGMENT);
        buffer.handle(Millis(1), Event::Word(SHUFFLE, Word::Open(bounds.clone(), Durability::Disk)));
        let is_divided = room == 10_000;
        let segments = if is_divided { 20 } else { 1 };
        assert_eq!(buffer.memory(), records + segments * MEMORY_OF_SEGMENT);
        // As many fit as have room with their segments, and no more.
        let more = (2..100).take_while(|number| {
            let effects = buffer.client(2, 1, Input::Frame(*number, frame.clone()));
            effects.contains(&Effect::Taken(attempt(1), *number))
        });
        assert_eq!(more.count(), if is_divided { 2 } else { 0 });
        assert!(buffer.memory() <= room, "{}", buffer.memory());
    }
}

#[test]
fn r1_records_of_nothing_take_room_too() {
    let nothing = |count: usize| PackedRecords::pack(std::iter::repeat_n((&[][..], &[][..]), count));
    let mut buffer = buffer(Settings { buffer_bytes: 1_000, ..Settings::default() });
    buffer.writes(1);
    let taken = buffer.client(1, 1, Input::Frame(2, nothing(80)));
    assert!(taken.contains(&Effect::Taken(attempt(1), 2)), "{taken:?}");
    let full = buffer.client(1, 1, Input::Frame(3, nothing(80)));
    assert!(full.contains(&Effect::Full(attempt(1), 3)), "{full:?}");
    for key in sent(&full).keys() {
        for by in ["a", "b"] {
            buffer.handle(Millis(2), Event::Stored(node(by), key.clone()));
        }
    }
    assert_eq!(buffer.memory(), 0);
    let most = limits::SHUFFLE_FRAME_BYTES / MEMORY_OF_RECORD as usize;
    let refused = answers(&buffer.client(3, 1, Input::Frame(3, nothing(most + 1))));
    assert!(matches!(refused[..], [Err(Failed::FrameTooLarge { .. })]), "{refused:?}");
}
