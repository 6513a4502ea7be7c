//! Whose turn it is, and what goes before it.

use super::*;
use proptest::prelude::*;

#[test]
fn of_pieces_that_cost_the_same_one_of_each_is_taken_in_turn() {
    let mut turns = Turns::default();
    for (of, one) in [('a', 1), ('a', 2), ('a', 3), ('b', 4), ('c', 5), ('b', 6)] {
        turns.push(of, one, 1);
    }
    assert_eq!((turns.len(), turns.len_of(&'a'), turns.len_of(&'d')), (6, 3, 0));
    assert_eq!([turns.pop(), turns.pop()], [Some(1), Some(4)]);
    turns.push('d', 7, 1);
    let rest: Vec<i32> = std::iter::from_fn(|| turns.pop()).collect();
    assert_eq!((rest, turns.len()), (vec![5, 7, 2, 6, 3], 0));
    assert!(turns.is_empty() && turns.lines.is_empty() && turns.ahead.is_empty());
}

#[test]
fn r1_all_pieces_of_a_shuffle_that_trickles_go_after_one_piece_of_a_flood_at_most() {
    let mut turns = Turns::default();
    let push = |turns: &mut Turns<&str, u64>, of: &'static str, count: u64, bytes: u64| {
        for _ in 0..count {
            turns.push(of, bytes, bytes);
        }
    };
    push(&mut turns, "flood", 100, 1 << 20);
    assert_eq!(turns.pop(), Some(1 << 20));
    push(&mut turns, "trickle", 20, 300);
    assert!((0..20).all(|_| turns.pop() == Some(300)));
    assert_eq!(turns.pop(), Some(1 << 20));
    // It comes back, and has no claim because it was away.
    assert!((0..50).all(|_| turns.pop().is_some()));
    push(&mut turns, "trickle", 4, 1 << 20);
    assert!((0..4).all(|_| turns.pop().is_some()));
    assert_eq!(turns.len_of(&"trickle"), 2);
}

#[test]
fn one_that_was_taken_goes_back_to_its_place_and_one_may_be_removed() {
    let mut turns = Turns::default();
    let places: Vec<u64> = (1..=4).map(|one| turns.push('a', one, 10)).collect();
    let (at, one) = turns.pop_if(|_, _| true).unwrap();
    assert_eq!((at, one), ((places[0], 10), 1));
    turns.put_back('a', one, at);
    assert_eq!((turns.remove(&'a', places[2]), turns.remove(&'a', places[2])), (Some(3), None));
    assert_eq!(turns.remove(&'b', 1), None);
    assert_eq!(turns.pop_if(|_, one| *one > 1), None, "only the first one is looked at");
    assert_eq!([turns.pop(), turns.pop(), turns.pop(), turns.pop()], [Some(1), Some(2), Some(4), None]);
}

#[test]
fn r1_those_that_may_not_go_are_passed_over_and_come_first_when_they_may() {
    let mut turns = Turns::default();
    turns.push('a', 1, 10);
    turns.push('b', 2, 10);
    turns.push('b', 3, 10);
    assert_eq!(turns.pop_if(|of, _| *of != 'a').map(|(_, one)| one), Some(2));
    assert_eq!(turns.pop_if(|of, _| *of != 'a').map(|(_, one)| one), Some(3));
    turns.push('b', 4, 10);
    assert_eq!([turns.pop(), turns.pop(), turns.pop()], [Some(1), Some(4), None]);
}

#[test]
fn r1_one_that_is_charged_while_it_waits_goes_after_one_that_comes_then() {
    let mut turns = Turns::default();
    let flood = turns.push("flood", (), 0);
    for _ in 0..3 {
        assert_eq!(turns.first_if(|_| true), Some(&"flood"));
        turns.charge(&"flood", 1 << 20);
    }
    let trickle = turns.push("trickle", (), 0);
    assert_eq!(turns.first_if(|_| true), Some(&"trickle"));
    assert_eq!(turns.first_if(|of| *of != "trickle"), Some(&"flood"));
    turns.charge(&"trickle", 300);
    assert_eq!(turns.first_if(|_| true), Some(&"trickle"), "it was given far less");
    turns.charge(&"nobody", 1);
    assert_eq!(turns.remove(&"trickle", trickle), Some(()));
    assert_eq!((turns.first_if(|_| true), turns.len()), (Some(&"flood"), 1));
    assert_eq!((turns.remove(&"flood", flood), turns.is_empty()), (Some(()), true));
}

#[test]
fn r1_the_last_eighth_is_for_those_that_have_little() {
    assert!(may_wait((70, 100), (70, 1), 18) && !may_wait((70, 100), (70, 1), 19));
    assert!(may_wait((88, 100), (0, 2), 6) && !may_wait((88, 100), (0, 2), 7));
    assert!(may_wait((90, 100), (1, 2), 5) && !may_wait((95, 100), (0, 2), 6), "there is one bound");
}

proptest! {
    /// R1: while something of two waits, what they were given differs, over their weights, by no more than a piece of each. So
    /// whatever a flood adds, a piece at the head of its line waits for one piece of each other line.
    #[test]
    fn r1_each_is_given_its_part_within_a_piece_of_each(
        weights in prop::collection::vec(1u64..=20, 2..5),
        pieces in prop::collection::vec((0usize..4, 1u64..1_000), 20..200),
    ) {
        let mut turns = Turns::default();
        let (mut given, mut most) = (vec![0u64; weights.len()], vec![0u64; weights.len()]);
        for (of, bytes) in pieces {
            let of = of % weights.len();
            let cost = cost(bytes, weights[of]);
            most[of] = most[of].max(cost);
            turns.push(of, (of, cost), cost);
        }
        let waits = |turns: &Turns<usize, (usize, u64)>| {
            (0..weights.len()).filter(|of| turns.len_of(of) > 0).collect::<Vec<_>>()
        };
        let all = waits(&turns);
        while waits(&turns) == all && let Some((of, cost)) = turns.pop() {
            given[of] += cost;
            for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (*one, *other))) {
                let apart = given[one].saturating_sub(given[other]);
                prop_assert!(apart <= most[one] + most[other], "{apart}: {given:?} of {weights:?}");
            }
        }
    }
}
