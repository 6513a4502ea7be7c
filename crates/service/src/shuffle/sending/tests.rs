//! What is sent to whom, how often, and when.

use super::*;
use crate::shuffle::message::AskOrder;
use crate::shuffle::pool::SlotPlace;
use crate::shuffle::record::{Body, Tagged};
use crate::shuffle::{BufferId, Durability, PoolSlot, Writer};
use partage_core::base::id::{Epoch, Incarnation};
use proptest::prelude::*;

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn key_of(shuffle: u128, number: u64) -> BatchKey {
    let writer = Writer::Buffer(BufferId { node: node("a"), incarnation: Incarnation(1) });
    BatchKey { stream: Stream { shuffle: ShuffleId(shuffle), slot: PoolSlot(0), writer }, number }
}

fn key(number: u64) -> BatchKey {
    key_of(1, number)
}

fn batch(number: u64) -> Batch {
    Batch { key: key(number), durability: Durability::Disk, body: Body::Records(Tagged::new()) }
}

/// One slot on two nodes, of so many.
fn map(nodes: usize) -> PoolMap {
    let place = SlotPlace { epoch: Epoch(1), live: vec![node("a"), node("b")], loading: Vec::new() };
    let nodes = ["a", "b", "c", "d"][..nodes].iter().map(|name| node(name)).collect();
    PoolMap { generation: 1, replicas: 2, places: vec![place], nodes, no_stand_ins: Default::default() }
}

fn settings() -> Settings {
    Settings { stand_in_ms: 100, resend_ms: 40, ..Settings::default() }
}

/// The batches among messages, and to whom they go.
fn batches(out: &[(NodeId, Message)]) -> Vec<(&str, u64)> {
    let mut found = Vec::new();
    for (to, message) in out {
        if let Message::Batch(batch) = message {
            found.push((to.as_str(), batch.key.number));
        }
    }
    found
}

/// What is sent, driven as a node drives it.
struct Driven {
    sending: Sending,
    map: PoolMap,
    settings: Settings,
    out: Vec<(NodeId, Message)>,
}

impl Driven {
    fn new(nodes: usize, settings: Settings) -> Driven {
        Driven { sending: Sending::default(), map: map(nodes), settings, out: Vec::new() }
    }

    fn send(&mut self, now: u64, number: u64) {
        let batch = (batch(number), 1);
        self.sending.send(Millis(now), &self.map, &self.settings, batch, &mut self.out);
    }

    fn stored(&mut self, now: u64, by: &str, number: u64) {
        let (by, key) = (node(by), key(number));
        self.sending.stored(Millis(now), &self.settings, (&by, &key), &mut self.out);
        self.sending.is_done(&self.map, &key);
    }

    fn not_stored(&mut self, now: u64, by: &str, number: u64, why: WhyNotStored) {
        let (by, key) = (node(by), key(number));
        self.sending.not_stored(Millis(now), &self.settings, (&by, &key, why), &mut self.out);
    }

    fn tick(&mut self, now: u64) {
        self.sending.tick(Millis(now), &self.map, &self.settings, &mut self.out);
    }

    /// What was sent since the last time.
    fn took(&mut self) -> Vec<(NodeId, Message)> {
        std::mem::take(&mut self.out)
    }

    /// The batches that went to a node since the last time.
    fn went_to(&mut self, to: &str) -> Vec<u64> {
        let took = self.took();
        batches(&took).into_iter().filter(|(node, _)| *node == to).map(|(_, number)| number).collect()
    }

    /// Time passes in steps of ten; each node of these answers each question so.
    fn pass(&mut self, from: u64, to: u64, answers: &[(&str, WhyNotStored)]) {
        for now in (from..to).step_by(10) {
            self.tick(now);
            let asked: Vec<(NodeId, BatchKey)> = self
                .out
                .iter()
                .filter_map(|(to, message)| match message {
                    Message::AskStored(key, _) => Some((to.clone(), key.clone())),
                    _ => None,
                })
                .collect();
            self.out.retain(|(_, message)| !matches!(message, Message::AskStored(..)));
            for (to, key) in asked {
                if let Some((_, why)) = answers.iter().find(|(name, _)| node(name) == to) {
                    let what = (&to, &key, *why);
                    self.sending.not_stored(Millis(now), &self.settings, what, &mut self.out);
                }
            }
        }
    }
}

