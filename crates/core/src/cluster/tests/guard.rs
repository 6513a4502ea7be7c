//! When too much dies, and when one shard kills: what stops, what goes on, how a person lets it go on.

use super::super::ShardRule;
use super::super::admin::Command;
use super::town::{BEAT_MS, Hang, Town, keyspace, name, node, settings, slots};
use crate::id::{ShardId, TransactionId};
use crate::keyspace::{Keyspace, Throttle};
use crate::node::Health;
use crate::plan::{Change, Progress};

fn town_of(nodes: usize, keyspace: Keyspace, shards: u32) -> Town {
    let replicas = keyspace.replicas as usize;
    let mut town = Town::new(keyspace, slots(shards));
    (0..nodes).for_each(|at| town.join(&format!("n{at:02}")));
    town.run(3_000);
    assert!(town.is_at_rest(replicas), "{:#?}", town.notices);
    town
}

fn command(town: &mut Town, command: Command) {
    let at = town.at();
    town.cluster.command(at, TransactionId([9; 20]), "mia", command, false).unwrap();
    town.decide();
}

#[test]
fn b7_who_is_given_up_with_the_brake_is_buried_by_the_decisions_after_that() {
    let mut town = town_of(8, keyspace(40), 40);
    for name in ["n01", "n02", "n03", "n04", "n05"] {
        town.kill(name);
    }
    town.run(6_000);
    assert!(town.cluster.brake().is_some(), "{:#?}", town.notices);
    let (at, before, few) = (town.at(), town.cluster.work_done(), told(&town, "nothing is planned until"));
    town.cluster.command(at, TransactionId([9; 20]), "mia", Command::ReleaseBrake, false).unwrap();
    assert_eq!(town.cluster.work_done(), before, "the command itself looks at no shard");
    assert!(told(&town, "is dead") == 0 && town.cluster.brake().is_none());
    town.decide();
    assert_eq!(told(&town, "is dead"), 5, "{:#?}", town.notices);
    town.run(8_000);
    assert!(town.is_at_rest(1) && town.cluster.brake().is_none(), "{:#?}", town.notices);
    assert_eq!(told(&town, "the brake is on"), 1, "it is not put on again for the same nodes");
    assert_eq!(told(&town, "nothing is planned until"), few, "{:#?}", town.notices);
}

#[test]
fn b9_strikes_that_another_coordinator_stored_end_when_the_shard_lives_through_the_window() {
    let mut town = town_of(3, keyspace(6), 6);
    let struck = ShardRule { deaths: 2, ..ShardRule::default() };
    town.disk.keyspaces[0].0.rules.insert(ShardId(4), struck);
    town = town.restart_coordinator();
    let rules = |town: &Town| town.cluster.keyspaces().values().next().unwrap().record.rules.len();
    town.run(settings().poison_window_ms - 1_000);
    assert_eq!(rules(&town), 1, "not before the window is over");
    town.run(2 * settings().rebalance_ms);
    assert_eq!((rules(&town), town.disk.keyspaces[0].0.rules.len()), (0, 0));
}

fn told(town: &Town, text: &str) -> usize {
    town.notices.iter().filter(|notice| notice.contains(text)).count()
}

#[test]
fn r4_two_of_ten_are_replaced_and_a_third_within_the_window_puts_the_brake_on() {
    let mut town = town_of(10, keyspace(40), 40);
    town.kill("n00");
    town.kill("n01");
    town.run(4_000);
    assert!(town.is_at_rest(1) && town.cluster.brake().is_none());
    town.kill("n02");
    let generation = town.map().generation();
    town.run(20_000);
    assert!(town.cluster.brake().unwrap().contains("3 of 10 nodes"), "{:?}", town.cluster.brake());
    assert_eq!(town.map().generation(), generation, "nothing moves, not even repairs");
    assert_eq!(told(&town, "partage brake release"), 1);
    assert!(town.disk.cluster.brake.is_some(), "it is durable");

    command(&mut town, Command::ReleaseBrake);
    town.run(3_000);
    assert!(town.is_at_rest(1) && !town.counts().contains_key("n02"), "{:#?}", town.notices);
    assert!(town.cluster.brake().is_none() && town.disk.cluster.brake.is_none());
}

