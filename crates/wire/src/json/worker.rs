//! The worker protocol as JSON: beat every `heartbeat_ms` and do as the orders say. How a worker comes and goes is in
//! `registration.rs`.

use super::sharding::{Bounds, PartitionKey, Sharding};
use super::text::{Generation, KeyText};
use super::word;
use crate::Malformed;
use crate::form::{exchange, sentence};
use crate::malformed::{At, Inside, each};
use crate::session::digest_given;
use partage_core::exchange as core;
use partage_core::id::{Epoch, Incarnation, PlacementId, ShardId};
use partage_core::load;
use partage_core::time::Millis;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Names one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaKey {
    /// The keyspace that the shard belongs to.
    pub keyspace: String,
    /// The id of the shard in its keyspace.
    pub shard: u64,
    /// The placement of the replica: a number that no other replica of the keyspace ever has.
    pub placement: u64,
}

impl From<&core::ReplicaKey> for ReplicaKey {
    fn from(key: &core::ReplicaKey) -> Self {
        ReplicaKey { keyspace: key.keyspace.to_string(), shard: key.shard.0, placement: key.placement.0 }
    }
}

impl TryFrom<ReplicaKey> for core::ReplicaKey {
    type Error = Malformed;
    fn try_from(form: ReplicaKey) -> Result<Self, Malformed> {
        let keyspace = form.keyspace.parse().at("keyspace")?;
        Ok(core::ReplicaKey { keyspace, shard: ShardId(form.shard), placement: PlacementId(form.placement) })
    }
}

/// A key and how often it is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HotKey {
    /// The key.
    pub key: KeyText,
    /// Requests a second.
    pub requests_per_s: f64,
}

/// The load of one replica.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Load {
    /// Requests a second.
    pub requests_per_s: f64,
    /// CPU milliseconds a second.
    pub cpu_ms_per_s: f64,
    /// Bytes stored.
    pub size_bytes: u64,
    /// Keys stored.
    pub keys: u64,
    /// Heaviest first, at most 8.
    pub hot_keys: Vec<HotKey>,
    /// A key that halves the data.
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

/// How one replica is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The replica that the report is about.
    pub replica: ReplicaKey,
    /// `loading`, `ready`, `serving`, `unloading`, `unloaded`, `kept`, `dropped`, `failed`.
    pub phase: String,
    /// The epoch of the last order that was carried out.
    pub epoch: u64,
    /// When measured anew.
    pub load: Option<Load>,
    /// When failed: how often in a row.
    #[serde(default)]
    pub attempts: u32,
    /// When failed: why.
    #[serde(default)]
    pub reason: String,
    /// How often its load has said that it gets on: a new number prolongs what the load may take.
    #[serde(default)]
    pub progress: u32,
    /// What is stored of it, in beats that name all and where its data is kept: a coordinator whose state was restored has
    /// to compare copies, and may not know the shard.
    #[serde(default)]
    pub served: Option<Served>,
}

/// What a worker says of the data of a replica.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Served {
    /// The latest epoch under which it has served; 0 = it has only loaded what others have.
    pub epoch: u64,
    /// What its shard holds.
    pub bounds: Bounds,
}

impl TryFrom<Served> for core::Served {
    type Error = Malformed;
    fn try_from(form: Served) -> Result<Self, Malformed> {
        Ok(core::Served { epoch: Epoch(form.epoch), bounds: form.bounds.try_into().inside("bounds")? })
    }
}

impl TryFrom<Report> for core::Report {
    type Error = Malformed;
    fn try_from(form: Report) -> Result<Self, Malformed> {
        let phase = match form.phase.as_str() {
            "loading" => core::Phase::Loading,
            "ready" => core::Phase::Ready,
            "serving" => core::Phase::Serving,
            "unloading" => core::Phase::Unloading,
            "unloaded" => core::Phase::Unloaded,
            "kept" => core::Phase::Kept,
            "dropped" => core::Phase::Dropped,
            "failed" => core::Phase::failed(form.attempts, sentence(form.reason)),
            other => {
                let known = "loading, ready, serving, unloading, unloaded, kept, dropped, failed";
                return Err(Malformed::new("phase", format!("{other:?} is no phase: choose one of {known}")));
            }
        };
        Ok(core::Report {
            replica: form.replica.try_into().inside("replica")?,
            phase,
            epoch: Epoch(form.epoch),
            load: form.load.map(TryInto::try_into).transpose().inside("load")?,
            progress: form.progress,
            served: form.served.map(TryInto::try_into).transpose().inside("served")?,
        })
    }
}

/// "I live, and this is how my replicas are."
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Beat {
    /// The node that sent the heartbeat.
    pub node: String,
    /// The incarnation of the node: each of its processes has another.
    pub incarnation: u64,
    /// The token that the welcome gave to that incarnation.
    #[schema(min_length = 64, max_length = 64)]
    pub token: String,
    /// Counts this incarnation's beats from 1.
    pub sequence: u64,
    /// By the worker's own monotonic clock; comes back with the answer.
    pub sent_at_ms: u64,
    /// The version of orders that was taken in; 0 = none, send them whole.
    #[serde(default)]
    pub applied: u64,
    /// Whether `reports` names every replica it holds.
    #[serde(default)]
    pub whole: bool,
    /// What changed since the last answered beat.
    #[serde(default)]
    pub reports: Vec<Report>,
    /// The worker wants to leave; false = it stays after all, none = as it said last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<bool>,
    /// Share of its capacity that foreground work takes, 0 to 1.
    #[serde(default)]
    pub busy: f64,
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
            whole: form.whole,
            reports: each(form.reports, "reports", TryInto::try_into)?,
            leaving: form.leaving,
            busy: exchange::share(form.busy, "busy")?,
        })
    }
}

