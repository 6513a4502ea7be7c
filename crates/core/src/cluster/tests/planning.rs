//! Placement from the first to the last: what follows from joins, deaths, drains, restarts and loads.

use super::super::{Cluster, Moment, Write};
use super::submit;
use super::test_cluster::{BEAT_MS, TestCluster, keyspace, name, node, settings, slots};
use crate::base::id::{PlanId, ShardId};
use crate::keyspace::map::Shard;
use crate::keyspace::{Keyspace, Mode, Throttle};
use crate::limits;
use crate::node::Health;
use crate::node::load::Load;
use crate::placement;
use crate::plan::throttle;
use crate::plan::{Change, Origin, Plan, Progress, Status};
use std::collections::BTreeMap;

/// Three nodes that serve `shards` shards of a keyspace like this.
fn settled(keyspace: Keyspace, shards: u32) -> TestCluster {
    let replicas = keyspace.replicas as usize;
    let mut test = TestCluster::new(keyspace, slots(shards));
    ["a", "b", "c"].into_iter().for_each(|name| test.join(name));
    test.run(3_000);
    assert!(test.is_at_rest(replicas), "{:#?}", test.notices);
    test
}

fn epochs(test: &TestCluster) -> BTreeMap<ShardId, u64> {
    test.map().shards().map(|shard| (shard.id, shard.epoch.0)).collect()
}

#[test]
fn a_hundred_shards_spread_over_three_nodes_and_then_nothing_happens() {
    let mut test = settled(keyspace(100), 100);
    assert!(test.counts().values().all(|count| (33..=34).contains(count)), "{:?}", test.counts());
    assert_eq!(test.served().len(), 100);
    assert_eq!(test.plans().len(), 1);
    let plan = test.plans()[0];
    assert_eq!((&plan.origin, &plan.status, plan.changes.len()), (&Origin::Repair, &Status::Finished, 100));
    assert!(plan.changes.iter().all(|c| c.progress == Progress::Done && c.reason.contains("has 0 of 1")));
    let (writes, generation) = (test.writes.len(), test.map().generation());
    test.run(20_000);
    assert_eq!((test.writes.len(), test.map().generation()), (writes, generation), "M10, L2");
}

#[test]
fn plans_that_are_over_are_kept_up_to_so_many_changes() {
    let mut test = settled(keyspace(1), 1);
    let first = test.plans()[0].clone();
    let mut kept_after = |id: u64, status: Status, changes: usize| -> Vec<u64> {
        let changes = vec![first.changes[0].clone(); changes];
        test.cluster
            .plans
            .by_id
            .insert(PlanId(id), Plan { id: PlanId(id), status, changes, ..first.clone() });
        let Cluster { settings, plans, outbox, .. } = &mut test.cluster;
        plans.drop_old(settings, outbox);
        test.cluster.plans.by_id.keys().map(|id| id.0).collect()
    };
    assert_eq!(first.id.0, 1);
    assert_eq!(kept_after(2, Status::Finished, limits::CHANGES_KEPT - 2), [1, 2]);
    assert_eq!(kept_after(3, Status::Finished, 1), [1, 2, 3], "exactly as many as are kept");
    assert_eq!(kept_after(4, Status::Finished, 1), [2, 3, 4], "one more, so the oldest goes");
    assert_eq!(kept_after(5, Status::Suggested, 2), [3, 4, 5]);
    assert_eq!(kept_after(6, Status::Suggested, limits::CHANGES_KEPT + 1), [5, 6], "what is not over stays");
}

#[test]
fn s9_the_first_placement_waits_until_nodes_have_stopped_joining() {
    let mut test = TestCluster::new(keyspace(9), slots(9));
    test.join("a");
    test.run(200);
    test.join("b");
    test.run(200);
    assert!(test.plans().is_empty());
    test.join("c");
    test.run(settings().settle_ms);
    assert_eq!(test.plans().len(), 1);
    test.run(1_000);
    assert_eq!(test.counts().into_values().collect::<Vec<_>>(), [3, 3, 3]);
}