const BOTH_SOON: [(&str, WhyNotStored); 2] = [("a", WhyNotStored::Soon), ("b", WhyNotStored::Soon)];

#[test]
fn r1_a_node_that_is_busy_gets_a_batch_once_and_is_replaced_after_very_long() {
    let mut driven = Driven::new(3, settings());
    driven.send(0, 1);
    assert_eq!(batches(&driven.took()), [("a", 1), ("b", 1)]);
    // Forty times as long as a silent one has.
    driven.pass(10, 4_000, &BOTH_SOON);
    assert_eq!(batches(&driven.took()), []);
    driven.pass(4_000, 4_020, &BOTH_SOON);
    assert_eq!(driven.went_to("c"), [1]);
    assert_eq!((driven.sending.counts().stand_ins, driven.sending.counts().again), (1, 0));
}

#[test]
fn r1_a_busy_node_is_asked_about_a_batch_ever_more_seldom() {
    let settings = settings();
    let mut link = Link::new(Millis(0), &settings);
    link.add(Millis(0), &key(1), (1, 1));
    assert_eq!(link.next(Millis(0), &settings), Some(key(1)));
    let mut asked = Vec::new();
    for now in (0..2_000).step_by(10) {
        let questions = link.questions(Millis(now), &settings);
        asked.extend(questions.iter().filter(|(_, order)| *order == AskOrder::Behind).map(|_| now));
        link.hear(Millis(now));
    }
    assert_eq!(asked, [40, 120, 280, 600, 920, 1_240, 1_560, 1_880]);
}

#[test]
fn x12_a_node_that_goes_on_storing_is_busy_and_one_that_stores_nothing_is_replaced() {
    for stores in [true, false] {
        let mut driven = Driven::new(3, settings());
        (1..=30).for_each(|number| driven.send(0, number));
        let mut replaced_at = None;
        for step in 1..=20 {
            let now = step * 20;
            driven.stored(now, "a", step);
            if stores {
                driven.stored(now, "b", step);
            }
            driven.tick(now);
            if replaced_at.is_none() && !driven.went_to("c").is_empty() {
                replaced_at = Some(now);
            }
        }
        // It is asked after 40 ms and has 60 for its answer; between two looks there are 20.
        assert_eq!(replaced_at, if stores { None } else { Some(100) }, "{stores}");
    }
}

#[test]
fn x12_what_waits_for_a_silent_node_goes_to_a_stand_in_and_no_more_of_it_once_the_node_answers() {
    let mut driven = Driven::new(4, Settings { window_batches: 2, ..settings() });
    (1..=6).for_each(|number| driven.send(0, number));
    assert_eq!(batches(&driven.took()), [("a", 1), ("b", 1), ("a", 2), ("b", 2)]);
    driven.pass(10, 100, &[("a", WhyNotStored::Soon)]);
    assert_eq!(batches(&driven.took()), []);
    driven.pass(100, 120, &[("a", WhyNotStored::Soon)]);
    let took = driven.took();
    let stand_in = batches(&took)[0].0;
    assert_eq!(batches(&took), [(stand_in, 1), (stand_in, 2)], "for others there is no room yet");
    driven.not_stored(120, "b", 1, WhyNotStored::Soon);
    driven.tick(130);
    driven.took();
    driven.stored(131, stand_in, 1);
    driven.stored(131, stand_in, 2);
    driven.pass(131, 150, &BOTH_SOON);
    assert_eq!(batches(&driven.took()), [], "the node answers: the stand-in is needed for no more");
    assert_eq!(driven.sending.counts().stand_ins, 2);
}

#[test]
fn r1_what_waits_goes_in_its_order_when_there_is_room_and_is_not_sent_before() {
    let mut driven = Driven::new(2, Settings { window_batches: 2, ..settings() });
    (1..=4).for_each(|number| driven.send(0, number));
    assert_eq!(driven.went_to("b"), [1, 2]);
    driven.stored(5, "b", 2);
    assert_eq!(driven.went_to("b"), [3]);
    driven.stored(6, "b", 1);
    driven.stored(6, "b", 3);
    assert_eq!(driven.went_to("b"), [4]);
    assert_eq!(driven.sending.keys().count(), 4, "none is on two nodes");
    ["a", "a", "a"].iter().zip(1..).for_each(|(by, number)| driven.stored(7, by, number));
    assert_eq!(driven.sending.keys().count(), 1);
}

