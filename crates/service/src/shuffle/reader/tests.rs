//! Holders in turn, retries, and the ends of partitions.

use super::*;
use crate::shuffle::plan::{Placed, PlanRange};
use crate::shuffle::pool::SlotPlace;
use crate::shuffle::{AttemptKey, BufferId, PoolSlot, ShuffleId};
use partage_core::base::id::Epoch;
use std::collections::BTreeMap;

const RECORDS: u64 = 10;

fn reader(settings: Settings) -> Reader {
    Reader::of_partition(plan_and_map(), settings, (0, 1, CutBy::Records))
}

fn plan_and_map() -> (Arc<Plan>, Arc<PoolMap>) {
    let nodes: Vec<NodeId> = ["a", "b", "c"].map(|name| NodeId::new(name).unwrap()).to_vec();
    let place = SlotPlace { epoch: Epoch(1), live: nodes[..2].to_vec(), loading: Vec::new() };
    let map = PoolMap {
        generation: 1,
        replicas: 2,
        places: vec![place],
        nodes: nodes.clone(),
        no_stand_ins: Default::default(),
    };
    let buffer = BufferId { node: nodes[0].clone(), incarnation: partage_core::base::id::Incarnation(1) };
    let winner = crate::shuffle::plan::Winner { partition: 0, records: RECORDS, bytes: 0 };
    let range = PlanRange {
        id: RangeId(1),
        since: 1,
        begins: [].as_slice().into(),
        slot: PoolSlot(0),
        records: RECORDS,
        bytes: 0,
    };
    let plan = Plan {
        shuffle: ShuffleId(1),
        winners: Arc::new([(AttemptKey { buffer, number: 1 }, winner)].into()),
        needed: BTreeMap::new(),
        ranges: vec![range],
    };
    (Arc::new(plan), Arc::new(map))
}

fn asked(effects: &[Effect]) -> Option<(String, u64, u64)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Ask(node, number, slice) => Some((node.to_string(), *number, slice.from)),
        _ => None,
    })
}

fn placed(index: u32) -> Placed {
    let nothing = bytes::Bytes::new;
    Placed { key: nothing(), partition: 0, frame: 1, index, value: nothing() }
}

fn records(count: u64) -> OrderedRecords {
    let all: Vec<Placed> = (0..count as u32).map(placed).collect();
    OrderedRecords::of(&all).unwrap()
}

#[test]
fn x9_one_holder_goes_on_where_another_has_stopped() {
    let mut reader = reader(Settings { read_records: 4, ..Settings::default() });
    let first = reader.handle(Millis(0), Event::Tick);
    assert_eq!(asked(&first), Some(("a".to_owned(), 1, 0)));
    let next = reader.handle(Millis(1), Event::Answer(1, Ok(records(4))));
    assert_eq!(asked(&next), Some(("a".to_owned(), 2, 4)));
    let other = reader.handle(Millis(2), Event::Answer(2, Err(NotRead::Busy)));
    assert_eq!(asked(&other), Some(("b".to_owned(), 3, 4)));
    assert_eq!(reader.handle(Millis(3), Event::Answer(2, Ok(records(4)))), [], "a late answer is none");
    let silent = reader.handle(Millis(2 + 2_000), Event::Tick);
    assert_eq!(asked(&silent), Some(("c".to_owned(), 4, 4)), "also who may stand in is asked");
    reader.handle(Millis(2_003), Event::Answer(4, Ok(records(4))));
    let last = reader.handle(Millis(2_004), Event::Answer(5, Ok(records(2))));
    assert_eq!(last, [Effect::Records(records(2)), Effect::Done]);
    assert_eq!(reader.wake_at(), Millis::NEVER);
}

/// The same, of so many ranges.
fn of_ranges(count: u64) -> (Arc<Plan>, Arc<PoolMap>) {
    let (plan, map) = plan_and_map();
    let range = |id: u64| PlanRange {
        id: RangeId(id),
        begins: [id as u8].as_slice().into(),
        ..plan.ranges[0].clone()
    };
    let ranges = (0..count).map(range).collect();
    (Arc::new(Plan { ranges, ..Plan::clone(&plan) }), map)
}

/// The nodes that a reader of all records asks, each of which answers as it is told.
fn asked_in_turn(
    mut reader: Reader,
    answer: impl Fn(&str) -> Option<Result<OrderedRecords, NotRead>>,
) -> Vec<String> {
    let (mut now, mut all) = (0, Vec::new());
    let mut effects = reader.handle(Millis(now), Event::Tick);
    while let Some((node, number, _)) = asked(&effects) {
        effects = match answer(&node) {
            Some(answer) => reader.handle(Millis(now), Event::Answer(number, answer)),
            None => {
                now = reader.wake_at().0;
                reader.handle(Millis(now), Event::Tick)
            }
        };
        all.push(node);
    }
    assert_eq!(effects.last(), Some(&Effect::Done));
    all
}

