//! A durable cluster whose coordination state is restored from an older backup, while its workers live on (D1, D7, D10).

use super::super::Records;
use super::super::admin::Command;
use super::durable::{REPLACE_AFTER_MS, cluster_of, durable, force_join, is_told, kill, spec, start};
use super::durable_reshard::reshard;
use super::recreate::recreate;
use super::test_cluster::{BEAT_MS, TestCluster, name, node};
use crate::base::id::{ShardId, TransactionId};
use crate::base::name::NodeId;
use crate::keyspace::map::{Shard, Stage};
use crate::limits;
use crate::node::exchange::Phase;

/// The state of `backup` in the place of what the coordinators had.
fn restore(mut test: TestCluster, backup: Records) -> TestCluster {
    test.disk = backup.after_loss(1_700_000_000_000);
    test.disks.as_mut().unwrap().restored = true;
    test = test.restart_coordinator();
    test.run(10_000);
    test
}

/// n0's copies have moved off since, and n0 has deleted them: the state names them as copies, some as leaders.
fn after_a_drain(replicas: u32) -> (TestCluster, Vec<ShardId>) {
    let mut test = cluster_of(3, durable(8, replicas));
    let backup = test.disk.clone();
    let on_n0 = |shard: &&Shard| shard.live().any(|r| r.node == node("n0"));
    let moved = test.map().shards().filter(on_n0).map(|shard| shard.id).collect();
    test.drain("n0");
    test.run(30_000);
    assert_eq!(test.counts().get("n0"), None, "{:#?}", test.notices);
    (restore(test, backup), moved)
}

#[test]
fn d1_what_was_deleted_since_the_backup_counts_for_no_copy() {
    let (test, moved) = after_a_drain(2);
    assert!(!moved.is_empty());
    // Each shard has another copy that was one all along: it leads, and n0 loads from it.
    assert_eq!(test.served().len(), 8, "{:#?}", test.notices);
    assert!(test.is_at_rest(2), "{:#?}", test.map());
}

#[test]
fn d10_the_only_copy_is_one_that_the_backup_does_not_know() {
    let (mut test, moved) = after_a_drain(1);
    let served = test.served();
    assert!(moved.iter().all(|shard| !served.contains(shard)), "{served:?}");
    assert_eq!(served.len() + moved.len(), 8);
    let status = test.cluster.status(test.at());
    let told = format!("{:?}", status.problems);
    assert!(told.contains("force-join"), "{told}");
    assert!(!is_told(&test, "restart that process"), "{:#?}", test.notices);
    // A node with data that no map names is not empty, whatever its orders say.
    let told = |test: &TestCluster| format!("{:?}", test.cluster.drains(test.at()));
    test.drain("n1");
    test.drain("n2");
    test.run(5_000);
    assert!(told(&test).contains("which no map names"), "{}", told(&test));
    assert!(!told(&test).contains("SafeToStop"), "{}", told(&test));
    ["n1", "n2"].into_iter().for_each(|name| test.undrain(name));
    test.run(5_000);
    // Nor may a process go that would take the only copy with it.
    let has_later = |name: &str| test.cluster.shards_that_wait_for(&node(name)) > 0;
    let last = ["n1", "n2"].into_iter().find(|name| has_later(name)).unwrap();
    test.workers.get_mut(&node(last)).unwrap().leaving = true;
    test.run(30_000);
    assert!(!test.counts().contains_key(last), "others have what moves: {:#?}", test.map());
    assert!(test.workers.contains_key(&node(last)), "{last} has left: {:#?}", test.notices);
    test.workers.get_mut(&node(last)).unwrap().leaving = false;
    test.run(5_000);
    // Both are there for a person to choose, and nothing of them is deleted.
    for shard in moved {
        let now = test.map().generation().sequence;
        let joins = ["n1", "n2"].map(|on| force_join(&mut test, shard, on, now).is_ok());
        assert!(joins.contains(&true), "{shard}");
    }
    test.run(10_000);
    assert_eq!(test.served().len(), 8, "{:#?}", test.notices);
}

