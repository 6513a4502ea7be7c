//! Handovers that somebody's death, silence or restart comes in between of. Each was first found by the
//! simulator (`tests/sim`), in a seed that nobody can follow by hand.

use super::super::admin::{Command, SplitAt};
use super::super::{BeatError, Cluster};
use super::test_cluster::{BEAT_MS, TestCluster, keyspace, name, node, settings, slots};
use crate::base::id::{ShardId, TransactionId};
use crate::base::name::NodeId;
use crate::base::time::Millis;
use crate::keyspace::hash::HashFunction;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Role, Shard, Stage};
use crate::keyspace::sharding::{Bounds, Sharding, presplit};
use crate::keyspace::{Keyspace, Mode, Ownership};
use crate::node::exchange::Beat;
use crate::node::exchange::Registration;
use crate::plan::{Origin, Progress};

fn command(test: &mut TestCluster, command: Command) {
    let at = test.at();
    test.cluster.command(at, TransactionId([9; 20]), "mia", command).unwrap();
    test.decide();
}

fn cluster_of(nodes: &[&str], keyspace: Keyspace, shards: u32) -> TestCluster {
    let mut test = TestCluster::new(keyspace, slots(shards));
    nodes.iter().for_each(|name| test.join(name));
    test.run(2_000);
    assert!(test.is_at_rest(1), "{:#?}", test.notices);
    test
}

fn owner(test: &TestCluster, shard: ShardId) -> Option<NodeId> {
    test.map().shard(shard)?.leader().map(|leader| leader.node.clone())
}

/// Moves a shard until the map has switched and nobody has heard of it yet.
fn switch(test: &mut TestCluster, shard: ShardId, to: &NodeId) {
    let from = owner(test, shard).unwrap();
    let moved = Command::MoveShard { keyspace: name(), shard, from, to: to.clone() };
    command(test, moved);
    let steps = (0..10).take_while(|_| {
        test.run(BEAT_MS);
        owner(test, shard).as_ref() != Some(to)
    });
    assert!(steps.count() < 10, "{:#?}", test.notices);
}

/// The next coordinator has not heard the node when it tries a change that the last one did not begin: it waits for it.
#[test]
fn l1_what_a_person_asked_for_before_a_coordinator_ended_is_done_by_the_next() {
    let mut test = cluster_of(&["a", "b", "c"], Keyspace { mode: Mode::Suggested, ..keyspace(1) }, 1);
    let shard = test.map().shards().next().unwrap().id;
    let from = owner(&test, shard).unwrap();
    let to = test.cluster.nodes().keys().find(|id| **id != from).unwrap().clone();
    let at = test.at();
    let moved = Command::MoveShard { keyspace: name(), shard, from, to: to.clone() };
    test.cluster.command(at, TransactionId([9; 20]), "mia", moved).unwrap();
    test.store_outbox();
    test = test.restart_coordinator();
    test.decide();
    test.run(20 * BEAT_MS);
    assert_eq!(owner(&test, shard), Some(to), "{:#?}", test.plans());
    assert!(test.plans().iter().flat_map(|plan| &plan.changes).all(|p| p.progress == Progress::Done));
}

/// Each change that a person can ask for, and a coordinator that ends at any step of it: the next one counts it as done.
#[test]
fn l1_each_change_is_done_whenever_a_coordinator_ends() {
    let hashed = Keyspace {
        sharding: Sharding::HashRange { hash: HashFunction::Xxh3_64 },
        replicas: 2,
        mode: Mode::Suggested,
        ..keyspace(1)
    };
    let commands: [fn(&TestCluster) -> Command; 6] = [
        |test| Command::SplitShard { keyspace: name(), shard: first(test).id, at: SplitAt::Middle },
        |test| {
            let [left, right] = [0, 1].map(|at| test.map().shards().nth(at).unwrap().id);
            Command::MergeShards { keyspace: name(), left, right }
        },
        |test| {
            let (from, to) = (first(test).replicas[0].node.clone(), spare(test));
            Command::MoveShard { keyspace: name(), shard: first(test).id, from, to }
        },
        |test| {
            let follower = first(test).replicas.iter().find(|r| r.role == Role::Follower).unwrap();
            let to = follower.node.clone();
            Command::TransferLeader { keyspace: name(), shard: first(test).id, to }
        },
        |test| Command::AddReplica { keyspace: name(), shard: first(test).id, node: spare(test) },
        |test| {
            let node = first(test).replicas[0].node.clone();
            Command::RemoveReplica { keyspace: name(), shard: first(test).id, node }
        },
    ];
    for (of, step) in (0..commands.len()).flat_map(|of| (0..10).map(move |step| (of, step))) {
        let bounds = presplit::even_hashes(2).unwrap().into_iter().map(Bounds::Hashes).collect();
        let mut test = TestCluster::new(hashed.clone(), bounds);
        ["a", "b", "c", "d"].into_iter().for_each(|name| test.join(name));
        test.run(2_000);
        let asked = commands[of](&test);
        command(&mut test, asked.clone());
        test.run(step * BEAT_MS / 2);
        test = test.restart_coordinator();
        test.run(30 * BEAT_MS);
        let plans = test.plans().into_iter().filter(|plan| matches!(plan.origin, Origin::Person(_)));
        let far: Vec<_> = plans.flat_map(|plan| &plan.changes).map(|planned| &planned.progress).collect();
        assert_eq!(far, [&Progress::Done], "step {step} of {asked:?}: {:#?}", test.notices);
    }
}