#[test]
fn x9_all_readers_begin_with_the_same_holder_of_a_range_and_of_each_range_with_another_one() {
    let read = |(i, n), turn| {
        let reader =
            Reader::of_partition(of_ranges(4), Settings::default(), (i, n, CutBy::Records)).with_turn(turn);
        asked_in_turn(reader, |_| Some(Ok(records(RECORDS))))
    };
    assert_eq!(read((0, 1), 0), ["a", "b", "a", "b"]);
    assert_eq!([read((0, 2), 0), read((1, 2), 0)].concat(), ["a", "b", "a", "b"]);
    assert_eq!(read((0, 1), 1), ["b", "a", "b", "a"]);
    let (plan, map) = of_ranges(4);
    let first = |n: u64| -> Vec<String> {
        let holders = plan.holders_of_partitions(&map, n);
        (0..n).map(|i| holders(i)[0].to_string()).collect()
    };
    assert_eq!(first(4), ["a", "b", "a", "b"]);
    assert_eq!(first(8), ["a", "a", "b", "b", "a", "a", "b", "b"]);
    // The middle of all is where the third one begins.
    assert_eq!((first(1), first(40).len()), (vec!["a".to_owned()], 40));
    assert!(Plan { ranges: Vec::new(), ..Plan::clone(&plan) }.holders_of_partitions(&map, 1)(0).is_empty());
}

#[test]
fn x9_a_holder_that_was_silent_is_not_waited_for_again() {
    let reader = || Reader::of_partition(of_ranges(6), Settings::default(), (0, 1, CutBy::Records));
    let silent = |of: &'static str| move |node: &str| (node != of).then(|| Ok(records(RECORDS)));
    assert_eq!(asked_in_turn(reader(), silent("a")), ["a", "b", "b", "b", "b", "b", "b"]);
    assert_eq!(asked_in_turn(reader(), silent("b")), ["a", "b", "a", "a", "a", "a", "a"]);
    // One that refuses may have the next range.
    let refuses = |node: &str| Some(if node == "a" { Err(NotRead::Lacks) } else { Ok(records(RECORDS)) });
    assert_eq!(asked_in_turn(reader(), refuses), ["a", "b", "b", "a", "b", "b", "a", "b", "b"]);
}

#[test]
fn x9_a_holder_that_is_not_reached_is_passed_over_at_once_and_a_round_of_these_takes_its_time() {
    let settings = Settings { retry_budget: 1, back_off_ms: 10, ..Settings::default() };
    let mut reader = reader(settings.clone());
    let mut effects = reader.handle(Millis(0), Event::Tick);
    for (number, node) in (1..).zip(["a", "b", "c"]) {
        assert_eq!(asked(&effects), Some((node.to_owned(), number, 0)));
        assert_eq!(
            reader.handle(Millis(0), Event::NotReached(number + 1)),
            [],
            "it is about another question"
        );
        effects = reader.handle(Millis(0), Event::NotReached(number));
    }
    assert_eq!((effects.len(), reader.wake_at()), (0, Millis(settings.read_wait_ms)));
    let next = reader.handle(reader.wake_at(), Event::Tick);
    assert_eq!(asked(&next), Some(("a".to_owned(), 4, 0)), "all were silent");
    // A round without such a holder rests as before.
    let mut now = settings.read_wait_ms;
    for number in 4..7 {
        now += 1;
        effects = reader.handle(Millis(now), Event::Answer(number, Err(NotRead::Lacks)));
    }
    assert_eq!(effects, [Effect::Failed(Failed::NoHolder(RangeId(1), Some(NotRead::Lacks)))]);
}

#[test]
fn x9_a_stand_in_that_gives_goes_on_to_give_as_long_as_it_is_in_the_pool() {
    let (plan, map) = plan_and_map();
    let mut reader = Reader::of_partition(
        (plan, Arc::clone(&map)),
        Settings { read_records: 2, ..Settings::default() },
        (0, 1, CutBy::Records),
    );
    reader.handle(Millis(0), Event::Tick);
    reader.handle(Millis(0), Event::Answer(1, Err(NotRead::Lacks)));
    let third = reader.handle(Millis(0), Event::Answer(2, Err(NotRead::Lacks)));
    assert_eq!(asked(&third), Some(("c".to_owned(), 3, 0)));
    let more = reader.handle(Millis(0), Event::Answer(3, Ok(records(2))));
    assert_eq!(asked(&more), Some(("c".to_owned(), 4, 2)));
    let without = PoolMap { generation: 2, nodes: map.nodes[..2].to_vec(), ..PoolMap::clone(&map) };
    reader.handle(Millis(0), Event::Map(Arc::new(without)));
    let more = reader.handle(Millis(0), Event::Answer(4, Ok(records(2))));
    assert_eq!(asked(&more), Some(("a".to_owned(), 5, 4)));
}

