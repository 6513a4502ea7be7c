//! What is pushed, in every order: routes are those of the map, and never go back.

use crate::base::id::{ClusterId, Generation, Incarnation, PlacementId, ShardId, TransactionId};
use crate::base::name::{KeyspaceName, NodeId, Zone};
use crate::base::time::Millis;
use crate::keyspace::Ownership;
use crate::keyspace::hash::HashFunction;
use crate::keyspace::key::{HashRange, Key, KeyRange};
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::map::Access;
use crate::keyspace::map::{Edit, MapDiff, ShardMap};
use crate::keyspace::sharding::geometry::{cut_keys, lowest};
use crate::keyspace::sharding::{Bounds, PartitionKey, Sharding, Slot};
use crate::node::Health;
use crate::node::NodeAddress;
use crate::node::exchange::{ClusterIdentity, KeyspaceBrief};
use crate::routing::choose::{Followed, Hint, HintedNode, Preference, choose, follow, has_choice};
use crate::routing::routes::{NoRoute, Routes};
use crate::routing::table::{RouteTable, TableError};
use proptest::prelude::*;

fn node(number: u64) -> NodeId {
    NodeId::new(&format!("n{number}")).unwrap()
}

fn address(number: u64, incarnation: u64) -> NodeAddress {
    NodeAddress {
        id: node(number),
        incarnation: Incarnation(incarnation),
        address: format!("10.0.0.{number}:80"),
        zone: Zone::new(if number.is_multiple_of(2) { "even" } else { "odd" }).ok(),
        health: Health::Up,
        resp_address: None,
        labels: Default::default(),
        drains: false,
    }
}

fn brief(map: &ShardMap) -> KeyspaceBrief {
    KeyspaceBrief {
        name: map.keyspace().clone(),
        sharding: map.sharding(),
        partition_key: map.partition_key(),
        ownership: Ownership::Exclusive,
        generation: map.generation(),
        first_shard: ShardId(1),
        durable: false,
        min_in_sync: 0,
        kind: crate::keyspace::KeyspaceKind::App,
        values: crate::keyspace::RowValues::Bytes,
        feed_ms: 0,
    }
}

fn empty(sharding: Sharding) -> ShardMap {
    ShardMap::empty(KeyspaceName::new("ks").unwrap(), sharding, PartitionKey::Whole)
}

fn first_bounds(sharding: Sharding) -> Vec<Bounds> {
    let key = |text: &str| Key::new(text.as_bytes()).unwrap();
    let range = |a: &str, b: &str| Bounds::Keys(KeyRange::new(key(a), key(b)).unwrap());
    match sharding {
        Sharding::KeyRange => vec![range("", "f"), range("f", "q"), range("q", "")],
        Sharding::HashRange { .. } => {
            let half = u64::MAX / 2;
            let halves = [(0, half), (half + 1, u64::MAX)];
            halves.map(|(first, last)| Bounds::Hashes(HashRange { first, last })).into()
        }
        Sharding::Fixed { shards, .. } => Slot::all(shards),
        Sharding::Named => ["a", "north", "q"].map(|name| Bounds::Name(name.parse().unwrap())).into(),
    }
}

/// One commit of a few changes; what the map does not allow is left out.
fn commit(map: &mut ShardMap, throws: &[[u8; 3]]) -> MapDiff {
    let ids: Vec<ShardId> = map.shards().map(|shard| shard.id).collect();
    let mut edit = map.edit();
    if ids.is_empty() {
        for bounds in first_bounds(map.sharding()) {
            edit.create_shard(bounds).unwrap();
        }
    }
    for throw in throws.iter().filter(|_| !ids.is_empty()) {
        let _ = change(&mut edit, ids[usize::from(throw[0]) % ids.len()], *throw);
    }
    let diff = edit.commit(TransactionId([map.generation().sequence as u8 + 1; 20]));
    map.apply(&diff).unwrap();
    diff
}

