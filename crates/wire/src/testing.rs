//! Generators for property tests: everything that crosses the wire, as proptest strategies.
//!
//! Maps come as *histories*: a keyspace and the diffs of its successive commits, made with core's own edits,
//! so that each of them passes core's check. The rest is any combination of allowed values.

use partage_core::base::id::{
    ClusterId, Configuration, Epoch, Generation, Incarnation, PlacementId, PlanId, SessionDigest, ShardId,
    TransactionId,
};
use partage_core::base::name::{KeyspaceName, Label, NodeId, PartitionName, Zone};
use partage_core::base::time::Millis;
use partage_core::cluster::{ClusterRecord, Drain, KeyspaceRecord, LostIds, NodeRecord, ShardRule};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::{HashRange, Key, KeyRange};
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::{Edit, MapDiff, Role, ShardMap};
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding, Slot};
use partage_core::keyspace::{
    Constraint, Keyspace, KeyspaceKind, Mode, Ownership, Resharding, Spread, Throttle,
};
use partage_core::node::exchange::Registration;
use partage_core::node::exchange::{
    Beat, DropReason, KeyspaceBrief, Known, LeaseRenewal, Order, Orders, Peer, Permission, Phase, ReplicaKey,
    ReplicationReport, Report, Served, Stored,
};
use partage_core::node::load::{HotKey, Load, Profile};
use partage_core::node::{CheckBack, NodeSpec};
use partage_core::plan::{Basis, Change, Origin, Plan, Planned, Progress, Status};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

const NAME: &str = "[a-zA-Z0-9_@+-][a-zA-Z0-9_.:@+-]{0,20}";
const SENTENCE: &str = "\\PC{0,40}";

fn name<T: std::str::FromStr<Err: std::fmt::Debug> + std::fmt::Debug>() -> impl Strategy<Value = T> {
    NAME.prop_map(|name| name.parse().expect("the pattern is that of names"))
}

/// Names of keyspaces.
pub fn keyspace_names() -> impl Strategy<Value = KeyspaceName> {
    name()
}

/// Names of nodes: few, so that they meet again.
pub fn node_ids() -> impl Strategy<Value = NodeId> {
    prop_oneof![4 => select(vec!["n1", "n2", "n3", "n4"]).prop_map(|id| id.parse().expect("names")), 1 => name()]
}

/// Keys, the empty one and one of the greatest length among them.
pub fn keys() -> impl Strategy<Value = Key> {
    let key = |bytes: Vec<u8>| Key::new(&bytes).expect("short enough");
    prop_oneof![
        9 => vec(any::<u8>(), 0..12).prop_map(key),
        1 => any::<u8>().prop_map(move |byte| key(vec![byte; partage_core::limits::KEY_BYTES])),
    ]
}

/// Shardings that a keyspace can have.
pub fn shardings() -> impl Strategy<Value = Sharding> {
    let hash = || select(HashFunction::ALL.to_vec());
    prop_oneof![
        Just(Sharding::KeyRange),
        hash().prop_map(|hash| Sharding::HashRange { hash }),
        (hash(), 1u32..16_384).prop_map(|(hash, shards)| Sharding::Fixed { hash, shards }),
        Just(Sharding::Named),
    ]
}

/// All partition keys.
pub fn partition_keys() -> impl Strategy<Value = PartitionKey> {
    prop_oneof![
        Just(PartitionKey::Whole),
        any::<u16>().prop_map(|bytes| PartitionKey::Prefix { bytes }),
        any::<u8>().prop_map(|delimiter| PartitionKey::UpTo { delimiter }),
        Just(PartitionKey::HashTag),
    ]
}

/// Bounds of all kinds.
pub fn bounds() -> impl Strategy<Value = Bounds> {
    let range = (keys(), keys()).prop_map(|(a, b)| {
        let (low, high) = if a <= b { (a, b) } else { (b, a) };
        Bounds::Keys(KeyRange::new(low, high).unwrap_or_else(|_| KeyRange::all()))
    });
    prop_oneof![
        range,
        any::<(u64, u64)>().prop_map(|(a, b)| Bounds::Hashes(HashRange { first: a.min(b), last: a.max(b) })),
        (1u32..=4_000_000, any::<u32>())
            .prop_map(|(of, number)| Bounds::Slot(Slot::new(number % of, of).expect("it is below"))),
        name::<PartitionName>().prop_map(Bounds::Name),
    ]
}

