//! Another number of fixed slots while the keyspace serves (K7).

use super::super::admin::{AdminError, Answer, Command, KeyspaceChanges, Kind};
use super::test_cluster::{BEAT_MS, TestCluster, keyspace, name, settings, slots};
use crate::base::id::TransactionId;
use crate::keyspace::hash::HashFunction;
use crate::keyspace::sharding::{Bounds, Sharding, Slot};
use crate::keyspace::{Keyspace, Resharding, Throttle};
use crate::plan::check;
use crate::plan::{Progress, Status};
use proptest::prelude::*;

fn cluster_of(shards: u32, settings: Keyspace) -> TestCluster {
    let mut test = TestCluster::new(settings, slots(shards));
    ["a", "b", "c"].into_iter().for_each(|name| test.join(name));
    test.run(3_000);
    assert_eq!(test.served().len(), shards as usize, "{:#?}", test.notices);
    test
}

fn reshard(test: &mut TestCluster, to: u32, dry_run: bool) -> Result<Answer, AdminError> {
    let at = test.at();
    let changes = Box::new(KeyspaceChanges { shards: Some(to), ..KeyspaceChanges::default() });
    let command = Command::UpdateKeyspace { keyspace: name(), changes, ahead: false };
    let answer = match dry_run {
        true => test.cluster.clone().dry_run(at, TransactionId([9; 20]), "mia", command),
        false => test.cluster.command(at, TransactionId([9; 20]), "mia", command),
    };
    test.decide();
    answer
}

fn keys() -> Vec<Vec<u8>> {
    (0..300u32).map(|at| format!("key-{at}").into_bytes()).collect()
}

/// Runs until nothing is under way, and looks after every beat that each key has one owner.
fn watch(test: &mut TestCluster, most_ms: u64) {
    let end = test.now + most_ms;
    while test.now < end {
        test.run(BEAT_MS);
        let map = test.map();
        assert_eq!(check::map(map), vec![]);
        for key in keys() {
            let position = map.sharding().position(map.partition_key(), &key);
            let owners = map.shards().filter(|s| s.is_serving() && s.bounds.contains(position)).count();
            assert_eq!(owners, 1, "at {}", test.now);
        }
        let over = test.plans().iter().all(|plan| plan.is_over());
        if over && map.shards().all(|shard| shard.is_settled()) {
            return;
        }
    }
    panic!("it does not come to an end: {:#?}", test.notices);
}

/// Each key is where a keyspace that had always had `of` slots would have it.
fn assert_slots(test: &TestCluster, of: u32) {
    let hash = HashFunction::Xxh3_64;
    let map = test.map();
    assert_eq!(map.sharding(), Sharding::Fixed { hash, shards: of });
    assert_eq!(test.disk.keyspaces[0].0.keyspace.sharding, map.sharding(), "it is durable");
    assert_eq!(map.shards().filter(|shard| shard.is_serving()).count(), of as usize);
    for key in keys() {
        let slot = Slot::new(hash.slot(&key, of), of).unwrap();
        assert_eq!(map.find(&key).unwrap().bounds, Bounds::Slot(slot));
    }
    assert_eq!(test.served().len(), of as usize);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn k7_every_key_has_one_owner_at_every_stage_and_the_right_one_in_the_end(
        first in 1u32..9, factors in proptest::collection::vec((any::<bool>(), 2u32..6), 1..4), replicas in 1u32..3,
    ) {
        let mut test = cluster_of(first, Keyspace { replicas, ..keyspace(first) });
        let mut of = first;
        for (up, factor) in factors {
            let to = if up || !of.is_multiple_of(factor) { of * factor } else { of / factor };
            if to > 60 {
                continue;
            }
            reshard(&mut test, to, false).unwrap();
            watch(&mut test, 120_000);
            assert_slots(&test, to);
            of = to;
        }
    }
}