fn change(edit: &mut Edit<'_>, id: ShardId, [_, what, which]: [u8; 3]) -> Option<()> {
    let shard = edit.shard(id).ok()?.clone();
    let replica = shard.replicas.get(usize::from(which) % shard.replicas.len().max(1));
    match what % 8 {
        0..=2 => edit.add_replica(id, &node(u64::from(which % 7)), Incarnation(1), None).ok().map(|_| ()),
        3 | 4 => edit.step(id, replica?.placement, ReplicaState::Live).ok(),
        5 => edit.lead(id, replica?.placement).ok(),
        6 => {
            let parts = match &shard.bounds {
                Bounds::Keys(range) => {
                    let middle = Key::new(&[range.begin.as_bytes(), b"m"].concat()).ok()?;
                    cut_keys(range, &[middle]).ok()?
                }
                Bounds::Slot(slot) if slot.of() <= 640 => {
                    slot.refined(2 * slot.of()).map(Bounds::Slot).collect()
                }
                Bounds::Slot(_) | Bounds::Hashes(_) | Bounds::Name(_) => return None,
            };
            let children = edit.form_shards(parts, &[id]).ok()?;
            edit.switch(&[id], &children).ok()
        }
        _ => edit.remove_replica(id, replica?.placement).ok(),
    }
}

fn shardings() -> impl Strategy<Value = Sharding> {
    prop_oneof![
        3 => Just(Sharding::KeyRange),
        1 => Just(Sharding::HashRange { hash: HashFunction::Xxh3_64 }),
        1 => Just(Sharding::Fixed { hash: HashFunction::Crc16, shards: 5 }),
        1 => Just(Sharding::Named),
    ]
}

/// Routes say of every key what the map says.
fn agree(routes: &Routes, map: &ShardMap) {
    for key in ["", "a", "f", "fm", "fmm", "north", "q", "zz"] {
        let said = routes.route("ks", key.as_bytes());
        let Some(shard) = map.find(key.as_bytes()) else {
            assert!(matches!(said, Err(NoRoute::Shard { .. })), "{key}");
            continue;
        };
        let said = said.unwrap();
        assert_eq!(
            (said.shard(), said.epoch(), said.generation()),
            (shard.id, shard.epoch, map.generation())
        );
        assert_eq!(said.leader().map(|r| r.node.id.clone()), shard.leader().map(|r| r.node.clone()));
        let mut told: Vec<_> = said.replicas().map(|r| (r.node.id.clone(), r.role)).collect();
        let mut held: Vec<_> = shard.live().map(|r| (r.node.clone(), r.role)).collect();
        told.sort();
        held.sort();
        assert_eq!(told, held);
    }
    for shard in map.shards().filter(|shard| shard.is_serving()) {
        let said = routes.route_at("ks", lowest(&shard.bounds)).map(|route| route.shard());
        assert_eq!(said, Ok(shard.id), "the shard that begins there");
    }
}

proptest! {
    /// W1–W5, M2: over losses, repeats, resyncs and lagging coordinators the routes are those of a map that
    /// was committed, and only ever of a later one.
    #[test]
    fn routes_follow_the_map_and_never_go_back(
        sharding in shardings(),
        commits in prop::collection::vec(prop::collection::vec(any::<[u8; 3]>(), 0..8), 1..20),
        pushes in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..40),
    ) {
        let mut map = empty(sharding);
        let (mut maps, mut diffs) = (vec![map.clone()], vec![]);
        for throws in &commits {
            diffs.push(commit(&mut map, throws));
            maps.push(map.clone());
        }
        let mut table = RouteTable::default();
        table.nodes((0..7).map(|number| address(number, 1)));
        let mut at = None;
        for (which, resync) in pushes {
            let to = which.index(maps.len() - 1) + 1;
            let (from, diff) = if resync { (0, maps[to].whole()) } else { (to - 1, diffs[to - 1].clone()) };
            let said = table.change(Some(brief(&maps[to])), resync, &diff);
            match (at, said) {
                (None, Ok(_)) => { prop_assert_eq!(from, 0); at = Some(to); }
                (Some(have), Ok(different)) => {
                    prop_assert_eq!(different, to != have);
                    prop_assert!(to >= have && (resync || from == have || to == have));
                    at = Some(to);
                }
                (None, Err(error)) => {
                    let gap = matches!(error, TableError::Gap { .. });
                    prop_assert!(from > 0 && gap);
                }
                (Some(have), Err(TableError::Gap { .. })) => prop_assert!(!resync && from != have),
                (Some(have), Err(TableError::Back { .. })) => prop_assert!(resync && to < have),
                (_, Err(other)) => prop_assert!(false, "{}", other),
            }
            if let Some(have) = at {
                agree(&table.routes(), &maps[have]);
                prop_assert_eq!(table.known().values().next().copied(), Some(maps[have].generation()));
            }
        }
        if at.is_some() {
            table.delete(map.keyspace(), map.next_shard());
        }
        table.forget(&(0..7).map(node).collect::<Vec<_>>());
        let left = table.routes();
        prop_assert!(left.nodes().iter().all(Option::is_none), "every node is let go");
    }
}