/// Generations, that of the empty map among them.
pub fn generations() -> impl Strategy<Value = Generation> {
    let some = (any::<u64>(), any::<[u8; 20]>())
        .prop_map(|(sequence, transaction)| Generation { sequence, transaction: TransactionId(transaction) });
    prop_oneof![1 => Just(Generation::default()), 5 => some]
}

fn loads() -> impl Strategy<Value = Load> {
    let number = || prop_oneof![Just(0.0), 0.0..1e9f64];
    let hot = (keys(), number()).prop_map(|(key, requests_per_s)| HotKey { key, requests_per_s });
    (number(), number(), any::<u64>(), any::<u64>(), vec(hot, 0..8), option::of(keys())).prop_map(
        |(requests_per_s, cpu_ms_per_s, size_bytes, keys, hot_keys, median)| Load {
            requests_per_s,
            cpu_ms_per_s,
            size_bytes,
            keys,
            profile: Profile::new(hot_keys, median),
        },
    )
}

fn replica_keys() -> impl Strategy<Value = ReplicaKey> {
    (keyspace_names(), any::<u64>(), any::<u64>()).prop_map(|(keyspace, shard, placement)| ReplicaKey {
        keyspace,
        shard: ShardId(shard),
        placement: PlacementId(placement),
    })
}

fn phases() -> impl Strategy<Value = Phase> {
    prop_oneof![
        Just(Phase::Loading),
        Just(Phase::Ready),
        Just(Phase::Serving),
        Just(Phase::Unloading),
        Just(Phase::Unloaded),
        Just(Phase::Kept),
        Just(Phase::Dropped),
        (any::<u32>(), SENTENCE).prop_map(|(attempts, reason)| Phase::failed(attempts, reason)),
    ]
}

fn replication() -> impl Strategy<Value = ReplicationReport> {
    (any::<(u64, u64, bool)>(), option::of(vec(any::<u64>().prop_map(PlacementId), 0..4))).prop_map(
        |((configuration, log_end, leader_silent), wish)| ReplicationReport {
            configuration: Configuration(configuration),
            log_end,
            leader_silent,
            wish,
        },
    )
}

fn served() -> impl Strategy<Value = Served> {
    (any::<u64>(), bounds()).prop_map(|(epoch, bounds)| Served { epoch: Epoch(epoch), bounds })
}

/// Beats with reports.
pub fn beats() -> impl Strategy<Value = Beat> {
    let report =
        (replica_keys(), phases(), any::<u64>(), option::of(loads()), any::<u32>(), option::of(served()));
    let report = (report, option::of(replication()));
    let report = report.prop_map(|((replica, phase, epoch, load, progress, served), replication)| Report {
        replica,
        phase,
        epoch: Epoch(epoch),
        load,
        progress,
        served,
        replication,
    });
    let numbers = any::<(u64, u64, u64, u64, bool, bool, bool)>();
    (node_ids(), numbers, vec(report, 0..5), 0.0..=1.0f64).prop_map(|(node, numbers, reports, busy)| {
        let (incarnation, sequence, sent_at, applied, whole, leaving, lease_expired) = numbers;
        Beat {
            node,
            incarnation: Incarnation(incarnation),
            session: SessionDigest::default(),
            sequence,
            sent_at: Millis(sent_at),
            applied,
            sent: 0,
            whole,
            reports,
            leaving: Some(leaving),
            busy,
            lease_expired,
        }
    })
}

fn roles() -> impl Strategy<Value = Role> {
    select(vec![Role::Leader, Role::Follower])
}

fn states() -> impl Strategy<Value = ReplicaState> {
    select(ReplicaState::ALL.to_vec())
}

fn orders_of_one() -> impl Strategy<Value = Order> {
    let which = (any::<u64>(), 1u64.., any::<(u64, bool)>());
    let peer = (which, bounds(), node_ids(), "[a-z0-9.]{1,20}:[1-9][0-9]{0,3}", roles(), states()).prop_map(
        |((shard, placement, (incarnation, in_sync)), bounds, node, address, role, state)| Peer {
            shard: ShardId(shard),
            placement: PlacementId(placement),
            bounds,
            node,
            incarnation: Incarnation(incarnation),
            address,
            role,
            state,
            in_sync,
        },
    );
    let data = (any::<bool>(), option::of(select(DropReason::ALL.to_vec())));
    let what = (any::<(u64, u64, bool)>(), any::<bool>(), vec(peer, 0..4), data);
    (replica_keys(), bounds(), roles(), states(), what).prop_map(
        |(
            replica,
            bounds,
            role,
            state,
            ((epoch, configuration, in_sync), granted, peers, (had_data, drop)),
        )| Order {
            replica,
            bounds,
            role,
            state,
            epoch: Epoch(epoch),
            configuration: Configuration(configuration),
            in_sync,
            granted,
            peers,
            had_data,
            drop,
        },
    )
}

