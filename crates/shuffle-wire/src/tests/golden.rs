//! Golden cases in `vectors/shuffle_frames.json`: frames byte for byte, which `vectors/check.py` computes from their description.
//!
//! A form that changes breaks these, and nodes of the version before. Then the version of frames is another one.

use crate::client::{Again, Answer, Call, CutBy, RecordKind, Refusal, RefusalWord, Request};
use crate::frame::Frame;
use crate::node::{self, Control, Hello, Peer, Received};
use crate::records::PackedRecords;
use bytes::Bytes;
use partage_core::base::id::{Epoch, Incarnation};
use partage_core::base::name::NodeId;
use partage_service::shuffle::bounds::{Bounds, Range, Tag};
use partage_service::shuffle::log::{Append, Decision, What};
use partage_service::shuffle::message::{Message, Word};
use partage_service::shuffle::record::{Batch, BatchKey, Body, EndMark, Numbers, Record, Segment, Stream};
use partage_service::shuffle::sketch::Sketch;
use partage_service::shuffle::{
    AttemptId, AttemptKey, BufferId, Bytes as Shared, PoolSlot, RangeId, ShuffleId, TaskId, Terms, Writer,
};
use serde_json::Value;
use std::collections::BTreeSet;

const FRAMES: &str = include_str!("../../../../vectors/shuffle_frames.json");
const SHUFFLE: ShuffleId = ShuffleId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);

#[derive(Debug, PartialEq)]
enum Said {
    Control(Control),
    Message(Message),
    Request(Call<Request>),
    Answer(Call<Answer>),
}

impl Said {
    fn frame(&self) -> Frame {
        match self {
            Said::Control(control) => control.frame().unwrap(),
            Said::Message(message) => node::frame(message).unwrap(),
            Said::Request(call) => call.frame().unwrap(),
            Said::Answer(call) => call.frame().unwrap(),
        }
    }

    fn read(&self, frame: &Frame) -> Said {
        match self {
            Said::Control(_) => Said::Control(Control::of(frame).unwrap()),
            Said::Message(_) => Said::Message(Received::of(frame).unwrap().message()),
            Said::Request(_) => Said::Request(Call::<Request>::of(frame).unwrap()),
            Said::Answer(_) => Said::Answer(Call::<Answer>::of(frame).unwrap()),
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
    let record = |(key, value): &(&str, &str)| Record { key: shared(key), value: shared(value) };
    let records = records.iter().map(record).collect();
    Segment { attempt: AttemptKey { buffer: of, number }, partition, frame, records }
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
    let batch =
        Batch { key: key(Writer::Division(task(), own.clone())), body: Body::Records(records.into()) };
    let mark = EndMark {
        attempt: AttemptKey { buffer: own.clone(), number: 7 },
        partition: 2,
        id: AttemptId(0xff),
        records: 2,
        bytes: 6,
        last: [(PoolSlot(9), 300)].into(),
    };
    let marked = Batch { key: key(Writer::Buffer(own.clone())), body: Body::Mark(mark) };
    let numbers = Numbers::of_parts(4, BTreeSet::from([7, 8])).unwrap();
    let inventory = Message::Inventory {
        slot: PoolSlot(9),
        round: 2,
        asks: true,
        has: [(key(Writer::Buffer(own.clone())).stream, numbers)].into(),
    };
    let range = |id, begins| Range { id: RangeId(id), begins: shared(begins) };
    let bounds = Bounds { version: 1, ranges: vec![range(4, ""), range(5, "m")] };
    let decided = vec![(SHUFFLE, Decision::Start(Terms { stashes: 30, ranges: 640 }))];
    let append = Append { slot: PoolSlot(9), epoch: Epoch(5), what: What::After(11, decided) };
    let mut sketch = Sketch::new(8, 1);
    ["b", "a"].iter().for_each(|key| sketch.insert(key.as_bytes()));
    let incarnation = own.incarnation;
    let counts = [(RangeId(4), (10, 1_000))].into();
    vec![
        ("batch of records", Message::Batch(batch.into())),
        ("batch with a mark", Message::Batch(marked.into())),
        ("stored", Message::Stored(key(Writer::Buffer(own.clone())))),
        ("inventory", inventory),
        ("append", Message::Append(append)),
        ("ask", Message::Ask(SHUFFLE)),
        ("word", Message::Word(SHUFFLE, Word::Open(bounds.into()))),
        ("sample", Message::Sample(SHUFFLE, own.node, incarnation, sketch.into())),
        ("counted", Message::Counted(SHUFFLE, Epoch(5), PoolSlot(9), counts)),
    ]
    .into_iter()
    .map(|(name, message)| (name, Said::Message(message)))
    .collect()
}

fn of_clients() -> Vec<(&'static str, Said)> {
    let terms = Terms { stashes: 30, ranges: 640 };
    let request = |what| Said::Request(Call { number: 8, shuffle: SHUFFLE, what });
    let answer = |what| Said::Answer(Call { number: 8, shuffle: SHUFFLE, what });
    let records = PackedRecords::pack([(&b"k"[..], &b"value"[..]), (b"", b"")]);
    let full = Refusal {
        word: RefusalWord::DiskFull,
        again: Again::Attempt,
        why: "the disk of n1 is full".to_owned(),
    };
    vec![
        ("start", request(Request::Start(terms, RecordKind::Raw))),
        ("open", request(Request::Open(2, AttemptId(0xff), terms))),
        ("records", request(Request::Records(1, records.clone()))),
        ("end", request(Request::End(2, 6))),
        ("seal", request(Request::Seal([0, 1, 7].into()))),
        ("read a partition", request(Request::ReadPartition(3, 256, CutBy::Records))),
        ("read keys", request(Request::ReadKeys(shared("a"), Some(shared("b"))))),
        ("whole", answer(Answer::Whole)),
        ("lacks", answer(Answer::Lacks(vec![1]))),
        ("read", answer(Answer::Read(records))),
        ("refused", answer(Answer::Refused(full))),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn frames_are_those_of_the_vectors_and_are_read_as_what_was_written() {
    let golden: Value = serde_json::from_str(FRAMES).unwrap();
    let golden = golden["frames"].as_array().unwrap();
    let said = [of_connections(), of_nodes(), of_clients()].into_iter().flatten();
    let mut count = 0;
    for (name, said) in said {
        let case =
            golden.iter().find(|case| case["name"] == name).unwrap_or_else(|| panic!("no case {name}"));
        let number = u64::from_str_radix(case["number"].as_str().unwrap(), 16).unwrap();
        let mut bytes = Vec::new();
        said.frame().encode(number, &mut bytes);
        assert_eq!(hex(&bytes), case["frame"].as_str().unwrap(), "{name}");
        let (frame, found) = Frame::decode(&mut Bytes::from(bytes)).unwrap();
        assert_eq!((said.read(&frame), found), (said, number), "{name}");
        count += 1;
    }
    assert_eq!(count, golden.len(), "each case is of some value here");
}
