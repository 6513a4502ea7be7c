//! Leads of replicated shards that are handed over: the leader hands over first, and nothing waits for ever (O11, L1, L8).

use super::super::admin::Command;
use super::durable::{cluster_of, durable, kill};
use super::test_cluster::{BEAT_MS, TestCluster, name, node, settings};
use crate::base::id::{PlacementId, ShardId, TransactionId};
use crate::base::name::NodeId;
use crate::keyspace::key::Key;
use crate::keyspace::map::{Replica, Shard};
use crate::keyspace::{Keyspace, Ownership};
use crate::plan::{Progress, Status};

/// Three of four nodes have the shard in sync, or all three.
fn table(nodes: usize) -> TestCluster {
    cluster_of(nodes, Keyspace { ownership: Ownership::Replicated, ..durable(1, 3) })
}

fn only(test: &TestCluster) -> Shard {
    test.map().shards().next().unwrap().clone()
}

fn leader(test: &TestCluster) -> Replica {
    only(test).leader().unwrap().clone()
}

fn a_follower(test: &TestCluster) -> Replica {
    let lead = leader(test).placement;
    only(test).in_sync().find(|r| r.placement != lead).unwrap().clone()
}

/// Which replica the leader is ordered to hand over to.
fn ordered_heir(test: &TestCluster) -> Option<PlacementId> {
    let leader = leader(test);
    let orders = test.cluster.orders_since(&leader.node, 0, None).unwrap();
    let order = orders.changed.into_iter().find(|order| order.replica.placement == leader.placement);
    order.and_then(|order| order.hand_over_to)
}

fn ask(test: &mut TestCluster, command: Command) {
    test.cluster.command(test.at(), TransactionId([9; 20]), "mia", command).unwrap();
}

fn transfer(test: &mut TestCluster, shard: ShardId, to: &NodeId) {
    ask(test, Command::TransferLeader { keyspace: name(), shard, to: to.clone() });
}

/// A leader of three that hands over for two beats, to an heir that does not get ready: the cluster, the shard before, the heir.
fn handing_over() -> (TestCluster, Shard, Replica) {
    let mut test = table(3);
    let (before, heir) = (only(&test), a_follower(&test));
    test.unready_heirs.insert(before.id);
    transfer(&mut test, before.id, &heir.node);
    test.run(2 * BEAT_MS);
    assert_eq!((only(&test).epoch, ordered_heir(&test)), (before.epoch, Some(heir.placement)));
    (test, before, heir)
}

fn number(node: &NodeId) -> usize {
    node.as_str()[1..].parse().unwrap()
}

fn last_progress(test: &TestCluster) -> (Status, Progress) {
    let plan = *test.plans().last().unwrap();
    (plan.status.clone(), plan.changes[0].progress.clone())
}

#[test]
fn o11_a_leader_hands_over_before_another_leads() {
    let mut test = table(3);
    let (before, heir) = (only(&test), a_follower(&test));
    transfer(&mut test, before.id, &heir.node);
    test.run(BEAT_MS);
    assert_eq!((only(&test).epoch, ordered_heir(&test)), (before.epoch, Some(heir.placement)));
    let key = Key::new(b"a").unwrap();
    let told = test.cluster.explain(test.at(), &name(), &key).unwrap().under_way;
    assert!(told.iter().any(|told| told.contains("hands the lead over to")), "{told:#?}");
    test.run(2 * BEAT_MS);
    assert_eq!((only(&test).epoch, leader(&test).placement), (before.epoch.next(), heir.placement));
    assert_eq!(ordered_heir(&test), None);
    assert_eq!(last_progress(&test), (Status::Finished, Progress::Done));
}

/// The in-sync set loses nothing by that, though writes that are under way end with an unknown outcome.
#[test]
fn l1_a_leader_whose_heir_is_never_ready_is_waited_for_so_long_and_no_longer() {
    let (mut test, before, heir) = handing_over();
    test.run(settings().transfer_ms - 4 * BEAT_MS);
    assert_eq!((only(&test).epoch, ordered_heir(&test)), (before.epoch, Some(heir.placement)));
    test.run(5 * BEAT_MS);
    assert_eq!(leader(&test).placement, heir.placement);
}

