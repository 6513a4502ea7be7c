use super::*;
use crate::base::name::Label;

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
    let mut test = AdminTestCluster::new(&["a", "b", "c"]);
    let with = |replicas, constraint| Keyspace { constraint, ..wide(replicas) };
    let strict = Keyspace { spread: Spread::ZoneStrict, ..wide(3) };
    for (keyspace, says) in [
        (wide(4), "4 replicas and there is room for 3: 3 nodes have joined: ask for 3 or fewer, let more"),
        (with(1, labelled("ssd")), "room for 0: 3 nodes have joined, the label ssd leaves 0 of them: relax"),
        (with(2, on(&["a"])), "room for 1: 3 nodes have joined, the pin to a leaves 1 of them: ask for 1 or"),
        (with(3, off(&["a"])), "room for 2: 3 nodes have joined, the exclusion of a leaves 2 of them"),
        (strict, "room for 2: 3 nodes have joined, spread zone-strict allows one in each of their 2 zones"),
    ] {
        test.refused(create(keyspace.clone(), false), Kind::Refused, says);
        test.refused(create(keyspace.clone(), false), Kind::Refused, "or say with `ahead` (--ahead)");
        let answer = test.done(create(keyspace, true));
        assert!(answer.warnings[0].contains("unplaced until more nodes join"), "{answer:?}");
        test.done(Command::DeleteKeyspace { keyspace: name("users") });
        test.rounds(60);
    }
    let both = Constraint { pinned: on(&["a", "b"]).pinned, excluded: off(&["b", "c"]).excluded, ..on(&[]) };
    let mut inside = with(2, both);
    test.refused(create(inside.clone(), false), Kind::Invalid, "node b is both pinned and excluded");
    inside.constraint.excluded = off(&["c"]).excluded;
    test.done(create(inside, false));
}

#[test]
fn a_cluster_that_nobody_has_joined_is_being_set_up() {
    let mut test = AdminTestCluster::new(&[]);
    let keyspace = Keyspace { constraint: on(&["a", "b", "c"]), ..wide(3) };
    let answer = test.done(create(keyspace, false));
    assert_eq!(answer.warnings.len(), 2, "{answer:?}");
    assert!(answer.warnings[0].contains("no node a to pin to has registered yet"), "{answer:?}");
    assert!(answer.warnings[1].contains("3 replicas and there is room for 0 now"), "{answer:?}");
}

#[test]
fn whoever_is_down_or_drained_counts_and_whoever_has_left_or_was_removed_does_not() {
    let mut test = AdminTestCluster::new(&["a", "b", "c"]);
    test.kill("a");
    test.rounds(60);
    test.done(Command::DrainNode { node: node("b"), reason: "test".into(), max_down: None });
    let answer = test.done(create(wide(3), false));
    assert!(answer.warnings[0].contains("3 replicas and there is room for 1 now"), "{answer:?}");
    test.done(Command::DeleteKeyspace { keyspace: name("users") });
    test.done(Command::RemoveNode { node: node("a") });
    let (incarnation, _) = test.alive.remove(&node("b")).unwrap();
    test.cluster.leave(test.at, &node("b"), incarnation, crate::base::id::SessionDigest::default()).unwrap();
    test.rounds(60);
    test.refused(create(wide(2), false), Kind::Refused, "room for 1: 1 node has joined: ask for 1 or fewer");
}

#[test]
fn a_coordinator_that_has_just_begun_to_lead_does_not_take_its_nodes_for_missing() {
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.cluster = Cluster::recover(test.at, Settings::default(), test.records.clone()).unwrap();
    let answer = test.done(create(wide(2), false));
    assert!(answer.warnings.is_empty(), "{answer:?}");
}

