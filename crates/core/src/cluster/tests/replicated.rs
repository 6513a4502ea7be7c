//! Replicated keyspaces: in-sync sets, and what leaders ask for (T11, D1, L1).

use super::super::admin::Command;
use super::durable::{REPLACE_AFTER_MS, cluster_of, durable, kill, start};
use super::test_cluster::{BEAT_MS, Hang, TestCluster, name, node, settings};
use crate::base::id::{Configuration, ShardId, TransactionId};
use crate::base::name::NodeId;
use crate::keyspace::map::{Role, Shard, ShardMap};
use crate::keyspace::{Keyspace, Ownership, Resharding};
use crate::node::exchange::Phase;
use crate::node::load::Load;
use std::collections::{BTreeMap, BTreeSet};

fn replicated(shards: u32, replicas: u32) -> Keyspace {
    Keyspace { ownership: Ownership::Replicated, ..durable(shards, replicas) }
}

fn in_sync(shard: &Shard) -> BTreeSet<String> {
    shard.in_sync().map(|r| r.node.to_string()).collect()
}

fn all_in_sync(test: &TestCluster, on: &[&str]) -> bool {
    let on: BTreeSet<String> = on.iter().map(ToString::to_string).collect();
    test.map().shards().all(|shard| in_sync(shard) == on)
}

fn configurations(map: &ShardMap) -> BTreeMap<ShardId, Configuration> {
    map.shards().map(|shard| (shard.id, shard.configuration)).collect()
}

#[test]
fn t14_a_new_shard_takes_its_replicas_into_the_set_as_its_leader_asks() {
    let test = cluster_of(3, replicated(8, 3));
    assert!(all_in_sync(&test, &["n0", "n1", "n2"]), "{:#?}", test.map());
    // The first is taken in and leads, and two more are taken in; some shards have been given another leader since.
    assert!(configurations(test.map()).values().all(|c| *c >= Configuration(4)), "{:#?}", test.map());
}

/// Writes go on within a beat or two, long before the coordinator declares anything dead.
#[test]
fn l1_what_a_dead_node_has_is_asked_out_and_led_by_others_before_the_node_is_declared_dead() {
    let mut test = cluster_of(3, replicated(8, 3));
    let led_by_n0 = |shard: &&Shard| shard.leader().is_some_and(|leader| leader.node == node("n0"));
    assert!(test.map().shards().any(|shard| led_by_n0(&shard)), "some are led by it");
    kill(&mut test, 0);
    test.run(7 * BEAT_MS);
    assert!(!test.cluster.nodes()[&node("n0")].record.ended);
    assert!(all_in_sync(&test, &["n1", "n2"]), "{:#?}", test.map());
    assert_eq!(test.served().len(), 8, "{:#?}", test.notices);
    start(&mut test, 0);
    test.run(5_000);
    assert!(all_in_sync(&test, &["n0", "n1", "n2"]), "it has caught up: {:#?}", test.map());
}

/// One follower alone may be the one that is cut off.
#[test]
fn l1_a_leader_that_the_coordinator_hears_is_not_replaced() {
    let mut test = cluster_of(3, replicated(8, 3));
    let leaders = |test: &TestCluster| {
        test.map().shards().map(|s| s.leader().unwrap().node.clone()).collect::<Vec<_>>()
    };
    let before = leaders(&test);
    // Its followers do not reach it, so it takes them out and goes on alone.
    test.mute_links.insert(node("n0"));
    test.run(20 * BEAT_MS);
    let alone = |shard: &&Shard| shard.leader().unwrap().node == node("n0");
    assert!(test.map().shards().filter(alone).all(|shard| in_sync(shard).len() == 1), "{:#?}", test.map());
    assert_eq!(leaders(&test), before, "{:#?}", test.notices);
}

