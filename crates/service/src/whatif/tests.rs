//! Properties of a what-if, on samples that are made up but not even.

use super::*;
use partage_core::base::name::{NodeId, Zone};
use partage_core::keyspace::DEFAULT_POLICY;
use partage_core::keyspace::key::Key;
use proptest::prelude::*;

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

fn node(number: usize) -> Node {
    Node { name: NodeId::new(&format!("n{number}")).unwrap(), capacity: 1, zone: None }
}

fn nodes(count: usize) -> Vec<Node> {
    (1..=count).map(node).collect()
}

/// Names that share beginnings, as real ones do; weights from 1 to 9.
fn sample(keys: usize) -> Sample {
    let item = |i: usize| {
        let prefix = ["lib", "lib", "lib", "python3-", "node-", "x"][i % 6];
        let key = key(&format!("{prefix}{:05}", i * 7919 % 100_000));
        Item { key, weight: 1.0 + (i % 9) as f64, bytes: 100 + i as u64 }
    };
    Sample::new((0..keys).map(item).collect()).unwrap()
}

fn join(number: usize) -> Event {
    Event::Join { nodes: vec![node(number)] }
}

fn leave(number: usize) -> Event {
    Event::Leave { node: node(number).name }
}

fn question(keys: usize, count: usize, events: Vec<Event>, schemes: &[&str]) -> Question {
    let schemes = schemes.iter().map(|name| Scheme::parse(name, count).unwrap()).collect();
    Question {
        sample: sample(keys),
        nodes: nodes(count),
        events,
        schemes,
        hash: HashFunction::Xxh3_64,
        seed: 7,
    }
}

fn all_events() -> Vec<Event> {
    vec![
        join(9),
        leave(3),
        Event::Grow { factor: 1.5 },
        Event::Hot { key: None, heat: Heat::Share(0.2) },
        Event::Hot { key: Some(key("lib00000")), heat: Heat::Times(50.0) },
    ]
}

fn moved_part(question: Question) -> Vec<f64> {
    let comparison = compare(question).unwrap();
    let part = |outcome: &Outcome| {
        let keys = outcome.steps[1].movement.unwrap().keys;
        keys.moved / keys.of
    };
    comparison.outcomes.iter().map(part).collect()
}

#[test]
fn a_join_moves_what_theory_says() {
    let parts = moved_part(question(20_000, 8, vec![join(9)], &["modulo", "jump", "rendezvous", "ring-400"]));
    for (part, expected) in parts.into_iter().zip([8.0 / 9.0, 1.0 / 9.0, 1.0 / 9.0, 1.0 / 9.0]) {
        assert!((part - expected).abs() < 0.015, "{part}, expected {expected}");
    }
}

#[test]
fn a_node_that_leaves_from_the_middle_renumbers_jump_but_not_rendezvous() {
    let parts = moved_part(question(20_000, 8, vec![leave(2)], &["jump", "rendezvous"]));
    assert!(parts[0] > 0.5 && (parts[1] - 0.125).abs() < 0.015, "{parts:?}");
}

#[test]
fn no_scheme_moves_less_than_the_least_and_nothing_is_lost() {
    let mut question = question(3_000, 8, all_events(), &["modulo"]);
    question.schemes = Scheme::usual(8);
    let comparison = compare(question).unwrap();
    assert!(comparison.outcomes.len() >= 10 && comparison.scenes.len() == 6);
    for outcome in &comparison.outcomes {
        for (step, scene) in outcome.steps.iter().zip(&comparison.scenes) {
            let held: u64 = step.loads.iter().map(|load| load.keys).sum();
            let weight: f64 = step.loads.iter().map(|load| load.weight).sum();
            let bytes: u64 = step.loads.iter().map(|load| load.bytes).sum();
            assert_eq!((held, bytes), (scene.total.keys, scene.total.bytes), "{}", outcome.scheme);
            assert!((weight / scene.total.weight - 1.0).abs() < 1e-9, "{}", outcome.scheme);
            for moved in step.movement.iter().flat_map(|m| [m.keys, m.weight, m.bytes]) {
                let slack = 1e-9 * moved.of;
                assert!(moved.moved >= moved.least - slack, "{}: {moved:?}", outcome.scheme);
                assert!(moved.moved <= moved.of + slack, "{}: {moved:?}", outcome.scheme);
            }
        }
        let gone = comparison.roster.iter().position(|node| node.name.as_str() == "n3").unwrap();
        assert!(outcome.steps[1].loads[gone].keys > 0 || outcome.scheme.to_string().starts_with("key-even"));
        assert_eq!(outcome.steps[2].loads[gone], Load::default(), "{}", outcome.scheme);
    }
}

