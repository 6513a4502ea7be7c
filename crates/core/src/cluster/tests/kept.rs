//! Data that no map names: what workers are told of it, and what happens to those that were away (D7).

use super::super::admin::{Command, SplitAt};
use super::super::kept::KeptAnswer;
use super::super::{Cluster, Kept};
use super::test_cluster::{TestCluster, keyspace, name, node, settings, slots};
use crate::base::id::{ClusterId, Epoch, PlacementId, ShardId, TransactionId};
use crate::base::name::NodeId;
use crate::keyspace::Keyspace;
use crate::keyspace::hash::HashFunction;
use crate::keyspace::key::HashRange;
use crate::keyspace::sharding::{Bounds, Sharding};
use crate::node::NodeSpec;
use crate::node::exchange::Registration;
use crate::node::exchange::{DropReason, Permission, Phase, ReplicaKey, Report, Stored};
use std::collections::BTreeMap;

fn cluster_of(nodes: usize, keyspace: Keyspace, shards: u32) -> TestCluster {
    let replicas = keyspace.replicas as usize;
    let mut test = TestCluster::new(keyspace, slots(shards));
    (0..nodes).for_each(|at| test.join(&format!("n{at}")));
    test.run(3_000);
    assert!(test.is_at_rest(replicas), "{:#?}", test.notices);
    test
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
fn permitted(test: &mut TestCluster, id: &str, stored: Vec<Stored>) -> Vec<Permission> {
    let at = test.at();
    let spec = NodeSpec::new(node(id), format!("{id}:1"));
    test.cluster.register(at, Registration { stored, ..Registration::new(spec) }).unwrap();
    let permissions = permissions(test, &node(id));
    test.decide();
    permissions
}

fn permissions(test: &mut TestCluster, id: &NodeId) -> Vec<Permission> {
    let answer = KeptAnswer::find(&test.cluster, test.at(), id);
    let Cluster { members, outbox, .. } = &mut test.cluster;
    answer.map(|answer| answer.apply(id, members, outbox)).unwrap_or_default()
}

fn command(test: &mut TestCluster, command: Command) {
    let at = test.at();
    test.cluster.command(at, TransactionId([9; 20]), "mia", command).unwrap();
    test.decide();
}

/// Two workers, one replica, both stopped for six seconds: 0 of 40 keys were left, and the brake was off.
#[test]
fn d7_r4_two_workers_that_are_paused_together_go_on_with_all_that_they_had() {
    for count in 1..=3 {
        let mut test = cluster_of(count, keyspace(8), 8);
        let map = test.map().clone();
        let all: Vec<_> = (0..count).map(|at| node(&format!("n{at}"))).collect();
        test.cut_off.extend(all.clone());
        test.run(6_000);
        assert!(test.cluster.nodes().values().all(|node| !node.record.ended), "{:#?}", test.notices);
        assert!(test.cluster.brake().unwrap().contains("no node answers that could take"));
        // They do not wake in the same instant.
        for id in &all {
            test.cut_off.remove(id);
            test.run(200);
        }
        test.run(3_000);
        assert_eq!((test.map(), test.cluster.brake()), (&map, None), "{:#?}", test.notices);
        assert_eq!(test.served().len(), 8, "without a person");
    }
}

/// One is found dead while the other is silent, but not for so long: neither is given up.
#[test]
fn r4_nodes_that_are_only_silent_so_far_count_with_those_that_are_dying() {
    let mut test = cluster_of(2, keyspace(8), 8);
    test.cut_off.insert(node("n0"));
    test.run(settings().dead_after_ms - 300);
    test.cut_off.insert(node("n1"));
    test.run(10_000);
    assert!(test.cluster.nodes().values().all(|node| !node.record.ended), "{:#?}", test.notices);
    test.cut_off.clear();
    test.run(3_000);
    assert!(test.cluster.brake().is_none() && test.served().len() == 8, "{:#?}", test.notices);
}

/// While another answers, a dead node's shards are placed anew at once; when it comes back, what it kept is deleted
/// because others serve it.
#[test]
fn d7_what_a_node_kept_while_it_was_away_goes_when_others_serve_it() {
    let mut test = cluster_of(2, keyspace(4), 4);
    let of_n0 = |shard: &&crate::keyspace::map::Shard| shard.leader().is_some_and(|r| r.node == node("n0"));
    let old =
        test.map().shards().find(of_n0).map(|s| (s.id, s.leader().unwrap().placement, s.epoch)).unwrap();
    test.cut_off.insert(node("n0"));
    test.run(6_000);
    assert!(test.cluster.nodes()[&node("n0")].record.ended, "n1 answers and can take its shards");
    assert_eq!(test.counts(), BTreeMap::from([("n1".to_owned(), 4)]));
    let kept = stored(old.0.0, old.1.0, old.2.0);
    let permissions = permitted(&mut test, "n0", vec![kept.clone()]);
    let epoch = test.map().shard(old.0).unwrap().epoch;
    let reason = DropReason::Superseded;
    assert_eq!(permissions, [Permission { replica: kept.replica.clone(), reason, epoch }]);
    // A coordinator that knows of an earlier epoch only has been set back: it lets nothing go.
    let later = Stored { epoch: epoch.next(), ..kept };
    assert_eq!(permitted(&mut test, "n0", vec![later]), []);
}

/// Of a shard whose descendants were split and merged again: no map says any more which keys it had.
#[test]
fn d7_what_was_only_loaded_goes_when_all_that_could_have_its_keys_serve() {
    let hashed = Keyspace { sharding: Sharding::HashRange { hash: HashFunction::Xxh3_64 }, ..keyspace(1) };
    let mut test = TestCluster::new(hashed, vec![Bounds::Hashes(HashRange::ALL)]);
    ["n0", "n1"].into_iter().for_each(|id| test.join(id));
    test.run(3_000);
    command(&mut test, Command::SplitShard { keyspace: name(), shard: ShardId(1), at: SplitAt::Middle });
    test.run(5_000);
    command(&mut test, Command::MergeShards { keyspace: name(), left: ShardId(2), right: ShardId(3) });
    test.run(5_000);
    assert_eq!(test.map().shards().map(|shard| shard.id).collect::<Vec<_>>(), [ShardId(4)]);
    let replica = ReplicaKey { keyspace: name(), shard: ShardId(1), placement: PlacementId(1) };
    let permitted = |test: &mut TestCluster, epoch| {
        let (at, id) = (test.at(), node("n0"));
        let report = Report {
            replica: replica.clone(),
            phase: Phase::Kept,
            epoch: Epoch(epoch),
            load: None,
            progress: 0,
            served: None,
            replication: None,
        };
        let Cluster { members, keyspaces, .. } = &mut test.cluster;
        members.take_kept(at, &id, report, keyspaces);
        permissions(test, &id).into_iter().map(|permission| permission.reason).collect::<Vec<_>>()
    };
    assert_eq!(permitted(&mut test, 0), [DropReason::Superseded]);
    let leader = test.map().shards().next().unwrap().leader().unwrap().node.clone();
    test.cut_off.insert(leader);
    test.run(1_000);
    assert_eq!(permitted(&mut test, 0), [], "nobody is known to serve its keys");
    test.cut_off.clear();
    test.run(1_000);
    assert_eq!(permitted(&mut test, 1), [], "it has served, and its keys are not known");
}

#[test]
fn d7_nothing_is_deleted_that_nobody_serves() {
    let mut test = cluster_of(2, keyspace(4), 4);
    let shard = test.map().shards().next().unwrap().clone();
    let leader = shard.leader().unwrap().node.clone();
    test.cut_off.insert(leader.clone());
    test.run(1_000);
    // It is not dead yet, but nobody knows that it still serves.
    let copy = stored(shard.id.0, 0, 1);
    assert_eq!(permitted(&mut test, "n9", vec![copy]), []);
    let kept: Vec<&Kept> = test.cluster.kept_on(&node("n9")).map(|(_, kept)| kept).collect();
    assert_eq!(kept.len(), 1);
}

#[test]
fn d7_what_was_deleted_may_go_and_what_was_never_known_is_kept() {
    let mut test = cluster_of(2, keyspace(4), 4);
    let unknown = |keyspace: &str| {
        let of = stored(1, 1, 1);
        Stored { replica: ReplicaKey { keyspace: keyspace.parse().unwrap(), ..of.replica }, ..of }
    };
    let beyond = stored(1, 900, 1);
    assert_eq!(permitted(&mut test, "n9", vec![unknown("ghosts"), beyond]), []);
    command(&mut test, Command::DeleteKeyspace { keyspace: name() });
    let told = permitted(&mut test, "n9", vec![unknown("users"), unknown("ghosts")]);
    assert_eq!(
        told.iter().map(|p| (&p.replica.keyspace, p.reason)).collect::<Vec<_>>(),
        [(&name(), DropReason::Deleted)]
    );
    assert_eq!(test.disk.cluster.deleted_keyspaces, BTreeMap::from([(name(), ShardId(5))]), "it is durable");
    // A namesake is another keyspace: what is of the first one may still go, what is of neither is kept.
    test.run(3_000);
    let again = Command::CreateKeyspace {
        keyspace: Box::new(keyspace(4)),
        presplit: Default::default(),
        ahead: false,
    };
    command(&mut test, again);
    assert_eq!(test.cluster.keyspaces()[&name()].record.first_shard, ShardId(5));
    assert!(test.disk.cluster.deleted_keyspaces.is_empty());
    let told = permitted(&mut test, "n9", vec![stored(1, 1, 1)]);
    assert_eq!(told.iter().map(|p| p.reason).collect::<Vec<_>>(), [DropReason::Deleted]);
}

#[test]
fn d7_ids_that_a_lost_state_may_have_given_out_are_kept() {
    let mut test = cluster_of(2, keyspace(4), 4);
    let next = test.map().next_placement().0;
    let known = stored(1, 1, 1);
    assert_eq!(permitted(&mut test, "n9", vec![known.clone()]).len(), 0, "the map names it");
    test.disk = test.disk.clone().after_loss(1_700_000_000_000);
    test = test.restart_coordinator();
    test.run(3_000);
    let lost = stored(1, next + 3, 1);
    assert_eq!(permitted(&mut test, "n9", vec![lost]), []);
}

/// A coordinator that was restarted on an empty data folder is of another cluster.
#[test]
fn d11_an_emptied_coordinator_is_recognised_by_its_cluster_and_takes_no_worker_in() {
    let mut test = cluster_of(2, keyspace(4), 4);
    test.cluster = test.cluster.clone().identified(ClusterId(1));
    let mut emptied = TestCluster::new(keyspace(4), slots(4));
    emptied.cluster = emptied.cluster.clone().identified(ClusterId(2));
    let of_first =
        Registration { cluster: Some(ClusterId(1)), ..Registration::new(NodeSpec::new(node("n0"), "n0:1")) };
    let at = emptied.at();
    for incarnation in [None, Some(test.cluster.nodes()[&node("n0")].record.incarnation)] {
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
