use super::*;
use crate::node::Health;

fn drain(id: &str, max_down: Option<u32>) -> Command {
    Command::DrainNode { node: node(id), reason: "new kernel".into(), max_down }
}

fn zone(id: &str, max_down: Option<u32>) -> Command {
    Command::DrainZone { zone: Zone::new(id).unwrap(), reason: "power".into(), max_down }
}

fn undrain(id: &str) -> Command {
    Command::UndrainNode { node: node(id) }
}

fn remove(id: &str) -> Command {
    Command::RemoveNode { node: node(id) }
}

impl Town {
    fn progress(&self, id: &str) -> DrainProgress {
        self.cluster.drain_status(self.at, &node(id)).unwrap().progress
    }
}

#[test]
fn l8_a_drain_says_what_blocks_it_and_ends_when_that_is_gone() {
    let mut town = Town::new(&["a", "b"]);
    town.keyspace("users", HASHES, Presplit::None);
    town.put("users", 1, &["a", "b"]);
    let answer = town.done(drain("a", None));
    assert!(answer.warnings[0].contains("no node could take shard s1"), "{answer:?}");
    let blocked = |progress: DrainProgress, needle: &str| match progress {
        DrainProgress::Blocked { left: 1, why } => assert!(why[0].contains(needle), "{why:?}"),
        other => panic!("{other:?}"),
    };
    blocked(answer.drains[0].progress.clone(), "no other node may take it");
    town.cluster.record.brake = Some("test".into());
    blocked(town.progress("a"), "the brake is on (test)");
    town.start("c", 2);
    town.rounds(2);
    blocked(town.progress("a"), "the brake is on (test)");
    town.broken.insert(node("c"));
    let (keyspace, from, to) = (name("users"), node("a"), node("c"));
    town.run(Command::MoveShard { keyspace, shard: ShardId(1), from, to }, false).unwrap();
    town.rounds(2);
    blocked(town.progress("a"), "disk full");
    town.broken.clear();
    town.rounds(6);
    assert_eq!(town.progress("a"), DrainProgress::SafeToStop);
    assert_eq!(town.cluster.drains(town.at)[0].to_string(), "a: safe to stop");
}

#[test]
fn l8_a_drain_ends_by_itself_in_every_mode() {
    for mode in [Mode::Automatic, Mode::Suggested, Mode::Manual] {
        let mut town = Town::new(&["a", "b", "c"]);
        town.keyspace("users", HASHES, Presplit::HashRanges(4));
        (1..=4).for_each(|shard| town.put("users", shard, &["a"]));
        let changes = Box::new(KeyspaceChanges { mode: Some(mode), ..KeyspaceChanges::default() });
        town.done(Command::UpdateKeyspace { keyspace: name("users"), changes, ahead: false });
        town.done(drain("a", None));
        town.rounds(12);
        assert_eq!(town.progress("a"), DrainProgress::SafeToStop, "{mode}");
        assert!((1..=4).all(|shard| town.shard("users", shard).is_settled()), "{mode}");
        town.done(remove("a"));
    }
}

#[test]
fn a_drain_counts_what_it_has_moved() {
    let mut town = Town::new(&["a", "b"]);
    town.keyspace("users", HASHES, Presplit::HashRanges(3));
    (1..=3).for_each(|shard| town.put("users", shard, &["a"]));
    let answer = town.done(drain("a", None));
    assert!(matches!(answer.drains[0].progress, DrainProgress::Moving { left: 3, of: 3, .. }), "{answer:?}");
    assert!(answer.drains[0].to_string().contains("moving, 0 of 3 done"));
    town.refused(
        Command::AddReplica { keyspace: name("users"), shard: ShardId(1), node: node("a") },
        Kind::Refused,
        "it is to be emptied: new kernel",
    );
}

