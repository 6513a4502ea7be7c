//! Each planted difference is found where it is, and what is alike is not.

use super::*;
use partage_core::base::name::NodeId;
use proptest::prelude::*;

fn node(number: usize) -> NodeId {
    NodeId::new(&format!("n{number}")).unwrap()
}

fn digest(sums: &[(u8, u64)]) -> Digest {
    let mut digest = Digest::default();
    for (range, hash) in sums {
        let first = if *range == 0 { Key::empty() } else { Key::new(&[*range]).unwrap() };
        let range = digest.ranges.entry(first).or_default();
        for part in [Part::Rows, Part::Index(IndexName::new("x").unwrap())] {
            range.stored.entry(part.clone()).or_default().add(*hash);
            if part != Part::Rows {
                range.expected.entry(part).or_default().add(*hash);
            }
        }
    }
    digest
}

fn same(replicas: usize, sums: &[(u8, u64)]) -> BTreeMap<NodeId, Digest> {
    (0..replicas).map(|number| (node(number), digest(sums))).collect()
}

proptest! {
    #[test]
    fn one_change_in_one_replica_is_named_by_node_part_and_range(
        sums in proptest::collection::vec((0u8..6, any::<u64>()), 1..40),
        replicas in 3usize..6, which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(),
        by in 1u64.., of_index in any::<bool>(),
    ) {
        let mut all = same(replicas, &sums);
        prop_assert_eq!(compare(&all), vec![]);
        let (bad, range) = (node(which.index(replicas)), sums[at.index(sums.len())].0);
        let first = if range == 0 { Key::empty() } else { Key::new(&[range]).unwrap() };
        let part = if of_index { Part::Index(IndexName::new("x").unwrap()) } else { Part::Rows };
        let digest = all.get_mut(&bad).unwrap().ranges.get_mut(&first).unwrap();
        digest.stored.get_mut(&part).unwrap().add(by);
        let found = compare(&all);
        prop_assert!(found.iter().all(|one| (&one.node, &one.part, &one.first) == (&bad, &part, &first)), "{:?}", found);
        let kinds: Vec<bool> = found.iter().map(|one| matches!(one.kind, Kind::FromRows { .. })).collect();
        prop_assert_eq!(kinds, if of_index { vec![false, true] } else { vec![false] });
    }
}

#[test]
fn a_range_that_a_replica_lacks_is_a_difference_and_two_have_no_majority() {
    let mut all = same(3, &[(0, 1), (7, 2)]);
    let bad = all.get_mut(&node(1)).unwrap();
    let lost = bad.ranges.remove(&Key::new(&[7]).unwrap()).unwrap();
    let found = compare(&all);
    assert!(found.iter().all(|one| one.node == node(1) && one.first.as_bytes() == [7]), "{found:?}");
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].kind.to_string(), "0 records, and most replicas have 1");
    all.get_mut(&node(1)).unwrap().ranges.insert(Key::new(&[7]).unwrap(), lost);
    all.remove(&node(2));
    all.get_mut(&node(0))
        .unwrap()
        .ranges
        .get_mut(&Key::empty())
        .unwrap()
        .stored
        .get_mut(&Part::Rows)
        .unwrap()
        .add(1);
    let nodes: Vec<NodeId> = compare(&all).into_iter().map(|one| one.node).collect();
    assert_eq!(nodes, [node(0), node(1)]);
}

#[test]
fn ranges_begin_at_about_one_key_of_so_many() {
    let begins = |rows| (0u32..8_192).filter(|key| begins_range(&key.to_be_bytes(), rows)).count();
    assert_eq!(begins(1), 8_192);
    assert!((64..192).contains(&begins(64)), "{}", begins(64));
}
