//! Durable keyspaces: what is stored survives its processes, whichever of them end, and whenever (A2, D10, O3).

use super::super::admin::Command;
use super::disks::Disks;
use super::durable_reshard::reshard;
use super::test_cluster::{BEAT_MS, Hang, TestCluster, keyspace, name, node, slots};
use crate::base::id::{Epoch, PlacementId, ShardId, TransactionId};
use crate::base::name::NodeId;
use crate::keyspace::key::Key;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Replica, Role, Shard};
use crate::keyspace::sharding::Sharding;
use crate::keyspace::{Keyspace, Ownership};
use crate::node::NodeSpec;
use crate::node::exchange::{Order, ReplicaKey};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const REPLACE_AFTER_MS: u64 = 60_000;

pub(super) fn durable(shards: u32, replicas: u32) -> Keyspace {
    let mut keyspace = Keyspace { durable: true, replicas, ..keyspace(shards) };
    keyspace.throttle.replace_after_ms = REPLACE_AFTER_MS;
    keyspace
}

pub(super) fn spec(at: usize) -> NodeSpec {
    NodeSpec::new(node(&format!("n{at}")), format!("n{at}:1"))
}

pub(super) fn start(test: &mut TestCluster, at: usize) {
    let spec = spec(at);
    *test.disks.as_mut().unwrap().starts.entry(spec.id.clone()).or_default() += 1;
    test.join_as(spec);
}

pub(super) fn kill(test: &mut TestCluster, at: usize) {
    test.kill(&format!("n{at}"));
    test.cut_off.remove(&spec(at).id);
}

pub(super) fn cluster_of(nodes: usize, mut keyspace: Keyspace) -> TestCluster {
    if keyspace.ownership == Ownership::Replicated {
        keyspace.min_in_sync = keyspace.replicas.min(2);
    }
    let replicas = keyspace.replicas as usize;
    // Leads of replicated keyspaces are spread by then.
    let settles_ms = if keyspace.ownership == Ownership::Replicated { 6_000 } else { 4_000 };
    let Sharding::Fixed { shards, .. } = keyspace.sharding else { panic!("slots") };
    let mut test = TestCluster::new(keyspace, slots(shards));
    test.disks = Some(Disks::default());
    (0..nodes).for_each(|at| start(&mut test, at));
    test.run(settles_ms);
    assert!(test.is_at_rest(replicas), "{:#?}", test.notices);
    assert_eq!(test.served().len(), shards as usize);
    test
}

/// Which replicas of each shard are where, and in which state.
fn placed(test: &TestCluster) -> BTreeMap<ShardId, BTreeSet<(PlacementId, String, ReplicaState)>> {
    let replicas =
        |shard: &Shard| shard.replicas.iter().map(|r| (r.placement, r.node.to_string(), r.state)).collect();
    test.map().shards().map(|shard| (shard.id, replicas(shard))).collect()
}

pub(super) fn epochs(test: &TestCluster) -> BTreeMap<ShardId, Epoch> {
    test.map().shards().map(|shard| (shard.id, shard.epoch)).collect()
}

pub(super) fn is_told(test: &TestCluster, what: &str) -> bool {
    test.notices.iter().any(|notice| notice.contains(what))
}

pub(super) fn later(before: &BTreeMap<ShardId, Epoch>, test: &TestCluster) -> bool {
    let now = epochs(test);
    let known = now.iter().filter_map(|(shard, epoch)| Some((epoch, before.get(shard)?)));
    known.into_iter().all(|(now, before)| now > before)
}

/// Seen before: placements 4 to 6 became 7 to 9 within three seconds, and every key was gone.
#[test]
fn d10_o3_every_process_at_once_comes_back_to_the_replicas_that_it_had() {
    for (ownership, with_coordinator) in [
        (Ownership::Exclusive, false),
        (Ownership::Exclusive, true),
        (Ownership::Eventual, true),
        (Ownership::Replicated, false),
        (Ownership::Replicated, true),
    ] {
        let mut test = cluster_of(3, Keyspace { ownership, ..durable(8, 3) });
        for round in 0..5 {
            let (before, epochs_before) = (placed(&test), epochs(&test));
            (0..3).for_each(|at| kill(&mut test, at));
            if with_coordinator {
                test = test.restart_coordinator();
            }
            test.run(500 * round);
            (0..3).for_each(|at| start(&mut test, at));
            test.run(6_000);
            assert_eq!(placed(&test), before, "round {round}: {:#?}", test.notices);
            assert!(later(&epochs_before, &test), "round {round}");
            assert_eq!(test.served().len(), 8, "round {round}");
            assert!(test.is_at_rest(3), "round {round}");
        }
        assert!(!is_told(&test, "is set aside and"), "{:#?}", test.notices);
        assert!(test.cluster.brake().is_none());
    }
}

