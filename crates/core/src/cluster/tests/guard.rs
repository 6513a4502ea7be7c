//! When too much dies, and when one shard kills: what stops, what goes on, how a person lets it go on.

use super::super::ShardRule;
use super::super::admin::Command;
use super::test_cluster::{BEAT_MS, Hang, TestCluster, keyspace, name, node, settings, slots};
use crate::base::id::{ShardId, TransactionId};
use crate::keyspace::{Keyspace, Throttle};
use crate::node::Health;
use crate::plan::{Change, Progress};

fn cluster_of(nodes: usize, keyspace: Keyspace, shards: u32) -> TestCluster {
    let replicas = keyspace.replicas as usize;
    let mut test = TestCluster::new(keyspace, slots(shards));
    (0..nodes).for_each(|at| test.join(&format!("n{at:02}")));
    test.run(3_000);
    assert!(test.is_at_rest(replicas), "{:#?}", test.notices);
    test
}

fn command(test: &mut TestCluster, command: Command) {
    let at = test.at();
    test.cluster.command(at, TransactionId([9; 20]), "mia", command).unwrap();
    test.decide();
}

#[test]
fn b7_who_is_given_up_with_the_brake_is_buried_by_the_decisions_after_that() {
    let mut test = cluster_of(8, keyspace(40), 40);
    for name in ["n01", "n02", "n03", "n04", "n05"] {
        test.kill(name);
    }
    test.run(6_000);
    assert!(test.cluster.brake().is_some(), "{:#?}", test.notices);
    let (at, before, few) = (test.at(), test.cluster.work_done(), told(&test, "nothing is planned until"));
    test.cluster.command(at, TransactionId([9; 20]), "mia", Command::ReleaseBrake).unwrap();
    assert_eq!(test.cluster.work_done(), before, "the command itself looks at no shard");
    assert!(told(&test, "is dead") == 0 && test.cluster.brake().is_none());
    test.decide();
    assert_eq!(told(&test, "is dead"), 5, "{:#?}", test.notices);
    test.run(8_000);
    assert!(test.is_at_rest(1) && test.cluster.brake().is_none(), "{:#?}", test.notices);
    assert_eq!(told(&test, "the brake is on"), 1, "it is not put on again for the same nodes");
    assert_eq!(told(&test, "nothing is planned until"), few, "{:#?}", test.notices);
}

#[test]
fn b9_strikes_that_another_coordinator_stored_end_when_the_shard_lives_through_the_window() {
    let mut test = cluster_of(3, keyspace(6), 6);
    let struck = ShardRule { deaths: 2, ..ShardRule::default() };
    test.disk.keyspaces[0].0.rules.insert(ShardId(4), struck);
    test = test.restart_coordinator();
    let rules = |test: &TestCluster| test.cluster.keyspaces().values().next().unwrap().record.rules.len();
    test.run(settings().poison_window_ms - 1_000);
    assert_eq!(rules(&test), 1, "not before the window is over");
    test.run(2 * settings().rebalance_ms);
    assert_eq!((rules(&test), test.disk.keyspaces[0].0.rules.len()), (0, 0));
}

fn told(test: &TestCluster, text: &str) -> usize {
    test.notices.iter().filter(|notice| notice.contains(text)).count()
}

#[test]
fn r4_two_of_ten_are_replaced_and_a_third_within_the_window_puts_the_brake_on() {
    let mut test = cluster_of(10, keyspace(40), 40);
    test.kill("n00");
    test.kill("n01");
    test.run(4_000);
    assert!(test.is_at_rest(1) && test.cluster.brake().is_none());
    test.kill("n02");
    let generation = test.map().generation();
    test.run(20_000);
    assert!(test.cluster.brake().unwrap().contains("3 of 10 nodes"), "{:?}", test.cluster.brake());
    assert_eq!(test.map().generation(), generation, "nothing moves, not even repairs");
    assert_eq!(told(&test, "partage brake release"), 1);
    assert!(test.disk.cluster.brake.is_some(), "it is durable");

    command(&mut test, Command::ReleaseBrake);
    test.run(3_000);
    assert!(test.is_at_rest(1) && !test.counts().contains_key("n02"), "{:#?}", test.notices);
    assert!(test.cluster.brake().is_none() && test.disk.cluster.brake.is_none());
}

