//! The worker protocol as JSON: beat every `heartbeat_ms` and do as the orders say. How a worker comes and goes is in
//! `registration.rs`.

use crate::Malformed;
use crate::json::{Bounds, FixedWord, Generation, KeyText, PartitionKey, ReplicaPhase, Sharding};
use crate::malformed::sentence;
use crate::malformed::{At, Inside, each};
use crate::worker::conversion::phase;
use crate::worker::grpc::exchange;
use crate::worker::session::digest_given;
use partage_core::base::id::{Configuration, Epoch, Incarnation, PlacementId};
use partage_core::base::time::Millis;
use partage_core::keyspace::lifecycle::ReplicaState;
use partage_core::keyspace::map::Role;
use partage_core::keyspace::{KeyspaceKind, Ownership, RowValues};
use partage_core::node::exchange as core;
use partage_core::node::load;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The key of a replica: it names one replica of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaKey {
    /// The keyspace that the shard belongs to.
    pub keyspace: String,
    /// The id of the shard in its keyspace.
    pub shard: u64,
    /// The placement id of the replica: no other replica of the keyspace ever has it.
    pub placement: u64,
}

/// A key and how often clients ask for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HotKey {
    /// The key that clients ask for.
    pub key: KeyText,
    /// The number of requests a second for the key.
    pub requests_per_s: f64,
}

/// The load of one replica, as its worker measures it. An absent number is 0.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Load {
    /// The number of requests a second, finite and at least 0.
    pub requests_per_s: f64,
    /// The CPU milliseconds a second, finite and at least 0.
    pub cpu_ms_per_s: f64,
    /// The number of bytes stored.
    pub size_bytes: u64,
    /// The number of keys stored.
    pub keys: u64,
    /// The keys with the most requests, the heaviest first, at most 8.
    pub hot_keys: Vec<HotKey>,
    /// A key that halves the data of the shard; absent = the worker knows none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median: Option<KeyText>,
}

impl From<&load::Load> for Load {
    fn from(load: &load::Load) -> Self {
        let hot = |hot: &load::HotKey| HotKey { key: (&hot.key).into(), requests_per_s: hot.requests_per_s };
        Load {
            requests_per_s: load.requests_per_s,
            cpu_ms_per_s: load.cpu_ms_per_s,
            size_bytes: load.size_bytes,
            keys: load.keys,
            hot_keys: load.profile.hot_keys().iter().map(hot).collect(),
            median: load.profile.median().map(Into::into),
        }
    }
}

impl TryFrom<Load> for load::Load {
    type Error = Malformed;
    fn try_from(form: Load) -> Result<Self, Malformed> {
        exchange::checked(load::Load {
            requests_per_s: form.requests_per_s,
            cpu_ms_per_s: form.cpu_ms_per_s,
            size_bytes: form.size_bytes,
            keys: form.keys,
            profile: load::Profile::new(
                each(form.hot_keys, "hot_keys", |hot| {
                    Ok(load::HotKey { key: hot.key.try_into()?, requests_per_s: hot.requests_per_s })
                })?,
                form.median.map(TryInto::try_into).transpose().inside("median")?,
            ),
        })
    }
}

/// A worker's report of one replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The replica that the report is about.
    pub replica: ReplicaKey,
    /// The phase of the replica: `loading`, `ready`, `serving`, `unloading`, `unloaded`, `kept`, `dropped`, `failed`.
    #[schema(value_type = String)]
    pub phase: FixedWord<ReplicaPhase>,
    /// The epoch of the last order that the worker has carried out for the replica.
    pub epoch: u64,
    /// The load of the replica; absent = the worker has not measured it anew.
    pub load: Option<Load>,
    /// When failed: the number of failures in a row.
    #[serde(default)]
    pub attempts: u32,
    /// When failed: the reason that the service gave.
    #[serde(default)]
    pub reason: String,
    /// The number of times that the load of the replica has reported progress. While the replica loads, each new
    /// number prolongs the time that the load may take.
    #[serde(default)]
    pub progress: u32,
    /// The stored data of the replica; only in heartbeats that name every replica, and in each report of phase `kept`.
    /// A coordinator whose state was restored compares copies with it, and may not know the shard.
    #[serde(default)]
    pub served: Option<Served>,
    /// In a replicated keyspace: the replication of the shard as this replica sees it; absent = nothing new.
    #[serde(default)]
    pub replication: Option<Replication>,
    /// When failed: whether the worker's stored data of the replica is damaged, so that no further attempt can succeed.
    #[serde(default)]
    pub damaged: bool,
}

