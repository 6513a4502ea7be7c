//! How a leader gathers the marks of whole attempts from a node that has more than one message may have, and what it has under
//! way at a time while it seals.

use super::*;
use crate::shuffle::holder::{self, Holder};
use crate::shuffle::plan::Winner;
use crate::shuffle::pool::SlotPlace;
use crate::shuffle::record::{BatchKey, EndMark, Stream};
use crate::shuffle::sketch::Sketch;
use crate::shuffle::{AttemptId, AttemptKey, BufferId, Durability, RangeId, TaskId, Writer};
use partage_core::base::id::Incarnation;
use partage_core::limits;

mod sampling;

const SHUFFLE: ShuffleId = ShuffleId(7);
const SLOT: PoolSlot = PoolSlot(0);
const MARKS: u32 = 20;
/// Four marks fit into a message.
const PARTS: usize = 5;

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// `a` leads, and `b` has the marks.
fn map() -> Arc<PoolMap> {
    let place = SlotPlace { epoch: Epoch(1), live: vec![node("a")], loading: Vec::new() };
    Arc::new(PoolMap {
        generation: 1,
        replicas: 1,
        places: vec![place],
        nodes: vec![node("a"), node("b")],
        no_stand_ins: Default::default(),
    })
}

fn settings() -> Settings {
    Settings { marks_bytes: 400, ..Settings::default() }
}

impl Leader {
    fn synced(&mut self, upto: u64) -> Vec<Effect> {
        self.handle(Millis(0), Event::Message(node("a"), Message::Appended(SLOT, Epoch(1), upto)))
    }

    /// Is called with ticks in time. What it does at the last one.
    fn ticks(&mut self, from: u64, to: u64) -> Vec<Effect> {
        let every = usize::try_from(settings().resend_ms).unwrap();
        for at in (from..to).step_by(every) {
            self.handle(Millis(at), Event::Tick);
        }
        self.handle(Millis(to), Event::Tick)
    }
}

/// A leader of one open shuffle.
fn leader() -> Leader {
    leader_of(ShuffleOptions::default())
}

const TERMS: Terms = Terms::new(1, 1);

fn leader_of(options: ShuffleOptions) -> Leader {
    leader_as(TERMS, options)
}

fn leader_as(terms: Terms, options: ShuffleOptions) -> Leader {
    let decisions = Decisions { epoch: Epoch(1), ..Decisions::default() };
    let mut leader = Leader::begin(Millis(0), SLOT, settings(), map(), decisions);
    leader.handle(Millis(0), Event::Tick);
    leader.synced(0);
    leader.handle(Millis(0), Event::Request(1, SHUFFLE, Request::Start(terms, options)));
    assert!(leader.synced(1).contains(&Effect::Answer(1, Ok(Answer::Started(terms)))));
    leader
}

fn holder() -> Holder {
    let buffer = BufferId { node: node("b"), incarnation: Incarnation(1) };
    let stream = Stream { shuffle: SHUFFLE, slot: SLOT, writer: Writer::Buffer(buffer.clone()) };
    let batch = |partition: u32| {
        let attempt = AttemptKey { buffer: buffer.clone(), number: partition.into() };
        let (id, last) = (AttemptId(partition.into()), [(SLOT, 1)].into());
        let mark = EndMark { attempt, partition, id, records: 1, bytes: 1, last };
        (BatchKey { stream: stream.clone(), number: u64::from(partition) + 1 }, Some(mark))
    };
    let stored = holder::Stored { batches: (0..MARKS).map(batch).collect(), ..holder::Stored::default() };
    Holder::recover(Millis(0), (node("b"), Incarnation(1)), settings(), map(), stored)
}

/// What `b` is asked for.
fn asks(effects: &[Effect]) -> Vec<Message> {
    let ask = |effect: &Effect| match effect {
        Effect::Send(to, message @ Message::AskMarks(..)) if *to == node("b") => Some(message.clone()),
        _ => None,
    };
    effects.iter().filter_map(ask).collect()
}