#[test]
fn r4_nodes_that_are_heard_again_under_the_brake_go_on_as_if_nothing_had_been() {
    let mut test = cluster_of(10, keyspace(40), 40);
    let map = test.map().clone();
    test.cut_off.extend(["n00", "n01", "n02", "n03"].map(node));
    test.run(10_000);
    assert!(test.cluster.brake().is_some());
    test = test.restart_coordinator();
    test.run(10_000);
    assert!(test.cluster.brake().is_some(), "a restart does not release it");
    test.cut_off.remove(&node("n00"));
    test.run(1_000);
    assert!(test.cluster.brake().is_some(), "three are still silent");
    test.cut_off.clear();
    test.run(3_000);
    assert!(test.cluster.brake().is_none() && test.disk.cluster.brake.is_none(), "nothing was decided");
    test.run(10_000);
    assert_eq!(test.map(), &map);
    assert_eq!(test.served().len(), 40);
}

#[test]
fn under_the_brake_followers_still_take_the_lead_of_silent_leaders() {
    let mut test = cluster_of(6, Keyspace { replicas: 2, ..keyspace(30) }, 30);
    ["n00", "n01", "n02"].into_iter().for_each(|name| test.kill(name));
    test.run(10_000);
    assert!(test.cluster.brake().is_some());
    let alive = |r: &crate::keyspace::map::Replica| test.workers.contains_key(&r.node);
    for shard in test.map().shards() {
        assert_eq!(shard.replicas.len(), 2, "the map keeps who is silent");
        let leader = shard.leader().unwrap();
        assert!(alive(leader) || !shard.replicas.iter().any(alive), "{}", shard.id);
    }
}

#[test]
fn leaves_and_drains_are_no_losses() {
    let mut test = cluster_of(6, keyspace(30), 30);
    ["n00", "n01", "n02", "n03"]
        .into_iter()
        .for_each(|name| test.workers.get_mut(&node(name)).unwrap().leaving = true);
    test.run(5_000);
    assert_eq!(test.workers.len(), 2, "{:#?}", test.notices);
    assert!(test.cluster.brake().is_none() && test.is_at_rest(1));
}

#[test]
fn planning_waits_while_most_nodes_are_silent_and_goes_on_by_itself() {
    let mut test = cluster_of(8, keyspace(40), 40);
    test.cut_off.extend(["n00", "n01", "n02", "n03", "n04"].map(node));
    let generation = test.map().generation();
    test.run(1_000);
    assert_eq!(told(&test, "only 3 of 8 nodes answer"), 1, "{:#?}", test.notices);
    test.cut_off.clear();
    test.run(1_000);
    assert_eq!(told(&test, "planning goes on"), 1);
    assert_eq!(test.map().generation(), generation);
    assert!(test.cluster.brake().is_none());
}

#[test]
fn r6_a_coordinator_that_slept_does_not_take_its_own_silence_for_theirs() {
    let mut test = cluster_of(3, keyspace(12), 12);
    let generation = test.map().generation();
    test.now += 60_000;
    test.decide();
    test.run(2_000);
    assert_eq!(test.map().generation(), generation, "{:#?}", test.notices);
    assert!(test.cluster.brake().is_none());
    test.kill("n01");
    test.run(settings().dead_after_ms + 2_000);
    assert!(test.is_at_rest(1) && test.counts().len() == 2, "who is really dead is still found out");
}

/// The coordinator tells of none of them, and sees a half of each: no beat is heard in all that time.
#[test]
fn r6_short_sleeps_of_a_coordinator_add_up() {
    let mut test = cluster_of(3, keyspace(12), 12);
    let generation = test.map().generation();
    let sleep_ms = 2 * settings().heartbeat_ms - 1;
    let times = settings().dead_after_ms.div_ceil(sleep_ms) + 4;
    assert!(times * settings().heartbeat_ms < settings().dead_after_ms);
    for _ in 0..times {
        test.now += sleep_ms;
        test.decide();
    }
    let status = test.cluster.status(test.at());
    assert_eq!((status.nodes.get(&Health::Down), status.brake), (None, None), "{:#?}", test.notices);
    assert_eq!(test.map().generation(), generation, "{:#?}", test.notices);
}

