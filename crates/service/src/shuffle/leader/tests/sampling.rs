//! When bounds are made of samples.

use super::*;
use crate::shuffle::bounds::Bounds;

/// The leader hears of a sample of these keys. What it says of the shuffle, and to whom, and the bounds that it decides.
fn samples(leader: &mut Leader, keys: impl Iterator<Item = u32>) -> (Vec<(NodeId, Word)>, Vec<Bounds>) {
    let mut sketch = Sketch::new(1_600, 1);
    keys.for_each(|key| sketch.insert(&key.to_be_bytes()));
    let sample = Message::Sample(SHUFFLE, node("b"), Incarnation(1), Arc::new(sketch));
    let effects = leader.handle(Millis(0), Event::Message(node("b"), sample));
    let bounds = decided(&effects).into_iter().map(|decision| match decision {
        Decision::Bounds(bounds) => bounds.as_ref().clone(),
        other => panic!("{other:?}"),
    });
    (words(&effects), bounds.collect())
}

fn words(effects: &[Effect]) -> Vec<(NodeId, Word)> {
    let word = |effect: &Effect| match effect {
        Effect::Send(to, Message::Word(SHUFFLE, word)) => Some((to.clone(), word.clone())),
        _ => None,
    };
    effects.iter().filter_map(word).collect()
}

#[test]
fn x5_first_bounds_come_when_the_sample_suffices_and_are_the_answer_to_it() {
    for (ranges, enough) in
        [(0, 1), (1, 32), (30, 960), (256, 8_192), (2_048, 8_192), (3_000, 12_000), (65_536, 100_000)]
    {
        assert_eq!(settings().sample_for(ranges), enough);
    }
    let mut leader = leader_as(Terms::new(1, 3_000), ShuffleOptions::default());
    let open = |bounds: Bounds| Word::Open(bounds.into(), Durability::Disk);
    let none = (node("b"), open(Bounds::stashes(1)));
    assert_eq!(samples(&mut leader, 0..11_999), (vec![none], vec![]), "there are none yet");
    let (words_now, decided) = samples(&mut leader, 0..12_000);
    assert_eq!(words_now, [], "they are the answer, when they count");
    let first = decided[0].clone();
    let expected = [node("a"), node("b")].map(|node| (node, open(first.clone())));
    assert_eq!(words(&leader.synced(2)), expected);
}

#[test]
fn x5_of_a_small_shuffle_bounds_are_made_of_few_keys_and_its_ranges_are_about_even() {
    let mut leader = leader_as(Terms::new(30, 32), ShuffleOptions::default());
    let scattered = |count: u32| (0..count).map(|key| key.wrapping_mul(0x9e37_79b1));
    assert_eq!(samples(&mut leader, scattered(1_023)).1, []);
    let (_, decided) = samples(&mut leader, scattered(1_024));
    let begins: Vec<u64> = decided[0].ranges.iter().map(|range| first_of(&range.begins)).collect();
    assert!((28..=40).contains(&begins.len()), "{}", begins.len());
    let ends = begins.iter().skip(1).copied().chain([1 << 32]);
    let widest = begins.iter().zip(ends).map(|(begin, end)| end - begin).max().unwrap();
    assert!(widest <= (2 << 32) / 32, "{widest}");
}

/// Where a range begins among numbers of four bytes. One begins behind a key, or before all.
fn first_of(begins: &[u8]) -> u64 {
    let mut number = [0; 4];
    number.iter_mut().zip(begins).for_each(|(to, from)| *to = *from);
    u32::from_be_bytes(number).into()
}

#[test]
fn x5_bounds_of_few_keys_are_looked_at_when_there_are_twice_as_many_and_what_is_in_place_stays() {
    let mut leader = leader_as(Terms::new(1, 100), ShuffleOptions::default());
    let (_, decided) = samples(&mut leader, 0..8_192);
    let first = decided[0].clone();
    leader.synced(2);
    // The first partitions have the lowest keys.
    assert_eq!(samples(&mut leader, 0..16_383).1, []);
    let (_, decided) = samples(&mut leader, 0..16_384);
    let second = decided[0].clone();
    assert_eq!(
        second.ranges[..first.ranges.len()],
        first.ranges[..],
        "the last one is divided behind its begin"
    );
    assert!((140..=200).contains(&second.ranges.len()), "{}", second.ranges.len());
    leader.synced(3);
    assert_eq!(samples(&mut leader, (0..32_768).map(|key| key % 16_384)).1, [], "it was right");
}

#[test]
fn x5_a_leader_that_has_taken_over_makes_no_bounds_of_the_first_keys_that_it_hears_of() {
    let mut before = leader_as(Terms::new(1, 100), ShuffleOptions::default());
    let (_, decided) = samples(&mut before, 0..8_192);
    let first = decided[0].clone();
    let mut decisions = Decisions { epoch: Epoch(1), ..Decisions::default() };
    decisions.push(SHUFFLE, Decision::Start(Terms::new(1, 100), Arc::default()), 9);
    decisions.push(SHUFFLE, Decision::Bounds(first.into()), 9);
    let mut leader = Leader::begin(Millis(0), SLOT, settings(), map(), decisions);
    leader.handle(Millis(0), Event::Tick);
    leader.synced(2);
    assert_eq!(samples(&mut leader, 10_000..13_199).1, []);
    assert_eq!(samples(&mut leader, 10_000..13_200).1.len(), 1);
}
