//! What the status counts: shards that are served, not what the map says of them.

use super::super::status::Summary;
use super::test_cluster::{TestCluster, keyspace, node, slots};
use crate::node::Health;

fn six() -> TestCluster {
    let mut test = TestCluster::new(keyspace(48), slots(48));
    ["a", "b", "c", "d", "e", "f"].iter().for_each(|name| test.join(name));
    test.run(20_000);
    assert!(test.is_at_rest(1));
    test
}

fn status(test: &TestCluster) -> Summary {
    test.cluster.status(test.at())
}

/// Led by nodes of which nothing is heard, according to the map.
fn of(test: &TestCluster, names: &[&str]) -> usize {
    let map = test.map();
    let leaders = map.shards().filter_map(|shard| shard.leader());
    leaders.filter(|leader| names.contains(&leader.node.as_str())).count()
}

/// A node of which a new leader has not heard may serve what its orders of before say, also where the map names it no more.
#[test]
fn k18_a_node_has_taken_in_its_orders_when_it_has_said_so() {
    let are_up_to_date = |test: &TestCluster| {
        let rows = test.cluster.node_table(test.at());
        rows.iter().map(|row| row.is_up_to_date).collect::<Vec<_>>()
    };
    let mut test = TestCluster::new(keyspace(2), slots(2));
    ["a", "b", "c"].iter().for_each(|name| test.join(name));
    test.run(20_000);
    assert!(test.is_at_rest(1) && are_up_to_date(&test) == [true; 3]);
    let mut test = test.restart_coordinator();
    assert_eq!(are_up_to_date(&test), [false; 3]);
    test.run(20_000);
    assert_eq!(are_up_to_date(&test), [true; 3]);
}

#[test]
fn k18_shards_of_dead_nodes_under_the_brake_are_not_served_whatever_the_map_says() {
    let mut test = six();
    let fresh = status(&test);
    assert_eq!(
        (fresh.shards.led, fresh.shards.unserved(), fresh.problems.len()),
        (48, 0, 0),
        "{:?}",
        fresh.problems
    );
    let lost = of(&test, &["a", "b", "c"]);
    ["a", "b", "c"].iter().for_each(|name| test.kill(name));

    // Silent, and not given up yet.
    test.run(700);
    let silent = status(&test);
    assert_eq!((silent.shards.led, silent.shards.silent), (48 - lost, lost), "{:?}", silent.shards);
    assert!(silent.problems[0].what.contains("led by nodes that do not answer"), "{:?}", silent.problems);
    assert!(silent.problems[0].way_out.contains("--unserved"));

    test.run(20_000);
    let braked = status(&test);
    assert!(braked.brake.is_some());
    assert_eq!(of(&test, &["a", "b", "c"]), lost, "the map still names them");
    assert_eq!((braked.shards.led, braked.shards.braked), (48 - lost, lost), "{:?}", braked.shards);
    let told: Vec<_> = braked.problems.iter().map(ToString::to_string).collect();
    assert!(told[0].contains("the brake is on") && told[0].contains("partage brake release"), "{told:?}");
    assert!(
        told[1].contains(&format!("{lost} of 48 shards are not served: {lost} held by the brake")),
        "{told:?}"
    );
    assert!(told[2].contains("a, b, c are down"), "{told:?}");
    assert!(told.len() <= 4, "few and short: {told:?}");
    assert_eq!(braked.nodes[&Health::Down], 3);
}

/// Seen before: a person was told to release a brake that was not on.
#[test]
fn r5_after_a_restart_of_all_nodes_status_says_that_it_ends_by_itself() {
    let mut test = six();
    let names = ["a", "b", "c", "d", "e", "f"];
    names.iter().for_each(|name| test.kill(name));
    names.iter().for_each(|name| test.join(name));
    test.run(10_000);
    let is_told = |what: &str| test.notices.iter().any(|notice| notice.starts_with(what));
    assert!(is_told("3 of 6 nodes died or were started anew"), "{:?}", test.notices);
    let served = status(&test);
    assert_eq!((served.shards.led, test.cluster.record.brake.as_ref()), (48, None), "{:?}", test.notices);
    let told: Vec<_> = served.problems.iter().map(ToString::to_string).collect();
    assert!(told[0].contains("6 of 6 nodes died or were started anew within 60 s"), "{told:?}");
    assert!(told[0].contains("nothing by itself but repairs") && told[0].contains("go on by themselves"));
    assert!(told.len() == 1 && !told[0].contains("brake"), "{told:?}");
    test.run(60_000);
    assert_eq!(status(&test).problems.len(), 0, "{:?}", status(&test).problems);
}