#[test]
fn r5_a_shard_that_kills_its_owners_is_set_aside_after_three() {
    let mut test = cluster_of(20, keyspace(60), 60);
    test.poison = Some(ShardId(7));
    test.run(30_000);
    assert_eq!(test.workers.len(), 17, "{:#?}", test.notices);
    assert_eq!(told(&test, "shard s7 of keyspace users is set aside"), 1, "{:#?}", test.notices);
    assert_eq!(told(&test, "of keyspace users is set aside"), 1, "no innocent shard is");
    assert_eq!(test.served().len(), 59);
    assert!(test.unplaced().iter().any(|line| line.contains("s7 is set aside")), "{:?}", test.unplaced());
    assert!(test.cluster.brake().is_none());

    test.poison = None;
    command(&mut test, Command::ReleaseShard { keyspace: name(), shard: ShardId(7) });
    test.run(2_000);
    assert_eq!(test.served().len(), 60);
    test.run(settings().poison_window_ms + 10_000);
    assert!(test.disk.keyspaces[0].0.rules.is_empty(), "who survived clears the strikes of everybody");
}

#[test]
fn r5_in_a_small_cluster_the_shard_is_set_aside_before_the_brake_goes_on() {
    let mut test = cluster_of(10, keyspace(30), 30);
    test.poison = Some(ShardId(7));
    test.run(30_000);
    assert_eq!(test.workers.len(), 7, "{:#?}", test.notices);
    assert_eq!(told(&test, "shard s7 of keyspace users is set aside"), 1, "{:#?}", test.notices);
    assert!(test.cluster.brake().is_none());
    assert_eq!(test.served().len(), 29, "whatever else they held is served again");
    let standing: Vec<_> = test.workers.keys().cloned().collect();
    test.kill(standing[0].as_str());
    test.run(4_000);
    assert!(test.cluster.brake().is_none(), "the three count as one");
    test.kill(standing[1].as_str());
    test.run(4_000);
    assert!(test.cluster.brake().is_some(), "two more are too many");
}

/// Three nodes die, each soon after it took a shard from the last; but a process has died without that shard, too.
#[test]
fn r4_a_shard_that_is_not_to_blame_explains_no_losses() {
    for others_die in [false, true] {
        let mut test = cluster_of(7, keyspace(14), 14);
        test.run(settings().poison_window_ms);
        let shard = ShardId(1);
        let owner = |test: &TestCluster| test.map().shard(shard).unwrap().leader().unwrap().node.clone();
        for death in 1..=4 {
            let dying = owner(&test);
            if death == 4 && others_die {
                let other = test.workers.keys().find(|id| **id != dying).unwrap().clone();
                let spec = test.cluster.nodes()[&other].record.spec.clone();
                test.kill(other.as_str());
                test.join_as(spec);
            }
            // The first took it on too long ago to be suspected of anything, and comes back.
            let spec = test.cluster.nodes()[&dying].record.spec.clone();
            test.kill(dying.as_str());
            test.run(settings().dead_after_ms + 2_000);
            if death == 1 {
                test.join_as(spec);
                test.run(1_000);
            }
        }
        let (held_back, braked) = (told(&test, "is held back"), test.cluster.brake().is_some());
        assert_eq!((held_back > 0, braked), (!others_die, others_die), "{:#?}", test.notices);
    }
}

/// Of four nodes three die, each soon after it took some shards from the last: which of them it was nobody knows.
#[test]
fn l5_of_shards_that_went_the_same_way_none_is_blamed() {
    let mut test = cluster_of(4, keyspace(120), 120);
    for dying in ["n00", "n01", "n02"] {
        test.kill(dying);
        test.run(settings().dead_after_ms + 2_000);
    }
    assert_eq!(told(&test, "is held back"), 0, "{:#?}", test.notices);
    assert!(test.cluster.brake().is_some_and(|why| why.contains("3 of 4 nodes were lost")));
}

#[test]
fn l5_a_shard_that_nobody_can_load_is_set_aside_and_holds_up_nobody() {
    let mut test = TestCluster::new(keyspace(9), slots(9));
    test.fails.extend(["a", "b", "c"].map(|at| (ShardId(4), node(at))));
    ["a", "b", "c"].into_iter().for_each(|name| test.join(name));
    test.run(10_000);
    assert_eq!(test.served().len(), 8);
    let why = "s4 of keyspace users is set aside and placed nowhere new: it could not be loaded on 3 nodes, the last said: no such file";
    assert_eq!(told(&test, why), 1, "{:#?}", test.notices);
    let plans = test.plans().len();
    test.run(20_000);
    assert_eq!(test.plans().len(), plans, "it is not tried on and on");

    test.fails.clear();
    command(&mut test, Command::ReleaseShard { keyspace: name(), shard: ShardId(4) });
    test.run(20 * BEAT_MS);
    assert_eq!(test.served().len(), 9, "{:#?}", test.notices);
}