#[test]
fn r1_a_holder_that_sorts_is_asked_again_and_takes_nothing_from_the_budget() {
    let mut reader = reader(Settings { retry_budget: 1, back_off_ms: 10, ..Settings::default() });
    let mut effects = reader.handle(Millis(0), Event::Tick);
    for number in 1..=100 {
        let now = 10 * (number - 1);
        assert_eq!(asked(&effects), Some(("a".to_owned(), number, 0)), "always the same one");
        assert_eq!(reader.handle(Millis(now), Event::Answer(number, Err(NotRead::Sorts))), []);
        assert_eq!(reader.wake_at(), Millis(now + 10));
        effects = reader.handle(Millis(now + 10), Event::Tick);
    }
    let next = reader.handle(Millis(2_000), Event::Answer(101, Err(NotRead::Busy)));
    assert_eq!(asked(&next), Some(("b".to_owned(), 102, 0)));
}

#[test]
fn r1_a_holder_may_give_fewer_records_than_were_asked_for() {
    let mut reader = reader(Settings::default());
    reader.handle(Millis(0), Event::Tick);
    let next = reader.handle(Millis(1), Event::Answer(1, Ok(records(3))));
    assert_eq!(asked(&next), Some(("a".to_owned(), 2, 3)));
    let last = reader.handle(Millis(2), Event::Answer(2, Ok(records(RECORDS - 3))));
    assert_eq!(last, [Effect::Records(records(RECORDS - 3)), Effect::Done]);
}

#[test]
fn d6_a_holder_that_gives_none_or_too_many_is_not_believed() {
    let mut reader = reader(Settings { read_records: 4, retry_budget: 0, ..Settings::default() });
    assert_eq!(asked(&reader.handle(Millis(0), Event::Tick)), Some(("a".to_owned(), 1, 0)));
    let none = reader.handle(Millis(1), Event::Answer(1, Ok(records(0))));
    assert_eq!((none.len(), asked(&none)), (1, Some(("b".to_owned(), 2, 0))));
    let many = reader.handle(Millis(2), Event::Answer(2, Ok(records(5))));
    assert_eq!((many.len(), asked(&many)), (1, Some(("c".to_owned(), 3, 0))));
    let last = reader.handle(Millis(3), Event::Answer(3, Ok(records(0))));
    let failed = Failed::NoHolder(RangeId(1), Some(NotRead::Differs));
    assert_eq!(last, [Effect::Failed(failed)]);
    // Records are no answer to who seeks.
    let mut seeks = Reader::of_partition(plan_and_map(), Settings::default(), (1, 3, CutBy::Keys));
    seeks.handle(Millis(0), Event::Tick);
    let wrong = seeks.handle(Millis(1), Event::Answer(1, Ok(records(3))));
    assert_eq!(sought(&wrong).map(|(node, ..)| node), Some("b".to_owned()));
}

#[test]
fn r1_a_holder_may_give_fewer_records_of_an_interval_of_keys_too() {
    let keys: (Bytes, Option<Bytes>) = ([].as_slice().into(), Some(b"m".as_slice().into()));
    let mut reader = Reader::of_keys(plan_and_map(), Settings::default(), keys);
    reader.handle(Millis(0), Event::Tick);
    let next = reader.handle(Millis(1), Event::Answer(1, Ok(records(3))));
    assert_eq!(asked(&next), Some(("a".to_owned(), 2, 3)));
    let next = reader.handle(Millis(2), Event::Answer(2, Ok(records(2))));
    assert_eq!(asked(&next), Some(("a".to_owned(), 3, 5)));
    // How many of the range lie in the interval only the holder knows.
    assert_eq!(reader.handle(Millis(3), Event::Answer(3, Ok(records(0)))), [Effect::Done]);
    let all: (Bytes, Option<Bytes>) = ([].as_slice().into(), None);
    let mut reader = Reader::of_keys(plan_and_map(), Settings::default(), all);
    reader.handle(Millis(0), Event::Tick);
    let last = reader.handle(Millis(1), Event::Answer(1, Ok(records(RECORDS))));
    assert_eq!(last, [Effect::Records(records(RECORDS)), Effect::Done], "it has no more than are counted");
}

