use super::*;
use crate::base::id::{Incarnation, TransactionId};
use crate::base::name::KeyspaceName;
use crate::keyspace::key::Key;
use crate::keyspace::sharding::{PartitionKey, Slot};
use crate::plan::{Change, Planned};

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn keys(begin: &str, end: &str) -> Bounds {
    let [begin, end] = [begin, end].map(|key| Key::new(key.as_bytes()).unwrap());
    Bounds::Keys(KeyRange { begin, end })
}

/// Shards s1 ["", m) on a (leads) and b, s2 [m, t) on a, s3 [t, "") on c (in `Load`).
fn three() -> ShardMap {
    let name = KeyspaceName::new("users").unwrap();
    let mut map = ShardMap::empty(name, Sharding::KeyRange, PartitionKey::Whole);
    let mut edit = map.edit();
    let ids = [("", "m"), ("m", "t"), ("t", "")].map(|(a, b)| edit.create_shard(keys(a, b)).unwrap());
    for (shard, at, live) in [(0, "a", true), (0, "b", true), (1, "a", true), (2, "c", false)] {
        let placement = edit.add_replica(ids[shard], &node(at), Incarnation(1), None).unwrap();
        if live {
            edit.step(ids[shard], placement, ReplicaState::Live).unwrap();
        }
    }
    edit.lead(ids[0], PlacementId(1)).unwrap();
    let diff = edit.commit(TransactionId([1; 20]));
    map.apply(&diff).unwrap();
    assert_eq!(super::map(&map), []);
    map
}

/// What is found in these changes, on a cluster where node `x` is being drained.
fn found(changes: Vec<Change>) -> Vec<Finding> {
    let planned: Vec<_> = changes.into_iter().map(|change| Planned::new(change, "a test")).collect();
    plan(&three(), &planned, &|node| (node.as_str() == "x").then(|| "it is drained".to_owned()))
}

const S: [ShardId; 5] = [ShardId(0), ShardId(1), ShardId(2), ShardId(3), ShardId(4)];
const P: [PlacementId; 6] =
    [PlacementId(0), PlacementId(1), PlacementId(2), PlacementId(3), PlacementId(4), PlacementId(5)];

fn add(shard: ShardId, at: &str) -> Change {
    Change::Add { shard, node: node(at) }
}

fn to(shard: ShardId, from: PlacementId, at: &str) -> Change {
    Change::Move { shard, from, to: node(at) }
}

fn split(shard: ShardId, parts: &[(&str, &str, &[&str])]) -> Change {
    let child = |(begin, end, nodes): &(&str, &str, &[&str])| {
        (keys(begin, end), nodes.iter().map(|name| node(name)).collect())
    };
    Change::Split { shard, children: parts.iter().map(child).collect() }
}

fn merge(shards: &[ShardId], begin: &str, end: &str) -> Change {
    Change::Merge { shards: shards.to_vec(), child: (keys(begin, end), vec![node("a")]) }
}

#[test]
fn a_plan_that_can_be_carried_out_has_no_findings() {
    let remove = Change::Remove { shard: S[1], placement: P[1] };
    let lead = Change::Lead { shard: S[1], placement: P[2] };
    let changes = vec![add(S[2], "b"), to(S[2], P[3], "c"), lead, remove, add(S[3], "d")];
    assert_eq!(found(changes), []);
    assert_eq!(found(vec![split(S[1], &[("", "g", &["a", "b"]), ("g", "m", &["b"])])]), []);
    assert_eq!(found(vec![merge(&[S[1], S[2]], "", "t")]), []);
}

#[test]
fn m7_nothing_goes_to_a_closed_node() {
    let closed = vec![Finding::Closed(node("x"), "it is drained".to_owned())];
    assert_eq!(found(vec![add(S[1], "x")]), closed);
    assert_eq!(found(vec![to(S[1], P[1], "x")]), closed);
    assert_eq!(found(vec![split(S[1], &[("", "g", &["a"]), ("g", "m", &["x"])])]), closed);
}

#[test]
fn m6_no_two_replicas_on_one_node_also_not_after_the_lines_before() {
    let twice = |at: &str| vec![Finding::TwoOnOneNode(S[1], node(at))];
    assert_eq!(found(vec![add(S[1], "b")]), twice("b"));
    assert_eq!(found(vec![add(S[1], "d"), add(S[1], "d")]), twice("d"));
    assert_eq!(found(vec![to(S[1], P[1], "b")]), twice("b"));
    // The one that leaves is still there while the next one comes.
    assert_eq!(found(vec![to(S[1], P[1], "d"), add(S[1], "a")]), twice("a"));
    assert_eq!(found(vec![split(S[1], &[("", "g", &["a", "a"]), ("g", "m", &["a"])])]), twice("a"));
}

