//! A durable cluster whose coordination state is restored from an older backup, while its workers live on (D1, D7, D10).

use super::super::Records;
use super::super::admin::Command;
use super::durable::{REPLACE_AFTER_MS, durable, force_join, is_told, kill, spec, start, town_of};
use super::durable_reshard::reshard;
use super::recreate::recreate;
use super::town::{BEAT_MS, Town, name, node};
use crate::exchange::Phase;
use crate::id::{ShardId, TransactionId};
use crate::limits;
use crate::map::{Shard, Stage};
use crate::name::NodeId;

/// The state of `backup` in the place of what the coordinators had.
fn restore(mut town: Town, backup: Records) -> Town {
    town.disk = backup.after_loss(1_700_000_000_000);
    town.disks.as_mut().unwrap().restored = true;
    town = town.restart_coordinator();
    town.run(10_000);
    town
}

/// n0's copies have moved off since, and n0 has deleted them: the state names them as copies, some as leaders.
fn after_a_drain(replicas: u32) -> (Town, Vec<ShardId>) {
    let mut town = town_of(3, durable(8, replicas));
    let backup = town.disk.clone();
    let on_n0 = |shard: &&Shard| shard.live().any(|r| r.node == node("n0"));
    let moved = town.map().shards().filter(on_n0).map(|shard| shard.id).collect();
    town.drain("n0");
    town.run(30_000);
    assert_eq!(town.counts().get("n0"), None, "{:#?}", town.notices);
    (restore(town, backup), moved)
}

#[test]
fn d1_what_was_deleted_since_the_backup_counts_for_no_copy() {
    let (town, moved) = after_a_drain(2);
    assert!(!moved.is_empty());
    // Each shard has another copy that was one all along: it leads, and n0 loads from it.
    assert_eq!(town.served().len(), 8, "{:#?}", town.notices);
    assert!(town.is_at_rest(2), "{:#?}", town.map());
}

#[test]
fn d10_the_only_copy_is_one_that_the_backup_does_not_know() {
    let (mut town, moved) = after_a_drain(1);
    let served = town.served();
    assert!(moved.iter().all(|shard| !served.contains(shard)), "{served:?}");
    assert_eq!(served.len() + moved.len(), 8);
    let status = town.cluster.status(town.at());
    let told = format!("{:?}", status.problems);
    assert!(told.contains("force-join"), "{told}");
    assert!(!is_told(&town, "restart that process"), "{:#?}", town.notices);
    // A node with data that no map names is not empty, whatever its orders say.
    let told = |town: &Town| format!("{:?}", town.cluster.drains(town.at()));
    town.drain("n1");
    town.drain("n2");
    town.run(5_000);
    assert!(told(&town).contains("which no map names"), "{}", told(&town));
    assert!(!told(&town).contains("SafeToStop"), "{}", told(&town));
    ["n1", "n2"].into_iter().for_each(|name| town.undrain(name));
    town.run(5_000);
    // Nor may a process go that would take the only copy with it.
    let has_later = |name: &str| town.cluster.shards_that_wait_for(&node(name)) > 0;
    let last = ["n1", "n2"].into_iter().find(|name| has_later(name)).unwrap();
    town.workers.get_mut(&node(last)).unwrap().leaving = true;
    town.run(30_000);
    assert!(!town.counts().contains_key(last), "others have what moves: {:#?}", town.map());
    assert!(town.workers.contains_key(&node(last)), "{last} has left: {:#?}", town.notices);
    town.workers.get_mut(&node(last)).unwrap().leaving = false;
    town.run(5_000);
    // Both are there for a person to choose, and nothing of them is deleted.
    for shard in moved {
        let now = town.map().generation().sequence;
        let joins = ["n1", "n2"].map(|on| force_join(&mut town, shard, on, now).is_ok());
        assert!(joins.contains(&true), "{shard}");
    }
    town.run(10_000);
    assert_eq!(town.served().len(), 8, "{:#?}", town.notices);
}