/// What a worker has stored.
pub fn stored() -> impl Strategy<Value = Stored> {
    (replica_keys(), bounds(), any::<(u64, u64, bool)>()).prop_map(
        |(replica, bounds, (epoch, store, damaged))| Stored {
            replica,
            bounds,
            epoch: Epoch(epoch),
            store,
            damaged,
        },
    )
}

/// Registrations of that node.
pub fn registrations() -> impl Strategy<Value = Registration> {
    let clusters = (option::of(any::<u128>()), option::of(any::<u128>()));
    let known = (option::of(1u64..), clusters, vec(stored(), 0..3), vec(known(), 0..3));
    (node_specs(), known).prop_map(|(spec, (incarnation, (cluster, stored_of), stored, known))| {
        Registration {
            spec,
            incarnation: incarnation.map(Incarnation),
            session: SessionDigest::default(),
            cluster: cluster.map(ClusterId),
            stored,
            stored_of: stored_of.map(ClusterId),
            known,
            from: None,
        }
    })
}

/// What a worker was told.
pub fn known() -> impl Strategy<Value = Known> {
    (keyspace_names(), any::<u64>(), generations()).prop_map(|(keyspace, first_shard, generation)| Known {
        keyspace,
        first_shard: ShardId(first_shard),
        generation,
    })
}

/// Briefs of keyspaces.
pub fn briefs() -> impl Strategy<Value = KeyspaceBrief> {
    let ownership = select(Ownership::ALL.to_vec());
    let rest = (any::<(u64, bool)>(), select(KeyspaceKind::ALL.to_vec()));
    (keyspace_names(), shardings(), partition_keys(), ownership, generations(), rest).prop_map(
        |(name, sharding, partition_key, ownership, generation, ((first_shard, durable), kind))| {
            KeyspaceBrief {
                name,
                sharding,
                partition_key,
                ownership,
                generation,
                first_shard: ShardId(first_shard),
                durable,
                min_in_sync: if ownership == Ownership::Replicated { 2 } else { 0 },
                kind,
            }
        },
    )
}

/// Orders to a node.
pub fn orders() -> impl Strategy<Value = Orders> {
    let lease = any::<(u64, u64, u64)>().prop_map(|(at, lease_ms, spread_ms)| LeaseRenewal {
        sent_at: Millis(at),
        lease_ms,
        spread_ms,
    });
    let permission = (replica_keys(), select(DropReason::ALL.to_vec()), any::<u64>())
        .prop_map(|(replica, reason, epoch)| Permission { replica, reason, epoch: Epoch(epoch) });
    let gone = (vec(replica_keys(), 0..5), vec(permission, 0..3));
    let lists = (vec(briefs(), 0..3), vec(orders_of_one(), 0..5), gone);
    (any::<(u128, u64, u64, u64, bool)>(), lists, option::of(lease)).prop_map(|(numbers, lists, lease)| {
        let (cluster, incarnation, version, base, may_go) = numbers;
        let (keyspaces, changed, (removed, permissions)) = lists;
        Orders {
            cluster: ClusterId(cluster),
            permissions,
            incarnation: Incarnation(incarnation),
            version,
            base,
            keyspaces,
            changed,
            removed,
            lease,
            may_go,
        }
    })
}

/// Announcements of nodes.
pub fn node_specs() -> impl Strategy<Value = NodeSpec> {
    let zones = (option::of(name::<Zone>()), option::of(name::<Zone>()));
    let check = option::of("/[a-z?=&/]{0,20}");
    let callback = option::of("(/[a-z0-9./]{0,20})?");
    let address = "[a-z0-9.-]{1,20}:[1-9][0-9]{0,3}";
    let words = (btree_set(name::<Label>(), 0..4), btree_set(select(KeyspaceKind::ALL.to_vec()), 1..3));
    (node_ids(), address, 0.001..1e6f64, zones, words, check, callback).prop_map(
        |(id, address, capacity, (zone, rack), (labels, kinds), check, callback)| NodeSpec {
            id,
            callback: callback.map(|path| format!("http://{address}{path}")),
            address,
            capacity,
            zone,
            rack,
            labels,
            kinds,
            check_back: check.map_or(CheckBack::Connect, CheckBack::Get),
        },
    )
}

