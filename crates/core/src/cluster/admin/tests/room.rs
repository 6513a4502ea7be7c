use super::*;
use crate::name::Label;

const S1: ShardId = ShardId(1);

fn wide(replicas: u32) -> Keyspace {
    Keyspace { replicas, mode: Mode::Manual, ..settings("users", HASHES) }
}

fn create(keyspace: Keyspace, ahead: bool) -> Command {
    Command::CreateKeyspace { keyspace: Box::new(keyspace), presplit: Presplit::None, ahead }
}

fn update(changes: KeyspaceChanges) -> Command {
    Command::UpdateKeyspace { keyspace: name("users"), changes: Box::new(changes), ahead: false }
}

fn replicas(replicas: Option<u32>, ahead: bool) -> Command {
    Command::SetShardReplicas { keyspace: name("users"), shard: S1, replicas, ahead }
}

fn pin(constraint: Constraint, ahead: bool) -> Command {
    Command::PinShard { keyspace: name("users"), shard: S1, constraint, ahead }
}

fn on(nodes: &[&str]) -> Constraint {
    Constraint { pinned: nodes.iter().map(|id| node(id)).collect(), ..Constraint::default() }
}

fn off(nodes: &[&str]) -> Constraint {
    Constraint { excluded: nodes.iter().map(|id| node(id)).collect(), ..Constraint::default() }
}

fn labelled(label: &str) -> Constraint {
    Constraint { labels: [Label::new(label).unwrap()].into(), ..Constraint::default() }
}

#[test]
fn more_than_the_members_can_hold_is_refused_with_the_figures_and_the_ways_out() {
    let mut town = Town::new(&["a", "b", "c"]);
    let with = |replicas, constraint| Keyspace { constraint, ..wide(replicas) };
    let strict = Keyspace { spread: Spread::ZoneStrict, ..wide(3) };
    for (keyspace, says) in [
        (wide(4), "4 replicas and there is room for 3: 3 nodes have joined: ask for 3 or fewer, let more"),
        (with(1, labelled("ssd")), "room for 0: 3 nodes have joined, the label ssd leaves 0 of them: relax"),
        (with(2, on(&["a"])), "room for 1: 3 nodes have joined, the pin to a leaves 1 of them: ask for 1 or"),
        (with(3, off(&["a"])), "room for 2: 3 nodes have joined, the exclusion of a leaves 2 of them"),
        (strict, "room for 2: 3 nodes have joined, spread zone-strict allows one in each of their 2 zones"),
    ] {
        town.refused(create(keyspace.clone(), false), Kind::Refused, says);
        town.refused(create(keyspace.clone(), false), Kind::Refused, "or say with `ahead` (--ahead)");
        let answer = town.done(create(keyspace, true));
        assert!(answer.warnings[0].contains("unplaced until more nodes join"), "{answer:?}");
        town.done(Command::DeleteKeyspace { keyspace: name("users") });
        town.rounds(60);
    }
    let both = Constraint { pinned: on(&["a", "b"]).pinned, excluded: off(&["b", "c"]).excluded, ..on(&[]) };
    let mut inside = with(2, both);
    town.refused(create(inside.clone(), false), Kind::Invalid, "node b is both pinned and excluded");
    inside.constraint.excluded = off(&["c"]).excluded;
    town.done(create(inside, false));
}

#[test]
fn a_cluster_that_nobody_has_joined_is_being_set_up() {
    let mut town = Town::new(&[]);
    let keyspace = Keyspace { constraint: on(&["a", "b", "c"]), ..wide(3) };
    let answer = town.done(create(keyspace, false));
    assert_eq!(answer.warnings.len(), 2, "{answer:?}");
    assert!(answer.warnings[0].contains("no node a to pin to has registered yet"), "{answer:?}");
    assert!(answer.warnings[1].contains("3 replicas and there is room for 0 now"), "{answer:?}");
}

#[test]
fn whoever_is_down_or_drained_counts_and_whoever_has_left_or_was_removed_does_not() {
    let mut town = Town::new(&["a", "b", "c"]);
    town.kill("a");
    town.rounds(60);
    town.done(Command::DrainNode { node: node("b"), reason: "test".into(), max_down: None });
    let answer = town.done(create(wide(3), false));
    assert!(answer.warnings[0].contains("3 replicas and there is room for 1 now"), "{answer:?}");
    town.done(Command::DeleteKeyspace { keyspace: name("users") });
    town.done(Command::RemoveNode { node: node("a") });
    let (incarnation, _) = town.alive.remove(&node("b")).unwrap();
    town.cluster.leave(town.at, &node("b"), incarnation, crate::id::SessionDigest::default()).unwrap();
    town.rounds(60);
    town.refused(create(wide(2), false), Kind::Refused, "room for 1: 1 node has joined: ask for 1 or fewer");
}