/// What explain says a shard waits for.
fn waits_for(town: &Town, shard: ShardId) -> String {
    let keyspace = &town.cluster.keyspaces()[&name()];
    let shard = keyspace.map.shard(shard).unwrap();
    town.cluster.waits(town.at(), keyspace, shard).join("; ")
}

#[test]
fn d1_d10_a_copy_that_others_went_on_without_does_not_lead_after_a_restore() {
    let mut town = town_of(3, durable(8, 2));
    let backup = town.disk.clone();
    let on_n0 = |shard: &&Shard| shard.live().any(|r| r.node == node("n0"));
    let had: Vec<ShardId> = town.map().shards().filter(on_n0).map(|shard| shard.id).collect();
    assert!(!had.is_empty());
    kill(&mut town, 0);
    town.run(20_000);
    assert_eq!(town.served().len(), 8, "others lead: {:#?}", town.notices);
    (1..3).for_each(|at| kill(&mut town, at));
    let mut town = restore(town, backup);
    start(&mut town, 0);
    town.run(10_000);
    // Its data is older than what the others have, and the restored map calls it a copy.
    assert!(town.served().is_empty(), "{:?}", town.served());
    assert!(
        waits_for(&town, had[0]).contains("others may have a later copy"),
        "{}",
        waits_for(&town, had[0])
    );
    start(&mut town, 1);
    start(&mut town, 2);
    town.run(10_000);
    assert_eq!(town.served().len(), 8, "{:#?}", town.notices);
    assert!(town.is_at_rest(2), "n0 has caught up: {:#?}", town.map());
}

/// Copies of one epoch have the same writes, and one of them led when the backup was taken: all begin in one step, and that one
/// leads again, as no other can have more.
#[test]
fn d1_of_copies_of_one_epoch_the_one_that_led_leads_after_a_restore() {
    let mut town = town_of(3, durable(8, 2));
    let led = |town: &Town| -> Vec<_> {
        town.map().shards().filter_map(|shard| Some((shard.id, shard.leader()?.node.clone()))).collect()
    };
    // The order of the replicas is not what decides.
    let last = |shard: &Shard| (shard.id, shard.replicas.last().unwrap().node.clone());
    let lasts: Vec<_> = town.map().shards().map(last).collect();
    for (shard, to) in &lasts {
        let command = Command::TransferLeader { keyspace: name(), shard: *shard, to: to.clone() };
        town.cluster.command(town.at(), TransactionId([9; 20]), "mia", command, false).unwrap();
    }
    town.run(10_000);
    let (backup, before) = (town.disk.clone(), led(&town));
    assert_eq!(before, lasts);
    (0..3).for_each(|at| kill(&mut town, at));
    let mut town = restore(town, backup);
    (0..3).for_each(|at| start(&mut town, at));
    for _ in 0..50 {
        town.run(BEAT_MS);
        let is_alone = |shard: &&Shard| shard.live().count() == 1;
        assert_eq!(town.map().shards().filter(is_alone).count(), 0, "{:#?}", town.map());
    }
    assert_eq!(led(&town), before, "{:#?}", town.notices);
    assert_eq!(town.served().len(), 8, "{:#?}", town.notices);
}