#[test]
fn d10_the_last_replica_is_never_removed_and_its_shard_waits_for_its_node() {
    let mut test = cluster_of(3, durable(8, 1));
    let before = placed(&test);
    let of_n0 = |shard: &Shard| shard.replicas.iter().any(|r| r.node == node("n0"));
    let waits: Vec<ShardId> = test.map().shards().filter(|shard| of_n0(shard)).map(|s| s.id).collect();
    assert!(!waits.is_empty());
    kill(&mut test, 0);
    test.run(3 * REPLACE_AFTER_MS);
    assert!(test.cluster.nodes()[&node("n0")].record.ended);
    assert_eq!(placed(&test), before, "{:#?}", test.notices);
    assert_eq!(test.served().len(), 8 - waits.len(), "the others are served");
    let status = test.cluster.status(test.at());
    assert_eq!((status.shards.waiting, status.shards.unserved()), (waits.len(), waits.len()));
    let problems: Vec<_> = status.problems.iter().map(ToString::to_string).collect();
    assert!(problems.iter().any(|p| p.contains("wait for n0") && p.contains("force-join")), "{problems:#?}");
    let epochs_before = epochs(&test);
    start(&mut test, 0);
    test.run(3_000);
    assert_eq!(placed(&test), before);
    assert_eq!(test.served().len(), 8);
    assert!(waits.iter().all(|id| epochs(&test)[id] > epochs_before[id]), "O3");
}

#[test]
fn a_dead_nodes_replicas_count_no_more_and_are_replaced_when_the_time_is_over() {
    is_replaced_after(REPLACE_AFTER_MS, durable(8, 2));
}

/// A keyspace of which nobody said how long a dead node is waited for.
#[test]
fn a_dead_nodes_replicas_are_replaced_after_five_minutes_where_nobody_said_otherwise() {
    // Few shards: it is a long time in beats.
    is_replaced_after(300_000, Keyspace { durable: true, replicas: 2, ..keyspace(2) });
}

/// A dead node's replicas in a keyspace with two replicas stay parked until `replace_after_ms` after its end.
fn is_replaced_after(replace_after_ms: u64, keyspace: Keyspace) {
    let mut test = cluster_of(4, keyspace);
    let of_n0 = |test: &TestCluster| {
        test.map().shards().flat_map(|s| &s.replicas).filter(|r| r.node == node("n0")).count()
    };
    let held = of_n0(&test);
    assert!(held > 0);
    kill(&mut test, 0);
    test.run(5_000);
    assert_eq!(test.served().len(), test.map().len(), "followers lead at once");
    let parked = |test: &TestCluster| {
        let all = test.map().shards().flat_map(|s| s.replicas.iter().cloned().collect::<Vec<_>>());
        all.filter(|r| r.node == node("n0") && r.state == ReplicaState::Load).count()
    };
    assert_eq!((parked(&test), test.counts().get("n0")), (held, None), "it counts for nothing");
    test.run(replace_after_ms - 15_000);
    assert_eq!(parked(&test), held, "and nothing is copied meanwhile: {:#?}", test.notices);
    test.run(20_000);
    assert_eq!(of_n0(&test), 0, "{:#?}", test.notices);
    assert!(test.is_at_rest(2), "{:#?}", test.notices);
    // What it has stored goes when it comes back, as others serve it.
    start(&mut test, 0);
    test.run(5_000);
    let disks = test.disks.as_ref().unwrap();
    let held: BTreeSet<_> =
        test.map().shards().flat_map(|s| s.replicas.iter().map(|r| r.placement)).collect();
    assert!(disks.data.keys().all(|(_, key)| held.contains(&key.placement)), "{:#?}", disks.data.keys());
}

#[test]
fn a_node_that_is_back_in_time_catches_up_and_nothing_moves() {
    let mut test = cluster_of(4, durable(8, 3));
    let before = placed(&test);
    kill(&mut test, 0);
    test.run(20_000);
    start(&mut test, 0);
    test.run(10_000);
    assert_eq!(placed(&test), before, "{:#?}", test.notices);
    assert!(test.is_at_rest(3));
}