#[test]
fn shards_that_no_node_has_are_told_in_one_line() {
    let mut test = TestCluster::new(keyspace(48), slots(48));
    test.run(1_000);
    let empty = status(&test);
    assert_eq!((empty.shards.led, empty.shards.unplaced), (0, 48));
    let told: Vec<_> = empty.problems.iter().map(ToString::to_string).collect();
    assert!(told[0].starts_with("no node has joined") && told[0].contains("start workers"), "{told:?}");
    assert!(told[1].contains("48 of 48 shards are not served: 48 on no node"), "{told:?}");
    assert_eq!(told.len(), 2, "that no node is there explains all that shards lack: {told:?}");

    test.unreachable.insert(node("a"));
    test.join("a");
    test.run(10_000);
    let told: Vec<_> = status(&test).problems.iter().map(ToString::to_string).collect();
    assert!(told[1].contains("a (127.0.0.1:") && told[1].contains("is unreachable"), "{told:?}");
    assert!(told.len() <= 3 && told[2].starts_with("at least 20 shards of users lack replicas"), "{told:?}");
}

/// C13: each change of leader would be an alarm otherwise.
#[test]
fn a_coordinator_that_has_just_begun_says_that_it_does_not_know_yet() {
    let mut test = six().restart_coordinator();
    let begun = status(&test);
    assert_eq!((begun.shards.led, begun.shards.unheard, begun.shards.unserved()), (0, 48, 0));
    assert_eq!((begun.nodes[&Health::Unknown], begun.problems.len()), (6, 0), "{:?}", begun.problems);
    test.run(500);
    let heard = status(&test);
    assert_eq!((heard.shards.led, heard.shards.unheard), (48, 0), "{:?}", heard.shards);
    assert_eq!(heard.problems.len(), 0, "{:?}", heard.problems);
}

#[test]
fn nodes_that_a_new_coordinator_never_hears_are_silent_once_they_would_count_as_dead() {
    let mut test = six();
    let lost = of(&test, &["a", "b", "c"]);
    ["a", "b", "c"].iter().for_each(|name| test.kill(name));
    let mut test = test.restart_coordinator();
    test.run(1_000);
    let waits = status(&test);
    assert_eq!((waits.shards.led, waits.shards.unheard), (48 - lost, lost), "{:?}", waits.shards);
    // `dead_after_ms` and the leases of before.
    test.run(2_000);
    let silent = status(&test);
    assert_eq!((silent.shards.unheard, silent.shards.unserved()), (0, lost), "{:?}", silent.shards);
    assert!(silent.problems.iter().any(|one| one.what.contains("a, b, c are down")), "{:?}", silent.problems);
}

/// A drain outlives the process for which it was asked: who looks at the brake must not take the node for one that helps.
#[test]
fn k18_nodes_that_are_up_and_drained_are_named_where_nothing_else_could_take_shards() {
    let mut test = TestCluster::new(keyspace(8), slots(8));
    ["a", "c"].iter().for_each(|name| test.join(name));
    test.run(20_000);
    test.drain("c");
    test.run(20_000);
    test.kill("a");
    test.run(20_000);
    let told: Vec<_> = status(&test).problems.iter().map(ToString::to_string).collect();
    assert!(told[0].contains("the brake is on"), "{told:?}");
    assert!(told[0].contains("c is drained") && told[0].contains("partage node undrain"), "{told:?}");
    test.undrain("c");
    test.run(1_000);
    let told: Vec<_> = status(&test).problems.iter().map(ToString::to_string).collect();
    assert!(!told[0].contains("undrain"), "{told:?}");
}
