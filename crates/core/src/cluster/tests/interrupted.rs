//! Handovers that somebody's death, silence or restart comes in between of. Each was first found by the
//! simulator (`tests/sim`), in a seed that nobody can follow by hand.

use super::super::admin::Command;
use super::super::{BeatError, Cluster, Registration};
use super::town::{BEAT_MS, Town, keyspace, name, node, settings, slots};
use crate::exchange::Beat;
use crate::hash::HashFunction;
use crate::id::{ShardId, TransactionId};
use crate::keyspace::{Keyspace, Ownership};
use crate::lifecycle::ReplicaState;
use crate::map::Stage;
use crate::name::NodeId;
use crate::sharding::{Sharding, presplit};
use crate::time::Millis;

fn command(town: &mut Town, command: Command) {
    let at = town.at();
    town.cluster.command(at, TransactionId([9; 20]), "mia", command, false).unwrap();
    town.decide();
}

fn town_of(nodes: &[&str], keyspace: Keyspace, shards: u32) -> Town {
    let mut town = Town::new(keyspace, slots(shards));
    nodes.iter().for_each(|name| town.join(name));
    town.run(2_000);
    assert!(town.is_at_rest(1), "{:#?}", town.notices);
    town
}

fn owner(town: &Town, shard: ShardId) -> Option<NodeId> {
    town.map().shard(shard)?.leader().map(|leader| leader.node.clone())
}

/// Moves a shard until the map has switched and nobody has heard of it yet.
fn switch(town: &mut Town, shard: ShardId, to: &NodeId) {
    let from = owner(town, shard).unwrap();
    let moved = Command::MoveShard { keyspace: name(), shard, from, to: to.clone() };
    command(town, moved);
    let steps = (0..10).take_while(|_| {
        town.run(BEAT_MS);
        owner(town, shard).as_ref() != Some(to)
    });
    assert!(steps.count() < 10, "{:#?}", town.notices);
}

#[test]
fn o5_a_grant_once_decided_stays_when_the_former_owner_comes_back() {
    let exclusive = Keyspace { ownership: Ownership::Exclusive, ..keyspace(1) };
    let mut town = town_of(&["a", "b"], exclusive, 1);
    let shard = town.map().shards().next().unwrap().id;
    let from = owner(&town, shard).unwrap();
    let to = if from == node("a") { node("b") } else { node("a") };
    switch(&mut town, shard, &to);
    let granted = |town: &Town| {
        let orders = town.cluster.orders_since(&to, 0, None).unwrap();
        orders.changed.iter().any(|order| order.replica.shard == shard && order.granted)
    };
    assert!(!granted(&town), "{from} may still believe to own it");
    town.cut_off.extend([from.clone(), to.clone()]);
    let silent = (0..20).take_while(|_| {
        town.run(BEAT_MS);
        !granted(&town)
    });
    assert!(silent.count() < 14, "the lease of {from} is over before it is dead");
    town.cut_off.remove(&from);
    town.run(BEAT_MS);
    assert!(granted(&town), "what was decided is what {to} is told");
    town.cut_off.clear();
    town.run(1_000);
    assert!(town.is_at_rest(1) && owner(&town, shard) == Some(to));
}

#[test]
fn l1_a_shard_is_not_placed_where_its_last_replica_is_still_leaving() {
    let mut town = town_of(&["a", "b", "c"], keyspace(3), 3);
    let shard = town.map().shards().next().unwrap().id;
    let from = owner(&town, shard).unwrap();
    let to = ["a", "b", "c"].map(node).into_iter().find(|other| *other != from).unwrap();
    switch(&mut town, shard, &to);
    // The former owner is now the emptiest node, and waits for somebody to hand over to.
    town.kill(to.as_str());
    town.run(5_000);
    assert_eq!(town.served().len(), 3, "{:#?}", town.notices);
    assert!(town.is_at_rest(1), "{:#?}", town.map());
}

#[test]
fn a_merge_goes_on_when_a_parent_speaks_up_after_its_child() {
    let hashed = Keyspace { sharding: Sharding::HashRange { hash: HashFunction::Xxh3_64 }, ..keyspace(1) };
    let bounds = presplit::even_hashes(2).unwrap().into_iter().map(crate::sharding::Bounds::Hashes).collect();
    let mut town = Town::new(hashed, bounds);
    ["a", "b", "c"].into_iter().for_each(|name| town.join(name));
    town.run(2_000);
    let [left, right] = [0, 1].map(|at| town.map().shards().nth(at).unwrap().id);
    command(&mut town, Command::MergeShards { keyspace: name(), left, right });
    let forms = |town: &Town| {
        let child = town.map().shards().find(|shard| matches!(shard.stage(), Stage::Forming(_)));
        child.map(|shard| shard.replicas[0].node.clone())
    };
    let child = forms(&town).expect("the child prepares");
    town = town.restart_coordinator();
    let parents = [left, right].map(|parent| owner(&town, parent).unwrap());
    town.cut_off.extend(parents.iter().filter(|node| **node != child).cloned());
    assert!(!town.cut_off.is_empty(), "a parent is elsewhere");
    town.run(4 * BEAT_MS);
    assert!(forms(&town).is_some(), "it is ready, and waits for its parents");
    town.cut_off.clear();
    town.run(10 * BEAT_MS);
    assert!(forms(&town).is_none(), "{:#?}", town.map());
    assert!(town.map().len() == 1 && town.served().len() == 1);
}