/// The holder's answer, which has one to four marks.
fn answer(holder: &mut Holder, now: Millis, ask: Message) -> Message {
    let effects = holder.handle(now, holder::Event::Message(node("a"), ask));
    match &effects[..] {
        [holder::Effect::Send(_, message @ Message::Marks { marks, .. })] => {
            assert!((1..=4).contains(&marks.len()));
            message.clone()
        }
        other => panic!("{other:?}"),
    }
}

fn seal(partitions: u32) -> Event {
    Event::Request(2, SHUFFLE, Request::Seal((0..partitions).collect()))
}

#[test]
fn marks_come_in_parts_and_a_part_that_is_lost_is_asked_for_again() {
    let (mut leader, mut holder, mut now) = (leader(), holder(), Millis(0));
    let mut asked = asks(&leader.handle(now, seal(MARKS)));
    let mut parts = 0;
    let last = loop {
        assert_eq!(asked.len(), 1, "one part at a time: {asked:?}");
        let part = answer(&mut holder, now, asked.remove(0));
        parts += 1;
        if parts == 2 {
            // It is lost: what came before need not come again.
            now = now + settings().resend_ms;
            asked = asks(&leader.handle(now, Event::Tick));
            assert!(matches!(&asked[..], [Message::AskMarks(_, Some(_))]), "{asked:?}");
            continue;
        }
        let come = |part: &Message| Event::Message(node("b"), part.clone());
        let effects = leader.handle(now, come(&part));
        // One that comes twice changes nothing.
        assert_eq!(asks(&leader.handle(now, come(&part))), []);
        asked = asks(&effects);
        if asked.is_empty() {
            break effects;
        }
    };
    assert_eq!(parts, PARTS + 1);
    // With a winner of each partition it goes on: the first step are bounds.
    let is_bounds = |effect: &Effect| match effect {
        Effect::Send(_, Message::Append(Append { what: What::After(_, decisions), .. })) => {
            matches!(&decisions[..], [(SHUFFLE, Decision::Bounds(_))])
        }
        _ => false,
    };
    assert!(last.iter().any(is_bounds), "{last:?}");
}

#[test]
fn x7_a_later_seal_that_names_a_partition_more_is_refused_by_that_partition() {
    let ask =
        |number, partitions: u32| Event::Request(number, SHUFFLE, Request::Seal((0..partitions).collect()));
    let refused = |number| Effect::Answer(number, Err(Failed::NotExpected(2)));
    let mut sealing = leader();
    sealing.handle(Millis(0), ask(2, 2));
    assert!(sealing.handle(Millis(1), ask(3, 3)).contains(&refused(3)), "the first one is under way");

    let buffer = BufferId { node: node("b"), incarnation: Incarnation(1) };
    let winner = |partition: u32| {
        let attempt = AttemptKey { buffer: buffer.clone(), number: partition.into() };
        (attempt, Winner { partition, records: 0, bytes: 0 })
    };
    let winners = Arc::new((0..2).map(winner).collect());
    let plan = Arc::new(Plan { shuffle: SHUFFLE, winners, needed: BTreeMap::new(), ranges: Vec::new() });
    let mut decisions = Decisions { epoch: Epoch(1), ..Decisions::default() };
    decisions.push(SHUFFLE, Decision::Start(Terms::new(1, 1), Arc::default()), 9);
    decisions.push(SHUFFLE, Decision::Sealed(plan.clone()), 9);
    let mut sealed = Leader::begin(Millis(0), SLOT, settings(), map(), decisions);
    sealed.handle(Millis(0), Event::Tick);
    sealed.synced(2);
    let is_sealed = |number| Effect::Answer(number, Ok(Answer::Sealed(plan.clone())));
    assert_eq!(sealed.handle(Millis(1), ask(4, 2)), [is_sealed(4)]);
    assert_eq!(sealed.handle(Millis(1), ask(5, 3)), [refused(5)]);
}

