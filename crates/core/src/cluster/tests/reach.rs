//! Nodes that beat and cannot be called (A11): what they are given, what they keep, and when it moves.

use super::town::{BEAT_MS, Hang, Town, keyspace, name, node, settings, slots};
use crate::brake;
use crate::keyspace::{Keyspace, Throttle};
use crate::node::Health;
use crate::settings::Settings;

/// When a node whose address stops answering is unreachable.
fn unreachable_ms() -> u64 {
    settings().check_back_ms * u64::from(settings().failed_checks)
}

pub(super) fn town_of(nodes: &[&str], replicas: u32) -> Town {
    let mut town = Town::new(Keyspace { replicas, ..keyspace(12) }, slots(12));
    nodes.iter().for_each(|name| town.join(name));
    town.run(3_000);
    assert!(town.is_at_rest(replicas as usize), "{:#?}", town.notices);
    town
}

fn health(town: &Town, name: &str) -> Health {
    town.cluster.nodes()[&node(name)].signs.health(town.at().now, &settings())
}

fn count(town: &Town, name: &str) -> usize {
    town.counts().get(name).copied().unwrap_or(0)
}

fn told(town: &Town, text: &str) -> usize {
    town.notices.iter().filter(|notice| notice.contains(text)).count()
}

#[test]
fn a11_a_node_whose_address_never_answers_is_given_nothing() {
    let mut town = Town::new(keyspace(12), slots(12));
    town.unreachable.insert(node("wrong"));
    ["a", "wrong", "b"].into_iter().for_each(|name| town.join(name));
    for _ in 0..300 {
        town.run(BEAT_MS);
        let replicas = town.map().shards().flat_map(|shard| &shard.replicas);
        assert!(replicas.into_iter().all(|r| r.node != node("wrong")), "at {}", town.now);
    }
    assert_eq!((town.served().len(), health(&town, "wrong")), (12, Health::Unreachable));
    assert_eq!(told(&town, "node wrong is unreachable"), 1, "{:#?}", town.notices);
    town.unreachable.clear();
    town.run(settings().check_back_ms + 3_000);
    assert_eq!(count(&town, "wrong"), 4, "it is given its share as soon as it answers: {:#?}", town.notices);
}

#[test]
fn a11_nothing_is_given_before_a_beat() {
    let mut town = town_of(&["a", "b"], 1);
    let spec = crate::node::NodeSpec::new(node("mute"), "127.0.0.1:9999");
    let at = town.at();
    let registration = super::super::Registration::new(spec);
    let incarnation = town.cluster.register(at, registration).unwrap().incarnation;
    town.cluster.checked_back(at, &node("mute"), incarnation, true);
    town.run(2 * settings().settle_ms);
    assert!(health(&town, "mute") != Health::Up && count(&town, "mute") == 0, "{:#?}", town.notices);
}

#[test]
fn a11_what_an_unreachable_node_holds_moves_off_within_the_stated_time() {
    for replicas in [1, 2] {
        let mut town = town_of(&["a", "b", "c", "d"], replicas);
        town.unreachable.insert(node("a"));
        town.run(unreachable_ms() + settings().check_back_ms);
        assert_eq!(health(&town, "a"), Health::Unreachable);
        town.run(settings().dead_after_ms + 2_000);
        assert_eq!((count(&town, "a"), town.served().len()), (0, 12), "{:#?}", town.notices);
        assert!(town.is_at_rest(replicas as usize) && town.cluster.brake().is_none());
        assert_eq!(told(&town, "its address 127.0.0.1"), 1, "{:#?}", town.notices);
        town.unreachable.clear();
        town.run(settings().rebalance_ms + settings().check_back_ms + 3_000);
        assert!(count(&town, "a") > 0, "it takes part again");
    }
}

#[test]
fn a11_followers_lead_before_anything_is_copied() {
    let mut town = town_of(&["a", "b"], 2);
    let leads = |town: &Town| town.map().shards().filter(|s| s.leader().unwrap().node == node("a")).count();
    assert!(leads(&town) > 0);
    town.unreachable.insert(node("a"));
    town.run(unreachable_ms() + settings().check_back_ms + settings().dead_after_ms + 1_000);
    assert_eq!((leads(&town), town.served().len()), (0, 12), "{:#?}", town.notices);
    assert_eq!(count(&town, "a"), 12, "there is no third node for the second replica");
}