/// A worker's description of the replication of a shard of a replicated keyspace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Replication {
    /// The configuration that the replica knows of.
    pub configuration: u64,
    /// The number of entries that the replica's log has had, from the first.
    #[serde(default)]
    pub log_end: u64,
    /// Whether a follower has not heard its leader for as long as a promise lasts.
    #[serde(default)]
    pub leader_silent: bool,
    /// The placement ids of the in-sync set that a leader asks for in place of the one of this epoch and configuration, at
    /// most 128; absent = none. The answer is an order of a later configuration.
    #[serde(default)]
    pub wish: Option<Vec<u64>>,
    /// The placement id of the replica that a leader is ready to hand the lead over to, as `hand_over_to` of its order asks:
    /// that replica has every write, and the leader takes none; absent = none.
    #[serde(default)]
    pub heir_ready: Option<u64>,
}

impl TryFrom<Replication> for core::ReplicationReport {
    type Error = Malformed;
    fn try_from(form: Replication) -> Result<Self, Malformed> {
        Ok(core::ReplicationReport {
            configuration: Configuration(form.configuration),
            log_end: form.log_end,
            leader_silent: form.leader_silent,
            wish: form.wish.map(exchange::wished).transpose()?,
            heir_ready: form.heir_ready.map(PlacementId),
        })
    }
}

/// A worker's description of the stored data of a replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Served {
    /// The latest epoch under which the replica has served; 0 = it has only loaded data of other replicas.
    pub epoch: u64,
    /// The keys that the replica's shard holds.
    pub bounds: Bounds,
}

impl TryFrom<Report> for core::Report {
    type Error = Malformed;
    fn try_from(form: Report) -> Result<Self, Malformed> {
        let (attempts, reason, damaged) = (form.attempts, sentence(form.reason), form.damaged);
        Ok(core::Report {
            phase: phase(form.phase.value("phase")?, core::Failure { attempts, reason, damaged }),
            replica: form.replica.try_into().inside("replica")?,
            epoch: Epoch(form.epoch),
            load: form.load.map(TryInto::try_into).transpose().inside("load")?,
            progress: form.progress,
            served: form.served.map(TryInto::try_into).transpose().inside("served")?,
            replication: form.replication.map(TryInto::try_into).transpose().inside("replication")?,
        })
    }
}

/// A heartbeat: the worker says that it lives, and reports its replicas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Beat {
    /// The node that sent the heartbeat.
    pub node: String,
    /// The incarnation of the node: each of its processes has another.
    pub incarnation: u64,
    /// The token that the welcome gave to that incarnation, 64 hexadecimal digits.
    #[schema(min_length = 64, max_length = 64)]
    pub token: String,
    /// The number of the heartbeat among those of this incarnation, from 1.
    pub sequence: u64,
    /// The time at which the worker sent the heartbeat, in milliseconds by its own monotonic clock. The coordinator
    /// sends it back with the lease.
    pub sent_at_ms: u64,
    /// The version of the orders that the worker has taken in; 0 = none, so the coordinator sends all orders.
    #[serde(default)]
    pub applied: u64,
    /// Whether `reports` names every replica that the worker holds.
    #[serde(default)]
    pub whole: bool,
    /// The reports of the replicas that changed since the last heartbeat with an answer; all replicas when `whole` is
    /// true.
    #[serde(default)]
    pub reports: Vec<Report>,
    /// Whether the worker wants to leave; absent = as it said last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<bool>,
    /// The share of its capacity that foreground work takes, 0 to 1.
    #[serde(default)]
    pub busy: f64,
    /// Whether the worker's lease has expired, or it has never had one, when it sends the heartbeat. A coordinator that has
    /// just begun then waits before it grants the next lease, as another node may own the worker's shards.
    #[serde(default)]
    pub lease_expired: bool,
    /// Whether the worker's disk has no room, so that it takes no writes: the coordinator places nothing new on the node, and
    /// other nodes lead.
    #[serde(default)]
    pub disk_full: bool,
    /// Whether the worker's disk has stored nothing for seconds, though something waits to be stored: as `disk_full`.
    #[serde(default)]
    pub disk_stalled: bool,
    /// Whether the worker's disk has little room: the coordinator places nothing new on the node, which goes on with what it has.
    #[serde(default)]
    pub disk_nearly_full: bool,
}

