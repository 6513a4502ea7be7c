//! What one decision does, and what is remembered, while much happens (B7, B9). Counted in shards, not in time.

use super::super::{Moment, RegisterError, Slice, Work};
use super::test_cluster::{BEAT_MS, TestCluster, keyspace, node, settings, slots};
use crate::base::id::{ShardId, TransactionId};
use crate::base::time::Millis;
use crate::keyspace::Keyspace;
use crate::limits;
use crate::node::NodeSpec;
use crate::node::exchange::Registration;
use crate::node::load::Load;

/// Decides as a driver does, until nothing more follows at once; returns what the dearest decision did.
fn dearest_decision(test: &mut TestCluster) -> Work {
    let mut dearest = Work::default();
    for number in 0..1_000u64 {
        let before = test.cluster.work_done();
        let mut transaction = [7; 20];
        transaction[..8].copy_from_slice(&(test.now * 1_000 + number).to_be_bytes());
        let wake = test.cluster.decide(test.at(), TransactionId(transaction));
        let after = test.cluster.work_done();
        dearest.reconciled = dearest.reconciled.max(after.reconciled - before.reconciled);
        dearest.enqueued = dearest.enqueued.max(after.enqueued - before.enqueued);
        dearest.planned = dearest.planned.max(after.planned - before.planned);
        // What is much of the one and much of the other is not done in one decision.
        let (reconciled, planned) = (after.reconciled - before.reconciled, after.planned - before.planned);
        let is_little = 2 * limits::SHARDS_RECONCILED as u64 / 3 > reconciled;
        assert!(planned == 0 || is_little, "{reconciled} reconciled and {planned} planned at {}", test.now);
        if wake.0 > test.now {
            return dearest;
        }
    }
    panic!("the cluster does not come to rest");
}

fn settled(shards: u32, nodes: usize) -> TestCluster {
    let mut test = TestCluster::new(keyspace(shards), slots(shards));
    (0..nodes).for_each(|number| test.join(&format!("n{number}")));
    test.run(3_000);
    assert_eq!(test.served().len(), shards as usize);
    test
}

#[test]
fn b7_a_decision_looks_at_a_bounded_number_of_shards_and_all_get_their_turn() {
    let shards = 3 * limits::SHARDS_RECONCILED as u32;
    let mut test = TestCluster::new(keyspace(shards), slots(shards));
    let first = dearest_decision(&mut test);
    assert!(first.reconciled <= limits::SHARDS_RECONCILED as u64, "the first decision: {first:?}");
    (0..3).for_each(|number| test.join(&format!("n{number}")));
    for _ in 0..30 {
        test.now += 100;
        let names: Vec<_> = test.workers.keys().cloned().collect();
        for name in names {
            test.beat(&name);
        }
        let work = dearest_decision(&mut test);
        let most = 2 * limits::SHARDS_RECONCILED.max(limits::CHANGES_BEGUN) as u64;
        assert!(work.reconciled <= most, "at {}: {work:?}", test.now);
    }
    assert_eq!(test.served().len(), shards as usize);
}

/// The nodes of each shard after a first placement and the loss of a node, planned in slices of that much.
fn placed_in_slices(planned: usize) -> Vec<Vec<String>> {
    let shards = 60;
    let mut test = TestCluster::new(Keyspace { replicas: 2, ..keyspace(shards) }, slots(shards));
    test.cluster = test.cluster.clone().with_slice(Slice { planned });
    (0..5).for_each(|number| test.join(&format!("n{number}")));
    for _ in 0..50 {
        test.now += 100;
        let names: Vec<_> = test.workers.keys().cloned().collect();
        names.iter().for_each(|name| test.beat(name));
        let work = dearest_decision(&mut test);
        // A phase of the policy is one piece, of all shards and replicas; else a shard more than a slice at most.
        let most = planned.max(3 * shards as usize) + 3;
        assert!(work.planned <= most as u64, "{planned} at {}: {work:?}", test.now);
    }
    test.kill("n3");
    test.run(8_000);
    assert_eq!(test.served().len(), shards as usize, "slices of {planned}");
    let nodes = |shard: &crate::keyspace::map::Shard| {
        let mut nodes: Vec<_> = shard.replicas.iter().map(|r| r.node.to_string()).collect();
        nodes.sort();
        nodes
    };
    test.map().shards().map(nodes).collect()
}

