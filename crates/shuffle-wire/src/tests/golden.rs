//! Golden cases in `vectors/shuffle_frames.json`: frames byte for byte, which `vectors/check.py` computes from their description.
//!
//! A form that changes breaks these, and nodes of the version before. Then the version of frames is another one.

use crate::client::{
    Again, Answer, ArrowKind, Call, CutBy, HeavyKey, RecordKind, Refusal, RefusalWord, Request,
    ShuffleOptions, SortColumn, Stage, Status,
};
use crate::frame::{Frame, Kind};
use crate::node::{self, Control, Hello, Peer, Received};
use crate::records::PackedRecords;
use crate::relay::{Relay, SeekOf, SliceOf};
use bytes::Bytes;
use partage_core::base::id::{Epoch, Incarnation};
use partage_core::base::name::NodeId;
use partage_service::shuffle::bounds::{Bounds, Range, Tag};
use partage_service::shuffle::holder::NotRead;
use partage_service::shuffle::leader::{self, ShuffleOverview, ShuffleStage};
use partage_service::shuffle::log::{Append, Decision, Decisions, Refused, Superseded, What};
use partage_service::shuffle::message::{AskOrder, Message, WhyNotStored, Word};
use partage_service::shuffle::options::OptionDifference;
use partage_service::shuffle::ordered_records::OrderedRecords;
use partage_service::shuffle::partition::CutAt;
use partage_service::shuffle::plan::{Division, Placed, Plan, PlanRange, Winner};
use partage_service::shuffle::record::{Batch, BatchKey, Body, EndMark, Numbers, Segment, Stream};
use partage_service::shuffle::seek::{Found, SeekFor};
use partage_service::shuffle::sketch::Sketch;
use partage_service::shuffle::{
    AttemptId, AttemptKey, BufferId, Bytes as Shared, ColumnCombine, Combine, CombinedColumn, Durability,
    Ended, Failure, PoolSlot, RangeId, ShuffleId, TaskId, Terms, Writer,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const FRAMES: &str = include_str!("../../../../vectors/shuffle_frames.json");
const SHUFFLE: ShuffleId = ShuffleId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);

#[derive(Debug, Clone, PartialEq)]
enum Said {
    Control(Control),
    Message(Message),
    Request(Call<Request>),
    Answer(Call<Answer>),
    Relay(Relay),
}

impl Said {
    fn frame(&self) -> Frame {
        match self {
            Said::Control(control) => control.frame().unwrap(),
            Said::Message(message) => node::frame(message).unwrap(),
            Said::Request(call) => call.frame().unwrap(),
            Said::Answer(call) => call.frame().unwrap(),
            Said::Relay(relay) => relay.frame().unwrap(),
        }
    }

    fn read(&self, frame: &Frame) -> Said {
        match self {
            Said::Control(_) => Said::Control(Control::of(frame).unwrap()),
            Said::Message(_) => Said::Message(Received::of(frame).unwrap().message()),
            Said::Request(_) => Said::Request(Call::<Request>::of(frame).unwrap()),
            Said::Answer(_) => Said::Answer(Call::<Answer>::of(frame).unwrap()),
            Said::Relay(_) => Said::Relay(Relay::of(frame).unwrap()),
        }
    }
}

fn shared(text: &str) -> Shared {
    text.as_bytes().into()
}

fn buffer(name: &str, incarnation: u64) -> BufferId {
    BufferId { node: NodeId::new(name).unwrap(), incarnation: Incarnation(incarnation) }
}

fn task() -> TaskId {
    TaskId { epoch: Epoch(5), number: 6 }
}

fn key(writer: Writer) -> BatchKey {
    BatchKey { stream: Stream { shuffle: SHUFFLE, slot: PoolSlot(9), writer }, number: 300 }
}

fn segment(of: BufferId, number: u64, partition: u32, frame: u64, records: &[(&str, &str)]) -> Segment {
    let records = PackedRecords::pack(records.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())));
    Segment { attempt: AttemptKey { buffer: of, number }, partition, frame, records }
}

fn slot_last() -> BTreeMap<PoolSlot, u64> {
    [(PoolSlot(9), 2)].into()
}

fn attempt(number: u64) -> AttemptKey {
    AttemptKey { buffer: buffer("n1", 3), number }
}

fn mark() -> EndMark {
    EndMark {
        attempt: attempt(7),
        partition: 2,
        id: AttemptId(0xff),
        records: 2,
        bytes: 6,
        last: [(PoolSlot(9), 300)].into(),
    }
}

