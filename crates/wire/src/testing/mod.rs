//! Generators for property tests: everything that crosses the wire, as proptest strategies.
//!
//! Maps come as [`histories`]; the rest is any combination of allowed values.

mod exchange;
mod histories;
mod replication;

pub use exchange::{beats, briefs, known, orders, registrations, stored};
pub use histories::{histories, replay};
pub use replication::{appends, openings, packets};

use partage_core::base::id::{
    ClusterId, Generation, Incarnation, PlacementId, PlanId, SessionDigest, ShardId, TransactionId,
};
use partage_core::base::name::{KeyspaceName, Label, NodeId, PartitionName, Zone};
use partage_core::cluster::{ClusterRecord, Drain, KeyspaceRecord, LostIds, NodeRecord, ShardRule};
use partage_core::keyspace::hash::HashFunction;
use partage_core::keyspace::key::{HashRange, Key, KeyRange};
use partage_core::keyspace::sharding::{Bounds, PartitionKey, Sharding, Slot};
use partage_core::keyspace::{
    Constraint, Keyspace, KeyspaceKind, Mode, Ownership, Resharding, RowValues, Spread, Throttle,
};
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

/// Names that a keyspace can have.
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

/// Each way to make a partition key of a key.
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

/// What nodes announce when they register.
pub fn node_specs() -> impl Strategy<Value = NodeSpec> {
    let zones = (option::of(name::<Zone>()), option::of(name::<Zone>()));
    let check = option::of("/[a-z?=&/]{0,20}");
    let callback = option::of("(/[a-z0-9./]{0,20})?");
    let address = ("[a-z0-9.-]{1,20}:[1-9][0-9]{0,3}", option::of("[a-z0-9.-]{1,20}:[1-9][0-9]{0,3}"));
    let words = (btree_set(name::<Label>(), 0..4), btree_set(select(KeyspaceKind::ALL.to_vec()), 1..3));
    (node_ids(), address, 0.001..1e6f64, zones, words, check, callback).prop_map(
        |(id, (address, resp_address), capacity, (zone, rack), (labels, kinds), check, callback)| NodeSpec {
            id,
            callback: callback.map(|path| format!("http://{address}{path}")),
            address,
            capacity,
            zone,
            rack,
            labels,
            kinds,
            check_back: check.map_or(CheckBack::Connect, CheckBack::Get),
            resp_address,
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
                values: if kind == KeyspaceKind::Table { RowValues::Json } else { RowValues::Bytes },
                feed_ms: if kind == KeyspaceKind::Table { 600_000 } else { 0 },
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

/// Nodes as the coordinator stores them.
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

/// The record of a cluster, as the coordinator stores it.
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
