//! Nodes that beat and cannot be called (A11): what they are given, what they keep, and when it moves.

use super::test_cluster::{BEAT_MS, Hang, TestCluster, keyspace, name, node, settings, slots};
use crate::base::settings::Settings;
use crate::keyspace::{Keyspace, Throttle};
use crate::node::Health;
use crate::node::exchange::Registration;
use crate::plan::brake;

/// When a node whose address stops answering is unreachable.
fn unreachable_ms() -> u64 {
    settings().check_back_ms * u64::from(settings().failed_checks)
}

pub(super) fn cluster_of(nodes: &[&str], replicas: u32) -> TestCluster {
    let mut test = TestCluster::new(Keyspace { replicas, ..keyspace(12) }, slots(12));
    nodes.iter().for_each(|name| test.join(name));
    test.run(3_000);
    assert!(test.is_at_rest(replicas as usize), "{:#?}", test.notices);
    test
}

fn health(test: &TestCluster, name: &str) -> Health {
    test.cluster.nodes()[&node(name)].signs.health(test.at().now, &settings())
}

fn count(test: &TestCluster, name: &str) -> usize {
    test.counts().get(name).copied().unwrap_or(0)
}

fn told(test: &TestCluster, text: &str) -> usize {
    test.notices.iter().filter(|notice| notice.contains(text)).count()
}

#[test]
fn a11_a_node_whose_address_never_answers_is_given_nothing() {
    let mut test = TestCluster::new(keyspace(12), slots(12));
    test.unreachable.insert(node("wrong"));
    ["a", "wrong", "b"].into_iter().for_each(|name| test.join(name));
    for _ in 0..300 {
        test.run(BEAT_MS);
        let replicas = test.map().shards().flat_map(|shard| &shard.replicas);
        assert!(replicas.into_iter().all(|r| r.node != node("wrong")), "at {}", test.now);
    }
    assert_eq!((test.served().len(), health(&test, "wrong")), (12, Health::Unreachable));
    assert_eq!(told(&test, "node wrong is unreachable"), 1, "{:#?}", test.notices);
    test.unreachable.clear();
    test.run(settings().check_back_ms + 3_000);
    assert_eq!(count(&test, "wrong"), 4, "it is given its share as soon as it answers: {:#?}", test.notices);
}

#[test]
fn a11_nothing_is_given_before_a_beat() {
    let mut test = cluster_of(&["a", "b"], 1);
    let spec = crate::node::NodeSpec::new(node("mute"), "127.0.0.1:9999");
    let at = test.at();
    let registration = Registration::new(spec);
    let incarnation = test.cluster.register(at, registration).unwrap().incarnation;
    test.cluster.checked_back(at, &node("mute"), incarnation, true);
    test.run(2 * settings().settle_ms);
    assert!(health(&test, "mute") != Health::Up && count(&test, "mute") == 0, "{:#?}", test.notices);
}

#[test]
fn a11_what_an_unreachable_node_holds_moves_off_within_the_stated_time() {
    for replicas in [1, 2] {
        let mut test = cluster_of(&["a", "b", "c", "d"], replicas);
        test.unreachable.insert(node("a"));
        test.run(unreachable_ms() + settings().check_back_ms);
        assert_eq!(health(&test, "a"), Health::Unreachable);
        test.run(settings().dead_after_ms + 2_000);
        assert_eq!((count(&test, "a"), test.served().len()), (0, 12), "{:#?}", test.notices);
        assert!(test.is_at_rest(replicas as usize) && test.cluster.brake().is_none());
        assert_eq!(told(&test, "its address 127.0.0.1"), 1, "{:#?}", test.notices);
        test.unreachable.clear();
        test.run(settings().rebalance_ms + settings().check_back_ms + 3_000);
        assert!(count(&test, "a") > 0, "it takes part again");
    }
}

#[test]
fn a11_followers_lead_before_anything_is_copied() {
    let mut test = cluster_of(&["a", "b"], 2);
    let leads =
        |test: &TestCluster| test.map().shards().filter(|s| s.leader().unwrap().node == node("a")).count();
    assert!(leads(&test) > 0);
    test.unreachable.insert(node("a"));
    test.run(unreachable_ms() + settings().check_back_ms + settings().dead_after_ms + 1_000);
    assert_eq!((leads(&test), test.served().len()), (0, 12), "{:#?}", test.notices);
    assert_eq!(count(&test, "a"), 12, "there is no third node for the second replica");
}

