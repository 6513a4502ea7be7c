//! The golden cases of `vectors/`, which `vectors/check.py` computes from their description alone.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise, in its helping functions too")]

use partage_core::base::id::Epoch;
use partage_core::base::name::NodeId;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::lookup::{HashIndex, RangeIndex};
use partage_core::keyspace::sharding::jump::{self, Jump};
use partage_core::keyspace::sharding::modulo::Modulo;
use partage_core::keyspace::sharding::nodes::{NodeScheme, WeightedNode};
use partage_core::keyspace::sharding::rendezvous::Rendezvous;
use partage_core::keyspace::sharding::ring::Ring;
use partage_core::keyspace::sharding::{PartitionKey, presplit};
use partage_core::placement::{NodeSpec, POLICIES, Problem, Standing, by_name};
use partage_service::dataset::Partitioner;
use partage_service::shuffle::pool::{PoolMap, SlotPlace};
use partage_service::shuffle::{RangeId, ShuffleId, bounds, partition};
use serde_json::Value;
use std::path::Path;

fn file(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors").join(name);
    serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("no list {name} in {value}"))
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no text {name} in {value}"))
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {value}"))
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn key(value: &Value) -> Vec<u8> {
    bytes(text(value, "key"))
}

fn hash(value: &Value) -> HashFunction {
    text(value, "hash").parse().unwrap()
}

#[test]
fn hashes() {
    let file = file("hashes.json");
    assert!(list(&file, "cases").len() >= 25);
    for case in list(&file, "cases") {
        let key = key(case);
        for hash in HashFunction::ALL {
            let expected = &case["hashes"][hash.name()];
            let digits = hash.bits().div_ceil(4) as usize;
            assert_eq!(format!("{:0digits$x}", hash.hash(&key)), text(expected, "value"), "{hash} of {case}");
            assert_eq!(format!("{:016x}", hash.point(&key)), text(expected, "point"), "{hash}");
            assert_eq!(format!("{:016x}", hash.scatter(&key)), text(expected, "scatter"), "{hash}");
            assert_eq!(u64::from(hash.slot(&key, 1_000)), number(expected, "slot_of_1000"), "{hash}");
        }
    }
}

#[test]
fn fixed_slots_and_hash_ranges() {
    let file = file("schemes.json");
    for case in list(&file, "fixed") {
        let slot = hash(case).slot(&key(case), number(case, "shards") as u32);
        assert_eq!(u64::from(slot), number(case, "slot"), "{case}");
    }
    for case in list(&file, "hash_ranges") {
        let ranges = presplit::even_hashes(number(case, "ranges") as usize).unwrap();
        let begins: Vec<u64> = ranges.iter().map(|range| range.first).collect();
        let point = hash(case).point(&key(case));
        let found = HashIndex::build(&begins).unwrap().find(point);
        assert!(found as u64 == number(case, "range") && ranges[found].contains(point), "{case}");
    }
}

#[test]
fn key_ranges() {
    let file = file("schemes.json");
    let case = &file["key_ranges"];
    let begins: Vec<Vec<u8>> =
        list(case, "begins").iter().map(|begin| bytes(begin.as_str().unwrap())).collect();
    let points: Vec<Key> = begins[1..].iter().map(|begin| Key::new(begin).unwrap()).collect();
    let ranges = presplit::at_points(&points).unwrap();
    let index = RangeIndex::build(begins.iter().map(Vec::as_slice)).unwrap();
    for case in list(case, "lookups") {
        let found = index.find(&key(case));
        assert!(found as u64 == number(case, "range") && ranges[found].contains(&key(case)), "{case}");
    }
}

#[test]
fn partition_keys() {
    for case in list(&file("schemes.json"), "partition_keys") {
        let rule = match text(case, "rule").split_once(' ') {
            None if case["rule"] == "whole" => PartitionKey::Whole,
            None => PartitionKey::HashTag,
            Some(("prefix", bytes)) => PartitionKey::Prefix { bytes: bytes.parse().unwrap() },
            Some((_, delimiter)) => PartitionKey::UpTo { delimiter: delimiter.parse().unwrap() },
        };
        assert_eq!(rule.of(&key(case)), bytes(text(case, "partition_key")), "{case}");
    }
}

