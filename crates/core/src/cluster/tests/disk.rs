//! Nodes whose disks have no room, little room, or store nothing: what goes there, who leads, and how it comes to lead again.

use super::durable::{cluster_of, durable};
use super::test_cluster::{BEAT_MS, TestCluster, node, settings};
use crate::base::id::ShardId;
use crate::cluster::event::EventKind;
use crate::keyspace::map::Shard;
use crate::keyspace::{Keyspace, Ownership};
use std::collections::BTreeMap;

/// A few shards: so few that a node may lead none before another one leads too many.
fn table(replicas: u32) -> Keyspace {
    Keyspace { ownership: Ownership::Replicated, ..durable(4, replicas) }
}

fn led_by(test: &TestCluster, id: &str) -> usize {
    test.map().shards().filter_map(Shard::leader).filter(|leader| leader.node == node(id)).count()
}

fn held_by(test: &TestCluster, id: &str) -> usize {
    test.map().shards().filter(|shard| shard.replicas.iter().any(|r| r.node == node(id))).count()
}

fn leaders(test: &TestCluster) -> BTreeMap<ShardId, String> {
    let led = test.map().shards().filter_map(|shard| Some((shard.id, shard.leader()?.node.to_string())));
    led.collect()
}

/// A node that leads something, as each of three does.
fn full_one(test: &mut TestCluster) {
    assert!(led_by(test, "n0") > 0, "{:?}", leaders(test));
    test.full.insert(node("n0"));
    test.run(10 * BEAT_MS);
}

#[test]
fn a_node_with_a_full_disk_leads_nothing_and_is_named() {
    let mut test = cluster_of(3, table(3));
    full_one(&mut test);
    assert_eq!(led_by(&test, "n0"), 0, "{:?}", leaders(&test));
    assert_eq!((held_by(&test, "n0"), test.served().len()), (4, 4), "it follows on, and others lead");
    test.run(3 * settings().rebalance_ms);
    assert_eq!(led_by(&test, "n0"), 0, "no balance gives it a lead: {:?}", leaders(&test));

    let status = test.cluster.status(test.at());
    let problems: Vec<String> = status.problems.iter().map(ToString::to_string).collect();
    assert!(
        problems.iter().any(|p| p.contains("1 node has a full disk") && p.contains("n0")),
        "{problems:?}"
    );
    let rows = test.cluster.node_table(test.at());
    let full: Vec<_> = rows.iter().filter(|row| row.disk.full).map(|row| row.node.to_string()).collect();
    assert_eq!(full, ["n0"]);
    let shard = test.map().shards().next().unwrap();
    let told = test.cluster.without_writes(shard);
    assert!(told.len() == 1 && told[0].contains("the disk of n0 is full"), "{told:?}");
    assert!(test.events.iter().any(|event| {
        event.kind == EventKind::NodeHealth && event.text.contains("the disk of n0 is full")
    }));
}

#[test]
fn leads_come_back_to_a_node_that_has_room_again() {
    let mut test = cluster_of(3, table(3));
    full_one(&mut test);
    test.full.clear();
    // Two beats, a rest, a plan, and a hand-over.
    test.run(40 * BEAT_MS);
    assert_eq!(led_by(&test, "n0"), 1, "its share of four is one and a third: {:?}", leaders(&test));
    let map = test.map().generation();
    test.run(3 * settings().rebalance_ms);
    assert_eq!(test.map().generation(), map, "M10, L2: and then nothing happens");
    assert!(test.cluster.status(test.at()).problems.is_empty());
}

#[test]
fn m7_nothing_new_is_placed_where_there_is_no_room() {
    let mut test = cluster_of(3, table(2));
    let before = held_by(&test, "n0");
    test.full.insert(node("n0"));
    test.run(2 * BEAT_MS);
    // What is moved off goes to the third node, where else half of it would go to either.
    test.drain("n1");
    test.run(60_000);
    assert_eq!(held_by(&test, "n0"), before, "{:#?}", test.map());
    assert!(held_by(&test, "n1") > 0, "where it cannot go it stays: {:#?}", test.map());
    test.full.clear();
    test.run(60_000);
    assert_eq!((held_by(&test, "n0"), held_by(&test, "n1")), (4, 0), "{:#?}", test.map());
}

/// Of two that could lead the one with room does. Where none has, who leads stays: reads want a leader, and one that begins has
/// to write.
#[test]
fn l1_a_lead_goes_where_there_is_room_and_stays_where_there_is_none_anywhere() {
    let mut test = cluster_of(3, table(3));
    test.full.extend([node("n0"), node("n1")]);
    test.run(10 * BEAT_MS);
    assert_eq!(led_by(&test, "n2"), 4, "{:?}", leaders(&test));
    test.full.insert(node("n2"));
    test.run(BEAT_MS);
    let map = test.map().generation();
    test.run(3 * settings().rebalance_ms);
    assert_eq!((test.map().generation(), led_by(&test, "n2")), (map, 4), "no lead is laid down");
    assert_eq!(test.served().len(), 4, "they are read");
    let status = test.cluster.status(test.at());
    let problems: Vec<String> = status.problems.iter().map(ToString::to_string).collect();
    assert!(problems.iter().any(|p| p.contains("3 nodes have full disks")), "{problems:?}");
    let told = test.cluster.without_writes(test.map().shards().next().unwrap());
    assert!(told.len() == 4 && told[3].contains("no other can lead in the place of n2"), "{told:?}");
    test.full.remove(&node("n1"));
    test.run(10 * BEAT_MS);
    assert_eq!(led_by(&test, "n1"), 4, "{:?}", leaders(&test));
}

