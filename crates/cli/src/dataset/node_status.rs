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
    /// What each tells of itself.
    #[serde(default)]
    pub nodes: BTreeMap<String, NodeStatus>,
}

/// How a node stands, whatever its datasets.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Its number among the nodes.
    pub shard_id: String,
    /// `connected`, `connecting`, `away` or `unused`.
    pub coordination: String,
    /// Why it is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordination_error: Option<Trouble>,
    /// The same of the coordinator.
    pub coordinator: String,
    /// Why it is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator_error: Option<Trouble>,
    /// How far it is that reads its store through for damage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_check: Option<StoreCheck>,
    /// Why the source cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_error: Option<Trouble>,
}

/// A reading of all of a store.
#[derive(Debug, Clone, Copy, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct StoreCheck {
    /// Read so far.
    pub bytes: u64,
    /// To be read.
    pub bytes_in_all: u64,
}

/// What does not work.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Trouble {
    /// What it was the last time.
    pub error: String,
    /// Since when.
    pub since: String,
    /// The number of times that it has failed.
    pub times: u64,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let times = if self.times == 1 { "once".to_owned() } else { format!("{} times", self.times) };
        write!(f, "since {}, {times}: {}", self.since, self.error)
    }
}

/// One dataset.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
pub struct Dataset {
    /// Of its values.
    pub content_type: String,
    /// By name.
    pub versions: BTreeMap<String, Version>,
    /// Nodes that cannot read it from the source, and why.
    #[serde(default)]
    pub source_errors: BTreeMap<String, Trouble>,
    /// The version that each node was ordered to give to clients, where it was.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pinned: BTreeMap<String, String>,
    /// Folders that are no versions, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// What each node tells of itself.
    #[serde(default)]
    pub nodes: BTreeMap<String, NodeStatus>,
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
    /// `BUILDING`, `ACTIVE`, `REMOVING`, `HELD` or `ERROR`.
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
    /// How often that was, one time after the other.
    pub tries: u32,
    /// When it is tried again, if not at the next look at the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try_at: Option<String>,
    /// Why a person must release it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// Partitions whose store file is damaged, and how.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub damaged: BTreeMap<String, String>,
    /// The peers that have other files under its name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differing: Vec<String>,
    /// When it took it up.
    pub created_at: String,
}

/// How far loading is.
#[derive(Debug, Clone, Copy, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Loading {
    /// There already.
    pub partitions: u64,
    /// To be there in the end.
    pub partitions_in_all: u64,
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

    /// Where it is held, and why.
    pub fn holds(&self) -> impl Iterator<Item = (&String, &str)> {
        self.nodes.iter().filter_map(|(name, node)| Some((name, node.held.as_deref()?)))
    }

    /// How far all nodes are together that load it.
    pub fn loading(&self) -> Loading {
        let building = self.nodes.values().filter(|node| node.state == "BUILDING");
        building.fold(Loading::default(), |sum, node| Loading {
            partitions: sum.partitions + node.loading.partitions,
            partitions_in_all: sum.partitions_in_all + node.loading.partitions_in_all,
            bytes: sum.bytes + node.loading.bytes,
            bytes_in_all: sum.bytes_in_all + node.loading.bytes_in_all,
        })
    }

    /// One word for how it stands.
    pub fn word(&self) -> &'static str {
        if self.errors().next().is_some() {
            "error"
        } else if self.holds().next().is_some() {
            "held"
        } else if self.is_building() {
            "building"
        } else if self.served_by() > 0 {
            "active"
        } else {
            "kept"
        }
    }
}