#[test]
fn the_same_question_has_the_same_answer_in_any_order_of_keys() {
    let ask = |reversed: bool| {
        let mut question = question(2_000, 8, all_events(), &["modulo"]);
        question.schemes = Scheme::usual(8);
        let mut items = question.sample.items().to_vec();
        if reversed {
            items.reverse();
        }
        question.sample = Sample::new(items).unwrap();
        let steps: Vec<Vec<Step>> =
            compare(question).unwrap().outcomes.into_iter().map(|outcome| outcome.steps).collect();
        steps
    };
    assert_eq!(ask(false), ask(true));
}

#[test]
fn shards_that_are_placed_follow_the_load_and_a_ring_of_one_token_does_not() {
    let comparison =
        compare(question(20_000, 8, vec![], &["fixed", "key-range", "hash-range", "ring-1"])).unwrap();
    let max: Vec<f64> =
        comparison.outcomes.iter().map(|o| o.steps[0].balances.weight.max_over_mean).collect();
    assert!(max[..3].iter().all(|max| *max < 1.1) && max[3] > 1.5, "{max:?}");
}

#[test]
fn capacities_weight_the_shares() {
    let mut question = question(20_000, 4, vec![], &["rendezvous", "jump", "modulo", "fixed", "key-range"]);
    question.nodes[0].capacity = 3;
    for outcome in compare(question).unwrap().outcomes {
        let step = &outcome.steps[0];
        let part = step.loads[0].weight / step.loads.iter().map(|load| load.weight).sum::<f64>();
        assert!((part - 0.5).abs() < 0.03, "{}: {part}", outcome.scheme);
        assert!(step.balances.weight.max_over_mean < 1.1, "{}", outcome.scheme);
    }
}

#[test]
fn a_hot_key_is_spread_by_salting_and_isolated_by_ranges() {
    let hot = Event::Hot { key: Some(key("lib00000")), heat: Heat::Share(0.3) };
    let comparison =
        compare(question(5_000, 8, vec![hot], &["rendezvous", "salted-64", "key-range"])).unwrap();
    let [whole, salted, ranges] = comparison.outcomes.as_slice() else { panic!("three schemes") };
    let max = |outcome: &Outcome| outcome.steps[1].balances.weight.max_over_mean;
    assert!(max(whole) > 3.0 && max(salted) < 1.7, "{} {}", max(whole), max(salted));
    let top = |outcome: &Outcome| outcome.steps[1].hottest_keys[0].clone();
    assert_eq!((top(whole).nodes.len(), top(salted).nodes.len()), (1, 64));
    assert_eq!(top(whole).key, key("lib00000"));
    // No scheme of whole keys can do better than give it a node of its own, and cut what is beside it.
    assert!(max(ranges) >= 0.3 * 8.0 - 0.01, "{}", max(ranges));
    assert!(ranges.steps[1].shards > ranges.steps[0].shards, "the range of the hot key is cut");
}

