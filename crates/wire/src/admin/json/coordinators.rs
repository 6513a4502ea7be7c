//! The coordinators of a cluster, as JSON.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One coordinator of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Coordinator {
    /// The name of the coordinator.
    pub id: String,
    /// The address at which other processes reach the coordinator: `host:port`.
    pub address: String,
    /// Whether the coordinator leads and answers; the others stand by.
    pub leads: bool,
    /// The term in which the coordinator leads, or for which it was elected and does not answer yet. Each leader has
    /// a higher term than the one before; absent on a standby.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
    /// The time since which the coordinator leads or stands by, in milliseconds of Unix time by its own clock.
    pub since_ms: u64,
    /// The version of the coordinator's program.
    pub version: String,
}

/// All coordinators of the cluster that are running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Coordinators {
    /// The coordination service that keeps the state of the coordinators: `embedded`, `etcd`, ….
    pub backend: String,
    /// The coordinators: the leader first, then the others by name.
    pub coordinators: Vec<Coordinator>,
    /// Sentences on what is wrong with the coordinators, such as two that lead at once, each with the way out. Empty
    /// when all is well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}