/// What explain says a shard waits for.
fn waits_for(test: &TestCluster, shard: ShardId) -> String {
    let keyspace = &test.cluster.keyspaces()[&name()];
    let shard = keyspace.map.shard(shard).unwrap();
    test.cluster.waits(test.at(), keyspace, shard).join("; ")
}

#[test]
fn d1_d10_a_copy_that_others_went_on_without_does_not_lead_after_a_restore() {
    let mut test = cluster_of(3, durable(8, 2));
    let backup = test.disk.clone();
    let on_n0 = |shard: &&Shard| shard.live().any(|r| r.node == node("n0"));
    let had: Vec<ShardId> = test.map().shards().filter(on_n0).map(|shard| shard.id).collect();
    assert!(!had.is_empty());
    kill(&mut test, 0);
    test.run(20_000);
    assert_eq!(test.served().len(), 8, "others lead: {:#?}", test.notices);
    (1..3).for_each(|at| kill(&mut test, at));
    let mut test = restore(test, backup);
    start(&mut test, 0);
    test.run(10_000);
    // Its data is older than what the others have, and the restored map calls it a copy.
    assert!(test.served().is_empty(), "{:?}", test.served());
    assert!(
        waits_for(&test, had[0]).contains("others may have a later copy"),
        "{}",
        waits_for(&test, had[0])
    );
    start(&mut test, 1);
    start(&mut test, 2);
    test.run(10_000);
    assert_eq!(test.served().len(), 8, "{:#?}", test.notices);
    assert!(test.is_at_rest(2), "n0 has caught up: {:#?}", test.map());
}

/// Copies of one epoch have the same writes, and one of them led when the backup was taken: all begin in one step, and that one
/// leads again, as no other can have more.
#[test]
fn d1_of_copies_of_one_epoch_the_one_that_led_leads_after_a_restore() {
    let mut test = cluster_of(3, durable(8, 2));
    let led = |test: &TestCluster| -> Vec<_> {
        test.map().shards().filter_map(|shard| Some((shard.id, shard.leader()?.node.clone()))).collect()
    };
    // The order of the replicas is not what decides.
    let last = |shard: &Shard| (shard.id, shard.replicas.last().unwrap().node.clone());
    let lasts: Vec<_> = test.map().shards().map(last).collect();
    for (shard, to) in &lasts {
        let command = Command::TransferLeader { keyspace: name(), shard: *shard, to: to.clone() };
        test.cluster.command(test.at(), TransactionId([9; 20]), "mia", command).unwrap();
    }
    test.run(10_000);
    let (backup, before) = (test.disk.clone(), led(&test));
    assert_eq!(before, lasts);
    (0..3).for_each(|at| kill(&mut test, at));
    let mut test = restore(test, backup);
    (0..3).for_each(|at| start(&mut test, at));
    for _ in 0..50 {
        test.run(BEAT_MS);
        let is_alone = |shard: &&Shard| shard.live().count() == 1;
        assert_eq!(test.map().shards().filter(is_alone).count(), 0, "{:#?}", test.map());
    }
    assert_eq!(led(&test), before, "{:#?}", test.notices);
    assert_eq!(test.served().len(), 8, "{:#?}", test.notices);
}