fn bounds() -> Bounds {
    let range = |id, begins| Range { id: RangeId(id), begins: shared(begins) };
    Bounds { version: 1, ranges: vec![range(4, ""), range(5, "m")] }
}

fn upto(number: u64) -> BTreeMap<Writer, u64> {
    [(Writer::Buffer(buffer("n1", 3)), number)].into()
}

fn division() -> Writer {
    Writer::Division(task(), buffer("n1", 3))
}

/// A plan with one winner, a buffer and a division, and two ranges.
fn plan() -> Arc<Plan> {
    let mut needed = upto(300);
    needed.insert(division(), 1);
    let range = |id, since, begins, slot, (records, bytes)| PlanRange {
        id: RangeId(id),
        since,
        begins: shared(begins),
        slot: PoolSlot(slot),
        records,
        bytes,
    };
    Arc::new(Plan {
        shuffle: SHUFFLE,
        winners: Arc::new([(attempt(7), Winner { partition: 2, records: 2, bytes: 6 })].into()),
        needed: [(PoolSlot(9), needed)].into(),
        ranges: vec![range(4, 1, "", 9, (2, 6)), range(5, 2, "m", 10, (0, 0))],
    })
}

fn failure() -> Failure {
    Failure::Differs { found: 1, found_bytes: 2, acknowledged: 3, acknowledged_bytes: 4 }
}

/// A copy with a decision of each kind that a living shuffle has.
fn whole() -> What {
    let superseded = Superseded {
        slot: PoolSlot(9),
        tags: vec![Tag { version: 0, range: RangeId(1) }],
        upto: upto(300),
        writer: division(),
        last: slot_last(),
    };
    let decisions = vec![
        Decision::Start(terms(), options().into()),
        Decision::Bounds(bounds().into()),
        Decision::Superseded(superseded.into()),
        Decision::Sealed(plan()),
        Decision::Failed(failure()),
    ];
    What::Whole(Arc::new(Decisions {
        epoch: Epoch(5),
        sequence: 12,
        living: [(SHUFFLE, decisions)].into(),
        ended: [(ShuffleId(1), Ended::Unknown)].into(),
    }))
}

fn of_connections() -> Vec<(&'static str, Said)> {
    let peer = |node: &str| Peer { node: NodeId::new(node).unwrap(), incarnation: Incarnation(3) };
    let why = "frame 7 came twice".to_owned();
    let refusal = Refusal { word: RefusalWord::BadFrame, again: Again::Attempt, why };
    let hello = Hello::Node(peer("n1"), NodeId::new("n2").unwrap());
    vec![
        ("hello of a node", Said::Control(Control::Hello(hello))),
        ("hello of a client", Said::Control(Control::Hello(Hello::Client))),
        ("welcome", Said::Control(Control::Welcome(peer("n2")))),
        ("goodbye", Said::Control(Control::Goodbye(refusal))),
        ("ping", Said::Control(Control::Ping)),
        ("pong", Said::Control(Control::Pong)),
    ]
}