#[test]
fn what_was_accepted_stays_so_until_a_command_asks_for_more() {
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.done(create(wide(4), true));
    let changes = KeyspaceChanges::default;
    test.done(update(KeyspaceChanges { policy: Some("ring".into()), ..changes() }));
    test.done(update(KeyspaceChanges { replicas: Some(3), ..changes() }));
    test.refused(update(KeyspaceChanges { replicas: Some(4), ..changes() }), Kind::Refused, "4 replicas");
    let less = KeyspaceChanges { constraint: Some(off(&["a"])), ..changes() };
    test.refused(update(less), Kind::Refused, "the exclusion of a leaves 1 of them");
    test.done(replicas(Some(1), false));
    test.done(replicas(None, false));
    test.done(pin(off(&["c"]), false));
    test.refused(pin(off(&["b"]), false), Kind::Refused, "shard s1 of keyspace users needs 3 replicas");
    test.done(pin(Constraint::default(), false));
}

#[test]
fn a_pin_to_a_node_that_was_removed_stays_and_no_other_is_let_in_but_ahead() {
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.done(create(Keyspace { constraint: on(&["a"]), ..wide(1) }, false));
    test.kill("a");
    test.rounds(60);
    test.done(Command::RemoveNode { node: node("a") });
    let changes = KeyspaceChanges { mode: Some(Mode::Suggested), ..KeyspaceChanges::default() };
    test.done(update(changes));
    test.refused(
        pin(on(&["elsewhere"]), false),
        Kind::Invalid,
        "or say with `ahead` (--ahead) that it is still to join",
    );
    let answer = test.done(pin(on(&["elsewhere"]), true));
    assert!(answer.warnings[0].contains("no node elsewhere to pin to has registered yet"), "{answer:?}");
}

#[test]
fn shards_with_rules_of_their_own_are_looked_at_with_their_keyspace() {
    let mut test = AdminTestCluster::new(&["a", "b", "c"]);
    test.done(create(wide(2), false));
    test.refused(replicas(Some(4), false), Kind::Refused, "shard s1 of keyspace users needs 4 replicas");
    test.refused(pin(on(&["a"]), false), Kind::Refused, "the pin to a leaves 1 of them");
    test.refused(pin(labelled("gpu"), false), Kind::Refused, "the label gpu leaves 0 of them");
    test.done(pin(on(&["a", "b"]), false));
    let more = KeyspaceChanges { replicas: Some(3), ..KeyspaceChanges::default() };
    test.refused(update(more), Kind::Refused, "shard s1 of keyspace users needs 3 replicas and there");
    let fewer = KeyspaceChanges { constraint: Some(off(&["a"])), ..KeyspaceChanges::default() };
    test.refused(update(fewer), Kind::Refused, "the pin to a, b leaves 2 of them");
    test.done(pin(Constraint::default(), false));
    test.done(replicas(Some(4), true));
    test.done(replicas(Some(4), false));
}

#[test]
fn partitions_with_more_replicas_than_their_keyspace_need_room_for_them() {
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.keyspace("parts", Sharding::Named, Presplit::None);
    let register = |of: &str, replicas, ahead| Command::RegisterPartitions {
        keyspace: name("parts"),
        partitions: partitions(&[of]),
        replicas,
        ahead,
    };
    test.refused(register("x", Some(3), false), Kind::Refused, "each new partition of keyspace parts");
    test.done(register("x", Some(2), false));
    assert!(!test.done(register("y", Some(3), true)).warnings.is_empty());
    test.done(register("z", None, false));
}

#[test]
fn racks_of_one_name_in_two_zones_are_two_racks() {
    let mut test = AdminTestCluster::new(&["a", "b", "c"]);
    for id in ["a", "b", "c"] {
        test.cluster.members.get_mut(&node(id)).unwrap().record.spec.rack = Some(Zone::new("r1").unwrap());
    }
    let strict = |replicas| Keyspace { spread: Spread::RackStrict, ..wide(replicas) };
    test.refused(create(strict(3), false), Kind::Refused, "one in each of their 2 racks");
    test.run(create(strict(2), false), true).unwrap();
    // Where nobody knows better, each node is a domain of its own.
    for id in ["a", "b", "c"] {
        test.cluster.members.get_mut(&node(id)).unwrap().record.spec.rack = None;
    }
    test.done(create(strict(3), false));
}