#[test]
fn the_shards_of_a_dead_node_are_served_again_under_higher_epochs() {
    let mut test = settled(Keyspace { replicas: 2, ..keyspace(30) }, 30);
    let (before, led) = (epochs(&test), |shard: &&Shard| shard.leader().unwrap().node == node("b"));
    let led_by_b: Vec<_> = test.map().shards().filter(led).map(|shard| shard.id).collect();
    assert!(!led_by_b.is_empty());
    test.kill("b");
    test.run(settings().dead_after_ms + 2_000);
    assert!(test.is_at_rest(2), "{:#?}", test.notices);
    assert!(!test.counts().contains_key("b"));
    assert_eq!(test.served().len(), 30);
    for (id, epoch) in epochs(&test) {
        assert_eq!(
            epoch > before[&id],
            led_by_b.contains(&id),
            "{id}: only a change of leader raises the epoch"
        );
    }
}

#[test]
fn a_drain_empties_the_node_and_nobody_else_moves() {
    for mode in [Mode::Automatic, Mode::Suggested, Mode::Manual] {
        let mut test = settled(keyspace(60), 60);
        let keyspace = test.cluster.keyspaces.get_mut(&name()).unwrap();
        keyspace.record.keyspace.mode = mode;
        let record = keyspace.record.clone();
        test.cluster.outbox.writes.push(Write::Keyspace(record));
        let before: BTreeMap<_, _> = test.map().shards().map(|s| (s.id, s.replicas[0].clone())).collect();
        test.drain("a");
        for _ in 0..30 {
            test.run(BEAT_MS);
            let leading = test.map().shards().filter(|shard| shard.leader().is_some()).count();
            assert_eq!(leading, 60, "O11: make before break");
        }
        assert!(test.is_at_rest(1) && !test.counts().contains_key("a"), "{mode}: {:#?}", test.notices);
        for shard in test.map().shards().filter(|shard| before[&shard.id].node != node("a")) {
            assert_eq!(shard.replicas[0], before[&shard.id], "{mode}");
        }
        assert_eq!(test.plans().last().unwrap().origin, Origin::Drain);
    }
}

/// A coordinator ends at any moment of a drain: the next one finds in the map what was begun and done, and drops none of it.
#[test]
fn l1_what_was_done_when_a_coordinator_ended_counts_as_done() {
    for until_ms in (0..12).map(|step| step * BEAT_MS / 2) {
        let mut test = settled(keyspace(12), 12);
        test.drain("a");
        test.decide();
        test.run(until_ms);
        test = test.restart_coordinator();
        test.run(20 * BEAT_MS);
        assert!(test.is_at_rest(1) && !test.counts().contains_key("a"), "{until_ms}: {:#?}", test.notices);
        let plan = test.plans().into_iter().find(|plan| plan.origin == Origin::Drain).unwrap();
        assert!(
            plan.changes.iter().all(|planned| planned.progress == Progress::Done),
            "{until_ms}: {plan:#?}"
        );
    }
}

#[test]
fn a13_a_worker_that_leaves_goes_when_its_shards_are_served_elsewhere() {
    let mut test = settled(keyspace(30), 30);
    test.workers.get_mut(&node("c")).unwrap().leaving = true;
    test.run(2_000);
    assert!(!test.workers.contains_key(&node("c")) && test.is_at_rest(1), "{:#?}", test.notices);
    assert_eq!(test.served().len(), 30);
}

