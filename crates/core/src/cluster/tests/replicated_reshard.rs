//! Splits and merges of replicated shards: in-sync sets of children, closers of parents (O8, D1, D10, L1).

use super::durable::{cluster_of, durable, kill, start};
use super::durable_reshard::reshard;
use super::test_cluster::{BEAT_MS, Hang, TestCluster, node};
use crate::base::id::ShardId;
use crate::base::name::NodeId;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Shard, Stage};
use crate::keyspace::{Keyspace, Ownership};
use std::collections::BTreeSet;

const SLOTS: u32 = 4;

fn cluster() -> TestCluster {
    cluster_of(3, Keyspace { ownership: Ownership::Replicated, ..durable(SLOTS, 3) })
}

fn in_sync(shard: &Shard) -> BTreeSet<NodeId> {
    shard.in_sync().map(|r| r.node.clone()).collect()
}

fn closing(test: &TestCluster) -> Vec<Shard> {
    test.map().shards().filter(|shard| matches!(shard.stage(), Stage::Closing(_))).cloned().collect()
}

fn forming(test: &TestCluster) -> usize {
    test.map().shards().filter(|shard| matches!(shard.stage(), Stage::Forming(_))).count()
}

fn shard(test: &TestCluster, id: ShardId) -> &Shard {
    test.map().shard(id).unwrap()
}

/// Splits all, up to the first switch: no child opens from then on. Returns the cluster, and the parents before and after.
fn switched(to: u32) -> (TestCluster, Vec<(Shard, Shard)>) {
    let mut test = cluster();
    reshard(&mut test, to).unwrap();
    let mut before: Vec<Shard> = test.map().shards().cloned().collect();
    while closing(&test).is_empty() {
        before = test.map().shards().cloned().collect();
        assert!(test.now < 60_000, "{:#?}", test.map());
        test.run(BEAT_MS);
    }
    test.hangs.extend((0..3).map(|at| (node(&format!("n{at}")), Hang::Serve)));
    let of = |parent: Shard| (before.iter().find(|b| b.id == parent.id).cloned().unwrap(), parent);
    let parents = closing(&test).into_iter().map(of).collect();
    (test, parents)
}

#[test]
fn o8_l1_a_closer_whose_disk_is_full_is_followed_by_a_member_that_takes_writes() {
    let (mut test, parents) = switched(8);
    let (_, parent) = &parents[0];
    let closer = parent.closer().unwrap().clone();
    test.full.insert(closer.node.clone());
    test.run(10 * BEAT_MS);
    let now = shard(&test, parent.id);
    assert!(now.closer().unwrap().node != closer.node && now.epoch > parent.epoch, "{now:#?}");
    assert!(in_sync(now).contains(&closer.node), "it stays a member");
}

#[test]
fn l1_no_child_is_led_by_a_node_whose_disk_is_full() {
    let mut test = cluster();
    let parents: BTreeSet<ShardId> = test.map().shards().map(|shard| shard.id).collect();
    reshard(&mut test, 8).unwrap();
    while forming(&test) == 0 {
        assert!(test.now < 60_000, "{:#?}", test.map());
        test.run(BEAT_MS);
    }
    let full = node("n0");
    test.full.insert(full.clone());
    let mut led = 0;
    while led < 4 {
        assert!(test.now < 120_000, "{:#?}", test.map());
        test.run(BEAT_MS);
        let children = test.map().shards().filter(|shard| shard.epoch.0 > 0 && !parents.contains(&shard.id));
        let leaders: Vec<NodeId> = children.filter_map(|shard| Some(shard.leader()?.node.clone())).collect();
        assert!(!leaders.contains(&full), "{leaders:?}");
        led = leaders.len();
    }
}

#[test]
fn o8_d1_at_the_switch_parents_keep_their_sets_and_name_closers_and_children_have_sets_of_their_own() {
    for to in [8, 2] {
        let (test, parents) = switched(to);
        for (before, now) in &parents {
            let closer = now.closer().unwrap();
            assert_eq!(Some(closer.placement), before.leader().map(|leader| leader.placement), "{now:#?}");
            assert!(now.leader().is_none() && now.replicas.iter().all(|r| r.state == ReplicaState::Unload));
            assert_eq!(in_sync(now), in_sync(before));
            assert!(now.epoch > before.epoch && now.configuration > before.configuration);
        }
        let homes: BTreeSet<NodeId> = parents.iter().flat_map(|(before, _)| in_sync(before)).collect();
        let children = test.map().shards().filter(|shard| shard.is_serving() && !shard.parents().is_empty());
        let children: Vec<_> = children.collect();
        assert!(!children.is_empty());
        for child in children {
            assert!(child.in_sync().count() >= 2 && in_sync(child).is_subset(&homes), "{child:#?}");
            assert!(
                parents.iter().all(|(_, now)| !child.parents().contains(&now.id) || child.epoch > now.epoch)
            );
        }
    }
}

#[test]
fn o8_another_member_of_the_set_closes_under_a_later_epoch_when_the_closer_dies() {
    let (mut test, parents) = switched(8);
    let (_, parent) = &parents[0];
    let closer = parent.closer().unwrap().clone();
    kill(&mut test, closer.node.as_str().strip_prefix('n').unwrap().parse().unwrap());
    test.run(10_000);
    let now = shard(&test, parent.id);
    let next = now.closer().unwrap();
    assert!(next.placement != closer.placement && next.in_sync, "{now:#?}");
    assert!(now.epoch > parent.epoch && now.configuration > parent.configuration);
    assert!(!in_sync(now).contains(&closer.node), "it was asked out: {now:#?}");
    assert_eq!(now.in_sync().count(), 2);
}

#[test]
fn o8_d10_the_parents_keep_their_sets_and_closers_when_everything_dies_before_their_children_open() {
    let (mut test, parents) = switched(8);
    (0..3).for_each(|at| kill(&mut test, at));
    test = test.restart_coordinator();
    test.run(500);
    (0..3).for_each(|at| start(&mut test, at));
    test.run(8_000);
    for (before, parent) in &parents {
        let now = shard(&test, parent.id);
        assert!(now.closer().is_some() && now.epoch > parent.epoch, "{now:#?}");
        assert_eq!(in_sync(now), in_sync(before), "{now:#?}");
    }
    test.hangs.clear();
    test.run(30_000);
    assert!(test.is_at_rest(3), "{:#?}", test.map());
    assert_eq!((test.map().len(), closing(&test).len()), (8, 0));
}

/// Step 1a of L1: the children that a split prepares.
#[test]
fn l1_children_that_too_few_nodes_are_left_for_are_given_up_and_their_parents_go_on() {
    let mut test = cluster();
    test.hangs.extend((0..3).map(|at| (node(&format!("n{at}")), Hang::Load)));
    reshard(&mut test, 8).unwrap();
    test.run(2 * BEAT_MS);
    assert!(forming(&test) > 0, "{:#?}", test.map());
    [1, 2].into_iter().for_each(|at| kill(&mut test, at));
    test.run(15_000);
    assert_eq!((forming(&test), closing(&test).len()), (0, 0), "{:#?}", test.map());
    test.hangs.clear();
    [1, 2].into_iter().for_each(|at| start(&mut test, at));
    test.run(60_000);
    assert!(test.is_at_rest(3), "{:#?} {:#?}", test.notices, test.map());
}
