//! Arbitrary messages, calls and answers, for property tests.

use crate::client::{Again, Answer, Call, CutBy, HeavyKey, Refusal, RefusalWord, Request, Stage, Status};
use crate::node::{Control, Hello, Peer};
use crate::records::PackedRecords;
use partage_core::base::id::{Epoch, Incarnation};
use partage_core::base::name::NodeId;
use partage_service::shuffle::bounds::{Bounds, Range, Tag};
use partage_service::shuffle::log::{Append, Decision, Decisions, Refused, Superseded, What};
use partage_service::shuffle::message::{AskOrder, Message, WhyNotStored, Word};
use partage_service::shuffle::plan::{Division, Plan, PlanRange, Winner};
use partage_service::shuffle::record::{Batch, BatchKey, Body, EndMark, Numbers, Record, Segment, Stream};
use partage_service::shuffle::sketch::Sketch;
use partage_service::shuffle::{
    ArrowKind, AttemptId, AttemptKey, BufferId, Bytes, ColumnCombine, Combine, CombinedColumn, Durability,
    Ended, Failure, PoolSlot, RangeId, RecordKind, ShuffleId, ShuffleOptions, SortColumn, TaskId, Terms,
    Writer,
};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Few of each: shapes matter, not sizes.
const FEW: std::ops::Range<usize> = 0..4;

fn nodes() -> impl Strategy<Value = NodeId> + Clone {
    "[a-z][a-z0-9.-]{0,9}".prop_map(|name| NodeId::new(&name).unwrap_or_else(|why| unreachable!("{why}")))
}

fn bytes() -> impl Strategy<Value = Bytes> + Clone {
    prop_oneof![4 => vec(any::<u8>(), 0..12), 1 => vec(any::<u8>(), 120..140)].prop_map(Bytes::from)
}

fn shuffles() -> impl Strategy<Value = ShuffleId> + Clone {
    any::<u128>().prop_map(ShuffleId)
}

fn slots() -> impl Strategy<Value = PoolSlot> + Clone {
    any::<u32>().prop_map(PoolSlot)
}

fn epochs() -> impl Strategy<Value = Epoch> + Clone {
    any::<u64>().prop_map(Epoch)
}

fn buffers() -> impl Strategy<Value = BufferId> + Clone {
    (nodes(), any::<u64>())
        .prop_map(|(node, incarnation)| BufferId { node, incarnation: Incarnation(incarnation) })
}

fn tasks() -> impl Strategy<Value = TaskId> + Clone {
    (epochs(), any::<u64>()).prop_map(|(epoch, number)| TaskId { epoch, number })
}

fn writers() -> impl Strategy<Value = Writer> + Clone {
    prop_oneof![
        buffers().prop_map(Writer::Buffer),
        (tasks(), buffers()).prop_map(|(task, buffer)| Writer::Division(task, buffer)),
        buffers().prop_map(Writer::Objects),
    ]
}

fn uptos() -> impl Strategy<Value = BTreeMap<Writer, u64>> + Clone {
    btree_map(writers(), any::<u64>(), FEW)
}

fn lasts() -> impl Strategy<Value = BTreeMap<PoolSlot, u64>> + Clone {
    btree_map(slots(), any::<u64>(), FEW)
}

fn attempts() -> impl Strategy<Value = AttemptKey> + Clone {
    (buffers(), any::<u64>()).prop_map(|(buffer, number)| AttemptKey { buffer, number })
}

fn tags() -> impl Strategy<Value = Tag> + Clone {
    (any::<u32>(), any::<u64>()).prop_map(|(version, range)| Tag { version, range: RangeId(range) })
}

fn terms() -> impl Strategy<Value = Terms> + Clone {
    let combine = option::of(proptest::sample::select(Combine::ALL.to_vec()));
    let all = (any::<u32>(), any::<u32>(), any::<u16>(), combine, durabilities());
    all.prop_map(|(stashes, ranges, weight, combine, durability)| Terms {
        stashes,
        ranges,
        weight,
        combine,
        durability,
    })
}

fn durabilities() -> impl Strategy<Value = Durability> + Clone {
    proptest::sample::select(Durability::ALL.to_vec())
}