#[test]
fn the_last_replica_is_not_removed_also_not_by_two_lines() {
    let remove = |shard, placement| Change::Remove { shard, placement };
    assert_eq!(found(vec![remove(S[2], P[3])]), [Finding::LastReplica(S[2], P[3])]);
    let both = vec![remove(S[1], P[1]), remove(S[1], P[2])];
    assert_eq!(found(both), [Finding::LastReplica(S[1], P[2])]);
    assert_eq!(found(vec![remove(S[1], P[1]), remove(S[1], P[1])]), [Finding::NoReplica(S[1], P[1])]);
}

#[test]
fn shards_and_replicas_that_are_not_there_are_named() {
    assert_eq!(found(vec![add(S[4], "a")]), [Finding::NoShard(S[4])]);
    assert_eq!(found(vec![to(S[1], P[3], "d")]), [Finding::NoReplica(S[1], P[3])]);
    let lead = Change::Lead { shard: S[3], placement: P[4] };
    assert_eq!(found(vec![lead]), [Finding::Leader(S[3], P[4])], "it is in Load");
    let cut = split(S[1], &[("", "g", &["a"]), ("g", "m", &["a"])]);
    assert_eq!(found(vec![cut, add(S[1], "d")]), [Finding::NoShard(S[1])], "it was cut by the line before");
}

#[test]
fn o8_children_hold_exactly_the_keys_of_their_parents() {
    let differ = vec![Finding::BoundsDiffer(vec![S[1]])];
    for parts in [
        &[("", "g", &["a"][..]), ("h", "m", &["a"])][..],
        &[("", "h", &["a"]), ("g", "m", &["a"])],
        &[("", "g", &["a"]), ("g", "t", &["a"])],
        &[("", "g", &["a"]), ("g", "", &["a"])],
        &[("", "m", &["a"])],
        &[("", "m", &["a"]), ("", "m", &["a"])],
        &[],
    ] {
        assert_eq!(found(vec![split(S[1], parts)]), differ, "{parts:?}");
    }
    assert!(matches!(
        found(vec![split(S[1], &[("", "g", &[]), ("g", "m", &["a"])])])[..],
        [Finding::Limit(_)]
    ));
    assert_eq!(found(vec![merge(&[S[1], S[2]], "", "")]), [Finding::BoundsDiffer(vec![S[1], S[2]])]);
}

#[test]
fn only_neighbours_become_one_and_only_once() {
    assert_eq!(found(vec![merge(&[S[1], S[3]], "", "")]), [Finding::NotNeighbours(vec![S[1], S[3]])]);
    assert_eq!(found(vec![merge(&[S[1]], "", "m")]), [Finding::NotNeighbours(vec![S[1]])]);
    assert_eq!(found(vec![merge(&[S[1], S[1]], "", "m")]), [Finding::NotNeighbours(vec![S[1], S[1]])]);
    let changes = vec![merge(&[S[1], S[2]], "", "t"), merge(&[S[2], S[3]], "m", "")];
    assert_eq!(found(changes), [Finding::NoShard(S[2])]);
}

/// A map whose first shards have these bounds, and what the check finds in it.
fn first_map(sharding: Sharding, bounds: Vec<Bounds>) -> (ShardMap, Vec<Finding>) {
    let mut map = ShardMap::empty(KeyspaceName::new("first").unwrap(), sharding, PartitionKey::Whole);
    let mut edit = map.edit();
    for bounds in bounds {
        edit.create_shard(bounds).unwrap();
    }
    let diff = edit.commit(TransactionId([1; 20]));
    let alone = super::diff(&map, &diff);
    map.apply(&diff).unwrap();
    assert_eq!(alone, super::map(&map), "the check of the diff finds what the check of the map does");
    (map, alone)
}

fn slot(number: u32, of: u32) -> Bounds {
    Bounds::Slot(Slot::new(number, of).unwrap())
}

const SLOTS: Sharding = Sharding::Fixed { hash: crate::keyspace::hash::HashFunction::Crc16, shards: 2 };

#[test]
fn m8_too_many_replicas_and_splits_of_names_are_refused() {
    let many = (0..2 * limits::REPLICAS).map(|at| add(S[2], &format!("n{at}"))).collect();
    assert!(matches!(found(many)[..], [Finding::Limit(_)]), "one is there already");
    let name = |text: &str| Bounds::Name(text.parse().unwrap());
    let (map, _) = first_map(Sharding::Named, vec![name("north"), name("south")]);
    let children = vec![(name("north"), vec![node("a")]), (name("west"), vec![node("a")])];
    let planned = [Planned::new(Change::Split { shard: S[1], children }, "a test")];
    assert_eq!(plan(&map, &planned, &|_| None), [Finding::NoRange(S[1], "north".to_owned())]);
}