/// Of two shards on four nodes the second cannot be loaded. Its fourth load waits behind the first shard, whose load
/// hangs there, until the three others have failed and the shard is set aside.
#[test]
fn r5_a_change_that_waited_while_its_shard_was_set_aside_is_dropped() {
    let throttle = Throttle { loads_per_node: 1, ..Throttle::default() };
    let mut test = TestCluster::new(Keyspace { replicas: 4, throttle, ..keyspace(2) }, slots(2));
    let nodes = ["a", "b", "c", "d"];
    test.fails.extend(nodes.map(|at| (ShardId(2), node(at))));
    test.hangs.insert(node("d"), Hang::Load);
    nodes.into_iter().for_each(|name| test.join(name));
    let last = |test: &TestCluster| {
        let changes = test.plans().into_iter().flat_map(|plan| plan.changes.clone());
        let onto_d = |change: &Change| matches!(change, Change::Add { shard: ShardId(2), node: to } if *to == node("d"));
        changes.filter(|planned| onto_d(&planned.change)).map(|p| p.progress).collect::<Vec<_>>()
    };
    let is_aside = |test: &TestCluster| told(test, "s2 of keyspace users is set aside") == 1;
    while last(&test).is_empty() {
        assert!(test.now < 10_000, "{:#?}", test.notices);
        test.run(BEAT_MS);
    }
    assert_eq!(last(&test), [Progress::Waiting], "{:#?}", test.notices);
    for _ in 0..40 {
        if !is_aside(&test) {
            assert!(last(&test).contains(&Progress::Waiting), "{:?}", last(&test));
            test.run(BEAT_MS);
        }
    }
    assert!(is_aside(&test), "{:#?}", test.notices);
    test.hangs.clear();
    test.run(3_000);
    let progress = last(&test);
    let is_dropped = |p: &Progress| matches!(p, Progress::Dropped(why) if why.contains("s2 is set aside"));
    assert!(progress.iter().all(is_dropped) && !progress.is_empty(), "{progress:?}");
    assert!(test.map().shard(ShardId(2)).is_some_and(|shard| shard.replicas.is_empty()));
}

#[test]
fn k18_deaths_that_follow_the_moves_stop_them_before_a_fifth_of_the_nodes_is_lost() {
    let mut test = cluster_of(40, keyspace(120), 120);
    test.run(settings().poison_window_ms);
    let mut dead = 0;
    test.kill("n07");
    while test.cluster.brake().is_none() {
        dead += 1;
        assert!(dead < 8, "a fifth of the nodes is lost: {:#?}", test.notices);
        let before = test.counts();
        test.run(4_000);
        let took_on = |(name, count): &(String, usize)| before.get(name).is_some_and(|had| had < count);
        if let Some((name, _)) = test.counts().into_iter().find(took_on) {
            test.kill(&name);
        }
    }
    let why = test.cluster.brake().unwrap();
    assert!(why.contains("failures follow the moves: 4 nodes"), "{why}");
    assert_eq!(told(&test, "partage brake release"), 1);
    let generation = test.map().generation();
    test.run(20_000);
    assert_eq!(test.map().generation(), generation, "the last good map goes on serving");

    command(&mut test, Command::ReleaseBrake);
    test.run(4_000);
    assert!(test.is_at_rest(1) && test.cluster.brake().is_none(), "{:#?}", test.notices);
}

#[test]
fn k18_loads_that_fail_on_one_node_after_another_stop_the_keyspace_and_a_person_lets_it_go_on() {
    let mut test = cluster_of(8, keyspace(40), 40);
    let nodes: Vec<_> = test.workers.keys().cloned().collect();
    let all = test.map().shards().flat_map(|shard| nodes.iter().map(|node| (shard.id, node.clone())));
    test.fails = all.collect();
    test.kill("n00");
    test.run(8_000);
    let why = test.cluster.brake().unwrap();
    assert!(why.contains("keyspace users: failures follow the moves"), "{why}");
    assert!(test.disk.keyspaces[0].0.brake.is_some() && test.disk.cluster.brake.is_none());
    assert_eq!(told(&test, "the brake of keyspace users is on"), 1, "{:#?}", test.notices);
    let plans = test.plans().len();
    test = test.restart_coordinator();
    test.run(10_000);
    assert!(test.cluster.brake().is_some(), "a restart does not release it");
    assert_eq!(test.plans().len(), plans, "nothing more is planned");

    test.fails.clear();
    command(&mut test, Command::ReleaseBrake);
    test.run(5_000);
    assert!(test.cluster.brake().is_none() && test.disk.keyspaces[0].0.brake.is_none());
    assert_eq!(test.served().len(), 40, "{:#?}", test.notices);
}