/// The copies that the backup names are an old one and none at all; a later one is where it does not look.
#[test]
fn d1_d10_a_later_copy_that_the_backup_does_not_name_is_for_a_person_to_choose() {
    let mut test = cluster_of(4, durable(8, 2));
    let backup = test.disk.clone();
    let named = |shard: &Shard, of: &str| shard.live().any(|r| r.node == node(of));
    let other = |shard: &Shard| shard.live().map(|r| r.node.to_string()).find(|of| of != "n0");
    let drained = test.map().shards().find(|shard| named(shard, "n0")).and_then(other).unwrap();
    kill(&mut test, 0);
    test.run(2 * REPLACE_AFTER_MS);
    test.drain(&drained);
    test.run(60_000);
    assert_eq!(test.counts().get(drained.as_str()), None, "{:#?}", test.notices);
    (1..4).for_each(|at| kill(&mut test, at));
    let mut test = restore(test, backup);
    (0..4).for_each(|at| start(&mut test, at));
    test.run(10_000);
    let both = |shard: &&Shard| named(shard, "n0") && named(shard, &drained);
    let waiting: Vec<ShardId> = test.map().shards().filter(both).map(|shard| shard.id).collect();
    assert!(!waiting.is_empty(), "{:#?}", test.map());
    assert_eq!(test.served().len() + waiting.len(), 8, "{:#?}", test.notices);
    for shard in waiting {
        let told = waits_for(&test, shard);
        assert!(told.contains("n0 has") && told.contains("older than"), "{told}");
        let now = test.map().generation().sequence;
        let join = Command::ForceJoinShard { keyspace: name(), shard, node: node("n0"), generation: now };
        let answer = test.cluster.clone().dry_run(test.at(), TransactionId([9; 20]), "mia", join);
        let warned = answer.unwrap().warnings.join("; ");
        assert!(warned.contains("is a later copy"), "{warned}");
        let joined = ["n1", "n2", "n3"].map(|on| force_join(&mut test, shard, on, now).is_ok());
        assert!(joined.contains(&true), "{shard}");
        test.run(500);
    }
    test.run(10_000);
    assert_eq!(test.served().len(), 8, "{:#?}", test.notices);
}

/// The backup was taken while shards were merged, and the old ones' replicas were dropped since.
#[test]
fn l1_d10_a_new_shard_whose_parents_were_dropped_since_the_backup_is_for_a_person() {
    let mut waited = 0;
    for step in 0..12 {
        let mut test = cluster_of(3, durable(4, 2));
        reshard(&mut test, 2).unwrap();
        test.run(step * BEAT_MS);
        let backup = test.disk.clone();
        let closes = |shard: &Shard| matches!(shard.stage(), Stage::Closing(_));
        if !test.map().shards().any(closes) {
            continue;
        }
        let new = test.map().shards().find(|shard| shard.is_serving() && !shard.parents().is_empty());
        let Some(new) = new.cloned() else { continue };
        test.run(30_000);
        // The new shard's processes begin anew; one that had a part of the old ones lives, and has dropped it.
        let at = |of: &NodeId| (0..3).find(|at| *of == spec(*at).id).unwrap();
        let nodes: Vec<usize> = new.live().map(|r| at(&r.node)).collect();
        nodes.iter().for_each(|at| kill(&mut test, *at));
        test.disk = backup.after_loss(1_700_000_000_000);
        test.disks.as_mut().unwrap().restored = true;
        let mut test = test.restart_coordinator();
        nodes.iter().for_each(|at| start(&mut test, *at));
        test.run(10_000);
        let served = test.served();
        let waits = test.map().shards().filter(|shard| shard.is_serving() && !served.contains(&shard.id));
        for shard in waits.cloned().collect::<Vec<_>>() {
            waited += 1;
            let told = waits_for(&test, shard.id);
            assert!(told.contains("which it comes from"), "{told}");
            let (now, on) = (test.map().generation().sequence, shard.leader().unwrap().node.clone());
            let refused = recreate(&mut test, shard.id, now).unwrap_err();
            assert!(refused.contains("has the data"), "{refused}");
            force_join(&mut test, shard.id, on.as_str(), now).unwrap();
        }
        test.run(20_000);
        assert_eq!(test.served().len(), test.map().shards().filter(|s| s.is_serving()).count());
        assert!(test.is_at_rest(2), "step {step}: {:#?}", test.map());
    }
    assert!(waited > 0, "no backup was taken at such a moment");
}