/// A service is stopped as a whole: its processes wait for others that never come.
#[test]
fn a13_the_status_says_that_nodes_want_to_leave_and_cannot() {
    let mut test = settled(keyspace(30), 30);
    assert!(test.cluster.status(test.at()).problems.is_empty());
    let all: Vec<_> = test.workers.keys().cloned().collect();
    test.workers.values_mut().for_each(|worker| worker.leaving = true);
    test.run(5_000);
    let status = test.cluster.status(test.at());
    assert_eq!(status.leaving, all);
    let blocked: Vec<_> = status.problems.iter().filter(|one| one.what.contains("want to leave")).collect();
    let [one] = blocked[..] else { panic!("{:#?}", status.problems) };
    assert!(one.what.contains("a, b, c") && one.what.contains("30 replicas left"), "{one}");
    assert!(one.what.contains("no other node may take it") && one.way_out.contains("other nodes"), "{one}");
    test.join("d");
    test.run(10_000);
    let status = test.cluster.status(test.at());
    assert!(status.leaving.is_empty() && status.problems.is_empty(), "{:#?}", status.problems);
    assert_eq!(test.served().len(), 30);
}

/// Whether that is a loss, the service knows; that it happened, the events say.
#[test]
fn an_event_says_that_a_shard_begins_without_what_its_dead_process_held() {
    let told = |test: &TestCluster| {
        test.events.iter().filter(|event| event.text.contains("no node has a copy")).count()
    };
    let mut test = settled(keyspace(6), 6);
    test.workers.get_mut(&node("c")).unwrap().leaving = true;
    test.run(5_000);
    assert!(!test.workers.contains_key(&node("c")));
    assert!(test.cluster.status(test.at()).begun_empty.is_empty());
    assert_eq!(told(&test), 0, "it has handed all over: {:#?}", test.events);
    let held = test.cluster.nodes()[&node("b")].held();
    test.kill("b");
    test.run(15_000);
    assert_eq!(test.served().len(), 6);
    assert!(held > 0 && told(&test) == held, "{held} {:#?}", test.events);
    let at = test.at();
    let status = test.cluster.status(at);
    let begun = status.begun_empty.get(&name()).expect("the status says so, too");
    assert_eq!(begun.shards, told(&test), "{begun:?}");
    let later = Moment { now: at.now + limits::BEGUN_EMPTY_SHOWN_MS, ..at };
    assert!(test.cluster.status(later).begun_empty.is_empty(), "for an hour");
}

#[test]
fn a13_who_has_left_has_left_also_for_the_next_coordinator_and_who_died_has_died() {
    let mut test = settled(keyspace(30), 30);
    test.workers.get_mut(&node("c")).unwrap().leaving = true;
    test.kill("b");
    test.run(5_000);
    let health = |test: &TestCluster, name: &str| {
        let rows = test.cluster.status(test.at()).nodes;
        let node = &test.cluster.nodes()[&node(name)];
        (node.signs.health(test.at().now, &settings()), rows[&Health::Left], rows[&Health::Down])
    };
    let before = ["b", "c"].map(|name| health(&test, name));
    assert_eq!(before, [(Health::Down, 1, 1), (Health::Left, 1, 1)]);
    let told = test.notices.len();
    test = test.restart_coordinator();
    test.run(5_000);
    assert_eq!(["b", "c"].map(|name| health(&test, name)), before);
    let words = test.notices[told..].join("\n");
    assert!(!words.contains("node b is") && !words.contains("node c is"), "nothing new is told: {words}");
    test.join("c");
    test.run(3_000);
    assert_eq!(test.cluster.nodes()[&node("c")].signs.health(test.at().now, &settings()), Health::Up);
}

#[test]
fn r6_a_restart_moves_nothing() {
    let mut test = settled(Keyspace { replicas: 2, ..keyspace(50) }, 50);
    let map = test.map().clone();
    let told = test.notices.len();
    test = test.restart_coordinator();
    assert_eq!(test.map(), &map);
    test.decide();
    test.run(20_000);
    assert_eq!(test.map(), &map, "{:#?}", test.notices);
    let of_nodes = |text: &String| text.contains("is up, was unknown");
    assert!(test.notices[told..].iter().all(of_nodes), "no alarm: {:#?}", &test.notices[told..]);
}

