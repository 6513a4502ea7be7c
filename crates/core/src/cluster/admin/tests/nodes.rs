use super::*;
use crate::cluster::blame::StrikeContext;
use crate::cluster::drains::SafeToStopNodes;
use crate::node::Health;
use crate::plan::brake::Suspects;

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

impl AdminTestCluster {
    fn progress(&self, id: &str) -> DrainProgress {
        self.cluster.drain_status(self.at, &node(id)).unwrap().progress
    }
}

#[test]
fn l8_a_drain_says_what_blocks_it_and_ends_when_that_is_gone() {
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.keyspace("users", HASHES, Presplit::None);
    test.put("users", 1, &["a", "b"]);
    let answer = test.done(drain("a", None));
    assert!(answer.warnings[0].contains("no node could take shard s1"), "{answer:?}");
    let blocked = |progress: DrainProgress, needle: &str| match progress {
        DrainProgress::Blocked { left: 1, why } => assert!(why[0].contains(needle), "{why:?}"),
        other => panic!("{other:?}"),
    };
    blocked(answer.drains[0].progress.clone(), "no other node may take it");
    test.cluster.record.brake = Some("test".into());
    blocked(test.progress("a"), "the brake is on (test)");
    test.start("c", 2);
    test.rounds(2);
    blocked(test.progress("a"), "the brake is on (test)");
    test.broken.insert(node("c"));
    let (keyspace, from, to) = (name("users"), node("a"), node("c"));
    test.run(Command::MoveShard { keyspace, shard: ShardId(1), from, to }, false).unwrap();
    test.rounds(2);
    blocked(test.progress("a"), "disk full");
    test.broken.clear();
    test.rounds(6);
    assert_eq!(test.progress("a"), DrainProgress::SafeToStop);
    assert_eq!(test.cluster.drains(test.at)[0].to_string(), "a: safe to stop");
}

#[test]
fn l8_a_drain_ends_by_itself_in_every_mode() {
    for mode in [Mode::Automatic, Mode::Suggested, Mode::Manual] {
        let mut test = AdminTestCluster::new(&["a", "b", "c"]);
        test.keyspace("users", HASHES, Presplit::HashRanges(4));
        (1..=4).for_each(|shard| test.put("users", shard, &["a"]));
        let changes = Box::new(KeyspaceChanges { mode: Some(mode), ..KeyspaceChanges::default() });
        test.done(Command::UpdateKeyspace { keyspace: name("users"), changes, ahead: false });
        test.done(drain("a", None));
        test.rounds(12);
        assert_eq!(test.progress("a"), DrainProgress::SafeToStop, "{mode}");
        assert!((1..=4).all(|shard| test.shard("users", shard).is_settled()), "{mode}");
        test.done(remove("a"));
    }
}

#[test]
fn a_drain_counts_what_it_has_moved() {
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.keyspace("users", HASHES, Presplit::HashRanges(3));
    (1..=3).for_each(|shard| test.put("users", shard, &["a"]));
    let answer = test.done(drain("a", None));
    assert!(matches!(answer.drains[0].progress, DrainProgress::Moving { left: 3, of: 3, .. }), "{answer:?}");
    assert!(answer.drains[0].to_string().contains("moving, 0 of 3 done"));
    test.refused(
        Command::AddReplica { keyspace: name("users"), shard: ShardId(1), node: node("a") },
        Kind::Refused,
        "it is being drained: new kernel",
    );
}