/// The copies that the backup names are an old one and none at all; a later one is where it does not look.
#[test]
fn d1_d10_a_later_copy_that_the_backup_does_not_name_is_for_a_person_to_choose() {
    let mut town = town_of(4, durable(8, 2));
    let backup = town.disk.clone();
    let named = |shard: &Shard, of: &str| shard.live().any(|r| r.node == node(of));
    let other = |shard: &Shard| shard.live().map(|r| r.node.to_string()).find(|of| of != "n0");
    let drained = town.map().shards().find(|shard| named(shard, "n0")).and_then(other).unwrap();
    kill(&mut town, 0);
    town.run(2 * REPLACE_AFTER_MS);
    town.drain(&drained);
    town.run(60_000);
    assert_eq!(town.counts().get(drained.as_str()), None, "{:#?}", town.notices);
    (1..4).for_each(|at| kill(&mut town, at));
    let mut town = restore(town, backup);
    (0..4).for_each(|at| start(&mut town, at));
    town.run(10_000);
    let both = |shard: &&Shard| named(shard, "n0") && named(shard, &drained);
    let waiting: Vec<ShardId> = town.map().shards().filter(both).map(|shard| shard.id).collect();
    assert!(!waiting.is_empty(), "{:#?}", town.map());
    assert_eq!(town.served().len() + waiting.len(), 8, "{:#?}", town.notices);
    for shard in waiting {
        let told = waits_for(&town, shard);
        assert!(told.contains("n0 has") && told.contains("older than"), "{told}");
        let now = town.map().generation().sequence;
        let join = Command::ForceJoinShard { keyspace: name(), shard, node: node("n0"), generation: now };
        let answer = town.cluster.command(town.at(), TransactionId([9; 20]), "mia", join, true);
        let warned = answer.unwrap().warnings.join("; ");
        assert!(warned.contains("is a later copy"), "{warned}");
        let joined = ["n1", "n2", "n3"].map(|on| force_join(&mut town, shard, on, now).is_ok());
        assert!(joined.contains(&true), "{shard}");
        town.run(500);
    }
    town.run(10_000);
    assert_eq!(town.served().len(), 8, "{:#?}", town.notices);
}

/// The backup was taken while shards were merged, and the old ones' replicas were dropped since.
#[test]
fn l1_d10_a_new_shard_whose_parents_were_dropped_since_the_backup_is_for_a_person() {
    let mut waited = 0;
    for step in 0..12 {
        let mut town = town_of(3, durable(4, 2));
        reshard(&mut town, 2).unwrap();
        town.run(step * BEAT_MS);
        let backup = town.disk.clone();
        let closes = |shard: &Shard| matches!(shard.stage(), Stage::Closing(_));
        if !town.map().shards().any(closes) {
            continue;
        }
        let new = town.map().shards().find(|shard| shard.is_serving() && !shard.parents().is_empty());
        let Some(new) = new.cloned() else { continue };
        town.run(30_000);
        // The new shard's processes begin anew; one that had a part of the old ones lives, and has dropped it.
        let at = |of: &NodeId| (0..3).find(|at| *of == spec(*at).id).unwrap();
        let nodes: Vec<usize> = new.live().map(|r| at(&r.node)).collect();
        nodes.iter().for_each(|at| kill(&mut town, *at));
        town.disk = backup.after_loss(1_700_000_000_000);
        town.disks.as_mut().unwrap().restored = true;
        let mut town = town.restart_coordinator();
        nodes.iter().for_each(|at| start(&mut town, *at));
        town.run(10_000);
        let served = town.served();
        let waits = town.map().shards().filter(|shard| shard.is_serving() && !served.contains(&shard.id));
        for shard in waits.cloned().collect::<Vec<_>>() {
            waited += 1;
            let told = waits_for(&town, shard.id);
            assert!(told.contains("which it comes from"), "{told}");
            let (now, on) = (town.map().generation().sequence, shard.leader().unwrap().node.clone());
            let refused = recreate(&mut town, shard.id, now).unwrap_err();
            assert!(refused.contains("has the data"), "{refused}");
            force_join(&mut town, shard.id, on.as_str(), now).unwrap();
        }
        town.run(20_000);
        assert_eq!(town.served().len(), town.map().shards().filter(|s| s.is_serving()).count());
        assert!(town.is_at_rest(2), "step {step}: {:#?}", town.map());
    }
    assert!(waited > 0, "no backup was taken at such a moment");
}