fn constraints() -> impl Strategy<Value = Constraint> {
    let nodes = || btree_set(node_ids(), 0..3);
    (nodes(), nodes(), btree_set(name::<Label>(), 0..3)).prop_map(|(pinned, mut excluded, labels)| {
        excluded.retain(|node| !pinned.contains(node));
        Constraint { pinned, excluded, labels }
    })
}

/// Keyspaces of one sharding.
pub fn keyspaces_sharded(sharding: Sharding) -> impl Strategy<Value = Keyspace> {
    let words = (
        select(KeyspaceKind::ALL.to_vec()),
        select(Ownership::ALL.to_vec()),
        select(Mode::ALL.to_vec()),
        select(Spread::ALL.to_vec()),
    );
    let throttle = (1u32.., 1u32.., 1u32.., any::<u64>(), 1u64.., any::<u64>()).prop_map(
        |(moves, moves_per_node, loads_per_node, bytes_per_s, load_ms, replace_after_ms)| Throttle {
            moves,
            moves_per_node,
            loads_per_node,
            bytes_per_s,
            load_ms,
            replace_after_ms,
        },
    );
    let numbers = (any::<(u64, u64, u32, u32, u32)>(), 0.0..1e9f64, 0.001..=1.0f64);
    let resharding = numbers.prop_map(|(numbers, split_requests_per_s, hot_key_share)| {
        let (split_bytes, window_ms, max_replicas, min_shards, max_shards) = numbers;
        Resharding {
            split_bytes,
            split_requests_per_s,
            window_ms,
            hot_key_share,
            max_replicas,
            min_shards,
            max_shards,
        }
    });
    let replicas = (1u32..=64, option::of(1u32..=64));
    let replicas = (replicas, any::<bool>());
    let rest = (replicas, "[a-z-]{1,12}", constraints(), throttle, resharding);
    (keyspace_names(), partition_keys(), words, rest).prop_map(
        move |(name, partition_key, (kind, ownership, mode, spread), rest)| {
            let (((replicas, dataset_replication), durable), policy, constraint, throttle, resharding) = rest;
            Keyspace {
                name,
                kind,
                sharding,
                partition_key,
                ownership,
                replicas,
                policy,
                mode,
                spread,
                constraint,
                throttle,
                resharding,
                dataset_replication,
                durable: durable || ownership == Ownership::Replicated,
                min_in_sync: if ownership == Ownership::Replicated { replicas } else { 0 },
            }
        },
    )
}

/// Keyspaces of every sharding.
pub fn keyspaces() -> impl Strategy<Value = Keyspace> {
    shardings().prop_flat_map(keyspaces_sharded)
}

/// Keyspaces with rules for shards.
pub fn keyspace_records() -> impl Strategy<Value = KeyspaceRecord> {
    let ids = (any::<u64>(), option::of(lost_ids()));
    (keyspaces(), option::of(SENTENCE), rules(), any::<u64>(), ids).prop_map(
        |(keyspace, brake, rules, created_ms, (first_shard, lost))| KeyspaceRecord {
            brake,
            rules,
            lost,
            ..KeyspaceRecord::new(keyspace, created_ms, ShardId(first_shard))
        },
    )
}

fn lost_ids() -> impl Strategy<Value = LostIds> {
    any::<((u64, u64), (u64, u64))>().prop_map(|(shards, placements)| LostIds {
        shards: (ShardId(shards.0), ShardId(shards.1)),
        placements: (PlacementId(placements.0), PlacementId(placements.1)),
    })
}

fn rules() -> impl Strategy<Value = std::collections::BTreeMap<ShardId, ShardRule>> {
    let rule = (option::of(any::<u32>()), constraints(), option::of(SENTENCE), any::<u32>()).prop_map(
        |(replicas, constraint, set_aside, deaths)| ShardRule { replicas, constraint, set_aside, deaths },
    );
    btree_map(any::<u64>().prop_map(ShardId), rule, 0..4)
}