/// Of two that restart one is damaged, and one has lost its disk: both get the data of the third again.
#[test]
fn what_is_damaged_or_gone_counts_for_nothing_and_is_loaded_anew_from_others() {
    let mut test = cluster_of(3, durable(8, 3));
    (0..3).for_each(|at| kill(&mut test, at));
    let disks = test.disks.as_mut().unwrap();
    disks.data.retain(|(on, _), _| *on != node("n1"));
    for ((on, _), data) in &mut disks.data {
        data.damaged = *on == node("n2");
    }
    (0..3).for_each(|at| start(&mut test, at));
    test.run(15_000);
    assert_eq!(test.served().len(), 8, "{:#?}", test.notices);
    assert!(test.is_at_rest(3), "{:#?}", test.map());
    assert!(test.disks.as_ref().unwrap().data.values().all(|data| !data.damaged));
}

#[test]
fn d10_a_last_copy_that_is_damaged_or_gone_is_not_served_and_not_removed() {
    for is_gone in [false, true] {
        let mut test = cluster_of(2, durable(8, 1));
        let before = placed(&test);
        (0..2).for_each(|at| kill(&mut test, at));
        let disks = test.disks.as_mut().unwrap();
        disks.data.values_mut().for_each(|data| data.damaged = true);
        if is_gone {
            disks.data.clear();
        }
        (0..2).for_each(|at| start(&mut test, at));
        test.run(2 * REPLACE_AFTER_MS);
        assert_eq!(placed(&test), before, "{:#?}", test.notices);
        assert_eq!(test.served().len(), 0);
    }
}

/// One that missed writes must not lead because it is back first.
#[test]
fn d1_a_replica_without_which_others_went_on_waits_for_one_of_them() {
    let mut test = cluster_of(3, durable(8, 3));
    kill(&mut test, 0);
    test.run(10_000);
    (1..3).for_each(|at| kill(&mut test, at));
    test.run(1_000);
    start(&mut test, 0);
    test.run(30_000);
    assert_eq!(test.served().len(), 0, "what it has is too old");
    start(&mut test, 2);
    test.run(10_000);
    assert_eq!(test.served().len(), 8, "{:#?}", test.notices);
    start(&mut test, 1);
    test.run(10_000);
    assert!(test.is_at_rest(3), "{:#?}", placed(&test));
}

/// A follower that is slow to open what it has stored keeps no leader from beginning (L4).
#[test]
fn l4_no_leader_waits_for_stored_followers_that_do_not_get_on() {
    let mut test = cluster_of(3, durable(8, 3));
    (0..3).for_each(|at| kill(&mut test, at));
    test.hangs.insert(node("n1"), Hang::Serve);
    (0..3).for_each(|at| start(&mut test, at));
    test.run(3_000);
    let leads = |shard: &&Shard| shard.leader().is_some_and(|r| r.node != node("n1"));
    let others: BTreeSet<ShardId> = test.map().shards().filter(leads).map(|shard| shard.id).collect();
    assert!(!others.is_empty());
    let served = test.served();
    assert!(others.is_subset(&served), "{others:?} {served:?}");
}

/// Everything dies, one node never comes back, and the brake goes on: what is back serves what it has stored.
#[test]
fn d10_r4_the_brake_keeps_no_stored_copy_from_being_served() {
    let mut test = cluster_of(4, durable(8, 3));
    (0..4).for_each(|at| kill(&mut test, at));
    test.run(10_000);
    assert!(test.cluster.brake().is_some());
    (1..4).for_each(|at| start(&mut test, at));
    test.run(10_000);
    assert_eq!(test.served().len(), 8, "{:#?}", test.notices);
    assert!(!test.cluster.nodes()[&node("n0")].record.ended, "it was not given up");
    assert!(!is_told(&test, "is set aside and"), "{:#?}", test.notices);
}