#[test]
fn r1_terms_in_a_log_are_not_believed_beyond_the_limit() {
    let mut decisions = Decisions { epoch: Epoch(1), ..Decisions::default() };
    decisions.push(SHUFFLE, Decision::Start(Terms::new(u32::MAX, u32::MAX), Arc::default()), 9);
    let mut leader = Leader::begin(Millis(0), SLOT, settings(), map(), decisions);
    leader.handle(Millis(0), Event::Tick);
    assert!(!leader.has_begun());
    leader.synced(1);
    assert!(leader.has_begun());
    let most = Terms::new(limits::SHUFFLE_RANGES, limits::SHUFFLE_RANGES);
    let again =
        leader.handle(Millis(1), Event::Request(2, SHUFFLE, Request::Start(most, ShuffleOptions::default())));
    assert_eq!(again, [Effect::Answer(2, Ok(Answer::Started(most)))]);
}

#[test]
fn partitions_that_lack_an_attempt_are_listed_though_parts_come_again_and_again() {
    let (mut leader, mut holder, mut now) = (leader(), holder(), Millis(0));
    let mut effects = leader.handle(now, seal(MARKS + 1));
    let mut rounds = 0;
    loop {
        if let Some(ask) = asks(&effects).pop() {
            let part = answer(&mut holder, now, ask);
            effects = leader.handle(now, Event::Message(node("b"), part));
            continue;
        }
        let lacks = Effect::Answer(2, Ok(Answer::Lacks(vec![MARKS])));
        if effects.contains(&lacks) {
            break;
        }
        rounds += 1;
        assert!(rounds < 20, "nobody hears that a partition lacks an attempt");
        now = now + settings().resend_ms;
        effects = leader.handle(now, Event::Tick);
    }
    assert!(now.since(Millis(0)) >= settings().gather_ms);
}

/// Whether it is decided that the shuffle has expired.
fn expires(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| match effect {
        Effect::Send(_, Message::Append(Append { what: What::After(_, decisions), .. })) => {
            matches!(&decisions[..], [(SHUFFLE, Decision::Ended(Ended::Expired))])
        }
        _ => false,
    })
}

#[test]
fn a_shuffle_ends_by_its_own_time_to_live_and_without_one_by_the_settings() {
    let own = |unsealed, sealed| ShuffleOptions {
        unsealed_ttl_ms: unsealed,
        sealed_ttl_ms: sealed,
        ..ShuffleOptions::default()
    };
    let Settings { unsealed_ttl_ms, sealed_ttl_ms, .. } = settings();
    let cases = [
        (own(None, None), unsealed_ttl_ms, sealed_ttl_ms),
        (own(Some(20_000), None), 20_000, sealed_ttl_ms),
        (own(Some(2 * unsealed_ttl_ms), Some(15_000)), 2 * unsealed_ttl_ms, 15_000),
    ];
    let plan =
        Plan { shuffle: SHUFFLE, winners: Arc::default(), needed: BTreeMap::new(), ranges: Vec::new() };
    for (options, unsealed, sealed) in cases {
        let mut open = leader_of(options.clone());
        assert_eq!(open.overviews(Millis(7)).next().map(|told| told.ends_in_ms), Some(unsealed - 7));
        assert!(!expires(&open.ticks(0, unsealed - 1)), "{options:?}");
        // Who only looks does not use it.
        open.handle(Millis(unsealed - 1), Event::Request(2, SHUFFLE, Request::Overview));
        assert!(expires(&open.handle(Millis(unsealed), Event::Tick)), "{options:?}");

        let mut decisions = Decisions { epoch: Epoch(1), ..Decisions::default() };
        decisions.push(SHUFFLE, Decision::Start(TERMS, options.clone().into()), 9);
        decisions.push(SHUFFLE, Decision::Sealed(plan.clone().into()), 9);
        let mut whole = Leader::begin(Millis(0), SLOT, settings(), map(), decisions);
        whole.handle(Millis(0), Event::Tick);
        whole.synced(2);
        assert!(!expires(&whole.ticks(0, sealed - 1)), "{options:?}");
        whole.handle(Millis(sealed - 1), Event::Request(2, SHUFFLE, Request::KeepAlive));
        assert!(!expires(&whole.handle(Millis(sealed), Event::Tick)), "{options:?}");
        assert!(expires(&whole.ticks(sealed, 2 * sealed - 1)), "{options:?}");
    }
}