#[test]
fn a19_drains_above_the_limit_wait_and_follow_in_the_order_asked() {
    let mut town = Town::new(&["a", "b", "c", "d"]);
    town.done(drain("b", Some(1)));
    town.rounds(1);
    let answer = town.done(drain("a", Some(1)));
    let behind = vec![node("b")];
    assert_eq!(answer.drains[0].progress, DrainProgress::Queued { behind, max_down: 1 });
    assert!(answer.drains[0].to_string().contains("queued until fewer than 1 of b"));
    town.rounds(1);
    town.done(drain("c", Some(1)));
    let queued = |town: &Town, id: &str| matches!(town.progress(id), DrainProgress::Queued { .. });
    town.rounds(3);
    assert_eq!(town.progress("b"), DrainProgress::SafeToStop);
    assert!(queued(&town, "a") && queued(&town, "c"), "a drained node counts until it is back");
    // b restarts: nothing changes until somebody says that it is back.
    town.start("b", 1);
    town.rounds(3);
    assert!(queued(&town, "a"));
    town.done(undrain("b"));
    assert!(!queued(&town, "a") && queued(&town, "c"));
    // a dies instead of coming back: it is down, so c goes on waiting, until it is removed.
    town.kill("a");
    town.rounds(12);
    assert_eq!(town.cluster.nodes[&node("a")].signs.health(town.at.now, &Settings::default()), Health::Down);
    assert!(queued(&town, "c"));
    town.done(remove("a"));
    assert!(!queued(&town, "c"));
}

#[test]
fn asking_again_keeps_the_place_in_the_queue_and_what_has_begun() {
    let mut town = Town::new(&["a", "b", "c"]);
    for id in ["c", "b", "a"] {
        town.done(drain(id, Some(1)));
        town.rounds(1);
    }
    town.done(drain("c", Some(1)));
    assert_eq!(town.progress("c"), DrainProgress::SafeToStop, "it does not go back into the queue");
    let answer = town.done(drain("b", Some(1)));
    assert_eq!(answer.drains[0].asked_ms, town.at.wall_ms - 1_000);
    town.done(drain("b", None));
    assert_eq!(town.progress("b"), DrainProgress::SafeToStop, "without a limit it begins at once");
}

#[test]
fn a_queued_drain_takes_nothing_new_moves_nothing_and_survives_a_restart() {
    let mut town = Town::new(&["a", "b"]);
    town.keyspace("users", HASHES, Presplit::None);
    town.put("users", 1, &["a"]);
    town.done(drain("b", Some(1)));
    town.done(drain("a", Some(1)));
    let a = &town.cluster.nodes[&node("a")];
    assert!(!a.accepts(town.at.now, &Settings::default()) && !a.is_emptied());
    assert!(town.cluster.nodes[&node("b")].is_emptied());
    let back = Cluster::recover(town.at, Settings::default(), town.records.clone()).unwrap();
    let drains: Vec<_> = back.nodes.values().map(|n| n.record.drain.clone().unwrap().has_begun()).collect();
    assert_eq!(drains, [false, true]);
}

#[test]
fn a_zone_is_drained_node_by_node() {
    let mut town = Town::new(&["a", "b", "c", "d"]);
    let answer = town.done(zone("z0", Some(1)));
    let drains: Vec<_> = answer.drains.iter().map(|d| (d.node.as_str(), &d.progress)).collect();
    assert_eq!(drains[0], ("a", &DrainProgress::SafeToStop));
    assert!(matches!(drains[1], ("c", DrainProgress::Queued { .. })), "{drains:?}");
    town.refused(zone("z9", None), Kind::NotFound, "did you mean z0");
    town.refused(zone("z0", Some(0)), Kind::Invalid, "give 1 or more");
    let undrain = |id: &str| Command::UndrainZone { zone: Zone::new(id).unwrap() };
    town.refused(undrain("z9"), Kind::NotFound, "did you mean z0");
    let told = town.run(undrain("z0"), true).unwrap().summary;
    assert!(told.ends_with("take shards again") && town.cluster.drains(town.at).len() > 1, "{told}");
    for id in ["b", "d"] {
        town.kill(id);
    }
    town.rounds(12);
    town.refused(zone("z1", None), Kind::Refused, "every node of zone z1 is dead");
}