#[test]
fn r6_after_a_restart_nothing_is_improved_before_loads_are_known() {
    let may = |test: &mut TestCluster| {
        let at = test.at();
        test.cluster.may_rebalance_now(at, &name())
    };
    let mut test = settled(keyspace(30), 30);
    assert!(may(&mut test), "a new cluster has nothing to hear first");
    test = test.restart_coordinator();
    test.run(2_000);
    assert!(!may(&mut test));
    let awaited = |test: &TestCluster| test.cluster.status(test.at()).loads_awaited.get(&name()).copied();
    assert!(awaited(&test).is_some_and(|ms| ms > 0), "status says why, and until when");
    let mut silent = test.restart_coordinator();
    silent.run(settings().rebalance_ms);
    assert!(may(&mut silent), "workers that report no load do not stop it for ever");
    assert_eq!(awaited(&silent), None);
    let mut test = silent.restart_coordinator();
    test.loads = lopsided(&test, "a");
    test.run(2_000);
    assert!(may(&mut test));
}

#[test]
fn nothing_is_improved_while_the_load_of_a_newcomer_is_not_known() {
    let may = |test: &mut TestCluster| {
        let at = test.at();
        test.cluster.may_rebalance_now(at, &name())
    };
    let mut test = settled(keyspace(30), 30);
    assert!(may(&mut test), "nobody measures, so nobody is waited for");
    let load = |shard: &Shard| (shard.id, Load { requests_per_s: 100.0, ..Load::default() });
    let all: BTreeMap<_, _> = test.map().shards().map(load).collect();
    test.loads = all.iter().skip(1).map(|(id, load)| (*id, load.clone())).collect();
    test.run(BEAT_MS);
    assert!(!may(&mut test));
    let mut patient = settled(keyspace(30), 30);
    patient.loads = all;
    patient.run(BEAT_MS);
    assert!(may(&mut patient), "all are known");
    test.run(settings().rebalance_ms);
    assert!(may(&mut test), "one that never reports does not stop it for ever");
}

#[test]
fn a_drain_goes_before_a_rebalance_that_began_earlier() {
    let throttle = crate::keyspace::Throttle { moves: 1, ..Default::default() };
    let mut test = settled(Keyspace { throttle, ..keyspace(60) }, 60);
    test.join("d");
    test.run(500);
    let slow = test.plans().last().unwrap().id;
    assert_eq!(test.plan(slow).origin, Origin::Rebalance);
    test.drain("a");
    let waiting = |test: &TestCluster, id| {
        test.plan(id).changes.iter().filter(|planned| planned.progress == Progress::Waiting).count()
    };
    let before = waiting(&test, slow);
    assert!(before > 5);
    test.run(2_000);
    let drain = test.plans().into_iter().find(|plan| plan.origin == Origin::Drain).unwrap();
    assert!(waiting(&test, drain.id) < drain.changes.len());
    assert_eq!(waiting(&test, slow), before, "the only move at a time is the drain's");
}

#[test]
fn a_repair_does_not_wait_behind_a_rebalance() {
    let throttle = crate::keyspace::Throttle { moves: 1, ..Default::default() };
    let mut test = settled(Keyspace { throttle, ..keyspace(90) }, 90);
    test.join("d");
    test.run(500);
    let slow = test.plans().last().unwrap().id;
    assert_eq!((&test.plan(slow).origin, &test.plan(slow).status), (&Origin::Rebalance, &Status::Approved));
    let on_a = |s: &&Shard| s.replicas.iter().all(|r| r.node == node("a"));
    let lost: Vec<_> = test.map().shards().filter(on_a).map(|shard| shard.id).collect();
    assert!(lost.len() > 20);
    test.kill("a");
    test.run(settings().dead_after_ms + 1_000);
    assert_eq!(test.plan(slow).status, Status::Approved, "one move at a time takes longer than that");
    let without: Vec<_> = lost.into_iter().filter(|id| !test.served().contains(id)).collect();
    assert!(without.is_empty(), "{without:?}");
}

#[test]
fn a_restart_in_the_middle_of_a_drain_finishes_it() {
    let mut test = settled(keyspace(60), 60);
    test.drain("a");
    test.run(BEAT_MS);
    test = test.restart_coordinator();
    test.run(5_000);
    assert!(test.is_at_rest(1) && !test.counts().contains_key("a"), "{:#?}", test.notices);
}

