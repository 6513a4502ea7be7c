//! The order of what is encoded, its ends, and what becomes of indexes when shards are merged.

use super::*;
use crate::table::filter::{Number, Path, Scalar};
use partage_core::base::id::ShardId;
use partage_core::base::name::IndexName;
use partage_core::keyspace::key::Key;
use partage_core::limits::INDEX_TEXT_BYTES;
use proptest::prelude::*;
use std::cmp::Ordering;
use std::collections::BTreeMap;

fn number() -> impl Strategy<Value = Number> {
    let near = prop_oneof![Just(0i128), Just(1 << 53), Just(1 << 63), Just(1 << 64), Just(-(1 << 63))];
    let whole = (near, -4_000i128..4_000)
        .prop_map(|(base, by)| Number::Whole((base + by).clamp(i128::from(i64::MIN), i128::from(u64::MAX))));
    let fraction = prop_oneof![
        any::<f64>().prop_filter("JSON has no others", |number| number.is_finite()),
        (-4_000i32..4_000).prop_map(|number| f64::from(number) / 4.0),
        (-4_000i32..4_000).prop_map(|number| 9_007_199_254_740_992.0 + f64::from(number)),
        Just(-0.0),
    ];
    prop_oneof![
        whole,
        any::<i64>().prop_map(|whole| Number::Whole(whole.into())),
        any::<u64>().prop_map(|whole| Number::Whole(whole.into())),
        fraction.prop_map(Number::Fraction),
    ]
}

fn value() -> impl Strategy<Value = IndexedValue> {
    let part = prop_oneof![Just("\0"), Just("\u{1}"), Just("a"), Just("é"), Just("\u{ffff}")];
    let text = proptest::collection::vec(part, 0..5).prop_map(|parts| parts.concat());
    let long = (INDEX_TEXT_BYTES - 3..INDEX_TEXT_BYTES + 4, "[a\0é]{0,3}")
        .prop_map(|(bytes, end)| "a".repeat(bytes) + &end);
    prop_oneof![
        1 => any::<bool>().prop_map(IndexedValue::Bool),
        4 => number().prop_map(IndexedValue::Number),
        2 => text.prop_map(IndexedValue::Text),
        1 => long.prop_map(IndexedValue::Text),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]
    #[test]
    fn bytes_have_the_order_of_values(one in value(), other in value()) {
        let (bytes, others) = (one.encode(), other.encode());
        let order = one.compare(&other);
        if is_cut(&bytes) && is_cut(&others) && bytes == others {
            let begin = |value: &IndexedValue| match value {
                IndexedValue::Text(text) => text.as_bytes()[..INDEX_TEXT_BYTES].to_vec(),
                other => panic!("{other:?} is cut"),
            };
            prop_assert_eq!(begin(&one), begin(&other), "only what a cut leaves out is not told apart");
        } else {
            prop_assert_eq!(bytes.cmp(&others), order, "{:?} {:?}", bytes, others);
        }
        let is_beginning = bytes != others && others.starts_with(&bytes);
        prop_assert!(!is_beginning, "no value is the beginning of another one");
        prop_assert!(bytes[0] == one.kind() && bytes[0] < kind_end(one.kind()));
    }

    #[test]
    fn an_encoded_value_ends_where_it_does(value in value(), behind in any::<Vec<u8>>(), cut in any::<prop::sample::Index>()) {
        let bytes = value.encode();
        let whole = [&bytes[..], &behind].concat();
        prop_assert_eq!(encoded_value(&whole), Some((&bytes[..], &behind[..])));
        prop_assert_eq!(encoded_value(&bytes[..cut.index(bytes.len())]), None);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in any::<Vec<u8>>()) {
        if let Some((value, rest)) = encoded_value(&bytes) {
            prop_assert_eq!([value, rest].concat(), bytes.clone());
        }
        is_cut(&bytes);
    }
}

#[test]
fn a_few_bytes_stay_as_they_are() {
    let of =
        |value: IndexedValue| value.encode().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(of(IndexedValue::Bool(true)), "0101");
    assert_eq!(of(IndexedValue::Number(Number::Whole(1))), "02bff00000000000000000");
    assert_eq!(of(IndexedValue::Number(Number::Fraction(1.0))), "02bff00000000000000000");
    assert_eq!(of(IndexedValue::Number(Number::Whole((1 << 53) + 1))), "02c3400000000000000001");
    assert_eq!(of(IndexedValue::Number(Number::Fraction(-0.5))), "02401fffffffffffff0000");
    assert_eq!(of(IndexedValue::Text("a\0".into())), "036100ff0000");
    assert_eq!(of(IndexedValue::Text("b".repeat(257))), format!("03{}0001", "62".repeat(256)));
    assert_eq!(IndexedValue::of(Scalar::Null), None);
    let text = IndexedValue::of(Scalar::Text("x"));
    assert_eq!(text.map(|text| text.compare(&IndexedValue::Bool(true))), Some(Ordering::Greater));
}