/// T11. It leaves when another has been taken into the set, and its data goes when the set has all of it.
#[test]
fn t11_a_replica_that_moves_is_dropped_when_the_set_has_all_that_it_has() {
    let mut test = cluster_of(4, replicated(8, 3));
    let leader = test.map().shards().next().unwrap().leader().unwrap().node.clone();
    let shard = test.map().shards().find(|s| s.leader().unwrap().node == leader).unwrap().clone();
    let free = (0..4).map(|at| node(&format!("n{at}"))).find(|n| shard.live().all(|r| r.node != *n)).unwrap();
    let (keyspace, from, to) = (name(), leader.clone(), free.clone());
    let command = Command::MoveShard { keyspace, shard: shard.id, from, to };
    test.cluster.command(test.at(), TransactionId([9; 20]), "mia", command).unwrap();
    let (mut least, mut has_moved) = (usize::MAX, false);
    for _ in 0..60 {
        test.run(BEAT_MS);
        let now = test.map().shard(shard.id).unwrap();
        least = least.min(now.in_sync().count());
        let newcomer = now.replicas.iter().find(|r| r.node == free);
        let is_leaving = now.replicas.iter().any(|r| r.node == leader && !r.state.is_staying());
        has_moved |= in_sync(now).contains(free.as_str()) && now.replicas.iter().all(|r| r.node != leader);
        assert!(!is_leaving || newcomer.is_some_and(|r| r.in_sync), "{now:#?}");
    }
    let now = test.map().shard(shard.id).unwrap();
    assert_eq!(least, 3, "as many as before have each write, all the time: {now:#?}");
    assert!(has_moved, "{now:#?}");
    assert!(now.is_settled() && now.replicas.len() == 3, "{now:#?}");
}

/// L4. What a node does not let go of has left the set before: nothing waits for it, and nothing of it is revoked.
#[test]
fn l4_a_replica_that_is_never_let_go_of_holds_up_no_move() {
    let mut test = cluster_of(4, replicated(8, 3));
    let shard = test.map().shards().next().unwrap().clone();
    let from = shard.leader().unwrap().node.clone();
    let to = (0..4).map(|at| node(&format!("n{at}"))).find(|n| shard.live().all(|r| r.node != *n)).unwrap();
    test.clinging_shards.insert(shard.id);
    let command = Command::MoveShard { keyspace: name(), shard: shard.id, from, to };
    test.cluster.command(test.at(), TransactionId([9; 20]), "mia", command).unwrap();
    test.run(2 * settings().handover_ms + 2_000);
    let now = test.map().shard(shard.id).unwrap();
    assert!(now.is_settled() && now.replicas.len() == 3, "{now:#?} {:#?}", test.notices);
    let revoked = test.notices.iter().filter(|notice| notice.contains("no further lease")).count();
    assert_eq!((test.served().len(), revoked), (8, 0), "{:#?}", test.notices);
}

/// L1. It has begun anew within its process, and its machine never leads twice under one epoch.
#[test]
fn l1_a_leader_that_cannot_lead_under_its_epoch_is_given_a_later_one() {
    let mut test = cluster_of(3, replicated(8, 3));
    let before = test.map().shards().next().unwrap().clone();
    test.unable_to_lead.insert(before.id, before.epoch);
    test.run(5 * BEAT_MS);
    let now = test.map().shard(before.id).unwrap();
    assert_eq!((now.epoch, in_sync(now)), (before.epoch.next(), in_sync(&before)), "{now:#?}");
    assert_eq!(now.leader().map(|r| &r.node), before.leader().map(|r| &r.node));
    assert!(now.configuration > before.configuration);
}

/// L1. Else its writes would wait for a replica that nothing brings.
#[test]
fn l1_fewer_replicas_than_must_store_a_write_are_refused() {
    let mut test = cluster_of(3, replicated(8, 2));
    let shard = test.map().shards().next().unwrap().clone();
    let mut refused = |command| {
        let error = test.cluster.command(test.at(), TransactionId([9; 20]), "mia", command).unwrap_err();
        error.to_string()
    };
    let set =
        |replicas| Command::SetShardReplicas { keyspace: name(), shard: shard.id, replicas, ahead: false };
    assert!(refused(set(Some(1))).contains("min_in_sync 2"));
    assert!(refused(set(Some(0))).contains("give 2 to 64"));
    let node = shard.live().next().unwrap().node.clone();
    let remove = Command::RemoveReplica { keyspace: name(), shard: shard.id, node };
    assert!(refused(remove).contains("would have 1 replica in sync"));
}

/// Leases play no part, so a replica that no coordinator answers goes on.
#[test]
fn t17_replicas_are_ordered_to_serve_without_waiting_for_a_lease() {
    let mut test = cluster_of(3, replicated(8, 3));
    test.run(settings().lease_ms);
    let orders = test.cluster.orders_since(&node("n0"), 0, None).unwrap();
    assert_eq!(orders.changed.len(), 8);
    for order in &orders.changed {
        assert!(order.granted && order.in_sync, "{order:#?}");
        assert_eq!(order.configuration, test.map().shard(order.replica.shard).unwrap().configuration);
        assert_eq!(order.peers.iter().filter(|peer| peer.in_sync).count(), 2, "{order:#?}");
    }
    assert_eq!(orders.keyspaces[0].min_in_sync, 2);
}

