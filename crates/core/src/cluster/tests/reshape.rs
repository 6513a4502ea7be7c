//! Splits, merges and extra replicas as they follow from loads, through to who serves what.

use super::super::admin::Command;
use super::test_cluster::{TestCluster, keyspace, node};
use crate::base::id::TransactionId;
use crate::keyspace::hash::HashFunction;
use crate::keyspace::key::HashRange;
use crate::keyspace::map::Shard;
use crate::keyspace::sharding::{Bounds, Sharding};
use crate::keyspace::{Keyspace, Mode, Resharding};
use crate::node::load::Load;
use crate::plan::{Change, Origin, Status};

const WINDOW_MS: u64 = 4_000;

fn hashed() -> Keyspace {
    Keyspace {
        sharding: Sharding::HashRange { hash: HashFunction::Xxh3_64 },
        resharding: Resharding {
            split_requests_per_s: 1_000.0,
            window_ms: WINDOW_MS,
            ..Resharding::default()
        },
        ..keyspace(1)
    }
}

/// Three nodes that serve one shard over the whole hash space.
fn whole(keyspace: Keyspace) -> TestCluster {
    let mut test = TestCluster::new(keyspace, vec![Bounds::Hashes(HashRange::ALL)]);
    ["a", "b", "c"].into_iter().for_each(|name| test.join(name));
    test.run(1_000);
    assert_eq!(test.served().len(), 1);
    test
}

fn serving(test: &TestCluster) -> usize {
    test.map().shards().filter(|shard| shard.is_serving()).count()
}

#[test]
fn k5_a_busy_shard_is_cut_and_spread_and_joined_again_when_it_has_been_quiet() {
    let mut test = whole(hashed());
    test.rate = Some(3_000.0);
    test.run(WINDOW_MS - 500);
    assert_eq!(serving(&test), 1, "not before the window has passed");
    for _ in 0..60 {
        test.run(1_000);
        let leads = test.map().shards().filter(|s| s.is_serving() && s.leader().is_some()).count();
        assert_eq!(leads, serving(&test), "O8, O11: every key has a leader");
    }
    assert_eq!(serving(&test), 4, "{:#?}", test.notices);
    assert!(test.is_at_rest(1) && test.served().len() == 4);
    assert!(test.counts().len() == 3, "the children are spread: {:?}", test.counts());
    let generation = test.map().generation();
    test.run(30_000);
    assert_eq!(test.map().generation(), generation, "L2");

    test.rate = Some(300.0);
    test.run(60_000);
    assert_eq!(serving(&test), 1, "{:#?}", test.notices);
    assert!(test.is_at_rest(1) && test.served().len() == 1 && test.map().len() == 1, "L7");
}

#[test]
fn k15_a_cut_waits_for_a_person_in_mode_suggested() {
    let mut test = whole(Keyspace { mode: Mode::Suggested, ..hashed() });
    test.rate = Some(3_000.0);
    test.run(30_000);
    assert_eq!(serving(&test), 1);
    let waiting: Vec<_> = test.plans().into_iter().filter(|p| p.status == Status::Suggested).collect();
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].origin, Origin::Rebalance);
    assert!(matches!(&waiting[0].changes[0].change, Change::Split { children, .. } if children.len() == 2));
    assert!(waiting[0].changes[0].reason.contains("3000 requests a second for 4 s"), "{waiting:?}");
}