#[test]
fn o8_slots_split_into_exactly_their_refinement_and_merge_to_exactly_one() {
    let (map, findings) = first_map(SLOTS, vec![slot(0, 2), slot(1, 4), slot(3, 4)]);
    assert_eq!(
        (findings, map.sharding()),
        (vec![], Sharding::Fixed { hash: crate::keyspace::hash::HashFunction::Crc16, shards: 4 })
    );
    let split = |parts: &[(u32, u32)]| {
        let children = parts.iter().map(|(number, of)| (slot(*number, *of), vec![node("a")])).collect();
        plan(&map, &[Planned::new(Change::Split { shard: S[1], children }, "a test")], &|_| None)
    };
    assert_eq!(split(&[(0, 4), (2, 4)]), []);
    assert_eq!(split(&[(2, 4), (0, 8), (4, 8)]), []);
    for wrong in [&[(0, 4), (1, 4)][..], &[(0, 4)], &[(0, 4), (2, 4), (0, 8)], &[(0, 2)]] {
        assert_eq!(split(wrong), [Finding::BoundsDiffer(vec![S[1]])], "{wrong:?}");
    }
    let merge = |shards: &[usize], child| {
        let shards = shards.iter().map(|at| S[*at]).collect();
        plan(
            &map,
            &[Planned::new(Change::Merge { shards, child: (child, vec![node("a")]) }, "a test")],
            &|_| None,
        )
    };
    assert_eq!(merge(&[2, 3], slot(1, 2)), []);
    assert_eq!(merge(&[1, 2, 3], slot(0, 1)), []);
    assert_eq!(merge(&[1, 2], slot(0, 1)), [Finding::NotNeighbours(vec![S[1], S[2]])]);
    assert_eq!(merge(&[2, 3], slot(0, 2)), [Finding::BoundsDiffer(vec![S[2], S[3]])]);
}

#[test]
fn m1_slots_of_several_numbers_are_disjoint_and_cover_or_it_is_found() {
    let found = |bounds: Vec<Bounds>| first_map(SLOTS, bounds).1;
    assert_eq!(found(vec![slot(0, 2), slot(1, 6), slot(3, 6), slot(5, 6)]), []);
    assert_eq!(found(vec![slot(0, 2), slot(1, 2), slot(3, 6)]), [Finding::Overlap(S[2], S[3])]);
    let gap = found(vec![slot(0, 2), slot(1, 6), slot(5, 6)]);
    assert!(matches!(&gap[..], [Finding::Gap(gap)] if gap == "from slot 3 to slot 4"), "{gap:?}");
    let last = found(vec![slot(0, 3), slot(1, 3)]);
    assert!(matches!(&last[..], [Finding::Gap(gap)] if gap == "from slot 2 up"), "{last:?}");
    let primes = [9_973, 9_967].map(|of| slot(0, of));
    assert!(matches!(&found(primes.into())[..], [Finding::Limit(_)]));
}

#[test]
fn m1_gaps_and_overlaps_of_a_map_are_found() {
    let make = |bounds: &[(&str, &str)]| {
        first_map(Sharding::KeyRange, bounds.iter().map(|(begin, end)| keys(begin, end)).collect()).1
    };
    assert_eq!(make(&[("", "")]), []);
    assert_eq!(make(&[("", "m"), ("m", "")]), []);
    assert_eq!(make(&[("", "n"), ("m", "")]), [Finding::Overlap(S[1], S[2])]);
    assert!(matches!(&make(&[("", "k"), ("m", "")])[..], [Finding::Gap(gap)] if gap == "from k to m"));
    assert!(matches!(&make(&[("a", "")])[..], [Finding::Gap(gap)] if gap == "below a"));
    assert!(matches!(&make(&[("", "z")])[..], [Finding::Gap(gap)] if gap == "from z up"));
}