#[test]
fn a19_drains_above_the_limit_wait_and_follow_in_the_order_asked() {
    let mut test = AdminTestCluster::new(&["a", "b", "c", "d"]);
    test.done(drain("b", Some(1)));
    test.rounds(1);
    let answer = test.done(drain("a", Some(1)));
    let behind = vec![node("b")];
    assert_eq!(answer.drains[0].progress, DrainProgress::Queued { behind, max_down: 1 });
    assert!(answer.drains[0].to_string().contains("queued until fewer than 1 of b"));
    test.rounds(1);
    test.done(drain("c", Some(1)));
    let queued =
        |test: &AdminTestCluster, id: &str| matches!(test.progress(id), DrainProgress::Queued { .. });
    test.rounds(3);
    assert_eq!(test.progress("b"), DrainProgress::SafeToStop);
    assert!(queued(&test, "a") && queued(&test, "c"), "a drained node counts until it is back");
    // b restarts: nothing changes until somebody says that it is back.
    test.start("b", 1);
    test.rounds(3);
    assert!(queued(&test, "a"));
    test.done(undrain("b"));
    assert!(!queued(&test, "a") && queued(&test, "c"));
    // a dies instead of coming back: it is down, so c goes on waiting, until it is removed.
    test.kill("a");
    test.rounds(12);
    assert_eq!(
        test.cluster.members.nodes[&node("a")].signs.health(test.at.now, &Settings::default()),
        Health::Down
    );
    assert!(queued(&test, "c"));
    test.done(remove("a"));
    assert!(!queued(&test, "c"));
}

#[test]
fn asking_again_keeps_the_place_in_the_queue_and_what_has_begun() {
    let mut test = AdminTestCluster::new(&["a", "b", "c"]);
    for id in ["c", "b", "a"] {
        test.done(drain(id, Some(1)));
        test.rounds(1);
    }
    test.done(drain("c", Some(1)));
    assert_eq!(test.progress("c"), DrainProgress::SafeToStop, "it does not go back into the queue");
    let answer = test.done(drain("b", Some(1)));
    assert_eq!(answer.drains[0].asked_ms, test.at.wall_ms - 1_000);
    test.done(drain("b", None));
    assert_eq!(test.progress("b"), DrainProgress::SafeToStop, "without a limit it begins at once");
}

#[test]
fn a_queued_drain_takes_nothing_new_moves_nothing_and_survives_a_restart() {
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.keyspace("users", HASHES, Presplit::None);
    test.put("users", 1, &["a"]);
    test.done(drain("b", Some(1)));
    test.done(drain("a", Some(1)));
    let a = &test.cluster.members.nodes[&node("a")];
    assert!(!a.accepts(test.at.now, &Settings::default()) && !a.is_to_be_emptied());
    assert!(test.cluster.members.nodes[&node("b")].is_to_be_emptied());
    let back = Cluster::recover(test.at, Settings::default(), test.records.clone()).unwrap();
    let drains: Vec<_> =
        back.members.nodes.values().map(|n| n.record.drain.clone().unwrap().has_begun()).collect();
    assert_eq!(drains, [false, true]);
}

#[test]
fn a_zone_is_drained_node_by_node() {
    let mut test = AdminTestCluster::new(&["a", "b", "c", "d"]);
    let answer = test.done(zone("z0", Some(1)));
    let drains: Vec<_> = answer.drains.iter().map(|d| (d.node.as_str(), &d.progress)).collect();
    assert_eq!(drains[0], ("a", &DrainProgress::SafeToStop));
    assert!(matches!(drains[1], ("c", DrainProgress::Queued { .. })), "{drains:?}");
    test.refused(zone("z9", None), Kind::NotFound, "did you mean z0");
    test.refused(zone("z0", Some(0)), Kind::Invalid, "give 1 or more");
    let undrain = |id: &str| Command::UndrainZone { zone: Zone::new(id).unwrap() };
    test.refused(undrain("z9"), Kind::NotFound, "did you mean z0");
    let told = test.run(undrain("z0"), true).unwrap().summary;
    assert!(told.ends_with("take shards again") && test.cluster.drains(test.at).len() > 1, "{told}");
    for id in ["b", "d"] {
        test.kill(id);
    }
    test.rounds(12);
    test.refused(zone("z1", None), Kind::Refused, "every node of zone z1 is dead");
}