fn first(test: &TestCluster) -> &Shard {
    test.map().shards().next().unwrap()
}

/// A node that has no replica of the first shard.
fn spare(test: &TestCluster) -> NodeId {
    let is_free = |id: &&NodeId| first(test).replicas.iter().all(|replica| replica.node != **id);
    test.cluster.nodes().keys().find(is_free).unwrap().clone()
}

#[test]
fn o5_a_grant_once_decided_stays_when_the_former_owner_comes_back() {
    let exclusive = Keyspace { ownership: Ownership::Exclusive, ..keyspace(1) };
    let mut test = cluster_of(&["a", "b"], exclusive, 1);
    let shard = test.map().shards().next().unwrap().id;
    let from = owner(&test, shard).unwrap();
    let to = if from == node("a") { node("b") } else { node("a") };
    switch(&mut test, shard, &to);
    let granted = |test: &TestCluster| {
        let orders = test.cluster.orders_since(&to, 0, None).unwrap();
        orders.changed.iter().any(|order| order.replica.shard == shard && order.granted)
    };
    assert!(!granted(&test), "{from} may still believe to own it");
    test.cut_off.extend([from.clone(), to.clone()]);
    let silent = (0..20).take_while(|_| {
        test.run(BEAT_MS);
        !granted(&test)
    });
    assert!(silent.count() < 14, "the lease of {from} is over before it is dead");
    test.cut_off.remove(&from);
    test.run(BEAT_MS);
    assert!(granted(&test), "what was decided is what {to} is told");
    test.cut_off.clear();
    test.run(1_000);
    assert!(test.is_at_rest(1) && owner(&test, shard) == Some(to));
}

#[test]
fn l1_a_shard_is_not_placed_where_its_last_replica_is_still_leaving() {
    let mut test = cluster_of(&["a", "b", "c"], keyspace(3), 3);
    let shard = test.map().shards().next().unwrap().id;
    let from = owner(&test, shard).unwrap();
    let to = ["a", "b", "c"].map(node).into_iter().find(|other| *other != from).unwrap();
    switch(&mut test, shard, &to);
    // The former owner is now the emptiest node, and waits for a successor.
    test.kill(to.as_str());
    test.run(5_000);
    assert_eq!(test.served().len(), 3, "{:#?}", test.notices);
    assert!(test.is_at_rest(1), "{:#?}", test.map());
}

#[test]
fn a_merge_goes_on_when_a_parent_speaks_up_after_its_child() {
    let hashed = Keyspace { sharding: Sharding::HashRange { hash: HashFunction::Xxh3_64 }, ..keyspace(1) };
    let bounds = presplit::even_hashes(2).unwrap().into_iter().map(Bounds::Hashes).collect();
    let mut test = TestCluster::new(hashed, bounds);
    ["a", "b", "c"].into_iter().for_each(|name| test.join(name));
    test.run(2_000);
    let [left, right] = [0, 1].map(|at| test.map().shards().nth(at).unwrap().id);
    command(&mut test, Command::MergeShards { keyspace: name(), left, right });
    let forms = |test: &TestCluster| {
        let child = test.map().shards().find(|shard| matches!(shard.stage(), Stage::Forming(_)));
        child.map(|shard| shard.replicas[0].node.clone())
    };
    let child = forms(&test).expect("the child prepares");
    test = test.restart_coordinator();
    let parents = [left, right].map(|parent| owner(&test, parent).unwrap());
    test.cut_off.extend(parents.iter().filter(|node| **node != child).cloned());
    assert!(!test.cut_off.is_empty(), "a parent is elsewhere");
    test.run(4 * BEAT_MS);
    assert!(forms(&test).is_some(), "it is ready, and waits for its parents");
    test.cut_off.clear();
    test.run(10 * BEAT_MS);
    assert!(forms(&test).is_none(), "{:#?}", test.map());
    assert!(test.map().len() == 1 && test.served().len() == 1);
}

