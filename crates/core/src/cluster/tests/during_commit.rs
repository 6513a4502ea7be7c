//! Beats that come while a commit is under way.

use super::super::Moment;
use super::test_cluster::{TestCluster, keyspace, name, node, settings, slots};
use crate::base::id::{ClusterId, SessionDigest, TransactionId};
use crate::base::name::NodeId;
use crate::base::time::Millis;
use crate::cluster::UncommittedChanges;
use crate::cluster::admin::Command;
use crate::node::exchange::Beat;
use crate::node::exchange::Registration;
use crate::node::{Health, NodeSpec};

/// Three nodes with shards, in the middle of the commit that begins a drain of `a`: whose orders it changes.
fn amid_a_commit() -> (TestCluster, UncommittedChanges) {
    let mut test = TestCluster::new(keyspace(6), slots(6));
    ["a", "b", "c"].iter().for_each(|name| test.join(name));
    test.run(10_000);
    assert!(test.is_at_rest(1));
    let drain = Command::DrainNode { node: node("a"), reason: "kernel".into(), max_down: None };
    test.cluster.command(test.at(), TransactionId([77; 20]), "test", drain).unwrap();
    let mut pending = UncommittedChanges::default();
    for round in 0..50 {
        test.cluster.decide(test.at(), TransactionId([round; 20]));
        let outbox = test.cluster.take_outbox();
        assert!(round < 49, "the drain changes no orders");
        if !outbox.changed_orders.is_empty() {
            pending = UncommittedChanges::of(&outbox);
            break;
        }
    }
    (test, pending)
}

fn later(test: &TestCluster, ms: u64) -> Moment {
    Moment { now: Millis(test.now + ms), wall_ms: test.now + ms }
}

#[test]
fn l1_a_lease_is_renewed_while_a_commit_is_under_way_and_says_nothing_of_what_is_not_durable() {
    let (mut test, pending) = amid_a_commit();
    let some = pending.nodes.first().unwrap().clone();
    let beat = test.next_beat(&some);
    let applied = beat.applied;
    let at = later(&test, settings().lease_ms - 1);
    let orders = test.cluster.beat_during_commit(at, beat, &pending).unwrap();
    assert_eq!(orders.lease.unwrap().lease_ms, settings().lease_ms);
    assert_eq!((orders.base, orders.version), (applied, applied));
    assert!(orders.changed.is_empty() && orders.removed.is_empty() && orders.keyspaces.is_empty());
    // What it lacks follows, once that is durable.
    let pushed = test.cluster.orders_since(&some, applied, None).unwrap();
    assert!(pushed.version > applied && !pushed.changed.is_empty());
    // And the renewal counts: it is no silence that the node was not heard during the commit.
    test.cluster.listen(at);
    assert!(!test.cluster.nodes()[&some].signs.lease.is_over(later(&test, 2 * settings().lease_ms - 10).now));
}

/// The process was paused in the middle of a commit, and hears of it when it wakes, or when the commit is over.
#[test]
fn r6_a_coordinator_that_slept_during_a_commit_does_not_take_its_own_silence_for_theirs() {
    for wakes_before_its_end in [false, true] {
        let (mut test, _) = amid_a_commit();
        test.now += settings().dead_after_ms + 1_000;
        if wakes_before_its_end {
            test.cluster.listen(test.at());
            test.now += 10;
        }
        test.cluster.listen(test.at());
        test.cluster.decide(test.at(), TransactionId([78; 20]));
        let status = test.cluster.status(test.at());
        assert_eq!(status.nodes.get(&Health::Down), None, "{:#?}", test.cluster.take_outbox().notices);
        assert_eq!((status.nodes.get(&Health::Up), &status.brake), (Some(&3), &None), "{status:?}");
    }
}

