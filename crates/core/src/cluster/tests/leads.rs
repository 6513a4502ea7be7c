//! Leads that are spread: even where there are few shards, calm, and never to a node that should not lead (A6, M10, L2).

use super::super::admin::Command;
use super::durable::{cluster_of, durable, kill, start};
use super::test_cluster::{BEAT_MS, TestCluster, name, node, settings};
use crate::base::id::{ShardId, TransactionId};
use crate::keyspace::map::ShardMap;
use crate::keyspace::{Keyspace, Ownership, Throttle};
use crate::plan::Origin;
use std::collections::BTreeMap;

fn table(shards: u32) -> Keyspace {
    Keyspace { ownership: Ownership::Replicated, ..durable(shards, 3) }
}

/// Longer than leaders stay, and the steps of a hand-over.
const SPREAD_MS: u64 = 5_000;

fn leaders(map: &ShardMap) -> BTreeMap<ShardId, String> {
    map.shards().filter_map(|shard| Some((shard.id, shard.leader()?.node.to_string()))).collect()
}

/// How many shards each of three nodes leads, over all keyspaces.
fn counts(test: &TestCluster) -> [usize; 3] {
    let maps = test.cluster.keyspaces().values().map(|keyspace| &keyspace.map);
    let led: Vec<String> = maps.flat_map(|map| leaders(map).into_values()).collect();
    ["n0", "n1", "n2"].map(|node| led.iter().filter(|leader| **leader == node).count())
}

fn are_even(counts: [usize; 3]) -> bool {
    counts.iter().max().zip(counts.iter().min()).is_some_and(|(most, least)| most - least <= 1)
}

/// Plans that the planner made to improve something.
fn rebalances(test: &TestCluster) -> usize {
    test.plans().iter().filter(|plan| plan.origin == Origin::Rebalance).count()
}

/// One node leads all: the others have had full disks.
fn led_by_one(keyspace: Keyspace) -> TestCluster {
    let mut test = cluster_of(3, keyspace);
    let shards = test.map().len();
    test.full.extend([node("n1"), node("n2")]);
    test.run(10 * BEAT_MS);
    assert_eq!(counts(&test), [shards, 0, 0]);
    test.full.clear();
    test
}

#[test]
fn leads_of_few_shards_are_even_and_then_nothing_happens() {
    for shards in 1..=8 {
        let mut test = cluster_of(3, table(shards));
        test.run(SPREAD_MS);
        assert!(are_even(counts(&test)), "{shards} shards: {:?}", counts(&test));
        let (generation, plans) = (test.map().generation(), test.plans().len());
        test.run(3 * settings().rebalance_ms);
        assert_eq!((test.map().generation(), test.plans().len()), (generation, plans), "M10, L2");
    }
}

/// Nothing is handed over while a member is missing, and what comes back gets its share.
#[test]
fn a_node_that_comes_back_gets_leads_when_all_is_in_sync_and_not_before() {
    let mut test = cluster_of(3, table(6));
    test.run(SPREAD_MS);
    assert_eq!(counts(&test), [2, 2, 2]);
    kill(&mut test, 0);
    test.run(2_000);
    let (without, planned) = (leaders(test.map()), rebalances(&test));
    assert_eq!(without.len(), 6, "{:#?}", test.notices);
    test.run(2 * settings().rebalance_ms);
    assert_eq!((leaders(test.map()), rebalances(&test)), (without, planned));
    start(&mut test, 0);
    test.run(2 * SPREAD_MS);
    assert_eq!(counts(&test), [2, 2, 2], "{:#?}", test.notices);
}

#[test]
fn a_coordinator_that_has_just_come_spreads_leads_as_the_one_before_would_have() {
    let mut test = led_by_one(table(6)).restart_coordinator();
    test.run(2 * SPREAD_MS);
    assert_eq!(counts(&test), [2, 2, 2], "{:#?}", test.notices);
}

/// A person's choice is no imbalance: other shards make up for it.
#[test]
fn a_leader_that_a_person_has_chosen_stays() {
    let mut test = cluster_of(3, table(6));
    test.run(SPREAD_MS);
    let (shard, _) = leaders(test.map()).into_iter().find(|(_, leader)| leader != "n0").unwrap();
    let command = Command::TransferLeader { keyspace: name(), shard, to: node("n0") };
    test.cluster.command(test.at(), TransactionId([9; 20]), "mia", command).unwrap();
    test.run(2 * SPREAD_MS);
    assert_eq!(leaders(test.map())[&shard], "n0");
    assert_eq!(counts(&test), [2, 2, 2]);
}

#[test]
fn k17_no_more_leads_go_at_once_than_the_keyspace_may_move() {
    let mut test = led_by_one(Keyspace { throttle: Throttle { moves: 1, ..table(6).throttle }, ..table(6) });
    let mut before = leaders(test.map());
    for _ in 0..200 {
        test.run(BEAT_MS);
        let now = leaders(test.map());
        let changed = now.iter().filter(|(shard, leader)| before.get(shard) != Some(*leader)).count();
        assert!(changed <= 1, "{before:?} {now:?}");
        before = now;
    }
    assert_eq!(counts(&test), [2, 2, 2]);
}

#[test]
fn no_lead_goes_to_a_node_that_is_drained_or_whose_disk_takes_no_writes() {
    let cases: [fn(&mut TestCluster); 3] = [
        |test| test.drain("n2"),
        |test| test.full.extend([node("n2")]),
        |test| test.stalled.extend([node("n2")]),
    ];
    for so in cases {
        let mut test = led_by_one(table(6));
        so(&mut test);
        test.run(2 * SPREAD_MS);
        assert_eq!(counts(&test), [3, 3, 0]);
    }
}
