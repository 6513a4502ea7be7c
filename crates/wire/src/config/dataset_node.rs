//! `dataset-node.toml`: a node that serves datasets.

use super::{CoordinationFile, DoorFile};
use serde::Deserialize;
use std::path::PathBuf;

/// The file. A key that is absent comes from the command line or has a default.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatasetNodeFile {
    /// A folder or URL with datasets.
    pub source: Option<String>,
    /// Where its store files are.
    pub data_dir: Option<PathBuf>,
    /// `host:port` to listen on.
    pub listen: Option<String>,
    /// `host:port` where peers reach it; absent = `listen`.
    pub address: Option<String>,
    /// Whether it may listen on an address that other machines can reach, although there is no authentication.
    pub insecure: Option<bool>,
    /// Which clients may connect, and what they may cost.
    pub door: DoorFile,
    /// `host:port` of each coordinator that says what it is to have; empty = it computes that.
    pub coordinators: Vec<String>,
    /// Its name under a coordinator, kept across restarts.
    pub id: Option<String>,
    /// Its share of every load under a coordinator; absent = 1.
    pub capacity: Option<f64>,
    /// What fails with it, for a coordinator to spread replicas over.
    pub zone: Option<String>,
    /// A smaller failure domain inside the zone.
    pub rack: Option<String>,
    /// Free words to pin and exclude by, under a coordinator.
    pub labels: Vec<String>,
    /// Seconds for which a partition is kept that the coordinator ordered elsewhere and others have; absent = 60.
    pub let_go_s: Option<u64>,
    /// Which cluster it belongs to; absent = `default`.
    pub cluster: Option<String>,
    /// Where nodes see each other; absent = by gossip under a coordinator, else nowhere: it is alone.
    pub coordination: Option<CoordinationFile>,
    /// `host:port` for gossip; absent = a free port on loopback.
    pub gossip: Option<String>,
    /// The file with the key that gossip is sealed with; absent = gossip is in the clear.
    pub gossip_key_file: Option<PathBuf>,
    /// The datasets that it serves; empty = all that the source has.
    pub datasets: Vec<String>,
    /// Its number among the nodes from which it computes its share; absent = the smallest that is free. Files of before say
    /// `shard_id`.
    #[serde(alias = "shard_id")]
    pub seat: Option<u32>,
    /// How many nodes have each partition; absent = 2.
    pub replication: Option<u32>,
    /// How many nodes must have each partition before clients get a version; absent = 1.
    pub min_replication: Option<u32>,
    /// A partition that so many others have is not taken; absent = no limit.
    pub max_replication: Option<u32>,
    /// How partitions are dealt to nodes; absent = `interleaved`.
    pub dealing: Option<String>,
    /// Whether replicas that are lost are made good; absent = no.
    pub re_replicate: Option<bool>,
    /// Seconds between two looks at the source; absent = 60.
    pub refresh_s: Option<u64>,
    /// Seconds for which nodes must be the same before shares are computed; absent = 10.
    pub stable_s: Option<u64>,
    /// Seconds for which the node keeps a version that no client or peer asks for and that clients do not get; absent = 600.
    pub keep_s: Option<u64>,
    /// Milliseconds before one more peer is asked; absent = 50.
    pub proxy_stage_ms: Option<u64>,
    /// Milliseconds before a request that no peer answers is given up; absent = 100.
    pub proxy_ms: Option<u64>,
    /// Bytes a second that are read from the source at most; absent = no limit.
    pub load_bytes_s: Option<u64>,
    /// Files that are read, and store files that are written, at once.
    pub load_at_once: Option<usize>,
    /// Whether store files of a source on the same file system are linked instead of copied; absent = no.
    pub load_by_link: Option<bool>,
    /// Memory for loading, in MiB.
    pub load_memory_mib: Option<usize>,
    /// Threads that answer requests; absent = one a core.
    pub threads: Option<usize>,
    /// Seconds for which a connection may ask nothing; absent = 60.
    pub idle_s: Option<u64>,
}