#[test]
fn r4_a_coordinator_that_reaches_fewer_than_it_does_not_reach_moves_nothing() {
    for unreachable in [&["a", "b", "c", "d"][..], &["a", "b", "c"][..]] {
        let mut test = cluster_of(&["a", "b", "c", "d"], 1);
        let map = test.map().clone();
        test.unreachable.extend(unreachable.iter().map(|name| node(name)));
        test.run(unreachable_ms() + 30_000);
        assert_eq!(test.map(), &map, "{:#?}", test.notices);
        assert_eq!(test.served().len(), 12);
    }
    for (unreachable, reachable, standing, borne) in
        [(1, 1, 2, true), (2, 8, 10, true), (3, 7, 10, false), (20, 80, 100, true), (21, 79, 100, false)]
    {
        let settings = Settings::default();
        assert_eq!(brake::are_unreachable_borne(unreachable, reachable, standing, &settings), borne);
    }
}

#[test]
fn z2_nodes_that_were_never_reached_count_neither_as_silent_nor_as_lost() {
    let mut test = cluster_of(&["a", "b", "c"], 1);
    let strangers: Vec<_> = (0..9).map(|at| format!("x{at}")).collect();
    test.unreachable.extend(strangers.iter().map(|name| node(name)));
    strangers.iter().for_each(|name| test.join(name));
    test.run(2_000);
    strangers.iter().for_each(|name| test.kill(name));
    test.run(5_000);
    assert!(test.cluster.brake().is_none(), "{:?}", test.cluster.brake());
    assert_eq!(told(&test, "nodes answer"), 0, "{:#?}", test.notices);
    test.kill("a");
    test.run(5_000);
    assert_eq!((test.served().len(), test.is_at_rest(1)), (12, true), "{:#?}", test.notices);
}

/// A worker that beats and says nothing of what it is given.
#[test]
fn a12_a_worker_that_never_reports_ready_keeps_its_load_orders_for_a_bounded_time() {
    let throttle = Throttle { load_ms: 600_000, ..Throttle::default() };
    let mut test = TestCluster::new(Keyspace { throttle, ..keyspace(12) }, slots(12));
    ["a", "b"].into_iter().for_each(|name| test.join(name));
    test.run(3_000);
    test.hangs.insert(node("mute"), Hang::Mute);
    test.join("mute");
    test.run(1_000);
    let loads = |test: &TestCluster| {
        let replicas = test.map().shards().flat_map(|shard| &shard.replicas);
        replicas.filter(|r| r.node == node("mute")).count()
    };
    assert!(loads(&test) > 0);
    let given = loads(&test);
    test.run(settings().handover_ms + 2_000);
    assert_eq!(told(&test, "mute has not begun to load it for 4 s"), given, "{:#?}", test.notices);
    test.run(settings().handover_ms + 2_000);
    assert_eq!((loads(&test), test.served().len()), (0, 12), "{:#?}", test.notices);
    let unfinished =
        test.plans().into_iter().filter(|plan| plan.keyspace == name() && !plan.is_over()).count();
    assert_eq!(unfinished, 0, "its moves end");
}

/// Strangers register nodes that answer at their address, and never beat.
fn haunt(test: &mut TestCluster, ghosts: usize) {
    for ghost in 0..ghosts {
        let (id, at) = (node(&format!("ghost-{ghost:02}")), test.at());
        let spec = crate::node::NodeSpec::new(id.clone(), format!("127.0.0.1:{}", 20_000 + ghost));
        let incarnation = test.cluster.register(at, Registration::new(spec)).unwrap().incarnation;
        test.cluster.checked_back(at, &id, incarnation, true);
    }
    test.decide();
}

#[test]
fn z2_nodes_that_never_held_a_shard_count_for_nothing_and_are_forgotten() {
    let mut test = cluster_of(&["a", "b", "c", "d"], 2);
    haunt(&mut test, 12);
    test.run(settings().dead_after_ms);
    test.kill("d");
    // No ghost is among those that should answer, nor among those that were lost.
    test.run(settings().dead_after_ms + 4_000);
    assert_eq!((test.cluster.brake(), test.cluster.unrest()), (None, None), "{:#?}", test.notices);
    assert!(test.is_at_rest(2) && count(&test, "d") == 0, "{:#?}", test.notices);
    assert_eq!(told(&test, "nothing is planned until"), 0, "{:#?}", test.notices);
    test.run(crate::limits::UNUSED_NODE_MS + 2_000);
    let left: Vec<_> = test.cluster.nodes().keys().filter(|id| id.as_str().starts_with("ghost")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(test.cluster.unused_nodes_forgotten(), 12);
    assert!(test.cluster.nodes().contains_key(&node("d")), "a node that served is remembered for longer");
}