/// Shards were split since the backup, and processes that live through the restore have the parts: the map knows none of
/// them, and not that they are later than what the node that was away has of the whole.
#[test]
fn d1_d10_parts_that_live_processes_have_are_later_copies_of_the_whole() {
    let mut test = cluster_of(3, durable(4, 2));
    let backup = test.disk.clone();
    let on_n0 = |shard: &&Shard| shard.live().any(|r| r.node == node("n0"));
    let had: Vec<ShardId> = test.map().shards().filter(on_n0).map(|shard| shard.id).collect();
    reshard(&mut test, 8).unwrap();
    let closes = |shard: &Shard| matches!(shard.stage(), Stage::Closing(_));
    while !test.map().shards().any(closes) {
        test.run(BEAT_MS);
    }
    // n0 keeps what it had of the old shards: it is away before it is told to delete that.
    kill(&mut test, 0);
    test.run(30_000);
    assert_eq!(test.served().len(), 8, "others lead: {:#?}", test.notices);
    // Nor does it have parts of its own, whose epochs would say the same.
    test.disks.as_mut().unwrap().data.retain(|(on, key), _| *on != node("n0") || had.contains(&key.shard));
    let mut test = restore(test, backup);
    start(&mut test, 0);
    test.run(10_000);
    let served = test.served();
    for shard in had {
        assert!(!served.contains(&shard), "{shard}: {:#?}", test.map().shard(shard));
        let told = waits_for(&test, shard);
        assert!(told.contains("n0 has") && told.contains("older than"), "{told}");
    }
}

/// The backup was taken while shards were being split. The parts have served since; a node that was cut off before has the
/// whole, and its process lives through the restore. So it is with the next coordinator, which knows nothing of this one's
/// comparison.
#[test]
fn d1_d10_parts_that_were_forming_in_the_backup_are_later_copies_of_the_whole() {
    let mut test = cluster_of(3, durable(4, 2));
    reshard(&mut test, 8).unwrap();
    let forms = |shard: &Shard| matches!(shard.stage(), Stage::Forming(_));
    while !test.map().shards().any(forms) {
        test.run(BEAT_MS);
    }
    let backup = test.disk.clone();
    let on_n0 = |shard: &&Shard| shard.is_serving() && shard.live().any(|r| r.node == node("n0"));
    let had: Vec<ShardId> = test.map().shards().filter(on_n0).map(|shard| shard.id).collect();
    assert!(!had.is_empty());
    test.cut_off.insert(node("n0"));
    test.run(40_000);
    let served = test.served();
    let serve = |shard: &Shard| shard.is_serving() && served.contains(&shard.id);
    assert!(test.map().len() == 8 && test.map().shards().all(serve), "others lead: {:#?}", test.notices);
    let parts = test.disks.as_ref().unwrap().data.len();
    test.cut_off.clear();
    let mut test = restore(test, backup);
    for _ in 0..2 {
        let served = test.served();
        for shard in &had {
            assert!(!served.contains(shard), "{shard}: {:#?}", test.map().shard(*shard));
        }
        let told: Vec<String> = had.iter().map(|shard| waits_for(&test, *shard)).collect();
        assert!(told.iter().any(|told| told.contains("older than")), "{told:#?}");
        test = test.restart_coordinator();
        test.run(10_000);
    }
    assert!(test.disks.as_ref().unwrap().data.len() >= parts, "what was a part is kept");
}

/// The leader's process was cut off, and lives through the restore: it says that it has everything, and others have gone on
/// without it, whose processes begin anew.
#[test]
fn d1_a_leader_that_was_cut_off_when_others_went_on_does_not_lead_after_a_restore() {
    let mut test = cluster_of(3, durable(1, 2));
    let backup = test.disk.clone();
    let leader = test.map().shards().next().and_then(Shard::leader).unwrap().node.clone();
    test.cut_off.insert(leader.clone());
    test.run(20_000);
    assert_eq!(test.served().len(), 1, "another leads: {:#?}", test.notices);
    let others: Vec<usize> = (0..3).filter(|at| spec(*at).id != leader).collect();
    others.iter().for_each(|at| kill(&mut test, *at));
    test.cut_off.clear();
    test.disk = backup.after_loss(1_700_000_000_000);
    test.disks.as_mut().unwrap().restored = true;
    let mut test = test.restart_coordinator();
    test.run(5 * BEAT_MS);
    others.iter().for_each(|at| start(&mut test, *at));
    test.run(20_000);
    assert_eq!(test.served().len(), 1, "{:#?}", test.notices);
    assert!(test.is_at_rest(2), "{leader} has caught up: {:#?}", test.map());
}