fn definition(name: &str, path: &str, state: IndexState) -> Definition {
    let new = Definition::new(IndexName::new(name).unwrap(), Path::parse(path).unwrap());
    Definition { state, ..new }
}

#[test]
fn an_index_of_merged_shards_is_ready_only_if_it_was_in_all() {
    let ready = |name| definition(name, "a", IndexState::Ready);
    let key = Key::new(b"k").unwrap();
    let building = |name| definition(name, "a", IndexState::Building(key.clone()));
    let dropping = |name| definition(name, "a", IndexState::Dropping(vec![7]));
    let left = vec![ready("both"), ready("one"), ready("built"), ready("gone")];
    let right =
        vec![ready("both"), building("built"), dropping("gone"), definition("both2", "b", IndexState::Ready)];
    let states: BTreeMap<String, IndexState> =
        joined(&[left, right]).into_iter().map(|one| (one.name.to_string(), one.state)).collect();
    let anew = IndexState::Building(Key::empty());
    let expected = [
        ("both", IndexState::Ready),
        ("both2", anew.clone()),
        ("built", anew.clone()),
        ("gone", IndexState::Dropping(vec![])),
        ("one", anew),
    ];
    assert_eq!(states, expected.map(|(name, state)| (name.to_owned(), state)).into());
    let crossed = joined(&[vec![ready("x")], vec![definition("x", "b", IndexState::Ready)]]);
    assert_eq!(crossed.len(), 2);
    assert!(!crossed[1].is_kept_up() && crossed[0].is_kept_up());
}

#[test]
fn an_index_of_a_table_is_what_all_shards_say() {
    let ready = || definition("x", "a", IndexState::Ready);
    let building = || definition("x", "a", IndexState::Building(Key::empty()));
    let state = |shards: Vec<Vec<Definition>>| {
        let shards = (1..).map(ShardId).zip(shards).collect();
        overview(&shards).first().map(|one| (one.state, one.ready, one.shards))
    };
    assert_eq!(state(vec![vec![ready()], vec![ready()]]), Some((TableState::Ready, 2, 2)));
    assert_eq!(state(vec![vec![ready()], vec![building()]]), Some((TableState::Building, 1, 2)));
    assert_eq!(state(vec![vec![ready()], vec![]]), Some((TableState::Incomplete, 1, 2)));
    let dropping = definition("x", "a", IndexState::Dropping(vec![]));
    assert_eq!(state(vec![vec![dropping], vec![]]), Some((TableState::Dropping, 0, 2)));
    let other = definition("x", "b", IndexState::Ready);
    assert_eq!(state(vec![vec![ready()], vec![other]]), Some((TableState::Conflicting, 2, 2)));
    assert_eq!(state(vec![vec![], vec![]]), None);
}

#[test]
fn what_only_the_last_shards_lack_is_to_be_completed() {
    let ready = || definition("x", "a", IndexState::Ready);
    let building = || definition("x", "a", IndexState::Building(Key::empty()));
    let dropping = || definition("x", "a", IndexState::Dropping(vec![]));
    let found = |shards: Vec<Vec<Definition>>| {
        let shards = (1..).map(ShardId).zip(shards).collect();
        lacking(&shards).iter().map(|one| one.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(found(vec![vec![ready()], vec![], vec![]]), ["x"]);
    assert_eq!(found(vec![vec![ready()], vec![building()], vec![]]), ["x"]);
    let other = definition("y", "b", IndexState::Ready);
    assert_eq!(found(vec![vec![ready(), other.clone()], vec![other]]), ["x"], "each for itself");
    // All have it, or none; a shard before others lacks it, one drops it, or has another one under that name.
    let crossed = definition("x", "b", IndexState::Ready);
    for shards in [
        vec![vec![ready()], vec![ready()]],
        vec![vec![], vec![]],
        vec![vec![], vec![ready()]],
        vec![vec![ready()], vec![], vec![ready()]],
        vec![vec![ready()], vec![dropping()], vec![]],
        vec![vec![ready()], vec![crossed], vec![]],
    ] {
        assert!(found(shards.clone()).is_empty(), "{shards:?}");
    }
}

#[test]
fn there_is_one_index_of_a_name_and_not_too_many() {
    let new = definition("x", "a", IndexState::Ready);
    assert!(new.may_join(&[]) && !new.may_join(std::slice::from_ref(&new)));
    assert!(!new.may_join(&[definition("x", "b", IndexState::Ready)]));
    let many: Vec<_> = (0..partage_core::limits::INDEXES)
        .map(|at| definition(&format!("i{at}"), "a", IndexState::Ready))
        .collect();
    assert!(!new.may_join(&many) && new.may_join(&many[1..]));
}
