//! Data that no map names: what workers are told of it, and what happens to those that were away (D7).

use super::super::admin::{Command, SplitAt};
use super::super::{Kept, Registration};
use super::town::{Town, keyspace, name, node, settings, slots};
use crate::exchange::{DropReason, Permission, Phase, ReplicaKey, Report, Stored};
use crate::hash::HashFunction;
use crate::id::{ClusterId, Epoch, PlacementId, ShardId, TransactionId};
use crate::key::HashRange;
use crate::keyspace::Keyspace;
use crate::node::NodeSpec;
use crate::sharding::{Bounds, Sharding};
use std::collections::BTreeMap;

fn town_of(nodes: usize, keyspace: Keyspace, shards: u32) -> Town {
    let replicas = keyspace.replicas as usize;
    let mut town = Town::new(keyspace, slots(shards));
    (0..nodes).for_each(|at| town.join(&format!("n{at}")));
    town.run(3_000);
    assert!(town.is_at_rest(replicas), "{:#?}", town.notices);
    town
}

fn stored(shard: u64, placement: u64, epoch: u64) -> Stored {
    let replica = ReplicaKey { keyspace: name(), shard: ShardId(shard), placement: PlacementId(placement) };
    Stored {
        replica,
        bounds: slots(4)[shard as usize - 1].clone(),
        epoch: Epoch(epoch),
        store: 0,
        damaged: false,
    }
}

/// What a node may delete of what it says it has stored, asked as its beats ask.
fn permitted(town: &mut Town, id: &str, stored: Vec<Stored>) -> Vec<Permission> {
    let at = town.at();
    let spec = NodeSpec::new(node(id), format!("{id}:1"));
    town.cluster.register(at, Registration { stored, ..Registration::new(spec) }).unwrap();
    let permissions = town.cluster.permissions(at, &node(id));
    town.decide();
    permissions
}

fn command(town: &mut Town, command: Command) {
    let at = town.at();
    town.cluster.command(at, TransactionId([9; 20]), "mia", command, false).unwrap();
    town.decide();
}

/// Two workers, one replica, both stopped for six seconds: 0 of 40 keys were left, and the brake was off.
#[test]
fn d7_r4_two_workers_that_are_paused_together_go_on_with_all_that_they_had() {
    for count in 1..=3 {
        let mut town = town_of(count, keyspace(8), 8);
        let map = town.map().clone();
        let all: Vec<_> = (0..count).map(|at| node(&format!("n{at}"))).collect();
        town.cut_off.extend(all.clone());
        town.run(6_000);
        assert!(town.cluster.nodes().values().all(|node| !node.record.ended), "{:#?}", town.notices);
        assert!(town.cluster.brake().unwrap().contains("no node answers that could take"));
        // They do not wake in the same instant.
        for id in &all {
            town.cut_off.remove(id);
            town.run(200);
        }
        town.run(3_000);
        assert_eq!((town.map(), town.cluster.brake()), (&map, None), "{:#?}", town.notices);
        assert_eq!(town.served().len(), 8, "without a person");
    }
}

/// One is found dead while the other is silent, but not for so long: neither is given up.
#[test]
fn r4_nodes_that_are_only_silent_so_far_count_with_those_that_are_dying() {
    let mut town = town_of(2, keyspace(8), 8);
    town.cut_off.insert(node("n0"));
    town.run(settings().dead_after_ms - 300);
    town.cut_off.insert(node("n1"));
    town.run(10_000);
    assert!(town.cluster.nodes().values().all(|node| !node.record.ended), "{:#?}", town.notices);
    town.cut_off.clear();
    town.run(3_000);
    assert!(town.cluster.brake().is_none() && town.served().len() == 8, "{:#?}", town.notices);
}

/// While another answers, a dead node's shards are placed anew at once; when it comes back, what it kept is deleted
/// because others serve it.
#[test]
fn d7_what_a_node_kept_while_it_was_away_goes_when_others_serve_it() {
    let mut town = town_of(2, keyspace(4), 4);
    let of_n0 = |shard: &&crate::map::Shard| shard.leader().is_some_and(|r| r.node == node("n0"));
    let old =
        town.map().shards().find(of_n0).map(|s| (s.id, s.leader().unwrap().placement, s.epoch)).unwrap();
    town.cut_off.insert(node("n0"));
    town.run(6_000);
    assert!(town.cluster.nodes()[&node("n0")].record.ended, "n1 answers and can take its shards");
    assert_eq!(town.counts(), BTreeMap::from([("n1".to_owned(), 4)]));
    let kept = stored(old.0.0, old.1.0, old.2.0);
    let permissions = permitted(&mut town, "n0", vec![kept.clone()]);
    let epoch = town.map().shard(old.0).unwrap().epoch;
    let reason = DropReason::Superseded;
    assert_eq!(permissions, [Permission { replica: kept.replica.clone(), reason, epoch }]);
    // A coordinator that knows of an earlier epoch only has been set back: it lets nothing go.
    let later = Stored { epoch: epoch.next(), ..kept };
    assert_eq!(permitted(&mut town, "n0", vec![later]), []);
}