/// Shards were split since the backup, and processes that live through the restore have the parts: the map knows none of
/// them, and not that they are later than what the node that was away has of the whole.
#[test]
fn d1_d10_parts_that_live_processes_have_are_later_copies_of_the_whole() {
    let mut town = town_of(3, durable(4, 2));
    let backup = town.disk.clone();
    let on_n0 = |shard: &&Shard| shard.live().any(|r| r.node == node("n0"));
    let had: Vec<ShardId> = town.map().shards().filter(on_n0).map(|shard| shard.id).collect();
    reshard(&mut town, 8).unwrap();
    let closes = |shard: &Shard| matches!(shard.stage(), Stage::Closing(_));
    while !town.map().shards().any(closes) {
        town.run(BEAT_MS);
    }
    // n0 keeps what it had of the old shards: it is away before it is told to delete that.
    kill(&mut town, 0);
    town.run(30_000);
    assert_eq!(town.served().len(), 8, "others lead: {:#?}", town.notices);
    // Nor does it have parts of its own, whose epochs would say the same.
    town.disks.as_mut().unwrap().data.retain(|(on, key), _| *on != node("n0") || had.contains(&key.shard));
    let mut town = restore(town, backup);
    start(&mut town, 0);
    town.run(10_000);
    let served = town.served();
    for shard in had {
        assert!(!served.contains(&shard), "{shard}: {:#?}", town.map().shard(shard));
        let told = waits_for(&town, shard);
        assert!(told.contains("n0 has") && told.contains("older than"), "{told}");
    }
}

/// The backup was taken while shards were being split. The parts have served since; a node that was cut off before has the
/// whole, and its process lives through the restore. So it is with the next coordinator, which knows nothing of this one's
/// comparison.
#[test]
fn d1_d10_parts_that_were_forming_in_the_backup_are_later_copies_of_the_whole() {
    let mut town = town_of(3, durable(4, 2));
    reshard(&mut town, 8).unwrap();
    let forms = |shard: &Shard| matches!(shard.stage(), Stage::Forming(_));
    while !town.map().shards().any(forms) {
        town.run(BEAT_MS);
    }
    let backup = town.disk.clone();
    let on_n0 = |shard: &&Shard| shard.is_serving() && shard.live().any(|r| r.node == node("n0"));
    let had: Vec<ShardId> = town.map().shards().filter(on_n0).map(|shard| shard.id).collect();
    assert!(!had.is_empty());
    town.cut_off.insert(node("n0"));
    town.run(40_000);
    let served = town.served();
    let serve = |shard: &Shard| shard.is_serving() && served.contains(&shard.id);
    assert!(town.map().len() == 8 && town.map().shards().all(serve), "others lead: {:#?}", town.notices);
    let parts = town.disks.as_ref().unwrap().data.len();
    town.cut_off.clear();
    let mut town = restore(town, backup);
    for _ in 0..2 {
        let served = town.served();
        for shard in &had {
            assert!(!served.contains(shard), "{shard}: {:#?}", town.map().shard(*shard));
        }
        let told: Vec<String> = had.iter().map(|shard| waits_for(&town, *shard)).collect();
        assert!(told.iter().any(|told| told.contains("older than")), "{told:#?}");
        town = town.restart_coordinator();
        town.run(10_000);
    }
    assert!(town.disks.as_ref().unwrap().data.len() >= parts, "what was a part is kept");
}

/// The leader's process was cut off, and lives through the restore: it says that it has everything, and others have gone on
/// without it, whose processes begin anew.
#[test]
fn d1_a_leader_that_was_cut_off_when_others_went_on_does_not_lead_after_a_restore() {
    let mut town = town_of(3, durable(1, 2));
    let backup = town.disk.clone();
    let leader = town.map().shards().next().and_then(Shard::leader).unwrap().node.clone();
    town.cut_off.insert(leader.clone());
    town.run(20_000);
    assert_eq!(town.served().len(), 1, "another leads: {:#?}", town.notices);
    let others: Vec<usize> = (0..3).filter(|at| spec(*at).id != leader).collect();
    others.iter().for_each(|at| kill(&mut town, *at));
    town.cut_off.clear();
    town.disk = backup.after_loss(1_700_000_000_000);
    town.disks.as_mut().unwrap().restored = true;
    let mut town = town.restart_coordinator();
    town.run(5 * BEAT_MS);
    others.iter().for_each(|at| start(&mut town, *at));
    town.run(20_000);
    assert_eq!(town.served().len(), 1, "{:#?}", town.notices);
    assert!(town.is_at_rest(2), "{leader} has caught up: {:#?}", town.map());
}