/// It was awake during a long commit, and one node says nothing.
#[test]
fn r6_a_node_that_is_silent_during_a_commit_is_declared_dead() {
    let (mut test, _) = amid_a_commit();
    let until = test.now + settings().dead_after_ms + 1_000;
    while test.now < until {
        test.now += settings().heartbeat_ms;
        for id in ["a", "b"] {
            let beat = test.next_beat(&node(id));
            test.cluster.beat_during_commit(test.at(), beat, &UncommittedChanges::default()).unwrap();
        }
        test.cluster.listen(test.at());
    }
    test.cluster.decide(test.at(), TransactionId([78; 20]));
    assert_eq!(test.cluster.status(test.at()).nodes.get(&Health::Down), Some(&1));
}

#[test]
fn a_node_whose_orders_stay_is_answered_as_ever() {
    let (mut test, _) = amid_a_commit();
    let beat = test.next_beat(&node("c"));
    let at = later(&test, 10);
    let mut other = test.cluster.clone();
    let meanwhile =
        test.cluster.beat_during_commit(at, beat.clone(), &UncommittedChanges::default()).unwrap();
    assert_eq!(meanwhile, other.beat(at, beat).unwrap());
}

/// Seen in the simulator (seed 3084, durable): a node that the commit does not concern was sent orders of before with the
/// generation that the commit was to bring. The commit failed, and no later coordinator took that node back.
#[test]
fn m3_orders_of_before_come_with_the_generation_that_is_durable() {
    let (mut test, mut pending) = amid_a_commit();
    // The drain begins with a plan; a node that is left out of the changes has not confirmed what it was ordered before.
    let id = node("c");
    pending.nodes.remove(&id);
    let mut beat = test.next_beat(&id);
    beat.applied = 1;
    let durable = pending.maps[&name()];
    assert_ne!(durable, test.cluster.keyspaces()[&name()].map.generation());
    let at = later(&test, 10);
    let orders = test.cluster.beat_during_commit(at, beat, &pending).unwrap();
    assert!(!orders.changed.is_empty());
    assert_eq!(orders.keyspaces.iter().map(|brief| brief.generation).collect::<Vec<_>>(), [durable]);
}

/// What a beat that waits says, the next one does not say again; but one that will be refused holds no other up.
#[test]
fn r6_only_a_beat_that_will_be_taken_holds_the_next_one_up() {
    let (mut test, _) = amid_a_commit();
    let beat = test.next_beat(&node("b"));
    assert!(test.cluster.will_take(&beat));
    let session = SessionDigest([9; 32]);
    for refused in [
        Beat { session, ..beat.clone() },
        Beat { incarnation: beat.incarnation.next(), ..beat.clone() },
        Beat { sequence: 0, ..beat.clone() },
        Beat { node: node("z"), ..beat },
    ] {
        assert!(!test.cluster.will_take(&refused), "{refused:?}");
    }
}

/// What it held may be given away by that very commit.
#[test]
fn o5_a_node_whose_lease_is_over_waits_for_the_end_of_the_commit() {
    let (mut test, pending) = amid_a_commit();
    let some = pending.nodes.first().unwrap().clone();
    let over = later(&test, settings().lease_ms * 2);
    let beat = test.next_beat(&some);
    let before = test.cluster.nodes()[&some].signs;
    for pending in [&pending, &UncommittedChanges::default()] {
        assert_eq!(test.cluster.beat_during_commit(over, beat.clone(), pending), Err(beat.clone()));
    }
    assert_eq!(test.cluster.nodes()[&some].signs, before, "a beat that waits leaves no trace");
}

/// It would read an answer without orders as the order to hold nothing.
#[test]
fn a_node_that_has_confirmed_nothing_waits_when_its_orders_change() {
    let (mut test, pending) = amid_a_commit();
    let mut beat = test.next_beat(pending.nodes.first().unwrap());
    beat.applied = 0;
    assert_eq!(test.cluster.beat_during_commit(later(&test, 10), beat.clone(), &pending), Err(beat));
}