#[test]
fn d7_a_shuffle_does_not_expire_while_its_leader_is_paused() {
    let ttl = settings().unsealed_ttl_ms;
    let mut leader = leader();
    assert!(!expires(&leader.handle(Millis(2 * ttl), Event::Tick)), "it was paused");
    assert!(!expires(&leader.ticks(2 * ttl, 3 * ttl - 1)));
    assert!(expires(&leader.handle(Millis(3 * ttl), Event::Tick)), "it was not");
    // Who asks between the pause and the tick has no more time than others.
    let mut asked = self::leader();
    asked.handle(Millis(2 * ttl), Event::Request(2, SHUFFLE, Request::KeepAlive));
    assert!(!expires(&asked.ticks(2 * ttl, 3 * ttl - 1)));
    assert!(expires(&asked.handle(Millis(3 * ttl), Event::Tick)));
}

fn start_of(shuffle: u128) -> Event {
    Event::Request(shuffle as u64, ShuffleId(shuffle), Request::Start(TERMS, ShuffleOptions::default()))
}

#[test]
fn r1_while_a_replica_syncs_nothing_so_many_shuffles_are_started_and_no_more() {
    let mut leader = leader();
    let refused = |number: u128| vec![Effect::Answer(number as u64, Err(Failed::NotLeading))];
    let most = RECENT as u128;
    for shuffle in 100..100 + most {
        assert!(!decided(&leader.handle(Millis(0), start_of(shuffle))).is_empty(), "{shuffle}");
    }
    let next = 100 + most;
    assert_eq!(leader.handle(Millis(0), start_of(next)), refused(next));
    let unknown = Event::Message(node("b"), Message::Ask(ShuffleId(next)));
    assert_eq!(leader.handle(Millis(0), unknown), []);
    assert!(leader.recent.len() <= RECENT + 1);
    leader.synced(2);
    assert!(!decided(&leader.handle(Millis(0), start_of(next))).is_empty(), "there is room for one again");
}

#[test]
fn a_seal_that_comes_while_its_shuffle_is_started_waits_for_the_start() {
    let decisions = Decisions { epoch: Epoch(1), ..Decisions::default() };
    let mut leader = Leader::begin(Millis(0), SLOT, settings(), map(), decisions);
    leader.handle(Millis(0), Event::Tick);
    leader.synced(0);
    leader.handle(Millis(0), start_of(SHUFFLE.0));
    let sealed = leader.handle(Millis(0), seal(1));
    assert_eq!(decided(&sealed), [], "nobody says that it is not known");
    let effects = leader.synced(1);
    assert!(effects.contains(&Effect::Answer(7, Ok(Answer::Started(TERMS)))), "{effects:?}");
    assert!(!asks(&effects).is_empty(), "it is being sealed: {effects:?}");
}

#[test]
fn l1_who_waits_for_a_leader_that_is_dropped_hears_so() {
    let mut leader = leader();
    leader.handle(Millis(0), start_of(100));
    leader.handle(Millis(0), seal(1));
    let not_leading = |number| Effect::Answer(number, Err(Failed::NotLeading));
    assert_eq!(leader.handle(Millis(1), Event::Deposed), [not_leading(100), not_leading(2)]);
    assert_eq!(leader.handle(Millis(1), start_of(101)), [not_leading(101)]);
    assert_eq!(leader.wake_at(), Millis::NEVER);
}