/// The leader went on alone, and its copy has failed, such as that of a disk that died, when the state is restored. Its process
/// lives and has served under the latest epoch: what is older does not lead without a person, whether the restored map names
/// the failed copy or not.
#[test]
fn d1_a_leader_that_has_failed_tells_after_a_restore_under_which_epoch_it_has_served() {
    for is_named in [true, false] {
        let mut town = town_of(3, durable(1, 2));
        let before = town.disk.clone();
        let shard = town.map().shards().next().unwrap().clone();
        let nodes = |town: &Town| -> Vec<NodeId> {
            town.map().shards().next().unwrap().live().map(|r| r.node.clone()).collect()
        };
        let led = shard.leader().unwrap().node.clone();
        let followed = nodes(&town).into_iter().find(|node| *node != led).unwrap();
        let third = (0..3).map(|at| spec(at).id).find(|id| *id != led && *id != followed).unwrap();
        // Where the map of the backup does not name it: another leads, and this one alone later.
        let (old, last) = if is_named { (&followed, &led) } else { (&followed, &third) };
        town.cut_off.insert(old.clone());
        town.run(2 * REPLACE_AFTER_MS + 20_000);
        assert!(nodes(&town).contains(last), "{:#?}", town.map());
        for other in (0..3).filter(|at| spec(*at).id != *old && spec(*at).id != *last) {
            kill(&mut town, other);
            town.run(20_000);
            town.disks.as_mut().unwrap().data.retain(|(on, _), _| *on != spec(other).id);
        }
        assert_eq!(town.served().len(), 1, "{last} leads: {:#?}", town.notices);
        town.cut_off.clear();
        town.fails.insert((shard.id, last.clone()));
        for (_, phase) in town.workers.get_mut(last).unwrap().holds.values_mut() {
            *phase = Phase::failed(1, "the disk has died".to_owned());
        }
        town.disk = before.after_loss(1_700_000_000_000);
        town.disks.as_mut().unwrap().restored = true;
        let mut town = town.restart_coordinator();
        // All are heard at once: nobody waits for the others.
        let ended: Vec<usize> = (0..3).filter(|at| !town.workers.contains_key(&spec(*at).id)).collect();
        ended.into_iter().for_each(|at| start(&mut town, at));
        town.run(30_000);
        assert!(town.served().is_empty(), "{is_named}: {:#?}\n{:#?}", town.map(), town.notices);
        let told = waits_for(&town, shard.id);
        assert!(told.contains("older than"), "{told}");
    }
}