#[test]
fn r4_nodes_that_are_heard_again_under_the_brake_go_on_as_if_nothing_had_been() {
    let mut town = town_of(10, keyspace(40), 40);
    let map = town.map().clone();
    town.cut_off.extend(["n00", "n01", "n02", "n03"].map(node));
    town.run(10_000);
    assert!(town.cluster.brake().is_some());
    town = town.restart_coordinator();
    town.run(10_000);
    assert!(town.cluster.brake().is_some(), "a restart does not release it");
    town.cut_off.remove(&node("n00"));
    town.run(1_000);
    assert!(town.cluster.brake().is_some(), "three are still silent");
    town.cut_off.clear();
    town.run(3_000);
    assert!(town.cluster.brake().is_none() && town.disk.cluster.brake.is_none(), "nothing was decided");
    town.run(10_000);
    assert_eq!(town.map(), &map);
    assert_eq!(town.served().len(), 40);
}

#[test]
fn under_the_brake_followers_still_take_the_lead_of_silent_leaders() {
    let mut town = town_of(6, Keyspace { replicas: 2, ..keyspace(30) }, 30);
    ["n00", "n01", "n02"].into_iter().for_each(|name| town.kill(name));
    town.run(10_000);
    assert!(town.cluster.brake().is_some());
    let alive = |r: &crate::map::Replica| town.workers.contains_key(&r.node);
    for shard in town.map().shards() {
        assert_eq!(shard.replicas.len(), 2, "the map keeps who is silent");
        let leader = shard.leader().unwrap();
        assert!(alive(leader) || !shard.replicas.iter().any(alive), "{}", shard.id);
    }
}

#[test]
fn leaves_and_drains_are_no_losses() {
    let mut town = town_of(6, keyspace(30), 30);
    ["n00", "n01", "n02", "n03"]
        .into_iter()
        .for_each(|name| town.workers.get_mut(&node(name)).unwrap().leaving = true);
    town.run(5_000);
    assert_eq!(town.workers.len(), 2, "{:#?}", town.notices);
    assert!(town.cluster.brake().is_none() && town.is_at_rest(1));
}

#[test]
fn planning_waits_while_most_nodes_are_silent_and_goes_on_by_itself() {
    let mut town = town_of(8, keyspace(40), 40);
    town.cut_off.extend(["n00", "n01", "n02", "n03", "n04"].map(node));
    let generation = town.map().generation();
    town.run(1_000);
    assert_eq!(told(&town, "only 3 of 8 nodes answer"), 1, "{:#?}", town.notices);
    town.cut_off.clear();
    town.run(1_000);
    assert_eq!(told(&town, "planning goes on"), 1);
    assert_eq!(town.map().generation(), generation);
    assert!(town.cluster.brake().is_none());
}

#[test]
fn r6_a_coordinator_that_slept_does_not_take_its_own_silence_for_theirs() {
    let mut town = town_of(3, keyspace(12), 12);
    let generation = town.map().generation();
    town.now += 60_000;
    town.decide();
    town.run(2_000);
    assert_eq!(town.map().generation(), generation, "{:#?}", town.notices);
    assert!(town.cluster.brake().is_none());
    town.kill("n01");
    town.run(settings().dead_after_ms + 2_000);
    assert!(town.is_at_rest(1) && town.counts().len() == 2, "who is really dead is still found out");
}

/// The coordinator tells of none of them, and sees a half of each: no beat is heard in all that time.
#[test]
fn r6_short_sleeps_of_a_coordinator_add_up() {
    let mut town = town_of(3, keyspace(12), 12);
    let generation = town.map().generation();
    let sleep_ms = 2 * settings().heartbeat_ms - 1;
    let times = settings().dead_after_ms.div_ceil(sleep_ms) + 4;
    assert!(times * settings().heartbeat_ms < settings().dead_after_ms);
    for _ in 0..times {
        town.now += sleep_ms;
        town.decide();
    }
    let status = town.cluster.status(town.at());
    assert_eq!((status.nodes.get(&Health::Down), status.brake), (None, None), "{:#?}", town.notices);
    assert_eq!(town.map().generation(), generation, "{:#?}", town.notices);
}