/// The leader went on alone, and its copy has failed, such as that of a disk that died, when the state is restored. Its process
/// lives and has served under the latest epoch: what is older does not lead without a person, whether the restored map names
/// the failed copy or not.
#[test]
fn d1_a_leader_that_has_failed_tells_after_a_restore_under_which_epoch_it_has_served() {
    for is_named in [true, false] {
        let mut test = cluster_of(3, durable(1, 2));
        let before = test.disk.clone();
        let shard = test.map().shards().next().unwrap().clone();
        let nodes = |test: &TestCluster| -> Vec<NodeId> {
            test.map().shards().next().unwrap().live().map(|r| r.node.clone()).collect()
        };
        let led = shard.leader().unwrap().node.clone();
        let followed = nodes(&test).into_iter().find(|node| *node != led).unwrap();
        let third = (0..3).map(|at| spec(at).id).find(|id| *id != led && *id != followed).unwrap();
        // Where the map of the backup does not name it: another leads, and this one alone later.
        let (old, last) = if is_named { (&followed, &led) } else { (&followed, &third) };
        test.cut_off.insert(old.clone());
        test.run(2 * REPLACE_AFTER_MS + 20_000);
        assert!(nodes(&test).contains(last), "{:#?}", test.map());
        for other in (0..3).filter(|at| spec(*at).id != *old && spec(*at).id != *last) {
            kill(&mut test, other);
            test.run(20_000);
            test.disks.as_mut().unwrap().data.retain(|(on, _), _| *on != spec(other).id);
        }
        assert_eq!(test.served().len(), 1, "{last} leads: {:#?}", test.notices);
        test.cut_off.clear();
        test.fails.insert((shard.id, last.clone()));
        for (_, phase) in test.workers.get_mut(last).unwrap().holds.values_mut() {
            *phase = Phase::failed(1, "the disk has died".to_owned());
        }
        test.disk = before.after_loss(1_700_000_000_000);
        test.disks.as_mut().unwrap().restored = true;
        let mut test = test.restart_coordinator();
        // All are heard at once: nobody waits for the others.
        let ended: Vec<usize> = (0..3).filter(|at| !test.workers.contains_key(&spec(*at).id)).collect();
        ended.into_iter().for_each(|at| start(&mut test, at));
        test.run(30_000);
        assert!(test.served().is_empty(), "{is_named}: {:#?}\n{:#?}", test.map(), test.notices);
        let told = waits_for(&test, shard.id);
        assert!(told.contains("older than"), "{told}");
    }
}