#[test]
fn what_cannot_be_placed_is_reported_until_it_is() {
    let mut test = TestCluster::new(Keyspace { replicas: 3, ..keyspace(4) }, slots(4));
    test.join("a");
    test.join("b");
    test.run(2_000);
    assert_eq!(test.unplaced().len(), 4);
    assert!(
        test.unplaced()[0].contains("needs 3 distinct nodes and 2 are eligible"),
        "{:?}",
        test.unplaced()
    );
    let told =
        |test: &TestCluster| test.notices.iter().filter(|n| n.contains("not placed as it should be")).count();
    test.run(20_000);
    assert_eq!(told(&test), 1, "told once");
    test.join("c");
    test.run(2_000);
    assert!(test.unplaced().is_empty() && test.is_at_rest(3));
}

/// Loads that put everything on the shards of one node.
fn lopsided(test: &TestCluster, heavy: &str) -> BTreeMap<ShardId, Load> {
    let load = |shard: &Shard| {
        let requests = if shard.leader().unwrap().node == node(heavy) { 1_000.0 } else { 100.0 };
        (shard.id, Load { requests_per_s: requests, ..Load::default() })
    };
    test.map().shards().map(load).collect()
}

/// Requests a second on the fullest node over the mean.
fn fullest(test: &TestCluster) -> f64 {
    let mut on: BTreeMap<_, f64> = BTreeMap::new();
    for shard in test.map().shards() {
        *on.entry(&shard.leader().unwrap().node).or_default() += test.loads[&shard.id].requests_per_s;
    }
    on.values().fold(0.0, |most: f64, load| most.max(*load)) / (on.values().sum::<f64>() / on.len() as f64)
}

#[test]
fn k15_automatic_mode_evens_out_a_load_and_comes_to_rest() {
    for policy in ["work_stealing", "balanced"] {
        let mut test = settled(Keyspace { policy: policy.to_owned(), ..keyspace(30) }, 30);
        test.loads = lopsided(&test, "a");
        assert!(fullest(&test) > 2.0);
        test.run(10_000);
        let plans: Vec<_> = test.plans().iter().map(|p| (p.origin.clone(), p.status.clone())).collect();
        assert!(plans.contains(&(Origin::Rebalance, Status::Finished)), "{plans:?} {:#?}", test.notices);
        assert!(test.is_at_rest(1) && fullest(&test) <= 1.3, "{policy}: {}", fullest(&test));
        let generation = test.map().generation();
        test.run(20_000);
        assert_eq!(test.map().generation(), generation, "{policy}: L2");
    }
}

#[test]
fn under_every_policy_deaths_are_repaired_drains_end_and_restarts_move_nothing() {
    for policy in placement::POLICIES {
        let settings_of = Keyspace { policy: policy.to_owned(), replicas: 2, ..keyspace(24) };
        let mut test = TestCluster::new(settings_of, slots(24));
        ["a", "b", "c", "d", "e"].into_iter().for_each(|name| test.join(name));
        test.run(3_000);
        assert!(test.is_at_rest(2), "{policy}: {:#?}", test.notices);
        let map = test.map().clone();
        test = test.restart_coordinator();
        test.run(10_000);
        assert_eq!(test.map(), &map, "{policy}: {:#?}", test.notices);
        test.kill("b");
        test.run(10_000);
        assert!(test.is_at_rest(2) && !test.counts().contains_key("b"), "{policy}: {:#?}", test.notices);
        test.drain("d");
        test.run(10_000);
        assert!(test.is_at_rest(2) && !test.counts().contains_key("d"), "{policy}: {:#?}", test.notices);
        assert_eq!(test.served().len(), 24, "{policy}");
        let generation = test.map().generation();
        test.run(20_000);
        assert_eq!(test.map().generation(), generation, "{policy}: M10");
    }
}

