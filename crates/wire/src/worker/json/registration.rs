//! The session of a worker as JSON: its registration, the answer, and `leave`.

use crate::Malformed;
use crate::json::{Bounds, Generation, ReplicaKey, strings};
use crate::malformed::{At, each, names};
use crate::worker::grpc::node;
use crate::worker::session::digest_given;
use partage_core::base::id::Incarnation;
use partage_core::node::NodeSpec;
use partage_core::node::exchange as core;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The registration of a worker.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// The name of the node, the same across restarts.
    pub id: String,
    /// The address that requests for the node's shards go to: `host:port`.
    pub address: String,
    /// The node's share of every load relative to other nodes, 0.000001 to 1000000000000; absent = 1.
    pub capacity: Option<f64>,
    /// The zone of the node: the nodes of one zone may fail together. Absent = none.
    pub zone: Option<String>,
    /// The rack of the node, a smaller failure domain in its zone; absent = none.
    pub rack: Option<String>,
    /// The labels of the node, at most 64: words that constraints of keyspaces and shards name.
    #[serde(default)]
    pub labels: Vec<String>,
    /// The kinds of keyspaces that the node serves: `app`, `dataset`, `table`, `shuffle`; empty = `app`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// The path with which the coordinator checks the node: `GET` of it at the address must answer 200. Absent = the
    /// coordinator only checks that the address takes connections.
    pub check_path: Option<String>,
    /// The URL, at the node's address, to which the coordinator posts orders on every change; absent = the
    /// coordinator posts none.
    pub callback: Option<String>,
    /// The address where clients of Redis reach the node, `host:port`: what redirects of Redis Cluster name. Absent =
    /// the node has no listener for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resp_address: Option<String>,
    /// The incarnation of a process that registers again; absent for a new process.
    pub incarnation: Option<u64>,
    /// The token of that incarnation, 64 hexadecimal digits, from its first welcome. Only a process that sends it
    /// registers again as that incarnation; absent for a new process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 64, max_length = 64)]
    pub token: Option<String>,
    /// The id of the cluster that the worker was in before, or whose data it has stored, from the welcome; absent =
    /// the worker knows of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The replicas that the worker has stored and that no order to this incarnation is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stored: Vec<Stored>,
    /// The id of the cluster that ordered the replicas which were stored when the process began, from the welcome;
    /// absent = not known. With it, the coordinator finds out by `stored` whether its state was set back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_of: Option<String>,
    /// The latest map of each keyspace that orders have named to the worker. A coordinator that has an older map of
    /// one refuses the worker; an empty list skips this check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<Known>,
}

/// The latest map of a keyspace that a worker has had orders from, as `keyspaces` of the orders said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// The name of the keyspace.
    pub keyspace: String,
    /// The lowest shard id of the keyspace; it tells the keyspace from earlier ones of that name.
    pub first_shard: u64,
    /// The generation of the map.
    pub generation: Generation,
}

/// A replica that a worker has stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    /// The key of the replica.
    pub replica: ReplicaKey,
    /// The keys that the replica's shard held.
    pub bounds: Bounds,
    /// The latest epoch under which the replica has served; 0 = it has only loaded data of other replicas.
    pub epoch: u64,
    /// The number of the disk that the data lies on, given by the worker; 0 = the worker gives none.
    #[serde(default)]
    pub store: u64,
    /// Whether the worker cannot read some of the data. The coordinator then ignores the copy.
    #[serde(default)]
    pub damaged: bool,
}

impl TryFrom<Register> for core::Registration {
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
            resp_address: node::resp_address(form.resp_address)?,
        })?;
        Ok(core::Registration {
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

/// The coordinator's answer to a registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Welcome {
    /// The incarnation of the worker's process, which the worker sends with every heartbeat.
    pub incarnation: u64,
    /// The time between two heartbeats of the worker, in milliseconds.
    pub heartbeat_ms: u64,
    /// The length of a lease, in milliseconds.
    pub lease_ms: u64,
    /// The id of the coordinator's cluster, 32 hexadecimal digits. A worker of another cluster refuses the
    /// coordinator and keeps its data, unless the id of its own cluster is in `continues`.
    pub cluster: String,
    /// The ids of the clusters that this one was restored from, the last one last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub continues: Vec<String>,
    /// The token of a new process: 256 random bits, 64 hexadecimal digits. The worker sends it with every heartbeat,
    /// with `leave` and with later registrations of this incarnation, keeps it secret, and keeps it only in memory.
    /// Absent for a process that registers again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl From<&core::Welcome> for Welcome {
    fn from(welcome: &core::Welcome) -> Self {
        let core::Welcome { cluster, continues, incarnation, heartbeat_ms, lease_ms } = welcome;
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

/// The last message of a worker: it serves no shard any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Leave {
    /// The id of the node that leaves.
    pub node: String,
    /// The incarnation of the node: each of its processes has another.
    pub incarnation: u64,
    /// The token that the welcome gave to that incarnation, 64 hexadecimal digits.
    #[schema(min_length = 64, max_length = 64)]
    pub token: String,
}

/// A registration as a worker would send it.
impl From<&core::Registration> for Register {
    fn from(registration: &core::Registration) -> Self {
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
            resp_address: spec.resp_address.clone(),
            incarnation: registration.incarnation.map(|incarnation| incarnation.0),
            token: None,
            cluster: registration.cluster.map(|cluster| cluster.to_string()),
            stored: registration.stored.iter().map(Into::into).collect(),
            stored_of: registration.stored_of.map(|cluster| cluster.to_string()),
            known: registration.known.iter().map(Into::into).collect(),
        }
    }
}
