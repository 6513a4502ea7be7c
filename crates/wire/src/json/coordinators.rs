//! The coordinators of a cluster, as JSON.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Coordinator {
    /// Its name.
    pub id: String,
    /// `host:port` where others reach it.
    pub address: String,
    /// Whether it leads and answers; the others stand by.
    pub leads: bool,
    /// The term at which it leads, or at which it was elected and does not answer yet: grows with each leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
    /// Since when it leads, or stands by, in milliseconds of Unix time by its own clock.
    pub since_ms: u64,
    /// Of its program.
    pub version: String,
}

/// All that are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Coordinators {
    /// What keeps their state: `embedded`, `etcd`, ….
    pub backend: String,
    /// The leader first, then by name.
    pub coordinators: Vec<Coordinator>,
    /// What is wrong with them, and the way out: two that lead at once, for instance. Empty when all is well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}