impl TryFrom<Beat> for core::Beat {
    type Error = Malformed;
    fn try_from(form: Beat) -> Result<Self, Malformed> {
        Ok(core::Beat {
            node: form.node.parse().at("node")?,
            incarnation: Incarnation(form.incarnation),
            session: digest_given(Some(&form.token))?,
            sequence: form.sequence,
            sent_at: Millis(form.sent_at_ms),
            applied: form.applied,
            sent: 0,
            whole: form.whole,
            reports: each(form.reports, "reports", TryInto::try_into)?,
            leaving: form.leaving,
            busy: exchange::share(form.busy, "busy")?,
            lease_expired: form.lease_expired,
            disk: core::DiskHealth {
                full: form.disk_full,
                nearly_full: form.disk_nearly_full,
                stalled: form.disk_stalled,
            },
        })
    }
}

/// Another replica that a worker may load from, forward to, or name to clients.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Peer {
    /// The shard of that replica: the same shard, or a parent or child of it.
    pub shard: u64,
    /// The placement id of that replica: a node can have data of several replicas of a shard.
    pub placement: u64,
    /// The keys that that shard holds.
    pub bounds: Bounds,
    /// The node that has the replica.
    pub node: String,
    /// The incarnation of that node.
    pub incarnation: u64,
    /// The address of that node: `host:port`; empty when the node is removed from the cluster.
    pub address: String,
    /// The role of that replica: `leader`, `follower`, `read_replica`.
    #[schema(value_type = String)]
    pub role: FixedWord<Role>,
    /// The state of that replica: `load`, `live`, `unload`, `unload_final`.
    #[schema(value_type = String)]
    pub state: FixedWord<ReplicaState>,
    /// Whether that replica is in the in-sync set of its shard; absent = false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_sync: bool,
}

/// An order: what the worker should do with one replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Order {
    /// The replica that the order is about.
    pub replica: ReplicaKey,
    /// The keys that the replica's shard holds.
    pub bounds: Bounds,
    /// The role that the replica should have: `leader`, `follower`, `read_replica`.
    #[schema(value_type = String)]
    pub role: FixedWord<Role>,
    /// The state that the replica should have: `load`, `live`, `unload`, `unload_final`.
    #[schema(value_type = String)]
    pub state: FixedWord<ReplicaState>,
    /// The epoch of the shard.
    pub epoch: u64,
    /// In a replicated keyspace: the number of the in-sync set that `in_sync` and the peers' `in_sync` describe; absent =
    /// the shard has had no in-sync set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<u64>,
    /// Whether the replica is in the in-sync set of its shard; absent = false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_sync: bool,
    /// Whether the replica may begin. To lead: in exclusive mode, when the former owner is certainly gone. To load,
    /// in a durable keyspace: when the leader knows of the replica. To follow, after a durable shard was split or
    /// merged: when the leader serves.
    pub granted: bool,
    /// The other replicas of the shard, and of its parents or children in a split or merge, that the worker may need:
    /// in `load` to load from, in `unload` to forward requests to, else to name to clients.
    pub peers: Vec<Peer>,
    /// Whether the shard has ever had a leader, so that it may have data: then a replica without a source of the data
    /// must not serve.
    pub had_data: bool,
    /// In `unload_final`: the reason why the worker may delete the data: `moved`, `deleted`, `superseded`. Absent in
    /// other states.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub drop: Option<FixedWord<core::DropReason>>,
    /// Of the leader in a replicated keyspace: the placement id of the replica that it should hand the lead over to. The leader
    /// lets no more writes in for a bounded time, and reports `heir_ready` when that replica has every write. Absent = none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hand_over_to: Option<u64>,
}

/// The coordinator's permission to delete the data of a replica that is `kept`. A worker that has data of a later
/// epoch keeps the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Permission {
    /// The replica whose data the worker may delete.
    pub replica: ReplicaKey,
    /// The reason why the worker may delete the data: `moved`, `deleted`, `superseded`.
    #[schema(value_type = String)]
    pub reason: FixedWord<core::DropReason>,
    /// The epoch under which other replicas serve, or up to which everything was deleted.
    pub epoch: u64,
}