#[test]
fn drains_that_cannot_be_are_refused() {
    let mut town = Town::new(&["alpha", "b"]);
    town.refused(drain("alfa", None), Kind::NotFound, "did you mean alpha");
    town.refused(drain("alpha", Some(0)), Kind::Invalid, "give 1 or more");
    town.refused(undrain("alpha"), Kind::Refused, "is not being drained");
    assert!(town.cluster.drain_status(town.at, &node("alpha")).is_err());
    town.kill("b");
    town.rounds(12);
    town.refused(drain("b", None), Kind::Refused, "remove it, or start it again");
    town.done(drain("alpha", None));
    town.done(undrain("alpha"));
    assert!(town.cluster.nodes[&node("alpha")].accepts(town.at.now, &Settings::default()));
}

#[test]
fn only_nodes_that_hold_nothing_or_are_gone_are_removed() {
    let mut town = Town::new(&["a", "b", "c"]);
    town.keyspace("users", HASHES, Presplit::None);
    town.put("users", 1, &["a", "b"]);
    town.refused(remove("a"), Kind::Refused, "drain it first");
    town.refused(remove("x"), Kind::NotFound, "no node x");
    let answer = town.done(remove("c"));
    assert!(answer.warnings[0].contains("comes back if its process goes on"));
    assert!(!town.cluster.nodes.contains_key(&node("c")));
    town.kill("c");
    town.kill("a");
    town.rounds(3);
    town.refused(remove("a"), Kind::Refused, "drain it first");
    town.rounds(10);
    town.done(remove("a"));
    town.rounds(2);
    assert_eq!(town.homes("users", 1), ["b"]);
    assert!(town.shard("users", 1).is_settled());
}

#[test]
fn a_node_whose_former_start_may_still_act_is_not_removed_yet() {
    let mut town = Town::new(&["a", "b"]);
    town.start("a", 0);
    town.refused(remove("a"), Kind::Conflict, "may still hold a lease");
    town.rounds(10);
    town.done(remove("a"));
}

#[test]
fn a_zone_that_no_node_is_in_is_told_with_those_that_there_are() {
    let mut town = Town::new(&["a", "b"]);
    town.refused(zone("elsewhere", None), Kind::NotFound, "nodes are in z0, z1");
    town.refused(zone("z2", None), Kind::NotFound, "did you mean z0?");
    Town::new(&[]).refused(zone("z", None), Kind::NotFound, "no node names its zone");
}

#[test]
fn a_drain_does_not_warn_of_a_shard_that_is_leaving_or_has_just_left_the_other_node() {
    let mut town = Town::new(&["a", "b"]);
    town.keyspace("users", HASHES, Presplit::None);
    town.put("users", 1, &["a"]);
    let (keyspace, from, to) = (name("users"), node("a"), node("b"));
    town.done(Command::MoveShard { keyspace, shard: ShardId(1), from, to });
    let on = |town: &Town, id: &str| {
        let replica = town.shard("users", 1).replicas.iter().find(|r| r.node == node(id));
        replica.map(|r| r.state)
    };
    let mut seen = BTreeSet::new();
    for _ in 0..12 {
        town.rounds(1);
        if on(&town, "a").is_some_and(|state| !state.is_staying()) {
            for id in ["a", "b"] {
                let dry = town.run(drain(id, None), true).unwrap();
                let warned = dry.warnings.iter().any(|said| said.contains("no node could take"));
                assert!(!warned, "{id}, {:?} on a: {dry:?}", on(&town, "a"));
            }
            seen.insert(on(&town, "a"));
        }
    }
    assert!(seen.contains(&Some(ReplicaState::Unload)), "{seen:?}");
}