fn options() -> impl Strategy<Value = ShuffleOptions> {
    let column = any::<(u32, bool, bool)>().prop_map(|(column, descends, nulls_first)| SortColumn {
        column,
        descends,
        nulls_first,
    });
    let by = proptest::sample::select(ColumnCombine::ALL.to_vec());
    let combined = (any::<u32>(), by).prop_map(|(column, by)| CombinedColumn { column, by });
    let arrow = (any::<u16>(), bytes(), vec(column, FEW), vec(combined, FEW))
        .prop_map(|(encoding, schema, order, combine)| ArrowKind { encoding, schema, order, combine })
        .prop_map(RecordKind::Arrow);
    let kind = prop_oneof![Just(RecordKind::Raw), arrow];
    (kind, any::<(Option<u64>, Option<u64>)>(), "[A-Za-z0-9._-]{0,9}").prop_map(
        |(kind, (unsealed_ttl_ms, sealed_ttl_ms), owner)| ShuffleOptions {
            kind,
            unsealed_ttl_ms,
            sealed_ttl_ms,
            owner,
        },
    )
}

fn ends() -> impl Strategy<Value = Ended> + Clone {
    prop_oneof![Just(Ended::Deleted), Just(Ended::Expired), Just(Ended::Unknown)]
}

fn failures() -> impl Strategy<Value = Failure> + Clone {
    let differs = any::<[u64; 4]>().prop_map(|[found, found_bytes, acknowledged, acknowledged_bytes]| {
        Failure::Differs { found, found_bytes, acknowledged, acknowledged_bytes }
    });
    prop_oneof![differs, Just(Failure::Lost)]
}

fn bounds() -> impl Strategy<Value = Arc<Bounds>> + Clone {
    let range = (any::<u64>(), bytes()).prop_map(|(id, begins)| Range { id: RangeId(id), begins });
    (any::<u32>(), vec(range, FEW)).prop_map(|(version, ranges)| Arc::new(Bounds { version, ranges }))
}

fn plans() -> impl Strategy<Value = Arc<Plan>> + Clone {
    let winner =
        any::<(u32, u64, u64)>().prop_map(|(partition, records, bytes)| Winner { partition, records, bytes });
    let range = (any::<(u64, u32)>(), bytes(), slots(), any::<(u64, u64)>()).prop_map(
        |((id, since), begins, slot, (records, bytes))| PlanRange {
            id: RangeId(id),
            since,
            begins,
            slot,
            records,
            bytes,
        },
    );
    (shuffles(), btree_map(attempts(), winner, FEW), btree_map(slots(), uptos(), FEW), vec(range, FEW))
        .prop_map(|(shuffle, winners, needed, ranges)| {
            Arc::new(Plan { shuffle, winners: Arc::new(winners), needed, ranges })
        })
}

fn superseded() -> impl Strategy<Value = Arc<Superseded>> {
    (slots(), vec(tags(), FEW), uptos(), writers(), lasts())
        .prop_map(|(slot, tags, upto, writer, last)| Arc::new(Superseded { slot, tags, upto, writer, last }))
}

fn decisions() -> impl Strategy<Value = Decision> {
    prop_oneof![
        (terms(), options()).prop_map(|(terms, options)| Decision::Start(terms, options.into())),
        bounds().prop_map(Decision::Bounds),
        superseded().prop_map(Decision::Superseded),
        plans().prop_map(Decision::Sealed),
        failures().prop_map(Decision::Failed),
        ends().prop_map(Decision::Ended),
    ]
}

fn appends() -> impl Strategy<Value = Append> {
    let living = btree_map(shuffles(), vec(decisions(), FEW), FEW);
    let whole = (epochs(), any::<u64>(), living, vec((shuffles(), ends()), FEW)).prop_map(
        |(epoch, sequence, living, ended)| {
            What::Whole(Arc::new(Decisions { epoch, sequence, living, ended: ended.into() }))
        },
    );
    let after = (any::<u64>(), vec((shuffles(), decisions()), FEW))
        .prop_map(|(before, decisions)| What::After(before, decisions));
    (slots(), epochs(), prop_oneof![whole, after]).prop_map(|(slot, epoch, what)| Append {
        slot,
        epoch,
        what,
    })
}