#[test]
fn a_start_with_the_same_number_is_the_same_shuffle_or_says_in_what_it_differs() {
    let start = |number, owner: &str| {
        let options = ShuffleOptions { owner: owner.to_owned(), ..ShuffleOptions::default() };
        Event::Request(number, SHUFFLE, Request::Start(TERMS, options))
    };
    let decisions = Decisions { epoch: Epoch(1), ..Decisions::default() };
    let mut leader = Leader::begin(Millis(0), SLOT, settings(), map(), decisions);
    leader.handle(Millis(0), Event::Tick);
    leader.synced(0);
    leader.handle(Millis(0), start(1, "one"));
    // It is being started: what an owner has counts already.
    assert_eq!(leader.handle(Millis(0), start(2, "two")), []);
    assert!(leader.has(SHUFFLE));
    assert_eq!(leader.used_by("one"), OwnerUse { shuffles: 1, bytes: 0 });
    assert_eq!(leader.used_by("two"), OwnerUse::default());
    let differs = Failed::StartDiffers(OptionDifference::Owner);
    let answers = leader.synced(1);
    assert!(answers.contains(&Effect::Answer(1, Ok(Answer::Started(TERMS)))), "{answers:?}");
    assert!(answers.contains(&Effect::Answer(2, Err(differs))), "{answers:?}");
    let started = Effect::Answer(3, Ok(Answer::Started(TERMS)));
    assert_eq!(leader.handle(Millis(1), start(3, "one")), [started]);
    assert_eq!(leader.handle(Millis(1), start(4, "two")), [Effect::Answer(4, Err(differs))]);
}

/// A leader that seals a shuffle of one attempt, in so many stashes, and the orders to divide them. `a` has all 256 slots.
fn dividing(stashes: u32) -> (Leader, Vec<TaskId>) {
    dividing_as(stashes, Durability::Disk)
}

/// The same of a shuffle of that durability.
fn dividing_as(stashes: u32, durability: Durability) -> (Leader, Vec<TaskId>) {
    let place = SlotPlace { epoch: Epoch(1), live: vec![node("a")], loading: Vec::new() };
    let nodes = vec![node("a")];
    let map = Arc::new(PoolMap {
        generation: 1,
        replicas: 1,
        places: vec![place; 256],
        nodes,
        no_stand_ins: Default::default(),
    });
    let decisions = Decisions { epoch: Epoch(1), ..Decisions::default() };
    let mut leader = Leader::begin(Millis(0), SLOT, settings(), map.clone(), decisions);
    leader.handle(Millis(0), Event::Tick);
    leader.synced(0);
    let terms = Terms { durability, ..Terms::new(stashes, 100) };
    leader.handle(Millis(0), Event::Request(1, SHUFFLE, Request::Start(terms, ShuffleOptions::default())));
    leader.synced(1);
    let mut sketch = Sketch::new(1_600, 1);
    (0..1_000_u32).for_each(|key| sketch.insert(&key.to_be_bytes()));
    let sample = Message::Sample(SHUFFLE, node("a"), Incarnation(1), Arc::new(sketch));
    leader.handle(Millis(0), Event::Message(node("a"), sample));
    let last = (0..stashes).map(|range| (map.slot_of(SHUFFLE, RangeId(range.into())), 1)).collect();
    let buffer = BufferId { node: node("a"), incarnation: Incarnation(1) };
    let attempt = AttemptKey { buffer, number: 1 };
    let mark = EndMark { attempt, partition: 0, id: AttemptId(1), records: 0, bytes: 0, last };
    let marks = Message::Marks { shuffle: SHUFFLE, after: None, marks: vec![mark], has_more: false };
    leader.handle(Millis(0), Event::Message(node("a"), marks));
    leader.handle(Millis(0), seal(1));
    let orders = leader.synced(2);
    let task = |effect: &Effect| match effect {
        Effect::Send(_, Message::Divide(division)) => Some(division.task),
        _ => None,
    };
    let tasks = orders.iter().filter_map(task).collect();
    (leader, tasks)
}

/// The decisions that an append carries.
fn decided(effects: &[Effect]) -> Vec<Decision> {
    let decisions = |effect: &Effect| match effect {
        Effect::Send(_, Message::Append(Append { what: What::After(_, decisions), .. })) => decisions.clone(),
        _ => Vec::new(),
    };
    effects.iter().flat_map(decisions).map(|(_, decision)| decision).collect()
}

