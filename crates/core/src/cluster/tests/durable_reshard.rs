//! Splits and merges of durable shards that everything dies in the middle of (D1, D10, O8).
//!
//! A part of a split is `Live` from the switch on, and lacks what was acknowledged while it prepared: that is with its
//! parents. So the tests end processes at every step, let them come back in several orders, and look (in `disks.rs`) whether
//! anything that was acknowledged is missing where it is led.

use super::super::admin::{Command, KeyspaceChanges};
use super::durable::{REPLACE_AFTER_MS, cluster_of, durable, force_join, kill, start};
use super::test_cluster::{BEAT_MS, Hang, TestCluster, name, settings};
use crate::base::id::{ShardId, TransactionId};
use crate::keyspace::map::{Shard, Stage};
use crate::keyspace::{Keyspace, Ownership};

/// Slots to begin with.
const SLOTS: u32 = 4;

/// Beats after which a split or merge of all of them is over, on three nodes.
const STEPS: u64 = 12;

pub(super) fn reshard(test: &mut TestCluster, to: u32) -> Result<(), String> {
    let changes = Box::new(KeyspaceChanges { shards: Some(to), ..KeyspaceChanges::default() });
    let command = Command::UpdateKeyspace { keyspace: name(), changes, ahead: false };
    let answer = test.cluster.command(test.at(), TransactionId([7; 20]), "mia", command);
    test.decide();
    answer.map(|_| ()).map_err(|error| error.to_string())
}

/// Which processes end, and how they come back.
#[derive(Debug, Clone, Copy)]
enum Fall {
    /// All, and all at once.
    All,
    /// All and the coordinator.
    AllAndCoordinator,
    /// All; they come back five seconds apart, this one first.
    OneByOne(usize),
    /// One, for twenty seconds.
    One(usize),
    /// One for ever, and then all.
    OneForEver(usize),
    /// The coordinator alone: the next one has no word of what is under way but the map.
    Coordinator,
}

fn fall(mut test: TestCluster, fall: Fall) -> TestCluster {
    match fall {
        Fall::All | Fall::AllAndCoordinator | Fall::OneByOne(_) => (0..3).for_each(|at| kill(&mut test, at)),
        Fall::One(at) | Fall::OneForEver(at) => kill(&mut test, at),
        Fall::Coordinator => {}
    }
    if let Fall::AllAndCoordinator | Fall::Coordinator = fall {
        test = test.restart_coordinator();
    }
    test.run(500);
    match fall {
        Fall::All | Fall::AllAndCoordinator => (0..3).for_each(|at| start(&mut test, at)),
        Fall::OneByOne(first) => (first..first + 3).for_each(|at| {
            start(&mut test, at % 3);
            test.run(5_000);
        }),
        Fall::One(at) => {
            test.run(20_000);
            start(&mut test, at);
        }
        Fall::Coordinator => {}
        Fall::OneForEver(gone) => {
            test.run(5_000);
            let rest = || (0..3).filter(move |at| *at != gone);
            rest().for_each(|at| kill(&mut test, at));
            test.run(500);
            rest().for_each(|at| start(&mut test, at));
        }
    }
    test
}

fn at_every_step(to: u32, replicas: u32, ownership: Ownership, falls: Fall) {
    let mut whole = 0;
    for step in 0..STEPS {
        let mut test = cluster_of(3, Keyspace { ownership, ..durable(SLOTS, replicas) });
        reshard(&mut test, to).unwrap();
        test.run(step * BEAT_MS);
        test = fall(test, falls);
        test.run(15_000);
        let what = format!("{to} {replicas} {ownership:?} {falls:?} at step {step}");
        let serving = test.map().shards().filter(|shard| shard.is_serving()).count();
        assert_eq!(test.served().len(), serving, "{what}: {:#?} {:#?}", test.notices, test.map());
        let replicas = if let Fall::OneForEver(_) = falls { replicas.min(2) } else { replicas };
        let end = test.now + 3 * REPLACE_AFTER_MS;
        while !test.is_at_rest(replicas as usize) {
            assert!(test.now < end, "{what}: {:#?} {:#?}", test.notices, test.map());
            test.run(5_000);
        }
        assert!(!test.notices.iter().any(|notice| notice.contains("is set aside and")), "{what}");
        whole += usize::from(test.map().len() == to as usize);
        // What was given up is done when it is asked for again.
        if test.map().len() != to as usize {
            reshard(&mut test, to).unwrap();
            let end = test.now + 3 * REPLACE_AFTER_MS;
            while test.map().len() != to as usize {
                assert!(test.now < end, "{what}: {:#?}", test.notices);
                test.run(5_000);
            }
        }
    }
    assert!(whole > 0, "some went through");
}

