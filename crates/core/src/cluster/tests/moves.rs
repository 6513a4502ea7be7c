//! What is on its way is told while it is, and by name.

use super::super::moves::{MoveRow, MoveStage};
use super::super::status::Since;
use super::super::{Moment, Observed};
use super::test_cluster::{BEAT_MS, TestCluster, keyspace, name, node, settings, slots};
use crate::base::id::ShardId;
use crate::keyspace::Keyspace;
use crate::node::exchange::Phase;
use std::collections::{BTreeMap, BTreeSet};

fn moves(test: &TestCluster) -> Vec<MoveRow> {
    test.cluster.moves(test.at(), None, 1_000).unwrap()
}

#[test]
fn a_drain_shows_each_move_once_from_loading_to_dropping() {
    let mut test = TestCluster::new(Keyspace { replicas: 2, ..keyspace(12) }, slots(12));
    ["a", "b", "c"].into_iter().for_each(|name| test.join(name));
    test.run(3_000);
    assert_eq!(moves(&test), []);
    let leaving: BTreeSet<ShardId> =
        test.map().shards().filter(|s| s.live().any(|r| r.node == node("a"))).map(|s| s.id).collect();
    test.drain("a");
    let (mut stages, mut successors) = (Vec::new(), BTreeMap::new());
    for _ in 0..60 {
        test.run(BEAT_MS);
        let rows = moves(&test);
        let shards: BTreeSet<_> = rows.iter().map(|row| row.shard).collect();
        assert_eq!(shards.len(), rows.len(), "a move has one row: {rows:?}");
        for row in &rows {
            assert_eq!(row.from, Some(node("a")), "{row:?}");
            let successor = successors.entry(row.shard).or_insert_with(|| row.to.clone().unwrap());
            assert_eq!(row.to.as_ref(), Some(&*successor), "it is the same node all along: {row:?}");
            assert!(matches!(row.since, Since::At(ms) if ms <= test.now && ms >= 3_000), "{row:?}");
            assert!(!row.waits_for.is_empty());
            if !stages.contains(&row.stage) {
                stages.push(row.stage);
            }
        }
        let summary = test.cluster.status(test.at());
        assert_eq!(summary.under_way, rows, "few enough for a glance");
        assert_eq!(summary.moves, rows.iter().filter(|row| row.stage == MoveStage::Loading).count());
    }
    assert_eq!(successors.into_keys().collect::<BTreeSet<_>>(), leaving);
    assert_eq!(stages, [MoveStage::Loading, MoveStage::HandingOver, MoveStage::Dropping]);
    assert_eq!(moves(&test), [], "and then nothing is on its way");
}

#[test]
fn what_fails_or_is_silent_is_named() {
    let mut test = TestCluster::new(keyspace(2), slots(2));
    ["a", "b"].into_iter().for_each(|name| test.join(name));
    test.run(3_000);
    test.drain("a");
    let row = moves(&test).remove(0);
    assert_eq!((row.stage, &row.to), (MoveStage::Loading, &Some(node("b"))), "{row:?}");
    let shard = test.map().shard(row.shard).unwrap();
    let (placement, epoch) =
        (shard.replicas.iter().find(|r| r.node == node("b")).unwrap().placement, shard.epoch);
    let waits_for = |test: &TestCluster| moves(test).remove(0).waits_for;
    for (phase, expected) in [
        (Phase::Loading, "b to load it"),
        (Phase::failed(2, "no room".into()), "b to try again: it has failed 2 times (no room)"),
        (Phase::Ready, "its turn to take over"),
    ] {
        let seen = Observed::new(phase, epoch, None);
        test.cluster.keyspaces.get_mut(&name()).unwrap().observed.insert(placement, seen);
        assert_eq!(waits_for(&test), expected);
    }
    test.cut_off.insert(node("b"));
    let at = Moment { now: test.at().now + settings().lease_ms * 2, ..test.at() };
    let told = test.cluster.moves(at, Some(&name()), 1).unwrap().remove(0).waits_for;
    assert!(told.starts_with("b, which is "), "{told}");
    let unknown = "nobody".parse().unwrap();
    assert!(test.cluster.moves(at, Some(&unknown), 1).is_err());
}

#[test]
fn a_keyspace_that_no_worker_can_load_says_why_and_not_to_wait() {
    let mut test = TestCluster::new(keyspace(2), slots(2));
    test.fails = test.map().shards().map(|shard| (shard.id, node("a"))).collect();
    test.join("a");
    let problems = |test: &TestCluster| format!("{:?}", test.cluster.status(test.at()).problems);
    while !problems(&test).contains("fail to load") {
        assert!(test.now < 3_000, "{}", problems(&test));
        test.run(100);
    }
    let problems = problems(&test);
    let told = "2 replicas fail to load, such as that of shard s1 of keyspace users on node a (1 time: no such file): mend";
    assert!(problems.contains("2 of 2 shards are not served") && problems.contains(told), "{problems}");
}

#[test]
fn a_coordinator_that_has_just_started_does_not_know_since_when() {
    let mut test = TestCluster::new(keyspace(12), slots(12));
    ["a", "b", "c"].into_iter().for_each(|name| test.join(name));
    test.run(3_000);
    test.drain("a");
    while moves(&test).is_empty() {
        test.run(BEAT_MS);
    }
    let test = test.restart_coordinator();
    let rows = moves(&test);
    assert!(!rows.is_empty() && rows.iter().all(|row| matches!(row.since, Since::AtLeast(_))), "{rows:?}");
}