/// L3. A coordinator of before named a node that was forgotten and has come back as both.
#[test]
fn l3_a_node_that_was_forgotten_and_has_come_back_is_there() {
    let (mut table, _) = three();
    table.hear_of_nodes([address(1, 1)], &[node(1)]);
    let routes = table.routes();
    let leader = routes.route("ks", b"any").unwrap().leader().map(|leader| leader.node.id.clone());
    assert_eq!(leader, Some(node(1)));
    table.hear_of_nodes([], &[node(1)]);
    assert!(table.routes().route("ks", b"any").unwrap().leader().is_none());
}

/// Three live replicas on nodes 1 to 3, led by 1.
fn three() -> (RouteTable, ShardMap) {
    let mut map = empty(Sharding::HashRange { hash: HashFunction::Xxh3_64 });
    let mut edit = map.edit();
    let shard = edit.create_shard(Bounds::Hashes(HashRange::ALL)).unwrap();
    for number in 1..=3 {
        let placement = edit.add_replica(shard, &node(number), Incarnation(1), None).unwrap();
        edit.step(shard, placement, ReplicaState::Live).unwrap();
    }
    edit.lead(shard, PlacementId(1)).unwrap();
    let diff = edit.commit(TransactionId([1; 20]));
    map.apply(&diff).unwrap();
    let mut table = RouteTable::default();
    table.nodes((1..=3).map(|number| address(number, 1)));
    table.change(Some(brief(&map)), true, &diff).unwrap();
    (table, map)
}

#[test]
fn the_index_is_only_made_anew_when_bounds_change() {
    let mut map = empty(Sharding::KeyRange);
    let mut table = RouteTable::default();
    let diff = commit(&mut map, &[]);
    table.change(Some(brief(&map)), true, &diff).unwrap();
    let before = table.routes();
    let diff = commit(&mut map, &[[0, 0, 1]]);
    assert_eq!(table.change(None, false, &diff), Ok(true));
    let moved = table.routes();
    assert!(moved.keyspace("ks").unwrap().same_layout(before.keyspace("ks").unwrap()));
    let diff = commit(&mut map, &[[1, 6, 1]]);
    table.change(None, false, &diff).unwrap();
    let split = table.routes();
    assert!(!split.keyspace("ks").unwrap().same_layout(moved.keyspace("ks").unwrap()));
    // Those who still hold an earlier edition see what was true then.
    assert_eq!(before.keyspace("ks").unwrap().shards() + 1, split.keyspace("ks").unwrap().shards());
}

#[test]
fn a_keyspace_created_anew_is_taken_and_an_older_map_is_not() {
    let (mut table, map) = three();
    let mut later = map.clone();
    let diff = later.edit().commit(TransactionId([9; 20]));
    table.change(None, false, &diff).unwrap();
    let error = table.change(Some(brief(&map)), true, &map.whole()).unwrap_err();
    assert!(matches!(error, TableError::Back { .. }), "{error}");
    later.apply(&diff).unwrap();
    let anew = empty(map.sharding()).empty_after(later.next_shard(), later.next_placement());
    let mut edit = anew.edit();
    edit.create_shard(Bounds::Hashes(HashRange::ALL)).unwrap();
    let diff = edit.commit(TransactionId([7; 20]));
    assert_eq!(
        table.change(Some(KeyspaceBrief { generation: diff.to, ..brief(&map) }), true, &diff),
        Ok(true)
    );
    assert_eq!(table.routes().route("ks", b"x").unwrap().shard(), ShardId(2));
}

