//! Dry runs: the plans that are foreseen are those that are made.

use super::*;

fn automatic(of: &str, shards: u32) -> Command {
    let keyspace = Box::new(Keyspace { mode: Mode::Automatic, ..settings(of, HASHES) });
    Command::CreateKeyspace { keyspace, presplit: Presplit::HashRanges(shards), ahead: false }
}

/// Six shards that three nodes serve, and nothing under way.
fn test_cluster() -> AdminTestCluster {
    let mut test = AdminTestCluster::new(&["a", "b", "c"]);
    test.done(automatic("users", 6));
    test.rounds(30);
    assert!(test.cluster.plans.by_id.values().all(Plan::is_over));
    test
}

fn drain(id: &str) -> Command {
    Command::DrainNode { node: node(id), reason: "disk".into(), max_down: None }
}

fn update(changes: KeyspaceChanges) -> Command {
    Command::UpdateKeyspace { keyspace: name("users"), changes: Box::new(changes), ahead: false }
}

fn replicas(replicas: u32) -> Command {
    update(KeyspaceChanges { replicas: Some(replicas), ..KeyspaceChanges::default() })
}

/// Every plan that a command and one run of the planner make is the one that was foreseen.
fn is_as_foreseen(test: &mut AdminTestCluster, command: Command) -> Answer {
    let dry = test.run(command.clone(), true).unwrap();
    // Each call draws a transaction of its own.
    let drawn = |plan: &Plan| {
        let base = crate::base::id::Generation { transaction: TransactionId::default(), ..plan.base };
        Plan { base, ..plan.clone() }
    };
    let foreseen: Vec<Plan> = dry.plan.iter().chain(&dry.follows).map(|shown| drawn(&shown.plan)).collect();
    let first = test.cluster.record.next_plan;
    test.done(command.clone());
    test.cluster.plan(test.at);
    let made: Vec<Plan> = test.cluster.plans.by_id.range(first..).map(|(_, plan)| drawn(plan)).collect();
    assert_eq!(foreseen, made, "{command:?}");
    if foreseen.iter().any(|plan| plan.status != Status::Approved) {
        return dry;
    }
    test.rounds(30);
    let held: Vec<_> =
        test.cluster.node_table(test.at).into_iter().map(|row| (row.node, row.replicas)).collect();
    for share in &dry.shares {
        let (_, held) = held.iter().find(|(node, _)| *node == share.node).unwrap();
        assert_eq!(held.values().sum::<usize>() as u32, share.after, "{share:?} after {command:?}");
    }
    dry
}

#[test]
fn a_dry_run_of_a_drain_shows_every_move_with_the_node_it_leaves() {
    let mut test = test_cluster();
    let dry = is_as_foreseen(&mut test, drain("a"));
    assert_eq!((dry.follows.len(), &dry.follows[0].origin), (1, &Origin::Drain));
    let plan = &dry.follows[0];
    assert_eq!(plan.changes.len(), 2);
    for planned in &plan.changes {
        let (_, placement) = planned.change.replica().unwrap();
        assert_eq!(plan.nodes[&placement], node("a"));
        assert!(planned.reason.contains("a is being drained"), "{planned:?}");
    }
    let shares: Vec<_> = dry.shares.iter().map(|s| (s.node.as_str(), s.before, s.after)).collect();
    assert_eq!(shares, [("a", 2, 0), ("b", 2, 3), ("c", 2, 3)]);
    assert_eq!(dry.drains[0].progress, DrainProgress::Moving { left: 2, of: 2, stuck: vec![] });
}

#[test]
fn a_dry_run_of_a_drain_that_is_blocked_tells_of_the_shards_once() {
    let mut test = AdminTestCluster::new(&["a"]);
    test.done(automatic("users", 6));
    test.rounds(30);
    let dry = is_as_foreseen(&mut test, drain("a"));
    assert!(dry.follows.is_empty());
    let DrainProgress::Blocked { left: 6, why } = &dry.drains[0].progress else { panic!("{dry:?}") };
    assert!(why.len() == 1 && why[0].contains("6 shards of keyspace users, such as s1"), "{why:?}");
    let each =
        dry.warnings.iter().filter(|warning| warning.contains("stays on") || warning.contains("has no node"));
    assert_eq!(each.count(), 0, "{:?}", dry.warnings);
}

