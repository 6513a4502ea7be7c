//! Nodes as JSON: a row of the list, and one with all that is on it.

use crate::json::{FixedWord, Shard};
use partage_core::cluster::node_detail;
use partage_core::cluster::status as core;
use partage_core::keyspace::KeyspaceKind;
use partage_core::node::Health;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// One node, as it announced itself and as the coordinator sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// The name of the node.
    pub id: String,
    /// The address that requests for the node's shards go to: `host:port`.
    pub address: String,
    /// The address where clients of Redis reach the node, `host:port`; absent = it has no listener for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resp_address: Option<String>,
    /// The latest incarnation of the node: each of its processes has another.
    pub incarnation: u64,
    /// The time at which that incarnation registered, in milliseconds of Unix time.
    pub since_ms: u64,
    /// The health of the node: `unknown`, `up`, `suspect`, `unreachable`, `down`, `left`.
    #[schema(value_type = String)]
    pub health: FixedWord<Health>,
    /// The zone of the node; absent = none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The rack of the node; absent = none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// The labels of the node.
    pub labels: Vec<String>,
    /// The kinds of keyspaces that the node serves.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub kinds: Vec<FixedWord<KeyspaceKind>>,
    /// The node's share of every load, relative to other nodes.
    pub capacity: f64,
    /// The reason for the drain of the node, which may still wait in the queue; absent = it is not drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draining: Option<String>,
    /// Whether the node has asked to leave.
    pub leaving: bool,
    /// Whether the node has taken in all its orders: it no longer serves what the orders told it to give up.
    #[serde(default)]
    pub up_to_date: bool,
    /// The share of its capacity that foreground work takes, 0 to 1, as the node reported it.
    pub busy: f64,
    /// Whether the disk of the node has no room, as the node says: it takes no writes and gets nothing new.
    #[serde(default)]
    pub disk_full: bool,
    /// Whether the disk of the node has stored nothing for seconds, as the node says: as `disk_full`.
    #[serde(default)]
    pub disk_stalled: bool,
    /// Whether the disk of the node has little room, as the node says: it takes writes and gets nothing new.
    #[serde(default)]
    pub disk_nearly_full: bool,
    /// The numbers of replicas that the node should hold, by keyspace.
    pub replicas: BTreeMap<String, usize>,
    /// The number of those replicas that lead.
    pub leaders: usize,
    /// The sum of the requests a second that its replicas report.
    pub requests_per_s: f64,
    /// The sum of the CPU milliseconds a second that its replicas report.
    pub cpu_ms_per_s: f64,
    /// The sum of the bytes stored that its replicas report.
    pub size_bytes: f64,
}

impl Node {
    /// Whether it serves keyspaces of that kind.
    pub fn serves(&self, kind: KeyspaceKind) -> bool {
        self.kinds.iter().any(|said| said.is(kind))
    }
}

/// A shard with a replica on the node that was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostedShard {
    /// The keyspace of the shard.
    pub keyspace: String,
    /// The shard, with all its replicas.
    #[serde(flatten)]
    pub shard: Shard,
}

/// One node, with the shards that it holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeDetail {
    /// The node, as in the list of all nodes.
    #[serde(flatten)]
    pub node: Node,
    /// The reason why the node is not `up`; absent = it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_because: Option<String>,
    /// The request with which the coordinator checks the address of the node.
    #[serde(default)]
    pub check: String,
    /// The time since the last heartbeat of the node, in milliseconds; absent before the first one since this
    /// coordinator leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ms_ago: Option<u64>,
    /// The time for which the lease of the node still runs, in milliseconds.
    pub lease_left_ms: u64,
    /// The shards with a replica on the node, in the order of keyspaces and ids.
    pub shards: Vec<HostedShard>,
    /// Whether the node holds more shards than the limit.
    pub more: bool,
}

impl From<&node_detail::NodeDetail> for NodeDetail {
    fn from(detail: &node_detail::NodeDetail) -> Self {
        let hosted = |(keyspace, row): &(_, core::ShardRow)| HostedShard {
            keyspace: ToString::to_string(keyspace as &partage_core::base::name::KeyspaceName),
            shard: row.into(),
        };
        NodeDetail {
            node: (&detail.row).into(),
            health_because: detail.health_because.clone(),
            check: detail.check.clone(),
            heard_ms_ago: detail.heard_ms_ago,
            lease_left_ms: detail.lease_left_ms,
            shards: detail.shards.iter().map(hosted).collect(),
            more: detail.more,
        }
    }
}
