//! Golden cases in `vectors/`: what is stored, byte for byte, and maps with their diffs for any language.
//!
//! A form that changes breaks these. Then it is a new version of the form, not new golden cases: old stores
//! must stay readable.

use crate::json::{self, to_hex};
use crate::proto;
use crate::stored::{StoreEncoder, StoreOp, read};
use partage_core::base::id::{Generation, Incarnation, PlanId, ShardId, TransactionId};
use partage_core::base::name::NodeId;
use partage_core::cluster::{ClusterRecord, Drain, KeyspaceRecord, NodeRecord, ShardRule, Write};
use partage_core::keyspace::Keyspace;
use partage_core::keyspace::key::{Key, KeyRange};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{MapDiff, Replica, Shard, ShardMap, Stage};
use partage_core::keyspace::sharding::{Bounds, Sharding};
use partage_core::node::NodeSpec;
use partage_core::plan::{Change, Origin, Plan, Planned, Status};
use prost::Message;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const STORED: &str = include_str!("../../../vectors/stored.json");
const MAPS: &str = include_str!("../../../vectors/maps.json");
const ROLES: &str = include_str!("../../../vectors/roles.json");

fn keyspace() -> Keyspace {
    Keyspace::new("users".parse().unwrap(), Sharding::KeyRange)
}

/// Three commits: two shards, a replica that serves and leads, a split that begins beside a removed shard.
fn commits() -> Vec<MapDiff> {
    let key = |bytes: &[u8]| Key::new(bytes).unwrap();
    let range = |begin: &[u8], end: &[u8]| Bounds::Keys(KeyRange::new(key(begin), key(end)).unwrap());
    let node = |name: &str| NodeId::new(name).unwrap();
    let mut map = ShardMap::empty(keyspace().name, Sharding::KeyRange, keyspace().partition_key);
    let mut diffs = Vec::new();
    let mut edit = map.edit();
    let left = edit.create_shard(range(b"", b"m")).unwrap();
    let right = edit.create_shard(range(b"m", b"")).unwrap();
    let first = edit.add_replica(left, &node("n1"), Incarnation(1), None).unwrap();
    edit.add_replica(right, &node("n2"), Incarnation(2), None).unwrap();
    diffs.push(edit.commit(TransactionId([1; 20])));
    map.apply(&diffs[0]).unwrap();
    let mut edit = map.edit();
    edit.step(left, first, ReplicaState::Live).unwrap();
    edit.lead(left, first).unwrap();
    edit.add_replica(left, &node("n2"), Incarnation(2), Some(first)).unwrap();
    diffs.push(edit.commit(TransactionId([2; 20])));
    map.apply(&diffs[1]).unwrap();
    let mut edit = map.edit();
    edit.form_shards(vec![range(b"", b"f\xff"), range(b"f\xff", b"m")], &[left]).unwrap();
    edit.remove_shard(right).unwrap();
    diffs.push(edit.commit(TransactionId([3; 20])));
    diffs
}

fn writes() -> Vec<Write> {
    let rule = ShardRule { replicas: Some(2), set_aside: Some("why".into()), ..ShardRule::default() };
    let node = NodeSpec { zone: Some("z1".parse().unwrap()), ..NodeSpec::new("n1".parse().unwrap(), "h:1") };
    let drain = Drain { reason: "disk".into(), asked_ms: 5, max_down: Some(1), began_with: None };
    let change = Change::Add { shard: ShardId(1), node: "n2".parse().unwrap() };
    let rules = BTreeMap::from([(ShardId(1), rule)]);
    let record = KeyspaceRecord { rules, ..KeyspaceRecord::new(keyspace(), 9, ShardId(0)) };
    vec![
        Write::Cluster(ClusterRecord { longest_lease_ms: 3_000, ..ClusterRecord::default() }),
        Write::Keyspace(record),
        Write::Node(NodeRecord {
            held: true,
            drain: Some(drain),
            since_ms: 8,
            ..NodeRecord::new(node, Incarnation(1))
        }),
        Write::Plan(Plan {
            id: PlanId(1),
            keyspace: keyspace().name,
            base: Generation { sequence: 1, transaction: TransactionId([1; 20]) },
            origin: Origin::Repair,
            changes: vec![Planned::new(change, "it was lost")],
            status: Status::Approved,
            made_ms: 7,
            decided_by: None,
        }),
    ]
}

fn maps() -> Vec<ShardMap> {
    let diffs = commits();
    (0..=diffs.len()).map(|count| crate::testing::replay(&keyspace(), &diffs[..count])).collect()
}

/// What the store holds: a base from the first commit, diffs from the others.
fn stored() -> BTreeMap<String, Vec<u8>> {
    let (mut encoder, mut store) = (StoreEncoder::default(), BTreeMap::new());
    for (at, diff) in commits().into_iter().enumerate() {
        let mut all = if at == 0 { writes() } else { vec![] };
        all.push(Write::Map(diff));
        let map = &maps()[at + 1];
        let batch = encoder.encode(&all, |_| Some(map)).unwrap();
        for op in batch.commit {
            let StoreOp::Put(key, value) = op else { panic!("nothing is deleted") };
            store.insert(key, value.to_vec());
        }
    }
    store
}

#[test]
fn stored_bytes_are_those_of_the_vectors() {
    let golden: BTreeMap<String, String> = serde_json::from_str(STORED).unwrap();
    let written: BTreeMap<String, String> =
        stored().iter().map(|(key, value)| (key.clone(), to_hex(value))).collect();
    assert_eq!(written, golden, "now: {}", serde_json::to_string_pretty(&written).unwrap());
}

