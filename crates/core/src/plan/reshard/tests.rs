use super::*;
use crate::base::id::{Configuration, Incarnation, PlacementId};
use crate::keyspace::hash::HashFunction;
use crate::keyspace::key::{HashRange, KeyRange};
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::{Lineage, Replicas, Stage};
use crate::keyspace::sharding::Bounds;
use proptest::prelude::*;

const WINDOW: u64 = 60_000;
const HASHED: Sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

fn keys(begin: &str, end: &str) -> Bounds {
    Bounds::Keys(KeyRange { begin: key(begin), end: key(end) })
}

fn shard(id: u64, bounds: Bounds, parents: &[u64]) -> Shard {
    let (stage, parents) = (Stage::Serving, parents.iter().copied().map(ShardId).collect());
    let lineage = Lineage::new(stage, parents);
    let (id, epoch, configuration) = (ShardId(id), Epoch(1), Configuration(0));
    let shard = Shard { id, epoch, configuration, bounds, lineage, replicas: Replicas::default() };
    on(&shard, &["a"])
}

/// The same, served by these nodes, and led by the first.
fn on(shard: &Shard, nodes: &[&str]) -> Shard {
    let replica = |(at, node): (usize, &&str)| Replica {
        placement: PlacementId(at as u64 + 1),
        node: NodeId::new(node).unwrap(),
        incarnation: Incarnation(1),
        role: if at == 0 { Role::Leader } else { Role::Follower },
        state: ReplicaState::Live,
        in_sync: false,
        predecessor: None,
    };
    Shard { replicas: nodes.iter().enumerate().map(replica).collect(), ..shard.clone() }
}

fn candidate(shard: &Shard, carried: Carried) -> Candidate<'_> {
    Candidate { shard, carried }
}

fn carries(mib: u64, requests_per_s: f64) -> Carried {
    Carried { size_bytes: mib << 20, requests_per_s, median: Some(key("m")), ..Carried::default() }
}

fn resharding() -> Resharding {
    Resharding { split_requests_per_s: 1_000.0, window_ms: WINDOW, ..Resharding::default() }
}

fn terms(resharding: &Resharding, sharding: Sharding, shards: usize) -> Terms<'_> {
    Terms { resharding, sharding, partition_key: PartitionKey::default(), replicas: 1, shards }
}

/// What is proposed after `carried` was seen every five seconds for as long as the window.
fn after_window(shard: &Shard, sharding: Sharding, limits: &Resharding, carried: &Carried) -> Proposals {
    let mut tracker = Tracker::default();
    let mut last = Proposals::default();
    for now in (0..=WINDOW).step_by(5_000) {
        last = tracker.look(&[candidate(shard, carried.clone())], &terms(limits, sharding, 1), Millis(now));
        assert!(now == WINDOW || last.changes.is_empty(), "nothing before the window has passed");
    }
    last
}

