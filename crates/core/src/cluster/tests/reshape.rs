//! Splits, merges and extra replicas as they follow from loads, through to who serves what.

use super::town::{Town, keyspace, node};
use crate::hash::HashFunction;
use crate::key::HashRange;
use crate::keyspace::{Keyspace, Mode, Resharding};
use crate::load::Load;
use crate::map::Shard;
use crate::plan::{Change, Origin, Status};
use crate::sharding::{Bounds, Sharding};

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
fn whole(keyspace: Keyspace) -> Town {
    let mut town = Town::new(keyspace, vec![Bounds::Hashes(HashRange::ALL)]);
    ["a", "b", "c"].into_iter().for_each(|name| town.join(name));
    town.run(1_000);
    assert_eq!(town.served().len(), 1);
    town
}

fn serving(town: &Town) -> usize {
    town.map().shards().filter(|shard| shard.is_serving()).count()
}

#[test]
fn k5_a_busy_shard_is_cut_and_spread_and_joined_again_when_it_has_been_quiet() {
    let mut town = whole(hashed());
    town.rate = Some(3_000.0);
    town.run(WINDOW_MS - 500);
    assert_eq!(serving(&town), 1, "not before the window has passed");
    for _ in 0..60 {
        town.run(1_000);
        let leads = town.map().shards().filter(|s| s.is_serving() && s.leader().is_some()).count();
        assert_eq!(leads, serving(&town), "O8, O11: every key has a leader");
    }
    assert_eq!(serving(&town), 4, "{:#?}", town.notices);
    assert!(town.is_at_rest(1) && town.served().len() == 4);
    assert!(town.counts().len() == 3, "the children are spread: {:?}", town.counts());
    let generation = town.map().generation();
    town.run(30_000);
    assert_eq!(town.map().generation(), generation, "L2");

    town.rate = Some(300.0);
    town.run(60_000);
    assert_eq!(serving(&town), 1, "{:#?}", town.notices);
    assert!(town.is_at_rest(1) && town.served().len() == 1 && town.map().len() == 1, "L7");
}

#[test]
fn k15_a_cut_waits_for_a_person_in_mode_suggested() {
    let mut town = whole(Keyspace { mode: Mode::Suggested, ..hashed() });
    town.rate = Some(3_000.0);
    town.run(30_000);
    assert_eq!(serving(&town), 1);
    let waiting: Vec<_> = town.plans().into_iter().filter(|p| p.status == Status::Suggested).collect();
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].origin, Origin::Rebalance);
    assert!(matches!(&waiting[0].changes[0].change, Change::Split { children, .. } if children.len() == 2));
    assert!(waiting[0].changes[0].reason.contains("3000 requests a second for 4 s"), "{waiting:?}");
}

#[test]
fn k12_a_hot_partition_that_cannot_be_cut_gets_replicas_and_gives_them_back() {
    let resharding = Resharding { max_replicas: 3, ..hashed().resharding };
    let mut town = Town::new(Keyspace { resharding, ..keyspace(2) }, super::town::slots(2));
    ["a", "b", "c", "d"].into_iter().for_each(|name| town.join(name));
    town.run(1_000);
    let hot = town.map().shards().next().unwrap().id;
    let replicas = |town: &Town| town.map().shard(hot).unwrap().live().count();
    // What readers bring is spread over the replicas.
    let spread = |town: &mut Town, rate: f64| {
        for _ in 0..30 {
            let each = rate / replicas(town) as f64;
            town.loads.insert(hot, Load { requests_per_s: each, ..Load::default() });
            town.run(1_000);
        }
    };
    spread(&mut town, 1_900.0);
    assert_eq!(replicas(&town), 2, "{:#?}", town.notices);
    spread(&mut town, 9_000.0);
    assert_eq!(replicas(&town), 3);
    assert!(
        town.cluster.keyspaces()[&super::town::name()].advice()[0].contains("pin it to a node of its own")
    );
    let map = town.map().clone();
    town = town.restart_coordinator();
    town.run(2_000);
    assert_eq!(town.map(), &map, "R6: what was hot may still be");
    spread(&mut town, 100.0);
    assert_eq!(replicas(&town), 1, "{:#?}", town.notices);
    assert!(town.map().shards().all(Shard::is_settled));
}

#[test]
fn a_shard_on_a_draining_node_is_moved_before_it_is_cut() {
    let mut town = whole(hashed());
    let home = town.map().shards().next().unwrap().leader().unwrap().node.clone();
    town.rate = Some(1_500.0);
    town.run(WINDOW_MS - 500);
    town.drain(home.as_str());
    town.run(30_000);
    assert_eq!(serving(&town), 2);
    assert!(town.is_at_rest(1) && !town.counts().contains_key(home.as_str()));
    assert!(town.plans().iter().all(|plan| plan.status == Status::Finished), "{:#?}", town.notices);
    assert!(town.workers.contains_key(&node(home.as_str())));
}