/// The same, and those that went on without it do not come back before they are declared dead: what it has may be old.
#[test]
fn d1_d10_a_copy_waits_for_those_that_the_backup_names_and_a_person_may_choose_it() {
    let restored = || {
        let mut test = cluster_of(3, durable(1, 2));
        let backup = test.disk.clone();
        let leader = test.map().shards().next().and_then(Shard::leader).unwrap().node.clone();
        test.cut_off.insert(leader.clone());
        test.run(20_000);
        assert_eq!(test.served().len(), 1, "another leads: {:#?}", test.notices);
        let others: Vec<usize> = (0..3).filter(|at| spec(*at).id != leader).collect();
        others.iter().for_each(|at| kill(&mut test, *at));
        test.cut_off.clear();
        let test = restore(test, backup);
        let shard = test.map().shards().next().unwrap();
        assert!(test.served().is_empty(), "{:#?}", test.map());
        let told = waits_for(&test, shard.id);
        assert!(told.contains("it waits for n"), "{told}");
        let status = test.cluster.status(test.at());
        assert!(format!("{:?}", status.problems).contains("1 shard waits for n"), "{:?}", status.problems);
        assert_eq!((status.shards.waiting, status.shards.led), (1, 0));
        (shard.id, leader, others, test)
    };
    let (_, leader, others, mut test) = restored();
    others.iter().for_each(|at| start(&mut test, *at));
    test.run(20_000);
    assert_eq!(test.served().len(), 1, "{:#?}", test.notices);
    assert!(test.is_at_rest(2), "{leader} has caught up: {:#?}", test.map());

    let (shard, leader, others, mut test) = restored();
    // To forget the node that is awaited would be to go on without it, unsaid.
    let told = waits_for(&test, shard);
    let awaited =
        others.iter().map(|at| spec(*at).id).find(|id| told.contains(&format!("waits for {id}"))).unwrap();
    let (at, forget) = (test.at(), Command::RemoveNode { node: awaited });
    let refused = test.cluster.command(at, TransactionId([8; 20]), "mia", forget);
    assert!(refused.is_err(), "{refused:?}");
    test.disks.as_mut().unwrap().give_up(shard);
    let now = test.map().generation().sequence;
    let warnings = force_join(&mut test, shard, leader.as_str(), now).unwrap();
    assert!(format!("{warnings:?}").contains("may be a later copy"), "{warnings:?}");
    test.run(10_000);
    assert_eq!(test.served().len(), 1, "{:#?}", test.notices);
}

/// A person knows that others have a later copy, and goes on with an earlier one: the comparison does not overrule them, whether
/// a process holds what they chose, or a disk.
#[test]
fn d10_what_a_person_has_chosen_is_not_overtaken_by_a_later_copy_that_they_were_told_of() {
    for lives in [true, false] {
        let mut test = cluster_of(3, durable(1, 2));
        let backup = test.disk.clone();
        let shard = test.map().shards().next().unwrap().clone();
        let leader = shard.leader().unwrap().node.clone();
        let at = |id: &NodeId| (0..3).find(|at| spec(*at).id == *id).unwrap();
        let third = (0..3).find(|at| shard.live().all(|r| r.node != spec(*at).id)).unwrap();
        let other = shard.live().map(|r| at(&r.node)).find(|other| *other != at(&leader)).unwrap();
        if lives {
            test.cut_off.insert(leader.clone());
        } else {
            kill(&mut test, at(&leader));
        }
        test.run(2 * REPLACE_AFTER_MS);
        assert_eq!(test.served().len(), 1, "another leads: {:#?}", test.notices);
        kill(&mut test, other);
        kill(&mut test, third);
        test.cut_off.clear();
        let mut test = restore(test, backup);
        if !lives {
            start(&mut test, at(&leader));
        }
        // It has what was written since, and the backup does not name it.
        start(&mut test, third);
        test.run(10_000);
        assert!(test.served().is_empty(), "{:#?}", test.map());
        if test.cluster.brake().is_some() {
            let at = test.at();
            test.cluster.command(at, TransactionId([8; 20]), "mia", Command::ReleaseBrake).unwrap();
            test.run(5_000);
        }
        test.disks.as_mut().unwrap().give_up(shard.id);
        let now = test.map().generation().sequence;
        let join = Command::ForceJoinShard {
            keyspace: name(),
            shard: shard.id,
            node: leader.clone(),
            generation: now,
        };
        let answer = test.cluster.clone().dry_run(test.at(), TransactionId([9; 20]), "mia", join);
        let warned = answer.unwrap().warnings.join("; ");
        assert!(warned.contains("is a later copy"), "{lives}: {warned}");
        force_join(&mut test, shard.id, leader.as_str(), now).unwrap();
        test.run(10_000);
        assert_eq!(test.served().len(), 1, "{lives}: {:#?} {:#?}", test.notices, test.map());
        let led_by = test.map().shards().next().unwrap().leader().unwrap().node.clone();
        assert_eq!(led_by, leader, "{lives}");
        // It is a copy that serves, whatever was found before: nothing may take its place.
        let now = test.map().generation().sequence;
        let refused = recreate(&mut test, shard.id, now).unwrap_err();
        assert!(refused.contains("has not ended"), "{lives}: {refused}");
    }
}