#[test]
fn l1_a_shard_that_was_served_once_can_be_placed_again_where_it_could_not_be_loaded() {
    let nodes = ["a", "b", "c", "d"];
    let mut test = cluster_of(&nodes, keyspace(1), 1);
    let shard = test.map().shards().next().unwrap().id;
    let lost = owner(&test, shard).unwrap();
    test.fails.extend(nodes.map(|at| (shard, node(at))));
    test.kill(lost.as_str());
    test.run(20_000);
    assert!(test.notices.iter().any(|notice| notice.contains("is set aside")), "{:#?}", test.notices);
    let left = &test.map().shard(shard).unwrap().replicas;
    assert!(left.iter().all(|r| r.state != ReplicaState::Unload), "nobody waits for a successor: {left:?}");
    test.fails.clear();
    command(&mut test, Command::ReleaseShard { keyspace: name(), shard });
    test.run(2_000);
    assert_eq!(test.served().len(), 1, "{:#?}", test.map());
    assert!(test.is_at_rest(1));
}

#[test]
fn a_worker_has_to_come_to_each_coordinator_before_it_beats() {
    let test = cluster_of(&["a"], keyspace(2), 2);
    let mut fresh = Cluster::recover(test.at(), settings(), test.disk.clone()).unwrap();
    let record = fresh.nodes()[&node("a")].record.clone();
    let beat = |sequence| Beat {
        session: crate::base::id::SessionDigest::default(),
        node: node("a"),
        incarnation: record.incarnation,
        sequence,
        sent_at: Millis(test.now),
        // Of the coordinator before this one, which counted from 1 as this one does.
        applied: 1,
        sent: 0,
        whole: true,
        reports: Vec::new(),
        leaving: Some(false),
        busy: 0.0,
        lease_expired: false,
        disk: Default::default(),
    };
    assert_eq!(fresh.beat(test.at(), beat(1_000)), Err(BeatError::NotYet(node("a"))));
    let registration =
        Registration { incarnation: Some(record.incarnation), ..Registration::new(record.spec.clone()) };
    assert_eq!(fresh.register(test.at(), registration).unwrap().incarnation, record.incarnation);
    assert!(fresh.beat(test.at(), beat(1_001)).is_ok());
}

#[test]
fn l1_of_two_nodes_the_former_owner_takes_a_shard_again_when_the_new_one_dies() {
    for leaves_for_good in [false, true] {
        let mut test = cluster_of(&["a", "b"], keyspace(1), 1);
        let shard = test.map().shards().next().unwrap().id;
        let from = owner(&test, shard).unwrap();
        let to = if from == node("a") { node("b") } else { node("a") };
        let first = test.map().shard(shard).unwrap().leader().unwrap().placement;
        switch(&mut test, shard, &to);
        let left = |test: &TestCluster| test.map().shard(shard).unwrap().replica(first).map(|r| r.state);
        assert_eq!(left(&test), Some(ReplicaState::Unload));
        test.kill(to.as_str());
        // Its copy is not deleted before the next stay has begun from it.
        while owner(&test, shard).as_ref() != Some(&from) || !test.served().contains(&shard) {
            assert!(test.now < 20_000, "{:#?} {:#?}", test.notices, test.map());
            assert_eq!(left(&test), Some(ReplicaState::Unload));
            test.run(BEAT_MS);
        }
        test.run(1_000);
        assert!(test.is_at_rest(1), "{:#?}", test.map());
        let leader = test.map().shard(shard).unwrap().leader().unwrap();
        assert!(leader.node == from && leader.placement != first, "nothing goes back: {leader:?}");
        if leaves_for_good {
            test = test.restart_coordinator();
            test.run(5_000);
            assert_eq!(test.served().len(), 1);
        }
    }
}

#[test]
fn l1_where_another_node_may_take_it_the_former_owner_does_not() {
    let mut test = cluster_of(&["a", "b", "c"], keyspace(1), 1);
    let shard = test.map().shards().next().unwrap().id;
    let from = owner(&test, shard).unwrap();
    let others: Vec<_> = ["a", "b", "c"].map(node).into_iter().filter(|other| *other != from).collect();
    switch(&mut test, shard, &others[0]);
    test.kill(others[0].as_str());
    test.run(5_000);
    assert!(test.is_at_rest(1) && owner(&test, shard).as_ref() == Some(&others[1]), "{:#?}", test.map());
}