#[test]
fn k7_a_dry_run_shows_the_plan_and_changes_nothing() {
    let mut test = cluster_of(4, keyspace(4));
    let generation = test.map().generation();
    let answer = reshard(&mut test, 12, true).unwrap();
    assert_eq!(answer.plan.as_ref().map(|plan| plan.changes.len()), Some(4));
    assert!(answer.summary.contains("shards to 12, by 4 splits or merges"), "{}", answer.summary);
    let again = reshard(&mut test, 4, true).unwrap();
    assert!(again.plan.is_none() && again.summary.contains("nothing differs"), "{}", again.summary);
    test.run(5_000);
    assert_eq!(test.map().generation(), generation);
}

#[test]
fn k7_what_cannot_be_says_what_can() {
    let resharding = Resharding { min_shards: 2, max_shards: 1_000, ..Resharding::default() };
    let mut test = cluster_of(6, Keyspace { resharding, ..keyspace(6) });
    for (to, kind, way_out) in [
        (4, Kind::Refused, "change it to 12 first, then to 4"),
        (997, Kind::Refused, "a multiple or a divisor of 6"),
        (600, Kind::Refused, "each by a factor of 64 at most"),
        (1_200, Kind::Refused, "its max_shards is 1000: raise it first"),
        (1, Kind::Refused, "its min_shards is 2: lower it first"),
        (0, Kind::Invalid, "give shards = 1 or more"),
    ] {
        let error = reshard(&mut test, to, false).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(way_out), "{to}: {error}");
    }
    reshard(&mut test, 12, false).unwrap();
    let error = reshard(&mut test, 6, false).unwrap_err();
    assert!(error.kind() == Kind::Conflict && error.to_string().contains("wait until"), "{error}");
    watch(&mut test, 60_000);
    assert_slots(&test, 12);
}

#[test]
fn k7_between_numbers_that_share_no_factor_it_goes_by_both() {
    let mut test = cluster_of(6, keyspace(6));
    for to in [12, 4, 20, 5] {
        reshard(&mut test, to, false).unwrap();
        watch(&mut test, 60_000);
        assert_slots(&test, to);
    }
}

#[test]
fn k17_it_goes_as_fast_as_the_throttle_lets_it() {
    let throttle = Throttle { moves: 3, ..Throttle::default() };
    let mut test = cluster_of(12, Keyspace { throttle, ..keyspace(12) });
    reshard(&mut test, 24, false).unwrap();
    let mut most = 0;
    for _ in 0..100 {
        let forming = test.map().shards().filter(|shard| !shard.is_serving() && shard.parents().len() == 1);
        most = most.max(forming.count());
        test.run(BEAT_MS);
    }
    assert_eq!(most, 6, "two children each of three parents");
    watch(&mut test, 60_000);
    assert_slots(&test, 24);
}

#[test]
fn k7_what_a_death_has_stopped_goes_on_when_it_is_asked_again_or_back() {
    for goal in [24, 12] {
        let throttle = Throttle { moves: 2, ..Throttle::default() };
        let mut test = cluster_of(12, Keyspace { throttle, replicas: 2, ..keyspace(12) });
        reshard(&mut test, 24, false).unwrap();
        test.run(3 * BEAT_MS);
        test.kill("b");
        watch(&mut test, settings().dead_after_ms + 60_000);
        let plan = test.plans().into_iter().find(|plan| plan.changes.len() == 12).unwrap();
        let dropped = plan.changes.iter().filter(|p| matches!(p.progress, Progress::Dropped(_))).count();
        assert!(plan.status == Status::Finished && dropped > 0, "{plan:#?}");
        assert_eq!(check::map(test.map()), vec![], "slots of both numbers side by side");
        reshard(&mut test, goal, false).unwrap();
        watch(&mut test, 60_000);
        assert_slots(&test, goal);
    }
}

#[test]
fn k7_a_coordinator_that_starts_in_the_middle_goes_on() {
    let throttle = Throttle { moves: 2, ..Throttle::default() };
    let mut test = cluster_of(12, Keyspace { throttle, ..keyspace(12) });
    reshard(&mut test, 36, false).unwrap();
    test.run(4 * BEAT_MS);
    assert!(test.map().shards().any(|shard| !shard.is_serving()));
    test = test.restart_coordinator();
    watch(&mut test, 60_000);
    assert_slots(&test, 36);
}