#[test]
fn samples() {
    for case in list(&file("schemes.json"), "sample_presplit") {
        let sample = list(case, "sample")
            .iter()
            .map(|pair| (Key::new(&bytes(pair[0].as_str().unwrap())).unwrap(), pair[1].as_u64().unwrap()));
        let ranges = presplit::from_sample(sample, number(case, "shards") as usize).unwrap();
        let begins: Vec<&[u8]> = ranges.iter().map(|range| range.begin.as_bytes()).collect();
        let expected: Vec<Vec<u8>> =
            list(case, "begins").iter().map(|begin| bytes(begin.as_str().unwrap())).collect();
        assert_eq!(begins, expected, "{}", case["shards"]);
    }
}

#[test]
fn jump_buckets() {
    for case in list(&file("schemes.json"), "jump_buckets") {
        let key = u64::from_str_radix(text(case, "key"), 16).unwrap();
        let bucket = jump::bucket(key, number(case, "buckets") as u32);
        assert_eq!(u64::from(bucket), number(case, "bucket"), "{case}");
    }
}

fn nodes(case: &Value) -> Vec<WeightedNode> {
    let node = |node: &Value| WeightedNode {
        name: NodeId::new(node[0].as_str().unwrap()).unwrap(),
        weight: node[1].as_u64().unwrap() as u32,
    };
    list(case, "nodes").iter().map(node).collect()
}

#[test]
fn schemes_from_hashes_to_nodes() {
    let file = file("schemes.json");
    let mut seen = std::collections::BTreeSet::new();
    for case in list(&file, "nodes") {
        let nodes = nodes(case);
        let ring = || Ring::build(&nodes, number(case, "tokens_per_weight") as u32).unwrap();
        let scheme: Box<dyn NodeScheme> = match text(case, "scheme") {
            "modulo" => Box::new(Modulo::build(&nodes).unwrap()),
            "jump" => Box::new(Jump::build(&nodes).unwrap()),
            "rendezvous" => Box::new(Rendezvous::build(&nodes).unwrap()),
            "ring" => Box::new(ring()),
            other => panic!("no scheme {other}"),
        };
        seen.insert(text(case, "scheme"));
        let name = |node: usize| nodes[node].name.as_str();
        let mut hashes = Vec::new();
        for lookup in list(case, "lookups") {
            let hash = u64::from_str_radix(text(lookup, "hash"), 16).unwrap();
            assert_eq!(name(scheme.node(hash)), text(lookup, "node"), "{} {lookup}", case["scheme"]);
            let first: Vec<&str> = scheme.first(hash, 3).into_iter().map(name).collect();
            assert_eq!(Value::from(first), lookup["first_3"], "{} {lookup}", case["scheme"]);
            hashes.push(hash);
        }
        if case["scheme"] == "ring" {
            let bounded: Vec<&str> = ring().bounded(&hashes, 10).into_iter().map(name).collect();
            assert_eq!(Value::from(bounded), case["bounded_10_percent"]);
        }
    }
    assert_eq!(seen.len(), 4);
}