#[test]
fn b7_a_plan_that_is_made_in_slices_places_everything_and_as_evenly() {
    for planned in [1, 7, 50, limits::WORK_PLANNED] {
        let placed = placed_in_slices(planned);
        assert!(placed.iter().all(|nodes| nodes.len() == 2), "slices of {planned}: {placed:?}");
        for node in ["n0", "n1", "n2", "n4"] {
            let held = placed.iter().flatten().filter(|name| *name == node).count();
            assert!((27..=33).contains(&held), "slices of {planned}: {node} holds {held} of 120");
        }
    }
}

#[test]
fn b7_a_plan_is_finished_though_the_world_changes_with_every_slice() {
    let shards = 60;
    let mut test = settled(shards, 4);
    test.cluster = test.cluster.clone().with_slice(Slice { planned: 3 });
    test.drain("n3");
    // A node comes or goes between any two beats, so each slice sees other nodes than the one before.
    for round in 0..40 {
        let pod = format!("pod{round}");
        test.join(&pod);
        test.run(200);
        test.workers.get_mut(&node(&pod)).unwrap().leaving = true;
        test.run(200);
    }
    assert_eq!(test.served().len(), shards as usize, "{:#?}", test.notices);
    assert_eq!(test.cluster.nodes()[&node("n3")].held(), 0, "{:#?}", test.notices);
}

/// Where a run begins, and where its changes are complete, all shards are gone through in one piece: a decision that does so
/// does little else. At 100,000 shards that and four plans were 100 ms together.
#[test]
fn b7_going_through_all_shards_in_one_piece_counts_as_work() {
    let (shards, slice) = (400, 64);
    let mut test = TestCluster::new(keyspace(shards), slots(shards));
    test.cluster = test.cluster.clone().with_slice(Slice { planned: slice });
    (0..4).for_each(|number| test.join(&format!("n{number}")));
    let passing_over = shards as u64 / limits::SHARDS_PASSED_OVER as u64;
    let mut gone_through = 0;
    for _ in 0..400 {
        test.now += BEAT_MS;
        let names: Vec<_> = test.workers.keys().cloned().collect();
        names.iter().for_each(|name| test.beat(name));
        let before = test.cluster.work_done().planned;
        test.decide_once();
        let planned = test.cluster.work_done().planned - before;
        // A piece of the policy is more than that.
        gone_through += u32::from((passing_over..=passing_over + slice as u64).contains(&planned));
        if !test.cluster.plans().is_empty() {
            break;
        }
    }
    assert_eq!(gone_through, 2, "{:#?}", test.notices);
}

#[test]
fn b7_b10_leases_are_renewed_between_the_pieces_of_a_policy() {
    let mut test = settled(60, 4);
    test.cluster = test.cluster.clone().with_slice(Slice { planned: 1 });
    test.kill("n3");
    let (mut streak, mut longest) = (0, 0);
    for _ in 0..300 {
        test.now += BEAT_MS;
        let names: Vec<_> = test.workers.keys().cloned().collect();
        for name in names {
            let beat = test.next_beat(&name);
            let sent_at = beat.sent_at;
            let orders = test.cluster.beat(test.at(), beat).unwrap();
            assert_eq!(orders.lease.map(|lease| lease.sent_at), Some(sent_at), "{name} at {}", test.now);
        }
        let before = test.cluster.work_done().planned;
        test.decide_once();
        // Shards and changes come one at a time, so what is as much as all nodes is a piece of the policy.
        let is_piece = test.cluster.work_done().planned - before >= 4;
        streak = if is_piece { streak + 1 } else { 0 };
        longest = longest.max(streak);
    }
    // The draft, what is filled, what is drawn, what is listed, the solution: each a decision of its own.
    assert!(longest >= 5, "{longest} pieces one after the other");
}

#[test]
fn b7_a_batch_of_beats_grants_a_bounded_number_of_shards_and_all_get_their_grants() {
    let shards = limits::SHARDS_GRANTED as u32 + 500;
    let mut test = settled(shards, 1).restart_coordinator();
    test.beat(&node("n0"));
    let waiting =
        |test: &TestCluster| test.cluster.keyspaces().values().next().unwrap().queue.ungranted.len();
    assert_eq!(waiting(&test), shards as usize);
    let at = test.at();
    for granted in [limits::SHARDS_GRANTED, 500, 0] {
        let before = waiting(&test);
        test.cluster.outbox.writes.clear();
        test.cluster.grant_before_commit(at);
        assert_eq!(before - waiting(&test), granted);
    }
    test.run(1_000);
    assert_eq!((waiting(&test), test.served().len()), (0, shards as usize));
}