#[test]
fn k12_a_hot_partition_that_cannot_be_cut_gets_replicas_and_gives_them_back() {
    let resharding = Resharding { max_replicas: 3, ..hashed().resharding };
    let mut test = TestCluster::new(Keyspace { resharding, ..keyspace(2) }, super::test_cluster::slots(2));
    ["a", "b", "c", "d"].into_iter().for_each(|name| test.join(name));
    test.run(1_000);
    let hot = test.map().shards().next().unwrap().id;
    let replicas = |test: &TestCluster| test.map().shard(hot).unwrap().live().count();
    // What readers bring is spread over the replicas.
    let spread = |test: &mut TestCluster, rate: f64| {
        for _ in 0..30 {
            let each = rate / replicas(test) as f64;
            test.loads.insert(hot, Load { requests_per_s: each, ..Load::default() });
            test.run(1_000);
        }
    };
    spread(&mut test, 1_900.0);
    assert_eq!(replicas(&test), 2, "{:#?}", test.notices);
    spread(&mut test, 9_000.0);
    assert_eq!(replicas(&test), 3);
    assert!(
        test.cluster.keyspaces()[&super::test_cluster::name()].advice()[0]
            .contains("pin it to a node of its own")
    );
    let map = test.map().clone();
    test = test.restart_coordinator();
    test.run(2_000);
    assert_eq!(test.map(), &map, "R6: what was hot may still be");
    spread(&mut test, 100.0);
    assert_eq!(replicas(&test), 1, "{:#?}", test.notices);
    assert!(test.map().shards().all(Shard::is_settled));
}

/// What moves is no candidate for more or fewer replicas, and was to have those of its keyspace meanwhile: other shards moved
/// into the room that the rest seemed to leave, and back.
#[test]
fn k12_a_hot_partition_keeps_its_replicas_while_one_of_them_moves() {
    let resharding = Resharding { max_replicas: 2, ..hashed().resharding };
    let mut test = TestCluster::new(Keyspace { resharding, ..keyspace(2) }, super::test_cluster::slots(2));
    ["a", "b", "c", "d"].into_iter().for_each(|name| test.join(name));
    test.run(1_000);
    let hot = test.map().shards().next().unwrap().id;
    for _ in 0..30 {
        let each = 1_900.0 / test.map().shard(hot).unwrap().live().count() as f64;
        test.loads.insert(hot, Load { requests_per_s: each, ..Load::default() });
        test.run(1_000);
    }
    let shard = test.map().shard(hot).unwrap().clone();
    assert_eq!(shard.live().count(), 2, "{:#?}", test.notices);
    let from = shard.live().find(|r| Some(*r) != shard.leader()).unwrap().node.clone();
    let to =
        ["a", "b", "c", "d"].map(node).into_iter().find(|id| shard.live().all(|r| r.node != *id)).unwrap();
    let keyspace = super::test_cluster::name();
    let command = Command::MoveShard { keyspace, shard: hot, from, to };
    test.cluster.command(test.at(), TransactionId([9; 20]), "mia", command).unwrap();
    test.decide();
    assert!(!test.map().shard(hot).unwrap().is_settled(), "{:#?}", test.notices);
    let asked_for = |test: &TestCluster| {
        let keyspace = &test.cluster.keyspaces()[&super::test_cluster::name()];
        test.cluster.replicas_asked_for(test.at(), keyspace)[&hot]
    };
    assert_eq!(asked_for(&test), 2, "nothing tells that it is not hot any more");
    // The one on a node that is to be emptied is let go of.
    let leader = shard.leader().unwrap().node.clone();
    test.cluster.members.get_mut(&leader).unwrap().leaving = true;
    assert_eq!(asked_for(&test), 1);
}

#[test]
fn a_shard_on_a_draining_node_is_moved_before_it_is_cut() {
    let mut test = whole(hashed());
    let home = test.map().shards().next().unwrap().leader().unwrap().node.clone();
    test.rate = Some(1_500.0);
    test.run(WINDOW_MS - 500);
    test.drain(home.as_str());
    test.run(30_000);
    assert_eq!(serving(&test), 2);
    assert!(test.is_at_rest(1) && !test.counts().contains_key(home.as_str()));
    assert!(test.plans().iter().all(|plan| plan.status == Status::Finished), "{:#?}", test.notices);
    assert!(test.workers.contains_key(&node(home.as_str())));
}