#[test]
fn r4_a_coordinator_that_reaches_fewer_than_it_does_not_reach_moves_nothing() {
    for unreachable in [&["a", "b", "c", "d"][..], &["a", "b", "c"][..]] {
        let mut town = town_of(&["a", "b", "c", "d"], 1);
        let map = town.map().clone();
        town.unreachable.extend(unreachable.iter().map(|name| node(name)));
        town.run(unreachable_ms() + 30_000);
        assert_eq!(town.map(), &map, "{:#?}", town.notices);
        assert_eq!(town.served().len(), 12);
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
    let mut town = town_of(&["a", "b", "c"], 1);
    let strangers: Vec<_> = (0..9).map(|at| format!("x{at}")).collect();
    town.unreachable.extend(strangers.iter().map(|name| node(name)));
    strangers.iter().for_each(|name| town.join(name));
    town.run(2_000);
    strangers.iter().for_each(|name| town.kill(name));
    town.run(5_000);
    assert!(town.cluster.brake().is_none(), "{:?}", town.cluster.brake());
    assert_eq!(told(&town, "nodes answer"), 0, "{:#?}", town.notices);
    town.kill("a");
    town.run(5_000);
    assert_eq!((town.served().len(), town.is_at_rest(1)), (12, true), "{:#?}", town.notices);
}

/// A worker that beats and says nothing of what it is given.
#[test]
fn a12_a_worker_that_never_reports_ready_keeps_its_load_orders_for_a_bounded_time() {
    let throttle = Throttle { load_ms: 600_000, ..Throttle::default() };
    let mut town = Town::new(Keyspace { throttle, ..keyspace(12) }, slots(12));
    ["a", "b"].into_iter().for_each(|name| town.join(name));
    town.run(3_000);
    town.hangs.insert(node("mute"), Hang::Mute);
    town.join("mute");
    town.run(1_000);
    let loads = |town: &Town| {
        let replicas = town.map().shards().flat_map(|shard| &shard.replicas);
        replicas.filter(|r| r.node == node("mute")).count()
    };
    assert!(loads(&town) > 0);
    let given = loads(&town);
    town.run(settings().handover_ms + 2_000);
    assert_eq!(told(&town, "mute has not begun to load it for 4 s"), given, "{:#?}", town.notices);
    town.run(settings().handover_ms + 2_000);
    assert_eq!((loads(&town), town.served().len()), (0, 12), "{:#?}", town.notices);
    let unfinished =
        town.plans().into_iter().filter(|plan| plan.keyspace == name() && !plan.is_over()).count();
    assert_eq!(unfinished, 0, "its moves end");
}

/// Strangers register nodes that answer at their address, and never beat.
fn haunt(town: &mut Town, ghosts: usize) {
    for ghost in 0..ghosts {
        let (id, at) = (node(&format!("ghost-{ghost:02}")), town.at());
        let spec = crate::node::NodeSpec::new(id.clone(), format!("127.0.0.1:{}", 20_000 + ghost));
        let incarnation =
            town.cluster.register(at, super::super::Registration::new(spec)).unwrap().incarnation;
        town.cluster.checked_back(at, &id, incarnation, true);
    }
    town.decide();
}

#[test]
fn z2_nodes_that_never_held_a_shard_count_for_nothing_and_are_forgotten() {
    let mut town = town_of(&["a", "b", "c", "d"], 2);
    haunt(&mut town, 12);
    town.run(settings().dead_after_ms);
    town.kill("d");
    // No ghost is among those that should answer, nor among those that were lost.
    town.run(settings().dead_after_ms + 4_000);
    assert_eq!((town.cluster.brake(), town.cluster.unrest()), (None, None), "{:#?}", town.notices);
    assert!(town.is_at_rest(2) && count(&town, "d") == 0, "{:#?}", town.notices);
    assert_eq!(told(&town, "nothing is planned until"), 0, "{:#?}", town.notices);
    town.run(crate::limits::UNUSED_NODE_MS + 2_000);
    let left: Vec<_> = town.cluster.nodes().keys().filter(|id| id.as_str().starts_with("ghost")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(town.cluster.nodes().contains_key(&node("d")), "a node that served is remembered for longer");
}