#[test]
fn r1_what_a_node_lacks_is_sent_to_it_again_before_what_came_later() {
    let mut driven = Driven::new(2, Settings { window_batches: 2, ..settings() });
    (1..=4).for_each(|number| driven.send(0, number));
    assert_eq!(driven.went_to("b"), [1, 2]);
    driven.not_stored(10, "b", 1, WhyNotStored::Unknown);
    assert!(driven.went_to("b").is_empty(), "it was not asked");
    driven.pass(10, 50, &[("a", WhyNotStored::Soon), ("b", WhyNotStored::Unknown)]);
    assert_eq!(driven.went_to("b"), [1, 2]);
    assert_eq!(driven.sending.counts().again, 2);
    driven.stored(50, "b", 1);
    assert_eq!(driven.went_to("b"), [3]);
}

/// Adds batches of a shuffle of weight 1 that take so much memory each.
fn add(link: &mut Link, shuffle: u128, numbers: std::ops::RangeInclusive<u64>, memory: u64) {
    for number in numbers {
        link.add(Millis(0), &key_of(shuffle, number), (memory, cost(memory, 1)));
    }
}

/// The batches that go now, by shuffles and numbers.
fn go(link: &mut Link, now: u64, settings: &Settings) -> Vec<(u128, u64)> {
    let keys = std::iter::from_fn(|| link.next(Millis(now), settings));
    keys.map(|key| (key.stream.shuffle.0, key.number)).collect()
}

fn of_one(numbers: std::ops::RangeInclusive<u64>) -> Vec<(u128, u64)> {
    numbers.map(|number| (1, number)).collect()
}

#[test]
fn r1_a_node_without_room_gets_nothing_for_a_while_and_then_less() {
    let settings = Settings { window_bytes: 1_000, ..settings() };
    let mut link = Link::new(Millis(0), &settings);
    add(&mut link, 1, 1..=20, 100);
    assert_eq!(go(&mut link, 0, &settings), of_one(1..=8), "an eighth is for others");
    assert_eq!(link.memory(), 800);
    for number in [7, 8] {
        link.put_back_refused(Millis(5), &key(number), false, &settings);
        link.put_back_refused(Millis(5), &key(number), false, &settings);
    }
    (1..=6).for_each(|number| link.stored(Millis(6), &key(number), &settings));
    assert!(go(&mut link, 44, &settings).is_empty(), "it rests");
    // Of half of 875 bytes, and a quarter of the 600 that were stored.
    assert_eq!(go(&mut link, 45, &settings), of_one(7..=11));
    assert!(link.is_reliable(Millis(45), &settings));
    link.put_back_refused(Millis(46), &key(7), true, &settings);
    assert!(!link.is_reliable(Millis(46), &settings), "its disk is full");
    add(&mut link, 2, 1..=1, 10);
    assert!(go(&mut link, 46, &settings).is_empty(), "so it gets nothing of other shuffles");
    link.stored(Millis(47), &key(8), &settings);
    assert!(link.is_reliable(Millis(47), &settings));
}

#[test]
fn r1_a_shuffle_of_which_much_waits_leaves_room_and_turns_to_others() {
    let settings = Settings { window_bytes: 1_000, ..settings() };
    let mut link = Link::new(Millis(0), &settings);
    add(&mut link, 1, 1..=30, 100);
    assert_eq!(go(&mut link, 1, &settings), of_one(1..=8));
    add(&mut link, 2, 1..=2, 60);
    assert_eq!(go(&mut link, 1, &settings), [(2, 1)], "half of the last eighth has room for one");
    (1..=3).for_each(|number| link.stored(Millis(2), &key(number), &settings));
    assert_eq!(go(&mut link, 2, &settings), [(2, 2), (1, 9), (1, 10)]);
    link.forget(&|stream: &Stream| stream.shuffle == ShuffleId(1));
    assert_eq!((link.memory(), go(&mut link, 2, &settings)), (120, Vec::new()));
}

