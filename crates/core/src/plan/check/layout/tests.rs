use super::*;
use crate::base::id::TransactionId;
use crate::base::name::KeyspaceName;
use crate::keyspace::hash::HashFunction;
use crate::keyspace::key::{HashRange, Key, KeyRange};
use crate::keyspace::sharding::{PartitionKey, Slot};
use crate::plan::check;
use proptest::prelude::*;

/// The check of the layout as it was: of the whole map that follows.
fn whole(map: &ShardMap, diff: &MapDiff) -> Vec<Finding> {
    let mut next = map.clone();
    next.apply(diff).unwrap();
    let serving: Vec<_> = next.shards().filter(|shard| shard.is_serving()).collect();
    let mut findings = cover(next.sharding(), &serving);
    findings.extend(Next::of(map, diff).families());
    findings
}

const SHARDINGS: [Sharding; 4] = [
    Sharding::KeyRange,
    Sharding::HashRange { hash: HashFunction::Xxh3_64 },
    Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 8 },
    Sharding::Named,
];

/// The stretch from `begin` to `end`, of eight.
fn stretch(sharding: Sharding, begin: u8, end: u8) -> Vec<Bounds> {
    match sharding {
        Sharding::KeyRange => {
            let key = |at: u8| Key::new(if at == 0 || at == 8 { &[] } else { std::slice::from_ref(&at) });
            vec![Bounds::Keys(KeyRange { begin: key(begin).unwrap(), end: key(end).unwrap() })]
        }
        Sharding::HashRange { .. } => {
            let (first, last) = (u64::from(begin) << 61, ((u128::from(end) << 61) - 1) as u64);
            vec![Bounds::Hashes(HashRange { first, last })]
        }
        Sharding::Fixed { .. } if (begin, end) == (0, 8) => vec![Bounds::Slot(Slot::new(0, 1).unwrap())],
        Sharding::Fixed { .. } if end - begin == 3 => {
            (0..2).map(|part| Bounds::Slot(Slot::new(u32::from(begin) + 8 * part, 16).unwrap())).collect()
        }
        Sharding::Fixed { .. } => {
            (begin..end).map(|at| Bounds::Slot(Slot::new(u32::from(at), 8).unwrap())).collect()
        }
        Sharding::Named => vec![Bounds::Name(format!("part{begin}").parse().unwrap())],
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// Shards that serve from the beginning.
    Create(u8, u8),
    /// Children of one shard or of two, which prepare.
    Form(usize, usize, Vec<(u8, u8)>),
    /// Children open and their parents close.
    Switch(usize),
    Remove(usize),
    Close(usize),
}

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let part = || (0u8..8, 1u8..9).prop_map(|(begin, length)| (begin, (begin + length).min(8)));
    let step = prop_oneof![
        4 => part().prop_map(|(begin, end)| Step::Create(begin, end)),
        2 => (0usize..12, 0usize..12, prop::collection::vec(part(), 1..3)).prop_map(|(a, b, to)| Step::Form(a, b, to)),
        4 => (0usize..12).prop_map(Step::Switch),
        2 => (0usize..12).prop_map(Step::Remove),
        1 => (0usize..12).prop_map(Step::Close),
    ];
    prop::collection::vec(prop::collection::vec(step, 1..4), 1..12)
}

/// Carries out what can be of some steps.
fn commit(map: &ShardMap, steps: &[Step], number: u8) -> MapDiff {
    let ids: Vec<ShardId> = map.shards().map(|shard| shard.id).collect();
    let id = |at: usize| ids.get(at % ids.len().max(1)).copied().unwrap_or_default();
    let mut edit = map.edit();
    for step in steps {
        match step {
            Step::Create(begin, end) => {
                for bounds in stretch(map.sharding(), *begin, *end) {
                    edit.create_shard(bounds).unwrap();
                }
            }
            Step::Form(one, other, parts) => {
                let parents = if one == other { vec![id(*one)] } else { vec![id(*one), id(*other)] };
                let bounds = parts.iter().flat_map(|(begin, end)| stretch(map.sharding(), *begin, *end));
                let _ = edit.form_shards(bounds.collect(), &parents);
            }
            Step::Switch(at) => {
                let Some(shard) = map.shard(id(*at)) else { continue };
                if let Stage::Forming(children) = shard.stage() {
                    let _ = edit.switch(shard.parents(), children);
                }
            }
            Step::Remove(at) => drop(edit.remove_shard(id(*at))),
            Step::Close(at) => drop(edit.close(id(*at))),
        }
    }
    edit.commit(TransactionId([number; 20]))
}

/// The eight stretches, each a shard.
fn full(sharding: Sharding) -> ShardMap {
    let mut map = ShardMap::empty(KeyspaceName::new("users").unwrap(), sharding, PartitionKey::Whole);
    let mut edit = map.edit();
    for at in 0..8 {
        edit.create_shard(stretch(sharding, at, at + 1).remove(0)).unwrap();
    }
    let diff = edit.commit(TransactionId([9; 20]));
    map.apply(&diff).unwrap();
    map
}

fn sorted(findings: Vec<Finding>) -> Vec<String> {
    let mut sentences: Vec<_> = findings.iter().map(ToString::to_string).collect();
    sentences.sort();
    sentences
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    /// Whatever was done before, the check of what a commit touches finds what the check of the whole map finds.
    #[test]
    fn m1_o8_the_check_of_a_commit_finds_what_the_check_of_the_whole_map_finds(
        sharding in 0usize..4,
        is_full in any::<bool>(),
        commits in steps(),
    ) {
        let empty = ShardMap::empty(KeyspaceName::new("users").unwrap(), SHARDINGS[sharding], PartitionKey::Whole);
        let mut map = if is_full { full(SHARDINGS[sharding]) } else { empty };
        for (number, steps) in commits.iter().enumerate() {
            let diff = commit(&map, steps, number as u8);
            let expected = whole(&map, &diff);
            prop_assert_eq!(sorted(Next::of(&map, &diff).findings()), sorted(expected.clone()), "{:?} on {:?}", diff, map);
            // As a cluster does: what is wrong is not committed.
            if expected.is_empty() && check::diff(&map, &diff).is_empty() {
                map.apply(&diff).unwrap();
            }
        }
    }
}

/// Two shards of a map become one, and that one two others again.
#[test]
fn a_commit_that_fills_its_hole_does_not_look_at_the_rest() {
    for sharding in [SHARDINGS[0], SHARDINGS[1], SHARDINGS[2]] {
        let mut map = full(sharding);
        let ids: Vec<ShardId> = map.shards().map(|shard| shard.id).collect();
        let (parents, bounds) = match sharding {
            Sharding::Fixed { .. } => (vec![ids[1], ids[5]], vec![Bounds::Slot(Slot::new(1, 4).unwrap())]),
            _ => (vec![ids[2], ids[3]], stretch(sharding, 2, 4)),
        };
        let mut edit = map.edit();
        let children = edit.form_shards(bounds, &parents).unwrap();
        let diff = edit.commit(TransactionId([1; 20]));
        assert!(Next::of(&map, &diff).fills_its_hole(), "nothing serves differently");
        map.apply(&diff).unwrap();
        let mut edit = map.edit();
        edit.switch(&parents, &children).unwrap();
        let diff = edit.commit(TransactionId([2; 20]));
        assert!(Next::of(&map, &diff).fills_its_hole(), "{sharding}");
    }
}
