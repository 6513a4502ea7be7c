//! What a node tells of its datasets: the part of `GET /` that the commands show.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `GET /`.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
pub struct Cluster {
    /// By name.
    pub dbs: BTreeMap<String, Dataset>,
    /// Nodes that did not tell.
    #[serde(default)]
    pub unreachable: Vec<String>,
}

/// One dataset.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
pub struct Dataset {
    /// Of its values.
    pub content_type: String,
    /// By name.
    pub versions: BTreeMap<String, Version>,
}

/// One version, over all nodes.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Version {
    /// Where its files are.
    pub path: String,
    /// How many partitions it has.
    pub num_partitions: u32,
    /// How many nodes should have each.
    pub target_replication: u32,
    /// How many nobody has.
    pub missing_partitions: u32,
    /// How many have fewer replicas than they should.
    pub underreplicated_partitions: u32,
    /// How many have more.
    pub overreplicated_partitions: u32,
    /// Replicas of a partition, on average.
    pub average_replication: f64,
    /// What each node tells of it.
    pub nodes: BTreeMap<String, Node>,
}

/// What one node tells of a version.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Node {
    /// Whether its clients get it.
    pub current: bool,
    /// `BUILDING`, `ACTIVE`, `REMOVING` or `ERROR`.
    pub state: String,
    /// Those that are there.
    pub partitions: Vec<u32>,
    /// In them.
    pub keys: u64,
    /// Of them, on disk.
    pub bytes: u64,
    /// How far loading is.
    pub loading: Loading,
    /// What went wrong.
    pub error: Option<String>,
    /// When it took it up.
    pub created_at: String,
}

/// How far loading is.
#[derive(Debug, Clone, Copy, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Loading {
    /// To be there in the end.
    pub partitions: u64,
    /// Read so far.
    pub bytes: u64,
    /// To be read.
    pub bytes_in_all: u64,
}

impl Dataset {
    /// The latest version that clients of some node get.
    pub fn current(&self) -> Option<(&String, &Version)> {
        let is_current = |version: &Version| version.nodes.values().any(|node| node.current);
        self.versions.iter().rev().find(|(_, version)| is_current(version))
    }
}

impl Version {
    /// The nodes whose clients get it, of those that tell.
    pub fn served_by(&self) -> usize {
        self.nodes.values().filter(|node| node.current).count()
    }

    /// Whether any node loads it still.
    pub fn is_building(&self) -> bool {
        self.nodes.values().any(|node| node.state == "BUILDING")
    }

    /// What went wrong, and where.
    pub fn errors(&self) -> impl Iterator<Item = (&String, &str)> {
        self.nodes.iter().filter_map(|(name, node)| Some((name, node.error.as_deref()?)))
    }

    /// Read so far, and to be read, by all nodes.
    pub fn loading(&self) -> (u64, u64) {
        let building = self.nodes.values().filter(|node| node.state == "BUILDING");
        building
            .fold((0, 0), |(bytes, all), node| (bytes + node.loading.bytes, all + node.loading.bytes_in_all))
    }

    /// One word for how it stands.
    pub fn word(&self) -> &'static str {
        if self.errors().next().is_some() {
            "error"
        } else if self.is_building() {
            "building"
        } else if self.served_by() > 0 {
            "active"
        } else {
            "kept"
        }
    }
}
