//! The status of datasets, as JSON: what `GET /`, `GET /<dataset>`, `GET /healthz` and `GET /-/health` of a dataset node answer.
//!
//! Each node writes what it knows of itself, under its own address. The node that a client asks adds what the others have
//! written, and counts replicas. The names of fields are those of Sequins where it has the field.

use crate::json::{FixedWord, Words, fixed_words};
use partage_service::dataset::node::State;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

fixed_words! {
    /// The state of the link from a node to the coordination service, or to the coordinator.
    LinkState {
        /// The node needs no such link.
        Unused = "unused",
        /// The node has neither reached the service nor failed to.
        Connecting = "connecting",
        /// The node is connected, and the service answers.
        Connected = "connected",
        /// The service does not answer: what the node last heard holds.
        Away = "away",
    }
}

fixed_words! {
    /// The health of a node.
    HealthState {
        /// The node answers requests.
        Ok = "ok",
        /// The node answers requests, and does not know yet which datasets there are.
        Starting = "starting",
        /// The node is about to end.
        Stopping = "stopping",
    }
}

/// The answer of `GET /-/health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The health of the node.
    pub status: FixedWord<HealthState>,
    /// The number of datasets.
    pub datasets: usize,
    /// The number of datasets of which clients get a version.
    pub serving: usize,
    /// What a node that was just started waits for; absent = nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaited: Option<String>,
}

/// The answer of `GET /`: all datasets, over all nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Datasets {
    /// The datasets by name.
    pub dbs: BTreeMap<String, Dataset>,
    /// The seat of the node that answers; empty if it takes none.
    #[serde(default)]
    pub shard_id: String,
    /// The address of the node that answers.
    #[serde(default)]
    pub node: String,
    /// The nodes by address.
    #[serde(default)]
    pub nodes: BTreeMap<String, Node>,
    /// The addresses of the nodes that did not answer; absent = only this node was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<Vec<String>>,
}

/// One dataset, over all nodes; the answer of `GET /<dataset>`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Dataset {
    /// The content type of the values; empty if the dataset could never be read.
    pub content_type: String,
    /// The versions by name.
    pub versions: BTreeMap<String, Version>,
    /// The addresses of the nodes that cannot read the dataset from the source, and why.
    #[serde(default)]
    pub source_errors: BTreeMap<String, Trouble>,
    /// By the address of the node: the version that it was ordered to give to clients.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pinned: BTreeMap<String, String>,
    /// Folders of the dataset that are no versions, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// As in [`Datasets`]; empty within it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, Node>,
    /// As in [`Datasets`]; absent within it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable: Option<Vec<String>>,
}

/// One version of a dataset, over all nodes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Version {
    /// The place of its files in the source.
    pub path: String,
    /// The number of its partitions.
    pub num_partitions: u32,
    /// The function that divides keys into partitions.
    pub partitioner: String,
    /// The number of nodes that should have each partition.
    pub target_replication: u32,
    /// The number of partitions that no node has.
    pub missing_partitions: u32,
    /// The number of partitions that some nodes have, and too few.
    pub underreplicated_partitions: u32,
    /// The number of partitions that too many nodes have.
    pub overreplicated_partitions: u32,
    /// The number of nodes that have a partition, on average.
    pub average_replication: f64,
    /// By the number of nodes that have a partition: how many partitions that many nodes have.
    pub replication_histogram: BTreeMap<u32, u32>,
    /// By the address of the node: the version there.
    pub nodes: BTreeMap<String, LocalVersion>,
}

/// One version at one node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LocalVersion {
    /// The address of the node.
    pub name: String,
    /// The seat of the node; empty if it takes none.
    pub shard_id: String,
    /// The time at which the node took the version up, in RFC 3339.
    pub created_at: String,
    /// The time at which it became active, in RFC 3339; absent = it never was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_at: Option<String>,
    /// Whether clients of the node get the version.
    pub current: bool,
    /// The state of the version.
    pub state: FixedWord<State>,
    /// The partitions that the node has.
    pub partitions: Vec<u32>,
    /// The number of keys in them.
    pub keys: u64,
    /// Their size on disk, in bytes.
    pub bytes: u64,
    /// The number of requests that read from the version.
    pub in_flight: u64,
    /// How far loading is.
    pub loading: Loading,
    /// In state `ERROR`: what went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// In state `ERROR`: how often the node has failed, one time after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tries: Option<u32>,
    /// In state `ERROR`: the time at which the node tries again, in RFC 3339; absent = at the next look at the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try_at: Option<String>,
    /// In state `ERROR`: whether the node does not try again, as clients get a later version, or are to get another; absent =
    /// it tries again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub superseded: bool,
    /// In state `HELD`: why a person must release the version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// The partitions whose store file is damaged, and how.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub damaged: BTreeMap<u32, String>,
    /// The addresses of peers that have other files under the name of the version.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differing: Vec<String>,
}