/// A process that lives and has dropped the data is no copy to go on with.
#[test]
fn d10_what_a_live_process_has_dropped_cannot_be_chosen() {
    let (mut test, moved) = after_a_drain(1);
    let now = test.map().generation().sequence;
    let refused = force_join(&mut test, moved[0], "n0", now).unwrap_err();
    assert!(refused.contains("node n0 has stored nothing") && refused.contains("choose n"), "{refused}");
    assert_eq!(test.map().generation().sequence, now, "nothing has changed");
}

/// A copy that lives was overtaken; the one that was to lead has lost its disk, and a third, which the backup does not know, led
/// last and is not heard for a while. However long that is: unless it is declared dead, nobody leads without it (seed 41949).
#[test]
fn d1_d10_copies_that_live_wait_for_nodes_that_were_not_heard_since_a_restore() {
    let restored = || {
        let mut test = cluster_of(3, durable(1, 2));
        let backup = test.disk.clone();
        let shard = test.map().shards().next().unwrap().clone();
        let at = |id: &NodeId| (0..3).find(|at| spec(*at).id == *id).unwrap();
        let led = shard.leader().unwrap().node.clone();
        let followed = shard.live().map(|r| r.node.clone()).find(|node| *node != led).unwrap();
        let third = (0..3).map(|at| spec(at).id).find(|id| *id != led && *id != followed).unwrap();
        test.cut_off.insert(followed.clone());
        test.run(2 * REPLACE_AFTER_MS);
        assert!(test.map().shards().all(|shard| shard.live().any(|r| r.node == third)), "{:#?}", test.map());
        kill(&mut test, at(&led));
        test.run(20_000);
        test.cut_off = [third.clone()].into();
        test.disk = backup.after_loss(1_700_000_000_000);
        test.disk.cluster.brake = Some("a test".into());
        let disks = test.disks.as_mut().unwrap();
        disks.restored = true;
        disks.data.retain(|(on, _), _| *on != led);
        let mut test = test.restart_coordinator();
        // Without that the brake is let go: no node is missing.
        test.cluster.guard.losses.add(
            node("n9"),
            crate::base::time::Millis(test.now),
            crate::plan::brake::Suspects::new(),
        );
        start(&mut test, at(&led));
        (shard.id, followed, third, test)
    };
    for beats in [2, 10, 30, 100] {
        let (shard, _, third, mut test) = restored();
        test.run(beats * BEAT_MS);
        assert!(!test.cluster.nodes()[&third].record.ended, "the brake holds: {:#?}", test.notices);
        let told = waits_for(&test, shard);
        assert!(told.contains(&format!("{third} may have a later copy, not heard since")), "{told}");
        let status = test.cluster.status(test.at());
        assert!(format!("{:?}", status.problems).contains(&format!("1 shard waits for {third}")));
        test.cut_off.clear();
        test.run(20_000);
        assert!(test.served().is_empty(), "after {beats} beats: {:#?}\n{:#?}", test.map(), test.notices);
        let told = waits_for(&test, shard);
        assert!(told.contains("older than"), "{told}");
    }

    // A person may go on with what lives, and is told what that may cost.
    let (shard, followed, third, mut test) = restored();
    test.run(3_000);
    let now = test.map().generation().sequence;
    let join = Command::ForceJoinShard { keyspace: name(), shard, node: followed.clone(), generation: now };
    let answer = test.cluster.clone().dry_run(test.at(), TransactionId([9; 20]), "mia", join);
    let warned = answer.unwrap().warnings.join("; ");
    assert!(warned.contains(third.as_str()) && warned.contains("may be missing"), "{warned}");
    test.disks.as_mut().unwrap().give_up(shard);
    force_join(&mut test, shard, followed.as_str(), now).unwrap();
    test.run(5_000);
    assert_eq!(test.served().len(), 1, "{:#?} {:#?}", test.map(), test.notices);
    let at = (0..3).find(|at| spec(*at).id == third).unwrap();
    kill(&mut test, at);
    test.cut_off.clear();
    start(&mut test, at);
    test.run(10_000);
    let led_by = test.map().shards().next().unwrap().leader().unwrap().node.clone();
    assert_eq!((test.served().len(), led_by), (1, followed), "{:#?}", test.notices);
}

