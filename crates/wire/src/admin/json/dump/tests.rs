//! A dump comes back as it went, and a damaged one says everything that is wrong with it.

use super::{Dump, Reading};
use crate::json::parse;
use crate::testing;
use partage_core::base::id::Incarnation;
use partage_core::cluster::check;
use partage_core::cluster::{KeyspaceRecord, NodeRecord, Records};
use partage_core::node::NodeSpec;
use partage_core::plan::{Origin, Plan, Status};
use proptest::prelude::*;
use serde_json::{Value, json};

fn read(records: &Records) -> Reading {
    Reading::of(&serde_json::to_vec(&Dump::from(records)).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn records_come_back_as_they_went(
        cluster in testing::cluster_records(),
        (keyspace, diffs) in testing::histories(0..6),
        rules in testing::keyspace_records(),
        nodes in proptest::collection::vec(testing::node_records(), 0..4),
        plans in proptest::collection::vec(testing::plans(), 0..4),
    ) {
        let map = testing::replay(&keyspace, &diffs);
        let record = KeyspaceRecord { keyspace, ..rules };
        let records = Records { cluster, keyspaces: vec![(record, map)], nodes, plans };
        let document = serde_json::to_vec(&Dump::from(&records)).unwrap();
        let form: Dump = parse(&document).unwrap();
        prop_assert_eq!(&Records::try_from(form).unwrap(), &records);
        // The way that forgives reads the same where there is nothing to forgive.
        let reading = Reading::of(&document);
        prop_assert!(!reading.has_lost, "{:?}", reading.problems);
        prop_assert_eq!(reading.records, records);
    }

    #[test]
    fn no_damage_is_a_panic(
        (keyspace, diffs) in testing::histories(1..3), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let map = testing::replay(&keyspace, &diffs);
        let record = KeyspaceRecord::new(keyspace, 1, partage_core::base::id::ShardId(1));
        let records = Records { keyspaces: vec![(record, map)], ..Records::default() };
        let mut document = serde_json::to_vec(&Dump::from(&records)).unwrap();
        let at = at.index(document.len());
        document[at] = byte;
        Reading::of(&document);
        prop_assert!(Reading::of(&document[..at]).has_lost, "it was cut");
    }
}

/// A sound document: keyspace `kv` with shards s1 up to "m" and s2 from there, replicas p1 and p2 on n1 and n2.
fn sound() -> Value {
    let document = json!({
        "format": 1,
        "cluster": {
            "next_incarnation": 3, "next_plan": 8, "longest_lease_ms": 3000, "next_shard": 1, "next_placement": 1,
        },
        "keyspaces": [{
            "settings": { "name": "kv", "sharding": { "type": "key_range" } },
            "created_ms": 1,
            "map": {
                "generation": { "sequence": 2, "transaction": "0101010101010101010101010101010101010101" },
                "next_shard": 3,
                "next_placement": 3,
                "shards": [
                    shard(1, ("", "m"), "n1"),
                    shard(2, ("m", ""), "n2"),
                ],
            },
        }],
        "nodes": [node("n1", 1), node("n2", 2)],
        "plans": [],
    });
    assert_eq!(Reading::of(document.to_string().as_bytes()).problems, Vec::<String>::new());
    document
}

fn shard(id: u64, (begin, end): (&str, &str), node: &str) -> Value {
    json!({
        "shard": id, "epoch": 1, "bounds": { "type": "keys", "begin": begin, "end": end }, "stage": "serving",
        "replicas": [{ "placement": id, "node": node, "incarnation": 1, "role": "leader", "state": "live" }],
    })
}

fn node(id: &str, incarnation: u64) -> Value {
    let spec = json!({ "id": id, "address": format!("{id}.example:80"), "incarnation": incarnation });
    json!({ "spec": spec, "ended": false, "since_ms": 1 })
}

/// What is said about the sound document after a hand was at it.
fn told(hand: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut document = sound();
    hand(&mut document);
    Reading::of(document.to_string().as_bytes()).problems
}

#[test]
fn a_hand_that_was_at_it_is_noticed() {
    let second = json!({
        "placement": 3, "node": "n2", "incarnation": 1, "role": "leader", "state": "live",
    });
    let cases: Vec<(&str, Value, &str)> = vec![
        (
            "/keyspaces/0/map/shards/0/replicas/1",
            second,
            "keyspace kv: O1: shard s1 has two leaders: p1 and p3",
        ),
        (
            "/keyspaces/0/map/shards/0/bounds/end",
            json!("t"),
            "keyspace kv: M1: shards s1 and s2 hold keys in common",
        ),
        (
            "/keyspaces/0/map/shards/0/bounds/end",
            json!("g"),
            "keyspace kv: M1: nothing holds the keys from g to m",
        ),
        (
            "/keyspaces/0/map/shards/1/bounds/begin",
            json!("t"),
            "keyspace kv: M1: nothing holds the keys from m to t",
        ),
        (
            "/keyspaces/0/map/shards/0/replicas/0/node",
            json!("n11"),
            "keyspace kv, shard s1, replica p1: there is no node n11: did you mean n1?",
        ),
        (
            "/keyspaces/0/map/shards/0/replicas/0/incarnation",
            json!(9),
            "keyspace kv, shard s1, replica p1: it is on start i9 of node n1, whose latest is i1",
        ),
        (
            "/keyspaces/0/map/shards/1/replicas/0/stat",
            json!("live"),
            "keyspace kv, shard s2, replica p2, unknown field `stat`",
        ),
        (
            "/keyspaces/0/map/shards/1/replicas/0/state",
            json!("alive"),
            "keyspace kv, shard s2, replica p2, state: ",
        ),
        ("/keyspaces/0/map/shards/1/epoch", json!(-1), "keyspace kv, shard s2, invalid value: integer `-1`"),
        ("/keyspaces/0/settings/replcas", json!(2), "keyspace kv, unknown field `replcas`"),
        ("/keyspaces/0/map/shard", json!(2), "keyspace kv, unknown field `shard`"),
        ("/nodes/1/spec/capacity", json!(0), "node n2, spec.capacity: node n2: capacity 0 is not usable"),
        ("/nodes/1/drian", json!({}), "node n2, unknown field `drian`"),
        ("/nodes/1/spec/id", json!("n1"), "node n1 is there twice"),
        (
            "/cluster/next_incarnation",
            json!(2),
            "node n2: its start i2 was not given out yet: the next is i2",
        ),
        ("/cluster/next_incarnaton", json!(2), "cluster, unknown field `next_incarnaton`"),
        ("/format", json!(2), "format: is 2: this program knows 1"),
        ("/colour", json!("red"), "unknown field `colour`"),
    ];
    for (place, value, expected) in cases {
        let problems = told(|document| put(document, place, value.clone()));
        let found = problems.iter().any(|problem| problem.starts_with(expected));
        assert!(found, "{place} = {value}: {problems:?}");
    }
    assert!(
        told(|d| put(d, "/keyspaces/0/settings/replcas", json!(2)))[0].ends_with("did you mean replicas?")
    );
    assert!(told(|d| put(d, "/nodes/1/drian", json!({})))[0].ends_with("did you mean drain?"));
}

/// Sets a field, or adds it.
fn put(document: &mut Value, place: &str, value: Value) {
    let (parent, last) = place.rsplit_once('/').unwrap();
    match document.pointer_mut(parent).unwrap() {
        Value::Object(fields) => drop(fields.insert(last.to_owned(), value)),
        Value::Array(list) => list.push(value),
        other => panic!("{place} is in {other}"),
    }
}

#[test]
fn everything_wrong_is_told_at_once_and_the_rest_is_kept() {
    let mut document = sound();
    put(&mut document, "/keyspaces/0/map/shards/0/replicas/0/role", json!("boss"));
    put(&mut document, "/nodes/0/spec/address", json!("nowhere"));
    put(&mut document, "/plans/0", json!({ "id": 7 }));
    let reading = Reading::of(document.to_string().as_bytes());
    let problems = reading.problems.join("\n");
    for place in ["shard s1, replica p1, role: ", "node n1, spec.address: ", "plan 7, missing field"] {
        assert!(problems.contains(place), "{place} in {problems}");
    }
    assert!(reading.has_lost);
    let kept = &reading.records;
    assert_eq!((kept.keyspaces[0].1.len(), kept.nodes.len(), kept.plans.len()), (2, 1, 0));
    assert_eq!(Reading::of(b"{").problems.len(), 1);
    assert!(Reading::of(b"[]").problems[0].contains("no JSON object"));
    assert_eq!(Reading::of(b"{}").problems.len(), 5, "{:?}", Reading::of(b"{}").problems);
}

#[test]
fn plans_are_checked_against_the_map_they_were_made_from() {
    let mut records = Records::try_from(serde_json::from_value::<Dump>(sound()).unwrap()).unwrap();
    let map = &records.keyspaces[0].1;
    let change = partage_core::plan::Change::Add {
        shard: partage_core::base::id::ShardId(1),
        node: "n9".parse().unwrap(),
    };
    let plan = Plan {
        id: partage_core::base::id::PlanId(7),
        keyspace: map.keyspace().clone(),
        base: map.generation(),
        origin: Origin::Rebalance,
        changes: vec![partage_core::plan::Planned::new(change, "why")],
        status: Status::Suggested,
        made_ms: 1,
        decided_by: None,
    };
    let later = partage_core::base::id::Generation { sequence: 9, ..plan.base };
    let cases = [
        (plan.clone(), "plan-7 of keyspace kv: M7: nothing new is placed on node n9: it is not registered"),
        (Plan { status: Status::Superseded, ..plan.clone() }, ""),
        (
            Plan { base: later, ..plan.clone() },
            "plan-7 of keyspace kv: it was made from map 9, but the map is at 2",
        ),
        (
            Plan { id: partage_core::base::id::PlanId(8), ..plan.clone() },
            "plan-8 was not given out yet: the next is plan-8",
        ),
        (Plan { keyspace: "kw".parse().unwrap(), ..plan }, "plan-7: there is no keyspace kw"),
    ];
    for (plan, expected) in cases {
        records.plans = vec![plan];
        let problems = read(&records).problems;
        match expected.is_empty() {
            true => assert_eq!(problems, Vec::<String>::new()),
            false => assert!(problems[0].starts_with(expected), "{problems:?}"),
        }
    }
}

#[test]
fn what_is_saved_after_a_loss_gives_no_number_again_and_forgets_no_node() {
    let mut records = Records::try_from(serde_json::from_value::<Dump>(sound()).unwrap()).unwrap();
    assert!(
        records.nodes.iter().all(|node| node.held),
        "an older backup does not say that they have no data"
    );
    let before = records.clone();
    records.nodes = vec![NodeRecord::new(NodeSpec::new("n3".parse().unwrap(), "h:1"), Incarnation(77))];
    records.cluster = Default::default();
    let wall_ms = 1_790_000_000_000;
    let saved = records.clone().after_loss(wall_ms);
    assert_eq!(check::records(&saved), []);
    let names: Vec<_> = saved.nodes.iter().map(|node| node.spec.id.to_string()).collect();
    assert_eq!(names, ["n3", "n1", "n2"], "maps name them");
    assert!(saved.nodes.iter().all(|node| !node.ended));
    let held: Vec<_> = saved.nodes.iter().map(|node| node.held).collect();
    assert_eq!(held, [false, true, true], "who is named may have data");
    assert!(saved.cluster.next_incarnation > Incarnation(1_000_000));
    assert!(saved.cluster.longest_lease_ms > 3_000, "nobody knows how long the longest was");
    let ((_, old), (_, new)) = (&before.keyspaces[0], &saved.keyspaces[0]);
    for (old, new) in old.shards().zip(new.shards()) {
        assert!(new.epoch > old.epoch && new.replicas == old.replicas);
    }
    assert!(new.generation().sequence > old.generation().sequence, "M2: routers take no map that goes back");
    assert_eq!(new.parent(), Some(old.generation()));
    assert!(new.next_shard() > old.next_shard() && new.next_placement() > old.next_placement());
    assert!(saved.cluster.next_shard >= new.next_shard());
    // From the same copy once more, a minute later: a million starts in between were given once.
    let again = records.after_loss(wall_ms + 60_000);
    assert!(again.cluster.next_incarnation.0 > saved.cluster.next_incarnation.0 + 1_000_000);
    assert!(again.keyspaces[0].1.next_placement().0 > new.next_placement().0 + 1_000_000);
    assert!(again.keyspaces[0].1.generation().sequence > new.generation().sequence + 1_000_000);
}