/// The same, and those that went on without it do not come back before they are declared dead: what it has may be old.
#[test]
fn d1_d10_a_copy_waits_for_those_that_the_backup_names_and_a_person_may_choose_it() {
    let restored = || {
        let mut town = town_of(3, durable(1, 2));
        let backup = town.disk.clone();
        let leader = town.map().shards().next().and_then(Shard::leader).unwrap().node.clone();
        town.cut_off.insert(leader.clone());
        town.run(20_000);
        assert_eq!(town.served().len(), 1, "another leads: {:#?}", town.notices);
        let others: Vec<usize> = (0..3).filter(|at| spec(*at).id != leader).collect();
        others.iter().for_each(|at| kill(&mut town, *at));
        town.cut_off.clear();
        let town = restore(town, backup);
        let shard = town.map().shards().next().unwrap();
        assert!(town.served().is_empty(), "{:#?}", town.map());
        let told = waits_for(&town, shard.id);
        assert!(told.contains("it waits for n"), "{told}");
        let status = town.cluster.status(town.at());
        assert!(format!("{:?}", status.problems).contains("1 shard waits for n"), "{:?}", status.problems);
        assert_eq!((status.shards.waiting, status.shards.led), (1, 0));
        (shard.id, leader, others, town)
    };
    let (_, leader, others, mut town) = restored();
    others.iter().for_each(|at| start(&mut town, *at));
    town.run(20_000);
    assert_eq!(town.served().len(), 1, "{:#?}", town.notices);
    assert!(town.is_at_rest(2), "{leader} has caught up: {:#?}", town.map());

    let (shard, leader, others, mut town) = restored();
    // To forget the node that is awaited would be to go on without it, unsaid.
    let told = waits_for(&town, shard);
    let awaited =
        others.iter().map(|at| spec(*at).id).find(|id| told.contains(&format!("waits for {id}"))).unwrap();
    let (at, forget) = (town.at(), Command::RemoveNode { node: awaited });
    let refused = town.cluster.command(at, TransactionId([8; 20]), "mia", forget, false);
    assert!(refused.is_err(), "{refused:?}");
    town.disks.as_mut().unwrap().give_up(shard);
    let now = town.map().generation().sequence;
    let warnings = force_join(&mut town, shard, leader.as_str(), now).unwrap();
    assert!(format!("{warnings:?}").contains("may be a later copy"), "{warnings:?}");
    town.run(10_000);
    assert_eq!(town.served().len(), 1, "{:#?}", town.notices);
}

/// A person knows that others have a later copy, and goes on with an earlier one: the comparison does not overrule them, whether a
/// process holds what they chose, or a disk.
#[test]
fn d10_what_a_person_has_chosen_is_not_overtaken_by_a_later_copy_that_they_were_told_of() {
    for lives in [true, false] {
        let mut town = town_of(3, durable(1, 2));
        let backup = town.disk.clone();
        let shard = town.map().shards().next().unwrap().clone();
        let leader = shard.leader().unwrap().node.clone();
        let at = |id: &NodeId| (0..3).find(|at| spec(*at).id == *id).unwrap();
        let third = (0..3).find(|at| shard.live().all(|r| r.node != spec(*at).id)).unwrap();
        let other = shard.live().map(|r| at(&r.node)).find(|other| *other != at(&leader)).unwrap();
        if lives {
            town.cut_off.insert(leader.clone());
        } else {
            kill(&mut town, at(&leader));
        }
        town.run(2 * REPLACE_AFTER_MS);
        assert_eq!(town.served().len(), 1, "another leads: {:#?}", town.notices);
        kill(&mut town, other);
        kill(&mut town, third);
        town.cut_off.clear();
        let mut town = restore(town, backup);
        if !lives {
            start(&mut town, at(&leader));
        }
        // It has what was written since, and the backup does not name it.
        start(&mut town, third);
        town.run(10_000);
        assert!(town.served().is_empty(), "{:#?}", town.map());
        if town.cluster.brake().is_some() {
            let at = town.at();
            town.cluster.command(at, TransactionId([8; 20]), "mia", Command::ReleaseBrake, false).unwrap();
            town.run(5_000);
        }
        town.disks.as_mut().unwrap().give_up(shard.id);
        let now = town.map().generation().sequence;
        let join = Command::ForceJoinShard {
            keyspace: name(),
            shard: shard.id,
            node: leader.clone(),
            generation: now,
        };
        let answer = town.cluster.command(town.at(), TransactionId([9; 20]), "mia", join, true);
        let warned = answer.unwrap().warnings.join("; ");
        assert!(warned.contains("is a later copy"), "{lives}: {warned}");
        force_join(&mut town, shard.id, leader.as_str(), now).unwrap();
        town.run(10_000);
        assert_eq!(town.served().len(), 1, "{lives}: {:#?} {:#?}", town.notices, town.map());
        let led_by = town.map().shards().next().unwrap().leader().unwrap().node.clone();
        assert_eq!(led_by, leader, "{lives}");
        // It is a copy that serves, whatever was found before: nothing may take its place.
        let now = town.map().generation().sequence;
        let refused = recreate(&mut town, shard.id, now).unwrap_err();
        assert!(refused.contains("has not ended"), "{lives}: {refused}");
    }
}