#[test]
fn r1_all_batches_of_a_shuffle_that_trickles_go_before_any_further_byte_of_one_that_floods() {
    let settings = Settings::default();
    let mut link = Link::new(Millis(0), &settings);
    let trickle = |numbers: std::ops::RangeInclusive<u64>| -> Vec<(u128, u64)> {
        numbers.map(|number| (2, number)).collect()
    };
    add(&mut link, 1, 1..=100, 2 << 20);
    assert_eq!(go(&mut link, 0, &settings), of_one(1..=14), "28 MiB of a window of 32 MiB");
    add(&mut link, 2, 1..=30, 300);
    assert_eq!(go(&mut link, 1, &settings), trickle(1..=30));
    // The node has no room for the flood: that rests, and the trickle does not.
    link.put_back_refused(Millis(5), &key(1), false, &settings);
    add(&mut link, 2, 31..=60, 300);
    assert_eq!(go(&mut link, 6, &settings), trickle(31..=60));
    link.put_back_refused(Millis(200), &key(2), false, &settings);
    (3..=14).for_each(|number| link.stored(Millis(201), &key(number), &settings));
    assert!(go(&mut link, 254, &settings).is_empty());
    let after = go(&mut link, 255, &settings);
    assert_eq!(after[..2], of_one(1..=2)[..], "a late answer makes the rest no longer");
    // Where more of the trickle comes than has room beside the flood, it goes next.
    add(&mut link, 2, 61..=80, 1 << 20);
    let before = go(&mut link, 256, &settings);
    assert!(before.iter().all(|(shuffle, _)| *shuffle == 2), "{before:?}");
    let next = 60 + before.len() as u64 + 1;
    link.stored(Millis(257), &key(1), &settings);
    assert_eq!(go(&mut link, 257, &settings).first(), Some(&(2, next)));
}

#[test]
fn l1_a_large_batch_gets_its_turn_beside_small_ones_that_never_end() {
    let settings = Settings { window_bytes: 8_000, ..settings() };
    let mut link = Link::new(Millis(0), &settings);
    add(&mut link, 1, 1..=1_000, 600);
    assert_eq!(go(&mut link, 0, &settings), of_one(1..=11));
    add(&mut link, 2, 1..=1, 6_500);
    let mut stored = 0;
    while stored < 100 {
        stored += 1;
        link.stored(Millis(1), &key(stored), &settings);
        if go(&mut link, 1, &settings).contains(&(2, 1)) {
            break;
        }
    }
    assert!(stored <= 11, "it waits for what was under way, and here for {stored}");
}

#[test]
fn r1_what_waits_goes_by_weight_where_there_is_no_room_for_all() {
    let settings = Settings { window_bytes: 8_000, ..settings() };
    let mut link = Link::new(Millis(0), &settings);
    for number in 1..=100 {
        link.add(Millis(0), &key_of(1, number), (1_000, cost(1_000, 1)));
        link.add(Millis(0), &key_of(2, number), (1_000, cost(1_000, 3)));
    }
    let mut counts = BTreeMap::<u128, usize>::new();
    for now in 0..40 {
        for (shuffle, number) in go(&mut link, now, &settings) {
            *counts.entry(shuffle).or_default() += 1;
            link.stored(Millis(now), &key_of(shuffle, number), &settings);
        }
        if counts.values().sum::<usize>() >= 80 {
            break;
        }
    }
    let (one, three) = (counts[&1], counts[&2]);
    assert!((3 * one).abs_diff(three) <= 4, "{counts:?}");
}

#[test]
fn x12_a_batch_of_a_slot_with_too_few_replicas_goes_to_a_stand_in_at_the_next_look() {
    let mut driven = Driven::new(3, settings());
    driven.map.places[0].live.pop();
    for (number, now) in [(1, 0), (2, 20), (3, 40)] {
        driven.send(now, number);
        driven.tick(now + 5);
        let took = driven.took();
        let to: Vec<&str> = batches(&took).into_iter().map(|(to, _)| to).collect();
        assert!(to.len() == 2 && to[0] == "a" && to[1] != "a", "{number}: {to:?}");
    }
}

#[test]
fn r1_a_node_that_stores_nothing_of_the_slot_gets_a_batch_ever_more_seldom_until_a_map_names_it_anew() {
    let mut driven = Driven::new(2, settings());
    driven.send(0, 1);
    let mut sent = 0;
    for now in (10..10_000).step_by(10) {
        for number in driven.went_to("b") {
            sent += 1;
            driven.not_stored(now, "b", number, WhyNotStored::Elsewhere);
        }
        driven.tick(now);
    }
    assert!((5..=9).contains(&sent), "{sent} times");
    let mut before = driven.map.clone();
    before.places[0].live.pop();
    driven.sending.take_map(&before, &driven.map);
    driven.took();
    driven.tick(10_010);
    assert_eq!(driven.went_to("b"), [1]);
}