#[test]
fn the_vectors_are_read_as_what_was_written() {
    let golden: BTreeMap<String, String> = serde_json::from_str(STORED).unwrap();
    let bytes = |text: &str| -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    };
    let recovered = read(golden.iter().map(|(key, value)| (key, bytes(value)))).unwrap();
    assert!(recovered.litter.is_empty());
    assert_eq!(Some(&recovered.records.keyspaces[0].1), maps().last());
    for write in writes() {
        match write {
            Write::Cluster(record) => assert_eq!(recovered.records.cluster, record),
            Write::Keyspace(record) => assert_eq!(recovered.records.keyspaces[0].0, record),
            Write::Node(record) => assert_eq!(recovered.records.nodes, [record]),
            Write::Plan(plan) => assert_eq!(recovered.records.plans, [plan]),
            other => panic!("{other:?} is not among them"),
        }
    }
}

fn shard(shard: &Shard) -> Value {
    let (stage, children) = match shard.stage() {
        Stage::Serving => ("serving", vec![]),
        Stage::Forming(children) => ("forming", children.iter().map(|id| id.0).collect()),
        Stage::Closing(children) => ("closing", children.iter().map(|id| id.0).collect()),
        Stage::Removing => ("removing", vec![]),
    };
    let replicas = shard.replicas.iter().map(|replica| {
        json!({
            "placement": replica.placement.0,
            "node": replica.node.as_str(),
            "incarnation": replica.incarnation.0,
            "role": replica.role.to_string(),
            "state": replica.state.to_string(),
            "replaces": replica.replaces().map(|placement| placement.0),
        })
    });
    json!({
        "id": shard.id.0,
        "epoch": shard.epoch.0,
        "bounds": json::Bounds::from(&shard.bounds),
        "stage": stage,
        "children": children,
        "parents": shard.parents().iter().map(|id| id.0).collect::<Vec<_>>(),
        "replicas": replicas.collect::<Vec<_>>(),
    })
}

/// A shard of a table: `n1` leads, `n2` is in sync, `n3` is there to be read from.
fn roles() -> MapDiff {
    let name = "stock".parse().unwrap();
    let empty = ShardMap::empty(name, Sharding::KeyRange, keyspace().partition_key);
    let mut edit = empty.edit();
    let id = edit.create_shard(Bounds::Keys(KeyRange::new(Key::empty(), Key::empty()).unwrap())).unwrap();
    let node = |at: u64| (NodeId::new(&format!("n{at}")).unwrap(), Incarnation(at));
    let member = [1, 2].map(|at| edit.add_replica(id, &node(at).0, node(at).1, None).unwrap());
    let read = edit.add_read_replica(id, &node(3).0, node(3).1, None).unwrap();
    for placement in [member[0], member[1], read] {
        edit.step(id, placement, ReplicaState::Live).unwrap();
    }
    member.into_iter().for_each(|placement| edit.take_in(id, placement).unwrap());
    edit.lead(id, member[0]).unwrap();
    edit.commit(TransactionId([1; 20]))
}

#[test]
fn roles_are_the_numbers_of_the_vectors() {
    let golden: Value = serde_json::from_str(ROLES).unwrap();
    let (diff, shard) = (roles(), roles().changed[0].clone());
    let replica = |replica: &Replica| {
        json!({
            "placement": replica.placement.0,
            "node": replica.node.as_str(),
            "incarnation": replica.incarnation.0,
            "role": replica.role.to_string(),
            "state": replica.state.to_string(),
            "in_sync": replica.in_sync,
        })
    };
    let made = json!({
        "keyspace": diff.keyspace.as_str(),
        "transaction": to_hex(&[1; 20]),
        "epoch": shard.epoch.0,
        "configuration": shard.configuration.0,
        "replicas": shard.replicas.iter().map(replica).collect::<Vec<_>>(),
        "message": to_hex(&proto::MapDiff::from(&diff).encode_to_vec()),
    });
    assert_eq!(made, golden, "now: {}", serde_json::to_string_pretty(&made).unwrap());
    let read = proto::MapDiff::decode(&*proto::MapDiff::from(&diff).encode_to_vec()).unwrap();
    assert_eq!(MapDiff::try_from(read), Ok(diff));
}

fn map(map: &ShardMap) -> Value {
    json!({
        "generation": json::Generation::from(map.generation()),
        "parent": map.parent().map(json::Generation::from),
        "shards": map.shards().map(shard).collect::<Vec<_>>(),
        "next_shard": map.next_shard().0,
        "next_placement": map.next_placement().0,
    })
}

fn diff(diff: &MapDiff) -> Value {
    json!({
        "from": json::Generation::from(diff.from),
        "to": json::Generation::from(diff.to),
        "parent": diff.parent.map(json::Generation::from),
        "changed": diff.changed.iter().map(shard).collect::<Vec<_>>(),
        "removed": diff.removed.iter().map(|id| id.0).collect::<Vec<_>>(),
        "next_shard": diff.next_shard.0,
        "next_placement": diff.next_placement.0,
    })
}

#[test]
fn maps_and_diffs_are_those_of_the_vectors() {
    let golden: Value = serde_json::from_str(MAPS).unwrap();
    let maps = maps();
    let cases: Vec<Value> = commits()
        .iter()
        .zip(maps.windows(2))
        .map(|(one, maps)| json!({ "map": map(&maps[0]), "diff": diff(one), "next": map(&maps[1]) }))
        .collect();
    let made = json!({ "cases": cases });
    assert_eq!(made, golden, "now: {}", serde_json::to_string_pretty(&made).unwrap());
}