/// A process that lives and has dropped the data is no copy to go on with.
#[test]
fn d10_what_a_live_process_has_dropped_cannot_be_chosen() {
    let (mut town, moved) = after_a_drain(1);
    let now = town.map().generation().sequence;
    let refused = force_join(&mut town, moved[0], "n0", now).unwrap_err();
    assert!(refused.contains("node n0 has stored nothing") && refused.contains("choose n"), "{refused}");
    assert_eq!(town.map().generation().sequence, now, "nothing has changed");
}

/// A copy that lives was overtaken; the one that was to lead has lost its disk, and a third, which the backup does not know, led
/// last and is not heard for a while. However long that is: unless it is declared dead, nobody leads without it (seed 41949).
#[test]
fn d1_d10_copies_that_live_wait_for_nodes_that_were_not_heard_since_a_restore() {
    let restored = || {
        let mut town = town_of(3, durable(1, 2));
        let backup = town.disk.clone();
        let shard = town.map().shards().next().unwrap().clone();
        let at = |id: &NodeId| (0..3).find(|at| spec(*at).id == *id).unwrap();
        let led = shard.leader().unwrap().node.clone();
        let followed = shard.live().map(|r| r.node.clone()).find(|node| *node != led).unwrap();
        let third = (0..3).map(|at| spec(at).id).find(|id| *id != led && *id != followed).unwrap();
        town.cut_off.insert(followed.clone());
        town.run(2 * REPLACE_AFTER_MS);
        assert!(town.map().shards().all(|shard| shard.live().any(|r| r.node == third)), "{:#?}", town.map());
        kill(&mut town, at(&led));
        town.run(20_000);
        town.cut_off = [third.clone()].into();
        town.disk = backup.after_loss(1_700_000_000_000);
        town.disk.cluster.brake = Some("a test".into());
        let disks = town.disks.as_mut().unwrap();
        disks.restored = true;
        disks.data.retain(|(on, _), _| *on != led);
        let mut town = town.restart_coordinator();
        // Without that the brake is let go: no node is missing.
        town.cluster.losses.add(node("n9"), crate::time::Millis(town.now), crate::brake::Suspects::new());
        start(&mut town, at(&led));
        (shard.id, followed, third, town)
    };
    for beats in [2, 10, 30, 100] {
        let (shard, _, third, mut town) = restored();
        town.run(beats * BEAT_MS);
        assert!(!town.cluster.nodes()[&third].record.ended, "the brake holds: {:#?}", town.notices);
        let told = waits_for(&town, shard);
        assert!(told.contains(&format!("{third} may have a later copy, not heard since")), "{told}");
        let status = town.cluster.status(town.at());
        assert!(format!("{:?}", status.problems).contains(&format!("1 shard waits for {third}")));
        town.cut_off.clear();
        town.run(20_000);
        assert!(town.served().is_empty(), "after {beats} beats: {:#?}\n{:#?}", town.map(), town.notices);
        let told = waits_for(&town, shard);
        assert!(told.contains("older than"), "{told}");
    }

    // A person may go on with what lives, and is told what that may cost.
    let (shard, followed, third, mut town) = restored();
    town.run(3_000);
    let now = town.map().generation().sequence;
    let join = Command::ForceJoinShard { keyspace: name(), shard, node: followed.clone(), generation: now };
    let answer = town.cluster.command(town.at(), TransactionId([9; 20]), "mia", join, true);
    let warned = answer.unwrap().warnings.join("; ");
    assert!(warned.contains(third.as_str()) && warned.contains("may be missing"), "{warned}");
    town.disks.as_mut().unwrap().give_up(shard);
    force_join(&mut town, shard, followed.as_str(), now).unwrap();
    town.run(5_000);
    assert_eq!(town.served().len(), 1, "{:#?} {:#?}", town.map(), town.notices);
    let at = (0..3).find(|at| spec(*at).id == third).unwrap();
    kill(&mut town, at);
    town.cut_off.clear();
    start(&mut town, at);
    town.run(10_000);
    let led_by = town.map().shards().next().unwrap().leader().unwrap().node.clone();
    assert_eq!((town.served().len(), led_by), (1, followed), "{:#?}", town.notices);
}