/// Another replica that a worker may need.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Peer {
    /// Its shard.
    pub shard: u64,
    /// Which replica of it: a node can have data of several.
    pub placement: u64,
    /// What that holds.
    pub bounds: Bounds,
    /// The node that has the replica.
    pub node: String,
    /// `host:port`.
    pub address: String,
    /// `leader`, `follower`.
    pub role: String,
    /// `load`, `live`, `unload`, `unload_final`.
    pub state: String,
}

/// What one replica should be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Order {
    /// The replica that the order is about.
    pub replica: ReplicaKey,
    /// What its shard holds.
    pub bounds: Bounds,
    /// `leader`, `follower`.
    pub role: String,
    /// `load`, `live`, `unload`, `unload_final`.
    pub state: String,
    /// The shard's epoch.
    pub epoch: u64,
    /// Whether it may begin to load or to serve: the former owner is certainly gone, or, in a durable keyspace, the
    /// leader knows of it.
    pub granted: bool,
    /// Where to load from, forward to, or hint at.
    pub peers: Vec<Peer>,
    /// Whether the shard has ever been led, so that it may have data: then a replica without a source of it must
    /// not serve.
    pub had_data: bool,
    /// In `unload_final`: why its data may be deleted: `moved`, `deleted`, `superseded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop: Option<String>,
}

/// Leave to delete the data of a replica that is `kept`. A worker that has data of a later epoch keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Permission {
    /// The replica whose data the worker may delete.
    pub replica: ReplicaKey,
    /// `moved`, `deleted`, `superseded`.
    pub reason: String,
    /// The epoch under which others serve, or up to which everything was deleted.
    pub epoch: u64,
}

impl From<&core::Permission> for Permission {
    fn from(permission: &core::Permission) -> Self {
        Permission {
            replica: (&permission.replica).into(),
            reason: permission.reason.to_string(),
            epoch: permission.epoch.0,
        }
    }
}

/// What a worker must know of a keyspace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KeyspaceBrief {
    /// Its name.
    pub name: String,
    /// How keys map to shards.
    pub sharding: Sharding,
    /// Which part of a key is sharded by.
    pub partition_key: PartitionKey,
    /// `eventual`, `exclusive`.
    pub ownership: String,
    /// The map behind the orders.
    pub generation: Generation,
    /// Its shards have this id or a later one; those of deleted keyspaces of the same name have earlier ones.
    pub first_shard: u64,
    /// Whether its data lies on disk and outlives its processes.
    pub durable: bool,
}

/// Until when the worker may act: `lease_ms` after it sent the beat, by its own clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// As in the beat.
    pub sent_at_ms: u64,
    /// For how long.
    pub lease_ms: u64,
}

/// What a worker should hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Orders {
    /// The coordinator's cluster, as in the welcome.
    pub cluster: String,
    /// For which start of the node.
    pub incarnation: u64,
    /// To be sent back as `applied`.
    pub version: u64,
    /// What `changed` and `removed` build on; 0 = they are the whole.
    pub base: u64,
    /// The keyspaces of everything in `changed`.
    pub keyspaces: Vec<KeyspaceBrief>,
    /// New or different orders.
    pub changed: Vec<Order>,
    /// Replicas that it should serve no more. Their data is kept until there is a permission.
    pub removed: Vec<ReplicaKey>,
    /// Kept replicas whose data may be deleted.
    pub permissions: Vec<Permission>,
    /// Only in answer to a beat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// The worker may go.
    pub may_go: bool,
}

impl From<&core::Orders> for Orders {
    fn from(orders: &core::Orders) -> Self {
        let brief = |brief: &core::KeyspaceBrief| KeyspaceBrief {
            name: brief.name.to_string(),
            sharding: brief.sharding.into(),
            partition_key: brief.partition_key.into(),
            ownership: brief.ownership.to_string(),
            generation: brief.generation.into(),
            first_shard: brief.first_shard.0,
            durable: brief.durable,
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
        let peer = |peer: &core::Peer| Peer {
            shard: peer.shard.0,
            placement: peer.placement.0,
            bounds: (&peer.bounds).into(),
            node: peer.node.to_string(),
            address: peer.address.clone(),
            role: word(peer.role),
            state: word(peer.state),
        };
        Order {
            replica: (&order.replica).into(),
            bounds: (&order.bounds).into(),
            role: word(order.role),
            state: word(order.state),
            epoch: order.epoch.0,
            granted: order.granted,
            peers: order.peers.iter().map(peer).collect(),
            had_data: order.had_data,
            drop: order.drop.map(|reason| reason.to_string()),
        }
    }
}