/// A person wants one copy, while the leader has just fallen silent: its disk is gone. The copies that are heard stay, or one.
#[test]
fn d7_d10_no_copy_is_deleted_for_a_leader_that_is_not_heard() {
    let mut test = cluster_of(3, durable(1, 3));
    let shard = test.map().shards().next().unwrap();
    let (id, leader) = (shard.id, shard.leader().unwrap().node.clone());
    let at = (0..3).find(|at| spec(*at).id == leader).unwrap();
    kill(&mut test, at);
    test.disks.as_mut().unwrap().data.retain(|(on, _), _| *on != leader);
    // Longer than until it is suspect, and not until it is dead.
    test.run(600);
    let command = Command::SetShardReplicas { keyspace: name(), shard: id, replicas: Some(1), ahead: true };
    test.cluster.command(test.at(), TransactionId([9; 20]), "mia", command).unwrap();
    test.run(60_000);
    assert_eq!(test.served().len(), 1, "{:#?} {:#?}", test.map(), test.notices);
}

/// A node that is restarted and wants to leave at once has no orders yet, and has the only copies.
#[test]
fn d10_a_restarted_node_does_not_leave_with_the_last_copy() {
    let mut test = cluster_of(2, durable(4, 1));
    kill(&mut test, 0);
    test.run(20_000);
    start(&mut test, 0);
    test.workers.get_mut(&node("n0")).unwrap().leaving = true;
    test.run(30_000);
    assert!(!test.workers.contains_key(&node("n0")), "it may go: {:#?}", test.notices);
    assert_eq!(test.served().len(), 4, "its shards have moved before: {:#?}", test.notices);
}

/// The map names two copies. The node of one is back without its disk, or a part of it; the other one is the last.
#[test]
fn d10_a_node_is_not_forgotten_with_the_last_copy_that_can_be_read() {
    for is_gone in [false, true] {
        let mut test = cluster_of(2, durable(4, 2));
        (0..2).for_each(|at| kill(&mut test, at));
        // Nobody misses n0 yet when n1 says goodbye.
        test.run(100);
        let (at, id) = (test.at(), node("n1"));
        let incarnation = test.cluster.nodes()[&id].record.incarnation;
        test.cluster.leave(at, &id, incarnation, crate::base::id::SessionDigest::default()).unwrap();
        let disks = test.disks.as_mut().unwrap();
        let on_n0 = |of: &crate::base::name::NodeId| *of == node("n0");
        if is_gone {
            disks.data.retain(|(on, _), _| !on_n0(on));
        }
        disks.data.iter_mut().for_each(|((on, _), data)| data.damaged = on_n0(on));
        test.run(10_000);
        start(&mut test, 0);
        test.run(5_000);
        let remove = |id: &str| {
            let command = Command::RemoveNode { node: node(id) };
            test.cluster.clone().dry_run(test.at(), TransactionId([9; 20]), "mia", command)
        };
        let refused = remove("n1").unwrap_err().to_string();
        assert!(refused.contains("n1 has the only copy of shard"), "{refused}");
        remove("n0").unwrap();
        start(&mut test, 1);
        test.run(10_000);
        assert_eq!(test.served().len(), 4, "{:#?}", test.notices);
    }
}

/// Workers that say goodbye keep what they have stored: it is theirs again, and others need not copy it at once.
#[test]
fn d10_a_goodbye_gives_no_stored_replica_up() {
    let mut test = cluster_of(3, durable(8, 1));
    let before = placed(&test);
    let (at, id) = (test.at(), node("n0"));
    let incarnation = test.cluster.nodes()[&id].record.incarnation;
    kill(&mut test, 0);
    test.cluster.leave(at, &id, incarnation, crate::base::id::SessionDigest::default()).unwrap();
    test.run(2 * REPLACE_AFTER_MS);
    assert_eq!(placed(&test), before, "{:#?}", test.notices);
    start(&mut test, 0);
    test.run(3_000);
    assert_eq!((placed(&test), test.served().len()), (before, 8));
}

/// A node leaves for good: what it holds moves as ever, and a drain waits for nobody who is away.
#[test]
fn l8_a_drain_goes_on_while_another_node_is_away() {
    let mut test = cluster_of(5, durable(8, 2));
    kill(&mut test, 0);
    test.run(5_000);
    test.drain("n1");
    test.run(REPLACE_AFTER_MS + 30_000);
    assert_eq!((test.counts().get("n1"), test.counts().get("n0")), (None, None), "{:#?}", test.notices);
    assert!(test.is_at_rest(2));
}