/// What is to be counted.
fn counts(effects: &[Effect]) -> Vec<(PoolSlot, Arc<Plan>)> {
    let count = |effect: &Effect| match effect {
        Effect::Send(_, Message::Count(_, plan, slot)) => Some((*slot, plan.clone())),
        _ => None,
    };
    effects.iter().filter_map(count).collect()
}

fn lacks(from: &str, slot: PoolSlot) -> Event {
    Event::Message(node(from), Message::Lacks(SHUFFLE, slot))
}

#[test]
fn d6_a_seal_fails_what_was_in_memory_when_all_replicas_lack_it_and_not_because_they_say_nothing() {
    let (lost_ms, step) = (settings().lost_ms, settings().resend_ms);
    for durability in Durability::ALL {
        let (mut leader, tasks) = dividing_as(2, durability);
        assert!(!tasks.is_empty());
        let slot = leader.map.slot_of(SHUFFLE, RangeId(0));
        // What was said long ago, and what no replica says, does not count.
        leader.handle(Millis(step), lacks("a", slot));
        assert_eq!(decided(&leader.ticks(step, lost_ms)), []);
        leader.handle(Millis(lost_ms), Event::Request(3, SHUFFLE, Request::KeepAlive));
        assert_eq!(decided(&leader.ticks(lost_ms, 2 * lost_ms)), [], "replicas may be away");
        leader.handle(Millis(2 * lost_ms), lacks("b", slot));
        assert_eq!(decided(&leader.ticks(2 * lost_ms, 2 * lost_ms + step)), []);
        leader.handle(Millis(2 * lost_ms + step), lacks("a", slot));
        let decisions = decided(&leader.handle(Millis(2 * lost_ms + step), Event::Tick));
        if durability == Durability::Disk {
            assert_eq!(decisions, []);
            continue;
        }
        assert_eq!(decisions, [Decision::Failed(Failure::Lost)]);
        let answered = Effect::Answer(2, Err(Failed::Failed(Failure::Lost)));
        assert!(leader.synced(3).contains(&answered));
    }
}

#[test]
fn d6_a_division_that_counts_brings_a_seal_further() {
    let (lost_ms, step) = (settings().lost_ms, settings().resend_ms);
    let (mut leader, tasks) = dividing_as(6, Durability::Memory);
    assert!(tasks.len() > 1, "{tasks:?}");
    let slots: BTreeSet<PoolSlot> = (0..6).map(|range| leader.map.slot_of(SHUFFLE, RangeId(range))).collect();
    let last = slots.last().copied().unwrap();
    let at = lost_ms - step;
    leader.ticks(step, at);
    let task = leader.shuffles[&SHUFFLE].dividing.values().next().unwrap().division.task;
    let buffer = BufferId { node: node("a"), incarnation: Incarnation(1) };
    // It has written nothing: as much is needed as before.
    let done = Message::Divided(SHUFFLE, task, buffer, BTreeMap::new());
    assert_eq!(decided(&leader.handle(Millis(at), Event::Message(node("a"), done))).len(), 1);
    leader.handle(Millis(at), Event::Message(node("a"), Message::Appended(SLOT, Epoch(1), 3)));
    leader.handle(Millis(lost_ms), lacks("a", last));
    assert_eq!(decided(&leader.ticks(lost_ms, lost_ms + 2 * step)), []);
    leader.ticks(lost_ms + 2 * step, at + lost_ms - step);
    leader.handle(Millis(at + lost_ms - step), lacks("a", last));
    let decisions = decided(&leader.handle(Millis(at + lost_ms), Event::Tick));
    assert_eq!(decisions, [Decision::Failed(Failure::Lost)]);
}

