//! Another number of fixed slots while the keyspace serves (K7).

use super::super::admin::{AdminError, Answer, Command, KeyspaceChanges, Kind};
use super::town::{BEAT_MS, Town, keyspace, name, settings, slots};
use crate::check;
use crate::hash::HashFunction;
use crate::id::TransactionId;
use crate::keyspace::{Keyspace, Resharding, Throttle};
use crate::plan::{Progress, Status};
use crate::sharding::{Bounds, Sharding, Slot};
use proptest::prelude::*;

fn town_of(shards: u32, settings: Keyspace) -> Town {
    let mut town = Town::new(settings, slots(shards));
    ["a", "b", "c"].into_iter().for_each(|name| town.join(name));
    town.run(3_000);
    assert_eq!(town.served().len(), shards as usize, "{:#?}", town.notices);
    town
}

fn reshard(town: &mut Town, to: u32, dry_run: bool) -> Result<Answer, AdminError> {
    let at = town.at();
    let changes = Box::new(KeyspaceChanges { shards: Some(to), ..KeyspaceChanges::default() });
    let command = Command::UpdateKeyspace { keyspace: name(), changes, ahead: false };
    let answer = town.cluster.command(at, TransactionId([9; 20]), "mia", command, dry_run);
    town.decide();
    answer
}

fn keys() -> Vec<Vec<u8>> {
    (0..300u32).map(|at| format!("key-{at}").into_bytes()).collect()
}

/// Runs until nothing is under way, and looks after every beat that each key has one owner.
fn watch(town: &mut Town, most_ms: u64) {
    let end = town.now + most_ms;
    while town.now < end {
        town.run(BEAT_MS);
        let map = town.map();
        assert_eq!(check::map(map), vec![]);
        for key in keys() {
            let position = map.sharding().position(map.partition_key(), &key);
            let owners = map.shards().filter(|s| s.is_serving() && s.bounds.contains(position)).count();
            assert_eq!(owners, 1, "at {}", town.now);
        }
        let over = town.plans().iter().all(|plan| plan.is_over());
        if over && map.shards().all(|shard| shard.is_settled()) {
            return;
        }
    }
    panic!("it does not come to an end: {:#?}", town.notices);
}

/// Each key is where a keyspace that had always had `of` slots would have it.
fn assert_slots(town: &Town, of: u32) {
    let hash = HashFunction::Xxh3_64;
    let map = town.map();
    assert_eq!(map.sharding(), Sharding::Fixed { hash, shards: of });
    assert_eq!(town.disk.keyspaces[0].0.keyspace.sharding, map.sharding(), "it is durable");
    assert_eq!(map.shards().filter(|shard| shard.is_serving()).count(), of as usize);
    for key in keys() {
        let slot = Slot::new(hash.slot(&key, of), of).unwrap();
        assert_eq!(map.find(&key).unwrap().bounds, Bounds::Slot(slot));
    }
    assert_eq!(town.served().len(), of as usize);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn k7_every_key_has_one_owner_at_every_stage_and_the_right_one_in_the_end(
        first in 1u32..9, factors in proptest::collection::vec((any::<bool>(), 2u32..6), 1..4), replicas in 1u32..3,
    ) {
        let mut town = town_of(first, Keyspace { replicas, ..keyspace(first) });
        let mut of = first;
        for (up, factor) in factors {
            let to = if up || !of.is_multiple_of(factor) { of * factor } else { of / factor };
            if to > 60 {
                continue;
            }
            reshard(&mut town, to, false).unwrap();
            watch(&mut town, 120_000);
            assert_slots(&town, to);
            of = to;
        }
    }
}

#[test]
fn k7_a_dry_run_shows_the_plan_and_changes_nothing() {
    let mut town = town_of(4, keyspace(4));
    let generation = town.map().generation();
    let answer = reshard(&mut town, 12, true).unwrap();
    assert_eq!(answer.plan.as_ref().map(|plan| plan.changes.len()), Some(4));
    assert!(answer.summary.contains("shards to 12, by 4 splits or merges"), "{}", answer.summary);
    let again = reshard(&mut town, 4, true).unwrap();
    assert!(again.plan.is_none() && again.summary.contains("nothing differs"), "{}", again.summary);
    town.run(5_000);
    assert_eq!(town.map().generation(), generation);
}