#[test]
fn a_node_that_joins_draws_its_share_and_no_more() {
    let mut test = settled(keyspace(60), 60);
    test.join("d");
    test.run(10_000);
    assert!(test.is_at_rest(1), "{:#?}", test.notices);
    let moved: usize = test.plans().iter().skip(1).map(|plan| plan.changes.len()).sum();
    assert!((12..=15).contains(&moved), "{moved} moves for a quarter of 60 shards: {:?}", test.counts());
}

#[test]
fn k15_suggested_mode_waits_and_says_it_once_and_manual_makes_no_plan() {
    let mut test = settled(Keyspace { mode: Mode::Suggested, ..keyspace(30) }, 30);
    test.loads = lopsided(&test, "a");
    test.run(30_000);
    assert_eq!(test.plans().len(), 2, "one repair, and one suggestion however often it was found");
    let suggestion = test.plans()[1].clone();
    assert_eq!((&suggestion.origin, &suggestion.status), (&Origin::Rebalance, &Status::Suggested));
    assert_eq!(test.counts()["a"], 10);

    test.loads = lopsided(&test, "b");
    test.run(10_000);
    assert_eq!(test.plan(suggestion.id).status, Status::Superseded);
    assert_eq!(test.plans().last().unwrap().status, Status::Suggested);

    test.loads.clear();
    let mut test = TestCluster::new(Keyspace { mode: Mode::Manual, ..keyspace(4) }, slots(4));
    test.join("a");
    test.run(10_000);
    assert!(test.plans().is_empty() && test.counts().is_empty());
    assert!(test.unplaced()[0].contains("mode manual"), "{:?}", test.unplaced());
}

fn reject(test: &mut TestCluster, plan: crate::base::id::PlanId) {
    let at = test.at();
    let command = crate::cluster::admin::Command::RejectPlan { plan };
    test.cluster.command(at, crate::base::id::TransactionId([200; 20]), "ada", command).unwrap();
    test.decide();
}

/// The plans that wait for a person.
fn suggested(test: &TestCluster) -> Vec<crate::base::id::PlanId> {
    let waiting = |plan: &&&crate::plan::Plan| plan.status == Status::Suggested;
    test.plans().iter().filter(waiting).map(|plan| plan.id).collect()
}

#[test]
fn k15_what_was_rejected_is_not_suggested_again_until_what_it_was_based_on_has_changed() {
    let mut test = settled(Keyspace { mode: Mode::Suggested, ..keyspace(30) }, 30);
    test.loads = lopsided(&test, "a");
    test.run(30_000);
    let first = suggested(&test);
    assert_eq!(first.len(), 1);
    let changes = test.plan(first[0]).changes.clone();
    reject(&mut test, first[0]);
    let plans = test.plans().len();
    test.run(60_000);
    assert_eq!((suggested(&test).len(), test.plans().len()), (0, plans), "nobody is asked twice");

    // A restart forgets nothing, and loads that swing a little are no news.
    let mut test = test.restart_coordinator();
    test.loads.values_mut().for_each(|load| load.requests_per_s *= 1.2);
    test.run(60_000);
    assert_eq!(suggested(&test), [], "{:?}", test.plans().last());

    // The same changes under three times the load are another matter.
    test.loads.values_mut().for_each(|load| load.requests_per_s *= 3.0);
    test.run(60_000);
    let second = suggested(&test);
    assert_eq!(second.len(), 1);
    let same = test.plan(second[0]).changes.iter().map(|p| &p.change).eq(changes.iter().map(|p| &p.change));
    assert!(same, "it was for the load that it was suggested again");
    reject(&mut test, second[0]);
    test.run(60_000);
    assert_eq!(suggested(&test), []);

    // And so is a node that joins.
    test.join("d");
    test.run(60_000);
    assert_eq!(suggested(&test).len(), 1);
}