#[test]
fn a_beat_that_is_refused_waits_too() {
    let (mut test, pending) = amid_a_commit();
    let mut late = test.next_beat(&node("b"));
    late.sequence = 1;
    assert_eq!(test.cluster.beat_during_commit(later(&test, 10), late.clone(), &pending), Err(late));
    let mut unknown = test.next_beat(&node("b"));
    unknown.node = node("z");
    assert_eq!(test.cluster.beat_during_commit(later(&test, 10), unknown.clone(), &pending), Err(unknown));
}

/// A new leader's store is slow: who comes back with the incarnation that it has waits for nothing, and beats.
#[test]
fn b10_a_worker_that_has_lost_its_leader_is_taken_back_during_a_commit() {
    let (mut test, _) = amid_a_commit();
    test.cut_off.insert(node("b"));
    let mut test = test.restart_coordinator();
    test.cluster.decide(test.at(), TransactionId([99; 20]));
    test.cluster.take_outbox();
    let at = later(&test, 10);
    let (id, known) = (node("b"), test.cluster.nodes()[&node("b")].record.clone());
    assert!(!test.cluster.nodes()[&id].registered);
    let back = Registration { incarnation: Some(known.incarnation), ..Registration::new(known.spec) };
    let welcome = test.cluster.resume_during_commit(at, back.clone()).unwrap();
    assert_eq!(welcome.incarnation, known.incarnation);
    assert!(test.cluster.has_no_pending_writes(), "nothing that is stored has changed");
    let beat = test.next_beat(&id);
    let orders = test.cluster.beat_during_commit(at, beat, &UncommittedChanges::default()).unwrap();
    assert_eq!(orders.lease.unwrap().lease_ms, settings().lease_ms);

    // What would have to be stored, or is refused, waits, and leaves no trace.
    let spec = NodeSpec { capacity: 7.0, ..back.spec.clone() };
    let later_start = Some(known.incarnation.next());
    for waits in [
        Registration { spec, ..back.clone() },
        Registration { incarnation: None, ..back.clone() },
        Registration { incarnation: later_start, ..back.clone() },
        Registration { cluster: Some(ClusterId(u128::MAX)), ..back.clone() },
        Registration { spec: NodeSpec::new(node("z"), "127.0.0.1:1"), ..back },
    ] {
        let before = test.cluster.nodes()[&id].record.clone();
        assert_eq!(test.cluster.resume_during_commit(at, waits.clone()), Err(Box::new(waits)));
        assert_eq!(test.cluster.nodes()[&id].record, before);
        assert!(test.cluster.has_no_pending_writes());
    }
}

/// What was sent on a worker's stream is the base of the answer, as the worker takes it in first. It is confirmed only when the
/// worker says so: a leader that has not read yet that a follower loads must not be taken for one that copies writes to it.
#[test]
fn d1_orders_that_were_only_sent_are_not_confirmed() {
    let (mut test, _) = amid_a_commit();
    let version = |test: &TestCluster, name: &NodeId| {
        test.cluster.orders_since(name, 0, None).map(|orders| orders.version).unwrap()
    };
    let names: Vec<NodeId> = test.workers.keys().cloned().collect();
    let is_behind = |name: &&NodeId| version(&test, name) > test.workers[*name].applied;
    let some = names.iter().find(is_behind).unwrap().clone();
    let (at, sent) = (test.at(), version(&test, &some));
    let mut beat = test.next_beat(&some);
    beat.sent = sent;
    let orders = test.cluster.beat(at, beat).unwrap();
    assert_eq!((orders.base, orders.version), (sent, sent));
    assert!(!test.cluster.nodes()[&some].orders.is_taken_in());
    let mut beat = test.next_beat(&some);
    beat.applied = sent;
    test.cluster.beat(at, beat).unwrap();
    assert!(test.cluster.nodes()[&some].orders.is_taken_in());
}
