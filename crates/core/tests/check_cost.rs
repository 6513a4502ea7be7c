//! The check of a commit allocates by what the commit touches, whatever the size of the map (B7). Nothing is
//! timed: the bytes that the check takes from the allocator are counted. A check that copies the map fails at once.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use partage_core::base::id::{Incarnation, ShardId, TransactionId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::HashRange;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{MapDiff, ShardMap};
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};
use partage_core::plan::check;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Replicas of each shard.
const REPLICAS: usize = 3;

/// Checks of one commit, of which the one with the fewest bytes counts: the test's own harness may allocate beside one.
const CHECKS: usize = 5;

/// The stretch from `begin` of `parts` equal ones to `end`.
fn stretch(begin: u64, end: u64, parts: u64) -> Bounds {
    let width = (1u64 << 63) / parts * 2;
    let last = if end == parts { u64::MAX } else { end * width - 1 };
    Bounds::Hashes(HashRange { first: begin * width, last })
}

/// `shards` of equal width, each with its replicas.
fn map_of(shards: u64) -> ShardMap {
    let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
    let mut map = ShardMap::empty(KeyspaceName::new("measured").unwrap(), sharding, PartitionKey::Whole);
    let mut edit = map.edit();
    for at in 0..shards {
        let id = edit.create_shard(stretch(at, at + 1, shards)).unwrap();
        for node in 0..REPLICAS {
            let node = NodeId::new(&format!("n{node}")).unwrap();
            let placement = edit.add_replica(id, &node, Incarnation(1), None).unwrap();
            edit.step(id, placement, ReplicaState::Live).unwrap();
        }
    }
    let diff = edit.commit(TransactionId([1; 20]));
    map.apply(&diff).unwrap();
    map
}

/// Bytes that the check of a commit allocates.
fn bytes_of_check(map: &ShardMap, diff: &MapDiff) -> usize {
    let check = || {
        let region = Region::new(ALLOCATOR);
        assert_eq!(check::diff(map, diff), []);
        region.change().bytes_allocated
    };
    (0..CHECKS).map(|_| check()).min().unwrap()
}

/// What each commit of a split costs to check: the one in which two shards form, and the one in which they serve.
fn split_of_one(shards: u64) -> [usize; 2] {
    let mut map = map_of(shards);
    let (parent, at) = (map.shards().nth(1).unwrap().id, 1);
    let halves = [stretch(2 * at, 2 * at + 1, 2 * shards), stretch(2 * at + 1, 2 * at + 2, 2 * shards)];
    let mut edit = map.edit();
    let children: Vec<ShardId> = edit.form_shards(halves.into(), &[parent]).unwrap();
    let forming = edit.commit(TransactionId([2; 20]));
    let before = bytes_of_check(&map, &forming);
    map.apply(&forming).unwrap();
    let mut edit = map.edit();
    edit.switch(&[parent], &children).unwrap();
    let switching = edit.commit(TransactionId([3; 20]));
    [before, bytes_of_check(&map, &switching)]
}

#[test]
fn b7_the_check_of_a_split_costs_the_same_in_a_map_of_16_and_of_16_384_shards() {
    assert_eq!(split_of_one(16), split_of_one(16_384), "bytes, of a shard that forms and of one that serves");
}