fn sought(effects: &[Effect]) -> Option<(String, u64, SeekFor)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Seek(node, number, seek) => Some((node.to_string(), *number, seek.what.clone())),
        _ => None,
    })
}

fn at(records: impl IntoIterator<Item = u64>) -> Found {
    let cut = |record| partition::CutAt { record, key: None };
    Found::Cuts(records.into_iter().map(cut).collect())
}

#[test]
fn x13_the_ends_of_a_partition_are_asked_for_and_then_its_records_are_read() {
    let mut reader = Reader::of_partition(plan_and_map(), Settings::default(), (1, 3, CutBy::Keys));
    let keys = |offset| SeekFor::Cuts(CutBy::Keys, [offset].into());
    let first = reader.handle(Millis(0), Event::Tick);
    assert_eq!((sought(&first), asked(&first)), (Some(("a".to_owned(), 1, keys(3))), None));
    let other = reader.handle(Millis(1), Event::Answer(1, Err(NotRead::Lacks)));
    assert_eq!(sought(&other), Some(("b".to_owned(), 2, keys(3))));
    let wrong = reader.handle(Millis(2), Event::Found(2, at([])));
    assert_eq!(sought(&wrong), Some(("c".to_owned(), 3, keys(3))), "no cut is no answer");
    let second = reader.handle(Millis(3), Event::Found(3, at([2])));
    assert_eq!(sought(&second), Some(("c".to_owned(), 4, keys(6))), "who has given goes on to give");
    assert_eq!(reader.handle(Millis(3), Event::Found(3, at([9]))), [], "a late answer is none");
    let read = reader.handle(Millis(4), Event::Found(4, at([7])));
    assert_eq!(asked(&read), Some(("c".to_owned(), 5, 2)));
    let last = reader.handle(Millis(5), Event::Answer(5, Ok(records(5))));
    assert_eq!(last, [Effect::Records(records(5)), Effect::Done]);
}

#[test]
fn x13_a_partition_between_two_equal_cuts_is_empty_and_ranks_need_no_question() {
    let mut reader = Reader::of_partition(plan_and_map(), Settings::default(), (1, 3, CutBy::Keys));
    reader.handle(Millis(0), Event::Tick);
    reader.handle(Millis(1), Event::Found(1, at([10])));
    assert_eq!(reader.handle(Millis(2), Event::Found(2, at([10]))), [Effect::Done]);
    let mut reader = Reader::of_ranks(plan_and_map(), Settings::default(), (4, 7));
    assert_eq!(asked(&reader.handle(Millis(0), Event::Tick)), Some(("a".to_owned(), 1, 4)));
    let last = reader.handle(Millis(1), Event::Answer(1, Ok(records(3))));
    assert_eq!(last, [Effect::Records(records(3)), Effect::Done]);
    for none in [(7, 4), (10, 20), (u64::MAX, u64::MAX)] {
        let mut reader = Reader::of_ranks(plan_and_map(), Settings::default(), none);
        assert_eq!(reader.handle(Millis(0), Event::Tick), [Effect::Done], "{none:?}");
    }
}

#[test]
fn r1_what_was_not_found_at_once_is_sought_again() {
    let cuts = |offsets: &[u64]| SeekFor::Cuts(CutBy::Records, offsets.iter().copied().collect());
    let mut reader = Reader::of_seeks(plan_and_map(), Settings::default(), [(0, cuts(&[1, 5, 9]))]);
    assert_eq!(sought(&reader.handle(Millis(0), Event::Tick)), Some(("a".to_owned(), 1, cuts(&[1, 5, 9]))));
    let part = reader.handle(Millis(1), Event::Found(1, at([1, 5])));
    assert_eq!(part[0], Effect::Found(0, cuts(&[1, 5, 9]), at([1, 5])));
    assert_eq!(sought(&part), Some(("a".to_owned(), 2, cuts(&[9]))));
    let last = reader.handle(Millis(2), Event::Found(2, at([9])));
    assert_eq!(last, [Effect::Found(0, cuts(&[9]), at([9])), Effect::Done]);
}

#[test]
fn x9_who_answers_with_records_what_was_sought_is_followed_by_the_next_holder() {
    let cuts = || SeekFor::Cuts(CutBy::Records, [1].into());
    let mut reader = Reader::of_seeks(plan_and_map(), Settings::default(), [(0, cuts())]);
    assert_eq!(sought(&reader.handle(Millis(0), Event::Tick)), Some(("a".to_owned(), 1, cuts())));
    let next = reader.handle(Millis(1), Event::Answer(1, Ok(records(1))));
    assert_eq!(sought(&next), Some(("b".to_owned(), 2, cuts())));
}