#[test]
fn l1_a_node_whose_disk_is_stalled_leads_nothing_and_is_named() {
    let mut test = cluster_of(3, table(3));
    assert!(led_by(&test, "n0") > 0, "{:?}", leaders(&test));
    test.stalled.insert(node("n0"));
    test.run(10 * BEAT_MS);
    assert_eq!(led_by(&test, "n0"), 0, "{:?}", leaders(&test));
    let status = test.cluster.status(test.at());
    let problems: Vec<String> = status.problems.iter().map(ToString::to_string).collect();
    assert!(
        problems.iter().any(|p| p.contains("1 node has a stalled disk") && p.contains("n0")),
        "{problems:?}"
    );
    let rows = test.cluster.node_table(test.at());
    let stalled: Vec<_> =
        rows.iter().filter(|row| row.disk.stalled).map(|row| row.node.to_string()).collect();
    assert_eq!(stalled, ["n0"]);
    let told = test.cluster.without_writes(test.map().shards().next().unwrap());
    assert!(told.len() == 1 && told[0].contains("the disk of n0 is stalled"), "{told:?}");
    test.stalled.insert(node("n1"));
    test.stalled.insert(node("n2"));
    test.run(BEAT_MS);
    let map = test.map().generation();
    test.run(20 * BEAT_MS);
    assert_eq!(test.map().generation(), map, "no lead is laid down where none could take it");
    test.stalled.clear();
    test.run(40 * BEAT_MS);
    assert_eq!(led_by(&test, "n0"), 1, "{:?}", leaders(&test));
    assert!(test.events.iter().any(|event| event.text.contains("the disk of node n0 stores again")));
}

/// Nothing is remembered: the next coordinator hears from beats how the disks are, and lets nodes lead again.
#[test]
fn leads_come_back_also_under_another_coordinator() {
    let mut test = cluster_of(3, table(3));
    full_one(&mut test);
    let mut test = test.restart_coordinator();
    test.run(20 * BEAT_MS);
    assert_eq!(led_by(&test, "n0"), 0, "{:?}", leaders(&test));
    test.full.clear();
    test.run(60 * BEAT_MS);
    assert_eq!(led_by(&test, "n0"), 1, "{:?}", leaders(&test));
}

#[test]
fn m7_a_node_whose_disk_is_nearly_full_keeps_its_leads_gets_nothing_new_and_is_named() {
    let mut test = cluster_of(3, table(2));
    let (held, led) = (held_by(&test, "n0"), led_by(&test, "n0"));
    assert!(led > 0, "{:?}", leaders(&test));
    test.nearly_full.insert(node("n0"));
    test.run(2 * BEAT_MS);
    assert_eq!(led_by(&test, "n0"), led, "it takes writes: {:?}", leaders(&test));
    // What is moved off goes to the third node, where else half of it would go to either.
    test.drain("n1");
    test.run(60_000);
    assert_eq!(held_by(&test, "n0"), held, "{:#?}", test.map());
    assert!(held_by(&test, "n1") > 0, "where it cannot go it stays: {:#?}", test.map());

    let status = test.cluster.status(test.at());
    let problems: Vec<String> = status.problems.iter().map(ToString::to_string).collect();
    let has = "1 node has a nearly full disk, so that no new replicas go there: n0";
    assert!(problems.iter().any(|p| p.contains(has)), "{problems:?}");
    let rows = test.cluster.node_table(test.at());
    assert!(rows.iter().all(|row| row.disk.nearly_full == (row.node == node("n0"))));
    let told: Vec<String> =
        test.map().shards().flat_map(|shard| test.cluster.on_nearly_full_disks(shard)).collect();
    assert!(told.len() == held && told[0].contains("the disk of n0 is nearly full"), "{told:?}");
    assert!(test.map().shards().all(|shard| test.cluster.without_writes(shard).is_empty()));
    let alarms = test.events.iter().filter(|event| event.alarm && event.text.contains("n0 is nearly full"));
    assert_eq!(alarms.count(), 1, "it is said once");

    test.nearly_full.clear();
    test.run(60_000);
    assert_eq!((held_by(&test, "n0"), held_by(&test, "n1")), (4, 0), "{:#?}", test.map());
    assert!(test.events.iter().any(|event| event.text.contains("n0 has room for new replicas again")));
}

/// A disk that fills is nearly full first, and so it is again when a little is removed: it leads again then.
#[test]
fn l1_a_disk_that_is_nearly_full_again_takes_writes_again() {
    let mut test = cluster_of(3, table(3));
    test.nearly_full.insert(node("n0"));
    full_one(&mut test);
    assert_eq!(led_by(&test, "n0"), 0, "{:?}", leaders(&test));
    test.full.clear();
    test.run(2 * BEAT_MS);
    assert!(test.events.iter().any(|event| event.text.contains("the disk of node n0 has room again")));
    let problems = test.cluster.status(test.at()).problems;
    assert!(problems.iter().all(|problem| !problem.to_string().contains("a full disk")), "{problems:?}");
    assert!(test.map().shards().all(|shard| test.cluster.without_writes(shard).is_empty()));
}