/// A decision settles so many shards at most: a leader may be given orders when a follower has ended and is not settled yet.
#[test]
fn d1_a_leader_does_not_go_on_without_a_follower_that_the_map_calls_live() {
    let mut test = cluster_of(3, durable(8, 2));
    let n0 = node("n0");
    // Which replicas on n0 are named as live to those that lead their shards.
    let named = |test: &TestCluster| -> usize {
        let orders = ["n1", "n2"].map(|name| test.cluster.orders_since(&node(name), 0, None).unwrap());
        let leads = |order: &&Order| order.role == Role::Leader && order.state == ReplicaState::Live;
        let leaders = orders.iter().flat_map(|orders| &orders.changed).filter(leads);
        let peers = leaders.flat_map(|order| &order.peers);
        peers.filter(|peer| peer.node == n0 && peer.state == ReplicaState::Live).count()
    };
    let before = named(&test);
    assert!(before > 0);
    kill(&mut test, 0);
    test.cluster.members.get_mut(&n0).unwrap().record.ended = true;
    assert_eq!(named(&test), before, "the map still calls them copies");
    test.cluster.members.get_mut(&n0).unwrap().record.ended = false;
    test.run(10_000);
    assert!(test.cluster.nodes()[&n0].record.ended);
    let on_n0 = |shard: &Shard| shard.live().any(|r| r.node == n0);
    assert_eq!((named(&test), test.map().shards().filter(|shard| on_n0(shard)).count()), (0, 0));
}

/// A leader that has not taken in who copies from it acknowledges writes without that replica, which then must not lead.
#[test]
fn d1_a_replica_copies_from_a_leader_that_knows_of_it() {
    for ownership in Ownership::ALL.iter().copied() {
        let mut test = cluster_of(3, Keyspace { ownership, ..durable(8, 1) });
        test.lost_answers.insert(node("n0"), 8);
        test.drain("n0");
        test.run(7 * BEAT_MS);
        // It dies with what nobody else has, and comes back.
        kill(&mut test, 0);
        test.run(5_000);
        start(&mut test, 0);
        test.run(30_000);
        assert_eq!((test.served().len(), test.counts().get("n0")), (8, None), "{:#?}", test.notices);
    }
}

#[test]
fn a_replica_that_waits_to_load_says_for_whom() {
    let mut test = cluster_of(3, durable(8, 1));
    test.lost_answers.insert(node("n0"), 8);
    test.drain("n0");
    test.run(7 * BEAT_MS);
    let loads = |shard: &&Shard| shard.replicas.iter().any(|r| r.state == ReplicaState::Load);
    let shard = test.map().shards().find(loads).unwrap().id;
    let holds = |key: &Key| test.map().find(key.as_bytes()).is_some_and(|found| found.id == shard);
    let key = (0..999).map(|n| Key::new(format!("{n}").as_bytes()).unwrap()).find(holds).unwrap();
    let told = test.cluster.explain(test.at(), &name(), &key).unwrap().to_string();
    assert!(told.contains("n0, which leads it, has not taken in"), "{told}");
}

/// What happens in a random history.
#[derive(Debug, Clone)]
enum Event {
    Kill(usize),
    Start(usize),
    Pause(usize),
    Resume(usize),
    /// Its address answers no more, though it beats.
    Unreach(usize),
    Reach(usize),
    KillAll,
    RestartCoordinator,
    /// The next answers to its beats are lost: it goes on with the orders that it has.
    Lose(usize, u32),
    /// It is emptied, or no longer.
    Drain(usize),
    Undrain(usize),
    /// To so many shards.
    Reshard(u32),
    Pass(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0usize..5).prop_map(Event::Kill),
        4 => (0usize..5).prop_map(Event::Start),
        2 => (0usize..5).prop_map(Event::Pause),
        2 => (0usize..5).prop_map(Event::Resume),
        2 => (0usize..5).prop_map(Event::Unreach),
        2 => (0usize..5).prop_map(Event::Reach),
        1 => Just(Event::KillAll),
        1 => Just(Event::RestartCoordinator),
        3 => (0usize..5, 1u32..5).prop_map(|(at, answers)| Event::Lose(at, answers)),
        2 => (0usize..5).prop_map(Event::Drain),
        2 => (0usize..5).prop_map(Event::Undrain),
        1 => prop::sample::select(vec![4, 8, 16]).prop_map(Event::Reshard),
        6 => (1u64..60).prop_map(|beats| Event::Pass(beats * BEAT_MS)),
        1 => (600u64..900).prop_map(|beats| Event::Pass(beats * BEAT_MS)),
    ];
    prop::collection::vec(event, 1..40)
}