fn keys() -> impl Strategy<Value = BatchKey> + Clone {
    (streams(), any::<u64>()).prop_map(|(stream, number)| BatchKey { stream, number })
}

fn streams() -> impl Strategy<Value = Stream> + Clone {
    (shuffles(), slots(), writers()).prop_map(|(shuffle, slot, writer)| Stream { shuffle, slot, writer })
}

fn marks() -> impl Strategy<Value = EndMark> {
    (attempts(), any::<u32>(), any::<u128>(), any::<(u64, u64)>(), lasts()).prop_map(
        |(attempt, partition, id, (records, bytes), last)| EndMark {
            attempt,
            partition,
            id: AttemptId(id),
            records,
            bytes,
            last,
        },
    )
}

fn records() -> impl Strategy<Value = Record> {
    (bytes(), bytes()).prop_map(|(key, value)| Record { key, value })
}

/// Batches: with records, of attempts of their writer or of others, and with marks.
pub fn batches() -> impl Strategy<Value = Batch> {
    let segment = (any::<bool>(), attempts(), any::<u32>(), any::<u64>(), packed());
    let tagged = btree_map(tags(), vec(segment, FEW), FEW);
    let body = prop_oneof![tagged.prop_map(Ok), marks().prop_map(Err)];
    (keys(), durabilities(), body).prop_map(|(key, durability, body)| {
        let (Writer::Buffer(writer) | Writer::Division(_, writer) | Writer::Objects(writer)) =
            key.stream.writer.clone();
        let body = match body {
            Err(mark) => Body::Mark(mark),
            Ok(tagged) => {
                let segment = |(is_own, attempt, partition, frame, records)| {
                    let AttemptKey { buffer, number } = attempt;
                    let buffer = if is_own { writer.clone() } else { buffer };
                    Segment { attempt: AttemptKey { buffer, number }, partition, frame, records }
                };
                let segments = |(tag, segments): (Tag, Vec<_>)| {
                    (tag, segments.into_iter().map(segment).collect::<Vec<Segment>>())
                };
                Body::Records(tagged.into_iter().map(segments).collect())
            }
        };
        Batch { key, durability, body }
    })
}

fn numbers() -> impl Strategy<Value = Numbers> {
    (0..u64::MAX / 2, btree_set(2..u64::MAX / 2, FEW)).prop_map(|(upto, beyond)| {
        let beyond = beyond.into_iter().map(|number| upto + number).collect();
        Numbers::of_parts(upto, beyond).unwrap_or_default()
    })
}

fn sketches() -> impl Strategy<Value = Arc<Sketch>> {
    (8..64usize, any::<u64>(), vec(bytes(), 0..200)).prop_map(|(k, seed, keys)| {
        let mut sketch = Sketch::new(k, seed);
        keys.iter().for_each(|key| sketch.insert(key));
        Arc::new(sketch)
    })
}

fn words() -> impl Strategy<Value = Word> {
    prop_oneof![
        (bounds(), durabilities()).prop_map(|(bounds, durability)| Word::Open(bounds, durability)),
        plans().prop_map(Word::Sealed),
        failures().prop_map(Word::Failed),
        ends().prop_map(Word::Ended),
    ]
}

fn divisions() -> impl Strategy<Value = Arc<Division>> {
    let what = (btree_map(tags(), uptos(), FEW), uptos(), bounds(), durabilities());
    (tasks(), shuffles(), slots(), what).prop_map(|(task, shuffle, slot, (tags, upto, to, durability))| {
        Arc::new(Division { task, shuffle, slot, tags, upto, to, durability })
    })
}