/// What is found when `change` is made on s1, which a leads and b follows.
fn found_after(change: impl Fn(&mut crate::keyspace::map::Edit<'_>)) -> (Vec<Finding>, Vec<Finding>) {
    let map = three();
    let mut edit = map.edit();
    change(&mut edit);
    let commit = edit.commit(TransactionId([2; 20]));
    (diff(&map, &commit), keeps_data(&map, &commit))
}

#[test]
fn d10_a_map_that_loses_the_last_copy_is_refused() {
    let s1 = ShardId(1);
    let lost = vec![Finding::LastCopy(s1)];
    let one_leaves = found_after(|edit| edit.remove_replica(s1, P[1]).unwrap());
    assert_eq!(one_leaves, (vec![], vec![]), "another has the data");
    let both_leave = found_after(|edit| {
        edit.remove_replica(s1, P[1]).unwrap();
        edit.remove_replica(s1, P[2]).unwrap();
    });
    assert_eq!(both_leave, (vec![], lost.clone()));
    let none_serves = found_after(|edit| {
        edit.begin_anew(s1, P[1], Incarnation(1), ReplicaState::Load).unwrap();
        edit.leave(s1, P[2]).unwrap();
    });
    assert_eq!(none_serves, (vec![], lost));
    let removed = found_after(|edit| edit.remove_shard(s1).unwrap());
    assert_eq!(removed.1, [Finding::LastCopy(s1)]);
    let unregistered = found_after(|edit| edit.close(s1).unwrap());
    assert_eq!(unregistered.1, [], "nobody wants it");
}

#[test]
fn o3_another_start_of_a_node_leads_under_another_epoch() {
    let (mut map, s1) = (three(), ShardId(1));
    let anew = |map: &ShardMap| {
        let mut edit = map.edit();
        edit.begin_anew(s1, P[1], Incarnation(2), ReplicaState::Live).unwrap();
        edit.commit(TransactionId([2; 20]))
    };
    let mut commit = anew(&map);
    assert_eq!(diff(&map, &commit), []);
    commit.changed[0].epoch = map.shard(s1).unwrap().epoch;
    assert!(diff(&map, &commit).contains(&Finding::SameEpoch(s1)));
    // Nothing goes back to an earlier start, and no replica begins anew as something that may be deleted.
    let commit = anew(&map);
    map.apply(&commit).unwrap();
    let mut back = map.edit();
    back.begin_anew(s1, P[1], Incarnation(1), ReplicaState::Live).unwrap();
    assert!(!diff(&map, &back.commit(TransactionId([3; 20]))).is_empty());
    let mut edit = map.edit();
    assert!(edit.begin_anew(s1, P[1], Incarnation(3), ReplicaState::UnloadFinal).is_err());
}

/// What is found when `change` is made to a shard of which `a` leads and `a` and `b` are in sync.
fn found_in_sync(change: impl FnOnce(&mut Shard)) -> Vec<Finding> {
    let mut map = three();
    let mut edit = map.edit();
    P[1..=2].iter().for_each(|placement| edit.take_in(S[1], *placement).unwrap());
    let first = edit.commit(TransactionId([2; 20]));
    assert_eq!(diff(&map, &first), []);
    map.apply(&first).unwrap();
    let mut next = map.edit().commit(TransactionId([3; 20]));
    let mut shard = map.shard(S[1]).unwrap().clone();
    change(&mut shard);
    next.changed = vec![shard];
    diff(&map, &next)
}

#[test]
fn d1_an_in_sync_set_is_of_live_replicas_and_changes_under_a_later_configuration() {
    let configuration = Configuration(2);
    assert_eq!(found_in_sync(|_| {}), []);
    let out = |shard: &mut Shard| shard.replicas[1].in_sync = false;
    assert_eq!(found_in_sync(out), [Finding::SameConfiguration(S[1], configuration)]);
    let out_later = |shard: &mut Shard| {
        shard.replicas[1].in_sync = false;
        shard.configuration = configuration.next();
    };
    assert_eq!(found_in_sync(out_later), []);
    let back = |shard: &mut Shard| shard.configuration = Configuration(1);
    assert_eq!(found_in_sync(back), [Finding::SameConfiguration(S[1], Configuration(1))]);
    let leaves = |shard: &mut Shard| shard.replicas[1].state = ReplicaState::Unload;
    assert_eq!(found_in_sync(leaves), [Finding::InSync(S[1], P[2], ReplicaState::Unload)]);
    let leads = |shard: &mut Shard| {
        shard.replicas[0].in_sync = false;
        shard.configuration = configuration.next();
    };
    assert_eq!(found_in_sync(leads), [Finding::LeaderNotInSync(S[1], P[1])]);
}

/// D10: a replica that serves and is not in sync has not all that was acknowledged.
#[test]
fn d10_the_last_member_of_the_set_is_the_last_copy() {
    let mut map = three();
    let mut edit = map.edit();
    edit.take_in(S[1], P[1]).unwrap();
    let set = edit.commit(TransactionId([2; 20]));
    map.apply(&set).unwrap();
    let mut edit = map.edit();
    edit.remove_replica(S[1], P[1]).unwrap();
    let diff = edit.commit(TransactionId([3; 20]));
    assert_eq!(keeps_data(&map, &diff), [Finding::LastCopy(S[1])]);
}