fn of_nodes() -> Vec<(&'static str, Said)> {
    let (own, other) = (buffer("n1", 3), buffer("n2", 4));
    let tag = |version, range| Tag { version, range: RangeId(range) };
    let records = [
        (tag(0, 1), vec![segment(own.clone(), 7, 2, 1, &[("k", "value"), ("", "")])]),
        (
            tag(1, 5),
            vec![
                segment(other.clone(), 1, 3, 2, &[("kk", "v")]),
                segment(own.clone(), 7, 2, 130, &[("l", "w")]),
            ],
        ),
    ];
    let batch = Batch {
        key: key(Writer::Division(task(), own.clone())),
        durability: Durability::Disk,
        body: Body::Records(records.into()),
    };
    let of_own = key(Writer::Buffer(own.clone()));
    let marked = Batch { key: of_own.clone(), durability: Durability::Disk, body: Body::Mark(mark()) };
    let (in_memory, tagged) = (Durability::Memory, [(tag(0, 1), Vec::new())].into());
    let unsynced = Batch { key: of_own.clone(), durability: in_memory, body: Body::Records(tagged) };
    let unsynced_mark = Batch { key: of_own, durability: in_memory, body: Body::Mark(mark()) };
    let numbers = Numbers::of_parts(4, BTreeSet::from([7, 8])).unwrap();
    let inventory = Message::Inventory {
        slot: PoolSlot(9),
        round: 2,
        asks: true,
        has: [(key(Writer::Buffer(own.clone())).stream, numbers)].into(),
    };
    let decided = vec![(SHUFFLE, Decision::Start(terms(), Arc::default()))];
    let append = Append { slot: PoolSlot(9), epoch: Epoch(5), what: What::After(11, decided) };
    let mut sketch = Sketch::new(8, 1);
    ["b", "a"].iter().for_each(|key| sketch.insert(key.as_bytes()));
    let incarnation = own.incarnation;
    let counts = [(RangeId(4), (10, 1_000))].into();
    vec![
        ("batch of records", Message::Batch(batch.into())),
        ("batch with a mark", Message::Batch(marked.into())),
        ("batch in memory", Message::Batch(unsynced.into())),
        ("batch in memory with a mark", Message::Batch(unsynced_mark.into())),
        ("stored", Message::Stored(key(Writer::Buffer(own.clone())))),
        ("inventory", inventory),
        ("append", Message::Append(append)),
        ("ask", Message::Ask(SHUFFLE)),
        ("word", Message::Word(SHUFFLE, Word::Open(bounds().into(), Durability::Memory))),
        ("sample", Message::Sample(SHUFFLE, own.node, incarnation, sketch.into())),
        ("counted", Message::Counted(SHUFFLE, Epoch(5), PoolSlot(9), counts)),
    ]
    .into_iter()
    .map(|(name, message)| (name, Said::Message(message)))
    .collect()
}

fn of_logs_and_leaders() -> Vec<(&'static str, Said)> {
    let (slot, epoch, own) = (PoolSlot(9), Epoch(5), buffer("n1", 3));
    let append = |what| Message::Append(Append { slot, epoch, what });
    let end = What::After(11, vec![(SHUFFLE, Decision::Ended(Ended::Deleted))]);
    let not_appended = |why| Message::NotAppended(slot, epoch, why);
    let word = |word| Message::Word(SHUFFLE, word);
    let tag = |version, range| Tag { version, range: RangeId(range) };
    let ordered = Division {
        task: task(),
        shuffle: SHUFFLE,
        slot,
        tags: [(tag(0, 1), BTreeMap::new()), (tag(1, 5), upto(3))].into(),
        upto: upto(300),
        to: bounds().into(),
        durability: Durability::Memory,
    };
    let marks =
        Message::Marks { shuffle: SHUFFLE, after: Some(attempt(6)), marks: vec![mark()], has_more: true };
    vec![
        ("batch refused", Message::Refused(key(Writer::Buffer(own.clone())), Ended::Expired)),
        ("ask whether it is stored", Message::AskStored(key(Writer::Buffer(own.clone())), AskOrder::Ahead)),
        ("not stored", Message::NotStored(key(Writer::Buffer(own.clone())), WhyNotStored::Busy)),
        ("fetch", Message::Fetch(vec![key(Writer::Buffer(own.clone())), key(division())])),
        ("fetch of a receipt", Message::Fetch(vec![key(Writer::Objects(own.clone()))])),
        ("make room", Message::MakeRoom(SHUFFLE, slot)),
        ("append of an end", append(end)),
        ("append of a whole copy", append(whole())),
        ("appended", Message::Appended(slot, epoch, 12)),
        ("not appended, stale", not_appended(Refused::Stale(Epoch(6)))),
        ("not appended, lacks", not_appended(Refused::Lacks)),
        ("word of a plan", word(Word::Sealed(plan()))),
        ("word of a failure", word(Word::Failed(failure()))),
        ("word of a loss", word(Word::Failed(Failure::Lost))),
        ("word of an end", word(Word::Ended(Ended::Deleted))),
        ("dropped", Message::Dropped(SHUFFLE)),
        ("ask for marks", Message::AskMarks(SHUFFLE, None)),
        ("ask for more marks", Message::AskMarks(SHUFFLE, Some(attempt(6)))),
        ("marks", marks),
        ("divide", Message::Divide(ordered.into())),
        ("divided", Message::Divided(SHUFFLE, task(), own, slot_last())),
        ("count", Message::Count(epoch, plan(), slot)),
        ("replica lacks", Message::Lacks(SHUFFLE, slot)),
    ]
    .into_iter()
    .map(|(name, message)| (name, Said::Message(message)))
    .collect()
}