#[test]
fn ranges_split_when_keys_grow_and_fixed_shards_do_not() {
    let grow = Event::Grow { factor: 4.0 };
    let comparison =
        compare(question(4_000, 4, vec![grow], &["fixed-64", "hash-range-64", "key-range-64"])).unwrap();
    let shards = |at: usize, step: usize| comparison.outcomes[at].steps[step].shards.unwrap();
    assert_eq!((shards(0, 0), shards(0, 1)), (64, 64));
    for scheme in [1, 2] {
        assert!(shards(scheme, 1) >= 2 * shards(scheme, 0), "{} shards", shards(scheme, 1));
    }
    assert_eq!(comparison.scenes[1].total.keys, 16_000);
    for outcome in &comparison.outcomes {
        let keys = outcome.steps[1].movement.unwrap().keys;
        assert_eq!(keys.of, 4_000.0, "{}: new keys arrive, they do not move", outcome.scheme);
    }
}

#[test]
fn java_strings_in_hash_ranges_are_uneven_until_they_split() {
    let mut question = question(5_000, 8, vec![], &["hash-range-64+work_stealing"]);
    question.hash = HashFunction::JavaString;
    let items = (0..5_000).map(|i| Item { key: key(&format!("{i:04}")), weight: 1.0, bytes: 4 });
    question.sample = Sample::new(items.collect()).unwrap();
    let comparison = compare(question).unwrap();
    // Four digits hash to less than 2^21 of 2^32: all in the first of the 64 ranges, which is cut.
    assert!(comparison.outcomes[0].steps[0].shards.unwrap() > 90);
    assert!(comparison.outcomes[0].steps[0].balances.keys.max_over_mean < 1.5);
}

#[test]
fn grown_keys_are_new_beside_the_old_and_as_many_as_asked() {
    for (factor, expected) in [(1.0, 10), (1.5, 15), (2.0, 20), (3.3, 33)] {
        let mut sample = sample(10);
        sample.grow(factor).unwrap();
        assert_eq!(sample.len(), expected, "×{factor}");
        sample.grow(2.0).unwrap();
        let again = Sample::new(sample.items().to_vec()).unwrap();
        assert_eq!(again.len(), 2 * expected, "no name twice");
    }
    let long = Key::new(&vec![b'k'; partage_core::limits::KEY_BYTES]).unwrap();
    let mut sample = Sample::new(vec![Item { key: long, weight: 1.0, bytes: 1 }]).unwrap();
    sample.grow(2.0).unwrap();
    assert_ne!(sample.items()[0].key, sample.items()[1].key);
}

#[test]
fn a_key_named_again_weighs_the_sum() {
    let item = |weight: f64, bytes| Item { key: key("a"), weight, bytes };
    let sample = Sample::new(vec![item(1.0, 5), item(2.5, 9), item(1.0, 2)]).unwrap();
    assert_eq!(sample.items(), [item(4.5, 9)]);
}

#[test]
fn nonsense_is_refused_by_name() {
    let error = |events: Vec<Event>| compare(question(50, 3, events, &["modulo"])).unwrap_err();
    assert!(
        matches!(error(vec![leave(7)]), WhatIfError::UnknownNode { known, .. } if known == ["n1", "n2", "n3"])
    );
    assert!(matches!(error(vec![leave(1), leave(2), leave(3)]), WhatIfError::LastNode { .. }));
    assert!(matches!(error(vec![join(2)]), WhatIfError::Nodes(_)));
    assert!(matches!(error(vec![Event::Join { nodes: vec![] }]), WhatIfError::NobodyJoins));
    for factor in [0.5, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(error(vec![Event::Grow { factor }]), WhatIfError::Factor { .. }));
    }
    let hot = |key: Option<Key>, heat| error(vec![Event::Hot { key, heat }]);
    assert!(matches!(hot(Some(key("none")), Heat::Times(2.0)), WhatIfError::UnknownKey { .. }));
    assert!(matches!(hot(None, Heat::Times(f64::NAN)), WhatIfError::Factor { .. }));
    assert!(matches!(hot(None, Heat::Share(1.0)), WhatIfError::Share { .. }));
    let many = vec![join(9); partage_core::limits::WHATIF_EVENTS + 1];
    assert!(matches!(error(many), WhatIfError::TooMany { what: "events", .. }));
    assert!(matches!(Sample::new(vec![]), Err(WhatIfError::NoKeys)));
    for weight in [f64::NAN, -1.0, f64::INFINITY] {
        let bad = Sample::new(vec![Item { key: key("a"), weight, bytes: 0 }]);
        assert!(matches!(bad, Err(WhatIfError::Weight { .. })));
    }
    for name in ["salted-1", "salted-101", "ring-0", "fixed-0", "hash-range-0", "key-even-0"] {
        assert!(compare(question(50, 3, vec![], &[name])).is_err(), "{name}");
    }
    assert!(matches!(compare(question(50, 3, vec![], &[])), Err(WhatIfError::NoSchemes)));
}