#[test]
fn r5_a_shard_that_kills_its_owners_is_set_aside_after_three() {
    let mut town = town_of(20, keyspace(60), 60);
    town.poison = Some(ShardId(7));
    town.run(30_000);
    assert_eq!(town.workers.len(), 17, "{:#?}", town.notices);
    assert_eq!(told(&town, "shard s7 of keyspace users is set aside"), 1, "{:#?}", town.notices);
    assert_eq!(told(&town, "of keyspace users is set aside"), 1, "no innocent shard is");
    assert_eq!(town.served().len(), 59);
    assert!(town.unplaced().iter().any(|line| line.contains("s7 is set aside")), "{:?}", town.unplaced());
    assert!(town.cluster.brake().is_none());

    town.poison = None;
    command(&mut town, Command::ReleaseShard { keyspace: name(), shard: ShardId(7) });
    town.run(2_000);
    assert_eq!(town.served().len(), 60);
    town.run(settings().poison_window_ms + 10_000);
    assert!(town.disk.keyspaces[0].0.rules.is_empty(), "who survived clears the strikes of everybody");
}

#[test]
fn r5_in_a_small_cluster_the_shard_is_set_aside_before_the_brake_goes_on() {
    let mut town = town_of(10, keyspace(30), 30);
    town.poison = Some(ShardId(7));
    town.run(30_000);
    assert_eq!(town.workers.len(), 7, "{:#?}", town.notices);
    assert_eq!(told(&town, "shard s7 of keyspace users is set aside"), 1, "{:#?}", town.notices);
    assert!(town.cluster.brake().is_none());
    assert_eq!(town.served().len(), 29, "whatever else they held is served again");
    let standing: Vec<_> = town.workers.keys().cloned().collect();
    town.kill(standing[0].as_str());
    town.run(4_000);
    assert!(town.cluster.brake().is_none(), "the three count as one");
    town.kill(standing[1].as_str());
    town.run(4_000);
    assert!(town.cluster.brake().is_some(), "two more are too many");
}

/// Three nodes die, each soon after it took a shard from the last; but a process has died without that shard, too.
#[test]
fn r4_a_shard_that_is_not_to_blame_explains_no_losses() {
    for others_die in [false, true] {
        let mut town = town_of(7, keyspace(14), 14);
        town.run(settings().poison_window_ms);
        let shard = ShardId(1);
        let owner = |town: &Town| town.map().shard(shard).unwrap().leader().unwrap().node.clone();
        for death in 1..=4 {
            let dying = owner(&town);
            if death == 4 && others_die {
                let other = town.workers.keys().find(|id| **id != dying).unwrap().clone();
                let spec = town.cluster.nodes()[&other].record.spec.clone();
                town.kill(other.as_str());
                town.join_as(spec);
            }
            // The first took it on too long ago to be suspected of anything, and comes back.
            let spec = town.cluster.nodes()[&dying].record.spec.clone();
            town.kill(dying.as_str());
            town.run(settings().dead_after_ms + 2_000);
            if death == 1 {
                town.join_as(spec);
                town.run(1_000);
            }
        }
        let (held_back, braked) = (told(&town, "is held back"), town.cluster.brake().is_some());
        assert_eq!((held_back > 0, braked), (!others_die, others_die), "{:#?}", town.notices);
    }
}

/// Of four nodes three die, each soon after it took some shards from the last: which of them it was nobody knows.
#[test]
fn l5_of_shards_that_went_the_same_way_none_is_blamed() {
    let mut town = town_of(4, keyspace(120), 120);
    for dying in ["n00", "n01", "n02"] {
        town.kill(dying);
        town.run(settings().dead_after_ms + 2_000);
    }
    assert_eq!(told(&town, "is held back"), 0, "{:#?}", town.notices);
    assert!(town.cluster.brake().is_some_and(|why| why.contains("3 of 4 nodes were lost")));
}

#[test]
fn l5_a_shard_that_nobody_can_load_is_set_aside_and_holds_up_nobody() {
    let mut town = Town::new(keyspace(9), slots(9));
    town.fails.extend(["a", "b", "c"].map(|at| (ShardId(4), node(at))));
    ["a", "b", "c"].into_iter().for_each(|name| town.join(name));
    town.run(10_000);
    assert_eq!(town.served().len(), 8);
    let why = "s4 of keyspace users is set aside and placed nowhere new: it could not be loaded on 3 nodes, the last said: no such file";
    assert_eq!(told(&town, why), 1, "{:#?}", town.notices);
    let plans = town.plans().len();
    town.run(20_000);
    assert_eq!(town.plans().len(), plans, "it is not tried on and on");

    town.fails.clear();
    command(&mut town, Command::ReleaseShard { keyspace: name(), shard: ShardId(4) });
    town.run(20 * BEAT_MS);
    assert_eq!(town.served().len(), 9, "{:#?}", town.notices);
}