/// Every kind of message between nodes.
pub fn messages() -> impl Strategy<Value = Message> {
    let refused = prop_oneof![epochs().prop_map(Refused::Stale), Just(Refused::Lacks)];
    let counts = btree_map(any::<u64>().prop_map(RangeId), any::<(u64, u64)>(), FEW);
    let of_logs = prop_oneof![
        appends().prop_map(Message::Append),
        (slots(), epochs(), any::<u64>())
            .prop_map(|(slot, epoch, upto)| Message::Appended(slot, epoch, upto)),
        (slots(), epochs(), refused).prop_map(|(slot, epoch, why)| Message::NotAppended(slot, epoch, why)),
    ];
    let not_stored = prop_oneof![
        Just(WhyNotStored::Unknown),
        Just(WhyNotStored::Soon),
        Just(WhyNotStored::Busy),
        Just(WhyNotStored::Full),
        Just(WhyNotStored::Elsewhere),
    ];
    let of_batches = prop_oneof![
        batches().prop_map(|batch| Message::Batch(Arc::new(batch))),
        keys().prop_map(Message::Stored),
        (keys(), ends()).prop_map(|(key, how)| Message::Refused(key, how)),
        (keys(), prop_oneof![Just(AskOrder::Behind), Just(AskOrder::Ahead)])
            .prop_map(|(key, order)| Message::AskStored(key, order)),
        (keys(), not_stored).prop_map(|(key, why)| Message::NotStored(key, why)),
        (slots(), any::<(u64, bool)>(), btree_map(streams(), numbers(), FEW))
            .prop_map(|(slot, (round, asks), has)| Message::Inventory { slot, round, asks, has }),
        vec(keys(), FEW).prop_map(Message::Fetch),
    ];
    let of_shuffles = prop_oneof![
        shuffles().prop_map(Message::Ask),
        (shuffles(), words()).prop_map(|(shuffle, word)| Message::Word(shuffle, word)),
        shuffles().prop_map(Message::Dropped),
        (shuffles(), slots()).prop_map(|(shuffle, slot)| Message::MakeRoom(shuffle, slot)),
        (shuffles(), slots()).prop_map(|(shuffle, slot)| Message::Lacks(shuffle, slot)),
        (shuffles(), option::of(attempts())).prop_map(|(shuffle, after)| Message::AskMarks(shuffle, after)),
        (shuffles(), option::of(attempts()), vec(marks(), FEW), any::<bool>())
            .prop_map(|(shuffle, after, marks, has_more)| Message::Marks { shuffle, after, marks, has_more }),
        (shuffles(), buffers(), sketches()).prop_map(|(shuffle, buffer, sketch)| Message::Sample(
            shuffle,
            buffer.node,
            buffer.incarnation,
            sketch
        )),
        divisions().prop_map(Message::Divide),
        (shuffles(), tasks(), buffers(), lasts())
            .prop_map(|(shuffle, task, by, last)| Message::Divided(shuffle, task, by, last)),
        (epochs(), plans(), slots()).prop_map(|(epoch, plan, slot)| Message::Count(epoch, plan, slot)),
        (shuffles(), epochs(), slots(), counts)
            .prop_map(|(shuffle, epoch, slot, counts)| Message::Counted(shuffle, epoch, slot, counts)),
    ];
    prop_oneof![of_logs, of_batches, of_shuffles]
}

fn packed() -> impl Strategy<Value = PackedRecords> {
    vec(records(), FEW).prop_map(PackedRecords::from)
}

fn refusals() -> impl Strategy<Value = Refusal> {
    let word = proptest::sample::select(RefusalWord::ALL);
    let again = prop_oneof![Just(Again::No), Just(Again::Request), Just(Again::Attempt)];
    (word, again, ".{0,40}").prop_map(|(word, again, why)| Refusal { word, again, why })
}

fn cut_by() -> impl Strategy<Value = CutBy> {
    prop_oneof![Just(CutBy::Records), Just(CutBy::Bytes), Just(CutBy::Keys)]
}