fn terms() -> Terms {
    Terms {
        stashes: 30,
        ranges: 640,
        weight: 3,
        combine: Some(Combine::SumI64),
        durability: Durability::Memory,
    }
}

/// The options of a shuffle of Arrow rows, with all that may be left out.
fn options() -> ShuffleOptions {
    let order = vec![SortColumn { column: 3, descends: true, nulls_first: false }];
    let combine = vec![CombinedColumn { column: 2, by: ColumnCombine::Max }];
    ShuffleOptions {
        kind: RecordKind::Arrow(ArrowKind { encoding: 1, schema: shared("s"), order, combine }),
        unsealed_ttl_ms: Some(20_000),
        sealed_ttl_ms: Some(86_400_000),
        owner: "etl".to_owned(),
    }
}

fn two_records() -> PackedRecords {
    PackedRecords::pack([(&b"k"[..], &b"value"[..]), (b"", b"")])
}

fn of_clients() -> Vec<(&'static str, Said)> {
    let request = |what| Said::Request(Call { number: 8, shuffle: SHUFFLE, what });
    vec![
        ("start", request(Request::Start(terms(), ShuffleOptions::default()))),
        ("start of rows of Arrow", request(Request::Start(terms(), options()))),
        ("open", request(Request::Open(2, AttemptId(0xff), terms()))),
        ("records", request(Request::Records(1, two_records()))),
        ("end", request(Request::End(2, 6))),
        ("abort", request(Request::Abort)),
        ("seal", request(Request::Seal([0, 1, 7].into()))),
        ("read a partition", request(Request::ReadPartition(3, 256, CutBy::Records))),
        ("read a partition where it is", request(Request::ReadPartitionNear(3, 256, CutBy::Keys))),
        ("read keys", request(Request::ReadKeys(shared("a"), Some(shared("b"))))),
        ("read a slice", request(Request::ReadSlice(4, Some((shared("a"), None)), 10, 20))),
        ("read ranks", request(Request::ReadRanks(10, 20))),
        ("ask for bounds", request(Request::Bounds(256, CutBy::Bytes))),
        ("ask for heavy keys", request(Request::HeavyKeys(256))),
        ("ask for the status", request(Request::Status)),
        ("keep alive", request(Request::KeepAlive)),
        ("delete", request(Request::Delete)),
    ]
}

fn of_servers() -> Vec<(&'static str, Said)> {
    let answer = |what| Said::Answer(Call { number: 8, shuffle: SHUFFLE, what });
    let full = Refusal {
        word: RefusalWord::DiskFull,
        again: Again::Attempt,
        why: "the disk of n1 is full".to_owned(),
    };
    let status = Status {
        stage: Stage::Open,
        winners: 1,
        records: 2,
        bytes: 6,
        version: 1,
        ranges: 2,
        waits_for: "marks".to_owned(),
    };
    vec![
        ("started", answer(Answer::Started(terms(), vec![SHUFFLE]))),
        ("opened", answer(Answer::Opened)),
        ("taken", answer(Answer::Taken(1))),
        ("sealed", answer(Answer::Sealed(2, 6))),
        ("read to the end", answer(Answer::ReadEnd(2, 6))),
        ("read at", answer(Answer::ReadAt(NodeId::new("n2").unwrap()))),
        ("bounds", answer(Answer::Bounds(["a", "m", "z"].map(shared).into()))),
        ("heavy keys", answer(Answer::HeavyKeys(300, vec![heavy()]))),
        ("status", answer(Answer::Status(status))),
        ("alive", answer(Answer::Alive)),
        ("deleted", answer(Answer::Deleted)),
        ("whole", answer(Answer::Whole)),
        ("lacks", answer(Answer::Lacks(vec![1]))),
        ("read", answer(Answer::Read(two_records()))),
        ("refused", answer(Answer::Refused(full))),
    ]
}

fn heavy() -> HeavyKey {
    HeavyKey { key: shared("k"), first: 10, records: 200 }
}