#[test]
fn a_shard_that_cannot_be_loaded_on_one_node_is_loaded_on_another() {
    let mut test = TestCluster::new(Keyspace { replicas: 1, ..keyspace(30) }, slots(30));
    test.fails.extend((1..=30).map(|id| (ShardId(id), node("a"))));
    ["a", "b", "c"].into_iter().for_each(|name| test.join(name));
    test.run(10_000);
    assert_eq!(test.served().len(), 30, "{:#?}", test.notices);
    assert!(!test.counts().contains_key("a"));
}

#[test]
fn m9_the_same_input_planned_again_gives_the_same_plan() {
    let run = || {
        let mut test = settled(Keyspace { replicas: 2, ..keyspace(40) }, 40);
        test.kill("a");
        test.run(5_000);
        format!("{:?}", test.writes)
    };
    assert_eq!(run(), run());
}

#[test]
fn old_plans_are_forgotten_on_disk_too() {
    let mut test = settled(keyspace(6), 6);
    let at = test.at();
    let kept = settings().plans_kept;
    for _ in 0..kept + 10 {
        let change = Change::Remove { shard: ShardId(99), placement: crate::base::id::PlacementId(1) };
        let changes = vec![crate::plan::Planned::new(change, "a try")];
        submit(&mut test.cluster, at, &name(), Origin::Person("mia".to_owned()), changes);
    }
    test.decide();
    assert_eq!((test.plans().len(), test.disk.plans.len()), (kept, kept));
    assert!(matches!(test.plans()[5].status, Status::Refused(_)));
    assert!(test.writes.iter().any(|write| matches!(write, Write::DropPlan(_))));
}

#[test]
fn an_unknown_policy_fails_its_own_keyspace_once_and_loudly() {
    let mut test = TestCluster::new(Keyspace { policy: "work_stealin".to_owned(), ..keyspace(3) }, slots(3));
    test.join("a");
    test.run(20_000);
    assert_eq!(test.plans().len(), 1);
    assert!(matches!(&test.plans()[0].status, Status::Refused(why) if why.contains("did you mean")));
    assert!(test.unplaced()[0].contains("did you mean"));
}

fn leaders(test: &TestCluster) -> BTreeMap<String, usize> {
    let mut leads = BTreeMap::new();
    for leader in test.map().shards().filter_map(Shard::leader) {
        *leads.entry(leader.node.to_string()).or_default() += 1;
    }
    leads
}

#[test]
fn leaders_are_spread_without_moving_data_and_then_stay() {
    let mut test = settled(Keyspace { replicas: 3, ..keyspace(30) }, 30);
    let replicas = |test: &TestCluster| -> Vec<_> {
        test.map().shards().flat_map(|shard| shard.replicas.iter().map(|r| r.placement)).collect()
    };
    let before = replicas(&test);
    test.run(3 * settings().rebalance_ms);
    assert_eq!(leaders(&test).into_values().collect::<Vec<_>>(), [10, 10, 10]);
    assert_eq!(replicas(&test), before, "a hand-over moves no replica");
    let generation = test.map().generation();
    test.run(3 * settings().rebalance_ms);
    assert_eq!(test.map().generation(), generation, "M10, L2");
}

/// Three nodes, thirty shards of 1 MiB each, and a fourth node that draws its share of them.
fn growing(throttle: Throttle, size: Option<u64>) -> TestCluster {
    let mut test = settled(Keyspace { throttle, ..keyspace(30) }, 30);
    let load = |size_bytes| Load { size_bytes, ..Load::default() };
    test.loads.extend((1..=30).filter_map(|id| Some((ShardId(id), load(size?)))));
    test.run(6_000);
    test.join("d");
    test
}

/// When each replica came to its node, in order.
fn arrivals(test: &mut TestCluster, ms: u64) -> Vec<u64> {
    let (begin, mut seen, mut times) = (test.now, 0, Vec::new());
    while test.now < begin + ms {
        test.run(BEAT_MS);
        let there = test.map().shards().flat_map(|s| &s.replicas).filter(|r| r.node == node("d")).count();
        times.extend((seen..there).map(|_| test.now));
        seen = seen.max(there);
    }
    times
}