/// Nobody has to say that a release that can load again is out.
#[test]
fn k18_the_brake_of_a_keyspace_is_released_when_its_loads_are_not_avoided_any_more() {
    let mut test = cluster_of(8, keyspace(40), 40);
    let nodes: Vec<_> = test.workers.keys().cloned().collect();
    let all = test.map().shards().flat_map(|shard| nodes.iter().map(|node| (shard.id, node.clone())));
    test.fails = all.collect();
    test.kill("n00");
    test.run(8_000);
    assert_eq!(told(&test, "the brake of keyspace users is on"), 1, "{:#?}", test.notices);
    test.run(crate::limits::AVOID_MS + 20_000);
    assert!(told(&test, "the brake of keyspace users is on") == 2, "it is tried again, and still fails");
    test.fails.clear();
    test.run(crate::limits::AVOID_MS + 5_000);
    assert!(test.cluster.brake().is_none() && test.disk.keyspaces[0].0.brake.is_none());
    assert_eq!(test.served().len(), 40, "{:#?}", test.notices);
}

#[test]
fn l4_one_node_on_which_nothing_loads_stops_nobody() {
    let mut test = cluster_of(8, keyspace(40), 40);
    let all = test.map().shards().map(|shard| (shard.id, node("n01")));
    test.fails = all.collect();
    test.kill("n00");
    test.run(10_000);
    assert!(test.cluster.brake().is_none());
    assert_eq!(test.served().len(), 40, "{:#?}", test.notices);
}

#[test]
fn r5_a_process_that_is_restarted_before_it_is_given_up_has_died_all_the_same() {
    let mut test = cluster_of(12, keyspace(36), 36);
    let specs: Vec<_> = test.cluster.nodes().values().map(|node| node.record.spec.clone()).collect();
    test.run(settings().poison_window_ms);
    test.poison = Some(ShardId(7));
    let mut deaths = 0;
    for _ in 0..300 {
        test.run(BEAT_MS);
        let dead: Vec<_> =
            specs.iter().filter(|spec| !test.workers.contains_key(&spec.id)).cloned().collect();
        deaths += dead.len();
        dead.into_iter().for_each(|spec| test.join_as(spec));
    }
    assert_eq!(told(&test, "shard s7 of keyspace users is set aside"), 1, "{:#?}", test.notices);
    assert!(told(&test, "is dead") == 0 && test.cluster.brake().is_none(), "nobody was away for long");
    // The first had it longer than the window when it began to kill.
    assert_eq!(deaths, 4, "{:#?}", test.notices);
    assert_eq!(test.served().len(), 35, "{:#?}", test.notices);
}

#[test]
fn r5_restarts_of_who_took_nothing_on_lately_and_restarts_under_the_brake_are_no_strikes() {
    let mut test = cluster_of(4, keyspace(12), 12);
    let restart = |test: &mut TestCluster| {
        let spec = test.cluster.nodes()[&node("n00")].record.spec.clone();
        test.kill("n00");
        test.join_as(spec);
    };
    test.run(settings().poison_window_ms);
    restart(&mut test);
    assert!(test.disk.keyspaces[0].0.rules.is_empty());
    test.run(5_000);
    assert!(test.is_at_rest(1) && test.counts().contains_key("n00"));
    test.disk.cluster.brake = Some("somebody looks".to_owned());
    test = test.restart_coordinator();
    restart(&mut test);
    assert!(test.disk.keyspaces[0].0.rules.is_empty());
    command(&mut test, Command::ReleaseBrake);
    test.run(5_000);
    restart(&mut test);
    let struck = test.disk.keyspaces[0].0.rules.values().map(|rule| rule.deaths).max();
    assert_eq!(struck, Some(1), "what it had just taken on is suspected");
}

#[test]
fn r5_a_node_alone_that_is_restarted_again_and_again_keeps_its_shards() {
    let mut test = cluster_of(1, keyspace(12), 12);
    let spec = test.cluster.nodes()[&node("n00")].record.spec.clone();
    for _ in 0..5 {
        test.run(3_000);
        test.kill("n00");
        test.join_as(spec.clone());
    }
    test.run(3_000);
    assert_eq!(told(&test, "is set aside"), 0, "{:#?}", test.notices);
    assert_eq!(test.served().len(), 12, "{:#?}", test.notices);
}