/// Nodes as stored.
pub fn node_records() -> impl Strategy<Value = NodeRecord> {
    let drain = (SENTENCE, any::<u64>(), option::of(any::<u32>()), option::of(any::<u32>())).prop_map(
        |(reason, asked_ms, max_down, began_with)| Drain { reason, asked_ms, max_down, began_with },
    );
    let session = option::of(any::<[u8; 32]>().prop_map(SessionDigest));
    let numbers = any::<(u64, [bool; 3], u64)>();
    (node_specs(), session, numbers, option::of(drain)).prop_map(|(spec, session, numbers, drain)| {
        let (incarnation, [ended, left, held], since_ms) = numbers;
        let incarnation = Incarnation(incarnation);
        NodeRecord { spec, incarnation, session, ended, left, held, drain, since_ms }
    })
}

/// Cluster records.
pub fn cluster_records() -> impl Strategy<Value = ClusterRecord> {
    let clusters = (any::<u128>(), vec(any::<u128>(), 0..3));
    let deleted = btree_map(keyspace_names(), any::<u64>().prop_map(ShardId), 0..3);
    let later = vec(known(), 0..3);
    let told = (option::of(SENTENCE), clusters, deleted, option::of(lost_ids()), later);
    (any::<(u64, u64, u64, u64, u64)>(), told).prop_map(
        |(numbers, (brake, clusters, deleted_keyspaces, lost, later_maps))| {
            let (incarnation, plan, longest_lease_ms, shard, placement) = numbers;
            ClusterRecord {
                next_incarnation: Incarnation(incarnation),
                next_plan: PlanId(plan),
                longest_lease_ms,
                brake,
                next_shard: ShardId(shard),
                next_placement: PlacementId(placement),
                id: ClusterId(clusters.0),
                continues: clusters.1.into_iter().map(ClusterId).collect(),
                deleted_keyspaces,
                lost,
                later_maps,
            }
        },
    )
}

fn changes() -> impl Strategy<Value = Change> {
    let shard = || any::<u64>().prop_map(ShardId);
    let placement = || any::<u64>().prop_map(PlacementId);
    let child = || (bounds(), vec(node_ids(), 0..3));
    prop_oneof![
        (shard(), node_ids()).prop_map(|(shard, node)| Change::Add { shard, node }),
        (shard(), placement(), node_ids()).prop_map(|(shard, from, to)| Change::Move { shard, from, to }),
        (shard(), placement()).prop_map(|(shard, placement)| Change::Remove { shard, placement }),
        (shard(), placement()).prop_map(|(shard, placement)| Change::Lead { shard, placement }),
        (shard(), vec(child(), 0..3)).prop_map(|(shard, children)| Change::Split { shard, children }),
        (vec(shard(), 0..3), child()).prop_map(|(shards, child)| Change::Merge { shards, child }),
    ]
}

/// Plans at every stage.
pub fn plans() -> impl Strategy<Value = Plan> {
    let progress = prop_oneof![
        Just(Progress::Waiting),
        Just(Progress::Started),
        Just(Progress::Done),
        SENTENCE.prop_map(Progress::Dropped),
    ];
    let origin = prop_oneof![
        Just(Origin::Repair),
        Just(Origin::Drain),
        Just(Origin::Rebalance),
        SENTENCE.prop_map(Origin::Person),
    ];
    let status = prop_oneof![
        Just(Status::Suggested),
        Just(Status::Approved),
        Just(Status::Finished),
        (any::<u64>(), any::<[u64; 3]>()).prop_map(|(print, load)| Status::Rejected(Basis { print, load })),
        Just(Status::Superseded),
        SENTENCE.prop_map(Status::Refused),
    ];
    let node = option::of(node_ids());
    let planned = (changes(), SENTENCE, progress, node).prop_map(|(change, reason, progress, node)| {
        let node = node.filter(|_| change.replica().is_some());
        Planned { change, reason, progress, node }
    });
    let head = (any::<(u64, u64)>(), keyspace_names(), generations(), origin);
    (head, vec(planned, 0..5), status, option::of(SENTENCE)).prop_map(
        |(((id, made_ms), keyspace, base, origin), changes, status, decided_by)| Plan {
            id: PlanId(id),
            keyspace,
            base,
            origin,
            changes,
            status,
            made_ms,
            decided_by,
        },
    )
}

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
