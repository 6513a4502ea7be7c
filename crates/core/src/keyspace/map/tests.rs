use super::*;
use crate::base::id::TransactionId;
use crate::keyspace::hash::HashFunction;
use crate::keyspace::key::HashRange;
use proptest::prelude::*;

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn map() -> ShardMap {
    let sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };
    ShardMap::empty(KeyspaceName::new("ks").unwrap(), sharding, PartitionKey::default())
}

fn committed(map: &ShardMap, change: impl FnOnce(&mut Edit<'_>)) -> ShardMap {
    let mut edit = map.edit();
    change(&mut edit);
    let diff = edit.commit(TransactionId([map.generation().sequence as u8; 20]));
    let mut next = map.clone();
    next.apply(&diff).unwrap();
    next
}

fn one_led_shard() -> ShardMap {
    committed(&map(), |edit| {
        let id = edit.create_shard(Bounds::Hashes(HashRange::ALL)).unwrap();
        let placement = edit.add_replica(id, &node("a"), Incarnation(1), None).unwrap();
        edit.step(id, placement, ReplicaState::Live).unwrap();
        edit.lead(id, placement).unwrap();
    })
}

#[test]
fn a_copy_stays_as_it_was_when_the_map_changes() {
    let (mut map, copy) = (one_led_shard(), one_led_shard());
    let kept = map.clone();
    let diff = map.edit().commit(TransactionId([9; 20]));
    let gone = MapDiff { removed: vec![ShardId(1)], ..diff };
    map.apply(&gone).unwrap();
    assert!(map.is_empty() && kept == copy && kept.len() == 1);
}

#[test]
fn a_map_that_shares_its_shards_no_more_is_the_same_map() {
    let shared = one_led_shard();
    let mut map = shared.clone();
    let is_at = |map: &ShardMap, of: &ShardMap| {
        std::ptr::eq(map.shard(ShardId(1)).unwrap(), of.shard(ShardId(1)).unwrap())
    };
    assert!(is_at(&map, &shared));
    map.unshare();
    assert!(map == shared && !is_at(&map, &shared));
    let before: *const Shard = map.shard(ShardId(1)).unwrap();
    map.unshare();
    assert!(std::ptr::eq(before, map.shard(ShardId(1)).unwrap()), "no other copy has them");
}

#[test]
fn a_change_of_leader_raises_the_epoch_and_keeps_one_leader() {
    let before = one_led_shard();
    let after = committed(&before, |edit| {
        let placement =
            edit.add_replica(ShardId(1), &node("b"), Incarnation(1), Some(PlacementId(1))).unwrap();
        edit.step(ShardId(1), placement, ReplicaState::Live).unwrap();
        edit.step(ShardId(1), PlacementId(1), ReplicaState::Unload).unwrap();
        edit.lead(ShardId(1), placement).unwrap();
    });
    let shard = after.shard(ShardId(1)).unwrap();
    assert!(shard.epoch > before.shard(ShardId(1)).unwrap().epoch);
    assert_eq!(shard.leader().unwrap().node, node("b"));
    assert_eq!(shard.replicas.iter().filter(|r| r.role == Role::Leader).count(), 1);
}

#[test]
fn o8_a_switch_closes_parents_and_opens_children_above_them() {
    let halves =
        [HashRange { first: 0, last: 9 }, HashRange { first: 10, last: u64::MAX }].map(Bounds::Hashes);
    let forming = committed(&one_led_shard(), |edit| {
        let children = edit.form_shards(halves.to_vec(), &[ShardId(1)]).unwrap();
        assert_eq!(children, [ShardId(2), ShardId(3)]);
    });
    assert!(forming.find(b"any").is_some_and(|shard| shard.id == ShardId(1)));
    let split = committed(&forming, |edit| edit.switch(&[ShardId(1)], &[ShardId(2), ShardId(3)]).unwrap());
    let parent_epoch = forming.shard(ShardId(1)).unwrap().epoch;
    for child in [ShardId(2), ShardId(3)] {
        assert!(split.shard(child).unwrap().is_serving() && split.shard(child).unwrap().epoch > parent_epoch);
    }
    assert!(matches!(split.shard(ShardId(1)).unwrap().stage(), Stage::Closing(_)));
    assert!(split.find(b"any").is_some_and(|shard| shard.id != ShardId(1)));
}

#[test]
fn refused_changes_leave_the_edit_as_it_was() {
    let base = one_led_shard();
    let mut edit = base.edit();
    assert!(matches!(
        edit.add_replica(ShardId(1), &node("a"), Incarnation(2), None),
        Err(EditError::AlreadyThere { .. })
    ));
    assert!(matches!(
        edit.step(ShardId(1), PlacementId(1), ReplicaState::Load),
        Err(EditError::IllegalStep(_))
    ));
    assert!(matches!(
        edit.step(ShardId(1), PlacementId(9), ReplicaState::Live),
        Err(EditError::NoReplica { .. })
    ));
    assert!(matches!(edit.lead(ShardId(7), PlacementId(1)), Err(EditError::NoShard(ShardId(7)))));
    assert!(matches!(edit.switch(&[ShardId(1)], &[ShardId(1)]), Err(EditError::WrongStage { .. })));
    let diff = edit.commit(TransactionId::default());
    assert!(diff.changed.iter().all(|shard| base.shard(shard.id) == Some(shard)));
}

#[test]
fn a_diff_applies_only_where_it_belongs() {
    let first = one_led_shard();
    let second = committed(&first, |edit| edit.remove_replica(ShardId(1), PlacementId(1)).unwrap());
    let diff = first.diff(&second);
    let mut stale = map();
    assert!(matches!(stale.apply(&diff), Err(DiffError::Gap { .. })));
    assert_eq!(stale, map());
}

/// A random but legal walk of maps, newest last.
fn walk(choices: &[(u8, u8)]) -> Vec<ShardMap> {
    let mut maps = vec![map()];
    for (what, which) in choices {
        let last = maps.last().unwrap();
        let ids: Vec<_> = last.shards().map(|shard| shard.id).collect();
        let picked = ids.get(*which as usize % ids.len().max(1)).copied();
        let next = committed(last, |edit| {
            // Refusals are fine here: what counts is that whatever was accepted travels by diff.
            let _ = match (what % 5, picked) {
                (0, _) | (_, None) => edit.create_shard(Bounds::Hashes(HashRange::ALL)).map(drop),
                (1, Some(id)) => {
                    edit.add_replica(id, &node(&format!("n{}", which % 7)), Incarnation(1), None).map(drop)
                }
                (2, Some(id)) => edit.form_shards(vec![Bounds::Hashes(HashRange::ALL)], &[id]).map(drop),
                (3, Some(id)) => edit.remove_shard(id),
                (_, Some(id)) => match last.shard(id).and_then(|shard| shard.replicas.last()) {
                    Some(replica) => edit.step(id, replica.placement, ReplicaState::Unload),
                    None => Ok(()),
                },
            };
        });
        maps.push(next);
    }
    maps
}

proptest! {
    #[test]
    fn m4_applying_the_diff_from_a_to_b_gives_b(
        choices in prop::collection::vec(any::<(u8, u8)>(), 1..30), a in any::<prop::sample::Index>(),
    ) {
        let maps = walk(&choices);
        let (from, to) = (&maps[a.index(maps.len())], maps.last().unwrap());
        let mut applied = from.clone();
        applied.apply(&from.diff(to)).unwrap();
        prop_assert_eq!(&applied, to);
    }

    #[test]
    fn diffs_one_after_the_other_are_one_diff(choices in prop::collection::vec(any::<(u8, u8)>(), 1..30)) {
        let maps = walk(&choices);
        let steps = maps.windows(2).map(|pair| pair[0].diff(&pair[1]));
        let joined = steps.reduce(|all, next| all.then(&next).unwrap()).unwrap();
        let mut applied = maps[0].clone();
        applied.apply(&joined).unwrap();
        prop_assert_eq!(&applied, maps.last().unwrap());
    }

    #[test]
    fn m5_ids_are_never_used_twice(choices in prop::collection::vec(any::<(u8, u8)>(), 1..40)) {
        let mut seen = std::collections::BTreeMap::new();
        for map in walk(&choices) {
            for shard in map.shards() {
                prop_assert!(shard.id < map.next_shard());
                for replica in &shard.replicas {
                    prop_assert!(replica.placement < map.next_placement());
                    let owner = (shard.id, replica.node.clone());
                    prop_assert_eq!(seen.entry(replica.placement).or_insert(owner.clone()), &owner);
                }
            }
        }
    }
}

#[test]
fn a_shard_takes_little_room_with_its_first_replica_in_it() {
    assert_eq!((size_of::<Shard>(), size_of::<Replica>(), size_of::<Replicas>()), (96, 40, 40));
}

/// Two live replicas of one shard, of which the first leads and is in sync.
fn one_in_sync() -> ShardMap {
    committed(&one_led_shard(), |edit| {
        let second = edit.add_replica(ShardId(1), &node("b"), Incarnation(1), None).unwrap();
        edit.step(ShardId(1), second, ReplicaState::Live).unwrap();
        edit.take_in(ShardId(1), PlacementId(1)).unwrap();
    })
}

#[test]
fn d1_only_a_live_replica_is_taken_into_the_set_and_only_a_member_leads() {
    let map = one_in_sync();
    let [first, second] = [PlacementId(1), PlacementId(2)];
    let mut edit = map.edit();
    let refused = edit.lead(ShardId(1), second).unwrap_err();
    assert_eq!(refused, EditError::NotInSync { shard: ShardId(1), placement: second });
    let third = edit.add_replica(ShardId(1), &node("c"), Incarnation(1), None).unwrap();
    let refused = edit.take_in(ShardId(1), third).unwrap_err();
    let state = ReplicaState::Load;
    assert_eq!(refused, EditError::NotLive { shard: ShardId(1), placement: third, state });
    edit.take_in(ShardId(1), second).unwrap();
    edit.lead(ShardId(1), second).unwrap();
    let shard = edit.shard(ShardId(1)).unwrap();
    assert_eq!(shard.in_sync().map(|r| r.placement).collect::<Vec<_>>(), [first, second]);
}

#[test]
fn d1_each_change_of_the_set_or_the_leader_is_a_later_configuration() {
    let map = committed(&one_in_sync(), |edit| edit.take_in(ShardId(1), PlacementId(2)).unwrap());
    let of = |map: &ShardMap| map.shard(ShardId(1)).unwrap().configuration;
    let [first, second] = [PlacementId(1), PlacementId(2)];
    let changes: [&dyn Fn(&mut Edit<'_>); 6] = [
        &|edit| edit.lead(ShardId(1), second).unwrap(),
        &|edit| edit.leave(ShardId(1), second).unwrap(),
        &|edit| edit.remove_replica(ShardId(1), second).unwrap(),
        &|edit| edit.begin_anew(ShardId(1), second, Incarnation(1), ReplicaState::Load).unwrap(),
        &|edit| edit.begin_anew(ShardId(1), first, Incarnation(2), ReplicaState::Live).unwrap(),
        &|edit| edit.close(ShardId(1)).unwrap(),
    ];
    for (at, change) in changes.iter().enumerate() {
        let next = committed(&map, change);
        assert!(of(&next) > of(&map), "change {at}");
        let in_set = next.shard(ShardId(1)).unwrap().in_sync().all(|r| r.state == ReplicaState::Live);
        assert!(in_set, "change {at}");
    }
    let same = committed(&map, |edit| edit.take_in(ShardId(1), second).unwrap());
    assert_eq!(of(&same), of(&map), "it is in the set");
    let restarted = committed(&map, |edit| {
        edit.begin_anew(ShardId(1), second, Incarnation(2), ReplicaState::Live).unwrap();
    });
    assert_eq!(of(&restarted), of(&map), "a follower that is back is the same member");
}