/// D10. The last of the set is never taken out by the coordinator, and leads again when it is back; one that was taken out
/// before does not lead in its place.
#[test]
fn d10_who_was_taken_out_does_not_lead_while_the_set_is_away() {
    let mut test = cluster_of(2, replicated(8, 2));
    kill(&mut test, 0);
    test.run(3_000);
    assert!(all_in_sync(&test, &["n1"]), "{:#?}", test.map());
    kill(&mut test, 1);
    start(&mut test, 0);
    test.run(2 * REPLACE_AFTER_MS);
    assert!(test.served().is_empty() && all_in_sync(&test, &["n1"]), "{:#?}", test.map());
    start(&mut test, 1);
    test.run(10_000);
    assert_eq!(test.served().len(), 8, "{:#?}", test.notices);
    assert!(all_in_sync(&test, &["n0", "n1"]), "{:#?}", test.map());
}

/// Runs for so many seconds while readers ask for the first shard so often, spread over the replicas that answer them.
fn read_hot(test: &mut TestCluster, rate: f64, seconds: u32) {
    for _ in 0..seconds {
        let shard = test.map().shards().next().unwrap().clone();
        let each = rate / shard.readable().count().max(1) as f64;
        test.loads.insert(shard.id, Load { requests_per_s: each, ..Load::default() });
        test.run(1_000);
        for replica in test.map().shards().flat_map(|shard| &shard.replicas) {
            assert!(!(replica.is_read_replica() && replica.in_sync), "D1: {replica:?}");
        }
    }
}

fn hot_table(nodes: usize) -> TestCluster {
    let resharding = Resharding {
        split_requests_per_s: 1_000.0,
        window_ms: 4_000,
        max_replicas: 3,
        ..Resharding::default()
    };
    cluster_of(nodes, Keyspace { resharding, ..replicated(1, 2) })
}

fn read_replicas(test: &TestCluster) -> Vec<NodeId> {
    let shard = test.map().shards().next().unwrap();
    shard.readable().filter(|r| r.is_read_replica()).map(|r| r.node.clone()).collect()
}

#[test]
fn k12_a_hot_shard_of_a_table_gets_a_read_replica_beside_its_set_and_gives_it_back() {
    let mut test = hot_table(4);
    let before = in_sync(test.map().shards().next().unwrap());
    read_hot(&mut test, 9_000.0, 30);
    let shard = test.map().shards().next().unwrap().clone();
    assert_eq!((shard.readable().count(), shard.live().count()), (3, 2), "{shard:#?} {:#?}", test.notices);
    assert_eq!((read_replicas(&test).len(), in_sync(&shard)), (1, before.clone()), "{shard:#?}");
    // Its node is emptied: another comes in its place, and is a read replica, too.
    let node = read_replicas(&test)[0].clone();
    test.drain(node.as_str());
    read_hot(&mut test, 9_000.0, 30);
    let now = read_replicas(&test);
    assert!(now.len() == 1 && now[0] != node, "{:#?} {:#?}", test.map(), test.notices);
    read_hot(&mut test, 100.0, 30);
    let shard = test.map().shards().next().unwrap();
    assert_eq!((read_replicas(&test), in_sync(shard)), (vec![], before), "{:#?}", test.notices);
    assert!(shard.is_settled() && shard.replicas.len() == 2, "{shard:#?}");
}

#[test]
fn k12_a_read_replica_that_dies_is_removed_and_no_set_changes() {
    let mut test = hot_table(4);
    read_hot(&mut test, 9_000.0, 30);
    let (node, before) = (read_replicas(&test)[0].clone(), test.map().shards().next().unwrap().clone());
    kill(&mut test, node.as_str()[1..].parse().unwrap());
    read_hot(&mut test, 9_000.0, 60);
    let now = test.map().shards().next().unwrap();
    assert_eq!((in_sync(now), now.epoch), (in_sync(&before), before.epoch), "{now:#?}");
    assert!(now.replicas.iter().all(|r| r.node != node), "{now:#?}");
    assert_eq!(read_replicas(&test).len(), 1, "the node that is left has one: {:#?}", test.notices);
}

