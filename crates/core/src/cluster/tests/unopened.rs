//! Copies that are there and cannot be had: their nodes name them as whole and cannot open them, or are away while another
//! is to copy from them (A2, L1, L4, D1).

use super::durable::{cluster_of, durable, kill, start};
use super::test_cluster::{TestCluster, node};
use crate::base::id::ShardId;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::Shard;
use crate::keyspace::{Keyspace, Ownership};
use std::collections::BTreeSet;

const OWNERSHIPS: [Ownership; 3] = [Ownership::Exclusive, Ownership::Eventual, Ownership::Replicated];

/// Everything has ended, and n0 is back alone: it can open none of what it has.
fn first_back_opens_nothing(ownership: Ownership) -> (TestCluster, BTreeSet<ShardId>) {
    let mut test = cluster_of(3, Keyspace { ownership, ..durable(8, 3) });
    (0..3).for_each(|at| kill(&mut test, at));
    test.run(1_000);
    let shards: BTreeSet<_> = test.map().shards().map(|shard| shard.id).collect();
    test.fails.extend(shards.iter().map(|shard| (*shard, node("n0"))));
    start(&mut test, 0);
    test.run(20_000);
    assert!(test.served().is_empty());
    (test, shards)
}

#[test]
fn l1_a_copy_that_cannot_be_opened_keeps_no_other_from_leading() {
    for ownership in OWNERSHIPS {
        let (mut test, shards) = first_back_opens_nothing(ownership);
        (1..3).for_each(|at| start(&mut test, at));
        test.run(20_000);
        assert_eq!(test.served(), shards, "{ownership:?}: {:#?}", test.notices);
    }
}

/// A write waits for every copy: one that cannot be opened is none for long, and another takes its place.
#[test]
fn l4_a_follower_that_cannot_be_opened_holds_up_no_write() {
    for ownership in OWNERSHIPS {
        let mut test = cluster_of(4, Keyspace { ownership, ..durable(8, 3) });
        let on_n0 = |s: &&Shard| s.live().any(|r| r.node == node("n0"));
        let shards: BTreeSet<_> = test.map().shards().filter(on_n0).map(|shard| shard.id).collect();
        (0..4).for_each(|at| kill(&mut test, at));
        test.fails.extend(shards.iter().map(|shard| (*shard, node("n0"))));
        (0..4).for_each(|at| start(&mut test, at));
        test.run(30_000);
        assert!(test.is_at_rest(3), "{ownership:?}: {:#?}", test.notices);
        assert!(!shards.is_empty() && !test.counts().contains_key("n0"), "{:?}", test.counts());
    }
}

#[test]
fn d1_a_copy_that_opens_after_all_goes_on_with_the_others() {
    for ownership in OWNERSHIPS {
        let (mut test, shards) = first_back_opens_nothing(ownership);
        start(&mut test, 1);
        test.run(300);
        test.fails.clear();
        test.run(20_000);
        assert_eq!(test.served(), shards, "{ownership:?}: {:#?}", test.notices);
        kill(&mut test, 0);
        start(&mut test, 2);
        test.run(20_000);
        assert_eq!(test.served(), shards, "{ownership:?}: {:#?}", test.notices);
    }
}

#[test]
fn l4_a_load_whose_source_is_away_holds_up_no_move() {
    let mut keyspace = durable(9, 1);
    keyspace.throttle.moves = 1;
    let mut test = cluster_of(3, keyspace);
    let shards = || test.map().shards();
    test.hanging_shards = shards().filter(|s| s.live().any(|r| r.node == node("n0"))).map(|s| s.id).collect();
    test.drain("n0");
    test.run(5_000);
    let loads = test.map().shards().flat_map(|shard| &shard.replicas);
    let loads: Vec<_> = loads.filter(|r| r.state == ReplicaState::Load).map(|r| r.node.clone()).collect();
    let [to] = &loads[..] else { panic!("{loads:?}") };
    kill(&mut test, 0);
    let other = if *to == node("n1") { "n2" } else { "n1" };
    test.drain(other);
    test.run(30_000);
    assert_eq!(test.counts().get(other), None, "{:#?}", test.notices);
}