#[test]
fn a_coordinator_that_has_just_begun_to_lead_does_not_take_its_nodes_for_missing() {
    let mut town = Town::new(&["a", "b"]);
    town.cluster = Cluster::recover(town.at, Settings::default(), town.records.clone()).unwrap();
    let answer = town.done(create(wide(2), false));
    assert!(answer.warnings.is_empty(), "{answer:?}");
}

#[test]
fn what_was_accepted_stays_so_until_a_command_asks_for_more() {
    let mut town = Town::new(&["a", "b"]);
    town.done(create(wide(4), true));
    let changes = KeyspaceChanges::default;
    town.done(update(KeyspaceChanges { policy: Some("ring".into()), ..changes() }));
    town.done(update(KeyspaceChanges { replicas: Some(3), ..changes() }));
    town.refused(update(KeyspaceChanges { replicas: Some(4), ..changes() }), Kind::Refused, "4 replicas");
    let less = KeyspaceChanges { constraint: Some(off(&["a"])), ..changes() };
    town.refused(update(less), Kind::Refused, "the exclusion of a leaves 1 of them");
    town.done(replicas(Some(1), false));
    town.done(replicas(None, false));
    town.done(pin(off(&["c"]), false));
    town.refused(pin(off(&["b"]), false), Kind::Refused, "shard s1 of keyspace users is to have 3 replicas");
    town.done(pin(Constraint::default(), false));
}

#[test]
fn a_pin_to_a_node_that_was_removed_stays_and_no_other_is_let_in_but_ahead() {
    let mut town = Town::new(&["a", "b"]);
    town.done(create(Keyspace { constraint: on(&["a"]), ..wide(1) }, false));
    town.kill("a");
    town.rounds(60);
    town.done(Command::RemoveNode { node: node("a") });
    let changes = KeyspaceChanges { mode: Some(Mode::Suggested), ..KeyspaceChanges::default() };
    town.done(update(changes));
    town.refused(
        pin(on(&["elsewhere"]), false),
        Kind::Invalid,
        "or say with `ahead` (--ahead) that it is still to join",
    );
    let answer = town.done(pin(on(&["elsewhere"]), true));
    assert!(answer.warnings[0].contains("no node elsewhere to pin to has registered yet"), "{answer:?}");
}

#[test]
fn shards_with_rules_of_their_own_are_looked_at_with_their_keyspace() {
    let mut town = Town::new(&["a", "b", "c"]);
    town.done(create(wide(2), false));
    town.refused(replicas(Some(4), false), Kind::Refused, "shard s1 of keyspace users is to have 4 replicas");
    town.refused(pin(on(&["a"]), false), Kind::Refused, "the pin to a leaves 1 of them");
    town.refused(pin(labelled("gpu"), false), Kind::Refused, "the label gpu leaves 0 of them");
    town.done(pin(on(&["a", "b"]), false));
    let more = KeyspaceChanges { replicas: Some(3), ..KeyspaceChanges::default() };
    town.refused(update(more), Kind::Refused, "shard s1 of keyspace users is to have 3 replicas and there");
    let fewer = KeyspaceChanges { constraint: Some(off(&["a"])), ..KeyspaceChanges::default() };
    town.refused(update(fewer), Kind::Refused, "the pin to a, b leaves 2 of them");
    town.done(pin(Constraint::default(), false));
    town.done(replicas(Some(4), true));
    town.done(replicas(Some(4), false));
}

#[test]
fn partitions_with_more_replicas_than_their_keyspace_need_room_for_them() {
    let mut town = Town::new(&["a", "b"]);
    town.keyspace("parts", Sharding::Named, Presplit::None);
    let register = |of: &str, replicas, ahead| Command::RegisterPartitions {
        keyspace: name("parts"),
        partitions: partitions(&[of]),
        replicas,
        ahead,
    };
    town.refused(register("x", Some(3), false), Kind::Refused, "each new partition of keyspace parts");
    town.done(register("x", Some(2), false));
    assert!(!town.done(register("y", Some(3), true)).warnings.is_empty());
    town.done(register("z", None, false));
}

#[test]
fn racks_of_one_name_in_two_zones_are_two_racks() {
    let mut town = Town::new(&["a", "b", "c"]);
    for id in ["a", "b", "c"] {
        town.cluster.nodes.get_mut(&node(id)).unwrap().record.spec.rack = Some(Zone::new("r1").unwrap());
    }
    let strict = |replicas| Keyspace { spread: Spread::RackStrict, ..wide(replicas) };
    town.refused(create(strict(3), false), Kind::Refused, "one in each of their 2 racks");
    town.run(create(strict(2), false), true).unwrap();
    // Where nobody knows better, each node is a domain of its own.
    for id in ["a", "b", "c"] {
        town.cluster.nodes.get_mut(&node(id)).unwrap().record.spec.rack = None;
    }
    town.done(create(strict(3), false));
}