fn of_relays() -> Vec<(&'static str, Said)> {
    let slice = SliceOf { shuffle: SHUFFLE, range: 4, keys: Some((shared("a"), None)), from: 10, to: 20 };
    let placed = |partition, frame, index, value: &'static [u8]| {
        let (key, value) = (Bytes::from_static(b"k"), Bytes::from_static(value));
        Placed { key, partition, frame, index, value }
    };
    let records = OrderedRecords::of(&[placed(2, 1, 300, b"v"), placed(3, 0, 0, b"value")]).unwrap();
    let overview = ShuffleOverview {
        shuffle: SHUFFLE,
        options: options().into(),
        combine: Some(Combine::MaxF64),
        durability: Durability::Disk,
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
        lacking: vec![7],
    };
    let answered = |answer| Relay::Answered(8, answer);
    let start = leader::Request::Start(terms(), options());
    let used_up = leader::QuotaUsedUp::Shuffles { has: 7, share: 7, quota: 20 };
    let differs = leader::Failed::StartDiffers(OptionDifference::SealedTtl);
    let seek = |what| Relay::Seek(8, SeekOf { shuffle: SHUFFLE, range: 4, what });
    let cuts = vec![CutAt { record: 12, key: Some(shared("k")) }, CutAt { record: 20, key: None }];
    vec![
        ("a start for a client", Relay::Request(8, SHUFFLE, start)),
        ("a refusal of another start", answered(Err(differs))),
        ("a refusal of a start beyond a quota", answered(Err(leader::Failed::QuotaUsedUp(used_up)))),
        ("a seal for a client", Relay::Request(8, SHUFFLE, leader::Request::Seal([0, 1, 7].into()))),
        ("an overview for a client", answered(Ok(leader::Answer::Overview(overview)))),
        ("a refusal of a leader", answered(Err(leader::Failed::Over(Ended::Expired)))),
        ("a slice for a client", Relay::Read(8, slice)),
        ("records for a client", Relay::Records(8, Ok(records))),
        ("a refusal of a holder", Relay::Records(8, Err(NotRead::Busy))),
        ("a refusal for the object store", Relay::Records(8, Err(NotRead::ObjectStore))),
        ("a refusal for a lost object", Relay::Records(8, Err(NotRead::ObjectLost))),
        ("cuts that are sought", seek(SeekFor::Cuts(CutBy::Keys, [10, 20].into()))),
        ("heavy keys that are sought", seek(SeekFor::HeavyKeys { more_than: 9, from: 10 })),
        ("cuts that were found", Relay::Found(8, Found::Cuts(cuts))),
        (
            "heavy keys that were found",
            Relay::Found(8, Found::HeavyKeys { keys: vec![heavy()], has_more: true }),
        ),
    ]
    .into_iter()
    .map(|(name, relay)| (name, Said::Relay(relay)))
    .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All values that have a case.
fn all() -> Vec<(&'static str, Said)> {
    [of_connections(), of_nodes(), of_logs_and_leaders(), of_clients(), of_servers(), of_relays()].concat()
}

fn cases() -> Vec<Value> {
    let golden: Value = serde_json::from_str(FRAMES).unwrap();
    golden["frames"].as_array().unwrap().clone()
}

#[test]
fn each_kind_of_frame_has_a_case() {
    let kinds: BTreeSet<Kind> = all().iter().map(|(_, said)| said.frame().kind()).collect();
    let without: Vec<&Kind> = Kind::ALL.iter().filter(|kind| !kinds.contains(kind)).collect();
    assert!(without.is_empty(), "no value here is of these kinds: {without:?}");
    let cases = cases();
    let has = |name: &str| cases.iter().any(|case| case["name"] == name);
    let missing: Vec<&str> = all().into_iter().map(|(name, _)| name).filter(|name| !has(name)).collect();
    assert!(
        missing.is_empty(),
        "vectors/shuffle_frames.json has no cases {missing:?}: describe them in SHUFFLE_FRAMES of vectors/check.py, \
         and run `python3 vectors/check.py --write shuffle_frames.json`"
    );
    assert_eq!(all().len(), cases.len(), "each case is of some value here");
}

#[test]
fn frames_are_those_of_the_vectors_and_are_read_as_what_was_written() {
    let golden = cases();
    for (name, said) in all() {
        // Those without a case are named above.
        let Some(case) = golden.iter().find(|case| case["name"] == name) else { continue };
        let number = u64::from_str_radix(case["number"].as_str().unwrap(), 16).unwrap();
        let mut bytes = Vec::new();
        said.frame().encode(number, &mut bytes);
        assert_eq!(hex(&bytes), case["frame"].as_str().unwrap(), "{name}");
        let (frame, found) = Frame::decode(&mut Bytes::from(bytes)).unwrap();
        assert_eq!((said.read(&frame), found), (said, number), "{name}");
    }
}