#[test]
fn b7_what_happens_to_one_node_wakes_what_that_node_holds() {
    let mut test = settled(400, 20);
    let held = test.cluster.nodes()[&node("n3")].held() as u64;
    let before = test.cluster.work_done().enqueued;
    test.kill("n3");
    test.run(4_000);
    let enqueued = test.cluster.work_done().enqueued - before;
    // It is suspect, its lease lapses, it is dead.
    assert!(held > 0 && (held..=4 * held).contains(&enqueued), "{enqueued} for {held}");
    assert_eq!(test.served().len(), 400);
}

#[test]
fn b9_loads_whose_sum_is_no_number_stop_no_repair() {
    let mut test = settled(6, 3);
    let load =
        Load { requests_per_s: f64::MAX, cpu_ms_per_s: f64::MAX, size_bytes: u64::MAX, ..Load::default() };
    (1..=6).for_each(|shard| drop(test.loads.insert(ShardId(shard), load.clone())));
    test.run(6_000);
    test.kill("n1");
    test.run(6_000);
    assert_eq!(test.served().len(), 6, "{:#?}", test.notices);
    assert_eq!(test.unplaced(), [""; 0]);
}

#[test]
fn b9_capacities_whose_sum_is_no_number_are_refused() {
    let mut test = settled(1, 1);
    for capacity in [f64::MAX, 1e-300] {
        let spec = NodeSpec { capacity, ..NodeSpec::new(node("huge"), "127.0.0.1:9") };
        let answer = test.cluster.register(test.at(), Registration::new(spec));
        assert!(matches!(answer, Err(RegisterError::Spec(_))), "{capacity}");
    }
}

#[test]
fn b9_pods_that_came_and_went_are_forgotten_and_no_incarnation_is_given_out_again() {
    let mut test = settled(4, 2);
    for number in 0..30 {
        let pod = format!("pod{number}");
        test.join(&pod);
        test.run(200);
        if number % 2 == 0 {
            test.workers.get_mut(&node(&pod)).unwrap().leaving = true;
        } else {
            // Not so many within a minute that the brake goes on.
            test.kill(&pod);
            test.run(31_000);
        }
        test.run(3_000);
    }
    assert!(test.cluster.nodes().len() > 20, "they are remembered for a while");
    let latest = test.cluster.nodes().values().map(|node| node.record.incarnation).max();
    test.now += limits::DEAD_NODE_MS;
    test.cluster.times.decision_due = Millis(test.now);
    test.run(5_000);
    test.now += limits::DEAD_NODE_MS;
    test.cluster.times.decision_due = Millis(test.now);
    test.run(5_000);
    let names: Vec<_> = test.cluster.nodes().keys().map(ToString::to_string).collect();
    assert_eq!(names, ["n0", "n1"]);
    assert_eq!(test.disk.nodes.len(), 2);
    test.join("pod0");
    assert!(Some(test.cluster.nodes()[&node("pod0")].record.incarnation) > latest);
}

#[test]
fn b9_at_most_so_many_nodes_are_remembered_that_have_ended_also_when_a_drain_stays_with_them() {
    let mut test = settled(1, 1);
    for number in 0..limits::ENDED_NODES + 20 {
        let pod = format!("pod{number}");
        let spec = NodeSpec::new(node(&pod), format!("127.0.0.1:{}", 10_000 + number));
        let at = Moment { now: Millis(test.now), wall_ms: test.now };
        let welcome = test.cluster.register(at, Registration::new(spec)).unwrap();
        test.drain(&pod);
        test.cluster
            .leave(at, &node(&pod), welcome.incarnation, crate::base::id::SessionDigest::default())
            .unwrap();
        test.now += 1;
    }
    test.run(1_000);
    assert_eq!(test.cluster.nodes().len(), 1 + limits::ENDED_NODES);
    assert!(!test.cluster.nodes().contains_key(&node("pod0")), "the oldest went first");
    assert!(settings().dead_after_ms < limits::LEFT_NODE_MS);
}