#[test]
fn l1_nothing_waits_for_a_leader_that_dies_while_it_hands_over() {
    let (mut test, ..) = handing_over();
    let died = leader(&test);
    kill(&mut test, number(&died.node));
    test.run(10 * BEAT_MS);
    assert_ne!(leader(&test).placement, died.placement);
    assert_eq!(test.served().len(), 1, "{:#?}", test.notices);
}

#[test]
fn l1_an_heir_that_dies_does_not_lead() {
    let (mut test, _, heir) = handing_over();
    let stays = leader(&test);
    kill(&mut test, number(&heir.node));
    test.run(settings().transfer_ms + 10 * BEAT_MS);
    assert_eq!((leader(&test).placement, ordered_heir(&test)), (stays.placement, None));
    let (status, progress) = last_progress(&test);
    assert!(status == Status::Finished && matches!(progress, Progress::Dropped(_)), "{progress:?}");
    assert_eq!(test.served().len(), 1, "{:#?}", test.notices);
}

#[test]
fn o9_the_next_coordinator_has_the_leader_hand_over_anew() {
    let (test, before, heir) = handing_over();
    let mut test = test.restart_coordinator();
    // It decides before it has heard anybody, and gives nothing up for that.
    test.decide();
    assert_eq!((ordered_heir(&test), last_progress(&test)), (None, (Status::Approved, Progress::Waiting)));
    test.run(2 * BEAT_MS);
    assert_eq!((only(&test).epoch, ordered_heir(&test)), (before.epoch, Some(heir.placement)));
    test.unready_heirs.clear();
    test.run(8 * BEAT_MS);
    assert_eq!(leader(&test).placement, heir.placement);
    assert_eq!(last_progress(&test), (Status::Finished, Progress::Done));
}

/// The leader hears the heir, but the coordinator does not.
#[test]
fn l1_an_heir_that_falls_silent_holds_up_no_writes() {
    let (mut test, before, heir) = handing_over();
    let heard: Vec<NodeId> = test.workers.keys().filter(|node| **node != heir.node).cloned().collect();
    for _ in 0..settings().suspect_after_ms() / BEAT_MS + 2 {
        test.now += BEAT_MS;
        heard.iter().for_each(|node| test.beat(node));
        test.decide();
    }
    assert_eq!((only(&test).epoch, ordered_heir(&test)), (before.epoch, None));
    let (status, progress) = last_progress(&test);
    assert!(status == Status::Finished && matches!(progress, Progress::Dropped(_)), "{progress:?}");
}

/// The replica that takes the leader's place leads when the leader has handed over, and not before.
#[test]
fn o11_a_leader_that_moves_hands_over_to_the_replica_that_takes_its_place() {
    for is_ready in [true, false] {
        let mut test = table(4);
        let (before, from) = (only(&test), leader(&test));
        let mut all = (0..4).map(|at| node(&format!("n{at}")));
        let to = all.find(|n| before.live().all(|r| r.node != *n)).unwrap();
        if !is_ready {
            test.unready_heirs.insert(before.id);
        }
        let command =
            Command::MoveShard { keyspace: name(), shard: before.id, from: from.node, to: to.clone() };
        ask(&mut test, command);
        let mut asked_at = None;
        for beat in 0..60 {
            test.run(BEAT_MS);
            let newcomer = only(&test).replicas.iter().find(|r| r.node == to).map(|r| r.placement);
            if ordered_heir(&test).is_some() {
                assert_eq!(ordered_heir(&test), newcomer);
                asked_at = asked_at.or(Some(beat));
            } else if asked_at.is_some() {
                let waited_ms = (beat - asked_at.unwrap()) * BEAT_MS;
                assert!(is_ready || waited_ms >= settings().transfer_ms, "{waited_ms}");
                break;
            }
        }
        assert!(asked_at.is_some(), "{:#?}", only(&test));
        assert_eq!(leader(&test).node, to);
        test.run(20 * BEAT_MS);
        assert!(only(&test).is_settled() && only(&test).replicas.len() == 3, "{:#?}", only(&test));
    }
}