#[test]
fn d1_d10_everything_dies_at_every_step_of_a_split_or_merge() {
    for (to, replicas) in [(8, 1), (2, 3)] {
        at_every_step(to, replicas, Ownership::Exclusive, Fall::All);
    }
    at_every_step(8, 2, Ownership::Exclusive, Fall::AllAndCoordinator);
    at_every_step(2, 2, Ownership::Eventual, Fall::AllAndCoordinator);
    at_every_step(8, 3, Ownership::Replicated, Fall::AllAndCoordinator);
}

#[test]
fn l1_the_coordinator_is_another_at_every_step_of_a_split_or_merge() {
    for (to, replicas) in [(8, 2), (2, 3)] {
        at_every_step(to, replicas, Ownership::Exclusive, Fall::Coordinator);
    }
}

#[test]
fn d1_d10_everything_dies_in_a_split_or_merge_and_comes_back_one_by_one() {
    for (to, replicas, first) in [(8, 3, 0), (2, 2, 1), (8, 1, 2)] {
        at_every_step(to, replicas, Ownership::Exclusive, Fall::OneByOne(first));
    }
}

#[test]
fn d1_d10_one_node_dies_at_every_step_of_a_split_or_merge() {
    for (to, replicas, at) in [(8, 1, 0), (2, 2, 1)] {
        at_every_step(to, replicas, Ownership::Exclusive, Fall::One(at));
    }
    for (to, replicas, at) in [(8, 2, 0), (2, 2, 1)] {
        at_every_step(to, replicas, Ownership::Exclusive, Fall::OneForEver(at));
    }
    at_every_step(2, 2, Ownership::Replicated, Fall::OneForEver(1));
}

/// The last writes before the switch were on a disk that is lost: only a person may go on without them.
#[test]
fn d10_parts_wait_for_the_last_writes_of_their_parent_until_a_person_gives_them_up() {
    let mut test = cluster_of(3, durable(SLOTS, 1));
    reshard(&mut test, 8).unwrap();
    let closes = |test: &TestCluster| {
        let closing = test.map().shards().filter(|shard| matches!(shard.stage(), Stage::Closing(_)));
        closing.map(|shard| shard.id).collect::<Vec<ShardId>>()
    };
    while closes(&test).is_empty() {
        test.run(BEAT_MS);
    }
    let parents = closes(&test);
    (0..3).for_each(|at| kill(&mut test, at));
    test.disks.as_mut().unwrap().data.retain(|(_, key), _| !parents.contains(&key.shard));
    (0..3).for_each(|at| start(&mut test, at));
    test.run(30_000);
    let comes_from = |test: &TestCluster, id: &ShardId| {
        test.map().shard(*id).unwrap().parents().iter().any(|parent| parents.contains(parent))
    };
    let serving: Vec<ShardId> = test.map().shards().filter(|s| s.is_serving()).map(|s| s.id).collect();
    let (wait, rest): (Vec<_>, Vec<_>) = serving.into_iter().partition(|id| comes_from(&test, id));
    assert!(!wait.is_empty());
    assert_eq!(test.served(), rest.into_iter().collect(), "{:#?}", test.notices);
    let status = test.cluster.status(test.at());
    assert_eq!(status.shards.waiting, wait.len());
    let may_begin = |id: &ShardId| {
        let leader = test.map().shard(*id).unwrap().leader().unwrap();
        let orders = test.cluster.orders_since(&leader.node, 0, None).unwrap();
        orders.changed.iter().any(|order| order.replica.placement == leader.placement && order.granted)
    };
    assert!(!wait.iter().any(may_begin), "they would fail to serve, again and again");
    for id in &wait {
        test.disks.as_mut().unwrap().give_up(*id);
        let node = test.map().shard(*id).unwrap().replicas[0].node.to_string();
        let generation = test.map().generation().sequence;
        match force_join(&mut test, *id, &node, generation) {
            Ok(warnings) => assert!(warnings.iter().any(|w| w.contains("may be missing")), "{warnings:#?}"),
            // The other part of the same parent was chosen: nothing keeps this one from serving.
            Err(refused) => assert!(refused.contains("has not ended"), "{refused}"),
        }
    }
    test.run(10_000);
    assert_eq!(test.served().len(), test.map().len(), "{:#?} {:#?}", test.notices, test.map());
}