/// A coordinator that lags behind does not know a keyspace yet, or only the one of that name that was deleted before.
#[test]
fn m2_d11_who_lags_behind_takes_no_keyspace_away() {
    let (_, map) = three();
    let mut table = RouteTable::default();
    let first = ShardId(7);
    let later = KeyspaceBrief { first_shard: first, ..brief(&map) };
    assert_eq!(table.change(Some(later), true, &map.whole()), Ok(true));
    assert!(!table.delete(map.keyspace(), first), "it knows shards below 7 only");
    assert!(table.map(map.keyspace()).is_some());

    let mut older = map.clone();
    let diff = older.edit().commit(TransactionId([9; 20]));
    older.apply(&diff).unwrap();
    let earlier = KeyspaceBrief { first_shard: ShardId(1), ..brief(&older) };
    let error = table.change(Some(earlier.clone()), true, &older.whole()).unwrap_err();
    assert!(matches!(error, TableError::Back { .. }), "an earlier life, at a later generation: {error}");
    let identity = |cluster| ClusterIdentity { cluster: ClusterId(cluster), continues: vec![ClusterId(1)] };
    table.belongs(identity(1)).unwrap();
    assert!(table.change(Some(earlier.clone()), true, &older.whole()).is_err());
    table.belongs(identity(2)).unwrap();
    assert_eq!(table.change(Some(earlier), true, &older.whole()), Ok(true), "a restored cluster may go back");

    assert!(table.delete(map.keyspace(), ShardId(8)));
    assert!(table.map(map.keyspace()).is_none());
}

/// Who has led and stands by has no maps of its own at first, and still takes none that is older than what it said.
#[test]
fn m2_a_table_that_begins_anew_takes_nothing_older_than_what_was_known() {
    let (_, map) = three();
    let mut later = map.clone();
    let diff = later.edit().commit(TransactionId([9; 20]));
    later.apply(&diff).unwrap();
    let mut table = RouteTable::not_before([&brief(&later)]);
    assert!(table.known().is_empty(), "it asks for whole maps");
    let known = table.keyspaces();
    assert_eq!(known, [brief(&later).known()]);
    assert!(known[0].is_ahead_of(known[0].first_shard, map.generation()), "stored by somebody else");
    assert!(!known[0].is_ahead_of(known[0].first_shard, later.generation()));
    assert!(!known[0].is_ahead_of(later.next_shard(), map.generation()), "deleted and created anew");
    let error = table.change(Some(brief(&map)), true, &map.whole()).unwrap_err();
    assert!(matches!(error, TableError::Back { at, .. } if at == later.generation()), "{error}");
    assert!(table.map(map.keyspace()).is_none());
    assert_eq!(table.change(Some(brief(&later)), true, &later.whole()), Ok(true));
    assert_eq!(table.known()[map.keyspace()], later.generation());

    // A keyspace that was deleted and created anew has other shards; and one whose end was heard of may begin anywhere.
    let first_shard = later.next_shard();
    let mut table = RouteTable::not_before([&brief(&later)]);
    let anew = KeyspaceBrief { first_shard, ..brief(&map) };
    assert_eq!(table.change(Some(anew), true, &map.whole()), Ok(true));
    let mut table = RouteTable::not_before([&brief(&later)]);
    table.delete(map.keyspace(), later.next_shard());
    assert_eq!(table.change(Some(brief(&map)), true, &map.whole()), Ok(true));
}

#[test]
fn a_map_with_a_gap_is_refused_and_the_former_stays() {
    let (mut table, map) = three();
    let mut diff = map.whole();
    diff.to = Generation { sequence: 2, ..diff.to };
    diff.changed[0].bounds = Bounds::Hashes(HashRange { first: 0, last: 9 });
    let error = table.change(None, true, &diff).unwrap_err();
    assert!(matches!(error, TableError::Layout { .. }), "{error}");
    assert_eq!(table.routes().route("ks", b"x").unwrap().replicas().count(), 3);
    let unknown = table.routes().route("other", b"x").unwrap_err().to_string();
    assert_eq!(unknown, "there is no keyspace \"other\": known are ks");
}

#[test]
fn a_node_that_started_anew_is_not_asked_for_what_its_former_self_held() {
    let (mut table, _) = three();
    table.nodes([address(1, 2)]);
    let routes = table.routes();
    let route = routes.route("ks", b"x").unwrap();
    assert_eq!(route.leader(), None);
    assert_eq!(route.replicas().count(), 2);
    assert!(has_choice(&route), "a read may go to either, and be hedged");
    table.nodes([address(1, 1)]);
    assert_eq!(table.routes().route("ks", b"x").unwrap().leader(), None, "the later start stays");
}

