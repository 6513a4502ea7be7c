use super::change::{Changing, Effect, Event, Failed, Notice, Swapped, Unstored};
use super::discover::{Discoverer, Status};
use super::server::Refused;
use super::*;
use partage_core::base::id::{Incarnation, PlacementId, ShardId, TransactionId};
use partage_core::base::name::KeyspaceName;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::HashRange;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Edit;
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding};

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn empty() -> ShardMap {
    let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
    ShardMap::empty(KeyspaceName::new("ks").unwrap(), sharding, PartitionKey::default())
}

fn diff(map: &ShardMap, change: impl FnOnce(&mut Edit<'_>)) -> MapDiff {
    let mut edit = map.edit();
    change(&mut edit);
    edit.commit(TransactionId([map.generation().sequence as u8 + 1; 20]))
}

fn after(map: &ShardMap, change: impl FnOnce(&mut Edit<'_>)) -> ShardMap {
    let (mut next, diff) = (map.clone(), diff(map, change));
    assert_eq!(check(map, &diff), Ok(()));
    next.apply(&diff).unwrap();
    next
}

const ALL: Bounds = Bounds::Hashes(HashRange::ALL);
const NEW: Incarnation = Incarnation(1);

/// s1 on `a` (p1), which serves and leads, and on `b` (p2), which loads.
fn map() -> ShardMap {
    after(&empty(), |edit| {
        let shard = edit.create_shard(ALL).unwrap();
        let first = edit.add_replica(shard, &node("a"), NEW, None).unwrap();
        edit.step(shard, first, ReplicaState::Live).unwrap();
        edit.lead(shard, first).unwrap();
        edit.add_replica(shard, &node("b"), NEW, None).unwrap();
    })
}

fn told(map: &ShardMap, shard: u64, name: &str) -> (Status, Option<u64>, Vec<(String, u64, u64)>) {
    let told = Discoverer::new(map).tell(ShardId(shard), &node(name), NEW);
    assert_eq!(told.at, map.generation());
    let targets = told.targets.iter().map(|t| (t.node.to_string(), t.placement.0, t.shard.0));
    (told.status, told.placement.map(|p| p.0), targets.collect())
}

fn to(node: &str, placement: u64, shard: u64) -> (String, u64, u64) {
    (node.to_owned(), placement, shard)
}

#[test]
fn t9_a_node_is_told_what_its_partition_is_and_where_its_data_goes() {
    let map = map();
    assert_eq!(told(&map, 1, "a"), (Status::Serve, Some(1), vec![to("b", 2, 1)]));
    assert_eq!(told(&map, 1, "b"), (Status::Load, Some(2), vec![]));
    assert_eq!(told(&map, 1, "c"), (Status::Unload, None, vec![to("a", 1, 1), to("b", 2, 1)]));
    assert_eq!(told(&map, 9, "a"), (Status::Unload, None, vec![]), "T11: without a target it is kept");
}

#[test]
fn t9_in_a_split_data_goes_to_both_halves_before_and_after_the_switch() {
    let halves = [HashRange { first: 0, last: 9 }, HashRange { first: 10, last: u64::MAX }];
    let forming = after(&map(), |edit| {
        edit.form_shards(halves.map(Bounds::Hashes).to_vec(), &[ShardId(1)]).unwrap();
        edit.add_replica(ShardId(2), &node("a"), NEW, None).unwrap();
        edit.add_replica(ShardId(3), &node("c"), NEW, None).unwrap();
    });
    let both = vec![to("b", 2, 1), to("a", 3, 2), to("c", 4, 3)];
    assert_eq!(told(&forming, 1, "a"), (Status::Serve, Some(1), both));
    assert_eq!(told(&forming, 2, "a"), (Status::Load, Some(3), vec![]));
    let split = after(&forming, |edit| {
        edit.switch(&[ShardId(1)], &[ShardId(2), ShardId(3)]).unwrap();
        for (shard, placement) in [(2, 3), (3, 4)] {
            edit.step(ShardId(shard), PlacementId(placement), ReplicaState::Live).unwrap();
            edit.lead(ShardId(shard), PlacementId(placement)).unwrap();
        }
    });
    let halves = vec![to("a", 3, 2), to("c", 4, 3)];
    assert_eq!(told(&split, 1, "a"), (Status::Unload, Some(1), halves.clone()));
    let gone = after(&split, |edit| {
        for placement in [1, 2] {
            edit.remove_replica(ShardId(1), PlacementId(placement)).unwrap();
        }
        edit.remove_shard(ShardId(1)).unwrap();
    });
    assert_eq!(told(&gone, 1, "a"), (Status::Unload, None, halves), "who was away is sent to the halves");
}

#[test]
fn t10_who_left_and_came_back_is_another() {
    let map = after(&map(), |edit| edit.remove_replica(ShardId(1), PlacementId(2)).unwrap());
    let back = after(&map, |edit| {
        edit.add_replica(ShardId(1), &node("b"), NEW, None).unwrap();
    });
    assert_eq!(told(&back, 1, "a").2, [to("b", 3, 1)]);
    let restarted = Discoverer::new(&back).tell(ShardId(1), &node("b"), Incarnation(2));
    assert_eq!((restarted.status, restarted.placement), (Status::Unload, None));
}

#[test]
fn a_change_that_is_not_the_next_or_breaks_the_map_is_refused() {
    let map = map();
    let good = diff(&map, |edit| drop(edit.add_replica(ShardId(1), &node("c"), NEW, None)));
    assert_eq!(check(&map, &good), Ok(()));
    let next = after(&map, |edit| drop(edit.add_replica(ShardId(1), &node("c"), NEW, None)));
    assert!(matches!(check(&next, &good), Err(ChangeRefused::Diff(DiffError::Gap { .. }))));
    let other = MapDiff { keyspace: KeyspaceName::new("other").unwrap(), ..good.clone() };
    assert!(matches!(check(&map, &other), Err(ChangeRefused::Diff(DiffError::Keyspace { .. }))));
    let skips = Generation { sequence: good.to.sequence + 1, ..good.to };
    let same = Generation { transaction: map.generation().transaction, ..good.to };
    for to in [skips, same, map.generation()] {
        let bad = MapDiff { to, ..good.clone() };
        assert!(matches!(check(&map, &bad), Err(ChangeRefused::NotNext { .. })), "{to:?}");
    }
    let orphan = MapDiff { parent: None, ..good.clone() };
    assert!(matches!(check(&map, &orphan), Err(ChangeRefused::NotNext { .. })), "M3: each has one parent");
    let gap = diff(&map, |edit| edit.remove_shard(ShardId(1)).unwrap());
    let twice = diff(&map, |edit| {
        edit.create_shard(ALL).unwrap();
    });
    assert_eq!(check(&map, &gap), Ok(()), "a keyspace without shards is one whose shards are still to come");
    let refused = check(&map, &twice).unwrap_err();
    assert!(matches!(&refused, ChangeRefused::Findings(findings) if !findings.is_empty()), "M1: {refused}");
}

#[test]
fn t6_three_servers_are_drawn_at_random() {
    let all: Vec<_> = (0..6).map(|n| node(&format!("m{n}"))).collect();
    let mut drawn = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let servers = choose(&all, SERVERS, seed);
        assert_eq!(servers.len(), SERVERS);
        assert!(servers.windows(2).all(|pair| pair[0] < pair[1]), "each once, in order: {servers:?}");
        assert_eq!(servers, choose(&all, SERVERS, seed));
        drawn.insert(servers);
    }
    assert_eq!(drawn.len(), 20, "every three of six");
    assert_eq!(choose(&all[..2], SERVERS, 1), all[..2], "as many as there are");
}

fn servers() -> Vec<NodeId> {
    ["m0", "m1", "m2"].map(node).to_vec()
}

fn seen(sequence: u64, transaction: u8, version: u64) -> Seen {
    let at = Generation { sequence, transaction: TransactionId([transaction; 20]) };
    Seen { head: Head { at, servers: servers() }, version }
}

/// A change from 1 to 2 that a majority has stored.
fn stored() -> (Changing, Generation) {
    let to = seen(2, 2, 0).head.at;
    let (mut changing, effects) = Changing::begin(Some(seen(1, 1, 7)), to, vec![]);
    assert_eq!(effects, [Effect::Store(servers())]);
    assert_eq!(changing.take(Event::Stored(node("m0"), Ok(()))), []);
    assert_eq!(changing.take(Event::Stored(node("m0"), Ok(()))), [], "T7: one server counts once");
    assert_eq!(changing.take(Event::Stored(node("x"), Ok(()))), [], "T7: only those of the list count");
    let head = Head { at: to, servers: servers() };
    let swap = changing.take(Event::Stored(node("m2"), Ok(())));
    assert_eq!(swap, [Effect::Swap { expected: Some(7), head }]);
    (changing, to)
}

#[test]
fn t7_a_majority_then_the_swap() {
    let (mut changing, to) = stored();
    let effects = changing.take(Event::Swapped(Swapped::Done));
    assert_eq!(effects, [Effect::Tell(servers(), Notice::Committed(to)), Effect::Done(Ok(to))]);
    assert_eq!(changing.take(Event::TimeUp), [], "it is over");
    let (mut changing, to) = stored();
    let effects = changing.take(Event::Swapped(Swapped::Refused));
    let failed = Effect::Done(Err(Failed::Conflict));
    assert_eq!(effects, [Effect::Tell(servers(), Notice::Aborted(to)), failed]);
}

fn full() -> Unstored {
    Refused::Disk("full".to_owned()).into()
}

#[test]
fn t7_without_a_majority_it_is_aborted_at_once() {
    let to = seen(2, 2, 0).head.at;
    let (mut changing, _) = Changing::begin(Some(seen(1, 1, 7)), to, vec![]);
    changing.take(Event::Stored(node("m0"), Ok(())));
    assert_eq!(changing.take(Event::Stored(node("m1"), Err(full()))), []);
    let effects = changing.take(Event::Stored(node("m2"), Err(full())));
    assert_eq!(effects[0], Effect::Tell(servers(), Notice::Aborted(to)));
    let (why, disks) = ("m2: full".to_owned(), Some("m1: full; m2: full".to_owned()));
    assert_eq!(
        effects[1],
        Effect::Done(Err(Failed::TooFew { stored: 1, servers: 3, needed: 2, why, disks }))
    );
}

/// Room on that disk would not help where the others do not answer.
#[test]
fn c14_disks_are_named_only_where_room_on_them_would_be_enough() {
    let to = seen(2, 2, 0).head.at;
    let disks_named = |outcomes: [Result<(), Unstored>; 2]| {
        let (mut changing, _) = Changing::begin(Some(seen(1, 1, 7)), to, vec![]);
        let votes = ["m0", "m1"].into_iter().zip(outcomes);
        let votes = votes.map(|(server, outcome)| Event::Stored(node(server), outcome));
        let effects = votes.chain([Event::TimeUp]).flat_map(|event| changing.take(event));
        let disks = effects.filter_map(|effect| match effect {
            Effect::Done(Err(Failed::TooFew { disks, .. })) => Some(disks),
            _ => None,
        });
        disks.last().unwrap()
    };
    assert_eq!(disks_named([Ok(()), Err(full())]), Some("m1: full".to_owned()));
    assert_eq!(disks_named([Err("cut off".to_owned().into()), Err(full())]), None);
}

#[test]
fn c3_an_unknown_swap_is_resolved_by_the_head_and_never_guessed() {
    let read = |seen: Seen| {
        let (mut changing, to) = stored();
        assert_eq!(changing.take(Event::Swapped(Swapped::Unknown)), [Effect::Read]);
        (changing.take(Event::Read(Some(Some(seen)))), changing, to)
    };
    let (effects, _, to) = read(seen(2, 2, 8));
    assert_eq!(effects.last(), Some(&Effect::Done(Ok(to))));
    let (effects, ..) = read(seen(2, 9, 8));
    let unknown = [Effect::Done(Err(Failed::Unknown))];
    assert_eq!(effects, unknown, "it may have been there, of a keyspace that was deleted and created again");
    let (effects, mut changing, to) = read(seen(1, 1, 7));
    let aborted = [Effect::Tell(servers(), Notice::Aborted(to)), Effect::Done(Err(Failed::Conflict))];
    assert_eq!(effects, [Effect::Seal(seen(1, 1, 7)), Effect::Read], "it may come yet");
    assert_eq!(changing.take(Event::Read(Some(Some(seen(1, 1, 8))))), aborted, "now it cannot");
    let (effects, ..) = read(seen(3, 3, 9));
    assert_eq!(effects, unknown, "it may be the parent of what is there");
}

#[test]
fn c3_a_creation_that_finds_another_head_may_come_when_that_is_deleted() {
    let to = seen(1, 1, 0).head.at;
    let (mut changing, _) = Changing::begin(None, to, servers());
    for server in ["m0", "m1"] {
        changing.take(Event::Stored(node(server), Ok(())));
    }
    assert_eq!(changing.take(Event::Swapped(Swapped::Unknown)), [Effect::Read]);
    let effects = changing.take(Event::Read(Some(Some(seen(1, 9, 8)))));
    assert_eq!(effects, [Effect::Done(Err(Failed::Unknown))], "and nobody is told to throw it away");
}

mod servers;
