//! What one decision does, and what is remembered, while much happens (B7, B9). Counted in shards, not in time.

use super::super::{Moment, RegisterError, Registration, Slice, Work};
use super::town::{BEAT_MS, Town, keyspace, node, settings, slots};
use crate::id::{ShardId, TransactionId};
use crate::keyspace::Keyspace;
use crate::limits;
use crate::load::Load;
use crate::node::NodeSpec;
use crate::time::Millis;

/// Decides as a driver does, until nothing more follows at once; returns what the dearest decision did.
fn dearest_decision(town: &mut Town) -> Work {
    let mut dearest = Work::default();
    for number in 0..1_000u64 {
        let before = town.cluster.work_done();
        let mut transaction = [7; 20];
        transaction[..8].copy_from_slice(&(town.now * 1_000 + number).to_be_bytes());
        let wake = town.cluster.decide(town.at(), TransactionId(transaction));
        let after = town.cluster.work_done();
        dearest.settled = dearest.settled.max(after.settled - before.settled);
        dearest.woken = dearest.woken.max(after.woken - before.woken);
        dearest.planned = dearest.planned.max(after.planned - before.planned);
        // What is much of the one and much of the other is not done in one decision.
        let (settled, planned) = (after.settled - before.settled, after.planned - before.planned);
        let is_little = 2 * limits::SHARDS_SETTLED as u64 / 3 > settled;
        assert!(planned == 0 || is_little, "{settled} settled and {planned} planned at {}", town.now);
        if wake.0 > town.now {
            return dearest;
        }
    }
    panic!("the cluster does not come to rest");
}

fn settled(shards: u32, nodes: usize) -> Town {
    let mut town = Town::new(keyspace(shards), slots(shards));
    (0..nodes).for_each(|number| town.join(&format!("n{number}")));
    town.run(3_000);
    assert_eq!(town.served().len(), shards as usize);
    town
}

#[test]
fn b7_a_decision_looks_at_a_bounded_number_of_shards_and_all_get_their_turn() {
    let shards = 3 * limits::SHARDS_SETTLED as u32;
    let mut town = Town::new(keyspace(shards), slots(shards));
    let first = dearest_decision(&mut town);
    assert!(first.settled <= limits::SHARDS_SETTLED as u64, "the first decision: {first:?}");
    (0..3).for_each(|number| town.join(&format!("n{number}")));
    for _ in 0..30 {
        town.now += 100;
        let names: Vec<_> = town.workers.keys().cloned().collect();
        for name in names {
            town.beat(&name);
        }
        let work = dearest_decision(&mut town);
        let most = 2 * limits::SHARDS_SETTLED.max(limits::CHANGES_BEGUN) as u64;
        assert!(work.settled <= most, "at {}: {work:?}", town.now);
    }
    assert_eq!(town.served().len(), shards as usize);
}

/// The nodes of each shard after a first placement and the loss of a node, planned in slices of that much.
fn placed_in_slices(planned: usize) -> Vec<Vec<String>> {
    let shards = 60;
    let mut town = Town::new(Keyspace { replicas: 2, ..keyspace(shards) }, slots(shards));
    town.cluster = town.cluster.clone().with_slice(Slice { planned });
    (0..5).for_each(|number| town.join(&format!("n{number}")));
    for _ in 0..50 {
        town.now += 100;
        let names: Vec<_> = town.workers.keys().cloned().collect();
        names.iter().for_each(|name| town.beat(name));
        let work = dearest_decision(&mut town);
        // A phase of the policy is one piece, of all shards and replicas; else a shard more than a slice at most.
        let most = planned.max(3 * shards as usize) + 3;
        assert!(work.planned <= most as u64, "{planned} at {}: {work:?}", town.now);
    }
    town.kill("n3");
    town.run(8_000);
    assert_eq!(town.served().len(), shards as usize, "slices of {planned}");
    let nodes = |shard: &crate::map::Shard| {
        let mut nodes: Vec<_> = shard.replicas.iter().map(|r| r.node.to_string()).collect();
        nodes.sort();
        nodes
    };
    town.map().shards().map(nodes).collect()
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
    let mut town = settled(shards, 4);
    town.cluster = town.cluster.clone().with_slice(Slice { planned: 3 });
    town.drain("n3");
    // A node comes or goes between any two beats, so each slice sees other nodes than the one before.
    for round in 0..40 {
        let pod = format!("pod{round}");
        town.join(&pod);
        town.run(200);
        town.workers.get_mut(&node(&pod)).unwrap().leaving = true;
        town.run(200);
    }
    assert_eq!(town.served().len(), shards as usize, "{:#?}", town.notices);
    assert_eq!(town.cluster.nodes()[&node("n3")].held(), 0, "{:#?}", town.notices);
}