#[test]
fn reads_prefer_who_was_not_asked_then_the_well_then_the_zone_then_the_lot() {
    let (mut table, _) = three();
    let routes = table.routes();
    let route = routes.route("ks", b"x").unwrap();
    let odd = Zone::new("odd").unwrap();
    let number = |id: u64| route.replicas().find(|r| r.node.id == node(id)).unwrap().number;
    let ask = |zone, seed, failed: &[(u32, u64)], avoided: &[u32]| {
        let failed = |number| failed.iter().find(|(n, _)| *n == number).map(|(_, at)| Millis(*at));
        let preference = Preference { zone, now: Millis(10_000), seed, failed, avoided };
        choose(&route, Access::Read, &preference).unwrap().number
    };
    let by_lot: std::collections::BTreeSet<u32> = (0..50).map(|seed| ask(None, seed, &[], &[])).collect();
    assert_eq!(by_lot.len(), 3);
    let near: std::collections::BTreeSet<u32> = (0..50).map(|seed| ask(Some(&odd), seed, &[], &[])).collect();
    assert_eq!(near, [number(1), number(3)].into());
    let (one, two, three) = (number(1), number(2), number(3));
    for seed in 0..50 {
        assert_eq!(ask(Some(&odd), seed, &[(one, 9_000)], &[]), three);
        assert_eq!(ask(Some(&odd), seed, &[(one, 9_000), (three, 9_001)], &[]), two);
        assert_eq!(ask(None, seed, &[(one, 9_002), (three, 9_001), (two, 9_003)], &[]), three);
        assert_eq!(ask(None, seed, &[(two, 9_002)], &[one, three]), two);
        assert_ne!(ask(Some(&odd), seed, &[(one, 4_999)], &[three]), two, "that is long ago");
    }
    table.nodes([NodeAddress { health: Health::Suspect, ..address(3, 1) }]);
    let routes = table.routes();
    let route = routes.route("ks", b"x").unwrap();
    let preference =
        Preference { zone: Some(&odd), now: Millis(0), seed: 3, failed: |_| None, avoided: &[one] };
    assert_eq!(choose(&route, Access::Read, &preference).unwrap().number, two);
    assert_eq!(choose(&route, Access::Write, &preference).unwrap().number, one, "the leader, asked or not");
}

#[test]
fn a_hint_leads_once_and_a_later_map_is_asked_for() {
    let (table, _) = three();
    let routes = table.routes();
    let route = routes.route("ks", b"x").unwrap();
    let known = |id: &NodeId| route.replicas().find(|r| r.node.id == *id).map(|r| r.node.clone());
    let hint = Hint { node: Some(node(2)), address: Some("10.0.0.2:80".into()), sequence: Some(1) };
    let Followed { to, refresh } = follow(&hint, &route, Some(&node(1)), known);
    assert!(matches!(to, Some(HintedNode::Known(at)) if at.id == node(2)) && !refresh);
    let moved = Hint { address: Some("10.0.0.9:80".into()), sequence: Some(2), ..hint.clone() };
    let Followed { to, refresh } = follow(&moved, &route, Some(&node(1)), known);
    assert_eq!((to, refresh), (Some(HintedNode::Told { address: "10.0.0.9:80".into() }), true));
    assert_eq!(follow(&hint, &route, Some(&node(2)), known).to, None, "it leads back");
}

/// D11: what a coordinator of another cluster says is not taken, and nothing changes.
#[test]
fn d11_a_table_belongs_to_one_cluster_and_to_those_that_continue_it() {
    let of = |cluster: u128, continues: &[u128]| ClusterIdentity {
        cluster: ClusterId(cluster),
        continues: continues.iter().copied().map(ClusterId).collect(),
    };
    let mut table = RouteTable::default();
    assert_eq!((table.belongs(of(1, &[])), table.belongs(of(1, &[]))), (Ok(()), Ok(())));
    let refused = TableError::OtherCluster { ours: ClusterId(1), theirs: ClusterId(2) };
    assert_eq!(table.belongs(of(2, &[3])), Err(refused));
    assert_eq!(table.cluster(), Some(&of(1, &[])));
    assert_eq!(table.belongs(of(2, &[3, 1])), Ok(()), "a restored cluster continues the one before");
    assert!(table.belongs(of(1, &[])).is_err(), "and who has gone on does not go back");
}