#[test]
fn what_a_keyspace_is_to_become_is_shown_as_plans() {
    let mut test = test_cluster();
    let adds = is_as_foreseen(&mut test, replicas(2));
    assert_eq!((adds.follows[0].changes.len(), &adds.follows[0].origin), (6, &Origin::Repair));
    let own = Command::SetShardReplicas {
        keyspace: name("users"),
        shard: ShardId(1),
        replicas: Some(3),
        ahead: false,
    };
    assert_eq!(is_as_foreseen(&mut test, own).follows[0].changes.len(), 1);
    let usual = Command::SetShardReplicas {
        keyspace: name("users"),
        shard: ShardId(1),
        replicas: None,
        ahead: false,
    };
    let change = &is_as_foreseen(&mut test, usual).follows[0].changes[0].change;
    assert!(matches!(change, crate::plan::Change::Remove { .. }), "{change}");
    let constraint = Constraint { excluded: [node("a")].into(), ..Constraint::default() };
    let off = KeyspaceChanges { constraint: Some(constraint), ..KeyspaceChanges::default() };
    let moves = is_as_foreseen(&mut test, update(off));
    let leave_a = |planned: &Planned| {
        planned.change.replica().is_some_and(|(_, placement)| moves.follows[0].nodes[&placement] == node("a"))
    };
    assert!(
        !moves.follows[0].changes.is_empty() && moves.follows[0].changes.iter().all(leave_a),
        "{moves:?}"
    );
    let first = is_as_foreseen(&mut test, automatic("more", 4));
    assert_eq!((first.follows.len(), first.follows[0].changes.len()), (1, 4));
    assert_eq!(first.follows[0].keyspace, name("more"));
    let drop = Command::DeleteKeyspace { keyspace: name("more") };
    let gone = test.done_dry(drop);
    assert!(gone.follows.is_empty() && gone.shares.iter().all(|share| share.after < share.before));
}

#[test]
fn another_policy_is_shown_as_a_rebalance_and_waits_where_the_mode_says_so() {
    for (mode, status) in [(Mode::Automatic, Status::Approved), (Mode::Suggested, Status::Suggested)] {
        let mut test = test_cluster();
        test.done(update(KeyspaceChanges { mode: Some(mode), ..KeyspaceChanges::default() }));
        test.rounds(2);
        let jump = KeyspaceChanges { policy: Some("jump".into()), ..KeyspaceChanges::default() };
        let dry = is_as_foreseen(&mut test, update(jump));
        assert_eq!((&dry.follows[0].origin, &dry.follows[0].status), (&Origin::Rebalance, &status));
        assert!(!dry.shares.is_empty() || dry.follows[0].changes.len() > 1, "{dry:?}");
    }
}

#[test]
fn a_move_by_a_person_is_its_own_plan_and_nothing_follows() {
    let mut test = test_cluster();
    let from = node(&test.homes("users", 1)[0]);
    let to = node(if from == node("a") { "b" } else { "a" });
    let command = Command::MoveShard { keyspace: name("users"), shard: ShardId(1), from: from.clone(), to };
    let dry = test.run(command, true).unwrap();
    assert_eq!(dry.plan.unwrap().nodes.into_values().collect::<Vec<_>>(), [from]);
    assert_eq!((dry.follows, dry.shares.len()), (vec![], 2));
}

#[test]
fn what_stops_the_planner_is_said() {
    let mut test = test_cluster();
    test.cluster.record.brake = Some("many deaths".into());
    let dry = test.run(drain("a"), true).unwrap();
    assert!(dry.warnings.iter().any(|said| said.contains("the brake is on (many deaths)")), "{dry:?}");
    assert!(matches!(dry.follows[0].status, Status::Refused(_)) && dry.shares.is_empty(), "{dry:?}");
    let released = test.run(Command::ReleaseBrake, true).unwrap();
    assert_eq!(released.warnings, Vec::<String>::new());
    test.cluster.record.brake = None;

    test.done(update(KeyspaceChanges { mode: Some(Mode::Manual), ..KeyspaceChanges::default() }));
    let dry = test.run(replicas(2), true).unwrap();
    assert!(dry.follows.is_empty(), "{dry:?}");
    assert!(
        dry.warnings[0].contains("6 replicas wait for a person") && dry.warnings[0].contains("shard add")
    );
    let jump = KeyspaceChanges { policy: Some("jump".into()), ..KeyspaceChanges::default() };
    let dry = test.run(update(jump), true).unwrap();
    assert!(dry.warnings[0].contains("in mode manual a person makes the changes"), "{dry:?}");
}

impl AdminTestCluster {
    /// The dry run that comes before the deed.
    fn done_dry(&mut self, command: Command) -> Answer {
        let dry = self.run(command.clone(), true).unwrap();
        self.done(command);
        dry
    }
}