#[test]
fn drains_that_cannot_be_are_refused() {
    let mut test = AdminTestCluster::new(&["alpha", "b"]);
    test.refused(drain("alfa", None), Kind::NotFound, "did you mean alpha");
    test.refused(drain("alpha", Some(0)), Kind::Invalid, "give 1 or more");
    test.refused(undrain("alpha"), Kind::Refused, "is not being drained");
    assert!(test.cluster.drain_status(test.at, &node("alpha")).is_err());
    test.kill("b");
    test.rounds(12);
    test.refused(drain("b", None), Kind::Refused, "remove it, or start it again");
    test.done(drain("alpha", None));
    test.done(undrain("alpha"));
    assert!(test.cluster.members.nodes[&node("alpha")].accepts(test.at.now, &Settings::default()));
}

#[test]
fn only_nodes_that_hold_nothing_or_are_gone_are_removed() {
    let mut test = AdminTestCluster::new(&["a", "b", "c"]);
    test.keyspace("users", HASHES, Presplit::None);
    test.put("users", 1, &["a", "b"]);
    test.refused(remove("a"), Kind::Refused, "drain it first");
    test.refused(remove("x"), Kind::NotFound, "no node x");
    let answer = test.done(remove("c"));
    assert!(answer.warnings[0].contains("comes back if its process goes on"));
    assert!(!test.cluster.members.nodes.contains_key(&node("c")));
    test.kill("c");
    test.kill("a");
    test.rounds(3);
    test.refused(remove("a"), Kind::Refused, "drain it first");
    test.rounds(10);
    test.done(remove("a"));
    test.rounds(2);
    assert_eq!(test.homes("users", 1), ["b"]);
    assert!(test.shard("users", 1).is_settled());
}

#[test]
fn a_node_whose_former_start_may_still_act_is_not_removed_yet() {
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.start("a", 0);
    test.refused(remove("a"), Kind::Conflict, "may still hold a lease");
    test.rounds(10);
    test.done(remove("a"));
}

#[test]
fn a_zone_that_no_node_is_in_is_told_with_those_that_there_are() {
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.refused(zone("elsewhere", None), Kind::NotFound, "nodes are in z0, z1");
    test.refused(zone("z2", None), Kind::NotFound, "did you mean z0?");
    AdminTestCluster::new(&[]).refused(zone("z", None), Kind::NotFound, "no node names its zone");
}

#[test]
fn a_drain_does_not_warn_of_a_shard_that_is_leaving_or_has_just_left_the_other_node() {
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.keyspace("users", HASHES, Presplit::None);
    test.put("users", 1, &["a"]);
    let (keyspace, from, to) = (name("users"), node("a"), node("b"));
    test.done(Command::MoveShard { keyspace, shard: ShardId(1), from, to });
    let on = |test: &AdminTestCluster, id: &str| {
        let replica = test.shard("users", 1).replicas.iter().find(|r| r.node == node(id));
        replica.map(|r| r.state)
    };
    let mut seen = BTreeSet::new();
    for _ in 0..12 {
        test.rounds(1);
        if on(&test, "a").is_some_and(|state| !state.is_staying()) {
            for id in ["a", "b"] {
                let dry = test.run(drain(id, None), true).unwrap();
                let warned = dry.warnings.iter().any(|said| said.contains("no node could take"));
                assert!(!warned, "{id}, {:?} on a: {dry:?}", on(&test, "a"));
            }
            seen.insert(on(&test, "a"));
        }
    }
    assert!(seen.contains(&Some(ReplicaState::Unload)), "{seen:?}");
}

#[test]
fn a19_a_drain_with_a_limit_does_not_overtake_an_earlier_one() {
    let mut test = AdminTestCluster::new(&["a", "b", "c", "d"]);
    test.done(drain("b", Some(1)));
    test.rounds(1);
    test.done(drain("a", Some(1)));
    test.rounds(1);
    test.done(drain("c", Some(2)));
    test.rounds(3);
    let queued = |id: &str| matches!(test.progress(id), DrainProgress::Queued { .. });
    assert!(queued("a") && queued("c"), "two may be down for c, but a was asked for before it");
    test.done(undrain("b"));
    test.rounds(1);
    assert_eq!(
        ["a", "c"].map(|id| test.progress(id)),
        [DrainProgress::SafeToStop, DrainProgress::SafeToStop]
    );
}