/// There is no other node: the set would stay below `min_in_sync`, and writes be refused.
#[test]
fn l1_a_read_replica_becomes_a_member_when_a_member_does_not_come_back() {
    let mut test = hot_table(3);
    read_hot(&mut test, 9_000.0, 30);
    let node = read_replicas(&test)[0].clone();
    let lost = in_sync(test.map().shards().next().unwrap()).into_iter().next().unwrap();
    kill(&mut test, lost[1..].parse().unwrap());
    read_hot(&mut test, 9_000.0, 20);
    assert_eq!(read_replicas(&test), vec![node.clone()], "the member is waited for: {:#?}", test.map());
    read_hot(&mut test, 9_000.0, (REPLACE_AFTER_MS / 1_000) as u32 + 20);
    let now = in_sync(test.map().shards().next().unwrap());
    assert!(now.len() == 2 && now.contains(node.as_str()), "{:#?} {:#?}", test.map(), test.notices);
}

/// It was to leave for another read replica. It is a member by then, and leads: the set needs it.
#[test]
fn l1_a_read_replica_that_is_moved_and_becomes_a_member_does_not_leave_for_its_successor() {
    for loses_leader in [false, true] {
        let mut test = hot_table(5);
        read_hot(&mut test, 9_000.0, 30);
        let moved = read_replicas(&test)[0].clone();
        let shard = test.map().shards().next().unwrap().clone();
        let placement = shard.replicas.iter().find(|r| r.node == moved).unwrap().placement;
        let taken: BTreeSet<_> = shard.replicas.iter().map(|r| r.node.clone()).collect();
        let free: Vec<_> = test.workers.keys().filter(|node| !taken.contains(*node)).cloned().collect();
        test.hangs.extend(free.into_iter().map(|node| (node, Hang::Load)));
        test.drain(moved.as_str());
        read_hot(&mut test, 9_000.0, 10);
        let replaces = |test: &TestCluster| {
            test.map().shards().next().unwrap().replicas.iter().any(|r| r.replaces() == Some(placement))
        };
        assert!(replaces(&test), "{:#?}", test.map());
        let members: Vec<_> = shard.in_sync().collect();
        let lost = members.iter().find(|r| (r.role == Role::Leader) == loses_leader).unwrap();
        kill(&mut test, lost.node.as_str()[1..].parse().unwrap());
        read_hot(&mut test, 9_000.0, (REPLACE_AFTER_MS / 1_000) as u32 + 20);
        let now = in_sync(test.map().shards().next().unwrap());
        assert!(now.contains(moved.as_str()) && now.len() == 2, "{:#?} {:#?}", test.map(), test.notices);
        test.hangs.clear();
        // From here on the set never lacks one, and somebody leads.
        for _ in 0..60_000 / BEAT_MS {
            test.run(BEAT_MS);
            let shard = test.map().shards().next().unwrap();
            assert!(
                shard.in_sync().count() >= 2 && shard.leader().is_some(),
                "{shard:#?} {:#?}",
                test.notices
            );
        }
        let shard = test.map().shards().next().unwrap();
        assert!(shard.replicas.iter().all(|r| r.node != moved), "it is drained: {shard:#?}");
        assert_eq!((shard.in_sync().count(), read_replicas(&test).len()), (2, 1), "{shard:#?}");
        assert!(shard.is_settled(), "{shard:#?} {:#?}", test.plans());
    }
}

/// Its service says that it hears no leader any more: requests go to others, and another comes in its place.
#[test]
fn k12_a_read_replica_that_fails_leaves_and_another_comes() {
    let mut test = hot_table(4);
    read_hot(&mut test, 9_000.0, 30);
    let (node, before) = (read_replicas(&test)[0].clone(), in_sync(test.map().shards().next().unwrap()));
    let id = test.map().shards().next().unwrap().id;
    test.fails.insert((id, node.clone()));
    let held = test.workers.get_mut(&node).unwrap().holds.values_mut();
    held.for_each(|(_, phase)| *phase = Phase::failed(1, "it hears no leader".to_owned()));
    read_hot(&mut test, 9_000.0, 30);
    let shard = test.map().shards().next().unwrap();
    assert_eq!(in_sync(shard), before, "{shard:#?}");
    let now = read_replicas(&test);
    assert!(now.len() == 1 && now[0] != node, "{shard:#?} {:#?}", test.notices);
}
