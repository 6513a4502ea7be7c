//! What workers and coordinators tell each other.

use super::{
    SENTENCE, bounds, generations, keys, keyspace_names, node_ids, node_specs, partition_keys, shardings,
};
use partage_core::base::id::{
    ClusterId, Configuration, Epoch, Incarnation, PlacementId, SessionDigest, ShardId,
};
use partage_core::base::time::Millis;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Role;
use partage_core::keyspace::{KeyspaceKind, Ownership, RowValues};
use partage_core::node::exchange::Registration;
use partage_core::node::exchange::{
    Beat, DiskHealth, DropReason, Failure, KeyspaceBrief, Known, LeaseRenewal, Order, Orders, Peer,
    Permission, Phase, ReplicaKey, ReplicationReport, Report, Served, Stored,
};
use partage_core::node::load::{HotKey, Load, Profile};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

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
        (any::<u32>(), SENTENCE, any::<bool>()).prop_map(|(attempts, reason, damaged)| {
            Phase::Failed(Box::new(Failure { attempts, reason, damaged }))
        }),
    ]
}

fn replication() -> impl Strategy<Value = ReplicationReport> {
    let placement = || any::<u64>().prop_map(PlacementId);
    let sets = (option::of(vec(placement(), 0..4)), option::of(placement()));
    (any::<(u64, u64, bool)>(), sets).prop_map(
        |((configuration, log_end, leader_silent), (wish, heir_ready))| ReplicationReport {
            configuration: Configuration(configuration),
            log_end,
            leader_silent,
            wish,
            heir_ready,
        },
    )
}

fn served() -> impl Strategy<Value = Served> {
    (any::<u64>(), bounds()).prop_map(|(epoch, bounds)| Served { epoch: Epoch(epoch), bounds })
}

/// Heartbeats of nodes, with up to four reports of replicas.
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
    let numbers = any::<(u64, u64, u64, u64, bool, bool, bool, [bool; 3])>();
    (node_ids(), numbers, vec(report, 0..5), 0.0..=1.0f64).prop_map(|(node, numbers, reports, busy)| {
        let (incarnation, sequence, sent_at, applied, whole, leaving, lease_expired, disk) = numbers;
        let [full, nearly_full, stalled] = disk;
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
            disk: DiskHealth { full, nearly_full, stalled },
        }
    })
}

fn roles() -> impl Strategy<Value = Role> {
    select(Role::ALL.to_vec())
}

fn states() -> impl Strategy<Value = ReplicaState> {
    select(ReplicaState::ALL.to_vec())
}

fn orders_of_one() -> impl Strategy<Value = Order> {
    let which = (any::<u64>(), 1u64.., any::<(u64, bool)>());
    let peer =
        (which, bounds(), node_ids(), option::of("[a-z0-9.]{1,20}:[1-9][0-9]{0,3}"), roles(), states())
            .prop_map(|((shard, placement, (incarnation, in_sync)), bounds, node, address, role, state)| {
                Peer {
                    shard: ShardId(shard),
                    placement: PlacementId(placement),
                    bounds,
                    node,
                    incarnation: Incarnation(incarnation),
                    address,
                    role,
                    state,
                    in_sync,
                }
            });
    let heir = option::of(any::<u64>().prop_map(PlacementId));
    let data = (any::<bool>(), option::of(select(DropReason::ALL.to_vec())), heir);
    let what = (any::<(u64, u64, bool)>(), any::<bool>(), vec(peer, 0..4), data);
    (replica_keys(), bounds(), roles(), states(), what).prop_map(
        |(
            replica,
            bounds,
            role,
            state,
            ((epoch, configuration, in_sync), granted, peers, (had_data, drop, hand_over_to)),
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
            hand_over_to,
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

/// What workers and routers get to know of keyspaces.
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
                values: if kind == KeyspaceKind::Table { RowValues::Json } else { RowValues::Bytes },
                feed_ms: if kind == KeyspaceKind::Table { 600_000 } else { 0 },
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