/// Of two shards on four nodes the second cannot be loaded. Its fourth load waits behind the first shard, whose load
/// hangs there, until the three others have failed and the shard is set aside.
#[test]
fn r5_a_change_that_waited_while_its_shard_was_set_aside_is_dropped() {
    let throttle = Throttle { loads_per_node: 1, ..Throttle::default() };
    let mut town = Town::new(Keyspace { replicas: 4, throttle, ..keyspace(2) }, slots(2));
    let nodes = ["a", "b", "c", "d"];
    town.fails.extend(nodes.map(|at| (ShardId(2), node(at))));
    town.hangs.insert(node("d"), Hang::Load);
    nodes.into_iter().for_each(|name| town.join(name));
    let last = |town: &Town| {
        let changes = town.plans().into_iter().flat_map(|plan| plan.changes.clone());
        let onto_d = |change: &Change| matches!(change, Change::Add { shard: ShardId(2), node: to } if *to == node("d"));
        changes.filter(|planned| onto_d(&planned.change)).map(|p| p.progress).collect::<Vec<_>>()
    };
    let is_aside = |town: &Town| told(town, "s2 of keyspace users is set aside") == 1;
    while last(&town).is_empty() {
        assert!(town.now < 10_000, "{:#?}", town.notices);
        town.run(BEAT_MS);
    }
    assert_eq!(last(&town), [Progress::Waiting], "{:#?}", town.notices);
    for _ in 0..40 {
        if !is_aside(&town) {
            assert!(last(&town).contains(&Progress::Waiting), "{:?}", last(&town));
            town.run(BEAT_MS);
        }
    }
    assert!(is_aside(&town), "{:#?}", town.notices);
    town.hangs.clear();
    town.run(3_000);
    let progress = last(&town);
    let is_dropped = |p: &Progress| matches!(p, Progress::Dropped(why) if why.contains("s2 is set aside"));
    assert!(progress.iter().all(is_dropped) && !progress.is_empty(), "{progress:?}");
    assert!(town.map().shard(ShardId(2)).is_some_and(|shard| shard.replicas.is_empty()));
}

#[test]
fn k18_deaths_that_follow_the_moves_stop_them_before_a_fifth_of_the_nodes_is_lost() {
    let mut town = town_of(40, keyspace(120), 120);
    town.run(settings().poison_window_ms);
    let mut dead = 0;
    town.kill("n07");
    while town.cluster.brake().is_none() {
        dead += 1;
        assert!(dead < 8, "a fifth of the nodes is lost: {:#?}", town.notices);
        let before = town.counts();
        town.run(4_000);
        let took_on = |(name, count): &(String, usize)| before.get(name).is_some_and(|had| had < count);
        if let Some((name, _)) = town.counts().into_iter().find(took_on) {
            town.kill(&name);
        }
    }
    let why = town.cluster.brake().unwrap();
    assert!(why.contains("failures follow the moves: 4 nodes"), "{why}");
    assert_eq!(told(&town, "partage brake release"), 1);
    let generation = town.map().generation();
    town.run(20_000);
    assert_eq!(town.map().generation(), generation, "the last good map goes on serving");

    command(&mut town, Command::ReleaseBrake);
    town.run(4_000);
    assert!(town.is_at_rest(1) && town.cluster.brake().is_none(), "{:#?}", town.notices);
}

#[test]
fn k18_loads_that_fail_on_one_node_after_another_stop_the_keyspace_and_a_person_lets_it_go_on() {
    let mut town = town_of(8, keyspace(40), 40);
    let nodes: Vec<_> = town.workers.keys().cloned().collect();
    let all = town.map().shards().flat_map(|shard| nodes.iter().map(|node| (shard.id, node.clone())));
    town.fails = all.collect();
    town.kill("n00");
    town.run(8_000);
    let why = town.cluster.brake().unwrap();
    assert!(why.contains("keyspace users: failures follow the moves"), "{why}");
    assert!(town.disk.keyspaces[0].0.brake.is_some() && town.disk.cluster.brake.is_none());
    assert_eq!(told(&town, "the brake of keyspace users is on"), 1, "{:#?}", town.notices);
    let plans = town.plans().len();
    town = town.restart_coordinator();
    town.run(10_000);
    assert!(town.cluster.brake().is_some(), "a restart does not release it");
    assert_eq!(town.plans().len(), plans, "nothing more is planned");

    town.fails.clear();
    command(&mut town, Command::ReleaseBrake);
    town.run(5_000);
    assert!(town.cluster.brake().is_none() && town.disk.keyspaces[0].0.brake.is_none());
    assert_eq!(town.served().len(), 40, "{:#?}", town.notices);
}