/// Where a run begins, and where its changes are complete, all shards are gone through in one piece: a decision that does so
/// does little else. At 100,000 shards that and four plans were 100 ms together.
#[test]
fn b7_going_through_all_shards_in_one_piece_counts_as_work() {
    let (shards, slice) = (400, 64);
    let mut town = Town::new(keyspace(shards), slots(shards));
    town.cluster = town.cluster.clone().with_slice(Slice { planned: slice });
    (0..4).for_each(|number| town.join(&format!("n{number}")));
    let passing_over = shards as u64 / limits::SHARDS_PASSED_OVER as u64;
    let mut gone_through = 0;
    for _ in 0..400 {
        town.now += BEAT_MS;
        let names: Vec<_> = town.workers.keys().cloned().collect();
        names.iter().for_each(|name| town.beat(name));
        let before = town.cluster.work_done().planned;
        town.decide_once();
        let planned = town.cluster.work_done().planned - before;
        // A piece of the policy is more than that.
        gone_through += u32::from((passing_over..=passing_over + slice as u64).contains(&planned));
        if !town.cluster.plans().is_empty() {
            break;
        }
    }
    assert_eq!(gone_through, 2, "{:#?}", town.notices);
}

#[test]
fn b7_b10_leases_are_renewed_between_the_pieces_of_a_policy() {
    let mut town = settled(60, 4);
    town.cluster = town.cluster.clone().with_slice(Slice { planned: 1 });
    town.kill("n3");
    let (mut streak, mut longest) = (0, 0);
    for _ in 0..300 {
        town.now += BEAT_MS;
        let names: Vec<_> = town.workers.keys().cloned().collect();
        for name in names {
            let beat = town.next_beat(&name);
            let sent_at = beat.sent_at;
            let orders = town.cluster.beat(town.at(), beat).unwrap();
            assert_eq!(orders.lease.map(|lease| lease.sent_at), Some(sent_at), "{name} at {}", town.now);
        }
        let before = town.cluster.work_done().planned;
        town.decide_once();
        // Shards and changes come one at a time, so what is as much as all nodes is a piece of the policy.
        let is_piece = town.cluster.work_done().planned - before >= 4;
        streak = if is_piece { streak + 1 } else { 0 };
        longest = longest.max(streak);
    }
    // The draft, what is filled, what is drawn, what is listed, the solution: each a decision of its own.
    assert!(longest >= 5, "{longest} pieces one after the other");
}

#[test]
fn b7_a_batch_of_beats_grants_a_bounded_number_of_shards_and_all_get_their_grants() {
    let shards = limits::SHARDS_GRANTED as u32 + 500;
    let mut town = settled(shards, 1).restart_coordinator();
    town.beat(&node("n0"));
    let waiting = |town: &Town| town.cluster.keyspaces().values().next().unwrap().ungranted.len();
    assert_eq!(waiting(&town), shards as usize);
    let at = town.at();
    for granted in [limits::SHARDS_GRANTED, 500, 0] {
        let before = waiting(&town);
        town.cluster.outbox.writes.clear();
        town.cluster.grant_at_once(at);
        assert_eq!(before - waiting(&town), granted);
    }
    town.run(1_000);
    assert_eq!((waiting(&town), town.served().len()), (0, shards as usize));
}

