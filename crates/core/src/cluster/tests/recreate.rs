//! A durable shard of which nobody has a copy any more, and which a person gives up (D10).

use super::super::admin::Command;
use super::durable::{cluster_of, durable, force_join, kill, spec, start};
use super::test_cluster::{TestCluster, name, node};
use crate::base::id::{ShardId, TransactionId};
use crate::keyspace::map::Shard;
use crate::keyspace::{Constraint, Keyspace, Ownership};

fn command(test: &mut TestCluster, command: Command) -> Result<Vec<String>, String> {
    let answer = test.cluster.command(test.at(), TransactionId([9; 20]), "mia", command);
    test.decide();
    answer.map(|done| done.warnings).map_err(|error| error.to_string())
}

pub(super) fn recreate(
    test: &mut TestCluster,
    shard: ShardId,
    generation: u64,
) -> Result<Vec<String>, String> {
    command(test, Command::RecreateShard { keyspace: name(), shard, generation })
}

fn generation(test: &TestCluster) -> u64 {
    test.map().generation().sequence
}

/// Three nodes start again, and none has `shard` stored any more.
fn lose(test: &mut TestCluster, shard: ShardId) {
    (0..3).for_each(|at| kill(test, at));
    test.disks.as_mut().unwrap().data.retain(|(_, key), _| key.shard != shard);
    test.run(500);
    (0..3).for_each(|at| start(test, at));
    test.run(10_000);
}

/// A person gives a shard up. Returns the one that takes its place, and what they are told.
fn give_up(test: &mut TestCluster, shard: ShardId) -> (ShardId, Vec<String>) {
    let bounds = test.map().shard(shard).unwrap().bounds.clone();
    test.disks.as_mut().unwrap().give_up_in(&bounds);
    let current = generation(test);
    let warnings = recreate(test, shard, current).unwrap();
    test.run(6_000);
    assert!(test.map().shard(shard).is_none(), "{:#?}", test.notices);
    let new = test.map().shards().find(|shard| shard.bounds == bounds).unwrap().id;
    (new, warnings)
}

#[test]
fn d10_a_shard_whose_copies_are_all_lost_begins_anew_when_a_person_gives_it_up() {
    for ownership in Ownership::ALL.iter().copied() {
        let lost = ShardId(3);
        let mut test = cluster_of(3, Keyspace { ownership, ..durable(8, 2) });
        lose(&mut test, lost);
        assert_eq!(test.served().len(), 7, "it waits, for ever: {:#?}", test.notices);
        let problems = format!("{:?}", test.cluster.status(test.at()).problems);
        assert!(problems.contains("partage shard recreate"), "{problems}");
        let current = generation(&test);
        let refused = recreate(&mut test, lost, current - 1).unwrap_err();
        assert!(refused.contains(&format!("is at {current}")), "{refused}");
        assert_eq!(generation(&test), current, "nothing has changed");

        let others: Vec<_> = test.map().shards().filter(|shard| shard.id != lost).cloned().collect();
        let (new, warnings) = give_up(&mut test, lost);
        assert_eq!(warnings, [format!("everything that was written to shard {lost} is given up")]);
        assert!(test.served().contains(&new) && test.is_at_rest(2), "{:#?}", test.notices);
        assert!(
            others.iter().all(|shard| test.map().shard(shard.id) == Some(shard)),
            "no other one has changed"
        );
        assert_eq!(test.cluster.status(test.at()).shards.waiting, 0);
    }
}

#[test]
fn d10_what_was_said_about_a_shard_holds_for_the_one_that_takes_its_place() {
    let lost = ShardId(3);
    let mut test = cluster_of(3, durable(8, 1));
    let constraint = Constraint { pinned: [node("n1")].into(), ..Constraint::default() };
    let pin = Command::PinShard { keyspace: name(), shard: lost, constraint, ahead: false };
    command(&mut test, pin).unwrap();
    test.run(10_000);
    lose(&mut test, lost);
    let (new, _) = give_up(&mut test, lost);
    assert_eq!(test.map().shard(new).unwrap().leader().unwrap().node, node("n1"), "{:#?}", test.notices);
    let rules = &test.cluster.keyspaces()[&name()].record.rules;
    assert!(rules.contains_key(&new) && !rules.contains_key(&lost), "{rules:?}");
}

/// Its last holder is away, not lost: what was written is given up, and not deleted while it may be the only copy.
#[test]
fn d7_d10_a_copy_that_comes_back_later_is_kept_and_its_shard_is_not() {
    let mut test = cluster_of(3, durable(8, 1));
    let led_at = |at: usize| move |shard: &&Shard| shard.leader().unwrap().node == spec(at).id;
    let lost = test.map().shards().find(led_at(0)).unwrap().id;
    let current = generation(&test);
    let refused = recreate(&mut test, lost, current).unwrap_err();
    assert!(refused.contains("has a replica on n0 that has not ended"), "{refused}");
    // It has been led three times, and what takes its place once.
    for _ in 0..2 {
        kill(&mut test, 0);
        test.run(500);
        start(&mut test, 0);
        test.run(8_000);
    }
    kill(&mut test, 0);
    test.run(20_000);
    let (new, _) = give_up(&mut test, lost);
    assert!(test.served().contains(&new), "{:#?}", test.notices);
    start(&mut test, 0);
    test.run(10_000);
    assert_eq!(test.served().len(), 8, "{:#?}", test.notices);
    let data = &test.disks.as_ref().unwrap().data;
    assert!(data.keys().any(|(on, key)| *on == spec(0).id && key.shard == lost), "it is stored still");
    let current = generation(&test);
    assert!(force_join(&mut test, lost, "n0", current).unwrap_err().contains(&format!("no shard {lost}")));
}

/// A service loads nothing that it cannot read, so a person who chose such a copy would wait for ever.
#[test]
fn d10_a_damaged_copy_cannot_be_chosen_and_its_shard_can_be_given_up() {
    let mut test = cluster_of(3, durable(8, 1));
    let lost = ShardId(3);
    let on = test.map().shard(lost).unwrap().leader().unwrap().node.clone();
    (0..3).for_each(|at| kill(&mut test, at));
    let disks = test.disks.as_mut().unwrap();
    disks.data.iter_mut().for_each(|((_, key), data)| data.damaged = key.shard == lost);
    test.run(500);
    (0..3).for_each(|at| start(&mut test, at));
    test.run(10_000);
    let current = generation(&test);
    let refused = force_join(&mut test, lost, on.as_str(), current).unwrap_err();
    assert!(refused.contains("cannot be read") && refused.contains("partage shard recreate"), "{refused}");
    assert_eq!(generation(&test), current, "nothing has changed");
    let (new, warnings) = give_up(&mut test, lost);
    assert!(warnings[1].contains(on.as_str()), "{warnings:?}");
    assert_eq!(test.served().len(), 8, "{:#?}", test.notices);
    assert!(test.served().contains(&new));
}