/// How far a node is in loading a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Loading {
    /// The number of partitions that are there.
    pub partitions: u32,
    /// The number of partitions that belong there.
    pub partitions_in_all: u32,
    /// The bytes that the node has read from the source.
    pub bytes: u64,
    /// The bytes that the node is to read, as far as is known.
    pub bytes_in_all: u64,
}

/// One node, whatever its datasets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// The seat of the node; empty if it takes none.
    pub shard_id: String,
    /// Its link to the coordination service.
    pub coordination: FixedWord<LinkState>,
    /// Why the coordination service is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordination_error: Option<Trouble>,
    /// Its link to the coordinator.
    pub coordinator: FixedWord<LinkState>,
    /// Why the coordinator is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator_error: Option<Trouble>,
    /// Why the node cannot read the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_error: Option<Trouble>,
    /// How far the node is in reading its local store through for damage; absent = it does not read it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_check: Option<StoreCheck>,
}

/// How far a node is in reading its local store through for damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreCheck {
    /// The bytes that the node has read.
    pub bytes: u64,
    /// The bytes that the node is to read.
    pub bytes_in_all: u64,
}

/// Something that has failed since some time.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Trouble {
    /// What went wrong the last time.
    pub error: String,
    /// The time of the first failure, in RFC 3339.
    pub since: String,
    /// The number of failures.
    pub times: u64,
}

impl Trouble {
    /// Returns a phrase with the time of the first failure and the number of failures.
    pub fn since_and_times(&self) -> String {
        let times = if self.times == 1 { "once".to_owned() } else { format!("{} times", self.times) };
        format!("since {}, {times}", self.since)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.since_and_times(), self.error)
    }
}

impl Version {
    /// Returns the number of nodes whose clients get the version.
    pub fn served_by(&self) -> usize {
        self.nodes.values().filter(|node| node.current).count()
    }

    /// Returns the nodes at which the version is in that state.
    pub fn in_state(&self, state: State) -> impl Iterator<Item = &LocalVersion> {
        self.nodes.values().filter(move |node| node.state.is(state))
    }

    /// Returns the addresses of the nodes that could not load the version, and why.
    pub fn errors(&self) -> impl Iterator<Item = (&String, &str)> {
        self.nodes.iter().filter_map(|(name, node)| Some((name, node.error.as_deref()?)))
    }

    /// Returns why a node holds the version back from clients.
    pub fn hold(&self) -> Option<&str> {
        self.nodes.values().find_map(|node| node.held.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_there_is_left_out() {
        let trouble = json!({ "error": "403", "since": "2026-01-01T00:00:00Z", "times": 7 });
        let node = json!({ "shard_id": "3", "coordination": "away", "coordination_error": trouble, "coordinator": "unused" });
        let local = json!({
            "name": "a:1", "shard_id": "3", "created_at": "2026-01-01T00:00:00Z", "current": false,
            "state": "ERROR", "error": "part-0: byte 7", "tries": 2, "partitions": [0], "keys": 5, "bytes": 265,
            "in_flight": 0, "damaged": { "10": "byte 9" },
            "loading": { "partitions": 1, "partitions_in_all": 2, "bytes": 5, "bytes_in_all": 9 },
        });
        let version = json!({
            "path": "s3://b/names/v1", "num_partitions": 2, "partitioner": "java-bytes", "target_replication": 2,
            "missing_partitions": 2, "underreplicated_partitions": 0, "overreplicated_partitions": 0,
            "average_replication": 0.5, "replication_histogram": { "0": 2 }, "nodes": { "a:1": local },
        });
        let dataset = json!({ "content_type": "", "versions": { "v1": version }, "source_errors": {} });
        let golden =
            json!({ "dbs": { "names": dataset }, "shard_id": "3", "node": "a:1", "nodes": { "a:1": node } });
        let read: Datasets = serde_json::from_value(golden.clone()).unwrap();
        assert!(read.dbs["names"].versions["v1"].in_state(State::Error).count() == 1);
        assert_eq!(serde_json::to_value(&read).unwrap(), golden);
    }

    #[test]
    fn the_status_of_another_version_is_read() {
        let later = json!({ "state": "RESTING", "new": [1] });
        let version = json!({ "nodes": { "a:1": later, "b:1": { "state": "BUILDING" } } });
        // An earlier version writes null where only it was asked.
        let dataset = json!({
            "content_type": "text/plain", "versions": { "v1": version }, "unreachable": null,
            "nodes": { "b:1": { "coordination": "connected" } },
        });
        let read: Dataset = serde_json::from_value(dataset).unwrap();
        let states = State::ALL.map(|state| read.versions["v1"].in_state(state).count());
        assert_eq!(states.iter().sum::<usize>(), 1, "a word that is not known is no state");
        assert_eq!(read.versions["v1"].nodes["a:1"].state.to_string(), "RESTING");
        assert!(read.nodes["b:1"].coordination.is(LinkState::Connected) && read.unreachable.is_none());
        assert_eq!(read.nodes["b:1"].coordinator.to_string(), "", "an earlier version does not tell");
        assert!(
            serde_json::from_value::<Datasets>(json!({ "nodes": [] })).is_err(),
            "another server's answer"
        );
    }
}