#[test]
fn b7_what_happens_to_one_node_wakes_what_that_node_holds() {
    let mut town = settled(400, 20);
    let held = town.cluster.nodes()[&node("n3")].held() as u64;
    let before = town.cluster.work_done().woken;
    town.kill("n3");
    town.run(4_000);
    let woken = town.cluster.work_done().woken - before;
    // It is suspect, its lease lapses, it is dead.
    assert!(held > 0 && (held..=4 * held).contains(&woken), "{woken} for {held}");
    assert_eq!(town.served().len(), 400);
}

#[test]
fn b9_loads_whose_sum_is_no_number_stop_no_repair() {
    let mut town = settled(6, 3);
    let load =
        Load { requests_per_s: f64::MAX, cpu_ms_per_s: f64::MAX, size_bytes: u64::MAX, ..Load::default() };
    (1..=6).for_each(|shard| drop(town.loads.insert(ShardId(shard), load.clone())));
    town.run(6_000);
    town.kill("n1");
    town.run(6_000);
    assert_eq!(town.served().len(), 6, "{:#?}", town.notices);
    assert_eq!(town.unplaced(), [""; 0]);
}

#[test]
fn b9_capacities_whose_sum_is_no_number_are_refused() {
    let mut town = settled(1, 1);
    for capacity in [f64::MAX, 1e-300] {
        let spec = NodeSpec { capacity, ..NodeSpec::new(node("huge"), "127.0.0.1:9") };
        let answer = town.cluster.register(town.at(), Registration::new(spec));
        assert!(matches!(answer, Err(RegisterError::Spec(_))), "{capacity}");
    }
}

#[test]
fn b9_pods_that_came_and_went_are_forgotten_and_no_incarnation_is_given_out_again() {
    let mut town = settled(4, 2);
    for number in 0..30 {
        let pod = format!("pod{number}");
        town.join(&pod);
        town.run(200);
        if number % 2 == 0 {
            town.workers.get_mut(&node(&pod)).unwrap().leaving = true;
        } else {
            // Not so many within a minute that the brake goes on.
            town.kill(&pod);
            town.run(31_000);
        }
        town.run(3_000);
    }
    assert!(town.cluster.nodes().len() > 20, "they are remembered for a while");
    let latest = town.cluster.nodes().values().map(|node| node.record.incarnation).max();
    town.now += limits::DEAD_NODE_MS;
    town.cluster.promised = Millis(town.now);
    town.run(5_000);
    town.now += limits::DEAD_NODE_MS;
    town.cluster.promised = Millis(town.now);
    town.run(5_000);
    let names: Vec<_> = town.cluster.nodes().keys().map(ToString::to_string).collect();
    assert_eq!(names, ["n0", "n1"]);
    assert_eq!(town.disk.nodes.len(), 2);
    town.join("pod0");
    assert!(Some(town.cluster.nodes()[&node("pod0")].record.incarnation) > latest);
}

#[test]
fn b9_at_most_so_many_nodes_are_remembered_that_have_ended_also_when_a_drain_stays_with_them() {
    let mut town = settled(1, 1);
    for number in 0..limits::ENDED_NODES + 20 {
        let pod = format!("pod{number}");
        let spec = NodeSpec::new(node(&pod), format!("127.0.0.1:{}", 10_000 + number));
        let at = Moment { now: Millis(town.now), wall_ms: town.now };
        let welcome = town.cluster.register(at, Registration::new(spec)).unwrap();
        town.drain(&pod);
        town.cluster
            .leave(at, &node(&pod), welcome.incarnation, crate::id::SessionDigest::default())
            .unwrap();
        town.now += 1;
    }
    town.run(1_000);
    assert_eq!(town.cluster.nodes().len(), 1 + limits::ENDED_NODES);
    assert!(!town.cluster.nodes().contains_key(&node("pod0")), "the oldest went first");
    assert!(settings().dead_after_ms < limits::LEFT_NODE_MS);
}