/// Every kind of request of a client.
pub fn requests() -> impl Strategy<Value = Call<Request>> {
    let interval = (bytes(), option::of(bytes()));
    let of_attempts = prop_oneof![
        (any::<(u32, u128)>(), terms()).prop_map(|((partition, id), terms)| Request::Open(
            partition,
            AttemptId(id),
            terms
        )),
        (any::<u64>(), packed()).prop_map(|(number, records)| Request::Records(number, records)),
        any::<(u64, u64)>().prop_map(|(records, bytes)| Request::End(records, bytes)),
        Just(Request::Abort),
    ];
    let of_reads = prop_oneof![
        (any::<(u64, u64)>(), cut_by()).prop_map(|((i, n), by)| Request::ReadPartition(i, n, by)),
        (any::<(u64, u64)>(), cut_by()).prop_map(|((i, n), by)| Request::ReadPartitionNear(i, n, by)),
        interval.clone().prop_map(|(first, end)| Request::ReadKeys(first, end)),
        (any::<(u64, u64, u64)>(), option::of(interval))
            .prop_map(|((range, begin, end), keys)| Request::ReadSlice(range, keys, begin, end)),
        any::<(u64, u64)>().prop_map(|(begin, end)| Request::ReadRanks(begin, end)),
        (any::<u64>(), cut_by()).prop_map(|(n, by)| Request::Bounds(n, by)),
        any::<u64>().prop_map(Request::HeavyKeys),
    ];
    let of_shuffles = prop_oneof![
        (terms(), options()).prop_map(|(terms, options)| Request::Start(terms, options)),
        btree_set(any::<u32>(), FEW).prop_map(Request::Seal),
        Just(Request::Status),
        Just(Request::KeepAlive),
        Just(Request::Delete),
    ];
    (any::<u64>(), shuffles(), prop_oneof![of_attempts, of_reads, of_shuffles])
        .prop_map(|(number, shuffle, what)| Call { number, shuffle, what })
}

/// Every kind of answer to a client.
pub fn answers() -> impl Strategy<Value = Call<Answer>> {
    let stage = prop_oneof![Just(Stage::Open), Just(Stage::Sealed), Just(Stage::Failed)];
    let status = (stage, any::<(u64, u64, u64, u32, u32)>(), ".{0,40}").prop_map(
        |(stage, (winners, records, bytes, version, ranges), waits_for)| Status {
            stage,
            winners,
            records,
            bytes,
            version,
            ranges,
            waits_for,
        },
    );
    let heavy =
        (bytes(), any::<(u64, u64)>()).prop_map(|(key, (first, records))| HeavyKey { key, first, records });
    let heavy = (any::<u64>(), vec(heavy, FEW)).prop_map(|(total, keys)| Answer::HeavyKeys(total, keys));
    let what = prop_oneof![
        (terms(), vec(shuffles(), FEW)).prop_map(|(terms, numbers)| Answer::Started(terms, numbers)),
        Just(Answer::Opened),
        any::<u64>().prop_map(Answer::Taken),
        any::<(u64, u64)>().prop_map(|(records, bytes)| Answer::Sealed(records, bytes)),
        vec(any::<u32>(), FEW).prop_map(Answer::Lacks),
        packed().prop_map(Answer::Read),
        any::<(u64, u64)>().prop_map(|(records, bytes)| Answer::ReadEnd(records, bytes)),
        nodes().prop_map(Answer::ReadAt),
        prop_oneof![vec(bytes(), FEW).prop_map(Answer::Bounds), heavy],
        status.prop_map(Answer::Status),
        prop_oneof![Just(Answer::Whole), Just(Answer::Alive), Just(Answer::Deleted)],
    ];
    let what = prop_oneof![9 => what, 1 => refusals().prop_map(Answer::Refused)];
    (any::<u64>(), shuffles(), what).prop_map(|(number, shuffle, what)| Call { number, shuffle, what })
}

/// What is said about a connection itself.
pub fn controls() -> impl Strategy<Value = Control> {
    let peers = (nodes(), any::<u64>())
        .prop_map(|(node, incarnation)| Peer { node, incarnation: Incarnation(incarnation) });
    prop_oneof![
        (peers.clone(), nodes()).prop_map(|(from, to)| Control::Hello(Hello::Node(from, to))),
        Just(Control::Hello(Hello::Client)),
        peers.prop_map(Control::Welcome),
        refusals().prop_map(Control::Goodbye),
        Just(Control::Ping),
        Just(Control::Pong),
    ]
}