/// The process goes on; one that was given up meanwhile registers as a new one.
fn resume(test: &mut TestCluster, at: usize) {
    let id = spec(at).id;
    if test.cut_off.remove(&id) && test.cluster.nodes()[&id].record.ended {
        kill(test, at);
        start(test, at);
    }
}

fn happen(mut test: TestCluster, nodes: usize, event: &Event) -> TestCluster {
    let lives = |test: &TestCluster, at: usize| test.workers.contains_key(&spec(at).id);
    match event {
        Event::Kill(at) if lives(&test, at % nodes) => kill(&mut test, at % nodes),
        Event::Start(at) if !lives(&test, at % nodes) => start(&mut test, at % nodes),
        Event::Pause(at) if lives(&test, at % nodes) => drop(test.cut_off.insert(spec(at % nodes).id)),
        Event::Resume(at) => resume(&mut test, at % nodes),
        Event::Unreach(at) => drop(test.unreachable.insert(spec(at % nodes).id)),
        Event::Reach(at) => drop(test.unreachable.remove(&spec(at % nodes).id)),
        Event::Kill(_) | Event::Start(_) | Event::Pause(_) => {}
        Event::KillAll => (0..nodes)
            .filter(|at| lives(&test, *at))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|at| kill(&mut test, at)),
        Event::RestartCoordinator => test = test.restart_coordinator(),
        Event::Lose(at, answers) => drop(test.lost_answers.insert(spec(at % nodes).id, *answers)),
        Event::Drain(at) => test.drain(&format!("n{}", at % nodes)),
        Event::Undrain(at) => test.undrain(&format!("n{}", at % nodes)),
        Event::Reshard(to) => drop(reshard(&mut test, *to)),
        Event::Pass(ms) => test.run(*ms),
    }
    test
}

/// Whichever processes die and come back, at whatever time: what was acknowledged is on some disk, nobody leads
/// without it, no epoch names two starts, and when all are back everything serves, under higher epochs, without a person. (What
/// is asserted meanwhile is in `disks.rs`.)
fn survives(nodes: usize, replicas: u32, ownership: Ownership, events: &[Event]) {
    let mut test = cluster_of(nodes, Keyspace { ownership, ..durable(8, replicas) });
    for event in events {
        test = happen(test, nodes, event);
    }
    for at in 0..nodes {
        test = happen(test, nodes, &Event::Resume(at));
        test = happen(test, nodes, &Event::Reach(at));
        test = happen(test, nodes, &Event::Undrain(at));
    }
    test = happen(test, nodes, &Event::KillAll);
    test.run(500);
    let before = epochs(&test);
    for at in 0..nodes {
        test = happen(test, nodes, &Event::Start(at));
    }
    test.run(10_000);
    let serving = test.map().shards().filter(|shard| shard.is_serving()).count();
    assert_eq!(test.served().len(), serving, "{:#?} {:#?}", test.notices, test.map());
    assert!(later(&before, &test));
    release_what_was_blamed_by_chance(&mut test);
    test.run(2 * REPLACE_AFTER_MS);
    assert!(test.is_at_rest(replicas as usize), "{:#?} {:#?}", test.notices, test.map());
    assert!(!is_told(&test, "it could not be loaded on"), "{:#?}", test.notices);
}

/// Three kills in a row can hit the three nodes that a shard was moved to: nothing tells that from a shard that kills them.
fn release_what_was_blamed_by_chance(test: &mut TestCluster) {
    // Those that are held back are judged by then.
    test.run(30_000);
    let aside: Vec<ShardId> = test.cluster.keyspaces.by_name[&name()]
        .record
        .rules
        .iter()
        .filter(|(_, rule)| rule.set_aside.as_ref().is_some_and(|why| why.contains("died soon after")))
        .map(|(shard, _)| *shard)
        .collect();
    for shard in aside {
        let command = Command::ReleaseShard { keyspace: name(), shard };
        test.cluster.command(test.at(), TransactionId([7; 20]), "mia", command).unwrap();
        test.decide();
    }
}