/// Nobody has to say that a release that can load again is out.
#[test]
fn k18_the_brake_of_a_keyspace_is_released_when_its_loads_are_not_avoided_any_more() {
    let mut town = town_of(8, keyspace(40), 40);
    let nodes: Vec<_> = town.workers.keys().cloned().collect();
    let all = town.map().shards().flat_map(|shard| nodes.iter().map(|node| (shard.id, node.clone())));
    town.fails = all.collect();
    town.kill("n00");
    town.run(8_000);
    assert_eq!(told(&town, "the brake of keyspace users is on"), 1, "{:#?}", town.notices);
    town.run(crate::limits::AVOID_MS + 20_000);
    assert!(told(&town, "the brake of keyspace users is on") == 2, "it is tried again, and still fails");
    town.fails.clear();
    town.run(crate::limits::AVOID_MS + 5_000);
    assert!(town.cluster.brake().is_none() && town.disk.keyspaces[0].0.brake.is_none());
    assert_eq!(town.served().len(), 40, "{:#?}", town.notices);
}

#[test]
fn l4_one_node_on_which_nothing_loads_stops_nobody() {
    let mut town = town_of(8, keyspace(40), 40);
    let all = town.map().shards().map(|shard| (shard.id, node("n01")));
    town.fails = all.collect();
    town.kill("n00");
    town.run(10_000);
    assert!(town.cluster.brake().is_none());
    assert_eq!(town.served().len(), 40, "{:#?}", town.notices);
}

#[test]
fn r5_a_process_that_is_restarted_before_it_is_given_up_has_died_all_the_same() {
    let mut town = town_of(12, keyspace(36), 36);
    let specs: Vec<_> = town.cluster.nodes().values().map(|node| node.record.spec.clone()).collect();
    town.run(settings().poison_window_ms);
    town.poison = Some(ShardId(7));
    let mut deaths = 0;
    for _ in 0..300 {
        town.run(BEAT_MS);
        let dead: Vec<_> =
            specs.iter().filter(|spec| !town.workers.contains_key(&spec.id)).cloned().collect();
        deaths += dead.len();
        dead.into_iter().for_each(|spec| town.join_as(spec));
    }
    assert_eq!(told(&town, "shard s7 of keyspace users is set aside"), 1, "{:#?}", town.notices);
    assert!(told(&town, "is dead") == 0 && town.cluster.brake().is_none(), "nobody was away for long");
    // The first had it longer than the window when it began to kill.
    assert_eq!(deaths, 4, "{:#?}", town.notices);
    assert_eq!(town.served().len(), 35, "{:#?}", town.notices);
}

#[test]
fn r5_restarts_of_who_took_nothing_on_lately_and_restarts_under_the_brake_are_no_strikes() {
    let mut town = town_of(4, keyspace(12), 12);
    let restart = |town: &mut Town| {
        let spec = town.cluster.nodes()[&node("n00")].record.spec.clone();
        town.kill("n00");
        town.join_as(spec);
    };
    town.run(settings().poison_window_ms);
    restart(&mut town);
    assert!(town.disk.keyspaces[0].0.rules.is_empty());
    town.run(5_000);
    assert!(town.is_at_rest(1) && town.counts().contains_key("n00"));
    town.disk.cluster.brake = Some("somebody looks".to_owned());
    town = town.restart_coordinator();
    restart(&mut town);
    assert!(town.disk.keyspaces[0].0.rules.is_empty());
    command(&mut town, Command::ReleaseBrake);
    town.run(5_000);
    restart(&mut town);
    let struck = town.disk.keyspaces[0].0.rules.values().map(|rule| rule.deaths).max();
    assert_eq!(struck, Some(1), "what it had just taken on is suspected");
}

#[test]
fn r5_a_node_alone_that_is_restarted_again_and_again_keeps_its_shards() {
    let mut town = town_of(1, keyspace(12), 12);
    let spec = town.cluster.nodes()[&node("n00")].record.spec.clone();
    for _ in 0..5 {
        town.run(3_000);
        town.kill("n00");
        town.join_as(spec.clone());
    }
    town.run(3_000);
    assert_eq!(told(&town, "is set aside"), 0, "{:#?}", town.notices);
    assert_eq!(town.served().len(), 12, "{:#?}", town.notices);
}
