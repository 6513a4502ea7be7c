//! What people can read afterwards (C14): each change, in order, with its reason and who did it.

use super::reach::cluster_of;
use super::test_cluster::{TestCluster, name, node};
use crate::base::id::TransactionId;
use crate::cluster::admin::Command;
use crate::cluster::event::{Actor, Event, EventKind};

fn command(test: &mut TestCluster, command: Command) {
    let at = test.at();
    test.cluster.command(at, TransactionId([9; 20]), "mia", command).unwrap();
    test.decide();
}

fn of(test: &TestCluster, kind: EventKind) -> Vec<&Event> {
    test.events.iter().filter(|event| event.kind == kind).collect()
}

fn texts(events: &[&Event]) -> String {
    events.iter().map(|event| event.text.as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn c14_a_first_placement_is_told_from_the_plan_to_the_last_shard() {
    let test = cluster_of(&["a", "b"], 1);
    let registered = of(&test, EventKind::NodeRegistered);
    assert_eq!(
        registered.iter().map(|event| &event.by).collect::<Vec<_>>(),
        [&Actor::Node(node("a")), &Actor::Node(node("b"))]
    );
    let plan = of(&test, EventKind::PlanMade)[0].about.plan.unwrap();
    for shard in test.map().shards() {
        let at = |kind: EventKind| {
            let is_it = |event: &Event| event.kind == kind && event.about.shard == Some(shard.id);
            test.events
                .iter()
                .position(is_it)
                .unwrap_or_else(|| panic!("{kind} of {}: {:#?}", shard.id, test.events))
        };
        let (begun, placed) = (at(EventKind::ShardChange), at(EventKind::ShardPlaced));
        assert!(begun < placed, "why comes before what: {:#?}", test.events);
        let begun = &test.events[begun];
        assert_eq!((begun.about.plan, &begun.about.keyspace), (Some(plan), &Some(name())));
        assert!(begun.text.contains(&format!("shard {} of keyspace", shard.id)), "{}", begun.text);
        assert!(begun.text.contains("it has 0 of 1 replicas"), "its reason: {}", begun.text);
        let leader = &shard.leader().unwrap().node;
        assert!(test.events[placed].about.nodes.contains(leader), "{:#?}", test.events[placed]);
    }
    assert_eq!(of(&test, EventKind::PlanFinished).last().unwrap().about.plan, Some(plan));
}

#[test]
fn c14_a_drain_is_told_with_who_asked_and_when_its_node_may_be_stopped() {
    let mut test = cluster_of(&["a", "b", "c"], 1);
    command(&mut test, Command::DrainNode { node: node("a"), reason: "disk".into(), max_down: None });
    test.run(8_000);
    let drains = of(&test, EventKind::NodeDrain);
    let asked = drains.iter().find(|event| event.by == Actor::Person("mia".into())).unwrap();
    assert_eq!(asked.about.nodes, [node("a")]);
    assert_eq!(texts(&drains).matches("node a is drained: it is safe to stop").count(), 1, "{drains:#?}");
    command(&mut test, Command::UndrainNode { node: node("a") });
    command(&mut test, Command::DrainNode { node: node("a"), reason: "again".into(), max_down: None });
    test.run(8_000);
    let drains = of(&test, EventKind::NodeDrain);
    assert_eq!(texts(&drains).matches("safe to stop").count(), 2, "once for each drain: {drains:#?}");
}

#[test]
fn c14_deaths_and_the_brake_are_told() {
    let mut test = cluster_of(&["a", "b", "c", "d", "e", "f"], 1);
    test.kill("a");
    test.run(8_000);
    let dead = of(&test, EventKind::NodeEnded);
    assert!(dead.iter().any(|event| event.alarm && event.about.nodes == [node("a")]), "{dead:#?}");
    ["b", "c", "d"].into_iter().for_each(|name| test.kill(name));
    test.run(8_000);
    let set = of(&test, EventKind::BrakeSet);
    assert!(set.len() == 1 && set[0].alarm && set[0].by == Actor::Coordinator, "{set:#?}");
    command(&mut test, Command::ReleaseBrake);
    let released = of(&test, EventKind::BrakeReleased);
    assert!(released.iter().any(|event| event.by == Actor::Person("mia".into())), "{released:#?}");
}

#[test]
fn c14_a_dry_run_is_no_event_and_settings_are() {
    let mut test = cluster_of(&["a", "b"], 1);
    let before = test.events.len();
    let at = test.at();
    let rule = || Command::PinShard {
        keyspace: name(),
        shard: test.map().shards().next().unwrap().id,
        constraint: crate::keyspace::Constraint { excluded: [node("a")].into(), ..Default::default() },
        ahead: false,
    };
    let rule = rule();
    test.cluster.clone().dry_run(at, TransactionId([9; 20]), "mia", rule.clone()).unwrap();
    test.decide();
    assert_eq!(test.events.len(), before, "{:#?}", &test.events[before..]);
    command(&mut test, rule);
    assert_eq!(of(&test, EventKind::ShardRule)[0].by, Actor::Person("mia".into()));
}
