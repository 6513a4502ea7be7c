//! Histories: a keyspace and the diffs of its successive commits, made with core's own edits, so that each of them passes
//! core's check.

use super::keyspaces_sharded;
use partage_core::base::id::{Incarnation, ShardId, TransactionId};
use partage_core::base::name::NodeId;
use partage_core::keyspace::Keyspace;
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::{HashRange, Key, KeyRange};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{Edit, MapDiff, ShardMap};
use partage_core::keyspace::sharding::{Bounds, Sharding, Slot};
use proptest::collection::vec;
use proptest::prelude::*;

/// A keyspace, and the diffs of its commits from the empty map on.
pub fn histories(commits: std::ops::Range<usize>) -> impl Strategy<Value = (Keyspace, Vec<MapDiff>)> {
    let few = prop_oneof![
        Just(Sharding::KeyRange),
        Just(Sharding::HashRange { hash: HashFunction::Xxh3_64 }),
        Just(Sharding::Fixed { hash: HashFunction::Crc16, shards: 9 }),
        Just(Sharding::Named),
    ];
    let dice = vec(vec(any::<[u8; 3]>(), 1..12), commits);
    (few.prop_flat_map(keyspaces_sharded), dice).prop_map(|(keyspace, dice)| {
        let diffs = history(&keyspace, &dice);
        (keyspace, diffs)
    })
}

/// The first shards of [`histories`].
fn first_bounds(sharding: Sharding) -> Vec<Bounds> {
    let key = |text: &str| Key::new(text.as_bytes()).expect("short enough");
    let range = |begin: &str, end: &str| {
        Bounds::Keys(KeyRange::new(key(begin), key(end)).expect("the letters ascend"))
    };
    match sharding {
        Sharding::KeyRange => vec![range("", "f"), range("f", "q"), range("q", "")],
        Sharding::HashRange { .. } => vec![
            Bounds::Hashes(HashRange { first: 0, last: u64::MAX / 2 }),
            Bounds::Hashes(HashRange { first: u64::MAX / 2 + 1, last: u64::MAX }),
        ],
        Sharding::Fixed { shards, .. } => Slot::all(shards),
        Sharding::Named => ["north", "south"].map(|name| Bounds::Name(name.parse().expect("names"))).into(),
    }
}

fn history(keyspace: &Keyspace, dice: &[Vec<[u8; 3]>]) -> Vec<MapDiff> {
    let mut map = ShardMap::empty(keyspace.name.clone(), keyspace.sharding, keyspace.partition_key);
    let mut diffs = Vec::new();
    for (commit, throws) in dice.iter().enumerate() {
        let ids: Vec<ShardId> = map.shards().map(|shard| shard.id).collect();
        let mut edit = map.edit();
        if commit == 0 {
            first_bounds(keyspace.sharding).into_iter().for_each(|bounds| {
                edit.create_shard(bounds).expect("far below the limit");
            });
        }
        for throw in throws.iter().filter(|_| !ids.is_empty()) {
            // What the map does not allow is left out.
            let _ = change(&mut edit, ids[usize::from(throw[0]) % ids.len()], *throw);
        }
        let diff = edit.commit(TransactionId([commit as u8 + 1; 20]));
        map.apply(&diff).expect("it was made from this map");
        diffs.push(diff);
    }
    diffs
}

fn change(edit: &mut Edit<'_>, id: ShardId, [_, what, which]: [u8; 3]) -> Option<()> {
    let replicas = edit.shard(id).ok()?.replicas.clone();
    let replica = replicas.get(usize::from(which) % replicas.len().max(1));
    match what % 8 {
        0..=2 => {
            let node = NodeId::new(&format!("n{}", which % 7)).ok()?;
            let replaces = replica.filter(|_| what > 127).map(|replica| replica.placement);
            edit.add_replica(id, &node, Incarnation(u64::from(which / 7)), replaces).ok().map(|_| ())
        }
        3 | 4 => edit.step(id, replica?.placement, ReplicaState::Live).ok(),
        5 if what > 127 => {
            let placement = replica?.placement;
            edit.take_in(id, placement).and_then(|()| edit.lead(id, placement)).ok()
        }
        5 => edit.lead(id, replica?.placement).ok(),
        6 => edit.step(id, replica?.placement, ReplicaState::Unload).ok(),
        _ => edit.remove_replica(id, replica?.placement).ok(),
    }
}

/// The map after all diffs.
pub fn replay(keyspace: &Keyspace, diffs: &[MapDiff]) -> ShardMap {
    let mut map = ShardMap::empty(keyspace.name.clone(), keyspace.sharding, keyspace.partition_key);
    diffs.iter().for_each(|diff| map.apply(diff).expect("each follows on the one before"));
    map
}