/// The part of a keyspace's settings that a worker needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KeyspaceBrief {
    /// The name of the keyspace.
    pub name: String,
    /// The rule by which keys map to shards.
    pub sharding: Sharding,
    /// The part of a key that the sharding uses.
    pub partition_key: PartitionKey,
    /// The ownership of shards: `eventual`, `exclusive`, `replicated`.
    #[schema(value_type = String)]
    pub ownership: FixedWord<Ownership>,
    /// The generation of the map that the orders follow.
    pub generation: Generation,
    /// The lowest shard id of this keyspace. Deleted keyspaces of the same name have only lower ids.
    pub first_shard: u64,
    /// Whether the data of the replicas lies on disk and outlives their processes.
    pub durable: bool,
    /// In a replicated keyspace: the number of replicas that must have stored a write before it is acknowledged; absent = 0.
    #[serde(default, skip_serializing_if = "crate::json::is_zero")]
    pub min_in_sync: u32,
    /// The service that the keyspace belongs to: `app`, `dataset`, `table`, `shuffle`.
    #[schema(value_type = String)]
    pub kind: FixedWord<KeyspaceKind>,
    /// For a table: the values that its rows may have: `bytes`, `json`; absent = `bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub values: Option<FixedWord<RowValues>>,
    /// For a table: the time for which its change feed keeps changes, in milliseconds; absent = 0, and it has no feed.
    #[serde(default, skip_serializing_if = "crate::json::is_zero_ms")]
    pub feed_ms: u64,
}

/// A lease: the worker may act until `lease_ms` after it sent the heartbeat, by its own clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// The `sent_at_ms` of the heartbeat that this answers, in milliseconds by the worker's clock.
    pub sent_at_ms: u64,
    /// The length of the lease, in milliseconds; 0 = it is not renewed, and the last one runs out.
    pub lease_ms: u64,
}

/// The coordinator's orders to a worker: the replicas that it should hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Orders {
    /// The id of the coordinator's cluster, as in the welcome.
    pub cluster: String,
    /// The incarnation of the node that the orders are for.
    pub incarnation: u64,
    /// The version of these orders, which the worker sends back as `applied`.
    pub version: u64,
    /// The version of the orders that `changed` and `removed` build on; 0 = these are all orders.
    pub base: u64,
    /// The keyspaces of all replicas in `changed`.
    pub keyspaces: Vec<KeyspaceBrief>,
    /// The new and the different orders.
    pub changed: Vec<Order>,
    /// The replicas that the worker should no longer serve. It keeps their data until the coordinator gives a
    /// permission.
    pub removed: Vec<ReplicaKey>,
    /// The permissions to delete data of kept replicas.
    pub permissions: Vec<Permission>,
    /// The renewed lease; only in the answer to a heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// Whether a worker that is leaving may end: other nodes serve all its shards.
    pub may_go: bool,
}

impl From<&core::Orders> for Orders {
    fn from(orders: &core::Orders) -> Self {
        let brief = |brief: &core::KeyspaceBrief| KeyspaceBrief {
            name: brief.name.to_string(),
            sharding: brief.sharding.into(),
            partition_key: brief.partition_key.into(),
            ownership: brief.ownership.into(),
            generation: brief.generation.into(),
            first_shard: brief.first_shard.0,
            durable: brief.durable,
            min_in_sync: brief.min_in_sync,
            kind: brief.kind.into(),
            values: (brief.values != RowValues::Bytes).then(|| brief.values.into()),
            feed_ms: brief.feed_ms,
        };
        let lease =
            |lease: core::LeaseRenewal| Lease { sent_at_ms: lease.sent_at.0, lease_ms: lease.lease_ms };
        Orders {
            cluster: orders.cluster.to_string(),
            permissions: orders.permissions.iter().map(Into::into).collect(),
            incarnation: orders.incarnation.0,
            version: orders.version,
            base: orders.base,
            keyspaces: orders.keyspaces.iter().map(brief).collect(),
            changed: orders.changed.iter().map(Into::into).collect(),
            removed: orders.removed.iter().map(Into::into).collect(),
            lease: orders.lease.map(lease),
            may_go: orders.may_go,
        }
    }
}

impl From<&core::Order> for Order {
    fn from(order: &core::Order) -> Self {
        Order {
            replica: (&order.replica).into(),
            bounds: (&order.bounds).into(),
            role: order.role.into(),
            state: order.state.into(),
            epoch: order.epoch.0,
            configuration: (order.configuration.0 > 0).then_some(order.configuration.0),
            in_sync: order.in_sync,
            granted: order.granted,
            peers: order.peers.iter().map(Into::into).collect(),
            had_data: order.had_data,
            drop: order.drop.map(Into::into),
            hand_over_to: order.hand_over_to.map(|heir| heir.0),
        }
    }
}