/// n0 was dead when the backup was taken, and the map does not name it. It came back, led alone, and everything ended; n2 lost
/// its disk. However long that is, the copies that the map names wait for it, unless a person removes it (seed 4103).
#[test]
fn d1_d10_copies_wait_for_a_dead_node_that_may_have_led_since_the_backup() {
    let restored = || {
        let mut town = town_of(3, durable(8, 2));
        kill(&mut town, 0);
        town.run(2 * REPLACE_AFTER_MS + 20_000);
        let names =
            |town: &Town, id: &NodeId| town.map().shards().any(|shard| shard.live().any(|r| r.node == *id));
        assert!(!names(&town, &node("n0")), "{:#?}", town.map());
        let backup = town.disk.clone();
        let record = backup.nodes.iter().find(|record| record.spec.id == node("n0")).unwrap();
        assert!(record.ended && record.held, "{record:?}");
        start(&mut town, 0);
        kill(&mut town, 1);
        town.run(2 * REPLACE_AFTER_MS + 20_000);
        assert_eq!(town.map().shards().filter(|shard| shard.live().any(|r| r.node == node("n0"))).count(), 8);
        kill(&mut town, 2);
        town.run(20_000);
        assert_eq!(town.served().len(), 8, "n0 leads alone: {:#?}", town.notices);
        kill(&mut town, 0);
        town.disks.as_mut().unwrap().data.retain(|(on, _), _| *on != node("n2"));
        let mut town = restore(town, backup);
        start(&mut town, 1);
        start(&mut town, 2);
        town.run(30_000);
        town
    };
    let mut town = restored();
    // Its record is not forgotten by time, and not by another coordinator.
    town.now += limits::DEAD_NODE_MS;
    town.run(60_000);
    town = town.restart_coordinator();
    town.run(20_000);
    assert!(town.served().is_empty(), "{:#?}", town.notices);
    let shard = town.map().shards().next().unwrap().id;
    let told = waits_for(&town, shard);
    assert!(told.contains("n0 may have a later copy, not heard since"), "{told}");
    let status = format!("{:?}", town.cluster.status(town.at()).problems);
    assert!(status.contains("n0"), "{status}");
    start(&mut town, 0);
    town.run(20_000);
    assert!(town.served().is_empty(), "its copies are later: {:#?}", town.notices);
    let told = waits_for(&town, shard);
    assert!(told.contains("older than"), "{told}");

    // It ends again: that it was heard is known to this coordinator alone.
    kill(&mut town, 0);
    town.run(20_000);
    let remove = Command::RemoveNode { node: node("n0") };
    let warned = |town: &mut Town| {
        let answer = town.cluster.command(town.at(), TransactionId([9; 20]), "mia", remove.clone(), true);
        answer.unwrap().warnings.join("; ")
    };
    assert!(warned(&mut town).contains("8 shards wait for it"), "{}", warned(&mut town));
    town.now += limits::DEAD_NODE_MS;
    town.run(60_000);
    town = town.restart_coordinator();
    town.run(20_000);
    assert!(town.served().is_empty(), "{:#?}", town.notices);

    // It does not come back, and a person says so.
    let mut town = restored();
    let shards: Vec<ShardId> = town.map().shards().map(|shard| shard.id).collect();
    let disks = town.disks.as_mut().unwrap();
    shards.iter().for_each(|shard| disks.give_up(*shard));
    assert!(warned(&mut town).contains("8 shards wait for it"), "{}", warned(&mut town));
    town.cluster.command(town.at(), TransactionId([9; 20]), "mia", remove.clone(), false).unwrap();
    town.run(20_000);
    assert_eq!(town.served().len(), 8, "{:#?}", town.notices);
}
