//! Copies that are there and cannot be had: their nodes name them as whole and cannot open them, or are away while another
//! is to copy from them (A2, L1, L4, D1).

use super::durable::{durable, kill, start, town_of};
use super::town::{Town, node};
use crate::id::ShardId;
use crate::keyspace::{Keyspace, Ownership};
use crate::lifecycle::ReplicaState;
use crate::map::Shard;
use std::collections::BTreeSet;

const OWNERSHIPS: [Ownership; 2] = [Ownership::Exclusive, Ownership::Eventual];

/// Everything has ended, and n0 is back alone: it can open none of what it has.
fn first_back_opens_nothing(ownership: Ownership) -> (Town, BTreeSet<ShardId>) {
    let mut town = town_of(3, Keyspace { ownership, ..durable(8, 3) });
    (0..3).for_each(|at| kill(&mut town, at));
    town.run(1_000);
    let shards: BTreeSet<_> = town.map().shards().map(|shard| shard.id).collect();
    town.fails.extend(shards.iter().map(|shard| (*shard, node("n0"))));
    start(&mut town, 0);
    town.run(20_000);
    assert!(town.served().is_empty());
    (town, shards)
}

#[test]
fn l1_a_copy_that_cannot_be_opened_keeps_no_other_from_leading() {
    for ownership in OWNERSHIPS {
        let (mut town, shards) = first_back_opens_nothing(ownership);
        (1..3).for_each(|at| start(&mut town, at));
        town.run(20_000);
        assert_eq!(town.served(), shards, "{ownership:?}: {:#?}", town.notices);
    }
}

/// A write waits for every copy: one that cannot be opened is none for long, and another takes its place.
#[test]
fn l4_a_follower_that_cannot_be_opened_holds_up_no_write() {
    for ownership in OWNERSHIPS {
        let mut town = town_of(4, Keyspace { ownership, ..durable(8, 3) });
        let on_n0 = |s: &&Shard| s.live().any(|r| r.node == node("n0"));
        let shards: BTreeSet<_> = town.map().shards().filter(on_n0).map(|shard| shard.id).collect();
        (0..4).for_each(|at| kill(&mut town, at));
        town.fails.extend(shards.iter().map(|shard| (*shard, node("n0"))));
        (0..4).for_each(|at| start(&mut town, at));
        town.run(30_000);
        assert!(town.is_at_rest(3), "{ownership:?}: {:#?}", town.notices);
        assert!(!shards.is_empty() && !town.counts().contains_key("n0"), "{:?}", town.counts());
    }
}

#[test]
fn d1_a_copy_that_opens_after_all_goes_on_with_the_others() {
    for ownership in OWNERSHIPS {
        let (mut town, shards) = first_back_opens_nothing(ownership);
        start(&mut town, 1);
        town.run(300);
        town.fails.clear();
        town.run(20_000);
        assert_eq!(town.served(), shards, "{ownership:?}: {:#?}", town.notices);
        kill(&mut town, 0);
        start(&mut town, 2);
        town.run(20_000);
        assert_eq!(town.served(), shards, "{ownership:?}: {:#?}", town.notices);
    }
}

#[test]
fn l4_a_load_whose_source_is_away_holds_up_no_move() {
    let mut keyspace = durable(9, 1);
    keyspace.throttle.moves = 1;
    let mut town = town_of(3, keyspace);
    let shards = || town.map().shards();
    town.hanging_shards = shards().filter(|s| s.live().any(|r| r.node == node("n0"))).map(|s| s.id).collect();
    town.drain("n0");
    town.run(5_000);
    let loads = town.map().shards().flat_map(|shard| &shard.replicas);
    let loads: Vec<_> = loads.filter(|r| r.state == ReplicaState::Load).map(|r| r.node.clone()).collect();
    let [to] = &loads[..] else { panic!("{loads:?}") };
    kill(&mut town, 0);
    let other = if *to == node("n1") { "n2" } else { "n1" };
    town.drain(other);
    town.run(30_000);
    assert_eq!(town.counts().get(other), None, "{:#?}", town.notices);
}