/// The leader of what is merged dies unnoticed: that the new shards cannot be loaded meanwhile is not their fault.
#[test]
fn b6_no_shard_is_set_aside_because_its_source_died() {
    for with_coordinator in [false, true] {
        let restart = with_coordinator.then_some(Event::RestartCoordinator);
        let events = [Event::Reshard(4)].into_iter().chain(restart).chain([Event::Kill(0), Event::Pass(600)]);
        survives(5, 3, Ownership::Exclusive, &events.collect::<Vec<_>>());
    }
}

/// Two of four nodes go for good, one after the other was replaced, and then everything dies.
#[test]
fn d10_nodes_that_die_one_after_the_other_lose_nothing() {
    for ownership in Ownership::ALL.iter().copied() {
        let passes = [Event::Kill(3), Event::Pass(62_900), Event::Kill(2), Event::Pass(62_400)];
        survives(4, 3, ownership, &passes);
    }
}

fn ownerships() -> impl Strategy<Value = Ownership> {
    prop::sample::select(Ownership::ALL)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]
    #[test]
    fn d10_d1_o3_whatever_restarts_nothing_that_was_acknowledged_is_lost(
        nodes in 3usize..=5, replicas in 1u32..=3, ownership in ownerships(), events in events(),
    ) {
        survives(nodes, replicas, ownership, &events);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    #[ignore = "takes minutes: ./test long"]
    fn d10_d1_o3_whatever_restarts_for_long_nothing_that_was_acknowledged_is_lost(
        nodes in 3usize..=5, replicas in 1u32..=3, ownership in ownerships(), events in events(),
    ) {
        survives(nodes, replicas, ownership, &events);
    }
}

pub(super) fn force_join(
    test: &mut TestCluster,
    id: ShardId,
    on: &str,
    generation: u64,
) -> Result<Vec<String>, String> {
    let (at, node) = (test.at(), node(on));
    let command = Command::ForceJoinShard { keyspace: name(), shard: id, node, generation };
    let answer = test.cluster.command(at, TransactionId([7; 20]), "mia", command);
    test.decide();
    answer.map(|answer| answer.warnings).map_err(|error| error.to_string())
}

/// n0 missed writes, n1 and n2 are lost: only a person may go on with what n0 has.
#[test]
fn d10_only_a_person_chooses_a_copy_and_hears_what_may_be_missing() {
    let mut test = cluster_of(3, durable(8, 3));
    let shard = ShardId(3);
    let sequence = |test: &TestCluster| test.map().generation().sequence;
    let refused = force_join(&mut test, shard, "n0", 1).unwrap_err();
    assert!(refused.contains("has not ended"), "{refused}");
    kill(&mut test, 0);
    test.run(10_000);
    (1..3).for_each(|at| kill(&mut test, at));
    test.run(1_000);
    start(&mut test, 0);
    test.run(30_000);
    assert_eq!(test.served().len(), 0);
    let now = sequence(&test);
    let refused = force_join(&mut test, shard, "n0", now - 1).unwrap_err();
    assert!(refused.contains(&format!("is at {now}")), "{refused}");
    let refused = force_join(&mut test, shard, "n1", now).unwrap_err();
    assert!(refused.contains("node n1 is down"), "{refused}");
    let before = test.map().shard(shard).unwrap().epoch;
    // What is acknowledged from here on counts anew: the person gave the rest up.
    test.disks.as_mut().unwrap().give_up(shard);
    let warnings = force_join(&mut test, shard, "n0", now).unwrap();
    assert!(warnings[0].contains("may be missing") && warnings[0].contains("up to epoch"), "{warnings:#?}");
    assert!(warnings[1].contains("n1 as"), "{warnings:#?}");
    test.run(3_000);
    assert_eq!(test.served(), BTreeSet::from([shard]), "{:#?}", test.notices);
    assert!(test.map().shard(shard).unwrap().epoch > before, "O3");
    // What comes back after all follows, and has its data from n0.
    (1..3).for_each(|at| start(&mut test, at));
    test.run(10_000);
    assert_eq!(test.served().len(), 8);
    assert!(test.is_at_rest(3), "{:#?}", placed(&test));
    assert_eq!(test.map().shard(shard).unwrap().leader().unwrap().node, node("n0"));
}