#[test]
fn placements_by_every_policy() {
    for case in list(&file("placements.json"), "cases") {
        let names: Vec<NodeId> =
            list(case, "nodes").iter().map(|name| NodeId::new(name.as_str().unwrap()).unwrap()).collect();
        let gone = case["gone"].as_str();
        let spec = |(name, at): (&NodeId, u32)| match gone == Some(name.as_str()) {
            true => NodeSpec { standing: Standing::Gone, ..NodeSpec::new(name.clone(), at) },
            false => NodeSpec::new(name.clone(), at),
        };
        let specs = names.iter().zip(0..).map(spec).collect();
        let replicas = list(case, "replicas").iter().map(|count| count.as_u64().unwrap() as u8).collect();
        let mut problem = Problem::new(specs, replicas);
        let hash = |hash: &Value| u64::from_str_radix(hash.as_str().unwrap(), 16).unwrap();
        problem.hashes = list(case, "hashes").iter().map(hash).collect();
        if gone.is_some() {
            let index = |name: &Value| names.iter().position(|known| name == known.as_str()).unwrap() as u32;
            let on = |nodes: &Value| nodes.as_array().unwrap().iter().map(index).collect::<Vec<_>>();
            problem.current = list(case, "current").iter().map(on).collect();
        }
        for policy in POLICIES {
            let solution = by_name(policy).unwrap().place(&problem).unwrap();
            let named = |nodes: &[u32]| -> Vec<&str> {
                nodes.iter().map(|node| names[*node as usize].as_str()).collect()
            };
            let found: Vec<Vec<&str>> = solution.placement.iter().map(named).collect();
            let found = serde_json::json!(found);
            assert_eq!(found, case["placed"][policy], "{policy} says {found} of {case}");
        }
    }
}

#[test]
fn partitions_of_datasets() {
    let file = file("partitions.json");
    assert!(list(&file, "cases").len() >= 100);
    for case in list(&file, "cases") {
        let (key, partitions) = (key(case), number(case, "partitions") as u32);
        for partitioner in Partitioner::ALL {
            let found = (partitioner.partition(&key, partitions), partitioner.alternative(&key, partitions));
            let expected = list(&case["in"], partitioner.hash_function().name());
            let both = (expected[0].as_u64(), expected[1].as_u64());
            assert_eq!((Some(found.0.into()), found.1.map(u64::from)), both, "{partitioner} of {case}");
        }
    }
}

#[test]
fn x11_identities_of_ranges() {
    let file = file("shuffles.json");
    let number = |value: &Value| value.as_u64().unwrap();
    assert!(list(&file, "identities").len() >= 4);
    for case in list(&file, "identities") {
        let (old, new) = (list(case, "old"), list(case, "new"));
        let place = |ranges: &[Value], range: &Value| ranges.iter().position(|one| one == range).unwrap();
        let shared = list(case, "shared").iter();
        let shared = shared.map(|pair| (place(old, &pair[0]), place(new, &pair[1]), number(&pair[2])));
        let old_ids: Vec<RangeId> = old.iter().map(|id| RangeId(number(id))).collect();
        let next = RangeId(number(&case["next"]));
        let ids = bounds::identities(&old_ids, new.len(), &shared.collect::<Vec<_>>(), next);
        let expected: Vec<RangeId> = list(case, "ids").iter().map(|id| RangeId(number(id))).collect();
        assert_eq!(ids, expected, "{case}");
    }
}

#[test]
fn x13_ranks_of_partitions_and_slots_of_ranges() {
    let file = file("shuffles.json");
    let hex = |value: &Value, name: &str| u128::from_str_radix(text(value, name), 16).unwrap();
    for case in list(&file, "ranks") {
        let (total, n) = (hex(case, "total") as u64, number(case, "n"));
        let ranks: Vec<String> = (0..=n).map(|i| format!("{:016x}", partition::rank(i, n, total))).collect();
        assert_eq!(ranks, list(case, "ranks").iter().map(|rank| rank.as_str().unwrap()).collect::<Vec<_>>());
    }
    assert!(list(&file, "ranks").len() >= 7 && list(&file, "slots").len() >= 4);
    for case in list(&file, "slots") {
        let place = SlotPlace { epoch: Epoch(1), live: Vec::new(), loading: Vec::new() };
        let places = vec![place; number(case, "slots") as usize];
        let map = PoolMap {
            generation: 1,
            replicas: 2,
            places,
            nodes: Vec::new(),
            no_stand_ins: Default::default(),
        };
        let shuffle = ShuffleId(hex(case, "shuffle"));
        assert_eq!(u64::from(map.home(shuffle).0), number(case, "home"), "{case}");
        let range = RangeId(hex(case, "range") as u64);
        assert_eq!(u64::from(map.slot_of(shuffle, range).0), number(case, "slot"), "{case}");
    }
}