/// Of a shard whose descendants were split and merged again: no map says any more which keys it had.
#[test]
fn d7_what_was_only_loaded_goes_when_all_that_could_have_its_keys_serve() {
    let hashed = Keyspace { sharding: Sharding::HashRange { hash: HashFunction::Xxh3_64 }, ..keyspace(1) };
    let mut town = Town::new(hashed, vec![Bounds::Hashes(HashRange::ALL)]);
    ["n0", "n1"].into_iter().for_each(|id| town.join(id));
    town.run(3_000);
    command(&mut town, Command::SplitShard { keyspace: name(), shard: ShardId(1), at: SplitAt::Middle });
    town.run(5_000);
    command(&mut town, Command::MergeShards { keyspace: name(), left: ShardId(2), right: ShardId(3) });
    town.run(5_000);
    assert_eq!(town.map().shards().map(|shard| shard.id).collect::<Vec<_>>(), [ShardId(4)]);
    let replica = ReplicaKey { keyspace: name(), shard: ShardId(1), placement: PlacementId(1) };
    let permitted = |town: &mut Town, epoch| {
        let (at, id) = (town.at(), node("n0"));
        let report = Report {
            replica: replica.clone(),
            phase: Phase::Kept,
            epoch: Epoch(epoch),
            load: None,
            progress: 0,
            served: None,
        };
        town.cluster.take_kept(at, &id, report);
        town.cluster.permissions(at, &id).into_iter().map(|permission| permission.reason).collect::<Vec<_>>()
    };
    assert_eq!(permitted(&mut town, 0), [DropReason::Superseded]);
    let leader = town.map().shards().next().unwrap().leader().unwrap().node.clone();
    town.cut_off.insert(leader);
    town.run(1_000);
    assert_eq!(permitted(&mut town, 0), [], "nobody is known to serve its keys");
    town.cut_off.clear();
    town.run(1_000);
    assert_eq!(permitted(&mut town, 1), [], "it has served, and its keys are not known");
}

#[test]
fn d7_nothing_is_deleted_that_nobody_serves() {
    let mut town = town_of(2, keyspace(4), 4);
    let shard = town.map().shards().next().unwrap().clone();
    let leader = shard.leader().unwrap().node.clone();
    town.cut_off.insert(leader.clone());
    town.run(1_000);
    // It is not dead yet, but nobody knows that it still serves.
    let copy = stored(shard.id.0, 0, 1);
    assert_eq!(permitted(&mut town, "n9", vec![copy]), []);
    let kept: Vec<&Kept> = town.cluster.kept_on(&node("n9")).map(|(_, kept)| kept).collect();
    assert_eq!(kept.len(), 1);
}

#[test]
fn d7_what_was_deleted_may_go_and_what_was_never_known_is_kept() {
    let mut town = town_of(2, keyspace(4), 4);
    let unknown = |keyspace: &str| {
        let of = stored(1, 1, 1);
        Stored { replica: ReplicaKey { keyspace: keyspace.parse().unwrap(), ..of.replica }, ..of }
    };
    let beyond = stored(1, 900, 1);
    assert_eq!(permitted(&mut town, "n9", vec![unknown("ghosts"), beyond]), []);
    command(&mut town, Command::DeleteKeyspace { keyspace: name() });
    let told = permitted(&mut town, "n9", vec![unknown("users"), unknown("ghosts")]);
    assert_eq!(
        told.iter().map(|p| (&p.replica.keyspace, p.reason)).collect::<Vec<_>>(),
        [(&name(), DropReason::Deleted)]
    );
    assert_eq!(town.disk.cluster.deleted_keyspaces, BTreeMap::from([(name(), ShardId(5))]), "it is durable");
    // A namesake is another keyspace: what is of the first one may still go, what is of neither is kept.
    town.run(3_000);
    let again = Command::CreateKeyspace {
        keyspace: Box::new(keyspace(4)),
        presplit: Default::default(),
        ahead: false,
    };
    command(&mut town, again);
    assert_eq!(town.cluster.keyspaces()[&name()].record.first_shard, ShardId(5));
    assert!(town.disk.cluster.deleted_keyspaces.is_empty());
    let told = permitted(&mut town, "n9", vec![stored(1, 1, 1)]);
    assert_eq!(told.iter().map(|p| p.reason).collect::<Vec<_>>(), [DropReason::Deleted]);
}

#[test]
fn d7_ids_that_a_lost_state_may_have_given_out_are_kept() {
    let mut town = town_of(2, keyspace(4), 4);
    let next = town.map().next_placement().0;
    let known = stored(1, 1, 1);
    assert_eq!(permitted(&mut town, "n9", vec![known.clone()]).len(), 0, "the map names it");
    town.disk = town.disk.clone().after_loss(1_700_000_000_000);
    town = town.restart_coordinator();
    town.run(3_000);
    let lost = stored(1, next + 3, 1);
    assert_eq!(permitted(&mut town, "n9", vec![lost]), []);
}

/// A coordinator that was restarted on an empty data folder is of another cluster.
#[test]
fn d11_an_emptied_coordinator_is_recognised_by_its_cluster_and_takes_no_worker_in() {
    let mut town = town_of(2, keyspace(4), 4);
    town.cluster = town.cluster.clone().identified(ClusterId(1));
    let mut emptied = Town::new(keyspace(4), slots(4));
    emptied.cluster = emptied.cluster.clone().identified(ClusterId(2));
    let of_first =
        Registration { cluster: Some(ClusterId(1)), ..Registration::new(NodeSpec::new(node("n0"), "n0:1")) };
    let at = emptied.at();
    for incarnation in [None, Some(town.cluster.nodes()[&node("n0")].record.incarnation)] {
        let refused = emptied.cluster.register(at, Registration { incarnation, ..of_first.clone() });
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("and this coordinator of cluster 00000000000000000000000000000002"),
            "{refused}"
        );
    }
    assert!(emptied.cluster.nodes().is_empty());
    // One that was restored from a backup of it goes on.
    emptied.cluster = emptied.cluster.clone().identified(ClusterId(1)).identified(ClusterId(3));
    let welcome = emptied.cluster.register(at, of_first).unwrap();
    assert_eq!((welcome.cluster, welcome.continues), (ClusterId(3), vec![ClusterId(2), ClusterId(1)]));
}