#[test]
fn k17_moves_begin_no_faster_than_the_bytes_allow_and_all_in_the_end() {
    for (size, each) in [(Some(1 << 20), 1u64 << 20), (None, crate::limits::UNKNOWN_BYTES)] {
        // One shard a second.
        let mut test = growing(Throttle { bytes_per_s: each, ..Throttle::default() }, size);
        let times = arrivals(&mut test, 20_000);
        assert!((7..=8).contains(&times.len()), "{times:?}");
        for (at, first) in times.iter().enumerate() {
            for (more, last) in times[at..].iter().enumerate() {
                let allowed = 1 + (last - first + throttle::BURST_MS + BEAT_MS) / 1_000;
                assert!(more as u64 <= allowed, "{} from {first} to {last}: {times:?}", more + 1);
            }
        }
        assert!(test.is_at_rest(1), "{:#?}", test.notices);
    }
    let mut unlimited = growing(Throttle::default(), Some(1 << 20));
    let times = arrivals(&mut unlimited, 5_000);
    assert!(times.len() >= 7 && times.last().unwrap() - times[0] <= BEAT_MS, "{times:?}");
}

#[test]
fn k17_what_was_lost_comes_back_whatever_the_throttle_says() {
    let mut test = growing(Throttle { bytes_per_s: 1, ..Throttle::default() }, Some(1 << 30));
    test.run(3_000);
    test.kill("b");
    test.run(settings().dead_after_ms + 2_000);
    assert_eq!(test.served().len(), 30, "{:#?}", test.notices);
}

#[test]
fn k17_moves_give_way_to_the_foreground() {
    let throttle = Throttle { moves_per_node: 10, ..Throttle::default() };
    let mut most = Vec::new();
    for busy in [0.0, 0.7, 1.0] {
        let mut test = settled(Keyspace { throttle: throttle.clone(), ..keyspace(30) }, 30);
        test.busy.insert(node("a"), busy);
        test.run(BEAT_MS);
        test.drain("a");
        let (mut together, end) = (0, test.now + 10_000);
        while test.now < end {
            let moves = |s: &Shard| s.replicas.iter().any(|r| r.replaces().is_some());
            together = together.max(test.map().shards().filter(|s| moves(s)).count());
            test.run(BEAT_MS);
        }
        assert!(test.is_at_rest(1) && !test.counts().contains_key("a"), "it ends: {:?}", test.counts());
        most.push(together);
    }
    assert_eq!(most, [10, 5, 1]);
}

/// Requests a second on each node, over all keyspaces.
fn requests(test: &TestCluster) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for keyspace in test.cluster.keyspaces().values() {
        for (shard, replica) in keyspace.map.shards().flat_map(|s| s.live().map(move |r| (s.id, r))) {
            let load = test.loads.get(&shard).map_or(0.0, |load| load.requests_per_s);
            *sums.entry(replica.node.to_string()).or_default() += load;
        }
    }
    sums
}

#[test]
fn keyspaces_leave_each_other_room_and_then_rest() {
    // One keyspace is two heavy shards, which two nodes have; the other is forty light ones.
    let heavy = Keyspace { name: crate::base::name::KeyspaceName::new("heavy").unwrap(), ..keyspace(2) };
    let mut test = TestCluster::of(vec![(heavy, slots(2)), (keyspace(40), slots(40))]);
    let load = |requests_per_s| Load { requests_per_s, ..Load::default() };
    test.loads = (1..=2).map(|id| (ShardId(id), load(900.0))).collect();
    test.loads.extend((3..=42).map(|id| (ShardId(id), load(60.0))));
    ["a", "b", "c", "d"].into_iter().for_each(|name| test.join(name));
    test.run(40_000);
    let sums = requests(&test);
    let mean = sums.values().sum::<f64>() / 4.0;
    assert!(sums.values().all(|sum| *sum < 1.3 * mean), "{sums:?}");
    let (writes, generation) = (test.writes.len(), test.map().generation());
    test.run(30_000);
    assert_eq!((test.writes.len(), test.map().generation()), (writes, generation), "L2");
}