#[test]
fn k7_what_cannot_be_says_what_can() {
    let resharding = Resharding { min_shards: 2, max_shards: 1_000, ..Resharding::default() };
    let mut town = town_of(6, Keyspace { resharding, ..keyspace(6) });
    for (to, kind, way_out) in [
        (4, Kind::Refused, "change it to 12 first, then to 4"),
        (997, Kind::Refused, "a multiple or a divisor of 6"),
        (600, Kind::Refused, "each by a factor of 64 at most"),
        (1_200, Kind::Refused, "its max_shards is 1000: raise it first"),
        (1, Kind::Refused, "its min_shards is 2: lower it first"),
        (0, Kind::Invalid, "give shards = 1 or more"),
    ] {
        let error = reshard(&mut town, to, false).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(way_out), "{to}: {error}");
    }
    reshard(&mut town, 12, false).unwrap();
    let error = reshard(&mut town, 6, false).unwrap_err();
    assert!(error.kind() == Kind::Conflict && error.to_string().contains("wait until"), "{error}");
    watch(&mut town, 60_000);
    assert_slots(&town, 12);
}

#[test]
fn k7_between_numbers_that_share_no_factor_it_goes_by_both() {
    let mut town = town_of(6, keyspace(6));
    for to in [12, 4, 20, 5] {
        reshard(&mut town, to, false).unwrap();
        watch(&mut town, 60_000);
        assert_slots(&town, to);
    }
}

#[test]
fn k17_it_goes_as_fast_as_the_throttle_lets_it() {
    let throttle = Throttle { moves: 3, ..Throttle::default() };
    let mut town = town_of(12, Keyspace { throttle, ..keyspace(12) });
    reshard(&mut town, 24, false).unwrap();
    let mut most = 0;
    for _ in 0..100 {
        let forming = town.map().shards().filter(|shard| !shard.is_serving() && shard.parents().len() == 1);
        most = most.max(forming.count());
        town.run(BEAT_MS);
    }
    assert_eq!(most, 6, "two children each of three parents");
    watch(&mut town, 60_000);
    assert_slots(&town, 24);
}

#[test]
fn k7_what_a_death_has_stopped_goes_on_when_it_is_asked_again_or_back() {
    for goal in [24, 12] {
        let throttle = Throttle { moves: 2, ..Throttle::default() };
        let mut town = town_of(12, Keyspace { throttle, replicas: 2, ..keyspace(12) });
        reshard(&mut town, 24, false).unwrap();
        town.run(3 * BEAT_MS);
        town.kill("b");
        watch(&mut town, settings().dead_after_ms + 60_000);
        let plan = town.plans().into_iter().find(|plan| plan.changes.len() == 12).unwrap();
        let dropped = plan.changes.iter().filter(|p| matches!(p.progress, Progress::Dropped(_))).count();
        assert!(plan.status == Status::Finished && dropped > 0, "{plan:#?}");
        assert_eq!(check::map(town.map()), vec![], "slots of both numbers side by side");
        reshard(&mut town, goal, false).unwrap();
        watch(&mut town, 60_000);
        assert_slots(&town, goal);
    }
}

#[test]
fn k7_a_coordinator_that_starts_in_the_middle_goes_on() {
    let throttle = Throttle { moves: 2, ..Throttle::default() };
    let mut town = town_of(12, Keyspace { throttle, ..keyspace(12) });
    reshard(&mut town, 36, false).unwrap();
    town.run(4 * BEAT_MS);
    assert!(town.map().shards().any(|shard| !shard.is_serving()));
    town = town.restart_coordinator();
    watch(&mut town, 60_000);
    assert_slots(&town, 36);
}
