//! What people can read afterwards (C14): each change, in order, with its reason and who did it.

use super::reach::town_of;
use super::town::{Town, name, node};
use crate::cluster::admin::Command;
use crate::event::{Actor, Event, EventKind};
use crate::id::TransactionId;

fn command(town: &mut Town, command: Command) {
    let at = town.at();
    town.cluster.command(at, TransactionId([9; 20]), "mia", command, false).unwrap();
    town.decide();
}

fn of(town: &Town, kind: EventKind) -> Vec<&Event> {
    town.events.iter().filter(|event| event.kind == kind).collect()
}

fn texts(events: &[&Event]) -> String {
    events.iter().map(|event| event.text.as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn c14_a_first_placement_is_told_from_the_plan_to_the_last_shard() {
    let town = town_of(&["a", "b"], 1);
    let registered = of(&town, EventKind::NodeRegistered);
    assert_eq!(
        registered.iter().map(|event| &event.by).collect::<Vec<_>>(),
        [&Actor::Node(node("a")), &Actor::Node(node("b"))]
    );
    let plan = of(&town, EventKind::PlanMade)[0].about.plan.unwrap();
    for shard in town.map().shards() {
        let at = |kind: EventKind| {
            let is_it = |event: &Event| event.kind == kind && event.about.shard == Some(shard.id);
            town.events
                .iter()
                .position(is_it)
                .unwrap_or_else(|| panic!("{kind} of {}: {:#?}", shard.id, town.events))
        };
        let (begun, placed) = (at(EventKind::ShardChange), at(EventKind::ShardPlaced));
        assert!(begun < placed, "why comes before what: {:#?}", town.events);
        let begun = &town.events[begun];
        assert_eq!((begun.about.plan, &begun.about.keyspace), (Some(plan), &Some(name())));
        assert!(begun.text.contains(&format!("shard {} of keyspace", shard.id)), "{}", begun.text);
        assert!(begun.text.contains("it has 0 of 1 replicas"), "its reason: {}", begun.text);
        let leader = &shard.leader().unwrap().node;
        assert!(town.events[placed].about.nodes.contains(leader), "{:#?}", town.events[placed]);
    }
    assert_eq!(of(&town, EventKind::PlanFinished).last().unwrap().about.plan, Some(plan));
}

#[test]
fn c14_a_drain_is_told_with_who_asked_and_when_its_node_may_be_stopped() {
    let mut town = town_of(&["a", "b", "c"], 1);
    command(&mut town, Command::DrainNode { node: node("a"), reason: "disk".into(), max_down: None });
    town.run(8_000);
    let drains = of(&town, EventKind::NodeDrain);
    let asked = drains.iter().find(|event| event.by == Actor::Person("mia".into())).unwrap();
    assert_eq!(asked.about.nodes, [node("a")]);
    assert_eq!(texts(&drains).matches("node a is drained: it is safe to stop").count(), 1, "{drains:#?}");
    command(&mut town, Command::UndrainNode { node: node("a") });
    command(&mut town, Command::DrainNode { node: node("a"), reason: "again".into(), max_down: None });
    town.run(8_000);
    let drains = of(&town, EventKind::NodeDrain);
    assert_eq!(texts(&drains).matches("safe to stop").count(), 2, "once for each drain: {drains:#?}");
}

#[test]
fn c14_deaths_and_the_brake_are_told() {
    let mut town = town_of(&["a", "b", "c", "d", "e", "f"], 1);
    town.kill("a");
    town.run(8_000);
    let dead = of(&town, EventKind::NodeEnded);
    assert!(dead.iter().any(|event| event.alarm && event.about.nodes == [node("a")]), "{dead:#?}");
    ["b", "c", "d"].into_iter().for_each(|name| town.kill(name));
    town.run(8_000);
    let set = of(&town, EventKind::BrakeSet);
    assert!(set.len() == 1 && set[0].alarm && set[0].by == Actor::Coordinator, "{set:#?}");
    command(&mut town, Command::ReleaseBrake);
    let released = of(&town, EventKind::BrakeReleased);
    assert!(released.iter().any(|event| event.by == Actor::Person("mia".into())), "{released:#?}");
}

#[test]
fn c14_a_dry_run_is_no_event_and_settings_are() {
    let mut town = town_of(&["a", "b"], 1);
    let before = town.events.len();
    let at = town.at();
    let rule = || Command::PinShard {
        keyspace: name(),
        shard: town.map().shards().next().unwrap().id,
        constraint: crate::keyspace::Constraint { excluded: [node("a")].into(), ..Default::default() },
        ahead: false,
    };
    let rule = rule();
    town.cluster.command(at, TransactionId([9; 20]), "mia", rule.clone(), true).unwrap();
    town.decide();
    assert_eq!(town.events.len(), before, "{:#?}", &town.events[before..]);
    command(&mut town, rule);
    assert_eq!(of(&town, EventKind::ShardRule)[0].by, Actor::Person("mia".into()));
}