/// Seen in the simulator (seed 249, touched and durable): coordinators began from an older state, nobody knew, and the same
/// number was given out twice. A person chose the one copy, and the map went on with the other, again and again.
#[test]
fn d10_a_copy_is_not_taken_for_another_of_the_same_number() {
    let mut test = cluster_of(3, durable(8, 1));
    let shard = test.map().shard(ShardId(3)).unwrap().clone();
    let Replica { node: former, placement, .. } = shard.replicas[0].clone();
    let index = |id: &NodeId| id.as_str()[1..].parse::<usize>().unwrap();
    let chosen = (0..3).map(|at| spec(at).id).find(|id| *id != former).unwrap();
    [&former, &chosen].into_iter().for_each(|id| kill(&mut test, index(id)));
    test.run(1_000);
    let key = ReplicaKey { keyspace: name(), shard: shard.id, placement };
    let disks = test.disks.as_mut().unwrap();
    let data = disks.data.remove(&(former.clone(), key.clone())).unwrap();
    disks.data.insert((chosen.clone(), key), data);
    [&former, &chosen].into_iter().for_each(|id| start(&mut test, index(id)));
    test.run(10_000);
    assert_eq!(test.served().len(), 7, "{:#?}", test.notices);
    let now = test.map().generation().sequence;
    let refused = force_join(&mut test, shard.id, chosen.as_str(), now).unwrap_err();
    assert!(
        refused.contains(&format!("{placement} on {former}")) && refused.contains("recreate"),
        "{refused}"
    );
}

#[test]
fn d10_a_node_with_the_only_copy_of_a_shard_is_not_forgotten() {
    let mut test = cluster_of(2, durable(8, 1));
    kill(&mut test, 0);
    test.run(10_000);
    let at = test.at();
    let command = Command::RemoveNode { node: node("n0") };
    let refused = test.cluster.command(at, TransactionId([7; 20]), "mia", command).unwrap_err();
    assert!(refused.to_string().contains("has the only copy of shard"), "{refused}");
    test.drain("n0");
    test.run(1_000);
    let told = format!("{:?}", test.cluster.drains(test.at()));
    assert!(told.contains("is on its disk: keep it there"), "{told}");
}

/// Seen: a plan of one change was made and finished every 20 ms, for ever.
#[test]
fn l8_a_drain_moves_the_only_replica_that_a_shard_is_to_keep() {
    for drained_first in [false, true] {
        for at in 0..3 {
            let mut test = cluster_of(4, durable(8, 3));
            let holder = test.map().shard(ShardId(3)).unwrap().replicas[at].node.to_string();
            let command = Command::SetShardReplicas {
                keyspace: name(),
                shard: ShardId(3),
                replicas: Some(1),
                ahead: false,
            };
            if drained_first {
                test.drain(&holder);
            }
            test.cluster.command(test.at(), TransactionId([7; 20]), "mia", command).unwrap();
            test.decide();
            if !drained_first {
                test.run(300);
                test.drain(&holder);
            }
            test.run(60_000);
            let shard = test.map().shard(ShardId(3)).unwrap();
            assert_eq!(shard.replicas.len(), 1, "{drained_first} {at}: {:#?} {:#?}", shard, test.notices);
            assert_eq!(test.counts().get(holder.as_str()), None, "{drained_first} {at}: {:#?}", test.notices);
        }
    }
}

/// A follower is moved: those that go on can be told from it by their epoch, also when its node keeps what it has. The
/// leader leads on, and a follower that never led is not waited for.
#[test]
fn d10_a_copy_that_is_moved_away_is_earlier_than_those_that_go_on() {
    let mut test = cluster_of(3, durable(1, 2));
    let shard = test.map().shards().next().unwrap().clone();
    let leader = shard.leader().unwrap().clone();
    let follower = shard.live().find(|r| r.placement != leader.placement).unwrap().clone();
    let free = ["n0", "n1", "n2"].map(node).into_iter().find(|n| shard.live().all(|r| r.node != *n)).unwrap();
    let from = follower.node.clone();
    let command = Command::MoveShard { keyspace: name(), shard: shard.id, from, to: free.clone() };
    test.cluster.command(test.at(), TransactionId([9; 20]), "mia", command).unwrap();
    test.run(5_000);
    let now = test.map().shard(shard.id).unwrap().clone();
    assert!(now.live().any(|r| r.node == free) && now.live().count() == 2, "{now:?}");
    assert_eq!(now.leader().map(|r| r.placement), Some(leader.placement));
    assert!(now.epoch > shard.epoch, "{now:?}");
    assert_eq!(test.served().len(), 1, "{:#?}", test.notices);
}