#[test]
fn l1_a_shard_that_was_served_once_can_be_placed_again_where_it_could_not_be_loaded() {
    let nodes = ["a", "b", "c", "d"];
    let mut town = town_of(&nodes, keyspace(1), 1);
    let shard = town.map().shards().next().unwrap().id;
    let lost = owner(&town, shard).unwrap();
    town.fails.extend(nodes.map(|at| (shard, node(at))));
    town.kill(lost.as_str());
    town.run(20_000);
    assert!(town.notices.iter().any(|notice| notice.contains("is set aside")), "{:#?}", town.notices);
    let left = &town.map().shard(shard).unwrap().replicas;
    assert!(left.iter().all(|r| r.state != ReplicaState::Unload), "nobody waits for a successor: {left:?}");
    town.fails.clear();
    command(&mut town, Command::ReleaseShard { keyspace: name(), shard });
    town.run(2_000);
    assert_eq!(town.served().len(), 1, "{:#?}", town.map());
    assert!(town.is_at_rest(1));
}

#[test]
fn a_worker_has_to_come_to_each_coordinator_before_it_beats() {
    let town = town_of(&["a"], keyspace(2), 2);
    let mut fresh = Cluster::recover(town.at(), settings(), town.disk.clone()).unwrap();
    let record = fresh.nodes()[&node("a")].record.clone();
    let beat = |sequence| Beat {
        session: crate::id::SessionDigest::default(),
        node: node("a"),
        incarnation: record.incarnation,
        sequence,
        sent_at: Millis(town.now),
        // Of the coordinator before this one, which counted from 1 as this one does.
        applied: 1,
        whole: true,
        reports: Vec::new(),
        leaving: Some(false),
        busy: 0.0,
        lease_expired: false,
    };
    assert_eq!(fresh.beat(town.at(), beat(1_000)), Err(BeatError::NotYet(node("a"))));
    let registration =
        Registration { incarnation: Some(record.incarnation), ..Registration::new(record.spec.clone()) };
    assert_eq!(fresh.register(town.at(), registration).unwrap().incarnation, record.incarnation);
    assert!(fresh.beat(town.at(), beat(1_001)).is_ok());
}

#[test]
fn l1_of_two_nodes_the_former_owner_takes_a_shard_again_when_the_new_one_dies() {
    for leaves_for_good in [false, true] {
        let mut town = town_of(&["a", "b"], keyspace(1), 1);
        let shard = town.map().shards().next().unwrap().id;
        let from = owner(&town, shard).unwrap();
        let to = if from == node("a") { node("b") } else { node("a") };
        let first = town.map().shard(shard).unwrap().leader().unwrap().placement;
        switch(&mut town, shard, &to);
        let left = |town: &Town| town.map().shard(shard).unwrap().replica(first).map(|r| r.state);
        assert_eq!(left(&town), Some(ReplicaState::Unload));
        town.kill(to.as_str());
        // Its copy is not deleted before the next stay has begun from it.
        while owner(&town, shard).as_ref() != Some(&from) || !town.served().contains(&shard) {
            assert!(town.now < 20_000, "{:#?} {:#?}", town.notices, town.map());
            assert_eq!(left(&town), Some(ReplicaState::Unload));
            town.run(BEAT_MS);
        }
        town.run(1_000);
        assert!(town.is_at_rest(1), "{:#?}", town.map());
        let leader = town.map().shard(shard).unwrap().leader().unwrap();
        assert!(leader.node == from && leader.placement != first, "nothing goes back: {leader:?}");
        if leaves_for_good {
            town = town.restart_coordinator();
            town.run(5_000);
            assert_eq!(town.served().len(), 1);
        }
    }
}

#[test]
fn l1_where_another_node_may_take_it_the_former_owner_does_not() {
    let mut town = town_of(&["a", "b", "c"], keyspace(1), 1);
    let shard = town.map().shards().next().unwrap().id;
    let from = owner(&town, shard).unwrap();
    let others: Vec<_> = ["a", "b", "c"].map(node).into_iter().filter(|other| *other != from).collect();
    switch(&mut town, shard, &others[0]);
    town.kill(others[0].as_str());
    town.run(5_000);
    assert!(town.is_at_rest(1) && owner(&town, shard).as_ref() == Some(&others[1]), "{:#?}", town.map());
}