#[test]
fn x12_a_node_that_never_has_room_for_a_batch_is_replaced_after_very_long() {
    let mut driven = Driven::new(3, settings());
    driven.send(0, 1);
    driven.stored(5, "a", 1);
    driven.took();
    let mut replaced_at = None;
    for now in (10..6_000).step_by(10) {
        // It stores other batches meanwhile.
        driven.stored(now, "b", 99);
        driven.not_stored(now, "b", 1, WhyNotStored::Busy);
        driven.tick(now);
        if !driven.went_to("c").is_empty() {
            replaced_at = Some(now);
            break;
        }
    }
    assert!(replaced_at.is_some_and(|at| (4_000..4_200).contains(&at)), "{replaced_at:?}");
}

#[test]
fn x12_a_full_disk_and_a_node_that_stores_nothing_of_the_slot_are_replaced_at_the_next_look() {
    for why in [WhyNotStored::Full, WhyNotStored::Elsewhere] {
        let mut driven = Driven::new(3, settings());
        driven.send(0, 1);
        driven.not_stored(1, "b", 1, why);
        driven.tick(10);
        assert_eq!(driven.went_to("c"), [1], "{why:?}");
        driven.stored(11, "c", 1);
        driven.stored(11, "a", 1);
        assert_eq!(driven.sending.keys().count(), 0);
    }
}

#[test]
fn r1_it_is_called_again_later_whoever_has_answered_and_whoever_is_gone() {
    let mut driven = Driven::new(2, settings());
    assert_eq!(driven.sending.wake_at(), Millis::NEVER);
    driven.send(0, 1);
    driven.stored(1, "a", 1);
    let ticks = |driven: &mut Driven, from: u64| {
        for now in (from..from + 500).step_by(50) {
            assert!(driven.sending.wake_at() <= Millis(now), "{now}");
            driven.tick(now);
            assert!(driven.sending.wake_at() > Millis(now), "{now}: it would be called without end");
        }
        batches(&driven.took()).len()
    };
    assert_eq!(ticks(&mut driven, 50), 2, "once to each");
    driven.map.nodes.pop();
    driven.map.places[0].live.pop();
    assert_eq!(ticks(&mut driven, 550), 0);
    // One that comes back has lost what it had.
    driven.map.nodes.push(node("b"));
    assert_eq!(ticks(&mut driven, 1_050), 1);
    driven.stored(1_600, "b", 1);
    driven.tick(1_700);
    assert_eq!(driven.sending.wake_at(), Millis::NEVER);
}

proptest! {
    /// R1: a node gets a batch once, and once more for each time that it lacked it or had no room for it; and what is under way
    /// to it is bounded.
    #[test]
    fn r1_nothing_is_sent_twice_without_a_reason(
        steps in proptest::collection::vec((0..7u8, 0..2usize, 1..9u64), 1..200),
    ) {
        let settings = Settings { window_batches: 4, ..settings() };
        let (mut driven, mut now, mut last) = (Driven::new(2, settings), 0, 0);
        let mut sent: BTreeMap<(usize, u64), u64> = BTreeMap::new();
        let mut reasons: BTreeMap<(usize, u64), u64> = BTreeMap::new();
        let whys = [WhyNotStored::Unknown, WhyNotStored::Busy, WhyNotStored::Soon];
        let names = ["a", "b"];
        for (what, by, number) in steps {
            now += 7;
            match what {
                0 | 1 => {
                    last += 1;
                    driven.send(now, last);
                }
                2 => driven.stored(now, names[by], number),
                3 => driven.tick(now),
                other => {
                    let why = whys[usize::from(other - 4)];
                    driven.not_stored(now, names[by], number, why);
                    *reasons.entry((by, number)).or_default() += u64::from(why != WhyNotStored::Soon);
                }
            }
            for (to, number) in batches(&driven.took()) {
                let by = usize::from(to == "b");
                let times = sent.entry((by, number)).or_default();
                *times += 1;
                let most = 1 + reasons.get(&(by, number)).copied().unwrap_or(0);
                prop_assert!(*times <= most, "{} is sent {} times to {}", number, times, to);
            }
        }
    }
}