#[test]
fn names_of_schemes_lead_back_and_wrong_ones_are_told_the_nearest() {
    for scheme in Scheme::usual(12) {
        assert_eq!(Scheme::parse(&scheme.to_string(), 12), Ok(scheme));
    }
    assert_eq!(Scheme::parse("fixed-9", 3).unwrap().to_string(), format!("fixed-9+{DEFAULT_POLICY}"));
    for (wrong, nearest) in [
        ("modul", "modulo"),
        ("randezvous", "rendezvous"),
        ("Key-Range-8", "key-range"),
        ("fixed-64+work_stealin", "fixed-64+work_stealing"),
        ("fixed+bounded-ring", "fixed+bounded_ring"),
        ("jump-3", "jump"),
        ("ring+balanced", "ring"),
        ("ring-99999999999", "ring"),
    ] {
        assert_eq!(Scheme::parse(wrong, 3).unwrap_err().nearest, nearest, "{wrong}");
    }
}

#[test]
fn even_cuts_follow_the_alphabet_and_not_the_keys() {
    let items =
        ["a", "aa", "ab", "ac", "ad", "ae", "z"].map(|text| Item { key: key(text), weight: 1.0, bytes: 1 });
    let mut question = question(9, 2, vec![], &["key-even-2"]);
    question.sample = Sample::new(items.to_vec()).unwrap();
    let comparison = compare(question).unwrap();
    let mut keys: Vec<u64> = comparison.outcomes[0].steps[0].loads.iter().map(|load| load.keys).collect();
    keys.sort_unstable();
    assert_eq!(keys, [1, 6]);
}

#[test]
fn zones_and_samples_of_no_weight_are_no_trouble() {
    let mut question = question(500, 4, all_events()[..1].to_vec(), &["modulo"]);
    question.schemes = Scheme::usual(4);
    for (i, node) in question.nodes.iter_mut().enumerate() {
        node.zone = (i != 3).then(|| Zone::new(["a", "b"][i % 2]).unwrap());
    }
    let items = question.sample.items().iter().map(|item| Item { weight: 0.0, ..item.clone() }).collect();
    question.sample = Sample::new(items).unwrap();
    for outcome in compare(question).unwrap().outcomes {
        assert_eq!(outcome.steps[1].balances.weight.max_over_mean, 1.0, "{}", outcome.scheme);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_least_is_never_above_the_moved(
        weights in prop::collection::vec(0u32..100, 1..120), count in 2usize..9, gone in 1usize..9,
    ) {
        let items = weights.iter().enumerate().map(|(i, weight)| {
            Item { key: key(&format!("k{i}")), weight: f64::from(*weight), bytes: u64::from(*weight) }
        });
        let mut question = question(1, count, vec![join(20), leave(1 + gone % count)], &["modulo"]);
        question.schemes = Scheme::usual(count);
        question.sample = Sample::new(items.collect()).unwrap();
        for outcome in compare(question).unwrap().outcomes {
            for moved in outcome.steps.iter().filter_map(|s| s.movement).flat_map(|m| [m.keys, m.weight, m.bytes]) {
                prop_assert!(moved.moved >= moved.least - 1e-9 * moved.of, "{} {:?}", outcome.scheme, moved);
            }
        }
    }
}