/// n0 was dead when the backup was taken, and the map does not name it. It came back, led alone, and everything ended; n2 lost
/// its disk. However long that is, the copies that the map names wait for it, unless a person removes it (seed 4103).
#[test]
fn d1_d10_copies_wait_for_a_dead_node_that_may_have_led_since_the_backup() {
    let restored = || {
        let mut test = cluster_of(3, durable(8, 2));
        kill(&mut test, 0);
        test.run(2 * REPLACE_AFTER_MS + 20_000);
        let names = |test: &TestCluster, id: &NodeId| {
            test.map().shards().any(|shard| shard.live().any(|r| r.node == *id))
        };
        assert!(!names(&test, &node("n0")), "{:#?}", test.map());
        let backup = test.disk.clone();
        let record = backup.nodes.iter().find(|record| record.spec.id == node("n0")).unwrap();
        assert!(record.ended && record.held, "{record:?}");
        start(&mut test, 0);
        kill(&mut test, 1);
        test.run(2 * REPLACE_AFTER_MS + 20_000);
        assert_eq!(test.map().shards().filter(|shard| shard.live().any(|r| r.node == node("n0"))).count(), 8);
        kill(&mut test, 2);
        test.run(20_000);
        assert_eq!(test.served().len(), 8, "n0 leads alone: {:#?}", test.notices);
        kill(&mut test, 0);
        test.disks.as_mut().unwrap().data.retain(|(on, _), _| *on != node("n2"));
        let mut test = restore(test, backup);
        start(&mut test, 1);
        start(&mut test, 2);
        test.run(30_000);
        test
    };
    let mut test = restored();
    // Its record is not forgotten by time, and not by another coordinator.
    test.now += limits::DEAD_NODE_MS;
    test.run(60_000);
    test = test.restart_coordinator();
    test.run(20_000);
    assert!(test.served().is_empty(), "{:#?}", test.notices);
    let shard = test.map().shards().next().unwrap().id;
    let told = waits_for(&test, shard);
    assert!(told.contains("n0 may have a later copy, not heard since"), "{told}");
    let status = format!("{:?}", test.cluster.status(test.at()).problems);
    assert!(status.contains("n0"), "{status}");
    start(&mut test, 0);
    test.run(20_000);
    assert!(test.served().is_empty(), "its copies are later: {:#?}", test.notices);
    let told = waits_for(&test, shard);
    assert!(told.contains("older than"), "{told}");

    // It ends again: that it was heard is known to this coordinator alone.
    kill(&mut test, 0);
    test.run(20_000);
    let remove = Command::RemoveNode { node: node("n0") };
    let warned = |test: &mut TestCluster| {
        let answer = test.cluster.clone().dry_run(test.at(), TransactionId([9; 20]), "mia", remove.clone());
        answer.unwrap().warnings.join("; ")
    };
    assert!(warned(&mut test).contains("8 shards wait for it"), "{}", warned(&mut test));
    test.now += limits::DEAD_NODE_MS;
    test.run(60_000);
    test = test.restart_coordinator();
    test.run(20_000);
    assert!(test.served().is_empty(), "{:#?}", test.notices);

    // It does not come back, and a person says so.
    let mut test = restored();
    let shards: Vec<ShardId> = test.map().shards().map(|shard| shard.id).collect();
    let disks = test.disks.as_mut().unwrap();
    shards.iter().for_each(|shard| disks.give_up(*shard));
    assert!(warned(&mut test).contains("8 shards wait for it"), "{}", warned(&mut test));
    test.cluster.command(test.at(), TransactionId([9; 20]), "mia", remove.clone()).unwrap();
    test.run(20_000);
    assert_eq!(test.served().len(), 8, "{:#?}", test.notices);
}