/// The followers of a part wait for its leader, which fetches the last writes first. One that never begins is no leader.
#[test]
fn l1_d1_a_part_whose_leader_never_begins_is_led_by_another_replica() {
    for (ownership, replicas) in [
        (Ownership::Exclusive, 2),
        (Ownership::Exclusive, 3),
        (Ownership::Eventual, 2),
        (Ownership::Eventual, 3),
        (Ownership::Replicated, 2),
        (Ownership::Replicated, 3),
    ] {
        let mut test = cluster_of(3, Keyspace { ownership, ..durable(SLOTS, replicas) });
        reshard(&mut test, 8).unwrap();
        let part = |test: &TestCluster| {
            let mut parts =
                test.map().shards().filter(|shard| shard.is_serving() && !shard.parents().is_empty());
            parts.find_map(|part| part.leader().map(|leader| leader.node.clone()))
        };
        while part(&test).is_none() {
            test.run(BEAT_MS);
        }
        test.hangs.insert(part(&test).unwrap(), Hang::Serve);
        test.run(3 * settings().handover_ms + 2 * settings().lease_ms + 8_000);
        let what = format!("{ownership} {replicas}");
        let serving = test.map().shards().filter(|shard| shard.is_serving()).count();
        assert_eq!((serving, test.served().len()), (8, 8), "{what}: {:#?} {:#?}", test.notices, test.map());
    }
}

/// Seen in the simulator (seed 2136 with --nobody --stuck --durable): the lead went to and fro between two that could not, and
/// never to the third.
#[test]
fn l1_d1_a_part_of_which_two_replicas_never_begin_is_led_by_the_third() {
    for ownership in Ownership::ALL.iter().copied() {
        let mut test = cluster_of(3, Keyspace { ownership, ..durable(SLOTS, 3) });
        reshard(&mut test, 8).unwrap();
        let is_part = |shard: &&Shard| shard.is_serving() && !shard.parents().is_empty();
        while test.map().shards().find(is_part).is_none() {
            test.run(BEAT_MS);
        }
        let part = test.map().shards().find(is_part).unwrap().clone();
        let last = part.replicas.iter().max_by_key(|replica| replica.placement).unwrap().node.clone();
        let others = part.replicas.iter().map(|replica| replica.node.clone()).filter(|node| *node != last);
        test.hangs.extend(others.map(|node| (node, Hang::Serve)));
        test.run(5 * (settings().handover_ms + 2 * settings().lease_ms));
        let leader = test.map().shard(part.id).unwrap().leader().map(|leader| leader.node.clone());
        assert_eq!(leader, Some(last), "{ownership}: {:#?} {:#?}", test.notices, test.map().shard(part.id));
        assert!(test.served().contains(&part.id), "{ownership}: {:#?}", test.notices);
    }
}

/// Seen before: the coordinator sent the new shard's leader the same orders with each decision, so it never knew that the
/// leader had taken them in, and let no further replica load.
#[test]
fn l1_a_part_gets_another_replica_while_its_parent_never_lets_go() {
    let mut test = cluster_of(3, Keyspace { ownership: Ownership::Eventual, ..durable(SLOTS, 2) });
    reshard(&mut test, 8).unwrap();
    let parts = |test: &TestCluster| {
        let parts = test.map().shards().filter(|shard| shard.is_serving() && !shard.parents().is_empty());
        parts.cloned().collect::<Vec<_>>()
    };
    while parts(&test).is_empty() {
        test.run(BEAT_MS);
    }
    // What hangs is none of the new shards' business: each of them is served, and their parents stay.
    let part = parts(&test).remove(0);
    test.clinging_shards.extend(part.parents());
    test.run(1_000);
    assert!(test.served().contains(&part.id), "{:#?}", test.notices);
    let command =
        Command::SetShardReplicas { keyspace: name(), shard: part.id, replicas: Some(3), ahead: false };
    test.cluster.command(test.at(), TransactionId([8; 20]), "mia", command).unwrap();
    test.run(settings().handover_ms - 2_000);
    let is_there = |shard: &ShardId| test.map().shard(*shard).is_some();
    assert!(part.parents().iter().all(is_there), "they have not been given up yet");
    let live = test.map().shard(part.id).unwrap().live().count();
    assert_eq!(live, 3, "{:#?} {:#?}", test.notices, test.map().shard(part.id));
}