fn parts(proposals: &Proposals) -> Vec<Bounds> {
    match proposals.changes.as_slice() {
        [(Change::Split { children, .. }, _)] => children.iter().map(|(bounds, _)| bounds.clone()).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn k5_a_shard_above_the_size_for_a_window_is_cut_at_its_median() {
    let all = shard(1, keys("", ""), &[]);
    let proposals = after_window(&all, Sharding::KeyRange, &resharding(), &carries(513, 0.0));
    assert_eq!(parts(&proposals), [keys("", "m"), keys("m", "")]);
    assert!(
        proposals.changes[0].1.contains("513 MiB for 60 s, more than 512 MiB"),
        "{:?}",
        proposals.changes
    );
    assert!(after_window(&all, Sharding::KeyRange, &resharding(), &carries(512, 0.0)).changes.is_empty());
    let never = Resharding { split_bytes: 0, ..resharding() };
    assert!(after_window(&all, Sharding::KeyRange, &never, &carries(9_999, 0.0)).changes.is_empty());
}

#[test]
fn one_look_below_the_threshold_starts_the_window_again() {
    let (all, limits) = (shard(1, keys("", ""), &[]), resharding());
    let mut tracker = Tracker::default();
    for now in (0..10 * WINDOW).step_by(5_000) {
        let load = if now % WINDOW == 0 { carries(100, 0.0) } else { carries(600, 5_000.0) };
        let proposals =
            tracker.look(&[candidate(&all, load)], &terms(&limits, Sharding::KeyRange, 1), Millis(now));
        assert!(proposals.changes.is_empty(), "at {now}");
    }
}

#[test]
fn a_hash_range_is_cut_in_the_middle_and_a_single_point_not_at_all() {
    let all = shard(1, Bounds::Hashes(HashRange::ALL), &[]);
    let halves = parts(&after_window(&all, HASHED, &resharding(), &carries(0, 1_001.0)));
    let half = |first, last| Bounds::Hashes(HashRange { first, last });
    assert_eq!(halves, [half(0, u64::MAX / 2), half(u64::MAX / 2 + 1, u64::MAX)]);
    let point = shard(1, half(7, 7), &[]);
    assert!(after_window(&point, HASHED, &resharding(), &carries(9_999, 1e9)).changes.is_empty());
}

#[test]
fn t13_a_shard_of_one_partition_key_is_not_cut() {
    let by = PartitionKey::UpTo { delimiter: b'/' };
    let rows = Bounds::Keys(KeyRange { begin: key("user7"), end: key("user8") });
    assert!(split::in_two(&rows, by, Some(&key("user7/400"))).is_none());
    assert!(split::in_two(&rows, PartitionKey::default(), Some(&key("user7/400"))).is_some());
    assert!(split::in_two(&keys("a", "c"), by, Some(&key("x"))).is_none(), "a median from elsewhere");
}

#[test]
fn a_change_of_leader_or_of_replicas_starts_the_window_again() {
    let (mut all, limits) = (shard(1, keys("", ""), &[]), resharding());
    let mut tracker = Tracker::default();
    for now in (0..10 * WINDOW).step_by(5_000) {
        if now % WINDOW == 0 {
            all.epoch = all.epoch.next();
        }
        let candidates = [candidate(&all, carries(600, 0.0))];
        let proposals = tracker.look(&candidates, &terms(&limits, Sharding::KeyRange, 1), Millis(now));
        assert!(proposals.changes.is_empty(), "at {now}");
    }
}

fn with_hot(text: &str, share: f64) -> Carried {
    let hot = HotKey { key: key(text), requests_per_s: 2_000.0 * share };
    Carried { hot_keys: vec![hot], ..carries(1, 2_000.0) }
}

#[test]
fn k12_a_key_with_most_of_the_requests_gets_a_shard_of_its_own() {
    let all = shard(1, keys("", ""), &[]);
    let isolated = parts(&after_window(&all, Sharding::KeyRange, &resharding(), &with_hot("k", 0.51)));
    assert_eq!(isolated, [keys("", "k"), keys("k", "k\0"), keys("k\0", "")]);
    let halved = parts(&after_window(&all, Sharding::KeyRange, &resharding(), &with_hot("k", 0.5)));
    assert_eq!(halved, [keys("", "m"), keys("m", "")]);
    let lowest = shard(1, keys("k", "z"), &[]);
    let isolated = parts(&after_window(&lowest, Sharding::KeyRange, &resharding(), &with_hot("k", 0.9)));
    assert_eq!(isolated, [keys("k", "k\0"), keys("k\0", "z")]);
    let hashed = shard(1, Bounds::Hashes(HashRange::ALL), &[]);
    let point = HashFunction::Xxh3_64.point(b"k");
    let isolated = parts(&after_window(&hashed, HASHED, &resharding(), &with_hot("k", 0.9)));
    assert_eq!(isolated[1], Bounds::Hashes(HashRange { first: point, last: point }));
    assert_eq!(isolated.len(), 3);
}

#[test]
fn k12_a_hot_shard_that_cannot_be_cut_gets_replicas_and_then_a_person_is_told() {
    let alone = shard(1, keys("k", "k\0"), &[]);
    let limits = Resharding { max_replicas: 3, ..resharding() };
    let look = |nodes: usize, rate: f64| {
        let mut tracker = Tracker::default();
        let alone = on(&alone, &["a", "b", "c"][..nodes]);
        let mut last = Proposals::default();
        for now in [0, WINDOW] {
            let carried = Carried { requests_per_s: rate, ..with_hot("k", 0.9) };
            last = tracker.look(
                &[candidate(&alone, carried)],
                &terms(&limits, Sharding::KeyRange, 1),
                Millis(now),
            );
            assert!(last.changes.is_empty());
        }
        (last.replicas.get(&ShardId(1)).copied(), last.advice.len())
    };
    assert_eq!(look(1, 2_000.0), (Some(2), 0));
    assert_eq!(look(2, 2_001.0), (Some(3), 0));
    assert_eq!(look(3, 2_001.0), (Some(3), 0), "it carries what it gets");
    assert_eq!(look(3, 4_000.0), (Some(3), 1), "there are no more");
    assert_eq!(look(3, 1_000.0), (Some(2), 0), "two would carry less than half of what they may");
    assert_eq!(look(2, 600.0), (Some(2), 0), "one would not");
    assert_eq!(look(2, 400.0), (None, 0), "back to the keyspace's own");
}

#[test]
fn neighbours_from_cuts_are_joined_on_the_nodes_of_the_heavier_and_others_are_not() {
    let (left, right) = (shard(2, keys("", "m"), &[1]), shard(3, keys("m", ""), &[1]));
    let limits = resharding();
    let look = |right: &Shard, load: Carried, min_shards: u32| {
        let limits = Resharding { min_shards, ..limits.clone() };
        let mut tracker = Tracker::default();
        let mut last = Proposals::default();
        for now in [0, WINDOW / 2, WINDOW] {
            let right = on(right, &["b"]);
            let pair = [candidate(&left, carries(1, 0.0)), candidate(&right, load.clone())];
            last = tracker.look(&pair, &terms(&limits, Sharding::KeyRange, 2), Millis(now));
        }
        last.changes.into_iter().map(|(change, _)| change).next()
    };
    let merge = Change::Merge {
        shards: vec![ShardId(2), ShardId(3)],
        child: (keys("", ""), vec![NodeId::new("b").unwrap()]),
    };
    assert_eq!(look(&right, carries(254, 499.0), 1), Some(merge));
    assert_eq!(look(&right, carries(255, 0.0), 1), None, "exactly half is not below half");
    assert_eq!(look(&right, carries(0, 500.0), 1), None);
    assert_eq!(look(&right, carries(0, 0.0), 2), None, "min_shards");
    assert_eq!(look(&shard(3, keys("m", ""), &[]), carries(0, 0.0), 1), None, "began with the keyspace (K4)");
    assert_eq!(look(&shard(3, keys("n", ""), &[1]), carries(0, 0.0), 1), None, "no neighbour");
}

/// A keyspace of hash ranges whose load is a function of time, with splits and merges done at once. Returns
/// (when, what was cut or joined, load at that time).
fn live(load: impl Fn(u64) -> f64, until: u64, step: u64) -> Vec<(u64, bool, HashRange, f64)> {
    let limits = Resharding { max_shards: 64, ..resharding() };
    let mut shards = vec![shard(1, Bounds::Hashes(HashRange::ALL), &[])];
    let (mut next, mut tracker, mut log) = (2, Tracker::default(), Vec::new());
    for now in (0..until).step_by(step as usize) {
        let total = load(now);
        let part = |range: &HashRange| (range.last - range.first) as f64 / u64::MAX as f64;
        let candidates: Vec<_> = shards
            .iter()
            .map(|shard| match &shard.bounds {
                Bounds::Hashes(range) => candidate(shard, carries(0, total * part(range))),
                other => panic!("{other}"),
            })
            .collect();
        let proposals = tracker.look(&candidates, &terms(&limits, HASHED, shards.len()), Millis(now));
        for (change, _) in proposals.changes {
            let parents = change.shards().to_vec();
            let is_split = matches!(change, Change::Split { .. });
            let children = match change {
                Change::Split { children, .. } => children,
                Change::Merge { child, .. } => vec![child],
                other => panic!("{other}"),
            };
            let ranges = |bounds: &Bounds| match bounds {
                Bounds::Hashes(range) => *range,
                other => panic!("{other}"),
            };
            let whole = HashRange {
                first: ranges(&children[0].0).first,
                last: ranges(&children.last().unwrap().0).last,
            };
            log.push((now, is_split, whole, total));
            shards.retain(|shard| !parents.contains(&shard.id));
            let ids: Vec<u64> = parents.iter().map(|id| id.0).collect();
            for (bounds, _) in children {
                shards.push(shard(next, bounds, &ids));
                next += 1;
            }
        }
    }
    log
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// K5: whatever the load does, keys that were cut are joined again only after a whole window and only when
    /// the load has fallen to less than half of what cut them, and the other way round.
    #[test]
    fn k5_splits_and_merges_never_chase_each_other(
        base in 200.0f64..4_000.0, swing in 0.0f64..0.95, period in 20_000u64..600_000, step in 1_000u64..20_000,
    ) {
        let load = |now: u64| {
            let phase = (now % period) as f64 / period as f64;
            base * (1.0 + swing * if phase < 0.5 { 1.0 } else { -1.0 })
        };
        let log = live(load, 3_600_000, step);
        for (at, (when, is_split, range, rate)) in log.iter().enumerate() {
            let Some(undone) = log[at + 1..].iter().find(|(_, other, whole, _)| other != is_split && whole == range)
            else { continue };
            prop_assert!(undone.0 - when >= WINDOW, "{undone:?} follows {:?}", log[at]);
            let (high, low) = if *is_split { (*rate, undone.3) } else { (undone.3, *rate) };
            prop_assert!(low < high / 2.0, "{undone:?} follows {:?}", log[at]);
        }
    }

    /// L2: a steady load comes to rest, with every shard below the threshold.
    #[test]
    fn a_steady_load_comes_to_rest(rate in 0.0f64..20_000.0) {
        let log = live(|_| rate, 3_600_000, 10_000);
        prop_assert!(log.iter().all(|(when, is_split, ..)| *is_split && *when < 1_200_000), "{log:?}");
        let needed = (rate / 1_000.0).log2().ceil().max(0.0) as u32;
        prop_assert!((log.len() as u32) < 2u32.pow(needed), "{} cuts for {rate}", log.len());
        prop_assert_eq!(log.is_empty(), rate <= 1_000.0);
    }
}

/// A keyspace of 100,000 shards with measured loads is looked at in one piece.
#[test]
fn b7_a_shard_that_is_neither_big_nor_busy_is_not_remembered() {
    let (calm, busy) = (shard(1, keys("", "m"), &[]), shard(2, keys("m", ""), &[]));
    let limits = resharding();
    let mut tracker = Tracker::default();
    let mut look = |rate: f64, now: u64| {
        let both = [candidate(&calm, carries(1, 1.0)), candidate(&busy, carries(1, rate))];
        tracker.look(&both, &terms(&limits, Sharding::KeyRange, 2), Millis(now));
        tracker.shards.keys().copied().collect::<Vec<_>>()
    };
    assert_eq!(look(2_000.0, 0), [ShardId(2)]);
    assert_eq!(look(2_000.0, WINDOW / 2), [ShardId(2)]);
    assert_eq!(look(900.0, WINDOW), [], "its window is over");
}