#[test]
fn a_slice_has_the_keys_of_its_interval_and_of_them_the_ranks() {
    let (plan, _) = plan_and_map();
    let all =
        OrderedRecords::of(&[1, 3, 3, 5, 7, 9].map(|key: u8| Placed { key: vec![key].into(), ..placed(0) }));
    let all = all.unwrap();
    let key = |key: u8| Bytes::from([key].as_slice());
    let cases = [
        (None, (0, 2), 0..2),
        (None, (4, u64::MAX), 4..6),
        (Some((key(0), None)), (0, 9), 0..6),
        (Some((key(3), Some(key(7)))), (0, 9), 1..4),
        (Some((key(3), Some(key(7)))), (1, 2), 2..3),
        (Some((key(3), Some(key(7)))), (3, 9), 0..0),
        (Some((key(4), Some(key(5)))), (0, 9), 0..0),
        (Some((key(9), Some(key(1)))), (0, 9), 0..0),
    ];
    for (keys, (from, to), found) in cases {
        let slice = Slice { plan: plan.clone(), range: 0, keys, from, to };
        assert_eq!(slice.of(&all), all.slice(found), "{from} {to}");
    }
}

#[test]
fn r3_when_all_have_failed_it_waits_longer_each_time_until_its_budget_is_used_up() {
    let settings =
        Settings { retry_budget: 3, back_off_ms: 10, longest_back_off_ms: 25, ..Settings::default() };
    let mut reader = reader(settings);
    let (mut now, mut number, mut rests) = (0, 0, Vec::new());
    let failed = loop {
        let mut effects = reader.handle(Millis(now), Event::Tick);
        while asked(&effects).is_some() {
            number += 1;
            effects = reader.handle(Millis(now), Event::Answer(number, Err(NotRead::Lacks)));
        }
        if let Some(Effect::Failed(why)) = effects.first() {
            break *why;
        }
        rests.push(reader.wake_at().0 - now);
        now = reader.wake_at().0;
    };
    assert_eq!(failed, Failed::NoHolder(RangeId(1), Some(NotRead::Lacks)));
    assert_eq!((rests, number), (vec![10, 20, 25], 12));
}

/// How a read fails by what three holders answer in its last round; none: one is silent.
fn fails(earlier: NotRead, answers: [Option<NotRead>; 3]) -> Option<NotRead> {
    let settings = Settings { retry_budget: 1, back_off_ms: 10, ..Settings::default() };
    let mut reader = reader(settings.clone());
    let (mut now, mut number) = (0, 0);
    for answer in [Some(earlier); 3].into_iter().chain(answers) {
        reader.handle(Millis(now), Event::Tick);
        number += 1;
        now += settings.read_wait_ms;
        let effects = match answer {
            Some(refusal) => reader.handle(Millis(now), Event::Answer(number, Err(refusal))),
            None => reader.handle(Millis(now), Event::Tick),
        };
        if let Some(Effect::Failed(failed)) = effects.last() {
            assert_eq!(number, 6);
            let Failed::NoHolder(_, refusal) = failed else { panic!("{failed:?}") };
            return *refusal;
        }
        now += 10;
    }
    panic!("it does not fail");
}

#[test]
fn a_read_that_fails_tells_what_says_most_of_its_last_round() {
    use NotRead::{Busy, Differs, Lacks, ObjectLost, ObjectStore};
    let lost = [Some(ObjectLost), Some(ObjectLost), Some(Lacks)];
    assert_eq!(fails(Lacks, lost), Some(ObjectLost));
    assert_eq!(fails(ObjectStore, lost), Some(ObjectLost), "an earlier round is over");
    assert_eq!(fails(Lacks, [Some(Lacks), Some(ObjectStore), Some(ObjectLost)]), Some(ObjectStore));
    assert_eq!(fails(Lacks, [Some(Differs), Some(ObjectLost), Some(Lacks)]), Some(Differs));
    // Who is busy or silent may have it.
    for one in [Some(Busy), None] {
        assert_eq!(fails(Lacks, [one, Some(ObjectLost), Some(Lacks)]), Some(Busy));
        assert_eq!(fails(Lacks, [Some(ObjectLost), Some(Lacks), one]), Some(Busy));
    }
    assert_eq!(fails(Lacks, [None, None, None]), None);
}
