//! The session of a worker as JSON: how it registers, what it is told, and its last word.

use super::sharding::Bounds;
use super::strings;
use super::text::Generation;
use super::worker::ReplicaKey;
use crate::Malformed;
use crate::form::node;
use crate::malformed::{At, Inside, each, names};
use crate::session::digest_given;
use partage_core::cluster;
use partage_core::exchange as core;
use partage_core::id::{Epoch, Incarnation, ShardId};
use partage_core::node::NodeSpec;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A worker that wants to take part.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// Its name, kept across restarts.
    pub id: String,
    /// `host:port` where requests for its shards go.
    pub address: String,
    /// Its share of every load; 1 is usual.
    pub capacity: Option<f64>,
    /// What fails with it.
    pub zone: Option<String>,
    /// A smaller failure domain in the zone.
    pub rack: Option<String>,
    /// Free words to pin and exclude by.
    #[serde(default)]
    pub labels: Vec<String>,
    /// The kinds of keyspaces that it serves; none = `app`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// The coordinator checks that `GET` of this path answers 200; none = that the address connects.
    pub check_path: Option<String>,
    /// URL where orders are posted to on every change.
    pub callback: Option<String>,
    /// The incarnation it has, when it comes back.
    pub incarnation: Option<u64>,
    /// The token that the welcome gave to that incarnation: without it nobody comes back as that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 64, max_length = 64)]
    pub token: Option<String>,
    /// The cluster that took it in before, or whose data it has stored, as in the welcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// What it has stored that no order to this incarnation is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stored: Vec<Stored>,
    /// The cluster that ordered what was stored when the process began, as the welcome named it. With it, a coordinator whose
    /// state was set back is found out by `stored`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_of: Option<String>,
    /// The latest map of each keyspace that orders have named to it: a coordinator that has older ones does not take it
    /// in. One that names none is not asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<Known>,
}

/// The latest map of a keyspace that a worker was given orders by, as `keyspaces` of the orders said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// The name of the keyspace.
    pub keyspace: String,
    /// Tells it from earlier keyspaces of that name.
    pub first_shard: u64,
    /// The map.
    pub generation: Generation,
}

impl From<&core::Known> for Known {
    fn from(known: &core::Known) -> Self {
        Known {
            keyspace: known.keyspace.to_string(),
            first_shard: known.first_shard.0,
            generation: known.generation.into(),
        }
    }
}

impl TryFrom<Known> for core::Known {
    type Error = Malformed;
    fn try_from(form: Known) -> Result<Self, Malformed> {
        Ok(core::Known {
            keyspace: form.keyspace.parse().at("keyspace")?,
            first_shard: ShardId(form.first_shard),
            generation: form.generation.try_into().inside("generation")?,
        })
    }
}

/// A replica that a worker has stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// The replica that the worker has stored.
    pub replica: ReplicaKey,
    /// What its shard held.
    pub bounds: Bounds,
    /// The latest epoch that it has served under; 0 = it has only loaded what others have.
    pub epoch: u64,
    /// Names the disk on which it lies; 0 = not named.
    #[serde(default)]
    pub store: u64,
    /// Some of it cannot be read: it counts for nothing.
    #[serde(default)]
    pub damaged: bool,
}

impl From<&core::Stored> for Stored {
    fn from(stored: &core::Stored) -> Self {
        Stored {
            replica: (&stored.replica).into(),
            bounds: (&stored.bounds).into(),
            epoch: stored.epoch.0,
            store: stored.store,
            damaged: stored.damaged,
        }
    }
}

impl TryFrom<Stored> for core::Stored {
    type Error = Malformed;
    fn try_from(form: Stored) -> Result<Self, Malformed> {
        Ok(core::Stored {
            replica: form.replica.try_into().inside("replica")?,
            bounds: form.bounds.try_into().inside("bounds")?,
            epoch: Epoch(form.epoch),
            store: form.store,
            damaged: form.damaged,
        })
    }
}

impl TryFrom<Register> for cluster::Registration {
    type Error = Malformed;
    fn try_from(form: Register) -> Result<Self, Malformed> {
        let spec = node::checked(NodeSpec {
            id: form.id.parse().at("id")?,
            address: form.address,
            capacity: form.capacity.unwrap_or(1.0),
            zone: form.zone.map(|zone| zone.parse()).transpose().at("zone")?,
            rack: form.rack.map(|rack| rack.parse()).transpose().at("rack")?,
            labels: names(&form.labels, "labels")?,
            kinds: node::kinds(&form.kinds)?,
            check_back: node::check_back(form.check_path, "check_path")?,
            callback: node::callback(form.callback, "callback")?,
        })?;
        Ok(cluster::Registration {
            spec,
            incarnation: form.incarnation.map(Incarnation),
            session: digest_given(form.token.as_deref())?,
            cluster: form.cluster.map(|cluster| cluster.parse()).transpose().at("cluster")?,
            stored: each(form.stored, "stored", TryInto::try_into)?,
            stored_of: form.stored_of.map(|cluster| cluster.parse()).transpose().at("stored_of")?,
            known: each(form.known, "known", TryInto::try_into)?,
            from: None,
        })
    }
}

/// The answer to a registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Welcome {
    /// To be sent with every beat.
    pub incarnation: u64,
    /// How often to beat.
    pub heartbeat_ms: u64,
    /// How long a lease is.
    pub lease_ms: u64,
    /// The coordinator's cluster: a worker of another one refuses the coordinator and keeps its data, unless its own
    /// is in `continues`.
    pub cluster: String,
    /// Clusters that this one was restored from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub continues: Vec<String>,
    /// To a new process: to be sent with every heartbeat, `leave` and later registration of this incarnation. To be kept
    /// secret, and in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl From<&cluster::Welcome> for Welcome {
    fn from(welcome: &cluster::Welcome) -> Self {
        let cluster::Welcome { cluster, continues, incarnation, heartbeat_ms, lease_ms } = welcome;
        Welcome {
            incarnation: incarnation.0,
            heartbeat_ms: *heartbeat_ms,
            lease_ms: *lease_ms,
            cluster: cluster.to_string(),
            continues: strings(continues),
            token: None,
        }
    }
}

/// The last word of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Leave {
    /// The id of the node that leaves.
    pub node: String,
    /// The incarnation of the node: each of its processes has another.
    pub incarnation: u64,
    /// The token that the welcome gave to that incarnation.
    #[schema(min_length = 64, max_length = 64)]
    pub token: String,
}

/// A registration as a worker would send it.
impl From<&cluster::Registration> for Register {
    fn from(registration: &cluster::Registration) -> Self {
        let spec = &registration.spec;
        Register {
            id: spec.id.to_string(),
            address: spec.address.clone(),
            capacity: Some(spec.capacity),
            zone: spec.zone.as_ref().map(ToString::to_string),
            rack: spec.rack.as_ref().map(ToString::to_string),
            labels: strings(&spec.labels),
            kinds: node::kind_words(&spec.kinds),
            check_path: match &spec.check_back {
                partage_core::node::CheckBack::Connect => None,
                partage_core::node::CheckBack::Get(path) => Some(path.clone()),
            },
            callback: spec.callback.clone(),
            incarnation: registration.incarnation.map(|incarnation| incarnation.0),
            token: None,
            cluster: registration.cluster.map(|cluster| cluster.to_string()),
            stored: registration.stored.iter().map(Into::into).collect(),
            stored_of: registration.stored_of.map(|cluster| cluster.to_string()),
            known: registration.known.iter().map(Into::into).collect(),
        }
    }
}