#[test]
fn x5_divisions_that_are_done_while_others_are_decided_are_decided_together() {
    let (mut leader, tasks) = dividing(6);
    assert!(tasks.len() > 3, "{tasks:?}");
    let buffer = BufferId { node: node("a"), incarnation: Incarnation(1) };
    let mut done = |task: &TaskId| {
        let message = Message::Divided(SHUFFLE, *task, buffer.clone(), BTreeMap::new());
        decided(&leader.handle(Millis(0), Event::Message(node("a"), message))).len()
    };
    let at_once: Vec<usize> = tasks.iter().map(&mut done).collect();
    assert_eq!(at_once.iter().sum::<usize>(), 1, "the others wait for the first: {at_once:?}");
    let rest = decided(&leader.synced(3));
    assert!(rest.iter().all(|decision| matches!(decision, Decision::Superseded(_))));
    assert_eq!(rest.len(), tasks.len() - 1);
    assert_eq!(counts(&leader.synced(2 + tasks.len() as u64 - 1)), [], "one of them is not synced yet");
    let counted = counts(&leader.synced(2 + tasks.len() as u64));
    assert!(!counted.is_empty(), "with the last one it goes on, without a tick");
}

#[test]
fn r1_a_count_without_an_answer_is_asked_for_later_and_later_by_the_same_plan() {
    let (mut leader, tasks) = dividing(1);
    let buffer = BufferId { node: node("a"), incarnation: Incarnation(1) };
    let [task] = tasks[..] else { panic!("{tasks:?}") };
    let stash = leader.map.slot_of(SHUFFLE, RangeId(0));
    let written = (0..256).map(PoolSlot).filter(|slot| *slot != stash);
    let last = written.map(|slot| (slot, 3)).collect();
    let done = Message::Divided(SHUFFLE, task, buffer.clone(), last);
    leader.handle(Millis(0), Event::Message(node("a"), done));
    let asked = counts(&leader.synced(3));
    let (slot, first) = asked[0].clone();
    let writer = Writer::Division(task, buffer);
    assert!(asked.iter().all(|(_, plan)| Arc::ptr_eq(&plan.winners, &first.winners)), "all share them");
    for (slot, plan) in asked.iter().filter(|(slot, _)| *slot != stash) {
        assert_eq!(plan.needed[slot][&writer], 3, "what was divided while it is sealed is needed");
    }
    let mut times = Vec::new();
    for at in (0..20_000_u64).step_by(250) {
        let again = counts(&leader.handle(Millis(at), Event::Tick));
        for (_, plan) in again.iter().filter(|(other, _)| *other == slot) {
            assert!(Arc::ptr_eq(plan, &first));
            times.push(at);
        }
    }
    assert_eq!(times, [250, 750, 1_750, 3_750, 7_750, 11_750, 15_750, 19_750]);
}

#[test]
fn r1_some_slots_are_counted_at_a_time_each_by_what_the_plan_says_of_it() {
    let (mut leader, tasks) = dividing(1);
    let buffer = BufferId { node: node("a"), incarnation: Incarnation(1) };
    let [task] = tasks[..] else { panic!("{tasks:?}") };
    let done = Message::Divided(SHUFFLE, task, buffer, BTreeMap::new());
    leader.handle(Millis(0), Event::Message(node("a"), done));
    let mut open = counts(&leader.synced(3));
    let most = open.len();
    let mut ranges = 0;
    let last = loop {
        let (slot, plan) = open.pop().unwrap();
        assert!(plan.ranges.iter().all(|range| range.slot == slot) && plan.winners.len() == 1);
        assert!(plan.needed.keys().all(|needed| *needed == slot));
        ranges += plan.ranges.len();
        let none = plan.ranges.iter().map(|range| (range.id, (0, 0))).collect();
        let counted = Message::Counted(SHUFFLE, Epoch(1), slot, none);
        let effects = leader.handle(Millis(0), Event::Message(node("a"), counted.clone()));
        let again = leader.handle(Millis(0), Event::Message(node("a"), counted));
        assert_eq!(again, [], "an answer that comes twice asks for nothing");
        open.extend(counts(&effects));
        assert!(open.len() <= most);
        if open.is_empty() {
            break effects;
        }
    };
    assert!(most < ranges, "{most} at a time, {ranges} ranges");
    match &decided(&last)[..] {
        [Decision::Sealed(plan)] => assert_eq!(plan.ranges.len(), ranges),
        other => panic!("{other:?}"),
    }
}