#[test]
fn z2_a_node_that_never_held_a_shard_holds_up_no_drain() {
    let mut test = AdminTestCluster::new(&["a", "b", "ghost"]);
    test.keyspace("users", HASHES, Presplit::None);
    test.put("users", 1, &["a"]);
    test.kill("ghost");
    test.rounds(3);
    test.done(drain("b", Some(1)));
    assert_eq!(test.progress("b"), DrainProgress::SafeToStop);
    test.kill("a");
    test.rounds(3);
    test.done(undrain("b"));
    test.done(drain("b", Some(1)));
    assert!(matches!(test.progress("b"), DrainProgress::Queued { .. }), "a had a shard, and is down");
}

#[test]
fn a_node_that_a_person_removes_is_no_loss_any_more() {
    let mut test = AdminTestCluster::new(&["a", "b", "c"]);
    test.keyspace("users", HASHES, Presplit::None);
    test.put("users", 1, &["a", "b"]);
    test.kill("a");
    test.rounds(13);
    let are_back =
        |test: &AdminTestCluster| test.cluster.guard.losses.are_all_back(test.at.now, &Settings::default());
    assert!(!are_back(&test), "it was given up a moment ago");
    test.done(remove("a"));
    assert!(are_back(&test));
}

#[test]
fn l5_deaths_without_it_release_no_shard_that_could_not_be_loaded() {
    let mut test = AdminTestCluster::new(&["a", "b", "c", "d", "e"]);
    test.keyspace("users", HASHES, Presplit::None);
    test.put("users", 1, &["a"]);
    let settings = Settings::default();
    let rule = |deaths| ShardRule { set_aside: Some("why".into()), deaths, ..ShardRule::default() };
    for (deaths, stays) in [(1, true), (settings.poison_deaths, false)] {
        let mut cluster = test.cluster.clone();
        let users = cluster.keyspaces.get_mut(&name("users")).unwrap();
        users.record.rules.insert(ShardId(1), rule(deaths));
        let taken = [(name("users"), ShardId(1))].into();
        cluster.guard.deaths.add(node("a"), test.at.now, taken, &settings);
        for id in ["b", "c", "d"] {
            let Cluster { record, members, keyspaces, guard, outbox, .. } = &mut cluster;
            let known = StrikeContext { seen: members.view(test.at.now, &settings), record };
            guard.strike(test.at, &node(id), &Suspects::new(), known, keyspaces, outbox);
        }
        let rules = &cluster.keyspaces.by_name[&name("users")].record.rules;
        let is_aside = rules.get(&ShardId(1)).is_some_and(|rule| rule.set_aside.is_some());
        assert_eq!(is_aside, stays, "{deaths} deaths: {rules:?}");
    }
}

#[test]
fn people_are_told_when_a_drained_node_is_not_safe_to_stop_any_more() {
    let mut test = AdminTestCluster::new(&["a", "b"]);
    test.keyspace("users", HASHES, Presplit::None);
    test.put("users", 1, &["a"]);
    test.done(drain("b", None));
    test.rounds(1);
    assert!(test.cluster.members.nodes[&node("b")].safe_to_stop_told);
    let users = name("users");
    test.cluster.members.get_mut(&node("b")).unwrap().orders.recall(&users, &[ShardId(1)]);
    let at = test.at;
    test.cluster.run_phase::<SafeToStopNodes>(at);
    test.cluster.run_phase::<SafeToStopNodes>(at);
    let outbox = test.cluster.take_outbox();
    let told: Vec<_> =
        outbox.notices.iter().filter(|notice| notice.text.contains("not safe to stop")).collect();
    assert!(told.len() == 1 && told[0].alarm, "{:?}", outbox.notices);
}
