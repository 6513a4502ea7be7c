//! Splits and merges of durable shards that everything dies in the middle of (D1, D10, O8).
//!
//! A part of a split is `Live` from the switch on, and lacks what was acknowledged while it prepared: that is with its
//! parents. So the tests end processes at every step, let them come back in several orders, and look (in `disks.rs`) whether
//! anything that was acknowledged is missing where it is led.

use super::super::admin::{Command, KeyspaceChanges};
use super::durable::{REPLACE_AFTER_MS, durable, force_join, kill, start, town_of};
use super::town::{BEAT_MS, Hang, Town, name, settings};
use crate::id::{ShardId, TransactionId};
use crate::keyspace::{Keyspace, Ownership};
use crate::map::{Shard, Stage};

/// Slots to begin with.
const SLOTS: u32 = 4;

/// Beats after which a split or merge of all of them is over, on three nodes.
const STEPS: u64 = 12;

pub(super) fn reshard(town: &mut Town, to: u32) -> Result<(), String> {
    let changes = Box::new(KeyspaceChanges { shards: Some(to), ..KeyspaceChanges::default() });
    let command = Command::UpdateKeyspace { keyspace: name(), changes, ahead: false };
    let answer = town.cluster.command(town.at(), TransactionId([7; 20]), "mia", command, false);
    town.decide();
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

fn fall(mut town: Town, fall: Fall) -> Town {
    match fall {
        Fall::All | Fall::AllAndCoordinator | Fall::OneByOne(_) => (0..3).for_each(|at| kill(&mut town, at)),
        Fall::One(at) | Fall::OneForEver(at) => kill(&mut town, at),
        Fall::Coordinator => {}
    }
    if let Fall::AllAndCoordinator | Fall::Coordinator = fall {
        town = town.restart_coordinator();
    }
    town.run(500);
    match fall {
        Fall::All | Fall::AllAndCoordinator => (0..3).for_each(|at| start(&mut town, at)),
        Fall::OneByOne(first) => (first..first + 3).for_each(|at| {
            start(&mut town, at % 3);
            town.run(5_000);
        }),
        Fall::One(at) => {
            town.run(20_000);
            start(&mut town, at);
        }
        Fall::Coordinator => {}
        Fall::OneForEver(gone) => {
            town.run(5_000);
            let rest = || (0..3).filter(move |at| *at != gone);
            rest().for_each(|at| kill(&mut town, at));
            town.run(500);
            rest().for_each(|at| start(&mut town, at));
        }
    }
    town
}

fn at_every_step(to: u32, replicas: u32, ownership: Ownership, falls: Fall) {
    let mut whole = 0;
    for step in 0..STEPS {
        let mut town = town_of(3, Keyspace { ownership, ..durable(SLOTS, replicas) });
        reshard(&mut town, to).unwrap();
        town.run(step * BEAT_MS);
        town = fall(town, falls);
        town.run(15_000);
        let what = format!("{to} {replicas} {ownership:?} {falls:?} at step {step}");
        let serving = town.map().shards().filter(|shard| shard.is_serving()).count();
        assert_eq!(town.served().len(), serving, "{what}: {:#?} {:#?}", town.notices, town.map());
        let replicas = if let Fall::OneForEver(_) = falls { replicas.min(2) } else { replicas };
        let end = town.now + 3 * REPLACE_AFTER_MS;
        while !town.is_at_rest(replicas as usize) {
            assert!(town.now < end, "{what}: {:#?} {:#?}", town.notices, town.map());
            town.run(5_000);
        }
        assert!(!town.notices.iter().any(|notice| notice.contains("is set aside and")), "{what}");
        whole += usize::from(town.map().len() == to as usize);
        // What was given up is done when it is asked for again.
        if town.map().len() != to as usize {
            reshard(&mut town, to).unwrap();
            let end = town.now + 3 * REPLACE_AFTER_MS;
            while town.map().len() != to as usize {
                assert!(town.now < end, "{what}: {:#?}", town.notices);
                town.run(5_000);
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
}

/// The last writes before the switch were on a disk that is lost: only a person may go on without them.
#[test]
fn d10_parts_wait_for_the_last_writes_of_their_parent_until_a_person_gives_them_up() {
    let mut town = town_of(3, durable(SLOTS, 1));
    reshard(&mut town, 8).unwrap();
    let closes = |town: &Town| {
        let closing = town.map().shards().filter(|shard| matches!(shard.stage(), Stage::Closing(_)));
        closing.map(|shard| shard.id).collect::<Vec<ShardId>>()
    };
    while closes(&town).is_empty() {
        town.run(BEAT_MS);
    }
    let parents = closes(&town);
    (0..3).for_each(|at| kill(&mut town, at));
    town.disks.as_mut().unwrap().data.retain(|(_, key), _| !parents.contains(&key.shard));
    (0..3).for_each(|at| start(&mut town, at));
    town.run(30_000);
    let comes_from = |town: &Town, id: &ShardId| {
        town.map().shard(*id).unwrap().parents().iter().any(|parent| parents.contains(parent))
    };
    let serving: Vec<ShardId> = town.map().shards().filter(|s| s.is_serving()).map(|s| s.id).collect();
    let (wait, rest): (Vec<_>, Vec<_>) = serving.into_iter().partition(|id| comes_from(&town, id));
    assert!(!wait.is_empty());
    assert_eq!(town.served(), rest.into_iter().collect(), "{:#?}", town.notices);
    let status = town.cluster.status(town.at());
    assert_eq!(status.shards.waiting, wait.len());
    let may_begin = |id: &ShardId| {
        let leader = town.map().shard(*id).unwrap().leader().unwrap();
        let orders = town.cluster.orders_since(&leader.node, 0, None).unwrap();
        orders.changed.iter().any(|order| order.replica.placement == leader.placement && order.granted)
    };
    assert!(!wait.iter().any(may_begin), "they would fail to serve, again and again");
    for id in &wait {
        town.disks.as_mut().unwrap().give_up(*id);
        let node = town.map().shard(*id).unwrap().replicas[0].node.to_string();
        let generation = town.map().generation().sequence;
        match force_join(&mut town, *id, &node, generation) {
            Ok(warnings) => assert!(warnings.iter().any(|w| w.contains("may be missing")), "{warnings:#?}"),
            // The other part of the same parent was chosen: nothing keeps this one from serving.
            Err(refused) => assert!(refused.contains("has not ended"), "{refused}"),
        }
    }
    town.run(10_000);
    assert_eq!(town.served().len(), town.map().len(), "{:#?} {:#?}", town.notices, town.map());
}

/// The followers of a part wait for its leader, which fetches the last writes first. One that never begins is no leader.
#[test]
fn l1_d1_a_part_whose_leader_never_begins_is_led_by_another_replica() {
    for (ownership, replicas) in [
        (Ownership::Exclusive, 2),
        (Ownership::Exclusive, 3),
        (Ownership::Eventual, 2),
        (Ownership::Eventual, 3),
    ] {
        let mut town = town_of(3, Keyspace { ownership, ..durable(SLOTS, replicas) });
        reshard(&mut town, 8).unwrap();
        let part = |town: &Town| {
            let mut parts =
                town.map().shards().filter(|shard| shard.is_serving() && !shard.parents().is_empty());
            parts.find_map(|part| part.leader().map(|leader| leader.node.clone()))
        };
        while part(&town).is_none() {
            town.run(BEAT_MS);
        }
        town.hangs.insert(part(&town).unwrap(), Hang::Serve);
        town.run(3 * settings().handover_ms + 2 * settings().lease_ms + 8_000);
        let what = format!("{ownership} {replicas}");
        let serving = town.map().shards().filter(|shard| shard.is_serving()).count();
        assert_eq!((serving, town.served().len()), (8, 8), "{what}: {:#?} {:#?}", town.notices, town.map());
    }
}

/// Seen in the simulator (seed 2136 with --nobody --stuck --durable): the lead went to and fro between two that could not, and
/// never to the third.
#[test]
fn l1_d1_a_part_of_which_two_replicas_never_begin_is_led_by_the_third() {
    for ownership in [Ownership::Exclusive, Ownership::Eventual] {
        let mut town = town_of(3, Keyspace { ownership, ..durable(SLOTS, 3) });
        reshard(&mut town, 8).unwrap();
        let is_part = |shard: &&Shard| shard.is_serving() && !shard.parents().is_empty();
        while town.map().shards().find(is_part).is_none() {
            town.run(BEAT_MS);
        }
        let part = town.map().shards().find(is_part).unwrap().clone();
        let last = part.replicas.iter().max_by_key(|replica| replica.placement).unwrap().node.clone();
        let others = part.replicas.iter().map(|replica| replica.node.clone()).filter(|node| *node != last);
        town.hangs.extend(others.map(|node| (node, Hang::Serve)));
        town.run(5 * (settings().handover_ms + 2 * settings().lease_ms));
        let leader = town.map().shard(part.id).unwrap().leader().map(|leader| leader.node.clone());
        assert_eq!(leader, Some(last), "{ownership}: {:#?} {:#?}", town.notices, town.map().shard(part.id));
        assert!(town.served().contains(&part.id), "{ownership}: {:#?}", town.notices);
    }
}

/// Seen before: the coordinator sent the new shard's leader the same orders with each decision, so it never knew that the
/// leader had taken them in, and let no further replica load.
#[test]
fn l1_a_part_gets_another_replica_while_its_parent_never_lets_go() {
    let mut town = town_of(3, Keyspace { ownership: Ownership::Eventual, ..durable(SLOTS, 2) });
    reshard(&mut town, 8).unwrap();
    let parts = |town: &Town| {
        let parts = town.map().shards().filter(|shard| shard.is_serving() && !shard.parents().is_empty());
        parts.cloned().collect::<Vec<_>>()
    };
    while parts(&town).is_empty() {
        town.run(BEAT_MS);
    }
    // What hangs is none of the new shards' business: each of them is served, and their parents stay.
    let part = parts(&town).remove(0);
    town.clinging_shards.extend(part.parents());
    town.run(1_000);
    assert!(town.served().contains(&part.id), "{:#?}", town.notices);
    let command =
        Command::SetShardReplicas { keyspace: name(), shard: part.id, replicas: Some(3), ahead: false };
    town.cluster.command(town.at(), TransactionId([8; 20]), "mia", command, false).unwrap();
    town.run(settings().handover_ms - 2_000);
    let is_there = |shard: &ShardId| town.map().shard(*shard).is_some();
    assert!(part.parents().iter().all(is_there), "they have not been given up yet");
    let live = town.map().shard(part.id).unwrap().live().count();
    assert_eq!(live, 3, "{:#?} {:#?}", town.notices, town.map().shard(part.id));
}
